//! Options of every command that runs a model, and the way from them to a model on its device.

use crate::args::{ModelOption, ThreadsOption};
use crate::model_arg::ModelArg;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use realizar_compute::DType;
use realizar_engine::load::{Device, LoadOptions, LoadedModel, load};
use realizar_engine::speculative::{DraftModel, Ngram, Proposer};
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::Tokenizer;

#[derive(Debug, Args)]
pub(crate) struct RunnerOptions {
    /// Where the model runs: auto, cpu, cuda or cuda:N.
    #[arg(long, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    #[command(flatten)]
    pub(crate) threads: ThreadsOption,
    /// Computes products with unrounded activations: slower, and the same tokens on every device.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Leaves weights in the mapped file: starts at once and shares memory between processes, but runs slower.
    #[arg(long)]
    pub(crate) no_repack: bool,
    /// Element type of the cache of keys and values: f32, f16, bf16 or q8_0.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub(crate) kv_type: DType,
    /// Memory for the cache of keys and values, such as 512M or 2G; by default what one longest sequence takes, and no more than
    /// half of what is free.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) kv_memory: Option<usize>,
}

/// Guesses of the next tokens, verified several at a time: the same text, in fewer steps.
#[derive(Debug, Args)]
pub(crate) struct SpeculationOptions {
    /// Guesses the next tokens by what followed the last ones before in the text.
    #[arg(long, value_name = "HOW", conflicts_with = "draft")]
    speculate: Option<Speculate>,
    /// Guesses the next tokens with this smaller model of the same vocabulary.
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    draft: Option<ModelArg>,
    /// Guesses per step at most; fewer are made where they are often wrong or the machine is busy.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    max_drafts: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Speculate {
    /// By looking up n-grams in the text itself.
    Ngram,
}

impl SpeculationOptions {
    /// Whether guesses are to be made.
    pub(crate) fn is_on(&self) -> bool {
        self.speculate.is_some() || self.draft.is_some()
    }

    /// Guesses per step at most; 0 if none are to be made.
    pub(crate) fn max_drafts(&self) -> usize {
        if self.is_on() { usize::from(self.max_drafts) } else { 0 }
    }

    /// Who guesses for the model of `source`, loaded with `options`.
    pub(crate) fn proposer(
        &self,
        source: &dyn TensorSource,
        options: &LoadOptions,
    ) -> Result<Option<Box<dyn Proposer>>> {
        if self.speculate == Some(Speculate::Ngram) {
            return Ok(Some(Box::new(Ngram::default())));
        }
        let Some(draft) = &self.draft else { return Ok(None) };
        let draft_source = draft.open()?;
        let whose = || format!("could not use {draft} as draft model");
        same_vocabulary(source, &*draft_source).with_context(whose)?;
        let config = realizar_model::arch::configure(&*draft_source).with_context(whose)?;
        let n_ctx = options.n_ctx.map(|n| n.min(config.context_length));
        // Its cache holds as many tokens as the model's, in whatever memory that takes.
        let per_token = realizar_model::arch::configure(source)?.kv_bytes_per_token(options.kv_type).max(1);
        let cache_tokens = options.kv_memory.map(|bytes| bytes / per_token).or(options.cache_tokens);
        let max_logits = options.max_seqs;
        let options = LoadOptions { n_ctx, cache_tokens, kv_memory: None, max_logits, ..options.clone() };
        let loaded = load(&*draft_source, &options).with_context(whose)?;
        Ok(Some(Box::new(DraftModel::new(loaded.runner))))
    }
}

/// Whether the tokens that both models have are the same.
fn same_vocabulary(model: &dyn TensorSource, draft: &dyn TensorSource) -> Result<()> {
    let (model, draft) = (Tokenizer::from_source(model)?, Tokenizer::from_source(draft)?);
    // Vocabularies of one family may be padded to different sizes.
    let n = model.vocab_size().min(draft.vocab_size()) as u32;
    if let Some(id) = (0..n).find(|&id| model.token_text(id) != draft.token_text(id)) {
        let (a, b) = (model.token_text(id).unwrap_or(""), draft.token_text(id).unwrap_or(""));
        bail!("token {id} is {b:?} there and {a:?} in the model: they need the same vocabulary");
    }
    Ok(())
}

/// A number of bytes, as `2G` or `512MiB`.
fn size(text: &str) -> Result<usize, String> {
    let expected = || format!("{text:?} is not a size such as 512M, 2G or 1.5GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().trim_end_matches('b').trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(expected()),
    };
    let bytes = number.parse::<f64>().map_err(|_| expected())? * f64::from(shift).exp2();
    // Sizes beyond 2^53 bytes exist nowhere.
    if bytes >= 1.0 && bytes <= 9e15 { Ok(bytes as usize) } else { Err(expected()) }
}

fn kv_type(name: &str) -> Result<DType, String> {
    match DType::from_name(name) {
        Some(t @ (DType::F32 | DType::F16 | DType::BF16 | DType::Q8_0)) => Ok(t),
        _ => Err("expected f32, f16, bf16 or q8_0".to_owned()),
    }
}

impl RunnerOptions {
    /// Load options with these choices and the given longest sequence.
    pub(crate) fn load_options(&self, n_ctx: Option<usize>) -> LoadOptions {
        LoadOptions {
            device: self.device,
            n_ctx,
            n_threads: self.threads.get().unwrap_or(0),
            exact: self.exact,
            repack: !self.no_repack,
            kv_type: self.kv_type,
            kv_memory: self.kv_memory,
            ..LoadOptions::default()
        }
    }

    /// Opens the model and brings it to its device.
    pub(crate) fn load(
        &self,
        model: &ModelOption,
        options: &LoadOptions,
    ) -> Result<(Box<dyn TensorSource>, LoadedModel)> {
        let source = model.model.open()?;
        let loaded = load(&*source, options)?;
        Ok((source, loaded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbers_with_a_unit_or_refused() {
        for (text, bytes) in
            [("1", 1), ("2k", 2048), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("3 gb", 3 << 30)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "1.2.3", "2X", "0", "nan", "inf", "1e9", "99999999T", "1bb2"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
