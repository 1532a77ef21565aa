//! What a test wants and a machine may lack: public test data beside the project, or a compiler. Tests of all crates include this file.
//!
//! A test without it says so and passes. Where it is demanded the test fails, so that a check which has the data cannot lose it unseen: with
//! `CI=true`, as services set it that run checks, or `REALIZAR_REQUIRE_DATA=1`. `REALIZAR_REQUIRE_DATA=0` says that it is known to be absent.

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
/// Where it is demanded.
pub(crate) fn missing(why: &str) {
    if let Some(what) = demanded_by() {
        panic!("{why}, and {what} demands it");
    }
    let thread = std::thread::current();
    // Printed by macros it would be seen of failed tests only.
    let _ = writeln!(std::io::stderr(), "SKIPPED {}: {why}", thread.name().unwrap_or("a test"));
}

/// The variable that demands that nothing is missing, if one does.
#[expect(clippy::disallowed_methods, reason = "tests have no arguments")]
fn demanded_by() -> Option<&'static str> {
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|v| v == value);
    if is("REALIZAR_REQUIRE_DATA", "1") {
        return Some("REALIZAR_REQUIRE_DATA=1");
    }
    (is("CI", "true") && !is("REALIZAR_REQUIRE_DATA", "0")).then_some("CI=true")
}
