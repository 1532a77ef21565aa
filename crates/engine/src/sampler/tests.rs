//! What reaches the host's sampler from a step, random numbers, and log-probabilities.

use super::*;
use crate::SamplingParams;
use std::sync::Arc;

fn step_of(params: SamplingParams, uniform: f64) -> Step {
    let row = Row { uniform, ..Row::choose(Arc::new(params)) };
    Step { rows: vec![row], ..Step::default() }
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
