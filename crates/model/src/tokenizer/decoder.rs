//! Decoders: how the texts of tokens become one text again, one token at a time.
//!
//! Each step is a little machine that takes pieces and gives pieces, keeping back only what the next token may still
//! change. Decoding a whole list and decoding token by token run the same machines, so they cannot disagree.

use super::bpe::byte_of_fallback;
use super::byte_level;
use super::normalizer::replace;
use super::splitter::Pattern;
use std::borrow::Cow;

/// One step, named as in tokenizer.json.
#[derive(Debug)]
pub(crate) enum Decoder {
    /// Byte-level characters become bytes, and bytes become text.
    ByteLevel,
    /// Runs of `<0xXX>` tokens become text; each byte of a run that is not UTF-8 becomes U+FFFD.
    ByteFallback,
    /// The mark becomes a space, and vanishes from the first token if it was put there (`prepended`).
    Metaspace { replacement: char, prepended: bool },
    /// Replaces within each piece.
    Replace { pattern: Pattern, content: String },
    /// All pieces become one; only what the later steps do shows it.
    Fuse,
    /// Removes up to `start` and `stop` times `content` from the two ends of each piece.
    Strip { content: char, start: usize, stop: usize },
    /// Spaces before the tokens that do not continue a word; `cleanup` undoes spaces before punctuation.
    WordPiece { prefix: String, cleanup: bool },
    /// Undoes spaces before punctuation in the whole text, as `clean_up_tokenization_spaces` asks.
    CleanUp,
    /// A suffix that ends words becomes a space, but not at the very end.
    BpeSuffix(String),
    /// Spaces between tokens: what happens without any decoder.
    JoinWithSpaces,
}

/// A token on its way through the steps.
pub(crate) struct Piece<'a> {
    pub(crate) text: Cow<'a, str>,
    /// The text is meant as it stands, although it may look like byte-level characters.
    pub(crate) verbatim: bool,
}

impl<'a> Piece<'a> {
    fn plain(text: impl Into<Cow<'a, str>>) -> Self {
        Piece { text: text.into(), verbatim: true }
    }
}

/// What a step remembers between tokens.
#[derive(Clone, Debug, Default)]
struct State {
    /// Bytes that are not yet a character, or an unfinished run of bytes.
    bytes: Vec<u8>,
    /// Text kept back.
    text: String,
    /// Whether a piece has come before.
    started: bool,
    /// How much of the beginning was stripped.
    stripped: usize,
    /// Stripping the beginning is over.
    past_start: bool,
}

/// Decoding in progress.
#[derive(Clone, Debug)]
pub(crate) struct Decoding {
    states: Vec<State>,
}

impl Decoding {
    pub(crate) fn new(steps: &[Decoder]) -> Self {
        Decoding { states: vec![State::default(); steps.len()] }
    }

    /// Appends to `out` the text that `piece` completes.
    pub(crate) fn push(&mut self, steps: &[Decoder], piece: Piece<'_>, out: &mut String) {
        run(steps, &mut self.states, false, piece, out);
    }

    /// Appends what was kept back, as the end of the text makes of it.
    pub(crate) fn finish(&mut self, steps: &[Decoder], out: &mut String) {
        finish(steps, &mut self.states, false, out);
        self.states.iter_mut().for_each(|state| *state = State::default());
    }
}

/// Runs `piece` through the first step and its results through the rest. `fused`: pieces are parts of one text.
fn run(steps: &[Decoder], states: &mut [State], fused: bool, piece: Piece<'_>, out: &mut String) {
    let (Some((step, steps)), Some((state, states))) = (steps.split_first(), states.split_first_mut()) else {
        out.push_str(&piece.text);
        return;
    };
    let first = !state.started;
    state.started = true;
    match step {
        Decoder::ByteLevel => {
            match byte_level::to_bytes(&piece.text).filter(|_| !piece.verbatim) {
                Some(bytes) => state.bytes.extend_from_slice(&bytes),
                None => state.bytes.extend_from_slice(piece.text.as_bytes()),
            }
            let text = take_complete(&mut state.bytes);
            if !text.is_empty() {
                run(steps, states, true, Piece::plain(text), out);
            }
        }
        Decoder::ByteFallback => match byte_of_fallback(&piece.text) {
            Some(byte) => state.bytes.push(byte),
            None => {
                flush_run(steps, states, fused, &mut state.bytes, out);
                run(steps, states, fused, piece, out);
            }
        },
        Decoder::Metaspace { replacement, prepended } => {
            let text: String = if first && *prepended {
                piece.text.chars().filter(|c| c != replacement).collect()
            } else {
                piece.text.chars().map(|c| if c == *replacement { ' ' } else { c }).collect()
            };
            run(steps, states, fused, Piece { text: text.into(), verbatim: piece.verbatim }, out);
        }
        // A pattern may reach over what were borders of pieces before they were fused: wait for all of the text.
        Decoder::Replace { .. } | Decoder::WordPiece { .. } if fused => state.text.push_str(&piece.text),
        Decoder::CleanUp => state.text.push_str(&piece.text),
        Decoder::Replace { pattern, content } => {
            let text = replace(pattern, content, piece.text);
            run(steps, states, fused, Piece { text, verbatim: piece.verbatim }, out);
        }
        Decoder::Fuse => run(steps, states, true, piece, out),
        Decoder::Strip { content, start, stop } if fused => {
            let text = strip_fused(state, &piece.text, *content, *start, *stop);
            if !text.is_empty() {
                run(steps, states, fused, Piece::plain(text), out);
            }
        }
        Decoder::Strip { content, start, stop } => {
            let text = strip_end(strip_start(&piece.text, *content, *start), *content, *stop).to_owned();
            run(steps, states, fused, Piece { text: text.into(), verbatim: piece.verbatim }, out);
        }
        Decoder::WordPiece { prefix, cleanup } => {
            let text = join_word_piece(piece.text, first, prefix, *cleanup);
            run(steps, states, fused, Piece::plain(text), out);
        }
        Decoder::BpeSuffix(suffix) => {
            let last = std::mem::replace(&mut state.text, piece.text.into_owned());
            if !first {
                let text = last.replace(suffix.as_str(), " ");
                run(steps, states, fused, Piece { text: text.into(), verbatim: piece.verbatim }, out);
            }
        }
        Decoder::JoinWithSpaces => {
            if !first {
                run(steps, states, fused, Piece::plain(" "), out);
            }
            run(steps, states, fused, piece, out);
        }
    }
}

/// Strips `content` from the beginning and the end of a text that comes in parts: what of it is ready, with the last `stop` characters kept
/// back, since they may turn out to be the end.
fn strip_fused(state: &mut State, part: &str, content: char, start: usize, stop: usize) -> String {
    let mut text = part;
    while !state.past_start {
        match text.chars().next() {
            Some(c) if c == content && state.stripped < start => {
                text = &text[c.len_utf8()..];
                state.stripped += 1;
            }
            Some(_) => state.past_start = true,
            None => break,
        }
    }
    if stop == 0 {
        return text.to_owned();
    }
    state.text.push_str(text);
    let kept = state.text.char_indices().rev().take(stop).last().map_or(0, |(at, _)| at);
    let rest = state.text.split_off(kept);
    std::mem::replace(&mut state.text, rest)
}

/// A WordPiece token as text: a word begins with a space, unless it is the first, and continues without its prefix.
fn join_word_piece(text: Cow<'_, str>, first: bool, prefix: &str, cleanup: bool) -> String {
    let text = match text.strip_prefix(prefix) {
        _ if first => text.into_owned(),
        Some(continued) => continued.to_owned(),
        None => format!(" {text}"),
    };
    if cleanup { clean_up(text) } else { text }
}

/// Ends the first step, then the rest.
fn finish(steps: &[Decoder], states: &mut [State], fused: bool, out: &mut String) {
    let (Some((step, steps)), Some((state, states))) = (steps.split_first(), states.split_first_mut()) else {
        return;
    };
    let mut fused = fused;
    match step {
        Decoder::ByteLevel => {
            if !state.bytes.is_empty() {
                let text = String::from_utf8_lossy(&state.bytes).into_owned();
                run(steps, states, true, Piece::plain(text), out);
            }
            fused = true;
        }
        Decoder::ByteFallback => flush_run(steps, states, fused, &mut state.bytes, out),
        Decoder::Fuse => fused = true,
        Decoder::Replace { pattern, content } if fused => {
            let text = replace(pattern, content, Cow::Owned(std::mem::take(&mut state.text))).into_owned();
            run(steps, states, fused, Piece::plain(text), out);
        }
        Decoder::WordPiece { cleanup, .. } if fused => {
            let text = std::mem::take(&mut state.text);
            run(steps, states, fused, Piece::plain(if *cleanup { clean_up(text) } else { text }), out);
        }
        Decoder::CleanUp => {
            let text = clean_up_tokenization_spaces(&state.text);
            run(steps, states, true, Piece::plain(text), out);
            fused = true;
        }
        Decoder::Strip { content, stop, .. } if fused && *stop > 0 => {
            let text = strip_end(&state.text, *content, *stop).to_owned();
            run(steps, states, fused, Piece::plain(text), out);
        }
        Decoder::BpeSuffix(suffix) if state.started => {
            let text = state.text.replace(suffix.as_str(), "");
            run(steps, states, fused, Piece::plain(text), out);
        }
        _ => {}
    }
    finish(steps, states, fused, out);
}

/// Ends a run of byte tokens.
fn flush_run(steps: &[Decoder], states: &mut [State], fused: bool, bytes: &mut Vec<u8>, out: &mut String) {
    if bytes.is_empty() {
        return;
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => "\u{fffd}".repeat(bytes.len()),
    };
    bytes.clear();
    run(steps, states, fused, Piece::plain(text), out);
}

/// Takes out of `bytes` all text up to a character whose last bytes are missing; what can never be UTF-8 becomes U+FFFD.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                at = bytes.len();
            }
            Err(error) => {
                let valid = at + error.valid_up_to();
                text.push_str(std::str::from_utf8(&bytes[at..valid]).unwrap_or_default());
                at = valid;
                match error.error_len() {
                    Some(len) => {
                        text.push('\u{fffd}');
                        at += len;
                    }
                    None => break,
                }
            }
        }
    }
    bytes.drain(..at);
    text
}

fn strip_start(text: &str, content: char, times: usize) -> &str {
    (0..times).fold(text, |text, _| text.strip_prefix(content).unwrap_or(text))
}

fn strip_end(text: &str, content: char, times: usize) -> &str {
    (0..times).fold(text, |text, _| text.strip_suffix(content).unwrap_or(text))
}

/// The WordPiece decoder's clean-up of one piece.
fn clean_up(text: String) -> String {
    if text.contains(" do not") || text.contains(['.', '?', '!', ',', '\'']) {
        clean_up_tokenization_spaces(&text).replace(" do not", " don't")
    } else {
        text
    }
}

/// Undoes the spaces that word-based decoding puts before punctuation and contractions.
///
/// The reference library's tokenizers do this to whole texts when their config has `clean_up_tokenization_spaces`. It
/// also removes such spaces where the text had them, so `decode` does it for WordPiece and Unigram only.
pub fn clean_up_tokenization_spaces(text: &str) -> String {
    const RULES: [(&str, &str); 9] = [
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    RULES.iter().fold(text.replace(" .", "."), |text, (from, to)| {
        if text.contains(from) { text.replace(from, to) } else { text }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(steps: &[Decoder], tokens: &[&str]) -> String {
        let mut decoding = Decoding::new(steps);
        let mut out = String::new();
        for &token in tokens {
            decoding.push(steps, Piece { text: token.into(), verbatim: false }, &mut out);
        }
        decoding.finish(steps, &mut out);
        out
    }

    fn llama() -> Vec<Decoder> {
        vec![
            Decoder::Replace { pattern: Pattern::Literal("▁".into()), content: " ".into() },
            Decoder::ByteFallback,
            Decoder::Fuse,
            Decoder::Strip { content: ' ', start: 1, stop: 0 },
        ]
    }

    #[test]
    fn sentencepiece_drops_one_leading_space_and_joins_bytes() {
        assert_eq!(decode(&llama(), &["▁Hi", "▁", "<0xE2>", "<0x82>", "<0xAC>", "▁x"]), "Hi € x");
        assert_eq!(decode(&llama(), &["▁▁", "a"]), " a");
        assert_eq!(decode(&llama(), &["<0xE2>", "<0x82>", "a"]), "\u{fffd}\u{fffd}a");
    }

    #[test]
    fn byte_level_text_appears_with_its_last_byte() {
        let steps = [Decoder::ByteLevel];
        let mut decoding = Decoding::new(&steps);
        let mut out = String::new();
        let mut push = |text: &str, out: &mut String| {
            decoding.push(&steps, Piece { text: text.into(), verbatim: false }, out);
        };
        push("Ġâ", &mut out);
        assert_eq!(out, " ");
        push("Ĥ", &mut out);
        assert_eq!(out, " ");
        push("¬", &mut out);
        assert_eq!(out, " €");
        assert_eq!(decode(&steps, &["â", "Ĥ", "a"]), "\u{fffd}a");
    }

    #[test]
    fn word_pieces_join_and_lose_spaces_before_punctuation() {
        let steps = [Decoder::WordPiece { prefix: "##".into(), cleanup: true }];
        assert_eq!(decode(&steps, &["un", "##able", ",", "it", "'s"]), "unable, it's");
    }

    #[test]
    fn stripping_the_end_keeps_back_what_may_be_the_end() {
        let steps = [Decoder::Fuse, Decoder::Strip { content: ' ', start: 0, stop: 2 }];
        assert_eq!(decode(&steps, &["a ", " b ", "  "]), "a  b ");
    }

    #[test]
    fn metaspace_vanishes_from_the_first_token_only() {
        let steps = [Decoder::Metaspace { replacement: '▁', prepended: true }];
        assert_eq!(decode(&steps, &["▁a", "▁b"]), "a b");
    }

    #[test]
    fn a_suffix_ends_words_but_not_the_text() {
        let steps = [Decoder::BpeSuffix("</w>".into())];
        assert_eq!(decode(&steps, &["a</w>", "b", "c</w>"]), "a bc");
    }
}
