//! Aim: the templates of real models render what the reference library renders, and refuse what it refuses.
//!
//! Method: the shared test data has 37 templates and six conversations with the text or the error that Python's jinja2
//! gave, set up as transformers does. Kimi K2's template appends to a list, which transformers refuses and others that serve the model
//! do not: what it then renders is Python's jinja2 in a sandbox that allows it. Without the data this test does not run.

// The counts are the result.
#![allow(clippy::print_stdout)]

#[path = "../../compute/tests/support/test_data.rs"]
mod test_data;

use realizar_model::chat_template::{ChatTemplate, Timestamp};
use serde_json::Value;
use test_data::test_data;

/// The end of what Kimi K2's template renders of a call and its result.
const KIMI_CALL: &str = "<|im_assistant|>assistant<|im_middle|><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0\
    <|tool_call_argument_begin|>{\"city\": \"Paris\", \"unit\": \"c\"}<|tool_call_end|><|tool_calls_section_end|><|im_end|><|im_system|>\
    get_weather<|im_middle|>## Return of functions.get_weather:0\n{\"temp\": 21}<|im_end|><|im_assistant|>assistant<|im_middle|>";

#[test]
fn templates_render_as_in_the_reference_library() {
    let Some(folder) = test_data("chat-templates") else { return };
    let renders: Value =
        serde_json::from_slice(&std::fs::read(folder.join("expected_renders.json")).unwrap()).unwrap();
    let now = Timestamp::utc(2026, 1, 15, 12, 0, 0);
    let mut failures = Vec::new();
    let (mut equal, mut total) = (0, 0);
    for (name, expected) in renders["expected"].as_object().unwrap() {
        let source = std::fs::read_to_string(folder.join(name)).unwrap();
        let template = ChatTemplate::new(&source, "<BOS>", "<EOS>");
        for (case, expected) in expected.as_object().unwrap() {
            total += 1;
            let rendered = match &template {
                Ok(template) => {
                    template.render(&renders["cases"][case], true, now).map_err(|e| e.to_string())
                }
                Err(error) => Err(error.to_string()),
            };
            match (expected["out"].as_str(), rendered) {
                (Some(expected), Ok(text)) if text == expected => equal += 1,
                (Some(expected), Ok(text)) => {
                    let common = text.bytes().zip(expected.bytes()).take_while(|(a, b)| a == b).count();
                    let tail = |text: &str| {
                        String::from_utf8_lossy(&text.as_bytes()[common.saturating_sub(30)..]).into_owned()
                    };
                    failures.push(format!(
                        "{name} {case}:\n  expected …{:.200?}\n  found    …{:.200?}",
                        tail(expected),
                        tail(&text)
                    ));
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
