//! A step of an encoder: whole texts to a row each.

use crate::{Error, Result};
use realizar_compute::{Backend, Batch, BatchLimits, CacheShape, DType, Heads, OpTime, Profiler};
use realizar_model::tokenizer::Encoding;
use realizar_model::{CacheSizes, Decoder, EncoderOutput, KvCache, Workspace};

/// What an encoder makes, and its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderInfo {
    /// What a row is.
    pub output: EncoderOutput,
    /// Numbers of a row.
    pub output_len: usize,
    /// Most tokens of a text.
    pub max_tokens: usize,
    /// Tokens of a step, at least `max_tokens`.
    pub step_tokens: usize,
    /// Most texts of a step.
    pub max_seqs: usize,
    /// Token ids are less than this.
    pub vocab_size: usize,
}

/// Computes steps. This is where the backend's type disappears.
pub trait EncodeRunner: Send {
    /// What it makes, and its bounds.
    fn info(&self) -> &EncoderInfo;

    /// Makes a row of each text, one after the other in `rows`. Texts are within the bounds, and none is empty.
    fn encode(&mut self, texts: &[&Encoding], rows: &mut Vec<f32>) -> Result<()>;

    /// Starts or stops measuring the parts of a step.
    fn profile(&mut self, _on: bool) {}

    /// What was measured since the last call.
    fn take_profile(&mut self) -> Vec<OpTime> {
        Vec::new()
    }
}

/// A model as an [`EncodeRunner`], with all memory that steps need.
pub struct ModelEncoder<B: Backend> {
    backend: B,
    model: Decoder<B>,
    cache: KvCache<B>,
    ws: Workspace<B>,
    staged: B::Batch,
    batch: Batch,
    block_size: usize,
    info: EncoderInfo,
}

/// Bounds of a [`ModelEncoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EncoderSizes {
    pub(crate) max_tokens: usize,
    pub(crate) step_tokens: usize,
    pub(crate) max_seqs: usize,
    pub(crate) kv_type: DType,
    pub(crate) block_size: usize,
}

impl EncoderSizes {
    /// Blocks of keys and values that a step needs at most: each text may leave one partly empty.
    pub(crate) fn n_blocks(&self) -> usize {
        self.step_tokens / self.block_size + self.max_seqs
    }

    pub(crate) fn limits(&self) -> BatchLimits {
        BatchLimits {
            n_tokens: self.step_tokens,
            n_seqs: self.max_seqs,
            n_blocks: self.n_blocks(),
            n_logits: self.max_seqs,
        }
    }
}

impl<B: Backend> ModelEncoder<B> {
    /// Makes the buffers of an encoder.
    ///
    /// Errors: they do not fit the device's memory.
    pub(crate) fn new(backend: B, model: Decoder<B>, sizes: EncoderSizes) -> realizar_model::Result<Self> {
        let EncoderSizes { max_tokens, step_tokens, max_seqs, kv_type, block_size } = sizes;
        let (limits, n_blocks) = (sizes.limits(), sizes.n_blocks());
        let config = model.config();
        let encoder = config.encoder.as_ref().expect("the caller has looked");
        let cache = CacheSizes { dtype: kv_type, n_blocks, block_size, n_slots: 0 };
        let shape = CacheShape {
            n_blocks,
            block_size,
            n_positions: max_tokens,
            n_slots: 0,
            drafts: false,
            heads: Heads::default(),
            n_token_types: config.n_token_types,
        };
        let info = EncoderInfo {
            output: encoder.output,
            output_len: encoder.output_len(config.hidden_size),
            max_tokens,
            step_tokens,
            max_seqs,
            vocab_size: config.vocab_size,
        };
        Ok(Self {
            cache: KvCache::of_one_layer(&backend, config, cache)?,
            ws: Workspace::new(&backend, model.shard(), &limits)?,
            staged: backend.new_batch(limits, shape)?,
            batch: Batch::default(),
            backend,
            model,
            block_size,
            info,
        })
    }

    fn step(&mut self, texts: &[&Encoding], rows: &mut Vec<f32>) -> realizar_compute::Result<()> {
        self.batch.clear();
        let n_types = self.model.config().n_token_types;
        let mut next = 0;
        for text in texts {
            let n = text.len().div_ceil(self.block_size) as u32;
            let table: Vec<u32> = (next..next + n).collect();
            self.batch.push(&text.tokens, 0, &table, 0);
            if n_types > 0 {
                // Of one type, tokens of a second text are of it, too.
                let is_second = |i: usize| u32::from(n_types > 1 && i >= text.n_first);
                self.batch.token_types.extend((0..text.len()).map(is_second));
            }
            next += n;
        }
        let n_tokens = self.batch.tokens.len();
        self.backend.stage(&mut self.staged, &self.batch)?;
        self.model.encode(
            &self.backend,
            &self.staged,
            n_tokens,
            texts.len(),
            &mut self.cache,
            &mut self.ws,
        )?;
        rows.resize(texts.len() * self.info.output_len, 0.0);
        self.backend.download(rows, self.ws.encoded())
    }
}

impl<B: Backend> EncodeRunner for ModelEncoder<B> {
    fn info(&self) -> &EncoderInfo {
        &self.info
    }

    fn encode(&mut self, texts: &[&Encoding], rows: &mut Vec<f32>) -> Result<()> {
        self.step(texts, rows).map_err(|e| Error::Device { message: e.to_string() })
    }

    fn profile(&mut self, on: bool) {
        if let Some(profiler) = self.backend.profiler() {
            profiler.set(on);
        }
    }

    fn take_profile(&mut self) -> Vec<OpTime> {
        self.backend.profiler().map_or_else(Vec::new, Profiler::take)
    }
}
