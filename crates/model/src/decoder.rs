//! A model's weights on a backend, and the one forward pass of all architectures.

use crate::Result;
use crate::config::{LayerConfig, ModelConfig};
use crate::kv_cache::KvCache;
use crate::source::TensorSource;
use crate::weights::{Linear, Loader, Weight};
use crate::workspace::Workspace;
use realizar_compute::{AttentionParams, Backend, MoeParams, Norm, QkvPrep, Tensor};

/// A decoder-only transformer on a backend.
pub struct Decoder<B: Backend> {
    config: ModelConfig,
    embed: B::Matrix,
    position_embed: Option<Tensor<B>>,
    ropes: Vec<Rope<B>>,
    layers: Vec<Layer<B>>,
    final_norm: Norm<B>,
    /// `None`: the embedding serves as output matrix.
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
    attn_sub_norm: Option<Norm<B>>,
    o_proj: Linear<B>,
    post_attn_norm: Option<Norm<B>>,
    /// `None` where attention's norm serves both blocks.
    ffn_norm: Option<Norm<B>>,
    ffn: Ffn<B>,
    post_ffn_norm: Option<Norm<B>>,
}

enum Ffn<B: Backend> {
    Gated { gate_up: Linear<B>, sub_norm: Option<Norm<B>>, down: Linear<B> },
    Plain { up: Linear<B>, down: Linear<B> },
    Moe { router: Linear<B>, gate_up: B::Matrix, down: B::Matrix },
}

impl<B: Backend> Decoder<B> {
    /// Loads all weights. `n_ctx` is the longest context that will be asked for, in tokens.
    ///
    /// Errors: a tensor that is missing, has another shape than the description says, or cannot be on this backend. Nothing stays
    /// allocated after an error.
    pub fn load(backend: &B, source: &dyn TensorSource, config: ModelConfig, n_ctx: usize) -> Result<Self> {
        backend.check_heads(config.heads)?;
        let loader = Loader { backend, source, config: &config };
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
        } else {
            None
        };
        Ok(Self {
            embed: backend.matrix(vec![loader.part(global("embed"), c.vocab_size, c.hidden_size)?])?,
            position_embed: match c.learned_positions {
                true => Some(loader.table(global("position_embed"), c.hidden_size)?),
                false => None,
            },
            ropes,
            layers,
            final_norm: loader.norm(global("final_norm"), c.hidden_size)?,
            lm_head,
            config,
        })
    }

    /// The model's description.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of weights on the device, and of those that one decode step reads (an embedding that serves only to look up rows, and
    /// experts that a token does not use, are not read).
    pub fn weight_bytes(&self, backend: &B) -> WeightBytes {
        let size = |l: &Linear<B>| backend.matrix_bytes(&l.weight);
        let embed = backend.matrix_bytes(&self.embed);
        let head = self.lm_head.as_ref().map(size);
        let mut sum = WeightBytes { total: embed + head.unwrap_or(0), per_step: head.unwrap_or(embed) };
        for layer in &self.layers {
            let attention = size(&layer.qkv) + size(&layer.o_proj);
            let (total, used) = match &layer.ffn {
                Ffn::Gated { gate_up, down, .. } => (size(gate_up) + size(down), size(gate_up) + size(down)),
                Ffn::Plain { up, down } => (size(up) + size(down), size(up) + size(down)),
                Ffn::Moe { router, gate_up, down } => {
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
        let c = &self.config;
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
        backend.timed("select_rows", || backend.select_rows(&mut ws.last, &ws.residual, batch))?;
        backend.timed("lm_head", || self.logits(backend, ws))
    }

    /// `ws.last` → `ws.logits`
    fn logits(&self, backend: &B, ws: &mut Workspace<B>) -> realizar_compute::Result<()> {
        ws.normed.set_rows(ws.last.rows());
        let (y, normed, x, norm) = (&mut ws.logits, &mut ws.normed, &ws.last, &self.final_norm);
        match &self.lm_head {
            Some(head) => head.apply_norm(backend, y, normed, x, norm)?,
            None => backend.norm_matmul(y, normed, x, norm, &self.embed, None)?,
        }
        self.config.logit_softcap.map_or(Ok(()), |cap| backend.softcap(&mut ws.logits, cap))
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
        let c = &self.config;
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
        backend.store_and_attend(&mut ws.attended, &mut ws.qkv, kv, batch, prep, &params)?;
        if let Some(norm) = &layer.attn_sub_norm {
            backend.norm_in_place(&mut ws.attended, norm)?;
        }
        let post_norm = layer.post_attn_norm.as_ref();
        backend.timed("o_proj", || {
            add_output(backend, &layer.o_proj, post_norm, &mut ws.residual, &mut ws.output, &ws.attended)
        })
    }

    /// Adds the feed-forward block to `ws.residual`.
    fn feed_forward(
        &self,
        backend: &B,
        layer: &Layer<B>,
        ws: &mut Workspace<B>,
    ) -> realizar_compute::Result<()> {
        let c = &self.config;
        let post_norm = layer.post_ffn_norm.as_ref();
        match &layer.ffn {
            Ffn::Gated { gate_up, sub_norm, down } => {
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
                if let Some(norm) = sub_norm {
                    backend.norm_in_place(&mut ws.hidden, norm)?;
                }
                backend.timed("down_proj", || {
                    add_output(backend, down, post_norm, &mut ws.residual, &mut ws.output, &ws.hidden)
                })
            }
            Ffn::Plain { up, down } => {
                backend.timed("up_proj", || {
                    let norm = layer.ffn_norm.as_ref();
                    apply_norm_if(backend, up, norm, &mut ws.hidden, &mut ws.normed, &ws.residual)?;
                    backend.activate(&mut ws.hidden, c.activation)
                })?;
                backend.timed("down_proj", || {
                    add_output(backend, down, post_norm, &mut ws.residual, &mut ws.output, &ws.hidden)
                })
            }
            Ffn::Moe { router, gate_up, down } => {
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
                    backend.moe(&mut ws.output, &ws.normed, scores, gate_up, down, &params, scratch)?;
                    if let Some(norm) = post_norm {
                        backend.norm_in_place(&mut ws.output, norm)?;
                    }
                    backend.add(&mut ws.residual, &ws.output)
                })
            }
        }
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

/// Adds a block's output to the residual stream, normalized before where the model does so.
fn add_output<B: Backend>(
    backend: &B,
    linear: &Linear<B>,
    post_norm: Option<&Norm<B>>,
    residual: &mut Tensor<B>,
    output: &mut Tensor<B>,
    x: &Tensor<B>,
) -> realizar_compute::Result<()> {
    let Some(norm) = post_norm else {
        return linear.apply_add(backend, residual, output, x);
    };
    linear.apply(backend, output, x)?;
    backend.norm_in_place(output, norm)?;
    backend.add(residual, output)
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
        attn_sub_norm: norm_if(c.sub_norms, "attn_sub_norm", q_len)?,
        o_proj: l.linear(&[(w("o_proj"), c.hidden_size)], q_len)?,
        post_attn_norm: norm_if(c.post_norms, "post_attn_norm", c.hidden_size)?,
        ffn_norm: norm_if(!c.parallel, "ffn_norm", c.hidden_size)?,
        ffn: load_ffn(l, i)?,
        post_ffn_norm: norm_if(c.post_norms, "post_ffn_norm", c.hidden_size)?,
    })
}

fn load_ffn<B: Backend>(l: &Loader<'_, B>, i: usize) -> Result<Ffn<B>> {
    let c = l.config;
    let w = |name| Weight { name, layer: Some(i) };
    let (n, inner) = (c.hidden_size, c.intermediate_size);
    if let (true, Some(moe)) = (c.layers[i].moe, c.moe) {
        let (experts, inner) = (moe.n_experts, moe.intermediate_size);
        let gate_up =
            ["experts.gate_proj", "experts.up_proj"].map(|name| l.experts(w(name), experts, inner, n));
        return Ok(Ffn::Moe {
            router: l.linear(&[(w("router"), experts)], n)?,
            gate_up: l.backend.matrix(gate_up.into_iter().collect::<Result<_>>()?)?,
            down: l.backend.matrix(vec![l.experts(w("experts.down_proj"), experts, n, inner)?])?,
        });
    }
    let down = l.linear(&[(w("down_proj"), n)], inner)?;
    if !c.gated {
        return Ok(Ffn::Plain { up: l.linear(&[(w("up_proj"), inner)], n)?, down });
    }
    let gate_up = if l.has(w("gate_proj")) {
        l.linear(&[(w("gate_proj"), inner), (w("up_proj"), inner)], n)?
    } else {
        l.linear(&[(w("gate_up_proj"), 2 * inner)], n)?
    };
    let sub_norm = if c.sub_norms { Some(l.norm(w("ffn_sub_norm"), inner)?) } else { None };
    Ok(Ffn::Gated { gate_up, sub_norm, down })
}
