//! Unicode classes of characters: in one flat table, for the hand-written splitters, and as sets of ranges.
//!
//! The table is filled once from the same ranges that the regular expressions use, so that a splitter and the pattern it
//! stands for cannot disagree about a character.

use std::sync::LazyLock;

/// General category L.
pub(crate) const LETTER: u8 = 1;
/// General category N.
pub(crate) const NUMBER: u8 = 2;
/// White_Space property, as `\s`.
pub(crate) const SPACE: u8 = 4;
/// General category M.
pub(crate) const MARK: u8 = 8;
/// Lu, Lt, Lm, Lo and M: what may open a capitalized word in the o200k pattern.
pub(crate) const UPPER: u8 = 16;
/// Ll, Lm, Lo and M: what may continue a word in the o200k pattern.
pub(crate) const LOWER: u8 = 32;
/// General category P.
pub(crate) const PUNCTUATION: u8 = 64;
/// Word characters, as `\w`.
pub(crate) const WORD: u8 = 128;

static TABLE: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut table = vec![0u8; 0x11_0000].into_boxed_slice();
    for (pattern, bit) in [
        (r"\p{L}", LETTER),
        (r"\p{N}", NUMBER),
        (r"\s", SPACE),
        (r"\p{M}", MARK),
        (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
        (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
        (r"\p{P}", PUNCTUATION),
        (r"\w", WORD),
    ] {
        for (first, last) in ranges(pattern) {
            for class in &mut table[first as usize..=last as usize] {
                *class |= bit;
            }
        }
    }
    table
});

/// The ranges of characters that a class such as `\p{Cf}` holds.
fn ranges(pattern: &str) -> Vec<(char, char)> {
    let hir = regex_syntax::parse(pattern).expect("our own class pattern parses");
    match hir.kind() {
        regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) => {
            class.ranges().iter().map(|range| (range.start(), range.end())).collect()
        }
        other => unreachable!("{pattern} is not one class: {other:?}"),
    }
}

/// A sorted set of character ranges.
pub(crate) struct CharSet(Vec<(char, char)>);

impl CharSet {
    /// The characters of a class such as `\p{Cf}`.
    pub(crate) fn new(pattern: &str) -> Self {
        Self(ranges(pattern))
    }

    pub(crate) fn contains(&self, c: char) -> bool {
        let after = self.0.partition_point(|&(first, _)| first <= c);
        after > 0 && c <= self.0[after - 1].1
    }
}

/// The class bits of every code point, borrowed once per text.
#[derive(Clone, Copy)]
pub(crate) struct CharClasses(&'static [u8]);

impl CharClasses {
    pub(crate) fn get() -> Self {
        CharClasses(&TABLE)
    }

    /// All class bits of `c`.
    #[inline]
    pub(crate) fn of(self, c: char) -> u8 {
        self.0[c as usize]
    }

    /// Whether `c` has any of the bits of `mask`.
    #[inline]
    pub(crate) fn is(self, c: char, mask: u8) -> bool {
        self.of(c) & mask != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_those_of_unicode() {
        let classes = CharClasses::get();
        assert_eq!(classes.of('a'), LETTER | LOWER | WORD);
        assert_eq!(classes.of('A'), LETTER | UPPER | WORD);
        assert_eq!(classes.of('字'), LETTER | UPPER | LOWER | WORD);
        assert_eq!(classes.of('½'), NUMBER);
        assert_eq!(classes.of('\u{301}'), MARK | UPPER | LOWER | WORD);
        assert_eq!(classes.of('\u{3000}'), SPACE);
        assert_eq!(classes.of('_'), PUNCTUATION | WORD);
        assert_eq!(classes.of('\u{10ffff}'), 0);
    }
}
