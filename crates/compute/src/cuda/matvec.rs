//! Launches of fused products of a few rows of activations.

use super::Cuda;
use super::driver::DevicePtr;
use super::elementwise;
use super::matrix::{Layout, Matrix, Part};
use crate::{Activation, DType, Norm, NormKind, Result, Tensor};

/// Rows of activations that the kernel takes.
const MAX_ROWS: usize = 8;
/// Most passes over the weights that more rows take: up to here they are faster than the tensor cores, for which weights are decoded.
const MAX_PASSES: usize = 2;
/// Bytes of the ring of weights in shared memory: see matvec.cu.
fn ring(cuda: &Cuda, layout: u32, gate: bool) -> usize {
    match (cuda.driver.is_hopper(), layout, gate) {
        (false, ..) => 60 << 10,
        // F16, BF16.
        (true, 0 | 1, _) => 64 << 10,
        // Q8_0, Q5_K.
        (true, 3 | 5, _) => 92 << 10,
        (true, _, false) => 84 << 10,
        (true, _, true) => 108 << 10,
    }
}
/// Numbers in a packed group.
const GROUP: usize = 2048;
/// Parts that the kernel takes.
const MAX_PARTS: usize = 4;
/// Bytes of 64 activations as integers.
const X_PIECE: usize = 80;

#[derive(Clone, Copy)]
#[repr(C)]
struct PartArgs {
    w: DevicePtr,
    row_bytes: u64,
    layout: u32,
    first_out: u32,
    n_out: u32,
    first_block: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    x: DevicePtr,
    norm_weight: DevicePtr,
    bias: DevicePtr,
    parts: [PartArgs; MAX_PARTS],
    n_parts: u32,
    n_blocks: u32,
    n_in: u32,
    m: u32,
    y_stride: u32,
    epilogue: u32,
    activation: u32,
    inv_n: f32,
    eps: f32,
}

/// What happens to the product.
#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    /// It is written.
    Store,
    /// It is added to what is there.
    Add,
    /// The first half of the outputs goes through the function and is multiplied with the second.
    Gate(Activation),
}

impl Epilogue {
    /// The number that kernels know it by.
    pub(super) fn code(self) -> u32 {
        match self {
            Self::Store => 0,
            Self::Add => 1,
            Self::Gate(_) => 2,
        }
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<PartArgs>,
    n_blocks: usize,
    is_large: bool,
    n_in: usize,
    y_stride: usize,
    m: usize,
    /// Rows of one launch, limited by shared memory.
    rows: usize,
    ring: usize,
    shared_bytes_per_row: usize,
}

/// The number that the kernel knows a part's layout by; `None` where it knows it not.
pub(super) fn code(part: &Part, n_in: usize) -> Option<u32> {
    match (part.layout, part.dtype) {
        (Layout::Blocks, DType::F16) if n_in.is_multiple_of(8) => Some(0),
        (Layout::Blocks, DType::BF16) if n_in.is_multiple_of(8) => Some(1),
        (Layout::Packed, DType::Q4_0) => Some(2),
        (Layout::Packed, DType::Q8_0) => Some(3),
        (Layout::Packed, DType::Q4_K) => Some(4),
        (Layout::Packed, DType::Q5_K) => Some(5),
        (Layout::Packed, DType::Q6_K) => Some(6),
        _ => None,
    }
}

/// Whether the kernel can normalize the inputs of this matrix.
pub(super) fn can_fuse(norm: &Norm<Cuda>, w: &Matrix) -> bool {
    norm.kind == NormKind::Rms && norm.bias.is_none() && norm.weight.len() == w.n_in
}

/// The product of `m` rows with a matrix; `None` where it is none for this kernel.
pub(super) fn plan(cuda: &Cuda, w: &Matrix, m: usize) -> Option<Plan> {
    let parts = w.parts.iter().map(|p| args(p, w.n_in)).collect::<Option<Vec<_>>>()?;
    finish(cuda, w, m, parts, w.n_out, false)
}

/// The same for a matrix whose first half of outputs are the gate's.
pub(super) fn gate_plan(cuda: &Cuda, w: &Matrix, m: usize) -> Option<Plan> {
    let half = w.n_out / 2;
    let part = |(part, first): (&Part, usize)| {
        let all = args(part, w.n_in)?;
        Some(PartArgs { w: all.w.offset(first * part.row_bytes), n_out: half as u32, ..all })
    };
    let [gate, up] = w.halves()?.map(part);
    let parts = vec![gate?, up?];
    if (parts[0].layout, parts[0].row_bytes) != (parts[1].layout, parts[1].row_bytes) {
        return None;
    }
    finish(cuda, w, m, parts, half, true)
}

fn args(part: &Part, n_in: usize) -> Option<PartArgs> {
    Some(PartArgs {
        w: part.weights.ptr(),
        row_bytes: part.row_bytes as u64,
        layout: code(part, n_in)?,
        first_out: part.first_out as u32,
        n_out: part.n_out as u32,
        first_block: 0,
    })
}

fn finish(
    cuda: &Cuda,
    w: &Matrix,
    m: usize,
    mut parts: Vec<PartArgs>,
    y_stride: usize,
    gate: bool,
) -> Option<Plan> {
    if cuda.exact || w.n_experts != 1 || m > MAX_ROWS * MAX_PASSES || parts.len() > MAX_PARTS || w.n_in == 0 {
        return None;
    }
    // Part by part; a gate's outputs are one part's, with two rows of weights each.
    let spans: Vec<usize> = match gate {
        true => vec![parts[0].n_out as usize],
        false => parts.iter().map(|p| p.n_out as usize).collect(),
    };
    let bytes: Vec<usize> = spans.iter().zip(&parts).map(|(n, p)| n * p.row_bytes as usize).collect();
    let is_plain = parts[0].layout < 2;
    if parts.iter().any(|p| (p.layout < 2) != is_plain) {
        return None;
    }
    let (n_groups, x_bytes) = match is_plain {
        true => (w.n_in.div_ceil(1024), 4 * w.n_in),
        false => ((w.n_in / 64).div_ceil(32), w.n_in / 64 * X_PIECE),
    };
    let ring = parts.iter().map(|p| ring(cuda, p.layout, gate)).max()?;
    let room = cuda.kernels.matvec_shared.saturating_sub(ring);
    let (blocks, (rows, shared_bytes_per_row)) = spread(cuda, &spans, &bytes, |n_out| {
        let max_sums = n_out * if gate { 2 } else { 1 } * n_groups;
        let per_row = x_bytes + 4 * max_sums;
        let rows = (room / per_row.max(1)).min(m).min(MAX_ROWS);
        (rows == m.min(MAX_ROWS) || (rows > 0 && 4 * max_sums <= x_bytes)).then_some((rows, per_row))
    })?;
    let mut n_blocks = 0;
    for (part, n) in parts.iter_mut().zip(blocks) {
        part.first_block = n_blocks as u32;
        n_blocks += n;
    }
    Some(Plan {
        parts,
        n_blocks,
        // In a model all products choose alike, by its width: so they are one kernel, whose instructions stay near.
        is_large: w.n_in.min(w.n_out) > GROUP,
        n_in: w.n_in,
        y_stride,
        m,
        rows,
        ring,
        shared_bytes_per_row,
    })
}

/// The blocks of each part, by their bytes: one to a multiprocessor, and more until `fit`, which gets the most outputs that one has, finds
/// room for these; and what it makes of them.
pub(super) fn spread<T>(
    cuda: &Cuda,
    spans: &[usize],
    bytes: &[usize],
    fit: impl Fn(usize) -> Option<T>,
) -> Option<(Vec<usize>, T)> {
    let mut wanted = cuda.driver.n_multiprocessors() as usize;
    loop {
        let blocks = share(wanted, spans, bytes);
        let most = spans.iter().zip(&blocks).map(|(n_out, &n)| n_out.div_ceil(n)).max()?;
        if let Some(found) = fit(most) {
            return Some((blocks, found));
        }
        if wanted > 1 << 20 {
            return None;
        }
        wanted *= 2;
    }
}

/// Shares `wanted` blocks among parts by their bytes; each part of some outputs gets one at least, and one to an output at most.
fn share(wanted: usize, spans: &[usize], bytes: &[usize]) -> Vec<usize> {
    let total: usize = bytes.iter().sum();
    let mut blocks: Vec<usize> = spans
        .iter()
        .zip(bytes)
        .map(|(&n_out, &bytes)| (wanted * bytes / total.max(1)).clamp(1, n_out.max(1)))
        .collect();
    // What rounding left goes to the parts whose blocks have most to do.
    for _ in blocks.iter().sum()..wanted {
        let busiest =
            (0..spans.len()).filter(|&i| blocks[i] < spans[i]).max_by_key(|&i| bytes[i] / blocks[i]);
        let Some(i) = busiest else { break };
        blocks[i] += 1;
    }
    blocks
}

impl Plan {
    /// `x` [m, n_in], `y` [m, outputs].
    pub(super) fn run(
        &self,
        cuda: &Cuda,
        y: DevicePtr,
        x: DevicePtr,
        norm: Option<&Norm<Cuda>>,
        bias: Option<&Tensor<Cuda>>,
        epilogue: Epilogue,
    ) -> Result<()> {
        let none =
            PartArgs { w: DevicePtr::NULL, row_bytes: 0, layout: 0, first_out: 0, n_out: 0, first_block: 0 };
        let mut parts = [none; MAX_PARTS];
        parts[..self.parts.len()].copy_from_slice(&self.parts);
        for first in (0..self.m).step_by(self.rows.max(1)) {
            let m = self.rows.min(self.m - first);
            let args = Args {
                y: y.offset(4 * first * self.y_stride),
                x: x.offset(4 * first * self.n_in),
                norm_weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
                bias: bias.map_or(DevicePtr::NULL, Tensor::ptr),
                parts,
                n_parts: self.parts.len() as u32,
                n_blocks: self.n_blocks as u32,
                n_in: self.n_in as u32,
                m: m as u32,
                y_stride: self.y_stride as u32,
                epilogue: epilogue.code(),
                activation: match epilogue {
                    Epilogue::Gate(f) => elementwise::code(f),
                    _ => 0,
                },
                inv_n: 1.0 / self.n_in as f32,
                eps: norm.map_or(0.0, |n| n.eps),
            };
            let shared = self.ring + m * self.shared_bytes_per_row;
            let (f, threads) = match (m, self.parts[0].layout) {
                (2.., _) => (cuda.kernels.matvec_8, 384),
                // F16, BF16, Q8_0.
                (_, 0 | 1 | 3) => (cuda.kernels.matvec_256, 256),
                _ if self.is_large => (cuda.kernels.matvec_512, 512),
                _ => (cuda.kernels.matvec_384, 384),
            };
            // SAFETY: the callers checked the shapes of x and y; the parts hold the rows that they say.
            unsafe { cuda.launch_shared(f, [self.n_blocks, 1, 1], threads, shared, &args)? };
        }
        Ok(())
    }
}
