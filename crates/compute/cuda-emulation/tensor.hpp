// Background copies and tensor cores, for the emulation. Copies happen when their thread waits for them, and no sooner, so that a
// kernel that does not wait reads what was there before.
#pragma once

namespace emulation {

struct Copy {
  void* to;
  const void* from;
  unsigned bytes, group;
};

// The copies of one fiber that nobody has waited for.
struct Copies {
  static constexpr unsigned MAX = 512;
  Copy pending[MAX];
  unsigned n, group;
};

inline Copies& copies() {
  if (!block->copies) block->copies = static_cast<Copies*>(calloc(MAX_THREADS, sizeof(Copies)));
  return block->copies[thread()];
}

// The lane's share of a matrix of 8 rows, from the addresses of the rows.
inline uint32_t matrix_element(const Given& rows, unsigned matrix, unsigned row, unsigned column) {
  uint16_t x;
  memcpy(&x, reinterpret_cast<const uint16_t*>(rows(8 * matrix + row)) + column, 2);
  return x;
}

template <class ToFloat>
void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, ToFloat to_float) {
  float mine[12];
  for (int i = 0; i < 4; i++) {
    mine[2 * i] = to_float(static_cast<uint16_t>(a[i]));
    mine[2 * i + 1] = to_float(static_cast<uint16_t>(a[i] >> 16));
  }
  mine[8] = to_float(static_cast<uint16_t>(b0)), mine[9] = to_float(static_cast<uint16_t>(b0 >> 16));
  mine[10] = to_float(static_cast<uint16_t>(b1)), mine[11] = to_float(static_cast<uint16_t>(b1 >> 16));
  uint64_t words[6];
  memcpy(words, mine, sizeof mine);
  const Given given = give(words, 6);
  const unsigned g = lane() / 4, t = lane() % 4;
  float sums[4] = {};
  for (unsigned q = 0; q < 4; q++) {
    // Elements 2 q, 2 q + 1, 2 q + 8 and 2 q + 9 of the inner dimension.
    float a[12], b[2][12];
    given.copy(a, 4 * g + q), given.copy(b[0], 8 * t + q), given.copy(b[1], 8 * t + 4 + q);
    for (unsigned i = 0; i < 4; i++) {
      const float *x = a + i / 2 * 2, *y = b[i % 2] + 8;
      sums[i] += x[0] * y[0] + x[1] * y[1] + x[4] * y[2] + x[5] * y[3];
    }
  }
  for (unsigned i = 0; i < 4; i++) d[i] += sums[i];
}

// Of integers of 8 bits, WORDS of them in a lane's share of a column of the second operand; those of the first with signs or without.
template <class A, unsigned WORDS>
void multiply_bytes(int (&d)[4], const uint32_t (&a)[2 * WORDS], const uint32_t (&b)[WORDS], const int (&c)[4]) {
  uint32_t mine[8] = {};
  memcpy(mine, a, sizeof a), memcpy(mine + 4, b, sizeof b);
  uint64_t words[4];
  memcpy(words, mine, sizeof mine);
  const Given given = give(words, 4);
  const unsigned g = lane() / 4, t = lane() % 4;
  for (unsigned i = 0; i < 4; i++) d[i] = c[i];
  for (unsigned q = 0; q < 4; q++) {
    uint32_t x[8], y[2][8];
    given.copy(x, 4 * g + q), given.copy(y[0], 8 * t + q), given.copy(y[1], 8 * t + 4 + q);
    for (unsigned i = 0; i < 4; i++) {
      for (unsigned w = 0; w < WORDS; w++) {
        for (unsigned j = 0; j < 4; j++) {
          d[i] += static_cast<A>(x[2 * w + i / 2] >> 8 * j) * static_cast<int8_t>(y[i % 2][4 + w] >> 8 * j);
        }
      }
    }
  }
}

}  // namespace emulation

namespace ptx {

inline void cp_async_16(void* shared, const void* global, uint32_t bytes) {
  auto& c = emulation::copies();
  if (c.n == emulation::Copies::MAX || bytes > 16) __builtin_trap();
  c.pending[c.n++] = {shared, global, bytes, c.group};
}

inline void cp_async_16_evict_first(void* shared, const void* global, uint32_t bytes) { cp_async_16(shared, global, bytes); }

inline void cp_async_commit() { emulation::copies().group++; }

template <unsigned N>
void cp_async_wait() {
  auto& c = emulation::copies();
  unsigned kept = 0;
  for (unsigned i = 0; i < c.n; i++) {
    const auto& copy = c.pending[i];
    if (copy.group + N >= c.group) {
      c.pending[kept++] = copy;
      continue;
    }
    memset(copy.to, 0, 16);
    memcpy(copy.to, copy.from, copy.bytes);
  }
  c.n = kept;
}

inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  const uint64_t word = reinterpret_cast<uint64_t>(row);
  const auto rows = emulation::give(&word, 1);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  for (unsigned i = 0; i < 4; i++) {
    r[i] = emulation::matrix_element(rows, i, g, 2 * t) | emulation::matrix_element(rows, i, g, 2 * t + 1) << 16;
  }
}

inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  const uint64_t word = reinterpret_cast<uint64_t>(row);
  const auto rows = emulation::give(&word, 1);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  for (unsigned i = 0; i < 4; i++) {
    r[i] = emulation::matrix_element(rows, i, 2 * t, g) | emulation::matrix_element(rows, i, 2 * t + 1, g) << 16;
  }
}

inline uint32_t movmatrix_trans(uint32_t r) {
  const uint64_t word = r;
  const auto given = emulation::give(&word, 1);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  const unsigned shift = g % 2 * 16;
  return (given(8 * t + g / 2) >> shift & 0xffff) | (given(8 * t + 4 + g / 2) >> shift & 0xffff) << 16;
}

inline void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::multiply(d, a, b0, b1, f16_to_f32);
}

inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulation::multiply(d, a, b0, b1, [](uint16_t x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); });
}

inline uint32_t f32_to_tf32(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  // To the nearest, ties away from zero; infinity and NaN stay.
  return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & ~0x1fffu;
}

inline void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  uint64_t words[3];
  memcpy(words, mine, sizeof mine);
  const auto given = emulation::give(words, 3);
  const unsigned g = emulation::lane() / 4, t = emulation::lane() % 4;
  float sums[4] = {};
  for (unsigned q = 0; q < 4; q++) {
    // Elements q and q + 4 of the inner dimension, of which the tensor cores ignore the last bits.
    uint32_t x[6], y[2][6];
    given.copy(x, 4 * g + q), given.copy(y[0], 8 * t + q), given.copy(y[1], 8 * t + 4 + q);
    const auto number = [](uint32_t bits) { return __uint_as_float(bits & ~0x1fffu); };
    for (unsigned i = 0; i < 4; i++) {
      sums[i] += number(x[i / 2]) * number(y[i % 2][4]) + number(x[2 + i / 2]) * number(y[i % 2][5]);
    }
  }
  for (unsigned i = 0; i < 4; i++) d[i] += sums[i];
}

inline void mma_u8(int (&d)[4], const uint32_t (&a)[4], uint2 b, const int (&c)[4]) {
  emulation::multiply_bytes<uint8_t, 2>(d, a, {b.x, b.y}, c);
}

inline void mma_s8(int (&d)[4], const uint32_t (&a)[4], uint2 b, const int (&c)[4]) {
  emulation::multiply_bytes<int8_t, 2>(d, a, {b.x, b.y}, c);
}

inline void mma_s8_k16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, const int (&c)[4]) {
  emulation::multiply_bytes<int8_t, 1>(d, {a0, a1}, {b}, c);
}

}  // namespace ptx
