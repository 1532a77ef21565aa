//! Pre-tokenizers: how normalized text falls into words, from which no merge reaches out.
//!
//! `PRETOKENIZERS` maps the names in GGUF's `tokenizer.ggml.pre` to these steps.

use super::byte_level;
use super::char_class::{NUMBER, PUNCTUATION, SPACE, WORD};
use super::normalizer::Normalizer;
use super::scanner::{GPT2, GPT4O, LINES, LLAMA3, QWEN2, QWEN35, TEKKEN, UFAKZEKA};
use super::splitter::{Behavior, Pattern};
use super::{Error, Result};
use std::borrow::Cow;

/// When Metaspace puts its mark before a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrependScheme {
    Always,
    /// Only before the very beginning of the input.
    First,
    Never,
}

/// One step of splitting, named as in tokenizer.json.
#[derive(Debug)]
pub(crate) enum PreTokenizer {
    Split {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    /// Splits by GPT-2's pattern if `use_regex`, then writes bytes as byte-level characters.
    ByteLevel {
        add_prefix_space: bool,
        use_regex: bool,
    },
    Metaspace {
        replacement: char,
        prepend: PrependScheme,
        split: bool,
    },
}

impl PreTokenizer {
    pub(crate) fn digits(individual: bool) -> Self {
        let behavior = if individual { Behavior::Isolated } else { Behavior::Contiguous };
        Self::chars(|c, classes| classes.is(c, NUMBER), behavior)
    }

    pub(crate) fn punctuation(behavior: Behavior) -> Self {
        Self::chars(|c, classes| c.is_ascii_punctuation() || classes.is(c, PUNCTUATION), behavior)
    }

    pub(crate) fn whitespace_split() -> Self {
        Self::chars(|c, classes| classes.is(c, SPACE), Behavior::Removed)
    }

    /// `\w+|[^\w\s]+`: words and runs of symbols, without whitespace.
    pub(crate) fn whitespace() -> [Self; 2] {
        [Self::whitespace_split(), Self::chars(|c, classes| classes.is(c, WORD), Behavior::Contiguous)]
    }

    /// BERT: whitespace goes, each punctuation character is a word.
    pub(crate) fn bert() -> [Self; 2] {
        [Self::whitespace_split(), Self::punctuation(Behavior::Isolated)]
    }

    fn chars(condition: fn(char, super::char_class::CharClasses) -> bool, behavior: Behavior) -> Self {
        PreTokenizer::Split { pattern: Pattern::Chars(condition), behavior, invert: false }
    }

    /// A regular expression whose matches become words.
    pub(crate) fn isolate(regex: &str) -> Result<Self> {
        Ok(PreTokenizer::Split {
            pattern: Pattern::regex(regex)?,
            behavior: Behavior::Isolated,
            invert: false,
        })
    }
}

/// The steps in order. Text goes in, byte or character ranges of words come out.
#[derive(Debug, Default)]
pub(crate) struct PreTokenizers {
    steps: Vec<PreTokenizer>,
    /// Whether some step writes bytes as byte-level characters.
    pub(crate) byte_level: bool,
}

impl PreTokenizers {
    pub(crate) fn new(steps: Vec<PreTokenizer>) -> Self {
        let byte_level = steps.iter().any(|step| matches!(step, PreTokenizer::ByteLevel { .. }));
        PreTokenizers { steps, byte_level }
    }

    /// Calls `word` with each word of `text`. In a byte-level tokenizer the words are the original bytes, else UTF-8.
    ///
    /// `at_start`: whether `text` begins the input; Metaspace may put its mark only there.
    pub(crate) fn split(&self, text: &str, at_start: bool, mut word: impl FnMut(&[u8])) {
        let mut buffer = Cow::Borrowed(text);
        let mut words = vec![(0, text.len())];
        let mut mapped = false;
        for (index, step) in self.steps.iter().enumerate() {
            match step {
                PreTokenizer::Split { pattern, behavior, invert } => {
                    words = split_words(&buffer, &words, |text, found| {
                        pattern.split(text, *behavior, *invert, found)
                    });
                }
                PreTokenizer::ByteLevel { add_prefix_space, use_regex } => {
                    if *add_prefix_space {
                        rewrite(&mut buffer, &mut words, |word, _, out| {
                            if !word.starts_with(' ') {
                                out.push(' ');
                            }
                            out.push_str(word);
                        });
                    }
                    if *use_regex {
                        let pattern = Pattern::Scanner(super::scanner::Scanner::Gpt2);
                        words = split_words(&buffer, &words, |text, found| {
                            pattern.split(text, Behavior::Isolated, false, found);
                        });
                    }
                    // The last step need not write characters that the model reads back into bytes.
                    if index + 1 < self.steps.len() && !mapped {
                        rewrite(&mut buffer, &mut words, |word, _, out| {
                            out.extend(word.bytes().map(byte_level::char_of_byte));
                        });
                        mapped = true;
                    }
                }
                PreTokenizer::Metaspace { replacement, prepend, split } => {
                    rewrite(&mut buffer, &mut words, |word, start, out| {
                        let marked = word.starts_with(*replacement) || word.starts_with(' ');
                        let wanted = match prepend {
                            PrependScheme::Always => true,
                            PrependScheme::First => at_start && start == 0,
                            PrependScheme::Never => false,
                        };
                        if wanted && !marked {
                            out.push(*replacement);
                        }
                        out.extend(word.chars().map(|c| if c == ' ' { *replacement } else { c }));
                    });
                    if *split {
                        let pattern = Pattern::Literal(replacement.to_string());
                        words = split_words(&buffer, &words, |text, found| {
                            pattern.split(text, Behavior::MergedWithNext, false, found);
                        });
                    }
                }
            }
        }
        for (start, end) in words {
            if mapped {
                // Every character was written from a byte above, and splitting does not change characters.
                word(&byte_level::to_bytes(&buffer[start..end]).unwrap_or_default());
            } else {
                word(&buffer.as_bytes()[start..end]);
            }
        }
    }
}

/// Splits every word by `split`, which gets a text and a function that takes the pieces.
fn split_words(
    buffer: &str,
    words: &[(usize, usize)],
    split: impl Fn(&str, &mut dyn FnMut(usize, usize)),
) -> Vec<(usize, usize)> {
    let mut pieces = Vec::with_capacity(words.len().max(buffer.len() / 5));
    for &(start, end) in words {
        split(&buffer[start..end], &mut |from, to| pieces.push((start + from, start + to)));
    }
    pieces
}

/// Writes every word anew by `write(word, its start, output)`.
fn rewrite(
    buffer: &mut Cow<'_, str>,
    words: &mut [(usize, usize)],
    write: impl Fn(&str, usize, &mut String),
) {
    let mut out = String::with_capacity(buffer.len() + words.len());
    for word in words {
        let start = out.len();
        write(&buffer[word.0..word.1], word.0, &mut out);
        *word = (start, out.len());
    }
    *buffer = Cow::Owned(out);
}

/// What a name in `tokenizer.ggml.pre` stands for.
#[derive(Debug)]
pub(crate) struct PreTokenizerSpec {
    /// The names, as converters write them.
    pub(crate) names: &'static [&'static str],
    /// The text is brought into normal form C first.
    pub(crate) nfc: bool,
    /// Patterns whose matches become words, one after the other.
    pub(crate) splits: &'static [&'static str],
    /// A word that is a token stays whole, whatever the merges say.
    pub(crate) ignore_merges: bool,
    /// BOS is added unless the file says otherwise.
    pub(crate) add_bos: bool,
    /// Words are byte-level characters; otherwise spaces are written as ▁ and unknown characters as `<0xXX>` tokens.
    pub(crate) byte_level: bool,
    /// GPT-2's pattern is applied last, on text whose earlier splits stand.
    pub(crate) falcon: bool,
}

const SPEC: PreTokenizerSpec = PreTokenizerSpec {
    names: &[],
    nfc: false,
    splits: &[],
    ignore_merges: false,
    add_bos: false,
    byte_level: true,
    falcon: false,
};

const DIGIT: &str = r"\p{N}";
const CJK_PHRASE: &str = " ?[^(\\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+";
const DEEPSEEK_PUNCTUATION: &str =
    "\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+";
const DEEPSEEK_HAN: &str = "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+";
const DEEPSEEK_CJK: &str = "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+";
const DEEPSEEK_V3: &str = "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+";
/// Letters of the Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, Coptic and a few more alphabets that have case.
const DEEPSEEK_LETTERS: &str = "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}\u{295}-\
    \u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}\u{38e}-\
    \u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}\u{13a0}-\
    \u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}\u{1d6b}-\u{1d77}\
    \u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}\u{1f48}-\u{1f4d}\u{1f50}-\
    \u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}\u{1fb6}-\u{1fbc}\u{1fbe}\
    \u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}\u{1fe0}-\u{1fec}\u{1ff2}-\
    \u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}\u{2119}-\u{211d}\u{2124}\
    \u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}\u{2145}-\u{2149}\
    \u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}\u{2cf3}\
    \u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}\u{ab70}-\
    \u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}\u{10400}-\u{1044f}\
    \u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}\u{118a0}-\u{118df}\
    \u{1e900}-\u{1e943}]+";
const KIMI: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const BAILING: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const JAIS2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
/// Digits in threes, counted from the end of a number.
const THREES: &str = r"\d{1,3}(?=(?:\d{3})*\b)";
const SYMBOLS: &str = r"[\p{P}\$\+<=>\^~\|`]+";
const THREE_DIGITS: &str = "[0-9][0-9][0-9]";

/// Every pre-tokenizer name that we know.
pub(crate) static PRETOKENIZERS: &[PreTokenizerSpec] = &[
    PreTokenizerSpec {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", THREE_DIGITS],
        ..SPEC
    },
    PreTokenizerSpec {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        splits: &[GPT2],
        ..SPEC
    },
    // Descendants of GPT-NeoX's tokenizer, which normalizes.
    PreTokenizerSpec { names: &["mpt", "olmo"], nfc: true, splits: &[GPT2], ..SPEC },
    PreTokenizerSpec {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..SPEC
    },
    PreTokenizerSpec { names: &["dbrx", "smaug-bpe", "chatglm-bpe"], splits: &[LLAMA3], ..SPEC },
    PreTokenizerSpec { names: &["glm4", "glm5"], splits: &[LLAMA3], ignore_merges: true, ..SPEC },
    PreTokenizerSpec { names: &["qwen2", "deepseek-r1-qwen"], nfc: true, splits: &[QWEN2], ..SPEC },
    PreTokenizerSpec {
        names: &["stablelm2", "hunyuan", "solar-open", "megrez", "kormo", "f2llmv2", "grok-2"],
        splits: &[QWEN2],
        ..SPEC
    },
    PreTokenizerSpec { names: &["qwen35"], nfc: true, splits: &[QWEN35], ..SPEC },
    PreTokenizerSpec { names: &["ufakzeka"], splits: &[UFAKZEKA], ..SPEC },
    PreTokenizerSpec { names: &["laguna"], splits: &[LINES, QWEN2], ..SPEC },
    PreTokenizerSpec {
        names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"],
        splits: &[GPT4O],
        ..SPEC
    },
    PreTokenizerSpec { names: &["tiny_aya", "cohere2moe"], splits: &[THREES, GPT4O], ..SPEC },
    PreTokenizerSpec { names: &["granite-embed-multi-97m"], splits: &[GPT4O], ignore_merges: true, ..SPEC },
    PreTokenizerSpec { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true, ..SPEC },
    PreTokenizerSpec {
        names: &["starcoder", "refact", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        splits: &[DIGIT, GPT2],
        ..SPEC
    },
    PreTokenizerSpec { names: &["command-r"], nfc: true, splits: &[DIGIT, GPT2], ..SPEC },
    PreTokenizerSpec { names: &["falcon"], splits: &[SYMBOLS], falcon: true, ..SPEC },
    PreTokenizerSpec {
        names: &["deepseek-llm"],
        splits: &["[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_PUNCTUATION, "\\s+$", DEEPSEEK_CJK, r"\p{N}+"],
        ..SPEC
    },
    PreTokenizerSpec {
        names: &["deepseek-coder"],
        splits: &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, DIGIT],
        ..SPEC
    },
    PreTokenizerSpec {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[r"\p{N}{1,3}", DEEPSEEK_HAN, DEEPSEEK_V3],
        ..SPEC
    },
    PreTokenizerSpec { names: &["bloom", "poro-chat", "gpt3-finnish"], splits: &[CJK_PHRASE], ..SPEC },
    PreTokenizerSpec { names: &["viking"], splits: &[CJK_PHRASE, DIGIT], ..SPEC },
    PreTokenizerSpec { names: &["kimi-k2"], splits: &[KIMI], ..SPEC },
    PreTokenizerSpec { names: &["exaone-moe"], splits: &[EXAONE_MOE], ..SPEC },
    PreTokenizerSpec { names: &["bailingmoe", "bailingmoe2", "llada-moe"], splits: &[BAILING], ..SPEC },
    PreTokenizerSpec { names: &["seed-coder"], splits: &[SEED_CODER], ..SPEC },
    PreTokenizerSpec {
        names: &["minicpm5"],
        splits: &[r"\p{N}{1,3}", MINICPM5],
        ignore_merges: true,
        ..SPEC
    },
    PreTokenizerSpec { names: &["jais-2"], splits: &[JAIS2], ..SPEC },
    PreTokenizerSpec { names: &["gemma4"], splits: &[LINES], byte_level: false, add_bos: true, ..SPEC },
    PreTokenizerSpec { names: &["sarvam-moe"], splits: &[LINES], byte_level: false, ..SPEC },
];

impl PreTokenizerSpec {
    /// The row of a name. Errors: `UnknownPreTokenizer` with the names that are known.
    pub(crate) fn find(name: &str) -> Result<&'static Self> {
        PRETOKENIZERS.iter().find(|spec| spec.names.contains(&name)).ok_or_else(|| {
            Error::UnknownPreTokenizer {
                name: name.to_owned(),
                known: PRETOKENIZERS
                    .iter()
                    .flat_map(|spec| spec.names)
                    .copied()
                    .collect::<Vec<_>>()
                    .join(", "),
            }
        })
    }

    pub(crate) fn normalizers(&self) -> Vec<Normalizer> {
        let mut normalizers = Vec::new();
        if self.nfc {
            normalizers.push(Normalizer::Nfc);
        }
        if !self.byte_level {
            normalizers
                .push(Normalizer::Replace { pattern: Pattern::Literal(" ".into()), content: "▁".into() });
        }
        normalizers
    }

    pub(crate) fn steps(&self) -> Result<Vec<PreTokenizer>> {
        if self.falcon {
            return Ok(vec![
                PreTokenizer::punctuation(Behavior::Contiguous),
                PreTokenizer::ByteLevel { add_prefix_space: false, use_regex: true },
                PreTokenizer::digits(false),
                PreTokenizer::isolate(THREE_DIGITS)?,
            ]);
        }
        let mut steps =
            self.splits.iter().map(|split| PreTokenizer::isolate(split)).collect::<Result<Vec<_>>>()?;
        if self.byte_level {
            steps.push(PreTokenizer::ByteLevel { add_prefix_space: false, use_regex: false });
        }
        Ok(steps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(steps: Vec<PreTokenizer>, text: &str) -> Vec<String> {
        let mut words = Vec::new();
        PreTokenizers::new(steps)
            .split(text, true, |word| words.push(String::from_utf8_lossy(word).into_owned()));
        words
    }

    #[test]
    fn every_named_pre_tokenizer_compiles_and_covers_the_text() {
        let text = "Hello, wörld's 12345 ½\r\n\n  字かな 👩\u{200d}🚀 'LL x² ";
        let mut seen = std::collections::HashSet::new();
        for spec in PRETOKENIZERS {
            for name in spec.names {
                assert!(seen.insert(name), "{name} stands there twice");
            }
            let mut bytes = Vec::new();
            PreTokenizers::new(spec.steps().unwrap()).split(text, true, |word| bytes.extend_from_slice(word));
            assert_eq!(bytes, text.as_bytes(), "{:?}", spec.names);
        }
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_known_ones() {
        let error = PreTokenizerSpec::find("no-such").unwrap_err().to_string();
        assert!(error.contains("no-such") && error.contains("llama-bpe"), "{error}");
    }

    #[test]
    fn falcon_splits_digits_in_byte_level_text() {
        let steps = PreTokenizerSpec::find("falcon").unwrap().steps().unwrap();
        assert_eq!(words(steps, "ab 12345!"), ["ab", " ", "123", "45", "!"].map(String::from));
    }

    #[test]
    fn tiny_aya_counts_digits_from_the_end() {
        let steps = PreTokenizerSpec::find("tiny_aya").unwrap().steps().unwrap();
        assert_eq!(words(steps, "ab 1234567!"), ["ab", " ", "1", "234", "567", "!"].map(String::from));
    }

    #[test]
    fn metaspace_marks_the_first_word_as_told() {
        let metaspace = |prepend| vec![PreTokenizer::Metaspace { replacement: '▁', prepend, split: true }];
        assert_eq!(words(metaspace(PrependScheme::Always), "a b"), ["▁a", "▁b"]);
        assert_eq!(words(metaspace(PrependScheme::Never), "a b"), ["a", "▁b"]);
        assert_eq!(words(metaspace(PrependScheme::Always), " a  b"), ["▁a", "▁", "▁b"]);
    }
}
