//! What a test wants and a machine may lack: public test data beside the project, or a compiler. Tests of all crates include this file.
//!
//! A test without it says so and passes. With `REALIZAR_REQUIRE_DATA=1` it fails, so that a check which has the data cannot lose it unseen.

use std::io::Write;
use std::path::{Path, PathBuf};

/// A file or folder of the public test data, which lies in `../shared/data` or in `REALIZAR_TEST_DATA`; `None` where it is absent.
#[allow(dead_code)]
#[expect(
    clippy::disallowed_methods,
    reason = "tests have no arguments, and data lie wherever their user put them"
)]
pub(crate) fn test_data(name: &str) -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let path = std::env::var_os("REALIZAR_TEST_DATA").map_or_else(beside, PathBuf::from).join(name);
    if path.exists() {
        return Some(path);
    }
    missing(&format!("{} is absent", path.display()));
    None
}

/// Says that the current test does not run, and why.
///
/// # Panics
/// With `REALIZAR_REQUIRE_DATA=1`.
#[expect(clippy::disallowed_methods, reason = "tests have no arguments")]
pub(crate) fn missing(why: &str) {
    let required = std::env::var_os("REALIZAR_REQUIRE_DATA").is_some_and(|value| value == "1");
    assert!(!required, "{why}, and REALIZAR_REQUIRE_DATA=1 demands it");
    let thread = std::thread::current();
    // Printed by macros it would be seen of failed tests only.
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", thread.name().unwrap_or("a test"));
}
