//! Models with random weights at the shapes of known ones, for measuring speed without a download.
//!
//! [`Synth`] is a [`TensorSource`] like a file: a weight is made when it is asked for, so a model larger than memory can be
//! written out. Weights are drawn from a normal distribution of standard deviation 1/√n_in, which keeps activations and logits
//! in the range of a trained model's.

mod bert;
mod gemma4;
mod latent;
mod mamba;
mod metadata;
mod shapes;

use crate::metadata::Metadata;
use crate::quant_mix::{MixModel, QuantMix};
use crate::source::{Format, TensorInfo, TensorSource, TensorView};
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::DType;
use shapes::Family;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

pub use shapes::{SYNTH_SHAPES, SynthShape};

/// A model with random weights. The same shape, mix and seed give the same bytes on every machine.
pub struct Synth {
    path: PathBuf,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// By index of `tensors`.
    fills: Vec<Fill>,
    seed: u64,
    n_threads: usize,
    /// Quantized random weights to draw from, by element type and the bits of their standard deviation.
    pools: Mutex<HashMap<(DType, u32), Pool>>,
}

/// Quantized weights to draw from.
type Pool = Arc<Vec<u8>>;

/// What a weight consists of.
enum Fill {
    Normal { std: f32 },
    Values(Vec<f32>),
}

/// Weights that are quantized together and drawn together: a whole number of any type's blocks.
const UNIT: usize = 256;
/// Smaller, for rows that are not a multiple of 256 and so have types with blocks of 32.
const SMALL_UNIT: usize = 32;
/// Weights in a pool. More would not fit a core's cache; repetition at random places does no harm.
const POOL: usize = 1 << 19;
/// Weights that one seed fills.
const CHUNK: usize = 1 << 20;

impl Synth {
    /// Describes the model; weights are made by `n_threads` threads when asked for.
    pub fn new(shape: &SynthShape, mix: &QuantMix, seed: u64, n_threads: usize) -> Result<Self> {
        let path = PathBuf::from(format!("{}:{}", shape.name, mix.name));
        let metadata = metadata::metadata(&path, shape, mix)?;
        let mut synth = Synth {
            path,
            metadata,
            tensors: Vec::new(),
            by_name: HashMap::new(),
            fills: Vec::new(),
            seed,
            n_threads: n_threads.max(1),
            pools: Mutex::default(),
        };
        let model = MixModel {
            arch: shape.family.arch(),
            n_layers: shape.n_layers,
            n_heads: shape.n_heads,
            n_kv_heads: shape.n_kv_heads,
            n_experts: shape.experts.map_or(0, |e| e[0]),
            tied: shape.tied,
            has_imatrix: false,
        };
        for Weight { name, shape, fill } in weights(shape) {
            let dtype = mix.dtype_of(&name, &shape, &model).unwrap_or(kept_type(&name));
            let info = TensorInfo::new(name.clone(), dtype, shape).ok_or_else(|| {
                Error::bad_tensor(&synth.path, &name, "has rows that its blocks do not fill")
            })?;
            synth.by_name.insert(name, synth.tensors.len());
            synth.tensors.push(info);
            synth.fills.push(fill);
        }
        Ok(synth)
    }

    /// Random weights of one type and spread.
    fn pool(&self, dtype: DType, std: f32) -> Result<Pool> {
        let key = (dtype, std.to_bits());
        let mut pools = self.pools.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(pool) = pools.get(&key) {
            return Ok(pool.clone());
        }
        let quantize = dtype
            .spec()
            .quantize
            .ok_or_else(|| Error::unsupported(&self.path, format!("this program does not write {dtype}")))?;
        let mut rng = Rng(self.seed);
        let weights: Vec<f32> = (0..POOL).map(|_| rng.normal() * std).collect();
        let mut pool = vec![0; POOL / dtype.block_len() * dtype.spec().block_bytes];
        quantize(&weights, &mut pool, None);
        let pool = Arc::new(pool);
        pools.insert(key, pool.clone());
        Ok(pool)
    }

    fn random(&self, info: &TensorInfo, std: f32) -> Result<Vec<u8>> {
        let pool = self.pool(info.dtype, std)?;
        let unit = if info.shape[info.shape.len() - 1].is_multiple_of(UNIT) { UNIT } else { SMALL_UNIT };
        let bytes_of = |n: usize| n / info.dtype.block_len() * info.dtype.spec().block_bytes;
        let unit_bytes = bytes_of(unit);
        let mut data = vec![0; info.n_bytes()];
        let chunks = Mutex::new(data.chunks_mut(bytes_of(CHUNK)).enumerate());
        let seed = hash(self.seed, &info.name);
        std::thread::scope(|scope| {
            for _ in 0..self.n_threads {
                scope.spawn(|| {
                    loop {
                        let next = chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
                        let Some((i, chunk)) = next else { return };
                        let mut rng = Rng(seed.wrapping_add(i as u64));
                        for place in chunk.chunks_mut(unit_bytes) {
                            let at = rng.below(POOL / unit) * unit_bytes;
                            place.copy_from_slice(&pool[at..at + place.len()]);
                        }
                    }
                });
            }
        });
        Ok(data)
    }
}

impl TensorSource for Synth {
    fn path(&self) -> &Path {
        &self.path
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
            return Err(Error::MissingTensor { path: self.path.clone(), tensor: name.to_owned() });
        };
        let info = &self.tensors[index];
        let bytes = match &self.fills[index] {
            Fill::Normal { std } => self.random(info, *std)?,
            Fill::Values(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        };
        Ok(TensorView { dtype: info.dtype, shape: info.shape.clone(), bytes: Bytes::from(bytes) })
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn sibling(&self, _: &str) -> Option<PathBuf> {
        None
    }
}

/// The type of what no mix quantizes.
fn kept_type(name: &str) -> DType {
    // Quantizers leave this large matrix as the file has it that they read, and files that are published have 16 bits.
    match name == "per_layer_model_proj.weight" {
        true => DType::BF16,
        false => DType::F32,
    }
}

struct Weight {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
}

/// Random numbers that keep the size of `n_in` inputs.
fn matrix(n_in: usize) -> Fill {
    Fill::Normal { std: 1.0 / (n_in as f32).sqrt() }
}

fn norm(n: usize) -> Fill {
    Fill::Values(vec![1.0; n])
}

fn bias(n: usize) -> Fill {
    Fill::Values((0..n).map(|i| (i % 7) as f32 * 0.01 - 0.03).collect())
}

/// Weights of convolutions.
fn taps(n: usize) -> Fill {
    Fill::Values((0..n).map(|i| (i * 7 % 11) as f32 * 0.1 - 0.5).collect())
}

/// All weights of a model, in the order of the file.
fn weights(s: &SynthShape) -> Vec<Weight> {
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], fill: Fill| {
        all.push(Weight { name, shape: shape.to_vec(), fill });
    };
    let hidden = s.hidden_size;
    let plain = s.family.is_plain();
    add("token_embd.weight".into(), &[s.vocab_size, hidden], matrix(hidden));
    if let Some(factor) = s.llama3_factor {
        let divisors = llama3_divisors(s, factor);
        add("rope_freqs.weight".into(), &[divisors.len()], Fill::Values(divisors));
    }
    if let Some(gemma4) = s.gemma4 {
        gemma4.inputs(s, &mut add);
    }
    if s.family == Family::Bert {
        bert::inputs(s, &mut add);
    }
    for i in 0..s.n_layers {
        let mut put = |part: &str, shape: &[usize], fill: Fill| add(format!("blk.{i}.{part}"), shape, fill);
        if let Some(gemma4) = s.gemma4 {
            gemma4.layer(s, i, &mut put);
            continue;
        }
        if let Some(mamba) = s.mamba {
            mamba.layer(s, i, &mut put);
            continue;
        }
        if s.family == Family::Bert {
            bert::layer(s, &mut put);
            continue;
        }
        match (s.latent, s.delta) {
            (Some(latent), _) => latent.attention(s, &mut put),
            _ if s.attends(i) => attention(s, &mut put),
            (None, Some(delta)) => gated_delta(s, delta, &mut put),
            (None, None) => short_conv(s, &mut put),
        }
        match s.experts {
            Some(experts) if i >= s.n_dense => mixture(s, experts, &mut put),
            _ => feed_forward(s, &mut put),
        }
    }
    if s.family == Family::Bert {
        return all;
    }
    if s.family.drafts() {
        let mut put =
            |part: &str, shape: &[usize], fill: Fill| add(format!("blk.{}.{part}", s.n_layers), shape, fill);
        draft_layer(s, &mut put);
    }
    let final_norm = if s.family.has_short_convs() { "token_embd_norm" } else { "output_norm" };
    add(format!("{final_norm}.weight"), &[hidden], norm(hidden));
    if plain {
        add("output_norm.bias".into(), &[hidden], bias(hidden));
    }
    if !s.tied {
        add("output.weight".into(), &[s.vocab_size, hidden], matrix(hidden));
    }
    if s.family == Family::Phi2 {
        add("output.bias".into(), &[s.vocab_size], bias(s.vocab_size));
    }
    all
}

fn attention(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let (hidden, family) = (s.hidden_size, s.family);
    let (q_dim, kv_dim) = (s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim);
    if !family.has_post_norms_only() {
        put("attn_norm.weight", &[hidden], norm(hidden));
    }
    if family.is_plain() {
        put("attn_norm.bias", &[hidden], bias(hidden));
    }
    // Gates on attention's output stand among the queries.
    let q_rows = if family.is_qwen_hybrid() { 2 * q_dim } else { q_dim };
    let qkv: &[_] = match family {
        Family::Phi3 => &[("attn_qkv", q_dim + 2 * kv_dim)],
        _ => &[("attn_q", q_rows), ("attn_k", kv_dim), ("attn_v", kv_dim)],
    };
    let has_bias = family.is_plain()
        || matches!(
            family,
            Family::Qwen2
                | Family::Qwen2Moe
                | Family::Glm4
                | Family::Glm4Moe
                | Family::SeedOss
                | Family::GptOss
        );
    for &(part, n_out) in qkv {
        put(&format!("{part}.weight"), &[n_out, hidden], matrix(hidden));
        if has_bias {
            put(&format!("{part}.bias"), &[n_out], bias(n_out));
        }
    }
    let qk_norm = match family {
        _ if family.is_qwen_hybrid() => Some([s.head_dim; 2]),
        Family::Qwen3 | Family::Qwen3Moe | Family::Lfm2 | Family::Lfm2Moe | Family::Exaone4 => {
            Some([s.head_dim; 2])
        }
        Family::Olmo2 | Family::Olmo3 | Family::MiniMaxM2 => Some([q_dim, kv_dim]),
        _ => None,
    };
    if let Some([q, k]) = qk_norm {
        put("attn_q_norm.weight", &[q], norm(q));
        put("attn_k_norm.weight", &[k], norm(k));
    }
    put("attn_output.weight", &[hidden, q_dim], matrix(q_dim));
    if family.is_plain() || family == Family::GptOss {
        put("attn_output.bias", &[hidden], bias(hidden));
    }
    if family == Family::GptOss {
        put("attn_sinks.weight", &[s.n_heads], bias(s.n_heads));
    }
    if family.has_post_norms_only() || matches!(family, Family::Gemma2 | Family::Glm4) {
        put("post_attention_norm.weight", &[hidden], norm(hidden));
        put("post_ffw_norm.weight", &[hidden], norm(hidden));
    }
}

/// Tokens that the convolution before the delta rule reads.
const DELTA_CONV_WIDTH: usize = 4;
/// Tokens that a gated convolution reads.
const SHORT_CONV_WIDTH: usize = 3;

fn gated_delta(
    s: &SynthShape,
    [n_k_heads, n_v_heads, dim]: [usize; 3],
    put: &mut impl FnMut(&str, &[usize], Fill),
) {
    let hidden = s.hidden_size;
    let (k_len, v_len) = (n_k_heads * dim, n_v_heads * dim);
    let qkv_len = 2 * k_len + v_len;
    put("attn_norm.weight", &[hidden], norm(hidden));
    put("attn_qkv.weight", &[qkv_len, hidden], matrix(hidden));
    put("attn_gate.weight", &[v_len, hidden], matrix(hidden));
    if s.family == Family::Qwen3Next {
        put("ssm_ba.weight", &[2 * n_v_heads, hidden], matrix(hidden));
    } else {
        put("ssm_beta.weight", &[n_v_heads, hidden], matrix(hidden));
        put("ssm_alpha.weight", &[n_v_heads, hidden], matrix(hidden));
    }
    put("ssm_conv1d.weight", &[qkv_len, DELTA_CONV_WIDTH], taps(qkv_len * DELTA_CONV_WIDTH));
    put("ssm_dt.bias", &[n_v_heads], bias(n_v_heads));
    put("ssm_a", &[n_v_heads], Fill::Values((0..n_v_heads).map(|i| -0.1 - (i % 5) as f32).collect()));
    put("ssm_norm.weight", &[dim], norm(dim));
    put("ssm_out.weight", &[hidden, v_len], matrix(v_len));
}

fn short_conv(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let hidden = s.hidden_size;
    put("attn_norm.weight", &[hidden], norm(hidden));
    put("shortconv.in_proj.weight", &[3 * hidden, hidden], matrix(hidden));
    put("shortconv.conv.weight", &[hidden, SHORT_CONV_WIDTH], taps(hidden * SHORT_CONV_WIDTH));
    put("shortconv.out_proj.weight", &[hidden, hidden], matrix(hidden));
}

/// The layer that drafts tokens.
fn draft_layer(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let hidden = s.hidden_size;
    attention(s, put);
    match s.experts {
        Some(experts) => mixture(s, experts, put),
        None => feed_forward(s, put),
    }
    put("nextn.eh_proj.weight", &[hidden, 2 * hidden], matrix(2 * hidden));
    for part in ["enorm", "hnorm", "shared_head_norm"] {
        put(&format!("nextn.{part}.weight"), &[hidden], norm(hidden));
    }
}

fn feed_forward(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let (hidden, ffn, family) = (s.hidden_size, s.intermediate_size, s.family);
    ffn_norm(s, put);
    let n_up = if family.has_fused_gate() { 2 * ffn } else { ffn };
    if !family.is_plain() && !family.has_fused_gate() {
        put("ffn_gate.weight", &[ffn, hidden], matrix(hidden));
    }
    put("ffn_up.weight", &[n_up, hidden], matrix(hidden));
    put("ffn_down.weight", &[hidden, ffn], matrix(ffn));
    if family.is_plain() {
        put("ffn_up.bias", &[ffn], bias(ffn));
        put("ffn_down.bias", &[hidden], bias(hidden));
    }
}

fn ffn_norm(s: &SynthShape, put: &mut impl FnMut(&str, &[usize], Fill)) {
    let (n, family) = (s.hidden_size, s.family);
    if family.is_parallel() || family.has_post_norms_only() {
        return;
    }
    // Some name it by its place behind attention.
    let name = match family {
        Family::SeedOss | Family::GptOss | Family::Glm4Moe => "post_attention_norm",
        family if family.is_qwen_hybrid() => "post_attention_norm",
        _ => "ffn_norm",
    };
    put(&format!("{name}.weight"), &[n], norm(n));
    if family.is_plain() {
        put("ffn_norm.bias", &[n], bias(n));
    }
}

/// A mixture of experts of these numbers.
fn mixture(s: &SynthShape, [n_experts, _, width]: [usize; 3], put: &mut impl FnMut(&str, &[usize], Fill)) {
    let hidden = s.hidden_size;
    ffn_norm(s, put);
    put("ffn_gate_inp.weight", &[n_experts, hidden], matrix(hidden));
    if s.family == Family::GptOss {
        put("ffn_gate_inp.bias", &[n_experts], bias(n_experts));
    }
    if s.routes_by_sigmoid() {
        put("exp_probs_b.bias", &[n_experts], bias(n_experts));
    }
    for (part, n_out, n_in) in
        [("ffn_gate_exps", width, hidden), ("ffn_up_exps", width, hidden), ("ffn_down_exps", hidden, width)]
    {
        put(&format!("{part}.weight"), &[n_experts, n_out, n_in], matrix(n_in));
        if s.family == Family::GptOss {
            put(&format!("{part}.bias"), &[n_experts, n_out], bias(n_experts * n_out));
        }
    }
    let shared = s.shared_expert;
    if shared > 0 {
        put("ffn_gate_shexp.weight", &[shared, hidden], matrix(hidden));
        put("ffn_up_shexp.weight", &[shared, hidden], matrix(hidden));
        put("ffn_down_shexp.weight", &[hidden, shared], matrix(shared));
    }
    if s.family == Family::Qwen2Moe || s.family.is_qwen_hybrid() {
        put("ffn_gate_inp_shexp.weight", &[hidden], matrix(hidden));
    }
}

/// What Llama 3.1 divides the speed of each pair's rotation by: nothing for fast ones, `factor` for slow ones, a blend between.
fn llama3_divisors(s: &SynthShape, factor: f32) -> Vec<f32> {
    const TRAINED_CONTEXT: f32 = 8192.0;
    const LOW: f32 = 1.0;
    const HIGH: f32 = 4.0;
    (0..s.head_dim / 2)
        .map(|i| {
            let turns = TRAINED_CONTEXT * s.rope_theta.powf(-((2 * i) as f32) / s.head_dim as f32)
                / std::f32::consts::TAU;
            let keep = ((turns - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
            1.0 / ((1.0 - keep) / factor + keep)
        })
        .collect()
}

/// SplitMix64 (Steele et al. 2014).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (((self.next() >> 32) * n as u64) >> 32) as usize
    }

    /// Nearly normal: the sum of twelve uniform numbers, which takes only exact operations.
    fn normal(&mut self) -> f32 {
        let sum: u64 =
            (0..3).map(|_| self.next()).map(|r| (0..4).map(|k| r >> (16 * k) & 0xFFFF).sum::<u64>()).sum();
        (sum as f32 + 6.0) / 65536.0 - 6.0
    }
}

/// FNV-1a.
fn hash(seed: u64, text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325 ^ seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn synth(shape: &str, mix: &str, seed: u64, n_threads: usize) -> Synth {
        let shape = SynthShape::from_name(shape).expect("known shape");
        Synth::new(shape, QuantMix::from_name(mix).expect("known mix"), seed, n_threads).expect("describes")
    }

    #[test]
    fn parameters_are_those_of_the_published_models() {
        for (name, billions) in [
            ("tinyllama-1.1b", 1.100),
            ("llama-3.2-1b", 1.236),
            ("llama-3.1-8b", 8.030),
            ("llama-3.1-70b", 70.554),
            ("mistral-7b", 7.248),
            ("qwen2.5-0.5b", 0.494),
            ("qwen2.5-1.5b", 1.544),
            ("qwen2.5-7b", 7.616),
            ("qwen3-0.6b", 0.596),
            ("qwen3-8b", 8.191),
            ("qwen3-30b-a3b", 30.532),
            ("phi-2", 2.780),
            ("gemma-2-9b", 9.242),
            ("olmo-2-7b", 7.299),
            ("glm-4-9b", 9.400),
            ("qwen3.5-0.8b", 0.752),
            ("qwen3.5-4b", 4.206),
            ("qwen3.5-9b", 8.954),
            ("qwen3.5-27b", 26.896),
            ("lfm2-1.2b", 1.170),
            ("lfm2-8b-a1b", 8.340),
            ("nemotron-h-8b", 8.101),
            ("granite-4-h-tiny", 6.939),
            ("mistral-small-24b", 23.572),
            ("ministral-3-8b", 8.490),
            ("smollm3-3b", 3.075),
            ("olmo-3-7b", 7.298),
            ("granite-3.3-8b", 8.171),
            ("seed-oss-36b", 36.151),
            ("exaone-4-32b", 32.003),
            ("command-r7b", 8.028),
            ("starcoder2-7b", 7.174),
            ("ernie-4.5-0.3b", 0.361),
            ("phi-4", 14.660),
            ("gemma-7b", 8.538),
            ("gpt-oss-20b", 20.915),
            ("gpt-oss-120b", 116.829),
            ("qwen1.5-moe-a2.7b", 14.316),
            ("qwen3.6-35b-a3b", 34.661),
            ("qwen3-next-80b-a3b", 79.674),
            ("gemma-4-e2b", 4.629),
            ("gemma-4-e4b", 7.463),
            ("gemma-4-12b", 11.907),
            ("gemma-4-31b", 30.697),
            ("gemma-4-26b-a4b", 25.233),
            ("deepseek-v2-lite", 15.706),
            ("deepseek-v3-5-layers", 26.618),
            ("glm-4.7-flash", 29.943),
            ("bge-base", 0.109),
            ("bge-m3", 0.567),
        ] {
            let s = synth(name, "f16", 1, 1);
            let config = crate::arch::configure(&s).unwrap();
            // Nobody counts the layer that drafts.
            let draft = format!("blk.{}.", config.n_main_layers());
            let counted = s.tensors().iter().filter(|t| !t.name.starts_with(&draft));
            let n: usize = counted.map(TensorInfo::n_elements).sum();
            assert_eq!(config.n_draft_layers > 0, s.tensors().iter().any(|t| t.name.starts_with(&draft)));
            assert!((n as f64 / 1e9 - billions).abs() < 6e-4, "{name} has {n}");
        }
    }

    #[test]
    fn every_shape_is_a_whole_model_whose_memory_is_documented() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
        let documented = std::fs::read_to_string(path).unwrap();
        let mut n_documented = 0;
        for shape in SYNTH_SHAPES {
            let s = synth(shape.name, "q8_0", 1, 1);
            let mut config = crate::arch::configure(&s).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
            crate::contract::check(&s, &config).unwrap_or_else(|e| panic!("{}: {e}", shape.name));
            config.without_draft_layers();
            let column = format!("| {} | ", shape.name);
            let stated = documented.lines().filter_map(|line| line.split_once(&column));
            for (_, figure) in stated {
                let kib = config.kv_bytes_per_token(DType::F16) / 1024;
                assert_eq!(figure, format!("{kib} |"), "{}", shape.name);
                n_documented += 1;
            }
        }
        assert!(n_documented >= 19, "{n_documented} sizes are documented");
    }

    #[test]
    fn weights_are_the_same_whatever_the_number_of_threads() {
        let name = "blk.3.ffn_up.weight";
        let one = synth("qwen3-0.6b", "f16", 7, 1).tensor(name).expect("made").bytes;
        assert_eq!(one, synth("qwen3-0.6b", "f16", 7, 3).tensor(name).expect("made").bytes);
        assert_ne!(one, synth("qwen3-0.6b", "f16", 8, 3).tensor(name).expect("made").bytes);
    }

    #[test]
    fn weights_have_unit_gain() {
        for (shape, mix, name) in [
            ("qwen3-0.6b", "f16", "blk.0.attn_q.weight"),
            ("qwen3-0.6b", "q4_k_m", "blk.0.attn_q.weight"),
            ("qwen3-0.6b", "q4_k_m", "blk.0.attn_v.weight"),
            ("qwen2.5-0.5b", "q4_k_m", "blk.5.attn_q.weight"),
            ("qwen2.5-0.5b", "q5_k_m", "blk.5.attn_q.weight"),
            ("qwen3-0.6b", "q8_0", "blk.27.ffn_down.weight"),
            ("qwen3-0.6b", "q4_0", "blk.27.ffn_down.weight"),
        ] {
            let t = synth(shape, mix, 1, 2).tensor(name).expect("made");
            let mut values = vec![0.0; t.shape.iter().product()];
            (t.dtype.spec().dequantize)(&t.bytes, &mut values);
            let gain = values.iter().map(|v| v * v).sum::<f32>() / t.shape[0] as f32;
            assert!((gain - 1.0).abs() < 0.05, "{shape} {mix} {name}: {gain}");
        }
    }
}
