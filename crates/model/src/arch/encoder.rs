//! How a model's files say that it makes a vector or a score of a text: GGUF's pooling type, or sentence-transformers' list of modules.

use crate::Result;
use crate::config::{Encoder, EncoderOutput, HeadLayer, ModelConfig, Presence, Tied};
use crate::hyper::Hyper;
use crate::names;
use realizar_compute::Pooling;
use serde_json::Value;
use std::path::Path;

/// The largest file of sentence-transformers that is read, in bytes; real ones have hundreds.
const MAX_BYTES: u64 = 1 << 20;

/// Sentence-transformers' own choice where a folder has no list of modules.
const DEFAULT: Pooling = Pooling::Mean;

/// Makes a model an encoder. `own` is how it pools where its files do not say it.
pub(super) fn make(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    let embedding = || Encoder {
        pooling: DEFAULT,
        head: Vec::new(),
        output: EncoderOutput::Embedding { normalize: true },
    };
    let stated = stated(c, h)?;
    finish(c, stated.unwrap_or_else(embedding));
    Ok(())
}

/// Makes a model an encoder if its files say so.
pub(super) fn make_if_stated(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    if let Some(encoder) = stated(c, h)? {
        finish(c, encoder);
    }
    Ok(())
}

fn finish(c: &mut ModelConfig, encoder: Encoder) {
    c.encoder = Some(encoder);
    // There are no logits: an output matrix in the file is not read.
    c.tied = Tied::Always;
}

fn stated(c: &ModelConfig, h: &Hyper<'_>) -> Result<Option<Encoder>> {
    match h.is_gguf() {
        true => of_gguf(c, h),
        false => of_modules(h),
    }
}

/// Rows of a weight outside of layers; `None` where the files do not have it.
pub(super) fn rows(h: &Hyper<'_>, name: &str) -> Option<usize> {
    let file = names::file_name(h.source(), name, None, None, "weight")?;
    let shape = &h.source().find(&file)?.shape;
    // A matrix of one row may stand as a vector.
    Some(if shape.len() > 1 { shape[0] } else { 1 })
}

/// A layer of the head, if the files have it.
fn head_layer(h: &Hyper<'_>, name: &'static str, bias: Presence, tanh: bool) -> Option<HeadLayer> {
    rows(h, name).map(|n_out| HeadLayer { name, n_out, bias, tanh })
}

fn of_gguf(c: &ModelConfig, h: &Hyper<'_>) -> Result<Option<Encoder>> {
    let embedding = |pooling| {
        let dense = ["dense_2", "dense_3"].map(|name| head_layer(h, name, Presence::Absent, false));
        let head = dense.into_iter().flatten().collect();
        Some(Encoder { pooling, head, output: EncoderOutput::Embedding { normalize: true } })
    };
    Ok(match h.gguf_usize("pooling_type")? {
        // Files of rerankers may leave it to the program's user to say so.
        None | Some(0) if rows(h, "classifier.out").is_some() => Some(classifier(c, h)?),
        None | Some(0) => None,
        Some(1) => embedding(Pooling::Mean),
        Some(2) => embedding(Pooling::First),
        Some(3) => embedding(Pooling::Last),
        Some(4) => Some(classifier(c, h)?),
        Some(other) => return Err(h.unsupported(format!("pooling of kind {other} is not known"))),
    })
}

/// The head of a reranker, as its tensors say.
pub(super) fn classifier(c: &ModelConfig, h: &Hyper<'_>) -> Result<Encoder> {
    let is_causal = c.attentions().any(|a| a.causal);
    let dense = head_layer(h, "classifier.dense", Presence::Optional, true);
    let out = head_layer(h, "classifier.out", Presence::Optional, false);
    let out = out.ok_or_else(|| h.missing_tensor("classifier.out"))?;
    let (pooling, output) = match (is_causal, out.n_out) {
        (true, 2) => (Pooling::Last, EncoderOutput::YesNo),
        (false, 1) => (Pooling::First, EncoderOutput::Score),
        (_, n) => return Err(h.unsupported(format!("a classifier of {n} labels"))),
    };
    Ok(Encoder { pooling, head: dense.into_iter().chain([out]).collect(), output })
}

/// What `modules.json` lists, with the configuration of each module.
fn of_modules(h: &Hyper<'_>) -> Result<Option<Encoder>> {
    let Some(modules) = h.source().sibling("modules.json") else { return Ok(None) };
    let modules = read_json(h, &modules)?;
    let mut encoder =
        Encoder { pooling: DEFAULT, head: Vec::new(), output: EncoderOutput::Embedding { normalize: false } };
    for module in modules.as_array().into_iter().flatten() {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, path) = (text("type"), text("path"));
        let config = || match h.source().sibling(&format!("{path}/config.json")) {
            Some(file) => read_json(h, &file),
            None => Err(h.invalid(format!("modules.json names {path}/config.json, which is not there"))),
        };
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => encoder.pooling = pooling(h, &config()?)?,
            "Normalize" => encoder.output = EncoderOutput::Embedding { normalize: true },
            "Dense" => encoder.head.push(dense(h, path, &config()?)?),
            _ => return Err(h.unsupported(format!("a module {kind:?} of sentence-transformers"))),
        }
    }
    Ok(Some(encoder))
}

fn pooling(h: &Hyper<'_>, config: &Value) -> Result<Pooling> {
    let is = |mode: &str| {
        config.get("pooling_mode").and_then(Value::as_str) == Some(mode)
            || [
                format!("pooling_mode_{mode}"),
                format!("pooling_mode_{mode}_tokens"),
                format!("pooling_mode_{mode}_token"),
            ]
            .iter()
            .any(|key| config.get(key).and_then(Value::as_bool) == Some(true))
    };
    let modes = [
        ("mean", Some(Pooling::Mean)),
        ("cls", Some(Pooling::First)),
        ("lasttoken", Some(Pooling::Last)),
        ("max", None),
        ("mean_sqrt_len", None),
        ("weightedmean", None),
    ];
    let chosen: Vec<_> = modes.into_iter().filter(|(mode, _)| is(mode)).collect();
    match chosen[..] {
        [(_, Some(pooling))] => Ok(pooling),
        [] => Err(h.invalid("the pooling module does not say how it pools")),
        _ => {
            let names: Vec<_> = chosen.iter().map(|(mode, _)| *mode).collect();
            Err(h.unsupported(format!("pooling by {}", names.join(" and "))))
        }
    }
}

fn dense(h: &Hyper<'_>, path: &str, config: &Value) -> Result<HeadLayer> {
    let name = match path {
        "2_Dense" => "dense_2",
        "3_Dense" => "dense_3",
        _ => return Err(h.unsupported(format!("a dense module {path:?} of sentence-transformers"))),
    };
    let activation = config.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    let tanh = match activation.rsplit('.').next() {
        Some("Identity") => false,
        Some("Tanh") => true,
        _ => return Err(h.unsupported(format!("activation {activation:?} of a dense module"))),
    };
    let bias = match config.get("bias").and_then(Value::as_bool) {
        Some(false) => Presence::Absent,
        _ => Presence::Needed,
    };
    head_layer(h, name, bias, tanh).ok_or_else(|| h.missing_tensor(name))
}

fn read_json(h: &Hyper<'_>, path: &Path) -> Result<Value> {
    let text = crate::source::read_text(path, MAX_BYTES)?;
    serde_json::from_slice(&text).map_err(|e| h.invalid(format!("{} is not valid JSON: {e}", path.display())))
}
