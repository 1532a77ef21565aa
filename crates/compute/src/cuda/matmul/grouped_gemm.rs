//! Launches of products of many rows with the experts that they use, on Hopper's tensor cores: weights are decoded on the way, as in
//! [`super::mixed_gemm`].

use super::grouped::{GroupedRows, Operand, TiledRows};
use super::matrix::Matrix;
use super::mixed_gemm::{
    ActivationLayout, MAX_CLUSTER, MAX_PARTS, MixedGemmArgs, MixedGemmPart, NO_PART, OUTS, PITCH, Parts,
    Rings, SHAPE_OF_96, SHAPES, STEP, Shape, THREADS, parts,
};
use super::shape::{MatrixShape, Target};
use crate::cuda::common::activation_code;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{Activation, Result};

/// Rows of a tile of the kernels that there are.
const ROWS: [usize; 3] = [16, 64, 96];
/// Rows of an expert on average from which on each is used: few experts have so many more that they need another tile.
const FROM_ROWS: [usize; 3] = [0, 9, 33];
/// The numbers that kernels know epilogues by.
const STORE: u32 = 0;
const GATE: u32 = 2;

kernel_args! {
    in "grouped_gemm_args.cuh";
    include "mixed_gemm_args.cuh";

    struct GroupedGemmArgs {
        /// x: [tiles of rows, padded / 64, N, 64], x_scales: [tiles of rows, N]; y is by slot, or as x
        product: MixedGemmArgs,
        /// [tiles of rows]
        tiles: DevicePtr as "const struct RowTile*",
        /// how many of these have rows
        n_filled: DevicePtr as "const uint32_t*",
        /// tiles of outputs, each of which makes an item of work with each tile of rows
        out_tiles: u32,
        /// where in shared memory the sums of an item are
        sums_at: u32,
        /// of a gate [n_experts, 2 * y_stride], or null; not where y is tiles
        bias: DevicePtr as "const float*",
        /// of a part's weights, from one expert to the next
        expert_rows: u32,
    }
}

/// Kernels of grouped_gemm.cu, on Hopper, in the order of [`ROWS`].
pub(in crate::cuda) struct Kernels(Option<[Kernel<GroupedGemmArgs>; 3]>);

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        if !driver.is_hopper() {
            return Ok(Self(None));
        }
        let image = kernel_image!(grouped_gemm);
        let kernel = |rows| image.kernel(driver, &format!("grouped_gemm_{rows}"), shape(rows).shared_bytes);
        let [few, more, many] = ROWS.map(kernel);
        Ok(Self(Some([few?, more?, many?])))
    }
}

/// What the kernel for tiles of so many rows is like.
fn shape(rows: usize) -> &'static Shape {
    SHAPES.iter().chain([&SHAPE_OF_96]).find(|s| s.rows == rows).expect("a shape of these rows")
}

/// One of the two products.
struct Product {
    parts: Parts,
    rings: Rings,
    /// Of activations.
    layout: ActivationLayout,
    n_in: usize,
    /// Of an expert; of a gate the outputs of one half.
    n_out: usize,
    up_row: Option<usize>,
    /// Rows of a part, from one expert to the next.
    expert_rows: usize,
}

/// How the items of work are shared out among blocks.
#[derive(Clone, Copy)]
enum Blocks {
    /// One item to a block.
    ForEach,
    /// As many as there is room for, each of which takes several.
    Persistent { n: usize },
}

impl Product {
    fn operand(&self) -> Operand {
        Operand { layout: self.layout, n: self.n_in }
    }
}

/// How experts are computed.
pub(in crate::cuda) struct Plan {
    gate_up: Product,
    down: Product,
    /// Index in [`ROWS`].
    kernel: usize,
    blocks: Blocks,
}

/// Plans `m` rows that use `n_used` experts each; `None` where these kernels cannot.
pub(in crate::cuda) fn plan(
    target: &Target,
    gate_up: &MatrixShape,
    down: &MatrixShape,
    n_uses: usize,
) -> Option<Plan> {
    if !target.hopper || down.parts.len() != 1 {
        return None;
    }
    let kernel = FROM_ROWS.iter().rposition(|&rows| n_uses >= rows * gate_up.n_experts)?;
    let shape = shape(ROWS[kernel]);
    let blocks = match kernel {
        0 => Blocks::Persistent { n: shape.blocks * target.n_sms },
        _ => Blocks::ForEach,
    };
    let beside_rings = match blocks {
        Blocks::Persistent { .. } => sums_bytes(shape),
        Blocks::ForEach => 0,
    };
    let [gate_up, down] =
        [(gate_up, true), (down, false)].map(|(w, gate)| product(shape, beside_rings, w, gate));
    Some(Plan { gate_up: gate_up?, down: down?, kernel, blocks })
}

/// Shared memory of an item's sums.
fn sums_bytes(shape: &Shape) -> usize {
    4 * PITCH * shape.rows
}

fn product(shape: &Shape, beside_rings: usize, w: &MatrixShape, gate: bool) -> Option<Product> {
    let (parts, up_row) = parts(w, gate)?;
    let part = w.parts.first()?;
    if w.n_in == 0 || w.parts.iter().any(|p| p.n_out != part.n_out) {
        return None;
    }
    Some(Product {
        rings: Rings::new(shape, beside_rings, &parts)?,
        parts,
        layout: ActivationLayout::of(part),
        n_in: w.n_in,
        n_out: if gate { w.n_out / 2 } else { w.n_out },
        up_row,
        expert_rows: part.n_out,
    })
}

impl Plan {
    /// Rows of a tile.
    pub(in crate::cuda) fn tile_rows(&self) -> usize {
        ROWS[self.kernel]
    }

    pub(in crate::cuda) fn run(&self, cuda: &Cuda, rows: &GroupedRows<'_>) -> Result<()> {
        let [gate_up, down] = rows.weights;
        let (x, hidden) = (self.gate_up.operand(), self.down.operand());
        let x = rows.convert_inputs(cuda, x)?;
        let hidden_tiles = rows.hidden_tiles(cuda, hidden)?;
        if self.writes_tiles(rows) {
            let hidden = TiledRows { tiles: hidden_tiles, scales: DevicePtr::NULL };
            self.launch(cuda, rows, &self.gate_up, gate_up, (hidden_tiles, rows.gate_up_bias), x)?;
            return self.launch(cuda, rows, &self.down, down, (rows.y, DevicePtr::NULL), hidden);
        }
        self.launch(cuda, rows, &self.gate_up, gate_up, (rows.hidden, rows.gate_up_bias), x)?;
        let hidden = rows.convert_hidden(cuda, hidden, hidden_tiles)?;
        self.launch(cuda, rows, &self.down, down, (rows.y, DevicePtr::NULL), hidden)
    }

    /// Whether the gated results can be the tiles that the second product reads.
    fn writes_tiles(&self, rows: &GroupedRows<'_>) -> bool {
        let can_activate = matches!(rows.activation, Activation::Silu | Activation::GeluTanh);
        can_activate && rows.gate_up_bias == DevicePtr::NULL && self.down.n_in.is_multiple_of(STEP)
    }

    /// Multiplies all tiles of rows. `y`: the results; `bias`: of the experts.
    fn launch(
        &self,
        cuda: &Cuda,
        rows: &GroupedRows<'_>,
        product: &Product,
        w: &Matrix,
        (y, bias): (DevicePtr, DevicePtr),
        x: TiledRows,
    ) -> Result<()> {
        let is_gate = product.up_row.is_some();
        let tiles = (is_gate && self.writes_tiles(rows)).then_some(self.down.layout);
        let mut parts = [NO_PART; MAX_PARTS];
        for (to, &(of, from)) in parts.iter_mut().zip(&product.parts) {
            let maps = w.parts[of.part].maps.expect("a part that was planned has maps");
            let [vectors, rest] = match tiles {
                Some(ActivationLayout::PackedHalf) => maps.interleaved.expect("experts of whole steps"),
                _ => maps.in_order,
            };
            *to = MixedGemmPart { vectors, rest, ..from };
        }
        let mut steps = [0; MAX_CLUSTER + 1];
        steps[1] = product.n_in.div_ceil(STEP) as u32;
        let product_args = MixedGemmArgs {
            parts,
            y,
            x: x.tiles,
            x_scales: x.scales,
            bias: DevicePtr::NULL,
            n_parts: product.parts.len() as u32,
            first_tile: 0,
            steps,
            n_pieces: product.n_in.div_ceil(64) as u32,
            m: 0,
            y_stride: product.n_out as u32,
            epilogue: if is_gate { GATE } else { STORE },
            tiles: tiles.map_or(0, |layout| layout as u32),
            activation: activation_code(rows.activation),
            up_row: product.up_row.unwrap_or(0) as u32,
            w_stages: product.rings.w_stages as u32,
            x_stages: product.rings.x_stages as u32,
            w_stage_bytes: product.rings.w_stage_bytes as u32,
        };
        let shape = shape(self.tile_rows());
        let out_tiles = product.n_out.div_ceil(if is_gate { OUTS / 2 } else { OUTS });
        let n_items = out_tiles * rows.n_tiles;
        let (n_blocks, sums_at) = match self.blocks {
            Blocks::ForEach => (n_items, 0),
            Blocks::Persistent { n } => (n.min(n_items), shape.shared_bytes - sums_bytes(shape)),
        };
        let args = GroupedGemmArgs {
            product: product_args,
            tiles: rows.tiles,
            n_filled: rows.n_filled,
            out_tiles: out_tiles as u32,
            sums_at: sums_at as u32,
            bias,
            expert_rows: product.expert_rows as u32,
        };
        let f = cuda.room::<Kernels>().0.expect("it was planned for Hopper")[self.kernel];
        // SAFETY: the maps are of the parts' rows, of all experts; the activations are tiles of as many rows and columns as the kernel
        // reads, and the results have room for all uses, or tiles. The router chose among the experts.
        unsafe { cuda.launch_shared(f, [n_blocks, 1, 1], THREADS, shape.shared_bytes, &args) }
    }
}
