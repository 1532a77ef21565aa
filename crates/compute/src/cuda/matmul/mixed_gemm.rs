//! Launches of matmuls with up to 256 rows of activations on Hopper's tensor cores, which decode packed weights on the way.

use super::maps::{BOX_BYTES, PLAIN_BYTES, has_interleaved_maps, has_maps};
use super::matrix::Part;
use super::op::Matmul;
use super::packed_types::{FIRST_PACKED, N_COMMON};
use super::shape::{Layout, MatrixShape, PartRows, PartShape, Target};
use super::weights::Weights;
use crate::cuda::common::{Input, Output, TileLayout, Tiles};
use crate::cuda::driver::{
    BoxMap, Cuda, DevicePtr, Driver, Grid, Kernel, KernelImage, Mode, grid_blocks, kernel_args, kernel_image,
};
use crate::{Activation, DType, Norm, Result, Tensor};

/// Outputs of a block.
pub(super) const OUTS: usize = 128;
/// Columns of a stage of packed weights. Ranges of columns that blocks share, and activations, are so many or some times that.
pub(super) const STEP: usize = 256;
/// Threads of a block.
pub(super) const THREADS: u32 = 384;
/// Floats from one row's sums to the next one's.
pub(super) const PITCH: usize = OUTS + 4;
/// Stages of the rings at most.
const MAX_STAGES: usize = 16;
/// Tiles that a block can leave partial sums of, and parts of each with a flag of their own.
const PARTIALS: usize = 2;
const QUARTERS: usize = 4;
/// Most threads that convert a row of activations, eight columns each.
const ACTIVATION_THREADS: usize = 512;

/// What a kernel is like; mixed_gemm.cu has the same numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Rows of activations that it takes.
    pub(super) rows: usize,
    /// Blocks that an SM has room for.
    pub(super) blocks: usize,
    /// Dynamic shared memory.
    pub(super) shared_bytes: usize,
    /// Of it, what the ring of activations has at least, and the bytes of one of its stages.
    x_ring: usize,
    x_stage: usize,
    /// What a block takes for a step with weights of 4 bits, in microseconds.
    step_us: f32,
    /// Whether packed weights are left to stream_k.cu.
    stream_k: bool,
}

/// The kernels, by the rows that they take.
#[rustfmt::skip]
pub(super) const SHAPES: [Shape; 6] = [
    Shape { rows: 8,   blocks: 2, shared_bytes: 112 << 10, x_ring: 32 << 10,  x_stage: 4 << 10,  step_us: 0.6, stream_k: false },
    Shape { rows: 16,  blocks: 2, shared_bytes: 112 << 10, x_ring: 32 << 10,  x_stage: 8 << 10,  step_us: 0.6, stream_k: false },
    Shape { rows: 32,  blocks: 2, shared_bytes: 112 << 10, x_ring: 32 << 10,  x_stage: 16 << 10, step_us: 0.6, stream_k: false },
    Shape { rows: 64,  blocks: 2, shared_bytes: 112 << 10, x_ring: 48 << 10,  x_stage: 16 << 10, step_us: 0.6, stream_k: false },
    Shape { rows: 128, blocks: 1, shared_bytes: 222 << 10, x_ring: 128 << 10, x_stage: 16 << 10, step_us: 1.2, stream_k: true },
    Shape { rows: 256, blocks: 1, shared_bytes: 222 << 10, x_ring: 128 << 10, x_stage: 32 << 10, step_us: 2.4, stream_k: true },
];

/// One more, of grouped_gemm.cu.
#[rustfmt::skip]
pub(super) const SHAPE_OF_96: Shape =
    Shape { rows: 96,  blocks: 2, shared_bytes: 112 << 10, x_ring: 48 << 10,  x_stage: 12 << 10, step_us: 0.6, stream_k: false };

/// Most rows of a kernel.
const MAX_ROWS: usize = 256;

/// Blocks of a cluster, and how many of these an H200 runs at once with one block to each of its 132 SMs, of which not all have
/// enough neighbours.
const CLUSTERS: [(usize, usize); 5] = [(1, 132), (2, 66), (3, 39), (4, 30), (MAX_CLUSTER, 17)];
const CLUSTERS_OF: usize = 132;
/// What each block of a cluster adds to the time of all: their sums are brought from one to the other.
const RANK_US: f32 = 0.8;

kernel_args! {
    in "mixed_gemm_args.cuh";
    include "../common/hopper.cuh";

    /// Parts that the kernels take.
    const MAX_PARTS: usize = 4;

    /// Blocks of a cluster at most.
    const MAX_CLUSTER: usize = 6;

    struct MixedGemmPart {
        /// The rows of weights as bytes, and their boxes of 64 rows: of 64 bytes, and of 16 for what is not vectors; or of 128 bytes of plain weights, which lie in shared memory as `smem_desc` wants them.
        vectors: BoxMap as "ptx::TensorMap",
        rest: BoxMap as "ptx::TensorMap",
        layout: u32,
        /// of the whole matrix
        first_out: u32,
        n_out: u32,
        /// tiles `first_tile` to the next part's own it
        first_tile: u32,
    }

    struct MixedGemmArgs {
        parts: [MixedGemmPart; MAX_PARTS],
        /// [m, y_stride], or tiles
        y: DevicePtr as "float*",
        /// as `mixed_gemm_activations` writes it
        x: DevicePtr as "const uint16_t*",
        /// [m], or null where all are `fixed_scale`
        x_scales: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        n_parts: u32,
        /// of this launch
        first_tile: u32,
        /// steps[r] to steps[r + 1] are those of block r of a cluster
        steps: [u32; MAX_CLUSTER + 1],
        /// of a row of weights, the last of which may end early
        n_pieces: u32,
        m: u32,
        y_stride: u32,
        /// GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
        epilogue: u32,
        /// of GATE: the `ActivationLayout` of the tiles that y is, or 0
        tiles: u32,
        activation: u32,
        /// of part 1: its first row of weights
        up_row: u32,
        /// of the rings
        w_stages: u32,
        x_stages: u32,
        w_stage_bytes: u32,
    }

    struct MixedGemmActivationArgs {
        /// [tiles of rows, padded / 64, rows, 64]
        y: DevicePtr as "uint16_t*",
        /// [tiles of rows, rows], what each row must be multiplied with
        scales: DevicePtr as "float*",
        /// [.., n]
        x: DevicePtr as "const float*",
        /// [blocks] the row of x of each, or null: in order
        x_rows: DevicePtr as "const uint32_t*",
        /// [blocks, n_places] rows of y that each row of x becomes, or null: one, the same
        places: DevicePtr as "const uint32_t*",
        /// [n] of the norm that comes before, or null
        weight: DevicePtr as "const float*",
        /// columns, and with those of zeros at the end
        n: u32,
        padded: u32,
        /// an `ActivationLayout`
        layout: u32,
        /// of a tile of rows
        rows: u32,
        n_places: u32,
        eps: f32,
    }
}

kernel_args! {
    in "stream_k_args.cuh";
    include "mixed_gemm_args.cuh";

    struct StreamKArgs {
        of_all: MixedGemmArgs,
        /// partial sums that blocks leave, [2 of each block, N / 8, MULTIPLIERS]
        partials: DevicePtr as "float4*",
        /// whether a quarter of them is there, [2 of each block, QUARTERS], zeros between launches
        is_ready: DevicePtr as "uint32_t*",
        n_tiles: u32,
        n_steps: u32,
    }
}

/// What activations become, by the kernel's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ActivationLayout {
    /// Half precision in the order of packed columns.
    PackedHalf = 1,
    /// Half precision as they are.
    PlainHalf = 2,
    /// BF16 as they are.
    PlainBfloat = 3,
}

impl ActivationLayout {
    fn tile_layout(self) -> TileLayout {
        match self {
            Self::PackedHalf => TileLayout::PackedHalf,
            Self::PlainHalf => TileLayout::PlainHalf,
            Self::PlainBfloat => TileLayout::PlainBfloat,
        }
    }

    /// `None` for tiles that other kernels read.
    fn of_tiles(layout: TileLayout) -> Option<Self> {
        match layout {
            TileLayout::PackedHalf => Some(Self::PackedHalf),
            TileLayout::PlainHalf => Some(Self::PlainHalf),
            TileLayout::PlainBfloat => Some(Self::PlainBfloat),
            TileLayout::GemmBfloat | TileLayout::GemmHalf => None,
        }
    }

    /// What a part of a matrix wants.
    pub(super) fn of(part: &PartShape) -> Self {
        match (part.layout, part.dtype) {
            (Layout::Packed, _) => Self::PackedHalf,
            (Layout::Blocks, DType::BF16) => Self::PlainBfloat,
            (Layout::Blocks, _) => Self::PlainHalf,
        }
    }
}

/// Kernels of mixed_gemm.cu and stream_k.cu.
pub(in crate::cuda) struct Kernels {
    pub(super) activations: Kernel<MixedGemmActivationArgs>,
    hopper: Option<HopperKernels>,
}

/// Those that multiply, in the order of [`SHAPES`].
struct HopperKernels {
    mixed_gemm: Vec<ByTypes<MixedGemmArgs>>,
    /// `None` where packed weights have no kernel of their own.
    stream_k: Vec<Option<ByTypes<StreamKArgs>>>,
}

/// A kernel for all types of weights, and the same for those that are met most often, where it has packed ones.
struct ByTypes<A> {
    all: Kernel<A>,
    common: Option<Kernel<A>>,
}

impl<A> ByTypes<A> {
    fn load(
        driver: &dyn Driver,
        image: KernelImage,
        name: &str,
        shape: &Shape,
        has_packed: bool,
    ) -> Result<Self> {
        let kernel = |name: &str| image.kernel(driver, name, shape.shared_bytes);
        let common = || kernel(&format!("{name}_{}_common", shape.rows));
        Ok(Self {
            all: kernel(&format!("{name}_{}", shape.rows))?,
            common: has_packed.then(common).transpose()?,
        })
    }

    fn of(&self, are_common: bool) -> Kernel<A> {
        self.common.filter(|_| are_common).unwrap_or(self.all)
    }
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let (mixed_gemm, stream_k) = (kernel_image!(mixed_gemm), kernel_image!(stream_k));
        let activations = mixed_gemm.kernel(driver, "mixed_gemm_activations", 0)?;
        if !driver.is_hopper() {
            return Ok(Self { activations, hopper: None });
        }
        let of_stream_k = |s| ByTypes::load(driver, stream_k, "stream_k", s, true);
        let hopper = HopperKernels {
            mixed_gemm: SHAPES
                .iter()
                .map(|s| ByTypes::load(driver, mixed_gemm, "mixed_gemm", s, !s.stream_k))
                .collect::<Result<_>>()?,
            stream_k: SHAPES
                .iter()
                .map(|s| s.stream_k.then(|| of_stream_k(s)).transpose())
                .collect::<Result<_>>()?,
        };
        Ok(Self { activations, hopper: Some(hopper) })
    }
}

/// In place of a part that there is not, or whose maps are not known yet.
pub(super) const NO_PART: MixedGemmPart = MixedGemmPart {
    vectors: BoxMap([0; 16]),
    rest: BoxMap([0; 16]),
    layout: 0,
    first_out: 0,
    n_out: 0,
    first_tile: 0,
};

/// Tiles of a block's outputs each, from one on, whose columns `cluster` blocks share.
#[derive(Clone, Copy)]
struct Launch {
    first_tile: usize,
    n_tiles: usize,
    cluster: usize,
}

/// Which blocks multiply what.
enum Division {
    /// A tile is a block's, or a cluster's.
    Clusters(Vec<Launch>),
    /// Stream-K: the steps of all tiles are divided evenly among so many blocks.
    StreamK { blocks: usize, n_tiles: usize },
}

/// How one matmul is done.
pub(super) struct Plan {
    parts: Parts,
    /// Of activations.
    activation_layout: ActivationLayout,
    /// Of the gated results, which are tiles.
    tiles: Option<ActivationLayout>,
    /// Index of the kernel.
    shape: usize,
    division: Division,
    n_in: usize,
    m: usize,
    y_stride: usize,
    up_row: usize,
    rings: Rings,
}

/// Stages of the rings in a block's shared memory.
#[derive(Clone, Copy)]
pub(super) struct Rings {
    pub(super) w_stages: usize,
    pub(super) x_stages: usize,
    pub(super) w_stage_bytes: usize,
}

impl Rings {
    /// Rings in a block's shared memory but for so many bytes at its end.
    pub(super) fn new(shape: &Shape, reserved: usize, parts: &[(PartRows, MixedGemmPart)]) -> Option<Self> {
        let weights = || parts.iter().map(|(_, p)| Weights::of_layout(p.layout));
        // A type's table lies after the rings.
        let shared_bytes = shape.shared_bytes - reserved - weights().map(Weights::table_bytes).max()?;
        let w_stage_bytes = OUTS * weights().map(stage_bytes).max()?;
        let w_stages = ((shared_bytes - shape.x_ring) / w_stage_bytes).clamp(2, MAX_STAGES);
        let x_stages = ((shared_bytes - w_stages * w_stage_bytes) / shape.x_stage).min(MAX_STAGES);
        Some(Self { w_stages, x_stages, w_stage_bytes })
    }
}

/// Plans `m` rows times the matrix, or for a `gate` times the halves of its outputs; `None` where these kernels cannot.
pub(super) fn plan(target: &Target, w: &MatrixShape, m: usize, gate: bool) -> Option<Plan> {
    if w.n_experts != 1 {
        return None;
    }
    let (parts, up_row) = parts(w, gate)?;
    finish(target, w, m, parts, up_row)
}

/// Parts of a matrix, without their maps.
pub(super) type Parts = Vec<(PartRows, MixedGemmPart)>;

/// The parts of a matrix, or for a `gate` the halves of its outputs, and of these the first row of the second.
pub(super) fn parts(w: &MatrixShape, gate: bool) -> Option<(Parts, Option<usize>)> {
    let part = |rows: PartRows, n_out: usize| {
        let part = &w.parts[rows.part];
        let (layout, first_out) = (Weights::of(part, w.n_in)?.layout(), part.first_out as u32);
        let args = MixedGemmPart { layout, first_out, n_out: n_out as u32, ..NO_PART };
        has_maps(part).then_some((rows, args))
    };
    if !gate {
        let parts = w.parts.iter().enumerate();
        let parts = parts.map(|(i, p)| part(PartRows { part: i, first: 0 }, p.n_out));
        return Some((parts.collect::<Option<_>>()?, None));
    }
    let [gate, up] = w.halves()?;
    let parts = vec![part(gate, w.n_out / 2)?, part(up, w.n_out / 2)?];
    (parts[0].1.layout == parts[1].1.layout).then_some((parts, Some(up.first)))
}

/// Bytes of a stage of weights, for one output.
fn stage_bytes(weights: Weights) -> usize {
    match weights {
        Weights::Plain { .. } => PLAIN_BYTES,
        Weights::Packed(t) => t.boxes()[0] * BOX_BYTES[0] + t.boxes()[1] * BOX_BYTES[1],
    }
}

fn finish(
    target: &Target,
    w: &MatrixShape,
    m: usize,
    mut parts: Parts,
    up_row: Option<usize>,
) -> Option<Plan> {
    if !target.hopper || parts.len() > MAX_PARTS {
        return None;
    }
    let activation_layout = ActivationLayout::of(w.parts.first()?);
    if w.parts.iter().any(|p| ActivationLayout::of(p) != activation_layout) {
        return None;
    }
    let is_of_128 = parts.iter().all(|(_, p)| Weights::of_layout(p.layout).is_of_stream_k_128());
    let index = SHAPES.iter().position(|s| m.min(MAX_ROWS) <= s.rows && (s.rows != 128 || is_of_128))?;
    let shape = SHAPES[index];
    let n_tiles = match up_row {
        Some(_) => (parts[0].1.n_out as usize).div_ceil(OUTS / 2),
        None => {
            let mut n_tiles = 0;
            for (_, part) in &mut parts {
                part.first_tile = n_tiles as u32;
                n_tiles += (part.n_out as usize).div_ceil(OUTS);
            }
            n_tiles
        }
    };
    let (n_sms, n_steps) = (target.n_sms, w.n_in.div_ceil(STEP));
    let is_stream_k = shape.stream_k && activation_layout == ActivationLayout::PackedHalf;
    if is_stream_k && !target.may_spin_across_blocks {
        return None;
    }
    let division = match is_stream_k {
        true => Division::StreamK { blocks: stream_k_blocks(n_sms, n_tiles, n_steps), n_tiles },
        false => {
            // The order of sums of any number of rows is that of a few.
            let shape = if target.mode == Mode::Deterministic { SHAPES[0] } else { shape };
            Division::Clusters(launches(&shape, n_sms, n_tiles, n_steps))
        }
    };
    let rings = Rings::new(&shape, 0, &parts)?;
    Some(Plan {
        parts,
        activation_layout,
        tiles: None,
        shape: index,
        division,
        n_in: w.n_in,
        m,
        y_stride: if up_row.is_some() { w.n_out / 2 } else { w.n_out },
        up_row: up_row.unwrap_or(0),
        rings,
    })
}

/// Rounds of as many single blocks as run at once, and then, in clusters, what is left.
fn launches(shape: &Shape, n_sms: usize, n_tiles: usize, n_steps: usize) -> Vec<Launch> {
    let at_once = |clusters: usize| (clusters * shape.blocks * n_sms / CLUSTERS_OF).max(1);
    let us = |n: usize| n_steps.div_ceil(n) as f32 * shape.step_us + n as f32 * RANK_US;
    let single = at_once(CLUSTERS_OF);
    let first_tile = n_tiles.saturating_sub(1) / single * single;
    let left = n_tiles - first_tile;
    let fit = CLUSTERS.iter().filter(|&&(n, clusters)| n <= n_steps && left <= at_once(clusters));
    let cluster = fit.map(|c| c.0).min_by(|&a, &b| us(a).total_cmp(&us(b))).unwrap_or(1);
    match cluster {
        1 => vec![Launch { first_tile: 0, n_tiles, cluster }],
        _ => vec![
            Launch { first_tile: 0, n_tiles: first_tile, cluster: 1 },
            Launch { first_tile, n_tiles: left, cluster },
        ],
    }
}

/// As many blocks as end soonest. Where as many for each tile do, no block has parts of two.
fn stream_k_blocks(n_sms: usize, n_tiles: usize, n_steps: usize) -> usize {
    let of_a_block = (n_tiles * n_steps).div_ceil(n_sms);
    let of_tiles = n_tiles * n_steps.div_ceil(of_a_block);
    if of_tiles <= n_sms { of_tiles } else { n_sms }
}

impl Plan {
    /// The tiles that this matmul reads, in the memory of its input `x`, where they are whole and fit.
    pub(super) fn tiles_in(&self, x: &Tensor<Cuda>) -> Option<Tiles> {
        assert_eq!((x.rows(), x.row_len()), (self.m, self.n_in));
        let rows = SHAPES[self.shape].rows;
        let fit = 2 * rows <= 4 * self.m && self.n_in.is_multiple_of(STEP);
        fit.then(|| Tiles { layout: self.activation_layout.tile_layout(), ptr: x.ptr(), rows })
    }

    /// The same plan of a gate with results in tiles; `None` where it cannot write those.
    pub(super) fn with_tiles(self, w: &MatrixShape, tiles: Tiles, f: Activation) -> Option<Self> {
        let layout = ActivationLayout::of_tiles(tiles.layout)?;
        let can_activate = matches!(f, Activation::Silu | Activation::GeluTanh);
        let fits = tiles.rows == SHAPES[self.shape].rows && (w.n_out / 2).is_multiple_of(STEP);
        let has_maps = layout != ActivationLayout::PackedHalf
            || self.parts.iter().all(|(r, _)| has_interleaved_maps(w.parts[r.part].n_out));
        (can_activate && fits && has_maps).then_some(Self { tiles: Some(layout), ..self })
    }

    /// The maps of a part's rows: interleaved where the results are tiles in the order of packed columns.
    fn maps(&self, part: &Part) -> [BoxMap; 2] {
        let maps = part.maps.expect("a part that was planned has maps");
        match self.tiles {
            Some(ActivationLayout::PackedHalf) => maps.interleaved.expect("it was planned with them"),
            _ => maps.in_order,
        }
    }

    /// A norm has no bias and divides by the root mean square.
    pub(super) fn run(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        if self.m <= MAX_ROWS {
            return self.run_rows(cuda, op);
        }
        let (x, norm) = op.float_input();
        for first in (0..self.m).step_by(MAX_ROWS) {
            let m = (self.m - first).min(MAX_ROWS);
            let x = Input::Floats(x.offset(4 * first * self.n_in), norm);
            let y = Output::Floats(op.float_output().offset(4 * first * self.y_stride));
            self.run_rows(cuda, &Matmul { x, y, m, ..*op })?;
        }
        Ok(())
    }

    /// Rows that one kernel takes, of those that were planned.
    fn run_rows(&self, cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
        assert_eq!(self.tiles.is_some(), op.y.tile_rows() > 0);
        let kernels = cuda.room::<Kernels>();
        let (tiles, scales) = match op.x {
            Input::Floats(x, norm) => self.activations(cuda, kernels, x, norm, op.m)?,
            Input::Tiles(tiles) => (tiles.ptr, DevicePtr::NULL),
        };
        let mut parts = [NO_PART; MAX_PARTS];
        for (to, &(rows, from)) in parts.iter_mut().zip(&self.parts) {
            let [vectors, rest] = self.maps(&op.w.parts[rows.part]);
            *to = MixedGemmPart { vectors, rest, ..from };
        }
        let args = MixedGemmArgs {
            parts,
            y: op.y.ptr(),
            x: tiles,
            x_scales: scales,
            bias: op.bias_ptr(),
            n_parts: self.parts.len() as u32,
            first_tile: 0,
            steps: [0; MAX_CLUSTER + 1],
            n_pieces: self.n_in.div_ceil(64) as u32,
            m: op.m as u32,
            y_stride: self.y_stride as u32,
            epilogue: op.epilogue.code(),
            tiles: self.tiles.map_or(0, |layout| layout as u32),
            activation: op.epilogue.activation_code(),
            up_row: self.up_row as u32,
            w_stages: self.rings.w_stages as u32,
            x_stages: self.rings.x_stages as u32,
            w_stage_bytes: self.rings.w_stage_bytes as u32,
        };
        let kernels = kernels.hopper.as_ref().expect("it was planned for Hopper");
        match &self.division {
            Division::Clusters(launches) => self.launch_clusters(cuda, kernels, launches, args),
            &Division::StreamK { blocks, n_tiles } => {
                self.launch_stream_k(cuda, kernels, blocks, n_tiles, args)
            }
        }
    }

    /// Whether all its weights are of types that are met most often.
    fn types_are_common(&self) -> bool {
        self.parts.iter().all(|(_, p)| (p.layout as usize) < FIRST_PACKED + N_COMMON)
    }

    fn launch_clusters(
        &self,
        cuda: &Cuda,
        kernels: &HopperKernels,
        launches: &[Launch],
        args: MixedGemmArgs,
    ) -> Result<()> {
        let f = kernels.mixed_gemm[self.shape].of(self.types_are_common());
        let n_steps = self.n_in.div_ceil(STEP);
        for &Launch { first_tile, n_tiles, cluster } in launches {
            let steps = std::array::from_fn(|rank| (n_steps * rank / cluster) as u32);
            let args = MixedGemmArgs { first_tile: first_tile as u32, steps, ..args };
            let grid = Grid {
                blocks: grid_blocks([cluster, n_tiles, 1]),
                threads: THREADS,
                shared_bytes: SHAPES[self.shape].shared_bytes as u32,
                cluster: cluster as u32,
            };
            // SAFETY: the callers checked the shapes of x, y and the bias; the maps are of the parts' rows, and the activations are
            // tiles of as many rows and columns as the kernel reads.
            unsafe { cuda.launch_grid(f, grid, &args)? };
        }
        Ok(())
    }

    fn launch_stream_k(
        &self,
        cuda: &Cuda,
        kernels: &HopperKernels,
        blocks: usize,
        n_tiles: usize,
        args: MixedGemmArgs,
    ) -> Result<()> {
        let shape = SHAPES[self.shape];
        let f = kernels.stream_k[self.shape].as_ref().expect("its shape has one").of(self.types_are_common());
        let n_partials = PARTIALS * blocks;
        let partials =
            cuda.scratch.get(&cuda.driver, "partial sums of tiles", 4 * n_partials * OUTS * shape.rows)?;
        let is_ready =
            cuda.scratch.zeros(&cuda.driver, "flags of partial sums", 4 * n_partials * QUARTERS)?;
        let (n_tiles, n_steps) = (n_tiles as u32, self.n_in.div_ceil(STEP) as u32);
        let args = StreamKArgs { of_all: args, partials, is_ready, n_tiles, n_steps };
        // SAFETY: x, y, the bias and the maps are as for `launch_clusters`; the scratch memories have room for what all blocks leave, and
        // each launch leaves zeros for flags. All blocks run at once: each SM has room for one, kernels of one stream come one after the
        // other, and those of the device's other streams wait for nobody.
        unsafe { cuda.launch_shared(f, [blocks, 1, 1], THREADS, shape.shared_bytes, &args) }
    }

    /// The rows of x as tiles, and what each must be multiplied with.
    fn activations(
        &self,
        cuda: &Cuda,
        kernels: &Kernels,
        x: DevicePtr,
        norm: Option<&Norm<Cuda>>,
        m: usize,
    ) -> Result<(DevicePtr, DevicePtr)> {
        let (rows, padded) = (SHAPES[self.shape].rows, self.n_in.next_multiple_of(STEP));
        let y = cuda.scratch.get(&cuda.driver, "tiles of activations", 2 * rows * padded)?;
        let scales = cuda.scratch.get(&cuda.driver, "factors of activations", 4 * rows)?;
        let args = MixedGemmActivationArgs {
            y,
            scales,
            x,
            x_rows: DevicePtr::NULL,
            places: DevicePtr::NULL,
            weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            n: self.n_in as u32,
            padded: padded as u32,
            layout: self.activation_layout as u32,
            rows: rows as u32,
            n_places: 1,
            eps: norm.map_or(0.0, |n| n.eps),
        };
        // SAFETY: x has m rows of n_in floats, and the scratch memory room for as many in tiles.
        unsafe { cuda.launch(kernels.activations, [m, 1, 1], activation_threads(self.n_in), &args)? };
        Ok((y, scales))
    }
}

/// Threads that convert a row of `n` activations.
pub(super) fn activation_threads(n: usize) -> u32 {
    n.div_ceil(8).next_multiple_of(32).clamp(32, ACTIVATION_THREADS) as u32
}
