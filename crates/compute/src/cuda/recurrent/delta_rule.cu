// The gated delta rule (Yang, Kautz and Hatamizadeh 2024) of a step's tokens, one after the other, with the state in registers.
//
//   for each token:  held = kᵀS;  d = beta · (v - decay · held);  S = decay · S + k ⊗ d;  y = qᵀS
//
// Mapping. Block: WARPS warps (gridDim is divided by the columns of that many), 4 WARPS columns of the state of one value head of one
// sequence, over all of its tokens. Warp: 4 columns. Lane, with g = lane % 16: columns 2 (lane / 16) and 2 (lane / 16) + 1 of these, rows
// 64 i + 4 g to 64 i + 4 g + 3. Columns do not depend on each other; sums over rows go over 16 lanes. The next 8 tokens' queries, keys and
// values are loaded while these are computed, and queries and keys are divided by their lengths on their way to shared memory.
// Shared memory: two stages of 8 tokens, 12 KiB for keys of 128 elements, static.
// delta_token computes one token of each sequence, and then the norm and the gate, for which its block has all columns of a head. Where
// there are more heads than SMs blocks have few warps, each of which loads its next columns while it computes others, so that an SM's
// blocks always have loads under way.
// Moves: the head's columns of the slots read and written, k_dim * 4 bytes a column; the tokens' queries, keys and values.
#include "columns.cuh"
#include "delta_rates.cuh"
#include "delta_rule_args.cuh"
#include "gated_norm.cuh"

constexpr int TOKENS = 8;                 // of a stage
constexpr int WARPS = 8, THREADS = 32 * WARPS;  // of a block of delta_rule
constexpr int TOKEN_THREADS = 512;        // of a block of delta_token, at most
constexpr int ROWS = 2 * TOKENS / WARPS;  // queries and keys that a warp prepares for a stage

// A stage of tokens in shared memory.
template <int K>
struct Stage {
  __align__(16) float q[TOKENS][K], k[TOKENS][K];
  float v[TOKENS][4 * WARPS];
  float beta[TOKENS], decay[TOKENS];
};

// What a block computes: 4 WARPS columns from `first_column` on, or all where there is one slice, of a value head of a sequence.
struct Work {
  int seq, head, k_head, first_column, first_token, n_tokens;

  DEVICE explicit Work(const DeltaRuleArgs& a) {
    const int n_heads = a.n_v_heads, n_slices = a.n_slices, slice = blockIdx.x % n_slices;
    head = blockIdx.x / n_slices % n_heads, seq = blockIdx.x / n_slices / n_heads;
    k_head = a.tiled ? head % a.n_k_heads : head / (n_heads / a.n_k_heads);
    first_column = slice * (4 * WARPS);
    first_token = a.seq_starts[seq], n_tokens = a.seq_starts[seq + 1] - first_token;
  }

  DEVICE HeadSlots slots(const DeltaRuleArgs& a) const { return {a.state, a.n_v_heads, a.v_dim, a.k_dim, head}; }
};

// Divides a row by its length, times a factor, by one warp.
template <int PIECES>
DEVICE void put_normed(float* to, const float (&row)[PIECES], float factor, int lane) {
  float squares = 0;
#pragma unroll
  for (int i = 0; i < PIECES; i++) squares = fmaf(row[i], row[i], squares);
  // The reference library's epsilon keeps zeros from becoming NaN.
  const float inverse = factor / sqrtf(warp_sum(squares) + 1e-6f);
#pragma unroll
  for (int i = 0; i < PIECES; i++) to[lane + 32 * i] = row[i] * inverse;
}

// What a thread loads of a stage before that is needed.
template <int K>
struct Loads {
  static constexpr int PIECES = K / 32;
  float rows[ROWS][PIECES];  // rows warp, warp + n_warps of the stage's queries, then keys: elements lane, lane + 32, …
  float v, b, a;

  DEVICE void load(const DeltaRuleArgs& args, const Work& work, int first, int count, int tid) {
    const int lane = tid % 32, warp = tid / 32, k_dim = args.k_dim, n_k_heads = args.n_k_heads;
    const float* qkv = args.qkv + static_cast<size_t>(work.first_token + first) * args.qkv_len;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = warp + r * WARPS, token = row % TOKENS, head = row / TOKENS * n_k_heads + work.k_head;
      const float* from = qkv + static_cast<size_t>(token) * args.qkv_len + head * k_dim;
#pragma unroll
      for (int i = 0; i < PIECES; i++) {
        const bool there = token < count && lane + 32 * i < k_dim;
        rows[r][i] = there ? from[lane + 32 * i] : 0.0f;
      }
    }
    const int token = tid / (4 * WARPS), column = work.first_column + tid % (4 * WARPS), v_dim = args.v_dim;
    const bool there = token < count && column < v_dim;
    v = there ? qkv[static_cast<size_t>(token) * args.qkv_len + 2 * n_k_heads * k_dim + work.head * v_dim + column] : 0.0f;
    if (tid < count) {
      const float* rates = args.rates + static_cast<size_t>(work.first_token + first + tid) * args.rates_len + work.head;
      b = rates[0], a = rates[args.n_v_heads];
    }
  }

  // Puts a stage in shared memory: queries and keys divided by their lengths, queries also by the root of theirs.
  DEVICE void store(Stage<K>& stage, const DeltaRuleArgs& args, const Work& work, int count, int tid) const {
    const int lane = tid % 32, warp = tid / 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const int row = warp + r * WARPS, token = row % TOKENS;
      if (token >= count) continue;
      const bool is_query = row < TOKENS;
      put_normed(is_query ? stage.q[token] : stage.k[token], rows[r], is_query ? args.q_scale : 1.0f, lane);
    }
    if (tid / (4 * WARPS) < count) stage.v[tid / (4 * WARPS)][tid % (4 * WARPS)] = v;
    if (tid < count) {
      stage.beta[tid] = delta_beta(b);
      stage.decay[tid] = expf(delta_log_decay(a, args.dt_bias[work.head], args.decay[work.head]));
    }
  }
};

// The state of a lane, with the rule.
template <int K>
struct State : ColumnState<K> {
  using ColumnState<K>::ColumnState, ColumnState<K>::PIECES, ColumnState<K>::s, ColumnState<K>::row_of;

  // A token's step. Returns the result of the lane's first or, where its bit 3 is set, second column. `v`: of the warp's columns.
  DEVICE float step(const float* q, const float* k, const float* v, float beta, float decay, int lane) {
    float held[2] = {}, out[2] = {};
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      const float4 x = *reinterpret_cast<const float4*>(k + row_of(i, lane));
#pragma unroll
      for (int j = 0; j < 2; j++) {
        held[j] = fmaf(x.x, s[j][i].x, held[j]), held[j] = fmaf(x.y, s[j][i].y, held[j]);
        held[j] = fmaf(x.z, s[j][i].z, held[j]), held[j] = fmaf(x.w, s[j][i].w, held[j]);
      }
    }
    const bool second = lane & 8;
    const float mine = beta * fmaf(-decay, sum_of_one(held, lane), v[lane / 16 * 2 + second]);
    const float other = __shfl_xor_sync(ALL_LANES, mine, 8);
    const float d[2] = {second ? other : mine, second ? mine : other};
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
      const float4 x = *reinterpret_cast<const float4*>(k + row_of(i, lane)), y = *reinterpret_cast<const float4*>(q + row_of(i, lane));
#pragma unroll
      for (int j = 0; j < 2; j++) {
        s[j][i].x = fmaf(x.x, d[j], decay * s[j][i].x), s[j][i].y = fmaf(x.y, d[j], decay * s[j][i].y);
        s[j][i].z = fmaf(x.z, d[j], decay * s[j][i].z), s[j][i].w = fmaf(x.w, d[j], decay * s[j][i].w);
        out[j] = fmaf(y.x, s[j][i].x, out[j]), out[j] = fmaf(y.y, s[j][i].y, out[j]);
        out[j] = fmaf(y.z, s[j][i].z, out[j]), out[j] = fmaf(y.w, s[j][i].w, out[j]);
      }
    }
    return sum_of_one(out, lane);
  }
};

template <int K>
DEVICE void delta_rule(const DeltaRuleArgs& a) {
  ptx::launch_dependents();
  __shared__ Stage<K> stages[2];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, v_dim = a.v_dim;
  const Work work(a);
  SeqState slots(a.batch, a.states, work.seq);
  State<K> state(work.first_column + warp * 4, lane);
  // Slots were written steps ago.
  state.load(work.slots(a), slots.from, lane);
  ptx::griddepcontrol_wait();
  Loads<K> loads;
  loads.load(a, work, 0, min(work.n_tokens, TOKENS), tid);
  const int mine = lane / 16 * 2 + (lane / 8 & 1), column = work.first_column + warp * 4 + mine;
  for (int first = 0; first < work.n_tokens; first += TOKENS) {
    const int count = min(work.n_tokens - first, TOKENS);
    Stage<K>& stage = stages[first / TOKENS % 2];
    loads.store(stage, a, work, count, tid);
    // All warps have also read the stage before, which the next one replaces.
    __syncthreads();
    loads.load(a, work, first + TOKENS, min(work.n_tokens - first - TOKENS, TOKENS), tid);
    for (int t = 0; t < count; t++) {
      const float y = state.step(stage.q[t], stage.k[t], stage.v[t] + warp * 4, stage.beta[t], stage.decay[t], lane);
      if (lane % 8 == 0 && column < v_dim) {
        a.y[(static_cast<size_t>(work.first_token + first + t) * a.n_v_heads + work.head) * v_dim + column] = y;
      }
      for (; slots.after == static_cast<uint32_t>(first + t + 1); slots.advance()) state.store(work.slots(a), slots.slot, lane);
    }
  }
}

KERNEL(delta_rule_64, DeltaRuleArgs, THREADS) { delta_rule<64>(a); }
KERNEL(delta_rule_128, DeltaRuleArgs, THREADS) { delta_rule<128>(a); }
KERNEL(delta_rule_256, DeltaRuleArgs, THREADS) { delta_rule<256>(a); }

// A head's token in shared memory, and its result.
template <int K>
struct Token {
  __align__(16) float q[K], k[K];
  float v[MAX_V_DIM], result[MAX_V_DIM];
  float beta, decay;
};

template <int K>
DEVICE void delta_token(const DeltaRuleArgs& a) {
  ptx::launch_dependents();
  __shared__ Token<K> token;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, columns = blockDim.x / 8, v_dim = a.v_dim, k_dim = a.k_dim;
  const Work work(a);
  const SeqState slots(a.batch, a.states, work.seq);
  State<K> next(warp * 4, lane);
  // Slots were written steps ago.
  next.load(work.slots(a), slots.from, lane);
  ptx::griddepcontrol_wait();
  const float* qkv = a.qkv + static_cast<size_t>(work.first_token) * a.qkv_len;
  if (warp < 2) {
    float row[K / 32];
    const float* from = qkv + (warp * a.n_k_heads + work.k_head) * k_dim;
#pragma unroll
    for (int i = 0; i < K / 32; i++) row[i] = lane + 32 * i < k_dim ? from[lane + 32 * i] : 0.0f;
    put_normed(warp == 0 ? token.q : token.k, row, warp == 0 ? a.q_scale : 1.0f, lane);
  }
  for (int i = tid; i < MAX_V_DIM; i += blockDim.x) token.v[i] = i < v_dim ? qkv[2 * a.n_k_heads * k_dim + work.head * v_dim + i] : 0.0f;
  if (tid == 0) {
    const float* rates = a.rates + static_cast<size_t>(work.first_token) * a.rates_len + work.head;
    token.beta = delta_beta(rates[0]);
    token.decay = expf(delta_log_decay(rates[a.n_v_heads], a.dt_bias[work.head], a.decay[work.head]));
  }
  __syncthreads();
  const int mine = warp * 4 + lane / 16 * 2 + (lane / 8 & 1);
#pragma unroll 1
  for (int first = 0; first < v_dim; first += columns) {
    State<K> state = next;
    next.column += columns;
    if (first + columns < v_dim) next.load(work.slots(a), slots.from, lane);
    const float y = state.step(token.q, token.k, token.v + first + warp * 4, token.beta, token.decay, lane);
    if (lane % 8 == 0 && first + mine < v_dim) token.result[first + mine] = y;
    for (SeqState s = slots; s.after == 1; s.advance()) state.store(work.slots(a), s.slot, lane);
  }
  __syncthreads();
  const float inverse = inverse_rms(token.result, v_dim, lane, 0, a.norm_eps);
  const float* gate = a.gate + static_cast<size_t>(work.first_token) * a.gate_len + work.head * v_dim;
  float* y = a.y + (static_cast<size_t>(work.first_token) * a.n_v_heads + work.head) * v_dim;
  for (int i = tid; i < v_dim; i += blockDim.x) y[i] = token.result[i] * inverse * a.norm_weight[i] * activate_one(SILU, gate[i]);
}

KERNEL(delta_token_64, DeltaRuleArgs, TOKEN_THREADS) { delta_token<64>(a); }
KERNEL(delta_token_128, DeltaRuleArgs, TOKEN_THREADS) { delta_token<128>(a); }
KERNEL(delta_token_256, DeltaRuleArgs, TOKEN_THREADS) { delta_token<256>(a); }
