//! What every operation means, in plain loops over f32: read this first.
//!
//! Slow on purpose. Sums that matter are taken in f64, so that a fast backend's error can be told from this one's.

use crate::math::{SWIGLU_ALPHA, SWIGLU_LIMIT, argmax, erf, rotate, route, sigmoid, softplus};
use crate::sampling::Samplers;
use crate::{
    Activation, AttentionParams, AttentionTemperature, Batch, BatchLimits, Blocks, CacheShape, Capture,
    Chosen, Collectives, ConvKind, DType, DeltaInput, DeltaShape, Device, DeviceMemory, Error, Experts,
    GatedNorm, HostBatch, KvLayer, LatentPrep, MatrixPart, MoeScratch, Norm, NormKind, Ops, Pooling,
    PreviousRow, Profile, QkvPrep, Result, ShortConv, SsmInput, SsmShape, Tensor,
};
use std::convert::Infallible;

/// The specification as a backend: unoptimized, single-threaded, host memory.
///
/// Weights are decoded to f32 when loaded. A cache of another type than `F32` is kept as f32 numbers rounded through that type.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reference;

/// A matrix of the [`Reference`] backend: `[n_experts, n_out, n_in]` in f32.
#[derive(Debug)]
pub struct DenseMatrix {
    n_experts: usize,
    n_out: usize,
    n_in: usize,
    values: Vec<f32>,
}

impl DenseMatrix {
    fn row(&self, expert: usize, row: usize) -> &[f32] {
        &self.values[(expert * self.n_out + row) * self.n_in..][..self.n_in]
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() as f32
}

/// One value through an activation function.
fn activation(f: Activation, x: f32) -> f32 {
    match f {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let sqrt_2_over_pi = (2.0 / std::f32::consts::PI).sqrt();
            0.5 * x * (1.0 + (sqrt_2_over_pi * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::ReluSquared => x.max(0.0).powi(2),
        Activation::Relu => x.max(0.0),
        Activation::ClampedSwiglu => panic!("clamped SwiGLU takes a gate and its up"),
    }
}

/// A vector divided by its length; the reference library's epsilon keeps zeros from becoming NaN.
fn unit(x: &[f32]) -> Vec<f32> {
    let inv = 1.0 / (f64::from(dot(x, x)) + 1e-6).sqrt();
    x.iter().map(|&x| (f64::from(x) * inv) as f32).collect()
}

/// One gate and its up through an activation function.
fn gated(f: Activation, gate: f32, up: f32) -> f32 {
    if f != Activation::ClampedSwiglu {
        return activation(f, gate) * up;
    }
    let gate = if gate > SWIGLU_LIMIT { SWIGLU_LIMIT } else { gate };
    gate / (1.0 + (-SWIGLU_ALPHA * gate).exp()) * (up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT) + 1.0)
}

/// Normalizes one row in place.
fn norm_row(row: &mut [f32], kind: NormKind, weight: &[f32], bias: Option<&[f32]>, eps: f32) {
    assert_eq!(row.len(), weight.len());
    let n = row.len() as f64;
    let mean = match kind {
        NormKind::Rms => 0.0,
        NormKind::Layer => row.iter().map(|&x| f64::from(x)).sum::<f64>() / n,
    };
    let var = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
    let inv = 1.0 / (var + f64::from(eps)).sqrt();
    for (i, x) in row.iter_mut().enumerate() {
        let normed = ((f64::from(*x) - mean) * inv) as f32;
        *x = normed * weight[i] + bias.map_or(0.0, |b| b[i]);
    }
}

/// Writes a head of a cache, the `index`-th of its vectors, rounded through the cache's type.
/// Adds a row of `table` to each row of `x`: those that `rows` names.
fn add_rows(x: &mut Tensor<Reference>, table: &Tensor<Reference>, rows: &[u32]) {
    let n = x.row_len();
    for (row, &r) in x.buffer_mut().chunks_exact_mut(n).zip(rows) {
        for (x, &w) in row.iter_mut().zip(&table.buffer()[r as usize * n..][..n]) {
            *x += w;
        }
    }
}

fn store(cache: &mut Tensor<Reference>, index: usize, head: &[f32]) -> Result<()> {
    let spec = cache.dtype().spec();
    let unsupported = Error::Unsupported { op: "store_kv", dtype: spec.dtype, backend: Reference.name() };
    let mut rounded = vec![0u8; head.len() / spec.block_len * spec.block_bytes];
    spec.quantize.ok_or(unsupported)?(head, &mut rounded, None);
    (spec.dequantize)(&rounded, &mut cache.buffer_mut()[index * head.len()..][..head.len()]);
    Ok(())
}

impl Device for Reference {
    type Buffer = Vec<f32>;
    type Matrix = DenseMatrix;
    type Batch = HostBatch;
    type Choices = Vec<Chosen>;
    type Operand = Infallible;

    fn name(&self) -> &'static str {
        "reference"
    }

    fn describe(&self) -> String {
        "reference: plain f32 loops on one thread".into()
    }

    fn memory(&self) -> DeviceMemory {
        DeviceMemory { free: usize::MAX, total: usize::MAX }
    }

    fn zeros(&self, dtype: DType, shape: &[usize]) -> Result<Tensor<Self>> {
        Ok(Tensor::from_buffer(vec![0.0; shape.iter().product()], dtype, shape))
    }

    fn upload(&self, shape: &[usize], values: &[f32]) -> Result<Tensor<Self>> {
        assert_eq!(values.len(), shape.iter().product::<usize>(), "{shape:?}");
        Ok(Tensor::from_buffer(values.to_vec(), DType::F32, shape))
    }

    fn download(&self, out: &mut [f32], x: &Tensor<Self>) -> Result<()> {
        out.copy_from_slice(&x.buffer()[..x.len()]);
        Ok(())
    }

    fn matrix(&self, parts: Vec<MatrixPart>) -> Result<DenseMatrix> {
        let (n_experts, n_in) = (parts[0].n_experts, parts[0].n_in);
        let n_out = parts.iter().map(|p| p.n_out).sum();
        for p in &parts {
            assert_eq!((p.n_experts, p.n_in), (n_experts, n_in), "parts of one matrix");
            p.check()?;
        }
        let mut values = vec![0.0; n_experts * n_out * n_in];
        let mut done = 0;
        for e in 0..n_experts {
            for p in &parts {
                let len = p.n_out * n_in;
                let bytes = p.bytes.len() / n_experts;
                (p.dtype.spec().dequantize)(&p.bytes[e * bytes..][..bytes], &mut values[done..done + len]);
                done += len;
            }
        }
        Ok(DenseMatrix { n_experts, n_out, n_in, values })
    }

    fn matrix_memory(&self, _: DType, shape: [usize; 3]) -> usize {
        shape.into_iter().fold(4, usize::saturating_mul)
    }

    fn matrix_bytes(&self, w: &DenseMatrix) -> usize {
        w.values.len() * 4
    }

    fn copy_block(&self, kv: &mut KvLayer<Self>, to: usize, from: usize) -> Result<()> {
        for t in kv.tensors_mut() {
            let n = t.row_len();
            t.buffer_mut().copy_within(from * n..(from + 1) * n, to * n);
        }
        Ok(())
    }

    fn row_bytes(&self, x: &Tensor<Self>) -> usize {
        x.row_len() * size_of::<f32>()
    }

    fn read_row(&self, out: &mut [u8], x: &Tensor<Self>, row: usize) -> Result<()> {
        let values = &x.buffer()[row * x.row_len()..][..x.row_len()];
        out.copy_from_slice(bytemuck::cast_slice(values));
        Ok(())
    }

    fn write_row(&self, x: &mut Tensor<Self>, row: usize, bytes: &[u8]) -> Result<()> {
        let n = x.row_len();
        let values = &mut x.buffer_mut()[row * n..][..n];
        bytemuck::cast_slice_mut(values).copy_from_slice(bytes);
        Ok(())
    }

    fn new_batch(&self, limits: BatchLimits, cache: CacheShape) -> Result<HostBatch> {
        Ok(HostBatch::new(limits, cache))
    }

    fn stage(&self, staged: &mut HostBatch, batch: &Batch) -> Result<()> {
        staged.set(batch)?;
        staged.set_deferred();
        Ok(())
    }
}

impl Ops for Reference {
    fn embed(&self, y: &mut Tensor<Self>, table: &DenseMatrix, batch: &HostBatch, scale: f32) -> Result<()> {
        let n = y.row_len();
        for (row, &token) in y.buffer_mut().chunks_exact_mut(n).zip(batch.tokens()) {
            for (y, &w) in row.iter_mut().zip(table.row(0, token as usize)) {
                *y = w * scale;
            }
        }
        Ok(())
    }

    fn add_positions(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        add_rows(x, table, batch.positions());
        Ok(())
    }

    fn add_token_types(&self, x: &mut Tensor<Self>, table: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        assert_eq!(batch.token_types().len(), x.rows());
        add_rows(x, table, batch.token_types());
        Ok(())
    }

    fn rope_angles(
        &self,
        y: &mut Tensor<Self>,
        f: &Tensor<Self>,
        batch: &HostBatch,
        scale: f32,
    ) -> Result<()> {
        let n = f.len();
        for (row, &p) in y.buffer_mut().chunks_exact_mut(2 * n).zip(batch.positions()) {
            for i in 0..n {
                // The reference library takes this product in f32, and so do we.
                let angle = p as f32 * f.buffer()[i];
                row[i] = angle.cos() * scale;
                row[n + i] = angle.sin() * scale;
            }
        }
        Ok(())
    }

    fn norm(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, norm: &Norm<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        let len = x.len();
        y.buffer_mut()[..len].copy_from_slice(&x.buffer()[..len]);
        self.norm_in_place(y, norm)
    }

    fn norm_columns(&self, x: &mut Tensor<Self>, start: usize, norm: &Norm<Self>) -> Result<()> {
        let (n, len) = (x.row_len(), x.len());
        for row in x.buffer_mut()[..len].chunks_exact_mut(n) {
            norm_row(
                &mut row[start..start + norm.weight.len()],
                norm.kind,
                norm.weight.buffer(),
                norm.bias.as_ref().map(|b| &b.buffer()[..]),
                norm.eps,
            );
        }
        Ok(())
    }

    fn add(&self, y: &mut Tensor<Self>, x: &Tensor<Self>) -> Result<()> {
        assert_eq!(y.shape(), x.shape());
        let len = y.len();
        y.buffer_mut()[..len].iter_mut().zip(x.buffer()).for_each(|(y, x)| *y += x);
        Ok(())
    }

    fn matmul(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        w: &DenseMatrix,
        bias: Option<&Tensor<Self>>,
    ) -> Result<()> {
        assert_eq!((x.row_len(), y.row_len(), x.rows()), (w.n_in, w.n_out, y.rows()));
        assert_eq!(w.n_experts, 1);
        for t in 0..x.rows() {
            let x = &x.buffer()[t * w.n_in..][..w.n_in];
            let y = &mut y.buffer_mut()[t * w.n_out..][..w.n_out];
            for (i, y) in y.iter_mut().enumerate() {
                *y = dot(x, w.row(0, i)) + bias.map_or(0.0, |b| b.buffer()[i]);
            }
        }
        Ok(())
    }

    fn store_kv(
        &self,
        qkv: &mut Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &HostBatch,
        prep: QkvPrep<'_, Self>,
    ) -> Result<()> {
        let h = prep.heads;
        let (n_q, n_kv, dim) = (h.n_heads, h.n_kv_heads, h.head_dim);
        assert_eq!(qkv.row_len(), h.qkv_len());
        let block_size = kv.k.shape()[2];
        for t in 0..qkv.rows() {
            let row = &mut qkv.buffer_mut()[t * h.qkv_len()..][..h.qkv_len()];
            for (i, head) in row[..(n_q + n_kv) * dim].chunks_exact_mut(dim).enumerate() {
                if let Some((q_norm, k_norm)) = prep.qk_norm {
                    let norm = if i < n_q { q_norm } else { k_norm };
                    norm_row(
                        head,
                        norm.kind,
                        norm.weight.buffer(),
                        norm.bias.as_ref().map(|b| &b.buffer()[..]),
                        norm.eps,
                    );
                }
                if let Some((angles, style)) = prep.angles {
                    rotate(head, &angles.buffer()[t * angles.row_len()..][..angles.row_len()], style);
                }
            }
            let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
            let pos = batch.positions()[t] as usize;
            let block = batch.block_table(seq)[pos / block_size] as usize;
            let keys_and_values = row[n_q * dim..].chunks_exact((n_kv * dim).max(1));
            for (cache, heads) in kv.tensors_mut().zip(keys_and_values) {
                for (i, head) in heads.chunks_exact(dim).enumerate() {
                    store(cache, (block * n_kv + i) * block_size + pos % block_size, head)?;
                }
            }
        }
        Ok(())
    }

    fn store_latent(
        &self,
        queries: &mut Tensor<Self>,
        q: &Tensor<Self>,
        latent: &Tensor<Self>,
        kv: &mut KvLayer<Self>,
        batch: &HostBatch,
        prep: LatentPrep<'_, Self>,
    ) -> Result<()> {
        let LatentPrep { shape, norm, angles: (angles, style) } = prep;
        let (q_dim, key_dim, block_size) = (shape.q_dim(), shape.key_dim(), kv.k.shape()[2]);
        assert_eq!((q.row_len(), latent.row_len()), (shape.n_heads * q_dim, key_dim));
        assert_eq!((queries.row_len(), angles.row_len()), (shape.n_heads * key_dim, shape.rope_dim));
        for t in 0..q.rows() {
            let angles = &angles.buffer()[t * shape.rope_dim..][..shape.rope_dim];
            let from = q.buffer()[t * q.row_len()..][..q.row_len()].chunks_exact(q_dim);
            let n = queries.row_len();
            let to = queries.buffer_mut()[t * n..][..n].chunks_exact_mut(key_dim);
            for (from, to) in from.zip(to) {
                to[shape.kv_rank..].copy_from_slice(&from[shape.nope_dim..]);
                rotate(&mut to[shape.kv_rank..], angles, style);
            }
            let mut key = latent.buffer()[t * key_dim..][..key_dim].to_vec();
            let (vector, turning) = key.split_at_mut(shape.kv_rank);
            let bias = norm.bias.as_ref().map(|b| &b.buffer()[..]);
            norm_row(vector, norm.kind, norm.weight.buffer(), bias, norm.eps);
            rotate(turning, angles, style);
            let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
            let pos = batch.positions()[t] as usize;
            let block = batch.block_table(seq)[pos / block_size] as usize;
            store(&mut kv.k, block * block_size + pos % block_size, &key)?;
        }
        Ok(())
    }

    fn head_matmul(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, w: &DenseMatrix) -> Result<()> {
        let (x_len, y_len) = (x.row_len() / w.n_experts, y.row_len() / w.n_experts);
        assert_eq!((x.row_len(), y.row_len()), (x_len * w.n_experts, y_len * w.n_experts));
        assert_eq!(x.rows(), y.rows());
        for i in 0..x.rows() * w.n_experts {
            let x = &x.buffer()[i * x_len..][..w.n_in];
            let y = &mut y.buffer_mut()[i * y_len..][..w.n_out];
            y.iter_mut().enumerate().for_each(|(o, y)| *y = dot(x, w.row(i % w.n_experts, o)));
        }
        Ok(())
    }

    fn attention(
        &self,
        y: &mut Tensor<Self>,
        qkv: &Tensor<Self>,
        kv: &KvLayer<Self>,
        batch: &HostBatch,
        params: &AttentionParams,
        sinks: Option<&Tensor<Self>>,
    ) -> Result<()> {
        let h = params.heads;
        let dim = h.head_dim;
        let v_dim = y.row_len() / h.n_heads;
        let block_size = kv.k.shape()[2];
        for t in 0..qkv.rows() {
            let seq = &batch.seqs()[batch.seq_of_token()[t] as usize];
            let table = batch.block_table(seq);
            let seen = params.seen(batch.positions()[t] as usize, seq.start + seq.tokens.len());
            for head in 0..h.n_heads {
                let kv_head = head / (h.n_heads / h.n_kv_heads);
                let at = |pos: usize| {
                    let block = table[pos / block_size] as usize;
                    ((block * h.n_kv_heads + kv_head) * block_size + pos % block_size) * dim
                };
                let q = &qkv.buffer()[t * qkv.row_len() + head * dim..][..dim];
                let mut scores: Vec<f64> = seen
                    .clone()
                    .map(|p| {
                        let mut s = dot(q, &kv.k.buffer()[at(p)..][..dim]) * params.scale;
                        if params.alibi {
                            s -= params.slope(head) * (batch.positions()[t] as f32 - p as f32).abs();
                        }
                        f64::from(params.softcap.map_or(s, |cap| cap * (s / cap).tanh()))
                    })
                    .collect();
                let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks.buffer()[head]));
                let max = scores.iter().copied().fold(sink, f64::max);
                scores.iter_mut().for_each(|s| *s = (*s - max).exp());
                let sum = scores.iter().sum::<f64>() + (sink - max).exp();
                for d in 0..v_dim {
                    let values = seen.clone().map(|p| f64::from(kv.values().buffer()[at(p) + d]));
                    let out: f64 = scores.iter().zip(values).map(|(s, v)| s * v).sum();
                    y.buffer_mut()[(t * h.n_heads + head) * v_dim + d] = (out / sum) as f32;
                }
            }
        }
        Ok(())
    }

    fn short_conv(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        conv: ShortConv<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
    ) -> Result<()> {
        let n = y.row_len();
        let width = conv.weight.rows();
        let tail_len = state.row_len();
        assert_eq!((conv.weight.row_len(), tail_len), (n, (width - 1) * n));
        for (seq, at) in batch.seqs().iter().zip(batch.states()) {
            // The inputs of the convolution: those in the slot, then those of the step.
            let mut inputs = match at.from {
                Some(slot) => state.buffer()[slot as usize * tail_len..][..tail_len].to_vec(),
                None => vec![0.0; tail_len],
            };
            for t in seq.tokens.clone() {
                let row = &x.buffer()[t * x.row_len()..][..x.row_len()];
                match conv.kind {
                    ConvKind::Silu => inputs.extend_from_slice(&row[..n]),
                    ConvKind::Gated => inputs.extend((0..n).map(|c| row[c] * row[2 * n + c])),
                }
            }
            for (i, t) in seq.tokens.clone().enumerate() {
                for c in 0..n {
                    let product = |j: usize| {
                        f64::from(conv.weight.buffer()[j * n + c]) * f64::from(inputs[(i + j) * n + c])
                    };
                    let bias = conv.bias.map_or(0.0, |bias| f64::from(bias.buffer()[c]));
                    let sum = ((0..width).map(product).sum::<f64>() + bias) as f32;
                    y.buffer_mut()[t * n + c] = match conv.kind {
                        ConvKind::Silu => activation(Activation::Silu, sum),
                        ConvKind::Gated => x.buffer()[t * x.row_len() + n + c] * sum,
                    };
                }
            }
            for write in batch.state_writes(at) {
                let tail = &inputs[write.n_tokens * n..][..tail_len];
                state.buffer_mut()[write.slot as usize * tail_len..][..tail_len].copy_from_slice(tail);
            }
        }
        Ok(())
    }

    fn delta_rule(
        &self,
        y: &mut Tensor<Self>,
        input: DeltaInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
        shape: &DeltaShape,
    ) -> Result<()> {
        let &DeltaShape { n_k_heads, n_v_heads, k_dim, v_dim, .. } = shape;
        let head_len = k_dim * v_dim;
        let slot_len = n_v_heads * head_len;
        assert_eq!((input.qkv.row_len(), y.row_len()), (shape.qkv_len(), shape.v_len()));
        assert_eq!(state.row_len(), slot_len);
        for (seq, at) in batch.seqs().iter().zip(batch.states()) {
            for head in 0..n_v_heads {
                let start = |slot: u32| slot as usize * slot_len + head * head_len;
                let mut s = match at.from {
                    Some(slot) => state.buffer()[start(slot)..][..head_len].to_vec(),
                    None => vec![0.0; head_len],
                };
                let k_head = shape.k_head(head);
                let mut writes = batch.state_writes(at).iter().peekable();
                for (i, t) in seq.tokens.clone().enumerate() {
                    let row = &input.qkv.buffer()[t * shape.qkv_len()..][..shape.qkv_len()];
                    let q = unit(&row[k_head * k_dim..][..k_dim]);
                    let k = unit(&row[(n_k_heads + k_head) * k_dim..][..k_dim]);
                    let v = &row[2 * n_k_heads * k_dim + head * v_dim..][..v_dim];
                    let rates = &input.rates.buffer()[t * input.rates.row_len() + input.rates_start..];
                    let beta = sigmoid(rates[head]);
                    let rate = softplus(rates[n_v_heads + head] + input.dt_bias.buffer()[head]);
                    let decay = (input.decay.buffer()[head] * rate).exp();
                    s.iter_mut().for_each(|s| *s *= decay);
                    let y = &mut y.buffer_mut()[t * n_v_heads * v_dim + head * v_dim..][..v_dim];
                    for (j, y) in y.iter_mut().enumerate() {
                        let column = |s: &[f32]| (0..k_dim).map(|i| s[i * v_dim + j]).collect::<Vec<_>>();
                        let delta = beta * (v[j] - dot(&k, &column(&s)));
                        (0..k_dim).for_each(|i| s[i * v_dim + j] += k[i] * delta);
                        *y = dot(&q, &column(&s)) / (k_dim as f32).sqrt();
                    }
                    while let Some(write) = writes.next_if(|w| w.n_tokens == i + 1) {
                        state.buffer_mut()[start(write.slot)..][..head_len].copy_from_slice(&s);
                    }
                }
            }
        }
        Ok(())
    }

    fn ssm_scan(
        &self,
        y: &mut Tensor<Self>,
        input: SsmInput<'_, Self>,
        state: &mut Tensor<Self>,
        batch: &HostBatch,
        shape: &SsmShape,
    ) -> Result<()> {
        let &SsmShape { n_heads, head_dim, n_groups, state_dim } = shape;
        let head_len = state_dim * head_dim;
        let slot_len = n_heads * head_len;
        assert_eq!((input.xbc.row_len(), y.row_len()), (shape.xbc_len(), shape.inner_len()));
        assert_eq!(state.row_len(), slot_len);
        for (seq, at) in batch.seqs().iter().zip(batch.states()) {
            for head in 0..n_heads {
                let start = |slot: u32| slot as usize * slot_len + head * head_len;
                let mut s = match at.from {
                    Some(slot) => state.buffer()[start(slot)..][..head_len].to_vec(),
                    None => vec![0.0; head_len],
                };
                let mut writes = batch.state_writes(at).iter().peekable();
                for (i, t) in seq.tokens.clone().enumerate() {
                    let row = &input.xbc.buffer()[t * shape.xbc_len()..][..shape.xbc_len()];
                    let x = &row[head * head_dim..][..head_dim];
                    let of_group = |first: usize| {
                        &row[shape.inner_len() + (first + shape.group(head)) * state_dim..][..state_dim]
                    };
                    let (b, c) = (of_group(0), of_group(n_groups));
                    let dt = input.dt.buffer()[t * input.dt.row_len() + input.dt_start + head];
                    let dt = input.dt_limits.time_step(dt + input.dt_bias.buffer()[head]);
                    let decay = (input.decay.buffer()[head] * dt).exp();
                    let y = &mut y.buffer_mut()[(t * n_heads + head) * head_dim..][..head_dim];
                    for (j, y) in y.iter_mut().enumerate() {
                        for (n, b) in b.iter().enumerate() {
                            let s = &mut s[n * head_dim + j];
                            *s = decay * *s + b * (dt * x[j]);
                        }
                        let column: Vec<f32> = (0..state_dim).map(|n| s[n * head_dim + j]).collect();
                        *y = dot(c, &column) + input.skip.buffer()[head] * x[j];
                    }
                    while let Some(write) = writes.next_if(|w| w.n_tokens == i + 1) {
                        state.buffer_mut()[start(write.slot)..][..head_len].copy_from_slice(&s);
                    }
                }
            }
        }
        Ok(())
    }

    fn gated_norm(
        &self,
        x: &mut Tensor<Self>,
        gate: &Tensor<Self>,
        start: usize,
        norm: GatedNorm<'_, Self>,
    ) -> Result<()> {
        let GatedNorm { norm, group_len, gate_first } = norm;
        let (n, rows) = (x.row_len(), x.rows());
        assert_eq!(rows, gate.rows());
        for (t, row) in x.buffer_mut().chunks_exact_mut(n).take(rows).enumerate() {
            let gate = &gate.buffer()[t * gate.row_len() + start..][..n];
            let multiply = |row: &mut [f32]| {
                row.iter_mut().zip(gate).for_each(|(x, &g)| *x *= activation(Activation::Silu, g));
            };
            if gate_first {
                multiply(row);
            }
            for (i, group) in row.chunks_exact_mut(group_len).enumerate() {
                // One group's weights serve all.
                let of_group =
                    |all: &Tensor<Self>| all.buffer()[i * group_len % all.len()..][..group_len].to_vec();
                let bias = norm.bias.as_ref().map(of_group);
                norm_row(group, norm.kind, &of_group(&norm.weight), bias.as_deref(), norm.eps);
            }
            if !gate_first {
                multiply(row);
            }
        }
        Ok(())
    }

    fn sigmoid_gate(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.shape(), gate.shape());
        let len = x.len();
        x.buffer_mut()[..len].iter_mut().zip(gate.buffer()).for_each(|(x, &g)| *x *= sigmoid(g));
        Ok(())
    }

    fn gated(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, f: Activation) -> Result<()> {
        let n = y.row_len();
        assert_eq!((x.row_len(), x.rows()), (2 * n, y.rows()));
        for (x, y) in x.buffer().chunks_exact(2 * n).zip(y.buffer_mut().chunks_exact_mut(n)).take(x.rows()) {
            for i in 0..n {
                y[i] = gated(f, x[i], x[n + i]);
            }
        }
        Ok(())
    }

    fn gate_columns(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        start: usize,
        f: Activation,
    ) -> Result<()> {
        let (n, rows) = (y.row_len(), y.rows());
        assert_eq!(x.rows(), rows);
        for (t, y) in y.buffer_mut().chunks_exact_mut(n).take(rows).enumerate() {
            let x = &x.buffer()[t * x.row_len() + start..][..n];
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = gated(f, *y, x));
        }
        Ok(())
    }

    fn activate(&self, x: &mut Tensor<Self>, f: Activation) -> Result<()> {
        let len = x.len();
        x.buffer_mut()[..len].iter_mut().for_each(|x| *x = activation(f, *x));
        Ok(())
    }

    fn moe(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        router: &Tensor<Self>,
        experts: &Experts<'_, Self>,
        _scratch: &mut MoeScratch<Self>,
    ) -> Result<()> {
        let &Experts { gate_up, gate_up_bias, down, down_bias, selection_bias, output_scale, params } =
            experts;
        let (n, inner) = (x.row_len(), down.n_in);
        let [selection_bias, output_scale] =
            [selection_bias, output_scale].map(|t| t.map(|t| &t.buffer()[..]));
        let biased = |x: f32, bias: Option<&Tensor<Self>>, i: usize| x + bias.map_or(0.0, |b| b.buffer()[i]);
        let mut chosen = Vec::new();
        for t in 0..x.rows() {
            let x = &x.buffer()[t * n..][..n];
            let out = &mut y.buffer_mut()[t * n..][..n];
            out.fill(0.0);
            let logits = &router.buffer()[t * router.row_len()..][..router.row_len()];
            route(logits, &params.router, selection_bias, output_scale, &mut chosen);
            for &(e, weight) in &chosen {
                let up_len = params.up_rows() * inner;
                let row = |i| biased(dot(x, gate_up.row(e, i)), gate_up_bias, e * up_len + i);
                let hidden = (0..inner).map(|i| match params.gated {
                    true => gated(params.activation, row(i), row(inner + i)),
                    false => activation(params.activation, row(i)),
                });
                let hidden: Vec<f32> = hidden.collect();
                for (i, out) in out.iter_mut().enumerate() {
                    *out += weight * biased(dot(&hidden, down.row(e, i)), down_bias, e * n + i);
                }
            }
        }
        Ok(())
    }

    fn select_rows(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, batch: &HostBatch) -> Result<()> {
        let n = x.row_len();
        for (i, &t) in batch.logit_tokens().iter().enumerate() {
            y.buffer_mut()[i * n..][..n].copy_from_slice(&x.buffer()[t as usize * n..][..n]);
        }
        Ok(())
    }

    fn select_previous(
        &self,
        y: &mut Tensor<Self>,
        before: &Tensor<Self>,
        here: &Tensor<Self>,
        batch: &HostBatch,
    ) -> Result<()> {
        let n = y.row_len();
        for (i, previous) in batch.previous().enumerate() {
            let y = &mut y.buffer_mut()[i * n..][..n];
            match previous {
                PreviousRow::Unknown => y.fill(0.0),
                PreviousRow::Before(row) => y.copy_from_slice(&before.buffer()[row as usize * n..][..n]),
                PreviousRow::Here(row) => y.copy_from_slice(&here.buffer()[row as usize * n..][..n]),
            }
        }
        Ok(())
    }

    fn pool(
        &self,
        y: &mut Tensor<Self>,
        x: &Tensor<Self>,
        batch: &HostBatch,
        pooling: Pooling,
    ) -> Result<()> {
        let n = x.row_len();
        for (i, seq) in batch.seqs().iter().enumerate() {
            let tokens = match pooling {
                Pooling::Mean => seq.tokens.clone(),
                Pooling::First => seq.tokens.start..seq.tokens.start + 1,
                Pooling::Last => seq.tokens.end - 1..seq.tokens.end,
            };
            for d in 0..n {
                let sum: f64 = tokens.clone().map(|t| f64::from(x.buffer()[t * n + d])).sum();
                y.buffer_mut()[i * n + d] = (sum / tokens.len() as f64) as f32;
            }
        }
        Ok(())
    }

    fn argmax(&self, batch: &mut HostBatch, logits: &Tensor<Self>) -> Result<()> {
        assert_eq!(logits.rows(), batch.logit_tokens().len());
        batch.set_chosen(logits.buffer()[..logits.len()].chunks_exact(logits.row_len()).map(argmax));
        Ok(())
    }

    fn stage_samplers(&self, batch: &mut HostBatch, samplers: &Samplers) -> Result<()> {
        assert_eq!(samplers.rows.len(), batch.logit_tokens().len());
        batch.set_samplers(samplers);
        Ok(())
    }

    fn sample(&self, batch: &mut HostBatch, logits: &mut Tensor<Self>) -> Result<()> {
        assert_eq!(logits.rows(), batch.logit_tokens().len());
        batch.sample(&logits.buffer()[..logits.len()], logits.row_len());
        Ok(())
    }

    fn fetch_choices(&self, batch: &mut HostBatch) -> Result<Vec<Chosen>> {
        Ok(batch.chosen().to_vec())
    }

    fn wait_for_choices(&self, choices: Vec<Chosen>, out: &mut Vec<Chosen>) -> Result<()> {
        out.extend(choices);
        Ok(())
    }

    fn softcap(&self, x: &mut Tensor<Self>, cap: f32) -> Result<()> {
        let len = x.len();
        x.buffer_mut()[..len].iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
        Ok(())
    }

    fn scale_by_position(
        &self,
        x: &mut Tensor<Self>,
        n: usize,
        batch: &HostBatch,
        temperature: AttentionTemperature,
    ) -> Result<()> {
        let row_len = x.row_len();
        for (row, &p) in x.buffer_mut().chunks_exact_mut(row_len).zip(batch.positions()) {
            row[..n].iter_mut().for_each(|x| *x *= temperature.factor(p));
        }
        Ok(())
    }

    fn scale_columns(&self, x: &mut Tensor<Self>, factors: &Tensor<Self>) -> Result<()> {
        let len = x.len();
        for row in x.buffer_mut()[..len].chunks_exact_mut(factors.len()) {
            row.iter_mut().zip(factors.buffer()).for_each(|(x, f)| *x *= f);
        }
        Ok(())
    }

    fn add_columns(&self, x: &mut Tensor<Self>, summands: &Tensor<Self>) -> Result<()> {
        assert_eq!(x.row_len(), summands.len());
        let len = x.len();
        for row in x.buffer_mut()[..len].chunks_exact_mut(summands.len()) {
            row.iter_mut().zip(summands.buffer()).for_each(|(x, s)| *x += s);
        }
        Ok(())
    }

    fn gate_rows(&self, x: &mut Tensor<Self>, gate: &Tensor<Self>) -> Result<()> {
        assert_eq!((gate.row_len(), gate.rows()), (1, x.rows()));
        let (n, len) = (x.row_len(), x.len());
        for (row, gate) in x.buffer_mut()[..len].chunks_exact_mut(n).zip(gate.buffer()) {
            row.iter_mut().for_each(|x| *x /= 1.0 + (-gate).exp());
        }
        Ok(())
    }

    fn scale(&self, x: &mut Tensor<Self>, factor: f32) -> Result<()> {
        let len = x.len();
        x.buffer_mut()[..len].iter_mut().for_each(|x| *x *= factor);
        Ok(())
    }
}

impl Collectives for Reference {
    fn all_reduce(&self, _: &mut Tensor<Self>) -> Result<()> {
        Ok(())
    }

    fn all_gather(&self, y: &mut Tensor<Self>, x: &Tensor<Self>, starts: &[usize]) -> Result<()> {
        assert_eq!((y.shape(), starts), (x.shape(), &[0, x.row_len()][..]));
        let len = x.len();
        y.buffer_mut()[..len].copy_from_slice(&x.buffer()[..len]);
        Ok(())
    }
}

impl Profile for Reference {}

impl Capture for Reference {}

impl Blocks for Reference {
    fn read_operand(&self, _: &mut Tensor<Self>, operand: Infallible) -> Result<()> {
        match operand {}
    }
}
