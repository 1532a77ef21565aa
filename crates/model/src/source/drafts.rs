//! Names of the tensors that only draft tokens, where safetensors keep them apart from the layers, as Qwen 3.5 and Qwen3-Next do.

use super::{Format, Model};
use crate::Result;

/// Layers of a model whose files may have such tensors.
///
/// Errors: `WrongType`.
pub(super) fn n_layers(model: &Model) -> Result<Option<usize>> {
    if model.format != Format::Safetensors {
        return Ok(None);
    }
    match model.metadata.get_usize("num_hidden_layers")? {
        Some(n) => Ok(Some(n)),
        None => model.metadata.get_usize("text_config.num_hidden_layers"),
    }
}

/// The name that a tensor has as part of a layer behind the `n_layers` of the model; `None` where it keeps its own.
pub(super) fn in_layers(name: &str, n_layers: usize) -> Option<String> {
    let rest = name.strip_prefix("model.").unwrap_or(name).strip_prefix("mtp.")?;
    if let Some((layer, rest)) = rest.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
        let layer = layer.parse::<usize>().ok()?.checked_add(n_layers)?;
        return Some(format!("model.layers.{layer}.{rest}"));
    }
    let (outside, part) = rest.rsplit_once('.')?;
    let inside = match outside {
        "fc" => "eh_proj",
        "pre_fc_norm_embedding" => "enorm",
        "pre_fc_norm_hidden" => "hnorm",
        "norm" => "shared_head.norm",
        _ => return None,
    };
    Some(format!("model.layers.{n_layers}.{inside}.{part}"))
}

#[cfg(test)]
mod tests {
    use super::in_layers;

    #[test]
    fn tensors_that_draft_get_names_of_layers() {
        for (name, expected) in [
            ("mtp.fc.weight", "model.layers.24.eh_proj.weight"),
            ("mtp.norm.weight", "model.layers.24.shared_head.norm.weight"),
            ("model.mtp.pre_fc_norm_hidden.weight", "model.layers.24.hnorm.weight"),
            ("mtp.layers.0.self_attn.q_proj.weight", "model.layers.24.self_attn.q_proj.weight"),
            (
                "mtp.layers.1.mlp.experts.7.up_proj.weight_scale_inv",
                "model.layers.25.mlp.experts.7.up_proj.weight_scale_inv",
            ),
        ] {
            assert_eq!(in_layers(name, 24).as_deref(), Some(expected));
        }
        for name in [
            "model.layers.0.self_attn.q_proj.weight",
            "mtp.embed.weight",
            "mtp.fc",
            "mtp.layers.x.a",
            "mtp.layers.0",
        ] {
            assert_eq!(in_layers(name, 24), None, "{name}");
        }
        assert_eq!(in_layers("mtp.layers.18446744073709551615.a", 24), None);
    }
}
