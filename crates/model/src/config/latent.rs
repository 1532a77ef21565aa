//! Latent attention as a file describes it.

use super::read::{MAX_COUNT, n_layers, per_layer, read_bias, size};
use super::{LayerConfig, Mixer, ModelConfig, Presence};
use crate::Result;
use crate::hyper::Hyper;
use crate::rope::{RopeScaling, yarn_magnitude};
use realizar_compute::{AttentionTemperature, LatentShape, RopeStyle};

/// Epsilon of the norms inside the block, whatever the model's is: the reference library does not read it from the file.
pub(crate) const INNER_EPS: f32 = 1e-6;

/// A block of latent attention: keys and values of all heads come from one vector of a token, which the cache keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latent {
    /// Heads and their sizes.
    pub shape: LatentShape,
    /// Width between the two matrices of queries; `None`: there is one.
    pub q_rank: Option<usize>,
    /// Index into [`ModelConfig::ropes`].
    pub rope: usize,
    /// Factor on queries that grows with their position.
    pub temperature: Option<AttentionTemperature>,
    /// Factor on query · key.
    pub scale: f32,
    /// Biases of the matrices that read and write the residual, but not of a single matrix of queries.
    pub bias: Presence,
}

impl ModelConfig {
    /// As [`ModelConfig::base`], with latent attention in all layers.
    pub(crate) fn with_latent_attention(h: &Hyper<'_>, arch: &'static str, style: RopeStyle) -> Result<Self> {
        let n_layers = n_layers(h, h.usize("n_draft_layers")?.unwrap_or(0))?;
        let rope_dim = size(h, "rope_dim", MAX_COUNT)?;
        if !rope_dim.is_multiple_of(2) {
            return Err(h.invalid(format!("RoPE turns {rope_dim} elements of a head")));
        }
        let count = |ours: &str| size(h, ours, MAX_COUNT);
        let nope_dim = match h.is_gguf() {
            false => count("nope_dim")?,
            // Older files state the sizes of heads as those of attention, newer ones those of the vector.
            true => {
                let whole = h.usize("latent_q_dim")?.map_or_else(|| h.need_usize("head_dim"), Ok)?;
                let rest = whole.checked_sub(rope_dim).filter(|n| (1..=MAX_COUNT).contains(n));
                rest.ok_or_else(|| h.invalid(format!("RoPE turns {rope_dim} elements of a head of {whole}")))?
            }
        };
        let v_dim = match h.usize("latent_v_dim")? {
            Some(_) => count("latent_v_dim")?,
            None => count("value_dim")?,
        };
        let heads = per_layer(h, "n_heads", n_layers)?;
        let heads = heads.map_or_else(|| count("n_heads").map(|n| vec![n; n_layers]), Ok)?;
        if heads.iter().any(|&n| n == 0 || n > MAX_COUNT || n != heads[0]) {
            return Err(h.invalid(format!("n_heads is {heads:?}")));
        }
        let shape = LatentShape { n_heads: heads[0], kv_rank: count("kv_rank")?, nope_dim, rope_dim, v_dim };
        let latent = Latent {
            shape,
            q_rank: h.usize("q_rank")?.map(|_| count("q_rank")).transpose()?,
            rope: 0,
            temperature: None,
            scale: 1.0 / (shape.q_dim() as f32).sqrt(),
            bias: read_bias(h, "attention_bias")?,
        };
        let mut c = Self::with_mixers(h, arch, (style, rope_dim), vec![Mixer::Latent(latent); n_layers])?;
        let magnitude = c.read_latent_yarn(h)?;
        c.each_latent(|latent| latent.scale *= magnitude * magnitude);
        Ok(c)
    }

    /// The factor of YaRN on queries, and on keys, besides that on cosine and sine.
    fn read_latent_yarn(&mut self, h: &Hyper<'_>) -> Result<f32> {
        let stated = match h.is_gguf() {
            // Converters multiply it by 0.1.
            true => h.gguf_f32("rope.scaling.yarn_log_multiplier")?.map(|m| 10.0 * m),
            false => {
                let of_scaling = h.hf_f32("rope_scaling.mscale_all_dim")?;
                of_scaling.map_or_else(|| h.hf_f32("rope_parameters.mscale_all_dim"), |m| Ok(Some(m)))?
            }
        };
        let Some(log_multiplier) = stated.filter(|&m| m != 0.0) else { return Ok(1.0) };
        if !log_multiplier.is_finite() {
            return Err(h.invalid(format!("the multiplier of YaRN's magnitude is {log_multiplier}")));
        }
        let is_stated = h.is_gguf() && h.gguf_f32("rope.scaling.yarn_attn_factor")?.is_some();
        Ok(match &mut self.ropes[0].scaling {
            RopeScaling::Yarn { factor, attention_factor, .. } => {
                if h.is_gguf() && !is_stated {
                    // All published models state the same multiplier for cosine and sine, which cancels there.
                    *attention_factor = 1.0;
                }
                yarn_magnitude(*factor, log_multiplier)
            }
            _ => 1.0,
        })
    }

    /// Changes the latent attention of all layers that have it.
    pub(crate) fn each_latent(&mut self, mut change: impl FnMut(&mut Latent)) {
        for LayerConfig { mixer, .. } in &mut self.layers {
            if let Mixer::Latent(latent) = mixer {
                change(latent);
            }
        }
    }

    /// The latent attention of all layers that have it, from the first layer to the last. Its sizes are the same in all.
    pub fn latents(&self) -> impl Iterator<Item = &Latent> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Latent(latent) => Some(latent),
            _ => None,
        })
    }
}
