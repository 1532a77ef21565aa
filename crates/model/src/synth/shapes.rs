//! The sizes of known models.

/// The sizes of one known model; its weights are left to [`Synth`](super::Synth).
#[derive(Clone, Debug, PartialEq)]
pub struct SynthShape {
    /// Name, such as `llama-3.1-8b`.
    pub name: &'static str,
    /// Which weights a layer has.
    pub(super) family: Family,
    /// Number of layers.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of a dense feed-forward block.
    pub intermediate_size: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens.
    pub vocab_size: usize,
    /// Longest context, in tokens.
    pub context_length: usize,
    pub(super) rope_theta: f32,
    pub(super) norm_eps: f32,
    /// Whether the embedding serves as the output too.
    pub tied: bool,
    /// Divisor of slow rotations, as in Llama 3.1.
    pub(super) llama3_factor: Option<f32>,
    /// Experts in a layer, experts per token, and an expert's width.
    pub(super) experts: Option<[usize; 3]>,
    /// Key heads, value heads and elements of a head of the gated delta rule.
    pub(super) delta: Option<[usize; 3]>,
    /// Which layers attend; the others have recurrent state.
    pub(super) attention: AttentionAt,
    /// Width of the expert that all tokens use; 0 without.
    pub(super) shared_expert: usize,
    /// Layers before the first with experts.
    pub(super) n_dense: usize,
    /// What only Gemma 4 has.
    pub(super) gemma4: Option<Gemma4>,
    /// What only models with latent attention have; the shape's head is what they keep of a token.
    pub(super) latent: Option<Latent>,
    /// Layers of Mamba-2.
    pub(super) mamba: Option<Mamba>,
}

/// What models with latent attention differ in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Latent {
    /// Width between the two matrices of queries; 0: there is one.
    pub(super) q_rank: usize,
    /// Elements of a query that do not turn, and that do.
    pub(super) nope_dim: usize,
    pub(super) rope_dim: usize,
    /// Elements of a head's value.
    pub(super) v_dim: usize,
    /// Groups of experts, and how many of them a token uses.
    pub(super) groups: [usize; 2],
    /// Whether scores of experts are sigmoids, with biases, and normalized.
    pub(super) by_sigmoid: bool,
    /// Factor on the experts' weights.
    pub(super) router_scale: f32,
    /// The multiplier of YaRN's factor on queries and keys, where rotation is stretched.
    pub(super) yarn: Option<f32>,
}

/// Sizes of layers of Mamba-2, and where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mamba {
    pub(super) n_heads: usize,
    pub(super) head_dim: usize,
    pub(super) n_groups: usize,
    pub(super) state_dim: usize,
    /// The one block of each layer: M, * for attention, - for a feed-forward block. `None`: where no layer attends, and with a feed-forward
    /// block in each.
    pub(super) blocks: Option<&'static str>,
}

/// What the sizes of Gemma 4 differ in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gemma4 {
    /// The last of each so many layers sees everything; the shape's head size is theirs.
    pub(super) every: usize,
    /// Window of the others, in tokens; the shape's key and value heads are theirs.
    pub(super) window: usize,
    /// Key and value heads of layers that see everything.
    pub(super) n_global_kv_heads: usize,
    /// Whether one matrix makes keys and values of these.
    pub(super) keys_as_values: bool,
    /// Layers at the end without keys and values of their own.
    pub(super) n_shared_kv: usize,
    /// Whether those have feed-forward blocks of twice the width.
    pub(super) wide_where_shared: bool,
    /// Elements of a layer's own embedding; 0 without.
    pub(super) per_layer_len: usize,
}

/// Which layers attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttentionAt {
    All,
    /// The last of each so many.
    Every(usize),
    These(&'static [usize]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Bert,
    Llama,
    Qwen2,
    Qwen3,
    Qwen3Moe,
    Phi2,
    Gemma2,
    Olmo2,
    Glm4,
    Cohere2,
    DeepSeek2,
    Ernie,
    Exaone4,
    Gemma,
    Gemma4,
    Glm4Moe,
    GptOss,
    Granite,
    GraniteHybrid,
    Lfm2,
    Lfm2Moe,
    MiniMaxM2,
    Mistral3,
    NemotronH,
    Olmo3,
    Phi3,
    Qwen2Moe,
    Qwen35,
    Qwen35Moe,
    Qwen3Next,
    SeedOss,
    SmolLm3,
    StarCoder2,
}

impl Family {
    /// Whether norms are LayerNorms with biases, and a feed-forward block has no gate.
    pub(super) fn is_plain(self) -> bool {
        matches!(self, Family::Bert | Family::Phi2 | Family::StarCoder2)
    }

    /// Whether norms are LayerNorms.
    pub(super) fn has_layer_norms(self) -> bool {
        self.is_plain() || self == Family::Cohere2
    }

    /// Whether the blocks of a layer lie side by side and share a norm.
    pub(super) fn is_parallel(self) -> bool {
        matches!(self, Family::Phi2 | Family::Cohere2)
    }

    /// Whether blocks have norms after them, and none before.
    pub(super) fn has_post_norms_only(self) -> bool {
        matches!(self, Family::Olmo2 | Family::Olmo3 | Family::Exaone4)
    }

    /// Whether layers of the gated delta rule stand between those of attention, whose output has a gate.
    pub(super) fn is_qwen_hybrid(self) -> bool {
        matches!(self, Family::Qwen35 | Family::Qwen35Moe | Family::Qwen3Next)
    }

    /// Whether published files have a layer that drafts tokens behind the others.
    pub(super) fn drafts(self) -> bool {
        self.is_qwen_hybrid() || self == Family::Glm4Moe
    }

    /// Whether layers of gated convolutions stand between those of attention.
    pub(super) fn has_short_convs(self) -> bool {
        matches!(self, Family::Lfm2 | Family::Lfm2Moe)
    }

    /// Whether gate and up are one matrix.
    pub(super) fn has_fused_gate(self) -> bool {
        matches!(self, Family::Glm4 | Family::Phi3)
    }

    /// `general.architecture` in GGUF.
    pub(super) fn arch(self) -> &'static str {
        match self {
            Family::Bert => "bert",
            Family::Llama => "llama",
            Family::Qwen2 => "qwen2",
            Family::Qwen3 => "qwen3",
            Family::Qwen3Moe => "qwen3moe",
            Family::Phi2 => "phi2",
            Family::Gemma2 => "gemma2",
            Family::Olmo2 | Family::Olmo3 => "olmo2",
            Family::Glm4 => "glm4",
            Family::Qwen35 => "qwen35",
            Family::Qwen35Moe => "qwen35moe",
            Family::Qwen3Next => "qwen3next",
            Family::Lfm2 => "lfm2",
            Family::Lfm2Moe => "lfm2moe",
            Family::Mistral3 => "mistral3",
            Family::SmolLm3 => "smollm3",
            Family::Gemma => "gemma",
            Family::Gemma4 => "gemma4",
            Family::Granite => "granite",
            Family::GraniteHybrid => "granitehybrid",
            Family::NemotronH => "nemotron_h",
            Family::SeedOss => "seed_oss",
            Family::Exaone4 => "exaone4",
            Family::Cohere2 => "cohere2",
            Family::DeepSeek2 => "deepseek2",
            Family::StarCoder2 => "starcoder2",
            Family::Ernie => "ernie4_5",
            Family::Phi3 => "phi3",
            Family::GptOss => "gpt-oss",
            Family::Qwen2Moe => "qwen2moe",
            Family::Glm4Moe => "glm4moe",
            Family::MiniMaxM2 => "minimax-m2",
        }
    }
}

impl SynthShape {
    /// The shape of this name, in any letter case.
    pub fn from_name(name: &str) -> Option<&'static Self> {
        SYNTH_SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(name))
    }

    /// Whether a layer attends.
    pub(super) fn attends(&self, layer: usize) -> bool {
        match self.attention {
            AttentionAt::All => true,
            AttentionAt::Every(n) => (layer + 1).is_multiple_of(n),
            AttentionAt::These(layers) => layers.contains(&layer),
        }
    }

    /// Whether experts are chosen by the sigmoid of their scores plus a bias of each.
    pub(super) fn routes_by_sigmoid(&self) -> bool {
        matches!(self.family, Family::Glm4Moe | Family::MiniMaxM2 | Family::Lfm2Moe)
            || self.latent.is_some_and(|latent| latent.by_sigmoid)
    }
}

/// Sizes in the order layers, hidden, intermediate, heads, key-value heads, head, vocabulary, context.
const fn shape(
    name: &'static str,
    family: Family,
    n: [usize; 8],
    rope_theta: f32,
    norm_eps: f32,
) -> SynthShape {
    SynthShape {
        name,
        family,
        n_layers: n[0],
        hidden_size: n[1],
        intermediate_size: n[2],
        n_heads: n[3],
        n_kv_heads: n[4],
        head_dim: n[5],
        vocab_size: n[6],
        context_length: n[7],
        rope_theta,
        norm_eps,
        tied: false,
        llama3_factor: None,
        experts: None,
        delta: None,
        attention: AttentionAt::All,
        shared_expert: 0,
        n_dense: 0,
        gemma4: None,
        latent: None,
        mamba: None,
    }
}

impl SynthShape {
    const fn tied(mut self) -> Self {
        self.tied = true;
        self
    }

    const fn llama3(mut self, factor: f32) -> Self {
        self.llama3_factor = Some(factor);
        self
    }

    const fn delta(mut self, n: [usize; 3], attention: AttentionAt) -> Self {
        self.delta = Some(n);
        self.attention = attention;
        self
    }

    const fn attends_at(mut self, layers: &'static [usize]) -> Self {
        self.attention = AttentionAt::These(layers);
        self
    }

    const fn shared_expert(mut self, width: usize) -> Self {
        self.shared_expert = width;
        self
    }

    const fn dense_first(mut self, n: usize) -> Self {
        self.n_dense = n;
        self
    }

    const fn gemma4(mut self, gemma4: Gemma4) -> Self {
        self.gemma4 = Some(gemma4);
        self
    }

    const fn latent(mut self, latent: Latent) -> Self {
        self.latent = Some(latent);
        self
    }

    const fn mamba(mut self, mamba: Mamba) -> Self {
        self.mamba = Some(mamba);
        self
    }

    const fn experts(mut self, n: [usize; 3]) -> Self {
        self.experts = Some(n);
        self
    }
}

/// The sizes of Gemma 4 without embeddings of single layers.
const GEMMA4: Gemma4 = Gemma4 {
    every: 6,
    window: 1024,
    n_global_kv_heads: 1,
    keys_as_values: true,
    n_shared_kv: 0,
    wide_where_shared: false,
    per_layer_len: 0,
};
/// Those with them.
const GEMMA4_E: Gemma4 = Gemma4 { window: 512, keys_as_values: false, per_layer_len: 256, ..GEMMA4 };

/// Latent attention of DeepSeek-V2-Lite.
const V2_LITE: Latent = Latent {
    q_rank: 0,
    nope_dim: 128,
    rope_dim: 64,
    v_dim: 128,
    groups: [1, 1],
    by_sigmoid: false,
    router_scale: 1.0,
    yarn: Some(0.707),
};
/// Of DeepSeek-V3.
const V3: Latent =
    Latent { q_rank: 1536, groups: [8, 4], by_sigmoid: true, router_scale: 2.5, yarn: Some(1.0), ..V2_LITE };
/// Of GLM-4.7-Flash.
const GLM_FLASH: Latent =
    Latent { q_rank: 768, nope_dim: 192, v_dim: 256, groups: [1, 1], router_scale: 1.8, yarn: None, ..V3 };
const NEMOTRON_H_8B: Mamba = Mamba {
    n_heads: 128,
    head_dim: 64,
    n_groups: 8,
    state_dim: 128,
    blocks: Some("M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"),
};
const GRANITE_4_H_TINY: Mamba =
    Mamba { n_heads: 48, head_dim: 64, n_groups: 1, state_dim: 128, blocks: None };

/// The known models. Source: their published `config.json`.
#[rustfmt::skip]
pub static SYNTH_SHAPES: &[SynthShape] = &[
    shape("tinyllama-1.1b", Family::Llama, [22, 2048, 5632, 32, 4, 64, 32000, 2048], 1e4, 1e-5),
    shape("llama-3.2-1b", Family::Llama, [16, 2048, 8192, 32, 8, 64, 128256, 131072], 5e5, 1e-5).tied().llama3(32.0),
    shape("llama-3.1-8b", Family::Llama, [32, 4096, 14336, 32, 8, 128, 128256, 131072], 5e5, 1e-5).llama3(8.0),
    shape("llama-3.1-70b", Family::Llama, [80, 8192, 28672, 64, 8, 128, 128256, 131072], 5e5, 1e-5).llama3(8.0),
    shape("mistral-7b", Family::Llama, [32, 4096, 14336, 32, 8, 128, 32768, 32768], 1e6, 1e-5),
    shape("qwen2.5-0.5b", Family::Qwen2, [24, 896, 4864, 14, 2, 64, 151936, 32768], 1e6, 1e-6).tied(),
    shape("qwen2.5-1.5b", Family::Qwen2, [28, 1536, 8960, 12, 2, 128, 151936, 32768], 1e6, 1e-6).tied(),
    shape("qwen2.5-7b", Family::Qwen2, [28, 3584, 18944, 28, 4, 128, 152064, 32768], 1e6, 1e-6),
    shape("qwen3-0.6b", Family::Qwen3, [28, 1024, 3072, 16, 8, 128, 151936, 40960], 1e6, 1e-6).tied(),
    shape("qwen3-8b", Family::Qwen3, [36, 4096, 12288, 32, 8, 128, 151936, 40960], 1e6, 1e-6),
    shape("qwen3-30b-a3b", Family::Qwen3Moe, [48, 2048, 6144, 32, 4, 128, 151936, 40960], 1e6, 1e-6)
        .experts([128, 8, 768]),
    shape("qwen1.5-moe-a2.7b", Family::Qwen2Moe, [24, 2048, 5632, 16, 16, 128, 151936, 8192], 1e6, 1e-6)
        .experts([60, 4, 1408]).shared_expert(5632),
    shape("gpt-oss-20b", Family::GptOss, [24, 2880, 2880, 64, 8, 64, 201088, 131072], 1.5e5, 1e-5).experts([32, 4, 2880]),
    shape("gpt-oss-120b", Family::GptOss, [36, 2880, 2880, 64, 8, 64, 201088, 131072], 1.5e5, 1e-5).experts([128, 4, 2880]),
    shape("glm-4.5-air", Family::Glm4Moe, [46, 4096, 10944, 96, 8, 128, 151552, 131072], 1e6, 1e-5)
        .experts([128, 8, 1408]).shared_expert(1408).dense_first(1),
    shape("deepseek-v2-lite", Family::DeepSeek2, [27, 2048, 10944, 16, 1, 576, 102400, 163840], 1e4, 1e-6)
        .experts([64, 6, 1408]).shared_expert(2816).dense_first(1).latent(V2_LITE),
    // Of its 61 layers.
    shape("deepseek-v3-5-layers", Family::DeepSeek2, [5, 7168, 18432, 128, 1, 576, 129280, 163840], 1e4, 1e-6)
        .experts([256, 8, 2048]).shared_expert(2048).dense_first(3).latent(V3),
    shape("glm-4.7-flash", Family::DeepSeek2, [47, 2048, 10240, 20, 1, 576, 154880, 202752], 1e6, 1e-5)
        .experts([64, 4, 1536]).shared_expert(1536).dense_first(1).latent(GLM_FLASH),
    // Of its 62 layers.
    shape("minimax-m2-8-layers", Family::MiniMaxM2, [8, 3072, 1536, 48, 8, 128, 200064, 196608], 5e6, 1e-6)
        .experts([256, 8, 1536]),
    // Of its 48 layers.
    shape("qwen3-30b-a3b-8-layers", Family::Qwen3Moe, [8, 2048, 6144, 32, 4, 128, 151936, 40960], 1e6, 1e-6)
        .experts([128, 8, 768]),
    // Of its 24 layers.
    shape("gpt-oss-20b-6-layers", Family::GptOss, [6, 2880, 2880, 64, 8, 64, 201088, 131072], 1.5e5, 1e-5)
        .experts([32, 4, 2880]),
    shape("phi-2", Family::Phi2, [32, 2560, 10240, 32, 32, 80, 51200, 2048], 1e4, 1e-5),
    shape("olmo-2-7b", Family::Olmo2, [32, 4096, 11008, 32, 32, 128, 100352, 4096], 5e5, 1e-6),
    shape("glm-4-9b", Family::Glm4, [40, 4096, 13696, 32, 2, 128, 151552, 32768], 1e4, 1e-5),
    shape("qwen3.5-0.8b", Family::Qwen35, [24, 1024, 3584, 8, 2, 256, 248320, 262144], 1e7, 1e-6)
        .tied().delta([16, 16, 128], AttentionAt::Every(4)),
    shape("qwen3.5-4b", Family::Qwen35, [32, 2560, 9216, 16, 4, 256, 248320, 262144], 1e7, 1e-6)
        .tied().delta([16, 32, 128], AttentionAt::Every(4)),
    shape("qwen3.5-9b", Family::Qwen35, [32, 4096, 12288, 16, 4, 256, 248320, 262144], 1e7, 1e-6)
        .delta([16, 32, 128], AttentionAt::Every(4)),
    shape("qwen3.5-27b", Family::Qwen35, [64, 5120, 17408, 24, 4, 256, 248320, 262144], 1e7, 1e-6)
        .delta([16, 48, 128], AttentionAt::Every(4)),
    shape("qwen3.6-35b-a3b", Family::Qwen35Moe, [40, 2048, 512, 16, 2, 256, 248320, 262144], 1e7, 1e-6)
        .experts([256, 8, 512]).shared_expert(512).delta([16, 32, 128], AttentionAt::Every(4)),
    shape("qwen3-next-80b-a3b", Family::Qwen3Next, [48, 2048, 5120, 16, 2, 256, 151936, 262144], 1e7, 1e-6)
        .experts([512, 10, 512]).shared_expert(512).delta([16, 32, 128], AttentionAt::Every(4)),
    shape("lfm2-1.2b", Family::Lfm2, [16, 2048, 8192, 32, 8, 64, 65536, 128000], 1e6, 1e-5)
        .tied().attends_at(&[2, 5, 8, 10, 12, 14]),
    shape("lfm2-8b-a1b", Family::Lfm2Moe, [24, 2048, 7168, 32, 8, 64, 65536, 128000], 1e6, 1e-5)
        .tied().attends_at(&[2, 6, 10, 14, 18, 21]).experts([32, 4, 1792]).dense_first(2),
    shape("nemotron-h-8b", Family::NemotronH, [52, 4096, 21504, 32, 8, 128, 131072, 8192], 1e4, 1e-5)
        .mamba(NEMOTRON_H_8B),
    shape("granite-4-h-tiny", Family::GraniteHybrid, [40, 1536, 512, 12, 4, 128, 100352, 131072], 1e4, 1e-5)
        .tied().attends_at(&[5, 15, 25, 35]).experts([64, 6, 512]).shared_expert(1024).mamba(GRANITE_4_H_TINY),
    shape("mistral-small-24b", Family::Llama, [40, 5120, 32768, 32, 8, 128, 131072, 32768], 1e8, 1e-5),
    shape("ministral-3-8b", Family::Mistral3, [34, 4096, 14336, 32, 8, 128, 131072, 262144], 1e6, 1e-5),
    shape("smollm3-3b", Family::SmolLm3, [36, 2048, 11008, 16, 4, 128, 128256, 65536], 5e6, 1e-6).tied(),
    shape("olmo-3-7b", Family::Olmo3, [32, 4096, 11008, 32, 32, 128, 100278, 65536], 5e5, 1e-6),
    shape("granite-3.3-8b", Family::Granite, [40, 4096, 12800, 32, 8, 128, 49159, 131072], 1e7, 1e-5).tied(),
    shape("seed-oss-36b", Family::SeedOss, [64, 5120, 27648, 80, 8, 128, 155136, 524288], 1e7, 1e-6),
    shape("exaone-4-32b", Family::Exaone4, [64, 5120, 27392, 40, 8, 128, 102400, 131072], 1e6, 1e-5),
    shape("command-r7b", Family::Cohere2, [32, 4096, 14336, 32, 8, 128, 256000, 132096], 5e4, 1e-5).tied(),
    shape("starcoder2-7b", Family::StarCoder2, [32, 4608, 18432, 36, 4, 128, 49152, 16384], 1e6, 1e-5).tied(),
    shape("ernie-4.5-0.3b", Family::Ernie, [18, 1024, 3072, 16, 2, 128, 103424, 131072], 5e5, 1e-5).tied(),
    shape("phi-4", Family::Phi3, [40, 5120, 17920, 40, 10, 128, 100352, 16384], 2.5e5, 1e-5),
    shape("gemma-7b", Family::Gemma, [28, 3072, 24576, 16, 16, 256, 256000, 8192], 1e4, 1e-6).tied(),
    shape("gemma-2-9b", Family::Gemma2, [42, 3584, 14336, 16, 8, 256, 256000, 8192], 1e4, 1e-6).tied(),
    shape("gemma-4-e2b", Family::Gemma4, [35, 1536, 6144, 8, 1, 512, 262144, 131072], 1e6, 1e-6).tied()
        .gemma4(Gemma4 { every: 5, n_shared_kv: 20, wide_where_shared: true, ..GEMMA4_E }),
    shape("gemma-4-e4b", Family::Gemma4, [42, 2560, 10240, 8, 2, 512, 262144, 131072], 1e6, 1e-6).tied()
        .gemma4(Gemma4 { n_global_kv_heads: 2, n_shared_kv: 18, ..GEMMA4_E }),
    shape("gemma-4-12b", Family::Gemma4, [48, 3840, 15360, 16, 8, 512, 262144, 262144], 1e6, 1e-6).tied().gemma4(GEMMA4),
    shape("gemma-4-31b", Family::Gemma4, [60, 5376, 21504, 32, 16, 512, 262144, 262144], 1e6, 1e-6).tied()
        .gemma4(Gemma4 { n_global_kv_heads: 4, ..GEMMA4 }),
    shape("gemma-4-26b-a4b", Family::Gemma4, [30, 2816, 2112, 16, 8, 512, 262144, 262144], 1e6, 1e-6).tied()
        .gemma4(Gemma4 { n_global_kv_heads: 2, ..GEMMA4 }).experts([128, 8, 704]),
    // Encoders.
    shape("bge-base", Family::Bert, [12, 768, 3072, 12, 12, 64, 30522, 512], 1e4, 1e-12).tied(),
    shape("bge-m3", Family::Bert, [24, 1024, 4096, 16, 16, 64, 250002, 8192], 1e4, 1e-5).tied(),
];
