// The attention of prefill_attention.cu for Hopper's tensor cores.
//
// A block owns up to 128 rows, each of two groups of 4 warps 64. A third group brings the positions that the block's tokens see to shared
// memory, 128 at a time: keys and values have a ring of two stages each (128 KiB at most). A group has the scores of one stage made
// while the weights of the one before are multiplied with its values, and makes weights of scores while the tensor cores work for it
// or for the other group.
#ifndef REALIZAR_EMULATION
#include "prefill_attention.cuh"
#include "ptx_hopper.cuh"

constexpr int THREADS = 384;
constexpr int KEYS = 128;

// As `matrix_at` wants them, 64 columns of all keys after each other.
DEVICE int place(int key, int chunk) { return (chunk / 8 * KEYS + key) * 64 + ((chunk ^ key) & 7) * 8; }

struct HopperHalf : Half {
  template <bool B_ROWS, int N>
  DEVICE static void multiply(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
    ptx::multiply_registers_f16<B_ROWS>(d, a, b, add);
  }
};

struct HopperBfloat : Bfloat {
  template <bool B_ROWS, int N>
  DEVICE static void multiply(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, uint32_t add) {
    ptx::multiply_registers_bf16<B_ROWS>(d, a, b, add);
  }
};

template <class T, class Cache, int DIM>
DEVICE void prefill_attention(const PrefillAttentionArgs& a) {
#if __CUDA_ARCH__ == 900
  constexpr int CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / 128, TILE = KEYS * DIM;
  constexpr float LOG2_E = 1.4426950408889634f;
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  // Filled and emptied, of the two stages of keys and then of values.
  __shared__ uint64_t barriers[2][2][2];
  const uint32_t tiles = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
  const uint32_t filled = ptx::fixed_address(barriers), emptied = filled + 32;
  const int tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), group_of_warps = warp / 4;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads, block_size = a.block_size;
  const int group = n_heads / n_kv_heads, head_tiles = ceil_div(group, a.tile_heads);
  const int kv_head = blockIdx.y / head_tiles, first_head = blockIdx.y % head_tiles * a.tile_heads;
  const TokenTile t(a);
  const int window = a.window, n_steps = ceil_div(t.end - t.start, KEYS);
  // A group that has no rows leaves.
  const int n_groups = t.n_tokens * static_cast<int>(a.tile_heads) > 64 ? 2 : 1;
  if (warp == 0) {
    if (lane < 4) ptx::make_barrier(filled + 8 * lane, 128), ptx::make_barrier(emptied + 8 * lane, n_groups);
    ptx::barriers_are_ready();
  }
  __syncthreads();

  if (group_of_warps == 2) {
    ptx::fewer_registers<40>();
    const int loader = tid - 256, chunk = loader % CHUNKS;
    const size_t row_bytes = Cache::row_bytes(dim);
    uint16_t* tile = reinterpret_cast<uint16_t*>(shared) + (tiles - ptx::shared_address(shared)) / 2;
    const auto bring = [&](const uint8_t* cache, int which, int step) {
      const int i = which * 2 + step % 2;
      if (step >= 2) ptx::wait_at(emptied + 8 * i, (step / 2 - 1) & 1);
#pragma unroll 4
      for (int l = 0; l < LOADS; l++) {
        const int key = loader / CHUNKS + l * (128 / CHUNKS);
        const uint32_t row = key_rows[step % 2][key];
        // Zeros stand for keys that are not there, and for what a head lacks.
        const bool there = row != NOWHERE && chunk * 8 < dim;
        Cache::bring(tile + i * TILE + place(key, chunk), cache, row * row_bytes, chunk * 8, there);
      }
      ptx::end_copies();
    };
    const auto tell = [&](int which, int step) {
      ptx::show_to_tensor_cores();
      ptx::arrive_at(filled + 8 * (which * 2 + step % 2));
    };
    for (int step = 0; step < n_steps; step++) {
      // Where the step's keys are, by one thread each; a row of the cache is a head of a position.
      const int position = t.start + step * KEYS + loader;
      key_rows[step % 2][loader] =
          position < t.end ? (t.table[position / block_size] * n_kv_heads + kv_head) * block_size + position % block_size : NOWHERE;
      ptx::sync_threads<128>(1);
      bring(a.k_cache, 0, step);
      if (step > 0) {
        ptx::wait_for_copies<1>();
        tell(1, step - 1);
      }
      bring(a.v_cache, 1, step);
      ptx::wait_for_copies<1>();
      tell(0, step);
    }
    ptx::wait_for_copies<0>();
    tell(1, n_steps - 1);
    return;
  }
  ptx::more_registers<232>();
  if (group_of_warps >= n_groups) return;

  // The two rows of this thread: their positions, and where they are among the queries.
  int position[2];
  size_t row_at[2];
  bool is_row[2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int row = warp * 16 + h * 8 + lane / 4;
    const int token = row / a.tile_heads, head = first_head + row % a.tile_heads;
    is_row[h] = token < t.n_tokens && head < group;
    position[h] = t.first_position + token;
    row_at[h] = static_cast<size_t>(kv_head * group + head) * dim;
    row_at[h] += static_cast<size_t>(t.first_token + token) * (n_heads + 2 * n_kv_heads) * dim;
  }
  uint32_t q[DIM / 16][4];
#pragma unroll
  for (int i = 0; i < DIM / 16; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const int at = i * 16 + j / 2 * 8 + lane % 4 * 2;
      const bool there = is_row[j % 2] && at < dim;
      const float* p = a.qkv + row_at[j % 2] + at;
      q[i][j] = there ? pair_of<T>(p[0], p[1]) : 0;
    }
  }

  // A score times `factor` is the exponent of two of its weight.
  const bool capped = a.softcap != 0.0f, tells = tid % 128 == 0;
  const float factor = capped ? LOG2_E : a.scale * LOG2_E;
  float score[KEYS / 8][4], out[DIM / 8][4] = {};
  uint32_t weights[KEYS / 16][4];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, correction[2];
  const auto multiply_keys = [&](int step) {
    ptx::wait_at(filled + 8 * (step % 2), step / 2 & 1);
    const uint64_t k = ptx::matrix_at(tiles + step % 2 * TILE * 2);
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) T::template multiply<true>(score, q[i], k + i / 4 * (KEYS * 128 / 16) + i % 4 * 2, i > 0);
    ptx::end_products();
  };
  const auto multiply_values = [&](int step) {
    ptx::wait_at(filled + 16 + 8 * (step % 2), step / 2 & 1);
    const uint64_t v = ptx::rows_at(tiles + (2 + step % 2) * TILE * 2, KEYS * 128);
    ptx::begin_products();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) T::template multiply<false>(out, weights[j], v + j * (2048 / 16), 1);
    ptx::end_products();
  };
  const auto weigh = [&](int step) {
    if (capped) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) score[j][c] = a.softcap * tanhf(score[j][c] * a.scale / a.softcap);
      }
    }
    const int base = t.start + step * KEYS;
    if (base + KEYS > t.first_position + 1 || base <= t.end - 1 - window) {
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 4; c++) {
          const int key = base + j * 8 + lane % 4 * 2 + c % 2, at = position[c / 2];
          if (key > at || at - key >= window) score[j][c] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
      float largest = max[h];
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) largest = fmaxf(largest, fmaxf(score[j][2 * h], score[j][2 * h + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
      // A row that sees no key of this tile may have seen none before, too.
      const float offset = largest == -INFINITY ? 0.0f : largest * factor;
      correction[h] = ptx::exp2_fast(max[h] * factor - offset);
      max[h] = largest;
      sum[h] *= correction[h];
#pragma unroll
      for (int j = 0; j < KEYS / 8; j++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const float p = ptx::exp2_fast(fmaf(score[j][2 * h + c], factor, -offset));
          score[j][2 * h + c] = p;
          sum[h] += p;
        }
      }
    }
  };
  const auto pack_weights = [&] {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) {
      weights[j][0] = pair_of<T>(score[2 * j][0], score[2 * j][1]), weights[j][1] = pair_of<T>(score[2 * j][2], score[2 * j][3]);
      weights[j][2] = pair_of<T>(score[2 * j + 1][0], score[2 * j + 1][1]);
      weights[j][3] = pair_of<T>(score[2 * j + 1][2], score[2 * j + 1][3]);
    }
  };
  const auto release = [&](int which, int step) {
    if (tells) ptx::arrive_at(emptied + 8 * (which * 2 + step % 2));
  };

  multiply_keys(0);
  ptx::wait_for_products<0>();
  release(0, 0);
  weigh(0);
  pack_weights();
  for (int step = 1; step < n_steps; step++) {
    multiply_keys(step);
    multiply_values(step - 1);
    ptx::wait_for_products<1>();
    release(0, step);
    weigh(step);
    ptx::wait_for_products<0>();
    release(1, step - 1);
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
#pragma unroll
      for (int c = 0; c < 4; c++) out[i][c] *= correction[c / 2];
    }
    pack_weights();
  }
  multiply_values(n_steps - 1);
  ptx::wait_for_products<0>();

#pragma unroll
  for (int h = 0; h < 2; h++) {
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 1);
    sum[h] += __shfl_xor_sync(ALL_LANES, sum[h], 2);
    if (!is_row[h]) continue;
    const int row = warp * 16 + h * 8 + lane / 4;
    const size_t token = t.first_token + row / a.tile_heads, head = kv_head * group + first_head + row % a.tile_heads;
    float* y = a.y + (token * n_heads + head) * dim;
    const float inverse = 1.0f / sum[h];
#pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
      const int at = i * 8 + lane % 4 * 2;
      if (at < dim) y[at] = out[i][2 * h] * inverse, y[at + 1] = out[i][2 * h + 1] * inverse;
    }
  }
#endif
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL_1(prefill_attention_hopper_##NAME##_##DIM, PrefillAttentionArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
PREFILL_ATTENTION(F16, HopperHalf, Plain, 64) PREFILL_ATTENTION(F16, HopperHalf, Plain, 128)
PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 64) PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 128)
PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 64) PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 128)
#endif
