//! ERNIE 4.5 with a mixture of experts (Baidu 2025): softmax with a bias of the choice, and shared experts.

use super::{ArchSpec, INV_FREQ, Ignored};
use crate::Result;
use crate::config::{ModelConfig, Presence, SharedExpert};
use crate::hyper::Hyper;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "ernie4_5-moe",
    gguf: &["ernie4_5-moe"],
    hf: &["Ernie4_5_MoeForCausalLM", "Ernie4_5_MoEForCausalLM"],
    configure,
    ignored: &[INV_FREQ, Ignored { pattern: "model.mtp_*", reason: "only drafts tokens" }],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "ernie4_5-moe", RopeStyle::Interleaved)?;
    if !h.is_gguf() && h.hf_bool("use_bias")?.unwrap_or(false) {
        return Err(h.unsupported("ERNIE 4.5 with biases is not supported"));
    }
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 500_000.0;
    }
    c.read_activation(h, Activation::Silu)?;
    let first = h.usize("n_leading_dense_layers")?.unwrap_or(usize::from(!h.is_gguf()));
    let (every, end) = match h.is_gguf() {
        true => (h.gguf_usize("interleave_moe_layer_step")?, None),
        // An end of -1 is the last layer.
        false => (h.hf_usize("moe_layer_interval")?, h.hf_f32("moe_layer_end_index")?.filter(|&i| i >= 0.0)),
    };
    let every = every.unwrap_or(1);
    if every == 0 {
        return Err(h.invalid("no layer is a multiple of 0"));
    }
    let is_before_end = |i: usize| end.is_none_or(|end| i as f32 <= end);
    c.add_experts(h, true, |i| i >= first && (i + 1).is_multiple_of(every) && is_before_end(i))?;
    let n_shared = h.usize("n_shared_experts")?.unwrap_or(if h.is_gguf() { 0 } else { 2 });
    c.each_experts(|e| {
        e.selection_bias = Presence::Needed;
        let intermediate_size = e.intermediate_size.saturating_mul(n_shared);
        e.shared = (n_shared > 0).then_some(SharedExpert::new(intermediate_size, false));
    });
    Ok(c)
}
