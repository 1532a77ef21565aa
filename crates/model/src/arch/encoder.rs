//! How a model's files say that it makes a vector or a score of a text: GGUF's pooling type, the name of the architecture, or
//! sentence-transformers' list of modules.

use crate::Result;
use crate::config::{Encoder, EncoderOutput, HeadFunction, HeadLayer, ModelConfig, Presence, Tied};
use crate::hyper::Hyper;
use crate::names;
use realizar_compute::Pooling;
use serde_json::Value;
use std::path::Path;

/// The largest file of sentence-transformers that is read, in bytes; real ones have hundreds.
const MAX_BYTES: u64 = 1 << 20;

/// Sentence-transformers' own choice where a folder has no list of modules.
const DEFAULT: Pooling = Pooling::Mean;

/// What rerankers of an architecture have between their layers and the matrix that makes the score.
#[derive(Clone, Copy)]
pub(super) struct Classifier {
    pub(super) pooling: Pooling,
    /// Behind the first matrix.
    pub(super) function: HeadFunction,
    /// Behind that.
    pub(super) norm: Option<&'static str>,
}

impl Classifier {
    /// As BERT.
    pub(super) const BERT: Self = Self { pooling: Pooling::First, function: HeadFunction::Tanh, norm: None };
}

/// Makes a model an encoder.
pub(super) fn make(c: &mut ModelConfig, h: &Hyper<'_>, classifier: Classifier) -> Result<()> {
    let embedding = || Encoder {
        pooling: DEFAULT,
        head: Vec::new(),
        output: EncoderOutput::Embedding { normalize: true },
    };
    let stated = stated(c, h, classifier)?;
    finish(c, stated.unwrap_or_else(embedding));
    Ok(())
}

/// Makes a model an encoder if its files say so.
pub(super) fn make_if_stated(c: &mut ModelConfig, h: &Hyper<'_>) -> Result<()> {
    if let Some(encoder) = stated(c, h, Classifier::BERT)? {
        finish(c, encoder);
    }
    Ok(())
}

/// Makes a decoder a reranker that answers a question about a query and a document: it compares the logits of the tokens "yes" and "no".
///
/// Errors: tokens that the model does not have.
pub(super) fn make_yes_no(c: &mut ModelConfig, h: &Hyper<'_>, tokens: [u32; 2]) -> Result<()> {
    let encoder = yes_no(c, h, tokens)?;
    finish(c, encoder);
    Ok(())
}

fn yes_no(c: &ModelConfig, h: &Hyper<'_>, tokens: [u32; 2]) -> Result<Encoder> {
    if let Some(token) = tokens.iter().find(|&&token| token as usize >= c.vocab_size) {
        return Err(h.invalid(format!("the answer's token {token} is not among its {} tokens", c.vocab_size)));
    }
    let name = if c.tied != Tied::Always && rows(h, "lm_head").is_some() { "lm_head" } else { "embed" };
    let (bias, function) = (Presence::Absent, HeadFunction::Identity);
    let layer = HeadLayer { name, tokens: Some(tokens), n_out: tokens.len(), bias, function, norm: None };
    Ok(Encoder { pooling: Pooling::Last, head: vec![layer], output: EncoderOutput::YesNo })
}

fn finish(c: &mut ModelConfig, encoder: Encoder) {
    // Otherwise there are no logits, and an output matrix in the file is not read.
    let has_logits = encoder.head.iter().any(|layer| layer.name == "lm_head");
    c.tied = if has_logits { Tied::Never } else { Tied::Always };
    c.encoder = Some(encoder);
}

fn stated(c: &ModelConfig, h: &Hyper<'_>, classifier: Classifier) -> Result<Option<Encoder>> {
    if h.is_gguf() {
        return of_gguf(c, h, classifier);
    }
    match h.hf_strings("architectures")?.is_some_and(|names| names[0].ends_with("ForSequenceClassification"))
    {
        true => reranker(c, h, classifier).map(Some),
        false => of_modules(c, h),
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
fn head_layer(
    h: &Hyper<'_>,
    name: &'static str,
    bias: Presence,
    function: HeadFunction,
) -> Option<HeadLayer> {
    rows(h, name).map(|n_out| HeadLayer { name, tokens: None, n_out, bias, function, norm: None })
}

fn of_gguf(c: &ModelConfig, h: &Hyper<'_>, classifier: Classifier) -> Result<Option<Encoder>> {
    let embedding = |pooling| {
        let dense =
            ["dense_2", "dense_3"].map(|name| head_layer(h, name, Presence::Absent, HeadFunction::Identity));
        let head = dense.into_iter().flatten().collect();
        Some(Encoder { pooling, head, output: EncoderOutput::Embedding { normalize: true } })
    };
    Ok(match h.gguf_usize("pooling_type")? {
        // Files of rerankers may leave it to the program's user to say so.
        None | Some(0) if rows(h, "classifier.out").is_some() => Some(reranker(c, h, classifier)?),
        None | Some(0) => None,
        Some(1) => embedding(Pooling::Mean),
        Some(2) => embedding(Pooling::First),
        Some(3) => embedding(Pooling::Last),
        Some(4) => Some(reranker(c, h, classifier)?),
        Some(other) => return Err(h.unsupported(format!("pooling of kind {other} is not known"))),
    })
}

/// A reranker, with the head that its tensors say.
fn reranker(c: &ModelConfig, h: &Hyper<'_>, classifier: Classifier) -> Result<Encoder> {
    let is_causal = c.attentions().any(|a| a.causal);
    let Classifier { pooling, function, norm } = classifier;
    let dense = head_layer(h, "classifier.dense", Presence::Optional, function);
    let out = head_layer(h, "classifier.out", Presence::Optional, HeadFunction::Identity);
    let out = out.ok_or_else(|| h.missing_tensor("classifier.out"))?;
    match (is_causal, dense, out.n_out) {
        (true, None, 2) => {
            Ok(Encoder { pooling: Pooling::Last, head: vec![out], output: EncoderOutput::YesNo })
        }
        (false, Some(dense), 1) => {
            Ok(Encoder { pooling, head: vec![HeadLayer { norm, ..dense }, out], output: EncoderOutput::Score })
        }
        (false, None, 1) if h.is_gguf() => Err(h.unsupported(
            "the first matrix of its classifier (cls.weight) is not in the file: llama.cpp's converter leaves it out of rerankers made of \
             BERT, whose folder of safetensors runs",
        )),
        (false, None, 1) => Err(h.missing_tensor("classifier.dense")),
        (_, _, n) => Err(h.unsupported(format!("a classifier of {n} labels"))),
    }
}

/// What `modules.json` lists, with the configuration of each module.
fn of_modules(c: &ModelConfig, h: &Hyper<'_>) -> Result<Option<Encoder>> {
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
            "LogitScore" => encoder = logit_score(c, h, &config()?)?,
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

/// A decoder whose logits of two tokens are the score.
fn logit_score(c: &ModelConfig, h: &Hyper<'_>, config: &Value) -> Result<Encoder> {
    let token = |key: &str| config.get(key).and_then(Value::as_u64).and_then(|id| u32::try_from(id).ok());
    match (token("true_token_id"), token("false_token_id")) {
        (Some(yes), Some(no)) => yes_no(c, h, [yes, no]),
        (Some(_), None) => Err(h.unsupported("a score that is the logit of one token")),
        (None, _) => Err(h.invalid("the LogitScore module does not say which token means yes")),
    }
}

fn dense(h: &Hyper<'_>, path: &str, config: &Value) -> Result<HeadLayer> {
    let name = match path {
        "2_Dense" => "dense_2",
        "3_Dense" => "dense_3",
        _ => return Err(h.unsupported(format!("a dense module {path:?} of sentence-transformers"))),
    };
    let activation = config.get("activation_function").and_then(Value::as_str).unwrap_or("Tanh");
    let function = match activation.rsplit('.').next() {
        Some("Identity") => HeadFunction::Identity,
        Some("Tanh") => HeadFunction::Tanh,
        _ => return Err(h.unsupported(format!("activation {activation:?} of a dense module"))),
    };
    let bias = match config.get("bias").and_then(Value::as_bool) {
        Some(false) => Presence::Absent,
        _ => Presence::Needed,
    };
    head_layer(h, name, bias, function).ok_or_else(|| h.missing_tensor(name))
}

fn read_json(h: &Hyper<'_>, path: &Path) -> Result<Value> {
    let text = crate::source::read_text(path, MAX_BYTES)?;
    serde_json::from_slice(&text).map_err(|e| h.invalid(format!("{} is not valid JSON: {e}", path.display())))
}
