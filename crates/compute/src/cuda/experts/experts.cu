// Mixture of experts: which experts each token uses, the uses sorted by expert, and the sum of their outputs.
//
// The experts' products are those of cuda/matmul, over the tiles that moe_group writes.
#include "../common/activation.cuh"
#include "../common/route.cuh"
#include "experts_args.cuh"

struct MoeTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

// A warp owns a token; its l-th lane has the l-th of the experts that are chosen.
constexpr int ROUTE_WARPS = 4;
KERNEL(moe_route, MoeArgs, ROUTE_WARPS * 32) {
  __shared__ uint32_t keys_of_warps[ROUTE_WARPS][MAX_EXPERTS];
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const uint32_t lane = threadIdx.x % 32, n_used = a.route.n_used, token = blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
  if (token >= a.n_tokens) return;
  uint32_t* keys = keys_of_warps[threadIdx.x / 32];
  const Route route(a.route, token);
  route.write_keys(keys, lane, 32, [] { __syncwarp(); });
  const uint32_t expert = route.choose(keys);
  const float weight = route.weight(expert);
  if (lane < n_used) a.experts[token * n_used + lane] = expert, a.weights[token * n_used + lane] = weight;
}

// Sorts uses by expert (counting sort); those of an expert keep their order. One block, whose warps own ranges of uses. Shared memory: 4
// bytes for each expert, for each warp and twice more. Moves: the uses' experts twice, 12 bytes per use out.
constexpr int GROUP_THREADS = GROUP_WARPS * 32;
// Uses of a lane that are read at once.
constexpr uint32_t AHEAD = 8;

// Calls f(use, expert, at) for the uses of a warp, 32 at a time: `at` is the expert's number in `next`, which goes up by one for each.
template <class F>
DEVICE void for_each_use(const MoeArgs& a, uint32_t* next, F f) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.n_tokens * a.route.n_used;
  const uint32_t each = (n + GROUP_THREADS - 1) / GROUP_THREADS * 32, end = min((warp + 1) * each, n);
#pragma unroll 1
  for (uint32_t first = warp * each; first < end; first += 32 * AHEAD) {
    // All are on their way before the first is looked at. Lanes without a use match each other only.
    uint32_t experts[AHEAD];
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
      const uint32_t use = first + 32 * i + lane;
      experts[i] = use < end ? a.experts[use] : 0xffffffffu;
    }
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
      if (first + 32 * i >= end) break;
      const uint32_t use = first + 32 * i + lane, expert = experts[i];
      const bool has_one = use < end;
      const uint32_t same = __match_any_sync(ALL_LANES, expert);
      const uint32_t at = has_one ? next[expert] + __popc(same & ((1u << lane) - 1)) : 0;
      __syncwarp();
      // The last of them.
      if (has_one && same >> lane == 1) next[expert] = at + 1;
      if (has_one) f(use, expert, at);
      __syncwarp();
    }
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
  const uint32_t n = a.route.n_experts, n_used = a.route.n_used, warp = threadIdx.x / 32, rows = a.tile_rows;
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
    a.tokens[slot] = use / n_used;
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
      const uint32_t end = low + 1 < n ? first_slots[low + 1] : a.n_tokens * n_used;
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

// A thread owns an element of a token's output, or a vector of four.
template <class T>
DEVICE void combine(const MoeArgs& a) {
  constexpr uint32_t WIDTH = sizeof(T) / sizeof(float), AT_ONCE = 4;
  const uint32_t n = a.hidden_size, n_used = a.route.n_used, token = blockIdx.x, first = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH;
  if (first >= n) return;
  const uint32_t from = token * n_used, to = from + n_used;
  float sum[WIDTH] = {};
#pragma unroll 1
  for (uint32_t u = from; u < to; u += AT_ONCE) {
    // All are on their way before the first is added.
    T outputs[AT_ONCE];
    float weights[AT_ONCE];
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      const uint32_t use = min(u + i, to - 1);
      weights[i] = a.weights[use];
      outputs[i] = *reinterpret_cast<const T*>(a.outputs + static_cast<size_t>(a.slots[use]) * n + first);
    }
#pragma unroll
    for (uint32_t i = 0; i < AT_ONCE; i++) {
      if (u + i >= to) break;
      const float* output = reinterpret_cast<const float*>(&outputs[i]);
      const float* bias = a.down_bias ? a.down_bias + static_cast<size_t>(a.experts[u + i]) * n + first : nullptr;
#pragma unroll
      for (uint32_t j = 0; j < WIDTH; j++) sum[j] = fmaf(weights[i], output[j] + (bias ? bias[j] : 0.0f), sum[j]);
    }
  }
  T* y = reinterpret_cast<T*>(a.y + static_cast<size_t>(token) * n + first);
  T result = a.adds ? *y : T{};
#pragma unroll
  for (uint32_t j = 0; j < WIDTH; j++) reinterpret_cast<float*>(&result)[j] += sum[j];
  *y = result;
}

KERNEL(moe_combine, MoeArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  // Rows of a multiple of four begin at vectors.
  if (a.hidden_size % 4 == 0) combine<float4>(a);
  else combine<float>(a);
}
