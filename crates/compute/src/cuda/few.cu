// Products of 2 to 8 rows of activations with packed weights on the tensor cores' integers: 16 rows of weights, unpacked to 8 bits, times 8
// rows of activations, rounded to 8 bits in blocks of 32.
//
// A block owns a contiguous range of outputs of one part of the matrix, as in matvec.cu. A unit of its work is a group (packed.cuh) of 16
// rows of weights. Eight warps, a team, share a unit: each multiplies four pieces of the group, whose activations it keeps in registers
// while the team goes down the rows with one group. Then their sums, which take the place of weights that were multiplied, are added up in one
// order: an output does not depend on the other rows of activations. Two teams take groups in pairs.
//
// One more warp keeps a ring of units in shared memory filled, from before the kernel before has ended, since weights do not depend on it. A
// multiprocessor has room for one block, and beside it for those that round activations for the next product.
//
// Moves: the weights once; the activations, a byte each and 16 bytes for each 256, once for each block.
#include "gemm.cuh"
#include "packed.cuh"

constexpr int MAX_PARTS = 4;
// Rows of a unit.
constexpr int TILE = 16;
// Teams, warps of one, and pieces of a group that each warp has.
constexpr int TEAMS = 2, TEAM = 8, PIECES = 4;
// Threads that multiply; a block has 32 more.
constexpr int MULTIPLIERS = 32 * TEAM * TEAMS;
// The ring has an even number of stages, so that one always has units of the same team.
constexpr int MAX_STAGES = 6;

enum Layout : uint32_t { LAYOUT_F16, LAYOUT_BF16, LAYOUT_Q4_0, LAYOUT_Q8_0, LAYOUT_Q4_K, LAYOUT_Q5_K, LAYOUT_Q6_K };

// 256 activations of 8 rows, as lanes (g, t) want them: with g = lane / 4 a row, t = lane % 4.
struct XBlock {
  // Of each 32, the integers 4 t to 4 t + 3 of both 16.
  uint2 q[8][32];
  // Of each 32, for each row, what its integers are to be multiplied with.
  float scale[8][8];
  // Sums of the activations of 32, those of piece t: each as two bfloat16, the second the rest of the first; x has the firsts.
  uint2 sums[32];
};

struct FewPart {
  const uint8_t* w;      // [n_out] rows of `row_bytes`
  uint64_t row_bytes;
  uint32_t layout;
  uint32_t first_out;    // of the whole matrix
  uint32_t n_out;
  uint32_t first_block;  // blocks `first_block` to the next part's own it
  uint32_t group_bytes, last_bytes;  // of a row's groups, and of its last one
  // From a row of a unit to the next one's, so that sixteen bytes of each of eight rows are in different banks.
  uint32_t pitch;
};

struct FewArgs {
  float* y;              // [m, y_stride]
  const XBlock* x;       // [n_in / 256]
  // [m, n_in / 256]: sums of squares of what is to be normalized (root mean square); or null, as with ADD.
  const float* squares;
  const float* bias;     // [n_out] or null
  FewPart parts[MAX_PARTS];
  uint32_t n_parts, n_blocks;
  uint32_t n_in, m, y_stride;
  uint32_t n_stages;     // of the ring
  uint32_t epilogue;     // GATE: part 0 is the gate's, part 1 up's, of one layout; y has the outputs of one
  uint32_t activation;
  float inv_n;           // 1 / n_in
  float eps;
};

// Of a type: what lanes know of one of two rows of a warp's pieces, g and g + 8, and weights as bytes. With MINS, bytes have no sign;
// UNPACKED ones lie in memory as bytes already.
//
// `take` gets where the row is, how many pieces the group has, and which of these is the lane's: lane t of each four has piece t of the
// warp's. It finds its scales, SCALES of a piece.
//
// `unpack` makes the tensor cores' first operand of 32 columns of rows g and g + 8, half h of piece `at`: from the piece's first 32 bytes, as
// `load_matrices` gives them, and from where these rows are.

// Rotates left.
DEVICE uint32_t rotate(uint32_t x, int n) { return __funnelshift_r(x, x, 32 - n & 31); }

// Scales, those of the high nibbles times a factor, and mins as two of bfloat16.
struct FewKScales {
  float scale[2], dmin;
  uint32_t mins;
  DEVICE void take(const uint8_t* row, int size, int at, float high_factor) {
    KHeader header;
    header.take(row + 32 * size + at / 4 * 16, at % 4);
    const float d = ptx::f16_to_f32(static_cast<uint16_t>(header.d));
    dmin = ptx::f16_to_f32(static_cast<uint16_t>(header.d >> 16));
    scale[0] = d * six_bits(header.bits), scale[1] = d * high_factor * six_bits(header.bits >> 12);
    mins = __byte_perm(__float_as_uint(six_bits(header.bits >> 6)), __float_as_uint(six_bits(header.bits >> 18)), 0x7632);
  }
};

// The high nibbles stay where they are: sixteen times the weights.
struct Few_Q4_K : FewKScales {
  typedef Packed_Q4_K Packed;
  static constexpr int SCALES = 2;
  static constexpr bool MINS = true, UNPACKED = false;
  DEVICE void take(const uint8_t* row, int size, int at) { FewKScales::take(row, size, at, 0.0625f); }
  DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = q[i] & (h ? 0xf0f0f0f0 : 0x0f0f0f0f);
  }
};

struct Few_Q5_K : FewKScales {
  typedef Packed_Q5_K Packed;
  static constexpr int SCALES = 2;
  static constexpr bool MINS = true, UNPACKED = false;
  DEVICE void take(const uint8_t* row, int size, int at) { FewKScales::take(row, size, at, 1.0f); }
  // Bit 8 b + j of a word of fifth bits is that of weight 4 j + b: lane t wants j = t and 4 + t.
  DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                            int t) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t fifths = *reinterpret_cast<const uint32_t*>((i % 2 ? row1 : row0) + 36 * size + at * 8 + 4 * h);
      a[i] = (h ? q[i] >> 4 & 0x0f0f0f0f : q[i] & 0x0f0f0f0f) | (rotate(fifths, 4 - i / 2 * 4 - t) & 0x10101010);
    }
  }
};

// Four times the weights, less their offset.
struct Few_Q6_K {
  typedef Packed_Q6_K Packed;
  static constexpr int SCALES = 4;
  static constexpr bool MINS = false, UNPACKED = false;
  float scale[4];
  DEVICE void take(const uint8_t* row, int size, int at) {
    const uint32_t s = *reinterpret_cast<const uint32_t*>(row + 48 * size + at * 4) ^ 0x80808080;
    const float d = 0.25f * ptx::f16_to_f32(*reinterpret_cast<const uint16_t*>(row + 52 * size + at / 4 * 2));
#pragma unroll
    for (int i = 0; i < 4; i++) scale[i] = d * (__uint_as_float(__byte_perm(s, 0x4b000000, 0x7540 + i)) - 8388736.0f);
  }
  // Bits 8 b + 2 t of word i of a piece's upper bits are those of weight 16 i + 4 t + b.
  DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t* row0, const uint8_t* row1, int size, int at,
                            int t) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const uint32_t upper = *reinterpret_cast<const uint32_t*>((i % 2 ? row1 : row0) + (2 * size + at) * 16 + 8 * h + i / 2 * 4);
      a[i] = ptx::mask_and_set(h ? q[i] >> 2 : q[i] << 2, 0x3c3c3c3c, 0x80808080) ^ (rotate(upper, 6 - 2 * t) & 0xc0c0c0c0);
    }
  }
};

// Sixteen times the weights, less their offset.
struct Few_Q4_0 {
  typedef Packed_Q4_0 Packed;
  static constexpr int SCALES = 2;
  static constexpr bool MINS = false, UNPACKED = false;
  float scale[2];
  DEVICE void take(const uint8_t* row, int size, int at) {
    const uint32_t d = *reinterpret_cast<const uint32_t*>(row + 32 * size + at * 4);
    scale[0] = 0.0625f * ptx::f16_to_f32(static_cast<uint16_t>(d)), scale[1] = 0.0625f * ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  }
  DEVICE static void unpack(uint32_t (&a)[4], const uint32_t (&q)[4], int h, const uint8_t*, const uint8_t*, int, int, int) {
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = ((h ? q[i] : q[i] << 4) & 0xf0f0f0f0) ^ 0x80808080;
  }
};

struct Few_Q8_0 {
  typedef Packed_Q8_0 Packed;
  static constexpr int SCALES = 2;
  static constexpr bool MINS = false, UNPACKED = true;
  float scale[2];
  DEVICE void take(const uint8_t* row, int size, int at) {
    const uint32_t d = *reinterpret_cast<const uint32_t*>(row + 64 * size + at * 4);
    scale[0] = ptx::f16_to_f32(static_cast<uint16_t>(d)), scale[1] = ptx::f16_to_f32(static_cast<uint16_t>(d >> 16));
  }
};

// A number as floats see it when sums begin with FLOAT_UNITS.
constexpr float UNITS = 12582912.0f;

// The activations that a warp's pieces meet.
struct Columns {
  uint2 q[2 * PIECES];
  // In shared memory: scales and sums as in XBlock.
  const float* rest;
};

// Floats there.
constexpr int REST = 128;

// The products of 16 rows of a unit with a warp's columns. `stage`: the unit; `at`: the first piece. Sums of rows g and g + 8 with activations
// 2 t and 2 t + 1.
template <class P>
DEVICE void multiply_columns(float (&sums)[4], const uint8_t* stage, int size, int at, const Columns& x, unsigned lane) {
  // As the launcher has it.
  constexpr unsigned pitch = (P::Packed::bytes(GROUP) / 16 | 1) * 16;
  const unsigned t = lane % 4;
  const uint8_t *row0 = stage + lane / 4 * pitch, *row1 = row0 + 8 * pitch;
  const uint8_t* matrices = stage + lane % 16 * pitch + (lane / 16 * size + at) * 16;
  P p[2];
  p[0].take(row0, size, at + t);
  p[1].take(row1, size, at + t);
  if constexpr (P::MINS) {
    // Twice, for the sums' first and second parts.
    const uint32_t mins[4] = {p[0].mins, p[1].mins, p[0].mins, p[1].mins};
    const uint2 x_sums = *reinterpret_cast<const uint2*>(x.rest + 64 + lane * 2);
    float d[4] = {};
    ptx::multiply_bf16(d, mins, x_sums.x, x_sums.y);
#pragma unroll
    for (int j = 0; j < 4; j++) sums[j] = -p[j / 2].dmin * d[j];
  }
#pragma unroll
  for (int i = 0; i < PIECES; i++) {
    uint32_t raw[4];
    ptx::load_matrices(raw, matrices + i * 16);
    const unsigned source = (lane & 28) + i;
#pragma unroll
    for (int h = 0; h < 2; h++) {
      uint32_t a[4];
      if constexpr (!P::UNPACKED) {
        P::unpack(a, raw, h, row0, row1, size, at + i, t);
      } else {
        // Its second 32 are bytes of their own.
        if (h == 1) ptx::load_matrices(raw, matrices + (2 * size + i) * 16);
#pragma unroll
        for (int j = 0; j < 4; j++) a[j] = raw[j];
      }
      float scale[P::SCALES / 2][2], offset[P::SCALES / 2][2];
#pragma unroll
      for (int s = 0; s < P::SCALES / 2; s++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
          scale[s][r] = __shfl_sync(ALL_LANES, p[r].scale[h * (P::SCALES / 2) + s], source);
          offset[s][r] = -UNITS * scale[s][r];
        }
      }
      const uint2 b = x.q[2 * i + h];
      const float2 x_scale = *reinterpret_cast<const float2*>(x.rest + (2 * i + h) * 8 + 2 * t);
      int d[P::SCALES / 2][4];
      if constexpr (P::SCALES == 4) {
        ptx::multiply_s8_16(d[0], a[0], a[1], b.x, FLOAT_UNITS);
        ptx::multiply_s8_16(d[1], a[2], a[3], b.y, FLOAT_UNITS);
      } else if constexpr (P::MINS) {
        ptx::multiply_u8(d[0], a, b.x, b.y, FLOAT_UNITS);
      } else {
        ptx::multiply_s8(d[0], a, b.x, b.y, FLOAT_UNITS);
      }
#pragma unroll
      for (int s = 0; s < P::SCALES / 2; s++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float product = fmaf(__int_as_float(d[s][j]), scale[s][j / 2], offset[s][j / 2]);
          sums[j] = fmaf(product, j % 2 ? x_scale.y : x_scale.x, sums[j]);
        }
      }
    }
  }
}

// A warp's activations of a group, on their way.
struct Loads {
  uint2 q[2 * PIECES];
  uint4 rest;
  DEVICE void begin(const FewArgs& a, int group, int member, unsigned lane) {
    const int first_piece = group * GROUP + member * PIECES;
    const bool some = first_piece * 64 < static_cast<int>(a.n_in);
    const XBlock* x = a.x + first_piece / PIECES;
#pragma unroll
    for (int i = 0; i < 2 * PIECES; i++) q[i] = some ? __ldcg(&x->q[i][lane]) : uint2{0, 0};
    rest = some ? __ldcg(reinterpret_cast<const uint4*>(x->scale) + lane) : uint4{0, 0, 0, 0};
  }
  // Hands them over. `to_rest` is the warp's.
  DEVICE void end(Columns& to, float* to_rest, unsigned lane) const {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * PIECES; i++) to.q[i] = q[i];
    reinterpret_cast<uint4*>(to_rest)[ptx::anew(lane)] = rest;
    to.rest = to_rest;
    __syncwarp();
  }
};

// Where a block's things are in shared memory, and what its work is.
struct FewBlock {
  uint8_t* ring;
  float *rest, *early, *sums;  // [warps, REST], [MULTIPLIERS], [TEAMS, tiles, rows of a tile, 8]
  uint64_t *full, *empty;      // of each stage
  // Of the part: the first output, and how many; tiles, which with a gate have 8 rows of its own and then those of up.
  int first, n_own, own_tile, n_tiles, n_groups;
  unsigned pitch;
  bool gate;
};

// Units are numbered group by group, but pairs of groups by turns. Copies them, by one warp.
DEVICE void copy_units(const FewArgs& a, const FewPart& part, const FewBlock& b, unsigned lane) {
  const int copier = ptx::copying_lane(lane), n_stages = a.n_stages;
  const uint8_t* first_row = part.w + static_cast<size_t>(b.first) * part.row_bytes;
  const int64_t to_up = b.gate ? a.parts[1].w - part.w : 0;
  int stage = 0, unit = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int pair = 0; pair < b.n_groups; pair += TEAMS) {
    const uint8_t* row = first_row;
#pragma unroll 1
    for (int tile = 0; tile < b.n_tiles; tile++) {
      const int n = min(b.n_own - tile * b.own_tile, b.own_tile);
#pragma unroll 1
      for (int group = pair; group < min(pair + TEAMS, b.n_groups); group++) {
        const uint32_t bytes = group + 1 == b.n_groups ? part.last_bytes : part.group_bytes;
        if (unit >= n_stages) ptx::wait_for_count(b.empty + stage, parity);
        uint64_t* barrier = b.full + stage;
        uint8_t* to = b.ring + stage * (TILE * b.pitch);
        const uint8_t* from = row + static_cast<size_t>(group) * part.group_bytes;
        ptx::expect_bytes(barrier, copier, (b.gate ? 2 * n : n) * bytes);
#pragma unroll 1
        for (int half = 0; half <= static_cast<int>(b.gate); half++) {
#pragma unroll 4
          for (int i = 0; i < n; i++) ptx::copy_bytes(to + i * b.pitch, from + i * part.row_bytes, bytes, barrier, copier);
          to += TILE / 2 * b.pitch, from += to_up;
        }
        ptx::copies_are_begun(barrier);
        unit++;
        if (++stage == n_stages) stage = 0, parity ^= 1;
      }
      row += b.own_tile * part.row_bytes;
    }
  }
}

DEVICE void multiply_units(const FewArgs& a, const FewPart& part, const FewBlock& b, int warp, unsigned lane, Loads& loads) {
  const int team = warp / TEAM, member = warp % TEAM, n_pieces = a.n_in / 64, n_groups = b.n_groups, n_stages = a.n_stages;
  float* rest = b.rest + warp * REST;
  float* team_sums = b.sums + team * b.n_tiles * (TILE * 8);
  Columns columns;
  int stage = team;
  uint32_t parity = 0;
  // Units so far, modulo 4: two warps in turn add up.
  int count = 0;
#pragma unroll 1
  for (int pair = 0; pair < n_groups; pair += TEAMS) {
    // A group without a partner is shared by tiles.
    const bool alone = pair + 1 == n_groups;
    const int group = alone ? pair : pair + team;
    loads.end(columns, rest, lane);
    const int next = pair + TEAMS + 1 == n_groups ? n_groups - 1 : pair + TEAMS + team;
    loads.begin(a, next, member, lane);
    const int size = min(n_pieces - group * GROUP, GROUP), n_busy = size / PIECES;
#pragma unroll 1
    for (int tile = alone ? team : 0; tile < b.n_tiles; tile += alone ? 2 : 1) {
      ptx::wait_for_phase(b.full + stage, parity);
      uint8_t* of = b.ring + stage * (TILE * b.pitch);
      if (member < n_busy) {
        float partial[4] = {};
#define MULTIPLY_COLUMNS(layout, P) \
  case layout: multiply_columns<P>(partial, of, size, member * PIECES, columns, lane); break;
        switch (part.layout) {
          MULTIPLY_COLUMNS(LAYOUT_Q4_0, Few_Q4_0)
          MULTIPLY_COLUMNS(LAYOUT_Q8_0, Few_Q8_0)
          MULTIPLY_COLUMNS(LAYOUT_Q4_K, Few_Q4_K)
          MULTIPLY_COLUMNS(LAYOUT_Q5_K, Few_Q5_K)
          default: multiply_columns<Few_Q6_K>(partial, of, size, member * PIECES, columns, lane);
        }
        // In each row the first 16 bytes of the warp's pieces make room for the sums.
        __syncwarp();
        uint8_t* to = of + ptx::anew(lane) / 4 * b.pitch + member * PIECES * 16 + ptx::anew(lane) % 4 * 8;
        *reinterpret_cast<float2*>(to) = float2{partial[0], partial[1]};
        *reinterpret_cast<float2*>(to + 8 * b.pitch) = float2{partial[2], partial[3]};
      }
      ptx::sync_threads<TEAM * 32>(1 + team);
      if (member / 2 == count) {
        // Lanes share out 8 rows, and of each 8 sums.
        const int row = member % 2 * 8 + ptx::anew(lane) / 4, column = ptx::anew(lane) % 4 * 2;
        const uint8_t* from = of + row * b.pitch + column * 4;
        float2* to = reinterpret_cast<float2*>(team_sums + (tile * TILE + row) * 8 + column);
        float2 sum = *to;
#pragma unroll 8
        for (int j = 0; j < n_busy; j++) {
          const float2 v = *reinterpret_cast<const float2*>(from + j * PIECES * 16);
          sum.x += v.x, sum.y += v.y;
        }
        *to = sum;
        // Nobody needs the stage any more.
        ptx::give_to_copies();
        __syncwarp();
        ptx::count(b.empty + stage, lane);
      }
      count = (count + 1) % 4;
      stage += TEAMS;
      if (stage >= n_stages) stage -= n_stages, parity ^= 1;
    }
  }
}

DEVICE void multiply(const FewArgs& a, const FewPart& part, const FewBlock& b) {
  const unsigned tid = threadIdx.x, lane = tid % 32;
  const int warp = __shfl_sync(ALL_LANES, tid / 32, 0), m = a.m;
  if (warp == TEAM * TEAMS) {
#pragma unroll 1
    for (int s = 0; s < static_cast<int>(a.n_stages); s++) ptx::barrier_init(b.full + s, lane), ptx::counter_init(b.empty + s, lane, 2);
    ptx::barriers_are_ready();
  }
  __syncthreads();
  if (warp == TEAM * TEAMS) return copy_units(a, part, b, lane);

#pragma unroll 1
  for (int i = tid; i < TEAMS * b.n_tiles * TILE * 8; i += MULTIPLIERS) b.sums[i] = 0;
  ptx::wait_for_previous_kernel();
  // What the end wants: what sums will be added to, or their rows' squares; there is no norm where sums are added.
  const int n_y = b.n_own * m, squares = a.squares ? a.n_in / 256 : 0, n_squares = m * squares;
  float wanted = 0;
  if (a.epilogue == ADD && static_cast<int>(tid) < n_y) {
    wanted = __ldcg(a.y + static_cast<size_t>(tid % m) * a.y_stride + part.first_out + b.first + tid / m);
  } else if (static_cast<int>(tid) < n_squares) {
    wanted = __ldcg(a.squares + tid);
  }
  Loads loads;
  loads.begin(a, b.n_groups == 1 ? 0 : warp / TEAM, warp % TEAM, lane);
  b.early[tid] = wanted;
  // Nobody adds to sums that are yet to be made zero.
  ptx::sync_threads<MULTIPLIERS>(3);
  multiply_units(a, part, b, warp, lane, loads);
  ptx::sync_threads<MULTIPLIERS>(3);

  const auto total = [&](int row, int j) {
    const float* of = b.sums + row * 8 + j;
    return of[0] + of[b.n_tiles * (TILE * 8)];
  };
  // What the norm of row j multiplies with.
  const auto inverse = [&](int j) {
    if (!squares) return 1.0f;
    float sum = 0;
#pragma unroll 1
    for (int i = j * squares; i < (j + 1) * squares; i++) sum += i < MULTIPLIERS ? b.early[i] : __ldcg(a.squares + i);
    return rsqrtf(sum * a.inv_n + a.eps);
  };
#pragma unroll 1
  for (int i = tid; i < n_y; i += MULTIPLIERS) {
    const int row = i / m, j = i % m;
    float* y = a.y + static_cast<size_t>(j) * a.y_stride;
    const float factor = inverse(j);
    int out = b.first + row;
    float sum;
    if (b.gate) {
      const int at = row / 8 * 16 + row % 8;
      sum = activate_gate(a.activation, total(at, j) * factor) * (total(at + 8, j) * factor);
    } else {
      sum = total(row, j) * factor;
      out += part.first_out;
      if (a.bias) sum += a.bias[out];
      if (a.epilogue == ADD) sum += i < MULTIPLIERS ? b.early[i] : __ldcg(y + out);
    }
    y[out] = sum;
  }
}

KERNEL_OF(few, FewArgs, 96) {
  DYNAMIC_SHARED(shared);
  ptx::let_next_kernel_start();
  __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
  const bool gate = a.epilogue == GATE;
  uint32_t p = 0;
  if (!gate) {
    while (p + 1 < a.n_parts && blockIdx.x >= a.parts[p + 1].first_block) p++;
  }
  const FewPart& part = a.parts[p];
  const uint32_t end = gate || p + 1 == a.n_parts ? a.n_blocks : a.parts[p + 1].first_block;
  const uint64_t block = blockIdx.x - part.first_block, n_blocks = end - part.first_block;
  const int first = static_cast<int>(part.n_out * block / n_blocks), last = static_cast<int>(part.n_out * (block + 1) / n_blocks);
  FewBlock b;
  b.first = first, b.n_own = last - first, b.own_tile = gate ? TILE / 2 : TILE, b.n_tiles = ceil_div(b.n_own, b.own_tile);
  b.n_groups = ceil_div(a.n_in / 64, GROUP), b.pitch = part.pitch, b.gate = gate;
  b.ring = shared, b.full = full, b.empty = empty;
  b.rest = reinterpret_cast<float*>(shared + a.n_stages * (TILE * b.pitch));
  b.early = b.rest + TEAM * TEAMS * REST;
  b.sums = b.early + MULTIPLIERS;
  multiply(a, part, b);
}

struct FewActivationArgs {
  XBlock* y;            // [n / 256]
  float* squares;       // [m, n / 256], where a norm comes before
  const float* x;       // [m, n]
  const float* weight;  // [n] of the norm, or null
  uint32_t n;
};

DEVICE void load8_fresh(float (&v)[8], const float* from) {
  const float4 a = __ldcg(reinterpret_cast<const float4*>(from)), b = __ldcg(reinterpret_cast<const float4*>(from + 4));
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Rounds rows of activations. A block of one warp converts 256 columns of a row: small, so that it finds room beside a product's.
KERNEL(few_activations, FewActivationArgs, 32) {
  ptx::let_next_kernel_start();
  const unsigned n_blocks = a.n / 256, row = blockIdx.x / n_blocks, block = blockIdx.x % n_blocks, k = threadIdx.x * 8;
  float w[8], v[8];
  if (a.weight) load8_fresh(w, a.weight + block * 256 + k);
  ptx::wait_for_previous_kernel();
  load8_fresh(v, a.x + static_cast<size_t>(row) * a.n + block * 256 + k);
  if (a.weight) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) squares += v[i] * v[i], v[i] *= w[i];
    squares = warp_sum(squares);
    if (threadIdx.x == 0) a.squares[blockIdx.x] = squares;
  }
  // Four neighbouring threads convert a block of 32. As integers, magnitudes compare alike, and what is not a number is largest.
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) bits = max(bits, __float_as_uint(v[i]) & 0x7fffffffu);
  bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, 1));
  bits = max(bits, __shfl_xor_sync(ALL_LANES, bits, 2));
  const float largest = __uint_as_float(bits), scale = largest * (1.0f / 127.0f);
  const float per_unit = largest > 1e-30f ? __fdividef(127.0f, largest) : 0.0f;
  // The last byte of a float of this size is an integer, rounded.
  uint32_t q[8], packed[2];
#pragma unroll
  for (int i = 0; i < 8; i++) q[i] = __float_as_uint(fmaf(v[i], per_unit, UNITS));
#pragma unroll
  for (int i = 0; i < 2; i++) {
    packed[i] = __byte_perm(__byte_perm(q[4 * i], q[4 * i + 1], 0x0040), __byte_perm(q[4 * i + 2], q[4 * i + 3], 0x0040), 0x5410);
  }
  int sum = __dp4a(static_cast<int>(packed[0]), 0x01010101, __dp4a(static_cast<int>(packed[1]), 0x01010101, 0));
  sum += __shfl_xor_sync(ALL_LANES, sum, 1);
  sum += __shfl_xor_sync(ALL_LANES, sum, 2);
  XBlock* y = a.y + block;
  const unsigned part = k / 32, l = k % 32;
#pragma unroll
  for (int i = 0; i < 2; i++) reinterpret_cast<uint32_t*>(&y->q[part][row * 4 + l % 16 / 4 + i])[l / 16] = packed[i];
  if (l == 0) {
    y->scale[part][row] = scale;
    const float exact = scale * static_cast<float>(sum);
    const uint16_t high = ptx::f32_to_bf16(exact), low = ptx::f32_to_bf16(exact - __uint_as_float(static_cast<uint32_t>(high) << 16));
    uint16_t* sums = reinterpret_cast<uint16_t*>(&y->sums[row * 4 + part / 2]) + part % 2;
    sums[0] = high, sums[2] = low;
  }
}
