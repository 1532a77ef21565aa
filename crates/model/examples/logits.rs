//! Writes the logits of a model at every position of some prompts, on the reference backend: for comparing with other programs.
//!
//! `logits MODEL PROMPTS OUT`. PROMPTS: little-endian `i32`, the number of prompts, then for each its length and its token ids.
//! OUT: little-endian `f32`, one prompt after the other, `[n_positions, vocab_size]`.

#[path = "../tests/support/mod.rs"]
#[allow(dead_code)]
mod support;

use realizar_compute::{DType, Reference};
use realizar_model::arch::configure;
use realizar_model::{Decoder, source};
use std::error::Error;
use support::Session;

/// Longest prompt, in tokens; also the context that frequencies of rotary embedding are chosen for.
const CONTEXT: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, prompts, out] = args.as_slice() else {
        return Err("expected MODEL PROMPTS OUT".into());
    };
    let source = source::open(model.as_ref())?;
    let decoder = Decoder::load(&Reference, &*source, configure(&*source)?, CONTEXT)?;
    let mut logits = Vec::new();
    for prompt in read_prompts(&std::fs::read(prompts)?).ok_or("the file of prompts ends early")? {
        let mut session = Session::new(&Reference, &decoder, CONTEXT, DType::F32);
        logits.extend(session.try_step(&prompt)?.iter().flat_map(|logit| logit.to_le_bytes()));
    }
    Ok(std::fs::write(out, logits)?)
}

fn read_prompts(bytes: &[u8]) -> Option<Vec<Vec<u32>>> {
    let mut words =
        bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    let n_prompts = words.next()?;
    let mut prompt = || {
        let n_tokens = words.next()?;
        (0..n_tokens).map(|_| words.next()).collect::<Option<Vec<_>>>()
    };
    (0..n_prompts).map(|_| prompt()).collect()
}
