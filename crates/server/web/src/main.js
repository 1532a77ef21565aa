// The page: composer, key, models, window.
import * as api from './api.js';
import { ask, chat, editLast, onKeyWanted, render, stop } from './chat.js';
import { $, announce, make, setIcon } from './dom.js';
import { setContext, watch } from './engine.js';
import { hasFiles, takeFiles } from './files.js';
import { newChat, startList } from './list.js';
import { offerThinking } from './settings.js';
import { settingsStore } from './store.js';

// ---- Composer: one button that sends, or stops what is on its way.
const message = $('message');
function compose() {
  const running = chat.running !== null;
  const button = $('send');
  setIcon(button, running ? 'stop' : 'send');
  button.querySelector('span').textContent = running ? 'Stop' : 'Send';
  button.classList.toggle('stop', running);
  button.disabled = !running && !message.value.trim() && !hasFiles();
  message.style.height = 'auto';
  message.style.height = message.scrollHeight + 'px';
}
function submit() {
  if (chat.running || (!message.value.trim() && !hasFiles())) return;
  const text = message.value;
  message.value = '';
  ask(text, takeFiles());
}
$('composer').addEventListener('submit', event => {
  event.preventDefault();
  if (chat.running) stop(); else submit();
});
$('composer').addEventListener('change', compose);
message.addEventListener('input', compose);
message.addEventListener('keydown', event => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  } else if (event.key === 'ArrowUp' && !message.value) {
    event.preventDefault();
    editLast();
  }
});
for (const button of document.querySelectorAll('.examples button:not([id])')) button.addEventListener('click', () => ask(button.textContent));

addEventListener('keydown', event => {
  if (event.key === 'Escape') {
    if (chat.running) stop(); else if (narrow.matches) { setSide('panel', false, true); setSide('list', false, true); }
  } else if (event.altKey && event.code === 'KeyN') {
    event.preventDefault();
    newChat();
  } else if (event.altKey && event.code === 'KeyK') {
    event.preventDefault();
    setSide('list', true);
    $('search').focus();
  }
});

// ---- Key: asked for when the server wants one; the question that met with it is asked again.
let unanswered = null;
function askForKey(text, again) {
  unanswered = again ?? unanswered;
  $('key-text').textContent = api.hasKey() ? text : 'This server asks for a key. It is kept until this tab is closed.';
  showKeyForm(true);
  $('key').focus();
}
function showKeyForm(shown) {
  $('key-form').hidden = !shown;
  $('composer').hidden = $('hint').hidden = shown;
}
onKeyWanted(askForKey);
$('key-form').addEventListener('submit', async event => {
  event.preventDefault();
  api.setKey($('key').value.trim());
  if (!await connect()) return;
  api.keepKey();
  $('key').value = '';
  showKeyForm(false);
  message.focus();
  unanswered?.();
  unanswered = null;
});

// ---- Models: their names, which of several answers, and what it can do.
let models = [];
async function choose(model) {
  chat.model = models.length > 1 ? model.id : null;
  chat.context = model.max_model_len;
  $('model').textContent = $('model').title = $('models').value = model.id;
  $('welcome-title').textContent = `Talk with ${model.id}`;
  document.title = `${model.id} – realizar`;
  setContext(model.max_model_len);
  render();
  let template = '';
  try {
    template = (await (await api.request('api/show', { body: { model: model.id } })).json()).template ?? '';
  } catch { /* What its template reads stays unknown, and the choice is not offered. */ }
  offerThinking(template);
}
$('models').addEventListener('change', () => {
  const model = models.find(({ id }) => id === $('models').value);
  settingsStore.set('model', model.id);
  choose(model);
});
/** Learns the models' names; true unless a key is missing. */
async function connect() {
  try {
    models = (await (await api.request('v1/models')).json()).data;
    $('models').replaceChildren(...models.map(({ id }) => make('option', { value: id }, id)));
    $('models').hidden = models.length < 2;
    $('model').hidden = models.length > 1;
    await choose(models.find(({ id }) => id === settingsStore.get('model')) ?? models[0]);
  } catch (error) {
    if (error.status === 401) {
      askForKey(error.message);
      return false;
    }
    $('model').textContent = api.inWords(error);
  }
  return true;
}

// ---- Window: theme and what stands at the sides.
const narrow = matchMedia('(max-width: 899px)');
const THEMES = { auto: 'as the system', light: 'light', dark: 'dark' };
let theme = Object.hasOwn(THEMES, settingsStore.get('theme', 'auto')) ? settingsStore.get('theme', 'auto') : 'auto';
function setTheme() {
  document.documentElement.dataset.theme = theme;
  setIcon($('theme'), theme);
  $('theme').title = `Colours: ${THEMES[theme]}`;
  $('theme').setAttribute('aria-label', $('theme').title);
}
$('theme').addEventListener('click', () => {
  const names = Object.keys(THEMES);
  theme = names[(names.indexOf(theme) + 1) % names.length];
  settingsStore.set('theme', theme);
  setTheme();
  announce($('theme').title);
});

const SIDES = { panel: { icon: 'panel', other: 'list' }, list: { icon: 'list', other: 'panel' } };
/** Opens or closes a side; on a small screen it lies over the conversation. */
function setSide(name, open, focus) {
  const { icon, other } = SIDES[name];
  const was = !$(name).hidden;
  if (open && narrow.matches) setSide(other, false);
  $(name).hidden = !open;
  // Its children, so that the document keeps its main landmark.
  const covered = narrow.matches && !($('panel').hidden && $('list').hidden);
  for (const child of $('main').children) child.inert = covered && child.id !== 'announce';
  const button = $(`${name}-button`);
  button.setAttribute('aria-expanded', open);
  setIcon(button, open && narrow.matches ? 'close' : icon);
  if (focus && was !== open) (open ? $(name) : button).focus({ focusVisible: false });
  watch();
}
for (const name of Object.keys(SIDES)) {
  $(`${name}-button`).addEventListener('click', () => {
    const open = $(name).hidden;
    if (!narrow.matches) settingsStore.set(name, open);
    setSide(name, open, narrow.matches);
  });
}
function resetSides() {
  for (const name of Object.keys(SIDES)) setSide(name, !narrow.matches && settingsStore.get(name, false));
}
narrow.addEventListener('change', resetSides);
// On a small screen, what is chosen in the list is to be seen.
$('conversations').addEventListener('click', event => { if (narrow.matches && event.target.closest('.title')) setSide('list', false); });

setTheme();
resetSides();
render();
compose();
connect();
startList().then(() => { if (!narrow.matches) message.focus(); });
