//! The forward pass of an encoder: pooling and its head in place of logits.

use super::Decoder;
use crate::Result;
use crate::config::{HeadFunction, HeadLayer};
use crate::kv_cache::KvCache;
use crate::weights::Loader;
use crate::workspace::Workspace;
use realizar_compute::{Backend, Linear, Norm};

/// A matrix after pooling, and the norm of its outputs.
pub(super) struct Head<B: Backend> {
    linear: Linear<B>,
    norm: Option<Norm<B>>,
}

pub(super) fn load_head<B: Backend>(l: &Loader<'_, B>) -> Result<Vec<Head<B>>> {
    let load = |layer: &HeadLayer| {
        let norm = layer.norm.map(|name| l.norm(None, name)).transpose()?;
        let linear = match layer.tokens {
            Some(tokens) => l.token_rows(layer.name, &tokens)?,
            None => l.linear(None, &[layer.name])?,
        };
        Ok(Head { linear, norm })
    };
    l.config.encoder.iter().flat_map(|encoder| &encoder.head).map(load).collect()
}

impl<B: Backend> Decoder<B> {
    /// Computes a staged step of whole texts, `n_tokens` tokens of `n_seqs` sequences that begin at position 0, and writes what the model
    /// makes of each to `ws.encoded`, a row per sequence. Embeddings are not divided by their length yet.
    ///
    /// `cache` may be [`KvCache::of_one_layer`], since nothing is kept.
    ///
    /// # Panics
    /// If the model is not an encoder.
    pub fn encode(
        &self,
        backend: &B,
        batch: &B::Batch,
        n_tokens: usize,
        n_seqs: usize,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let encoder = self.config.encoder.as_ref().expect("only encoders encode");
        ws.set_rows(n_tokens, n_seqs);
        self.run_layers(backend, batch, cache, ws)?;
        if let Some(norm) = &self.final_norm {
            backend.timed("norm", || backend.norm_in_place(&mut ws.residual, norm))?;
        }
        let (pooled, mut rest) = ws.encoded.split_first_mut().expect("an encoder has room for its result");
        backend.timed("pool", || backend.pool(pooled, &ws.residual, batch, encoder.pooling))?;
        let mut x = &*pooled;
        for (Head { linear, norm }, layer) in self.encoder_head.iter().zip(&encoder.head) {
            let (y, behind) =
                std::mem::take(&mut rest).split_first_mut().expect("each layer of the head has room");
            backend.timed("head", || linear.apply(backend, y, x))?;
            match layer.function {
                HeadFunction::Identity => {}
                // tanh(x) = 1 · tanh(x / 1)
                HeadFunction::Tanh => backend.softcap(y, 1.0)?,
                HeadFunction::Activation(activation) => backend.activate(y, activation)?,
            }
            if let Some(norm) = norm {
                backend.norm_in_place(y, norm)?;
            }
            (x, rest) = (y, behind);
        }
        Ok(())
    }
}
