//! How a model is loaded.

use super::error::LoadError;
use realizar_compute::DType;
#[cfg(feature = "cuda")]
use realizar_compute::cuda::Mode;
use realizar_model::ModelConfig;
use std::fmt;
use std::str::FromStr;

/// Where a model runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The best device that can hold the model.
    #[default]
    Auto,
    /// The processor.
    Cpu,
    /// The NVIDIA GPUs of these numbers; several share the model.
    Cuda(Vec<usize>),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once(':') {
            None if s == "auto" => Ok(Self::Auto),
            None if s == "cpu" => Ok(Self::Cpu),
            None if s == "cuda" => Ok(Self::Cuda(vec![0])),
            Some(("cuda", list)) => {
                let number = |n: &str| n.parse().map_err(|_| format!("{n:?} is not the number of a GPU"));
                list.split(',').map(number).collect::<Result<_, _>>().map(Self::Cuda)
            }
            _ => Err(format!("{s:?} is not one of auto, cpu, cuda, cuda:N, cuda:N,M")),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(list) => {
                let list: Vec<String> = list.iter().map(ToString::to_string).collect();
                write!(f, "cuda:{}", list.join(","))
            }
        }
    }
}

/// Tokens of a step on the CPU, where nothing else is asked for.
pub const CPU_STEP_TOKENS: usize = 512;
/// Tokens of a step on a GPU, where nothing else is asked for: smaller products do not fill it.
pub const GPU_STEP_TOKENS: usize = 2048;

/// Sequences of a step on the CPU, where nothing else is asked for.
pub const CPU_MAX_SEQS: usize = 64;
/// Sequences of a step on a GPU, where nothing else is asked for.
pub const GPU_MAX_SEQS: usize = 256;

/// How much a cache holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheSize {
    /// One sequence of the longest.
    #[default]
    OneSequence,
    /// So many tokens at least.
    Tokens(usize),
    /// All sequences of a step, each of the longest, or as many of their tokens as nine tenths of what is left on a GPU can hold. Of the
    /// CPU's memory it takes 1 GiB at most, unless one sequence needs more.
    AllSequences,
}

/// How a model is loaded.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadOptions {
    /// Where it runs. Default: [`Device::Auto`].
    pub device: Device,
    /// Devices that share the model, each with a part of every weight (tensor parallelism): as many GPUs, from the first that
    /// `device` names on, or exactly those where it names several. Default 1.
    pub tp: usize,
    /// Longest sequence, in tokens; `None`: the model's own, or less where the cache cannot hold it. Default `None`.
    pub n_ctx: Option<usize>,
    /// How much the cache holds, all sequences together. Default [`CacheSize::OneSequence`].
    pub cache: CacheSize,
    /// Size of the cache in bytes, all sequences together; `None` follows `cache`. Default `None`.
    pub kv_memory: Option<usize>,
    /// Models that share what memory is left for caches where `kv_memory` does not say: this one takes one part of so many. Default 1.
    pub cache_share: usize,
    /// Element type of the cache. Default `F16`.
    pub kv_type: DType,
    /// Tokens of a cache block. Default 32.
    pub block_size: usize,
    /// Tokens of a step; `None`: [`CPU_STEP_TOKENS`] or [`GPU_STEP_TOKENS`]. Default `None`.
    pub step_tokens: Option<usize>,
    /// Sequences of a step; `None`: [`CPU_MAX_SEQS`] or [`GPU_MAX_SEQS`]. Default `None`.
    pub max_seqs: Option<usize>,
    /// Guesses that a step verifies at most, of all sequences together. Each is one more row of logits. Default 0.
    pub max_guesses: usize,
    /// Loads the layer that drafts tokens, where the model's file has one; the engine then speculates with it by itself. Without such a layer
    /// `max_guesses` counts as 0. Default false.
    pub draft_layer: bool,
    /// Threads of the CPU backend; 0: as many as the machine has cores. Default 0.
    pub n_threads: usize,
    /// Products with activations as they are, so that every device and batch gives the same tokens. Default false.
    pub exact: bool,
    /// The same answer whatever else runs, on a GPU, too, where batches of different sizes otherwise round differently. The CPU has it always.
    /// Default false.
    pub deterministic: bool,
    /// Reads a Qwen3 whose files do not say it as a reranker that answers "yes" or "no". Only encoders. Default false.
    pub reranker: bool,
    /// Copies weights into the layout that products read fastest. Default true.
    pub repack: bool,
}

impl LoadOptions {
    /// What results on a GPU may depend on.
    #[cfg(feature = "cuda")]
    pub(super) fn mode(&self) -> Mode {
        match (self.exact, self.deterministic) {
            (true, _) => Mode::Exact,
            (false, true) => Mode::Deterministic,
            (false, false) => Mode::Fast,
        }
    }

    /// A model as it is loaded.
    pub(super) fn with_drafts(&self, mut config: ModelConfig) -> ModelConfig {
        if !self.draft_layer {
            config.without_draft_layers();
        }
        config
    }

    /// Errors: a context or a step that would hold nothing.
    pub(super) fn check(&self) -> Result<(), LoadError> {
        let sizes =
            [("--ctx", self.n_ctx), ("--max-seqs", self.max_seqs), ("--step-tokens", self.step_tokens)];
        match sizes.into_iter().find(|(_, size)| *size == Some(0)) {
            Some((option, _)) => {
                let (value, reason) = ("0".to_owned(), "it must be at least 1".to_owned());
                Err(LoadError::Option { option, value, reason })
            }
            None => Ok(()),
        }
    }
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            device: Device::Auto,
            tp: 1,
            n_ctx: None,
            cache: CacheSize::OneSequence,
            kv_memory: None,
            cache_share: 1,
            kv_type: DType::F16,
            block_size: 32,
            step_tokens: None,
            max_seqs: None,
            max_guesses: 0,
            draft_layer: false,
            n_threads: 0,
            exact: false,
            deterministic: false,
            reranker: false,
            repack: true,
        }
    }
}

#[cfg(all(test, feature = "cuda"))]
mod tests {
    use super::*;

    #[test]
    fn the_strictest_mode_that_is_asked_for_counts() {
        let mode =
            |exact, deterministic| LoadOptions { exact, deterministic, ..LoadOptions::default() }.mode();
        assert_eq!(mode(false, false), Mode::Fast);
        assert_eq!(mode(false, true), Mode::Deterministic);
        assert_eq!([mode(true, false), mode(true, true)], [Mode::Exact; 2]);
    }
}
