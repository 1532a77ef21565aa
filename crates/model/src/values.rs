//! Weights as numbers on the host.

use crate::source::TensorSource;
use crate::{Error, Result};

/// A small weight as numbers. Errors: missing, of another length, not finite.
pub fn vector(source: &dyn TensorSource, name: &str, len: Option<usize>) -> Result<Vec<f32>> {
    let t = source.tensor(name)?;
    let n: usize = t.shape.iter().product();
    if len.is_some_and(|len| len != n) {
        let reason =
            format!("has shape {:?} where {} elements were expected", t.shape, len.unwrap_or_default());
        return Err(Error::bad_tensor(source.path(), name, reason));
    }
    let mut values = vec![0.0; n];
    (t.dtype.spec().dequantize)(&t.bytes, &mut values);
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(Error::bad_tensor(source.path(), name, format!("has {} at element {i}", values[i]))),
        None => Ok(values),
    }
}

/// The first tensor that holds a number that is not finite, with that number's index; reads all weights.
///
/// For the error message when a model's logits are not finite.
pub fn find_non_finite(source: &dyn TensorSource) -> Result<Option<(String, usize)>> {
    for info in source.tensors() {
        let t = source.tensor(&info.name)?;
        let spec = t.dtype.spec();
        let mut values = vec![0.0; spec.block_len * 1024];
        for (chunk, bytes) in t.bytes.chunks(spec.block_bytes * 1024).enumerate() {
            let values = &mut values[..bytes.len() / spec.block_bytes * spec.block_len];
            (spec.dequantize)(bytes, values);
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                return Ok(Some((info.name.clone(), chunk * 1024 * spec.block_len + i)));
            }
        }
    }
    Ok(None)
}
