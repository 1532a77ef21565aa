//! The names of weights: ours, GGUF's and Hugging Face's.

use crate::source::{Format, TensorSource};

/// How a weight is cut among ranks. "Rows" are outputs, "columns" inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has all of it.
    Whole,
    /// Rows, by query heads.
    QueryHeads,
    /// One number, or one matrix, per query head.
    PerQueryHead,
    /// Rows, by key and value heads.
    KvHeads,
    /// Rows of query, key and value heads, one after the other.
    Qkv,
    /// Rows, by hidden activations of the feed-forward block.
    Hidden,
    /// Rows of gate and up, one after the other.
    GateUp,
    /// What leads from attention's heads to the residual.
    FromHeads,
    /// What leads from a feed-forward block's hidden activations to the residual.
    FromHidden,
    /// Rows, by hidden activations of the shared expert.
    SharedHidden,
    /// What leads from the shared expert's hidden activations to the residual.
    FromSharedHidden,
    /// Rows, by tokens of the vocabulary.
    Vocab,
}

/// One weight's names, without the `.weight` or `.bias` at their end.
///
/// `{i}` stands for the layer, `{e}` for the expert where a format stores experts one by one.
#[derive(Debug)]
pub struct WeightName {
    /// What this project calls it.
    pub ours: &'static str,
    /// In GGUF.
    pub gguf: &'static str,
    /// In Hugging Face folders; the first that a file has counts.
    pub hf: &'static [&'static str],
    /// Whether Hugging Face's names are whole, without an ending.
    pub hf_is_whole: bool,
    /// How several devices share it.
    pub split: Split,
    /// Whether these are whole names, with no `.weight` at their end.
    pub is_whole: bool,
}

const fn row(ours: &'static str, gguf: &'static str, hf: &'static [&'static str]) -> WeightName {
    WeightName { ours, gguf, hf, hf_is_whole: false, is_whole: false, split: Split::Whole }
}

impl WeightName {
    const fn hf_is_whole(mut self) -> Self {
        self.hf_is_whole = true;
        self
    }

    const fn split(mut self, split: Split) -> Self {
        self.split = split;
        self
    }

    const fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }
}

/// All weights of all architectures.
pub static NAMES: &[WeightName] = &[
    // Of two tied matrices, some programs save only the second.
    row(
        "embed",
        "token_embd",
        &[
            "model.embed_tokens",
            "backbone.embeddings",
            "transformer.wte",
            "wte",
            "embeddings.word_embeddings",
            "model.embeddings.tok_embeddings",
            "lm_head",
        ],
    ),
    row("position_embed", "position_embd", &["transformer.wpe", "wpe", "embeddings.position_embeddings"]),
    row("token_types", "token_types", &["embeddings.token_type_embeddings"]),
    // Divisors of rotation frequencies, which other formats keep among the hyper-parameters.
    row("rope_freqs", "rope_freqs", &[]),
    row("rope_factors_long", "rope_factors_long", &[]),
    row("rope_factors_short", "rope_factors_short", &[]),
    row("per_layer_embed", "per_layer_token_embd", &["model.embed_tokens_per_layer"]),
    row("per_layer_proj", "per_layer_model_proj", &["model.per_layer_model_projection"]),
    row("per_layer_proj_norm", "per_layer_proj_norm", &["model.per_layer_projection_norm"]),
    row(
        "final_norm",
        "output_norm",
        &[
            "model.norm",
            "model.final_layernorm",
            "backbone.norm_f",
            "transformer.ln_f",
            "ln_f",
            "model.final_norm",
        ],
    ),
    row(
        "embedding_norm",
        "token_embd_norm",
        &["model.embedding_norm", "embeddings.LayerNorm", "emb_ln", "model.embeddings.norm"],
    ),
    // What follows the pooling of an encoder: of a reranker, then of sentence-transformers' modules.
    row("classifier.dense", "cls", &["classifier.dense", "pooler.dense", "head.dense"]),
    row("classifier.norm", "cls.norm", &["head.norm"]),
    row("classifier.out", "cls.output", &["classifier.out_proj", "classifier"]),
    row("dense_2", "dense_2", &["2_Dense.linear"]),
    row("dense_3", "dense_3", &["3_Dense.linear"]),
    row("lm_head", "output", &["lm_head"]).split(Split::Vocab),
    row(
        "attn_norm",
        "blk.{i}.attn_norm",
        &[
            "model.layers.{i}.input_layernorm",
            "model.layers.{i}.operator_norm",
            "backbone.layers.{i}.norm",
            "transformer.h.{i}.ln_1",
            "h.{i}.ln_1",
            "model.layers.{i}.attn_norm",
        ],
    ),
    row(
        "q_proj",
        "blk.{i}.attn_q",
        &[
            "model.layers.{i}.self_attn.q_proj",
            "backbone.layers.{i}.mixer.q_proj",
            "encoder.layer.{i}.attention.self.query",
        ],
    )
    .split(Split::QueryHeads),
    row(
        "k_proj",
        "blk.{i}.attn_k",
        &[
            "model.layers.{i}.self_attn.k_proj",
            "backbone.layers.{i}.mixer.k_proj",
            "encoder.layer.{i}.attention.self.key",
        ],
    )
    .split(Split::KvHeads),
    row(
        "v_proj",
        "blk.{i}.attn_v",
        &[
            "model.layers.{i}.self_attn.v_proj",
            "backbone.layers.{i}.mixer.v_proj",
            "encoder.layer.{i}.attention.self.value",
        ],
    )
    .split(Split::KvHeads),
    row(
        "qkv_proj",
        "blk.{i}.attn_qkv",
        &[
            "model.layers.{i}.self_attn.qkv_proj",
            "transformer.h.{i}.attn.c_attn",
            "h.{i}.attn.c_attn",
            "encoder.layers.{i}.attn.Wqkv",
            "encoder.layers.{i}.mixer.Wqkv",
            "model.layers.{i}.attn.Wqkv",
        ],
    )
    .split(Split::Qkv),
    row(
        "q_norm",
        "blk.{i}.attn_q_norm",
        &[
            "model.layers.{i}.self_attn.q_norm",
            "model.layers.{i}.self_attn.q_layernorm",
            "model.layers.{i}.self_attn.query_layernorm",
            "encoder.layer.{i}.attention.self.layer_norm_q",
        ],
    ),
    row(
        "k_norm",
        "blk.{i}.attn_k_norm",
        &[
            "model.layers.{i}.self_attn.k_norm",
            "model.layers.{i}.self_attn.k_layernorm",
            "model.layers.{i}.self_attn.key_layernorm",
            "encoder.layer.{i}.attention.self.layer_norm_k",
        ],
    ),
    row("q_a_proj", "blk.{i}.attn_q_a", &["model.layers.{i}.self_attn.q_a_proj"]),
    row("q_a_norm", "blk.{i}.attn_q_a_norm", &["model.layers.{i}.self_attn.q_a_layernorm"]),
    row("q_b_proj", "blk.{i}.attn_q_b", &["model.layers.{i}.self_attn.q_b_proj"]).split(Split::QueryHeads),
    row("kv_a_proj", "blk.{i}.attn_kv_a_mqa", &["model.layers.{i}.self_attn.kv_a_proj_with_mqa"]),
    row("kv_a_norm", "blk.{i}.attn_kv_a_norm", &["model.layers.{i}.self_attn.kv_a_layernorm"]),
    // One matrix per head. In safetensors both are parts of one tensor, and that of keys is transposed.
    row("k_b_proj", "blk.{i}.attn_k_b", &["model.layers.{i}.self_attn.kv_b_proj.keys"])
        .split(Split::PerQueryHead),
    row("v_b_proj", "blk.{i}.attn_v_b", &["model.layers.{i}.self_attn.kv_b_proj.values"])
        .split(Split::PerQueryHead),
    row("sinks", "blk.{i}.attn_sinks", &["model.layers.{i}.self_attn.sinks"])
        .hf_is_whole()
        .split(Split::PerQueryHead),
    row("attn_sub_norm", "blk.{i}.attn_sub_norm", &["model.layers.{i}.self_attn.attn_sub_norm"]),
    row(
        "o_proj",
        "blk.{i}.attn_output",
        &[
            "model.layers.{i}.self_attn.o_proj",
            "model.layers.{i}.self_attn.dense",
            "model.layers.{i}.self_attn.out_proj",
            "backbone.layers.{i}.mixer.o_proj",
            "transformer.h.{i}.attn.c_proj",
            "h.{i}.attn.c_proj",
            "encoder.layer.{i}.attention.output.dense",
            "encoder.layers.{i}.attn.out_proj",
            "encoder.layers.{i}.mixer.out_proj",
            "model.layers.{i}.attn.Wo",
        ],
    )
    .split(Split::FromHeads),
    row(
        "post_attn_norm",
        "blk.{i}.post_attention_norm",
        &["model.layers.{i}.post_self_attn_layernorm", "model.layers.{i}.post_attention_layernorm"],
    ),
    row(
        "ffn_norm",
        "blk.{i}.ffn_norm",
        &[
            "model.layers.{i}.pre_feedforward_layernorm",
            "model.layers.{i}.post_attention_layernorm",
            "model.layers.{i}.ffn_norm",
            "transformer.h.{i}.ln_2",
            "h.{i}.ln_2",
            "model.layers.{i}.mlp_norm",
        ],
    ),
    row(
        "attn_residual_norm",
        "blk.{i}.attn_output_norm",
        &["encoder.layer.{i}.attention.output.LayerNorm", "encoder.layers.{i}.norm1"],
    ),
    row(
        "ffn_residual_norm",
        "blk.{i}.layer_output_norm",
        &[
            "encoder.layer.{i}.output.LayerNorm",
            "encoder.layers.{i}.norm2",
            "encoder.layer.{i}.mlp.layernorm",
        ],
    ),
    row("delta.qkv_proj", "blk.{i}.attn_qkv", &["model.layers.{i}.linear_attn.in_proj_qkv"]),
    row("delta.z_proj", "blk.{i}.attn_gate", &["model.layers.{i}.linear_attn.in_proj_z"]),
    row("delta.b_proj", "blk.{i}.ssm_beta", &["model.layers.{i}.linear_attn.in_proj_b"]),
    row("delta.a_proj", "blk.{i}.ssm_alpha", &["model.layers.{i}.linear_attn.in_proj_a"]),
    // For each key head, the rows of `b_proj` and then those of `a_proj` of its value heads.
    row("delta.ba_proj", "blk.{i}.ssm_ba", &["model.layers.{i}.linear_attn.in_proj_ba"]),
    row("delta.conv", "blk.{i}.ssm_conv1d", &["model.layers.{i}.linear_attn.conv1d"]),
    row("delta.dt_bias", "blk.{i}.ssm_dt.bias", &["model.layers.{i}.linear_attn.dt_bias"]).whole(),
    // In GGUF it is `-exp(A_log)`.
    row("delta.a_log", "blk.{i}.ssm_a", &["model.layers.{i}.linear_attn.A_log"]).whole(),
    row("delta.norm", "blk.{i}.ssm_norm", &["model.layers.{i}.linear_attn.norm"]),
    row("delta.out_proj", "blk.{i}.ssm_out", &["model.layers.{i}.linear_attn.out_proj"]),
    row("conv.in_proj", "blk.{i}.shortconv.in_proj", &["model.layers.{i}.conv.in_proj"]),
    row("conv.conv", "blk.{i}.shortconv.conv", &["model.layers.{i}.conv.conv"]),
    row("conv.out_proj", "blk.{i}.shortconv.out_proj", &["model.layers.{i}.conv.out_proj"]),
    // The gate, x, B, C and dt, one after the other.
    row(
        "mamba.in_proj",
        "blk.{i}.ssm_in",
        &["backbone.layers.{i}.mixer.in_proj", "model.layers.{i}.mamba.in_proj"],
    ),
    row(
        "mamba.conv",
        "blk.{i}.ssm_conv1d",
        &["backbone.layers.{i}.mixer.conv1d", "model.layers.{i}.mamba.conv1d"],
    ),
    row(
        "mamba.dt_bias",
        "blk.{i}.ssm_dt.bias",
        &["backbone.layers.{i}.mixer.dt_bias", "model.layers.{i}.mamba.dt_bias"],
    )
    .whole(),
    // In GGUF it is `-exp(A_log)`.
    row("mamba.a_log", "blk.{i}.ssm_a", &["backbone.layers.{i}.mixer.A_log", "model.layers.{i}.mamba.A_log"])
        .whole(),
    row("mamba.skip", "blk.{i}.ssm_d", &["backbone.layers.{i}.mixer.D", "model.layers.{i}.mamba.D"]).whole(),
    row("mamba.norm", "blk.{i}.ssm_norm", &["backbone.layers.{i}.mixer.norm", "model.layers.{i}.mamba.norm"]),
    row(
        "mamba.out_proj",
        "blk.{i}.ssm_out",
        &["backbone.layers.{i}.mixer.out_proj", "model.layers.{i}.mamba.out_proj"],
    ),
    row(
        "gate_proj",
        "blk.{i}.ffn_gate",
        &[
            "model.layers.{i}.mlp.gate_proj",
            "model.layers.{i}.feed_forward.w1",
            "model.layers.{i}.shared_mlp.gate_proj",
            "encoder.layers.{i}.mlp.fc12",
        ],
    )
    .split(Split::Hidden),
    row(
        "up_proj",
        "blk.{i}.ffn_up",
        &[
            "model.layers.{i}.mlp.up_proj",
            "model.layers.{i}.mlp.fc1",
            "model.layers.{i}.feed_forward.w3",
            "backbone.layers.{i}.mixer.up_proj",
            "model.layers.{i}.shared_mlp.up_proj",
            "model.layers.{i}.mlp.c_fc",
            "transformer.h.{i}.mlp.c_fc",
            "h.{i}.mlp.c_fc",
            "encoder.layer.{i}.intermediate.dense",
            "encoder.layers.{i}.mlp.fc11",
            "encoder.layers.{i}.mlp.fc1",
        ],
    )
    .split(Split::Hidden),
    // GGUF has no name of its own for a fused gate and up: it is an `ffn_up` of twice the rows.
    row(
        "gate_up_proj",
        "blk.{i}.ffn_up",
        &[
            "model.layers.{i}.mlp.gate_up_proj",
            "model.layers.{i}.mlp.Wi",
            "encoder.layer.{i}.mlp.gated_layers",
        ],
    )
    .split(Split::GateUp),
    row("ffn_sub_norm", "blk.{i}.ffn_sub_norm", &["model.layers.{i}.mlp.ffn_sub_norm"]),
    row(
        "down_proj",
        "blk.{i}.ffn_down",
        &[
            "model.layers.{i}.mlp.down_proj",
            "model.layers.{i}.mlp.fc2",
            "model.layers.{i}.feed_forward.w2",
            "backbone.layers.{i}.mixer.down_proj",
            "model.layers.{i}.shared_mlp.output_linear",
            "model.layers.{i}.mlp.c_proj",
            "transformer.h.{i}.mlp.c_proj",
            "h.{i}.mlp.c_proj",
            "encoder.layer.{i}.output.dense",
            "encoder.layers.{i}.mlp.fc2",
            "model.layers.{i}.mlp.Wo",
            "encoder.layer.{i}.mlp.wo",
        ],
    )
    .split(Split::FromHidden),
    row(
        "post_ffn_norm",
        "blk.{i}.post_ffw_norm",
        &["model.layers.{i}.post_feedforward_layernorm", "model.layers.{i}.post_mlp_layernorm"],
    ),
    row(
        "router",
        "blk.{i}.ffn_gate_inp",
        &[
            "model.layers.{i}.block_sparse_moe.gate",
            "model.layers.{i}.mlp.gate",
            "model.layers.{i}.mlp.router",
            "model.layers.{i}.feed_forward.gate",
            "model.layers.{i}.block_sparse_moe.router.layer",
            "model.layers.{i}.router.proj",
            "backbone.layers.{i}.mixer.gate",
            "encoder.layers.{i}.mlp.router.layer",
        ],
    ),
    // Of the residual, without the root of the width that it is divided by.
    row("router_norm", "blk.{i}.ffn_gate_inp.scale", &["model.layers.{i}.router.scale"]).whole(),
    // Only a bias.
    row(
        "selection",
        "blk.{i}.exp_probs_b",
        &[
            "model.layers.{i}.mlp.gate.e_score_correction_bias",
            "model.layers.{i}.block_sparse_moe.e_score_correction_bias",
            "model.layers.{i}.mlp.moe_statics.e_score_correction_bias",
            "model.layers.{i}.feed_forward.expert_bias",
            "backbone.layers.{i}.mixer.gate.e_score_correction_bias",
        ],
    )
    .hf_is_whole(),
    row(
        "shared_expert.gate_proj",
        "blk.{i}.ffn_gate_shexp",
        &[
            "model.layers.{i}.mlp.shared_expert.gate_proj",
            "model.layers.{i}.mlp.shared_experts.gate_proj",
            "model.layers.{i}.shared_mlp.gate_proj",
        ],
    )
    .split(Split::SharedHidden),
    row(
        "shared_expert.up_proj",
        "blk.{i}.ffn_up_shexp",
        &[
            "model.layers.{i}.mlp.shared_expert.up_proj",
            "model.layers.{i}.mlp.shared_experts.up_proj",
            "model.layers.{i}.shared_mlp.up_proj",
            "backbone.layers.{i}.mixer.shared_experts.up_proj",
        ],
    )
    .split(Split::SharedHidden),
    row(
        "shared_expert.down_proj",
        "blk.{i}.ffn_down_shexp",
        &[
            "model.layers.{i}.mlp.shared_expert.down_proj",
            "model.layers.{i}.mlp.shared_experts.down_proj",
            "model.layers.{i}.shared_mlp.output_linear",
            "backbone.layers.{i}.mixer.shared_experts.down_proj",
        ],
    )
    .split(Split::FromSharedHidden),
    row("dense_expert.gate_proj", "blk.{i}.ffn_gate", &["model.layers.{i}.mlp.gate_proj"])
        .split(Split::SharedHidden),
    row("dense_expert.up_proj", "blk.{i}.ffn_up", &["model.layers.{i}.mlp.up_proj"])
        .split(Split::SharedHidden),
    row("dense_expert.down_proj", "blk.{i}.ffn_down", &["model.layers.{i}.mlp.down_proj"])
        .split(Split::FromSharedHidden),
    row("post_shared_norm", "blk.{i}.post_ffw_norm_1", &["model.layers.{i}.post_feedforward_layernorm_1"]),
    row("shared_expert.gate", "blk.{i}.ffn_gate_inp_shexp", &["model.layers.{i}.mlp.shared_expert_gate"]),
    row("experts_norm", "blk.{i}.pre_ffw_norm_2", &["model.layers.{i}.pre_feedforward_layernorm_2"]),
    row("post_experts_norm", "blk.{i}.post_ffw_norm_2", &["model.layers.{i}.post_feedforward_layernorm_2"]),
    row("experts.output_scale", "blk.{i}.ffn_down_exps.scale", &["model.layers.{i}.router.per_expert_scale"])
        .whole(),
    // No GGUF file has it.
    row("experts.output_bias", "blk.{i}.ffn_exps_bias", &["encoder.layers.{i}.mlp.experts.bias"]).whole(),
    // Each expert's gate before its up.
    row("experts.gate_up_proj", "blk.{i}.ffn_gate_up_exps", &["model.layers.{i}.experts.gate_up_proj"])
        .split(Split::GateUp),
    row(
        "experts.gate_proj",
        "blk.{i}.ffn_gate_exps",
        &[
            "model.layers.{i}.block_sparse_moe.experts.{e}.w1",
            "model.layers.{i}.mlp.experts.{e}.gate_proj",
            "model.layers.{i}.feed_forward.experts.{e}.w1",
            "model.layers.{i}.block_sparse_moe.experts.gate_proj",
            "model.layers.{i}.mlp.experts.gate_proj",
        ],
    )
    .split(Split::Hidden),
    row(
        "experts.up_proj",
        "blk.{i}.ffn_up_exps",
        &[
            "model.layers.{i}.block_sparse_moe.experts.{e}.w3",
            "model.layers.{i}.mlp.experts.{e}.up_proj",
            "model.layers.{i}.feed_forward.experts.{e}.w3",
            "model.layers.{i}.block_sparse_moe.experts.up_proj",
            "model.layers.{i}.mlp.experts.up_proj",
            "backbone.layers.{i}.mixer.experts.{e}.up_proj",
            "encoder.layers.{i}.mlp.experts.up_proj",
        ],
    )
    .split(Split::Hidden),
    row(
        "experts.down_proj",
        "blk.{i}.ffn_down_exps",
        &[
            "model.layers.{i}.block_sparse_moe.experts.{e}.w2",
            "model.layers.{i}.mlp.experts.{e}.down_proj",
            "model.layers.{i}.feed_forward.experts.{e}.w2",
            "model.layers.{i}.block_sparse_moe.output_linear",
            "model.layers.{i}.mlp.experts.down_proj",
            "model.layers.{i}.experts.down_proj",
            "backbone.layers.{i}.mixer.experts.{e}.down_proj",
            "encoder.layers.{i}.mlp.experts.down_proj",
        ],
    )
    .split(Split::FromHidden),
    row("experts.latent_down", "blk.{i}.ffn_latent_down", &["backbone.layers.{i}.mixer.fc1_latent_proj"]),
    row("experts.latent_up", "blk.{i}.ffn_latent_up", &["backbone.layers.{i}.mixer.fc2_latent_proj"]),
    row("per_layer.gate", "blk.{i}.inp_gate", &["model.layers.{i}.per_layer_input_gate"]),
    row("per_layer.proj", "blk.{i}.proj", &["model.layers.{i}.per_layer_projection"]),
    row("per_layer.post_norm", "blk.{i}.post_norm", &["model.layers.{i}.post_per_layer_input_norm"]),
    row("output_scale", "blk.{i}.layer_output_scale.weight", &["model.layers.{i}.layer_scalar"]).whole(),
    // Of a layer that drafts: what makes its input of the next token's embedding and of what the model made of a token, their norms, and
    // the norm before the output matrix.
    row("draft.proj", "blk.{i}.nextn.eh_proj", &["model.layers.{i}.eh_proj"]),
    row("draft.embed_norm", "blk.{i}.nextn.enorm", &["model.layers.{i}.enorm"]),
    row("draft.hidden_norm", "blk.{i}.nextn.hnorm", &["model.layers.{i}.hnorm"]),
    row("draft.head_norm", "blk.{i}.nextn.shared_head_norm", &["model.layers.{i}.shared_head.norm"]),
    // Copies of the model's own.
    row("draft.embed", "blk.{i}.nextn.embed_tokens", &["model.layers.{i}.embed_tokens"]),
    row("draft.head", "blk.{i}.nextn.shared_head_head", &["model.layers.{i}.shared_head.head"]),
];

fn find(ours: &str) -> &'static WeightName {
    NAMES.iter().find(|n| n.ours == ours).unwrap_or_else(|| panic!("no weight is called {ours}"))
}

/// How several devices share a weight.
///
/// # Panics
/// If `ours` is not in [`NAMES`].
pub fn split(ours: &str) -> Split {
    find(ours).split
}

/// The candidates for a weight's name in a format.
///
/// # Panics
/// If `ours` is not in [`NAMES`].
pub fn candidates(ours: &str, format: Format) -> &'static [&'static str] {
    let row = find(ours);
    match format {
        Format::Gguf => std::slice::from_ref(&row.gguf),
        Format::Safetensors => row.hf,
    }
}

/// All names under which a file may have a weight, with layer, expert and suffix filled in, the preferred first. Weights of a
/// multimodal model's text part stand below `language_model.`, those of an encoder alone or below its name.
pub(crate) fn spellings(
    ours: &str,
    format: Format,
    layer: Option<usize>,
    expert: Option<usize>,
    suffix: &str,
) -> impl Iterator<Item = String> {
    let row = find(ours);
    let is_whole = row.is_whole || (format == Format::Safetensors && row.hf_is_whole);
    candidates(ours, format).iter().flat_map(move |pattern| {
        let mut name = if is_whole { (*pattern).to_owned() } else { format!("{pattern}.{suffix}") };
        if let Some(i) = layer {
            name = name.replace("{i}", &i.to_string());
        }
        if let Some(e) = expert {
            name = name.replace("{e}", &e.to_string());
        }
        let nested = [format!("language_model.{name}"), name.replacen("model.", "model.language_model.", 1)];
        let bare = name.strip_prefix("model.").map(str::to_owned);
        let is_encoder = ["embeddings.", "encoder.", "pooler."].iter().any(|part| name.starts_with(part));
        let wrapped = ["bert", "roberta"].into_iter().filter(move |_| is_encoder).map({
            let name = name.clone();
            move |wrapper| format!("{wrapper}.{name}")
        });
        std::iter::once(name).chain(nested).chain(bare).chain(wrapped)
    })
}

/// The name that a file should have for a weight, for messages and for files that are written.
pub(crate) fn preferred(
    ours: &str,
    format: Format,
    layer: Option<usize>,
    expert: usize,
    suffix: &str,
) -> String {
    let first = spellings(ours, format, layer, Some(expert), suffix).next();
    first.unwrap_or_else(|| format!("{ours}.{suffix}"))
}

/// A weight's name in a model's files, if they have it.
pub fn file_name(
    source: &dyn TensorSource,
    ours: &str,
    layer: Option<usize>,
    expert: Option<usize>,
    suffix: &str,
) -> Option<String> {
    spellings(ours, source.format(), layer, expert, suffix).find(|name| source.find(name).is_some())
}
