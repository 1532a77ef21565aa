//! Splitting text at the matches of a pattern: the scanner that equals it, or the regular expression itself.

use super::char_class::CharClasses;
use super::scanner::Scanner;
use super::{Error, Result};
use fancy_regex::{Regex, RegexBuilder};

/// What becomes of the matches, in the words of tokenizer.json.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

impl Behavior {
    pub(crate) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "Removed" => Behavior::Removed,
            "Isolated" => Behavior::Isolated,
            "MergedWithPrevious" => Behavior::MergedWithPrevious,
            "MergedWithNext" => Behavior::MergedWithNext,
            "Contiguous" => Behavior::Contiguous,
            _ => return None,
        })
    }
}

/// A pattern that finds pieces of text.
#[derive(Debug)]
pub(crate) enum Pattern {
    /// Exactly this text.
    Literal(String),
    /// A well-known regular expression in its hand-written form.
    Scanner(Scanner),
    /// Any other regular expression.
    Regex(Box<Regex>),
    /// Single characters that satisfy a condition.
    Chars(fn(char, CharClasses) -> bool),
}

/// A piece of text, and whether the pattern matched it.
pub(crate) type Match = (usize, usize, bool);

impl Pattern {
    /// Compiles a regular expression in Oniguruma's dialect, in which `^` and `$` also match at line ends.
    ///
    /// Errors: `Regex` naming the pattern when it does not compile.
    pub(crate) fn regex(pattern: &str) -> Result<Pattern> {
        if let Some(scanner) = Scanner::of_pattern(pattern) {
            return Ok(Pattern::Scanner(scanner));
        }
        RegexBuilder::new(pattern)
            .multi_line(true)
            // The longest text is the longest backtracking that a match may need: a limit would cut words at random.
            .backtrack_limit(usize::MAX)
            .delegate_size_limit(1 << 24)
            .build()
            .map(|regex| Pattern::Regex(Box::new(regex)))
            .map_err(|error| {
                // The compiler draws pictures over several lines, and quotes parts of the pattern as they are.
                let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
                let reason = reason.split(char::is_control).collect::<Vec<_>>().join("\u{fffd}");
                Error::Regex { pattern: pattern.to_owned(), reason }
            })
    }

    /// Calls `found` with contiguous pieces that cover `text`, in order.
    pub(crate) fn find(&self, text: &str, mut found: impl FnMut(Match)) {
        let mut end = 0;
        let mut matched = |start: usize, stop: usize, found: &mut dyn FnMut(Match)| {
            if start > end {
                found((end, start, false));
            }
            found((start, stop, true));
            end = stop;
        };
        match self {
            Pattern::Literal(literal) if literal.is_empty() => {}
            Pattern::Literal(literal) => {
                for (start, piece) in text.match_indices(literal.as_str()) {
                    matched(start, start + piece.len(), &mut found);
                }
            }
            Pattern::Scanner(scanner) => {
                let classes = CharClasses::get();
                let mut start = 0;
                while start < text.len() {
                    let stop = scanner.word_end(text, start, classes);
                    found((start, stop, true));
                    start = stop;
                }
                end = start;
            }
            Pattern::Regex(regex) => {
                for word in regex.find_iter(text) {
                    match word {
                        Ok(word) => matched(word.start(), word.end(), &mut found),
                        Err(error) => {
                            tracing::warn!(%error, "the rest of the text stays one word: its pattern gave up");
                            break;
                        }
                    }
                }
            }
            Pattern::Chars(condition) => {
                let classes = CharClasses::get();
                for (start, c) in text.char_indices() {
                    if condition(c, classes) {
                        matched(start, start + c.len_utf8(), &mut found);
                    }
                }
            }
        }
        if end < text.len() {
            found((end, text.len(), false));
        }
    }

    /// Calls `piece` with the ranges into which the pattern splits `text`; empty ranges are left out.
    pub(crate) fn split(
        &self,
        text: &str,
        behavior: Behavior,
        invert: bool,
        mut piece: impl FnMut(usize, usize),
    ) {
        let mut push = |start: usize, end: usize| {
            if end > start {
                piece(start, end);
            }
        };
        match behavior {
            Behavior::Isolated => self.find(text, |(start, end, _)| push(start, end)),
            Behavior::Removed => self.find(text, |(start, end, matched)| {
                if matched == invert {
                    push(start, end);
                }
            }),
            Behavior::Contiguous | Behavior::MergedWithPrevious | Behavior::MergedWithNext => {
                // The open piece, and whether the last thing added to it was a match.
                let mut open: Option<(usize, usize)> = None;
                let mut previous = false;
                self.find(text, |(start, end, matched)| {
                    let matched = matched != invert;
                    let joins = match behavior {
                        Behavior::Contiguous => matched == previous,
                        Behavior::MergedWithPrevious => matched && !previous,
                        // A match opens a piece that takes what follows it, unless that is a match as well.
                        _ => previous && !matched,
                    };
                    match &mut open {
                        Some(open) if joins => open.1 = end,
                        _ => {
                            if let Some((start, end)) = open.replace((start, end)) {
                                push(start, end);
                            }
                        }
                    }
                    previous = matched;
                });
                if let Some((start, end)) = open {
                    push(start, end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(behavior: Behavior, invert: bool, text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        Pattern::Literal("-".into())
            .split(text, behavior, invert, |start, end| pieces.push(&text[start..end]));
        pieces
    }

    #[test]
    fn behaviors_are_those_of_tokenizer_json() {
        let text = "the-final--countdown";
        assert_eq!(split(Behavior::Removed, false, text), ["the", "final", "countdown"]);
        assert_eq!(split(Behavior::Removed, true, text), ["-", "-", "-"]);
        assert_eq!(split(Behavior::Isolated, false, text), ["the", "-", "final", "-", "-", "countdown"]);
        assert_eq!(split(Behavior::MergedWithPrevious, false, text), ["the-", "final-", "-", "countdown"]);
        assert_eq!(split(Behavior::MergedWithNext, false, text), ["the", "-final", "-", "-countdown"]);
        assert_eq!(split(Behavior::Contiguous, false, text), ["the", "-", "final", "--", "countdown"]);
    }

    #[test]
    fn a_pattern_that_does_not_compile_is_named() {
        let error = Pattern::regex("(?<x").unwrap_err();
        assert!(error.to_string().contains("(?<x"), "{error}");
    }

    #[test]
    fn control_characters_of_a_pattern_are_not_in_its_error() {
        for pattern in ["(?\u{7f}a)", "(?\u{1b}[31m)", "\\p{\u{9b}}"] {
            let error = Pattern::regex(pattern).unwrap_err().to_string();
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
