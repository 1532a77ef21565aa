//! A model that several devices share, behind the engine: the same answers as from one device, and what is refused.

use realizar_engine::load::{CacheSize, Device, LoadError, LoadOptions, load};
use realizar_engine::{Engine, EngineConfig, Event, Request, SamplingParams};
use realizar_model::source::{self, TensorSource};
use std::path::Path;

fn demo() -> Box<dyn TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

fn options(tp: usize) -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        tp,
        n_threads: 2,
        n_ctx: Some(200),
        cache: CacheSize::Tokens(1000),
        exact: true,
        ..LoadOptions::default()
    }
}

/// What several requests get that run side by side: greedy and sampled ones, one of them in two ways after its prompt.
fn answers(tp: usize) -> Vec<Vec<(u32, u32)>> {
    let loaded = load(&*demo(), &options(tp)).unwrap();
    let client = Engine::start(loaded.runner, EngineConfig::default());
    let streams: Vec<_> = (0..5u32)
        .map(|i| {
            let prompt = (0..20 + 13 * i).map(|t| 300 + (t * 7 + i * 31) % 900).collect();
            let sampling = match i % 2 {
                0 => SamplingParams::greedy(),
                _ => SamplingParams { seed: Some(u64::from(i)), top_k: 40, ..SamplingParams::default() },
            };
            let n = if i == 3 { 2 } else { 1 };
            client.submit(Request { sampling, n, ..Request::new(prompt, 24) }).unwrap()
        })
        .collect();
    let collect = |events: realizar_engine::Stream| {
        let mut tokens: Vec<_> = events
            .filter_map(|e| match e {
                Event::Token { choice, id, .. } => Some((choice, id)),
                Event::Error(e) => panic!("{e}"),
                _ => None,
            })
            .collect();
        tokens.sort_by_key(|t| t.0);
        tokens
    };
    streams.into_iter().map(collect).collect()
}

#[test]
fn several_devices_give_the_same_texts_as_one() {
    let alone = answers(1);
    assert!(alone.iter().all(|tokens| !tokens.is_empty()));
    for tp in [2, 3] {
        assert_eq!(answers(tp), alone, "{tp} devices");
    }
}

#[test]
fn sizes_are_those_of_all_devices_together() {
    let (one, two) = (load(&*demo(), &options(1)).unwrap(), load(&*demo(), &options(2)).unwrap());
    assert_eq!((2 * two.memory.cache, two.runner.info()), (one.memory.cache, one.runner.info()));
    // Each has the whole embedding.
    assert!(two.weights.total > one.weights.total);
    assert!(two.device.starts_with("2 × CPU"), "{}", two.device);
}

#[test]
fn too_many_devices_are_refused_by_name() {
    let refused = |options: LoadOptions| load(&*demo(), &options).map(|_| ()).unwrap_err();
    let error = refused(options(100)).to_string();
    assert!(error.contains("cannot be shared among 100 devices"), "{error}");
    let several = |list: &str, tp| LoadOptions { device: list.parse().unwrap(), tp, ..options(1) };
    match refused(several("cuda:0,1,2", 2)) {
        LoadError::Option { option: "--tp", reason, .. } => assert!(reason.contains("names 3 GPUs")),
        other => panic!("{other}"),
    }
    // Several GPUs were asked for, so the processor will not do.
    match refused(LoadOptions { device: Device::Auto, ..several("cuda", 7) }) {
        LoadError::Device { device, .. } => assert_eq!(device.to_string(), "cuda:0,1,2,3,4,5,6"),
        LoadError::Model(e) => assert!(e.to_string().contains("among 7 devices")),
        other => panic!("{other}"),
    }
}
