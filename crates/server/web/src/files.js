// Files that go with a question: text only.
import { $, announce, iconButton, make, number } from './dom.js';

const MAX_BYTES = 1 << 20;
let files = [];

/** The text of a file, or an error in words. */
async function read(file) {
  if (file.type.startsWith('image/')) throw new Error(`${file.name} is an image. This server reads text only.`);
  if (file.type === 'application/pdf') throw new Error(`${file.name} is a PDF. This server reads text only: copy the text out of it first.`);
  if (file.size > MAX_BYTES) throw new Error(`${file.name} is larger than 1 MiB.`);
  const bytes = new Uint8Array(await file.arrayBuffer());
  const refused = new Error(`${file.name} is not a text file in UTF-8.`);
  if (String.fromCharCode(...bytes.subarray(0, 5)) === '%PDF-') throw new Error(`${file.name} is a PDF. This server reads text only: copy the text out of it first.`);
  if (bytes.includes(0)) throw refused;
  try { return new TextDecoder('utf-8', { fatal: true }).decode(bytes); } catch { throw refused; }
}
function render() {
  $('files').replaceChildren(...files.map(file => make('span', { class: 'chip' }, `${file.name}, ${number(file.text.length)} characters`,
    iconButton('close', `Remove ${file.name}`, () => { files = files.filter(other => other !== file); render(); $('message').focus(); }))));
  $('files').hidden = files.length === 0;
  $('composer').dispatchEvent(new Event('change'));
}
async function add(list) {
  const refused = [];
  for (const file of list) {
    try { files.push({ name: file.name, text: await read(file) }); } catch (error) { refused.push(error.message); }
  }
  $('files-refused').textContent = refused.join(' ');
  $('files-refused').hidden = refused.length === 0;
  if (list.length > refused.length) announce(`${list.length - refused.length} attached`);
  render();
  $('message').focus();
}
/** The files for the next question, which are taken off the composer. */
export function takeFiles() {
  const taken = files;
  files = [];
  $('files-refused').hidden = true;
  render();
  return taken;
}
export const hasFiles = () => files.length > 0;

$('attach').addEventListener('click', () => $('attach-input').click());
$('attach-input').addEventListener('change', event => { add([...event.target.files]); event.target.value = ''; });
$('message').addEventListener('paste', event => {
  if (!event.clipboardData?.files.length) return;
  event.preventDefault();
  add([...event.clipboardData.files]);
});
// Dropped anywhere on the page; a file that is not taken would replace it.
const hasDragged = event => event.dataTransfer?.types.includes('Files');
addEventListener('dragover', event => { if (hasDragged(event)) { event.preventDefault(); document.body.classList.add('dropping'); } });
addEventListener('dragleave', event => { if (!event.relatedTarget) document.body.classList.remove('dropping'); });
addEventListener('drop', event => {
  document.body.classList.remove('dropping');
  if (!hasDragged(event)) return;
  event.preventDefault();
  add([...event.dataTransfer.files]);
});
