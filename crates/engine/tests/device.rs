//! A model on a device that chooses tokens by itself, works ahead, runs short of memory and fails: a GPU, or an emulated one that runs
//! the kernels' own sources on the CPU, behind a driver that fails when it is told to.
#![cfg(feature = "cuda")]

#[path = "../../compute/cuda-emulation/emulation.rs"]
mod emulation;
#[path = "../../compute/cuda-emulation/faulty.rs"]
mod faulty;

use faulty::{CALLS, Call, Faulty};
use realizar_compute::DeviceMemory;
use realizar_compute::cuda::{Cuda, Mode};
use realizar_engine::bench::{Bench, Work};
use realizar_engine::load::{CacheSize, Device, LoadError, LoadOptions, load, load_on_device};
use realizar_engine::perplexity::{Score, score_chunk};
use realizar_engine::speculative::{Ngram, SpeculationCosts};
use realizar_engine::{
    Client, Engine, EngineConfig, Error, Event, FinishReason, Health, Request, Row, Runner, SamplingParams,
    Step, Stream,
};
use realizar_model::source::{self, TensorSource};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

fn model(name: &str) -> Box<dyn TensorSource> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/arch");
    source::open(&data.join(name).join("model.gguf")).unwrap()
}

fn options() -> LoadOptions {
    LoadOptions {
        n_ctx: Some(96),
        cache: CacheSize::Tokens(400),
        step_tokens: Some(24),
        max_seqs: Some(4),
        max_guesses: 8,
        exact: true,
        block_size: 16,
        n_threads: 1,
        ..LoadOptions::default()
    }
}

/// The GPU and who may use it now, or else an emulated one, of which each test has its own. `None` without a compiler to make it.
fn device() -> Option<(Arc<Faulty>, Option<MutexGuard<'static, ()>>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Cuda::open_driver(0) {
        Ok(driver) => Some((Faulty::new(driver), Some(turn))),
        Err(_) => Some((Faulty::new(emulation::Emulation::build()?), None)),
    }
}

fn on_device(driver: &Arc<Faulty>, options: &LoadOptions, config: EngineConfig) -> Client {
    let cuda = Cuda::with_driver(driver.clone(), Mode::Exact).unwrap();
    let loaded = load_on_device(cuda, &*model("llama"), options).unwrap();
    assert!(loaded.runner.info().asynchronous);
    Engine::start(loaded.runner, config)
}

fn on_cpu(name: &str) -> Client {
    let options = LoadOptions { device: Device::Cpu, ..options() };
    Engine::start(load(&*model(name), &options).unwrap().runner, EngineConfig::default())
}

/// Requests with all kinds of parameters.
fn requests() -> Vec<Request> {
    let sampled = |seed, change: &dyn Fn(&mut SamplingParams)| {
        let mut sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
        change(&mut sampling);
        let prompt = (0..5 + seed as u32 * 3).map(|i| 3 + i * 7 % 50).collect();
        Request { sampling, ignore_eos: true, ..Request::new(prompt, 20) }
    };
    vec![
        sampled(1, &|_| {}),
        sampled(2, &|p| p.temperature = 0.0),
        sampled(3, &|p| (p.temperature, p.top_k) = (0.7, 20)),
        sampled(4, &|p| (p.top_p, p.min_p) = (0.8, 0.02)),
        sampled(5, &|p| (p.repetition_penalty, p.frequency_penalty) = (1.3, 0.5)),
        sampled(6, &|p| (p.temperature, p.presence_penalty, p.penalty_window) = (0.0, 1.9, Some(6))),
        sampled(7, &|p| p.logit_bias = vec![(5, 3.0), (6, -100.0), (5, 1.0)]),
        Request { n: 3, ..sampled(8, &|p| p.top_k = 9) },
        Request { n_logprobs: Some(2), ..sampled(9, &|p| p.temperature = 1.5) },
    ]
}

/// The tokens of each choice, or what ended the request.
fn tokens(stream: Stream) -> Result<Vec<Vec<u32>>, Error> {
    let mut choices: Vec<Vec<u32>> = Vec::new();
    for event in stream {
        match event {
            Event::Token { choice, id, .. } => {
                choices.resize(choices.len().max(choice as usize + 1), Vec::new());
                choices[choice as usize].push(id);
            }
            Event::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
            Event::Error(error) => return Err(error),
            Event::PromptToken { .. } => {}
        }
    }
    Ok(choices)
}

fn all_tokens(client: &Client) -> Vec<Result<Vec<Vec<u32>>, Error>> {
    let streams: Vec<_> = requests().into_iter().map(|r| client.submit(r).unwrap()).collect();
    streams.into_iter().map(tokens).collect()
}

/// Recorded steps of the model, of its verified drafts and of its drafting layer take turns.
#[test]
fn a_drafting_layer_on_a_device_changes_no_text() {
    let Some((driver, _turn)) = device() else { return };
    let few = || {
        let prompt = |seed: u32| (0..7 + seed * 3).map(|i| 3 + i * 7 % 50).collect();
        (0..3u32).map(move |seed| {
            let sampling = match seed {
                0 => SamplingParams::greedy(),
                _ => SamplingParams { seed: Some(seed.into()), top_k: 8, ..SamplingParams::default() },
            };
            Request { sampling, ignore_eos: true, ..Request::new(prompt(seed), 12) }
        })
    };
    let texts = |client: &Client| -> Vec<_> {
        let streams: Vec<_> = few().map(|r| client.submit(r).unwrap()).collect();
        streams.into_iter().map(|stream| tokens(stream).unwrap()).collect()
    };
    for name in ["qwen35", "glm4moe"] {
        let cuda = Cuda::with_driver(driver.clone(), Mode::Exact).unwrap();
        let options = LoadOptions { draft_layer: true, ..options() };
        let runner = load_on_device(cuda, &*model(name), &options).unwrap().runner;
        let costs = SpeculationCosts { row: 0.001, guess: 0.0 };
        let config =
            EngineConfig { speculation_costs: Some(costs), max_drafts: 2, ..EngineConfig::default() };
        let client = Engine::start_speculating(runner, None, config).unwrap();
        let (_, before) = driver.n_launches_and_replays();
        assert_eq!(texts(&client), texts(&on_cpu(name)), "{name}");
        assert!(client.stats().drafted_tokens.get() > 20, "{name}: {:?}", client.stats());
        assert!(driver.n_launches_and_replays().1 > before + 10, "{name}: steps were not replayed");
    }
}

/// Devices that compute exactly have the same logits but for the last bits; sampled texts may differ where a number falls between, so
/// the seeds are such that none does.
#[test]
fn a_device_that_works_ahead_generates_what_the_host_chooses() {
    let Some((driver, _turn)) = device() else { return };
    let want = all_tokens(&on_cpu("llama"));
    assert!(want.iter().all(Result::is_ok));
    for overlap in [Some(true), Some(false)] {
        let client = on_device(&driver, &options(), EngineConfig { overlap, ..EngineConfig::default() });
        let (_, before) = driver.n_launches_and_replays();
        assert_eq!(all_tokens(&client), want, "overlap {overlap:?}");
        assert!(driver.n_launches_and_replays().1 > before, "no step was replayed");
        // One after the other, too.
        for (request, want) in requests().into_iter().zip(&want) {
            assert_eq!(&tokens(client.submit(request).unwrap()), want, "alone, overlap {overlap:?}");
        }
    }
}

#[test]
fn guesses_are_verified_by_what_the_device_samples() {
    let Some((driver, _turn)) = device() else { return };
    let want = all_tokens(&on_cpu("llama"));
    let cuda = Cuda::with_driver(driver, Mode::Exact).unwrap();
    let loaded = load_on_device(cuda, &*model("llama"), &options()).unwrap();
    let costs = Some(SpeculationCosts { row: 0.01, guess: 0.0 });
    let config = EngineConfig { speculation_costs: costs, max_drafts: 3, ..EngineConfig::default() };
    let guesses: Option<Box<dyn realizar_engine::speculative::Proposer>> = Some(Box::new(Ngram::default()));
    let client = Engine::start_speculating(loaded.runner, guesses, config).unwrap();
    assert_eq!(all_tokens(&client), want);
    assert!(client.stats().drafted_tokens.get() > 0, "nothing was guessed");
}

#[test]
fn after_a_failed_step_the_next_request_gets_what_it_would_have_got() {
    let Some((driver, _turn)) = device() else { return };
    let request = || requests().swap_remove(4);
    let want = tokens(on_device(&driver, &options(), EngineConfig::default()).submit(request()).unwrap());
    assert!(want.is_ok());
    for call in CALLS {
        let mut n_failed = 0;
        for n in [0, 1, 2, 7, 60] {
            let client = on_device(&driver, &options(), EngineConfig::default());
            driver.fail(call, n, false);
            let outcome = tokens(client.submit(request()).unwrap());
            let failed = driver.heal();
            n_failed += usize::from(failed);
            match outcome {
                Err(Error::Device { message }) => assert!(failed, "{message}"),
                outcome => assert!(!failed && outcome == want, "{call:?} {n}: {outcome:?}"),
            }
            assert_eq!(tokens(client.submit(request()).unwrap()), want, "after {call:?} {n}");
            assert_eq!(client.health(), Health::Ready);
            assert_eq!(client.stats().failed_steps.get(), u64::from(failed));
        }
        assert!(n_failed > 0, "{call:?} never failed");
    }
}

#[test]
fn a_lost_device_ends_all_requests_and_turns_health_red() {
    let Some((driver, _turn)) = device() else { return };
    for call in [Call::Launch, Call::ClaimReadback, Call::RecordReadback, Call::FinishReadback] {
        let client = on_device(&driver, &options(), EngineConfig::default());
        driver.fail(call, 3, true);
        let streams: Vec<_> = requests().into_iter().map_while(|r| client.submit(r).ok()).collect();
        for outcome in streams.into_iter().map(tokens) {
            match outcome {
                Err(Error::Device { message } | Error::EngineFailed { message }) => {
                    assert!(message.contains("a faulty GPU"), "{message}");
                }
                other => panic!("{call:?}: {other:?}"),
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while client.health() == Health::Ready && Instant::now() < deadline {
            std::thread::yield_now();
        }
        assert!(
            matches!(client.health(), Health::Failed { message } if message.contains("lost")),
            "{call:?}"
        );
        assert!(matches!(client.submit(requests().remove(0)), Err(Error::EngineFailed { .. })));
        drop(client);
        driver.heal();
    }
}

/// Through the graph of a step and the argmax of its logits, which have a bias.
#[test]
fn a_head_with_a_bias_generates_what_the_host_does() {
    let Some((driver, _turn)) = device() else { return };
    let want = all_tokens(&on_cpu("phi2"));
    assert!(want.iter().all(Result::is_ok));
    let cuda = Cuda::with_driver(driver.clone(), Mode::Exact).unwrap();
    let loaded = load_on_device(cuda, &*model("phi2"), &options()).unwrap();
    let client = Engine::start(loaded.runner, EngineConfig::default());
    assert_eq!(all_tokens(&client), want);
    // Greedy requests alone take the argmax.
    let (_, before) = driver.n_launches_and_replays();
    for at in [1, 5] {
        let request = requests().swap_remove(at);
        assert!(request.sampling.temperature == 0.0, "{at} is not greedy");
        assert_eq!(tokens(client.submit(request).unwrap()), want[at], "request {at} alone");
    }
    assert!(driver.n_launches_and_replays().1 > before, "no step was replayed");
}

/// One token at a time and many at once, which take other kernels. What rounding activations changes is measured on long texts
/// (docs/measurements); the few tokens here may be further off.
#[test]
fn quantized_weights_in_the_fast_mode_are_near_exact_sums() {
    let Some((driver, _turn)) = device() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let demo = source::open(&path).unwrap();
    let text =
        "Once upon a time, there was a little fox. She lived in a forest with her mother and a friend.";
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let text = &Tokenizer::from_source(&*demo).unwrap().encode(text, encode)[..20];
    let nll = |mut runner: Box<dyn Runner>| {
        let mut score = Score::default();
        score_chunk(&mut *runner, text, None, &mut score).unwrap();
        score.nll / score.n_tokens as f64
    };
    let want = nll(load(&*demo, &LoadOptions { device: Device::Cpu, ..options() }).unwrap().runner);
    for step_tokens in [1, 20] {
        let fast = LoadOptions { exact: false, step_tokens: Some(step_tokens), ..options() };
        let cuda = Cuda::with_driver(driver.clone(), Mode::Fast).unwrap();
        let got = nll(load_on_device(cuda, &*demo, &fast).unwrap().runner);
        assert!((got - want).abs() < 0.05, "{got} nats a token in steps of {step_tokens}, exactly {want}");
    }
}

/// A text's log-probabilities, to the last bit, however it is cut into steps.
#[test]
fn a_deterministic_device_scores_alike_in_steps_of_any_size() {
    let Some((driver, _turn)) = device() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let demo = source::open(&path).unwrap();
    let text = "Once upon a time, there was a little fox. She lived in a forest with her mother.";
    let encode = EncodeOptions { add_special: true, parse_special: false };
    let text = &Tokenizer::from_source(&*demo).unwrap().encode(text, encode)[..18];
    let nll = |source: &dyn TensorSource, step_tokens, mode| {
        let steps = LoadOptions { exact: false, step_tokens: Some(step_tokens), ..options() };
        let cuda = Cuda::with_driver(driver.clone(), mode).unwrap();
        let mut score = Score::default();
        score_chunk(&mut *load_on_device(cuda, source, &steps).unwrap().runner, text, None, &mut score)
            .unwrap();
        score.nll / score.n_tokens as f64
    };
    let whole = nll(&*demo, 24, Mode::Deterministic);
    for step_tokens in [1, 7, 9] {
        assert_eq!(nll(&*demo, step_tokens, Mode::Deterministic), whole, "steps of {step_tokens}");
    }
    // So few tokens of a model this small may be far off; see docs/measurements for long texts.
    let exact = nll(&*demo, 24, Mode::Exact);
    assert!((whole - exact).abs() < 0.3, "{whole} nats a token, exactly {exact}");
}

/// Tokens and log-probabilities of requests, to the last bit: one by one, together, from cached beginnings, where some must give their room
/// up, and with drafts.
#[test]
fn a_deterministic_device_answers_alike_whatever_else_runs() {
    let Some((driver, _turn)) = device() else { return };
    let bits = |stream: Stream| {
        let token = |event| match event {
            Event::Token { choice, id, logprob, .. } => Some((choice, id, logprob.unwrap().to_bits())),
            Event::Finished { .. } => None,
            other => panic!("{other:?}"),
        };
        let mut tokens: Vec<_> = stream.filter_map(token).collect();
        tokens.sort_by_key(|&(choice, ..)| choice);
        tokens
    };
    let requests = || requests().into_iter().map(|r| Request { n_logprobs: Some(0), ..r });
    let together = |client: &Client| {
        let streams: Vec<_> = requests().map(|r| client.submit(r).unwrap()).collect();
        streams.into_iter().map(bits).collect::<Vec<_>>()
    };
    for name in ["llama", "gpt-oss-mxfp4", "qwen35", "nemotron-h", "glm4moelite"] {
        let start = |cache, guesses: Option<Box<dyn realizar_engine::speculative::Proposer>>| {
            let cuda = Cuda::with_driver(driver.clone(), Mode::Deterministic).unwrap();
            let room = LoadOptions { exact: false, cache: CacheSize::Tokens(cache), ..options() };
            let loaded = load_on_device(cuda, &*model(name), &room).unwrap();
            let costs = Some(SpeculationCosts { row: 0.01, guess: 0.0 });
            let config = EngineConfig { speculation_costs: costs, max_drafts: 3, ..EngineConfig::default() };
            Engine::start_speculating(loaded.runner, guesses, config).unwrap()
        };
        let alone = start(2000, None);
        let want: Vec<_> = requests().map(|r| bits(alone.submit(r).unwrap())).collect();
        assert!(want.iter().all(|tokens| tokens.len() >= 20), "{name}");

        let client = start(2000, None);
        for what in ["together", "from cached beginnings"] {
            assert_eq!(together(&client), want, "{name} {what}");
        }
        assert!(client.stats().cache_hit_tokens.get() > 0, "{name}");

        let client = start(96, None);
        assert_eq!(together(&client), want, "{name} with little room");
        assert!(client.stats().preemptions.get() > 0, "{name}: nobody gave room up");

        let client = start(2000, Some(Box::new(Ngram { min: 1, max: 3 })));
        assert_eq!(together(&client), want, "{name} with drafts");
        assert!(client.stats().drafted_tokens.get() > 0, "{name}: no drafts");
    }
}

/// Steps that begin with snapshots, leave some behind, and verify drafts.
#[test]
fn models_with_recurrent_state_generate_what_the_host_does() {
    let Some((driver, _turn)) = device() else { return };
    for name in ["qwen35", "lfm2", "nemotron-h"] {
        let want = all_tokens(&on_cpu(name));
        assert!(want.iter().all(Result::is_ok));
        let cuda = Cuda::with_driver(driver.clone(), Mode::Exact).unwrap();
        let room = LoadOptions { cache: CacheSize::Tokens(2000), ..options() };
        let loaded = load_on_device(cuda, &*model(name), &room).unwrap();
        let costs = Some(SpeculationCosts { row: 0.01, guess: 0.0 });
        let config = EngineConfig { speculation_costs: costs, max_drafts: 3, ..EngineConfig::default() };
        let guesses: Option<Box<dyn realizar_engine::speculative::Proposer>> =
            Some(Box::new(Ngram { min: 1, max: 3 }));
        let client = Engine::start_speculating(loaded.runner, guesses, config).unwrap();
        for what in ["at first", "from cached beginnings"] {
            assert_eq!(all_tokens(&client), want, "{name} {what}");
        }
        let stats = client.stats();
        assert!(stats.drafted_tokens.get() > 0 && stats.cache_hit_tokens.get() > 0, "{name}: {stats:?}");
    }
}

/// Each number of each tensor goes to the device once, those of norms and biases too; loading the model again takes as much memory and writes the
/// same. Weights of 32 bits are packed for no device.
#[test]
fn a_model_is_uploaded_once() {
    let Some((driver, _turn)) = device() else { return };
    for name in ["phi2", "gpt-oss", "olmo2", "glm4moelite"] {
        let source = model(name);
        let upload = || {
            let cuda = Cuda::with_driver(driver.clone(), Mode::Exact).unwrap();
            let before = driver.n_allocations();
            let load = || load_on_device(cuda, &*source, &options()).unwrap();
            let (_loaded, mut writes) = driver.writes_of(load);
            writes.sort();
            (driver.n_allocations() - before, writes)
        };
        let (n_allocations, writes) = upload();
        let mut words: HashMap<&[u8], usize> = HashMap::new();
        for word in writes.iter().flat_map(|write| write.chunks(4)) {
            *words.entry(word).or_default() += 1;
        }
        for tensor in source.tensors() {
            for word in source.tensor(&tensor.name).unwrap().bytes.chunks(4) {
                match words.get_mut(word) {
                    Some(n) if *n > 0 => *n -= 1,
                    _ => panic!("a number of {} of {name} is not on the device", tensor.name),
                }
            }
        }
        // Frequencies of rotations are in no file.
        let n_others: usize = words.values().sum();
        assert!(n_others <= 64, "{n_others} numbers of {name} are in no tensor");
        assert_eq!(driver.n_live(), 0, "{name}");
        assert!(upload() == (n_allocations, writes), "{name}, loaded again");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_leaves_nothing_behind() {
    let Some((driver, _turn)) = device() else { return };
    let source = model("llama");
    let load = || {
        let cuda = Cuda::with_driver(driver.clone(), Mode::Fast).unwrap();
        load_on_device(cuda, &*source, &LoadOptions { exact: false, ..options() }).map(drop)
    };
    let before = driver.n_allocations();
    load().unwrap();
    let n = driver.n_allocations() - before;
    assert!(n > 20 && driver.n_live() == 0, "{n} allocations, {} left", driver.n_live());
    for at in 0..n {
        driver.fail(Call::Allocate, at, false);
        let error = load().unwrap_err().to_string();
        assert!(error.contains("out of memory"), "{error}");
        assert_eq!(driver.n_live(), 0, "after allocation {at} failed");
    }
}

/// A step of one token for each of `n_seqs` sequences, at this position of each, whose history is as long.
fn decode_step(n_seqs: usize, position: usize, params: &Arc<SamplingParams>) -> Step {
    let mut step = Step::default();
    for seq in 0..n_seqs {
        let blocks: Vec<u32> = (0..6).map(|i| (6 * seq + i) as u32).collect();
        step.batch.push(&[(7 * seq + position) as u32 % 100], position, &blocks[..=position / 16], 1);
        let start = step.history.len();
        step.history.extend((0..=position as u32).map(|i| i % 90));
        let generated = start..step.history.len();
        step.rows.push(Row { generated, uniform: 0.4, ..Row::choose(params.clone()) });
    }
    step
}

#[test]
fn after_the_first_steps_of_a_shape_nothing_is_allocated_and_all_is_replayed() {
    let Some((driver, _turn)) = device() else { return };
    let penalties = SamplingParams {
        temperature: 0.8,
        top_k: 20,
        repetition_penalty: 1.2,
        presence_penalty: 0.3,
        ..SamplingParams::default()
    };
    let greedy = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    for mode in [Mode::Exact, Mode::Deterministic, Mode::Fast] {
        let cuda = Cuda::with_driver(driver.clone(), mode).unwrap();
        let mut runner = load_on_device(cuda, &*model("llama"), &options()).unwrap().runner;
        let mask_words = runner.info().vocab_size.div_ceil(32);
        for (params, masked) in [(&greedy, false), (&penalties, false), (&penalties, true)] {
            let params = Arc::new(params.clone());
            for n_seqs in [4, 1] {
                let mut counts = Vec::new();
                for position in 0..90 {
                    let mut step = decode_step(n_seqs, position, &params);
                    // One more sequence with a mask every 20 steps.
                    for row in step.rows.iter_mut().take(1 + position / 20).filter(|_| masked) {
                        row.mask = Some(step.masks.len()..step.masks.len() + mask_words);
                        step.masks.resize(step.masks.len() + mask_words, 0b1011);
                    }
                    let ticket = runner.launch(&step).unwrap();
                    runner.finish(ticket).unwrap();
                    let (launches, replays) = driver.n_launches_and_replays();
                    counts.push((driver.n_allocations(), launches, replays));
                }
                // The first step allocates scratch memory, the second one is recorded.
                for (i, pair) in counts[1..].windows(2).enumerate() {
                    let [(allocations, launches, replays), next] = pair else { unreachable!() };
                    let what = format!("{mode:?}, {n_seqs} sequences, step {}: {pair:?}", i + 2);
                    assert_eq!(next.0, *allocations, "{what}");
                    assert_eq!(next.2, replays + 1, "{what}");
                    // The batch, and what sampling wants, are brought to the device by kernels of their own.
                    assert!(next.1 <= launches + 2, "{what}");
                }
            }
        }
    }
}

/// Measured by what is launched, and not by time: each kernel is launched within a part, but those that bring the batch to the device.
#[test]
fn a_profile_accounts_for_every_kernel_of_every_token() {
    const N_TOKENS: usize = 6;
    let Some((driver, _turn)) = device() else { return };
    let cuda = Cuda::with_driver(driver.clone(), Mode::Fast).unwrap();
    let loaded = load_on_device(cuda, &*model("llama"), &options()).unwrap();
    let (n_layers, mut runner) = (loaded.config.layers.len(), loaded.runner);
    let mut bench = Bench::new(&mut *runner);
    let work = Work::Decode { n_tokens: N_TOKENS, depth: 0 };
    let counts = || (driver.launches().len(), driver.n_launches_and_replays().1, driver.n_synchronizations());
    let off = |bench: &mut Bench<'_>| {
        let before = counts();
        bench.run(work, 2).unwrap();
        let after = counts();
        (after.0 - before.0, after.1 - before.1, after.2 - before.2)
    };
    // The first steps allocate memory and are recorded.
    bench.run(work, 2).unwrap();
    let without = off(&mut bench);
    assert_eq!(
        without,
        (N_TOKENS, N_TOKENS, 0),
        "a kernel for the batch and a replay per step, and nobody waits"
    );

    let (n_launches, n_replays, _) = counts();
    let (_, parts) = bench.profile(work, 2).unwrap();
    assert_eq!(counts().1, n_replays, "each part is launched by itself");
    let runs = |op: &str| parts.iter().filter(|part| part.op == op).count();
    assert_eq!((runs("lm_head"), runs("sample")), (N_TOKENS, N_TOKENS));
    for op in ["qkv_proj", "attention", "gate_up_proj"] {
        assert_eq!(runs(op), N_TOKENS * n_layers, "{op}");
    }
    assert!(parts.windows(2).all(|pair| pair[0].start + pair[0].duration <= pair[1].start), "parts overlap");
    let launches = &driver.launches()[n_launches..];
    let is_within = |at: &Instant| parts.iter().any(|p| (p.start..=p.start + p.duration).contains(at));
    assert_eq!(
        launches.iter().filter(|at| !is_within(at)).count(),
        N_TOKENS,
        "of {} launches",
        launches.len()
    );

    assert_eq!(off(&mut bench), without, "it costs nothing afterwards");
    assert!(runner.take_profile().is_empty());
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    let Some((driver, _turn)) = device() else { return };
    let source = model("llama");
    let cuda = || Cuda::with_driver(driver.clone(), Mode::Fast).unwrap();
    let load_with = |free: usize, n_ctx, cache| {
        driver.set_memory(DeviceMemory { free, total: 16 << 30 });
        let before = driver.n_allocations();
        let loaded = load_on_device(cuda(), &*source, &LoadOptions { n_ctx, cache, ..options() });
        let loaded = loaded.map(|l| (l.runner.info().context_length, l.memory));
        if loaded.is_err() {
            assert_eq!(driver.n_allocations(), before, "memory was taken");
        }
        loaded
    };
    let load = |free, n_ctx| load_with(free, n_ctx, CacheSize::OneSequence);
    let (_, plenty) = load(15 << 30, Some(96)).unwrap();
    let least = plenty.total();
    load(least + (1 << 20), Some(96)).unwrap();
    // Too long a context: what would fit is named, and fits.
    let Err(error @ LoadError::Memory { .. }) = load(least + (1 << 20), Some(1 << 20)) else { panic!() };
    let text = error.to_string();
    for part in ["weights", "cache", "workspace", "1048576 tokens in F16", "are missing", "what fits: --ctx "]
    {
        assert!(text.contains(part), "{text}");
    }
    let ctx = text.split("--ctx ").nth(1).and_then(|t| t.split(' ').next()).unwrap().parse().unwrap();
    load(least + (1 << 20), Some(ctx)).unwrap();
    // No context at all.
    let Err(error @ LoadError::Memory { .. }) = load(plenty.workspace, Some(96)) else { panic!() };
    assert!(error.to_string().contains("too large for this device"), "{error}");
    let Err(error @ LoadError::Memory { .. }) = load(plenty.workspace + plenty.weights / 2, Some(96)) else {
        panic!()
    };
    assert!(error.to_string().contains("% of these bits"), "{error}");
    // Without a wish, the context is what fits.
    assert_eq!(load(15 << 30, None).unwrap().0, arch_context(&*source));
    let (n_ctx, memory) = load(least + (16 << 10), None).unwrap();
    assert!(n_ctx < arch_context(&*source) && memory.total() <= least + (16 << 10), "{n_ctx}: {memory}");
    // A cache for all four sequences, or as many of their tokens as nine tenths of what is left can hold.
    let (_, memory) = load_with(15 << 30, Some(96), CacheSize::AllSequences).unwrap();
    assert_eq!(memory.cache, 4 * plenty.cache);
    let (_, memory) = load_with(least + plenty.cache, Some(96), CacheSize::AllSequences).unwrap();
    assert!((plenty.cache..2 * plenty.cache * 9 / 10).contains(&memory.cache), "{memory}");
}

fn arch_context(source: &dyn TensorSource) -> usize {
    realizar_model::arch::configure(source).unwrap().context_length
}
