//! `realizar quantize`: any model as a GGUF file of another type.

use crate::args::{ThreadsOption, quant_mix};
use crate::model_arg::ModelArg;
use crate::output;
use crate::progress::weights_bar;
use anyhow::{Result, bail};
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
    /// f32, f16, bf16, q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, iq4_nl, iq4_xs, q4_1, q4_0, q3_k_l, q3_k_m, q3_k_s, q2_k, q2_k_s,
    /// tq2_0, tq1_0 or mxfp4_moe.
    #[arg(value_name = "TYPE", value_parser = quant_mix)]
    mix: &'static QuantMix,
    /// Also takes a file that is quantized already: its errors and those of the new type add up.
    #[arg(long)]
    allow_requantize: bool,
    #[command(flatten)]
    threads: ThreadsOption,
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let n_threads = args.threads.or_all_cores();
    let model = as_gguf(args.input.open()?)?;
    if let Some(t) = model.tensors().iter().find(|t| t.dtype.block_len() > 1)
        && args.mix.base.block_len() > 1
        && !args.allow_requantize
    {
        bail!(
            "{} is quantized already: {} is {}, and its errors and those of the new type would add up; start from a file in F16, BF16 or F32, or give --allow-requantize",
            args.input,
            t.name,
            t.dtype
        );
    }
    let bar = weights_bar("writing", model.tensors().iter().map(TensorInfo::n_elements).sum());
    output::write_file(&args.out, |out| {
        Ok(write_gguf(&*model, args.mix, &args.out, out, n_threads, &|n| bar.inc(n as u64))?)
    })?;
    bar.finish_and_clear();
    Ok(())
}
