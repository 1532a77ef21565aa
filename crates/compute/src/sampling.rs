//! How a token is chosen from a row of logits, in arithmetic that every device repeats bit by bit.
//!
//! Logits are `F32`; each operation on them is rounded once, to nearest. The order of steps:
//! 1. biases are added, then penalties change the logits of tokens that occurred; a mask forbids tokens;
//! 2. greedy rows end here: the likeliest token, the lowest of equal ones;
//! 3. logits become relative to the largest one, `(l - max) / temperature`;
//! 4. the `top_k` likeliest stay; of those the fewest likeliest whose [`weight`]s reach `top_p` of the sum; of those the ones of at
//!    least `min_p`. Of equal logits the lower token counts as likelier;
//! 5. of the tokens that stay, in the order of their ids, the first at which the running sum of weights exceeds `uniform` times their
//!    sum.
//!
//! Probabilities are [`weight`]s: integers, so that their sums do not depend on the order in which a device adds them up. The
//! definition is [`choose`]; it sorts, and faster ones must agree with it in every token.

use crate::Chosen;
use std::ops::Range;

/// The weight of the likeliest token. Tokens less likely than 2⁻⁴⁰ of it have none.
pub const WEIGHT_OF_LIKELIEST: u64 = 1 << 40;

/// The largest vocabulary whose weights can be summed.
pub const MAX_VOCAB: usize = 1 << 23;

/// What to do with the rows of logits of a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samplers {
    /// One per row of logits.
    pub rows: Vec<SamplerRow>,
    /// Tokens that penalties look at; rows hold ranges of it.
    pub history: Vec<u32>,
    /// Bits of allowed tokens, lowest first; rows hold ranges of it.
    pub masks: Vec<u32>,
    /// Tokens and what is added to their logits; rows hold ranges of it.
    pub biases: Vec<(u32, f32)>,
}

impl Samplers {
    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.history.clear();
        self.masks.clear();
        self.biases.clear();
    }
}

/// How one row of logits becomes a token.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerRow {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Keeps this many of the likeliest tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the likeliest tokens that reach this share of the probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens of at least this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that occurred in the prompt or in what was generated.
    pub repetition_penalty: f32,
    /// Subtracted from a logit for each time that its token was generated.
    pub frequency_penalty: f32,
    /// Subtracted once from the logits of tokens that were generated.
    pub presence_penalty: f32,
    /// Range of [`Samplers::biases`], where no token stands twice.
    pub biases: Range<usize>,
    /// Range of [`Samplers::history`]: tokens of the prompt that count for penalties.
    pub prompt: Range<usize>,
    /// Range of [`Samplers::history`]: generated tokens that count for penalties.
    pub generated: Range<usize>,
    /// One more generated token that counts for penalties.
    pub last: Option<LastToken>,
    /// Range of [`Samplers::masks`]: the tokens that are allowed; those behind its end are not. `None` allows all.
    pub mask: Option<Range<usize>>,
    /// The random number to choose by, in 0..1.
    pub uniform: f64,
}

/// The token before the one to choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastToken {
    /// Its id.
    Known(u32),
    /// What was chosen from this row of the logits before; only the device may know it.
    Chosen(usize),
}

impl SamplerRow {
    /// Takes the likeliest token as the model computed it.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            biases: 0..0,
            prompt: 0..0,
            generated: 0..0,
            last: None,
            mask: None,
            uniform: 0.0,
        }
    }

    /// Whether tokens that occurred get other logits.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.frequency_penalty != 0.0 || self.presence_penalty != 0.0
    }

    /// The least relative logit that `min_p` keeps.
    pub fn least(&self) -> f32 {
        if self.min_p > 0.0 { self.min_p.ln() } else { f32::NEG_INFINITY }
    }
}

/// A number in 0..1 as a fraction of 2⁶⁴.
pub fn fraction(x: f64) -> u64 {
    (x * 18_446_744_073_709_551_616.0) as u64
}

/// `fraction · sum`, rounded down.
pub fn share(fraction: u64, sum: u64) -> u64 {
    ((u128::from(fraction) * u128::from(sum)) >> 64) as u64
}

/// `exp(x) · 2⁴⁰` of a relative logit, which is at most 0: rounded down, with the error of a float.
///
/// The exponential is a power of two times a polynomial (Cody and Waite 1980); every operation is a plain one of `F32`.
#[inline]
pub fn weight(x: f32) -> u64 {
    // Minus infinity less itself is not a number.
    if x.is_nan() || x < -28.0 {
        return 0;
    }
    // Adding 1.5 · 2²³ leaves no room for a fraction.
    const ROUND: f32 = 12_582_912.0;
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // ln 2 in two parts; the first has few bits, so that its product with n is exact.
    let r = (x - n * (355.0 / 512.0)) - n * -2.121_944_4e-4;
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p * r + c;
    }
    let bits = p.to_bits();
    let mantissa = u64::from(bits & 0x7f_ffff | 0x80_0000);
    // The mantissa has 23 bits behind the point.
    let shift = (bits >> 23) as i32 - 127 + n as i32 + 40 - 23;
    if shift >= 0 { mantissa << shift } else { mantissa >> -shift }
}

/// Changes the logits as a row's biases, penalties and mask say.
fn edit(logits: &mut [f32], samplers: &Samplers, row: &SamplerRow, previous: &[Chosen]) {
    for &(id, bias) in &samplers.biases[row.biases.clone()] {
        logits[id as usize] += bias;
    }
    if row.has_penalties() {
        let last = row.last.map(|last| match last {
            LastToken::Known(id) => id,
            LastToken::Chosen(i) => previous[i].token_or_zero(),
        });
        let prompt = &samplers.history[row.prompt.clone()];
        let generated: Vec<u32> =
            samplers.history[row.generated.clone()].iter().copied().chain(last).collect();
        for (id, l) in logits.iter_mut().enumerate() {
            let count = generated.iter().filter(|&&t| t as usize == id).count();
            if count > 0 || prompt.contains(&(id as u32)) {
                *l = if *l > 0.0 { *l / row.repetition_penalty } else { *l * row.repetition_penalty };
            }
            if count > 0 {
                *l -= count as f32 * row.frequency_penalty + row.presence_penalty;
            }
        }
    }
    if let Some(mask) = row.mask.clone().map(|m| &samplers.masks[m]) {
        for (id, l) in logits.iter_mut().enumerate() {
            if mask.get(id / 32).is_none_or(|word| word >> (id % 32) & 1 == 0) {
                *l = f32::NEG_INFINITY;
            }
        }
    }
}

/// Chooses a token from the logits of row `row`, by the definition above. `previous`: what was chosen from the logits before.
///
/// Logits that are not a number or plus infinity are reported, as by [`crate::Ops::choose_likeliest`].
pub fn choose(logits: &[f32], samplers: &Samplers, row: usize, previous: &[Chosen]) -> Chosen {
    assert!(logits.len() <= MAX_VOCAB, "{} tokens", logits.len());
    let bad = |nan: bool| logits.iter().position(|l| if nan { l.is_nan() } else { *l == f32::INFINITY });
    for nan in [true, false] {
        if let Some(i) = bad(nan) {
            return Chosen::NotFinite { token: i as u32, nan };
        }
    }
    let row = &samplers.rows[row];
    let mut logits = logits.to_vec();
    edit(&mut logits, samplers, row, previous);
    let falling = |l: &[f32], a: u32, b: u32| {
        l[b as usize].partial_cmp(&l[a as usize]).expect("numbers").then(a.cmp(&b))
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| falling(&logits, a, b));
    let max = logits[ids[0] as usize];
    if max == f32::NEG_INFINITY {
        return Chosen::Nothing;
    }
    if max == f32::INFINITY {
        // Only a bias or a penalty on a logit near the end of the range gets here.
        return Chosen::NotFinite { token: ids[0], nan: false };
    }
    if row.temperature == 0.0 {
        return Chosen::Token(ids[0]);
    }
    let x: Vec<f32> = logits.iter().map(|&l| (l - max) / row.temperature).collect();
    // Logits that differed may be equal now.
    ids.sort_by(|&a, &b| falling(&x, a, b));
    let weigh = |ids: &[u32]| ids.iter().map(|&id| weight(x[id as usize])).sum::<u64>();
    // How many of the tokens it takes for a sum that `reaches`.
    let first = |ids: &[u32], reaches: &dyn Fn(u64) -> bool| {
        let mut sum = 0;
        let n = ids.iter().position(|&id| {
            sum += weight(x[id as usize]);
            reaches(sum)
        });
        n.expect("all tokens together reach a part of their sum")
    };
    if row.top_k > 0 {
        ids.truncate(row.top_k);
    }
    if row.top_p < 1.0 {
        let wanted = share(fraction(row.top_p.into()), weigh(&ids)).max(1);
        ids.truncate(first(&ids, &|sum| sum >= wanted) + 1);
    }
    ids.retain(|&id| x[id as usize] >= row.least());
    ids.sort_unstable();
    let target = share(fraction(row.uniform), weigh(&ids));
    Chosen::Token(ids[first(&ids, &|sum| sum > target)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_exponentials() {
        assert_eq!(weight(0.0), WEIGHT_OF_LIKELIEST);
        assert_eq!((weight(f32::NEG_INFINITY), weight(f32::NAN), weight(-1e30)), (0, 0, 0));
        for i in 0..2_800_000 {
            let x = -(i as f32) * 1e-5;
            let want = f64::from(x).exp() * WEIGHT_OF_LIKELIEST as f64;
            let error = (weight(x) as f64 - want).abs();
            assert!(error <= 1.0 + want * 2.5e-7, "{x}: {} instead of {want}", weight(x));
        }
    }

    #[test]
    fn shares_are_rounded_down() {
        assert_eq!(share(fraction(0.5), 7), 3);
        assert_eq!(share(fraction(0.0), 7), 0);
        assert_eq!(share(fraction(1.0 - f64::EPSILON / 2.0), u64::MAX >> 1), (u64::MAX >> 1) - 1024);
    }
}
