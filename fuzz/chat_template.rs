//! Any text as a chat template: an error, or a rendering that ends and stays small.
//!
//! `cargo +nightly fuzz run chat_template fuzz/corpus/chat_template fuzz/seeds/chat_template`
#![no_main]

use libfuzzer_sys::fuzz_target;
use realizar_model::chat_template::{ChatTemplate, Timestamp};
use serde_json::json;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let conversation = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls": []}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5, true]}}}],
    });
    let _ = template.render(&conversation, true, Timestamp::utc(2026, 1, 15, 12, 0, 0));
});
