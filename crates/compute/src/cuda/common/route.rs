//! How a router's scores become a choice of experts: what the kernels that choose are told; route.cuh has what they do.

use super::super::driver::{DevicePtr, kernel_args};

kernel_args! {
    in "route_args.cuh";

    /// Most experts that the kernels hold.
    const MAX_EXPERTS: usize = 1024;

    struct RouteArgs {
        /// [n_tokens, n_experts]
        router: DevicePtr as "const float*",
        /// [n_experts], added to the scores for the choice only, or null
        selection_bias: DevicePtr as "const float*",
        /// [n_experts], on the weights, or null
        output_scale: DevicePtr as "const float*",
        n_experts: u32,
        n_used: u32,
        norm_topk: u32,
        /// Whether scores are sigmoids; softmax otherwise.
        is_sigmoid: u32,
        /// On the weights.
        scale: f32,
        /// Of consecutive experts; 1 where all are compared.
        n_groups: u32,
        n_groups_used: u32,
        /// Whether groups are compared by the sum of their two best; by their best otherwise.
        groups_by_top_two: u32,
    }
}
