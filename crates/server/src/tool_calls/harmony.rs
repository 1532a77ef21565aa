//! Harmony, the format of gpt-oss: an answer is a list of messages, each in a channel and some with a recipient.
//!
//! `<|channel|>analysis<|message|>…<|end|>` is reasoning, `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}` a
//! call, which may also have its recipient before the channel; all else is text. The prompt ends with `<|start|>assistant`. Tokens that
//! end a call or the answer end its generation.

use super::grammar::{CallRules, Otherwise, literal};
use super::output::{Output, Until};
use super::{BASE, Channels, Parse, Syntax};
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::GrammarError;
use serde_json::{Map, Value, json};
use std::fmt::Write;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const END: &str = "<|end|>";
/// What a message may end with.
const ENDS: &[&str] = &[END, "<|call|>", "<|return|>", START, CHANNEL];
/// What a header may begin with.
const HEADER: [&str; 4] = [START, CHANNEL, MESSAGE, "to="];
/// Before the names of the client's functions.
const FUNCTIONS: &str = "functions.";
/// Bytes of a header at most.
const MAX_HEADER: usize = 512;

pub(super) const SYNTAX: Syntax = Syntax {
    name: "harmony",
    recognise: |probe| probe.contains(CHANNEL) && probe.contains(" to=functions.probe_tool"),
    markers: &[START, CHANNEL, CONSTRAIN, MESSAGE, END, "<|call|>", "<|return|>"],
    parser: |_| Box::new(Harmony::new()),
    grammar,
    rewrite,
    channels: Some(Channels {
        begin: "<|start|>assistant",
        text: "<|channel|>final<|message|>",
        before_text,
    }),
    ..BASE
};

/// What a message says.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reasoning,
    Text,
    Arguments,
}

enum Place {
    /// Before a message.
    Header(String),
    Message {
        kind: Kind,
        until: Until,
        /// Nothing of it has come.
        is_empty: bool,
    },
}

struct Harmony {
    place: Place,
    /// Whether there were messages of these kinds before.
    had_reasoning: bool,
    had_text: bool,
}

impl Harmony {
    fn new() -> Self {
        Self { place: Place::Header(String::new()), had_reasoning: false, had_text: false }
    }

    fn begin(&mut self, header: &str, out: &mut Output) -> Place {
        let (channel, recipient) = read(header);
        let kind = match recipient.map(|name| name.strip_prefix(FUNCTIONS).unwrap_or(name)) {
            Some(name) if out.knows(name) => {
                out.begin(name, None);
                Kind::Arguments
            }
            // To a tool that is not there.
            Some(_) => Kind::Reasoning,
            None if channel == "analysis" => Kind::Reasoning,
            None => Kind::Text,
        };
        Place::Message { kind, until: Until::new(ENDS), is_empty: true }
    }

    /// More of a message.
    fn say(&mut self, kind: Kind, is_first: bool, text: &str, out: &mut Output) {
        let had = match kind {
            Kind::Arguments => return out.arguments(text),
            Kind::Reasoning => &mut self.had_reasoning,
            Kind::Text => &mut self.had_text,
        };
        let between = if is_first && std::mem::replace(had, true) { "\n\n" } else { "" };
        for text in [between, text] {
            match kind {
                Kind::Reasoning => out.reasoning(text),
                _ => out.text(text),
            }
        }
    }
}

/// A message is at its end.
fn end(kind: Kind, is_empty: bool, out: &mut Output) {
    if kind == Kind::Arguments {
        out.arguments(if is_empty { "{}" } else { "" });
        out.end();
    }
}

impl Parse for Harmony {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, Place::Header(String::new())) {
            Place::Header(mut header) => {
                header.push(c);
                if header.ends_with(MESSAGE) {
                    self.begin(&header, out)
                } else if may_be_header(&header) {
                    Place::Header(header)
                } else {
                    // It is text, and so is a mark at its beginning: pushed again, that would begin the same header.
                    let mark = header.len() - after_mark(&header).len();
                    if mark > 0 {
                        self.say(Kind::Text, true, &header[..mark], out);
                    }
                    self.place =
                        Place::Message { kind: Kind::Text, until: Until::new(ENDS), is_empty: mark == 0 };
                    return header[mark..].chars().for_each(|c| self.push(c, out));
                }
            }
            Place::Message { kind, mut until, mut is_empty } => {
                let (text, marker) = until.push(c);
                if !text.is_empty() {
                    self.say(kind, is_empty, &text, out);
                    is_empty = false;
                }
                match marker {
                    None => Place::Message { kind, until, is_empty },
                    Some(marker) => {
                        end(kind, is_empty, out);
                        // The end was forgotten, and the next message begins.
                        let is_header = HEADER.contains(&marker);
                        Place::Header(if is_header { marker.to_owned() } else { String::new() })
                    }
                }
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Place::Header(String::new())) {
            // A header without a message says nothing.
            Place::Header(header) if HEADER.iter().any(|mark| header.trim_start().starts_with(mark)) => {}
            Place::Header(header) if header.is_empty() => {}
            Place::Header(header) => self.say(Kind::Text, true, &header, out),
            Place::Message { kind, mut until, is_empty } => {
                let rest = until.finish();
                // The beginning of a control token can be part of a text only.
                if kind == Kind::Text {
                    self.say(kind, is_empty, &rest, out);
                }
                end(kind, is_empty, out);
            }
        }
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.place, Place::Message { kind: Kind::Reasoning, .. })
    }
}

/// What follows the mark that a header begins with; all of it where it has none.
fn after_mark(header: &str) -> &str {
    let rest = header.trim_start();
    HEADER.iter().find_map(|mark| rest.strip_prefix(mark)).unwrap_or(header)
}

fn may_be_header(held: &str) -> bool {
    let rest = held.trim_start();
    held.len() <= MAX_HEADER && HEADER.iter().any(|mark| mark.starts_with(rest) || rest.starts_with(mark))
}

/// Channel and recipient of a header; the assistant itself counts as none.
fn read(header: &str) -> (&str, Option<&str>) {
    let word = |text: &'_ str| text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
    let channel = header.rsplit_once(CHANNEL).map_or("", |(_, after)| &after[..word(after)]);
    let recipient = header.rsplit_once("to=").map(|(_, after)| &after[..word(after)]);
    (channel, recipient.filter(|&name| name != "assistant"))
}

/// Thoughts and what is said before calls.
fn messages_before(tokenizer: &Tokenizer) -> String {
    let mark = |text| super::grammar::marker(tokenizer, text);
    let (channel, message, start) = (mark(CHANNEL), mark(MESSAGE), mark(START));
    let (body, end) = match mark(END) {
        // A literal ends the text as soon as it is complete.
        end if end == literal(END) => (format!("body[suffix={end}]: /(?s:.*)/\n"), String::new()),
        end => ("body: BODY\nBODY: /(?s:.*)/\n".to_owned(), end),
    };
    format!(
        "before: {channel} (\"analysis\" | \"commentary\") {message} body {end} {start} \"assistant\"\n{body}"
    )
}

/// What comes before an answer's text.
fn before_text(tokenizer: &Tokenizer) -> String {
    let mark = |text| super::grammar::marker(tokenizer, text);
    format!("start: before* {} \"final\" {}\n{}", mark(CHANNEL), mark(MESSAGE), messages_before(tokenizer))
}

fn grammar(rules: &CallRules<'_>) -> Result<String, GrammarError> {
    let [channel, constrain, message] = [CHANNEL, CONSTRAIN, MESSAGE].map(|text| rules.marker(text));
    let mut calls = Vec::new();
    for tool in &rules.tools {
        let recipient = literal(&format!(" to={FUNCTIONS}{}", tool.name));
        let arguments = format!("{message} %json {}", tool.schema);
        calls.push(format!("{channel} \"commentary\" {recipient} \" \" {constrain} \"json\" {arguments}"));
        calls.push(format!("{recipient} {channel} \"commentary\" \" \" {constrain}? \"json\" {arguments}"));
    }
    let mut lark = messages_before(rules.tokenizer);
    let text = format!("{channel} \"final\" {message}");
    let _ = match &rules.otherwise {
        Otherwise::Nothing => writeln!(lark, "start: before* call"),
        Otherwise::Text => {
            writeln!(lark, "start: before* (call | {text} TEXT)\nTEXT: /(?s:.*)/ & ~/(?s:.*)<\\|(?s:.*)/")
        }
        Otherwise::Json(schema) => {
            writeln!(lark, "start: before* (call | {text} answer)\nanswer: %json {schema}")
        }
    };
    let _ = writeln!(lark, "call: {}", calls.join(" | "));
    Ok(lark)
}

/// The template insists on descriptions of tools.
fn rewrite(conversation: &mut Map<String, Value>) {
    if let Some(Value::Array(messages)) = conversation.get_mut("messages") {
        rewrite_messages(messages);
    }
    let tools = conversation.get_mut("tools").and_then(Value::as_array_mut);
    for function in tools.into_iter().flatten().filter_map(|tool| tool["function"].as_object_mut()) {
        function.entry("description").or_insert_with(|| "".into());
    }
}

/// The template knows the reasoning as `thinking`, not beside a text of a message with a call, and one call per message, whose result
/// follows it.
fn rewrite_messages(messages: &mut Vec<Value>) {
    let mut old = std::mem::take(messages).into_iter().peekable();
    while let Some(mut message) = old.next() {
        if message["role"] != "assistant" {
            messages.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = old.next_if(|next| next["role"] == "tool") {
            results.push(result);
        }
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (content, reasoning) = (text(&message["content"]), text(&message["reasoning_content"]));
        let calls = match message["tool_calls"].take() {
            Value::Array(calls) => calls,
            _ => Vec::new(),
        };
        if let Some(entries) = message.as_object_mut() {
            entries.remove("tool_calls");
            if !message["content"].is_array() {
                message["content"] = content.as_str().into();
            }
        }
        if calls.is_empty() {
            if !reasoning.is_empty() {
                message["thinking"] = reasoning.into();
            }
            messages.push(message);
            messages.append(&mut results);
            continue;
        }
        let both = if content.is_empty() || reasoning.is_empty() { "" } else { "\n\n" };
        let mut thinking = format!("{reasoning}{both}{content}");
        for call in calls {
            let of_call = |result: &Value| result["tool_call_id"] == call["id"] && !call["id"].is_null();
            let result = results.iter().position(of_call).map(|at| results.remove(at));
            let mut turn = json!({"role": "assistant", "content": "", "tool_calls": [call]});
            if !thinking.is_empty() {
                turn["thinking"] = std::mem::take(&mut thinking).into();
            }
            messages.push(turn);
            messages.extend(result);
        }
        messages.append(&mut results);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, check_reasoning, template, tools};
    use super::super::{ToolChoice, tests};
    use super::*;
    use realizar_model::chat_template::Timestamp;

    #[test]
    fn headers_without_an_end_are_text() {
        let long = "x".repeat(MAX_HEADER);
        for mark in HEADER.iter().filter(|mark| **mark != MESSAGE) {
            for transcript in [format!("{mark}{long}"), format!(" \n{mark}{long}<|ch")] {
                check_reasoning(&SYNTAX, &transcript, "", &transcript, &[]);
            }
            let again = format!("{mark}{long}{CHANNEL}final{MESSAGE}Yes");
            check_reasoning(&SYNTAX, &again, "", &format!("{mark}{long}\n\nYes"), &[]);
        }
        // Each begins a header anew, and the last ones are no more than a header.
        let fit = MAX_HEADER / CHANNEL.len();
        let texts = [CHANNEL; 10].join("\n\n");
        check_reasoning(&SYNTAX, &CHANNEL.repeat(fit + 10), "", &texts, &[]);
    }

    #[test]
    fn channels_are_told_apart() {
        let call = "{\"city\": \"Paris\"}";
        let weather = ("get_weather", json!({"city": "Paris"}));
        for (transcript, reasoning, text, calls) in [
            ("<|channel|>final<|message|>Hello.\nHow are you?", "", "Hello.\nHow are you?", 0),
            ("<|channel|>commentary<|message|>Hello.", "", "Hello.", 0),
            (
                "<|channel|>analysis<|message|>Easy\none<|end|><|start|>assistant<|channel|>final<|message|>Four.<|return|>",
                "Easy\none",
                "Four.",
                0,
            ),
            (
                "<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>analysis<|message|>Two<|end|>\
                 <|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{}",
                "One\n\nTwo",
                "I look.\n\n{}",
                0,
            ),
            ("<|channel|>analysis<|message|>Cut o", "Cut o", "", 0),
            ("<|channel|>analysis<|message|>Cut o<|en", "Cut o", "", 0),
            (" to=functions.get_weather<|channel|>analysis<|message|>ARGS", "", "", 1),
            ("<|channel|>analysis to=functions.get_weather<|message|>ARGS", "", "", 1),
            (" to=functions.get_weather<|channel|>commentary json<|message|>ARGS<|call|>", "", "", 1),
            (
                "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>ARGS<|call|>",
                "",
                "",
                1,
            ),
            (
                "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.get_weather<|channel|>analysis<|message|>ARGS",
                "Hm.",
                "",
                1,
            ),
            (
                "<|channel|>commentary<|message|>Both:<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather<|message|>ARGS<|call|>\
                 <|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>ARGS",
                "",
                "Both:",
                2,
            ),
            // Tools that nobody offered.
            ("<|channel|>commentary to=python <|constrain|>code<|message|>print(1)", "print(1)", "", 0),
            ("<|start|>assistant to=container.exec<|channel|>commentary<|message|>ls", "ls", "", 0),
            // A header within a header.
            (
                "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes",
                "Hm.",
                "Yes",
                0,
            ),
            ("Total text, to=you", "", "Total text, to=you", 0),
            ("<|channel|>fin", "", "", 0),
            ("", "", "", 0),
        ] {
            let transcript = transcript.replace("ARGS", call);
            check_reasoning(&SYNTAX, &transcript, reasoning, text, &vec![weather.clone(); calls]);
        }
        check(
            &SYNTAX,
            "<|channel|>commentary to=functions.add<|message|><|call|>",
            "",
            &[("add", json!({}))],
        );
    }

    #[test]
    fn the_template_is_recognised_and_gets_what_it_takes() {
        let Some(template) = template("openai-gpt-oss-120b") else { return };
        assert_eq!(Syntax::of(Some(&template)).name, "harmony");
        let call = |id: &str, a: i32| json!({"id": id, "type": "function", "function": {"name": "add", "arguments": format!("{{\"a\": {a}}}")}});
        let mut conversation = json!({"messages": [
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": null, "reasoning_content": "I add.", "tool_calls": [call("x", 1), call("y", 2)]},
            {"role": "tool", "tool_call_id": "y", "content": "two"},
            {"role": "tool", "tool_call_id": "x", "content": "one"},
        ]});
        SYNTAX.prepare(&mut conversation, &tests::tools(), &ToolChoice::Auto);
        let text = template.render(&conversation, true, Timestamp::utc(2024, 1, 1, 0, 0, 0)).unwrap();
        let turns = "<|start|>assistant<|channel|>analysis<|message|>I add.<|end|>\
            <|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"a\": 1}<|call|>\
            <|start|>functions.add to=assistant<|channel|>commentary<|message|>\"one\"<|end|>\
            <|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"a\": 2}<|call|>\
            <|start|>functions.add to=assistant<|channel|>commentary<|message|>\"two\"<|end|><|start|>assistant";
        assert!(text.ends_with(turns), "{text}");
        assert!(text.contains("type get_weather = ") && !tools().is_empty());
    }
}
