//! Small trained models from the public data beside the project, against logits and greedy tokens of their reference implementations.
//!
//! Without the data they do not run.

#![expect(clippy::print_stderr, reason = "a test says what it measured")]

mod support;
#[path = "../../compute/tests/support/test_data.rs"]
mod test_data;

use realizar_compute::DType;
use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_model::arch::configure;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_model::{Decoder, source};
use serde_json::Value;
use support::{Session, argmax};
use test_data::test_data;

struct Case {
    model: &'static str,
    golden: &'static str,
    /// Largest difference of a logit, relative to the largest, in exact products.
    tolerance: f32,
    /// The same in fast products, which round activations to integers of 8 bits, or them and F16 weights to BF16.
    fast_tolerance: f32,
}

/// Types that lose nothing of the weights that the goldens were computed from, and two that do.
const CASES: &[Case] = &[
    Case {
        model: "stories260K/hf",
        golden: "stories260K/golden.json",
        tolerance: 1e-4,
        fast_tolerance: 1e-4,
    },
    Case {
        model: "stories260K/stories260K-F32.gguf",
        golden: "stories260K/golden.json",
        tolerance: 1e-4,
        fast_tolerance: 1e-4,
    },
    Case {
        model: "stories260K/stories260K-F16.gguf",
        golden: "stories260K/golden.json",
        tolerance: 2e-3,
        fast_tolerance: 1e-2,
    },
    Case {
        model: "stories260K/stories260K-Q8_0.gguf",
        golden: "stories260K/golden.json",
        tolerance: 2e-2,
        fast_tolerance: 4e-2,
    },
    Case {
        model: "stories260K/hf-bf16-sharded",
        golden: "stories260K/hf-bf16-sharded/golden.json",
        tolerance: 1e-4,
        fast_tolerance: 2e-2,
    },
    Case {
        model: "TinyStories-656K",
        golden: "TinyStories-656K/golden.json",
        tolerance: 1e-4,
        fast_tolerance: 1e-4,
    },
    Case {
        model: "bitllama2/bitllama2-3M-TQ2_0.gguf",
        golden: "bitllama2/golden_act_float.json",
        tolerance: 5e-3,
        fast_tolerance: 1e-2,
    },
    Case {
        model: "bitllama2/bitllama2-3M-TQ1_0.gguf",
        golden: "bitllama2/golden_act_float.json",
        tolerance: 5e-3,
        fast_tolerance: 1e-2,
    },
];

fn numbers<T>(v: &Value, f: impl Fn(f64) -> T) -> Vec<T> {
    v.as_array().unwrap().iter().map(|x| f(x.as_f64().unwrap())).collect()
}

fn check(case: &Case, exact: bool) {
    let Some(dir) = test_data("models") else { return };
    let source = source::open(&dir.join(case.model)).unwrap();
    let tokenizer = Tokenizer::from_source(&*source).unwrap();
    let golden: Value = serde_json::from_slice(&std::fs::read(dir.join(case.golden)).unwrap()).unwrap();
    let cpu = Cpu::new(CpuOptions { n_threads: 2, exact, ..CpuOptions::default() });
    let model = Decoder::load(&cpu, &*source, configure(&*source).unwrap(), 512).unwrap();
    let tolerance = if exact { case.tolerance } else { case.fast_tolerance };
    let mut worst = 0.0f32;
    for c in golden["cases"].as_array().unwrap() {
        let ids = numbers(&c["ids"], |x| x as u32);
        let what = format!("{}, {:?}", case.model, c["prompt"]);
        let text = c["prompt"].as_str().unwrap();
        let encoded = tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false });
        assert_eq!(encoded, ids, "{what}");

        let mut session = Session::new(&cpu, &model, 512, DType::F32);
        let logits = session.step(&ids);
        let n = model.config().vocab_size;
        let largest = logits.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        // Some goldens have the five best logits at every position, all have every logit at the last one.
        let mut wanted = Vec::new();
        for (position, top) in c["top5_logits_per_position"].as_array().into_iter().flatten().enumerate() {
            let pairs = top.as_array().unwrap().iter();
            wanted
                .extend(pairs.map(|p| {
                    (position * n + p[0].as_u64().unwrap() as usize, p[1].as_f64().unwrap() as f32)
                }));
        }
        let last = numbers(&c["last_logits"], |x| x as f32);
        wanted.extend(last.into_iter().enumerate().map(|(id, want)| ((ids.len() - 1) * n + id, want)));
        for (i, want) in wanted {
            worst = worst.max((logits[i] - want).abs() / largest);
            assert!(
                (logits[i] - want).abs() <= tolerance * largest,
                "{what}: logit {i} is {}, not {want}",
                logits[i]
            );
        }
        let mut row = logits[logits.len() - n..].to_vec();
        for (i, want) in numbers(&c["greedy_ids"], |x| x as u32).into_iter().enumerate() {
            // A golden without gaps has no near ties in its way.
            let gap = c["greedy_gap_top1_top2"].get(i).map_or(f32::INFINITY, |g| g.as_f64().unwrap() as f32);
            let (next, near) = (argmax(&row), 2.0 * tolerance * largest);
            // Fast products round by the instruction set, so that ties which no golden names may be in their way.
            let close = gap < near || (!exact && row[next as usize] - row[want as usize] < near);
            assert!(next == want || close, "{what}: token {i} is {next}, not {want} (gap {gap})");
            row = session.step(&[want]);
        }
    }
    eprintln!(
        "{} ({}): largest relative difference {worst:.1e}",
        case.model,
        if exact { "exact" } else { "fast" }
    );
}

#[test]
fn trained_models_give_their_reference_logits_and_tokens() {
    for case in CASES {
        check(case, true);
        check(case, false);
    }
}
