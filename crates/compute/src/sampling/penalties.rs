//! Makes tokens less likely that occurred before.
//!
//! As in vLLM and OpenAI's API, the repetition penalty looks at prompt and text, the frequency and presence penalties at the text
//! only. (llama.cpp lets all three look at both.)

use super::candidates::{Candidates, Scratch};
use super::definition::Ranking;
use super::{SamplerInput, SamplerStep, SamplingParams};

pub(super) const STEP: SamplerStep =
    SamplerStep { name: "penalties", is_active: |row| row.params.has_penalties(), define, apply };

/// The logit of a token that occurred, `count` times of these in the generated text.
fn penalized(logit: f32, count: u32, p: &SamplingParams) -> f32 {
    let logit = if logit > 0.0 { logit / p.repetition_penalty } else { logit * p.repetition_penalty };
    match count {
        0 => logit,
        _ => logit - (count as f32 * p.frequency_penalty + p.presence_penalty),
    }
}

fn define(ranking: &mut Ranking, row: &SamplerInput) {
    ranking.edit(|id, logit| {
        let count = row.all_generated().filter(|&token| token == id).count() as u32;
        let occurs = count > 0 || row.prompt.contains(&id);
        if occurs { penalized(logit, count, row.params) } else { logit }
    });
}

fn apply(candidates: &mut Candidates, row: &SamplerInput, scratch: &mut Scratch) {
    let counts = &mut scratch.counts;
    counts.resize(candidates.logits.len(), 0);
    // Each token is penalized once, where it is met first. Bit 0 marks it as done, higher bits count its occurrences in the text.
    const DONE: u32 = 1;
    const ONCE: u32 = 2;
    for id in row.all_generated() {
        counts[id as usize] += ONCE;
    }
    let occurring = || row.all_generated().chain(row.prompt.iter().copied());
    for id in occurring() {
        let count = &mut counts[id as usize];
        if *count & DONE == 0 {
            let logit = &mut candidates.logits[id as usize];
            *logit = penalized(*logit, *count / ONCE, row.params);
            *count |= DONE;
        }
    }
    for id in occurring() {
        counts[id as usize] = 0;
    }
}
