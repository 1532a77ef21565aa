// Makes the program's pages of the sources in this folder, one compressed document each: node build.mjs OUTPUT-FOLDER LICENCES
import { build } from 'esbuild';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';

const PAGES = [
  { html: 'index.html', script: 'src/main.js', style: 'style.css', title: 'The chat page of realizar' },
  { html: 'docs.html', script: 'docs.js', style: 'docs.css', title: 'The documentation of realizar\'s API' },
];

const here = import.meta.dirname;
const [output, list] = process.argv.slice(2);
const read = name => readFileSync(join(here, name), 'utf8');
const readAny = names => names.map(name => { try { return read(name); } catch { return ''; } }).find(Boolean);
const shared = { bundle: true, minify: true, write: false, charset: 'utf8', legalComments: 'none', absWorkingDir: here, logLevel: 'error' };
const licences = new Map();

for (const page of PAGES) {
  const script = await build({ ...shared, entryPoints: [page.script], format: 'iife', target: 'es2022', metafile: true });
  const style = await build({ ...shared, entryPoints: [page.style], target: 'chrome123', loader: { '.svg': 'dataurl' } });
  // What a model writes must not be read as HTML; the policy of the chat page forbids it to the packages, too.
  for (const path of Object.keys(script.metafile.inputs).filter(path => path.startsWith('src/'))) {
    if (/innerHTML|outerHTML|insertAdjacentHTML|DOMParser|\beval\b/.test(read(path))) throw new Error(`${path} reads text as HTML or as a script`);
  }
  const packages = [...new Set(Object.keys(script.metafile.inputs).map(path => /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]).filter(Boolean))].sort();
  const named = packages.map(name => {
    const folder = `node_modules/${name}/`;
    const { version, license } = JSON.parse(read(folder + 'package.json'));
    const text = readAny(['LICENSE', 'LICENSE.md', 'LICENSE.txt', 'LICENSE-MIT.txt', 'license'].map(file => folder + file));
    if (!text) throw new Error(`${name} has no licence file`);
    // Swagger UI brings the notices of what it contains.
    const notices = ['NOTICE', 'swagger-ui-es-bundle.js.LICENSE.txt'].map(file => readAny([folder + file])).filter(Boolean);
    licences.set(`${name} ${version} (${license})`, [text, ...notices].map(text => text.trim()).join('\n\n'));
    return `${name} ${version} (${license})`;
  });
  const notice = `<!-- ${page.title}, made from crates/server/web by tools/build-page: change it there. It contains ${named.join(', ')}; their
     licences are in crates/server/web/LICENSES.txt. -->`;
  // No string or pattern of the script may look like a tag of the document.
  const code = script.outputFiles[0].text.trim().replace(/<(?=\/?(?:script|style)|!--)/g, '\\x3c');
  const css = style.outputFiles[0].text.trim();
  const html = read(page.html)
    .replace('<!doctype html>', () => `<!doctype html>\n${notice}`)
    .replace('<style></style>', () => `<style>${css}</style>`)
    .replace('<script></script>', () => `<script>${code}</script>`);
  writeFileSync(join(output, `${page.html}.gz`), gzipSync(html, { level: 9 }));
}

const line = '='.repeat(80);
const texts = [...licences].sort(([a], [b]) => (a < b ? -1 : 1)).map(([name, text]) => `${line}\n${name}\n${line}\n\n${text}\n`);
writeFileSync(list, texts.join('\n'));
