//! Calls as a list of JSON objects after a marker: Granite 3, Nemotron Nano 2, Command R7B.

use super::call_object::{CallObject, Progress, is_blank, marker_in};
use super::grammar::Frame;
use super::output::{Output, TextBefore};
use super::{BASE, Parse, Syntax};

const GRANITE: &[&str] = &["<|tool_call|>"];
const NEMOTRON: &[&str] = &["<TOOLCALL>"];
const NEMOTRON_CLOSE: &str = "</TOOLCALL>";
const COMMAND: &[&str] = &["<|START_ACTION|>"];
const COMMAND_CLOSE: &str = "<|END_ACTION|>";

pub(super) const GRANITE_SYNTAX: Syntax = Syntax {
    name: "granite3",
    // The template renders no calls; it asks for them.
    recognise: |probe| probe.contains("respond only with <|tool_call|> followed by a JSON list"),
    markers: GRANITE,
    parser: |_| Box::new(JsonList::new(GRANITE, "")),
    grammar: |rules| Ok(rules.calls(&Frame { before_all: Some(GRANITE[0]), ..list_of_calls() })),
    ..BASE
};

pub(super) const NEMOTRON_SYNTAX: Syntax = Syntax {
    name: "nemotron2",
    recognise: |probe| probe.contains("<TOOLCALL>[{\"name\": \"probe_tool\""),
    markers: &[NEMOTRON[0], NEMOTRON_CLOSE],
    parser: |_| Box::new(JsonList::new(NEMOTRON, NEMOTRON_CLOSE)),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(NEMOTRON[0]),
            after_all: Some(NEMOTRON_CLOSE),
            ..list_of_calls()
        }))
    },
    ..BASE
};

pub(super) const COMMAND_SYNTAX: Syntax = Syntax {
    name: "command-r7b",
    recognise: |probe| probe.contains(COMMAND[0]) && probe.contains("\"tool_name\": \"probe_tool\""),
    markers: &[COMMAND[0], COMMAND_CLOSE],
    parser: |_| Box::new(JsonList::new(COMMAND, COMMAND_CLOSE)),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(COMMAND[0]),
            before_first: "[\n    ",
            before_name: "{\"tool_name\": \"",
            before_arguments: "\", \"parameters\": ",
            between: ",\n    ",
            after_all: Some(COMMAND_CLOSE),
            ..list_of_calls()
        }))
    },
    ..BASE
};

/// The list, without markers around it.
fn list_of_calls() -> Frame<'static> {
    Frame {
        before_first: "[",
        before_name: "{\"name\": \"",
        before_arguments: "\", \"arguments\": ",
        after_arguments: "}",
        between: ", ",
        after_last: "]",
        ..Frame::default()
    }
}

enum Place {
    Text(TextBefore),
    /// After the marker, before the list.
    Called(String),
    /// In the list, before an object.
    Listed(String),
    Object(String, CallObject),
    /// After an object.
    AfterObject,
    /// After the list, where the closing marker is expected.
    Closing(String),
}

struct JsonList {
    open: &'static [&'static str],
    /// Empty if there is none.
    close: &'static str,
    place: Place,
}

impl JsonList {
    fn new(open: &'static [&'static str], close: &'static str) -> Self {
        Self { open, close, place: Place::Text(TextBefore::new(open)) }
    }

    fn again(&mut self, text: &str, out: &mut Output) {
        text.chars().for_each(|c| self.push(c, out));
    }
}

impl Parse for JsonList {
    fn push(&mut self, c: char, out: &mut Output) {
        let text = || Place::Text(TextBefore::new(self.open));
        self.place = match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => match before.push(c, out) {
                Some(frame) => Place::Called(frame),
                None => Place::Text(before),
            },
            Place::Called(frame) if is_blank(c) => Place::Called(frame + c.encode_utf8(&mut [0; 4])),
            Place::Called(frame) if c == '[' => Place::Listed(frame + "["),
            Place::Called(frame) => {
                out.text(&frame);
                return self.push(c, out);
            }
            Place::Listed(frame) if is_blank(c) => Place::Listed(frame + c.encode_utf8(&mut [0; 4])),
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
            Place::AfterObject if c == ']' && self.close.is_empty() => text(),
            Place::AfterObject if c == ']' => Place::Closing(String::new()),
            Place::AfterObject => return self.push(c, out),
            Place::Closing(mut held) => {
                held.push(c);
                match marker_in(&held, self.close) {
                    Some(true) => text(),
                    Some(false) => Place::Closing(held),
                    None => return self.again(&held, out),
                }
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Place::Text(TextBefore::new(self.open))) {
            Place::Text(mut before) => before.finish(out),
            Place::Called(frame) | Place::Listed(frame) => out.text(&frame),
            Place::Object(frame, object) => {
                if let Some(back) = object.give_back() {
                    out.text(&frame);
                    out.text(&back);
                }
            }
            // The beginning of a marker after whole calls says nothing.
            Place::AfterObject | Place::Closing(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts() {
        let calls = [("get_weather", json!({"city": "Paris"})), ("add", json!({"a": 1, "b": 2}))];
        let list = r#"[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "add", "arguments": {"a": 1, "b": 2}}]"#;
        let actions = list
            .replace("\"name\"", "\"tool_call_id\": \"0\", \"tool_name\"")
            .replace("arguments", "parameters");
        for (syntax, open, close, list) in [
            (&GRANITE_SYNTAX, "<|tool_call|>", "", list),
            (&NEMOTRON_SYNTAX, "<TOOLCALL>", "</TOOLCALL>", list),
            (&COMMAND_SYNTAX, "<|START_ACTION|>", "<|END_ACTION|>", &actions),
        ] {
            check(syntax, &format!("{open}{list}{close}"), "", &calls);
            check(syntax, &format!("So:\n{open} {list}{close} Well."), "So: Well.", &calls);
            for text in [
                format!("{open}no"),
                format!("{open}[{{\"name\": \"x\"}}]{close}"),
                format!("{open}[1]"),
                format!(" {open}"),
            ] {
                check(syntax, &text, &text, &[]);
            }
        }
    }

    #[test]
    fn templates_that_ask_for_it_are_recognised() {
        for (name, syntax) in [
            ("ibm-granite-granite-3.3-2B-Instruct", "granite3"),
            ("NVIDIA-Nemotron-Nano-v2", "nemotron2"),
            ("CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b"),
        ] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, syntax, "{name}");
        }
    }
}
