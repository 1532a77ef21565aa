//! From a file to a running model: the one place that chooses a device.

use crate::Runner;
use crate::memory::{DeviceSizes, MemoryPlan, mib, plan};
use crate::model_runner::ModelRunner;
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
    /// What its parts take on the device.
    pub memory: MemoryPlan,
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
        /// Whether there is no such device at all.
        absent: bool,
    },
    /// The device's memory does not hold the model.
    #[error(
        "the model does not fit: {plan} ({context} tokens in {kv_type}), {} in all, and {} are free: {} are missing; {remedy}",
        mib(plan.total()), mib(*free), mib(plan.total() - free)
    )]
    Memory {
        /// Longest sequence, in tokens.
        context: usize,
        /// Element type of the cache.
        kv_type: DType,
        /// What it would take.
        plan: MemoryPlan,
        /// What is free on the device, in bytes.
        free: usize,
        /// What would fit.
        remedy: String,
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
            // What is wrong with the file or with an option shows again on the CPU.
            Err(why) => {
                match why {
                    LoadError::Device { absent: true, .. } => tracing::info!("running on the CPU: {why}"),
                    // Somebody who has a GPU will want to know.
                    _ => tracing::warn!("running on the CPU: {why}"),
                }
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
    let device = DeviceSizes {
        memory: cpu.memory(),
        // They are read from the file, whose pages the system can take back; packed copies take the place of those pages.
        weights: 0,
        scratch: cpu.scratch_bytes(),
        step_tokens: CPU_STEP_TOKENS,
    };
    Ok(LoadedModel { n_threads, ..load_on(cpu, source, config, options, device)? })
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpu(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    n: usize,
) -> Result<LoadedModel, LoadError> {
    let reason = "this build has no CUDA backend".into();
    Err(LoadError::Device { device: Device::Cuda(n), reason, absent: true })
}

#[cfg(feature = "cuda")]
fn load_on_gpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    n: usize,
) -> Result<LoadedModel, LoadError> {
    let gpu = Cuda::new(CudaOptions { device: n, exact: options.exact }).map_err(|e| LoadError::Device {
        device: Device::Cuda(n),
        absent: matches!(e, realizar_compute::Error::NoDevice { .. }),
        reason: e.to_string(),
    })?;
    load_with_memory(gpu, source, config, options)
}

/// Brings a model to a backend that is open and has memory of its own.
///
/// Errors: as of [`load`]; what does not fit is refused before anything is allocated.
pub fn load_on_device<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    load_with_memory(backend, source, arch::configure(source)?, options)
}

fn load_with_memory<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    backend.check_heads(config.heads).map_err(|e| LoadError::Device {
        device: options.device,
        reason: e.to_string(),
        absent: false,
    })?;
    let device = DeviceSizes {
        memory: backend.memory(),
        weights: source.tensors().iter().map(|t| t.n_bytes()).sum(),
        scratch: backend.scratch_bytes(),
        step_tokens: GPU_STEP_TOKENS,
    };
    load_on(backend, source, config, options, device)
}

fn load_on<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    device: DeviceSizes,
) -> Result<LoadedModel, LoadError> {
    let start = Instant::now();
    let (sizes, mut memory) = plan(&config, options, device)?;
    let name = backend.describe();
    let model = Decoder::load(&backend, source, config.clone(), sizes.context_length)?;
    let weights = model.weight_bytes(&backend);
    if options.repack {
        source.release();
    }
    backend.synchronize().map_err(realizar_model::Error::from)?;
    tracing::debug!(ms = start.elapsed().as_millis() as u64, bytes = weights.total, "weights ready");
    memory.weights = weights.total;
    let runner = ModelRunner::new(backend, model, &sizes)?;
    tracing::info!(
        device = name,
        weights = mib(memory.weights),
        cache = mib(memory.cache),
        workspace = mib(memory.workspace),
        cache_tokens = sizes.n_blocks * sizes.block_size,
        kv_type = %sizes.kv_type,
        free = mib(device.memory.free),
        "memory"
    );
    Ok(LoadedModel {
        runner: Box::new(runner),
        config,
        device: name,
        no_gpu: None,
        n_threads: 1,
        weights,
        memory,
        load_time: Duration::ZERO,
    })
}
