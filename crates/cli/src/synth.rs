//! `realizar synth`: random weights at a known model's shape, as a GGUF file.

use crate::args::SynthArgs;
use crate::output;
use crate::progress::weights_bar;
use anyhow::Result;
use realizar_model::quantize::write_gguf;
use realizar_model::source::{TensorInfo, TensorSource};
use realizar_model::synth::Synth;

pub(crate) fn run(args: &SynthArgs) -> Result<()> {
    let n_threads = args.threads.or_all_cores();
    let mix = args.spec.mix;
    let model = Synth::new(args.spec.shape, mix, args.seed, n_threads)?;
    let bar = weights_bar("writing", model.tensors().iter().map(TensorInfo::n_elements).sum());
    output::write_file(&args.out, |out| {
        Ok(write_gguf(&model, mix, &args.out, out, n_threads, &|n| bar.inc(n as u64))?)
    })?;
    bar.finish_and_clear();
    Ok(())
}
