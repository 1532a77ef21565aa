//! Each step against its definition written in the plainest way, on random rows; the draw against the distribution it should have.

use super::*;
use crate::runner::Row;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use realizar_compute::Chosen;
use realizar_compute::sampling::{self, Samplers};
use std::sync::Arc;

struct Random(ChaCha8Rng);

impl Random {
    fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    fn below(&mut self, n: usize) -> usize {
        self.0.next_u32() as usize % n
    }

    fn unit(&mut self) -> f32 {
        self.0.next_u32() as f32 / u32::MAX as f32
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

fn input(params: &SamplingParams) -> RowInput<'_> {
    RowInput { params, prompt: &[], generated: &[], unseen: None, mask: None }
}

/// Applies one step to a row, after `kept` was left by those before. Returns the kept ids with their logits.
fn apply(name: &str, logits: &[f32], kept: Option<&[u32]>, row: &RowInput) -> Vec<(u32, f32)> {
    let step = STEPS.iter().find(|s| s.name == name).unwrap();
    let mut logits = logits.to_vec();
    let mut ids = kept.unwrap_or(&[]).to_vec();
    let mut candidates = Candidates { logits: &mut logits, kept: &mut ids, all: kept.is_none() };
    if (step.active)(row) {
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

/// Random rows, each once with all tokens in the race and once with some dropped before.
fn for_random_rows(mut test: impl FnMut(&mut Random, &[f32], Option<&[u32]>, Vec<(u32, f32)>)) {
    for seed in 0..300 {
        let mut random = Random::new(seed);
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
        assert_eq!(sorted(&apply("top_k", logits, kept, &input(&params))), expected);
    });
}

#[test]
fn top_p_keeps_the_smallest_set_that_reaches_the_sum() {
    for_random_rows(|random, logits, kept, before| {
        let top_p = [0.0, 0.1, 0.5, 0.9, 0.999, random.unit()][random.below(6)];
        let params = SamplingParams { top_p, ..Default::default() };
        let after = sorted(&apply("top_p", logits, kept, &input(&params)));
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
        let after: Vec<u32> = apply("min_p", logits, kept, &input(&params)).iter().map(|c| c.0).collect();
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
        let after = probabilities(&apply("temperature", logits, kept, &input(&params)));
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
        let unseen = (random.below(2) == 0).then(|| random.below(n) as u32);
        let params = SamplingParams {
            repetition_penalty: [1.0, 1.3][random.below(2)],
            frequency_penalty: [0.0, 0.4][random.below(2)],
            presence_penalty: [0.0, -0.7][random.below(2)],
            ..Default::default()
        };
        let row = RowInput { prompt: &prompt, generated: &generated, unseen, ..input(&params) };
        for ((id, l), (_, got)) in before.iter().zip(apply("penalties", logits, None, &row)) {
            let count = generated.iter().chain(&unseen).filter(|t| *t == id).count();
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
    let mut step = step_of(params, 0.5);
    step.history = vec![2, 2, 1];
    step.rows[0].prompt = 0..1;
    step.rows[0].generated = 1..3;
    let mut sampler = Sampler::new();
    let (mut a, mut b) = (vec![1.0; 4], vec![1.0; 4]);
    sampler.sample(&mut a, &step, 0, &[]).unwrap();
    sampler.sample(&mut b, &step, 0, &[]).unwrap();
    assert_eq!(a, b);
    assert_eq!(a, [0.0, -1.0, -1.0, 0.0], "relative to the largest");
}

#[test]
fn bias_and_grammar_reach_the_choice() {
    let mut params = SamplingParams::greedy();
    params.logit_bias = vec![(3, 2.0), (1, -100.0)];
    let mut step = step_of(params, 0.0);
    let logits = [0.0, 9.0, 1.0, 0.0, 1.5];
    let mut sampler = Sampler::new();
    assert_eq!(sampler.sample(&mut logits.to_vec(), &step, 0, &[]).unwrap().token, 3);
    step.masks = vec![0b10110];
    step.rows[0].mask = Some(0..1);
    assert_eq!(sampler.sample(&mut logits.to_vec(), &step, 0, &[]).unwrap().token, 4);
    step.masks = vec![0];
    assert_eq!(sampler.sample(&mut logits.to_vec(), &step, 0, &[]), Err(SampleError::NothingAllowed));
}

#[test]
fn greedy_takes_the_lowest_of_equal_tokens_and_never_a_number_that_is_none() {
    let step = step_of(SamplingParams::greedy(), 0.0);
    let mut sampler = Sampler::new();
    let mut choose = |logits: &[f32]| sampler.sample(&mut logits.to_vec(), &step, 0, &[]).map(|c| c.token);
    assert_eq!(choose(&[0.0, 2.0, 1.0, 2.0]), Ok(1));
    assert_eq!(choose(&[-0.0, 0.0]), Ok(0));
    assert_eq!(choose(&[f32::NEG_INFINITY, -5.0]), Ok(1));
    assert_eq!(choose(&[f32::NEG_INFINITY; 3]), Err(SampleError::NothingAllowed));
    let nan = Err(SampleError::NotFinite { token: 1, nan: true });
    assert_eq!(choose(&[0.0, f32::NAN, 9.0]), nan);
    assert_eq!(choose(&[0.0, f32::INFINITY]), Err(SampleError::NotFinite { token: 1, nan: false }));
    let step = step_of(SamplingParams::default(), 0.0);
    assert_eq!(sampler.sample(&mut [0.0, f32::NAN], &step, 0, &[]).map(|c| c.token), nan);
    let mut long = vec![0.0; 1000];
    long[999] = f32::NAN;
    let nan = Err(SampleError::NotFinite { token: 999, nan: true });
    assert_eq!(sampler.sample(&mut long, &step, 0, &[]).map(|c| c.token), nan);
}

fn step_of(params: SamplingParams, uniform: f64) -> Step {
    let row = Row {
        given: None,
        params: Arc::new(params),
        uniform,
        prompt: 0..0,
        generated: 0..0,
        unseen: None,
        mask: None,
        n_logprobs: None,
    };
    Step { rows: vec![row], ..Step::default() }
}

/// Pearson's statistic against its 99.9 % quantile (Wilson and Hilferty's approximation), over 40,000 draws.
#[test]
fn draws_follow_the_distribution_that_the_chain_leaves() {
    let mut random = Random::new(1);
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
            expected = Some(apply(name, &row, kept.as_deref(), &input(&params)));
        }
        let expected = expected.unwrap();
        let p = probabilities(&expected);
        let n = 40_000;
        let mut counts = vec![0.0; logits.len()];
        let mut sampler = Sampler::new();
        let mut step = step_of(params, 0.0);
        for position in 0..n {
            step.rows[0].uniform = uniform(7, 0, position);
            counts[sampler.sample(&mut logits.clone(), &step, 0, &[]).unwrap().token as usize] += 1.0;
        }
        let mut statistic = 0.0;
        for ((id, _), p) in expected.iter().zip(&p) {
            let e = p * n as f64;
            statistic += (counts[*id as usize] - e) * (counts[*id as usize] - e) / e;
            counts[*id as usize] = 0.0;
        }
        assert_eq!(counts.iter().sum::<f64>(), 0.0, "tokens out of the race are never drawn");
        let k = (expected.len() - 1) as f64;
        let t = 2.0 / (9.0 * k);
        let limit = k * (1.0 - t + 3.09 * t.sqrt()).powi(3);
        assert!(statistic < limit, "{statistic} exceeds {limit}");
    }
}

#[test]
fn random_numbers_are_uniform_and_differ_by_seed_choice_and_position() {
    assert_eq!(uniform(1, 2, 3), uniform(1, 2, 3));
    let all = [uniform(1, 2, 3), uniform(2, 2, 3), uniform(1, 1, 3), uniform(1, 2, 4)];
    for (i, a) in all.iter().enumerate() {
        assert!((0.0..1.0).contains(a));
        assert!(all[..i].iter().all(|b| b != a));
    }
    let n = 100_000;
    let mean = (0..n).map(|i| uniform(i as u64 / 100, 0, i % 100)).sum::<f64>() / n as f64;
    // Three standard deviations of the mean of n uniform numbers.
    assert!((mean - 0.5).abs() < 3.0 / (12.0 * n as f64).sqrt(), "{mean}");
}

#[test]
fn logprobs_are_those_of_the_model_before_any_step() {
    let mut step = step_of(SamplingParams { temperature: 0.0, ..Default::default() }, 0.0);
    let row = Arc::make_mut(&mut step.rows[0].params);
    row.logit_bias = vec![(0, 50.0)];
    step.rows[0].n_logprobs = Some(2);
    let logits = [1.0f32, 2.0, 3.0, 3.0];
    let sum: f32 = logits.iter().map(|l| l.exp()).sum();
    let choice = Sampler::new().sample(&mut logits.to_vec(), &step, 0, &[]).unwrap();
    assert_eq!(choice.token, 0);
    let close = |a: f32, l: f32| assert!((a - (l - sum.ln())).abs() < 1e-5, "{a}");
    close(choice.logprob.unwrap(), 1.0);
    assert_eq!(choice.top_logprobs.iter().map(|t| t.0).collect::<Vec<_>>(), [2, 3]);
    choice.top_logprobs.iter().for_each(|t| close(t.1, 3.0));
    step.rows[0].given = Some(1);
    let scored = Sampler::new().sample(&mut logits.to_vec(), &step, 0, &[]).unwrap();
    assert_eq!(scored.token, 1);
    close(scored.logprob.unwrap(), 2.0);
}

/// The host against the definition, which devices follow: the same token or the same error, for thousands of random rows.
#[test]
fn the_host_chooses_what_the_definition_says() {
    let mut sampler = Sampler::new();
    let mut n_sampled = 0;
    for seed in 0..6000 {
        let mut random = Random::new(seed);
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
        let mut step = step_of(params.with_biases_merged(), uniform(seed, 0, 0));
        step.history = (0..random.below(50)).map(|_| random.below(n) as u32).collect();
        let n_prompt = random.below(step.history.len() + 1);
        step.rows[0].prompt = 0..n_prompt;
        step.rows[0].generated = n_prompt..step.history.len();
        step.rows[0].unseen = (random.below(2) == 0).then_some(0);
        if random.below(3) == 0 {
            step.masks = (0..n.div_ceil(32)).map(|_| random.0.next_u32()).collect();
            step.rows[0].mask = Some(0..step.masks.len());
        }
        let previous = random.below(n) as u32;
        let mut samplers = Samplers::default();
        crate::model_runner::set_samplers(&mut samplers, &step, None);
        let want = match sampling::choose(&logits, &samplers, 0, &[Chosen::Token(previous)]) {
            Chosen::Token(token) => Ok(token),
            Chosen::NotFinite { token, nan } => Err(SampleError::NotFinite { token, nan }),
            Chosen::Nothing => Err(SampleError::NothingAllowed),
        };
        n_sampled += usize::from(want.is_ok());
        let got = sampler.sample(&mut logits, &step, 0, &[previous]).map(|c| c.token);
        assert_eq!(got, want, "seed {seed}: {:?}", step.rows[0].params);
    }
    assert!(n_sampled > 5000, "{n_sampled}");
}
