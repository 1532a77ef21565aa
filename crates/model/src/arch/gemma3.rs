//! Gemma 3 (Gemma team 2025), text: five local layers for each global one, two rotations, normalized query and key heads.

use super::{ArchSpec, IMAGES, INV_FREQ, Ignored, gemma2};
use crate::Result;
use crate::config::{ModelConfig, QkNorm};
use crate::hyper::Hyper;
use crate::rope::{RopeConfig, RopeScaling};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "gemma3",
    gguf: &["gemma3"],
    hf: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    configure,
    ignored: &[
        INV_FREQ,
        Ignored { pattern: "*.rotary_emb_local.inv_freq", reason: INV_FREQ.reason },
        Ignored { pattern: "vision_tower.*", reason: IMAGES },
        Ignored { pattern: "multi_modal_projector.*", reason: IMAGES },
        Ignored { pattern: "model.vision_tower.*", reason: IMAGES },
        Ignored { pattern: "model.multi_modal_projector.*", reason: IMAGES },
        // Some GGUF files have both parts.
        Ignored { pattern: "v.*", reason: IMAGES },
        Ignored { pattern: "mm.*", reason: IMAGES },
    ],
};

/// What the published multimodal folders leave out.
const DEFAULTS: &[(&str, f32)] = &[
    ("n_heads", 8.0),
    ("n_kv_heads", 4.0),
    ("head_dim", 256.0),
    ("context_length", 131_072.0),
    ("rms_norm_eps", 1e-6),
];

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    base(h, "gemma3")
}

/// What Gemma 3 and EmbeddingGemma share.
pub(super) fn base(h: &Hyper<'_>, arch: &'static str) -> Result<ModelConfig> {
    let h = &h.with_defaults(DEFAULTS);
    let mut c = gemma2::base(h, arch, 62)?;
    let softcap = if h.is_gguf() { None } else { h.f32("attn_softcap")? };
    c.logit_softcap = h.f32("logit_softcap")?;
    if h.f32("rope_theta")?.is_none() {
        c.ropes[0].theta = 1e6;
    }
    let local = h.f32("rope_theta_local")?.unwrap_or(10_000.0);
    c.ropes.push(RopeConfig { theta: local, scaling: RopeScaling::None, ..c.ropes[0].clone() });
    let every = match h.is_gguf() {
        true => h.gguf_usize_unless_array("attention.sliding_window_pattern")?,
        false => h.usize("sliding_window_pattern")?,
    };
    let every = every.unwrap_or(6).max(1);
    let window = h.usize("sliding_window")?.unwrap_or(4096);
    c.slide(h, Some(window), |i| !(i + 1).is_multiple_of(every))?;
    c.each_attention(|a| {
        a.qk_norm = Some(QkNorm::PerHead);
        a.softcap = softcap;
        a.rope = Some(usize::from(a.window.is_some()));
    });
    Ok(c)
}
