//! The gated delta rule.

use super::head_states::{Columns, HeadStates, Rooms};
use crate::cpu::activation::exp;
use crate::cpu::isa::Isa;
use crate::cpu::parallel::{self, Shared};
use crate::cpu::simd::{Kernel, LANES, Simd, dispatch};
use crate::cpu::threads::Pool;
use crate::cpu::{Cpu, norm};
use crate::math::softplus;
use crate::{DeltaInput, DeltaShape, HostBatch, Tensor};

pub(in crate::cpu) fn delta_rule(
    pool: &Pool,
    isa: Isa,
    y: &mut Tensor<Cpu>,
    input: DeltaInput<'_, Cpu>,
    state: &mut Tensor<Cpu>,
    batch: &HostBatch,
    shape: &DeltaShape,
) {
    let DeltaInput { qkv, rates, rates_start, decay, dt_bias } = input;
    let n_tokens = batch.tokens().len();
    assert_eq!((qkv.rows(), rates.rows(), y.rows()), (n_tokens, n_tokens, n_tokens));
    assert_eq!((qkv.row_len(), y.row_len()), (shape.qkv_len(), shape.v_len()));
    assert_eq!(state.row_len(), shape.v_len() * shape.k_dim);
    normalize(pool, isa, qkv, shape);
    apply_rates(pool, rates, rates_start, decay.floats(), dt_bias.floats());
    let states = HeadStates {
        n_heads: shape.n_v_heads,
        n_rows: shape.k_dim,
        n_columns: shape.v_dim,
        y: Shared::new(y.floats_mut()),
        state: Shared::new(state.floats_mut()),
        batch,
    };
    let (qkv, rates_len, rates) = (qkv.floats(), rates.row_len(), rates.floats());
    let &DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, .. } = shape;
    states.walk(pool, |Columns { token, next, is_first, head, columns }, state, rooms| {
        let row = |token: usize| &qkv[token * shape.qkv_len()..][..shape.qkv_len()];
        let rates = &rates[token * rates_len + rates_start..][..2 * n_v_heads];
        let k_head = shape.k_head(head);
        let key = |token: usize| &row(token)[(n_k_heads + k_head) * k_dim..][..k_dim];
        let values = &row(token)[2 * n_k_heads * k_dim + head * v_dim..][columns.clone()];
        rooms.y[..columns.len()].copy_from_slice(values);
        let (beta, decay) = (rates[head], rates[n_v_heads + head]);
        let n_vectors = columns.len().div_ceil(LANES);
        let (q, k) = (&row(token)[k_head * k_dim..][..k_dim], key(token));
        let next_k = next.map(key);
        let step = DeltaStep { state, q, k, next_k, is_first, rooms, n_vectors, beta, decay };
        // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
        unsafe { dispatch(isa, step) };
    });
}

/// Divides queries and keys by their length, and queries by the root of theirs.
fn normalize(pool: &Pool, isa: Isa, qkv: &mut Tensor<Cpu>, shape: &DeltaShape) {
    let (n, n_rows, k_dim) = (qkv.row_len(), shape.n_k_heads, shape.k_dim);
    parallel::rows(pool, qkv.floats_mut(), n, |_, row| {
        let (q, rest) = row.split_at_mut(n_rows * k_dim);
        for (heads, factor) in [(q, 1.0 / (k_dim as f32).sqrt()), (&mut rest[..n_rows * k_dim], 1.0)] {
            for x in heads.chunks_exact_mut(k_dim) {
                // SAFETY: `Cpu::new` checked that the processor has `isa`; the kernel has no pointers of its own.
                unsafe { dispatch(isa, Unit { x, factor }) }
            }
        }
    });
}

struct Unit<'a> {
    x: &'a mut [f32],
    factor: f32,
}

impl Kernel for Unit<'_> {
    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let sum = norm::sum(self.x, |x| x * x);
        // The reference library's epsilon.
        let inv = (f64::from(self.factor) / (sum + 1e-6).sqrt()) as f32;
        self.x.iter_mut().for_each(|x| *x *= inv);
    }
}

/// Turns `b` and `a` of each token into what the state takes up of it and what it keeps, in place.
fn apply_rates(pool: &Pool, rates: &mut Tensor<Cpu>, start: usize, decay: &[f32], dt_bias: &[f32]) {
    let (n, n_heads) = (rates.row_len(), decay.len());
    parallel::rows(pool, rates.floats_mut(), n, |_, row| {
        let (b, a) = row[start..start + 2 * n_heads].split_at_mut(n_heads);
        b.iter_mut().for_each(|b| *b = 1.0 / (1.0 + exp(-*b)));
        for ((a, decay), dt_bias) in a.iter_mut().zip(decay).zip(dt_bias) {
            *a = exp(decay * softplus(*a + dt_bias));
        }
    });
}

/// One token's step of some columns of a head's state.
struct DeltaStep<'a> {
    /// `[k_dim, n_vectors · LANES]`
    state: &'a mut [f32],
    /// `[k_dim]`
    q: &'a [f32],
    /// `[k_dim]`
    k: &'a [f32],
    /// `[k_dim]`; the next token's.
    next_k: Option<&'a [f32]>,
    /// Whether `rooms.carry` is not yet what the state holds for `k`.
    is_first: bool,
    /// Values, which become the result, and what the state holds for a key.
    rooms: &'a mut Rooms,
    n_vectors: usize,
    beta: f32,
    decay: f32,
}

impl Kernel for DeltaStep<'_> {
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

impl DeltaStep<'_> {
    /// `N` vectors of columns, in one pass over the state: it changes it, reads it for the query, and for the key of the token after this
    /// one. The first token's key takes a pass of its own.
    ///
    /// # Safety
    /// That of [`Simd`].
    #[inline(always)]
    unsafe fn columns<S: Simd, const N: usize>(self) {
        let Self { state, q, k, next_k, is_first, rooms, n_vectors, beta, decay } = self;
        let Rooms { y: v, carry } = rooms;
        assert!(n_vectors == N && v.len() >= N * LANES);
        assert_eq!((state.len(), q.len()), (k.len() * N * LANES, k.len()));
        assert!(next_k.is_none_or(|next| next.len() == k.len()));
        let (n_rows, state, q, k) = (k.len(), state.as_mut_ptr(), q.as_ptr(), k.as_ptr());
        // Rows are counted, not iterated over: calls of a zip's `next` are not inlined here, and keep the sums in memory.
        // SAFETY: only registers, and loads and stores of N vectors each from a row of N · LANES floats of the `n_rows`, for each of which the
        // queries and keys have a float (the assertions); `v` and `carry` have N vectors.
        unsafe {
            let mut held = [S::splat(0.0); N];
            if is_first {
                for r in 0..n_rows {
                    let (row, k) = (state.add(r * N * LANES), S::splat(*k.add(r)));
                    for j in 0..N {
                        held[j] = S::fma(k, S::load_f32(row.add(j * LANES)), held[j]);
                    }
                }
            } else {
                for j in 0..N {
                    held[j] = S::load_f32(carry.as_ptr().add(j * LANES));
                }
            }
            let (beta, decay) = (S::splat(beta), S::splat(decay));
            let mut delta = [S::splat(0.0); N];
            for j in 0..N {
                let v = S::load_f32(v.as_ptr().add(j * LANES));
                delta[j] = S::mul(S::fnma(decay, held[j], v), beta);
            }
            let mut y = [S::splat(0.0); N];
            let mut held = [S::splat(0.0); N];
            if let Some(next_k) = next_k {
                for r in 0..n_rows {
                    let row = state.add(r * N * LANES);
                    let (k, q, next_k) = (S::splat(*k.add(r)), S::splat(*q.add(r)), S::splat(next_k[r]));
                    for j in 0..N {
                        let s = Self::change::<S>(row.add(j * LANES), decay, k, delta[j]);
                        y[j] = S::fma(q, s, y[j]);
                        held[j] = S::fma(next_k, s, held[j]);
                    }
                }
            } else {
                for r in 0..n_rows {
                    let row = state.add(r * N * LANES);
                    let (k, q) = (S::splat(*k.add(r)), S::splat(*q.add(r)));
                    for j in 0..N {
                        let s = Self::change::<S>(row.add(j * LANES), decay, k, delta[j]);
                        y[j] = S::fma(q, s, y[j]);
                    }
                }
            }
            for j in 0..N {
                S::store_f32(carry.as_mut_ptr().add(j * LANES), held[j]);
                S::store_f32(v.as_mut_ptr().add(j * LANES), y[j]);
            }
        }
    }

    /// Changes a vector of the state, and returns it.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: `p` is readable and writable for 16 floats.
    #[inline(always)]
    unsafe fn change<S: Simd>(p: *mut f32, decay: S::F, k: S::F, delta: S::F) -> S::F {
        // SAFETY: the contract is this one's.
        unsafe {
            let s = S::fma(k, delta, S::mul(decay, S::load_f32(p)));
            S::store_f32(p, s);
            s
        }
    }
}
