//! Writes a Hugging Face tokenizer as GGUF metadata: the inverse of `load_gguf`.

use super::load_json;
use super::normalizer::Normalizer;
use super::pretokenizer::PRETOKENIZERS;
use super::scanner::GPT2;
use super::{EncodeOptions, Error, Model, Result, TokenKind, Tokenizer};
use crate::metadata::{Metadata, Strings};
use serde_json::Value as Json;
use std::collections::HashMap;

/// The contents of a Hugging Face tokenizer's files.
pub(crate) struct HfFiles<'a> {
    pub(crate) tokenizer: &'a [u8],
    pub(crate) tokenizer_config: Option<&'a [u8]>,
    pub(crate) special_tokens_map: Option<&'a [u8]>,
}

/// Adds `tokenizer.ggml.*` to `metadata`.
///
/// `n_rows` is the number of rows of the embedding: the vocabulary gets as many tokens. `ends` are the ids that end an answer
/// according to `generation_config.json`; `bos` is the one of `config.json`, for tokenizers that name none.
///
/// Errors: a tokenizer that cannot be read, that has more tokens than rows, or that GGUF has no name for.
pub(crate) fn write(
    metadata: &mut Metadata,
    files: &HfFiles<'_>,
    n_rows: usize,
    bos: Option<u32>,
    ends: &[u32],
) -> Result<()> {
    let t = load_json::load(files.tokenizer, files.tokenizer_config, files.special_tokens_map)?;
    let json: Json = serde_json::from_slice(files.tokenizer)
        .map_err(|e| Error::Json { file: "tokenizer.json", reason: e.to_string() })?;
    if t.vocab_size() > n_rows {
        let reason = format!("it has {} tokens, but the embedding has {n_rows} rows", t.vocab_size());
        return Err(Error::invalid("the vocabulary", reason));
    }
    let Model::Bpe(_) = t.model else {
        return Err(Error::Unsupported {
            component: "model",
            name: "other than BPE, which GGUF files of language models have".into(),
        });
    };
    let byte_level = t.pre_tokenizers.byte_level;
    let merges = read_merges(&json);
    let mut tokens = Strings::default();
    let mut types = Vec::with_capacity(n_rows);
    for id in 0..n_rows {
        match t.vocabulary.tokens.get(id).and_then(Option::as_ref) {
            Some((text, kind)) => {
                tokens.push(text.as_bytes());
                types.push(if !byte_level && t.unk() == Some(id as u32) {
                    type_of(TokenKind::Unknown)
                } else {
                    type_of(*kind)
                });
            }
            None => {
                tokens.push(format!("[PAD{id}]").as_bytes());
                types.push(type_of(TokenKind::Unused));
            }
        }
    }
    if byte_level {
        metadata.insert("tokenizer.ggml.model", "gpt2")?;
        metadata.insert("tokenizer.ggml.pre", pre_tokenizer_name(&t, &json)?)?;
        metadata.insert("tokenizer.ggml.tokens", tokens)?;
        metadata.insert("tokenizer.ggml.token_type", types)?;
        // A space inside of a token would be taken for the one between two.
        let line = |(a, b): &(&str, &str)| format!("{} {}", a.replace(' ', "Ġ"), b.replace(' ', "Ġ"));
        metadata.insert("tokenizer.ggml.merges", merges.iter().map(line).collect::<Strings>())?;
    } else {
        let scores = scores(&t, &merges, n_rows);
        metadata.insert("tokenizer.ggml.model", "llama")?;
        metadata.insert("tokenizer.ggml.pre", "default")?;
        metadata.insert("tokenizer.ggml.tokens", tokens)?;
        metadata.insert("tokenizer.ggml.scores", scores)?;
        metadata.insert("tokenizer.ggml.token_type", types)?;
        metadata.insert("tokenizer.ggml.add_space_prefix", adds_space(&t))?;
    }
    let eos = t.eos().or(ends.first().copied());
    // A reader finds the well-known ends of a turn by their texts; this is for one that it could not find.
    let eot = ends.iter().copied().find(|&id| Some(id) != eos && !t.eos_ids().contains(&id));
    let named =
        [("bos", t.bos().or(bos)), ("eos", eos), ("eot", eot), ("padding", t.pad()), ("unknown", t.unk())];
    for (key, id) in named {
        if let Some(id) = id.filter(|&id| (id as usize) < n_rows) {
            metadata.insert(format!("tokenizer.ggml.{key}_token_id"), id)?;
        }
    }
    metadata.insert("tokenizer.ggml.add_bos_token", t.add_bos())?;
    metadata.insert("tokenizer.ggml.add_eos_token", t.add_eos())?;
    Ok(())
}

/// Numbers of the kinds of tokens in `tokenizer.ggml.token_type`.
fn type_of(kind: TokenKind) -> i32 {
    match kind {
        TokenKind::Normal => 1,
        TokenKind::Unknown => 2,
        TokenKind::Control => 3,
        TokenKind::UserDefined => 4,
        TokenKind::Unused => 5,
        TokenKind::Byte => 6,
    }
}

fn read_merges(json: &Json) -> Vec<(&str, &str)> {
    let merges = json["model"]["merges"].as_array().map(Vec::as_slice).unwrap_or_default();
    merges
        .iter()
        .filter_map(|merge| match merge {
            Json::String(line) if !line.starts_with("#version") => line.split_once(' '),
            pair => Some((pair[0].as_str()?, pair[1].as_str()?)),
        })
        .collect()
}

/// SentencePiece merges the pair whose result has the highest score first, so a token's score is the negative rank of the first
/// merge that makes it. What no merge makes comes last.
fn scores(t: &Tokenizer, merges: &[(&str, &str)], n_rows: usize) -> Vec<f32> {
    let mut ranks: HashMap<String, usize> = HashMap::with_capacity(merges.len());
    for (rank, (a, b)) in merges.iter().enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(rank);
    }
    let score = |id: usize| {
        let text = t.token_text(id as u32)?;
        ranks.get(text).map(|&rank| -(rank as f32))
    };
    (0..n_rows).map(|id| score(id).unwrap_or(-(merges.len() as f32))).collect()
}

/// Whether a text gets a space before its first word.
fn adds_space(t: &Tokenizer) -> bool {
    let ids = t.encode("a", EncodeOptions { add_special: false, parse_special: false });
    ids.first().and_then(|&id| t.token_text(id)).is_some_and(|text| text.starts_with('▁'))
}

/// The name of a pre-tokenizer of GGUF that splits, normalizes and merges as this one does.
fn pre_tokenizer_name(t: &Tokenizer, json: &Json) -> Result<&'static str> {
    let unsupported = |name: String| Error::Unsupported { component: "pre-tokenizer", name };
    let mut splits = Vec::new();
    collect_splits(&json["pre_tokenizer"], &mut splits).ok_or_else(|| {
        unsupported(format!("{}, which GGUF has no name for", json["pre_tokenizer"]["type"]))
    })?;
    let nfc = match t.normalizers[..] {
        [] => false,
        [Normalizer::Nfc] => true,
        _ => return Err(unsupported("with a normalizer that GGUF has no name for".into())),
    };
    let ignore_merges = json["model"]["ignore_merges"].as_bool().unwrap_or(false);
    PRETOKENIZERS
        .iter()
        .filter(|spec| spec.byte_level && !spec.falcon && spec.splits == splits)
        .find(|spec| spec.nfc == nfc && spec.ignore_merges == ignore_merges)
        .and_then(|spec| spec.names.first().copied())
        .ok_or_else(|| unsupported(format!("with the patterns {splits:?}, which GGUF has no name for")))
}

/// The patterns that a text is split by, in order. `None` where a step is more than that.
fn collect_splits(json: &Json, splits: &mut Vec<String>) -> Option<()> {
    let flag = |key: &str, default: bool| json[key].as_bool().unwrap_or(default);
    match json["type"].as_str()? {
        "Sequence" => {
            json["pretokenizers"].as_array()?.iter().try_for_each(|part| collect_splits(part, splits))
        }
        "Split" => {
            let keeps_all = match json["behavior"].as_str()? {
                "Isolated" => true,
                // Patterns that match all of a text may keep the matches instead.
                "Removed" => flag("invert", false),
                _ => false,
            };
            splits.push(json["pattern"]["Regex"].as_str().filter(|_| keeps_all)?.to_owned());
            Some(())
        }
        "Digits" if flag("individual_digits", false) => {
            splits.push(r"\p{N}".to_owned());
            Some(())
        }
        "ByteLevel" if !flag("add_prefix_space", true) => {
            if flag("use_regex", true) {
                splits.push(GPT2.to_owned());
            }
            Some(())
        }
        _ => None,
    }
}
