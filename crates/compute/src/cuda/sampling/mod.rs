//! Choosing tokens on the device.

use super::batch::StagedBatch;
use super::driver::{Cuda, DevicePtr, Driver, PinnedReadback, kernels};
use crate::sampling::MAX_VOCAB;
use crate::{Chosen, Result, Tensor};

/// Logits of a block.
const PART: usize = 2048;
/// Bits that mark a token which cannot be chosen.
const MARK: u32 = 3 << 30;

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    chosen: DevicePtr,
    readback: DevicePtr,
    logits: DevicePtr,
    best: DevicePtr,
    arrived: DevicePtr,
    n: u32,
}

kernels! {
    /// Kernels of sample.cu.
    pub(in crate::cuda) struct Kernels in sample {
        argmax: Args,
        sample_edit: SampleArgs,
        sample_weigh: SampleArgs,
        sample_choose: SampleArgs,
    }
}

/// Tokens on their way to the host.
pub struct Choices {
    readback: PinnedReadback,
    n: usize,
}

pub(in crate::cuda) fn argmax(cuda: &Cuda, batch: &mut StagedBatch, logits: &Tensor<Cuda>) -> Result<()> {
    let (rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(rows, batch.n_logits());
    assert!(n < 1 << 30, "{n} tokens");
    let args = Args {
        chosen: batch.chosen(),
        readback: batch.readback(),
        logits: logits.ptr(),
        best: cuda.scratch.zeros(&cuda.driver, "largest logits", 8 * rows.max(1))?,
        arrived: cuda.scratch.zeros(&cuda.driver, "blocks that have arrived", 4 * rows.max(1))?,
        n: n as u32,
    };
    // SAFETY: the batch has room for a token of each row, and so have the scratch memories.
    unsafe { cuda.launch(cuda.room::<Kernels>().argmax, [n.div_ceil(PART), rows, 1], 256, &args) }
}

/// Logits of a block of the first two kernels of sampling.
const SAMPLE_PART: usize = 2048;
/// Bins of a row's histogram.
const N_BINS: usize = 2048;
#[derive(Clone, Copy)]
#[repr(C)]
struct SampleArgs {
    chosen: DevicePtr,
    readback: DevicePtr,
    logits: DevicePtr,
    rows: DevicePtr,
    best: DevicePtr,
    sums: DevicePtr,
    weights: DevicePtr,
    counts: DevicePtr,
    n: u32,
    n_parts: u32,
}

pub(in crate::cuda) fn sample(cuda: &Cuda, batch: &mut StagedBatch, logits: &mut Tensor<Cuda>) -> Result<()> {
    let (n_rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(n_rows, batch.n_logits());
    assert!((1..=MAX_VOCAB).contains(&n), "{n} tokens");
    let n_parts = n.div_ceil(SAMPLE_PART);
    let scratch = |purpose, bytes| cuda.scratch.get(&cuda.driver, purpose, bytes);
    let args = SampleArgs {
        chosen: batch.chosen(),
        readback: batch.readback(),
        logits: logits.ptr(),
        rows: batch.samplers().rows.ptr(),
        best: scratch("largest logits of parts", 16 * n_rows * n_parts)?,
        sums: scratch("weights of parts of logits", 8 * n_rows * n_parts)?,
        weights: scratch("histograms of weights", 8 * n_rows * N_BINS)?,
        counts: scratch("histograms of logits", 8 * n_rows * N_BINS)?,
        n: n as u32,
        n_parts: n_parts as u32,
    };
    let k = cuda.room::<Kernels>();
    // SAFETY: the batch has a staged row and room for a token for each row of logits; the scratch memories have room for each row's
    // parts and bins. What a staged row points to was staged with it.
    unsafe {
        cuda.launch(k.sample_edit, [n_parts, n_rows, 1], 256, &args)?;
        cuda.launch(k.sample_weigh, [n_parts, n_rows, 1], 256, &args)?;
        cuda.launch(k.sample_choose, [n_rows, 1, 1], 512, &args)
    }
}

pub(in crate::cuda) fn fetch(driver: &dyn Driver, batch: &mut StagedBatch) -> Result<Choices> {
    let readback = batch.take_readback();
    driver.record_readback(&readback)?;
    Ok(Choices { readback, n: batch.n_logits() })
}

pub(in crate::cuda) fn wait(driver: &dyn Driver, choices: Choices, out: &mut Vec<Chosen>) -> Result<()> {
    let mut words = vec![0u32; choices.n];
    driver.finish_readback(choices.readback, bytemuck::cast_slice_mut(&mut words))?;
    out.extend(words.into_iter().map(|w| match (w >> 30, w & !MARK) {
        (0, token) => Chosen::Token(token),
        (1, token) => Chosen::NotFinite { token, nan: true },
        (2, token) => Chosen::NotFinite { token, nan: false },
        _ => Chosen::Nothing,
    }));
    Ok(())
}
