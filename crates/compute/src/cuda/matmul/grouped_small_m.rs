//! Launches of products of a few rows of each expert with packed weights on the tensor cores' integers.

use super::grouped::GroupedRows;
use super::matrix::Matrix;
use super::packed_types::{PACKED, PackedType, is_fp4, packed_index};
use super::shape::{MatrixShape, PartRows, Target};
use super::small_m::{GROUP, X_BYTES, X_COLUMNS};
use super::weights::Weights;
use crate::cuda::common::activation_code;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{DType, Norm, Result};

/// Rows of a tile of activations, and of a slot of the ring of these.
const TILE_ROWS: usize = 16;
const SLOT_ROWS: usize = 8;
/// Rows of weights of a unit.
const UNIT: usize = 16;
/// Threads of a block.
const THREADS: u32 = 352;
/// Warps of a block that converts a row, at most, and blocks of 256 columns of each.
const MOST_WARPS: usize = 16;
const HELD: usize = 2;
/// Stages and slots of the rings, at most, and at least.
const MAX_STAGES: usize = 32;
const MIN_STAGES: usize = 4;
/// Warps that multiply, and the most barriers of full stages.
const MULTIPLIERS: usize = 8;
const MAX_FULL: usize = 96;
const MAX_SLOTS: usize = 4;
const MIN_SLOTS: usize = 2;
/// Static shared memory of the kernels, at most, of which 2 KB are the table of a type.
const STATIC_BYTES: usize = (2 << 10) + (2 << 10);
/// Rows of an expert on average from which on larger tiles of the tensor cores' floats are faster: for weights with integer scales, which are
/// decoded with few instructions, on Hopper and elsewhere, and for others. On Hopper `grouped_gemm` decodes FP4 with the fewest.
const MANY_ROWS_ON_HOPPER: usize = 17;
const MANY_ROWS: usize = 9;
const MANY_ROWS_OF_FLOAT_SCALES: usize = 4;

kernel_args! {
    in "grouped_small_m_args.cuh";

    struct GroupedSmallMArgs {
        /// [n_uses, n_out] by slot
        y: DevicePtr as "float*",
        /// [tiles of rows, 2, n_blocks]
        x: DevicePtr as "const struct XBlock*",
        /// [tiles of rows]
        tiles: DevicePtr as "const struct RowTile*",
        /// how many of these have rows
        n_filled: DevicePtr as "const uint32_t*",
        /// of a gate [n_experts, 2 * n_out], or null
        bias: DevicePtr as "const float*",
        /// the first expert's rows, or a gate's and its up's
        w: [DevicePtr; 2] as "const uint8_t*",
        row_bytes: u64,
        /// from one expert to the next
        expert_bytes: u64,
        n_out: u32,
        /// units of an expert
        n_units: u32,
        /// of a row: groups, pieces of 64 columns, and blocks of 256, the last of which may end early
        n_groups: u32,
        n_pieces: u32,
        n_blocks: u32,
        /// of a row's groups, and of its last one
        group_bytes: u32,
        last_bytes: u32,
        /// from a row of a stage to the next one's
        pitch: u32,
        n_stages: u32,
        /// barriers of full stages: of a stage each n_stages-th, by turns
        n_full: u32,
        n_slots: u32,
        gate: u32,
        activation: u32,
    }

    struct GroupedSmallMActivationArgs {
        /// [tiles of rows, 2, n_blocks]
        y: DevicePtr as "struct XBlock*",
        /// [.., n]
        x: DevicePtr as "const float*",
        /// [blocks] the row of x of each, or null: in order
        x_rows: DevicePtr as "const uint32_t*",
        /// [blocks, n_places] rows of y that each row of x becomes
        places: DevicePtr as "const uint32_t*",
        /// [n] of the norm that comes before, or null
        weight: DevicePtr as "const float*",
        n: u32,
        n_blocks: u32,
        n_places: u32,
        /// whether each 32 have a scale of their own
        of_32: u32,
        eps: f32,
    }
}

/// Kernels of grouped_small_m.cu.
pub(in crate::cuda) struct Kernels {
    /// In the order of [`PACKED`].
    products: Vec<Kernel<GroupedSmallMArgs>>,
    activations: Kernel<GroupedSmallMActivationArgs>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let (image, shared) = (kernel_image!(grouped_small_m), driver.max_shared_bytes() - STATIC_BYTES);
        let product = |t: &PackedType| image.kernel(driver, &format!("grouped_small_m_{}", t.dtype), shared);
        Ok(Self {
            products: PACKED.iter().map(product).collect::<Result<_>>()?,
            activations: image.kernel(driver, "grouped_small_m_activations", 0)?,
        })
    }
}

/// One of the two products.
struct Product {
    dtype: DType,
    /// The matrix, or a gate and its up.
    halves: [PartRows; 2],
    is_gate: bool,
    n_in: usize,
    n_out: usize,
    n_stages: usize,
    n_slots: usize,
}

/// How experts are computed.
pub(in crate::cuda) struct Plan {
    gate_up: Product,
    down: Product,
    n_sms: usize,
}

/// Plans rows that use `n_uses` experts in all; `None` where these kernels cannot, or others are faster.
pub(in crate::cuda) fn plan(
    target: &Target,
    gate_up: &MatrixShape,
    down: &MatrixShape,
    n_uses: usize,
) -> Option<Plan> {
    let n_experts = gate_up.n_experts;
    let (gate_up, down) = (product(target, gate_up, true)?, product(target, down, false)?);
    let many_rows = many_rows(target, &gate_up).min(many_rows(target, &down));
    // Their sums do not depend on how many rows there are, so that without other kernels they take all.
    let takes = target.mode == Mode::Deterministic || n_uses < many_rows * n_experts;
    takes.then_some(Plan { gate_up, down, n_sms: target.n_sms })
}

/// Rows of an expert on average from which on another kernel is faster.
fn many_rows(target: &Target, product: &Product) -> usize {
    match product.packed().has_integer_scales() {
        true if target.hopper => MANY_ROWS_ON_HOPPER,
        true => MANY_ROWS,
        false if target.hopper && is_fp4(product.dtype) => 0,
        false => MANY_ROWS_OF_FLOAT_SCALES,
    }
}

fn product(target: &Target, w: &MatrixShape, is_gate: bool) -> Option<Product> {
    let first = PartRows { part: 0, first: 0 };
    let halves = if is_gate { w.halves()? } else { [first; 2] };
    let part = &w.parts[0];
    let Weights::Packed(_) = Weights::of(part, w.n_in)? else { return None };
    let are_alike = w.parts.iter().all(|p| (p.dtype, p.layout) == (part.dtype, part.layout));
    if !are_alike || (!is_gate && w.parts.len() != 1) || x_blocks(w.n_in) > HELD * MOST_WARPS {
        return None;
    }
    let all = target.max_shared_bytes - STATIC_BYTES;
    let (slot_bytes, stage_bytes) = (x_blocks(w.n_in) * X_BYTES, UNIT * pitch(part.dtype, w.n_in));
    let stages = |n_slots: usize| all.saturating_sub(n_slots * slot_bytes) / stage_bytes;
    // More slots where at least half of the memory is left for weights.
    let n_slots = (MIN_SLOTS..=MAX_SLOTS).rev().find(|&n| n == MIN_SLOTS || 2 * n * slot_bytes <= all)?;
    let n_stages = stages(n_slots).min(MAX_STAGES);
    let n_out = if is_gate { w.n_out / 2 } else { w.n_out };
    let product = Product { dtype: part.dtype, halves, is_gate, n_in: w.n_in, n_out, n_stages, n_slots };
    (n_stages >= MIN_STAGES && product.n_full() <= MAX_FULL).then_some(product)
}

/// Blocks of activations of a row.
fn x_blocks(n_in: usize) -> usize {
    n_in.div_ceil(X_COLUMNS)
}

/// Bytes from one row of a stage to the next: those of a row where at most two of eight rows then have sixteen bytes in the same banks, so that
/// rows are copied together; else an odd number of sixteens, so that none have.
fn pitch(dtype: DType, n_in: usize) -> usize {
    let packed = &PACKED[packed_index(dtype)];
    let sixteens = packed.group_bytes((n_in / 64).min(GROUP)) / 16;
    let is_whole_row = n_in <= 64 * GROUP;
    16 * if is_whole_row && !sixteens.is_multiple_of(4) { sixteens } else { sixteens | 1 }
}

impl Plan {
    /// Rows of a tile.
    pub(in crate::cuda) fn tile_rows(&self) -> usize {
        TILE_ROWS
    }

    pub(in crate::cuda) fn run(&self, cuda: &Cuda, rows: &GroupedRows<'_>) -> Result<()> {
        let [gate_up, down] = rows.weights;
        let inputs =
            Floats { x: rows.x, x_rows: DevicePtr::NULL, n: rows.m, n_places: rows.n_used, norm: rows.norm };
        let x = self.gate_up.convert(cuda, rows, inputs, "rounded inputs of experts")?;
        self.launch(cuda, rows, &self.gate_up, gate_up, rows.hidden, x)?;
        let n = rows.m * rows.n_used;
        let hidden = Floats { x: rows.hidden, x_rows: rows.slots, n, n_places: 1, norm: None };
        let hidden = self.down.convert(cuda, rows, hidden, "rounded hidden activations")?;
        self.launch(cuda, rows, &self.down, down, rows.y, hidden)
    }

    /// Multiplies all tiles of rows.
    fn launch(
        &self,
        cuda: &Cuda,
        rows: &GroupedRows<'_>,
        product: &Product,
        w: &Matrix,
        y: DevicePtr,
        x: DevicePtr,
    ) -> Result<()> {
        let (part, packed) = (&w.parts[0].shape, product.packed());
        let (n_pieces, n_out) = (product.n_in / 64, product.n_out);
        let (n_blocks, pitch) = (x_blocks(product.n_in), pitch(product.dtype, product.n_in));
        let args = GroupedSmallMArgs {
            y,
            x,
            tiles: rows.tiles,
            n_filled: rows.n_filled,
            bias: if product.is_gate { rows.gate_up_bias } else { DevicePtr::NULL },
            w: product.halves.map(|half| w.row(half)),
            row_bytes: part.row_bytes as u64,
            expert_bytes: (part.n_out * part.row_bytes) as u64,
            n_out: n_out as u32,
            n_units: n_out.div_ceil(if product.is_gate { UNIT / 2 } else { UNIT }) as u32,
            n_groups: product.n_groups() as u32,
            n_pieces: n_pieces as u32,
            n_blocks: n_blocks as u32,
            group_bytes: packed.group_bytes(GROUP) as u32,
            last_bytes: packed.group_bytes((n_pieces - 1) % GROUP + 1) as u32,
            pitch: pitch as u32,
            n_stages: product.n_stages as u32,
            n_full: product.n_full() as u32,
            n_slots: product.n_slots as u32,
            gate: u32::from(product.is_gate),
            activation: activation_code(rows.activation),
        };
        let f = cuda.room::<Kernels>().products[packed_index(product.dtype)];
        let shared = product.n_slots * n_blocks * X_BYTES + product.n_stages * UNIT * pitch;
        // SAFETY: the parts hold the rows of all experts, among which the router chose; the activations are blocks of all tiles of rows, and
        // the results have room for all uses.
        unsafe { cuda.launch_shared(f, [self.n_sms, 1, 1], THREADS, shared, &args) }
    }
}

/// Rows of floats, and how many rows of tiles each becomes.
struct Floats<'a> {
    x: DevicePtr,
    /// The row of each, or null: in order.
    x_rows: DevicePtr,
    n: usize,
    n_places: usize,
    /// Applied first.
    norm: Option<&'a Norm<Cuda>>,
}

impl Product {
    fn packed(&self) -> &'static PackedType {
        &PACKED[packed_index(self.dtype)]
    }

    /// Groups of a row.
    fn n_groups(&self) -> usize {
        (self.n_in / 64).div_ceil(GROUP)
    }

    /// Barriers of full stages. A warp that has had all groups of a unit waits for those of the eighth after it: all that was copied a ring
    /// before the last group is known to be over then, so as many fills more have barriers of their own.
    fn n_full(&self) -> usize {
        self.n_stages * (1 + (MULTIPLIERS * self.n_groups()).div_ceil(self.n_stages))
    }

    /// Rows of activations rounded to 8 bits: each where its uses are.
    fn convert(
        &self,
        cuda: &Cuda,
        rows: &GroupedRows<'_>,
        from: Floats<'_>,
        purpose: &'static str,
    ) -> Result<DevicePtr> {
        let n_blocks = x_blocks(self.n_in);
        let bytes = rows.n_tiles * (TILE_ROWS / SLOT_ROWS) * n_blocks * X_BYTES;
        let y = cuda.scratch.get(&cuda.driver, purpose, bytes)?;
        let args = GroupedSmallMActivationArgs {
            y,
            x: from.x,
            x_rows: from.x_rows,
            places: rows.places,
            weight: from.norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            n: self.n_in as u32,
            n_blocks: n_blocks as u32,
            n_places: from.n_places as u32,
            of_32: u32::from(!self.packed().has_integer_scales()),
            eps: from.norm.map_or(0.0, |n| n.eps),
        };
        let threads = 32 * n_blocks.min(MOST_WARPS) as u32;
        let f = cuda.room::<Kernels>().activations;
        // SAFETY: there are as many rows of floats, and each use's place is in the memory for all tiles.
        unsafe { cuda.launch(f, [from.n, 1, 1], threads, &args)? };
        Ok(y)
    }
}
