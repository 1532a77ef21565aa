// What the official JavaScript client of Anthropic's API can do with a server of the demo model: node anthropic_client.mjs BASE_URL.
// It is run from the folder where the client is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const { default: Anthropic } = createRequire(path.join(process.cwd(), "here.js"))("@anthropic-ai/sdk");
const baseURL = process.argv[2];
const client = new Anthropic({ baseURL, apiKey: "secret", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const body = (more = {}) => ({ model: "demo", messages, max_tokens: 30, temperature: 0, ...more });
const tools = [{
  name: "get_weather",
  input_schema: {
    type: "object",
    properties: { city: { type: "string", maxLength: 20 }, days: { type: "integer", minimum: 1, maximum: 9 } },
    required: ["city", "days"],
    additionalProperties: false,
  },
}];

const tests = {
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.deepEqual(ids, ["demo"]);
  },
  async message() {
    const answer = await client.messages.create(body());
    assert.equal(answer.stop_reason, "max_tokens");
    assert.equal(answer.usage.output_tokens, 30);
  },
  async streamed() {
    const whole = await client.messages.create(body());
    let text = "";
    const stream = client.messages.stream(body()).on("text", (piece) => { text += piece; });
    const final = await stream.finalMessage();
    assert.equal(text, whole.content[0].text);
    assert.deepEqual(final.content[0].text, text);
    assert.equal(final.usage.output_tokens, 30);
  },
  async stopped() {
    const stream = await client.messages.create(body({ stream: true, max_tokens: 300 }));
    for await (const _ of stream) break; // leaving the loop ends the request
    assert.ok(stream.controller.signal.aborted);
  },
  async tools() {
    const drawn = { tools, tool_choice: { type: "tool", name: "get_weather" }, max_tokens: 200, temperature: 1, top_k: 0, min_p: 0, top_p: 1 };
    // A small model may write spaces up to the limit: which of the seeds do not depends on the processor.
    let more, whole;
    for (let seed = 1; seed <= 10 && whole?.stop_reason !== "tool_use"; seed++) {
      more = { ...drawn, seed };
      whole = await client.messages.create(body(more));
    }
    assert.equal(whole.stop_reason, "tool_use");
    assert.deepEqual(Object.keys(whole.content[0].input), ["city", "days"]);
    const final = await client.messages.stream(body(more)).finalMessage();
    assert.deepEqual(final.content[0].input, whole.content[0].input);
  },
  async counted() {
    const count = await client.messages.countTokens({ model: "demo", messages });
    assert.ok(count.input_tokens > 0);
  },
  async errors() {
    await assert.rejects(client.messages.create(body({ model: "no-such-model" })), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create(body({ temperature: -1 })), Anthropic.BadRequestError);
    const other = new Anthropic({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.messages.create(body()), Anthropic.AuthenticationError);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`ok ${name}`);
}
