//! Every type on every instruction set against sums in `f64` over the type's own decoder.

use super::activations::ActivationLayout;
use super::matrix::Weights;
use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::threads::Pool;
use crate::quant::QUANTS;
use crate::{DType, Error, MatrixPart};
use bytes::Bytes;
use std::f64;

/// Pseudo-random numbers (SplitMix64), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// Roughly normal: the sum of 12 uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1 << 24) as f32).sum::<f32>() - 6.0
    }
}

/// Bytes of a matrix with weights of about unit size: encoded if the type can be written, else random blocks whose
/// non-finite and huge values are excluded by trying again. So are those of codebooks, since random blocks reach all points.
fn weights(dtype: DType, n: usize, random: &mut Random) -> Vec<u8> {
    let spec = dtype.spec();
    let mut bytes = vec![0; dtype.bytes_for(n).unwrap()];
    let is_codebook = (DType::IQ1_S..=DType::IQ3_S).contains(&dtype);
    if let Some(quantize) = spec.quantize.filter(|_| !is_codebook) {
        let floats: Vec<f32> = (0..n).map(|_| random.normal()).collect();
        quantize(&floats, &mut bytes, None);
        return bytes;
    }
    let mut floats = vec![0.0; spec.block_len];
    for block in bytes.chunks_exact_mut(spec.block_bytes) {
        loop {
            block.fill_with(|| random.next() as u8);
            (spec.dequantize)(block, &mut floats);
            if floats.iter().all(|x| x.is_finite() && x.abs() < 100.0) {
                break;
            }
        }
    }
    bytes
}

/// The matmul with a plain matrix, without bias.
fn multiply(pool: &Pool, y: &mut [f32], x: &[f32], w: &Matrix) {
    let groups = &[Group { expert: 0, rows: 0..x.len() / w.n_in() }];
    matmul(pool, y, Operands { x, sources: None, w, groups, bias: None }, &mut Activations::new());
}

struct Case {
    dtype: DType,
    n_out: usize,
    n_in: usize,
    bytes: Bytes,
    x: Vec<f32>,
    /// [m, n_out]
    expected: Vec<f64>,
}

fn case(dtype: DType, n_out: usize, n_in: usize, m: usize) -> Case {
    let mut random = Random(n_in as u64 * 1000 + dtype as u64);
    let bytes = Bytes::from(weights(dtype, n_out * n_in, &mut random));
    let mut w = vec![0.0; n_out * n_in];
    (dtype.spec().dequantize)(&bytes, &mut w);
    let x: Vec<f32> = (0..m * n_in).map(|_| random.normal()).collect();
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
    let expected = x.chunks_exact(n_in).flat_map(|x| w.chunks_exact(n_in).map(move |w| dot(x, w))).collect();
    Case { dtype, n_out, n_in, bytes, x, expected }
}

impl Case {
    fn matrix(&self, options: MatrixOptions, pool: &Pool) -> Matrix {
        let Case { dtype, n_out, n_in, .. } = *self;
        let part =
            MatrixPart { name: "w".into(), dtype, n_experts: 1, n_out, n_in, bytes: self.bytes.clone() };
        Matrix::new(vec![part], options, pool).unwrap()
    }

    /// The matmul of the first `m` rows.
    fn multiply(&self, w: &Matrix, m: usize, pool: &Pool) -> Vec<f32> {
        let mut y = vec![f32::NAN; m * self.n_out];
        multiply(pool, &mut y, &self.x[..m * self.n_in], w);
        y
    }

    /// Squared error over squared size of the first `m` rows.
    fn error(&self, y: &[f32]) -> f64 {
        let (mut error, mut size) = (0.0, f64::MIN_POSITIVE);
        for (y, e) in y.iter().zip(&self.expected) {
            error += (f64::from(*y) - e).powi(2);
            size += e.powi(2);
        }
        error / size
    }
}

/// Normalized squared error that a path may have.
fn tolerance(dtype: DType, isa: Isa, exact: bool) -> f64 {
    match layouts::select(dtype, isa, exact).activations() {
        ActivationLayout::F32 => 1e-11,
        ActivationLayout::Bf16 | ActivationLayout::Bf16Lines if dtype == DType::BF16 => 5e-6,
        // The weights are rounded to BF16 too.
        ActivationLayout::Bf16 | ActivationLayout::Bf16Lines => 1e-5,
        ActivationLayout::Int8Block32 => 6e-5,
        ActivationLayout::Int8Block256 => 1.2e-4,
    }
}

fn options(isa: Isa, exact: bool, repack: bool) -> MatrixOptions {
    MatrixOptions { isa, exact, repack }
}

#[test]
fn the_memory_of_packed_weights_is_known_before_they_are_made() {
    let pool = Pool::new(1);
    for spec in QUANTS {
        let n_in = 256.max(spec.block_len);
        let bytes = vec![0; 3 * 37 * spec.dtype.bytes_for(n_in).unwrap()];
        for (exact, repack) in [(false, true), (true, true), (false, false)] {
            let part = MatrixPart {
                name: "w".into(),
                dtype: spec.dtype,
                n_experts: 3,
                n_out: 37,
                n_in,
                bytes: bytes.clone().into(),
            };
            let options = options(Isa::best(), exact, repack);
            let w = Matrix::new(vec![part], options, &pool).unwrap();
            let packed = packed_bytes(spec.dtype, [3, 37, n_in], options);
            let stays = matches!(w.parts[0].weights, Weights::Rows(_));
            assert_eq!(
                packed,
                if stays { 0 } else { w.bytes() },
                "{} exact {exact} repack {repack}",
                spec.dtype
            );
        }
    }
}

const ROWS: [usize; 7] = [1, 2, 3, 5, 8, 17, 64];

#[test]
fn every_type_on_every_path_equals_the_decoded_product() {
    let pool = Pool::new(2);
    for spec in QUANTS {
        let long = 2048.max(spec.block_len);
        // The last has two whole slices and a part of one.
        let short = spec.block_len.max(32);
        for (n_out, n_in) in [(37, short), (37, 3 * short), (19, long + short)] {
            let case = case(spec.dtype, n_out, n_in, 64);
            for &isa in Isa::available() {
                for exact in [false, true] {
                    let tolerance = tolerance(spec.dtype, isa, exact);
                    let w = case.matrix(options(isa, exact, true), &pool);
                    let one: Vec<f32> = case
                        .x
                        .chunks_exact(n_in)
                        .flat_map(|x| {
                            let mut y = vec![0.0; n_out];
                            multiply(&pool, &mut y, x, &w);
                            y
                        })
                        .collect();
                    let error = case.error(&one);
                    assert!(
                        error < tolerance,
                        "{} {isa} exact {exact} [{n_out}, {n_in}]: {error}",
                        spec.name
                    );
                    for repack in [true, false] {
                        let w = case.matrix(options(isa, exact, repack), &pool);
                        for m in ROWS {
                            // Bit for bit: rows do not depend on how many there are, nor on packing ahead.
                            let y = case.multiply(&w, m, &pool);
                            assert!(y[..] == one[..m * n_out], "{} {isa} exact {exact} m {m}", spec.name);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn vector_paths_agree_bit_for_bit() {
    let pool = Pool::new(1);
    let paths: Vec<Isa> = Isa::available().iter().copied().filter(|&isa| isa != Isa::Portable).collect();
    for dtype in [
        DType::Q8_0,
        DType::Q4_0,
        DType::Q4_K,
        DType::Q5_K,
        DType::Q6_K,
        DType::IQ3_S,
        DType::Q2_K,
        DType::Q3_K,
        DType::TQ2_0,
        DType::IQ4_NL,
        DType::Q5_1,
        DType::F32,
    ] {
        let case = case(dtype, 33, 1024, 5);
        let results: Vec<_> = paths
            .iter()
            .map(|&isa| case.multiply(&case.matrix(options(isa, false, true), &pool), 5, &pool))
            .collect();
        assert!(results.windows(2).all(|r| r[0] == r[1]), "{dtype}");
    }
}

#[test]
fn extreme_weights_do_not_saturate() {
    // Largest magnitudes everywhere, equal signs: the integer sums are as large as they get.
    let pool = Pool::new(1);
    for (dtype, block) in [
        (DType::Q8_0, [&[0x00, 0x3c][..], &[0x80; 32]].concat()),
        (DType::Q8_0, [&[0x00, 0x3c][..], &[0x7f; 32]].concat()),
        (DType::Q4_0, [&[0x00, 0x3c][..], &[0xff; 16]].concat()),
        (DType::Q4_0, [&[0x00, 0x3c][..], &[0x00; 16]].concat()),
        (DType::Q4_K, [&[0x00, 0x3c, 0x00, 0x3c][..], &[0xff; 140]].concat()),
        (DType::Q5_K, [&[0x00, 0x3c, 0x00, 0x3c][..], &[0xff; 172]].concat()),
        (DType::Q6_K, [&[0xff; 192][..], &[0x80; 16], &[0x00, 0x3c]].concat()),
        (DType::Q6_K, [&[0x00; 192][..], &[0x7f; 16], &[0x00, 0x3c]].concat()),
        (DType::IQ4_XS, [&[0x00, 0x3c][..], &[0xff; 134]].concat()),
        (DType::IQ4_XS, [&[0x00, 0x3c][..], &[0x00; 134]].concat()),
        (DType::IQ3_S, [&[0x00, 0x3c][..], &[0xff; 108]].concat()),
        (DType::IQ2_S, [&[0x00, 0x3c][..], &[0xff; 80]].concat()),
        (DType::Q3_K, [&[0xff; 108][..], &[0x00, 0x3c]].concat()),
        (DType::Q3_K, [&[0x00; 108][..], &[0x00, 0x3c]].concat()),
        (DType::Q2_K, [&[0xff; 80][..], &[0x00, 0x3c, 0x00, 0x00]].concat()),
        (DType::TQ2_0, [&[0xaa; 64][..], &[0x00, 0x3c]].concat()),
        (DType::IQ4_NL, [&[0x00, 0x3c][..], &[0x00; 16]].concat()),
        (DType::MXFP4, [&[127][..], &[0x77; 16]].concat()),
        (DType::Q5_1, [&[0x00, 0x3c, 0x00, 0x3c][..], &[0xff; 20]].concat()),
    ] {
        let n_in = 512;
        let bytes = block.repeat(16 * n_in / dtype.block_len());
        let mut w = vec![0.0; 16 * n_in];
        (dtype.spec().dequantize)(&bytes, &mut w);
        for sign in [1.0, -1.0] {
            let x = vec![sign; n_in];
            let expected: f64 = w[..n_in].iter().map(|w| f64::from(*w) * f64::from(sign)).sum();
            for &isa in Isa::available() {
                let part = MatrixPart {
                    name: "w".into(),
                    dtype,
                    n_experts: 1,
                    n_out: 16,
                    n_in,
                    bytes: bytes.clone().into(),
                };
                let w = Matrix::new(vec![part], options(isa, false, true), &pool).unwrap();
                let mut y = [0.0; 16];
                multiply(&pool, &mut y, &x, &w);
                let error = (f64::from(y[7]) / expected - 1.0).abs();
                assert!(error < 1e-6, "{dtype} {isa}: {} for {expected}", y[7]);
            }
        }
    }
}

#[test]
fn parts_experts_and_bias() {
    let pool = Pool::new(3);
    let (n_in, m, n_experts) = (1280, 3, 2);
    let mut random = Random(7);
    let shapes = [(DType::Q4_K, 20), (DType::Q6_K, 5), (DType::IQ4_NL, 33), (DType::F32, 16)];
    let parts: Vec<MatrixPart> = shapes
        .iter()
        .map(|&(dtype, n_out)| MatrixPart {
            name: "w".into(),
            dtype,
            n_experts,
            n_out,
            n_in,
            bytes: weights(dtype, n_experts * n_out * n_in, &mut random).into(),
        })
        .collect();
    let x: Vec<f32> = (0..m * n_in).map(|_| random.normal()).collect();
    let n_out: usize = shapes.iter().map(|s| s.1).sum();
    let bias: Vec<f32> = (0..n_experts * n_out).map(|_| random.normal()).collect();
    for repack in [false, true] {
        let w = Matrix::new(parts.clone(), options(Isa::best(), false, repack), &pool).unwrap();
        assert_eq!((w.n_out(), w.n_in(), w.n_experts()), (n_out, n_in, n_experts));
        for expert in 0..n_experts {
            let mut y = vec![f32::NAN; m * n_out];
            let groups = &[Group { expert, rows: 0..m }];
            let operands = Operands { x: &x, sources: None, w: &w, groups, bias: Some(&bias) };
            matmul(&pool, &mut y, operands, &mut Activations::new());
            let mut row = vec![0.0; n_in];
            for o in 0..n_out {
                w.dequantize_row(&mut row, expert, o);
                for i in 0..m {
                    let expected: f32 =
                        x[i * n_in..][..n_in].iter().zip(&row).map(|(x, w)| x * w).sum::<f32>()
                            + bias[expert * n_out + o];
                    let size = row.iter().map(|w| w * w).sum::<f32>().sqrt();
                    assert!((y[i * n_out + o] - expected).abs() <= 0.05 * size, "{expert} {o} {i}");
                }
            }
        }
    }
}

#[test]
fn groups_of_rows_equal_each_experts_own_product() {
    let pool = Pool::new(3);
    let (n_rows, n_experts, n_in, n_out) = (7, 5, 1280, 21);
    let mut random = Random(11);
    let x: Vec<f32> = (0..n_rows * n_in).map(|_| random.normal()).collect();
    let bias: Vec<f32> = (0..n_experts * n_out).map(|_| random.normal()).collect();
    // The same row for two experts; an expert that nobody chose; more rows than a tile; the order of a sorted batch.
    let groups = [(0, 1), (1, 1), (3, 83), (4, 5)];
    let mut end = 0;
    let groups = groups.map(|(expert, n)| {
        end += n;
        Group { expert, rows: end - n..end }
    });
    let sources: Vec<u32> = (0..end as u32).map(|row| if row < 2 { 6 } else { row * 5 % 7 }).collect();
    for dtype in [DType::Q4_K, DType::Q8_0, DType::F16, DType::F32] {
        let bytes = weights(dtype, n_experts * n_out * n_in, &mut random).into();
        let part = MatrixPart { name: "w".into(), dtype, n_experts, n_out, n_in, bytes };
        for &isa in Isa::available() {
            let w = Matrix::new(vec![part.clone()], options(isa, false, true), &pool).unwrap();
            let mut y = vec![f32::NAN; end * n_out];
            let operands =
                Operands { x: &x, sources: Some(&sources), w: &w, groups: &groups, bias: Some(&bias) };
            matmul(&pool, &mut y, operands, &mut Activations::new());
            for Group { expert, rows } in &groups {
                for row in rows.clone() {
                    let own = &[Group { expert: *expert, rows: 0..1 }];
                    let x = &x[sources[row] as usize * n_in..][..n_in];
                    let operands = Operands { x, sources: None, w: &w, groups: own, bias: Some(&bias) };
                    let mut alone = vec![0.0; n_out];
                    matmul(&pool, &mut alone, operands, &mut Activations::new());
                    assert_eq!(y[row * n_out..][..n_out], alone, "{dtype} {isa}: row {row}, expert {expert}");
                }
            }
        }
    }
}

#[test]
fn rows_come_back_from_the_packed_layout_bit_for_bit() {
    let pool = Pool::new(2);
    for spec in QUANTS {
        let (short, odd) = (spec.block_len.max(32), if spec.block_len == 1 { 1 } else { 0 });
        for n_in in [2 * short + odd, 2048 + short + odd] {
            let case = case(spec.dtype, 21, n_in, 1);
            let mut expected = vec![0.0; case.n_out * case.n_in];
            (spec.dequantize)(&case.bytes, &mut expected);
            for repack in [true, false] {
                let w = case.matrix(options(Isa::best(), false, repack), &pool);
                for (row, expected) in expected.chunks_exact(case.n_in).enumerate() {
                    let mut y = vec![0.0; case.n_in];
                    w.dequantize_row(&mut y, 0, row);
                    assert!(y == expected, "{} [{n_in}] row {row}", spec.name);
                }
            }
        }
    }
}

#[test]
fn odd_lengths_of_plain_numbers() {
    let pool = Pool::new(1);
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for n_in in [1, 7, 33] {
            let case = case(dtype, 5, n_in, 9);
            for &isa in Isa::available() {
                let w = case.matrix(options(isa, false, true), &pool);
                let error = case.error(&case.multiply(&w, 9, &pool));
                assert!(error < tolerance(dtype, isa, false), "{dtype} {isa} {n_in}: {error}");
            }
        }
    }
}

#[test]
fn broken_activations_do_not_look_healthy() {
    let pool = Pool::new(1);
    for dtype in [DType::Q8_0, DType::Q4_K, DType::Q6_K, DType::F16, DType::BF16] {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = case(dtype, 16, 256, 2);
            case.x[3] = bad;
            for &isa in Isa::available() {
                let y = case.multiply(&case.matrix(options(isa, false, true), &pool), 2, &pool);
                assert!(y[..16].iter().all(|y| !y.is_finite()), "{dtype} {isa}");
                assert!(y[16..].iter().all(|y| y.is_finite()), "{dtype} {isa}: the other row");
            }
        }
    }
}

#[test]
fn wrong_sizes_are_errors() {
    let pool = Pool::new(1);
    let part = |dtype, n_out, n_in, bytes| MatrixPart {
        name: "w".into(),
        dtype,
        n_experts: 1,
        n_out,
        n_in,
        bytes: Bytes::from(vec![0; bytes]),
    };
    let make = |parts| Matrix::new(parts, options(Isa::Portable, false, true), &pool);
    assert!(matches!(make(vec![part(DType::Q8_0, 2, 33, 68)]), Err(Error::PartialBlock { .. })));
    assert!(matches!(make(vec![part(DType::Q8_0, 2, 32, 67)]), Err(Error::WrongSize { .. })));
    assert!(matches!(make(vec![part(DType::F32, usize::MAX, 32, 67)]), Err(Error::WrongSize { .. })));
    let mismatched = vec![part(DType::Q8_0, 2, 32, 68), part(DType::Q8_0, 1, 64, 68)];
    assert!(matches!(make(mismatched), Err(Error::WrongSize { .. })));
}
