// Small tools: nodes, icons, numbers in words, the clipboard.
export const $ = id => document.getElementById(id);

/** An element. An attribute that is a function listens to the event of its name. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}
export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
export const icon = name => makeSvg('svg', { class: 'icon', 'aria-hidden': 'true' }, makeSvg('use', { href: '#i-' + name }));
export const setIcon = (button, name) => button.querySelector('use').setAttribute('href', '#i-' + name);
/** A button that is an icon with a name. */
export const iconButton = (name, label, click) =>
  make('button', { class: 'ghost small', type: 'button', 'aria-label': label, title: label, click }, icon(name));

export const number = (value, digits = 0) =>
  value.toLocaleString('en', { maximumFractionDigits: digits, minimumFractionDigits: digits });
export const duration = ms => ms < 1000 ? `${number(ms)} ms` : `${number(ms / 1000, ms < 10000 ? 2 : 1)} s`;
export const plural = (n, word) => `${number(n)} ${word}${n === 1 ? '' : 's'}`;

/** Tells screen readers. */
export function announce(text) { $('announce').textContent = text; }

async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Over plain http from another machine there is no clipboard interface.
    const area = make('textarea', { class: 'away', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  setIcon(button, done ? 'done' : 'close');
  announce(done ? 'Copied' : 'The browser did not allow copying');
  setTimeout(() => setIcon(button, 'copy'), 1500);
}
export const copyButton = (label, text) => iconButton('copy', label, event => copy(text(), event.currentTarget));

/** Offers `text` as a file to save. */
export function save(name, text) {
  const address = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  make('a', { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
