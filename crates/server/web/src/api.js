// Requests to the server, and its errors in words.
import { keyStore } from './store.js';
import { plural } from './dom.js';

let key = keyStore.get();
export const hasKey = () => key !== '';
export function setKey(value) { key = value; }
export function keepKey() { keyStore.set(key); }

/** An error that the server told. */
export class Refusal extends Error {
  constructor(message, status, code) { super(message); Object.assign(this, { status, code }); }
}
function sentence(text) {
  text = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(text) ? text : text + '.';
}
export const streamed = error => new Refusal(sentence(error.message ?? 'the server broke the answer off'), undefined, error.code);

/** The answer to a request, whose body, if there is one, is JSON. Throws a `Refusal` for any status but success. */
export async function request(path, { body, ...options } = {}) {
  const headers = { ...(key && { Authorization: 'Bearer ' + key }), ...(body && { 'Content-Type': 'application/json' }) };
  const response = await fetch(path, { ...options, headers, ...(body && { method: 'POST', body: JSON.stringify(body) }) });
  if (response.ok) return response;
  let told;
  try { told = (await response.json()).error; } catch { /* Not this server's: the status has to do. */ }
  let message = sentence(told?.message || `the server answered with status ${response.status}`);
  const after = Number(response.headers.get('Retry-After'));
  if (after > 0) message += ` Try again in ${plural(after, 'second')}.`;
  throw new Refusal(message, response.status, told?.code);
}

export function inWords(error) {
  if (error instanceof Refusal) return error.message;
  if (error instanceof SyntaxError) return 'The server sent something that is not JSON.';
  return 'The server cannot be reached. Is it still running?';
}

/** Yields the data of each server-sent event of a response. */
export async function* serverSentEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '', data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      // A carriage return at the end may be half of a line's end.
      const lines = (rest + value).split(/\r\n|\n|\r(?=[^])/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === '') {
          if (data.length) yield data.join('\n');
          data = [];
        } else if (line.startsWith('data:')) {
          data.push(line.slice(line[5] === ' ' ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
