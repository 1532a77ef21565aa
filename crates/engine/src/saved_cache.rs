//! The prefix cache in a file, from one process to the next: written when an engine has ended, read before the next one starts.

mod file;

use crate::Result;
use crate::prefix_cache::ROOT;
use crate::runner::Runner;
use crate::state::{Restored, StateStore};
use file::{Reader, Record, Sizes, Writer};
use realizar_model::CacheUnit;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

const EXTENSION: &str = "prefix-cache";
/// Of the model's fingerprint in a file's name.
const NAME_DIGITS: usize = 16;
/// Bytes that are read or written at one time.
const BUFFER: usize = 1 << 20;

/// Where a prefix cache is kept from one process to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedCache {
    /// The folder, which exists. Each model has a file of its own.
    pub folder: PathBuf,
    /// What all files together may take, in bytes; the blocks used last are kept.
    pub max_bytes: u64,
    /// What tells the model from others, in hexadecimal digits; see `realizar_model::fingerprint`.
    pub model: String,
}

/// What was read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Moved {
    blocks: usize,
    snapshots: usize,
    bytes: u64,
}

impl SavedCache {
    fn path(&self) -> PathBuf {
        let name = &self.model[..self.model.len().min(NAME_DIGITS)];
        self.folder.join(format!("{name}.{EXTENSION}"))
    }

    /// Fills an empty store with what was saved, as far as there is room. What is wrong is logged, and the rest of the cache stays
    /// empty.
    pub(crate) fn load(&self, runner: &mut dyn Runner, store: &mut StateStore) {
        let (start, path) = (Instant::now(), self.path());
        let Some((description, sizes)) = self.describe(runner) else {
            tracing::warn!("the prefix cache is not saved: the model's parts are on several devices");
            return;
        };
        let mut moved = Moved::default();
        let read = File::open(&path)
            .and_then(|file| Reader::new(BufReader::with_capacity(BUFFER, file)))
            .and_then(|mut reader| match reader.description() == description {
                true => restore(&mut reader, &sizes, runner, store, &mut moved),
                false => Err(io::Error::new(
                    ErrorKind::InvalidData,
                    format!("it was written by {}, and this is {description}", reader.description()),
                )),
            });
        let (path, ms) = (path.display(), start.elapsed().as_millis() as u64);
        match read {
            Ok(()) => tracing::info!(%path, ?moved, ms, "prefix cache read"),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                tracing::info!(%path, "no prefix cache was saved")
            }
            Err(error) => {
                tracing::warn!(%path, %error, ?moved, "the saved prefix cache is not used, or in part only")
            }
        }
    }

    /// Writes what the store has, the blocks used last first, as far as the limit allows. The file takes the place of the one before when
    /// it is whole. What goes wrong is logged.
    pub(crate) fn save(&self, runner: &mut dyn Runner, store: &StateStore) {
        let Some((description, sizes)) = self.describe(runner) else { return };
        let (start, path) = (Instant::now(), self.path());
        let saved = self.write(&path, &description, &sizes, runner, store);
        let (path, ms) = (path.display(), start.elapsed().as_millis() as u64);
        match saved {
            Ok(moved) => tracing::info!(%path, ?moved, ms, "prefix cache written"),
            Err(error) => tracing::error!(%path, %error, "the prefix cache is not saved"),
        }
    }

    /// What the bytes of this runner's cache mean, and how many a block and a slot have. `None` if they cannot be read.
    fn describe(&self, runner: &mut dyn Runner) -> Option<(String, Sizes)> {
        let format = runner.cache_format()?;
        let info = runner.info();
        let version = env!("CARGO_PKG_VERSION");
        // Frequencies of rotary embedding may depend on the longest context.
        let description = format!(
            "realizar {version}, model {}, {}, {} in blocks of {} tokens and {} bytes, states of {} bytes, context of {}",
            self.model,
            format.device,
            format.dtype,
            info.block_size,
            format.block_bytes,
            format.slot_bytes,
            info.context_length
        );
        let (block_bytes, slot_bytes) = (format.block_bytes, format.slot_bytes);
        Some((description, Sizes { block_size: info.block_size, block_bytes, slot_bytes }))
    }

    fn write(
        &self,
        path: &Path,
        description: &str,
        sizes: &Sizes,
        runner: &mut dyn Runner,
        store: &StateStore,
    ) -> io::Result<Moved> {
        let unfinished = path.with_extension(format!("{EXTENSION}.unfinished"));
        let file = File::options().create(true).truncate(false).write(true).open(&unfinished)?;
        // Another process with the same folder may be at it.
        file.try_lock()?;
        file.set_len(0)?;
        let written = self.write_blocks(&file, description, sizes, runner, store).and_then(|moved| {
            file.sync_all()?;
            fs::rename(&unfinished, path)?;
            Ok(moved)
        });
        match written {
            Ok(moved) => {
                self.make_room(path)?;
                Ok(moved)
            }
            Err(error) => {
                drop(fs::remove_file(&unfinished));
                Err(error)
            }
        }
    }

    fn write_blocks(
        &self,
        file: &File,
        description: &str,
        sizes: &Sizes,
        runner: &mut dyn Runner,
        store: &StateStore,
    ) -> io::Result<Moved> {
        let mut writer = Writer::new(BufWriter::with_capacity(BUFFER, file), description)?;
        let mut moved = Moved { bytes: description.len() as u64 + 64, ..Moved::default() };
        for cached in store.cached() {
            let snapshot = cached.snapshot.map(|slot| (slot, vec![0; sizes.slot_bytes]));
            let mut record = Record {
                parent: cached.parent,
                tokens: cached.tokens,
                block: vec![0; sizes.block_bytes],
                snapshot: None,
            };
            let mut read = |unit, out: &mut [u8]| runner.read_cache(unit, out).map_err(io::Error::other);
            read(CacheUnit::Block(cached.block), &mut record.block)?;
            if let Some((slot, mut bytes)) = snapshot {
                read(CacheUnit::Slot(slot), &mut bytes)?;
                record.snapshot = Some(bytes);
            }
            let bytes = record.file_bytes() as u64;
            // Each block comes after the one before it in its text, so any first part of the list can be used.
            if moved.bytes + bytes > self.max_bytes {
                break;
            }
            writer.push(&record)?;
            moved.bytes += bytes;
            moved.blocks += 1;
            moved.snapshots += usize::from(record.snapshot.is_some());
        }
        writer.finish()?.flush()?;
        Ok(moved)
    }

    /// Removes the caches of other models, those written first before others, until all files together are within the limit.
    fn make_room(&self, own: &Path) -> io::Result<()> {
        let mut others = Vec::new();
        let mut total = fs::metadata(own)?.len();
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path != own && path.extension().is_some_and(|extension| extension == EXTENSION) {
                let file = fs::metadata(&path)?;
                total += file.len();
                others.push((file.modified()?, file.len(), path));
            }
        }
        others.sort();
        for (_, bytes, path) in others {
            if total <= self.max_bytes {
                break;
            }
            fs::remove_file(&path)?;
            total -= bytes;
        }
        Ok(())
    }
}

fn restore(
    reader: &mut Reader<impl io::Read>,
    sizes: &Sizes,
    runner: &mut dyn Runner,
    store: &mut StateStore,
    moved: &mut Moved,
) -> io::Result<()> {
    let vocab_size = runner.info().vocab_size;
    let (mut restored, mut record): (Vec<Restored>, _) = (Vec::new(), Record::default());
    let mut read = || -> io::Result<()> {
        while reader.next(sizes, &mut record)? {
            if record.tokens.iter().any(|&token| token as usize >= vocab_size) {
                return Err(io::Error::new(ErrorKind::InvalidData, "it has tokens that the model has not"));
            }
            let parent = record.parent.map_or(ROOT, |index| restored[index].node);
            let write = |block, slot: Option<u32>| -> Result<()> {
                runner.write_cache(CacheUnit::Block(block), &record.block)?;
                match (slot, &record.snapshot) {
                    (Some(slot), Some(bytes)) => runner.write_cache(CacheUnit::Slot(slot), bytes),
                    _ => Ok(()),
                }
            };
            let listed = store.restore(&record.tokens, parent, record.snapshot.is_some(), write);
            // Without room for this one there is none for those that were used before it.
            let Some(listed) = listed.map_err(io::Error::other)? else { return Ok(()) };
            restored.push(listed);
            moved.blocks += 1;
            moved.snapshots += usize::from(record.snapshot.is_some());
            moved.bytes += record.file_bytes() as u64;
        }
        Ok(())
    };
    let outcome = read();
    store.end_restore(&restored);
    outcome
}
