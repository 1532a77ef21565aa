//! Hand-written forms of the three word patterns that nearly all byte-level vocabularies use.
//!
//! Each finds exactly the matches that its regular expression finds (a test compares them on random text), in one pass and
//! without backtracking: a run of whitespace or letters is read once, whatever its length.

use super::char_class::{CharClasses, LETTER, LOWER, MARK, NUMBER, SPACE, UPPER};

/// Which pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scanner {
    /// GPT-2.
    Gpt2,
    /// cl100k and its descendants (Llama 3, Qwen).
    Cl100k(Cl100k),
    /// o200k (GPT-4o, Llama 4) and Tekken: words split where a capital begins.
    O200k {
        /// A contraction such as `'ll` stays with the word before it.
        contractions: bool,
        /// Longest run of digits.
        max_digits: usize,
    },
    /// Runs of newlines, and runs of everything else.
    Lines,
}

/// How the descendants of cl100k differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cl100k {
    /// A contraction such as `'ll` is a word of its own.
    pub(crate) contractions: bool,
    /// Longest run of digits.
    pub(crate) max_digits: usize,
    /// Combining marks count as letters.
    pub(crate) marks: bool,
}

/// The regular expressions, as tokenizer.json files spell them, which a scanner replaces.
pub(crate) static SCANNERS: &[(&str, Scanner)] = &[
    (GPT2, Scanner::Gpt2),
    (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)", Scanner::Gpt2),
    (LLAMA3, Scanner::Cl100k(Cl100k { contractions: true, max_digits: 3, marks: false })),
    (QWEN2, Scanner::Cl100k(Cl100k { contractions: true, max_digits: 1, marks: false })),
    (QWEN35, Scanner::Cl100k(Cl100k { contractions: true, max_digits: 1, marks: true })),
    (UFAKZEKA, Scanner::Cl100k(Cl100k { contractions: false, max_digits: 1, marks: false })),
    (GPT4O, Scanner::O200k { contractions: true, max_digits: 3 }),
    (TEKKEN, Scanner::O200k { contractions: false, max_digits: 1 }),
    (LINES, Scanner::Lines),
];

pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
pub(crate) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(crate) const LINES: &str = r"[^\n]+|[\n]+";

impl Scanner {
    /// The scanner of a regular expression, if there is one.
    pub(crate) fn of_pattern(pattern: &str) -> Option<Scanner> {
        SCANNERS.iter().find(|(known, _)| *known == pattern).map(|(_, scanner)| *scanner)
    }

    /// End of the word that begins at byte `start`, which is a character boundary before the end of `text`.
    ///
    /// The words cover the text without gaps: every pattern here matches at every position.
    pub(crate) fn word_end(self, text: &str, start: usize, classes: CharClasses) -> usize {
        let cursor = Cursor { text: text.as_bytes(), classes };
        match self {
            Scanner::Gpt2 => cursor.gpt2(start),
            Scanner::Cl100k(options) => cursor.cl100k(start, options),
            Scanner::O200k { contractions, max_digits } => cursor.o200k(start, contractions, max_digits),
            Scanner::Lines => {
                let newlines = text.as_bytes()[start] == b'\n';
                let rest = &text.as_bytes()[start..];
                start + rest.iter().position(|&b| (b == b'\n') != newlines).unwrap_or(rest.len())
            }
        }
    }
}

/// One character with its class bits and its length in bytes; length 0 stands for the end of the text.
#[derive(Clone, Copy)]
struct Char {
    code: u32,
    class: u8,
    len: usize,
}

impl Char {
    fn is(self, mask: u8) -> bool {
        self.class & mask != 0
    }

    /// A character that exists and has none of the bits of `mask`.
    fn is_other(self, mask: u8) -> bool {
        self.len != 0 && self.class & mask == 0
    }

    fn is_newline(self) -> bool {
        self.code == u32::from(b'\n') || self.code == u32::from(b'\r')
    }
}

struct Cursor<'a> {
    text: &'a [u8],
    classes: CharClasses,
}

impl Cursor<'_> {
    /// The character at byte `at`.
    #[inline]
    fn peek(&self, at: usize) -> Char {
        let Some(&lead) = self.text.get(at) else { return Char { code: 0, class: 0, len: 0 } };
        let byte = |i: usize| u32::from(self.text[at + i] & 0x3f);
        let lead = u32::from(lead);
        let (code, len) = match lead {
            ..0x80 => (lead, 1),
            0x80..0xe0 => ((lead & 0x1f) << 6 | byte(1), 2),
            0xe0..0xf0 => ((lead & 0x0f) << 12 | byte(1) << 6 | byte(2), 3),
            _ => ((lead & 0x07) << 18 | byte(1) << 12 | byte(2) << 6 | byte(3), 4),
        };
        let class = self.classes.of(char::from_u32(code).unwrap_or('\0'));
        Char { code, class, len }
    }

    /// End of the run of characters that have a bit of `mask`.
    #[inline]
    fn run(&self, mut at: usize, mask: u8) -> usize {
        loop {
            let c = self.peek(at);
            if !c.is(mask) {
                return at;
            }
            at += c.len;
        }
    }

    /// End of the run of characters that have no bit of `mask`.
    #[inline]
    fn run_other(&self, mut at: usize, mask: u8) -> usize {
        loop {
            let c = self.peek(at);
            if !c.is_other(mask) {
                return at;
            }
            at += c.len;
        }
    }

    fn run_digits(&self, mut at: usize, max_digits: usize) -> usize {
        for _ in 0..max_digits {
            let c = self.peek(at);
            if !c.is(NUMBER) {
                break;
            }
            at += c.len;
        }
        at
    }

    fn run_bytes(&self, at: usize, bytes: &[u8]) -> usize {
        at + self.text[at..].iter().take_while(|b| bytes.contains(b)).count()
    }

    /// End of a contraction at `at`, or `at`. In any case: `ſ` is a form of `s`, as in every case-insensitive match.
    fn contraction(&self, at: usize, any_case: bool) -> usize {
        let rest = &self.text[at..];
        let Some((b'\'', rest)) = rest.split_first() else { return at };
        let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
        let first = rest.first().map_or(0, |&b| fold(b));
        let second = rest.get(1).map_or(0, |&b| fold(b));
        match (first, second) {
            (b's' | b't' | b'm' | b'd', _) => at + 2,
            (b'r' | b'v', b'e') | (b'l', b'l') => at + 3,
            _ if any_case && rest.starts_with("ſ".as_bytes()) => at + 1 + "ſ".len(),
            _ => at,
        }
    }

    /// `\s+(?!\S)|\s+`: a run of whitespace without the last character, which goes with the next word if there is one.
    fn whitespace(&self, start: usize) -> usize {
        let mut last = start;
        let mut at = start;
        loop {
            let c = self.peek(at);
            if !c.is(SPACE) {
                return if c.len != 0 && last > start { last } else { at };
            }
            last = at;
            at += c.len;
        }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`: whitespace up to its last newline, else as `whitespace`.
    fn whitespace_with_newlines(&self, start: usize) -> usize {
        let end = self.run(start, SPACE);
        match self.text[start..end].iter().rposition(|&b| b == b'\n' || b == b'\r') {
            Some(newline) => start + newline + 1,
            None => self.whitespace(start),
        }
    }

    fn gpt2(&self, start: usize) -> usize {
        let contraction = self.contraction(start, false);
        if contraction > start {
            return contraction;
        }
        let after_space = start + usize::from(self.text[start] == b' ');
        let c = self.peek(after_space);
        if c.is(LETTER) {
            self.run(after_space, LETTER)
        } else if c.is(NUMBER) {
            self.run(after_space, NUMBER)
        } else if c.is_other(SPACE) {
            self.run_other(after_space, SPACE | LETTER | NUMBER)
        } else {
            self.whitespace(start)
        }
    }

    fn cl100k(&self, start: usize, options: Cl100k) -> usize {
        if options.contractions {
            let contraction = self.contraction(start, true);
            if contraction > start {
                return contraction;
            }
        }
        let letters = if options.marks { LETTER | MARK } else { LETTER };
        let c = self.peek(start);
        // A mark that may open the word and may also belong to it does not change where the word ends.
        if !c.is(LETTER | NUMBER) && !c.is_newline() && self.peek(start + c.len).is(letters) {
            return self.run(start + c.len, letters);
        }
        if c.is(letters) {
            return self.run(start, letters);
        }
        if c.is(NUMBER) {
            return self.run_digits(start, options.max_digits);
        }
        let after_space = start + usize::from(c.code == u32::from(b' '));
        if self.peek(after_space).is_other(SPACE | letters | NUMBER) {
            let end = self.run_other(after_space, SPACE | letters | NUMBER);
            return self.run_bytes(end, b"\r\n");
        }
        self.whitespace_with_newlines(start)
    }

    fn o200k(&self, start: usize, contractions: bool, max_digits: usize) -> usize {
        let with_contraction = |end: usize| if contractions { self.contraction(end, true) } else { end };
        let c = self.peek(start);
        let after_prefix = if c.is(LETTER | NUMBER) || c.is_newline() { start } else { start + c.len };
        for word in [after_prefix, start] {
            if let Some(end) = self.word_ending_in_lower(word) {
                return with_contraction(end);
            }
        }
        for word in [after_prefix, start] {
            let upper = self.run(word, UPPER);
            if upper > word {
                return with_contraction(self.run(upper, LOWER));
            }
        }
        if c.is(NUMBER) {
            return self.run_digits(start, max_digits);
        }
        let after_space = start + usize::from(c.code == u32::from(b' '));
        if self.peek(after_space).is_other(SPACE | LETTER | NUMBER) {
            let end = self.run_other(after_space, SPACE | LETTER | NUMBER);
            return self.run_bytes(end, b"\r\n/");
        }
        self.whitespace_with_newlines(start)
    }

    /// `[UPPER]*[LOWER]+`: letters without case are in both classes, so the run of capitals gives back what follows the
    /// last of those.
    fn word_ending_in_lower(&self, start: usize) -> Option<usize> {
        let mut at = start;
        let mut last_both = None;
        loop {
            let c = self.peek(at);
            if !c.is(UPPER) {
                break;
            }
            at += c.len;
            if c.is(LOWER) {
                last_both = Some(at);
            }
        }
        let end = self.run(at, LOWER);
        if end > at { Some(end) } else { last_both }
    }
}

#[cfg(test)]
mod tests {
    //! Aim: a scanner finds the matches of its regular expression. Method: random strings over an alphabet in which every
    //! class, every contraction and every kind of newline is frequent, compared with `fancy_regex`.
    use super::*;

    const ALPHABET: &[&str] = &[
        " ",
        " ",
        "  ",
        "\n",
        "\r",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "\u{85}",
        "a",
        "b",
        "S",
        "t",
        "s",
        "re",
        "LL",
        "ve",
        "'",
        "'s",
        "'S",
        "'ſ",
        "'ll",
        "'RE",
        "'d",
        "’",
        "é",
        "É",
        "e\u{301}",
        "\u{301}",
        "\u{300}",
        "字",
        "かな",
        "한",
        "ǅ",
        "ʰ",
        "ª",
        "1",
        "23",
        "½",
        "٣",
        "Ⅷ",
        "🙂",
        "👩\u{200d}🚀",
        "!",
        "/",
        "//",
        "_",
        "-",
        "$",
        "\u{200b}",
        "\u{0}",
        "Ж",
        "ж",
        "\u{10ffff}",
        "ß",
        "ﬁ",
        "\u{93e}",
        "क",
    ];

    #[test]
    fn scanners_find_the_words_of_their_patterns() {
        let classes = CharClasses::get();
        let mut random = 1u64;
        let mut next = |n: usize| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) as usize % n
        };
        for (pattern, scanner) in SCANNERS {
            let regex = fancy_regex::Regex::new(pattern).unwrap();
            for _ in 0..4000 {
                let len = next(24);
                let text: String = (0..len).map(|_| ALPHABET[next(ALPHABET.len())]).collect();
                // A pattern without the last alternative leaves single spaces between matches: they are words too.
                let mut expected = Vec::new();
                let mut end = 0;
                for word in regex.find_iter(&text).map(Result::unwrap) {
                    if word.start() > end {
                        expected.push(&text[end..word.start()]);
                    }
                    expected.push(word.as_str());
                    end = word.end();
                }
                if end < text.len() {
                    expected.push(&text[end..]);
                }
                let mut words = Vec::new();
                let mut start = 0;
                while start < text.len() {
                    let end = scanner.word_end(&text, start, classes);
                    words.push(&text[start..end]);
                    start = end;
                }
                assert_eq!(words, expected, "{scanner:?} on {text:?}");
            }
        }
    }
}
