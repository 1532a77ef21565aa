//! A model that is served: its options, and the way from them to an engine.

use super::{positive, seconds, size};
use crate::args::RARE;
use crate::kv_events::KvEventsOptions;
use crate::license::license;
use crate::load::{RunnerOptions, SpeculationOptions, TemplateOption, warn_of_long_context};
use crate::model_arg::ModelArg;
use anyhow::{Context, Result};
use clap::Args;
use realizar_compute::DType;
use realizar_engine::encoder::{EncoderEngine, TextEncoder};
use realizar_engine::load::{self, CacheSize, Device, LoadOptions, load};
use realizar_engine::{Engine, EngineConfig, SavedCache, TextEngine};
use realizar_model::source::{Format, TensorSource};
use realizar_model::tokenizer::Tokenizer;
use realizar_model::{arch, fingerprint, sampling_defaults};
use realizar_server::{EncoderModel, LoadedModel, ModelFacts, TextModel};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Options of a model that is served; each of several may have its own.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Context, cache and steps")]
pub(crate) struct ModelOptions {
    /// Longest sequence of prompt and answer, in tokens; by default the model's own, or less where memory is short.
    #[arg(long, alias = "ctx-size", short_alias = 'c', value_name = "N")]
    ctx: Option<usize>,
    #[command(flatten)]
    template: TemplateOption,
    /// Memory for keys and values, such as 4G; by default enough for --max-seqs whole sequences, but at most nine tenths of
    /// what is left of a GPU's memory, or 1G on the CPU unless one sequence needs more.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    kv_memory: Option<usize>,
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
    /// Folder for cached prefixes: they are written there when the server ends and read when it starts.
    #[arg(long, value_name = "DIR", conflicts_with = "no_prefix_cache")]
    cache_dir: Option<PathBuf>,
    /// What the files of --cache-dir may take; the prefixes used last are kept.
    #[arg(long, value_name = "SIZE", default_value = "8G", requires = "cache_dir", value_parser = size)]
    cache_dir_size: usize,
    #[command(flatten)]
    speculation: SpeculationOptions,
    #[command(flatten)]
    kv_events: KvEventsOptions,
    #[command(flatten)]
    runner: RunnerOptions,
    /// Read a Qwen3 as Qwen3-Reranker, where its files do not say that it is one.
    #[arg(long, help_heading = RARE, hide_short_help = true)]
    reranker: bool,
    /// Tokens in a block of keys and values.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "N", default_value_t = 32, value_parser = positive)]
    block_size: usize,
    /// How much waiting one step of a request's priority is worth.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    priority_step: Duration,
    /// How long one step may take on the device before /health says that the engine is stuck; where faster ones were seen, less.
    #[arg(long, help_heading = RARE, hide_short_help = true, value_name = "SECONDS", default_value = "120", value_parser = seconds)]
    longest_step: Duration,
}

/// A model that is ready, and what is worth knowing about it.
pub(super) struct Ready {
    pub(super) model: LoadedModel,
    /// A line on its device, then one on its sizes.
    pub(super) about: Vec<String>,
}

impl ModelOptions {
    /// Longest sequence that is asked for, in tokens.
    pub(super) fn ctx(&self) -> Option<usize> {
        self.ctx
    }

    /// Brings the model to its device. `stall_timeout`: how long a client may read nothing of its answer. `cache_share`: models that
    /// share what memory is left for caches. `device`: instead of the one that the options name.
    pub(super) fn load(
        &self,
        model: &ModelArg,
        stall_timeout: Duration,
        cache_share: usize,
        device: Option<Device>,
    ) -> Result<Ready> {
        let source = model.open()?;
        let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
        if self.reranker || arch::configure(&*source)?.encoder.is_some() {
            return self.load_encoder(&*source, tokenizer, device);
        }
        let template = Some(self.template.template(&*source, &tokenizer)?);
        let sampling = sampling_defaults(&*source)?.params;
        let mut options = self.load_options();
        options.cache_share = cache_share;
        options.device = device.unwrap_or(options.device);
        let loaded = load(&*source, &options)?;
        warn_of_long_context(self.ctx, &loaded.config);
        let about = about(&loaded, &options);
        let facts = ModelFacts { gpu_size: loaded.memory.weights as u64, ..facts(&*source) };
        let config = EngineConfig {
            max_seqs: loaded.runner.info().limits.n_seqs,
            step_tokens: self.step_tokens,
            max_queue: self.max_queue,
            prefix_cache: !self.no_prefix_cache,
            saved_cache: self.saved_cache(&*source, &loaded)?,
            priority_step: self.priority_step,
            stall_timeout,
            longest_step: self.longest_step,
            max_drafts: self.speculation.max_drafts(),
            ..EngineConfig::default()
        };
        let proposer = self.speculation.proposer(&*source, &options)?;
        let client = Engine::start_speculating(loaded.runner, proposer, config)?;
        self.kv_events.publish(&client)?;
        let engine = TextEngine::new(client, tokenizer, template);
        Ok(Ready { model: LoadedModel::Text(TextModel { engine, facts, sampling }), about })
    }

    /// The same for a model that embeds texts. Options of caches, drafts and templates have no meaning for it.
    fn load_encoder(
        &self,
        source: &dyn TensorSource,
        tokenizer: Arc<Tokenizer>,
        device: Option<Device>,
    ) -> Result<Ready> {
        let mut options = self.load_options();
        options.device = device.unwrap_or(options.device);
        options.reranker = self.reranker;
        let loaded = load::load_encoder(source, &options, None)?;
        let engine = EncoderEngine::start(loaded.runner, self.max_queue)?;
        let encoder = TextEncoder::new(engine.client(), tokenizer, source)?;
        let info = encoder.client().info();
        let about = vec![loaded.device, format!("texts of up to {} tokens", info.max_tokens)];
        Ok(Ready {
            model: LoadedModel::Encoder(EncoderModel { engine, encoder, facts: facts(source) }),
            about,
        })
    }

    /// Where cached prefixes are kept from one process to the next.
    fn saved_cache(
        &self,
        source: &dyn TensorSource,
        loaded: &load::LoadedModel,
    ) -> Result<Option<SavedCache>> {
        let Some(folder) = &self.cache_dir else { return Ok(None) };
        let what = || format!("could not use --cache-dir {}", folder.display());
        std::fs::create_dir_all(folder).with_context(what)?;
        Ok(Some(SavedCache {
            folder: folder.clone(),
            max_bytes: self.cache_dir_size as u64,
            model: fingerprint(source, &loaded.config)?,
        }))
    }

    pub(super) fn load_options(&self) -> LoadOptions {
        self.speculation.load_options(LoadOptions {
            kv_memory: self.kv_memory,
            cache: CacheSize::AllSequences,
            block_size: self.block_size,
            step_tokens: self.step_tokens,
            max_seqs: self.max_seqs,
            ..self.runner.load_options(self.ctx)
        })
    }
}

/// What clients may ask about the model, before it is loaded.
pub(super) fn facts(source: &dyn TensorSource) -> ModelFacts {
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
        gpu_size: 0,
        license: license(source).unwrap_or_default(),
    }
}

/// What is worth knowing about a model that is ready.
fn about(loaded: &load::LoadedModel, options: &LoadOptions) -> Vec<String> {
    let (info, memory) = (loaded.runner.info(), loaded.memory);
    let mut device = format!("{}, loaded in {:.1} s", loaded.device, loaded.load_time.as_secs_f64());
    if let Some(why) = &loaded.no_gpu {
        device += &format!("; no GPU: {why}");
    }
    let mut sizes = format!(
        "context of {} tokens, cache of {} tokens ({} MiB of {})",
        info.max_seq_len(),
        info.cache_tokens(),
        memory.cache >> 20,
        options.kv_type
    );
    if memory.weights > 0 {
        sizes += &format!(", weights {} MiB, workspace {} MiB", memory.weights >> 20, memory.workspace >> 20);
    }
    vec![device, sizes]
}
