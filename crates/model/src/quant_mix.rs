//! Which element type each tensor of a GGUF file gets when a model is quantized "as Q4_K_M".
//!
//! A mix has one type for most matrices and better ones where errors cost most: values of attention, the last matrix of the
//! feed-forward block, the output. The assignment is llama-quantize's, so that files have the same types as others of that name. A few of
//! its choices depend on whether an importance matrix is at hand.

use realizar_compute::DType;

/// One named mix of element types.
#[derive(Debug, PartialEq, Eq)]
pub struct QuantMix {
    /// Name, in lower case, such as `q4_k_m`.
    pub name: &'static str,
    /// The type of most matrices.
    pub base: DType,
    /// `general.file_type` in GGUF.
    pub file_type: u32,
    kind: Kind,
}

/// What a mix does with the matrices that are not of its base type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Plain numbers: everything of one type.
    Plain,
    /// One quantized type, with a better output.
    Uniform,
    /// Q2_K with Q4_K in the first layers.
    Q2KSmall,
    /// Q2_K with Q3_K and Q4_K.
    Q2KMixed,
    /// Q3_K.
    Q3KSmall,
    /// Q3_K with Q4_K and Q5_K.
    Q3KMedium,
    /// Q3_K with Q5_K.
    Q3KLarge,
    /// Q4_K with Q5_K in the first layers.
    Q4KSmall,
    /// Q4_K or Q5_K with Q6_K in about half of the layers.
    KMedium,
    /// IQ4_NL or IQ4_XS with Q5_K in the first layers.
    Iq4,
    /// IQ3_S with Q4_K.
    Iq3Medium,
    /// IQ3_S.
    Iq3Small,
    /// IQ3_S with IQ3_XXS in attention and in the middle layers.
    Iq3ExtraSmall,
    /// IQ3_XXS with IQ2_S for queries and keys.
    Iq3ExtraExtraSmall,
    /// IQ2_XS or IQ2_S with IQ3_S.
    Iq2,
    /// IQ2_XXS or IQ2_XS with Q2_K.
    Iq2ExtraSmall,
    /// IQ1_S or IQ1_M with Q2_K, and IQ2_XXS in attention.
    Iq1,
    /// TQ1_0 or TQ2_0, with an embedding of Q4_K.
    Ternary,
    /// Experts in MXFP4, as gpt-oss is published.
    ExpertsMxfp4,
}

const fn mix(name: &'static str, base: DType, file_type: u32, kind: Kind) -> QuantMix {
    QuantMix { name, base, file_type, kind }
}

/// All mixes that this program writes.
pub static QUANT_MIXES: &[QuantMix] = &[
    mix("f32", DType::F32, 0, Kind::Plain),
    mix("f16", DType::F16, 1, Kind::Plain),
    mix("bf16", DType::BF16, 32, Kind::Plain),
    mix("q8_0", DType::Q8_0, 7, Kind::Uniform),
    mix("q6_k", DType::Q6_K, 18, Kind::Uniform),
    mix("q5_k_m", DType::Q5_K, 17, Kind::KMedium),
    mix("q5_k_s", DType::Q5_K, 16, Kind::Uniform),
    mix("q5_1", DType::Q5_1, 9, Kind::Uniform),
    mix("q5_0", DType::Q5_0, 8, Kind::Uniform),
    mix("q4_k_m", DType::Q4_K, 15, Kind::KMedium),
    mix("q4_k_s", DType::Q4_K, 14, Kind::Q4KSmall),
    mix("iq4_nl", DType::IQ4_NL, 25, Kind::Iq4),
    mix("iq4_xs", DType::IQ4_XS, 30, Kind::Iq4),
    mix("q4_1", DType::Q4_1, 3, Kind::Uniform),
    mix("q4_0", DType::Q4_0, 2, Kind::Uniform),
    mix("q3_k_l", DType::Q3_K, 13, Kind::Q3KLarge),
    mix("q3_k_m", DType::Q3_K, 12, Kind::Q3KMedium),
    mix("q3_k_s", DType::Q3_K, 11, Kind::Q3KSmall),
    mix("iq3_m", DType::IQ3_S, 27, Kind::Iq3Medium),
    mix("iq3_s", DType::IQ3_S, 26, Kind::Iq3Small),
    mix("iq3_xs", DType::IQ3_S, 22, Kind::Iq3ExtraSmall),
    mix("iq3_xxs", DType::IQ3_XXS, 23, Kind::Iq3ExtraExtraSmall),
    mix("q2_k", DType::Q2_K, 10, Kind::Q2KMixed),
    mix("q2_k_s", DType::Q2_K, 21, Kind::Q2KSmall),
    mix("iq2_m", DType::IQ2_S, 29, Kind::Iq2),
    mix("iq2_s", DType::IQ2_XS, 28, Kind::Iq2),
    mix("iq2_xs", DType::IQ2_XS, 20, Kind::Iq2ExtraSmall),
    mix("iq2_xxs", DType::IQ2_XXS, 19, Kind::Iq2ExtraSmall),
    mix("iq1_m", DType::IQ1_M, 31, Kind::Iq1),
    mix("iq1_s", DType::IQ1_S, 24, Kind::Iq1),
    mix("tq2_0", DType::TQ2_0, 37, Kind::Ternary),
    mix("tq1_0", DType::TQ1_0, 36, Kind::Ternary),
    mix("mxfp4_moe", DType::Q8_0, 38, Kind::ExpertsMxfp4),
];

/// What a mix needs to know about a model.
#[derive(Clone, Copy, Debug)]
pub struct MixModel<'a> {
    /// `general.architecture` in GGUF.
    pub arch: &'a str,
    /// Number of layers.
    pub n_layers: usize,
    /// Query heads of a layer.
    pub n_heads: usize,
    /// Key and value heads of a layer.
    pub n_kv_heads: usize,
    /// Experts of a layer; 0 without.
    pub n_experts: usize,
    /// Whether the embedding serves as the output too.
    pub tied: bool,
    /// Whether an importance matrix says which weights matter.
    pub has_imatrix: bool,
}

impl MixModel<'_> {
    /// Whether so many query heads share keys and values that better ones cost little.
    fn wide_groups(&self) -> bool {
        self.n_heads / self.n_kv_heads.max(1) >= 4
    }

    /// In 70B models eight heads share their values, so that better ones cost nearly nothing.
    fn is_70b(&self) -> bool {
        self.n_layers == 80
            && match self.arch {
                "llama" => self.n_heads != self.n_kv_heads,
                "qwen2" => true,
                _ => false,
            }
    }
}

impl QuantMix {
    /// The mix of this name, in any letter case.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        QUANT_MIXES.iter().find(|m| m.name.eq_ignore_ascii_case(name))
    }

    /// The type for a tensor with this name in GGUF; `None` for those that keep the type they have: norms, biases, routers,
    /// learned positions and the projection to per-layer embeddings.
    ///
    /// `shape` is row-major.
    pub fn dtype_of(&self, name: &str, shape: &[usize], model: &MixModel<'_>) -> Option<DType> {
        if !is_quantizable(name, shape) {
            return None;
        }
        if self.kind == Kind::Plain {
            return Some(self.base);
        }
        let row_len = shape[shape.len() - 1];
        Some(fit(self.wanted(name, row_len, model), row_len))
    }

    fn wanted(&self, name: &str, row_len: usize, model: &MixModel<'_>) -> DType {
        if self.kind == Kind::ExpertsMxfp4 && name.contains("_exps.") {
            return DType::MXFP4;
        }
        let part = part_of(name);
        if matches!(self.kind, Kind::Iq2 | Kind::Iq2ExtraSmall | Kind::Iq1) {
            return self.wanted_in_two_bits(name, &part, row_len, model);
        }
        let layer = layer_of(name).unwrap_or(0);
        let n = model.n_layers;
        let eight_experts = model.n_experts == 8;
        let wide_groups = model.wide_groups();
        // The first eighth and the last.
        let is_outer = layer < n / 8 || layer >= 7 * n / 8;
        // Every third between them, too.
        let more_bits = is_outer || (layer - n / 8) % 3 == 2;
        match part {
            Part::Output => self.output(row_len),
            Part::Embedding if model.tied => self.output(row_len),
            Part::Values => {
                let dtype = match self.kind {
                    Kind::Q2KMixed | Kind::Q2KSmall if wide_groups => DType::Q4_K,
                    Kind::Q2KMixed => DType::Q3_K,
                    Kind::Q3KMedium if layer < 2 => DType::Q5_K,
                    Kind::Q3KMedium => DType::Q4_K,
                    Kind::Q3KLarge => DType::Q5_K,
                    Kind::Q4KSmall if layer < 4 => DType::Q5_K,
                    Kind::Iq4 if wide_groups => DType::Q5_K,
                    Kind::Iq3Medium => DType::Q4_K,
                    Kind::Iq3Small | Kind::Iq3ExtraSmall | Kind::Iq3ExtraExtraSmall if wide_groups => {
                        DType::Q4_K
                    }
                    Kind::KMedium if more_bits => DType::Q6_K,
                    _ => self.base,
                };
                match dtype {
                    _ if eight_experts => DType::Q8_0,
                    DType::Q3_K | DType::Q4_K if model.is_70b() => DType::Q5_K,
                    other => other,
                }
            }
            Part::Keys if eight_experts => DType::Q8_0,
            Part::Queries | Part::Keys if self.kind == Kind::Iq3ExtraSmall => DType::IQ3_XXS,
            Part::Queries | Part::Keys if self.kind == Kind::Iq3ExtraExtraSmall => DType::IQ2_S,
            Part::GateUp if self.kind == Kind::Iq3ExtraSmall && !is_outer => DType::IQ3_XXS,
            Part::Down => match self.kind {
                Kind::Q2KMixed => DType::Q3_K,
                Kind::Q2KSmall if layer < n / 8 => DType::Q4_K,
                Kind::Q3KMedium if layer < n / 16 => DType::Q5_K,
                Kind::Q3KMedium => DType::Q4_K,
                Kind::Q3KLarge => DType::Q5_K,
                Kind::Q4KSmall if layer < n / 8 => DType::Q5_K,
                Kind::Iq4 if layer < n / 8 && !model.has_imatrix => DType::Q5_K,
                Kind::Iq3Medium if layer < n / 8 || (eight_experts && more_bits) => DType::Q4_K,
                Kind::Uniform if layer < n / 8 && model.has_imatrix => match self.base {
                    DType::Q4_0 => DType::Q4_1,
                    DType::Q5_0 => DType::Q5_1,
                    other => other,
                },
                Kind::KMedium if more_bits => DType::Q6_K,
                _ => self.base,
            },
            Part::AttentionOutput => match self.kind {
                Kind::KMedium if eight_experts && self.base == DType::Q4_K => DType::Q5_K,
                Kind::Q2KMixed
                | Kind::Q3KSmall
                | Kind::Q3KMedium
                | Kind::Q4KSmall
                | Kind::Iq4
                | Kind::Iq3Medium
                | Kind::Iq3Small
                | Kind::Iq3ExtraSmall
                | Kind::Iq3ExtraExtraSmall
                    if eight_experts =>
                {
                    DType::Q5_K
                }
                Kind::Q2KMixed => DType::Q3_K,
                Kind::Q3KMedium | Kind::Iq3Medium => DType::Q4_K,
                Kind::Iq3ExtraExtraSmall => DType::IQ3_S,
                Kind::Q3KLarge if !eight_experts => DType::Q5_K,
                _ => self.base,
            },
            Part::Embedding if self.kind == Kind::Ternary => DType::Q4_K,
            Part::Embedding if self.kind == Kind::Iq3ExtraExtraSmall => DType::IQ3_S,
            Part::Embedding | Part::Queries | Part::Keys | Part::GateUp | Part::Other => self.base,
        }
    }

    /// As [`QuantMix::wanted`], for the mixes of about two bits and less, which spend what they have on attention.
    fn wanted_in_two_bits(&self, name: &str, part: &Part, row_len: usize, model: &MixModel<'_>) -> DType {
        let better = if self.kind == Kind::Iq2 { DType::IQ3_S } else { DType::Q2_K };
        let eight_experts = model.n_experts == 8;
        match part {
            Part::Output => self.output(row_len),
            Part::Embedding if model.tied => self.output(row_len),
            Part::Embedding => better,
            Part::Values if model.wide_groups() || model.n_experts >= 4 => DType::Q4_K,
            Part::Values => better,
            Part::Keys if eight_experts => DType::Q4_K,
            Part::Down if layer_of(name).unwrap_or(0) < model.n_layers / 8 => better,
            Part::AttentionOutput if eight_experts => DType::Q5_K,
            Part::AttentionOutput if self.kind == Kind::Iq1 => DType::IQ2_XXS,
            Part::AttentionOutput if self.kind == Kind::Iq2 => DType::IQ3_S,
            _ => self.base,
        }
    }

    fn output(&self, row_len: usize) -> DType {
        if self.base == DType::Q8_0 || !row_len.is_multiple_of(self.base.block_len()) {
            return DType::Q8_0;
        }
        match self.kind {
            Kind::Iq3ExtraExtraSmall | Kind::Iq2 | Kind::Iq2ExtraSmall | Kind::Iq1 => DType::Q5_K,
            _ => DType::Q6_K,
        }
    }
}

/// Whether a tensor can become `dtype` only with an importance matrix: with so few bits, a model is of no use where all weights count alike.
pub(crate) fn needs_imatrix(name: &str, dtype: DType) -> bool {
    !matches!(part_of(name), Part::Output | Part::Embedding)
        && matches!(
            dtype,
            DType::IQ3_XXS | DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS | DType::IQ1_M | DType::IQ1_S
        )
}

/// Whether a mix may choose a tensor's type.
fn is_quantizable(name: &str, shape: &[usize]) -> bool {
    // A matrix of one row counts as a vector.
    let n_dims = shape.iter().skip_while(|&&d| d == 1).count();
    n_dims >= 2
        && name.ends_with("weight")
        && !name.ends_with("_norm.weight")
        && !name.ends_with("ffn_gate_inp.weight")
        && !name.ends_with("ssm_conv1d.weight")
        && !name.ends_with("shortconv.conv.weight")
        && name != "position_embd.weight"
        && name != "token_types.weight"
        && name != "per_layer_model_proj.weight"
}

/// The nearest type whose blocks fill a row.
fn fit(wanted: DType, row_len: usize) -> DType {
    if row_len.is_multiple_of(wanted.block_len()) {
        return wanted;
    }
    let smaller = match wanted {
        DType::IQ1_S
        | DType::IQ1_M
        | DType::IQ2_XXS
        | DType::IQ2_XS
        | DType::IQ2_S
        | DType::IQ3_XXS
        | DType::IQ3_S
        | DType::IQ4_XS => DType::IQ4_NL,
        DType::Q2_K | DType::Q3_K | DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        other => other,
    };
    if row_len.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

enum Part {
    Output,
    Embedding,
    Values,
    Keys,
    Queries,
    AttentionOutput,
    Down,
    GateUp,
    Other,
}

fn part_of(name: &str) -> Part {
    let has = |part: &str| name.contains(part);
    match name {
        "output.weight" => Part::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Part::Embedding,
        // Queries, keys and values in one matrix count as values, and so do keys and values.
        _ if has("attn_v.weight") || has("attn_qkv.weight") || has("attn_kv_b.weight") => Part::Values,
        _ if has("attn_k.weight") => Part::Keys,
        _ if has("attn_q.weight") => Part::Queries,
        _ if has("attn_output.weight") => Part::AttentionOutput,
        _ if has("ffn_down") => Part::Down,
        _ if has("ffn_gate") || has("ffn_up") => Part::GateUp,
        _ => Part::Other,
    }
}

/// The layer in a GGUF name such as `blk.12.attn_q.weight`.
pub(crate) fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA_1B: MixModel<'_> = MixModel {
        arch: "llama",
        n_layers: 16,
        n_heads: 32,
        n_kv_heads: 8,
        n_experts: 0,
        tied: true,
        has_imatrix: false,
    };

    fn dtype(mix: &str, name: &str, shape: &[usize], model: &MixModel<'_>) -> Option<DType> {
        QuantMix::from_name(mix).expect(mix).dtype_of(name, shape, model)
    }

    #[test]
    fn names_are_unique_and_found_in_any_case() {
        for m in QUANT_MIXES {
            assert_eq!(QuantMix::from_name(&m.name.to_uppercase()), Some(m));
        }
        assert_eq!(QuantMix::from_name("q4_k"), None);
    }

    #[test]
    fn norms_biases_and_routers_keep_their_type() {
        for (name, shape) in [
            ("blk.0.attn_norm.weight", &[2048][..]),
            ("blk.0.attn_q.bias", &[2048]),
            ("blk.0.ffn_gate_inp.weight", &[8, 2048]),
            ("position_embd.weight", &[1024, 768]),
            ("blk.0.attn_q.weight", &[1, 2048]),
        ] {
            assert_eq!(dtype("q4_k_m", name, shape, &LLAMA_1B), None, "{name}");
            assert_eq!(dtype("f16", name, shape, &LLAMA_1B), None, "{name}");
        }
    }

    #[test]
    fn half_of_the_layers_have_better_values() {
        let six: Vec<usize> = (0..16)
            .filter(|i| {
                dtype("q4_k_m", &format!("blk.{i}.attn_v.weight"), &[512, 2048], &LLAMA_1B)
                    == Some(DType::Q6_K)
            })
            .collect();
        assert_eq!(six, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(dtype("q4_k_m", "blk.0.attn_q.weight", &[2048, 2048], &LLAMA_1B), Some(DType::Q4_K));
        assert_eq!(dtype("q4_k_m", "token_embd.weight", &[128256, 2048], &LLAMA_1B), Some(DType::Q6_K));
        let untied = MixModel { tied: false, ..LLAMA_1B };
        assert_eq!(dtype("q4_k_m", "token_embd.weight", &[128256, 2048], &untied), Some(DType::Q4_K));
    }

    /// What llama-quantize of llama.cpp (007dbbf) gives the matrices of a layer of a model with groups of four heads, and those of its
    /// middle layers.
    #[test]
    fn small_and_large_mixes_differ_in_values_outputs_and_the_first_layers() {
        use DType::*;
        let m = MixModel { tied: false, ..LLAMA_1B };
        for (mix, values, down, attention_output, output) in [
            ("q2_k_s", [Q4_K, Q4_K], [Q4_K, Q2_K], Q2_K, Q6_K),
            ("q3_k_s", [Q3_K, Q3_K], [Q3_K, Q3_K], Q3_K, Q6_K),
            ("q3_k_l", [Q5_K, Q5_K], [Q5_K, Q5_K], Q5_K, Q6_K),
            ("q4_k_s", [Q5_K, Q4_K], [Q5_K, Q4_K], Q4_K, Q6_K),
            ("q5_k_s", [Q5_K, Q5_K], [Q5_K, Q5_K], Q5_K, Q6_K),
            ("iq4_nl", [Q5_K, Q5_K], [Q5_K, IQ4_NL], IQ4_NL, Q6_K),
            ("iq4_xs", [Q5_K, Q5_K], [Q5_K, IQ4_XS], IQ4_XS, Q6_K),
            ("q4_1", [Q4_1, Q4_1], [Q4_1, Q4_1], Q4_1, Q6_K),
            ("q5_1", [Q5_1, Q5_1], [Q5_1, Q5_1], Q5_1, Q6_K),
            ("tq2_0", [TQ2_0, TQ2_0], [TQ2_0, TQ2_0], TQ2_0, Q6_K),
        ] {
            let of = |name: &str| dtype(mix, name, &[2048, 2048], &m).expect(name);
            for (i, layer) in [0, 8].into_iter().enumerate() {
                assert_eq!(of(&format!("blk.{layer}.attn_v.weight")), values[i], "values of {mix}");
                assert_eq!(of(&format!("blk.{layer}.ffn_down.weight")), down[i], "down of {mix}");
            }
            assert_eq!(of("blk.8.attn_output.weight"), attention_output, "{mix}");
            assert_eq!(of("output.weight"), output, "{mix}");
        }
        assert_eq!(dtype("tq1_0", "token_embd.weight", &[128256, 2048], &m), Some(Q4_K));
        let mixtral = MixModel { n_experts: 8, ..m };
        for (mix, wanted) in [("q3_k_s", Q5_K), ("q3_k_l", Q3_K), ("q4_k_s", Q5_K), ("q5_k_s", Q5_K)] {
            assert_eq!(
                dtype(mix, "blk.3.attn_output.weight", &[2048, 2048], &mixtral),
                Some(wanted),
                "{mix}"
            );
        }
        assert_eq!(dtype("iq4_xs", "blk.8.attn_q.weight", &[896, 896], &m), Some(IQ4_NL));
    }

    /// The same with an importance matrix: a layer of the first eighth, one of the middle.
    #[test]
    fn mixes_of_few_bits_spend_them_on_attention() {
        use DType::*;
        let m = MixModel { tied: false, has_imatrix: true, ..LLAMA_1B };
        let narrow = MixModel { n_kv_heads: 32, ..m };
        let names = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
        for (mix, first, middle, narrow_values, embedding, output) in [
            (
                "iq3_m",
                [IQ3_S, IQ3_S, Q4_K, Q4_K, IQ3_S, IQ3_S, Q4_K],
                [IQ3_S, IQ3_S, Q4_K, Q4_K, IQ3_S, IQ3_S, IQ3_S],
                Q4_K,
                IQ3_S,
                Q6_K,
            ),
            (
                "iq3_s",
                [IQ3_S, IQ3_S, Q4_K, IQ3_S, IQ3_S, IQ3_S, IQ3_S],
                [IQ3_S, IQ3_S, Q4_K, IQ3_S, IQ3_S, IQ3_S, IQ3_S],
                IQ3_S,
                IQ3_S,
                Q6_K,
            ),
            (
                "iq3_xs",
                [IQ3_XXS, IQ3_XXS, Q4_K, IQ3_S, IQ3_S, IQ3_S, IQ3_S],
                [IQ3_XXS, IQ3_XXS, Q4_K, IQ3_S, IQ3_XXS, IQ3_XXS, IQ3_S],
                IQ3_S,
                IQ3_S,
                Q6_K,
            ),
            (
                "iq3_xxs",
                [IQ2_S, IQ2_S, Q4_K, IQ3_S, IQ3_XXS, IQ3_XXS, IQ3_XXS],
                [IQ2_S, IQ2_S, Q4_K, IQ3_S, IQ3_XXS, IQ3_XXS, IQ3_XXS],
                IQ3_XXS,
                IQ3_S,
                Q5_K,
            ),
            (
                "iq2_m",
                [IQ2_S, IQ2_S, Q4_K, IQ3_S, IQ2_S, IQ2_S, IQ3_S],
                [IQ2_S, IQ2_S, Q4_K, IQ3_S, IQ2_S, IQ2_S, IQ2_S],
                IQ3_S,
                IQ3_S,
                Q5_K,
            ),
            (
                "iq2_s",
                [IQ2_XS, IQ2_XS, Q4_K, IQ3_S, IQ2_XS, IQ2_XS, IQ3_S],
                [IQ2_XS, IQ2_XS, Q4_K, IQ3_S, IQ2_XS, IQ2_XS, IQ2_XS],
                IQ3_S,
                IQ3_S,
                Q5_K,
            ),
            (
                "iq2_xs",
                [IQ2_XS, IQ2_XS, Q4_K, IQ2_XS, IQ2_XS, IQ2_XS, Q2_K],
                [IQ2_XS, IQ2_XS, Q4_K, IQ2_XS, IQ2_XS, IQ2_XS, IQ2_XS],
                Q2_K,
                Q2_K,
                Q5_K,
            ),
            (
                "iq2_xxs",
                [IQ2_XXS, IQ2_XXS, Q4_K, IQ2_XXS, IQ2_XXS, IQ2_XXS, Q2_K],
                [IQ2_XXS, IQ2_XXS, Q4_K, IQ2_XXS, IQ2_XXS, IQ2_XXS, IQ2_XXS],
                Q2_K,
                Q2_K,
                Q5_K,
            ),
            (
                "iq1_m",
                [IQ1_M, IQ1_M, Q4_K, IQ2_XXS, IQ1_M, IQ1_M, Q2_K],
                [IQ1_M, IQ1_M, Q4_K, IQ2_XXS, IQ1_M, IQ1_M, IQ1_M],
                Q2_K,
                Q2_K,
                Q5_K,
            ),
            (
                "iq1_s",
                [IQ1_S, IQ1_S, Q4_K, IQ2_XXS, IQ1_S, IQ1_S, Q2_K],
                [IQ1_S, IQ1_S, Q4_K, IQ2_XXS, IQ1_S, IQ1_S, IQ1_S],
                Q2_K,
                Q2_K,
                Q5_K,
            ),
        ] {
            let of = |name: &str, m| dtype(mix, name, &[2048, 2048], m).expect(name);
            for (layer, wanted) in [(0, first), (8, middle)] {
                for (name, wanted) in names.iter().zip(wanted) {
                    assert_eq!(
                        of(&format!("blk.{layer}.{name}.weight"), &m),
                        wanted,
                        "{name} of {mix} {layer}"
                    );
                }
            }
            assert_eq!(of("blk.8.attn_v.weight", &narrow), narrow_values, "{mix}");
            assert_eq!(of("token_embd.weight", &m), embedding, "{mix}");
            assert_eq!(of("output.weight", &m), output, "{mix}");
            assert_eq!(of("token_embd.weight", &MixModel { tied: true, ..m }), output, "{mix}");
            assert_eq!(dtype(mix, "blk.8.attn_q.weight", &[896, 896], &m), Some(IQ4_NL), "{mix}");
        }
        let mixtral = MixModel { n_experts: 8, ..m };
        for (mix, keys, values, output, down) in [
            ("iq3_m", Q8_0, Q8_0, Q5_K, Q4_K),
            ("iq3_s", Q8_0, Q8_0, Q5_K, IQ3_S),
            ("iq3_xs", Q8_0, Q8_0, Q5_K, IQ3_S),
            ("iq3_xxs", Q8_0, Q8_0, Q5_K, IQ3_XXS),
            ("iq2_m", Q4_K, Q4_K, Q5_K, IQ2_S),
            ("iq1_s", Q4_K, Q4_K, Q5_K, IQ1_S),
        ] {
            let of = |name: &str| dtype(mix, &format!("blk.4.{name}.weight"), &[2048, 2048], &mixtral);
            let got = ["attn_k", "attn_v", "attn_output", "ffn_down_exps"].map(of);
            assert_eq!(got, [keys, values, output, down].map(Some), "{mix}");
        }
    }

    #[test]
    fn an_importance_matrix_changes_the_first_layers() {
        use DType::*;
        let with = MixModel { has_imatrix: true, ..LLAMA_1B };
        for (mix, without, wanted) in
            [("iq4_xs", Q5_K, IQ4_XS), ("iq4_nl", Q5_K, IQ4_NL), ("q4_0", Q4_0, Q4_1), ("q5_0", Q5_0, Q5_1)]
        {
            let name = "blk.1.ffn_down.weight";
            assert_eq!(dtype(mix, name, &[2048, 8192], &LLAMA_1B), Some(without), "{mix}");
            assert_eq!(dtype(mix, name, &[2048, 8192], &with), Some(wanted), "{mix}");
        }
    }

    #[test]
    fn types_of_few_bits_need_a_matrix_but_for_embedding_and_output() {
        for dtype in [DType::IQ1_S, DType::IQ2_XS, DType::IQ3_XXS] {
            assert!(needs_imatrix("blk.0.attn_q.weight", dtype));
            assert!(!needs_imatrix("token_embd.weight", dtype));
        }
        assert!(!needs_imatrix("blk.0.attn_q.weight", DType::IQ3_S));
    }

    #[test]
    fn experts_alone_are_mxfp4() {
        let m = MixModel { arch: "gpt-oss", n_experts: 32, tied: false, ..LLAMA_1B };
        for name in ["ffn_gate_exps", "ffn_down_exps"] {
            let name = format!("blk.1.{name}.weight");
            assert_eq!(dtype("mxfp4_moe", &name, &[32, 2880, 2880], &m), Some(DType::MXFP4));
        }
        assert_eq!(dtype("mxfp4_moe", "blk.1.attn_q.weight", &[4096, 2880], &m), Some(DType::Q8_0));
        assert_eq!(dtype("mxfp4_moe", "output.weight", &[4096, 2880], &m), Some(DType::Q8_0));
    }

    #[test]
    fn rows_that_blocks_do_not_fill_get_smaller_blocks() {
        let m = MixModel { n_layers: 24, ..LLAMA_1B };
        assert_eq!(dtype("q4_k_m", "blk.3.attn_q.weight", &[896, 896], &m), Some(DType::Q5_0));
        assert_eq!(dtype("q5_k_m", "blk.3.attn_q.weight", &[896, 896], &m), Some(DType::Q5_1));
        assert_eq!(dtype("q4_k_m", "token_embd.weight", &[896, 896], &m), Some(DType::Q8_0));
        assert_eq!(dtype("q4_0", "token_embd.weight", &[896, 896], &m), Some(DType::Q8_0));
        assert_eq!(dtype("q4_0", "blk.3.attn_q.weight", &[896, 30], &m), Some(DType::F16));
    }
}
