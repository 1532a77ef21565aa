//! `realizar quantize`: any model as a GGUF file of another type.

use crate::args::{ThreadsOption, quant_mix};
use crate::model_arg::ModelArg;
use crate::output;
use crate::progress::weights_bar;
use anyhow::Result;
use clap::{Args, ValueHint};
use realizar_model::convert::as_gguf;
use realizar_model::quant_mix::QuantMix;
use realizar_model::quantize::write_gguf;
use realizar_model::source::TensorInfo;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct QuantizeArgs {
    /// A .gguf file, a Hugging Face folder, OWNER/NAME[:FILE-OR-QUANT], a short name, or demo.
    #[arg(value_name = "IN", value_hint = ValueHint::AnyPath)]
    input: ModelArg,
    /// The file to write.
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    out: PathBuf,
    /// f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_0, q4_k_m, q4_0, q3_k_m, q2_k or mxfp4_moe.
    #[arg(value_name = "TYPE", value_parser = quant_mix)]
    mix: &'static QuantMix,
    #[command(flatten)]
    threads: ThreadsOption,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let n_threads = args.threads.or_all_cores();
    let model = as_gguf(args.input.open()?)?;
    for t in model.tensors() {
        if t.dtype.block_len() > 1 {
            tracing::warn!(tensor = t.name, dtype = %t.dtype, "the source is quantized already, so errors add up");
            break;
        }
    }
    let bar = weights_bar("writing", model.tensors().iter().map(TensorInfo::n_elements).sum());
    output::write_file(&args.out, |out| {
        Ok(write_gguf(&*model, args.mix, &args.out, out, n_threads, &|n| bar.inc(n as u64))?)
    })?;
    bar.finish_and_clear();
    Ok(())
}
