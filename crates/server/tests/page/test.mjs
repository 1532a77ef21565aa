// The chat page in headless Chromium: against `realizar serve` with the demo model, and against a server of our own that sends what a
// small model never says: text that looks like markup, thoughts, broken streams, refusals.
//
//   node test.mjs PROGRAM [CHROMIUM] [FOLDER FOR SCREENSHOTS]
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const [program, chromiumPath = '/usr/bin/chromium', shots] = process.argv.slice(2);
assert(program, 'usage: node test.mjs PROGRAM [CHROMIUM] [FOLDER FOR SCREENSHOTS]');
// From the folder in which the script was started, where tools/test-page installs it.
const require = createRequire(join(process.cwd(), 'package.json'));
const { chromium } = require('playwright-core');
const { source: axe } = require('axe-core');
const PATIENCE = 90_000;
const servers = [];

/** Starts the program and returns its address. */
async function serve(...options) {
  const child = spawn(program, ['serve', '--port', '0', ...options], { stdio: ['ignore', 'ignore', 'pipe'] });
  servers.push(child);
  let said = '';
  child.stderr.setEncoding('utf8');
  for await (const text of child.stderr) {
    said += text;
    const address = /ready at (http:\S+):\s/.exec(said);
    if (address) {
      child.stderr.resume();
      return address[1];
    }
  }
  throw new Error(`the server did not start: ${said}`);
}

const profile = mkdtempSync(join(tmpdir(), 'realizar-page-'));
const browser = await chromium.launchPersistentContext(profile, {
  executablePath: chromiumPath, headless: true, timeout: PATIENCE,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'],
});

/** Opens a page that must not log errors, and must not talk to any other host. `expected`: errors that belong to the test. */
async function open(address, { path = '/', width = 1280, height = 800, scheme = 'light', expected = [] } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewportSize({ width, height });
  await page.emulateMedia({ colorScheme: scheme });
  page.complaints = [];
  const complain = text => { if (!expected.some(e => e.test(text))) page.complaints.push(text); };
  page.on('console', entry => { if (['error', 'warning'].includes(entry.type())) complain(entry.text()); });
  page.on('pageerror', error => complain(String(error)));
  page.on('request', request => {
    const url = new URL(request.url());
    if (url.protocol !== 'data:' && url.origin !== address) complain(`a request to ${url}`);
  });
  await page.goto(address + path);
  return page;
}
async function shut(page) {
  assert.deepEqual(page.complaints, []);
  assert.equal(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), true, 'it scrolls sideways');
  await forget(page);
  await page.close();
}
/** Empties what the browser keeps. */
const forget = page => page.evaluate(async () => {
  localStorage.clear();
  sessionStorage.clear();
  const [database] = await indexedDB.databases();
  if (!database) return;
  const opened = await new Promise(resolve => { const request = indexedDB.open(database.name); request.onsuccess = () => resolve(request.result); });
  const emptying = opened.transaction('conversations', 'readwrite');
  emptying.objectStore('conversations').clear();
  await new Promise(resolve => { emptying.oncomplete = resolve; });
  opened.close();
});
/** What axe-core finds wrong with the page as it is now. */
async function audit(page, state) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => axe.run());
  assert.deepEqual(violations.map(({ id, nodes }) => `${state}: ${id} ${nodes.map(n => n.html).join(' ')}`), []);
}
const side = async (page, name) => {
  const button = page.getByRole('button', { name, exact: true });
  if (await button.getAttribute('aria-expanded') === 'false') await button.click();
};
const showSettings = page => side(page, 'Settings and engine');
const showList = page => side(page, 'Conversations');
async function send(page, text) {
  await page.getByRole('textbox', { name: 'Message' }).fill(text);
  await page.keyboard.press('Enter');
}
/** Adds these fields to what the page asks for. */
const alsoAsk = (page, fields) => page.route('**/v1/chat/completions', route =>
  route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ...fields }) }));
/** Lets the page read one event of a stream per frame, however fast the server sends: the small model is done within two frames. */
const slowStreams = page => page.evaluate(() => {
  const { fetch } = window;
  window.fetch = async (...call) => {
    const response = await fetch(...call);
    if (!response.headers.get('content-type')?.startsWith('text/event-stream')) return response;
    const events = new TransformStream({
      async transform(text, controller) {
        for (const event of text.split(/(?<=\n\n)/)) {
          controller.enqueue(event);
          await new Promise(requestAnimationFrame);
        }
      },
    });
    const body = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(events).pipeThrough(new TextEncoderStream());
    return new Response(body, response);
  };
});
const answers = page => page.locator('article.answered');
const finished = page => page.waitForFunction(() => !document.querySelector('.busy'));
const figures = page => answers(page).last().locator('.numbers').innerText();
const bodies = (page, path) => {
  const list = [];
  page.on('request', request => { if (request.url().endsWith(path)) list.push(request.postDataJSON()); });
  return list;
};

const tests = {
  async 'an answer streams, is measured, and can be had again'(demo) {
    const page = await open(demo);
    await page.getByText('Talk with demo').waitFor();
    assert.equal(await page.title(), 'demo – realizar');
    await slowStreams(page);
    // Of a hundred stories that the small model draws, one or two are about another animal.
    await alsoAsk(page, { temperature: 0 });
    // Counts how often the answer grew.
    await page.evaluate(() => {
      window.lengths = new Set();
      new MutationObserver(() => window.lengths.add(document.querySelector('.answer .text')?.textContent.length))
        .observe(document.body, { childList: true, subtree: true, characterData: true });
    });
    await page.getByRole('button', { name: 'Tell me a story about a fox.' }).click();
    await finished(page);
    assert.match(await answers(page).last().locator('.text').innerText(), /fox/);
    assert.match(await figures(page), /^[\d,]+ tokens · [\d.,]+ tok\/s · first after [\d.]+ m?s/);
    assert((await page.evaluate(() => window.lengths.size)) > 5, 'it did not stream');
    const requests = bodies(page, '/v1/chat/completions');
    await page.getByRole('button', { name: 'Answer again' }).click();
    await finished(page);
    assert.equal(await answers(page).count(), 1);
    await answers(page).getByText('2 of 2').waitFor();
    assert.equal(requests[0].messages.length, 1);
    await send(page, 'Who are you?');
    await finished(page);
    assert.deepEqual(requests[1].messages.map(m => m.role), ['user', 'assistant', 'user']);
    assert.equal(requests[1].messages[2].content, 'Who are you?');
    await shut(page);
  },

  async 'stopping keeps what was written, and frees the engine'(demo) {
    const page = await open(demo);
    // The demo model would end its story soon.
    await alsoAsk(page, { ignore_eos: true });
    for (const stop of [() => page.getByRole('button', { name: 'Stop' }).click(), () => page.keyboard.press('Escape')]) {
      await send(page, 'Tell me a long story about a bear.');
      await page.waitForFunction(() => document.querySelector('.busy .text')?.textContent.length > 60);
      await stop();
      await finished(page);
      const text = await answers(page).last().locator('.text').innerText();
      assert(text.length > 60, text);
      assert.match(await figures(page), /tokens · .*stopped$/);
      assert.equal(await page.getByRole('button', { name: 'Send' }).count(), 1);
    }
    for (let i = 0; ; i++) {
      const metrics = await (await fetch(demo + '/metrics')).text();
      if (/^realizar_running\{.*\} 0$/m.test(metrics) && /cancelled"} [2-9]/.test(metrics)) break;
      assert(i < 100, metrics);
      await page.waitForTimeout(100);
    }
    await shut(page);
  },

  async 'settings are kept, sent, and checked'(demo) {
    let page = await open(demo);
    const requests = bodies(page, '/v1/chat/completions');
    await showSettings(page);
    for (const [name, value] of [['Temperature', '0'], ['Top p', '0.9'], ['Top k', '40'], ['Min p', '0,05'], ['Repetition penalty', '1.1'], ['Max tokens', '7'], ['Seed', '42']]) {
      await page.getByRole('textbox', { name, exact: true }).fill(value);
    }
    await page.getByRole('textbox', { name: 'System prompt' }).fill('Be brief.');
    await send(page, 'Tell me a story about a fox.');
    await finished(page);
    assert.match(await figures(page), /^7 tokens .* cut at the limit$/);
    const { messages, stream, stream_options, ...sampling } = requests[0];
    assert.deepEqual(sampling, { temperature: 0, top_p: 0.9, top_k: 40, min_p: 0.05, repetition_penalty: 1.1, max_tokens: 7, seed: 42 });
    assert.deepEqual(messages[0], { role: 'system', content: 'Be brief.' });
    const first = await answers(page).last().locator('.text').innerText();
    await page.getByRole('button', { name: 'Answer again' }).click();
    await finished(page);
    await answers(page).getByText('2 of 2').waitFor();
    assert.equal(await answers(page).last().locator('.text').innerText(), first, 'temperature 0 and a seed');

    await page.reload();
    assert.equal(await page.getByRole('textbox', { name: 'Max tokens' }).inputValue(), '7');
    assert.equal(await page.getByRole('textbox', { name: 'System prompt' }).inputValue(), 'Be brief.');
    await page.getByRole('textbox', { name: 'Top p' }).fill('7');
    await page.getByText('Not used: it must be a number from 0 to 1.').waitFor();
    await page.getByRole('textbox', { name: 'Top k' }).fill('2.5');
    await page.getByText('Not used: it must be a whole number of at least 0.').waitFor();
    await send(page, 'Who are you?');
    await finished(page);
    assert.equal('top_p' in requests.at(-1) || 'top_k' in requests.at(-1), false);
    await page.getByRole('button', { name: 'Defaults' }).click();
    assert.equal(await page.getByRole('textbox', { name: 'Max tokens' }).inputValue(), '');
    await send(page, 'Who are you?');
    await finished(page);
    assert.deepEqual(Object.keys(requests.at(-1)).sort(), ['messages', 'stream', 'stream_options']);
    await shut(page);
  },

  async 'a chat can be left and taken up again'(demo) {
    const page = await open(demo);
    const button = page.getByRole('button', { name: 'New chat' });
    assert.equal(await button.isVisible(), false);
    await send(page, 'Who are you?');
    await finished(page);
    await button.click();
    assert.equal(await answers(page).count(), 0);
    await page.getByRole('button', { name: 'Back to the last chat' }).click();
    assert.equal(await answers(page).count(), 1);
    await shut(page);
  },

  async 'the engine is drawn while somebody looks'(demo) {
    const page = await open(demo);
    const polls = [];
    page.on('request', request => { if (request.url().endsWith('/metrics')) polls.push(request); });
    await showSettings(page);
    assert.equal(await page.locator('#plots').isVisible(), false, 'the engine is closed at first');
    await page.waitForTimeout(1500);
    assert.equal(polls.length, 0);
    assert.deepEqual(await page.locator('#plots svg').evaluateAll(plots => plots.map(plot => plot.getAttribute('aria-label'))),
      ['Generated', 'KV cache', 'Running', 'Waiting'].map(title => `${title}, last minute: no values`));
    await page.locator('#engine summary').click();
    // Work that shows in the plots.
    const body = JSON.stringify({ prompt: 'Once', max_tokens: 900, ignore_eos: true, n: 4 });
    const work = fetch(demo + '/v1/completions', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
    const points = name => page.locator(`#plot-${name} .curve`).evaluate(path => (path.getAttribute('d').match(/[ML]/g) ?? []).length);
    await page.waitForFunction(() => document.querySelector('#plot-running .now span').textContent > 0);
    await page.waitForFunction(() => Number(document.querySelector('#plot-rate .now span').textContent.replaceAll(',', '')) > 0);
    for (let i = 0; (await points('rate')) < 4; i++) {
      assert(i < 300, 'the plots do not grow');
      await page.waitForTimeout(100);
    }
    for (const name of ['rate', 'kv', 'running', 'waiting']) assert((await points(name)) >= 4, name);
    assert.match(await page.locator('#plot-running svg').getAttribute('aria-label'), /^Running, last minute: now \d+ , highest [1-4]$/);
    assert.match(await page.locator('#facts').innerText(), /Context\s+1,024 tokens/);
    await page.getByRole('button', { name: 'Settings and engine' }).click();
    await page.waitForTimeout(1500);
    const n = polls.length;
    await page.waitForTimeout(2500);
    assert.equal(polls.length, n, 'it goes on polling behind a closed panel');
    assert.equal((await work).status, 200);
    await shut(page);
  },

  async 'light and dark, wide and narrow'(demo) {
    for (const scheme of ['light', 'dark']) {
      for (const [width, height] of [[1280, 800], [390, 844]]) {
        const page = await open(demo, { scheme, width, height });
        const narrow = width < 900;
        const panel = page.getByRole('complementary', { name: 'Settings and engine' });
        assert.equal(await panel.isVisible(), false, 'it is closed at first');
        await send(page, 'Tell me a story about a fox.');
        await finished(page);
        const ground = async () => (await page.evaluate(() => getComputedStyle(document.body).backgroundColor)).match(/\d+/g)[0] < 128 ? 'dark' : 'light';
        assert.equal(await ground(), scheme);
        await shoot(page, `${scheme}-${width}`);
        await audit(page, 'answered');
        await showList(page);
        await audit(page, 'list');
        if (narrow) await page.keyboard.press('Escape');
        if (!narrow) { await showSettings(page); await page.locator('#engine summary').click(); await audit(page, 'settings'); await shoot(page, `${scheme}-${width}-sides`); }
        if (narrow) {
          await page.getByRole('button', { name: 'Settings and engine' }).click();
          assert.equal(await page.evaluate(() => { const node = document.getElementById('message'); node.focus(); return document.activeElement === node; }), false, 'what is covered can be reached');
          const box = await panel.boundingBox();
          assert(box.x === 0 && box.width === width && box.y + box.height <= height, JSON.stringify(box));
          assert(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
          await shoot(page, `${scheme}-${width}-panel`);
          await page.keyboard.press('Escape');
          assert.equal(await panel.isVisible(), false);
        }
        // As the system, light, dark.
        const button = page.getByRole('button', { name: 'Colours' });
        for (const [label, expected] of [['light', 'light'], ['dark', 'dark'], ['as the system', scheme]]) {
          await button.click();
          assert.equal(await button.getAttribute('aria-label'), `Colours: ${label}`);
          assert.equal(await ground(), expected);
        }
        const nameless = await page.evaluate(() => [...document.querySelectorAll('button, input, textarea, a')]
          .filter(node => node.checkVisibility() && !node.textContent.trim() && !node.getAttribute('aria-label') && !node.labels?.length)
          .map(node => node.outerHTML));
        assert.deepEqual(nameless, [], 'controls without a name');
        await shut(page);
      }
    }
  },

  async 'one of several models is chosen, and stays chosen'() {
    const folder = mkdtempSync(join(tmpdir(), 'realizar-models-'));
    const file = join(folder, 'models.toml');
    writeFileSync(file, '[models.fox]\nmodel = "demo"\n[models.owl]\nmodel = "demo"\n');
    const address = await serve('--config', file, '--device', 'cpu', '--kv-memory', '32M');
    const page = await open(address);
    const asked = bodies(page, '/v1/chat/completions');
    await page.getByRole('combobox', { name: 'Model' }).selectOption('owl');
    await send(page, 'Tell me a story about a fox.');
    await finished(page);
    assert.equal(asked[0].model, 'owl');
    assert.equal(await page.title(), 'owl – realizar');
    await page.reload();
    await page.waitForFunction(() => document.title.startsWith('owl'));
    assert.equal(await page.getByRole('combobox', { name: 'Model' }).inputValue(), 'owl');
    await shut(page);
    rmSync(folder, { recursive: true });
  },

  async 'the page comes with its policy, and only once'(demo) {
    const response = await fetch(demo + '/');
    assert.match(response.headers.get('content-type'), /^text\/html/);
    assert.match(response.headers.get('content-security-policy'), /default-src 'none'; script-src 'sha256-.*connect-src 'self'.*require-trusted-types-for 'script'/);
    const again = await fetch(demo + '/', { headers: { 'If-None-Match': response.headers.get('etag') } });
    assert.deepEqual([again.status, await again.text()], [304, '']);
  },

  async 'the API is documented, and can be tried'(demo) {
    for (const scheme of ['light', 'dark']) {
      const page = await open(demo, { path: '/docs', scheme });
      await page.getByText('Answer a conversation', { exact: true }).waitFor();
      // As in the document: answers first.
      assert.equal(await page.locator('.opblock-summary-path').first().innerText(), '/v1/chat/completions');
      await page.getByRole('button', { name: /post.*\/v1\/chat\/completions/i }).first().click();
      const chat = page.locator('.opblock.is-open');
      await chat.getByRole('button', { name: 'Execute' }).click();
      await chat.locator('.live-responses-table .response-col_status', { hasText: '200' }).waitFor();
      assert.match(await chat.locator('.live-responses-table').innerText(), /"object": "chat.completion"/);
      await shoot(page, `docs-${scheme}`);
      await shut(page);
    }
  },

  async 'a key is asked for, and kept for the tab'() {
    const guarded = await serve('--api-key', 'open sesame');
    const page = await open(guarded, { expected: [/401/] });
    await page.getByText('This server asks for a key.').waitFor();
    await page.getByRole('textbox', { name: 'API key' }).fill('wrong');
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => !document.getElementById('key-text').textContent.startsWith('This server'));
    assert.equal(await page.getByRole('textbox', { name: 'API key' }).isVisible(), true);
    await page.getByRole('textbox', { name: 'API key' }).fill('open sesame');
    await page.keyboard.press('Enter');
    await send(page, 'Who are you?');
    await finished(page);
    assert.match(await figures(page), /tokens/);
    await page.reload();
    await page.waitForFunction(() => document.title.startsWith('demo'));
    assert.equal(await answers(page).count(), 1, 'the conversation is there again');
    assert.equal(await page.getByRole('textbox', { name: 'API key' }).count(), 0);
    await shut(page);
  },

  async 'what a model writes stays text'(demo) {
    const html = await (await fetch(demo + '/')).text();
    const evil = '<img src=x onerror="document.title=1"><script>document.title=2</script>\n\n[a](javascript:document.title=3) [b](https://example.com/)\n\n';
    const text = `${evil}1. one\n   - **two**\n2. three\n\n\`\`\`html\n<b>ü</b>\n\`\`\`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n# Ende`;
    const events = [
      { choices: [{ delta: { role: 'assistant', content: '' } }] },
      { choices: [{ delta: { reasoning_content: 'Thinking <i>hard</i>.' } }] },
      ...[...text].map(c => ({ choices: [{ delta: { content: c } }] })),
      { choices: [{ delta: {}, finish_reason: 'stop' }] },
      { choices: [], usage: { prompt_tokens: 9, completion_tokens: 3, prompt_tokens_details: { cached_tokens: 8 } }, timings: { first_token_ms: 12.3, tokens_per_second: 50.4 } },
    ];
    // Each way to end a line, comments, and the data of one event in two lines.
    const lines = events.map((event, i) => `: alive\ndata:${JSON.stringify(event).replace(',', ',\ndata: ')}\n\n`.replaceAll('\n', ['\n', '\r\n', '\r'][i % 3]));
    const bytes = Buffer.from(lines.join('') + 'data: [DONE]\n\n');
    const canned = await serveCanned(html, async response => {
      response.writeHead(200, { 'Content-Type': 'text/event-stream' });
      // Pieces that end anywhere, also within a character.
      for (let at = 0; at < bytes.length; at += 97) {
        response.write(bytes.subarray(at, at + 97));
        await new Promise(resolve => setImmediate(resolve));
      }
      response.end();
    });
    const page = await open(canned.address);
    await send(page, 'Write markup.');
    await finished(page);
    const shown = answers(page).last();
    assert.equal(await shown.locator('.text img, .text script, .text b, .text i').count(), 0);
    assert.match(await shown.locator('.text').innerText(), /<img src=x onerror="document.title=1"><script>/);
    assert.deepEqual(await shown.locator('.text a').evaluateAll(list => list.map(a => a.href)), ['https://example.com/']);
    assert.equal(await shown.locator('.code code').innerText(), '<b>ü</b>');
    assert.equal(await shown.locator('ol > li > ul > li > strong').innerText(), 'two');
    assert.equal(await shown.locator('ol > li').count(), 2);
    assert.equal(await shown.locator('td').count(), 2);
    assert.equal(await shown.getByRole('heading', { name: 'Ende' }).count(), 1);
    assert.match(await page.title(), /realizar$/);
    assert.equal(await figures(page), '3 tokens · 50 tok/s · first after 12 ms · 8 of 9 prompt tokens cached');
    assert.equal(await shown.locator('.thought').isVisible(), false, 'thoughts are folded');
    await shown.locator('summary').click();
    assert.equal(await shown.locator('.thought').innerText(), 'Thinking <i>hard</i>.');
    await page.evaluate(() => { Object.defineProperty(navigator, 'clipboard', { value: { writeText: async text => { window.copied = text; } } }); });
    await page.getByRole('button', { name: 'Copy the code' }).click();
    assert.equal(await page.evaluate(() => window.copied), '<b>ü</b>');
    await page.getByRole('button', { name: 'Copy the answer' }).click();
    assert.equal(await page.evaluate(() => window.copied), text);
    await shut(page);
    canned.close();
  },

  async 'errors are told in words'(demo) {
    const html = await (await fetch(demo + '/')).text();
    const piece = content => `data: ${JSON.stringify({ choices: [{ delta: { content } }] })}\n\n`;
    const stream = text => response => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).end(text);
    const cases = [
      [response => response.writeHead(429, { 'Content-Type': 'application/json', 'Retry-After': '3' }).end('{"error":{"message":"too many requests are waiting"}}'),
        'Too many requests are waiting. Try again in 3 seconds.', ''],
      [response => response.writeHead(502).end('<html>'), 'The server answered with status 502.', ''],
      [stream(piece('Half') + 'data: {"error":{"message":"the engine failed"}}\n\ndata: [DONE]\n\n'), 'The engine failed.', 'Half'],
      [stream(piece('Half')), 'The connection ended before the answer did.', 'Half'],
      [stream('data: {nonsense\n\n'), 'The server sent something that is not JSON.', ''],
      [response => response.destroy(), 'The server cannot be reached. Is it still running?', ''],
    ];
    let handle;
    const canned = await serveCanned(html, response => handle(response));
    const page = await open(canned.address, { expected: [/429|502|ERR_/] });
    const requests = bodies(page, '/v1/chat/completions');
    for (const [how, words, rest] of cases) {
      handle = how;
      await send(page, 'Say something.');
      await finished(page);
      assert.equal(await answers(page).last().getByRole('alert').innerText(), words);
      assert.equal(await answers(page).last().locator('.text').innerText({ timeout: 1000 }).catch(() => ''), rest);
    }
    handle = stream(piece('At last.') + 'data: [DONE]\n\n');
    await page.getByRole('button', { name: 'Try again' }).last().click();
    await finished(page);
    assert.equal(await answers(page).last().locator('.text').innerText(), 'At last.');
    // Two halves were answers, the refusals were not.
    assert.equal(requests.at(-1).messages.length, 5);
    await shut(page);
    canned.close();
  },

  async 'markdown, formulas and code are shown'(demo) {
    const html = await (await fetch(demo + '/')).text();
    const text = '$E = mc^2$ and \\(a_1\\)\n\n$$\\colorbox{red}{x} \\frac{1}{2}$$\n\n- [x] done\n- [ ] open\n\n| l | r |\n|:--|--:|\n| 1 | 2 |\n\n![cat](https://example.com/c.png)\n\n```rust\nfn main() {}\n```';
    const canned = await serveCanned(html, response => response.writeHead(200, { 'Content-Type': 'text/event-stream' })
      .end(`data: ${JSON.stringify({ choices: [{ delta: { content: text } }] })}\n\ndata: [DONE]\n\n`));
    const page = await open(canned.address);
    await send(page, 'Write.');
    await finished(page);
    const shown = answers(page).last();
    assert.equal(await shown.locator('math').count(), 3);
    assert.equal(await shown.locator('.math.display mfrac').count(), 1);
    assert.deepEqual(await shown.locator('input[type=checkbox]').evaluateAll(list => list.map(box => box.checked)), [true, false]);
    assert.deepEqual(await shown.locator('td').evaluateAll(list => list.map(cell => getComputedStyle(cell).textAlign)), ['left', 'right']);
    assert.equal(await shown.locator('img').count(), 0, 'nothing is loaded from elsewhere');
    assert.equal(await shown.getByRole('link', { name: 'Picture: cat' }).getAttribute('href'), 'https://example.com/c.png');
    assert.equal(await shown.locator('.hljs-keyword').innerText(), 'fn');
    await audit(page, 'markdown');
    await shoot(page, 'markdown');
    await shut(page);
    canned.close();
  },

  async 'questions and answers have versions, and conversations are kept'(demo) {
    const html = await (await fetch(demo + '/')).text();
    let n = 0;
    const canned = await serveCanned(html, response => response.writeHead(200, { 'Content-Type': 'text/event-stream' })
      .end(`data: ${JSON.stringify({ choices: [{ delta: { content: `Answer ${++n}` } }] })}\n\ndata: [DONE]\n\n`));
    const page = await open(canned.address);
    const requests = bodies(page, '/v1/chat/completions');
    await send(page, 'First');
    await finished(page);
    await send(page, 'Second');
    await finished(page);
    await page.getByRole('button', { name: 'Edit the question' }).first().click();
    await page.getByRole('textbox', { name: 'New version' }).fill('Changed');
    await page.keyboard.press('Enter');
    await page.getByText('Answer 3').waitFor();
    await finished(page);
    assert.deepEqual(requests.at(-1).messages, [{ role: 'user', content: 'Changed' }]);
    await page.getByRole('button', { name: 'Previous version' }).click();
    await page.getByText('Answer 2').waitFor();
    assert.equal(await answers(page).count(), 2);
    // Kept over a reload, found, renamed, exported, deleted, imported.
    await page.reload();
    await page.getByText('Answer 2').waitFor();
    await showList(page);
    await page.getByRole('searchbox').fill('changed');
    await page.getByRole('button', { name: 'First', exact: true }).waitFor();
    await page.getByRole('searchbox').fill('nowhere');
    await page.getByText('Nothing found.').waitFor();
    await page.getByRole('searchbox').fill('');
    await page.getByRole('button', { name: 'Rename First' }).click();
    await page.getByRole('textbox', { name: 'New title' }).fill('Renamed');
    await page.keyboard.press('Enter');
    const download = page.waitForEvent('download');
    await page.getByRole('button', { name: 'Export all' }).click();
    const exported = readFileSync(await (await download).path(), 'utf8');
    assert.equal(JSON.parse(exported).conversations[0].messages.length, 6);
    await page.getByRole('button', { name: 'Delete Renamed' }).click();
    await page.getByRole('button', { name: 'Delete', exact: true }).click();
    await page.getByText('No conversations yet.').waitFor();
    const load = text => page.locator('#import-input').setInputFiles({ name: 'x.json', mimeType: 'application/json', buffer: Buffer.from(text) });
    await load('{}');
    await page.getByText('The file is not an export of this page.').waitFor();
    await load(exported.replace('"role": "assistant"', '"role": "root"'));
    await page.getByText('Conversation 1 of the file is damaged; nothing was imported.').waitFor();
    await load(exported);
    await page.getByRole('button', { name: 'Renamed', exact: true }).click();
    await page.getByText('Answer 2').waitFor();
    await shut(page);
    canned.close();
  },

  async 'text files go with a question, others are refused'(demo) {
    const html = await (await fetch(demo + '/')).text();
    const canned = await serveCanned(html, response => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).end('data: [DONE]\n\n'));
    const page = await open(canned.address);
    const requests = bodies(page, '/v1/chat/completions');
    const attach = (name, mimeType, text) => page.locator('#attach-input').setInputFiles({ name, mimeType, buffer: Buffer.from(text) });
    for (const [name, type, words] of [['a.png', 'image/png', 'a.png is an image.'], ['a.pdf', 'application/pdf', 'a.pdf is a PDF.'], ['a.bin', '', 'a.bin is not a text file']]) {
      await attach(name, type, 'a\0');
      await page.getByText(words).waitFor();
    }
    await page.evaluate(() => {
      const data = new DataTransfer();
      data.items.add(new File(['```x'], 'notes.md', { type: 'text/markdown' }));
      document.body.dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true }));
    });
    await page.getByText('notes.md, 4 characters').waitFor();
    await send(page, 'Sum up.');
    await finished(page);
    assert.equal(requests[0].messages[0].content, 'Sum up.\n\nFile notes.md:\n````\n```x\n````');
    await shut(page);
    canned.close();
  },

  async 'thinking can be chosen where the template reads it'(demo) {
    const plain = await open(demo);
    await plain.getByText('Talk with demo').waitFor();
    assert.equal(await plain.locator('#thinking').isVisible(), false);
    await shut(plain);
    const html = await (await fetch(demo + '/')).text();
    const canned = await serveCanned(html, response => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).end('data: [DONE]\n\n'), '{{ enable_thinking }}');
    const thinker = await open(canned.address);
    const requests = bodies(thinker, '/v1/chat/completions');
    await thinker.getByRole('combobox', { name: 'Thinking' }).selectOption('off');
    await send(thinker, 'Quick!');
    await finished(thinker);
    assert.equal(requests[0].enable_thinking, false);
    await shut(thinker);
    canned.close();
  },

  async 'a full context is told, and the oldest can be left out'(demo) {
    const html = await (await fetch(demo + '/')).text();
    const used = [3, 8, 5];
    const canned = await serveCanned(html, response => response.writeHead(200, { 'Content-Type': 'text/event-stream' }).end(
      `data: ${JSON.stringify({ choices: [{ delta: { content: 'Yes.' } }], usage: { prompt_tokens: used.shift() - 1, completion_tokens: 1 } })}\n\ndata: [DONE]\n\n`));
    const page = await open(canned.address);
    const requests = bodies(page, '/v1/chat/completions');
    await send(page, 'One');
    await finished(page);
    await page.getByText('3 of 8 tokens').waitFor();
    assert.equal(await page.locator('#full').isVisible(), false);
    await send(page, 'Two');
    await finished(page);
    await page.getByText('8 of 8 tokens').waitFor();
    await page.getByRole('button', { name: 'Leave out the oldest' }).click();
    await page.getByText('The messages above are no longer sent to the model.').waitFor();
    await send(page, 'Three');
    await finished(page);
    assert.deepEqual(requests.at(-1).messages.map(m => m.content), ['Two', 'Yes.', 'Three']);
    await shut(page);
    canned.close();
  },
};

/** A server with our page whose chat answers are made by `handle`. */
async function serveCanned(html, handle, template = '') {
  const server = createServer((request, response) => {
    request.resume().on('end', () => {
      if (request.url === '/') response.writeHead(200, { 'Content-Type': 'text/html' }).end(html);
      else if (request.url === '/v1/models') response.writeHead(200, { 'Content-Type': 'application/json' }).end('{"data":[{"id":"canned","max_model_len":8}]}');
      else if (request.url === '/metrics') response.writeHead(200, { 'Content-Type': 'text/plain' }).end('realizar_running{model_name="a}b"} 0\n');
      else if (request.url === '/api/show') response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify({ template }));
      else handle(response);
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { address: `http://127.0.0.1:${server.address().port}`, close: () => { server.closeAllConnections(); server.close(); } };
}

async function shoot(page, name) {
  if (!shots) return;
  mkdirSync(shots, { recursive: true });
  await page.screenshot({ path: join(shots, name + '.png') });
}

let failed = 0;
try {
  const demo = await serve();
  for (const [name, test] of Object.entries(tests)) {
    const start = performance.now();
    try {
      await test(demo);
      console.log(`ok      ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed++;
      console.log(`FAILED  ${name}\n${error.stack}`);
      for (const page of browser.pages()) {
        if (page.complaints?.length) console.log(page.complaints.join('\n'));
        if (page.url() !== 'about:blank') {
          await forget(page).catch(() => {});
          await page.close();
        }
      }
    }
  }
} finally {
  await browser.close();
  servers.forEach(child => child.kill('SIGKILL'));
  rmSync(profile, { recursive: true, force: true });
}
console.log(failed ? `${failed} of ${Object.keys(tests).length} tests of the page failed` : `all ${Object.keys(tests).length} tests of the page passed`);
process.exit(failed ? 1 : 0);
