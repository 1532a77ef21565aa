// The products of one row by gemv.cuh with the bits that small_m.cu has for any number of rows, and grouped_small_m.cu for experts.
#include "gemv.cuh"

KERNEL_2(gemv_in_order_256, GemvInOrderArgs, 256) { multiply_parts<256, false, true>(a.product, InOrder{static_cast<int>(a.part_blocks)}); }
KERNEL_2(gemv_in_order_384, GemvInOrderArgs, 384) { multiply_parts<384, false, true>(a.product, InOrder{static_cast<int>(a.part_blocks)}); }
KERNEL_2(gemv_in_order_512, GemvInOrderArgs, 512) { multiply_parts<512, false, true>(a.product, InOrder{static_cast<int>(a.part_blocks)}); }
// Rows of x with the experts that each uses.
KERNEL_2(gemv_in_order_256_experts, GemvExpertsArgs, 256) { multiply_parts<256, false, true>(a.product, OfExpertsInOrder{&a}); }
KERNEL_2(gemv_in_order_384_experts, GemvExpertsArgs, 384) { multiply_parts<384, false, true>(a.product, OfExpertsInOrder{&a}); }
