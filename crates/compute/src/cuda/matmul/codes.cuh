// Packed weights as unsigned codes of a byte, 32 at a time: a weight is scale * code - min.
//
// `take<P>(row, piece, v, n)` of a type loads weights 16 v to 16 v + 15 of a piece, which `codes_of<P>` gives in `half[0]`, and those 32
// further on, which it gives in `half[1]`; v is 0 or 1.
#pragma once
#include "unpack.cuh"

struct Codes {
  struct Half {
    uint4 q;
    float scale;
    float min;
  } half[2];
};

// Of a type: ZERO, the code of zero where all weights have the same one, else -1; and the largest magnitude that such weights may have.
template <class P> struct CodesOf {
  static constexpr int ZERO = -1;
  // Codes up to 15, or up to 31.
  DEVICE static float bound(const Codes::Half& h) {
    constexpr float LAST = P::bytes(32) > Packed_Q4_K::bytes(32) ? 31.0f : 15.0f;
    return fmaxf(fabsf(h.min), fabsf(h.scale * LAST - h.min));
  }
};
template <> struct CodesOf<Packed_Q4_0> {
  static constexpr int ZERO = 8;
  DEVICE static float bound(const Codes::Half& h) { return 8.0f * fabsf(h.scale); }
};
template <> struct CodesOf<Packed_Q6_K> {
  static constexpr int ZERO = 32;
  DEVICE static float bound(const Codes::Half& h) { return 32.0f * fabsf(h.scale); }
};
template <> struct CodesOf<Packed_Q8_0> {
  static constexpr int ZERO = 128;
  // No block has -128, unless it was not made by rounding to 127; that may become -128 here, too.
  DEVICE static float bound(const Codes::Half& h) { return 127.0f * fabsf(h.scale); }
};

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

// What a thread has of a piece in registers.
struct Taken {
  uint4 q, more;
  uint32_t words[3];
};

template <class P>
DEVICE Taken take(const uint8_t* row, int piece, int v, int n);
template <class P>
DEVICE Codes codes_of(const Taken& t, int piece, int v);

template <>
DEVICE Taken take<Packed_Q4_K>(const uint8_t* row, int piece, int v, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q4_K>(p.group);
  return {load16(group + (v * p.size + p.at) * 16), load16(group + 32 * p.size + p.at / 4 * 16)};
}

DEVICE KScales scales_of(const Taken& t, int piece) {
  KHeader header;
  header.take(reinterpret_cast<const uint8_t*>(&t.more), piece % 4);
  return KScales(header);
}

template <>
DEVICE Codes codes_of<Packed_Q4_K>(const Taken& t, int piece, int) {
  const KScales k = scales_of(t, piece);
  return {{{low_nibbles(t.q), k.scale[0], k.min[0]}, {high_nibbles(t.q), k.scale[1], k.min[1]}}};
}

template <>
DEVICE Taken take<Packed_Q5_K>(const uint8_t* row, int piece, int v, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q5_K>(p.group);
  const uint2 fifths = load_pair(group + 36 * p.size + p.at * 8);
  return {load16(group + (v * p.size + p.at) * 16), load16(group + 32 * p.size + p.at / 4 * 16), {fifths.x, fifths.y}};
}

template <>
DEVICE Codes codes_of<Packed_Q5_K>(const Taken& t, int piece, int v) {
  const KScales k = scales_of(t, piece);
  const auto with = [&](uint32_t bits) { return [=](uint32_t w, int i) { return w | (bits >> (4 * v + i) & 0x01010101u) << 4; }; };
  return {{{for_words(low_nibbles(t.q), with(t.words[0])), k.scale[0], k.min[0]},
           {for_words(high_nibbles(t.q), with(t.words[1])), k.scale[1], k.min[1]}}};
}

// Of the four scales of a piece, two are of a thread's weights.
template <>
DEVICE Taken take<Packed_Q6_K>(const uint8_t* row, int piece, int v, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q6_K>(p.group);
  const uint8_t* upper = group + (2 * p.size + p.at) * 16 + v * 4;
  const uint32_t d = u16_at(group + 52 * p.size + p.at / 4 * 2);
  return {load16(group + (v * p.size + p.at) * 16), {d}, {load_word(upper), load_word(upper + 8), load_word(group + 48 * p.size + p.at * 4)}};
}

template <>
DEVICE Codes codes_of<Packed_Q6_K>(const Taken& t, int, int v) {
  const uint32_t s = t.words[2] >> 8 * v;
  const float d = ptx::f16_to_f32(static_cast<uint16_t>(t.more.x));
  const float s0 = d * static_cast<float>(static_cast<int8_t>(s)), s1 = d * static_cast<float>(static_cast<int8_t>(s >> 16));
  const auto with = [](uint32_t bits) { return [=](uint32_t w, int i) { return w | (bits >> 2 * i & 0x03030303u) << 4; }; };
  return {{{for_words(low_nibbles(t.q), with(t.words[0])), s0, 0}, {for_words(high_nibbles(t.q), with(t.words[1])), s1, 0}}};
}

template <>
DEVICE Taken take<Packed_Q8_0>(const uint8_t* row, int piece, int v, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q8_0>(p.group);
  const uint8_t* q = group + (v * p.size + p.at) * 16;
  return {load16(q), load16(q + 2 * p.size * 16), {load_word(group + 64 * p.size + p.at * 4)}};
}

template <>
DEVICE Codes codes_of<Packed_Q8_0>(const Taken& t, int, int) {
  const auto codes = [](const uint4& q) { return for_words(q, [](uint32_t w, int) { return w ^ 0x80808080u; }); };
  const uint32_t d = t.words[0];
  const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  return {{{codes(t.q), d0, 0}, {codes(t.more), d1, 0}}};
}

template <>
DEVICE Taken take<Packed_Q4_0>(const uint8_t* row, int piece, int v, int n) {
  const Place p(piece, n);
  const uint8_t* group = row + group_at<Packed_Q4_0>(p.group);
  return {load16(group + (v * p.size + p.at) * 16), {}, {load_word(group + 32 * p.size + p.at * 4)}};
}

template <>
DEVICE Codes codes_of<Packed_Q4_0>(const Taken& t, int, int) {
  const uint32_t d = t.words[0];
  const float d0 = ptx::f16_to_f32(static_cast<uint16_t>(d)), d1 = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  return {{{low_nibbles(t.q), d0, 0}, {high_nibbles(t.q), d1, 0}}};
}

// The bytes of codes' weights times `factor`, which makes them 127 in magnitude at most, to the nearest: a number and 128 are counted in
// 256ths, two in a word.
template <class P>
DEVICE uint4 bytes_of_codes(const Codes::Half& h, float factor) {
  constexpr int ZERO = CodesOf<P>::ZERO, HALF = 128;
  const int scale = __float2int_rn(h.scale * factor * 256.0f);
  const int offset = (ZERO < 0 ? __float2int_rn((128.0f - h.min * factor) * 256.0f) : 128 * 256 - ZERO * scale) + HALF;
  const uint32_t offsets = static_cast<uint32_t>(offset) * 0x10001u;
  return for_words(h.q, [&](uint32_t w, int) {
    const uint32_t even = __byte_perm(w, 0, 0x4240) * static_cast<uint32_t>(scale) + offsets;
    const uint32_t odd = __byte_perm(w, 0, 0x4341) * static_cast<uint32_t>(scale) + offsets;
    return __byte_perm(even, odd, 0x7351) ^ 0x80808080u;
  });
}
