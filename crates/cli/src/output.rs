//! Writing results to stdout, and files that are whole or absent.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Writes text to stdout at once. A reader that has gone away ends the program quietly; see [`is_broken_pipe`].
pub(crate) fn print(text: impl AsRef<str>) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_ref().as_bytes()).and_then(|()| out.flush()).context("could not write to stdout")
}

/// Writes text to stdout in a terminal's dimmed colour.
pub(crate) fn print_dimmed(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    write!(out, "\x1b[2m{text}\x1b[0m").and_then(|()| out.flush()).context("could not write to stdout")
}

/// Writes one JSON object and a line end to stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(serde_json::to_string(value)? + "\n")
}

/// Whether an error says that nobody reads our output any more, as in `realizar … | head -1`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Makes a file by `write`. The file appears under its name only when it is whole; until then, and after a failure, whatever
/// was there before stays.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(BufWriter<File>) -> Result<BufWriter<File>>,
) -> Result<()> {
    let could_not = || format!("could not write {}", path.display());
    let name = path.file_name().with_context(|| format!("{} is not a file name", path.display()))?;
    if path.is_dir() {
        anyhow::bail!("could not write {}: it is a folder", path.display());
    }
    // Beside the target, so that the rename stays on one file system.
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.partial", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let file = File::create(&temporary).with_context(could_not)?;
    let written = write(BufWriter::with_capacity(1 << 20, file))
        .and_then(|out| out.into_inner().map_err(|e| e.into_error()).with_context(could_not))
        .and_then(|_| std::fs::rename(&temporary, path).with_context(could_not));
    if written.is_err() {
        // The first error is the one to report.
        drop(std::fs::remove_file(&temporary));
    }
    written
}
