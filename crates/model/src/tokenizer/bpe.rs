//! Byte-pair encoding: the merge of lowest rank first, leftmost first among equals.
//!
//! One machine serves three kinds of vocabularies. Byte-level ones start from bytes. SentencePiece ones start from
//! characters, with tokens like `<0xE2>` for the bytes of unknown ones; their merges are either listed (tokenizer.json)
//! or follow from the scores of the tokens (GGUF): a pair may merge when the joined text is a token, best score first.

use super::{Error, Result};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Ranks and results of merges by pair of token ids.
type Merges = FxHashMap<u64, Merge>;

#[derive(Clone, Copy, Debug)]
struct Merge {
    rank: u32,
    id: u32,
}

/// A word of up to this many symbols is merged by scanning, a longer one with a heap.
const SCAN_SYMBOLS: usize = 24;
/// A word of more bytes is not worth remembering.
const CACHED_BYTES: usize = 96;

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// What the loaders know about the model.
#[derive(Debug, Default)]
pub(crate) struct BpeOptions {
    /// Words are bytes; token texts are byte-level characters.
    pub(crate) byte_level: bool,
    /// Token that stands for what the vocabulary lacks.
    pub(crate) unk: Option<u32>,
    /// Adjacent unknown characters become one unknown token.
    pub(crate) fuse_unk: bool,
    /// Unknown characters are written with `<0xXX>` tokens where there are such.
    pub(crate) byte_fallback: bool,
    /// A word that is a token stays whole.
    pub(crate) ignore_merges: bool,
    /// Written before every symbol of a word but the first.
    pub(crate) continuing_subword_prefix: String,
    /// Written after the last symbol of a word.
    pub(crate) end_of_word_suffix: String,
}

/// The model.
#[derive(Debug)]
pub(crate) struct Bpe {
    options: BpeOptions,
    /// Token ids by text; in a byte-level model by bytes.
    vocab: FxHashMap<Box<[u8]>, u32>,
    /// Ids of the single bytes, where the vocabulary has them.
    byte_ids: Box<[Option<u32>; 256]>,
    /// Ids of the `<0xXX>` tokens.
    fallback_ids: Box<[Option<u32>; 256]>,
    merges: Merges,
    /// Ids from here on are characters that are only parts of tokens; the list has their texts.
    first_part: u32,
    parts: Vec<Box<[u8]>>,
    /// No merge has ▁ after another character, so that text may be cut before ▁ without changing the result.
    cut_before_space: bool,
}

/// Words that one `encode` call has seen.
#[derive(Default)]
pub(crate) struct WordCache {
    words: FxHashMap<Box<[u8]>, (u32, u32)>,
    ids: Vec<u32>,
    /// Work space, kept between words.
    symbols: Vec<Symbol>,
}

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;
const SPACE: &str = "▁";

impl Bpe {
    /// A model with listed merges, as texts in order of rank. `vocab`: texts and ids of the model's own tokens.
    ///
    /// `later_wins`: which rank counts for a pair that is listed twice.
    ///
    /// Errors: `Invalid` naming a merge whose parts or result are not tokens.
    pub(crate) fn with_merges<'a>(
        options: BpeOptions,
        vocab: impl Iterator<Item = (&'a str, u32)>,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
        later_wins: bool,
    ) -> Result<Self> {
        let by_text: FxHashMap<&str, u32> = vocab.collect();
        let mut table = Merges::default();
        table.reserve(merges.size_hint().0);
        let prefix = options.continuing_subword_prefix.as_str();
        let mut cut_before_space = true;
        let mut joined = String::new();
        for (rank, (left, right)) in merges.enumerate() {
            joined.clear();
            joined.push_str(left);
            joined.push_str(right.strip_prefix(prefix).unwrap_or(right));
            let id_of = |text: &str| {
                by_text.get(text).copied().ok_or_else(|| {
                    Error::invalid(
                        format!("merge {rank} ({left:?} {right:?})"),
                        format!("{text:?} is not a token of the vocabulary"),
                    )
                })
            };
            let merge = Merge { rank: rank as u32, id: id_of(&joined)? };
            let key = pair(id_of(left)?, id_of(right)?);
            if later_wins {
                table.insert(key, merge);
            } else {
                table.entry(key).or_insert(merge);
            }
            cut_before_space &= !right.starts_with(SPACE) || left.ends_with(SPACE);
        }
        Ok(Self::new(options, by_text.into_iter(), table, Vec::new(), u32::MAX, cut_before_space))
    }

    /// A model whose merges follow from scores. `tokens`: texts, ids and scores of all tokens that merges may make.
    /// `n_tokens`: ids are below this. `others`: tokens that only fallbacks may give.
    pub(crate) fn with_scores(
        options: BpeOptions,
        tokens: &[(&str, u32, f32)],
        others: &[(&str, u32)],
        n_tokens: u32,
    ) -> Self {
        let mut by_text: FxHashMap<&str, u32> = tokens.iter().map(|&(text, id, _)| (text, id)).collect();
        // Equal scores get equal ranks, so that the leftmost of them merges first.
        let mut scores: Vec<f32> = tokens.iter().map(|&(_, _, score)| score).collect();
        scores.sort_by(|a, b| b.total_cmp(a));
        scores.dedup();
        let rank_of = |score: f32| scores.partition_point(|s| s.total_cmp(&score).is_gt()) as u32;

        let mut parts: Vec<Box<[u8]>> = Vec::new();
        for (text, _, _) in tokens {
            for (at, c) in text.char_indices() {
                let c = &text[at..at + c.len_utf8()];
                if c.len() < text.len() && !by_text.contains_key(c) {
                    by_text.insert(c, n_tokens + parts.len() as u32);
                    parts.push(c.as_bytes().into());
                }
            }
        }
        let mut table = Merges::default();
        table.reserve(tokens.len() * 3);
        let mut cut_before_space = true;
        for &(text, id, score) in tokens {
            let mut previous = None;
            for (at, c) in text.char_indices() {
                if at > 0 {
                    let (left, right) = text.split_at(at);
                    if let (Some(&left), Some(&right)) = (by_text.get(left), by_text.get(right)) {
                        table.insert(pair(left, right), Merge { rank: rank_of(score), id });
                    }
                    cut_before_space &= c != '▁' || previous == Some('▁');
                }
                previous = Some(c);
            }
        }
        for &(text, id) in others {
            by_text.entry(text).or_insert(id);
        }
        Self::new(options, by_text.into_iter(), table, parts, n_tokens, cut_before_space)
    }

    fn new<'a>(
        options: BpeOptions,
        vocab: impl Iterator<Item = (&'a str, u32)>,
        merges: Merges,
        parts: Vec<Box<[u8]>>,
        first_part: u32,
        cut_before_space: bool,
    ) -> Self {
        let mut byte_ids = Box::new([None; 256]);
        let mut fallback_ids = Box::new([None; 256]);
        let mut by_bytes: FxHashMap<Box<[u8]>, u32> = FxHashMap::default();
        by_bytes.reserve(vocab.size_hint().0);
        for (text, id) in vocab {
            if options.byte_level {
                // A text with other characters can never come out of bytes: it is only for show.
                let Some(bytes) = super::byte_level::to_bytes(text) else { continue };
                if let [byte] = bytes[..] {
                    byte_ids[usize::from(byte)] = Some(id);
                }
                by_bytes.insert(bytes.into(), id);
            } else {
                if let [byte] = *text.as_bytes() {
                    byte_ids[usize::from(byte)] = Some(id);
                }
                if let Some(byte) = byte_of_fallback(text) {
                    fallback_ids[usize::from(byte)] = Some(id);
                }
                by_bytes.insert(text.as_bytes().into(), id);
            }
        }
        let cut_before_space = cut_before_space
            && !options.byte_level
            && !options.ignore_merges
            && options.continuing_subword_prefix.is_empty()
            && options.end_of_word_suffix.is_empty()
            && by_bytes.contains_key(SPACE.as_bytes());
        Bpe { options, vocab: by_bytes, byte_ids, fallback_ids, merges, first_part, parts, cut_before_space }
    }

    /// Appends the ids of one word.
    pub(crate) fn encode_word(&self, word: &[u8], cache: &mut WordCache, out: &mut Vec<u32>) {
        if !self.cut_before_space {
            return self.encode_piece(word, cache, out);
        }
        // Cut before each ▁ that follows another character.
        let space = SPACE.as_bytes();
        let mut start = 0;
        let mut at = 0;
        while let Some(found) = find_space(&word[at..]) {
            let mark = at + found;
            if found > 0 && mark > start {
                self.encode_piece(&word[start..mark], cache, out);
                start = mark;
            }
            at = mark + space.len();
        }
        self.encode_piece(&word[start..], cache, out);
    }

    fn encode_piece(&self, word: &[u8], cache: &mut WordCache, out: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        if let [byte] = *word
            && let Some(id) = self.byte_ids[usize::from(byte)]
            && self.options.end_of_word_suffix.is_empty()
        {
            out.push(id);
            return;
        }
        if self.options.ignore_merges
            && let Some(&id) = self.vocab.get(word)
        {
            out.push(id);
            return;
        }
        if word.len() > CACHED_BYTES {
            self.merge(word, &mut cache.symbols, out);
        } else if let Some(&(start, end)) = cache.words.get(word) {
            out.extend_from_slice(&cache.ids[start as usize..end as usize]);
        } else {
            let start = out.len();
            self.merge(word, &mut cache.symbols, out);
            let from = cache.ids.len() as u32;
            cache.ids.extend_from_slice(&out[start..]);
            cache.words.insert(word.into(), (from, cache.ids.len() as u32));
        }
    }

    /// Splits the word into symbols, merges them, appends the ids.
    fn merge(&self, word: &[u8], symbols: &mut Vec<Symbol>, out: &mut Vec<u32>) {
        symbols.clear();
        self.symbols(word, symbols);
        if symbols.len() <= SCAN_SYMBOLS {
            self.merge_by_scanning(symbols);
            for symbol in symbols.iter() {
                self.push(symbol.id, out);
            }
        } else {
            self.merge_with_heap(symbols);
            let mut at = 0;
            while at != NONE {
                let symbol = symbols[at as usize];
                self.push(symbol.id, out);
                at = symbol.next;
            }
        }
    }

    /// Appends the id of a merged symbol; a character that is only a part of tokens falls back.
    fn push(&self, id: u32, out: &mut Vec<u32>) {
        match id.checked_sub(self.first_part).and_then(|part| self.parts.get(part as usize)) {
            None => out.push(id),
            Some(text) => {
                if let Some(bytes) = self.fallback(text) {
                    out.extend(bytes);
                } else if let Some(unk) = self.options.unk
                    && !(self.options.fuse_unk && out.last() == Some(&unk))
                {
                    out.push(unk);
                }
            }
        }
    }

    fn fallback(&self, text: &[u8]) -> Option<impl Iterator<Item = u32>> {
        let known =
            self.options.byte_fallback && text.iter().all(|&b| self.fallback_ids[usize::from(b)].is_some());
        known.then(|| text.iter().filter_map(|&b| self.fallback_ids[usize::from(b)]))
    }

    /// The first symbols of a word: bytes or characters.
    ///
    /// An unknown token waits for what follows, to be fused with more of its kind; tokens for single bytes may go before
    /// it then, which is how the reference library does it.
    fn symbols(&self, word: &[u8], symbols: &mut Vec<Symbol>) {
        let mut push = |id: u32| symbols.push(Symbol { id, previous: NONE, next: NONE });
        let BpeOptions { continuing_subword_prefix: prefix, end_of_word_suffix: suffix, .. } = &self.options;
        let plain = prefix.is_empty() && suffix.is_empty();
        let mut text = Vec::new();
        let mut unknown = None;
        let mut at = 0;
        while at < word.len() {
            let len = if self.options.byte_level { 1 } else { char_len(word[at]).min(word.len() - at) };
            let c = &word[at..at + len];
            let first = at == 0;
            at += len;
            let id = if plain && len == 1 {
                self.byte_ids[usize::from(c[0])]
            } else if plain {
                self.vocab.get(c).copied()
            } else {
                text.clear();
                if !first {
                    text.extend_from_slice(prefix.as_bytes());
                }
                text.extend_from_slice(c);
                if at == word.len() {
                    text.extend_from_slice(suffix.as_bytes());
                }
                self.vocab.get(text.as_slice()).copied()
            };
            if let Some(id) = id {
                unknown.take().into_iter().for_each(&mut push);
                push(id);
            } else if let Some(bytes) = self.fallback(c) {
                bytes.for_each(&mut push);
            } else if !self.options.fuse_unk {
                unknown.take().into_iter().for_each(&mut push);
                unknown = self.options.unk;
            } else {
                unknown = self.options.unk;
            }
        }
        unknown.into_iter().for_each(push);
    }

    fn rank(&self, left: u32, right: u32) -> Option<Merge> {
        self.merges.get(&pair(left, right)).copied()
    }

    /// For short words: each round finds the best pair by looking at the ranks of all.
    fn merge_by_scanning(&self, symbols: &mut Vec<Symbol>) {
        let mut n = symbols.len();
        let mut ranks = [Merge { rank: NONE, id: 0 }; SCAN_SYMBOLS];
        let rank =
            |left: Symbol, right: Symbol| self.rank(left.id, right.id).unwrap_or(Merge { rank: NONE, id: 0 });
        for i in 1..n {
            ranks[i - 1] = rank(symbols[i - 1], symbols[i]);
        }
        while n > 1 {
            let mut best = 0;
            for i in 1..n - 1 {
                if ranks[i].rank < ranks[best].rank {
                    best = i;
                }
            }
            if ranks[best].rank == NONE {
                break;
            }
            symbols[best].id = ranks[best].id;
            symbols.copy_within(best + 2..n, best + 1);
            ranks.copy_within(best + 1..n - 1, best);
            n -= 1;
            if best + 1 < n {
                ranks[best] = rank(symbols[best], symbols[best + 1]);
            } else {
                ranks[best].rank = NONE;
            }
            if best > 0 {
                ranks[best - 1] = rank(symbols[best - 1], symbols[best]);
            }
        }
        symbols.truncate(n);
    }

    /// For words of any length, in O(n log n): the symbols form a linked list, a heap holds the pairs by rank and place.
    fn merge_with_heap(&self, symbols: &mut [Symbol]) {
        let n = symbols.len() as u32;
        for at in 0..n {
            let symbol = &mut symbols[at as usize];
            symbol.previous = at.checked_sub(1).unwrap_or(NONE);
            symbol.next = if at + 1 < n { at + 1 } else { NONE };
        }
        let mut initial = Vec::with_capacity(symbols.len());
        for at in 1..symbols.len() {
            if let Some(merge) = self.rank(symbols[at - 1].id, symbols[at].id) {
                initial.push(Reverse(u64::from(merge.rank) << 32 | (at as u64 - 1)));
            }
        }
        let mut heap = BinaryHeap::from(initial);
        while let Some(Reverse(entry)) = heap.pop() {
            let (rank, at) = ((entry >> 32) as u32, entry as u32);
            let left = symbols[at as usize];
            if left.id == NONE || left.next == NONE {
                continue;
            }
            let right = symbols[left.next as usize];
            // The entry is stale when one of its symbols has merged with another since.
            let Some(merge) = self.rank(left.id, right.id).filter(|merge| merge.rank == rank) else {
                continue;
            };
            symbols[left.next as usize].id = NONE;
            symbols[at as usize].id = merge.id;
            symbols[at as usize].next = right.next;
            if right.next != NONE {
                symbols[right.next as usize].previous = at;
                if let Some(next) = self.rank(merge.id, symbols[right.next as usize].id) {
                    heap.push(Reverse(u64::from(next.rank) << 32 | u64::from(at)));
                }
            }
            if left.previous != NONE
                && let Some(next) = self.rank(symbols[left.previous as usize].id, merge.id)
            {
                heap.push(Reverse(u64::from(next.rank) << 32 | u64::from(left.previous)));
            }
        }
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn byte_of_fallback(text: &str) -> Option<u8> {
    let hex = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() == 2 { u8::from_str_radix(hex, 16).ok() } else { None }
}

/// Length of the UTF-8 character that begins with `lead`.
fn char_len(lead: u8) -> usize {
    match lead {
        0..0xc0 => 1,
        0xc0..0xe0 => 2,
        0xe0..0xf0 => 3,
        _ => 4,
    }
}

/// Place of the first ▁.
fn find_space(bytes: &[u8]) -> Option<usize> {
    let space = SPACE.as_bytes();
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|&b| b == space[0]) {
        at += found;
        if bytes[at..].starts_with(space) {
            return Some(at);
        }
        at += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(bpe: &Bpe, word: &str) -> Vec<u32> {
        let mut out = Vec::new();
        bpe.encode_word(word.as_bytes(), &mut WordCache::default(), &mut out);
        out
    }

    fn byte_level(tokens: &[&str], merges: &[(&str, &str)]) -> Bpe {
        let options = BpeOptions { byte_level: true, ..BpeOptions::default() };
        let vocab = tokens.iter().enumerate().map(|(id, &text)| (text, id as u32));
        Bpe::with_merges(options, vocab, merges.iter().copied(), true).unwrap()
    }

    #[test]
    fn the_lowest_rank_merges_first_and_the_leftmost_among_equals() {
        let bpe = byte_level(&["a", "b", "c", "bc", "ab", "aa"], &[("b", "c"), ("a", "b"), ("a", "a")]);
        assert_eq!(encode(&bpe, "abc"), [0, 3]);
        assert_eq!(encode(&bpe, "aaa"), [5, 0]);
    }

    #[test]
    fn scanning_and_heap_agree() {
        let bpe = byte_level(
            &["a", "b", "c", "ab", "bc", "abc", "aa", "aab", "cc", "ca"],
            &[("a", "b"), ("b", "c"), ("ab", "c"), ("a", "a"), ("a", "ab"), ("c", "c"), ("c", "a")],
        );
        let mut random = 7u64;
        for _ in 0..2000 {
            let symbols: Vec<Symbol> = (0..SCAN_SYMBOLS)
                .map(|_| {
                    random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    Symbol { id: (random >> 60) as u32 % 3, previous: NONE, next: NONE }
                })
                .collect();
            let mut scanned = symbols.clone();
            bpe.merge_by_scanning(&mut scanned);
            let mut heaped = symbols;
            bpe.merge_with_heap(&mut heaped);
            let heaped: Vec<u32> = heaped.iter().map(|s| s.id).filter(|&id| id != NONE).collect();
            assert_eq!(scanned.iter().map(|s| s.id).collect::<Vec<_>>(), heaped);
        }
    }

    #[test]
    fn a_merge_of_unknown_tokens_is_named() {
        let vocab = [("a", 0), ("b", 1)];
        let error =
            Bpe::with_merges(BpeOptions::default(), vocab.into_iter(), [("a", "b")].into_iter(), true);
        assert!(error.unwrap_err().to_string().contains("\"ab\""));
    }

    #[test]
    fn scores_decide_merges_and_unknown_characters_become_bytes() {
        let options =
            BpeOptions { byte_fallback: true, unk: Some(0), fuse_unk: true, ..BpeOptions::default() };
        let tokens = [("a", 1, -1.0), ("b", 2, -2.0), ("ab", 3, -5.0), ("ba", 4, -3.0), ("xb", 5, -4.0)];
        let bytes = [("<0xC3>", 6), ("<0xA9>", 7)];
        let bpe = Bpe::with_scores(options, &tokens, &bytes, 8);
        assert_eq!(encode(&bpe, "aba"), [1, 4]);
        assert_eq!(encode(&bpe, "é"), [6, 7]);
        // "x" is only a part of "xb": it merges, and falls back when it stays alone.
        assert_eq!(encode(&bpe, "xbxx"), [5, 0]);
        assert_eq!(encode(&bpe, "zz"), [0]);
    }

    #[test]
    fn cutting_before_spaces_does_not_change_the_result() {
        let tokens = [("▁", 0, -1.0), ("a", 1, -2.0), ("▁a", 2, -3.0), ("▁▁", 3, -4.0), ("aa", 4, -5.0)];
        let mut bpe = Bpe::with_scores(BpeOptions::default(), &tokens, &[], 5);
        assert!(bpe.cut_before_space);
        let text = "▁a▁▁aa▁▁▁▁a";
        let cut = encode(&bpe, text);
        bpe.cut_before_space = false;
        assert_eq!(cut, encode(&bpe, text));
        let crossing = [("▁", 0, -1.0), ("a", 1, -2.0), ("a▁", 2, -3.0)];
        assert!(!Bpe::with_scores(BpeOptions::default(), &crossing, &[], 3).cut_before_space);
    }
}
