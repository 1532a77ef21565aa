//! Operations without weights or cache: norms, activations, sums, scales, selections, angles.

use super::*;
use realizar_compute::{Activation, AttentionTemperature, Chosen, MatrixPart, Norm, NormKind, Pooling};

const ACTIVATIONS: [Activation; 5] =
    [Activation::Silu, Activation::GeluTanh, Activation::GeluErf, Activation::ReluSquared, Activation::Relu];

/// Row lengths: shorter than a vector, not a multiple of one, long; with the numbers of rows that make one or many tasks.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (3, 7), (1, 64), (5, 100), (2, 2048), (40, 2048), (33, 1000), (300, 129)];

/// Operations that read and write rows of one length.
#[derive(Debug, Clone, Copy)]
enum Op {
    Norm(NormKind, bool, f32),
    NormInPlace(NormKind, bool, f32),
    /// Of the second half of rows of twice the length.
    NormColumns(NormKind, bool, f32),
    Add,
    Gated(Activation),
    /// By the second half of rows of twice the length.
    GateColumns(Activation),
    /// By the first of the other numbers of each row.
    GateRows,
    AddColumns,
    Activate(Activation),
    Softcap(f32),
    Scale(f32),
}

#[derive(Debug)]
struct Rows {
    op: Op,
    rows: usize,
    len: usize,
    /// Factor on the inputs.
    size: f32,
}

/// Runs on rows `range` of the inputs only.
fn run<B: Backend>(b: &B, case: &Rows, range: std::ops::Range<usize>) -> Vec<(&'static str, Vec<f32>)> {
    let n = case.len;
    let mut random = Random(n as u64);
    let mut values = |len: usize, size: f32| -> Vec<f32> {
        random.normals(case.rows * len)[range.start * len..range.end * len].iter().map(|x| x * size).collect()
    };
    let (x, other, wide) = (values(n, case.size), values(n, case.size), values(2 * n, case.size));
    let norm = |kind, bias: bool, eps| Norm {
        kind,
        weight: vector(b, &Random(7).normals(n)),
        bias: bias.then(|| vector(b, &Random(8).normals(n))),
        eps,
    };
    let mut y = poisoned(b, range.len(), n);
    let mut x = rows_of(b, &x, n);
    match case.op {
        Op::Norm(kind, bias, eps) => {
            b.norm(&mut y, &x, &norm(kind, bias, eps)).unwrap();
            vec![("y", read(b, &mut y)), ("x", read(b, &mut x))]
        }
        Op::NormInPlace(kind, bias, eps) => {
            b.norm_in_place(&mut x, &norm(kind, bias, eps)).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::NormColumns(kind, bias, eps) => {
            let mut x = rows_of(b, &wide, 2 * n);
            b.norm_columns(&mut x, n, &norm(kind, bias, eps)).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::Add => {
            b.add(&mut x, &rows_of(b, &other, n)).unwrap();
            vec![("y", read(b, &mut x))]
        }
        Op::Gated(f) => {
            b.gated(&mut y, &rows_of(b, &wide, 2 * n), f).unwrap();
            vec![("y", read(b, &mut y))]
        }
        Op::GateColumns(f) => {
            b.gate_columns(&mut x, &rows_of(b, &wide, 2 * n), n, f).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::GateRows => {
            let gates: Vec<f32> = other.iter().step_by(n).copied().collect();
            b.gate_rows(&mut x, &rows_of(b, &gates, 1)).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::AddColumns => {
            b.add_columns(&mut x, &vector(b, &Random(9).normals(n))).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::Activate(f) => {
            b.activate(&mut x, f).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::Softcap(cap) => {
            b.softcap(&mut x, cap).unwrap();
            vec![("x", read(b, &mut x))]
        }
        Op::Scale(factor) => {
            b.scale(&mut x, factor).unwrap();
            vec![("x", read(b, &mut x))]
        }
    }
}

impl Case for Rows {
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        run(b, self, 0..self.rows)
    }

    fn tolerance(&self, _: Sums) -> f64 {
        ELEMENTWISE
    }
}

fn on_all_shapes(ops: &[Op], sizes: &[f32]) {
    for &op in ops {
        for (rows, len) in SHAPES {
            check(&sizes.iter().map(|&size| Rows { op, rows, len, size }).collect::<Vec<_>>());
        }
        rows_do_not_depend_on_the_batch(op);
    }
}

fn rows_do_not_depend_on_the_batch(op: Op) {
    let case = Rows { op, rows: 40, len: 1000, size: 2.0 };
    for cpu in cpus(Paths::Instructions) {
        let together = case.run(cpu);
        for r in [0, 1, 17, 39] {
            for ((name, all), (_, alone)) in together.iter().zip(run(cpu, &case, r..r + 1)) {
                let row = &all[r * case.len..][..case.len];
                assert_eq!(bits(row), bits(&alone), "row {r} of {name}, {case:?} on {:?}", cpu.options());
            }
        }
    }
}

#[test]
fn norm() {
    let kinds =
        [(NormKind::Rms, false), (NormKind::Rms, true), (NormKind::Layer, false), (NormKind::Layer, true)];
    for (kind, bias) in kinds {
        // A LayerNorm of one element is its bias alone, so the sum of squares says nothing below this epsilon.
        let eps = 1e-5;
        let ops = [Op::Norm(kind, bias, eps), Op::NormInPlace(kind, bias, eps)];
        on_all_shapes(&ops, &[0.01, 1.0, 100.0]);
        for (rows, len) in SHAPES {
            check(&[Rows { op: Op::NormColumns(kind, bias, eps), rows, len, size: 1.0 }]);
        }
    }
}

#[test]
fn add() {
    on_all_shapes(&[Op::Add, Op::AddColumns], &[1.0]);
}

#[test]
fn activations() {
    let ops = ACTIVATIONS.map(|f| [Op::Gated(f), Op::GateColumns(f), Op::Activate(f)]);
    on_all_shapes(&ops.concat(), &[0.1, 1.0, 20.0]);
    on_all_shapes(&[Op::Gated(Activation::ClampedSwiglu), Op::GateRows], &[0.1, 1.0, 20.0]);
}

#[test]
fn softcap_and_scale() {
    on_all_shapes(&[Op::Softcap(30.0), Op::Softcap(0.5), Op::Scale(-0.3)], &[0.01, 1.0, 100.0]);
}

/// Operations that a batch guides.
#[derive(Debug)]
enum Guided {
    SelectRows {
        len: usize,
        seqs: Vec<(usize, usize)>,
    },
    /// Sequences by their tokens, and the row of the step before that is each one's.
    SelectPrevious {
        len: usize,
        seqs: Vec<(usize, Option<u32>)>,
    },
    Pool {
        len: usize,
        seqs: Vec<usize>,
        pooling: Pooling,
    },
    AddPositions {
        len: usize,
        positions: Vec<usize>,
    },
    AddTokenTypes {
        len: usize,
        types: Vec<u32>,
    },
    ScaleByPosition {
        len: usize,
        n: usize,
        positions: Vec<usize>,
        temperature: AttentionTemperature,
    },
    RopeAngles {
        n: usize,
        positions: Vec<usize>,
        scale: f32,
    },
}

impl Case for Guided {
    fn run<B: Backend>(&self, b: &B) -> Vec<(&'static str, Vec<f32>)> {
        let mut random = Random(11);
        match self {
            Guided::SelectRows { len, seqs } => {
                let mut batch = Batch::default();
                for &(n_tokens, n_logits) in seqs {
                    batch.push(&vec![0; n_tokens], 5, &[0], n_logits);
                }
                let x = rows_of(b, &random.normals(batch.tokens.len() * len), *len);
                let mut y = poisoned(b, batch.n_logits(), *len);
                b.select_rows(&mut y, &x, &staged(b, &batch)).unwrap();
                vec![("y", read(b, &mut y))]
            }
            Guided::SelectPrevious { len, seqs } => {
                let mut batch = Batch::default();
                for &(n_tokens, previous) in seqs {
                    batch.push(&vec![0; n_tokens], 5, &[0], 1);
                    batch.previous.push(previous);
                }
                let n = batch.tokens.len();
                let before = rows_of(b, &random.normals(n * len), *len);
                let here = rows_of(b, &random.normals(n * len), *len);
                let mut y = poisoned(b, n, *len);
                b.select_previous(&mut y, &before, &here, &staged(b, &batch)).unwrap();
                vec![("y", read(b, &mut y))]
            }
            Guided::Pool { len, seqs, pooling } => {
                let mut batch = Batch::default();
                seqs.iter().for_each(|&n| batch.push(&vec![0; n], 0, &[0], 0));
                let x = rows_of(b, &random.normals(batch.tokens.len() * len), *len);
                let mut y = poisoned(b, seqs.len(), *len);
                b.pool(&mut y, &x, &staged(b, &batch), *pooling).unwrap();
                vec![("y", read(b, &mut y))]
            }
            Guided::AddPositions { len, positions } => {
                let batch = batch_of(&positions.iter().map(|&p| (0, p, false)).collect::<Vec<_>>());
                let table = rows_of(b, &random.normals(100 * len), *len);
                let mut x = rows_of(b, &random.normals(positions.len() * len), *len);
                b.add_positions(&mut x, &table, &staged(b, &batch)).unwrap();
                vec![("x", read(b, &mut x))]
            }
            Guided::AddTokenTypes { len, types } => {
                // Two texts, so that types do not begin where the second one does.
                let (mut batch, n) = (Batch::default(), types.len());
                batch.push(&vec![0; n], 0, &[0], 1);
                batch.push(&vec![0; n], 0, &[0], 1);
                batch.token_types = [&types[..], &types[..]].concat();
                let table = rows_of(b, &random.normals(4 * len), *len);
                let mut x = rows_of(b, &random.normals(2 * n * len), *len);
                b.add_token_types(&mut x, &table, &staged(b, &batch)).unwrap();
                vec![("x", read(b, &mut x))]
            }
            Guided::ScaleByPosition { len, n, positions, temperature } => {
                let batch = batch_of(&positions.iter().map(|&p| (0, p, false)).collect::<Vec<_>>());
                let mut x = rows_of(b, &random.normals(positions.len() * len), *len);
                b.scale_by_position(&mut x, *n, &staged(b, &batch), *temperature).unwrap();
                vec![("x", read(b, &mut x))]
            }
            Guided::RopeAngles { n, positions, scale } => {
                let batch = batch_of(&positions.iter().map(|&p| (0, p, false)).collect::<Vec<_>>());
                let f: Vec<f32> = (0..*n).map(|i| 10_000f32.powf(-(i as f32) / *n as f32)).collect();
                let mut y = poisoned(b, positions.len(), 2 * n);
                b.rope_angles(&mut y, &vector(b, &f), &staged(b, &batch), *scale).unwrap();
                vec![("y", read(b, &mut y))]
            }
        }
    }

    fn tolerance(&self, _: Sums) -> f64 {
        ELEMENTWISE
    }
}

#[test]
fn select_rows() {
    let lists = [
        vec![(1, 1)],
        vec![(5, 0), (3, 1), (1, 1), (4, 4), (2, 0)],
        vec![(40, 40)],
        vec![(7, 0), (700, 300)],
    ];
    for len in [1, 33, 512] {
        check(&lists.clone().map(|seqs| Guided::SelectRows { len, seqs }));
    }
}

#[test]
fn select_previous() {
    let lists = [
        vec![(1, None)],
        vec![(1, Some(0))],
        vec![(5, Some(8)), (1, None), (1, Some(0)), (4, None)],
        vec![(700, Some(3)), (300, Some(999))],
    ];
    for len in [1, 33, 512] {
        check(&lists.clone().map(|seqs| Guided::SelectPrevious { len, seqs }));
    }
}

#[test]
fn pool() {
    for len in [1, 33, 512] {
        for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
            let lists = [vec![1], vec![5, 1, 8, 3, 9], vec![300, 40]];
            check(&lists.map(|seqs| Guided::Pool { len, seqs, pooling }));
        }
    }
}

#[test]
fn add_positions() {
    for len in [1, 20, 768] {
        check(&[
            Guided::AddPositions { len, positions: vec![0] },
            Guided::AddPositions { len, positions: vec![99, 3, 3, 0, 50] },
            Guided::AddPositions { len, positions: (0..70).collect() },
        ]);
    }
}

#[test]
fn add_token_types() {
    for len in [1, 20, 768] {
        for types in [vec![0], vec![0, 0, 1, 1], vec![3, 0, 2, 1, 3]] {
            check(&[Guided::AddTokenTypes { len, types }]);
        }
    }
}

#[test]
fn scale_by_position() {
    let temperature = AttentionTemperature { beta: 0.5, period: 64 };
    for (len, n) in [(1, 1), (20, 20), (20, 7), (768, 512), (300, 0)] {
        check(&[
            Guided::ScaleByPosition { len, n, positions: vec![0], temperature },
            Guided::ScaleByPosition { len, n, positions: vec![63, 64, 127, 128, 1_000_000], temperature },
            Guided::ScaleByPosition { len, n, positions: (30..130).collect(), temperature },
        ]);
    }
}

#[test]
fn a_temperature_is_a_logarithm_of_the_position() {
    let temperature = AttentionTemperature { beta: 0.1, period: 16384 };
    for (position, factor) in [(0, 1.0), (16383, 1.0), (16384, 1.069_314_7), (65535, 1.138_629_4)] {
        assert!((temperature.factor(position) - factor).abs() < 1e-6, "{position}");
    }
}

#[test]
fn rope_angles() {
    for n in [1, 10, 64] {
        check(&[
            Guided::RopeAngles { n, positions: vec![0], scale: 1.0 },
            Guided::RopeAngles { n, positions: vec![5, 131_071, 0, 1_000_000], scale: 1.3 },
            Guided::RopeAngles { n, positions: (300..700).collect(), scale: 1.0 },
        ]);
    }
}

#[test]
fn choices() {
    fn run<B: Backend>(b: &B) {
        let n = 5000;
        let mut rows: Vec<Vec<f32>> = (0..7).map(|i| Random(i).normals(n)).collect();
        rows[1][4999] = 9.0;
        // Of equal logits the first; zero has no sign.
        (rows[2][77], rows[2][3000]) = (9.0, 9.0);
        rows[3] = vec![-1.0; n];
        (rows[3][4000], rows[3][4001]) = (-0.0, 0.0);
        rows[4][2100] = f32::NAN;
        rows[4][100] = f32::INFINITY;
        rows[5][4500] = f32::INFINITY;
        rows[6] = vec![f32::NEG_INFINITY; n];
        let want = [
            Chosen::Token((0..n).max_by(|&i, &j| rows[0][i].total_cmp(&rows[0][j])).unwrap() as u32),
            Chosen::Token(4999),
            Chosen::Token(77),
            Chosen::Token(4000),
            Chosen::NotFinite { token: 2100, nan: true },
            Chosen::NotFinite { token: 4500, nan: false },
            Chosen::Nothing,
        ];
        let logits = rows_of(b, &rows.concat(), n);
        let step = batch_of(&[(0, 0, true); 7]);
        let mut batch = staged(b, &step);
        // Twice, since a choice leaves counters behind.
        for _ in 0..2 {
            b.stage(&mut batch, &step).unwrap();
            b.argmax(&mut batch, &logits).unwrap();
            let mut found = Vec::new();
            b.wait_for_choices(b.fetch_choices(&mut batch).unwrap(), &mut found).unwrap();
            assert_eq!(found, want, "on {}", b.describe());
        }
        // A batch may begin with what was chosen, in any order.
        let table: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let bytes = bytemuck::cast_slice(&table).to_vec().into();
        let part = MatrixPart { name: "w".into(), dtype: DType::F32, n_experts: 1, n_out: n, n_in: 1, bytes };
        let table = b.matrix(vec![part]).unwrap();
        let mut next = batch_of(&[(9, 1, true), (0, 1, true), (0, 1, true), (0, 1, true)]);
        next.deferred = vec![(3, 1), (1, 2)];
        next.tokens[2] = 8;
        b.stage(&mut batch, &next).unwrap();
        let mut y = poisoned(b, 4, 1);
        b.embed(&mut y, &table, &batch, 1.0).unwrap();
        assert_eq!(read(b, &mut y), [9.0, 77.0, 8.0, 4999.0], "on {}", b.describe());
    }
    run(&Reference);
    cpus(Paths::Instructions).for_each(run);
    gpus().iter().for_each(|g| run(&g.2));
}
