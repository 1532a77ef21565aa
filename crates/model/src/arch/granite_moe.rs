//! Granite 3 with a mixture of experts (IBM 2024), some with a shared expert.

use super::{ArchSpec, INV_FREQ, granite, llama};
use crate::Result;
use crate::config::{ModelConfig, SharedExpert};
use crate::hyper::Hyper;

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "granitemoe",
    gguf: &["granitemoe"],
    hf: &["GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = llama::base(h, "granitemoe")?;
    granite::read_factors(&mut c, h)?;
    c.add_experts(h, true, |_| true)?;
    let shared = h.usize("shared_expert_intermediate_size")?.unwrap_or(0);
    share_expert(&mut c, shared);
    Ok(c)
}

/// The expert that all tokens use beside theirs, where it has hidden activations.
pub(super) fn share_expert(c: &mut ModelConfig, intermediate_size: usize) {
    c.each_experts(|e| {
        e.shared = (intermediate_size > 0).then_some(SharedExpert::new(intermediate_size, false));
    });
}
