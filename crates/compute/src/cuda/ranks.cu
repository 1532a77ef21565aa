// What several GPUs do together, by writing to each other's memory: sums, and rows put together of everybody's columns.
//
// Every GPU has a mailbox with a place for each block, each GPU that writes there, and even and odd rounds. A block sends its numbers
// to the others' mailboxes in packets of 16 bytes, two numbers and twice the round's number, and reads what the others' blocks of the
// same index sent to its own. A packet's halves of 8 bytes arrive whole, so a half with the right number is there; nothing else is
// waited for. A place is written again two rounds later: by then the GPU that owns it has sent its next round, which it began when it
// had read this one.
//
// A thread owns PAIRS pairs of numbers. Moves 8 bytes per number to each other GPU. Sums are taken in the order of GPUs, so that all
// get the same bits.
#include "common.cuh"

constexpr int THREADS = 256, PAIRS = 2, MAX_RANKS = 8;
// Looks at a packet before the word that ends all waiting is looked at once.
constexpr int LOOKS = 1 << 12;

struct RanksArgs {
  float* y;
  const float* x;
  uint4* mailboxes[MAX_RANKS];  // [n_blocks, 2, n_ranks, THREADS * PAIRS] each
  uint32_t* rounds;             // [n_blocks]: rounds so far
  const uint32_t* cut;          // not 0 when a GPU will not answer any more
  uint32_t starts[MAX_RANKS + 1];  // first column of each GPU in y, and the number of columns
  uint32_t n;                   // numbers, or rows
  uint32_t first;               // pair of the first block
  uint32_t width;               // of rows in pairs; as wide as the widest GPU's columns
  uint32_t rank, n_ranks;
  uint32_t add;                 // whether the sum is added to y
};

DEVICE uint4* place(const RanksArgs& a, uint32_t to, uint32_t from, uint32_t round) {
  return a.mailboxes[to] + ((static_cast<size_t>(blockIdx.x) * 2 + (round & 1)) * a.n_ranks + from) * (THREADS * PAIRS) + threadIdx.x;
}

// Two numbers to every other GPU.
DEVICE void send(const RanksArgs& a, uint32_t round, int i, float2 pair) {
  for (uint32_t r = 0; r < a.n_ranks; r++) {
    if (r == a.rank) continue;
    ptx::store_packet(place(a, r, a.rank, round) + i * THREADS, __float_as_uint(pair.x), __float_as_uint(pair.y), round);
  }
}

// What GPU `from` sent, or anything after the waiting was ended.
DEVICE float2 receive(const RanksArgs& a, uint32_t round, int i, uint32_t from) {
  const uint4* packet = place(a, a.rank, from, round) + i * THREADS;
  for (int looks = 1;; looks++) {
    const uint4 p = ptx::load_packet(packet);
    if ((p.y == round && p.w == round) || (looks % LOOKS == 0 && ptx::load_word(a.cut))) {
      return {__uint_as_float(p.x), __uint_as_float(p.z)};
    }
    ptx::pause();
  }
}

// y = sum of every GPU's x, [n], or y += the sum.
KERNEL(all_reduce, RanksArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const uint32_t round = a.rounds[blockIdx.x] + 1;
  float2 mine[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t at = 2 * (static_cast<size_t>(a.first) + blockIdx.x * (THREADS * PAIRS) + i * THREADS + threadIdx.x);
    mine[i] = {at < a.n ? a.x[at] : 0.0f, at + 1 < a.n ? a.x[at + 1] : 0.0f};
    if (at < a.n) send(a, round, i, mine[i]);
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t at = 2 * (static_cast<size_t>(a.first) + blockIdx.x * (THREADS * PAIRS) + i * THREADS + threadIdx.x);
    if (at >= a.n) continue;
    float2 sum = {0, 0};
    for (uint32_t r = 0; r < a.n_ranks; r++) {
      const float2 x = r == a.rank ? mine[i] : receive(a, round, i, r);
      sum = r == 0 ? x : float2{sum.x + x.x, sum.y + x.y};
    }
    a.y[at] = a.add ? a.y[at] + sum.x : sum.x;
    if (at + 1 < a.n) a.y[at + 1] = a.add ? a.y[at + 1] + sum.y : sum.y;
  }
  __syncthreads();
  if (threadIdx.x == 0) a.rounds[blockIdx.x] = round;
}

// y [n, columns] = every GPU's x [n, its columns] side by side.
KERNEL(all_gather, RanksArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const uint32_t round = a.rounds[blockIdx.x] + 1, n_columns = a.starts[a.n_ranks];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t pair = static_cast<size_t>(a.first) + blockIdx.x * (THREADS * PAIRS) + i * THREADS + threadIdx.x;
    const size_t row = pair / a.width;
    const uint32_t column = 2 * static_cast<uint32_t>(pair % a.width), mine = a.starts[a.rank + 1] - a.starts[a.rank];
    if (row >= a.n || column >= mine) continue;
    const float* x = a.x + row * mine + column;
    send(a, round, i, {x[0], column + 1 < mine ? x[1] : 0.0f});
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t pair = static_cast<size_t>(a.first) + blockIdx.x * (THREADS * PAIRS) + i * THREADS + threadIdx.x;
    const size_t row = pair / a.width;
    const uint32_t column = 2 * static_cast<uint32_t>(pair % a.width);
    if (row >= a.n) continue;
    for (uint32_t r = 0; r < a.n_ranks; r++) {
      const uint32_t theirs = a.starts[r + 1] - a.starts[r];
      if (column >= theirs) continue;
      const float* x = a.x + row * theirs + column;
      const bool two = column + 1 < theirs;
      const float2 found = r == a.rank ? float2{x[0], two ? x[1] : 0.0f} : receive(a, round, i, r);
      float* y = a.y + row * n_columns + a.starts[r] + column;
      y[0] = found.x;
      if (two) y[1] = found.y;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) a.rounds[blockIdx.x] = round;
}

// y [n, columns] = this GPU's x in its columns, and zeros in the others'.
KERNEL(spread_columns, RanksArgs, THREADS) {
  ptx::wait_for_previous_kernel();
  const size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
  const uint32_t n_columns = a.starts[a.n_ranks], from = a.starts[a.rank], to = a.starts[a.rank + 1];
  const size_t row = i / n_columns;
  const uint32_t column = i % n_columns;
  if (row >= a.n) return;
  a.y[i] = column >= from && column < to ? a.x[row * (to - from) + (column - from)] : 0.0f;
}
