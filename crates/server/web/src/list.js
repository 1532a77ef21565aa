// The list of conversations: search, rename, delete, export and import. The address of the page names the one that is shown.
import { chat, onChange, open } from './chat.js';
import { fromFile, newConversation, toFile } from './conversation.js';
import { $, announce, iconButton, make, plural, save } from './dom.js';
import { ConversationStore } from './store.js';

let store;
/** Newest first. */
let conversations = [];
const named = () => decodeURIComponent(location.hash.slice(1));

/** Begins the list; shows the conversation that the address names. */
export async function startList() {
  store = await ConversationStore.open();
  conversations = (await store.all()).sort((a, b) => b.updated - a.updated);
  $('list-note').hidden = store.kept;
  $('list-note').textContent = 'This browser does not keep conversations: export what you need.';
  const found = conversations.find(({ id }) => id === named());
  if (found) open(found);
  render();
}
async function keep(conversation) {
  conversation.updated = Date.now();
  conversations = [conversation, ...conversations.filter(other => other !== conversation)];
  if (chat.conversation === conversation) history.replaceState(null, '', '#' + encodeURIComponent(conversation.id));
  render();
  await put(conversation);
}
async function put(conversation) {
  try { await store.put(conversation); } catch (error) { notice(`The browser could not keep the conversation: ${error.message}`); }
}
onChange(keep);
function notice(text) {
  $('list-notice').textContent = text;
  $('list-notice').hidden = !text;
}

/** Shows a conversation of the list, or a new one. */
export function showConversation(conversation) {
  open(conversation);
  history.replaceState(null, '', conversation.messages.length ? '#' + encodeURIComponent(conversation.id) : location.pathname);
  render();
  $('message').focus();
}
export const newChat = () => showConversation(newConversation());
addEventListener('hashchange', () => {
  const found = conversations.find(({ id }) => id === named());
  if (found && found !== chat.conversation) showConversation(found);
});

const matches = (conversation, wanted) => conversation.title.toLowerCase().includes(wanted)
  || conversation.messages.some(({ content }) => content.toLowerCase().includes(wanted));
function render() {
  const wanted = $('search').value.trim().toLowerCase();
  const shown = conversations.filter(conversation => !wanted || matches(conversation, wanted));
  $('conversations').replaceChildren(...shown.map(item));
  if (!shown.length) $('conversations').append(make('li', { class: 'note' }, wanted ? 'Nothing found.' : 'No conversations yet.'));
  $('export').disabled = conversations.length === 0;
  $('restore').hidden = conversations.length === 0;
}
function item(conversation) {
  const title = conversation.title || 'Untitled';
  const link = make('button', { class: 'ghost title', title, 'aria-current': conversation === chat.conversation ? 'true' : undefined, click: () => showConversation(conversation) }, title);
  const node = make('li', {}, link,
    iconButton('edit', `Rename ${title}`, () => rename(conversation, node)),
    iconButton('save', `Export ${title}`, () => save('conversation.json', toFile([conversation]))),
    iconButton('delete', `Delete ${title}`, () => confirmDelete(conversation, title, node)));
  return node;
}
function rename(conversation, node) {
  const field = make('input', { class: 'field', 'aria-label': 'New title' });
  field.value = conversation.title;
  // The field loses the focus, too, when it is taken off the page.
  let isDone = false;
  const done = saved => {
    if (isDone) return;
    isDone = true;
    const title = field.value.trim();
    if (saved && title) { conversation.title = title; put(conversation); }
    render();
  };
  node.replaceChildren(make('form', {
    submit: event => { event.preventDefault(); done(true); },
    keydown: event => { if (event.key === 'Escape') { event.stopPropagation(); done(false); } },
  }, field));
  field.addEventListener('blur', () => done(true));
  field.select();
}
function confirmDelete(conversation, title, node) {
  const yes = make('button', { class: 'ghost small', click: () => remove(conversation) }, 'Delete');
  node.replaceChildren(make('span', { class: 'note' }, `Delete “${title}”?`), yes, make('button', { class: 'ghost small', click: render }, 'Keep'));
  yes.focus();
}
async function remove(conversation) {
  conversations = conversations.filter(other => other !== conversation);
  if (chat.conversation === conversation) newChat(); else render();
  await store.delete(conversation.id);
  announce('Deleted');
}

$('search').addEventListener('input', render);
$('restore').addEventListener('click', () => showConversation(conversations[0]));
$('new').addEventListener('click', newChat);
$('full-new').addEventListener('click', newChat);
$('export').addEventListener('click', () => save('conversations.json', toFile(conversations)));
$('import').addEventListener('click', () => $('import-input').click());
$('import-input').addEventListener('change', async event => {
  const [file] = event.target.files;
  notice('');
  try {
    const imported = fromFile(await file.text());
    for (const conversation of imported) await put(conversation);
    conversations = [...imported, ...conversations].sort((a, b) => b.updated - a.updated);
    announce(`${plural(imported.length, 'conversation')} imported`);
    render();
  } catch (error) {
    notice(error.message);
  }
  event.target.value = '';
});
