// Copies and products in the background, for the emulation.
#include "async_state.hpp"

namespace emulation {

static uint32_t coins;

void reset_chance() { coins = 1; }

bool chance() {
  coins = coins * 1664525u + 1013904223u;
  return coins >> 31;
}

void Async::begin(unsigned n_threads) {
  loads.clear();
  for (unsigned i = 0; i < n_threads; i++) stores[i].clear();
  for (unsigned g = 0; g * ProductGroup::THREADS < n_threads; g++) products[g].begin(n_threads);
}

void Async::end_thread(unsigned thread) const {
  if (!stores[thread].empty()) die("a thread returned before its stores had read shared memory");
}

void Async::end_block() const {
  if (!loads.empty()) die("a block returned before its copies had come");
  for (const ProductGroup& g : products) {
    if (!g.pending.empty()) die("a block returned before its products were over");
  }
}

// Where a byte of a swizzled line lies: bits 4 on of its address xor those from 7 on, of as many bits as lines have vectors.
static uint32_t swizzled(uint32_t address, uint32_t line_bytes) {
  return address ^ ((address >> 7 & (line_bytes / 16 - 1)) << 4);
}

static void check_multiple(uint64_t value, uint64_t of, const char* what) {
  if (value % of) die(what);
}

static uint32_t load_bytes(const Load& load) {
  check_multiple(reinterpret_cast<uintptr_t>(load.from), 16, "a bulk copy from an address that is not a multiple of 16");
  check_multiple(load.to, 16, "a bulk copy to an address that is not a multiple of 16");
  check_multiple(load.size, 16, "a bulk copy of bytes that are not a multiple of 16");
  memcpy(at(load.to, load.size), load.from, load.size);
  return load.size;
}

// 16 bytes of a box: those of the map from `first` on, a place in its first dimension, of the line at these other coordinates.
static void load_vector(const Map& map, const int64_t (&coordinates)[5], int64_t first, unsigned char (&to)[16]) {
  memset(to, 0, sizeof to);
  uint64_t line = map.base;
  for (unsigned i = 1; i < map.rank(); i++) {
    if (coordinates[i] < 0 || coordinates[i] >= static_cast<int64_t>(map.lens[i])) return;
    line += static_cast<uint64_t>(coordinates[i]) * map.strides[i - 1];
  }
  for (int64_t j = 0; j < 16; j++) {
    const int64_t byte = first + j;
    if (byte >= 0 && byte < static_cast<int64_t>(map.lens[0])) to[j] = *reinterpret_cast<const unsigned char*>(line + byte);
  }
}

static uint32_t load_box(const Load& load) {
  const Map& map = *load.map;
  if (map.rank() != load.size) die("a box of other dimensions than its map");
  check_multiple(load.to, map.is_swizzled() ? 1024 : 128, "a box to an address that is not a multiple of its pattern");
  check_multiple(static_cast<uint32_t>(load.coordinates[0]), 16, "a box whose lines begin at bytes that are not a multiple of 16");
  uint32_t n_lines = 1, n = 0;
  for (unsigned i = 1; i < map.rank(); i++) n_lines *= static_cast<uint32_t>(map.box_lens[i]);
  for (uint32_t line = 0; line < n_lines; line++) {
    int64_t coordinates[5] = {};
    uint32_t left = line;
    for (unsigned i = 1; i < map.rank(); i++) {
      coordinates[i] = load.coordinates[i] + static_cast<int64_t>(left % map.box_lens[i]);
      left /= static_cast<uint32_t>(map.box_lens[i]);
    }
    for (uint64_t i = 0; i < map.box_lens[0]; i += 16, n += 16) {
      unsigned char vector[16];
      load_vector(map, coordinates, load.coordinates[0] + static_cast<int64_t>(i), vector);
      const uint32_t to = load.to + n;
      memcpy(at(map.is_swizzled() ? swizzled(to, 128) : to, 16), vector, 16);
    }
  }
  return n;
}

static void finish_load(const Load& load) { complete(load.barrier, load.map ? load_box(load) : load_bytes(load)); }

void start_load(const Load& load) {
  if (chance()) finish_load(load);
  else block->async->loads.push_back(load);
}

void finish_loads(uint32_t barrier) {
  auto& loads = block->async->loads;
  size_t kept = 0;
  for (size_t i = 0; i < loads.size(); i++) {
    if (loads[i].barrier == barrier) finish_load(loads[i]);
    else loads[kept++] = loads[i];
  }
  loads.resize(kept);
}

static void finish_store(const Store& store) { memcpy(store.to, at(store.from, store.bytes), store.bytes); }

void start_store(void* to, uint32_t from, uint32_t bytes) {
  check_multiple(reinterpret_cast<uintptr_t>(to), 16, "a bulk copy to an address that is not a multiple of 16");
  check_multiple(from, 16, "a bulk copy from an address that is not a multiple of 16");
  check_multiple(bytes, 16, "a bulk copy of bytes that are not a multiple of 16");
  if (chance()) finish_store({to, from, bytes});
  else block->async->stores[thread()].push_back({to, from, bytes});
}

void finish_stores() {
  auto& stores = block->async->stores[thread()];
  for (const Store& store : stores) finish_store(store);
  stores.clear();
}

// A matrix in shared memory as a product's description has it (PTX ISA, "Matrix descriptor"): lines of `line_bytes` bytes, swizzled if
// these are more than 16.
struct SharedMatrix {
  uint32_t start, leading, stride, line_bytes;

  explicit SharedMatrix(uint64_t description) {
    const auto field = [=](int shift) { return static_cast<uint32_t>(description >> shift & 0x3fff) << 4; };
    start = field(0), leading = field(16), stride = field(32);
    const uint32_t LINES[4] = {16, 128, 64, 32};
    line_bytes = LINES[description >> 62];
    if (description >> 49 & 7) die("a matrix that begins within a pattern");
  }

  void read(uint32_t offset, unsigned char* to) const { memcpy(to, at(swizzled(start + offset, line_bytes), 16), 16); }

  // The 32 bytes of a row, each row's contiguous: groups of 8 rows, a line to each; without a swizzle 16 bytes to a line.
  void row(uint32_t row, unsigned char (&to)[32]) const {
    const uint32_t line = row / 8 * stride + row % 8 * line_bytes, next = line_bytes == 16 ? leading : 16;
    read(line, to), read(line + next, to + 16);
  }

  // Columns 8 i to 8 i + 7 of row k of 16, each row's contiguous: groups of 8 rows, of which each line has as many columns as it has room
  // for, and the next columns' lines are `leading` bytes further on; without a swizzle the two exchange their roles.
  void columns(uint32_t k, uint32_t i, unsigned char (&to)[16]) const {
    const uint32_t vectors = line_bytes / 16;
    const uint32_t offset = line_bytes == 16 ? i * stride + k / 8 * leading : i / vectors * leading + i % vectors * 16 + k / 8 * stride;
    read(offset + k % 8 * line_bytes, to);
  }
};

static float to_float(Number number, uint16_t bits) {
  return number == Number::F16 ? ptx::f16_to_f32(bits) : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

constexpr unsigned MAX_K = 32, M = 64, MAX_N = 256;

// A product's operands as numbers, and what it adds.
template <class T>
struct Numbers {
  T a[M][MAX_K], b[MAX_K][MAX_N], sums[M][MAX_N];
};

static void unpack(Number number, const unsigned char (&bytes)[32], float* to) {
  for (unsigned k = 0; k < 16; k++) {
    uint16_t bits;
    memcpy(&bits, bytes + 2 * k, 2);
    to[k] = to_float(number, bits);
  }
}

static void unpack(Number, const unsigned char (&bytes)[32], int* to) {
  for (unsigned k = 0; k < 32; k++) to[k] = static_cast<int8_t>(bytes[k]);
}

// The first operand as threads hold it: with g = lane / 4 and t = lane % 4 columns 2 t and 2 t + 1 of row g of the warp's 16, of row
// g + 8, and columns 2 t + 8 and 2 t + 9 of these.
static void take_registers(const ProductGroup::Pending& p, float (*a)[MAX_K]) {
  for (unsigned thread = 0; thread < ProductGroup::THREADS; thread++) {
    const unsigned g = thread % 32 / 4, t = thread % 4;
    for (unsigned i = 0; i < 4; i++) {
      for (unsigned h = 0; h < 2; h++) {
        a[thread / 32 * 16 + g + i % 2 * 8][2 * t + h + i / 2 * 8] = to_float(p.product.number, static_cast<uint16_t>(p.a[thread][i] >> 16 * h));
      }
    }
  }
}

// The same of integers: columns 4 t to 4 t + 3 of these rows, and 4 t + 16 to 4 t + 19.
static void take_registers(const ProductGroup::Pending& p, int (*a)[MAX_K]) {
  for (unsigned thread = 0; thread < ProductGroup::THREADS; thread++) {
    const unsigned g = thread % 32 / 4, t = thread % 4;
    for (unsigned i = 0; i < 4; i++) {
      for (unsigned j = 0; j < 4; j++) {
        const uint8_t byte = static_cast<uint8_t>(p.a[thread][i] >> 8 * j);
        a[thread / 32 * 16 + g + i % 2 * 8][4 * t + j + i / 2 * 16] = p.product.number == Number::U8 ? byte : static_cast<int8_t>(byte);
      }
    }
  }
}

// sums = a b
template <class T>
__attribute__((optimize("O3"))) void multiply(Numbers<T>& v, unsigned n, unsigned n_k) {
  for (unsigned row = 0; row < M; row++) {
    for (unsigned c = 0; c < n; c++) v.sums[row][c] = 0;
    for (unsigned k = 0; k < n_k; k++) {
      const T x = v.a[row][k];
      for (unsigned c = 0; c < n; c++) v.sums[row][c] += x * v.b[k][c];
    }
  }
}

// Computes a product. A thread's part of the result: with g and t as above columns 8 j + 2 t and 8 j + 2 t + 1 of rows g and g + 8.
template <class T>
void compute(const ProductGroup::Pending& p, unsigned n_k) {
  static Numbers<T> v;
  const Product& product = p.product;
  const unsigned n = 8 * product.n_eighths;
  unsigned char bytes[32], vector[16];
  if (product.in_registers) {
    take_registers(p, v.a);
  } else {
    const SharedMatrix a(product.a);
    for (unsigned row = 0; row < M; row++) a.row(row, bytes), unpack(product.number, bytes, v.a[row]);
  }
  const SharedMatrix b(product.b);
  for (unsigned c = 0; c < n && !product.b_rows; c++) {
    T column[MAX_K];
    b.row(c, bytes), unpack(product.number, bytes, column);
    for (unsigned k = 0; k < n_k; k++) v.b[k][c] = column[k];
  }
  for (unsigned i = 0; i < n / 8 * 16 && product.b_rows; i++) {
    b.columns(i % 16, i / 16, vector);
    for (unsigned c = 0; c < 8; c++) {
      uint16_t bits;
      memcpy(&bits, vector + 2 * c, 2);
      v.b[i % 16][i / 16 * 8 + c] = static_cast<T>(to_float(product.number, bits));
    }
  }
  multiply(v, n, n_k);
  for (unsigned thread = 0; thread < ProductGroup::THREADS; thread++) {
    T(*d)[4] = static_cast<T(*)[4]>(p.d[thread]);
    const unsigned row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (unsigned j = 0; j < product.n_eighths; j++) {
      for (unsigned c = 0; c < 4; c++) {
        const T sum = v.sums[row + c / 2 * 8][8 * j + column + c % 2];
        d[j][c] = product.adds ? d[j][c] + sum : sum;
      }
    }
  }
}

void ProductGroup::begin(unsigned n_threads) {
  barrier = {THREADS < n_threads ? THREADS : n_threads, 0, 0};
  pending.clear();
  n_over = 0;
  for (Thread& t : threads) t = {0, 0, false};
}

void ProductGroup::finish(unsigned group) {
  size_t n = 0;
  for (; n < pending.size() && pending[n].group < group; n++) {
    if (pending[n].n_started != THREADS) die("a product without all threads of its warps");
    if (pending[n].product.number >= Number::S8) compute<int>(pending[n], 32);
    else compute<float>(pending[n], 16);
  }
  pending.erase(pending.begin(), pending.begin() + static_cast<ptrdiff_t>(n));
  n_over += static_cast<unsigned>(n);
}

static ProductGroup& my_group() { return block->async->products[thread() / ProductGroup::THREADS]; }
static ProductGroup::Thread& me() { return my_group().threads[thread() % ProductGroup::THREADS]; }

static bool is_same(const Product& a, const Product& b) {
  return a.number == b.number && a.n_eighths == b.n_eighths && a.in_registers == b.in_registers && a.b_rows == b.b_rows &&
         a.adds == b.adds && a.a == b.a && a.b == b.b;
}

void start_product(const Product& product, void* d, const uint32_t* a) {
  ProductGroup& g = my_group();
  ProductGroup::Thread& t = me();
  if (!t.is_fenced) die("a product after registers were touched, without a fence");
  const unsigned i = t.n_started++ - g.n_over;
  if (i >= g.pending.size()) g.pending.push_back({product, t.group, 0, {}, {}});
  ProductGroup::Pending& p = g.pending[i];
  if (!is_same(p.product, product) || p.group != t.group) die("threads of four warps with different products");
  p.d[thread() % ProductGroup::THREADS] = d, p.a[thread() % ProductGroup::THREADS] = a;
  p.n_started++;
}

void fence_products() { me().is_fenced = true; }

void commit_products() {
  ProductGroup& g = my_group();
  const unsigned group = ++me().group;
  wait(g.barrier, [&] {
    if (chance()) g.finish(group);
  });
}

void wait_for_products(unsigned n_left) {
  ProductGroup& g = my_group();
  ProductGroup::Thread& t = me();
  t.is_fenced = false;
  const unsigned group = t.group < n_left ? 0 : t.group - n_left;
  wait(g.barrier, [&] { g.finish(group); });
}

}  // namespace emulation
