//! Literals of Python as JSON, while they come: strings in either quotation mark, `True`, `False`, `None`, numbers, lists, tuples and
//! dictionaries. JSON can be read in the same way.

use super::call_object::is_blank;
use serde_json::Value;

/// Deeper is no literal.
const MAX_DEPTH: usize = 512;

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    More,
    /// It is the literal's last.
    Done,
    /// The literal has ended before it.
    DoneBefore,
    /// It cannot stand there.
    Malformed,
}

/// What comes next.
enum Next {
    /// A value, or the end of an empty list.
    Value,
    /// A key, or the end of a dictionary.
    Key,
    Colon,
    /// After a value in a list or a dictionary.
    Comma,
    /// In a string that `quote` ends.
    Text {
        quote: char,
        escape: Option<String>,
    },
    /// In a number or a word.
    Word(String),
}

/// A literal in progress.
pub(super) struct Literal {
    /// What ends the lists and dictionaries that are open, and whether there was an item before.
    open: Vec<(char, bool)>,
    next: Next,
    is_key: bool,
}

impl Literal {
    pub(super) fn new() -> Self {
        Self { open: Vec::new(), next: Next::Value, is_key: false }
    }

    /// Takes the next character, and adds to the JSON what is certain by it.
    pub(super) fn push(&mut self, c: char, json: &mut String) -> Step {
        match std::mem::replace(&mut self.next, Next::Comma) {
            Next::Text { quote, escape } => self.text(quote, escape, c, json),
            Next::Word(mut word) => {
                if !(is_blank(c) || ",:)]}=".contains(c)) {
                    word.push(c);
                    self.next = Next::Word(word);
                    return Step::More;
                }
                json.push_str(&word_as_json(&word, self.is_key));
                match self.after_value() {
                    Step::Done => Step::DoneBefore,
                    _ => self.push(c, json),
                }
            }
            next if is_blank(c) => {
                self.next = next;
                Step::More
            }
            Next::Colon if c == ':' => {
                json.push_str(": ");
                self.next = Next::Value;
                Step::More
            }
            Next::Comma if c == ',' => {
                self.next = if self.in_dictionary() { Next::Key } else { Next::Value };
                Step::More
            }
            Next::Key | Next::Value | Next::Comma if self.open.last().is_some_and(|(end, _)| *end == c) => {
                let (end, _) = self.open.pop().expect("one is open");
                json.push(if end == ')' { ']' } else { end });
                self.is_key = false;
                self.after_value()
            }
            Next::Key => self.begin(c, true, json),
            Next::Value => self.begin(c, false, json),
            Next::Colon | Next::Comma => Step::Malformed,
        }
    }

    fn in_dictionary(&self) -> bool {
        matches!(self.open.last(), Some(('}', _)))
    }

    /// The first character of a key or of a value.
    fn begin(&mut self, c: char, is_key: bool, json: &mut String) -> Step {
        if ",:)]}=".contains(c) || is_key && "{[(".contains(c) || self.open.len() >= MAX_DEPTH {
            return Step::Malformed;
        }
        let in_dictionary = self.in_dictionary();
        if let Some((_, had)) = self.open.last_mut()
            && (is_key || !in_dictionary)
            && std::mem::replace(had, true)
        {
            json.push_str(", ");
        }
        self.is_key = is_key;
        self.next = match c {
            '"' | '\'' => {
                json.push('"');
                Next::Text { quote: c, escape: None }
            }
            '{' => {
                json.push('{');
                self.open.push(('}', false));
                Next::Key
            }
            '[' | '(' => {
                json.push('[');
                self.open.push((if c == '[' { ']' } else { ')' }, false));
                Next::Value
            }
            c => Next::Word(c.to_string()),
        };
        Step::More
    }

    fn after_value(&mut self) -> Step {
        self.next = if std::mem::take(&mut self.is_key) { Next::Colon } else { Next::Comma };
        if self.open.is_empty() { Step::Done } else { Step::More }
    }

    fn text(&mut self, quote: char, escape: Option<String>, c: char, json: &mut String) -> Step {
        let escape = match escape {
            None if c == quote => {
                json.push('"');
                return self.after_value();
            }
            None if c == '\\' => Some(String::new()),
            None => {
                json.push_str(&inner(c));
                None
            }
            Some(mut held) => {
                held.push(c);
                match escaped(&held) {
                    Some(text) => {
                        json.push_str(&text);
                        None
                    }
                    None => Some(held),
                }
            }
        };
        self.next = Next::Text { quote, escape };
        Step::More
    }
}

/// A character as it stands within a string of JSON.
fn inner(c: char) -> String {
    let quoted = Value::from(c.to_string()).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// What follows a backslash, as it stands within a string of JSON; `None` while more may come.
fn escaped(held: &str) -> Option<String> {
    let digits = |n: usize| {
        let digits = &held[1..];
        let is_hex = digits.chars().all(|c| c.is_ascii_hexdigit());
        match (is_hex, digits.len() == n) {
            (true, false) => None,
            (true, true) => Some(u32::from_str_radix(digits, 16).ok()),
            (false, _) => Some(None),
        }
    };
    let as_it_is = || held.chars().map(inner).fold("\\\\".to_owned(), |all, c| all + &c);
    Some(match held.chars().next()? {
        'n' | 't' | 'r' | 'b' | 'f' | '\\' | '"' | '/' => format!("\\{held}"),
        '\'' => "'".to_owned(),
        '\n' => String::new(),
        // Half of a pair can only be written in this way.
        'u' => digits(4)?.map_or_else(as_it_is, |_| format!("\\{held}")),
        'x' => digits(2)?.and_then(char::from_u32).map_or_else(as_it_is, inner),
        'U' => digits(8)?.and_then(char::from_u32).map_or_else(as_it_is, inner),
        _ => as_it_is(),
    })
}

/// A number or a word; what is no literal counts as a string.
fn word_as_json(word: &str, is_key: bool) -> String {
    let json = match word {
        "True" => "true",
        "False" => "false",
        "None" => "null",
        word => word,
    };
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(json).is_ok();
    match is_json && !is_key {
        true => json.to_owned(),
        false => Value::from(word).to_string(),
    }
}

/// A whole literal as JSON.
pub(super) fn to_json(text: &str) -> Option<String> {
    let (mut literal, mut json) = (Literal::new(), String::new());
    let mut last = Step::More;
    for c in text.chars() {
        if last != Step::More {
            return None;
        }
        last = literal.push(c, &mut json);
    }
    (last == Step::Done).then_some(json)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_become_json() {
        for (text, value) in [
            ("'it\\'s'", json!("it's")),
            (
                "\"a\\n\\\"b\\\" \\x41\\u00e9\\ud83d\\ude00\\U0001f600\\q\\xg\"",
                json!("a\n\"b\" Aé😀😀\\q\\xg"),
            ),
            ("'two\nlines\\\n'", json!("two\nlines")),
            (
                "[1, -2.5e3, True, False, None, true, 'x', ]",
                json!([1, -2500.0, true, false, null, true, "x"]),
            ),
            ("{'a': {\"b\": (1, [])}, 3: {},}", json!({"a": {"b": [1, []]}, "3": {}})),
            ("[ ]", json!([])),
            ("()", json!([])),
            ("[bare, words]", json!(["bare", "words"])),
        ] {
            let json = to_json(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(serde_json::from_str::<Value>(&json).unwrap(), value, "{text}: {json}");
        }
        for text in ["[1", "{'a' 1}", "{1}", "]", "[1]]", "{[]: 1}", "", "[,]", &"[".repeat(600)] {
            assert_eq!(to_json(text), None, "{text}");
        }
        assert_eq!(to_json("{'a': 1}"), Some("{\"a\": 1}".to_owned()));
    }
}
