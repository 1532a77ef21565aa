// Blocks of code with their language, a copy button and colours.
import { createLowlight } from 'lowlight';
import bash from 'highlight.js/lib/languages/bash';
import c from 'highlight.js/lib/languages/c';
import cpp from 'highlight.js/lib/languages/cpp';
import csharp from 'highlight.js/lib/languages/csharp';
import css from 'highlight.js/lib/languages/css';
import diff from 'highlight.js/lib/languages/diff';
import dockerfile from 'highlight.js/lib/languages/dockerfile';
import go from 'highlight.js/lib/languages/go';
import ini from 'highlight.js/lib/languages/ini';
import java from 'highlight.js/lib/languages/java';
import javascript from 'highlight.js/lib/languages/javascript';
import json from 'highlight.js/lib/languages/json';
import kotlin from 'highlight.js/lib/languages/kotlin';
import lua from 'highlight.js/lib/languages/lua';
import markdown from 'highlight.js/lib/languages/markdown';
import php from 'highlight.js/lib/languages/php';
import python from 'highlight.js/lib/languages/python';
import r from 'highlight.js/lib/languages/r';
import ruby from 'highlight.js/lib/languages/ruby';
import rust from 'highlight.js/lib/languages/rust';
import sql from 'highlight.js/lib/languages/sql';
import swift from 'highlight.js/lib/languages/swift';
import typescript from 'highlight.js/lib/languages/typescript';
import xml from 'highlight.js/lib/languages/xml';
import yaml from 'highlight.js/lib/languages/yaml';
import { copyButton, make } from './dom.js';

const lowlight = createLowlight({
  bash, c, cpp, csharp, css, diff, dockerfile, go, ini, java, javascript, json, kotlin, lua, markdown, php, python, r, ruby, rust, sql,
  swift, typescript, xml, yaml,
});
lowlight.registerAlias({ ini: ['toml'], bash: ['shell', 'console'] });
/** Longer code stays plain, so that the page stays quick. */
const COLOURED_CHARACTERS = 50_000;

const toNode = piece => piece.type === 'text' ? piece.value
  : make('span', { class: piece.properties.className.join(' ') }, ...piece.children.map(toNode));

/** Writes code into its place, in colours if its language is known. */
function write(place, source, language) {
  if (language && source.length <= COLOURED_CHARACTERS && lowlight.registered(language)) {
    place.replaceChildren(...lowlight.highlight(language, source).children.map(toNode));
  } else {
    place.replaceChildren(source);
  }
}

/** A block of code; `info` is what stands after the fence. */
export function buildCode(source, info) {
  const language = info.split(/\s/)[0].toLowerCase();
  const place = make('code');
  const node = make('div', { class: 'code' },
    make('div', { class: 'bar' }, make('span', {}, info || 'text'), copyButton('Copy the code', () => node.source)),
    make('pre', { tabindex: 0, role: 'region', 'aria-label': `Code, ${info || 'text'}` }, place));
  Object.assign(node, { source, language });
  write(place, source, language);
  return node;
}
/** Lets a block go on; false if the new text is another one. */
export function growCode(node, source) {
  if (!source.startsWith(node.source)) return false;
  const place = node.querySelector('code');
  node.source = source;
  write(place, source, node.language);
  return true;
}
