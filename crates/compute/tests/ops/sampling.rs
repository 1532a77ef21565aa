//! Choosing tokens by chance: every backend chooses the token that the definition in `src/sampling` says, for random logits, parameters,
//! histories, masks and numbers. There is no tolerance: a token that differs is another text.

use super::*;
use realizar_compute::Chosen;
use realizar_compute::sampling::{LastToken, SamplerRow, Samplers, SamplingParams};
use std::sync::Arc;

/// Rows of logits of one length, and what to do with them.
struct Step {
    vocab_size: usize,
    logits: Vec<f32>,
    samplers: Samplers,
}

/// One of these.
fn pick<T: Clone>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len())].clone()
}

fn uniform(random: &mut Random) -> f64 {
    (random.next() >> 11) as f64 / (1u64 << 53) as f64
}

/// Logits as models have them, and as they do not: with ties, nearly or all equal, in part impossible, wide, not numbers.
fn logits(random: &mut Random, n: usize) -> Vec<f32> {
    let spread = pick(random, &[0.02, 1.0, 4.0, 40.0]);
    let mut row: Vec<f32> = (0..n).map(|_| random.normal() * spread).collect();
    match random.below(8) {
        0 => row.iter_mut().for_each(|l| *l = l.round()),
        1 => row.iter_mut().for_each(|l| *l = f32::from_bits(l.to_bits() & 0xffff_0000)),
        2 => row.fill(1.5),
        3 => row.iter_mut().for_each(|l| *l = if random.below(3) == 0 { *l } else { f32::NEG_INFINITY }),
        _ => {}
    }
    match random.below(60) {
        0 => row[random.below(n)] = f32::NAN,
        1 => row[random.below(n)] = f32::INFINITY,
        2 => row.fill(f32::NEG_INFINITY),
        _ => {}
    }
    row
}

/// A row with parameters that occur, alone and together.
fn sampler(random: &mut Random, n: usize, n_previous: usize, samplers: &mut Samplers) -> SamplerRow {
    let tokens = |random: &mut Random, samplers: &mut Samplers| {
        let start = samplers.history.len();
        let (len, few) = (random.below(60), n.min(pick(random, &[3, 50, usize::MAX])));
        samplers.history.extend((0..len).map(|_| random.below(few) as u32));
        start..samplers.history.len()
    };
    let uniform = match random.below(6) {
        0 => 0.0,
        1 => 1.0 - f64::EPSILON / 2.0,
        _ => uniform(random),
    };
    let mut params = SamplingParams {
        temperature: pick(random, &[0.0, 0.1, 0.7, 1.0, 1.0, 1.8, 1e-30]),
        top_k: pick(random, &[0, 0, 1, 5, 40, 3000, usize::MAX]),
        top_p: pick(random, &[1.0, 1.0, 0.0, 0.3, 0.9, 0.999]),
        min_p: pick(random, &[0.0, 0.0, 0.05, 1.0]),
        ..SamplingParams::default()
    };
    let mut row = SamplerRow { uniform, ..SamplerRow::new(Arc::default()) };
    if random.below(2) == 0 {
        params.repetition_penalty = pick(random, &[1.0, 1.3, 0.8]);
        params.frequency_penalty = pick(random, &[0.0, 0.4, -1.1]);
        params.presence_penalty = pick(random, &[0.0, 0.7]);
        row.prompt = tokens(random, samplers);
        row.generated = tokens(random, samplers);
        row.last = match random.below(3) {
            0 => None,
            1 if n_previous > 0 => Some(LastToken::Chosen(random.below(n_previous))),
            _ => Some(LastToken::Known(random.below(n) as u32)),
        };
    }
    if random.below(3) == 0 {
        let mut ids: Vec<u32> = (0..n as u32).collect();
        random.shuffle(&mut ids);
        ids.truncate(random.below(20));
        params.logit_bias = ids.into_iter().map(|id| (id, random.normal() * 5.0)).collect();
    }
    if random.below(4) == 0 {
        let start = samplers.masks.len();
        let few = random.below(2) == 0;
        samplers.masks.extend((0..n.div_ceil(32)).map(|_| {
            let word = random.next() as u32;
            if few && random.below(9) > 0 { 0 } else { word & random.next() as u32 }
        }));
        row.mask = Some(start..samplers.masks.len());
    }
    row.params = Arc::new(params);
    row
}

/// Steps that follow each other: rows may refer to what was chosen from the step before.
fn steps(seed: u64, vocab_size: usize, n_steps: usize) -> Vec<Step> {
    let mut random = Random(seed);
    let mut n_previous = 0;
    (0..n_steps)
        .map(|_| {
            let (n_rows, mut samplers) = (1 + random.below(5), Samplers::default());
            for _ in 0..n_rows {
                let row = sampler(&mut random, vocab_size, n_previous, &mut samplers);
                samplers.rows.push(row);
            }
            n_previous = n_rows;
            let logits = (0..n_rows).flat_map(|_| logits(&mut random, vocab_size)).collect();
            Step { vocab_size, logits, samplers }
        })
        .collect()
}

fn chosen<B: Backend>(b: &B, steps: &[Step]) -> Vec<Vec<Chosen>> {
    let limits = BatchLimits { n_tokens: 8, n_seqs: 8, n_blocks: 8, n_logits: 8 };
    let mut batch = b.new_batch(limits, ANY_CACHE).unwrap();
    let choose = |step: &Step| {
        let n_rows = step.samplers.rows.len();
        b.stage(&mut batch, &batch_of(&vec![(0, 0, true); n_rows])).unwrap();
        b.stage_samplers(&mut batch, &step.samplers).unwrap();
        let mut logits = rows_of(b, &step.logits, step.vocab_size);
        b.sample(&mut batch, &mut logits).unwrap();
        let mut found = Vec::new();
        b.wait_for_choices(b.fetch_choices(&mut batch).unwrap(), &mut found).unwrap();
        found
    };
    steps.iter().map(choose).collect()
}

fn check_steps(steps: &[Step]) {
    let want = chosen(&Reference, steps);
    for (path, _, gpu) in gpus() {
        let got = chosen(gpu, steps);
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            for (row, (got, want)) in got.iter().zip(want).enumerate() {
                let sampler = &steps[i].samplers.rows[row];
                let n = steps[i].vocab_size;
                assert_eq!(got, want, "step {i}, row {row} of {n} logits on {path}: {sampler:?}");
            }
        }
    }
}

#[test]
fn sampled_tokens_of_small_vocabularies() {
    for seed in 0..120 {
        let n = [1, 2, 31, 33, 300, 700][seed as usize % 6];
        check_steps(&steps(seed, n, 4));
    }
}

#[test]
fn sampled_tokens_of_vocabularies_in_parts() {
    for seed in 0..30 {
        let n = [2048, 2049, 5003, 9000][seed as usize % 4];
        check_steps(&steps(1000 + seed, n, 3));
    }
}

/// More tokens than the device holds in its fast memory may be kept.
#[test]
fn sampled_tokens_of_flat_distributions() {
    let n = 6000;
    let mut random = Random(7);
    let rows: [(usize, f32); 5] = [(5000, 1.0), (0, 0.9), (5500, 0.8), (5999, 0.0), (4200, 0.999)];
    for spread in [0.0, 0.001, 0.2] {
        let mut samplers = Samplers::default();
        for (top_k, top_p) in rows {
            let params = Arc::new(SamplingParams { top_k, top_p, ..SamplingParams::default() });
            samplers.rows.push(SamplerRow { uniform: uniform(&mut random), ..SamplerRow::new(params) });
        }
        let logits = (0..n * rows.len()).map(|_| random.normal() * spread).collect();
        check_steps(&[Step { vocab_size: n, logits, samplers }]);
    }
}
