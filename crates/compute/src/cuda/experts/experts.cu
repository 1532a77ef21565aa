// Mixture of experts: which experts each token uses, the uses sorted by expert, and the sum of their outputs.
//
// The experts' products are those of cuda/matmul, over the tiles that moe_group writes.
#include <cfloat>

#include "../common/activation.cuh"
#include "experts_args.cuh"

struct MoeTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

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

// Floats as integers that compare alike; 0 is less than all.
DEVICE uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The number of the lane's with the largest value among all lanes, the lowest number of several.
DEVICE uint32_t warp_best(uint32_t value, uint32_t number) {
  const uint32_t largest = __reduce_max_sync(ALL_LANES, value);
  return __reduce_min_sync(ALL_LANES, value == largest ? number : 0xffffffffu);
}

// Bit g: the token may use experts of group g. Lane g looks at group g.
DEVICE uint32_t best_groups(const Scores& s, int lane, int size) {
  uint32_t value = 0;
  if (lane < static_cast<int>(s.a.n_groups)) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = lane * size; e < (lane + 1) * size; e++) {
      const float p = s.preference(e);
      if (p > first) {
        second = first, first = p;
      } else if (p > second) {
        second = p;
      }
    }
    value = ordered(s.a.groups_by_top_two ? first + second : first);
  }
  uint32_t chosen = 0;
  for (uint32_t i = 0; i < s.a.n_groups_used; i++) chosen |= 1u << warp_best(chosen >> lane & 1 ? 0 : value, lane);
  return chosen;
}

// A warp owns a token; lane l looks at experts l, l + 32, …, and has the l-th of those that are chosen.
constexpr int ROUTE_WARPS = 4;
KERNEL(moe_route, MoeArgs, ROUTE_WARPS * 32) {
  __shared__ uint32_t preferences[ROUTE_WARPS][MAX_EXPERTS];
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const uint32_t lane = threadIdx.x % 32, n = a.n_experts, token = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (token >= a.n_tokens) return;
  Scores s{a, a.router + static_cast<size_t>(token) * n, -INFINITY, 0};
  for (uint32_t e = lane; e < n; e += 32) s.max = fmaxf(s.max, s.logits[e]);
  s.max = warp_max(s.max);
  for (uint32_t e = lane; e < n; e += 32) s.sum += expf(s.logits[e] - s.max);
  s.sum = warp_sum(s.sum);
  const int group_size = n / a.n_groups;
  const uint32_t groups = a.n_groups > 1 ? best_groups(s, lane, group_size) : 1;
  uint32_t* of = preferences[threadIdx.x / 32];
  for (uint32_t e = lane; e < n; e += 32) of[e] = groups >> e / group_size & 1 ? ordered(s.preference(e)) : 0;
  uint32_t mine = 0;
  for (uint32_t i = 0; i < a.n_used; i++) {
    // The most preferred expert that is left, the lowest of several.
    uint32_t best = 0, number = lane;
    for (uint32_t e = lane; e < n; e += 32) {
      const uint32_t p = of[e];
      if (p > best) best = p, number = e;
    }
    const uint32_t expert = warp_best(best, number);
    if (expert % 32 == lane) of[expert] = 0;
    if (i == lane) mine = expert;
  }
  const bool has_one = lane < a.n_used;
  // What was not a number stays so.
  const float weight = has_one ? s.score(mine) : 0.0f, total = warp_sum(weight);
  // Sigmoids may all round to 0.
  const float divisor = a.norm_topk && total != 0.0f ? total : 1.0f;
  if (has_one) {
    a.experts[token * a.n_used + lane] = mine;
    a.weights[token * a.n_used + lane] = weight / divisor * a.scale * (a.output_scale ? a.output_scale[mine] : 1.0f);
  }
}

// Sorts uses by expert (counting sort); those of an expert keep their order. One block, whose warps own ranges of uses. Shared memory: 4
// bytes for each expert, for each warp and twice more. Moves: the uses' experts twice, 12 bytes per use out.
constexpr int GROUP_THREADS = GROUP_WARPS * 32;

// Calls f(use, expert, at) for the uses of a warp, 32 at a time: `at` is the expert's number in `next`, which goes up by one for each.
template <class F>
DEVICE void for_each_use(const MoeArgs& a, uint32_t* next, F f) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.n_tokens * a.n_used;
  const uint32_t each = (n + GROUP_THREADS - 1) / GROUP_THREADS * 32, end = min((warp + 1) * each, n);
#pragma unroll 1
  for (uint32_t first = warp * each; first < end; first += 32) {
    const uint32_t use = first + lane;
    const bool has_one = use < end;
    // Lanes without a use match each other only.
    const uint32_t expert = has_one ? a.experts[use] : 0xffffffffu;
    const uint32_t same = __match_any_sync(ALL_LANES, expert);
    const uint32_t at = has_one ? next[expert] + __popc(same & ((1u << lane) - 1)) : 0;
    __syncwarp();
    // The last of them.
    if (has_one && same >> lane == 1) next[expert] = at + 1;
    if (has_one) f(use, expert, at);
    __syncwarp();
  }
}

// In place of counts their sums up to each; returns the sum of all. A warp does it.
DEVICE uint32_t exclusive_sums(uint32_t* counts, uint32_t n) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t before = 0;
  for (uint32_t first = 0; first < n; first += 32) {
    const uint32_t count = first + lane < n ? counts[first + lane] : 0;
    uint32_t sum = count;
#pragma unroll
    for (uint32_t d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_sync(ALL_LANES, sum, lane - d);
      if (lane >= d) sum += other;
    }
    if (first + lane < n) counts[first + lane] = before + sum - count;
    before += __shfl_sync(ALL_LANES, sum, 31);
  }
  return before;
}

KERNEL(moe_group, MoeArgs, GROUP_THREADS) {
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t n_filled;
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const uint32_t n = a.n_experts, warp = threadIdx.x / 32, rows = a.tile_rows;
  // Of each warp: how many uses of each expert it has, and then the next slot for them. Of each expert: its uses, and then the first
  // slot; its tiles, and then the first one.
  uint32_t *next_slots = reinterpret_cast<uint32_t*>(shared), *first_slots = next_slots + GROUP_WARPS * n, *first_tiles = first_slots + n;
  for (uint32_t i = threadIdx.x; i < GROUP_WARPS * n; i += GROUP_THREADS) next_slots[i] = 0;
  __syncthreads();
  uint32_t* mine = next_slots + warp * n;
  for_each_use(a, mine, [](uint32_t, uint32_t, uint32_t) {});
  __syncthreads();
  for (uint32_t e = threadIdx.x; e < n; e += GROUP_THREADS) {
    uint32_t sum = 0;
    for (uint32_t w = 0; w < GROUP_WARPS; w++) {
      const uint32_t count = next_slots[w * n + e];
      next_slots[w * n + e] = sum;
      sum += count;
    }
    first_slots[e] = sum, first_tiles[e] = (sum + rows - 1) / rows;
  }
  __syncthreads();
  if (warp == 0) exclusive_sums(first_slots, n);
  if (warp == 1) {
    const uint32_t all = exclusive_sums(first_tiles, n);
    if (threadIdx.x % 32 == 0) n_filled = *a.n_filled = all;
  }
  __syncthreads();
  for_each_use(a, mine, [&](uint32_t use, uint32_t expert, uint32_t at) {
    const uint32_t slot = first_slots[expert] + at;
    a.tokens[slot] = use / a.n_used;
    a.slots[use] = slot;
    a.places[use] = first_tiles[expert] * rows + at;
  });
  for (uint32_t t = threadIdx.x; t < a.n_tiles; t += GROUP_THREADS) {
    MoeTile tile = {0, 0, 0};
    if (t < n_filled) {
      // The last expert whose tiles begin here or before.
      uint32_t low = 0, high = n;
      while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (first_tiles[middle] <= t) low = middle; else high = middle;
      }
      const uint32_t end = low + 1 < n ? first_slots[low + 1] : a.n_tokens * a.n_used;
      tile.expert = low, tile.first = first_slots[low] + (t - first_tiles[low]) * rows;
      tile.count = min(end - tile.first, rows);
    }
    a.tiles[t] = tile;
  }
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
  float* y = a.y + static_cast<size_t>(token) * a.hidden_size + i;
  *y = a.adds ? *y + sum : sum;
}
