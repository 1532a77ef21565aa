//! Launches of products of up to 256 rows of activations on Hopper's tensor cores, which decode packed weights on the way: K-quants to 8 bits,
//! the others to half precision.

use super::Cuda;
use super::driver::{BoxMap, Boxes, DevicePtr};
use super::elementwise;
use super::kernels::SkinnyKernels;
use super::matrix::{Layout, Matrix, Part};
use super::matvec::{self, Epilogue};
use crate::{DType, Norm, Result, Tensor};

/// Parts that the kernels take.
const MAX_PARTS: usize = 4;
/// Rows of a box of weights.
const BOX_ROWS: usize = 64;
/// Bytes of the boxes' rows: of vectors of packed weights, and of what else four pieces have.
const BOX_BYTES: [usize; 2] = [64, 16];
/// Bytes of a row of a box of plain weights, which is all that a stage has of it.
const PLAIN_BYTES: usize = 128;
/// Columns of a stage of packed weights. Ranges of columns that blocks share, and activations, are so many or some times that.
const STEP: usize = 256;
/// Stages of the rings at most.
const MAX_STAGES: usize = 16;
/// Threads that convert a row of activations to 16 bits; and those that convert so many steps of one to 8.
const HALVES_THREADS: u32 = 512;
const BYTES_THREADS: u32 = 256;
const BYTES_STEPS: usize = 8;

/// What a kernel is like; skinny.cu has the same numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of activations that it takes.
    pub(super) rows: usize,
    /// Outputs of a block, and its threads.
    outs: usize,
    threads: u32,
    /// Blocks that a multiprocessor has room for.
    blocks: usize,
    /// Steps that a block of a cluster has at least: with fewer, adding their sums takes longer than what they share.
    min_steps: usize,
    /// Dynamic shared memory.
    pub(super) shared_bytes: usize,
    /// Of it, what the ring of activations has at least.
    x_ring: usize,
    /// Rows of one of its stages of 8 bits, and bytes of one of 16.
    piece: usize,
    halves_stage: usize,
}

/// The kernels, by the rows that they take.
#[rustfmt::skip]
pub(super) const SHAPES: [Shape; 6] = [
    Shape { rows: 8,   outs: 128, threads: 384, blocks: 2, min_steps: 4, shared_bytes: 112 << 10, x_ring: 32 << 10,  piece: 8,   halves_stage: 4 << 10 },
    Shape { rows: 16,  outs: 128, threads: 384, blocks: 2, min_steps: 4, shared_bytes: 112 << 10, x_ring: 32 << 10,  piece: 16,  halves_stage: 8 << 10 },
    Shape { rows: 32,  outs: 128, threads: 384, blocks: 2, min_steps: 4, shared_bytes: 112 << 10, x_ring: 32 << 10,  piece: 32,  halves_stage: 16 << 10 },
    Shape { rows: 64,  outs: 256, threads: 640, blocks: 1, min_steps: 4, shared_bytes: 222 << 10, x_ring: 48 << 10,  piece: 32,  halves_stage: 16 << 10 },
    Shape { rows: 128, outs: 128, threads: 384, blocks: 1, min_steps: 2, shared_bytes: 222 << 10, x_ring: 96 << 10,  piece: 128, halves_stage: 16 << 10 },
    Shape { rows: 256, outs: 128, threads: 384, blocks: 1, min_steps: 2, shared_bytes: 222 << 10, x_ring: 128 << 10, piece: 64,  halves_stage: 32 << 10 },
];

/// Blocks of a cluster, and how many of these an H200 runs at once with one block to each of its 132 multiprocessors, of which not all have
/// enough neighbours.
const CLUSTERS: [(usize, usize); 5] = [(1, 132), (2, 66), (3, 39), (4, 30), (6, 17)];
const CLUSTERS_OF: usize = 132;

#[derive(Clone, Copy)]
#[repr(C)]
struct PartArgs {
    boxes: [BoxMap; 2],
    layout: u32,
    first_out: u32,
    n_out: u32,
    first_tile: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    parts: [PartArgs; MAX_PARTS],
    y: DevicePtr,
    x: DevicePtr,
    x_scales: DevicePtr,
    squares: DevicePtr,
    bias: DevicePtr,
    n_parts: u32,
    n_pieces: u32,
    m: u32,
    y_stride: u32,
    epilogue: u32,
    activation: u32,
    up_row: u32,
    w_stages: u32,
    x_stages: u32,
    w_stage_bytes: u32,
    n_columns: f32,
    eps: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct BytesArgs {
    y: DevicePtr,
    scales: DevicePtr,
    squares: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    n: u32,
    rows: u32,
    piece: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct HalvesArgs {
    y: DevicePtr,
    scales: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    n: u32,
    padded: u32,
    form: u32,
    rows: u32,
    eps: f32,
}

/// What activations become, by the numbers of the kernel that converts to 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Half precision in the order of packed columns.
    PackedHalf = 0,
    /// Half precision as they are.
    PlainHalf = 1,
    /// BF16 as they are.
    PlainBfloat = 2,
    /// 8 bits in the order of packed columns.
    Bytes,
}

/// Activations as the kernels read them.
struct Activations {
    tiles: DevicePtr,
    scales: DevicePtr,
    /// Where the kernel divides by a norm, what it needs.
    squares: DevicePtr,
}

impl Form {
    /// What a part of a matrix wants.
    fn of(part: &Part) -> Self {
        match (part.layout, part.dtype) {
            (Layout::Packed, DType::Q4_0 | DType::Q8_0) => Self::PackedHalf,
            (Layout::Packed, _) => Self::Bytes,
            (Layout::Blocks, DType::BF16) => Self::PlainBfloat,
            (Layout::Blocks, _) => Self::PlainHalf,
        }
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<PartArgs>,
    form: Form,
    /// Index of the kernel.
    shape: usize,
    n_tiles: usize,
    /// Blocks that share the columns.
    cluster: usize,
    n_in: usize,
    m: usize,
    y_stride: usize,
    up_row: usize,
    w_stages: usize,
    x_stages: usize,
    w_stage_bytes: usize,
}

/// The boxes of a part's rows of `n_in` weights; `None` where no kernel wants them.
pub(super) fn boxes(
    cuda: &Cuda,
    rows: DevicePtr,
    n_rows: usize,
    row_bytes: usize,
    layout: Layout,
    dtype: DType,
) -> Result<Option<[BoxMap; 2]>> {
    let is_wanted = match layout {
        Layout::Packed => true,
        Layout::Blocks => matches!(dtype, DType::F16 | DType::BF16) && row_bytes.is_multiple_of(16),
    };
    if cuda.kernels.skinny.is_none() || !is_wanted || n_rows == 0 || row_bytes == 0 {
        return Ok(None);
    }
    let of = |box_bytes, swizzled| {
        cuda.driver.box_map(Boxes { rows, n_rows, row_bytes, box_rows: BOX_ROWS, box_bytes, swizzled })
    };
    Ok(Some(match layout {
        Layout::Packed => [of(BOX_BYTES[0], false)?, of(BOX_BYTES[1], false)?],
        Layout::Blocks => [of(PLAIN_BYTES, true)?; 2],
    }))
}

/// The product of `m` rows with a matrix; `None` where it is none for these kernels.
pub(super) fn plan(cuda: &Cuda, w: &Matrix, m: usize) -> Option<Plan> {
    let parts = w.parts.iter().map(|p| args(p, w.n_in)).collect::<Option<Vec<_>>>()?;
    finish(cuda, w, m, parts, None)
}

/// The same for a matrix whose first half of outputs are the gate's.
pub(super) fn gate_plan(cuda: &Cuda, w: &Matrix, m: usize) -> Option<Plan> {
    let [(gate, _), (up, up_row)] = w.halves()?;
    let half = |part| Some(PartArgs { n_out: (w.n_out / 2) as u32, ..args(part, w.n_in)? });
    let parts = vec![half(gate)?, half(up)?];
    if parts[0].layout != parts[1].layout {
        return None;
    }
    finish(cuda, w, m, parts, Some(up_row))
}

fn args(part: &Part, n_in: usize) -> Option<PartArgs> {
    Some(PartArgs {
        boxes: part.boxes?,
        layout: matvec::code(part, n_in)?,
        first_out: part.first_out as u32,
        n_out: part.n_out as u32,
        first_tile: 0,
    })
}

/// Bytes of a stage of weights, for one output.
fn stage_bytes(dtype: DType) -> usize {
    let (vectors, rest) = match dtype {
        DType::F16 | DType::BF16 => return PLAIN_BYTES,
        DType::Q8_0 => (4, 1),
        DType::Q6_K => (3, 2),
        DType::Q5_K => (2, 3),
        _ => (2, 1),
    };
    vectors * BOX_BYTES[0] + rest * BOX_BYTES[1]
}

fn finish(
    cuda: &Cuda,
    w: &Matrix,
    m: usize,
    mut parts: Vec<PartArgs>,
    up_row: Option<usize>,
) -> Option<Plan> {
    let index = SHAPES.iter().position(|s| m <= s.rows)?;
    if cuda.exact || w.n_experts != 1 || parts.len() > MAX_PARTS {
        return None;
    }
    let shape = SHAPES[index];
    let form = Form::of(w.parts.first()?);
    if w.parts.iter().any(|p| Form::of(p) != form) {
        return None;
    }
    let n_tiles = match up_row {
        Some(_) => (parts[0].n_out as usize).div_ceil(shape.outs / 2),
        None => {
            let mut n_tiles = 0;
            for part in &mut parts {
                part.first_tile = n_tiles as u32;
                n_tiles += (part.n_out as usize).div_ceil(shape.outs);
            }
            n_tiles
        }
    };
    let n_steps = w.n_in.div_ceil(STEP);
    let multiprocessors = cuda.driver.n_multiprocessors() as usize;
    let at_once = |clusters: usize| clusters * shape.blocks * multiprocessors / CLUSTERS_OF;
    let fit = CLUSTERS
        .iter()
        .filter(|&&(n, clusters)| n * shape.min_steps <= n_steps && n_tiles <= at_once(clusters));
    let cluster = fit.map(|&(n, _)| n).max().unwrap_or(1);
    let w_stage_bytes = shape.outs * w.parts.iter().map(|p| stage_bytes(p.dtype)).max()?;
    // Factors of activations of 8 bits have room for two rounds.
    let x_stage_bytes = if form == Form::Bytes { shape.piece * (STEP + 2 * 4) } else { shape.halves_stage };
    let w_stages = ((shape.shared_bytes - shape.x_ring) / w_stage_bytes).clamp(2, MAX_STAGES);
    Some(Plan {
        parts,
        form,
        shape: index,
        n_tiles,
        cluster,
        n_in: w.n_in,
        m,
        y_stride: if up_row.is_some() { w.n_out / 2 } else { w.n_out },
        up_row: up_row.unwrap_or(0),
        w_stages,
        x_stages: ((shape.shared_bytes - w_stages * w_stage_bytes) / x_stage_bytes).min(MAX_STAGES),
        w_stage_bytes,
    })
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
        let shape = SHAPES[self.shape];
        let kernels = cuda.kernels.skinny.as_ref().expect("parts have boxes only where these are");
        let activations = self.activations(cuda, kernels, x, norm)?;
        let none = PartArgs { boxes: [BoxMap([0; 16]); 2], layout: 0, first_out: 0, n_out: 0, first_tile: 0 };
        let mut parts = [none; MAX_PARTS];
        parts[..self.parts.len()].copy_from_slice(&self.parts);
        let args = Args {
            parts,
            y,
            x: activations.tiles,
            x_scales: activations.scales,
            squares: activations.squares,
            bias: bias.map_or(DevicePtr::NULL, Tensor::ptr),
            n_parts: self.parts.len() as u32,
            n_pieces: self.n_in.div_ceil(64) as u32,
            m: self.m as u32,
            y_stride: self.y_stride as u32,
            epilogue: epilogue.code(),
            activation: match epilogue {
                Epilogue::Gate(f) => elementwise::code(f),
                _ => 0,
            },
            up_row: self.up_row as u32,
            w_stages: self.w_stages as u32,
            x_stages: self.x_stages as u32,
            w_stage_bytes: self.w_stage_bytes as u32,
            n_columns: self.n_in as f32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        let (f, blocks) = (kernels.by_shape[self.shape], [self.cluster, self.n_tiles, 1]);
        // SAFETY: the callers checked the shapes of x, y and the bias; the maps are of the parts' rows, and the activations are tiles of
        // as many rows and columns as the kernel reads.
        unsafe { cuda.launch_clusters(f, blocks, self.cluster, shape.threads, shape.shared_bytes, &args) }
    }

    /// The rows of x as tiles.
    fn activations(
        &self,
        cuda: &Cuda,
        kernels: &SkinnyKernels,
        x: DevicePtr,
        norm: Option<&Norm<Cuda>>,
    ) -> Result<Activations> {
        let Shape { rows, piece, .. } = SHAPES[self.shape];
        let scratch = |what, bytes| cuda.scratch.get(&cuda.driver, what, bytes);
        let (n, n_steps) = (self.n_in as u32, self.n_in.div_ceil(STEP));
        let weight = norm.map_or(DevicePtr::NULL, |n| n.weight.ptr());
        let tiles = scratch("tiles of activations", 2 * rows * n_steps * STEP)?;
        let scales = scratch("factors of activations", 4 * rows * n_steps)?;
        if self.form == Form::Bytes {
            let squares = match norm {
                Some(_) => scratch("squares of activations", 4 * rows * n_steps)?,
                None => DevicePtr::NULL,
            };
            let (rows, piece) = (rows as u32, piece as u32);
            let args = BytesArgs { y: tiles, scales, squares, x, weight, n, rows, piece };
            let blocks = [n_steps.div_ceil(BYTES_STEPS), self.m, 1];
            // SAFETY: x has m rows of n_in floats, and the scratch memory room for as many in tiles, with two numbers for each step of a
            // row.
            unsafe { cuda.launch(kernels.bytes, blocks, BYTES_THREADS, &args)? };
            return Ok(Activations { tiles, scales, squares });
        }
        let args = HalvesArgs {
            y: tiles,
            scales,
            x,
            weight,
            n,
            padded: (n_steps * STEP) as u32,
            form: self.form as u32,
            rows: rows as u32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        // SAFETY: x has m rows of n_in floats, and the scratch memory room for as many in tiles.
        unsafe { cuda.launch(kernels.halves, [self.m, 1, 1], HALVES_THREADS, &args)? };
        Ok(Activations { tiles, scales, squares: DevicePtr::NULL })
    }
}
