//! Queries, keys and values that a product stores as attention reads them.

use super::super::driver::{DevicePtr, kernel_args};

kernel_args! {
    in "kv_slots_args.cuh";

    /// Where queries of 16 bits go, and the keys and values of the same rows in a cache of such.
    struct KvSlots {
        /// [m, first_key]
        q: DevicePtr as "uint8_t*",
        /// [n_blocks, n_kv_heads, block_size, head_dim]
        k: DevicePtr as "uint8_t*",
        v: DevicePtr as "uint8_t*",
        /// [m]
        positions: DevicePtr as "const uint32_t*",
        /// [m]
        table_starts: DevicePtr as "const uint32_t*",
        block_tables: DevicePtr as "const uint32_t*",
        /// outputs before this one are queries
        first_key: u32,
        /// and from this one on they are values
        first_value: u32,
        /// column of the first of y's outputs
        first_out: u32,
        n_kv_heads: u32,
        /// a multiple of 8
        head_dim: u32,
        block_size: u32,
        /// a TileNumber of all three, though half precision has no factor here; NO_TILES: all outputs go to y
        number: u32,
    }
}

impl KvSlots {
    /// All outputs go to y.
    pub(in crate::cuda) const NONE: Self = Self {
        q: DevicePtr::NULL,
        k: DevicePtr::NULL,
        v: DevicePtr::NULL,
        positions: DevicePtr::NULL,
        table_starts: DevicePtr::NULL,
        block_tables: DevicePtr::NULL,
        first_key: 0,
        first_value: 0,
        first_out: 0,
        n_kv_heads: 0,
        head_dim: 0,
        block_size: 0,
        number: 0,
    };
}
