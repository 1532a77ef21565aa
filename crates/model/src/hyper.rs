//! Hyper-parameters in one vocabulary: each of our keys is looked up under GGUF's name or under Hugging Face's.

use crate::metadata::Value;
use crate::source::{Format, TensorSource};
use crate::{Error, Result};

/// One hyper-parameter's names.
struct Key {
    ours: &'static str,
    /// Behind the architecture's prefix, such as `llama.`.
    gguf: &'static str,
    /// In `config.json`; the first that is there counts.
    hf: &'static [&'static str],
}

const fn key(ours: &'static str, gguf: &'static str, hf: &'static [&'static str]) -> Key {
    Key { ours, gguf, hf }
}

static KEYS: &[Key] = &[
    key("hidden_size", "embedding_length", &["hidden_size", "n_embd"]),
    key("intermediate_size", "feed_forward_length", &["intermediate_size", "n_inner"]),
    key("n_layers", "block_count", &["num_hidden_layers", "n_layer"]),
    key("n_heads", "attention.head_count", &["num_attention_heads", "n_head"]),
    key("n_kv_heads", "attention.head_count_kv", &["num_key_value_heads"]),
    key("head_dim", "attention.key_length", &["head_dim"]),
    key("value_dim", "attention.value_length", &["v_head_dim"]),
    key("latent_q_dim", "attention.key_length_mla", &["qk_head_dim"]),
    key("latent_v_dim", "attention.value_length_mla", &["v_head_dim"]),
    key("nope_dim", "", &["qk_nope_head_dim"]),
    key("q_rank", "attention.q_lora_rank", &["q_lora_rank"]),
    key("kv_rank", "attention.kv_lora_rank", &["kv_lora_rank"]),
    // Of layers with a sliding window, and of the others, where they differ.
    key("local_head_dim", "attention.key_length_swa", &["head_dim"]),
    key("global_head_dim", "attention.key_length", &["global_head_dim"]),
    key("n_shared_kv_layers", "attention.shared_kv_layers", &["num_kv_shared_layers"]),
    key("per_layer_input_len", "embedding_length_per_layer_input", &["hidden_size_per_layer_input"]),
    key("context_length", "context_length", &["max_position_embeddings", "n_positions", "n_ctx"]),
    key("vocab_size", "vocab_size", &["vocab_size"]),
    key("rms_norm_eps", "attention.layer_norm_rms_epsilon", &["rms_norm_eps", "norm_eps"]),
    key(
        "layer_norm_eps",
        "attention.layer_norm_epsilon",
        &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"],
    ),
    key("sliding_window", "attention.sliding_window", &["sliding_window", "local_attention"]),
    key("sliding_window_pattern", "attention.sliding_window_pattern", &["sliding_window_pattern"]),
    key("attn_softcap", "attn_logit_softcapping", &["attn_logit_softcapping"]),
    key("logit_softcap", "final_logit_softcapping", &["final_logit_softcapping"]),
    key("query_pre_attn_scalar", "attention.query_pre_attn_scalar", &["query_pre_attn_scalar"]),
    key("embed_scale", "embedding_scale", &["embedding_multiplier"]),
    key("residual_scale", "residual_scale", &["residual_multiplier"]),
    key("attention_scale", "attention.scale", &["attention_multiplier"]),
    // A factor in some architectures, a divisor in others.
    key("logit_scale", "logit_scale", &["logit_scale", "logits_scaling"]),
    key("attention_temperature", "attention.temperature_scale", &["rope_parameters.llama_4_scaling_beta"]),
    key("conv_width", "ssm.conv_kernel", &["linear_conv_kernel_dim"]),
    key("n_delta_k_heads", "ssm.group_count", &["linear_num_key_heads"]),
    key("n_delta_v_heads", "ssm.time_step_rank", &["linear_num_value_heads"]),
    key("delta_k_dim", "ssm.state_size", &["linear_key_head_dim"]),
    key("full_attention_interval", "full_attention_interval", &["full_attention_interval"]),
    key(
        "n_experts",
        "expert_count",
        &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"],
    ),
    key(
        "n_experts_used",
        "expert_used_count",
        &["num_experts_per_tok", "moe_k", "top_k_experts", "moe_top_k"],
    ),
    key("expert_intermediate_size", "expert_feed_forward_length", &["moe_intermediate_size"]),
    key("norm_topk", "expert_weights_norm", &["norm_topk_prob"]),
    key("router_scale", "expert_weights_scale", &["routed_scaling_factor"]),
    key("n_expert_groups", "expert_group_count", &["n_group"]),
    key("n_expert_groups_used", "expert_group_used_count", &["topk_group"]),
    key("n_shared_experts", "expert_shared_count", &["n_shared_experts", "moe_num_shared_experts"]),
    key(
        "shared_expert_intermediate_size",
        "expert_shared_feed_forward_length",
        &[
            "shared_expert_intermediate_size",
            "shared_intermediate_size",
            "moe_shared_expert_intermediate_size",
        ],
    ),
    key("expert_latent_size", "moe_latent_size", &["moe_latent_size"]),
    key(
        "n_leading_dense_layers",
        "leading_dense_block_count",
        &["first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"],
    ),
    key("n_draft_layers", "nextn_predict_layers", &["num_nextn_predict_layers"]),
    key("rope_dim", "rope.dimension_count", &["rotary_dim", "qk_rope_head_dim"]),
    key("rope_dim_local", "rope.dimension_count_swa", &[]),
    key(
        "rope_theta",
        "rope.freq_base",
        &[
            "rope_theta",
            "rope_parameters.rope_theta",
            "rope_parameters.full_attention.rope_theta",
            "global_rope_theta",
            "rotary_emb_base",
        ],
    ),
    key(
        "rope_theta_local",
        "rope.freq_base_swa",
        &["rope_local_base_freq", "rope_parameters.sliding_attention.rope_theta", "local_rope_theta"],
    ),
    key("partial_rotary_factor", "", &["partial_rotary_factor", "rope_parameters.partial_rotary_factor"]),
    key(
        "rope_original_context",
        "rope.scaling.original_context_length",
        &["original_max_position_embeddings"],
    ),
];

/// Looks up a model's hyper-parameters.
#[derive(Clone, Copy)]
pub struct Hyper<'a> {
    source: &'a dyn TensorSource,
    prefix: &'a str,
    /// What `config.json` means where it does not state a number, under our keys.
    defaults: &'static [(&'static str, f32)],
}

impl<'a> Hyper<'a> {
    /// `prefix` is the architecture's name in GGUF keys.
    pub fn new(source: &'a dyn TensorSource, prefix: &'a str) -> Self {
        Self { source, prefix, defaults: &[] }
    }

    /// With numbers that `config.json` may leave out. GGUF has no defaults.
    pub fn with_defaults(self, defaults: &'static [(&'static str, f32)]) -> Self {
        Self { defaults, ..self }
    }

    fn default(&self, ours: &str) -> Option<f32> {
        let defaults = if self.is_gguf() { &[][..] } else { self.defaults };
        defaults.iter().find(|(key, _)| *key == ours).map(|&(_, value)| value)
    }

    /// The model.
    pub fn source(&self) -> &'a dyn TensorSource {
        self.source
    }

    /// Whether the keys are GGUF's.
    pub fn is_gguf(&self) -> bool {
        self.source.format() == Format::Gguf
    }

    /// The names under which one of our keys may stand, the preferred first.
    fn names(&self, ours: &str) -> Vec<String> {
        let key = KEYS
            .iter()
            .find(|k| k.ours == ours)
            .unwrap_or_else(|| panic!("no hyper-parameter is called {ours}"));
        match self.source.format() {
            Format::Gguf => vec![format!("{}.{}", self.prefix, key.gguf)],
            Format::Safetensors => Self::hf_names(key.hf),
        }
    }

    /// A multimodal model's text part has its own section.
    fn hf_names(names: &[&str]) -> Vec<String> {
        names.iter().flat_map(|n| [(*n).to_string(), format!("text_config.{n}")]).collect()
    }

    fn first<T>(&self, names: &[String], get: impl Fn(&str) -> Result<Option<T>>) -> Result<Option<T>> {
        for name in names {
            if let Some(value) = get(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// The error of a file that lacks a key of its own format.
    pub fn missing_key(&self, key: &str) -> Error {
        let prefix = if self.is_gguf() { format!("{}.", self.prefix) } else { String::new() };
        Error::MissingKey { path: self.source.path().to_owned(), key: format!("{prefix}{key}") }
    }

    fn missing(&self, ours: &str) -> Error {
        Error::MissingKey { path: self.source.path().to_owned(), key: self.names(ours).join(" or ") }
    }

    /// The error of a file that lacks a weight outside of layers, by our name of it.
    pub fn missing_tensor(&self, ours: &str) -> Error {
        let tensor = crate::names::candidates(ours, self.source.format())[0].to_owned() + ".weight";
        Error::MissingTensor { path: self.source.path().to_owned(), tensor }
    }

    /// A whole number; `None` where the file does not state it.
    pub fn usize(&self, ours: &str) -> Result<Option<usize>> {
        let stated = self.first(&self.names(ours), |n| self.source.metadata().get_usize(n))?;
        Ok(stated.or(self.default(ours).map(|n| n as usize)))
    }

    /// Whole numbers, or a single one as a list of one; `None` where the file does not state them.
    pub fn usizes(&self, ours: &str) -> Result<Option<Vec<usize>>> {
        let Some(numbers) = self.first(&self.names(ours), |n| self.source.metadata().get_i64s(n))? else {
            return Ok(self.default(ours).map(|n| vec![n as usize]));
        };
        let number = |n: i64| usize::try_from(n).map_err(|_| self.invalid(format!("{ours} is {n}")));
        numbers.into_iter().map(number).collect::<Result<_>>().map(Some)
    }

    /// A whole number that the model cannot be without.
    pub fn need_usize(&self, ours: &str) -> Result<usize> {
        self.usize(ours)?.ok_or_else(|| self.missing(ours))
    }

    /// A number.
    pub fn f32(&self, ours: &str) -> Result<Option<f32>> {
        let stated = self.first(&self.names(ours), |n| self.source.metadata().get_f32(n))?;
        Ok(stated.or(self.default(ours)))
    }

    /// A number that the model cannot be without.
    pub fn need_f32(&self, ours: &str) -> Result<f32> {
        self.f32(ours)?.ok_or_else(|| self.missing(ours))
    }

    /// A truth value.
    pub fn bool(&self, ours: &str) -> Result<Option<bool>> {
        self.first(&self.names(ours), |n| self.source.metadata().get_bool(n))
    }

    /// A whole number of GGUF's section for this architecture.
    pub fn gguf_usize(&self, key: &str) -> Result<Option<usize>> {
        self.source.metadata().get_usize(&format!("{}.{key}", self.prefix))
    }

    /// A number of GGUF's section for this architecture.
    pub fn gguf_f32(&self, key: &str) -> Result<Option<f32>> {
        self.source.metadata().get_f32(&format!("{}.{key}", self.prefix))
    }

    /// A string of GGUF's section for this architecture.
    pub fn gguf_str(&self, key: &str) -> Result<Option<&'a str>> {
        self.source.metadata().get_str(&format!("{}.{key}", self.prefix))
    }

    /// A whole number of GGUF's section for this architecture, where the key does not state an array.
    pub fn gguf_usize_unless_array(&self, key: &str) -> Result<Option<usize>> {
        match self.source.metadata().get(&format!("{}.{key}", self.prefix)) {
            Some(Value::Array(_)) => Ok(None),
            _ => self.gguf_usize(key),
        }
    }

    /// Truth values of GGUF's section for this architecture; `None` where the key is absent or states something else than an array.
    pub fn gguf_bools(&self, key: &str) -> Result<Option<Vec<bool>>> {
        let key = format!("{}.{key}", self.prefix);
        match self.source.metadata().get(&key) {
            Some(Value::Array(_)) => self.source.metadata().get_bools(&key),
            _ => Ok(None),
        }
    }

    /// A whole number of `config.json` under exactly this name.
    pub fn hf_usize(&self, key: &str) -> Result<Option<usize>> {
        self.first(&Self::hf_names(&[key]), |n| self.source.metadata().get_usize(n))
    }

    /// A number of `config.json` under exactly this name.
    pub fn hf_f32(&self, key: &str) -> Result<Option<f32>> {
        self.first(&Self::hf_names(&[key]), |n| self.source.metadata().get_f32(n))
    }

    /// A truth value of `config.json` under exactly this name.
    pub fn hf_bool(&self, key: &str) -> Result<Option<bool>> {
        self.first(&Self::hf_names(&[key]), |n| self.source.metadata().get_bool(n))
    }

    /// A string of `config.json` under exactly this name.
    pub fn hf_str(&self, key: &str) -> Result<Option<&'a str>> {
        self.first(&Self::hf_names(&[key]), |n| self.source.metadata().get_str(n))
    }

    /// A list of numbers of `config.json` under exactly this name.
    pub fn hf_f32s(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.first(&Self::hf_names(&[key]), |n| {
            self.source.metadata().get_f32s(n).map(|v| v.map(|v| v.to_vec()))
        })
    }

    /// A list of strings of `config.json` under exactly this name.
    pub fn hf_strings(&self, key: &str) -> Result<Option<Vec<String>>> {
        self.first(&Self::hf_names(&[key]), |n| {
            Ok(self.source.metadata().get_strings(n)?.map(|v| v.iter().map(|s| s.to_string()).collect()))
        })
    }

    /// An error about this model's description.
    pub fn invalid(&self, reason: impl Into<String>) -> Error {
        Error::Malformed { path: self.source.path().to_owned(), reason: reason.into() }
    }

    /// An error about a variant that this program does not run.
    pub fn unsupported(&self, reason: impl Into<String>) -> Error {
        Error::Unsupported { path: self.source.path().to_owned(), reason: reason.into() }
    }
}
