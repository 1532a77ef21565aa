// IQ2_XS as kernels read it. Groups: one vector of a piece's eight points as in the file, 16 bits each; then 10 bytes of each block of 256:
// the scales of 16 weights, 2 bytes of each piece, and d as f16.
//
// A point's magnitudes lie in shared memory, as digits of four bits, 2 KB: with their signs between them they are what `prmt` wants, which
// finds four weights at once among the six that there are. Lanes look up different points at the same time: see iq3_s/packed.cuh.
#pragma once
#include "../../cuda/common/packed.cuh"
#include "device.cuh"
#include "grid.cuh"

// Of a block's last 10 bytes, what one piece wants: its scales, 4 bits each.
struct IQ2_XS_Scales {
  static constexpr int BYTES = 10;
  uint32_t bits;
  uint16_t d;
  // `at`: where a byte of the 10 is.
  template <class At>
  DEVICE static IQ2_XS_Scales read(int piece_of_block, At at) {
    return {u16_at(at(2 * piece_of_block)), static_cast<uint16_t>(u16_at(at(8)))};
  }
  // Of weights from 16 s on, eight times.
  DEVICE static int integer(uint32_t bits, int s) { return static_cast<int>(bits >> 4 * s << 1 & 30 | 1); }
  DEVICE int integer(int s) const { return integer(bits, s); }
  DEVICE float eighth() const { return 0.125f * ptx::f16_to_f32(d); }
  DEVICE float scale(int s) const { return eighth() * static_cast<float>(integer(s)); }
};

struct Packed_IQ2_XS : PackedLayout<74, 2> {
  static constexpr bool OF_EXPERTS = false, OF_STREAM_K_128 = false, UNPACKS_VECTORS = true;
  static constexpr int TABLE = 512;
  // Eight digits of two bits, four bits apart.
  DEVICE static uint32_t table_word(uint32_t index) {
    uint32_t x = IQ2_XS_CODES[index];
    x = (x | x << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x0f0f0f0fu;
    return (x | x << 2) & 0x33333333u;
  }
  // A point's digits, from its index and sign code: bit 2 of a digit is set where the weight is negative.
  DEVICE static uint32_t digits(uint32_t point, uint32_t code) {
    uint32_t signs = even_signs(code);
    signs = (signs | signs << 12) & 0x000f000fu;
    signs = (signs | signs << 6) & 0x03030303u;
    return point | ((signs | signs << 3) & 0x11111111u) << 2;
  }
  // Point i of two.
  DEVICE static uint32_t digits(const uint32_t* table, uint32_t two, int i) {
    const uint32_t q = i ? two >> 16 : two & 0xffff;
    return digits(table[q & 511], q >> 9);
  }
  // Four weights, the first or last of a point, as bytes, and the same plus 64.
  DEVICE static uint32_t weights(uint32_t digits, int half) {
    return __byte_perm(0x002b1908, 0x00d5e7f8, half ? digits >> 16 : digits & 0xffff);
  }
  static constexpr int OFFSET = 64;
  DEVICE static uint32_t codes(uint32_t digits, int half) { return __byte_perm(0x406b5948, 0x40152738, half ? digits >> 16 : digits & 0xffff); }

  struct Piece {
    uint4 q;
    IQ2_XS_Scales scales;
    const uint32_t* table;
  };
  DEVICE static IQ2_XS_Scales scales_at(const uint8_t* group, int size, int at) {
    return IQ2_XS_Scales::read(at % 4, [=](int i) { return group + 16 * size + at / 4 * IQ2_XS_Scales::BYTES + i; });
  }
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    p.q = load16(group + at * 16), p.scales = scales_at(group, size, at);
  }
  // Sums of both halves by scale.
  DEVICE static void dot(const Piece& p, const X& x, int& low, int& high) {
    int sums[4] = {};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t point = digits(p.table, word(p.q, i / 2), i % 2);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        sums[i / 2] = __dp4a(static_cast<int>(weights(point, half)), x.q(2 * i + half), sums[i / 2]);
      }
    }
    low = p.scales.integer(0) * sums[0] + p.scales.integer(1) * sums[1];
    high = p.scales.integer(2) * sums[2] + p.scales.integer(3) * sums[3];
  }
  DEVICE static float dot(const Piece& p, const X& x) {
    int low, high;
    dot(p, x, low, high);
    return p.scales.eighth() * (x.scale(0) * static_cast<float>(low) + x.scale(1) * static_cast<float>(high));
  }
  DEVICE static Integers integers(const Piece& p, const X& x) {
    int low, high;
    dot(p, x, low, high);
    return {low + high, 0};
  }
  DEVICE static uint32_t factors(const Piece& p) { return p.scales.d; }
  DEVICE static float total(uint32_t d, int sum, int) { return 0.125f * ptx::f16_to_f32(static_cast<uint16_t>(d)) * static_cast<float>(sum); }

  // What decodes a few weights at a time has no table, and makes the points that it wants.
  struct Decoder {
    uint4 q;
    IQ2_XS_Scales scales;
    DEVICE Decoder(const uint8_t* group, const Place& p) : q(load16(group + p.at * 16)), scales(scales_at(group, p.size, p.at)) {}
    DEVICE static uint32_t point(uint32_t two, int i) {
      const uint32_t q = i ? two >> 16 : two & 0xffff;
      return digits(table_word(q & 511), q >> 9);
    }
    // Weights 8 j to 8 j + 7.
    DEVICE void load8(float* y, int j) const {
      const uint32_t digits = point(word(q, j / 2), j % 2);
      const uint2 v = {codes(digits, 0), codes(digits, 1)};
      const float scale = scales.scale(j / 2);
#pragma unroll
      for (int i = 0; i < 8; i++) y[i] = scale * (float_of(byte_of(v, i)) - 64.0f);
    }
  };
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const Place p(k / 64, n);
    Decoder(group_of(row, p), p).load8(y, k % 64 / 8);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * IQ2_XS::BYTES;
    const Place p(piece, n);
    uint8_t* group = group_of(row, p);
    const int c = piece % 4;
    for (int i = 0; i < 16; i++) group[p.at * 16 + i] = in[2 + 16 * c + i];
    uint8_t* rest = group + 16 * p.size + p.at / 4 * IQ2_XS_Scales::BYTES;
    for (int i = 0; i < 2; i++) rest[2 * c + i] = in[66 + 2 * c + i];
    if (c == 0) rest[8] = in[0], rest[9] = in[1];
  }
  DEVICE static Sixteen unpack16(const uint8_t* row, int piece, int j, int n) {
    const Place p(piece, n);
    const Decoder decoder(group_of(row, p), p);
    Sixteen y;
    decoder.load8(y.low, j), decoder.load8(y.high, 4 + j);
    return y;
  }

  static constexpr int ZERO = OFFSET;
  DEVICE static float bound(const Codes::Half& h) { return 43.0f * fabsf(h.scale); }
  DEVICE static Taken take_codes(const uint8_t* row, int piece, int, int n) {
    const Place p(piece, n);
    const Decoder d(group_of(row, p), p);
    return {d.q, {}, {d.scales.bits, d.scales.d}};
  }
  DEVICE static Codes codes_of(const Taken& t, int, int v) {
    const IQ2_XS_Scales scales = {t.words[0], static_cast<uint16_t>(t.words[1])};
    const auto of_two = [&](int i) {
      const uint32_t two = word(t.q, i), first = Decoder::point(two, 0), second = Decoder::point(two, 1);
      return uint4{codes(first, 0), codes(first, 1), codes(second, 0), codes(second, 1)};
    };
    return {{{of_two(v), scales.scale(v), 0}, {of_two(2 + v), scales.scale(2 + v), 0}}};
  }

  // Scales as in the file.
  struct SmallM : SmallMOf16 {
    const uint32_t* table;
    DEVICE void take(const uint8_t* row0, const uint8_t* row1, unsigned size, unsigned at) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const IQ2_XS_Scales scales = scales_at(r ? row1 : row0, static_cast<int>(size), static_cast<int>(at));
        d[r] = scales.eighth(), words[r] = scales.bits;
      }
    }
    DEVICE static int scale(const uint32_t (&w)[2], int h, int part, int r) { return IQ2_XS_Scales::integer(w[r], 2 * h + part); }
    // Lane t wants weights 4 t to 4 t + 3 of either part of the half.
    DEVICE void unpack(uint32_t (&a)[4], const uint32_t (&)[4], int h, const uint8_t* row0, const uint8_t* row1, int, int at, int t) const {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t q = u16_at((i % 2 ? row1 : row0) + at * 16 + 2 * (4 * h + i / 2 * 2 + t / 2));
        a[i] = weights(digits(table[q & 511], q >> 9), t % 2);
      }
    }
  };

  struct Fragment {
    static constexpr int VECTORS = 1, REST = 2;
    // The block's last 10 bytes may begin within one box and end in the next.
    DEVICE static int rest_at(int i, int size, int at) { return 16 * size + at / 4 * IQ2_XS_Scales::BYTES / 16 * 16 + i * 16; }
    uint32_t q[4], scale[2];
    const uint32_t* table;
    DEVICE void load(const uint8_t* vectors, const uint8_t* rest, int t, int at, bool) {
      put_vector(q, load16(vectors));
      const int first = at / 4 * IQ2_XS_Scales::BYTES % 16;
      const IQ2_XS_Scales scales =
          IQ2_XS_Scales::read(t, [=](int i) { return rest + (first + i) / 16 * 16 * STAGE_ROWS + (first + i) % 16; });
#pragma unroll
      for (int h = 0; h < 2; h++) scale[h] = ptx::f32_to_f16_within(scales.scale(2 * h), scales.scale(2 * h + 1));
    }
    // Two of four bytes under the exponent of 1024, to numbers.
    DEVICE static uint32_t pair(uint32_t bytes, uint32_t selector, uint32_t scale) {
      return ptx::mul_f16(ptx::add_f16(__byte_perm(bytes, 0x64646464, selector), 0xe440e440), scale);
    }
    DEVICE Four word(int i) const {
      const uint32_t low = codes(digits(table, q[i / 4], i / 2 % 2), i % 2), high = codes(digits(table, q[2 + i / 4], i / 2 % 2), i % 2);
      const uint32_t s0 = twice(scale[0], i / 4), s1 = twice(scale[1], i / 4);
      return {{pair(low, 0x4240, s0), pair(low, 0x4341, s0)}, {pair(high, 0x4240, s1), pair(high, 0x4341, s1)}};
    }
  };
};
