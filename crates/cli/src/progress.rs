//! Progress bars on stderr; silent where stderr is not a terminal.

use indicatif::{HumanCount, ProgressBar, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;

/// Between two pictures of a spinner.
const SPINNER_TICK: Duration = Duration::from_millis(100);

/// A bar over `total` weights.
pub(crate) fn weights_bar(what: &str, total: usize) -> ProgressBar {
    let template = "{msg} [{bar:40}] {percent}% {weights_per_sec} weights/s, {eta} left";
    let bar = bar(what, total as u64, template);
    let style = bar.style().with_key("weights_per_sec", |state: &ProgressState, out: &mut dyn Write| {
        // A bar that cannot be written is not worth an error.
        let _ = write!(out, "{}", HumanCount(state.per_sec() as u64));
    });
    bar.with_style(style)
}

/// A bar over `total` chunks of a text.
pub(crate) fn chunks_bar(what: &str, total: usize) -> ProgressBar {
    bar(what, total as u64, "{msg} [{bar:40}] {pos}/{len}, {eta} left")
}

/// A bar over `total` requests.
pub(crate) fn requests_bar(total: usize) -> ProgressBar {
    bar("requests", total as u64, "{msg} [{bar:40}] {pos}/{len} after {elapsed}")
}

fn bar(what: &str, total: u64, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template).expect("a well-formed template").progress_chars("=> ");
    ProgressBar::new(total).with_style(style).with_message(what.to_owned())
}

/// A sign that something goes on whose end nobody knows.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("a well-formed template");
    let spinner = ProgressBar::new_spinner().with_style(style).with_message(what.to_owned());
    spinner.enable_steady_tick(SPINNER_TICK);
    spinner
}

/// A bar over `total` measurements.
pub(crate) fn measurements_bar(total: usize) -> ProgressBar {
    bar("", total as u64, "[{bar:40}] {pos}/{len} {msg}")
}

/// A bar over the bytes of a file whose size is not known yet.
pub(crate) fn download_bar(name: &str) -> ProgressBar {
    bar(name, 0, "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
}
