//! Blocks with recurrent state: their weights, and how the backend is told what they compute.

use crate::Result;
use crate::config::{GatedDelta, Mamba2, Mixer, ShortConv};
use crate::contract::Part;
use crate::source::Format;
use crate::weights::Loader;
use realizar_compute::{
    self as compute, Backend, ConvKind, DeltaPart, Linear, Norm, Recurrence, SsmPart, Tensor,
};

/// The weights of a block before its last matrix.
pub(crate) struct RecurrentWeights<B: Backend> {
    pub(crate) in_proj: Linear<B>,
    conv: Tensor<B>,
    conv_bias: Option<Tensor<B>>,
    small: Small<B>,
}

/// The small weights of what follows the convolution.
enum Small<B: Backend> {
    None,
    Delta { decay: Tensor<B>, dt_bias: Tensor<B>, norm: Norm<B> },
    Ssm { decay: Tensor<B>, dt_bias: Tensor<B>, skip: Tensor<B>, norm: Norm<B> },
}

impl<B: Backend> RecurrentWeights<B> {
    /// The weights of layer `i`, and the name of its last matrix.
    pub(crate) fn load(l: &Loader<'_, B>, i: usize) -> Result<(Self, &'static str)> {
        Ok(match l.config.layers[i].mixer {
            Mixer::GatedDelta(GatedDelta { shape, .. }) => (
                Self {
                    in_proj: l.delta_in_proj(i, shape)?,
                    conv: l.conv(i, "delta.conv")?,
                    conv_bias: None,
                    small: Small::Delta {
                        decay: decay(l, i, "delta.a_log")?,
                        dt_bias: l.vector_map(i, "delta.dt_bias", |x| x)?,
                        norm: l.plain_norm(i, "delta.norm")?,
                    },
                },
                "delta.out_proj",
            ),
            Mixer::Mamba2(Mamba2 { shape, .. }) => (
                Self {
                    in_proj: l.mamba_in_proj(i, &shape)?,
                    conv: l.conv(i, "mamba.conv")?,
                    conv_bias: l.vector(i, "mamba.conv", Part::Bias)?,
                    small: Small::Ssm {
                        decay: decay(l, i, "mamba.a_log")?,
                        dt_bias: l.vector_map(i, "mamba.dt_bias", |x| x)?,
                        skip: l.vector_map(i, "mamba.skip", |x| x)?,
                        norm: l.scaled_norm(Some(i), "mamba.norm", 1.0, l.config.norm_eps)?,
                    },
                },
                "mamba.out_proj",
            ),
            Mixer::ShortConv(_) => (
                Self {
                    in_proj: l.linear(Some(i), &["conv.in_proj"])?,
                    conv: l.conv(i, "conv.conv")?,
                    conv_bias: None,
                    small: Small::None,
                },
                "conv.out_proj",
            ),
            Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None => {
                unreachable!("the mixer has recurrent state")
            }
        })
    }

    /// The convolution.
    pub(crate) fn conv(&self, mixer: &Mixer) -> compute::ShortConv<'_, B> {
        let kind =
            if let Mixer::ShortConv(ShortConv { .. }) = mixer { ConvKind::Gated } else { ConvKind::Silu };
        compute::ShortConv { weight: &self.conv, bias: self.conv_bias.as_ref(), kind }
    }

    /// What follows it; `convolved`: room for its result.
    pub(crate) fn recurrence<'a>(
        &'a self,
        mixer: &'a Mixer,
        convolved: &'a mut Tensor<B>,
    ) -> Recurrence<'a, B> {
        match (&self.small, mixer) {
            (Small::None, _) => Recurrence::None,
            (Small::Delta { decay, dt_bias, norm }, Mixer::GatedDelta(GatedDelta { shape, .. })) => {
                Recurrence::Delta(DeltaPart { shape, decay, dt_bias, norm, convolved })
            }
            (Small::Ssm { decay, dt_bias, skip, norm }, Mixer::Mamba2(Mamba2 { shape, dt_limits, .. })) => {
                let dt_limits = *dt_limits;
                Recurrence::Ssm(SsmPart { shape, decay, dt_bias, skip, dt_limits, norm, convolved })
            }
            _ => unreachable!("a layer's weights are of its configuration's kind"),
        }
    }
}

/// `-exp(A_log)`, which GGUF stores so.
fn decay<B: Backend>(l: &Loader<'_, B>, i: usize, name: &'static str) -> Result<Tensor<B>> {
    l.vector_map(i, name, |a| match l.source.format() {
        Format::Gguf => a,
        Format::Safetensors => -a.exp(),
    })
}
