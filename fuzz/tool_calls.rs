//! Any text, in any pieces, through the parser of every syntax of tool calls and through the one of reasoning: no panic, the same
//! outcome as in one piece, and no text lost where nothing was called.
//!
//! `cargo +nightly fuzz run tool_calls fuzz/corpus/tool_calls fuzz/seeds/tool_calls`
#![no_main]

use libfuzzer_sys::fuzz_target;
use realizar_structured::reasoning::{Piece, ReasoningParser, TAGS};
use realizar_server::tool_calls::{Delta, SYNTAXES, Syntax, Tool};

/// Text, and per call its name and arguments.
fn calls<'a>(syntax: &Syntax, tools: &[Tool], pieces: impl Iterator<Item = &'a str>) -> (String, Vec<(String, String)>) {
    let mut parser = syntax.parser(tools, 1);
    let mut deltas: Vec<Delta> = pieces.flat_map(|piece| parser.push(piece)).collect();
    deltas.extend(parser.finish());
    let (mut text, mut calls) = (String::new(), Vec::new());
    for delta in deltas {
        match delta {
            Delta::Text(piece) | Delta::Reasoning(piece) => text += &piece,
            Delta::Call { name, .. } => calls.push((name, String::new())),
            Delta::Arguments { index, fragment } => calls[index].1 += &fragment,
        }
    }
    (text, calls)
}

fn thoughts<'a>(open: bool, pieces: impl Iterator<Item = &'a str>) -> (String, String) {
    let mut parser = ReasoningParser::new(open.then_some(&TAGS[0]));
    let mut all: Vec<Piece> = pieces.flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let (mut reasoning, mut content) = (String::new(), String::new());
    for piece in all {
        match piece {
            Piece::Reasoning(text) => reasoning += &text,
            Piece::Content(text) => content += &text,
        }
    }
    (reasoning, content)
}

fuzz_target!(|data: &[u8]| {
    let Some((&size, data)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(data) else { return };
    let tools = serde_json::json!([{"type": "function", "function": {"name": "add"}}, {"type": "function", "function": {"name": "f"}}]);
    let tools: Vec<Tool> = serde_json::from_value(tools).expect("tools");
    // Pieces of `size` characters or a little more.
    let mut cuts: Vec<usize> = text.char_indices().map(|(at, _)| at).step_by(usize::from(size % 16) + 1).collect();
    cuts.push(text.len());
    let pieces = || cuts.windows(2).map(|ends| &text[ends[0]..ends[1]]);
    for syntax in SYNTAXES {
        let whole = calls(syntax, &tools, std::iter::once(text));
        assert_eq!(whole, calls(syntax, &tools, pieces()), "{}", syntax.name);
        // Headers of channels are no text.
        if whole.1.is_empty() && syntax.name != "harmony" {
            assert_eq!(whole.0, text, "{}", syntax.name);
        }
    }
    for open in [false, true] {
        assert_eq!(thoughts(open, std::iter::once(text)), thoughts(open, pieces()));
    }
});
