//! Aim: text and calls come out as the model meant them, whatever the pieces of the text are.
//!
//! Method: transcripts in each syntax's file go through [`check`], which divides them at every place, into single characters, and at
//! random. Transcripts of calls follow the syntaxes that the models' own chat templates render.

#[path = "../../../compute/tests/support/test_data.rs"]
mod test_data;

use super::*;
use test_data::test_data;

pub(super) fn tools() -> Vec<Tool> {
    serde_json::from_value(json!([
        {"type": "function", "function": {
            "name": "get_weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "unit": {"enum": ["c", "f"]}},
                "required": ["city"],
                "additionalProperties": false,
            },
            "strict": true,
        }},
        {"type": "function", "function": {
            "name": "add",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        }},
    ]))
    .unwrap()
}

/// A template of the public data, or `None` with a note.
pub(super) fn template(name: &str) -> Option<ChatTemplate> {
    let source = std::fs::read_to_string(test_data(&format!("chat-templates/{name}.jinja"))?).unwrap();
    Some(ChatTemplate::new(&source, "<s>", "</s>").unwrap())
}

/// What an answer is made of.
#[derive(Debug, Default, PartialEq)]
struct Answer {
    reasoning: String,
    text: String,
    /// Ids, names and arguments.
    calls: Vec<(String, String, String)>,
}

fn run<'a>(syntax: &Syntax, pieces: impl IntoIterator<Item = &'a str>) -> Answer {
    let mut parser = syntax.parser(&tools(), 7);
    let mut deltas: Vec<Delta> = pieces.into_iter().flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let Answer { mut reasoning, mut text, mut calls } = Answer::default();
    for delta in deltas {
        match delta {
            Delta::Reasoning(piece) => {
                assert!(!piece.is_empty());
                reasoning += &piece;
            }
            Delta::Text(piece) => {
                assert!(!piece.is_empty());
                text += &piece;
            }
            Delta::Call { index, id, name } => {
                assert_eq!(index, calls.len());
                calls.push((id, name, String::new()));
            }
            Delta::Arguments { index, fragment } => {
                assert_eq!(index + 1, calls.len());
                assert!(!fragment.is_empty());
                calls[index].2 += &fragment;
            }
        }
    }
    assert_eq!(parser.n_calls(), calls.len());
    Answer { reasoning, text, calls }
}

/// A text whose pieces should be `text` and `calls`, however it is divided.
#[track_caller]
pub(super) fn check(syntax: &Syntax, transcript: &str, text: &str, calls: &[(&str, Value)]) {
    check_reasoning(syntax, transcript, "", text, calls);
}

/// Like [`check`], with reasoning.
#[track_caller]
pub(super) fn check_reasoning(
    syntax: &Syntax,
    transcript: &str,
    reasoning: &str,
    text: &str,
    calls: &[(&str, Value)],
) {
    let whole = run(syntax, [transcript]);
    let found: Vec<(&str, Value)> = whole
        .calls
        .iter()
        .map(|(_, name, arguments)| (name.as_str(), serde_json::from_str(arguments).unwrap()))
        .collect();
    assert_eq!(
        (whole.reasoning.as_str(), whole.text.as_str(), &found[..]),
        (reasoning, text, calls),
        "{transcript:?}"
    );
    check_divisions(syntax, transcript, &whole);
}

#[track_caller]
pub(super) fn check_with_ids(syntax: &Syntax, transcript: &str, ids: &[&str]) {
    let found: Vec<String> = run(syntax, [transcript]).calls.into_iter().map(|(id, _, _)| id).collect();
    assert_eq!(found, ids);
}

#[track_caller]
fn check_divisions(syntax: &Syntax, transcript: &str, whole: &Answer) {
    let places: Vec<usize> = transcript.char_indices().map(|(i, _)| i).collect();
    for &at in &places {
        assert_eq!(
            run(syntax, [&transcript[..at], &transcript[at..]]),
            *whole,
            "{transcript:?} divided at {at}"
        );
    }
    let characters: Vec<&str> = transcript.split("").collect();
    assert_eq!(run(syntax, characters), *whole, "{transcript:?} in single characters");
    let mut state = 1u64;
    for _ in 0..5 {
        let mut pieces = Vec::new();
        let mut from = 0;
        for &at in &places {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if state >> 62 == 0 {
                pieces.push(&transcript[from..at]);
                from = at;
            }
        }
        pieces.push(&transcript[from..]);
        assert_eq!(run(syntax, pieces.iter().copied()), *whole, "{transcript:?} as {pieces:?}");
    }
}

#[test]
fn no_division_of_random_texts_makes_a_difference_and_no_text_is_lost() {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\"name\"",
        "\"arguments\"",
        "\"parameters\"",
        "\"add\"",
        "add",
        "{\"a\": 1}",
        "abcdefghi",
        " ",
        "\n",
        ";",
        "é",
        "1",
        "{\"name\": \"add\", \"arguments\": {}}",
        "{\"name\": \"add\", \"arguments\": {",
        "null",
        "<|tool_call>",
        "<tool_call|>",
        "call:add",
        "<|\"|>",
        "<|tool_call>call:add{a:",
        "<|channel|>",
        "<|message|>",
        "<|end|>",
        "<|start|>assistant",
        "to=functions.add",
        "<tool_call>\n<function=add>\n",
        "<function=add>",
        "<parameter=a>\n",
        "\n</parameter>\n",
        "</parameter>",
        "</function>\n</tool_call>",
        "<minimax:tool_call>",
        "<invoke name=\"add\">",
        "<parameter name=\"a\">",
        "</invoke>",
        "</minimax:tool_call>",
        "<seed:tool_call><function=add>",
        "<tool_call>add\n",
        "<arg_key>a</arg_key>",
        "<arg_value>",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>add<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "```",
        "<|tool_calls_section_begin|>",
        "<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
        "<TOOLCALL>",
        "<|tool_call_start|>",
        "[add(",
        "a='x'",
        ")",
        "<|tool_call_end|>",
        "<|tool_call|>",
        "</arg_value>",
    ];
    let mut state = 3u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut n_calls = 0;
    for _ in 0..500 {
        let n = below(14);
        let transcript: String = (0..n).map(|_| words[below(words.len())]).collect();
        for syntax in SYNTAXES {
            let whole = run(syntax, [transcript.as_str()]);
            check_divisions(syntax, &transcript, &whole);
            n_calls += whole.calls.len();
            if whole.calls.is_empty() && syntax.channels.is_none() {
                assert_eq!(whole.text, transcript, "{}", syntax.name);
            }
        }
    }
    assert!(n_calls > 200, "{n_calls} calls are too few to test them");
}

#[test]
fn a_template_without_a_known_syntax_gets_the_generic_one() {
    assert!(Syntax::of(None).is_generic());
    let plain = ChatTemplate::new("{% for m in messages %}{{ m.content }}{% endfor %}", "", "").unwrap();
    assert!(Syntax::of(Some(&plain)).is_generic());
    for name in ["google-gemma-2-2b-it", "microsoft-Phi-3.5-mini-instruct"] {
        let Some(template) = template(name) else { return };
        assert!(Syntax::of(Some(&template)).is_generic(), "{name}");
    }
}

#[test]
fn ids_differ_and_look_as_templates_want_them() {
    let ids = |style: IdStyle| {
        (0..100).map(|i| style.make(i / 10, i as usize % 10)).collect::<std::collections::HashSet<_>>()
    };
    for (style, n) in [(IdStyle::Call, 29), (IdStyle::Nine, 9)] {
        let ids = ids(style);
        assert_eq!(ids.len(), 100);
        assert!(
            ids.iter().all(|id| id.len() == n && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        );
    }
}

#[test]
fn choices_are_read_and_checked() {
    let read = |value: Value| serde_json::from_value::<ToolChoice>(value).map_err(|error| error.to_string());
    assert_eq!(read(json!("required")), Ok(ToolChoice::Required));
    assert_eq!(
        read(json!({"type": "function", "function": {"name": "add"}})),
        Ok(ToolChoice::Named("add".to_owned()))
    );
    assert!(
        read(json!("sometimes")).is_err()
            && read(json!({"type": "function"})).is_err()
            && read(json!(3)).is_err()
    );
    let place =
        |tools: &[Tool], choice: ToolChoice| check_tools(tools, &choice).err().map(|(place, _)| place);
    assert_eq!(place(&tools(), ToolChoice::Named("add".to_owned())), None);
    assert_eq!(
        place(&tools(), ToolChoice::Named("sub".to_owned())).as_deref(),
        Some("tool_choice/function/name")
    );
    assert_eq!(place(&[], ToolChoice::Required).as_deref(), Some("tool_choice"));
    let twice = [tools(), tools()].concat();
    assert_eq!(place(&twice, ToolChoice::Auto).as_deref(), Some("tools/2/function/name"));
    let mut wrong = tools();
    wrong[1].function.name = "a b".to_owned();
    assert_eq!(place(&wrong, ToolChoice::Auto).as_deref(), Some("tools/1/function/name"));
}

#[test]
fn conversations_are_prepared_for_templates() {
    let call = json!({"id": "1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1, \"b\": 2}"}});
    let mut conversation =
        json!({"messages": [{"role": "assistant", "content": null, "tool_calls": [call]}]});
    hermes::SYNTAX.prepare(&mut conversation, &tools(), &ToolChoice::Auto);
    assert_eq!(conversation["tools"][1]["function"]["name"], "add");
    assert_eq!(conversation["tools"][0]["function"].get("name"), Some(&json!("get_weather")));
    assert_eq!(
        conversation["messages"][0]["tool_calls"][0]["function"]["arguments"],
        json!({"a": 1, "b": 2})
    );
    let mut conversation = json!({"messages": []});
    hermes::SYNTAX.prepare(&mut conversation, &tools(), &ToolChoice::None);
    assert_eq!(conversation, json!({"messages": []}));
}
