//! The layer that only drafts tokens (multi-token prediction, DeepSeek-AI 2024, section 2.2).
//!
//! At a token's position it reads the token's embedding and what the model made of the token before, the final norm of the residual, each
//! through a norm of its own and half of a matrix. What it then makes of both, behind a block that mixes tokens and one that does not, is to
//! predict the next token as the model does. Its own result can stand in for the model's, which is how more than one token is drafted.
//!
//! [`Decoder::forward`] ends with the layer's keys and values for the tokens of the step, so that they are as complete as those of all other
//! layers, whoever asks for drafts later; [`Decoder::draft`] runs all of it.

use super::{Decoder, Workspace};
use crate::Result;
use crate::kv_cache::KvCache;
use crate::weights::Loader;
use crate::workspace::DraftRoom;
use realizar_compute::{Backend, Linear, Norm};

/// Weights beside those of the layer's blocks.
pub(super) struct DraftWeights<B: Backend> {
    embed_norm: Norm<B>,
    hidden_norm: Norm<B>,
    /// Of the embedding and of the hidden state, `[hidden_size, hidden_size]` both.
    pub(super) proj: [Linear<B>; 2],
    /// Before the output matrix; `None`: the model's own.
    head_norm: Option<Norm<B>>,
}

/// What a step of the drafting layer reads beside embeddings. Rows are those that its batch names as of the step before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DraftFrom {
    /// What the last step of the model made of its tokens.
    Model,
    /// What the last step of the drafting layer made, of its rows of logits.
    Draft,
}

pub(super) fn load<B: Backend>(l: &Loader<'_, B>) -> Result<Option<DraftWeights<B>>> {
    if l.config.n_draft_layers == 0 {
        return Ok(None);
    }
    let layer = l.config.n_main_layers();
    let norm = |name| l.norm(Some(layer), name);
    Ok(Some(DraftWeights {
        embed_norm: norm("draft.embed_norm")?,
        hidden_norm: norm("draft.hidden_norm")?,
        proj: l.halves(layer, "draft.proj")?,
        head_norm: l.has(Some(layer), "draft.head_norm").then(|| norm("draft.head_norm")).transpose()?,
    }))
}

impl<B: Backend> Decoder<B> {
    /// Whether the model has a layer that drafts tokens.
    pub fn drafts(&self) -> bool {
        self.draft.is_some()
    }

    /// Keeps what the model made of the tokens of a step, `ws.residual`, for drafts and for the next step, and computes the drafting layer's
    /// keys and values for these tokens. Nothing without such a layer.
    pub(super) fn follow(
        &self,
        backend: &B,
        batch: &B::Batch,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let (Some(weights), Some(final_norm)) = (&self.draft, &self.final_norm) else { return Ok(()) };
        let n_tokens = ws.residual.rows();
        let DraftRoom { hidden, previous, .. } =
            ws.draft.as_mut().expect("a model that drafts has its buffers");
        backend.timed("draft_input", || {
            ws.normed.set_rows(n_tokens);
            previous.set_rows(n_tokens);
            backend.norm(&mut ws.normed, &ws.residual, final_norm)?;
            backend.select_previous(previous, hidden, &ws.normed, batch)?;
            hidden.set_rows(n_tokens);
            backend.norm(hidden, &ws.residual, final_norm)
        })?;
        self.join(backend, weights, batch, ws)?;
        // Its feed-forward block changes no keys and values.
        self.mix(backend, self.config.n_main_layers(), batch, cache, ws, None).map(drop)
    }

    /// Computes a staged step of the drafting layer alone, of `n_tokens` tokens of a sequence each, and writes `n_logits` rows of logits to `ws.logits`.
    ///
    /// # Panics
    /// If the model has no such layer.
    #[expect(clippy::too_many_arguments, reason = "those of `forward` and one more")]
    pub fn draft(
        &self,
        backend: &B,
        batch: &B::Batch,
        n_tokens: usize,
        n_logits: usize,
        from: DraftFrom,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let weights = self.draft.as_ref().expect("the model has a layer that drafts");
        ws.set_rows(n_tokens, n_logits);
        self.rope_angles(backend, batch, ws)?;
        let DraftRoom { hidden, drafted, previous } =
            ws.draft.as_mut().expect("a model that drafts has its buffers");
        previous.set_rows(n_tokens);
        let before = match from {
            DraftFrom::Model => hidden,
            DraftFrom::Draft => drafted,
        };
        // Each sequence has one token, so that no row is one of this step.
        backend.timed("draft_input", || backend.select_previous(previous, before, &ws.normed, batch))?;
        self.join(backend, weights, batch, ws)?;
        let layer = self.config.n_main_layers();
        let operand = self.mix(backend, layer, batch, cache, ws, None)?;
        if let Some(operand) = self.feed_forward(backend, layer, ws, operand)? {
            backend.read_operand(&mut ws.residual, operand)?;
        }
        if n_logits == 0 {
            return Ok(());
        }
        let norm = weights.head_norm.as_ref().or(self.final_norm.as_ref());
        let norm = norm.expect("a model with logits has a norm before them");
        self.logits(backend, batch, norm, ws)?;
        let DraftRoom { drafted, .. } = ws.draft.as_mut().expect("a model that drafts has its buffers");
        drafted.set_rows(n_logits);
        let x = if n_logits < n_tokens { &ws.last } else { &ws.residual };
        backend.timed("draft_input", || backend.norm(drafted, x, norm))
    }

    /// The layer's input: embeddings of the batch's tokens and `previous` → `ws.residual`.
    fn join(
        &self,
        backend: &B,
        weights: &DraftWeights<B>,
        batch: &B::Batch,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let [of_embedding, of_hidden] = &weights.proj;
        ws.set_layer(&self.shard, self.config.n_main_layers());
        let DraftRoom { previous, .. } = ws.draft.as_ref().expect("a model that drafts has its buffers");
        backend.timed("draft_input", || {
            ws.normed.set_rows(previous.rows());
            backend.embed(&mut ws.residual, &self.embed.weight, batch, self.config.embed_scale)?;
            backend.norm(&mut ws.normed, &ws.residual, &weights.embed_norm)?;
            of_embedding.apply(backend, &mut ws.output, &ws.normed)?;
            backend.norm(&mut ws.normed, previous, &weights.hidden_norm)?;
            of_hidden.apply(backend, &mut ws.residual, &ws.normed)?;
            backend.add(&mut ws.residual, &ws.output)
        })
    }
}
