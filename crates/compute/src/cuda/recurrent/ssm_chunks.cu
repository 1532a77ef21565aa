// The state-space scan of Mamba-2 of prompts, in matrix form: 32 tokens at a time on the tensor cores (Dao and Gu 2024, section 6).
//
// With g the sums of the logarithms of decays up to each token of a chunk, S the state before it, and rows for tokens:
//
//   P[t][s] = exp(g[t] - g[s]) dt[s] C[t]·B[s], s <= t         Y = diag(exp g) C S + P X + skip X
//   S after p tokens = exp(g[p - 1]) S + sum over s < p of exp(g[p - 1] - g[s]) dt[s] B[s] ⊗ x[s]
//
// Decays are at most 1, so no exponential here exceeds 1. Factors of products are rounded to TF32, sums are floats.
//
// Block: 64 columns of the state of a head of a sequence, 8 warps. With g = lane / 4, t = lane % 4 a lane holds of the state, as sums of the
// tensor cores, rows 16 warp + g and + 8, columns 8 n + 2 t and + 1; of products with tokens as rows its warp has tokens 16 (warp % 2) on and
// columns 16 (warp / 2) on. Each lane knows the step size and the decays of the chunk's token of its number.
// Shared memory: 124.5 KiB, dynamic: while a chunk is computed, the next one's B, C and x come. Moves: the columns of the slots read and written;
// the tokens' x, B and C, these once for each head.
#include "ssm.cuh"

constexpr int C = 32, N = SSM_CHUNK_COLUMNS, K = SSM_CHUNK_STATE_DIM;
// Floats from row to row, so that what a warp reads lies in different banks.
constexpr int BC_PITCH = K + 4, COLUMNS_PITCH = N + 8, P_PITCH = C + 4;

struct Stage {
  __align__(16) float b[C][BC_PITCH], c[C][BC_PITCH], x[C][COLUMNS_PITCH];
};

struct Shared {
  Stage stages[2];
  float state[K][COLUMNS_PITCH], p[C][P_PITCH];
};

// Calls f(to, from) for the thread's vectors of B and C of a stage, and then of x: where each is in shared memory, and in a token's row.
template <class F, class G>
DEVICE void for_vectors(Stage& stage, const SsmScanArgs& a, const SsmWork& work, int tid, F of_bc, G of_x) {
  const int inner_len = a.n_heads * a.head_dim;
  for (int i = tid; i < 2 * C * (K / 4); i += SSM_THREADS) {
    const int token = i / (2 * (K / 4)), is_c = i / (K / 4) % 2, at = i % (K / 4) * 4;
    of_bc((is_c ? stage.c : stage.b)[token] + at, token, inner_len + (is_c * a.n_groups + work.group) * K + at);
  }
  for (int i = tid; i < C * (N / 4); i += SSM_THREADS) {
    const int token = i / (N / 4), at = i % (N / 4) * 4;
    of_x(stage.x[token] + at, token, work.head * a.head_dim + work.first_column + at);
  }
}

// Asks for a chunk's tokens, from `first` of the sequence on. Those that there are not become zeros.
DEVICE void load_stage(Stage& stage, const SsmScanArgs& a, const SsmWork& work, int first, int tid) {
  const int count = min(work.n_tokens - first, C);
  const float* rows = a.xbc + static_cast<size_t>(work.first_token + first) * a.xbc_len;
  const auto copy = [&](float* to, int token, int at) {
    ptx::cp_async_16(to, rows + (token < count ? static_cast<size_t>(token) * a.xbc_len + at : 0), token < count ? 16 : 0);
  };
  for_vectors(stage, a, work, tid, copy, copy);
  ptx::cp_async_commit();
}

DEVICE float rounded(float x) { return __uint_as_float(ptx::f32_to_tf32(x)); }

// Rounds the B and C that the thread asked for.
DEVICE void round_stage(Stage& stage, const SsmScanArgs& a, const SsmWork& work, int tid) {
  for_vectors(
      stage, a, work, tid,
      [](float* at, int, int) {
        float4& v = *reinterpret_cast<float4*>(at);
        v = float4{rounded(v.x), rounded(v.y), rounded(v.z), rounded(v.w)};
      },
      [](float*, int, int) {});
}

// sums += rows `a` and eight further on times columns of `b`, of numbers that are rounded, for `inner` of them. `a`: the lane's row. `b`: the
// lane's column of the first eight; an element is INNER_STEP after the one before, and the next eight columns are COLUMNS_STEP further on.
template <int A_PITCH, int INNER_STEP, int COLUMNS_STEP, int TILES, class Round>
DEVICE void multiply(float (&sums)[TILES][4], const float* a, const float* b, int inner, int t, Round round) {
#pragma unroll 4
  for (int i = t; i < inner; i += 8) {
    const auto of_a = [&](int at) { return __float_as_uint(a[at]); };
    const uint32_t x[4] = {of_a(i), of_a(i + 8 * A_PITCH), of_a(i + 4), of_a(i + 4 + 8 * A_PITCH)};
#pragma unroll
    for (int n = 0; n < TILES; n++) {
      const float* y = b + i * INNER_STEP + n * COLUMNS_STEP;
      ptx::mma_tf32(sums[n], x, __float_as_uint(round(y[0])), __float_as_uint(round(y[4 * INNER_STEP])));
    }
  }
}

// What a lane knows of the chunk's token of its number.
struct Token {
  float dt, g;
  DEVICE Token(float dt, float decay, int lane) : dt(dt), g(decay * dt) {
#pragma unroll
    for (int d = 1; d < C; d *= 2) {
      const float before = __shfl_sync(ALL_LANES, g, lane - d & 31);
      if (lane >= d) g += before;
    }
  }
  DEVICE float g_of(int token) const { return __shfl_sync(ALL_LANES, g, token); }
  DEVICE float dt_of(int token) const { return __shfl_sync(ALL_LANES, dt, token); }
};

// A warp's 16 rows of the block's columns of a state.
struct State {
  float s[N / 8][4];

  template <class F>
  DEVICE static void for_each(int warp, int lane, F f) {
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int j = 0; j < 4; j++) f(n, j, 16 * warp + lane / 4 + j / 2 * 8, 8 * n + lane % 4 * 2 + j % 2);
    }
  }
  DEVICE static float* slot(const SsmScanArgs& a, const SsmWork& work, uint32_t slot) {
    return a.state + ((static_cast<size_t>(slot) * a.n_heads + work.head) * a.head_dim + work.first_column) * K;
  }
  DEVICE void load(const SsmScanArgs& a, const SsmWork& work, uint32_t from, int warp, int lane) {
    const float* x = slot(a, work, from);
    for_each(warp, lane, [&](int n, int j, int row, int column) { s[n][j] = from == NO_SLOT ? 0.0f : x[column * K + row]; });
  }
  DEVICE void store(const SsmScanArgs& a, const SsmWork& work, uint32_t to, int warp, int lane) const {
    float* x = slot(a, work, to);
    for_each(warp, lane, [&](int n, int j, int row, int column) { x[column * K + row] = s[n][j]; });
  }
  DEVICE void share(float (*to)[COLUMNS_PITCH], int warp, int lane) const {
    for_each(warp, lane, [&](int n, int j, int row, int column) { to[row][column] = rounded(s[n][j]); });
  }

  // Becomes the state after the first `count` tokens of the chunk.
  DEVICE void advance(const Stage& stage, const Token& tokens, int count, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    const float end = tokens.g_of(count - 1), decay = expf(end);
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
#pragma unroll
      for (int j = 0; j < 4; j++) s[n][j] *= decay;
    }
    const float mine = lane < count ? expf(end - tokens.g) * tokens.dt : 0.0f;
#pragma unroll
    for (int i = 0; i < C; i += 8) {
      const int token = i + t, row = 16 * warp + g;
      const float f0 = __shfl_sync(ALL_LANES, mine, token), f1 = __shfl_sync(ALL_LANES, mine, token + 4);
      const float *b0 = stage.b[token] + row, *b1 = stage.b[token + 4] + row;
      const uint32_t x[4] = {__float_as_uint(b0[0]), __float_as_uint(b0[8]), __float_as_uint(b1[0]), __float_as_uint(b1[8])};
#pragma unroll
      for (int n = 0; n < N / 8; n++) {
        ptx::mma_tf32(s[n], x, ptx::f32_to_tf32(f0 * stage.x[token][8 * n + g]), ptx::f32_to_tf32(f1 * stage.x[token + 4][8 * n + g]));
      }
    }
  }
};

// P of the chunk, to shared memory: a warp has 16 rows and 8 columns.
DEVICE void share_p(Shared& shared, const Stage& stage, const Token& tokens, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, row = warp % 2 * 16 + g, column = warp / 2 * 8;
  float products[1][4] = {};
  multiply<BC_PITCH, 1, 0>(products, stage.c[row], stage.b[column + g], K, t, [](float x) { return x; });
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int r = row + j / 2 * 8, s = column + 2 * t + j % 2;
    const float decay = expf(tokens.g_of(r) - tokens.g_of(s)), dt = tokens.dt_of(s);
    shared.p[r][s] = s <= r ? rounded(decay * dt * products[0][j]) : 0.0f;
  }
}

KERNEL(ssm_chunks, SsmScanArgs, SSM_THREADS) {
  ptx::launch_dependents();
  DYNAMIC_SHARED(dynamic);
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  static_assert(sizeof(Shared) <= SSM_CHUNK_SHARED_BYTES, "the launcher asks for less");
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, g = lane / 4, t = lane % 4;
  const int row = warp % 2 * 16 + g, column = warp / 2 * 16;
  const SsmWork work(a, N);
  SeqState slots(a.batch, a.states, work.seq);
  State state;
  // Slots were written steps ago.
  state.load(a, work, slots.from, warp, lane);
  const float decay = a.decay[work.head], skip = a.skip[work.head];
  ptx::griddepcontrol_wait();
  const auto step_size = [&](int token) { return token < work.n_tokens ? work.step_size(a, token) : 0.0f; };
  load_stage(shared.stages[0], a, work, 0, tid);
  float dt = step_size(lane);
#pragma unroll 1
  for (int first = 0; first < work.n_tokens; first += C) {
    Stage& stage = shared.stages[first / C % 2];
    const Token tokens(dt, decay, lane);
    ptx::cp_async_wait<0>();
    round_stage(stage, a, work, tid);
    state.share(shared.state, warp, lane);
    // All warps are done with the chunk before.
    __syncthreads();
    const int next = first + C, count = min(work.n_tokens - first, C);
    if (next < work.n_tokens) load_stage(shared.stages[next / C % 2], a, work, next, tid);
    dt = step_size(next + lane);
    share_p(shared, stage, tokens, warp, lane);
    float y[2][4] = {};
    multiply<BC_PITCH, COLUMNS_PITCH, 8>(y, stage.c[row], shared.state[0] + column + g, K, t, [](float x) { return x; });
    const float decays[2] = {expf(tokens.g_of(row)), expf(tokens.g_of(row + 8))};
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int j = 0; j < 4; j++) y[n][j] *= decays[j / 2];
    }
    __syncthreads();
    // What is above the diagonal is 0.
    multiply<P_PITCH, COLUMNS_PITCH, 8>(y, shared.p[row], stage.x[0] + column + g, row / 16 * 16 + 16, t, rounded);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int token = row + 8 * h;
      if (token >= count) continue;
      const size_t at = static_cast<size_t>(work.first_token + first + token) * a.n_heads + work.head;
      float* to = a.y + at * a.head_dim + work.first_column + column + 2 * t;
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const float2 x = *reinterpret_cast<const float2*>(stage.x[token] + column + 8 * n + 2 * t);
        *reinterpret_cast<float2*>(to + 8 * n) = float2{fmaf(skip, x.x, y[n][2 * h]), fmaf(skip, x.y, y[n][2 * h + 1])};
      }
    }
    for (; slots.after < static_cast<uint32_t>(first + count); slots.advance()) {
      State within = state;
      within.advance(stage, tokens, static_cast<int>(slots.after) - first, warp, lane);
      within.store(a, work, slots.slot, warp, lane);
    }
    state.advance(stage, tokens, count, warp, lane);
    for (; slots.after == static_cast<uint32_t>(first + count); slots.advance()) state.store(a, work, slots.slot, warp, lane);
  }
}
