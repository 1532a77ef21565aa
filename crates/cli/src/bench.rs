//! `realizar bench`: tokens per second of a model or an encoder on its device.

use crate::args::{ModelPlace, SynthSpec};
use crate::bench_serve::BenchServeArgs;
use crate::load::{RunnerOptions, SpeculationOptions};
use crate::{bench_serve, output, profile, progress, speculation};
use anyhow::{Result, bail, ensure};
use clap::{Args, Subcommand, ValueHint};
use realizar_compute::cpu::bandwidth::ReadTest;
use realizar_compute::cpu::threads::Pool;
use realizar_engine::bench::{Bench, Work};
use realizar_engine::encoder::{EncodeRunner, EncoderEngine, Encoding};
use realizar_engine::load::{CacheSize, LoadOptions, load, load_encoder};
use realizar_model::arch;
use realizar_model::source::TensorSource;
use realizar_model::synth::Synth;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    #[command(flatten)]
    model: ModelPlace,
    /// Random weights at a known shape instead of a model, such as llama-3.2-1b:q4_k_m.
    #[arg(long, value_name = "SHAPE:QUANT", conflicts_with_all = ["model", "named"])]
    synth: Option<SynthSpec>,
    /// Prompt lengths, in tokens; 0 leaves prefill out.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "512")]
    prompt: Vec<usize>,
    /// Tokens to generate; 0 leaves decode out.
    #[arg(long, value_name = "N", default_value_t = 64)]
    r#gen: usize,
    /// Sequences side by side.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    batch: Vec<usize>,
    /// Tokens in the cache before decode begins.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "0")]
    depth: Vec<usize>,
    /// Most tokens of one step; longer prompts take several [default: 512 on the CPU, 2048 on a GPU].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    step_tokens: Option<u32>,
    /// Runs of each measurement, after one that does not count.
    #[arg(long, value_name = "R", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Shows where the time goes, and writes a trace that Perfetto opens.
    #[arg(long, value_name = "TRACE.json", num_args = 0..=1, default_missing_value = "realizar-trace.json",
          value_hint = ValueHint::FilePath)]
    profile: Option<PathBuf>,
    /// Answers these texts with and without guesses instead: a file of JSON lines with "prompt" or "turns", or of a text a line.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["synth", "profile"])]
    prompts: Option<PathBuf>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    runner: RunnerOptions,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measure a running server under load: a trace of real arrivals, or many clients at once.
    Serve(BenchServeArgs),
}

#[derive(Serialize)]
struct Report {
    model: String,
    device: String,
    threads: usize,
    weight_bytes: usize,
    bytes_per_token: usize,
    /// Read bandwidth: what the device tells of its memory, or the median of what the CPU's threads read before and after each repeat.
    /// 0 for encoders, which are bound by arithmetic.
    peak_gb_s: f64,
    results: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<profile::Profile>,
}

#[derive(Serialize)]
struct Row {
    kind: &'static str,
    /// Of one sequence.
    tokens: usize,
    batch: usize,
    depth: usize,
    tok_s: f64,
    tok_s_min: f64,
    tok_s_max: f64,
    /// Weights and cache that decode reads; nothing is stated for prefill, which is bound by arithmetic.
    gb_s: Option<f64>,
    /// Of the read bandwidth; on the CPU the median over repeats, each beside what was read right before and after it.
    share: Option<f64>,
}

impl Row {
    /// From what each repeat took.
    fn of(kind: &'static str, [tokens, batch, depth]: [usize; 3], mut seconds: Vec<f64>) -> Self {
        seconds.sort_by(f64::total_cmp);
        let rate = |s: f64| (tokens * batch) as f64 / s;
        Row {
            kind,
            tokens,
            batch,
            depth,
            tok_s: rate(seconds[seconds.len() / 2]),
            tok_s_min: rate(seconds[seconds.len() - 1]),
            tok_s_max: rate(seconds[0]),
            gb_s: None,
            share: None,
        }
    }
}

/// The read bandwidth that decoding is held against, in bytes per second.
enum Bandwidth {
    /// As the device tells.
    Known(f64),
    /// Of a CPU, whose memory others may use too, so that it has to be measured beside each repeat: all that was measured yet.
    Measured { pool: Pool, test: ReadTest, all: Vec<f64> },
}

impl Bandwidth {
    /// `known`: in bytes per second, where the device tells.
    fn of(known: Option<u64>, n_threads: usize) -> Result<Self> {
        Ok(match known {
            Some(bytes) => Self::Known(bytes as f64),
            None => {
                let pool = Pool::new(n_threads);
                Self::Measured { test: ReadTest::new(&pool)?, pool, all: Vec::new() }
            }
        })
    }

    fn now(&mut self) -> f64 {
        match self {
            Bandwidth::Known(speed) => *speed,
            Bandwidth::Measured { pool, test, all } => {
                all.push(test.bytes_per_second(pool));
                all[all.len() - 1]
            }
        }
    }

    fn median(&self) -> f64 {
        match self {
            Bandwidth::Known(speed) => *speed,
            Bandwidth::Measured { all, .. } => median(all.clone()),
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

pub(crate) fn run(args: &BenchArgs) -> Result<()> {
    if let Some(BenchCommand::Serve(args)) = &args.command {
        return bench_serve::run(args);
    }
    let max_batch = args.batch.iter().copied().max().unwrap_or(1).max(1);
    match (&args.prompts, args.speculation.is_on()) {
        (None, false) => speed(args, max_batch),
        (Some(file), true) => {
            let texts = speculation::Texts { file, batch: max_batch, n_tokens: args.r#gen };
            let ((name, source), options) = (open(args)?, args.runner.load_options(None));
            speculation::run(name, &*source, &options, &args.speculation, texts, args.json)
        }
        (None, true) => {
            let ((name, source), options) = (open(args)?, args.runner.load_options(Some(COSTS_CONTEXT)));
            speculation::costs(name, &*source, options, &args.speculation, args.json)
        }
        (Some(_), false) => {
            bail!("texts are for measuring guesses: add --speculate mtp, --speculate ngram or --draft MODEL")
        }
    }
}

/// Context in which it is measured what guesses cost, in tokens.
const COSTS_CONTEXT: usize = 512;

/// The model, or the shape that stands for it, and its name.
fn open(args: &BenchArgs) -> Result<(String, Box<dyn TensorSource>)> {
    Ok(match args.synth {
        Some(spec) => (
            format!("{}:{} (random weights)", spec.shape.name, spec.mix.name),
            Box::new(Synth::new(spec.shape, spec.mix, 1, args.runner.threads.or_all_cores())?),
        ),
        None => (args.model.get().to_string(), args.model.get().open()?),
    })
}

/// What to measure, in order.
fn works(args: &BenchArgs) -> Result<Vec<Work>> {
    let mut works: Vec<Work> =
        args.prompt.iter().filter(|&&n| n > 0).map(|&n_tokens| Work::Prefill { n_tokens }).collect();
    if args.r#gen > 0 {
        works.extend(args.depth.iter().map(|&depth| Work::Decode { n_tokens: args.r#gen, depth }));
    }
    match works.is_empty() {
        true => bail!("nothing to measure: --prompt and --gen are both 0"),
        false => Ok(works),
    }
}

/// Measures prefill and decode in tokens per second.
fn speed(args: &BenchArgs, max_batch: usize) -> Result<()> {
    let works = works(args)?;
    let longest = works.iter().map(|w| match *w {
        Work::Prefill { n_tokens } => n_tokens,
        Work::Decode { n_tokens, depth } => n_tokens + depth,
    });
    let n_ctx = longest.max().unwrap_or(1);
    let mut options = args.runner.load_options(Some(n_ctx));
    options.cache = CacheSize::Tokens(n_ctx.next_multiple_of(options.block_size) * max_batch);
    options.max_seqs = Some(max_batch);
    options.step_tokens = args.step_tokens.map(|n| n as usize);
    let (name, source) = open(args)?;
    if arch::configure(&*source)?.encoder.is_some() {
        return encoder_speed(args, name, &*source, &options);
    }
    let mut model = load(&*source, &options)?;
    let mut report = Report {
        model: name,
        device: model.device.clone(),
        threads: model.n_threads,
        weight_bytes: model.weights.total,
        bytes_per_token: model.weights.per_step,
        peak_gb_s: 0.0,
        results: Vec::new(),
        profile: Vec::new(),
    };
    let mut measuring = Measuring {
        bandwidth: Bandwidth::of(model.memory_bandwidth, model.n_threads)?,
        bytes_per_token: model.weights.per_step,
        kv_bytes: model.config.kv_bytes_per_token(options.kv_type),
        repeat: args.repeat.into(),
    };
    let mut trace = profile::Trace::default();
    let mut bench = Bench::new(&mut *model.runner);
    let bar = progress::measurements_bar(works.len() * args.batch.len());
    for &work in &works {
        for &batch in &args.batch {
            if !bench.fits(work, batch) {
                bail!("{work:?} with {batch} sequences does not fit the limits of a step or the cache");
            }
            bar.set_message(match work {
                Work::Prefill { n_tokens } => format!("prompt of {n_tokens} × {batch}"),
                Work::Decode { n_tokens, depth } => format!("{n_tokens} tokens × {batch} behind {depth}"),
            });
            let row = measuring.measure(&mut bench, work, batch)?;
            bar.inc(1);
            if args.profile.is_some() {
                let (duration, times) = bench.profile(work, batch)?;
                let name = format!("{} of {} × {batch} at {}", row.kind, row.tokens, row.depth);
                trace.add(&name, &times);
                report.profile.push(profile::Profile::new(name, duration, row.tokens * batch, &times));
            }
            report.results.push(row);
        }
    }
    bar.finish_and_clear();
    report.peak_gb_s = measuring.bandwidth.median() / 1e9;
    if let Some(path) = &args.profile {
        trace.write(path)?;
        tracing::info!(file = %path.display(), "trace written");
    }
    if args.json { output::print_json(&report) } else { output::print(table(&report)) }
}

/// Measures how fast an encoder turns texts of `--prompt` tokens, `--batch` of them at once, into vectors or scores.
fn encoder_speed(
    args: &BenchArgs,
    name: String,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<()> {
    let options = LoadOptions { max_seqs: None, ..options.clone() };
    let mut model = load_encoder(source, &options, None)?;
    let n_vocab = model.runner.info().vocab_size;
    let texts = |tokens: usize, batch: usize| -> Vec<Vec<u32>> {
        let id = |text: usize, i: usize| ((text * 31 + i * 7 + 1) % n_vocab) as u32;
        (0..batch).map(|text| (0..tokens).map(|i| id(text, i)).collect()).collect()
    };
    let lens = args.prompt.iter().filter(|&&n| n > 0);
    let works: Vec<_> =
        lens.flat_map(|&tokens| args.batch.iter().map(move |&batch| (tokens, batch))).collect();
    ensure!(!works.is_empty(), "nothing to measure: --prompt is 0");
    let mut profiles = Vec::new();
    if let Some(path) = &args.profile {
        let mut trace = profile::Trace::default();
        for &(tokens, batch) in &works {
            profiles.push(encoder_profile(&mut *model.runner, texts(tokens, batch), &mut trace)?);
        }
        trace.write(path)?;
        tracing::info!(file = %path.display(), "trace written");
    }
    let engine = EncoderEngine::start(model.runner, usize::MAX)?;
    let client = engine.client();
    let mut results = Vec::new();
    for (tokens, batch) in works {
        client.encode(texts(tokens, batch))?.wait()?;
        let mut seconds = Vec::new();
        for _ in 0..args.repeat {
            let (texts, start) = (texts(tokens, batch), Instant::now());
            client.encode(texts)?.wait()?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        results.push(Row::of("encode", [tokens, batch, 0], seconds));
    }
    let report = Report {
        model: name,
        device: model.device,
        threads: args.runner.threads.or_all_cores(),
        weight_bytes: source.tensors().iter().map(|t| t.n_bytes()).sum(),
        bytes_per_token: 0,
        peak_gb_s: 0.0,
        results,
        profile: profiles,
    };
    if args.json { output::print_json(&report) } else { output::print(table(&report)) }
}

/// Where the time of one step goes, with as many of these texts as it holds.
fn encoder_profile(
    runner: &mut dyn EncodeRunner,
    texts: Vec<Vec<u32>>,
    trace: &mut profile::Trace,
) -> Result<profile::Profile> {
    let (tokens, info) = (texts[0].len(), runner.info());
    ensure!(tokens <= info.max_tokens, "a text may have {} tokens, not {tokens}", info.max_tokens);
    let n_texts = (info.step_tokens / tokens).clamp(1, info.max_seqs).min(texts.len());
    let texts: Vec<Encoding> = texts.into_iter().take(n_texts).map(Encoding::from).collect();
    let (texts, mut rows): (Vec<&Encoding>, _) = (texts.iter().collect(), Vec::new());
    runner.encode(&texts, &mut rows)?;
    runner.profile(true);
    let start = Instant::now();
    let outcome = runner.encode(&texts, &mut rows);
    let duration = start.elapsed();
    let times = runner.take_profile();
    runner.profile(false);
    outcome?;
    let name = format!("encode of {tokens} × {n_texts}");
    trace.add(&name, &times);
    Ok(profile::Profile::new(name, duration, tokens * n_texts, &times))
}

/// How one work is measured, and what it is held against.
struct Measuring {
    bandwidth: Bandwidth,
    /// Weights that a step reads.
    bytes_per_token: usize,
    /// Keys and values of one token.
    kv_bytes: usize,
    repeat: usize,
}

impl Measuring {
    /// The median of `repeat` runs, after one to warm up.
    fn measure(&mut self, bench: &mut Bench<'_>, work: Work, batch: usize) -> Result<Row> {
        bench.run(work, batch)?;
        let (kind, tokens, depth) = match work {
            Work::Prefill { n_tokens } => ("prefill", n_tokens, 0),
            Work::Decode { n_tokens, depth } => ("decode", n_tokens, depth),
        };
        // Each step reads the weights once and each sequence's cache once; on average the cache is half filled by then.
        let step_bytes = self.bytes_per_token + batch * (depth + tokens / 2) * self.kv_bytes;
        let bytes = (step_bytes * tokens) as f64;
        let (mut seconds, mut shares) = (Vec::new(), Vec::new());
        let mut before = self.bandwidth.now();
        for _ in 0..self.repeat {
            let taken = bench.run(work, batch)?.as_secs_f64();
            let after = self.bandwidth.now();
            // Half of the bytes at either speed.
            shares.push((0.5 / before + 0.5 / after) * bytes / taken);
            seconds.push(taken);
            before = after;
        }
        let decodes = kind == "decode";
        let middle = median(seconds.clone());
        Ok(Row {
            gb_s: decodes.then(|| bytes / middle / 1e9),
            share: decodes.then(|| median(shares)),
            ..Row::of(kind, [tokens, batch, depth], seconds)
        })
    }
}

fn table(r: &Report) -> String {
    let bandwidth = match r.peak_gb_s {
        0.0 => String::new(),
        speed => format!(", read bandwidth {speed:.1} GB/s"),
    };
    let mut out = format!(
        "{}\n{}\nweights {:.1} MiB{bandwidth}\n\n{:>8} {:>7} {:>6} {:>6} {:>10} {:>19} {:>14}\n",
        r.model,
        r.device,
        r.weight_bytes as f64 / (1 << 20) as f64,
        "kind",
        "tokens",
        "batch",
        "depth",
        "tok/s",
        "min … max",
        "GB/s (share)"
    );
    for row in &r.results {
        let gb_s = row.gb_s.zip(row.share);
        let gb_s = gb_s.map_or(String::new(), |(g, share)| format!("{g:.1} ({:.0} %)", share * 100.0));
        let spread = format!("{:.1} … {:.1}", row.tok_s_min, row.tok_s_max);
        out += &format!(
            "{:>8} {:>7} {:>6} {:>6} {:>10.1} {spread:>19} {gb_s:>14}\n",
            row.kind, row.tokens, row.batch, row.depth, row.tok_s
        );
    }
    r.profile.iter().for_each(|p| out += &p.table());
    out
}
