// Grouped GEMM for GPUs without wgmma: rows of activations in 16 bits, sorted by the experts that they use, with the weights of these,
// packed or plain.
//
// A block of 8 warps owns 128 outputs of up to 64 rows of one expert, a warp 32 rows x 32 outputs. A step is 64 columns: activations lie in
// memory as the step wants them (tiles.cuh, in order), weights are decoded on their way to shared memory (24 KiB). Blocks (tile of outputs,
// tile of rows); those without rows end at once. Of a gate, half of a warp's outputs are gates and half their ups.
//
// Moves: the weights of an expert once for each 64 of its rows, and the activations, 2 bytes each, once for each 128 outputs.
#include "../common/activation.cuh"
#include "mma_step.cuh"
#include "packed.cuh"
#include "grouped_mma_args.cuh"

constexpr int THREADS = 256, ROWS = 64, OUTS = 128;

// As moe_group writes it.
struct RowTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
};

// Output `o` of a block among those of its matrix; with a gate, which of the two matrices it is of.
struct Outs {
  int first, n_out;
  bool gate;
  DEVICE int out_of(int o) const { return first + (gate ? o / WARP_OUTS * (WARP_OUTS / 2) + o % (WARP_OUTS / 2) : o); }
  DEVICE int matrix_of(int o) const { return gate && o % WARP_OUTS >= WARP_OUTS / 2; }
};

// Weights k to k + 63 of the block's outputs, 16 at a time to a thread: 8 j to 8 j + 7, and those 32 further on. Zeros where rows or outputs
// end.
template <class P, class T>
DEVICE void load_weights(const GroupedMmaArgs& a, const Outs& outs, uint32_t expert, int k, uint8_t* lines) {
#pragma unroll 2
  for (int i = threadIdx.x; i < OUTS * 4; i += THREADS) {
    const int o = i / 4, j = i % 4, out = outs.out_of(o), n = a.n_in;
    Sixteen v = {};
    if (out < outs.n_out) {
      const uint8_t* row = a.w[outs.matrix_of(o)] + expert * a.expert_bytes + out * a.row_bytes;
      if constexpr (P::PACKED) {
        v = P::unpack16(row, k / 64, j, n);
      } else {
        if (k + 8 * j < n) P::load8_aligned(v.low, row + (k + 8 * j) * 2);
        if (k + 8 * j + 32 < n) P::load8_aligned(v.high, row + (k + 8 * j + 32) * 2);
      }
    }
    *reinterpret_cast<uint4*>(vector_at(lines, o, j)) = eight_of<T>(v.low);
    *reinterpret_cast<uint4*>(vector_at(lines, o, j + 4)) = eight_of<T>(v.high);
  }
}

struct PlainF16 : F16 {
  static constexpr bool PACKED = false;
};
struct PlainBF16 : BF16 {
  static constexpr bool PACKED = false;
};

// Stores the sums of a warp's rows, of which `first_row` is the first in the tile.
DEVICE void store(const GroupedMmaArgs& a, const Outs& outs, const RowTile& rows, const float (&sums)[MI][NI][4], int first_row, int warp_out,
                  int lane) {
  const float* bias = a.bias ? a.bias + static_cast<size_t>(rows.expert) * 2 * outs.n_out : nullptr;
#pragma unroll
  for (int i = 0; i < MI; i++) {
#pragma unroll
    for (int c = 0; c < 4; c++) {
      const int row = first_row + i * 16 + c / 2 * 8 + lane / 4;
      if (row >= static_cast<int>(rows.count)) continue;
      const float scale = a.x_scales[blockIdx.y * ROWS + row];
      float* y = a.y + static_cast<size_t>(rows.first + row) * outs.n_out;
#pragma unroll
      for (int j = 0; j < NI; j++) {
        const int out = outs.out_of(warp_out + j * 8 + lane % 4 * 2 + c % 2);
        if (out >= outs.n_out || (outs.gate && j >= NI / 2)) continue;
        float v = sums[i][j][c] * scale;
        if (outs.gate) {
          float up = sums[i][(j + NI / 2) % NI][c] * scale;
          if (bias) v += bias[out], up += bias[outs.n_out + out];
          v = gate_one(a.activation, v, up);
        }
        y[out] = v;
      }
    }
  }
}

template <class T, class Load>
DEVICE void grouped_mma(const GroupedMmaArgs& a, Load load) {
  __shared__ __align__(128) uint8_t xs[ROWS * LINE], ws[OUTS * LINE];
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const RowTile rows = a.tiles[blockIdx.y];
  if (rows.count == 0) return;
  const bool gate = a.gate;
  const Outs outs = {static_cast<int>(blockIdx.x) * (gate ? OUTS / 2 : OUTS), static_cast<int>(a.n_out), gate};
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warp_row = warp % 2 * WARP_ROWS, warp_out = warp / 2 * WARP_OUTS;
  const uint8_t* x = a.x + static_cast<size_t>(blockIdx.y) * ROWS * a.padded * 2;
  float sums[MI][NI][4] = {};
#pragma unroll 1
  for (int k = 0; k < static_cast<int>(a.n_in); k += STEP, x += ROWS * LINE) {
    __syncthreads();
    for (int i = threadIdx.x * 16; i < ROWS * LINE; i += THREADS * 16) ptx::cp_async_16(xs + i, x + i, 16);
    ptx::cp_async_commit();
    load(a, outs, rows.expert, k, ws);
    ptx::cp_async_wait<0>();
    __syncthreads();
    if (warp_row < static_cast<int>(rows.count)) accumulate<T>(sums, xs, ws, warp_row, warp_out, lane);
  }
  store(a, outs, rows, sums, warp_row, warp_out, lane);
}

#define GROUPED_MMA(NAME, P, T)                                                                                       \
  KERNEL_2(grouped_mma_##NAME, GroupedMmaArgs, THREADS) {                                                             \
    grouped_mma<T>(a, [](const GroupedMmaArgs& a, const Outs& outs, uint32_t expert, int k, uint8_t* lines) {         \
      load_weights<P, T>(a, outs, expert, k, lines);                                                                  \
    });                                                                                                               \
  }
#define GROUPED_MMA_PACKED(Q) GROUPED_MMA(Packed_##Q, Packed_##Q, Half)
FOR_EACH_PACKED(GROUPED_MMA_PACKED)
GROUPED_MMA(F16, PlainF16, Half)
GROUPED_MMA(BF16, PlainBF16, Bfloat)
