//! What the outcome of a step means for its sequences.

use super::{LaunchedSeq, Scheduler};
use crate::request::{Event, FinishReason};
use crate::runner::{Choice, Sampled};
use crate::sequence::SeqId;
use crate::{Error, SampleError};
use std::time::Duration;

impl Scheduler {
    /// Takes the outcome of the oldest step in flight; appends what it means for its sequences to `out`.
    pub fn commit(&mut self, mut sampled: Sampled, now: Duration, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_front().expect("a step is in flight");
        let mut row = 0;
        for part in launched {
            let rows = row..row + part.scored.len() + part.n_chosen;
            row = rows.end;
            let rows = &mut sampled.rows[rows];
            // A sequence that ended meanwhile has no use for the rest of what was computed for it.
            if let Some(seq) = self.seqs.get_mut(&part.id) {
                seq.n_in_flight -= 1;
                let n_accepted = accepted(&part.drafts, &rows[part.scored.len()..]);
                if part.n_chosen > 0 {
                    self.counters.drafted_tokens += part.drafts.len() as u64;
                    self.counters.accepted_tokens += n_accepted as u64;
                    seq.drafted(part.drafts.len(), n_accepted);
                }
                if seq.epoch == part.epoch {
                    // The positions of the other drafts hold what never was; they are computed again.
                    let n_drafts = part.drafts.len();
                    let n_kept = self.store.roll_back(&mut seq.state, part.end, n_drafts, n_accepted);
                    seq.n_redo += n_accepted - n_kept;
                    self.counters.recomputed_drafts += (n_accepted - n_kept) as u64;
                    seq.n_computed = part.end + n_kept;
                    seq.n_launched = seq.n_launched.max(seq.n_computed);
                    seq.prefilled |= part.end >= seq.n_prompt;
                }
                let n_taken = part.scored.len() + part.n_chosen.min(n_accepted + 1);
                if let Some(end) = self.take_rows(&part, &mut rows[..n_taken], now, out) {
                    self.offer_state(part.id);
                    self.offer_end(part.id);
                    self.remove(part.id);
                    out.push((part.id, end));
                } else {
                    self.offer_state(part.id);
                }
            }
        }
        assert_eq!(row, sampled.rows.len(), "one outcome per row of logits");
    }

    /// Ends all sequences of the oldest step in flight with an error.
    pub fn fail_oldest(&mut self, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_front().expect("a step is in flight");
        self.fail(launched, error, out);
    }

    /// Ends all sequences of the step scheduled last with an error.
    pub fn fail_newest(&mut self, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        let launched = self.in_flight.pop_back().expect("a step is in flight");
        self.fail(launched, error, out);
    }

    /// Takes the outcomes of a sequence's rows, with the lists in them. Returns its last event if it ends.
    fn take_rows(
        &mut self,
        part: &LaunchedSeq,
        rows: &mut [std::result::Result<Choice, SampleError>],
        now: Duration,
        out: &mut Vec<(SeqId, Event)>,
    ) -> Option<Event> {
        let seq = self.seqs.get_mut(&part.id).expect("checked by the caller");
        let (scored, chosen) = rows.split_at_mut(part.scored.len());
        for (row, position) in scored.iter_mut().zip(part.scored.clone()) {
            match row {
                Ok(c) => {
                    let (id, logprob, top_logprobs) =
                        (c.token, c.logprob, std::mem::take(&mut c.top_logprobs));
                    out.push((part.id, Event::PromptToken { id, logprob, top_logprobs }));
                    seq.n_scored = position + 1;
                }
                Err(e) => return Some(Event::Error(Error::Sample(*e))),
            }
        }
        if part.n_chosen == 0 {
            let done = seq.max_tokens == 0 && seq.n_scored + 1 >= seq.n_prompt;
            return done.then(|| seq.finished(FinishReason::Length, now));
        }
        seq.n_unseen -= 1;
        seq.verifies = false;
        let mut taken = Vec::new();
        for row in chosen {
            let choice = match row {
                Ok(choice) => choice,
                Err(e) => return Some(Event::Error(Error::Sample(*e))),
            };
            seq.first_token.get_or_insert(now);
            let id = choice.token;
            if seq.stop_tokens.contains(&id) {
                return Some(seq.finished(FinishReason::Stop { token: Some(id) }, now));
            }
            seq.tokens.push(id);
            let (logprob, top_logprobs) = (choice.logprob, std::mem::take(&mut choice.top_logprobs));
            let log_sum_exp = choice.log_sum_exp;
            out.push((
                part.id,
                Event::Token { choice: part.id.choice, id, logprob, top_logprobs, log_sum_exp },
            ));
            let n_generated = seq.tokens.len() - seq.n_prompt;
            if n_generated >= seq.max_tokens {
                return Some(seq.finished(FinishReason::Length, now));
            }
            if seq.constrained {
                taken.push(id);
            }
        }
        self.request_mask(part.id, taken);
        None
    }

    /// Offers a sequence's state to the prefix cache, as far as it is known to be computed.
    fn offer_state(&mut self, id: SeqId) {
        let seq = self.seqs.get_mut(&id).expect("checked by the caller");
        // A sequence that ends with an error may not have taken all that was computed for it.
        let n = seq.n_computed.min(seq.tokens.len());
        self.store.offer(&mut seq.state, &seq.tokens[..n], seq.salt);
    }

    /// Offers the last block of a sequence that is about to end, which may be partly filled.
    pub(super) fn offer_end(&mut self, id: SeqId) {
        if let Some(seq) = self.seqs.get(&id).filter(|seq| seq.running) {
            let n = seq.n_computed.min(seq.tokens.len());
            self.store.offer_part(&seq.state, &seq.tokens[..n], seq.salt);
        }
    }

    fn fail(&mut self, launched: Vec<LaunchedSeq>, error: &Error, out: &mut Vec<(SeqId, Event)>) {
        for part in launched {
            if self.remove(part.id).is_some() {
                out.push((part.id, Event::Error(error.clone())));
            }
        }
    }
}

/// How many drafts the model would have generated itself: those before the first one that it chose differently.
fn accepted(drafts: &[u32], chosen: &[std::result::Result<Choice, SampleError>]) -> usize {
    let same = |(draft, row): &(&u32, _)| matches!(row, Ok::<&Choice, _>(c) if c.token == **draft);
    drafts.iter().zip(chosen.iter().map(|r| r.as_ref())).take_while(same).count()
}
