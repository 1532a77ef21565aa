//! Looking up the vectors of tokens, positions and token types.

use super::matmul::Matrix;
use super::threads::Pool;
use super::{Cpu, parallel};
use crate::Tensor;

pub(super) fn embed(pool: &Pool, y: &mut Tensor<Cpu>, table: &Matrix, tokens: &[u32], scale: f32) {
    assert_eq!(y.rows(), tokens.len());
    let n = y.row_len();
    parallel::rows(pool, y.floats_mut(), n, |i, row| {
        table.dequantize_row(row, 0, tokens[i] as usize);
        if scale != 1.0 {
            row.iter_mut().for_each(|x| *x *= scale);
        }
    });
}

/// Adds a row of `table` to each row of `x`: those that `rows` names.
pub(super) fn add_rows(pool: &Pool, x: &mut Tensor<Cpu>, table: &Tensor<Cpu>, rows: &[u32]) {
    assert_eq!(x.rows(), rows.len());
    let (n, table) = (x.row_len(), table.floats());
    parallel::rows(pool, x.floats_mut(), n, |i, row| {
        row.iter_mut().zip(&table[rows[i] as usize * n..][..n]).for_each(|(x, w)| *x += w);
    });
}
