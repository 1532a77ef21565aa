// Choosing a token from each row of logits: the likeliest one, or one as sampling.rs defines it, bit for bit.
//
// likeliest: blocks share a row. Each finds the largest of its part, they meet in one 64-bit word, and the last one leaves the token.
// Moves: the logits once.
//
// Otherwise three kernels. sample_edit: a block owns PART logits of a row; it applies biases, penalties and the mask, and finds the
// likeliest token of its part. sample_weigh: the same blocks make logits relative to the row's largest, in place, and sum the weights of
// their part; for rows that are cut by rank they also add to the row's histogram, whose bins are 1/64 wide, the likeliest first.
// sample_choose: one block per row. It finds the bins where top-k and top-p cut, gathers the tokens up to there, and refines. Move: the
// logits once each. Shared memory: 16, 24 and 35 KiB.
#include "../common/kernel.cuh"

constexpr int THREADS = 256;

// Functions that are compiled once and called. These kernels run once a step, so their instructions come from memory each time: code that
// is short is fast.
#ifdef REALIZAR_EMULATION
#define CALLED inline
#else
#define CALLED __device__ __noinline__
#endif

struct LikeliestArgs {
  uint32_t* chosen;        // [n_rows]
  uint32_t* const* answer;  // where the host reads the same
  const float* logits;     // [n_rows, n]
  unsigned long long* best;  // [n_rows]: the largest key so far; zero before and after
  uint32_t* arrived;       // [n_rows]: blocks that are done; zero before and after
  uint32_t n;
};

// What a token is marked with that cannot be chosen; launchers know them too.
constexpr uint32_t NOT_A_NUMBER = 1u << 30, INFINITE = 2u << 30, NOTHING = 3u << 30, MARKS = 3u << 30;

// Orders logits, and of equal ones the lower token higher. What is not a number is largest.
DEVICE unsigned long long key(float logit, uint32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // zero has one sign
  const uint32_t order = logit != logit ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xffffffffu - token);
}

DEVICE uint32_t token_of(unsigned long long key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// The choice of a row, for the next step and for the host.
DEVICE void choose(uint32_t* chosen, uint32_t* answer, size_t row, uint32_t token) { chosen[row] = token, answer[row] = token; }

// The token of a row's largest key, marked if it cannot be chosen.
DEVICE uint32_t marked(unsigned long long best) {
  const uint32_t order = static_cast<uint32_t>(best >> 32);
  const uint32_t mark = order == 0xffffffffu   ? NOT_A_NUMBER
                        : order == 0xff800000u ? INFINITE
                        : order <= 0x007fffffu ? NOTHING
                                               : 0;
  return token_of(best) | mark;
}

DEVICE unsigned long long warp_max(unsigned long long x) {
#pragma unroll
  for (int d = 16; d; d >>= 1) {
    const unsigned long long other = __shfl_xor_sync(ALL_LANES, x, d);
    x = other > x ? other : x;
  }
  return x;
}

// The largest over the block, to every thread. `scratch`: a word per warp, free again after the next barrier.
DEVICE unsigned long long block_max(unsigned long long x, unsigned long long* scratch) {
  x = warp_max(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
#pragma unroll 1
  for (unsigned w = 0; w < blockDim.x / 32; w++) x = scratch[w] > x ? scratch[w] : x;
  return x;
}

DEVICE unsigned long long block_sum(unsigned long long x, unsigned long long* scratch) {
#pragma unroll
  for (int d = 16; d; d >>= 1) x += __shfl_xor_sync(ALL_LANES, x, d);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
#pragma unroll 1
  for (unsigned w = 0; w < blockDim.x / 32; w++) x += scratch[w];
  return x;
}

// The sum over the threads before this one; `sum` becomes that over all.
DEVICE unsigned long long block_prefix(unsigned long long x, unsigned long long* scratch, unsigned long long& sum) {
  unsigned long long up_to = x;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
    const unsigned long long other = __shfl_sync(ALL_LANES, up_to, (lane - d) % 32);
    if (lane >= static_cast<unsigned>(d)) up_to += other;
  }
  __syncthreads();
  if (lane == 31) scratch[warp] = up_to;
  __syncthreads();
  unsigned long long before = 0;
  sum = 0;
#pragma unroll 1
  for (unsigned w = 0; w < blockDim.x / 32; w++) {
    before += w < warp ? scratch[w] : 0;
    sum += scratch[w];
  }
  return before + up_to - x;
}

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(likeliest, LikeliestArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  uint32_t* const answer = *a.answer;
  __shared__ unsigned long long scratch[THREADS / 32];
  const uint32_t n = a.n, row = blockIdx.y, per_block = (n + gridDim.x - 1) / gridDim.x;
  const uint32_t from = blockIdx.x * per_block, to = from + per_block < n ? from + per_block : n;
  const float* logits = a.logits + static_cast<size_t>(row) * n;
  unsigned long long best = 0;
#pragma unroll 8
  for (uint32_t i = from + threadIdx.x; i < to; i += THREADS) {
    const unsigned long long k = key(logits[i], i);
    best = k > best ? k : best;
  }
  best = block_max(best, scratch);
  if (threadIdx.x != 0) return;
  atomicMax(a.best + row, best);
  __threadfence();
  if (atomicAdd(a.arrived + row, 1u) != gridDim.x - 1) return;
  __threadfence();
  best = atomicExch(a.best + row, 0ull);
  a.arrived[row] = 0;
  choose(a.chosen, answer, row, marked(best));
}

// Logits of a block of sample_edit and sample_weigh.
constexpr uint32_t PART = 2048;
constexpr uint32_t N_BINS = 2048;
constexpr uint32_t NONE = 0xffffffffu;

// How one row is sampled.
struct SamplerRow {
  const uint32_t* prompt;     // [n_prompt]
  const uint32_t* generated;  // [n_generated]
  const uint2* biases;        // [n_biases]: token, bits of what is added
  const uint32_t* mask;       // [n_mask] words; null: all tokens are allowed
  unsigned long long top_p;   // of 2^64
  unsigned long long uniform; // of 2^64
  uint32_t n_prompt, n_generated, n_biases, n_mask;
  uint32_t last;              // one more generated token: its id, where the top bit is set its row of `chosen`; NONE: no such token
  uint32_t top_k;             // 0: all
  uint32_t has_top_p, penalizes;
  float temperature, repetition, frequency, presence, least;
  uint32_t greedy;
};

struct SampleArgs {
  uint32_t* chosen;           // [n_rows]: in, of the logits before; out, of these
  uint32_t* const* answer;    // where the host reads the same
  float* logits;              // [n_rows, n]
  const SamplerRow* rows;     // [n_rows]
  unsigned long long* best;   // [n_rows, 2, n_parts]: the largest key of a part, and the largest before anything was changed
  unsigned long long* sums;   // [n_rows, n_parts]: weights of a part
  unsigned long long* weights;  // [n_rows, N_BINS]
  unsigned long long* counts;   // [n_rows, N_BINS]
  uint32_t n, n_parts;
};

// Whether top-k drops any of a row's n tokens, and whether something drops tokens by their rank.
DEVICE bool has_top_k(const SamplerRow& r, uint32_t n) { return r.top_k && r.top_k < n; }
DEVICE bool is_ranked(const SamplerRow& r, uint32_t n) { return has_top_k(r, n) || r.has_top_p; }

// The largest keys of a row over all its parts: of its edited logits, and of those that the model computed.
struct Best {
  unsigned long long edited, computed;
};
DEVICE Best row_best(const SampleArgs& a, uint32_t row, unsigned long long* scratch) {
  const unsigned long long* parts = a.best + static_cast<size_t>(row) * 2 * a.n_parts;
  unsigned long long edited = 0, computed = 0;
#pragma unroll 1
  for (uint32_t p = threadIdx.x; p < a.n_parts; p += blockDim.x) {
    edited = parts[p] > edited ? parts[p] : edited;
    computed = parts[a.n_parts + p] > computed ? parts[a.n_parts + p] : computed;
  }
  return Best{block_max(edited, scratch), block_max(computed, scratch)};
}

// Whether a row has nothing that one could choose by chance from.
DEVICE bool is_decided(const SamplerRow& r, Best best) {
  return r.greedy || (marked(best.computed) & MARKS) == NOT_A_NUMBER || (marked(best.computed) & MARKS) == INFINITE ||
         (marked(best.edited) & MARKS) != 0;
}

// The logit of a key.
DEVICE float logit_of(unsigned long long key) {
  const uint32_t order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

CALLED unsigned long long weight(float x) {
  if (!(x >= -28.0f)) return 0;
  const float n = __fadd_rn(__fadd_rn(__fmul_rn(x, 1.44269504088896341f), 12582912.0f), -12582912.0f);
  const float r = __fadd_rn(__fadd_rn(x, -__fmul_rn(n, 0.693359375f)), -__fmul_rn(n, -2.1219444e-4f));
  float p = 1.0f / 5040.0f;
  p = mul_then_add(p, r, 1.0f / 720.0f);
  p = mul_then_add(p, r, 1.0f / 120.0f);
  p = mul_then_add(p, r, 1.0f / 24.0f);
  p = mul_then_add(p, r, 1.0f / 6.0f);
  p = mul_then_add(p, r, 0.5f);
  p = mul_then_add(p, r, 1.0f);
  p = mul_then_add(p, r, 1.0f);
  const uint32_t bits = __float_as_uint(p);
  const unsigned long long mantissa = (bits & 0x7fffffu) | 0x800000u;
  const int shift = static_cast<int>(bits >> 23) - 127 + static_cast<int>(n) + 40 - 23;
  return shift >= 0 ? mantissa << shift : mantissa >> -shift;
}

// The last bin has all that is not above this.
constexpr float LAST_BIN = -31.5f;
CALLED float quotient(float x, float y) { return __fdiv_rn(x, y); }

DEVICE uint32_t bin_of(float x) { return x > LAST_BIN ? static_cast<uint32_t>(x * -64.0f) : N_BINS - 1; }

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(sample_edit, SampleArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __shared__ float edited[PART];
  __shared__ uint32_t counts[PART];
  __shared__ unsigned long long scratch[THREADS / 32];
  const uint32_t row = blockIdx.y, part = blockIdx.x, from = part * PART, to = from + PART < a.n ? from + PART : a.n;
  const uint32_t size = to - from;
  const SamplerRow& r = a.rows[row];
  float* logits = a.logits + static_cast<size_t>(row) * a.n + from;
  const bool edits = r.n_biases || r.penalizes || r.mask;
  unsigned long long computed = 0, best = 0;
  float mine[PART / THREADS];
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    mine[j] = i < size ? logits[i] : -INFINITY;
  }
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    const unsigned long long k = i < size ? key(mine[j], from + i) : 0;
    computed = k > computed ? k : computed;
    if (edits) edited[i] = mine[j], counts[i] = 0;
  }
  best = computed;
  if (is_ranked(r, a.n)) {
#pragma unroll 1
    for (uint32_t i = part * THREADS + threadIdx.x; i < N_BINS; i += gridDim.x * THREADS) {
      a.weights[static_cast<size_t>(row) * N_BINS + i] = 0;
      a.counts[static_cast<size_t>(row) * N_BINS + i] = 0;
    }
  }
  if (edits) {
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < r.n_biases; i += THREADS) {
      const uint2 b = r.biases[i];
      if (b.x - from < size) edited[b.x - from] += __uint_as_float(b.y);
    }
    if (r.penalizes) {
      // Bit 0 says that a token occurs, the bits above it count how often it was generated.
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < r.n_generated; i += THREADS) {
        const uint32_t t = r.generated[i] - from;
        if (t < size) atomicAdd(counts + t, 2u);
      }
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < r.n_prompt; i += THREADS) {
        const uint32_t t = r.prompt[i] - from;
        if (t < size) atomicOr(counts + t, 1u);
      }
      if (threadIdx.x == 0 && r.last != NONE) {
        uint32_t token = r.last;
        if (token >> 31) {
          token = a.chosen[token & 0x7fffffffu];
          if (token & MARKS) token = 0;  // nothing could be chosen there
        }
        if (token - from < size) atomicAdd(counts + (token - from), 2u);
      }
    }
    __syncthreads();
    best = 0;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < size; i += THREADS) {
      float l = edited[i];
      if (const uint32_t count = counts[i]) {
        l = l > 0 ? quotient(l, r.repetition) : __fmul_rn(l, r.repetition);
        if (const uint32_t n = count / 2) {
          l = __fadd_rn(l, -__fadd_rn(__fmul_rn(static_cast<float>(n), r.frequency), r.presence));
        }
      }
      const uint32_t token = from + i;
      if (r.mask && (token / 32 >= r.n_mask || !(r.mask[token / 32] >> token % 32 & 1))) l = -INFINITY;
      logits[i] = l;
      const unsigned long long k = key(l, token);
      best = k > best ? k : best;
    }
  }
  best = block_max(best, scratch);
  computed = block_max(computed, scratch);
  if (threadIdx.x == 0) {
    unsigned long long* parts = a.best + static_cast<size_t>(row) * 2 * a.n_parts;
    parts[part] = best;
    parts[a.n_parts + part] = computed;
  }
}

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(sample_weigh, SampleArgs, THREADS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __shared__ unsigned long long weights[N_BINS];
  __shared__ uint32_t counts[N_BINS];
  __shared__ unsigned long long scratch[THREADS / 32];
  const uint32_t row = blockIdx.y, part = blockIdx.x, from = part * PART, to = from + PART < a.n ? from + PART : a.n;
  const SamplerRow& r = a.rows[row];
  const Best best = row_best(a, row, scratch);
  if (is_decided(r, best)) return;
  const bool ranked = is_ranked(r, a.n);
  if (ranked) {
    for (uint32_t i = threadIdx.x; i < N_BINS; i += THREADS) weights[i] = 0, counts[i] = 0;
    __syncthreads();
  }
  const float max = logit_of(best.edited), temperature = r.temperature, least = r.least;
  float* logits = a.logits + static_cast<size_t>(row) * a.n;
  unsigned long long sum = 0;
  float mine[PART / THREADS];
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = from + threadIdx.x + j * THREADS;
    mine[j] = i < to ? logits[i] : -INFINITY;
  }
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = from + threadIdx.x + j * THREADS;
    if (i >= to) break;
    const float x = quotient(__fadd_rn(mine[j], -max), temperature);
    logits[i] = x;
    const unsigned long long w = weight(x);
    if (ranked) {
      atomicAdd(weights + bin_of(x), w);
      atomicAdd(counts + bin_of(x), 1u);
    } else if (x >= least) {
      sum += w;
    }
  }
  if (!ranked) {
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) a.sums[static_cast<size_t>(row) * a.n_parts + part] = sum;
    return;
  }
  __syncthreads();
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < N_BINS; i += THREADS) {
    if (counts[i] == 0) continue;
    atomicAdd(a.weights + static_cast<size_t>(row) * N_BINS + i, weights[i]);
    atomicAdd(a.counts + static_cast<size_t>(row) * N_BINS + i, static_cast<unsigned long long>(counts[i]));
  }
}

constexpr int CHOOSERS = 512;
// Tokens that sample_choose can hold in shared memory; where more may be kept, it reads the row again and again.
constexpr uint32_t LIST = 4096;
// Logits that a thread reads at a time.
constexpr uint32_t BATCH = 8;

struct Found {
  uint32_t index;
  unsigned long long before;  // the sum before it
};

// The first of n values at which their running sum passes `target`, or the last one. A thread takes four at a time.
CALLED void find_in(const unsigned long long* values, uint32_t n, unsigned long long target, unsigned long long* scratch, Found* found) {
  unsigned long long running = 0;
  __syncthreads();
  if (threadIdx.x == 0) *found = Found{n - 1, 0};
  __syncthreads();
#pragma unroll 1
  for (uint32_t base = 0; base < n; base += 4 * CHOOSERS) {
    const uint32_t first = base + 4 * threadIdx.x;
    unsigned long long v[4];
    for (uint32_t j = 0; j < 4; j++) v[j] = first + j < n ? values[first + j] : 0;
    unsigned long long sum;
    unsigned long long before = running + block_prefix(v[0] + v[1] + v[2] + v[3], scratch, sum);
    for (uint32_t j = 0; j < 4; j++) {
      if (before <= target && before + v[j] > target) *found = Found{first + j, before};
      before += v[j];
    }
    running += sum;
    if (running > target) break;
  }
  __syncthreads();
}

DEVICE Found find(const unsigned long long* values, uint32_t n, unsigned long long target, unsigned long long* scratch, Found* found) {
  find_in(values, n, target, scratch, found);
  return *found;
}

DEVICE unsigned long long sum_of(const unsigned long long* values, uint32_t n, unsigned long long* scratch) {
  unsigned long long sum = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < n; i += CHOOSERS) sum += values[i];
  return block_sum(sum, scratch);
}

// Tokens with their relative logits, in no order: all of a row, or a list.
struct Tokens {
  const float* row;
  const uint2* list;  // token and bits of its relative logit; null: all of the row
  uint32_t n;

  // Calls f with each token and its relative logit, which threads share among them.
  template <class F>
  DEVICE void each(F f) const {
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSERS) {
      const uint2 t = list ? list[i] : uint2{i, __float_as_uint(row[i])};
      f(t.x, __uint_as_float(t.y));
    }
  }
};

// Lists the tokens of the row in bins `first` to `last`.
CALLED void gather_in(const float* row, uint32_t n, uint32_t first, uint32_t last, uint2* list, uint32_t* n_listed) {
  __syncthreads();
  if (threadIdx.x == 0) *n_listed = 0;
  __syncthreads();
#pragma unroll 1
  for (uint32_t base = threadIdx.x; base < n; base += CHOOSERS * BATCH) {
    float x[BATCH];
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) x[j] = base + j * CHOOSERS < n ? row[base + j * CHOOSERS] : 0;
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) {
      const uint32_t bin = bin_of(x[j]);
      if (bin >= first && bin <= last && base + j * CHOOSERS < n) {
        list[atomicAdd(n_listed, 1u)] = uint2{base + j * CHOOSERS, __float_as_uint(x[j])};
      }
    }
  }
  __syncthreads();
}

// These tokens, of which there are n_wanted, if they fit the list; else all of the row.
DEVICE Tokens gather(const float* row, uint32_t n, uint32_t first, uint32_t last, uint32_t n_wanted, uint2* list, uint32_t* n_listed) {
  if (n_wanted > LIST) return Tokens{row, nullptr, n};
  gather_in(row, n, first, last, list, n_listed);
  return Tokens{row, list, n_wanted};
}

// The cuts of a row, in their order. The draw is one, too: by rising id, at the random number's share of the weights.
enum Cut { TOP_K, TOP_P, DRAW };

// The smallest and largest key that a token in this bin can have.
DEVICE unsigned long long bin_low(uint32_t bin) { return bin == N_BINS - 1 ? 0 : key((bin + 1) * (-1.0f / 64), 0) + 1; }
DEVICE unsigned long long bin_high(uint32_t bin) { return key(bin == N_BINS - 1 ? LAST_BIN : bin * (-1.0f / 64), 0); }

constexpr uint32_t N_DIGITS = 256;

// blockIdx.x: row.
KERNEL(sample_choose, SampleArgs, CHOOSERS) {
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  __shared__ uint2 list[LIST];
  __shared__ unsigned long long digits[N_DIGITS];
  __shared__ unsigned long long scratch[CHOOSERS / 32];
  __shared__ uint32_t n_listed;
  __shared__ Found found;
  const uint32_t row = blockIdx.x;
  const SamplerRow& r = a.rows[row];
  const Best best = row_best(a, row, scratch);
  if (is_decided(r, best)) {
    const uint32_t computed = marked(best.computed), mark = computed & MARKS;
    if (threadIdx.x == 0) choose(a.chosen, *a.answer, row, mark == NOT_A_NUMBER || mark == INFINITE ? computed : marked(best.edited));
    return;
  }
  const float* x = a.logits + static_cast<size_t>(row) * a.n;
  if (!is_ranked(r, a.n)) {
    const unsigned long long* sums = a.sums + static_cast<size_t>(row) * a.n_parts;
    const unsigned long long target = __umul64hi(r.uniform, sum_of(sums, a.n_parts, scratch));
    const Found part = find(sums, a.n_parts, target, scratch, &found);
    const uint32_t from = part.index * PART, size = from + PART < a.n ? PART : a.n - from;
    unsigned long long* weights = reinterpret_cast<unsigned long long*>(list);
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < size; i += CHOOSERS) weights[i] = x[from + i] >= r.least ? weight(x[from + i]) : 0;
    const Found token = find(weights, size, target - part.before, scratch, &found);
    if (threadIdx.x == 0) choose(a.chosen, *a.answer, row, from + token.index);
    return;
  }
  const unsigned long long* weights = a.weights + static_cast<size_t>(row) * N_BINS;
  const unsigned long long* counts = a.counts + static_cast<size_t>(row) * N_BINS;
  // What may be kept; all of the row until the first cut is made.
  Tokens tokens{x, nullptr, a.n};
  bool is_cut = false;
  // Tokens with smaller keys are lost.
  unsigned long long threshold = 0;
#pragma unroll 1
  for (int cut = has_top_k(r, a.n) ? TOP_K : TOP_P; cut <= DRAW; cut++) {
    if (cut == TOP_P && !r.has_top_p) continue;
    if (cut == DRAW) {
      const unsigned long long least = key(r.least, 0) - 0xffffffffu;  // of the last token with this logit
      threshold = least > threshold ? least : threshold;
    }
    // The sum that the cut shall reach.
    unsigned long long wanted = r.top_k;
    if (cut != TOP_K) {
      unsigned long long sum = 0;
      if (is_cut) {
        tokens.each([&](uint32_t token, float x) { sum += key(x, token) >= threshold ? weight(x) : 0; });
        sum = block_sum(sum, scratch);
      } else {
        sum = sum_of(weights, N_BINS, scratch);
      }
      wanted = __umul64hi(cut == TOP_P ? r.top_p : r.uniform, sum);
      if (cut == DRAW || wanted == 0) wanted++;
    }
    // Where the cut lies at first: in a bin, or among all tokens that are kept.
    Tokens among = tokens;
    unsigned long long low = 0, high = a.n - 1, above = 0;
    if (cut != DRAW) {
      const Found at = find(cut == TOP_K ? counts : weights, N_BINS, wanted - 1, scratch, &found);
      if (!is_cut) {
        tokens = gather(x, a.n, 0, at.index, static_cast<uint32_t>(sum_of(counts, at.index + 1, scratch)), list, &n_listed);
        is_cut = true;
      }
      // Where all that may be kept is too much for the list, this bin alone may not be.
      among = tokens.list ? tokens
                          : gather(x, a.n, at.index, at.index, static_cast<uint32_t>(counts[at.index]), list, &n_listed);
      low = bin_low(at.index), high = bin_high(at.index), above = at.before;
      low = threshold > low ? threshold : low;
    }
    const auto key_of = [&](uint32_t token, float x) { return cut == DRAW ? a.n - 1 - token : key(x, token); };
    const auto value = [&](uint32_t token, float x) {
      if (cut == TOP_K) return 1ull;
      return cut == TOP_P || key(x, token) >= threshold ? weight(x) : 0ull;
    };
    // Each round finds the next digit of the key in low..=high at which the sum of values, from the largest key on, reaches what is wanted.
#pragma unroll 1
    while (low < high) {
      if (among.list) {
        // Few keys agree in more bits than they must.
        unsigned long long smallest = ~0ull, largest = 0;
        among.each([&](uint32_t token, float x) {
          const unsigned long long k = key_of(token, x);
          if (k < low || k > high) return;
          smallest = k < smallest ? k : smallest;
          largest = k > largest ? k : largest;
        });
        low = ~block_max(~smallest, scratch);
        high = block_max(largest, scratch);
        if (low >= high) break;
      }
      const int agreeing = __clzll(static_cast<long long>(low ^ high)), shift = agreeing < 56 ? 56 - agreeing : 0;
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < N_DIGITS; i += CHOOSERS) digits[i] = 0;
      __syncthreads();
      among.each([&](uint32_t token, float x) {
        const unsigned long long k = key_of(token, x);
        // Larger digits first.
        if (k >= low && k <= high) atomicAdd(digits + (N_DIGITS - 1 - (k >> shift & (N_DIGITS - 1))), value(token, x));
      });
      const Found f = find(digits, N_DIGITS, wanted - above - 1, scratch, &found);
      above += f.before;
      const unsigned long long digit = N_DIGITS - 1 - f.index;
      const unsigned long long first = (shift < 56 ? high >> (shift + 8) << (shift + 8) : 0) | digit << shift;
      const unsigned long long last = first | ((1ull << shift) - 1);
      low = first > low ? first : low;
      high = last < high ? last : high;
    }
    threshold = low;
  }
  if (threadIdx.x == 0) choose(a.chosen, *a.answer, row, a.n - 1 - static_cast<uint32_t>(threshold));
}
