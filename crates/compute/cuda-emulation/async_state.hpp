// What blocks have under way in the background.
#pragma once
#include "hopper.hpp"
#include <vector>

namespace emulation {

struct Cluster {
  static constexpr unsigned MAX = 16;
  Barrier barrier;
  unsigned n;
  Block* blocks[MAX];
};

// Whether something happens at once: a coin that falls alike in every run.
bool chance();
void reset_chance();

struct Store {
  void* to;
  uint32_t from, bytes;
};

// The products of 4 warps.
struct ProductGroup {
  static constexpr unsigned THREADS = 128;
  struct Pending {
    Product product;
    unsigned group, n_started;
    void* d[THREADS];
    const uint32_t* a[THREADS];
  };
  Barrier barrier;
  // In order; those before number `n_over` are over.
  std::vector<Pending> pending;
  unsigned n_over;
  struct Thread {
    unsigned n_started, group;
    bool is_fenced;
  } threads[THREADS];

  void begin(unsigned n_threads);
  // Computes the products of all groups before this one.
  void finish(unsigned group);
};

struct Async {
  std::vector<Load> loads;
  std::vector<Store> stores[MAX_THREADS];
  ProductGroup products[MAX_THREADS / ProductGroup::THREADS];

  void begin(unsigned n_threads);
  // When a thread or a block returns, nothing may be under way.
  void end_thread(unsigned thread) const;
  void end_block() const;
};

}  // namespace emulation
