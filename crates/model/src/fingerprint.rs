//! What tells one model from another without reading all of it.

use crate::source::TensorSource;
use crate::{ModelConfig, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write;

/// Bytes that are read at the beginning, in the middle and at the end of each weight.
const SAMPLE: usize = 4096;

/// A hash of a model's configuration and of its weights' names, types, shapes and samples of their bytes, in 64 hexadecimal digits.
///
/// Training, merging or quantizing changes nearly all bytes of the weights that it touches, so samples of each are enough to notice it.
///
/// Errors: a weight that cannot be read.
pub fn fingerprint(source: &dyn TensorSource, config: &ModelConfig) -> Result<String> {
    let mut hash = Sha256::new();
    hash.update(format!("{config:?}"));
    for info in source.tensors() {
        hash.update(format!("\0{} {} {:?}\0", info.name, info.dtype, info.shape));
        let bytes = source.tensor(&info.name)?.bytes;
        let last = bytes.len().saturating_sub(SAMPLE);
        for start in [0, last / 2, last] {
            hash.update(&bytes[start..bytes.len().min(start + SAMPLE)]);
        }
    }
    let mut text = String::new();
    for byte in hash.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}
