//! Looking up the vectors of tokens and positions.

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

pub(super) fn add_positions(pool: &Pool, x: &mut Tensor<Cpu>, table: &Tensor<Cpu>, positions: &[u32]) {
    let (n, table) = (x.row_len(), table.floats());
    parallel::rows(pool, x.floats_mut(), n, |i, row| {
        row.iter_mut().zip(&table[positions[i] as usize * n..][..n]).for_each(|(x, w)| *x += w);
    });
}
