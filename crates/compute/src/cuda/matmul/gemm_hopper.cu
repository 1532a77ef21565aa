// The matmuls of gemm.cu for Hopper's tensor cores (wgmma), which read both operands from shared memory and multiply in the background.
//
// A block goes through tiles of 128 x OUTS outputs, of which each of two groups of 4 warps owns 64 rows. A thread of a third group keeps
// a ring of stages in shared memory filled (200 KiB at most), also while the others store a tile; a stage is 64 columns of 16 bits, or 128
// of 8, of the rows and of the weights, which lie in memory as the tensor cores want them (operands.cu), so that it takes three copies.
// Tiles that run together share 2048 rows at most, which stay in L2.
//
// Outputs can be stored as tiles of 16 bits, for the kernel that reads them, and keys and values in the cache.
//
// Between the end of one step's wgmma and the start of those after the next there are half a step's 512 cycles, so that path is short:
// addresses are made once. An epilogue is straight-line code over a thread's sums, which an SM fetches anew when other kernels have run
// since: it has as few instructions as it can.
#include "gemm.cuh"
#include "../common/pipeline.cuh"
#include "../common/reciprocal.cuh"
#include "gemm_hopper_args.cuh"

constexpr int THREADS = 384;
constexpr int ROWS = 128;
// Bytes of a row in a stage.
constexpr int LINE = 128;
// Pairs of stages whose factors are in shared memory.
constexpr int SLOTS = 4;
// Tiles of rows that are gone through before the outputs move on.
constexpr int GROUP_ROWS = 2048 / ROWS;

// Four neighbouring outputs of a row from the pairs that two lanes hold for 8 outputs each, `a` and `b`: the even lane's are of `a`.
DEVICE float4 four_of_pairs(bool is_odd, const float* a, const float* b) {
  const float x = __shfl_xor_sync(ALL_LANES, is_odd ? a[0] : b[0], 1), y = __shfl_xor_sync(ALL_LANES, is_odd ? a[1] : b[1], 1);
  return is_odd ? float4{x, y, b[0], b[1]} : float4{a[0], a[1], x, y};
}

// Stores the outputs of a group's rows, of which `first_row` is the warp's first. `four(j, h)` gives four outputs from 8 * j on, or
// from 8 * j + 8 on in odd lanes, of row 8 * h + lane / 4.
template <int OUTS, class Four>
DEVICE void store_outputs(const GemmArgs& a, int first_row, int first_out, int lane, Four four) {
  constexpr int BATCH = 8;
  const int m = a.m, n_out = a.n_out;
  const bool is_whole = first_out + OUTS <= n_out && a.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(a.y) % 16 == 0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = first_row + h * 8 + lane / 4, out = first_out + lane % 2 * 8 + lane % 4 / 2 * 4;
    float* y = a.y + static_cast<size_t>(row) * a.y_stride + out;
#pragma unroll
    for (int i = 0; i < OUTS / 8; i += 2 * BATCH) {
      // All reads of what is added come before the first write.
      float4 before[BATCH];
      if (a.epilogue == ADD && is_whole && row < m) {
#pragma unroll
        for (int b = 0; b < BATCH; b++) {
          if (i + 2 * b < OUTS / 8) before[b] = *reinterpret_cast<const float4*>(y + (i + 2 * b) * 8);
        }
      }
#pragma unroll
      for (int b = 0; b < BATCH; b++) {
        const int j = i + 2 * b;
        if (j >= OUTS / 8) continue;
        float4 v = four(j, h);
        if (row >= m) continue;
        if (is_whole) {
          if (a.epilogue == ADD) v.x += before[b].x, v.y += before[b].y, v.z += before[b].z, v.w += before[b].w;
          *reinterpret_cast<float4*>(y + j * 8) = v;
        } else {
          store_pair(a, row, out + j * 8, v.x, v.y), store_pair(a, row, out + j * 8 + 2, v.z, v.w);
        }
      }
    }
  }
}

// `activate` is for what a row's factor makes of a gate.
template <int HALF, class Activate>
DEVICE void store_gated(const GemmArgs& a, int row, int out, int lane, const float (&scale)[2], const float (&sums)[HALF / 4][4],
                        Activate activate) {
  store_outputs<HALF>(a, row, out, lane, [&](int j, int h) {
    float v[2][2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
#pragma unroll
      for (int c = 0; c < 2; c++) v[p][c] = activate(sums[j + p][2 * h + c] * scale[h]) * (sums[HALF / 8 + j + p][2 * h + c] * scale[h]);
    }
    return four_of_pairs(lane % 2, v[0], v[1]);
  });
}

// Shared memory for 128 bytes of each row, on their way out: the same for all epilogues of a kernel.
DEVICE uint32_t lines_of_rows() {
  __shared__ __align__(1024) uint8_t lines[ROWS * LINE];
  return ptx::shared_address(lines);
}

// Gives the 16 rows of a warp as they shall lie in memory, 64 columns at a time, by way of shared memory, so that eight lanes have a line.
// `pair(j, h)` is the word of two outputs from 8 * j + lane % 4 * 2 on, of row 8 * h + lane / 4; `put(row, column, place, eight)` gets the
// bits of eight from a column on, and their place in the swizzled line of 64 columns. A lane's column is the same for all rows.
template <int COLUMNS, class Pair, class Put>
DEVICE void store_lines(Pair pair, Put put) {
  // Not before the tile is multiplied, whose registers this would take.
  const uint32_t tid = ptx::thread_again(), lane = tid % 32;
  const uint32_t rows = lines_of_rows() + tid / 32 * 16 * LINE;
  // The lane's line of the first two matrices; those further on have other bits.
  const uint32_t line = rows + lane % 16 * LINE + (lane / 16 ^ lane % 8) * 16;
#pragma unroll
  for (int first = 0; first < COLUMNS; first += 64) {
    __syncwarp();
#pragma unroll
    for (int j = first / 8; j < first / 8 + 8; j += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int p = 0; p < 4; p++) pairs[p] = pair(j + p / 2, p % 2);
      ptx::stmatrix_x4(line ^ j % 8 * 16, pairs);
    }
    __syncwarp();
    // Not unrolled, for short code.
#pragma unroll 1
    for (int i = 0; i < 16; i += 4) {
      const int row = i + lane / 8, place = (lane ^ row) % 8;
      put(row, first + lane % 8 * 8, place, ptx::load_quad(rows + row * LINE + place * 16));
    }
  }
}

// What tiles of N, Half or Bfloat, are multiplied by.
template <class N>
constexpr float TILE_FACTOR = N::SCALED ? HALF_TILE_FACTOR : 1.0f;

// Stores COLUMNS outputs as tiles of N; `pair(j, h)` gives them as floats, times TILE_FACTOR.
template <class N, int COLUMNS, class Pair>
DEVICE void store_tiles(const GemmArgs& a, int first_row, int out, Pair pair) {
  store_lines<COLUMNS>(
      [&](int j, int h) {
        const float2 v = pair(j, h);
        return pair_of<N>(v.x, v.y);
      },
      [&](int row, int column, int place, float4 eight) {
        const int at = first_row + row;
        if (at >= static_cast<int>(a.x_rows) || out + column >= static_cast<int>(a.n_out)) return;
        uint8_t* y = reinterpret_cast<uint8_t*>(a.y) + (static_cast<size_t>((out + column) / 64) * a.x_rows + at) * LINE;
        *reinterpret_cast<float4*>(y + place * 16) = eight;
      });
}

// A tile's biases in shared memory, two of them for each group of warps, since some of its warps may be one tile ahead.
template <int OUTS>
struct TileBias {
  static constexpr int HELD = OUTS / 128 + (OUTS % 128 ? 1 : 0);
  float* shared;
  float held[HELD];
  DEVICE TileBias(float* biases, int tile) : shared(biases + tile % 2 * OUTS) {}
  // Asks for them: the tile is multiplied meanwhile.
  DEVICE void load(const GemmArgs& a, int out) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int at = i * 128 + threadIdx.x % 128;
      held[i] = a.bias && at < OUTS && out + at < static_cast<int>(a.n_out) ? a.bias[out + at] : 0.0f;
    }
  }
  DEVICE void share(int group) {
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      const int at = i * 128 + ptx::thread_again() % 128;
      if (at < OUTS) shared[at] = held[i];
    }
    ptx::sync_threads<128>(1 + group);
  }
  // Of outputs from 8 * j + lane % 4 * 2 on.
  DEVICE float2 pair(int j) const { return *reinterpret_cast<const float2*>(shared + j * 8 + ptx::thread_again() % 4 * 2); }
};

// Stores queries, keys and values as N, the latter two where the cache has them.
template <class N, int OUTS>
DEVICE void store_qkv(const GemmArgs& a, const KvSlots& slots, const TileBias<OUTS>& bias, int first_row, int out,
                      const float (&scale)[2], const float (&sums)[OUTS / 8][4]) {
  const uint32_t block_size = slots.block_size, dim = slots.head_dim, lane = ptx::thread_again() % 32;
  // The row of the cache, for the first head, of the warp's row `lane`, modulo 16.
  uint32_t slot = 0;
  if (const uint32_t row = first_row + lane % 16; row < a.m) {
    const uint32_t position = slots.positions[row], block = slots.block_tables[slots.table_starts[row] + position / block_size];
    slot = block * slots.n_kv_heads * block_size + position % block_size;
  }
  store_lines<OUTS>(
      [&](int j, int h) {
        const float2 b = bias.pair(j);
        const float low = fmaf(sums[j][2 * h], scale[h], b.x), high = fmaf(sums[j][2 * h + 1], scale[h], b.y);
        return pair_of<N>(low, high);
      },
      [&](int row, int column, int, float4 eight) {
        const uint32_t at = first_row + row, of_all = slots.first_out + out + column, of_row = __shfl_sync(ALL_LANES, slot, row);
        if (at >= a.m || out + column >= static_cast<int>(a.n_out)) return;
        uint8_t* to = slots.q + (static_cast<size_t>(at) * slots.first_key + of_all) * 2;
        if (of_all >= slots.first_key) {
          const bool is_value = of_all >= slots.first_value;
          const uint32_t of_heads = of_all - (is_value ? slots.first_value : slots.first_key), head = of_heads / dim;
          to = (is_value ? slots.v : slots.k) + (static_cast<size_t>(of_row + head * block_size) * dim + of_heads % dim) * 2;
        }
        *reinterpret_cast<float4*>(to) = eight;
      });
}

// The outputs of a gate as tiles of bfloats.
template <int HALF, class Activate>
DEVICE void store_gated_tiles(const GemmArgs& a, int row, int out, const float (&scale)[2], const float (&sums)[HALF / 4][4],
                              Activate activate) {
  store_tiles<Bfloat, HALF>(a, row, out, [&](int j, int h) {
    const float *g = sums[j] + 2 * h, *u = sums[HALF / 8 + j] + 2 * h;
    return float2{activate(g[0] * scale[h]) * (u[0] * scale[h]), activate(g[1] * scale[h]) * (u[1] * scale[h])};
  });
}

// GELU by the error function for results of 16 bits, at most 2.6e-5 off, divided by `divisor`: the logarithm to base 2 of the odds against
// the normal distribution is x times a polynomial of x * x, fitted up to 6 and constant from 8 on, where no bit of the result depends on it.
DEVICE float gelu_erf_of_halves(float x, float divisor) {
  const float u = fminf(x * x, 64.0f);
  const float z = x * fmaf(fmaf(1.01426311e-3f, u, -1.06775724e-1f), u, -2.30112134f);
  return x * ptx::reciprocal_fast(fmaf(ptx::exp2_fast(z), divisor, divisor));
}

// Outputs with their bias, after a function, as tiles of N.
template <class N, int OUTS>
DEVICE void store_activated_tiles(const GemmArgs& a, const TileBias<OUTS>& bias, int row, int out, const float (&scale)[2],
                              const float (&sums)[OUTS / 8][4]) {
  constexpr float FACTOR = TILE_FACTOR<N>;
  const auto store = [&](float factor, auto activate) {
    const float of_sums[2] = {scale[0] * factor, scale[1] * factor};
    store_tiles<N, OUTS>(a, row, out, [&](int j, int h) {
      const float2 b = bias.pair(j);
      const float low = fmaf(sums[j][2 * h], of_sums[h], b.x * factor), high = fmaf(sums[j][2 * h + 1], of_sums[h], b.y * factor);
      return float2{activate(low), activate(high)};
    });
  };
  if (a.epilogue != ACTIVATE) {
    store(FACTOR, [](float x) { return x; });
  } else if (a.activation == GELU_ERF) {
    store(1.0f, [](float x) { return gelu_erf_of_halves(x, 1 / FACTOR); });
  } else if (a.activation <= GELU_TANH) {
    const GateSigmoid sigmoid(a.activation);
    store(1.0f, [&](float x) { return sigmoid(x) * FACTOR; });
  } else {
    // What is not a number stays so, as for all functions.
    store(FACTOR, [](float x) { return x < 0.0f ? 0.0f : x; });
  }
}

// The epilogue of a warp's sums of 16 rows from `row` on.
template <class T, int OUTS>
DEVICE void store_tile(const GemmHopperArgs& args, const TileBias<OUTS>& bias, int row, int out, int lane,
                       const float (&sums)[OUTS / 8][4]) {
  const GemmArgs& a = args.of_all;
  const uint32_t to_tiles = args.to_tiles;
  float scale[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int at = row + h * 8 + lane / 4;
    scale[h] = T::COLUMNS == 64 && a.x_scales && at < static_cast<int>(a.m) ? a.x_scales[at] : args.x_factor;
  }
  if (args.slots.number == HALF_TILES) {
    store_qkv<Half, OUTS>(a, args.slots, bias, row, out, scale, sums);
  } else if (args.slots.number == BFLOAT_TILES) {
    store_qkv<Bfloat, OUTS>(a, args.slots, bias, row, out, scale, sums);
  } else if (to_tiles == HALF_TILES && a.epilogue != GATE) {
    store_activated_tiles<Half, OUTS>(a, bias, row, out, scale, sums);
  } else if (to_tiles == BFLOAT_TILES && a.epilogue != GATE) {
    store_activated_tiles<Bfloat, OUTS>(a, bias, row, out, scale, sums);
  } else if (a.epilogue != GATE) {
    store_outputs<OUTS>(a, row, out, lane, [&](int j, int h) {
      float4 v = four_of_pairs(lane % 2, sums[j] + 2 * h, sums[j + 1] + 2 * h);
      v.x *= scale[h], v.y *= scale[h], v.z *= scale[h], v.w *= scale[h];
      if (a.bias) {
        const int at = out + (j + lane % 2) * 8 + lane % 4 / 2 * 4, n_out = a.n_out;
        if (at < n_out) v.x += a.bias[at];
        if (at + 1 < n_out) v.y += a.bias[at + 1];
        if (at + 2 < n_out) v.z += a.bias[at + 2];
        if (at + 3 < n_out) v.w += a.bias[at + 3];
      }
      return v;
    });
  } else if (a.activation <= GELU_TANH) {
    const GateSigmoid sigmoid(a.activation);
    const auto activate = [&](float x) { return sigmoid(x); };
    if constexpr (OUTS % 128 == 0) {
      if (to_tiles) return store_gated_tiles<OUTS / 2>(a, row, out, scale, sums, activate);
    }
    store_gated<OUTS / 2>(a, row, out, lane, scale, sums, activate);
  } else {
    store_gated<OUTS / 2>(a, row, out, lane, scale, sums, [&](float x) { return activate_one(a.activation, x); });
  }
}

// The sizes of a kernel's stages.
template <class T, int OUTS>
struct Shape {
  static constexpr int HALF = OUTS / 2, ROWS_BYTES = ROWS * LINE, HALF_BYTES = HALF * LINE;
  static constexpr int STAGE_BYTES = ROWS_BYTES + 2 * HALF_BYTES, STAGES = (200 << 10) / STAGE_BYTES;
  // Factors of two stages' rows and outputs, which come with the first one. There is room for more of them than stages could be under way,
  // so that a slot is filled anew only when all warps have begun the wgmma after those that wanted it.
  static constexpr int FACTORS = T::COLUMNS == 128 ? ROWS + OUTS : 0;
};

// The slots of factors in shared memory, one after the other.
template <int FACTORS>
struct FactorSlots {
  uint32_t first, pairs = 0;
  DEVICE explicit FactorSlots(uint32_t first) : first(first) {}
  DEVICE uint32_t next() { return first + pairs++ % SLOTS * FACTORS * 4; }
};

// The order in which tiles are gone through.
struct TileOrder {
  int tile_outs, row_tiles, out_tiles, n_tiles;
  DEVICE TileOrder(const GemmArgs& a, int tile_outs)
      : tile_outs(tile_outs), row_tiles(ceil_div(a.m, ROWS)), out_tiles(ceil_div(a.n_out, tile_outs)), n_tiles(row_tiles * out_tiles) {}
  DEVICE void locate(int tile, int& row, int& out) const {
    const int group_tiles = GROUP_ROWS * out_tiles, rows_at = tile / group_tiles * GROUP_ROWS;
    const int within = tile % group_tiles, rows = min(row_tiles - rows_at, GROUP_ROWS);
    row = (rows_at + within % rows) * ROWS;
    out = within / rows * tile_outs;
  }
};

// Where the operands of a tile's next stage are in memory.
template <class T, int OUTS>
struct Operands {
  typedef Shape<T, OUTS> S;
  const uint8_t *x, *w0, *w1;
  const ptx::TensorMap* maps[2];
  int box_rows[2];
  const float *x_factors, *factors0, *factors1;

  // The first half of the outputs are gates and the second their ups, so that a thread gets both of a pair.
  DEVICE Operands(const GemmHopperArgs& args, bool gate, int row, int out) {
    const GemmArgs& a = args.of_all;
    const int n_out = a.n_out, n_matrices = args.boxes.n_matrices;
    x = a.x + static_cast<size_t>(row) * LINE;
    w0 = a.w + static_cast<size_t>(out) * LINE;
    w1 = gate ? a.up + static_cast<size_t>(out) * LINE : w0 + S::HALF_BYTES;
    box_rows[0] = out, box_rows[1] = gate ? n_out + out : out + S::HALF;
    maps[0] = maps[1] = args.maps;
    // Boxes do not reach from one matrix into the next.
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int i = 0;
      while (i + 1 < n_matrices && box_rows[h] >= static_cast<int>(args.boxes.first_rows[i + 1])) i++;
      maps[h] += i, box_rows[h] -= args.boxes.first_rows[i];
    }
    x_factors = a.x_scales + row, factors0 = a.w_scales + out, factors1 = gate ? a.up_scales + out : factors0 + S::HALF;
  }

  DEVICE void load_factors(const GemmArgs& a, uint32_t to, Barrier full) {
    ptx::cp_async_bulk(to, x_factors, 4 * ROWS, full.at);
    ptx::cp_async_bulk(to + 4 * ROWS, factors0, 4 * S::HALF, full.at);
    ptx::cp_async_bulk(to + 4 * (ROWS + S::HALF), factors1, 4 * S::HALF, full.at);
    x_factors += a.x_rows, factors0 += a.w_rows, factors1 += a.w_rows;
  }

  DEVICE void load_stage(const GemmHopperArgs& args, int step, uint32_t stage, Barrier full) {
    const GemmArgs& a = args.of_all;
    ptx::cp_async_bulk(stage, x, S::ROWS_BYTES, full.at);
    x += static_cast<size_t>(a.x_rows) * LINE;
    if (T::COLUMNS == 64 && args.boxes.n_matrices > 0) {
      // Outside of a matrix are zeros.
      ptx::tma_load(stage + S::ROWS_BYTES, maps[0], step * LINE, box_rows[0], full.at);
      ptx::tma_load(stage + S::ROWS_BYTES + S::HALF_BYTES, maps[1], step * LINE, box_rows[1], full.at);
      return;
    }
    ptx::cp_async_bulk(stage + S::ROWS_BYTES, w0, S::HALF_BYTES, full.at);
    ptx::cp_async_bulk(stage + S::ROWS_BYTES + S::HALF_BYTES, w1, S::HALF_BYTES, full.at);
    w0 += static_cast<size_t>(a.w_rows) * LINE, w1 += static_cast<size_t>(a.w_rows) * LINE;
  }
};

// The producer, one thread: brings the stages of all tiles of the block.
template <class T, int OUTS>
DEVICE void produce(const GemmHopperArgs& args, const TileOrder& order, uint32_t stages, Ring ring,
                    FactorSlots<Shape<T, OUTS>::FACTORS> slots) {
  typedef Shape<T, OUTS> S;
  const GemmArgs& a = args.of_all;
  const int n_steps = a.k / T::COLUMNS;
  for (int tile = blockIdx.x; tile < order.n_tiles; tile += gridDim.x) {
    int row, out;
    order.locate(tile, row, out);
    Operands<T, OUTS> operands(args, a.epilogue == GATE, row, out);
    for (int step = 0; step < n_steps; step++, ring.next()) {
      ring.wait_empty();
      const bool has_factors = S::FACTORS > 0 && step % 2 == 0;
      ring.expect(S::STAGE_BYTES + (has_factors ? 4 * S::FACTORS : 0));
      if (has_factors) operands.load_factors(a, slots.next(), ring.full());
      operands.load_stage(args, step, stages + ring.stage * S::STAGE_BYTES, ring.full());
    }
  }
}

// What a group of 4 warps multiplies in a stage: its 64 rows, and the weights.
template <class T, int OUTS>
struct StageTiles {
  typedef Shape<T, OUTS> S;
  uint64_t first_x, first_w;
  DEVICE StageTiles(uint32_t stages, int group)
      : first_x(ptx::smem_desc(stages + group * 64 * LINE)), first_w(ptx::smem_desc(stages + S::ROWS_BYTES)) {}
  // d += x * w or, without `more`, d = x * w, of quarter k of the stage's columns, with the outputs from `first_out` on.
  template <class D>
  DEVICE void multiply(D& d, int stage, int first_out, int k, int more) const {
    const uint64_t x = first_x + stage * (S::STAGE_BYTES / 16), w = first_w + (stage * S::STAGE_BYTES + first_out * LINE) / 16;
    T::multiply_group(d, x + 2 * k, w + 2 * k, more);
  }
};

// The consumers' sums over the columns of a tile, of 16 bits. `tells`: whether this thread says for its group that a stage is free.
template <class T, int OUTS>
DEVICE void accumulate(float (&sums)[OUTS / 8][4], const StageTiles<T, OUTS>& tiles, int n_steps, bool tells, Ring& ring) {
  Barrier before = ring.empty();
  for (int step = 0; step < n_steps; step++, ring.next()) {
    ring.wait_full();
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) tiles.multiply(sums, ring.stage, 0, k, k > 0 ? 1 : step);
    ptx::wgmma_commit();
    ptx::wgmma_wait<1>();
    if (step > 0 && tells) before.arrive();
    before = ring.empty();
  }
  ptx::wgmma_wait<0>();
  if (tells) before.arrive();
}

// sums += integers * factors of rows and outputs. `at`: the factors of the first of these outputs.
template <int N>
DEVICE void add_scaled(float (*sums)[4], const int (&integers)[N][4], uint32_t at, int lane, const float (&x_factors)[2]) {
#pragma unroll
  for (int j = 0; j < N; j++) {
    const float2 w_factors = ptx::load_floats(at + (j * 8 + lane % 4 * 2) * 4);
#pragma unroll
    for (int c = 0; c < 4; c++) {
      float& sum = sums[j][c];
      sum = fmaf(__int2float_rn(integers[j][c]) * (c % 2 ? w_factors.y : w_factors.x), x_factors[c / 2], sum);
    }
  }
}

// The same of 8 bits: integers over the columns of two stages, where they are exact, and then times both factors parts of sums of floats.
template <class T, int OUTS>
DEVICE void accumulate_scaled(float (&sums)[OUTS / 8][4], const StageTiles<T, OUTS>& tiles, int n_steps, bool tells, Ring& ring,
                              FactorSlots<Shape<T, OUTS>::FACTORS>& slots, int warp, int lane) {
  constexpr int PIECE = OUTS > 192 ? OUTS / 2 : OUTS;
#pragma unroll
  for (int j = 0; j < OUTS / 8; j++) sums[j][0] = sums[j][1] = sums[j][2] = sums[j][3] = 0;
  for (int step = 0; step < n_steps; step += 2) {
    const Ring first = ring;
    ring.next();
    const Ring second = ring;
    ring.next();
    first.wait_full();
    const uint32_t at = slots.next(), x_at = at + (warp * 16 + lane / 4) * 4;
    const float x_factors[2] = {ptx::load_float(x_at), ptx::load_float(x_at + 32)};
#pragma unroll
    for (int out = 0; out < OUTS; out += PIECE) {
      int integers[PIECE / 8][4];
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 8; k++) {
        if (k == 4 && out == 0) second.wait_full();
        tiles.multiply(integers, k < 4 ? first.stage : second.stage, out, k % 4, k > 0);
      }
      ptx::wgmma_commit();
      ptx::wgmma_wait<0>();
      if (tells && out + PIECE == OUTS) first.empty().arrive(), second.empty().arrive();
      add_scaled(sums + out / 8, integers, at + (ROWS + out) * 4, lane, x_factors);
    }
  }
}

// The consumers, two groups of 4 warps: multiply and store all tiles of the block.
template <class T, int OUTS>
DEVICE void consume(const GemmHopperArgs& args, const TileOrder& order, uint32_t stages, int warp, Ring ring,
                    FactorSlots<Shape<T, OUTS>::FACTORS> slots) {
  const GemmArgs& a = args.of_all;
  const int tid = threadIdx.x, lane = tid % 32, n_steps = a.k / T::COLUMNS;
  const bool tells = tid % 128 == 0;
  const StageTiles<T, OUTS> tiles(stages, warp / 4);
  __shared__ __align__(8) float biases[2][2 * OUTS];
  int n_done = 0;
  for (int tile = blockIdx.x; tile < order.n_tiles; tile += gridDim.x) {
    int row, out;
    order.locate(tile, row, out);
    TileBias<OUTS> bias(biases[warp / 4], n_done++);
    bias.load(a, out);
    float sums[OUTS / 8][4];
    if constexpr (Shape<T, OUTS>::FACTORS > 0) {
      accumulate_scaled<T, OUTS>(sums, tiles, n_steps, tells, ring, slots, warp, lane);
    } else {
      accumulate<T, OUTS>(sums, tiles, n_steps, tells, ring);
    }
    bias.share(warp / 4);
    store_tile<T, OUTS>(args, bias, row + warp * 16, out, lane, sums);
  }
}

template <class T, int OUTS>
DEVICE void gemm(const GemmHopperArgs& args) {
#if __CUDA_ARCH__ == 900
  typedef Shape<T, OUTS> S;
  DYNAMIC_SHARED(shared);
  __shared__ uint64_t barriers[2 * S::STAGES];
  __shared__ __align__(16) float factors[S::FACTORS ? SLOTS * S::FACTORS : 1];
  const uint32_t stages = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
  const FactorSlots<S::FACTORS> slots(ptx::fixed_address(factors));
  const uint32_t full_at = ptx::fixed_address(barriers);
  const Ring ring(full_at, full_at + 8 * S::STAGES, S::STAGES);
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  if (warp == 0) {
    if (lane < S::STAGES) ptx::mbarrier_init(ring.full_at + 8 * lane, 1), ptx::mbarrier_init(ring.empty_at + 8 * lane, 2);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();

  const TileOrder order(args.of_all, args.of_all.epilogue == GATE ? S::HALF : OUTS);
  if (warp / 4 == 2) {
    ptx::setmaxnreg_dec<24>();
    if (tid == 256) produce<T, OUTS>(args, order, stages, ring, slots);
    return;
  }
  ptx::setmaxnreg_inc<240>();
  consume<T, OUTS>(args, order, stages, warp, ring, slots);
#endif
}

struct HopperHalf {
  static constexpr int COLUMNS = 64;
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_f16(d, a, b, add); }
};

struct HopperBfloat {
  static constexpr int COLUMNS = 64;
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_bf16(d, a, b, add); }
};

struct HopperInt8 {
  static constexpr int COLUMNS = 128;
  template <int N>
  DEVICE static void multiply_group(int (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_s8(d, a, b, add); }
};

#define GEMM(T, OUTS) \
  KERNEL_1(gemm_hopper_##T##_128x##OUTS, GemmHopperArgs, THREADS) { gemm<Hopper##T, OUTS>(a); }
GEMM(Half, 256) GEMM(Half, 192) GEMM(Half, 128) GEMM(Bfloat, 256) GEMM(Bfloat, 192) GEMM(Bfloat, 128)
GEMM(Int8, 256) GEMM(Int8, 192) GEMM(Int8, 128)
