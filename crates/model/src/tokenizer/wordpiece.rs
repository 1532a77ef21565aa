//! WordPiece (BERT): the longest token that begins the word, then the longest that continues it, and so on.

use rustc_hash::FxHashMap;

/// The model.
#[derive(Debug)]
pub(crate) struct WordPiece {
    vocab: FxHashMap<Box<str>, u32>,
    unk: u32,
    /// Written before every token that continues a word.
    prefix: String,
    /// A word of more characters is unknown.
    max_chars: usize,
    /// Bytes of the longest token: no longer match needs to be tried.
    longest: usize,
}

impl WordPiece {
    pub(crate) fn new<'a>(
        vocab: impl Iterator<Item = (&'a str, u32)>,
        unk: u32,
        prefix: &str,
        max_chars: usize,
    ) -> Self {
        let vocab: FxHashMap<Box<str>, u32> = vocab.map(|(text, id)| (text.into(), id)).collect();
        let longest = vocab.keys().map(|text| text.len()).max().unwrap_or(0);
        WordPiece { vocab, unk, prefix: prefix.to_owned(), max_chars, longest }
    }

    /// Appends the ids of one word; a word that the vocabulary cannot spell is one unknown token.
    pub(crate) fn encode_word(&self, word: &str, out: &mut Vec<u32>) {
        if word.chars().count() > self.max_chars {
            out.push(self.unk);
            return;
        }
        let first = out.len();
        let mut start = 0;
        let mut text = String::new();
        while start < word.len() {
            text.clear();
            if start > 0 {
                text.push_str(&self.prefix);
            }
            let prefix = text.len();
            let mut end = word.floor_char_boundary(start + self.longest.min(word.len() - start));
            text.push_str(&word[start..end]);
            loop {
                if end == start {
                    out.truncate(first);
                    out.push(self.unk);
                    return;
                }
                if let Some(&id) = self.vocab.get(text.as_str()) {
                    out.push(id);
                    break;
                }
                text.pop();
                end = start + text.len() - prefix;
            }
            start = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_spelled_greedily_or_unknown() {
        let tokens = ["[UNK]", "un", "##aff", "##able", "##a", "é"];
        let model = WordPiece::new(tokens.iter().enumerate().map(|(id, &t)| (t, id as u32)), 0, "##", 8);
        let encode = |word: &str| {
            let mut out = Vec::new();
            model.encode_word(word, &mut out);
            out
        };
        assert_eq!(encode("unaffable"), [0], "nine characters are too many");
        assert_eq!(encode("unaffa"), [1, 2, 4]);
        assert_eq!(encode("unx"), [0]);
        assert_eq!(encode("éa"), [5, 4]);
    }
}
