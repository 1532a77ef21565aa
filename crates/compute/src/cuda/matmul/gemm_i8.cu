// Matmuls of any number of rows of activations with packed weights on the integer tensor cores, with the bits that small_m.cu has for each
// row: activations are rounded to 8 bits by the same kernel, sums over 256 columns are the same, and floats are added in the same order.
//
// A block owns a tile of outputs, 16 for each of its warps, with 8 N rows of activations, and one of the parts that the columns are cut into.
// Warp w has outputs 16 w to 16 w + 15 of the tile, of a gate 8 of its own and 8 of up's, and all rows: it unpacks 256 columns of its weights
// once, and multiplies them with the rows of one slot of 8 after the other. All threads copy: a stage of the ring has 256 columns, those of
// the weights' vectors and all of the activations. What comes after a group's vectors (packed.cuh), scales mostly, is brought once for the
// group, to one of two rooms.
//
// The blocks of a tile's parts leave their sums in global memory, and the one that is done last adds them up in the order of parts.
//
// Shared memory: for N = 16 two stages of OUTS (64 vectors + 16) + 2560 N bytes, else three; twice OUTS rows of a group's rest.
// Moves: the weights once for each 8 N rows of activations; these, 10 bytes for each 8, once for each tile of outputs.
#include "gemm.cuh"
#include "gemm_i8_args.cuh"
#include "small_m.cuh"

constexpr int WARP_OUTS = 16, SLOT_ROWS = 8;
constexpr int MAX_THREADS = 256;

// Stages of the ring of a kernel for N slots of rows.
template <int N>
constexpr int STAGES = N == 16 ? 2 : 3;

// The work of a block, and where its things are in shared memory.
struct GemmI8Block {
  uint8_t *ring, *rest;     // [STAGES] stages; [2, outputs, rest_pitch]
  const uint8_t** rows;     // of weights, [outputs]
  const uint32_t* table;    // of the part's type
  const float* factors;     // [rows], where a norm comes before
  int tile, part_of_columns;
  int first, last;          // blocks of 256 columns
  int first_out, first_row; // of the part of the matrix, and of the activations
  bool gate;
};

// Which row of weights is row i of the tile: the last one where outputs end.
DEVICE const uint8_t* weights_row(const GemmI8Args& a, const GemmI8Part& part, const GemmI8Block& b, int i) {
  if (!b.gate) return part.w + static_cast<size_t>(min(b.first_out + i, static_cast<int>(part.n_out) - 1)) * part.row_bytes;
  const GemmI8Part& half = a.parts[i % WARP_OUTS / 8];
  const int out = b.first_out + i / WARP_OUTS * 8 + i % 8;
  return half.w + static_cast<size_t>(min(out, static_cast<int>(part.n_out) - 1)) * half.row_bytes;
}

// Asks for what comes after a group's vectors, so many times 16 bytes of each row.
DEVICE void copy_rest(const GemmI8Args& a, const GemmI8Block& b, size_t from, uint8_t* to, int chunks) {
#pragma unroll 2
  for (int i = ptx::anew(threadIdx.x); i < static_cast<int>(blockDim.x) / 2 * chunks; i += blockDim.x) {
    const int row = i / chunks, c = i % chunks;
    ptx::cp_async_16(to + row * a.rest_pitch + c * 16, b.rows[row] + from + c * 16, 16);
  }
}

// Asks for the weights of a block of columns: vectors to the stage, and the rest of a group with the first of its blocks.
template <class Packed>
DEVICE void copy_weights(const GemmI8Args& a, const GemmI8Block& b, int block, uint8_t* stage) {
  constexpr int VECTORS = Packed::Fragment::VECTORS, PITCH = 64 * VECTORS + 16, CHUNKS = 4 * VECTORS;
  const int group = block / 8, at = block % 8 * 4, n_pieces = a.n_blocks * 4, size = min(n_pieces - group * GROUP, GROUP);
  const size_t start = static_cast<size_t>(group) * Packed::bytes(GROUP);
  // Two threads have an output. What follows from their number is computed here, since registers are scarce.
  const int tid = ptx::anew(threadIdx.x);
#pragma unroll
  for (int j = 0; j < CHUNKS / 2; j++) {
    const int i = tid + j * blockDim.x, row = i / CHUNKS, c = i % CHUNKS;
    ptx::cp_async_16(stage + row * PITCH + c * 16, b.rows[row] + start + (c / 4 * size + at + c % 4) * 16, 16);
  }
  if (at != 0 && block != b.first) return;
  constexpr int REST = (Packed::bytes(GROUP) - VECTORS * GROUP * 16) / 16;
  uint8_t* to = b.rest + group % 2 * (blockDim.x / 2) * a.rest_pitch;
  if (size == GROUP) copy_rest(a, b, start + VECTORS * GROUP * 16, to, REST);
  else copy_rest(a, b, start + VECTORS * size * 16, to, (Packed::bytes(size) - VECTORS * size * 16) / 16);
}

// Asks for the activations of a block of columns, which lie one after the other.
template <int N>
DEVICE void copy_activations(const GemmI8Args& a, int block, uint8_t* stage) {
  constexpr int CHUNKS = N * sizeof(XBlock) / 16;
  const XBlock* from = a.x + (static_cast<size_t>(blockIdx.y) * a.n_blocks + block) * N;
#pragma unroll 5
  for (int i = ptx::anew(threadIdx.x); i < CHUNKS; i += blockDim.x) ptx::cp_async_16(stage + i * 16, reinterpret_cast<const uint8_t*>(from) + i * 16, 16);
}

// Adds the products of a block of columns to the warp's sums.
template <class Packed, int N>
DEVICE void multiply_block(const GemmI8Args& a, const GemmI8Block& b, int block, const uint8_t* stage, const XBlock* x, float (&sums)[N][4],
                           int warp, unsigned lane) {
  lane = ptx::anew(lane);
  typedef typename Packed::SmallM P;
  constexpr int VECTORS = Packed::Fragment::VECTORS, PITCH = 64 * VECTORS + 16;
  constexpr bool LONE_VECTOR = VECTORS == 1;
  const unsigned t = lane % 4;
  const int group = block / 8, at = block % 8 * 4, size = min(static_cast<int>(a.n_blocks) * 4 - group * GROUP, GROUP);
  const uint8_t* vectors = stage + warp * WARP_OUTS * PITCH;
  // As if the group's vectors were before its rest.
  const uint8_t* rest = b.rest + (group % 2 * (blockDim.x / 2) + warp * WARP_OUTS + lane / 4) * a.rest_pitch - VECTORS * size * 16;
  const uint8_t *row0 = rest, *row1 = rest + 8 * a.rest_pitch;
  P p;
  if constexpr (Packed::TABLE > 0) p.table = b.table;
  p.take(row0, row1, size, at + t);
  uint32_t weights[4][2][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t raw[4] = {};
    const uint8_t* matrices = vectors + lane % 16 * PITCH + (LONE_VECTOR ? 0 : lane / 16 * 64) + i * 16;
    if constexpr (Packed::TABLE == 0) ptx::ldmatrix_x4(raw, matrices);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (P::UNPACKED) {
        if (h == 1) ptx::ldmatrix_x4(raw, matrices + 128);
#pragma unroll
        for (int j = 0; j < 4; j++) weights[i][h][j] = raw[j];
      } else if constexpr (Packed::UNPACKS_VECTORS) {
        const uint8_t* row = vectors + lane / 4 * PITCH;
        p.unpack(weights[i][h], raw, h, row, row + 8 * PITCH, 4, i, t);
      } else {
        p.unpack(weights[i][h], raw, h, row0, row1, size, at + i, t);
      }
    }
  }
  uint32_t words[4][P::WORDS];
#pragma unroll
  for (int i = 0; i < 4; i++) {
#pragma unroll
    for (int j = 0; j < P::WORDS; j++) words[i][j] = __shfl_sync(ALL_LANES, p.words[j], (lane & 28) + i);
  }
  int none[P::PARTS][4];
#pragma unroll
  for (int i = 0; i < 4 * P::PARTS; i++) none[i / 4][i % 4] = P::FIRST;
#pragma unroll
  for (int n = 0; n < N; n++) {
    Columns<8> columns;
    columns.take(x + n, lane);
    typename P::Sum scaled[2][4] = {};
#pragma unroll
    for (int step = 0; step < 4; step++) {
      int d[2][P::PARTS][4];
#pragma unroll
      for (int h = 0; h < 2; h++) P::multiply(d[h], weights[step][h], columns.q[2 * step + h], none);
      add_scaled<P, 8>(scaled, d, words[step], columns, step, t);
    }
    float of_block[4];
    finish_columns<P, 8>(of_block, p, scaled, columns, lane);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[n][j] += of_block[j];
  }
}

template <class Packed, int N>
DEVICE void multiply(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4], int warp, unsigned lane) {
  constexpr int PITCH = 64 * Packed::Fragment::VECTORS + 16, S = STAGES<N>;
  const int w_bytes = blockDim.x / 2 * PITCH, stage_bytes = w_bytes + N * static_cast<int>(sizeof(XBlock));
  const auto stage_of = [&](int block) { return b.ring + (block - b.first) % S * stage_bytes; };
  // Weights do not depend on the kernel before.
#pragma unroll 1
  for (int i = 0; i < S - 1; i++) {
    if (b.first + i < b.last) copy_weights<Packed>(a, b, b.first + i, stage_of(b.first + i));
  }
  ptx::griddepcontrol_wait();
#pragma unroll 1
  for (int i = 0; i < S - 1; i++) {
    if (b.first + i < b.last) copy_activations<N>(a, b.first + i, stage_of(b.first + i) + w_bytes);
    ptx::cp_async_commit();
  }
#pragma unroll 1
  for (int block = b.first; block < b.last; block++) {
    ptx::cp_async_wait<S - 2>();
    __syncthreads();
    const int next = block + S - 1;
    if (next < b.last) {
      copy_weights<Packed>(a, b, next, stage_of(next));
      copy_activations<N>(a, next, stage_of(next) + w_bytes);
    }
    ptx::cp_async_commit();
    const uint8_t* stage = stage_of(block);
    multiply_block<Packed, N>(a, b, block, stage, reinterpret_cast<const XBlock*>(stage + w_bytes), sums, warp, lane);
  }
  ptx::cp_async_wait<0>();
}

// Leaves the sums of a part of the columns, and returns true, with those of all parts, in the block that is done last.
template <int N>
DEVICE bool add_parts(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4]) {
  __shared__ bool is_last;
  const int tid = threadIdx.x, n_threads = blockDim.x, n_parts = a.n_parts_of_columns;
  const size_t tile = static_cast<size_t>(blockIdx.y) * a.n_tiles + b.tile;
  float4* const partial = a.partial + tile * n_parts * N * n_threads + tid;
#pragma unroll
  for (int n = 0; n < N; n++) partial[(b.part_of_columns * N + n) * n_threads] = float4{sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
  __syncthreads();
  if (tid == 0) {
    is_last = ptx::count_up(a.arrived + tile) == static_cast<uint32_t>(n_parts - 1);
    if (is_last) a.arrived[tile] = 0;
  }
  __syncthreads();
  if (!is_last) return false;
#pragma unroll
  for (int i = 0; i < 4 * N; i++) sums[i / 4][i % 4] = 0;
  // Some loads at once, as registers allow.
  constexpr int AT_ONCE = N < 8 ? N : 8;
#pragma unroll 1
  for (int p = 0; p < n_parts; p++) {
#pragma unroll
    for (int first = 0; first < N; first += AT_ONCE) {
      float4 v[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) v[i] = __ldcg(partial + (p * N + first + i) * n_threads);
#pragma unroll
      for (int i = 0; i < AT_ONCE; i++) {
        float(&sum)[4] = sums[first + i];
        sum[0] += v[i].x, sum[1] += v[i].y, sum[2] += v[i].z, sum[3] += v[i].w;
      }
    }
  }
  return true;
}

template <int N>
DEVICE void store(const GemmI8Args& a, const GemmI8Part& part, const GemmI8Block& b, const float (&sums)[N][4], int warp, unsigned lane) {
  const int n_out = part.n_out, g = lane / 4, out = b.first_out + warp * (b.gate ? 8 : WARP_OUTS) + g;
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
      const int of_tile = n * SLOT_ROWS + lane % 4 * 2 + c, row = b.first_row + of_tile;
      if (row >= static_cast<int>(a.m)) continue;
      const float factor = a.squares ? b.factors[of_tile] : 1.0f;
      float* y = a.y + static_cast<size_t>(row) * a.y_stride;
      if (b.gate) {
        if (out < n_out) y[out] = activate_gate(a.activation, __fmul_rn(sums[n][c], factor)) * __fmul_rn(sums[n][2 + c], factor);
        continue;
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (out + 8 * half >= n_out) continue;
        float* to = y + part.first_out + out + 8 * half;
        float sum = __fmul_rn(sums[n][2 * half + c], factor);
        if (a.bias) sum += a.bias[part.first_out + out + 8 * half];
        if (a.epilogue == ADD) sum += *to;
        *to = sum;
      }
    }
  }
}

// Whether the kernel for N slots takes a type: with the most slots, those that are met most often, since it has no registers for all.
template <class Packed, int N>
DEVICE constexpr bool takes(int layout) {
  return Packed::OF_GEMM_I8 && (N < 16 || layout < FIRST_PACKED + N_COMMON);
}

template <int N>
DEVICE void gemm_i8(const GemmI8Args& a) {
  DYNAMIC_SHARED(shared);
  ptx::launch_dependents();
  __shared__ float factors[N * SLOT_ROWS];
  __shared__ uint32_t table[MAX_TABLE];
  __shared__ const uint8_t* rows[MAX_THREADS / 2];
  const int tid = threadIdx.x, warp = tid / 32, n_threads = blockDim.x, n_blocks = a.n_blocks;
  const unsigned lane = tid % 32;
  GemmI8Block b;
  b.gate = a.epilogue == GATE;
  b.tile = blockIdx.x % a.n_tiles, b.part_of_columns = blockIdx.x / a.n_tiles;
  uint32_t p = 0;
  if (!b.gate) {
    while (p + 1 < a.n_parts && b.tile >= static_cast<int>(a.parts[p + 1].first_tile)) p++;
  }
  const GemmI8Part& part = a.parts[p];
  b.first_out = (b.tile - static_cast<int>(part.first_tile)) * (b.gate ? n_threads / 4 : n_threads / 2);
  b.first_row = blockIdx.y * N * SLOT_ROWS;
  b.first = b.part_of_columns * static_cast<int>(a.part_blocks), b.last = min(n_blocks, b.first + static_cast<int>(a.part_blocks));
  b.rest = shared, b.ring = shared + n_threads * a.rest_pitch;
  b.table = table, b.factors = factors, b.rows = rows;
  if (tid < n_threads / 2) rows[tid] = weights_row(a, part, b, tid);
#define FILL_TABLE(Q) \
  case LAYOUT_##Q: fill_table<Packed_##Q>(table, tid, n_threads); break;
  switch (part.layout) { FOR_EACH_PACKED(FILL_TABLE) }
#undef FILL_TABLE
  __syncthreads();
  float sums[N][4] = {};
#define MULTIPLY(Q)                                                                                                 \
  case LAYOUT_##Q:                                                                                                  \
    if constexpr (takes<Packed_##Q, N>(LAYOUT_##Q)) multiply<Packed_##Q, N>(a, b, sums, warp, lane);                 \
    break;
  switch (part.layout) { FOR_EACH_PACKED(MULTIPLY) }
#undef MULTIPLY
  if (a.n_parts_of_columns > 1 && !add_parts<N>(a, b, sums)) return;
  if (a.squares) {
    // Four lanes have a row.
#pragma unroll 1
    for (int i = tid / 4; i < N * SLOT_ROWS; i += n_threads / 4) {
      const int row = b.first_row + i;
      const float factor = norm_factor(a.squares, row < static_cast<int>(a.m) ? row : -1, n_blocks, tid % 4, a.inv_n, a.eps);
      if (tid % 4 == 0) factors[i] = factor;
    }
    __syncthreads();
  }
  store<N>(a, part, b, sums, warp, lane);
}

#define GEMM_I8(N) \
  KERNEL_1(gemm_i8_##N, GemmI8Args, MAX_THREADS) { gemm_i8<N>(a); }
GEMM_I8(2) GEMM_I8(4) GEMM_I8(8) GEMM_I8(16)
