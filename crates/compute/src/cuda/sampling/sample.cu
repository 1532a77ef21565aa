// Choosing a token from each row of logits: the argmax, or a token sampled as compute/src/sampling defines it, bit for bit.
//
// argmax: blocks share a row. Each finds the largest key of its part; an atomicMax combines these in one 64-bit word, and the last
// block to arrive stores the token. Reads the logits once.
//
// Sampling takes three kernels, each of which reads the logits once:
//   sample_edit: a block owns PART logits of a row. It applies biases, penalties and the mask, and finds the largest key of its part.
//     Shared memory: 16 KiB.
//   sample_weigh: the same blocks make logits relative to the row's largest, in place, and sum the weights of their part. Where top-k or
//     top-p cuts the row, they add to the row's histogram instead, whose bins are 1/64 wide, the likeliest first. Shared memory: 24 KiB.
//   sample_choose: one block per row. It finds the bins where top-k and top-p cut, gathers the tokens up to there, and finds the exact
//     token of each cut and of the draw. Shared memory: 35 KiB.
#include "../common/kernel.cuh"
#include "sample_args.cuh"

// These kernels run once per step, so their instructions are fetched from device memory each time. Functions that are used in several
// places are not inlined, which keeps the code short.
#ifdef REALIZAR_EMULATION
#define NOINLINE inline
#else
#define NOINLINE __device__ __noinline__
#endif

// Bits that mark a token which cannot be chosen; the launcher decodes them.
constexpr uint32_t NOT_A_NUMBER = 1u << 30, INFINITE = 2u << 30, NOTHING = 3u << 30, MARKS = 3u << 30;

// Orders logits, and of equal ones the lower token higher. What is not a number is largest.
DEVICE unsigned long long key(float logit, uint32_t token) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // zero has one sign
  const uint32_t order = logit != logit ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
  return static_cast<unsigned long long>(order) << 32 | (0xffffffffu - token);
}

DEVICE uint32_t token_of(unsigned long long key) { return 0xffffffffu - static_cast<uint32_t>(key); }

// Stores the token of a row for the next step and for the host.
DEVICE void store_token(uint32_t* chosen, uint32_t* readback, size_t row, uint32_t token) {
  chosen[row] = token, readback[row] = token;
}

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
KERNEL(argmax, ArgmaxArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  uint32_t* const readback = *a.readback;
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
  store_token(a.chosen, readback, row, marked(best));
}

constexpr uint32_t NONE = 0xffffffffu;

// The parameters of a row, as DeviceParams in crates/compute/src/sampling/mod.rs.
struct SamplerParams {
  float temperature;  // 0: greedy
  uint32_t top_k;     // 0: all
  float top_p;        // 1: all
  float min_logit;    // the least relative logit that min-p keeps
  float repetition_penalty, frequency_penalty, presence_penalty;

  DEVICE bool is_greedy() const { return temperature == 0.0f; }
  DEVICE bool has_penalties() const { return repetition_penalty != 1.0f || frequency_penalty != 0.0f || presence_penalty != 0.0f; }
  // Whether top-k drops any of n tokens.
  DEVICE bool has_top_k(uint32_t n) const { return top_k && top_k < n; }
  DEVICE bool has_top_p() const { return top_p < 1.0f; }
  // Whether tokens are dropped by their rank.
  DEVICE bool is_ranked(uint32_t n) const { return has_top_k(n) || has_top_p(); }
  // top_p as a fraction of 2^64, which is exact.
  DEVICE unsigned long long top_p_fraction() const { return static_cast<unsigned long long>(top_p * 18446744073709551616.0f); }
};

// How one row is sampled.
struct SamplerRow {
  const uint32_t* prompt;      // [n_prompt]
  const uint32_t* generated;   // [n_generated]
  const uint2* biases;         // [n_biases]: token, bits of what is added
  const uint32_t* mask;        // [n_mask] words: bits of the allowed tokens
  unsigned long long uniform;  // the random number as a fraction of 2^64
  uint32_t n_prompt, n_generated, n_biases, n_mask;
  uint32_t has_mask;           // 0: all tokens are allowed
  uint32_t last;               // one more generated token: its id, where the top bit is set its row of `chosen`; NONE: no such token
  SamplerParams params;

  DEVICE bool has_edits() const { return n_biases || has_mask || params.has_penalties(); }
};

// The logits that a block of sample_edit and sample_weigh owns.
struct Part {
  uint32_t from, size;
};
DEVICE Part part_of_block(uint32_t n) {
  const uint32_t from = blockIdx.x * PART;
  return Part{from, n - from < PART ? n - from : PART};
}

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

// Whether the model computed a logit that cannot be sampled.
DEVICE bool is_invalid(Best best) {
  const uint32_t mark = marked(best.computed) & MARKS;
  return mark == NOT_A_NUMBER || mark == INFINITE;
}

// Whether a row's token, or its error, is known without a draw.
DEVICE bool is_decided(const SamplerParams& p, Best best) {
  return p.is_greedy() || is_invalid(best) || (marked(best.edited) & MARKS) != 0;
}

// The logit of a key.
DEVICE float logit_of(unsigned long long key) {
  const uint32_t order = static_cast<uint32_t>(key >> 32);
  return __uint_as_float(order >> 31 ? order & 0x7fffffffu : ~order);
}

NOINLINE unsigned long long weight(float x) {
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

// The last bin has all that is not above this, whose weight is 0.
constexpr float LAST_BIN = -31.5f;
NOINLINE float quotient(float x, float y) { return __fdiv_rn(x, y); }

DEVICE uint32_t bin_of(float x) { return x > LAST_BIN ? static_cast<uint32_t>(x * -64.0f) : N_BINS - 1; }

// Clears the histogram of a row, which its blocks share among them.
DEVICE void clear_histogram(const SampleArgs& a, uint32_t row) {
#pragma unroll 1
  for (uint32_t i = blockIdx.x * THREADS + threadIdx.x; i < N_BINS; i += gridDim.x * THREADS) {
    a.weights[static_cast<size_t>(row) * N_BINS + i] = 0;
    a.counts[static_cast<size_t>(row) * N_BINS + i] = 0;
  }
}

DEVICE void add_biases(const SamplerRow& r, Part part, float* edited) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < r.n_biases; i += THREADS) {
    const uint2 b = r.biases[i];
    if (b.x - part.from < part.size) edited[b.x - part.from] += __uint_as_float(b.y);
  }
}

// Bit 0 of a token's count says that it occurs, the bits above it how often it was generated.
constexpr uint32_t OCCURS = 1, GENERATED = 2;

DEVICE void count_history(const SampleArgs& a, const SamplerRow& r, Part part, uint32_t* counts) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < r.n_generated; i += THREADS) {
    const uint32_t t = r.generated[i] - part.from;
    if (t < part.size) atomicAdd(counts + t, GENERATED);
  }
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < r.n_prompt; i += THREADS) {
    const uint32_t t = r.prompt[i] - part.from;
    if (t < part.size) atomicOr(counts + t, OCCURS);
  }
  if (threadIdx.x == 0 && r.last != NONE) {
    uint32_t token = r.last;
    if (token >> 31) {
      token = a.chosen[token & 0x7fffffffu];
      if (token & MARKS) token = 0;  // no token could be chosen there
    }
    if (token - part.from < part.size) atomicAdd(counts + (token - part.from), GENERATED);
  }
}

DEVICE float penalized(float l, uint32_t count, const SamplerParams& p) {
  if (count == 0) return l;
  l = l > 0 ? quotient(l, p.repetition_penalty) : __fmul_rn(l, p.repetition_penalty);
  const uint32_t n = count / GENERATED;
  if (n == 0) return l;
  return __fadd_rn(l, -__fadd_rn(__fmul_rn(static_cast<float>(n), p.frequency_penalty), p.presence_penalty));
}

DEVICE bool is_forbidden(const SamplerRow& r, uint32_t token) {
  return r.has_mask && (token / 32 >= r.n_mask || !(r.mask[token / 32] >> token % 32 & 1));
}

// Applies biases, penalties and the mask to a part, of which each thread has `mine`, and returns the largest key that the thread wrote.
DEVICE unsigned long long edit(const SampleArgs& a, const SamplerRow& r, Part part, float* logits, const float* mine) {
  __shared__ float edited[PART];
  __shared__ uint32_t counts[PART];
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    edited[i] = mine[j], counts[i] = 0;
  }
  __syncthreads();
  add_biases(r, part, edited);
  if (r.params.has_penalties()) count_history(a, r, part, counts);
  __syncthreads();
  unsigned long long best = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < part.size; i += THREADS) {
    const uint32_t token = part.from + i;
    const float l = is_forbidden(r, token) ? -INFINITY : penalized(edited[i], counts[i], r.params);
    logits[i] = l;
    const unsigned long long k = key(l, token);
    best = k > best ? k : best;
  }
  return best;
}

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(sample_edit, SampleArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ unsigned long long scratch[THREADS / 32];
  const uint32_t row = blockIdx.y;
  const Part part = part_of_block(a.n);
  const SamplerRow& r = a.rows[row];
  float* logits = a.logits + static_cast<size_t>(row) * a.n + part.from;
  float mine[PART / THREADS];
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    mine[j] = i < part.size ? logits[i] : -INFINITY;
  }
  unsigned long long computed = 0;
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    const unsigned long long k = i < part.size ? key(mine[j], part.from + i) : 0;
    computed = k > computed ? k : computed;
  }
  if (r.params.is_ranked(a.n)) clear_histogram(a, row);
  unsigned long long best = r.has_edits() ? edit(a, r, part, logits, mine) : computed;
  best = block_max(best, scratch);
  computed = block_max(computed, scratch);
  if (threadIdx.x == 0) {
    unsigned long long* parts = a.best + static_cast<size_t>(row) * 2 * a.n_parts;
    parts[blockIdx.x] = best;
    parts[a.n_parts + blockIdx.x] = computed;
  }
}

// A block's part of a row's histogram.
struct Histogram {
  unsigned long long weights[N_BINS];
  uint32_t counts[N_BINS];
};

// Adds a block's histogram to that of its row.
DEVICE void merge_histogram(const SampleArgs& a, uint32_t row, const Histogram& h) {
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < N_BINS; i += THREADS) {
    if (h.counts[i] == 0) continue;
    atomicAdd(a.weights + static_cast<size_t>(row) * N_BINS + i, h.weights[i]);
    atomicAdd(a.counts + static_cast<size_t>(row) * N_BINS + i, static_cast<unsigned long long>(h.counts[i]));
  }
}

// blockIdx.x: part of the row, blockIdx.y: row.
KERNEL(sample_weigh, SampleArgs, THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ Histogram histogram;
  __shared__ unsigned long long scratch[THREADS / 32];
  const uint32_t row = blockIdx.y;
  const Part part = part_of_block(a.n);
  const SamplerParams& p = a.rows[row].params;
  const Best best = row_best(a, row, scratch);
  if (is_decided(p, best)) return;
  const bool ranked = p.is_ranked(a.n);
  if (ranked) {
    for (uint32_t i = threadIdx.x; i < N_BINS; i += THREADS) histogram.weights[i] = 0, histogram.counts[i] = 0;
    __syncthreads();
  }
  const float max = logit_of(best.edited), temperature = p.temperature, min_logit = p.min_logit;
  float* logits = a.logits + static_cast<size_t>(row) * a.n + part.from;
  unsigned long long sum = 0;
  uint32_t n_last = 0;  // tokens of the last bin, to which a mask can send nearly all of a row
  float mine[PART / THREADS];
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    mine[j] = i < part.size ? logits[i] : -INFINITY;
  }
#pragma unroll
  for (uint32_t j = 0; j < PART / THREADS; j++) {
    const uint32_t i = threadIdx.x + j * THREADS;
    if (i >= part.size) break;
    const float x = quotient(__fadd_rn(mine[j], -max), temperature);
    logits[i] = x;
    const unsigned long long w = weight(x);
    if (ranked && x <= LAST_BIN) {
      n_last++;
    } else if (ranked) {
      atomicAdd(histogram.weights + bin_of(x), w);
      atomicAdd(histogram.counts + bin_of(x), 1u);
    } else if (x >= min_logit) {
      sum += w;
    }
  }
  if (ranked) {
    if (n_last) atomicAdd(histogram.counts + N_BINS - 1, n_last);
    __syncthreads();
    merge_histogram(a, row, histogram);
  } else {
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) a.sums[static_cast<size_t>(row) * a.n_parts + blockIdx.x] = sum;
  }
}

// Tokens that sample_choose holds in shared memory; where more may be kept, it reads the row again in each round.
constexpr uint32_t LIST = 4096;
// Logits that a thread loads at a time.
constexpr uint32_t BATCH = 8;
constexpr uint32_t N_DIGITS = 256;

struct Found {
  uint32_t index;
  unsigned long long before;  // the sum before it
};

struct ChooseShared {
  uint2 list[LIST];  // token and bits of its relative logit
  unsigned long long digits[N_DIGITS];
  unsigned long long scratch[CHOOSE_THREADS / 32];
  uint32_t n_listed;
  Found found;
};

// The first of n values at which their running sum passes `target`, or the last one. A thread takes four at a time.
NOINLINE void find_in(const unsigned long long* values, uint32_t n, unsigned long long target, unsigned long long* scratch, Found* found) {
  unsigned long long running = 0;
  __syncthreads();
  if (threadIdx.x == 0) *found = Found{n - 1, 0};
  __syncthreads();
#pragma unroll 1
  for (uint32_t base = 0; base < n; base += 4 * CHOOSE_THREADS) {
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

DEVICE Found find(const unsigned long long* values, uint32_t n, unsigned long long target, ChooseShared& s) {
  find_in(values, n, target, s.scratch, &s.found);
  return s.found;
}

DEVICE unsigned long long sum_of(const unsigned long long* values, uint32_t n, unsigned long long* scratch) {
  unsigned long long sum = 0;
#pragma unroll 1
  for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) sum += values[i];
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
    for (uint32_t i = threadIdx.x; i < n; i += CHOOSE_THREADS) {
      const uint2 t = list ? list[i] : uint2{i, __float_as_uint(row[i])};
      f(t.x, __uint_as_float(t.y));
    }
  }
};

// Lists the tokens of the row in bins `first` to `last`.
NOINLINE void gather_in(const float* row, uint32_t n, uint32_t first, uint32_t last, uint2* list, uint32_t* n_listed) {
  __syncthreads();
  if (threadIdx.x == 0) *n_listed = 0;
  __syncthreads();
#pragma unroll 1
  for (uint32_t base = threadIdx.x; base < n; base += CHOOSE_THREADS * BATCH) {
    float x[BATCH];
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) x[j] = base + j * CHOOSE_THREADS < n ? row[base + j * CHOOSE_THREADS] : 0;
#pragma unroll
    for (uint32_t j = 0; j < BATCH; j++) {
      const uint32_t bin = bin_of(x[j]);
      if (bin >= first && bin <= last && base + j * CHOOSE_THREADS < n) {
        list[atomicAdd(n_listed, 1u)] = uint2{base + j * CHOOSE_THREADS, __float_as_uint(x[j])};
      }
    }
  }
  __syncthreads();
}

// These tokens, of which there are n_wanted, if they fit the list; else all of the row.
DEVICE Tokens gather(const float* row, uint32_t n, uint32_t first, uint32_t last, uint32_t n_wanted, ChooseShared& s) {
  if (n_wanted > LIST) return Tokens{row, nullptr, n};
  gather_in(row, n, first, last, s.list, &s.n_listed);
  return Tokens{row, s.list, n_wanted};
}

// The token of a row without top-k and top-p: the part in which the draw falls, then the token within it.
DEVICE uint32_t draw_unranked(const SampleArgs& a, const SamplerRow& r, const float* x, const unsigned long long* sums, ChooseShared& s) {
  const unsigned long long target = __umul64hi(r.uniform, sum_of(sums, a.n_parts, s.scratch));
  const Found part = find(sums, a.n_parts, target, s);
  const uint32_t from = part.index * PART, size = from + PART < a.n ? PART : a.n - from;
  unsigned long long* weights = reinterpret_cast<unsigned long long*>(s.list);
  const float min_logit = r.params.min_logit;
#pragma unroll 4
  for (uint32_t i = threadIdx.x; i < size; i += CHOOSE_THREADS) weights[i] = x[from + i] >= min_logit ? weight(x[from + i]) : 0;
  return from + find(weights, size, target - part.before, s).index;
}

// The cuts of a row, in their order. The draw is one, too: by rising id, at the random number's share of the weights.
enum Cut { TOP_K, TOP_P, DRAW };

// The smallest and largest key that a token in this bin can have.
DEVICE unsigned long long bin_low(uint32_t bin) { return bin == N_BINS - 1 ? 0 : key((bin + 1) * (-1.0f / 64), 0) + 1; }
DEVICE unsigned long long bin_high(uint32_t bin) { return key(bin == N_BINS - 1 ? LAST_BIN : bin * (-1.0f / 64), 0); }

// Where a cut lies: at a key in low..=high. `above`: the sum over tokens with larger keys.
struct Range {
  unsigned long long low, high, above;
};

// A row that is cut by rank, and what the cuts so far have left of it.
struct Ranked {
  const unsigned long long *weights, *counts;  // [N_BINS]
  const float* x;                              // [n], relative logits
  uint32_t n;
  Tokens tokens;                 // those that may be kept; all of the row until the first cut is made
  bool is_cut;
  unsigned long long threshold;  // tokens with smaller keys are dropped

  // What orders tokens for a cut.
  DEVICE unsigned long long key_of(int cut, uint32_t token, float logit) const {
    return cut == DRAW ? n - 1 - token : key(logit, token);
  }

  // What a cut sums.
  DEVICE unsigned long long value_of(int cut, uint32_t token, float logit) const {
    if (cut == TOP_K) return 1;
    return cut == TOP_P || key(logit, token) >= threshold ? weight(logit) : 0;
  }

  // The sum that a cut must reach.
  DEVICE unsigned long long wanted(int cut, const SamplerRow& r, ChooseShared& s) const {
    if (cut == TOP_K) return r.params.top_k;
    unsigned long long sum = 0;
    if (is_cut) {
      tokens.each([&](uint32_t token, float l) { sum += key(l, token) >= threshold ? weight(l) : 0; });
      sum = block_sum(sum, s.scratch);
    } else {
      sum = sum_of(weights, N_BINS, s.scratch);
    }
    const unsigned long long share = __umul64hi(cut == TOP_P ? r.params.top_p_fraction() : r.uniform, sum);
    return cut == DRAW || share == 0 ? share + 1 : share;
  }

  // Finds the bin of a top-k or top-p cut, and sets `among` to the tokens to look at. The first cut gathers the tokens that may be kept.
  DEVICE Range find_bin(int cut, unsigned long long wanted, Tokens& among, ChooseShared& s) {
    const Found at = find(cut == TOP_K ? counts : weights, N_BINS, wanted - 1, s);
    if (!is_cut) {
      const uint32_t n_kept = static_cast<uint32_t>(sum_of(counts, at.index + 1, s.scratch));
      tokens = gather(x, n, 0, at.index, n_kept, s);
      is_cut = true;
    }
    // Where the tokens that may be kept do not fit the list, those of this bin alone may.
    among = tokens.list ? tokens : gather(x, n, at.index, at.index, static_cast<uint32_t>(counts[at.index]), s);
    const unsigned long long low = bin_low(at.index);
    return Range{threshold > low ? threshold : low, bin_high(at.index), at.before};
  }

  // Narrows the range to the smallest and largest key in it. Keys agree in few bits more than they must, which saves rounds.
  DEVICE void shrink(int cut, const Tokens& among, Range& range, ChooseShared& s) const {
    unsigned long long smallest = ~0ull, largest = 0;
    among.each([&](uint32_t token, float l) {
      const unsigned long long k = key_of(cut, token, l);
      if (k < range.low || k > range.high) return;
      smallest = k < smallest ? k : smallest;
      largest = k > largest ? k : largest;
    });
    range.low = ~block_max(~smallest, s.scratch);
    range.high = block_max(largest, s.scratch);
  }

  // The key at which the sum of values, from the largest key of the range on, reaches `wanted`. Each round finds 8 more bits of it.
  DEVICE unsigned long long refine(int cut, const Tokens& among, Range range, unsigned long long wanted, ChooseShared& s) const {
#pragma unroll 1
    while (range.low < range.high) {
      if (among.list) {
        shrink(cut, among, range, s);
        if (range.low >= range.high) break;
      }
      const int agreeing = __clzll(static_cast<long long>(range.low ^ range.high)), shift = agreeing < 56 ? 56 - agreeing : 0;
      __syncthreads();
      for (uint32_t i = threadIdx.x; i < N_DIGITS; i += CHOOSE_THREADS) s.digits[i] = 0;
      __syncthreads();
      among.each([&](uint32_t token, float l) {
        const unsigned long long k = key_of(cut, token, l);
        // Larger digits first. The last bin adds nothing, and would take turns at one digit.
        if (k >= range.low && k <= range.high && l > LAST_BIN) {
          atomicAdd(s.digits + (N_DIGITS - 1 - (k >> shift & (N_DIGITS - 1))), value_of(cut, token, l));
        }
      });
      const Found f = find(s.digits, N_DIGITS, wanted - range.above - 1, s);
      range.above += f.before;
      const unsigned long long digit = N_DIGITS - 1 - f.index;
      const unsigned long long first = (shift < 56 ? range.high >> (shift + 8) << (shift + 8) : 0) | digit << shift;
      const unsigned long long last = first | ((1ull << shift) - 1);
      range.low = first > range.low ? first : range.low;
      range.high = last < range.high ? last : range.high;
    }
    return range.low;
  }
};

// The token of a row that top-k or top-p cuts.
DEVICE uint32_t draw_ranked(const SampleArgs& a, const SamplerRow& r, uint32_t row, const float* x, ChooseShared& s) {
  const size_t first_bin = static_cast<size_t>(row) * N_BINS;
  Ranked ranked{a.weights + first_bin, a.counts + first_bin, x, a.n, Tokens{x, nullptr, a.n}, false, 0};
  // What top-k drops of the last bin, to which a mask sends nearly all of a row, could not be drawn anyway.
  const uint32_t n_weighty = a.n - static_cast<uint32_t>(ranked.counts[N_BINS - 1]);
#pragma unroll 1
  for (int cut = r.params.has_top_k(n_weighty) ? TOP_K : TOP_P; cut <= DRAW; cut++) {
    if (cut == TOP_P && !r.params.has_top_p()) continue;
    if (cut == DRAW) {
      const unsigned long long least = key(r.params.min_logit, 0) - 0xffffffffu;  // of the last token with this logit
      ranked.threshold = least > ranked.threshold ? least : ranked.threshold;
    }
    const unsigned long long wanted = ranked.wanted(cut, r, s);
    Tokens among = ranked.tokens;
    Range range{0, a.n - 1, 0};
    if (cut != DRAW) range = ranked.find_bin(cut, wanted, among, s);
    ranked.threshold = ranked.refine(cut, among, range, wanted, s);
  }
  return a.n - 1 - static_cast<uint32_t>(ranked.threshold);
}

// blockIdx.x: row.
KERNEL(sample_choose, SampleArgs, CHOOSE_THREADS) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ ChooseShared shared;
  const uint32_t row = blockIdx.x;
  const SamplerRow& r = a.rows[row];
  const Best best = row_best(a, row, shared.scratch);
  uint32_t token;
  if (is_decided(r.params, best)) {
    token = marked(is_invalid(best) ? best.computed : best.edited);
  } else {
    const float* x = a.logits + static_cast<size_t>(row) * a.n;
    const unsigned long long* sums = a.sums + static_cast<size_t>(row) * a.n_parts;
    token = r.params.is_ranked(a.n) ? draw_ranked(a, r, row, x, shared) : draw_unranked(a, r, x, sums, shared);
  }
  if (threadIdx.x == 0) store_token(a.chosen, *a.readback, row, token);
}
