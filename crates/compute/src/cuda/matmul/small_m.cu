// Matmuls of M in 2..=8 rows of activations with packed weights on the integer tensor cores: 16 rows of weights, unpacked to 8 bits, times 8
// columns of activations, rounded to 8 bits, for the K types in blocks of 256, for others in blocks of 32.
//
// A block owns a contiguous range of outputs of one part of the matrix, as in gemv.cu. A unit of its work is a group (packed.cuh) of 16
// rows of weights. Eight warps, a team, share a unit: each multiplies four pieces of the group, whose activations it keeps in registers
// while the team goes down the rows with one group, and leaves its sums in place of weights that it multiplied. Two teams take groups in
// pairs. One more warp adds up what the warps of a team have left, in one order: an output does not depend on the other rows of
// activations.
//
// The last warp keeps a ring of units in shared memory filled, from before the kernel before has ended, since weights do not depend on
// it. An SM has room for one block, and beside it for those that round activations for the next matmul.
//
// Moves: the weights once; the activations, a byte each and 64 for each 256, once for each block.
#include "gemm.cuh"
#include "small_m.cuh"
#include "small_m_args.cuh"

// Rows of a unit.
constexpr int TILE = 16;
// Teams, warps of one, and pieces of a group that each warp has.
constexpr int TEAMS = 2, TEAM = 8, PIECES = 4;
// Warps that multiply; then one that adds up, and one that copies.
constexpr int MULTIPLIERS = TEAMS * TEAM, ADDER = MULTIPLIERS, COPIER = MULTIPLIERS + 1, THREADS = 32 * (MULTIPLIERS + 2);
// The ring has an even number of stages, so that one always has units of the same team.
constexpr int MAX_STAGES = 8;
// Numbers that sums will be added to, of which so many are read before the end.
constexpr int EARLY = 256;

// Where a block's things are in shared memory, and what its work is.
struct SmallMBlock {
  uint8_t* ring;
  float* x_scales;                // [MULTIPLIERS, X_SCALES]
  float *early, *factors, *sums;  // [EARLY], [8], [tiles, rows of a tile, 8]
  float* totals;                  // as `sums`, those of parts of the columns that are over
  uint32_t* table;                // of the part's type
  uint64_t *full, *done, *empty;  // of each stage: it is copied, its team is done, its sums are added up
  // Of the part: the first output, and how many; tiles, which with a gate have 8 rows of its own and then those of up.
  int first, n_own, own_tile, n_tiles, n_groups;
  unsigned pitch;
  bool gate;
};

// Calls f(group, tile, stage, use) for units as they stand in the ring: group by group, but pairs of groups by turns. `use` counts those
// of the stage before.
template <class F>
DEVICE void for_each_unit(const SmallMBlock& b, int n_stages, F f) {
  int stage = 0, use = 0;
#pragma unroll 1
  for (int pair = 0; pair < b.n_groups; pair += TEAMS) {
#pragma unroll 1
    for (int tile = 0; tile < b.n_tiles; tile++) {
#pragma unroll 1
      for (int group = pair; group < min(pair + TEAMS, b.n_groups); group++) {
        f(group, tile, stage, use);
        if (++stage == n_stages) stage = 0, use++;
      }
    }
  }
}

DEVICE void copy_units(const SmallMArgs& a, const SmallMPart& part, const SmallMBlock& b, unsigned lane) {
  const int copier = ptx::copying_lane(lane);
  const uint8_t* first_row = part.w + static_cast<size_t>(b.first) * part.row_bytes;
  const int64_t to_up = b.gate ? a.parts[1].w - part.w : 0;
  const ptx::SharedAddress ring = ptx::anew(ptx::shared_address(b.ring));
  for_each_unit(b, a.n_stages, [&](int group, int tile, int stage, int use) {
    if (use > 0) ptx::mbarrier_wait(b.empty + stage, (use - 1) & 1);
    const int n = min(b.n_own - tile * b.own_tile, b.own_tile);
    const uint32_t bytes = group + 1 == b.n_groups ? part.last_bytes : part.group_bytes;
    const size_t row = static_cast<size_t>(tile) * b.own_tile;
    const uint8_t* from = first_row + row * part.row_bytes + static_cast<size_t>(group) * part.group_bytes;
    ptx::SharedAddress to = ring + stage * (TILE * b.pitch);
    const ptx::SharedAddress barrier = ptx::anew(ptx::shared_address(b.full + stage));
    ptx::mbarrier_expect_tx(b.full + stage, copier, (b.gate ? 2 * n : n) * bytes);
#pragma unroll 1
    for (int half = 0; half <= static_cast<int>(b.gate); half++) {
#pragma unroll 4
      for (int i = 0; i < n; i++) ptx::cp_async_bulk_evict_first(to + i * b.pitch, from + i * part.row_bytes, bytes, barrier, copier);
      to += TILE / 2 * b.pitch, from += to_up;
    }
    ptx::cp_async_mbarrier_arrive(b.full + stage);
  });
}

// Adds up what the warps of teams leave of each unit: a lane has four sums. First it finds what the end will want.
DEVICE void add_units(const SmallMArgs& a, const SmallMPart& part, const SmallMBlock& b, unsigned lane) {
  const int n_blocks = a.n_in / 256, m = a.m;
  // Addresses take longer than loads.
  const float* early[EARLY / 32];
#pragma unroll
  for (int i = 0; i < EARLY / 32; i++) {
    const int k = i * 32 + lane;
    const float* y = a.y + static_cast<size_t>(k % m) * a.y_stride + part.first_out + b.first;
    early[i] = a.epilogue == ADD && k < b.n_own * m ? y + k / m : nullptr;
  }
  ptx::griddepcontrol_wait();
  float to_add[EARLY / 32];
#pragma unroll
  for (int i = 0; i < EARLY / 32; i++) to_add[i] = early[i] ? __ldcg(early[i]) : 0.0f;
#pragma unroll
  for (int i = 0; i < EARLY / 32; i++) b.early[i * 32 + lane] = to_add[i];
  if (a.squares) {
    // Four lanes have a row.
    const int j = lane / 4;
    const float factor = norm_factor(a.squares, j < m ? j : -1, n_blocks, lane % 4, a.inv_n, a.eps);
    if (lane % 4 == 0) b.factors[j] = factor;
  }
  const int part_blocks = a.part_blocks;
  for_each_unit(b, a.n_stages, [&](int group, int tile, int stage, int use) {
    ptx::mbarrier_wait(b.done + stage, use & 1);
    const int n_busy = min(n_blocks - group * TEAM, TEAM);
    const uint8_t* from = b.ring + (stage * TILE + lane / 2) * b.pitch + lane % 2 * 16;
    float4* to = reinterpret_cast<float4*>(b.sums + tile * (TILE * 8)) + lane;
    float4 sum = group == 0 ? float4{0, 0, 0, 0} : *to;
    const auto add = [&](int j) {
      const float4 v = *reinterpret_cast<const float4*>(from + j * PIECES * 16);
      sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    };
    if (part_blocks == 0) {
#pragma unroll 8
      for (int j = 0; j < n_busy; j++) add(j);
    } else {
      float4* to_total = reinterpret_cast<float4*>(b.totals + tile * (TILE * 8)) + lane;
      float4 total = group == 0 ? float4{0, 0, 0, 0} : *to_total;
      int of_part = group * TEAM % part_blocks;
#pragma unroll 8
      for (int j = 0; j < n_busy; j++) {
        if (of_part == 0) {
          total.x += sum.x, total.y += sum.y, total.z += sum.z, total.w += sum.w;
          sum = float4{0, 0, 0, 0};
        }
        add(j);
        if (++of_part == part_blocks) of_part = 0;
      }
      *to_total = total;
    }
    *to = sum;
    ptx::fence_proxy_async_shared();
    __syncwarp();
    ptx::count(b.empty + stage, lane);
  });
}

template <class Packed, int R>
DEVICE void multiply_units(const SmallMArgs& a, const SmallMBlock& b, int team, int member, unsigned lane) {
  const int n_blocks = a.n_in / 256, n_groups = b.n_groups, n_stages = a.n_stages;
  int stage = team;
  uint32_t parity = 0;
#pragma unroll 1
  for (int pair = 0; pair < n_groups; pair += TEAMS) {
    // A group without a partner is shared by tiles.
    const bool alone = pair + 1 == n_groups;
    const int group = alone ? pair : pair + team, n_busy = min(n_blocks - group * TEAM, TEAM);
    Columns<R> columns[1];
    if (member < n_busy) columns[0].load(a.x + group * TEAM + member, b.x_scales + (team * TEAM + member) * X_SCALES, lane);
#pragma unroll 1
    for (int tile = alone ? team : 0; tile < b.n_tiles; tile += alone ? TEAMS : 1) {
      ptx::mbarrier_wait(b.full + stage, parity);
      if (member < n_busy) {
        uint8_t* of = b.ring + stage * (TILE * b.pitch);
        float all[1][4];
        // As the launcher has it.
        constexpr unsigned PITCH = (Packed::bytes(GROUP) / 16 | 1) * 16;
        multiply_columns<Packed, R, 1, false>(all, of, PITCH, n_busy * PIECES, member * PIECES, columns, b.table, lane);
        const float(&sums)[4] = all[0];
        // In each row the first 16 bytes of the warp's pieces make room for the sums.
        __syncwarp();
        uint8_t* to = of + ptx::anew(lane) / 4 * b.pitch + member * PIECES * 16 + ptx::anew(lane) % 4 * 8;
        *reinterpret_cast<float2*>(to) = float2{sums[0], sums[1]};
        *reinterpret_cast<float2*>(to + 8 * b.pitch) = float2{sums[2], sums[3]};
        __syncwarp();
      }
      ptx::count(b.done + stage, lane);
      stage += TEAMS;
      if (stage >= n_stages) stage -= n_stages, parity ^= 1;
    }
  }
}

// The part that a block has outputs of.
DEVICE uint32_t part_of_block(const SmallMArgs& a) {
  uint32_t p = 0;
  if (a.epilogue != GATE) {
    while (p + 1 < a.n_parts && blockIdx.x >= a.parts[p + 1].first_block) p++;
  }
  return p;
}

// The block's work in its part, and where its things are in shared memory. The barriers are the kernel's.
DEVICE SmallMBlock block_of(const SmallMArgs& a, uint32_t p, unsigned char* shared) {
  const SmallMPart& part = a.parts[p];
  const bool gate = a.epilogue == GATE;
  const uint32_t end = gate || p + 1 == a.n_parts ? a.n_blocks : a.parts[p + 1].first_block;
  const uint64_t block = blockIdx.x - part.first_block, n_blocks = end - part.first_block;
  const int first = static_cast<int>(part.n_out * block / n_blocks), last = static_cast<int>(part.n_out * (block + 1) / n_blocks);
  SmallMBlock b;
  b.first = first, b.n_own = last - first, b.own_tile = gate ? TILE / 2 : TILE, b.n_tiles = ceil_div(b.n_own, b.own_tile);
  b.n_groups = ceil_div(a.n_in / 64, GROUP), b.pitch = part.pitch, b.gate = gate;
  b.ring = shared;
  b.x_scales = reinterpret_cast<float*>(shared + a.n_stages * (TILE * b.pitch));
  b.early = b.x_scales + MULTIPLIERS * X_SCALES;
  b.sums = b.early + EARLY, b.totals = b.sums + b.n_tiles * (TILE * 8);
  return b;
}

// The epilogue: sums of the sets of columns, the norm's factor, bias, what is there or gate · up.
template <int R>
DEVICE void store(const SmallMArgs& a, const SmallMPart& part, const SmallMBlock& b, unsigned tid) {
  const int m = a.m;
  const auto total = [&](int row, int j) {
    float sum = 0;
#pragma unroll
    for (int column = 0; column < 8; column += R) sum += b.sums[row * 8 + column + j];
    if (a.part_blocks > 0) sum = b.totals[row * 8 + j] + sum;
    return __fmul_rn(sum, a.squares ? b.factors[j] : 1.0f);
  };
#pragma unroll 1
  for (int i = tid; i < b.n_own * m; i += THREADS) {
    const int row = i / m, j = i % m;
    float* y = a.y + static_cast<size_t>(j) * a.y_stride;
    int out = b.first + row;
    float sum;
    if (b.gate) {
      const int at = row / 8 * 16 + row % 8;
      sum = activate_gate(a.activation, total(at, j)) * total(at + 8, j);
    } else {
      sum = total(row, j);
      out += part.first_out;
      if (a.bias) sum += a.bias[out];
      if (a.epilogue == ADD) sum += i < EARLY ? b.early[i] : __ldcg(y + out);
    }
    y[out] = sum;
  }
}

template <int R>
DEVICE void small_m(const SmallMArgs& a) {
  DYNAMIC_SHARED(shared);
  ptx::launch_dependents();
  __shared__ uint64_t full[MAX_STAGES], done[MAX_STAGES], empty[MAX_STAGES];
  __shared__ float factors[8];
  __shared__ uint32_t table[MAX_TABLE];
  const unsigned tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0);
  const uint32_t p = part_of_block(a);
  const SmallMPart& part = a.parts[p];
  SmallMBlock b = block_of(a, p, shared);
  b.full = full, b.done = done, b.empty = empty, b.factors = factors, b.table = table;
  if (warp == COPIER) {
#pragma unroll 1
    for (int s = 0; s < static_cast<int>(a.n_stages); s++) {
      ptx::barrier_init(full + s, lane), ptx::counter_init(done + s, lane, TEAM), ptx::counter_init(empty + s, lane, 1);
    }
    ptx::fence_mbarrier_init();
  }
#define FILL_TABLE(Q) \
  case LAYOUT_##Q: fill_table<Packed_##Q>(table, tid, THREADS); break;
  switch (part.layout) { FOR_EACH_PACKED(FILL_TABLE) }
#undef FILL_TABLE
  __syncthreads();
  if (warp == COPIER) {
    copy_units(a, part, b, lane);
  } else if (warp == ADDER) {
    add_units(a, part, b, lane);
  } else {
    ptx::griddepcontrol_wait();
#define MULTIPLY_UNITS(Q) \
  case LAYOUT_##Q: multiply_units<Packed_##Q, R>(a, b, warp / TEAM, warp % TEAM, lane); break;
    switch (part.layout) { FOR_EACH_PACKED(MULTIPLY_UNITS) }
#undef MULTIPLY_UNITS
  }
  __syncthreads();
  store<R>(a, part, b, tid);
}

// So many registers that the kernels that round activations find room.
KERNEL_OF(small_m_2, SmallMArgs, 96) { small_m<2>(a); }
KERNEL_OF(small_m_4, SmallMArgs, 96) { small_m<4>(a); }
KERNEL_OF(small_m_8, SmallMArgs, 96) { small_m<8>(a); }

// Rounds rows of activations. A block of one warp converts 256 columns of a row: small, so that it finds room beside a matmul's.
KERNEL(small_m_activations, SmallMActivationArgs, 32) {
  ptx::launch_dependents();
  const unsigned n_blocks = a.n / 256, row = blockIdx.x / n_blocks, block = blockIdx.x % n_blocks, k = threadIdx.x * 8;
  float w[8], v[8];
  if (a.weight) load8_fresh(w, a.weight + block * 256 + k);
  ptx::griddepcontrol_wait();
  load8_fresh(v, a.x + static_cast<size_t>(row) * a.n + block * 256 + k);
  if (a.weight) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += v[i] * v[i], v[i] *= w[i];
    squares = warp_sum(squares);
    if (threadIdx.x == 0) a.squares[blockIdx.x] = squares;
  }
  const Rounded rounded = round_eight(v, a.of_32);
  const unsigned slot = row / 8, of_tile = slot & (a.tile_slots - 1);
  put_rounded(a.y[(slot - of_tile) * n_blocks + block * a.tile_slots + of_tile], row % 8, k, rounded, rounded.scale, a.for_wgmma);
}
