//! Synthetic models with latent attention: DeepSeek-V2 and V3, and GLM-4.7-Flash.

use super::shapes::{Latent, SynthShape};
use super::{Fill, matrix, norm};
use crate::Result;
use crate::metadata::Metadata;

/// Context of the training before YaRN, in tokens.
const TRAINED_CONTEXT: u32 = 4096;

impl Latent {
    /// Weights of a layer's attention.
    pub(super) fn attention(&self, s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
        let (hidden, heads, key_dim) = (s.hidden_size, s.n_heads, s.head_dim);
        let &Self { q_rank, nope_dim, rope_dim, v_dim, .. } = self;
        let (rank, q_len) = (key_dim - rope_dim, heads * (nope_dim + rope_dim));
        put("attn_norm.weight", &[hidden], norm(hidden));
        match q_rank {
            0 => put("attn_q.weight", &[q_len, hidden], matrix(hidden)),
            q_rank => {
                put("attn_q_a.weight", &[q_rank, hidden], matrix(hidden));
                put("attn_q_a_norm.weight", &[q_rank], norm(q_rank));
                put("attn_q_b.weight", &[q_len, q_rank], matrix(q_rank));
            }
        }
        put("attn_kv_a_mqa.weight", &[key_dim, hidden], matrix(hidden));
        put("attn_kv_a_norm.weight", &[rank], norm(rank));
        // Transposed: it makes the elements of keys from the vector.
        put("attn_k_b.weight", &[heads, rank, nope_dim], matrix(rank));
        put("attn_v_b.weight", &[heads, v_dim, rank], matrix(rank));
        put("attn_output.weight", &[hidden, heads * v_dim], matrix(heads * v_dim));
    }

    /// Hyper-parameters that other families do not state.
    pub(super) fn metadata(&self, m: &mut Metadata, s: &SynthShape) -> Result<()> {
        let arch = s.family.arch();
        let key = |name: &str| format!("{arch}.{name}");
        let [n_groups, n_groups_used] = self.groups;
        for (name, n) in [
            ("attention.kv_lora_rank", s.head_dim - self.rope_dim),
            ("attention.q_lora_rank", self.q_rank),
            ("attention.key_length_mla", self.nope_dim + self.rope_dim),
            ("attention.value_length_mla", self.v_dim),
            ("expert_group_count", n_groups),
            ("expert_group_used_count", n_groups_used),
        ] {
            // There is no matrix then.
            if n > 0 {
                m.insert(key(name), n as u32)?;
            }
        }
        m.insert(key("expert_weights_norm"), self.by_sigmoid)?;
        m.insert(key("expert_weights_scale"), self.router_scale)?;
        if let Some(log_multiplier) = self.yarn {
            m.insert(key("rope.scaling.type"), "yarn")?;
            m.insert(key("rope.scaling.factor"), 40f32)?;
            m.insert(key("rope.scaling.original_context_length"), TRAINED_CONTEXT)?;
            m.insert(key("rope.scaling.yarn_log_multiplier"), 0.1 * log_multiplier)?;
        }
        Ok(())
    }
}
