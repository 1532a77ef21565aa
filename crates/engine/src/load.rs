//! From a file to a running model: the one place that chooses a device.

mod draft;
mod encoder;
mod error;
mod fit;
mod memory;
mod memory_plan;
mod options;

pub use draft::load_draft;
pub use encoder::{LoadedEncoder, load_encoder};
pub use error::LoadError;
pub use fit::{Fit, fit};
pub use memory_plan::MemoryPlan;
pub use options::{
    CPU_MAX_SEQS, CPU_STEP_TOKENS, CacheSize, Device, GPU_MAX_SEQS, GPU_STEP_TOKENS, LoadOptions,
};

use crate::Runner;
use crate::model_runner::ModelRunner;
use fit::{describe, sizes};
use memory::DeviceSizes;
use memory_plan::mib;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions, threads};
#[cfg(feature = "cuda")]
use realizar_compute::cuda::Cuda;
use realizar_compute::{Backend, InputObserver};
use realizar_model::source::TensorSource;
use realizar_model::{Decoder, ModelConfig, WeightBytes, arch};
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    let config = configure(source, options)?;
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

/// Brings a model to the CPU, whatever device `options` names, and shows the inputs of all products with its weights to `observer`.
///
/// Errors: as of [`load`].
pub fn load_observed(
    source: &dyn TensorSource,
    options: &LoadOptions,
    observer: Arc<dyn InputObserver>,
) -> Result<LoadedModel, LoadError> {
    let options = LoadOptions { device: Device::Cpu, tp: 1, ..options.clone() };
    let cpus = cpus(&options).into_iter().map(|cpu| cpu.observed_by(observer.clone())).collect();
    load_on_cpus(cpus, source, configure(source, &options)?, &options)
}

/// Errors: as of [`arch::configure`]; `Encoder`.
fn configure(source: &dyn TensorSource, options: &LoadOptions) -> Result<ModelConfig, LoadError> {
    let config = arch::configure(source)?;
    match config.encoder {
        Some(_) => Err(LoadError::Encoder { arch: config.arch }),
        None => Ok(options.with_drafts(config)),
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

/// The CPU, as as many ranks as share the model.
fn cpus(options: &LoadOptions) -> Vec<Cpu> {
    let n_threads = if options.n_threads == 0 { threads::default_threads() } else { options.n_threads };
    let cpu_options =
        CpuOptions { n_threads, isa: Isa::best(), exact: options.exact, repack: options.repack };
    match options.tp {
        1 => vec![Cpu::new(cpu_options)],
        n => Cpu::group(n, cpu_options),
    }
}

fn load_on_cpu(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    load_on_cpus(cpus(options), source, config, options)
}

fn load_on_cpus(
    cpus: Vec<Cpu>,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let n_threads = cpus.iter().map(|cpu| cpu.options().n_threads).sum();
    let device = DeviceSizes::of_cpus(&cpus);
    Ok(LoadedModel { n_threads, ..load_on(cpus, source, config, options, device)? })
}

#[cfg(not(feature = "cuda"))]
fn no_backend(gpus: &[usize]) -> LoadError {
    let reason = "this build has no CUDA backend".into();
    LoadError::Device { device: Device::Cuda(gpus.to_vec()), reason, absent: true }
}

#[cfg(not(feature = "cuda"))]
fn load_on_gpus(
    _: &dyn TensorSource,
    _: ModelConfig,
    _: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    Err(no_backend(gpus))
}

#[cfg(feature = "cuda")]
fn open_gpus(gpus: &[usize], options: &LoadOptions) -> Result<Vec<Cuda>, LoadError> {
    Cuda::group(gpus, options.mode()).map_err(|e| LoadError::Device {
        device: Device::Cuda(gpus.to_vec()),
        absent: matches!(e, realizar_compute::Error::NoDevice { .. }),
        reason: e.to_string(),
    })
}

#[cfg(feature = "cuda")]
fn load_on_gpus(
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
    gpus: &[usize],
) -> Result<LoadedModel, LoadError> {
    load_with_memory(open_gpus(gpus, options)?, source, config, options)
}

/// Brings a model to a backend that is open and has memory of its own.
///
/// Errors: as of [`load`]; what does not fit is refused before anything is allocated.
pub fn load_on_device<B: Backend>(
    backend: B,
    source: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    load_with_memory(vec![backend], source, configure(source, options)?, options)
}

fn load_with_memory<B: Backend>(
    backends: Vec<B>,
    source: &dyn TensorSource,
    config: ModelConfig,
    options: &LoadOptions,
) -> Result<LoadedModel, LoadError> {
    let device = DeviceSizes::of_gpus(&backends);
    load_on(backends, source, config, options, device)
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
    let (sizes, memory) = sizes(&backends, source, &config, options, device)?;
    let name = describe(&backends);
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
    for (backend, model) in backends.iter().zip(&models) {
        let part = model.weight_bytes(backend);
        weights.total += part.total;
        weights.per_step += part.per_step;
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
