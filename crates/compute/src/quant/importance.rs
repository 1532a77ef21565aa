//! How much the error of each weight counts.

use super::rounding::dot;

/// What the squared error of each weight is multiplied with: its importance, times a number that grows with its magnitude.
///
/// `importance`: the mean square of the activations that each weight is multiplied with.
#[inline]
pub(crate) fn error_weights<const N: usize>(x: &[f32; N], importance: &[f32; N]) -> [f32; N] {
    let mean_square = dot(x, x) / N as f32;
    std::array::from_fn(|i| importance[i] * (2.0 * mean_square + x[i] * x[i]).sqrt())
}
