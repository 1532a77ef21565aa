//! Launches of fused products of a few rows of activations.

use super::Cuda;
use super::driver::DevicePtr;
use super::elementwise;
use super::kernels::MATVEC_STATIC;
use super::matrix::{Layout, Matrix, Part};
use super::ranks::{self, Member, RanksArgs};
use crate::{Activation, DType, Norm, NormKind, Result, Tensor};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rows of activations that the kernel takes.
const MAX_ROWS: usize = 8;
/// Most passes over the weights that more rows take: up to here they are faster than the tensor cores, for which weights are decoded.
const MAX_PASSES: usize = 2;
/// Bytes of the ring of weights in shared memory: see matvec.cu.
fn ring(cuda: &Cuda, layout: u32, large: bool) -> usize {
    match (cuda.driver.is_hopper(), layout, large) {
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
/// Threads of a block at least.
const MIN_THREADS: usize = 256;
/// Bytes of 64 activations as integers.
const X_PIECE: usize = 80;

/// What a block has of shared memory beside what it asks for: variables, and a part that is the system's.
const BLOCK_BYTES: usize = MATVEC_STATIC + SYSTEM_BYTES;
const SYSTEM_BYTES: usize = 1 << 10;

/// Shared memory of a multiprocessor.
fn shared_memory(cuda: &Cuda) -> usize {
    cuda.driver.max_shared_bytes() + SYSTEM_BYTES
}

/// The product that was launched last, whose blocks may still run when those of the next one look for a place.
///
/// There is one block to a multiprocessor. Where it finds no room beside the block before, it waits until that ends. Then those that end
/// first would get two, which take twice as long as all others. So such a block asks for more than half of the shared memory.
#[derive(Debug)]
pub(super) struct ProductBefore(AtomicUsize);

impl Default for ProductBefore {
    fn default() -> Self {
        Self(AtomicUsize::new(Self::UNKNOWN))
    }
}

impl ProductBefore {
    /// Other kernels came between. They may leave room on some multiprocessors only.
    const UNKNOWN: usize = usize::MAX / 2;

    /// What a block should ask for that needs `shared` bytes.
    fn beside(&self, cuda: &Cuda, shared: usize) -> usize {
        alone_of_its_kind(shared_memory(cuda), self.0.load(Ordering::Relaxed), shared)
    }

    fn is(&self, shared: usize) {
        self.0.store(shared + BLOCK_BYTES, Ordering::Relaxed);
    }

    /// Another kernel was launched.
    pub(super) fn forget(&self) {
        self.0.store(Self::UNKNOWN, Ordering::Relaxed);
    }

    /// Launches a kernel that leaves each multiprocessor as much room as the others.
    pub(super) fn keep<T>(&self, launch: impl FnOnce() -> T) -> T {
        let before = self.0.load(Ordering::Relaxed);
        let launched = launch();
        self.0.store(before, Ordering::Relaxed);
        launched
    }
}

/// What a block that needs `shared` bytes should ask for, of a multiprocessor's `all`, where one has `before`: it fits beside that, or two
/// of its kind do not fit.
fn alone_of_its_kind(all: usize, before: usize, shared: usize) -> usize {
    match shared + BLOCK_BYTES + before <= all {
        true => shared,
        false => shared.max(all / 2 + 1 - SYSTEM_BYTES),
    }
}

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
    large_ring: u32,
    inv_n: f32,
    eps: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ArgsOfRanks {
    product: Args,
    ranks: RanksArgs,
}

/// What happens to the product.
#[derive(Clone, Copy)]
pub(super) enum Epilogue {
    /// It is written.
    Store,
    /// It is added to what is there.
    Add,
    /// Every rank's is added to what is there, where [`Plan::can_add_ranks`].
    AddRanks,
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
            Self::AddRanks => 3,
        }
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<PartArgs>,
    n_blocks: usize,
    n_in: usize,
    y_stride: usize,
    m: usize,
    /// Rows of one launch, limited by shared memory.
    rows: usize,
    ring: usize,
    has_large_ring: bool,
    shared_bytes_per_row: usize,
    /// Outputs of a block at most.
    max_outs: usize,
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
    let n_groups = |n_in: usize| if is_plain { n_in.div_ceil(1024) } else { (n_in / 64).div_ceil(32) };
    let x_bytes = |n_in: usize| if is_plain { 4 * n_in } else { n_in / 64 * X_PIECE };
    // What a block has beside its ring, where `n_out` are shared out.
    let beside_ring = |n_in: usize, n_out: usize| {
        x_bytes(n_in) + 4 * n_out.div_ceil(cuda.driver.n_multiprocessors() as usize) * n_groups(n_in)
    };
    let ring = |large| parts.iter().map(|p| ring(cuda, p.layout, large)).max().expect("a matrix has parts");
    // A gate's product is followed by one back to the width that it came from.
    let both = beside_ring(w.n_in, w.n_out) + beside_ring(w.n_out / 2, w.n_in) + 2 * BLOCK_BYTES;
    let has_large_ring = gate && ring(true) + ring(false) + both <= shared_memory(cuda);
    let ring = ring(has_large_ring);
    let (n_groups, x_bytes) = (n_groups(w.n_in), x_bytes(w.n_in));
    let room = cuda.kernels.matvec_shared.saturating_sub(ring);
    let (blocks, (rows, shared_bytes_per_row, max_outs)) = spread(cuda, &spans, &bytes, |n_out| {
        let max_sums = n_out * if gate { 2 } else { 1 } * n_groups;
        let per_row = x_bytes + 4 * max_sums;
        let rows = (room / per_row.max(1)).min(m).min(MAX_ROWS);
        (rows == m.min(MAX_ROWS) || (rows > 0 && 4 * max_sums <= x_bytes)).then_some((rows, per_row, n_out))
    })?;
    let mut n_blocks = 0;
    for (part, n) in parts.iter_mut().zip(blocks) {
        part.first_block = n_blocks as u32;
        n_blocks += n;
    }
    Some(Plan {
        parts,
        n_blocks,
        n_in: w.n_in,
        y_stride,
        m,
        rows,
        ring,
        has_large_ring,
        shared_bytes_per_row,
        max_outs,
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
    /// Whether the kernel adds up what all ranks have. A thread has one output then; and it must be of one row, so that blocks wait for
    /// each other in one order, whatever kernels other ranks have.
    pub(super) fn can_add_ranks(&self, cuda: &Cuda) -> bool {
        let reaches = cuda.member.as_ref().is_some_and(|m| m.ranks().is_some());
        let fits = self.max_outs <= MIN_THREADS
            && self.n_blocks <= ranks::MAX_BLOCKS
            && self.y_stride <= ranks::PLACES;
        reaches && self.m == 1 && fits
    }

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
        // In a model all products of one row choose alike, by the width of the residual stream: so they are one kernel, whose instructions
        // stay near.
        let width = match epilogue {
            Epilogue::Add | Epilogue::AddRanks => self.y_stride,
            Epilogue::Store | Epilogue::Gate(_) => self.n_in,
        };
        let is_large = width > GROUP;
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
                large_ring: u32::from(self.has_large_ring),
                inv_n: 1.0 / self.n_in as f32,
                eps: norm.map_or(0.0, |n| n.eps),
            };
            let shared = self.ring + m * self.shared_bytes_per_row;
            let shared = if m == 1 { cuda.product_before.beside(cuda, shared) } else { shared };
            let kernels = &cuda.kernels;
            let ([f, f_ranks], threads) = match (m, self.parts[0].layout) {
                (2.., _) => ([kernels.matvec_8; 2], 384),
                // F16, BF16, Q8_0.
                (_, 0 | 1 | 3) => (kernels.matvec_256, 256),
                _ if is_large => (kernels.matvec_512, 512),
                _ => (kernels.matvec_384, 384),
            };
            let (blocks, ranks) = ([self.n_blocks, 1, 1], cuda.member.as_ref().and_then(Member::ranks));
            match ranks.filter(|_| m == 1) {
                None => {
                    // SAFETY: the callers checked the shapes of x and y; the parts hold the rows that they say.
                    unsafe { cuda.launch_shared(f, blocks, threads, shared, &args)? }
                }
                Some(ranks) => {
                    let args = ArgsOfRanks { product: args, ranks };
                    // SAFETY: as above; mailboxes have places for as many numbers as `can_add_ranks` allows.
                    unsafe { cuda.launch_shared(f_ranks, blocks, threads, shared, &args)? }
                }
            }
            cuda.product_before.is(shared);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_beside_the_one_before_or_one_at_a_time() {
        let all = 228 << 10;
        for (before, shared) in [
            (0, 100),
            (120 << 10, 100 << 10),
            (120 << 10, 107 << 10),
            (110 << 10, 125 << 10),
            (usize::MAX / 2, 100),
        ] {
            let asked = alone_of_its_kind(all, before, shared);
            assert!(asked >= shared && asked + BLOCK_BYTES <= all, "{shared} beside {before}: {asked}");
            let fits = asked + BLOCK_BYTES + before <= all;
            assert!(fits || 2 * (asked + SYSTEM_BYTES) > all, "{shared} beside {before}: {asked}");
        }
    }
}
