//! Writing results to stdout, and files that are whole or absent.
//!
//! Much of what is printed was written by others: a model's answer, its metadata, its template's messages. A terminal obeys
//! control sequences in it, which can rewrite what was shown before, change the clipboard or answer as if typed. So control
//! characters other than line ends and tabs are shown as escapes wherever text may reach a terminal: on stdout if it is
//! one, on stderr always. Into a file or a pipe, results pass unchanged.

use anyhow::{Context, Result};
use std::borrow::Cow;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writes text to stdout at once. A reader that has gone away ends the program quietly; see [`is_broken_pipe`].
pub(crate) fn print(text: impl AsRef<str>) -> Result<()> {
    let mut out = io::stdout().lock();
    let text = if out.is_terminal() { visible(text.as_ref()) } else { Cow::Borrowed(text.as_ref()) };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("could not write to stdout")
}

/// Writes text for a person to stderr.
pub(crate) fn note(text: &str) {
    // Nothing is left to do when stderr is gone.
    drop(io::stderr().write_all(visible(text).as_bytes()));
}

/// Text with its control characters (C0, DEL, C1) as `\x1b`, except line ends and tabs.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    let is_obeyed = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_obeyed(c) {
            true => shown += &format!("\\x{:02x}", u32::from(c)),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// Writes what [`Live`](crate::live::Live) has made for the terminal at stdout.
pub(crate) fn print_drawn(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("could not write to stdout")
}

/// Whether stdout is a terminal that moves its cursor and shows looks, and the person wants that.
pub(crate) fn can_draw() -> bool {
    let is_unwanted = crate::environment("NO_COLOR").is_some();
    io::stdout().is_terminal() && !is_unwanted && crate::environment("TERM").is_none_or(|term| term != "dumb")
}

/// Writes one JSON object and a line end to stdout.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<()> {
    print(serde_json::to_string(value)? + "\n")
}

/// Tokens per second after the first.
pub(crate) fn decode_tok_s(n_tokens: usize, decode: Duration) -> f64 {
    match (n_tokens, decode) {
        (2.., t) if t > Duration::ZERO => (n_tokens - 1) as f64 / t.as_secs_f64(),
        _ => 0.0,
    }
}

/// Whether an error says that nobody reads our output any more, as in `realizar … | head -1`.
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().filter_map(|e| e.downcast_ref::<io::Error>()).any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// Makes a file by `write`. The file appears under its name only when it is whole and on the disk; until then, and after a
/// failure, whatever was there before stays.
///
/// A symbolic link stays, and what it points to is written. A file that is replaced keeps its permissions. What is not a
/// file (a device, a pipe) is written to and stays what it is.
pub(crate) fn write_file(
    path: &Path,
    write: impl FnOnce(BufWriter<File>) -> Result<BufWriter<File>>,
) -> Result<()> {
    let could_not = || format!("could not write {}", path.display());
    let target = follow_links(path).with_context(could_not)?;
    let name = target.file_name().with_context(|| format!("{} is not a file name", path.display()))?;
    let before = match fs::metadata(&target) {
        Ok(metadata) => Some(metadata),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error).with_context(could_not),
    };
    if before.as_ref().is_some_and(fs::Metadata::is_dir) {
        anyhow::bail!("could not write {}: it is a folder", path.display());
    }
    let finish = |out: BufWriter<File>| out.into_inner().map_err(|e| e.into_error()).with_context(could_not);
    if before.as_ref().is_some_and(|before| !before.is_file()) {
        let out = File::options().write(true).open(&target).with_context(could_not)?;
        return finish(write(BufWriter::with_capacity(1 << 20, out))?).map(drop);
    }
    remove_abandoned(&target);
    // Beside the target, so that the rename stays on one file system.
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}{PARTIAL}", std::process::id()));
    let temporary = target.with_file_name(temporary);
    let file = create_locked(&temporary).with_context(could_not)?;
    let written = write(BufWriter::with_capacity(1 << 20, file)).and_then(finish).and_then(|file| {
        let put = || {
            if let Some(before) = &before {
                file.set_permissions(before.permissions())?;
            }
            // Otherwise a crash of the system could leave an empty file under the name.
            file.sync_all()?;
            fs::rename(&temporary, &target)?;
            sync_folder(&target)
        };
        put().with_context(could_not)
    });
    if written.is_err() {
        // The first error is the one to report.
        drop(fs::remove_file(&temporary));
    }
    written
}

/// End of the name of a file that is being written, after the name of the target and the number of the process.
const PARTIAL: &str = ".partial";

/// What a path stands for when all symbolic links are followed, whether or not there is such a file.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    // As many as Linux follows.
    for _ in 0..40 {
        match fs::symlink_metadata(&path) {
            Ok(metadata) if metadata.is_symlink() => {
                let to = fs::read_link(&path)?;
                path = path.parent().map_or(to.clone(), |folder| folder.join(&to));
            }
            _ => return Ok(path),
        }
    }
    Err(io::Error::other("too many symbolic links"))
}

/// Creates a file and locks it for as long as it is open, which tells [`remove_abandoned`] that somebody writes it.
fn create_locked(path: &Path) -> io::Result<File> {
    loop {
        let file = File::create_new(path)?;
        match file.lock() {
            // Between both steps another process may have taken the file for an abandoned one.
            Ok(()) if !path.exists() => {}
            Ok(()) => return Ok(file),
            // A file system without locks: others cannot lock the file either, and leave it alone.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(file),
            Err(error) => return Err(error),
        }
    }
}

/// Removes what processes that were killed while they wrote `target` have left beside it.
fn remove_abandoned(target: &Path) {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (Some(name), Ok(entries)) = (target.file_name(), fs::read_dir(folder)) else { return };
    let name = name.to_string_lossy();
    for entry in entries.flatten() {
        let found = entry.file_name();
        let found = found.to_string_lossy();
        let process = found
            .strip_prefix(&*name)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(|rest| rest.strip_suffix(PARTIAL));
        if process.is_none_or(|process| process.parse::<u32>().is_err()) {
            continue;
        }
        let Ok(file) = File::options().write(true).open(entry.path()) else { continue };
        match file.try_lock() {
            Ok(()) => match fs::remove_file(entry.path()) {
                Ok(()) => {
                    tracing::info!(file = %entry.path().display(), "removed what an earlier run left unfinished")
                }
                Err(error) => {
                    tracing::warn!(file = %entry.path().display(), %error, "could not remove an unfinished file")
                }
            },
            // It is being written.
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Makes a rename last: the folder is what it changed.
#[cfg(unix)]
fn sync_folder(file: &Path) -> io::Result<()> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match File::open(folder)?.sync_all() {
        // Some file systems cannot, and some do it by themselves.
        Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Ok(())
        }
        done => done,
    }
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new folder for one test.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("realizar-output-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn put(path: &Path, text: &str) -> Result<()> {
        write_file(path, |mut out| {
            out.write_all(text.as_bytes())?;
            Ok(out)
        })
    }

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn control_characters_are_shown_and_not_obeyed() {
        assert_eq!(visible("a\n\tb é 狐 🦊"), "a\n\tb é 狐 🦊");
        assert_eq!(
            visible("\u{1b}]52;c;eA==\u{7}\u{1b}[2J\rb\u{8}\u{7f}\u{9b}31m\u{0}"),
            "\\x1b]52;c;eA==\\x07\\x1b[2J\\x0db\\x08\\x7f\\x9b31m\\x00"
        );
    }

    #[test]
    fn a_failure_leaves_what_was_there() {
        let folder = folder("failure");
        let path = folder.join("m.gguf");
        put(&path, "old").unwrap();
        let failed = write_file(&path, |mut out| {
            out.write_all(b"new")?;
            anyhow::bail!("no more")
        });
        assert_eq!(failed.unwrap_err().to_string(), "no more");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert_eq!(names(&folder), ["m.gguf"]);
        put(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(put(&folder, "x").unwrap_err().to_string().contains("it is a folder"));
    }

    #[test]
    #[cfg(unix)]
    fn links_and_permissions_stay() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = folder("links");
        fs::create_dir(folder.join("deep")).unwrap();
        let target = folder.join("deep/m.gguf");
        put(&target, "old").unwrap();
        fs::set_permissions(&target, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("deep/m.gguf", folder.join("one")).unwrap();
        symlink("one", folder.join("two")).unwrap();
        put(&folder.join("two"), "new").unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(fs::symlink_metadata(folder.join("two")).unwrap().is_symlink());
        // To a file that is not there yet.
        symlink("deep/later", folder.join("three")).unwrap();
        put(&folder.join("three"), "x").unwrap();
        assert_eq!(fs::read_to_string(folder.join("deep/later")).unwrap(), "x");
        symlink("circle", folder.join("circle")).unwrap();
        assert!(put(&folder.join("circle"), "x").is_err());
        assert_eq!(names(&folder.join("deep")), ["later", "m.gguf"]);
    }

    #[test]
    #[cfg(unix)]
    fn devices_are_written_to_and_not_replaced() {
        use std::os::unix::fs::{FileTypeExt, symlink};
        put(Path::new("/dev/null"), "x").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
        let folder = folder("devices");
        symlink("/dev/null", folder.join("null")).unwrap();
        put(&folder.join("null"), "x").unwrap();
        assert_eq!(names(&folder), ["null"]);
        let full = put(Path::new("/dev/full"), "x").unwrap_err();
        assert!(full.to_string().contains("/dev/full"), "{full}");
    }

    #[test]
    fn what_dead_processes_left_is_removed() {
        let folder = folder("abandoned");
        let path = folder.join("m.gguf");
        for name in ["m.gguf.12345.partial", "m.gguf.x.partial", "other.1.partial"] {
            fs::write(folder.join(name), "x").unwrap();
        }
        // Somebody still writes this one.
        let alive = create_locked(&folder.join("m.gguf.12346.partial")).unwrap();
        put(&path, "new").unwrap();
        assert_eq!(names(&folder), ["m.gguf", "m.gguf.12346.partial", "m.gguf.x.partial", "other.1.partial"]);
        drop(alive);
        put(&path, "newer").unwrap();
        assert_eq!(names(&folder), ["m.gguf", "m.gguf.x.partial", "other.1.partial"]);
    }
}
