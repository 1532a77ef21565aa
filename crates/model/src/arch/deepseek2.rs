//! DeepSeek-V2, V3 and R1 (DeepSeek-AI 2024), GLM-4.7-Flash and Kimi K2: latent attention, dense layers first, then experts in groups with
//! shared ones beside them.

use super::{ArchSpec, IMAGES, INV_FREQ, Ignored, attention_temperature};
use crate::config::{ModelConfig, Presence, SharedExpert};
use crate::hyper::Hyper;
use crate::{Result, names};
use realizar_compute::{Activation, GroupScore, RopeStyle, RouterScores};

pub(super) const SPEC: ArchSpec = ArchSpec {
    name: "deepseek2",
    gguf: &["deepseek2"],
    hf: &[
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "Glm4MoeLiteForCausalLM",
        "KimiVLForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
    ],
    configure,
    ignored: &[
        INV_FREQ,
        Ignored { pattern: "vision_tower.*", reason: IMAGES },
        Ignored { pattern: "multi_modal_projector.*", reason: IMAGES },
        Ignored { pattern: "mm_projector.*", reason: IMAGES },
        Ignored {
            pattern: "blk.*.attn_kv_b.weight",
            reason: "its parts for keys and values stand alone, too",
        },
    ],
};

fn configure(h: &Hyper<'_>) -> Result<ModelConfig> {
    base(h, "deepseek2", GroupScore::Largest, None)
}

/// Latent attention and its experts.
///
/// `by`: what groups of experts are compared by where scores are softmax. `temperature`: how fast queries grow with their position where the
/// file does not say it.
pub(super) fn base(
    h: &Hyper<'_>,
    arch: &'static str,
    by: GroupScore,
    temperature: Option<f32>,
) -> Result<ModelConfig> {
    let is_interleaved = h.is_gguf() || h.hf_bool("rope_interleave")?.unwrap_or(true);
    let style = if is_interleaved { RopeStyle::Interleaved } else { RopeStyle::Half };
    let mut c = ModelConfig::with_latent_attention(h, arch, style)?;
    c.read_activation(h, Activation::Silu)?;
    let temperature = attention_temperature(h, temperature)?;
    c.each_latent(|latent| latent.temperature = temperature);
    if h.usize("n_experts")?.unwrap_or(0) == 0 {
        return Ok(c);
    }
    let sparse = sparse_layers(h, c.layers.len())?;
    // Only routers by sigmoid have a bias. GGUF files may leave out of what kind theirs is.
    let first = sparse.iter().position(|&sparse| sparse).unwrap_or(0);
    let has_bias = names::file_name(h.source(), "selection", Some(first), None, "bias").is_some();
    let norm_topk = h.bool("norm_topk")?.unwrap_or(has_bias && !h.is_gguf());
    c.add_experts(h, norm_topk, |i| sparse[i])?;
    let (scores, by) = match has_bias {
        true => (RouterScores::Sigmoid, GroupScore::TopTwo),
        false => (RouterScores::Softmax, by),
    };
    c.read_router(h, scores, by)?;
    let chooses_among_all = !h.is_gguf() && h.hf_str("topk_method")? == Some("greedy");
    let n_shared = h.usize("n_shared_experts")?.unwrap_or(0);
    c.each_experts(|e| {
        e.selection_bias = if has_bias { Presence::Needed } else { Presence::Absent };
        if chooses_among_all {
            e.router.groups = None;
        }
        let intermediate_size = e.intermediate_size.saturating_mul(n_shared);
        e.shared = (n_shared > 0).then_some(SharedExpert::new(intermediate_size, false));
    });
    Ok(c)
}

/// Which layers have experts.
fn sparse_layers(h: &Hyper<'_>, n_layers: usize) -> Result<Vec<bool>> {
    if let Some(types) = if h.is_gguf() { None } else { h.hf_strings("mlp_layer_types")? } {
        if types.len() != n_layers {
            return Err(
                h.invalid(format!("mlp_layer_types has {} entries for {n_layers} layers", types.len()))
            );
        }
        let is_sparse = |kind: &String| match kind.as_str() {
            "sparse" => Ok(true),
            "dense" => Ok(false),
            other => Err(h.unsupported(format!("layer type {other:?} is not known"))),
        };
        return types.iter().map(is_sparse).collect();
    }
    let n_dense = h.usize("n_leading_dense_layers")?.unwrap_or(0);
    Ok((0..n_layers).map(|i| i >= n_dense).collect())
}
