//! Hunyuan dense (Tencent 2025): Llama whose query and key heads are normalized after their rotation.

use super::{ArchSpec, INV_FREQ};
use crate::Result;
use crate::config::{ModelConfig, QkNorm};
use crate::hyper::Hyper;
use crate::rope::RopeScaling;
use realizar_compute::{Activation, RopeStyle};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "hunyuan-dense",
    gguf: &["hunyuan-dense"],
    hf: &["HunYuanDenseV1ForCausalLM"],
    configure,
    ignored: &[INV_FREQ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    let mut c = ModelConfig::base(h, "hunyuan-dense", RopeStyle::Half)?;
    c.read_activation(h, Activation::Silu)?;
    c.each_attention(|a| a.qk_norm = Some(QkNorm::PerHeadAfterRotation));
    let rope = &mut c.ropes[0];
    // `config.json` calls it dynamic, and stretches the base by a fixed factor.
    for section in ["rope_scaling", "rope_parameters"] {
        let alpha = if h.is_gguf() { None } else { h.hf_f32(&format!("{section}.alpha"))? };
        if let (Some(alpha), RopeScaling::Dynamic { .. }) = (alpha.filter(|a| *a != 0.0), &rope.scaling) {
            if !(alpha.is_finite() && alpha > 0.0) || rope.dim < 4 {
                return Err(h.invalid(format!("RoPE is stretched by {alpha} over {} elements", rope.dim)));
            }
            rope.theta *= alpha.powf(rope.dim as f32 / (rope.dim - 2) as f32);
            rope.scaling = RopeScaling::None;
        }
    }
    match rope.scaling {
        RopeScaling::None | RopeScaling::Linear { .. } => Ok(c),
        // Others scale queries and keys, which norms after the rotation would undo.
        _ => Err(h.unsupported("this scaling of RoPE is not supported with norms after the rotation")),
    }
}
