//! A model on a backend, as a [`Runner`].

use crate::sampler::Sampler;
use crate::{BlockCopy, Result, Runner, RunnerInfo, Sampled, Step, Ticket};
use realizar_compute::{Backend, Batch, BatchLimits, DType, GraphKey, OpTime, Profiler};
use realizar_model::{Decoder, KvCache, Workspace};

/// Runs a [`Decoder`] and chooses tokens on the host.
///
/// A step is complete when `launch` returns; its outcome waits for `finish`.
pub struct ModelRunner<B: Backend> {
    backend: B,
    model: Decoder<B>,
    cache: KvCache<B>,
    ws: Workspace<B>,
    staged: B::Batch,
    info: RunnerInfo,
    /// Whom the backend's recorded steps belong to.
    owner: u64,
    sampler: Sampler,
    /// The step's batch with its deferred tokens filled in.
    batch: Batch,
    logits: Vec<f32>,
    /// Tokens of the step launched last, one per row; 0 where none could be chosen.
    previous: Vec<u32>,
    launched: u64,
    outcomes: std::collections::VecDeque<(Ticket, Sampled)>,
}

/// Sizes of a [`ModelRunner`]'s buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerSizes {
    /// Blocks of the cache.
    pub n_blocks: usize,
    /// Tokens in a block.
    pub block_size: usize,
    /// Element type of the cache.
    pub kv_type: DType,
    /// Longest sequence, in tokens.
    pub context_length: usize,
    /// Tokens of a step.
    pub step_tokens: usize,
    /// Sequences of a step.
    pub max_seqs: usize,
    /// Rows of logits of a step.
    pub max_logits: usize,
}

impl<B: Backend> ModelRunner<B> {
    /// Makes the buffers.
    ///
    /// Errors: they do not fit the device's memory.
    pub fn new(backend: B, model: Decoder<B>, sizes: &RunnerSizes) -> realizar_model::Result<Self> {
        let config = model.config();
        let blocks_per_seq = sizes.context_length.div_ceil(sizes.block_size).min(sizes.n_blocks);
        let limits = BatchLimits {
            n_tokens: sizes.step_tokens,
            n_seqs: sizes.max_seqs,
            // Sequences may share blocks, so that their tables together can be longer than the cache.
            n_blocks: blocks_per_seq * sizes.max_seqs,
            n_logits: sizes.max_logits,
        };
        let info = RunnerInfo {
            vocab_size: config.vocab_size,
            n_blocks: sizes.n_blocks,
            block_size: sizes.block_size,
            context_length: sizes.context_length,
            limits,
            asynchronous: false,
        };
        Ok(Self {
            cache: KvCache::new(&backend, config, sizes.kv_type, sizes.n_blocks, sizes.block_size)?,
            ws: Workspace::new(&backend, config, &limits)?,
            staged: backend.new_batch(limits)?,
            info,
            owner: GraphKey::new_owner(),
            sampler: Sampler::new(),
            batch: Batch::default(),
            logits: vec![0.0; config.vocab_size * sizes.max_logits],
            previous: Vec::with_capacity(sizes.max_logits),
            launched: 0,
            outcomes: Default::default(),
            model,
            backend,
        })
    }

    /// The model.
    pub fn model(&self) -> &Decoder<B> {
        &self.model
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }
}

impl<B: Backend> Drop for ModelRunner<B> {
    fn drop(&mut self) {
        self.backend.forget(self.owner);
    }
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        for c in copies {
            self.cache.copy_block(&self.backend, c.to as usize, c.from as usize)?;
        }
        Ok(())
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        self.batch.clone_from(&step.batch);
        for &(token, row) in &step.batch.deferred {
            self.batch.tokens[token] = self.previous[row];
        }
        self.backend.stage(&mut self.staged, &self.batch)?;
        let (n_tokens, n_logits) = (self.batch.tokens.len(), self.batch.n_logits());
        assert_eq!(n_logits, step.rows.len(), "a row for each row of logits");
        let (backend, staged, cache, ws) = (&self.backend, &self.staged, &mut self.cache, &mut self.ws);
        let mut forward = || self.model.forward(backend, staged, n_tokens, n_logits, cache, ws);
        // Steps of one token per sequence differ only in what the batch says. A profiler has to see each part.
        let profiled = backend.profiler().is_some_and(Profiler::is_on);
        if !profiled && self.batch.seqs.iter().all(|s| s.tokens.len() == 1) {
            backend.captured(GraphKey { owner: self.owner, n_tokens, n_logits }, forward)?;
        } else {
            forward()?;
        }
        // A replayed step leaves the buffers' lengths as another step set them.
        self.ws.set_rows(n_tokens, n_logits);
        let sampled = self.backend.timed("sample", || {
            let logits = &mut self.logits[..n_logits * self.info.vocab_size];
            if n_logits > 0 {
                self.backend.download(logits, &self.ws.logits)?;
            }
            let rows = logits.chunks_exact_mut(self.info.vocab_size).enumerate();
            Ok(Sampled {
                rows: rows.map(|(i, row)| self.sampler.sample(row, step, i, &self.previous)).collect(),
            })
        })?;
        self.previous.clear();
        self.previous.extend(sampled.rows.iter().map(|r| r.as_ref().map_or(0, |c| c.token)));
        self.launched += 1;
        self.outcomes.push_back((Ticket(self.launched), sampled));
        Ok(Ticket(self.launched))
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        let (oldest, sampled) = self.outcomes.pop_front().expect("a ticket belongs to a launched step");
        assert_eq!(oldest, ticket, "steps are finished in the order of their launches");
        Ok(sampled)
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
