// Products of 1 to 8 rows of activations with packed weights, with what stands before and after them in a transformer: the norm of
// the input, the quantization of activations, bias, the sum with the residual stream, gate · up.
//
// A block owns a contiguous range of outputs of one part of the matrix. An octet of 8 lanes owns pieces e * 8 + lane of one output's
// row (a unit); units go round the block's 40 octets, and each leaves its sum in shared memory, where the units of an output are
// added in order. So an output does not depend on the batch or the grid. Each thread loads its first two pieces before it waits for
// the kernel before, whose results they do not depend on.
//
// Moves: the weights once. Shared memory: 80 bytes per 64 activations of each row, 4 bytes per unit and row.
#include "packed.cuh"

constexpr int THREADS = 320;
constexpr int OCTETS = THREADS / 8;
constexpr int MAX_PARTS = 4;

enum Layout : uint32_t { LAYOUT_F16, LAYOUT_BF16, LAYOUT_Q4_0, LAYOUT_Q8_0, LAYOUT_Q4_K, LAYOUT_Q5_K, LAYOUT_Q6_K };
enum Epilogue : uint32_t { STORE, ADD, GATE };

struct MatvecPart {
  const uint8_t* w;      // [n_out] rows of `row_bytes`
  uint64_t row_bytes;
  uint32_t layout;
  uint32_t first_out;    // of the whole matrix
  uint32_t n_out;
  uint32_t first_block;  // blocks `first_block` to the next part's own it
};

struct MatvecArgs {
  float* y;                  // [m, y_stride]
  const float* x;            // [m, n_in]
  const float* norm_weight;  // [n_in]: x is normalized first (root mean square); or null
  const float* bias;         // [n_out] or null
  MatvecPart parts[MAX_PARTS];
  uint32_t n_parts, n_blocks;
  uint32_t n_in, m, y_stride;
  uint32_t epilogue;         // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t activation;
  float inv_n;               // 1 / n_in
  float eps;
};

enum Activation : uint32_t { SILU, GELU_TANH, GELU_ERF, RELU_SQUARED, RELU };

DEVICE float activate(uint32_t f, float x) {
  switch (f) {
    case SILU: return __fdividef(x, 1.0f + __expf(-x));
    case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return fmaxf(x, 0.0f);
  }
}

// Weights of plain numbers: a unit is 256 of them, and a lane has 8 at lane * 8 + 64 j, so that loads lie side by side.
template <bool BRAIN>
struct Plain {
  struct Piece {
    uint4 q[4];
  };
  DEVICE static void load(Piece& p, const uint8_t* row, int piece, int n) {
    const int k = piece / 8 * 256 + piece % 8 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      p.q[j] = k + 64 * j < n ? load16(row + 2 * static_cast<size_t>(k + 64 * j)) : uint4{0, 0, 0, 0};
    }
  }
  DEVICE static float dot(const Piece& p, int piece, const float* x, int n) {
    const int k = piece / 8 * 256 + piece % 8 * 8;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (k + 64 * j >= n) break;
      const float4 a = *reinterpret_cast<const float4*>(x + k + 64 * j);
      const float4 b = *reinterpret_cast<const float4*>(x + k + 64 * j + 4);
      const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t w = word(p.q[j], i);
        const float low = BRAIN ? __uint_as_float(w << 16) : ptx::f16_to_f32(static_cast<uint16_t>(w));
        const float high = BRAIN ? __uint_as_float(w & 0xffff0000u) : ptx::f16_to_f32(static_cast<uint16_t>(w >> 16));
        sum = fmaf(low, v[2 * i], sum);
        sum = fmaf(high, v[2 * i + 1], sum);
      }
    }
    return sum;
  }
};

DEVICE float octet_sum(float x) {
  x += __shfl_xor_sync(ALL_LANES, x, 4);
  x += __shfl_xor_sync(ALL_LANES, x, 2);
  return x + __shfl_xor_sync(ALL_LANES, x, 1);
}

// Where a thread stands in its block's units.
struct Cursor {
  int row, eighth;  // unit = row * n_eighths + eighth
};

// The activations of all rows in shared memory.
struct Inputs {
  const XPiece* pieces;  // [m, n_in / 64], where weights are integers
  const float* floats;   // [m, n_in], where they are plain numbers
};

// Normalizes and converts the rows of x, as the part's weights want them.
DEVICE void prepare(const MatvecArgs& a, XPiece* pieces, float* floats, bool plain, float* scratch) {
  const int n = a.n_in;
  for (int j = 0; j < static_cast<int>(a.m); j++) {
    const float* x = a.x + static_cast<size_t>(j) * n;
    float inv = 1.0f;
    if (a.norm_weight) {
      float sum = 0;
      for (int k = threadIdx.x * 4; k < n; k += THREADS * 4) {
        const float4 v = *reinterpret_cast<const float4*>(x + k);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
      }
      inv = rsqrtf(block_sum(sum, scratch) * a.inv_n + a.eps);
    }
    // Four neighbouring threads convert a block of 32. All threads go round alike, for the shuffles.
    for (int base = 0; base < n; base += THREADS * 8) {
      const int k = base + threadIdx.x * 8;
      float v[8] = {};
      if (k < n) {
        load8_floats(v, x, k, n);
        if (a.norm_weight) {
          float w[8];
          load8_floats(w, a.norm_weight, k, n);
#pragma unroll
          for (int i = 0; i < 8; i++) v[i] *= inv * w[i];
        }
      }
      if (plain) {
        if (k < n) {
          float4* to = reinterpret_cast<float4*>(floats + static_cast<size_t>(j) * n + k);
          to[0] = float4{v[0], v[1], v[2], v[3]};
          to[1] = float4{v[4], v[5], v[6], v[7]};
        }
        continue;
      }
      float largest = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) largest = fmaxf(largest, fabsf(v[i]));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
      const float per_unit = largest > 1e-30f ? __fdividef(127.0f, largest) : 0.0f;
      uint32_t packed[2] = {};
      int sum = 0;
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const int q = __float2int_rn(v[i] * per_unit);
        sum += q;
        packed[i / 4] |= (static_cast<uint32_t>(q) & 255) << 8 * (i % 4);
      }
      sum += __shfl_xor_sync(ALL_LANES, sum, 1);
      const int next = __shfl_xor_sync(ALL_LANES, sum, 2);
      if (k < n) {
        XPiece* piece = pieces + j * (n / 64) + k / 64;
        *reinterpret_cast<uint2*>(piece->q + k % 64) = uint2{packed[0], packed[1]};
        if (k % 32 == 0) {
          // Not a number stays so: the maximum ignores it, so it is looked for in the sum.
          piece->scale[k / 32 % 2] = largest * (1.0f / 127.0f);
          piece->sums[k / 32 % 2] = (static_cast<uint32_t>(sum) & 0xffff) | static_cast<uint32_t>(next) << 16;
        }
      }
    }
  }
}

template <class P>
struct Dot {
  DEVICE static float run(const typename P::Piece& p, int piece, int n, int j, const XPiece* pieces, const float*) {
    return P::dot(p, piece, X(pieces + j * (n / 64) + piece));
  }
};

template <bool BRAIN>
struct Dot<Plain<BRAIN>> {
  DEVICE static float run(const typename Plain<BRAIN>::Piece& p, int piece, int n, int j, const XPiece*, const float* floats) {
    return Plain<BRAIN>::dot(p, piece, floats + static_cast<size_t>(j) * n, n);
  }
};

// Outputs `first` to `first + n_rows` of a part; with a gate, both parts' outputs by turns, the gate's at even rows.
template <class P, bool PLAIN>
DEVICE void multiply(const MatvecArgs& a, const MatvecPart& part, int first, int n_rows, bool gate, unsigned char* shared) {
  const int n = a.n_in, lane = threadIdx.x % 8, octet = threadIdx.x / 8;
  const int n_pieces = PLAIN ? ceil_div(n, 256) * 8 : n / 64, n_eighths = ceil_div(n_pieces, 8);
  const int step_rows = OCTETS / n_eighths, step_eighths = OCTETS % n_eighths;
  const size_t x_bytes = PLAIN ? static_cast<size_t>(n) * 4 : static_cast<size_t>(n / 64) * sizeof(XPiece);
  XPiece* pieces = reinterpret_cast<XPiece*>(shared);
  float* floats = reinterpret_cast<float*>(shared);
  float* sums = reinterpret_cast<float*>(shared + x_bytes * a.m);  // [units, m]
  const int n_units = n_rows * n_eighths;

  const auto row_of = [&](int row) {
    if (!gate) return part.w + static_cast<size_t>(first + row) * part.row_bytes;
    return a.parts[row & 1].w + static_cast<size_t>(first + (row >> 1)) * part.row_bytes;
  };
  const auto next = [&](Cursor& c) {
    c.row += step_rows, c.eighth += step_eighths;
    if (c.eighth >= n_eighths) c.eighth -= n_eighths, c.row++;
  };
  const auto fetch = [&](typename P::Piece& p, const Cursor& c) {
    const int piece = c.eighth * 8 + lane;
    if (c.row < n_rows && piece < n_pieces) P::load(p, row_of(c.row), piece, n);
  };
  Cursor ahead = {octet / n_eighths, octet % n_eighths};
  int eighth = ahead.eighth;
  typename P::Piece first_piece, second_piece;
  fetch(first_piece, ahead);
  next(ahead);
  fetch(second_piece, ahead);
  next(ahead);

  ptx::wait_for_previous_kernel();
  ptx::let_next_kernel_start();
  __shared__ float scratch[THREADS / 32];
  prepare(a, pieces, floats, PLAIN, scratch);
  __syncthreads();

  const int m = a.m;
  const auto use = [&](typename P::Piece& p, int unit) {
    const int piece = eighth * 8 + lane;
    const bool mine = unit < n_units && piece < n_pieces;
#pragma unroll 1
    for (int j = 0; j < m; j++) {
      const float sum = octet_sum(mine ? Dot<P>::run(p, piece, n, j, pieces, floats) : 0.0f);
      if (lane == 0 && unit < n_units) sums[unit * m + j] = sum;
    }
    fetch(p, ahead);
    next(ahead);
    eighth += step_eighths;
    if (eighth >= n_eighths) eighth -= n_eighths;
  };
  // All octets go round equally often, for the shuffles.
#pragma unroll 1
  for (int base = 0; base < n_units; base += 2 * OCTETS) {
    use(first_piece, base + octet);
    use(second_piece, base + OCTETS + octet);
  }
  __syncthreads();

  const int n_y = gate ? n_rows / 2 : n_rows;
  const auto total = [&](int row, int j) {
    float sum = 0;
    for (int e = 0; e < n_eighths; e++) sum += sums[(row * n_eighths + e) * m + j];
    return sum;
  };
  for (int i = threadIdx.x; i < n_y * m; i += THREADS) {
    const int row = i % n_y, j = i / n_y;
    float* y = a.y + static_cast<size_t>(j) * a.y_stride;
    if (gate) {
      y[first + row] = activate(a.activation, total(2 * row, j)) * total(2 * row + 1, j);
      continue;
    }
    const int out = part.first_out + first + row;
    float sum = total(row, j);
    if (a.bias) sum += a.bias[out];
    y[out] = a.epilogue == ADD ? y[out] + sum : sum;
  }
}

DEVICE void multiply_parts(const MatvecArgs& a) {
  DYNAMIC_SHARED(shared);
  const bool gate = a.epilogue == GATE;
  uint32_t p = 0;
  if (!gate) {
    while (p + 1 < a.n_parts && blockIdx.x >= a.parts[p + 1].first_block) p++;
  }
  const MatvecPart& part = a.parts[p];
  const uint32_t end = gate || p + 1 == a.n_parts ? a.n_blocks : a.parts[p + 1].first_block;
  const uint64_t block = blockIdx.x - part.first_block, n_blocks = end - part.first_block;
  const int first = static_cast<int>(part.n_out * block / n_blocks), last = static_cast<int>(part.n_out * (block + 1) / n_blocks);
  const int n_rows = (last - first) * (gate ? 2 : 1);
  switch (part.layout) {
    case LAYOUT_F16: return multiply<Plain<false>, true>(a, part, first, n_rows, gate, shared);
    case LAYOUT_BF16: return multiply<Plain<true>, true>(a, part, first, n_rows, gate, shared);
    case LAYOUT_Q4_0: return multiply<Packed_Q4_0, false>(a, part, first, n_rows, gate, shared);
    case LAYOUT_Q8_0: return multiply<Packed_Q8_0, false>(a, part, first, n_rows, gate, shared);
    case LAYOUT_Q4_K: return multiply<Packed_Q4_K, false>(a, part, first, n_rows, gate, shared);
    case LAYOUT_Q5_K: return multiply<Packed_Q5_K, false>(a, part, first, n_rows, gate, shared);
    default: return multiply<Packed_Q6_K, false>(a, part, first, n_rows, gate, shared);
  }
}

// Two blocks fill a multiprocessor.
KERNEL_2(matvec, MatvecArgs, THREADS) { multiply_parts(a); }
