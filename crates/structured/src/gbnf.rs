//! GBNF, the grammars of llama.cpp: rules `name ::= …` of strings, classes of characters, groups, alternatives and repetitions.
//!
//! They become rules over bytes for `pushdown`. Lark would not do: its lexer takes the longest match, where GBNF tries every one.

use super::pushdown::{Bytes, Element, Rules};
use regex_syntax::utf8::Utf8Sequences;
use std::collections::HashMap;

/// Elements of all rules together at most, repetitions written out.
pub(super) const MAX_ELEMENTS: usize = 10_000;
/// Groups within groups at most.
pub(super) const MAX_DEPTH: usize = 64;

/// Whether a grammar is GBNF and not Lark, whose rules have one colon.
pub(super) fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let rest =
            line.trim_start().trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_-".contains(c));
        rest.len() < line.trim_start().len() && rest.trim_start().starts_with("::=")
    })
}

/// Reads a grammar; the text is what its rule `root` says.
///
/// Errors: what is wrong, with its line.
pub(super) fn parse(text: &str) -> Result<Rules, String> {
    let mut parser = Parser { text, at: 0, rules: Rules::default(), names: HashMap::new(), n_elements: 0 };
    let parsed = parser.grammar();
    let line = text[..parser.at].matches('\n').count() + 1;
    parsed.map_err(|reason| format!("line {line}: {reason}"))?;
    let Parser { mut rules, names, .. } = parser;
    if let Some((name, _)) = names.iter().filter(|&(_, &id)| rules.alternatives(id).is_empty()).min() {
        return Err(format!("the rule {name:?} is used but not defined"));
    }
    let root = *names.get("root").ok_or("it has no rule root")?;
    rules.set_root(root);
    if let Some(rule) = rules.left_recursive() {
        let name = names.iter().find(|&(_, &id)| id == rule).map_or("(…)", |(name, _)| name);
        return Err(format!(
            "the rule {name:?} begins with itself; put the repetition behind what it repeats"
        ));
    }
    Ok(rules)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    rules: Rules,
    names: HashMap<&'a str, u32>,
    n_elements: usize,
}

type Sequence = Vec<Element>;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Passes blanks, line ends and comments.
    fn skip(&mut self) {
        loop {
            let rest = self.rest();
            let next = rest.trim_start();
            self.at += rest.len() - next.len();
            if !next.starts_with('#') {
                return;
            }
            self.at += next.find('\n').unwrap_or(next.len());
        }
    }

    fn eat(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn name(&mut self) -> Option<&'a str> {
        let rest = self.rest();
        let is_part = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += end;
        (end > 0).then(|| &rest[..end])
    }

    /// Whether a new rule begins here, which ends the last.
    fn at_rule(&mut self) -> bool {
        let before = self.at;
        let found = self.name().is_some() && {
            self.skip();
            self.rest().starts_with("::=")
        };
        self.at = before;
        found
    }

    fn rule_of(&mut self, name: &'a str) -> u32 {
        *self.names.entry(name).or_insert_with(|| self.rules.add())
    }

    fn count(&mut self, n: usize) -> Result<(), String> {
        self.n_elements = self.n_elements.saturating_add(n);
        match self.n_elements > MAX_ELEMENTS {
            true => {
                Err(format!("the grammar has more than {MAX_ELEMENTS} elements, repetitions written out"))
            }
            false => Ok(()),
        }
    }

    fn grammar(&mut self) -> Result<(), String> {
        self.skip();
        while !self.rest().is_empty() {
            let name = self.name().ok_or_else(|| format!("expected a rule, found {}", self.here()))?;
            self.skip();
            if !self.eat("::=") {
                return Err(format!("expected ::= after {name:?}, found {}", self.here()));
            }
            let alternatives = self.alternatives(0)?;
            let id = self.rule_of(name);
            if !self.rules.alternatives(id).is_empty() {
                return Err(format!("the rule {name:?} is defined twice"));
            }
            self.rules.define(id, alternatives);
        }
        Ok(())
    }

    fn here(&self) -> String {
        match self.rest().chars().next() {
            Some(c) => format!("{c:?}"),
            None => "the end".to_owned(),
        }
    }

    fn alternatives(&mut self, depth: usize) -> Result<Vec<Sequence>, String> {
        if depth > MAX_DEPTH {
            return Err(format!("groups are nested more than {MAX_DEPTH} deep"));
        }
        let mut alternatives = vec![self.sequence(depth)?];
        while self.eat("|") {
            alternatives.push(self.sequence(depth)?);
        }
        Ok(alternatives)
    }

    fn sequence(&mut self, depth: usize) -> Result<Sequence, String> {
        let mut sequence = Vec::new();
        loop {
            self.skip();
            let rest = self.rest();
            let part = match rest.chars().next() {
                None | Some('|') => return Ok(sequence),
                Some(')') if depth > 0 => return Ok(sequence),
                Some('"') => self.string()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.at += 1;
                    self.one_of(&[('\0', char::MAX)])?
                }
                Some('(') => {
                    self.at += 1;
                    let alternatives = self.alternatives(depth + 1)?;
                    if !self.eat(")") {
                        return Err(format!("expected ')', found {}", self.here()));
                    }
                    vec![Element::Rule(self.rules.add_defined(alternatives))]
                }
                Some(c) if c.is_ascii_alphanumeric() || "_-".contains(c) => {
                    if self.at_rule() {
                        return Ok(sequence);
                    }
                    let name = self.name().unwrap_or_default();
                    vec![Element::Rule(self.rule_of(name))]
                }
                Some(c) => return Err(format!("{c:?} begins nothing that a rule can hold")),
            };
            self.count(part.len())?;
            sequence.extend(self.repeated(part)?);
        }
    }

    /// What the operator after a part makes of it.
    fn repeated(&mut self, part: Sequence) -> Result<Sequence, String> {
        let (least, most) = match self.rest().chars().next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => return self.counted(part),
            _ => return Ok(part),
        };
        self.at += 1;
        self.repeat(part, least, most)
    }

    fn counted(&mut self, part: Sequence) -> Result<Sequence, String> {
        let end = self.rest().find('}').ok_or("expected '}' after a repetition")?;
        let bounds = &self.rest()[1..end];
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .map_err(|_| format!("{{{bounds}}} is no repetition; expected {{m}}, {{m,}} or {{m,n}}"))
        };
        let (least, most) = match bounds.split_once(',') {
            None => (number(bounds)?, Some(number(bounds)?)),
            Some((least, most)) if most.trim().is_empty() => (number(least)?, None),
            Some((least, most)) if least.trim().is_empty() => (0, Some(number(most)?)),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        if most.is_some_and(|most| most < least) {
            return Err(format!("{{{bounds}}} has its bounds the wrong way round"));
        }
        self.at += end + 1;
        self.repeat(part, least, most)
    }

    /// The part `least` times, then up to `most` times, each only after the one before.
    fn repeat(&mut self, part: Sequence, least: usize, most: Option<usize>) -> Result<Sequence, String> {
        self.count(part.len().saturating_mul(most.unwrap_or(least + 1)))?;
        let mut sequence: Sequence = part.iter().cycle().take(part.len() * least).copied().collect();
        match most {
            None => {
                let again = self.rules.add();
                let more = part.into_iter().chain([Element::Rule(again)]).collect();
                self.rules.define(again, vec![more, Vec::new()]);
                sequence.push(Element::Rule(again));
            }
            Some(most) => {
                let mut more: Option<u32> = None;
                for _ in least..most {
                    let next = part.iter().copied().chain(more.map(Element::Rule)).collect();
                    more = Some(self.rules.add_defined(vec![next, Vec::new()]));
                }
                sequence.extend(more.map(Element::Rule));
            }
        }
        Ok(sequence)
    }

    fn string(&mut self) -> Result<Sequence, String> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            match self.rest().chars().next() {
                None | Some('\n') => return Err("a string does not end".to_owned()),
                Some('"') => break,
                Some(_) => {
                    let c = self.character()?;
                    bytes.extend(c.encode_utf8(&mut [0; 4]).bytes());
                }
            }
        }
        self.at += 1;
        Ok(bytes.into_iter().map(|b| Element::Bytes(Bytes { first: b, last: b })).collect())
    }

    fn class(&mut self) -> Result<Sequence, String> {
        self.at += 1;
        let negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.rest().starts_with(']') {
            if self.rest().is_empty() {
                return Err("a class of characters does not end".to_owned());
            }
            let first = self.character()?;
            let is_range = self.rest().starts_with('-') && !self.rest().starts_with("-]");
            let last = if is_range {
                self.at += 1;
                self.character()?
            } else {
                first
            };
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is the wrong way round"));
            }
            ranges.push((first, last));
        }
        self.at += 1;
        if negated {
            ranges = complement(ranges);
        }
        if ranges.is_empty() {
            return Err("a class of characters has none".to_owned());
        }
        self.one_of(&ranges)
    }

    /// The next character of a string or class.
    fn character(&mut self) -> Result<char, String> {
        let mut chars = self.rest().chars();
        let c = chars.next().ok_or("expected a character, found the end")?;
        self.at += c.len_utf8();
        if c != '\\' {
            return Ok(c);
        }
        let c = chars.next().ok_or("expected a character after \\, found the end")?;
        self.at += c.len_utf8();
        let n_digits = match c {
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            '\\' | '"' | '[' | ']' | '-' | '^' => return Ok(c),
            'x' => 2,
            'u' => 4,
            'U' => 8,
            c => return Err(format!("\\{c} means nothing")),
        };
        let digits =
            self.rest().get(..n_digits).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(|| format!("\\{c} needs {n_digits} hexadecimal digits"))?;
        self.at += n_digits;
        let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| format!("\\{c}{digits} is no character"))
    }

    /// One character of these ranges, as bytes.
    fn one_of(&mut self, ranges: &[(char, char)]) -> Result<Sequence, String> {
        let mut alternatives = Vec::new();
        for &(first, last) in ranges {
            for sequence in Utf8Sequences::new(first, last) {
                let bytes =
                    sequence.as_slice().iter().map(|range| Bytes { first: range.start, last: range.end });
                alternatives.push(bytes.map(Element::Bytes).collect::<Sequence>());
            }
        }
        self.count(alternatives.iter().map(Vec::len).sum())?;
        match &mut alternatives[..] {
            [only] => Ok(std::mem::take(only)),
            _ => Ok(vec![Element::Rule(self.rules.add_defined(alternatives))]),
        }
    }
}

/// All characters outside of these ranges.
fn complement(mut ranges: Vec<(char, char)>) -> Vec<(char, char)> {
    ranges.sort_unstable();
    let mut out = Vec::new();
    let mut next = Some('\0');
    for (first, last) in ranges {
        let Some(from) = next else { break };
        if let Some(before) = previous(first).filter(|&before| before >= from) {
            out.push((from, before));
        }
        next = following(last).map(|after| after.max(from));
    }
    out.extend(next.map(|from| (from, char::MAX)));
    out
}

fn following(c: char) -> Option<char> {
    // Surrogates are no characters.
    if c == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(c as u32 + 1) }
}

fn previous(c: char) -> Option<char> {
    if c == '\u{E000}' { Some('\u{D7FF}') } else { (c as u32).checked_sub(1).and_then(char::from_u32) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gbnf_is_told_from_lark() {
        assert!(is_gbnf("# comment\nroot ::= \"a\""));
        assert!(is_gbnf("a-b::=c"));
        assert!(!is_gbnf("start: \"::=\"\n"));
        assert!(!is_gbnf("start: A\nA: /::=/"));
    }

    #[test]
    fn mistakes_have_a_line() {
        for (text, line, said) in [
            ("root ::= \"a", 1, "does not end"),
            ("root ::= a\n", 0, "\"a\" is used but not defined"),
            ("a ::= \"x\"", 0, "no rule root"),
            ("root ::= \"a\"\n\nroot ::= \"b\"", 3, "twice"),
            ("root ::= \"a\"\n  (", 2, "')'"),
            ("root ::= [b-a]", 1, "wrong way round"),
            ("root ::= []", 1, "none"),
            ("root ::= [a", 1, "does not end"),
            ("root ::= \"\\q\"", 1, "\\q"),
            ("root ::= \"\\u00g0\"", 1, "hexadecimal"),
            ("root ::= \"\\uD800\"", 1, "no character"),
            ("root ::= \"a\"{3,1}", 1, "wrong way round"),
            ("root ::= \"a\"{x}", 1, "repetition"),
            ("root ::= \"a\"{1000000000}", 1, "more than"),
            ("root ::= *", 1, "begins nothing"),
            ("root ::= \"a\" )", 1, "begins nothing"),
            ("root = \"a\"\nb ::= \"\"", 1, "expected ::="),
            ("root ::= root \"a\" | \"b\"", 0, "begins with itself"),
            ("root ::= ws x\nws ::= \" \"*\nx ::= ws root \"a\" | \"b\"", 0, "begins with itself"),
        ] {
            let error = parse(text).err().unwrap_or_else(|| panic!("{text:?} is taken"));
            assert!(error.contains(said), "{text:?}: {error}");
            if line > 0 {
                assert!(error.starts_with(&format!("line {line}: ")), "{text:?}: {error}");
            }
        }
    }

    #[test]
    fn a_complement_has_what_the_class_has_not() {
        assert_eq!(complement(vec![('b', 'd'), ('c', 'f')]), [('\0', 'a'), ('g', char::MAX)]);
        assert_eq!(complement(vec![('\0', '\u{D7FF}')]), [('\u{E000}', char::MAX)]);
        assert_eq!(complement(vec![('\0', char::MAX)]), []);
    }
}
