//! From a file to a running model: the one place that chooses a device.

mod encoder;
mod error;
mod memory;
mod memory_plan;
mod options;

pub use encoder::{LoadedEncoder, load_encoder};
pub use error::LoadError;
pub use memory_plan::MemoryPlan;
pub use options::{
    CPU_MAX_SEQS, CPU_STEP_TOKENS, CacheSize, Device, GPU_MAX_SEQS, GPU_STEP_TOKENS, LoadOptions,
};

use crate::Runner;
use crate::model_runner::ModelRunner;
use memory::{DeviceSizes, plan};
use memory_plan::mib;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions, threads};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::Cuda;
use realizar_compute::{Backend, Device as _, DeviceMemory, Rank};
use realizar_model::source::TensorSource;
use realizar_model::{Decoder, ModelConfig, Shard, WeightBytes, arch, names};
use std::time::{Duration, Instant};

/// Bytes of the CPU's memory that a cache takes at most where nobody asks for more.
const CPU_CACHE_BYTES: usize = 1 << 30;

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
    /// Bytes per second that the memory of all devices together delivers, where they tell.
    pub memory_bandwidth: Option<u64>,
    /// Sizes of the weights on all devices together.
    pub weights: WeightBytes,
    /// What its parts take on the device, or at most on each of several.
    pub memory: MemoryPlan,
    /// From the opened file to here.
    pub load_time: Duration,
}

/// Brings a model to its device.
///
/// Errors: [`LoadError`]. Nothing stays allocated after an error.
pub fn load(source: &dyn TensorSource, options: &LoadOptions) -> Result<LoadedModel, LoadError> {
    let start = Instant::now();
    let config = configure(source)?;
    let mut loaded = match gpus(options)? {
        None => load_on_cpu(source, config, options)?,
        // Several GPUs were asked for, so something else will not do.
        Some(gpus) if options.device != Device::Auto || gpus.len() > 1 => {
            load_on_gpus(source, config, options, &gpus)?
        }
        Some(gpus) => match load_on_gpus(source, config.clone(), options, &gpus) {
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

/// Errors: as of [`arch::configure`]; `Encoder`.
fn configure(source: &dyn TensorSource) -> Result<ModelConfig, LoadError> {
    let config = arch::configure(source)?;
    match config.encoder {
        Some(_) => Err(LoadError::Encoder { arch: config.arch }),
        None => Ok(config),
    }
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
    let DeviceMemory { free, total } = cpus[0].memory();
    let device = DeviceSizes {
        // They share one memory.
        memory: DeviceMemory { free: free / cpus.len(), total },
        // They are read from the file, whose pages the system can take back; packed copies take the place of those pages.
        weights: 0,
        scratch: cpus[0].scratch_bytes(),
        step_tokens: CPU_STEP_TOKENS,
        max_seqs: CPU_MAX_SEQS,
        cache: CPU_CACHE_BYTES,
    };
    Ok(LoadedModel { n_threads, ..load_on(cpus, source, config, options, device)? })
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpus(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    let reason = "this build has no CUDA backend".into();
    Err(LoadError::Device { device: Device::Cuda(gpus.to_vec()), reason, absent: true })
}

#[cfg(feature = "cuda")]
fn load_on_gpus(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    let gpus = Cuda::group(gpus, options.exact).map_err(|e| LoadError::Device {
        device: Device::Cuda(gpus.to_vec()),
        absent: matches!(e, realizar_compute::Error::NoDevice { .. }),
        reason: e.to_string(),
    })?;
    load_with_memory(gpus, source, config, options)
}

/// Brings a model to a backend that is open and has memory of its own.
///
/// Errors: as of [`load`]; what does not fit is refused before anything is allocated.
pub fn load_on_device<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    load_with_memory(vec![backend], source, configure(source)?, options)
}

fn load_with_memory<B: Backend>(
    backends: Vec<B>,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    config.check_device(&backends[0]).map_err(|e| LoadError::Device {
        device: options.device.clone(),
        reason: e.to_string(),
        absent: false,
    })?;
    let device = DeviceSizes {
        memory: backends.iter().map(B::memory).min_by_key(|m| m.free).expect("a device at least"),
        weights: weights_per_device(source, backends.len()),
        scratch: backends[0].scratch_bytes(),
        step_tokens: GPU_STEP_TOKENS,
        max_seqs: GPU_MAX_SEQS,
        cache: usize::MAX,
    };
    load_on(backends, source, config, options, device)
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

/// `device`: what each backend has.
fn load_on<B: Backend>(
    backends: Vec<B>,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    device: DeviceSizes,
) -> Result<LoadedModel, LoadError> {
    let start = Instant::now();
    let count = backends.len();
    let shards = (0..count).map(|index| Shard::new(&config, source, Rank { index, count }, options.exact));
    let shards = shards.collect::<realizar_model::Result<Vec<_>>>()?;
    let largest = shards
        .iter()
        .max_by_key(|s| s.config().kv_bytes_per_token(options.kv_type))
        .expect("a device at least");
    let (sizes, mut memory) = plan(largest, options, device)?;
    let name = match count {
        1 => backends[0].describe(),
        _ => format!("{count} × {}", backends[0].describe()),
    };
    let memory_bandwidth = backends.iter().map(|b| b.memory_bandwidth()).sum();
    let load = |backend: &B| {
        let model = Decoder::load(backend, source, config.clone(), sizes.context_length)?;
        backend.synchronize()?;
        Ok(model)
    };
    // Side by side, since each has its own way to its device.
    let models = std::thread::scope(|scope| {
        let rest: Vec<_> = backends[1..].iter().map(|b| scope.spawn(move || load(b))).collect();
        let first = load(&backends[0]);
        let rest = rest.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        std::iter::once(first).chain(rest).collect::<realizar_model::Result<Vec<_>>>()
    })?;
    let mut weights = WeightBytes { total: 0, per_step: 0 };
    memory.weights = 0;
    for (backend, model) in backends.iter().zip(&models) {
        let part = model.weight_bytes(backend);
        weights.total += part.total;
        weights.per_step += part.per_step;
        memory.weights = memory.weights.max(part.total);
    }
    if options.repack {
        source.release();
    }
    tracing::debug!(ms = start.elapsed().as_millis() as u64, bytes = weights.total, "weights ready");
    let runner = ModelRunner::new(backends.into_iter().zip(models).collect(), &sizes)?;
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
        memory_bandwidth,
        weights,
        memory,
        load_time: Duration::ZERO,
    })
}
