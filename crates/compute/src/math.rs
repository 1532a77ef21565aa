//! Formulas that the reference and the fast backends share, for one row, head or number.

use crate::{Chosen, MoeParams, RopeStyle};

/// The token with the largest logit; the first of equal ones.
///
/// `logits`: [n_vocab]. `NotFinite` names the first NaN, or else the first positive infinity where that is the maximum; `Nothing` means
/// that there are no logits, or none above negative infinity.
pub(crate) fn argmax(logits: &[f32]) -> Chosen {
    if let Some(i) = logits.iter().position(|l| l.is_nan()) {
        return Chosen::NotFinite { token: i as u32, nan: true };
    }
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    match logits.get(best) {
        None | Some(&f32::NEG_INFINITY) => Chosen::Nothing,
        Some(&f32::INFINITY) => Chosen::NotFinite { token: best as u32, nan: false },
        Some(_) => Chosen::Token(best as u32),
    }
}

/// The error function, with an error below 1e-7: its Maclaurin series near 0, further out the continued fraction of its complement.
pub(crate) fn erf(x: f32) -> f32 {
    let a = f64::from(x).abs();
    let y = if a < 2.5 {
        // erf(a) = 2/sqrt(pi) · sum (-1)^n a^(2n+1) / (n! (2n+1))
        let (mut term, mut sum) = (a, a);
        for n in 1..60 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * 2.0 / std::f64::consts::PI.sqrt()
    } else {
        // erfc(a) = exp(-a²)/sqrt(pi) · 1/(a + (1/2)/(a + 1/(a + (3/2)/(a + …))))
        let tail = (1..40).rev().fold(a, |t, n| a + f64::from(n) * 0.5 / t);
        1.0 - (-a * a).exp() / (std::f64::consts::PI.sqrt() * tail)
    };
    (y.copysign(f64::from(x))) as f32
}

/// Rotates one query or key head in place (RoPE; RoFormer, Su et al. 2021, eq. 34).
///
/// `head`: [head_dim], of which the first `2 · n` elements change. `angles`: [2 · n], `n` cosines and then `n` sines.
pub(crate) fn rotate(head: &mut [f32], angles: &[f32], style: RopeStyle) {
    let n = angles.len() / 2;
    let (cos, sin) = angles.split_at(n);
    for i in 0..n {
        let (a, b) = match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Half => (i, i + n),
        };
        let (x, y) = (head[a], head[b]);
        head[a] = x * cos[i] - y * sin[i];
        head[b] = x * sin[i] + y * cos[i];
    }
}

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f32) -> f32 {
    // Above 20 the difference from x is below x's last bit.
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// `1 / (1 + e^-x)`
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Chooses the `n_used` experts of the highest probability for one token: `chosen` becomes their numbers and weights, highest first.
///
/// `logits`: [n_experts], the router's output. Of experts that are equally probable the lower number comes first. With `norm_topk` the
/// weights sum to 1.
pub(crate) fn route(logits: &[f32], params: &MoeParams, chosen: &mut Vec<(usize, f32)>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f32 = logits.iter().map(|&l| (l - max).exp()).sum();
    chosen.clear();
    chosen.extend(logits.iter().enumerate().map(|(e, &l)| (e, (l - max).exp() / sum)));
    // A stable sort leaves ties in the order of the experts.
    chosen.sort_by(|a, b| b.1.total_cmp(&a.1));
    chosen.truncate(params.n_used);
    if params.norm_topk {
        let sum: f32 = chosen.iter().map(|c| c.1).sum();
        chosen.iter_mut().for_each(|c| c.1 /= sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Activation;

    #[test]
    fn erf_equals_tabulated_values() {
        // Abramowitz and Stegun, table 7.1; 2.5 is where the second formula begins.
        for (x, want) in
            [(0.0, 0.0), (0.5, 0.520_499_9), (1.0, 0.842_700_8), (2.0, 0.995_322_3), (2.5, 0.999_593)]
        {
            assert!((erf(x) - want).abs() < 1e-6, "erf({x}) = {}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!(erf(10.0), 1.0);
        assert!(erf(f32::NAN).is_nan());
    }

    #[test]
    fn argmax_reports_what_is_not_finite() {
        assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0]), Chosen::Token(1));
        assert_eq!(argmax(&[1.0, f32::INFINITY]), Chosen::NotFinite { token: 1, nan: false });
        assert_eq!(argmax(&[f32::INFINITY, 0.0, f32::NAN]), Chosen::NotFinite { token: 2, nan: true });
        assert_eq!(argmax(&[f32::NEG_INFINITY; 3]), Chosen::Nothing);
        assert_eq!(argmax(&[]), Chosen::Nothing);
    }

    #[test]
    fn rotation_by_a_right_angle_swaps_the_elements_of_a_pair() {
        let angles = [0.0, 1.0, 1.0, 0.0]; // 90° for the first pair, 0° for the second
        for (style, want) in [
            (RopeStyle::Interleaved, [-2.0, 1.0, 3.0, 4.0, 5.0]),
            (RopeStyle::Half, [-3.0, 2.0, 1.0, 4.0, 5.0]),
        ] {
            let mut head = [1.0, 2.0, 3.0, 4.0, 5.0];
            rotate(&mut head, &angles, style);
            assert_eq!(head, want, "{style:?}");
        }
    }

    #[test]
    fn routing_prefers_lower_experts_among_equals() {
        let mut chosen = vec![(9, 9.0)];
        let mut params = MoeParams { n_used: 2, norm_topk: true, activation: Activation::Silu };
        route(&[1.0, 2.0, 2.0, 0.0], &params, &mut chosen);
        assert_eq!(chosen, [(1, 0.5), (2, 0.5)]);
        params.norm_topk = false;
        route(&[0.0; 4], &params, &mut chosen);
        assert_eq!(chosen, [(0, 0.25), (1, 0.25)]);
    }
}
