//! `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, and the newer `[TOOL_CALLS]name[ARGS]{…}` for each call, which may have
//! `[CALL_ID]…` before its arguments.

use super::call_object::{CallObject, Nesting, Progress, is_blank};
use super::grammar::Frame;
use super::output::{Output, TextBefore};
use super::{BASE, IdStyle, Parse, Syntax};

const CALLS: &str = "[TOOL_CALLS]";
const CALL_ID: &str = "[CALL_ID]";
const ARGS: &str = "[ARGS]";

/// A list of JSON objects: Mistral 7B v0.3, Nemo, Mixtral 8x22B and others.
pub(super) const LIST: Syntax = Syntax {
    name: "mistral",
    recognise: |probe| {
        let after = probe.split(CALLS).nth(1).map(str::trim_start);
        after.is_some_and(|after| after.starts_with("[{\"name\": \"probe_tool\", \"arguments\": {"))
    },
    markers: &[CALLS, CALL_ID, ARGS],
    ids: IdStyle::Nine,
    parser: |_| Box::new(Mistral { place: text() }),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(CALLS),
            before_first: "[",
            before_name: "{\"name\": \"",
            before_arguments: "\", \"arguments\": ",
            after_arguments: "}",
            between: ", ",
            after_last: "]",
            ..Frame::default()
        }))
    },
    ..BASE
};

/// Names and arguments apart: Mistral Small 3.2, Magistral, Devstral and later.
pub(super) const NAMED: Syntax = Syntax {
    name: "mistral-args",
    recognise: |probe| probe.contains("[TOOL_CALLS]probe_tool["),
    grammar: |rules| {
        Ok(rules.calls(&Frame { open: Some(CALLS), before_arguments_marker: Some(ARGS), ..Frame::default() }))
    },
    ..LIST
};

enum Place {
    Text(TextBefore),
    /// After the marker, before the list or the name.
    Called(String),
    /// In a list, before an object.
    Listed(String),
    /// In a list's object.
    Object(String, CallObject),
    /// After a list's object.
    AfterObject,
    /// In a name, or what stands between it and its arguments: everything after the frame.
    Named(String, String),
    /// In the arguments after a name.
    Arguments(Nesting),
}

struct Mistral {
    place: Place,
}

fn text() -> Place {
    Place::Text(TextBefore::new(&[CALLS]))
}

impl Mistral {
    fn again(&mut self, text: &str, out: &mut Output) {
        text.chars().for_each(|c| self.push(c, out));
    }
}

impl Parse for Mistral {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => match before.push(c, out) {
                Some(frame) => Place::Called(frame),
                None => Place::Text(before),
            },
            Place::Called(mut frame) | Place::Listed(mut frame) if is_blank(c) => {
                frame.push(c);
                match frame.trim_end_matches(is_blank).ends_with(CALLS) {
                    true => Place::Called(frame),
                    false => Place::Listed(frame),
                }
            }
            Place::Called(frame) if c == '[' => Place::Listed(frame + "["),
            Place::Called(frame) => {
                self.place = Place::Named(frame, String::new());
                return self.push(c, out);
            }
            Place::Listed(frame) => {
                self.place = Place::Object(frame, CallObject::new());
                return self.push(c, out);
            }
            Place::Object(frame, mut object) => match object.push(c, out) {
                Progress::More => Place::Object(frame, object),
                Progress::Done => Place::AfterObject,
                Progress::Malformed => {
                    if let Some(back) = object.give_back() {
                        out.text(&frame);
                        self.again(&back, out);
                    }
                    return self.push(c, out);
                }
            },
            Place::AfterObject if is_blank(c) => Place::AfterObject,
            Place::AfterObject if c == ',' => Place::Listed(String::new()),
            Place::AfterObject if c == ']' => text(),
            Place::AfterObject => return self.push(c, out),
            Place::Named(frame, mut held) => {
                if c == '{'
                    && let Some((name, id)) = name_and_id(&held)
                    && out.knows(name)
                {
                    out.begin(name, id.map(str::to_owned));
                    self.place = Place::Arguments(Nesting::default());
                    return self.push(c, out);
                }
                held.push(c);
                if may_name(&held) {
                    Place::Named(frame, held)
                } else {
                    out.text(&frame);
                    return self.again(&held, out);
                }
            }
            Place::Arguments(mut nesting) => match nesting.push(c) {
                Progress::Malformed => return self.push(c, out),
                progress => {
                    out.arguments(c.encode_utf8(&mut [0; 4]));
                    if progress == Progress::Done {
                        out.end();
                        text()
                    } else {
                        Place::Arguments(nesting)
                    }
                }
            },
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => before.finish(out),
            Place::Called(frame) | Place::Listed(frame) => out.text(&frame),
            Place::Object(frame, object) => {
                if let Some(back) = object.give_back() {
                    out.text(&frame);
                    out.text(&back);
                }
            }
            Place::Named(frame, held) => {
                out.text(&frame);
                out.text(&held);
            }
            Place::AfterObject | Place::Arguments(_) => {}
        }
    }
}

/// A name and, if the model gave one, an id, from what stands before the arguments.
fn name_and_id(held: &str) -> Option<(&str, Option<&str>)> {
    let held = held.trim_end_matches(is_blank);
    let held = held.strip_suffix(ARGS).unwrap_or(held);
    match held.split_once(CALL_ID) {
        Some((name, id)) => is_name(name).then_some((name, (id.len() == 9 && is_name(id)).then_some(id))),
        None => is_name(held).then_some((held, None)),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
}

/// Whether a name, an id and a marker may go on like this.
fn may_name(held: &str) -> bool {
    let after_name = held.trim_start_matches(is_name_char);
    let starts = |rest: &str| {
        ARGS.starts_with(rest) || rest.strip_prefix(ARGS).is_some_and(|blanks| blanks.chars().all(is_blank))
    };
    if held.len() > 256 || after_name.len() == held.len() {
        return false;
    }
    match after_name.strip_prefix(CALL_ID) {
        Some(id) => starts(id.trim_start_matches(is_name_char)),
        None => CALL_ID.starts_with(after_name) || starts(after_name),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, check_with_ids, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts_of_the_list() {
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        let one = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}";
        let two = "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}, \"id\": \"abcdefghi\"}";
        check(&LIST, &format!("[TOOL_CALLS] [{one}]"), "", std::slice::from_ref(&weather));
        check(&LIST, &format!("[TOOL_CALLS][{one}, {two}]"), "", &[weather.clone(), add.clone()]);
        check(
            &LIST,
            &format!("Let me see. [TOOL_CALLS] [{one}] Then"),
            "Let me see. Then",
            std::slice::from_ref(&weather),
        );
        // The list's end was forgotten.
        check(&LIST, &format!("[TOOL_CALLS] [{one}"), "", &[weather]);
        for text in [
            "[TOOL_CALLS] [",
            "[TOOL_CALLS] [5]",
            "[TOOL_CALLS] [{\"name\": \"x\"}]",
            "a [TOOL_CALLS",
            "[1] [TOOL_CALLS]",
        ] {
            check(&LIST, text, text, &[]);
        }
    }

    #[test]
    fn transcripts_of_names_and_arguments() {
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        let one = "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}";
        let two = "[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{\"a\": 1, \"b\": 2}";
        check(&NAMED, one, "", std::slice::from_ref(&weather));
        check(&NAMED, &format!("{one}{two}"), "", &[weather.clone(), add.clone()]);
        check(&NAMED, &format!("Well.\n{two} {one}"), "Well.", &[add.clone(), weather.clone()]);
        check_with_ids(&NAMED, two, &["abcdefghi"]);
        // Where the vocabulary has no such marker.
        check(&NAMED, "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}", "", &[weather]);
        for text in [
            "[TOOL_CALLS]nobody[ARGS]{}",
            "[TOOL_CALLS]add[ARGS]5",
            "[TOOL_CALLS]add[ARG",
            "[TOOL_CALLS]add(1)",
            "[TOOL_CALLS]a dd[ARGS]{}",
        ] {
            check(&NAMED, text, text, &[]);
        }
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        for (name, syntax) in [
            ("mistralai-Mistral-Nemo-Instruct-2407", "mistral"),
            ("Mistral-Small-3.2-24B-Instruct-2506", "mistral-args"),
        ] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, syntax, "{name}");
        }
    }
}
