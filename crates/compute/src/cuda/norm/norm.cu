// Normalization of rows.
//
// A block of norm_rows owns a row, or some columns of it. Moves: them in and out.
#include "../common/halves.cuh"
#include "../common/quant.cuh"
#include "norm_args.cuh"

// Normalizes x[n] into y, or adds it to y. Thread `i` of the block reads and writes only elements i, i + blockDim.x, …
DEVICE void norm_row(float* y, const float* x, const float* weight, const float* bias, int n, bool layer, bool add, float eps,
                     float* scratch) {
  float mean = 0;
  if (layer) {
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i];
    mean = block_sum(sum, scratch) / n;
  }
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += (x[i] - mean) * (x[i] - mean);
  const float inv = 1.0f / sqrtf(block_sum(sum, scratch) / n + eps);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float normed = (x[i] - mean) * inv * weight[i] + (bias ? bias[i] : 0.0f);
    y[i] = add ? y[i] + normed : normed;
  }
}

// Eight numbers of tiles of half precision.
DEVICE void load8_half_tiles(float (&v)[8], const uint8_t* tiles, uint32_t row, int k, uint32_t n_rows) {
  const uint4 pairs = *reinterpret_cast<const uint4*>(tiles + byte_in_tiles(row, 2 * k, n_rows));
  const uint32_t words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = ptx::f16_to_f32(static_cast<uint16_t>(words[j / 2] >> 16 * (j % 2))) * (1.0f / HALF_TILE_FACTOR);
}

DEVICE void load8_floats(float (&v)[8], const float* x) { F32::load8_aligned(v, reinterpret_cast<const uint8_t*>(x)); }

DEVICE void store8_floats(float* y, const float (&v)[8]) {
  *reinterpret_cast<float4*>(y) = float4{v[0], v[1], v[2], v[3]};
  *reinterpret_cast<float4*>(y + 4) = float4{v[4], v[5], v[6], v[7]};
}

// The same where a thread holds 8 elements of a row, which begin at a multiple of 16 bytes: all are on their way before the first sum.
DEVICE void norm_held_row(float* y, const float* x, const NormArgs& a, float* scratch) {
  const int n = a.n, k = threadIdx.x * 8;
  const bool there = k < n;
  float v[8] = {}, w[8] = {}, b[8] = {}, before[8] = {};
  if (there) {
    load8_floats(v, x + k), load8_floats(w, a.weight + k);
    if (a.bias) load8_floats(b, a.bias + k);
    if (a.add) load8_floats(before, y + k);
  }
  float mean = 0, sum = 0;
  if (a.layer) {
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[j];
    mean = block_sum(sum, scratch) / n, sum = 0;
  }
#pragma unroll
  for (int j = 0; j < 8; j++) sum += (v[j] - mean) * (v[j] - mean);
  const float inverse = 1.0f / sqrtf(block_sum(there ? sum : 0.0f, scratch) / n + a.eps);
#pragma unroll
  for (int j = 0; j < 8; j++) v[j] = before[j] + ((v[j] - mean) * inverse * w[j] + b[j]);
  if (there) store8_floats(y + k, v);
}

KERNEL(norm_rows, NormArgs, 1024) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float scratch[32];
  const size_t at = static_cast<size_t>(blockIdx.x) * a.row_len;
  if (a.held) {
    norm_held_row(a.y + at, a.x + at, a, scratch);
  } else {
    norm_row(a.y + at, a.x + at, a.weight, a.bias, a.n, a.layer, a.add, a.eps, scratch);
  }
}

// Normalizes a row of up to 256 HELD elements that a warp holds, 8 in 256 of them a lane; those beyond n are 0.
template <int HELD, class Args>
DEVICE void norm_held(float (&v)[HELD][8], const Args& a, int lane) {
  const int n = a.n;
  float sum = 0;
#pragma unroll
  for (int c = 0; c < HELD; c++) {
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[c][j];
  }
  const float mean = a.layer ? warp_sum(sum) / n : 0.0f;
  sum = 0;
#pragma unroll
  for (int c = 0; c < HELD; c++) {
#pragma unroll
    for (int j = 0; j < 8; j++) sum += c * 256 + lane * 8 < n ? (v[c][j] - mean) * (v[c][j] - mean) : 0.0f;
  }
  const float inverse = 1.0f / sqrtf(warp_sum(sum) / n + a.eps);
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
    if (k >= n) continue;
    float w[8], b[8] = {};
    load8_floats(w, a.weight + k);
    if (a.bias) load8_floats(b, a.bias + k);
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = (v[c][j] - mean) * inverse * w[j] + b[j];
  }
}

// Heads of rows, each normalized by itself and multiplied by the weights of its columns, in place.
//
// A warp owns a head of up to 512 elements and keeps it in registers. Moves: 4 bytes an element in and 4 out.
KERNEL(norm_heads, NormHeadsArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  constexpr int HELD = 2;
  const int n = a.n, lane = threadIdx.x % 32;
  const uint32_t head = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (head >= a.n_heads) return;
  float* x = a.x + static_cast<size_t>(head) * n;
  const float* weights = a.weights + static_cast<size_t>(head % a.heads_of_row) * n;
  float v[HELD][8];
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = 0;
    if (k < n) load8_floats(v[c], x + k);
  }
  norm_held(v, a, lane);
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
    if (k >= n) continue;
    float w[8];
    load8_floats(w, weights + k);
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] *= w[j];
    store8_floats(x + k, v[c]);
  }
}

// Adds the norm of a sum of two norms to a row. All norms are by the root mean square.
//
// A block owns a row of up to 8,192 elements, a thread 8 of them. Moves: 12 bytes an element in and 4 out.
KERNEL(add_norms, AddNormsArgs, 1024) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float scratch[32];
  const int n = a.n, k = threadIdx.x * 8;
  const size_t at = static_cast<size_t>(blockIdx.x) * n + k;
  const bool there = k < n;
  float v[2][8] = {}, w[8] = {};
#pragma unroll
  for (int i = 0; i < 2; i++) {
    if (there) load8_floats(v[i], a.x[i] + at), load8_floats(w, a.weights[i] + k);
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += v[i][j] * v[i][j];
    const float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / n + a.eps[i]);
#pragma unroll
    for (int j = 0; j < 8; j++) v[i][j] *= inverse * w[j];
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) v[0][j] += v[1][j], sum += v[0][j] * v[0][j];
  const float inverse = 1.0f / sqrtf(block_sum(sum, scratch) / n + a.eps[2]);
  if (!there) return;
  load8_floats(w, a.weights[2] + k);
  load8_floats(v[1], a.y + at);
#pragma unroll
  for (int j = 0; j < 8; j++) v[1][j] += v[0][j] * inverse * w[j];
  store8_floats(a.y + at, v[1]);
}

// The residual after a block: x + y normalized, as tiles for the next matmul and, where asked for, as floats.
//
// A warp owns a row of up to 256 HELD elements and keeps it in registers, so that x may be in the tiles that it writes. All that it reads of
// memory is under way before the first sum. Moves: 4 bytes an element in and 2 out if x is in tiles, else 6 in and 2 or 6 out.
template <int HELD, bool IN_TILES>
DEVICE void norm_sum_of(const NormSumArgs& a) {
  const int n = a.n, lane = threadIdx.x % 32;
  const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= a.m) return;
  const size_t at = static_cast<size_t>(row) * n;
  float v[HELD][8], y[HELD][8];
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = y[c][j] = 0;
    if (k >= n) continue;
    load8_half_tiles(y[c], a.y, row, k, a.n_rows);
    if constexpr (IN_TILES) {
      load8_half_tiles(v[c], a.tiles, row, k, a.n_rows);
    } else {
      load8_floats(v[c], a.x + at + k);
    }
  }
#pragma unroll
  for (int c = 0; c < HELD; c++) {
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] += y[c][j];
  }
  norm_held(v, a, lane);
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
    if (k >= n) continue;
    if (a.sum) store8_floats(a.sum + at + k, v[c]);
    const uint4 pairs = {tile_pair(a.number, v[c][0], v[c][1]), tile_pair(a.number, v[c][2], v[c][3]),
                         tile_pair(a.number, v[c][4], v[c][5]), tile_pair(a.number, v[c][6], v[c][7])};
    *reinterpret_cast<uint4*>(a.tiles + byte_in_tiles(row, 2 * k, a.n_rows)) = pairs;
  }
}

template <int HELD>
DEVICE void norm_sum(const NormSumArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  a.x ? norm_sum_of<HELD, false>(a) : norm_sum_of<HELD, true>(a);
}

KERNEL(norm_sum_768, NormSumArgs, 128) { norm_sum<3>(a); }
KERNEL(norm_sum_1024, NormSumArgs, 128) { norm_sum<4>(a); }
KERNEL(norm_sum_2048, NormSumArgs, 128) { norm_sum<8>(a); }

// Embeddings and what is added to them by position and type of their token, normalized in place.
//
// A warp owns a row, as above. Moves: 4 bytes an element in and 4 out, beside the tables, which stay in the second-level cache.
template <int HELD>
DEVICE void norm_embedded(const NormEmbeddedArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n, lane = threadIdx.x % 32;
  const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= a.m) return;
  float* x = a.x + static_cast<size_t>(row) * n;
  const float *first = nullptr, *second = nullptr;
  if (a.positions) first = a.positions + static_cast<size_t>(min(a.position_of[row], a.n_positions - 1)) * n;
  if (a.types) second = a.types + static_cast<size_t>(min(a.type_of[row], a.n_types - 1)) * n;
  float v[HELD][8];
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    const int k = c * 256 + lane * 8;
    float p[8] = {}, t[8] = {};
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = 0;
    if (k >= n) continue;
    load8_floats(v[c], x + k);
    if (first) load8_floats(p, first + k);
    if (second) load8_floats(t, second + k);
#pragma unroll
    for (int j = 0; j < 8; j++) v[c][j] = v[c][j] + p[j] + t[j];
  }
  norm_held(v, a, lane);
#pragma unroll
  for (int c = 0; c < HELD; c++) {
    if (const int k = c * 256 + lane * 8; k < n) store8_floats(x + k, v[c]);
  }
}

KERNEL(norm_embedded_768, NormEmbeddedArgs, 128) { norm_embedded<3>(a); }
KERNEL(norm_embedded_1024, NormEmbeddedArgs, 128) { norm_embedded<4>(a); }
KERNEL(norm_embedded_2048, NormEmbeddedArgs, 128) { norm_embedded<8>(a); }

// Tiles of half precision as floats. A warp owns a row. Moves: 2 bytes an element in, 4 out.
KERNEL(read_tiles, ReadTilesArgs, 256) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n;
  const uint32_t row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (row >= a.m) return;
  for (int k = threadIdx.x % 32 * 8; k < n; k += 256) {
    float v[8];
    load8_half_tiles(v, a.tiles, row, k, a.n_rows);
    store8_floats(a.y + static_cast<size_t>(row) * n + k, v);
  }
}
