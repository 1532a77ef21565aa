//! Builds the tokenizer that a GGUF file describes in `tokenizer.ggml.*`.

use super::added_tokens::{AddedToken, AddedTokens};
use super::bpe::{Bpe, BpeOptions};
use super::decoder::Decoder;
use super::normalizer::Normalizer;
use super::pair::Pair;
use super::precompiled::Precompiled;
use super::pretokenizer::{PreTokenizer, PreTokenizerSpec, PreTokenizers};
use super::splitter::Pattern;
use super::unigram::Unigram;
use super::wordpiece::WordPiece;
use super::{Error, Model, Result, SpecialIds, TokenKind, Tokenizer, Vocabulary, end_ids};
use crate::metadata::Metadata;

/// BERT's limit, which the file does not state.
const WORD_PIECE_MAX_CHARS: usize = 100;

/// The keys, read and checked.
struct Vocab<'a> {
    metadata: &'a Metadata,
    tokens: Vec<&'a str>,
    kinds: Vec<TokenKind>,
}

pub(super) fn load(metadata: &Metadata) -> Result<Tokenizer> {
    let model =
        metadata.get_str("tokenizer.ggml.model")?.ok_or_else(|| Error::missing("tokenizer.ggml.model"))?;
    let vocab = Vocab::read(metadata)?;
    match model {
        "gpt2" => vocab.byte_level_bpe(),
        "gemma4" => vocab.bpe(PreTokenizerSpec::find("gemma4")?),
        "llama" => vocab.sentencepiece_bpe(),
        "bert" => vocab.word_piece(),
        "t5" => vocab.unigram(),
        other => Err(Error::Unsupported {
            component: "model",
            name: format!("{other} (known are gpt2, llama, bert, t5 and gemma4)"),
        }),
    }
}

impl<'a> Vocab<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self> {
        let tokens = metadata
            .get_strings("tokenizer.ggml.tokens")?
            .ok_or_else(|| Error::missing("tokenizer.ggml.tokens"))?;
        if tokens.is_empty() {
            return Err(Error::invalid("tokenizer.ggml.tokens", "it is empty"));
        }
        let kinds = match metadata.get_i64s("tokenizer.ggml.token_type")? {
            None => vec![TokenKind::Normal; tokens.len()],
            Some(types) => {
                same_length("tokenizer.ggml.token_type", types.len(), tokens.len())?;
                types.iter().map(|&t| kind_of_type(t)).collect()
            }
        };
        Ok(Vocab { metadata, tokens, kinds })
    }

    fn scores(&self) -> Result<Vec<f32>> {
        let key = "tokenizer.ggml.scores";
        let scores = self.metadata.get_f32s(key)?.ok_or_else(|| Error::missing(key))?;
        same_length(key, scores.len(), self.tokens.len())?;
        if let Some(id) = scores.iter().position(|score| score.is_nan()) {
            return Err(Error::invalid(key, format!("the score of token {id} is not a number")));
        }
        Ok(scores)
    }

    /// An id by key. Errors: `Invalid` when there is no such token.
    fn id(&self, name: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        // Some converters write -1 for "none".
        let Some(id) = self.metadata.get_i64(&key)?.filter(|&id| id != -1 && id != i64::from(u32::MAX))
        else {
            return Ok(None);
        };
        match u32::try_from(id) {
            Ok(id) if (id as usize) < self.tokens.len() => Ok(Some(id)),
            _ => Err(Error::invalid(key, format!("{id} is out of range for {} tokens", self.tokens.len()))),
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool> {
        Ok(self.metadata.get_bool(&format!("tokenizer.ggml.{name}"))?.unwrap_or(default))
    }

    /// The default of a well-known id, where there is such a token.
    fn default_id(&self, id: u32) -> Option<u32> {
        ((id as usize) < self.tokens.len()).then_some(id)
    }

    fn with_kinds(&self, wanted: &[TokenKind]) -> impl Iterator<Item = (&'a str, u32)> {
        let tokens = self.tokens.iter().zip(&self.kinds).enumerate();
        let wanted = wanted.to_vec();
        tokens
            .filter(move |(_, (text, kind))| !text.is_empty() && wanted.contains(kind))
            .map(|(id, (text, _))| (*text, id as u32))
    }

    /// Control and user-defined tokens, found in the text before anything else.
    ///
    /// GGUF does not say which of them take the whitespace around them. The Phi-3 models are known to.
    fn added(&self) -> Result<AddedTokens> {
        let name = self.metadata.get_str("general.name")?.unwrap_or_default().to_lowercase();
        let phi3 = name.contains("phi-3") || name.contains("phi3");
        let jina =
            self.metadata.get_str("tokenizer.ggml.pre")?.is_some_and(|pre| pre.starts_with("jina-v2-"));
        let tokens = self.tokens.iter().zip(&self.kinds).enumerate().filter_map(|(id, (&text, &kind))| {
            let special = match kind {
                TokenKind::Control | TokenKind::Unknown => true,
                TokenKind::UserDefined => false,
                _ => return None,
            };
            Some(AddedToken {
                id: id as u32,
                pattern: text.to_owned(),
                special,
                single_word: false,
                lstrip: jina && text == "<mask>",
                rstrip: phi3 && !matches!(text, "<unk>" | "<s>" | "<|endoftext|>"),
            })
        });
        AddedTokens::new(tokens.collect())
    }

    fn byte_level_bpe(&self) -> Result<Tokenizer> {
        let pre = self.metadata.get_str("tokenizer.ggml.pre")?.unwrap_or_else(|| {
            tracing::warn!(
                "the file names no pre-tokenizer: taking \"default\", which may not be the model's"
            );
            "default"
        });
        self.bpe(PreTokenizerSpec::find(pre)?)
    }

    fn bpe(&self, spec: &PreTokenizerSpec) -> Result<Tokenizer> {
        let key = "tokenizer.ggml.merges";
        let merges = self.metadata.get_strings(key)?.ok_or_else(|| Error::missing(key))?;
        let merges = merges.iter().enumerate().map(|(rank, merge)| {
            // The parts may begin with a space where spaces are not written as other characters.
            let at = merge.char_indices().skip(1).find(|&(_, c)| c == ' ').map(|(at, _)| at);
            at.map(|at| (&merge[..at], &merge[at + 1..]))
                .ok_or_else(|| Error::invalid(key, format!("entry {rank}, {merge:?}, is not two tokens")))
        });
        let merges = merges.collect::<Result<Vec<_>>>()?;
        let unk = self.id("unknown")?;
        let options = BpeOptions {
            byte_level: spec.byte_level,
            unk,
            fuse_unk: true,
            byte_fallback: !spec.byte_level,
            ignore_merges: spec.ignore_merges,
            ..BpeOptions::default()
        };
        let vocab =
            self.with_kinds(&[TokenKind::Normal, TokenKind::UserDefined, TokenKind::Byte, TokenKind::Unused]);
        let model = Bpe::with_merges(options, vocab, merges.into_iter(), false)?;
        let decoders = if spec.byte_level { vec![Decoder::ByteLevel] } else { sentencepiece_decoders(false) };
        let bos = self.id("bos")?;
        let eos = self.id("eos")?;
        let around = Around { bos, eos, add_bos: spec.add_bos, add_eos: false };
        self.finish(spec.normalizers(), spec.steps()?, Model::Bpe(model), decoders, unk, around)
    }

    fn sentencepiece_bpe(&self) -> Result<Tokenizer> {
        let scores = self.scores()?;
        let unk = self.id("unknown")?.or(self.default_id(0));
        let options = BpeOptions { unk, fuse_unk: true, byte_fallback: true, ..BpeOptions::default() };
        let tokens: Vec<_> = self
            .with_kinds(&[TokenKind::Normal, TokenKind::UserDefined, TokenKind::Unused])
            .map(|(text, id)| (text, id, scores[id as usize]))
            .collect();
        let bytes: Vec<_> = self.with_kinds(&[TokenKind::Byte]).collect();
        let model = Bpe::with_scores(options, &tokens, &bytes, self.tokens.len() as u32);
        let add_space_prefix = self.flag("add_space_prefix", true)?;
        let around = Around {
            bos: self.id("bos")?.or(self.default_id(1)),
            eos: self.id("eos")?.or(self.default_id(2)),
            add_bos: true,
            add_eos: false,
        };
        let mut normalizers = Vec::new();
        if add_space_prefix {
            normalizers.push(Normalizer::Prepend("▁".into()));
        }
        normalizers
            .push(Normalizer::Replace { pattern: Pattern::Literal(" ".into()), content: "▁".into() });
        let decoders = sentencepiece_decoders(add_space_prefix);
        self.finish(normalizers, Vec::new(), Model::Bpe(model), decoders, unk, around)
    }

    fn word_piece(&self) -> Result<Tokenizer> {
        let unk = self.id("unknown")?.ok_or_else(|| Error::missing("tokenizer.ggml.unknown_token_id"))?;
        // The file marks the beginnings of words and not, as BERT, the continuations.
        let spelled: Vec<(String, u32)> = self
            .with_kinds(&[TokenKind::Normal, TokenKind::UserDefined, TokenKind::Unused])
            .map(|(text, id)| match text.strip_prefix('▁') {
                Some(word) => (word.to_owned(), id),
                None if text.starts_with('[') && text.ends_with(']') && text.len() > 2 => {
                    (text.to_owned(), id)
                }
                None => (format!("##{text}"), id),
            })
            .collect();
        let vocab = spelled.iter().map(|(text, id)| (text.as_str(), *id));
        let model = WordPiece::new(vocab, unk, "##", WORD_PIECE_MAX_CHARS);
        let lowercase = self.flag("normalizer.lowercase", true)?;
        let normalizers = vec![Normalizer::Bert {
            clean_text: true,
            handle_chinese_chars: true,
            strip_accents: self.flag("normalizer.strip_accents", lowercase)?,
            lowercase,
        }];
        let cls = self.id("cls")?.or(self.id("bos")?);
        let sep = self.id("seperator")?.or(self.id("eos")?);
        let around = Around { bos: cls, eos: sep, add_bos: true, add_eos: self.flag("add_sep_token", true)? };
        let decoders = vec![Decoder::WordPiece { prefix: "##".into(), cleanup: true }, Decoder::CleanUp];
        let model = Model::WordPiece(model);
        let mut tokenizer =
            self.finish(normalizers, PreTokenizer::bert().into(), model, decoders, Some(unk), around)?;
        tokenizer.vocabulary.decoded = spelled.into_iter().map(|(text, id)| (id, text.into())).collect();
        Ok(tokenizer)
    }

    fn unigram(&self) -> Result<Tokenizer> {
        let scores = self.scores()?;
        let unk = self.id("unknown")?.or(self.default_id(2));
        let byte_fallback = self.kinds.contains(&TokenKind::Byte);
        let text_kinds = [TokenKind::Normal, TokenKind::UserDefined, TokenKind::Unused, TokenKind::Byte];
        let vocab = self.with_kinds(&text_kinds).map(|(text, id)| (text, id, f64::from(scores[id as usize])));
        let model = Unigram::new(vocab, unk, byte_fallback)?;
        let mut normalizers = Vec::new();
        if let Some(blob) =
            self.metadata.get_i64s("tokenizer.ggml.precompiled_charsmap")?.filter(|b| !b.is_empty())
        {
            // Signed or unsigned, the bytes are the same.
            let blob: Vec<u8> = blob.into_iter().map(|byte| byte as u8).collect();
            normalizers.push(Normalizer::Precompiled(Box::new(Precompiled::new(&blob)?)));
        }
        let add_space_prefix = self.flag("add_space_prefix", true)?;
        if self.flag("remove_extra_whitespaces", true)? {
            normalizers.push(Normalizer::Strip { left: true, right: true });
            normalizers.push(Normalizer::Replace { pattern: Pattern::regex(" {2,}")?, content: " ".into() });
        }
        if add_space_prefix {
            normalizers.push(Normalizer::Prepend("▁".into()));
        }
        normalizers
            .push(Normalizer::Replace { pattern: Pattern::Literal(" ".into()), content: "▁".into() });
        let around = Around {
            bos: self.id("bos")?,
            eos: self.id("eos")?.or(self.default_id(1)),
            add_bos: false,
            add_eos: true,
        };
        let decoders = sentencepiece_decoders(add_space_prefix);
        self.finish(normalizers, Vec::new(), Model::Unigram(model), decoders, unk, around)
    }

    fn finish(
        &self,
        normalizers: Vec<Normalizer>,
        steps: Vec<PreTokenizer>,
        model: Model,
        decoders: Vec<Decoder>,
        unk: Option<u32>,
        around: Around,
    ) -> Result<Tokenizer> {
        let mut vocabulary = Vocabulary { verbatim: true, ..Vocabulary::default() };
        for (id, (text, kind)) in self.tokens.iter().zip(&self.kinds).enumerate() {
            vocabulary.insert(text, id as u32, *kind)?;
        }
        let Around { bos, eos, .. } = around;
        let wanted = |key: &str, id: Option<u32>, default: bool| -> Result<Vec<u32>> {
            let explicit = self.metadata.get_bool(&format!("tokenizer.ggml.add_{key}_token"))?;
            match (explicit.unwrap_or(default), id) {
                (false, _) => Ok(Vec::new()),
                (true, Some(id)) => Ok(vec![id]),
                (true, None) if explicit.is_none() => Ok(Vec::new()),
                (true, None) => Err(Error::invalid(
                    format!("tokenizer.ggml.add_{key}_token"),
                    format!("there is no {key} token"),
                )),
            }
        };
        let special = SpecialIds {
            bos,
            eos,
            pad: self.id("padding")?,
            unk,
            ends: end_ids(&vocabulary, [eos, self.id("eot")?, self.id("eom")?]),
        };
        let (prefix, suffix) = (wanted("bos", bos, around.add_bos)?, wanted("eos", eos, around.add_eos)?);
        Ok(Tokenizer {
            pair: Some(pair(&vocabulary, &prefix, &suffix)),
            vocabulary,
            added: self.added()?,
            added_normalized: AddedTokens::default(),
            normalizers,
            pre_tokenizers: PreTokenizers::new(steps),
            model,
            prefix,
            suffix,
            decoders,
            special,
        })
    }
}

/// What stands around a text unless the file says otherwise.
struct Around {
    bos: Option<u32>,
    eos: Option<u32>,
    add_bos: bool,
    add_eos: bool,
}

/// How two texts are put together, which GGUF does not say.
fn pair(vocabulary: &Vocabulary, prefix: &[u32], suffix: &[u32]) -> Pair {
    // RoBERTa and XLM-RoBERTa, whose separator is `</s>`, put it twice between texts, and their tokens are all of one type.
    let is_roberta = matches!(suffix, &[sep] if vocabulary.text(sep) == Some("</s>"));
    Pair {
        before: prefix.to_vec(),
        between: suffix.repeat(if is_roberta { 2 } else { 1 }),
        after: suffix.to_vec(),
        n_first: (!is_roberta).then_some(suffix.len()),
    }
}

fn sentencepiece_decoders(add_space_prefix: bool) -> Vec<Decoder> {
    let mut decoders = vec![
        Decoder::Replace { pattern: Pattern::Literal("▁".into()), content: " ".into() },
        Decoder::ByteFallback,
        Decoder::Fuse,
    ];
    if add_space_prefix {
        decoders.push(Decoder::Strip { content: ' ', start: 1, stop: 0 });
    }
    decoders
}

fn same_length(key: &str, found: usize, n_tokens: usize) -> Result<()> {
    if found == n_tokens {
        return Ok(());
    }
    Err(Error::invalid(key, format!("it has {found} entries for {n_tokens} tokens")))
}

fn kind_of_type(token_type: i64) -> TokenKind {
    match token_type {
        2 => TokenKind::Unknown,
        3 => TokenKind::Control,
        4 => TokenKind::UserDefined,
        5 => TokenKind::Unused,
        6 => TokenKind::Byte,
        _ => TokenKind::Normal,
    }
}
