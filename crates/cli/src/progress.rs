//! Progress bars on stderr; silent where stderr is not a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` weights.
pub(crate) fn weights_bar(what: &str, total: usize) -> ProgressBar {
    let template = "{msg} [{bar:40}] {percent}% {per_sec} weights, {eta} left";
    bar(what, total as u64, template)
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

/// A bar over the bytes of a file whose size is not known yet.
pub(crate) fn download_bar(name: &str) -> ProgressBar {
    bar(name, 0, "{msg} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}, {eta} left")
}
