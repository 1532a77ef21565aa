// Products of up to 256 rows of activations with packed weights, or plain ones of 16 bits, for Hopper: y^T = w x^T, so that a weight is
// decoded once, in the registers of the thread that gives it to the tensor cores, whatever the number of rows.
//
// A block owns 128 or 256 outputs and a part of their columns; the blocks of a cluster share the columns of the same outputs, and add
// their sums by way of each other's shared memory. Each group of 4 warps owns 64 outputs. One more thread keeps two rings in shared
// memory filled: one of weights, as they lie in memory, 256 columns of packed ones or 64 of plain ones to a stage, and one of
// activations, which lie in memory as tiles that the tensor cores can read, as plain weights do in shared memory. Weights are on their
// way before the kernel before this one has ended.
//
// K-quants and their activations are multiplied as bytes with a scale for each 256 columns of a row (bytes.cuh): the tensor cores add
// integers over those columns, where sums are exact, and the sums, times both scales, are added up in floats. Q4_0 and Q8_0, to which
// activations of 8 bits would do more harm than their own blocks, are decoded to half precision. Plain weights stay what they are.
//
// Packed columns are multiplied in an order that suits the packed layouts. Of 256 columns, which are four pieces of 64, lane t of each
// four decodes piece t. Products of 32 columns of bytes take eight of each piece: those of word i of its first 32 weights and those 32
// further on. Products of 16 columns take four: those of word s / 2, of its first half if s is even, of the other one if not.
//
// Moves: the weights once, and the activations, 1 or 2 bytes each, once for each block's outputs.
#ifndef REALIZAR_EMULATION
#include "bytes.cuh"
#include "gemm.cuh"
#include "ptx_hopper.cuh"
#include "unpack.cuh"

constexpr int MAX_PARTS = 4;
// Outputs of a group of 4 warps.
constexpr int OUTS = 64;
// Columns of a stage of packed weights, and bytes of a row of a tile.
constexpr int STEP = SCALED, LINE = 128;
// Columns of a tile of 16 bits.
constexpr int TILE = LINE / 2;
constexpr int MAX_STAGES = 16;

enum Layout : uint32_t { LAYOUT_F16, LAYOUT_BF16, LAYOUT_Q4_0, LAYOUT_Q8_0, LAYOUT_Q4_K, LAYOUT_Q5_K, LAYOUT_Q6_K };

struct SkinnyPart {
  // The rows of weights as bytes, and their boxes of 64 rows: of 64 bytes, and of 16 for what is not vectors; or of 128 bytes of plain
  // weights, which lie in shared memory as `matrix_at` wants them.
  ptx::Map vectors, rest;
  uint32_t layout;
  uint32_t first_out;      // of the whole matrix
  uint32_t n_out;
  uint32_t first_tile;     // tiles `first_tile` to the next part's own it
};

struct SkinnyArgs {
  SkinnyPart parts[MAX_PARTS];
  float* y;               // [m, y_stride]
  const uint8_t* x;       // as `skinny_bytes` writes it for K-quants, or `skinny_halves`
  const float* x_scales;  // of bytes [n_steps, rows of the kernel], of halves [m]
  const float* squares;   // [n_steps, rows of the kernel] sums of x's squares where a norm comes before the product, or null
  const float* bias;      // [n_out] or null
  uint32_t n_parts;
  uint32_t n_pieces;      // of a row of weights, the last of which may end early
  uint32_t m, y_stride;
  uint32_t epilogue;      // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t activation;
  uint32_t up_row;        // of part 1: its first row of weights
  uint32_t w_stages, x_stages;  // of the rings
  uint32_t w_stage_bytes;
  float n_columns, eps;   // of the norm
};

// Of a type: vectors of 16 bytes of a piece, and vectors of the rest of four pieces, which lie at `rest_at` of a group; and a piece in
// registers. A stage has for all rows 64 bytes of each vector, and then 16 bytes of each of the rest.
//
// Of K-quants a lane has one piece of a row in a step, whose weights are scale * code - min. `take_scales` gets where the row's rest is,
// and the first of the four pieces' number in their group. `bound` is the largest magnitude that the piece's weights may have, `set` gets
// what brings weights to bytes. Then `take_codes` takes one half of the piece's words, v, from where lane t's first vector of the row is
// on, and `codes` gives those of word i of these four: of the first 32 weights bytes 0 and 2, and 1 and 3, in 16 bits each, and of the
// others 16 times as much.
struct Pairs {
  uint32_t low[2], high[2];
};

template <int ROWS>
DEVICE uint4 stage_vector(const uint8_t* vectors, int i) { return ptx::load_vector(vectors + 64 * ROWS * i); }

// A sub-block's scale and min as pairs in half precision. A small integer is a number of half precision as it is, 2^-24 for each unit; of
// bytes a unit is 2^-13.
struct Weigher {
  uint32_t scale, min;
  // `times`: what codes are multiplied with already.
  DEVICE void set(float s, float m, int times) { scale = pair(s * (2048.0f / times)), min = pair(m * (-1.0f / 8192)); }
  DEVICE static uint32_t pair(float x) { return ptx::f32_to_f16(x, x); }
  // The nearest integers, in the last bytes.
  DEVICE uint32_t operator()(uint32_t codes) const { return ptx::add_f16(ptx::fma_f16(codes, scale, min), 0x32003200); }
};

constexpr uint32_t LOW = 0x000f000f, HIGH = 0x00f000f0;

struct KPiece {
  float scale[2], min[2];
  Weigher weigher[2];
  uint32_t q[4];
  template <int ROWS>
  DEVICE void take_scales(const uint8_t* rest, int t, int) {
    KHeader header;
    header.take(rest, t);
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(header.d)), dmin = ptx::f16_to_f32(static_cast<uint16_t>(header.d >> 16));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      scale[h] = times_six_bits(header.bits >> 12 * h, d, d * -8388608.0f);
      min[h] = times_six_bits(header.bits >> (12 * h + 6), dmin, dmin * -8388608.0f);
    }
  }
  template <int LAST>
  DEVICE uint32_t bound_of() const {
    uint32_t largest = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) largest = larger_magnitude(larger_magnitude(largest, min[h]), fmaf(scale[h], LAST, -min[h]));
    return largest;
  }
  DEVICE void set(float factor) {
#pragma unroll
    for (int h = 0; h < 2; h++) weigher[h].set(scale[h] * factor, min[h] * factor, h ? 16 : 1);
  }
  DEVICE Weigher of(int, int h) const { return weigher[h]; }
  DEVICE void put(uint4 v) { q[0] = v.x, q[1] = v.y, q[2] = v.z, q[3] = v.w; }
};

struct Piece_Q4_K : KPiece {
  typedef Packed_Q4_K Packed;
  static constexpr int VECTORS = 2, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
  DEVICE uint32_t bound() const { return bound_of<15>(); }
  template <int ROWS>
  DEVICE void take_codes(const uint8_t* vectors, const uint8_t*, int v, int) { put(stage_vector<ROWS>(vectors, v)); }
  DEVICE Pairs codes(int, int i) const {
    const uint32_t w = q[i], w8 = w >> 8;
    return {{w & LOW, w8 & LOW}, {w & HIGH, w8 & HIGH}};
  }
};

struct Piece_Q5_K : KPiece {
  typedef Packed_Q5_K Packed;
  static constexpr int VECTORS = 2, REST = 3;
  DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 32 * size + at * 4 : 36 * size + at * 8 + (i - 1) * 16; }
  uint2 fifths;
  DEVICE uint32_t bound() const { return bound_of<31>(); }
  template <int ROWS>
  DEVICE void take_codes(const uint8_t* vectors, const uint8_t* rest, int v, int t) {
    put(stage_vector<ROWS>(vectors, v)), fifths = load_pair(rest + (1 + t / 2) * 16 * ROWS + t % 2 * 8);
  }
  DEVICE Pairs codes(int v, int i) const {
    const uint32_t w = q[i], w8 = w >> 8, f = fifths.x, g = fifths.y;
    const int n = 4 * v + i;
    // Bit n of each byte is the fifth: to bit 4, and for the high half to bit 8.
    const uint32_t f0 = n <= 4 ? f << (4 - n) : f >> (n - 4), f1 = f >> (4 + n), g0 = g << (8 - n), g1 = g >> n;
    return {{ptx::mask_and_set(f0, 0x00100010, w & LOW), ptx::mask_and_set(f1, 0x00100010, w8 & LOW)},
            {ptx::mask_and_set(g0, 0x01000100, w & HIGH), ptx::mask_and_set(g1, 0x01000100, w8 & HIGH)}};
  }
};

struct Piece_Q6_K {
  typedef Packed_Q6_K Packed;
  static constexpr int VECTORS = 3, REST = 2;
  DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 48 * size + at * 4 : 52 * size; }
  float scale[4];  // of 16 weights each
  uint32_t pairs[4];
  uint32_t q[4], upper[2];
  template <int ROWS>
  DEVICE void take_scales(const uint8_t* rest, int t, int at) {
    const uint32_t scales = load_word(rest + t * 4) ^ 0x80808080;
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(u16_at(rest + 16 * ROWS + at / 4 * 2)));
#pragma unroll
    for (int i = 0; i < 4; i++) scale[i] = d * (__uint_as_float(__byte_perm(scales, 0x4b000000, 0x7540 + i)) - 8388736.0f);
  }
  DEVICE uint32_t bound() const {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) largest = larger_magnitude(largest, scale[i] * 32.0f);
    return largest;
  }
  DEVICE void set(float factor) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = Weigher::pair(scale[i] * factor * (2048.0f / (i / 2 ? 16 : 1)));
  }
  // Code 32 becomes exactly 0.
  DEVICE Weigher of(int v, int h) const {
    const uint32_t p = pairs[2 * h + v];
    return {p, ptx::mul_f16(p, Weigher::pair((h ? 16 : 1) * (-32.0f / 16777216)))};
  }
  template <int ROWS>
  DEVICE void take_codes(const uint8_t* vectors, const uint8_t*, int v, int) {
    const uint4 low = stage_vector<ROWS>(vectors, v), all = stage_vector<ROWS>(vectors, 2);
    q[0] = low.x, q[1] = low.y, q[2] = low.z, q[3] = low.w, upper[0] = word(all, v), upper[1] = word(all, 2 + v);
  }
  DEVICE Pairs codes(int, int i) const {
    const uint32_t w = q[i], w8 = w >> 8, u = upper[0], v = upper[1];
    const int j = 2 * i;
    // Bits j and j + 1 of each byte are the upper bits: to bits 4 and 5, and for the high half to bits 8 and 9.
    const uint32_t u0 = j <= 4 ? u << (4 - j) : u >> (j - 4), u1 = u >> (4 + j), v0 = v << (8 - j), v1 = v >> j;
    return {{ptx::mask_and_set(u0, 0x00300030, w & LOW), ptx::mask_and_set(u1, 0x00300030, w8 & LOW)},
            {ptx::mask_and_set(v0, 0x03000300, w & HIGH), ptx::mask_and_set(v1, 0x03000300, w8 & HIGH)}};
  }
};

// Of the other packed types: a piece in registers, whose word i gives the weights of two products of 16 columns: for each, elements 2 t
// and 2 t + 1 of a row, and 2 t + 8 and 2 t + 9. Rows may end before lane t's piece, which is not `valid` then and counts nothing.
struct Four {
  uint32_t low[2], high[2];
};

constexpr uint32_t MAGIC = 0x64006400;  // 1024 twice: an integer below 1024 in its last bits is added to it

DEVICE uint32_t twice(uint32_t x, bool high) { return __byte_perm(x, 0, high ? 0x3232 : 0x1010); }

template <int WORDS>
struct HalvesPiece {
  uint32_t q[WORDS], scale[2];
  template <int ROWS>
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, bool valid) {
#pragma unroll
    for (int i = 0; i < WORDS / 4; i++) {
      const uint4 v = load16(vectors + 64 * ROWS * i);
      q[4 * i] = v.x, q[4 * i + 1] = v.y, q[4 * i + 2] = v.z, q[4 * i + 3] = v.w;
    }
    const uint32_t d = valid ? load_word(rest + t * 4) : 0;
    scale[0] = twice(d, false), scale[1] = twice(d, true);
  }
};

struct Piece_Q4_0 : HalvesPiece<8> {
  typedef Packed_Q4_0 Packed;
  static constexpr int VECTORS = 2, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i], w8 = w >> 8;
    const auto low = [&](uint32_t x) { return ptx::mul_f16(ptx::add_f16(ptx::mask_and_set(x, LOW, MAGIC), 0xe408e408), scale[0]); };
    const auto high = [&](uint32_t x) {
      return ptx::mul_f16(ptx::fma_f16(ptx::mask_and_set(x, HIGH, MAGIC), 0x2c002c00, 0xd480d480), scale[1]);
    };
    return {{low(w), low(w8)}, {high(w), high(w8)}};
  }
};

struct Piece_Q8_0 : HalvesPiece<16> {
  typedef Packed_Q8_0 Packed;
  static constexpr int VECTORS = 4, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 64 * size + at * 4; }
  // Numbers of 8 bits with a sign become those from 0 on under the exponent of 1024.
  DEVICE static uint32_t bytes(uint32_t w, uint32_t selector) { return ptx::add_f16(__byte_perm(w, 0x64646464, selector), 0xe480e480); }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i] ^ 0x80808080, v = q[8 + i] ^ 0x80808080;
    return {{ptx::mul_f16(bytes(w, 0x4240), scale[0]), ptx::mul_f16(bytes(w, 0x4341), scale[0])},
            {ptx::mul_f16(bytes(v, 0x4240), scale[1]), ptx::mul_f16(bytes(v, 0x4341), scale[1])}};
  }
};

#define FOR_EACH_K_PIECE(F) F(LAYOUT_Q4_K, Piece_Q4_K) F(LAYOUT_Q5_K, Piece_Q5_K) F(LAYOUT_Q6_K, Piece_Q6_K)
#define FOR_EACH_HALVES_PIECE(F) F(LAYOUT_Q4_0, Piece_Q4_0) F(LAYOUT_Q8_0, Piece_Q8_0)

// What a lane has of two rows of weights in a step: piece t of each, in stages for ROWS rows.
template <class P, int ROWS>
struct Pieces {
  const uint8_t *vectors, *rest;  // of the first row; the other one is 8 further on
  int t;
  P piece[2];
  float scales[2];                // of the rows

  DEVICE Pieces() {}
  DEVICE Pieces(const uint8_t* vectors, const uint8_t* rest, int t, int at) : vectors(vectors), rest(rest), t(t) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      piece[r].template take_scales<ROWS>(rest + r * 8 * 16, t, at);
      const Range<4> range(piece[r].bound());
      piece[r].set(range.factor);
      scales[r] = range.scale();
    }
  }
  DEVICE void take(int v) {
#pragma unroll
    for (int r = 0; r < 2; r++) piece[r].template take_codes<ROWS>(vectors + r * 8 * 64, rest + r * 8 * 16, v, t);
  }
  // Words 4 v to 4 v + 3, which were taken, as the tensor cores want them: each a product's.
  DEVICE void bytes(uint32_t (&f)[4][4], int v) const {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Pairs codes = piece[r].codes(v, i);
        const Weigher low = piece[r].of(v, 0), high = piece[r].of(v, 1);
        f[i][r] = __byte_perm(low(codes.low[0]), low(codes.low[1]), 0x6240);
        f[i][r + 2] = __byte_perm(high(codes.high[0]), high(codes.high[1]), 0x6240);
      }
    }
  }
};

// What a kernel for up to N rows is like.
template <int N>
struct Shape {
  // Blocks that a multiprocessor has room for, groups of 4 warps of a block, and its outputs.
  static constexpr int BLOCKS = N <= 32 ? 2 : 1, GROUPS = N == 64 ? 4 : 2, ROWS = GROUPS * OUTS;
  // Threads that multiply, and all, of which one copies. It is of another group, which gives registers away.
  static constexpr int MULTIPLIERS = GROUPS * 128, THREADS = MULTIPLIERS + 128;
  static constexpr int REGISTERS = BLOCKS == 2 ? 104 : GROUPS == 4 ? 112 : 232, COPY_REGISTERS = REGISTERS == 232 ? 40 : 32;
  // Floats from one row's sums to the next one's.
  static constexpr int PITCH = ROWS + 4;
  // Rows of a stage of activations of bytes, which are multiplied at a time; and whether weights are decoded while those of the step before
  // are multiplied: with few warps on a multiprocessor.
  static constexpr int PIECE = N == 64 ? 32 : N == 256 ? 64 : N;
  static constexpr bool AHEAD = N >= 128;
  static constexpr int BYTES_STAGE = PIECE * STEP;
  // Tiles of a stage of activations of 16 bits.
  static constexpr int TILES = N <= 32 ? 4 : N <= 64 ? 2 : 1;
  static constexpr int HALVES_STAGE = TILES * N * LINE;
};

struct Ring {
  uint64_t *full, *empty;
  uint32_t n, stage = 0, parity = 0;
  DEVICE Ring(uint64_t* full, uint64_t* empty, uint32_t n) : full(full), empty(empty), n(n) {}
  DEVICE void next() {
    if (++stage == n) stage = 0, parity ^= 1;
  }
};

// What a block multiplies: rows of weights, half of its outputs from each of two first rows on, and steps.
struct Work {
  const SkinnyPart *part, *other;
  int row, other_row;
  int first_step, last_step;
};

// Copies step `step` of the weights to a stage.
template <class P, int ROWS>
DEVICE void copy_weights(const SkinnyArgs& a, const Work& work, int step, uint8_t* to, uint64_t* full) {
  const int group = step / 8, at = step % 8 * 4, size = min(static_cast<int>(a.n_pieces) - group * 32, 32);
  const int start = group * P::Packed::bytes(GROUP);
  ptx::expect_bytes(full, 0, ROWS * (64 * P::VECTORS + 16 * P::REST));
#pragma unroll 1
  for (int g = 0; g < ROWS / OUTS; g++) {
    const SkinnyPart* part = g * OUTS < ROWS / 2 ? work.part : work.other;
    const int row = g * OUTS < ROWS / 2 ? work.row + g * OUTS : work.other_row + g * OUTS - ROWS / 2;
#pragma unroll
    for (int i = 0; i < P::VECTORS; i++) {
      ptx::copy_box(to + (i * ROWS + g * OUTS) * 64, &part->vectors, start + (i * size + at) * 16, row, full);
    }
#pragma unroll
    for (int i = 0; i < P::REST; i++) {
      ptx::copy_box(to + P::VECTORS * ROWS * 64 + (i * ROWS + g * OUTS) * 16, &part->rest, start + P::rest_at(i, size, at), row, full);
    }
  }
}

// Keeps both rings filled; by one thread. A step is so many stages of each. `weights(i, to, full)` and `activations(i, stage, parity,
// full)` copy their stage i. Stages are filled anew in the order in which those that multiply are done with them.
template <int W_STAGES, int X_STAGES, class Weights, class Activations>
DEVICE void fill(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, Ring w, Ring x, Weights weights, Activations activations) {
  const int n_steps = work.last_step - work.first_step, n_weights = n_steps * W_STAGES, n_activations = n_steps * X_STAGES;
  // The next kernel's first weights come behind these, not between them.
  const int lets_start = max(n_weights - 4, 1);
  int next_weights = 0, next_activations = 0;
  const auto fill_weights = [&](bool again) {
    if (next_weights == n_weights) return;
    if (again) ptx::wait_for_phase(w.empty + w.stage, w.parity ^ 1);
    weights(work.first_step * W_STAGES + next_weights++, w_ring + w.stage * a.w_stage_bytes, w.full + w.stage);
    if (next_weights == lets_start) ptx::let_next_kernel_start();
    w.next();
  };
  const auto fill_activations = [&](bool again) {
    if (next_activations == n_activations) return;
    if (again) ptx::wait_for_phase(x.empty + x.stage, x.parity ^ 1);
    activations(work.first_step * X_STAGES + next_activations++, x.stage, x.parity, x.full + x.stage);
    x.next();
  };
#pragma unroll 1
  for (int i = 0; i < static_cast<int>(w.n); i++) fill_weights(false);
  ptx::wait_for_previous_kernel();
#pragma unroll 1
  for (int i = 0; i < static_cast<int>(x.n); i++) fill_activations(false);
#pragma unroll 1
  while (next_weights < n_weights || next_activations < n_activations) {
#pragma unroll 1
    for (int i = 0; i < (W_STAGES > X_STAGES ? W_STAGES / X_STAGES : 1); i++) fill_weights(true);
#pragma unroll 1
    for (int i = 0; i < (X_STAGES > W_STAGES ? X_STAGES / W_STAGES : 1); i++) fill_activations(true);
  }
}

// Adds up the products of a block's rows of weights. `x_ring`: stages, then the factors of twice as many, so that those are overwritten
// only when all warps have begun the products after the ones that wanted them.
template <class P, int N>
DEVICE void multiply_bytes(const SkinnyArgs& a, const Work& work, float (&sums)[N / 8][4], const uint8_t* w_ring,
                           const uint8_t* x_ring, Ring w, Ring x) {
  typedef Shape<N> S;
  constexpr int PIECE = S::PIECE;
  const int lane = threadIdx.x % 32;
  const uint32_t factors = ptx::shared_address(x_ring) + x.n * S::BYTES_STAGE + 8 * (lane % 4);
  const uint32_t first_matrix = static_cast<uint32_t>(ptx::matrix_at(x_ring));
  const auto load = [&](int step) {
    if (step < work.last_step) ptx::wait_for_phase(w.full + w.stage, w.parity);
    // Registers are short, so this is derived anew from the lane.
    const int at = ptx::lane(), t = at % 4, row = threadIdx.x / 32 * 16 + at / 4;
    const uint8_t* stage = w_ring + w.stage * a.w_stage_bytes;
    const uint8_t *vectors = stage + row * 64 + t * 16, *rest = stage + P::VECTORS * S::ROWS * 64 + row * 16;
    return Pieces<P, S::ROWS>(vectors, rest, t, step % 8 * 4);
  };
  // A stage is free when its loads are over, not when they are under way: after products with all of it began.
  const auto free_weights = [&](int step) {
    if (lane == 0 && step < work.last_step) ptx::arrive(w.empty + w.stage);
    w.next();
  };
  int integers[PIECE / 8][4];
  const auto products = [&](const uint32_t (&f)[4][4], int v) {
    ptx::begin_products();
#pragma unroll
    for (int k = 0; k < 4; k++) {
      const uint32_t matrix = first_matrix + x.stage * (S::BYTES_STAGE / 16);
      ptx::multiply_rows_s8(integers, f[k], ptx::matrix_after(matrix, v * PIECE * LINE + 32 * k), v > 0 || k > 0);
    }
    ptx::end_products();
  };
  const auto add = [&](int first, const float (&w_scales)[2]) {
    if (lane == 0) ptx::arrive(x.empty + x.stage);
#pragma unroll
    for (int j = 0; j < PIECE / 8; j++) {
      const float2 x_factors = ptx::load_floats(factors + (x.stage + x.parity * x.n) * PIECE * 4 + 32 * j);
#pragma unroll
      for (int c = 0; c < 4; c++) {
        float& sum = sums[first / 8 + j][c];
        // Either order spills registers where the other does not.
        if constexpr (PIECE == N) {
          sum = fmaf(__int2float_rn(integers[j][c]) * (c % 2 ? x_factors.y : x_factors.x), w_scales[c / 2], sum);
        } else {
          sum = fmaf(__int2float_rn(integers[j][c]), (c % 2 ? x_factors.y : x_factors.x) * w_scales[c / 2], sum);
        }
      }
    }
    x.next();
  };
  uint32_t f[2][4][4];
  Pieces<P, S::ROWS> pieces;
  if (S::AHEAD) {
    pieces = load(work.first_step);
    pieces.take(0);
    pieces.bytes(f[0], 0);
  }
#pragma unroll 1
  for (int step = work.first_step; step < work.last_step; step++) {
    if (!S::AHEAD) {
      pieces = load(step);
      pieces.take(0);
      pieces.bytes(f[0], 0);
    }
    pieces.take(1);
    const float w_scales[2] = {pieces.scales[0], pieces.scales[1]};
#pragma unroll
    for (int first = 0; first < N; first += PIECE) {
      ptx::wait_for_phase(x.full + x.stage, x.parity);
      products(f[0], 0);
      if (first == 0) pieces.bytes(f[1], 1);
      products(f[1], 1);
      if (first == 0) free_weights(step);
      if (S::AHEAD && first + PIECE == N) {
        // After the last step this is of some stage, and nothing comes of it.
        pieces = load(step + 1);
        ptx::wait_for_products<1>();
        pieces.take(0);
        pieces.bytes(f[0], 0);
      }
      ptx::wait_for_products<0>();
      add(first, w_scales);
    }
  }
}

// The same of types that are multiplied in half precision.
template <class P, int N>
DEVICE void multiply_halves(const SkinnyArgs& a, const Work& work, float (&sums)[N / 8][4], const uint8_t* w_ring, const uint8_t* x_ring,
                            Ring w, Ring x) {
  typedef Shape<N> S;
  const int lane = threadIdx.x % 32, t = lane % 4, row = threadIdx.x / 32 * 16 + lane / 4;
  const uint8_t *vectors = w_ring + row * 64 + t * 16, *rest = w_ring + P::VECTORS * S::ROWS * 64 + row * 16;
  const uint32_t first_matrix = static_cast<uint32_t>(ptx::matrix_at(x_ring));
  uint64_t* x_done = nullptr;
  // The weights of two words, of which one is multiplied while the other is decoded.
  uint32_t f[2][2][4];
#pragma unroll 1
  for (int step = work.first_step; step < work.last_step; step++) {
    ptx::wait_for_phase(w.full + w.stage, w.parity);
    const uint32_t w_at = w.stage * a.w_stage_bytes;
    const bool valid = step * 4 + t < static_cast<int>(a.n_pieces);
    P p[2];
#pragma unroll
    for (int r = 0; r < 2; r++) p[r].template load<S::ROWS>(vectors + w_at + r * 8 * 64, rest + w_at + r * 8 * 16, t, valid);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint32_t(&now)[2][4] = f[i % 2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const Four v = p[r].word(i);
        now[0][r] = v.low[0], now[0][2 + r] = v.low[1];
        now[1][r] = v.high[0], now[1][2 + r] = v.high[1];
      }
      const int tile = i / 2 % S::TILES;
      const bool begins = i % 2 == 0 && tile == 0;
      if (begins) ptx::wait_for_phase(x.full + x.stage, x.parity);
      const uint32_t matrix = first_matrix + x.stage * (S::HALVES_STAGE / 16);
      ptx::begin_products();
      ptx::multiply_rows(sums, now[0], ptx::matrix_after(matrix, tile * N * LINE + i % 2 * 64));
      ptx::multiply_rows(sums, now[1], ptx::matrix_after(matrix, tile * N * LINE + i % 2 * 64 + 32));
      ptx::end_products();
      ptx::wait_for_products<1>();
      // What was multiplied before this tile is over.
      if (begins) {
        if (x_done && lane == 0) ptx::arrive(x_done);
        x_done = x.empty + x.stage;
      }
      // Word 4 is of the last vectors.
      if (i == 4 && lane == 0) ptx::arrive(w.empty + w.stage);
      if (i % 2 == 1 && tile == S::TILES - 1) x.next();
    }
    w.next();
  }
  ptx::wait_for_products<0>();
}

// Fills the rings of weights and of activations in bytes: for each step PIECE rows after PIECE rows, and their factors.
template <class P, int N>
DEVICE void fill_bytes(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, uint8_t* x_ring, const Ring& w, const Ring& x) {
  constexpr int PIECE = Shape<N>::PIECE, BYTES = Shape<N>::BYTES_STAGE;
  fill<1, N / PIECE>(
      a, work, w_ring, w, x, [&](int step, uint8_t* to, uint64_t* full) { copy_weights<P, Shape<N>::ROWS>(a, work, step, to, full); },
      [&](int i, uint32_t stage, uint32_t parity, uint64_t* full) {
        ptx::expect_bytes(full, 0, BYTES + PIECE * 4);
        ptx::copy_bytes(x_ring + stage * BYTES, a.x + static_cast<size_t>(i) * BYTES, BYTES, full, 0);
        uint8_t* factors = x_ring + x.n * BYTES + (stage + parity * x.n) * PIECE * 4;
        ptx::copy_bytes(factors, a.x_scales + static_cast<size_t>(i) * PIECE, PIECE * 4, full, 0);
      });
}

// Stage i of activations in halves.
template <int N>
DEVICE void copy_halves(const SkinnyArgs& a, uint8_t* x_ring, int i, uint32_t stage, uint64_t* full) {
  constexpr int BYTES = Shape<N>::HALVES_STAGE;
  ptx::expect_bytes(full, 0, BYTES);
  ptx::copy_bytes(x_ring + stage * BYTES, a.x + static_cast<size_t>(i) * BYTES, BYTES, full, 0);
}

// The same with activations in halves.
template <class P, int N>
DEVICE void fill_halves(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, uint8_t* x_ring, const Ring& w, const Ring& x) {
  fill<1, STEP / TILE / Shape<N>::TILES>(
      a, work, w_ring, w, x, [&](int step, uint8_t* to, uint64_t* full) { copy_weights<P, Shape<N>::ROWS>(a, work, step, to, full); },
      [&](int i, uint32_t stage, uint32_t, uint64_t* full) { copy_halves<N>(a, x_ring, i, stage, full); });
}

// And for plain weights.
template <int N>
DEVICE void fill_plain(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, uint8_t* x_ring, const Ring& w, const Ring& x) {
  constexpr int BOX = OUTS * LINE;
  fill<STEP / TILE, STEP / TILE / Shape<N>::TILES>(
      a, work, w_ring, w, x,
      [&](int tile, uint8_t* to, uint64_t* full) {
        constexpr int HALF = Shape<N>::GROUPS / 2;
        ptx::expect_bytes(full, 0, 2 * HALF * BOX);
#pragma unroll
        for (int g = 0; g < HALF; g++) {
          ptx::copy_box(to + g * BOX, &work.part->vectors, tile * LINE, work.row + g * OUTS, full);
          ptx::copy_box(to + (HALF + g) * BOX, &work.other->vectors, tile * LINE, work.other_row + g * OUTS, full);
        }
      },
      [&](int i, uint32_t stage, uint32_t, uint64_t* full) { copy_halves<N>(a, x_ring, i, stage, full); });
}

struct PlainHalf {
  template <int N>
  DEVICE static void multiply(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::multiply_shared_f16(d, a, b); }
};

struct PlainBfloat {
  template <int N>
  DEVICE static void multiply(float (&d)[N][4], uint64_t a, uint64_t b) { ptx::multiply_shared_bf16(d, a, b); }
};

template <class T, int N>
DEVICE void multiply_plain(const SkinnyArgs& a, const Work& work, float (&sums)[N / 8][4], const uint8_t* w_ring,
                           const uint8_t* x_ring, Ring w, Ring x) {
  typedef Shape<N> S;
  const int lane = threadIdx.x % 32, n_tiles = (work.last_step - work.first_step) * (STEP / TILE);
  const uint32_t w_first = static_cast<uint32_t>(ptx::matrix_at(w_ring + threadIdx.x / 128 * OUTS * TILE * 2));
  const uint32_t x_first = static_cast<uint32_t>(ptx::matrix_at(x_ring));
  uint64_t *w_done = nullptr, *x_done = nullptr;
#pragma unroll 1
  for (int tile = 0; tile < n_tiles; tile++) {
    const int of_stage = tile % S::TILES;
    ptx::wait_for_phase(w.full + w.stage, w.parity);
    if (of_stage == 0) ptx::wait_for_phase(x.full + x.stage, x.parity);
    ptx::begin_products();
#pragma unroll
    for (int s = 0; s < TILE / 16; s++) {
      T::multiply(sums, ptx::matrix_after(w_first, w.stage * a.w_stage_bytes + 32 * s),
                  ptx::matrix_after(x_first, x.stage * S::HALVES_STAGE + of_stage * N * LINE + 32 * s));
    }
    ptx::end_products();
    ptx::wait_for_products<1>();
    // What was multiplied before this tile is over.
    if (lane == 0) {
      if (w_done) ptx::arrive(w_done);
      if (of_stage == 0 && x_done) ptx::arrive(x_done);
    }
    w_done = w.empty + w.stage;
    w.next();
    if (of_stage == 0) x_done = x.empty + x.stage;
    if (of_stage == S::TILES - 1) x.next();
  }
  ptx::wait_for_products<0>();
}

// What a row's sums must be multiplied with: its scale, and what the norm before the product divides it by.
template <int N>
DEVICE float row_factor(const SkinnyArgs& a, int row, bool in_bytes) {
  float factor = in_bytes ? 1.0f : a.x_scales[row];
  if (a.squares) {
    float sum = 0;
    const int n_steps = (a.n_pieces + 3) / 4;
#pragma unroll 8
    for (int i = 0; i < n_steps; i++) sum += a.squares[i * N + row];
    factor *= rsqrtf(sum / a.n_columns + a.eps);
  }
  return factor;
}

// Adds what the blocks of the cluster have of their outputs, each for its share of the rows, and writes the results. `n_out`: outputs
// from the block's first on.
template <class S>
DEVICE void finish(const SkinnyArgs& a, const float* sums, const float* scales, int first_out, int n_out, int rank, int n_ranks) {
  const int m = a.m, first = m * rank / n_ranks, n = m * (rank + 1) / n_ranks - first;
  const bool gate = a.epilogue == GATE;
  const int quads = (gate ? S::ROWS / 2 : S::ROWS) / 4;
  const auto total = [&](int row, int out) {
    const float* own = sums + row * S::PITCH + out;
    float4 v = {0, 0, 0, 0};
    if (n_ranks == 1) {
      v = *reinterpret_cast<const float4*>(own);
    } else {
      for (int r = 0; r < n_ranks; r++) {
        const float4 u = ptx::load_of_block(own, r);
        v.x += u.x, v.y += u.y, v.z += u.z, v.w += u.w;
      }
    }
    const float scale = scales[row];
    return float4{v.x * scale, v.y * scale, v.z * scale, v.w * scale};
  };
  for (int i = threadIdx.x; i < n * quads; i += S::MULTIPLIERS) {
    const int row = first + i / quads, local = i % quads * 4, out = first_out + local;
    if (local >= n_out) continue;
    float4 v = total(row, local);
    if (gate) {
      const float4 u = total(row, S::ROWS / 2 + local);
      v.x = activate_gate(a.activation, v.x) * u.x, v.y = activate_gate(a.activation, v.y) * u.y;
      v.z = activate_gate(a.activation, v.z) * u.z, v.w = activate_gate(a.activation, v.w) * u.w;
    }
    float* y = a.y + static_cast<size_t>(row) * a.y_stride + out;
    if (local + 4 <= n_out && reinterpret_cast<uintptr_t>(y) % 16 == 0) {
      if (a.bias) v.x += a.bias[out], v.y += a.bias[out + 1], v.z += a.bias[out + 2], v.w += a.bias[out + 3];
      if (a.epilogue == ADD) {
        const float4 before = *reinterpret_cast<const float4*>(y);
        v.x += before.x, v.y += before.y, v.z += before.z, v.w += before.w;
      }
      *reinterpret_cast<float4*>(y) = v;
    } else {
      const float each[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        if (local + j < n_out) y[j] = each[j] + (a.bias ? a.bias[out + j] : 0.0f) + (a.epilogue == ADD ? y[j] : 0.0f);
      }
    }
  }
}

// Blocks (rank in the cluster, tile).
template <int N>
DEVICE void multiply_tile(const SkinnyArgs& a) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t w_full[MAX_STAGES], w_empty[MAX_STAGES], x_full[MAX_STAGES], x_empty[MAX_STAGES];
  __shared__ float scales[N];
  const int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const int rank = blockIdx.x, n_ranks = gridDim.x, tile = blockIdx.y;
  const bool gate = a.epilogue == GATE, in_bytes = a.parts[0].layout >= LAYOUT_Q4_K;
  int p = 0;
  if (!gate) {
    while (p + 1 < static_cast<int>(a.n_parts) && tile >= static_cast<int>(a.parts[p + 1].first_tile)) p++;
  }
  const SkinnyPart& part = a.parts[p];
  const int n_steps = (a.n_pieces + 3) / 4;
  Work work;
  work.first_step = n_steps * rank / n_ranks, work.last_step = n_steps * (rank + 1) / n_ranks;
  const int first = (tile - part.first_tile) * (gate ? S::ROWS / 2 : S::ROWS);
  work.part = &part, work.other = gate ? &a.parts[1] : &part;
  work.row = first, work.other_row = gate ? a.up_row + first : first + S::ROWS / 2;

  if (tid < static_cast<int>(a.w_stages)) ptx::make_barrier(w_full + tid, 1), ptx::make_barrier(w_empty + tid, S::MULTIPLIERS / 32);
  if (tid / 32 == 1 && lane < static_cast<int>(a.x_stages)) {
    ptx::make_barrier(x_full + lane, 1), ptx::make_barrier(x_empty + lane, S::MULTIPLIERS / 32);
  }
  if (tid < 64) ptx::barriers_are_ready();
  __syncthreads();
  uint8_t* x_ring = shared + a.w_stages * a.w_stage_bytes;
  const Ring w(w_full, w_empty, a.w_stages), x(x_full, x_empty, a.x_stages);
  if (warp >= S::MULTIPLIERS / 32) {
    ptx::fewer_registers<S::COPY_REGISTERS>();
    if (tid == S::MULTIPLIERS) {
#define FILL_BYTES(layout, P) \
  case layout: fill_bytes<P, N>(a, work, shared, x_ring, w, x); break;
#define FILL_HALVES(layout, P) \
  case layout: fill_halves<P, N>(a, work, shared, x_ring, w, x); break;
      switch (part.layout) {
        FOR_EACH_K_PIECE(FILL_BYTES)
        FOR_EACH_HALVES_PIECE(FILL_HALVES)
        default: fill_plain<N>(a, work, shared, x_ring, w, x); break;
      }
    }
  } else {
    ptx::more_registers<S::REGISTERS>();
    float sums[N / 8][4] = {};
    ptx::wait_for_previous_kernel();
    if (tid < static_cast<int>(a.m)) scales[tid] = row_factor<N>(a, tid, in_bytes);
#define MULTIPLY_BYTES(layout, P) \
  case layout: multiply_bytes<P, N>(a, work, sums, shared, x_ring, w, x); break;
#define MULTIPLY_HALVES(layout, P) \
  case layout: multiply_halves<P, N>(a, work, sums, shared, x_ring, w, x); break;
    switch (part.layout) {
      FOR_EACH_K_PIECE(MULTIPLY_BYTES)
      FOR_EACH_HALVES_PIECE(MULTIPLY_HALVES)
      case LAYOUT_F16: multiply_plain<PlainHalf, N>(a, work, sums, shared, x_ring, w, x); break;
      default: multiply_plain<PlainBfloat, N>(a, work, sums, shared, x_ring, w, x); break;
    }
    // All groups are done with the rings.
    ptx::sync_threads<S::MULTIPLIERS>(1);
    float* to = reinterpret_cast<float*>(shared) + warp * 16 + lane / 4 + lane % 4 * 2 * S::PITCH;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      float* at = to + j * 8 * S::PITCH;
      at[0] = sums[j][0], at[S::PITCH] = sums[j][1], at[8] = sums[j][2], at[S::PITCH + 8] = sums[j][3];
    }
    if (n_ranks > 1) ptx::sync_cluster(); else ptx::sync_threads<S::MULTIPLIERS>(1);
    const int own = part.n_out - first;
    finish<S>(a, reinterpret_cast<const float*>(shared), scales, part.first_out + first, own, rank, n_ranks);
    // Others may still read this block's sums.
    if (n_ranks > 1) ptx::meet_cluster();
  }
#endif
}

#define SKINNY(N)                                                                           \
  extern "C" __global__ void __launch_bounds__(Shape<N>::THREADS, Shape<N>::BLOCKS) skinny_##N( \
      const __grid_constant__ SkinnyArgs a) {                                             \
    multiply_tile<N>(a);                                                                  \
  }
SKINNY(8) SKINNY(16) SKINNY(32) SKINNY(64) SKINNY(128) SKINNY(256)

// Rows of activations as bytes, in tiles of 128 columns of `piece` rows, in the order of packed columns. A warp converts 256 columns of a
// row, a block those of 8 warps; blocks (columns, rows).
struct SkinnyBytesArgs {
  uint8_t* y;           // [n_steps, rows / piece, 2, piece, 128]
  float* scales;        // [n_steps, rows], of which each row's are for 256 columns
  float* squares;       // [n_steps, rows], written where there is a weight
  const float* x;       // [m, n]
  const float* weight;  // [n] of the norm that comes before, or null
  uint32_t n;
  uint32_t rows, piece;
};

KERNEL(skinny_bytes, SkinnyBytesArgs, 256) {
  ptx::let_next_kernel_start();
  const int n = a.n, row = blockIdx.y, lane = threadIdx.x % 32, step = blockIdx.x * 8 + threadIdx.x / 32, k = step * STEP + lane * 8;
  if (step * STEP >= n) return;
  float v[8] = {}, w[8];
  if (a.weight && k < n) load8_floats(w, a.weight, k, n);
  ptx::wait_for_previous_kernel();
  if (k < n) load8_floats(v, a.x + static_cast<size_t>(row) * n, k, n);
  const size_t at = static_cast<size_t>(step) * a.rows + row;
  if (a.weight) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) squares += v[j] * v[j], v[j] *= k < n ? w[j] : 0.0f;
    squares = warp_sum(squares);
    if (lane == 0) a.squares[at] = squares;
  }
  uint32_t largest = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) largest = larger_magnitude(largest, v[j]);
  const Range<32> range(largest);
  if (lane == 0) a.scales[at] = range.scale();
  // The lane's eight columns are words 2 i and 2 i + 1 of half h of piece t.
  const int t = lane / 8, h = lane / 4 % 2, i = lane % 4;
  const uint32_t tile = (at / a.piece * 2 + i / 2) * a.piece + row % a.piece;
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const uint32_t vector = (i % 2 * 2 + j) * 2 + h;
    *reinterpret_cast<uint32_t*>(a.y + static_cast<size_t>(tile) * LINE + ((vector ^ row) & 7) * 16 + t * 4) =
        four_bytes(v[4 * j] * range.factor, v[4 * j + 1] * range.factor, v[4 * j + 2] * range.factor, v[4 * j + 3] * range.factor);
  }
}

// Half precision in the order of packed columns or as they are, or bfloat16 as they are.
enum Form : uint32_t { PACKED_HALF, PLAIN_HALF, PLAIN_BFLOAT };

// Rows of activations in 16 bits, in tiles of 64 columns, normalized where a norm comes before. A block converts a row.
struct SkinnyHalvesArgs {
  uint16_t* y;          // [padded / 64, rows, 64]
  float* scales;        // [m], what each row must be multiplied with
  const float* x;       // [m, n]
  const float* weight;  // [n] of the norm that comes before, or null
  uint32_t n, padded;   // columns, and with those of zeros at the end
  uint32_t form;
  uint32_t rows;        // of a tile
  float eps;
};

constexpr int HALVES_THREADS = 512;

KERNEL(skinny_halves, SkinnyHalvesArgs, HALVES_THREADS) {
  constexpr int HELD = 4, CHUNK = HALVES_THREADS * 8;
  ptx::let_next_kernel_start();
  __shared__ float scratch[2][HALVES_THREADS / 32];
  const int n = a.n, padded = a.padded, row = blockIdx.x, lane = threadIdx.x % 32;
  const float* x = a.x + static_cast<size_t>(row) * n;
  float held[HELD][8];
  float squares = 0, largest = 0;
  const auto load = [&](float (&v)[8], int k) {
    if (k < n) {
      load8_floats(v, x, k, n);
    } else {
#pragma unroll
      for (int j = 0; j < 8; j++) v[j] = 0;
    }
    if (a.weight && k < n) {
      float w[8];
      load8_floats(w, a.weight, k, n);
#pragma unroll
      for (int j = 0; j < 8; j++) squares += v[j] * v[j], v[j] *= w[j];
    }
  };
  ptx::wait_for_previous_kernel();
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    load(held[c], c * CHUNK + threadIdx.x * 8);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(held[c][j]));
  }
  for (int k = HELD * CHUNK + threadIdx.x * 8; k < n; k += CHUNK) {
    float v[8];
    load(v, k);
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(v[j]));
  }
  squares = warp_sum(squares), largest = warp_max(largest);
  if (lane == 0) scratch[0][threadIdx.x / 32] = squares, scratch[1][threadIdx.x / 32] = largest;
  __syncthreads();
  squares = largest = 0;
#pragma unroll
  for (int w = 0; w < HALVES_THREADS / 32; w++) squares += scratch[0][w], largest = fmaxf(largest, scratch[1][w]);
  // The power of two that brings the largest magnitude to 2^12 or just above; exponents of both factors stay normal.
  const int e = 127 + 139 - static_cast<int>(__float_as_uint(largest) >> 23);
  const uint32_t bounded = largest == 0 || a.form == PLAIN_BFLOAT ? 127 : e < 1 ? 1 : e > 253 ? 253 : e;
  const float factor = __uint_as_float(bounded << 23);
  const float inverse = a.weight ? rsqrtf(squares / n + a.eps) : 1.0f;
  if (threadIdx.x == 0) a.scales[row] = __uint_as_float((254 - bounded) << 23) * inverse;
  const auto store = [&](const float (&v)[8], int k) {
    if (k >= padded) return;
    float u[8];
#pragma unroll
    for (int j = 0; j < 8; j++) u[j] = v[j] * factor;
    if (a.form != PACKED_HALF) {
      uint16_t* to = a.y + (static_cast<size_t>(k / 64) * a.rows + row) * 64 + ((k / 8 ^ row) & 7) * 8;
      *reinterpret_cast<uint4*>(to) = a.form == PLAIN_HALF ? eight_of<Half>(u) : eight_of<Bfloat>(u);
      return;
    }
    const int t = k / 64 % 4, half = k / 32 % 2;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int step = (k % 32 / 4 + i) * 2 + half, tile = k / 256 * 4 + step / 4, column = step % 4 * 2;
      uint16_t* to = a.y + (static_cast<size_t>(tile) * a.rows + row) * 64 + 2 * t;
      *reinterpret_cast<uint32_t*>(to + ((column ^ row) & 7) * 8) = pair_of<Half>(u[4 * i], u[4 * i + 2]);
      *reinterpret_cast<uint32_t*>(to + (((column + 1) ^ row) & 7) * 8) = pair_of<Half>(u[4 * i + 1], u[4 * i + 3]);
    }
  };
#pragma unroll
  for (int c = 0; c < HELD; c++) store(held[c], c * CHUNK + threadIdx.x * 8);
  for (int k = HELD * CHUNK + threadIdx.x * 8; k < padded; k += CHUNK) {
    float v[8];
    load(v, k);
    store(v, k);
  }
}
#endif
