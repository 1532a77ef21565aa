//! Gathers an importance matrix: a model reads text, and the inputs of its matrices are summed up on the way.

use crate::chunk::Chunk;
use crate::{Result, Row, Runner, SamplingParams, Step};
use realizar_compute::{InputObserver, MatmulInput};
use realizar_model::imatrix::Imatrix;
use std::sync::{Arc, Mutex, PoisonError};

/// Sums up the squares of what the matrices of a model's layers are multiplied with.
#[derive(Debug, Default)]
pub struct InputCollector {
    imatrix: Mutex<Imatrix>,
    /// Whether the output matrix is one of them.
    with_output: bool,
}

impl InputCollector {
    /// Has seen nothing yet. With `with_output`, the matrix that makes logits counts, too.
    pub fn new(with_output: bool) -> Self {
        Self { imatrix: Mutex::default(), with_output }
    }

    /// Lets a runner whose device shows its inputs to this collector read a chunk of text. `bos` replaces the chunk's first token.
    ///
    /// Errors: `PromptTooLong` for more tokens than the runner can hold; what the runner reports.
    pub fn read_chunk(&self, runner: &mut dyn Runner, chunk: &[u32], bos: Option<u32>) -> Result<()> {
        let info = runner.info();
        let chunk = Chunk::new(info, chunk, bos)?;
        let n_tokens = chunk.tokens.len();
        // Logits are computed only where their matrix counts.
        let step_len =
            if self.with_output { info.limits.n_logits } else { usize::MAX }.min(info.limits.n_tokens);
        let params = Arc::new(SamplingParams::greedy());
        let mut step = Step::default();
        for start in (0..n_tokens).step_by(step_len.max(1)) {
            let end = n_tokens.min(start + step_len);
            let n_logits = if self.with_output { end - start } else { 0 };
            chunk.fill(&mut step, start..end, n_logits);
            step.rows.extend((0..n_logits).map(|_| Row::score(0, params.clone())));
            let ticket = runner.launch(&step)?;
            runner.finish(ticket)?;
        }
        Ok(())
    }

    /// What was gathered since the last call, with room for what the text was.
    pub fn take(&self) -> Imatrix {
        std::mem::take(&mut *self.imatrix.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl InputObserver for InputCollector {
    fn observe(&self, MatmulInput { names, n_experts, expert, x, n_in }: MatmulInput<'_>) {
        for name in names {
            if name.starts_with("blk.") || (self.with_output && &**name == "output.weight") {
                let mut imatrix = self.imatrix.lock().unwrap_or_else(PoisonError::into_inner);
                imatrix.add(name, n_experts, expert, x, n_in);
            }
        }
    }
}
