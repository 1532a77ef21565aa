//! `realizar bench --prompts`: what guesses of the next tokens are worth on given texts.

use crate::load::SpeculationOptions;
use crate::output::{self, decode_tok_s};
use anyhow::{Context, Result, bail};
use realizar::{Completion, EngineConfig, Model, Options, SamplingParams, TextParams};
use realizar_engine::load::load;
use realizar_engine::speculative::{DraftLayer, measure_costs};
use realizar_model::source::TensorSource;
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// A text to answer, of some kind.
struct Prompt {
    category: String,
    text: String,
}

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    batch: usize,
    gen_tokens: usize,
    results: Vec<Row>,
}

/// One kind of text. Rates are those of a single answer as it grows, without the reading of its prompt.
#[derive(Serialize)]
struct Row {
    category: String,
    prompts: usize,
    /// Prompts that exceed the context.
    skipped: usize,
    tok_s_without: f64,
    tok_s_with: f64,
    drafted_tokens: usize,
    accepted_tokens: usize,
    /// Tokens that a sequence gets by a step, on average.
    tokens_per_step: f64,
    /// Texts that guesses changed: none on the CPU; elsewhere only where two tokens are all but tied, and none in exact mode.
    differing: usize,
}

/// The prompts of a file, answered greedily.
pub(crate) struct Texts<'a> {
    pub(crate) file: &'a Path,
    /// How many at a time.
    pub(crate) batch: usize,
    /// Tokens of an answer.
    pub(crate) n_tokens: usize,
}

/// What guesses cost, in steps that compute one token of one sequence.
#[derive(Serialize)]
struct Costs {
    model: String,
    device: String,
    step_ms: f64,
    /// What each further row adds to a step.
    row: f32,
    /// What a guess takes to make.
    guess: f32,
    /// Tokens per second as a multiple of that without guesses, by their number, if all are right.
    speedup_if_right: Vec<f32>,
}

/// Measures what guesses cost.
pub(crate) fn costs(
    name: String,
    source: &dyn TensorSource,
    options: Options,
    speculation: &SpeculationOptions,
    as_json: bool,
) -> Result<()> {
    let options = speculation.load_options(Options { max_seqs: Some(1), ..options });
    let mut proposer = match speculation.proposer(source, &options)? {
        Some(proposer) => proposer,
        None => Box::<DraftLayer>::default(),
    };
    let mut loaded = load(source, &options)?;
    let (step, costs) = measure_costs(&mut *loaded.runner, &mut *proposer)?;
    let speedup = |n: u8| {
        let n = f32::from(n);
        (1.0 + n) / (1.0 + n * (costs.row + costs.guess))
    };
    let report = Costs {
        model: name,
        device: loaded.device,
        step_ms: step.as_secs_f64() * 1e3,
        row: costs.row,
        guess: costs.guess,
        speedup_if_right: (1..=4).map(speedup).collect(),
    };
    if as_json {
        return output::print_json(&report);
    }
    let Costs { model, device, step_ms, row, guess, speedup_if_right } = report;
    let speedups: Vec<String> = speedup_if_right.iter().map(|s| format!("{s:.2}")).collect();
    output::print(format!(
        "{model}\n{device}\nstep of one token {step_ms:.3} ms, further row {row:.3} of it, guess {guess:.3}\n\
         times as fast with 1, 2, 3 and 4 guesses that are right: {}\n",
        speedups.join(", ")
    ))
}

/// Answers texts with and without drafts.
pub(crate) fn run(
    name: String,
    source: &dyn TensorSource,
    options: &Options,
    speculation: &SpeculationOptions,
    texts: Texts<'_>,
    as_json: bool,
) -> Result<()> {
    let Texts { file, batch, n_tokens } = texts;
    // What is wrong with it is known before the weights are read.
    let prompts = read(file)?;
    let max_drafts = speculation.max_drafts();
    let options = speculation.load_options(Options { max_seqs: Some(batch), ..options.clone() });
    let proposer = speculation.proposer(source, &options)?;
    // Both runs read each prompt whole.
    let config = EngineConfig { max_drafts, prefix_cache: false, ..EngineConfig::default() };
    let mut builder = Model::builder_from(source).options(options).engine_config(config);
    if let Some(proposer) = proposer {
        builder = builder.proposer(proposer);
    }
    let model = builder.load()?;
    // Not counted: it warms caches.
    answer(&model, &[&prompts[0].text], n_tokens, true)?;
    let mut categories: Vec<&str> = prompts.iter().map(|p| &*p.category).collect();
    categories.sort_unstable();
    categories.dedup();
    let mut results = Vec::new();
    for category in categories {
        let texts: Vec<&str> = prompts.iter().filter(|p| p.category == category).map(|p| &*p.text).collect();
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // In turn, so that a machine that slows down slows both.
        for texts in texts.chunks(batch) {
            without.extend(answer(&model, texts, n_tokens, false)?);
            with.extend(answer(&model, texts, n_tokens, true)?);
        }
        let n = |c: &[Option<Completion>]| c.iter().flatten().map(|c| c.tokens.len()).sum::<usize>();
        let sum = |f: fn(&Completion) -> usize| with.iter().flatten().map(f).sum::<usize>();
        let drafted_tokens = sum(|c| c.usage.drafted_tokens);
        let accepted_tokens = sum(|c| c.usage.accepted_tokens);
        let differ = |(a, b): &(&Option<Completion>, &Option<Completion>)| {
            a.as_ref().map(|a| &a.tokens) != b.as_ref().map(|b| &b.tokens)
        };
        results.push(Row {
            category: category.to_owned(),
            prompts: texts.len(),
            skipped: without.iter().filter(|c| c.is_none()).count(),
            tok_s_without: decode_rate(&without),
            tok_s_with: decode_rate(&with),
            drafted_tokens,
            accepted_tokens,
            tokens_per_step: n(&with) as f64 / (n(&with) - accepted_tokens).max(1) as f64,
            differing: without.iter().zip(&with).filter(differ).count(),
        });
    }
    let report =
        Report { model: name, device: model.device().to_owned(), batch, gen_tokens: n_tokens, results };
    if as_json { output::print_json(&report) } else { output::print(table(&report)) }
}

/// The answers; `None` to prompts that are too long.
fn answer(
    model: &Model,
    texts: &[&str],
    n_tokens: usize,
    speculate: bool,
) -> Result<Vec<Option<Completion>>> {
    let params = TextParams {
        max_tokens: Some(n_tokens),
        sampling: SamplingParams::greedy(),
        ignore_eos: true,
        speculate: Some(speculate),
        ..TextParams::default()
    };
    let engine = model.engine();
    let prompts = texts.iter().map(|text| {
        let conversation = json!({ "messages": [{ "role": "user", "content": text }] });
        let tokens = match engine.template() {
            Some(_) => engine.encode_chat(&conversation, realizar::now())?,
            None => engine.encode_prompt(text),
        };
        Ok((tokens, params.clone()))
    });
    let prompts = prompts.collect::<Result<Vec<_>>>()?;
    let completions = engine.generate_batch(&prompts).into_iter().map(|result| match result {
        Ok(completion) => Ok(Some(completion)),
        Err(realizar_engine::Error::PromptTooLong { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    });
    completions.collect()
}

/// Tokens per second that an answer grows by after its first token, on average.
fn decode_rate(completions: &[Option<Completion>]) -> f64 {
    let n: usize = completions.iter().flatten().map(|c| c.tokens.len().saturating_sub(1)).sum();
    let decode: Duration = completions.iter().flatten().map(|c| c.timings.decode).sum();
    decode_tok_s(n + 1, decode)
}

/// The texts of a file: JSON lines with a `prompt` or `turns`, of which the first counts, and perhaps a `category`; else a text a line.
fn read(file: &Path) -> Result<Vec<Prompt>> {
    let lines =
        std::fs::read_to_string(file).with_context(|| format!("could not read {}", file.display()))?;
    let prompts = lines.lines().filter(|l| !l.trim().is_empty()).enumerate().map(|(i, line)| {
        if !line.starts_with('{') {
            return Ok(Prompt { category: "text".into(), text: line.to_owned() });
        }
        let at = || format!("line {} of {}", i + 1, file.display());
        let object: Value = serde_json::from_str(line).with_context(at)?;
        let text = object["prompt"].as_str().or(object["turns"][0].as_str());
        let category = object["category"].as_str().unwrap_or("text").to_owned();
        let text = text.with_context(|| format!("{} has neither \"prompt\" nor \"turns\"", at()))?.to_owned();
        Ok(Prompt { category, text })
    });
    let prompts = prompts.collect::<Result<Vec<_>>>()?;
    if prompts.is_empty() {
        bail!("{} holds no prompts", file.display());
    }
    Ok(prompts)
}

fn table(r: &Report) -> String {
    let mut out = format!(
        "{}\n{}\n{} side by side, {} tokens each, greedy\n\n{:>16} {:>8} {:>12} {:>12} {:>7} {:>9} {:>11} {:>10}\n",
        r.model,
        r.device,
        r.batch,
        r.gen_tokens,
        "kind",
        "prompts",
        "tok/s",
        "with guesses",
        "ratio",
        "accepted",
        "tok/step",
        "differing"
    );
    for row in &r.results {
        let share = match row.drafted_tokens {
            0 => "–".to_owned(),
            n => format!("{:.1} %", row.accepted_tokens as f64 / n as f64 * 100.0),
        };
        out += &format!(
            "{:>16} {:>8} {:>12.1} {:>12.1} {:>7.2} {share:>9} {:>11.2} {:>10}\n",
            row.category,
            row.prompts - row.skipped,
            row.tok_s_without,
            row.tok_s_with,
            row.tok_s_with / row.tok_s_without.max(1e-9),
            row.tokens_per_step,
            row.differing
        );
    }
    out
}
