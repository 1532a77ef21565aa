//! Choosing tokens on the device.

use super::buffer::Buffer;
use super::driver::{Answer, DevicePtr, Driver};
use super::{Cuda, StagedBatch, elementwise};
use crate::sampling::{LastToken, MAX_VOCAB, Samplers, fraction};
use crate::{Chosen, Result, Tensor};
use std::sync::Arc;

/// Logits of a block.
const PART: usize = 2048;
/// Bits that mark a token which cannot be chosen.
const MARK: u32 = 3 << 30;

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    chosen: DevicePtr,
    answer: DevicePtr,
    logits: DevicePtr,
    best: DevicePtr,
    arrived: DevicePtr,
    n: u32,
}

/// Tokens on their way to the host.
pub struct Choices {
    answer: Answer,
    n: usize,
}

pub(super) fn likeliest(cuda: &Cuda, batch: &mut StagedBatch, logits: &Tensor<Cuda>) -> Result<()> {
    let (rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(rows, batch.n_logits());
    assert!(n < 1 << 30, "{n} tokens");
    let args = Args {
        chosen: batch.chosen(),
        answer: batch.answer(),
        logits: logits.ptr(),
        best: cuda.scratch.zeros(&cuda.driver, "largest logits", 8 * rows.max(1))?,
        arrived: cuda.scratch.zeros(&cuda.driver, "counts of parts of logits", 4 * rows.max(1))?,
        n: n as u32,
    };
    // SAFETY: the batch has room for a token of each row, and so have the scratch memories.
    unsafe { cuda.launch(cuda.kernels.likeliest, [n.div_ceil(PART), rows, 1], 256, &args) }
}

/// Logits of a block of the first two kernels of sampling.
const SAMPLE_PART: usize = 2048;
/// Bins of a row's histogram.
const N_BINS: usize = 2048;
/// Marks a token that is named by its row of the choices before.
const CHOSEN: u32 = 1 << 31;
/// No token.
const NONE: u32 = u32::MAX;

/// How one row is sampled, as the kernels read it.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Row {
    prompt: DevicePtr,
    generated: DevicePtr,
    biases: DevicePtr,
    mask: DevicePtr,
    top_p: u64,
    uniform: u64,
    n_prompt: u32,
    n_generated: u32,
    n_biases: u32,
    n_mask: u32,
    last: u32,
    top_k: u32,
    has_top_p: u32,
    penalizes: u32,
    temperature: f32,
    repetition: f32,
    frequency: f32,
    presence: f32,
    least: f32,
    greedy: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct SampleArgs {
    chosen: DevicePtr,
    answer: DevicePtr,
    logits: DevicePtr,
    rows: DevicePtr,
    best: DevicePtr,
    sums: DevicePtr,
    weights: DevicePtr,
    counts: DevicePtr,
    n: u32,
    n_parts: u32,
}

/// How a batch's rows of logits are sampled, where kernels can read it.
pub(super) struct StagedSamplers {
    /// Stays in its place, so that recorded graphs read each step's.
    rows: Buffer,
    /// Histories, masks and biases; the rows say where.
    data: Option<Buffer>,
    host_rows: Vec<u64>,
    words: Vec<u32>,
}

impl StagedSamplers {
    pub(super) fn new(driver: &Arc<dyn Driver>, n_rows: usize) -> Result<Self> {
        let rows = Buffer::new(driver, n_rows.max(1) * size_of::<Row>(), "parameters of sampling")?;
        Ok(Self { rows, data: None, host_rows: Vec::new(), words: Vec::new() })
    }

    pub(super) fn set(&mut self, cuda: &Cuda, samplers: &Samplers) -> Result<()> {
        // Biases first, since they are pairs of words.
        self.words.clear();
        self.words.extend(samplers.biases.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]));
        let history = self.words.len();
        self.words.extend_from_slice(&samplers.history);
        let masks = self.words.len();
        self.words.extend_from_slice(&samplers.masks);
        let bytes = 4 * self.words.len();
        if bytes > 0 && self.data.as_ref().is_none_or(|b| b.bytes() < bytes) {
            // Freeing what it outgrew waits for the steps that still read it.
            self.data = Some(Buffer::new(
                &cuda.driver,
                bytes.next_power_of_two(),
                "histories and masks of sampling",
            )?);
        }
        let start = match &mut self.data {
            Some(data) if bytes > 0 => {
                data.write(0, bytemuck::cast_slice(&self.words))?;
                data.ptr()
            }
            _ => DevicePtr::NULL,
        };
        let at = |word: usize| start.offset(4 * word);
        self.host_rows.clear();
        for row in &samplers.rows {
            let mask = row.mask.clone().unwrap_or(0..0);
            let penalizes = row.has_penalties();
            let row = Row {
                prompt: at(history + row.prompt.start),
                generated: at(history + row.generated.start),
                biases: at(2 * row.biases.start),
                mask: if row.mask.is_some() { at(masks + mask.start) } else { DevicePtr::NULL },
                top_p: fraction(row.top_p.into()),
                uniform: fraction(row.uniform),
                n_prompt: row.prompt.len() as u32,
                n_generated: row.generated.len() as u32,
                n_biases: row.biases.len() as u32,
                n_mask: mask.len() as u32,
                last: match row.last {
                    None => NONE,
                    Some(LastToken::Known(token)) => token,
                    Some(LastToken::Chosen(row)) => row as u32 | CHOSEN,
                },
                top_k: u32::try_from(row.top_k).unwrap_or(u32::MAX),
                has_top_p: u32::from(row.top_p < 1.0),
                penalizes: u32::from(penalizes),
                temperature: row.temperature,
                repetition: row.repetition_penalty,
                frequency: row.frequency_penalty,
                presence: row.presence_penalty,
                least: row.least(),
                greedy: u32::from(row.temperature == 0.0),
            };
            let words: [u64; size_of::<Row>() / 8] = bytemuck::cast(row);
            self.host_rows.extend_from_slice(&words);
        }
        elementwise::put(cuda, &mut self.rows, bytemuck::cast_slice(&self.host_rows))
    }
}

pub(super) fn sample(cuda: &Cuda, batch: &mut StagedBatch, logits: &mut Tensor<Cuda>) -> Result<()> {
    let (n_rows, n) = (logits.rows(), logits.row_len());
    assert_eq!(n_rows, batch.n_logits());
    assert!((1..=MAX_VOCAB).contains(&n), "{n} tokens");
    let n_parts = n.div_ceil(SAMPLE_PART);
    let scratch = |purpose, bytes| cuda.scratch.get(&cuda.driver, purpose, bytes);
    let args = SampleArgs {
        chosen: batch.chosen(),
        answer: batch.answer(),
        logits: logits.ptr(),
        rows: batch.samplers().rows.ptr(),
        best: scratch("largest logits of parts", 16 * n_rows * n_parts)?,
        sums: scratch("weights of parts of logits", 8 * n_rows * n_parts)?,
        weights: scratch("histograms of weights", 8 * n_rows * N_BINS)?,
        counts: scratch("histograms of logits", 8 * n_rows * N_BINS)?,
        n: n as u32,
        n_parts: n_parts as u32,
    };
    let k = &cuda.kernels;
    // SAFETY: the batch has a staged row and room for a token for each row of logits; the scratch memories have room for each row's
    // parts and bins. What a staged row points to was staged with it.
    unsafe {
        cuda.launch(k.sample_edit, [n_parts, n_rows, 1], 256, &args)?;
        cuda.launch(k.sample_weigh, [n_parts, n_rows, 1], 256, &args)?;
        cuda.launch(k.sample_choose, [n_rows, 1, 1], 512, &args)
    }
}

pub(super) fn fetch(driver: &dyn Driver, batch: &mut StagedBatch) -> Result<Choices> {
    let answer = batch.take_answer();
    driver.end_answer(&answer)?;
    Ok(Choices { answer, n: batch.n_logits() })
}

pub(super) fn wait(driver: &dyn Driver, choices: Choices, out: &mut Vec<Chosen>) -> Result<()> {
    let mut words = vec![0u32; choices.n];
    driver.finish_answer(choices.answer, bytemuck::cast_slice_mut(&mut words))?;
    out.extend(words.into_iter().map(|w| match (w >> 30, w & !MARK) {
        (0, token) => Chosen::Token(token),
        (1, token) => Chosen::NotFinite { token, nan: true },
        (2, token) => Chosen::NotFinite { token, nan: false },
        _ => Chosen::Nothing,
    }));
    Ok(())
}
