// Preparing queries, keys and values: norms per head, rotation by position, and the way into the cache.
#include "quant.cuh"

struct AnglesArgs {
  float* y;                   // [n_tokens, 2 * n]: cosines, then sines
  const float* f;             // [n]
  const uint32_t* positions;  // [n_tokens]
  uint32_t n;
  float scale;
};

// A block owns a token. The product is rounded to f32, as the reference library does; its cosine and sine are then taken exactly.
KERNEL(rope_angles, AnglesArgs, 128) {
  ptx::wait_for_previous_kernel();
  const int n = a.n;
  float* y = a.y + static_cast<size_t>(blockIdx.x) * 2 * n;
  const float position = static_cast<float>(a.positions[blockIdx.x]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    // In half turns, since sine and cosine of those need no long reduction of the argument.
    const double half_turns = static_cast<double>(position * a.f[i]) * 0.31830988618379067154;
    y[i] = static_cast<float>(cospi(half_turns)) * a.scale;
    y[n + i] = static_cast<float>(sinpi(half_turns)) * a.scale;
  }
}

struct StoreArgs {
  float* qkv;                    // [n_tokens, (n_heads + 2 * n_kv_heads) * head_dim]
  uint8_t* k_cache;              // [n_blocks, n_kv_heads, block_size] heads of `head_bytes`
  uint8_t* v_cache;
  const float* q_weight;         // [head_dim], null where heads have no norm
  const float* q_bias;           // [head_dim] or null
  const float* k_weight;
  const float* k_bias;
  const float* angles;           // [n_tokens, rope_dim]: cosines, then sines; null where nothing turns
  const uint32_t* positions;     // [n_tokens]
  const uint32_t* table_starts;  // [n_tokens]: where a token's block table begins
  const uint32_t* block_tables;
  uint32_t n_heads, n_kv_heads, head_dim, head_bytes;
  uint32_t rope_dim, interleaved;
  uint32_t block_size;
  uint32_t layer;                // 1: the norms take the mean out
  float q_eps, k_eps;
};

// One head of up to 256 elements, by one warp: lane `l` holds elements l, l + 32, …
struct Head {
  float x[8];
};

DEVICE void norm_head(Head& h, int dim, int lane, const float* weight, const float* bias, bool layer, float eps) {
  float mean = 0;
  if (layer) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < 8; j++) sum += h.x[j];  // zeros past the end
    mean = warp_sum(sum) / dim;
  }
  float sum = 0;
#pragma unroll
  for (int j = 0; j < 8; j++) sum += lane + 32 * j < dim ? (h.x[j] - mean) * (h.x[j] - mean) : 0.0f;
  const float inv = 1.0f / sqrtf(warp_sum(sum) / dim + eps);
#pragma unroll
  for (int j = 0; j < 8; j++) {
    const int i = lane + 32 * j;
    if (i < dim) h.x[j] = (h.x[j] - mean) * inv * weight[i] + (bias ? bias[i] : 0.0f);
  }
}

// Turns pairs of the head in shared memory.
DEVICE void rotate(float* head, const float* angles, int rope_dim, bool interleaved, int lane) {
  const int n = rope_dim / 2;
  for (int i = lane; i < n; i += 32) {
    const int p = interleaved ? 2 * i : i, q = interleaved ? 2 * i + 1 : i + n;
    const float x = head[p], y = head[q], c = angles[i], s = angles[n + i];
    head[p] = x * c - y * s;
    head[q] = x * s + y * c;
  }
}

// How each type of cache holds a head; `lane` writes its share.
template <class T>
DEVICE void write_head(uint8_t* out, const float* head, int dim, int lane);

template <>
DEVICE void write_head<F32>(uint8_t* out, const float* head, int dim, int lane) {
  for (int i = lane; i < dim; i += 32) reinterpret_cast<float*>(out)[i] = head[i];
}

template <>
DEVICE void write_head<F16>(uint8_t* out, const float* head, int dim, int lane) {
  for (int i = lane; i < dim; i += 32) reinterpret_cast<uint16_t*>(out)[i] = ptx::f32_to_f16(head[i]);
}

template <>
DEVICE void write_head<BF16>(uint8_t* out, const float* head, int dim, int lane) {
  for (int i = lane; i < dim; i += 32) reinterpret_cast<uint16_t*>(out)[i] = ptx::f32_to_bf16(head[i]);
}

template <>
DEVICE void write_head<Q8_0>(uint8_t* out, const float* head, int dim, int lane) {
  for (int b = 0; b < dim / 32; b++) {
    const float x = head[b * 32 + lane];
    const float d = warp_max(fabsf(x)) / 127.0f;
    const float per_unit = d != 0.0f ? 1.0f / d : 0.0f;
    uint8_t* block = out + b * Q8_0::BYTES;
    // Halves away from zero, as the scalar code rounds.
    block[2 + lane] = static_cast<uint8_t>(static_cast<int8_t>(roundf(x * per_unit)));
    if (lane == 0) *reinterpret_cast<uint16_t*>(block) = ptx::f32_to_f16(d);
  }
}

// A warp owns one head of one token; blockIdx.x counts tokens, and blockIdx.y fours of heads: queries, keys, values.
template <class T>
DEVICE void store_kv(const StoreArgs& a) {
  ptx::wait_for_previous_kernel();
  __shared__ float heads[4][256];
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int lane = threadIdx.x % 32, token = blockIdx.x;
  const int head = blockIdx.y * 4 + threadIdx.x / 32;
  if (head >= n_heads + 2 * n_kv_heads) return;
  float* row = a.qkv + (static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + head) * dim;
  float* shared = heads[threadIdx.x / 32];
  const bool is_query = head < n_heads, is_value = head >= n_heads + n_kv_heads;
  Head h;
#pragma unroll
  for (int j = 0; j < 8; j++) h.x[j] = lane + 32 * j < dim ? row[lane + 32 * j] : 0.0f;
  if (!is_value && a.q_weight) {
    norm_head(h, dim, lane, is_query ? a.q_weight : a.k_weight, is_query ? a.q_bias : a.k_bias, a.layer,
              is_query ? a.q_eps : a.k_eps);
  }
#pragma unroll
  for (int j = 0; j < 8; j++) {
    if (lane + 32 * j < dim) shared[lane + 32 * j] = h.x[j];
  }
  __syncwarp();
  if (!is_value && a.angles) {
    rotate(shared, a.angles + static_cast<size_t>(token) * a.rope_dim, a.rope_dim, a.interleaved, lane);
    __syncwarp();
  }
  for (int i = lane; i < dim; i += 32) row[i] = shared[i];
  if (is_query) return;
  const uint32_t position = a.positions[token];
  const size_t block = a.block_tables[a.table_starts[token] + position / a.block_size];
  const int kv_head = is_value ? head - n_heads - n_kv_heads : head - n_heads;
  const size_t slot = (block * n_kv_heads + kv_head) * a.block_size + position % a.block_size;
  write_head<T>((is_value ? a.v_cache : a.k_cache) + slot * a.head_bytes, shared, dim, lane);
}

#define STORE_KV(T) \
  KERNEL(store_kv_##T, StoreArgs, 128) { store_kv<T>(a); }
STORE_KV(F32) STORE_KV(F16) STORE_KV(BF16) STORE_KV(Q8_0)
