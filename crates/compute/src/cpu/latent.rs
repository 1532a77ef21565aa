//! What latent attention does around attention: its way into the cache, and products of single heads.

use super::matmul::{self, Activations, Group, Matrix, Operands};
use super::parallel::Shared;
use super::rope::Cache;
use super::{Cpu, norm, parallel};
use crate::math::rotate;
use crate::{HostBatch, KvLayer, LatentPrep, Result, Tensor};
use std::cell::RefCell;

pub(super) fn store_latent(
    cpu: &Cpu,
    queries: &mut Tensor<Cpu>,
    q: &Tensor<Cpu>,
    latent: &Tensor<Cpu>,
    kv: &mut KvLayer<Cpu>,
    batch: &HostBatch,
    prep: LatentPrep<'_, Cpu>,
) -> Result<()> {
    let LatentPrep { shape, norm, angles: (angles, style) } = prep;
    let (q_dim, key_dim, kv_rank) = (shape.q_dim(), shape.key_dim(), shape.kv_rank);
    let n_tokens = batch.tokens().len();
    assert_eq!((q.row_len(), latent.row_len()), (shape.n_heads * q_dim, key_dim));
    assert_eq!((queries.row_len(), angles.row_len()), (shape.n_heads * key_dim, shape.rope_dim));
    assert_eq!((queries.rows(), q.rows(), latent.rows()), (n_tokens, n_tokens, n_tokens));
    let cache = Cache::of(kv, 1)?;
    let (isa, row_len) = (cpu.options.isa, queries.row_len());
    parallel::rows(&cpu.pool, queries.floats_mut(), row_len, |t, row| {
        let angles = &angles.floats()[t * shape.rope_dim..][..shape.rope_dim];
        let q = &q.floats()[t * q.row_len()..][..q.row_len()];
        for (from, to) in q.chunks_exact(q_dim).zip(row.chunks_exact_mut(key_dim)) {
            to[kv_rank..].copy_from_slice(&from[shape.nope_dim..]);
            rotate(&mut to[kv_rank..], angles, style);
        }
        KEY.with_borrow_mut(|key| {
            key.clear();
            key.extend_from_slice(&latent.floats()[t * key_dim..][..key_dim]);
            let (vector, turning) = key.split_at_mut(kv_rank);
            let bias = norm.bias.as_ref().map(|b| b.floats());
            norm::norm_row(isa, vector, norm.kind, norm.weight.floats(), bias, norm.eps);
            rotate(turning, angles, style);
            let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
            let position = batch.positions()[t] as usize;
            let block = batch.block_table(seq)[position / cache.block_size] as usize;
            // SAFETY: every token of a step has its own position in its own sequence, and the scheduler gives a block that is written to
            // only one sequence, so no two rows have the same position of the same block.
            unsafe { cache.store(block, position % cache.block_size, key, &[]) }
        });
    });
    Ok(())
}

thread_local! {
    /// The key of one token.
    static KEY: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// The inputs and outputs of one head, and the inputs as its product reads them.
    static HEAD: RefCell<(Vec<f32>, Vec<f32>, Activations)> = RefCell::default();
}

/// One head to a thread: their products are too small to share.
pub(super) fn head_matmul(cpu: &Cpu, y: &mut Tensor<Cpu>, x: &Tensor<Cpu>, w: &Matrix) {
    let (n_heads, n_in, n_out) = (w.n_experts(), w.n_in(), w.n_out());
    let (x_len, y_len) = (x.row_len() / n_heads, y.row_len() / n_heads);
    assert_eq!((x.row_len(), y.row_len()), (x_len * n_heads, y_len * n_heads), "{n_heads} heads");
    assert!(x.rows() == y.rows() && n_in <= x_len && n_out <= y_len, "{y:?} of {x:?}, [{n_out}, {n_in}]");
    let m = x.rows();
    let x = x.floats();
    let y = Shared::new(y.floats_mut());
    cpu.pool.for_each_chunk(n_heads, 1, |range| {
        HEAD.with_borrow_mut(|(inputs, outputs, activations)| {
            for head in range {
                inputs.clear();
                let starts = (0..m).map(|t| t * n_heads + head);
                starts.clone().for_each(|at| inputs.extend_from_slice(&x[at * x_len..][..n_in]));
                outputs.resize(m * n_out, 0.0);
                cpu.show(w, head, inputs);
                let groups = &[Group { expert: head, rows: 0..m }];
                let operands = Operands { x: inputs, sources: None, w, groups, bias: None };
                matmul::matmul(&cpu.pool, outputs, operands, activations);
                for (at, output) in starts.zip(outputs.chunks_exact(n_out)) {
                    // SAFETY: this part of the row is the head's, which one call has.
                    unsafe { y.slice(at * y_len, n_out) }.copy_from_slice(output);
                }
            }
        });
    });
}
