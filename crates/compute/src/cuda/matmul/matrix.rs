//! Weight matrices on the device.

use super::maps::{self, PartMaps};
use super::packed_types::packed_row_bytes;
use super::repack;
use super::shape::{Layout, MatrixShape, PartRows, PartShape};
use crate::cuda::driver::{Buffer, Cuda, DevicePtr, Driver, Mode};
use crate::quant::{iq1_s, iq2_s, iq2_xs, iq2_xxs, iq3_s, iq3_xxs, iq4_nl};
use crate::{DType, MatrixPart, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// A weight matrix, or one per expert: parts of one type each, stacked along their outputs.
pub struct Matrix {
    pub(in crate::cuda) shape: MatrixShape,
    pub(in crate::cuda) parts: Vec<Part>,
}

/// Outputs `first_out` to `first_out + n_out` of a matrix.
pub(in crate::cuda) struct Part {
    pub(in crate::cuda) shape: PartShape,
    /// `[n_experts, n_out, n_in]`
    pub(in crate::cuda) weights: Buffer,
    /// What the type's codes stand for; null for types without a table.
    pub(in crate::cuda) codebook: DevicePtr,
    /// TMA maps of the rows, where `mixed_gemm` can multiply with this part.
    pub(super) maps: Option<PartMaps>,
}

impl Matrix {
    pub(in crate::cuda) fn new(cuda: &Cuda, parts: Vec<MatrixPart>) -> Result<Self> {
        let (n_experts, n_in) = (parts[0].n_experts, parts[0].n_in);
        for p in &parts {
            assert_eq!((p.n_experts, p.n_in), (n_experts, n_in), "parts of one matrix");
            p.check()?;
        }
        let mut n_out = 0;
        let mut stacked = Vec::with_capacity(parts.len());
        for p in parts {
            let part = match packed_row_bytes(p.dtype, n_in) {
                Some(row_bytes) if cuda.mode < Mode::Exact => Part::packed(cuda, &p, n_out, row_bytes)?,
                _ => Part::blocks(cuda, &p, n_out)?,
            };
            n_out += part.shape.n_out;
            stacked.push(part);
        }
        let parts = stacked.iter().map(|p| p.shape).collect();
        Ok(Self { shape: MatrixShape { n_experts, n_in, n_out, parts }, parts: stacked })
    }

    /// Where rows of a part begin.
    pub(super) fn row(&self, rows: PartRows) -> DevicePtr {
        let part = &self.parts[rows.part];
        part.weights.ptr().offset(rows.first * part.shape.row_bytes)
    }

    pub(in crate::cuda) fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.weights.bytes()).sum()
    }
}

impl Part {
    fn blocks(cuda: &Cuda, p: &MatrixPart, first_out: usize) -> Result<Self> {
        let what = format!("{} weights [{}, {}, {}]", p.dtype, p.n_experts, p.n_out, p.n_in);
        let mut weights = Buffer::new(&cuda.driver, p.bytes.len(), &what)?;
        weights.write(0, &p.bytes)?;
        let row_bytes = p.dtype.bytes_for(p.n_in).expect("the part was checked");
        let shape =
            PartShape { dtype: p.dtype, layout: Layout::Blocks, first_out, n_out: p.n_out, row_bytes };
        Ok(Self {
            shape,
            maps: maps::maps(cuda, &shape, weights.ptr(), p.n_experts * p.n_out)?,
            weights,
            codebook: cuda.room::<Codebooks>().get(&cuda.driver, p.dtype)?,
        })
    }

    fn packed(cuda: &Cuda, p: &MatrixPart, first_out: usize, row_bytes: usize) -> Result<Self> {
        let n_rows = p.n_experts * p.n_out;
        let what = format!("{} weights [{}, {}, {}]", p.dtype, p.n_experts, p.n_out, p.n_in);
        let weights = Buffer::new(&cuda.driver, n_rows * row_bytes, &what)?;
        repack::repack(cuda, weights.ptr(), row_bytes, p)?;
        let shape =
            PartShape { dtype: p.dtype, layout: Layout::Packed, first_out, n_out: p.n_out, row_bytes };
        Ok(Self {
            shape,
            maps: maps::maps(cuda, &shape, weights.ptr(), n_rows)?,
            weights,
            codebook: DevicePtr::NULL,
        })
    }
}

/// The tables of the codebook types on the device, made when first wanted.
#[derive(Default)]
pub(in crate::cuda) struct Codebooks {
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
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
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
