//! `realizar synth`: random weights at a known model's shape, as a GGUF file.

use crate::args::{SynthSpec, ThreadsOption};
use crate::output;
use crate::progress::weights_bar;
use anyhow::Result;
use clap::{Args, ValueHint};
use realizar_model::quantize::write_gguf;
use realizar_model::source::{TensorInfo, TensorSource};
use realizar_model::synth::{SYNTH_SHAPES, Synth};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct SynthArgs {
    /// Shape and type, such as llama-3.2-1b:q4_k_m.
    #[arg(value_name = "SHAPE:QUANT", long_help = synth_help())]
    spec: SynthSpec,
    /// The file to write.
    #[arg(value_name = "OUT.gguf", value_hint = ValueHint::FilePath)]
    out: PathBuf,
    /// Another seed gives other weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    threads: ThreadsOption,
}

pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let n_threads = args.threads.or_all_cores();
    let mix = args.spec.mix;
    let model = Synth::new(args.spec.shape, mix, args.seed, n_threads)?;
    let bar = weights_bar("writing", model.tensors().iter().map(TensorInfo::n_elements).sum());
    output::write_file(&args.out, |out| {
        Ok(write_gguf(&model, mix, None, &args.out, out, n_threads, &|n| bar.inc(n as u64))?)
    })?;
    bar.finish_and_clear();
    Ok(())
}

fn synth_help() -> String {
    let shapes: Vec<_> = SYNTH_SHAPES.iter().map(|s| s.name).collect();
    format!("Shape and type, such as llama-3.2-1b:q4_k_m. Shapes: {}.", shapes.join(", "))
}
