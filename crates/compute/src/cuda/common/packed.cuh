// What all packed types share. Packed layouts are those that kernels read fastest, made once from a file's blocks (repack.cu), with no
// bytes more than padding.
//
// A row is pieces of 64 weights: within one, byte l of 32 holds weight l in its low nibble and weight 32 + l in its high one, unless the
// type says otherwise. 32 pieces, or what is left of a row, are a group, which a warp reads a piece to a lane: first the first 16 bytes of
// each piece, then the second ones, and so on, so that the lanes' loads lie side by side, and last what is smaller. Groups and rows are
// padded to a multiple of 16 bytes.
//
// `quant/<type>/packed.cuh` describes a type, in one struct, most of whose constants are those of its `PackedLayout`. It gives
//   bytes(size)    of a group of `size` pieces,
//   load8          eight weights as floats, bit for bit as from the file's block,
//   pack           the conversion of one piece;
// for one row of activations (gemv.cu)
//   Piece, take    a piece in registers, from its group in shared memory,
//   dot            its product with 64 activations of int8 (see XPiece),
//   PAIRS_OF_SUMS  which sums of activations `dot` wants,
//   ROWS           of which a lane takes a piece at a time: as many as its registers hold,
//   WIDE_RING      whether the ring in shared memory is the one for types whose groups are large,
//   OF_EXPERTS     whether the kernels of experts for one row and for Hopper have registers for it,
//   OF_STREAM_K_128  whether stream_k_128 has,
//   OF_GEMM_I8     whether gemm_i8 takes it: `SmallM::unpack` reads vectors of its rows, or what lies after them, not both,
//   TABLE          words of the table that its codes are looked up in, in shared memory, or 0. `table_word` makes them; `Piece`, `SmallM` and
//                  `Fragment` of such types have a pointer to it, and `SmallM` reads its rows by itself;
// for the same with the bits of `SmallM`, of types that gemm_i8 takes, where scales are integers
//   integers       what the pieces of 256 columns add up, with the mins' part apart,
//   factors        what these are multiplied with, bits of which all of the pieces have the same,
//   total          the product, but for the activations' scale,
// and where they are not
//   Terms          what a piece adds to the sum of either half;
// for operands of large matmuls (operands.cu)
//   unpack16       weights 8 j to 8 j + 7 of a piece in `low`, and those 32 further on in `high`, j in 0..4, as `load8` gives them,
//   take_codes     loads weights 16 v to 16 v + 15 of a piece, and those 32 further on, v in 0..2,
//   codes_of       makes of these unsigned codes of a byte, in `half[0]` and `half[1]`: a weight is scale * code - min,
//   ZERO           the code of zero where all weights have the same one, else -1,
//   bound          the largest magnitude that weights of such a scale and min may have;
// and for the tensor cores
//   SmallM         16 rows of weights as bytes (small_m.cu),
//   Fragment       a piece as numbers of half precision, in the order of wgmma's first operand (mixed_gemm.cuh).
#pragma once
#include "quant.cuh"

// 64 activations: q[i] * scale[i / 32]. 80 bytes, so that eight threads that read neighbours use different banks.
struct __align__(16) XPiece {
  int8_t q[64];
  float scale[2];
  // What the type of the weights wants to know (its SUMS): the sums of the activations of each half, as floats; or the sums of q over
  // 16, in pairs, the first in the low half.
  uint32_t sums[2];
};

// A small integer's float without the slow conversion: sums begin at this number, whose last bits count units.
constexpr int FLOAT_UNITS = 0x4b400000;
DEVICE float units(int sum) { return __uint_as_float(static_cast<uint32_t>(sum)) - 12582912.0f; }

// The float of six bits.
DEVICE float six_bits(uint32_t x) { return __uint_as_float(ptx::mask_and_set(x, 63, 0x4b000000u)) - 8388608.0f; }

// Six bits times a number, of which `offset` is the product with -2^23: the bits are the last of a float between 2^23 and 2^24. Rounded once.
DEVICE float times_six_bits(uint32_t x, float factor, float offset) {
  return fmaf(__uint_as_float(ptx::mask_and_set(x, 63, 0x4b000000u)), factor, offset);
}

DEVICE int low_half(uint32_t x) { return static_cast<int16_t>(x); }
DEVICE int high_half(uint32_t x) { return static_cast<int>(x) >> 16; }

DEVICE uint4 load16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

DEVICE uint32_t word(const uint4 (&v)[2], int i) {
  const uint4 u = v[i / 4];
  return i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
}

DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A piece of activations in registers.
struct X {
  uint4 v[5];
  float offsets[4];  // scales and sums times -2^23
  DEVICE void load(const XPiece* p) {
#pragma unroll
    for (int i = 0; i < 5; i++) v[i] = reinterpret_cast<const uint4*>(p)[i];
#pragma unroll
    for (int i = 0; i < 4; i++) offsets[i] = __uint_as_float(word(v[4], i)) * -8388608.0f;
  }
  DEVICE void multiply_scales(float factor) {
    v[4].x = __float_as_uint(scale(0) * factor), v[4].y = __float_as_uint(scale(1) * factor);
  }
  DEVICE void clear() {
#pragma unroll
    for (int i = 0; i < 5; i++) v[i] = uint4{0, 0, 0, 0};
#pragma unroll
    for (int i = 0; i < 4; i++) offsets[i] = 0;
  }
  DEVICE int q(int i) const { return static_cast<int>(word(v[i / 4], i % 4)); }
  DEVICE float scale(int half) const { return __uint_as_float(word(v[4], half)); }
  DEVICE float sum(int half) const { return __uint_as_float(word(v[4], 2 + half)); }
  DEVICE int integer_sum(int half) const { return static_cast<int>(word(v[4], 2 + half)); }
  DEVICE uint32_t sums(int half) const { return word(v[4], 2 + half); }
};

// Products of integers, scaled by integers, and the mins' part of types that have any.
struct Integers {
  int sum, mins;
};

// Sums over 32 products of unsigned nibbles: of the low ones, and 16 times that of the high ones, which begin with `first`.
DEVICE void dot_nibbles(const uint4 (&q)[2], const X& x, int& low, int& high, int first = FLOAT_UNITS) {
  low = high = first;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint32_t w = word(q, i);
    low = ptx::dp4a_unsigned(w & 0x0f0f0f0fu, x.q(i), low);
    high = ptx::dp4a_unsigned(w & 0xf0f0f0f0u, x.q(8 + i), high);
  }
}

// Pieces of a whole group.
constexpr int GROUP = 32;

DEVICE constexpr int padded(int bytes) { return (bytes + 15) / 16 * 16; }

// The first N vectors of a lane's piece.
template <int N>
DEVICE void take_vectors(uint4 (&to)[N], const uint8_t* group, int size, int at) {
#pragma unroll
  for (int i = 0; i < N; i++) to[i] = load16(group + (i * size + at) * 16);
}

// Where piece `piece` of a row of n weights is: its group, its place there, and how many pieces the group has.
struct Place {
  int group, at, size;
  DEVICE Place(int piece, int n) : group(piece / GROUP), at(piece % GROUP), size(n / 64 - piece / GROUP * GROUP) {
    if (size > GROUP) size = GROUP;
  }
};

// The constants of a type. BYTES_OF_4: bytes of four pieces.
template <int BYTES_OF_4, int ROWS_AT_ONCE>
struct PackedLayout {
  static constexpr bool PACKED = true, PAIRS_OF_SUMS = false, WIDE_RING = false, OF_EXPERTS = true, OF_STREAM_K_128 = true, OF_GEMM_I8 = true;
  // Whether `SmallM::unpack` reads vectors of the rows it is given, and nothing that lies after them.
  static constexpr bool UNPACKS_VECTORS = false;
  static constexpr int ROWS = ROWS_AT_ONCE, TABLE = 0;
  DEVICE static constexpr int bytes(int size) { return padded(BYTES_OF_4 * size / 4); }
  // The group of a piece of a row.
  template <class Byte>
  DEVICE static Byte* group_of(Byte* row, const Place& p) { return row + static_cast<size_t>(p.group) * bytes(GROUP); }
};

// Makes the table of a type, with these threads.
template <class P>
DEVICE void fill_table(uint32_t* table, int thread, int n_threads) {
  if constexpr (P::TABLE > 0) {
    for (int i = thread; i < P::TABLE; i += n_threads) table[i] = P::table_word(i);
  }
}

struct Sixteen {
  float low[8], high[8];
};

// Byte i of two words.
DEVICE uint32_t byte_of(uint2 v, int i) { return (i < 4 ? v.x : v.y) >> 8 * (i % 4) & 255; }

// The float of a number below 2^23, without the slow conversion.
DEVICE float float_of(uint32_t x) { return __uint_as_float(0x4b000000u | x) - 8388608.0f; }

DEVICE uint2 load_pair(const uint8_t* p) { return *reinterpret_cast<const uint2*>(p); }
DEVICE uint32_t load_word(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Bytes 8 j to 8 j + 7 of a piece's first 32.
DEVICE uint2 bytes_of(const uint8_t* group, const Place& p, int j) { return load_pair(group + (j / 2 * p.size + p.at) * 16 + j % 2 * 8); }

struct Codes {
  struct Half {
    uint4 q;
    float scale;
    float min;
  } half[2];
};

// Where the bytes are that have weight k of a row in their low nibbles or high ones, from a group's first vectors on.
DEVICE const uint8_t* nibbles_at(const uint8_t* group, const Place& p, int k) { return group + (k % 32 / 16 * p.size + p.at) * 16 + k % 16; }
DEVICE uint32_t nibble(uint8_t byte, int k) { return byte >> k / 32 % 2 * 4 & 15; }

// Calls f with each word of a vector.
template <class F>
DEVICE uint4 for_words(const uint4& v, F f) {
  return uint4{f(v.x, 0), f(v.y, 1), f(v.z, 2), f(v.w, 3)};
}

DEVICE uint4 low_nibbles(const uint4& v) {
  return for_words(v, [](uint32_t w, int) { return w & 0x0f0f0f0fu; });
}

DEVICE uint4 high_nibbles(const uint4& v) {
  return for_words(v, [](uint32_t w, int) { return w >> 4 & 0x0f0f0f0fu; });
}

// Fifth bits of a piece whose first bits are nibbles: bit 8 b + j of the first word is that of weight 4 j + b, of the second word that of
// weight 32 + 4 j + b.
struct FifthBits {
  uint2 words;
  DEVICE static FifthBits load(const uint8_t* p) { return {load_pair(p)}; }
  // Bit 4 of byte b: that of weight 4 i + b of a half.
  DEVICE static uint32_t in_place(uint32_t word, int i) { return (i < 4 ? word << (4 - i) : word >> (i - 4)) & 0x10101010u; }
  // Weights l of a half, from its word.
  DEVICE static uint32_t of_weight(uint32_t word, int l) { return (word >> (8 * (l % 4) + l / 4) & 1) << 4; }
  // The word of a half, of which `bit` gives the bit of weight l.
  template <class Bit>
  DEVICE static void pack(uint8_t* to, Bit bit) {
    uint32_t word = 0;
    for (int l = 0; l < 32; l++) word |= bit(l) << (8 * (l % 4) + l / 4);
    for (int i = 0; i < 4; i++) to[i] = static_cast<uint8_t>(word >> 8 * i);
  }
  // Sums over 32 products of each half, which begin with `first`.
  DEVICE void dot(const uint4 (&q)[2], const X& x, int& low, int& high, int first = FLOAT_UNITS) const {
    low = high = first;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(q, i);
      low = __dp4a(static_cast<int>((w & 0x0f0f0f0fu) | in_place(words.x, i)), x.q(i), low);
      high = __dp4a(static_cast<int>((w >> 4 & 0x0f0f0f0fu) | in_place(words.y, i)), x.q(8 + i), high);
    }
  }
  // Adds the fifth bits of weights 16 v to 16 v + 15 of a half to their nibbles.
  DEVICE static uint4 above(const uint4& nibbles, uint32_t bits, int v) {
    return for_words(nibbles, [=](uint32_t w, int i) { return w | (bits >> (4 * v + i) & 0x01010101u) << 4; });
  }
};

// What a thread has of a piece in registers.
struct Taken {
  uint4 q, more;
  uint32_t words[3];
};

// `SmallM` of a type: what lanes know of two rows of a warp's pieces, g and g + 8, and weights as bytes. With MINS, each 32 weights have
// one, and bytes have no sign; with MINS_OF_16 each 16 have one, which `mins` makes an operand of. UNPACKED ones lie in memory as bytes
// already.
//
// `take` gets where the rows are, how many pieces the group has, and which of these is the lane's: lane t of each four has piece t of
// the warp's. `words` hold the scales of both halves of the piece in both rows, in a form that lanes hand each other; `scale` finds one
// there.
//
// `unpack` makes the tensor cores' first operand of 32 columns of rows g and g + 8, half h of piece `at`: from the piece's first 32
// bytes, as `ldmatrix_x4` gives them, those of a lone vector twice, and from where these rows are. `multiply` adds its products to sums,
// which begin with FIRST, for 32 columns or PARTS of them. `add` adds such sums up by scale, over 256 columns: in integers, exactly, where
// scales are integers and the activations have one scale, with which `total` is multiplied; with that of the activations where it is OF_32.

// Rotates left.
DEVICE uint32_t rotate(uint32_t x, int n) { return __funnelshift_r(x, x, 32 - n & 31); }
DEVICE int byte_at(uint32_t x, int i) { return static_cast<int>(__byte_perm(x, 0, 0x4440 + i)); }

// A number as floats see it when sums begin with FLOAT_UNITS.
constexpr float UNITS = 12582912.0f;

// For types whose blocks of 32 have a scale.
struct SmallMOf32 {
  typedef float Sum;
  static constexpr int WORDS = 2, PARTS = 1, FIRST = FLOAT_UNITS;
  static constexpr bool MINS = false, MINS_OF_16 = false, OF_32 = true;
  uint32_t words[2];
  DEVICE static float scale(const uint32_t (&w)[2], int h, int, int r) { return ptx::f16_to_f32(static_cast<uint16_t>(w[r] >> 16 * h)); }
  DEVICE static void multiply(int (&y)[1][4], const uint32_t (&a)[4], uint2 b, const int (&c)[1][4]) { ptx::mma_s8(y[0], a, b, c[0]); }
  DEVICE static void add(float& sum, int d, float scale, float x_scale) { sum = fmaf(__int_as_float(d) - UNITS, scale * x_scale, sum); }
};

// `Terms` of such types: N sums of products and what they are multiplied with, those of the first half first.
template <int N>
struct TermsOf32 {
  float sums[N], scales[N];
  DEVICE void set(int i, int sum, float scale, float x_scale) { sums[i] = units(sum), scales[i] = scale * x_scale; }
  DEVICE float add(float to, int half) const {
#pragma unroll
    for (int i = 0; i < N / 2; i++) to = fmaf(sums[half * N / 2 + i], scales[half * N / 2 + i], to);
    return to;
  }
};

// For types whose blocks of 256 have integers as scales of 16 weights. `words` are those of a row.
struct SmallMOf16 {
  typedef int Sum;
  static constexpr int WORDS = 2, PARTS = 2, FIRST = 0;
  static constexpr bool MINS = false, MINS_OF_16 = false, UNPACKED = false, OF_32 = false;
  float d[2];
  uint32_t words[2];
  DEVICE static void multiply(int (&y)[2][4], const uint32_t (&a)[4], uint2 b, const int (&c)[2][4]) {
    ptx::mma_s8_k16(y[0], a[0], a[1], b.x, c[0]);
    ptx::mma_s8_k16(y[1], a[2], a[3], b.y, c[1]);
  }
  DEVICE static void add(int& sum, int d, int scale, float) { sum += d * scale; }
  DEVICE float total(int low, int high, float, int r) const { return d[r] * static_cast<float>(low + high); }
};

// Rows of weights in a stage of the ring that fragments are loaded from.
constexpr int STAGE_ROWS = 128;

constexpr uint32_t MAGIC = 0x64006400;  // 1024 twice: an integer below 1024 in its last bits is added to it

DEVICE uint32_t twice(uint32_t x, bool high) { return __byte_perm(x, 0, high ? 0x3232 : 0x1010); }

// `Fragment` of a type: vectors of 16 bytes of a piece, and vectors of the rest of four pieces, which lie at `rest_at` of a group, a
// multiple of 16; and a piece in registers, whose word i gives the weights of two steps: for each, elements 2 t and 2 t + 1 of a row, and
// 2 t + 8 and 2 t + 9.
//
// A stage has for all rows 64 bytes of each vector, and then 16 bytes of each of the rest. `load` gets where lane t's first vector of a
// row is, where the row's rest is, the first of the four pieces' number in their group, and whether lane t's is one of the row's.
struct Four {
  uint32_t low[2], high[2];
};

// Numbers of 4 bits to half precision: those in the low nibbles, and those in the high ones.
DEVICE uint32_t low_nibbles_f16(uint32_t w) { return ptx::add_f16(ptx::mask_and_set(w, 0x000f000f, MAGIC), 0xe400e400); }
DEVICE uint32_t high_nibbles_f16(uint32_t w) { return ptx::fma_f16(ptx::mask_and_set(w, 0x00f000f0, MAGIC), 0x2c002c00, 0xd400d400); }

// Word i of nibbles with their fifth bits, bit i of each byte, to half precision. LOW, HIGH: twice the number that is added to 1024 and the
// low ones, and to 64 and the high ones.
template <uint32_t LOW, uint32_t HIGH>
DEVICE Four five_bits_f16(uint32_t w, uint2 fifths, int i) {
  const uint32_t w8 = w >> 8, u = fifths.x, v = fifths.y;
  // To bit 4, and for the high half to bit 8.
  const uint32_t u0 = i <= 4 ? u << (4 - i) : u >> (i - 4), u1 = u >> (4 + i), v0 = v << (8 - i), v1 = v >> i;
  const auto low = [](uint32_t nibbles, uint32_t fifth) {
    return ptx::add_f16(ptx::mask_and_set(fifth, 0x00100010, ptx::mask_and_set(nibbles, 0x000f000f, MAGIC)), LOW);
  };
  const auto up = [](uint32_t nibbles, uint32_t fifth) {
    return ptx::fma_f16(ptx::mask_and_set(fifth, 0x01000100, ptx::mask_and_set(nibbles, 0x00f000f0, MAGIC)), 0x2c002c00, HIGH);
  };
  return {{low(w, u0), low(w8, u1)}, {up(w, v0), up(w8, v1)}};
}

DEVICE void put_vector(uint32_t* q, uint4 v) { q[0] = v.x, q[1] = v.y, q[2] = v.z, q[3] = v.w; }
