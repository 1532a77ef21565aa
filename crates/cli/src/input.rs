//! Reading what a command works on.

use anyhow::{Context, Result};
use std::io::{IsTerminal, Read};
use std::path::Path;

/// The text as given, or all of stdin for `-` or nothing.
pub(crate) fn text_or_stdin(text: Option<&str>) -> Result<String> {
    match text {
        Some(text) if text != "-" => Ok(text.to_owned()),
        _ => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).context("could not read stdin")?;
            String::from_utf8(bytes).ok().context("stdin is not UTF-8 text")
        }
    }
}

/// The text as given, and behind it, after an empty line, what stdin has where that is no terminal. `-` and nothing mean stdin alone.
pub(crate) fn text_and_stdin(text: Option<String>) -> Result<String> {
    let Some(mut text) = text.filter(|text| text != "-") else { return text_or_stdin(None) };
    if !std::io::stdin().is_terminal() {
        let more = text_or_stdin(None)?;
        if !more.is_empty() {
            text += "\n\n";
            text += &more;
        }
    }
    Ok(text)
}

/// The text of a file, or all of stdin for `-` or nothing.
pub(crate) fn file_or_stdin(path: Option<&Path>) -> Result<String> {
    match path {
        Some(path) if path != Path::new("-") => {
            let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
            String::from_utf8(bytes).ok().with_context(|| format!("{} is not UTF-8 text", path.display()))
        }
        _ => text_or_stdin(None),
    }
}
