//! Tests of the quantization formats as a caller sees them: through the rows of [`QUANTS`].
//!
//! The conformance test compares every type bit by bit with ggml's own blocks and their decoded values, where that data
//! is at hand. The other tests need no data: they feed random blocks and round-trip random weights.

use realizar_compute::DType;
use realizar_compute::quant::QUANTS;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// A folder of the shared test data, or `None` after saying that the test is skipped.
#[allow(clippy::print_stderr, clippy::disallowed_methods)]
fn shared_data(what: &str) -> Option<PathBuf> {
    let root = match std::env::var_os("REALIZAR_TEST_DATA") {
        Some(root) => PathBuf::from(root),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"),
    };
    let path = root.join(what);
    if path.exists() {
        return Some(path);
    }
    eprintln!("SKIPPED: {} is absent", path.display());
    None
}

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
    let Some(path) = shared_data("quant-vectors/ggml_quant_vectors.gguf") else { return };
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
