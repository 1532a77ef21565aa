//! A call as a JSON object, `{"name": …, "arguments": {…}}`, read character by character.
//!
//! The call begins for the client as soon as the name of a known tool and the beginning of its arguments have come; until then it
//! may turn out to be text. From then on its arguments pass as they come. `parameters` is another word for `arguments`, `tool_name` for `name`; arguments may
//! also be a string with the JSON in it; other entries are skipped.

use super::output::Output;

/// Bytes of a call at most before it has begun; then it is text.
const MAX_PENDING: usize = 64 << 10;

/// What a character did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The object goes on.
    More,
    /// The character is the object's last.
    Done,
    /// The character cannot stand there. It belongs to what follows.
    Malformed,
}

/// Follows the brackets and strings of JSON without understanding more of it.
#[derive(Default)]
pub(super) struct Nesting {
    open: Vec<char>,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    /// Deeper is no call.
    const MAX_DEPTH: usize = 512;

    /// Begins with a list or an object.
    pub(super) fn open(&mut self, c: char) {
        self.open.push(if c == '[' { ']' } else { '}' });
    }

    /// Takes the next character; first, unless it was opened, a `{`.
    pub(super) fn push(&mut self, c: char) -> Progress {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return Progress::More;
        }
        match c {
            '{' if self.open.len() < Self::MAX_DEPTH => self.open.push('}'),
            '[' if self.open.len() < Self::MAX_DEPTH && !self.open.is_empty() => self.open.push(']'),
            '}' | ']' if self.open.last() == Some(&c) => {
                self.open.pop();
                if self.open.is_empty() {
                    return Progress::Done;
                }
            }
            '"' if !self.open.is_empty() => self.in_string = true,
            ':' | ',' | '+' | '-' | '.' if !self.open.is_empty() => {}
            c if !self.open.is_empty() && (is_blank(c) || c.is_ascii_alphanumeric()) => {}
            _ => return Progress::Malformed,
        }
        Progress::More
    }
}

/// Whether JSON allows the character between its tokens.
pub(super) fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Whether blanks and a marker are there as a whole; `None` if something else is.
pub(super) fn marker_in(held: &str, marker: &str) -> Option<bool> {
    let rest = held.trim_start_matches(is_blank);
    marker.starts_with(rest).then_some(rest == marker)
}

#[derive(Clone, Copy, PartialEq)]
enum Entry {
    Name,
    Arguments,
    Other,
}

enum Place {
    /// Before the `{`.
    Start,
    /// Where a key may come, or the end.
    Key,
    /// In a string: a key, or the value of an entry.
    Text {
        escaped: bool,
        value_of: Option<Entry>,
    },
    Colon(Entry),
    Value(Entry),
    /// In an object or a list; `passed` on as it comes.
    Nested {
        nesting: Nesting,
        of: Entry,
        passed: bool,
    },
    /// In a number, `true`, `false` or `null`.
    Literal(Entry),
    /// After a value.
    After,
}

/// One call in progress.
pub(super) struct CallObject {
    /// All characters so far, until the call begins.
    pending: String,
    place: Place,
    /// The string, number or arguments in progress.
    token: String,
    name: Option<String>,
    /// Arguments that came before the name, or as a string.
    arguments: Option<String>,
    begun: bool,
}

impl CallObject {
    pub(super) fn new() -> Self {
        let (pending, token) = (String::new(), String::new());
        Self { pending, place: Place::Start, token, name: None, arguments: None, begun: false }
    }

    /// Takes the next character. After `Malformed` and `Done` nothing more may be pushed.
    pub(super) fn push(&mut self, c: char, out: &mut Output) -> Progress {
        let progress = self.step(c, out);
        if progress == Progress::Done && !self.begun {
            // Without a name it is some other object.
            let Some(name) = self.name.take() else { return Progress::Malformed };
            self.begin(&name, out);
            out.arguments(self.arguments.as_deref().unwrap_or("{}"));
            out.end();
        }
        if progress == Progress::More && !self.begun {
            if self.pending.len() >= MAX_PENDING {
                return Progress::Malformed;
            }
            self.pending.push(c);
        }
        progress
    }

    /// The text so far; `None` if the call has begun, which cannot be taken back.
    pub(super) fn give_back(self) -> Option<String> {
        (!self.begun).then_some(self.pending)
    }

    fn begin(&mut self, name: &str, out: &mut Output) {
        out.begin(name, None);
        self.begun = true;
        self.pending.clear();
    }

    fn step(&mut self, c: char, out: &mut Output) -> Progress {
        match &mut self.place {
            Place::Start if c == '{' => self.place = Place::Key,
            Place::Key | Place::Colon(_) | Place::Value(_) | Place::After if is_blank(c) => {}
            Place::Key if c == '"' => self.begin_text(None),
            Place::Key | Place::After if c == '}' => return Progress::Done,
            Place::After if c == ',' => self.place = Place::Key,
            Place::Text { escaped, value_of } => {
                let value_of = *value_of;
                self.token.push(c);
                let ends = c == '"' && !*escaped;
                *escaped = c == '\\' && !*escaped;
                if ends {
                    return self.end_text(value_of, out);
                }
            }
            Place::Colon(entry) if c == ':' => self.place = Place::Value(*entry),
            Place::Value(entry) => {
                let entry = *entry;
                return self.begin_value(entry, c, out);
            }
            Place::Nested { nesting, of, passed } => {
                let (of, passed, progress) = (*of, *passed, nesting.push(c));
                match (progress, passed, of) {
                    (Progress::Malformed, _, _) => return Progress::Malformed,
                    (_, true, _) => out.arguments(c.encode_utf8(&mut [0; 4])),
                    (_, false, Entry::Arguments) => self.token.push(c),
                    _ => {}
                }
                if progress == Progress::Done {
                    match (passed, of) {
                        (true, _) => out.end(),
                        (false, Entry::Arguments) => {
                            let arguments = std::mem::take(&mut self.token);
                            if serde_json::from_str::<serde::de::IgnoredAny>(&arguments).is_err() {
                                return Progress::Malformed;
                            }
                            self.arguments = Some(arguments);
                        }
                        _ => {}
                    }
                    self.place = Place::After;
                }
            }
            Place::Literal(entry) => {
                if c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.') {
                    self.token.push(c);
                    return Progress::More;
                }
                if *entry == Entry::Arguments && self.token != "null" {
                    return Progress::Malformed;
                }
                self.place = Place::After;
                return self.step(c, out);
            }
            _ => return Progress::Malformed,
        }
        Progress::More
    }

    fn begin_text(&mut self, value_of: Option<Entry>) {
        self.token.clear();
        self.token.push('"');
        self.place = Place::Text { escaped: false, value_of };
    }

    fn end_text(&mut self, value_of: Option<Entry>, out: &Output) -> Progress {
        let Ok(text) = serde_json::from_str::<String>(&self.token) else { return Progress::Malformed };
        self.place = Place::After;
        match value_of {
            None => {
                let entry = match text.as_str() {
                    "name" | "tool_name" if self.name.is_none() && !self.begun => Entry::Name,
                    "arguments" | "parameters" if self.arguments.is_none() && !self.begun => Entry::Arguments,
                    _ => Entry::Other,
                };
                self.place = Place::Colon(entry);
            }
            Some(Entry::Name) if !out.knows(&text) => return Progress::Malformed,
            Some(Entry::Name) => self.name = Some(text),
            Some(Entry::Arguments) => self.arguments = Some(text),
            Some(Entry::Other) => {}
        }
        Progress::More
    }

    fn begin_value(&mut self, entry: Entry, c: char, out: &mut Output) -> Progress {
        match (c, entry) {
            ('"', _) => self.begin_text(Some(entry)),
            ('{', Entry::Arguments) | ('{' | '[', Entry::Other) => {
                let mut nesting = Nesting::default();
                nesting.open(c);
                let passed = entry == Entry::Arguments && self.name.is_some();
                self.token.clear();
                if let (true, Some(name)) = (passed, self.name.take()) {
                    self.begin(&name, out);
                    out.arguments("{");
                } else {
                    self.token.push(c);
                }
                self.place = Place::Nested { nesting, of: entry, passed };
            }
            (c, Entry::Arguments | Entry::Other) if c.is_ascii_alphanumeric() || c == '-' => {
                self.token.clear();
                self.token.push(c);
                self.place = Place::Literal(entry);
            }
            _ => return Progress::Malformed,
        }
        Progress::More
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Delta, IdStyle};
    use super::*;

    /// What an object becomes: name and arguments, or the text that is given back and the progress at its end.
    fn read(text: &str) -> (Vec<Delta>, Progress, Option<String>) {
        let mut out = Output::new(vec!["add".to_owned(), "größe".to_owned()], IdStyle::Call, 0);
        let mut object = CallObject::new();
        let mut progress = Progress::More;
        for c in text.chars() {
            progress = object.push(c, &mut out);
            if progress != Progress::More {
                break;
            }
        }
        (out.take(), progress, object.give_back())
    }

    fn call(text: &str) -> (String, String) {
        let (deltas, progress, back) = read(text);
        assert_eq!((progress, back), (Progress::Done, None), "{text}");
        match &deltas[..] {
            [Delta::Call { index: 0, name, .. }, Delta::Arguments { index: 0, fragment }] => {
                (name.clone(), fragment.clone())
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn entries_may_stand_in_any_order_and_form() {
        for (text, arguments) in [
            (
                r#"{"name": "add", "arguments": {"a": 1, "b": [2, {"c": "}\"]"}]}}"#,
                r#"{"a": 1, "b": [2, {"c": "}\"]"}]}"#,
            ),
            (r#"{"name":"add","parameters":{}}"#, "{}"),
            (r#"{ "arguments" : {"a": {}} , "name" : "add" }"#, r#"{"a": {}}"#),
            (
                r#"{"type": "function", "name": "add", "arguments": {"a": 1}, "id": "x", "n": [1, "]"], "m": -1.5e3}"#,
                r#"{"a": 1}"#,
            ),
            (r#"{"name": "add", "arguments": "{\"a\": 1}"}"#, r#"{"a": 1}"#),
            (r#"{"name": "\u0061dd"}"#, "{}"),
            (r#"{"name": "add", "arguments": null}"#, "{}"),
        ] {
            assert_eq!(call(text), ("add".to_owned(), arguments.to_owned()), "{text}");
        }
        assert_eq!(call(r#"{"name": "größe", "arguments": {"é": "ü"}}"#).0, "größe");
    }

    #[test]
    fn what_is_no_call_is_given_back_whole() {
        for (text, back) in [
            (r#"{"name": "sub", "arguments": {}}"#, r#"{"name": "sub"#),
            (r#"{"a": 1}"#, r#"{"a": 1"#),
            (r#"{"name": "add", "arguments": [1]}"#, r#"{"name": "add", "arguments": "#),
            (r#"{"name": "add", "arguments": 5}"#, r#"{"name": "add", "arguments": 5"#),
            (r#"{"arguments": {"a" 1}, "name": "add"}"#, r#"{"arguments": {"a" 1"#),
            ("{'name'", "{"),
            ("x", ""),
        ] {
            assert_eq!(read(text), (vec![], Progress::Malformed, Some(back.to_owned())), "{text}");
        }
        assert_eq!(read(r#"{"name": "ad"#), (vec![], Progress::More, Some(r#"{"name": "ad"#.to_owned())));
    }

    #[test]
    fn arguments_pass_as_soon_as_they_come() {
        let (deltas, progress, back) = read(r#"{"name": "add", "arguments": {"a": "#);
        assert_eq!((progress, back), (Progress::More, None));
        assert_eq!(deltas.last(), Some(&Delta::Arguments { index: 0, fragment: r#"{"a": "#.to_owned() }));
    }
}
