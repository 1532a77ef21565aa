//! Finds stop strings in a text that comes in pieces, and holds back what may become one.
//!
//! The outcome does not depend on where the pieces are divided: the text ends before the stop string that is complete first, and of
//! several complete at the same character, before the longest. One automaton (Aho-Corasick) looks for all strings at once, so a
//! byte of text takes one step however many strings there are and however long they are.

use crate::{Error, Result};
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::contiguous::NFA;
use aho_corasick::{Anchored, MatchKind};
use std::collections::HashMap;
use std::sync::Arc;

/// The stop strings of a request and the automaton that finds them. Cloning shares both.
#[derive(Clone, Debug, Default)]
pub struct StopStrings {
    /// `None` without any string.
    set: Option<Arc<Set>>,
}

#[derive(Debug)]
struct Set {
    strings: Vec<String>,
    automaton: NFA,
    start: StateID,
    /// For each state other than the start: how many of the last bytes may begin a stop string.
    n_held: HashMap<StateID, usize>,
}

impl StopStrings {
    /// Builds the automaton: time and memory in proportion to the bytes of all strings.
    ///
    /// Errors: [`Error::EmptyStop`]; [`Error::Stop`] if there are too many bytes for an automaton.
    pub fn new(strings: &[String]) -> Result<Self> {
        if strings.is_empty() {
            return Ok(Self::default());
        }
        if strings.iter().any(String::is_empty) {
            return Err(Error::EmptyStop);
        }
        let refuse = |message: String| Error::Stop { message };
        let automaton = NFA::builder().match_kind(MatchKind::Standard).prefilter(false).build(strings);
        let automaton = automaton.map_err(|error| refuse(error.to_string()))?;
        let start = automaton.start_state(Anchored::No).map_err(|error| refuse(error.to_string()))?;
        // The state after the beginning of a string stands for these bytes.
        let mut n_held = HashMap::new();
        for string in strings {
            let mut state = start;
            for (i, byte) in string.bytes().enumerate() {
                state = automaton.next_state(Anchored::No, state, byte);
                n_held.insert(state, i + 1);
            }
        }
        Ok(Self { set: Some(Arc::new(Set { strings: strings.to_vec(), automaton, start, n_held })) })
    }

    /// A string by its index.
    pub(crate) fn get(&self, index: usize) -> Option<&String> {
        self.set.as_ref()?.strings.get(index)
    }

    /// A filter at the beginning of a text.
    pub(crate) fn filter(&self) -> StopFilter {
        let state = self.set.as_ref().map(|set| set.start).unwrap_or_default();
        StopFilter { set: self.set.clone(), state, held: String::new() }
    }
}

impl Set {
    /// The longest string that ends in a state, if any does: its bytes and its index.
    fn longest_match(&self, state: StateID) -> Option<(usize, usize)> {
        if !self.automaton.is_match(state) {
            return None;
        }
        let matches = (0..self.automaton.match_len(state)).map(|i| {
            let pattern = self.automaton.match_pattern(state, i);
            (self.automaton.pattern_len(pattern), pattern.as_usize())
        });
        matches.max_by_key(|&(n_bytes, index)| (n_bytes, std::cmp::Reverse(index)))
    }
}

/// One text's filter.
#[derive(Clone, Debug)]
pub(crate) struct StopFilter {
    set: Option<Arc<Set>>,
    state: StateID,
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

impl StopFilter {
    /// Takes the next piece. After a stop string was found, nothing more may be pushed.
    pub(crate) fn push(&mut self, piece: &str) -> Passed {
        let Some(set) = &self.set else { return Passed { text: piece.to_owned(), stop: None } };
        let mut text = std::mem::take(&mut self.held);
        let n_before = text.len();
        text.push_str(piece);
        for (i, byte) in piece.bytes().enumerate() {
            self.state = set.automaton.next_state(Anchored::No, self.state, byte);
            if let Some((n_bytes, index)) = set.longest_match(self.state) {
                text.truncate(n_before + i + 1 - n_bytes);
                return Passed { text, stop: Some(index) };
            }
        }
        let n_held = set.n_held.get(&self.state).copied().unwrap_or(0);
        self.held = text.split_off(text.len() - n_held);
        Passed { text, stop: None }
    }

    /// The text that was held back, at the end of the whole.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pushes `text` divided after the characters where `cuts` has a one.
    fn run(stops: &[&str], text: &str, cuts: u32) -> (String, Option<usize>) {
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut filter = StopStrings::new(&stops).unwrap().filter();
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
        let mut filter = StopStrings::new(&["STOP".to_owned()]).unwrap().filter();
        assert_eq!(filter.push("a S").text, "a ");
        assert_eq!(filter.push("T").text, "");
        assert_eq!(filter.push("x").text, "STx");
        let mut filter = StopStrings::default().filter();
        assert_eq!(filter.push("all").text, "all");
    }

    /// The definition, without an automaton: the stop string that ends first, of those the one that begins first.
    fn by_definition(stops: &[String], text: &str) -> (String, Option<usize>) {
        let ends = stops.iter().enumerate().filter_map(|(i, stop)| {
            let start = text.find(stop.as_str())?;
            Some((start + stop.len(), start, i))
        });
        ends.min().map_or((text.to_owned(), None), |(_, start, i)| (text[..start].to_owned(), Some(i)))
    }

    #[test]
    fn random_texts_end_as_the_definition_says() {
        let mut state = 1u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        for _ in 0..3000 {
            let mut random = |longest: u64| -> String {
                (0..1 + below(longest)).map(|_| ['a', 'b', 'é'][below(3) as usize]).collect()
            };
            let stops: Vec<String> = (0..4).map(|_| random(4)).collect();
            let text = random(30);
            let mut filter = StopStrings::new(&stops).unwrap().filter();
            let (mut out, mut stop) = (String::new(), None);
            for c in text.chars() {
                let passed = filter.push(c.encode_utf8(&mut [0; 4]));
                out += &passed.text;
                stop = passed.stop;
                if stop.is_some() {
                    break;
                }
            }
            out += &filter.finish();
            let (text_before, first) = by_definition(&stops, &text);
            assert_eq!((&out, stop.is_some()), (&text_before, first.is_some()), "{stops:?} in {text:?}");
            assert_eq!(stop.map(|i| &stops[i]), first.map(|i| &stops[i]), "{stops:?} in {text:?}");
        }
    }

    /// The most that an automaton does per byte must not depend on the strings: 64 strings of 100 kB that share all but their ends.
    #[test]
    fn many_long_strings_are_looked_for_at_once() {
        let stops: Vec<String> = (0..64).map(|i| format!("{}{i}", "a".repeat(10_000))).collect();
        let mut filter = StopStrings::new(&stops).unwrap().filter();
        let mut n = 0;
        for _ in 0..20_000 {
            n += filter.push("a").text.len();
        }
        assert_eq!(n, 10_000, "as many bytes are held back as all strings begin with");
        assert_eq!(filter.push("63"), Passed { text: "".into(), stop: Some(6) });
    }
}
