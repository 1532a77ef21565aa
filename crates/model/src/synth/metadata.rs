//! The metadata of a synthetic model: hyper-parameters, and a vocabulary of all bytes, padded to the real size.

use super::shapes::{Family, SynthShape};
use super::{DELTA_CONV_WIDTH, SHORT_CONV_WIDTH};
use crate::Result;
use crate::metadata::{Metadata, Strings};
use crate::quant_mix::QuantMix;
use std::path::Path;

pub(super) fn metadata(path: &Path, s: &SynthShape, mix: &QuantMix) -> Result<Metadata> {
    let mut m = Metadata::new(path);
    let arch = s.family.arch();
    m.insert("general.architecture", arch)?;
    m.insert("general.name", format!("{} with random weights", s.name))?;
    m.insert("general.file_type", mix.file_type)?;
    m.insert("general.quantization_version", 2u32)?;
    let counts = [
        ("block_count", s.n_layers + usize::from(s.family.drafts())),
        ("context_length", s.context_length),
        ("embedding_length", s.hidden_size),
        ("attention.head_count", s.n_heads),
        ("attention.key_length", s.head_dim),
        ("attention.value_length", s.latent.map_or(s.head_dim, |latent| s.head_dim - latent.rope_dim)),
        ("vocab_size", s.vocab_size),
        ("rope.dimension_count", rotated(s)),
    ];
    for (key, n) in counts {
        m.insert(format!("{arch}.{key}"), n as u32)?;
    }
    if s.family.drafts() {
        m.insert(format!("{arch}.nextn_predict_layers"), 1u32)?;
    }
    per_layer(&mut m, s)?;
    recurrent_layers(&mut m, s)?;
    let eps = if s.family.has_layer_norms() { "layer_norm_epsilon" } else { "layer_norm_rms_epsilon" };
    m.insert(format!("{arch}.attention.{eps}"), s.norm_eps)?;
    m.insert(format!("{arch}.rope.freq_base"), s.rope_theta)?;
    experts(&mut m, s)?;
    if s.family == Family::GptOss {
        m.insert(format!("{arch}.attention.sliding_window"), 128u32)?;
        m.insert(format!("{arch}.rope.scaling.type"), "yarn")?;
        m.insert(format!("{arch}.rope.scaling.factor"), 32f32)?;
        m.insert(format!("{arch}.rope.scaling.original_context_length"), 4096u32)?;
    }
    if s.family == Family::Gemma2 {
        m.insert(format!("{arch}.attn_logit_softcapping"), 50f32)?;
        m.insert(format!("{arch}.final_logit_softcapping"), 30f32)?;
        m.insert(format!("{arch}.attention.sliding_window"), 4096u32)?;
    }
    if s.family == Family::Bert {
        super::bert::metadata(&mut m)?;
    }
    let mut float = |key: &str, value: f32| m.insert(format!("{arch}.{key}"), value);
    match s.family {
        Family::Granite | Family::GraniteHybrid => {
            float("embedding_scale", 12.0)?;
            float("residual_scale", 0.22)?;
            float("attention.scale", 0.007_812_5)?;
            float("logit_scale", if s.mamba.is_some() { 6.0 } else { 16.0 })?;
        }
        Family::Cohere2 => float("logit_scale", 0.25)?,
        Family::Mistral3 => {
            float("attention.temperature_scale", 0.1)?;
            float("rope.scaling.yarn_log_multiplier", 1.0)?;
        }
        _ => {}
    }
    context(&mut m, s)?;
    vocabulary(&mut m, s)?;
    Ok(m)
}

/// What some families state for each layer.
fn per_layer(m: &mut Metadata, s: &SynthShape) -> Result<()> {
    if let Some(gemma4) = s.gemma4 {
        return gemma4.metadata(m, s);
    }
    if let Some(mamba) = s.mamba {
        return mamba.metadata(m, s);
    }
    let arch = s.family.arch();
    m.insert(format!("{arch}.feed_forward_length"), s.intermediate_size as u32)?;
    let kv_heads = format!("{arch}.attention.head_count_kv");
    if !s.family.has_short_convs() {
        return m.insert(kv_heads, s.n_kv_heads as u32);
    }
    // Layers without heads of keys and values convolve.
    let list = (0..s.n_layers).map(|i| if s.attends(i) { s.n_kv_heads as i32 } else { 0 });
    m.insert(kv_heads, list.collect::<Vec<i32>>())?;
    m.insert(format!("{arch}.shortconv.l_cache"), SHORT_CONV_WIDTH as u32)
}

/// The gated delta rule.
fn recurrent_layers(m: &mut Metadata, s: &SynthShape) -> Result<()> {
    let arch = s.family.arch();
    if let Some([n_k_heads, n_v_heads, dim]) = s.delta {
        let counts = [
            ("conv_kernel", DELTA_CONV_WIDTH),
            ("state_size", dim),
            ("group_count", n_k_heads),
            ("time_step_rank", n_v_heads),
            ("inner_size", n_v_heads * dim),
        ];
        for (key, n) in counts {
            m.insert(format!("{arch}.ssm.{key}"), n as u32)?;
        }
        m.insert(format!("{arch}.full_attention_interval"), 4u32)?;
        m.insert(format!("{arch}.rope.dimension_sections"), vec![11, 11, 10, 0])?;
    }
    Ok(())
}

fn experts(m: &mut Metadata, s: &SynthShape) -> Result<()> {
    let arch = s.family.arch();
    if let Some(latent) = s.latent {
        latent.metadata(m, s)?;
    }
    if let Some([n_experts, n_used, width]) = s.experts {
        m.insert(format!("{arch}.expert_count"), n_experts as u32)?;
        m.insert(format!("{arch}.expert_used_count"), n_used as u32)?;
        m.insert(format!("{arch}.expert_feed_forward_length"), width as u32)?;
        let by_sigmoid = s.routes_by_sigmoid();
        if by_sigmoid || s.latent.is_some() {
            m.insert(format!("{arch}.expert_gating_func"), if by_sigmoid { 2u32 } else { 1 })?;
        }
        if s.n_dense > 0 {
            m.insert(format!("{arch}.leading_dense_block_count"), s.n_dense as u32)?;
        }
        if matches!(s.family, Family::Glm4Moe | Family::DeepSeek2) {
            m.insert(format!("{arch}.expert_shared_count"), (s.shared_expert / width) as u32)?;
        } else if s.shared_expert > 0 {
            m.insert(format!("{arch}.expert_shared_feed_forward_length"), s.shared_expert as u32)?;
        }
    }
    Ok(())
}

/// Windows, and rotation that is stretched.
fn context(m: &mut Metadata, s: &SynthShape) -> Result<()> {
    let arch = s.family.arch();
    if matches!(s.family, Family::Olmo3 | Family::Exaone4 | Family::Cohere2) {
        m.insert(format!("{arch}.attention.sliding_window"), 4096u32)?;
        let slides: Vec<bool> = (1..=s.n_layers).map(|i| !i.is_multiple_of(4)).collect();
        m.insert(format!("{arch}.attention.sliding_window_pattern"), slides)?;
    }
    // The factor of YaRN, and the context of the first training.
    let stretched = match s.family {
        Family::Mistral3 => Some((16f32, 16384u32)),
        Family::Olmo3 => Some((8f32, 8192u32)),
        _ => None,
    };
    if let Some((factor, trained)) = stretched {
        m.insert(format!("{arch}.rope.scaling.type"), "yarn")?;
        m.insert(format!("{arch}.rope.scaling.factor"), factor)?;
        m.insert(format!("{arch}.rope.scaling.original_context_length"), trained)?;
    }
    Ok(())
}

/// Elements of a head that turn.
fn rotated(s: &SynthShape) -> usize {
    match s.family {
        Family::Phi2 => s.head_dim * 2 / 5,
        Family::Glm4 | Family::Glm4Moe | Family::MiniMaxM2 => s.head_dim / 2,
        _ if s.family.is_qwen_hybrid() => s.head_dim / 4,
        Family::DeepSeek2 => s.latent.map_or(s.head_dim, |latent| latent.rope_dim),
        _ => s.head_dim,
    }
}

/// Kinds of tokens, as GGUF numbers them.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

fn vocabulary(m: &mut Metadata, s: &SynthShape) -> Result<()> {
    let pre = match s.family {
        Family::Llama if s.llama3_factor.is_some() => "llama-bpe",
        Family::Qwen2 | Family::Qwen3 | Family::Qwen2Moe | Family::Qwen3Moe | Family::Qwen3Next => "qwen2",
        Family::Qwen35 | Family::Qwen35Moe => "qwen35",
        Family::Lfm2 | Family::Lfm2Moe => "lfm2",
        Family::Olmo2 | Family::Olmo3 | Family::Phi3 => "dbrx",
        Family::Mistral3 => "tekken",
        Family::SmolLm3 => "llama-bpe",
        Family::Granite => "refact",
        Family::GraniteHybrid => "dbrx",
        Family::NemotronH => "pixtral",
        Family::SeedOss => "seed-coder",
        Family::Exaone4 => "exaone4",
        Family::Cohere2 => "command-r",
        Family::StarCoder2 => "starcoder",
        Family::Glm4 | Family::Glm4Moe => "glm4",
        Family::GptOss => "gpt-4o",
        Family::MiniMaxM2 => "minimax-m2",
        _ => "gpt-2",
    };
    let mut tokens: Vec<String> = (0..=255u8).map(|b| byte_token(b).to_string()).collect();
    // Readers insist on at least one merge.
    let (space, a) = (byte_token(b' '), byte_token(b'a'));
    tokens.push(format!("{space}a"));
    tokens.extend((tokens.len()..s.vocab_size - 2).map(|i| format!("<unused{i}>")));
    tokens.extend(["<bos>".to_owned(), "<eos>".to_owned()]);
    let mut types = vec![NORMAL; s.vocab_size];
    types[s.vocab_size - 2..].fill(CONTROL);
    m.insert("tokenizer.ggml.model", "gpt2")?;
    m.insert("tokenizer.ggml.pre", pre)?;
    m.insert("tokenizer.ggml.tokens", tokens.into_iter().collect::<Strings>())?;
    m.insert("tokenizer.ggml.token_type", types)?;
    m.insert("tokenizer.ggml.merges", Strings::from_iter([format!("{space} {a}")]))?;
    m.insert("tokenizer.ggml.bos_token_id", (s.vocab_size - 2) as u32)?;
    m.insert("tokenizer.ggml.eos_token_id", (s.vocab_size - 1) as u32)?;
    m.insert("tokenizer.ggml.add_bos_token", false)
}

/// The character that stands for a byte in byte-level BPE: itself where it prints, else one from U+0100 on.
fn byte_token(byte: u8) -> char {
    let prints = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    if prints(byte) {
        return char::from(byte);
    }
    let nth = (0..byte).filter(|&b| !prints(b)).count() as u32;
    char::from_u32(0x100 + nth).expect("below the surrogates")
}
