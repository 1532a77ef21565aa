//! `realizar inspect`: what a model is, what it takes, and where it can run.

use crate::args::ModelPlace;
#[cfg(feature = "cuda")]
use crate::inspect_kernels;
use crate::license::license;
use crate::model_arg::ModelArg;
use crate::server_models::ServerOptions;
use crate::{inspect_server, output};
use anyhow::{Context, Result};
use clap::Args;
use realizar_compute::sampling::SamplingParams;
use realizar_compute::{DType, Heads, Pooling};
use realizar_engine::load::{Device, Fit, LoadOptions, fit};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source::{Format, TensorSource};
use realizar_model::tokenizer::Tokenizer;
use realizar_model::{EncoderOutput, ModelConfig, SamplingDefaults, StateSpec, arch, sampling_defaults};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelPlace,
    /// Tokens of context to state the memory for; by default the model's own length, at most 4096.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ctx: Option<u32>,
    /// States what each of this many GPUs has to hold that share the model.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    tp: u8,
    /// List the GPU kernel that multiplies with each matrix, by rows of activations (M), instead.
    #[cfg(feature = "cuda")]
    #[arg(long, conflicts_with_all = ["running", "template"])]
    kernels: bool,
    /// Print the chat template alone.
    #[arg(long, conflicts_with = "json")]
    template: bool,
    /// Ask the server at --url about MODEL, or about its first model, instead of looking at files.
    #[arg(long, conflicts_with_all = ["ctx", "tp"])]
    running: bool,
    #[command(flatten)]
    server: ServerOptions,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    model: String,
    format: String,
    name: Option<String>,
    architecture: Option<String>,
    license: Option<String>,
    /// What people call the models of this architecture.
    family: Option<&'static str>,
    /// What the model makes of a text, where that is not more text.
    makes: Option<String>,
    /// Why this program cannot run the architecture.
    unsupported: Option<String>,
    parameters: usize,
    weight_bytes: usize,
    types: Vec<TypeShare>,
    shape: Option<Shape>,
    tokenizer: Option<TokenizerReport>,
    tokenizer_error: Option<String>,
    /// Length of the template in bytes.
    chat_template_bytes: Option<usize>,
    chat_template_error: Option<String>,
    /// How tokens are chosen where nobody says otherwise.
    sampling: Option<Sampling>,
    sampling_error: Option<String>,
    context: usize,
    /// Bytes of keys and values for `context` tokens, by element type.
    cache_bytes: BTreeMap<&'static str, usize>,
    devices: Vec<DeviceReport>,
}

#[derive(Serialize)]
struct TypeShare {
    dtype: &'static str,
    tensors: usize,
    parameters: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Shape {
    n_layers: usize,
    n_draft_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    context_length: usize,
    n_experts: Option<usize>,
    n_experts_used: Option<usize>,
    sliding_window: Option<usize>,
    /// Layers that keep a state of fixed size, and its bytes per sequence, in all of them.
    n_recurrent_layers: usize,
    state_bytes: usize,
}

#[derive(Serialize)]
struct TokenizerReport {
    kind: String,
    n_tokens: usize,
    bos: Option<String>,
    ends: Vec<String>,
    adds_bos: bool,
}

#[derive(Serialize)]
struct Sampling {
    temperature: f32,
    top_k: usize,
    top_p: f32,
    min_p: f32,
    repetition_penalty: f32,
    /// Whether the model's files recommend it.
    recommended: bool,
}

#[derive(Serialize)]
struct DeviceReport {
    device: &'static str,
    description: String,
    runs: bool,
    why: String,
}

/// Element types that a cache can have.
const CACHE_TYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::Q8_0];

pub(crate) fn run(args: &InspectArgs) -> Result<()> {
    if args.running {
        return inspect_server::run(args.model.text(), &args.server, args.template, args.json);
    }
    let source = args.model.get().open()?;
    if args.template {
        let template = ChatTemplate::from_source(&*source, &Tokenizer::from_source(&*source)?)?;
        let template = template.with_context(|| format!("{} has no chat template", args.model.get()))?;
        return output::print(template.source());
    }
    #[cfg(feature = "cuda")]
    if args.kernels {
        let matrices = inspect_kernels::report(&*source);
        return if args.json {
            output::print_json(&matrices)
        } else {
            output::print(inspect_kernels::text(&matrices))
        };
    }
    let report = report(&*source, args.model.get(), args.ctx.map(|n| n as usize), usize::from(args.tp));
    if args.json { output::print_json(&report) } else { output::print(text(&report)) }
}

fn report(source: &dyn TensorSource, model: &ModelArg, ctx: Option<usize>, tp: usize) -> Report {
    let metadata = source.metadata();
    let string = |key: &str| metadata.get_str(key).ok().flatten().map(str::to_owned);
    let architecture = match source.format() {
        Format::Gguf => string("general.architecture"),
        Format::Safetensors => metadata.get_strings("architectures").ok().flatten().map(|a| a.join(", ")),
    };
    let config = arch::configure(source);
    let mut types: BTreeMap<DType, TypeShare> = BTreeMap::new();
    for t in source.tensors() {
        let share = types.entry(t.dtype).or_insert(TypeShare {
            dtype: t.dtype.name(),
            tensors: 0,
            parameters: 0,
            bytes: 0,
        });
        share.tensors += 1;
        share.parameters += t.n_elements();
        share.bytes += t.n_bytes();
    }
    let mut types: Vec<TypeShare> = types.into_values().collect();
    types.sort_by_key(|t| std::cmp::Reverse(t.bytes));
    let weight_bytes = types.iter().map(|t| t.bytes).sum();
    let context = ctx.unwrap_or_else(|| config.as_ref().map_or(4096, |c| c.context_length.min(4096)));
    let mut cache_bytes = BTreeMap::new();
    if let Ok(c) = &config {
        let fitting = CACHE_TYPES.iter().filter(|t| c.head_dim_without_blocks_of(**t).is_none());
        cache_bytes.extend(fitting.map(|t| (t.name(), context * c.kv_bytes_per_token(*t))));
    }
    let (tokenizer, tokenizer_error) = split(Tokenizer::from_source(source));
    let template = tokenizer.as_ref().map(|t| ChatTemplate::from_source(source, t));
    let (template, chat_template_error) = template.map_or((None, None), split);
    let (sampling, sampling_error) = split(sampling_defaults(source));
    let is_encoder = config.as_ref().is_ok_and(|c| c.encoder.is_some());
    let complete = config.as_ref().map_err(ToString::to_string);
    let complete = complete.and_then(|c| realizar_model::check(source, c).map_err(|e| e.to_string()));
    // As `run` and `serve` load it.
    let options = LoadOptions { n_ctx: Some(context), draft_layer: true, ..LoadOptions::default() };
    let on_cpu = LoadOptions { device: Device::Cpu, ..options.clone() };
    let on_gpus = LoadOptions { device: Device::Cuda((0..tp).collect()), tp, ..options };
    Report {
        model: model.to_string(),
        format: source.format().to_string(),
        name: string("general.name").or_else(|| string("_name_or_path")),
        architecture,
        license: license(source),
        family: config.as_ref().ok().and_then(|c| arch::family(c.arch)),
        makes: config.as_ref().ok().and_then(makes),
        parameters: types.iter().map(|t| t.parameters).sum(),
        weight_bytes,
        types,
        shape: config.as_ref().ok().map(shape),
        tokenizer: tokenizer.as_ref().map(|t| tokenizer_report(source, t)),
        tokenizer_error,
        chat_template_bytes: template.flatten().map(|t| t.source().len()),
        chat_template_error,
        sampling: sampling.filter(|_| !is_encoder).map(Sampling::from),
        sampling_error,
        context,
        cache_bytes,
        devices: vec![device_report("cpu", source, &on_cpu), device_report("cuda", source, &on_gpus)],
        unsupported: complete.err(),
    }
}

fn split<T, E: ToString>(result: Result<T, E>) -> (Option<T>, Option<String>) {
    match result {
        Ok(value) => (Some(value), None),
        Err(error) => (None, Some(error.to_string())),
    }
}

/// The sizes of a model, of its widest layer where layers differ.
fn shape(c: &ModelConfig) -> Shape {
    let heads = |of: fn(Heads) -> usize| c.heads().map(of).max().unwrap_or(0);
    Shape {
        n_layers: c.n_main_layers(),
        n_draft_layers: c.n_draft_layers,
        hidden_size: c.hidden_size,
        intermediate_size: c.layers.iter().map(|layer| layer.ffn.intermediate_size()).max().unwrap_or(0),
        n_heads: heads(|h| h.n_heads),
        n_kv_heads: heads(|h| h.n_kv_heads),
        head_dim: heads(|h| h.head_dim),
        vocab_size: c.vocab_size,
        context_length: c.context_length,
        n_experts: c.experts().map(|e| e.n_experts).max(),
        n_experts_used: c.experts().map(|e| e.router.n_used).max(),
        sliding_window: c.attentions().find_map(|a| a.window),
        n_recurrent_layers: c.recurrent_states().count(),
        state_bytes: StateSpec::new(c, DType::F16).slot_bytes,
    }
}

fn tokenizer_report(source: &dyn TensorSource, t: &Tokenizer) -> TokenizerReport {
    let string = |key: &str| source.metadata().get_str(key).ok().flatten();
    let kind = match (string("tokenizer.ggml.model"), string("tokenizer.ggml.pre")) {
        (Some(model), Some(pre)) => format!("{model} ({pre})"),
        (Some(model), None) => model.to_owned(),
        _ => "tokenizer.json".to_owned(),
    };
    let text = |id: u32| t.token_text(id).unwrap_or_default().to_owned();
    TokenizerReport {
        kind,
        n_tokens: t.vocab_size(),
        bos: t.bos().map(text),
        ends: t.eos_ids().iter().map(|&id| text(id)).collect(),
        adds_bos: t.add_bos(),
    }
}

impl From<SamplingDefaults> for Sampling {
    fn from(defaults: SamplingDefaults) -> Self {
        let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, .. } = defaults.params;
        Self { temperature, top_k, top_p, min_p, repetition_penalty, recommended: defaults.are_recommended }
    }
}

impl std::fmt::Display for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { temperature, top_k, top_p, min_p, repetition_penalty, recommended } = self;
        write!(
            f,
            "temperature {temperature}, top-k {top_k}, top-p {top_p}, min-p {min_p}, repetition penalty {repetition_penalty} ({})",
            if *recommended { "the model's own" } else { "realizar's: the model's files recommend none" }
        )
    }
}

/// Whether the model would be loaded with these options.
fn device_report(device: &'static str, source: &dyn TensorSource, options: &LoadOptions) -> DeviceReport {
    let Fit { device: description, free, plan } = match fit(source, options) {
        Ok(fit) => fit,
        Err(why) => {
            let description = "NVIDIA GPU".to_owned();
            return DeviceReport { device, description, runs: false, why: why.to_string() };
        }
    };
    let description = if options.tp > 1 { format!("each of {description}") } else { description };
    let (runs, why) = match plan {
        Ok(plan) => (true, format!("{plan} with an F16 cache, and {} are free", bytes(free))),
        Err(why) => (false, why.to_string()),
    };
    DeviceReport { device, description, runs, why }
}

fn bytes(n: usize) -> String {
    let (n, kib) = (n as f64, 1024.0);
    match n {
        n if n >= kib * kib * kib => format!("{:.2} GiB", n / kib / kib / kib),
        n if n >= kib * kib => format!("{:.1} MiB", n / kib / kib),
        n => format!("{:.1} KiB", n / kib),
    }
}

fn count(n: usize) -> String {
    match n as f64 {
        n if n >= 1e9 => format!("{:.2} billion", n / 1e9),
        n if n >= 1e6 => format!("{:.2} million", n / 1e6),
        n => format!("{n}"),
    }
}

/// What an encoder makes of a text.
fn makes(c: &ModelConfig) -> Option<String> {
    let encoder = c.encoder.as_ref()?;
    let pooling = match encoder.pooling {
        Pooling::Mean => "the mean of all tokens",
        Pooling::First => "the first token",
        Pooling::Last => "the last token",
    };
    Some(match encoder.output {
        EncoderOutput::Embedding { .. } => {
            format!("embeddings of {} numbers, from {pooling}", encoder.output_len(c.hidden_size))
        }
        EncoderOutput::Score | EncoderOutput::YesNo => {
            format!("scores of a query with a document (reranker), from {pooling}")
        }
    })
}

fn text(r: &Report) -> String {
    let mut out = String::new();
    let mut line =
        |key: &str, value: String| writeln!(out, "{key:<14} {value}").expect("a string takes text");
    line("model", r.model.clone());
    if let Some(name) = &r.name {
        line("name", name.clone());
    }
    line("format", r.format.clone());
    line("architecture", r.architecture.clone().unwrap_or_else(|| "not stated".into()));
    if let Some(family) = r.family {
        line("family", family.to_owned());
    }
    if let Some(license) = &r.license {
        line("licence", license.clone());
    }
    if let Some(makes) = &r.makes {
        line("makes", makes.clone());
    }
    line("parameters", count(r.parameters));
    line("weights", bytes(r.weight_bytes));
    for t in &r.types {
        let share = 100.0 * t.bytes as f64 / r.weight_bytes.max(1) as f64;
        line("", format!("{:<6} {:>5} tensors {:>15} {share:>5.1} %", t.dtype, t.tensors, bytes(t.bytes)));
    }
    if let Some(s) = &r.shape {
        let drafts = if s.n_draft_layers > 0 { ", and one that drafts tokens (MTP)" } else { "" };
        line(
            "layers",
            format!("{} of width {} and {}{drafts}", s.n_layers, s.hidden_size, s.intermediate_size),
        );
        if let (Some(n), Some(used)) = (s.n_experts, s.n_experts_used) {
            line("experts", format!("{n}, of which {used} per token"));
        }
        line(
            "heads",
            format!("{} of {} elements, {} for keys and values", s.n_heads, s.head_dim, s.n_kv_heads),
        );
        line("context", format!("{} tokens", s.context_length));
        if let Some(window) = s.sliding_window {
            line("window", format!("{window} tokens"));
        }
        if s.n_recurrent_layers > 0 {
            let state = bytes(s.state_bytes);
            line("recurrent", format!("{} layers, {state} of state per sequence", s.n_recurrent_layers));
        }
    }
    match (&r.tokenizer, &r.tokenizer_error) {
        (Some(t), _) => {
            line("tokenizer", format!("{}, {} tokens", t.kind, t.n_tokens));
            if let Some(bos) = &t.bos {
                line("begins with", format!("{bos:?}{}", if t.adds_bos { "" } else { ", not added" }));
            }
            line("ends with", t.ends.iter().map(|e| format!("{e:?}")).collect::<Vec<_>>().join(", "));
        }
        (None, error) => line("tokenizer", error.clone().unwrap_or_default()),
    }
    line(
        "template",
        match (r.chat_template_bytes, &r.chat_template_error) {
            (_, Some(error)) => error.clone(),
            (Some(n), None) => format!("{n} bytes"),
            (None, None) => "none".into(),
        },
    );
    match (&r.sampling, &r.sampling_error) {
        (_, Some(error)) => line("sampling", error.clone()),
        (Some(sampling), None) => line("sampling", sampling.to_string()),
        (None, None) => {}
    }
    for (dtype, n) in &r.cache_bytes {
        line("cache", format!("{} for {} tokens in {dtype}", bytes(*n), r.context));
    }
    for d in &r.devices {
        line(
            d.device,
            format!("{}: {} ({})", if d.runs { "runs" } else { "does not run" }, d.why, d.description),
        );
    }
    out
}
