// How a message looks: a question with its files, or an answer with its thoughts and figures.
import { copyButton, duration, iconButton, make, number, plural } from './dom.js';
import { siblings } from './conversation.js';
import { show } from './markdown.js';

/** The answer in numbers: the server's when it has reported them, else the browser's own. */
export function figures(message, busy) {
  const { pieces = 0, usage, timings, firstMs, lastMs, reason } = message;
  if (!pieces && !usage) return busy ? 'Reading …' : '';
  const words = [plural(usage?.completion_tokens ?? pieces, 'token')];
  const seconds = (lastMs - firstMs) / 1000;
  const rate = timings?.tokens_per_second || (pieces > 2 && seconds > 0 ? (pieces - 1) / seconds : 0);
  if (rate) words.push(`${number(rate, rate < 20 ? 1 : 0)} tok/s`);
  if (timings || firstMs !== undefined) words.push(`first after ${duration(timings?.first_token_ms ?? firstMs)}`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) words.push(`${number(cached)} of ${number(usage.prompt_tokens)} prompt tokens cached`);
  if (reason === 'length') words.push('cut at the limit');
  if (reason === 'stopped') words.push('stopped');
  return words.join(' · ');
}

/** The view of one message. `actions`: edit, again and switchTo, which the chat carries out. */
export class MessageView {
  constructor(message, actions) {
    Object.assign(this, { message, actions });
    const question = message.role === 'user';
    this.numbers = make('span', { class: 'numbers' });
    this.copy = copyButton(question ? 'Copy the question' : 'Copy the answer', () => message.content);
    this.edit = iconButton('edit', question ? 'Edit the question' : 'Edit the answer', () => this.startEdit());
    this.branches = make('span', { class: 'branches' });
    this.foot = make('div', { class: 'foot' }, this.branches, this.numbers, this.copy, this.edit);
    this.text = make('div', { class: 'text' });
    this.notice = make('div', { class: 'notice', role: 'alert', hidden: '' });
    this.body = question ? this.questionBody() : this.answerBody();
    this.node = make('article', { class: `turn ${question ? 'asked' : 'answered'}`, 'aria-label': question ? 'You' : 'Answer' }, this.body, this.notice, this.foot);
  }
  questionBody() {
    const files = (this.message.files ?? []).map(({ name, text }) => make('details', { class: 'file' },
      make('summary', {}, `${name}, ${number(text.length)} characters`), make('pre', { tabindex: 0 }, text)));
    this.text.textContent = this.message.content;
    return make('div', { class: 'question' }, ...(this.message.content ? [this.text] : []), ...files);
  }
  answerBody() {
    this.thought = make('div', { class: 'thought' });
    this.summary = make('summary');
    this.reasoning = make('details', { class: 'reasoning', hidden: '' }, this.summary, this.thought);
    this.again = make('button', { class: 'ghost small', type: 'button', click: () => this.actions.again(this.message) });
    this.foot.append(this.again);
    return make('div', { class: 'answer' }, this.reasoning, this.text);
  }
  /** `running`: whether any answer is on its way; `busy`: whether this one is. */
  render({ conversation, running, busy }) {
    const { message } = this;
    const all = siblings(conversation, message);
    const at = all.indexOf(message);
    const step = (name, label, to) => {
      const button = iconButton(name, label, () => this.actions.switchTo(to.id));
      button.disabled = !to || running;
      return button;
    };
    this.branches.replaceChildren(...(all.length < 2 ? [] : [step('back', 'Previous version', all[at - 1]), `${at + 1} of ${all.length}`, step('next', 'Next version', all[at + 1])]));
    this.edit.hidden = running;
    this.copy.hidden = busy || !message.content;
    if (message.role === 'assistant') this.renderAnswer(busy, running);
  }
  renderAnswer(busy, running) {
    const { message } = this;
    this.body.classList.toggle('busy', busy);
    this.body.setAttribute('aria-busy', busy);
    show(this.text, message.content);
    this.reasoning.hidden = !message.reasoning;
    if (message.reasoning) {
      this.thought.textContent = message.reasoning;
      this.summary.textContent = busy && message.thoughtMs === undefined ? 'Thinking …' : !(message.thoughtMs >= 100) ? 'Thoughts' : `Thought for ${duration(message.thoughtMs)}`;
    }
    this.body.hidden = !busy && !message.content && !message.reasoning;
    this.notice.hidden = !message.error;
    this.notice.textContent = message.error ?? '';
    this.numbers.textContent = figures(message, busy);
    this.numbers.title = message.timings ? 'Measured by the server' : 'Measured in the browser';
    const label = message.error ? 'Try again' : 'Answer again';
    if (this.again.title !== label) {
      this.again.title = label;
      this.again.setAttribute('aria-label', label);
      this.again.replaceChildren(iconButton('again', label).firstChild, ...(message.error ? [label] : []));
    }
    this.again.hidden = running;
    this.edit.hidden = running || !message.content;
  }
  /** Puts a field in the place of the text; what is saved becomes another version. */
  startEdit() {
    const { message } = this;
    const field = make('textarea', { class: 'field', rows: Math.min(12, 1 + message.content.split('\n').length), 'aria-label': 'New version' });
    field.value = message.content;
    const close = () => { form.replaceWith(this.body); this.foot.hidden = false; this.edit.focus(); };
    const form = make('form', {
      class: 'edit',
      submit: event => { event.preventDefault(); close(); if (field.value.trim() || message.files) this.actions.edit(message, field.value); },
      keydown: event => {
        if (event.key === 'Escape') { event.stopPropagation(); close(); }
        if (event.key === 'Enter' && !event.shiftKey && !event.isComposing && message.role === 'user') { event.preventDefault(); form.requestSubmit(); }
      },
    }, field, make('div', { class: 'row' }, make('button', { class: 'primary' }, message.role === 'user' ? 'Ask this' : 'Save'),
      make('button', { class: 'ghost', type: 'button', click: close }, 'Cancel')));
    this.body.replaceWith(form);
    this.foot.hidden = true;
    field.focus();
  }
}
