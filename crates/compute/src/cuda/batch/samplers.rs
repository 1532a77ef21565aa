//! How the rows of logits of a step are sampled, where kernels can read it.

use crate::Result;
use crate::cuda::driver::{Buffer, Cuda, DevicePtr, Driver, upload};
use crate::sampling::{LastToken, Samplers, fraction};
use std::sync::Arc;

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

/// How a batch's rows of logits are sampled, where kernels can read it.
pub(in crate::cuda) struct StagedSamplers {
    /// Stays in its place, so that recorded graphs read each step's.
    pub(in crate::cuda) rows: Buffer,
    /// Histories, masks and biases; the rows say where.
    data: Option<Buffer>,
    host_rows: Vec<u64>,
    words: Vec<u32>,
}

impl StagedSamplers {
    pub(in crate::cuda) fn new(driver: &Arc<dyn Driver>, n_rows: usize) -> Result<Self> {
        let rows = Buffer::new(driver, n_rows.max(1) * size_of::<Row>(), "parameters of sampling")?;
        Ok(Self { rows, data: None, host_rows: Vec::new(), words: Vec::new() })
    }

    pub(in crate::cuda) fn set(&mut self, cuda: &Cuda, samplers: &Samplers) -> Result<()> {
        // Biases first, since they are pairs of words.
        self.words.clear();
        for row in &samplers.rows {
            self.words.extend(row.params.logit_bias.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]));
        }
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
        let mut first_bias = 0;
        for row in &samplers.rows {
            let mask = row.mask.clone().unwrap_or(0..0);
            let params = &row.params;
            let biases = first_bias..first_bias + params.logit_bias.len();
            first_bias = biases.end;
            let row = Row {
                prompt: at(history + row.prompt.start),
                generated: at(history + row.generated.start),
                biases: at(2 * biases.start),
                mask: if row.mask.is_some() { at(masks + mask.start) } else { DevicePtr::NULL },
                top_p: fraction(params.top_p.into()),
                uniform: fraction(row.uniform),
                n_prompt: row.prompt.len() as u32,
                n_generated: row.generated.len() as u32,
                n_biases: biases.len() as u32,
                n_mask: mask.len() as u32,
                last: match row.last {
                    None => NONE,
                    Some(LastToken::Known(token)) => token,
                    Some(LastToken::Chosen(row)) => row as u32 | CHOSEN,
                },
                top_k: u32::try_from(params.top_k).unwrap_or(u32::MAX),
                has_top_p: u32::from(params.top_p < 1.0),
                penalizes: u32::from(params.has_penalties()),
                temperature: params.temperature,
                repetition: params.repetition_penalty,
                frequency: params.frequency_penalty,
                presence: params.presence_penalty,
                least: params.min_logit(),
                greedy: u32::from(params.temperature == 0.0),
            };
            let words: [u64; size_of::<Row>() / 8] = bytemuck::cast(row);
            self.host_rows.extend_from_slice(&words);
        }
        upload(cuda, &mut self.rows, bytemuck::cast_slice(&self.host_rows))
    }
}
