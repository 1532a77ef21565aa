//! `realizar pull`: a model of the Hugging Face hub into the shared cache.

use crate::model_arg::hub_model;
use crate::{hub, output};
use anyhow::Result;
use clap::Args;
use realizar::hub::HubModel;

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// A model of the hub, or a short name. Without FILE-OR-QUANT: its safetensors, or its GGUF file of type Q4_K_M.
    #[arg(value_name = "OWNER/NAME[:FILE-OR-QUANT]", value_parser = hub_model)]
    model: HubModel,
}

/// Prints where the model is.
pub(crate) fn run(args: &PullArgs) -> Result<()> {
    let path = hub::pull(&args.model)?;
    output::print(format!("{}\n", path.display()))
}
