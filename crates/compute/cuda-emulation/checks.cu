// Small kernels that show what the emulation of Hopper does: tests/ops/hopper.rs says what it should.
#include "../src/cuda/common/hopper_i8.cuh"
#include "../src/cuda/common/kernel.cuh"
#include "../src/cuda/common/pipeline.cuh"

// Fills shared memory with bytes, by all threads.
static void fill(unsigned char* shared, const uint8_t* from, uint32_t bytes) {
  for (uint32_t i = threadIdx.x; i < bytes; i += blockDim.x) shared[i] = from[i];
  ptx::fence_proxy_async_shared();
  __syncthreads();
}

enum CheckedProduct : uint32_t { SHARED_F16, SHARED_BF16, SHARED_S8, REGISTERS_F16, REGISTERS_BF16, REGISTERS_F16_ROWS, REGISTERS_S8, REGISTERS_U8 };

struct CheckProductArgs {
  // What lies in shared memory, and the descriptions of matrices there but for their addresses: of them the bytes from its begin on.
  const uint8_t* image;
  // [128, 4] words of each thread
  const uint32_t* registers;
  // [128, 8, 4] as threads hold it, before and after
  uint32_t* d;
  uint64_t a, b;
  uint32_t image_bytes, a_at, b_at, product, adds;
};

template <class D, class Multiply>
static void check_product(const CheckProductArgs& a, uint32_t shared, Multiply multiply) {
  D d[8][4];
  uint32_t* mine = a.d + threadIdx.x * 32;
  memcpy(d, mine, sizeof d);
  ptx::wgmma_fence();
  multiply(d, a.a | (shared + a.a_at) >> 4, a.b | (shared + a.b_at) >> 4);
  ptx::wgmma_commit();
  ptx::wgmma_wait<0>();
  memcpy(mine, d, sizeof d);
}

KERNEL(check_product, CheckProductArgs, 128) {
  DYNAMIC_SHARED_TILES(shared);
  fill(shared, a.image, a.image_bytes);
  const uint32_t at = ptx::shared_address(shared), adds = a.adds;
  uint32_t r[4];
  memcpy(r, a.registers + threadIdx.x * 4, sizeof r);
  typedef float(&Floats)[8][4];
  switch (a.product) {
    case SHARED_F16: check_product<float>(a, at, [=](Floats d, uint64_t x, uint64_t y) { ptx::wgmma_ss_f16(d, x, y, adds); }); break;
    case SHARED_BF16: check_product<float>(a, at, [=](Floats d, uint64_t x, uint64_t y) { ptx::wgmma_ss_bf16(d, x, y, adds); }); break;
    case SHARED_S8: check_product<int>(a, at, [=](int(&d)[8][4], uint64_t x, uint64_t y) { ptx::wgmma_ss_s8(d, x, y, adds); }); break;
    case REGISTERS_F16: check_product<float>(a, at, [&](Floats d, uint64_t, uint64_t y) { ptx::wgmma_rs_f16<true>(d, r, y, adds); }); break;
    case REGISTERS_BF16: check_product<float>(a, at, [&](Floats d, uint64_t, uint64_t y) { ptx::wgmma_rs_bf16<true>(d, r, y, adds); }); break;
    case REGISTERS_S8: check_product<int>(a, at, [&](int(&d)[8][4], uint64_t, uint64_t y) { ptx::wgmma_rs_s8(d, r, y, adds); }); break;
    case REGISTERS_U8: check_product<int>(a, at, [&](int(&d)[8][4], uint64_t, uint64_t y) { ptx::wgmma_rs_u8(d, r, y, adds); }); break;
    default: check_product<float>(a, at, [&](Floats d, uint64_t, uint64_t y) { ptx::wgmma_rs_f16<false>(d, r, y, adds); });
  }
}

struct CheckBoxArgs {
  // What shared memory has after the copy
  uint8_t* image;
  int32_t coordinates[5];
  uint32_t bytes;
  ptx::TensorMap map;
};

KERNEL(check_box, CheckBoxArgs, 32) {
  DYNAMIC_SHARED_TILES(shared);
  __shared__ uint64_t barrier;
  const Barrier b = {ptx::shared_address(&barrier)};
  if (threadIdx.x == 0) b.init(1);
  __syncthreads();
  if (threadIdx.x == 0) {
    b.expect(a.bytes);
    const int32_t(&c)[5] = a.coordinates;
    const uint32_t to = ptx::shared_address(shared);
    if (c[2] < 0) ptx::tma_load(to, &a.map, c[0], c[1], b.at);
    else ptx::tma_load(to, &a.map, c[0], c[1], c[2], c[3], c[4], b.at);
  }
  b.wait(0);
  for (uint32_t i = threadIdx.x; i < a.bytes; i += 32) a.image[i] = shared[i];
}

struct CheckRingArgs {
  const uint8_t* from;  // [n, 512]
  uint8_t* to;
  uint32_t n;
};

// A producer, and two warps that each copy half of every stage out in the background.
KERNEL(check_ring, CheckRingArgs, 96) {
  constexpr uint32_t STAGES = 3, BYTES = 512;
  DYNAMIC_SHARED(shared);
  __shared__ uint64_t full[STAGES], empty[STAGES];
  if (threadIdx.x < STAGES) ptx::mbarrier_init(full + threadIdx.x, 1), ptx::mbarrier_init(empty + threadIdx.x, 2);
  __syncthreads();
  Ring ring(full, empty, STAGES);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < a.n; i++, ring.next()) {
    unsigned char* stage = shared + ring.stage * BYTES;
    if (warp == 2) {
      if (lane != 0) continue;
      ring.wait_empty();
      ring.expect(BYTES);
      ptx::cp_async_bulk(ptx::shared_address(stage), a.from + i * BYTES, BYTES, ring.full().at);
      continue;
    }
    ring.wait_full();
    if (lane == 0) {
      ptx::cp_async_bulk_store(a.to + i * BYTES + warp * (BYTES / 2), ptx::shared_address(stage) + warp * (BYTES / 2), BYTES / 2);
      ptx::cp_async_bulk_wait_read();
    }
    __syncwarp();
    ring.release(lane);
  }
}

struct CheckClusterArgs {
  float* sums;  // [blocks]
  uint32_t* flags;
};

// Blocks (rank in the cluster, cluster). Each leaves a number in its shared memory, and adds up those of its cluster. Clusters wait for the
// next one's flag.
KERNEL(check_cluster, CheckClusterArgs, 64) {
  DYNAMIC_SHARED(shared);
  float* mine = reinterpret_cast<float*>(shared);
  const uint32_t rank = blockIdx.x, cluster = blockIdx.y, block = cluster * gridDim.x + rank;
  if (threadIdx.x < 4) mine[threadIdx.x] = static_cast<float>(10 * block + threadIdx.x);
  ptx::cluster_sync();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (uint32_t r = 0; r < gridDim.x; r++) {
      const float4 v = ptx::ld_shared_cluster(ptx::mapa(mine, r));
      sum += v.x + v.y + v.z + v.w;
    }
    if (cluster + 1 < gridDim.y) ptx::wait_and_clear(a.flags + block + gridDim.x);
    a.sums[block] = sum;
    if (cluster > 0) ptx::announce(a.flags + block);
  }
  ptx::cluster_sync_relaxed();
}
