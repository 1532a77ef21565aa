//! Aim: the templates of real models, and of ours that are built like them, render what the reference library renders, and refuse what it refuses.
//!
//! Method: `data/templates` has templates with what they are rendered with and what comes out, written by `tools/make_templates.py` with Python's
//! jinja2 as transformers sets it up. The shared test data has 37 templates of models and six conversations with the text or the error
//! that the same gave. Kimi K2's template appends to a list, which transformers refuses and others that serve the model
//! do not: what it then renders is Python's jinja2 in a sandbox that allows it. Without the data its test does not run.

// The counts are the result.
#![allow(clippy::print_stdout)]

#[path = "../../compute/tests/support/test_data.rs"]
mod test_data;

use realizar_model::chat_template::{ChatTemplate, Error, Timestamp};
use serde_json::Value;
use std::path::Path;
use test_data::test_data;

/// The end of what Kimi K2's template renders of a call and its result.
const KIMI_CALL: &str = "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
    <|tool_call_argument_begin|>{\"city\": \"Paris\", \"unit\": \"c\"}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>\
    get_weather<|im_middle|>## Return of functions.get_weather:0\n{\"temp\": 21}<|im_end|><|im_assistant|>assistant<|im_middle|>";

fn now() -> Timestamp {
    Timestamp::utc(2026, 1, 15, 12, 0, 0)
}

/// Where two texts begin to differ.
fn difference(expected: &str, found: &str) -> String {
    let common = found.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
    let tail =
        |text: &str| String::from_utf8_lossy(&text.as_bytes()[common.saturating_sub(30)..]).into_owned();
    format!("\n  expected …{:.200?}\n  found    …{:.200?}", tail(expected), tail(found))
}

#[test]
fn templates_of_ours_render_as_in_the_reference_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let json = |file: &Path| -> Value { serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap() };
    let mut failures = Vec::new();
    for folder in ["chat", "language", "errors"].map(|name| root.join("tests/data/templates").join(name)) {
        let inputs = json(&folder.join("inputs.json"));
        for (name, cases) in json(&folder.join("renders.json")).as_object().unwrap() {
            let source = match name.as_str() {
                "chatml" => std::fs::read_to_string(root.join("../cli/src/chatml.jinja")).unwrap(),
                "demo" => demo_template(),
                name => std::fs::read_to_string(folder.join(name).with_extension("jinja")).unwrap(),
            };
            let template =
                ChatTemplate::new(&source, "<BOS>", "<EOS>").unwrap_or_else(|e| panic!("{name}: {e}"));
            for (case, expected) in cases.as_object().unwrap() {
                let rendered = template.render(&inputs[case], true, now());
                match (expected["text"].as_str(), expected["refused"].as_str(), rendered) {
                    (Some(expected), _, Ok(text)) if text == expected => {}
                    (_, Some(expected), Err(Error::Refused { message, .. })) if message == expected => {}
                    (None, None, Err(Error::Render { .. })) => {}
                    (Some(expected), _, Ok(text)) => {
                        failures.push(format!("{name} {case}:{}", difference(expected, &text)));
                    }
                    (.., rendered) => {
                        failures.push(format!("{name} {case}: expected {expected}, found {rendered:.200?}"))
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn demo_template() -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let source = realizar_model::source::open(&file).unwrap();
    source.metadata().get_str("tokenizer.chat_template").unwrap().unwrap().to_owned()
}

#[test]
fn templates_of_models_render_as_in_the_reference_library() {
    let Some(folder) = test_data("chat-templates") else { return };
    let renders: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected_renders.json")).unwrap()).unwrap();
    let mut failures = Vec::new();
    let (mut equal, mut total) = (0, 0);
    for (name, expected) in renders["expected"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let template = ChatTemplate::new(&source, "<BOS>", "<EOS>");
        for (case, expected) in expected.as_object().unwrap() {
            total += 1;
            let rendered = match &template {
                Ok(template) => {
                    template.render(&renders["cases"][case], true, now()).map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match (expected["out"].as_str(), rendered) {
                (Some(expected), Ok(text)) if text == expected => equal += 1,
                (Some(expected), Ok(text)) => {
                    failures.push(format!("{name} {case}:{}", difference(expected, &text)));
                }
                (Some(_), Err(error)) => failures.push(format!("{name} {case}: {error}")),
                (None, Err(error)) => {
                    equal += 1;
                    println!("{name} {case}: expected {}; found: {error}", expected["error"]);
                    if let Some(message) = expected["error"].as_str().unwrap().strip_prefix("TemplateError: ")
                    {
                        assert!(error.contains(message), "{error}");
                    }
                }
                (None, Ok(text)) if name == "Kimi-K2-Instruct.jinja" && text.ends_with(KIMI_CALL) => {
                    equal += 1
                }
                (None, Ok(text)) => failures
                    .push(format!("{name} {case}: expected {}, found {text:.200?}", expected["error"])),
            }
        }
    }
    println!("{equal}/{total} renders equal");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
