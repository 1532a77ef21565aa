// The attention of prefill_attention.cu for Hopper's tensor cores.
//
// A block owns up to 128 rows, each of two groups of 4 warps 64. A third group brings the positions that the block's tokens see to shared
// memory, 128 at a time: keys and values have a ring of two stages each (128 KiB at most). Blocks of a cache that can be read as it is come
// as boxes by the copy engine, of one warp; others by all threads of the group. A group has the scores of one stage made while the weights
// of the one before are multiplied with its values, and makes weights of scores while the tensor cores work for it or for the other group.
#ifndef REALIZAR_EMULATION
#include "prefill_attention.cuh"
#include "ptx_hopper.cuh"

constexpr int THREADS = 384;
constexpr int KEYS = 128;

// As `matrix_at` wants them, 64 columns of all keys after each other.
DEVICE int place(int key, int chunk) { return (chunk / 8 * KEYS + key) * 64 + ((chunk ^ key) & 7) * 8; }

struct PrefillAttentionHopperArgs {
  PrefillAttentionArgs of_all;
  uint32_t n_cache_rows;  // heads of positions
  uint32_t box_rows;      // rows of a box, 8 to 128; 0: the cache does not come as boxes
  ptx::Map k_map, v_map;
};

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
DEVICE void prefill_attention(const PrefillAttentionHopperArgs& args) {
#if __CUDA_ARCH__ == 900
  constexpr int CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / 128, TILE = KEYS * DIM;
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  // Filled and emptied, of the two stages of keys and then of values.
  __shared__ uint64_t barriers[2][2][2];
  const PrefillAttentionArgs& a = args.of_all;
  const uint32_t tiles = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
  const uint32_t filled = ptx::fixed_address(barriers), emptied = filled + 32;
  uint16_t* const tile = reinterpret_cast<uint16_t*>(shared + (tiles - ptx::shared_address(shared)));
  const int tid = threadIdx.x, lane = tid % 32, dim = a.head_dim;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), group_of_warps = warp / 4;
  ptx::let_next_kernel_start();
  ptx::wait_for_previous_kernel();
  const Tile t(a);
  const int box_rows = Cache::AS_IS ? args.box_rows : 0, start = box_rows ? t.start / box_rows * box_rows : t.start;
  const int n_steps = ceil_div(t.end - start, KEYS);
  // A group that has no rows leaves.
  const int n_groups = t.n_tokens * static_cast<int>(a.tile_heads) > 64 ? 2 : 1;
  if (warp == 0) {
    if (lane < 4) ptx::make_barrier(filled + 8 * lane, box_rows ? 1 : 128), ptx::make_barrier(emptied + 8 * lane, n_groups);
    ptx::barriers_are_ready();
  }
  __syncthreads();

  if (group_of_warps == 2) {
    ptx::fewer_registers<40>();
    const auto wait_for_stage = [&](int i, int step) {
      if (step >= 2) ptx::wait_at(emptied + 8 * i, (step / 2 - 1) & 1);
    };
    if (box_rows) {
      if (warp != 8) return;
      const int n_boxes = KEYS / box_rows, box = lane % n_boxes, columns = lane / n_boxes;
      for (int step = 0; step < n_steps; step++) {
        // What lies outside of the cache comes as zeros.
        const int position = start + step * KEYS + box * box_rows;
        const uint32_t row = position < t.end ? t.row_of(a, position) : args.n_cache_rows;
#pragma unroll
        for (int which = 0; which < 2; which++) {
          const int i = which * 2 + step % 2;
          wait_for_stage(i, step);
          if (lane == 0) ptx::expect_bytes(filled + 8 * i, TILE * 2);
          __syncwarp();
          if (columns >= DIM / 64) continue;
          const uint32_t to = tiles + i * TILE * 2 + (columns * KEYS + box * box_rows) * 128;
          ptx::copy_box(to, which ? &args.v_map : &args.k_map, columns * 128, row, filled + 8 * i);
        }
      }
      return;
    }
    const int loader = tid - 256, chunk = loader % CHUNKS;
    const size_t row_bytes = Cache::row_bytes(dim);
    const auto bring = [&](const uint8_t* cache, int which, int step) {
      const int i = which * 2 + step % 2;
      wait_for_stage(i, step);
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
      // Where the step's keys are, by one thread each.
      const int position = start + step * KEYS + loader;
      key_rows[step % 2][loader] = position < t.end ? t.row_of(a, position) : NOWHERE;
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

  const Rows rows(a, t, warp * 16, lane);
  uint32_t q[DIM / 16][4];
  load_queries<T, DIM>(q, a, rows, lane);
  const bool tells = tid % 128 == 0;
  Softmax softmax(a);
  float score[KEYS / 8][4], out[DIM / 8][4] = {};
  uint32_t weights[KEYS / 16][4];
  const auto multiply_keys = [&](int step) {
    ptx::wait_at(filled + 8 * (step % 2), step / 2 & 1);
    const uint64_t k = ptx::matrix_at(tiles + step % 2 * TILE * 2);
    ptx::begin_products();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) T::template multiply<true>(score, q[i], k + i / 4 * (KEYS * 128 / 16) + i % 4 * 2, i > 0);
    ptx::end_products();
  };
  // Of the last box, the values of positions that are not there are what others left: zeros take their place, since not even a weight of
  // zero makes nothing of an infinite one.
  const auto clear_values = [&](int step) {
    const int first = t.end - (start + step * KEYS);
    if (!box_rows || first >= KEYS || first % box_rows == 0) return;
    const int n = (box_rows - first % box_rows) * 8;
    uint4* v = reinterpret_cast<uint4*>(tile + (2 + step % 2) * TILE);
    for (int i = tid % 128; i < n * (DIM / 64); i += 128) v[(i / n * KEYS + first) * 8 + i % n] = uint4{0, 0, 0, 0};
    ptx::show_to_tensor_cores();
    ptx::sync_threads<128>(2 + group_of_warps);
  };
  const auto multiply_values = [&](int step) {
    ptx::wait_at(filled + 16 + 8 * (step % 2), step / 2 & 1);
    clear_values(step);
    const uint64_t v = ptx::rows_at(tiles + (2 + step % 2) * TILE * 2, KEYS * 128);
    ptx::begin_products();
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) T::template multiply<false>(out, weights[j], v + j * (2048 / 16), 1);
    ptx::end_products();
  };
  const auto weigh = [&](int step) { softmax.weigh(score, a, t, rows, start + step * KEYS, lane); };
  const auto pack = [&] {
#pragma unroll
    for (int j = 0; j < KEYS / 16; j++) pack_weights<T>(weights[j], score, j);
  };
  const auto release = [&](int which, int step) {
    if (tells) ptx::arrive_at(emptied + 8 * (which * 2 + step % 2));
  };

  multiply_keys(0);
  ptx::wait_for_products<0>();
  release(0, 0);
  weigh(0);
  pack();
  for (int step = 1; step < n_steps; step++) {
    multiply_keys(step);
    multiply_values(step - 1);
    ptx::wait_for_products<1>();
    release(0, step);
    weigh(step);
    ptx::wait_for_products<0>();
    release(1, step - 1);
    softmax.correct(out);
    pack();
  }
  multiply_values(n_steps - 1);
  ptx::wait_for_products<0>();
  softmax.finish(out, a, rows, lane);
#endif
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL_1(prefill_attention_hopper_##NAME##_##DIM, PrefillAttentionHopperArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
PREFILL_ATTENTION(F16, HopperHalf, Plain, 64) PREFILL_ATTENTION(F16, HopperHalf, Plain, 128)
PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 64) PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 128)
PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 64) PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 128)
#endif
