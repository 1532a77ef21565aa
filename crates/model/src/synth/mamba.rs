//! The weights and the metadata of models with layers of Mamba-2.

use super::shapes::{Mamba, SynthShape};
use super::{Fill, attention, bias, matrix, mixture, norm, taps};
use crate::Result;
use crate::metadata::Metadata;

/// Tokens that the convolution before the scan reads.
const CONV_WIDTH: usize = 4;

impl Mamba {
    /// The letter of a layer's mixer, and whether a feed-forward block follows.
    fn block(&self, s: &SynthShape, layer: usize) -> (u8, bool) {
        match self.blocks {
            Some(blocks) => (blocks.as_bytes()[layer], false),
            None if s.attends(layer) => (b'*', true),
            None => (b'M', true),
        }
    }

    fn inner_len(&self) -> usize {
        self.n_heads * self.head_dim
    }

    pub(super) fn layer(&self, s: &SynthShape, layer: usize, put: &mut impl FnMut(&str, &[usize], Fill)) {
        let (hidden, width) = (s.hidden_size, s.intermediate_size);
        let (mixer, has_ffn) = self.block(s, layer);
        match mixer {
            b'*' => attention(s, put),
            b'M' => self.mixer(hidden, put),
            _ => {
                put("attn_norm.weight", &[hidden], norm(hidden));
                put("ffn_up.weight", &[width, hidden], matrix(hidden));
                put("ffn_down.weight", &[hidden, width], matrix(width));
            }
        }
        if let Some(experts) = s.experts.filter(|_| has_ffn) {
            mixture(s, experts, put);
        }
    }

    fn mixer(&self, hidden: usize, put: &mut impl FnMut(&str, &[usize], Fill)) {
        let &Self { n_heads, n_groups, state_dim, .. } = self;
        let inner = self.inner_len();
        let xbc = inner + 2 * n_groups * state_dim;
        put("attn_norm.weight", &[hidden], norm(hidden));
        put("ssm_in.weight", &[inner + xbc + n_heads, hidden], matrix(hidden));
        put("ssm_conv1d.weight", &[xbc, CONV_WIDTH], taps(xbc * CONV_WIDTH));
        put("ssm_conv1d.bias", &[xbc], bias(xbc));
        put("ssm_dt.bias", &[n_heads], bias(n_heads));
        let decay = (0..n_heads).map(|i| -0.1 - (i % 5) as f32);
        put("ssm_a", &[n_heads, 1], Fill::Values(decay.collect()));
        put("ssm_d", &[n_heads, 1], norm(n_heads));
        put("ssm_norm.weight", &[n_groups, inner / n_groups], norm(inner));
        put("ssm_out.weight", &[hidden, inner], matrix(inner));
    }

    pub(super) fn metadata(&self, m: &mut Metadata, s: &SynthShape) -> Result<()> {
        let arch = s.family.arch();
        for (key, n) in [
            ("conv_kernel", CONV_WIDTH),
            ("state_size", self.state_dim),
            ("group_count", self.n_groups),
            ("time_step_rank", self.n_heads),
            ("inner_size", self.inner_len()),
        ] {
            m.insert(format!("{arch}.ssm.{key}"), n as u32)?;
        }
        m.insert(format!("{arch}.rope.scaling.finetuned"), false)?;
        let of_layers = |letter: u8, n: usize| -> Vec<i32> {
            let n = |i| if self.block(s, i).0 == letter { n as i32 } else { 0 };
            (0..s.n_layers).map(n).collect()
        };
        m.insert(format!("{arch}.attention.head_count_kv"), of_layers(b'*', s.n_kv_heads))?;
        match self.blocks {
            Some(_) => m.insert(format!("{arch}.feed_forward_length"), of_layers(b'-', s.intermediate_size)),
            None => m.insert(format!("{arch}.feed_forward_length"), s.intermediate_size as u32),
        }
    }
}
