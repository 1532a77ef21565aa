//! Whether a model runs on a device: the same sizes and refusals for loading it and for saying so beforehand.

use super::error::LoadError;
use super::memory::{DeviceSizes, plan};
use super::memory_plan::MemoryPlan;
use super::options::LoadOptions;
use super::{cpus, gpus};
use crate::runner::RunnerSizes;
use realizar_compute::{Backend, Rank};
use realizar_model::source::TensorSource;
use realizar_model::{ModelConfig, Shard, arch, weight_memory};

/// What a device is and whether a model runs there.
#[derive(Debug)]
pub struct Fit {
    /// The device in words.
    pub device: String,
    /// Bytes that are free there, or for each of several devices.
    pub free: usize,
    /// What the model takes there, or on each of several devices; or why it does not run.
    pub plan: Result<MemoryPlan, LoadError>,
}

/// Whether [`load`](super::load) would load a model with these options, which name a device.
///
/// Errors: the device is not there.
pub fn fit(source: &dyn TensorSource, options: &LoadOptions) -> Result<Fit, LoadError> {
    match gpus(options)? {
        None => {
            let cpus = cpus(options);
            let device = DeviceSizes::of_cpus(&cpus);
            Ok(fit_on(&cpus, source, options, device))
        }
        #[cfg(feature = "cuda")]
        Some(numbers) => {
            let gpus = super::open_gpus(&numbers, options)?;
            let device = DeviceSizes::of_gpus(&gpus);
            Ok(fit_on(&gpus, source, options, device))
        }
        #[cfg(not(feature = "cuda"))]
        Some(numbers) => Err(super::no_backend(&numbers)),
    }
}

fn fit_on<B: Backend>(
    backends: &[B],
    source: &dyn TensorSource,
    options: &LoadOptions,
    device: DeviceSizes,
) -> Fit {
    let plan = arch::configure(source).map_err(LoadError::from).map(|config| options.with_drafts(config));
    let plan = plan.and_then(|config| sizes(backends, source, &config, options, device));
    Fit { device: describe(backends), free: device.memory.free, plan: plan.map(|(_, plan)| plan) }
}

/// The devices in words.
pub(super) fn describe<B: Backend>(backends: &[B]) -> String {
    match backends {
        [one] => one.describe(),
        several => format!("{} × {}", several.len(), several[0].describe()),
    }
}

/// The sizes of what runs a model, and what it takes on each device, before anything is allocated. `device`: what each has.
pub(super) fn sizes<B: Backend>(
    backends: &[B],
    source: &dyn TensorSource,
    config: &ModelConfig,
    options: &LoadOptions,
    device: DeviceSizes,
) -> Result<(RunnerSizes, MemoryPlan), LoadError> {
    config.check_device(&backends[0]).map_err(|e| LoadError::Device {
        device: options.device.clone(),
        reason: e.to_string(),
        absent: false,
    })?;
    let count = backends.len();
    let (mut largest, mut weights) = (None, 0);
    for (index, backend) in backends.iter().enumerate() {
        let shard =
            Shard::new(config, source, Rank { index, count }, options.exact || options.deterministic)?;
        weights = weight_memory(backend, source, config, &shard)?.max(weights);
        let cache = shard.config().kv_bytes_per_token(options.kv_type);
        if largest.as_ref().is_none_or(|(most, _)| cache > *most) {
            largest = Some((cache, shard));
        }
    }
    let (_, shard) = largest.expect("a device at least");
    plan(&shard, weights, options, device)
}

#[cfg(test)]
mod tests {
    use super::super::options::Device;
    use super::*;
    use realizar_compute::DType;
    use realizar_model::source;
    use std::path::Path;

    #[test]
    fn a_model_larger_than_memory_is_refused_with_numbers_and_runs_from_its_file() {
        let demo =
            source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap();
        let config = arch::configure(&*demo).unwrap();
        let options = LoadOptions { n_ctx: Some(64), device: Device::Cpu, ..LoadOptions::default() };
        let plan_with = |free: usize, options: &LoadOptions| {
            let cpus = cpus(options);
            let mut device = DeviceSizes::of_cpus(&cpus);
            device.memory.free = free;
            sizes(&cpus, &*demo, &config, options, device).map(|(_, plan)| plan)
        };
        let plan = plan_with(1 << 40, &options).unwrap();
        assert!(plan.weights > 1 << 20, "{plan}");
        plan_with(plan.total(), &options).unwrap();
        let free = plan.total() - plan.weights / 2;
        let error = plan_with(free, &options).unwrap_err().to_string();
        for part in ["weights", "are free", "are missing", "--no-repack"] {
            assert!(error.contains(part), "{error}");
        }
        let from_file = LoadOptions { repack: false, ..options.clone() };
        let plan = plan_with(free, &from_file).unwrap();
        assert!(plan.weights < 1 << 20, "{plan}");
        // Far more than the model was trained for is wanted, and that does not fit, but all that it was trained for does.
        let long = LoadOptions { n_ctx: Some(1 << 30), kv_type: DType::F32, ..options };
        let error = plan_with(1 << 33, &long).unwrap_err().to_string();
        assert!(error.ends_with("what fits: --ctx 1024 with --kv-type f32"), "{error}");
    }
}
