//! Families that are known by name and not supported: what each would need, so that an error can say it.

/// A family that this program does not run.
pub(super) struct UnsupportedFamily {
    /// What people call it.
    pub(super) family: &'static str,
    /// `general.architecture` in GGUF and `architectures` in `config.json`.
    pub(super) names: &'static [&'static str],
    /// What it has that this program lacks.
    pub(super) needs: &'static str,
}

const fn family(
    family: &'static str,
    names: &'static [&'static str],
    needs: &'static str,
) -> UnsupportedFamily {
    UnsupportedFamily { family, names, needs }
}

/// Nothing else.
const DESCRIPTION: &str = "a description of its layers, all of which are of known kinds";
const BOTH_WAYS: &str = "attention in both directions, since it makes embeddings and no text";
const MAMBA: &str = "Mamba layers";
const SECTIONS: &str = "positions in sections, one for each dimension of an image";
const SPEECH: &str = "generation of sound";

/// All known families that are not supported. A name stands here or in [`ARCHS`](super::ARCHS).
pub(super) static UNSUPPORTED: &[UnsupportedFamily] = &[
    family(
        "DeepSeek V3.2",
        &["deepseek32", "DeepseekV32ForCausalLM"],
        "latent attention and an indexer of keys",
    ),
    family(
        "DeepSeek V4",
        &["deepseek4", "DeepseekV4ForCausalLM"],
        "hyper-connections and an indexer of keys",
    ),
    family("DeepSeek MoE", &["deepseek", "DeepseekForCausalLM"], DESCRIPTION),
    family(
        "DeepSeek OCR",
        &["deepseek2-ocr", "DeepseekOCRForCausalLM", "DeepseekOCR2ForCausalLM"],
        "an image encoder",
    ),
    family(
        "GLM-5",
        &["glm-dsa", "glm5-next", "GlmMoeDsaForCausalLM", "Glm5NextForConditionalGeneration"],
        "latent attention and an indexer of keys",
    ),
    family(
        "GLM-4V",
        &[
            "Glm4vForConditionalGeneration",
            "Glm4vMoeForConditionalGeneration",
            "GlmOcrForConditionalGeneration",
        ],
        SECTIONS,
    ),
    family(
        "Kimi Linear",
        &["kimi-linear", "KimiLinearForCausalLM"],
        "Kimi delta attention and latent attention",
    ),
    family(
        "Kimi K3",
        &["kimi-k3", "KimiK3ForConditionalGeneration"],
        "Kimi delta attention and latent attention",
    ),
    family(
        "Qwen3.8-Flash-Next",
        &["qwen4exp", "Qwen4ExpForCausalLM", "Qwen4ExpForConditionalGeneration"],
        "n-gram embeddings, hyper-connections and an indexer of keys",
    ),
    family(
        "Qwen3-VL MoE",
        &["qwen3vlmoe", "Qwen3VLMoeForConditionalGeneration"],
        "matrices of all experts in one tensor, transposed",
    ),
    family("Qwen3-TTS", &["qwen3tts", "Qwen3TTSForConditionalGeneration"], SPEECH),
    family(
        "Gemma 3n",
        &["gemma3n", "Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"],
        "alternating updates (AltUp) and learned residuals of low rank (LAuReL)",
    ),
    family(
        "MiniMax M1 or Text-01",
        &["minimax-01", "MiniMaxText01ForCausalLM", "MiniMaxM1ForCausalLM"],
        "lightning attention",
    ),
    family(
        "MiniMax M3",
        &["minimax-m3", "MiniMaxM3SparseForCausalLM", "MiniMaxM3SparseForConditionalGeneration"],
        "an indexer of keys",
    ),
    family("Bamba", &["BambaForCausalLM"], DESCRIPTION),
    family(
        "Granite with sliding windows",
        &["granite_swa", "graniteswitch", "GraniteSWAForCausalLM", "GraniteMoeSWAForCausalLM"],
        DESCRIPTION,
    ),
    family(
        "Llama 4",
        &["llama4", "Llama4ForCausalLM", "Llama4ForConditionalGeneration"],
        "attention in chunks, and norms of query and key heads after their rotation",
    ),
    family("Hunyuan A13B", &["hunyuan-moe", "HunYuanMoEV1ForCausalLM"], DESCRIPTION),
    family("Hunyuan VL", &["hunyuan_vl", "HunYuanVLForConditionalGeneration"], SECTIONS),
    family("Hunyuan 3", &["hy_v3", "HYV3ForCausalLM"], DESCRIPTION),
    family(
        "Hunyuan 4",
        &["hy_v4", "HYV4ForCausalLM"],
        "latent attention, hyper-connections and an indexer of keys",
    ),
    family("PaddleOCR-VL", &["paddleocr", "PaddleOCRVLForConditionalGeneration"], SECTIONS),
    family("K-EXAONE", &["exaone-moe", "ExaoneMoEForCausalLM", "ExaoneMoeForCausalLM"], DESCRIPTION),
    family("Command A MoE", &["cohere2moe", "Cohere2MoeForCausalLM"], "experts beside attention"),
    family(
        "Phi-3.5-MoE",
        &["phimoe", "PhiMoEForCausalLM"],
        "a router that chooses experts one after the other",
    ),
    family("DBRX", &["dbrx", "DbrxForCausalLM"], "clamped queries, keys and values"),
    family("OLMo 1", &["olmo", "OlmoForCausalLM", "OLMoForCausalLM"], "norms without weights"),
    family("Falcon-H1", &["falcon-h1", "FalconH1ForCausalLM"], "Mamba-2 heads beside those of attention"),
    family("Jamba", &["jamba", "JambaForCausalLM"], MAMBA),
    family(
        "Mamba",
        &[
            "mamba",
            "mamba2",
            "MambaForCausalLM",
            "MambaLMHeadModel",
            "Mamba2ForCausalLM",
            "FalconMambaForCausalLM",
        ],
        MAMBA,
    ),
    family(
        "RWKV",
        &[
            "rwkv6",
            "rwkv7",
            "arwkv7",
            "rwkv6qwen2",
            "Rwkv6ForCausalLM",
            "Rwkv7ForCausalLM",
            "RWKV7ForCausalLM",
        ],
        "RWKV layers",
    ),
    family("Apertus", &["apertus", "ApertusForCausalLM"], "the activation xIELU"),
    family(
        "MiMo V2",
        &["mimo2", "MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        "attention sinks, and value heads smaller than key heads",
    ),
    family(
        "Grok",
        &["grok", "GrokForCausalLM", "Grok1ForCausalLM"],
        "dense blocks beside experts, and a router with a soft cap",
    ),
    family("GPT-NeoX or Pythia", &["gptneox", "GPTNeoXForCausalLM"], "two norms before blocks side by side"),
    family("BLOOM", &["bloom", "BloomForCausalLM", "BloomModel"], "ALiBi"),
    family("MPT", &["mpt", "MPTForCausalLM"], "ALiBi"),
    family(
        "diffusion models",
        &["llada", "llada-moe", "dream", "rnd1", "LLaDAModelLM", "DreamModel"],
        "generation by diffusion",
    ),
    family(
        "draft models",
        &[
            "eagle3",
            "dflash",
            "gemma4-assistant",
            "Gemma4AssistantForCausalLM",
            "Gemma4UnifiedAssistantForCausalLM",
            "LlamaForCausalLMEagle3",
            "Eagle3LlamaForCausalLM",
        ],
        "the hidden states of the model that it drafts for",
    ),
    family(
        "T5",
        &["t5", "t5encoder", "T5ForConditionalGeneration", "T5EncoderModel", "UMT5ForConditionalGeneration"],
        "an encoder, and attention to what it has read",
    ),
    family("NeoBERT", &["neo-bert", "NeoBERT"], BOTH_WAYS),
    family("EuroBERT", &["eurobert", "EuroBertModel"], BOTH_WAYS),
    family("Llama-Embed-Nemotron", &["llama-embed", "LlamaBidirectionalModel"], BOTH_WAYS),
    family("an image encoder", &["clip", "InternVisionModel", "RADIOModel"], "images"),
];
