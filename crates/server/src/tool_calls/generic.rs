//! For models whose template knows nothing of tools, or writes their calls in a way that has no file here: the system message says
//! what the tools are and asks for `{"name": …, "arguments": {…}}` on a line of its own for each call.

use super::call_object::{CallObject, Progress, is_blank};
use super::grammar::Frame;
use super::output::Output;
use super::{IdStyle, Parse, Syntax, Tool, ToolChoice};
use serde_json::{Value, json};

pub(super) const SYNTAX: Syntax = Syntax {
    name: "generic",
    // It is what remains.
    recognise: |_| false,
    markers: &[],
    ids: IdStyle::Call,
    parser: |_| Box::new(Generic { place: Place::LineStart(String::new()) }),
    grammar: |rules| {
        Ok(rules.calls(&Frame {
            before_name: "{\"name\": \"",
            before_arguments: "\", \"arguments\": ",
            after_arguments: "}",
            between: "\n",
            ..Frame::default()
        }))
    },
    rewrite: |_| {},
    channels: None,
    ends_reasoning: false,
};

enum Place {
    /// At the beginning of a line, after blanks.
    LineStart(String),
    /// In an object, after blanks.
    Object(String, CallObject),
    /// Further on in a line.
    Line,
}

struct Generic {
    place: Place,
}

impl Generic {
    /// Gives back what turned out to be no call: the first character is text, a later line may begin one.
    fn give_back(&mut self, blanks: &str, text: &str, out: &mut Output) {
        out.text(blanks);
        let mut rest = text.chars();
        if let Some(first) = rest.next() {
            out.text(first.encode_utf8(&mut [0; 4]));
        }
        self.place = Place::Line;
        rest.for_each(|c| self.push(c, out));
    }
}

impl Parse for Generic {
    fn push(&mut self, c: char, out: &mut Output) {
        self.place = match std::mem::replace(&mut self.place, Place::Line) {
            Place::LineStart(mut blanks) if is_blank(c) => {
                blanks.push(c);
                Place::LineStart(blanks)
            }
            Place::LineStart(blanks) if c == '{' => {
                let mut object = CallObject::new();
                object.push(c, out);
                Place::Object(blanks, object)
            }
            Place::LineStart(blanks) => {
                out.text(&blanks);
                out.text(c.encode_utf8(&mut [0; 4]));
                Place::Line
            }
            Place::Object(blanks, mut object) => match object.push(c, out) {
                Progress::More => Place::Object(blanks, object),
                Progress::Done => Place::LineStart(String::new()),
                Progress::Malformed => {
                    if let Some(back) = object.give_back() {
                        self.give_back(&blanks, &back, out);
                    }
                    return self.push(c, out);
                }
            },
            Place::Line if c == '\n' => Place::LineStart("\n".to_owned()),
            Place::Line => {
                out.text(c.encode_utf8(&mut [0; 4]));
                Place::Line
            }
        };
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Place::LineStart(String::new())) {
            Place::LineStart(blanks) => out.text(&blanks),
            Place::Object(blanks, object) => {
                if let Some(back) = object.give_back() {
                    out.text(&blanks);
                    out.text(&back);
                }
            }
            Place::Line => {}
        }
    }
}

/// Rewrites a conversation for a template that knows nothing of tools: they stand in the system message, calls in the answers that
/// made them, and their results in the user's turns.
pub(super) fn rewrite(messages: &mut Vec<Value>, tools: &[Tool], choice: &ToolChoice) {
    for message in messages.iter_mut() {
        let role = message.get("role").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(entries) = message.as_object_mut() else { continue };
        if let (Some(Value::Array(calls)), "assistant") = (entries.remove("tool_calls"), role.as_str()) {
            let line = |call: &Value| {
                let function = call.get("function").unwrap_or(call);
                json!({"name": function.get("name"), "arguments": function.get("arguments")}).to_string()
            };
            let said = entries
                .get("content")
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
                .map(str::to_owned);
            let lines: Vec<String> = said.into_iter().chain(calls.iter().map(line)).collect();
            entries.insert("content".to_owned(), lines.join("\n").into());
        }
        if role == "tool" {
            let result = entries.remove("content").unwrap_or_default();
            let result = result.as_str().map_or_else(|| result.to_string(), str::to_owned);
            entries.remove("tool_call_id");
            entries.insert("role".to_owned(), "user".into());
            entries.insert("content".to_owned(), format!("Result of the tool call:\n{result}").into());
        }
    }
    // Many templates want user and assistant to take turns.
    messages.dedup_by(|later, earlier| {
        let text = |message: &Value| message.get("content").and_then(Value::as_str).map(str::to_owned);
        let is_result = text(later).is_some_and(|text| text.starts_with("Result of the tool call:\n"));
        match (is_result && earlier.get("role") == later.get("role"), text(earlier), text(later)) {
            (true, Some(first), Some(second)) => {
                earlier["content"] = format!("{first}\n\n{second}").into();
                true
            }
            _ => false,
        }
    });
    if tools.is_empty() || *choice == ToolChoice::None {
        return;
    }
    let instructions = instructions(tools, choice);
    match messages.first_mut() {
        Some(first) if first.get("role").and_then(Value::as_str) == Some("system") => {
            let text = first.get("content").and_then(Value::as_str).unwrap_or_default();
            first["content"] = format!("{text}\n\n{instructions}").into();
        }
        _ => messages.insert(0, json!({"role": "system", "content": instructions})),
    }
}

fn instructions(tools: &[Tool], choice: &ToolChoice) -> String {
    let mut text = "You can call these tools, described by JSON schemas:\n".to_owned();
    for tool in tools {
        text += &serde_json::to_string(tool).unwrap_or_default();
        text.push('\n');
    }
    text += "\nTo call a tool, write for each call one line of JSON and nothing else:\n\
        {\"name\": \"<name of the tool>\", \"arguments\": {<its arguments>}}\n";
    text += &match choice {
        ToolChoice::Required => "You must call at least one tool.".to_owned(),
        ToolChoice::Named(name) => format!("You must call the tool {name}."),
        _ => "If no tool helps, answer in plain text.".to_owned(),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, tools};
    use super::*;

    #[test]
    fn transcripts() {
        let weather = ("get_weather", json!({"city": "Paris"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        let one = "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}";
        let two = "{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 2}}";
        check(&SYNTAX, one, "", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("{one}\n{two}\n"), "\n", &[weather.clone(), add.clone()]);
        check(&SYNTAX, &format!("I look.\n {one}\nDone."), "I look.\nDone.", std::slice::from_ref(&weather));
        check(&SYNTAX, &format!("{{\n{two}"), "{", &[add]);
        for text in [
            format!("Say {one}"),
            "{\n  \"name\": \"Ann\",\n  \"age\": 3\n}\n".to_owned(),
            "{{{".to_owned(),
            "a\n\n b".to_owned(),
            one[..20].to_owned(),
        ] {
            check(&SYNTAX, &text, &text, &[]);
        }
    }

    #[test]
    fn a_conversation_without_a_template_s_help_says_the_same() {
        let mut messages = vec![
            json!({"role": "user", "content": "Weather?"}),
            json!({"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}},
                {"id": "2", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Rome"}}},
            ]}),
            json!({"role": "tool", "tool_call_id": "1", "content": "21"}),
            json!({"role": "tool", "tool_call_id": "2", "content": "25"}),
        ];
        rewrite(&mut messages, &tools(), &ToolChoice::Required);
        let system = messages[0]["content"].as_str().unwrap();
        assert!(system.contains("\"get_weather\"") && system.contains("at least one"), "{system}");
        assert_eq!(
            messages[1..],
            [
                json!({"role": "user", "content": "Weather?"}),
                json!({"role": "assistant", "content": "{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Paris\"}}\n{\"name\":\"get_weather\",\"arguments\":{\"city\":\"Rome\"}}"}),
                json!({"role": "user", "content": "Result of the tool call:\n21\n\nResult of the tool call:\n25"}),
            ]
        );
        let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
        rewrite(&mut messages, &tools(), &ToolChoice::None);
        assert_eq!(messages, [json!({"role": "system", "content": "Be brief."})]);
        rewrite(&mut messages, &tools(), &ToolChoice::Auto);
        assert!(messages[0]["content"].as_str().unwrap().starts_with("Be brief.\n\nYou can call"));
    }
}
