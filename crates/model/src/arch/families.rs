//! What people call the architectures.

/// Our names, and the families that have them.
pub(super) static FAMILIES: &[(&str, &str)] = &[
    ("llama", "Llama, or Mistral in Llama's form"),
    ("mistral", "Mistral"),
    ("mistral3", "Mistral Small 3, Ministral 3, Devstral or Magistral"),
    ("mixtral", "Mixtral"),
    ("qwen2", "Qwen2, Qwen2.5, or the text part of their VL models"),
    ("qwen3", "Qwen3, or the text part of Qwen3-VL"),
    ("qwen3moe", "Qwen3 MoE"),
    ("phi2", "Phi-1.5 or Phi-2"),
    ("phi3", "Phi-3, Phi-3.5 or Phi-4"),
    ("gemma", "Gemma"),
    ("gemma2", "Gemma 2"),
    ("gemma3", "Gemma 3"),
    ("gpt2", "GPT-2"),
    ("bitnet", "BitNet b1.58"),
    ("glm4", "GLM-4-0414 or GLM-Z1"),
    ("olmo2", "OLMo 2"),
    ("olmo3", "OLMo 3"),
    ("smollm3", "SmolLM3"),
    ("granite", "Granite 3, or Granite 4 without Mamba layers"),
    ("seed_oss", "Seed-OSS"),
    ("exaone4", "EXAONE 4"),
    ("cohere2", "Command R7B or Command A"),
    ("starcoder2", "StarCoder2"),
    ("ernie4_5", "ERNIE 4.5 dense"),
];
