//! Options of every command that runs a model, and the way from them to a model on its device.

use crate::args::{ModelOption, RARE, ThreadsOption};
use crate::input;
use crate::model_arg::ModelArg;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum, ValueHint};
use realizar_compute::DType;
use realizar_engine::load::{Device, LoadOptions, LoadedModel, load, load_draft};
use realizar_engine::speculative::{Ngram, Proposer};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::Tokenizer;
use realizar_model::{ModelConfig, arch};
use std::path::Path;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Device")]
pub(crate) struct RunnerOptions {
    /// Where the model runs: auto, cpu, cuda, cuda:N, or cuda:N,M for GPUs that share it.
    #[arg(long, default_value_t = Device::Auto)]
    pub(crate) device: Device,
    /// GPUs that share the model, each with a part of every weight.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=8))]
    pub(crate) tp: u8,
    #[command(flatten)]
    pub(crate) threads: ThreadsOption,
    /// Element type of the cache of keys and values: f32, f16, bf16 or q8_0.
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = kv_type)]
    pub(crate) kv_type: DType,
    /// Computes products with unrounded activations: slower, and the same tokens on every device.
    #[arg(long, help_heading = RARE, hide_short_help = true)]
    pub(crate) exact: bool,
    /// The same answer whatever else runs, on a GPU, too, where batches otherwise round differently; slower there. The CPU has it always.
    #[arg(long, conflicts_with = "exact")]
    pub(crate) deterministic: bool,
    /// Leaves weights in the mapped file: starts at once and shares memory between processes, but runs slower.
    #[arg(long, help_heading = RARE, hide_short_help = true)]
    pub(crate) no_repack: bool,
    /// llama.cpp's option, for scripts that give it.
    #[arg(long, alias = "gpu-layers", value_name = "N", hide = true)]
    n_gpu_layers: Option<String>,
}

/// How conversations are written as text.
#[derive(Clone, Debug, Args)]
pub(crate) struct TemplateOption {
    /// Chat template instead of the model's own: a Jinja file, or chatml.
    #[arg(long, value_name = "FILE|NAME", value_hint = ValueHint::FilePath)]
    chat_template: Option<String>,
}

/// The template of models that say nothing about theirs.
const CHATML: &str = include_str!("chatml.jinja");

impl TemplateOption {
    /// The template that was asked for, the model's own, or ChatML with a note.
    pub(crate) fn template(&self, source: &dyn TensorSource, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
        let text = match self.chat_template.as_deref() {
            None => {
                if let Some(own) = ChatTemplate::from_source(source, tokenizer)? {
                    return Ok(own);
                }
                tracing::warn!(
                    "the model has no chat template, so messages are written as ChatML; --chat-template FILE gives it \
                     another, --raw continues a prompt as it is"
                );
                CHATML.to_owned()
            }
            Some("chatml") => CHATML.to_owned(),
            Some(file) => input::file_or_stdin(Some(Path::new(file)))?,
        };
        let token = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or("");
        ChatTemplate::new(&text, token(tokenizer.bos()), token(tokenizer.eos()))
            .with_context(|| self.chat_template.clone().unwrap_or_default())
    }
}

/// Says that a context is longer than the model was made for.
pub(crate) fn warn_of_long_context(asked: Option<usize>, config: &ModelConfig) {
    if let Some(n) = asked.filter(|n| *n > config.context_length) {
        tracing::warn!(
            "--ctx {n} is more than the {} tokens that the model was made for; what comes behind them may make no sense",
            config.context_length
        );
    }
}

/// Guesses of the next tokens, verified several at a time: the same text, in fewer steps.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Guesses of the next tokens")]
pub(crate) struct SpeculationOptions {
    /// How the next tokens are guessed.
    #[arg(long, value_name = "HOW", conflicts_with = "draft", default_value = "auto")]
    speculate: Speculate,
    /// Guesses the next tokens with this smaller model of the same vocabulary.
    #[arg(long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    draft: Option<ModelArg>,
    /// Guesses per step at most; fewer are made where they are often wrong or the machine is busy.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..))]
    max_drafts: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Speculate {
    /// By the model's own drafting layer (MTP) where its file has one and it pays.
    Auto,
    /// By the model's own drafting layer; an error where its file has none.
    Mtp,
    /// By what followed the last tokens before in the text.
    Ngram,
    /// Not at all.
    None,
}

impl SpeculationOptions {
    /// Whether guesses were asked for.
    pub(crate) fn is_on(&self) -> bool {
        self.draft.is_some() || !matches!(self.speculate, Speculate::Auto | Speculate::None)
    }

    /// Guesses of a sequence in a step at most.
    pub(crate) fn max_drafts(&self) -> usize {
        usize::from(self.max_drafts)
    }

    /// Load options with room for the guesses of `options.max_seqs` sequences in a step. Many sequences at once have few guesses, so not
    /// all of them need room for the most.
    pub(crate) fn load_options(&self, options: LoadOptions) -> LoadOptions {
        let draft_layer = self.draft.is_none() && matches!(self.speculate, Speculate::Auto | Speculate::Mtp);
        let max_guesses = match self.is_on() || draft_layer {
            true => self.max_drafts() * options.max_seqs.map_or(16, |n| n.min(16)),
            false => 0,
        };
        LoadOptions { draft_layer, max_guesses, ..options }
    }

    /// Who guesses for the model of `source`, loaded with `options`, if that is not its own layer.
    pub(crate) fn proposer(
        &self,
        source: &dyn TensorSource,
        options: &LoadOptions,
    ) -> Result<Option<Box<dyn Proposer>>> {
        if self.speculate == Speculate::Ngram {
            return Ok(Some(Box::new(Ngram::default())));
        }
        if self.speculate == Speculate::Mtp && arch::configure(source)?.n_draft_layers == 0 {
            bail!(
                "--speculate mtp needs a drafting layer, which {} does not have; --speculate ngram and --draft MODEL need none",
                source.path().display()
            );
        }
        let Some(draft) = &self.draft else { return Ok(None) };
        let drafts = load_draft(&*draft.open()?, source, options)
            .with_context(|| format!("could not use {draft} as draft model"))?;
        Ok(Some(Box::new(drafts)))
    }
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
        if self.n_gpu_layers.is_some() {
            tracing::warn!(
                "-ngl is not needed: a GPU takes all layers where the model fits; --device cpu keeps it on the CPU"
            );
        }
        LoadOptions {
            device: self.device.clone(),
            tp: usize::from(self.tp),
            n_ctx,
            n_threads: self.threads.get().unwrap_or(0),
            exact: self.exact,
            deterministic: self.deterministic,
            repack: !self.no_repack,
            kv_type: self.kv_type,
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
