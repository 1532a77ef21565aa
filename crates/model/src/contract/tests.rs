//! Models with tensors too few, too many, or of the wrong shape: all of it is said at once, and nothing is read before.

use super::{check, matches};
use crate::config::ModelConfig;
use crate::metadata::Metadata;
use crate::quant_mix::QuantMix;
use crate::source::{Format, TensorInfo, TensorSource, TensorView, open};
use crate::synth::{SYNTH_SHAPES, Synth};
use crate::{Decoder, Error, Result, arch};
use realizar_compute::{DType, Reference};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fixture with some tensors taken away and others added; counts the tensors that are read.
struct Edited {
    source: Box<dyn TensorSource>,
    tensors: Vec<TensorInfo>,
    metadata: Metadata,
    n_read: AtomicUsize,
}

impl Edited {
    fn new(fixture: &str) -> Self {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
        let source = open(&dir.join(fixture)).unwrap();
        let (tensors, metadata) = (source.tensors().to_vec(), source.metadata().clone());
        Self { tensors, metadata, source, n_read: AtomicUsize::new(0) }
    }

    fn without(mut self, part: &str) -> Self {
        let before = self.tensors.len();
        self.tensors.retain(|t| !t.name.contains(part));
        assert!(self.tensors.len() < before, "{part} is there");
        self
    }

    fn with(mut self, name: &str, shape: &[usize]) -> Self {
        self.tensors.retain(|t| t.name != name);
        self.tensors.push(TensorInfo::new(name.to_owned(), DType::F32, shape.to_vec()).unwrap());
        self
    }

    fn with_key(mut self, key: &str, value: u32) -> Self {
        let mut metadata = Metadata::new(self.path());
        for (k, v) in self.metadata.iter().filter(|(k, _)| *k != key) {
            metadata.insert(k, v.clone()).unwrap();
        }
        metadata.insert(key, value).unwrap();
        self.metadata = metadata;
        self
    }

    fn config(&self) -> ModelConfig {
        arch::configure(self).unwrap()
    }

    /// What loading says, before which nothing was read.
    fn error(&self) -> String {
        let config = self.config();
        self.n_read.store(0, Ordering::Relaxed);
        let error = Decoder::load(&Reference, self, config, 8).err().expect("an error").to_string();
        assert_eq!(self.n_read.load(Ordering::Relaxed), 0, "tensors were read before: {error}");
        error
    }
}

impl TensorSource for Edited {
    fn path(&self) -> &Path {
        self.source.path()
    }

    fn format(&self) -> Format {
        self.source.format()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|t| t.name == name)
    }

    fn tensor(&self, name: &str) -> Result<TensorView> {
        if self.find(name).is_none() {
            return Err(Error::MissingTensor { path: self.path().to_owned(), tensor: name.to_owned() });
        }
        self.n_read.fetch_add(1, Ordering::Relaxed);
        self.source.tensor(name)
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn sibling(&self, file_name: &str) -> Option<PathBuf> {
        self.source.sibling(file_name)
    }
}

fn assert_says(error: &str, parts: &[&str]) {
    for part in parts {
        assert!(error.contains(part), "{part:?} is not in {error:?}");
    }
}

#[test]
fn missing_tensors_are_named_together() {
    let one = Edited::new("qwen3/hf").without("layers.1.self_attn.k_norm");
    assert_says(&one.error(), &["tensor \"model.layers.1.self_attn.k_norm.weight\" is missing"]);
    let several = Edited::new("llama/model.gguf").without("attn_k.").without("blk.0.ffn_norm");
    assert_says(
        &several.error(),
        &[
            "3 tensors are wrong",
            "\"blk.0.attn_k.weight\" is missing",
            "\"blk.1.attn_k.weight\"",
            "\"blk.0.ffn_norm.weight\"",
        ],
    );
    // Of many, the first.
    let many = Edited::new("llama/hf").without("layers.");
    assert_says(&many.error(), &["18 tensors are wrong", "layers.0.input_layernorm", "and 10 more"]);
}

#[test]
fn an_expert_or_a_bias_that_is_missing_is_an_error() {
    let expert = Edited::new("mixtral/hf").without("layers.1.block_sparse_moe.experts.2.w3");
    assert_says(&expert.error(), &["layers.1.block_sparse_moe.experts.2.w3.weight\" is missing"]);
    let bias = Edited::new("qwen2/hf").without("layers.0.self_attn.k_proj.bias");
    assert_says(&bias.error(), &["\"model.layers.0.self_attn.k_proj.bias\" is missing"]);
    // GGUF does not say whether a Llama model has biases, but stacked matrices have all or none.
    let some = Edited::new("llama-gqa/model.gguf").without("blk.1.attn_v.bias");
    assert_says(&some.error(), &["\"blk.1.attn_v.bias\" is missing"]);
    let none = Edited::new("llama-gqa/model.gguf").without("bias");
    check(&none, &none.config()).unwrap();
}

#[test]
fn a_tensor_that_nobody_asked_for_is_an_error() {
    for (fixture, tensor) in [
        ("llama/hf", "model.layers.0.self_attn.q_proj.bias"),
        ("llama/model.gguf", "blk.0.attn_q_norm.weight"),
        ("qwen3moe/model.gguf", "blk.1.ffn_gate_shexp.weight"),
        ("qwen3/hf", "model.layers.2.input_layernorm.weight"),
        ("qwen2/model.gguf", "mtp.weight"),
    ] {
        let error = Edited::new(fixture).with(tensor, &[16]).error();
        assert_says(&error, &[tensor, "is no part of this program's description of"]);
    }
    // Beside fused matrices, separate ones would be.
    let error = Edited::new("phi3/hf").with("model.layers.0.self_attn.q_proj.weight", &[24, 24]).error();
    assert_says(&error, &["layers.0.self_attn.q_proj.weight", "no part"]);
    let error = Edited::new("llama/hf").with("model.layers.0.mlp.up_proj.weight_scale", &[1]).error();
    assert_says(&error, &["up_proj.weight_scale", "scales of quantized weights", "use an unquantized model"]);
}

#[test]
fn one_tensor_is_not_two_weights() {
    // Without the first name, the second of Gemma's would be found under the name of another norm.
    let error = Edited::new("gemma2/hf").without("layers.0.pre_feedforward_layernorm").error();
    assert_says(
        &error,
        &["layers.0.post_attention_layernorm.weight\" would be both post_attn_norm and ffn_norm"],
    );
    // The configuration says that the matrices differ.
    let error = Edited::new("llama-gqa/hf").without("lm_head").error();
    assert_says(&error, &["\"lm_head.weight\" is missing"]);
    let error = Edited::new("llama-gqa/hf").without("embed_tokens").error();
    assert_says(&error, &["lm_head.weight\" is the only one of embedding and output matrix"]);
}

#[test]
fn wrong_shapes_are_named() {
    let error = Edited::new("llama/model.gguf")
        .with("blk.1.ffn_down.weight", &[24, 24])
        .with("output_norm.weight", &[23])
        .error();
    assert_says(
        &error,
        &["\"blk.1.ffn_down.weight\" has shape [24, 24] where [24, 28] was expected", "[23] where [24]"],
    );
    let error = Edited::new("gpt2/hf").with("transformer.h.0.mlp.c_fc.weight", &[96, 24]).error();
    assert_says(&error, &["c_fc.weight\" has shape [96, 24] where [24, 96] was expected"]);
    let error = Edited::new("mixtral/model.gguf").with("blk.0.ffn_up_exps.weight", &[3, 16, 24]).error();
    assert_says(&error, &["blk.0.ffn_up_exps.weight\" has shape [3, 16, 24] where [4, 16, 24]"]);
}

#[test]
fn what_is_known_to_be_harmless_is_ignored() {
    for (fixture, tensor) in [
        ("llama/hf", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt2/hf", "transformer.h.1.attn.bias"),
        ("gemma3/hf", "vision_tower.vision_model.embeddings.patch_embedding.weight"),
        ("gemma3/model.gguf", "mm.input_projection.weight"),
        ("qwen35moe/hf", "mtp.layers.0.mlp.experts.0.up_proj.weight"),
        ("qwen35moe/hf", "model.visual.blocks.0.attn.qkv.weight"),
        ("qwen3next/hf", "mtp.layers.0.self_attn.q_proj.weight"),
        ("gemma4/hf", "model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.weight"),
        ("gemma4/hf", "model.embed_audio.embedding_projection.weight"),
        // Of layers that read the keys and values of others.
        ("gemma4/hf", "model.layers.4.self_attn.k_norm.weight"),
        ("gemma4/model.gguf", "blk.6.attn_v.weight"),
        ("deepseek3/hf", "vision_tower.encoder.blocks.0.wqkv.weight"),
        ("deepseek3/model.gguf", "blk.1.attn_kv_b.weight"),
        // A copy of the embedding.
        ("llama/hf", "lm_head.weight"),
        ("bitnet/model.gguf", "output.weight"),
    ] {
        let edited = Edited::new(fixture).with(tensor, &[4, 4]);
        check(&edited, &edited.config()).unwrap_or_else(|e| panic!("{fixture}: {e}"));
    }
}

#[test]
fn layers_that_draft_are_read_or_left() {
    for fixture in [
        "qwen35/hf",
        "qwen35/hf-wrapped",
        "qwen35/model.gguf",
        "qwen35moe/model.gguf",
        "qwen3next/hf",
        "glm4moe/model.gguf",
        "deepseek3/hf",
    ] {
        let model = Edited::new(fixture);
        let mut config = model.config();
        assert_eq!((config.n_draft_layers, config.n_unread_layers), (1, 0), "{fixture}");
        check(&model, &config).unwrap();
        config.without_draft_layers();
        assert_eq!((config.n_draft_layers, config.n_unread_layers), (0, 1), "{fixture}");
        check(&model, &config).unwrap();
    }
    // Some files state layers that they do not have.
    let stated = Edited::new("qwen35/model.gguf").without("blk.5.");
    assert_eq!((stated.config().layers.len(), stated.config().n_draft_layers), (5, 0));
    check(&stated, &stated.config()).unwrap();
    for part in ["nextn.hnorm", "blk.5.attn_k.weight"] {
        assert_says(&Edited::new("qwen35/model.gguf").without(part).error(), &[part, "is missing"]);
    }
    let without_norm = Edited::new("qwen35/model.gguf").without("nextn.shared_head_norm");
    check(&without_norm, &without_norm.config()).unwrap();
    let narrow = Edited::new("qwen35/model.gguf").with("blk.5.nextn.eh_proj.weight", &[24, 24]);
    assert_says(&narrow.error(), &["eh_proj", "has shape [24, 24] where [24, 48]"]);
    let all = Edited::new("qwen35/model.gguf").with_key("qwen35.nextn_predict_layers", 6);
    assert_says(&arch::configure(&all).unwrap_err().to_string(), &["6 of its 6 layers draft tokens"]);
}

#[test]
fn recurrent_layers_need_all_their_tensors() {
    for (fixture, tensor) in [
        ("qwen35/hf", "model.layers.0.linear_attn.A_log"),
        ("qwen35/hf", "model.layers.2.linear_attn.dt_bias"),
        ("qwen35/hf-wrapped", "model.language_model.layers.3.linear_attn.conv1d.weight"),
        ("qwen35/model.gguf", "blk.0.ssm_dt.bias"),
        ("qwen35/model.gguf", "blk.0.ssm_a"),
        ("qwen3next/hf", "model.layers.2.linear_attn.in_proj_z.weight"),
        ("lfm2/hf", "model.layers.0.conv.conv.weight"),
        ("lfm2/model.gguf", "blk.3.shortconv.in_proj.weight"),
        ("nemotron-h/hf", "backbone.layers.0.mixer.D"),
        ("nemotron-h/hf", "backbone.layers.2.mixer.conv1d.bias"),
        ("nemotron-h/model.gguf", "blk.2.ssm_norm.weight"),
        ("granite-hybrid/model.gguf", "blk.0.ssm_a"),
    ] {
        let error = Edited::new(fixture).without(tensor).error();
        assert_says(&error, &[&tensor.replace(".language_model", ""), "is missing"]);
        let error = Edited::new(fixture).with(tensor, &[5]).error();
        assert_says(&error, &[tensor, "has shape [5] where"]);
    }
}

#[test]
fn latent_attention_needs_all_its_tensors() {
    for (fixture, tensor) in [
        ("deepseek2-lite/hf", "model.layers.1.self_attn.q_proj.weight"),
        ("deepseek3/hf", "model.layers.0.self_attn.q_a_layernorm.weight"),
        ("deepseek3/hf", "model.layers.2.self_attn.kv_b_proj.keys.weight"),
        ("deepseek3/model.gguf", "blk.1.attn_kv_a_mqa.weight"),
        ("deepseek3/model.gguf", "blk.1.attn_v_b.weight"),
        ("glm4moelite/model.gguf", "blk.1.attn_q_b.weight"),
    ] {
        assert_says(&Edited::new(fixture).without(tensor).error(), &[tensor, "is missing"]);
        let error = Edited::new(fixture).with(tensor, &[5]).error();
        assert_says(&error, &[tensor, "has shape [5] where"]);
    }
}

#[test]
fn a_model_without_attention_is_refused() {
    let convolves = Edited::new("lfm2/model.gguf").with_key("lfm2.attention.head_count_kv", 0);
    assert_says(&arch::configure(&convolves).unwrap_err().to_string(), &["no layer attends"]);
}

#[test]
fn synthetic_models_keep_the_contract() {
    for shape in SYNTH_SHAPES {
        let synth = Synth::new(shape, QuantMix::from_name("q4_k_m").unwrap(), 1, 1).unwrap();
        let config = arch::configure(&synth).unwrap();
        check(&synth, &config).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn a_star_stands_for_any_characters() {
    assert!(matches("*.rotary_emb.inv_freq", "model.layers.12.self_attn.rotary_emb.inv_freq"));
    assert!(matches("v.*", "v.blk.0.attn_q.weight"));
    assert!(matches("blk.*.attn_rot_embd*", "blk.3.attn_rot_embd.weight"));
    assert!(!matches("*.attn.bias", "h.0.attn.c_attn.bias"));
    assert!(!matches("v.*", "blk.0.attn_v.weight"));
    assert!(!matches("output.weight", "blk.0.attn_output.weight"));
}

#[test]
fn only_the_stated_number_of_layers_may_draft() {
    for (form, own, beyond) in [
        ("glm4moe/hf", "model.layers.3.eh_proj.weight", "model.layers.4.eh_proj.weight"),
        ("deepseek3/hf", "model.layers.3.eh_proj.weight", "model.layers.4.eh_proj.weight"),
        ("glm4moe/model.gguf", "blk.3.nextn.eh_proj.weight", "blk.4.nextn.eh_proj.weight"),
    ] {
        let model = Edited::new(form);
        assert!(model.find(own).is_some(), "{form}");
        assert_eq!(model.config().n_main_layers(), 3, "{form}");
        check(&model, &model.config()).unwrap();
        let error = model.with(beyond, &[24, 48]).error();
        assert!(error.contains(beyond), "{error}");
    }
}
