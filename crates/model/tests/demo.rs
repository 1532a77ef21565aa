//! The embedded demo model against the reference library, on its own weights as they are shipped.
//!
//! `tools/train_demo.py --only golden` made the golden from the file's decoded weights, in float64.

mod support;

use bytes::Bytes;
use realizar_compute::DType;
use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_model::arch::configure;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_model::{Decoder, source};
use serde_json::Value;
use support::{Session, argmax};

static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");
static GOLDEN: &str = include_str!("data/demo_golden.json");

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn check(exact: bool, tolerance: f32) {
    let source = source::open_gguf_bytes("demo", Bytes::from_static(DEMO)).unwrap();
    let tokenizer = Tokenizer::from_source(&*source).unwrap();
    let cpu = Cpu::new(CpuOptions { n_threads: 2, exact, ..CpuOptions::default() });
    let model = Decoder::load(&cpu, &*source, configure(&*source).unwrap(), 1024).unwrap();
    let golden: Value = serde_json::from_str(GOLDEN).unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let prompt = case["prompt"].as_str().unwrap();
        let options = EncodeOptions { add_special: true, parse_special: true };
        assert_eq!(tokenizer.encode(prompt, options), ids(&case["prompt_ids"]), "{prompt:?}");

        let mut session = Session::new(&cpu, &model, 512, DType::F32);
        let logits = session.step(&ids(&case["prompt_ids"]));
        let n = model.config().vocab_size;
        let largest = logits.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for (row, top) in logits.chunks_exact(n).zip(case["top5"].as_array().unwrap()) {
            for (id, want) in ids(&top["ids"]).into_iter().zip(top["logits"].as_array().unwrap()) {
                let (got, want) = (row[id as usize], want.as_f64().unwrap() as f32);
                assert!(
                    (got - want).abs() <= tolerance * largest,
                    "{prompt:?}: logit of {id} is {got}, not {want}"
                );
            }
        }
        let mut next = argmax(&logits[logits.len() - n..]);
        for (i, (want, gap)) in
            ids(&case["greedy_ids"]).into_iter().zip(case["greedy_gaps"].as_array().unwrap()).enumerate()
        {
            let close = (gap.as_f64().unwrap() as f32) < 2.0 * tolerance * largest;
            assert!(next == want || close, "{prompt:?}: token {i} is {next}, not {want}");
            next = argmax(&session.step(&[want]));
        }
    }
}

#[test]
fn exact_products_give_the_reference_logits_and_tokens() {
    check(true, 1e-4);
}

#[test]
fn fast_products_stay_close_to_the_reference() {
    check(false, 5e-2);
}
