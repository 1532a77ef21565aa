//! The definition of sampling: it sorts the vocabulary, and everything faster must choose the same tokens.

use super::candidates::by_likelihood;
use super::host::not_finite;
use super::{MAX_VOCAB, STEPS, Samplers, fraction, share, weight};
use crate::Chosen;

/// The tokens that steps have kept, likeliest first. Of equal logits the lower token counts as likelier.
pub(super) struct Ranking {
    /// A logit per token of the vocabulary.
    logits: Vec<f32>,
    /// The tokens that are kept.
    ids: Vec<u32>,
}

impl Ranking {
    pub(super) fn new(logits: &[f32]) -> Self {
        let mut ranking = Self { logits: logits.to_vec(), ids: (0..logits.len() as u32).collect() };
        ranking.sort();
        ranking
    }

    fn sort(&mut self) {
        let logits = &self.logits;
        let entry = |id: u32| (logits[id as usize], id);
        self.ids.sort_by(|&a, &b| by_likelihood(&entry(a), &entry(b)));
    }

    /// The kept tokens with their logits.
    pub(super) fn tokens(&self) -> impl Iterator<Item = (u32, f32)> {
        self.ids.iter().map(|&id| (id, self.logits[id as usize]))
    }

    /// The largest logit.
    pub(super) fn max(&self) -> f32 {
        self.tokens().next().map_or(f32::NEG_INFINITY, |(_, logit)| logit)
    }

    /// Changes the logits of kept tokens.
    pub(super) fn edit(&mut self, new: impl Fn(u32, f32) -> f32) {
        for &id in &self.ids {
            let logit = &mut self.logits[id as usize];
            *logit = new(id, *logit);
        }
        self.sort();
    }

    /// Keeps the `n` likeliest.
    pub(super) fn truncate(&mut self, n: usize) {
        self.ids.truncate(n);
    }

    /// Keeps tokens by their logits.
    pub(super) fn retain(&mut self, keep: impl Fn(f32) -> bool) {
        self.ids.retain(|&id| keep(self.logits[id as usize]));
    }
}

/// Chooses a token from the logits of row `row`. `previous`: what was chosen from the logits before.
///
/// Logits that are not a number or plus infinity are reported, as by [`crate::Ops::argmax`].
pub fn choose(logits: &[f32], samplers: &Samplers, row: usize, previous: &[Chosen]) -> Chosen {
    assert!(logits.len() <= MAX_VOCAB, "{} tokens", logits.len());
    if let Some(bad) = not_finite(logits) {
        return bad;
    }
    let input = samplers.input(row, previous);
    let mut ranking = Ranking::new(logits);
    for step in STEPS.iter().filter(|step| (step.is_active)(&input)) {
        (step.define)(&mut ranking, &input);
    }
    let Some((likeliest, max)) = ranking.tokens().next() else { return Chosen::Nothing };
    match max {
        f32::NEG_INFINITY => return Chosen::Nothing,
        // Only a bias or a penalty on a logit near the end of the range gets here.
        f32::INFINITY => return Chosen::NotFinite { token: likeliest, nan: false },
        _ if input.params.is_greedy() => return Chosen::Token(likeliest),
        _ => {}
    }
    ranking.ids.sort_unstable();
    let sum: u64 = ranking.tokens().map(|(_, x)| weight(x)).sum();
    let target = share(fraction(input.uniform), sum);
    let mut running = 0;
    let drawn = ranking.tokens().find(|&(_, x)| {
        running += weight(x);
        running > target
    });
    Chosen::Token(drawn.expect("the running sum of weights exceeds a part of their sum").0)
}
