// The likeliest token of each row of logits.
//
// Blocks share a row: each finds the largest of its part, they meet in one 64-bit word, and the last one leaves the token. Moves: the
// logits once.
#include "common.cuh"

constexpr int THREADS = 256;

struct LikeliestArgs {
  uint32_t* chosen;        // [n_rows]
  const float* logits;     // [n_rows, n]
  unsigned long long* best;  // [n_rows]: the largest key so far; zero before and after
  uint32_t* arrived;       // [n_rows]: blocks that are done; zero before and after
  uint32_t n;
};

// What a token is marked with that cannot be chosen; launchers know them too.
constexpr uint32_t NOT_A_NUMBER = 1u << 30, INFINITE = 2u << 30, NOTHING = 3u << 30;

// Orders logits, and of equal ones the lower token higher. What is not a number is largest.
DEVICE unsigned long long key(float logit, uint32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // zero has one sign
  const uint32_t order = logit != logit ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xffffffffu - token);
}

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(likeliest, LikeliestArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __shared__ unsigned long long found[THREADS / 32];
  const uint32_t n = a.n, row = blockIdx.y, per_block = (n + gridDim.x - 1) / gridDim.x;
  const uint32_t from = blockIdx.x * per_block, to = from + per_block < n ? from + per_block : n;
  const float* logits = a.logits + static_cast<size_t>(row) * n;
  unsigned long long best = 0;
#pragma unroll 4
  for (uint32_t i = from + threadIdx.x; i < to; i += THREADS) {
    const unsigned long long k = key(logits[i], i);
    best = k > best ? k : best;
  }
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const unsigned long long other = __shfl_xor_sync(ALL_LANES, best, d);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < THREADS / 32; w++) best = found[w] > best ? found[w] : best;
  atomicMax(a.best + row, best);
  __threadfence();
  if (atomicAdd(a.arrived + row, 1u) != gridDim.x - 1) return;
  __threadfence();
  best = atomicExch(a.best + row, 0ull);
  a.arrived[row] = 0;
  const uint32_t order = static_cast<uint32_t>(best >> 32), token = 0xffffffffu - static_cast<uint32_t>(best);
  const uint32_t mark = order == 0xffffffffu   ? NOT_A_NUMBER
                        : order == 0xff800000u ? INFINITE
                        : order <= 0x007fffffu ? NOTHING
                                               : 0;
  a.chosen[row] = token | mark;
}
