//! Makes tokens less likely that occurred before.
//!
//! As in vLLM and OpenAI's API, the repetition penalty looks at prompt and text, the frequency and presence penalties at the text
//! only. (llama.cpp lets all three look at both.)

use super::{Candidates, RowInput, SamplerStep, Scratch};

pub(super) const STEP: SamplerStep =
    SamplerStep { name: "penalties", active: |row| row.params.has_penalties(), apply };

fn apply(candidates: &mut Candidates, row: &RowInput, scratch: &mut Scratch) {
    let p = row.params;
    let counts = &mut scratch.counts;
    counts.resize(candidates.logits.len(), 0);
    // Each token is penalized once, where it is met first. Bit 0 marks it as done, higher bits count its occurrences in the text.
    const DONE: u32 = 1;
    const ONCE: u32 = 2;
    let generated = || row.generated.iter().copied().chain(row.unseen);
    for id in generated() {
        counts[id as usize] += ONCE;
    }
    for id in generated().chain(row.prompt.iter().copied()) {
        let count = &mut counts[id as usize];
        if *count & DONE != 0 {
            continue;
        }
        let logit = &mut candidates.logits[id as usize];
        *logit = if *logit > 0.0 { *logit / p.repetition_penalty } else { *logit * p.repetition_penalty };
        let n = *count / ONCE;
        if n > 0 {
            *logit -= n as f32 * p.frequency_penalty + p.presence_penalty;
        }
        *count |= DONE;
    }
    for id in generated().chain(row.prompt.iter().copied()) {
        counts[id as usize] = 0;
    }
}
