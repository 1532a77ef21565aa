//! The metadata of a converted model: hyper-parameters, tokenizer and chat template under GGUF's keys.

use crate::config::{
    Attention, Dense, Ffn, GatedDelta, KvSource, LayerConfig, Mamba2, Mixer, ModelConfig, ShortConv,
};
use crate::hyper::Hyper;
use crate::metadata::{Metadata, Strings};
use crate::rope::{RopeScaling, yarn_magnitude};
use crate::sampling_hints::{sampling_hints, write_gguf};
use crate::source::TensorSource;
use crate::tokenizer::write_gguf::{self, HfFiles};
use crate::{Error, Result};
use realizar_compute::{Activation, AttentionTemperature, HeadOrder, Heads, NormKind, RouterScores};
use serde_json::Value as Json;

/// `general.architecture` of a model.
pub(super) fn gguf_arch(c: &ModelConfig) -> &'static str {
    match c.arch {
        "mistral" | "mixtral" => "llama",
        "olmo3" => "olmo2",
        // Readers of the hybrids insist on recurrent layers.
        "granitehybrid" if c.recurrent_states().next().is_none() => match c.experts().next() {
            Some(_) => "granitemoe",
            None => "granite",
        },
        "nemotron_h" if c.experts().next().is_some() => "nemotron_h_moe",
        "bitnet" if c.layers.iter().any(|l| squares_relu(&l.ffn)) => "bitnet-b1.58",
        other => other,
    }
}

/// Whether GGUF has the rows of q and k of this `general.architecture` in the order in which neighbours turn together. Where nothing turns,
/// any order gives the same products, and files have this one, too.
pub(super) fn turns_neighbours(arch: &str) -> bool {
    ["llama", "mistral3", "smollm3", "granite", "granitemoe", "granitehybrid", "nemotron_h", "nemotron_h_moe"]
        .contains(&arch)
}

/// The order in which GGUF has the delta rule's value heads.
pub(super) fn value_heads(arch: &str) -> HeadOrder {
    if arch == "qwen3next" { HeadOrder::Grouped } else { HeadOrder::Tiled }
}

const KV_HEADS: &str = "attention.head_count_kv";
const WIDTHS: &str = "feed_forward_length";

fn squares_relu(ffn: &Ffn) -> bool {
    matches!(ffn, Ffn::Gated(dense) | Ffn::Plain(dense) if dense.activation == Activation::ReluSquared)
}

pub(super) fn metadata(source: &dyn TensorSource, c: &ModelConfig) -> Result<Metadata> {
    let mut m = Metadata::new(source.path());
    let arch = gguf_arch(c);
    m.insert("general.architecture", arch)?;
    m.insert("general.type", "model")?;
    let name = source.path().canonicalize().ok();
    if let Some(name) = name.as_ref().and_then(|p| p.file_name()).and_then(|n| n.to_str()) {
        m.insert("general.name", name)?;
    }
    hyper_parameters(&mut m, arch, c, source)?;
    rotation(&mut m, arch, c, source)?;
    tokenizer(&mut m, c, source)?;
    chat_templates(&mut m, source)?;
    write_gguf(&sampling_hints(source)?, &mut m)?;
    Ok(m)
}

/// Of the first layer that sees everything, where layers differ and the format has one number for all; [`Converted::check`](super::Converted::check) refuses what that does not say.
fn hyper_parameters(m: &mut Metadata, arch: &str, c: &ModelConfig, source: &dyn TensorSource) -> Result<()> {
    let attention =
        StatedAttention::of(c).ok_or_else(|| Error::unsupported(m.path(), "it has no attention"))?;
    let heads = attention.heads;
    let width = match c.layers[0].ffn {
        // What the file states is rounded by rules of its own.
        Ffn::Gated(Dense { intermediate_size, .. }) if arch == "lfm2" => Some(intermediate_size),
        _ => Hyper::new(source, arch).usize("intermediate_size")?,
    };
    let mut counts = vec![
        ("block_count", c.layers.len()),
        ("context_length", c.context_length),
        ("embedding_length", c.hidden_size),
        (WIDTHS, width.unwrap_or(4 * c.hidden_size)),
        ("attention.head_count", heads.n_heads),
    ];
    if !c.learned_positions {
        counts.extend([
            (KV_HEADS, heads.n_kv_heads),
            ("attention.key_length", heads.head_dim),
            ("attention.value_length", attention.value_dim),
            ("vocab_size", c.vocab_size),
        ]);
    }
    if c.n_draft_layers > 0 || arch == "glm4moe" {
        counts.push(("nextn_predict_layers", c.n_draft_layers));
    }
    counts.extend(latent_sizes(c));
    counts.extend(expert_counts(arch, c));
    let window = c.attentions().find_map(|a| a.window);
    // Readers of phi3 insist on the key; 0 means that there is none.
    if let Some(window) = window.or((arch == "phi3").then_some(0)) {
        counts.push(("attention.sliding_window", window));
    }
    if c.arch == "gemma3" {
        // Every so many layers, one sees everything.
        let first_full = c.attentions().position(|a| a.window.is_none());
        if let Some(i) = first_full.filter(|&i| i != 5) {
            counts.push(("attention.sliding_window_pattern", i + 1));
        }
    }
    counts.extend(local_layers(c));
    counts.extend(recurrent_sizes(m, arch, c)?);
    let listed = lists(m, arch, c)?;
    counts.retain(|(key, _)| !listed.contains(key));
    for (key, n) in counts {
        let n = u32::try_from(n).map_err(|_| Error::malformed(m.path(), format!("{key} is {n}")))?;
        m.insert(format!("{arch}.{key}"), n)?;
    }
    if ["olmo3", "exaone4", "gemma4"].contains(&c.arch) && window.is_some() {
        let slides: Vec<bool> = c.attentions().map(|a| a.window.is_some()).collect();
        m.insert(format!("{arch}.attention.sliding_window_pattern"), slides)?;
    }
    let eps = match c.norm_kind {
        NormKind::Rms => "attention.layer_norm_rms_epsilon",
        NormKind::Layer => "attention.layer_norm_epsilon",
    };
    m.insert(format!("{arch}.{eps}"), c.norm_eps)?;
    if c.arch == "nemotron_h" {
        // Readers insist on it.
        m.insert(format!("{arch}.attention.layer_norm_epsilon"), c.norm_eps)?;
    }
    for (key, cap) in
        [("attn_logit_softcapping", attention.softcap), ("final_logit_softcapping", c.logit_softcap)]
    {
        if let Some(cap) = cap {
            m.insert(format!("{arch}.{key}"), cap)?;
        }
    }
    router(m, arch, c)?;
    if !["granite", "granitemoe", "granitehybrid", "gemma4"].contains(&c.arch)
        && attention.scale != 1.0 / (heads.head_dim as f32).sqrt()
    {
        m.insert(format!("{arch}.attention.query_pre_attn_scalar"), attention.scale.powi(-2))?;
    }
    if let Some(temperature) = attention.temperature {
        m.insert(format!("{arch}.attention.temperature_scale"), temperature.beta)?;
    }
    factors(m, arch, c, attention.scale)
}

/// What GGUF says of attention in all layers.
struct StatedAttention {
    heads: Heads,
    value_dim: usize,
    scale: f32,
    softcap: Option<f32>,
    temperature: Option<AttentionTemperature>,
}

impl StatedAttention {
    fn of(c: &ModelConfig) -> Option<Self> {
        if let Some(latent) = c.latents().next() {
            let heads = latent.shape.heads();
            return Some(Self {
                heads,
                value_dim: latent.shape.kv_rank,
                // Follows from what is stated of latent attention and of its rotation.
                scale: 1.0 / (heads.head_dim as f32).sqrt(),
                softcap: None,
                temperature: latent.temperature,
            });
        }
        let &Attention { heads, scale, softcap, temperature, .. } =
            c.attentions().find(|a| a.window.is_none()).or(c.attentions().next())?;
        Some(Self { heads, value_dim: heads.head_dim, scale, softcap, temperature })
    }
}

/// The sizes of latent attention.
fn latent_sizes(c: &ModelConfig) -> Vec<(&'static str, usize)> {
    let Some(latent) = c.latents().next() else { return Vec::new() };
    let mut counts = vec![
        ("attention.kv_lora_rank", latent.shape.kv_rank),
        ("attention.key_length_mla", latent.shape.q_dim()),
        ("attention.value_length_mla", latent.shape.v_dim),
    ];
    counts.extend(latent.q_rank.map(|rank| ("attention.q_lora_rank", rank)));
    counts
}

/// What Gemma 4 states of layers with a window, and of what layers share.
fn local_layers(c: &ModelConfig) -> Vec<(&'static str, usize)> {
    if c.arch != "gemma4" {
        return Vec::new();
    }
    let mut counts = vec![
        (
            "attention.shared_kv_layers",
            c.attentions().filter(|a| matches!(a.kv, KvSource::OfLayer(_))).count(),
        ),
        ("embedding_length_per_layer_input", c.per_layer_input.map_or(0, |input| input.len)),
    ];
    if let (Some(local), Some(rope)) = (c.attentions().find(|a| a.window.is_some()), c.ropes.get(1)) {
        counts.extend([
            ("attention.key_length_swa", local.heads.head_dim),
            ("attention.value_length_swa", local.heads.head_dim),
            ("rope.dimension_count_swa", rope.dim),
        ]);
    }
    counts
}

/// Numbers that differ between layers, for the architectures whose readers know lists of them, and their keys.
fn lists(m: &mut Metadata, arch: &str, c: &ModelConfig) -> Result<Vec<&'static str>> {
    let listed: &[&str] = match c.arch {
        "gemma4" | "nemotron_h" => &[KV_HEADS, WIDTHS],
        "lfm2" | "lfm2moe" | "granitehybrid" => &[KV_HEADS],
        _ => return Ok(Vec::new()),
    };
    let mut written = Vec::new();
    // Layers without attention have no heads of keys and values.
    let kv_heads = |layer: &LayerConfig| match layer.mixer {
        Mixer::Attention(attention) => attention.heads.n_kv_heads as i32,
        _ => 0,
    };
    let width = |layer: &LayerConfig| match layer.ffn {
        // Readers tell layers with experts by it.
        Ffn::Experts(experts) if c.arch == "nemotron_h" => experts.intermediate_size,
        Ffn::Experts(experts) => experts.shared.map_or(0, |shared| shared.intermediate_size),
        ffn => ffn.intermediate_size(),
    };
    for (key, numbers) in [
        (KV_HEADS, c.layers.iter().map(kv_heads).collect::<Vec<_>>()),
        (WIDTHS, c.layers.iter().map(|layer| width(layer) as i32).collect()),
    ] {
        if listed.contains(&key) && numbers.iter().any(|&n| n != numbers[0]) {
            m.insert(format!("{arch}.{key}"), numbers)?;
            written.push(key);
        }
    }
    Ok(written)
}

/// The factors of architectures that state them.
fn factors(m: &mut Metadata, arch: &str, c: &ModelConfig, attention_scale: f32) -> Result<()> {
    let factors: &[_] = match c.arch {
        "granite" | "granitemoe" | "granitehybrid" => &[
            ("embedding_scale", c.embed_scale),
            ("residual_scale", c.residual_scale),
            ("attention.scale", attention_scale),
            ("logit_scale", 1.0 / c.logit_scale),
        ],
        "cohere2" => &[("logit_scale", c.logit_scale)],
        _ => &[],
    };
    factors.iter().try_for_each(|&(key, factor)| m.insert(format!("{arch}.{key}"), factor))
}

/// The sizes of recurrent layers; which layers these are is stated at once.
fn recurrent_sizes(m: &mut Metadata, arch: &str, c: &ModelConfig) -> Result<Vec<(&'static str, usize)>> {
    let recurrent = c.layers.iter().find(|l| l.mixer.recurrent_state().is_some());
    Ok(match recurrent.map(|layer| layer.mixer) {
        None | Some(Mixer::Attention(_) | Mixer::Latent(_) | Mixer::None) => Vec::new(),
        Some(Mixer::Mamba2(Mamba2 { shape, conv_width, .. })) => vec![
            ("ssm.conv_kernel", conv_width),
            ("ssm.state_size", shape.state_dim),
            ("ssm.group_count", shape.n_groups),
            ("ssm.time_step_rank", shape.n_heads),
            ("ssm.inner_size", shape.inner_len()),
        ],
        Some(Mixer::GatedDelta(GatedDelta { shape, conv_width })) => {
            let is_recurrent = |mixer: &Mixer| matches!(mixer, Mixer::GatedDelta(_));
            let list: Vec<bool> = c.layers.iter().map(|l| is_recurrent(&l.mixer)).collect();
            m.insert(format!("{arch}.attention.recurrent_layers"), list)?;
            vec![
                // For readers that do not know the list.
                ("full_attention_interval", 4),
                ("ssm.conv_kernel", conv_width),
                ("ssm.state_size", shape.k_dim),
                ("ssm.group_count", shape.n_k_heads),
                ("ssm.time_step_rank", shape.n_v_heads),
                ("ssm.inner_size", shape.v_len()),
            ]
        }
        Some(Mixer::ShortConv(ShortConv { conv_width, .. })) => vec![("shortconv.l_cache", conv_width)],
    })
}

fn expert_counts(arch: &str, c: &ModelConfig) -> Vec<(&'static str, usize)> {
    let Some(experts) = c.experts().next() else { return Vec::new() };
    let mut counts = vec![("expert_count", experts.n_experts), ("expert_used_count", experts.router.n_used)];
    if arch != "llama" {
        counts.push(("expert_feed_forward_length", experts.intermediate_size));
    }
    let shared = experts.shared.map_or(0, |shared| shared.intermediate_size);
    if ["qwen2moe", "qwen35moe", "qwen3next", "granitemoe", "granitehybrid"].contains(&arch) {
        counts.push(("expert_shared_feed_forward_length", shared));
    }
    if arch == "nemotron_h_moe" {
        counts.push(("expert_shared_feed_forward_length", shared));
        counts.push(("expert_shared_count", usize::from(shared > 0)));
        counts.extend(experts.latent_size.map(|n| ("moe_latent_size", n)));
        let (n_groups, n_used) = experts.router.groups.map_or((1, 1), |groups| (groups.count, groups.n_used));
        counts.extend([("expert_group_count", n_groups), ("expert_group_used_count", n_used)]);
    }
    if ["glm4moe", "deepseek2", "mistral4"].contains(&arch) {
        let (n_groups, n_used) = experts.router.groups.map_or((1, 1), |groups| (groups.count, groups.n_used));
        counts.extend([
            ("expert_shared_count", shared / experts.intermediate_size.max(1)),
            ("leading_dense_block_count", regular_experts(c).0),
            ("expert_group_count", n_groups),
            ("expert_group_used_count", n_used),
        ]);
    }
    if arch == "lfm2moe" {
        counts.push(("leading_dense_block_count", regular_experts(c).0));
    }
    if arch == "ernie4_5-moe" {
        let (first, every) = regular_experts(c);
        counts.extend([
            ("expert_shared_count", shared / experts.intermediate_size.max(1)),
            ("expert_shared_feed_forward_length", shared),
            ("leading_dense_block_count", first),
            ("interleave_moe_layer_step", every),
        ]);
    }
    counts
}

/// The first layer with experts, and after how many layers comes the next.
fn regular_experts(c: &ModelConfig) -> (usize, usize) {
    let has_experts = |(_, layer): &(usize, &LayerConfig)| matches!(layer.ffn, Ffn::Experts(_));
    let mut layers = c.layers.iter().enumerate().filter(has_experts).map(|(i, _)| i);
    let first = layers.next().unwrap_or(0);
    (first, layers.next().map_or(1, |second| second - first))
}

/// How experts are chosen, for the architectures whose readers ask the file.
fn router(m: &mut Metadata, arch: &str, c: &ModelConfig) -> Result<()> {
    let Some(router) = c.experts().next().map(|experts| experts.router) else { return Ok(()) };
    if ["glm4moe", "minimax-m2", "deepseek2", "mistral4", "lfm2moe"].contains(&arch) {
        let kind = match router.scores {
            RouterScores::Softmax => 1u32,
            RouterScores::Sigmoid => 2,
        };
        m.insert(format!("{arch}.expert_gating_func"), kind)?;
    }
    if ["glm4moe", "deepseek2", "mistral4", "lfm2moe", "nemotron_h_moe"].contains(&arch) {
        m.insert(format!("{arch}.expert_weights_scale"), router.scale)?;
        m.insert(format!("{arch}.expert_weights_norm"), router.norm_topk)?;
    }
    Ok(())
}

fn rotation(m: &mut Metadata, arch: &str, c: &ModelConfig, source: &dyn TensorSource) -> Result<()> {
    if ["granitehybrid", "nemotron_h", "nemotron_h_moe"].contains(&arch) {
        // How readers know that nothing turns.
        m.insert(format!("{arch}.rope.scaling.finetuned"), c.attentions().any(|a| a.rope.is_some()))?;
    }
    let Some(rope) = c.ropes.first() else { return Ok(()) };
    m.insert(format!("{arch}.rope.dimension_count"), rope.dim as u32)?;
    m.insert(format!("{arch}.rope.freq_base"), rope.theta)?;
    if ["qwen35", "qwen35moe"].contains(&c.arch) {
        // Pairs that turn by each coordinate of an image; readers insist on the key.
        let stated = Hyper::new(source, arch).hf_f32s("rope_parameters.mrope_section")?;
        let mut sections: Vec<i32> =
            stated.unwrap_or_else(|| vec![11.0, 11.0, 10.0]).iter().map(|&n| n as i32).collect();
        sections.resize(4, 0);
        m.insert(format!("{arch}.rope.dimension_sections"), sections)?;
    }
    if let Some(local) = c.ropes.get(1) {
        m.insert(format!("{arch}.rope.freq_base_swa"), local.theta)?;
    }
    let key = |name: &str| format!("{arch}.rope.scaling.{name}");
    if arch == "phi3" && !matches!(rope.scaling, RopeScaling::LongRope { .. }) {
        // Stated even where nothing is stretched.
        let trained =
            source.metadata().get_usize("original_max_position_embeddings")?.unwrap_or(c.context_length);
        m.insert(key("original_context_length"), trained as u32)?;
    }
    match rope.scaling {
        // The last two are tensors.
        RopeScaling::None if ["cohere2", "hunyuan-dense"].contains(&arch) => m.insert(key("type"), "none"),
        RopeScaling::None | RopeScaling::Llama3 { .. } | RopeScaling::Factors(_) => Ok(()),
        RopeScaling::Linear { factor } => {
            m.insert(key("type"), "linear")?;
            m.insert(key("factor"), factor)
        }
        RopeScaling::Yarn { factor, trained_context, beta_fast, beta_slow, attention_factor, .. } => {
            m.insert(key("type"), "yarn")?;
            m.insert(key("factor"), factor)?;
            m.insert(key("original_context_length"), trained_context as u32)?;
            m.insert(key("yarn_beta_fast"), beta_fast)?;
            m.insert(key("yarn_beta_slow"), beta_slow)?;
            if let Some(latent) = c.latents().next() {
                let magnitude = (latent.scale * (latent.shape.q_dim() as f32).sqrt()).sqrt();
                // Where it is there, the factor on cosine and sine is 1 unless it is stated.
                let has_multiplier = magnitude != 1.0 && factor > 1.0;
                if has_multiplier {
                    m.insert(key("yarn_log_multiplier"), (magnitude - 1.0) / factor.ln())?;
                }
                let usual = if has_multiplier { 1.0 } else { yarn_magnitude(factor, 1.0) };
                return match (attention_factor - usual).abs() > 1e-6 {
                    true => m.insert(key("yarn_attn_factor"), attention_factor),
                    false => Ok(()),
                };
            }
            if arch == "mistral3" && attention_factor == 1.0 {
                // Says that both halves of YaRN's factor cancel.
                return m.insert(key("yarn_log_multiplier"), 1.0f32);
            }
            m.insert(key("yarn_attn_factor"), attention_factor)?;
            let rest = attention_factor / yarn_magnitude(factor, 1.0);
            if (rest - 1.0).abs() > 1e-6 { m.insert(key("attn_factor"), rest) } else { Ok(()) }
        }
        RopeScaling::LongRope { trained_context, attention_factor, .. } => {
            m.insert(key("type"), "longrope")?;
            m.insert(key("original_context_length"), trained_context as u32)?;
            m.insert(key("attn_factor"), attention_factor)
        }
        RopeScaling::Dynamic { .. } => {
            Err(Error::unsupported(source.path(), "GGUF cannot state dynamic RoPE scaling"))
        }
    }
}

fn read(source: &dyn TensorSource, name: &str) -> Result<Option<Vec<u8>>> {
    let Some(path) = source.sibling(name) else { return Ok(None) };
    std::fs::read(&path).map(Some).map_err(|e| Error::io("read", &path, e))
}

fn tokenizer(m: &mut Metadata, c: &ModelConfig, source: &dyn TensorSource) -> Result<()> {
    let Some(json) = read(source, "tokenizer.json")? else {
        return Err(Error::unsupported(source.path(), "there is no tokenizer.json beside the weights"));
    };
    let config = read(source, "tokenizer_config.json")?;
    let map = read(source, "special_tokens_map.json")?;
    let files =
        HfFiles { tokenizer: &json, tokenizer_config: config.as_deref(), special_tokens_map: map.as_deref() };
    let ids = |key: &str| -> Result<Vec<u32>> {
        let ids = source.metadata().get_i64s(key)?.unwrap_or_default();
        Ok(ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect())
    };
    let mut ends = ids("generation_config.eos_token_id")?;
    ends.extend(ids("eos_token_id")?);
    let bos = ids("bos_token_id")?.first().copied();
    write_gguf::write(m, &files, c.vocab_size, bos, &ends)
        .map_err(|e| Error::unsupported(source.path(), format!("the tokenizer cannot be converted: {e}")))
}

/// The default template, and those with a name of their own, such as one for tools.
fn chat_templates(m: &mut Metadata, source: &dyn TensorSource) -> Result<()> {
    let mut named = Vec::new();
    if let Some(config) = read(source, "tokenizer_config.json")? {
        let config: Json = serde_json::from_slice(&config).map_err(|e| {
            Error::malformed(source.path(), format!("tokenizer_config.json is not valid JSON: {e}"))
        })?;
        match &config["chat_template"] {
            Json::String(template) => named.push(("default".to_owned(), template.clone())),
            Json::Array(templates) => {
                for t in templates {
                    if let (Some(name), Some(template)) = (t["name"].as_str(), t["template"].as_str()) {
                        named.push((name.to_owned(), template.to_owned()));
                    }
                }
            }
            _ => {}
        }
    }
    if let Some(template) = read(source, "chat_template.jinja")? {
        let template = String::from_utf8(template)
            .map_err(|_| Error::malformed(source.path(), "chat_template.jinja is not UTF-8"))?;
        named.retain(|(name, _)| name != "default");
        named.push(("default".to_owned(), template));
    }
    let others: Strings = named.iter().map(|(name, _)| name).filter(|name| *name != "default").collect();
    if !others.is_empty() {
        m.insert("tokenizer.chat_templates", others)?;
    }
    for (name, template) in named {
        let key = if name == "default" {
            "tokenizer.chat_template".to_owned()
        } else {
            format!("tokenizer.chat_template.{name}")
        };
        m.insert(key, template)?;
    }
    Ok(())
}
