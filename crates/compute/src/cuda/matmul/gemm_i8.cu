// Matmuls of any number of rows of activations with packed weights on the integer tensor cores, with the bits that small_m.cu has for each
// row: activations are rounded to 8 bits by the same kernel, sums over 256 columns are the same, and floats are added in the same order.
//
// What a block owns gemm_i8.cuh says. A warp unpacks 256 columns of its weights once, and multiplies them with the rows of one slot of 8
// after the other. All threads copy.
//
// Shared memory: for N = 16 two stages of OUTS (64 vectors + 16) + 2560 N bytes, else three; twice OUTS rows of a group's rest.
// Moves: the weights once for each 8 N rows of activations; these, 10 bytes for each 8, once for each tile of outputs.
#include "gemm_i8.cuh"

constexpr int MAX_THREADS = 256;

// Stages of the ring of a kernel for N slots of rows.
template <int N>
constexpr int STAGES = N == 16 ? 2 : 3;

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
  const unsigned t = lane % 4;
  const WarpWeights<Packed> w(a, b, block, stage, warp, lane);
  uint32_t weights[4][2][4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t raw[4] = {};
    w.unpack(weights[i][0], raw, i, 0);
    w.unpack(weights[i][1], raw, i, 1);
  }
  uint32_t words[4][P::WORDS];
#pragma unroll
  for (int i = 0; i < 4; i++) w.words(words[i], i);
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
    finish_columns<P, 8>(of_block, w.p, scaled, columns, lane);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[n][j] += of_block[j];
  }
}

template <class Packed, int N>
DEVICE void multiply(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4], int warp, unsigned lane) {
  constexpr int PITCH = 64 * Packed::Fragment::VECTORS + 16, S = STAGES<N>;
  const int w_bytes = b.n_outs * PITCH, stage_bytes = w_bytes + N * static_cast<int>(sizeof(XBlock));
  const auto stage_of = [&](int block) { return b.ring + (block - b.first) % S * stage_bytes; };
  // Weights do not depend on the kernel before.
#pragma unroll 1
  for (int i = 0; i < S - 1; i++) {
    if (b.first + i < b.last) copy_weights<Packed, 2>(a, b, b.first + i, stage_of(b.first + i), threadIdx.x);
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
      copy_weights<Packed, 2>(a, b, next, stage_of(next), threadIdx.x);
      copy_activations<N>(a, next, stage_of(next) + w_bytes);
    }
    ptx::cp_async_commit();
    const uint8_t* stage = stage_of(block);
    multiply_block<Packed, N>(a, b, block, stage, reinterpret_cast<const XBlock*>(stage + w_bytes), sums, warp, lane);
  }
  ptx::cp_async_wait<0>();
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
  const int tid = threadIdx.x, warp = tid / 32, n_threads = blockDim.x;
  const unsigned lane = tid % 32;
  GemmI8Block b = GemmI8Block::of<N>(a, n_threads / 2, {blockIdx.x, blockIdx.y});
  b.rest = shared, b.ring = shared + n_threads * a.rest_pitch;
  b.table = table, b.rows = rows;
  if (tid < n_threads / 2) rows[tid] = weights_row(a, b, tid);
  fill_table_of(b, table);
  __syncthreads();
  float sums[N][4] = {};
#define MULTIPLY(Q)                                                                                                 \
  case LAYOUT_##Q:                                                                                                  \
    if constexpr (takes<Packed_##Q, N>(LAYOUT_##Q)) multiply<Packed_##Q, N>(a, b, sums, warp, lane);                 \
    break;
  switch (b.part->layout) { FOR_EACH_PACKED(MULTIPLY) }
#undef MULTIPLY
  __syncthreads();
  finish<N, 8>(a, b, sums, reinterpret_cast<float*>(b.ring), factors, tid, [] { __syncthreads(); });
}

#define GEMM_I8(N) \
  KERNEL_1(gemm_i8_##N, GemmI8Args, MAX_THREADS) { gemm_i8<N>(a); }
GEMM_I8(2) GEMM_I8(4) GEMM_I8(8) GEMM_I8(16)
