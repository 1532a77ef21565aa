//! Launches of products of many rows with the experts that they use, on the tensor cores of any GPU: weights are decoded on their way to
//! shared memory.

use super::grouped::{GroupedRows, Operand, TiledRows};
use super::matrix::Matrix;
use super::mixed_gemm::{ActivationLayout, STEP};
use super::packed_types::{PACKED, packed_index};
use super::shape::{MatrixShape, PartRows};
use super::weights::Weights;
use crate::cuda::common::activation_code;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{DType, Result};

/// Rows of a tile, outputs of a block, and threads.
const ROWS: usize = 64;
const OUTS: usize = 128;
const THREADS: u32 = 256;

kernel_args! {
    in "grouped_mma_args.cuh";

    struct GroupedMmaArgs {
        /// by slot, [n_uses, n_out]
        y: DevicePtr as "float*",
        /// [tiles of rows, padded / 64, 64, 64] in order
        x: DevicePtr as "const uint8_t*",
        /// [tiles of rows, 64]
        x_scales: DevicePtr as "const float*",
        /// one for each blockIdx.y
        tiles: DevicePtr as "const struct RowTile*",
        /// of a gate [n_experts, 2 * n_out], or null
        bias: DevicePtr as "const float*",
        /// the matrix, or a gate's and its up's
        w: [DevicePtr; 2] as "const uint8_t*",
        row_bytes: u64,
        /// from one expert to the next
        expert_bytes: u64,
        n_in: u32,
        padded: u32,
        n_out: u32,
        gate: u32,
        activation: u32,
    }
}

/// Kernels of grouped_mma.cu.
pub(in crate::cuda) struct Kernels {
    f16: Kernel<GroupedMmaArgs>,
    bf16: Kernel<GroupedMmaArgs>,
    /// In the order of [`PACKED`].
    packed: Vec<Kernel<GroupedMmaArgs>>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(grouped_mma);
        let kernel = |name: &str| image.kernel(driver, &format!("grouped_mma_{name}"), 0);
        let packed = PACKED.iter().map(|t| kernel(&format!("Packed_{}", t.dtype)));
        Ok(Self { f16: kernel("F16")?, bf16: kernel("BF16")?, packed: packed.collect::<Result<_>>()? })
    }

    fn get(&self, dtype: DType) -> Kernel<GroupedMmaArgs> {
        match dtype {
            DType::F16 => self.f16,
            DType::BF16 => self.bf16,
            _ => self.packed[packed_index(dtype)],
        }
    }
}

/// How experts are computed.
pub(in crate::cuda) struct Plan(());

/// Plans experts of packed weights or such of 16 bits; `None` where these kernels cannot.
pub(in crate::cuda) fn plan(gate_up: &MatrixShape, down: &MatrixShape) -> Option<Plan> {
    let reads = |w: &MatrixShape| w.parts.iter().all(|p| Weights::of(p, w.n_in).is_some());
    let [gate, up] = gate_up.halves()?.map(|rows| &gate_up.parts[rows.part]);
    let are_alike = (gate.dtype, gate.layout) == (up.dtype, up.layout);
    (are_alike && down.parts.len() == 1 && reads(gate_up) && reads(down)).then_some(Plan(()))
}

impl Plan {
    /// Rows of a tile.
    pub(in crate::cuda) fn tile_rows(&self) -> usize {
        ROWS
    }

    pub(in crate::cuda) fn run(&self, cuda: &Cuda, rows: &GroupedRows<'_>) -> Result<()> {
        let [gate_up, down] = rows.weights;
        let x = rows.convert_inputs(cuda, operand(gate_up))?;
        let halves = gate_up.shape.halves().expect("it was planned with them");
        launch(cuda, rows, gate_up, Some(halves[1]), rows.hidden, x)?;
        let tiles = rows.hidden_tiles(cuda, operand(down))?;
        let hidden = rows.convert_hidden(cuda, operand(down), tiles)?;
        launch(cuda, rows, down, None, rows.y, hidden)
    }
}

/// What a product with these weights reads.
fn operand(w: &Matrix) -> Operand {
    let layout = match w.parts[0].shape.dtype {
        DType::BF16 => ActivationLayout::PlainBfloat,
        _ => ActivationLayout::PlainHalf,
    };
    Operand { layout, n: w.shape.n_in }
}

/// Multiplies all tiles of rows with the matrix, or with a gate and its `up`.
fn launch(
    cuda: &Cuda,
    rows: &GroupedRows<'_>,
    w: &Matrix,
    up: Option<PartRows>,
    y: DevicePtr,
    x: TiledRows,
) -> Result<()> {
    let (shape, part) = (&w.shape, &w.parts[0].shape);
    let first = PartRows { part: 0, first: 0 };
    let n_out = if up.is_some() { shape.n_out / 2 } else { shape.n_out };
    let args = GroupedMmaArgs {
        y,
        x: x.tiles,
        x_scales: x.scales,
        tiles: rows.tiles,
        bias: if up.is_some() { rows.gate_up_bias } else { DevicePtr::NULL },
        w: [w.row(first), w.row(up.unwrap_or(first))],
        row_bytes: part.row_bytes as u64,
        expert_bytes: (part.n_out * part.row_bytes) as u64,
        n_in: shape.n_in as u32,
        padded: shape.n_in.next_multiple_of(STEP) as u32,
        n_out: n_out as u32,
        gate: u32::from(up.is_some()),
        activation: activation_code(rows.activation),
    };
    let n_tiles = n_out.div_ceil(if up.is_some() { OUTS / 2 } else { OUTS });
    let f = cuda.room::<Kernels>().get(part.dtype);
    // SAFETY: the parts hold the rows of all experts, among which the router chose; the activations are tiles of as many rows and columns
    // as the kernel reads, and the results have room for all uses.
    unsafe { cuda.launch(f, [n_tiles, rows.n_tiles, 1], THREADS, &args) }
}
