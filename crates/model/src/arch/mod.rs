//! The architectures: for each one, how its hyper-parameters become a [`ModelConfig`].
//!
//! A new architecture is a file here and a row in [`ARCHS`]; `names.rs` only where it has a weight that nobody had before.

mod bert;
mod bitnet;
mod cohere2;
mod deepseek2;
mod encoder;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod families;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4_moe;
mod gpt2;
mod gpt_oss;
mod granite;
mod granite_hybrid;
mod granite_moe;
mod hunyuan;
mod jina_bert_v2;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mamba2;
mod minimax_m2;
mod mistral;
mod mistral3;
mod mistral4;
mod mixtral;
mod modern_bert;
mod nemotron_h;
mod nomic_bert;
mod olmo2;
mod olmo3;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen35;
mod qwen35_moe;
mod qwen3_moe;
mod qwen3_next;
mod seed_oss;
mod smollm3;
mod starcoder2;
mod unsupported;

use crate::config::ModelConfig;
use crate::hyper::Hyper;
use crate::source::{Format, TensorSource};
use crate::{Error, Result, names};
use realizar_compute::AttentionTemperature;

/// One architecture.
pub struct ArchSpec {
    /// Our name.
    pub name: &'static str,
    /// `general.architecture` in GGUF.
    pub gguf: &'static [&'static str],
    /// `architectures` in `config.json`.
    pub hf: &'static [&'static str],
    /// Reads the hyper-parameters.
    pub configure: fn(&Hyper<'_>) -> Result<ModelConfig>,
    /// Tensors that files of this architecture are known to have and that change nothing.
    pub ignored: &'static [Ignored],
}

/// Tensors that a model does without.
#[derive(Clone, Copy)]
pub struct Ignored {
    /// Their names in files of any format; `*` stands for any characters.
    pub pattern: &'static str,
    /// Why nothing is lost.
    pub reason: &'static str,
}

/// Buffers that old versions of the reference library saved.
const INV_FREQ: Ignored =
    Ignored { pattern: "*.rotary_emb.inv_freq", reason: "the hyper-parameters say the frequencies" };

/// Why the parts of a multimodal model that see are left out.
const IMAGES: &str = "images are not read";

/// The image encoder of Qwen's multimodal models. For text, all sections of a rotation have the same position, so that they rotate as the
/// text models do.
const VISUAL: [Ignored; 2] =
    [Ignored { pattern: "visual.*", reason: IMAGES }, Ignored { pattern: "model.visual.*", reason: IMAGES }];

/// All architectures.
pub static ARCHS: &[ArchSpec] = &[
    llama::SPEC,
    mistral::SPEC,
    mixtral::SPEC,
    qwen2::SPEC,
    qwen3::SPEC,
    qwen3_moe::SPEC,
    qwen35::SPEC,
    qwen35_moe::SPEC,
    qwen3_next::SPEC,
    phi2::SPEC,
    phi3::SPEC,
    gemma2::SPEC,
    gemma3::SPEC,
    gemma4::SPEC,
    gpt2::SPEC,
    bitnet::SPEC,
    glm4::SPEC,
    olmo2::SPEC,
    lfm2::SPEC,
    lfm2_moe::SPEC,
    mistral3::SPEC,
    smollm3::SPEC,
    olmo3::SPEC,
    gemma::SPEC,
    granite::SPEC,
    granite_moe::SPEC,
    granite_hybrid::SPEC,
    seed_oss::SPEC,
    exaone4::SPEC,
    cohere2::SPEC,
    starcoder2::SPEC,
    ernie4_5::SPEC,
    gpt_oss::SPEC,
    qwen2_moe::SPEC,
    glm4_moe::SPEC,
    minimax_m2::SPEC,
    ernie4_5_moe::SPEC,
    hunyuan::SPEC,
    deepseek2::SPEC,
    mistral4::SPEC,
    nemotron_h::SPEC,
];

/// Architectures that only make vectors or scores of texts. Others do, too, where their files say so.
pub static ENCODERS: &[ArchSpec] = &[
    bert::SPEC,
    nomic_bert::SPEC,
    nomic_bert::MOE,
    nomic_bert::JINA_V3,
    jina_bert_v2::SPEC,
    modern_bert::SPEC,
    gemma_embedding::SPEC,
];

/// All architectures of both kinds.
fn all() -> impl Iterator<Item = &'static ArchSpec> {
    ARCHS.iter().chain(ENCODERS)
}

/// Reads a model's description.
///
/// Errors: `UnsupportedArchitecture` with what the architecture needs, where it is known, and else `UnknownArchitecture` with the names of
/// those we know; any contradiction in the file.
pub fn configure(source: &dyn TensorSource) -> Result<ModelConfig> {
    let (name, spec) = find(source)?;
    let hyper = Hyper::new(source, &name);
    let mut config = (spec.configure)(&hyper)?;
    if config.heads().next().is_none() {
        return Err(hyper.unsupported("a model of which no layer attends"));
    }
    let has_draft_layer =
        || names::file_name(source, "draft.proj", Some(config.layers.len()), None, "weight").is_some();
    if DRAFTING.contains(&config.arch) && has_draft_layer() {
        config.add_draft_layer();
    }
    Ok(config)
}

/// Architectures whose files may have a layer that drafts tokens behind the others, which is like the last of these that attends.
const DRAFTING: [&str; 5] = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek2"];

/// Makes a model a reranker that answers "yes" or "no", whose files do not say that it is one; `tokens` are those of "yes" and "no".
///
/// Errors: a model of which no such reranker is made, which is any but a Qwen3 that makes text; tokens that it does not have.
pub fn make_yes_no(config: &mut ModelConfig, source: &dyn TensorSource, tokens: [u32; 2]) -> Result<()> {
    let hyper = Hyper::new(source, config.arch);
    if config.arch != qwen3::SPEC.name || config.encoder.is_some() {
        return Err(hyper
            .unsupported("only a Qwen3 that makes text can be read as a reranker that answers yes or no"));
    }
    encoder::make_yes_no(config, &hyper, tokens)
}

/// Base of the rotation in layers with a window, where the file states one.
///
/// Errors: a rotation that is stretched there.
fn local_theta(h: &Hyper<'_>) -> Result<Option<f32>> {
    if !h.is_gguf() {
        let kind = h.hf_str("rope_parameters.sliding_attention.rope_type")?;
        if let Some(kind) = kind.filter(|&kind| kind != "default") {
            let reason = format!("RoPE scaling {kind:?} in layers with a window is not supported");
            return Err(h.unsupported(reason));
        }
    }
    h.f32("rope_theta_local")
}

/// How queries grow with their position; `default` is what the file means where it does not say it.
///
/// Errors: numbers that cannot be, and a file that does not say from which position on.
fn attention_temperature(h: &Hyper<'_>, default: Option<f32>) -> Result<Option<AttentionTemperature>> {
    let Some(beta) = h.f32("attention_temperature")?.or(default).filter(|&beta| beta != 0.0) else {
        return Ok(None);
    };
    let period = match h.usize("rope_original_context")? {
        Some(n) => Some(n),
        None => h.hf_usize("rope_parameters.original_max_position_embeddings")?,
    };
    let period = period.filter(|&n| n > 0).ok_or_else(|| {
        h.invalid("queries grow with their position, but the context of the first training is not stated")
    })?;
    if !beta.is_finite() {
        return Err(h.invalid(format!("queries grow with their position by {beta}")));
    }
    Ok(Some(AttentionTemperature { beta, period }))
}

/// What people call the family of an architecture, by our name of it.
pub fn family(arch: &str) -> Option<&'static str> {
    families::FAMILIES.iter().find(|(name, _)| *name == arch).map(|(_, family)| *family)
}

/// The tensors that an architecture does without.
pub(crate) fn ignored(arch: &str) -> &'static [Ignored] {
    all().find(|a| a.name == arch).map_or(&[], |a| a.ignored)
}

fn find(source: &dyn TensorSource) -> Result<(String, &'static ArchSpec)> {
    let meta = source.metadata();
    let missing = |key: &str| Error::MissingKey { path: source.path().to_owned(), key: key.to_owned() };
    let (name, spec) = match source.format() {
        Format::Gguf => {
            let name =
                meta.get_str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
            (name.to_owned(), all().find(|a| a.gguf.contains(&name)))
        }
        Format::Safetensors => {
            let names = meta.get_strings("architectures")?.ok_or_else(|| missing("architectures"))?;
            let name = names.first().ok_or_else(|| missing("architectures"))?.to_string();
            let spec = all().find(|a| a.hf.contains(&name.as_str()));
            (name, spec)
        }
    };
    spec.map(|spec| (name.clone(), spec)).ok_or_else(|| {
        if let Some(known) = unsupported::UNSUPPORTED.iter().find(|u| u.names.contains(&name.as_str())) {
            return Error::UnsupportedArchitecture {
                path: source.path().to_owned(),
                found: name,
                family: known.family,
                needs: known.needs,
            };
        }
        let known = all().flat_map(|a| match source.format() {
            Format::Gguf => a.gguf,
            Format::Safetensors => a.hf,
        });
        Error::UnknownArchitecture {
            path: source.path().to_owned(),
            found: name,
            known: known.copied().collect::<Vec<_>>().join(", "),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::families::FAMILIES;
    use super::unsupported::UNSUPPORTED;
    use super::{all, configure};
    use crate::Error;
    use crate::config::{Ffn, Mixer};
    use crate::gguf;
    use realizar_compute::{GroupScore, RouterScores};
    use std::collections::HashSet;

    #[test]
    fn a_name_is_supported_or_not_and_stands_there_once() {
        let supported = all().flat_map(|a| a.gguf.iter().chain(a.hf));
        let unsupported = UNSUPPORTED.iter().flat_map(|u| u.names);
        let mut seen = HashSet::new();
        for name in supported.chain(unsupported) {
            assert!(seen.insert(name), "{name} stands there twice");
        }
    }

    #[test]
    fn every_architecture_is_named_as_people_do_and_documented() {
        let ours: HashSet<_> = all().map(|a| a.name).collect();
        let named: HashSet<_> = FAMILIES.iter().map(|f| f.0).collect();
        assert_eq!(ours, named);
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/models.md");
        let documented = std::fs::read_to_string(path).unwrap();
        for arch in all() {
            assert!(documented.contains(&format!("| `{}` |", arch.name)), "{} has no row", arch.name);
        }
    }

    /// What a `config.json` means beside the weights of a fixture.
    fn configured(fixture: &str, config: &str) -> crate::Result<crate::ModelConfig> {
        let weights = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("tests/data/arch/{fixture}/hf/model.safetensors"));
        let name = format!("realizar-configured-{fixture}-{}-{}", config.len(), std::process::id());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::copy(weights, dir.join("model.safetensors")).unwrap();
        std::fs::write(dir.join("config.json"), config).unwrap();
        let found = configure(&*crate::source::open(&dir).unwrap());
        std::fs::remove_dir_all(dir).unwrap();
        found
    }

    #[test]
    fn gemma_4_has_the_numbers_that_its_published_folders_leave_out() {
        // As transformers 5 writes it, but for the sizes of the fixture.
        let text = r#""hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 12, "attention_k_eq_v": true"#;
        let own = r#""per_layer_config": {"05": {"head_dim": 64, "num_key_value_heads": 1}, "11": {"head_dim": 64, "num_key_value_heads": 1}}"#;
        let published =
            r#""num_global_key_value_heads": 2, "layer_types": null, "hidden_size_per_layer_input": null"#;
        for (keys, global) in [(own, (8, 1, 64)), (published, (8, 2, 512))] {
            let config = format!(
                r#"{{"architectures": ["Gemma4ForConditionalGeneration"], "text_config": {{{text}, {keys}}}}}"#
            );
            let c = configured("gemma4-moe", &config).unwrap();
            let heads = |i: usize| {
                let a = c.attentions().nth(i).unwrap();
                (a.heads.n_heads, a.heads.n_kv_heads, a.heads.head_dim)
            };
            assert_eq!((heads(4), heads(5), heads(11)), ((8, 4, 256), global, global));
            let windows: Vec<_> = c.attentions().map(|a| a.window).collect();
            assert_eq!((windows[4], windows[5], windows[11]), (Some(512), None, None));
            assert_eq!((c.ropes[0].theta, c.ropes[1].theta), (1e6, 1e4));
            assert_eq!((c.ropes[0].dim, c.ropes[1].dim), (global.2, 256));
            // A quarter of the pairs turns.
            let (frequencies, _) = c.ropes[0].frequencies(1);
            assert_eq!(frequencies.iter().filter(|&&f| f > 1e-20).count(), global.2 / 8);
            assert_eq!((c.per_layer_input, c.experts().count()), (None, 0));
        }
    }

    #[test]
    fn gemma_4_that_contradicts_itself_is_refused() {
        let refused = |keys: &str, part: &str| {
            let config = format!(
                r#"{{"architectures": ["Gemma4ForCausalLM"], "hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 7, {keys}}}"#
            );
            let error = configured("gemma4", &config).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(r#""num_kv_shared_layers": 7"#, "7 of its 7 layers share");
        refused(r#""num_kv_shared_layers": 2"#, "layer 5 shares keys and values");
        refused(r#""use_bidirectional_attention": "all""#, "both directions");
        refused(r#""global_head_dim": 0"#, "head_dim is 0");
        refused(r#""attention_k_eq_v": true, "num_global_key_value_heads": 3"#, "cannot share 3");
        refused(r#""hidden_size_per_layer_input": 300"#, "have 300 elements");
        refused(
            r#""rope_parameters": {"sliding_attention": {"rope_type": "linear"}}"#,
            "in layers with a window",
        );
    }

    /// The sizes of the fixture deepseek2-lite.
    const LATENT: &str = r#""hidden_size": 24, "intermediate_size": 28, "num_hidden_layers": 3, "num_attention_heads": 3,
        "max_position_embeddings": 64, "qk_nope_head_dim": 12, "v_head_dim": 10"#;
    const EXPERTS: &str = r#""n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12"#;

    #[test]
    fn deepseek_reads_what_published_folders_state() {
        // Of V2-Lite, V2, V3 and Kimi VL.
        let yarn = r#""rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}"#;
        let text = format!(r#"{LATENT}, {EXPERTS}, "qk_rope_head_dim": 8, "kv_lora_rank": 24, {yarn}"#);
        let read = |arch: &str, keys: &str| {
            let config = format!(r#"{{"architectures": ["{arch}"], {text}, {keys}}}"#);
            configured("deepseek2-lite", &config).unwrap()
        };
        let lite = read(
            "DeepseekV2ForCausalLM",
            r#""q_lora_rank": null, "n_group": 4, "topk_group": 2, "topk_method": "greedy""#,
        );
        let latent = *lite.latents().next().unwrap();
        assert_eq!((lite.latents().count(), latent.q_rank, latent.shape.key_dim()), (3, None, 32));
        let magnitude = 0.0707 * 40f32.ln() + 1.0;
        assert!((latent.scale - magnitude * magnitude / 20f32.sqrt()).abs() < 1e-6, "{}", latent.scale);
        assert_eq!(lite.ropes[0].frequencies(64).1, 1.0);
        // Without a bias the router is V2's, and all experts are one group.
        let router = lite.experts().next().unwrap().router;
        assert_eq!((router.scores, router.groups, router.norm_topk), (RouterScores::Softmax, None, false));
        let whole = read(
            "DeepseekV2ForCausalLM",
            r#""n_group": 4, "topk_group": 2, "topk_method": "group_limited_greedy""#,
        );
        let groups = whole.experts().next().unwrap().router.groups.unwrap();
        assert_eq!((groups.count, groups.n_used, groups.score), (4, 2, GroupScore::Largest));
        let keys = r#""scoring_func": "sigmoid", "first_k_dense_replace": 2, "attention_bias": false"#;
        let stated = read("DeepseekV3ForCausalLM", keys);
        let sparse: Vec<_> = stated.layers.iter().map(|l| matches!(l.ffn, Ffn::Experts(_))).collect();
        assert_eq!(sparse, [false, false, true]);
        assert_eq!(stated.experts().next().unwrap().router.scores, RouterScores::Sigmoid);
        let wrapped = format!(
            r#"{{"architectures": ["KimiVLForConditionalGeneration"], "text_config": {{{text}, "q_lora_rank": null}}}}"#
        );
        let wrapped = configured("deepseek2-lite", &wrapped).unwrap();
        assert_eq!(wrapped.latents().next(), Some(&latent));
    }

    #[test]
    fn deepseek_that_contradicts_itself_is_refused() {
        let refused = |keys: &str, part: &str| {
            let config =
                format!(r#"{{"architectures": ["DeepseekV2ForCausalLM"], {LATENT}, {EXPERTS}, {keys}}}"#);
            let error = configured("deepseek2", &config).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(r#""qk_rope_head_dim": 7, "kv_lora_rank": 24"#, "RoPE turns 7 elements");
        refused(r#""qk_rope_head_dim": 8"#, "kv_lora_rank");
        refused(r#""qk_rope_head_dim": 8, "kv_lora_rank": 0"#, "kv_rank is 0");
        refused(r#""qk_rope_head_dim": 8, "kv_lora_rank": 24, "q_lora_rank": 0"#, "q_rank is 0");
        let sizes = r#""qk_rope_head_dim": 8, "kv_lora_rank": 24"#;
        refused(&format!(r#"{sizes}, "n_group": 3"#), "3 groups");
        refused(&format!(r#"{sizes}, "mlp_layer_types": ["dense"]"#), "1 entries for 3 layers");
        refused(
            &format!(r#"{sizes}, "mlp_layer_types": ["dense", "odd", "sparse"]"#),
            "\"odd\" is not known",
        );
        refused(&format!(r#"{sizes}, "scoring_func": "tanh""#), "\"tanh\" is not known");
    }

    #[test]
    fn gemma_3_has_the_numbers_that_its_published_folders_leave_out() {
        // As the 4B model has it, but for the sizes of the fixture.
        let config = r#"{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": {
            "hidden_size": 24, "intermediate_size": 28, "model_type": "gemma3_text", "num_hidden_layers": 7,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}}"#;
        let c = configured("gemma3-vision", config).unwrap();
        let heads: Vec<_> =
            c.attentions().map(|a| (a.heads.n_heads, a.heads.n_kv_heads, a.heads.head_dim)).collect();
        assert_eq!(heads, [(8, 4, 256); 7]);
        assert_eq!((c.context_length, c.norm_eps), (131_072, 1e-6));
        let windows: Vec<_> = c.attentions().map(|a| a.window).collect();
        let local = Some(1024);
        assert_eq!(windows, [local, local, local, local, local, None, local]);
        assert_eq!((c.ropes[0].theta, c.ropes[1].theta), (1e6, 1e4));
    }

    /// Nemotron-H's `config.json` with these keys.
    fn nemotron_h(keys: &str) -> crate::Result<crate::ModelConfig> {
        let config = format!(
            r#"{{"architectures": ["NemotronHForCausalLM"], "hidden_size": 24, "intermediate_size": 28, "num_attention_heads": 3,
            "head_dim": 10, "num_key_value_heads": 1, "max_position_embeddings": 256, "mamba_num_heads": 4, "mamba_head_dim": 16,
            "n_groups": 2, "ssm_state_size": 10, "conv_kernel": 4, {keys}}}"#
        );
        configured("nemotron-h", &config)
    }

    #[test]
    fn nemotron_h_is_the_same_in_both_forms_of_its_folders() {
        let letters =
            r#""hybrid_override_pattern": "M-*", "num_hidden_layers": 3, "time_step_limit": [0.0, Infinity]"#;
        let names = r#""layers_block_type": ["linear_attention", "mlp", "full_attention"],
            "time_step_limit": [0.0, {"__float__": "Infinity"}]"#;
        let config = nemotron_h(letters).unwrap();
        assert_eq!(config, nemotron_h(names).unwrap());
        let kinds: Vec<_> = config
            .layers
            .iter()
            .map(|l| (l.mixer.recurrent_state().is_some(), l.mixer == Mixer::None, l.ffn == Ffn::None))
            .collect();
        assert_eq!(kinds, [(true, false, true), (false, true, false), (false, false, true)]);
        let limited =
            nemotron_h(r#""hybrid_override_pattern": "M*", "time_step_limit": [0.1, 0.5]"#).unwrap();
        let Mixer::Mamba2(mamba) = limited.layers[0].mixer else { panic!("{limited:?}") };
        assert_eq!((mamba.dt_limits.min, mamba.dt_limits.max), (0.1, 0.5));
    }

    #[test]
    fn nemotron_h_that_contradicts_itself_is_refused() {
        for (keys, part) in [
            (r#""hybrid_override_pattern": "MX""#, "layer type \"X\""),
            (r#""hybrid_override_pattern": "ME*""#, "n_routed_experts"),
            (r#""hybrid_override_pattern": """#, "kinds of 0 layers"),
            (
                r#""hybrid_override_pattern": "M*", "num_hidden_layers": 3"#,
                "kinds of 2 layers are stated for 3",
            ),
            (r#""hybrid_override_pattern": "M*", "time_step_limit": [1.0, 0.5]"#, "time_step_limit"),
            (r#""hybrid_override_pattern": "M*", "time_step_limit": [0.0, NaN]"#, "time_step_limit"),
            (r#""hybrid_override_pattern": "M*", "use_bias": true"#, "biases"),
            (r#""vocab_size": 272"#, "hybrid_override_pattern"),
            (r#""hybrid_override_pattern": "M-""#, "no layer attends"),
        ] {
            let error = nemotron_h(keys).unwrap_err().to_string();
            assert!(error.contains(part), "{keys}: {error}");
        }
    }

    #[test]
    fn a_family_that_is_known_but_not_supported_is_refused_with_what_it_needs() {
        let dir = std::env::temp_dir().join(format!("realizar-unsupported-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let refusal = |path: &std::path::Path| {
            let error = configure(&*crate::source::open(path).unwrap()).unwrap_err();
            assert!(matches!(error, Error::UnsupportedArchitecture { .. }), "{error}");
            error.to_string()
        };
        let gguf_file = dir.join("model.gguf");
        let mut header = gguf::Header::new(&gguf_file);
        header.set("general.architecture", "deepseek32").unwrap();
        let writer = gguf::Writer::new(std::fs::File::create(&gguf_file).unwrap(), header).unwrap();
        writer.finish().unwrap();
        let error = refusal(&gguf_file);
        assert!(error.contains("DeepSeek V3.2") && error.contains("indexer"), "{error}");

        let folder = dir.join("hf");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("config.json"), r#"{"architectures": ["JambaForCausalLM"]}"#).unwrap();
        let weights = b"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
        let mut bytes = (weights.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(weights);
        bytes.extend_from_slice(&[0; 4]);
        std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
        let error = refusal(&folder);
        assert!(error.contains("Jamba") && error.contains("Mamba layers"), "{error}");
        std::fs::remove_dir_all(dir).unwrap();
    }
}
