//! Which tensors a model needs, may have and does without, checked against its files before any is read.
//!
//! [`Contract::check`] turns a [`ModelConfig`] into the list of all its tensors with their shapes, finds each in the files, and
//! reports everything that is wrong at once. A tensor of the files that is on no list is an error too: it would change the model
//! if somebody read it. Loader and converter read only what the contract has found.

use crate::arch::{self, Ignored};
use crate::config::{
    Attention, Dense, Experts, Ffn, GatedDelta, KvSource, Latent, LayerConfig, LayerNorms, Mamba2, Mixer,
    ModelConfig, PerLayerInput, Presence, QkNorm, ShortConv, Tied,
};
use crate::names;
use crate::rope::RopeScaling;
use crate::source::{Format, TensorSource};
use crate::{Error, Result};
use std::collections::HashMap;

/// One of our weights in one layer, or outside of the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Weight {
    /// In [`NAMES`](names::NAMES).
    pub(crate) name: &'static str,
    pub(crate) layer: Option<usize>,
}

/// What belongs to one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Weight,
    Bias,
    /// One factor on all outputs, where a file keeps it apart from the weights.
    Scale,
}

impl Part {
    /// The end of its name in files.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Part::Weight => "weight",
            Part::Bias => "bias",
            Part::Scale => "scale",
        }
    }
}

/// A tensor of a model and where its files have it.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) weight: Weight,
    pub(crate) part: Part,
    /// Row-major: `[n]`, `[n_out, n_in]` or `[n_experts, n_out, n_in]`.
    pub(crate) shape: Vec<usize>,
    /// The tensor's name in the files; one for each expert where experts stand one by one.
    pub(crate) files: Vec<String>,
}

/// All tensors of a model that its files have.
#[derive(Debug)]
pub(crate) struct Contract {
    entries: Vec<Entry>,
    by_key: HashMap<(Weight, Part), usize>,
}

/// Checks names, shapes and types of all tensors of a model, without reading any.
///
/// Errors: `MissingTensor`, `BadTensor` or `UnsupportedType` where one tensor is wrong; `BadWeights` where several are.
pub fn check(source: &dyn TensorSource, config: &ModelConfig) -> Result<()> {
    Contract::check(source, config).map(drop)
}

impl Contract {
    /// Finds all tensors of a model.
    ///
    /// Errors: as [`check`].
    pub(crate) fn check(source: &dyn TensorSource, config: &ModelConfig) -> Result<Self> {
        let mut checker =
            Checker { source, config, entries: Vec::new(), used: HashMap::new(), problems: Vec::new() };
        checker.outside_of_layers();
        for (i, layer) in config.layers.iter().enumerate() {
            checker.layer(i, layer);
        }
        (config.n_main_layers()..config.layers.len()).for_each(|i| checker.draft(i));
        checker.left_over();
        if !checker.problems.is_empty() {
            return Err(Error::bad_weights(source.path(), checker.problems));
        }
        let entries = checker.entries;
        let by_key = entries.iter().enumerate().map(|(i, e)| ((e.weight, e.part), i)).collect();
        Ok(Self { entries, by_key })
    }

    /// All tensors, in the order of the model.
    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// A tensor, if the files have it.
    pub(crate) fn find(&self, weight: Weight, part: Part) -> Option<&Entry> {
        self.by_key.get(&(weight, part)).map(|&i| &self.entries[i])
    }
}

/// Matrices that are stacked along their outputs, or the one matrix of all of them.
struct Stack<'a> {
    layer: Option<usize>,
    /// Names and numbers of outputs.
    parts: &'a [(&'static str, usize)],
    n_in: usize,
    bias: Presence,
}

struct Checker<'a> {
    source: &'a dyn TensorSource,
    config: &'a ModelConfig,
    entries: Vec<Entry>,
    /// What each tensor of the files serves as.
    used: HashMap<String, &'static str>,
    problems: Vec<Error>,
}

impl Checker<'_> {
    fn file_name(&self, w: Weight, expert: Option<usize>, part: Part) -> Option<String> {
        names::file_name(self.source, w.name, w.layer, expert, part.suffix())
    }

    fn bad(&mut self, tensor: &str, reason: impl Into<String>) {
        self.problems.push(Error::bad_tensor(self.source.path(), tensor, reason));
    }

    /// Notes that a tensor is not there, or why it cannot be a weight.
    fn missing(&mut self, w: Weight, expert: Option<usize>, part: Part) {
        match self.of_other_type(w, expert, part) {
            Some(error) => self.problems.push(error),
            None => {
                let tensor = names::preferred(
                    w.name,
                    self.source.format(),
                    w.layer,
                    expert.unwrap_or(0),
                    part.suffix(),
                );
                self.problems.push(Error::MissingTensor { path: self.source.path().to_owned(), tensor });
            }
        }
    }

    /// The error of a tensor that the files have in a type that no weight can have.
    fn of_other_type(&self, w: Weight, expert: Option<usize>, part: Part) -> Option<Error> {
        let spellings = names::spellings(w.name, self.source.format(), w.layer, expert, part.suffix());
        spellings
            .filter_map(|name| self.source.tensor(&name).err())
            .find(|e| !matches!(e, Error::MissingTensor { .. }))
    }

    /// Marks a tensor of the files as used.
    fn take(&mut self, file: &str, w: Weight) {
        if let Some(other) = self.used.insert(file.to_owned(), w.name) {
            self.bad(file, format!("would be both {other} and {}", w.name));
        }
    }

    fn check_shape(&mut self, file: &str, expected: &[usize]) {
        if let Some(found) = self.source.find(file).map(|t| t.shape.clone())
            && without_leading_ones(&found) != without_leading_ones(expected)
        {
            self.bad(file, format!("has shape {found:?} where {expected:?} was expected"));
        }
    }

    /// Finds one tensor; returns whether it is there.
    fn one(&mut self, w: Weight, part: Part, shape: &[usize], presence: Presence) -> bool {
        if presence == Presence::Absent {
            return false;
        }
        let Some(file) = self.file_name(w, None, part) else {
            match presence {
                Presence::Needed => self.missing(w, None, part),
                Presence::Optional | Presence::Absent => {
                    let error = self.of_other_type(w, None, part);
                    self.problems.extend(error);
                }
            }
            return false;
        };
        let transposed = self.config.transposed && w.layer.is_some() && shape.len() == 2;
        if transposed {
            self.check_shape(&file, &[shape[1], shape[0]]);
            if self.source.find(&file).is_some_and(|t| t.dtype.block_len() != 1) {
                self.bad(&file, "is stored transposed, which quantized weights cannot be");
            }
        } else {
            self.check_shape(&file, shape);
        }
        self.take(&file, w);
        self.entries.push(Entry { weight: w, part, shape: shape.to_vec(), files: vec![file] });
        true
    }

    fn norm(&mut self, name: &'static str, layer: Option<usize>, len: usize) {
        let w = Weight { name, layer };
        self.one(w, Part::Weight, &[len], Presence::Needed);
        let bias = if self.config.norm_bias { Presence::Needed } else { Presence::Absent };
        self.one(w, Part::Bias, &[len], bias);
    }

    fn linear(&mut self, stack: &Stack<'_>) {
        let Stack { layer, parts, n_in, mut bias } = *stack;
        let weights = || parts.iter().map(|&(name, n_out)| (Weight { name, layer }, n_out));
        for (w, n_out) in weights() {
            self.one(w, Part::Weight, &[n_out, n_in], Presence::Needed);
        }
        // Stacked matrices have all their biases or none.
        if bias == Presence::Optional && weights().any(|(w, _)| self.file_name(w, None, Part::Bias).is_some())
        {
            bias = Presence::Needed;
        }
        let mut has_bias = false;
        for (w, n_out) in weights() {
            has_bias |= self.one(w, Part::Bias, &[n_out], bias);
        }
        // Only GGUF has a place for factors.
        if self.source.format() != Format::Gguf {
            return;
        }
        for (w, _) in weights() {
            if self.one(w, Part::Scale, &[1], Presence::Optional) && has_bias {
                let file = self.file_name(w, None, Part::Scale).expect("it was just found");
                self.bad(&file, "is a factor beside a bias, which is not supported");
            }
        }
    }

    /// One matrix per expert, in one tensor or in one each.
    fn experts(&mut self, name: &'static str, layer: usize, shape: [usize; 3]) {
        let w = Weight { name, layer: Some(layer) };
        let Some(first) = self.file_name(w, Some(0), Part::Weight) else {
            return self.missing(w, Some(0), Part::Weight);
        };
        let found = self.source.find(&first).expect("it was just found");
        let (dtype, dims) = (found.dtype, found.shape.len());
        let mut files = Vec::new();
        if dims == shape.len() {
            self.check_shape(&first, &shape);
            files.push(first);
        } else {
            for e in 0..shape[0] {
                let Some(file) = self.file_name(w, Some(e), Part::Weight) else {
                    self.missing(w, Some(e), Part::Weight);
                    continue;
                };
                self.check_shape(&file, &shape[1..]);
                if let Some(other) = self.source.find(&file).map(|t| t.dtype).filter(|&d| d != dtype) {
                    self.bad(&file, format!("has type {other}, and the first expert's has {dtype}"));
                }
                files.push(file);
            }
        }
        files.iter().for_each(|file| self.take(file, w));
        self.entries.push(Entry { weight: w, part: Part::Weight, shape: shape.to_vec(), files });
    }

    fn mixture(&mut self, i: usize, experts: &Experts) {
        let n = self.config.hidden_size;
        let &Experts { n_experts, intermediate_size: inner, .. } = experts;
        match experts.separate_norms {
            // What GGUF calls the router's scale is a norm then.
            true => {
                let w = |name| Weight { name, layer: Some(i) };
                self.one(w("router"), Part::Weight, &[n_experts, n], Presence::Needed);
                self.one(w("router_norm"), Part::Weight, &[n], Presence::Needed);
                for name in ["experts_norm", "post_experts_norm", "post_shared_norm"] {
                    self.norm(name, Some(i), n);
                }
            }
            false => {
                let parts = &[("router", n_experts)];
                self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: experts.router_bias });
            }
        }
        let selection = Weight { name: "selection", layer: Some(i) };
        self.one(selection, Part::Bias, &[n_experts], experts.selection_bias);
        let output_scale = Weight { name: "experts.output_scale", layer: Some(i) };
        self.one(output_scale, Part::Weight, &[n_experts], experts.output_scale);
        let output_bias = Weight { name: "experts.output_bias", layer: Some(i) };
        self.one(output_bias, Part::Weight, &[n], experts.output_bias);
        if let Some(len) = experts.latent_size {
            for (name, n_out, n_in) in [("experts.latent_down", len, n), ("experts.latent_up", n, len)] {
                self.linear(&Stack { layer: Some(i), parts: &[(name, n_out)], n_in, bias: Presence::Absent });
            }
        }
        let width = experts.latent_size.unwrap_or(n);
        let fused = Weight { name: "experts.gate_up_proj", layer: Some(i) };
        let gate_up: &[_] = match self.file_name(fused, None, Part::Weight) {
            _ if !experts.gated => &[("experts.up_proj", inner, width)],
            Some(_) => &[(fused.name, 2 * inner, width)],
            None => &[("experts.gate_proj", inner, width), ("experts.up_proj", inner, width)],
        };
        for &(name, n_out, n_in) in gate_up.iter().chain(&[("experts.down_proj", width, inner)]) {
            self.experts(name, i, [n_experts, n_out, n_in]);
            let w = Weight { name, layer: Some(i) };
            self.one(w, Part::Bias, &[n_experts, n_out], experts.bias);
        }
        let Some(shared) = experts.shared else { return };
        let inner = shared.intermediate_size;
        let [gate, up, down] = shared.proj;
        let parts: &[_] = if experts.gated { &[(gate, inner), (up, inner)] } else { &[(up, inner)] };
        self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: Presence::Absent });
        let parts = &[(down, n)];
        self.linear(&Stack { layer: Some(i), parts, n_in: inner, bias: Presence::Absent });
        if shared.gate {
            let parts = &[("shared_expert.gate", 1)];
            self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: Presence::Absent });
        }
    }

    fn outside_of_layers(&mut self) {
        let c = self.config;
        let global = |name| Weight { name, layer: None };
        self.one(global("embed"), Part::Weight, &[c.vocab_size, c.hidden_size], Presence::Needed);
        self.lm_head();
        if c.learned_positions {
            self.one(
                global("position_embed"),
                Part::Weight,
                &[c.context_length + c.position_offset, c.hidden_size],
                Presence::Needed,
            );
        }
        if c.n_token_types > 0 {
            let shape = [c.n_token_types, c.hidden_size];
            self.one(global("token_types"), Part::Weight, &shape, Presence::Needed);
        }
        if let Some(name) = c.embed_norm {
            self.norm(name, None, c.hidden_size);
        }
        let mut n_in = c.hidden_size;
        // Rows of the embedding or of the output matrix stand there.
        let head = c.encoder.iter().flat_map(|encoder| &encoder.head).filter(|layer| layer.tokens.is_none());
        for layer in head {
            let parts = &[(layer.name, layer.n_out)];
            self.linear(&Stack { layer: None, parts, n_in, bias: layer.bias });
            n_in = layer.n_out;
            if let Some(norm) = layer.norm {
                self.norm(norm, None, n_in);
            }
        }
        if let Some(PerLayerInput { len, .. }) = c.per_layer_input {
            let n = c.layers.len() * len;
            self.one(global("per_layer_embed"), Part::Weight, &[c.vocab_size, n], Presence::Needed);
            let parts = &[("per_layer_proj", n)];
            self.linear(&Stack { layer: None, parts, n_in: c.hidden_size, bias: Presence::Absent });
            self.norm("per_layer_proj_norm", None, len);
        }
        if let Some(name) = c.final_norm {
            self.norm(name, None, c.hidden_size);
        }
        let rope = c.ropes.first().filter(|_| self.source.format() == Format::Gguf);
        let factors: &[&'static str] = match rope.map(|rope| &rope.scaling) {
            Some(RopeScaling::Factors(_)) => &["rope_freqs"],
            Some(RopeScaling::LongRope { .. }) => &["rope_factors_long", "rope_factors_short"],
            _ => &[],
        };
        for name in factors {
            let n = rope.map_or(0, |rope| rope.dim / 2);
            self.one(global(name), Part::Weight, &[n], Presence::Needed);
        }
    }

    fn lm_head(&mut self) {
        let c = self.config;
        let w = Weight { name: "lm_head", layer: None };
        let file = self.file_name(w, None, Part::Weight);
        let is_embed = file.as_ref().is_some_and(|file| self.used.contains_key(file));
        match (c.tied, file) {
            (Tied::Never, Some(file)) if is_embed => {
                self.bad(&file, "is the only one of embedding and output matrix, which this model has apart");
            }
            // One matrix serves as both.
            (Tied::Always | Tied::IfAbsent, _) if is_embed => {}
            (Tied::IfAbsent, None) => {}
            (Tied::Always, file) => self.used.extend(file.map(|file| (file, w.name))),
            (Tied::Never | Tied::IfAbsent, _) => {
                let parts = &[(w.name, c.vocab_size)];
                self.linear(&Stack { layer: None, parts, n_in: c.hidden_size, bias: c.lm_head_bias });
            }
        }
    }

    fn layer(&mut self, i: usize, layer: &LayerConfig) {
        let n = self.config.hidden_size;
        let LayerNorms { pre_mixer, post_mixer, pre_ffn, post_ffn, after_mixer, after_ffn } = layer.norms;
        for name in [pre_mixer, post_mixer, pre_ffn, post_ffn, after_mixer, after_ffn].into_iter().flatten() {
            self.norm(name, Some(i), n);
        }
        self.one(Weight { name: "output_scale", layer: Some(i) }, Part::Weight, &[1], layer.output_scale);
        if let Some(PerLayerInput { len, .. }) = self.config.per_layer_input {
            for (name, n_out, n_in) in [("per_layer.gate", len, n), ("per_layer.proj", n, len)] {
                self.linear(&Stack { layer: Some(i), parts: &[(name, n_out)], n_in, bias: Presence::Absent });
            }
            self.norm("per_layer.post_norm", Some(i), n);
        }
        match &layer.mixer {
            Mixer::Attention(attention) => self.attention(i, attention),
            Mixer::Latent(latent) => self.latent(i, latent),
            Mixer::GatedDelta(delta) => self.gated_delta(i, delta),
            Mixer::ShortConv(conv) => self.short_conv(i, conv),
            Mixer::Mamba2(mamba) => self.mamba2(i, mamba),
            Mixer::None => {}
        }
        match &layer.ffn {
            Ffn::Gated(dense) => {
                let inner = dense.intermediate_size;
                let parts: &[_] = match self.is_fused(i, inner) {
                    true => &[("gate_up_proj", 2 * inner)],
                    false => &[("gate_proj", inner), ("up_proj", inner)],
                };
                self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: dense.bias });
                self.down(i, dense);
            }
            Ffn::Plain(dense) => {
                let parts = &[("up_proj", dense.intermediate_size)];
                self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: dense.bias });
                self.down(i, dense);
            }
            Ffn::Experts(experts) => self.mixture(i, experts),
            Ffn::None => {}
        }
    }

    /// What a layer that drafts has beside its blocks.
    fn draft(&mut self, i: usize) {
        let n = self.config.hidden_size;
        let (name, layer) = ("draft.proj", Some(i));
        self.linear(&Stack { layer, parts: &[(name, n)], n_in: 2 * n, bias: Presence::Absent });
        let file = self.file_name(Weight { name, layer }, None, Part::Weight);
        if let Some(file) = file
            && self.source.find(&file).is_some_and(|t| !n.is_multiple_of(t.dtype.block_len()))
        {
            self.bad(&file, format!("is quantized in blocks that cross its middle, column {n}"));
        }
        for name in ["draft.embed_norm", "draft.hidden_norm"] {
            self.norm(name, layer, n);
        }
        self.one(Weight { name: "draft.head_norm", layer }, Part::Weight, &[n], Presence::Optional);
        self.disregard(i, &["draft.embed", "draft.head"]);
    }

    /// Whether a layer has gate and up in one matrix. GGUF calls it as it calls up alone.
    fn is_fused(&self, layer: usize, inner: usize) -> bool {
        let file = |name| self.file_name(Weight { name, layer: Some(layer) }, None, Part::Weight);
        let rows = |file: String| self.source.find(&file).and_then(|t| t.shape.first().copied());
        file("gate_proj").is_none() && file("gate_up_proj").and_then(rows) == Some(2 * inner)
    }

    fn attention(&mut self, i: usize, attention: &Attention) {
        let (n, h) = (self.config.hidden_size, attention.heads);
        let (q_len, kv_len) = (h.n_heads * h.head_dim, h.n_kv_heads * h.head_dim);
        let fused = Weight { name: "qkv_proj", layer: Some(i) };
        let parts: &[_] = match self.file_name(fused, None, Part::Weight) {
            // Behind each head's queries stand those of its gate.
            _ if attention.output_gate => &[("q_proj", 2 * q_len), ("k_proj", kv_len), ("v_proj", kv_len)],
            Some(_) if attention.kv == KvSource::Own => &[("qkv_proj", h.qkv_len())],
            _ => match attention.kv {
                KvSource::Own => &[("q_proj", q_len), ("k_proj", kv_len), ("v_proj", kv_len)],
                KvSource::KeysAsValues => &[("q_proj", q_len), ("k_proj", kv_len)],
                KvSource::OfLayer(_) => &[("q_proj", q_len)],
            },
        };
        self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: attention.qkv_bias });
        let lens = match attention.qk_norm {
            None => None,
            Some(QkNorm::PerHead | QkNorm::PerHeadWithValues | QkNorm::PerHeadAfterRotation) => {
                Some([h.head_dim; 2])
            }
            Some(QkNorm::FullWidth) => Some([q_len, kv_len]),
        };
        if let Some([q, k]) = lens {
            self.norm("q_norm", Some(i), q);
            if attention.own_heads().n_kv_heads > 0 {
                self.norm("k_norm", Some(i), k);
            }
        }
        if let KvSource::OfLayer(_) = attention.kv {
            self.disregard(i, &["k_proj", "v_proj", "k_norm"]);
        }
        if attention.sinks {
            let w = Weight { name: "sinks", layer: Some(i) };
            self.one(w, Part::Weight, &[h.n_heads], Presence::Needed);
        }
        if attention.sub_norm {
            self.norm("attn_sub_norm", Some(i), q_len);
        }
        self.linear(&Stack { layer: Some(i), parts: &[("o_proj", n)], n_in: q_len, bias: attention.o_bias });
    }

    fn latent(&mut self, i: usize, latent: &Latent) {
        let (n, s) = (self.config.hidden_size, latent.shape);
        let layer = Some(i);
        let mut linear = |name, n_out, n_in, bias| {
            self.linear(&Stack { layer, parts: &[(name, n_out)], n_in, bias });
        };
        let q_len = s.n_heads * s.q_dim();
        match latent.q_rank {
            None => linear("q_proj", q_len, n, Presence::Absent),
            Some(rank) => {
                linear("q_a_proj", rank, n, latent.bias);
                linear("q_b_proj", q_len, rank, Presence::Absent);
            }
        }
        linear("kv_a_proj", s.key_dim(), n, latent.bias);
        linear("o_proj", n, s.n_heads * s.v_dim, latent.bias);
        let q_norm = latent.q_rank.map(|rank| ("q_a_norm", rank));
        for (name, len) in q_norm.into_iter().chain([("kv_a_norm", s.kv_rank)]) {
            self.one(Weight { name, layer }, Part::Weight, &[len], Presence::Needed);
        }
        for (name, n_out, n_in) in [("k_b_proj", s.kv_rank, s.nope_dim), ("v_b_proj", s.v_dim, s.kv_rank)] {
            let shape = &[s.n_heads, n_out, n_in];
            self.one(Weight { name, layer }, Part::Weight, shape, Presence::Needed);
        }
    }

    /// Takes weights of a layer that files may have and nobody reads.
    fn disregard(&mut self, layer: usize, names: &[&'static str]) {
        for &name in names {
            let file = self.file_name(Weight { name, layer: Some(layer) }, None, Part::Weight);
            self.used.extend(file.map(|file| (file, name)));
        }
    }

    fn gated_delta(&mut self, i: usize, delta: &GatedDelta) {
        let (n, shape) = (self.config.hidden_size, delta.shape);
        let rates = shape.n_v_heads;
        let mut parts = vec![("delta.qkv_proj", shape.qkv_len()), ("delta.z_proj", shape.v_len())];
        let fused = Weight { name: "delta.ba_proj", layer: Some(i) };
        match self.file_name(fused, None, Part::Weight) {
            Some(_) => parts.push((fused.name, 2 * rates)),
            None => parts.extend([("delta.b_proj", rates), ("delta.a_proj", rates)]),
        }
        self.linear(&Stack { layer: Some(i), parts: &parts, n_in: n, bias: Presence::Absent });
        self.conv("delta.conv", i, shape.qkv_len(), delta.conv_width);
        for name in ["delta.dt_bias", "delta.a_log"] {
            self.one(Weight { name, layer: Some(i) }, Part::Weight, &[rates], Presence::Needed);
        }
        let norm = Weight { name: "delta.norm", layer: Some(i) };
        self.one(norm, Part::Weight, &[shape.v_dim], Presence::Needed);
        let parts = &[("delta.out_proj", n)];
        self.linear(&Stack { layer: Some(i), parts, n_in: shape.v_len(), bias: Presence::Absent });
    }

    fn short_conv(&mut self, i: usize, conv: &ShortConv) {
        let (n, channels) = (self.config.hidden_size, conv.n_channels);
        let parts = &[("conv.in_proj", 3 * channels)];
        self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: Presence::Absent });
        self.conv("conv.conv", i, channels, conv.conv_width);
        let parts = &[("conv.out_proj", n)];
        self.linear(&Stack { layer: Some(i), parts, n_in: channels, bias: Presence::Absent });
    }

    fn mamba2(&mut self, i: usize, mamba: &Mamba2) {
        let (n, shape) = (self.config.hidden_size, mamba.shape);
        let (heads, inner) = (shape.n_heads, shape.inner_len());
        let parts = &[("mamba.in_proj", inner + shape.xbc_len() + heads)];
        self.linear(&Stack { layer: Some(i), parts, n_in: n, bias: Presence::Absent });
        self.conv("mamba.conv", i, shape.xbc_len(), mamba.conv_width);
        let of = |name| Weight { name, layer: Some(i) };
        self.one(of("mamba.conv"), Part::Bias, &[shape.xbc_len()], mamba.conv_bias);
        self.one(of("mamba.dt_bias"), Part::Weight, &[heads], Presence::Needed);
        // GGUF has columns of some, and a row of the norm for each group.
        let (per_head, norm): (&[usize], &[usize]) = match self.source.format() {
            Format::Gguf => (&[heads, 1], &[shape.n_groups, inner / shape.n_groups]),
            Format::Safetensors => (&[heads], &[inner]),
        };
        for (name, shape) in [("mamba.a_log", per_head), ("mamba.skip", per_head), ("mamba.norm", norm)] {
            self.one(of(name), Part::Weight, shape, Presence::Needed);
        }
        let parts = &[("mamba.out_proj", n)];
        self.linear(&Stack { layer: Some(i), parts, n_in: inner, bias: Presence::Absent });
    }

    /// The weights of a convolution of each channel by itself, which the reference library stores as one with a single input channel.
    fn conv(&mut self, name: &'static str, layer: usize, n_channels: usize, width: usize) {
        let shape: &[usize] = match self.source.format() {
            Format::Gguf => &[n_channels, width],
            Format::Safetensors => &[n_channels, 1, width],
        };
        self.one(Weight { name, layer: Some(layer) }, Part::Weight, shape, Presence::Needed);
    }

    fn down(&mut self, i: usize, dense: &Dense) {
        if dense.sub_norm {
            self.norm("ffn_sub_norm", Some(i), dense.intermediate_size);
        }
        let parts = &[("down_proj", self.config.hidden_size)];
        self.linear(&Stack { layer: Some(i), parts, n_in: dense.intermediate_size, bias: dense.bias });
    }

    /// Reports the tensors of the files that nobody asked for.
    fn left_over(&mut self) {
        let ignored = arch::ignored(self.config.arch);
        let mut n_ignored = 0;
        let mut unknown = Vec::new();
        for t in self.source.tensors().iter().filter(|t| !self.used.contains_key(&t.name)) {
            let reason = match ignored.iter().find(|i| matches(i.pattern, &t.name)) {
                _ if self.drafts(&t.name) => "only drafts tokens",
                Some(Ignored { reason, .. }) => reason,
                None => {
                    unknown.push(t.name.clone());
                    continue;
                }
            };
            tracing::debug!(tensor = t.name, reason, "ignored");
            n_ignored += 1;
        }
        if n_ignored > 0 {
            tracing::info!(n_ignored, "tensors that the model does without are ignored");
        }
        for name in unknown {
            let reason = match self.is_scale(&name) {
                true => "holds the scales of quantized weights apart, which is not supported; use an unquantized model or GGUF".to_owned(),
                false => format!("is no part of this program's description of {:?}", self.config.arch),
            };
            self.bad(&name, reason);
        }
    }

    /// Whether a tensor belongs to a layer that only drafts tokens and is not read.
    fn drafts(&self, name: &str) -> bool {
        let prefixes =
            ["blk.", "model.layers.", "model.language_model.layers.", "language_model.model.layers."];
        let layer = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)?.split('.').next());
        let n = self.config.layers.len();
        let layer = layer.and_then(|i| i.parse::<usize>().ok());
        layer.is_some_and(|i| (n..n + self.config.n_unread_layers).contains(&i))
    }

    /// Whether a tensor holds the scales of one of the model's matrices.
    fn is_scale(&self, name: &str) -> bool {
        let ends = [".weight_scale", ".weight_scale_inv", ".scales"];
        let base = ends.iter().find_map(|end| name.strip_suffix(end));
        base.is_some_and(|base| self.used.contains_key(&format!("{base}.weight")))
    }
}

/// A matrix of one row may stand in a file as a vector, and a vector as such a matrix.
fn without_leading_ones(shape: &[usize]) -> &[usize] {
    let n = shape.iter().take_while(|&&n| n == 1).count();
    &shape[n..]
}

/// Whether a name fits a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(first) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return name.ends_with(part);
        }
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    true
}

#[cfg(test)]
mod tests;
