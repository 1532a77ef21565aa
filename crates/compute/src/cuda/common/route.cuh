// Which experts a token uses, and what their outputs are multiplied with, by its router's scores.
//
// Threads write a key for each expert to shared memory; then a warp or several, each for itself, find the largest.
#pragma once
#include <cfloat>

#include "kernel.cuh"
#include "route_args.cuh"

// Floats as integers that compare alike; 0 is less than all.
DEVICE uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE float from_ordered(uint32_t key) { return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key); }

// One token's choice. Whole warps have it.
struct Route {
  const RouteArgs& a;
  const float* logits;
  uint32_t lane;
  // Whether logits order experts as scores do, and whether that is all: a softmax over the chosen ones needs no others.
  bool by_logits, of_chosen;
  float max = 0, sum = 1;

  DEVICE Route(const RouteArgs& a, uint32_t token) : a(a), logits(a.router + static_cast<size_t>(token) * a.n_experts), lane(threadIdx.x % 32) {
    by_logits = !a.is_sigmoid && !a.selection_bias && a.n_groups == 1, of_chosen = by_logits && a.norm_topk;
    if (a.is_sigmoid || of_chosen) return;
    max = -INFINITY, sum = 0;
    for (uint32_t e = lane; e < a.n_experts; e += 32) max = fmaxf(max, logit(e));
    max = warp_max(max);
    for (uint32_t e = lane; e < a.n_experts; e += 32) sum += expf(logit(e) - max);
    sum = warp_sum(sum);
  }

  // Not from this SM's cache, which may hold what the kernel before overwrote.
  DEVICE float logit(uint32_t e) const { return __ldcg(logits + e); }

  // The score that becomes a weight.
  DEVICE float score(uint32_t e) const { return a.is_sigmoid ? 1.0f / (1.0f + expf(-logit(e))) : expf(logit(e) - max) / sum; }

  // Keys of experts first, first + step, …; what is not a number counts as least.
  DEVICE void put_keys(uint32_t* keys, uint32_t first, uint32_t step) const {
#pragma unroll 1
    for (uint32_t e = first; e < a.n_experts; e += step) {
      const float p = by_logits ? logit(e) : score(e) + (a.selection_bias ? a.selection_bias[e] : 0.0f);
      keys[e] = ordered(p == p ? p : -FLT_MAX);
    }
  }

  // Bit g: the token may use experts of group g. Lane g looks at group g.
  DEVICE uint32_t best_groups(const uint32_t* keys) const {
    const uint32_t size = a.n_experts / a.n_groups;
    uint32_t value = 0;
    if (lane < a.n_groups) {
      uint32_t first = 0, second = 0;
      for (uint32_t e = lane * size; e < (lane + 1) * size; e++) {
        const uint32_t key = keys[e];
        if (key > first) {
          second = first, first = key;
        } else if (key > second) {
          second = key;
        }
      }
      // Groups of one have no second.
      const float both = from_ordered(first) + (second ? from_ordered(second) : -INFINITY);
      value = a.groups_by_top_two ? ordered(both) : first;
    }
    uint32_t chosen = 0;
    for (uint32_t i = 0; i < a.n_groups_used; i++) {
      const uint32_t own = chosen >> lane & 1 ? 0 : value, largest = __reduce_max_sync(ALL_LANES, own);
      chosen |= 1u << __reduce_min_sync(ALL_LANES, own == largest ? lane : 31);
    }
    return chosen;
  }

  // Takes the keys of experts first, first + step, … away that are in none of the best groups.
  DEVICE void drop_others(uint32_t* keys, uint32_t groups, uint32_t first, uint32_t step) const {
    const uint32_t size = a.n_experts / a.n_groups;
#pragma unroll 1
    for (uint32_t e = first; e < a.n_experts; e += step) {
      if (!(groups >> e / size & 1)) keys[e] = 0;
    }
  }

  // The keys of all experts that may be chosen. `first`, `step`: a thread's place among those that write them, which `sync` brings together.
  template <class Sync>
  DEVICE void write_keys(uint32_t* keys, uint32_t first, uint32_t step, Sync sync) const {
    put_keys(keys, first, step);
    sync();
    if (a.n_groups == 1) return;
    const uint32_t groups = best_groups(keys);
    sync();
    drop_others(keys, groups, first, step);
    sync();
  }

  // The lane's of those that are chosen: lane i has the i-th, the most preferred first and the lowest of several that are alike. Lanes past
  // the last have any.
  DEVICE uint32_t choose(const uint32_t* keys) const {
    uint32_t mine = 0;
    // What was chosen last, as all are compared: the key, and then the lower number.
    uint64_t last = ~0ull;
#pragma unroll 1
    for (uint32_t i = 0; i < a.n_used; i++) {
      uint64_t best = 0;
#pragma unroll 4
      for (uint32_t e = lane; e < a.n_experts; e += 32) {
        const uint64_t candidate = static_cast<uint64_t>(keys[e]) << 32 | ~e;
        if (candidate < last && candidate > best) best = candidate;
      }
      const uint32_t key = static_cast<uint32_t>(best >> 32), largest = __reduce_max_sync(ALL_LANES, key);
      const uint32_t number = __reduce_max_sync(ALL_LANES, key == largest ? static_cast<uint32_t>(best) : 0);
      last = static_cast<uint64_t>(largest) << 32 | number;
      // Groups may have fewer than are used.
      if (i == lane && largest > 0) mine = ~number;
    }
    return mine;
  }

  // What the output of the lane's expert is multiplied with.
  DEVICE float weight(uint32_t expert) const {
    const float l = logit(expert), largest = __shfl_sync(ALL_LANES, l, 0);
    // What was not a number stays so.
    float own = of_chosen ? expf(l - largest) : score(expert);
    if (lane >= a.n_used) own = 0;
    const float total = warp_sum(own);
    // Sigmoids may all round to 0.
    const float divisor = a.norm_topk && total != 0.0f ? total : 1.0f;
    return own / divisor * a.scale * (a.output_scale ? a.output_scale[expert] : 1.0f);
  }
};
