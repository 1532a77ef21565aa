//! How a model is loaded.

use crate::{ChatTemplate, Device, EngineConfig, Error, Model, Options, Proposer, TensorSource};
use realizar_engine::load::{CacheSize, load_draft};
use realizar_model::source;
use std::path::{Path, PathBuf};

/// Guesses are usually few when many sequences run, so a step has room for those of this many.
const GUESSING_SEQS: usize = 16;

/// Loads a [`Model`]; see [`Model::builder`].
///
/// ```no_run
/// use realizar::{CacheSize, Device, Model};
///
/// let model = Model::builder("Qwen3-8B-Q4_K_M.gguf")
///     .device(Device::Cuda(vec![0]))
///     .context(8192)
///     .cache(CacheSize::Tokens(32_768))
///     .draft_model("Qwen3-0.6B-Q8_0.gguf")
///     .load()?;
/// # Ok::<(), realizar::Error>(())
/// ```
#[must_use = "a builder does nothing until it loads"]
pub struct ModelBuilder<'a> {
    source: Source<'a>,
    options: Options,
    config: EngineConfig,
    guesses: Guesses,
    template: Option<ChatTemplate>,
}

enum Source<'a> {
    Path(PathBuf),
    Open(&'a dyn TensorSource),
}

enum Guesses {
    /// None, or those of the model's own layer, as [`Options::draft_layer`] says.
    None,
    DraftModel(PathBuf),
    Proposer(Box<dyn Proposer>),
}

impl ModelBuilder<'static> {
    pub(crate) fn of_path(path: &Path) -> Self {
        ModelBuilder::new(Source::Path(path.to_owned()))
    }
}

impl<'a> ModelBuilder<'a> {
    pub(crate) fn of_source(source: &'a dyn TensorSource) -> Self {
        Self::new(Source::Open(source))
    }

    fn new(source: Source<'a>) -> Self {
        let options = Options { draft_layer: true, ..Options::default() };
        Self { source, options, config: EngineConfig::default(), guesses: Guesses::None, template: None }
    }

    /// Where the model runs. Default: the first GPU if it can hold the model, else the CPU.
    pub fn device(mut self, device: Device) -> Self {
        self.options.device = device;
        self
    }

    /// Longest sequence, prompt and answer together, in tokens. Default: the model's own, or less where memory is short.
    pub fn context(mut self, n_tokens: usize) -> Self {
        self.options.n_ctx = Some(n_tokens);
        self
    }

    /// How many tokens the cache of keys and values holds, those of all sequences together. Default: one sequence of the longest.
    pub fn cache(mut self, size: CacheSize) -> Self {
        self.options.cache = size;
        self
    }

    /// Sequences that are computed at the same time at most. Default: 64 on the CPU, 256 on a GPU, within the cache.
    pub fn max_seqs(mut self, n: usize) -> Self {
        self.options.max_seqs = Some(n);
        self
    }

    /// Threads of the CPU; 0 means one per core. Default 0.
    pub fn threads(mut self, n: usize) -> Self {
        self.options.n_threads = n;
        self
    }

    /// Computes with unrounded activations: slower, and the same tokens on every device and in every batch. Default false.
    pub fn exact(mut self, exact: bool) -> Self {
        self.options.exact = exact;
        self
    }

    /// The same answer whatever else runs, on a GPU, too, which is slower then. The CPU has it always. Default false.
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.options.deterministic = deterministic;
        self
    }

    /// Replaces all options for the device and its memory, those set by methods above included, and whether the model's own drafting layer is
    /// used.
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Replaces the options of the engine that schedules requests. The sizes of its steps follow [`ModelBuilder::options`].
    pub fn engine_config(mut self, config: EngineConfig) -> Self {
        self.config = config;
        self
    }

    /// Speeds up generation by a smaller model with the same vocabulary, a `.gguf` file or a Hugging Face folder. It drafts tokens, which
    /// the model verifies several at a time; the text stays the same.
    pub fn draft_model(mut self, path: impl AsRef<Path>) -> Self {
        self.guesses = Guesses::DraftModel(path.as_ref().to_owned());
        self
    }

    /// Generates without drafts, even where the model's file has a layer for them (multi-token prediction). Without this the layer is used as
    /// far as it pays; the text stays the same.
    pub fn without_drafts(mut self) -> Self {
        self.guesses = Guesses::None;
        self.options.draft_layer = false;
        self
    }

    /// Speeds up generation by any source of drafts, such as [`Ngram`](crate::Ngram); the text stays the same.
    pub fn proposer(mut self, proposer: Box<dyn Proposer>) -> Self {
        self.guesses = Guesses::Proposer(proposer);
        self
    }

    /// Renders conversations with this template instead of the model's own.
    pub fn chat_template(mut self, template: ChatTemplate) -> Self {
        self.template = Some(template);
        self
    }

    /// Loads the model and starts its engine.
    ///
    /// Errors: a file cannot be read or is not a model; the draft model has another vocabulary; the device is not there, cannot run the
    /// model, or has too little memory.
    pub fn load(self) -> Result<Model, Error> {
        let Self { source, mut options, config, guesses, template } = self;
        let opened;
        let source = match source {
            Source::Open(source) => source,
            Source::Path(path) => {
                opened = source::open(&path)?;
                &*opened
            }
        };
        options.draft_layer &= matches!(guesses, Guesses::None);
        if (options.draft_layer || !matches!(guesses, Guesses::None)) && options.max_guesses == 0 {
            let n_seqs = options.max_seqs.map_or(GUESSING_SEQS, |n| n.min(GUESSING_SEQS));
            options.max_guesses = config.max_drafts * n_seqs;
        }
        let proposer: Option<Box<dyn Proposer>> = match guesses {
            Guesses::None => None,
            Guesses::DraftModel(path) => {
                Some(Box::new(load_draft(&*source::open(&path)?, source, &options)?))
            }
            Guesses::Proposer(proposer) => Some(proposer),
        };
        Model::start(source, &options, config, proposer, template)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_reach_the_options_of_the_engine() {
        let modes = |builder: ModelBuilder<'_>| (builder.options.exact, builder.options.deterministic);
        let builder = || ModelBuilder::of_path(Path::new("m.gguf"));
        assert_eq!(modes(builder()), (false, false));
        assert_eq!(modes(builder().deterministic(true)), (false, true));
        assert_eq!(modes(builder().deterministic(true).deterministic(false)), (false, false));
        assert_eq!(modes(builder().exact(true)), (true, false));
        let options = Options { deterministic: true, ..Options::default() };
        assert_eq!(modes(builder().options(options)), (false, true));
    }
}
