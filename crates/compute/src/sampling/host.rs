//! Choosing tokens on the host, without sorting the vocabulary.

use super::candidates::{Candidates, Scratch, by_likelihood, select_top};
use super::{STEPS, SamplerInput, draw};
use crate::Chosen;

/// Chooses tokens on the host, one row of logits at a time; keeps its buffers between rows.
#[derive(Default)]
pub struct Sampler {
    scratch: Scratch,
    kept: Vec<u32>,
}

impl Sampler {
    /// An empty one; buffers grow with the first row.
    pub fn new() -> Self {
        Self::default()
    }

    /// Chooses a token as [`super::choose`] does. `logits`: `[vocab_size]`, changed by this.
    pub fn choose(&mut self, logits: &mut [f32], input: &SamplerInput) -> Chosen {
        if let Some(bad) = not_finite(logits) {
            return bad;
        }
        let mut candidates = Candidates { logits, kept: &mut self.kept, all: true };
        for step in STEPS.iter().filter(|step| (step.is_active)(input)) {
            (step.apply)(&mut candidates, input, &mut self.scratch);
        }
        match input.params.is_greedy() {
            true => draw::likeliest(&candidates),
            false => draw::draw(&candidates, input.uniform),
        }
    }
}

/// The first logit that is not a number, or else the first that is plus infinity. Minus infinity is allowed and means never.
pub fn not_finite(logits: &[f32]) -> Option<Chosen> {
    // Whole chunks without an early exit, which the compiler turns into vector compares.
    let bad = |l: f32| l.is_nan() || l == f32::INFINITY;
    if !logits.chunks(256).any(|chunk| chunk.iter().fold(false, |any, &l| any | bad(l))) {
        return None;
    }
    let first = |nan: bool| {
        let token = logits.iter().position(|&l| bad(l) && l.is_nan() == nan)? as u32;
        Some(Chosen::NotFinite { token, nan })
    };
    first(true).or_else(|| first(false))
}

/// Leaves the `n` largest logits with their tokens in `best`, largest first; of equal ones the lower token first.
pub fn largest(best: &mut Vec<(f32, u32)>, logits: &[f32], n: usize) {
    select_top(best, n.min(logits.len()), |offer| {
        logits.iter().enumerate().for_each(|(id, &l)| offer(id as u32, l));
    });
    best.sort_unstable_by(by_likelihood);
}
