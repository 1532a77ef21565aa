//! Options of every command that runs a model, and the way from them to a model on its device.

use crate::args::{ModelOption, ThreadsOption};
use anyhow::Result;
use clap::Args;
use realizar_compute::DType;
use realizar_engine::load::{Device, LoadOptions, LoadedModel, load};
use realizar_model::source::TensorSource;

#[derive(Debug, Args)]
pub(crate) struct RunnerOptions {
    /// Where the model runs: auto, cpu, cuda or cuda:N.
    #[arg(long, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) threads: ThreadsOption,
    /// Computes products with unrounded activations: slower, and the same tokens on every device.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Leaves weights in the mapped file: starts at once and shares memory between processes, but runs slower.
    #[arg(long)]
    pub(crate) no_repack: bool,
    /// Element type of the cache of keys and values: f32, f16, bf16 or q8_0.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub(crate) kv_type: DType,
}

fn kv_type(name: &str) -> Result<DType, String> {
    match DType::from_name(name) {
        Some(t @ (DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)) => Ok(t),
        _ => Err("expected f32, f16, bf16 or q8_0".to_owned()),
    }
}

impl RunnerOptions {
    /// Load options with these choices and the given longest sequence.
    pub(crate) fn load_options(&self, n_ctx: Option<usize>) -> LoadOptions {
        LoadOptions {
            device: self.device,
            n_ctx,
            n_threads: self.threads.get().unwrap_or(0),
            exact: self.exact,
            repack: !self.no_repack,
            kv_type: self.kv_type,
            ..LoadOptions::default()
        }
    }

    /// Opens the model and brings it to its device.
    pub(crate) fn load(
        &self,
        model: &ModelOption,
        options: &LoadOptions,
    ) -> Result<(Box<dyn TensorSource>, LoadedModel)> {
        let source = model.model.open()?;
        let loaded = load(&*source, options)?;
        Ok((source, loaded))
    }
}
