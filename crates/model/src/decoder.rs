//! A model's weights on a backend, and the one forward pass of all architectures.

mod draft;
mod encode;

pub use draft::DraftFrom;

use crate::Result;
use crate::config::{self, Attention, Dense, ModelConfig, PerLayerInput, QkNorm};
use crate::contract::{Contract, Part, Weight};
use crate::kv_cache::{KvCache, LayerCache};
use crate::latent::LatentWeights;
use crate::names::Split;
use crate::per_layer_input::{PerLayerRoom, PerLayerWeights};
use crate::recurrent::RecurrentWeights;
use crate::shard::{self, BlockShard, Shard};
use crate::source::TensorSource;
use crate::weights::Loader;
use crate::workspace::{self, MoeLatentRoom, Workspace};
use realizar_compute::{
    AttentionBlock, AttentionTemperature, Backend, BlockInput, BlockOutput, EmbedBlock, Experts, FfnBlock,
    FfnUp, Gather, HeadBlock, HeadNorms, Join, LatentBlock, LatentExperts, Linear, MoeBlock, MoeNorms, Norm,
    OutputGate, PerLayerInputBlock, QkvPrep, RecurrentBlock, SharedExpert, Tensor,
};

/// A transformer on a backend, or one rank's part of it.
pub struct Decoder<B: Backend> {
    config: ModelConfig,
    shard: Shard,
    /// `[vocab_size, hidden_size]`
    embed: Linear<B>,
    /// What is added to embeddings by their positions.
    position_embed: Option<Tensor<B>>,
    /// What is added to embeddings by the types of tokens.
    token_types: Option<Tensor<B>>,
    embed_norm: Option<Norm<B>>,
    per_layer: Option<PerLayerWeights<B>>,
    ropes: Vec<Rope<B>>,
    layers: Vec<Layer<B>>,
    final_norm: Option<Norm<B>>,
    /// What follows the pooling of an encoder.
    encoder_head: Vec<encode::Head<B>>,
    /// `None`: the embedding serves as output matrix. Of several ranks, each has its rows.
    lm_head: Option<Linear<B>>,
    /// What the last layer has beside its blocks, where it only drafts tokens.
    draft: Option<draft::DraftWeights<B>>,
}

struct Rope<B: Backend> {
    frequencies: Tensor<B>,
    scale: f32,
}

struct Layer<B: Backend> {
    inputs: Inputs<B>,
    mixer: Mixer<B>,
    /// Of the residual behind the mixer.
    after_mixer: Option<Norm<B>>,
    ffn: Ffn<B>,
    /// Of the residual behind the feed-forward block.
    after_ffn: Option<Norm<B>>,
    per_layer: Option<LayerInput<B>>,
    /// Factor on the residual at the layer's end.
    output_scale: Option<f32>,
}

/// How a layer reads what a token has for it.
struct LayerInput<B: Backend> {
    gate: Linear<B>,
    out: Output<B>,
}

/// What the blocks of a layer read.
enum Inputs<B: Backend> {
    /// One after the other, each the norm of the residual, or the residual where there is none.
    Each { mixer: Option<Norm<B>>, ffn: Option<Norm<B>> },
    /// Side by side, one norm.
    Shared(Norm<B>),
}

enum Mixer<B: Backend> {
    Attention {
        qkv: Linear<B>,
        norms: QkvNorms<B>,
        sinks: Option<Tensor<B>>,
        gate: Option<Linear<B>>,
        out: Output<B>,
    },
    Latent {
        weights: LatentWeights<B>,
        out: Output<B>,
    },
    Recurrent {
        weights: RecurrentWeights<B>,
        out: Output<B>,
    },
    None,
}

/// Norms of queries, keys and values.
enum QkvNorms<B: Backend> {
    None,
    /// Of queries and keys, before they turn, and the weights of queries where norms after the rotation have them.
    QueriesAndKeys {
        q: Norm<B>,
        k: Norm<B>,
        query_factors: Option<Tensor<B>>,
    },
    /// Of each head, those of values too, and the weights that follow.
    AllHeads {
        norm: Norm<B>,
        weights: Tensor<B>,
    },
}

/// Queries' and keys' norms, the weights of queries after the rotation, and the norms of all heads.
type NormParts<'a, B> = (Option<(&'a Norm<B>, &'a Norm<B>)>, Option<&'a Tensor<B>>, Option<HeadNorms<'a, B>>);

impl<B: Backend> QkvNorms<B> {
    fn parts(&self) -> NormParts<'_, B> {
        match self {
            Self::None => (None, None, None),
            Self::QueriesAndKeys { q, k, query_factors } => (Some((q, k)), query_factors.as_ref(), None),
            Self::AllHeads { norm, weights } => (None, None, Some(HeadNorms { norm, weights })),
        }
    }
}

enum Ffn<B: Backend> {
    Gated { gate_up: Linear<B>, down: Output<B> },
    Plain { up: Linear<B>, down: Output<B> },
    Moe(Box<Mixture<B>>),
    None,
}

struct Mixture<B: Backend> {
    router: Linear<B>,
    selection_bias: Option<Tensor<B>>,
    gate_up: B::Matrix,
    gate_up_bias: Option<Tensor<B>>,
    down: B::Matrix,
    down_bias: Option<Tensor<B>>,
    shared: Option<Shared<B>>,
    /// To what experts read, and back from what they write.
    latent: Option<[Linear<B>; 2]>,
    output_scale: Option<Tensor<B>>,
    output_bias: Option<Tensor<B>>,
    norms: Option<MixtureNorms<B>>,
    post_norm: Option<Norm<B>>,
}

/// Norms within a mixture.
struct MixtureNorms<B: Backend> {
    router: Norm<B>,
    experts: Norm<B>,
    post_experts: Norm<B>,
    post_shared: Norm<B>,
}

/// The expert that all tokens use.
struct Shared<B: Backend> {
    gate_up: Linear<B>,
    down: Linear<B>,
    gate: Option<Linear<B>>,
}

/// The last matrix of a block, which leads back to the residual, and the norms around it.
struct Output<B: Backend> {
    /// Of its input.
    sub_norm: Option<Norm<B>>,
    proj: Linear<B>,
    /// Of its output.
    post_norm: Option<Norm<B>>,
}

impl<B: Backend> Decoder<B> {
    /// Loads all weights. `n_ctx` is the longest context that will be asked for, in tokens.
    ///
    /// Errors: tensors that are missing, have another shape than the description says or are no part of it, all at once and before
    /// any is read; then one that cannot be on this backend. Nothing stays allocated after an error.
    pub fn load(
        backend: &B,
        source: &dyn TensorSource,
        mut config: ModelConfig,
        n_ctx: usize,
    ) -> Result<Self> {
        config.check_device(backend)?;
        assert!(config.factors_fold(), "{} has factors that do not fold", config.arch);
        // The factor is 1 at all positions of a context within the first period.
        let counts = |t: &AttentionTemperature| n_ctx > t.period;
        config.each_attention(|a| a.temperature = a.temperature.filter(counts));
        config.each_latent(|l| l.temperature = l.temperature.filter(counts));
        let contract = Contract::check(source, &config)?;
        let shard = Shard::new(&config, source, backend.rank(), backend.joins_exactly())?;
        let loader = Loader { backend, source, config: &config, contract: &contract, shard: &shard };
        let c = &config;
        let ropes = c.ropes.iter().map(|r| {
            let (frequencies, scale) = r.frequencies(n_ctx);
            Ok(Rope { frequencies: backend.upload(&[frequencies.len()], &frequencies)?, scale })
        });
        let ropes = ropes.collect::<Result<_>>()?;
        let layers = (0..c.layers.len()).map(|i| load_layer(&loader, i)).collect::<Result<_>>()?;
        let embed = Weight { name: "embed", layer: None };
        let lm_head = if c.encoder.is_none() && loader.has(None, "lm_head") {
            Some(loader.linear(None, &["lm_head"])?)
        } else if shard.rank().is_alone() {
            None
        } else {
            Some(Linear::bare(backend.matrix(loader.parts(embed, Split::Vocab)?)?))
        };
        Ok(Self {
            embed: Linear::bare(backend.matrix(loader.parts(embed, Split::Whole)?)?),
            position_embed: loader.position_table()?,
            token_types: loader.token_types()?,
            embed_norm: c.embed_norm.map(|name| loader.norm(None, name)).transpose()?,
            encoder_head: encode::load_head(&loader)?,
            per_layer: config.per_layer_input.map(|p| PerLayerWeights::load(&loader, p)).transpose()?,
            ropes,
            layers,
            final_norm: c.final_norm.map(|name| loader.norm(None, name)).transpose()?,
            lm_head,
            draft: draft::load(&loader)?,
            config,
            shard,
        })
    }

    /// The model's description.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The part of the model that is here.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// Bytes of weights on the device, and of those that one decode step reads (an embedding that serves only to look up rows, and
    /// experts that a token does not use, are not read).
    pub fn weight_bytes(&self, backend: &B) -> WeightBytes {
        let size = |l: &Linear<B>| backend.matrix_bytes(&l.weight);
        let embed = size(&self.embed);
        let head = self.lm_head.as_ref().map(size);
        let mut sum = WeightBytes { total: embed + head.unwrap_or(0), per_step: head.unwrap_or(embed) };
        if let Some(PerLayerWeights { table, proj, .. }) = &self.per_layer {
            sum.total += backend.matrix_bytes(table) + size(proj);
            sum.per_step += size(proj);
        }
        if let Some(draft) = &self.draft {
            sum.total += draft.proj.iter().map(size).sum::<usize>();
        }
        for (i, (layer, config)) in self.layers.iter().zip(&self.config.layers).enumerate() {
            let mixer = match &layer.mixer {
                Mixer::Attention { qkv, gate, out, .. } => {
                    size(qkv) + gate.as_ref().map_or(0, size) + size(&out.proj)
                }
                Mixer::Latent { weights, out } => weights.bytes(backend) + size(&out.proj),
                Mixer::Recurrent { weights, out } => size(&weights.in_proj) + size(&out.proj),
                Mixer::None => 0,
            };
            let (total, used) = match (&layer.ffn, &config.ffn) {
                (Ffn::Gated { gate_up: up, down } | Ffn::Plain { up, down }, _) => {
                    let both = size(up) + size(&down.proj);
                    (both, both)
                }
                (Ffn::Moe(m), ffn) => {
                    let all = backend.matrix_bytes(&m.gate_up) + backend.matrix_bytes(&m.down);
                    let used = match ffn {
                        config::Ffn::Experts(e) => all / e.n_experts * e.router.n_used,
                        _ => all,
                    };
                    let shared = m.shared.as_ref().map_or(0, |s| size(&s.gate_up) + size(&s.down));
                    let latent = m.latent.as_ref().map_or(0, |[down, up]| size(down) + size(up));
                    let always = size(&m.router) + shared + latent;
                    (always + all, always + used)
                }
                (Ffn::None, _) => (0, 0),
            };
            let per_layer = layer.per_layer.as_ref().map_or(0, |p| size(&p.gate) + size(&p.out.proj));
            sum.total += mixer + per_layer + total;
            if i < self.config.n_main_layers() {
                sum.per_step += mixer + per_layer + used;
            }
        }
        sum
    }

    /// Computes a staged step of `n_tokens` tokens: writes their keys and values to the cache and `n_logits` rows of logits to
    /// `ws.logits`.
    pub fn forward(
        &self,
        backend: &B,
        batch: &B::Batch,
        n_tokens: usize,
        n_logits: usize,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        ws.set_rows(n_tokens, n_logits);
        self.run_layers(backend, batch, cache, ws)?;
        let norm = self.final_norm.as_ref();
        if n_logits > 0 {
            self.logits(backend, batch, norm.expect("a model with logits has a norm before them"), ws)?;
        }
        self.follow(backend, batch, cache, ws)
    }

    /// Tokens → `ws.residual` behind the last layer.
    fn run_layers(
        &self,
        backend: &B,
        batch: &B::Batch,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = self.shard.config();
        backend.timed("embed", || {
            backend.embed(&mut ws.residual, &self.embed.weight, batch, c.embed_scale / c.residual_scale)
        })?;
        if let Some((weights, room)) = self.per_layer.as_ref().zip(ws.per_layer.as_mut()) {
            backend.timed("per_layer_inputs", || weights.compute(backend, room, &ws.residual, batch))?;
        }
        let block = EmbedBlock {
            positions: self.position_embed.as_ref(),
            token_types: self.token_types.as_ref(),
            norm: self.embed_norm.as_ref(),
        };
        backend.embed_block(&mut ws.residual, batch, block)?;
        self.rope_angles(backend, batch, ws)?;
        // The residual as matrices read it, where the block before left it so.
        let mut operand = None;
        let make_floats = |ws: &mut Workspace<B>, operand: &mut Option<B::Operand>| match operand.take() {
            Some(operand) => backend.read_operand(&mut ws.residual, operand),
            None => Ok(()),
        };
        for (i, layer) in self.layers.iter().enumerate().take(self.config.n_main_layers()) {
            ws.set_layer(&self.shard, i);
            if let Inputs::Shared(norm) = &layer.inputs {
                make_floats(ws, &mut operand)?;
                backend.timed("norm", || backend.norm(&mut ws.normed, &ws.residual, norm))?;
            }
            operand = self.mix(backend, i, batch, cache, ws, operand)?;
            operand = self.feed_forward(backend, i, ws, operand)?;
            if layer.per_layer.is_some() || layer.output_scale.is_some() {
                make_floats(ws, &mut operand)?;
            }
            self.add_per_layer_input(backend, i, ws)?;
            if let Some(factor) = layer.output_scale {
                backend.timed("scale", || backend.scale(&mut ws.residual, factor))?;
            }
        }
        make_floats(ws, &mut operand)
    }

    fn rope_angles(
        &self,
        backend: &B,
        batch: &B::Batch,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        self.ropes.iter().zip(&mut ws.angles).try_for_each(|(rope, angles)| {
            backend.timed("rope_angles", || backend.rope_angles(angles, &rope.frequencies, batch, rope.scale))
        })
    }

    /// `ws.residual`, of the tokens that yield logits → `ws.logits`, by this norm.
    fn logits(
        &self,
        backend: &B,
        batch: &B::Batch,
        norm: &Norm<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        // Otherwise every token has a row of logits, in order.
        if ws.last.rows() < ws.residual.rows() {
            backend.timed("select_rows", || backend.select_rows(&mut ws.last, &ws.residual, batch))?;
        }
        backend.timed("lm_head", || self.head(backend, norm, ws))
    }

    /// `ws.last`, or `ws.residual` where it has as many rows → `ws.logits`.
    fn head(&self, backend: &B, norm: &Norm<B>, ws: &mut Workspace<B>) -> realizar_compute::Result<()> {
        ws.normed.set_rows(ws.last.rows());
        let starts = self.shard.vocab();
        let block = HeadBlock {
            x: if ws.residual.rows() == ws.last.rows() { &ws.residual } else { &ws.last },
            norm,
            linear: self.lm_head.as_ref().unwrap_or(&self.embed),
            softcap: self.config.logit_softcap,
            normed: &mut ws.normed,
            gather: ws.shared.as_mut().map(|s| Gather { columns: &mut s.logits, starts }),
        };
        backend.head(&mut ws.logits, block)
    }

    /// Adds a layer's mixer to `ws.residual`.
    fn mix(
        &self,
        backend: &B,
        layer: usize,
        batch: &B::Batch,
        cache: &mut KvCache<B>,
        ws: &mut Workspace<B>,
        operand: Option<B::Operand>,
    ) -> realizar_compute::Result<Option<B::Operand>> {
        let (c, weights) = (self.shard.config(), &self.layers[layer]);
        let (mut stream, room) = ws.split();
        stream.operand = operand;
        let shared =
            room.shared.as_mut().map(|workspace::Shared { attended, output, .. }| (attended, output));
        match (&weights.mixer, &c.layers[layer].mixer, cache.layer_mut(layer)) {
            (
                Mixer::Attention { qkv, norms, sinks, gate, out },
                config::Mixer::Attention(this),
                LayerCache::Kv(kv),
            ) => {
                let params = this.params();
                let (qk_norm, query_factors, head_norms) = norms.parts();
                let is_full = this.qk_norm == Some(QkNorm::FullWidth);
                let block = AttentionBlock {
                    input: weights.inputs.mixer(),
                    qkv,
                    full_qk_norm: qk_norm.filter(|_| is_full),
                    head_norms,
                    temperature: this.temperature,
                    prep: QkvPrep {
                        heads: this.own_heads(),
                        qk_norm: qk_norm.filter(|_| !is_full),
                        angles: this.rope.map(|r| (&room.angles[r], c.ropes[r].style)),
                    },
                    query_factors,
                    params: &params,
                    sinks: sinks.as_ref(),
                    kv,
                    gate: gate.as_ref().map(|proj| OutputGate { proj, rows: room.gate }),
                    out: self.output(out, weights.after_mixer.as_ref(), self.shard.mixer(layer), shared),
                    qkv_rows: room.qkv,
                    attended: room.attended,
                };
                backend.attention_block(stream, batch, block)
            }
            (Mixer::Latent { weights: latent, out }, config::Mixer::Latent(this), LayerCache::Kv(cache)) => {
                let block = LatentBlock {
                    input: weights.inputs.mixer(),
                    shape: this.shape,
                    queries: latent.queries(),
                    kv: &latent.kv,
                    kv_norm: &latent.kv_norm,
                    temperature: this.temperature,
                    angles: (&room.angles[this.rope], c.ropes[this.rope].style),
                    k_up: &latent.k_up,
                    v_up: &latent.v_up,
                    scale: this.scale,
                    cache,
                    out: self.output(out, weights.after_mixer.as_ref(), self.shard.mixer(layer), shared),
                    q_rows: room.qkv,
                    values: room.attended,
                    room: room.latent,
                };
                backend.latent_block(stream, batch, block).map(|()| None)
            }
            (Mixer::Recurrent { weights: recurrent, out }, mixer, LayerCache::State(state)) => {
                let block = RecurrentBlock {
                    input: weights.inputs.mixer(),
                    in_proj: &recurrent.in_proj,
                    conv: recurrent.conv(mixer),
                    recurrence: recurrent.recurrence(mixer, room.convolved),
                    state,
                    out: self.output(out, weights.after_mixer.as_ref(), self.shard.mixer(layer), shared),
                    rows: room.qkv,
                    mixed: room.attended,
                };
                backend.recurrent_block(stream, batch, block).map(|()| None)
            }
            (Mixer::None, ..) => Ok(operand),
            _ => unreachable!("a layer's weights and cache are of its configuration's kind"),
        }
    }

    /// Adds what tokens have for a layer to `ws.residual`.
    fn add_per_layer_input(
        &self,
        backend: &B,
        layer: usize,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let weights = self.layers[layer].per_layer.as_ref().zip(self.config.per_layer_input);
        let Some((LayerInput { gate, out }, PerLayerInput { len, activation })) = weights else {
            return Ok(());
        };
        let (stream, room) = ws.split();
        let PerLayerRoom { inputs, gate: rows, .. } =
            room.per_layer.as_mut().expect("a model with inputs of layers has their buffers");
        let out = BlockOutput {
            sub_norm: None,
            proj: &out.proj,
            post_norm: out.post_norm.as_ref(),
            sum_norm: None,
            join: Join::Alone,
        };
        let block = PerLayerInputBlock { gate, activation, inputs, start: layer * len, out, rows };
        backend.per_layer_input(stream, block)
    }

    /// Adds a layer's feed-forward block to `ws.residual`.
    fn feed_forward(
        &self,
        backend: &B,
        layer: usize,
        ws: &mut Workspace<B>,
        operand: Option<B::Operand>,
    ) -> realizar_compute::Result<Option<B::Operand>> {
        let part = self.shard.ffn(layer);
        let weights = &self.layers[layer];
        let input = weights.inputs.ffn();
        let (mut stream, room) = ws.split();
        stream.operand = operand;
        let shared = room.shared.as_mut().map(|workspace::Shared { hidden, output, .. }| (hidden, output));
        let (up, down, activation) = match (&weights.ffn, self.shard.config().layers[layer].ffn) {
            (Ffn::Gated { gate_up, down }, config::Ffn::Gated(dense)) => {
                (FfnUp::Gated { gate_up, rows: room.gate_up }, down, dense.activation)
            }
            (Ffn::Plain { up, down }, config::Ffn::Plain(dense)) => {
                (FfnUp::Plain { up }, down, dense.activation)
            }
            (Ffn::Moe(m), config::Ffn::Experts(e)) => {
                let (scores, scratch) = room.moe.as_mut().expect("a model with experts has their buffers");
                let block = MoeBlock {
                    input,
                    router: &m.router,
                    experts: Experts {
                        gate_up: &m.gate_up,
                        gate_up_bias: m.gate_up_bias.as_ref(),
                        down: &m.down,
                        down_bias: m.down_bias.as_ref(),
                        selection_bias: m.selection_bias.as_ref(),
                        output_scale: m.output_scale.as_ref(),
                        params: e.params(),
                    },
                    shared: m.shared.as_ref().zip(Some((room.gate_up, room.hidden))).map(
                        |(Shared { gate_up, down, gate }, (rows, hidden))| SharedExpert {
                            gate_up,
                            down,
                            gate: gate.as_ref(),
                            rows,
                            hidden,
                        },
                    ),
                    latent: m.latent.as_ref().zip(room.moe_latent.as_mut()).map(|([down, up], room)| {
                        let MoeLatentRoom { x, y, shared } = room;
                        LatentExperts { down, up, x, y, shared }
                    }),
                    norms: m.norms.as_ref().map(|n| MoeNorms {
                        router: &n.router,
                        experts: &n.experts,
                        post_experts: &n.post_experts,
                        post_shared: &n.post_shared,
                    }),
                    post_norm: m.post_norm.as_ref(),
                    is_part: part.join == shard::Join::Sum,
                    scores,
                    scratch,
                };
                backend.experts(stream, block)?;
                if let Some(bias) = &m.output_bias {
                    backend.add_columns(&mut ws.residual, bias)?;
                }
                return normalize(backend, ws, weights.after_ffn.as_ref()).map(|()| None);
            }
            (Ffn::None, _) => return Ok(operand),
            _ => unreachable!("a layer's weights are of its configuration's kind"),
        };
        let out = self.output(down, weights.after_ffn.as_ref(), part, shared);
        backend.feed_forward(stream, FfnBlock { input, up, activation, out, hidden: room.hidden })
    }

    /// A block's way back to the residual, which `sum_norm` then normalizes; `shared` are the tensors that ranks exchange.
    fn output<'a>(
        &'a self,
        out: &'a Output<B>,
        sum_norm: Option<&'a Norm<B>>,
        part: &'a BlockShard,
        shared: Option<(&'a mut Tensor<B>, &'a mut Tensor<B>)>,
    ) -> BlockOutput<'a, B> {
        let join = match (part.join, shared) {
            (shard::Join::Alone, _) => Join::Alone,
            (shard::Join::Sum, _) => Join::Sum,
            (shard::Join::Gather, shared) => {
                let (input, output) = shared.expect("ranks have tensors to exchange");
                Join::Gather {
                    input: Gather { columns: input, starts: &part.starts },
                    output: Gather { columns: output, starts: self.shard.residual() },
                }
            }
        };
        BlockOutput {
            sub_norm: out.sub_norm.as_ref(),
            proj: &out.proj,
            post_norm: out.post_norm.as_ref(),
            sum_norm,
            join,
        }
    }
}

/// Norm of the residual itself, where there is one.
fn normalize<B: Backend>(
    backend: &B,
    ws: &mut Workspace<B>,
    norm: Option<&Norm<B>>,
) -> realizar_compute::Result<()> {
    norm.map_or(Ok(()), |norm| backend.timed("norm", || backend.norm_in_place(&mut ws.residual, norm)))
}

impl<B: Backend> Inputs<B> {
    fn mixer(&self) -> BlockInput<'_, B> {
        match self {
            Self::Each { mixer, .. } => mixer.as_ref().map_or(BlockInput::Residual, BlockInput::Norm),
            Self::Shared(_) => BlockInput::Shared,
        }
    }

    fn ffn(&self) -> BlockInput<'_, B> {
        match self {
            Self::Each { ffn, .. } => ffn.as_ref().map_or(BlockInput::Residual, BlockInput::Norm),
            Self::Shared(_) => BlockInput::Shared,
        }
    }
}

/// Sizes of a model's weights on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightBytes {
    /// All.
    pub total: usize,
    /// Read by one decode step.
    pub per_step: usize,
}

fn load_layer<B: Backend>(l: &Loader<'_, B>, i: usize) -> Result<Layer<B>> {
    let layer = &l.config.layers[i];
    let norm = |name: Option<&'static str>| name.map(|name| l.norm(Some(i), name)).transpose();
    let norms = layer.norms;
    let (pre_mixer, post_mixer) = (norm(norms.pre_mixer)?, norm(norms.post_mixer)?);
    Ok(Layer {
        inputs: match layer.parallel {
            true => Inputs::Shared(pre_mixer.expect("blocks side by side share a norm")),
            false => Inputs::Each { mixer: pre_mixer, ffn: norm(norms.pre_ffn)? },
        },
        mixer: match &layer.mixer {
            config::Mixer::Attention(a) => load_attention(l, i, a, post_mixer)?,
            config::Mixer::Latent(latent) => Mixer::Latent {
                weights: LatentWeights::load(l, i, latent)?,
                out: Output { sub_norm: None, proj: l.linear(Some(i), &["o_proj"])?, post_norm: post_mixer },
            },
            config::Mixer::GatedDelta(_) | config::Mixer::ShortConv(_) | config::Mixer::Mamba2(_) => {
                let (weights, out) = RecurrentWeights::load(l, i)?;
                let proj = l.linear(Some(i), &[out])?;
                Mixer::Recurrent { weights, out: Output { sub_norm: None, proj, post_norm: post_mixer } }
            }
            config::Mixer::None => Mixer::None,
        },
        after_mixer: norm(norms.after_mixer)?,
        ffn: load_ffn(l, i, norm(norms.post_ffn)?)?,
        after_ffn: norm(norms.after_ffn)?,
        per_layer: l.config.per_layer_input.map(|_| load_layer_input(l, i)).transpose()?,
        output_scale: l.number(i, "output_scale")?,
    })
}

fn load_layer_input<B: Backend>(l: &Loader<'_, B>, i: usize) -> Result<LayerInput<B>> {
    let proj = l.linear(Some(i), &["per_layer.proj"])?;
    let post_norm = Some(l.norm(Some(i), "per_layer.post_norm")?);
    Ok(LayerInput {
        gate: l.linear(Some(i), &["per_layer.gate"])?,
        out: Output { sub_norm: None, proj, post_norm },
    })
}

fn load_qkv_norms<B: Backend>(l: &Loader<'_, B>, i: usize, kind: Option<QkNorm>) -> Result<QkvNorms<B>> {
    // The heads of this rank.
    let config::Mixer::Attention(attention) = l.shard.config().layers[i].mixer else {
        unreachable!("only attention has norms of heads")
    };
    let heads = attention.own_heads();
    let plain = || l.unit_norm(heads.head_dim);
    Ok(match kind {
        None => QkvNorms::None,
        Some(QkNorm::PerHead | QkNorm::FullWidth) => QkvNorms::QueriesAndKeys {
            q: l.norm(Some(i), "q_norm")?,
            k: l.norm(Some(i), "k_norm")?,
            query_factors: None,
        },
        Some(QkNorm::PerHeadWithValues) => {
            let mut weights = l.norm_weight(i, "q_norm")?.repeat(heads.n_heads);
            if heads.n_kv_heads > 0 {
                weights.extend(l.norm_weight(i, "k_norm")?.repeat(heads.n_kv_heads));
            }
            weights.resize(heads.qkv_len(), 1.0);
            QkvNorms::AllHeads { norm: plain()?, weights: l.backend.upload(&[weights.len()], &weights)? }
        }
        // Without weights a norm of a head gives the same before its rotation as after it. And a product of a query and a key with
        // weights for both is one with the product of the weights on the query.
        Some(QkNorm::PerHeadAfterRotation) => {
            let [q, k] = ["q_norm", "k_norm"].map(|name| l.norm_weight(i, name));
            let of_head: Vec<f32> = q?.iter().zip(k?).map(|(q, k)| q * k).collect();
            let mut factors = of_head.repeat(heads.n_heads);
            factors.resize(heads.qkv_len(), 1.0);
            let query_factors = Some(l.backend.upload(&[factors.len()], &factors)?);
            QkvNorms::QueriesAndKeys { q: plain()?, k: plain()?, query_factors }
        }
    })
}

fn load_attention<B: Backend>(
    l: &Loader<'_, B>,
    i: usize,
    a: &Attention,
    post_norm: Option<Norm<B>>,
) -> Result<Mixer<B>> {
    let (qkv, gate) = match a.output_gate {
        true => l.gated_qkv(i, a.heads).map(|(qkv, gate)| (qkv, Some(gate)))?,
        false => (l.fused_or(Some(i), "qkv_proj", a.projections())?, None),
    };
    Ok(Mixer::Attention {
        qkv,
        norms: load_qkv_norms(l, i, a.qk_norm)?,
        sinks: l.vector(i, "sinks", Part::Weight)?,
        gate,
        out: Output {
            sub_norm: a.sub_norm.then(|| l.norm(Some(i), "attn_sub_norm")).transpose()?,
            proj: l.linear(Some(i), &["o_proj"])?,
            post_norm,
        },
    })
}

fn load_ffn<B: Backend>(l: &Loader<'_, B>, i: usize, post_norm: Option<Norm<B>>) -> Result<Ffn<B>> {
    let down = |dense: Dense, post_norm| -> Result<_> {
        Ok(Output {
            sub_norm: dense.sub_norm.then(|| l.norm(Some(i), "ffn_sub_norm")).transpose()?,
            proj: l.linear(Some(i), &["down_proj"])?,
            post_norm,
        })
    };
    Ok(match l.config.layers[i].ffn {
        config::Ffn::Gated(dense) => Ffn::Gated {
            gate_up: l.fused_or(Some(i), "gate_up_proj", &["gate_proj", "up_proj"])?,
            down: down(dense, post_norm)?,
        },
        config::Ffn::Plain(dense) => {
            Ffn::Plain { up: l.linear(Some(i), &["up_proj"])?, down: down(dense, post_norm)? }
        }
        config::Ffn::Experts(experts) => Ffn::Moe(Box::new(load_mixture(l, i, &experts, post_norm)?)),
        config::Ffn::None => Ffn::None,
    })
}

fn load_mixture<B: Backend>(
    l: &Loader<'_, B>,
    i: usize,
    experts: &config::Experts,
    post_norm: Option<Norm<B>>,
) -> Result<Mixture<B>> {
    let gate_up = match l.has(Some(i), "experts.gate_up_proj") {
        true => l.experts(i, "experts.gate_up_proj")?,
        false if !experts.gated => l.experts(i, "experts.up_proj")?,
        false => [l.experts(i, "experts.gate_proj")?, l.experts(i, "experts.up_proj")?].concat(),
    };
    let load_shared = |shared: config::SharedExpert| -> Result<_> {
        let gate = shared.gate.then(|| l.linear(Some(i), &["shared_expert.gate"]));
        Ok(Shared {
            gate_up: l.linear(Some(i), &shared.proj[usize::from(!experts.gated)..2])?,
            down: l.linear(Some(i), &shared.proj[2..])?,
            gate: gate.transpose()?,
        })
    };
    Ok(Mixture {
        router: l.linear(Some(i), &["router"])?,
        selection_bias: l.vector(i, "selection", Part::Bias)?,
        gate_up: l.backend.matrix(gate_up)?,
        gate_up_bias: l.expert_bias(
            i,
            if experts.gated { &["experts.gate_proj", "experts.up_proj"] } else { &["experts.up_proj"] },
        )?,
        down: l.backend.matrix(l.experts(i, "experts.down_proj")?)?,
        down_bias: l.expert_bias(i, &["experts.down_proj"])?,
        shared: experts.shared.map(load_shared).transpose()?,
        latent: match experts.latent_size {
            Some(_) => Some([
                l.linear(Some(i), &["experts.latent_down"])?,
                l.linear(Some(i), &["experts.latent_up"])?,
            ]),
            None => None,
        },
        output_scale: l.vector(i, "experts.output_scale", Part::Weight)?,
        output_bias: l.vector(i, "experts.output_bias", Part::Weight)?,
        norms: experts.separate_norms.then(|| load_mixture_norms(l, i)).transpose()?,
        post_norm,
    })
}

fn load_mixture_norms<B: Backend>(l: &Loader<'_, B>, i: usize) -> Result<MixtureNorms<B>> {
    let norm = |name| l.norm(Some(i), name);
    let root = (l.config.hidden_size as f32).sqrt();
    Ok(MixtureNorms {
        router: l.scaled_norm(Some(i), "router_norm", 1.0 / root, l.config.norm_eps)?,
        experts: norm("experts_norm")?,
        post_experts: norm("post_experts_norm")?,
        post_shared: norm("post_shared_norm")?,
    })
}
