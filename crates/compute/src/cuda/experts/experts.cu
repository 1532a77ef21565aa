// Mixture of experts: which experts each token uses, the uses sorted by expert, and the sum of their outputs.
//
// The experts' products are those of matmul.cu, over the tiles that moe_group writes.
#include <cfloat>

#include "../common/activation.cuh"
#include "experts_args.cuh"

constexpr int MAX_EXPERTS = 1024;
constexpr int TILE_ROWS = 8;

struct MoeTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

constexpr int MAX_GROUPS = 32;

// What one token's router says of its experts.
struct Scores {
  const MoeArgs& a;
  const float* logits;
  float max, sum;

  // The score that becomes a weight.
  DEVICE float score(int e) const {
    return a.is_sigmoid ? 1.0f / (1.0f + expf(-logits[e])) : expf(logits[e] - max) / sum;
  }

  // What experts are compared by; what is not a number counts as least.
  DEVICE float preference(int e) const {
    const float p = score(e) + (a.selection_bias ? a.selection_bias[e] : 0.0f);
    return p == p ? p : -FLT_MAX;
  }
};

// The lane and number with the largest value, the lowest number of several.
DEVICE void warp_best(float& best, int& number) {
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const float p = __shfl_xor_sync(ALL_LANES, best, d);
    const int n = __shfl_xor_sync(ALL_LANES, number, d);
    if (p > best || (p == best && n < number)) best = p, number = n;
  }
}

// Bit g: the token may use experts of group g. Lane g looks at group g.
DEVICE uint32_t best_groups(const Scores& s, int lane, int size) {
  float value = -INFINITY;
  if (lane < s.a.n_groups) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = lane * size; e < (lane + 1) * size; e++) {
      const float p = s.preference(e);
      if (p > first) {
        second = first, first = p;
      } else if (p > second) {
        second = p;
      }
    }
    value = s.a.groups_by_top_two ? first + second : first;
  }
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < s.a.n_groups_used; i++) {
    float best = chosen >> lane & 1 ? -INFINITY : value;
    int group = lane;
    warp_best(best, group);
    chosen |= 1u << group;
  }
  return chosen;
}

// A warp owns a token; lane l looks at experts l, l + 32, …
KERNEL(moe_route, MoeArgs, 128) {
  ptx::griddepcontrol_wait();
  const int lane = threadIdx.x % 32, n = a.n_experts;
  const uint32_t token = blockIdx.x * 4 + threadIdx.x / 32;
  if (token >= a.n_tokens) return;
  Scores s{a, a.router + static_cast<size_t>(token) * n, -INFINITY, 0};
  for (int e = lane; e < n; e += 32) s.max = fmaxf(s.max, s.logits[e]);
  s.max = warp_max(s.max);
  for (int e = lane; e < n; e += 32) s.sum += expf(s.logits[e] - s.max);
  s.sum = warp_sum(s.sum);
  const int group_size = n / a.n_groups;
  const uint32_t groups = a.n_groups > 1 ? best_groups(s, lane, group_size) : 1;
  uint32_t taken = 0;  // bit j: expert lane + 32 * j
  float total = 0;
  for (uint32_t i = 0; i < a.n_used; i++) {
    // The most preferred expert that is left, the lowest of several.
    float best = -INFINITY;
    int expert = MAX_EXPERTS;
    for (int e = lane, j = 0; e < n; e += 32, j++) {
      if (taken >> j & 1 || !(groups >> e / group_size & 1)) continue;
      const float p = s.preference(e);
      if (p > best) best = p, expert = e;
    }
    warp_best(best, expert);
    if (expert % 32 == lane) taken |= 1u << expert / 32;
    // What was not a number stays so.
    const float weight = s.score(expert);
    total += weight;
    if (lane == 0) {
      a.experts[token * a.n_used + i] = expert;
      a.weights[token * a.n_used + i] = weight;
    }
  }
  __syncwarp();
  // Sigmoids may all round to 0.
  const float divisor = a.norm_topk && total != 0.0f ? total : 1.0f;
  for (uint32_t i = lane; i < a.n_used; i += 32) {
    float& weight = a.weights[token * a.n_used + i];
    weight = weight / divisor * a.scale;
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

// A thread owns one hidden activation of a use.
KERNEL(moe_gate, MoeGateArgs, 256) {
  ptx::griddepcontrol_wait();
  const uint32_t i = blockIdx.y * 256 + threadIdx.x, n = a.intermediate_size;
  if (i >= n) return;
  const size_t slot = a.slots[blockIdx.x];
  const float* x = a.gate_up + slot * 2 * n;
  float gate = x[i], up = x[n + i];
  if (a.bias) {
    const float* bias = a.bias + static_cast<size_t>(a.experts[blockIdx.x]) * 2 * n;
    gate += bias[i], up += bias[n + i];
  }
  a.hidden[slot * n + i] = gate_one(a.activation, gate, up);
}

// A thread owns one element of a token's output.
KERNEL(moe_combine, MoeArgs, 256) {
  ptx::griddepcontrol_wait();
  const uint32_t i = blockIdx.y * 256 + threadIdx.x, token = blockIdx.x;
  if (i >= a.hidden_size) return;
  float sum = 0;
  for (uint32_t u = token * a.n_used; u < (token + 1) * a.n_used; u++) {
    float output = a.outputs[static_cast<size_t>(a.slots[u]) * a.hidden_size + i];
    if (a.down_bias) output += a.down_bias[static_cast<size_t>(a.experts[u]) * a.hidden_size + i];
    sum += a.weights[u] * output;
  }
  a.y[static_cast<size_t>(token) * a.hidden_size + i] = sum;
}
