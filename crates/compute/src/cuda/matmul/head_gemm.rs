//! Launches of products of heads with many rows, on the tensor cores of any GPU.

use super::heads::{HeadPart, HeadRows};
use super::packed_types::{PACKED, packed_index};
use super::shape::{MatrixShape, PartShape, Target};
use super::simt;
use super::weights::Weights;
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, Mode, kernel_args, kernel_image};
use crate::{DType, Result};

/// Rows of a block, outputs that it multiplies at a time, columns of a step, and threads.
const ROWS: usize = 64;
const OUTS: usize = 128;
const STEP: usize = 64;
const THREADS: u32 = 256;
/// Blocks that an SM of a GPU for servers runs at once.
const BLOCKS_PER_SM: usize = 2;
/// Fewest rows: those for which `simt_gemv` would read the weights more than once.
const MANY_ROWS: usize = simt::TILE_ROWS + 1;

kernel_args! {
    in "head_gemm_args.cuh";

    /// Most columns: the rows of a block and two stages of weights fit in the shared memory of any GPU.
    const MAX_IN: usize = 512;

    struct HeadGemmArgs {
        /// [m, y_stride], and this part's outputs from 0 on
        y: DevicePtr as "float*",
        /// [m, x_stride]
        x: DevicePtr as "const float*",
        /// [n_heads, n_out, n_in]
        w: DevicePtr as "const uint8_t*",
        row_bytes: u64,
        /// from one head to the next
        head_bytes: u64,
        n_in: u32,
        n_out: u32,
        m: u32,
        /// outputs of a block, a multiple of 128
        share: u32,
        x_stride: u32,
        y_stride: u32,
        /// elements from one head to the next, multiples of 4 in x
        x_head: u32,
        y_head: u32,
    }
}

/// Bytes of shared memory for `n_in` columns, as head_gemm.cu lays them out.
const fn shared_bytes(n_in: usize) -> usize {
    2 * (n_in.next_multiple_of(STEP) * ROWS + 2 * STEP * OUTS)
}

/// Kernels of head_gemm.cu.
pub(in crate::cuda) struct Kernels {
    f16: Kernel<HeadGemmArgs>,
    bf16: Kernel<HeadGemmArgs>,
    /// In the order of [`PACKED`].
    packed: Vec<Kernel<HeadGemmArgs>>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(head_gemm);
        let kernel = |name: &str| image.kernel(driver, &format!("head_gemm_{name}"), shared_bytes(MAX_IN));
        let packed = PACKED.iter().map(|t| kernel(&format!("Packed_{}", t.dtype)));
        Ok(Self { f16: kernel("F16")?, bf16: kernel("BF16")?, packed: packed.collect::<Result<_>>()? })
    }

    fn get(&self, dtype: DType) -> Kernel<HeadGemmArgs> {
        match dtype {
            DType::F16 => self.f16,
            DType::BF16 => self.bf16,
            _ => self.packed[packed_index(dtype)],
        }
    }
}

/// How a part is computed.
pub(super) struct Plan {
    /// Outputs of a block.
    share: usize,
}

/// Plans one part; `None` where this kernel cannot, or `simt_gemv` is faster or keeps a promise that this one does not.
pub(super) fn plan(target: &Target, w: &MatrixShape, part: &PartShape, rows: HeadRows) -> Option<Plan> {
    let takes = target.mode == Mode::Fast
        && rows.m >= MANY_ROWS
        && w.n_in <= MAX_IN
        && rows.x_head.is_multiple_of(4)
        && Weights::of(part, w.n_in).is_some();
    if !takes {
        return None;
    }
    // Where heads and tiles of rows are too few blocks for all SMs, several share the outputs of a head.
    let n_tiles = part.n_out.div_ceil(OUTS);
    let n_blocks = w.n_experts * rows.m.div_ceil(ROWS);
    let n_shares = (BLOCKS_PER_SM * target.n_sms).div_ceil(n_blocks).min(n_tiles);
    Some(Plan { share: n_tiles.div_ceil(n_shares) * OUTS })
}

impl Plan {
    pub(super) fn run(&self, cuda: &Cuda, op: &HeadPart<'_>) -> Result<()> {
        let (shape, HeadRows { m, x_head, y_head }) = (op.part.shape, op.rows);
        let (n_in, n_heads) = (op.w.n_in, op.w.n_experts);
        let args = HeadGemmArgs {
            y: op.y,
            x: op.x,
            w: op.part.weights.ptr(),
            row_bytes: shape.row_bytes as u64,
            head_bytes: (shape.n_out * shape.row_bytes) as u64,
            n_in: n_in as u32,
            n_out: shape.n_out as u32,
            m: m as u32,
            share: self.share as u32,
            x_stride: (n_heads * x_head) as u32,
            y_stride: (n_heads * y_head) as u32,
            x_head: x_head as u32,
            y_head: y_head as u32,
        };
        let f = cuda.room::<Kernels>().get(shape.dtype);
        let blocks = [shape.n_out.div_ceil(self.share), m.div_ceil(ROWS), n_heads];
        // SAFETY: the part holds n_heads · n_out rows, x and y have m rows with so many elements for each head, and shared memory has room
        // for the columns, which `plan` bounded.
        unsafe { cuda.launch_shared(f, blocks, THREADS, shared_bytes(n_in), &args) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(target: &Target, dtype: DType, n_in: usize, rows: HeadRows) -> bool {
        let w = MatrixShape::single(dtype, [20, 512, n_in], target.mode).unwrap();
        plan(target, &w, &w.parts[0], rows).is_some()
    }

    #[test]
    fn many_rows_of_packed_and_16_bit_weights_are_taken_in_the_fast_mode_only() {
        let rows = HeadRows { m: MANY_ROWS, x_head: 256, y_head: 576 };
        let packed = PACKED.iter().map(|t| t.dtype);
        for dtype in packed.chain([DType::F16, DType::BF16]) {
            for target in [Target::SM_80, Target::SM_90] {
                assert!(takes(&target, dtype, 256, rows), "{dtype}");
                assert!(!takes(&target, dtype, 256, HeadRows { m: MANY_ROWS - 1, ..rows }), "{dtype}");
                for mode in [Mode::Deterministic, Mode::Exact] {
                    assert!(!takes(&Target { mode, ..target }, dtype, 256, rows), "{dtype}, {mode:?}");
                }
            }
        }
        let takes = |dtype, n_in, x_head| takes(&Target::SM_80, dtype, n_in, HeadRows { x_head, ..rows });
        for dtype in [DType::F32, DType::Q4_1, DType::IQ2_XXS] {
            assert!(!takes(dtype, 256, 256), "{dtype}");
        }
        // Rows of unaligned vectors, too many columns, and heads of unaligned inputs.
        assert!(takes(DType::F16, 72, 72) && !takes(DType::F16, 74, 76));
        assert!(takes(DType::Q8_0, MAX_IN, MAX_IN) && !takes(DType::Q8_0, MAX_IN + 64, MAX_IN + 64));
        assert!(!takes(DType::Q8_0, 64, 66));
    }

    #[test]
    fn all_multiprocessors_have_blocks() {
        let w = MatrixShape::single(DType::Q8_0, [20, 512, 192], Mode::Fast).unwrap();
        let share = |m| {
            plan(&Target::SM_90, &w, &w.parts[0], HeadRows { m, x_head: 256, y_head: 576 }).unwrap().share
        };
        assert_eq!([9, 64, 512, 832, 833, 2048].map(share), [128, 128, 256, 256, 512, 512]);
    }
}
