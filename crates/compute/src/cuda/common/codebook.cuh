// Packed types whose codes of four bits stand for sixteen values of int8, times a scale for 32 or 16 weights.
//
// Bits 4 b to 4 b + 3 of word i of a piece's two vectors are the code of weight 4 i + b, and those from 16 on that of weight 32 + 4 i + b:
// so three byte permutations look up four neighbours. After the vectors of a group come the pieces' scales.
//
// `Scales` of a type: those of a piece, in registers.
//   N               how many: 2, or 4,
//   BYTES_OF_4      bytes in a group that four pieces' scales have,
//   read(p, i)      those of piece i after the one whose scales are at p, which is the first of a block of 256,
//   scale(i)        one as a float,
//   halves(i)       2 i and 2 i + 1 in half precision, in units of `Values::halves`,
//   OF_SMALL_M      what those of `SmallM` are of them, a power of two, where they are no integers,
//   source_code     the code of weight l of a piece, from the file's blocks,
//   pack            writes those of one piece, at `p` as for `read`; where a block's pieces share bytes, its first piece writes all.
#pragma once
#include "packed.cuh"

// V: the values.
template <int... V>
struct Codebook {
  static constexpr int MAX = [] {
    int max = 0;
    for (const int v : {V...}) max = v > max ? v : -v > max ? -v : max;
    return max;
  }();
  // Values 4 i to 4 i + 3, plus OFFSET.
  template <int OFFSET>
  DEVICE static constexpr uint32_t word_of(int i) {
    const int values[16] = {V...};
    uint32_t word = 0;
    for (int b = 0; b < 4; b++) word |= (static_cast<uint32_t>(values[4 * i + b] + OFFSET) & 255u) << 8 * b;
    return word;
  }
  // The bytes of four codes, which are the low half of `codes`.
  template <int OFFSET>
  DEVICE static uint32_t look_up(uint32_t codes) {
    constexpr uint32_t W0 = word_of<OFFSET>(0), W1 = word_of<OFFSET>(1), W2 = word_of<OFFSET>(2), W3 = word_of<OFFSET>(3);
    const uint32_t index = codes & 0x7777, is_upper = (codes & 0x8888) >> 1;
    return __byte_perm(__byte_perm(W0, W1, index), __byte_perm(W2, W3, index), 0x3210 | is_upper);
  }
  DEVICE static uint32_t signed_bytes(uint32_t codes) { return look_up<0>(codes); }
  // Less 128 they are the values.
  DEVICE static uint32_t unsigned_bytes(uint32_t codes) { return look_up<128>(codes); }
  // The values of a word of codes in half precision: as `Four` says, of both halves of a piece.
  DEVICE static Four halves(uint32_t codes) {
    const uint32_t low = unsigned_bytes(codes), high = unsigned_bytes(codes >> 16);
    return {{pair(low, 0x4240), pair(low, 0x4341)}, {pair(high, 0x4240), pair(high, 0x4341)}};
  }

 private:
  // Two of four bytes under the exponent of 1024, to numbers.
  DEVICE static uint32_t pair(uint32_t bytes, uint32_t selector) { return ptx::add_f16(__byte_perm(bytes, 0x64646464, selector), 0xe480e480); }
};

template <class Values, class Scales>
struct PackedCodebook : PackedLayout<128 + Scales::BYTES_OF_4, 2> {
  using PackedLayout<128 + Scales::BYTES_OF_4, 2>::group_of;
  // Which scale is that of weight l of a half.
  static constexpr int N = Scales::N;
  DEVICE static constexpr int which(int half, int l) { return half * N / 2 + l / 16 * (N / 4); }
  DEVICE static float weight(float scale, uint32_t unsigned_byte) { return scale * (float_of(unsigned_byte) - 128.0f); }

  struct Piece {
    uint4 q[2];
    Scales scales;
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, size, at);
    p.scales = Scales::read(group + 32 * size, at);
  }
  // Sums of products of those that share a scale, which begin with `first`.
  DEVICE static void dot_values(const Piece& p, const X& x, int (&sums)[N], int first) {
#pragma unroll
    for (int i = 0; i < N; i++) sums[i] = first;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      int &low = sums[which(0, 4 * i)], &high = sums[which(1, 4 * i)];
      low = __dp4a(static_cast<int>(Values::signed_bytes(w)), x.q(i), low);
      high = __dp4a(static_cast<int>(Values::signed_bytes(w >> 16)), x.q(8 + i), high);
    }
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int sums[N];
    dot_values(p, x, sums, FLOAT_UNITS);
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; i++) sum = fmaf(p.scales.scale(i) * x.scale(i * 2 / N), units(sums[i]), sum);
    return sum;
  }

  // Of types whose scales are no integers.
  struct Terms : TermsOf32<N> {
    DEVICE Terms(const Piece& p, const X& x) {
      int sums[N];
      dot_values(p, x, sums, FLOAT_UNITS);
#pragma unroll
      for (int i = 0; i < N; i++) this->set(i, sums[i], p.scales.scale(i) * Scales::OF_SMALL_M, x.scale(i * 2 / N));
    }
  };

  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    const uint8_t* group = group_of(row, p);
    const int half = k / 32 % 2;
    const uint2 q = bytes_of(group, p, k % 32 / 8);
    const float scale = Scales::read(group + 32 * p.size, p.at).scale(which(half, k % 32));
    const uint2 v = {Values::unsigned_bytes(q.x >> 16 * half), Values::unsigned_bytes(q.y >> 16 * half)};
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = weight(scale, byte_of(v, j));
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    for (int i = 0; i < 8; i++) {
      uint32_t word = 0;
      for (int b = 0; b < 4; b++) {
        word |= Scales::source_code(source, piece, 4 * i + b) << 4 * b | Scales::source_code(source, piece, 32 + 4 * i + b) << (16 + 4 * b);
      }
      *reinterpret_cast<uint32_t*>(group + (i / 4 * p.size + p.at) * 16 + i % 4 * 4) = word;
    }
    Scales::pack(group + 32 * p.size, p.at, source, piece);
  }

  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const uint2 q = bytes_of(group, p, j);
    const Scales scales = Scales::read(group + 32 * p.size, p.at);
    const uint2 low = {Values::unsigned_bytes(q.x), Values::unsigned_bytes(q.y)};
    const uint2 high = {Values::unsigned_bytes(q.x >> 16), Values::unsigned_bytes(q.y >> 16)};
    Sixteen y;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      y.low[i] = weight(scales.scale(which(0, 8 * j)), byte_of(low, i));
      y.high[i] = weight(scales.scale(which(1, 8 * j)), byte_of(high, i));
    }
    return y;
  }

  static constexpr int ZERO = 128;
  DEVICE static float bound(const Codes::Half& h) { return static_cast<float>(Values::MAX) * fabsf(h.scale); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int v, int n) {
    const Place p(piece, n);
    const uint8_t* group = group_of(row, p);
    const Scales scales = Scales::read(group + 32 * p.size, p.at);
    return {load16(group + (v * p.size + p.at) * 16), {}, {scales.d, scales.bits}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const Scales scales = {t.words[0], t.words[1]};
    const auto codes = [&](int shift) { return for_words(t.q, [=](uint32_t w, int) { return Values::unsigned_bytes(w >> shift); }); };
    return {{{codes(0), scales.scale(which(0, 16 * v)), 0}, {codes(16), scales.scale(which(1, 16 * v)), 0}}};
  }

  // How `SmallM` of these types unpacks.
  DEVICE static void unpack_bytes(uint32_t (&a)[4], const uint32_t (&q)[4], int h) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = Values::signed_bytes(h ? q[i] >> 16 : q[i]);
  }

  // Rows may end within four pieces.
  struct Fragment {
    static constexpr int VECTORS = 2, REST = 1;
    // TMA wants a multiple of 16, before which less may lie than the scales of four pieces.
    DEVICE static int rest_at(int, int size, int at) { return 32 * size + at / 4 * Scales::BYTES_OF_4 / 16 * 16; }
    uint32_t q[8], scale[N];
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool valid) {
      put_vector(q, load16(vectors)), put_vector(q + 4, load16(vectors + 64 * STAGE_ROWS));
      const Scales scales = Scales::read(rest + at / 4 * Scales::BYTES_OF_4 % 16, t);
#pragma unroll
      for (int i = 0; i < N / 2; i++) {
        const uint32_t d = valid ? scales.halves(i) : 0;
        scale[2 * i] = twice(d, false), scale[2 * i + 1] = twice(d, true);
      }
    }
    DEVICE Four word(int i) const {
      const Four v = Values::halves(q[i]);
      const uint32_t s0 = scale[which(0, 4 * i)], s1 = scale[which(1, 4 * i)];
      return {{ptx::mul_f16(v.low[0], s0), ptx::mul_f16(v.low[1], s0)}, {ptx::mul_f16(v.high[0], s1), ptx::mul_f16(v.high[1], s1)}};
    }
  };
};
