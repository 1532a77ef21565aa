// IQ3_S as kernels read it. Groups: one vector of the first eight bits of the indices of a piece's 16 points, and 8 bytes of signs, bit
// 8 b + j of word h being that of weight 32 h + 4 j + b; then 14 bytes of each block of 256: the ninth bits of indices, 2 bytes of each
// piece; the scales of 32 weights, a byte of each piece; and d as f16.
//
// The points lie in shared memory, a word each, 2 KB: lanes look up different ones at the same time, which constant memory serves one after
// the other, and the first-level cache a line at a time; from shared memory a warp's 32 words come in three to four turns, as many as the
// fullest of 32 banks has. Copies of the table, which would make it two, are not worth the room that they take from the ring.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"
#include "grid.cuh"

// Of a block's last 14 bytes, what one piece wants: the ninth bits of its indices in the low half of `bits`, then its scales.
struct IQ3_S_Scales {
  static constexpr int BYTES = 14;
  uint32_t bits;
  uint16_t d;
  // `at`: where a byte of the 14 is.
  template <class At>
  DEVICE static IQ3_S_Scales read(int piece_of_block, At at) {
    return {u16_at(at(2 * piece_of_block)) | static_cast<uint32_t>(*at(8 + piece_of_block)) << 16, static_cast<uint16_t>(u16_at(at(12)))};
  }
  DEVICE uint32_t integer(int half) const { return bits >> (16 + 4 * half) << 1 & 30 | 1; }
  DEVICE float scale(int half) const { return ptx::f16_to_f32(d) * float_of(integer(half)); }
};

struct Packed_IQ3_S : PackedLayout<110, 2> {
  static constexpr bool OF_EXPERTS = false, OF_GEMM_I8 = false;
  // Magnitudes are odd numbers below 16: each byte of a point is its magnitude and 15. So an exclusive or with 30 makes 15 less the
  // magnitude of it, and less 15 it is the weight.
  static constexpr int TABLE = 512, OFFSET = 15;
  DEVICE static uint32_t table_word(uint32_t index) {
    const uint32_t c = IQ3_S_CODES[index];
    return 0x10101010u + ((c & 7) << 1 | (c >> 3 & 7) << 9 | (c >> 6 & 7) << 17 | (c >> 9 & 7) << 25);
  }
  // Weights of point i of a half, plus 15, from its signs.
  DEVICE static uint32_t with_signs(uint32_t point, uint32_t signs, int i) {
    return point ^ (ptx::sign_bytes(signs << (7 - i)) & 0x1e1e1e1eu);
  }
  DEVICE static uint32_t index_of(uint32_t word, uint32_t ninths, int point) {
    return (word >> 8 * (point % 4) & 255) | (ninths >> point & 1) << 8;
  }

  struct Piece {
    uint4 q;
    uint2 signs;
    IQ3_S_Scales scales;
    const uint32_t* table;
  };
  DEVICE static const uint8_t* signs_at(const uint8_t* group, int size, int at) { return group + 16 * size + at * 8; }
  DEVICE static IQ3_S_Scales scales_at(const uint8_t* group, int size, int at) {
    return IQ3_S_Scales::read(at % 4, [=](int i) { return group + 24 * size + at / 4 * IQ3_S_Scales::BYTES + i; });
  }
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    p.q = load16(group + at * 16), p.signs = load_pair(signs_at(group, size, at)), p.scales = scales_at(group, size, at);
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int sums[2] = {FLOAT_UNITS, FLOAT_UNITS};
#pragma unroll
    for (int i = 0; i < 16; i++) {
      const uint32_t point = p.table[index_of(word(p.q, i / 4), p.scales.bits, i)];
      sums[i / 8] = ptx::dp4a_unsigned(with_signs(point, i < 8 ? p.signs.x : p.signs.y, i % 8), x.q(i), sums[i / 8]);
    }
    const float low = float_of(p.scales.integer(0)) * (x.scale(0) * units(sums[0]) - 15.0f * x.sum(0));
    const float high = float_of(p.scales.integer(1)) * (x.scale(1) * units(sums[1]) - 15.0f * x.sum(1));
    return ptx::f16_to_f32(p.scales.d) * (low + high);
  }

  // What decodes a few weights at a time has no table, and makes the points that it wants.
  struct Decoder {
    uint4 q;
    uint2 signs;
    IQ3_S_Scales scales;
    DEVICE Decoder(const uint8_t* group, const Place& p)
        : q(load16(group + p.at * 16)), signs(load_pair(signs_at(group, p.size, p.at))), scales(scales_at(group, p.size, p.at)) {}
    DEVICE static uint32_t point(uint32_t word, uint32_t signs, uint32_t ninths, int i) {
      return with_signs(table_word(index_of(word, ninths, i)), signs, i % 8);
    }
    DEVICE uint32_t point(int i) const { return point(word(q, i / 4), i < 8 ? signs.x : signs.y, scales.bits, i); }
    // Weights 8 j to 8 j + 7.
    DEVICE void load8(float* y, int j) const {
      const uint2 v = {point(2 * j), point(2 * j + 1)};
      const float scale = scales.scale(j / 4);
#pragma unroll
      for (int i = 0; i < 8; i++) y[i] = scale * (float_of(byte_of(v, i)) - 15.0f);
    }
  };
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    Decoder(group_of(row, p), p).load8(y, k % 64 / 8);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * IQ3_S::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    const int c = piece % 4;
    for (int i = 0; i < 16; i++) group[p.at * 16 + i] = in[2 + 16 * c + i];
    for (int h = 0; h < 2; h++) {
      const auto sign = [=](int l) { return in[74 + 8 * c + 4 * h + l / 8] >> l % 8 & 1u; };
      FifthBits::pack(group + 16 * p.size + p.at * 8 + 4 * h, sign);
    }
    uint8_t* rest = group + 24 * p.size + p.at / 4 * IQ3_S_Scales::BYTES;
    for (int i = 0; i < 2; i++) rest[2 * c + i] = in[66 + 2 * c + i];
    rest[8 + c] = in[106 + c];
    if (c == 0) rest[12] = in[0], rest[13] = in[1];
  }
  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const Decoder decoder(group_of(row, p), p);
    Sixteen y;
    decoder.load8(y.low, j), decoder.load8(y.high, 4 + j);
    return y;
  }

  static constexpr int ZERO = OFFSET;
  DEVICE static float bound(const Codes::Half& h) { return 15.0f * fabsf(h.scale); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int, int n) {
    const Place p(piece, n);
    const Decoder d(group_of(row, p), p);
    return {d.q, {d.scales.d}, {d.signs.x, d.signs.y, d.scales.bits}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const IQ3_S_Scales scales = {t.words[2], static_cast<uint16_t>(t.more.x)};
    const auto codes = [&](int h) {
      const uint32_t w = h ? (v ? t.q.w : t.q.z) : v ? t.q.y : t.q.x;
      return for_words(uint4{}, [&](uint32_t, int i) { return Decoder::point(w, t.words[h], t.words[2], 8 * h + 4 * v + i); });
    };
    return {{{codes(0), scales.scale(0), 0}, {codes(1), scales.scale(1), 0}}};
  }

  // Scales as bytes, those of row g and then those of g + 8.
  struct SmallM {
    typedef int Sum;
    static constexpr int WORDS = 1, PARTS = 1, FIRST = 0;
    static constexpr bool MINS = false, MINS_OF_16 = false, UNPACKED = false, OF_32 = false;
    float d[2];
    uint32_t words[1];
    const uint32_t* table;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
      words[0] = 0;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const IQ3_S_Scales scales = scales_at(r ? row1 : row0, static_cast<int>(size), static_cast<int>(at));
        d[r] = ptx::f16_to_f32(scales.d), words[0] |= (scales.integer(0) | scales.integer(1) << 8) << 16 * r;
      }
    }
    DEVICE static int scale(const uint32_t (&w)[1], int h, int, int r) { return byte_at(w[0], 2 * r + h); }
    // Lane t wants points t and 4 + t of the half.
    DEVICE void unpack(uint32_t (&a)[4], const uint32_t (&)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                       int t) const {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint8_t* row = i % 2 ? row1 : row0;
        const int point = 8 * h + i / 2 * 4 + t;
        const uint32_t ninths = u16_at(row + 24 * size + at / 4 * IQ3_S_Scales::BYTES + at % 4 * 2);
        const uint32_t v = table[row[at * 16 + point] | (ninths >> point & 1) << 8];
        const uint32_t of_unsigned = with_signs(v, load_word(signs_at(row, size, at) + 4 * h), point % 8);
        a[i] = ((of_unsigned | 0x80808080u) - 0x0f0f0f0fu) ^ 0x80808080u;
      }
    }
    DEVICE static void multiply(int (&y)[1][4], const uint32_t (&a)[4], uint2 b, const int (&c)[1][4]) { ptx::mma_s8(y[0], a, b, c[0]); }
    DEVICE static void add(int& sum, int d, int scale, float) { sum += d * scale; }
    DEVICE float total(int low, int high, float, int r) const { return d[r] * static_cast<float>(low + high); }
  };

  struct Fragment {
    static constexpr int VECTORS = 1, REST = 4;
    // The block's last 14 bytes may begin within one box and end in the next.
    DEVICE static int rest_at(int i, int size, int at) {
      return i < 2 ? 16 * size + at * 8 + i * 16 : 24 * size + at / 4 * IQ3_S_Scales::BYTES / 16 * 16 + (i - 2) * 16;
    }
    uint32_t q[4], signs[2], ninths, scale[2];
    const uint32_t* table;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool) {
      put_vector(q, load16(vectors));
      const uint2 pair = load_pair(rest + t / 2 * 16 * STAGE_ROWS + t % 2 * 8);
      signs[0] = pair.x, signs[1] = pair.y;
      const int first = 32 + at / 4 * IQ3_S_Scales::BYTES % 16;
      const IQ3_S_Scales scales =
          IQ3_S_Scales::read(t, [=](int i) { return rest + (first + i) / 16 * 16 * STAGE_ROWS + (first + i) % 16; });
      ninths = scales.bits;
      const uint32_t both = ptx::f32_to_f16_within(scales.scale(0), scales.scale(1));
      scale[0] = twice(both, false), scale[1] = twice(both, true);
    }
    // Two of four bytes under the exponent of 1024, to numbers.
    DEVICE static uint32_t pair(uint32_t bytes, uint32_t selector, uint32_t scale) {
      return ptx::mul_f16(ptx::add_f16(__byte_perm(bytes, 0x64646464, selector), 0xe40fe40f), scale);
    }
    DEVICE Four word(int i) const {
      const uint32_t low = with_signs(table[index_of(q[i / 4], ninths, i)], signs[0], i);
      const uint32_t high = with_signs(table[index_of(q[2 + i / 4], ninths, 8 + i)], signs[1], i);
      return {{pair(low, 0x4240, scale[0]), pair(low, 0x4341, scale[0])}, {pair(high, 0x4240, scale[1]), pair(high, 0x4341, scale[1])}};
    }
  };
};
