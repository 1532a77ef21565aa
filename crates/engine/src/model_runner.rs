//! A model on a backend, as a [`Runner`].

use crate::ranks::{ModelRank, Order, OtherRanks};
use crate::sampler::{self, Sampler};
use crate::{
    BlockCopy, CacheFormat, Choice, Result, Row, Runner, RunnerInfo, RunnerSizes, SampleError, Sampled, Step,
    Ticket,
};
use realizar_compute::sampling::{LastToken, SamplerRow, Samplers};
use realizar_compute::{Backend, BatchLimits, Choosing, OpTime, Profiler};
use realizar_model::{CacheUnit, Decoder};
use std::collections::VecDeque;

/// Runs a [`Decoder`], or the ranks of one that several devices share.
///
/// Where the backend is asynchronous, the device chooses, and `launch` returns while it computes. Otherwise a step is complete when
/// `launch` returns, and tokens are chosen on the host, except by argmax. So are those whose log-probabilities are wanted. Its
/// outcome waits for `finish`.
pub struct ModelRunner<B: Backend> {
    /// Dropped before the first rank, whose work it may wait for.
    others: OtherRanks,
    first: ModelRank<B>,
    info: RunnerInfo,
    sampler: Sampler,
    logits: Vec<f32>,
    /// Tokens of the step launched last, one per row; 0 where none could be chosen. `None`: they are on the device.
    previous: Option<Vec<u32>>,
    launched: u64,
    outcomes: VecDeque<(Ticket, Outcome<B>)>,
}

/// What a step brought.
enum Outcome<B: Backend> {
    Known(Sampled),
    OnDevice(B::Choices),
}

impl<B: Backend> ModelRunner<B> {
    /// Makes the buffers. `ranks`: every rank of the model, in their order; one for a device that has all of it.
    ///
    /// Errors: they do not fit the device's memory.
    ///
    /// # Panics
    /// Without ranks, or with others than that.
    pub fn new(ranks: Vec<(B, Decoder<B>)>, sizes: &RunnerSizes) -> realizar_model::Result<Self> {
        let blocks_per_seq = sizes.context_length.div_ceil(sizes.block_size).min(sizes.n_blocks);
        let limits = BatchLimits {
            n_tokens: sizes.step_tokens,
            n_seqs: sizes.max_seqs,
            // Sequences may share blocks, so that their tables together can be longer than the cache.
            n_blocks: blocks_per_seq * sizes.max_seqs,
            n_logits: sizes.max_logits,
        };
        let count = ranks.len();
        let mut made = Vec::with_capacity(count);
        for (index, (backend, model)) in ranks.into_iter().enumerate() {
            assert_eq!((backend.rank().index, backend.rank().count), (index, count), "all ranks in order");
            made.push(ModelRank::new(backend, model, sizes, limits)?);
        }
        let first = made.remove(0);
        let others = OtherRanks::start(made).map_err(|e| realizar_compute::Error::Device {
            device: first.backend.describe(),
            message: format!("no thread for another rank: {e}"),
        })?;
        let vocab_size = first.model.config().vocab_size;
        let info = RunnerInfo {
            vocab_size,
            n_blocks: sizes.n_blocks,
            block_size: sizes.block_size,
            context_length: sizes.context_length,
            limits,
            slots: sizes.slots,
            asynchronous: first.backend.is_asynchronous(),
            drafts: first.model.drafts(),
        };
        Ok(Self {
            others,
            first,
            info,
            sampler: Sampler::new(),
            logits: vec![0.0; vocab_size * sizes.max_logits],
            previous: Some(Vec::new()),
            launched: 0,
            outcomes: Default::default(),
        })
    }

    /// The model, or the first rank's part.
    pub fn model(&self) -> &Decoder<B> {
        &self.first.model
    }

    /// The device, or the first.
    pub fn backend(&self) -> &B {
        &self.first.backend
    }

    /// Chooses tokens from the step's logits on the host.
    fn sample(&mut self, step: &Step, n_logits: usize) -> Result<Sampled> {
        let previous = self.previous.take().unwrap_or_default();
        let ModelRank { backend, ws, .. } = &self.first;
        let sampled = backend.timed("sample", || {
            let logits = &mut self.logits[..n_logits * self.info.vocab_size];
            if n_logits > 0 {
                backend.download(logits, &ws.logits)?;
            }
            let rows = logits.chunks_exact_mut(self.info.vocab_size).enumerate();
            Ok(Sampled { rows: rows.map(|(i, row)| self.sampler.sample(row, step, i, &previous)).collect() })
        })?;
        self.previous = Some(tokens(&sampled));
        Ok(sampled)
    }

    /// Waits for the tokens of the step launched last, if they are on the device.
    fn learn_previous(&mut self) -> Result<()> {
        if self.previous.is_some() {
            return Ok(());
        }
        // Without an outcome that waits, the step was finished, and its caller knows its tokens.
        let Some((ticket, Outcome::OnDevice(choices))) = self.outcomes.pop_back() else {
            self.previous = Some(Vec::new());
            return Ok(());
        };
        let sampled = wait(&self.first.backend, choices)?;
        self.previous = Some(tokens(&sampled));
        self.outcomes.push_back((ticket, Outcome::Known(sampled)));
        Ok(())
    }
}

/// Whether a row wants a token and nothing else.
fn is_choice(row: &Row) -> bool {
    row.given.is_none() && row.n_logprobs.is_none()
}

/// What the device is to do with a step's rows. `previous`: the tokens of the step launched just before, if the host knows them.
fn samplers(step: &Step, previous: Option<&[u32]>) -> Samplers {
    let rows = step.rows.iter().map(|row| SamplerRow {
        params: row.params.clone(),
        prompt: row.prompt.clone(),
        generated: row.generated.clone(),
        last: row.unseen.map(|row| match previous {
            Some(tokens) => LastToken::Known(tokens[row]),
            None => LastToken::Chosen(row),
        }),
        mask: row.mask.clone(),
        uniform: row.uniform,
    });
    Samplers { rows: rows.collect(), history: step.history.clone(), masks: step.masks.clone() }
}

fn tokens(sampled: &Sampled) -> Vec<u32> {
    sampled.rows.iter().map(|r| r.as_ref().map_or(0, |c| c.token)).collect()
}

fn wait<B: Backend>(backend: &B, choices: B::Choices) -> Result<Sampled> {
    let mut found = Vec::new();
    backend.wait_for_choices(choices, &mut found)?;
    let rows = found
        .into_iter()
        .map(|chosen| Ok(Choice { token: SampleError::check(chosen)?, ..Choice::default() }));
    Ok(Sampled { rows: rows.collect() })
}

impl<B: Backend> Runner for ModelRunner<B> {
    fn info(&self) -> RunnerInfo {
        self.info
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        self.others.copy_blocks(&mut self.first, copies)
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        let is_argmax = step.rows.iter().all(|row| sampler::input(step, row, None).is_argmax());
        // Other choices are quicker on the host where nobody runs ahead.
        let on_device = step.rows.iter().all(is_choice) && (self.info.asynchronous || is_argmax);
        let ahead = on_device && self.info.asynchronous;
        if !ahead && step.rows.iter().any(|r| r.unseen.is_some()) {
            self.learn_previous()?;
        }
        let choosing = match on_device {
            true if step.rows.is_empty() => Choosing::Nothing,
            true if is_argmax => Choosing::Argmax,
            true => Choosing::Sampled,
            false => Choosing::Nothing,
        };
        let mut batch = step.batch.clone();
        if let Some(previous) = &self.previous {
            for &(token, row) in &step.batch.deferred {
                batch.tokens[token] = previous[row];
            }
            batch.deferred.clear();
        }
        let n_logits = batch.n_logits();
        assert_eq!(n_logits, step.rows.len(), "a row for each row of logits");
        let samplers = match choosing {
            Choosing::Sampled => samplers(step, self.previous.as_deref()),
            _ => Samplers::default(),
        };
        self.others.compute(&mut self.first, Order { pass: step.pass, batch, choosing, samplers })?;
        let outcome = match choosing {
            Choosing::Nothing => Outcome::Known(self.sample(step, n_logits)?),
            Choosing::Argmax | Choosing::Sampled => {
                self.previous = None;
                Outcome::OnDevice(self.first.backend.fetch_choices(&mut self.first.staged)?)
            }
        };
        self.launched += 1;
        self.outcomes.push_back((Ticket(self.launched), outcome));
        Ok(Ticket(self.launched))
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        let (oldest, outcome) = self.outcomes.pop_front().expect("a ticket belongs to a launched step");
        assert_eq!(oldest, ticket, "steps are finished in the order of their launches");
        match outcome {
            Outcome::Known(sampled) => Ok(sampled),
            Outcome::OnDevice(choices) => wait(&self.first.backend, choices),
        }
    }

    fn recover(&mut self) -> Result<()> {
        Ok(self.first.backend.synchronize()?)
    }

    fn cache_format(&mut self) -> Option<CacheFormat> {
        // The first rank has only a part of the bytes.
        self.others.is_empty().then(|| self.first.cache_format())
    }

    fn read_cache(&mut self, unit: CacheUnit, out: &mut [u8]) -> Result<()> {
        Ok(self.first.cache.read_unit(&self.first.backend, unit, out)?)
    }

    fn write_cache(&mut self, unit: CacheUnit, bytes: &[u8]) -> Result<()> {
        Ok(self.first.cache.write_unit(&self.first.backend, unit, bytes)?)
    }

    fn profile(&mut self, on: bool) {
        if let Some(profiler) = self.first.backend.profiler() {
            profiler.set(on);
        }
    }

    fn take_profile(&mut self) -> Vec<OpTime> {
        self.first.backend.profiler().map_or_else(Vec::new, Profiler::take)
    }
}
