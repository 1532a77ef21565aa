// What gemm_i8.cu and gemm_i8_hopper.cu share: which weights a block multiplies, how they come to shared memory, and what happens to sums.
//
// A block owns a tile of outputs, 16 for each of its warps that multiply, with 8 N rows of activations, and one of the parts that the columns
// are cut into. Warp w has outputs 16 w to 16 w + 15 of the tile, of a gate 8 of its own and 8 of up's, and all rows. It has sums [N, 4] as the
// tensor cores leave them: of outputs g and g + 8 with rows 2 t and 2 t + 1 of each slot of 8. A stage of its ring has 256 columns, those of
// the weights' vectors and all of the activations. What comes after a group's vectors (packed.cuh), scales mostly, is brought once for the
// group, to one of two rooms.
//
// The blocks of a tile's parts leave their sums in global memory, and the one that is done last adds them up in the order of parts.
#pragma once
#include "gemm.cuh"
#include "gemm_i8_args.cuh"
#include "small_m.cuh"

constexpr int WARP_OUTS = 16, SLOT_ROWS = 8;

// The work of a block, and where its things are in shared memory.
struct GemmI8Block {
  const GemmI8Part* part;
  uint8_t *ring, *rest;      // stages; [2, outputs, rest_pitch]
  const uint8_t** rows;      // of weights, [outputs]
  const uint32_t* table;     // of the part's type
  int tile, part_of_columns, tile_of_rows;
  int first, last;           // blocks of 256 columns
  int n_outs;                // of the tile
  int first_out, first_row;  // of the part of the matrix, and of the activations
  bool gate;
  // The place and the size of its work; N: slots of rows.
  template <int N>
  DEVICE static GemmI8Block of(const GemmI8Args& a, int n_outs, uint2 block) {
    GemmI8Block b = {};
    b.gate = a.epilogue == GATE, b.n_outs = n_outs;
    b.tile = block.x % a.n_tiles, b.part_of_columns = block.x / a.n_tiles, b.tile_of_rows = block.y;
    uint32_t p = 0;
    if (!b.gate) {
      while (p + 1 < a.n_parts && b.tile >= static_cast<int>(a.parts[p + 1].first_tile)) p++;
    }
    b.part = &a.parts[p];
    b.first_out = (b.tile - static_cast<int>(b.part->first_tile)) * (b.gate ? n_outs / 2 : n_outs);
    b.first_row = block.y * N * SLOT_ROWS;
    const int part_blocks = a.part_blocks;
    b.first = b.part_of_columns * part_blocks, b.last = min(static_cast<int>(a.n_blocks), b.first + part_blocks);
    return b;
  }
};

// Which row of weights is row i of the tile: the last one where outputs end.
DEVICE const uint8_t* weights_row(const GemmI8Args& a, const GemmI8Block& b, int i) {
  const GemmI8Part& part = *b.part;
  if (!b.gate) return part.w + static_cast<size_t>(min(b.first_out + i, static_cast<int>(part.n_out) - 1)) * part.row_bytes;
  const GemmI8Part& half = a.parts[i % WARP_OUTS / 8];
  const int out = b.first_out + i / WARP_OUTS * 8 + i % 8;
  return half.w + static_cast<size_t>(min(out, static_cast<int>(part.n_out) - 1)) * half.row_bytes;
}

// Asks for what comes after a group's vectors, so many times 16 bytes of each row; by `n_copiers` threads.
DEVICE void copy_rest(const GemmI8Args& a, const GemmI8Block& b, size_t from, uint8_t* to, int chunks, int copier, int n_copiers) {
#pragma unroll 2
  for (int i = copier; i < b.n_outs * chunks; i += n_copiers) {
    const int row = i / chunks, c = i % chunks;
    ptx::cp_async_16(to + row * a.rest_pitch + c * 16, b.rows[row] + from + c * 16, 16);
  }
}

// Asks for the weights of a block of columns: vectors to the stage, and the rest of a group with the first of its blocks. So many threads for
// each output copy; four of them have the pieces of a row.
template <class Packed, int COPIERS>
DEVICE void copy_weights(const GemmI8Args& a, const GemmI8Block& b, int block, uint8_t* stage, int copier) {
  constexpr int VECTORS = Packed::Fragment::VECTORS, PITCH = 64 * VECTORS + 16;
  const int group = block / 8, at = block % 8 * 4, n_pieces = a.n_blocks * 4, size = min(n_pieces - group * GROUP, GROUP);
  const size_t start = static_cast<size_t>(group) * Packed::bytes(GROUP);
  // What follows from the thread's number is computed here, since registers are scarce.
  copier = ptx::anew(copier);
  const int n_copiers = COPIERS * b.n_outs, first_row = copier / 4, piece = copier % 4, rows = n_copiers / 4;
  const size_t from = start + (at + piece) * 16;
  uint8_t* to = stage + first_row * PITCH + piece * 16;
#pragma unroll
  for (int j = 0; j < 4 / COPIERS; j++) {
    const uint8_t* row = b.rows[first_row + j * rows] + from;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) ptx::cp_async_16(to + j * rows * PITCH + v * 64, row + v * size * 16, 16);
  }
  if (at != 0 && block != b.first) return;
  constexpr int REST = (Packed::bytes(GROUP) - VECTORS * GROUP * 16) / 16;
  uint8_t* room = b.rest + group % 2 * b.n_outs * a.rest_pitch;
  if (size == GROUP) copy_rest(a, b, start + VECTORS * GROUP * 16, room, REST, copier, n_copiers);
  else copy_rest(a, b, start + VECTORS * size * 16, room, (Packed::bytes(size) - VECTORS * size * 16) / 16, copier, n_copiers);
}

// The weights of a warp's outputs in a block of columns.
template <class Packed>
struct WarpWeights {
  typedef typename Packed::SmallM P;
  static constexpr int VECTORS = Packed::Fragment::VECTORS, PITCH = 64 * VECTORS + 16;
  const uint8_t *vectors, *row0, *row1;
  int at, size;
  unsigned lane;
  P p;
  // `stage`: where the tile's vectors are.
  DEVICE WarpWeights(const GemmI8Args& a, const GemmI8Block& b, int block, const uint8_t* stage, int warp, unsigned lane) : lane(lane) {
    const int group = block / 8;
    at = block % 8 * 4, size = min(static_cast<int>(a.n_blocks) * 4 - group * GROUP, GROUP);
    vectors = stage + warp * WARP_OUTS * PITCH;
    // As if the group's vectors were before its rest.
    row0 = b.rest + (group % 2 * b.n_outs + warp * WARP_OUTS + lane / 4) * a.rest_pitch - VECTORS * size * 16;
    row1 = row0 + 8 * a.rest_pitch;
    if constexpr (Packed::TABLE > 0) p.table = b.table;
    p.take(row0, row1, size, at + lane % 4);
  }
  // Half h of piece i of four as the tensor cores' first operand. `raw` is the piece's between its halves.
  DEVICE void unpack(uint32_t (&to)[4], uint32_t (&raw)[4], int i, int h) const {
    const uint8_t* matrices = vectors + lane % 16 * PITCH + (VECTORS == 1 ? 0 : lane / 16 * 64) + i * 16;
    if (Packed::TABLE == 0 && h == 0) ptx::ldmatrix_x4(raw, matrices);
    if constexpr (P::UNPACKED) {
      if (h == 1) ptx::ldmatrix_x4(raw, matrices + 128);
#pragma unroll
      for (int j = 0; j < 4; j++) to[j] = raw[j];
    } else if constexpr (Packed::UNPACKS_VECTORS) {
      const uint8_t* row = vectors + lane / 4 * PITCH;
      p.unpack(to, raw, h, row, row + 8 * PITCH, 4, i, lane % 4);
    } else {
      p.unpack(to, raw, h, row0, row1, size, at + i, lane % 4);
    }
  }
  // Scales of piece i.
  DEVICE void words(uint32_t (&to)[P::WORDS], int i) const {
#pragma unroll
    for (int j = 0; j < P::WORDS; j++) to[j] = __shfl_sync(ALL_LANES, p.words[j], (lane & 28) + i);
  }
};

// Leaves the sums of a part of the columns, and returns true, with those of all parts, in the block that is done last.
// `sync` is a barrier of the threads with sums.
template <int N, int MOST_AT_ONCE, class Sync>
DEVICE bool add_parts(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4], int tid, Sync sync) {
  __shared__ bool is_last;
  const int n_threads = b.n_outs * 2, n_parts = a.n_parts_of_columns;
  const size_t tile = static_cast<size_t>(b.tile_of_rows) * a.n_tiles + b.tile;
  float4* const partial = a.partial + tile * n_parts * N * n_threads + tid;
#pragma unroll
  for (int n = 0; n < N; n++) partial[(b.part_of_columns * N + n) * n_threads] = float4{sums[n][0], sums[n][1], sums[n][2], sums[n][3]};
  sync();
  if (tid == 0) {
    is_last = ptx::count_up(a.arrived + tile) == static_cast<uint32_t>(n_parts - 1);
    if (is_last) a.arrived[tile] = 0;
  }
  sync();
  if (!is_last) return false;
#pragma unroll
  for (int i = 0; i < 4 * N; i++) sums[i / 4][i % 4] = 0;
  // As many loads at once as registers allow: slots of a part, or all of several parts.
  constexpr int SLOTS = N < MOST_AT_ONCE ? N : MOST_AT_ONCE, PARTS = MOST_AT_ONCE / SLOTS;
#pragma unroll 1
  for (int p = 0; p < n_parts; p += PARTS) {
#pragma unroll
    for (int first = 0; first < N; first += SLOTS) {
      float4 v[PARTS][SLOTS];
#pragma unroll
      for (int i = 0; i < PARTS * SLOTS; i++) {
        // Beyond the last part nothing is added.
        const int part = min(p + i / SLOTS, n_parts - 1);
        v[i / SLOTS][i % SLOTS] = __ldcg(partial + (part * N + first + i % SLOTS) * n_threads);
      }
#pragma unroll
      for (int i = 0; i < PARTS * SLOTS; i++) {
        if (p + i / SLOTS >= n_parts) break;
        const float4 part = v[i / SLOTS][i % SLOTS];
        float(&sum)[4] = sums[first + i % SLOTS];
        sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
      }
    }
  }
  return true;
}

DEVICE float4 scaled_by(float4 v, float x) { return {__fmul_rn(v.x, x), __fmul_rn(v.y, x), __fmul_rn(v.z, x), __fmul_rn(v.w, x)}; }

// Four outputs of a row, of which `n` are there; `whole`: all, at an address of a multiple of 16.
DEVICE float4 load_outputs(const float* y, int n, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(y);
  return {y[0], n > 1 ? y[1] : 0.0f, n > 2 ? y[2] : 0.0f, n > 3 ? y[3] : 0.0f};
}

DEVICE void store_outputs(float* y, float4 v, int n, bool whole) {
  if (whole) {
    *reinterpret_cast<float4*>(y) = v;
    return;
  }
  y[0] = v.x;
  if (n > 1) y[1] = v.y;
  if (n > 2) y[2] = v.z;
  if (n > 3) y[3] = v.w;
}

// Stores sums, [rows of the tile, outputs of the tile + 4]: a thread has four outputs of every so many rows. As loops of little code, since what
// runs once for a tile is waited for.
template <int N>
DEVICE void store(const GemmI8Args& a, const GemmI8Block& b, const float* sums, const float* factors, int tid) {
  const GemmI8Part& part = *b.part;
  const int pitch = b.n_outs + 4, n_own = b.gate ? b.n_outs / 2 : b.n_outs, quads = n_own / 4, step = b.n_outs * 2 / quads;
  const int local = tid % quads * 4, n = min(static_cast<int>(part.n_out) - b.first_out, n_own) - local;
  const int first = tid / quads, n_rows = min(static_cast<int>(a.m) - b.first_row, N * SLOT_ROWS);
  if (n <= 0) return;
  const int out = b.first_out + local + (b.gate ? 0 : part.first_out);
  const size_t stride = a.y_stride;
  float* y = a.y + (b.first_row + first) * stride + out;
  const bool whole = n >= 4 && (reinterpret_cast<uintptr_t>(y) | stride * 4) % 16 == 0, scaled = a.squares != nullptr;
  sums += first * pitch + (b.gate ? local / 8 * WARP_OUTS + local % 8 : local);
  if (b.gate) {
#pragma unroll 1
    for (int row = first; row < n_rows; row += step, sums += step * pitch, y += step * stride) {
      const float factor = scaled ? factors[row] : 1.0f;
      float4 v = scaled_by(*reinterpret_cast<const float4*>(sums), factor);
      const float4 up = scaled_by(*reinterpret_cast<const float4*>(sums + 8), factor);
      v.x = activate_gate(a.activation, v.x) * up.x, v.y = activate_gate(a.activation, v.y) * up.y;
      v.z = activate_gate(a.activation, v.z) * up.z, v.w = activate_gate(a.activation, v.w) * up.w;
      store_outputs(y, v, n, whole);
    }
    return;
  }
  const float4 bias = a.bias ? load_outputs(a.bias + out, n, false) : float4{0, 0, 0, 0};
  const bool adds = a.epilogue == ADD;
  // Rows that are read at once, before any is written: what is written might be what is read, as far as the compiler knows.
  constexpr int TOGETHER = N < 4 ? 2 : 4;
#pragma unroll 1
  for (int row = first; row < n_rows; row += TOGETHER * step) {
    float4 v[TOGETHER], before[TOGETHER];
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      before[i] = {0, 0, 0, 0};
      if (row + i * step >= n_rows) continue;
      v[i] = scaled_by(*reinterpret_cast<const float4*>(sums + i * step * pitch), scaled ? factors[row + i * step] : 1.0f);
      if (adds) before[i] = load_outputs(y + i * step * stride, n, whole);
    }
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
      if (row + i * step >= n_rows) continue;
      if (a.bias) v[i].x += bias.x, v[i].y += bias.y, v[i].z += bias.z, v[i].w += bias.w;
      if (adds) v[i].x += before[i].x, v[i].y += before[i].y, v[i].z += before[i].z, v[i].w += before[i].w;
      store_outputs(y + i * step * stride, v[i], n, whole);
    }
    sums += TOGETHER * step * pitch, y += TOGETHER * step * stride;
  }
}

// What happens to the sums of a part of the columns. `room`: shared memory that nobody else has any more, for [rows of the tile, outputs of the
// tile + 4]; `factors`: room for the norm's, [rows of the tile]. MOST_AT_ONCE:
// slots of rows of parts that are loaded at once.
template <int N, int MOST_AT_ONCE, class Sync>
DEVICE void finish(const GemmI8Args& a, const GemmI8Block& b, float (&sums)[N][4], float* room, float* factors, int tid, Sync sync) {
  if (a.n_parts_of_columns > 1 && !add_parts<N, MOST_AT_ONCE>(a, b, sums, tid, sync)) return;
  if (a.squares) {
    // Four lanes have a row.
    const int n_threads = b.n_outs * 2, n_blocks = a.n_blocks;
#pragma unroll 1
    for (int i = tid / 4; i < N * SLOT_ROWS; i += n_threads / 4) {
      const int row = b.first_row + i;
      const float factor = norm_factor(a.squares, row < static_cast<int>(a.m) ? row : -1, n_blocks, tid % 4, a.inv_n, a.eps);
      if (tid % 4 == 0) factors[i] = factor;
    }
  }
  const int pitch = b.n_outs + 4, lane = tid % 32;
  float* to = room + lane % 4 * 2 * pitch + tid / 32 * WARP_OUTS + lane / 4;
#pragma unroll
  for (int n = 0; n < N; n++, to += SLOT_ROWS * pitch) to[0] = sums[n][0], to[pitch] = sums[n][1], to[8] = sums[n][2], to[pitch + 8] = sums[n][3];
  sync();
  store<N>(a, b, room, factors, tid);
}

// The table of the part's type.
DEVICE void fill_table_of(const GemmI8Block& b, uint32_t* table) {
#define FILL_TABLE(Q) \
  case LAYOUT_##Q: fill_table<Packed_##Q>(table, threadIdx.x, blockDim.x); break;
  switch (b.part->layout) { FOR_EACH_PACKED(FILL_TABLE) }
#undef FILL_TABLE
}
