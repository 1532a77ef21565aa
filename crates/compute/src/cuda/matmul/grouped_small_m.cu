// Rows of activations, sorted by the experts that they use, with the packed weights of these on the integer tensor cores: 16 rows of weights,
// unpacked to 8 bits, times 8 or 16 rows of activations, rounded to 8 bits as for small_m.cu.
//
// A unit is 16 rows of an expert's weights, of a gate 8 of its own and 8 of up's, with a tile of up to 16 rows of activations. Units of all tiles
// are divided evenly among blocks, each of which goes through a range of them. Eight warps take a block's units by turns, each with all columns,
// so that sums stay in its registers until it stores them. Two more keep a ring of groups (packed.cuh) of 16 rows in shared memory filled, each
// with 8 of them, since to ask for 16 rows takes one warp longer than memory does. Another brings activations: those of 8 rows are a slot of a
// ring, in which all units of a tile read them.
//
// Each use of a stage is a phase of one of several barriers, by turns: warps wait for what is far ahead, and by its parity alone they could not
// tell a phase from the one before the last.
//
// Moves: the weights of an expert once for each 16 of its rows; the activations, 10 bytes for each 8, about once for each block.
#include "../common/activation.cuh"
#include "grouped_small_m_args.cuh"
#include "small_m.cuh"

// Rows of weights of a unit.
constexpr int UNIT = 16;
// Warps that multiply; then those that bring weights, and one that brings activations.
constexpr int MULTIPLIERS = 8, W_COPIERS = 2, X_COPIER = MULTIPLIERS + W_COPIERS, THREADS = 32 * (X_COPIER + 1);
// Pieces that are multiplied together, and rows of activations of a slot.
constexpr int PIECES = 4, SLOT_ROWS = 8;
constexpr int MAX_STAGES = 32, MAX_FULL = 96, MAX_SLOTS = 4;

// As moe_group writes it: up to 16 rows.
struct RowTile {
  uint32_t expert;
  uint32_t first;
  uint32_t count;
  DEVICE int n_slots() const { return count > SLOT_ROWS ? 2 : 1; }
};

// Where the i-th of what a ring of n was filled with is, and how often the ring was filled before.
struct RingPlace {
  uint32_t at, use;
  DEVICE RingPlace(uint32_t i, uint32_t n) : at(i % n), use(i / n) {}
  // The next one, without the slow division.
  DEVICE void advance(uint32_t n) {
    if (++at == n) at = 0, use++;
  }
};

// A block's units of one tile of rows.
struct Share {
  RowTile rows;
  int tile, first, last;  // units of the tile
};

// Calls f for each tile of rows that the block has units of.
template <class F>
DEVICE void for_each_share(const GroupedSmallMArgs& a, F f) {
  const uint64_t total = static_cast<uint64_t>(*a.n_filled) * a.n_units, n_blocks = gridDim.x;
  uint64_t at = total * blockIdx.x / n_blocks;
  const uint64_t end = total * (blockIdx.x + 1) / n_blocks;
#pragma unroll 1
  while (at < end) {
    Share s;
    s.tile = static_cast<int>(at / a.n_units);
    s.first = static_cast<int>(at - static_cast<uint64_t>(s.tile) * a.n_units);
    s.last = static_cast<int>(min(static_cast<uint64_t>(a.n_units), s.first + (end - at)));
    s.rows = a.tiles[s.tile];
    f(s);
    at += s.last - s.first;
  }
}

// The rings in shared memory, and their barriers: whether a stage or slot is full, and whether warps are done with it.
struct Block {
  uint8_t* ring;
  uint8_t* slots;
  uint64_t *w_full, *w_empty, *x_full, *x_empty;
  uint32_t* table;
  uint32_t stage_bytes, slot_bytes;
};

// Copies n rows, in one piece where they lie so.
DEVICE void copy_rows(const GroupedSmallMArgs& a, ptx::SharedAddress to, const uint8_t* from, uint32_t bytes, int n, ptx::SharedAddress full,
                      int copier) {
  const uint32_t pitch = a.pitch;
  if (a.row_bytes == pitch && n > 0) return ptx::cp_async_bulk_evict_first(to, from, n * bytes, full, copier);
#pragma unroll 4
  for (int i = 0; i < n; i++) ptx::cp_async_bulk_evict_first(to + i * pitch, from + i * a.row_bytes, bytes, full, copier);
}

// Brings 8 rows of all units, of a gate those of one half. `number`: which of the warps this is.
DEVICE void copy_weights(const GroupedSmallMArgs& a, const Block& b, int number, int lane) {
  constexpr int ROWS = UNIT / W_COPIERS;
  const int copier = ptx::copying_lane(lane), n_groups = a.n_groups;
  const bool gate = a.gate;
  const int stride = gate ? ROWS : UNIT, skipped = gate ? 0 : number * ROWS;
  const uint8_t* w = a.w[gate ? number : 0];
  const ptx::SharedAddress ring = ptx::shared_address(b.ring) + number * ROWS * a.pitch;
  RingPlace place(0, a.n_stages), full(0, a.n_full);
  for_each_share(a, [&](const Share& s) {
    int first = s.first * stride + skipped;
    const uint8_t* of_unit = w + s.rows.expert * a.expert_bytes + static_cast<size_t>(first) * a.row_bytes;
#pragma unroll 1
    for (int unit = s.first; unit < s.last; unit++, first += stride, of_unit += stride * a.row_bytes) {
      const int n = max(min(static_cast<int>(a.n_out) - first, ROWS), 0);
      const uint8_t* from = of_unit;
#pragma unroll 1
      for (int group = 0; group < n_groups; group++, from += a.group_bytes) {
        const uint32_t bytes = group + 1 == n_groups ? a.last_bytes : a.group_bytes;
        if (place.use > 0) ptx::mbarrier_wait(b.w_empty + place.at, (place.use - 1) & 1);
        ptx::mbarrier_expect_tx(b.w_full + full.at, copier, n * bytes);
        const ptx::SharedAddress barrier = ptx::anew(ptx::shared_address(b.w_full + full.at));
        copy_rows(a, ptx::anew(ring + place.at * b.stage_bytes), from, bytes, n, barrier, copier);
        ptx::cp_async_mbarrier_arrive(b.w_full + full.at);
        place.advance(a.n_stages), full.advance(a.n_full);
      }
    }
  });
}

DEVICE void copy_activations(const GroupedSmallMArgs& a, const Block& b, int lane) {
  uint32_t i = 0;
  for_each_share(a, [&](const Share& s) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(a.x) + static_cast<size_t>(s.tile) * 2 * b.slot_bytes;
#pragma unroll 1
    for (int slot = 0; slot < s.rows.n_slots(); slot++, from += b.slot_bytes) {
      const RingPlace place(i++, a.n_slots);
      if (place.use > 0) ptx::mbarrier_wait(b.x_empty + place.at, (place.use - 1) & 1);
      ptx::mbarrier_expect_tx(b.x_full + place.at, lane, b.slot_bytes);
      ptx::cp_async_bulk(b.slots + place.at * b.slot_bytes, from, b.slot_bytes, b.x_full + place.at, lane);
      ptx::cp_async_mbarrier_arrive(b.x_full + place.at);
    }
  });
}

// Stores the sums of a unit with the rows of a slot.
DEVICE void store(const GroupedSmallMArgs& a, const Share& s, int unit, int slot, const float (&sums)[4], int lane) {
  const int g = lane / 4, n_out = a.n_out, row = slot * SLOT_ROWS + lane % 4 * 2;
  const bool gate = a.gate;
  const int out = gate ? unit * (UNIT / 2) + g : unit * UNIT + g;
  float bias[2] = {};
  if (a.bias && out < n_out) {
    const float* from = a.bias + static_cast<size_t>(s.rows.expert) * 2 * n_out + out;
    bias[0] = from[0], bias[1] = from[n_out];
  }
  float* y = a.y + static_cast<size_t>(s.rows.first + row) * n_out + out;
#pragma unroll
  for (int i = 0; i < 2; i++, y += n_out) {
    if (row + i >= static_cast<int>(s.rows.count)) break;
    if (gate) {
      if (out < n_out) *y = gate_one(a.activation, sums[i] + bias[0], sums[2 + i] + bias[1]);
    } else {
      if (out < n_out) y[0] = sums[i];
      if (out + 8 < n_out) y[8] = sums[2 + i];
    }
  }
}

// The sums of a unit, whose first group is the i-th that the ring is filled with, with the rows of N slots.
template <class Packed, int N>
DEVICE void multiply_unit(const GroupedSmallMArgs& a, const Block& b, const XBlock* const (&x)[N], uint32_t i, float (&sums)[N][4], int lane) {
  const int n_groups = a.n_groups, n_blocks = a.n_blocks;
#pragma unroll 1
  for (int group = 0; group < n_groups; group++, i++) {
    const RingPlace full(i, a.n_full), place(i, a.n_stages);
    ptx::mbarrier_wait(b.w_full + full.at, full.use & 1);
    const uint8_t* stage = b.ring + place.at * b.stage_bytes;
    const int size = min(static_cast<int>(a.n_pieces) - group * GROUP, GROUP), end = min(n_blocks, (group + 1) * (GROUP / PIECES));
#pragma unroll 1
    for (int block = group * (GROUP / PIECES); block < end; block++) {
      Columns<8> columns[N];
#pragma unroll
      for (int n = 0; n < N; n++) columns[n].take(x[n] + block, lane);
      float of_block[N][4];
      multiply_columns<Packed, 8, N, true>(of_block, stage, a.pitch, size, block % (GROUP / PIECES) * PIECES, columns, b.table, lane);
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sums[n][j] += of_block[n][j];
      }
    }
    __syncwarp();
    ptx::count(b.w_empty + place.at, lane);
  }
}

// Multiplies a warp's units of a share, of which the block has had `n_before`, with the rows of N slots.
template <class Packed, int N>
DEVICE void multiply_share(const GroupedSmallMArgs& a, const Share& s, const Block& b, uint32_t n_before, const XBlock* const (&x)[N], int warp,
                           int lane) {
  // The next of the block's units that is the warp's.
  int unit = s.first + static_cast<int>((warp - n_before) % MULTIPLIERS);
#pragma unroll 1
  for (; unit < s.last; unit += MULTIPLIERS) {
    float sums[N][4] = {};
    multiply_unit<Packed, N>(a, b, x, (n_before + (unit - s.first)) * a.n_groups, sums, lane);
#pragma unroll
    for (int n = 0; n < N; n++) store(a, s, unit, n, sums[n], lane);
  }
}

template <class Packed>
DEVICE void multiply(const GroupedSmallMArgs& a, const Block& b, int warp, int lane) {
  uint32_t n_before = 0, n_slots_before = 0;
  for_each_share(a, [&](const Share& s) {
    const XBlock* x[2];
    const int n_slots = s.rows.n_slots();
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const RingPlace place(n_slots_before + i, a.n_slots);
      if (i < n_slots) ptx::mbarrier_wait(b.x_full + place.at, place.use & 1);
      x[i] = reinterpret_cast<const XBlock*>(b.slots + place.at * b.slot_bytes);
    }
    if (n_slots == 1) multiply_share<Packed, 1>(a, s, b, n_before, {x[0]}, warp, lane);
    else multiply_share<Packed, 2>(a, s, b, n_before, x, warp, lane);
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < n_slots; i++) ptx::count(b.x_empty + RingPlace(n_slots_before + i, a.n_slots).at, lane);
    n_before += s.last - s.first, n_slots_before += n_slots;
  });
}

template <class Packed>
DEVICE void grouped_small_m(const GroupedSmallMArgs& a) {
  DYNAMIC_SHARED(shared);
  __shared__ uint64_t w_full[MAX_FULL], w_empty[MAX_STAGES], x_full[MAX_SLOTS], x_empty[MAX_SLOTS];
  __shared__ uint32_t table[Packed::TABLE > 0 ? Packed::TABLE : 1];
  ptx::launch_dependents();
  const int lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0);
  Block b;
  b.stage_bytes = UNIT * a.pitch, b.slot_bytes = a.n_blocks * sizeof(XBlock);
  b.slots = shared, b.ring = shared + a.n_slots * b.slot_bytes;
  b.w_full = w_full, b.w_empty = w_empty, b.x_full = x_full, b.x_empty = x_empty, b.table = table;
  if (warp == X_COPIER) {
#pragma unroll 1
    for (int i = 0; i < static_cast<int>(a.n_full); i++) ptx::barrier_init(w_full + i, lane, W_COPIERS);
#pragma unroll 1
    for (int i = 0; i < static_cast<int>(a.n_stages); i++) ptx::counter_init(w_empty + i, lane, 1);
#pragma unroll 1
    for (int i = 0; i < static_cast<int>(a.n_slots); i++) ptx::barrier_init(x_full + i, lane), ptx::counter_init(x_empty + i, lane, MULTIPLIERS);
    ptx::fence_mbarrier_init();
  }
  fill_table<Packed>(table, threadIdx.x, THREADS);
  __syncthreads();
  ptx::griddepcontrol_wait();
  if (warp < MULTIPLIERS) multiply<Packed>(a, b, warp, lane);
  else if (warp < X_COPIER) copy_weights(a, b, warp - MULTIPLIERS, lane);
  else copy_activations(a, b, lane);
}

#define GROUPED_SMALL_M(Q) \
  KERNEL_1(grouped_small_m_##Q, GroupedSmallMArgs, THREADS) { grouped_small_m<Packed_##Q>(a); }
FOR_EACH_PACKED(GROUPED_SMALL_M)

// Rounds rows of activations, normalized where a norm comes before, and puts each in the places of all tiles that want it. A block converts a
// row, a warp of it some blocks of 256 columns.
constexpr int HELD = 2, MOST_WARPS = 16;

KERNEL(grouped_small_m_activations, GroupedSmallMActivationArgs, 32 * MOST_WARPS) {
  __shared__ float squares[HELD * MOST_WARPS];
  ptx::launch_dependents();
  const uint32_t n = a.n, n_blocks = a.n_blocks, n_warps = blockDim.x / 32, warp = threadIdx.x / 32, k = threadIdx.x % 32 * 8;
  float v[HELD][8];
  ptx::griddepcontrol_wait();
  const float* x = a.x + static_cast<size_t>(a.x_rows ? a.x_rows[blockIdx.x] : blockIdx.x) * n;
#pragma unroll
  for (int h = 0; h < HELD; h++) {
    const uint32_t at = (h * n_warps + warp) * 256 + k;
#pragma unroll
    for (int j = 0; j < 8; j++) v[h][j] = 0;
    if (at < n) load8_fresh(v[h], x + at);
    if (a.weight) {
      float w[8] = {}, sum = 0;
      if (at < n) load8_fresh(w, a.weight + at);
#pragma unroll
      for (int j = 0; j < 8; j++) sum += v[h][j] * v[h][j], v[h][j] *= w[j];
      sum = warp_sum(sum);
      if (k == 0) squares[h * n_warps + warp] = sum;
    }
  }
  if (a.weight) __syncthreads();
  const float factor = a.weight ? norm_factor(squares, n_blocks, 1.0f / n, a.eps) : 1.0f;
  const uint32_t n_places = a.n_places;
#pragma unroll
  for (int h = 0; h < HELD; h++) {
    const uint32_t block = h * n_warps + warp;
    if (block >= n_blocks) break;
    const Rounded rounded = round_eight(v[h], a.of_32);
#pragma unroll 1
    for (uint32_t p = 0; p < n_places; p++) {
      const uint32_t place = a.places[blockIdx.x * n_places + p];
      put_rounded(a.y[static_cast<size_t>(place / SLOT_ROWS) * n_blocks + block], place % SLOT_ROWS, k, rounded, rounded.scale * factor, false);
    }
  }
}
