//! `realizar quantize`: any model as a GGUF file of another type.

use crate::args::{ThreadsOption, quant_mix};
use crate::model_arg::ModelArg;
use crate::output;
use crate::progress::weights_bar;
use anyhow::{Result, bail};
use clap::{Args, ValueHint};
use realizar_model::convert::as_gguf;
use realizar_model::imatrix::Imatrix;
use realizar_model::quant_mix::{QUANT_MIXES, QuantMix};
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
    #[arg(value_name = "TYPE", value_parser = quant_mix, help = types_help())]
    mix: &'static QuantMix,
    /// An importance matrix of the model, from `realizar imatrix` or llama.cpp; types of less than about three bits need one.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
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
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let bar = weights_bar("writing", model.tensors().iter().map(TensorInfo::n_elements).sum());
    output::write_file(&args.out, |out| {
        Ok(write_gguf(&*model, args.mix, imatrix.as_ref(), &args.out, out, n_threads, &|n| {
            bar.inc(n as u64)
        })?)
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn types_help() -> String {
    let names: Vec<&str> = QUANT_MIXES.iter().map(|mix| mix.name).collect();
    let (last, others) = names.split_last().expect("there are types");
    format!("{} or {last}", others.join(", "))
}
