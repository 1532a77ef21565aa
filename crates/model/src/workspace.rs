//! The buffers that a step computes in, made once for the largest batch.

use crate::Result;
use crate::config::{
    Attention, Dense, Encoder, Experts, Ffn, GatedDelta, Latent, LayerConfig, Mamba2, Mixer, ModelConfig,
    PerLayerInput, SharedExpert, ShortConv,
};
use crate::per_layer_input::PerLayerRoom;
use crate::shard::{BlockShard, Join, Shard};
use realizar_compute::{Backend, BatchLimits, DType, LatentRoom, MoeScratch, Reference, Stream, Tensor};

/// Activations of one step; every tensor is `F32`. Heads and hidden activations are those of one rank.
pub struct Workspace<B: Backend> {
    /// The residual stream, `[n_tokens, hidden_size]`.
    pub residual: Tensor<B>,
    /// Its norm, the input of the next block, `[n_tokens, hidden_size]`.
    pub normed: Tensor<B>,
    /// A block's output before it joins the residual, `[n_tokens, hidden_size]`.
    pub output: Tensor<B>,
    /// Queries, keys and values, `[n_tokens, qkv_len]`, or what else a block that mixes tokens projects its input to.
    pub qkv: Tensor<B>,
    /// The gate of attention's result, `[n_tokens, n_heads · head_dim]`.
    pub gate: Tensor<B>,
    /// Queries, keys and values of the delta rule, behind its convolution.
    pub convolved: Tensor<B>,
    /// What only latent attention has.
    pub latent: LatentRoom<B>,
    /// The input of the last matrix of a block that mixes tokens; of attention, `[n_tokens, n_heads · head_dim]`.
    pub attended: Tensor<B>,
    /// Gate and up side by side, `[n_tokens, 2 · intermediate_size]`.
    pub gate_up: Tensor<B>,
    /// The input of `down_proj`, `[n_tokens, intermediate_size]`.
    pub hidden: Tensor<B>,
    /// Scores of experts and the experts' own buffers.
    pub moe: Option<(Tensor<B>, MoeScratch<B>)>,
    /// What experts with inputs of a length of their own have beside.
    pub(crate) moe_latent: Option<MoeLatentRoom<B>>,
    /// Inputs of single layers, where the model has them.
    pub(crate) per_layer: Option<PerLayerRoom<B>>,
    /// Cosines and sines of each rotation, `[n_tokens, dim]`.
    pub angles: Vec<Tensor<B>>,
    /// The residual of the tokens that yield logits, `[n_logits, hidden_size]`.
    pub last: Tensor<B>,
    /// `[n_logits, vocab_size]`; without columns in an encoder.
    pub logits: Tensor<B>,
    /// Of an encoder, a row per sequence: what was pooled, then the output of each layer of its head. At most `n_logits` rows.
    pub(crate) encoded: Vec<Tensor<B>>,
    /// Where the model has a layer that drafts.
    pub(crate) draft: Option<DraftRoom<B>>,
    /// Where several ranks share the model.
    pub(crate) shared: Option<Shared<B>>,
}

/// What a layer that drafts reads: final norms of the residual.
pub(crate) struct DraftRoom<B: Backend> {
    /// Of the tokens of the last step, `[n_tokens, hidden_size]`; kept until the next.
    pub(crate) hidden: Tensor<B>,
    /// Of the drafting layer, for each row of logits of its last step, `[n_logits, hidden_size]`.
    pub(crate) drafted: Tensor<B>,
    /// Of the token before each, `[n_tokens, hidden_size]`.
    pub(crate) previous: Tensor<B>,
}

/// What blocks compute in: the tensors of [`Workspace`] of these names.
pub(crate) struct Room<'a, B: Backend> {
    pub(crate) qkv: &'a mut Tensor<B>,
    pub(crate) gate: &'a mut Tensor<B>,
    pub(crate) convolved: &'a mut Tensor<B>,
    pub(crate) latent: &'a mut LatentRoom<B>,
    pub(crate) attended: &'a mut Tensor<B>,
    pub(crate) gate_up: &'a mut Tensor<B>,
    pub(crate) hidden: &'a mut Tensor<B>,
    pub(crate) moe: &'a mut Option<(Tensor<B>, MoeScratch<B>)>,
    pub(crate) moe_latent: &'a mut Option<MoeLatentRoom<B>>,
    pub(crate) per_layer: &'a mut Option<PerLayerRoom<B>>,
    pub(crate) angles: &'a [Tensor<B>],
    pub(crate) shared: &'a mut Option<Shared<B>>,
}

/// Room for experts with inputs of a length of their own.
pub(crate) struct MoeLatentRoom<B: Backend> {
    /// Their input, `[n_tokens, latent_size]`.
    pub(crate) x: Tensor<B>,
    /// Their sum, `[n_tokens, latent_size]`.
    pub(crate) y: Tensor<B>,
    /// The shared expert's output, `[n_tokens, hidden_size]`.
    pub(crate) shared: Tensor<B>,
}

/// What ranks exchange beside the tensors that one rank has too. Without rows where the model's blocks are joined otherwise.
pub(crate) struct Shared<B: Backend> {
    /// Attention's result of all ranks, `[n_tokens, n_heads · head_dim]`.
    pub(crate) attended: Tensor<B>,
    /// A feed-forward block's hidden activations of all ranks, `[n_tokens, intermediate_size]`.
    pub(crate) hidden: Tensor<B>,
    /// This rank's columns of a block's output, `[n_tokens, hidden_size / n_ranks]`.
    pub(crate) output: Tensor<B>,
    /// This rank's logits, `[n_logits, vocab_size / n_ranks]`.
    pub(crate) logits: Tensor<B>,
}

impl<B: Backend> Shared<B> {
    /// `[rows, row_len]` of each for the widest layer, in the order of the fields.
    fn shapes(shard: &Shard, limits: &BatchLimits) -> [[usize; 2]; 4] {
        let n_layers = shard.config().layers.len();
        let widest = |block: &dyn Fn(usize) -> usize| (0..n_layers).map(block).max().unwrap_or(0);
        let (attended, hidden) = (widest(&|i| gathered(shard.mixer(i))), widest(&|i| gathered(shard.ffn(i))));
        let rows = |len: usize| if len > 0 { limits.n_tokens } else { 0 };
        [
            [rows(attended), attended],
            [rows(hidden), hidden],
            [rows(attended.max(hidden)), shard.mine(shard.residual()).len()],
            [limits.n_logits, shard.mine(shard.vocab()).len()],
        ]
    }

    fn new(backend: &B, shard: &Shard, limits: &BatchLimits) -> Result<Self> {
        let [attended, hidden, output, logits] =
            Self::shapes(shard, limits).map(|shape| backend.zeros(DType::F32, &shape));
        Ok(Self { attended: attended?, hidden: hidden?, output: output?, logits: logits? })
    }

    /// Numbers in all of them.
    fn floats(shard: &Shard, limits: &BatchLimits) -> usize {
        Self::shapes(shard, limits).iter().map(|[rows, len]| rows.saturating_mul(*len)).sum()
    }

    fn set_rows(&mut self, n_tokens: usize, n_logits: usize) {
        for t in [&mut self.attended, &mut self.hidden, &mut self.output] {
            if t.max_rows() > 0 {
                t.set_rows(n_tokens);
            }
        }
        self.logits.set_rows(n_logits);
    }

    fn set_layer(&mut self, shard: &Shard, layer: usize) {
        for (t, block) in [(&mut self.attended, shard.mixer(layer)), (&mut self.hidden, shard.ffn(layer))] {
            if block.join == Join::Gather {
                t.set_row_len(gathered(block));
            }
        }
    }
}

/// Columns that ranks exchange before a block's last matrix.
fn gathered(block: &BlockShard) -> usize {
    match block.join {
        Join::Gather => block.starts.last().copied().unwrap_or(0),
        Join::Alone | Join::Sum => 0,
    }
}

/// Elements in a row of the buffers whose sizes layers decide.
#[derive(Clone, Copy, Default)]
struct Widths {
    qkv: usize,
    gate: usize,
    convolved: usize,
    /// In the order of [`latent_tensors`].
    latent: [usize; 4],
    attended: usize,
    gate_up: usize,
    hidden: usize,
    experts: Option<ExpertWidths>,
}

#[derive(Clone, Copy)]
struct ExpertWidths {
    n_experts: usize,
    /// Rows for each token.
    n_used: usize,
    hidden: usize,
    /// Gate and up.
    gate_up: usize,
    /// What experts read and write; 0 where that is the residual's length.
    latent: usize,
}

impl ExpertWidths {
    /// Elements in a row of what experts read and write.
    fn input(&self, hidden_size: usize) -> usize {
        if self.latent > 0 { self.latent } else { hidden_size }
    }
}

impl Widths {
    fn of_layer(layer: &LayerConfig) -> Self {
        let mut w = Self::default();
        match layer.mixer {
            Mixer::Attention(ref attention @ Attention { heads, output_gate, .. }) => {
                (w.qkv, w.attended) = (attention.own_heads().qkv_len(), heads.n_heads * heads.head_dim);
                w.gate = if output_gate { w.attended } else { 0 };
            }
            Mixer::Latent(Latent { shape, q_rank, .. }) => {
                let heads = |len: usize| shape.n_heads * len;
                (w.qkv, w.attended) = (heads(shape.q_dim()), heads(shape.v_dim));
                let (key_dim, kv_rank) = (shape.key_dim(), shape.kv_rank);
                w.latent = [q_rank.unwrap_or(0), key_dim, heads(key_dim), heads(kv_rank)];
            }
            Mixer::GatedDelta(GatedDelta { shape, .. }) => {
                (w.convolved, w.attended) = (shape.qkv_len(), shape.v_len());
                w.qkv = shape.qkv_len() + shape.v_len() + 2 * shape.n_v_heads;
            }
            Mixer::ShortConv(ShortConv { n_channels, .. }) => {
                (w.qkv, w.attended) = (3 * n_channels, n_channels);
            }
            Mixer::Mamba2(Mamba2 { shape, .. }) => {
                (w.convolved, w.attended) = (shape.xbc_len(), shape.inner_len());
                w.qkv = shape.xbc_len() + shape.inner_len() + shape.n_heads;
            }
            Mixer::None => {}
        }
        match layer.ffn {
            Ffn::Gated(Dense { intermediate_size: n, .. }) => (w.gate_up, w.hidden) = (2 * n, n),
            Ffn::Plain(Dense { intermediate_size: n, .. }) => w.hidden = n,
            Ffn::Experts(e) => {
                let Experts { n_experts, router, intermediate_size: hidden, shared, .. } = e;
                let (gate_up, latent) = (e.params().up_rows() * hidden, e.latent_size.unwrap_or(0));
                w.experts = Some(ExpertWidths { n_experts, n_used: router.n_used, hidden, gate_up, latent });
                if let Some(SharedExpert { intermediate_size: n, .. }) = shared {
                    (w.gate_up, w.hidden) = (if e.gated { 2 * n } else { 0 }, n);
                }
            }
            Ffn::None => {}
        }
        w
    }

    /// Room for every layer.
    fn widest(config: &ModelConfig) -> Self {
        let max = |a: Self, b: Self| Self {
            qkv: a.qkv.max(b.qkv),
            gate: a.gate.max(b.gate),
            convolved: a.convolved.max(b.convolved),
            latent: std::array::from_fn(|i| a.latent[i].max(b.latent[i])),
            attended: a.attended.max(b.attended),
            gate_up: a.gate_up.max(b.gate_up),
            hidden: a.hidden.max(b.hidden),
            experts: match (a.experts, b.experts) {
                (Some(a), Some(b)) => Some(ExpertWidths {
                    n_experts: a.n_experts.max(b.n_experts),
                    n_used: a.n_used.max(b.n_used),
                    hidden: a.hidden.max(b.hidden),
                    gate_up: a.gate_up.max(b.gate_up),
                    latent: a.latent.max(b.latent),
                }),
                (a, b) => a.or(b),
            },
        };
        config.layers.iter().map(Self::of_layer).reduce(max).unwrap_or_default()
    }
}

impl<B: Backend> Workspace<B> {
    /// Buffers for batches within `limits`.
    pub fn new(backend: &B, shard: &Shard, limits: &BatchLimits) -> Result<Self> {
        let c = shard.config();
        let n = limits.n_tokens;
        let f32s = |rows: usize, len: usize| backend.zeros(DType::F32, &[rows, len]);
        let w = Widths::widest(c);
        let moe = w.experts.map(|e| -> Result<_> {
            let (rows, input) = (n * e.n_used, e.input(c.hidden_size));
            let scratch = MoeScratch {
                x: f32s(rows, input)?,
                gate_up: f32s(rows, e.gate_up)?,
                hidden: f32s(rows, e.hidden)?,
                y: f32s(rows, input)?,
            };
            Ok((f32s(n, e.n_experts)?, scratch))
        });
        let moe_latent = w.experts.filter(|e| e.latent > 0).map(|e| -> Result<_> {
            let [x, y, shared] = [e.latent, e.latent, c.hidden_size].map(|len| f32s(n, len));
            Ok(MoeLatentRoom { x: x?, y: y?, shared: shared? })
        });
        let per_layer = c.per_layer_input.map(|input| -> Result<_> {
            let [inputs, projected, gate] = per_layer_lens(c, input).map(|len| f32s(n, len));
            Ok(PerLayerRoom { inputs: inputs?, projected: projected?, gate: gate? })
        });
        let [q_low, latent, queries, attended] = w.latent.map(|len| f32s(n, len));
        let latent = LatentRoom { q_low: q_low?, latent: latent?, queries: queries?, attended: attended? };
        Ok(Self {
            latent,
            residual: f32s(n, c.hidden_size)?,
            normed: f32s(n, c.hidden_size)?,
            output: f32s(n, c.hidden_size)?,
            qkv: f32s(n, w.qkv)?,
            gate: f32s(n, w.gate)?,
            convolved: f32s(n, w.convolved)?,
            attended: f32s(n, w.attended)?,
            gate_up: f32s(n, w.gate_up)?,
            hidden: f32s(n, w.hidden)?,
            moe: moe.transpose()?,
            moe_latent: moe_latent.transpose()?,
            per_layer: per_layer.transpose()?,
            angles: c.ropes.iter().map(|r| f32s(n, r.dim)).collect::<std::result::Result<_, _>>()?,
            last: f32s(limits.n_logits, c.hidden_size)?,
            logits: f32s(limits.n_logits, if c.encoder.is_some() { 0 } else { c.vocab_size })?,
            encoded: encoded_lens(c)
                .into_iter()
                .map(|len| f32s(limits.n_logits, len))
                .collect::<std::result::Result<_, _>>()?,
            draft: match c.n_draft_layers {
                0 => None,
                _ => Some(DraftRoom {
                    hidden: f32s(n, c.hidden_size)?,
                    drafted: f32s(limits.n_logits, c.hidden_size)?,
                    previous: f32s(n, c.hidden_size)?,
                }),
            },
            shared: match shard.rank().is_alone() {
                true => None,
                false => Some(Shared::new(backend, shard, limits)?),
            },
        })
    }

    /// The residual stream, and the room that blocks compute in.
    pub(crate) fn split(&mut self) -> (Stream<'_, B>, Room<'_, B>) {
        let stream = Stream {
            residual: &mut self.residual,
            normed: &mut self.normed,
            output: &mut self.output,
            operand: None,
        };
        let room = Room {
            qkv: &mut self.qkv,
            gate: &mut self.gate,
            convolved: &mut self.convolved,
            latent: &mut self.latent,
            attended: &mut self.attended,
            gate_up: &mut self.gate_up,
            hidden: &mut self.hidden,
            moe: &mut self.moe,
            moe_latent: &mut self.moe_latent,
            per_layer: &mut self.per_layer,
            angles: &self.angles,
            shared: &mut self.shared,
        };
        (stream, room)
    }

    /// What [`Decoder::encode`](crate::Decoder::encode) made of each sequence, `[n_seqs, output_len]`.
    ///
    /// # Panics
    /// If the model is not an encoder.
    pub fn encoded(&self) -> &Tensor<B> {
        self.encoded.last().expect("an encoder has room for its result")
    }

    /// Sets how many rows a step uses.
    pub fn set_rows(&mut self, n_tokens: usize, n_logits: usize) {
        for t in [
            &mut self.residual,
            &mut self.normed,
            &mut self.output,
            &mut self.qkv,
            &mut self.gate,
            &mut self.convolved,
            &mut self.attended,
            &mut self.gate_up,
            &mut self.hidden,
        ] {
            t.set_rows(n_tokens);
        }
        latent_tensors(&mut self.latent).into_iter().for_each(|t| t.set_rows(n_tokens));
        self.angles.iter_mut().for_each(|t| t.set_rows(n_tokens));
        if let Some((router, _)) = &mut self.moe {
            router.set_rows(n_tokens);
        }
        if let Some(MoeLatentRoom { x, y, shared }) = &mut self.moe_latent {
            [x, y, shared].into_iter().for_each(|t| t.set_rows(n_tokens));
        }
        if let Some(PerLayerRoom { inputs, projected, gate }) = &mut self.per_layer {
            [inputs, projected, gate].into_iter().for_each(|t| t.set_rows(n_tokens));
        }
        self.last.set_rows(n_logits);
        self.logits.set_rows(n_logits);
        self.encoded.iter_mut().for_each(|t| t.set_rows(n_logits));
        if let Some(shared) = &mut self.shared {
            shared.set_rows(n_tokens, n_logits);
        }
    }

    /// Gives the buffers of a layer's blocks the lengths of this layer.
    pub(crate) fn set_layer(&mut self, shard: &Shard, layer: usize) {
        let w = Widths::of_layer(&shard.config().layers[layer]);
        self.qkv.set_row_len(w.qkv);
        self.gate.set_row_len(w.gate);
        self.convolved.set_row_len(w.convolved);
        for (t, len) in latent_tensors(&mut self.latent).into_iter().zip(w.latent) {
            t.set_row_len(len);
        }
        self.attended.set_row_len(w.attended);
        self.gate_up.set_row_len(w.gate_up);
        self.hidden.set_row_len(w.hidden);
        if let (Some((router, scratch)), Some(e)) = (&mut self.moe, w.experts) {
            router.set_row_len(e.n_experts);
            scratch.gate_up.set_row_len(e.gate_up);
            scratch.hidden.set_row_len(e.hidden);
        }
        if let Some(shared) = &mut self.shared {
            shared.set_layer(shard, layer);
        }
    }
}

/// Elements in rows of [`Workspace::encoded`].
fn encoded_lens(c: &ModelConfig) -> Vec<usize> {
    let lens = |encoder: &Encoder| {
        std::iter::once(c.hidden_size).chain(encoder.head.iter().map(|layer| layer.n_out)).collect()
    };
    c.encoder.as_ref().map_or_else(Vec::new, lens)
}

/// The buffers of [`LatentRoom`].
fn latent_tensors<B: Backend>(room: &mut LatentRoom<B>) -> [&mut Tensor<B>; 4] {
    let LatentRoom { q_low, latent, queries, attended } = room;
    [q_low, latent, queries, attended]
}

/// Elements in rows of the buffers of [`PerLayerRoom`], in the order of its fields.
fn per_layer_lens(c: &ModelConfig, PerLayerInput { len, .. }: PerLayerInput) -> [usize; 3] {
    [c.layers.len() * len, c.layers.len() * len, len]
}

/// What the buffers of a [`Workspace`] for batches within `limits` take, in bytes.
pub fn workspace_bytes(shard: &Shard, limits: &BatchLimits) -> usize {
    let c = shard.config();
    let shared = if shard.rank().is_alone() { 0 } else { Shared::<Reference>::floats(shard, limits) };
    let w = Widths::widest(c);
    let experts = w.experts.map_or(0, |e| {
        let latent = if e.latent > 0 { 2 * e.latent + c.hidden_size } else { 0 };
        e.n_experts + e.n_used * (2 * e.input(c.hidden_size) + e.gate_up + e.hidden) + latent
    });
    let is_drafting = usize::from(c.n_draft_layers > 0);
    let per_token = (3 + 2 * is_drafting) * c.hidden_size
        + w.qkv
        + w.gate
        + w.convolved
        + w.latent.iter().sum::<usize>()
        + w.attended
        + w.gate_up
        + w.hidden
        + experts
        + c.per_layer_input.map_or(0, |input| per_layer_lens(c, input).iter().sum())
        + c.ropes.iter().map(|r| r.dim).sum::<usize>();
    let floats = limits.n_tokens.saturating_mul(per_token);
    let outputs = match c.encoder {
        Some(_) => encoded_lens(c).iter().sum(),
        None => c.vocab_size,
    };
    let per_row = (1 + is_drafting) * c.hidden_size + outputs;
    let floats = floats.saturating_add(limits.n_logits.saturating_mul(per_row));
    floats.saturating_add(shared).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{arch, source};
    use realizar_compute::Rank;

    #[test]
    fn its_size_is_known_before_it_is_made() {
        let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
        let mut n_models = 0;
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path().join("model.gguf");
            let Ok(source) = source::open(&path) else { continue };
            let config = arch::configure(&*source).unwrap();
            let shard = Shard::new(&config, &*source, Rank::ALONE, false).unwrap();
            let limits = BatchLimits { n_tokens: 5, n_seqs: 2, n_blocks: 2, n_logits: 3 };
            let ws = Workspace::new(&Reference, &shard, &limits).unwrap();
            let own = [
                &ws.residual,
                &ws.normed,
                &ws.output,
                &ws.qkv,
                &ws.gate,
                &ws.convolved,
                &ws.attended,
                &ws.gate_up,
                &ws.hidden,
                &ws.last,
                &ws.logits,
            ];
            let moe = ws.moe.iter().flat_map(|(r, s)| [r, &s.x, &s.gate_up, &s.hidden, &s.y]);
            let moe_latent = ws.moe_latent.iter().flat_map(|m| [&m.x, &m.y, &m.shared]);
            let per_layer = ws.per_layer.iter().flat_map(|p| [&p.inputs, &p.projected, &p.gate]);
            let draft = ws.draft.iter().flat_map(|d| [&d.hidden, &d.drafted, &d.previous]);
            let latent = [&ws.latent.q_low, &ws.latent.latent, &ws.latent.queries, &ws.latent.attended];
            let all = own
                .into_iter()
                .chain(latent)
                .chain(moe)
                .chain(moe_latent)
                .chain(per_layer)
                .chain(draft)
                .chain(&ws.angles);
            assert_eq!(
                workspace_bytes(&shard, &limits),
                4 * all.map(|t| t.len()).sum::<usize>(),
                "{}",
                path.display()
            );
            n_models += 1;
        }
        assert!(n_models > 10, "{n_models} models");
    }
}
