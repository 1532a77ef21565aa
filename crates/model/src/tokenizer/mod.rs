//! Tokenizers: text to token ids and back, exactly as the model's own tokenizer does it.
//!
//! `load_json` reads tokenizer.json, `load_gguf` reads GGUF metadata; both build one pipeline. Text passes the added
//! tokens (`added_tokens`), the normalizers (`normalizer`), the pre-tokenizer (`pretokenizer`) and the model (`bpe`,
//! `wordpiece`, `unigram`); ids pass the decoders (`decoder`) on their way back, all at once or one by one (`stream`).

mod added_tokens;
mod bpe;
mod byte_level;
pub(crate) mod char_class;
mod decoder;
mod load;
mod load_gguf;
mod load_json;
mod normalizer;
mod pair;
mod post_processor;
mod precompiled;
mod pretokenizer;
mod scanner;
mod splitter;
mod stream;
mod unigram;
mod wordpiece;
pub(crate) mod write_gguf;

pub use decoder::clean_up_tokenization_spaces;
pub use pair::Encoding;
pub use stream::StreamDecoder;

use added_tokens::{AddedTokens, Segment};
use bpe::{Bpe, WordCache};
use decoder::{Decoder, Decoding, Piece};
use normalizer::Normalizer;
use pair::Pair;
use pretokenizer::PreTokenizers;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use unigram::Unigram;
use wordpiece::WordPiece;

/// Why a tokenizer could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The JSON does not parse or has a value of another type than expected.
    #[error("could not read {file}: {reason}")]
    Json {
        /// Which file.
        file: &'static str,
        /// Line, column and what is wrong.
        reason: String,
    },
    /// Something that the tokenizer needs is not there.
    #[error("the tokenizer has no {what}")]
    Missing {
        /// What, by the name the file would give it.
        what: String,
    },
    /// A part contradicts the rest.
    #[error("{what} of the tokenizer is invalid: {reason}")]
    Invalid {
        /// Which part.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A component that this program does not know.
    #[error("the tokenizer has a {component} {name:?}, which is not supported")]
    Unsupported {
        /// Normalizer, pre-tokenizer, model, decoder or post-processor.
        component: &'static str,
        /// Its type, and what about it is not supported.
        name: String,
    },
    /// A name in `tokenizer.ggml.pre` that this program does not know.
    #[error("the pre-tokenizer {name:?} is not supported; known are: {known}")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// All known names.
        known: String,
    },
    /// A regular expression that does not compile.
    #[error("the tokenizer's pattern {pattern:?} does not compile: {reason}")]
    Regex {
        /// The expression.
        pattern: String,
        /// What the compiler says.
        reason: String,
    },
    /// A key of the metadata has a value of another type.
    #[error(transparent)]
    Metadata(#[from] Box<crate::Error>),
}

impl From<crate::Error> for Error {
    fn from(error: crate::Error) -> Self {
        Error::Metadata(Box::new(error))
    }
}

impl Error {
    fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Invalid { what: what.into(), reason: reason.into() }
    }

    fn missing(what: impl Into<String>) -> Self {
        Error::Missing { what: what.into() }
    }
}

/// Result of building a tokenizer.
pub type Result<T> = std::result::Result<T, Error>;

/// What a token is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenKind {
    Normal,
    /// Stands for what the vocabulary lacks.
    Unknown,
    /// Steers the model and is no text.
    Control,
    /// Found in the text before anything else, but is text.
    UserDefined,
    /// One byte of a character that the vocabulary lacks.
    Byte,
    /// Reserved.
    Unused,
}

/// Texts and kinds of all tokens by id.
#[derive(Debug, Default)]
struct Vocabulary {
    tokens: Vec<Option<(Box<str>, TokenKind)>>,
    ids: FxHashMap<Box<str>, u32>,
    /// Texts that decoding uses instead, for added tokens that are found in normalized form.
    decoded: FxHashMap<u32, Box<str>>,
    /// Control and user-defined tokens are text as it stands and not byte-level characters.
    verbatim: bool,
}

/// A vocabulary may have ids without tokens, but not so many that a small file asks for gigabytes.
const MAX_HOLES: usize = 1 << 20;

impl Vocabulary {
    /// Adds a token. Errors: `Invalid` for an id or a text that is there already, or an id far beyond the others.
    fn insert(&mut self, text: &str, id: u32, kind: TokenKind) -> Result<()> {
        let index = id as usize;
        if index > self.ids.len() * 8 + MAX_HOLES {
            let n = self.ids.len();
            return Err(Error::invalid(
                format!("token {text:?}"),
                format!("its id {id} is out of range for {n} tokens"),
            ));
        }
        if index >= self.tokens.len() {
            self.tokens.resize(index + 1, None);
        }
        let slot = &mut self.tokens[index];
        if let Some((other, _)) = slot {
            return Err(Error::invalid(
                format!("token {text:?}"),
                format!("its id {id} belongs to {other:?} already"),
            ));
        }
        *slot = Some((text.into(), kind));
        if !text.is_empty()
            && let Some(other) = self.ids.insert(text.into(), id)
        {
            return Err(Error::invalid(
                format!("token {text:?}"),
                format!("it has two ids, {other} and {id}"),
            ));
        }
        Ok(())
    }

    fn text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize)?.as_ref().map(|(text, _)| &**text)
    }

    fn kind(&self, id: u32) -> Option<TokenKind> {
        self.tokens.get(id as usize)?.as_ref().map(|(_, kind)| *kind)
    }

    fn piece(&self, id: u32) -> Option<Piece<'_>> {
        let kind = self.kind(id)?;
        let text = self.decoded.get(&id).map(|text| &**text).or_else(|| self.text(id))?;
        let verbatim = self.verbatim && !matches!(kind, TokenKind::Normal | TokenKind::Unused);
        Some(Piece { text: Cow::Borrowed(text), verbatim })
    }
}

/// The model proper: words to ids.
#[derive(Debug)]
enum Model {
    Bpe(Bpe),
    WordPiece(WordPiece),
    Unigram(Unigram),
}

/// Ids with a meaning of their own.
#[derive(Debug, Default)]
struct SpecialIds {
    bos: Option<u32>,
    eos: Option<u32>,
    pad: Option<u32>,
    unk: Option<u32>,
    /// Every id that ends a turn, in ascending order.
    ends: Vec<u32>,
}

/// How to encode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add what the tokenizer puts around a text: BOS for most models, `[CLS]` and `[SEP]` for BERT.
    pub add_special: bool,
    /// Read the texts of control tokens as those tokens. Off for text that must not steer the model.
    pub parse_special: bool,
}

/// A model's tokenizer. Immutable: share it between threads in an `Arc`.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    /// Added tokens that are looked for in the input.
    added: AddedTokens,
    /// Added tokens that are looked for in the normalized text.
    added_normalized: AddedTokens,
    normalizers: Vec<Normalizer>,
    pre_tokenizers: PreTokenizers,
    model: Model,
    /// Ids before and after a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// What is around and between two texts, if it is known.
    pair: Option<Pair>,
    decoders: Vec<Decoder>,
    special: SpecialIds,
}

impl Tokenizer {
    /// Reads the tokenizer of a GGUF file (`tokenizer.ggml.*`).
    ///
    /// Errors: what is missing or contradictory by name; an unknown model or pre-tokenizer with the known ones.
    pub fn from_gguf(metadata: &crate::metadata::Metadata) -> Result<Self> {
        load_gguf::load(metadata)
    }

    /// Reads a Hugging Face tokenizer from the contents of its files.
    ///
    /// tokenizer_config.json and special_tokens_map.json name BOS, EOS and so on; without them those follow from the
    /// texts of the special tokens.
    ///
    /// Errors: what is missing or contradictory by name; a component that is not supported by its type.
    pub fn from_hf(
        tokenizer_json: &[u8],
        tokenizer_config: Option<&[u8]>,
        special_tokens_map: Option<&[u8]>,
    ) -> Result<Self> {
        load_json::load(tokenizer_json, tokenizer_config, special_tokens_map)
    }

    /// Token ids of `text`.
    pub fn encode(&self, text: &str, options: EncodeOptions) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 2);
        if options.add_special {
            out.extend_from_slice(&self.prefix);
        }
        let mut cache = WordCache::default();
        self.added.split(text, options.parse_special, |segment| match segment {
            Segment::Token(id) => out.push(id),
            Segment::Text(start, end) => {
                let text = Cow::Borrowed(&text[start..end]);
                let text = self.normalizers.iter().fold(text, |text, normalizer| normalizer.apply(text));
                self.added_normalized.split(&text, options.parse_special, |segment| match segment {
                    Segment::Token(id) => out.push(id),
                    Segment::Text(from, to) => {
                        let at_start = start == 0 && from == 0;
                        self.pre_tokenizers.split(&text[from..to], at_start, |word| {
                            self.encode_word(word, &mut cache, &mut out);
                        });
                    }
                });
            }
        });
        if options.add_special {
            out.extend_from_slice(&self.suffix);
        }
        out
    }

    /// What [`Tokenizer::encode`] with `add_special` puts after a text.
    pub fn suffix(&self) -> &[u32] {
        &self.suffix
    }

    fn encode_word(&self, word: &[u8], cache: &mut WordCache, out: &mut Vec<u32>) {
        match &self.model {
            Model::Bpe(model) => model.encode_word(word, cache, out),
            // Only byte-level words may be anything but UTF-8, and those belong to BPE.
            Model::WordPiece(model) => model.encode_word(std::str::from_utf8(word).unwrap_or_default(), out),
            Model::Unigram(model) => model.encode_word(std::str::from_utf8(word).unwrap_or_default(), out),
        }
    }

    /// Text of `ids`, without special tokens if `skip_special`. Bytes that are no UTF-8 become U+FFFD; ids beyond the
    /// vocabulary are left out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut out = String::with_capacity(ids.len() * 4);
        let mut decoding = Decoding::new(&self.decoders);
        for &id in ids {
            self.decode_into(id, skip_special, &mut decoding, &mut out);
        }
        decoding.finish(&self.decoders, &mut out);
        out
    }

    fn decode_into(&self, id: u32, skip_special: bool, decoding: &mut Decoding, out: &mut String) {
        if skip_special && self.is_special(id) {
            return;
        }
        if let Some(piece) = self.vocabulary.piece(id) {
            decoding.push(&self.decoders, piece, out);
        }
    }

    /// The bytes that a token stands for inside a text: they need not be UTF-8 on their own.
    pub fn token_bytes(&self, id: u32) -> Option<Cow<'_, [u8]>> {
        let piece = self.vocabulary.piece(id)?;
        let mut spaced = false;
        for step in &self.decoders {
            match step {
                Decoder::ByteLevel => {
                    let bytes = if piece.verbatim { None } else { byte_level::to_bytes(&piece.text) };
                    return Some(match bytes {
                        Some(bytes) => Cow::Owned(bytes),
                        None => into_bytes(piece.text),
                    });
                }
                Decoder::ByteFallback => {
                    if let Some(byte) = bpe::byte_of_fallback(&piece.text) {
                        return Some(Cow::Owned(vec![byte]));
                    }
                }
                Decoder::WordPiece { prefix, .. } => {
                    return Some(match piece.text.strip_prefix(prefix.as_str()) {
                        Some(continued) => Cow::Owned(continued.as_bytes().to_vec()),
                        None => Cow::Owned(format!(" {}", piece.text).into_bytes()),
                    });
                }
                Decoder::Metaspace { .. } | Decoder::Replace { .. } => spaced = true,
                _ => {}
            }
        }
        if spaced && piece.text.contains('▁') {
            return Some(Cow::Owned(piece.text.replace('▁', " ").into_bytes()));
        }
        Some(into_bytes(piece.text))
    }

    /// The token as the vocabulary writes it.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.vocabulary.text(id)
    }

    /// Id of the token that the vocabulary writes as `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.vocabulary.ids.get(text).copied()
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// The token that fills up short sequences.
    pub fn pad(&self) -> Option<u32> {
        self.special.pad
    }

    /// The token that stands for what the vocabulary lacks.
    pub fn unk(&self) -> Option<u32> {
        self.special.unk
    }

    /// Every id that ends a turn: EOS, and control tokens such as `<|im_end|>` and `<|eot_id|>`. Ascending.
    pub fn eos_ids(&self) -> &[u32] {
        &self.special.ends
    }

    /// Whether a token steers the model and is no text.
    pub fn is_special(&self, id: u32) -> bool {
        matches!(self.vocabulary.kind(id), Some(TokenKind::Control | TokenKind::Unknown))
    }

    /// Whether `encode` with `add_special` begins with BOS.
    pub fn add_bos(&self) -> bool {
        self.special.bos.is_some_and(|bos| self.prefix.contains(&bos))
    }

    /// Whether `encode` with `add_special` ends with EOS.
    pub fn add_eos(&self) -> bool {
        self.special.eos.is_some_and(|eos| self.suffix.contains(&eos))
    }
}

fn into_bytes(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}

/// Texts of tokens that end a turn or a text in the models that have them.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|end_of_turn|>",
    "<|END_OF_TURN_TOKEN|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<turn|>",
    "<|tool_response>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<｜end▁of▁sentence｜>",
];

/// All ids that end a turn: those that the file names, and control tokens whose text says so.
///
/// A token such as `<|im_end|>` counts although a converter took it for user-defined text; `</s>` does not, because it
/// is also a tag that a model may write.
fn end_ids(vocabulary: &Vocabulary, named: impl IntoIterator<Item = Option<u32>>) -> Vec<u32> {
    let mut ends: Vec<u32> = named.into_iter().flatten().collect();
    let found = |text: &str| {
        let id = *vocabulary.ids.get(text)?;
        match vocabulary.kind(id)? {
            TokenKind::Control => Some(id),
            TokenKind::UserDefined if text.starts_with("<|") && text.ends_with("|>") => Some(id),
            _ => None,
        }
    };
    ends.extend(END_TEXTS.iter().filter_map(|text| found(text)));
    // In the harmony format (and Solar's) `<|end|>` only ends a message, and the answer goes on.
    let has = |text: &str| found(text).is_some();
    if (has("<|return|>") && has("<|call|>")) || (has("<|calls|>") && has("<|flush|>")) {
        let end = vocabulary.ids.get("<|end|>").copied();
        ends.retain(|&id| Some(id) != end);
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_refuses_double_and_absurd_ids() {
        let mut vocabulary = Vocabulary::default();
        vocabulary.insert("a", 0, TokenKind::Normal).unwrap();
        assert!(
            vocabulary
                .insert("b", 0, TokenKind::Normal)
                .unwrap_err()
                .to_string()
                .contains("belongs to \"a\"")
        );
        assert!(
            vocabulary
                .insert("a", 1, TokenKind::Normal)
                .unwrap_err()
                .to_string()
                .contains("two ids, 0 and 1")
        );
        assert!(
            vocabulary
                .insert("c", u32::MAX, TokenKind::Normal)
                .unwrap_err()
                .to_string()
                .contains("out of range")
        );
    }

    #[test]
    fn control_tokens_that_end_a_turn_are_collected() {
        let mut vocabulary = Vocabulary::default();
        for (id, (text, kind)) in [
            ("</s>", TokenKind::UserDefined),
            ("<|im_end|>", TokenKind::UserDefined),
            ("<|endoftext|>", TokenKind::Control),
            ("<|end|>", TokenKind::Normal),
            ("x", TokenKind::Normal),
        ]
        .into_iter()
        .enumerate()
        {
            vocabulary.insert(text, id as u32, kind).unwrap();
        }
        assert_eq!(end_ids(&vocabulary, [Some(4), None]), [1, 2, 4]);
    }
}
