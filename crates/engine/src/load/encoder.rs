//! From a file to an encoder on its device.

use super::memory_plan::MemoryPlan;
use super::{Device, LoadError, LoadOptions};
use crate::encoder::{EncodeRunner, EncoderSizes, ModelEncoder};
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions, threads};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::Cuda;
use realizar_compute::{Backend, Pooling, Rank};
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::Tokenizer;
use realizar_model::{Decoder, EncoderOutput, ModelConfig, Shard, arch, workspace_bytes};

/// The longest text, in tokens, where nobody asks for more: a step's buffers are made for it.
const MAX_TOKENS: usize = 8192;

/// Tokens of a step on the CPU, where nothing else is asked for: its activations stay in the caches.
const CPU_STEP_TOKENS: StepTokens = StepTokens { most: 512, least: 512 };
/// Tokens of a step on a GPU, where nothing else is asked for. Fewer do not fill it; more are hardly faster, and others wait longer for a
/// step's end.
#[cfg(feature = "cuda")]
const GPU_STEP_TOKENS: StepTokens = StepTokens { most: 65_536, least: 16_384 };
/// A step's buffers take no more than one part in so many of the free memory, if fewer tokens than usual can see to that.
const BUFFERS_SHARE: usize = 16;

/// How many tokens a step may have.
#[derive(Clone, Copy)]
struct StepTokens {
    most: usize,
    least: usize,
}

impl StepTokens {
    /// The most, halved until the buffers are small. `buffers`: bytes of those for so many tokens; `free`: bytes.
    fn choose(self, free: usize, buffers: impl Fn(usize) -> usize) -> usize {
        let mut n = self.most;
        while n > self.least && buffers(n) > free / BUFFERS_SHARE {
            n = (n / 2).max(self.least);
        }
        n
    }
}

/// Texts of a step, where nothing else is asked for.
const MAX_SEQS: usize = 256;

/// An encoder on its device, and what is worth knowing about it.
pub struct LoadedEncoder {
    /// Runs it.
    pub runner: Box<dyn EncodeRunner>,
    /// Its description.
    pub config: ModelConfig,
    /// The device in words.
    pub device: String,
}

/// Brings an encoder to its device. Of the options, those about the cache of several sequences and about guesses have no meaning here.
/// `pooling`: instead of the model's own.
///
/// Errors: [`LoadError`], also for a model that is no encoder. Nothing stays allocated after an error.
pub fn load_encoder(
    source: &dyn TensorSource,
    options: &LoadOptions,
    pooling: Option<Pooling>,
) -> Result<LoadedEncoder, LoadError> {
    let mut config = arch::configure(source)?;
    let is_reranker =
        config.encoder.as_ref().is_some_and(|e| !matches!(e.output, EncoderOutput::Embedding { .. }));
    if options.reranker && !is_reranker {
        arch::make_yes_no(&mut config, source, yes_and_no(source)?)?;
    }
    let Some(encoder) = &mut config.encoder else {
        return Err(LoadError::NotAnEncoder { arch: config.arch });
    };
    if let Some(pooling) = pooling {
        if !matches!(encoder.output, EncoderOutput::Embedding { .. }) {
            let reason = "a reranker pools as its classifier was trained".into();
            let value = format!("{pooling:?}").to_lowercase();
            return Err(LoadError::Option { option: "--pooling", value, reason });
        }
        encoder.pooling = pooling;
    }
    if options.tp > 1 {
        let reason = "an encoder runs on one device".into();
        return Err(LoadError::Option { option: "--tp", value: options.tp.to_string(), reason });
    }
    let gpu = match &options.device {
        Device::Cpu => return on_cpu(source, config, options),
        Device::Auto => 0,
        Device::Cuda(list) => list.first().copied().unwrap_or(0),
    };
    match on_gpu(source, config.clone(), options, gpu) {
        Err(why) if options.device == Device::Auto => {
            match why {
                LoadError::Device { absent: true, .. } => tracing::info!("running on the CPU: {why}"),
                _ => tracing::warn!("running on the CPU: {why}"),
            }
            on_cpu(source, config, options)
        }
        loaded => loaded,
    }
}

/// The tokens of both answers.
fn yes_and_no(source: &dyn TensorSource) -> Result<[u32; 2], LoadError> {
    let tokenizer = Tokenizer::from_source(source)?;
    let token = |answer: &str| {
        tokenizer.id_of(answer).ok_or_else(|| LoadError::Option {
            option: "--reranker",
            value: "true".into(),
            reason: format!("the model has no token {answer:?}"),
        })
    };
    Ok([token("yes")?, token("no")?])
}

fn on_cpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedEncoder, LoadError> {
    let n_threads = if options.n_threads == 0 { threads::default_threads() } else { options.n_threads };
    let cpu =
        Cpu::new(CpuOptions { n_threads, isa: Isa::best(), exact: options.exact, repack: options.repack });
    // The weights are pages of the file, or take their place.
    load_on(cpu, source, config, options, CPU_STEP_TOKENS, 0)
}

#[cfg(not(feature = "cuda"))]
fn on_gpu(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    gpu: usize,
) -> Result<LoadedEncoder, LoadError> {
    let reason = "this build has no CUDA backend".into();
    Err(LoadError::Device { device: Device::Cuda(vec![gpu]), reason, absent: true })
}

#[cfg(feature = "cuda")]
fn on_gpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    gpu: usize,
) -> Result<LoadedEncoder, LoadError> {
    let device = || Device::Cuda(vec![gpu]);
    let mut gpus = Cuda::group(&[gpu], options.mode()).map_err(|e| LoadError::Device {
        device: device(),
        absent: matches!(e, realizar_compute::Error::NoDevice { .. }),
        reason: e.to_string(),
    })?;
    let cuda = gpus.remove(0);
    config.check_device(&cuda).map_err(|e| LoadError::Device {
        device: device(),
        reason: e.to_string(),
        absent: false,
    })?;
    let weights = source.tensors().iter().map(|t| t.n_bytes()).sum();
    load_on(cuda, source, config, options, GPU_STEP_TOKENS, weights)
}

/// `step_tokens`: where nothing else is asked for. `weights`: bytes that the device will have of them.
fn load_on<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    step_tokens: StepTokens,
    weights: usize,
) -> Result<LoadedEncoder, LoadError> {
    options.check()?;
    let max_tokens = match options.n_ctx {
        Some(n) if n > config.context_length => {
            let reason = format!("the model has {} positions", config.context_length);
            return Err(LoadError::Option { option: "--ctx", value: n.to_string(), reason });
        }
        Some(n) => n,
        None => config.context_length.min(MAX_TOKENS),
    };
    let sizes_of = |step_tokens: usize| EncoderSizes {
        max_tokens,
        step_tokens: step_tokens.max(max_tokens),
        max_seqs: options.max_seqs.unwrap_or(MAX_SEQS),
        kv_type: options.kv_type,
        block_size: options.block_size,
    };
    let shard = Shard::new(&config, source, Rank { index: 0, count: 1 }, options.exact)?;
    let heads = config.attentions().next().map_or(0, |a| 2 * a.own_heads().n_kv_heads * a.heads.head_dim);
    let plan_of = |sizes: &EncoderSizes| MemoryPlan {
        weights,
        cache: sizes.n_blocks() * sizes.block_size * options.kv_type.bytes_for(heads).unwrap_or(4 * heads),
        workspace: workspace_bytes(&shard, &sizes.limits()).saturating_add(backend.scratch_bytes()),
    };
    let free = backend.memory().free;
    let buffers = |n| {
        let plan = plan_of(&sizes_of(n));
        plan.cache.saturating_add(plan.workspace)
    };
    let sizes = sizes_of(options.step_tokens.unwrap_or_else(|| step_tokens.choose(free, buffers)));
    let plan = plan_of(&sizes);
    if plan.total() > free {
        let remedy = "what fits: a smaller --ctx or fewer --step-tokens".into();
        let (context, kv_type) = (max_tokens, options.kv_type);
        return Err(LoadError::Memory { context, kv_type, plan, free, remedy });
    }
    let model = Decoder::load(&backend, source, config.clone(), max_tokens)?;
    backend.synchronize().map_err(realizar_model::Error::from)?;
    if options.repack {
        source.release();
    }
    let device = backend.describe();
    let runner = Box::new(ModelEncoder::new(backend, model, sizes)?);
    tracing::info!(device, max_tokens, "encoder ready");
    Ok(LoadedEncoder { runner, config, device })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_smaller_where_memory_is_scarce() {
        let range = StepTokens { most: 64, least: 16 };
        // A byte for each token.
        let choose = |free: usize| range.choose(free, |n| n);
        let chosen = [usize::MAX, 64 * 16, 64 * 16 - 1, 32 * 16, 32 * 16 - 1, 0].map(choose);
        assert_eq!(chosen, [64, 64, 32, 32, 16, 16]);
        assert_eq!(StepTokens { most: 512, least: 512 }.choose(0, |n| n), 512);
        assert_eq!(StepTokens { most: 64, least: 48 }.choose(0, |n| n), 48);
    }
}
