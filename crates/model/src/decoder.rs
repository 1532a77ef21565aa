//! A model's weights on a backend, and the one forward pass of all architectures.

use crate::Result;
use crate::config::{LayerConfig, ModelConfig};
use crate::kv_cache::KvCache;
use crate::shard::{Join, Shard, Split};
use crate::source::TensorSource;
use crate::weights::{Linear, Loader, Weight};
use crate::workspace::Workspace;
use realizar_compute::{AttentionParams, Backend, MoeParams, Norm, OutProduct, QkvPrep, Tensor};

/// A decoder-only transformer on a backend, or one rank's part of it.
pub struct Decoder<B: Backend> {
    config: ModelConfig,
    shard: Shard,
    embed: B::Matrix,
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
    attn_out: BlockOutput<B>,
    /// `None` where attention's norm serves both blocks.
    ffn_norm: Option<Norm<B>>,
    ffn: Ffn<B>,
}

enum Ffn<B: Backend> {
    Gated { gate_up: Linear<B>, down: BlockOutput<B> },
    Plain { up: Linear<B>, down: BlockOutput<B> },
    Moe { router: Linear<B>, gate_up: B::Matrix, down: B::Matrix, post_norm: Option<Norm<B>> },
}

/// The last matrix of a block, which leads back to the residual, and the norms around it.
struct BlockOutput<B: Backend> {
    /// Of its input.
    sub_norm: Option<Norm<B>>,
    linear: Linear<B>,
    /// Of its output.
    post_norm: Option<Norm<B>>,
    join: Join,
}

impl<B: Backend> BlockOutput<B> {
    /// The product of `x`, where it joins the residual as it is.
    fn product<'a>(&'a self, x: &'a mut Tensor<B>, product: &'a mut Tensor<B>) -> Option<OutProduct<'a, B>> {
        let (w, bias) = self.linear.unscaled()?;
        let out = OutProduct { w, bias, x, product, is_part: self.join == Join::Sum };
        (self.post_norm.is_none() && self.join != Join::Gather).then_some(out)
    }
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
            embed: backend.matrix(embed)?,
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
        let embed = backend.matrix_bytes(&self.embed);
        let head = self.lm_head.as_ref().map(size);
        let mut sum = WeightBytes { total: embed + head.unwrap_or(0), per_step: head.unwrap_or(embed) };
        for layer in &self.layers {
            let attention = size(&layer.qkv) + size(&layer.attn_out.linear);
            let (total, used) = match &layer.ffn {
                Ffn::Gated { gate_up: up, down } | Ffn::Plain { up, down } => {
                    let both = size(up) + size(&down.linear);
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
        backend.timed("embed", || backend.embed(&mut ws.residual, &self.embed, batch, c.embed_scale))?;
        if let Some(table) = &self.position_embed {
            backend.add_positions(&mut ws.residual, table, batch)?;
        }
        for (rope, angles) in self.ropes.iter().zip(&mut ws.angles) {
            backend
                .timed("rope_angles", || backend.rope_angles(angles, &rope.frequencies, batch, rope.scale))?;
        }
        for (i, layer) in self.layers.iter().enumerate() {
            self.attention(backend, layer, c.layers[i], batch, cache, i, ws)?;
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

    /// `ws.last`, or `ws.residual` where it has as many rows → `ws.logits`, or this rank's part of them.
    fn logits(&self, backend: &B, ws: &mut Workspace<B>) -> realizar_compute::Result<()> {
        ws.normed.set_rows(ws.last.rows());
        let x = if ws.residual.rows() == ws.last.rows() { &ws.residual } else { &ws.last };
        let (normed, norm) = (&mut ws.normed, &self.final_norm);
        let y = ws.shared.as_mut().map_or(&mut ws.logits, |shared| &mut shared.logits);
        match &self.lm_head {
            Some(head) => head.apply_norm(backend, y, normed, x, norm)?,
            None => backend.norm_matmul(y, normed, x, norm, &self.embed, None)?,
        }
        if let Some(cap) = self.config.logit_softcap {
            backend.softcap(y, cap)?;
        }
        match &ws.shared {
            Some(shared) => backend.all_gather(&mut ws.logits, &shared.logits, &self.shard.starts().vocab),
            None => Ok(()),
        }
    }

    /// Adds attention to `ws.residual`.
    fn attention(
        &self,
        backend: &B,
        layer: &Layer<B>,
        this: LayerConfig,
        batch: &B::Batch,
        cache: &mut KvCache<B>,
        index: usize,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = self.shard.config();
        let kv = cache.layer_mut(index);
        let prep = QkvPrep {
            heads: c.heads,
            qk_norm: layer.qk_norm.as_ref().map(|(q, k)| (q, k)),
            angles: this.rope.map(|r| (&ws.angles[r], c.ropes[r].style)),
        };
        let params = AttentionParams {
            heads: c.heads,
            scale: c.attn_scale,
            softcap: c.attn_softcap,
            window: this.window,
        };
        backend.timed("qkv_proj", || {
            if layer.ffn_norm.is_some() {
                let norm = &layer.attn_norm;
                return layer.qkv.apply_norm(backend, &mut ws.qkv, &mut ws.normed, &ws.residual, norm);
            }
            // The feed-forward block reads this norm too.
            backend.norm(&mut ws.normed, &ws.residual, &layer.attn_norm)?;
            layer.qkv.apply(backend, &mut ws.qkv, &ws.normed)
        })?;
        let o = &layer.attn_out;
        if o.sub_norm.is_none()
            && let Some(out) = o.product(&mut ws.attended, &mut ws.output)
        {
            return backend.attention_block(&mut ws.residual, &mut ws.qkv, kv, batch, prep, &params, out);
        }
        backend.store_and_attend(&mut ws.attended, &mut ws.qkv, kv, batch, prep, &params)?;
        let shared = ws.shared.as_mut().map(|s| (&mut s.attended, &mut s.output));
        let x = Inside { x: &mut ws.attended, shared, starts: &self.shard.starts().attended };
        self.add_output(backend, "o_proj", &layer.attn_out, &mut ws.residual, &mut ws.output, x)
    }

    /// Adds the feed-forward block to `ws.residual`.
    fn feed_forward(
        &self,
        backend: &B,
        layer: &Layer<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = self.shard.config();
        match &layer.ffn {
            Ffn::Gated { gate_up, down } => {
                if let Some(norm) = &layer.ffn_norm
                    && gate_up.is_bare()
                    && down.sub_norm.is_none()
                    && let Some(out) = down.product(&mut ws.hidden, &mut ws.output)
                {
                    let (y, normed, both) = (&mut ws.residual, &mut ws.normed, &mut ws.gate_up);
                    return backend.gated_block(y, normed, both, norm, &gate_up.weight, c.activation, out);
                }
                backend.timed("gate_up_proj", || match &layer.ffn_norm {
                    Some(norm) if gate_up.is_bare() => backend.norm_gated_matmul(
                        &mut ws.hidden,
                        &mut ws.normed,
                        &mut ws.gate_up,
                        &ws.residual,
                        norm,
                        &gate_up.weight,
                        c.activation,
                    ),
                    norm => {
                        let (y, norm) = (&mut ws.gate_up, norm.as_ref());
                        apply_norm_if(backend, gate_up, norm, y, &mut ws.normed, &ws.residual)?;
                        backend.gated(&mut ws.hidden, &ws.gate_up, c.activation)
                    }
                })?;
                self.add_down(backend, down, ws)
            }
            Ffn::Plain { up, down } => {
                backend.timed("up_proj", || {
                    let norm = layer.ffn_norm.as_ref();
                    apply_norm_if(backend, up, norm, &mut ws.hidden, &mut ws.normed, &ws.residual)?;
                    backend.activate(&mut ws.hidden, c.activation)
                })?;
                self.add_down(backend, down, ws)
            }
            Ffn::Moe { router, gate_up, down, post_norm } => {
                let moe = c.moe.expect("a layer with experts belongs to a model with experts");
                let params =
                    MoeParams { n_used: moe.n_used, norm_topk: moe.norm_topk, activation: c.activation };
                let (scores, scratch) = ws.moe.as_mut().expect("a model with experts has their buffers");
                backend.timed("router", || {
                    if let Some(norm) = &layer.ffn_norm {
                        backend.norm(&mut ws.normed, &ws.residual, norm)?;
                    }
                    router.apply(backend, scores, &ws.normed)
                })?;
                backend.timed("experts", || {
                    backend.moe(&mut ws.output, &ws.normed, scores, gate_up, down, &params, scratch)
                })?;
                let join = if self.shard.rank().is_alone() { Join::Alone } else { Join::Sum };
                add_parts(backend, join, post_norm.as_ref(), &mut ws.residual, &mut ws.output)
            }
        }
    }

    /// Adds `down` of `ws.hidden` to `ws.residual`.
    fn add_down(
        &self,
        backend: &B,
        down: &BlockOutput<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let shared = ws.shared.as_mut().map(|s| (&mut s.hidden, &mut s.output));
        let x = Inside { x: &mut ws.hidden, shared, starts: &self.shard.starts().hidden };
        self.add_output(backend, "down_proj", down, &mut ws.residual, &mut ws.output, x)
    }

    /// Adds a block's output to the residual stream; `name` is the product's for the profiler.
    fn add_output(
        &self,
        backend: &B,
        name: &'static str,
        out: &BlockOutput<B>,
        residual: &mut Tensor<B>,
        output: &mut Tensor<B>,
        inside: Inside<'_, B>,
    ) -> realizar_compute::Result<()> {
        let Inside { x, shared, starts } = inside;
        let (x, part) = match (out.join, shared) {
            (Join::Gather, Some((all, part))) => {
                backend.timed("all_gather", || backend.all_gather(all, x, starts))?;
                (all, Some(part))
            }
            _ => (x, None),
        };
        if let Some(norm) = &out.sub_norm {
            backend.timed("norm", || backend.norm_in_place(x, norm))?;
        }
        if let Some(product) = out.product(x, output) {
            return backend.timed(name, || backend.matmul_add(residual, product));
        }
        match part {
            Some(part) => {
                backend.timed(name, || out.linear.apply(backend, part, x))?;
                let starts = &self.shard.starts().residual;
                backend.timed("all_gather", || backend.all_gather(output, part, starts))?;
            }
            None => backend.timed(name, || out.linear.apply(backend, output, x))?,
        }
        add_parts(backend, out.join, out.post_norm.as_ref(), residual, output)
    }
}

/// `y = linear(norm(x))`, or of `normed` as it is where there is no norm.
fn apply_norm_if<B: Backend>(
    backend: &B,
    linear: &Linear<B>,
    norm: Option<&Norm<B>>,
    y: &mut Tensor<B>,
    normed: &mut Tensor<B>,
    x: &Tensor<B>,
) -> realizar_compute::Result<()> {
    match norm {
        Some(norm) => linear.apply_norm(backend, y, normed, x, norm),
        None => linear.apply(backend, y, normed),
    }
}

/// The input of a block's last matrix.
struct Inside<'a, B: Backend> {
    /// This rank's columns.
    x: &'a mut Tensor<B>,
    /// Room for all columns, and for this rank's columns of the output.
    shared: Option<(&'a mut Tensor<B>, &'a mut Tensor<B>)>,
    /// Where each rank's columns begin.
    starts: &'a [usize],
}

/// Adds to the residual stream what this rank, or each of several, has in `output`, normalized before where the model does so.
fn add_parts<B: Backend>(
    backend: &B,
    join: Join,
    post_norm: Option<&Norm<B>>,
    residual: &mut Tensor<B>,
    output: &mut Tensor<B>,
) -> realizar_compute::Result<()> {
    let Some(norm) = post_norm else {
        return match join {
            Join::Sum => backend.timed("all_reduce", || backend.all_reduce_add(residual, output)),
            _ => backend.timed("add", || backend.add(residual, output)),
        };
    };
    if join == Join::Sum {
        backend.timed("all_reduce", || backend.all_reduce(output))?;
    }
    backend.timed("add", || backend.add_norm(residual, output, norm))
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
        attn_out: BlockOutput {
            sub_norm: norm_if(c.sub_norms, "attn_sub_norm", q_len)?,
            linear: l.linear(&[(w("o_proj"), c.hidden_size)], q_len)?,
            post_norm: norm_if(c.post_norms, "post_attn_norm", c.hidden_size)?,
            join: l.shard.attention(),
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
    let down = BlockOutput {
        sub_norm: norm_if(c.sub_norms && c.gated, "ffn_sub_norm", inner)?,
        linear: l.linear(&[(w("down_proj"), n)], inner)?,
        post_norm,
        join: l.shard.feed_forward(),
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
