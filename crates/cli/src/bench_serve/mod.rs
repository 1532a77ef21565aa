//! `realizar bench serve`: a server under load, by a trace of real arrivals or by a number of clients.
//!
//! `workload` plans requests from a `trace` or from numbers, `drive` sends them through `client`, and what they measured becomes a
//! `report`: a table, JSON, or a page (`html`), beside that of an earlier run (`compare`).

mod client;
mod compare;
mod drive;
mod html;
mod report;
mod run_info;
mod sse;
mod stats;
mod trace;
mod workload;

use crate::args::KeyOption;
use crate::{output, progress};
use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use clap::{Args, ValueHint};
use client::Client;
use drive::{Pace, drive};
use hyper::Method;
use report::{LongPrompt, Objective, Report};
use run_info::RunInfo;
use serde::Deserialize;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use workload::{Planned, Random};

/// Words from which prompts are made.
const N_WORDS: usize = 4000;

#[derive(Debug, Args)]
pub(crate) struct BenchServeArgs {
    /// The server; only plain http is spoken.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_hint = ValueHint::Url)]
    url: String,
    #[command(flatten)]
    key: KeyOption,
    /// Model to ask for; by default the first that the server lists.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Sends requests at the times of this trace: CSV with TIMESTAMP, ContextTokens and GeneratedTokens, as Azure publishes it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    trace: Option<PathBuf>,
    /// Requests to send: the first of the trace.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    requests: u32,
    /// Multiplies the lengths in the trace; by default the longest is made to fit the server's context.
    #[arg(long, value_name = "X", requires = "trace", value_parser = factor)]
    length_scale: Option<f64>,
    /// Multiplies the times between arrivals: 0.5 is twice as fast.
    #[arg(long, value_name = "X", requires = "trace", default_value = "1", value_parser = factor)]
    time_scale: f64,
    /// Without a trace: requests at one time; the next is sent when one has ended.
    #[arg(long, value_name = "N", default_value_t = 16, conflicts_with = "trace",
          value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,
    /// Without a trace: tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 128, conflicts_with = "trace",
          value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: u32,
    /// Without a trace: tokens of each answer.
    #[arg(long, value_name = "N", default_value_t = 64, conflicts_with = "trace",
          value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// The first N tokens of all prompts are the same, so that a prefix cache helps.
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_tokens: u32,
    /// Without a trace: also sends one prompt of this many tokens while the others run, and says how long they wait meanwhile.
    #[arg(long, value_name = "N", conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(1..))]
    long_prompt: Option<u32>,
    /// When that is sent, in seconds after the start.
    #[arg(long, value_name = "SECONDS", default_value = "2", requires = "long_prompt", value_parser = factor)]
    long_after: f64,
    /// Objective: time to the first token.
    #[arg(long, value_name = "MS", default_value = "1000", value_parser = factor)]
    slo_ttft_ms: f64,
    /// Objective: time between tokens, on average over an answer.
    #[arg(long, value_name = "MS", default_value = "100", value_parser = factor)]
    slo_itl_ms: f64,
    /// A request fails when it has not ended by then.
    #[arg(long, value_name = "SECONDS", default_value = "600", value_parser = factor)]
    timeout: f64,
    /// Another seed makes other prompts.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Also write a page with plots.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Compares with an earlier run, which --json printed to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    compare: Option<PathBuf>,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(x) if x > 0.0 && x <= 1e9 => Ok(x),
        _ => Err("expected a number above 0".to_owned()),
    }
}

pub(crate) fn run(args: &BenchServeArgs) -> Result<()> {
    // One thread is enough for hundreds of streams, and leaves the others to a server on the same machine.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let before = args.compare.as_deref().map(earlier).transpose()?;
    let report = runtime.block_on(measure(args))?;
    if let Some(path) = &args.html {
        let page = html::page(&report.0, &report.1, before.as_ref());
        output::write_file(path, |mut out| {
            out.write_all(page.as_bytes())?;
            Ok(out)
        })?;
    }
    let report = report.0;
    let compared = before.map_or(String::new(), |before| compare::table(&before, &report));
    if args.json { output::print_json(&report) } else { output::print(report.table() + &compared) }?;
    ensure!(report.requests.answered > 0, "no request was answered: {}", report.errors[0].message);
    Ok(())
}

/// The report of an earlier run.
fn earlier(path: &Path) -> Result<Report> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{name} is not what `bench serve --json` of this version prints"))
}

#[derive(Deserialize)]
struct ServerVersion {
    version: String,
}

#[derive(Deserialize)]
struct Models {
    data: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    id: String,
    /// Not every server says it.
    #[serde(default)]
    max_model_len: Option<usize>,
}

#[derive(Deserialize)]
struct Tokens {
    tokens: Vec<u32>,
}

async fn measure(args: &BenchServeArgs) -> Result<(Report, Vec<drive::Record>)> {
    let client = Arc::new(Client::new(&args.url, args.key.get()?.as_deref()).map_err(|e| anyhow!(e))?);
    let models: Models =
        client.json(Method::GET, "/v1/models", Bytes::new()).await.map_err(|e| anyhow!(e))?;
    let model = match &args.model {
        Some(name) => models.data.into_iter().find(|m| m.id == *name),
        None => models.data.into_iter().next(),
    };
    let model = model.with_context(|| match &args.model {
        Some(name) => format!("the server has no model {name:?}"),
        None => "the server has no model".to_owned(),
    })?;
    let (planned, pace, workload) = plan(args, model.max_model_len)?;

    let mut random = Random(args.seed);
    let words = json!({ "model": model.id, "prompt": random.words(N_WORDS), "add_special_tokens": false });
    let words = client.json::<Tokens>(Method::POST, "/tokenize", words.to_string().into()).await;
    let words = words.map_err(|e| anyhow!("could not make prompts by /tokenize: {e}"))?.tokens;
    ensure!(!words.is_empty(), "/tokenize made no tokens of a text");
    let shared: Vec<u32> = (0..args.shared_tokens).map(|_| words[random.below(words.len())]).collect();
    let mut body = |prompt_tokens: usize, output_tokens: usize| {
        let shared = shared.iter().copied().take(prompt_tokens);
        let own = prompt_tokens.saturating_sub(shared.len());
        let prompt: Vec<u32> = shared.chain((0..own).map(|_| words[random.below(words.len())])).collect();
        let body = json!({
            "model": model.id, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": true, "seed": args.seed,
            "stream": true, "stream_options": { "include_usage": true },
        });
        Bytes::from(body.to_string())
    };
    // One that does not count: it finds out whether the server takes such requests, and wakes what sleeps.
    let timeout = Duration::from_secs_f64(args.timeout);
    let trial = client.complete(body(4, 2), Instant::now(), timeout).await;
    if let Some(error) = trial.error {
        return Err(anyhow!("a first, small request failed: {error}"));
    }
    let requests = planned.iter().map(|p| (*p, body(p.prompt_tokens, p.output_tokens))).collect();
    let beside = match args.long_prompt {
        None => None,
        Some(n) => {
            let long = Planned {
                at: Duration::from_secs_f64(args.long_after),
                ..workload::uniform(1, n as usize, 1, model.max_model_len)?[0]
            };
            Some((long, body(long.prompt_tokens, long.output_tokens)))
        }
    };
    let bar = progress::requests_bar(planned.len());
    let (records, beside) = drive(client.clone(), requests, beside, pace, timeout, bar.clone()).await;
    bar.finish_and_clear();
    let objective = Objective { first_token_ms: args.slo_ttft_ms, inter_token_ms: args.slo_itl_ms };
    // vLLM's path, and Ollama's, which this program's server has.
    let mut version = client.json::<ServerVersion>(Method::GET, "/version", Bytes::new()).await;
    if version.is_err() {
        version = client.json(Method::GET, "/api/version", Bytes::new()).await;
    }
    let run = RunInfo::now(version.ok().map(|v| v.version));
    let mut report = Report::new(run, client.url(), model.id, workload, objective, &records);
    report.long_prompt = beside.map(|long| LongPrompt::new(&long, &records));
    Ok((report, records))
}

/// What to send to a server with a context of `limit` tokens, and how.
fn plan(args: &BenchServeArgs, limit: Option<usize>) -> Result<(Vec<Planned>, Pace, report::Workload)> {
    let n = args.requests as usize;
    let Some(path) = &args.trace else {
        let (prompt, output) = (args.prompt_tokens as usize, args.max_tokens as usize);
        let planned = workload::uniform(n, prompt, output, limit)?;
        let concurrency = usize::from(args.concurrency);
        let workload = report::Workload {
            description: format!(
                "{n} requests of {prompt} tokens for {output} tokens each, {concurrency} at one time"
            ),
            length_scale: None,
            time_scale: None,
            concurrency: Some(concurrency),
            seed: args.seed,
        };
        return Ok((planned, Pace::Closed { concurrency }, workload));
    };
    let rows = trace::read(path, n)?;
    let (length_scale, why) = match (args.length_scale, limit) {
        (Some(scale), _) => (scale, String::new()),
        (None, Some(limit)) => match workload::fitting_scale(&rows, limit) {
            1.0 => (1.0, String::new()),
            scale => (scale, format!(" so that the longest fits the context of {limit} tokens")),
        },
        (None, None) => (1.0, " because the server does not say its context".to_owned()),
    };
    let planned = workload::scale(&rows, length_scale, args.time_scale, limit)?;
    let mean = |f: fn(&Planned) -> usize| planned.iter().map(f).sum::<usize>() as f64 / planned.len() as f64;
    let span = planned.last().map_or(0.0, |p| p.at.as_secs_f64());
    let file = path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy());
    let description = format!(
        "the first {} requests of {file} over {span:.1} s, on average {:.0} tokens for {:.0} tokens; lengths × {:.4}{why}, \
         times × {}",
        planned.len(),
        mean(|p| p.prompt_tokens),
        mean(|p| p.output_tokens),
        length_scale,
        args.time_scale
    );
    let workload = report::Workload {
        description,
        length_scale: Some(length_scale),
        time_scale: Some(args.time_scale),
        concurrency: None,
        seed: args.seed,
    };
    Ok((planned, Pace::Open, workload))
}
