//! Texts to vectors.

use crate::{Error, Options, Tokenizer};
use realizar_engine::encoder::{EncoderEngine, Encoding, Pending, TextEncoder};
use realizar_engine::load::load_encoder;
use realizar_model::EncoderOutput;
use realizar_model::source;
use std::path::Path;
use std::sync::Arc;

/// An embedding model on its device, with its tokenizer.
///
/// ```no_run
/// let embedder = realizar::Embedder::load("bge-small-en-v1.5-q8_0.gguf")?;
/// let vectors = embedder.embed(&["a red fox", "a brown dog"])?;
/// let similarity: f32 = vectors[0].iter().zip(&vectors[1]).map(|(a, b)| a * b).sum();
/// # Ok::<(), realizar::Error>(())
/// ```
pub struct Embedder {
    encoder: TextEncoder,
    device: String,
    /// Stops the encoder's thread when it is dropped.
    _engine: EncoderEngine,
}

impl Embedder {
    /// Loads a `.gguf` file or a Hugging Face folder with default options.
    ///
    /// Errors: as [`Embedder::load_with`].
    pub fn load(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::load_with(path, &Options::default())
    }

    /// Loads a `.gguf` file or a Hugging Face folder. `options.n_ctx` is the longest text, by default the model's own, but at most 8192
    /// tokens. Options for the cache and for drafts have no effect.
    ///
    /// Errors: the file cannot be read, or is not an embedding model; the device cannot run it.
    pub fn load_with(path: impl AsRef<Path>, options: &Options) -> Result<Self, Error> {
        let source = source::open(path.as_ref())?;
        let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
        let loaded = load_encoder(&*source, options, None)?;
        if !matches!(loaded.runner.info().output, EncoderOutput::Embedding { .. }) {
            return Err(Error::Reranker { arch: loaded.config.arch });
        }
        let engine = EncoderEngine::start(loaded.runner, usize::MAX)?;
        let encoder = TextEncoder::new(engine.client(), tokenizer, &*source)?;
        Ok(Self { encoder, device: loaded.device, _engine: engine })
    }

    /// One vector per text, in their order. Shape `[n_texts, dimensions]`. Vectors have length 1 if the model's files ask for it, as most do.
    ///
    /// Errors: a text has no tokens or more than [`Embedder::max_tokens`]; the device failed.
    pub fn embed(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.start(texts)?.wait()?)
    }

    /// As [`Embedder::embed`], on any async runtime. Dropping the future cancels the texts that have not begun.
    ///
    /// Errors: as [`Embedder::embed`].
    pub async fn embed_async(&self, texts: &[impl AsRef<str>]) -> Result<Vec<Vec<f32>>, Error> {
        Ok(self.start(texts)?.await?)
    }

    fn start(&self, texts: &[impl AsRef<str>]) -> Result<Pending, Error> {
        let texts: Vec<Encoding> = texts.iter().map(|text| self.encoder.tokens(text.as_ref())).collect();
        Ok(self.encoder.client().encode(texts)?)
    }

    /// Numbers of a vector.
    pub fn dimensions(&self) -> usize {
        self.encoder.client().info().output_len
    }

    /// Longest text, in tokens, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.encoder.client().info().max_tokens
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.encoder.tokenizer()
    }

    /// The device in words.
    pub fn device(&self) -> &str {
        &self.device
    }
}
