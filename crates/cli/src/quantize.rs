//! `realizar quantize`: any model as a GGUF file of another type.

use crate::args::QuantizeArgs;
use crate::output;
use crate::progress::weights_bar;
use anyhow::Result;
use realizar_model::convert::as_gguf;
use realizar_model::quantize::write_gguf;
use realizar_model::source::TensorInfo;

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
