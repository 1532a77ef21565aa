//! Launches that convert a file's blocks to the packed layouts, once, when weights are loaded.

use super::packed_types::{PACKED, packed_index};
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::{DType, MatrixPart, Result};

/// Bytes of a file's blocks that are converted at a time.
const REPACK_BYTES: usize = 32 << 20;

kernel_args! {
    in "repack_args.cuh";

    struct RepackArgs {
        /// [n_rows] rows of `packed_row_bytes`
        packed: DevicePtr as "uint8_t*",
        /// [n_rows] rows of `source_row_bytes`
        source: DevicePtr as "const uint8_t*",
        packed_row_bytes: u64,
        source_row_bytes: u64,
        /// of all rows
        n_pieces: u64,
        /// weights in a row
        n: u32,
    }
}

/// Kernels of repack.cu, in the order of [`PACKED`].
pub(in crate::cuda) struct Kernels([Kernel<RepackArgs>; PACKED.len()]);

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(repack);
        let kernels = PACKED.iter().map(|t| image.kernel(driver, &format!("repack_Packed_{}", t.dtype), 0));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        Ok(Self(kernels.try_into().unwrap_or_else(|_| unreachable!("one for each type"))))
    }

    fn get(&self, dtype: DType) -> Kernel<RepackArgs> {
        self.0[packed_index(dtype)]
    }
}

/// Writes the rows of `p` in their packed layout to `packed`, rows of `row_bytes` bytes.
pub(super) fn repack(cuda: &Cuda, packed: DevicePtr, row_bytes: usize, p: &MatrixPart) -> Result<()> {
    let source_row_bytes = p.dtype.bytes_for(p.n_in).expect("the part was checked");
    let rows = (REPACK_BYTES / source_row_bytes).max(1);
    let source = cuda.scratch.get(
        &cuda.driver,
        "weights to repack",
        rows.min(p.n_experts * p.n_out) * source_row_bytes,
    )?;
    for (i, bytes) in p.bytes.chunks(rows * source_row_bytes).enumerate() {
        let n_rows = bytes.len() / source_row_bytes;
        let n_pieces = n_rows * (p.n_in / 64);
        let args = RepackArgs {
            packed: packed.offset(i * rows * row_bytes),
            source,
            packed_row_bytes: row_bytes as u64,
            source_row_bytes: source_row_bytes as u64,
            n_pieces: n_pieces as u64,
            n: p.n_in as u32,
        };
        // SAFETY: the scratch memory holds this many rows, and the weights have room for them from this one on.
        unsafe {
            cuda.driver.write(source, bytes)?;
            cuda.launch(cuda.room::<Kernels>().get(p.dtype), [n_pieces.div_ceil(128), 1, 1], 128, &args)?;
        }
    }
    Ok(())
}
