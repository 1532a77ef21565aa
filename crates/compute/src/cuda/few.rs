//! Launches of products of 2 to 8 rows of activations with packed weights on the tensor cores' integers.

use super::Cuda;
use super::driver::DevicePtr;
use super::elementwise;
use super::matrix::{Layout, Matrix, Part};
use super::matvec::{self, Epilogue};
use crate::{DType, Norm, Result, Tensor};

/// Parts that the kernels take.
const MAX_PARTS: usize = 4;
/// Rows of activations that the kernel takes.
const ROWS: usize = 8;
/// The first of the layouts of K types; they are the last.
const K_LAYOUTS: u32 = 4;
/// Pieces of 64 columns of a group of weights, and rows of a unit.
const GROUP: usize = 32;
const UNIT: usize = 16;
/// Columns of a block of activations, which those of a matrix are some times, and its bytes. A block of threads converts as many of one row.
const X_COLUMNS: usize = 256;
const X_BYTES: usize = 2560;
const ACTIVATION_THREADS: u32 = 32;
/// Threads of a block.
const THREADS: u32 = 576;
/// Teams of warps, each of which has units of its own in the ring.
const TEAMS: usize = 2;
/// Stages of the ring: at most, and as many as keep copies on their way.
const MAX_STAGES: usize = 8;
const ENOUGH_STAGES: usize = 4;
/// Bytes of scales of activations that the kernel keeps.
const X_SCALES: usize = 4096;
/// Numbers that sums will be added to, of which the kernel reads so many early.
const EARLY: usize = 256;

#[derive(Clone, Copy)]
#[repr(C)]
struct PartArgs {
    w: DevicePtr,
    row_bytes: u64,
    layout: u32,
    first_out: u32,
    n_out: u32,
    first_block: u32,
    group_bytes: u32,
    last_bytes: u32,
    pitch: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    x: DevicePtr,
    squares: DevicePtr,
    bias: DevicePtr,
    parts: [PartArgs; MAX_PARTS],
    n_parts: u32,
    n_blocks: u32,
    n_in: u32,
    m: u32,
    y_stride: u32,
    n_stages: u32,
    epilogue: u32,
    activation: u32,
    inv_n: f32,
    eps: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ActivationArgs {
    y: DevicePtr,
    squares: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    n: u32,
    of_32: u32,
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<PartArgs>,
    n_blocks: usize,
    n_in: usize,
    m: usize,
    y_stride: usize,
    n_stages: usize,
    shared_bytes: usize,
    /// Whether activations are rounded in blocks of 32, and not of 256.
    of_32: bool,
}

/// The product of `m` rows with a matrix; `None` where it is none for these kernels.
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
    if parts[0].layout != parts[1].layout {
        return None;
    }
    finish(cuda, w, m, parts, half, true)
}

/// Bytes of `size` pieces of a group.
fn group_bytes(dtype: DType, size: usize) -> usize {
    let of_two = match dtype {
        DType::Q8_0 => 136,
        DType::Q6_K => 105,
        DType::Q5_K => 88,
        _ => 72,
    };
    (of_two * size / 2).next_multiple_of(16)
}

fn args(part: &Part, n_in: usize) -> Option<PartArgs> {
    if part.layout != Layout::Packed {
        return None;
    }
    let bytes = group_bytes(part.dtype, GROUP);
    Some(PartArgs {
        w: part.weights.ptr(),
        row_bytes: part.row_bytes as u64,
        layout: matvec::code(part, n_in)?,
        first_out: part.first_out as u32,
        n_out: part.n_out as u32,
        first_block: 0,
        group_bytes: bytes as u32,
        last_bytes: group_bytes(part.dtype, (n_in / 64 - 1) % GROUP + 1) as u32,
        // An odd number of sixteens, so that those of eight rows are in different banks.
        pitch: ((bytes / 16) | 1) as u32 * 16,
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
    if cuda.exact
        || m > ROWS
        || w.n_experts != 1
        || parts.len() > MAX_PARTS
        || !w.n_in.is_multiple_of(X_COLUMNS)
    {
        return None;
    }
    // The scales of the K types are integers, for which activations are rounded in blocks of 256.
    let of_32 = parts[0].layout < K_LAYOUTS;
    if parts.iter().any(|p| (p.layout < K_LAYOUTS) != of_32) {
        return None;
    }
    // Part by part; a gate's outputs are one part's, with two rows of weights each.
    let spans: Vec<usize> = match gate {
        true => vec![parts[0].n_out as usize],
        false => parts.iter().map(|p| p.n_out as usize).collect(),
    };
    let bytes: Vec<usize> = spans.iter().zip(&parts).map(|(n, p)| n * p.row_bytes as usize).collect();
    let stage_bytes = UNIT * parts.iter().map(|p| p.pitch as usize).max()?;
    let fixed = X_SCALES + 4 * EARLY;
    let all = cuda.kernels.few_shared;
    let enough = if fixed + (ENOUGH_STAGES + 1) * stage_bytes <= all { ENOUGH_STAGES } else { TEAMS };
    let (blocks, (n_stages, shared_bytes)) = matvec::spread(cuda, &spans, &bytes, |n_out| {
        let units = n_out.div_ceil(if gate { UNIT / 2 } else { UNIT });
        let sums = 4 * units * UNIT * ROWS;
        let n_stages = all.saturating_sub(fixed + sums) / stage_bytes / TEAMS * TEAMS;
        let used = n_stages.min(MAX_STAGES);
        (n_stages >= enough).then_some((used, used * stage_bytes + fixed + sums))
    })?;
    let mut n_blocks = 0;
    for (part, n) in parts.iter_mut().zip(blocks) {
        part.first_block = n_blocks as u32;
        n_blocks += n;
    }
    Some(Plan { parts, n_blocks, n_in: w.n_in, m, y_stride, n_stages, shared_bytes, of_32 })
}

impl Plan {
    /// `x` [m, n_in], `y` [m, outputs]. A norm is one that [`matvec::can_fuse`] allows.
    pub(super) fn run(
        &self,
        cuda: &Cuda,
        y: DevicePtr,
        x: DevicePtr,
        norm: Option<&Norm<Cuda>>,
        bias: Option<&Tensor<Cuda>>,
        epilogue: Epilogue,
    ) -> Result<()> {
        let x_blocks = self.n_in / X_COLUMNS;
        let blocks = cuda.scratch.get(&cuda.driver, "rounded activations", x_blocks * X_BYTES)?;
        let squares = match norm {
            Some(_) => cuda.scratch.get(&cuda.driver, "sums of squares", 4 * self.m * x_blocks)?,
            None => DevicePtr::NULL,
        };
        let args = ActivationArgs {
            y: blocks,
            squares,
            x,
            weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            n: self.n_in as u32,
            of_32: u32::from(self.of_32),
        };
        // SAFETY: x has m rows of n_in floats, and the scratch memory room for as many rounded ones, and for their chunks' sums.
        unsafe {
            cuda.launch(cuda.kernels.few_activations, [x_blocks * self.m, 1, 1], ACTIVATION_THREADS, &args)?
        };

        let none = PartArgs {
            w: DevicePtr::NULL,
            row_bytes: 0,
            layout: 0,
            first_out: 0,
            n_out: 0,
            first_block: 0,
            group_bytes: 0,
            last_bytes: 0,
            pitch: 0,
        };
        let mut parts = [none; MAX_PARTS];
        parts[..self.parts.len()].copy_from_slice(&self.parts);
        let args = Args {
            y,
            x: blocks,
            squares,
            bias: bias.map_or(DevicePtr::NULL, Tensor::ptr),
            parts,
            n_parts: self.parts.len() as u32,
            n_blocks: self.n_blocks as u32,
            n_in: self.n_in as u32,
            m: self.m as u32,
            y_stride: self.y_stride as u32,
            n_stages: self.n_stages as u32,
            epilogue: epilogue.code(),
            activation: match epilogue {
                Epilogue::Gate(f) => elementwise::code(f),
                _ => 0,
            },
            inv_n: 1.0 / self.n_in as f32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        assert!(norm.is_none() || !matches!(epilogue, Epilogue::Add), "a normalized product that is added");
        let f = match self.m {
            0..=2 => cuda.kernels.few_2,
            3..=4 => cuda.kernels.few_4,
            _ => cuda.kernels.few_8,
        };
        // SAFETY: the callers checked the shapes of x, y and the bias; the parts hold the rows that they say, and the rounded activations
        // and sums of squares are those of as many rows.
        unsafe { cuda.launch_shared(f, [self.n_blocks, 1, 1], THREADS, self.shared_bytes, &args) }
    }
}
