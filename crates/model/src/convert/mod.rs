//! A Hugging Face folder seen as a GGUF model: GGUF's names, keys and layout, made on demand.
//!
//! What differs between the two formats: the order of rows in q and k of Llama-like models, norms stored as their difference
//! from 1, GPT-2's transposed matrices, experts in one tensor each, rotation scalings that are tensors in GGUF, and the order of the
//! delta rule's value heads.
//! The result is read back and compared with the original, so that what GGUF cannot state is refused and not lost.

mod heads;
mod metadata;

use crate::config::{Ffn, LayerConfig, Mixer, ModelConfig, Presence, Tied};
use crate::contract::{self, Contract, Entry, Part, Weight};
use crate::metadata::Metadata;
use crate::names;
use crate::rope::RopeScaling;
use crate::source::{Format, TensorInfo, TensorSource, TensorView};
use crate::{Error, Result, arch, values, weights};
use bytes::Bytes;
use heads::ValueHeads;
use realizar_compute::{DType, HeadOrder, RopeStyle};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The model in GGUF's layout; a GGUF model stays as it is.
///
/// Errors: weights that are missing, wrong or left over, whatever the format; for a folder also an architecture that is not known,
/// and a tokenizer or a hyper-parameter that GGUF cannot state.
pub fn as_gguf(source: Box<dyn TensorSource>) -> Result<Box<dyn TensorSource>> {
    if source.format() == Format::Gguf {
        // What this program cannot run it can still copy.
        return match arch::configure(&*source) {
            Ok(config) => contract::check(&*source, &config).map(|()| source),
            Err(Error::UnknownArchitecture { .. } | Error::UnsupportedArchitecture { .. }) => Ok(source),
            Err(e) => Err(e),
        };
    }
    let converted = Converted::new(source)?;
    converted.check()?;
    Ok(Box::new(converted))
}

struct Converted {
    source: Box<dyn TensorSource>,
    config: ModelConfig,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// By index of `tensors`.
    recipes: Vec<Recipe>,
}

/// How a tensor comes from those of the source.
enum Recipe {
    Edit(String, Edit),
    /// Matrices of equal shape, one per expert.
    Stack(Vec<String>),
    Values(Vec<f32>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Keep,
    /// From halves to neighbours: the rows of each head that turn together come to lie side by side.
    Interleave {
        n_heads: usize,
    },
    AddOne,
    Transpose,
    /// To GGUF's order of value heads.
    Tile(ValueHeads),
    /// As `Tile`, from `x` to `-exp(x)`.
    TileDecay(ValueHeads),
    /// From `x` to `-exp(x)`.
    Decay,
}

impl Converted {
    fn new(source: Box<dyn TensorSource>) -> Result<Self> {
        let config = arch::configure(&*source)?;
        if config.encoder.is_some() {
            let reason = "folders of embedding models and rerankers cannot be converted; use a GGUF file";
            return Err(Error::unsupported(source.path(), reason));
        }
        let method = source.metadata().get_str("quantization_config.quant_method")?;
        // GGUF has MXFP4, too, and weights in FP8 are read as BF16.
        let is_plain =
            |method: &str| ["mxfp4", "fp8", "fbgemm_fp8", "compressed-tensors", "modelopt"].contains(&method);
        if let Some(method) = method.filter(|method| !is_plain(method)) {
            let reason =
                format!("its weights are quantized by {method}; only plain numbers can be converted");
            return Err(Error::unsupported(source.path(), reason));
        }
        let contract = Contract::check(&*source, &config)?;
        let metadata = metadata::metadata(&*source, &config)?;
        let mut this = Self {
            source,
            config,
            metadata,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            recipes: Vec::new(),
        };
        this.add_tensors(&contract)?;
        this.add_rope_tensors()?;
        Ok(this)
    }

    fn add(&mut self, name: String, dtype: DType, shape: Vec<usize>, recipe: Recipe) -> Result<()> {
        let bad = || Error::bad_tensor(self.source.path(), &name, "has a shape that no file can hold");
        let info = TensorInfo::new(name.clone(), dtype, shape).ok_or_else(bad)?;
        self.by_name.insert(name, self.tensors.len());
        self.tensors.push(info);
        self.recipes.push(recipe);
        Ok(())
    }

    fn add_tensors(&mut self, contract: &Contract) -> Result<()> {
        contract.entries().iter().try_for_each(|entry| self.add_weight(entry))
    }

    fn add_weight(&mut self, entry: &Entry) -> Result<()> {
        let &Entry { weight: Weight { name: ours, layer }, part, ref shape, ref files } = entry;
        let name = names::preferred(ours, Format::Gguf, layer, 0, part.suffix());
        let mut dtype = self.source.find(&files[0]).expect("the contract found it").dtype;
        if dtype.block_len() != 1 && !(dtype == DType::MXFP4 && ours.starts_with("experts.")) {
            let reason = format!("has type {dtype}, which cannot be converted");
            return Err(Error::bad_tensor(self.source.path(), &files[0], reason));
        }
        if files.len() > 1 {
            return self.add(name, dtype, shape.clone(), Recipe::Stack(files.clone()));
        }
        let c = &self.config;
        let shape = &gguf_shape(ours, part, shape, layer.map(|i| &c.layers[i].mixer));
        // Small things stay exact, and readers expect them so.
        let is_small = SMALL.contains(&ours);
        if shape.len() < 2 || is_small || part != Part::Weight {
            dtype = DType::F32;
        }
        let interleaved = metadata::turns_neighbours(metadata::gguf_arch(c));
        let heads = layer.and_then(|i| match c.layers[i].mixer {
            Mixer::Attention(a) => Some(a.heads),
            _ => None,
        });
        let value_heads = layer.and_then(|i| match c.layers[i].mixer {
            Mixer::GatedDelta(delta) => ValueHeads::of(ours, &delta.shape, metadata::value_heads(c.arch)),
            _ => None,
        });
        let edit = match (ours, heads) {
            ("delta.norm" | "mamba.norm", _) => Edit::Keep,
            ("mamba.a_log", _) => Edit::Decay,
            _ if ours.ends_with("norm") && part == Part::Weight && c.norm_offset == 1.0 => Edit::AddOne,
            ("q_proj", Some(heads)) if interleaved => Edit::Interleave { n_heads: heads.n_heads },
            ("k_proj", Some(heads)) if interleaved => Edit::Interleave { n_heads: heads.n_kv_heads },
            _ if c.transposed && layer.is_some() && shape.len() == 2 => Edit::Transpose,
            _ => match value_heads {
                Some(heads) if ours == "delta.a_log" => Edit::TileDecay(heads),
                Some(heads) => Edit::Tile(heads),
                None => Edit::Keep,
            },
        };
        let turns_whole_heads = heads.is_none_or(|h| c.ropes.iter().all(|rope| rope.dim == h.head_dim));
        if matches!(edit, Edit::Interleave { .. }) && !turns_whole_heads {
            let reason = "has heads of which only a part turns, and GGUF has no order of rows for them";
            return Err(Error::bad_tensor(self.source.path(), &files[0], reason));
        }
        self.add(name, dtype, shape.clone(), Recipe::Edit(files[0].clone(), edit))
    }

    fn add_rope_tensors(&mut self) -> Result<()> {
        let Some(rope) = self.config.ropes.first() else { return Ok(()) };
        let vectors = match &rope.scaling {
            RopeScaling::Llama3 { .. } => {
                let plain = crate::RopeConfig { scaling: RopeScaling::None, ..rope.clone() };
                let n_ctx = self.config.context_length;
                let (fast, _) = plain.frequencies(n_ctx);
                let (slow, _) = rope.frequencies(n_ctx);
                vec![("rope_freqs.weight", fast.iter().zip(&slow).map(|(a, b)| a / b).collect())]
            }
            RopeScaling::LongRope { short, long, .. } => {
                vec![("rope_factors_long.weight", long.clone()), ("rope_factors_short.weight", short.clone())]
            }
            RopeScaling::Factors(divisors) => vec![("rope_freqs.weight", divisors.clone())],
            _ => return Ok(()),
        };
        for (name, values) in vectors {
            self.add(name.to_owned(), DType::F32, vec![values.len()], Recipe::Values(values))?;
        }
        Ok(())
    }

    /// Reads the result as a GGUF model and compares what it says with the original.
    fn check(&self) -> Result<()> {
        let (before, mut after) = (&self.config, arch::configure(self)?);
        // It follows from rounded numbers.
        let near = |x: f32, y: f32| (x - y).abs() <= 1e-5 * x.abs();
        if let Some(stated) = before.latents().next() {
            after.each_latent(|latent| {
                if near(stated.scale, latent.scale) {
                    latent.scale = stated.scale;
                }
            });
        }
        contract::check(self, &after)?;
        let cannot = |what: &str, before: String, after: String| {
            let reason = format!("its {what} is {before}, and the GGUF file would mean {after}");
            Err(Error::unsupported(self.source.path(), reason))
        };
        macro_rules! same {
            ($($field:ident),*) => {$(
                if before.$field != after.$field {
                    let what = stringify!($field).replace('_', " ");
                    return cannot(&what, format!("{:?}", before.$field), format!("{:?}", after.$field));
                }
            )*};
        }
        same!(vocab_size, hidden_size, context_length, embed_scale, learned_positions, norm_kind, norm_eps);
        same!(norm_bias, residual_scale, logit_scale, logit_softcap, per_layer_input, n_draft_layers);
        for (i, (a, b)) in before.layers.iter().zip(&after.layers).enumerate() {
            let [x, y] = [a, b].map(|layer| stated(*layer, before.context_length));
            if x != y {
                return cannot(&format!("layer {i}"), format!("{a:?}"), format!("{b:?}"));
            }
        }
        if after.tied == Tied::Always && self.by_name.contains_key("output.weight") {
            return cannot("output", "a matrix of its own".into(), "the embedding".into());
        }
        if before.ropes.len() != after.ropes.len() {
            return cannot("rotation", format!("{:?}", before.ropes), format!("{:?}", after.ropes));
        }
        for (a, b) in before.ropes.iter().zip(&after.ropes) {
            for n_ctx in [1, before.context_length] {
                let ((fa, sa), (fb, sb)) = (a.frequencies(n_ctx), b.frequencies(n_ctx));
                if fa.len() != fb.len() || !fa.iter().zip(&fb).all(|(&x, &y)| near(x, y)) || !near(sa, sb) {
                    return cannot("rotation", format!("{:?}", a.scaling), format!("{:?}", b.scaling));
                }
            }
            let turned =
                b.style == RopeStyle::Interleaved && metadata::turns_neighbours(metadata::gguf_arch(before));
            assert!(turned || a.style == b.style, "rows of q and k would be in the wrong order");
        }
        Ok(())
    }
}

/// Weights that are not quantized, whatever their shapes.
const SMALL: &[&str] = &[
    "router",
    "position_embed",
    "shared_expert.gate",
    "delta.conv",
    "conv.conv",
    "mamba.conv",
    "mamba.a_log",
    "mamba.skip",
    "mamba.norm",
];

/// The shape of a weight in GGUF, which has no dimension for the one input channel of a convolution, columns of what Mamba-2 has for each
/// head, and a row of its norm for each group.
fn gguf_shape(ours: &str, part: Part, shape: &[usize], mixer: Option<&Mixer>) -> Vec<usize> {
    match (ours, mixer) {
        ("delta.conv" | "conv.conv" | "mamba.conv", _) if part == Part::Weight => vec![shape[0], shape[2]],
        ("mamba.a_log" | "mamba.skip", _) => vec![shape[0], 1],
        ("mamba.norm", Some(Mixer::Mamba2(mamba))) => {
            vec![mamba.shape.n_groups, shape[0] / mamba.shape.n_groups]
        }
        _ => shape.to_vec(),
    }
}

/// What GGUF can state of a layer: it does not say which biases and factors there are, and a window as long as the context is none.
fn stated(mut layer: LayerConfig, context_length: usize) -> LayerConfig {
    match &mut layer.mixer {
        Mixer::Attention(a) => {
            a.window = a.window.filter(|&w| w < context_length);
            (a.qkv_bias, a.o_bias) = (Presence::Optional, Presence::Optional);
        }
        // Weights are put in GGUF's order.
        Mixer::GatedDelta(delta) => delta.shape.order = HeadOrder::Tiled,
        Mixer::Latent(latent) => latent.bias = Presence::Optional,
        Mixer::Mamba2(mamba) => mamba.conv_bias = Presence::Optional,
        Mixer::ShortConv(_) | Mixer::None => {}
    }
    match &mut layer.ffn {
        Ffn::Gated(dense) | Ffn::Plain(dense) => dense.bias = Presence::Optional,
        Ffn::Experts(experts) => experts.output_scale = Presence::Optional,
        Ffn::None => {}
    }
    layer.output_scale = Presence::Optional;
    layer
}

impl TensorSource for Converted {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> Format {
        Format::Gguf
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn tensor(&self, name: &str) -> Result<TensorView> {
        let Some(&index) = self.by_name.get(name) else {
            return Err(Error::MissingTensor { path: self.path().to_owned(), tensor: name.to_owned() });
        };
        let TensorInfo { dtype, shape, .. } = &self.tensors[index];
        let bytes = match &self.recipes[index] {
            Recipe::Values(values) => to_bytes(values),
            Recipe::Stack(parts) => {
                let mut all = Vec::with_capacity(self.tensors[index].n_bytes());
                for part in parts {
                    all.extend_from_slice(&self.source.tensor(part)?.bytes);
                }
                Bytes::from(all)
            }
            Recipe::Edit(from, edit) => {
                let view = self.source.tensor(from)?;
                let bytes = match *edit {
                    Edit::Keep => view.bytes.clone(),
                    Edit::Interleave { n_heads } => interleave(&view, n_heads),
                    Edit::Transpose => {
                        weights::transpose(view.clone())
                            .ok_or_else(|| {
                                Error::bad_tensor(self.path(), from, "is no matrix of plain numbers")
                            })?
                            .bytes
                    }
                    Edit::Tile(heads) => Bytes::from(heads.tile(&view.bytes, shape[0])),
                    Edit::AddOne | Edit::TileDecay(_) | Edit::Decay => {
                        let values = values::vector(&*self.source, from, None)?;
                        let bytes = match *edit {
                            Edit::TileDecay(heads) => {
                                Bytes::from(heads.tile(&to_bytes(&decays(&values)), values.len()))
                            }
                            Edit::Decay => to_bytes(&decays(&values)),
                            _ => to_bytes(&values.iter().map(|v| v + 1.0).collect::<Vec<f32>>()),
                        };
                        return Ok(TensorView { dtype: DType::F32, shape: shape.clone(), bytes });
                    }
                };
                if *dtype == view.dtype {
                    bytes
                } else {
                    let mut values = vec![0.0; shape.iter().product()];
                    (view.dtype.spec().dequantize)(&bytes, &mut values);
                    to_bytes(&values)
                }
            }
        };
        Ok(TensorView { dtype: *dtype, shape: shape.clone(), bytes })
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn sibling(&self, _: &str) -> Option<PathBuf> {
        None
    }
}

/// `-exp(A_log)`
fn decays(values: &[f32]) -> Vec<f32> {
    values.iter().map(|v| -v.exp()).collect()
}

fn to_bytes(values: &[f32]) -> Bytes {
    Bytes::from(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>())
}

/// Row `half · d + j` of each head becomes row `2 j + half`, with d half of a head's rows.
fn interleave(view: &TensorView, n_heads: usize) -> Bytes {
    let n_rows = view.shape[0];
    let row_bytes = view.bytes.len() / n_rows;
    let d = n_rows / n_heads / 2;
    let mut out = Vec::with_capacity(view.bytes.len());
    for head in 0..n_heads {
        for j in 0..d {
            for half in 0..2 {
                let row = head * 2 * d + half * d + j;
                out.extend_from_slice(&view.bytes[row * row_bytes..][..row_bytes]);
            }
        }
    }
    Bytes::from(out)
}
