//! Rows of activations that are sorted by the experts which they use, and how they become tiles for the tensor cores.
//!
//! A tile has rows of one expert. In floats, a use's row is its slot; in tiles, its place, since the last tile of an expert may be partly
//! filled.

use super::matrix::Matrix;
use super::mixed_gemm::{ActivationLayout, Kernels, MixedGemmActivationArgs, STEP, activation_threads};
use crate::cuda::driver::{Cuda, DevicePtr};
use crate::{Activation, Norm, Result, Tensor};

/// The rows, the experts that they use, and where results go.
pub(in crate::cuda) struct GroupedRows<'a> {
    /// `[n_experts, 2 * intermediate_size, hidden_size]` and `[n_experts, hidden_size, intermediate_size]`
    pub(in crate::cuda) weights: [&'a Matrix; 2],
    /// `[n_experts, 2 * intermediate_size]`, or null
    pub(in crate::cuda) gate_up_bias: DevicePtr,
    pub(in crate::cuda) activation: Activation,
    /// `[m, hidden_size]`, normalized first where a norm is given.
    pub(in crate::cuda) x: DevicePtr,
    pub(in crate::cuda) norm: Option<&'a Norm<Cuda>>,
    pub(in crate::cuda) m: usize,
    pub(in crate::cuda) n_used: usize,
    /// `[n_tiles]` as `moe_group` writes them, of `tile_rows` rows.
    pub(in crate::cuda) tiles: DevicePtr,
    pub(in crate::cuda) n_tiles: usize,
    /// How many of the tiles have rows.
    pub(in crate::cuda) n_filled: DevicePtr,
    pub(in crate::cuda) tile_rows: usize,
    /// `[m, n_used]`: the slot of each use, and its row if all tiles are full.
    pub(in crate::cuda) slots: DevicePtr,
    pub(in crate::cuda) places: DevicePtr,
    /// Room for `[m * n_used, hidden_size]`.
    pub(in crate::cuda) x_room: &'a Tensor<Cuda>,
    /// Room for `[m * n_used, 2 * intermediate_size]`.
    pub(in crate::cuda) hidden_room: &'a Tensor<Cuda>,
    /// `[m * n_used, intermediate_size]` by slot, where they are not written as tiles.
    pub(in crate::cuda) hidden: DevicePtr,
    /// `[m * n_used, hidden_size]` by slot: the results, without biases.
    pub(in crate::cuda) y: DevicePtr,
}

/// What a product reads.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) layout: ActivationLayout,
    /// Columns.
    pub(super) n: usize,
}

/// Where activations are, as tiles.
#[derive(Clone, Copy)]
pub(super) struct TiledRows {
    pub(super) tiles: DevicePtr,
    /// What each row must be multiplied with, or null where that is the same for all.
    pub(super) scales: DevicePtr,
}

/// Rows of floats that become rows of tiles.
#[derive(Clone, Copy)]
struct Places<'a> {
    x: DevicePtr,
    /// The row of each, or null: in order.
    x_rows: DevicePtr,
    n: usize,
    /// Rows that each becomes.
    n_places: usize,
    /// Applied first.
    norm: Option<&'a Norm<Cuda>>,
}

impl GroupedRows<'_> {
    /// The rows of x as tiles: each where its uses are.
    pub(super) fn convert_inputs(&self, cuda: &Cuda, operand: Operand) -> Result<TiledRows> {
        let tiles = self.room(cuda, operand, self.x_room, "tiles of experts' inputs")?;
        let (x_rows, norm) = (DevicePtr::NULL, self.norm);
        let places = Places { x: self.x, x_rows, n: self.m, n_places: self.n_used, norm };
        self.convert(cuda, operand, places, tiles, "factors of experts' inputs")
    }

    /// The hidden activations as tiles, from floats by slot.
    pub(super) fn convert_hidden(
        &self,
        cuda: &Cuda,
        operand: Operand,
        tiles: DevicePtr,
    ) -> Result<TiledRows> {
        let n = self.m * self.n_used;
        let places = Places { x: self.hidden, x_rows: self.slots, n, n_places: 1, norm: None };
        self.convert(cuda, operand, places, tiles, "factors of hidden activations")
    }

    /// Memory for the hidden activations as tiles.
    pub(super) fn hidden_tiles(&self, cuda: &Cuda, operand: Operand) -> Result<DevicePtr> {
        self.room(cuda, operand, self.hidden_room, "tiles of hidden activations")
    }

    /// Memory for tiles: a tensor's, which nobody else uses meanwhile, where that is large enough.
    fn room(
        &self,
        cuda: &Cuda,
        of: Operand,
        room: &Tensor<Cuda>,
        purpose: &'static str,
    ) -> Result<DevicePtr> {
        let bytes = 2 * self.n_tiles * self.tile_rows * of.n.next_multiple_of(STEP);
        match bytes <= 4 * room.len() {
            true => Ok(room.ptr()),
            false => cuda.scratch.get(&cuda.driver, purpose, bytes),
        }
    }

    fn convert(
        &self,
        cuda: &Cuda,
        to: Operand,
        from: Places<'_>,
        tiles: DevicePtr,
        purpose: &'static str,
    ) -> Result<TiledRows> {
        let scales = cuda.scratch.get(&cuda.driver, purpose, 4 * self.n_tiles * self.tile_rows)?;
        let args = MixedGemmActivationArgs {
            y: tiles,
            scales,
            x: from.x,
            x_rows: from.x_rows,
            places: self.places,
            weight: from.norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
            n: to.n as u32,
            padded: to.n.next_multiple_of(STEP) as u32,
            layout: to.layout as u32,
            rows: self.tile_rows as u32,
            n_places: from.n_places as u32,
            eps: from.norm.map_or(0.0, |n| n.eps),
        };
        // SAFETY: there are as many rows of floats, and each use's place is in the memory for all tiles.
        unsafe {
            cuda.launch(cuda.room::<Kernels>().activations, [from.n, 1, 1], activation_threads(to.n), &args)?;
        }
        Ok(TiledRows { tiles, scales })
    }
}
