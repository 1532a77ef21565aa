// Products of 1 to 8 rows of activations with packed weights, with what stands before and after them in a transformer: the norm of
// the input, the quantization of activations, bias, the sum with the residual stream, gate · up.
//
// A block owns a contiguous range of outputs of one part of the matrix. A warp takes a group (packed.cuh) of one or two rows at a time,
// a piece to a lane; groups go round the block's warps, so that a block reads memory from front to back. Each group's sum is left in
// shared memory, where the groups of an output are added in order: an output does not depend on the other rows of x.
//
// Weights come through a ring in shared memory that fills before the kernel before has ended, since they do not depend on it. There is
// one block to a multiprocessor, with half of what it has, so that the next kernel's block fits beside it.
//
// Moves: the weights once. Shared memory: the ring, 80 bytes per 64 activations of each row, 4 bytes per group of a row and row of x.
#include "packed.cuh"

constexpr int MAX_PARTS = 4, MAX_ROWS = 8;
// Bytes of the ring, and the most stages that it has. A stage is a group of each warp, of one or two rows.
constexpr int RING = 60 << 10;
constexpr int MAX_STAGES = 6;

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

// Activations of a piece of plain numbers: 8 at `at` + 256 j, for j below n.
struct XPlain {
  const float* at;
  int n;
};

// Weights of plain numbers: a piece is 32 of them, 8 at lane * 8 + 256 j of its group, so that loads lie side by side. A group of
// fewer than 32 pieces is filled from its front.
template <bool BRAIN>
struct Plain {
  static constexpr bool PACKED = false, PAIRS_OF_SUMS = false;
  DEVICE static constexpr int bytes(int size) { return 64 * size; }
  struct Piece {
    uint4 q[4];
  };
  DEVICE static void take(Piece& p, const uint8_t* group, int, int at) { take_vectors(p.q, group, GROUP, at); }
  DEVICE static float dot(const Piece& p, const XPlain& x) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (j >= x.n) break;
      const float4 a = *reinterpret_cast<const float4*>(x.at + 256 * j);
      const float4 b = *reinterpret_cast<const float4*>(x.at + 256 * j + 4);
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

// How a kind of weights wants activations.
enum class Form { FLOATS, SUMS, PAIRS_OF_SUMS };

// Converts activations k to k + 7 of a row. Whole warps call it, for the shuffles.
DEVICE void convert(const float (&v)[8], int k, int n, XPiece* pieces, float* floats, Form form) {
  if (form == Form::FLOATS) {
    if (k < n) {
      float4* to = reinterpret_cast<float4*>(floats + k);
      to[0] = float4{v[0], v[1], v[2], v[3]};
      to[1] = float4{v[4], v[5], v[6], v[7]};
    }
    return;
  }
  // Four neighbouring threads convert a block of 32. As integers, magnitudes compare alike, and what is not a number is largest.
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
  bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, 1));
  bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, 2));
  const float largest = __uint_as_float(bits), scale = largest * (1.0f / 127.0f);
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
    XPiece* piece = pieces + k / 64;
    *reinterpret_cast<uint2*>(piece->q + k % 64) = uint2{packed[0], packed[1]};
    if (k % 32 == 0) {
      piece->scale[k / 32 % 2] = scale;
      const uint32_t pair = (static_cast<uint32_t>(sum) & 0xffff) | static_cast<uint32_t>(next) << 16;
      piece->sums[k / 32 % 2] = form == Form::SUMS ? __float_as_uint(scale * static_cast<float>(sum + next)) : pair;
    }
  }
}

DEVICE void load_if(float (&v)[8], const float* x, int k, int n) {
  if (k < n) {
    load8_floats(v, x, k, n);
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0;
  }
}

// Converts the rows of x, times the norm's weights. What the norm divides them by is left to the end: the thread's share of the sum of
// squares of row j goes to `squares(j, share)`. `weights`: the first of the norm's, which were there before.
template <int THREADS, int CHUNKS, class Squares>
DEVICE void prepare(const MatvecArgs& a, const float (&weights)[CHUNKS][8], XPiece* pieces, float* floats, Form form, Squares squares) {
  constexpr int CHUNK = THREADS * 8;
  const int n = a.n_in, m = a.m, own = threadIdx.x * 8;
#pragma unroll 1
  for (int j = 0; j < m; j++) {
    const float* x = a.x + static_cast<size_t>(j) * n;
    float sum = 0;
#pragma unroll 1
    for (int base = 0; base < n; base += CHUNKS * CHUNK) {
      float v[CHUNKS][8];
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) load_if(v[c], x, base + c * CHUNK + own, n);
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const int k = base + c * CHUNK + own;
        if (base + c * CHUNK >= n) break;
        if (a.norm_weight) {
          float w[8];
          if (base > 0) load_if(w, a.norm_weight, k, n);
#pragma unroll
          for (int i = 0; i < 8; i++) {
            sum += v[c][i] * v[c][i];
            v[c][i] *= base > 0 ? w[i] : weights[c][i];
          }
        }
        convert(v[c], k, n, pieces + j * (n / 64), floats + static_cast<size_t>(j) * n, form);
      }
    }
    if (a.norm_weight) squares(j, sum);
  }
}

// The activations of a lane's piece of a group, of row j.
template <class P>
DEVICE auto activations(const XPiece* pieces, const float* floats, int j, int group, int lane, int n) {
  if constexpr (P::PACKED) {
    return X(pieces + j * (n / 64) + group * GROUP + lane);
  } else {
    const int k = group * 1024 + lane * 8;
    return XPlain{floats + static_cast<size_t>(j) * n + k, k < n ? ceil_div(n - k, 256) : 0};
  }
}

// What is in shared memory whatever the kind of weights.
template <int WARPS>
struct Common {
  uint64_t barriers[WARPS][MAX_STAGES];
  // A warp's share of the sum of squares of each row of x.
  float squares[MAX_ROWS][WARPS];
};

// Outputs `first` to `first + n_rows` of a part; with a gate, its rows and then as many of up's.
template <class P, int THREADS, bool ONE>
DEVICE void multiply(const MatvecArgs& a, const MatvecPart& part, int first, int n_rows, bool gate, unsigned char* shared,
                     Common<THREADS / 32>& common) {
  // Chunks of THREADS * 8 activations that are on their way at the same time.
  constexpr int WARPS = THREADS / 32, CHUNKS = THREADS <= 256 ? 4 : 2;
  // A lane has two rows, which share what it reads of x, where the ring has room.
  constexpr int BYTES = P::bytes(GROUP);
  constexpr int ROWS = 2 * WARPS * 2 * BYTES <= RING ? 2 : 1, STAGE = ROWS * BYTES;
  constexpr int FIT = RING / (WARPS * STAGE), STAGES = FIT > MAX_STAGES ? MAX_STAGES : FIT;
  static_assert(STAGES >= 2, "the ring is too small");
  const int n = a.n_in, lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = ONE ? 1 : a.m;
  const int n_pieces = P::PACKED ? n / 64 : ceil_div(n, 32), n_groups = ceil_div(n_pieces, GROUP);
  const int last_size = n_pieces - (n_groups - 1) * GROUP;
  const uint32_t last_bytes = P::PACKED ? P::bytes(last_size) : (n - (n_groups - 1) * 1024) * 2;
  const size_t x_bytes = P::PACKED ? static_cast<size_t>(n / 64) * sizeof(XPiece) : static_cast<size_t>(n) * 4;
  uint8_t* ring = shared + warp * (STAGES * STAGE);
  XPiece* pieces = reinterpret_cast<XPiece*>(shared + RING);
  float* floats = reinterpret_cast<float*>(shared + RING);
  float* sums = reinterpret_cast<float*>(shared + RING + x_bytes * m);  // [rows, groups, m]
  uint64_t* barrier = common.barriers[warp];

  // A warp has rows `row` and `row` + n_own: two places that the block reads from front to back.
  const int n_own = ceil_div(n_rows, ROWS), n_units = n_own * n_groups;
  const int step_rows = WARPS / n_groups, step_groups = WARPS % n_groups;
  const uint8_t* w = part.w + static_cast<size_t>(first) * part.row_bytes;
  // From a row to the other; the other of an odd number's last is itself.
  const int64_t other = gate ? a.parts[1].w - a.parts[0].w : static_cast<int64_t>(n_own) * static_cast<int64_t>(part.row_bytes);

  // The copies run ahead of the products.
  int ahead = warp, ahead_group = ahead % n_groups, ahead_row = ahead / n_groups;
  const auto fetch_stage = [&](int stage) {
    if (ahead < n_units) {
      const uint32_t bytes = ahead_group + 1 == n_groups ? last_bytes : BYTES;
      ptx::expect_bytes(barrier + stage, lane, ROWS * bytes);
      const uint8_t* r = w + ahead_row * part.row_bytes + ahead_group * BYTES;
      if (ROWS == 1 && gate && ahead_row >= n_own / 2) r += other - static_cast<int64_t>(n_own / 2 * part.row_bytes);
      ptx::copy_bytes(ring + stage * STAGE, r, bytes, barrier + stage, lane);
      if (ROWS == 2) {
        if (gate || ahead_row + n_own < n_rows) r += other;
        ptx::copy_bytes(ring + stage * STAGE + BYTES, r, bytes, barrier + stage, lane);
      }
      ptx::copies_are_begun(barrier + stage);
    }
    ahead += WARPS, ahead_row += step_rows, ahead_group += step_groups;
    if (ahead_group >= n_groups) ahead_group -= n_groups, ahead_row++;
  };
#pragma unroll
  for (int s = 0; s < STAGES; s++) ptx::barrier_init(barrier + s, lane);
  ptx::barriers_are_ready();
#pragma unroll 1
  for (int s = 0; s < STAGES; s++) fetch_stage(s);

  float weights[CHUNKS][8];
#pragma unroll
  for (int c = 0; c < CHUNKS; c++) {
    load_if(weights[c], a.norm_weight, (c * THREADS + threadIdx.x) * 8, a.norm_weight ? n : 0);
  }
  ptx::wait_for_previous_kernel();
  // What the sums will be added to.
  const int n_y = gate ? n_rows / 2 : n_rows;
  float before = 0;
  if (a.epilogue == ADD && threadIdx.x < n_y * m) {
    before = a.y[static_cast<size_t>(threadIdx.x / n_y) * a.y_stride + part.first_out + first + threadIdx.x % n_y];
  }
  prepare<THREADS>(a, weights, pieces, floats, !P::PACKED ? Form::FLOATS : P::PAIRS_OF_SUMS ? Form::PAIRS_OF_SUMS : Form::SUMS,
          [&](int j, float share) {
            share = warp_sum(share);
            if (lane == 0) common.squares[j][warp] = share;
          });
  __syncthreads();

  int stage = 0, group = warp % n_groups, row = warp / n_groups;
  uint32_t parity = 0;
#pragma unroll 1
  for (int unit = warp; unit < n_units; unit += WARPS) {
    const int size = group + 1 == n_groups ? last_size : GROUP;
    ptx::wait_for_phase(barrier + stage, parity);
    typename P::Piece p[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) P::take(p[i], ring + stage * STAGE + i * BYTES, size, P::PACKED ? min(lane, size - 1) : lane);
    // The lanes have taken theirs before it is overwritten.
    __syncwarp();
    fetch_stage(stage);
    if (++stage == STAGES) stage = 0, parity ^= 1;
#pragma unroll 1
    for (int j = 0; j < m; j++) {
      float sum[ROWS] = {};
      if (!P::PACKED || lane < size) {
        const auto x = activations<P>(pieces, floats, j, group, lane, n);
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[i] = P::dot(p[i], x);
      }
      if (ROWS == 2) {
        // Each half of the warp adds one of the two.
        const bool upper = lane >= 16;
        float s = upper ? sum[ROWS - 1] : sum[0];
        s += __shfl_xor_sync(ALL_LANES, upper ? sum[0] : sum[ROWS - 1], 16);
#pragma unroll
        for (int d = 8; d; d >>= 1) s += __shfl_xor_sync(ALL_LANES, s, d);
        const int mine = row + (upper ? n_own : 0);
        if (lane % 16 == 0 && mine < n_rows) sums[(mine * n_groups + group) * m + j] = s;
      } else {
        const float s = warp_sum(sum[0]);
        if (lane == 0) sums[(row * n_groups + group) * m + j] = s;
      }
      if (ONE) break;
    }
    row += step_rows, group += step_groups;
    if (group >= n_groups) group -= n_groups, row++;
  }
  __syncthreads();

  // What the norm of row j multiplies with.
  const auto inverse = [&](int j) {
    if (!a.norm_weight) return 1.0f;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += common.squares[j][w];
    return rsqrtf(sum * a.inv_n + a.eps);
  };
  const auto total = [&](int row, int j) {
    float sum = 0;
    for (int g = 0; g < n_groups; g++) sum += sums[(row * n_groups + g) * m + j];
    return sum * inverse(j);
  };
  for (int i = threadIdx.x; i < n_y * m; i += THREADS) {
    const int row = i % n_y, j = i / n_y;
    float* y = a.y + static_cast<size_t>(j) * a.y_stride;
    if (gate) {
      y[first + row] = activate(a.activation, total(row, j)) * total(n_y + row, j);
      continue;
    }
    const int out = part.first_out + first + row;
    float sum = total(row, j);
    if (a.bias) sum += a.bias[out];
    y[out] = a.epilogue != ADD ? sum : sum + (i < THREADS ? before : y[out]);
  }
}

template <int THREADS, bool ONE>
DEVICE void multiply_parts(const MatvecArgs& a) {
  DYNAMIC_SHARED(shared);
  ptx::let_next_kernel_start();
  __shared__ Common<THREADS / 32> common;
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
    case LAYOUT_F16: return multiply<Plain<false>, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    case LAYOUT_BF16: return multiply<Plain<true>, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    case LAYOUT_Q4_0: return multiply<Packed_Q4_0, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    case LAYOUT_Q8_0: return multiply<Packed_Q8_0, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    case LAYOUT_Q4_K: return multiply<Packed_Q4_K, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    case LAYOUT_Q5_K: return multiply<Packed_Q5_K, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
    default: return multiply<Packed_Q6_K, THREADS, ONE>(a, part, first, n_rows, gate, shared, common);
  }
}

// One row of x. Two blocks, of one kernel and the next, fit a multiprocessor. More threads suit weights that take more work.
KERNEL_2(matvec_256, MatvecArgs, 256) { multiply_parts<256, true>(a); }
KERNEL_2(matvec_384, MatvecArgs, 384) { multiply_parts<384, true>(a); }
// Up to 8 rows.
KERNEL(matvec_8, MatvecArgs, 384) { multiply_parts<384, false>(a); }
