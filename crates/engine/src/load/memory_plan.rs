//! What the parts of a model take of its device's memory.

use std::fmt;

/// Bytes of a model's parts on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights that the device keeps a copy of; what it reads from the mapped file is not among them.
    pub weights: usize,
    /// What sequences keep between steps: keys and values, and recurrent state.
    pub cache: usize,
    /// Activations and logits of a step, and what operations need besides.
    pub workspace: usize,
}

impl MemoryPlan {
    /// All parts.
    pub fn total(&self) -> usize {
        self.weights.saturating_add(self.cache).saturating_add(self.workspace)
    }
}

impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { weights, cache, workspace } = *self;
        write!(f, "weights {}, cache {}, workspace {}", mib(weights), mib(cache), mib(workspace))
    }
}

/// A size for people, rounded up.
pub(crate) fn mib(bytes: usize) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}
