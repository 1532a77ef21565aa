// The scheduler of fibers and blocks, and the entry point of tests.
#include "async_state.hpp"
#include <cstdio>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emulation {

// Not a power of two, so that the tops of the stacks lie in different sets of the processor's caches.
constexpr size_t STACK_BYTES = (64 << 10) + 17 * 64;
// Dynamic shared memory of a block at most.
constexpr size_t MAX_DYNAMIC = 256 << 10;

Block* block;
Dim3 thread_index, block_index, block_dim, grid_dim;
unsigned dynamic_bytes;
uint64_t progress;

static Kernel* kernels;
static void (*body)(const void*);
static const void* arguments;
static void* scheduler_stack_pointer;
// `progress` when the last round of a block's fibers ended.
static uint64_t progress_before;
// The memory of `__shared__` variables in the thread that runs the kernel, and the block whose values they have.
static unsigned char* static_shared;
static size_t static_bytes;
static Block* loaded;

Kernel::Kernel(const char* name, size_t args_bytes, void (*run)(const void*)) : name(name), args_bytes(args_bytes), run(run), next(kernels) {
  kernels = this;
}

void die(const char* what) {
  if (block) {
    fprintf(stderr, "thread %u of block (%u, %u, %u): ", thread(), block->index.x, block->index.y, block->index.z);
  }
  fprintf(stderr, "%s\n", what);
  abort();
}

uint32_t address_of(const void* p) {
  const unsigned char* q = static_cast<const unsigned char*>(p);
  const ptrdiff_t in_dynamic = q - block->dynamic_shared, in_static = q - static_shared;
  if (in_dynamic >= 0 && in_dynamic <= static_cast<ptrdiff_t>(DYNAMIC_OFFSET + dynamic_bytes)) {
    return DYNAMIC_AT + static_cast<uint32_t>(in_dynamic);
  }
  if (in_static >= 0 && in_static <= static_cast<ptrdiff_t>(static_bytes)) return STATIC_AT + static_cast<uint32_t>(in_static);
  die("the shared address of what is not in shared memory");
}

unsigned char* at(uint32_t address, uint32_t bytes) {
  const Block* of = block;
  if (address >> 24) {
    const Cluster& cluster = *block->cluster;
    const unsigned rank = (address >> 24) - 1;
    if (rank >= cluster.n || cluster.blocks[rank]->n_live == 0) die("shared memory of a block that is not there");
    of = cluster.blocks[rank];
  }
  const uint64_t from = address & 0xffffff, to = from + bytes;
  if (from >= DYNAMIC_AT && to <= DYNAMIC_AT + DYNAMIC_OFFSET + dynamic_bytes) return of->dynamic_shared + (from - DYNAMIC_AT);
  if (from >= STATIC_AT && to <= STATIC_AT + static_bytes) {
    return (of == loaded ? static_shared : of->saved_shared) + (from - STATIC_AT);
  }
  die("an access outside of shared memory");
}

uint32_t map_address(uint32_t address, uint32_t rank) {
  if (rank >= block->cluster->n) die("a block that the cluster does not have");
  return (address & 0xffffff) | (rank + 1) << 24;
}

void sync_cluster() { wait(block->cluster->barrier); }

#if defined(__x86_64__)
asm(R"(
.text
.globl emulation_switch
.hidden emulation_switch
emulation_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
#else
#error "the emulation switches stacks on x86-64 only"
#endif

static void select(unsigned i) {
  block->current = i;
  thread_index.x = i;
}

// The next fiber of the block that may run, after the current one, which comes last; `block_dim.x` if there is none.
static unsigned next_fiber() {
  const unsigned self = block->current, n = block_dim.x;
  for (unsigned i = self + 1; i < n; i++) {
    if (may_run(i)) return i;
  }
  for (unsigned i = 0; i <= self; i++) {
    if (may_run(i)) return i;
  }
  return n;
}

void yield() {
  Block& b = *block;
  const unsigned self = b.current, next = next_fiber();
  void** save = &b.fibers[self].stack_pointer;
  if (next == block_dim.x) {
    emulation_switch(save, scheduler_stack_pointer);
    return;
  }
  if (next <= self) {
    // A round is over. If nothing has happened in it, the block waits for others.
    const bool waits = progress == progress_before;
    progress_before = progress;
    if (waits) {
      b.current = next;
      emulation_switch(save, scheduler_stack_pointer);
      return;
    }
    if (next == self) return;
  }
  switch_to(next);
}

void await(const Barrier& b, unsigned round) {
  const unsigned self = block->current;
  block->rounds[self] = &b.round, block->waited[self] = round;
  while (b.round == round) yield();
  block->rounds[self] = &NOTHING, block->waited[self] = 0;
}

// As `wait`, which is called for every exchange of lanes: most often the next lane, around the warp, is the one to go on with. So a warp runs
// until it waits for others, and what its lanes use stays in the processor's nearest cache.
void wait_for_warp() {
  Block& b = *block;
  const unsigned self = b.current, first = self & ~31u, end = std::min(first + 32, block_dim.x), next = self + 1 < end ? self + 1 : first;
  Barrier& w = b.warps[self / 32];
  const unsigned round = w.round;
  progress++;
  if (++w.arrived == w.live) {
    w.arrived = 0;
    w.round++;
    return;
  }
  b.rounds[self] = &w.round, b.waited[self] = round;
  do {
    if (may_run(next)) switch_to(next);
    else yield();
  } while (w.round == round);
  b.rounds[self] = &NOTHING, b.waited[self] = 0;
}

static void leave(Barrier& b) {
  progress++;
  b.live--;
  if (b.live && b.arrived == b.live) {
    b.arrived = 0;
    b.round++;
  }
}

static void run_fiber() {
  body(arguments);
  Block& b = *block;
  const unsigned self = b.current;
  leave(b.all);
  leave(warp());
  leave(b.cluster->barrier);
  b.async->end_thread(self);
  b.rounds[self] = &NEVER, b.waited[self] = NEVER;
  void** save = &b.fibers[self].stack_pointer;
  if (--b.n_live == 0) {
    b.async->end_block();
    emulation_switch(save, scheduler_stack_pointer);
  }
  unsigned next = next_fiber();
  if (next == block_dim.x) {
    // All that are left wait for other blocks; the first of them is where the block goes on.
    next = 0;
    while (b.rounds[next] == &NEVER) next++;
    b.current = next;
    emulation_switch(save, scheduler_stack_pointer);
  }
  if (next <= self) progress_before = progress - 1;
  select(next);
  emulation_switch(save, b.fibers[next].stack_pointer);
  abort();
}

static void* map_pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) die("no memory for a block");
  return p;
}

// Memory for blocks, kept from launch to launch.
static std::vector<Block*> idle;

static Block* new_block() {
  Block* b = new Block();
  const size_t page = sysconf(_SC_PAGESIZE);
  b->stacks = static_cast<unsigned char*>(map_pages(MAX_THREADS * STACK_BYTES));
  // An access past the end of dynamic shared memory stops the test.
  unsigned char* memory = static_cast<unsigned char*>(map_pages(MAX_DYNAMIC + page));
  if (mprotect(memory + MAX_DYNAMIC, page, PROT_NONE) != 0) die("memory cannot be protected");
  b->dynamic_end = memory + MAX_DYNAMIC;
  b->saved_shared = static_cast<unsigned char*>(map_pages(static_bytes));
  b->async = new Async();
  return b;
}

static Block* start_block(Dim3 index, Cluster* cluster) {
  if (idle.empty()) idle.push_back(new_block());
  Block& b = *idle.back();
  idle.pop_back();
  const unsigned n = block_dim.x;
  b.all = {n, 0, 0};
  for (unsigned w = 0; w * 32 < n; w++) b.warps[w] = {n - w * 32 < 32 ? n - w * 32 : 32, 0, 0};
  memset(b.named, 0, sizeof b.named);
  b.index = index, b.current = 0, b.n_live = n, b.cluster = cluster, b.has_saved = false;
  const size_t bytes = (DYNAMIC_OFFSET + dynamic_bytes + 1023) / 1024 * 1024;
  b.dynamic_shared = b.dynamic_end - bytes;
  memset(b.dynamic_shared, 0xff, bytes);
  if (b.copies) {
    for (unsigned i = 0; i < n; i++) b.copies[i].n = b.copies[i].group = 0;
  }
  b.async->begin(n);
  for (unsigned i = 0; i < n; i++) {
    b.rounds[i] = &NOTHING, b.waited[i] = 0;
    // Six registers and the address to return to; a function expects the stack 8 bytes off a multiple of 16.
    void** top = reinterpret_cast<void**>(b.stacks + (i + 1) * STACK_BYTES) - 2;
    *top = reinterpret_cast<void*>(run_fiber);
    memset(top - 6, 0, 6 * sizeof(void*));
    b.fibers[i].stack_pointer = top - 6;
  }
  return &b;
}

// Runs a block until it is done or waits for others.
static void run_block(Block& b) {
  if (loaded != &b) {
    if (loaded) memcpy(loaded->saved_shared, static_shared, static_bytes), loaded->has_saved = true;
    if (b.has_saved) memcpy(static_shared, b.saved_shared, static_bytes);
    loaded = &b;
  }
  block = &b;
  block_index = b.index;
  progress_before = progress - 1;
  select(b.current);
  emulation_switch(&scheduler_stack_pointer, b.fibers[b.current].stack_pointer);
}

// Where variables of the thread are that belong to this library.
static void find_static_shared() {
  static thread_local unsigned char mine;
  static unsigned char* volatile address;
  address = &mine;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void*) {
        for (unsigned i = 0; i < info->dlpi_phnum; i++) {
          const auto& header = info->dlpi_phdr[i];
          unsigned char* data = static_cast<unsigned char*>(info->dlpi_tls_data);
          if (header.p_type != PT_TLS || !data || address < data || address >= data + header.p_memsz) continue;
          static_shared = data, static_bytes = header.p_memsz;
          return 1;
        }
        return 0;
      },
      nullptr);
  if (!static_shared || address < static_shared || address >= static_shared + static_bytes) die("the library's variables are not found");
}

// Runs all blocks, up to `limit` at once, in clusters of blocks that begin together.
static void run_grid(Dim3 grid, unsigned n_of_cluster, unsigned limit) {
  const uint64_t total = static_cast<uint64_t>(grid.x) * grid.y * grid.z;
  uint64_t next = 0;
  std::vector<Block*> running;
  std::vector<Cluster*> clusters;
  const auto start = [&] {
    Cluster* cluster = new Cluster{};
    clusters.push_back(cluster);
    cluster->n = n_of_cluster, cluster->barrier = {n_of_cluster * block_dim.x, 0, 0};
    for (unsigned rank = 0; rank < n_of_cluster; rank++, next++) {
      const Dim3 index = {static_cast<unsigned>(next % grid.x), static_cast<unsigned>(next / grid.x % grid.y),
                          static_cast<unsigned>(next / grid.x / grid.y)};
      running.push_back(cluster->blocks[rank] = start_block(index, cluster));
    }
  };
  while (next < total || !running.empty()) {
    if (running.empty()) start();
    const uint64_t before = progress;
    for (size_t i = 0; i < running.size(); i++) run_block(*running[i]);
    size_t kept = 0;
    for (Block* b : running) {
      if (b->n_live) running[kept++] = b;
      else idle.push_back(b);
    }
    running.resize(kept);
    if (loaded && !loaded->n_live) loaded = nullptr;
    if (progress != before) continue;
    // Hopper's kernels wait for blocks that run at the same time.
    if (next == total || running.size() + n_of_cluster > limit) die("all blocks wait for each other");
    start();
  }
  for (Cluster* c : clusters) delete c;
}

}  // namespace emulation

using namespace emulation;

// What tests call; all else is hidden, so that the kernels reach it without tables of addresses.
#pragma GCC visibility push(default)

extern "C" const void* emulation_find(const char* name) {
  for (Kernel* k = kernels; k; k = k->next) {
    if (strcmp(k->name, name) == 0) return k;
  }
  return nullptr;
}

extern "C" size_t emulation_args_bytes(const void* kernel) { return static_cast<const Kernel*>(kernel)->args_bytes; }

// `cluster`: blocks of one, in the first dimension. `limit`: blocks that may run at once.
extern "C" void emulation_launch(const void* kernel, Dim3 grid, unsigned threads, size_t shared_bytes, unsigned cluster, unsigned limit,
                                 const void* args) {
  block = nullptr, loaded = nullptr;
  if (threads > MAX_THREADS || shared_bytes + DYNAMIC_OFFSET > MAX_DYNAMIC) die("a block that is too large");
  if (cluster == 0 || cluster > Cluster::MAX || grid.x % cluster) die("blocks that are no whole clusters");
  find_static_shared();
  body = static_cast<const Kernel*>(kernel)->run;
  arguments = args;
  block_dim = {threads, 1, 1};
  grid_dim = grid;
  dynamic_bytes = static_cast<unsigned>(shared_bytes);
  reset_chance();
  run_grid(grid, cluster, limit < cluster ? cluster : limit);
}

// Memory whose end, rounded up to 16 bytes, lies at unmapped pages. It begins in its second page; the first holds its size.
extern "C" uint64_t emulation_allocate(size_t bytes) {
  const size_t page = sysconf(_SC_PAGESIZE);
  const size_t rounded = (bytes + 15) / 16 * 16, mapped = (rounded + 2 * page - 1) / page * page;
  void* start = mmap(nullptr, mapped + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return 0;
  unsigned char* first = static_cast<unsigned char*>(start);
  if (mprotect(first + mapped, page, PROT_NONE) != 0) return 0;
  unsigned char* memory = first + mapped - rounded;
  memset(memory, 0xff, rounded);
  memcpy(first, &mapped, sizeof mapped);
  return reinterpret_cast<uint64_t>(memory);
}

extern "C" void emulation_free(uint64_t memory) {
  const size_t page = sysconf(_SC_PAGESIZE);
  unsigned char* at = reinterpret_cast<unsigned char*>(memory / page * page - page);
  size_t mapped;
  memcpy(&mapped, at, sizeof mapped);
  munmap(at, mapped + page);
}

#pragma GCC visibility pop
