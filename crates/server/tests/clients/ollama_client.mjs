// What the official JavaScript client of Ollama's API can do with a server of the demo model: node ollama_client.mjs BASE_URL.
// It is run from the folder where the client is installed.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";

const { Ollama } = createRequire(path.join(process.cwd(), "here.js"))("ollama");
const host = process.argv[2];
const client = new Ollama({ host, headers: { Authorization: "Bearer secret" } });
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const body = (more = {}) => ({ model: "demo", messages, options: { temperature: 0, num_predict: 30 }, ...more });

const tests = {
  async models() {
    assert.deepEqual((await client.list()).models.map((model) => model.name), ["demo"]);
    assert.ok((await client.show({ model: "demo" })).capabilities.includes("tools"));
    assert.equal((await client.ps()).models.length, 1);
    assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
  },
  async chat() {
    const whole = await client.chat(body());
    assert.equal(whole.eval_count, 30);
    let text = "";
    let last;
    for await (const piece of await client.chat(body({ stream: true }))) {
      text += piece.message.content;
      last = piece;
    }
    assert.equal(text, whole.message.content);
    assert.ok(last.done && last.done_reason === "length");
  },
  async generate() {
    const whole = await client.generate({ model: "demo", prompt: "Tell me a story.", options: { temperature: 0, num_predict: 9 } });
    assert.equal(whole.eval_count, 9);
  },
  async format() {
    const format = { type: "object", properties: { legs: { type: "integer", minimum: 0, maximum: 9 } }, required: ["legs"] };
    // The likeliest tokens of a small model may be spaces, as many as a form allows; drawn ones are not.
    const options = { temperature: 1, seed: 1, top_k: 0, min_p: 0, top_p: 1, num_predict: 200 };
    const answer = JSON.parse((await client.chat(body({ format, options }))).message.content);
    assert.ok(answer.legs >= 0 && answer.legs <= 9);
  },
  async errors() {
    await assert.rejects(client.chat(body({ model: "no-such-model" })), /no-such-model/);
    await assert.rejects(client.embed({ model: "demo", input: "a" }), /embeds none/);
    await assert.rejects(new Ollama({ host }).list(), /API key/);
  },
};

for (const [name, test] of Object.entries(tests)) {
  await test();
  console.log(`ok ${name}`);
}
