//! Launches of GEMVs: one row of activations, or a few in passes, with the norm before and the sum or gate after.

use super::blocks::distribute;
use super::epilogue::Epilogue;
use super::gemm_i8;
use super::matrix::Matrix;
use super::op::Matmul;
use super::shape::{MatrixShape, PartRows, Target};
use super::small_m::X_COLUMNS;
use super::weights::Weights;
use crate::cuda::common::{Input, Output, RouteArgs};
use crate::cuda::driver::{
    BLOCK_BYTES, Cuda, DevicePtr, Driver, GEMV_STATIC_BYTES, Kernel, MAX_BLOCKS, Member, PLACES, RanksArgs,
    kernel_args, kernel_image, sm_shared_bytes,
};
use crate::{Activation, Result};

/// Rows of activations that the kernel takes.
const MAX_ROWS: usize = 8;
/// Most passes over the weights that more rows take: up to here they are faster than the tensor cores, for which weights are decoded.
const MAX_PASSES: usize = 2;
/// Numbers in a packed group.
const GROUP: usize = 2048;
/// Threads of a block at least.
const MIN_THREADS: usize = 256;
/// Bytes of 64 activations as integers.
const X_PIECE: usize = 80;

kernel_args! {
    in "gemv_args.cuh";
    include "../common/ranks.cuh";
    include "../common/route_args.cuh";

    /// Parts that the kernels take.
    const MAX_PARTS: usize = 4;

    /// Experts that a token uses at most.
    const MAX_USED: usize = 32;

    struct GemvPart {
        /// [n_out] rows of `row_bytes`
        w: DevicePtr as "const uint8_t*",
        row_bytes: u64,
        layout: u32,
        /// of the whole matrix
        first_out: u32,
        n_out: u32,
        /// blocks `first_block` to the next part's own it
        first_block: u32,
    }

    struct GemvArgs {
        /// [m, y_stride]
        y: DevicePtr as "float*",
        /// [m, n_in]
        x: DevicePtr as "const float*",
        /// [n_in]: x is normalized first (root mean square); or null
        norm_weight: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        parts: [GemvPart; MAX_PARTS],
        n_parts: u32,
        n_blocks: u32,
        n_in: u32,
        m: u32,
        y_stride: u32,
        /// GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
        epilogue: u32,
        activation: u32,
        large_ring: u32,
        /// 1 / n_in
        inv_n: f32,
        eps: f32,
    }

    struct GemvRanksArgs {
        product: GemvArgs,
        ranks: RanksArgs as "ranks::Ranks",
    }

    struct GemvInOrderArgs {
        product: GemvArgs,
        /// blocks of 256 columns whose products are added up by themselves
        part_blocks: u32,
    }

    /// The product of rows with the experts that each uses, a row to a blockIdx.y. GATE: `product.n_out` are the outputs of all of a row's
    /// experts, one after the other. Else they add up, and x has n_row columns for each.
    struct GemvExpertsArgs {
        product: GemvArgs,
        /// what chooses the experts of each row
        route: RouteArgs,
        /// [all experts, n_out], for GATE [all experts, 2 * n_out]; or null
        bias: DevicePtr as "const float*",
        /// of a part, from one expert to the next
        expert_bytes: u64,
        /// outputs of an expert
        n_out: u32,
        /// columns of an expert's row
        n_row: u32,
    }
}

/// How one product is done.
pub(super) struct Plan {
    parts: Vec<(PartRows, GemvPart)>,
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
    /// In order: blocks of 256 columns that are added up by themselves.
    part_blocks: Option<usize>,
}

/// Kernels of gemv.cu and gemv_in_order.cu.
pub(in crate::cuda) struct Kernels {
    /// One row of activations, with this many threads: on a GPU alone, and on one among several.
    gemv_256: OneRow,
    gemv_384: OneRow,
    gemv_512: OneRow,
    /// Rows with the experts of each, with 256 threads and with 384; and the same with the bits of `grouped_small_m`.
    experts: [Kernel<GemvExpertsArgs>; 2],
    experts_in_order: [Kernel<GemvExpertsArgs>; 2],
    /// Up to 8 rows of activations.
    gemv_8: Kernel<GemvArgs>,
}

#[derive(Clone, Copy)]
struct OneRow {
    alone: Kernel<GemvArgs>,
    ranks: Kernel<GemvRanksArgs>,
    /// With the bits that `small_m` has for any number of rows.
    in_order: Kernel<GemvInOrderArgs>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let (image, shared) = (kernel_image!(gemv), driver.max_shared_bytes() - GEMV_STATIC_BYTES);
        let in_order = kernel_image!(gemv_in_order);
        let one_row = |threads: usize| {
            let name = format!("gemv_{threads}");
            Ok::<_, crate::Error>(OneRow {
                alone: image.kernel(driver, &name, shared)?,
                ranks: image.kernel(driver, &format!("{name}_ranks"), shared)?,
                in_order: in_order.kernel(driver, &format!("gemv_in_order_{threads}"), shared)?,
            })
        };
        Ok(Self {
            gemv_256: one_row(256)?,
            gemv_384: one_row(384)?,
            gemv_512: one_row(512)?,
            experts: [
                image.kernel(driver, "gemv_256_experts", shared)?,
                image.kernel(driver, "gemv_384_experts", shared)?,
            ],
            experts_in_order: [
                in_order.kernel(driver, "gemv_in_order_256_experts", shared)?,
                in_order.kernel(driver, "gemv_in_order_384_experts", shared)?,
            ],
            gemv_8: image.kernel(driver, "gemv_8", shared)?,
        })
    }
}

/// Plans `m` rows times the matrix, or for a `gate` times the halves of its outputs; `None` where the kernel cannot.
pub(super) fn plan(target: &Target, w: &MatrixShape, m: usize, gate: bool) -> Option<Plan> {
    if w.n_experts != 1 {
        return None;
    }
    finish(target, w, m, parts(w, gate)?, gate, None)
}

/// As [`plan`], of one row with the bits that [`small_m`] has for any number of them.
pub(super) fn plan_in_order(target: &Target, w: &MatrixShape, gate: bool) -> Option<Plan> {
    if w.n_experts != 1 || !w.n_in.is_multiple_of(X_COLUMNS) {
        return None;
    }
    finish(target, w, 1, parts(w, gate)?, gate, Some(gemm_i8::part_blocks(target, w)))
}

/// The parts of a matrix, or for a `gate` the halves of its outputs, as the kernels know them.
fn parts(w: &MatrixShape, gate: bool) -> Option<Vec<(PartRows, GemvPart)>> {
    let part = |rows: PartRows, n_out: usize| {
        let part = &w.parts[rows.part];
        let args = GemvPart {
            w: DevicePtr::NULL,
            row_bytes: part.row_bytes as u64,
            layout: Weights::of(part, w.n_in)?.layout(),
            first_out: part.first_out as u32,
            n_out: n_out as u32,
            first_block: 0,
        };
        Some((rows, args))
    };
    if !gate {
        let parts = w.parts.iter().enumerate();
        return parts.map(|(i, p)| part(PartRows { part: i, first: 0 }, p.n_out)).collect();
    }
    let [gate, up] = w.halves()?.map(|rows| part(rows, w.n_out / 2));
    let parts = vec![gate?, up?];
    let are_alike = (parts[0].1.layout, parts[0].1.row_bytes) == (parts[1].1.layout, parts[1].1.row_bytes);
    are_alike.then_some(parts)
}

/// What shared memory has beside the ring.
#[derive(Clone, Copy)]
struct Shares {
    is_plain: bool,
    in_order: bool,
}

impl Shares {
    /// Sums of an output with rows of `n` weights: those of the groups that kernels take, or in order of 256 columns.
    fn n_sums(self, n: usize) -> usize {
        match self {
            Self { in_order: true, .. } => n.div_ceil(X_COLUMNS),
            Self { is_plain: true, .. } => n.div_ceil(1024),
            Self { is_plain: false, .. } => (n / 64).div_ceil(32),
        }
    }

    /// Bytes of a row of `n` activations, in order with the sums of squares of 256 columns.
    fn x_bytes(self, n: usize) -> usize {
        let of_numbers = if self.is_plain { 4 * n } else { n / 64 * X_PIECE };
        of_numbers + if self.in_order { 4 * n.div_ceil(X_COLUMNS) } else { 0 }
    }
}

fn finish(
    target: &Target,
    w: &MatrixShape,
    m: usize,
    mut parts: Vec<(PartRows, GemvPart)>,
    gate: bool,
    part_blocks: Option<usize>,
) -> Option<Plan> {
    if m > MAX_ROWS * MAX_PASSES || parts.len() > MAX_PARTS || w.n_in == 0 {
        return None;
    }
    let y_stride = if gate { w.n_out / 2 } else { w.n_out };
    // Part by part; a gate's outputs are one part's, with two rows of weights each.
    let with_blocks = if gate { &parts[..1] } else { &parts[..] };
    let spans: Vec<usize> = with_blocks.iter().map(|(_, p)| p.n_out as usize).collect();
    let bytes: Vec<usize> =
        with_blocks.iter().map(|(_, p)| p.n_out as usize * p.row_bytes as usize).collect();
    let is_plain = Weights::of_layout(parts[0].1.layout).is_plain();
    if parts.iter().any(|(_, p)| Weights::of_layout(p.layout).is_plain() != is_plain) {
        return None;
    }
    let shares = Shares { is_plain, in_order: part_blocks.is_some() };
    // What a block has beside its ring, where `n_out` outputs are distributed.
    let beside_ring = |n_in: usize, n_out: usize| {
        shares.x_bytes(n_in) + 4 * n_out.div_ceil(target.n_sms) * shares.n_sums(n_in)
    };
    let ring = |large| {
        let rings = parts.iter().map(|(_, p)| Weights::of_layout(p.layout).gemv_ring(target.hopper, large));
        rings.max().expect("a matrix has parts")
    };
    // A gate is followed by a GEMV back to the width that it came from.
    let both = beside_ring(w.n_in, w.n_out) + beside_ring(w.n_out / 2, w.n_in) + 2 * BLOCK_BYTES;
    let has_large_ring = gate && ring(true) + ring(false) + both <= sm_shared_bytes(target.max_shared_bytes);
    let ring = ring(has_large_ring);
    let (n_sums, x_bytes) = (shares.n_sums(w.n_in), shares.x_bytes(w.n_in));
    let room = (target.max_shared_bytes - GEMV_STATIC_BYTES).saturating_sub(ring);
    let (blocks, (rows, shared_bytes_per_row, max_outs)) =
        distribute(target.n_sms, &spans, &bytes, |n_out| {
            let max_sums = n_out * if gate { 2 } else { 1 } * n_sums;
            let per_row = x_bytes + 4 * max_sums;
            let rows = (room / per_row.max(1)).min(m).min(MAX_ROWS);
            let fits = rows == m.min(MAX_ROWS) || (rows > 0 && 4 * max_sums <= x_bytes);
            fits.then_some((rows, per_row, n_out))
        })?;
    let mut n_blocks = 0;
    for ((_, part), n) in parts.iter_mut().zip(blocks) {
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
        part_blocks,
    })
}

impl Plan {
    /// Whether the kernel adds up what all ranks have. A thread has one output then; and it must be of one row, so that blocks wait for
    /// each other in one order, whatever kernels other ranks have.
    pub(super) fn can_add_ranks(&self, cuda: &Cuda) -> bool {
        let reaches = cuda.member.as_ref().is_some_and(|m| m.ranks().is_some());
        let fits = self.max_outs <= MIN_THREADS && self.n_blocks <= MAX_BLOCKS && self.y_stride <= PLACES;
        reaches && self.m == 1 && fits
    }

    /// The arguments for the first row of an operation.
    fn args(&self, op: &Matmul<'_>) -> GemvArgs {
        let ((x, norm), y) = (op.float_input(), op.float_output());
        let none =
            GemvPart { w: DevicePtr::NULL, row_bytes: 0, layout: 0, first_out: 0, n_out: 0, first_block: 0 };
        let mut parts = [none; MAX_PARTS];
        for (to, &(rows, from)) in parts.iter_mut().zip(&self.parts) {
            *to = GemvPart { w: op.w.row(rows), ..from };
        }
        GemvArgs {
            y,
            x,
            norm_weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            bias: op.bias_ptr(),
            parts,
            n_parts: self.parts.len() as u32,
            n_blocks: self.n_blocks as u32,
            n_in: self.n_in as u32,
            m: 1,
            y_stride: self.y_stride as u32,
            epilogue: op.epilogue.code(),
            activation: op.epilogue.activation_code(),
            large_ring: u32::from(self.has_large_ring),
            inv_n: 1.0 / self.n_in as f32,
            eps: norm.map_or(0.0, |n| n.eps),
        }
    }

    pub(super) fn run(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        let all = self.args(op);
        // In a model all products of one row choose alike, by the width of the residual stream: so they are one kernel, whose instructions
        // stay near.
        let width = match op.epilogue {
            Epilogue::Add | Epilogue::AddRanks => self.y_stride,
            Epilogue::Store | Epilogue::Gate(_) | Epilogue::Activate(_) => self.n_in,
        };
        let is_large = width > GROUP;
        for first in (0..self.m).step_by(self.rows.max(1)) {
            let m = self.rows.min(self.m - first);
            let (y, x) = (all.y.offset(4 * first * self.y_stride), all.x.offset(4 * first * self.n_in));
            let args = GemvArgs { y, x, m: m as u32, ..all };
            let shared = self.ring + m * self.shared_bytes_per_row;
            let shared = if m == 1 { cuda.smem_guard.request(&*cuda.driver, shared) } else { shared };
            let kernels = cuda.room::<Kernels>();
            let blocks = [self.n_blocks, 1, 1];
            let ranks = cuda.member.as_ref().and_then(Member::ranks);
            if m > 1 {
                // SAFETY: the callers checked the shapes of x, y and the bias; the parts hold the rows that they say.
                unsafe { cuda.launch_shared(kernels.gemv_8, blocks, 384, shared, &args)? };
                cuda.smem_guard.set(shared);
                continue;
            }
            let (one_row, threads) = match Weights::of_layout(self.parts[0].1.layout).is_simple() {
                true => (kernels.gemv_256, 256),
                false if is_large => (kernels.gemv_512, 512),
                false => (kernels.gemv_384, 384),
            };
            if let Some(part_blocks) = self.part_blocks {
                let args = GemvInOrderArgs { product: args, part_blocks: part_blocks as u32 };
                // SAFETY: as above.
                unsafe { cuda.launch_shared(one_row.in_order, blocks, threads, shared, &args)? };
                cuda.smem_guard.set(shared);
                continue;
            }
            match ranks {
                // SAFETY: as above.
                None => unsafe { cuda.launch_shared(one_row.alone, blocks, threads, shared, &args)? },
                Some(ranks) => {
                    let args = GemvRanksArgs { product: args, ranks };
                    // SAFETY: as above; mailboxes have places for as many numbers as `can_add_ranks` allows.
                    unsafe { cuda.launch_shared(one_row.ranks, blocks, threads, shared, &args)? }
                }
            }
            cuda.smem_guard.set(shared);
        }
        Ok(())
    }
}

/// How rows are multiplied with the experts that each uses.
pub(in crate::cuda) struct ExpertsPlan {
    gate_up: Plan,
    down: Plan,
    /// Rows of activations.
    m: usize,
    intermediate_size: usize,
    in_order: bool,
}

/// Rows, the experts that each uses, and where the results go.
pub(in crate::cuda) struct ExpertsRows<'a> {
    /// `[n_experts, 2 * intermediate_size, hidden_size]` and `[n_experts, hidden_size, intermediate_size]`
    pub(in crate::cuda) weights: [&'a Matrix; 2],
    /// As `weights`, or null: `[n_experts, 2 * intermediate_size]` and `[n_experts, hidden_size]`
    pub(in crate::cuda) biases: [DevicePtr; 2],
    /// `[m, hidden_size]`, normalized first where a norm is given.
    pub(in crate::cuda) x: Input<'a>,
    /// `[m, hidden_size]`
    pub(in crate::cuda) y: Output,
    /// `Store`, or `Add` to `y`.
    pub(in crate::cuda) epilogue: Epilogue,
    pub(in crate::cuda) activation: Activation,
    /// What chooses the experts of each row, by scores that the kernel before leaves.
    pub(in crate::cuda) route: RouteArgs,
    /// Room for `[m, n_used, intermediate_size]`.
    pub(in crate::cuda) hidden: DevicePtr,
}

/// Plans `m` rows that use `n_used` experts each, `in_order` with the bits that [`grouped_small_m`](super::grouped_small_m) has; `None` where the
/// kernel cannot.
pub(in crate::cuda) fn plan_experts(
    target: &Target,
    gate_up: &MatrixShape,
    down: &MatrixShape,
    (m, n_used): (usize, usize),
    in_order: bool,
) -> Option<ExpertsPlan> {
    let is_one = down.parts.len() == 1 && (1..=MAX_USED).contains(&n_used);
    if !is_one || m == 0 || gate_up.n_in == 0 || down.n_in == 0 {
        return None;
    }
    let (gate_up_parts, down_parts) = (parts(gate_up, true)?, parts(down, false)?);
    let can_be_in_order =
        |parts: &[(PartRows, GemvPart)], n_row: usize| match Weights::of_layout(parts[0].1.layout) {
            // Blocks of 256 activations with one scale do not go from one row to the next.
            Weights::Packed(t) => {
                t.of_gemm_i8 && (!t.has_integer_scales() || n_row.is_multiple_of(X_COLUMNS))
            }
            _ => false,
        };
    if in_order && !(can_be_in_order(&gate_up_parts, gate_up.n_in) && can_be_in_order(&down_parts, down.n_in))
    {
        return None;
    }
    let (outs, ins) = (n_used * down.n_in, n_used * down.n_in);
    // An SM has one block.
    let n_blocks = (target.n_sms / m).max(1);
    Some(ExpertsPlan {
        gate_up: finish_experts(
            target,
            n_blocks,
            gate_up_parts,
            (gate_up.n_in, gate_up.n_in),
            outs,
            in_order,
        )?,
        down: finish_experts(target, n_blocks, down_parts, (ins, down.n_in), down.n_out, in_order)?,
        m,
        intermediate_size: down.n_in,
        in_order,
    })
}

/// A product of `n_out` outputs, of a gate where there are two parts, with `n_in` activations and rows of `n_row` weights, for each of which
/// `n_blocks` blocks are wanted.
fn finish_experts(
    target: &Target,
    n_blocks: usize,
    mut parts: Vec<(PartRows, GemvPart)>,
    (n_in, n_row): (usize, usize),
    n_out: usize,
    in_order: bool,
) -> Option<Plan> {
    let weights = Weights::of_layout(parts[0].1.layout);
    let is_plain = weights.is_plain();
    let shares = Shares { is_plain, in_order };
    let (n_sums, x_bytes) = (n_in / n_row * shares.n_sums(n_row) * parts.len(), shares.x_bytes(n_in));
    let ring = weights.gemv_ring(target.hopper, false);
    let room = (target.max_shared_bytes - GEMV_STATIC_BYTES).checked_sub(ring + x_bytes)?;
    let (blocks, max_outs) =
        distribute(n_blocks, &[n_out], &[n_out], |outs| (4 * outs * n_sums <= room).then_some(outs))?;
    parts.iter_mut().for_each(|(_, part)| part.n_out = n_out as u32);
    Some(Plan {
        parts,
        n_blocks: blocks[0],
        n_in,
        y_stride: n_out,
        m: 1,
        rows: 1,
        ring,
        has_large_ring: false,
        shared_bytes_per_row: x_bytes + 4 * max_outs * n_sums,
        max_outs,
        part_blocks: None,
    })
}

impl ExpertsPlan {
    pub(in crate::cuda) fn run(&self, cuda: &Cuda, rows: &ExpertsRows<'_>) -> Result<()> {
        let [gate_up, down] = rows.weights;
        let hidden = rows.hidden;
        let of = |w, x, y, epilogue| Matmul { w, x, y, bias: None, m: self.m, epilogue };
        let gate = of(gate_up, rows.x, Output::Floats(hidden), Epilogue::Gate(rows.activation));
        let sum = of(down, Input::Floats(hidden, None), rows.y, rows.epilogue);
        self.launch(cuda, &self.gate_up, &gate, rows, (rows.biases[0], self.intermediate_size))?;
        self.launch(cuda, &self.down, &sum, rows, (rows.biases[1], down.shape.n_out))
    }

    /// One product, of experts with this bias and so many outputs.
    fn launch(
        &self,
        cuda: &Cuda,
        plan: &Plan,
        op: &Matmul<'_>,
        rows: &ExpertsRows<'_>,
        (bias, n_out): (DevicePtr, usize),
    ) -> Result<()> {
        let part = &op.w.parts[0].shape;
        let args = GemvExpertsArgs {
            product: plan.args(op),
            route: rows.route,
            bias,
            expert_bytes: (part.n_out * part.row_bytes) as u64,
            n_out: n_out as u32,
            n_row: op.w.shape.n_in as u32,
        };
        let kernels = cuda.room::<Kernels>();
        let [simple, other] = if self.in_order { kernels.experts_in_order } else { kernels.experts };
        let is_simple = Weights::of_layout(plan.parts[0].1.layout).is_simple();
        let (f, threads) = if is_simple { (simple, 256) } else { (other, 384) };
        let shared = cuda.smem_guard.request(&*cuda.driver, plan.ring + plan.shared_bytes_per_row);
        // SAFETY: the caller checked the shapes of x, y and the biases; the parts hold the rows of all experts, and the router chose among
        // these.
        unsafe { cuda.launch_shared(f, [plan.n_blocks, self.m, 1], threads, shared, &args)? };
        cuda.smem_guard.set(shared);
        Ok(())
    }
}
