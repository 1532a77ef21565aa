// gemm_i8.cu for Hopper, with the same bits: products are those of wgmma, whose first operand is weights in registers, and whose second is
// activations in shared memory, as they lie in global memory.
//
// What a block owns gemm_i8.cuh says. Two groups of 4 warps have 64 outputs each. Four more warps keep the ring filled: 256 columns of
// weights, which they copy, and of activations, which the copy engine brings.
//
// Weights times scales, which are integers of each 16 or 32, are the first operand. They have more than 8 bits, so that they are two digits
// (`Digits`), whose products are added up by themselves; with the most rows first those of the high ones of all 256 columns, whose sums times
// the digits' base are what those of the low ones are added to. All that is in integers, and exact.
//
// Shared memory: twice 128 rows of a group's rest; stages of 128 (64 vectors + 16) + 2560 N bytes.
// Moves: as gemm_i8.cu.
#include "../common/hopper_i8.cuh"
#include "../common/pipeline.cuh"
#include "gemm_i8.cuh"

// Outputs of a block; threads that multiply, that copy, and all.
constexpr int OUTS = 128, MULTIPLIERS = 256, COPIERS = 128, THREADS = MULTIPLIERS + COPIERS;
constexpr int MAX_STAGES = 8;

// What the kernel for N slots of rows is like.
template <int N>
struct GemmI8Shape {
  // Blocks that an SM has room for: two, of which one unpacks while the other does, where registers and shared memory suffice.
  static constexpr int BLOCKS = N <= 4 ? 2 : 1;
  // Registers of a thread that multiplies, and of one that copies.
  static constexpr int REGISTERS = BLOCKS == 2 ? 104 : 232, COPY_REGISTERS = BLOCKS == 2 ? 32 : 40;
  // Pieces whose digits have registers of their own.
  static constexpr int PIECES = N == 8 ? 4 : 2;
  // Loads of four sums at once.
  static constexpr int LOADS = BLOCKS == 2 ? 8 : 16;
};

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

// Adds products with digits of weights to sums of N slots of rows, in the background: those of piece i.
template <class Packed, int N>
DEVICE void add_digits(int (&to)[N][4], const uint32_t (&digits)[2][4], uint32_t x, int i, bool adds) {
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if constexpr (Digits<Packed>::SIGNED) ptx::wgmma_rs_s8(to, digits[h], sub_block(x, 2 * i + h), adds || h > 0);
    else ptx::wgmma_rs_u8(to, digits[h], sub_block(x, 2 * i + h), adds || h > 0);
  }
}

// The digits of piece i.
template <class Packed>
DEVICE void make_digits(const WarpWeights<Packed>& w, uint32_t (&high)[2][4], uint32_t (&low)[2][4], int i) {
  uint32_t words[Packed::SmallM::WORDS], raw[4] = {};
  w.words(words, i);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    w.unpack(high[h], raw, i, h);
    Digits<Packed>::make(high[h], low[h], words, h);
  }
}

// Multiplies sums of activations with mins, of types that have any, in the background. `mma_f16` would wait until the other group's products
// are over.
template <class P, int N>
DEVICE void multiply_mins_of_slots(float (&of_mins)[N][4], const P& p, const XBlock* x) {
  if constexpr (P::MINS) {
    const uint32_t mins[4] = {p.mins[0], p.mins[1], p.mins[0], p.mins[1]};
    ptx::wgmma_fence();
    ptx::wgmma_rs_f16<true>(of_mins, mins, ptx::smem_desc_plain(ptx::shared_address(x->sums), 128, sizeof(XBlock)), 0);
  }
}

// Adds products, times what the rows of weights and of activations are scaled with, to the sums of N slots.
template <class P, int N>
DEVICE void add_scaled_products(float (*sums)[4], const int (&products)[N][4], const float (&of_mins)[N][4], const P& p, const XBlock* x,
                                unsigned lane) {
#pragma unroll
  for (int n = 0; n < N; n++) {
    Columns<8> columns;
    columns.take_tile(x + n, lane);
    int scaled[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++) scaled[1][j] = products[n][j];
    float of_block[4];
    if constexpr (P::MINS) scale_columns<P, 8>(of_block, p, scaled, of_mins[n], columns, lane);
    else finish_columns<P, 8>(of_block, p, scaled, columns, lane);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[n][j] += of_block[j];
    // The next slot's loads wait, so that registers suffice for these mins.
    if constexpr (P::MINS_OF_16) __syncwarp();
  }
}

// Adds the products of a block of columns to the sums.
template <class Packed, int N>
DEVICE void multiply_block(WarpWeights<Packed>& w, const XBlock* x, float (&sums)[N][4]) {
  typedef Digits<Packed> D;
  const uint32_t x_at = ptx::shared_address(x);
  D::prepare(w.p);
  if constexpr (N < 16) {
    constexpr int PIECES = GemmI8Shape<N>::PIECES;
    int products[2][N][4];
    uint32_t high[PIECES][2][4], low[PIECES][2][4];
    float of_mins[N][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = i % PIECES;
      make_digits(w, high[at], low[at], i);
      ptx::wgmma_fence();
      add_digits<Packed>(products[0], high[at], x_at, i, i > 0);
      add_digits<Packed>(products[1], low[at], x_at, i, i > 0);
      ptx::wgmma_commit();
      if constexpr (PIECES == 2) ptx::wgmma_wait<1>();
    }
    if constexpr (PIECES == 2) ptx::wgmma_wait<0>();
    multiply_mins_of_slots(of_mins, w.p, x);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < 4 * N; i++) products[0][i / 4][i % 4] = products[0][i / 4][i % 4] * (1 << D::SHIFT) + products[1][i / 4][i % 4];
    add_scaled_products(sums, products[0], of_mins, w.p, x, w.lane);
  } else {
    // With the most rows, registers suffice for the sums of one digit, and the high digits of two pieces, of which one is multiplied while the
    // other is made. The rows are two halves: while the second's products are made, the first's are scaled.
    constexpr int HALF = N / 2, X_BYTES = HALF * sizeof(XBlock);
    int products[2][HALF][4];
    uint32_t high[2][2][4], low[4][2][4];
    float of_mins[HALF][4];
    const auto shift = [&](int half) {
#pragma unroll
      for (int i = 0; i < 4 * HALF; i++) products[half][i / 4][i % 4] *= 1 << D::SHIFT;
    };
    const auto add_low = [&](int half) {
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; i++) add_digits<Packed>(products[half], low[i], x_at + half * X_BYTES, i, true);
    };
#pragma unroll
    for (int i = 0; i < 4; i++) {
      make_digits(w, high[i % 2], low[i], i);
      ptx::wgmma_fence();
#pragma unroll
      for (int half = 0; half < 2; half++) {
        add_digits<Packed>(products[half], high[i % 2], x_at + half * X_BYTES, i, i > 0);
        if (half == 1 || i == 3) ptx::wgmma_commit();
      }
      ptx::wgmma_wait<1>();
    }
    shift(0);
    add_low(0);
    multiply_mins_of_slots(of_mins, w.p, x);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    shift(1);
    add_low(1);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    add_scaled_products(sums, products[0], of_mins, w.p, x, w.lane);
    multiply_mins_of_slots(of_mins, w.p, x + HALF);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    add_scaled_products(sums + HALF, products[1], of_mins, w.p, x + HALF, w.lane);
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
    multiply_block<Packed, N>(w, x, sums);
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

// Whether the kernels take a type: its scales are integers.
template <class Packed>
DEVICE constexpr bool takes() {
  return Packed::OF_GEMM_I8 && !Packed::SmallM::OF_32;
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
    ptx::setmaxnreg_dec<GemmI8Shape<N>::COPY_REGISTERS>();
#define COPY(Q) \
  case LAYOUT_##Q: \
    if constexpr (takes<Packed_##Q>()) copy<Packed_##Q, N>(a, b, ring, tid - MULTIPLIERS); \
    break;
    switch (b.part->layout) { FOR_EACH_PACKED(COPY) }
#undef COPY
  } else {
    ptx::setmaxnreg_inc<GemmI8Shape<N>::REGISTERS>();
    float sums[N][4] = {};
#define MULTIPLY(Q) \
  case LAYOUT_##Q: \
    if constexpr (takes<Packed_##Q>()) multiply<Packed_##Q, N>(a, b, sums, ring, warp, lane); \
    break;
    switch (b.part->layout) { FOR_EACH_PACKED(MULTIPLY) }
#undef MULTIPLY
    ptx::griddepcontrol_wait();
    const auto sync = [] { ptx::sync_threads<MULTIPLIERS>(1); };
    // All are done with the ring. What is computed anew needed no registers until here.
    sync();
    const GemmI8Block again = GemmI8Block::of<N>(a, OUTS, ptx::block_again());
    finish<N, GemmI8Shape<N>::LOADS>(a, again, sums, reinterpret_cast<float*>(shared), factors, ptx::thread_again(), sync);
  }
#endif
}

#define GEMM_I8(N, OF_AN_SM)                                              \
  KERNEL_##OF_AN_SM(gemm_i8_hopper_##N, GemmI8Args, THREADS) {            \
    static_assert(GemmI8Shape<N>::BLOCKS == OF_AN_SM, "registers for as many"); \
    gemm_i8_hopper<N>(a);                                                 \
  }
GEMM_I8(2, 2) GEMM_I8(4, 2) GEMM_I8(8, 1) GEMM_I8(16, 1)
