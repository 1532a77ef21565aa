// What the official JavaScript client can do with a server of the demo model: node openai_client.mjs BASE_URL.
// It is run from the folder where the client is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const { default: OpenAI } = createRequire(path.join(process.cwd(), "here.js"))("openai");
const baseURL = process.argv[2];
const client = new OpenAI({ baseURL, apiKey: "secret", maxRetries: 0, timeout: 120_000 });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const chat = (more = {}) =>
  client.chat.completions.create({ model: "demo", messages, temperature: 0, max_tokens: 30, ...more });
// The likeliest tokens of a small model may be spaces, as many as a form allows; those drawn of all are not.
const drawn = { temperature: 1, seed: 5, top_k: 0, min_p: 0, top_p: 1 };
const schema = {
  type: "object",
  properties: { city: { type: "string", maxLength: 20 }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "get_weather", strict: true, parameters: schema } }];

const tests = {
  async models() {
    const list = await client.models.list();
    assert.deepEqual(list.data.map((model) => model.id), ["demo"]);
    assert.equal((await client.models.retrieve("demo")).id, "demo");
  },
  async chat() {
    const answer = await chat();
    assert.equal(answer.choices[0].finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 30);
  },
  async streamed() {
    let text = "";
    let usage;
    for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, (await chat()).choices[0].message.content);
    assert.equal(usage.completion_tokens, 30);
  },
  async stopped() {
    const stream = await chat({ stream: true, max_tokens: 800, ignore_eos: true });
    for await (const _ of stream) break; // leaving the loop ends the request
    assert.ok(stream.controller.signal.aborted);
  },
  async completions() {
    const body = { model: "demo", prompt: "Once upon a", max_tokens: 5, temperature: 0 };
    const whole = await client.completions.create({ ...body, logprobs: 2 });
    assert.equal(whole.choices[0].logprobs.tokens.length, 5);
    let text = "";
    for await (const chunk of await client.completions.create({ ...body, stream: true })) text += chunk.choices[0].text;
    assert.equal(text, whole.choices[0].text);
  },
  async logprobs() {
    const answer = await chat({ logprobs: true, top_logprobs: 2 });
    assert.equal(answer.choices[0].logprobs.content.length, 30);
  },
  async structured() {
    const response_format = { type: "json_schema", json_schema: { name: "visit", schema, strict: true } };
    const answer = await chat({ response_format, ...drawn, max_tokens: 200 });
    assert.equal(answer.choices[0].finish_reason, "stop");
    const visit = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(visit), ["city", "days"]);
    assert.ok(Number.isInteger(visit.days) && visit.days >= 1 && visit.days <= 9);
  },
  async tools() {
    const more = { tools, tool_choice: "required", parallel_tool_calls: false, max_tokens: 200, ...drawn };
    const answer = await chat(more);
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    const call = answer.choices[0].message.tool_calls[0].function;
    assert.equal(call.name, "get_weather");
    assert.deepEqual(Object.keys(JSON.parse(call.arguments)), ["city", "days"]);
    const stream = client.chat.completions.stream({ model: "demo", messages, ...more });
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.tool_calls[0].function.arguments, call.arguments);
  },
  async responses() {
    const body = { model: "demo", input: messages, temperature: 0, max_output_tokens: 30 };
    const whole = await client.responses.create(body);
    assert.equal(whole.output_text, (await chat()).choices[0].message.content);
    let text = "";
    let last;
    for await (const event of await client.responses.create({ ...body, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
      last = event;
    }
    assert.equal(text, whole.output_text);
    assert.equal(last.type, "response.incomplete");
    const next = await client.responses.create({ ...body, input: "Go on.", previous_response_id: whole.id });
    assert.equal(next.previous_response_id, whole.id);
    const tool = { type: "function", name: "get_weather", strict: true, parameters: schema };
    const called = await client.responses.create({ ...body, tools: [tool], tool_choice: "required", max_output_tokens: 200 });
    assert.equal(called.output[0].type, "function_call");
    await client.responses.delete(whole.id);
    await assert.rejects(client.responses.retrieve(whole.id), OpenAI.NotFoundError);
  },
  async errors() {
    await assert.rejects(chat({ model: "no-such-model" }), OpenAI.NotFoundError);
    await assert.rejects(chat({ temperature: -1 }), OpenAI.BadRequestError);
    const other = new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(other.models.list(), OpenAI.AuthenticationError);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`ok ${name}`);
}
