// Where the recurrent state of a sequence comes from in a step, and where it goes.
#pragma once
#include "../common/kernel.cuh"

// Instead of a slot: the sequence starts with zeros. Instead of a number of tokens: nothing is written any more.
constexpr uint32_t NO_SLOT = 0xffffffffu;
constexpr uint32_t NEVER = 0xffffffffu;

// The writes of a sequence in order, each a number of tokens of the step after which a slot is written.
struct SeqState {
  const uint32_t* batch;
  uint32_t from;       // slot that holds the state before the step
  uint32_t next, end;  // words of the batch: the next write, and after the last
  uint32_t after;      // tokens after which the next write is due
  uint32_t slot;       // that it writes

  // `states`: [n_seqs, 3], a slot, and of the writes' words in `batch` the first and that after the last.
  DEVICE SeqState(const uint32_t* batch, const uint32_t* states, int seq) : batch(batch) {
    from = states[3 * seq], next = states[3 * seq + 1], end = states[3 * seq + 2];
    advance();
  }

  // Goes to the next write.
  DEVICE void advance() {
    const bool there = next < end;
    after = there ? batch[next] : NEVER, slot = there ? batch[next + 1] : NO_SLOT;
    next += 2;
  }
};
