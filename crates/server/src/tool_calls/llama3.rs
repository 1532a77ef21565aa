//! `{"name": …, "parameters": {…}}` as the whole answer, after `<|python_tag|>` or without it: Llama 3.1 and 3.2.

use super::call_object::{CallObject, Progress, is_blank};
use super::grammar::Frame;
use super::output::Output;
use super::{BASE, Parse, Syntax};

const TAG: &str = "<|python_tag|>";

pub(super) const SYNTAX: Syntax = Syntax {
    name: "llama3",
    recognise: |probe| probe.contains("<|end_header_id|>\n\n{\"name\": \"probe_tool\", \"parameters\": {"),
    markers: &[TAG],
    parser: |_| Box::new(Llama3 { place: Place::Start(String::new()) }),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_name: "{\"name\": \"",
            before_arguments: "\", \"parameters\": ",
            after_arguments: "}",
            // Its template knows one call for each answer.
            single: true,
            ..Frame::default()
        }))
    },
    ..BASE
};

enum Place {
    /// Blanks and the tag's beginning, before anything else.
    Start(String),
    /// In an object, after what came before it.
    Object(String, CallObject),
    /// Blanks and a semicolon after a call.
    Between(String),
    Text,
}

struct Llama3 {
    place: Place,
}

impl Parse for Llama3 {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, Place::Text) {
            Place::Start(held) | Place::Between(held) if c == '{' && !in_tag(&held) => {
                let mut object = CallObject::new();
                object.push(c, out);
                Place::Object(held, object)
            }
            Place::Start(mut held) => {
                held.push(c);
                match may_begin(&held) {
                    true => Place::Start(held),
                    false => {
                        out.text(&held);
                        Place::Text
                    }
                }
            }
            Place::Between(mut held) => {
                held.push(c);
                match is_blank(c) || held.trim_matches(is_blank) == ";" {
                    true => Place::Between(held),
                    false => {
                        out.text(&held);
                        Place::Text
                    }
                }
            }
            Place::Object(frame, mut object) => match object.push(c, out) {
                Progress::More => Place::Object(frame, object),
                Progress::Done => Place::Between(String::new()),
                Progress::Malformed => {
                    if let Some(back) = object.give_back() {
                        out.text(&frame);
                        out.text(&back);
                    }
                    out.text(c.encode_utf8(&mut [0; 4]));
                    Place::Text
                }
            },
            Place::Text => {
                out.text(c.encode_utf8(&mut [0; 4]));
                Place::Text
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Place::Text) {
            Place::Start(held) | Place::Between(held) => out.text(&held),
            Place::Object(frame, object) => {
                if let Some(back) = object.give_back() {
                    out.text(&frame);
                    out.text(&back);
                }
            }
            Place::Text => {}
        }
    }
}

/// Whether this is blanks and the beginning of the tag, or the tag and blanks.
fn may_begin(held: &str) -> bool {
    let rest = held.trim_start_matches(is_blank);
    TAG.starts_with(rest) || rest.strip_prefix(TAG).is_some_and(|after| after.chars().all(is_blank))
}

/// Whether the tag has begun and is not at its end.
fn in_tag(held: &str) -> bool {
    let rest = held.trim_start_matches(is_blank);
    !rest.is_empty() && rest.len() < TAG.len() && TAG.starts_with(rest)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts() {
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        let one = "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}";
        let two = "{\"name\": \"add\", \"parameters\": {\"a\": 1, \"b\": 2}}";
        check(&SYNTAX, one, "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("<|python_tag|>{one}"), "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("\n<|python_tag|> {one}; {two}"), "", &[weather.clone(), add.clone()]);
        check(&SYNTAX, &format!("{one}\n{two}"), "", &[weather.clone(), add]);
        check(&SYNTAX, &format!("{one} That was it."), " That was it.", &[weather]);
        for text in [
            "Hello {\"name\": \"add\", \"parameters\": {}}".to_owned(),
            "{\"name\": \"Ann\", \"parameters\": {}}".to_owned(),
            "{\"a\": 1}".to_owned(),
            "<|python_tag|>brave_search.call(query=\"x\")".to_owned(),
            "<|python_".to_owned(),
            "<|python_{".to_owned(),
            " \n".to_owned(),
            one[..30].to_owned(),
        ] {
            check(&SYNTAX, &text, &text, &[]);
        }
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        for name in ["meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"] {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, "llama3", "{name}");
        }
    }
}
