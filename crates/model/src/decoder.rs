//! A model's weights on a backend, and the one forward pass of all architectures.

use crate::Result;
use crate::config::{LayerConfig, ModelConfig};
use crate::kv_cache::KvCache;
use crate::shard::{self, Shard, Split};
use crate::source::TensorSource;
use crate::weights::{Loader, Weight};
use crate::workspace::{Shared, Workspace};
use realizar_compute::{
    AttentionBlock, AttentionParams, Backend, BlockInput, BlockOutput, Experts, FfnBlock, FfnUp, Gather,
    HeadBlock, Join, KvLayer, Linear, MoeBlock, MoeParams, Norm, QkvPrep, Tensor,
};

/// A decoder-only transformer on a backend, or one rank's part of it.
pub struct Decoder<B: Backend> {
    config: ModelConfig,
    shard: Shard,
    /// `[vocab_size, hidden_size]`
    embed: Linear<B>,
    position_embed: Option<Tensor<B>>,
    ropes: Vec<Rope<B>>,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
    /// `None`: the embedding serves as output matrix. Of several ranks, each has its rows.
    lm_head: Option<Linear<B>>,
}

struct Rope<B: Backend> {
    frequencies: Tensor<B>,
    scale: f32,
}

struct Layer<B: Backend> {
    attn_norm: Norm<B>,
    qkv: Linear<B>,
    qk_norm: Option<(Norm<B>, Norm<B>)>,
    attn_out: Output<B>,
    /// `None` where attention's norm serves both blocks.
    ffn_norm: Option<Norm<B>>,
    ffn: Ffn<B>,
}

enum Ffn<B: Backend> {
    Gated { gate_up: Linear<B>, down: Output<B> },
    Plain { up: Linear<B>, down: Output<B> },
    Moe { router: Linear<B>, gate_up: B::Matrix, down: B::Matrix, post_norm: Option<Norm<B>> },
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
    /// Errors: a tensor that is missing, has another shape than the description says, or cannot be on this backend. Nothing stays
    /// allocated after an error.
    pub fn load(backend: &B, source: &dyn TensorSource, config: ModelConfig, n_ctx: usize) -> Result<Self> {
        backend.check_heads(config.heads)?;
        let shard = Shard::new(&config, source, backend.rank(), backend.is_exact())?;
        let loader = Loader { backend, source, config: &config, shard: &shard };
        let c = &config;
        let global = |name| Weight { name, layer: None };
        let ropes = c.ropes.iter().map(|r| {
            let (frequencies, scale) = r.frequencies(n_ctx);
            Ok(Rope { frequencies: backend.upload(&[frequencies.len()], &frequencies)?, scale })
        });
        let ropes = ropes.collect::<Result<_>>()?;
        let layers = (0..c.layers.len()).map(|i| load_layer(&loader, i)).collect::<Result<_>>()?;
        let head = global("lm_head");
        let lm_head = if !c.always_tied && loader.has(head) {
            Some(loader.linear(&[(head, c.vocab_size)], c.hidden_size)?)
        } else if shard.rank().is_alone() {
            None
        } else {
            let rows = loader.parts_of(global("embed"), Split::Vocab, c.vocab_size, c.hidden_size)?;
            Some(Linear::bare(backend.matrix(rows)?))
        };
        let embed = loader.parts_of(global("embed"), Split::Whole, c.vocab_size, c.hidden_size)?;
        Ok(Self {
            embed: Linear::bare(backend.matrix(embed)?),
            position_embed: match c.learned_positions {
                true => Some(loader.table(global("position_embed"), c.hidden_size)?),
                false => None,
            },
            ropes,
            layers,
            final_norm: loader.norm(global("final_norm"), c.hidden_size)?,
            lm_head,
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
        for layer in &self.layers {
            let attention = size(&layer.qkv) + size(&layer.attn_out.proj);
            let (total, used) = match &layer.ffn {
                Ffn::Gated { gate_up: up, down } | Ffn::Plain { up, down } => {
                    let both = size(up) + size(&down.proj);
                    (both, both)
                }
                Ffn::Moe { router, gate_up, down, .. } => {
                    let experts = backend.matrix_bytes(gate_up) + backend.matrix_bytes(down);
                    let used = self.config.moe.map_or(experts, |m| experts / m.n_experts * m.n_used);
                    (size(router) + experts, size(router) + used)
                }
            };
            sum.total += attention + total;
            sum.per_step += attention + used;
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
        let c = self.shard.config();
        ws.set_rows(n_tokens, n_logits);
        backend
            .timed("embed", || backend.embed(&mut ws.residual, &self.embed.weight, batch, c.embed_scale))?;
        if let Some(table) = &self.position_embed {
            backend.add_positions(&mut ws.residual, table, batch)?;
        }
        for (rope, angles) in self.ropes.iter().zip(&mut ws.angles) {
            backend
                .timed("rope_angles", || backend.rope_angles(angles, &rope.frequencies, batch, rope.scale))?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            let inputs = layer.inputs();
            if let Inputs::Shared(norm) = inputs {
                backend.timed("norm", || backend.norm(&mut ws.normed, &ws.residual, norm))?;
            }
            self.attention(backend, layer, c.layers[i], batch, cache.layer_mut(i), ws)?;
            self.feed_forward(backend, layer, ws)?;
        }
        if n_logits == 0 {
            return Ok(());
        }
        // Otherwise every token has a row of logits, in order.
        if n_logits < n_tokens {
            backend.timed("select_rows", || backend.select_rows(&mut ws.last, &ws.residual, batch))?;
        }
        backend.timed("lm_head", || self.logits(backend, ws))
    }

    /// `ws.last`, or `ws.residual` where it has as many rows → `ws.logits`.
    fn logits(&self, backend: &B, ws: &mut Workspace<B>) -> realizar_compute::Result<()> {
        ws.normed.set_rows(ws.last.rows());
        let starts = &self.shard.starts().vocab;
        let block = HeadBlock {
            x: if ws.residual.rows() == ws.last.rows() { &ws.residual } else { &ws.last },
            norm: &self.final_norm,
            linear: self.lm_head.as_ref().unwrap_or(&self.embed),
            softcap: self.config.logit_softcap,
            normed: &mut ws.normed,
            gather: ws.shared.as_mut().map(|s| Gather { columns: &mut s.logits, starts }),
        };
        backend.head(&mut ws.logits, block)
    }

    /// Adds attention to `ws.residual`.
    fn attention(
        &self,
        backend: &B,
        layer: &Layer<B>,
        this: LayerConfig,
        batch: &B::Batch,
        kv: &mut KvLayer<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = self.shard.config();
        let params = AttentionParams {
            heads: c.heads,
            scale: c.attn_scale,
            softcap: c.attn_softcap,
            window: this.window,
        };
        let starts = &self.shard.starts().attended;
        let (stream, room) = ws.split();
        let shared = room.shared.as_mut().map(|Shared { attended, output, .. }| (attended, output));
        let block = AttentionBlock {
            input: layer.inputs().attention(),
            qkv: &layer.qkv,
            prep: QkvPrep {
                heads: c.heads,
                qk_norm: layer.qk_norm.as_ref().map(|(q, k)| (q, k)),
                angles: this.rope.map(|r| (&room.angles[r], c.ropes[r].style)),
            },
            params: &params,
            kv,
            out: self.output(&layer.attn_out, self.shard.attention(), starts, shared),
            qkv_rows: room.qkv,
            attended: room.attended,
        };
        backend.attention_block(stream, batch, block)
    }

    /// Adds the feed-forward block to `ws.residual`.
    fn feed_forward(
        &self,
        backend: &B,
        layer: &Layer<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = self.shard.config();
        let input = layer.inputs().feed_forward();
        let starts = &self.shard.starts().hidden;
        let (stream, room) = ws.split();
        let shared = room.shared.as_mut().map(|Shared { hidden, output, .. }| (hidden, output));
        let (up, down) = match &layer.ffn {
            Ffn::Gated { gate_up, down } => (FfnUp::Gated { gate_up, rows: room.gate_up }, down),
            Ffn::Plain { up, down } => (FfnUp::Plain { up }, down),
            Ffn::Moe { router, gate_up, down, post_norm } => {
                let moe = c.moe.expect("a layer with experts belongs to a model with experts");
                let params =
                    MoeParams { n_used: moe.n_used, norm_topk: moe.norm_topk, activation: c.activation };
                let (scores, scratch) = room.moe.as_mut().expect("a model with experts has their buffers");
                let block = MoeBlock {
                    input,
                    router,
                    experts: Experts { gate_up, down, params },
                    post_norm: post_norm.as_ref(),
                    is_part: !self.shard.rank().is_alone(),
                    scores,
                    scratch,
                };
                return backend.experts(stream, block);
            }
        };
        let out = self.output(down, self.shard.feed_forward(), starts, shared);
        backend
            .feed_forward(stream, FfnBlock { input, up, activation: c.activation, out, hidden: room.hidden })
    }

    /// A block's way back to the residual; `starts` are those of its input's columns, `shared` the tensors that ranks exchange.
    fn output<'a>(
        &'a self,
        out: &'a Output<B>,
        join: shard::Join,
        starts: &'a [usize],
        shared: Option<(&'a mut Tensor<B>, &'a mut Tensor<B>)>,
    ) -> BlockOutput<'a, B> {
        let join = match (join, shared) {
            (shard::Join::Alone, _) => Join::Alone,
            (shard::Join::Sum, _) => Join::Sum,
            (shard::Join::Gather, shared) => {
                let (input, output) = shared.expect("ranks have tensors to exchange");
                Join::Gather {
                    input: Gather { columns: input, starts },
                    output: Gather { columns: output, starts: &self.shard.starts().residual },
                }
            }
        };
        BlockOutput {
            sub_norm: out.sub_norm.as_ref(),
            proj: &out.proj,
            post_norm: out.post_norm.as_ref(),
            join,
        }
    }
}

/// What the blocks of a layer read.
enum Inputs<'a, B: Backend> {
    /// One after the other, each the norm of the residual.
    Each { attention: &'a Norm<B>, ffn: &'a Norm<B> },
    /// Side by side, one norm.
    Shared(&'a Norm<B>),
}

impl<'a, B: Backend> Inputs<'a, B> {
    fn attention(&self) -> BlockInput<'a, B> {
        match self {
            Self::Each { attention, .. } => BlockInput::Norm(attention),
            Self::Shared(_) => BlockInput::Shared,
        }
    }

    fn feed_forward(&self) -> BlockInput<'a, B> {
        match self {
            Self::Each { ffn, .. } => BlockInput::Norm(ffn),
            Self::Shared(_) => BlockInput::Shared,
        }
    }
}

impl<B: Backend> Layer<B> {
    fn inputs(&self) -> Inputs<'_, B> {
        match &self.ffn_norm {
            Some(ffn) => Inputs::Each { attention: &self.attn_norm, ffn },
            None => Inputs::Shared(&self.attn_norm),
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
    let c = l.config;
    let w = |name| Weight { name, layer: Some(i) };
    let norm_if = |on: bool, name, len| if on { l.norm(w(name), len).map(Some) } else { Ok(None) };
    let h = c.heads;
    let (q_len, kv_len) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
    let qkv = if l.has(w("qkv_proj")) {
        l.linear(&[(w("qkv_proj"), h.qkv_len())], c.hidden_size)?
    } else {
        l.linear(&[(w("q_proj"), q_len), (w("k_proj"), kv_len), (w("v_proj"), kv_len)], c.hidden_size)?
    };
    let (q_norm, k_norm) =
        (norm_if(c.qk_norm, "q_norm", h.head_dim)?, norm_if(c.qk_norm, "k_norm", h.head_dim)?);
    Ok(Layer {
        attn_norm: l.norm(w("attn_norm"), c.hidden_size)?,
        qkv,
        qk_norm: q_norm.zip(k_norm),
        attn_out: Output {
            sub_norm: norm_if(c.sub_norms, "attn_sub_norm", q_len)?,
            proj: l.linear(&[(w("o_proj"), c.hidden_size)], q_len)?,
            post_norm: norm_if(c.post_norms, "post_attn_norm", c.hidden_size)?,
        },
        ffn_norm: norm_if(!c.parallel, "ffn_norm", c.hidden_size)?,
        ffn: load_ffn(l, i)?,
    })
}

fn load_ffn<B: Backend>(l: &Loader<'_, B>, i: usize) -> Result<Ffn<B>> {
    let c = l.config;
    let w = |name| Weight { name, layer: Some(i) };
    let (n, inner) = (c.hidden_size, c.intermediate_size);
    let norm_if = |on: bool, name, len| if on { l.norm(w(name), len).map(Some) } else { Ok(None) };
    let post_norm = norm_if(c.post_norms, "post_ffn_norm", n)?;
    if let (true, Some(moe)) = (c.layers[i].moe, c.moe) {
        let (experts, inner) = (moe.n_experts, moe.intermediate_size);
        let gate_up =
            ["experts.gate_proj", "experts.up_proj"].map(|name| l.experts(w(name), experts, inner, n));
        return Ok(Ffn::Moe {
            router: l.linear(&[(w("router"), experts)], n)?,
            gate_up: l.backend.matrix(gate_up.into_iter().collect::<Result<_>>()?)?,
            down: l.backend.matrix(vec![l.experts(w("experts.down_proj"), experts, n, inner)?])?,
            post_norm,
        });
    }
    let down = Output {
        sub_norm: norm_if(c.sub_norms && c.gated, "ffn_sub_norm", inner)?,
        proj: l.linear(&[(w("down_proj"), n)], inner)?,
        post_norm,
    };
    if !c.gated {
        return Ok(Ffn::Plain { up: l.linear(&[(w("up_proj"), inner)], n)?, down });
    }
    let gate_up = if l.has(w("gate_proj")) {
        l.linear(&[(w("gate_proj"), inner), (w("up_proj"), inner)], n)?
    } else {
        l.linear(&[(w("gate_up_proj"), 2 * inner)], n)?
    };
    Ok(Ffn::Gated { gate_up, down })
}
