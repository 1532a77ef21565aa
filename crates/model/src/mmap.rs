//! Files as shared, reference-counted byte ranges: the one place in this crate with `unsafe`.

use crate::{Error, Result};
use bytes::Bytes;
use std::fs::{self, File};
use std::path::Path;

/// Maps a whole file read-only. Every slice of the result keeps the mapping alive.
///
/// Errors: `Io` where the file cannot be opened or mapped, `NotAModel` for a folder, an empty file or anything else that
/// is not a regular file (opening a pipe would wait for its writer).
pub(crate) fn map(path: &Path) -> Result<Bytes> {
    let kind = fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
    if kind.is_dir() {
        return Err(Error::not_a_model(path, "it is a folder where a file was expected"));
    }
    if !kind.is_file() {
        return Err(Error::not_a_model(path, "it is not a regular file"));
    }
    let file = File::open(path).map_err(|e| Error::io("open", path, e))?;
    if file.metadata().map_err(|e| Error::io("read", path, e))?.len() == 0 {
        return Err(Error::not_a_model(path, "the file is empty"));
    }
    // SAFETY: the mapping is read-only and lives as long as the `Bytes` that own it, so nothing in this process can
    // change or outlive it. What no program can rule out is another one writing to the file meanwhile. Bytes that
    // change under us would be read as other weights; they are only ever copied or read as plain numbers, never kept
    // as validated text or lengths, since the parsers copy whatever they check. A file that is cut short kills this
    // process with SIGBUS when a page beyond its new end is touched. Model files are written once and replaced by
    // renaming, and every engine that starts without first reading gigabytes accepts this.
    #[allow(unsafe_code)]
    let mapping = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io("map", path, e))?;
    Ok(Bytes::from_owner(mapping))
}
