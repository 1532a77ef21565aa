//! Choosing tokens on the device.

use super::driver::{DevicePtr, Driver, Pending};
use super::{Cuda, StagedBatch};
use crate::{Likeliest, Result, Tensor};

/// Logits of a block.
const PART: usize = 2048;
/// Bits that mark a token which cannot be chosen.
const MARK: u32 = 3 << 30;

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    chosen: DevicePtr,
    logits: DevicePtr,
    best: DevicePtr,
    arrived: DevicePtr,
    n: u32,
}

/// Tokens on their way to the host.
pub struct Choices {
    pending: Pending,
    n: usize,
}

pub(super) fn likeliest(cuda: &Cuda, batch: &mut StagedBatch, logits: &Tensor<Cuda>) -> Result<()> {
    let (rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(rows, batch.n_logits());
    assert!(n < 1 << 30, "{n} tokens");
    let args = Args {
        chosen: batch.chosen(),
        logits: logits.ptr(),
        best: cuda.scratch.zeros(&cuda.driver, "largest logits", 8 * rows.max(1))?,
        arrived: cuda.scratch.zeros(&cuda.driver, "counts of parts of logits", 4 * rows.max(1))?,
        n: n as u32,
    };
    // SAFETY: the batch has room for a token of each row, and so have the scratch memories.
    unsafe { cuda.launch(cuda.kernels.likeliest, [n.div_ceil(PART), rows, 1], 256, &args) }
}

pub(super) fn fetch(driver: &dyn Driver, batch: &StagedBatch) -> Result<Choices> {
    let n = batch.n_logits();
    // SAFETY: the batch has room for a token of each row.
    Ok(Choices { pending: unsafe { driver.read_later(batch.chosen(), 4 * n)? }, n })
}

pub(super) fn wait(driver: &dyn Driver, choices: Choices, out: &mut Vec<Likeliest>) -> Result<()> {
    let mut words = vec![0u32; choices.n];
    driver.finish_read(choices.pending, bytemuck::cast_slice_mut(&mut words))?;
    out.extend(words.into_iter().map(|w| match (w >> 30, w & !MARK) {
        (0, token) => Likeliest::Token(token),
        (1, token) => Likeliest::NotFinite { token, nan: true },
        (2, token) => Likeliest::NotFinite { token, nan: false },
        _ => Likeliest::Nothing,
    }));
    Ok(())
}
