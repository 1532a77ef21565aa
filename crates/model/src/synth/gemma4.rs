//! Synthetic Gemma 4: layers of two kinds, of which only some have keys and values of their own.

use super::shapes::{Gemma4, SynthShape};
use super::{Fill, matrix, norm};
use crate::Result;
use crate::metadata::Metadata;

/// Elements of a head in layers with a window; the shape states those of the others.
const LOCAL_HEAD_DIM: usize = 256;
/// Part of a global head that turns.
const TURNING: f32 = 0.25;

impl Gemma4 {
    /// Whether a layer sees everything.
    fn is_global(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.every)
    }

    /// Key and value heads of a layer, and the elements of its heads.
    fn heads(&self, s: &SynthShape, layer: usize) -> [usize; 2] {
        match self.is_global(layer) {
            true => [self.n_global_kv_heads, s.head_dim],
            false => [s.n_kv_heads, LOCAL_HEAD_DIM],
        }
    }

    fn has_keys(&self, s: &SynthShape, layer: usize) -> bool {
        layer + self.n_shared_kv < s.n_layers
    }

    /// Width of a layer's dense feed-forward block.
    fn width(&self, s: &SynthShape, layer: usize) -> usize {
        let is_wide = self.wide_where_shared && !self.has_keys(s, layer);
        if is_wide { 2 * s.intermediate_size } else { s.intermediate_size }
    }

    /// Weights outside of layers.
    pub(super) fn inputs(&self, s: &SynthShape, add: &mut impl FnMut(String, &[usize], Fill)) {
        let pairs = s.head_dim / 2;
        let turning = (pairs as f32 * TURNING) as usize;
        let divisors = (0..pairs).map(|i| if i < turning { 1.0 } else { 1e30 });
        add("rope_freqs.weight".into(), &[pairs], Fill::Values(divisors.collect()));
        let (len, hidden) = (self.per_layer_len, s.hidden_size);
        if len > 0 {
            let all = s.n_layers * len;
            add("per_layer_token_embd.weight".into(), &[s.vocab_size, all], matrix(len));
            add("per_layer_model_proj.weight".into(), &[all, hidden], matrix(hidden));
            add("per_layer_proj_norm.weight".into(), &[len], norm(len));
        }
    }

    /// Weights of a layer.
    pub(super) fn layer(&self, s: &SynthShape, i: usize, put: &mut impl FnMut(&str, &[usize], Fill)) {
        let hidden = s.hidden_size;
        let [n_kv_heads, head_dim] = self.heads(s, i);
        let (q_dim, kv_dim) = (s.n_heads * head_dim, n_kv_heads * head_dim);
        for part in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
            put(&format!("{part}.weight"), &[hidden], norm(hidden));
        }
        put("attn_q.weight", &[q_dim, hidden], matrix(hidden));
        put("attn_q_norm.weight", &[head_dim], norm(head_dim));
        if self.has_keys(s, i) {
            put("attn_k.weight", &[kv_dim, hidden], matrix(hidden));
            put("attn_k_norm.weight", &[head_dim], norm(head_dim));
            if !(self.keys_as_values && self.is_global(i)) {
                put("attn_v.weight", &[kv_dim, hidden], matrix(hidden));
            }
        }
        put("attn_output.weight", &[hidden, q_dim], matrix(q_dim));
        let width = self.width(s, i);
        put("ffn_gate.weight", &[width, hidden], matrix(hidden));
        put("ffn_up.weight", &[width, hidden], matrix(hidden));
        put("ffn_down.weight", &[hidden, width], matrix(width));
        if let Some([n_experts, _, width]) = s.experts {
            for part in ["post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2"] {
                put(&format!("{part}.weight"), &[hidden], norm(hidden));
            }
            // The router's input is divided by the root of the width.
            let scale = vec![(hidden as f32).sqrt(); hidden];
            put("ffn_gate_inp.scale", &[hidden], Fill::Values(scale));
            put("ffn_gate_inp.weight", &[n_experts, hidden], matrix(hidden));
            put("ffn_gate_up_exps.weight", &[n_experts, 2 * width, hidden], matrix(hidden));
            put("ffn_down_exps.weight", &[n_experts, hidden, width], matrix(width));
            put("ffn_down_exps.scale", &[n_experts], norm(n_experts));
        }
        let len = self.per_layer_len;
        if len > 0 {
            put("inp_gate.weight", &[len, hidden], matrix(hidden));
            put("proj.weight", &[hidden, len], matrix(len));
            put("post_norm.weight", &[hidden], norm(hidden));
        }
        put("layer_output_scale.weight", &[1], norm(1));
    }

    /// Hyper-parameters that other families do not state, or not for each layer.
    pub(super) fn metadata(&self, m: &mut Metadata, s: &SynthShape) -> Result<()> {
        let layers = 0..s.n_layers;
        let arch = s.family.arch();
        let key = |name: &str| format!("{arch}.{name}");
        let kv_heads: Vec<i32> = layers.clone().map(|i| self.heads(s, i)[0] as i32).collect();
        let widths: Vec<i32> = layers.clone().map(|i| self.width(s, i) as i32).collect();
        let slides: Vec<bool> = layers.map(|i| !self.is_global(i)).collect();
        m.insert(key("attention.head_count_kv"), kv_heads)?;
        m.insert(key("feed_forward_length"), widths)?;
        m.insert(key("attention.sliding_window_pattern"), slides)?;
        for (name, n) in [
            ("attention.sliding_window", self.window),
            ("attention.shared_kv_layers", self.n_shared_kv),
            ("attention.key_length_swa", LOCAL_HEAD_DIM),
            ("attention.value_length_swa", LOCAL_HEAD_DIM),
            ("rope.dimension_count_swa", LOCAL_HEAD_DIM),
            ("embedding_length_per_layer_input", self.per_layer_len),
        ] {
            m.insert(key(name), n as u32)?;
        }
        m.insert(key("rope.freq_base_swa"), 1e4f32)?;
        m.insert(key("final_logit_softcapping"), 30f32)
    }
}
