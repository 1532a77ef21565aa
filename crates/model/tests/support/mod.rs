//! Running a model without an engine.

use realizar_compute::{Backend, Batch, BatchLimits, CacheShape, DType, StateWrite};
use realizar_model::{CacheSizes, Decoder, DraftFrom, KvCache, StateSpec, Workspace};

const BLOCK_SIZE: usize = 16;
/// Of recurrent state, which moves on from step to step.
const N_SLOTS: usize = 3;

/// One sequence on one backend.
pub(crate) struct Session<'a, B: Backend> {
    backend: &'a B,
    model: &'a Decoder<B>,
    batch: B::Batch,
    cache: KvCache<B>,
    ws: Workspace<B>,
    blocks: Vec<u32>,
    n_slots: usize,
    /// Has the recurrent state, if the model has one.
    slot: u32,
    n_done: usize,
    /// Position of the first token of the last step.
    last_start: usize,
}

impl<'a, B: Backend> Session<'a, B> {
    /// A cache of `n_ctx` tokens of `kv_type`.
    pub(crate) fn new(backend: &'a B, model: &'a Decoder<B>, n_ctx: usize, kv_type: DType) -> Self {
        let n_blocks = n_ctx.div_ceil(BLOCK_SIZE);
        let limits = BatchLimits { n_tokens: n_ctx, n_seqs: 1, n_blocks, n_logits: n_ctx };
        let config = model.shard().config();
        let n_slots = if StateSpec::new(config, kv_type).slot_bytes > 0 { N_SLOTS } else { 0 };
        let shape = CacheShape {
            n_blocks,
            block_size: BLOCK_SIZE,
            n_positions: n_ctx,
            n_slots,
            n_token_types: 0,
            drafts: model.drafts(),
            heads: config.heads_of_all_positions(),
        };
        let sizes = CacheSizes { dtype: kv_type, n_blocks, block_size: BLOCK_SIZE, n_slots };
        // Blocks in an order that is not their positions', so that the table matters.
        let blocks = (0..n_blocks as u32).rev().collect();
        Self {
            backend,
            model,
            batch: backend.new_batch(limits, shape).unwrap(),
            cache: KvCache::new(backend, config, sizes).unwrap(),
            ws: Workspace::new(backend, model.shard(), &limits).unwrap(),
            blocks,
            n_slots,
            slot: 0,
            n_done: 0,
            last_start: 0,
        }
    }

    /// Logits of each of `tokens`.
    pub(crate) fn step(&mut self, tokens: &[u32]) -> Vec<f32> {
        self.try_step(tokens).unwrap()
    }

    pub(crate) fn try_step(&mut self, tokens: &[u32]) -> realizar_compute::Result<Vec<f32>> {
        let n = tokens.len();
        let mut batch = Batch::default();
        batch.push(tokens, self.n_done, &self.blocks[..(self.n_done + n).div_ceil(BLOCK_SIZE)], n);
        if self.model.drafts() {
            batch.previous.push(self.row_before(self.n_done));
        }
        if self.n_slots > 0 {
            let from = (self.n_done > 0).then_some(self.slot);
            self.slot = (self.slot + 1) % N_SLOTS as u32;
            batch.push_state(from, &[StateWrite { n_tokens: n, slot: self.slot }]);
        }
        self.backend.stage(&mut self.batch, &batch)?;
        self.model.forward(self.backend, &self.batch, n, n, &mut self.cache, &mut self.ws)?;
        self.last_start = self.n_done;
        self.n_done += n;
        let mut logits = vec![0.0; n * self.model.config().vocab_size];
        self.backend.download(&mut logits, &self.ws.logits)?;
        Ok(logits)
    }

    /// Row of the last step that held the token before a position of this step or the next.
    fn row_before(&self, position: usize) -> Option<u32> {
        position.checked_sub(1 + self.last_start).map(|row| row as u32)
    }

    /// Logits of the drafting layer for the token of the last step at `position`, or behind it.
    #[allow(dead_code)] // Not all tests that share this draft.
    pub(crate) fn draft(&mut self, token: u32, position: usize) -> Vec<f32> {
        let mut batch = Batch::default();
        batch.push(&[token], position, &self.blocks[..position / BLOCK_SIZE + 1], 1);
        batch.previous.push(self.row_before(position));
        if self.n_slots > 0 {
            batch.push_state((position > 0).then_some(0), &[]);
        }
        let Self { backend, model, batch: staged, cache, ws, .. } = self;
        backend.stage(staged, &batch).unwrap();
        model.draft(*backend, staged, 1, 1, DraftFrom::Model, cache, ws).unwrap();
        let mut logits = vec![0.0; model.config().vocab_size];
        backend.download(&mut logits, &ws.logits).unwrap();
        logits
    }
}

/// Index of the largest value, the lowest of equals.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best }) as u32
}
