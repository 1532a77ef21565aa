//! Any text as a JSON schema, a regular expression or a grammar in Lark or GBNF, by its first letter: an error, or masks that lead on or to an
//! end, in bounded time and memory.
//!
//! `cargo +nightly fuzz run formats fuzz/corpus/formats fuzz/seeds/formats -- -malloc_limit_mb=512 -timeout=70`
#![no_main]

mod follow_format;

use follow_format::Follower;
use libfuzzer_sys::fuzz_target;
use std::path::Path;
use std::sync::OnceLock;

fuzz_target!(|data: &[u8]| {
    static FOLLOWER: OnceLock<Follower> = OnceLock::new();
    let Ok(text) = std::str::from_utf8(data) else { return };
    let model = || Follower::new(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/demo.gguf"));
    FOLLOWER.get_or_init(model).follow(text);
});
