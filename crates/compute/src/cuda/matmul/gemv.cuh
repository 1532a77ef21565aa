// Matmuls of M in 1..=8 rows of activations with packed weights, with what stands before and after them in a transformer: the norm of
// the input, the quantization of activations, bias, the sum with the residual stream, also of what several GPUs have, gate · up.
//
// A block owns a contiguous range of outputs of one part of the matrix. A warp takes a group (packed.cuh) of one or two rows at a time,
// a piece to a lane. The block's warps share its work group by group: a warp goes down the rows with one group, whose activations it keeps
// in registers. Each group's sum is left in shared memory, where the groups of an output are added in order: an output does not depend on
// the other rows of x.
//
// Weights come through a ring in shared memory that fills before the kernel before has ended, since they do not depend on it. There is
// one block to an SM, with about half of what it has, so that the next kernel's block fits beside it. Most of the code runs once
// per launch, and an SM waits for instructions that it has not run before: so it is short, and has few copies of itself.
//
// With experts (GemvExpertsArgs) a row of x uses a few of many matrices, and has blocks of its own (blockIdx.y). With a gate the outputs of
// all of its matrices are shared out, one matrix after the other. Without one x has a part for each matrix, an output has groups of each,
// and their sums are weighed before they are added. Every block chooses the matrices by itself, from the router's scores. With a gate these
// are known only when the kernel before has ended, so the ring is filled after that, and the next kernel begins after that: so it finds the
// scores, and fills its ring before it waits.
//
// In order (gemv_in_order.cu) an output has the bits that small_m.cu has for it: a block of 256 activations has one scale where the
// weights' are integers, products of 256 columns are left in shared memory, and added up in the order of the columns.
//
// Moves: the weights once. Shared memory: the ring, 80 bytes per 64 activations of each row, 4 bytes per group of a row and row of x; in order
// 4 bytes per 256 columns of a row and of x.
#pragma once
#include "packed.cuh"
#include "../common/ranks.cuh"
#include "../common/route.cuh"
#include "gemm.cuh"
#include "gemv_args.cuh"
#include "squares.cuh"

constexpr int MAX_ROWS = 8;
// Bytes of the rings, and the most stages that one has. A stage is a group of each warp, of one or two rows. Two blocks fit an
// SM, of one matmul and the next, also where one has 14,336 activations, of which those for plain weights are floats. A gated
// matmul stands between two that are not, so it has what these leave, where that is a stage more (`large_ring`).
#if __CUDA_ARCH__ >= 900
constexpr int PLAIN_RING = 64 << 10, WIDE_RING = 92 << 10, RING = 84 << 10, LARGE_RING = 108 << 10;
#else
constexpr int PLAIN_RING = 60 << 10, WIDE_RING = PLAIN_RING, RING = PLAIN_RING, LARGE_RING = PLAIN_RING;
#endif
constexpr int MAX_STAGES = 6;
// Copies go faster to multiples of this.
constexpr int LINE = 128;

DEVICE float activate(uint32_t f, float x) {
  switch (f) {
    case SILU: return __fdividef(x, 1.0f + __expf(-x));
    case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456080286535588f * (x + 0.044715f * x * x * x)));
    case GELU_ERF: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752440f));
    case RELU_SQUARED: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    default: return fmaxf(x, 0.0f);
  }
}

// Activations of a piece of plain numbers: 8 at 256 j, for j below 4.
struct XPlain {
  float v[32];
};

// Weights of plain numbers: a piece is 32 of them, 8 at lane * 8 + 256 j of its group, so that loads lie side by side. A group of
// fewer than 32 pieces is filled from its front, the rest is zeros.
template <bool BRAIN>
struct Plain {
  static constexpr bool PACKED = false, PAIRS_OF_SUMS = false;
  static constexpr int ROWS = 2, TABLE = 0;
  DEVICE static constexpr int bytes(int size) { return 64 * size; }
  struct Piece {
    uint4 q[4];
  };
  // Of a group of `size` numbers.
  DEVICE static void take(Piece& p, const uint8_t* group, int size, int at) {
    take_vectors(p.q, group, GROUP, at);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      if (at * 8 + j * 256 >= size) p.q[j] = uint4{0, 0, 0, 0};
    }
  }
  DEVICE static float dot(const Piece& p, const XPlain& x) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const uint32_t w = word(p.q[j], i);
        const float low = BRAIN ? __uint_as_float(w << 16) : ptx::f16_to_f32(static_cast<uint16_t>(w));
        const float high = BRAIN ? __uint_as_float(w & 0xffff0000u) : ptx::f16_to_f32(static_cast<uint16_t>(w >> 16));
        sum = fmaf(low, x.v[8 * j + 2 * i], sum);
        sum = fmaf(high, x.v[8 * j + 2 * i + 1], sum);
      }
    }
    return sum;
  }
};

// How a kind of weights wants activations. INTEGER_SUMS: of 32, for sums that are integers.
enum class ActivationForm { FLOATS, SUMS, PAIRS_OF_SUMS, INTEGER_SUMS };

// A warp converts 256 activations at a time. All blocks want the same ones at the same moment, so what counts is how many lines of memory
// they ask for: neighbouring lanes load neighbours, four of each half, and then pairs of lanes exchange, so that each has eight in a row.
constexpr int SPAN = 256;

// Four activations of each half of the span that begins at `first`; zeros past the end. Not from this SM's cache, which may
// hold what the kernel before overwrote.
struct Fours {
  float4 half[2];
  DEVICE void load(const float* x, int first, int n) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int k = first + SPAN / 2 * h + threadIdx.x % 32 * 4;
      half[h] = k < n ? __ldcg(reinterpret_cast<const float4*>(x + k)) : float4{0, 0, 0, 0};
    }
  }
};

// Eight activations in a row, and where a lane's are: in the first half of the span if its number is even.
struct Eight {
  float v[8];
  DEVICE static int at(int first) { return first + threadIdx.x % 2 * (SPAN / 2) + threadIdx.x % 32 / 2 * 8; }
  DEVICE void exchange(const Fours& f) {
    const bool odd = threadIdx.x % 2;
    const float4 give = odd ? f.half[0] : f.half[1];
    const auto pass = [](float x) { return __shfl_xor_sync(ALL_LANES, x, 1); };
    const float4 got = {pass(give.x), pass(give.y), pass(give.z), pass(give.w)};
    put(odd ? got : f.half[0], odd ? f.half[1] : got);
  }
  DEVICE void load(const float* x, int k, int n) {
    float4 a = {0, 0, 0, 0}, b = {0, 0, 0, 0};
    if (k < n) a = reinterpret_cast<const float4*>(x + k)[0], b = reinterpret_cast<const float4*>(x + k)[1];
    put(a, b);
  }
  DEVICE void put(float4 a, float4 b) { v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w; }
};

// Converts activations k to k + 7 of a row, where k is what `Eight::at` says. Whole warps call it, for the shuffles. OF_256: the span has one
// scale.
template <bool OF_256 = false>
DEVICE void convert(const float (&v)[8], int k, int n, XPiece* pieces, float* floats, ActivationForm form) {
  if (form == ActivationForm::FLOATS) {
    if (k < n) {
      float4* to = reinterpret_cast<float4*>(floats + k);
      to[0] = float4{v[0], v[1], v[2], v[3]};
      to[1] = float4{v[4], v[5], v[6], v[7]};
    }
    return;
  }
  // Every other lane of eight has a quarter of a block of 32. What is not a number is largest.
  float largest = fabsf(v[0]);
#pragma unroll
  for (int i = 1; i < 8; i++) largest = ptx::max_or_nan(largest, fabsf(v[i]));
  largest = ptx::max_or_nan(largest, __shfl_xor_sync(ALL_LANES, largest, 2));
  largest = ptx::max_or_nan(largest, __shfl_xor_sync(ALL_LANES, largest, 4));
  if constexpr (OF_256) {
#pragma unroll
    for (int i = 0; i < 3; i++) largest = ptx::max_or_nan(largest, __shfl_xor_sync(ALL_LANES, largest, i ? 4 << i : 1));
  }
  const float scale = largest * (1.0f / 127.0f);
  const float per_unit = largest > 1e-30f ? __fdividef(127.0f, largest) : 0.0f;
  // The last byte of a float of this size is an integer, rounded.
  uint32_t q[8];
#pragma unroll
  for (int i = 0; i < 8; i++) q[i] = __float_as_uint(fmaf(v[i], per_unit, 12582912.0f));
  uint32_t packed[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    packed[i] = __byte_perm(__byte_perm(q[4 * i], q[4 * i + 1], 0x0040), __byte_perm(q[4 * i + 2], q[4 * i + 3], 0x0040), 0x5410);
  }
  int sum = __dp4a(static_cast<int>(packed[0]), 0x01010101, __dp4a(static_cast<int>(packed[1]), 0x01010101, 0));
  sum += __shfl_xor_sync(ALL_LANES, sum, 2);
  const int next = __shfl_xor_sync(ALL_LANES, sum, 4);
  if (k < n) {
    XPiece* piece = pieces + k / 64;
    *reinterpret_cast<uint2*>(piece->q + k % 64) = uint2{packed[0], packed[1]};
    if (k % 32 == 0) {
      piece->scale[k / 32 % 2] = scale;
      const uint32_t pair = (static_cast<uint32_t>(sum) & 0xffff) | static_cast<uint32_t>(next) << 16;
      piece->sums[k / 32 % 2] = form == ActivationForm::SUMS           ? __float_as_uint(scale * static_cast<float>(sum + next))
                                : form == ActivationForm::INTEGER_SUMS ? static_cast<uint32_t>(sum + next)
                                                                       : pair;
    }
  }
}

// Whether 256 activations have one scale, since sums over 256 columns are integers.
template <class P, bool IN_ORDER>
DEVICE constexpr bool has_scale_of_256() {
  if constexpr (IN_ORDER) return !P::SmallM::OF_32;
  else return false;
}

// Converts the rows of x, times the norm's weights, of which `norm` has those of the thread's first activations. What the norm divides
// them by is left to the end: the thread's share of the sum of squares of row j goes to `squares(j, share)`, in order that of each span to
// `squares(span, share)`.
template <int THREADS, class P, bool IN_ORDER, class Squares>
DEVICE void prepare(const GemvArgs& a, const float* rows, int m, Eight& norm, XPiece* pieces, float* floats, Squares squares) {
  constexpr ActivationForm FORM = !P::PACKED         ? ActivationForm::FLOATS
                                  : P::PAIRS_OF_SUMS ? ActivationForm::PAIRS_OF_SUMS
                                  : IN_ORDER         ? ActivationForm::INTEGER_SUMS
                                                     : ActivationForm::SUMS;
  // Spans of a warp that are on their way at the same time.
  constexpr int ALL = THREADS / 32 * SPAN, HELD = THREADS < 384 ? 4 : 2;
  const int n = a.n_in;
#pragma unroll 1
  for (int j = 0; j < m; j++) {
    const float* x = rows + static_cast<size_t>(j) * n;
    float sum = 0;
#pragma unroll 1
    for (int done = 0; done < n; done += HELD * ALL) {
      const int first = done + threadIdx.x / 32 * SPAN;
      Fours held[HELD];
#pragma unroll
      for (int c = 0; c < HELD; c++) held[c].load(x, first + c * ALL, n);
#pragma unroll
      for (int c = 0; c < HELD; c++) {
        if (c > 0 && done + c * ALL >= n) break;
        const int k = Eight::at(first + c * ALL);
        Eight e;
        e.exchange(held[c]);
        if (a.norm_weight) {
          if (j > 0 || done > 0 || c > 0) norm.load(a.norm_weight, k, n);
#pragma unroll
          for (int i = 0; i < 8; i++) {
            sum += e.v[i] * e.v[i];
            e.v[i] *= norm.v[i];
          }
          if constexpr (IN_ORDER) squares((first + c * ALL) / SPAN, sum), sum = 0;
        }
        convert<has_scale_of_256<P, IN_ORDER>()>(e.v, k, n, pieces + j * (n / 64), floats + static_cast<size_t>(j) * n, FORM);
      }
    }
    if (!IN_ORDER && a.norm_weight) squares(j, sum);
  }
}

// The activations of a lane's piece of a group of row j; zeros where it has none.
template <class P>
DEVICE auto activations(const XPiece* pieces, const float* floats, int j, int group, int size, int lane, int n) {
  if constexpr (P::PACKED) {
    X x;
    x.clear();
    if (lane < size) x.load(pieces + j * (n / 64) + group * GROUP + lane);
    return x;
  } else {
    XPlain x;
    const int k = group * 1024 + lane * 8;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float4 a = {}, b = {};
      if (k + 256 * i < n) {
        a = *reinterpret_cast<const float4*>(floats + static_cast<size_t>(j) * n + k + 256 * i);
        b = *reinterpret_cast<const float4*>(floats + static_cast<size_t>(j) * n + k + 256 * i + 4);
      }
      x.v[8 * i] = a.x, x.v[8 * i + 1] = a.y, x.v[8 * i + 2] = a.z, x.v[8 * i + 3] = a.w;
      x.v[8 * i + 4] = b.x, x.v[8 * i + 5] = b.y, x.v[8 * i + 6] = b.z, x.v[8 * i + 7] = b.w;
    }
    return x;
  }
}

// What is in shared memory whatever the kind of weights. What follows, the ring, begins on a line too.
template <int WARPS, bool ONE, bool EXPERTS = false>
struct __align__(LINE) Common {
  uint64_t barriers[WARPS][MAX_STAGES];
  // A warp's share of the sum of squares of each row of x.
  float squares[ONE ? 1 : MAX_ROWS][WARPS];
  // Of the exchange with other GPUs.
  uint32_t round;
  // The experts that are used, and what their outputs are multiplied with.
  uint32_t experts[EXPERTS ? MAX_USED : 1];
  float weights[EXPERTS ? MAX_USED : 1];
};

// Adds what every GPU has for outputs `first` to `first + n` of one row, an output to a thread, to y.
DEVICE void add_ranks(const GemvArgs& a, const ranks::Ranks& ranks, uint32_t round, float mine, int first, int n) {
  const int out = first + threadIdx.x;
  if (threadIdx.x < n) {
    ranks.send(round, out, mine);
    const float before = __ldcg(a.y + out);
    a.y[out] = before + ranks.sum(round, out, mine);
  }
  ranks.end(round);
}

// What a block computes, where its things are in shared memory, and which units of work are a warp's. USUAL, LARGE: bytes of the ring, of
// whose end the type's table is a part.
template <class P, int THREADS, bool ONE, int USUAL, int LARGE, bool EXPERTS, bool ORDERED>
struct GemvWork {
  typedef P Weights;
  static constexpr bool OF_EXPERTS = EXPERTS, IN_ORDER = ORDERED;
  static constexpr int WARPS = THREADS / 32;
  static constexpr bool ONE_ROW = ONE;
  static constexpr int BYTES = P::bytes(GROUP), SLOT = ceil_div(BYTES, LINE) * LINE;
  static constexpr int ROWS = 2 * WARPS * P::ROWS * SLOT <= USUAL - 4 * P::TABLE ? P::ROWS : 1, STAGE = ROWS * SLOT;
  DEVICE static constexpr int stages_of(int ring) {
    const int stages = (ring - 4 * P::TABLE) / (WARPS * STAGE);
    return stages < MAX_STAGES ? stages : MAX_STAGES;
  }

  const GemvArgs& a;
  const GemvExpertsArgs* experts;  // null without EXPERTS
  int n_rows;                      // outputs; with a gate, its own and then as many of up's
  bool gate;
  int n_stages, n, lane, warp, m;
  int n_row;                            // weights in a row; x has n, more where several rows make an output
  int n_groups, row_groups, last_size;  // groups of an output and of a row, and pieces of a row's last one
  int n_sums, row_sums;                 // what shared memory has of an output and of a row: groups, or in order blocks of 256 columns
  uint32_t last_bytes;
  uint8_t* ring;  // the warp's
  uint32_t* table;
  XPiece* pieces;
  float *floats, *sums;  // sums: [rows, n_sums, m], and in order then the squares' of each 256 of x
  // A unit is a group of rows `row` and `row` + n_own. They are shared out group by group, so that a warp keeps its activations. Of experts
  // with rows so short that most lanes would have no piece, it is as many rows side by side (`n_abreast`), which are neighbours in memory.
  int n_own, begin, end, first_group, first_row, abreast = 1;

  DEVICE GemvWork(const GemvArgs& a, const GemvExpertsArgs* experts, int n_rows, bool gate, unsigned char* shared)
      : a(a), experts(experts), n_rows(n_rows), gate(gate) {
    static_assert(stages_of(USUAL) >= 1, "the ring is too small");
    const int ring_bytes = a.large_ring ? LARGE : USUAL;
    n_stages = a.large_ring ? stages_of(LARGE) : stages_of(USUAL);
    n = a.n_in, lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0), m = ONE ? 1 : a.m;
    n_row = EXPERTS ? experts->n_row : n;
    const int n_pieces = P::PACKED ? n_row / 64 : ceil_div(n_row, 32);
    row_groups = ceil_div(n_pieces, GROUP);
    n_groups = EXPERTS && !gate ? row_groups * experts->route.n_used : row_groups;
    last_size = n_pieces - (row_groups - 1) * GROUP;
    row_sums = ORDERED ? ceil_div(n_row, SPAN) : row_groups;
    n_sums = EXPERTS && !gate ? row_sums * experts->route.n_used : row_sums;
    last_bytes = P::PACKED ? P::bytes(last_size) : (n_row - (row_groups - 1) * 1024) * 2;
    const size_t x_bytes = P::PACKED ? static_cast<size_t>(n / 64) * sizeof(XPiece) : static_cast<size_t>(n) * 4;
    ring = shared + warp * (n_stages * STAGE);
    table = reinterpret_cast<uint32_t*>(shared + ring_bytes) - P::TABLE;
    pieces = reinterpret_cast<XPiece*>(shared + ring_bytes);
    floats = reinterpret_cast<float*>(shared + ring_bytes);
    sums = reinterpret_cast<float*>(shared + ring_bytes + x_bytes * m);
    if (EXPERTS && P::PACKED && !gate && n_pieces <= GROUP / 2) abreast = n_pieces <= GROUP / 4 ? 4 : 2;
    n_own = ceil_div(n_rows, ROWS * n_abreast());
    const int n_units = n_own * n_groups;
    begin = n_units * warp / WARPS, end = n_units * (warp + 1) / WARPS;
    first_group = n_own > 0 ? begin / n_own : 0, first_row = begin - first_group * n_own;
  }

  DEVICE float* squares() const { return sums + n_rows * n_sums; }
  DEVICE int n_abreast() const { return EXPERTS ? abreast : 1; }
  // Lanes of a row, and how many rows there are from `row` * n_abreast() on, of those that are abreast.
  DEVICE int n_lanes() const { return 32 / n_abreast(); }
  DEVICE int n_rows_at(int row) const { return max(min(n_rows - row * n_abreast(), n_abreast()), 0); }
  // Outputs that are stored.
  DEVICE int n_y() const { return gate ? n_rows / 2 : n_rows; }
  // The block's first row of x and of y. Of experts it is the only one.
  DEVICE size_t own_row() const { return EXPERTS ? blockIdx.y : 0; }
  DEVICE const float* x() const { return a.x + own_row() * n; }
  DEVICE float* y() const { return a.y + own_row() * a.y_stride; }
  // Of which of an output's rows a group is.
  DEVICE int row_of(int group) const { return EXPERTS ? group / row_groups : 0; }
};

// A warp's copies of weights, which run ahead of what is multiplied.
template <class W>
struct WeightCopies {
  const W& work;
  int64_t row_bytes, other;  // `other`: from a row to the unit's second; of an odd number's last that is itself
  int unit, group, row;
  const uint8_t* from;  // of experts: the part's first row
  uint64_t* barrier;
  int first;  // output
  uint32_t expert;  // one of those that are used to a lane

  DEVICE WeightCopies(const W& work, const GemvPart& part, int first, uint64_t* barrier, uint32_t expert)
      : work(work), barrier(barrier), first(first), expert(expert) {
    const GemvArgs& a = work.a;
    row_bytes = static_cast<int64_t>(part.row_bytes);
    other = work.gate ? a.parts[1].w - a.parts[0].w : work.n_own * work.n_abreast() * row_bytes;
    unit = work.begin, group = work.first_group, row = work.first_row;
    from = part.w;
    if (!W::OF_EXPERTS) from += static_cast<size_t>(first) * part.row_bytes + group * W::BYTES + row * row_bytes;
  }

  // The next unit's weights. Of experts these may be another matrix's than the last one's.
  DEVICE const uint8_t* source() const {
    const bool is_up = W::ROWS == 1 && work.gate && row >= work.n_own / 2;
    if constexpr (W::OF_EXPERTS) {
      const int n_out = work.experts->n_out;
      int out = first + (is_up ? row - work.n_own / 2 : row * work.n_abreast()), used = work.row_of(group);
      const int in_row = group - used * work.row_groups;
      if (work.gate) used = out / n_out, out -= used * n_out;
      const uint8_t* w = from + __shfl_sync(ALL_LANES, expert, used) * work.experts->expert_bytes;
      return w + out * row_bytes + in_row * W::BYTES + (is_up ? other : 0);
    } else {
      return is_up ? from + other - work.n_own / 2 * row_bytes : from;
    }
  }

  // Asks for the next unit's weights, if there is one.
  DEVICE void load_stage(int stage) {
    if (unit < work.end) {
      const bool is_last = group - work.row_of(group) * work.row_groups + 1 == work.row_groups;
      const uint32_t bytes = is_last ? work.last_bytes : W::BYTES;
      const int copier = ptx::copying_lane(work.lane);
      const uint8_t* r = source();
      uint8_t* to = work.ring + stage * W::STAGE;
      if constexpr (W::OF_EXPERTS) {
        const uint32_t own = work.n_rows_at(row) * bytes, others = W::ROWS == 1 ? 0 : (work.gate ? 1 : work.n_rows_at(row + work.n_own)) * bytes;
        ptx::mbarrier_expect_tx(barrier + stage, copier, own + others);
        ptx::cp_async_bulk_evict_first(to, r, own, barrier + stage, copier);
        if (others > 0) ptx::cp_async_bulk_evict_first(to + W::SLOT, r + other, others, barrier + stage, copier);
      } else {
        ptx::mbarrier_expect_tx(barrier + stage, copier, W::ROWS * bytes);
        ptx::cp_async_bulk_evict_first(to, r, bytes, barrier + stage, copier);
        if (W::ROWS == 2) {
          const uint8_t* second = work.gate || row + work.n_own < work.n_rows ? r + other : r;
          ptx::cp_async_bulk_evict_first(to + W::SLOT, second, bytes, barrier + stage, copier);
        }
      }
      ptx::cp_async_mbarrier_arrive(barrier + stage);
    }
    unit++, row++;
    if (!W::OF_EXPERTS) from += row_bytes;
    if (row == work.n_own) {
      row = 0, group++;
      if (!W::OF_EXPERTS) from += W::BYTES - work.n_own * row_bytes;
    }
  }

  DEVICE void init_barriers() const {
#pragma unroll 1
    for (int s = 0; s < work.n_stages; s++) ptx::barrier_init(barrier + s, work.lane);
    ptx::fence_mbarrier_init();
  }

  // Fills the ring stage by stage: 20 to 35 KB under way are enough for the memory's full speed, and the kernel before, which waits for its
  // input or its last weights, would stand behind the rest. Where rows are so short that a stage is less than that, all at once.
  DEVICE void fill_ring() {
    const bool by_turns = work.n_groups > 1 || work.last_size > GROUP / 2;
#pragma unroll 1
    for (int s = 0; s < work.n_stages; s++) {
      if (by_turns && s > 0 && work.begin + s <= work.end) ptx::mbarrier_wait(barrier + s - 1, 0);
      load_stage(s);
    }
  }

  // The same of a gate's experts, after the kernel before has ended. The input is asked for between the first stage and the others.
  DEVICE void fill_others() {
#pragma unroll 1
    for (int s = 1; s < work.n_stages; s++) load_stage(s);
  }
};

// Leaves the products of each 256 columns of a unit in shared memory. Four lanes have them.
template <class W>
DEVICE void leave_blocks(const W& work, const typename W::Weights::Piece (&p)[W::ROWS], const X& x, int used, int in_row, int row) {
  typedef typename W::Weights P;
  constexpr int ROWS = W::ROWS;
  const int n_lanes = work.n_lanes(), t = work.lane % 4, block = in_row * (GROUP / 4) + work.lane % n_lanes / 4;
  const auto put = [&](int i, float total) {
    const int mine = (row + i * work.n_own) * work.n_abreast() + work.lane / n_lanes;
    if (block < work.row_sums && mine < work.n_rows) work.sums[mine * work.n_sums + used * work.row_sums + block] = total;
  };
  if constexpr (has_scale_of_256<P, true>()) {
    // Lanes go on with one of two rows, and of types with mins with one of two sums.
    constexpr bool MINS = P::SmallM::MINS || P::SmallM::MINS_OF_16;
    const bool odd = t % 2, upper = t / 2;
    const auto pass = [](int v, int d) { return __shfl_xor_sync(ALL_LANES, v, d); };
    int v[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const Integers n = P::integers(p[i], x);
      v[i] = MINS ? (odd ? n.mins : n.sum) + pass(odd ? n.sum : n.mins, 1) : n.sum + pass(n.sum, 1);
    }
    const int sum = ROWS == 2 ? (upper ? v[ROWS - 1] : v[0]) + pass(upper ? v[0] : v[ROWS - 1], 2) : v[0] + pass(v[0], 2);
    const int mins = MINS ? pass(sum, 1) : 0;
    const uint32_t first = P::factors(p[0]), second = P::factors(p[ROWS - 1]);
    const float total = __fmul_rn(P::total(upper ? second : first, sum, mins), x.scale(0));
    if (!odd && (ROWS == 2 || !upper)) put(upper ? 1 : 0, total);
  } else {
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
      const typename P::Terms terms(p[i], x);
      // A lane adds its terms to what the lane before has: the last one is right after four steps.
      float halves[2] = {};
#pragma unroll
      for (int step = 0; step < 4; step++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          if (step > 0) halves[h] = __shfl_up_sync(ALL_LANES, halves[h], 1);
          halves[h] = terms.add(halves[h], h);
        }
      }
      if (t == 3) put(i, P::SmallM::total(halves[0], halves[1], 0.0f, 0));
    }
  }
}

// What the norm multiplies with, from the squares' sums of each 256 columns.
template <class W>
DEVICE float inverse_rms_in_order(const W& work) {
  return work.a.norm_weight ? norm_factor(work.squares(), ceil_div(work.n, SPAN), work.a.inv_n, work.a.eps) : 1.0f;
}

// Multiplies the warp's units, and leaves the sums of groups in shared memory.
template <class W>
DEVICE void accumulate(const W& work, WeightCopies<W>& copies) {
  typedef typename W::Weights P;
  constexpr bool ONE = W::ONE_ROW;
  constexpr int ROWS = W::ROWS;
  const int lane = work.lane, n_row = work.n_row, n_own = work.n_own, n_groups = work.n_groups;
  // The lane's among those of its row.
  const int n_lanes = work.n_lanes(), place = lane % n_lanes;
  int stage = 0;
  uint32_t parity = 0;
  // When the lanes' sums meet, each has had in hand what it took, and not only asked for it, before the next copy overwrites it.
  const auto give_back = [&] {
    copies.load_stage(stage);
    if (++stage == work.n_stages) stage = 0, parity ^= 1;
  };
#pragma unroll 1
  for (int unit = work.begin, group = work.first_group; unit < work.end; group++) {
    const int used = work.row_of(group), in_row = group - used * work.row_groups;
    const int size = in_row + 1 == work.row_groups ? work.last_size : GROUP;
    const int length = P::PACKED ? size : min(n_row - in_row * 1024, 1024);
    const XPiece* pieces = work.pieces + used * (n_row / 64);
    const float* floats = work.floats + used * n_row;
    auto x = activations<P>(pieces, floats, 0, in_row, size, place, n_row);
    // Of experts the activations' scales have the norm's factor, which registers would lack if it were kept.
    if constexpr (W::IN_ORDER && W::OF_EXPERTS) x.multiply_scales(inverse_rms_in_order(work));
    const int until = min(work.end, (group + 1) * n_own);
    int row = unit - group * n_own;
#pragma unroll 1
    for (; unit < until; unit++, row++) {
      ptx::mbarrier_wait(copies.barrier + stage, parity);
      typename P::Piece p[ROWS];
      const uint8_t* weights = work.ring + stage * W::STAGE;
      if (W::OF_EXPERTS) weights += lane / n_lanes * work.last_bytes;
#pragma unroll
      for (int i = 0; i < ROWS; i++) {
        P::take(p[i], weights + i * W::SLOT, length, P::PACKED ? min(place, size - 1) : lane);
        if constexpr (P::TABLE > 0) p[i].table = work.table;
      }
      if constexpr (W::IN_ORDER) {
        leave_blocks(work, p, x, used, in_row, row);
        give_back();
        continue;
      }
#pragma unroll 1
      for (int j = 0; j < work.m; j++) {
        if (!ONE && j > 0) x = activations<P>(pieces, floats, j, in_row, size, place, n_row);
        float sum[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[i] = P::dot(p[i], x);
        // Each half of a row's lanes goes on with one of two rows.
        const int half = n_lanes / 2;
        const bool upper = ROWS == 2 && place >= half;
        float s = upper ? sum[ROWS - 1] : sum[0];
        s += __shfl_xor_sync(ALL_LANES, upper ? sum[0] : sum[ROWS - 1], half);
        if (ONE) give_back();
#pragma unroll
        for (int d = 8; d; d >>= 1) {
          if (!W::OF_EXPERTS || d < half) s += __shfl_xor_sync(ALL_LANES, s, d);
        }
        const int mine = (row + (upper ? n_own : 0)) * work.n_abreast() + lane / n_lanes;
        if (place % (n_lanes / ROWS) == 0 && mine < work.n_rows) work.sums[(mine * n_groups + group) * work.m + j] = s;
        if (ONE) break;
      }
      if (!ONE) {
        give_back();
        x = activations<P>(pieces, floats, 0, in_row, size, place, n_row);
      }
    }
  }
}

// What the norm of row j multiplies with.
template <int WARPS, bool ONE, bool EXPERTS>
DEVICE float inverse_rms(const GemvArgs& a, const Common<WARPS, ONE, EXPERTS>& common, int j) {
  if (!a.norm_weight) return 1.0f;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; w++) sum += common.squares[j][w];
  return rsqrtf(sum * a.inv_n + a.eps);
}

// The sum of an output's groups, in order.
template <class W>
DEVICE float merge_groups(const W& work, int row, int j) {
  float sum = 0;
#pragma unroll 2
  for (int g = 0; g < work.n_groups; g++) sum += work.sums[(row * work.n_groups + g) * work.m + j];
  return sum;
}

// The sum of a row's products in order, of which parts of `part_blocks` are added up by themselves; `used`: of which of an output's rows.
template <class W>
DEVICE float merge_blocks(const W& work, int row, int part_blocks, int used = 0) {
  const float* sums = work.sums + row * work.n_sums + used * work.row_sums;
  float total = 0, sum = 0;
  int of_part = 0;
#pragma unroll 2
  for (int i = 0; i < work.row_sums; i++) {
    if (of_part == 0) total += sum, sum = 0;
    sum += sums[i];
    if (++of_part == part_blocks) of_part = 0;
  }
  return total + sum;
}

// The sum of the experts' outputs, each with its bias and then times its weight, in the order of their use.
template <class W, class Common>
DEVICE float merge_experts(const W& work, const Common& common, int row, int out) {
  const GemvExpertsArgs& e = *work.experts;
  const float* sums = work.sums + row * work.n_groups;
  float total = 0;
#pragma unroll 1
  for (int u = 0; u < static_cast<int>(e.route.n_used); u++) {
    float sum = e.bias ? e.bias[static_cast<size_t>(common.experts[u]) * e.n_out + out] : 0.0f;
#pragma unroll 1
    for (int g = 0; g < work.row_groups; g++) sum += *sums++;
    total += common.weights[u] * sum;
  }
  return total;
}

// What will be added to the thread's first sum: the bias, and y once the kernel before has ended.
template <class W>
DEVICE float load_addend(const W& work, const GemvPart& part, int first) {
  const GemvArgs& a = work.a;
  const int n_y = work.n_y(), m = work.m;
  float addend = 0;
  if (a.bias && threadIdx.x < n_y * m) addend = a.bias[part.first_out + first + (W::ONE_ROW ? threadIdx.x : threadIdx.x % n_y)];
  ptx::griddepcontrol_wait();
  if (a.epilogue == ADD && threadIdx.x < n_y * m) {
    const int row = W::ONE_ROW ? threadIdx.x : threadIdx.x % n_y, j = W::ONE_ROW ? 0 : threadIdx.x / n_y;
    addend += __ldcg(work.y() + static_cast<size_t>(j) * a.y_stride + part.first_out + first + row);
  }
  return addend;
}

// The epilogue. Where other GPUs have parts of the outputs, returns the thread's output instead of storing it.
template <class W, int THREADS, bool RANKS, class Common>
DEVICE float store(const W& work, const Common& common, const GemvPart& part, int first, float addend) {
  const GemvArgs& a = work.a;
  const int n_y = work.n_y(), m = work.m;
  float mine = 0;
#pragma unroll 1
  for (int i = threadIdx.x; i < n_y * m; i += THREADS) {
    const int row = W::ONE_ROW ? i : i % n_y, j = W::ONE_ROW ? 0 : i / n_y;
    const float factor = inverse_rms(a, common, j);
    float* y = a.y + static_cast<size_t>(j) * a.y_stride;
    float sum = merge_groups(work, row, j) * factor;
    int out = first + row;
    if (work.gate) {
      sum = activate(a.activation, sum) * (merge_groups(work, n_y + row, j) * factor);
    } else {
      out += part.first_out;
      if (i >= THREADS) {
        addend = a.bias ? a.bias[out] : 0.0f;
        if (a.epilogue == ADD) addend += __ldcg(y + out);
      }
      sum += addend;
    }
    if (RANKS && a.epilogue == ADD_RANKS) mine = sum;
    else y[out] = sum;
  }
  return mine;
}

// The epilogue in order.
template <class W, int THREADS>
DEVICE void store_in_order(const W& work, const GemvPart& part, int first, int part_blocks) {
  const GemvArgs& a = work.a;
  const int n_y = work.n_y();
  const float factor = inverse_rms_in_order(work);
  const auto total = [&](int row) { return __fmul_rn(merge_blocks(work, row, part_blocks), factor); };
#pragma unroll 1
  for (int i = threadIdx.x; i < n_y; i += THREADS) {
    int out = first + i;
    float sum = total(i);
    if (work.gate) {
      sum = activate_gate(a.activation, sum) * total(n_y + i);
    } else {
      out += part.first_out;
      if (a.bias) sum += a.bias[out];
      if (a.epilogue == ADD) sum += __ldcg(a.y + out);
    }
    a.y[out] = sum;
  }
}

// The same of experts, as grouped_small_m.cu and moe_combine have it.
template <class W, int THREADS, class Common>
DEVICE void store_experts_in_order(const W& work, const Common& common, int first) {
  const GemvExpertsArgs& e = *work.experts;
  const GemvArgs& a = work.a;
  const int n_y = work.n_y(), n_out = e.n_out;
#pragma unroll 1
  for (int i = threadIdx.x; i < n_y; i += THREADS) {
    const int out = first + i;
    float y;
    if (work.gate) {
      const int used = out / n_out;
      const float* bias = e.bias ? e.bias + static_cast<size_t>(common.experts[used]) * 2 * n_out + (out - used * n_out) : nullptr;
      const float gate = merge_blocks(work, i, 0) + (bias ? bias[0] : 0.0f), up = merge_blocks(work, n_y + i, 0) + (bias ? bias[n_out] : 0.0f);
      y = gate_one(a.activation, gate, up);
    } else {
      float total = 0;
#pragma unroll 1
      for (int u = 0; u < static_cast<int>(e.route.n_used); u++) {
        const float bias = e.bias ? e.bias[static_cast<size_t>(common.experts[u]) * e.n_out + out] : 0.0f;
        total = fmaf(common.weights[u], merge_blocks(work, i, 0, u) + bias, total);
      }
      y = (a.epilogue == ADD ? __ldcg(work.y() + out) : 0.0f) + total;
    }
    work.y()[out] = y;
  }
}

// The epilogue of experts.
template <class W, int THREADS, class Common>
DEVICE void store_experts(const W& work, const Common& common, int first, float addend) {
  const GemvExpertsArgs& e = *work.experts;
  const GemvArgs& a = work.a;
  const int n_y = work.n_y(), n_out = e.n_out;
#pragma unroll 1
  for (int i = threadIdx.x; i < n_y; i += THREADS) {
    const int out = first + i;
    float y;
    if (work.gate) {
      const float factor = inverse_rms(a, common, 0);
      float gate = merge_groups(work, i, 0) * factor, up = merge_groups(work, n_y + i, 0) * factor;
      if (e.bias) {
        const int used = out / n_out;
        const float* bias = e.bias + static_cast<size_t>(common.experts[used]) * 2 * n_out + (out - used * n_out);
        gate += bias[0], up += bias[n_out];
      }
      y = a.activation == CLAMPED_SWIGLU ? gate_one(CLAMPED_SWIGLU, gate, up) : activate(a.activation, gate) * up;
    } else {
      if (i >= THREADS) addend = a.epilogue == ADD ? __ldcg(work.y() + out) : 0.0f;
      y = merge_experts(work, common, i, out) + addend;
    }
    work.y()[out] = y;
  }
}

// Outputs `first` to `first + n_rows` of a part; with a gate, its rows and then as many of up's. USUAL, LARGE: bytes of the ring.
// Where other GPUs have parts of the outputs, a thread has one at most.
template <class P, int THREADS, bool ONE, class Others, int USUAL, int LARGE = USUAL>
DEVICE void multiply(const GemvArgs& a, const GemvPart& part, int first, int n_rows, bool gate, unsigned char* shared,
                     Common<THREADS / 32, ONE, Others::EXPERTS>& common, const Others& others, uint32_t expert) {
  constexpr bool RANKS = Others::RANKS, EXPERTS = Others::EXPERTS;
  typedef GemvWork<P, THREADS, ONE, USUAL, LARGE, EXPERTS, Others::IN_ORDER> W;
  const W work(a, others.experts, n_rows, gate, shared);
  WeightCopies<W> copies(work, part, first, common.barriers[work.warp], expert);
  copies.init_barriers();
  if (EXPERTS && gate) copies.load_stage(0);
  else copies.fill_ring();
  fill_table<P>(work.table, threadIdx.x, THREADS);

  Eight norm;
  if (a.norm_weight) norm.load(a.norm_weight, Eight::at(threadIdx.x / 32 * SPAN), work.n);
  float addend = 0;
  if constexpr (W::IN_ORDER) ptx::griddepcontrol_wait();
  else addend = load_addend(work, part, first);
  uint32_t round = 0;
  if (RANKS && a.epilogue == ADD_RANKS) round = others.ranks->round();
  prepare<THREADS, P, W::IN_ORDER>(a, work.x(), work.m, norm, work.pieces, work.floats, [&](int j, float share) {
    if constexpr (W::IN_ORDER) {
      // As `warp_sum` where lanes have eight numbers in a row each.
#pragma unroll
      for (int i = 0; i < 5; i++) share += __shfl_xor_sync(ALL_LANES, share, i ? 32 >> i : 1);
      if (work.lane == 0 && j < ceil_div(work.n, SPAN)) work.squares()[j] = share;
    } else {
      share = warp_sum(share);
      if (work.lane == 0) common.squares[j][work.warp] = share;
    }
  });
  if constexpr (RANKS) {
    if (threadIdx.x == 0) common.round = round;
  }
  if (EXPERTS && gate) copies.fill_others();
  __syncthreads();
  accumulate(work, copies);
  __syncthreads();
  if constexpr (W::IN_ORDER && EXPERTS) {
    store_experts_in_order<W, THREADS>(work, common, first);
  } else if constexpr (W::IN_ORDER) {
    store_in_order<W, THREADS>(work, part, first, others.part_blocks);
  } else if constexpr (EXPERTS) {
    store_experts<W, THREADS>(work, common, first, addend);
  } else {
    const float mine = store<W, THREADS, RANKS>(work, common, part, first, addend);
    if constexpr (RANKS) {
      if (a.epilogue == ADD_RANKS) add_ranks(a, *others.ranks, common.round, mine, part.first_out + first, n_rows);
    }
  }
}

// What a product has to do with beside its weights: nothing, the order of its sums, the other GPUs, or experts.
struct Alone {
  static constexpr bool IN_ORDER = false, RANKS = false, EXPERTS = false;
  static constexpr const ranks::Ranks* ranks = nullptr;
  static constexpr const GemvExpertsArgs* experts = nullptr;
};
struct InOrder {
  static constexpr bool IN_ORDER = true, RANKS = false, EXPERTS = false;
  int part_blocks;
  static constexpr const ranks::Ranks* ranks = nullptr;
  static constexpr const GemvExpertsArgs* experts = nullptr;
};
struct WithRanks {
  static constexpr bool IN_ORDER = false, RANKS = true, EXPERTS = false;
  const ranks::Ranks* ranks;
  static constexpr const GemvExpertsArgs* experts = nullptr;
};
struct OfExpertsInOrder {
  static constexpr bool IN_ORDER = true, RANKS = false, EXPERTS = true;
  const GemvExpertsArgs* experts;
  static constexpr const ranks::Ranks* ranks = nullptr;
};
struct OfExperts {
  static constexpr bool IN_ORDER = false, RANKS = false, EXPERTS = true;
  const GemvExpertsArgs* experts;
  static constexpr const ranks::Ranks* ranks = nullptr;
};

// The expert of each lane among those that the block's row uses. Each warp finds them for itself; shared memory has others' keys meanwhile.
template <class Common>
DEVICE uint32_t choose_experts(const GemvExpertsArgs& e, bool gate, unsigned char* shared, Common& common) {
  if (gate) {
    ptx::griddepcontrol_wait();
    ptx::launch_dependents();
  }
  uint32_t* keys = reinterpret_cast<uint32_t*>(shared);
  const Route route(e.route, blockIdx.y);
  route.write_keys(keys, threadIdx.x, blockDim.x, [] { __syncthreads(); });
  const uint32_t expert = route.choose(keys);
  if (threadIdx.x < 32) {
    const float weight = gate ? 0.0f : route.weight(expert);
    if (threadIdx.x < e.route.n_used) common.experts[threadIdx.x] = expert, common.weights[threadIdx.x] = weight;
  }
  __syncthreads();
  return expert;
}

// PLAIN: whether weights may be plain numbers. ONE: whether x has one row.
template <int THREADS, bool PLAIN, bool ONE, class Others = Alone>
DEVICE void multiply_parts(const GemvArgs& a, const Others& others = Others{}) {
  DYNAMIC_SHARED(shared);
  __shared__ Common<THREADS / 32, ONE, Others::EXPERTS> common;
  const bool gate = a.epilogue == GATE;
  if (!Others::EXPERTS || !gate) ptx::launch_dependents();
  uint32_t p = 0;
  if (!gate) {
    while (p + 1 < a.n_parts && blockIdx.x >= a.parts[p + 1].first_block) p++;
  }
  const GemvPart& part = a.parts[p];
  const uint32_t end = gate || p + 1 == a.n_parts ? a.n_blocks : a.parts[p + 1].first_block;
  const uint64_t block = blockIdx.x - part.first_block, n_blocks = end - part.first_block;
  const int first = static_cast<int>(part.n_out * block / n_blocks), last = static_cast<int>(part.n_out * (block + 1) / n_blocks);
  const int n_rows = (last - first) * (gate ? 2 : 1);
  uint32_t expert = 0;
  if constexpr (Others::EXPERTS) expert = choose_experts(*others.experts, gate, shared, common);
#define MULTIPLY(P, ...) multiply<P, THREADS, ONE, Others, __VA_ARGS__>(a, part, first, n_rows, gate, shared, common, others, expert)
  if constexpr (PLAIN) {
    if (part.layout == LAYOUT_F16) return MULTIPLY(Plain<false>, PLAIN_RING);
    if (part.layout == LAYOUT_BF16) return MULTIPLY(Plain<true>, PLAIN_RING);
  }
#define MULTIPLY_PACKED(Q)                                                                                                           \
  case LAYOUT_##Q:                                                                                                                   \
    if constexpr ((!Others::EXPERTS || Packed_##Q::OF_EXPERTS) && (!Others::IN_ORDER || Packed_##Q::OF_GEMM_I8)) {                   \
      return MULTIPLY(Packed_##Q, Packed_##Q::WIDE_RING ? WIDE_RING : RING, Packed_##Q::WIDE_RING ? WIDE_RING : LARGE_RING);         \
    }                                                                                                                                \
    break;
  switch (part.layout) {
    FOR_EACH_PACKED(MULTIPLY_PACKED)
  }
  __builtin_unreachable();
#undef MULTIPLY_PACKED
#undef MULTIPLY
}
