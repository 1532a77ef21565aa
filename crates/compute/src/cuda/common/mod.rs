//! What rooms share: layouts that one room's kernels write and another's read, and codes of kernels' parameters.
//!
//! The headers beside this file are the same for the kernels.

mod kv_slots;
mod operand;
mod route;

pub(in crate::cuda) use kv_slots::KvSlots;
pub(in crate::cuda) use operand::{Input, Output, TileLayout, TileNumber, Tiles};
pub(in crate::cuda) use route::{MAX_EXPERTS, RouteArgs};

use crate::Activation;

/// The number that kernels know a function by; activation.cuh has the same.
pub(in crate::cuda) fn activation_code(f: Activation) -> u32 {
    match f {
        Activation::Silu => 0,
        Activation::GeluTanh => 1,
        Activation::GeluErf => 2,
        Activation::ReluSquared => 3,
        Activation::Relu => 4,
        Activation::ClampedSwiglu => 5,
    }
}
