//! Weight matrices on the device.

use super::buffer::Buffer;
use super::driver::{DevicePtr, Driver};
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

/// Outputs `first_out` to `first_out + n_out` of a matrix, as they stand in the file.
pub(super) struct Part {
    pub(super) dtype: DType,
    pub(super) first_out: usize,
    pub(super) n_out: usize,
    /// Bytes of one row of weights.
    pub(super) row_bytes: usize,
    /// `[n_experts, n_out, n_in]`
    pub(super) weights: Buffer,
    /// What the type's codes stand for; null for types without a table.
    pub(super) codebook: DevicePtr,
}

impl Matrix {
    pub(super) fn new(
        driver: &Arc<dyn Driver>,
        codebooks: &Codebooks,
        parts: Vec<MatrixPart>,
    ) -> Result<Self> {
        let (n_experts, n_in) = (parts[0].n_experts, parts[0].n_in);
        for p in &parts {
            assert_eq!((p.n_experts, p.n_in), (n_experts, n_in), "parts of one matrix");
            check_part(p)?;
        }
        let mut n_out = 0;
        let mut stacked = Vec::with_capacity(parts.len());
        for p in parts {
            let what = format!("{} weights [{n_experts}, {}, {n_in}]", p.dtype, p.n_out);
            let mut weights = Buffer::new(driver, p.bytes.len(), &what)?;
            weights.write(0, &p.bytes)?;
            stacked.push(Part {
                dtype: p.dtype,
                first_out: n_out,
                n_out: p.n_out,
                row_bytes: p.dtype.bytes_for(n_in).expect("the part was checked"),
                weights,
                codebook: codebooks.get(driver, p.dtype)?,
            });
            n_out += p.n_out;
        }
        Ok(Self { n_experts, n_in, n_out, parts: stacked })
    }

    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(|p| p.weights.bytes()).sum()
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
