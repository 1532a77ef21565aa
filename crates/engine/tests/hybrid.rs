//! Models whose layers have recurrent state beside keys and values, read the keys and values of other layers, or keep one vector in place of
//! them, on the CPU: what is
//! generated does not depend on chunks, batches, cached beginnings, preemption, other choices or drafts, and a chat computes only what is
//! new.
//!
//! Method: the fixtures of the architecture tests. The text of each request by itself, computed in whole prompts without any reuse, is
//! compared with its text in an engine that is short of everything.

use realizar_compute::DType;
use realizar_engine::load::{CacheSize, Device, LoadOptions, LoadedModel, load};
use realizar_engine::speculative::{DraftModel, Ngram, Proposer, SpeculationCosts};
use realizar_engine::{Client, Engine, EngineConfig, Event, Request, SamplingParams, Usage};
use realizar_model::source::{self, TensorSource};
use std::path::Path;

const MODELS: [&str; 3] = ["qwen35", "lfm2", "nemotron-h"];
/// Those whose later layers keep nothing, and those whose layers keep heads of several sizes.
const SHARED: [&str; 2] = ["gemma4", "gemma4-moe"];
/// Those that keep one vector of a token for all heads.
const LATENT: [&str; 1] = ["deepseek3"];

fn every_model() -> impl Iterator<Item = &'static str> {
    MODELS.into_iter().chain(SHARED).chain(LATENT)
}

fn model(name: &str) -> Box<dyn TensorSource> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/arch");
    source::open(&data.join(name).join("hf")).unwrap()
}

/// Plenty of everything.
fn options() -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(200),
        cache: CacheSize::Tokens(8000),
        kv_type: DType::F32,
        block_size: 4,
        n_threads: 2,
        max_guesses: 64,
        ..LoadOptions::default()
    }
}

/// So little that prompts come in chunks and sequences take each other's room.
fn short(name: &str) -> LoadOptions {
    // Models differ in the size of their states.
    let tokens = match name {
        "qwen35" => 500,
        "nemotron-h" => 900,
        _ => 300,
    };
    LoadOptions { cache: CacheSize::Tokens(tokens), step_tokens: Some(23), max_seqs: Some(7), ..options() }
}

fn loaded(name: &str, options: &LoadOptions) -> LoadedModel {
    load(&*model(name), options).unwrap()
}

fn start(name: &str, options: &LoadOptions, drafts: Option<Box<dyn Proposer>>) -> Client {
    let costs = SpeculationCosts { row: 0.001, guess: 0.0 };
    let config = EngineConfig { speculation_costs: Some(costs), max_drafts: 3, ..EngineConfig::default() };
    Engine::start_speculating(loaded(name, options).runner, drafts, config).unwrap()
}

/// Requests that begin alike, some with several choices.
fn requests() -> Vec<Request> {
    let text: Vec<u32> = (0..80u32).map(|i| 5 + i * i % 91).collect();
    (0..18u64)
        .map(|i| {
            let mut prompt = text[..20 + i as usize * 7 % 50].to_vec();
            // Repeats itself, so that something is found to draft.
            prompt.extend([7, 8, 9, 10 + i as u32 % 4].repeat(3));
            let sampling = match i % 3 {
                0 => SamplingParams::greedy(),
                1 => SamplingParams { seed: Some(i), temperature: 0.4, ..SamplingParams::default() },
                _ => SamplingParams { seed: Some(i), top_k: 5, ..SamplingParams::default() },
            };
            let n = if i % 4 == 1 { 3 } else { 1 };
            Request { sampling, n, ignore_eos: true, ..Request::new(prompt, 30) }
        })
        .collect()
}

type Texts = Vec<Vec<Vec<u32>>>;

/// The texts of all requests at once.
fn all_at_once(client: &Client) -> Texts {
    let streams: Vec<_> = requests().into_iter().map(|r| client.submit(r).unwrap()).collect();
    let texts = |s: realizar_engine::Stream| s.collect_tokens().unwrap().into_iter().map(|t| t.0).collect();
    streams.into_iter().map(texts).collect()
}

/// The texts of each request by itself, in whole prompts, with nothing reused.
fn solo(name: &str) -> Texts {
    let config = EngineConfig { prefix_cache: false, ..EngineConfig::default() };
    let client = Engine::start(loaded(name, &options()).runner, config);
    let texts = |r| client.submit(r).unwrap().collect_tokens().unwrap().into_iter().map(|t| t.0).collect();
    requests().into_iter().map(texts).collect()
}

#[test]
fn texts_do_not_depend_on_what_shares_the_engine() {
    for name in every_model() {
        let want = solo(name);
        let plenty = start(name, &options(), None);
        assert!(all_at_once(&plenty) == want, "{name} in batches");
        assert!(all_at_once(&plenty) == want, "{name} from cached beginnings");
        assert!(plenty.stats().cache_hit_tokens.get() > 200, "{name}: {:?}", plenty.stats());
        let short = start(name, &short(name), None);
        assert!(all_at_once(&short) == want, "{name} in chunks");
        assert!(all_at_once(&short) == want, "{name} in chunks, again");
        assert!(short.stats().preemptions.get() > 0, "{name}: {:?}", short.stats());
    }
}

#[test]
fn drafts_change_no_text() {
    for name in every_model() {
        let want = solo(name);
        let check = |what: &str, options: &LoadOptions, drafts: Box<dyn Proposer>| {
            let client = start(name, options, Some(drafts));
            assert!(all_at_once(&client) == want, "{name} with {what}");
            assert!(all_at_once(&client) == want, "{name} with {what}, again");
            let stats = client.stats();
            (stats.drafted_tokens.get(), stats.accepted_tokens.get())
        };
        let (drafted, _) = check("lookup", &options(), Box::new(Ngram { min: 1, max: 3 }));
        assert!(drafted > 50, "{drafted}");
        check("lookup and little room", &short(name), Box::new(Ngram { min: 1, max: 3 }));
        // The model itself is always right, another one is not. Both may run out of room.
        for (draft, room) in [("qwen35", options()), ("lfm2", options()), ("qwen35", short("qwen35"))] {
            let runner = loaded(draft, &LoadOptions { max_guesses: 0, ..room }).runner;
            let (drafted, accepted) = check(draft, &options(), Box::new(DraftModel::new(runner)));
            assert!(drafted > 100, "{drafted}");
            assert_eq!(drafted == accepted, draft == name, "{name} by {draft}: {accepted} of {drafted}");
        }
    }
}

#[test]
fn a_drafting_layer_changes_no_text() {
    for name in ["qwen35", "qwen35moe", "deepseek3", "glm4moe"] {
        let want = solo(name);
        for (what, room) in [("room", options()), ("little room", short(name))] {
            let client = start(name, &LoadOptions { draft_layer: true, ..room }, None);
            assert!(client.info().drafts, "{name}");
            assert!(all_at_once(&client) == want, "{name} with {what}");
            assert!(all_at_once(&client) == want, "{name} with {what}, again");
            assert!(client.stats().drafted_tokens.get() > 100, "{name} with {what}: {:?}", client.stats());
        }
        let without = start(name, &options(), None);
        assert!(!without.info().drafts && without.stats().drafted_tokens.get() == 0);
    }
}

/// The tokens of one greedy request, and how many of its prompt were not computed.
fn ask(client: &Client, prompt: &[u32]) -> (Vec<u32>, Usage) {
    let sampling = SamplingParams::greedy();
    let request = Request { sampling, ignore_eos: true, ..Request::new(prompt.to_vec(), 42) };
    let (mut tokens, mut used) = (Vec::new(), None);
    for event in client.submit(request).unwrap() {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Finished { usage, .. } => used = Some(usage),
            event => panic!("{event:?}"),
        }
    }
    (tokens, used.unwrap())
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let first: Vec<u32> = (0..70u32).map(|i| 5 + i * i % 91).collect();
    let new: Vec<u32> = (0..20u32).map(|i| 40 + i * 3 % 17).collect();
    for name in MODELS {
        let cold = |prompt: &[u32]| ask(&start(name, &options(), None), prompt).0;
        let client = start(name, &options(), None);
        let (answer, usage) = ask(&client, &first);
        assert_eq!(usage.cached_tokens, 0);
        // The whole text comes back, with a new question.
        let second = [&first[..], &answer, &new].concat();
        let (text, usage) = ask(&client, &second);
        // All blocks that were full when the last token was chosen.
        assert_eq!(usage.cached_tokens, (first.len() + answer.len() - 1) / 4 * 4, "{name}");
        assert!(text == cold(&second), "{name}");
        // The client removes the first 30 tokens of the answer, its thinking: what was computed after the first prompt is of no use.
        let without_thinking = [&first[..], &answer[30..], &new].concat();
        let (text, usage) = ask(&client, &without_thinking);
        assert_eq!(usage.cached_tokens, (first.len() - 1) / 4 * 4, "{name}");
        assert!(text == cold(&without_thinking), "{name}");
    }
}

#[test]
fn the_cache_has_room_for_states() {
    let qwen35 = loaded("qwen35", &options());
    // Three layers, each with three rows of 120 channels and six heads of 12 · 12.
    let slots = qwen35.runner.info().slots.unwrap();
    assert_eq!(slots.slot_bytes, 3 * 4 * (3 * 120 + 6 * 12 * 12));
    assert_eq!(qwen35.memory.cache, slots.budget_bytes);
    let blocks = qwen35.runner.info().n_blocks * slots.block_bytes;
    assert_eq!(slots.budget_bytes, blocks + slots.n_slots * slots.slot_bytes);
    // Three layers, each with three rows of 104 channels and four heads of 10 · 16.
    let slot_bytes = loaded("nemotron-h", &options()).runner.info().slots.unwrap().slot_bytes;
    assert_eq!(slot_bytes, 3 * 4 * (3 * 104 + 4 * 10 * 16));
    // Three layers of two rows of 24 channels.
    assert_eq!(loaded("lfm2", &options()).runner.info().slots.unwrap().slot_bytes, 3 * 4 * 2 * 24);
}
