//! A chat in the terminal: `cargo run --release -p realizar --example chat -- [MODEL]`, by default with the demo model.
#![allow(clippy::print_stdout)]

use realizar::{Message, Model, TextParams};
use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let demo = || concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/demo.gguf").to_owned();
    let model = Model::load(std::env::args().nth(1).unwrap_or_else(demo))?;
    let params = TextParams { max_tokens: Some(512), ..model.default_params() };
    let mut messages = Vec::new();
    println!("Running on {}. An empty line ends the chat.", model.device());
    for line in std::io::stdin().lines().map_while(Result::ok).take_while(|line| !line.is_empty()) {
        messages.push(Message::user(line));
        let print = |text: &str| {
            print!("{text}");
            std::io::stdout().flush().is_ok()
        };
        let mut answers = model.chat(&messages, &params)?.run(print)?;
        println!();
        // One request may have several choices; this one has one.
        messages.push(Message::assistant(answers.remove(0).text));
    }
    Ok(())
}
