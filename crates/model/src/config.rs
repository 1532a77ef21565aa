//! A transformer, described as data: one that continues texts, or an encoder, which makes a vector or scores of each.
//!
//! Every architecture of `arch/` is a function from a file's hyper-parameters to a [`ModelConfig`]; the loader and the one forward
//! pass in `decoder.rs` know nothing else about it.

mod encoder;
mod latent;
mod layers;
mod read;

pub use encoder::{Encoder, EncoderOutput, HeadFunction, HeadLayer};
pub use latent::Latent;
pub use layers::{
    Attention, Dense, Experts, Ffn, GatedDelta, KvSource, LayerConfig, LayerNorms, Mamba2, Mixer,
    PerLayerInput, Presence, QkNorm, RecurrentState, SharedExpert, ShortConv,
};

pub(crate) use latent::INNER_EPS;
pub(crate) use read::{check_heads, check_rope_dim, n_layers, named_activation, per_layer};

use crate::rope::RopeConfig;
use realizar_compute::{DType, Device, Heads, NormKind};

/// Everything about a model but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Name of the architecture, as in [`ARCHS`](crate::arch::ARCHS).
    pub arch: &'static str,
    /// Rows of the embedding: at least the tokenizer's tokens.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Longest context the model was made for, in tokens.
    pub context_length: usize,
    /// Factor on embeddings.
    pub embed_scale: f32,
    /// Factor on what blocks add to the residual. Not 1 only where norms read the residual, nothing else does, and blocks' outputs have
    /// no norms: then the residual divided by it gives the same model, and no block has to multiply.
    pub residual_scale: f32,
    /// What each token has for each layer besides its embedding.
    pub per_layer_input: Option<PerLayerInput>,
    /// Whether a learned vector per position is added to the embeddings.
    pub learned_positions: bool,
    /// Rows of the table of positions before that of position 0.
    pub position_offset: usize,
    /// Types of tokens, such as which of two texts one belongs to: a learned vector per type is added to the embeddings.
    pub n_token_types: usize,
    /// The norm of what is added up for a token before the first layer, by the name of its weight.
    pub embed_norm: Option<&'static str>,
    /// Kind of all norms.
    pub norm_kind: NormKind,
    /// Whether all norms have biases.
    pub norm_bias: bool,
    /// Epsilon of all norms.
    pub norm_eps: f32,
    /// The norm after the last layer, by the name of its weight in [`NAMES`](crate::names::NAMES); only an encoder may have none.
    pub final_norm: Option<&'static str>,
    /// Added to every norm weight at load: 1 where the file stores the weight's difference from 1.
    pub norm_offset: f32,
    /// The rotations that layers refer to.
    pub ropes: Vec<RopeConfig>,
    /// Factor on logits, before their soft cap; not 1 only where the output matrix has no bias.
    pub logit_scale: f32,
    /// Soft cap on logits.
    pub logit_softcap: Option<f32>,
    /// Whether the embedding is the output matrix too.
    pub tied: Tied,
    /// Whether the output matrix has a bias.
    pub lm_head_bias: Presence,
    /// Whether matrices stand transposed in the file, `[n_in, n_out]`.
    pub transposed: bool,
    /// The layers, from the first to the last, and behind them those that only draft tokens.
    pub layers: Vec<LayerConfig>,
    /// Of these, how many only draft tokens (multi-token prediction); at most one.
    pub n_draft_layers: usize,
    /// What the model makes of a text, where that is not logits.
    pub encoder: Option<Encoder>,
    /// Layers of the file behind these, which draft tokens too and are not read.
    pub n_unread_layers: usize,
}

/// Whether the embedding is the output matrix too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    /// Always; an output matrix in the file is a copy and not read.
    Always,
    /// Never: the file must have an output matrix.
    Never,
    /// Where the file has no output matrix.
    IfAbsent,
}

impl ModelConfig {
    /// Layers that a token goes through, without those that only draft.
    pub fn n_main_layers(&self) -> usize {
        self.layers.len() - self.n_draft_layers
    }

    /// Adds a layer that drafts tokens: one like the last that attends.
    pub(crate) fn add_draft_layer(&mut self) {
        let attends = |layer: &&LayerConfig| matches!(layer.mixer, Mixer::Attention(_) | Mixer::Latent(_));
        if let Some(&layer) = self.layers.iter().rev().find(attends) {
            self.layers.push(layer);
            self.n_draft_layers += 1;
            self.n_unread_layers = self.n_unread_layers.saturating_sub(1);
        }
    }

    /// Leaves the layers that only draft tokens in the file.
    pub fn without_draft_layers(&mut self) {
        self.layers.truncate(self.n_main_layers());
        self.n_unread_layers += std::mem::take(&mut self.n_draft_layers);
    }

    /// Changes the attention of all layers that have one.
    pub fn each_attention(&mut self, mut change: impl FnMut(&mut Attention)) {
        for layer in &mut self.layers {
            if let Some(attention) = layer.mixer.attention_mut() {
                change(attention);
            }
        }
    }

    /// Changes all dense feed-forward blocks.
    pub fn each_dense(&mut self, mut change: impl FnMut(&mut Dense)) {
        for layer in &mut self.layers {
            match &mut layer.ffn {
                Ffn::Gated(dense) | Ffn::Plain(dense) => change(dense),
                Ffn::Experts(_) | Ffn::None => {}
            }
        }
    }

    /// The attention blocks of all layers that have one, from the first layer to the last.
    pub fn attentions(&self) -> impl Iterator<Item = &Attention> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention),
            _ => None,
        })
    }

    /// The heads of the layers that see all positions, of the layer with the fewest for keys and values; none without such layers.
    pub fn heads_of_all_positions(&self) -> Heads {
        let seeing = self.attentions().filter(|a| a.window.is_none()).map(|a| a.heads);
        seeing.min_by_key(|heads| heads.n_kv_heads).unwrap_or_default()
    }

    /// The heads of all layers that attend, as attention sees them: those of latent attention share one key.
    pub fn heads(&self) -> impl Iterator<Item = Heads> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(attention) => Some(attention.heads),
            Mixer::Latent(latent) => Some(latent.shape.heads()),
            _ => None,
        })
    }

    /// The recurrent states of all layers that have one, from the first layer to the last.
    pub fn recurrent_states(&self) -> impl Iterator<Item = RecurrentState> {
        self.layers.iter().filter_map(|layer| layer.mixer.recurrent_state())
    }

    /// Whether a device can run layers of these kinds and sizes.
    ///
    /// Errors: `UnsupportedSize`.
    pub fn check_device(&self, device: &impl Device) -> realizar_compute::Result<()> {
        for layer in &self.layers {
            match &layer.mixer {
                Mixer::Attention(attention) => device.check_heads(attention.heads)?,
                Mixer::Latent(latent) => device.check_latent(&latent.shape)?,
                Mixer::GatedDelta(delta) => device.check_delta_rule(&delta.shape)?,
                Mixer::Mamba2(mamba) => device.check_ssm_scan(&mamba.shape)?,
                Mixer::ShortConv(_) | Mixer::None => {}
            }
        }
        self.experts().try_for_each(|e| device.check_experts(&e.kind()))
    }

    /// The mixtures of experts of all layers that have one.
    pub fn experts(&self) -> impl Iterator<Item = &Experts> {
        self.layers.iter().filter_map(|layer| match &layer.ffn {
            Ffn::Experts(experts) => Some(experts),
            _ => None,
        })
    }

    /// Changes all mixtures of experts.
    pub fn each_experts(&mut self, mut change: impl FnMut(&mut Experts)) {
        for layer in &mut self.layers {
            if let Ffn::Experts(experts) = &mut layer.ffn {
                change(experts);
            }
        }
    }

    /// Makes all dense feed-forward blocks `down(act(up))`.
    pub fn without_gates(&mut self) {
        for layer in &mut self.layers {
            if let Ffn::Gated(dense) = layer.ffn {
                layer.ffn = Ffn::Plain(dense);
            }
        }
    }

    /// A layer's index, and its attention, of all layers that have one.
    pub fn each_attention_by_layer(&mut self, mut change: impl FnMut(usize, &mut Attention)) {
        for (i, layer) in self.layers.iter_mut().enumerate() {
            if let Some(attention) = layer.mixer.attention_mut() {
                change(i, attention);
            }
        }
    }

    /// Whether the factors on residual and logits can become part of embeddings and norms, as their fields say.
    pub(crate) fn factors_fold(&self) -> bool {
        let only_pre_norms = |layer: &LayerConfig| {
            let LayerNorms { pre_mixer, post_mixer, pre_ffn, post_ffn, .. } = layer.norms;
            let reads_norms = (pre_mixer.is_some() || layer.mixer == Mixer::None)
                && (pre_ffn.is_some() || layer.parallel || layer.ffn == Ffn::None);
            reads_norms && post_mixer.is_none() && post_ffn.is_none()
        };
        let no_other_norms = self.latents().next().is_none()
            && self.attentions().all(|a| a.qk_norm.is_none() && !a.sub_norm)
            && self.layers.iter().all(|layer| match layer.ffn {
                Ffn::Gated(dense) | Ffn::Plain(dense) => !dense.sub_norm,
                Ffn::Experts(_) | Ffn::None => true,
            });
        let residual = self.layers.iter().all(only_pre_norms) && no_other_norms && !self.learned_positions;
        (self.residual_scale == 1.0 || residual)
            && (self.logit_scale == 1.0 || self.lm_head_bias == Presence::Absent)
    }

    /// Bytes of keys and values that one token takes in a cache of type `dtype`, in all layers together.
    pub fn kv_bytes_per_token(&self, dtype: DType) -> usize {
        let bytes = |a: &Attention| {
            let head = dtype.bytes_for(a.heads.head_dim).unwrap_or(a.heads.head_dim * 4);
            2 * a.own_heads().n_kv_heads * head
        };
        let latent = |l: &Latent| dtype.bytes_for(l.shape.key_dim()).unwrap_or(l.shape.key_dim() * 4);
        self.attentions().map(bytes).chain(self.latents().map(latent)).sum()
    }

    /// The first size of heads that is not whole blocks of `dtype`, for a cache of that type.
    pub fn head_dim_without_blocks_of(&self, dtype: DType) -> Option<usize> {
        self.heads().map(|heads| heads.head_dim).find(|dim| !dim.is_multiple_of(dtype.block_len()))
    }
}
