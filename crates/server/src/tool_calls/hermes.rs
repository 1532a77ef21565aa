//! `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, one or several: Hermes, Qwen 2.5 and 3, Granite 4 and others.

use super::call_object::{CallObject, Progress, is_blank, marker_in};
use super::grammar::Frame;
use super::output::{Output, TextBefore};
use super::{BASE, Parse, Syntax};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "hermes",
    recognise: |probe| {
        let call = probe.rsplit(OPEN).find(|after| after.contains("\"probe_tool\""));
        call.is_some_and(|after| {
            after.trim_start().starts_with("{\"name\": \"probe_tool\", \"arguments\": {")
        })
    },
    markers: &[OPEN, CLOSE],
    parser: |_| Box::new(Hermes { place: text() }),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            open: Some(OPEN),
            before_name: "\n{\"name\": \"",
            before_arguments: "\", \"arguments\": ",
            after_arguments: "}\n",
            close: Some(CLOSE),
            between: "\n",
            ..Frame::default()
        }))
    },
    ..BASE
};

enum Place {
    Text(TextBefore),
    /// Between the opening tag and the object.
    Opened(String),
    /// In the object, after the opening tag.
    Object(String, CallObject),
    /// After the object, where the closing tag is expected.
    Closing(String),
}

struct Hermes {
    place: Place,
}

fn text() -> Place {
    Place::Text(TextBefore::new(&[OPEN]))
}

impl Hermes {
    fn again(&mut self, text: &str, out: &mut Output) {
        text.chars().for_each(|c| self.push(c, out));
    }
}

impl Parse for Hermes {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => match before.push(c, out) {
                Some(frame) => Place::Opened(frame),
                None => Place::Text(before),
            },
            Place::Opened(mut frame) if is_blank(c) => {
                frame.push(c);
                Place::Opened(frame)
            }
            Place::Opened(frame) => {
                self.place = Place::Object(frame, CallObject::new());
                return self.push(c, out);
            }
            Place::Object(frame, mut object) => match object.push(c, out) {
                Progress::More => Place::Object(frame, object),
                Progress::Done => Place::Closing(String::new()),
                Progress::Malformed => {
                    if let Some(back) = object.give_back() {
                        out.text(&frame);
                        self.again(&back, out);
                    }
                    return self.push(c, out);
                }
            },
            Place::Closing(mut held) => {
                held.push(c);
                match marker_in(&held, CLOSE) {
                    Some(true) => text(),
                    Some(false) => Place::Closing(held),
                    None => return self.again(&held, out),
                }
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, text()) {
            Place::Text(mut before) => before.finish(out),
            Place::Opened(frame) => out.text(&frame),
            Place::Object(frame, object) => {
                if let Some(back) = object.give_back() {
                    out.text(&frame);
                    out.text(&back);
                }
            }
            // The beginning of a tag after a whole call says nothing.
            Place::Closing(_) => {}
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
        let one =
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
        let two = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</tool_call>";
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        check(&SYNTAX, one, "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("{one}\n{two}\n"), "\n", &[weather.clone(), add.clone()]);
        check(&SYNTAX, &format!("I'll look.\n\n{one}"), "I'll look.", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("{one} And {two} so on."), " And so on.", &[weather.clone(), add.clone()]);
        // The closing tag was forgotten.
        check(
            &SYNTAX,
            &format!("{}\n{two}", one.replace("\n</tool_call>", "")),
            "",
            &[weather.clone(), add.clone()],
        );
        check(
            &SYNTAX,
            "No call, but a < b <tool> and <tool_cal",
            "No call, but a < b <tool> and <tool_cal",
            &[],
        );
        for text in [
            "<tool_call>\n{\"name\": \"nobody\", \"arguments\": {}}\n</tool_call>",
            "<tool_call>\nget_weather(city)\n</tool_call>",
            " <tool_call>",
            "<tool_call>\n{\"name\": \"add\", \"argu",
            "<tool_call>{'name': 'add'}</tool_call>",
            "",
        ] {
            check(&SYNTAX, text, text, &[]);
        }
        check(
            &SYNTAX,
            &format!("<tool_call> no <tool_call>{{x {one}"),
            "<tool_call> no <tool_call>{x",
            &[weather],
        );
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        for name in [
            "Qwen-Qwen2.5-7B-Instruct",
            "Qwen-Qwen3-0.6B",
            "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
            "ibm-granite-granite-4.1",
        ] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, "hermes", "{name}");
        }
    }
}
