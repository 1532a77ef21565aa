//! Formulas that the reference and the fast backends share, for one row, head or number.

use crate::{Chosen, ExpertGroups, GroupScore, RopeStyle, Router, RouterScores};

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

/// Largest gate, and largest magnitude of up, of [`Activation::ClampedSwiglu`](crate::Activation::ClampedSwiglu).
pub(crate) const SWIGLU_LIMIT: f32 = 7.0;
/// Factor on the gate in its sigmoid.
pub(crate) const SWIGLU_ALPHA: f32 = 1.702;

/// Chooses the experts of one token: `chosen` becomes their numbers and weights, the most preferred first.
///
/// `logits`: [n_experts], the router's output. `selection_bias` and `output_scale`: [n_experts].
pub(crate) fn route(
    logits: &[f32],
    router: &Router,
    selection_bias: Option<&[f32]>,
    output_scale: Option<&[f32]>,
    chosen: &mut Vec<(usize, f32)>,
) {
    chosen.clear();
    match router.scores {
        RouterScores::Softmax => {
            let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|&l| (l - max).exp()).sum();
            chosen.extend(logits.iter().map(|&l| (l - max).exp() / sum).enumerate());
        }
        RouterScores::Sigmoid => chosen.extend(logits.iter().map(|&l| 1.0 / (1.0 + (-l).exp())).enumerate()),
    }
    let preference = |&(e, score): &(usize, f32)| score + selection_bias.map_or(0.0, |bias| bias[e]);
    if let Some(groups) = router.groups {
        keep_best_groups(chosen, groups, preference);
    }
    // A stable sort leaves ties in the order of the experts.
    chosen.sort_by(|a, b| preference(b).total_cmp(&preference(a)));
    chosen.truncate(router.n_used);
    let sum: f32 = chosen.iter().map(|c| c.1).sum();
    // Sigmoids may all round to 0.
    let divisor = if router.norm_topk && sum != 0.0 { sum } else { 1.0 };
    let scale = |e: usize| router.scale * output_scale.map_or(1.0, |scale| scale[e]);
    chosen.iter_mut().for_each(|c| c.1 = c.1 / divisor * scale(c.0));
}

/// Drops the experts of all groups but the best. `experts`: all of a layer, in order.
fn keep_best_groups(
    experts: &mut Vec<(usize, f32)>,
    groups: ExpertGroups,
    preference: impl Fn(&(usize, f32)) -> f32,
) {
    let size = experts.len() / groups.count;
    let score = |group: &[(usize, f32)]| {
        let mut best = [f32::NEG_INFINITY; 2];
        for value in group.iter().map(&preference) {
            if value > best[0] {
                best = [value, best[0]];
            } else if value > best[1] {
                best[1] = value;
            }
        }
        match groups.score {
            GroupScore::Largest => best[0],
            GroupScore::TopTwo => best[0] + best[1],
        }
    };
    let mut ranked: Vec<(usize, f32)> = experts.chunks_exact(size).map(score).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    ranked.truncate(groups.n_used);
    experts.retain(|(e, _)| ranked.iter().any(|(group, _)| *group == e / size));
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn routed(logits: &[f32], router: Router, bias: Option<&[f32]>) -> Vec<(usize, f32)> {
        let mut chosen = vec![(9, 9.0)];
        route(logits, &router, bias, None, &mut chosen);
        chosen
    }

    #[test]
    fn routing_prefers_lower_experts_among_equals() {
        assert_eq!(routed(&[1.0, 2.0, 2.0, 0.0], Router::softmax(2, true), None), [(1, 0.5), (2, 0.5)]);
        assert_eq!(routed(&[0.0; 4], Router::softmax(2, false), None), [(0, 0.25), (1, 0.25)]);
    }

    #[test]
    fn a_selection_bias_changes_the_choice_and_not_the_weights() {
        let router = Router { scores: RouterScores::Sigmoid, scale: 2.0, ..Router::softmax(2, false) };
        let bias = [0.0, 0.6, -0.6, 0.0];
        // The scores are 0.5, 0.5, almost 1 and 0.5: with the bias expert 2 falls behind, and the lowest of equals comes second.
        assert_eq!(routed(&[0.0, 0.0, 20.0, 0.0], router, Some(&bias)), [(1, 1.0), (0, 1.0)]);
        assert_eq!(routed(&[0.0, 0.0, 20.0, 0.0], router, None)[0].0, 2);
        let normalized = Router { norm_topk: true, ..router };
        assert_eq!(routed(&[-200.0; 4], normalized, None), [(0, 0.0), (1, 0.0)]);
    }

    #[test]
    fn groups_are_compared_by_their_largest_or_their_top_two() {
        let logits = [3.0, -9.0, -9.0, 2.0, 2.0, -9.0];
        let grouped = |score| {
            let groups = Some(ExpertGroups { count: 2, n_used: 1, score });
            let router = Router { scores: RouterScores::Sigmoid, groups, ..Router::softmax(2, false) };
            routed(&logits, router, None).into_iter().map(|c| c.0).collect::<Vec<_>>()
        };
        assert_eq!(grouped(GroupScore::Largest), [0, 1]);
        assert_eq!(grouped(GroupScore::TopTwo), [3, 4]);
    }
}
