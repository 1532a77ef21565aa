//! BERT: what an encoder has in place of a decoder's weights.

use super::{Fill, SynthShape, bias, matrix, norm};
use crate::Result;
use crate::metadata::Metadata;

/// Kinds of texts that a token may belong to.
const N_TOKEN_TYPES: usize = 2;
/// GGUF's number for the vector of the first token.
const POOLING_FIRST: u32 = 2;

pub(super) fn inputs(s: &SynthShape, add: &mut impl FnMut(String, &[usize], Fill)) {
    let hidden = s.hidden_size;
    add("position_embd.weight".into(), &[s.context_length, hidden], matrix(hidden));
    add("token_types.weight".into(), &[N_TOKEN_TYPES, hidden], matrix(hidden));
    add("token_embd_norm.weight".into(), &[hidden], norm(hidden));
    add("token_embd_norm.bias".into(), &[hidden], bias(hidden));
}

pub(super) fn layer(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let (hidden, ffn) = (s.hidden_size, s.intermediate_size);
    let mut linear = |part: &str, n_out: usize, n_in: usize| {
        put(&format!("{part}.weight"), &[n_out, n_in], matrix(n_in));
        put(&format!("{part}.bias"), &[n_out], bias(n_out));
    };
    for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
        linear(part, hidden, hidden);
    }
    linear("ffn_up", ffn, hidden);
    linear("ffn_down", hidden, ffn);
    for part in ["attn_output_norm", "layer_output_norm"] {
        put(&format!("{part}.weight"), &[hidden], norm(hidden));
        put(&format!("{part}.bias"), &[hidden], bias(hidden));
    }
}

pub(super) fn metadata(m: &mut Metadata) -> Result<()> {
    m.insert("bert.attention.causal", false)?;
    m.insert("bert.pooling_type", POOLING_FIRST)?;
    m.insert("tokenizer.ggml.token_type_count", N_TOKEN_TYPES as u32)
}
