// What precedes latent attention: the norm and rotation of what is kept of a token, on its way to the cache, and the rotation of queries.
//
// Block of 4 warps: blockIdx.x is the token. With blockIdx.y 0 it keeps the token: norms its vector, rotates the rest, and warp 0 writes both.
// The others rotate ends of 4 query heads, a warp each. Shared memory: 4 KiB static. Moves: the rows and the ends of queries once.
#include "heads.cuh"
#include "latent_args.cuh"

constexpr int THREADS = 128;
constexpr int MAX_KEY_DIM = 1024;

// Pair `i` of `from`, rotated, goes to `to`, which may be `from`.
DEVICE void rotate_to(float* to, const float* from, const LatentArgs& a, int i) {
  const int n = a.rope_dim / 2, p = a.interleaved ? 2 * i : i, q = a.interleaved ? 2 * i + 1 : i + n;
  const float* angles = a.angles + static_cast<size_t>(blockIdx.x) * a.rope_dim;
  const float x = from[p], y = from[q], c = angles[i], s = angles[n + i];
  to[p] = x * c - y * s;
  to[q] = x * s + y * c;
}

DEVICE void rotate_query(const LatentArgs& a, int head, int lane) {
  const size_t row = static_cast<size_t>(blockIdx.x) * a.n_heads + head;
  const float* from = a.q + row * (a.nope_dim + a.rope_dim) + a.nope_dim;
  float* to = a.queries + row * (a.kv_rank + a.rope_dim) + a.kv_rank;
  for (int i = lane; i < static_cast<int>(a.rope_dim) / 2; i += 32) rotate_to(to, from, a, i);
}

template <class T>
DEVICE void keep_token(const LatentArgs& a) {
  __shared__ __align__(16) float key[MAX_KEY_DIM];
  __shared__ float scratch[THREADS / 32];
  const int rank = a.kv_rank, key_dim = rank + a.rope_dim, tid = threadIdx.x;
  const float* row = a.latent + static_cast<size_t>(blockIdx.x) * key_dim;
  float mean = 0, sum = 0;
  for (int i = tid; i < rank; i += THREADS) key[i] = row[i], sum += row[i];
  if (a.layer) mean = block_sum(sum, scratch) / rank;
  sum = 0;
  for (int i = tid; i < rank; i += THREADS) sum += (key[i] - mean) * (key[i] - mean);
  const float inv = 1.0f / sqrtf(block_sum(sum, scratch) / rank + a.eps);
  for (int i = tid; i < rank; i += THREADS) key[i] = (key[i] - mean) * inv * a.weight[i] + (a.bias ? a.bias[i] : 0.0f);
  for (int i = tid; i < static_cast<int>(a.rope_dim) / 2; i += THREADS) rotate_to(key + rank, row + rank, a, i);
  __syncthreads();
  if (tid >= 32) return;
  const uint32_t position = a.positions[blockIdx.x];
  const size_t block = a.block_tables[a.table_starts[blockIdx.x] + position / a.block_size];
  write_head<T>(a.cache + (block * a.block_size + position % a.block_size) * a.key_bytes, key, key_dim, tid);
}

template <class T>
DEVICE void store_latent(const LatentArgs& a) {
  ptx::launch_dependents();
  ptx::griddepcontrol_wait();
  const int head = (static_cast<int>(blockIdx.y) - 1) * (THREADS / 32) + threadIdx.x / 32;
  if (blockIdx.y == 0) {
    keep_token<T>(a);
  } else if (head < static_cast<int>(a.n_heads)) {
    rotate_query(a, head, threadIdx.x % 32);
  }
}

#define STORE_LATENT(T) \
  KERNEL(store_latent_##T, LatentArgs, THREADS) { store_latent<T>(a); }
STORE_LATENT(F32) STORE_LATENT(F16) STORE_LATENT(BF16) STORE_LATENT(Q8_0)
