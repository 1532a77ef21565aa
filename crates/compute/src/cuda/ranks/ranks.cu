// What several GPUs do together, by writing to each other's memory: sums, and rows put together of everybody's columns.
//
// A thread owns PAIRS pairs of numbers. Moves 8 bytes per number to each other GPU.
#include "../common/ranks.cuh"
#include "collective_args.cuh"

constexpr int THREADS = 256, PAIRS = 2;

// The thread's pair i of those of this launch.
DEVICE uint32_t pair_of(int i) { return blockIdx.x * (THREADS * PAIRS) + i * THREADS + threadIdx.x; }

// y = sum of every GPU's x, [n], or y += the sum.
KERNEL(all_reduce, CollectiveArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const uint32_t round = a.ranks.round();
  float2 mine[PAIRS];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t at = 2 * (static_cast<size_t>(a.first) + pair_of(i));
    mine[i] = {at < a.n ? a.x[at] : 0.0f, at + 1 < a.n ? a.x[at + 1] : 0.0f};
    if (at < a.n) a.ranks.send(round, 2 * pair_of(i), mine[i]);
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t at = 2 * (static_cast<size_t>(a.first) + pair_of(i));
    if (at >= a.n) continue;
    float2 sum = {0, 0};
    for (uint32_t r = 0; r < a.ranks.n_ranks; r++) {
      const float2 x = r == a.ranks.rank ? mine[i] : a.ranks.receive_pair(round, 2 * pair_of(i), r);
      sum = r == 0 ? x : float2{sum.x + x.x, sum.y + x.y};
    }
    a.y[at] = a.add ? a.y[at] + sum.x : sum.x;
    if (at + 1 < a.n) a.y[at + 1] = a.add ? a.y[at + 1] + sum.y : sum.y;
  }
  __syncthreads();
  a.ranks.end(round);
}

// y [n, columns] = every GPU's x [n, its columns] side by side. The first pair is sent by all, also by those who have no columns there.
KERNEL(all_gather, CollectiveArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const uint32_t round = a.ranks.round(), n_columns = a.starts[a.ranks.n_ranks];
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t pair = static_cast<size_t>(a.first) + pair_of(i), row = pair / a.width;
    const uint32_t column = 2 * static_cast<uint32_t>(pair % a.width), mine = a.starts[a.ranks.rank + 1] - a.starts[a.ranks.rank];
    if (row >= a.n || (column >= mine && pair_of(i) > 0)) continue;
    const float* x = a.x + row * mine + column;
    a.ranks.send(round, 2 * pair_of(i), {column < mine ? x[0] : 0.0f, column + 1 < mine ? x[1] : 0.0f});
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    const size_t pair = static_cast<size_t>(a.first) + pair_of(i), row = pair / a.width;
    const uint32_t column = 2 * static_cast<uint32_t>(pair % a.width);
    if (row >= a.n) continue;
    for (uint32_t r = 0; r < a.ranks.n_ranks; r++) {
      const uint32_t theirs = a.starts[r + 1] - a.starts[r];
      const bool one = column < theirs, two = column + 1 < theirs;
      if (!one && pair_of(i) > 0) continue;
      const float* x = a.x + row * theirs + column;
      const float2 found = r == a.ranks.rank ? float2{one ? x[0] : 0.0f, two ? x[1] : 0.0f}
                                             : a.ranks.receive_pair(round, 2 * pair_of(i), r);
      float* y = a.y + row * n_columns + a.starts[r] + column;
      if (one) y[0] = found.x;
      if (two) y[1] = found.y;
    }
  }
  __syncthreads();
  a.ranks.end(round);
}

// y [n, columns] = this GPU's x in its columns, and zeros in the others'.
KERNEL(spread_columns, CollectiveArgs, THREADS) {
  ptx::griddepcontrol_wait();
  const size_t i = static_cast<size_t>(blockIdx.x) * THREADS + threadIdx.x;
  const uint32_t n_columns = a.starts[a.ranks.n_ranks], from = a.starts[a.ranks.rank], to = a.starts[a.ranks.rank + 1];
  const size_t row = i / n_columns;
  const uint32_t column = i % n_columns;
  if (row >= a.n) return;
  a.y[i] = column >= from && column < to ? a.x[row * (to - from) + (column - from)] : 0.0f;
}
