// The conversation that is shown, and the answer on its way.
import * as api from './api.js';
import * as tree from './conversation.js';
import { $, announce, make, number, plural } from './dom.js';
import { figures, MessageView } from './message.js';
import { settings } from './settings.js';

export const chat = { conversation: tree.newConversation(), running: null, model: null, context: undefined };
const views = new Map();
const changed = new Set();
/** Calls `listener` when the conversation has changed and should be kept. */
export const onChange = listener => changed.add(listener);
const tell = conversation => changed.forEach(listener => listener(conversation));

// The view follows the answer until somebody scrolls up.
const scroller = $('scroller');
let follows = true;
function toEnd() { scroller.scrollTop = scroller.scrollHeight; }
scroller.addEventListener('scroll', () => {
  follows = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 40;
  $('latest').hidden = follows;
});
$('latest').addEventListener('click', toEnd);

const actions = {
  edit(message, content) {
    const { conversation } = chat;
    const { role, parent, files } = message;
    const next = tree.addMessage(conversation, parent, { role, content, ...(files && { files }) });
    if (role === 'user') answer(next); else { render(); tell(conversation); }
  },
  again(message) {
    const { conversation } = chat;
    // A failed attempt is replaced, an answer stays as another version.
    if (!message.content) conversation.messages.splice(conversation.messages.indexOf(message), 1);
    answer(conversation.messages.find(({ id }) => id === message.parent));
  },
  switchTo(id) { tree.switchTo(chat.conversation, id); render(); tell(chat.conversation); },
};

/** Draws the branch that is shown. */
export function render() {
  const { conversation, running } = chat;
  const path = tree.branch(conversation);
  const nodes = path.flatMap((message, i) => {
    if (!views.has(message)) views.set(message, new MessageView(message, actions));
    const view = views.get(message);
    view.render({ conversation, running: running !== null, busy: running?.message === message });
    const cut = message.id === conversation.sentFrom && i > 0;
    return cut ? [make('p', { class: 'cut' }, 'The messages above are no longer sent to the model.'), view.node] : [view.node];
  });
  const shown = [...$('turns').childNodes];
  if (shown.length !== nodes.length || shown.some((node, i) => node !== nodes[i])) $('turns').replaceChildren(...nodes);
  $('welcome').hidden = path.length > 0;
  $('turns').hidden = path.length === 0;
  $('new').hidden = path.length === 0;
  renderMeter(path);
  $('composer').dispatchEvent(new Event('change'));
}
function renderMeter(path) {
  const used = tree.tokensUsed(chat.conversation);
  const { context } = chat;
  $('meter').hidden = !context || !used;
  if (!context) return;
  $('meter-bar').max = context;
  $('meter-bar').high = context * 0.8;
  $('meter-bar').optimum = 0;
  $('meter-bar').value = used;
  $('meter-text').textContent = `${number(used)} of ${number(context)} tokens`;
  const last = path.at(-1);
  const justCut = last?.role === 'user' || (last && last.id === chat.conversation.cutAfter);
  $('full').hidden = chat.running !== null || justCut || !(used >= context * 0.95 || last?.code === 'context_length_exceeded');
  $('full-text').textContent = 'The context of the model is nearly full or full: answers will be cut or refused. You can leave out the oldest messages, which stay here but are no longer sent, or begin a new chat.';
}
$('leave-out').addEventListener('click', () => {
  const { conversation } = chat;
  const n = tree.leaveOutOldest(conversation, chat.context);
  if (n) {
    conversation.cutAfter = conversation.current;
    announce(`${plural(n, 'message')} left out`);
    render();
    tell(conversation);
  } else {
    $('full-text').textContent = 'Nothing can be left out: the last message alone fills the context. Shorten it or begin a new chat.';
  }
  $('message').focus();
});

/** Takes in an event of the stream. */
function take(message, event, start) {
  if (event.error) throw api.streamed(event.error);
  const choice = event.choices?.[0];
  const { content, reasoning_content: reasoning } = choice?.delta ?? {};
  const now = performance.now() - start;
  if (content || reasoning) {
    message.pieces = (message.pieces ?? 0) + 1;
    message.firstMs ??= now;
    message.lastMs = now;
  }
  if (reasoning) message.reasoning = (message.reasoning ?? '') + reasoning;
  if (content) {
    if (message.reasoning) message.thoughtMs ??= now - message.firstMs;
    message.content += content;
  }
  message.reason = choice?.finish_reason ?? message.reason;
  message.usage = event.usage ?? message.usage;
  message.timings = event.timings ?? message.timings;
}
function body(question) {
  const messages = tree.toSend(chat.conversation, question);
  if (settings.system.trim()) messages.unshift({ role: 'system', content: settings.system });
  return { messages, stream: true, stream_options: { include_usage: true }, ...(chat.model && { model: chat.model }), ...settings.sampling, ...settings.thinking };
}
/** Answers a question of the conversation that is shown. */
export async function answer(question) {
  if (chat.running) return;
  const { conversation } = chat;
  conversation.current = question.id;
  const sent = body(question);
  const message = tree.addMessage(conversation, question.id, { role: 'assistant' });
  const abort = new AbortController();
  const start = performance.now();
  let frame = 0, keptAt = start;
  const paint = () => {
    frame = 0;
    if (chat.conversation !== conversation) return;
    views.get(message)?.render({ conversation, running: true, busy: true });
    if (follows) toEnd();
  };
  chat.running = { message, abort };
  render();
  tell(conversation);
  announce('The model is answering');
  toEnd();
  try {
    const response = await api.request('v1/chat/completions', { body: sent, signal: abort.signal });
    let whole = false;
    for await (const data of api.serverSentEvents(response)) {
      if (data === '[DONE]') { whole = true; break; }
      take(message, JSON.parse(data), start);
      frame ||= requestAnimationFrame(paint);
      // What was written so far outlives a reload.
      if (performance.now() - keptAt > 1000) { keptAt = performance.now(); tell(conversation); }
    }
    if (!whole) throw new api.Refusal('The connection ended before the answer did.');
    announce(`Answer of ${figures(message, false)}`);
  } catch (error) {
    fail(message, error, abort.signal.aborted);
  }
  cancelAnimationFrame(frame);
  chat.running = null;
  tell(conversation);
  render();
  if (follows) toEnd();
}
let askForKey = () => {};
/** Names what asks the user for a key. */
export function onKeyWanted(ask) { askForKey = ask; }
function fail(message, error, stopped) {
  if (stopped) {
    message.reason = 'stopped';
    if (!message.content) message.error = 'Stopped before the answer began.';
    announce('Stopped');
    return;
  }
  message.error = error.status === 401 ? 'The server wants a key before it answers.' : api.inWords(error);
  message.code = error.code;
  if (error.status === 401) askForKey(error.message, () => actions.again(message));
}

/** Asks a question at the end of the branch that is shown. */
export function ask(content, files = []) {
  content = content.trim();
  if ((!content && !files.length) || chat.running) return;
  const { conversation } = chat;
  conversation.title ||= (content || files[0].name).slice(0, 80);
  follows = true;
  answer(tree.addMessage(conversation, conversation.current, { role: 'user', content, ...(files.length && { files }) }));
}
export function stop() { chat.running?.abort.abort(); }
/** Shows a conversation; an answer on its way to another one is stopped. */
export function open(conversation) {
  stop();
  chat.conversation = conversation;
  views.clear();
  follows = true;
  render();
  toEnd();
}
/** Opens the field to edit the last question. */
export function editLast() {
  const last = tree.branch(chat.conversation).findLast(({ role }) => role === 'user');
  if (last && !chat.running) views.get(last)?.startEdit();
}
