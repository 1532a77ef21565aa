// The gated delta rule of prompts, in matrix form: 32 tokens at a time on the tensor cores (Yang, Kautz and Hatamizadeh 2024, section 3.3).
//
// With g the sums of the logarithms of decays up to each token of a chunk, S the state before it, and rows for tokens:
//
//   L[t][s] = beta[t] exp(g[t] - g[s]) k[t]·k[s], s < t        P[t][s] = exp(g[t] - g[s]) q[t]·k[s], s <= t
//   D = (I + L)^-1 diag(beta) (V - diag(exp g) K S)            Y = diag(exp g) Q S + P D
//   S after p tokens = exp(g[p - 1]) S + sum over s < p of exp(g[p - 1] - g[s]) k[s] ⊗ d[s]
//
// Decays are at most 1, so no exponential here exceeds 1. Queries, keys, P and the inverse are stored in half precision, whose values are at
// most 1; values, states and D, whose size nobody knows, are rounded to TF32, which has as many bits. All sums are floats.
//
// `delta_chunk_factors` computes what does not need the state, all chunks at once: queries and keys over their lengths, the inverse times
// beta, P and g. `delta_chunks` carries the state from chunk to chunk. A sequence's chunks begin at its first token in the step; those of
// sequence i have numbers from seq_starts[i] / 32 + i on, of which not all are used.
#include "delta_chunks_args.cuh"
#include "delta_rates.cuh"
#include "states.cuh"

constexpr int C = CHUNK, K = CHUNK_K_DIM, N = CHUNK_COLUMNS;
constexpr int WARPS = CHUNK_THREADS / 32;
// Halves from row to row in shared memory, so that eight rows' words lie in different banks.
constexpr int QK_PITCH = K + 8, SQUARE_PITCH = C + 8;
// Floats from row to row.
constexpr int PITCH = 36;

DEVICE int first_chunk(const DeltaChunksArgs& a, int seq) { return a.seq_starts[seq] / C + seq; }

// Elements 2 t and 2 t + 1 of a row of halves as two floats.
DEVICE void floats_of(uint32_t pair, uint32_t& low, uint32_t& high) {
  low = __float_as_uint(ptx::f16_to_f32(static_cast<uint16_t>(pair))), high = __float_as_uint(ptx::f16_to_f32(static_cast<uint16_t>(pair >> 16)));
}

DEVICE uint32_t word_at(const uint16_t* row, int i) { return *reinterpret_cast<const uint32_t*>(row + i); }

// ---- What does not need the state

// Block: a chunk and a head of keys, 4 warps. They divide queries and keys by their lengths, multiply them with each other, and then each
// takes a value head of those that have these keys: a lane has a column of the inverse.
struct Factors {
  __align__(16) uint16_t q[C][QK_PITCH], k[C][QK_PITCH];
  __align__(16) float kk[C][PITCH], qk[C][PITCH];
  __align__(16) float l[WARPS][C][PITCH];
};

// Where a block's chunk is: its tokens from `first` on, of the step.
struct Chunk {
  int number, first, count;

  // `count` is 0 for a number that is not used.
  DEVICE Chunk(const DeltaChunksArgs& a, int number) : number(number) {
    int low = 0, high = a.n_seqs;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_chunk(a, middle) <= number) low = middle;
      else high = middle;
    }
    first = a.seq_starts[low] + (number - first_chunk(a, low)) * C;
    const int left = static_cast<int>(a.seq_starts[low + 1]) - first;
    count = left < 0 ? 0 : min(left, C);
  }
};

// Queries, also over the root of their length, and keys of the chunk, over their lengths: to shared memory, and for `delta_chunks`.
DEVICE void load_unit_rows(const DeltaChunksArgs& a, Factors& shared, const Chunk& chunk, int k_head, int warp, int lane) {
  for (int row = warp; row < 2 * C; row += WARPS) {
    const int token = row % C, is_key = row / C;
    float4 v = {};
    if (token < chunk.count) {
      const float* from = a.qkv + static_cast<size_t>(chunk.first + token) * a.qkv_len + (is_key * a.n_k_heads + k_head) * K;
      v = reinterpret_cast<const float4*>(from)[lane];
    }
    const float squares = warp_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w);
    // The reference library's epsilon keeps zeros from becoming NaN.
    const float scale = (is_key ? 1.0f : a.q_scale) / sqrtf(squares + 1e-6f);
    const uint2 halves = {ptx::f32_to_f16(v.x * scale, v.y * scale), ptx::f32_to_f16(v.z * scale, v.w * scale)};
    *reinterpret_cast<uint2*>((is_key ? shared.k : shared.q)[token] + 4 * lane) = halves;
    if (token < chunk.count) {
      const size_t to = (static_cast<size_t>(chunk.first + token) * a.n_k_heads + k_head) * 2 + is_key;
      reinterpret_cast<uint2*>(a.unit_rows + to * K)[lane] = halves;
    }
  }
}

// Products of all keys, or by the second half of the warps queries, with all keys.
DEVICE void multiply_keys(Factors& shared, int warp, int lane) {
  const int g = lane / 4, t = lane % 4, row = warp % 2 * 16 + g;
  const bool of_queries = warp >= 2;
  const uint16_t(*rows)[QK_PITCH] = of_queries ? shared.q : shared.k;
  float sums[C / 8][4] = {};
#pragma unroll
  for (int i = 0; i < K; i += 16) {
    const int at = i + 2 * t;
    const uint32_t x[4] = {word_at(rows[row], at), word_at(rows[row + 8], at), word_at(rows[row], at + 8), word_at(rows[row + 8], at + 8)};
#pragma unroll
    for (int n = 0; n < C / 8; n++) {
      const uint16_t* key = shared.k[8 * n + g];
      ptx::mma_f16(sums[n], x, word_at(key, at), word_at(key, at + 8));
    }
  }
  float(*to)[PITCH] = of_queries ? shared.qk : shared.kk;
#pragma unroll
  for (int n = 0; n < C / 8; n++) {
#pragma unroll
    for (int j = 0; j < 4; j++) to[row + j / 2 * 8][8 * n + 2 * t + j % 2] = sums[n][j];
  }
}

// Column `lane` of (I + L)^-1, from the first row to the last.
DEVICE void invert(float (&x)[C], const float (*l)[PITCH], int lane) {
#pragma unroll
  for (int t = 0; t < C; t++) {
    float sums[2] = {t == lane ? 1.0f : 0.0f, 0.0f};
#pragma unroll
    for (int s = 0; s < t; s++) sums[s % 2] = fmaf(-l[t][s], x[s], sums[s % 2]);
    x[t] = sums[0] + sums[1];
  }
}

// The factors of a value head; a lane has a token's rates, and then a column.
DEVICE void factors_of_head(const DeltaChunksArgs& a, Factors& shared, const Chunk& chunk, int head, int warp, int lane) {
  float beta = 0, g = 0;
  if (lane < chunk.count) {
    const float* rates = a.rates + static_cast<size_t>(chunk.first + lane) * a.rates_len + head;
    beta = delta_beta(rates[0]), g = delta_log_decay(rates[a.n_v_heads], a.dt_bias[head], a.decay[head]);
  }
#pragma unroll
  for (int d = 1; d < C; d *= 2) {
    const float before = __shfl_sync(ALL_LANES, g, lane - d & 31);
    if (lane >= d) g += before;
  }
  const size_t place = static_cast<size_t>(chunk.number) * a.n_v_heads + head;
  a.log_decays[place * C + lane] = g;
  uint16_t* to = a.squares + place * 2 * C * C + lane;
  float(*l)[PITCH] = shared.l[warp];
  for (int t = 0; t < C; t++) {
    const float g_t = __shfl_sync(ALL_LANES, g, t), beta_t = __shfl_sync(ALL_LANES, beta, t);
    const float decay = lane <= t ? expf(g_t - g) : 0.0f;
    l[t][lane] = beta_t * decay * shared.kk[t][lane];
    to[(C + t) * C] = ptx::f32_to_f16(decay * shared.qk[t][lane]);
  }
  __syncwarp();
  float x[C];
  invert(x, l, lane);
#pragma unroll
  for (int t = 0; t < C; t++) to[t * C] = ptx::f32_to_f16(x[t] * beta);
  __syncwarp();
}

KERNEL(delta_chunk_factors, DeltaChunksArgs, CHUNK_THREADS) {
  ptx::launch_dependents();
  __shared__ Factors shared;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_k_heads = a.n_k_heads;
  const int k_head = blockIdx.x % n_k_heads, group = a.n_v_heads / n_k_heads;
  ptx::griddepcontrol_wait();
  const Chunk chunk(a, blockIdx.x / n_k_heads);
  if (chunk.count == 0) return;
  load_unit_rows(a, shared, chunk, k_head, warp, lane);
  __syncthreads();
  multiply_keys(shared, warp, lane);
  __syncthreads();
  for (int i = warp; i < group; i += WARPS) {
    factors_of_head(a, shared, chunk, a.tiled ? i * n_k_heads + k_head : k_head * group + i, warp, lane);
  }
}

// ---- From chunk to chunk

// Block: 32 columns of the state of a value head of a sequence, 4 warps. With g = lane / 4, t = lane % 4 a lane holds of the state, as sums
// of the tensor cores, rows 32 warp + 16 m + g and + 8, columns 8 n + 2 t and + 1; of products with tokens as rows its warp has tokens
// 16 (warp % 2) on and columns 16 (warp / 2) on.
// Shared memory: 73 KiB, dynamic. Moves: the columns of the slots read and written; a chunk's queries, keys and factors, 20.5 KiB, and its
// values and results.
struct Tiles {
  __align__(16) uint16_t q[C][QK_PITCH], k[C][QK_PITCH], inverse[C][SQUARE_PITCH], p[C][SQUARE_PITCH];
  __align__(16) float g[C];
};

struct Shared {
  Tiles tiles[2];
  float state[K][PITCH], r[C][PITCH], d[C][PITCH];
};

// The block's sequence, head and columns.
struct Columns {
  int seq, head, k_head, first_column, first_token, n_tokens, chunk;

  DEVICE explicit Columns(const DeltaChunksArgs& a) {
    const int n_heads = a.n_v_heads, n_slices = a.v_dim / N;
    head = blockIdx.x / n_slices % n_heads, seq = blockIdx.x / n_slices / n_heads;
    k_head = a.tiled ? head % a.n_k_heads : head / (n_heads / a.n_k_heads);
    first_column = blockIdx.x % n_slices * N;
    first_token = a.seq_starts[seq], n_tokens = static_cast<int>(a.seq_starts[seq + 1]) - first_token;
    chunk = first_chunk(a, seq);
  }
};

// Asks for what a chunk needs, from its first token `first` of the sequence on. Rows of tokens that there are not become zeros.
DEVICE void load_tiles(const DeltaChunksArgs& a, Tiles& to, const Columns& columns, int first, int tid) {
  constexpr int VECTORS = K / 8, SQUARE_VECTORS = C / 8;
  const int count = min(columns.n_tokens - first, C);
  const uint16_t* rows = a.unit_rows + (static_cast<size_t>(columns.first_token + first) * a.n_k_heads + columns.k_head) * 2 * K;
  for (int i = tid; i < 2 * C * VECTORS; i += CHUNK_THREADS) {
    const int token = i / (2 * VECTORS), is_key = i / VECTORS % 2, v = i % VECTORS;
    const uint16_t* from = rows + (token < count ? static_cast<size_t>(token) * a.n_k_heads * 2 * K : 0) + is_key * K + 8 * v;
    ptx::cp_async_16((is_key ? to.k : to.q)[token] + 8 * v, from, token < count ? 16 : 0);
  }
  const size_t place = static_cast<size_t>(columns.chunk + first / C) * a.n_v_heads + columns.head;
  const uint16_t* squares = a.squares + place * 2 * C * C;
  for (int i = tid; i < 2 * C * SQUARE_VECTORS; i += CHUNK_THREADS) {
    const int row = i / SQUARE_VECTORS, v = i % SQUARE_VECTORS;
    ptx::cp_async_16((row < C ? to.inverse[row] : to.p[row - C]) + 8 * v, squares + 8 * i, 16);
  }
  if (tid < C / 4) ptx::cp_async_16(to.g + 4 * tid, a.log_decays + place * C + 4 * tid, 16);
  ptx::cp_async_commit();
}

// A lane's place in products whose rows are tokens: rows `row` and `row` + 8, columns `column` + 8 n and one more, n in 0..2.
struct TokenRows {
  int g, t, row, column;
  DEVICE TokenRows(int warp, int lane) : g(lane / 4), t(lane % 4), row(warp % 2 * 16 + lane / 4), column(warp / 2 * 16 + lane % 4 * 2) {}
};

// sums += a chunk's matrix of halves times rows of floats, `inner` of them, a multiple of 8. The tensor cores' elements t and t + 4 are 2 t and
// 2 t + 1 here.
template <int A_PITCH>
DEVICE void multiply(float (&sums)[2][4], const uint16_t (*a)[A_PITCH], const float (*b)[PITCH], int inner, const TokenRows& at) {
#pragma unroll 4
  for (int i = 0; i < inner; i += 8) {
    uint32_t x[4];
    floats_of(word_at(a[at.row], i + 2 * at.t), x[0], x[2]), floats_of(word_at(a[at.row + 8], i + 2 * at.t), x[1], x[3]);
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const float* y = &b[i + 2 * at.t][at.column - 2 * at.t + 8 * n + at.g];
      ptx::mma_tf32(sums[n], x, __float_as_uint(y[0]), __float_as_uint(y[PITCH]));
    }
  }
}

// Values [tokens, 32] of a chunk as sums lie; zeros for tokens that there are not.
struct Values {
  float v[2][4];
  DEVICE void load(const DeltaChunksArgs& a, const Columns& columns, int first, const TokenRows& at) {
    const int start = 2 * a.n_k_heads * K + columns.head * a.v_dim + columns.first_column + at.column;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int token = first + at.row + 8 * h;
      const float* from = a.qkv + static_cast<size_t>(columns.first_token + token) * a.qkv_len + start;
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const float2 pair = token < columns.n_tokens ? *reinterpret_cast<const float2*>(from + 8 * n) : float2{0, 0};
        v[n][2 * h] = pair.x, v[n][2 * h + 1] = pair.y;
      }
    }
  }
};

DEVICE void store_rounded(float (*to)[PITCH], const float (&sums)[2][4], const TokenRows& at) {
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int j = 0; j < 4; j++) to[at.row + j / 2 * 8][at.column + 8 * n + j % 2] = __uint_as_float(ptx::f32_to_tf32(sums[n][j]));
  }
}

// A warp's 32 rows of the block's columns of a state.
struct State {
  float s[2][N / 8][4];

  template <class F>
  DEVICE static void for_each(int warp, int lane, F f) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
      for (int n = 0; n < N / 8; n++) {
#pragma unroll
        for (int j = 0; j < 4; j++) f(m, n, j, 32 * warp + 16 * m + lane / 4 + j / 2 * 8, 8 * n + lane % 4 * 2 + j % 2);
      }
    }
  }
  DEVICE static float* slot(const DeltaChunksArgs& a, const Columns& columns, uint32_t slot) {
    return a.state + ((static_cast<size_t>(slot) * a.n_v_heads + columns.head) * a.v_dim + columns.first_column) * K;
  }
  DEVICE void load(const DeltaChunksArgs& a, const Columns& columns, uint32_t from, int warp, int lane) {
    const float* x = slot(a, columns, from);
    for_each(warp, lane, [&](int m, int n, int j, int row, int column) { s[m][n][j] = from == NO_SLOT ? 0.0f : x[column * K + row]; });
  }
  DEVICE void store(const DeltaChunksArgs& a, const Columns& columns, uint32_t to, int warp, int lane) const {
    float* x = slot(a, columns, to);
    for_each(warp, lane, [&](int m, int n, int j, int row, int column) { x[column * K + row] = s[m][n][j]; });
  }
  DEVICE void share(float (*to)[PITCH], int warp, int lane) const {
    for_each(warp, lane, [&](int m, int n, int j, int row, int column) { to[row][column] = __uint_as_float(ptx::f32_to_tf32(s[m][n][j])); });
  }

  // Becomes the state after the first `count` tokens of the chunk.
  DEVICE void advance(const Tiles& tiles, const float (*d)[PITCH], int count, int warp, int lane) {
    const int g = lane / 4, t = lane % 4;
    const float end = tiles.g[count - 1], decay = expf(end);
    for_each(warp, lane, [&](int m, int n, int j, int, int) { s[m][n][j] *= decay; });
#pragma unroll
    for (int i = 0; i < C; i += 8) {
      const int token = i + 2 * t;
      const float f0 = token < count ? expf(end - tiles.g[token]) : 0.0f, f1 = token + 1 < count ? expf(end - tiles.g[token + 1]) : 0.0f;
      uint32_t y[N / 8][2];
#pragma unroll
      for (int n = 0; n < N / 8; n++) {
        y[n][0] = ptx::f32_to_tf32(f0 * d[token][8 * n + g]), y[n][1] = ptx::f32_to_tf32(f1 * d[token + 1][8 * n + g]);
      }
#pragma unroll
      for (int m = 0; m < 2; m++) {
        const int row = 32 * warp + 16 * m + g;
        const auto key = [&](int of, int r) { return __float_as_uint(ptx::f16_to_f32(tiles.k[of][r])); };
        const uint32_t x[4] = {key(token, row), key(token, row + 8), key(token + 1, row), key(token + 1, row + 8)};
#pragma unroll
        for (int n = 0; n < N / 8; n++) ptx::mma_tf32(s[m][n], x, y[n][0], y[n][1]);
      }
    }
  }
};

DEVICE void store_results(const DeltaChunksArgs& a, const Columns& columns, int first, const float (&y)[2][4], const TokenRows& at) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int token = first + at.row + 8 * h;
    if (token >= columns.n_tokens) continue;
    float* to = a.y + (static_cast<size_t>(columns.first_token + token) * a.n_v_heads + columns.head) * a.v_dim + columns.first_column + at.column;
#pragma unroll
    for (int n = 0; n < 2; n++) *reinterpret_cast<float2*>(to + 8 * n) = float2{y[n][2 * h], y[n][2 * h + 1]};
  }
}

// The chunk's results, and in shared memory D, from the state there.
DEVICE void compute_chunk(Shared& shared, const Tiles& tiles, const Values& values, float (&y)[2][4], const TokenRows& at) {
  const float decays[2] = {expf(tiles.g[at.row]), expf(tiles.g[at.row + 8])};
  float r[2][4] = {}, d[2][4] = {};
  multiply(r, tiles.k, shared.state, K, at);
  multiply(y, tiles.q, shared.state, K, at);
#pragma unroll
  for (int n = 0; n < 2; n++) {
#pragma unroll
    for (int j = 0; j < 4; j++) r[n][j] = fmaf(-decays[j / 2], r[n][j], values.v[n][j]), y[n][j] *= decays[j / 2];
  }
  store_rounded(shared.r, r, at);
  __syncthreads();
  // What is above the diagonal is 0.
  const int inner = at.row / 16 * 16 + 16;
  multiply(d, tiles.inverse, shared.r, inner, at);
  store_rounded(shared.d, d, at);
  __syncthreads();
  multiply(y, tiles.p, shared.d, inner, at);
}

KERNEL(delta_chunks, DeltaChunksArgs, CHUNK_THREADS) {
  ptx::launch_dependents();
  DYNAMIC_SHARED(dynamic);
  Shared& shared = *reinterpret_cast<Shared*>(dynamic);
  static_assert(sizeof(Shared) <= CHUNK_SHARED_BYTES, "the launcher asks for less");
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const Columns columns(a);
  const TokenRows at(warp, lane);
  SeqState slots(a.batch, a.states, columns.seq);
  State state;
  // Slots were written steps ago.
  state.load(a, columns, slots.from, warp, lane);
  ptx::griddepcontrol_wait();
  load_tiles(a, shared.tiles[0], columns, 0, tid);
  Values values;
  values.load(a, columns, 0, at);
  for (int first = 0; first < columns.n_tokens; first += C) {
    const Tiles& tiles = shared.tiles[first / C % 2];
    ptx::cp_async_wait<0>();
    state.share(shared.state, warp, lane);
    // All warps are done with the chunk before.
    __syncthreads();
    const int next = first + C, count = min(columns.n_tokens - first, C);
    if (next < columns.n_tokens) load_tiles(a, shared.tiles[next / C % 2], columns, next, tid);
    float y[2][4] = {};
    compute_chunk(shared, tiles, values, y, at);
    values.load(a, columns, next, at);
    store_results(a, columns, first, y, at);
    for (; slots.after < static_cast<uint32_t>(first + count); slots.advance()) {
      State within = state;
      within.advance(tiles, shared.d, static_cast<int>(slots.after) - first, warp, lane);
      within.store(a, columns, slots.slot, warp, lane);
    }
    state.advance(tiles, shared.d, count, warp, lane);
    for (; slots.after == static_cast<uint32_t>(first + count); slots.advance()) state.store(a, columns, slots.slot, warp, lane);
  }
}
