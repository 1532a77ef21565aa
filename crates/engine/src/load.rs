//! From a file to a running model: the one place that chooses a device.

use crate::Runner;
use crate::model_runner::{ModelRunner, RunnerSizes};
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions, threads};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::{Cuda, CudaOptions};
use realizar_compute::{Backend, DType};
use realizar_model::source::TensorSource;
use realizar_model::{Decoder, ModelConfig, WeightBytes, arch};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best device that can hold the model.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            None if s == "auto" => Ok(Self::Auto),
            None if s == "cpu" => Ok(Self::Cpu),
            None if s == "cuda" => Ok(Self::Cuda(0)),
            Some(("cuda", n)) => {
                n.parse().map(Self::Cuda).map_err(|_| format!("{n:?} is not the number of a GPU"))
            }
            _ => Err(format!("{s:?} is not one of auto, cpu, cuda, cuda:N")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
        }
    }
}

/// Tokens of a step on the CPU, where nothing else is asked for.
pub const CPU_STEP_TOKENS: usize = 512;
/// Tokens of a step on a GPU, where nothing else is asked for: smaller products do not fill it.
pub const GPU_STEP_TOKENS: usize = 2048;

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where it runs. Default: [`Device::Auto`].
    pub device: Device,
    /// Longest sequence, in tokens; `None`: the model's own, or less where the cache cannot hold it. Default `None`.
    pub n_ctx: Option<usize>,
    /// Tokens that the cache holds at least, all sequences together; `None`: one sequence of `n_ctx`. Default `None`.
    pub cache_tokens: Option<usize>,
    /// Size of the cache in bytes, all sequences together; `None` follows `cache_tokens`. Default `None`.
    pub kv_memory: Option<usize>,
    /// Element type of the cache. Default `F16`.
    pub kv_type: DType,
    /// Tokens of a cache block. Default 32.
    pub block_size: usize,
    /// Tokens of a step; `None`: [`CPU_STEP_TOKENS`] or [`GPU_STEP_TOKENS`]. Default `None`.
    pub step_tokens: Option<usize>,
    /// Sequences of a step. Default 64.
    pub max_seqs: usize,
    /// Rows of logits of a step. Default 64.
    pub max_logits: usize,
    /// Threads of the CPU backend; 0: as many as the machine has cores. Default 0.
    pub n_threads: usize,
    /// Products with activations as they are, so that every device and batch gives the same tokens. Default false.
    pub exact: bool,
    /// Copies weights into the layout that products read fastest. Default true.
    pub repack: bool,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: Device::Auto,
            n_ctx: None,
            cache_tokens: None,
            kv_memory: None,
            kv_type: DType::F16,
            block_size: 32,
            step_tokens: None,
            max_seqs: 64,
            max_logits: 64,
            n_threads: 0,
            exact: false,
            repack: true,
        }
    }
}

/// A model on its device, ready to run, and what is worth knowing about it.
pub struct LoadedModel {
    /// Runs it.
    pub runner: Box<dyn Runner>,
    /// Its description.
    pub config: ModelConfig,
    /// The device in words.
    pub device: String,
    /// Why no GPU is used, in one line, where [`Device::Auto`] did not find one that can.
    pub no_gpu: Option<String>,
    /// Threads of the CPU backend.
    pub n_threads: usize,
    /// Sizes of the weights on the device.
    pub weights: WeightBytes,
    /// Size of the cache on the device, in bytes.
    pub cache_bytes: usize,
    /// From the opened file to here.
    pub load_time: Duration,
}

/// Why a model could not be brought to its device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file, its weights, or the device's memory.
    #[error(transparent)]
    Model(#[from] realizar_model::Error),
    /// The device is not there or cannot run this model.
    #[error("could not use device {device}: {reason}")]
    Device {
        /// As it was asked for.
        device: Device,
        /// Why not.
        reason: String,
    },
    /// An option contradicts the model.
    #[error("{option} of {value} cannot be: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What was given.
        value: String,
        /// Why not.
        reason: String,
    },
}

/// Brings a model to its device.
///
/// Errors: [`LoadError`]. Nothing stays allocated after an error.
pub fn load(source: &dyn TensorSource, options: &LoadOptions) -> Result<LoadedModel, LoadError> {
    let start = Instant::now();
    let config = arch::configure(source)?;
    let mut loaded = match options.device {
        Device::Cpu => load_on_cpu(source, config, options)?,
        Device::Cuda(n) => load_on_gpu(source, config, options, n)?,
        Device::Auto => match load_on_gpu(source, config.clone(), options, 0) {
            Ok(loaded) => loaded,
            // What is wrong with the file shows again on the CPU.
            Err(why) => {
                tracing::info!("running on the CPU: {why}");
                LoadedModel { no_gpu: Some(why.to_string()), ..load_on_cpu(source, config, options)? }
            }
        },
    };
    loaded.load_time = start.elapsed();
    tracing::info!(device = loaded.device, load_ms = loaded.load_time.as_millis() as u64, "model ready");
    Ok(loaded)
}

fn load_on_cpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let n_threads = if options.n_threads == 0 { threads::default_threads() } else { options.n_threads };
    let cpu =
        Cpu::new(CpuOptions { n_threads, isa: Isa::best(), exact: options.exact, repack: options.repack });
    let n_threads = cpu.options().n_threads;
    load_on(cpu, source, config, options, n_threads, CPU_STEP_TOKENS)
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpu(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    n: usize,
) -> Result<LoadedModel, LoadError> {
    Err(LoadError::Device { device: Device::Cuda(n), reason: "this build has no CUDA backend".into() })
}

#[cfg(feature = "cuda")]
fn load_on_gpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    n: usize,
) -> Result<LoadedModel, LoadError> {
    let refused = |reason| LoadError::Device { device: Device::Cuda(n), reason };
    let gpu =
        Cuda::new(CudaOptions { device: n, exact: options.exact }).map_err(|e| refused(e.to_string()))?;
    gpu.check_heads(config.heads).map_err(|e| refused(e.to_string()))?;
    // Before anything is uploaded.
    let (weights, free) = (source.tensors().iter().map(|t| t.n_bytes()).sum::<usize>(), gpu.memory().free);
    if weights > free {
        return Err(refused(format!(
            "the weights take {} MiB, and {} MiB of {}'s memory are free: {} MiB are missing; use a smaller type",
            weights >> 20,
            free >> 20,
            gpu.describe(),
            (weights - free).div_ceil(1 << 20)
        )));
    }
    load_on(gpu, source, config, options, 1, GPU_STEP_TOKENS)
}

fn load_on<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    n_threads: usize,
    step_tokens: usize,
) -> Result<LoadedModel, LoadError> {
    let step_tokens = options.step_tokens.unwrap_or(step_tokens);
    let sizes = sizes(&config, options, step_tokens, backend.memory().free)?;
    let device = backend.describe();
    let model = Decoder::load(&backend, source, config.clone(), sizes.context_length)?;
    let weights = model.weight_bytes(&backend);
    if options.repack {
        source.release();
    }
    let runner = ModelRunner::new(backend, model, &sizes)?;
    let cache_bytes = sizes.n_blocks * sizes.block_size * config.kv_bytes_per_token(sizes.kv_type);
    tracing::info!(
        tokens = sizes.n_blocks * sizes.block_size,
        bytes = cache_bytes,
        kv_type = %sizes.kv_type,
        "cache of keys and values ready"
    );
    Ok(LoadedModel {
        runner: Box::new(runner),
        config,
        device,
        no_gpu: None,
        n_threads,
        weights,
        cache_bytes,
        load_time: Duration::ZERO,
    })
}

/// How many blocks the cache gets and how long a sequence can be.
fn sizes(
    config: &ModelConfig,
    options: &LoadOptions,
    step_tokens: usize,
    free: usize,
) -> Result<RunnerSizes, LoadError> {
    let invalid = |option, value: String, reason: String| Err(LoadError::Option { option, value, reason });
    let head_dim = config.heads.head_dim;
    if !head_dim.is_multiple_of(options.kv_type.block_len()) {
        let reason =
            format!("heads of {head_dim} elements are not whole blocks of {}", options.kv_type.block_len());
        return invalid("--kv-type", options.kv_type.to_string(), reason);
    }
    if let Some(0) = options.n_ctx {
        return invalid("--ctx", "0".into(), "a context holds at least one token".into());
    }
    if let Some(n) = options.n_ctx.filter(|_| config.learned_positions).filter(|&n| n > config.context_length)
    {
        let reason = format!("the model has learned {} positions", config.context_length);
        return invalid("--ctx", n.to_string(), reason);
    }
    let per_token = config.kv_bytes_per_token(options.kv_type).max(1);
    let wanted = options.n_ctx.unwrap_or(config.context_length);
    let given = options.kv_memory.map(|bytes| bytes / per_token / options.block_size * options.block_size);
    if let (Some(bytes), Some(tokens)) = (options.kv_memory, given) {
        let least = options.n_ctx.unwrap_or(options.block_size);
        if tokens < least {
            let reason = format!(
                "it holds {tokens} tokens in blocks of {}, and {least} are wanted; a token takes {per_token} bytes in {}",
                options.block_size, options.kv_type
            );
            return invalid("--kv-memory", format!("{bytes} bytes"), reason);
        }
    }
    let n_ctx = match (options.n_ctx, given) {
        (Some(n), _) => n,
        (None, Some(tokens)) => wanted.min(tokens),
        // Without a wish, the cache takes at most half of what is free: the weights may still be on their way.
        (None, None) => wanted.min((free / 2 / per_token).max(options.block_size)),
    };
    let tokens = given.unwrap_or(options.cache_tokens.unwrap_or(n_ctx).max(n_ctx));
    let n_blocks = tokens.div_ceil(options.block_size);
    if (n_blocks * options.block_size).checked_mul(per_token).is_none_or(|b| b > free) {
        let reason = format!(
            "its cache of keys and values takes {} MiB in {}, and {} MiB are free; use a shorter context or a smaller type",
            tokens.saturating_mul(per_token) >> 20,
            options.kv_type,
            free >> 20
        );
        return match options.kv_memory {
            Some(bytes) => invalid("--kv-memory", format!("{bytes} bytes"), reason),
            None => invalid("--ctx", tokens.to_string(), reason),
        };
    }
    Ok(RunnerSizes {
        n_blocks,
        block_size: options.block_size,
        kv_type: options.kv_type,
        context_length: n_ctx,
        step_tokens,
        max_seqs: options.max_seqs,
        max_logits: options.max_logits,
    })
}
