// Products of up to 256 rows of activations with packed weights, or plain ones of 16 bits, for Hopper: y^T = w x^T, so that a weight is
// decoded once, in the registers of the thread that gives it to the tensor cores, whatever the number of rows.
//
// A block owns 128 outputs and a part of their columns; the blocks of a cluster share the columns of the same outputs, and add their sums
// by way of each other's shared memory. Each of two groups of 4 warps owns 64 outputs. Two more threads keep rings in shared memory
// filled: one of weights, as they lie in memory, 256 columns of packed ones or 64 of plain ones to a stage, and one of activations, which
// lie in memory as tiles that the tensor cores can read, as plain weights do in shared memory. Weights are on their way before the
// kernel before this one has ended.
//
// Packed columns are multiplied in an order that suits the packed layouts. Of 256 columns, which are four pieces of 64, lane t of each four
// decodes piece t. Step s of 16 takes four weights of each: those of word s / 2 of the piece's 32 bytes, their low nibbles if s is even,
// the high ones if not.
//
// Half of a block's outputs may be a gate's, and half its up's. The results can be a tile of activations for the next product (tiles.cuh),
// whose rows of weights lie apart, so that the copy engine gathers them.
//
// Moves: the weights once, and the activations, 2 bytes each, once for each block's outputs.
#ifndef REALIZAR_EMULATION
#include "gemm.cuh"
#include "packed.cuh"
#include "ptx_hopper.cuh"
#include "tiles.cuh"

constexpr int MAX_PARTS = 4, MAX_CLUSTER = 6;
// Outputs of a group of 4 warps, and of a block; threads that multiply, and all.
constexpr int OUTS = 64, ROWS = 2 * OUTS;
constexpr int MULTIPLIERS = 256, THREADS = MULTIPLIERS + 128;
// Columns of a stage of packed weights, and of a tile of activations or of plain weights.
constexpr int STEP = 256, TILE = 64;
constexpr int MAX_STAGES = 16;
// Floats from one row's sums to the next one's.
constexpr int PITCH = ROWS + 4;

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
  float* y;               // [m, y_stride], or tiles
  const uint16_t* x;      // as `skinny_activations` writes it
  const float* x_scales;  // [m], or null where all are `fixed_scale`
  const float* bias;      // [n_out] or null
  uint32_t n_parts;
  uint32_t first_tile;    // of this launch
  uint32_t steps[MAX_CLUSTER + 1];  // steps[r] to steps[r + 1] are those of block r of a cluster
  uint32_t n_pieces;      // of a row of weights, the last of which may end early
  uint32_t m, y_stride;
  uint32_t epilogue;      // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t tiles;         // of GATE: the form of the tiles that y is, or 0
  uint32_t activation;
  uint32_t up_row;        // of part 1: its first row of weights
  uint32_t w_stages, x_stages;  // of the rings
  uint32_t w_stage_bytes;
};

// Whether a box has the outputs of a tile of activations in the order of packed columns, which lie apart.
DEVICE bool gathers(const SkinnyArgs& a) { return a.tiles == PACKED_HALF; }

DEVICE uint32_t form_of(uint32_t layout) { return layout == LAYOUT_BF16 ? PLAIN_BFLOAT : layout == LAYOUT_F16 ? PLAIN_HALF : PACKED_HALF; }

constexpr uint32_t MAGIC = 0x64006400;  // 1024 twice: an integer below 1024 in its last bits is added to it

DEVICE uint32_t twice(uint32_t x, bool high) { return __byte_perm(x, 0, high ? 0x3232 : 0x1010); }

// Of a type: vectors of 16 bytes of a piece, and vectors of the rest of four pieces, which lie at `rest_at` of a group; and a piece in
// registers, whose word i gives the weights of two steps: for each, elements 2 t and 2 t + 1 of a row, and 2 t + 8 and 2 t + 9.
//
// A stage has for all rows 64 bytes of each vector, and then 16 bytes of each of the rest. `load` gets where lane t's first vector of a
// row is, where the row's rest is, the first of the four pieces' number in their group, and whether lane t's is one of the row's.
struct Four {
  uint32_t low[2], high[2];
};

// Numbers of 4 bits to half precision: those in the low nibbles, and those in the high ones.
DEVICE uint32_t low_nibbles(uint32_t w) { return ptx::add_f16(ptx::mask_and_set(w, 0x000f000f, MAGIC), 0xe400e400); }
DEVICE uint32_t high_nibbles(uint32_t w) { return ptx::fma_f16(ptx::mask_and_set(w, 0x00f000f0, MAGIC), 0x2c002c00, 0xd400d400); }

DEVICE void put(uint32_t* q, uint4 v) { q[0] = v.x, q[1] = v.y, q[2] = v.z, q[3] = v.w; }

// The scales and the mins of a piece, each twice.
struct KScales {
  uint32_t scale[2], min[2];
  DEVICE void take(const KHeader& header) {
    const uint32_t bits = header.bits;
    const uint32_t s = ptx::mask_and_set(bits << 4, 0x3f0000, ptx::mask_and_set(bits, 0x3f, MAGIC));
    const uint32_t m = ptx::mask_and_set(bits >> 2, 0x3f0000, ptx::mask_and_set(bits >> 6, 0x3f, MAGIC));
    const uint32_t s2 = ptx::mul_f16(ptx::add_f16(s, 0xe400e400), twice(header.d, false));
    const uint32_t m2 = ptx::mul_f16(ptx::add_f16(m, 0xe400e400), twice(header.d, true) ^ 0x80008000);
    scale[0] = twice(s2, false), scale[1] = twice(s2, true), min[0] = twice(m2, false), min[1] = twice(m2, true);
  }
  DEVICE uint32_t weight(int half, uint32_t q) const { return ptx::fma_f16(q, scale[half], min[half]); }
};

struct Piece_Q4_K {
  typedef Packed_Q4_K Packed;
  static constexpr int VECTORS = 2, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
  uint32_t q[8];
  KScales k;
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool) {
    put(q, load16(vectors)), put(q + 4, load16(vectors + 64 * ROWS));
    KHeader header;
    header.take(rest, t);
    k.take(header);
  }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i], w8 = w >> 8;
    return {{k.weight(0, low_nibbles(w)), k.weight(0, low_nibbles(w8))}, {k.weight(1, high_nibbles(w)), k.weight(1, high_nibbles(w8))}};
  }
};

struct Piece_Q5_K {
  typedef Packed_Q5_K Packed;
  static constexpr int VECTORS = 2, REST = 3;
  DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 32 * size + at * 4 : 36 * size + at * 8 + (i - 1) * 16; }
  uint32_t q[8], fifths[2];
  KScales k;
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool) {
    put(q, load16(vectors)), put(q + 4, load16(vectors + 64 * ROWS));
    const uint2 f = *reinterpret_cast<const uint2*>(rest + (1 + t / 2) * 16 * ROWS + t % 2 * 8);
    fifths[0] = f.x, fifths[1] = f.y;
    KHeader header;
    header.take(rest, t);
    k.take(header);
  }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i], w8 = w >> 8, u = fifths[0], v = fifths[1];
    // Bit i of each byte is the fifth: to bit 4, and for the high half to bit 8.
    const uint32_t u0 = i <= 4 ? u << (4 - i) : u >> (i - 4), u1 = u >> (4 + i), v0 = v << (8 - i), v1 = v >> i;
    const auto low = [&](uint32_t nibbles, uint32_t fifth) {
      return ptx::add_f16(ptx::mask_and_set(fifth, 0x00100010, ptx::mask_and_set(nibbles, 0x000f000f, MAGIC)), 0xe400e400);
    };
    const auto up = [&](uint32_t nibbles, uint32_t fifth) {
      return ptx::fma_f16(ptx::mask_and_set(fifth, 0x01000100, ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC)), 0x2c002c00, 0xd400d400);
    };
    return {{k.weight(0, low(w, u0)), k.weight(0, low(w8, u1))}, {k.weight(1, up(w, v0)), k.weight(1, up(w8, v1))}};
  }
};

struct Piece_Q6_K {
  typedef Packed_Q6_K Packed;
  static constexpr int VECTORS = 3, REST = 2;
  DEVICE static int rest_at(int i, int size, int at) { return i == 0 ? 48 * size + at * 4 : 52 * size; }
  uint32_t q[8], high[4], scale[4];
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool) {
    put(q, load16(vectors)), put(q + 4, load16(vectors + 64 * ROWS)), put(high, load16(vectors + 128 * ROWS));
    const uint32_t s = *reinterpret_cast<const uint32_t*>(rest + t * 4);
    const float d = ptx::f16_to_f32(*reinterpret_cast<const uint16_t*>(rest + 16 * ROWS + at / 4 * 2));
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t h = ptx::f32_to_f16(d * (__uint_as_float(__byte_perm(s ^ 0x80808080, 0x4b000000, 0x7540 + i)) - 8388736.0f));
      scale[i] = twice(h, false);
    }
  }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i], w8 = w >> 8;
    const int j = i % 4 * 2;
    // Bits j and j + 1 of each byte are the upper bits: to bits 4 and 5, and for the high half to bits 8 and 9.
    const uint32_t u = high[i / 4], v = high[2 + i / 4];
    const uint32_t u0 = j <= 4 ? u << (4 - j) : u >> (j - 4), u1 = u >> (4 + j), v0 = v << (8 - j), v1 = v >> j;
    const auto low = [&](uint32_t nibbles, uint32_t upper) {
      const uint32_t x = ptx::mask_and_set(upper, 0x00300030, ptx::mask_and_set(nibbles, 0x000f000f, MAGIC));
      return ptx::mul_f16(ptx::add_f16(x, 0xe420e420), scale[i / 4]);
    };
    const auto up = [&](uint32_t nibbles, uint32_t upper) {
      const uint32_t x = ptx::mask_and_set(upper, 0x03000300, ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC));
      return ptx::mul_f16(ptx::fma_f16(x, 0x2c002c00, 0xd600d600), scale[2 + i / 4]);
    };
    return {{low(w, u0), low(w8, u1)}, {up(w, v0), up(w8, v1)}};
  }
};

// Rows of these two may end within four pieces.
struct Piece_Q4_0 {
  typedef Packed_Q4_0 Packed;
  static constexpr int VECTORS = 2, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 32 * size + at * 4; }
  uint32_t q[8], scale[2];
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool valid) {
    put(q, load16(vectors)), put(q + 4, load16(vectors + 64 * ROWS));
    const uint32_t d = valid ? *reinterpret_cast<const uint32_t*>(rest + t * 4) : 0;
    scale[0] = twice(d, false), scale[1] = twice(d, true);
  }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i], w8 = w >> 8;
    const auto low = [&](uint32_t nibbles) {
      return ptx::mul_f16(ptx::add_f16(ptx::mask_and_set(nibbles, 0x000f000f, MAGIC), 0xe408e408), scale[0]);
    };
    const auto up = [&](uint32_t nibbles) {
      return ptx::mul_f16(ptx::fma_f16(ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC), 0x2c002c00, 0xd480d480), scale[1]);
    };
    return {{low(w), low(w8)}, {up(w), up(w8)}};
  }
};

struct Piece_Q8_0 {
  typedef Packed_Q8_0 Packed;
  static constexpr int VECTORS = 4, REST = 1;
  DEVICE static int rest_at(int, int size, int at) { return 64 * size + at * 4; }
  uint32_t q[16], scale[2];
  DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int, bool valid) {
#pragma unroll
    for (int i = 0; i < 4; i++) put(q + 4 * i, load16(vectors + 64 * ROWS * i));
    const uint32_t d = valid ? *reinterpret_cast<const uint32_t*>(rest + t * 4) : 0;
    scale[0] = twice(d, false), scale[1] = twice(d, true);
  }
  // Numbers of 8 bits with a sign become those from 0 on under the exponent of 1024.
  DEVICE static uint32_t bytes(uint32_t w, uint32_t selector) { return ptx::add_f16(__byte_perm(w, 0x64646464, selector), 0xe480e480); }
  DEVICE Four word(int i) const {
    const uint32_t w = q[i] ^ 0x80808080, v = q[8 + i] ^ 0x80808080;
    return {{ptx::mul_f16(bytes(w, 0x4240), scale[0]), ptx::mul_f16(bytes(w, 0x4341), scale[0])},
            {ptx::mul_f16(bytes(v, 0x4240), scale[1]), ptx::mul_f16(bytes(v, 0x4341), scale[1])}};
  }
};

#define FOR_EACH_PIECE(F) \
  F(LAYOUT_Q4_0, Piece_Q4_0) F(LAYOUT_Q8_0, Piece_Q8_0) F(LAYOUT_Q4_K, Piece_Q4_K) F(LAYOUT_Q5_K, Piece_Q5_K) F(LAYOUT_Q6_K, Piece_Q6_K)

// What a kernel for up to N rows is like.
template <int N>
struct Shape {
  // Blocks that a multiprocessor has room for.
  static constexpr int BLOCKS = N <= 64 ? 2 : 1;
  // Registers of a thread that multiplies, and of one that copies.
  static constexpr int REGISTERS = BLOCKS == 2 ? 104 : 232, COPY_REGISTERS = BLOCKS == 2 ? 32 : 40;
  // Tiles of a stage of activations.
  static constexpr int TILES = N <= 32 ? 4 : N <= 64 ? 2 : 1;
  static constexpr int X_STAGE = TILES * N * 128;
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
  DEVICE static Work of(const SkinnyArgs& a, int rank, int tile) {
    const bool gate = a.epilogue == GATE;
    int p = 0;
    if (!gate) {
      while (p + 1 < static_cast<int>(a.n_parts) && tile >= static_cast<int>(a.parts[p + 1].first_tile)) p++;
    }
    const SkinnyPart* part = &a.parts[p];
    const int row = (tile - part->first_tile) * (gate ? ROWS / 2 : ROWS), other_row = gate ? a.up_row + row : row + ROWS / 2;
    return {part, gate ? &a.parts[1] : part, row, other_row, static_cast<int>(a.steps[rank]), static_cast<int>(a.steps[rank + 1])};
  }
};

// Copies a box of 64 rows, from `row` on or, `SPREAD`, those of the tile of activations that will be as many outputs further on.
template <bool SPREAD>
DEVICE void copy_rows(void* to, const ptx::Map* map, int column, int row, uint64_t* full) {
  if (SPREAD) {
    ptx::copy_box(to, map, column, 0, row / 64 % 4, 0, row / 256 * 4, full);
  } else {
    ptx::copy_box(to, map, column, row, full);
  }
}

template <class P, bool SPREAD>
DEVICE void copy_weights(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, Ring ring) {
  const int n_pieces = a.n_pieces;
#pragma unroll 1
  for (int step = work.first_step; step < work.last_step; step++) {
    const int group = step / 8, at = step % 8 * 4, size = min(n_pieces - group * 32, 32);
    const int start = group * P::Packed::bytes(GROUP);
    ptx::wait_for_phase(ring.empty + ring.stage, ring.parity ^ 1);
    uint64_t* full = ring.full + ring.stage;
    ptx::expect_bytes(full, 0, ROWS * (64 * P::VECTORS + 16 * P::REST));
    uint8_t* to = w_ring + ring.stage * a.w_stage_bytes;
#pragma unroll 1
    for (int g = 0; g < 2; g++) {
      const SkinnyPart* part = g == 0 ? work.part : work.other;
      const int row = g == 0 ? work.row : work.other_row;
#pragma unroll
      for (int i = 0; i < P::VECTORS; i++) {
        copy_rows<SPREAD>(to + (i * ROWS + g * OUTS) * 64, &part->vectors, start + (i * size + at) * 16, row, full);
      }
#pragma unroll
      for (int i = 0; i < P::REST; i++) {
        uint8_t* rest = to + P::VECTORS * ROWS * 64 + (i * ROWS + g * OUTS) * 16;
        copy_rows<SPREAD>(rest, &part->rest, start + P::rest_at(i, size, at), row, full);
      }
    }
    ring.next();
  }
}

template <class P, int N>
DEVICE void multiply(const SkinnyArgs& a, const Work& work, float (&sums)[N / 8][4], const uint8_t* w_ring, const uint8_t* x_ring,
                     const Ring& w, const Ring& x) {
  typedef Shape<N> S;
  const int lane = threadIdx.x % 32, t = lane % 4, row = threadIdx.x / 32 * 16 + lane / 4;
  const uint8_t *vectors = w_ring + row * 64 + t * 16, *rest = w_ring + P::VECTORS * ROWS * 64 + row * 16;
  const int n_pieces = a.n_pieces;
  const uint32_t w_bytes = a.w_stage_bytes, w_end = a.w_stages * w_bytes;
  const uint32_t w_full = ptx::shared_address(w.full), w_empty = ptx::shared_address(w.empty);
  const uint32_t x_full = ptx::shared_address(x.full), x_empty = ptx::shared_address(x.empty), x_end = x_full + 8 * x.n;
  const uint32_t x_first = static_cast<uint32_t>(ptx::matrix_at(x_ring));
  uint32_t w_at = 0, w_barrier = 0, w_parity = 0, x_at = x_first, x_barrier = x_full, x_parity = 0, x_done = 0;
  // The weights of two words, of which one is multiplied while the other is decoded.
  uint32_t f[2][2][4];
#pragma unroll 1
  for (int step = work.first_step; step < work.last_step; step++) {
    ptx::wait_at(w_full + w_barrier, w_parity);
    P p[2];
    const bool valid = step * 4 + t < n_pieces;
    p[0].load(vectors + w_at, rest + w_at, t, step % 8 * 4, valid);
    p[1].load(vectors + w_at + 8 * 64, rest + w_at + 8 * 16, t, step % 8 * 4, valid);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      uint32_t(&now)[2][4] = f[i % 2];
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const Four v = p[h].word(i);
        now[0][h] = v.low[0], now[0][2 + h] = v.low[1];
        now[1][h] = v.high[0], now[1][2 + h] = v.high[1];
      }
      const int tile = i / 2 % S::TILES;
      const bool begins = i % 2 == 0 && tile == 0;
      if (begins) ptx::wait_at(x_barrier, x_parity);
      ptx::begin_products();
      ptx::multiply_rows(sums, now[0], ptx::matrix_after(x_at, tile * N * 128 + i % 2 * 64));
      ptx::multiply_rows(sums, now[1], ptx::matrix_after(x_at, tile * N * 128 + i % 2 * 64 + 32));
      ptx::end_products();
      ptx::wait_for_products<1>();
      // What was multiplied before this tile is over.
      if (begins) {
        if (x_done && lane == 0) ptx::arrive_at(x_done);
        x_done = x_barrier + (x_empty - x_full);
      }
      // The stage is free when its loads are over, not when they are under way. Word 4 is of the last vectors.
      if (i == 4 && lane == 0) ptx::arrive_at(w_empty + w_barrier);
      if (i % 2 == 1 && tile == S::TILES - 1) {
        x_at += S::X_STAGE / 16, x_barrier += 8;
        if (x_barrier == x_end) x_at = x_first, x_barrier = x_full, x_parity ^= 1;
      }
    }
    w_at += w_bytes, w_barrier += 8;
    if (w_at == w_end) w_at = w_barrier = 0, w_parity ^= 1;
  }
  ptx::wait_for_products<0>();
}

// As the two above, for plain weights.
template <bool SPREAD>
DEVICE void copy_plain_weights(const SkinnyArgs& a, const Work& work, uint8_t* w_ring, Ring ring) {
  constexpr int BOX = OUTS * TILE * 2;
#pragma unroll 1
  for (int tile = work.first_step * (STEP / TILE); tile < work.last_step * (STEP / TILE); tile++) {
    ptx::wait_for_phase(ring.empty + ring.stage, ring.parity ^ 1);
    uint64_t* full = ring.full + ring.stage;
    ptx::expect_bytes(full, 0, 2 * BOX);
    uint8_t* to = w_ring + ring.stage * a.w_stage_bytes;
    copy_rows<SPREAD>(to, &work.part->vectors, tile * TILE * 2, work.row, full);
    copy_rows<SPREAD>(to + BOX, &work.other->vectors, tile * TILE * 2, work.other_row, full);
    ring.next();
  }
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
                  ptx::matrix_after(x_first, x.stage * S::X_STAGE + of_stage * N * 128 + 32 * s));
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

// What the blocks of a cluster have of their outputs, and a block's share of the rows. The code from here on runs once, so it is short.
struct Sums {
  const float *own, *scales;
  int n_ranks, first_row, n_rows;
  DEVICE Sums(const float* own, const float* scales, int rank, int n_ranks, int m) : own(own), scales(scales), n_ranks(n_ranks) {
    first_row = m * rank / n_ranks, n_rows = m * (rank + 1) / n_ranks - first_row;
  }
  // Adds up the first n of the vectors that begin at `at`, in the blocks' order. What three blocks have is under way at once.
  template <int T>
  DEVICE void take(float4 (&v)[T], const int (&at)[T], int n = T) const {
    if (n_ranks == 1) {
#pragma unroll
      for (int c = 0; c < T; c++) v[c] = *reinterpret_cast<const float4*>(own + at[c]);
      return;
    }
#pragma unroll
    for (int c = 0; c < T; c++) v[c] = float4{0, 0, 0, 0};
#pragma unroll 1
    for (int r = 0; r < n_ranks; r += 3) {
      float4 u[3][T];
#pragma unroll
      for (int j = 0; j < 3; j++) {
        const uint32_t from = ptx::address_in_block(own, min(r + j, n_ranks - 1));
#pragma unroll
        for (int c = 0; c < T; c++) {
          u[j][c] = float4{0, 0, 0, 0};
          if (r + j < n_ranks && c < n) u[j][c] = ptx::load_of_block(from + at[c] * 4);
        }
      }
#pragma unroll
      for (int j = 0; j < 3; j++) {
#pragma unroll
        for (int c = 0; c < T; c++) v[c].x += u[j][c].x, v[c].y += u[j][c].y, v[c].z += u[j][c].z, v[c].w += u[j][c].w;
      }
    }
  }
};

DEVICE float4 times(float4 v, float f) { return float4{v.x * f, v.y * f, v.z * f, v.w * f}; }

// Writes the results as floats. `n_out`: outputs from the block's first on.
template <bool GATED>
DEVICE void write_floats(const SkinnyArgs& a, const Sums& sums, int first_out, int n_out) {
  // Rows of a thread that are under way at once, and from one of its rows to the next.
  constexpr int TOGETHER = GATED ? 1 : 4, QUADS = ROWS / (GATED ? 8 : 4), STRIDE = MULTIPLIERS / QUADS;
  const int local = threadIdx.x % QUADS * 4, out = first_out + local;
  if (local >= n_out) return;
  const bool whole = local + 4 <= n_out && (reinterpret_cast<uintptr_t>(a.y + out) | a.y_stride * 4) % 16 == 0;
  float bias[4] = {};
#pragma unroll
  for (int j = 0; j < 4; j++) {
    if (a.bias && local + j < n_out) bias[j] = a.bias[out + j];
  }
#pragma unroll 1
  for (int first = threadIdx.x / QUADS; first < sums.n_rows; first += TOGETHER * STRIDE) {
    const auto row = [&](int c) { return sums.first_row + min(first + c * STRIDE, sums.n_rows - 1); };
    const auto y = [&](int c) { return a.y + static_cast<size_t>(row(c)) * a.y_stride + out; };
    int at[TOGETHER];
    float4 v[TOGETHER], before[TOGETHER];
#pragma unroll
    for (int c = 0; c < TOGETHER; c++) {
      at[c] = row(c) * PITCH + local;
      before[c] = a.epilogue == ADD && whole ? *reinterpret_cast<const float4*>(y(c)) : float4{0, 0, 0, 0};
    }
    sums.take(v, at, ceil_div(sums.n_rows - first, STRIDE));
    if (GATED) {
      float4 u[TOGETHER];
      at[0] += ROWS / 2;
      sums.take(u, at);
      v[0] = times(v[0], sums.scales[row(0)]);
      v[0] = float4{activate_gate(a.activation, v[0].x) * u[0].x, activate_gate(a.activation, v[0].y) * u[0].y,
                    activate_gate(a.activation, v[0].z) * u[0].z, activate_gate(a.activation, v[0].w) * u[0].w};
    }
#pragma unroll
    for (int c = 0; c < TOGETHER; c++) {
      if (first + c * STRIDE >= sums.n_rows) break;
      const float4 w = times(v[c], sums.scales[row(c)]);
      const float each[4] = {w.x + bias[0], w.y + bias[1], w.z + bias[2], w.w + bias[3]};
      if (whole) {
        *reinterpret_cast<float4*>(y(c)) =
            float4{each[0] + before[c].x, each[1] + before[c].y, each[2] + before[c].z, each[3] + before[c].w};
      } else {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (local + j < n_out) y(c)[j] = each[j] + (a.epilogue == ADD ? y(c)[j] : 0.0f);
        }
      }
    }
  }
}

// Writes gated results as the tile of activations that the next product reads: 16 outputs of a row to a thread at a time, which are 32 bytes
// of its line. Lanes take rows in an order in which their reads fall on all banks.
template <int N>
DEVICE void write_tiles(const SkinnyArgs& a, const Sums& sums, int tile) {
  const GateSigmoid activate(a.activation);
  const int eights = ceil_div(sums.n_rows, 8), q = threadIdx.x % 4;
  const bool packed = a.tiles == PACKED_HALF;
  const float factor = 1.0f / fixed_scale(a.tiles);
#pragma unroll 1
  for (int i = threadIdx.x / 32; i < eights; i += MULTIPLIERS / 32) {
    const int in_share = i * 8 + threadIdx.x / 4 % 2 * 4 + threadIdx.x % 32 / 8, row = sums.first_row + in_share;
    if (in_share >= sums.n_rows) continue;
    const float scale = sums.scales[row];
    int at[4];
    float4 v[4], u[4];
#pragma unroll
    for (int c = 0; c < 4; c++) at[c] = row * PITCH + (packed ? c * 16 + q * 4 : q * 16 + c * 4);
    sums.take(v, at);
#pragma unroll
    for (int c = 0; c < 4; c++) at[c] += ROWS / 2;
    sums.take(u, at);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const float4 g = times(v[c], scale), by = times(u[c], scale * factor);
      v[c] = float4{activate(g.x) * by.x, activate(g.y) * by.y, activate(g.z) * by.z, activate(g.w) * by.w};
    }
    uint16_t* line = reinterpret_cast<uint16_t*>(a.y) + (static_cast<size_t>(tile) * N + row) * TILE;
    const auto put = [&](int vector, uint4 numbers) { *reinterpret_cast<uint4*>(line + ((vector ^ row) & 7) * 8) = numbers; };
    if (packed) {
      const int vector = q % 2 * 4 + q / 2 * 2;
      put(vector, uint4{half_pair(v[0].x, v[0].z), half_pair(v[1].x, v[1].z), half_pair(v[2].x, v[2].z), half_pair(v[3].x, v[3].z)});
      put(vector + 1, uint4{half_pair(v[0].y, v[0].w), half_pair(v[1].y, v[1].w), half_pair(v[2].y, v[2].w), half_pair(v[3].y, v[3].w)});
    } else {
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const float4 w = v[2 * c], z = v[2 * c + 1];
        put(2 * q + c, a.tiles == PLAIN_HALF ? uint4{half_pair(w.x, w.y), half_pair(w.z, w.w), half_pair(z.x, z.y), half_pair(z.z, z.w)}
                                             : eight_of<Bfloat>({w.x, w.y, w.z, w.w, z.x, z.y, z.z, z.w}));
      }
    }
  }
}

// Blocks (rank in the cluster, tile from the launch's first on).
template <int N>
DEVICE void multiply_tile(const SkinnyArgs& a) {
#if __CUDA_ARCH__ == 900
  typedef Shape<N> S;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ uint64_t w_full[MAX_STAGES], w_empty[MAX_STAGES], x_full[MAX_STAGES], x_empty[MAX_STAGES];
  __shared__ float scales[N];
  ptx::let_next_kernel_start();
  const int tid = threadIdx.x, lane = tid % 32, warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const Work work = Work::of(a, blockIdx.x, a.first_tile + blockIdx.y);
  if (tid < static_cast<int>(a.w_stages)) ptx::make_barrier(w_full + tid, 1), ptx::make_barrier(w_empty + tid, MULTIPLIERS / 32);
  if (tid / 32 == 1 && lane < static_cast<int>(a.x_stages)) {
    ptx::make_barrier(x_full + lane, 1), ptx::make_barrier(x_empty + lane, MULTIPLIERS / 32);
  }
  if (tid < 64) ptx::barriers_are_ready();
  __syncthreads();
  uint8_t* x_ring = shared + a.w_stages * a.w_stage_bytes;
  if (warp >= MULTIPLIERS / 32) {
    ptx::fewer_registers<S::COPY_REGISTERS>();
    if (tid == MULTIPLIERS) {
      const Ring ring(w_full, w_empty, a.w_stages);
#define COPY(layout, P)                                                       \
  case layout:                                                                \
    if (gathers(a)) copy_weights<P, true>(a, work, shared, ring);             \
    else copy_weights<P, false>(a, work, shared, ring);                       \
    break;
      switch (work.part->layout) {
        FOR_EACH_PIECE(COPY)
        default:
          if (gathers(a)) copy_plain_weights<true>(a, work, shared, ring);
          else copy_plain_weights<false>(a, work, shared, ring);
      }
    } else if (tid == MULTIPLIERS + 32) {
      ptx::wait_for_previous_kernel();
      Ring ring(x_full, x_empty, a.x_stages);
      const int n_stages = (work.last_step - work.first_step) * (STEP / TILE / S::TILES);
      const uint8_t* x = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(work.first_step) * (STEP / TILE) * N * 128;
#pragma unroll 1
      for (int i = 0; i < n_stages; i++) {
        ptx::wait_for_phase(ring.empty + ring.stage, ring.parity ^ 1);
        ptx::expect_bytes(ring.full + ring.stage, 0, S::X_STAGE);
        ptx::copy_bytes(x_ring + ring.stage * S::X_STAGE, x, S::X_STAGE, ring.full + ring.stage, 0);
        x += S::X_STAGE;
        ring.next();
      }
    }
  } else {
    ptx::more_registers<S::REGISTERS>();
    float sums[N / 8][4] = {};
    ptx::wait_for_previous_kernel();
    if (tid < static_cast<int>(a.m)) scales[tid] = a.x_scales ? a.x_scales[tid] : fixed_scale(form_of(work.part->layout));
    const Ring w(w_full, w_empty, a.w_stages), x(x_full, x_empty, a.x_stages);
#define MULTIPLY(layout, P) \
  case layout: multiply<P, N>(a, work, sums, shared, x_ring, w, x); break;
    switch (work.part->layout) {
      FOR_EACH_PIECE(MULTIPLY)
      case LAYOUT_F16: multiply_plain<PlainHalf, N>(a, work, sums, shared, x_ring, w, x); break;
      default: multiply_plain<PlainBfloat, N>(a, work, sums, shared, x_ring, w, x); break;
    }
    // All groups are done with the rings. What is computed anew needed no registers until here.
    ptx::sync_threads<MULTIPLIERS>(1);
    const uint2 block = ptx::block_again();
    const int again = ptx::thread_again(), rank = block.x, n_ranks = gridDim.x;
    float* to = reinterpret_cast<float*>(shared) + again / 32 * 16 + again % 32 / 4 + again % 4 * 2 * PITCH;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
      float* at = to + j * 8 * PITCH;
      at[0] = sums[j][0], at[PITCH] = sums[j][1], at[8] = sums[j][2], at[PITCH + 8] = sums[j][3];
    }
    if (n_ranks > 1) ptx::sync_cluster(); else ptx::sync_threads<MULTIPLIERS>(1);
    const Work done = Work::of(a, rank, a.first_tile + block.y);
    const Sums all(reinterpret_cast<const float*>(shared), scales, rank, n_ranks, a.m);
    const int first_out = done.part->first_out + done.row, n_out = done.part->n_out - done.row;
    if (a.tiles) write_tiles<N>(a, all, done.row / TILE);
    else if (a.epilogue == GATE) write_floats<true>(a, all, first_out, n_out);
    else write_floats<false>(a, all, first_out, n_out);
    // Others may still read this block's sums.
    if (n_ranks > 1) ptx::meet_cluster();
  }
#endif
}

#define SKINNY(N)                                                                           \
  extern "C" __global__ void __launch_bounds__(THREADS, Shape<N>::BLOCKS) skinny_##N(     \
      const __grid_constant__ SkinnyArgs a) {                                             \
    multiply_tile<N>(a);                                                                  \
  }
SKINNY(8) SKINNY(16) SKINNY(32) SKINNY(64) SKINNY(128) SKINNY(256)

// Rows of activations as tiles of 64 columns, normalized where a norm comes before. A block converts a row.
struct SkinnyActivationArgs {
  uint16_t* y;          // [padded / 64, rows, 64]
  float* scales;        // [m], what each row must be multiplied with
  const float* x;       // [m, n]
  const float* weight;  // [n] of the norm that comes before, or null
  uint32_t n, padded;   // columns, and with those of zeros at the end
  uint32_t form;
  uint32_t rows;        // of a tile
  float eps;
};

constexpr int ACTIVATION_THREADS = 512;

KERNEL(skinny_activations, SkinnyActivationArgs, ACTIVATION_THREADS) {
  constexpr int HELD = 4, CHUNK = ACTIVATION_THREADS * 8;
  ptx::let_next_kernel_start();
  __shared__ float scratch[2][ACTIVATION_THREADS / 32];
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
  for (int w = 0; w < ACTIVATION_THREADS / 32; w++) squares += scratch[0][w], largest = fmaxf(largest, scratch[1][w]);
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
    put_packed(a.y, a.rows, row, k, u[0], u[1], u[2], u[3]);
    put_packed(a.y, a.rows, row, k + 4, u[4], u[5], u[6], u[7]);
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
