//! `realizar serve`: a model behind HTTP.

use crate::args::ModelPlace;
use crate::kv_events::KvEventsOptions;
use crate::load::{RunnerOptions, SpeculationOptions, TemplateOption, warn_of_long_context};
use crate::output;
use anyhow::{Result, bail};
use clap::Args;
use realizar::SamplingParams;
use realizar_compute::DType;
use realizar_engine::load::{self, CacheSize, LoadOptions, load};
use realizar_engine::{Engine, EngineConfig, TextEngine};
use realizar_model::sampling_hints;
use realizar_model::source::{Format, TensorSource};
use realizar_model::tokenizer::Tokenizer;
use realizar_server::{Config, Ended, LoadedModel, ModelFacts, Models, Server, TextModel};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelPlace,
    /// Name or address to listen at; 0.0.0.0 takes requests from everywhere. May be given several times.
    #[arg(long, default_value = "127.0.0.1")]
    host: Vec<String>,
    /// Port to listen at; 0 takes any free one.
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Name under which clients ask for the model; may be given several times. By default its own.
    #[arg(long, value_name = "NAME")]
    served_name: Vec<String>,
    /// Key that clients must show; may be given several times. By default nobody is asked.
    #[arg(long, value_name = "KEY", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// Clients with different keys share no cached prefixes.
    #[arg(long, requires = "api_key")]
    salt_by_key: bool,
    /// Origin whose web pages may use the server, or *; may be given several times.
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// Name by which clients may address the server, besides localhost; may be given several times. Without it, all names are answered,
    /// except on loopback without --api-key.
    #[arg(long, value_name = "NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    allowed_host: Vec<String>,

    /// Longest sequence of prompt and answer, in tokens; by default the model's own, or less where memory is short.
    #[arg(long, alias = "ctx-size", short_alias = 'c', value_name = "N")]
    ctx: Option<usize>,
    #[command(flatten)]
    template: TemplateOption,
    /// Memory for keys and values, such as 4G; by default enough for --max-seqs whole sequences, but at most nine tenths of
    /// what is left of a GPU's memory, or 1G on the CPU unless one sequence needs more.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    kv_memory: Option<usize>,
    /// Tokens in a block of keys and values.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    block_size: usize,
    /// Sequences that are computed at the same time [default: 64 on the CPU, 256 on a GPU].
    #[arg(long, value_name = "N", value_parser = positive)]
    max_seqs: Option<usize>,
    /// Tokens of a step at most: how much of a long prompt may come between two tokens of others [default: 512 on the CPU, 2048 on a
    /// GPU].
    #[arg(long, value_name = "N", value_parser = positive)]
    step_tokens: Option<usize>,
    /// Sequences that may wait; further requests are refused with 429.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_queue: usize,
    /// Computes every prompt anew.
    #[arg(long)]
    no_prefix_cache: bool,
    /// How much waiting one step of a request's priority is worth.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    priority_step: Duration,

    /// Size of a request at most.
    #[arg(long, value_name = "SIZE", default_value = "8M", value_parser = size)]
    max_body: usize,
    /// Memory for the bodies of all requests that are still arriving.
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size)]
    body_memory: usize,
    /// How long a client may take to send the headers of a request, and again its body.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    read_timeout: Duration,
    /// How long a client may read nothing of its answer.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    write_timeout: Duration,
    /// Connections at one time; more wait to be accepted.
    #[arg(long, value_name = "N", default_value_t = 16384, value_parser = positive)]
    max_connections: usize,
    /// Objects of JSON schemas that do not mention additionalProperties may have further properties, as the standard says.
    #[arg(long)]
    open_schemas: bool,
    /// Memory for responses of /v1/responses that later requests may go on after; 0 stores none.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size)]
    response_memory: usize,
    /// Leaves the line x-anthropic-billing-header in the system prompts of Claude Code; it differs from request to request, so that no
    /// prefix of a prompt is found in the cache.
    #[arg(long)]
    keep_billing_header: bool,
    /// How long compiling the format of one answer (a schema, pattern, grammar or tools) may take.
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    format_timeout: Duration,
    /// How long one step may take on the device before /health says that the engine is stuck; where faster ones were seen, less.
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    longest_step: Duration,
    /// How long SIGTERM or Ctrl-C lets answers finish; a second one ends at once.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    drain_seconds: Duration,
    /// End at once when stdin ends: for programs that start a server for themselves.
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    #[command(flatten)]
    kv_events: KvEventsOptions,
    #[command(flatten)]
    runner: RunnerOptions,
    #[command(flatten)]
    speculation: SpeculationOptions,
}

pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.until_stdin_ends {
        std::thread::spawn(|| {
            drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
            std::process::exit(0);
        });
    }
    let source = args.model.get().open()?;
    let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
    let template = Some(args.template.template(&*source, &tokenizer)?);
    let sampling = sampling(&*source)?;
    let options = load_options(args);
    let loaded = load(&*source, &options)?;
    warn_of_long_context(args.ctx, &loaded.config);
    let about = about(&loaded, &options);
    let facts = facts(&*source, &loaded);
    let engine_config = EngineConfig {
        max_seqs: loaded.runner.info().limits.n_seqs,
        step_tokens: args.step_tokens,
        max_queue: args.max_queue,
        prefix_cache: !args.no_prefix_cache,
        priority_step: args.priority_step,
        stall_timeout: args.write_timeout,
        longest_step: args.longest_step,
        max_drafts: args.speculation.max_drafts(),
        ..EngineConfig::default()
    };
    let proposer = args.speculation.proposer(&*source, &options)?;
    let client = Engine::start_speculating(loaded.runner, proposer, engine_config)?;
    args.kv_events.publish(&client)?;
    let engine = TextEngine::new(client, tokenizer, template);
    let config = Config {
        hosts: args.host.clone(),
        port: args.port,
        api_keys: args.api_key.clone(),
        salt_by_key: args.salt_by_key,
        cors: args.cors.clone(),
        allowed_hosts: args.allowed_host.clone(),
        max_body: args.max_body,
        body_memory: args.body_memory,
        drain: args.drain_seconds,
        header_timeout: args.read_timeout,
        body_timeout: args.read_timeout,
        write_timeout: args.write_timeout,
        max_connections: args.max_connections,
        open_schemas: args.open_schemas,
        response_memory: args.response_memory,
        keep_billing_header: args.keep_billing_header,
        format_timeout: args.format_timeout,
    };
    let names = names(args);
    let name = names.join(", ");
    let models = Models::one(names, LoadedModel::Text(TextModel { engine, facts, sampling }))?;
    let server = Server::bind(models, config)?;
    let urls: Vec<String> = server.addresses().iter().map(|address| format!("http://{address}")).collect();
    let line = format!("{name} is ready at {}: {about}\n", urls.join(" and "));
    output::note(&line);
    match server.run()? {
        Ended::Drained => Ok(()),
        Ended::AtOnce => bail!("stopped at once, as told by a second signal"),
    }
}

/// How tokens are chosen where a request does not say: as the model's files recommend, else the model's own distribution, which is
/// what OpenAI's API does.
fn sampling(source: &dyn TensorSource) -> Result<SamplingParams> {
    Ok(sampling_hints(source)?.over(SamplingParams::default())?)
}

fn load_options(args: &ServeArgs) -> LoadOptions {
    LoadOptions {
        kv_memory: args.kv_memory,
        cache: CacheSize::AllSequences,
        block_size: args.block_size,
        step_tokens: args.step_tokens,
        max_seqs: args.max_seqs,
        max_guesses: args.speculation.max_guesses(args.max_seqs),
        ..args.runner.load_options(args.ctx)
    }
}

/// What clients may ask about the model.
fn facts(source: &dyn TensorSource, loaded: &load::LoadedModel) -> ModelFacts {
    let tensors = source.tensors();
    let mut types: Vec<(DType, usize)> = Vec::new();
    for tensor in tensors {
        match types.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
            Some((_, n)) => *n += tensor.n_elements(),
            None => types.push((tensor.dtype, tensor.n_elements())),
        }
    }
    let metadata = source.metadata();
    let family = match source.format() {
        Format::Gguf => metadata.get_str("general.architecture").ok().flatten(),
        Format::Safetensors => metadata.get_str("model_type").ok().flatten(),
    };
    let most = types.iter().max_by_key(|(_, n)| *n);
    ModelFacts {
        format: source.format().to_string().to_lowercase(),
        family: family.unwrap_or_default().to_owned(),
        n_parameters: tensors.iter().map(|tensor| tensor.n_elements() as u64).sum(),
        quantization: most.map_or_else(String::new, |(dtype, _)| dtype.to_string()),
        size: tensors.iter().map(|tensor| tensor.n_bytes() as u64).sum(),
        gpu_size: loaded.memory.weights as u64,
    }
}

/// What is worth knowing about a model that is ready.
fn about(loaded: &load::LoadedModel, options: &LoadOptions) -> String {
    let (info, memory) = (loaded.runner.info(), loaded.memory);
    let mut text = format!(
        "{} in {:.1} s, context of {} tokens, cache of {} tokens ({} MiB of {})",
        loaded.device,
        loaded.load_time.as_secs_f64(),
        info.max_seq_len(),
        info.cache_tokens(),
        memory.cache >> 20,
        options.kv_type
    );
    if memory.weights > 0 {
        text += &format!(", weights {} MiB, workspace {} MiB", memory.weights >> 20, memory.workspace >> 20);
    }
    if let Some(why) = &loaded.no_gpu {
        text += &format!("; no GPU: {why}");
    }
    text
}

fn names(args: &ServeArgs) -> Vec<String> {
    if !args.served_name.is_empty() {
        return args.served_name.clone();
    }
    vec![args.model.get().served_name()]
}

/// A number of bytes: 4096, 512K, 100M, 4G; KiB, MiB and GiB are the same units.
fn size(text: &str) -> Result<usize, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let shift = match text[end..].to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("expected a number of bytes such as 512M or 4G".to_owned()),
    };
    let number: f64 = text[..end].parse().map_err(|_| "expected a number of bytes such as 512M or 4G")?;
    let bytes = number * (1u64 << shift) as f64;
    if bytes >= 1.0 && bytes < (1u64 << 60) as f64 {
        Ok(bytes as usize)
    } else {
        Err("expected at least 1 byte".to_owned())
    }
}

pub(crate) fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number of at least 1".to_owned())
}

fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(number).map_err(|e| e.to_string()).and_then(|d| match d.as_secs() {
        // Later than that, times could not be added up.
        0..=31_536_000 => Ok(d),
        _ => Err("expected at most a year".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_the_usual_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("1k", 1024),
            ("1.5M", 3 << 19),
            ("2G", 2 << 30),
            ("3GiB", 3 << 30),
            ("1mb", 1 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in ["", "G", "-1", "1x", "0", "1e9", "9999999999T"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn seconds_are_bounded() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["", "-1", "NaN", "inf", "1e30", "1e9"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
