// Makes one document of the sources in this folder: node build.mjs OUTPUT
import { build } from 'esbuild';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const here = import.meta.dirname;
const read = name => readFileSync(join(here, name), 'utf8');
const shared = { bundle: true, minify: true, write: false, charset: 'utf8', legalComments: 'none', absWorkingDir: here, logLevel: 'warning' };

const script = await build({ ...shared, entryPoints: ['src/main.js'], format: 'iife', target: 'es2022', metafile: true });
const style = await build({ ...shared, entryPoints: ['style.css'], target: 'chrome123' });

// What a model writes must not be read as HTML; the policy of the page forbids it to the packages, too.
for (const path of Object.keys(script.metafile.inputs).filter(path => path.startsWith('src/'))) {
  if (/innerHTML|outerHTML|insertAdjacentHTML|DOMParser|\beval\b/.test(read(path))) throw new Error(`${path} reads text as HTML or as a script`);
}

/** The packages whose code is in the bundle, with their licences. */
const packages = [...new Set(Object.keys(script.metafile.inputs).map(path => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]).filter(Boolean))].sort();
const named = packages.map(name => {
  const { version, license } = JSON.parse(read(`node_modules/${name}/package.json`));
  return `${name} ${version} (${license})`;
});
const notice = `<!-- The chat page of realizar, made from crates/server/web by tools/build-page: change it there. It contains ${named.join(', ')}; their
     licences are in crates/server/web/LICENSES.txt. -->`;
const licence = name => ['LICENSE', 'LICENSE.md', 'LICENSE.txt', 'LICENSE-MIT.txt', 'license'].map(file => { try { return read(`node_modules/${name}/${file}`); } catch { return null; } }).find(Boolean);
const licences = packages.map((name, i) => {
  const text = licence(name);
  if (!text) throw new Error(`${name} has no licence file`);
  return `${'='.repeat(80)}\n${named[i]}\n${'='.repeat(80)}\n\n${text.trim()}\n`;
});

// No string or pattern of the script may look like a tag of the document.
const code = script.outputFiles[0].text.trim().replace(/<(?=\/?(?:script|style)|!--)/g, '\\x3c');
const css = style.outputFiles[0].text.trim();
const html = read('index.html')
  .replace('<!doctype html>', () => `<!doctype html>\n${notice}`)
  .replace('<style></style>', () => `<style>${css}</style>`)
  .replace('<script></script>', () => `<script>${code}</script>`);
const [page, list] = process.argv.slice(2);
writeFileSync(page, html);
writeFileSync(list, licences.join('\n'));
