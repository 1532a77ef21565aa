//! Tests of the quantization formats as a caller sees them: through the rows of [`QUANTS`].
//!
//! The conformance tests compare every type bit by bit with blocks that ggml decoded (`tools/make_quant_vectors.py`), and with more of them
//! where the public test data is at hand. The others feed random blocks and round-trip random weights.

#[path = "support/test_data.rs"]
mod test_data;

use realizar_compute::DType;
use realizar_compute::quant::QUANTS;
use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use test_data::test_data;

/// Just enough of GGUF to read the vectors: metadata holds strings only.
struct Gguf<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Gguf<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let s = &self.bytes[self.at..self.at + n];
        self.at += n;
        s
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }
    fn u64(&mut self) -> usize {
        u64::from_le_bytes(self.take(8).try_into().unwrap()) as usize
    }
    fn string(&mut self) -> String {
        let n = self.u64();
        String::from_utf8(self.take(n).to_vec()).unwrap()
    }

    /// All tensors by name: type, number of elements, bytes.
    fn tensors(mut self) -> HashMap<String, (DType, usize, &'a [u8])> {
        assert_eq!(self.take(4), b"GGUF");
        assert_eq!(self.u32(), 3, "GGUF version");
        let (n_tensors, n_metadata) = (self.u64(), self.u64());
        for _ in 0..n_metadata {
            self.string();
            assert_eq!(self.u32(), 8, "metadata other than strings");
            self.string();
        }
        let infos: Vec<_> = (0..n_tensors)
            .map(|_| {
                let name = self.string();
                let n: usize = (0..self.u32()).map(|_| self.u64()).product();
                let id = self.u32();
                let dtype = DType::from_ggml_id(id).unwrap_or_else(|| panic!("{name}: unknown type {id}"));
                (name, dtype, n, self.u64())
            })
            .collect();
        let data = self.at.next_multiple_of(32);
        infos
            .into_iter()
            .map(|(name, dtype, n, offset)| {
                let bytes = &self.bytes[data + offset..][..dtype.bytes_for(n).unwrap()];
                (name, (dtype, n, bytes))
            })
            .collect()
    }
}

fn dequantize(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut y = vec![f32::NAN; bytes.len() / dtype.spec().block_bytes * dtype.block_len()];
    (dtype.spec().dequantize)(bytes, &mut y);
    y
}

#[test]
fn every_type_dequantizes_bit_equal_to_ggml() {
    compare_with_ggml(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quant_vectors.gguf"));
}

#[test]
fn encoded_weights_dequantize_bit_equal_to_ggml() {
    let Some(path) = test_data("quant-vectors/ggml_quant_vectors.gguf") else { return };
    compare_with_ggml(&path);
}

/// Runs the test above without data, under these variables.
#[test]
fn a_test_without_its_data_fails_by_name_where_data_are_demanded() {
    let name = "encoded_weights_dequantize_bit_equal_to_ggml";
    for (ci, require, fails) in [
        (None, None, false),
        (Some("true"), None, true),
        (None, Some("1"), true),
        (Some("true"), Some("1"), true),
        (Some("true"), Some("0"), false),
        (None, Some("0"), false),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([name, "--exact"]).env("REALIZAR_TEST_DATA", "/no/such/folder");
        for (variable, value) in [("CI", ci), ("REALIZAR_REQUIRE_DATA", require)] {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        let output = command.output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(
            output.status.success(),
            !fails,
            "CI {ci:?}, REALIZAR_REQUIRE_DATA {require:?}: {out}{err}"
        );
        let line = if fails {
            format!("test {name} ... FAILED")
        } else {
            format!("SKIPPED {name}: /no/such/folder")
        };
        assert!(out.contains(&line) || err.contains(&line), "{out}{err}");
    }
}

fn compare_with_ggml(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let tensors = Gguf { bytes: &bytes, at: 0 }.tensors();
    let mut compared = 0;
    for spec in QUANTS {
        let Some((dtype, _, blocks)) = tensors.get(&format!("{}.q", spec.name)) else {
            assert_eq!(spec.dtype, DType::F32, "{} has no vector", spec.name);
            continue;
        };
        assert_eq!(*dtype, spec.dtype);
        let want = dequantize(DType::F32, tensors[&format!("{}.f32", spec.name)].2);
        let got = dequantize(spec.dtype, blocks);
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(&want).enumerate() {
            assert_eq!(g.to_bits(), w.to_bits(), "{} at {i}: {g} is not {w}", spec.name);
        }
        compared += 1;
    }
    assert_eq!(compared, 26);
}

/// Weights, their importance and ggml's encodings of them, as `tools/make_quant_vectors.py` wrote them: the sum of weighted squared errors is
/// at most 1 % larger than ggml's.
#[test]
fn weights_are_encoded_as_well_as_ggml_does() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoded.gguf");
    let bytes = std::fs::read(path).unwrap();
    let tensors = Gguf { bytes: &bytes, at: 0 }.tensors();
    let floats = |name: &str| dequantize(DType::F32, tensors[name].2);
    let (weights, importance) = (floats("weights"), floats("importance"));
    let ones = vec![1.0; importance.len()];
    let error = |values: &[f32], importance: &[f32]| -> f64 {
        let errors = values.iter().zip(&weights).map(|(a, b)| f64::from(a - b).powi(2));
        errors.zip(importance.iter().cycle()).map(|(e, w)| e * f64::from(*w)).sum::<f64>().sqrt()
    };
    let mut compared = 0;
    for (name, (dtype, _, blocks)) in &tensors {
        let importance = match name.rsplit_once('.') {
            Some((_, "plain")) => None,
            Some((_, "weighted")) => Some(&importance[..]),
            _ => continue,
        };
        let mut encoded = vec![0; blocks.len()];
        let row_bytes = dtype.bytes_for(ones.len()).unwrap();
        for (row, out) in weights.chunks_exact(ones.len()).zip(encoded.chunks_exact_mut(row_bytes)) {
            (dtype.spec().quantize.unwrap())(row, out, importance);
        }
        let w = importance.unwrap_or(&ones);
        let (ours, theirs) = (error(&dequantize(*dtype, &encoded), w), error(&dequantize(*dtype, blocks), w));
        assert!(ours <= 1.01 * theirs, "{name}: {ours} for {theirs}");
        compared += 1;
    }
    assert_eq!(compared, 33);
}

/// A small generator of random bits (splitmix64), so that the tests repeat.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// Uniform in 0..1.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }
    /// Roughly normal, variance 1: a sum of twelve uniform numbers.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }
}

#[test]
fn any_bytes_are_decoded_without_panic() {
    let mut random = Random(1);
    for spec in QUANTS {
        for n_blocks in [0, 1, 2, 500] {
            let bytes: Vec<u8> = (0..n_blocks * spec.block_bytes).map(|_| random.next() as u8).collect();
            assert_eq!(dequantize(spec.dtype, &bytes).len(), n_blocks * spec.block_len);
        }
        for fill in [0, 0x7f, 0x80, 0xff] {
            dequantize(spec.dtype, &vec![fill; spec.block_bytes]);
        }
    }
}

#[test]
fn all_bits_zero_decode_to_a_finite_number() {
    for spec in QUANTS {
        let y = dequantize(spec.dtype, &vec![0; 3 * spec.block_bytes]);
        assert!(y.iter().all(|v| v.is_finite()), "{}", spec.name);
    }
}

/// Encodes and decodes again.
fn round_trip(dtype: DType, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0xa5; dtype.bytes_for(x.len()).unwrap()];
    (dtype.spec().quantize.unwrap())(x, &mut bytes, None);
    dequantize(dtype, &bytes)
}

/// Root mean square of the difference over that of `x`.
fn relative_error(x: &[f32], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len());
    let square = |v: f32| f64::from(v).powi(2);
    let noise: f64 = x.iter().zip(y).map(|(x, y)| square(x - y)).sum();
    let signal: f64 = x.iter().map(|x| square(*x)).sum();
    (noise / signal).sqrt()
}

/// What encoding normal weights may cost: the relative error of each type that can be written, measured, plus 4 %.
#[rustfmt::skip]
const ERROR_BOUNDS: [(DType, f64); 25] = [
    (DType::F32, 0.0), (DType::F16, 2.16e-4), (DType::BF16, 1.73e-3), (DType::Q8_0, 5.57e-3), (DType::Q6_K, 0.0185),
    (DType::Q5_K, 0.0376), (DType::Q5_1, 0.0394), (DType::Q5_0, 0.0444), (DType::Q4_K, 0.0742), (DType::IQ4_NL, 0.0792), (DType::IQ4_XS, 0.0800),
    (DType::Q4_1, 0.0814), (DType::Q4_0, 0.0894), (DType::MXFP4, 0.1187), (DType::IQ3_S, 0.1357), (DType::Q3_K, 0.1569), (DType::IQ3_XXS, 0.1861),
    (DType::IQ2_S, 0.2513), (DType::IQ2_XS, 0.3016), (DType::Q2_K, 0.3083), (DType::IQ2_XXS, 0.3451), (DType::IQ1_M, 0.4351), (DType::IQ1_S, 0.4692),
    (DType::TQ1_0, 0.84), (DType::TQ2_0, 0.84),
];

#[test]
fn encoding_normal_weights_costs_little() {
    let mut random = Random(2);
    for scale in [0.02, 1.0, 50.0] {
        let x: Vec<f32> = (0..256 * 256).map(|_| scale * random.normal()).collect();
        for (dtype, bound) in ERROR_BOUNDS {
            let error = relative_error(&x, &round_trip(dtype, &x));
            assert!(error <= bound, "{dtype} at scale {scale}: {error} exceeds {bound}");
            // A bound far above what is reached would hide a loss of quality.
            assert!(error >= 0.85 * bound, "{dtype} at scale {scale}: {error} is far below {bound}");
        }
    }
}

#[test]
fn an_outlier_does_not_spoil_its_neighbours() {
    let mut random = Random(3);
    let mut x: Vec<f32> = (0..256 * 64).map(|_| 0.02 * random.normal()).collect();
    for block in x.chunks_exact_mut(256) {
        block[random.next() as usize % 256] *= 20.0;
    }
    for (dtype, bound) in ERROR_BOUNDS {
        let error = relative_error(&x, &round_trip(dtype, &x));
        assert!(error <= (2.0 * bound).min(1.0), "{dtype}: {error}");
    }
}

#[test]
fn every_type_that_can_be_written_is_tested() {
    for spec in QUANTS {
        let tested = ERROR_BOUNDS.iter().any(|(dtype, _)| *dtype == spec.dtype);
        assert_eq!(tested, spec.quantize.is_some(), "{}", spec.name);
    }
}

#[test]
fn weights_that_a_type_can_represent_come_back() {
    let mut random = Random(4);
    let mut numbers = |levels: u64, low: f32| -> Vec<f32> {
        let mut x: Vec<f32> = (0..1024).map(|_| (random.next() % levels) as f32 + low).collect();
        for sub_block in x.chunks_exact_mut(16) {
            (sub_block[3], sub_block[7]) = (low, low + (levels - 1) as f32);
        }
        x
    };
    for (dtype, levels, low) in [
        (DType::Q8_0, 255, -127.0),
        (DType::Q4_0, 16, -8.0),
        (DType::Q4_1, 16, 5.0),
        (DType::Q5_0, 32, -16.0),
        (DType::Q5_1, 32, -100.0),
        (DType::Q2_K, 4, 0.0),
        (DType::Q3_K, 8, -4.0),
        (DType::Q4_K, 16, 0.0),
        (DType::Q5_K, 32, 0.0),
        (DType::Q6_K, 64, -32.0),
        (DType::TQ1_0, 3, -1.0),
        (DType::TQ2_0, 3, -1.0),
    ] {
        let x = numbers(levels, low);
        // The scale of a scale, such as 1 / 63, is only as exact as a half-precision number.
        let error = relative_error(&x, &round_trip(dtype, &x));
        assert!(error < 3e-4, "{dtype}: {error}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for (dtype, _) in ERROR_BOUNDS {
        assert!(round_trip(dtype, &[0.0; 512]).iter().all(|y| *y == 0.0), "{dtype}");
    }
}

#[test]
fn weights_that_are_no_numbers_do_not_panic() {
    let mut random = Random(5);
    for (dtype, _) in ERROR_BOUNDS {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-38, 1e20] {
            round_trip(dtype, &[odd; 256]);
            let mut x: Vec<f32> = (0..256).map(|_| random.normal()).collect();
            (x[0], x[100]) = (odd, -odd);
            round_trip(dtype, &x);
        }
        let bits: Vec<f32> = (0..1 << 14).map(|_| f32::from_bits(random.next() as u32)).collect();
        round_trip(dtype, &bits);
    }
}

#[test]
fn one_signed_weights_keep_their_accuracy() {
    // All weights positive: the types with a min can't use it, since it is only ever subtracted.
    let mut random = Random(6);
    let x: Vec<f32> = (0..256 * 64).map(|_| 1.0 + random.uniform()).collect();
    let negative: Vec<f32> = x.iter().map(|v| -v).collect();
    for (dtype, bound) in
        [(DType::Q4_K, 0.045), (DType::Q5_K, 0.022), (DType::Q2_K, 0.25), (DType::Q6_K, 0.011)]
    {
        for x in [&x, &negative] {
            let error = relative_error(x, &round_trip(dtype, x));
            assert!(error < bound, "{dtype}: {error}");
        }
    }
}

#[test]
fn importance_moves_errors_away_from_weights_that_matter() {
    let mut random = Random(7);
    let x: Vec<f32> = (0..256 * 32).map(|_| 0.02 * random.normal()).collect();
    let importance: Vec<f32> = x.iter().map(|_| if random.uniform() < 0.125 { 100.0 } else { 1.0 }).collect();
    let error = |dtype: DType, importance_given: Option<&[f32]>| -> f32 {
        let mut bytes = vec![0; dtype.bytes_for(x.len()).unwrap()];
        (dtype.spec().quantize.unwrap())(&x, &mut bytes, importance_given);
        let y = dequantize(dtype, &bytes);
        x.iter().zip(&y).zip(&importance).map(|((x, y), w)| w * (x - y) * (x - y)).sum()
    };
    for (dtype, _) in ERROR_BOUNDS {
        let (without, with) = (error(dtype, None), error(dtype, Some(&importance)));
        match dtype {
            DType::F32
            | DType::F16
            | DType::BF16
            | DType::Q8_0
            | DType::MXFP4
            | DType::TQ1_0
            | DType::TQ2_0 => {
                assert_eq!(without, with, "{dtype} takes no importance");
            }
            _ => assert!(with < 0.9 * without, "{dtype}: {with} with, {without} without"),
        }
    }
}

#[test]
fn importance_of_any_size_is_taken() {
    let mut random = Random(8);
    let x: Vec<f32> = (0..512).map(|_| 0.02 * random.normal()).collect();
    for (dtype, bound) in ERROR_BOUNDS {
        for importance in [0.0, 1e-30, 1e-6, 1.0, 1e12, f32::MAX, f32::INFINITY, f32::NAN] {
            let mut bytes = vec![0; dtype.bytes_for(x.len()).unwrap()];
            (dtype.spec().quantize.unwrap())(&x, &mut bytes, Some(&[importance; 512]));
            let error = relative_error(&x, &dequantize(dtype, &bytes));
            if importance == 0.0 || (1e-6..=1e12).contains(&importance) {
                assert!(error <= 1.2 * bound.max(1e-9), "{dtype} with {importance}: {error}");
            }
        }
    }
}
