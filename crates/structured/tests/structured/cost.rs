//! What a mask costs per token, beside which a step of the smallest models takes milliseconds. `--nocapture` shows the numbers.

use super::schema;
use super::support::{Random, babble, compile, demo, grammars};
use super::test_data::test_data;
use realizar_engine::{Constraint, TokenMask};
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Ten fields of the usual kinds.
fn ten_fields() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "born": {"type": "string", "format": "date"},
            "score": {"type": "number"},
            "active": {"type": "boolean"},
            "role": {"enum": ["admin", "editor", "reader"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 10},
            "address": {
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
                "required": ["street", "city"],
                "additionalProperties": false,
            },
            "note": {"type": ["string", "null"]},
            "id": {"type": "string", "pattern": "^[a-z]{2}-[0-9]{6}$"},
        },
        "required": ["name", "age", "born", "score", "active", "role", "tags", "address", "note", "id"],
        "additionalProperties": false,
    })
}

/// Notes how long each step takes.
struct Timed {
    inner: Box<dyn Constraint>,
    times: Vec<Duration>,
}

impl Constraint for Timed {
    fn allowed(&mut self) -> Result<&TokenMask, String> {
        let before = Instant::now();
        let mask = self.inner.allowed();
        self.times.push(before.elapsed());
        mask
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        let before = Instant::now();
        let outcome = self.inner.accept(token);
        *self.times.last_mut().expect("a mask came first") += before.elapsed();
        outcome
    }

    fn fork(&self) -> Box<dyn Constraint> {
        self.inner.fork()
    }
}

fn measure(name: &str, tokenizer: &Tokenizer) {
    let before = Instant::now();
    let grammars = grammars(tokenizer);
    let trie = before.elapsed();
    let format = schema(&ten_fields());
    let mut compiles: Vec<Duration> = (0..10)
        .map(|_| {
            let before = Instant::now();
            drop(compile(&grammars, format.clone()));
            before.elapsed()
        })
        .collect();
    let mut times = Vec::new();
    for seed in 0..20 {
        // Each text with a grammar of its own, as each request has.
        let mut constraint = Timed { inner: compile(&grammars, format.clone()), times: Vec::new() };
        babble(&mut constraint, tokenizer, &mut Random(seed), 150);
        times.append(&mut constraint.times);
    }
    times.sort_unstable();
    compiles.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
    println!(
        "{name}: {} tokens; trie {:.0} ms; compiling {:.1} ms; per token, of {}: median {:.0} µs, p99 {:.0} µs, largest {:.0} µs",
        tokenizer.vocab_size(),
        trie.as_secs_f64() * 1e3,
        compiles[5].as_secs_f64() * 1e3,
        times.len(),
        at(0.5),
        at(0.99),
        at(1.0),
    );
    // Far above what it takes, so that only a change of kind fails on a busy machine.
    assert!(at(0.5) < 20_000.0, "a mask takes {:.0} µs", at(0.5));
}

#[test]
fn a_mask_costs_little_beside_a_step() {
    measure("demo", &Tokenizer::from_source(&*demo()).unwrap());
    let Some(dir) = test_data("tokenizers/gguf") else { return };
    for name in ["ggml-vocab-llama-spm", "rebuilt-vocab-llama-bpe"] {
        measure(
            name,
            &Tokenizer::from_source(&*source::open(&dir.join(format!("{name}.gguf"))).unwrap()).unwrap(),
        );
    }
}
