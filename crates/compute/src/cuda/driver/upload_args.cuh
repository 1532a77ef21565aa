// Arguments of kernels. Written by tools/kernels from upload.rs; do not edit.
#pragma once
#include <cstdint>

// Most words that fit the arguments of a kernel.
constexpr int UPLOAD_WORDS = 1000;

struct UploadArgs {
  uint32_t* y;
  uint32_t n;
  uint32_t words[UPLOAD_WORDS];
};
