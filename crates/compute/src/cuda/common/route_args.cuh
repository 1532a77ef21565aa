// Arguments of kernels. Written by tools/kernels from route.rs; do not edit.
#pragma once
#include <cstdint>

// Most experts that the kernels hold.
constexpr int MAX_EXPERTS = 1024;

struct RouteArgs {
  // [n_tokens, n_experts]
  const float* router;
  // [n_experts], added to the scores for the choice only, or null
  const float* selection_bias;
  // [n_experts], on the weights, or null
  const float* output_scale;
  uint32_t n_experts;
  uint32_t n_used;
  uint32_t norm_topk;
  // Whether scores are sigmoids; softmax otherwise.
  uint32_t is_sigmoid;
  // On the weights.
  float scale;
  // Of consecutive experts; 1 where all are compared.
  uint32_t n_groups;
  uint32_t n_groups_used;
  // Whether groups are compared by the sum of their two best; by their best otherwise.
  uint32_t groups_by_top_two;
};
