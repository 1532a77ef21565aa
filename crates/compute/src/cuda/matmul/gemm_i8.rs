//! Launches of matmuls with any number of rows of activations and packed weights on the tensor cores' integers, with the bits that
//! `small_m` has for each row: by `gemm_i8.cu`, or on Hopper by `gemm_i8_hopper.cu`.

use super::op::Matmul;
use super::packed_types::{N_COMMON, PackedType, packed_index};
use super::shape::{MatrixShape, PartRows, Target};
use super::small_m::{self, GROUP, Rounding, X_BYTES, X_COLUMNS};
use super::weights::Weights;
use crate::Result;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, KernelImage, kernel_args, kernel_image};

/// Static shared memory of the kernels, at most, of which 2 KB are the table of a type and 1 KB the places of rows.
const STATIC_BYTES: usize = (2 << 10) + (2 << 10);
/// Rows of activations of a slot, and outputs of a warp.
const SLOT_ROWS: usize = 8;
const WARP_OUTS: usize = 16;
/// Slots of the kernels' blocks.
const SLOTS: [usize; 4] = [2, 4, 8, 16];
/// Warps of a block, as many as shared memory has room for.
const WARPS: [usize; 3] = [8, 4, 2];
/// On Hopper, of those that multiply there are as many as the first, and four more copy.
const COPIERS: usize = 4;
/// Stages of the ring on Hopper, at most, and so many at least.
const MAX_STAGES: usize = 6;
const MIN_STAGES: usize = 2;
/// Slots of the largest of its kernels of which a multiprocessor runs two blocks, where its shared memory has room for them.
const MOST_SLOTS_OF_TWO: usize = 4;
/// Shared memory that the driver takes for each block.
const BLOCK_BYTES: usize = 1 << 10;
/// Outputs of a block with all warps.
const OUTS: usize = WARP_OUTS * WARPS[0];
/// Parts that columns are cut into, at most, and what each costs, in blocks of 256 columns.
const MAX_COLUMN_PARTS: usize = 8;
const PART_COST: f32 = 1.5;

kernel_args! {
    in "gemm_i8_args.cuh";

    /// Parts that the kernels take.
    const MAX_PARTS: usize = 4;

    struct GemmI8Part {
        /// [n_out] rows of `row_bytes`
        w: DevicePtr as "const uint8_t*",
        row_bytes: u64,
        layout: u32,
        /// of the whole matrix
        first_out: u32,
        n_out: u32,
        /// tiles `first_tile` to the next part's own it
        first_tile: u32,
    }

    struct GemmI8Args {
        /// [m, y_stride]
        y: DevicePtr as "float*",
        /// [tiles of rows, n_blocks, N]
        x: DevicePtr as "const struct XBlock*",
        /// [m, n_blocks]: sums of squares of what is to be normalized (root mean square); or null.
        squares: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        /// [tiles of rows, tiles, parts of columns, N, threads with sums]
        partial: DevicePtr as "float4*",
        /// [tiles of rows, tiles]: parts of columns that are done; zero before and after a launch
        arrived: DevicePtr as "uint32_t*",
        parts: [GemmI8Part; MAX_PARTS],
        n_parts: u32,
        /// of outputs
        n_tiles: u32,
        /// of 256 columns, and those of a part of the columns
        n_blocks: u32,
        part_blocks: u32,
        n_parts_of_columns: u32,
        m: u32,
        y_stride: u32,
        /// from one output's rest of a group to the next one's
        rest_pitch: u32,
        /// of the ring, on Hopper
        n_stages: u32,
        /// GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
        epilogue: u32,
        activation: u32,
        /// 1 / n_in
        inv_n: f32,
        eps: f32,
    }
}

/// Kernels of gemm_i8.cu and, on Hopper, of gemm_i8_hopper.cu, in the order of [`SLOTS`].
pub(in crate::cuda) struct Kernels {
    all: Vec<Kernel<GemmI8Args>>,
    hopper: Vec<Kernel<GemmI8Args>>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let shared = driver.max_shared_bytes() - STATIC_BYTES;
        let load = |image: KernelImage, name: &str| -> Result<Vec<_>> {
            SLOTS.iter().map(|n| image.kernel(driver, &format!("{name}_{n}"), shared)).collect()
        };
        let hopper = match driver.is_hopper() {
            true => load(kernel_image!(gemm_i8_hopper), "gemm_i8_hopper")?,
            false => Vec::new(),
        };
        Ok(Self { all: load(kernel_image!(gemm_i8), "gemm_i8")?, hopper })
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<(PartRows, GemmI8Part)>,
    ring: RingPlan,
    rest_pitch: usize,
    n_tiles: usize,
    part_blocks: usize,
    n_in: usize,
    m: usize,
    y_stride: usize,
    of_32: bool,
    hopper: bool,
}

/// Which kernel does it, and what its blocks have.
#[derive(Clone, Copy)]
struct RingPlan {
    /// Index of the kernel.
    kernel: usize,
    /// Warps that multiply.
    warps: usize,
    stages: usize,
    shared_bytes: usize,
}

/// The parts that a matrix's columns are cut into, whose sums are added up by themselves and then in their order: blocks of 256 columns of
/// each. They depend on the matrix and the device alone. Enough parts that all multiprocessors have tiles.
pub(super) fn part_blocks(target: &Target, w: &MatrixShape) -> usize {
    let (n_tiles, n_blocks) = (w.n_out.div_ceil(OUTS), w.n_in.div_ceil(X_COLUMNS));
    let cost = |n: &usize| {
        let blocks = n_blocks.div_ceil(*n);
        let rounds = (n_tiles * n_blocks.div_ceil(blocks)).div_ceil(target.n_sms);
        rounds as f32 * (blocks as f32 + PART_COST)
    };
    let n = (1..=MAX_COLUMN_PARTS.min(n_blocks)).min_by(|a, b| cost(a).total_cmp(&cost(b)));
    n_blocks.div_ceil(n.unwrap_or(1))
}

/// As [`plan`], by the kernels for Hopper, which take types with integer scales.
pub(super) fn plan_hopper(target: &Target, w: &MatrixShape, m: usize, gate: bool) -> Option<Plan> {
    plan_with(target, w, m, gate, true)
}

/// Plans `m` rows times the matrix, or for a `gate` times the halves of its outputs; `None` where the kernels cannot.
pub(super) fn plan(target: &Target, w: &MatrixShape, m: usize, gate: bool) -> Option<Plan> {
    plan_with(target, w, m, gate, false)
}

fn plan_with(target: &Target, w: &MatrixShape, m: usize, gate: bool, hopper: bool) -> Option<Plan> {
    let rows: Vec<(PartRows, usize)> = match gate {
        true => w.halves()?.map(|rows| (rows, w.n_out / 2)).to_vec(),
        false => w.parts.iter().enumerate().map(|(part, p)| (PartRows { part, first: 0 }, p.n_out)).collect(),
    };
    let (wanted_slots, n_blocks) = (m.div_ceil(SLOT_ROWS), w.n_in.div_ceil(X_COLUMNS));
    if w.n_experts != 1 || rows.len() > MAX_PARTS || !w.n_in.is_multiple_of(X_COLUMNS) {
        return None;
    }
    let mut packed = Vec::with_capacity(rows.len());
    let mut parts = Vec::with_capacity(rows.len());
    for (rows, n_out) in rows {
        let part = &w.parts[rows.part];
        let weights = Weights::of(part, w.n_in)?;
        let Weights::Packed(t) = weights else { return None };
        packed.push(t.of_gemm_i8.then_some(t)?);
        let args = GemmI8Part {
            w: DevicePtr::NULL,
            row_bytes: part.row_bytes as u64,
            layout: weights.layout(),
            first_out: part.first_out as u32,
            n_out: n_out as u32,
            first_tile: 0,
        };
        parts.push((rows, args));
    }
    let of_32 = !packed[0].has_integer_scales();
    let are_alike = packed.iter().all(|t| t.has_integer_scales() != of_32);
    if hopper && of_32 {
        return None;
    }
    if !are_alike || (gate && parts[0].1.layout != parts[1].1.layout) {
        return None;
    }
    let size = GROUP.min(w.n_in / 64);
    let vectors = |t: &PackedType| t.boxes()[0];
    // An odd number of sixteens, so that those of eight rows are in different banks.
    let rest_pitch = packed.iter().map(|t| (t.group_bytes(size) / 16 - vectors(t) * size) | 1).max()? * 16;
    let vector_pitch = packed.iter().map(|t| 64 * vectors(t) + 16).max()?;
    let shared_bytes = |warps: usize, n: usize, stages: usize| {
        let outs = warps * WARP_OUTS;
        2 * outs * rest_pitch + stages * (outs * vector_pitch + n * X_BYTES)
    };
    let room = target.max_shared_bytes - STATIC_BYTES;
    let part_blocks = part_blocks(target, w).min(n_blocks);
    let with_tiles = if gate { 1 } else { parts.len() };
    let tiles_of = |part: &GemmI8Part, warps: usize| {
        (part.n_out as usize).div_ceil(warps * WARP_OUTS / if gate { 2 } else { 1 })
    };
    let wanted = SLOTS.iter().position(|&n| wanted_slots <= n).unwrap_or(SLOTS.len() - 1);
    let are_common = packed.iter().all(|t| packed_index(t.dtype) < N_COMMON);
    // Elsewhere than on Hopper kernels have registers for the most slots of the common types only.
    let slots = SLOTS[..=wanted].iter().filter(|&&n| n < SLOTS[3] || hopper || are_common);
    let ring = |warps: usize, kernel: usize| {
        let n = SLOTS[kernel];
        let stages = match hopper {
            true => {
                let of_two = (target.max_shared_bytes - BLOCK_BYTES) / 2 - STATIC_BYTES;
                let tiles: usize = parts[..with_tiles].iter().map(|(_, part)| tiles_of(part, warps)).sum();
                let blocks = tiles * n_blocks.div_ceil(part_blocks) * m.div_ceil(n * SLOT_ROWS);
                // Blocks start before those of the kernel before have ended: where there is one for each multiprocessor, two would come to
                // those that are free first.
                let runs_two = n <= MOST_SLOTS_OF_TWO
                    && blocks > target.n_sms
                    && shared_bytes(warps, n, MIN_STAGES) <= of_two;
                let room = if runs_two { of_two } else { room };
                (MIN_STAGES..=MAX_STAGES).rev().find(|&stages| shared_bytes(warps, n, stages) <= room)?
            }
            false if n == 16 => 2,
            false => 3,
        };
        let shared_bytes = shared_bytes(warps, n, stages);
        (shared_bytes <= room).then_some(RingPlan { kernel, warps, stages, shared_bytes })
    };
    let n_slots = slots.count();
    let warps = if hopper { &WARPS[..1] } else { &WARPS[..] };
    let ring = warps.iter().find_map(|&warps| (0..n_slots).rev().find_map(|kernel| ring(warps, kernel)))?;
    let mut n_tiles = 0;
    for (_, part) in &mut parts[..with_tiles] {
        part.first_tile = n_tiles as u32;
        n_tiles += tiles_of(part, ring.warps);
    }
    Some(Plan {
        parts,
        ring,
        rest_pitch,
        n_tiles,
        part_blocks,
        n_in: w.n_in,
        m,
        y_stride: if gate { w.n_out / 2 } else { w.n_out },
        of_32,
        hopper,
    })
}

impl Plan {
    /// A norm has no bias and divides by the root mean square.
    pub(super) fn run(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        let ((x, norm), y) = (op.float_input(), op.float_output());
        let RingPlan { kernel, warps, stages, shared_bytes } = self.ring;
        let rounding = Rounding { of_32: self.of_32, tile_slots: SLOTS[kernel], for_wgmma: self.hopper };
        let (x, squares) = small_m::round(cuda, x, norm, (self.m, self.n_in), rounding)?;
        let none =
            GemmI8Part { w: DevicePtr::NULL, row_bytes: 0, layout: 0, first_out: 0, n_out: 0, first_tile: 0 };
        let mut parts = [none; MAX_PARTS];
        for (to, &(rows, from)) in parts.iter_mut().zip(&self.parts) {
            *to = GemmI8Part { w: op.w.row(rows), ..from };
        }
        let n_blocks = self.n_in / X_COLUMNS;
        let (n, with_sums) = (SLOTS[kernel], 32 * warps);
        let row_tiles = self.m.div_ceil(n * SLOT_ROWS);
        let column_parts = n_blocks.div_ceil(self.part_blocks);
        let (partial, arrived) = match column_parts {
            1 => (DevicePtr::NULL, DevicePtr::NULL),
            _ => {
                let tiles = row_tiles * self.n_tiles;
                let bytes = 16 * tiles * column_parts * n * with_sums;
                let partial = cuda.scratch.get(&cuda.driver, "sums of parts of columns", bytes)?;
                (partial, cuda.scratch.zeros(&cuda.driver, "counts of parts of columns", 4 * tiles)?)
            }
        };
        let args = GemmI8Args {
            y,
            x,
            squares,
            bias: op.bias_ptr(),
            partial,
            arrived,
            parts,
            n_parts: self.parts.len() as u32,
            n_tiles: self.n_tiles as u32,
            n_blocks: n_blocks as u32,
            part_blocks: self.part_blocks as u32,
            n_parts_of_columns: column_parts as u32,
            m: self.m as u32,
            y_stride: self.y_stride as u32,
            rest_pitch: self.rest_pitch as u32,
            n_stages: stages as u32,
            epilogue: op.epilogue.code(),
            activation: op.epilogue.activation_code(),
            inv_n: 1.0 / self.n_in as f32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        let kernels = cuda.room::<Kernels>();
        let f = if self.hopper { &kernels.hopper } else { &kernels.all }[kernel];
        let threads = with_sums + if self.hopper { 32 * COPIERS } else { 0 };
        let blocks = [self.n_tiles * column_parts, row_tiles, 1];
        // SAFETY: the callers checked the shapes of x, y and the bias; the parts hold the rows that they say, and the rounded activations
        // and sums of squares are those of as many rows. The scratch memory has room for the sums of all tiles' parts.
        unsafe { cuda.launch_shared(f, blocks, threads as u32, shared_bytes, &args) }
    }
}
