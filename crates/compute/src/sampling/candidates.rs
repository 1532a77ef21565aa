//! What the steps of the host's chain work on: the tokens that are left, and the order of the likeliest.

use std::cmp::Ordering;

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
