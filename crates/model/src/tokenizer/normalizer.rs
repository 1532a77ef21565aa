//! Normalizers: what happens to the text before it is split.

use super::char_class::CharSet;
use super::precompiled::Precompiled;
use super::splitter::Pattern;
use std::borrow::Cow;
use std::sync::LazyLock;
use unicode_normalization::UnicodeNormalization;

/// One step of normalization, named as in tokenizer.json.
#[derive(Debug)]
pub(crate) enum Normalizer {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    /// Removes NUL, U+FFFD's like and line-noise, as the NMT training of SentencePiece does.
    Nmt,
    Strip {
        left: bool,
        right: bool,
    },
    Prepend(String),
    Replace {
        pattern: Pattern,
        content: String,
    },
    Bert {
        clean_text: bool,
        handle_chinese_chars: bool,
        strip_accents: bool,
        lowercase: bool,
    },
    Precompiled(Box<Precompiled>),
    /// Byte-level characters instead of bytes, before the added tokens are looked for.
    ByteLevel,
}

impl Normalizer {
    /// Applies the step; `text` stays borrowed when nothing changes.
    pub(crate) fn apply<'t>(&self, text: Cow<'t, str>) -> Cow<'t, str> {
        if text.is_empty() {
            return text;
        }
        match self {
            // ASCII is its own normal form, and most text is ASCII.
            Normalizer::Nfc | Normalizer::Nfd | Normalizer::Nfkc | Normalizer::Nfkd if text.is_ascii() => {
                text
            }
            Normalizer::Nfc if unicode_normalization::is_nfc(&text) => text,
            Normalizer::Nfc => Cow::Owned(text.nfc().collect()),
            Normalizer::Nfd => Cow::Owned(text.nfd().collect()),
            Normalizer::Nfkc => Cow::Owned(text.nfkc().collect()),
            Normalizer::Nfkd => Cow::Owned(text.nfkd().collect()),
            Normalizer::Lowercase => Cow::Owned(text.chars().flat_map(char::to_lowercase).collect()),
            Normalizer::StripAccents => Cow::Owned(
                text.chars().filter(|&c| !unicode_normalization::char::is_combining_mark(c)).collect(),
            ),
            Normalizer::Nmt => Cow::Owned(text.chars().filter_map(nmt).collect()),
            Normalizer::Strip { left, right } => {
                let mut kept: &str = &text;
                if *left {
                    kept = kept.trim_start();
                }
                if *right {
                    kept = kept.trim_end();
                }
                if kept.len() == text.len() { text } else { Cow::Owned(kept.to_owned()) }
            }
            Normalizer::Prepend(prefix) => Cow::Owned(format!("{prefix}{text}")),
            Normalizer::Replace { pattern, content } => replace(pattern, content, text),
            Normalizer::Bert { clean_text, handle_chinese_chars, strip_accents, lowercase } => {
                let mut out: String = text.into_owned();
                if *clean_text {
                    out = out.chars().filter_map(clean).collect();
                }
                if *handle_chinese_chars {
                    out = space_around_chinese(&out);
                }
                if *strip_accents {
                    out = out.nfd().filter(|&c| !NONSPACING_MARKS.contains(c)).collect();
                }
                if *lowercase {
                    out = out.chars().flat_map(char::to_lowercase).collect();
                }
                Cow::Owned(out)
            }
            Normalizer::Precompiled(map) => Cow::Owned(map.normalize(&text)),
            Normalizer::ByteLevel => Cow::Owned(super::byte_level::to_chars(text.as_bytes())),
        }
    }
}

/// Replaces every match of `pattern`.
pub(crate) fn replace<'t>(pattern: &Pattern, content: &str, text: Cow<'t, str>) -> Cow<'t, str> {
    if let Pattern::Literal(literal) = pattern {
        if literal.is_empty() || !text.contains(literal.as_str()) {
            return text;
        }
        return Cow::Owned(text.replace(literal.as_str(), content));
    }
    let mut out = String::with_capacity(text.len());
    pattern
        .find(&text, |(start, end, matched)| out.push_str(if matched { content } else { &text[start..end] }));
    Cow::Owned(out)
}

static NONSPACING_MARKS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"\p{Mn}"));
static CONTROLS: LazyLock<CharSet> = LazyLock::new(|| CharSet::new(r"[\p{Cc}\p{Cf}\p{Co}]"));

/// BERT's clean-up: control characters go, all whitespace becomes a space.
fn clean(c: char) -> Option<char> {
    match c {
        '\t' | '\n' | '\r' => Some(' '),
        '\0' | '\u{fffd}' => None,
        c if CONTROLS.contains(c) => None,
        c if c.is_whitespace() => Some(' '),
        c => Some(c),
    }
}

/// Spaces around ideographs, so that each becomes a word.
fn space_around_chinese(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if is_chinese(c) {
            out.extend([' ', c, ' ']);
        } else {
            out.push(c);
        }
    }
    out
}

/// The CJK ideograph blocks that BERT knows. The block at 2B920 begins where the reference library's typing error put it.
fn is_chinese(c: char) -> bool {
    matches!(u32::from(c),
        0x4e00..=0x9fff | 0x3400..=0x4dbf | 0x20000..=0x2a6df | 0x2a700..=0x2b73f | 0x2b740..=0x2b81f
        | 0x2b920..=0x2ceaf | 0xf900..=0xfaff | 0x2f800..=0x2fa1f)
}

/// SentencePiece's `nmt` rules: some control characters go, others and exotic spaces become a space.
fn nmt(c: char) -> Option<char> {
    match u32::from(c) {
        0x0001..=0x0008 | 0x000b | 0x000e..=0x001f | 0x007f | 0x008f | 0x009f => None,
        0x0009
        | 0x000a
        | 0x000c
        | 0x000d
        | 0x1680
        | 0x200b..=0x200f
        | 0x2028
        | 0x2029
        | 0x2581
        | 0xfeff
        | 0xfffd => Some(' '),
        _ => Some(c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(normalizer: Normalizer, text: &str) -> String {
        normalizer.apply(Cow::Borrowed(text)).into_owned()
    }

    #[test]
    fn normal_forms_compose_and_decompose() {
        assert_eq!(apply(Normalizer::Nfc, "e\u{301}ﬁ"), "éﬁ");
        assert_eq!(apply(Normalizer::Nfkc, "e\u{301}ﬁ"), "éfi");
        assert_eq!(apply(Normalizer::Nfd, "é"), "e\u{301}");
        assert_eq!(apply(Normalizer::StripAccents, "e\u{301}"), "e");
    }

    #[test]
    fn bert_cleans_lowers_and_isolates_ideographs() {
        let bert = Normalizer::Bert {
            clean_text: true,
            handle_chinese_chars: true,
            strip_accents: true,
            lowercase: true,
        };
        assert_eq!(apply(bert, "Ä\u{0}\tÉ\u{200d}字x"), "a e 字 x");
    }

    #[test]
    fn replace_takes_literals_and_patterns() {
        let literal = Normalizer::Replace { pattern: Pattern::Literal(" ".into()), content: "▁".into() };
        assert_eq!(apply(literal, " a b"), "▁a▁b");
        let regex = Normalizer::Replace { pattern: Pattern::regex(" {2,}").unwrap(), content: "_".into() };
        assert_eq!(apply(regex, "a   b c"), "a_b c");
    }
}
