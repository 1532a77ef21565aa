//! Finds stop strings in a text that comes in pieces, and holds back what may become one.
//!
//! The outcome does not depend on where the pieces are divided: the text ends before the stop string that is complete first, and of
//! several complete at the same character, before the longest.

use std::sync::Arc;

/// One text's filter.
#[derive(Clone, Debug)]
pub(crate) struct StopStrings {
    stops: Arc<[String]>,
    /// Text that is not given out because a stop string may begin in it.
    held: String,
}

/// What may be given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// Text without any stop string.
    pub(crate) text: String,
    /// The stop string that ended it, as an index.
    pub(crate) stop: Option<usize>,
}

impl StopStrings {
    /// A filter at the beginning of a text. No stop string is empty.
    pub(crate) fn new(stops: Arc<[String]>) -> Self {
        Self { stops, held: String::new() }
    }

    /// Takes the next piece. After a stop string was found, nothing more may be pushed.
    pub(crate) fn push(&mut self, piece: &str) -> Passed {
        if self.stops.is_empty() {
            return Passed { text: piece.to_owned(), stop: None };
        }
        self.held.push_str(piece);
        // What was held before contains no whole stop string, so the first occurrence of each is also the one that ends first.
        let ends = self.stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        if let Some((_, start, i)) = ends.min() {
            let mut text = std::mem::take(&mut self.held);
            text.truncate(start);
            return Passed { text, stop: Some(i) };
        }
        let kept = self.held.split_off(self.held.len() - self.undecided());
        Passed { text: std::mem::replace(&mut self.held, kept), stop: None }
    }

    /// The text that was held back, at the end of the whole.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Length of the longest end of `held` that begins a stop string.
    fn undecided(&self) -> usize {
        let longest = |stop: &String| {
            let ends = stop.char_indices().map(|(end, _)| end).rev();
            ends.into_iter().find(|&end| self.held.ends_with(&stop[..end])).unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `text` divided after the characters where `cuts` has a one.
    fn run(stops: &[&str], text: &str, cuts: u32) -> (String, Option<usize>) {
        let mut filter = StopStrings::new(stops.iter().map(|s| s.to_string()).collect());
        let mut out = String::new();
        let mut piece = String::new();
        for (i, c) in text.chars().enumerate() {
            piece.push(c);
            if cuts >> i & 1 == 1 || i + 1 == text.chars().count() {
                let passed = filter.push(&std::mem::take(&mut piece));
                out += &passed.text;
                if passed.stop.is_some() {
                    return (out, passed.stop);
                }
            }
        }
        (out + &filter.finish(), None)
    }

    #[test]
    fn text_ends_before_the_stop_string_however_it_is_divided() {
        let cases: [(&[&str], &str, &str, Option<usize>); 9] = [
            (&["END"], "the EN END of", "the EN ", Some(0)),
            (&["END"], "ENEEND", "ENE", Some(0)),
            (&["END"], "nothing EN", "nothing EN", None),
            (&["aab"], "aaaab", "aa", Some(0)),
            (&["abc", "b"], "xabc", "xa", Some(1)),
            (&["b", "ab"], "xab", "x", Some(1)),
            (&["abcd", "bx"], "abcbx", "abc", Some(1)),
            (&["…é"], "a…b…éz", "a…b", Some(0)),
            (&["\n\n"], "\n", "\n", None),
        ];
        for (stops, text, expected, stop) in cases {
            for cuts in 0..1 << text.chars().count() {
                assert_eq!(
                    run(stops, text, cuts),
                    (expected.to_owned(), stop),
                    "{text:?} {stops:?} {cuts:b}"
                );
            }
        }
    }

    #[test]
    fn nothing_is_held_back_that_cannot_become_a_stop_string() {
        let mut filter = StopStrings::new(["STOP".to_owned()].into());
        assert_eq!(filter.push("a S").text, "a ");
        assert_eq!(filter.push("T").text, "");
        assert_eq!(filter.push("x").text, "STx");
        let mut filter = StopStrings::new([].into());
        assert_eq!(filter.push("all").text, "all");
    }
}
