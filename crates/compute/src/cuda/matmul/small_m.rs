//! Launches of matmuls with 2 to 8 rows of activations and packed weights on the tensor cores' integers.

use super::blocks::distribute;
use super::epilogue::EpilogueKind;
use super::gemm_i8;
use super::op::Matmul;
use super::packed_types::PackedType;
use super::shape::{MatrixShape, PartRows, Target};
use super::weights::Weights;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{Norm, Result};

/// Static shared memory of the kernels, at most, of which 2 KB are the table of a type.
const STATIC_BYTES: usize = (1 << 8) + (2 << 10);
/// Rows of activations that the kernel takes.
pub(super) const ROWS: usize = 8;
/// Pieces of 64 columns of a group of weights, and rows of a unit.
pub(super) const GROUP: usize = 32;
const UNIT: usize = 16;
/// Columns of a block of activations, which those of a matrix are some times, and its bytes. A block of threads converts as many of one row.
pub(super) const X_COLUMNS: usize = 256;
pub(super) const X_BYTES: usize = 2560;
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

kernel_args! {
    in "small_m_args.cuh";

    /// Parts that the kernels take.
    const MAX_PARTS: usize = 4;

    struct SmallMPart {
        /// [n_out] rows of `row_bytes`
        w: DevicePtr as "const uint8_t*",
        row_bytes: u64,
        layout: u32,
        /// of the whole matrix
        first_out: u32,
        n_out: u32,
        /// blocks `first_block` to the next part's own it
        first_block: u32,
        /// of a row's groups, and of its last one
        group_bytes: u32,
        last_bytes: u32,
        /// From a row of a unit to the next one's, so that sixteen bytes of each of eight rows are in different banks.
        pitch: u32,
    }

    struct SmallMArgs {
        /// [m, y_stride]
        y: DevicePtr as "float*",
        /// [n_in / 256]
        x: DevicePtr as "const struct XBlock*",
        /// [m, n_in / 256]: sums of squares of what is to be normalized (root mean square); or null.
        squares: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        parts: [SmallMPart; MAX_PARTS],
        n_parts: u32,
        n_blocks: u32,
        n_in: u32,
        m: u32,
        y_stride: u32,
        /// of the ring
        n_stages: u32,
        /// of 256 columns, which are added up by themselves; 0: all together
        part_blocks: u32,
        /// GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
        epilogue: u32,
        activation: u32,
        /// 1 / n_in
        inv_n: f32,
        eps: f32,
    }

    struct SmallMActivationArgs {
        /// [m / 8 / tile_slots, n / 256, tile_slots]
        y: DevicePtr as "struct XBlock*",
        /// [m, n / 256], where a norm comes before
        squares: DevicePtr as "float*",
        /// [m, n]
        x: DevicePtr as "const float*",
        /// [n] of the norm, or null
        weight: DevicePtr as "const float*",
        n: u32,
        /// whether each 32 have a scale of their own
        of_32: u32,
        /// slots of 8 rows of a tile, a power of two
        tile_slots: u32,
        /// whether integers and their sums lie as wgmma wants them
        for_wgmma: u32,
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<(PartRows, SmallMPart)>,
    n_blocks: usize,
    n_in: usize,
    m: usize,
    y_stride: usize,
    n_stages: usize,
    shared_bytes: usize,
    /// Whether activations are rounded in blocks of 32, and not of 256.
    of_32: bool,
    /// Blocks of 256 columns that are added up by themselves; 0: all.
    part_blocks: usize,
}

/// Kernels of small_m.cu.
pub(in crate::cuda) struct Kernels {
    small_m_2: Kernel<SmallMArgs>,
    small_m_4: Kernel<SmallMArgs>,
    small_m_8: Kernel<SmallMArgs>,
    activations: Kernel<SmallMActivationArgs>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let (image, shared) = (kernel_image!(small_m), driver.max_shared_bytes() - STATIC_BYTES);
        Ok(Self {
            small_m_2: image.kernel(driver, "small_m_2", shared)?,
            small_m_4: image.kernel(driver, "small_m_4", shared)?,
            small_m_8: image.kernel(driver, "small_m_8", shared)?,
            activations: image.kernel(driver, "small_m_activations", 0)?,
        })
    }
}

/// Plans `m` rows times the matrix, or for a `gate` times the halves of its outputs; `None` where the kernels cannot.
pub(super) fn plan(target: &Target, w: &MatrixShape, m: usize, gate: bool) -> Option<Plan> {
    if !gate {
        let parts = w.parts.iter().enumerate();
        let parts =
            parts.map(|(i, p)| args(w, PartRows { part: i, first: 0 }, p.n_out)).collect::<Option<_>>()?;
        return finish(target, w, m, parts, false);
    }
    let [gate, up] = w.halves()?.map(|rows| args(w, rows, w.n_out / 2));
    let parts = vec![gate?, up?];
    if parts[0].1.layout != parts[1].1.layout {
        return None;
    }
    finish(target, w, m, parts, true)
}

fn args(w: &MatrixShape, rows: PartRows, n_out: usize) -> Option<(PartRows, SmallMPart)> {
    let part = &w.parts[rows.part];
    // Whole blocks of activations are whole blocks of weights, too.
    if !w.n_in.is_multiple_of(X_COLUMNS) {
        return None;
    }
    let Weights::Packed(packed) = Weights::of(part, w.n_in)? else { return None };
    let bytes = packed.group_bytes(GROUP);
    let args = SmallMPart {
        w: DevicePtr::NULL,
        row_bytes: part.row_bytes as u64,
        layout: Weights::Packed(packed).layout(),
        first_out: part.first_out as u32,
        n_out: n_out as u32,
        first_block: 0,
        group_bytes: bytes as u32,
        last_bytes: packed.group_bytes((w.n_in / 64 - 1) % GROUP + 1) as u32,
        // An odd number of sixteens, so that those of eight rows are in different banks.
        pitch: ((bytes / 16) | 1) as u32 * 16,
    };
    Some((rows, args))
}

fn finish(
    target: &Target,
    w: &MatrixShape,
    m: usize,
    mut parts: Vec<(PartRows, SmallMPart)>,
    gate: bool,
) -> Option<Plan> {
    if m > ROWS || w.n_experts != 1 || parts.len() > MAX_PARTS {
        return None;
    }
    let y_stride = if gate { w.n_out / 2 } else { w.n_out };
    // All parts have the same rounded activations.
    let is_of_32 = |p: &SmallMPart| !PackedType::of_layout(p.layout).has_integer_scales();
    let of_32 = is_of_32(&parts[0].1);
    if parts.iter().any(|(_, p)| is_of_32(p) != of_32) {
        return None;
    }
    // Part by part; a gate's outputs are one part's, with two rows of weights each.
    let with_blocks = if gate { &parts[..1] } else { &parts[..] };
    let spans: Vec<usize> = with_blocks.iter().map(|(_, p)| p.n_out as usize).collect();
    let bytes: Vec<usize> =
        with_blocks.iter().map(|(_, p)| p.n_out as usize * p.row_bytes as usize).collect();
    let stage_bytes = UNIT * parts.iter().map(|(_, p)| p.pitch as usize).max()?;
    let part_blocks = match target.mode {
        Mode::Fast => 0,
        _ => gemm_i8::part_blocks(target, w),
    };
    let fixed = X_SCALES + 4 * EARLY;
    let all = target.max_shared_bytes - STATIC_BYTES;
    let enough = if fixed + (ENOUGH_STAGES + 1) * stage_bytes <= all { ENOUGH_STAGES } else { TEAMS };
    let (blocks, (n_stages, shared_bytes)) = distribute(target.n_sms, &spans, &bytes, |n_out| {
        let units = n_out.div_ceil(if gate { UNIT / 2 } else { UNIT });
        let sums = 4 * units * UNIT * ROWS * if part_blocks > 0 { 2 } else { 1 };
        let n_stages = all.saturating_sub(fixed + sums) / stage_bytes / TEAMS * TEAMS;
        let used = n_stages.min(MAX_STAGES);
        (n_stages >= enough).then_some((used, used * stage_bytes + fixed + sums))
    })?;
    let mut n_blocks = 0;
    for ((_, part), n) in parts.iter_mut().zip(blocks) {
        part.first_block = n_blocks as u32;
        n_blocks += n;
    }
    Some(Plan { parts, n_blocks, n_in: w.n_in, m, y_stride, n_stages, shared_bytes, of_32, part_blocks })
}

impl Plan {
    /// A norm has no bias and divides by the root mean square.
    pub(super) fn run(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        let ((x, norm), y) = (op.float_input(), op.float_output());
        let kernels = cuda.room::<Kernels>();
        let rounding = Rounding { of_32: self.of_32, tile_slots: 1, for_wgmma: false };
        let (blocks, squares) = round(cuda, x, norm, (self.m, self.n_in), rounding)?;
        let none = SmallMPart {
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
        for (to, &(rows, from)) in parts.iter_mut().zip(&self.parts) {
            *to = SmallMPart { w: op.w.row(rows), ..from };
        }
        let args = SmallMArgs {
            y,
            x: blocks,
            squares,
            bias: op.bias_ptr(),
            parts,
            n_parts: self.parts.len() as u32,
            n_blocks: self.n_blocks as u32,
            n_in: self.n_in as u32,
            m: self.m as u32,
            y_stride: self.y_stride as u32,
            n_stages: self.n_stages as u32,
            part_blocks: self.part_blocks as u32,
            epilogue: op.epilogue.code(),
            activation: op.epilogue.activation_code(),
            inv_n: 1.0 / self.n_in as f32,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        assert!(
            norm.is_none() || op.epilogue.kind() != EpilogueKind::Add,
            "a normalized product that is added"
        );
        // Parts of columns are added up as the kernel for eight rows does.
        let f = match self.m {
            _ if self.part_blocks > 0 => kernels.small_m_8,
            0..=2 => kernels.small_m_2,
            3..=4 => kernels.small_m_4,
            _ => kernels.small_m_8,
        };
        // SAFETY: the callers checked the shapes of x, y and the bias; the parts hold the rows that they say, and the rounded activations
        // and sums of squares are those of as many rows.
        unsafe { cuda.launch_shared(f, [self.n_blocks, 1, 1], THREADS, self.shared_bytes, &args) }
    }
}

/// How activations are rounded to 8 bits, and how they lie.
#[derive(Clone, Copy)]
pub(super) struct Rounding {
    /// In blocks of 32, else of 256.
    pub(super) of_32: bool,
    /// Slots of 8 rows of a tile.
    pub(super) tile_slots: usize,
    /// Whether integers and their sums lie as wgmma wants them.
    pub(super) for_wgmma: bool,
}

/// Activations `[m, n]` rounded to 8 bits, and the sums of their squares where a norm comes before.
pub(super) fn round(
    cuda: &Cuda,
    x: DevicePtr,
    norm: Option<&Norm<Cuda>>,
    (m, n): (usize, usize),
    Rounding { of_32, tile_slots, for_wgmma }: Rounding,
) -> Result<(DevicePtr, DevicePtr)> {
    let n_blocks = n / X_COLUMNS;
    let bytes = m.div_ceil(ROWS).next_multiple_of(tile_slots) * n_blocks * X_BYTES;
    let blocks = cuda.scratch.get(&cuda.driver, "rounded activations", bytes)?;
    let squares = match norm {
        Some(_) => cuda.scratch.get(&cuda.driver, "sums of squares", 4 * m * n_blocks)?,
        None => DevicePtr::NULL,
    };
    let args = SmallMActivationArgs {
        y: blocks,
        squares,
        x,
        weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
        n: n as u32,
        of_32: u32::from(of_32),
        tile_slots: tile_slots as u32,
        for_wgmma: u32::from(for_wgmma),
    };
    let f = cuda.room::<Kernels>().activations;
    // SAFETY: x has m rows of n floats, and the scratch memory room for as many rounded ones, and for their chunks' sums.
    unsafe { cuda.launch(f, [n_blocks * m, 1, 1], ACTIVATION_THREADS, &args)? };
    Ok((blocks, squares))
}
