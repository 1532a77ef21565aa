// Causal convolutions over the last tokens of a sequence, each channel by itself.
//
// Mapping. Thread: a channel of a tile of tokens, in their order. blockIdx.x: 128 channels; blockIdx.y: tile. The first WIDTH - 1 tokens of
// a sequence read its slot, and one thread computes them all before it writes slots: that of the tile in which the sequence begins, even
// past the tile's end. A tile is at least WIDTH - 1 tokens long, or each sequence has one token.
// Shared memory: none. Moves: inputs of the tile's tokens and of WIDTH - 1 before, outputs, and each sequence's slots.
#include "../common/activation.cuh"
#include "short_conv_args.cuh"
#include "states.cuh"

constexpr int THREADS = 128;
constexpr int BATCH = 4;  // tokens whose inputs are loaded at once

// What the convolution reads of a token.
DEVICE float input_of(const ShortConvArgs& a, int channel, int token) {
  const float* x = a.x + static_cast<size_t>(token) * a.x_len + channel;
  return a.gated ? x[0] * x[2 * static_cast<size_t>(a.n_channels)] : x[0];
}

// The channel of all rows before the tokens of a step, in a slot.
DEVICE float* slot_row(const ShortConvArgs& a, int channel, uint32_t slot, int row, int n_rows) {
  return a.state + (static_cast<size_t>(slot) * n_rows + row) * a.n_channels + channel;
}

// Writes the slots of a sequence that begins with token `start`; `tail` are the inputs before it.
template <int WIDTH>
DEVICE void write_slots(const ShortConvArgs& a, SeqState& state, int channel, int start, const float (&tail)[WIDTH - 1]) {
  for (; state.after != NEVER; state.advance()) {
#pragma unroll
    for (int row = 0; row < WIDTH - 1; row++) {
      const int i = state.after + row;
      float value = 0;
      if (i >= WIDTH - 1) value = input_of(a, channel, start + i - (WIDTH - 1));
#pragma unroll
      for (int j = 0; j < WIDTH - 1; j++) {
        if (j == i) value = tail[j];
      }
      *slot_row(a, channel, state.slot, row, WIDTH - 1) = value;
    }
  }
}

// The tokens `from` to `to` - 1 of a sequence, and others before `to` that are its first.
template <int WIDTH>
DEVICE void convolve(const ShortConvArgs& a, const float (&weight)[WIDTH], float bias, int channel, int seq, int from, int to) {
  const int start = a.seq_starts[seq], end = a.seq_starts[seq + 1];
  const bool begins = start >= from;
  const int first = begins ? start : max(from, start + WIDTH - 1);
  const int last = min(end, begins ? max(to, start + WIDTH - 1) : to);
  if (first >= last) return;
  SeqState state(a.batch, a.states, seq);
  float tail[WIDTH - 1], window[WIDTH];
#pragma unroll
  for (int j = 0; j < WIDTH - 1; j++) {
    if (!begins) {
      tail[j] = input_of(a, channel, first - (WIDTH - 1) + j);
    } else {
      tail[j] = state.from == NO_SLOT ? 0.0f : *slot_row(a, channel, state.from, j, WIDTH - 1);
    }
    window[j + 1] = tail[j];
  }
  for (int base = first; base < last; base += BATCH) {
    float next[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; i++) next[i] = base + i < last ? input_of(a, channel, base + i) : 0.0f;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
      if (base + i >= last) break;
      float sum = bias;
#pragma unroll
      for (int j = 0; j < WIDTH; j++) {
        window[j] = j < WIDTH - 1 ? window[j + 1] : next[i];
        sum = fmaf(weight[j], window[j], sum);
      }
      const size_t token = base + i;
      a.y[token * a.n_channels + channel] =
          a.gated ? a.x[token * a.x_len + a.n_channels + channel] * sum : activate_one(SILU, sum);
    }
  }
  if (begins) write_slots<WIDTH>(a, state, channel, start, tail);
}

// The sequence of a token.
DEVICE int seq_of(const ShortConvArgs& a, uint32_t token) {
  int low = 0, high = a.n_seqs;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (a.seq_starts[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <int WIDTH>
DEVICE void short_conv(const ShortConvArgs& a) {
  ptx::launch_dependents();
  const int channel = blockIdx.x * THREADS + threadIdx.x, n_seqs = a.n_seqs;
  const int from = blockIdx.y * a.tile_tokens, to = min(from + a.tile_tokens, a.n_tokens);
  const bool there = channel < static_cast<int>(a.n_channels);
  float weight[WIDTH] = {}, bias = 0;
  if (there) {
    if (a.bias) bias = a.bias[channel];
#pragma unroll
    for (int j = 0; j < WIDTH; j++) weight[j] = a.weight[static_cast<size_t>(j) * a.n_channels + channel];
  }
  ptx::griddepcontrol_wait();
  if (!there) return;
  int seq = a.tile_tokens == 1 ? from : seq_of(a, from);
  for (; seq < n_seqs && static_cast<int>(a.seq_starts[seq]) < to; seq++) convolve<WIDTH>(a, weight, bias, channel, seq, from, to);
}

#define SHORT_CONV(WIDTH) \
  KERNEL(short_conv_##WIDTH, ShortConvArgs, THREADS) { short_conv<WIDTH>(a); }
SHORT_CONV(2) SHORT_CONV(3) SHORT_CONV(4) SHORT_CONV(5) SHORT_CONV(6) SHORT_CONV(7) SHORT_CONV(8)
