//! The cache of keys and values that a model is loaded with: its size, its type, and what is refused.

use realizar_compute::DType;
use realizar_engine::load::{CacheSize, Device, LoadError, LoadOptions, fit, load};
use realizar_engine::{Engine, EngineConfig, Event, Request};
use realizar_model::source::{self, TensorSource};
use std::path::Path;

fn demo() -> Box<dyn TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

fn options(kv_type: DType) -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(200),
        cache: CacheSize::Tokens(1000),
        kv_type,
        exact: true,
        ..LoadOptions::default()
    }
}

#[test]
fn the_cache_has_the_size_and_type_that_were_asked_for() {
    let tokens: Vec<u32> = (0..100).map(|i| 300 + i * 7 % 900).collect();
    let mut exact: Option<Vec<f32>> = None;
    for (kv_type, bytes, tolerance) in [
        (DType::F32, 4.0, 0.0),
        (DType::F16, 2.0, 0.01),
        (DType::BF16, 2.0, 0.06),
        (DType::Q8_0, 34.0 / 32.0, 0.06),
    ] {
        let loaded = load(&*demo(), &options(kv_type)).unwrap();
        let info = loaded.runner.info();
        // Whole blocks of 32.
        assert_eq!((info.cache_tokens(), info.max_seq_len()), (1024, 200));
        let values: usize =
            loaded.config.attentions().map(|a| 2 * a.heads.n_kv_heads * a.heads.head_dim).sum();
        assert_eq!(loaded.memory.cache as f64, 1024.0 * values as f64 * bytes, "{kv_type}");
        let client = Engine::start(loaded.runner, EngineConfig::default());
        let request = Request { prompt_logprobs: Some(0), ..Request::new(tokens.clone(), 1) };
        let events = client.submit(request).unwrap();
        let logprobs = events.filter_map(|e| match e {
            Event::PromptToken { logprob, .. } => logprob,
            Event::Error(e) => panic!("{e}"),
            _ => None,
        });
        let logprobs: Vec<f32> = logprobs.collect();
        assert_eq!(logprobs.len(), 99);
        let exact = exact.get_or_insert_with(|| logprobs.clone());
        let squares = logprobs.iter().zip(exact).map(|(a, b)| (a - *b).powi(2));
        let rms = (squares.sum::<f32>() / 99.0).sqrt();
        assert!(rms <= tolerance, "{kv_type}: log-probabilities differ by {rms}");
        assert!(rms > 0.0 || kv_type == DType::F32, "{kv_type} is not used");
    }
}

#[test]
fn a_cache_that_cannot_be_is_refused_with_the_option_at_fault() {
    let refused = |options: LoadOptions| match load(&*demo(), &options).map(|_| ()) {
        Err(LoadError::Option { option, value, reason }) => (option, value, reason),
        other => panic!("{other:?}"),
    };
    let (option, _, reason) = refused(LoadOptions { n_ctx: Some(0), ..options(DType::F16) });
    assert!(option == "--ctx" && reason.contains("at least 1"), "{reason}");
    let (option, _, reason) = refused(options(DType::Q4_K));
    assert!(option == "--kv-type" && reason.contains("whole blocks"), "{reason}");
}

#[test]
fn what_does_not_fit_is_refused_with_all_numbers_and_with_what_would() {
    let options = LoadOptions { n_ctx: Some(1 << 40), ..options(DType::F16) };
    let error = load(&*demo(), &options).map(|_| ()).unwrap_err();
    let LoadError::Memory { context, plan, free, .. } = &error else { panic!("{error:?}") };
    // What looks at the file beforehand says the same, but for what is free meanwhile.
    let verdict = |error: &LoadError| match error {
        LoadError::Memory { context, kv_type, plan, remedy, .. } => {
            (*context, *kv_type, *plan, remedy.clone())
        }
        other => panic!("{other:?}"),
    };
    let foreseen = fit(&*demo(), &options).unwrap().plan.unwrap_err();
    assert_eq!(verdict(&foreseen), verdict(&error));
    assert_eq!(*context, 1 << 40);
    assert!(plan.cache > *free, "{plan} of {free}");
    let text = error.to_string();
    for part in [
        "cache",
        "1099511627776 tokens in F16",
        "are free",
        "are missing",
        // Of what fits, no more than the model was trained for.
        "what fits: --ctx 1024 with --kv-type f16",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn packed_weights_are_counted_before_they_are_loaded() {
    let arch = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/arch");
    let mut names: Vec<_> = std::fs::read_dir(arch).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let files = names.iter().flat_map(|folder| [folder.join("model.gguf"), folder.clone()]);
    let mut n = 0;
    for path in files.filter(|path| path.exists()) {
        let Ok(source) = source::open(&path) else { continue };
        for exact in [false, true] {
            let cache = CacheSize::OneSequence;
            let options = LoadOptions { exact, n_ctx: Some(64), cache, ..options(DType::F16) };
            let planned = fit(&*source, &options).unwrap().plan.unwrap();
            let loaded = load(&*source, &options).unwrap();
            assert_eq!(loaded.memory, planned, "{path:?}");
            // What is left beside matrices are small vectors.
            let matrices = loaded.weights.total;
            // Tables of which only rows are looked up stay in the file, and in exact products so do quantized weights.
            let is_packed = source.tensors().iter().all(|t| t.dtype.block_len() == 1);
            let least = if is_packed && loaded.config.per_layer_input.is_none() { matrices } else { 0 };
            assert!(
                (least..matrices / 10 * 11).contains(&planned.weights),
                "{path:?}: {planned}, {matrices}"
            );
            n += 1;
        }
    }
    assert!(n > 100, "{n}");
}

#[test]
fn models_share_what_memory_is_left_for_caches() {
    let cache = |cache_share| {
        let options =
            LoadOptions { n_ctx: None, cache: CacheSize::AllSequences, cache_share, ..options(DType::F16) };
        load(&*demo(), &options).unwrap().memory.cache
    };
    let (whole, part) = (cache(1), cache(2_000));
    assert!(part < whole && part > 0, "{part} of {whole}");
    let asked = LoadOptions { kv_memory: Some(4 << 20), cache_share: 2_000, ..options(DType::F16) };
    assert_eq!(
        load(&*demo(), &asked).unwrap().memory.cache,
        4 << 20,
        "a size that is asked for is not shared"
    );
}
