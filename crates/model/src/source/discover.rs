//! From a path to a model: which files belong together, and where they should be.

use super::{Format, Model, Part, TensorSource};
use crate::metadata::{Metadata, config};
use crate::{Error, Result, gguf, mmap, safetensors};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Opens the model at a path without reading its weights.
///
/// The path is a `.gguf` file (any part of a split model opens all of it), a `.safetensors` file or a
/// `.safetensors.index.json` with a `config.json` beside it, or a folder: one in the Hugging Face layout, or one that
/// holds exactly one GGUF model.
///
/// Errors: `Io`, `NotAModel`, and whatever is wrong inside a file: `Truncated`, `Malformed`, `BadTensor`, `Unsupported`.
pub fn open(path: &Path) -> Result<Box<dyn TensorSource>> {
    let kind = fs::metadata(path).map_err(|e| Error::io("open", path, e))?;
    let model = if kind.is_dir() {
        open_folder(path)?
    } else if has_suffix(path, ".safetensors.index.json") {
        open_index(path, path)?
    } else {
        open_file(path)?
    };
    model.in_common_layout()
}

fn open_file(path: &Path) -> Result<Model> {
    if has_suffix(path, ".gguf") {
        return open_gguf(path);
    }
    if has_suffix(path, ".safetensors") {
        return open_safetensors(path);
    }
    // Caches store files under names without an extension, so the content decides.
    let bytes = mmap::map(path)?.bytes();
    if bytes.starts_with(b"GGUF") {
        open_gguf(path)
    } else if safetensors::looks_like(&bytes) {
        open_safetensors(path)
    } else if [".bin", ".pt", ".pth"].iter().any(|suffix| has_suffix(path, suffix)) {
        Err(Error::not_a_model(path, PICKLE))
    } else {
        Err(Error::not_a_model(path, "it is neither a GGUF nor a safetensors file"))
    }
}

const PICKLE: &str =
    "PyTorch pickles run code when they are read; convert the model to safetensors or GGUF first";

fn open_folder(folder: &Path) -> Result<Model> {
    let names = file_names(folder)?;
    let with_suffix = |suffix: &str| -> Vec<&str> {
        names.iter().map(String::as_str).filter(|name| name.ends_with(suffix)).collect()
    };
    let safetensors = with_suffix(".safetensors");
    // Beside shards, `model.safetensors` would be the whole model; other names beside it are adapters and copies.
    if safetensors.contains(&"model.safetensors") {
        return open_shards(folder, folder, &["model.safetensors"], None);
    }
    match with_suffix(".safetensors.index.json")[..] {
        [] => {}
        [index] => return open_index(&folder.join(index), folder),
        ref several => return Err(ambiguous(folder, "safetensors indexes", several)),
    }
    if !safetensors.is_empty() {
        return open_shards(folder, folder, &safetensors, None);
    }
    let mut ggufs = BTreeMap::new();
    for name in with_suffix(".gguf") {
        let model = SplitName::parse(name).map_or(name, |split| split.prefix);
        ggufs.entry(model).or_insert(name);
    }
    match ggufs.into_values().collect::<Vec<_>>()[..] {
        [] if names.iter().any(|n| n.ends_with(".bin") || n.ends_with(".pth") || n.ends_with(".pt")) => {
            let reason =
                format!("it holds no .safetensors and no .gguf file, only PyTorch weights: {PICKLE}");
            Err(Error::not_a_model(folder, reason))
        }
        [] => {
            let reason = "the folder holds no model.safetensors, model.safetensors.index.json, other .safetensors or .gguf";
            Err(Error::not_a_model(folder, reason))
        }
        [first] => open_gguf(&folder.join(first)),
        ref several => Err(ambiguous(folder, "GGUF models", several)),
    }
}

fn ambiguous(folder: &Path, what: &str, names: &[&str]) -> Error {
    let shown = names.iter().take(8).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = if names.len() > 8 { ", …" } else { "" };
    Error::not_a_model(folder, format!("it holds {} {what} ({shown}{more}); name one of them", names.len()))
}

/// Names of the files in a folder, sorted, so that the outcome does not depend on the file system.
fn file_names(folder: &Path) -> Result<Vec<String>> {
    let read = |e| Error::io("read", folder, e);
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(read)? {
        // A name that is not UTF-8 is none of those looked for.
        if let Ok(name) = entry.map_err(read)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    Ok(names)
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(suffix))
}

fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The name of one part of a split GGUF: `<prefix>-<part>-of-<count>.gguf`, both numbers with five digits, from 1.
#[derive(Debug, PartialEq, Eq)]
struct SplitName<'a> {
    prefix: &'a str,
    /// Counted from 0, as in the metadata.
    part: usize,
    count: usize,
}

impl<'a> SplitName<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let number = |digits: &str| {
            let is_number = digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse::<usize>().ok()).flatten()
        };
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (prefix, part) = rest.rsplit_once('-')?;
        let (part, count) = (number(part)?, number(count)?);
        (1..=count).contains(&part).then(|| SplitName { prefix, part: part - 1, count })
    }

    fn file_name(prefix: &str, part: usize, count: usize) -> String {
        format!("{prefix}-{:05}-of-{count:05}.gguf", part + 1)
    }
}

fn read_gguf(path: &Path) -> Result<(Part, Metadata)> {
    let mapping = mmap::map(path)?;
    let (part, metadata) = gguf::read(path, mapping.bytes())?;
    Ok((Part { mapping: Some(mapping), ..part }, metadata))
}

fn open_gguf(path: &Path) -> Result<Model> {
    let (part, metadata) = read_gguf(path)?;
    match metadata.get_usize("split.count")? {
        Some(count) if count > 1 => open_split(part, metadata, count),
        _ => Model::new(path.to_owned(), Format::Gguf, None, metadata, vec![part]),
    }
}

/// Opens the other parts of a split model. The first part's metadata is the model's.
fn open_split(given: Part, given_metadata: Metadata, count: usize) -> Result<Model> {
    let path = given.path.clone();
    let given_index = split_number(&given_metadata, "split.no")?;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(SplitName { prefix, .. }) =
        SplitName::parse(name).filter(|split| split.part == given_index && split.count == count)
    else {
        let expected = SplitName::file_name("<name>", given_index, count);
        let reason = format!(
            "it is part {} of a model split into {count}, so its name must be {expected}",
            given_index + 1
        );
        return Err(Error::not_a_model(&path, reason));
    };

    let mut given = Some((given, given_metadata));
    let mut parts = Vec::new();
    let mut first_metadata = None;
    for index in 0..count {
        let (part, metadata) = match given.take_if(|_| index == given_index) {
            Some(given) => given,
            None => {
                let file = folder_of(&path).join(SplitName::file_name(prefix, index, count));
                let (part, metadata) = read_gguf(&file)?;
                for (key, expected) in [("split.no", index), ("split.count", count)] {
                    let found = split_number(&metadata, key)?;
                    if found != expected {
                        let reason = format!("metadata key {key:?} must be {expected} but is {found}");
                        return Err(Error::malformed(&file, reason));
                    }
                }
                (part, metadata)
            }
        };
        parts.push(part);
        first_metadata.get_or_insert(metadata);
    }
    let metadata = first_metadata.expect("count is at least 2");
    let first_path = metadata.path().to_owned();
    let n_tensors = parts.iter().map(|part| part.tensors.len()).sum::<usize>();
    match metadata.get_usize("split.tensors.count")? {
        Some(expected) if expected != n_tensors => {
            let reason = format!("it announces {expected} tensors in all parts, but they hold {n_tensors}");
            Err(Error::malformed(&first_path, reason))
        }
        _ => Model::new(first_path, Format::Gguf, None, metadata, parts),
    }
}

fn split_number(metadata: &Metadata, key: &str) -> Result<usize> {
    metadata.get_usize(key)?.ok_or_else(|| metadata.missing(key))
}

fn open_safetensors(path: &Path) -> Result<Model> {
    let folder = folder_of(path);
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // A shard opens the whole model, as a part of a split GGUF does.
    let index = folder.join("model.safetensors.index.json");
    if is_there(&index) && read_weight_map(&index)?.values().any(|shard| shard == name) {
        return open_index(&index, path);
    }
    open_shards(path, folder, &[name], None)
}

/// Which shard holds each tensor.
type WeightMap = HashMap<String, String>;

/// The largest index that is read, in bytes. The index of a model with 100 000 tensors has about ten million.
const MAX_INDEX_BYTES: u64 = 128 << 20;

fn read_weight_map(index: &Path) -> Result<WeightMap> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: WeightMap,
    }
    let parsed: Index = serde_json::from_slice(&read_text(index, MAX_INDEX_BYTES)?)
        .map_err(|e| Error::malformed(index, format!("not a safetensors index: {e}")))?;
    for (tensor, shard) in &parsed.weight_map {
        if !is_plain_file_name(shard) {
            let reason =
                format!("is said to be in {shard:?}, which is not the name of a file beside the index");
            return Err(Error::bad_tensor(index, tensor, reason));
        }
    }
    if parsed.weight_map.is_empty() {
        return Err(Error::malformed(index, "its weight_map is empty"));
    }
    Ok(parsed.weight_map)
}

/// Whether a name from inside a file can only mean a file in the same folder, on any system.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && !name.contains(['/', '\\', ':'])
        && !name.contains(char::is_control)
}

fn open_index(index: &Path, path: &Path) -> Result<Model> {
    let weight_map = read_weight_map(index)?;
    let shards: BTreeSet<&str> = weight_map.values().map(String::as_str).collect();
    let shards: Vec<&str> = shards.into_iter().collect();
    open_shards(path, folder_of(index), &shards, Some((index, &weight_map)))
}

/// Opens safetensors files of one folder as one model. Where an index says which file holds which tensor, only what it
/// names counts.
fn open_shards(
    path: &Path,
    folder: &Path,
    shards: &[&str],
    index: Option<(&Path, &WeightMap)>,
) -> Result<Model> {
    let config = folder.join("config.json");
    if !is_there(&config) {
        let reason = format!(
            "safetensors files need a config.json beside them, and {} is not there",
            config.display()
        );
        return Err(Error::not_a_model(path, reason));
    }
    let config_text = read_text(&config, config::MAX_BYTES)?;
    let generation_config = folder.join("generation_config.json");
    let generation_config_text = match is_there(&generation_config) {
        true => Some(read_text(&generation_config, config::MAX_BYTES)?),
        false => None,
    };
    let generation_config = generation_config_text.as_deref().map(|text| (generation_config.as_path(), text));
    let metadata = Metadata::from_config_json(&config, &config_text, generation_config)?;

    let mut parts = Vec::new();
    for &shard in shards {
        let file = folder.join(shard);
        let mapping = mmap::map(&file)?;
        let mut part = Part { mapping: Some(mapping.clone()), ..safetensors::read(&file, mapping.bytes())? };
        if let Some((index, weight_map)) = index {
            let promised = weight_map.iter().filter(|(_, holder)| *holder == shard).map(|(tensor, _)| tensor);
            let held: HashSet<&str> = part.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
            // The first by name, so that the message is the same each time.
            if let Some(tensor) = promised.filter(|tensor| !held.contains(tensor.as_str())).min() {
                let reason = format!("is not in {}, where the index says it is", file.display());
                return Err(Error::bad_tensor(index, tensor, reason));
            }
            part.tensors.retain(|tensor| weight_map.get(&tensor.name).is_some_and(|holder| holder == shard));
        }
        parts.push(part);
    }
    // Matrices that sentence-transformers keeps in folders of their own.
    for module in ["2_Dense", "3_Dense"] {
        let file = folder.join(module).join("model.safetensors");
        if is_there(&file) {
            let mapping = mmap::map(&file)?;
            let mut part =
                Part { mapping: Some(mapping.clone()), ..safetensors::read(&file, mapping.bytes())? };
            part.tensors.iter_mut().for_each(|t| t.name = format!("{module}.{}", t.name));
            parts.push(part);
        }
    }
    Model::new(path.to_owned(), Format::Safetensors, Some(folder.to_owned()), metadata, parts)
}

/// Whether there is such a file. One that cannot be looked at, as on a disk that fails, counts as there, so that reading it says what is
/// wrong: without it the model would be another one.
pub(super) fn is_there(path: &Path) -> bool {
    match fs::metadata(path) {
        Ok(kind) => kind.is_file(),
        Err(error) => {
            use ErrorKind::{InvalidFilename, NotADirectory, NotFound};
            !matches!(error.kind(), NotFound | NotADirectory | InvalidFilename)
        }
    }
}

/// Reads a small file whole. Errors: `Io`; `Malformed` beyond `max_bytes`.
pub fn read_text(path: &Path, max_bytes: u64) -> Result<Vec<u8>> {
    let file = fs::File::open(path).map_err(|e| Error::io("open", path, e))?;
    let mut text = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut text).map_err(|e| Error::io("read", path, e))?;
    if text.len() as u64 > max_bytes {
        return Err(Error::malformed(path, format!("it is larger than {max_bytes} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safetensors::MAX_HEADER_BYTES;

    #[test]
    fn the_security_page_states_the_limits() {
        let (header, index) = (MAX_HEADER_BYTES / 1_000_000, MAX_INDEX_BYTES >> 20);
        assert_eq!((header * 1_000_000, index << 20), (MAX_HEADER_BYTES, MAX_INDEX_BYTES), "the page rounds");
        let row = format!("| a safetensors header; an index of shards | {header} MB; {index} MiB |");
        assert!(include_str!("../../../../SECURITY.md").contains(&row), "{row}");
    }

    #[test]
    fn split_names_are_recognized_only_in_the_exact_form() {
        let expected = SplitName { prefix: "a-b", part: 1, count: 12 };
        assert_eq!(SplitName::parse("a-b-00002-of-00012.gguf"), Some(expected));
        assert_eq!(SplitName::file_name("a-b", 1, 12), "a-b-00002-of-00012.gguf");
        for other in [
            "a.gguf",
            "a-2-of-12.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-+0001-of-00002.gguf",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn names_that_leave_the_folder_are_not_plain() {
        assert!(is_plain_file_name("model-00001-of-00002.safetensors"));
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\\b", "C:x", "a\0"] {
            assert!(!is_plain_file_name(name), "{name:?}");
        }
    }
}
