//! A model on a backend, as a [`Runner`].

use crate::sampler::Sampler;
use crate::{BlockCopy, Choice, Result, Row, Runner, RunnerInfo, SampleError, Sampled, Step, Ticket};
use realizar_compute::sampling::{LastToken, SamplerRow, Samplers};
use realizar_compute::{Backend, Batch, BatchLimits, Choosing, Chosen, DType, GraphKey, OpTime, Profiler};
use realizar_model::{Decoder, KvCache, Workspace};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Runs a [`Decoder`].
///
/// Where the backend is asynchronous, the device chooses, and `launch` returns while it computes. Otherwise, and where log-probabilities
/// are wanted, tokens are chosen on the host, and a step is complete when `launch` returns. Its outcome waits for `finish`.
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
    samplers: Samplers,
    /// The step's batch with its deferred tokens filled in.
    batch: Batch,
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
            asynchronous: backend.is_asynchronous(),
        };
        Ok(Self {
            cache: KvCache::new(&backend, config, sizes.kv_type, sizes.n_blocks, sizes.block_size)?,
            ws: Workspace::new(&backend, config, &limits)?,
            staged: backend.new_batch(limits)?,
            info,
            owner: GraphKey::new_owner(),
            sampler: Sampler::new(),
            samplers: Samplers::default(),
            batch: Batch::default(),
            logits: vec![0.0; config.vocab_size * sizes.max_logits],
            previous: Some(Vec::new()),
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

    /// Chooses tokens from the step's logits on the host.
    fn sample(&mut self, step: &Step, n_logits: usize) -> Result<Sampled> {
        let previous = self.previous.take().unwrap_or_default();
        let sampled = self.backend.timed("sample", || {
            let logits = &mut self.logits[..n_logits * self.info.vocab_size];
            if n_logits > 0 {
                self.backend.download(logits, &self.ws.logits)?;
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
        let sampled = wait(&self.backend, choices)?;
        self.previous = Some(tokens(&sampled));
        self.outcomes.push_back((ticket, Outcome::Known(sampled)));
        Ok(())
    }
}

/// Whether a row wants a token and nothing else.
fn is_choice(row: &Row) -> bool {
    row.given.is_none() && row.n_logprobs.is_none()
}

/// Whether a row's choice is the token with the largest logit, as the model computed it.
fn takes_likeliest(row: &Row) -> bool {
    let p = &row.params;
    p.is_greedy() && !p.has_penalties() && p.logit_bias.is_empty() && row.mask.is_none()
}

/// What the device is to do with a step's rows. `previous`: the tokens of the step launched just before, if the host knows them.
pub(crate) fn set_samplers(samplers: &mut Samplers, step: &Step, previous: Option<&[u32]>) {
    samplers.clear();
    samplers.history.extend_from_slice(&step.history);
    samplers.masks.extend_from_slice(&step.masks);
    for row in &step.rows {
        let (p, first_bias) = (&row.params, samplers.biases.len());
        samplers.biases.extend_from_slice(&p.logit_bias);
        samplers.rows.push(SamplerRow {
            temperature: p.temperature,
            top_k: p.top_k,
            top_p: p.top_p,
            min_p: p.min_p,
            repetition_penalty: p.repetition_penalty,
            frequency_penalty: p.frequency_penalty,
            presence_penalty: p.presence_penalty,
            biases: first_bias..samplers.biases.len(),
            prompt: row.prompt.clone(),
            generated: row.generated.clone(),
            last: row.unseen.map(|row| match previous {
                Some(tokens) => LastToken::Known(tokens[row]),
                None => LastToken::Chosen(row),
            }),
            mask: row.mask.clone(),
            uniform: row.uniform,
        });
    }
}

/// What tells apart steps that are worth recording, besides their sizes: `None` for steps that come up once, as those of prompts do.
fn shape(batch: &Batch) -> Option<u64> {
    if batch.seqs.iter().all(|s| s.tokens.len() == 1) {
        return Some(0);
    }
    // Guesses to verify: each token yields logits.
    if batch.seqs.iter().any(|s| s.n_logits != s.tokens.len()) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    batch.seqs.iter().for_each(|s| s.tokens.len().hash(&mut hasher));
    Some(hasher.finish().max(1))
}

fn tokens(sampled: &Sampled) -> Vec<u32> {
    sampled.rows.iter().map(|r| r.as_ref().map_or(0, |c| c.token)).collect()
}

fn wait<B: Backend>(backend: &B, choices: B::Choices) -> Result<Sampled> {
    let mut found = Vec::new();
    backend.wait_for_choices(choices, &mut found)?;
    let rows = found.into_iter().map(|choice| match choice {
        Chosen::Token(token) => Ok(Choice { token, ..Choice::default() }),
        Chosen::NotFinite { token, nan } => Err(SampleError::NotFinite { token, nan }),
        Chosen::Nothing => Err(SampleError::NothingAllowed),
    });
    Ok(Sampled { rows: rows.collect() })
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
        let on_device = self.backend.is_asynchronous() && step.rows.iter().all(is_choice);
        if !on_device && step.rows.iter().any(|r| r.unseen.is_some()) {
            self.learn_previous()?;
        }
        let choosing = match on_device {
            true if step.rows.is_empty() => Choosing::Nothing,
            true if step.rows.iter().all(takes_likeliest) => Choosing::Likeliest,
            true => Choosing::Sampled,
            false => Choosing::Nothing,
        };
        self.batch.clone_from(&step.batch);
        if let Some(previous) = &self.previous {
            for &(token, row) in &step.batch.deferred {
                self.batch.tokens[token] = previous[row];
            }
            self.batch.deferred.clear();
        }
        self.backend.stage(&mut self.staged, &self.batch)?;
        let (n_tokens, n_logits) = (self.batch.tokens.len(), self.batch.n_logits());
        assert_eq!(n_logits, step.rows.len(), "a row for each row of logits");
        if choosing == Choosing::Sampled {
            set_samplers(&mut self.samplers, step, self.previous.as_deref());
            self.backend.stage_samplers(&mut self.staged, &self.samplers)?;
        }
        let (backend, staged, cache, ws) = (&self.backend, &mut self.staged, &mut self.cache, &mut self.ws);
        let mut forward = || {
            self.model.forward(backend, staged, n_tokens, n_logits, cache, ws)?;
            match choosing {
                Choosing::Nothing => Ok(()),
                Choosing::Likeliest => {
                    backend.timed("sample", || backend.choose_likeliest(staged, &ws.logits))
                }
                Choosing::Sampled => backend.timed("sample", || backend.sample(staged, &mut ws.logits)),
            }
        };
        // Steps of one shape differ only in what the batch says. A profiler has to see each part.
        let profiled = backend.profiler().is_some_and(Profiler::is_on);
        match shape(&self.batch).filter(|_| !profiled) {
            Some(shape) => {
                let key = GraphKey { owner: self.owner, n_tokens, n_logits, choosing, shape };
                backend.captured(key, forward)?;
            }
            None => forward()?,
        }
        // A replayed step leaves the buffers' lengths as another step set them.
        self.ws.set_rows(n_tokens, n_logits);
        let outcome = match choosing {
            Choosing::Nothing => Outcome::Known(self.sample(step, n_logits)?),
            Choosing::Likeliest | Choosing::Sampled => {
                self.previous = None;
                Outcome::OnDevice(self.backend.fetch_choices(&self.staged)?)
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
            Outcome::OnDevice(choices) => wait(&self.backend, choices),
        }
    }

    fn recover(&mut self) -> Result<()> {
        Ok(self.backend.synchronize()?)
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
