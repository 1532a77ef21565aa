// Mixture of experts: which experts each token uses, the uses sorted by expert, and the sum of their outputs.
//
// The experts' products are those of matmul.cu, over the tiles that moe_group writes.
#include "../common/kernel.cuh"
#include "experts_args.cuh"

constexpr int MAX_EXPERTS = 1024;
constexpr int TILE_ROWS = 8;

struct MoeTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

// A warp owns a token; lane l looks at experts l, l + 32, …
KERNEL(moe_route, MoeArgs, 128) {
  ptx::griddepcontrol_wait();
  const int lane = threadIdx.x % 32, n = a.n_experts;
  const uint32_t token = blockIdx.x * 4 + threadIdx.x / 32;
  if (token >= a.n_tokens) return;
  const float* scores = a.router + static_cast<size_t>(token) * n;
  float max = -INFINITY;
  for (int e = lane; e < n; e += 32) max = fmaxf(max, scores[e]);
  max = warp_max(max);
  float sum = 0;
  for (int e = lane; e < n; e += 32) sum += expf(scores[e] - max);
  sum = warp_sum(sum);
  uint32_t taken = 0;  // bit j: expert lane + 32 * j
  float total = 0;
  for (uint32_t i = 0; i < a.n_used; i++) {
    // The most probable expert that is left, the lowest of several; not a number counts as least.
    float best = -2.0f;
    int expert = MAX_EXPERTS;
    for (int e = lane, j = 0; e < n; e += 32, j++) {
      if (taken >> j & 1) continue;
      float p = expf(scores[e] - max) / sum;
      if (!(p >= 0.0f)) p = -1.0f;
      if (p > best) best = p, expert = e;
    }
#pragma unroll
    for (int d = 16; d; d >>= 1) {
      const float p = __shfl_xor_sync(ALL_LANES, best, d);
      const int e = __shfl_xor_sync(ALL_LANES, expert, d);
      if (p > best || (p == best && e < expert)) best = p, expert = e;
    }
    if (expert % 32 == lane) taken |= 1u << expert / 32;
    // What was not a number stays so.
    const float weight = expf(scores[expert] - max) / sum;
    total += weight;
    if (lane == 0) {
      a.experts[token * a.n_used + i] = expert;
      a.weights[token * a.n_used + i] = weight;
    }
  }
  __syncwarp();
  if (a.norm_topk) {
    for (uint32_t i = lane; i < a.n_used; i += 32) a.weights[token * a.n_used + i] /= total;
  }
}

// One block; thread t owns experts t, t + 256, …, and its uses keep their order.
KERNEL(moe_group, MoeArgs, 256) {
  ptx::griddepcontrol_wait();
  __shared__ uint32_t counts[MAX_EXPERTS], first_slots[MAX_EXPERTS], first_tiles[MAX_EXPERTS];
  __shared__ uint32_t n_filled;
  const uint32_t n_uses = a.n_tokens * a.n_used;
  for (uint32_t e = threadIdx.x; e < a.n_experts; e += 256) {
    uint32_t count = 0;
    for (uint32_t u = 0; u < n_uses; u++) count += a.experts[u] == e;
    counts[e] = count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t slot = 0, tile = 0;
    for (uint32_t e = 0; e < a.n_experts; e++) {
      first_slots[e] = slot, first_tiles[e] = tile;
      slot += counts[e], tile += (counts[e] + TILE_ROWS - 1) / TILE_ROWS;
    }
    n_filled = tile;
  }
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < a.n_experts; e += 256) {
    const uint32_t first = first_slots[e], count = counts[e];
    for (uint32_t u = 0, slot = first; u < n_uses && slot < first + count; u++) {
      if (a.experts[u] == e) {
        a.tokens[slot] = u / a.n_used;
        a.slots[u] = slot++;
      }
    }
    for (uint32_t i = 0, tile = first_tiles[e]; i < count; i += TILE_ROWS, tile++) {
      a.tiles[tile] = MoeTile{e, first + i, count - i < TILE_ROWS ? count - i : TILE_ROWS};
    }
  }
  for (uint32_t t = n_filled + threadIdx.x; t < a.n_tiles; t += 256) a.tiles[t] = MoeTile{0, 0, 0};
}

// A thread owns one element of a token's output.
KERNEL(moe_combine, MoeArgs, 256) {
  ptx::griddepcontrol_wait();
  const uint32_t i = blockIdx.y * 256 + threadIdx.x, token = blockIdx.x;
  if (i >= a.hidden_size) return;
  float sum = 0;
  for (uint32_t u = token * a.n_used; u < (token + 1) * a.n_used; u++) {
    sum += a.weights[u] * a.outputs[static_cast<size_t>(a.slots[u]) * a.hidden_size + i];
  }
  a.y[static_cast<size_t>(token) * a.hidden_size + i] = sum;
}
