// Markdown to nodes. markdown-it makes tokens, and each token becomes a node here: no text is ever read as HTML. KaTeX writes formulas as
// MathML, lowlight (highlight.js) colours code.
import MarkdownIt from 'markdown-it';
import katex from 'katex';
import { tasklist } from '@mdit/plugin-tasklist';
import { tex } from '@mdit/plugin-tex';
import { buildCode, growCode } from './code.js';
import { make } from './dom.js';

const md = new MarkdownIt({ html: false, linkify: true, breaks: true })
  .use(tex, { delimiters: 'all', render: () => '' })
  .use(tasklist, { label: false });
md.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// What a model links to may be a page or a mail; a relative link would lead into this server.
md.validateLink = address => /^(https?:\/\/|mailto:)/i.test(address);

const ALIGN = /text-align:\s*(left|center|right)/;

/** A formula; its source where KaTeX cannot read it. */
function formula(source, display) {
  const node = make(display ? 'div' : 'span', { class: display ? 'math display' : 'math' });
  try {
    const tree = katex.__renderToDomTree(source, { output: 'mathml', displayMode: display, strict: 'ignore', maxExpand: 500, maxSize: 20 });
    withoutStyles(tree);
    node.append(tree.toNode());
  } catch {
    node.append(make('code', {}, source));
  }
  if (display) node.setAttribute('tabindex', 0);
  return node;
}
/** The policy allows no style attributes. */
function withoutStyles(tree) {
  delete tree.attributes?.style;
  if (tree.style) tree.style = {};
  tree.children?.forEach(withoutStyles);
}

const link = address => make('a', { href: address, title: address, target: '_blank', rel: 'noopener noreferrer' });

/** The nodes of one token without children that close later. */
function leaf(token) {
  switch (token.type) {
    case 'inline': return build(token.children);
    case 'text': return [token.content];
    case 'code_inline': return [make('code', {}, token.content)];
    case 'softbreak': case 'hardbreak': return [make('br')];
    case 'hr': return [make('hr')];
    case 'fence': return [buildCode(token.content.replace(/\n$/, ''), token.info.trim())];
    case 'code_block': return [buildCode(token.content.replace(/\n$/, ''), '')];
    case 'checkbox_input': {
      const checked = token.attrGet('checked') !== null;
      return [make('input', { type: 'checkbox', disabled: '', 'aria-label': checked ? 'Done' : 'To do', ...(checked && { checked: '' }) })];
    }
    // Nothing is loaded from elsewhere: a picture is a link to it.
    case 'image': {
      const node = link(token.attrGet('src'));
      node.append(`Picture: ${token.content || token.attrGet('src')}`);
      return [node];
    }
    default:
      if (/math|tex/.test(token.type)) return [formula(token.content, token.block || /block|display/.test(token.type))];
      return [token.content];
  }
}
/** The element that a token opens. */
function open(token) {
  const level = /^h([1-6])$/.exec(token.tag)?.[1];
  if (level) return make('div', { class: 'heading', role: 'heading', 'aria-level': Math.max(2, level) });
  if (token.type === 'link_open') return link(token.attrGet('href'));
  const align = ALIGN.exec(token.attrGet('style') ?? '')?.[1];
  const start = token.tag === 'ol' ? token.attrGet('start') ?? undefined : undefined;
  return make(token.tag, { class: align ? `align-${align}` : token.attrGet('class') ?? undefined, start });
}
/** The nodes of a list of tokens. */
function build(tokens) {
  const root = { nodes: [], append(...list) { this.nodes.push(...list); } };
  const stack = [root];
  for (const token of tokens) {
    if (token.hidden) continue;
    if (token.nesting === 1) {
      const node = open(token);
      // A wide table scrolls within itself.
      stack.at(-1).append(token.tag === 'table' ? make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': 'Table' }, node) : node);
      stack.push(node);
    } else if (token.nesting === -1) {
      stack.pop();
    } else {
      stack.at(-1).append(...leaf(token));
    }
  }
  return root.nodes;
}

/** The top-level blocks of a text, each with its source. */
function blocks(text) {
  const env = {};
  const lines = text.split('\n');
  const out = [];
  let tokens = [];
  for (const token of md.parse(text, env)) {
    tokens.push(token);
    if (token.level !== 0 || token.nesting === 1) continue;
    const [from, to] = tokens[0].map ?? [0, 0];
    out.push({ kind: tokens[0].type, info: tokens[0].info, source: lines.slice(from, to).join('\n'), tokens });
    tokens = [];
  }
  return { out, references: JSON.stringify(env.references ?? {}) };
}

/** Makes `node` show `text`: only blocks that changed are built again, so that a selection in the others stays. */
export function show(node, text) {
  const { out, references } = blocks(text.trimEnd());
  if (node.references !== references) { node.replaceChildren(); node.shown = []; node.references = references; }
  out.forEach((block, i) => {
    const shown = node.shown[i];
    if (shown && shown.kind === block.kind && shown.source === block.source) return;
    const token = block.tokens[0];
    if (shown && shown.kind === 'fence' && block.kind === 'fence' && shown.info === block.info
      && growCode(shown.nodes[0], token.content.replace(/\n$/, ''))) {
      node.shown[i] = { ...block, nodes: shown.nodes };
      return;
    }
    const nodes = build(block.tokens);
    if (shown?.nodes.length) { shown.nodes[0].before(...nodes); shown.nodes.forEach(old => old.remove()); } else node.append(...nodes);
    node.shown[i] = { ...block, nodes };
  });
  node.shown.splice(out.length).forEach(old => old.nodes.forEach(n => n.remove()));
}
