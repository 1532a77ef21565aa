//! The state-space scan of Mamba-2.

use super::head_states::{COLUMNS, Columns, HeadStates, Rooms};
use crate::cpu::Cpu;
use crate::cpu::activation::exp;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::Shared;
use crate::cpu::simd::{Kernel, LANES, Simd, dispatch};
use crate::cpu::threads::Pool;
use crate::{HostBatch, SsmInput, SsmShape, Tensor};

pub(in crate::cpu) fn ssm_scan(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    input: SsmInput<'_, Cpu>,
    state: &mut Tensor<Cpu>,
    batch: &HostBatch,
    shape: &SsmShape,
) {
    let SsmInput { xbc, dt, dt_start, decay, dt_bias, skip, dt_limits } = input;
    let &SsmShape { n_heads, head_dim, n_groups, state_dim } = shape;
    let n_tokens = batch.tokens().len();
    assert_eq!((xbc.rows(), dt.rows(), y.rows()), (n_tokens, n_tokens, n_tokens));
    assert_eq!((xbc.row_len(), y.row_len()), (shape.xbc_len(), shape.inner_len()));
    assert_eq!(state.row_len(), shape.inner_len() * state_dim);
    let states = HeadStates {
        n_heads,
        n_rows: state_dim,
        n_columns: head_dim,
        y: Shared::new(y.floats_mut()),
        state: Shared::new(state.floats_mut()),
        batch,
    };
    let (xbc, dt_len, dt) = (xbc.floats(), dt.row_len(), dt.floats());
    let (decay, dt_bias, skip) = (decay.floats(), dt_bias.floats(), skip.floats());
    states.walk(pool, |Columns { token, head, columns, .. }, state, Rooms { y, .. }| {
        let (x, bc) = xbc[token * shape.xbc_len()..][..shape.xbc_len()].split_at(shape.inner_len());
        let group = shape.group(head);
        y[..columns.len()].copy_from_slice(&x[head * head_dim..][columns.clone()]);
        let dt = dt_limits.time_step(dt[token * dt_len + dt_start + head] + dt_bias[head]);
        let step = ScanStep {
            state,
            b: &bc[group * state_dim..][..state_dim],
            c: &bc[(n_groups + group) * state_dim..][..state_dim],
            x: y,
            n_vectors: columns.len().div_ceil(LANES),
            dt,
            decay: exp(decay[head] * dt),
            skip: skip[head],
        };
        // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
        unsafe { dispatch(isa, step) };
    });
}

/// One token's step of some columns of a head's state.
struct ScanStep<'a> {
    /// `[state_dim, n_vectors · LANES]`
    state: &'a mut [f32],
    /// `[state_dim]`
    b: &'a [f32],
    /// `[state_dim]`
    c: &'a [f32],
    /// Inputs, which become the result.
    x: &'a mut [f32; COLUMNS],
    n_vectors: usize,
    dt: f32,
    decay: f32,
    skip: f32,
}

impl Kernel for ScanStep<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the contract of each is this one's.
        unsafe {
            match self.n_vectors {
                1 => self.columns::<S, 1>(),
                2 => self.columns::<S, 2>(),
                3 => self.columns::<S, 3>(),
                _ => self.columns::<S, 4>(),
            }
        }
    }
}

impl ScanStep<'_> {
    /// `N` vectors of columns, in one pass over the state.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(self) {
        let Self { state, b, c, x, n_vectors, dt, decay, skip } = self;
        assert!(n_vectors == N && x.len() >= N * LANES);
        assert_eq!((state.len(), c.len()), (b.len() * N * LANES, b.len()));
        let (n_rows, state, b, c) = (b.len(), state.as_mut_ptr(), b.as_ptr(), c.as_ptr());
        // Rows are counted, not iterated over: calls of a zip's `next` are not inlined here, and keep the sums in memory.
        // SAFETY: only registers, and loads and stores of N vectors each from a row of N · LANES floats of the `n_rows`, for each of which `b`
        // and `c` have a float (the assertions); `x` has N vectors.
        unsafe {
            let (dt, decay, skip) = (S::splat(dt), S::splat(decay), S::splat(skip));
            let mut input = [S::splat(0.0); N];
            for j in 0..N {
                input[j] = S::mul(dt, S::load_f32(x.as_ptr().add(j * LANES)));
            }
            let mut y = [S::splat(0.0); N];
            for r in 0..n_rows {
                let (row, b, c) = (state.add(r * N * LANES), S::splat(*b.add(r)), S::splat(*c.add(r)));
                for j in 0..N {
                    let p = row.add(j * LANES);
                    let s = S::fma(b, input[j], S::mul(decay, S::load_f32(p)));
                    S::store_f32(p, s);
                    y[j] = S::fma(c, s, y[j]);
                }
            }
            for j in 0..N {
                let p = x.as_mut_ptr().add(j * LANES);
                S::store_f32(p, S::fma(skip, S::load_f32(p), y[j]));
            }
        }
    }
}
