// Engine: /metrics once a second while somebody looks, as plots of the last minute.
import { request, Refusal } from './api.js';
import { $, duration, make, makeSvg, number } from './dom.js';
import { settingsStore } from './store.js';

const SPAN_MS = 60000, EVERY_MS = 1000;
let context, samples = [], last = null, timer = 0, polling = false;
const PLOTS = [
  { name: 'rate', title: 'Generated', unit: 'tok/s', top: 10 },
  { name: 'kv', title: 'KV cache', unit: '%', top: 100, fixed: true },
  { name: 'running', title: 'Running', unit: '', top: 4 },
  { name: 'waiting', title: 'Waiting', unit: '', top: 4 },
].map(plot => {
  const now = make('span', {}, '–'), peak = make('small');
  const area = makeSvg('path', { class: 'area' }), curve = makeSvg('path', { class: 'curve' });
  const svg = makeSvg('svg', { viewBox: '0 0 120 44', preserveAspectRatio: 'none', role: 'img' }, area, curve);
  $('plots').append(make('figure', { class: 'plot', id: 'plot-' + plot.name }, make('figcaption', {}, plot.unit ? `${plot.title}, ${plot.unit}` : plot.title), make('div', { class: 'now' }, now, peak), svg));
  return { ...plot, now, peak, area, curve, svg };
});
/** The sum of each metric of a page in Prometheus' format, over its labels. */
function readMetrics(text) {
  const sums = new Map();
  for (const line of text.split('\n')) {
    const found = /^([\w:]+)(?:\{.*\})? ([^ ]+)/.exec(line);
    if (found) sums.set(found[1], (sums.get(found[1]) ?? 0) + Number(found[2]));
  }
  return sums;
}
async function poll() {
  if (polling) return;
  polling = true;
  const at = performance.now();
  try {
    const response = await request('metrics', { cache: 'no-store', signal: AbortSignal.timeout(5000) });
    const m = readMetrics(await response.text());
    const value = name => m.get('realizar_' + name) ?? 0;
    const generated = value('generated_tokens_total');
    // After a pause or a restart of the server the counter says nothing about the last second.
    const usual = last && at - last.at < 5 * EVERY_MS && generated >= last.generated;
    const rate = usual ? (generated - last.generated) / (at - last.at) * 1000 : null;
    samples.push({ at, rate, kv: value('kv_blocks_in_use') / Math.max(1, value('kv_blocks')) * 100, running: value('running'), waiting: value('waiting') });
    last = { at, generated };
    $('engine-state').textContent = 'last minute';
    const [hits, misses] = [value('cache_hit_tokens_total'), value('cache_miss_tokens_total')];
    const [firsts, firstSum] = [value('first_token_seconds_count'), value('first_token_seconds_sum')];
    facts([
      ['Requests', number(value('requests_total'))],
      ['Tokens generated', number(generated)],
      ['Prompt tokens cached', hits + misses ? `${number(hits / (hits + misses) * 100)} %` : '–'],
      ['First token, on average', firsts ? duration(firstSum / firsts * 1000) : '–'],
      ['Preempted', number(value('preemptions_total'))],
      ['Cache', `${number(value('kv_blocks') * value('kv_block_tokens'))} tokens`],
      ['Context', context ? `${number(context)} tokens` : '–'],
    ]);
  } catch (error) {
    // A gap in the curves.
    samples.push({ at, rate: null, kv: null, running: null, waiting: null });
    last = null;
    $('engine-state').textContent = error instanceof Refusal ? error.message : 'no answer from the server';
  }
  while (samples.length && samples[0].at < at - SPAN_MS - 2 * EVERY_MS) samples.shift();
  draw(at);
  polling = false;
}
function facts(list) {
  const cells = $('facts').children;
  if (cells.length !== 2 * list.length) $('facts').replaceChildren(...list.flatMap(([term]) => [make('dt', {}, term), make('dd')]));
  list.forEach(([, value], i) => { if (cells[2 * i + 1].textContent !== value) cells[2 * i + 1].textContent = value; });
}
function draw(at) {
  for (const plot of PLOTS) {
    const known = samples.filter(s => s[plot.name] !== null);
    const highest = Math.max(0, ...known.map(s => s[plot.name]));
    const top = plot.fixed ? plot.top : Math.max(plot.top, highest * 1.1);
    let curve = '', area = '', run = [];
    const close = () => {
      if (!run.length) return;
      curve += 'M' + run.map(p => p.join(' ')).join('L') + (run.length === 1 ? 'h.01' : '');
      area += `M${run[0][0]} 44L` + run.map(p => p.join(' ')).join('L') + `L${run.at(-1)[0]} 44Z`;
      run = [];
    };
    for (const sample of samples) {
      if (sample[plot.name] === null) { close(); continue; }
      const x = 120 - (at - sample.at) / SPAN_MS * 120;
      run.push([x.toFixed(2), (42.5 - sample[plot.name] / top * 40).toFixed(2)]);
    }
    close();
    plot.curve.setAttribute('d', curve);
    plot.area.setAttribute('d', area);
    const now = samples.at(-1)?.[plot.name] ?? null;
    const written = value => number(value, plot.name === 'kv' && value >= 0.05 && value < 9.95 ? 1 : 0);
    plot.now.textContent = now === null ? '–' : written(now);
    plot.peak.textContent = known.length ? `max ${written(highest)}` : '';
    const described = known.length ? `now ${now === null ? 'unknown' : written(now)} ${plot.unit}, highest ${written(highest)}` : 'no values';
    plot.svg.setAttribute('aria-label', `${plot.title}, last minute: ${described}`);
  }
}
export function watch() {
  const seen = document.visibilityState === 'visible' && !$('panel').hidden && $('engine').open;
  if (seen && !timer) { poll(); timer = setInterval(poll, EVERY_MS); }
  if (!seen && timer) { clearInterval(timer); timer = 0; }
}
// Before the first answer the plots have no curve, but a name.
draw(performance.now());
document.addEventListener('visibilitychange', watch);
$('engine').open = settingsStore.get('engine', false);
$('engine').addEventListener('toggle', () => { settingsStore.set('engine', $('engine').open); watch(); });

/** Names the context of the model that is chosen. */
export function setContext(tokens) { context = tokens; }
