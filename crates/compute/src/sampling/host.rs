//! The steps of sampling on the host, without sorting the vocabulary, and the draw.

use super::{STEPS, SamplerInput, draw};
use crate::Chosen;
use std::cmp::Ordering;

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

/// Tokens that steps have kept.
pub(super) struct Candidates<'a> {
    /// A logit per token of the vocabulary; stale for those that were dropped.
    pub(super) logits: &'a mut [f32],
    /// The tokens that are kept, by rising id, if not `all`.
    pub(super) kept: &'a mut Vec<u32>,
    pub(super) all: bool,
}

impl Candidates<'_> {
    pub(super) fn for_each(&self, mut f: impl FnMut(u32, f32)) {
        match self.all {
            true => self.logits.iter().enumerate().for_each(|(id, &l)| f(id as u32, l)),
            false => self.kept.iter().for_each(|&id| f(id, self.logits[id as usize])),
        }
    }

    pub(super) fn retain(&mut self, mut f: impl FnMut(u32, f32) -> bool) {
        if self.all {
            self.kept.clear();
            let ids = self.logits.iter().enumerate().map(|(id, &l)| (id as u32, l));
            self.kept.extend(ids.filter(|&(id, l)| f(id, l)).map(|(id, _)| id));
            self.all = false;
        } else {
            self.kept.retain(|&id| f(id, self.logits[id as usize]));
        }
    }

    /// Keeps the tokens of `best`, and no others.
    pub(super) fn keep(&mut self, best: &[(f32, u32)]) {
        self.all = false;
        self.kept.clear();
        self.kept.extend(best.iter().map(|&(_, id)| id));
        self.kept.sort_unstable();
    }

    pub(super) fn len(&self) -> usize {
        if self.all { self.logits.len() } else { self.kept.len() }
    }

    pub(super) fn max(&self) -> f32 {
        let mut max = f32::NEG_INFINITY;
        self.for_each(|_, l| max = max.max(l));
        max
    }
}

/// Buffers that steps reuse from row to row.
#[derive(Default)]
pub(super) struct Scratch {
    /// Occurrences per token; all zero between uses.
    pub(super) counts: Vec<u32>,
    /// The likeliest tokens seen so far.
    pub(super) best: Vec<(f32, u32)>,
}

/// Whether `a` is likelier than `b`; the lower id wins a tie.
pub(super) fn likelier(a: (f32, u32), b: (f32, u32)) -> bool {
    a.0 > b.0 || (a.0 == b.0 && a.1 < b.1)
}

/// Most likely first. Zero and minus zero are equal, which `total_cmp` denies; not-a-number does not get here.
pub(super) fn by_likelihood(a: &(f32, u32), b: &(f32, u32)) -> Ordering {
    b.0.partial_cmp(&a.0).unwrap_or(Ordering::Equal).then(a.1.cmp(&b.1))
}

/// Leaves the `k` likeliest tokens in `best`, in no order; ties go to the lower ids. One pass: whatever is not among the best so
/// far is dropped at once, so the vocabulary is never sorted.
pub(super) fn select_top(
    best: &mut Vec<(f32, u32)>,
    k: usize,
    for_each: impl FnOnce(&mut dyn FnMut(u32, f32)),
) {
    best.clear();
    if k == 0 {
        return;
    }
    let mut worst: Option<(f32, u32)> = None;
    let mut offer = |id: u32, logit: f32| {
        let new = (logit, id);
        if worst.is_some_and(|w| !likelier(new, w)) {
            return;
        }
        best.push(new);
        if best.len() >= 2 * k + 64 {
            best.select_nth_unstable_by(k - 1, by_likelihood);
            best.truncate(k);
            worst = Some(best[k - 1]);
        }
    };
    for_each(&mut offer);
    if best.len() > k {
        best.select_nth_unstable_by(k - 1, by_likelihood);
        best.truncate(k);
    }
}
