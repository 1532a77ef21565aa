//! JSON of a schema: `cargo run --release -p realizar --example structured -- [MODEL]`, by default with the demo model.
#![allow(clippy::print_stdout)]

use realizar::{Format, Message, Model, TextParams};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf").to_owned();
    let model = Model::load(std::env::args().nth(1).unwrap_or_else(demo))?;
    let schema = serde_json::json!({
        "type": "object",
        "properties": {
            "hero": {"enum": ["fox", "bear", "owl"]},
            "friends": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 3},
        },
        "required": ["hero", "friends"],
    });
    let story = model.structured(&Format::json_schema(&schema, true, false))?;
    let params = TextParams { max_tokens: Some(200), ..model.default_params() };
    let answer = story.chat(&[Message::user("Who is in the story?")], &params)?.completion()?;
    let value: serde_json::Value = serde_json::from_str(&answer.text)?;
    println!("{value:#}");
    Ok(())
}
