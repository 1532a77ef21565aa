// Packed weights as floats, sixteen at a time, bit for bit as `load8` of packed.cuh gives them, with wide loads.
//
// `unpack16(row, piece, j, n)` of a type gives weights 8 j to 8 j + 7 of a piece in `low`, and those 32 further on in `high`; j is
// below 4.
#pragma once
#include "packed.cuh"

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

// The scale and the min of both halves of a piece.
struct KScales {
  float scale[2], min[2];
  DEVICE explicit KScales(const KHeader& header) {
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(header.d)), dmin = ptx::f16_to_f32(static_cast<uint16_t>(header.d >> 16));
#pragma unroll
    for (int h = 0; h < 2; h++) scale[h] = d * six_bits(header.bits >> 12 * h), min[h] = dmin * six_bits(header.bits >> (12 * h + 6));
  }
  DEVICE float weight(int h, uint32_t q) const { return mul_then_add(scale[h], float_of(q), -min[h]); }
};

template <class P>
DEVICE Sixteen unpack16(const uint8_t* row, int piece, int j, int n);

template <>
DEVICE Sixteen unpack16<Packed_Q4_K>(const uint8_t* row, int piece, int j, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q4_K>(p.group);
  KHeader header;
  header.take(group + 32 * p.size + p.at / 4 * 16, p.at % 4);
  const KScales scales(header);
  const uint2 q = bytes_of(group, p, j);
  Sixteen y;
#pragma unroll
  for (int i = 0; i < 8; i++) y.low[i] = scales.weight(0, byte_of(q, i) & 15), y.high[i] = scales.weight(1, byte_of(q, i) >> 4);
  return y;
}

template <>
DEVICE Sixteen unpack16<Packed_Q5_K>(const uint8_t* row, int piece, int j, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
  KHeader header;
  header.take(group + 32 * p.size + p.at / 4 * 16, p.at % 4);
  const KScales scales(header);
  const uint2 fifths = load_pair(group + 36 * p.size + p.at * 8), q = bytes_of(group, p, j);
  Sixteen y;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int bit = 8 * (i % 4) + 2 * j + i / 4;
    y.low[i] = scales.weight(0, (byte_of(q, i) & 15) | (fifths.x >> bit & 1) << 4);
    y.high[i] = scales.weight(1, byte_of(q, i) >> 4 | (fifths.y >> bit & 1) << 4);
  }
  return y;
}

template <>
DEVICE Sixteen unpack16<Packed_Q6_K>(const uint8_t* row, int piece, int j, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q6_K>(p.group);
  const uint2 q = bytes_of(group, p, j);
  const uint8_t* upper = group + (2 * p.size + p.at) * 16 + j / 2 * 4;
  const uint32_t h0 = load_word(upper), h1 = load_word(upper + 8), s = load_word(group + 48 * p.size + p.at * 4) >> j / 2 * 8;
  const float d = f16_at(group + 52 * p.size + p.at / 4 * 2);
  const float s0 = d * static_cast<float>(static_cast<int8_t>(s)), s1 = d * static_cast<float>(static_cast<int8_t>(s >> 16));
  Sixteen y;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int bit = 8 * (i % 4) + 4 * (j % 2) + i / 4 * 2;
    y.low[i] = s0 * (float_of((byte_of(q, i) & 15) | (h0 >> bit & 3) << 4) - 32.0f);
    y.high[i] = s1 * (float_of(byte_of(q, i) >> 4 | (h1 >> bit & 3) << 4) - 32.0f);
  }
  return y;
}

template <>
DEVICE Sixteen unpack16<Packed_Q8_0>(const uint8_t* row, int piece, int j, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q8_0>(p.group);
  const uint2 q0 = bytes_of(group, p, j), q1 = bytes_of(group + 2 * p.size * 16, p, j);
  const uint32_t d = load_word(group + 64 * p.size + p.at * 4);
  const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  Sixteen y;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    y.low[i] = (float_of(byte_of(q0, i) ^ 128) - 128.0f) * d0;
    y.high[i] = (float_of(byte_of(q1, i) ^ 128) - 128.0f) * d1;
  }
  return y;
}

template <>
DEVICE Sixteen unpack16<Packed_Q4_0>(const uint8_t* row, int piece, int j, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q4_0>(p.group);
  const uint2 q = bytes_of(group, p, j);
  const uint32_t d = load_word(group + 32 * p.size + p.at * 4);
  const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  Sixteen y;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    y.low[i] = (float_of(byte_of(q, i) & 15) - 8.0f) * d0;
    y.high[i] = (float_of(byte_of(q, i) >> 4) - 8.0f) * d1;
  }
  return y;
}
