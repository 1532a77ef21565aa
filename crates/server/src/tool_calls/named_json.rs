//! Calls between tokens of their own, a name and then its arguments as JSON: DeepSeek R1 and V3.1, and Kimi K2.
//!
//! `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…<｜tool▁calls▁end｜>`; R1 has `function` before the separator and
//! the name with a fenced block after it. Kimi's calls have their id, `functions.NAME:0`, for a name.

use super::call_object::{Nesting, Progress, is_blank};
use super::grammar::Frame;
use super::output::{Output, TextBefore};
use super::{BASE, Parse, Syntax};

/// Bytes between the beginning of a call and its arguments at most.
const MAX_HEAD: usize = 320;
/// Around the arguments of DeepSeek R1.
const FENCE: &str = "```";

/// A name, and the id that the model gave with it.
type NameAndId<'a> = (&'a str, Option<&'a str>);

/// The tokens of a syntax.
struct Marks {
    /// Around all calls.
    section: (&'static str, &'static str),
    /// What text may be followed by: the beginnings of all calls, and of one.
    open: &'static [&'static str],
    /// After each call.
    close: &'static str,
    /// Name and id in what stands between the beginning of a call and its arguments.
    name: fn(&str) -> Option<NameAndId<'_>>,
}

const SEPARATOR: &str = "<｜tool▁sep｜>";

const DEEPSEEK: Marks = Marks {
    section: ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    open: &["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"],
    close: "<｜tool▁call▁end｜>",
    name: |head| {
        let (before, after) = head.split_once(SEPARATOR)?;
        let after = after.trim_end_matches(is_blank).trim_end_matches("json").trim_end_matches('`');
        Some((if after.trim().is_empty() { before } else { after }.trim(), None))
    },
};

const ARGUMENTS: &str = "<|tool_call_argument_begin|>";

const KIMI: Marks = Marks {
    section: ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    open: &["<|tool_calls_section_begin|>", "<|tool_call_begin|>"],
    close: "<|tool_call_end|>",
    name: |head| {
        let id = head.trim().strip_suffix(ARGUMENTS)?.trim();
        let name = id.strip_prefix("functions.").unwrap_or(id);
        Some((name.rsplit_once(':').map_or(name, |(name, _)| name), Some(id)))
    },
};

pub(super) const DEEPSEEK_SYNTAX: Syntax = Syntax {
    name: "deepseek-v3",
    recognise: |probe| probe.contains("<｜tool▁call▁begin｜>probe_tool<｜tool▁sep｜>"),
    markers: &[DEEPSEEK.open[0], DEEPSEEK.open[1], SEPARATOR, DEEPSEEK.close, DEEPSEEK.section.1],
    parser: |_| Box::new(NamedJson::new(&DEEPSEEK)),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(DEEPSEEK.section.0),
            open: Some(DEEPSEEK.open[1]),
            before_arguments_marker: Some(SEPARATOR),
            close: Some(DEEPSEEK.close),
            after_all: Some(DEEPSEEK.section.1),
            ..Frame::default()
        }))
    },
    ..BASE
};

pub(super) const DEEPSEEK_R1_SYNTAX: Syntax = Syntax {
    name: "deepseek-r1",
    recognise: |probe| probe.contains("<｜tool▁call▁begin｜>function<｜tool▁sep｜>probe_tool"),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(DEEPSEEK.section.0),
            open: Some(DEEPSEEK.open[1]),
            before_name_marker: Some(("function", SEPARATOR)),
            before_arguments: "\n```json\n",
            after_arguments: "\n```",
            close: Some(DEEPSEEK.close),
            between: "\n",
            after_all: Some(DEEPSEEK.section.1),
            ..Frame::default()
        }))
    },
    ..DEEPSEEK_SYNTAX
};

pub(super) const KIMI_SYNTAX: Syntax = Syntax {
    name: "kimi-k2",
    recognise: |probe| {
        let call = probe.split(KIMI.open[1]).nth(1);
        call.is_some_and(|call| call.contains(ARGUMENTS))
    },
    markers: &[KIMI.open[0], KIMI.open[1], ARGUMENTS, KIMI.close, KIMI.section.1],
    parser: |_| Box::new(NamedJson::new(&KIMI)),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_all: Some(KIMI.section.0),
            open: Some(KIMI.open[1]),
            before_name: "functions.",
            // The number of the call.
            before_arguments_pattern: Some(":(0|[1-9][0-9]{0,3})"),
            before_arguments_marker: Some(ARGUMENTS),
            close: Some(KIMI.close),
            after_all: Some(KIMI.section.1),
            ..Frame::default()
        }))
    },
    ends_reasoning: true,
    ..BASE
};

enum Place {
    Text(TextBefore),
    /// Before the first call, after the beginning of all.
    Section(String),
    /// What began a call, and what stands before its arguments.
    Head(String, String),
    Arguments(Nesting),
    /// After a call, where tokens should come that end it or begin the next.
    After(String),
}

struct NamedJson {
    marks: &'static Marks,
    place: Place,
}

impl NamedJson {
    fn new(marks: &'static Marks) -> Self {
        Self { marks, place: Self::text(marks) }
    }

    fn text(marks: &Marks) -> Place {
        Place::Text(TextBefore::new(marks.open))
    }

    fn again(&mut self, text: &str, out: &mut Output) {
        text.chars().for_each(|c| self.push(c, out));
    }

    /// What has come after a call.
    fn after(&mut self, held: String, out: &mut Output) -> Option<Place> {
        let [all, call] = [self.marks.open[0], self.marks.open[1]];
        let rest = held.trim_start_matches(is_blank);
        let tokens = [self.marks.close, self.marks.section.1, FENCE, call, all];
        if rest == self.marks.section.1 {
            Some(Self::text(self.marks))
        } else if rest == self.marks.close || rest == FENCE || rest == all {
            Some(Place::After(String::new()))
        } else if rest == call {
            Some(Place::Head(held, String::new()))
        } else if tokens.iter().any(|token| token.starts_with(rest)) {
            Some(Place::After(held))
        } else {
            self.again(&held, out);
            None
        }
    }
}

impl Parse for NamedJson {
    fn push(&mut self, c: char, out: &mut Output) {
        let marks = self.marks;
        let next = match std::mem::replace(&mut self.place, Self::text(marks)) {
            Place::Text(mut before) => Some(match before.push(c, out) {
                Some(frame) if frame.ends_with(marks.open[0]) => Place::Section(frame),
                Some(frame) => Place::Head(frame, String::new()),
                None => Place::Text(before),
            }),
            Place::Section(mut frame) => {
                frame.push(c);
                let start = frame.find(marks.open[0]).map_or(0, |at| at + marks.open[0].len());
                let rest = frame[start..].trim_start_matches(is_blank);
                if rest == marks.open[1] {
                    Some(Place::Head(frame, String::new()))
                } else if marks.open[1].starts_with(rest) {
                    Some(Place::Section(frame))
                } else {
                    out.text(&frame[..start]);
                    let rest = frame[start..].to_owned();
                    self.again(&rest, out);
                    None
                }
            }
            Place::Head(frame, mut held) => {
                let named = (marks.name)(&held).filter(|(name, _)| c == '{' && out.knows(name));
                if let Some((name, id)) = named {
                    out.begin(name, id.map(str::to_owned));
                    self.place = Place::Arguments(Nesting::default());
                    return self.push(c, out);
                }
                held.push(c);
                if c == '{' || held.len() > MAX_HEAD || marks.open.iter().any(|open| held.ends_with(open)) {
                    out.text(&frame);
                    self.again(&held, out);
                    None
                } else {
                    Some(Place::Head(frame, held))
                }
            }
            Place::Arguments(mut nesting) => match nesting.push(c) {
                Progress::Malformed => {
                    self.push(c, out);
                    None
                }
                progress => {
                    out.arguments(c.encode_utf8(&mut [0; 4]));
                    Some(match progress {
                        Progress::Done => {
                            out.end();
                            Place::After(String::new())
                        }
                        _ => Place::Arguments(nesting),
                    })
                }
            },
            Place::After(mut held) => {
                held.push(c);
                self.after(held, out)
            }
        };
        if let Some(place) = next {
            self.place = place;
        }
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Self::text(self.marks)) {
            Place::Text(mut before) => before.finish(out),
            Place::Section(frame) => out.text(&frame),
            Place::Head(frame, held) => {
                out.text(&frame);
                out.text(&held);
            }
            Place::Arguments(_) | Place::After(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, check_with_ids, template};
    use super::*;
    use serde_json::json;

    #[test]
    fn transcripts_of_deepseek() {
        let calls = [("get_weather", json!({"city": "Paris"})), ("add", json!({"a": 1, "b": {}}))];
        let v3 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜>\
                  <｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": 1, \"b\": {}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        let r1 = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜>\n\
                  <｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{\"a\": 1, \"b\": {}}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
        for syntax in [&DEEPSEEK_SYNTAX, &DEEPSEEK_R1_SYNTAX] {
            for transcript in [v3, r1] {
                check(syntax, transcript, "", &calls);
                check(syntax, &format!("I look.\n{transcript} So."), "I look. So.", &calls);
                check(syntax, &transcript.replace(DEEPSEEK.open[0], ""), "", &calls);
                check(syntax, &transcript.replace(DEEPSEEK.section.1, ""), "", &calls);
                check(syntax, &transcript.replace(DEEPSEEK.close, ""), "", &calls);
            }
            for text in [
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>nobody<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
                "<｜tool▁calls▁begin｜> so",
                "<｜tool▁call▁begin｜>add<｜tool▁",
                " <｜tool▁calls",
                "",
            ] {
                check(syntax, text, text, &[]);
            }
        }
    }

    #[test]
    fn transcripts_of_kimi() {
        let calls = [("get_weather", json!({"city": "Paris"})), ("add", json!({"a": 1, "b": 2}))];
        let transcript = "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|>\
                          <|tool_call_begin|>functions.add:1<|tool_call_argument_begin|>{\"a\": 1, \"b\": 2}<|tool_call_end|><|tool_calls_section_end|>";
        check(&KIMI_SYNTAX, transcript, "", &calls);
        check(&KIMI_SYNTAX, &format!("I look. {transcript}"), "I look.", &calls);
        check_with_ids(&KIMI_SYNTAX, transcript, &["functions.get_weather:0", "functions.add:1"]);
        let unknown = transcript.replace("get_weather", "x").replace("add", "y");
        check(&KIMI_SYNTAX, &unknown, &unknown, &[]);
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        let Some(kimi) = template("Kimi-K2-Instruct") else { return };
        assert_eq!(Syntax::of(Some(&kimi)).name, "kimi-k2");
        let Some(template) = template("deepseek-ai-DeepSeek-V3.1") else { return };
        assert_eq!(Syntax::of(Some(&template)).name, "deepseek-v3");
    }
}
