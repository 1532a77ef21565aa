//! The ranks of a model that several devices share: the same steps for each, the first on the caller's thread and every other on a
//! thread of its own.
//!
//! All ranks hold the same logits in the end and choose the same tokens from them, so nothing goes back but whether it worked.

use crate::runner::{Pass, RunnerSizes};
use crate::{BlockCopy, CacheFormat, Error, Result};
use realizar_compute::sampling::Samplers;
use realizar_compute::{
    Backend, Batch, BatchLimits, CacheShape, Choosing, Error as ComputeError, GraphKey, Profiler,
};
use realizar_model::{CacheSizes, CacheUnit, Decoder, DraftFrom, KvCache, Workspace};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// What every rank computes.
pub(crate) struct Order {
    pub(crate) pass: Pass,
    /// With its deferred tokens filled in, where the host knows them.
    pub(crate) batch: Batch,
    /// How the step ends.
    pub(crate) choosing: Choosing,
    /// What to do with each row of logits, where they are sampled.
    pub(crate) samplers: Samplers,
}

/// What tells apart steps that are worth recording, besides their sizes: `None` for steps that come up once, as those of prompts do.
fn shape(pass: Pass, batch: &Batch) -> Option<u64> {
    let only_singles = batch.seqs.iter().all(|s| s.tokens.len() == 1);
    match pass {
        Pass::Model => {}
        Pass::Draft(DraftFrom::Model) => return only_singles.then_some(u64::MAX),
        Pass::Draft(DraftFrom::Draft) => return only_singles.then_some(u64::MAX - 1),
    }
    if only_singles {
        return Some(0);
    }
    // Guesses to verify: each token yields logits.
    if batch.seqs.iter().any(|s| s.n_logits != s.tokens.len()) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    batch.seqs.iter().for_each(|s| s.tokens.len().hash(&mut hasher));
    Some(hasher.finish().clamp(1, u64::MAX - 2))
}

/// A model, or its part, with all memory that steps need.
pub(crate) struct ModelRank<B: Backend> {
    pub(crate) backend: B,
    pub(crate) model: Decoder<B>,
    pub(crate) cache: KvCache<B>,
    pub(crate) ws: Workspace<B>,
    pub(crate) staged: B::Batch,
    /// Whom the backend's recorded steps belong to.
    owner: u64,
}

impl<B: Backend> ModelRank<B> {
    pub(crate) fn new(
        backend: B,
        model: Decoder<B>,
        sizes: &RunnerSizes,
        limits: BatchLimits,
    ) -> realizar_model::Result<Self> {
        let shard = model.shard();
        let shape = CacheShape {
            n_blocks: sizes.n_blocks,
            block_size: sizes.block_size,
            n_positions: sizes.context_length,
            n_slots: sizes.slots.map_or(0, |s| s.n_slots),
            n_token_types: 0,
            drafts: model.drafts(),
            heads: shard.config().heads_of_all_positions(),
        };
        let cache = CacheSizes {
            dtype: sizes.kv_type,
            n_blocks: sizes.n_blocks,
            block_size: sizes.block_size,
            n_slots: shape.n_slots,
        };
        Ok(Self {
            cache: KvCache::new(&backend, shard.config(), cache)?,
            ws: Workspace::new(&backend, shard, &limits)?,
            staged: backend.new_batch(limits, shape)?,
            owner: GraphKey::new_owner(),
            model,
            backend,
        })
    }

    /// Enqueues a step.
    pub(crate) fn compute(&mut self, order: &Order) -> realizar_compute::Result<()> {
        let Self { backend, model, cache, ws, staged, owner } = self;
        let (batch, choosing) = (&order.batch, order.choosing);
        let (n_tokens, n_logits) = (batch.tokens.len(), batch.n_logits());
        // A batch that one rank refuses is refused by all, and nobody begins.
        let staged_batch = match backend.stage(staged, batch) {
            Err(refused @ (ComputeError::BatchTooLarge { .. } | ComputeError::InvalidBatch { .. })) => {
                return Err(refused);
            }
            found => found,
        };
        let staged_all = staged_batch.and_then(|()| match choosing {
            Choosing::Sampled => backend.stage_samplers(staged, &order.samplers),
            _ => Ok(()),
        });
        let mut forward = || {
            match order.pass {
                Pass::Model => model.forward(backend, staged, n_tokens, n_logits, cache, ws)?,
                Pass::Draft(from) => model.draft(backend, staged, n_tokens, n_logits, from, cache, ws)?,
            }
            match choosing {
                Choosing::Nothing => Ok(()),
                Choosing::Argmax => backend.timed("sample", || backend.argmax(staged, &ws.logits)),
                Choosing::Sampled => backend.timed("sample", || backend.sample(staged, &mut ws.logits)),
            }
        };
        // Steps of one shape differ only in what the batch says. A profiler has to see each part.
        let profiled = backend.profiler().is_some_and(Profiler::is_on);
        let computed = staged_all.and_then(|()| match shape(order.pass, batch).filter(|_| !profiled) {
            Some(shape) => {
                let key = GraphKey { owner: *owner, n_tokens, n_logits, choosing, shape };
                backend.captured(key, forward)
            }
            None => forward(),
        });
        if computed.is_err() {
            // The others would wait for what this rank did not enqueue.
            backend.leave();
        }
        // A replayed step leaves the buffers' lengths as another step set them.
        ws.set_rows(n_tokens, n_logits);
        computed
    }

    /// What the bytes of the cache mean.
    pub(crate) fn cache_format(&mut self) -> CacheFormat {
        let Self { backend, cache, .. } = self;
        CacheFormat {
            device: backend.cache_format(),
            dtype: cache.dtype(),
            block_bytes: cache.unit_bytes(backend, CacheUnit::Block(0)),
            slot_bytes: cache.unit_bytes(backend, CacheUnit::Slot(0)),
        }
    }

    pub(crate) fn copy_blocks(&mut self, copies: &[BlockCopy]) -> realizar_compute::Result<()> {
        copies.iter().try_for_each(|c| self.cache.copy_block(&self.backend, c.to as usize, c.from as usize))
    }
}

impl<B: Backend> Drop for ModelRank<B> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.backend.leave();
        }
        self.backend.forget(self.owner);
    }
}

#[derive(Clone)]
enum Command {
    Compute(Arc<Order>),
    CopyBlocks(Arc<[BlockCopy]>),
}

/// All ranks but the first.
#[derive(Default)]
pub(crate) struct OtherRanks(Vec<RankThread>);

struct RankThread {
    /// `None` when the thread is to end.
    commands: Option<Sender<Command>>,
    outcomes: Receiver<realizar_compute::Result<()>>,
    thread: Option<JoinHandle<()>>,
}

impl OtherRanks {
    /// Starts a thread for each rank.
    ///
    /// Errors: the system refuses one.
    pub(crate) fn start<B: Backend>(ranks: Vec<ModelRank<B>>) -> std::io::Result<Self> {
        let start = |mut rank: ModelRank<B>| {
            let (commands, orders) = channel();
            let (report, outcomes) = channel();
            let name = format!("rank-{}", rank.backend.rank().index);
            let work = move || {
                // Ends with the runner, which drops its end.
                for command in orders {
                    let outcome = match command {
                        Command::Compute(order) => rank.compute(&order),
                        Command::CopyBlocks(copies) => rank.copy_blocks(&copies),
                    };
                    if report.send(outcome).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name(name).spawn(work)?;
            Ok(RankThread { commands: Some(commands), outcomes, thread: Some(thread) })
        };
        Ok(Self(ranks.into_iter().map(start).collect::<std::io::Result<_>>()?))
    }

    /// Whether the first rank is alone.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Computes a step on all ranks, `first` being the first.
    pub(crate) fn compute<B: Backend>(&self, first: &mut ModelRank<B>, order: Order) -> Result<()> {
        if self.0.is_empty() {
            return Ok(first.compute(&order)?);
        }
        let order = Arc::new(order);
        self.send(&Command::Compute(order.clone()));
        self.finish(first.compute(&order))
    }

    /// Copies blocks on all ranks.
    pub(crate) fn copy_blocks<B: Backend>(
        &self,
        first: &mut ModelRank<B>,
        copies: &[BlockCopy],
    ) -> Result<()> {
        if !self.0.is_empty() {
            self.send(&Command::CopyBlocks(copies.into()));
        }
        self.finish(first.copy_blocks(copies))
    }

    fn send(&self, command: &Command) {
        for rank in &self.0 {
            // A thread that ended is missed when its outcome is.
            let _ = rank.commands.as_ref().map(|c| c.send(command.clone()));
        }
    }

    /// What the first rank and all others met with.
    fn finish(&self, first: realizar_compute::Result<()>) -> Result<()> {
        let mut found = first.map_err(Error::from);
        for rank in &self.0 {
            let ended = || Err(Error::EngineFailed { message: "the thread of a rank ended".into() });
            let outcome = rank.outcomes.recv().map_or_else(|_| ended(), |o| o.map_err(Error::from));
            found = found.and(outcome);
        }
        found
    }
}

impl Drop for OtherRanks {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(|r| r.commands = None);
        for rank in &mut self.0 {
            if let Some(thread) = rank.thread.take() {
                // Its panic was reported when it happened.
                let _ = thread.join();
            }
        }
    }
}
