// Layouts of weights that kernels read fastest, made once from a file's blocks (repack.cu), with no bytes more than padding.
//
// A row is pieces of 64 weights, so that a thread loads its piece 16 bytes at a time, and then what does not fill 16 bytes; it is
// padded to a multiple of 16 bytes. Within a piece, byte l of 32 holds weight l in its low nibble and weight 32 + l in its high one.
// A type gives
//   row_bytes(n)  bytes of a row of n weights,
//   Piece, load   a piece in registers,
//   dot           its product with 64 activations of int8 (see XPiece),
//   load8         eight weights as floats, bit for bit as from the file's block,
//   pack          the conversion of one piece.
#pragma once
#include "quant.cuh"

// 64 activations: q[i] * scale[i / 32]. 80 bytes, so that eight threads that read neighbours use different banks.
struct __align__(16) XPiece {
  int8_t q[64];
  float scale[2];
  // Sums of q over 16, in pairs: the first in the low half.
  uint32_t sums[2];
};

// The float of an integer below 2^22 in magnitude, without the slow conversion.
DEVICE float small_to_float(int x) { return __uint_as_float(0x4b400000u + static_cast<uint32_t>(x)) - 12582912.0f; }

DEVICE int low_half(uint32_t x) { return static_cast<int16_t>(x); }
DEVICE int high_half(uint32_t x) { return static_cast<int>(x) >> 16; }
DEVICE int both_halves(uint32_t x) { return low_half(x) + high_half(x); }

DEVICE uint4 load16(const uint8_t* p) { return *reinterpret_cast<const uint4*>(p); }

DEVICE uint32_t word(const uint4 (&v)[2], int i) {
  const uint4 u = v[i / 4];
  return i % 4 == 0 ? u.x : i % 4 == 1 ? u.y : i % 4 == 2 ? u.z : u.w;
}

DEVICE uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A piece of activations where it lies; read as it is needed, to save registers.
struct X {
  const uint4* v;
  DEVICE explicit X(const XPiece* p) : v(reinterpret_cast<const uint4*>(p)) {}
  DEVICE int q(int i) const { return static_cast<int>(word(v[i / 4], i % 4)); }
  DEVICE float scale(int half) const { return __uint_as_float(word(v[4], half)); }
  DEVICE uint32_t sums(int half) const { return word(v[4], 2 + half); }
};

// Scales and mins of six bits, packed by sub-block: scale s in bits 12 s to 12 s + 5 of 12 bytes, its min in the next six.
// Source block: k_scales.rs.
DEVICE void pack_k_scales(uint8_t* out, const uint8_t* in, int piece) {
  int s0, m0, s1, m1;
  k_scale_min(in, 2 * piece, s0, m0);
  k_scale_min(in, 2 * piece + 1, s1, m1);
  const uint32_t bits = s0 | m0 << 6 | s1 << 12 | m1 << 18;
#pragma unroll
  for (int i = 0; i < 3; i++) out[3 * piece + i] = static_cast<uint8_t>(bits >> 8 * i);
}

// The 24 bits of a piece's two scales and mins, from words 1 to 3 of a header.
DEVICE uint32_t k_scale_bits(const uint4& header, int piece) {
  const uint32_t low = piece == 0 || piece == 1 ? header.y : piece == 2 ? header.z : header.w;
  const uint32_t high = piece < 2 ? header.z : header.w;
  return __funnelshift_r(low, high, 24 * piece & 31);
}

// 24 bits at 3 bytes.
DEVICE uint32_t u24_at(const uint8_t* p) { return p[0] | p[1] << 8 | p[2] << 16; }

// The float weights of scale and min types, as the scalar code rounds them.
DEVICE void k_load8(float* y, const uint8_t* header, int i, const int (&q)[8]) {
  const uint32_t bits = u24_at(header + 4 + i / 64 * 3) >> i / 32 % 2 * 12;
  const float scale = f16_at(header) * static_cast<float>(bits & 63);
  const float min = f16_at(header + 2) * static_cast<float>(bits >> 6 & 63);
#pragma unroll
  for (int j = 0; j < 8; j++) y[j] = mul_then_add(scale, static_cast<float>(q[j]), -min);
}

// Blocks of 256: d and dmin as f16, 12 bytes of scales and mins, then 4 pieces of 32 bytes.
struct Packed_Q4_K {
  static constexpr bool PACKED = true;
  static constexpr int BLOCK = 144;
  typedef Q4_K Source;
  struct Piece {
    uint4 q[2], header;
  };
  DEVICE static size_t row_bytes(int n) { return static_cast<size_t>(n / 256) * BLOCK; }
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int) {
    const uint8_t* b = row + static_cast<size_t>(piece / 4) * BLOCK;
    p.header = load16(b);
    p.q[0] = load16(b + 16 + piece % 4 * 32);
    p.q[1] = load16(b + 32 + piece % 4 * 32);
  }
  DEVICE static float dot(const Piece& p, int piece, const X& x) {
    int low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      low = __dp4a(static_cast<int>(w & 0x0f0f0f0fu), x.q(i), low);
      high = __dp4a(static_cast<int>(w >> 4 & 0x0f0f0f0fu), x.q(8 + i), high);
    }
    const uint32_t bits = k_scale_bits(p.header, piece % 4);
    const int s0 = bits & 63, m0 = bits >> 6 & 63, s1 = bits >> 12 & 63, m1 = bits >> 18 & 63;
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(p.header.x));
    const float dmin = ptx::f16_to_f32(static_cast<uint16_t>(p.header.x >> 16));
    const float scaled = small_to_float(s0 * low) * x.scale(0) + small_to_float(s1 * high) * x.scale(1);
    const float mins = small_to_float(m0 * both_halves(x.sums(0))) * x.scale(0) + small_to_float(m1 * both_halves(x.sums(1))) * x.scale(1);
    return d * scaled - dmin * mins;
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * BLOCK;
    const int i = k % 256;
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) q[j] = b[16 + i / 64 * 32 + i % 32 + j] >> i / 32 % 2 * 4 & 15;
    k_load8(y, b, i, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q4_K::BYTES;
    uint8_t* out = row + static_cast<size_t>(piece / 4) * BLOCK;
    const int c = piece % 4;
    if (c == 0) {
      for (int i = 0; i < 4; i++) out[i] = in[i];
    }
    pack_k_scales(out + 4, in + 4, c);
    for (int i = 0; i < 32; i++) out[16 + c * 32 + i] = in[16 + c * 32 + i];
  }
};

// As Packed_Q4_K, with 8 bytes of fifth bits for each piece between the header and the pieces: bit 8 b + j of its first word is that
// of weight 4 j + b, of its second word that of weight 32 + 4 j + b.
struct Packed_Q5_K {
  static constexpr bool PACKED = true;
  static constexpr int BLOCK = 176;
  typedef Q5_K Source;
  struct Piece {
    uint4 q[2], header;
    uint2 high;
  };
  DEVICE static size_t row_bytes(int n) { return static_cast<size_t>(n / 256) * BLOCK; }
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int) {
    const uint8_t* b = row + static_cast<size_t>(piece / 4) * BLOCK;
    p.header = load16(b);
    p.high = *reinterpret_cast<const uint2*>(b + 16 + piece % 4 * 8);
    p.q[0] = load16(b + 48 + piece % 4 * 32);
    p.q[1] = load16(b + 64 + piece % 4 * 32);
  }
  DEVICE static float dot(const Piece& p, int piece, const X& x) {
    int low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      const uint32_t h0 = (i < 4 ? p.high.x << (4 - i) : p.high.x >> (i - 4)) & 0x10101010u;
      const uint32_t h1 = (i < 4 ? p.high.y << (4 - i) : p.high.y >> (i - 4)) & 0x10101010u;
      low = __dp4a(static_cast<int>((w & 0x0f0f0f0fu) | h0), x.q(i), low);
      high = __dp4a(static_cast<int>((w >> 4 & 0x0f0f0f0fu) | h1), x.q(8 + i), high);
    }
    const uint32_t bits = k_scale_bits(p.header, piece % 4);
    const int s0 = bits & 63, m0 = bits >> 6 & 63, s1 = bits >> 12 & 63, m1 = bits >> 18 & 63;
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(p.header.x));
    const float dmin = ptx::f16_to_f32(static_cast<uint16_t>(p.header.x >> 16));
    const float scaled = static_cast<float>(s0 * low) * x.scale(0) + static_cast<float>(s1 * high) * x.scale(1);
    const float mins = small_to_float(m0 * both_halves(x.sums(0))) * x.scale(0) + small_to_float(m1 * both_halves(x.sums(1))) * x.scale(1);
    return d * scaled - dmin * mins;
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * BLOCK;
    const int i = k % 256, l = i % 32;
    const uint32_t high = u32_at(b + 16 + i / 64 * 8 + i / 32 % 2 * 4);
    int q[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      q[j] = b[48 + i / 64 * 32 + l + j] >> i / 32 % 2 * 4 & 15;
      q[j] |= (high >> (8 * ((l + j) % 4) + (l + j) / 4) & 1) << 4;
    }
    k_load8(y, b, i, q);
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q5_K::BYTES;
    uint8_t* out = row + static_cast<size_t>(piece / 4) * BLOCK;
    const int c = piece % 4;
    if (c == 0) {
      for (int i = 0; i < 4; i++) out[i] = in[i];
    }
    pack_k_scales(out + 4, in + 4, c);
    uint32_t high[2] = {};
    for (int l = 0; l < 32; l++) {
      const int bit = 8 * (l % 4) + l / 4;
      high[0] |= (in[16 + l] >> 2 * c & 1u) << bit;
      high[1] |= (in[16 + l] >> (2 * c + 1) & 1u) << bit;
    }
    for (int i = 0; i < 8; i++) out[16 + 8 * c + i] = static_cast<uint8_t>(high[i / 4] >> 8 * (i % 4));
    for (int i = 0; i < 32; i++) out[48 + c * 32 + i] = in[48 + c * 32 + i];
  }
};

// Blocks of 256: low nibbles of 4 pieces (32 bytes each), upper bits of 4 pieces (16 bytes each), 16 scales of int8. After all
// blocks of a row their d as f16. Bits 8 b + 2 t of word i of a piece's upper bits are those of weight 16 i + 4 t + b.
struct Packed_Q6_K {
  static constexpr bool PACKED = true;
  static constexpr int BLOCK = 208;
  typedef Q6_K Source;
  struct Piece {
    uint4 q[2], high;
    uint32_t scales;
    uint16_t d;
  };
  DEVICE static size_t row_bytes(int n) { return (static_cast<size_t>(n / 256) * 210 + 15) / 16 * 16; }
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int n) {
    const uint8_t* b = row + static_cast<size_t>(piece / 4) * BLOCK;
    p.q[0] = load16(b + piece % 4 * 32);
    p.q[1] = load16(b + piece % 4 * 32 + 16);
    p.high = load16(b + 128 + piece % 4 * 16);
    p.scales = *reinterpret_cast<const uint32_t*>(b + 192 + piece % 4 * 4);
    p.d = *reinterpret_cast<const uint16_t*>(row + static_cast<size_t>(n / 256) * BLOCK + piece / 4 * 2);
  }
  DEVICE static float dot(const Piece& p, int, const X& x) {
    int sums[4] = {};  // over 16 weights
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      const uint32_t h0 = word(p.high, i / 4), h1 = word(p.high, 2 + i / 4);
      const int t = i % 4;
      const uint32_t high0 = (t < 2 ? h0 << (4 - 2 * t) : h0 >> (2 * t - 4)) & 0x30303030u;
      const uint32_t high1 = (t < 2 ? h1 << (4 - 2 * t) : h1 >> (2 * t - 4)) & 0x30303030u;
      sums[i / 4] = __dp4a(static_cast<int>((w & 0x0f0f0f0fu) | high0), x.q(i), sums[i / 4]);
      sums[2 + i / 4] = __dp4a(static_cast<int>((w >> 4 & 0x0f0f0f0fu) | high1), x.q(8 + i), sums[2 + i / 4]);
    }
    const int s0 = static_cast<int8_t>(p.scales), s1 = static_cast<int8_t>(p.scales >> 8);
    const int s2 = static_cast<int8_t>(p.scales >> 16), s3 = static_cast<int>(p.scales) >> 24;
    const int a = s0 * (sums[0] - 32 * low_half(x.sums(0))) + s1 * (sums[1] - 32 * high_half(x.sums(0)));
    const int b = s2 * (sums[2] - 32 * low_half(x.sums(1))) + s3 * (sums[3] - 32 * high_half(x.sums(1)));
    return ptx::f16_to_f32(p.d) * (static_cast<float>(a) * x.scale(0) + static_cast<float>(b) * x.scale(1));
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const uint8_t* b = row + static_cast<size_t>(k / 256) * BLOCK;
    const int c = k % 256 / 64, l = k % 64;
    const float d = f16_at(row + static_cast<size_t>(n / 256) * BLOCK + k / 256 * 2);
    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + k % 256 / 16]));
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const int w = l + j;
      const uint32_t high = u32_at(b + 128 + c * 16 + w / 16 * 4) >> (8 * (w % 4) + 2 * (w % 16 / 4)) & 3;
      const uint32_t q = (b[c * 32 + w % 32] >> w / 32 * 4 & 15) | high << 4;
      y[j] = scale * (static_cast<float>(q) - 32.0f);
    }
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in = source + static_cast<size_t>(piece / 4) * Q6_K::BYTES;
    uint8_t* out = row + static_cast<size_t>(piece / 4) * BLOCK;
    const int c = piece % 4;
    uint32_t high[4] = {};
#pragma unroll
    for (int l = 0; l < 32; l++) {
      uint32_t q[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int i = 64 * c + 32 * half + l;
        const uint32_t low = in[i / 128 * 64 + i % 64] >> i / 64 % 2 * 4 & 15;
        q[half] = low | (in[128 + i / 128 * 32 + i % 32] >> i / 32 % 4 * 2 & 3) << 4;
        high[2 * half + l / 16] |= (q[half] >> 4) << (8 * (l % 4) + 2 * (l % 16 / 4));
      }
      out[c * 32 + l] = static_cast<uint8_t>((q[0] & 15) | (q[1] & 15) << 4);
    }
#pragma unroll
    for (int i = 0; i < 16; i++) out[128 + c * 16 + i] = static_cast<uint8_t>(high[i / 4] >> 8 * (i % 4));
    for (int i = 0; i < 4; i++) out[192 + c * 4 + i] = in[192 + c * 4 + i];
    if (c == 0) {
      uint8_t* d = row + static_cast<size_t>(n / 256) * BLOCK + piece / 4 * 2;
      d[0] = in[208], d[1] = in[209];
    }
  }
};

// Pieces of two blocks' 64 bytes; after all of a row the blocks' d as f16.
struct Packed_Q8_0 {
  static constexpr bool PACKED = true;
  typedef Q8_0 Source;
  struct Piece {
    uint4 q[4];
    uint32_t d;
  };
  DEVICE static size_t row_bytes(int n) { return (static_cast<size_t>(n / 32) * 34 + 15) / 16 * 16; }
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int n) {
#pragma unroll
    for (int i = 0; i < 4; i++) p.q[i] = load16(row + static_cast<size_t>(piece) * 64 + 16 * i);
    p.d = *reinterpret_cast<const uint32_t*>(row + n + 4 * piece);
  }
  DEVICE static float dot(const Piece& p, int, const X& x) {
    int low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      low = __dp4a(static_cast<int>(word(p.q[i / 4], i % 4)), x.q(i), low);
      high = __dp4a(static_cast<int>(word(p.q[2 + i / 4], i % 4)), x.q(8 + i), high);
    }
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(p.d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16));
    return d0 * x.scale(0) * small_to_float(low) + d1 * x.scale(1) * small_to_float(high);
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const float d = f16_at(row + n + k / 32 * 2);
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = static_cast<float>(static_cast<int8_t>(row[k + j])) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    for (int half = 0; half < 2; half++) {
      const uint8_t* in = source + static_cast<size_t>(2 * piece + half) * Q8_0::BYTES;
      for (int i = 0; i < 32; i++) row[static_cast<size_t>(piece) * 64 + 32 * half + i] = in[2 + i];
      for (int i = 0; i < 2; i++) row[n + 4 * piece + 2 * half + i] = in[i];
    }
  }
};

// Pieces of two blocks' 64 weights; after all of a row the blocks' d as f16.
struct Packed_Q4_0 {
  static constexpr bool PACKED = true;
  typedef Q4_0 Source;
  struct Piece {
    uint4 q[2];
    uint32_t d;
  };
  DEVICE static size_t row_bytes(int n) { return (static_cast<size_t>(n / 32) * 18 + 15) / 16 * 16; }
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int n) {
    p.q[0] = load16(row + static_cast<size_t>(piece) * 32);
    p.q[1] = load16(row + static_cast<size_t>(piece) * 32 + 16);
    p.d = *reinterpret_cast<const uint32_t*>(row + n / 2 + 4 * piece);
  }
  DEVICE static float dot(const Piece& p, int, const X& x) {
    int low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint32_t w = word(p.q, i);
      low = __dp4a(static_cast<int>(w & 0x0f0f0f0fu), x.q(i), low);
      high = __dp4a(static_cast<int>(w >> 4 & 0x0f0f0f0fu), x.q(8 + i), high);
    }
    low -= 8 * both_halves(x.sums(0));
    high -= 8 * both_halves(x.sums(1));
    const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(p.d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(p.d >> 16));
    return d0 * x.scale(0) * small_to_float(low) + d1 * x.scale(1) * small_to_float(high);
  }
  DEVICE static void load8(float* y, const uint8_t* row, int k, int n) {
    const float d = f16_at(row + n / 2 + k / 32 * 2);
    const uint8_t* q = row + static_cast<size_t>(k / 64) * 32 + k % 32;
#pragma unroll
    for (int j = 0; j < 8; j++) y[j] = (static_cast<float>(q[j] >> k / 32 % 2 * 4 & 15) - 8.0f) * d;
  }
  DEVICE static void pack(uint8_t* row, const uint8_t* source, int piece, int n) {
    const uint8_t* in[2] = {source + static_cast<size_t>(2 * piece) * Q4_0::BYTES,
                            source + static_cast<size_t>(2 * piece + 1) * Q4_0::BYTES};
    for (int l = 0; l < 32; l++) {
      const int shift = l / 16 * 4;
      row[static_cast<size_t>(piece) * 32 + l] =
          static_cast<uint8_t>((in[0][2 + l % 16] >> shift & 15) | (in[1][2 + l % 16] >> shift & 15) << 4);
    }
    for (int half = 0; half < 2; half++) {
      for (int i = 0; i < 2; i++) row[n / 2 + 4 * piece + 2 * half + i] = in[half][i];
    }
  }
};

#define FOR_EACH_PACKED(F) F(Packed_Q4_0) F(Packed_Q8_0) F(Packed_Q4_K) F(Packed_Q5_K) F(Packed_Q6_K)
