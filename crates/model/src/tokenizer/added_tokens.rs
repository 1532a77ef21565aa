//! Added tokens: texts such as `<|im_start|>` that are found before anything else happens to the input.

use super::char_class::{CharClasses, SPACE, WORD};
use super::{Error, Result};
use aho_corasick::{AhoCorasick, MatchKind};

/// How one added token is found.
#[derive(Clone, Debug)]
pub(crate) struct AddedToken {
    pub(crate) id: u32,
    /// The text to find; for a normalized token, in its normalized form.
    pub(crate) pattern: String,
    /// Found only when special tokens are parsed.
    pub(crate) special: bool,
    /// Found only where no word character touches it.
    pub(crate) single_word: bool,
    /// Takes the whitespace before it.
    pub(crate) lstrip: bool,
    /// Takes the whitespace after it.
    pub(crate) rstrip: bool,
}

/// A stretch of input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Bytes from start to end, to be tokenized.
    Text(usize, usize),
    Token(u32),
}

/// Finds a set of added tokens, longest first at the leftmost place.
#[derive(Debug, Default)]
pub(crate) struct AddedTokens {
    tokens: Vec<AddedToken>,
    finder: Option<AhoCorasick>,
}

impl AddedTokens {
    /// Errors: `Invalid` when there is more text in the tokens than the finder takes.
    pub(crate) fn new(tokens: Vec<AddedToken>) -> Result<Self> {
        let tokens: Vec<_> = tokens.into_iter().filter(|token| !token.pattern.is_empty()).collect();
        if tokens.is_empty() {
            return Ok(AddedTokens::default());
        }
        let finder = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.pattern))
            .map_err(|error| Error::invalid("the list of added tokens", error.to_string()))?;
        Ok(AddedTokens { tokens, finder: Some(finder) })
    }

    /// Calls `found` with the segments of `text` in order.
    pub(crate) fn split(&self, text: &str, parse_special: bool, mut found: impl FnMut(Segment)) {
        let Some(finder) = &self.finder else {
            if !text.is_empty() {
                found(Segment::Text(0, text.len()));
            }
            return;
        };
        let classes = CharClasses::get();
        let touches = |c: Option<char>| c.is_some_and(|c| classes.is(c, WORD));
        let mut done = 0;
        for hit in finder.find_iter(text) {
            let token = &self.tokens[hit.pattern().as_usize()];
            let (mut start, mut end) = (hit.start(), hit.end());
            if token.special && !parse_special {
                continue;
            }
            if token.single_word
                && (touches(text[..start].chars().next_back()) || touches(text[end..].chars().next()))
            {
                continue;
            }
            if token.lstrip {
                let kept = text[..start].trim_end_matches(|c| classes.is(c, SPACE)).len();
                // Whitespace that the token before has taken is gone.
                start = kept.max(done);
            }
            if token.rstrip {
                let rest = &text[end..];
                end += rest.len() - rest.trim_start_matches(|c| classes.is(c, SPACE)).len();
            }
            if done < start {
                found(Segment::Text(done, start));
            }
            found(Segment::Token(token.id));
            done = done.max(end);
        }
        if done < text.len() {
            found(Segment::Text(done, text.len()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(id: u32, pattern: &str) -> AddedToken {
        AddedToken {
            id,
            pattern: pattern.into(),
            special: true,
            single_word: false,
            lstrip: false,
            rstrip: false,
        }
    }

    fn split(tokens: Vec<AddedToken>, text: &str, parse_special: bool) -> Vec<String> {
        let mut segments = Vec::new();
        AddedTokens::new(tokens).unwrap().split(text, parse_special, |segment| {
            segments.push(match segment {
                Segment::Text(start, end) => text[start..end].to_owned(),
                Segment::Token(id) => format!("#{id}"),
            });
        });
        segments
    }

    #[test]
    fn the_longest_token_wins() {
        assert_eq!(split(vec![token(1, "<a"), token(2, "<a>")], "x<a><a", true), ["x", "#2", "#1"]);
    }

    #[test]
    fn special_tokens_are_text_unless_parsed() {
        let user = AddedToken { special: false, ..token(2, "<b>") };
        assert_eq!(split(vec![token(1, "<a>"), user], "<a><b>", false), ["<a>", "#2"]);
    }

    #[test]
    fn stripping_takes_whitespace_once() {
        let both = AddedToken { lstrip: true, rstrip: true, ..token(1, "<a>") };
        assert_eq!(split(vec![both], "x  <a> \n<a> y", true), ["x", "#1", "#1", "y"]);
    }

    #[test]
    fn a_single_word_token_stands_alone() {
        let word = AddedToken { single_word: true, ..token(1, "ing") };
        assert_eq!(split(vec![word], "sing ing inger ing", true), ["sing ", "#1", " inger ", "#1"]);
    }
}
