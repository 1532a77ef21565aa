// Arguments of kernels. Written by tools/kernels from repack.rs; do not edit.
#pragma once
#include <cstdint>

struct RepackArgs {
  // [n_rows] rows of `packed_row_bytes`
  uint8_t* packed;
  // [n_rows] rows of `source_row_bytes`
  const uint8_t* source;
  uint64_t packed_row_bytes;
  uint64_t source_row_bytes;
  // of all rows
  uint64_t n_pieces;
  // weights in a row
  uint32_t n;
};
