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
// Moves: the weights once. Shared memory: the ring, 80 bytes per 64 activations of each row, 4 bytes per group of a row and row of x.
#include "packed.cuh"
#include "../common/ranks.cuh"
#include "gemv_args.cuh"

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

// ADD_RANKS: what every GPU has is added to y; of one row.
enum Epilogue : uint32_t { STORE, ADD, GATE, ADD_RANKS };

enum Activation : uint32_t { SILU, GELU_TANH, GELU_ERF, RELU_SQUARED, RELU };

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
  static constexpr int ROWS = 2;
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

// How a kind of weights wants activations.
enum class ActivationForm { FLOATS, SUMS, PAIRS_OF_SUMS };

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

// Converts activations k to k + 7 of a row, where k is what `Eight::at` says. Whole warps call it, for the shuffles.
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
      piece->sums[k / 32 % 2] = form == ActivationForm::SUMS ? __float_as_uint(scale * static_cast<float>(sum + next)) : pair;
    }
  }
}

// Converts the rows of x, times the norm's weights, of which `norm` has those of the thread's first activations. What the norm divides
// them by is left to the end: the thread's share of the sum of squares of row j goes to `squares(j, share)`.
template <int THREADS, class Squares>
DEVICE void prepare(const GemvArgs& a, int m, Eight& norm, XPiece* pieces, float* floats, ActivationForm form, Squares squares) {
  // Spans of a warp that are on their way at the same time.
  constexpr int ALL = THREADS / 32 * SPAN, HELD = THREADS < 384 ? 4 : 2;
  const int n = a.n_in;
#pragma unroll 1
  for (int j = 0; j < m; j++) {
    const float* x = a.x + static_cast<size_t>(j) * n;
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
        }
        convert(e.v, k, n, pieces + j * (n / 64), floats + static_cast<size_t>(j) * n, form);
      }
    }
    if (a.norm_weight) squares(j, sum);
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
template <int WARPS, bool ONE>
struct __align__(LINE) Common {
  uint64_t barriers[WARPS][MAX_STAGES];
  // A warp's share of the sum of squares of each row of x.
  float squares[ONE ? 1 : MAX_ROWS][WARPS];
  // Of the exchange with other GPUs.
  uint32_t round;
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

// What a block computes, where its things are in shared memory, and which units of work are a warp's. USUAL, LARGE: bytes of the ring.
template <class P, int THREADS, bool ONE, int USUAL, int LARGE>
struct GemvWork {
  typedef P Weights;
  static constexpr int WARPS = THREADS / 32;
  static constexpr bool ONE_ROW = ONE;
  static constexpr int BYTES = P::bytes(GROUP), SLOT = ceil_div(BYTES, LINE) * LINE;
  static constexpr int ROWS = 2 * WARPS * P::ROWS * SLOT <= USUAL ? P::ROWS : 1, STAGE = ROWS * SLOT;
  DEVICE static constexpr int stages_of(int ring) { return ring / (WARPS * STAGE) < MAX_STAGES ? ring / (WARPS * STAGE) : MAX_STAGES; }

  const GemvArgs& a;
  int n_rows;  // outputs; with a gate, its own and then as many of up's
  bool gate;
  int n_stages, n, lane, warp, m;
  int n_groups, last_size;  // groups of a row, and pieces of the last one
  uint32_t last_bytes;
  uint8_t* ring;  // the warp's
  XPiece* pieces;
  float *floats, *sums;  // sums: [rows, groups, m]
  // A unit is a group of rows `row` and `row` + n_own. They are shared out group by group, so that a warp keeps its activations.
  int n_own, begin, end, first_group, first_row;

  DEVICE GemvWork(const GemvArgs& a, int n_rows, bool gate, unsigned char* shared) : a(a), n_rows(n_rows), gate(gate) {
    static_assert(stages_of(USUAL) >= 1, "the ring is too small");
    const int ring_bytes = a.large_ring ? LARGE : USUAL;
    n_stages = a.large_ring ? stages_of(LARGE) : stages_of(USUAL);
    n = a.n_in, lane = threadIdx.x % 32, warp = __shfl_sync(ALL_LANES, threadIdx.x / 32, 0), m = ONE ? 1 : a.m;
    const int n_pieces = P::PACKED ? n / 64 : ceil_div(n, 32);
    n_groups = ceil_div(n_pieces, GROUP);
    last_size = n_pieces - (n_groups - 1) * GROUP;
    last_bytes = P::PACKED ? P::bytes(last_size) : (n - (n_groups - 1) * 1024) * 2;
    const size_t x_bytes = P::PACKED ? static_cast<size_t>(n / 64) * sizeof(XPiece) : static_cast<size_t>(n) * 4;
    ring = shared + warp * (n_stages * STAGE);
    pieces = reinterpret_cast<XPiece*>(shared + ring_bytes);
    floats = reinterpret_cast<float*>(shared + ring_bytes);
    sums = reinterpret_cast<float*>(shared + ring_bytes + x_bytes * m);
    n_own = ceil_div(n_rows, ROWS);
    const int n_units = n_own * n_groups;
    begin = n_units * warp / WARPS, end = n_units * (warp + 1) / WARPS;
    first_group = n_own > 0 ? begin / n_own : 0, first_row = begin - first_group * n_own;
  }

  // Outputs that are stored.
  DEVICE int n_y() const { return gate ? n_rows / 2 : n_rows; }
};

// A warp's copies of weights, which run ahead of what is multiplied.
template <class W>
struct WeightCopies {
  const W& work;
  int64_t row_bytes, other;  // `other`: from a row to the unit's second; of an odd number's last that is itself
  int unit, group, row;
  const uint8_t* from;
  uint64_t* barrier;

  DEVICE WeightCopies(const W& work, const GemvPart& part, int first, uint64_t* barrier) : work(work), barrier(barrier) {
    const GemvArgs& a = work.a;
    const uint8_t* w = part.w + static_cast<size_t>(first) * part.row_bytes;
    row_bytes = static_cast<int64_t>(part.row_bytes);
    other = work.gate ? a.parts[1].w - a.parts[0].w : work.n_own * row_bytes;
    unit = work.begin, group = work.first_group, row = work.first_row;
    from = w + group * W::BYTES + row * row_bytes;
  }

  // Asks for the next unit's weights, if there is one.
  DEVICE void load_stage(int stage) {
    if (unit < work.end) {
      const uint32_t bytes = group + 1 == work.n_groups ? work.last_bytes : W::BYTES;
      const int copier = ptx::copying_lane(work.lane);
      ptx::mbarrier_expect_tx(barrier + stage, copier, W::ROWS * bytes);
      const uint8_t* r = from;
      if (W::ROWS == 1 && work.gate && row >= work.n_own / 2) r += other - work.n_own / 2 * row_bytes;
      ptx::cp_async_bulk_evict_first(work.ring + stage * W::STAGE, r, bytes, barrier + stage, copier);
      if (W::ROWS == 2) {
        const uint8_t* second = work.gate || row + work.n_own < work.n_rows ? r + other : r;
        ptx::cp_async_bulk_evict_first(work.ring + stage * W::STAGE + W::SLOT, second, bytes, barrier + stage, copier);
      }
      ptx::cp_async_mbarrier_arrive(barrier + stage);
    }
    unit++, row++, from += row_bytes;
    if (row == work.n_own) row = 0, group++, from += W::BYTES - work.n_own * row_bytes;
  }

  // Fills the ring stage by stage: 20 to 35 KB under way are enough for the memory's full speed, and the kernel before, which waits for its
  // input or its last weights, would stand behind the rest. Where rows are so short that a stage is less than that, all at once.
  DEVICE void fill_ring() {
#pragma unroll 1
    for (int s = 0; s < work.n_stages; s++) ptx::barrier_init(barrier + s, work.lane);
    ptx::fence_mbarrier_init();
    const bool by_turns = work.n_groups > 1 || work.last_size > GROUP / 2;
#pragma unroll 1
    for (int s = 0; s < work.n_stages; s++) {
      if (by_turns && s > 0 && work.begin + s <= work.end) ptx::mbarrier_wait(barrier + s - 1, 0);
      load_stage(s);
    }
  }
};

// Multiplies the warp's units, and leaves the sums of groups in shared memory.
template <class W>
DEVICE void accumulate(const W& work, WeightCopies<W>& copies) {
  typedef typename W::Weights P;
  constexpr bool ONE = W::ONE_ROW;
  constexpr int ROWS = W::ROWS;
  const int lane = work.lane, n = work.n, n_own = work.n_own, n_groups = work.n_groups;
  int stage = 0;
  uint32_t parity = 0;
  // When the lanes' sums meet, each has had in hand what it took, and not only asked for it, before the next copy overwrites it.
  const auto give_back = [&] {
    copies.load_stage(stage);
    if (++stage == work.n_stages) stage = 0, parity ^= 1;
  };
#pragma unroll 1
  for (int unit = work.begin, group = work.first_group; unit < work.end; group++) {
    const int size = group + 1 == n_groups ? work.last_size : GROUP, length = P::PACKED ? size : min(n - group * 1024, 1024);
    auto x = activations<P>(work.pieces, work.floats, 0, group, size, lane, n);
    const int until = min(work.end, (group + 1) * n_own);
    int row = unit - group * n_own;
#pragma unroll 1
    for (; unit < until; unit++, row++) {
      ptx::mbarrier_wait(copies.barrier + stage, parity);
      typename P::Piece p[ROWS];
      const uint8_t* weights = work.ring + stage * W::STAGE;
#pragma unroll
      for (int i = 0; i < ROWS; i++) P::take(p[i], weights + i * W::SLOT, length, P::PACKED ? min(lane, size - 1) : lane);
#pragma unroll 1
      for (int j = 0; j < work.m; j++) {
        if (!ONE && j > 0) x = activations<P>(work.pieces, work.floats, j, group, size, lane, n);
        float sum[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) sum[i] = P::dot(p[i], x);
        // Each half of the warp goes on with one of two rows.
        const bool upper = ROWS == 2 && lane >= 16;
        float s = upper ? sum[ROWS - 1] : sum[0];
        s += __shfl_xor_sync(ALL_LANES, upper ? sum[0] : sum[ROWS - 1], 16);
        if (ONE) give_back();
#pragma unroll
        for (int d = 8; d; d >>= 1) s += __shfl_xor_sync(ALL_LANES, s, d);
        const int mine = row + (upper ? n_own : 0);
        if (lane % (32 / ROWS) == 0 && mine < work.n_rows) work.sums[(mine * n_groups + group) * work.m + j] = s;
        if (ONE) break;
      }
      if (!ONE) {
        give_back();
        x = activations<P>(work.pieces, work.floats, 0, group, size, lane, n);
      }
    }
  }
}

// What the norm of row j multiplies with.
template <int WARPS, bool ONE>
DEVICE float inverse_rms(const GemvArgs& a, const Common<WARPS, ONE>& common, int j) {
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
    addend += __ldcg(a.y + static_cast<size_t>(j) * a.y_stride + part.first_out + first + row);
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

// Outputs `first` to `first + n_rows` of a part; with a gate, its rows and then as many of up's. USUAL, LARGE: bytes of the ring.
// Where other GPUs have parts of the outputs, a thread has one at most.
template <class P, int THREADS, bool ONE, bool RANKS, int USUAL, int LARGE = USUAL>
DEVICE void multiply(const GemvArgs& a, const GemvPart& part, int first, int n_rows, bool gate, unsigned char* shared,
                     Common<THREADS / 32, ONE>& common, const ranks::Ranks* ranks) {
  typedef GemvWork<P, THREADS, ONE, USUAL, LARGE> W;
  const W work(a, n_rows, gate, shared);
  WeightCopies<W> copies(work, part, first, common.barriers[work.warp]);
  copies.fill_ring();

  Eight norm;
  if (a.norm_weight) norm.load(a.norm_weight, Eight::at(threadIdx.x / 32 * SPAN), work.n);
  const float addend = load_addend(work, part, first);
  uint32_t round = 0;
  if (RANKS && a.epilogue == ADD_RANKS) round = ranks->round();
  prepare<THREADS>(a, work.m, norm, work.pieces, work.floats,
                   !P::PACKED ? ActivationForm::FLOATS : P::PAIRS_OF_SUMS ? ActivationForm::PAIRS_OF_SUMS : ActivationForm::SUMS,
                   [&](int j, float share) {
                     share = warp_sum(share);
                     if (work.lane == 0) common.squares[j][work.warp] = share;
                   });
  if constexpr (RANKS) {
    if (threadIdx.x == 0) common.round = round;
  }
  __syncthreads();
  accumulate(work, copies);
  __syncthreads();
  const float mine = store<W, THREADS, RANKS>(work, common, part, first, addend);
  if constexpr (RANKS) {
    if (a.epilogue == ADD_RANKS) add_ranks(a, *ranks, common.round, mine, part.first_out + first, n_rows);
  }
}

// PLAIN: whether weights may be plain numbers. ONE: whether x has one row. `ranks`: null for a GPU alone.
template <int THREADS, bool PLAIN, bool ONE, bool RANKS = false>
DEVICE void multiply_parts(const GemvArgs& a, const ranks::Ranks* ranks = nullptr) {
  DYNAMIC_SHARED(shared);
  ptx::launch_dependents();
  __shared__ Common<THREADS / 32, ONE> common;
  const bool gate = a.epilogue == GATE;
  uint32_t p = 0;
  if (!gate) {
    while (p + 1 < a.n_parts && blockIdx.x >= a.parts[p + 1].first_block) p++;
  }
  const GemvPart& part = a.parts[p];
  const uint32_t end = gate || p + 1 == a.n_parts ? a.n_blocks : a.parts[p + 1].first_block;
  const uint64_t block = blockIdx.x - part.first_block, n_blocks = end - part.first_block;
  const int first = static_cast<int>(part.n_out * block / n_blocks), last = static_cast<int>(part.n_out * (block + 1) / n_blocks);
  const int n_rows = (last - first) * (gate ? 2 : 1);
#define MULTIPLY(P, ...) multiply<P, THREADS, ONE, RANKS, __VA_ARGS__>(a, part, first, n_rows, gate, shared, common, ranks)
  if constexpr (PLAIN) {
    if (part.layout == LAYOUT_F16) return MULTIPLY(Plain<false>, PLAIN_RING);
    if (part.layout == LAYOUT_BF16) return MULTIPLY(Plain<true>, PLAIN_RING);
  }
#define MULTIPLY_PACKED(Q) \
  case LAYOUT_##Q: return MULTIPLY(Packed_##Q, Packed_##Q::WIDE_RING ? WIDE_RING : RING, Packed_##Q::WIDE_RING ? WIDE_RING : LARGE_RING);
  switch (part.layout) {
    FOR_EACH_PACKED(MULTIPLY_PACKED)
    default: __builtin_unreachable();
  }
#undef MULTIPLY_PACKED
#undef MULTIPLY
}

// One row of x. Two blocks, of one kernel and the next, fit an SM. More threads suit weights that take more work, and more rows.
KERNEL_2(gemv_256, GemvArgs, 256) { multiply_parts<256, true, true>(a); }
KERNEL_2(gemv_384, GemvArgs, 384) { multiply_parts<384, false, true>(a); }
KERNEL_2(gemv_512, GemvArgs, 512) { multiply_parts<512, false, true>(a); }
// The same for a GPU among several; what one does alone stays as short as it is.
KERNEL_2(gemv_256_ranks, GemvRanksArgs, 256) { multiply_parts<256, true, true, true>(a.product, &a.ranks); }
KERNEL_2(gemv_384_ranks, GemvRanksArgs, 384) { multiply_parts<384, false, true, true>(a.product, &a.ranks); }
KERNEL_2(gemv_512_ranks, GemvRanksArgs, 512) { multiply_parts<512, false, true, true>(a.product, &a.ranks); }
// Up to 8 rows.
KERNEL(gemv_8, GemvArgs, 384) { multiply_parts<384, true, false>(a); }
