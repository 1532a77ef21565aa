//! `realizar run`: answers one prompt, or chats.

use crate::args::between;
use crate::chat::Chat;
use crate::chat_commands::Next;
use crate::load::{RunnerOptions, SpeculationOptions, TemplateOption, warn_of_long_context};
use crate::model_arg::ModelArg;
use crate::output::decode_tok_s;
use crate::thinking::{Printer, ThinkingOptions};
use crate::{input, output, progress};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use realizar::{Completion, EngineConfig, FinishReason, Model, Options, SamplingParams, TextParams};
use realizar_compute::sampling::SamplingOverrides;
use realizar_engine::SampleError;
use realizar_model::sampling_defaults;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::Tokenizer;
use realizar_model::values::find_non_finite;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A model, and what to answer. Without a prompt a terminal starts a chat; what is not a terminal is read from stdin, behind the
    /// prompt if there is one.
    ///
    /// The model is a .gguf file, a folder, OWNER/NAME[:FILE-OR-QUANT] of the Hugging Face hub, its address, a short name such as
    /// qwen3:0.6b, or demo. Without a model the demo in the program answers.
    #[arg(value_name = "[MODEL] [PROMPT]")]
    words: Vec<String>,
    /// The model as an option; all arguments are the prompt then.
    #[arg(short, long, alias = "hf-repo", value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    model: Option<ModelArg>,
    /// llama.cpp's option, the prompt.
    #[arg(short, long, value_name = "PROMPT", hide = true)]
    prompt: Option<String>,
    /// Tokens to generate at most; by default as many as the context holds.
    #[arg(short, long = "max-tokens", visible_alias = "n-predict", alias = "predict", value_name = "N")]
    n: Option<usize>,
    /// Ends the answer before this text; may be given several times.
    #[arg(long, value_name = "STR")]
    stop: Vec<String>,
    /// The conversation's system message.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    system: Option<String>,
    /// Continues the prompt as it is, without the model's chat template.
    #[arg(long)]
    raw: bool,
    /// Longest conversation, in tokens; by default the model's own, or less where memory is short.
    #[arg(long, alias = "ctx-size", short_alias = 'c', value_name = "N")]
    ctx: Option<usize>,
    #[command(flatten)]
    thinking: ThinkingOptions,
    #[command(flatten)]
    template: TemplateOption,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    runner: RunnerOptions,
}

/// How tokens are chosen. What is not given is as `inspect` shows it.
#[derive(Debug, Args)]
#[command(next_help_heading = "How tokens are chosen")]
struct SamplingOptions {
    /// Randomness: 0 always takes the likeliest token [default: the model's own, else 0.8].
    #[arg(long, alias = "temperature", value_name = "T", value_parser = between(0.0, f32::MAX))]
    temp: Option<f32>,
    /// Keeps only the N likeliest tokens; 0 keeps all [default: the model's own, else 40].
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,
    /// Keeps the likeliest tokens up to this total probability [default: the model's own, else 0.95].
    #[arg(long, value_name = "P", value_parser = between(0.0, 1.0))]
    top_p: Option<f32>,
    /// Drops tokens less likely than this share of the likeliest [default: the model's own, else 0.05].
    #[arg(long, value_name = "P", value_parser = between(0.0, 1.0))]
    min_p: Option<f32>,
    /// Divides the logits of tokens that are in the text already; 1 is off [default: the model's own, else 1].
    #[arg(long, value_name = "R", value_parser = between(0.01, 100.0))]
    repeat_penalty: Option<f32>,
    /// The same seed gives the same answer; by default a random one.
    #[arg(long, short_alias = 's', value_name = "S")]
    seed: Option<u64>,
}

impl SamplingOptions {
    fn params(&self, source: &dyn TensorSource) -> Result<SamplingParams> {
        let given = [
            ("temperature", self.temp),
            ("top_k", self.top_k.map(|k| k as f32)),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("repetition_penalty", self.repeat_penalty),
        ];
        let mut overrides = SamplingOverrides::default();
        for (name, value) in given {
            if let Some(value) = value {
                overrides.set(name, value);
            }
        }
        let defaults = SamplingParams { seed: self.seed, ..sampling_defaults(source)?.params };
        Ok(overrides.over(defaults)?)
    }
}

impl RunArgs {
    /// Whether the demo answers because nobody asked for another model.
    fn names_no_model(&self) -> bool {
        self.model.is_none() && !self.words.first().is_some_and(|word| ModelArg::is_meant(word))
    }

    /// Which model is meant, and the prompt as far as it is on the command line.
    ///
    /// Errors: the first argument has the form of a model but names none.
    fn model_and_prompt(&self) -> Result<(ModelArg, Option<String>)> {
        let (model, words) = match (&self.model, self.words.split_first()) {
            (Some(model), _) => (model.clone(), &self.words[..]),
            (None, Some((first, rest))) if ModelArg::is_meant(first) => {
                (first.parse().map_err(anyhow::Error::msg)?, rest)
            }
            (None, _) => (ModelArg::Demo, &self.words[..]),
        };
        let prompt = match (&self.prompt, words) {
            (None, []) => None,
            (Some(prompt), []) => Some(prompt.clone()),
            (None, words) => Some(words.join(" ")),
            (Some(_), _) => bail!("the prompt stands twice: with -p and without"),
        };
        Ok((model, prompt))
    }
}

pub(crate) fn run(args: &RunArgs) -> Result<()> {
    let (mut name, prompt) = args.model_and_prompt()?;
    let mut source = name.open()?;
    if prompt.is_some() || args.raw || args.json || !std::io::stdin().is_terminal() {
        let prompt = input::text_and_stdin(prompt)?;
        if prompt.is_empty() {
            bail!("the prompt is empty");
        }
        return with_model(args, &*source, |model, params| {
            let answer = answer(args, model, &prompt, params).map_err(|error| explain(error, &*source))?;
            finish(args, &name, model, &answer)
        });
    }
    let mut chat = Chat::new(args.system.as_deref())?;
    loop {
        match with_model(args, &*source, |model, params| chat.talk(&name, model, params, &args.thinking))? {
            Next::Leave => return Ok(()),
            Next::Model(next, its_source) => (name, source) = (next, its_source),
        }
    }
}

/// Brings a model to its device, uses it, and gives it back.
fn with_model<T>(
    args: &RunArgs,
    source: &dyn TensorSource,
    work: impl FnOnce(&Model, &TextParams) -> Result<T>,
) -> Result<T> {
    let params = TextParams {
        max_tokens: args.n,
        sampling: args.sampling.params(source)?,
        stop: args.stop.clone(),
        ..TextParams::default()
    };
    // One stream: room for its own tokens is enough.
    let max_drafts = args.speculation.max_drafts();
    let options = Options { max_seqs: Some(1), ..args.runner.load_options(args.ctx) };
    let options = args.speculation.load_options(options);
    let proposer = args.speculation.proposer(source, &options)?;
    let config = EngineConfig { max_drafts, ..EngineConfig::default() };
    let template = match args.raw {
        true => None,
        // What is wrong with it is known before the weights are read.
        false => Some(args.template.template(source, &Tokenizer::from_source(source)?)?),
    };
    let spinner = progress::spinner(&format!("loading {}", source.path().display()));
    let mut builder = Model::builder_from(source).options(options).engine_config(config);
    if let Some(proposer) = proposer {
        builder = builder.proposer(proposer);
    }
    if let Some(template) = template {
        builder = builder.chat_template(template);
    }
    let model = builder.load();
    spinner.finish_and_clear();
    let model = model?;
    warn_of_long_context(args.ctx, model.config());
    let done = work(&model, &params);
    model.shutdown(Duration::ZERO);
    done
}

/// What follows an answer.
fn finish(args: &RunArgs, name: &ModelArg, model: &Model, answer: &Completion) -> Result<()> {
    if args.names_no_model() {
        tracing::warn!(
            "no model was named, so the demo in the program answered; realizar run MODEL PROMPT asks another"
        );
    }
    if args.json { output::print_json(&report(args, name, model, answer)) } else { Ok(()) }
}

fn answer(args: &RunArgs, model: &Model, prompt: &str, params: &TextParams) -> Result<Completion> {
    let (stream, mut printer) = match args.raw {
        true => (model.engine().complete(prompt, params)?, Printer::of_text()),
        false => {
            let mut messages: Vec<Value> =
                args.system.iter().map(|s| json!({"role": "system", "content": s})).collect();
            messages.push(json!({"role": "user", "content": prompt}));
            args.thinking.ask(model, &messages, params, false)?
        }
    };
    let mut failed = None;
    let print = |text: &str| {
        failed = if args.json { None } else { printer.push(text).err() };
        failed.is_none()
    };
    let completion = stream.run(print)?.into_iter().next().context("the engine stopped before an answer")?;
    if let Some(error) = failed {
        return Err(error);
    }
    if !args.json {
        printer.finish()?;
    }
    let (usage, t) = (completion.usage, completion.timings);
    tracing::info!(
        prompt_tokens = usage.prompt_tokens,
        tokens = usage.completion_tokens,
        first_token_ms = t.first_token.as_millis() as u64,
        decode_tok_s = decode_tok_s(usage.completion_tokens, t.decode),
        drafted = usage.drafted_tokens,
        accepted = usage.accepted_tokens,
        "answered"
    );
    Ok(completion)
}

/// Adds to an error about logits which weight is at fault.
fn explain(error: anyhow::Error, source: &dyn TensorSource) -> anyhow::Error {
    let sampling = error.downcast_ref::<realizar_engine::Error>().or_else(|| {
        match error.downcast_ref::<realizar::Error>() {
            Some(realizar::Error::Generate(e)) => Some(e),
            _ => None,
        }
    });
    if !matches!(sampling, Some(realizar_engine::Error::Sample(SampleError::NotFinite { .. }))) {
        return error;
    }
    match find_non_finite(source) {
        Ok(Some((tensor, i))) => error.context(format!(
            "{}: tensor {tensor:?} has a weight that is not a finite number, at element {i}",
            source.path().display()
        )),
        _ => error,
    }
}

fn report(args: &RunArgs, model_arg: &ModelArg, model: &Model, c: &Completion) -> Value {
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let mut report = json!({
        "model": model_arg.to_string(),
        "prompt_tokens": c.usage.prompt_tokens,
        "tokens": c.tokens.iter().map(|t| t.id).collect::<Vec<_>>(),
        "text": c.text,
        "finish_reason": match c.reason {
            FinishReason::Stop { .. } => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        },
        "timings": {
            "load_ms": ms(model.load_time()),
            "prefill_ms": ms(c.timings.prefill),
            "ttft_ms": ms(c.timings.first_token),
            "decode_tok_s": decode_tok_s(c.usage.completion_tokens, c.timings.decode),
        },
    });
    if args.speculation.is_on() || c.usage.drafted_tokens > 0 {
        let (drafted, accepted) = (c.usage.drafted_tokens, c.usage.accepted_tokens);
        report["speculation"] = json!({ "drafted_tokens": drafted, "accepted_tokens": accepted });
    }
    report
}
