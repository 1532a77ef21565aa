//! A model on disk as one uniform, zero-copy view: tensors by name, metadata by key, files beside it.
//!
//! [`open`] looks at a path and hands back a [`TensorSource`], whatever the format. The formats' own modules only turn
//! one file into a `Part`; how parts become a model (split GGUF, sharded safetensors, a folder) is decided here.

mod discover;
mod drafts;
mod fp8;
mod gpt_oss;
mod joined;
pub(crate) mod part;

use crate::metadata::Metadata;
use crate::mmap::Mapping;
use crate::{Error, Result, gguf, safetensors};
use bytes::Bytes;
use realizar_compute::DType;
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use discover::{open, read_text};
use fp8::Fp8;
use gpt_oss::GptOss;
use joined::Joined;
use part::{Element, Entry, Part};

/// File format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// GGUF, one file or split.
    Gguf,
    /// safetensors with a `config.json`, as in a Hugging Face folder.
    Safetensors,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Gguf => "GGUF",
            Format::Safetensors => "safetensors",
        })
    }
}

/// One weight in a file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Name as the file spells it.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Row-major shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// Index of the file that holds it, in the order of `Model::parts`.
    part: usize,
    /// Where its data lies in that file.
    range: Range<usize>,
}

impl TensorInfo {
    /// A weight that stands in no file. `None` where the shape is not a whole number of blocks.
    pub(crate) fn new(name: String, dtype: DType, shape: Vec<usize>) -> Option<Self> {
        let n_elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        let row_len = *shape.last()?;
        let n_bytes = dtype.bytes_for(n_elements).filter(|_| row_len.is_multiple_of(dtype.block_len()))?;
        Some(TensorInfo { name, dtype, shape, part: 0, range: 0..n_bytes })
    }

    /// Size of its data, in bytes.
    pub fn n_bytes(&self) -> usize {
        self.range.len()
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The data of one weight; it keeps the file mapped that it lies in.
#[derive(Clone, Debug)]
pub struct TensorView {
    /// Element type.
    pub dtype: DType,
    /// Row-major shape, outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements, little-endian, exactly as many bytes as type and shape need. The start has no alignment promise:
    /// safetensors packs tensors without padding.
    pub bytes: Bytes,
}

/// A model, whatever its format.
pub trait TensorSource: Send + Sync {
    /// The file or folder that was opened (of a split GGUF: its first part).
    fn path(&self) -> &Path;

    /// The format of its files.
    fn format(&self) -> Format;

    /// All weights, in the order of the file. Tensors whose element type no weight can have are left out.
    fn tensors(&self) -> &[TensorInfo];

    /// The weight of this name.
    fn find(&self, name: &str) -> Option<&TensorInfo>;

    /// The data of the weight of this name.
    ///
    /// Errors: `MissingTensor`; `UnsupportedType` for a tensor that is in the file but cannot be a weight.
    fn tensor(&self, name: &str) -> Result<TensorView>;

    /// The model's description: GGUF's key-value section, or `config.json`.
    fn metadata(&self) -> &Metadata;

    /// A file beside the weights, such as `tokenizer.json`, if it is there or nobody can tell. A GGUF file carries everything itself,
    /// so for GGUF this is always `None`.
    fn sibling(&self, file_name: &str) -> Option<PathBuf>;

    /// Gives memory that mirrors the files back to the system, once the weights were copied elsewhere. What was handed out stays
    /// readable.
    fn release(&self) {}
}

/// Opens a GGUF file that is already in memory, such as one embedded in the program. `name` is for error messages.
///
/// Errors: as [`open`]; a part of a split model is refused, since its other parts cannot be found.
pub fn open_gguf_bytes(name: &str, bytes: Bytes) -> Result<Box<dyn TensorSource>> {
    let path = PathBuf::from(name);
    let (part, metadata) = gguf::read(&path, bytes)?;
    if let Some(count) = metadata.get_usize("split.count")?.filter(|&count| count > 1) {
        return Err(Error::unsupported(
            &path,
            format!("it is one of {count} parts, and the others are not in memory"),
        ));
    }
    Model::new(path, Format::Gguf, None, metadata, vec![part])?.in_common_layout()
}

/// Opens a safetensors file that is already in memory, with the text of its `config.json`. `name` is for error messages.
///
/// Errors: as [`open`].
pub fn open_safetensors_bytes(name: &str, config_json: &[u8], bytes: Bytes) -> Result<Box<dyn TensorSource>> {
    let path = PathBuf::from(name);
    let metadata = Metadata::from_config_json(&path.join("config.json"), config_json, None)?;
    let part = safetensors::read(&path, bytes)?;
    Model::new(path, Format::Safetensors, None, metadata, vec![part])?.in_common_layout()
}

/// The files of one model.
struct Model {
    path: PathBuf,
    format: Format,
    folder: Option<PathBuf>,
    metadata: Metadata,
    parts: Vec<(PathBuf, Bytes)>,
    mappings: Vec<Mapping>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// The tensors that cannot be weights.
    others: HashMap<String, Other>,
    /// The weights that are read from codes and scales.
    scaled: HashMap<String, Fp8>,
}

/// A tensor of a type that no weight can have.
struct Other {
    part: usize,
    element: String,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Model {
    /// Joins the tensors of all parts. Errors: `BadTensor` for a name that two parts have.
    fn new(
        path: PathBuf,
        format: Format,
        folder: Option<PathBuf>,
        metadata: Metadata,
        parts: Vec<Part>,
    ) -> Result<Self> {
        let mut model = Model {
            path,
            format,
            folder,
            metadata,
            parts: Vec::new(),
            mappings: Vec::new(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
            others: HashMap::new(),
            scaled: HashMap::new(),
        };
        let n_layers = drafts::n_layers(&model)?;
        for (part, Part { path, bytes, tensors, mapping }) in parts.into_iter().enumerate() {
            model.parts.push((path.clone(), bytes));
            model.mappings.extend(mapping);
            for Entry { name, element, shape, range } in tensors {
                let name = n_layers.and_then(|n| drafts::in_layers(&name, n)).unwrap_or(name);
                let earlier = match model.by_name.get(&name) {
                    Some(&index) => Some(model.tensors[index].part),
                    None => model.others.get(&name).map(|other| other.part),
                };
                if let Some(earlier) = earlier {
                    let reason = format!("is also in {}", model.parts[earlier].0.display());
                    return Err(Error::bad_tensor(&path, &name, reason));
                }
                match element {
                    Element::Weight(dtype) => {
                        model.by_name.insert(name.clone(), model.tensors.len());
                        model.tensors.push(TensorInfo { name, dtype, shape, part, range });
                    }
                    Element::Other(element) => {
                        model.others.insert(name, Other { part, element, shape, range });
                    }
                }
            }
        }
        Ok(model)
    }

    /// The model as all other code expects it. Errors: of tensors that cannot be rearranged so.
    fn in_common_layout(mut self) -> Result<Box<dyn TensorSource>> {
        fp8::attach(&mut self)?;
        if self.format == Format::Safetensors && GptOss::describes(&self.metadata) {
            return Ok(Box::new(GptOss::new(self)?));
        }
        if Joined::describes(&self) {
            return Ok(Box::new(Joined::new(self)?));
        }
        self.others.keys().for_each(|name| self.warn_of_other(name));
        Ok(Box::new(self))
    }

    /// Reports a tensor that is left out.
    fn warn_of_other(&self, name: &str) {
        if let Some(Other { part, element, .. }) = self.others.get(name) {
            let file = self.parts[*part].0.display();
            tracing::warn!(%file, tensor = name, element, "left out: not a type of weights");
        }
    }

    /// Data and shape of a tensor of bytes that mean something together with others.
    fn bytes_of(&self, name: &str) -> Option<(&[u8], &[usize])> {
        let other = self.others.get(name).filter(|other| other.element == "U8")?;
        Some((&self.parts[other.part].1[other.range.clone()], &other.shape))
    }
}

impl TensorSource for Model {
    fn path(&self) -> &Path {
        &self.path
    }

    fn format(&self) -> Format {
        self.format
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    fn tensor(&self, name: &str) -> Result<TensorView> {
        if let Some(fp8) = self.scaled.get(name) {
            return Ok(fp8.read(self));
        }
        if let Some(info) = self.find(name) {
            let bytes = self.parts[info.part].1.slice(info.range.clone());
            return Ok(TensorView { dtype: info.dtype, shape: info.shape.clone(), bytes });
        }
        let tensor = name.to_owned();
        Err(match self.others.get(name) {
            Some(Other { part, element, .. }) => {
                Error::UnsupportedType { path: self.parts[*part].0.clone(), tensor, found: element.clone() }
            }
            None => Error::MissingTensor { path: self.path.clone(), tensor },
        })
    }

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn sibling(&self, file_name: &str) -> Option<PathBuf> {
        let file = self.folder.as_ref()?.join(file_name);
        discover::is_there(&file).then_some(file)
    }

    fn release(&self) {
        self.mappings.iter().for_each(Mapping::release);
    }
}

/// Name, type, bytes of an element, and shape.
#[cfg(test)]
type StoredTensor<'a> = (&'a str, &'a str, usize, &'a [usize]);

/// A safetensors model of tensors whose bytes are 0, 1, 2, …
#[cfg(test)]
fn open_counting(config: &[u8], tensors: &[StoredTensor<'_>]) -> Result<Box<dyn TensorSource>> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dtype, size, shape) in tensors {
        let n = shape.iter().product::<usize>() * size;
        let offsets = [data.len(), data.len() + n];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert((*name).to_owned(), entry);
        data.extend((0..n).map(|i| i as u8));
    }
    let header = serde_json::to_vec(&header).expect("JSON");
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    open_safetensors_bytes("test", config, bytes.into())
}
