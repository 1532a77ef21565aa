// Products of heads with many rows: of each head, rows of x times the head's own matrix, on the tensor cores of any GPU.
//
// A block of 8 warps owns up to 64 rows of one head and a share of its outputs, 128 at a time, of which a warp has 32 rows x 32 outputs. It
// converts its rows to 16 bits once and keeps all their columns in shared memory; in half precision a row has a power of two. Weights pass
// through two stages of 64 columns: while a step is multiplied the next one's are on their way, packed ones to registers, from which they are
// decoded to the other stage, plain ones straight there. Shared memory: 8 KiB for each 64 columns and 32 KiB, at most 96 KiB. Blocks (share
// of outputs, tile of rows, head).
//
// Moves: x once for each share of outputs, the weights of a head once for each 64 rows, and y.
#include "mma_step.cuh"
#include "packed.cuh"
#include "row_scale.cuh"
#include "head_gemm_args.cuh"

constexpr int THREADS = 256, WARPS = THREADS / 32, ROWS = 64, OUTS = 128;
// Bytes of the rows of a step, and of its weights.
constexpr int X_STEP = ROWS * LINE, STAGE = OUTS * LINE;
// Rows that a warp has in registers at a time, 4 columns of each CHUNK to a lane.
constexpr int HELD_ROWS = 4, CHUNK = 128, CHUNKS = MAX_IN / CHUNK;

// Converts the block's rows of x, of which `count` are there, and finds their factors. Columns between the row's end and that of its last step
// become zeros.
template <class T>
DEVICE void convert_rows(const HeadGemmArgs& a, const float* x, int count, uint8_t* xs, float* scales) {
  const int n_in = a.n_in, padded = ceil_div(n_in, STEP) * STEP, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
  for (int first = warp; first < count; first += HELD_ROWS * WARPS) {
    float4 held[HELD_ROWS][CHUNKS];
#pragma unroll
    for (int r = 0; r < HELD_ROWS; r++) {
      const int row = first + r * WARPS;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const int k = c * CHUNK + lane * 4;
        held[r][c] = {};
        if (row < count && k < n_in) held[r][c] = *reinterpret_cast<const float4*>(x + static_cast<size_t>(row) * a.x_stride + k);
      }
    }
#pragma unroll
    for (int r = 0; r < HELD_ROWS; r++) {
      const int row = first + r * WARPS;
      float factor = 1, inverse = 1;
      if constexpr (T::SCALED) {
        float max = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
          const float4 v = held[r][c];
          max = fmaxf(max, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
        const RowScale scale(warp_max(max));
        factor = scale.factor, inverse = scale.inverse;
      }
      if (row >= count) continue;
#pragma unroll
      for (int c = 0; c < CHUNKS; c++) {
        const int k = c * CHUNK + lane * 4;
        const float4 v = held[r][c];
        if (k >= padded) continue;
        uint8_t* to = vector_at(xs + k / STEP * X_STEP, row, k % STEP / 8) + k % 8 * 2;
        *reinterpret_cast<uint2*>(to) = {pair_of<T>(v.x * factor, v.y * factor), pair_of<T>(v.z * factor, v.w * factor)};
      }
      if (lane == 0) scales[row] = inverse;
    }
  }
}

// The weights of a step: `load` begins to fetch those of outputs `first_out` to `first_out + 127`, columns k to k + 63; `put` has them in
// the stage. Those past the last output are any others, whose sums nobody stores.
//
// A thread has 32 weights of an output: 16 v to 16 v + 15 of a piece, and those 32 further on, with the same v in a warp, so that its lanes
// write to different banks.
template <class P>
struct PackedWeights {
  typedef Half T;
  Taken taken;
  int piece;

  DEVICE static int v() { return threadIdx.x / OUTS; }

  DEVICE void load(const HeadGemmArgs& a, const uint8_t* w, int first_out, int k, uint8_t*) {
    const int out = min(first_out + static_cast<int>(threadIdx.x) % OUTS, static_cast<int>(a.n_out) - 1);
    piece = k / 64;
    taken = P::take_codes(w + out * a.row_bytes, piece, v(), a.n_in);
  }
  DEVICE void put(uint8_t* stage) const {
    const Codes codes = P::codes_of(taken, piece, v());
    put_half(stage, 2 * v(), codes.half[0]);
    put_half(stage, 2 * v() + 4, codes.half[1]);
  }
  DEVICE static void put_half(uint8_t* stage, int vector, const Codes::Half& h) {
#pragma unroll
    for (int j = 0; j < 2; j++) {
      float w[8];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        // A byte in the last bits of a float from 2^23 on counts ones.
        const float number = __uint_as_float(__byte_perm(word(h.q, 2 * j + i / 4), 0x4b000000u, 0x7440 + i % 4));
        const float code = number - (8388608.0f + (P::ZERO < 0 ? 0 : P::ZERO));
        w[i] = P::ZERO < 0 ? fmaf(code, h.scale, -h.min) : code * h.scale;
      }
      *reinterpret_cast<uint4*>(vector_at(stage, threadIdx.x % OUTS, vector + j)) = eight_of<Half>(w);
    }
  }
};

template <class Number>
struct PlainWeights {
  typedef Number T;

  DEVICE void load(const HeadGemmArgs& a, const uint8_t* w, int first_out, int k, uint8_t* stage) const {
    const int n_in = a.n_in, last_out = a.n_out - 1;
#pragma unroll
    for (int i = threadIdx.x; i < OUTS * 8; i += THREADS) {
      const int o = i / 8, at = k + i % 8 * 8;
      const bool there = at < n_in;
      const uint8_t* row = w + min(first_out + o, last_out) * a.row_bytes;
      ptx::cp_async_16(vector_at(stage, o, i % 8), row + (there ? at * 2 : 0), there ? 16 : 0);
    }
    ptx::cp_async_commit();
  }
  DEVICE void put(uint8_t*) const { ptx::cp_async_wait<0>(); }
};

// Stores a warp's sums: its rows of y, of which `count` are there, from output `out` on.
DEVICE void store_rows(const HeadGemmArgs& a, float* y, const float* scales, const float (&sums)[MI][NI][4], int count, int out, int lane) {
  const int n_out = a.n_out;
#pragma unroll
  for (int i = 0; i < MI; i++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = i * 16 + h * 8 + lane / 4;
      if (row >= count) continue;
      const float scale = scales[row];
#pragma unroll
      for (int j = 0; j < NI; j++) {
        const int first = out + j * 8 + lane % 4 * 2;
        float* to = y + static_cast<size_t>(row) * a.y_stride + first;
        const float2 v = {sums[i][j][2 * h] * scale, sums[i][j][2 * h + 1] * scale};
        if (first + 1 < n_out && reinterpret_cast<uintptr_t>(to) % 8 == 0) {
          *reinterpret_cast<float2*>(to) = v;
        } else {
          if (first < n_out) to[0] = v.x;
          if (first + 1 < n_out) to[1] = v.y;
        }
      }
    }
  }
}

template <class Weights>
DEVICE void head_gemm(const HeadGemmArgs& a) {
  typedef typename Weights::T T;
  DYNAMIC_SHARED(shared);
  __shared__ float scales[ROWS];
  ptx::launch_dependents();
  const int n_in = a.n_in, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp % 2 * WARP_ROWS, warp_out = warp / 2 * WARP_OUTS;
  const int first_row = blockIdx.y * ROWS, count = min(ROWS, static_cast<int>(a.m) - first_row);
  const int n_share = a.share, first_out = blockIdx.x * n_share, end_out = min(first_out + n_share, static_cast<int>(a.n_out));
  const float* x = a.x + static_cast<size_t>(first_row) * a.x_stride + static_cast<size_t>(blockIdx.z) * a.x_head;
  float* y = a.y + static_cast<size_t>(first_row + warp_row) * a.y_stride + static_cast<size_t>(blockIdx.z) * a.y_head;
  const uint8_t* w = a.w + blockIdx.z * a.head_bytes;
  uint8_t *xs = shared, *stage = shared + ceil_div(n_in, STEP) * X_STEP, *next_stage = stage + STAGE;

  // Before the kernel before has ended, since nobody writes weights.
  Weights weights;
  weights.load(a, w, first_out, 0, stage);
  ptx::griddepcontrol_wait();
  convert_rows<T>(a, x, count, xs, scales);
  weights.put(stage);
  __syncthreads();

#pragma unroll 1
  for (int out = first_out; out < end_out; out += OUTS) {
    float sums[MI][NI][4] = {};
#pragma unroll 1
    for (int k = 0; k < n_in; k += STEP) {
      const bool is_last = k + STEP >= n_in;
      const int next_out = is_last ? out + OUTS : out, next_k = is_last ? 0 : k + STEP;
      if (next_out < end_out) weights.load(a, w, next_out, next_k, next_stage);
      if (warp_row < count) accumulate<T>(sums, xs + k / STEP * X_STEP, stage, warp_row, warp_out, lane);
      if (next_out < end_out) weights.put(next_stage);
      // The next stage is there, and all warps have left this one.
      __syncthreads();
      uint8_t* left = stage;
      stage = next_stage, next_stage = left;
    }
    store_rows(a, y, scales + warp_row, sums, count - warp_row, out + warp_out, lane);
  }
}

#define HEAD_GEMM(NAME, Weights) \
  KERNEL_2(head_gemm_##NAME, HeadGemmArgs, THREADS) { head_gemm<Weights>(a); }
#define HEAD_GEMM_PACKED(Q) HEAD_GEMM(Packed_##Q, PackedWeights<Packed_##Q>)
FOR_EACH_PACKED(HEAD_GEMM_PACKED)
HEAD_GEMM(F16, PlainWeights<Half>)
HEAD_GEMM(BF16, PlainWeights<Bfloat>)
