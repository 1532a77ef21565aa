//! Files as shared, reference-counted byte ranges: the one place in this crate with `unsafe`.

use crate::{Error, Result};
use bytes::Bytes;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

/// A file mapped read-only.
#[derive(Clone)]
pub(crate) struct Mapping(Arc<memmap2::Mmap>);

impl Mapping {
    /// All of it; every slice of the result keeps the mapping alive.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::from_owner(self.clone())
    }

    /// Gives the pages that were read back to the system. The bytes stay readable: what is touched again is mapped again.
    pub(crate) fn release(&self) {
        // SAFETY: the mapping is of a file and read-only, so its pages hold nothing that the file does not: dropped pages are
        // read from it again.
        #[cfg(unix)]
        #[allow(unsafe_code)]
        let released = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
        #[cfg(unix)]
        if let Err(error) = released {
            // Nothing but memory that the system takes when it needs it is at stake.
            tracing::debug!(%error, "mapped pages stay");
        }
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Maps a whole file.
///
/// Errors: `Io` where the file cannot be opened or mapped, `NotAModel` for a folder, an empty file or anything else that
/// is not a regular file (opening a pipe would wait for its writer).
pub(crate) fn map(path: &Path) -> Result<Mapping> {
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
    Ok(Mapping(Arc::new(mapping)))
}
