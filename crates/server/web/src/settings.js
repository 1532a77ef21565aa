// Settings: a field that is empty leaves the choice to the server.
import { $, announce, make } from './dom.js';
import { settingsStore } from './store.js';

const FIELDS = [
  { name: 'temperature', label: 'Temperature', min: 0, max: 100 },
  { name: 'top_p', label: 'Top p', min: 0, max: 1 },
  { name: 'top_k', label: 'Top k', min: 0, max: 1e9, whole: true },
  { name: 'min_p', label: 'Min p', min: 0, max: 1 },
  { name: 'repetition_penalty', label: 'Repetition penalty', min: 0.01, max: 100 },
  { name: 'max_tokens', label: 'Max tokens', min: 1, max: 1e9, whole: true },
  { name: 'seed', label: 'Seed', min: -Number.MAX_SAFE_INTEGER, max: Number.MAX_SAFE_INTEGER, whole: true },
];
/** What is sent with every question. */
export const settings = { sampling: {}, system: '', thinking: {} };

const inputs = FIELDS.map(field => {
  const wrong = make('div', { class: 'wrong', id: `${field.name}-wrong`, hidden: '' });
  const input = make('input', {
    class: 'field', id: field.name, type: 'text', inputmode: field.min < 0 ? 'text' : field.whole ? 'numeric' : 'decimal',
    placeholder: 'Default', autocomplete: 'off', 'aria-describedby': wrong.id,
    input: () => { setField(field, input, wrong); settingsStore.set('settings', settings.sampling); },
  });
  $('fields').append(make('div', {}, make('label', { for: field.name }, make('span', {}, field.label)), input, wrong));
  return { field, input, wrong };
});
function setField(field, input, wrong) {
  const text = input.value.trim().replace(',', '.');
  const value = Number(text);
  const fine = text === '' || (value >= field.min && value <= field.max && (!field.whole || Number.isInteger(value)));
  if (fine && text !== '') settings.sampling[field.name] = value; else delete settings.sampling[field.name];
  input.setAttribute('aria-invalid', !fine);
  wrong.hidden = fine;
  const kind = field.whole ? 'a whole number' : 'a number';
  const range = field.max > 1e8 ? (field.min < 0 ? '' : ` of at least ${field.min}`) : ` from ${field.min} to ${field.max}`;
  wrong.textContent = fine ? '' : `Not used: it must be ${kind}${range}.`;
}
function fill(saved, prompt) {
  settings.sampling = {};
  for (const { field, input, wrong } of inputs) {
    input.value = saved[field.name] ?? '';
    setField(field, input, wrong);
  }
  settings.system = $('system').value = prompt;
}
$('system').addEventListener('input', event => { settings.system = event.target.value; settingsStore.set('system', settings.system); });
$('defaults').addEventListener('click', () => {
  fill({}, '');
  settingsStore.set('settings', settings.sampling);
  settingsStore.set('system', settings.system);
  announce('All settings are back at their defaults');
});
fill(settingsStore.get('settings', {}), settingsStore.get('system', ''));

const THINKING = { on: { enable_thinking: true }, off: { enable_thinking: false }, low: { reasoning_effort: 'low' }, medium: { reasoning_effort: 'medium' }, high: { reasoning_effort: 'high' } };
/** Offers the choices about thinking that a chat template reads. */
export function offerThinking(template) {
  const choices = [
    ...(template.includes('enable_thinking') ? [['on', 'On'], ['off', 'Off']] : []),
    ...(template.includes('reasoning_effort') ? [['low', 'Low'], ['medium', 'Medium'], ['high', 'High']] : []),
  ];
  const select = $('thinking');
  select.replaceChildren(...[['', 'Thinking: default'], ...choices.map(([value, word]) => [value, `Thinking: ${word.toLowerCase()}`])]
    .map(([value, label]) => make('option', { value }, label)));
  const saved = settingsStore.get('thinking', '');
  select.value = choices.some(([value]) => value === saved) ? saved : '';
  select.hidden = choices.length === 0;
  settings.thinking = THINKING[select.value] ?? {};
}
$('thinking').addEventListener('change', event => {
  settings.thinking = THINKING[event.target.value] ?? {};
  settingsStore.set('thinking', event.target.value);
});
