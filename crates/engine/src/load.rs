//! From a file to a running model: the one place that chooses a device.

use crate::Runner;
use crate::model_runner::{ModelRunner, RunnerSizes};
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions, threads};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::Cuda;
use realizar_compute::{Backend, DType, Rank};
use realizar_model::source::TensorSource;
use realizar_model::{Decoder, ModelConfig, Shard, WeightBytes, arch, names};
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best device that can hold the model.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The NVIDIA GPUs of these numbers; several share the model.
    Cuda(Vec<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            None if s == "auto" => Ok(Self::Auto),
            None if s == "cpu" => Ok(Self::Cpu),
            None if s == "cuda" => Ok(Self::Cuda(vec![0])),
            Some(("cuda", list)) => {
                let number = |n: &str| n.parse().map_err(|_| format!("{n:?} is not the number of a GPU"));
                list.split(',').map(number).collect::<Result<_, _>>().map(Self::Cuda)
            }
            _ => Err(format!("{s:?} is not one of auto, cpu, cuda, cuda:N, cuda:N,M")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                write!(f, "cuda:{}", list.join(","))
            }
        }
    }
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where it runs. Default: [`Device::Auto`].
    pub device: Device,
    /// Devices that share the model, each with a part of every weight (tensor parallelism): as many GPUs, from the first that
    /// `device` names on, or exactly those where it names several. Default 1.
    pub tp: usize,
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
    /// Tokens of a step. Default 512.
    pub step_tokens: usize,
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
            tp: 1,
            n_ctx: None,
            cache_tokens: None,
            kv_memory: None,
            kv_type: DType::F16,
            block_size: 32,
            step_tokens: 512,
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
    /// Sizes of the weights on all devices together.
    pub weights: WeightBytes,
    /// Size of the cache on all devices together, in bytes.
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
    let mut loaded = match gpus(options)? {
        None => load_on_cpu(source, config, options)?,
        // Several GPUs were asked for, so something else will not do.
        Some(gpus) if options.device != Device::Auto || gpus.len() > 1 => {
            load_on_gpus(source, config, options, &gpus)?
        }
        Some(gpus) => match load_on_gpus(source, config.clone(), options, &gpus) {
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

/// The GPUs that the options ask for; `None`: the CPU.
fn gpus(options: &LoadOptions) -> Result<Option<Vec<usize>>, LoadError> {
    let tp = options.tp;
    let invalid = |reason: String| LoadError::Option { option: "--tp", value: tp.to_string(), reason };
    if tp == 0 {
        return Err(invalid("a model needs one device at least".into()));
    }
    match &options.device {
        Device::Cpu => Ok(None),
        Device::Auto => Ok(Some((0..tp).collect())),
        Device::Cuda(list) => match list[..] {
            [first] => Ok(Some((first..first + tp).collect())),
            _ if tp == 1 || tp == list.len() => Ok(Some(list.clone())),
            _ => Err(invalid(format!("--device names {} GPUs", list.len()))),
        },
    }
}

fn load_on_cpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let n_threads = if options.n_threads == 0 { threads::default_threads() } else { options.n_threads };
    let cpu_options =
        CpuOptions { n_threads, isa: Isa::best(), exact: options.exact, repack: options.repack };
    let cpus = match options.tp {
        1 => vec![Cpu::new(cpu_options)],
        n => Cpu::group(n, cpu_options),
    };
    let n_threads = cpus.iter().map(|cpu| cpu.options().n_threads).sum();
    // They share one memory.
    let free = cpus[0].memory().free / cpus.len();
    load_on(cpus, free, source, config, options, n_threads)
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpus(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    let device = Device::Cuda(gpus.to_vec());
    Err(LoadError::Device { device, reason: "this build has no CUDA backend".into() })
}

#[cfg(feature = "cuda")]
fn load_on_gpus(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    let refused = |reason| LoadError::Device { device: Device::Cuda(gpus.to_vec()), reason };
    let gpus = Cuda::group(gpus, options.exact).map_err(|e| refused(e.to_string()))?;
    gpus[0].check_heads(config.heads).map_err(|e| refused(e.to_string()))?;
    let fullest = gpus.iter().min_by_key(|gpu| gpu.memory().free).expect("a group has members");
    // Before anything is uploaded.
    let (weights, free) = (weights_per_device(source, gpus.len()), fullest.memory().free);
    if weights > free {
        return Err(refused(format!(
            "the weights take {} MiB{}, and {} MiB of {}'s memory are free: {} MiB are missing; use a smaller type or \
             more GPUs (--tp)",
            weights >> 20,
            if gpus.len() > 1 { " on each GPU" } else { "" },
            free >> 20,
            fullest.describe(),
            (weights - free).div_ceil(1 << 20)
        )));
    }
    load_on(gpus, free, source, config, options, 1)
}

/// About how many bytes of a model's weights each of `n` devices holds: its share, and all of the embedding, which is not shared.
pub fn weights_per_device(source: &dyn TensorSource, n: usize) -> usize {
    let all: usize = source.tensors().iter().map(|t| t.n_bytes()).sum();
    if n == 1 {
        return all;
    }
    let embed = names::file_name(source, "embed", None, None, "weight");
    all.div_ceil(n) + embed.and_then(|name| source.find(&name)).map_or(0, |t| t.n_bytes())
}

/// `free`: bytes of memory that each backend may use.
fn load_on<B: Backend>(
    backends: Vec<B>,
    free: usize,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    n_threads: usize,
) -> Result<LoadedModel, LoadError> {
    let count = backends.len();
    let mut kv_bytes = Vec::with_capacity(count);
    for index in 0..count {
        let shard = Shard::new(&config, source, Rank { index, count }, options.exact)?;
        kv_bytes.push(shard.config().kv_bytes_per_token(options.kv_type));
    }
    let sizes = sizes(&config, options, free, kv_bytes.iter().copied().max().unwrap_or(0))?;
    let device = match count {
        1 => backends[0].describe(),
        _ => format!("{count} × {}", backends[0].describe()),
    };
    let load = |backend: &B| Decoder::load(backend, source, config.clone(), sizes.context_length);
    // Side by side, since each has its own way to its device.
    let models = std::thread::scope(|scope| {
        let rest: Vec<_> = backends[1..].iter().map(|b| scope.spawn(move || load(b))).collect();
        let first = load(&backends[0]);
        let rest = rest.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        std::iter::once(first).chain(rest).collect::<realizar_model::Result<Vec<_>>>()
    })?;
    let mut weights = WeightBytes { total: 0, per_step: 0 };
    for (backend, model) in backends.iter().zip(&models) {
        let part = model.weight_bytes(backend);
        weights.total += part.total;
        weights.per_step += part.per_step;
    }
    if options.repack {
        source.release();
    }
    let runner = ModelRunner::new(backends.into_iter().zip(models).collect(), &sizes)?;
    let cache_bytes = sizes.n_blocks * sizes.block_size * kv_bytes.iter().sum::<usize>();
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
/// `free`: bytes of a device, `per_token`: those that a token's keys and values take there.
fn sizes(
    config: &ModelConfig,
    options: &LoadOptions,
    free: usize,
    per_token: usize,
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
    let per_token = per_token.max(1);
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
        step_tokens: options.step_tokens,
        max_seqs: options.max_seqs,
        max_logits: options.max_logits,
    })
}
