//! Bytes of a GGUF file → tensor directory and metadata, with every claim of the header checked before it is used.
//!
//! Nothing is allocated by a count that the file claims: lists grow as their elements are read, and each element takes
//! bytes of the file, so memory stays proportional to the file.

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, value_type};
use crate::metadata::{Array, Metadata, Strings, Value};
use crate::source::part::{Element, Entry, Part};
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::DType;
use std::collections::HashSet;
use std::fmt::Arguments;
use std::path::Path;

/// The longest key or tensor name, in bytes; the format's limit for keys.
const MAX_NAME_BYTES: usize = 65535;

/// Reads one GGUF file. Shapes come out row-major, outermost dimension first.
///
/// Errors: `Truncated`, `Malformed`, `BadTensor`; `Unsupported` for version 1 and big-endian files.
pub(crate) fn read(path: &Path, bytes: Bytes) -> Result<(Part, Metadata)> {
    let mut reader = Reader { path, bytes: &bytes, position: 0 };
    reader.check_magic_and_version()?;
    let n_tensors = reader.u64(format_args!("the number of tensors"))?;
    let n_pairs = reader.u64(format_args!("the number of metadata pairs"))?;
    // The smallest tensor entry has an empty name and no dimensions, the smallest pair a key of one byte and a u8.
    reader.check_count(format_args!("tensors"), n_tensors, 8 + 4 + 4 + 8)?;
    reader.check_count(format_args!("metadata pairs"), n_pairs, 8 + 1 + 4 + 1)?;

    let mut metadata = Metadata::new(path);
    for index in 0..n_pairs {
        let key = reader.name(format_args!("metadata key {index}"))?;
        if key.is_empty() {
            return Err(reader.malformed(format!("metadata key {index} is empty")));
        }
        let value = reader.value(key)?;
        metadata.insert(key, value)?;
    }
    let alignment = alignment(&metadata)?;

    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for index in 0..n_tensors {
        let entry = reader.tensor(index)?;
        if !names.insert(entry.name.clone()) {
            return Err(Error::bad_tensor(path, &entry.name, "stands in the directory twice"));
        }
        tensors.push(entry);
    }
    if !tensors.is_empty() {
        let data_start = reader.position.checked_next_multiple_of(alignment).unwrap_or(usize::MAX);
        place(path, &mut tensors, alignment, data_start, bytes.len())?;
    }
    Ok((Part { path: path.to_owned(), bytes, tensors, mapping: None }, metadata))
}

fn alignment(metadata: &Metadata) -> Result<usize> {
    match metadata.get_usize(ALIGNMENT_KEY)? {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(alignment) if alignment.is_power_of_two() => Ok(alignment),
        Some(alignment) => Err(metadata.wrong_type(ALIGNMENT_KEY, "a power of two", alignment)),
    }
}

/// Moves the ranges from the start of the data section to the start of the file, and checks that they are aligned, lie
/// inside the file, and do not overlap.
fn place(path: &Path, tensors: &mut [Entry], alignment: usize, data_start: usize, len: usize) -> Result<()> {
    for Entry { name, range, .. } in tensors.iter_mut() {
        if !range.start.is_multiple_of(alignment) {
            let reason = format!("begins at data offset {}, not a multiple of {alignment}", range.start);
            return Err(Error::bad_tensor(path, name, reason));
        }
        let (start, end) = (data_start.checked_add(range.start), data_start.checked_add(range.end));
        match (start, end) {
            (Some(start), Some(end)) if end <= len => *range = start..end,
            _ => {
                let needed = range.len() as u64;
                let offset = (data_start as u64).saturating_add(range.start as u64);
                let what = format!("tensor {name:?}");
                return Err(Error::Truncated {
                    path: path.to_owned(),
                    what,
                    offset,
                    needed,
                    len: len as u64,
                });
            }
        }
    }
    let mut by_offset: Vec<&Entry> = tensors.iter().filter(|t| !t.range.is_empty()).collect();
    by_offset.sort_by_key(|t| t.range.start);
    for pair in by_offset.windows(2) {
        if pair[1].range.start < pair[0].range.end {
            let reason = format!("overlaps tensor {:?}", pair[0].name);
            return Err(Error::bad_tensor(path, &pair[1].name, reason));
        }
    }
    Ok(())
}

/// The bytes of a file and how far they are read.
struct Reader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

/// Methods that read one number and that read `n` numbers.
macro_rules! numbers {
    ($($type:ident $array:ident),*) => {$(
        fn $type(&mut self, what: Arguments<'_>) -> Result<$type> {
            let bytes = self.take(size_of::<$type>(), what)?;
            Ok($type::from_le_bytes(bytes.try_into().expect("take returns the asked length")))
        }

        fn $array(&mut self, n: usize, what: Arguments<'_>) -> Result<Vec<$type>> {
            let bytes = self.take(n.saturating_mul(size_of::<$type>()), what)?;
            let number = |bytes: &[u8]| $type::from_le_bytes(bytes.try_into().expect("chunks have the asked length"));
            Ok(bytes.chunks_exact(size_of::<$type>()).map(number).collect())
        }
    )*};
}

impl<'a> Reader<'a> {
    numbers!(u8 u8s, i8 i8s, u16 u16s, i16 i16s, u32 u32s, i32 i32s, u64 u64s, i64 i64s, f32 f32s, f64 f64s);

    fn take(&mut self, n: usize, what: Arguments<'_>) -> Result<&'a [u8]> {
        match self.bytes.get(self.position..).and_then(|rest| rest.get(..n)) {
            Some(bytes) => {
                self.position += n;
                Ok(bytes)
            }
            None => Err(Error::Truncated {
                path: self.path.to_owned(),
                what: what.to_string(),
                offset: self.position as u64,
                needed: n as u64,
                len: self.bytes.len() as u64,
            }),
        }
    }

    fn malformed(&self, reason: String) -> Error {
        Error::malformed(self.path, reason)
    }

    fn check_magic_and_version(&mut self) -> Result<()> {
        let magic = self.take(4, format_args!("the magic"))?;
        if magic != MAGIC {
            let reason =
                format!("a GGUF file begins with \"GGUF\", this one with \"{}\"", magic.escape_ascii());
            return Err(Error::not_a_model(self.path, reason));
        }
        let version = self.u32(format_args!("the version"))?;
        let reason = match version {
            2 | 3 => return Ok(()),
            1 => "GGUF version 1 is not supported; convert the model again to get version 3".to_owned(),
            _ if matches!(version.swap_bytes(), 1..=3) => {
                "it is a big-endian GGUF file; only little-endian ones are supported".to_owned()
            }
            _ => format!("its GGUF version is {version}; versions 2 and 3 are supported"),
        };
        Err(Error::unsupported(self.path, reason))
    }

    /// Refuses a count of things of which the rest of the file could not hold so many.
    fn check_count(&self, what: Arguments<'_>, count: u64, min_bytes: u64) -> Result<()> {
        let rest = (self.bytes.len() - self.position) as u64;
        if count > rest / min_bytes {
            let reason = format!("{count} {what} are announced, but only {rest} bytes follow");
            return Err(self.malformed(reason));
        }
        Ok(())
    }

    fn length(&mut self, what: Arguments<'_>) -> Result<usize> {
        // A length beyond usize is beyond the file, too, and fails where so many bytes are taken.
        Ok(usize::try_from(self.u64(what)?).unwrap_or(usize::MAX))
    }

    fn string(&mut self, what: Arguments<'_>) -> Result<&'a [u8]> {
        let n = self.length(what)?;
        self.take(n, what)
    }

    /// A key or the name of a tensor.
    fn name(&mut self, what: Arguments<'_>) -> Result<&'a str> {
        let bytes = self.string(what)?;
        if bytes.len() > MAX_NAME_BYTES {
            return Err(
                self.malformed(format!("{what} has {} bytes, the limit is {MAX_NAME_BYTES}", bytes.len()))
            );
        }
        std::str::from_utf8(bytes)
            .map_err(|_| self.malformed(format!("{what} is not UTF-8: \"{}\"", bytes.escape_ascii())))
    }

    fn value(&mut self, key: &str) -> Result<Value> {
        let what = format_args!("the value of metadata key {key:?}");
        Ok(match self.u32(what)? {
            value_type::U8 => Value::U8(self.u8(what)?),
            value_type::I8 => Value::I8(self.i8(what)?),
            value_type::U16 => Value::U16(self.u16(what)?),
            value_type::I16 => Value::I16(self.i16(what)?),
            value_type::U32 => Value::U32(self.u32(what)?),
            value_type::I32 => Value::I32(self.i32(what)?),
            value_type::U64 => Value::U64(self.u64(what)?),
            value_type::I64 => Value::I64(self.i64(what)?),
            value_type::F32 => Value::F32(self.f32(what)?),
            value_type::F64 => Value::F64(self.f64(what)?),
            value_type::BOOL => {
                let byte = self.u8(what)?;
                Value::Bool(self.bool(byte, key)?)
            }
            value_type::STRING => {
                let bytes = self.string(what)?;
                let text = std::str::from_utf8(bytes);
                Value::String(text.map_err(|_| self.malformed(format!("{what} is not UTF-8")))?.to_owned())
            }
            value_type::ARRAY => Value::Array(self.array(key)?),
            unknown => return Err(self.malformed(format!("{what} has the unknown type {unknown}"))),
        })
    }

    fn array(&mut self, key: &str) -> Result<Array> {
        let what = format_args!("the array of metadata key {key:?}");
        let element_type = self.u32(what)?;
        let n = self.length(what)?;
        Ok(match element_type {
            value_type::U8 => Array::U8(self.u8s(n, what)?),
            value_type::I8 => Array::I8(self.i8s(n, what)?),
            value_type::U16 => Array::U16(self.u16s(n, what)?),
            value_type::I16 => Array::I16(self.i16s(n, what)?),
            value_type::U32 => Array::U32(self.u32s(n, what)?),
            value_type::I32 => Array::I32(self.i32s(n, what)?),
            value_type::U64 => Array::U64(self.u64s(n, what)?),
            value_type::I64 => Array::I64(self.i64s(n, what)?),
            value_type::F32 => Array::F32(self.f32s(n, what)?),
            value_type::F64 => Array::F64(self.f64s(n, what)?),
            value_type::BOOL => {
                let bytes = self.take(n, what)?;
                Array::Bool(bytes.iter().map(|&byte| self.bool(byte, key)).collect::<Result<_>>()?)
            }
            value_type::STRING => {
                // Each has at least its length in the file, so this many fit and the memory for them is bounded.
                self.check_count(format_args!("elements of {what}"), n as u64, 8)?;
                let mut strings = Strings::with_capacity(n);
                for index in 0..n {
                    strings.push(self.string(format_args!("element {index} of {what}"))?);
                }
                Array::Strings(strings)
            }
            value_type::ARRAY => {
                return Err(Error::unsupported(self.path, format!("{what} is an array of arrays")));
            }
            unknown => return Err(self.malformed(format!("{what} has the unknown element type {unknown}"))),
        })
    }

    fn bool(&self, byte: u8, key: &str) -> Result<bool> {
        match byte {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.malformed(format!("metadata key {key:?} has a bool of {byte}, neither 0 nor 1"))),
        }
    }

    /// One entry of the tensor directory, with the range counted from the start of the data section.
    fn tensor(&mut self, index: u64) -> Result<Entry> {
        let name = self.name(format_args!("the name of tensor {index}"))?;
        let bad = |reason: String| Error::bad_tensor(self.path, name, reason);
        let what = format_args!("the directory entry of tensor {name:?}");
        let n_dims = self.u32(what)? as usize;
        if n_dims > MAX_DIMS {
            return Err(bad(format!("has {n_dims} dimensions, more than {MAX_DIMS}")));
        }
        let dims = self.u64s(n_dims, what)?;
        let type_id = self.u32(what)?;
        let offset = self.u64(what)?;

        let mut shape = Vec::with_capacity(n_dims.max(1));
        for &dim in dims.iter().rev() {
            shape.push(usize::try_from(dim).map_err(|_| bad(format!("has a dimension of {dim}")))?);
        }
        // ggml does not tell [n] from [1, n]: some writers pad to four dimensions, others strip what is 1.
        let n_unit_dims = shape.iter().take(n_dims.saturating_sub(1)).take_while(|&&dim| dim == 1).count();
        shape.drain(..n_unit_dims);
        if shape.is_empty() {
            shape.push(1);
        }

        let (element, block_len, block_bytes) = element(type_id).map_err(bad)?;
        let row_len = shape[shape.len() - 1];
        if !row_len.is_multiple_of(block_len) {
            let reason =
                format!("has rows of {row_len} elements, not a multiple of its type's block of {block_len}");
            return Err(bad(reason));
        }
        let too_large = || bad(format!("of shape {shape:?} is larger than any file"));
        let n_elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim)).ok_or_else(too_large)?;
        let size = (n_elements / block_len).checked_mul(block_bytes).ok_or_else(too_large)?;
        let start = usize::try_from(offset).map_err(|_| too_large())?;
        let end = start.checked_add(size).ok_or_else(too_large)?;
        Ok(Entry { name: name.to_owned(), element, shape, range: start..end })
    }
}

/// Element type, elements per block and bytes per block of a number in the tensor directory.
fn element(type_id: u32) -> std::result::Result<(Element, usize, usize), String> {
    if let Some(dtype) = DType::from_ggml_id(type_id) {
        return Ok((Element::Weight(dtype), dtype.block_len(), dtype.spec().block_bytes));
    }
    let (name, size) = match type_id {
        24 => ("I8", 1),
        25 => ("I16", 2),
        26 => ("I32", 4),
        27 => ("I64", 8),
        28 => ("F64", 8),
        _ => return Err(format!("has ggml type {type_id}, which this program does not know")),
    };
    Ok((Element::Other(name.to_owned()), 1, size))
}
