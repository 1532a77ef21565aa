//! Which element type each tensor of a GGUF file gets when a model is quantized "as Q4_K_M".
//!
//! A mix has one type for most matrices and better ones where errors cost most: values of attention, the last matrix of the
//! feed-forward block, the output. The assignment is llama-quantize's (without an importance matrix), so that files have the
//! same types as others of that name.

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
    mix("q2_k", DType::Q2_K, 10, Kind::Q2KMixed),
    mix("q2_k_s", DType::Q2_K, 21, Kind::Q2KSmall),
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
}

impl MixModel<'_> {
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
        let layer = layer_of(name).unwrap_or(0);
        let n = model.n_layers;
        let eight_experts = model.n_experts == 8;
        let wide_groups = model.n_heads / model.n_kv_heads.max(1) >= 4;
        // The first eighth, the last eighth, and every third between them.
        let more_bits = layer < n / 8 || layer >= 7 * n / 8 || (layer - n / 8) % 3 == 2;
        match part_of(name) {
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
            Part::Down => match self.kind {
                Kind::Q2KMixed => DType::Q3_K,
                Kind::Q2KSmall if layer < n / 8 => DType::Q4_K,
                Kind::Q3KMedium if layer < n / 16 => DType::Q5_K,
                Kind::Q3KMedium => DType::Q4_K,
                Kind::Q3KLarge => DType::Q5_K,
                Kind::Q4KSmall | Kind::Iq4 if layer < n / 8 => DType::Q5_K,
                Kind::KMedium if more_bits => DType::Q6_K,
                _ => self.base,
            },
            Part::AttentionOutput => match self.kind {
                Kind::KMedium if eight_experts && self.base == DType::Q4_K => DType::Q5_K,
                Kind::Q2KMixed | Kind::Q3KSmall | Kind::Q3KMedium | Kind::Q4KSmall | Kind::Iq4
                    if eight_experts =>
                {
                    DType::Q5_K
                }
                Kind::Q2KMixed => DType::Q3_K,
                Kind::Q3KMedium => DType::Q4_K,
                Kind::Q3KLarge if !eight_experts => DType::Q5_K,
                _ => self.base,
            },
            Part::Embedding if self.kind == Kind::Ternary => DType::Q4_K,
            Part::Embedding | Part::Keys | Part::Other => self.base,
        }
    }

    fn output(&self, row_len: usize) -> DType {
        if self.base == DType::Q8_0 || !row_len.is_multiple_of(self.base.block_len()) {
            DType::Q8_0
        } else {
            DType::Q6_K
        }
    }
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
        DType::IQ4_XS => DType::IQ4_NL,
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
    AttentionOutput,
    Down,
    Other,
}

fn part_of(name: &str) -> Part {
    let has = |part: &str| name.contains(part);
    match name {
        "output.weight" => Part::Output,
        "token_embd.weight" | "per_layer_token_embd.weight" => Part::Embedding,
        // Queries, keys and values in one matrix count as values.
        _ if has("attn_v.weight") || has("attn_qkv.weight") => Part::Values,
        _ if has("attn_k.weight") => Part::Keys,
        _ if has("attn_output.weight") => Part::AttentionOutput,
        _ if has("ffn_down") => Part::Down,
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

    const LLAMA_1B: MixModel<'_> =
        MixModel { arch: "llama", n_layers: 16, n_heads: 32, n_kv_heads: 8, n_experts: 0, tied: true };

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
