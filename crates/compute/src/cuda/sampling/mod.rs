//! Choosing tokens on the device.

use super::batch::StagedBatch;
use super::driver::{Cuda, DevicePtr, Driver, PinnedReadback, kernel_args, kernels};
use crate::sampling::MAX_VOCAB;
use crate::{Chosen, Result, Tensor};

/// Bits that mark a token which cannot be chosen.
const MARK: u32 = 3 << 30;

kernel_args! {
    in "sample_args.cuh";

    /// Logits that a block of argmax, sample_edit and sample_weigh owns.
    const PART: usize = 2048;
    /// Bins of a row's histogram.
    const N_BINS: usize = 2048;
    /// Threads of a block of argmax, sample_edit and sample_weigh.
    const THREADS: usize = 256;
    /// Threads of a block of sample_choose.
    const CHOOSE_THREADS: usize = 512;

    struct ArgmaxArgs {
        /// [n_rows]
        chosen: DevicePtr as "uint32_t*",
        /// Host memory that gets the same.
        readback: DevicePtr as "uint32_t* const*",
        /// [n_rows, n]
        logits: DevicePtr as "const float*",
        /// [n_rows]: the largest key so far; zero before and after
        best: DevicePtr as "unsigned long long*",
        /// [n_rows]: blocks that are done; zero before and after
        arrived: DevicePtr as "uint32_t*",
        n: u32,
    }

    struct SampleArgs {
        /// [n_rows]: in, of the logits before; out, of these
        chosen: DevicePtr as "uint32_t*",
        /// Host memory that gets the same.
        readback: DevicePtr as "uint32_t* const*",
        /// [n_rows, n]
        logits: DevicePtr as "float*",
        /// [n_rows]
        rows: DevicePtr as "const struct SamplerRow*",
        /// [n_rows, 2, n_parts]: the largest key of a part, and the largest before anything was changed
        best: DevicePtr as "unsigned long long*",
        /// [n_rows, n_parts]: weights of a part
        sums: DevicePtr as "unsigned long long*",
        /// [n_rows, N_BINS]: weights of a bin
        weights: DevicePtr as "unsigned long long*",
        /// [n_rows, N_BINS]: tokens of a bin
        counts: DevicePtr as "unsigned long long*",
        n: u32,
        n_parts: u32,
    }
}

kernels! {
    /// Kernels of sample.cu.
    pub(in crate::cuda) struct Kernels in sample {
        argmax: ArgmaxArgs,
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

/// The token with the largest of each row of `logits` `[n_logits, vocab_size]`.
pub(in crate::cuda) fn argmax(cuda: &Cuda, batch: &mut StagedBatch, logits: &Tensor<Cuda>) -> Result<()> {
    let (rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(rows, batch.n_logits());
    assert!(n < 1 << 30, "{n} tokens");
    let args = ArgmaxArgs {
        chosen: batch.chosen(),
        readback: batch.readback(),
        logits: logits.ptr(),
        best: cuda.scratch.zeros(&cuda.driver, "largest logits", 8 * rows.max(1))?,
        arrived: cuda.scratch.zeros(&cuda.driver, "blocks that have arrived", 4 * rows.max(1))?,
        n: n as u32,
    };
    // SAFETY: `chosen`, its readback, `best` and `arrived` have an element for each of the `rows` rows, `logits` has `rows * n`.
    unsafe { cuda.launch(cuda.room::<Kernels>().argmax, [n.div_ceil(PART), rows, 1], THREADS as u32, &args) }
}

/// Samples a token from each row of `logits` `[n_logits, vocab_size]` as the batch's samplers say; overwrites the logits.
pub(in crate::cuda) fn sample(cuda: &Cuda, batch: &mut StagedBatch, logits: &mut Tensor<Cuda>) -> Result<()> {
    let (n_rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(n_rows, batch.n_logits());
    assert!((1..=MAX_VOCAB).contains(&n), "{n} tokens");
    let n_parts = n.div_ceil(PART);
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
    // SAFETY: `chosen`, its readback and the staged samplers have an element for each of the `n_rows` rows, `logits` has `n_rows * n`,
    // and the scratch memories have the sizes that SampleArgs states. What a staged row points to was staged with it.
    unsafe {
        cuda.launch(k.sample_edit, [n_parts, n_rows, 1], THREADS as u32, &args)?;
        cuda.launch(k.sample_weigh, [n_parts, n_rows, 1], THREADS as u32, &args)?;
        cuda.launch(k.sample_choose, [n_rows, 1, 1], CHOOSE_THREADS as u32, &args)
    }
}

/// Records that the batch's tokens are on their way to the host.
pub(in crate::cuda) fn fetch(driver: &dyn Driver, batch: &mut StagedBatch) -> Result<Choices> {
    let readback = batch.take_readback();
    driver.record_readback(&readback)?;
    Ok(Choices { readback, n: batch.n_logits() })
}

/// Waits for tokens and appends one per row to `out`.
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
