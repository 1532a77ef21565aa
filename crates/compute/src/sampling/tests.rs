//! Each step on the host against its definition written in the plainest way, on random rows; the draw against the distribution it
//! should have; the whole chain against the definition.

use super::*;
use crate::Chosen;
use std::sync::Arc;

/// SplitMix64 (Steele et al. 2014).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// Logits with ties, a few impossible tokens, and any size.
    fn logits(&mut self) -> Vec<f32> {
        let n = 1 + self.below(700);
        let spread = [0.5, 4.0, 30.0][self.below(3)];
        let coarse = self.below(2) == 0;
        let mut logits: Vec<f32> = (0..n)
            .map(|_| {
                let l = (self.unit() - 0.5) * spread;
                if coarse { l.round() } else { l }
            })
            .collect();
        for _ in 0..self.below(3) {
            let i = self.below(n);
            if i != 0 {
                logits[i] = f32::NEG_INFINITY;
            }
        }
        logits
    }
}

/// Applies one step to a row, after `kept` was left by those before. Returns the kept ids with their logits.
fn apply(name: &str, logits: &[f32], kept: Option<&[u32]>, row: &SamplerInput) -> Vec<(u32, f32)> {
    let step = STEPS.iter().find(|s| s.name == name).unwrap();
    let mut logits = logits.to_vec();
    let mut ids = kept.unwrap_or(&[]).to_vec();
    let mut candidates = Candidates { logits: &mut logits, kept: &mut ids, all: kept.is_none() };
    if (step.is_active)(row) {
        (step.apply)(&mut candidates, row, &mut Scratch::default());
    }
    let mut out = Vec::new();
    candidates.for_each(|id, l| out.push((id, l)));
    assert!(out.is_sorted_by_key(|&(id, _)| id), "{name} keeps the order of ids");
    out
}

fn sorted(candidates: &[(u32, f32)]) -> Vec<(u32, f32)> {
    let mut all = candidates.to_vec();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
    all
}

fn probabilities(candidates: &[(u32, f32)]) -> Vec<f64> {
    let max = candidates.iter().map(|c| f64::from(c.1)).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = candidates.iter().map(|c| (f64::from(c.1) - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

/// Random rows, each once with all tokens kept and once with some dropped before.
fn for_random_rows(mut test: impl FnMut(&mut Random, &[f32], Option<&[u32]>, Vec<(u32, f32)>)) {
    for seed in 0..300 {
        let mut random = Random(seed);
        let logits = random.logits();
        let all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        test(&mut random, &logits, None, all.clone());
        let some: Vec<(u32, f32)> =
            all.into_iter().filter(|(id, _)| *id == 0 || random.below(3) > 0).collect();
        let ids: Vec<u32> = some.iter().map(|c| c.0).collect();
        test(&mut random, &logits, Some(&ids), some);
    }
}

#[test]
fn top_k_keeps_the_first_k_of_the_sorted_vocabulary() {
    for_random_rows(|random, logits, kept, before| {
        let params = SamplingParams { top_k: 1 + random.below(80), ..Default::default() };
        let mut expected = sorted(&before);
        expected.truncate(params.top_k);
        assert_eq!(sorted(&apply("top_k", logits, kept, &SamplerInput::new(&params))), expected);
    });
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_the_sum() {
    for_random_rows(|random, logits, kept, before| {
        let top_p = [0.0, 0.1, 0.5, 0.9, 0.999, random.unit()][random.below(6)];
        let params = SamplingParams { top_p, ..Default::default() };
        let after = sorted(&apply("top_p", logits, kept, &SamplerInput::new(&params)));
        let all = sorted(&before);
        assert_eq!(after, all[..after.len()], "the likeliest are kept");
        let p = probabilities(&all);
        let sum = |n: usize| p[..n].iter().sum::<f64>();
        let n = after.len();
        if top_p < 1.0 {
            assert!(sum(n) >= f64::from(top_p) - 1e-5, "{} of {n} tokens, {top_p} wanted", sum(n));
            assert!(n == 1 || sum(n - 1) < f64::from(top_p) + 1e-5, "{n} tokens are too many for {top_p}");
        }
    });
}

#[test]
fn min_p_keeps_what_is_likely_enough_relative_to_the_likeliest() {
    for_random_rows(|random, logits, kept, before| {
        let min_p = [0.05, 0.5, 1.0][random.below(3)];
        let params = SamplingParams { min_p, ..Default::default() };
        let after: Vec<u32> =
            apply("min_p", logits, kept, &SamplerInput::new(&params)).iter().map(|c| c.0).collect();
        let p = probabilities(&before);
        let max = p.iter().copied().fold(0.0, f64::max);
        for ((id, _), p) in before.iter().zip(p) {
            let ratio = p / max / f64::from(min_p);
            if (ratio - 1.0).abs() > 1e-5 {
                assert_eq!(after.contains(id), ratio > 1.0, "token {id} at {ratio} of the least");
            }
        }
    });
}

#[test]
fn temperature_divides_the_differences_of_logits() {
    for_random_rows(|random, logits, kept, before| {
        let temperature = [0.1, 0.7, 1.0, 3.0, 1e-30][random.below(5)];
        let params = SamplingParams { temperature, ..Default::default() };
        let after = probabilities(&apply("temperature", logits, kept, &SamplerInput::new(&params)));
        let scaled: Vec<f64> = before.iter().map(|c| f64::from(c.1) / f64::from(temperature)).collect();
        let max = scaled.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scaled.iter().map(|l| (l - max).exp()).sum();
        for (a, l) in after.iter().zip(scaled) {
            assert!((a - (l - max).exp() / sum).abs() < 1e-4, "{a} at temperature {temperature}");
        }
    });
}

#[test]
fn penalties_count_the_text_and_the_repetition_penalty_also_the_prompt() {
    for_random_rows(|random, logits, kept, before| {
        if kept.is_some() {
            return; // penalties come before anything is dropped
        }
        let n = logits.len();
        let tokens = |random: &mut Random| -> Vec<u32> {
            (0..random.below(40)).map(|_| random.below(n.min(20)) as u32).collect()
        };
        let (prompt, generated) = (tokens(random), tokens(random));
        let last = (random.below(2) == 0).then(|| random.below(n) as u32);
        let params = SamplingParams {
            repetition_penalty: [1.0, 1.3][random.below(2)],
            frequency_penalty: [0.0, 0.4][random.below(2)],
            presence_penalty: [0.0, -0.7][random.below(2)],
            ..Default::default()
        };
        let row = SamplerInput { prompt: &prompt, generated: &generated, last, ..SamplerInput::new(&params) };
        for ((id, l), (_, got)) in before.iter().zip(apply("penalties", logits, None, &row)) {
            let count = generated.iter().chain(&last).filter(|t| *t == id).count();
            let mut expected = *l;
            if count > 0 || prompt.contains(id) {
                expected =
                    if *l > 0.0 { l / params.repetition_penalty } else { l * params.repetition_penalty };
            }
            if count > 0 {
                expected -= count as f32 * params.frequency_penalty + params.presence_penalty;
            }
            assert!(got == expected || (got - expected).abs() < 1e-5, "token {id}: {got}, not {expected}");
        }
    });
}

#[test]
fn penalties_leave_no_trace_for_the_next_row() {
    let params = SamplingParams { frequency_penalty: 1.0, ..Default::default() };
    let row = SamplerInput { prompt: &[2], generated: &[2, 1], uniform: 0.5, ..SamplerInput::new(&params) };
    let mut sampler = Sampler::new();
    let (mut a, mut b) = (vec![1.0; 4], vec![1.0; 4]);
    assert_eq!(sampler.choose(&mut a, &row), sampler.choose(&mut b, &row));
    assert_eq!(a, b);
    assert_eq!(a, [0.0, -1.0, -1.0, 0.0], "relative to the largest");
}

/// Pearson's statistic against its 99.9 % quantile (Wilson and Hilferty's approximation), over 40,000 draws.
#[test]
fn draws_follow_the_distribution_that_the_chain_leaves() {
    let mut random = Random(1);
    for params in [
        SamplingParams::default(),
        SamplingParams { temperature: 0.6, top_k: 12, ..Default::default() },
        SamplingParams { temperature: 1.4, top_p: 0.8, ..Default::default() },
        SamplingParams { min_p: 0.2, top_k: 9, top_p: 0.95, ..Default::default() },
    ] {
        let logits: Vec<f32> = (0..30).map(|_| random.unit() * 3.0).collect();
        let mut expected: Option<Vec<(u32, f32)>> = None;
        for name in ["temperature", "top_k", "top_p", "min_p"] {
            let (row, kept) = match &expected {
                None => (logits.clone(), None),
                Some(c) => {
                    let mut row = vec![f32::NAN; logits.len()];
                    c.iter().for_each(|&(id, l)| row[id as usize] = l);
                    (row, Some(c.iter().map(|c| c.0).collect::<Vec<_>>()))
                }
            };
            expected = Some(apply(name, &row, kept.as_deref(), &SamplerInput::new(&params)));
        }
        let expected = expected.unwrap();
        let p = probabilities(&expected);
        let n = 40_000;
        let mut counts = vec![0.0; logits.len()];
        let mut sampler = Sampler::new();
        for _ in 0..n {
            let row = SamplerInput { uniform: random.uniform(), ..SamplerInput::new(&params) };
            let chosen = sampler.choose(&mut logits.clone(), &row);
            counts[chosen.token_or_zero() as usize] += 1.0;
        }
        let mut statistic = 0.0;
        for ((id, _), p) in expected.iter().zip(&p) {
            let e = p * n as f64;
            statistic += (counts[*id as usize] - e) * (counts[*id as usize] - e) / e;
            counts[*id as usize] = 0.0;
        }
        assert_eq!(counts.iter().sum::<f64>(), 0.0, "dropped tokens are never drawn");
        let k = (expected.len() - 1) as f64;
        let t = 2.0 / (9.0 * k);
        let limit = k * (1.0 - t + 3.09 * t.sqrt()).powi(3);
        assert!(statistic < limit, "{statistic} exceeds {limit}");
    }
}

/// The host against the definition, which devices follow: the same token or the same error, for thousands of random rows.
#[test]
fn the_host_chooses_what_the_definition_says() {
    let mut sampler = Sampler::new();
    let mut n_chosen = 0;
    for seed in 0..6000 {
        let mut random = Random(seed);
        let mut logits = random.logits();
        let n = logits.len();
        match random.below(100) {
            0 => logits[random.below(n)] = f32::NAN,
            1 => logits[random.below(n)] = f32::INFINITY,
            2 => logits.fill(f32::NEG_INFINITY),
            3 => logits.fill(0.0),
            _ => {}
        }
        let params = SamplingParams {
            temperature: [0.0, 0.2, 1.0, 1.0, 1.9][random.below(5)],
            top_k: [0, 0, 1, 7, 50, usize::MAX][random.below(6)],
            top_p: [1.0, 1.0, 0.0, 0.5, 0.95, random.unit()][random.below(6)],
            min_p: [0.0, 0.0, 0.05, 1.0][random.below(4)],
            repetition_penalty: [1.0, 1.0, 1.2][random.below(3)],
            frequency_penalty: [0.0, 0.0, 0.6][random.below(3)],
            presence_penalty: [0.0, 0.0, -0.4][random.below(3)],
            // The second bias of a token adds to the first.
            logit_bias: (0..random.below(12))
                .map(|i| ((i / 2 * 7 % n) as u32, random.unit() * 8.0 - 4.0))
                .collect(),
            ..SamplingParams::default()
        };
        let history: Vec<u32> = (0..random.below(50)).map(|_| random.below(n) as u32).collect();
        let n_prompt = random.below(history.len() + 1);
        let mut row = SamplerRow {
            prompt: 0..n_prompt,
            generated: n_prompt..history.len(),
            last: (random.below(2) == 0).then_some(LastToken::Chosen(0)),
            uniform: random.uniform(),
            ..SamplerRow::new(Arc::new(params.with_biases_merged()))
        };
        let mut masks = Vec::new();
        if random.below(3) == 0 {
            masks.extend((0..n.div_ceil(32)).map(|_| random.next() as u32));
            row.mask = Some(0..masks.len());
        }
        let previous = [Chosen::Token(random.below(n) as u32)];
        let samplers = Samplers { rows: vec![row], history, masks };
        let want = choose(&logits, &samplers, 0, &previous);
        n_chosen += usize::from(matches!(want, Chosen::Token(_)));
        let got = sampler.choose(&mut logits, &samplers.input(0, &previous));
        assert_eq!(got, want, "seed {seed}: {:?}", samplers.rows[0]);
    }
    assert!(n_chosen > 5000, "{n_chosen}");
}

#[test]
fn a_bias_beyond_the_range_of_f32_is_an_error() {
    let logits = [0.0, f32::MAX, 1.0];
    for temperature in [0.0, 1.0] {
        let params = SamplingParams {
            temperature,
            top_k: 2,
            top_p: 0.9,
            logit_bias: vec![(1, f32::MAX)],
            ..Default::default()
        };
        let samplers = Samplers { rows: vec![SamplerRow::new(Arc::new(params))], ..Samplers::default() };
        let want = Chosen::NotFinite { token: 1, nan: false };
        assert_eq!(choose(&logits, &samplers, 0, &[]), want);
        assert_eq!(Sampler::new().choose(&mut logits.to_vec(), &samplers.input(0, &[])), want);
    }
}

#[test]
fn only_a_greedy_row_that_no_step_changes_is_an_argmax() {
    let is_argmax = |params: &SamplingParams| SamplerInput::new(params).is_argmax();
    let greedy = SamplingParams::greedy();
    assert!(is_argmax(&greedy));
    assert!(is_argmax(&SamplingParams { top_k: 5, top_p: 0.5, min_p: 0.1, ..greedy.clone() }));
    assert!(!is_argmax(&SamplingParams::default()));
    assert!(!is_argmax(&SamplingParams { logit_bias: vec![(0, 1.0)], ..greedy.clone() }));
    assert!(!is_argmax(&SamplingParams { presence_penalty: 0.1, ..greedy.clone() }));
    assert!(!SamplerInput { mask: Some(&[]), ..SamplerInput::new(&greedy) }.is_argmax());
}

#[test]
fn defaults_are_valid_and_out_of_range_values_are_named() {
    SamplingParams::default().validate().unwrap();
    SamplingParams::greedy().validate().unwrap();
    type Set = fn(&mut SamplingParams, f32);
    let cases: [(&str, Set, &[f32]); 7] = [
        ("temperature", |p, v| p.temperature = v, &[-0.1, f32::INFINITY]),
        ("top_p", |p, v| p.top_p = v, &[-0.1, 1.1]),
        ("min_p", |p, v| p.min_p = v, &[-0.1, 1.1]),
        ("repetition_penalty", |p, v| p.repetition_penalty = v, &[0.0, -1.0, 101.0]),
        ("frequency_penalty", |p, v| p.frequency_penalty = v, &[-2.1, 2.1]),
        ("presence_penalty", |p, v| p.presence_penalty = v, &[-2.1, 2.1]),
        ("logit_bias", |p, v| p.logit_bias = vec![(0, 1.0), (1, v)], &[-101.0, 101.0]),
    ];
    for (field, set, bad) in cases {
        for &v in bad.iter().chain(&[f32::NAN]) {
            let mut params = SamplingParams::default();
            set(&mut params, v);
            assert_eq!(params.validate().map_err(|error| error.name), Err(field), "{v}");
        }
    }
}

#[test]
fn overrides_replace_what_they_name_within_its_range() {
    let mut overrides = SamplingOverrides::default();
    overrides.set("top_p", 0.5);
    overrides.set("top_k", -1.0);
    let mut more = SamplingOverrides::default();
    more.set("top_p", 0.25);
    more.set("min_p", 0.01);
    let base = SamplingParams { top_k: 7, seed: Some(3), ..Default::default() };
    let want = SamplingParams { top_k: 0, top_p: 0.5, min_p: 0.01, ..base.clone() };
    assert_eq!(overrides.clone().or(&more).over(base.clone()), Ok(want));
    overrides.set("top_k", -5.0);
    let error = overrides.over(base.clone()).unwrap_err();
    assert_eq!(error.to_string(), "top_k is -5 but must be at least -1");
    let mut edge = SamplingOverrides::default();
    edge.set("repetition_penalty", 0.01);
    edge.over(base.clone()).unwrap();
    edge.set("repetition_penalty", 0.009);
    let error = edge.over(base).unwrap_err();
    assert_eq!(error.to_string(), "repetition_penalty is 0.009 but must be between 0.01 and 100");
}

#[test]
fn every_parameter_is_read_and_written_under_its_name() {
    for (i, param) in PARAMS.iter().enumerate() {
        assert!(std::ptr::eq(Param::find(param.name).unwrap(), param), "{} stands twice", param.name);
        let mut params = SamplingParams::default();
        let value = if param.is_integer { 3.0 } else { 0.5 };
        (param.set)(&mut params, value);
        for (j, other) in PARAMS.iter().enumerate() {
            let default = (other.get)(&SamplingParams::default());
            assert_eq!((other.get)(&params), if i == j { value } else { default }, "{}", other.name);
        }
    }
}
