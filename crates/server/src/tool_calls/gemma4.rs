//! `<|tool_call>call:name{key:value,…}<tool_call|>`, one after the other: Gemma 4.
//!
//! Keys stand as they are, strings between two `<|"|>`, which stands for a quotation mark and cannot be escaped; all else is as in JSON.
//! What a value is, if it is neither, counts as a string.

use super::call_object::{is_blank, marker_in};
use super::gemma4_grammar::{self, CALL, CLOSE, MAX_KEY, OPEN, QUOTE};
use super::output::{Output, TextBefore};
use super::{BASE, Parse, Syntax};
use serde_json::Value;

/// Bytes of a name at most, with what stands before it.
const MAX_HEAD: usize = 256;
/// Deeper is no call.
const MAX_DEPTH: usize = 512;

pub(super) const SYNTAX: Syntax = Syntax {
    name: "gemma4",
    recognise: |probe| probe.contains("<|tool_call>call:probe_tool{"),
    markers: &[OPEN, CLOSE, QUOTE],
    parser: |_| Box::new(Gemma4 { place: text() }),
    grammar: gemma4_grammar::calls,
    ..BASE
};

enum Place {
    Text(TextBefore),
    /// After the marker, with it: what should be `call:` and a name.
    Head(String, String),
    Arguments(Arguments),
    /// After the arguments, where the closing marker is expected.
    Closing(String),
}

struct Gemma4 {
    place: Place,
}

fn text() -> Place {
    Place::Text(TextBefore::new(&[OPEN]))
}

impl Parse for Gemma4 {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => match before.push(c, out) {
                Some(frame) => Place::Head(frame, String::new()),
                None => Place::Text(before),
            },
            Place::Head(frame, held) if c == '{' && name_of(&held).is_some_and(|name| out.knows(name)) => {
                out.begin(name_of(&held).unwrap_or_default(), None);
                out.arguments("{");
                drop(frame);
                Place::Arguments(Arguments::new())
            }
            Place::Head(frame, mut held) => {
                held.push(c);
                if may_name(&held) {
                    Place::Head(frame, held)
                } else {
                    out.text(&frame);
                    return held.chars().for_each(|c| self.push(c, out));
                }
            }
            Place::Arguments(mut arguments) => match arguments.push(c, out) {
                Step::More => Place::Arguments(arguments),
                Step::Done => {
                    out.end();
                    Place::Closing(String::new())
                }
                Step::Malformed => return self.push(c, out),
            },
            Place::Closing(mut held) => {
                held.push(c);
                match marker_in(&held, CLOSE) {
                    Some(true) => text(),
                    Some(false) => Place::Closing(held),
                    None => return held.chars().for_each(|c| self.push(c, out)),
                }
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => before.finish(out),
            Place::Head(frame, held) => {
                out.text(&frame);
                out.text(&held);
            }
            // The beginning of a marker after a whole call says nothing.
            Place::Arguments(_) | Place::Closing(_) => {}
        }
    }
}

/// The name in what stands before arguments.
fn name_of(head: &str) -> Option<&str> {
    let name = head.trim_matches(is_blank).strip_prefix(CALL)?;
    (!name.is_empty()).then_some(name)
}

/// Whether this may become a name before arguments.
fn may_name(head: &str) -> bool {
    let rest = head.trim_start_matches(is_blank);
    let is_name = |name: &str| {
        let name = name.trim_end_matches(is_blank);
        name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
    };
    head.len() <= MAX_HEAD && (CALL.starts_with(rest) || rest.strip_prefix(CALL).is_some_and(is_name))
}

/// What a character of the arguments did.
enum Step {
    More,
    /// It is their last.
    Done,
    /// It cannot stand there. It belongs to what follows.
    Malformed,
}

/// What comes next in arguments.
enum Next {
    /// A key or the end of an object: what has come of it, and whether it is quoted.
    Key(String),
    /// In a quoted key.
    QuotedKey(String),
    /// After a quoted key.
    Colon,
    /// A value or the end of a list: what has come of one that is no string, object or list.
    Value(String),
    /// In a string: what may be the beginning of the mark at its end.
    Text(String),
    /// After a value.
    Comma,
}

/// Arguments in progress, which go out as JSON as they come.
struct Arguments {
    /// What ends the objects and lists that are open.
    open: Vec<char>,
    next: Next,
}

impl Arguments {
    /// After the first `{`.
    fn new() -> Self {
        Self { open: vec!['}'], next: Next::Key(String::new()) }
    }

    fn push(&mut self, c: char, out: &mut Output) -> Step {
        self.next = match std::mem::replace(&mut self.next, Next::Comma) {
            Next::Key(held) if held.is_empty() && is_blank(c) => Next::Key(held),
            Next::Key(held) if held.is_empty() && c == '}' => return self.close(c, out),
            Next::Key(held) if c == ':' => {
                out.arguments(&format!("{}:", Value::from(held.trim_end_matches(is_blank))));
                Next::Value(String::new())
            }
            Next::Key(mut held) => {
                held.push(c);
                match held == QUOTE {
                    true => Next::QuotedKey(String::new()),
                    false if held.len() > MAX_KEY || "{}[],\n".contains(c) => return Step::Malformed,
                    false => Next::Key(held),
                }
            }
            Next::QuotedKey(mut held) => {
                held.push(c);
                match held.strip_suffix(QUOTE) {
                    Some(key) => {
                        out.arguments(&format!("{}:", Value::from(key)));
                        Next::Colon
                    }
                    None if held.len() > MAX_KEY + QUOTE.len() => return Step::Malformed,
                    None => Next::QuotedKey(held),
                }
            }
            Next::Colon if is_blank(c) => Next::Colon,
            Next::Colon if c == ':' => Next::Value(String::new()),
            Next::Colon => return Step::Malformed,
            Next::Value(held) => return self.value(held, c, out),
            Next::Text(mut held) => {
                held.push(c);
                // All but the longest end that may begin the mark is certain.
                let certain =
                    held.char_indices().map(|(at, _)| at).find(|&at| QUOTE.starts_with(&held[at..]));
                let kept = held.split_off(certain.unwrap_or(held.len()));
                out.arguments(&inner(&held));
                match kept == QUOTE {
                    true => {
                        out.arguments("\"");
                        Next::Comma
                    }
                    false => Next::Text(kept),
                }
            }
            Next::Comma if is_blank(c) => Next::Comma,
            Next::Comma if c == ',' => {
                out.arguments(",");
                match self.open.last() {
                    Some('}') => Next::Key(String::new()),
                    _ => Next::Value(String::new()),
                }
            }
            Next::Comma => return self.close(c, out),
        };
        Step::More
    }

    /// Takes a character of a value of which `held` has come.
    fn value(&mut self, mut held: String, c: char, out: &mut Output) -> Step {
        let is_first = held.is_empty();
        self.next = match c {
            c if is_first && is_blank(c) => Next::Value(held),
            '{' | '[' if is_first && self.open.len() < MAX_DEPTH => {
                out.arguments(c.encode_utf8(&mut [0; 4]));
                self.open.push(if c == '{' { '}' } else { ']' });
                if c == '{' { Next::Key(held) } else { Next::Value(held) }
            }
            // The end of an empty list, or of one after a comma that says nothing.
            ']' if is_first => return self.close(c, out),
            ',' | '}' | ']' => {
                out.arguments(&plain(held.trim_end_matches(is_blank)));
                self.next = Next::Comma;
                return self.push(c, out);
            }
            c => {
                held.push(c);
                match held == QUOTE {
                    true => {
                        out.arguments("\"");
                        Next::Text(String::new())
                    }
                    false => Next::Value(held),
                }
            }
        };
        Step::More
    }

    fn close(&mut self, c: char, out: &mut Output) -> Step {
        if self.open.last() != Some(&c) {
            return Step::Malformed;
        }
        self.open.pop();
        out.arguments(c.encode_utf8(&mut [0; 4]));
        self.next = Next::Comma;
        if self.open.is_empty() { Step::Done } else { Step::More }
    }
}

/// A value that is no string, object or list, as JSON.
fn plain(text: &str) -> String {
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
    // A number may be larger than what we compute with.
    match is_json && !text.starts_with(['"', '{', '[']) {
        true => text.to_owned(),
        false => Value::from(text).to_string(),
    }
}

/// Text as it stands within a string of JSON.
fn inner(text: &str) -> String {
    let quoted = Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts() {
        let one = "<|tool_call>call:get_weather{city:<|\"|>Paris<|\"|>}<tool_call|>";
        let two = "<|tool_call>call:add{a:1,b:-2.5e3}<tool_call|>";
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": -2500.0}));
        check(&SYNTAX, one, "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("{one}{two}"), "", &[weather.clone(), add.clone()]);
        check(&SYNTAX, &format!("I look.\n\n{one}\n{two} So."), "I look. So.", &[weather.clone(), add]);
        // The closing marker was forgotten.
        check(&SYNTAX, &one.replace(CLOSE, ""), "", &[weather]);
        let all = r#"{t:true,f:false,n:null,l:[<|"|>a, "b"<|"|>,[],{}],d:{x y:3,<|"|>k:<|"|>:<|"|>a<|b}
\<|"|>},w:bare word, e:{} }"#;
        check(
            &SYNTAX,
            &format!("<|tool_call>call:add{all}<tool_call|>"),
            "",
            &[(
                "add",
                json!({"t": true, "f": false, "n": null, "l": ["a, \"b\"", [], {}],
                       "d": {"x y": 3, "k:": "a<|b}\n\\"}, "w": "bare word", "e": {}}),
            )],
        );
        for text in [
            "<|tool_call>call:nobody{}<tool_call|>",
            "<|tool_call>add{}<tool_call|>",
            "<|tool_call>call:add",
            "<|tool_call>call:add<tool_call|>",
            " <|tool_call>",
            "a <|tool_ca",
            "",
        ] {
            check(&SYNTAX, text, text, &[]);
        }
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        for name in ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved"] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, "gemma4", "{name}");
        }
    }
}
