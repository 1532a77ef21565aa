//! Answers of a given form from the library, on the demo model: whatever is drawn, the text has the form.
#![cfg(feature = "structured")]
#![allow(missing_docs)]

use realizar::reasoning::{Piece, ReasoningParser, TAGS};
use realizar::{
    CacheSize, ChatTemplate, Device, Error, FinishReason, Format, GrammarError, Message, Model,
    SamplingParams, TextParams,
};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::OnceLock;

fn builder() -> realizar::ModelBuilder<'static> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    Model::builder(file).device(Device::Cpu).cache(CacheSize::Tokens(4096))
}

fn demo() -> &'static Model {
    static DEMO: OnceLock<Model> = OnceLock::new();
    DEMO.get_or_init(|| builder().load().unwrap())
}

fn sampled(seed: u64, max_tokens: usize) -> TextParams {
    let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() };
    TextParams { max_tokens: Some(max_tokens), sampling, ..TextParams::default() }
}

fn city() -> Format {
    let schema = json!({
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "people": {"type": "integer", "minimum": 0, "maximum": 99_999}},
        "required": ["city", "people"],
    });
    Format::json_schema(&schema, true, false)
}

#[track_caller]
fn assert_city(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let object = value.as_object().unwrap();
    assert_eq!(object.keys().collect::<Vec<_>>(), ["city", "people"], "{text}");
    assert!(object["city"].as_str().unwrap().chars().count() <= 12, "{text}");
    assert!(object["people"].as_u64().unwrap() <= 99_999, "{text}");
}

#[test]
fn every_text_satisfies_its_schema() {
    let structured = demo().structured(&city()).unwrap();
    for seed in 0..20 {
        let answer =
            structured.generate("Once upon a time", &sampled(seed, 200)).unwrap().completion().unwrap();
        assert!(matches!(answer.reason, FinishReason::Stop { .. }), "{}", answer.text);
        assert_city(&answer.text);
        let answer =
            structured.chat(&[Message::user("Hello")], &sampled(seed, 200)).unwrap().completion().unwrap();
        assert_city(&answer.text);
    }
}

#[test]
fn regular_expressions_and_grammars_are_followed() {
    let run = |format: &str, form: Format| {
        let structured = demo().structured(&form).unwrap();
        let stream = structured.generate("Once", &sampled(7, 100)).unwrap();
        let answer = stream.completion().unwrap();
        assert!(matches!(answer.reason, FinishReason::Stop { .. }), "{format}: {}", answer.text);
        answer.text
    };
    let is_date = |text: &str| {
        let parts: Vec<&str> = text.split('-').collect();
        parts.len() == 3
            && parts.iter().zip([4, 2, 2]).all(|(p, n)| p.len() == n && p.bytes().all(|b| b.is_ascii_digit()))
    };
    let date = run("regex", Format::Regex("[0-9]{4}-[0-9]{2}-[0-9]{2}".to_owned()));
    assert!(is_date(&date), "{date}");
    let yes = run("Lark", Format::Grammar("start: \"yes\" | \"no\"".to_owned()));
    assert!(["yes", "no"].contains(&yes.as_str()), "{yes}");
    let sum = run("GBNF", Format::Grammar("root ::= [0-9] (\"+\" [0-9]){1,3}".to_owned()));
    assert!(sum.split('+').all(|digit| digit.len() == 1 && digit.as_bytes()[0].is_ascii_digit()), "{sum}");
    let object = run("JSON", Format::JsonSchema { schema: json!({"enum": [{"a": [1]}]}), strict: true });
    assert_eq!(serde_json::from_str::<Value>(&object).unwrap(), json!({"a": [1]}));
}

#[test]
fn one_form_serves_many_threads_and_changes_nothing_else() {
    let structured = demo().structured(&city()).unwrap();
    let solo: Vec<String> = (0..6)
        .map(|seed| structured.generate("One day", &sampled(seed, 200)).unwrap().completion().unwrap().text)
        .collect();
    let free = |seed| demo().generate("One day", &sampled(seed, 40)).unwrap().completion().unwrap().text;
    let free_solo = free(1);
    std::thread::scope(|scope| {
        let structured = &structured;
        let ask = |seed| {
            scope.spawn(move || {
                structured.generate("One day", &sampled(seed, 200)).unwrap().completion().unwrap().text
            })
        };
        let threads: Vec<_> = (0..6).map(ask).collect();
        assert_eq!(free(1), free_solo);
        let together: Vec<String> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(together, solo);
    });
}

#[test]
fn thoughts_that_the_prompt_begins_are_free() {
    let template = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<think>\n{% endif %}";
    let model = builder().chat_template(ChatTemplate::new(template, "", "").unwrap()).load().unwrap();
    let structured = model.structured(&city()).unwrap();
    let answer =
        structured.chat(&[Message::user("Once upon a time")], &sampled(3, 30)).unwrap().completion().unwrap();
    let mut parser = ReasoningParser::new(Some(&TAGS[0]));
    let mut pieces = parser.push(&answer.text);
    pieces.extend(parser.finish());
    // The demo model has learned no tag; it thinks until it has no tokens left.
    assert!(pieces.iter().all(|piece| matches!(piece, Piece::Reasoning(_))), "{pieces:?}");
    assert!(!answer.text.starts_with('{') && answer.reason == FinishReason::Length, "{}", answer.text);
}

#[test]
fn forms_that_cannot_be_are_refused_with_the_place() {
    let refused = |form: Format| match demo().structured(&form) {
        Err(Error::Format(error)) => error,
        other => panic!("{form:?}: {other:?}"),
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "number", "minimum": "no"}}});
    let error = refused(Format::JsonSchema { schema, strict: true });
    assert!(
        matches!(&error, GrammarError::Schema { path, .. } if path.starts_with("#/properties/a")),
        "{error}"
    );
    assert!(matches!(refused(Format::Regex("(a".to_owned())), GrammarError::Regex { .. }));
    assert!(matches!(refused(Format::Grammar("start: nothing".to_owned())), GrammarError::Grammar { .. }));
    let chain: String = (0..5000).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    let deep = refused(Format::Grammar(format!("start: r0\n{chain}r5000: \"a\"\n")));
    assert!(!deep.to_string().is_empty());
}
