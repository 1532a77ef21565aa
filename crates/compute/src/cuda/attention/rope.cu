// Angles of RoPE (Su et al. 2021), and what prepares queries, keys and values for attention: QK norm, rotation, and the write to the cache.
//
// rope_angles. Block: a token; thread: frequencies. Moves: 8 bytes per angle written.
// store_kv. Block of 4 warps: blockIdx.x is the token, blockIdx.y four of its heads. Warp: one head. Shared memory: 8 KiB static. Moves: a
// row of qkv read, queries and keys of it written back, keys and values written to the cache.
#include "heads.cuh"
#include "rope_args.cuh"

// The angle is rounded to f32, as the reference library does; its cosine and sine are then exact.
KERNEL(rope_angles, AnglesArgs, 128) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int n = a.n;
  float* y = a.y + static_cast<size_t>(blockIdx.x) * 2 * n;
  const float position = static_cast<float>(a.positions[blockIdx.x]);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    // In units of pi: cospi and sinpi need no long reduction of the argument.
    const double half_turns = static_cast<double>(position * a.f[i]) * 0.31830988618379067154;
    y[i] = static_cast<float>(cospi(half_turns)) * a.scale;
    y[n + i] = static_cast<float>(sinpi(half_turns)) * a.scale;
  }
}

constexpr int MAX_DIM = 512;

// A head of up to 32 N elements.
template <class T, int N>
DEVICE void store_head(const StoreArgs& a, float* heads) {
  const int dim = a.head_dim, n_heads = a.n_heads, n_kv_heads = a.n_kv_heads;
  const int lane = threadIdx.x % 32, token = blockIdx.x;
  const int head = a.first_head + blockIdx.y * 4 + threadIdx.x / 32;
  if (head >= n_heads + 2 * n_kv_heads) return;
  float* row = a.qkv + (static_cast<size_t>(token) * (n_heads + 2 * n_kv_heads) + head) * dim;
  float* shared = heads + threadIdx.x / 32 * MAX_DIM;
  const bool is_query = head < n_heads, is_value = head >= n_heads + n_kv_heads;

  // All loads are issued before any is waited for.
  const float* angles = is_value || !a.angles ? nullptr : a.angles + static_cast<size_t>(token) * a.rope_dim;
  const int n_pairs = angles ? a.rope_dim / 2 : 0;
  HeadOf<N> h;
  float cosines[N / 2], sines[N / 2];
#pragma unroll
  for (int j = 0; j < N; j++) h.x[j] = lane + 32 * j < dim ? row[lane + 32 * j] : 0.0f;
#pragma unroll
  for (int j = 0; j < N / 2; j++) {
    if (lane + 32 * j < n_pairs) cosines[j] = angles[lane + 32 * j], sines[j] = angles[n_pairs + lane + 32 * j];
  }
  uint8_t* cached = nullptr;
  if (!is_query) {
    const uint32_t position = a.positions[token];
    const size_t block = a.block_tables[a.table_starts[token] + position / a.block_size];
    const int kv_head = is_value ? head - n_heads - n_kv_heads : head - n_heads;
    const size_t slot = (block * n_kv_heads + kv_head) * a.block_size + position % a.block_size;
    cached = (is_value ? a.v_cache : a.k_cache) + slot * a.head_bytes;
  }

  if (!is_value && a.q_weight) {
    norm_head(h, dim, lane, is_query ? a.q_weight : a.k_weight, is_query ? a.q_bias : a.k_bias, a.layer,
              is_query ? a.q_eps : a.k_eps);
  }
#pragma unroll
  for (int j = 0; j < N; j++) {
    if (lane + 32 * j < dim) shared[lane + 32 * j] = h.x[j];
  }
  __syncwarp();
#pragma unroll
  for (int j = 0; j < N / 2; j++) {
    if (lane + 32 * j < n_pairs) rotate_pair(shared, lane + 32 * j, n_pairs, a.interleaved, cosines[j], sines[j]);
  }
  __syncwarp();
  if (!is_value) {
#pragma unroll
    for (int j = 0; j < N; j++) {
      if (lane + 32 * j < dim) row[lane + 32 * j] = shared[lane + 32 * j];
    }
  }
  if (!is_query) write_head<T>(cached, shared, dim, lane);
}

template <class T>
DEVICE void store_kv(const StoreArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  __shared__ float heads[4 * MAX_DIM];
  if (a.head_dim <= MAX_DIM / 2) {
    store_head<T, MAX_DIM / 64>(a, heads);
  } else {
    store_head<T, MAX_DIM / 32>(a, heads);
  }
}

#define STORE_KV(T) \
  KERNEL(store_kv_##T, StoreArgs, 128) { store_kv<T>(a); }
STORE_KV(F32) STORE_KV(F16) STORE_KV(BF16) STORE_KV(Q8_0)
