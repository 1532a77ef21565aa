//! Builds the tokenizer that a Hugging Face tokenizer.json describes.

use super::added_tokens::{AddedToken, AddedTokens};
use super::bpe::{Bpe, BpeOptions, byte_of_fallback};
use super::decoder::Decoder;
use super::normalizer::Normalizer;
use super::post_processor::Around;
use super::precompiled::Precompiled;
use super::pretokenizer::{PreTokenizer, PreTokenizers, PrependScheme};
use super::splitter::{Behavior, Pattern};
use super::unigram::Unigram;
use super::wordpiece::WordPiece;
use super::{Error, Model, Result, SpecialIds, TokenKind, Tokenizer, Vocabulary, end_ids};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Option<Vec<Added>>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    post_processor: Option<Value>,
    decoder: Option<Value>,
    model: ModelJson,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct ModelJson {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: Option<VocabJson>,
    merges: Option<Merges>,
    unk_token: Option<String>,
    unk_id: Option<u32>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    max_input_chars_per_word: Option<usize>,
}

/// `{"text": id}` for most models, `[["text", score]]` for Unigram.
enum VocabJson {
    Ids(Vec<(String, u32)>),
    Scores(Vec<(String, f64)>),
}

/// Pairs, written as `"left right"` or `["left", "right"]`.
struct Merges(Vec<(String, String)>);

impl<'de> Deserialize<'de> for VocabJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Vocab;
        impl<'de> Visitor<'de> for Vocab {
            type Value = VocabJson;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of token ids or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<VocabJson, A::Error> {
                let mut ids = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    ids.push(entry);
                }
                Ok(VocabJson::Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<VocabJson, A::Error> {
                let mut scores = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    scores.push(entry);
                }
                Ok(VocabJson::Scores(scores))
            }
        }
        deserializer.deserialize_any(Vocab)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of merges")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Merges, A::Error> {
                let mut merges = Vec::new();
                while let Some(Entry(entry)) = seq.next_element()? {
                    merges.extend(entry);
                }
                Ok(Merges(merges))
            }

            /// An empty object stands for no merges in some files.
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Merges, A::Error> {
                match map.next_key::<String>()? {
                    None => Ok(Merges(Vec::new())),
                    Some(key) => {
                        Err(serde::de::Error::custom(format!("merges are an object with a key {key:?}")))
                    }
                }
            }
        }
        deserializer.deserialize_any(List)
    }
}

/// One merge; `None` for the heading of merges.txt, which some converters took along.
struct Entry(Option<(String, String)>);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Pair;
        impl<'de> Visitor<'de> for Pair {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge as \"left right\" or [\"left\", \"right\"]")
            }

            fn visit_str<E: serde::de::Error>(self, line: &str) -> std::result::Result<Entry, E> {
                if line.starts_with("#version") {
                    return Ok(Entry(None));
                }
                let parts = line.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) =
                    parts.ok_or_else(|| E::custom(format!("merge {line:?} is not two tokens")))?;
                Ok(Entry(Some((left.to_owned(), right.to_owned()))))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> std::result::Result<Entry, A::Error> {
                let wrong = |n| serde::de::Error::invalid_length(n, &self);
                let left = seq.next_element()?.ok_or_else(|| wrong(0))?;
                let right = seq.next_element()?.ok_or_else(|| wrong(1))?;
                if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    return Err(wrong(3));
                }
                Ok(Entry(Some((left, right))))
            }
        }
        deserializer.deserialize_any(Pair)
    }
}

fn parse<T: DeserializeOwned>(json: &[u8], file: &'static str) -> Result<T> {
    serde_json::from_slice(json).map_err(|error| Error::Json { file, reason: error.to_string() })
}

pub(super) fn load(
    json: &[u8],
    config: Option<&[u8]>,
    special_tokens_map: Option<&[u8]>,
) -> Result<Tokenizer> {
    let file: File = parse(json, "tokenizer.json")?;
    let added = file.added_tokens.unwrap_or_default();
    let mut normalizers = Vec::new();
    if let Some(json) = &file.normalizer {
        read_normalizers(json, &mut normalizers)?;
    }
    let mut steps = Vec::new();
    if let Some(json) = &file.pre_tokenizer {
        read_pre_tokenizers(json, &mut steps)?;
    }
    let mut pre_tokenizers = PreTokenizers::new(steps);
    if normalizers.iter().any(|normalizer| matches!(normalizer, Normalizer::ByteLevel)) {
        // The text is byte-level characters already and stays so: the model must take them as characters.
        pre_tokenizers.byte_level = false;
    }
    let mut decoders = Vec::new();
    match &file.decoder {
        Some(json) => read_decoders(json, &mut decoders)?,
        None => decoders.push(Decoder::JoinWithSpaces),
    }

    let (model, mut vocabulary, unk) = read_model(file.model, pre_tokenizers.byte_level, &added)?;
    add_to_vocabulary(&added, &mut vocabulary)?;
    let (normalized, plain): (Vec<&Added>, Vec<&Added>) =
        added.iter().partition(|token| token.normalized.unwrap_or(!token.special));
    let find = |token: &Added, pattern: &str| AddedToken {
        id: token.id,
        pattern: pattern.to_owned(),
        special: token.special,
        single_word: token.single_word,
        lstrip: token.lstrip,
        rstrip: token.rstrip,
    };
    let plain = plain.iter().map(|token| find(token, &token.content)).collect();
    let mut in_normalized = Vec::new();
    for token in normalized {
        let text = Cow::Borrowed(token.content.as_str());
        let text = normalizers.iter().fold(text, |text, normalizer| normalizer.apply(text));
        if text != token.content {
            vocabulary.decoded.insert(token.id, text.as_ref().into());
        }
        in_normalized.push(find(token, &text));
    }

    let mut around = Around::default();
    if let Some(json) = &file.post_processor {
        around.read(json, &vocabulary)?;
    }
    let config: Option<Value> = config.map(|json| parse(json, "tokenizer_config.json")).transpose()?;
    let map: Option<Value> =
        special_tokens_map.map(|json| parse(json, "special_tokens_map.json")).transpose()?;
    let special = special_ids(&vocabulary, config.as_ref(), map.as_ref(), &around.prefix, unk);
    if let Some(config) = &config {
        if let Some((p, s)) = bos_and_eos(config, &special) {
            (around.prefix, around.suffix) = (p, s);
        }
        // As transformers: for BPE, whose texts keep their spaces, the clean-up would only do harm.
        if flag(config, "clean_up_tokenization_spaces") == Some(true) && !matches!(model, Model::Bpe(_)) {
            decoders.push(Decoder::CleanUp);
        }
    }
    Ok(Tokenizer {
        vocabulary,
        added: AddedTokens::new(plain)?,
        added_normalized: AddedTokens::new(in_normalized)?,
        normalizers,
        pre_tokenizers,
        model,
        prefix: around.prefix,
        suffix: around.suffix,
        pair: around.pair,
        decoders,
        special,
    })
}

/// Gives the vocabulary the added tokens.
fn add_to_vocabulary(added: &[Added], vocabulary: &mut Vocabulary) -> Result<()> {
    for token in added {
        let kind = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        match vocabulary.ids.get(token.content.as_str()) {
            Some(&id) if id == token.id => {
                vocabulary.tokens[id as usize] = Some((token.content.as_str().into(), kind))
            }
            Some(&id) => {
                let reason = format!("the vocabulary gives it the id {id}, the added tokens {}", token.id);
                return Err(Error::invalid(format!("token {:?}", token.content), reason));
            }
            None => vocabulary.insert(&token.content, token.id, kind)?,
        }
    }
    Ok(())
}

fn flag(config: &Value, key: &str) -> Option<bool> {
    config.get(key).and_then(Value::as_bool)
}

/// What comes before and after a text, where the config says whether to add BOS or EOS, which as in transformers overrules the
/// post-processor.
fn bos_and_eos(config: &Value, special: &SpecialIds) -> Option<(Vec<u32>, Vec<u32>)> {
    let (bos, eos) = (flag(config, "add_bos_token"), flag(config, "add_eos_token"));
    (bos.is_some() || eos.is_some()).then(|| {
        let prefix = special.bos.filter(|_| bos == Some(true)).into_iter().collect();
        let suffix = special.eos.filter(|_| eos == Some(true)).into_iter().collect();
        (prefix, suffix)
    })
}

/// The model, the vocabulary with its own tokens, and the id of its unknown token.
fn read_model(
    json: ModelJson,
    byte_level: bool,
    added: &[Added],
) -> Result<(Model, Vocabulary, Option<u32>)> {
    let vocab = json.vocab.ok_or_else(|| Error::missing("model.vocab"))?;
    let kind = match (&json.kind, &vocab, &json.merges) {
        (Some(kind), ..) => kind.as_str(),
        (None, VocabJson::Scores(_), _) => "Unigram",
        (None, _, Some(_)) => "BPE",
        (None, ..) => "WordPiece",
    };
    let byte_fallback = json.byte_fallback.unwrap_or(false);
    let (ids, scores): (Vec<(String, u32)>, Vec<f64>) = match vocab {
        VocabJson::Ids(ids) => (ids, Vec::new()),
        VocabJson::Scores(scored) => {
            let numbered = scored.into_iter().enumerate();
            numbered.map(|(id, (text, score))| ((text, id as u32), score)).unzip()
        }
    };
    if ids.is_empty() && added.is_empty() {
        return Err(Error::invalid("model.vocab", "it is empty"));
    }
    let mut vocabulary = Vocabulary::default();
    for (text, id) in &ids {
        let byte = byte_fallback && byte_of_fallback(text).is_some();
        let kind = if byte { TokenKind::Byte } else { TokenKind::Normal };
        if kind == TokenKind::Normal && text.is_empty() {
            // Some vocabularies have an empty token: it has an id and can never come out of text.
            tracing::debug!(id, "the vocabulary has an empty token");
        }
        vocabulary.insert(text, *id, kind)?;
    }
    let texts = || ids.iter().map(|(text, id)| (text.as_str(), *id));
    let named_unk = json.unk_token.as_deref().and_then(|unk| vocabulary.ids.get(unk).copied());
    match kind {
        "BPE" => {
            let Merges(merges) = json.merges.ok_or_else(|| Error::missing("model.merges"))?;
            let options = BpeOptions {
                byte_level,
                unk: named_unk,
                fuse_unk: json.fuse_unk.unwrap_or(false),
                byte_fallback,
                ignore_merges: json.ignore_merges.unwrap_or(false),
                continuing_subword_prefix: json.continuing_subword_prefix.unwrap_or_default(),
                end_of_word_suffix: json.end_of_word_suffix.unwrap_or_default(),
            };
            let merges = merges.iter().map(|(left, right)| (left.as_str(), right.as_str()));
            Ok((Model::Bpe(Bpe::with_merges(options, texts(), merges, true)?), vocabulary, named_unk))
        }
        "WordPiece" => {
            let unk_token = json.unk_token.unwrap_or_else(|| "[UNK]".into());
            let unk = *vocabulary.ids.get(unk_token.as_str()).ok_or_else(|| {
                Error::invalid("model.unk_token", format!("{unk_token:?} is not a token of the vocabulary"))
            })?;
            let prefix = json.continuing_subword_prefix.unwrap_or_else(|| "##".into());
            let model = WordPiece::new(texts(), unk, &prefix, json.max_input_chars_per_word.unwrap_or(100));
            Ok((Model::WordPiece(model), vocabulary, Some(unk)))
        }
        "Unigram" => {
            if scores.len() != ids.len() {
                return Err(Error::invalid(
                    "model.vocab",
                    "a Unigram model needs a list of tokens with scores",
                ));
            }
            if let Some(unk) = json.unk_id.filter(|&unk| unk as usize >= ids.len()) {
                let reason = format!("{unk} is out of range for {} tokens", ids.len());
                return Err(Error::invalid("model.unk_id", reason));
            }
            let vocab = texts().zip(&scores).map(|((text, id), &score)| (text, id, score));
            Ok((Model::Unigram(Unigram::new(vocab, json.unk_id, byte_fallback)?), vocabulary, json.unk_id))
        }
        other => Err(unsupported("model", other)),
    }
}

/// BOS, EOS and so on: by the config files, else by what the post-processor adds and by well-known texts.
fn special_ids(
    vocabulary: &Vocabulary,
    config: Option<&Value>,
    map: Option<&Value>,
    prefix: &[u32],
    unk: Option<u32>,
) -> SpecialIds {
    let named = |key: &str| {
        [config, map].into_iter().flatten().find_map(|json| {
            let token = json.get(key)?;
            let text = token.as_str().or_else(|| token.get("content")?.as_str())?;
            vocabulary.ids.get(text).copied()
        })
    };
    let control = |texts: &[&str]| {
        let control = |id: &u32| vocabulary.kind(*id) == Some(TokenKind::Control);
        texts.iter().find_map(|text| vocabulary.ids.get(*text).copied().filter(control))
    };
    let unnamed = config.is_none() && map.is_none();
    let bos = named("bos_token").or_else(|| {
        let common = || control(&["<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "[CLS]"]);
        if unnamed { prefix.first().copied().or_else(common) } else { None }
    });
    let eos = named("eos_token").or_else(|| {
        let common = ["</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "[SEP]"];
        if unnamed { control(&common) } else { None }
    });
    let eot = named("eot_token");
    SpecialIds {
        bos,
        eos,
        pad: named("pad_token"),
        unk: unk.or_else(|| named("unk_token")),
        ends: end_ids(vocabulary, [eos, eot]),
    }
}

// --- the components ---

pub(super) fn unsupported(component: &'static str, name: impl Into<String>) -> Error {
    Error::Unsupported { component, name: name.into() }
}

/// One component as JSON, with typed access to its fields.
pub(super) struct Component<'a> {
    component: &'static str,
    pub(super) name: &'a str,
    pub(super) json: &'a Value,
}

impl<'a> Component<'a> {
    pub(super) fn new(component: &'static str, json: &'a Value) -> Result<Self> {
        let name = json.get("type").and_then(Value::as_str);
        let name = name.ok_or_else(|| Error::invalid(format!("a {component}"), "it has no type"))?;
        Ok(Component { component, name, json })
    }

    pub(super) fn unsupported<T>(&self) -> Result<T> {
        Err(unsupported(self.component, self.name))
    }

    pub(super) fn wrong(&self, field: &str, expected: &str) -> Error {
        Error::invalid(
            format!("{field} of the {} {}", self.component, self.name),
            format!("it is not {expected}"),
        )
    }

    fn text(&self, field: &str) -> Result<&'a str> {
        self.json.get(field).and_then(Value::as_str).ok_or_else(|| self.wrong(field, "a string"))
    }

    fn character(&self, field: &str) -> Result<char> {
        let text = self.text(field)?;
        let mut chars = text.chars();
        match (chars.next(), chars.next()) {
            (Some(c), None) => Ok(c),
            _ => Err(self.wrong(field, "one character")),
        }
    }

    fn flag(&self, field: &str, default: bool) -> Result<bool> {
        match self.json.get(field) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => value.as_bool().ok_or_else(|| self.wrong(field, "true or false")),
        }
    }

    fn count(&self, field: &str) -> Result<usize> {
        let count = self.json.get(field).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
        count.ok_or_else(|| self.wrong(field, "a number"))
    }

    pub(super) fn list(&self, field: &str) -> Result<&'a [Value]> {
        let list = self.json.get(field).and_then(Value::as_array);
        list.map(Vec::as_slice).ok_or_else(|| self.wrong(field, "a list"))
    }

    /// `{"String": text}` or `{"Regex": pattern}`.
    fn pattern(&self) -> Result<Pattern> {
        let pattern = self.json.get("pattern").ok_or_else(|| self.wrong("pattern", "there"))?;
        let text = |kind: &str| pattern.get(kind).and_then(Value::as_str);
        match (text("String").or_else(|| pattern.as_str()), text("Regex")) {
            (Some(literal), _) => Ok(Pattern::Literal(literal.to_owned())),
            (None, Some(regex)) => Pattern::regex(regex),
            (None, None) => Err(self.wrong("pattern", "a String or a Regex")),
        }
    }

    fn behavior(&self, default: Option<Behavior>) -> Result<Behavior> {
        match (self.json.get("behavior"), default) {
            (None, Some(default)) => Ok(default),
            _ => Behavior::parse(self.text("behavior")?)
                .ok_or_else(|| self.wrong("behavior", "a known behavior")),
        }
    }
}

fn read_normalizers(json: &Value, out: &mut Vec<Normalizer>) -> Result<()> {
    let part = Component::new("normalizer", json)?;
    out.push(match part.name {
        "Sequence" => {
            for json in part.list("normalizers")? {
                read_normalizers(json, out)?;
            }
            return Ok(());
        }
        "NFC" => Normalizer::Nfc,
        "NFD" => Normalizer::Nfd,
        "NFKC" => Normalizer::Nfkc,
        "NFKD" => Normalizer::Nfkd,
        "Lowercase" => Normalizer::Lowercase,
        "StripAccents" => Normalizer::StripAccents,
        "Nmt" => Normalizer::Nmt,
        "Strip" => {
            Normalizer::Strip { left: part.flag("strip_left", true)?, right: part.flag("strip_right", true)? }
        }
        "Prepend" => Normalizer::Prepend(part.text("prepend")?.to_owned()),
        "Replace" => {
            Normalizer::Replace { pattern: part.pattern()?, content: part.text("content")?.to_owned() }
        }
        "BertNormalizer" => {
            let lowercase = part.flag("lowercase", true)?;
            Normalizer::Bert {
                clean_text: part.flag("clean_text", true)?,
                handle_chinese_chars: part.flag("handle_chinese_chars", true)?,
                strip_accents: part.flag("strip_accents", lowercase)?,
                lowercase,
            }
        }
        "Precompiled" => match part.json.get("precompiled_charsmap") {
            // No map: the normalizer does nothing.
            None | Some(Value::Null) => return Ok(()),
            _ => {
                let blob = decode_base64(part.text("precompiled_charsmap")?)
                    .ok_or_else(|| part.wrong("precompiled_charsmap", "base64"))?;
                Normalizer::Precompiled(Box::new(Precompiled::new(&blob)?))
            }
        },
        "ByteLevel" => Normalizer::ByteLevel,
        _ => return part.unsupported(),
    });
    Ok(())
}

fn read_pre_tokenizers(json: &Value, out: &mut Vec<PreTokenizer>) -> Result<()> {
    let part = Component::new("pre-tokenizer", json)?;
    match part.name {
        "Sequence" => {
            for json in part.list("pretokenizers")? {
                read_pre_tokenizers(json, out)?;
            }
        }
        "Split" => out.push(PreTokenizer::Split {
            pattern: part.pattern()?,
            behavior: part.behavior(None)?,
            invert: part.flag("invert", false)?,
        }),
        "ByteLevel" => out.push(PreTokenizer::ByteLevel {
            add_prefix_space: part.flag("add_prefix_space", true)?,
            use_regex: part.flag("use_regex", true)?,
        }),
        "Metaspace" => {
            let (replacement, prepend) = metaspace(&part)?;
            out.push(PreTokenizer::Metaspace { replacement, prepend, split: part.flag("split", true)? });
        }
        "Digits" => out.push(PreTokenizer::digits(part.flag("individual_digits", false)?)),
        "Punctuation" => out.push(PreTokenizer::punctuation(part.behavior(Some(Behavior::Isolated))?)),
        "Whitespace" => out.extend(PreTokenizer::whitespace()),
        "WhitespaceSplit" => out.push(PreTokenizer::whitespace_split()),
        "BertPreTokenizer" => out.extend(PreTokenizer::bert()),
        "CharDelimiterSplit" => out.push(PreTokenizer::Split {
            pattern: Pattern::Literal(part.character("delimiter")?.to_string()),
            behavior: Behavior::Removed,
            invert: false,
        }),
        _ => return part.unsupported(),
    }
    Ok(())
}

/// The mark of a Metaspace, and when it is prepended.
fn metaspace(part: &Component<'_>) -> Result<(char, PrependScheme)> {
    let scheme = match part.json.get("prepend_scheme") {
        None => PrependScheme::Always,
        Some(_) => match part.text("prepend_scheme")? {
            "always" => PrependScheme::Always,
            "first" => PrependScheme::First,
            "never" => PrependScheme::Never,
            _ => return Err(part.wrong("prepend_scheme", "always, first or never")),
        },
    };
    let scheme = if part.flag("add_prefix_space", true)? { scheme } else { PrependScheme::Never };
    Ok((part.character("replacement")?, scheme))
}

fn read_decoders(json: &Value, out: &mut Vec<Decoder>) -> Result<()> {
    let part = Component::new("decoder", json)?;
    out.push(match part.name {
        "Sequence" => {
            for json in part.list("decoders")? {
                read_decoders(json, out)?;
            }
            return Ok(());
        }
        "ByteLevel" => Decoder::ByteLevel,
        "ByteFallback" => Decoder::ByteFallback,
        "Fuse" => Decoder::Fuse,
        "Replace" => Decoder::Replace { pattern: part.pattern()?, content: part.text("content")?.to_owned() },
        "Strip" => Decoder::Strip {
            content: part.character("content")?,
            start: part.count("start")?,
            stop: part.count("stop")?,
        },
        "Metaspace" => {
            let (replacement, prepend) = metaspace(&part)?;
            Decoder::Metaspace { replacement, prepended: prepend != PrependScheme::Never }
        }
        "WordPiece" => Decoder::WordPiece {
            prefix: part.text("prefix")?.to_owned(),
            cleanup: part.flag("cleanup", true)?,
        },
        "BPEDecoder" => Decoder::BpeSuffix(part.text("suffix")?.to_owned()),
        _ => return part.unsupported(),
    });
    Ok(())
}

/// Standard base64, with or without padding.
fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let mut bits = 0u32;
    let mut n_bits = 0;
    for c in text.bytes().filter(|&c| c != b'=' && !c.is_ascii_whitespace()) {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            bytes.push((bits >> n_bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    //! Aim: what tokenizer.json says wrongly is named, and nothing panics.
    use super::*;
    use crate::tokenizer::EncodeOptions;

    fn try_load(json: &str) -> Result<Tokenizer> {
        load(json.as_bytes(), None, None)
    }

    fn error(json: &str) -> String {
        try_load(json).unwrap_err().to_string()
    }

    #[test]
    fn unsupported_components_are_named() {
        let model = r#""model":{"type":"BPE","vocab":{"a":0},"merges":[]}"#;
        assert!(
            error(&format!(r#"{{"normalizer":{{"type":"Odd"}},{model}}}"#)).contains("normalizer \"Odd\"")
        );
        assert!(
            error(&format!(r#"{{"pre_tokenizer":{{"type":"Odd"}},{model}}}"#))
                .contains("pre-tokenizer \"Odd\"")
        );
        assert!(error(&format!(r#"{{"decoder":{{"type":"CTC"}},{model}}}"#)).contains("decoder \"CTC\""));
        assert!(error(r#"{"model":{"type":"Odd","vocab":{"a":0}}}"#).contains("model \"Odd\""));
    }

    #[test]
    fn contradictions_are_named() {
        assert!(error(r#"{"model":{"vocab":{"a":0,"b":0},"merges":[]}}"#).contains("belongs to \"a\""));
        assert!(error(r#"{"model":{"vocab":{"a":0},"merges":["a b"]}}"#).contains("is not a token"));
        assert!(error(r#"{"model":{"vocab":{"a":4000000000},"merges":[]}}"#).contains("out of range"));
        assert!(error(r#"{"model":{"vocab":{},"merges":[]}}"#).contains("empty"));
        assert!(error(r#"{"model":{"vocab":[["a",-1]],"unk_id":7}}"#).contains("unk_id"));
        assert!(error(r#"{"model":{"vocab":{"a":0},"merges":["ab"]}}"#).contains("two tokens"));
        let added = r#"{"added_tokens":[{"id":3,"content":"a"}],"model":{"vocab":{"a":0},"merges":[]}}"#;
        assert!(error(added).contains("the added tokens 3"));
        assert!(error("{").contains("tokenizer.json"));
    }

    #[test]
    fn both_spellings_of_merges_are_read() {
        let encode = |merges: &str| {
            let json =
                format!(r#"{{"model":{{"type":"BPE","vocab":{{"a":0,"b":1,"ab":2}},"merges":{merges}}}}}"#);
            try_load(&json).unwrap().encode("aab", EncodeOptions { add_special: false, parse_special: false })
        };
        assert_eq!(encode(r#"["a b"]"#), [0, 2]);
        assert_eq!(encode(r#"[["a","b"]]"#), [0, 2]);
        assert_eq!(encode("{}"), [0, 0, 1]);
    }

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode_base64("AQIDBA=="), Some(vec![1, 2, 3, 4]));
        assert_eq!(decode_base64("*"), None);
    }
}
