// The attention of prefill_attention.cu for Hopper's tensor cores.
//
// A block stays on its multiprocessor and goes through tiles of up to 128 rows, of which each of two groups of 4 warps has 64. A third
// group brings the positions that a tile's tokens see to shared memory, 128 at a time: keys and values have a ring of two stages each
// (128 KiB at most). A fourth normalizes and turns queries and rounds them to 16 bits, in shared memory too (64 KiB). Both are up to a
// tile ahead. Blocks of a cache that can be read as it is come as boxes by the copy engine, of one warp; others by all threads of the
// group. A group has the scores of one stage made while the weights of the one before are multiplied with its values, and makes weights
// of scores while the tensor cores work for it or for the other group.
#ifndef REALIZAR_EMULATION
#include "heads.cuh"
#include "prefill_attention.cuh"
#include "../common/hopper.cuh"
#include "prefill_attention_hopper_args.cuh"

constexpr int THREADS = 512;
constexpr int ROWS = 128;
constexpr int KEYS = 128;

// As `smem_desc` wants them, 64 columns of all keys after each other.
DEVICE int place(int key, int chunk) { return (chunk / 8 * KEYS + key) * 64 + ((chunk ^ key) & 7) * 8; }

struct HopperHalf : Half {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_f16(d, a, b, add); }
  template <int N>
  DEVICE static void multiply_values(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
    ptx::wgmma_rs_f16<false>(d, a, b, 1);
  }
};

struct HopperBfloat : Bfloat {
  template <int N>
  DEVICE static void multiply_group(float (&d)[N][4], uint64_t a, uint64_t b, uint32_t add) { ptx::wgmma_ss_bf16(d, a, b, add); }
  template <int N>
  DEVICE static void multiply_values(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b) {
    ptx::wgmma_rs_bf16<false>(d, a, b, 1);
  }
};

// Makes N rows of a tile's queries, from row `first` on, what the tensor cores want, at `to`, by one warp, BATCH at a time. Rows that are
// not there become zeros.
template <class T, int DIM, int N, int BATCH>
DEVICE void prepare_queries(const PrefillAttentionHopperArgs& args, const Tile& t, uint8_t* to, int first, float* scratch) {
  constexpr int PIECES = DIM / 32;
  const PrefillAttentionArgs& a = args.of_all;
  const int dim = a.head_dim, n_pairs = args.angles ? args.rope_dim / 2 : 0, tile_heads = a.tile_heads;
#pragma unroll 1
  for (int batch = first; batch < first + N; batch += BATCH) {
    const int lane = ptx::thread_again() % 32;
    // All that comes from memory is asked for before any of it is waited for.
    Head heads[BATCH] = {};
    float cosines[BATCH][PIECES / 2] = {}, sines[BATCH][PIECES / 2] = {};
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      const int token = (batch + b) / tile_heads, in_group = t.first_head + (batch + b) % tile_heads;
      if (token >= t.n_tokens || in_group >= t.group) continue;
      const size_t of_all = t.first_token + token;
      const float* q = a.qkv + (of_all * (a.n_heads + 2 * a.n_kv_heads) + t.kv_head * t.group + in_group) * dim;
      const float* angles = args.angles + of_all * (2 * n_pairs);
#pragma unroll
      for (int j = 0; j < PIECES; j++) heads[b].x[j] = lane + 32 * j < dim ? q[lane + 32 * j] : 0.0f;
#pragma unroll
      for (int j = 0; j < PIECES / 2; j++) {
        if (lane + 32 * j < n_pairs) cosines[b][j] = angles[lane + 32 * j], sines[b][j] = angles[n_pairs + lane + 32 * j];
      }
    }
#pragma unroll
    for (int b = 0; b < BATCH; b++) {
      if (args.q_weight) norm_head(heads[b], dim, lane, args.q_weight, args.q_bias, args.q_layer, args.q_eps);
#pragma unroll
      for (int j = 0; j < PIECES; j++) scratch[lane + 32 * j] = heads[b].x[j];
      __syncwarp();
#pragma unroll
      for (int j = 0; j < PIECES / 2; j++) {
        if (lane + 32 * j < n_pairs) rotate_pair(scratch, lane + 32 * j, n_pairs, args.interleaved, cosines[b][j], sines[b][j]);
      }
      __syncwarp();
      const int row = batch + b;
#pragma unroll
      for (int j = 0; j < DIM / 64; j++) {
        const float2 v = *reinterpret_cast<const float2*>(scratch + 2 * lane + 64 * j);
        uint8_t* at = to + (j * ROWS + row) * 128 + ((lane / 4 ^ row) & 7) * 16 + lane % 4 * 4;
        *reinterpret_cast<uint32_t*>(at) = pair_of<T>(v.x, v.y);
      }
      __syncwarp();
    }
  }
}

template <class T, class Cache, int DIM>
DEVICE void prefill_attention(const PrefillAttentionHopperArgs& args) {
#if __CUDA_ARCH__ == 900
  constexpr int CHUNKS = DIM / 8, LOADS = KEYS * CHUNKS / 128, TILE = KEYS * DIM;
  DYNAMIC_SHARED(shared);
  __shared__ uint32_t key_rows[2][KEYS];
  __shared__ float scratch[THREADS / 32][DIM];
  // Filled and emptied, of the two stages of keys, of values, and of queries.
  __shared__ uint64_t barriers[2][3][2];
  const PrefillAttentionArgs& a = args.of_all;
  const uint32_t tiles = (ptx::fixed_address(shared) + 1023) / 1024 * 1024;
  const uint32_t filled = ptx::fixed_address(barriers), emptied = filled + 48;
  constexpr int QUERIES = 4, QUERY_TILE = ROWS * DIM;
  uint16_t* const tile = reinterpret_cast<uint16_t*>(shared + (tiles - ptx::shared_address(shared)));
  const int tid = threadIdx.x, lane = tid % 32, dim = a.head_dim;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), group_of_warps = warp / 4;
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int box_rows = Cache::AS_IS ? args.box_rows : 0;
  if (warp == 0) {
    if (lane < 6) ptx::mbarrier_init(filled + 8 * lane, box_rows && lane < QUERIES ? 1 : 128), ptx::mbarrier_init(emptied + 8 * lane, 2);
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  // Calls f with each of the block's tiles, the first position that is brought for it, and the steps to its end. Tiles become shorter, so
  // every other time the blocks take them in reverse order.
  const auto for_tiles = [&](auto f) {
    const int n_tiles = args.n_tiles, n_blocks = gridDim.x, block = blockIdx.x;
    for (int first = 0, is_odd = 0; first < n_tiles; first += n_blocks, is_odd ^= 1) {
      const int index = first + (is_odd ? n_blocks - 1 - block : block);
      if (index >= n_tiles) continue;
      const Tile t(a, index, n_tiles);
      const int start = box_rows ? t.start / box_rows * box_rows : t.start;
      f(t, start, ceil_div(t.end - start, KEYS));
    }
  };
  // Steps of the tiles before, and the number of those tiles.
  uint32_t done = 0, n_done = 0;
  const auto wait_for_stage = [&](int i, uint32_t step) {
    if (step >= 2) ptx::mbarrier_wait(emptied + 8 * i, (step / 2 - 1) & 1);
  };

  uint8_t* const queries = reinterpret_cast<uint8_t*>(tile + 4 * TILE);
  if (group_of_warps == 3) {
    ptx::setmaxnreg_dec<72>();
    for_tiles([&](const Tile& t, int, int) {
      // Those who multiply have nothing else to do before the first tile.
      if (n_done > 0) {
        const int i = QUERIES + n_done % 2;
        wait_for_stage(i, n_done);
        prepare_queries<T, DIM, 32, 4>(args, t, queries + n_done % 2 * (QUERY_TILE * 2), warp % 4 * 32, scratch[warp]);
        ptx::fence_proxy_async_shared();
        ptx::mbarrier_arrive(filled + 8 * i);
      }
      n_done++;
    });
    return;
  }

  if (group_of_warps == 2) {
    ptx::setmaxnreg_dec<40>();
    if (box_rows) {
      if (warp != 8) return;
      const int n_boxes = KEYS / box_rows, box = lane % n_boxes, columns = lane / n_boxes;
      for_tiles([&](const Tile& t, int start, int n_steps) {
        for (int position = start + box * box_rows; n_steps > 0; n_steps--, done++, position += KEYS) {
          // What lies outside of the cache comes as zeros.
          const uint32_t row = position < t.end ? t.row_of(a, position) : args.n_cache_rows;
#pragma unroll
          for (int which = 0; which < 2; which++) {
            const int i = which * 2 + done % 2;
            wait_for_stage(i, done);
            if (lane == 0) ptx::mbarrier_expect_tx(filled + 8 * i, TILE * 2);
            __syncwarp();
            if (columns >= DIM / 64) continue;
            const uint32_t to = tiles + i * TILE * 2 + (columns * KEYS + box * box_rows) * 128;
            ptx::tma_load(to, which ? &args.v_map : &args.k_map, columns * 128, row, filled + 8 * i);
          }
        }
      });
      return;
    }
    const int loader = ptx::thread_again() - 256, chunk = loader % CHUNKS;
    const bool is_within = chunk * 8 < dim;
    const uint32_t row_bytes = Cache::row_bytes(dim);
    const auto bring = [&](const uint8_t* cache, int which, uint32_t step) {
      const int i = which * 2 + step % 2;
      wait_for_stage(i, step);
#pragma unroll 4
      for (int l = 0; l < LOADS; l++) {
        const int key = loader / CHUNKS + l * (128 / CHUNKS);
        const uint32_t row = key_rows[step % 2][key];
        // Zeros stand for keys that are not there, and for what a head lacks.
        const bool there = row != NOWHERE && is_within;
        Cache::bring(tile + i * TILE + place(key, chunk), cache, static_cast<size_t>(row) * row_bytes, chunk * 8, there);
      }
      ptx::cp_async_commit();
    };
    const auto tell = [&](int which, uint32_t step) {
      ptx::fence_proxy_async_shared();
      ptx::mbarrier_arrive(filled + 8 * (which * 2 + step % 2));
    };
    for_tiles([&](const Tile& t, int start, int n_steps) {
      const int last = start + n_steps * KEYS;
      for (int position = start + loader; position < last; done++, position += KEYS) {
        // Where the step's keys are, by one thread each.
        key_rows[done % 2][loader] = position < t.end ? t.row_of(a, position) : NOWHERE;
        ptx::sync_threads<128>(1);
        bring(a.k_cache, 0, done);
        if (done > 0) {
          ptx::cp_async_wait<1>();
          tell(1, done - 1);
        }
        bring(a.v_cache, 1, done);
        ptx::cp_async_wait<1>();
        tell(0, done);
      }
    });
    ptx::cp_async_wait<0>();
    if (done > 0) tell(1, done - 1);
    return;
  }
  ptx::setmaxnreg_inc<200>();

  const bool tells = tid % 128 == 0;
  for_tiles([&](const Tile& t, int start, int n_steps) {
    // What is made of these is not kept from tile to tile: that would take too many registers.
    const int tid = ptx::thread_again(), lane = tid % 32;
    const Rows rows(a, t, warp * 16, lane);
    const uint64_t q = ptx::smem_desc(tiles + 4 * TILE * 2 + n_done % 2 * QUERY_TILE * 2 + group_of_warps * 64 * 128);
    Softmax softmax(a);
    float score[KEYS / 8][4], out[DIM / 8][4] = {};
    uint32_t weights[KEYS / 16][4];
    const auto multiply_keys = [&](int step) {
      const uint32_t at = done + step;
      ptx::mbarrier_wait(filled + 8 * (at % 2), at / 2 & 1);
      const uint64_t k = ptx::smem_desc(tiles + at % 2 * TILE * 2);
      ptx::wgmma_fence();
#pragma unroll
      for (int i = 0; i < DIM / 16; i++) {
        const uint64_t columns = i / 4 * (KEYS * 128 / 16) + i % 4 * 2;
        T::multiply_group(score, q + columns, k + columns, i > 0);
      }
      ptx::wgmma_commit();
    };
    // Of the last box, the values of positions that are not there are what others left: zeros take their place, since not even a weight of
    // zero makes nothing of an infinite one.
    const auto clear_values = [&](int step) {
      const int first = t.end - (start + step * KEYS);
      if (!box_rows || first >= KEYS || first % box_rows == 0) return;
      const int n = (box_rows - first % box_rows) * 8;
      uint4* v = reinterpret_cast<uint4*>(tile + (2 + (done + step) % 2) * TILE);
      for (int i = tid % 128; i < n * (DIM / 64); i += 128) v[(i / n * KEYS + first) * 8 + i % n] = uint4{0, 0, 0, 0};
      ptx::fence_proxy_async_shared();
      ptx::sync_threads<128>(2 + group_of_warps);
    };
    const auto multiply_values = [&](int step) {
      const uint32_t at = done + step;
      ptx::mbarrier_wait(filled + 16 + 8 * (at % 2), at / 2 & 1);
      clear_values(step);
      const uint64_t v = ptx::smem_desc_mn_major(tiles + (2 + at % 2) * TILE * 2, KEYS * 128);
      ptx::wgmma_fence();
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) T::multiply_values(out, weights[j], v + j * (2048 / 16));
      ptx::wgmma_commit();
    };
    const auto weigh = [&](int step) { softmax.weigh(score, a, t, rows, start + step * KEYS, lane); };
    const auto pack = [&] {
#pragma unroll
      for (int j = 0; j < KEYS / 16; j++) pack_weights<T>(weights[j], score, j);
    };
    const auto release = [&](int which, int step) {
      if (tells) ptx::mbarrier_arrive(emptied + 8 * (which * 2 + (done + step) % 2));
      // The last scores are made.
      if (tells && which == 0 && step == n_steps - 1) ptx::mbarrier_arrive(emptied + 8 * (QUERIES + n_done % 2));
    };

    if (n_done == 0) {
      prepare_queries<T, DIM, 16, 8>(args, t, queries, warp * 16, scratch[warp]);
      ptx::fence_proxy_async_shared();
      ptx::sync_threads<128>(2 + group_of_warps);
    } else {
      ptx::mbarrier_wait(filled + 8 * (QUERIES + n_done % 2), (n_done - 1) / 2 & 1);
    }
    multiply_keys(0);
    ptx::wgmma_wait<0>();
    release(0, 0);
    weigh(0);
    pack();
    for (int step = 1; step < n_steps; step++) {
      multiply_keys(step);
      multiply_values(step - 1);
      ptx::wgmma_wait<1>();
      release(0, step);
      weigh(step);
      ptx::wgmma_wait<0>();
      release(1, step - 1);
      softmax.correct(out);
      pack();
    }
    multiply_values(n_steps - 1);
    ptx::wgmma_wait<0>();
    release(1, n_steps - 1);
    softmax.finish(out, a, rows, lane);
    done += n_steps, n_done++;
  });
#endif
}

#define PREFILL_ATTENTION(NAME, T, CACHE, DIM) \
  KERNEL_1(prefill_attention_hopper_##NAME##_##DIM, PrefillAttentionHopperArgs, THREADS) { prefill_attention<T, CACHE, DIM>(a); }
PREFILL_ATTENTION(F16, HopperHalf, Plain, 64) PREFILL_ATTENTION(F16, HopperHalf, Plain, 128)
PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 64) PREFILL_ATTENTION(BF16, HopperBfloat, Plain, 128)
PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 64) PREFILL_ATTENTION(Q8_0, HopperHalf, Blocks8, 128)
#endif
