//! What products with weights read, for whoever asks for it.

use std::sync::Arc;

/// Sees the inputs of all products with weights, on a device that was made with it.
pub trait InputObserver: Send + Sync {
    /// Hears of one product, before it is computed. Products of different heads may come from several threads at once.
    fn observe(&self, input: MatmulInput<'_>);
}

/// The input of one product.
#[derive(Clone, Copy, Debug)]
pub struct MatmulInput<'a> {
    /// The tensors that the weight is stacked of, each once.
    pub names: &'a [Arc<str>],
    /// Matrices of each tensor, of experts or of heads; 1 for a plain one.
    pub n_experts: usize,
    /// Which of them is multiplied with.
    pub expert: usize,
    /// `[n_rows, n_in]`
    pub x: &'a [f32],
    /// Elements of a row.
    pub n_in: usize,
}
