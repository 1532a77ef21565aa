//! Texts to vectors or scores: an encoder on a thread of its own.
//!
//! [`EncoderEngine::start`] puts an [`EncodeRunner`] on the thread; an [`EncoderClient`] submits texts as token ids and gets a [`Pending`],
//! which may be waited for or awaited without any particular runtime. A step takes texts of any requests in the order in which they came, as
//! many as fit, one after the other without padding. Dropping a [`Pending`] cancels what has not begun.

mod prompt;
mod reply;
mod runner;
mod text;

pub use realizar_compute::Pooling;
pub use realizar_model::tokenizer::Encoding;
pub use reply::Pending;
pub use runner::{EncodeRunner, EncoderInfo, ModelEncoder};
pub use text::TextEncoder;

use crate::{Error, Health, Result};
use realizar_model::EncoderOutput;
use reply::{Place, reply};
pub(crate) use runner::EncoderSizes;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// When a client that was refused may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// An encoder's thread. Dropping it ends the thread after the step that is under way; texts that wait get an error.
pub struct EncoderEngine {
    client: EncoderClient,
    thread: Option<JoinHandle<()>>,
}

/// Submits texts.
#[derive(Clone)]
pub struct EncoderClient {
    info: EncoderInfo,
    shared: Arc<Shared>,
}

/// What an encoder has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EncoderStats {
    /// Texts that were computed.
    pub n_texts: u64,
    /// Their tokens.
    pub n_tokens: u64,
    /// Steps.
    pub n_steps: u64,
    /// Texts that wait now.
    pub n_waiting: usize,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    max_waiting: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    stats: EncoderStats,
    /// When the step began that is under way.
    step_began: Option<Instant>,
    /// No text is taken any more, and the thread ends when none waits.
    is_draining: bool,
    /// Why the thread has ended, or is about to.
    ended: Option<Error>,
}

struct Job {
    text: Encoding,
    place: Place,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock, so the state is whole even if a thread died with it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes no more texts, and gives those that wait an error.
    fn end(&self, error: &Error) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| error.clone());
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        waiting.into_iter().for_each(|job| job.place.fail(error));
    }
}

impl EncoderEngine {
    /// Starts the thread. At most `max_waiting` texts wait for it.
    ///
    /// Errors: `EngineFailed` if the system gives no thread.
    pub fn start(runner: Box<dyn EncodeRunner>, max_waiting: usize) -> Result<Self> {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new(), max_waiting });
        let client = EncoderClient { info: runner.info().clone(), shared: shared.clone() };
        let thread = std::thread::Builder::new()
            .name("encoder".into())
            .spawn(move || run(runner, &shared))
            .map_err(|e| Error::EngineFailed { message: format!("no thread for it: {e}") })?;
        Ok(Self { client, thread: Some(thread) })
    }

    /// A handle to submit texts.
    pub fn client(&self) -> EncoderClient {
        self.client.clone()
    }
}

impl Drop for EncoderEngine {
    fn drop(&mut self) {
        self.client.shared.end(&Error::ShuttingDown);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported to those who waited.
            let _ = thread.join();
        }
    }
}

impl EncoderClient {
    /// What the encoder makes, and its bounds.
    pub fn info(&self) -> &EncoderInfo {
        &self.info
    }

    /// What it has done.
    pub fn stats(&self) -> EncoderStats {
        let state = self.shared.lock();
        EncoderStats { n_waiting: state.waiting.len(), ..state.stats }
    }

    /// How the thread is.
    pub fn health(&self) -> Health {
        let state = self.shared.lock();
        match &state.ended {
            Some(Error::ShuttingDown) => Health::Stopped,
            Some(error) => Health::Failed { message: error.to_string() },
            None if state.is_draining => Health::Draining,
            None => Health::Ready,
        }
    }

    /// How long the step that is under way has taken so far.
    pub fn busy(&self) -> Option<Duration> {
        self.shared.lock().step_began.map(|began| began.elapsed())
    }

    /// Takes no more texts, computes those that wait for up to `timeout`, and gives the rest an error.
    pub fn shutdown(&self, timeout: Duration) {
        let mut state = self.shared.lock();
        state.is_draining = true;
        let is_at_work = |state: &mut State| {
            state.ended.is_none() && (state.step_began.is_some() || !state.waiting.is_empty())
        };
        let wait = self.shared.changed.wait_timeout_while(state, timeout, is_at_work);
        drop(wait.unwrap_or_else(PoisonError::into_inner));
        self.shared.end(&Error::ShuttingDown);
    }

    /// Submits texts. Rows come in their order; embeddings are divided by their length where the model's files say so.
    ///
    /// Errors: `EmptyPrompt`, `PromptTooLong` or `UnknownToken` for the first text that is wrong; `Overloaded` if too many wait; or why the
    /// thread has ended.
    pub fn encode<T: Into<Encoding>>(&self, texts: Vec<T>) -> Result<Pending> {
        let texts: Vec<Encoding> = texts.into_iter().map(Into::into).collect();
        texts.iter().try_for_each(|text| self.check(&text.tokens))?;
        let n = texts.len();
        let (places, pending) = reply(n);
        let mut state = self.shared.lock();
        if let Some(error) = &state.ended {
            return Err(error.clone());
        }
        if state.is_draining {
            return Err(Error::ShuttingDown);
        }
        let queued = state.waiting.len();
        // One request with more texts than may wait is taken by an idle engine.
        if queued > 0 && queued + n > self.shared.max_waiting {
            return Err(Error::Overloaded { queued, retry_after: RETRY_AFTER });
        }
        let jobs = texts.into_iter().zip(places).map(|(text, place)| Job { text, place });
        state.waiting.extend(jobs);
        drop(state);
        self.shared.changed.notify_all();
        Ok(pending)
    }

    fn check(&self, text: &[u32]) -> Result<()> {
        let EncoderInfo { max_tokens, vocab_size, .. } = self.info;
        if text.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        if text.len() > max_tokens {
            return Err(Error::PromptTooLong {
                n_prompt: text.len(),
                limit: max_tokens,
                context_length: max_tokens,
                cache_tokens: max_tokens,
            });
        }
        match text.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(Error::UnknownToken { what: "the text", id, vocab_size }),
            None => Ok(()),
        }
    }
}

/// Ends the queue when the thread ends, by a panic too.
struct EndGuard<'a>(&'a Shared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        self.0.end(&Error::EngineFailed { message: "the encoder's thread ended".into() });
    }
}

fn run(mut runner: Box<dyn EncodeRunner>, shared: &Shared) {
    let _guard = EndGuard(shared);
    let mut rows = Vec::new();
    while let Some(step) = next_step(shared, runner.info()) {
        let texts: Vec<&Encoding> = step.iter().map(|job| &job.text).collect();
        let outcome = runner.encode(&texts, &mut rows);
        let (n_texts, n_tokens) = (texts.len() as u64, texts.iter().map(|t| t.len() as u64).sum::<u64>());
        {
            let mut state = shared.lock();
            state.step_began = None;
            state.stats.n_texts += n_texts;
            state.stats.n_tokens += n_tokens;
            state.stats.n_steps += 1;
        }
        shared.changed.notify_all();
        match outcome {
            Ok(()) => {
                let info = runner.info();
                let rows = rows.chunks_exact(info.output_len);
                step.into_iter().zip(rows).for_each(|(job, row)| job.place.fill(finished(info, row)));
            }
            Err(e) => step.into_iter().for_each(|job| job.place.fail(&e)),
        }
    }
}

/// Waits for texts and takes as many as one step holds; `None` once the engine ends.
fn next_step(shared: &Shared, info: &EncoderInfo) -> Option<Vec<Job>> {
    let mut state = shared.lock();
    loop {
        while state.waiting.front().is_some_and(|job| job.place.is_abandoned()) {
            state.waiting.pop_front();
        }
        if state.ended.is_some() {
            return None;
        }
        if !state.waiting.is_empty() {
            break;
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let (mut step, mut n_tokens) = (Vec::new(), 0);
    while let Some(job) = state.waiting.pop_front() {
        if job.place.is_abandoned() {
            continue;
        }
        n_tokens += job.text.len();
        if !step.is_empty() && (n_tokens > info.step_tokens || step.len() == info.max_seqs) {
            state.waiting.push_front(job);
            break;
        }
        step.push(job);
    }
    state.step_began = Some(Instant::now());
    Some(step)
}

/// A row as the model's files want it.
fn finished(info: &EncoderInfo, row: &[f32]) -> Vec<f32> {
    let mut row = row.to_vec();
    if info.output == (EncoderOutput::Embedding { normalize: true }) {
        normalize(&mut row);
    }
    row
}

/// Divides a vector by its length; zeros stay as they are.
pub fn normalize(row: &mut [f32]) {
    // Several sums, none of which waits for another: rows are many, and the device waits for the last.
    let mut sums = [0.0f64; 16];
    for chunk in row.chunks(sums.len()) {
        sums.iter_mut().zip(chunk).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
    }
    let length = sums.iter().sum::<f64>().sqrt();
    if length > 0.0 {
        let factor = 1.0 / length;
        row.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
}

/// How well a document answers a query, from 0 to 1, from a row of a reranker.
pub fn relevance(output: EncoderOutput, row: &[f32]) -> f32 {
    1.0 / (1.0 + (-logit(output, row)).exp())
}

/// The same before the logistic function.
pub fn logit(output: EncoderOutput, row: &[f32]) -> f32 {
    match output {
        EncoderOutput::YesNo => row[0] - row[1],
        EncoderOutput::Score | EncoderOutput::Embedding { .. } => row[0],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Makes of a text its first token and its length. Each step waits for a permit.
    struct Echo {
        info: EncoderInfo,
        permits: mpsc::Receiver<()>,
        steps: mpsc::Sender<Vec<usize>>,
    }

    impl EncodeRunner for Echo {
        fn info(&self) -> &EncoderInfo {
            &self.info
        }

        fn encode(&mut self, texts: &[&Encoding], rows: &mut Vec<f32>) -> Result<()> {
            self.steps.send(texts.iter().map(|t| t.len()).collect()).expect("the test listens");
            self.permits.recv().expect("the test gives permits");
            assert!(texts[0].tokens[0] != 13, "unlucky");
            rows.clear();
            rows.extend(texts.iter().flat_map(|t| [t.tokens[0] as f32, t.len() as f32]));
            Ok(())
        }
    }

    type Started = (EncoderEngine, mpsc::Sender<()>, mpsc::Receiver<Vec<usize>>);

    fn start(max_waiting: usize) -> Started {
        let info = EncoderInfo {
            output: EncoderOutput::Embedding { normalize: false },
            output_len: 2,
            max_tokens: 8,
            step_tokens: 8,
            max_seqs: 3,
            vocab_size: 100,
        };
        let ((permit, permits), (steps, seen)) = (mpsc::channel(), mpsc::channel());
        let engine = EncoderEngine::start(Box::new(Echo { info, permits, steps }), max_waiting);
        (engine.expect("it starts"), permit, seen)
    }

    #[test]
    fn rows_come_in_the_order_of_the_texts_from_steps_that_fit() {
        let (engine, permit, seen) = start(100);
        let client = engine.client();
        let first = client.encode(vec![vec![1]]).expect("taken");
        assert_eq!(seen.recv().expect("a step"), [1]);
        // What comes meanwhile is cut by tokens and by texts.
        let lens = [5, 3, 1, 8, 1, 1, 1, 1];
        let texts = lens.iter().zip(20..).map(|(&n, id)| vec![id; n]).collect();
        let second = client.encode(texts).expect("taken");
        (0..9).for_each(|_| permit.send(()).expect("it runs"));
        assert_eq!(first.wait().expect("rows"), [[1.0, 1.0]]);
        let rows = second.wait().expect("rows");
        let want: Vec<Vec<f32>> = lens.iter().zip(20..).map(|(&n, id)| vec![id as f32, n as f32]).collect();
        assert_eq!(rows, want);
        assert_eq!(
            seen.try_iter().collect::<Vec<_>>(),
            [vec![5, 3], vec![1], vec![8], vec![1, 1, 1], vec![1]]
        );
        let stats = client.stats();
        assert_eq!((stats.n_texts, stats.n_tokens, stats.n_steps, stats.n_waiting), (9, 22, 6, 0));
    }

    #[test]
    fn a_dropped_request_is_not_computed() {
        let (engine, permit, seen) = start(100);
        let client = engine.client();
        let first = client.encode(vec![vec![1]]).expect("taken");
        assert_eq!(seen.recv().expect("a step"), [1]);
        drop(client.encode(vec![vec![2; 4]; 5]).expect("taken"));
        let last = client.encode(vec![vec![3; 2]]).expect("taken");
        (0..2).for_each(|_| permit.send(()).expect("it runs"));
        assert_eq!((first.wait().expect("rows").len(), last.wait().expect("rows").len()), (1, 1));
        assert_eq!(seen.try_iter().collect::<Vec<_>>(), [[2]]);
    }

    #[test]
    fn texts_beyond_the_bounds_are_refused() {
        let (engine, permit, seen) = start(2);
        let client = engine.client();
        let error = |texts: Vec<Vec<u32>>| client.encode(texts).err().expect("refused");
        assert_eq!(error(vec![vec![]]), Error::EmptyPrompt);
        assert!(matches!(error(vec![vec![1; 9]]), Error::PromptTooLong { n_prompt: 9, limit: 8, .. }));
        assert!(matches!(error(vec![vec![100]]), Error::UnknownToken { id: 100, vocab_size: 100, .. }));
        let first = client.encode(vec![vec![1]]).expect("taken");
        seen.recv().expect("a step");
        let second = client.encode(vec![vec![1], vec![2]]).expect("taken");
        assert!(matches!(error(vec![vec![3]]), Error::Overloaded { queued: 2, .. }));
        (0..2).for_each(|_| permit.send(()).expect("it runs"));
        assert!(first.wait().is_ok() && second.wait().is_ok());
    }

    #[test]
    fn a_shutdown_finishes_what_waits_and_takes_no_more() {
        let (engine, permit, seen) = start(100);
        let client = engine.client();
        assert_eq!((client.health(), client.busy()), (Health::Ready, None));
        let taken = client.encode(vec![vec![1; 8], vec![2; 8]]).expect("taken");
        seen.recv().expect("a step");
        assert!(client.busy().is_some());
        let other = client.clone();
        let shutdown = std::thread::spawn(move || other.shutdown(Duration::from_secs(60)));
        while client.health() != Health::Draining {
            std::thread::yield_now();
        }
        assert!(matches!(client.encode(vec![vec![1]]), Err(Error::ShuttingDown)));
        (0..2).for_each(|_| permit.send(()).expect("it runs"));
        shutdown.join().expect("it ends");
        assert_eq!(taken.wait().expect("rows").len(), 2);
        assert_eq!(client.health(), Health::Stopped);
    }

    #[test]
    fn if_the_thread_dies_all_who_wait_get_an_error() {
        let (engine, permit, seen) = start(100);
        let client = engine.client();
        let first = client.encode(vec![vec![13]]).expect("taken");
        seen.recv().expect("a step");
        let second = client.encode(vec![vec![1]]).expect("taken");
        permit.send(()).expect("it runs");
        assert!(matches!(first.wait(), Err(Error::EngineFailed { .. })));
        assert!(matches!(second.wait(), Err(Error::EngineFailed { .. })));
        assert!(matches!(client.encode(vec![vec![1]]), Err(Error::EngineFailed { .. })));
    }

    #[test]
    fn vectors_have_length_one_and_scores_are_between_0_and_1() {
        let mut row = [3.0, 4.0];
        normalize(&mut row);
        assert_eq!(row, [0.6, 0.8]);
        let mut zeros = [0.0; 2];
        normalize(&mut zeros);
        assert_eq!(zeros, [0.0; 2]);
        assert_eq!(relevance(EncoderOutput::Score, &[0.0]), 0.5);
        assert!((relevance(EncoderOutput::YesNo, &[2.0, 1.0]) - 0.731_058_6).abs() < 1e-6);
    }
}
