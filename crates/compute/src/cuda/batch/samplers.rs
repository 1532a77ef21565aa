//! How the rows of logits of a step are sampled, where kernels can read it.

use crate::Result;
use crate::cuda::driver::{Buffer, Cuda, DevicePtr, Driver, upload};
use crate::sampling::{DeviceParams, LastToken, Samplers, fraction};
use std::sync::Arc;

/// Marks a token that is named by its row of the choices before.
const CHOSEN: u32 = 1 << 31;
/// No token.
const NONE: u32 = u32::MAX;
/// What errors call the memory of lists.
const LISTS: &str = "histories and masks of sampling";

/// How one row is sampled, as the kernels read it; [`DeviceParams`] follow.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Row {
    prompt: DevicePtr,
    generated: DevicePtr,
    biases: DevicePtr,
    mask: DevicePtr,
    uniform: u64,
    n_prompt: u32,
    n_generated: u32,
    n_biases: u32,
    n_mask: u32,
    has_mask: u32,
    last: u32,
}

/// Words of a [`Row`] and its [`DeviceParams`], which the kernels read as one struct, aligned to 8 bytes.
const ROW_WORDS: usize = (size_of::<Row>() + size_of::<DeviceParams>()).next_multiple_of(8) / 4;

/// How a batch's rows of logits are sampled, where kernels can read it.
pub(in crate::cuda) struct StagedSamplers {
    /// Stays in its place, so that recorded graphs read each step's.
    pub(in crate::cuda) rows: Buffer,
    n_rows: usize,
    /// Biases, histories and masks; the rows say where.
    lists: Buffer,
    /// Tokens of histories for which there is always room.
    n_history: usize,
    host_rows: Vec<u32>,
    words: Vec<u32>,
}

impl StagedSamplers {
    /// `n_history`: tokens of all histories together that a step usually has at most.
    pub(in crate::cuda) fn new(driver: &Arc<dyn Driver>, n_rows: usize, n_history: usize) -> Result<Self> {
        let rows = Buffer::new(driver, 4 * ROW_WORDS * n_rows.max(1), "parameters of sampling")?;
        let lists = Buffer::new(driver, 4 * (n_history + 1), LISTS)?;
        Ok(Self { rows, n_rows, lists, n_history, host_rows: Vec::new(), words: Vec::new() })
    }

    pub(in crate::cuda) fn set(&mut self, cuda: &Cuda, samplers: &Samplers) -> Result<()> {
        // Biases first, since they are pairs of words.
        self.words.clear();
        for row in &samplers.rows {
            self.words
                .extend(row.params.logit_bias.iter().flat_map(|&(token, bias)| [token, bias.to_bits()]));
        }
        let history = self.words.len();
        self.words.extend_from_slice(&samplers.history);
        let masks = self.words.len();
        self.words.extend_from_slice(&samplers.masks);
        // Room for any histories and a mask of each row, so that later steps with more of them fit, too.
        let longest_mask =
            samplers.rows.iter().filter_map(|row| row.mask.as_ref()).map(|mask| mask.len()).max();
        let n_masks = samplers.masks.len().max(self.n_rows * longest_mask.unwrap_or(0));
        let n_history = match samplers.history.len() {
            n if n > self.n_history => n.next_power_of_two(),
            _ => self.n_history,
        };
        let room = history.next_power_of_two() + n_history + n_masks;
        if 4 * room > self.lists.bytes() {
            // Freeing what was outgrown waits for the steps that still read it.
            self.lists = Buffer::new(&cuda.driver, 4 * room, LISTS)?;
        }
        if !self.words.is_empty() {
            self.lists.write(0, bytemuck::cast_slice(&self.words))?;
        }
        let start = self.lists.ptr();
        let at = |word: usize| start.offset(4 * word);
        self.host_rows.clear();
        let mut first_bias = 0;
        for row in &samplers.rows {
            let mask = row.mask.clone().unwrap_or(0..0);
            let n_biases = row.params.logit_bias.len();
            let fields = Row {
                prompt: at(history + row.prompt.start),
                generated: at(history + row.generated.start),
                biases: at(2 * first_bias),
                mask: at(masks + mask.start),
                uniform: fraction(row.uniform),
                n_prompt: row.prompt.len() as u32,
                n_generated: row.generated.len() as u32,
                n_biases: n_biases as u32,
                n_mask: mask.len() as u32,
                has_mask: u32::from(row.mask.is_some()),
                last: match row.last {
                    None => NONE,
                    Some(LastToken::Known(token)) => token,
                    Some(LastToken::Chosen(row)) => row as u32 | CHOSEN,
                },
            };
            first_bias += n_biases;
            self.host_rows.extend_from_slice(&bytemuck::cast::<Row, [u32; size_of::<Row>() / 4]>(fields));
            let params = DeviceParams::from(&*row.params);
            self.host_rows.extend_from_slice(bytemuck::cast_slice(&[params]));
            self.host_rows.resize(self.host_rows.len().next_multiple_of(ROW_WORDS), 0);
        }
        upload(cuda, &mut self.rows, &self.host_rows)
    }
}
