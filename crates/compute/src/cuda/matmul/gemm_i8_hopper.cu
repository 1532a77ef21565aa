// gemm_i8.cu for Hopper, with the same bits: products are those of wgmma, whose first operand is weights in registers, and whose second is
// activations in shared memory, as they lie in global memory.
//
// What a block owns gemm_i8.cuh says. Two groups of 4 warps have 64 outputs each. Four more warps keep the ring filled: 256 columns of
// weights, which they copy, and of activations, which the copy engine brings.
//
// Of types whose blocks of 256 have integers as scales, weights times scales are the first operand. They have more than 8 bits, so that they
// are two digits (`Digits`): first the high ones of all 256 columns are multiplied, their sums times the digits' base are what those of the low
// ones are added to. All that is in integers, and exact. Of other types the products of 32 columns are multiplied with scales, as small_m.cuh
// has it.
//
// Shared memory: twice 128 rows of a group's rest; stages of 128 (64 vectors + 16) + 2560 N bytes.
// Moves: as gemm_i8.cu.
#include "../common/hopper_i8.cuh"
#include "../common/pipeline.cuh"
#include "gemm_i8.cuh"

// Outputs of a block; threads that multiply, that copy, and all.
constexpr int OUTS = 128, MULTIPLIERS = 256, COPIERS = 128, THREADS = MULTIPLIERS + COPIERS;
// Registers of a thread that multiplies, and of one that copies.
constexpr int REGISTERS = 232, COPY_REGISTERS = 40;
constexpr int MAX_STAGES = 8;

// Bytes with signs times scales, sums of which are those of high digits times 2^SHIFT and those of low digits. The scales' magnitude is at most
// 128. LOW: what products of a piece's first half are multiplied with.
template <class P, int LOW>
struct WideDigits {
  static constexpr bool SIGNED = true;
  static constexpr int SHIFT = 8;
  DEVICE static void prepare(P&) {}
  // Digits of the weights of half h of a piece: the high ones take the weights' place.
  DEVICE static void make(uint32_t (&a)[4], uint32_t (&low)[4], const uint32_t (&words)[P::WORDS], int h) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t scale = P::scale(words, h, P::PARTS == 2 ? j / 2 : 0, j % 2) * (h == 0 ? LOW : 1);
      // Two products in 16 bits each, plus 128 for either digit, so that none reaches into the other.
      const uint32_t x = a[j] ^ 0x80808080u, offset = 0x80808080u - scale * 0x00800080u;
      const uint32_t even = ptx::permute(x, 0, 0x4240) * scale + offset, odd = ptx::permute(x, 0, 0x4341) * scale + offset;
      a[j] = ptx::permute(even, odd, 0x7351) ^ 0x80808080u, low[j] = ptx::permute(even, odd, 0x6240) ^ 0x80808080u;
    }
  }
};

// Bytes without signs, of up to five bits, times scales of six bits, which are two digits of three bits: products with either have no more than
// 8 bits. HIGH_SHIFT: bits that a piece's second half is shifted by.
template <class P, int HIGH_SHIFT>
struct DigitsOfScales {
  static constexpr bool SIGNED = false;
  static constexpr int SHIFT = 3;
  // Products have the units of the second half, not shifted.
  DEVICE static void prepare(P& p) { p.d[0] *= 1 << HIGH_SHIFT, p.d[1] *= 1 << HIGH_SHIFT; }
  DEVICE static void make(uint32_t (&a)[4], uint32_t (&low)[4], const uint32_t (&words)[1], int h) {
    const uint32_t of_high[1] = {words[0] >> 3 & 0x07070707}, of_low[1] = {words[0] & 0x07070707};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const uint32_t x = h == 1 ? a[j] >> HIGH_SHIFT : a[j];
      a[j] = x * static_cast<uint32_t>(P::scale(of_high, h, 0, j % 2)), low[j] = x * static_cast<uint32_t>(P::scale(of_low, h, 0, j % 2));
    }
  }
};

template <class Packed>
struct Digits : WideDigits<typename Packed::SmallM, 1> {};
template <>
struct Digits<Packed_Q2_K> : WideDigits<Packed_Q2_K::SmallM, 4> {};
template <>
struct Digits<Packed_Q4_K> : DigitsOfScales<Packed_Q4_K::SmallM, 4> {};
template <>
struct Digits<Packed_Q5_K> : DigitsOfScales<Packed_Q5_K::SmallM, 0> {};

// The activations of sub-block i, 32 columns, of all slots from this address on.
DEVICE uint64_t sub_block(uint32_t x, int i) { return ptx::smem_desc_plain(x + i * 256, 128, sizeof(XBlock)); }

// Adds the products of a block of columns to the sums, of types with integer scales.
template <class Packed, int N>
DEVICE void multiply_integers(WarpWeights<Packed>& w, const XBlock* x, float (&sums)[N][4]) {
  typedef typename Packed::SmallM P;
  typedef Digits<Packed> D;
  const uint32_t x_at = ptx::shared_address(x);
  D::prepare(w.p);
  // With the most rows, registers suffice for the sums of one digit, and the high digits of two pieces, of which one is multiplied while the
  // other is made.
  constexpr int SUMS = N < 16 ? 2 : 1, PIECES = N < 16 ? 4 : 2;
  int products[SUMS][N][4];
  uint32_t high[PIECES][2][4], low[4][2][4];
  const auto add = [&](int(&to)[N][4], const uint32_t (&digits)[2][4], int i, bool adds) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (D::SIGNED) ptx::wgmma_rs_s8(to, digits[h], sub_block(x_at, 2 * i + h), adds || h > 0);
      else ptx::wgmma_rs_u8(to, digits[h], sub_block(x_at, 2 * i + h), adds || h > 0);
    }
  };
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint32_t(&now)[2][4] = high[i % PIECES];
    uint32_t words[P::WORDS], raw[4] = {};
    w.words(words, i);
#pragma unroll
    for (int h = 0; h < 2; h++) {
      w.unpack(now[h], raw, i, h);
      D::make(now[h], low[i][h], words, h);
    }
    ptx::wgmma_fence();
    add(products[0], now, i, i > 0);
    if constexpr (SUMS == 2) add(products[1], low[i], i, i > 0);
    ptx::wgmma_commit();
    if constexpr (PIECES == 2) ptx::wgmma_wait<1>();
  }
  ptx::wgmma_wait<0>();
  if constexpr (SUMS == 1) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) products[0][i / 4][i % 4] *= 1 << D::SHIFT;
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; i++) add(products[0], low[i], i, true);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
    Columns<8> columns;
    columns.take_tile(x + n, w.lane);
    int scaled[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      scaled[1][j] = products[0][n][j];
      if constexpr (SUMS == 2) scaled[1][j] = scaled[1][j] * (1 << D::SHIFT) + products[1][n][j];
    }
    float of_block[4];
    finish_columns<P, 8>(of_block, w.p, scaled, columns, w.lane);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[n][j] += of_block[j];
  }
}

// The same of types with scales that are floats. Each half of a piece, or each of the PARTS of one that have scales of their own, is an item.
template <class Packed, int N>
DEVICE void multiply_floats(WarpWeights<Packed>& w, const XBlock* x, float (&sums)[N][4]) {
  typedef typename Packed::SmallM P;
  const uint32_t x_at = ptx::shared_address(x);
  float scaled[2][N][4] = {};
#pragma unroll 1
  for (int i = 0; i < 4; i++) {
    uint32_t words[P::WORDS], raw[4] = {};
    w.words(words, i);
    // Two items at once, of which one is added up while the other is multiplied.
#pragma unroll
    for (int first = 0; first < 2 * P::PARTS; first += 2) {
      int products[2][N][4];
      uint32_t weights[2][4];
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int h = (first + k) / P::PARTS;
        if (k == 0 || P::PARTS == 1) w.unpack(weights[k], raw, i, h);
        if constexpr (P::PARTS == 2) {
          if (k == 0) {
            weights[1][0] = weights[1][1] = 0, weights[1][2] = weights[0][2], weights[1][3] = weights[0][3];
            weights[0][2] = weights[0][3] = 0;
          }
        }
        ptx::wgmma_fence();
        ptx::wgmma_rs_s8(products[k], weights[k], sub_block(x_at, 2 * i + h), 0);
        ptx::wgmma_commit();
      }
#pragma unroll
      for (int k = 0; k < 2; k++) {
        const int h = (first + k) / P::PARTS, part = (first + k) % P::PARTS;
        if (k == 0) ptx::wgmma_wait<1>();
        else ptx::wgmma_wait<0>();
        const float scale[2] = {P::scale(words, h, part, 0), P::scale(words, h, part, 1)};
#pragma unroll
        for (int n = 0; n < N; n++) {
          const float2 x_scale = reinterpret_cast<const float2*>(x[n].scale[2 * i + h])[w.lane % 4];
#pragma unroll
          for (int j = 0; j < 4; j++) {
            P::add(scaled[h][n][j], products[k][n][j] + P::FIRST, scale[j / 2], j % 2 ? x_scale.y : x_scale.x);
          }
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < N; n++) {
#pragma unroll
    for (int j = 0; j < 4; j++) sums[n][j] += w.p.total(scaled[0][n][j], scaled[1][n][j], 0.0f, j / 2);
  }
}

// The stages of the ring have activations and then weights.
template <class Packed, int N>
struct Stage {
  static constexpr int X_BYTES = N * sizeof(XBlock), BYTES = X_BYTES + OUTS * WarpWeights<Packed>::PITCH;
};

template <class Packed, int N>
DEVICE void multiply(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4], Ring ring, int warp, unsigned lane) {
  typedef Stage<Packed, N> S;
#pragma unroll 1
  for (int block = b.first; block < b.last; block++, ring.next()) {
    const uint8_t* stage = b.ring + ring.stage * S::BYTES;
    const XBlock* x = reinterpret_cast<const XBlock*>(stage);
    ring.wait_full();
    WarpWeights<Packed> w(a, b, block, stage + S::X_BYTES, warp, ptx::anew(lane));
    if constexpr (Packed::SmallM::OF_32) multiply_floats<Packed, N>(w, x, sums);
    else multiply_integers<Packed, N>(w, x, sums);
    __syncwarp();
    ring.release(lane);
  }
}

template <class Packed, int N>
DEVICE void copy(const GemmI8Args& a, const GemmI8Block& b, Ring ring, int copier) {
  typedef Stage<Packed, N> S;
  const auto copy_w = [&](int block) {
    copy_weights<Packed, 1>(a, b, block, b.ring + ring.stage * S::BYTES + S::X_BYTES, copier);
    ptx::cp_async_arrive(ring.full().at);
  };
  const auto copy_x = [&](int block, Ring to) {
    if (copier != 0) return;
    to.expect(S::X_BYTES);
    const XBlock* from = a.x + (static_cast<size_t>(blockIdx.y) * a.n_blocks + block) * N;
    ptx::cp_async_bulk(ptx::shared_address(b.ring + to.stage * S::BYTES), from, S::X_BYTES, to.full().at);
  };
  const int early = min(b.last, b.first + static_cast<int>(a.n_stages));
  Ring x_ring = ring;
#pragma unroll 1
  for (int block = b.first; block < b.last; block++, ring.next()) {
    ring.wait_empty();
    copy_w(block);
    // Weights do not depend on the kernel before.
    if (block + 1 < early) continue;
    if (block + 1 == early) ptx::griddepcontrol_wait();
#pragma unroll 1
    for (int of = block < early ? b.first : block; of <= block; of++, x_ring.next()) copy_x(of, x_ring);
  }
}

// Whether the kernel for N slots takes a type: with the most slots there are no registers for sums of floats.
template <class Packed, int N>
DEVICE constexpr bool takes() {
  return Packed::OF_GEMM_I8 && (N < 16 || !Packed::SmallM::OF_32);
}

template <int N>
DEVICE void gemm_i8_hopper(const GemmI8Args& a) {
#if __CUDA_ARCH__ == 900
  DYNAMIC_SHARED_TILES(shared);
  ptx::launch_dependents();
  __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
  __shared__ float factors[N * SLOT_ROWS];
  __shared__ uint32_t table[MAX_TABLE];
  __shared__ const uint8_t* rows[OUTS];
  const int tid = threadIdx.x, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const unsigned lane = tid % 32;
  GemmI8Block b = GemmI8Block::of<N>(a, OUTS, {blockIdx.x, blockIdx.y});
  b.rest = shared, b.ring = shared + 2 * OUTS * a.rest_pitch;
  b.table = table, b.rows = rows;
  if (tid < OUTS) rows[tid] = weights_row(a, b, tid);
  if (tid < static_cast<int>(a.n_stages)) {
    ptx::mbarrier_init(full + tid, COPIERS + 1), ptx::mbarrier_init(empty + tid, MULTIPLIERS / 32);
  }
  if (tid < 32) ptx::fence_mbarrier_init();
  fill_table_of(b, table);
  __syncthreads();
  const Ring ring(full, empty, a.n_stages);
  if (warp >= MULTIPLIERS / 32) {
    ptx::setmaxnreg_dec<COPY_REGISTERS>();
#define COPY(Q) \
  case LAYOUT_##Q: \
    if constexpr (takes<Packed_##Q, N>()) copy<Packed_##Q, N>(a, b, ring, tid - MULTIPLIERS); \
    break;
    switch (b.part->layout) { FOR_EACH_PACKED(COPY) }
#undef COPY
  } else {
    ptx::setmaxnreg_inc<REGISTERS>();
    float sums[N][4] = {};
#define MULTIPLY(Q) \
  case LAYOUT_##Q: \
    if constexpr (takes<Packed_##Q, N>()) multiply<Packed_##Q, N>(a, b, sums, ring, warp, lane); \
    break;
    switch (b.part->layout) { FOR_EACH_PACKED(MULTIPLY) }
#undef MULTIPLY
    ptx::griddepcontrol_wait();
    const auto sync = [] { ptx::sync_threads<MULTIPLIERS>(1); };
    // All are done with the ring. What is computed anew needed no registers until here.
    sync();
    const GemmI8Block again = GemmI8Block::of<N>(a, OUTS, ptx::block_again());
    finish<N, 16>(a, again, sums, reinterpret_cast<float*>(shared), factors, ptx::thread_again(), sync);
  }
#endif
}

#define GEMM_I8(N) \
  KERNEL_1(gemm_i8_hopper_##N, GemmI8Args, THREADS) { gemm_i8_hopper<N>(a); }
GEMM_I8(2) GEMM_I8(4) GEMM_I8(8) GEMM_I8(16)
