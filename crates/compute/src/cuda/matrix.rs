//! Weight matrices on the device.

use super::Cuda;
use super::buffer::Buffer;
use super::driver::{DevicePtr, Driver};
use super::kernels::PACKED;
use super::skinny;
use crate::quant::{iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl};
use crate::reference::check_part;
use crate::{DType, MatrixPart, Result};
use std::sync::{Arc, Mutex};

/// A weight matrix, or one per expert: parts of one type each, stacked along their outputs.
pub struct Matrix {
    pub(super) n_experts: usize,
    pub(super) n_in: usize,
    pub(super) n_out: usize,
    pub(super) parts: Vec<Part>,
}

/// How the weights of a part lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// As in the file.
    Blocks,
    /// As `packed.cuh` says.
    Packed,
}

/// Outputs `first_out` to `first_out + n_out` of a matrix.
pub(super) struct Part {
    pub(super) dtype: DType,
    pub(super) layout: Layout,
    pub(super) first_out: usize,
    pub(super) n_out: usize,
    /// Bytes of one row of weights.
    pub(super) row_bytes: usize,
    /// `[n_experts, n_out, n_in]`
    pub(super) weights: Buffer,
    /// What the type's codes stand for; null for types without a table.
    pub(super) codebook: DevicePtr,
    /// Boxes of the rows that `skinny` brings to shared memory, where it can multiply with this part.
    pub(super) boxes: Option<skinny::PartBoxes>,
}

/// Bytes of the file's blocks that are on their way to a packed layout at a time.
const REPACK_BYTES: usize = 32 << 20;

#[derive(Clone, Copy)]
#[repr(C)]
struct RepackArgs {
    packed: DevicePtr,
    source: DevicePtr,
    packed_row_bytes: u64,
    source_row_bytes: u64,
    n_pieces: u64,
    n: u32,
}

/// Whether rows of `n_in` weights have a packed layout.
fn is_packed(dtype: DType, n_in: usize) -> bool {
    PACKED.contains(&dtype) && n_in.is_multiple_of(64) && n_in > 0
}

impl Matrix {
    /// The parts that have the first and the second half of the outputs, a gate's and its up's, and the rows of these where the halves
    /// begin; `None` where a half is not one part's.
    pub(super) fn halves(&self) -> Option<[(&Part, usize); 2]> {
        match &self.parts[..] {
            [both] if both.n_out.is_multiple_of(2) => Some([(both, 0), (both, both.n_out / 2)]),
            [gate, up] if gate.n_out == up.n_out => Some([(gate, 0), (up, 0)]),
            _ => None,
        }
    }

    pub(super) fn new(cuda: &Cuda, parts: Vec<MatrixPart>) -> Result<Self> {
        let (n_experts, n_in) = (parts[0].n_experts, parts[0].n_in);
        for p in &parts {
            assert_eq!((p.n_experts, p.n_in), (n_experts, n_in), "parts of one matrix");
            check_part(p)?;
        }
        let mut n_out = 0;
        let mut stacked = Vec::with_capacity(parts.len());
        for p in parts {
            let part = match is_packed(p.dtype, n_in) && n_experts == 1 && !cuda.exact {
                true => Part::packed(cuda, &p, n_out)?,
                false => Part::blocks(cuda, &p, n_out)?,
            };
            n_out += part.n_out;
            stacked.push(part);
        }
        Ok(Self { n_experts, n_in, n_out, parts: stacked })
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.weights.bytes()).sum()
    }
}

impl Part {
    fn blocks(cuda: &Cuda, p: &MatrixPart, first_out: usize) -> Result<Self> {
        let what = format!("{} weights [{}, {}, {}]", p.dtype, p.n_experts, p.n_out, p.n_in);
        let mut weights = Buffer::new(&cuda.driver, p.bytes.len(), &what)?;
        weights.write(0, &p.bytes)?;
        let row_bytes = p.dtype.bytes_for(p.n_in).expect("the part was checked");
        let rows = p.n_experts * p.n_out;
        Ok(Self {
            dtype: p.dtype,
            layout: Layout::Blocks,
            first_out,
            n_out: p.n_out,
            row_bytes,
            boxes: skinny::boxes(cuda, weights.ptr(), rows, row_bytes, Layout::Blocks, p.dtype)?,
            weights,
            codebook: cuda.codebooks.get(&cuda.driver, p.dtype)?,
        })
    }

    fn packed(cuda: &Cuda, p: &MatrixPart, first_out: usize) -> Result<Self> {
        let source_row_bytes = p.dtype.bytes_for(p.n_in).expect("the part was checked");
        let row_bytes = source_row_bytes.next_multiple_of(16);
        let what = format!("{} weights [{}, {}]", p.dtype, p.n_out, p.n_in);
        let weights = Buffer::new(&cuda.driver, p.n_out * row_bytes, &what)?;
        let rows = (REPACK_BYTES / source_row_bytes).max(1);
        let source =
            cuda.scratch.get(&cuda.driver, "weights on their way", rows.min(p.n_out) * source_row_bytes)?;
        for (i, bytes) in p.bytes.chunks(rows * source_row_bytes).enumerate() {
            let n_rows = bytes.len() / source_row_bytes;
            let args = RepackArgs {
                packed: weights.ptr().offset(i * rows * row_bytes),
                source,
                packed_row_bytes: row_bytes as u64,
                source_row_bytes: source_row_bytes as u64,
                n_pieces: (n_rows * (p.n_in / 64)) as u64,
                n: p.n_in as u32,
            };
            let blocks = (n_rows * (p.n_in / 64)).div_ceil(128);
            // SAFETY: the scratch memory holds this many rows, and the weights have room for them from this one on.
            unsafe {
                cuda.driver.write(source, bytes)?;
                cuda.launch(cuda.kernels.of_packed(p.dtype).repack, [blocks, 1, 1], 128, &args)?;
            }
        }
        Ok(Self {
            dtype: p.dtype,
            layout: Layout::Packed,
            first_out,
            n_out: p.n_out,
            row_bytes,
            boxes: skinny::boxes(cuda, weights.ptr(), p.n_out, row_bytes, Layout::Packed, p.dtype)?,
            weights,
            codebook: DevicePtr::NULL,
        })
    }
}

/// The tables of the codebook types on the device, made when first wanted.
#[derive(Default)]
pub(super) struct Codebooks {
    /// By the address of the table on the host.
    made: Mutex<Vec<(usize, Buffer)>>,
}

impl Codebooks {
    fn get(&self, driver: &Arc<dyn Driver>, dtype: DType) -> Result<DevicePtr> {
        let table: &'static [u8] = match dtype {
            DType::IQ1_S | DType::IQ1_M => bytemuck::cast_slice(&iq1_s::GRID),
            DType::IQ2_XXS => bytemuck::cast_slice(&iq2_xxs::GRID),
            DType::IQ2_XS => bytemuck::cast_slice(&iq2_xs::GRID),
            DType::IQ2_S => bytemuck::cast_slice(&iq2_s::GRID),
            DType::IQ3_XXS => bytemuck::cast_slice(&iq3_xxs::GRID),
            DType::IQ3_S => bytemuck::cast_slice(&iq3_s::GRID),
            DType::IQ4_NL | DType::IQ4_XS => bytemuck::cast_slice(&iq4_nl::VALUES),
            _ => return Ok(DevicePtr::NULL),
        };
        let mut made = super::lock(&self.made);
        if let Some((_, buffer)) = made.iter().find(|(p, _)| *p == table.as_ptr().addr()) {
            return Ok(buffer.ptr());
        }
        let mut buffer = Buffer::new(driver, table.len(), "a codebook")?;
        buffer.write(0, table)?;
        let ptr = buffer.ptr();
        made.push((table.as_ptr().addr(), buffer));
        Ok(ptr)
    }
}
