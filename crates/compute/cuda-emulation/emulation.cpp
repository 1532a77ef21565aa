// The scheduler of fibers and the entry point of tests.
#include "cuda.hpp"
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>

namespace emulation {

constexpr size_t STACK_BYTES = 64 << 10;

Fiber fibers[MAX_THREADS];
Barrier block_barrier, warp_barriers[MAX_THREADS / 32];
unsigned current;
Dim3 thread_index, block_index, block_dim, grid_dim;
unsigned char* dynamic_shared;

static Kernel* kernels;
static void (*body)(const void*);
static const void* arguments;
static unsigned n_threads;
static void* scheduler_stack_pointer;

Kernel::Kernel(const char* name, void (*run)(const void*)) : name(name), run(run), next(kernels) { kernels = this; }

#if defined(__x86_64__)
// Saves the registers that a called function must keep and goes on with another stack.
extern "C" void emulation_switch(void** save, void* load);
asm(R"(
.text
.globl emulation_switch
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
  current = i;
  thread_index.x = i;
}

// The next fiber that is not done, after the current one; itself if it is the last.
static unsigned next_fiber() {
  unsigned i = current;
  do i = i + 1 < n_threads ? i + 1 : 0;
  while (fibers[i].done && i != current);
  return i;
}

void yield() {
  const unsigned self = current, next = next_fiber();
  if (next == self) return;
  select(next);
  emulation_switch(&fibers[self].stack_pointer, fibers[next].stack_pointer);
}

static void leave(Barrier& b) {
  b.live--;
  if (b.live && b.arrived == b.live) {
    b.arrived = 0;
    b.round++;
  }
}

static void run_fiber() {
  body(arguments);
  const unsigned self = current;
  leave(block_barrier);
  leave(warp());
  fibers[self].done = true;
  const unsigned next = next_fiber();
  if (next == self) {
    emulation_switch(&fibers[self].stack_pointer, scheduler_stack_pointer);
  } else {
    select(next);
    emulation_switch(&fibers[self].stack_pointer, fibers[next].stack_pointer);
  }
  abort();
}

static void run_block(unsigned char* stacks) {
  block_barrier = {n_threads, 0, 0};
  for (unsigned w = 0; w * 32 < n_threads; w++) {
    warp_barriers[w] = {n_threads - w * 32 < 32 ? n_threads - w * 32 : 32, 0, 0};
  }
  for (unsigned i = 0; i < n_threads; i++) {
    fibers[i].done = false;
    // Six registers and the address to return to; a function expects the stack 8 bytes off a multiple of 16.
    void** top = reinterpret_cast<void**>(stacks + (i + 1) * STACK_BYTES) - 2;
    *top = reinterpret_cast<void*>(run_fiber);
    memset(top - 6, 0, 6 * sizeof(void*));
    fibers[i].stack_pointer = top - 6;
  }
  select(0);
  emulation_switch(&scheduler_stack_pointer, fibers[0].stack_pointer);
}

}  // namespace emulation

using namespace emulation;

extern "C" const void* emulation_find(const char* name) {
  for (Kernel* k = kernels; k; k = k->next) {
    if (strcmp(k->name, name) == 0) return k;
  }
  return nullptr;
}

extern "C" void emulation_launch(const void* kernel, Dim3 grid, unsigned threads, size_t shared_bytes, const void* args) {
  static unsigned char* stacks = static_cast<unsigned char*>(aligned_alloc(64, MAX_THREADS * STACK_BYTES));
  body = static_cast<const Kernel*>(kernel)->run;
  arguments = args;
  n_threads = threads;
  block_dim = {threads, 1, 1};
  grid_dim = grid;
  dynamic_shared = static_cast<unsigned char*>(aligned_alloc(128, (shared_bytes + 255) / 128 * 128));
  for (unsigned z = 0; z < grid.z; z++) {
    for (unsigned y = 0; y < grid.y; y++) {
      for (unsigned x = 0; x < grid.x; x++) {
        block_index = {x, y, z};
        run_block(stacks);
      }
    }
  }
  free(dynamic_shared);
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
