//! `realizar embed`: texts to vectors, or to scores against a query.

use crate::args::ThreadsOption;
use crate::model_arg::ModelArg;
use crate::{input, output};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueHint};
use realizar_compute::DType;
use realizar_engine::encoder::{EncoderEngine, Encoding, Pooling, TextEncoder, normalize, relevance};
use realizar_engine::load::{Device, LoadOptions, load_encoder};
use realizar_model::EncoderOutput;
use realizar_model::tokenizer::Tokenizer;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    /// An embedding model or a reranker: a .gguf file, a folder, or OWNER/NAME[:FILE-OR-QUANT] of the Hugging Face hub.
    #[arg(value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    model: ModelArg,
    /// Files, each of which is one text; without any, each line of stdin is one.
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// What the texts are compared with, for a reranker.
    #[arg(long, value_name = "TEXT")]
    query: Option<String>,
    /// Read a Qwen3 as Qwen3-Reranker, where its files do not say that it is one.
    #[arg(long)]
    reranker: bool,
    /// Pooling instead of what the model's files say.
    #[arg(long, value_enum)]
    pooling: Option<PoolingName>,
    /// Keep only so many numbers of each vector, for models that were trained for it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    dimensions: Option<u32>,
    /// Leave vectors as long as they are.
    #[arg(long)]
    no_normalize: bool,
    /// Cut texts that are too long instead of refusing them.
    #[arg(long)]
    truncate: bool,
    /// Write the vectors to a NumPy file, [texts, numbers] in f32, instead of JSON lines to stdout.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    npy: Option<PathBuf>,
    /// Longest text in tokens; the model's own, but at most 8192, by default.
    #[arg(short = 'c', long, value_name = "N")]
    ctx: Option<usize>,
    /// Where the model runs: auto, cpu, cuda or cuda:N.
    #[arg(long, default_value_t = Device::Auto)]
    device: Device,
    #[command(flatten)]
    threads: ThreadsOption,
    /// Computes products with unrounded activations: slower, and the same numbers in any batch.
    #[arg(long)]
    exact: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PoolingName {
    Mean,
    Cls,
    Last,
}

pub(crate) fn run(args: &EmbedArgs) -> Result<()> {
    let source = args.model.open()?;
    let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
    let options = LoadOptions {
        device: args.device.clone(),
        n_ctx: args.ctx,
        n_threads: args.threads.get().unwrap_or(0),
        exact: args.exact,
        reranker: args.reranker,
        kv_type: if args.exact { DType::F32 } else { DType::F16 },
        ..LoadOptions::default()
    };
    let pooling = args.pooling.map(|name| match name {
        PoolingName::Mean => Pooling::Mean,
        PoolingName::Cls => Pooling::First,
        PoolingName::Last => Pooling::Last,
    });
    let loaded = load_encoder(&*source, &options, pooling)?;
    let engine = EncoderEngine::start(loaded.runner, usize::MAX)?;
    let encoder = TextEncoder::new(engine.client(), tokenizer, &*source)?;
    let texts = texts(&args.files)?;
    match (encoder.client().info().output, &args.query) {
        (EncoderOutput::Embedding { .. }, None) => embed(args, &encoder, &texts),
        (EncoderOutput::Embedding { .. }, Some(_)) => {
            bail!("{} is no reranker: without --query it gives vectors", args.model)
        }
        (_, None) => bail!("{} is a reranker: --query says what the texts are compared with", args.model),
        (_, Some(query)) => score(args, &encoder, query, &texts),
    }
}

fn texts(files: &[PathBuf]) -> Result<Vec<(String, String)>> {
    if !files.is_empty() {
        let read = |file: &PathBuf| Ok((file.display().to_string(), input::file_or_stdin(Some(file))?));
        return files.iter().map(read).collect();
    }
    let lines = input::text_or_stdin(None)?;
    Ok(lines.lines().enumerate().map(|(i, line)| (format!("line {}", i + 1), line.to_owned())).collect())
}

/// Tokens within the model's bounds. Errors: a text that is too long, named.
fn fit(args: &EmbedArgs, encoder: &TextEncoder, name: &str, mut tokens: Encoding) -> Result<Encoding> {
    let max = encoder.client().info().max_tokens;
    if args.truncate {
        encoder.truncate(&mut tokens, max);
    }
    let n = tokens.len();
    ensure!(n > 0, "{name} is empty");
    ensure!(n <= max, "{name} has {n} tokens and a text may have {max}: --truncate cuts it");
    Ok(tokens)
}

fn embed(args: &EmbedArgs, encoder: &TextEncoder, texts: &[(String, String)]) -> Result<()> {
    let info = encoder.client().info();
    let len = args.dimensions.map_or(info.output_len, |n| n as usize);
    ensure!(
        len <= info.output_len,
        "--dimensions is {len}, and the model's vectors have {}",
        info.output_len
    );
    let tokens = texts.iter().map(|(name, text)| fit(args, encoder, name, encoder.tokens(text)));
    let mut rows = encoder.client().encode(tokens.collect::<Result<Vec<_>>>()?)?.wait()?;
    for row in &mut rows {
        row.truncate(len);
        if !args.no_normalize {
            normalize(row);
        }
    }
    if let Some(path) = &args.npy {
        return write_npy(path, &rows, len);
    }
    for (index, row) in rows.iter().enumerate() {
        output::print_json(&json!({ "index": index, "embedding": row }))?;
    }
    Ok(())
}

fn score(args: &EmbedArgs, encoder: &TextEncoder, query: &str, texts: &[(String, String)]) -> Result<()> {
    ensure!(
        args.npy.is_none() && args.dimensions.is_none(),
        "a reranker gives one score for each text, and no vectors"
    );
    let output_kind = encoder.client().info().output;
    let tokens = texts.iter().map(|(name, text)| fit(args, encoder, name, encoder.pair(query, text)));
    let rows = encoder.client().encode(tokens.collect::<Result<Vec<_>>>()?)?.wait()?;
    for (index, row) in rows.iter().enumerate() {
        output::print_json(&json!({ "index": index, "relevance_score": relevance(output_kind, row) }))?;
    }
    Ok(())
}

/// The header of NumPy's format 1.0, then the rows.
fn npy(rows: &[Vec<f32>], len: usize) -> Vec<u8> {
    let description =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {len}), }}", rows.len());
    // Magic, version and length take 10 bytes; the header ends with a new line at a multiple of 64.
    let padded = (10 + description.len() + 1).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((padded as u16).to_le_bytes());
    bytes.extend(format!("{description:<width$}\n", width = padded - 1).bytes());
    bytes.extend(rows.iter().flatten().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn write_npy(path: &Path, rows: &[Vec<f32>], len: usize) -> Result<()> {
    std::fs::write(path, npy(rows, len)).with_context(|| format!("could not write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_of_a_numpy_file_ends_at_a_multiple_of_64() {
        for n in [0, 1, 12_345] {
            let bytes = npy(&vec![vec![1.5]; n], 1);
            let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]])) + 10;
            assert!(header.is_multiple_of(64) && bytes[header - 1] == b'\n');
            assert_eq!(bytes.len(), header + 4 * n);
            assert!(String::from_utf8_lossy(&bytes[10..header]).contains(&format!("'shape': ({n}, 1)")));
        }
    }
}
