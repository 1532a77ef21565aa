//! How decode attention shares out the positions of all tokens of a step.
//!
//! A block of `decode_attention.cu` takes some query heads of one token over some of its positions. With as many splits for each token, one
//! long sequence among short ones would keep a few blocks busy long after all others are done. So the table of splits is made here, for each
//! step, from the lengths of all sequences, and has room for a number that depends on the number of tokens alone, so that a recorded graph
//! serves any lengths.

use crate::Heads;
use crate::cuda::driver::kernel_args;
use std::cmp::Reverse;

/// Blocks that a multiprocessor has room for.
const BLOCKS_OF_SM: usize = 2;
/// What a split costs besides its positions, in positions: its block's start and its share of the sums at the end.
const OVERHEAD: usize = 512;
/// Into how many parts the longest sequence may be cut.
const PARTS: [usize; 20] = [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64];
/// Most splits of a token, and most that a step has besides one for each token.
pub(in crate::cuda) const MAX_SPLITS: usize = 64;

kernel_args! {
    in "splits_args.cuh";

    /// Query heads of a block.
    const HEADS_OF_BLOCK: usize = 8;
    /// Keys of a tile.
    const KEYS_OF_TILE: usize = 16;
    /// Least keys of a split, which has whole tiles.
    const MIN_SPLIT: usize = 256;

    /// Positions `from` to `to` - 1 of a token's sequence.
    struct AttentionSplit {
        token: u32,
        /// where the sequence's block table begins
        table_start: u32,
        from: u32,
        to: u32,
        /// the token's position plus 1
        end: u32,
        /// which of the token's splits it is, and how many there are
        index: u32,
        n_used: u32,
        /// where the results of the token's first split are
        first_result: u32,
    }
}

/// Words of an entry.
const WORDS: usize = size_of::<AttentionSplit>() / 4;

/// What a token sees, and where its block table begins.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) n_positions: usize,
    pub(super) table_start: usize,
}

/// Makes tables of splits for a model's attention on a GPU.
pub(super) struct Splitter {
    n_multiprocessors: usize,
    /// Blocks of a token's heads; 0 without attention over all positions.
    head_blocks: usize,
    seen: Vec<Seen>,
    entries: Vec<AttentionSplit>,
}

impl Splitter {
    /// `heads`: those of layers that see all positions; `n_tokens`: sequences of a step at most.
    pub(super) fn new(n_multiprocessors: usize, heads: Heads, n_tokens: usize) -> Self {
        let head_blocks = head_blocks(heads);
        let room = if head_blocks > 0 { n_tokens + MAX_SPLITS } else { 0 };
        Self {
            n_multiprocessors,
            head_blocks,
            seen: Vec::with_capacity(n_tokens),
            entries: Vec::with_capacity(room),
        }
    }

    /// Entries for which a table of so many tokens has room.
    pub(super) fn capacity(&self, n_tokens: usize) -> usize {
        match (self.head_blocks, n_tokens) {
            (0, _) | (_, 0) => 0,
            (_, 1) => self.extra(1),
            _ => n_tokens + self.extra(n_tokens),
        }
    }

    /// Words of a table of so many tokens.
    pub(super) fn n_words(&self, n_tokens: usize) -> usize {
        WORDS * self.capacity(n_tokens)
    }

    /// Blocks that share the splits of so many tokens. Where each multiprocessor has no more than one at first, it has room for one of the next
    /// kernel, too.
    pub(super) fn n_blocks(&self, n_tokens: usize) -> usize {
        let is_few = n_tokens * self.head_blocks <= self.n_multiprocessors;
        self.n_multiprocessors * if is_few { 1 } else { BLOCKS_OF_SM }
    }

    /// Into how many splits of one size all positions of a step together may be cut: a block for each multiprocessor where there is one token.
    fn extra(&self, n_tokens: usize) -> usize {
        let blocks = self.n_multiprocessors * if n_tokens == 1 { 1 } else { 4 };
        (blocks / self.head_blocks).clamp(1, MAX_SPLITS)
    }

    /// Appends the table of tokens that see so many positions each to `words`.
    pub(super) fn push(&mut self, words: &mut Vec<u32>, tokens: impl Iterator<Item = Seen>) {
        self.seen.clear();
        self.seen.extend(tokens);
        let n_words = self.n_words(self.seen.len());
        if n_words == 0 {
            return;
        }
        let size = self.size();
        self.entries.clear();
        for (token, seen) in self.seen.iter().enumerate() {
            let first_result = self.entries.len() as u32;
            let even =
                seen.n_positions.div_ceil(seen.n_positions.div_ceil(size)).next_multiple_of(KEYS_OF_TILE);
            let n_used = seen.n_positions.div_ceil(even);
            self.entries.extend((0..n_used).map(|index| AttentionSplit {
                token: token as u32,
                table_start: seen.table_start as u32,
                from: (index * even) as u32,
                to: ((index + 1) * even).min(seen.n_positions) as u32,
                end: seen.n_positions as u32,
                index: index as u32,
                n_used: n_used as u32,
                first_result,
            }));
        }
        assert!(self.entries.len() <= self.capacity(self.seen.len()), "{} splits", self.entries.len());
        // The longest first, so that what is left to the end is short.
        self.entries.sort_unstable_by_key(|e| (Reverse(e.to - e.from), e.first_result + e.index));
        let end = words.len() + n_words;
        for e in &self.entries {
            words.extend([e.token, e.table_start, e.from, e.to, e.end, e.index, e.n_used, e.first_result]);
        }
        // No token has these.
        words.resize(end, 0);
    }

    /// Positions of a split at most: those of the shortest time, by what blocks do one after the other.
    fn size(&self) -> usize {
        let (longest, all) = self
            .seen
            .iter()
            .fold((1, 0), |(longest, all), s| (s.n_positions.max(longest), s.n_positions + all));
        let least = all.div_ceil(self.extra(self.seen.len())).max(MIN_SPLIT);
        let sizes = PARTS.iter().map(|parts| longest.div_ceil(*parts).next_multiple_of(KEYS_OF_TILE));
        let sizes = sizes.enumerate().take_while(|&(i, size)| i == 0 || size >= least).map(|(_, size)| size);
        let n_blocks = self.n_blocks(self.seen.len());
        let cost = |&size: &usize| {
            let n: usize = self.seen.iter().map(|s| s.n_positions.div_ceil(size)).sum();
            let rounds = (n * self.head_blocks).div_ceil(n_blocks);
            rounds * (size.min(longest) + OVERHEAD)
        };
        sizes.min_by_key(cost).unwrap_or(longest)
    }
}

/// Blocks of a token's heads.
pub(in crate::cuda) fn head_blocks(heads: Heads) -> usize {
    match heads.n_kv_heads {
        0 => 0,
        n => n * (heads.n_heads / n).div_ceil(HEADS_OF_BLOCK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(heads: Heads, lengths: &[usize]) -> Vec<AttentionSplit> {
        let mut splitter = Splitter::new(132, heads, lengths.len());
        let mut words = Vec::new();
        let seen = lengths.iter().map(|&n_positions| Seen { n_positions, table_start: 0 });
        splitter.push(&mut words, seen);
        assert_eq!(words.len(), splitter.n_words(lengths.len()));
        splitter.entries
    }

    const HEADS: Heads = Heads { n_heads: 32, n_kv_heads: 8, head_dim: 128 };

    /// Every position of every token once, in splits of whole tiles, whose results have places of their own.
    fn check(lengths: &[usize]) -> Vec<AttentionSplit> {
        let splits = table(HEADS, lengths);
        let mut places = Vec::new();
        for (token, &n) in lengths.iter().enumerate() {
            let mut own: Vec<_> = splits.iter().filter(|s| s.token as usize == token).collect();
            own.sort_by_key(|s| s.index);
            let mut next = 0;
            for (i, s) in own.iter().enumerate() {
                assert_eq!((s.from, s.index, s.n_used, s.end), (next, i as u32, own.len() as u32, n as u32));
                assert!(s.to > s.from && s.from % KEYS_OF_TILE as u32 == 0, "{} to {}", s.from, s.to);
                places.push(s.first_result + s.index);
                next = s.to;
            }
            assert_eq!(next as usize, n);
        }
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..splits.len() as u32));
        splits
    }

    #[test]
    fn positions_are_shared_out_once() {
        for n in [1, 15, 16, 17, 255, 256, 257, 1000, 32_000, 1_000_000] {
            for n_tokens in [1, 2, 3, 7, 16, 17, 33, 256] {
                check(&vec![n; n_tokens]);
                let mut mixed: Vec<usize> = (0..n_tokens).map(|i| 1 + i * 37 % 900).collect();
                mixed[n_tokens / 2] = n;
                check(&mixed);
            }
        }
    }

    #[test]
    fn a_long_sequence_is_not_left_to_a_few_blocks() {
        let mut lengths = vec![1000; 32];
        assert!(check(&lengths).iter().all(|s| s.n_used == 1));
        lengths[20] = 100_000;
        let splits = check(&lengths);
        let longest = splits.iter().map(|s| s.to - s.from).max().unwrap();
        // A 16th of 131,000 is a multiprocessor's share.
        assert!(longest <= 8_192, "{longest}");
        assert_eq!(splits[0].token, 20, "the longest come first");
        assert_eq!(check(&[32_000]).len(), 16);
    }

    #[test]
    fn models_without_attention_have_no_table() {
        assert!(table(Heads { n_heads: 0, n_kv_heads: 0, head_dim: 0 }, &[5, 6]).is_empty());
    }
}
