// The kernels of gemv.cuh whose sums are added up in the order that is fastest.
#include "gemv.cuh"

// One row of x. Two blocks, of one kernel and the next, fit an SM. More threads suit weights that take more work, and more rows.
KERNEL_2(gemv_256, GemvArgs, 256) { multiply_parts<256, true, true>(a); }
KERNEL_2(gemv_384, GemvArgs, 384) { multiply_parts<384, false, true>(a); }
KERNEL_2(gemv_512, GemvArgs, 512) { multiply_parts<512, false, true>(a); }
// The same for a GPU among several; what one does alone stays as short as it is.
KERNEL_2(gemv_256_ranks, GemvRanksArgs, 256) { multiply_parts<256, true, true>(a.product, WithRanks{&a.ranks}); }
KERNEL_2(gemv_384_ranks, GemvRanksArgs, 384) { multiply_parts<384, false, true>(a.product, WithRanks{&a.ranks}); }
KERNEL_2(gemv_512_ranks, GemvRanksArgs, 512) { multiply_parts<512, false, true>(a.product, WithRanks{&a.ranks}); }
// Rows of x with the experts that each uses.
KERNEL_2(gemv_256_experts, GemvExpertsArgs, 256) { multiply_parts<256, true, true>(a.product, OfExperts{&a}); }
KERNEL_2(gemv_384_experts, GemvExpertsArgs, 384) { multiply_parts<384, false, true>(a.product, OfExperts{&a}); }
// Up to 8 rows.
KERNEL(gemv_8, GemvArgs, 384) { multiply_parts<384, true, false>(a); }
