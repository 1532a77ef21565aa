//! Speculative decoding: what is generated stays the same, token by token and in distribution, whoever guesses.
//!
//! Method: the runner of `support` with proposers that are right, wrong, broken, or that runner again as a draft model; frequencies of
//! sampled tokens against their probabilities; then the demo model.

mod support;

use realizar_compute::BatchLimits;
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::sampler::Sampler;
use realizar_engine::speculative::{DraftModel, DraftWanted, Ngram, Proposer, SpeculationCosts};
use realizar_engine::{
    Client, Engine, EngineConfig, Error, FinishReason, Request, Result, Row, Runner, RunnerInfo,
    SamplingParams, SlotSizes, Step,
};
use realizar_model::source;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use support::{At, Case, FakeRunner, Random, VOCAB_SIZE, solo, solo_logits, solo_of};

const INFO: RunnerInfo = RunnerInfo {
    vocab_size: VOCAB_SIZE,
    n_blocks: 64,
    block_size: 4,
    context_length: 200,
    limits: BatchLimits { n_tokens: 64, n_seqs: 16, n_blocks: 1000, n_logits: 64 },
    slots: None,
    asynchronous: true,
    drafts: false,
};

/// Rows that cost next to nothing, so that much is guessed.
const CHEAP: SpeculationCosts = SpeculationCosts { row: 0.001, guess: 0.0 };

fn config() -> EngineConfig {
    EngineConfig { speculation_costs: Some(CHEAP), ..EngineConfig::default() }
}

fn start(proposer: impl Proposer + 'static, config: EngineConfig) -> Client {
    Engine::start_speculating(Box::new(FakeRunner::new(INFO)), Some(Box::new(proposer)), config).unwrap()
}

/// Guesses by a function of the text and the number wanted.
struct Guess<F>(F);

impl<F: FnMut(&[u32], usize) -> Result<Vec<u32>> + Send> Proposer for Guess<F> {
    fn propose(&mut self, _: &mut dyn Runner, wanted: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
        wanted.iter().map(|w| (self.0)(w.tokens, w.n)).collect()
    }

    fn guess_time(&mut self, _: &mut dyn Runner) -> Result<Duration> {
        Ok(Duration::ZERO)
    }
}

/// Runs random requests of several threads and compares each with what it yields alone.
fn compare_with_solo(client: &Client, seed: u64, constrained: bool) {
    let threads: Vec<_> = (0..4)
        .map(|t| {
            let client = client.clone();
            std::thread::spawn(move || {
                let mut random = Random::new(seed + t);
                // Prompts that repeat themselves, for guesses by lookup.
                let bases = vec![[1, 2, 3, 4, 5, 6, 7].repeat(8), Random::new(98).tokens(9)];
                for _ in 0..40 {
                    let mut case = Case::random(&mut random, 100, &bases);
                    case.prompt_logprobs = None;
                    case.constraint = case.constraint.filter(|_| constrained);
                    let choices = client.submit(case.request()).unwrap().collect_tokens().unwrap();
                    for (i, (tokens, reason)) in choices.into_iter().enumerate() {
                        let expected = solo(&case, i as u32, INFO.max_seq_len());
                        assert_eq!((tokens, reason), (expected.tokens, expected.reason), "{case:?}");
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
}

#[test]
fn lookup_changes_no_text() {
    for overlap in [false, true] {
        let client = start(Ngram { min: 1, max: 3 }, EngineConfig { overlap: Some(overlap), ..config() });
        compare_with_solo(&client, 7, true);
        let stats = client.stats();
        assert!(stats.drafted_tokens.get() > 300 && stats.accepted_tokens.get() > 5, "{stats:?}");
    }
}

#[test]
fn a_draft_model_changes_no_text() {
    // Room for all texts, and for so few that they take each other's.
    for (n_blocks, noise) in [(500, 0.3), (40, 0.3), (500, 2.0)] {
        let mut runner = FakeRunner::new(RunnerInfo { n_blocks, context_length: 120, ..INFO });
        runner.noise = noise;
        let client = start(DraftModel::new(Box::new(runner)), config());
        compare_with_solo(&client, 11, true);
        let stats = client.stats();
        let (drafted, accepted) = (stats.drafted_tokens.get(), stats.accepted_tokens.get());
        assert!(accepted > 500 && drafted - accepted > 500, "{accepted} of {drafted} were right");
    }
}

#[test]
fn a_model_that_guesses_for_itself_is_always_right() {
    let client =
        start(DraftModel::new(Box::new(FakeRunner::new(RunnerInfo { n_blocks: 500, ..INFO }))), config());
    // It chooses by the same random numbers and penalties, so this holds for sampled texts too; only grammars it does not know.
    compare_with_solo(&client, 13, false);
    let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
    // A guess that would end the text is not verified, and a text that ends leaves no guess open.
    assert!(drafted > 2000, "{drafted}");
    assert_eq!(drafted, accepted);
}

#[test]
fn a_draft_model_with_recurrent_layers_keeps_its_state_right() {
    // Slots for all texts, and for two of them, in whole steps and in chunks. What it guesses depends on its state, so that it is always
    // right only if that is.
    for (n_slots, n_tokens) in [(100, 64), (4, 64), (100, 11)] {
        let slots = SlotSizes { n_slots, slot_bytes: 16, block_bytes: 16, budget_bytes: 1 << 20 };
        let info = RunnerInfo { slots: Some(slots), ..INFO };
        let limits = BatchLimits { n_tokens, ..INFO.limits };
        let draft = FakeRunner::new(RunnerInfo { n_blocks: 500, limits, ..info });
        let runner = FakeRunner::new(RunnerInfo {
            slots: Some(SlotSizes { n_slots: 200, budget_bytes: 1 << 20, ..slots }),
            ..INFO
        });
        let guesses: Box<dyn Proposer> = Box::new(DraftModel::new(Box::new(draft)));
        let client = Engine::start_speculating(Box::new(runner), Some(guesses), config()).unwrap();
        let mut random = Random::new(31);
        let cases: Vec<Case> =
            (0..30).map(|i| Case::greedy(random.tokens(3 + i * 7 % 60), 20 + i % 9)).collect();
        let streams: Vec<_> = cases.iter().map(|c| client.submit(c.request()).unwrap()).collect();
        for (case, stream) in cases.iter().zip(streams) {
            let tokens = stream.collect_tokens().unwrap().remove(0).0;
            assert_eq!(tokens, solo_of(true, case, 0, INFO.max_seq_len()).tokens, "{case:?}");
        }
        let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
        assert!(drafted > 100, "{drafted} of {n_slots} slots");
        assert_eq!(drafted, accepted, "{n_slots} slots, {n_tokens} tokens");
    }
}

#[test]
fn a_drafting_layer_changes_no_text() {
    // Much room, and so little that sequences take each other's blocks.
    for (n_blocks, draft_noise) in [(500, 0.0), (500, 0.3), (50, 0.3), (500, 2.0)] {
        let mut runner = FakeRunner::new(RunnerInfo { n_blocks, drafts: true, ..INFO });
        runner.draft_noise = draft_noise;
        let client = Engine::start_speculating(Box::new(runner), None, config()).unwrap();
        compare_with_solo(&client, 37, false);
        let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
        assert!(drafted > 1000, "{drafted} with {n_blocks} blocks");
        // A layer that chooses as the model does is always right, sampled texts included.
        match draft_noise {
            0.0 => assert_eq!(drafted, accepted),
            _ => assert!(accepted > 300 && drafted - accepted > 500, "{accepted} of {drafted} were right"),
        }
    }
}

#[test]
fn a_drafting_layer_follows_recurrent_state() {
    for draft_noise in [0.0, 1.0] {
        let slots = SlotSizes { n_slots: 200, slot_bytes: 16, block_bytes: 16, budget_bytes: 1 << 20 };
        let mut runner = FakeRunner::new(RunnerInfo { slots: Some(slots), drafts: true, ..INFO });
        runner.draft_noise = draft_noise;
        let client = Engine::start_speculating(Box::new(runner), None, config()).unwrap();
        let mut random = Random::new(41);
        let cases: Vec<Case> =
            (0..30).map(|i| Case::greedy(random.tokens(3 + i * 7 % 60), 20 + i % 9)).collect();
        let streams: Vec<_> = cases.iter().map(|c| client.submit(c.request()).unwrap()).collect();
        for (case, stream) in cases.iter().zip(streams) {
            let tokens = stream.collect_tokens().unwrap().remove(0).0;
            assert_eq!(tokens, solo_of(true, case, 0, INFO.max_seq_len()).tokens, "{case:?}");
        }
        let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
        assert!(drafted > 200, "{drafted}");
        assert_eq!(drafted == accepted, draft_noise == 0.0, "{accepted} of {drafted} were right");
    }
}

#[test]
fn right_guesses_save_steps() {
    let case = Case { speculate: Some(true), ..Case::greedy(vec![5, 6, 7], 101) };
    let expected = solo(&case, 0, INFO.max_seq_len()).tokens;
    let text: Vec<u32> = case.prompt.iter().chain(&expected).copied().collect();
    let oracle =
        move |tokens: &[u32], n: usize| Ok(text[tokens.len()..text.len().min(tokens.len() + n)].to_vec());
    let client = start(Guess(oracle), EngineConfig { max_drafts: 4, ..config() });
    let tokens = client.submit(case.request()).unwrap().collect_tokens().unwrap();
    assert_eq!(tokens, [(expected.clone(), FinishReason::Length)]);
    // One token by the prompt's step, then five a step.
    assert_eq!(client.stats().steps.get(), 21);
    assert_eq!((client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get()), (80, 80));
    let other = Case { speculate: Some(false), ..case };
    assert_eq!(client.submit(other.request()).unwrap().collect_tokens().unwrap()[0].0, expected);
    assert_eq!(client.stats().steps.get(), 21 + 101, "who does not want guesses gets none");
}

#[test]
fn speculation_is_on_by_request() {
    let client =
        start(Guess(|_: &[u32], n: usize| Ok(vec![1; n])), EngineConfig { speculate: false, ..config() });
    let request = || Case::greedy(vec![5, 6, 7], 30).request();
    client.submit(request()).unwrap().collect_tokens().unwrap();
    assert_eq!(client.stats().drafted_tokens.get(), 0);
    let stream = client.submit(Request { speculate: Some(true), ..request() }).unwrap();
    stream.collect_tokens().unwrap();
    assert!(client.stats().drafted_tokens.get() > 0);
}

#[test]
fn what_a_bad_proposer_says_does_no_harm() {
    let mut random = Random::new(3);
    let nonsense = move |_: &[u32], n: usize| {
        let len = random.below(3 * n);
        Ok((0..len).map(|_| random.below(VOCAB_SIZE + 3) as u32).collect())
    };
    compare_with_solo(&start(Guess(nonsense), config()), 17, true);
    // Who answers for fewer than were asked for is taken at his word.
    struct Short;
    impl Proposer for Short {
        fn propose(&mut self, _: &mut dyn Runner, _: &[DraftWanted<'_>]) -> Result<Vec<Vec<u32>>> {
            Ok(vec![vec![1, 2]])
        }
        fn guess_time(&mut self, _: &mut dyn Runner) -> Result<Duration> {
            Ok(Duration::ZERO)
        }
    }
    compare_with_solo(&start(Short, config()), 19, true);
}

#[test]
fn a_proposer_that_fails_is_done_without() {
    let mut calls = 0;
    let failing = move |_: &[u32], n: usize| {
        calls += 1;
        match calls {
            0..40 => Ok(vec![calls as u32; n]),
            _ => Err(Error::Device { message: "out of order".into() }),
        }
    };
    let client = start(Guess(failing), config());
    compare_with_solo(&client, 23, true);
    assert_eq!((client.stats().failed_steps.get(), client.stats().finished_error.get()), (0, 0));
    assert!(client.stats().drafted_tokens.get() > 0);

    let mut draft = FakeRunner::new(RunnerInfo { n_blocks: 500, ..INFO });
    let mut launches = 0;
    draft.fault = Box::new(move |at| {
        launches += usize::from(at == At::Launch);
        (launches > 30).then(|| Error::Device { message: "out of order".into() })
    });
    compare_with_solo(&start(DraftModel::new(Box::new(draft)), config()), 29, true);
}

#[test]
fn a_long_prompt_is_read_by_the_draft_model_in_chunks() {
    // The draft model may compute 20 tokens a step: a prompt of 100 takes it five, in which the sequence goes on without guesses.
    let limits = BatchLimits { n_tokens: 20, ..INFO.limits };
    let draft = FakeRunner::new(RunnerInfo { n_blocks: 500, limits, ..INFO });
    let client = start(DraftModel::new(Box::new(draft)), EngineConfig { max_drafts: 4, ..config() });
    let case = Case::greedy(Random::new(1).tokens(100), 80);
    let tokens = client.submit(case.request()).unwrap().collect_tokens().unwrap();
    assert_eq!(tokens[0].0, solo(&case, 0, INFO.max_seq_len()).tokens);
    let stats = client.stats();
    assert_eq!(stats.drafted_tokens.get(), stats.accepted_tokens.get());
    // Two steps for the prompt, about five to catch up, the rest five tokens at a time.
    assert!((20..=27).contains(&stats.steps.get()), "{} steps", stats.steps.get());
}

/// The probability of each token after `tokens`, measured on the sampler with evenly spread random numbers.
fn distribution(
    sampler: &mut Sampler,
    params: &Arc<SamplingParams>,
    tokens: &[u32],
    n_prompt: usize,
) -> Vec<f64> {
    const GRID: usize = 4000;
    let mut p = vec![0.0; VOCAB_SIZE];
    let logits = solo_logits(tokens);
    for i in 0..GRID {
        let uniform = (i as f64 + 0.5) / GRID as f64;
        let first = tokens.len().saturating_sub(params.penalty_window.unwrap_or(usize::MAX));
        let (prompt, generated) = (first.min(n_prompt)..n_prompt, n_prompt.max(first)..tokens.len());
        let row = Row { uniform, prompt, generated, ..Row::choose(params.clone()) };
        let step = Step { rows: vec![row], history: tokens.to_vec(), ..Step::default() };
        let choice = sampler.sample(&mut logits.clone(), &step, 0, &[]).unwrap();
        p[choice.token as usize] += 1.0 / GRID as f64;
    }
    p
}

/// How far counts are from what probabilities let expect, in standard deviations of the chi-squared distribution.
fn deviation(counts: &[f64], p: &[f64]) -> f64 {
    let n: f64 = counts.iter().sum();
    // Rare outcomes are taken together, so that each expected count is large enough for the test to hold.
    let (mut chi2, mut df, mut rare) = (0.0, -1.0, (0.0, 0.0));
    for (&count, &p) in counts.iter().zip(p) {
        if n * p >= 8.0 {
            chi2 += (count - n * p).powi(2) / (n * p);
            df += 1.0;
        } else {
            rare = (rare.0 + count, rare.1 + n * p);
        }
    }
    if rare.1 >= 1.0 {
        chi2 += (rare.0 - rare.1).powi(2) / rare.1;
        df += 1.0;
    } else {
        assert!(rare.0 <= 8.0, "{} outcomes that should not be", rare.0);
    }
    (chi2 - df) / (2.0 * df).sqrt()
}

#[test]
fn sampled_tokens_follow_the_models_distribution() {
    let prompt = vec![3, 1, 4, 1, 5];
    let variants = [
        SamplingParams::default(),
        SamplingParams { temperature: 0.5, top_p: 0.9, ..SamplingParams::default() },
        SamplingParams { temperature: 1.5, top_k: 6, min_p: 0.02, ..SamplingParams::default() },
        SamplingParams {
            temperature: 0.7,
            repetition_penalty: 1.3,
            frequency_penalty: 0.8,
            presence_penalty: 0.4,
            penalty_window: Some(4),
            ..SamplingParams::default()
        },
    ];
    let mut sampler = Sampler::new();
    for (variant, params) in variants.into_iter().enumerate() {
        let params = Arc::new(params);
        // Guesses the likeliest tokens: right now and then, and a preference that must not show in what is generated.
        let likeliest = |tokens: &[u32], n: usize| {
            let mut text = tokens.to_vec();
            for _ in 0..n {
                let logits = solo_logits(&text);
                let best = (0..VOCAB_SIZE).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
                text.push(best as u32);
            }
            Ok(text[tokens.len()..].to_vec())
        };
        let client = start(Guess(likeliest), EngineConfig { max_queue: 100_000, ..config() });
        let first = distribution(&mut sampler, &params, &prompt, prompt.len());
        let mut second = vec![0.0; VOCAB_SIZE];
        for (t, p) in first.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            let text: Vec<u32> = prompt.iter().copied().chain([t as u32]).collect();
            let after = distribution(&mut sampler, &params, &text, prompt.len());
            second.iter_mut().zip(after).for_each(|(s, a)| *s += p * a);
        }
        let (mut counts, n) = ([vec![0.0; VOCAB_SIZE], vec![0.0; VOCAB_SIZE]], 4000);
        let streams: Vec<_> = (0..n)
            .map(|seed| {
                let mut request = Request::new(prompt.clone(), 4);
                request.sampling = SamplingParams { seed: Some(seed * 7919 + 1), ..(*params).clone() };
                client.submit(request).unwrap()
            })
            .collect();
        for stream in streams {
            let tokens = &stream.collect_tokens().unwrap()[0].0;
            counts.iter_mut().zip(tokens).for_each(|(c, t)| c[*t as usize] += 1.0);
        }
        let deviations = [deviation(&counts[0], &first), deviation(&counts[1], &second)];
        assert!(deviations.iter().all(|d| d.abs() < 4.0), "variant {variant}: {deviations:?}");
        let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
        assert!(drafted > n && accepted > n / 20, "{accepted} of {drafted} were right");
        // The test can tell: the same counts do not fit the distribution without temperature, penalties and so on.
        let plain = distribution(&mut sampler, &Arc::default(), &prompt, prompt.len());
        assert_eq!(deviation_or_huge(&counts[0], &plain) > 10.0, variant > 0, "variant {variant}");
    }
}

/// As [`deviation`], where outcomes may be impossible.
fn deviation_or_huge(counts: &[f64], p: &[f64]) -> f64 {
    std::panic::catch_unwind(|| deviation(counts, p)).unwrap_or(f64::INFINITY)
}

fn demo() -> Box<dyn source::TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

fn demo_runner(exact: bool) -> Box<dyn Runner> {
    let options = LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(256),
        cache: CacheSize::Tokens(4096),
        max_guesses: 448,
        exact,
        ..LoadOptions::default()
    };
    load(&*demo(), &options).unwrap().runner
}

/// Texts that repeat themselves, so that lookup finds something.
fn demo_requests(tokenizer: &Tokenizer) -> Vec<Request> {
    let texts = [
        "The owl said: the brave fox went home. The fox said: the brave owl went home. The owl said: the brave",
        "Once upon a time, there was a fox. Once upon a time, there was an owl. Once upon a time, there was",
        "Tell me a story about a fox.",
    ];
    let encode =
        |text: &str| tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false });
    let requests = (0..24u64).map(|i| {
        let mut request = Request::new(encode(texts[i as usize % 3]), 60);
        request.ignore_eos = true;
        request.sampling = match i % 4 {
            0 => SamplingParams::greedy(),
            1 => SamplingParams { seed: Some(i), top_k: 40, top_p: 0.95, ..SamplingParams::default() },
            2 => SamplingParams { seed: Some(i), temperature: 0.6, ..SamplingParams::default() },
            _ => SamplingParams {
                seed: Some(i),
                temperature: 0.8,
                repetition_penalty: 1.1,
                presence_penalty: 0.3,
                ..SamplingParams::default()
            },
        };
        request
    });
    requests.collect()
}

fn run_all(client: &Client, requests: Vec<Request>) -> Vec<Vec<u32>> {
    let streams: Vec<_> = requests.into_iter().map(|r| client.submit(r).unwrap()).collect();
    streams.into_iter().map(|s| s.collect_tokens().unwrap().remove(0).0).collect()
}

#[test]
fn the_demo_model_says_the_same_with_and_without_guesses() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    for exact in [true, false] {
        let plain = Engine::start(demo_runner(exact), EngineConfig::default());
        let expected = run_all(&plain, demo_requests(&tokenizer));
        let by_lookup =
            Engine::start_speculating(demo_runner(exact), Some(Box::new(Ngram::default())), config())
                .unwrap();
        assert!(run_all(&by_lookup, demo_requests(&tokenizer)) == expected, "lookup changes a text");
        let stats = by_lookup.stats();
        let (drafted, accepted) = (stats.drafted_tokens.get(), stats.accepted_tokens.get());
        assert!(accepted > 30 && drafted > 2 * accepted, "{accepted} of {drafted} were right");
        let draft = DraftModel::new(demo_runner(exact));
        let by_draft =
            Engine::start_speculating(demo_runner(exact), Some(Box::new(draft)), config()).unwrap();
        assert!(run_all(&by_draft, demo_requests(&tokenizer)) == expected, "a draft model changes a text");
        let stats = by_draft.stats();
        // The same model: always right.
        assert_eq!(stats.drafted_tokens.get(), stats.accepted_tokens.get());
        assert!(stats.accepted_tokens.get() > 500);
    }
}

#[test]
fn what_the_demo_model_samples_follows_its_probabilities() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let client = Engine::start_speculating(
        demo_runner(false),
        Some(Box::new(Ngram::default())),
        EngineConfig { max_queue: 100_000, ..config() },
    )
    .unwrap();
    let prompt = demo_requests(&tokenizer).remove(1).prompt;
    let sampling = SamplingParams { top_k: 12, temperature: 1.3, seed: Some(5), ..SamplingParams::default() };
    let n = 1500;
    let texts =
        client.submit(Request { sampling, n, ..Request::new(prompt.clone(), 4) }).unwrap().collect_tokens();
    let texts: Vec<Vec<u32>> = texts.unwrap().into_iter().map(|t| t.0).collect();
    let (drafted, accepted) = (client.stats().drafted_tokens.get(), client.stats().accepted_tokens.get());
    assert!(drafted > u64::from(n) && accepted > 20, "{accepted} of {drafted} were right");
    // Of the texts that begin alike, the second token, against the model's own probabilities there.
    let mut by_first: HashMap<u32, Vec<u32>> = HashMap::new();
    texts.iter().for_each(|t| by_first.entry(t[0]).or_default().push(t[1]));
    let (first, seconds) = by_first.into_iter().max_by_key(|(_, s)| s.len()).unwrap();
    assert!(seconds.len() > 200, "{}", seconds.len());
    let mut request = Request::new(prompt.iter().copied().chain([first]).collect(), 1);
    (request.n_logprobs, request.sampling) = (Some(12), SamplingParams::greedy());
    let top = client.submit(request).unwrap().find_map(|event| match event {
        realizar_engine::Event::Token { top_logprobs, .. } => Some(top_logprobs),
        _ => None,
    });
    let weights: Vec<(u32, f64)> =
        top.unwrap().iter().map(|&(id, l)| (id, (f64::from(l) / 1.3).exp())).collect();
    let sum: f64 = weights.iter().map(|w| w.1).sum();
    let p: Vec<f64> = weights.iter().map(|w| w.1 / sum).collect();
    let counts: Vec<f64> =
        weights.iter().map(|w| seconds.iter().filter(|&&s| s == w.0).count() as f64).collect();
    assert_eq!(counts.iter().sum::<f64>(), seconds.len() as f64, "only the twelve likeliest");
    let d = deviation(&counts, &p);
    assert!(d.abs() < 4.0, "{d}: {counts:?} instead of {p:?}");
}
