//! `realizar imatrix`: which weights of a model matter, measured on text.

use crate::args::{ModelOption, ThreadsOption};
use crate::load::warn_of_long_context;
use crate::{output, progress};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use realizar_engine::imatrix::InputCollector;
use realizar_engine::load::{LoadOptions, load_observed};
use realizar_model::convert::as_gguf;
use realizar_model::imatrix::ImatrixFormat;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct ImatrixArgs {
    #[command(flatten)]
    model: ModelOption,
    /// Texts of the kind that the model will read, one file or several.
    #[arg(short = 'f', long = "file", value_name = "TEXT", required = true, num_args = 1.., value_hint = ValueHint::FilePath)]
    texts: Vec<PathBuf>,
    /// The file to write: GGUF, or llama.cpp's older form if it ends in .dat.
    #[arg(short, long, value_name = "FILE", default_value = "imatrix.gguf", value_hint = ValueHint::FilePath)]
    output: PathBuf,
    /// Tokens of a chunk; chunks know nothing of each other.
    #[arg(long, short_alias = 'c', value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    ctx: u32,
    /// Chunks to read in all; all of them by default.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    chunks: Option<u32>,
    /// Also measures the output matrix, which costs its product for every token.
    #[arg(long)]
    process_output: bool,
    /// Computes products with unrounded activations: slower, and free of the small errors that rounding adds from layer to layer.
    #[arg(long)]
    exact: bool,
    #[command(flatten)]
    threads: ThreadsOption,
}

pub(crate) fn run(args: &ImatrixArgs) -> Result<()> {
    let n_ctx = args.ctx as usize;
    // Tensors are named as the file to be quantized names them.
    let source = as_gguf(args.model.model.open()?)?;
    let tokenizer = Tokenizer::from_source(&*source)?;
    let mut chunks: Vec<Vec<u32>> = Vec::new();
    for path in &args.texts {
        let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
        let text =
            String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))?;
        let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false });
        if tokens.len() < n_ctx {
            bail!("{} has {} tokens, and one chunk takes {n_ctx}", path.display(), tokens.len());
        }
        chunks.extend(tokens.chunks_exact(n_ctx).map(<[u32]>::to_vec));
    }
    chunks.truncate(args.chunks.map_or(usize::MAX, |n| n as usize));
    let collector = Arc::new(InputCollector::new(args.process_output));
    let options = LoadOptions {
        n_ctx: Some(n_ctx),
        n_threads: args.threads.get().unwrap_or(0),
        exact: args.exact,
        ..LoadOptions::default()
    };
    let mut model = load_observed(&*source, &options, collector.clone())?;
    warn_of_long_context(Some(n_ctx), &model.config);
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let bar = progress::chunks_bar("reading", chunks.len());
    for chunk in &chunks {
        collector.read_chunk(&mut *model.runner, chunk, bos)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut imatrix = collector.take();
    imatrix.datasets = args.texts.iter().map(|path| path.display().to_string()).collect();
    imatrix.chunk_count = chunks.len() as u32;
    imatrix.chunk_size = args.ctx;
    for (tensor, n) in imatrix.unseen() {
        tracing::warn!("the text did not reach {n} experts of {tensor}, so that their columns count alike");
    }
    output::write_file(&args.output, |out| {
        Ok(imatrix.write(&args.output, ImatrixFormat::of(&args.output), out)?)
    })
}
