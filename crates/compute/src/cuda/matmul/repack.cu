// The conversion of weights from a file's blocks to the packed layouts (common/packed.cuh), once, when they are loaded.
//
// A thread converts a piece of 64 weights.
#include "packed.cuh"
#include "repack_args.cuh"

#define REPACK(Q)                                                                                                \
  KERNEL(repack_Packed_##Q, RepackArgs, 128) {                                                                          \
    const uint64_t i = static_cast<uint64_t>(blockIdx.x) * 128 + threadIdx.x;                                    \
    const uint32_t per_row = a.n / 64;                                                                           \
    ptx::griddepcontrol_wait();                                                                             \
    if (i >= a.n_pieces) return;                                                                                 \
    const uint64_t row = i / per_row;                                                                            \
    Packed_##Q::pack(a.packed + row * a.packed_row_bytes, a.source + row * a.source_row_bytes, static_cast<int>(i % per_row), a.n); \
  }
FOR_EACH_PACKED(REPACK)
