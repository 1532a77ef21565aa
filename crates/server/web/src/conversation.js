// A conversation is a tree of messages. `current` is the last message of the branch that is shown; editing a question or asking for
// another answer adds a sibling.

/** A new conversation. Messages stand in the order in which they were made. */
export function newConversation() {
  return { id: crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`, title: '', updated: Date.now(), messages: [], current: null, sentFrom: null };
}
const find = (conversation, id) => conversation.messages.find(message => message.id === id);

/** Adds a message below `parent` (null: at the beginning), and makes its branch the one that is shown. */
export function addMessage(conversation, parent, fields) {
  const id = 1 + conversation.messages.reduce((highest, message) => Math.max(highest, message.id), 0);
  const message = { id, parent, content: '', ...fields };
  conversation.messages.push(message);
  conversation.current = id;
  return message;
}
/** The messages of the branch that is shown, first to last. */
export function branch(conversation) {
  const out = [];
  for (let message = find(conversation, conversation.current); message; message = find(conversation, message.parent)) out.unshift(message);
  return out;
}
/** The alternatives to a message, itself included. */
export const siblings = (conversation, { parent }) => conversation.messages.filter(message => message.parent === parent);

/** Shows another branch: down to the newest message below `id`. */
export function switchTo(conversation, id) {
  for (let next = id; next !== undefined;) {
    conversation.current = next;
    next = conversation.messages.findLast(({ parent }) => parent === conversation.current)?.id;
  }
}

/** A fence that the text does not close. */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map(ticks => ticks.length));
  const fence = '`'.repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}
/** What the model reads of a message: its text, then its files. */
export const textOf = message =>
  [message.content, ...(message.files ?? []).map(({ name, text }) => `File ${name}:\n${fenced(text)}`)].filter(Boolean).join('\n\n');

/** The branch up to `last` as the API takes it, without what is left out and without questions that got no answer. */
export function toSend(conversation, last) {
  const path = branch(conversation);
  const from = Math.max(0, path.findIndex(({ id }) => id === conversation.sentFrom));
  const kept = path.slice(from, path.indexOf(last) + 1);
  return kept
    .filter((message, i) => message === last || (message.role === 'assistant' ? message.content : kept[i + 1]?.content))
    .map(message => ({ role: message.role, content: textOf(message) }));
}

/** The tokens of the branch as the server last counted them. */
export function tokensUsed(conversation) {
  const last = branch(conversation).findLast(message => message.usage);
  return last ? last.usage.prompt_tokens + last.usage.completion_tokens : 0;
}
/** Leaves out the oldest messages, so that at most half of the context is in use; returns how many, 0 if none can be left out. */
export function leaveOutOldest(conversation, context) {
  const path = branch(conversation);
  const from = Math.max(0, path.findIndex(({ id }) => id === conversation.sentFrom));
  const used = tokensUsed(conversation);
  const starts = path.map((message, i) => i).filter(i => i > from && path[i].role === 'user');
  const before = i => { const usage = path[i - 1].usage; return usage ? usage.prompt_tokens + usage.completion_tokens : 0; };
  const start = starts.find(i => used - before(i) <= context / 2) ?? starts.at(-1);
  if (start === undefined) return 0;
  conversation.sentFrom = path[start].id;
  return start - from;
}

const FORMAT = 'realizar conversations';
export const toFile = conversations => JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

/** The conversations of an exported file; throws an error in words for anything else. */
export function fromFile(text) {
  let file;
  try { file = JSON.parse(text); } catch { throw new Error('The file is not JSON.'); }
  if (file?.format !== FORMAT || file.version !== 1 || !Array.isArray(file.conversations)) {
    throw new Error('The file is not an export of this page.');
  }
  return file.conversations.map((conversation, i) => {
    try { return checked(conversation); } catch { throw new Error(`Conversation ${i + 1} of the file is damaged; nothing was imported.`); }
  });
}
/** A copy with known fields of the right types only. */
function checked({ title, updated, messages, current, sentFrom }) {
  const need = fine => { if (!fine) throw new Error(); };
  need(typeof title === 'string' && Number.isFinite(updated) && Array.isArray(messages));
  const known = new Map();
  for (const message of messages) {
    const { id, parent, role, content, reasoning, files = [], usage } = message;
    need(Number.isSafeInteger(id) && !known.has(id) && typeof content === 'string' && ['user', 'assistant'].includes(role));
    need(parent === null ? role === 'user' : known.get(parent) && known.get(parent).role !== role);
    need(Array.isArray(files) && files.every(file => typeof file.name === 'string' && typeof file.text === 'string'));
    const counted = Number.isFinite(usage?.prompt_tokens) && Number.isFinite(usage?.completion_tokens);
    known.set(id, {
      id, parent, role, content,
      ...(typeof reasoning === 'string' && { reasoning }),
      ...(files.length && { files: files.map(file => ({ name: file.name, text: file.text })) }),
      ...(counted && { usage: { prompt_tokens: usage.prompt_tokens, completion_tokens: usage.completion_tokens } }),
    });
  }
  need(current === null || known.has(current));
  return { ...newConversation(), title, updated, messages: [...known.values()], current, sentFrom: known.has(sentFrom) ? sentFrom : null };
}
