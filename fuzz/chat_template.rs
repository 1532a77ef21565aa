//! Any text as a chat template: an error, or a template that renders or refuses a conversation, in bounded time and
//! memory. The seeds named `hostile_*` are short forms of the corpus in `crates/model/tests/hostile_templates.rs`.
//!
//! `cargo +nightly fuzz run chat_template fuzz/corpus/chat_template fuzz/seeds/chat_template -- -malloc_limit_mb=256
//! -dict=fuzz/chat_template.dict -timeout=60`
#![no_main]

use libfuzzer_sys::fuzz_target;
use realizar_model::chat_template::{ChatTemplate, Timestamp};

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let conversation = serde_json::json!({
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hé {{ 1 }} \"<b>\"\n"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}
            ]},
            {"role": "tool", "content": "3.5"},
        ],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}],
    });
    let now = Timestamp::utc(2024, 2, 29, 12, 0, 0);
    for add_generation_prompt in [true, false] {
        let _ = template.render(&conversation, add_generation_prompt, now);
    }
});
