//! Unigram (SentencePiece's other model, T5): the segmentation with the highest sum of token scores, by Viterbi.

use super::bpe::byte_of_fallback;
use super::{Error, Result};
use rustc_hash::FxHashMap;

/// How much worse than the worst token an unknown character scores.
const UNKNOWN_PENALTY: f64 = 10.0;
/// The trie's root.
const ROOT: u32 = 0;

/// The model.
#[derive(Debug)]
pub(crate) struct Unigram {
    /// Trie over the bytes of the tokens: child of (node, byte).
    children: FxHashMap<u64, u32>,
    /// Token that ends at each node.
    tokens: Vec<Option<u32>>,
    ids: FxHashMap<Box<str>, u32>,
    scores: FxHashMap<u32, f64>,
    unk: Option<u32>,
    unknown_score: f64,
    /// Ids of the `<0xXX>` tokens, if unknown characters are written with them.
    fallback_ids: Option<Box<[Option<u32>; 256]>>,
}

/// Best way to reach a place in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where the last token begins; `usize::MAX` when no way was found yet.
    start: usize,
    id: Option<u32>,
}

impl Unigram {
    /// `vocab`: text, id and score of the tokens that text may become.
    ///
    /// Errors: `Invalid` for scores that are not numbers.
    pub(crate) fn new<'a>(
        vocab: impl Iterator<Item = (&'a str, u32, f64)>,
        unk: Option<u32>,
        byte_fallback: bool,
    ) -> Result<Self> {
        let mut model = Unigram {
            children: FxHashMap::default(),
            tokens: vec![None],
            ids: FxHashMap::default(),
            scores: FxHashMap::default(),
            unk,
            unknown_score: f64::INFINITY,
            fallback_ids: byte_fallback.then(|| Box::new([None; 256])),
        };
        for (text, id, score) in vocab {
            if !score.is_finite() {
                return Err(Error::invalid(
                    format!("token {id} ({text:?})"),
                    format!("its score is {score}"),
                ));
            }
            model.unknown_score = model.unknown_score.min(score);
            model.ids.insert(text.into(), id);
            model.scores.insert(id, score);
            if let Some(ids) = &mut model.fallback_ids
                && let Some(byte) = byte_of_fallback(text)
            {
                ids[usize::from(byte)] = Some(id);
            }
            if text.is_empty() {
                continue;
            }
            let mut node = ROOT;
            for byte in text.bytes() {
                let next = model.tokens.len() as u32;
                node = *model.children.entry(u64::from(node) << 8 | u64::from(byte)).or_insert(next);
                if node == next {
                    model.tokens.push(None);
                }
            }
            model.tokens[node as usize] = Some(id);
        }
        if model.unknown_score.is_finite() {
            model.unknown_score -= UNKNOWN_PENALTY;
        } else {
            model.unknown_score = -UNKNOWN_PENALTY;
        }
        Ok(model)
    }

    /// Appends the ids of one word (which may be a whole text).
    pub(crate) fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        let bytes = word.as_bytes();
        let mut best = vec![Best { score: 0.0, start: usize::MAX, id: None }; word.len() + 1];
        let offer = |best: &mut Best, score: f64, start: usize, id: Option<u32>| {
            if best.start == usize::MAX || score > best.score {
                *best = Best { score, start, id };
            }
        };
        for (start, c) in word.char_indices() {
            let score = best[start].score;
            let mut single = false;
            let mut node = ROOT;
            for (end, &byte) in bytes.iter().enumerate().skip(start) {
                let Some(&next) = self.children.get(&(u64::from(node) << 8 | u64::from(byte))) else { break };
                node = next;
                if let Some(id) = self.tokens[node as usize] {
                    offer(&mut best[end + 1], score + self.scores[&id], start, Some(id));
                    single |= end + 1 - start == c.len_utf8();
                }
            }
            if !single {
                offer(&mut best[start + c.len_utf8()], score + self.unknown_score, start, self.unk);
            }
        }

        // Backwards over the best way; adjacent unknown characters become one piece.
        let mut pieces: Vec<(usize, usize)> = Vec::new();
        let mut end = word.len();
        let mut after_unknown = false;
        while end > 0 {
            let Best { start, id, .. } = best[end];
            let unknown = id == self.unk;
            match pieces.last_mut() {
                Some(piece) if unknown && after_unknown => piece.0 = start,
                _ => pieces.push((start, end)),
            }
            after_unknown = unknown;
            end = start;
        }
        for &(start, end) in pieces.iter().rev() {
            let piece = &word[start..end];
            if let Some(&id) = self.ids.get(piece) {
                out.push(id);
            } else if let Some(ids) = &self.fallback_ids
                && piece.bytes().all(|b| ids[usize::from(b)].is_some())
            {
                out.extend(piece.bytes().filter_map(|b| ids[usize::from(b)]));
            } else if let Some(unk) = self.unk {
                out.push(unk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_sum_of_scores_wins() {
        let vocab = [
            ("<unk>", 0.0),
            ("a", 0.0),
            ("b", 0.0),
            ("c", 0.0),
            ("d", 0.0),
            ("cd", 1.0),
            ("ab", 2.0),
            ("abc", 5.0),
            ("abcd", 10.0),
        ];
        let tokens = vocab.iter().enumerate().map(|(id, &(text, score))| (text, id as u32, score));
        let model = Unigram::new(tokens, Some(0), false).unwrap();
        let mut out = Vec::new();
        model.encode_word("abcdacdxxa", &mut out);
        assert_eq!(out, [8, 1, 5, 0, 1]);
    }

    #[test]
    fn a_score_that_is_no_number_is_an_error() {
        assert!(Unigram::new([("a", 0, f64::NAN)].into_iter(), None, false).is_err());
    }
}
