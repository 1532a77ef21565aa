//! `realizar perplexity`: how well a model predicts a text.

use crate::args::ModelOption;
use crate::load::{RunnerOptions, warn_of_long_context};
use crate::{output, progress};
use anyhow::{Context, Result, bail};
use clap::{Args, ValueHint};
use realizar_engine::perplexity::{Score, n_chunks, score_chunk};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    model: ModelOption,
    /// The text.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Tokens of a chunk; the second half of each is scored.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(4..))]
    ctx: u32,
    /// Chunks to score; all of them by default.
    #[arg(long, value_name = "N")]
    chunks: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    runner: RunnerOptions,
}

pub(crate) fn run(args: &PerplexityArgs) -> Result<()> {
    let n_ctx = args.ctx as usize;
    let bytes =
        std::fs::read(&args.file).with_context(|| format!("could not read {}", args.file.display()))?;
    let text =
        String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", args.file.display()))?;
    let options = args.runner.load_options(Some(n_ctx));
    let (source, mut model) = args.runner.load(&args.model, &options)?;
    let tokenizer = Tokenizer::from_source(&*source)?;
    let tokens = tokenizer.encode(&text, EncodeOptions { add_special: true, parse_special: false });
    let all = n_chunks(tokens.len(), n_ctx);
    if all == 0 {
        bail!("{} has {} tokens, and one chunk takes {n_ctx}", args.file.display(), tokens.len());
    }
    warn_of_long_context(Some(n_ctx), &model.config);
    let n = args.chunks.map_or(all, |n| n.min(all));
    let bos = tokenizer.bos().filter(|_| tokenizer.add_bos());
    let bar = progress::chunks_bar("scoring", n);
    let mut score = Score::default();
    for chunk in tokens.chunks_exact(n_ctx).take(n) {
        score_chunk(&mut *model.runner, chunk, bos, &mut score)?;
        bar.inc(1);
        bar.set_message(format!("perplexity {:.4}", score.perplexity()));
    }
    bar.finish_and_clear();
    if args.json {
        return output::print_json(&serde_json::json!({
            "tokens": score.n_tokens,
            "nll": score.nll,
            "ppl": score.perplexity(),
            "ppl_error": score.standard_error(),
            "chunks": n,
            "ctx": n_ctx,
        }));
    }
    let (ppl, error) = (score.perplexity(), score.standard_error());
    output::print(format!("perplexity {ppl:.4} ± {error:.4} over {} tokens of {n} chunks\n", score.n_tokens))
}
