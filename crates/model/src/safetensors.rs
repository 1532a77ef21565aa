//! safetensors, the weight format of Hugging Face: bytes of one file → tensor directory.
//!
//! Layout: u64 little-endian length of the header; the header, a JSON object from tensor name to type, shape and the
//! range of its data; the data, packed without gaps. `__metadata__` holds free text and is ignored.
//! Source: the README of the safetensors repository.

use crate::source::part::{Element, Entry, Part};
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::DType;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::path::Path;

/// The longest header that is read, in bytes; the format's own limit.
pub(crate) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Whether bytes that stand at the beginning of a file look like safetensors.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    bytes.len() > 8
        && bytes[8] == b'{'
        && u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) <= MAX_HEADER_BYTES
}

/// Reads one safetensors file.
///
/// Errors: `Truncated`, `Malformed`, `BadTensor`.
pub(crate) fn read(path: &Path, bytes: Bytes) -> Result<Part> {
    let len = bytes.len() as u64;
    let truncated = |what: &str, offset: u64, needed: u64| Error::Truncated {
        path: path.to_owned(),
        what: what.to_owned(),
        offset,
        needed,
        len,
    };
    let prefix = bytes.first_chunk::<8>().ok_or_else(|| truncated("the header's length", 0, 8))?;
    let header_len = u64::from_le_bytes(*prefix);
    if header_len > MAX_HEADER_BYTES {
        let reason = format!(
            "a safetensors header has at most {MAX_HEADER_BYTES} bytes, this one claims {header_len}"
        );
        return Err(Error::not_a_model(path, reason));
    }
    if header_len > len - 8 {
        return Err(truncated("the header", 8, header_len));
    }
    let data_start = 8 + header_len as usize;
    let header: Header = serde_json::from_slice(&bytes[8..data_start])
        .map_err(|e| Error::malformed(path, format!("bad safetensors header: {e}")))?;

    let mut directory = header.0;
    directory.sort_by_key(|(_, tensor)| tensor.data_offsets);
    let data_len = len - data_start as u64;
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    let mut data_end = 0;
    for (name, Tensor { dtype, shape, data_offsets: (start, end) }) in directory {
        let bad = |reason: String| Error::bad_tensor(path, &name, reason);
        if !names.insert(name.clone()) {
            return Err(bad("stands in the header twice".to_owned()));
        }
        if start < data_end {
            return Err(bad(format!("begins at data offset {start}, inside the tensor before it")));
        }
        if start > data_end {
            return Err(bad(format!("begins at data offset {start}, leaving a gap after {data_end}")));
        }
        if end < start {
            return Err(bad(format!("ends at data offset {end}, before its start {start}")));
        }
        if end > data_len {
            return Err(truncated(&format!("tensor {name:?}"), data_start as u64 + start, end - start));
        }
        data_end = end;
        let bits = bits(&dtype).ok_or_else(|| bad(format!("has the unknown element type {dtype:?}")))?;
        let n_bits = shape.iter().try_fold(bits, |n, &dim| n.checked_mul(dim));
        if n_bits != (end - start).checked_mul(8) {
            return Err(bad(format!("of {dtype} {shape:?} cannot have {} bytes", end - start)));
        }
        let element = match dtype.as_str() {
            "F32" => Element::Weight(DType::F32),
            "F16" => Element::Weight(DType::F16),
            "BF16" => Element::Weight(DType::BF16),
            _ => Element::Other(dtype),
        };
        // Every dimension fits: their product does, or one of them is 0 and the rest only has to be representable.
        let shape = shape.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>();
        let shape =
            shape.map_err(|_| bad("has a dimension beyond this machine's address space".to_owned()))?;
        let range = data_start + start as usize..data_start + end as usize;
        tensors.push(Entry { name, element, shape, range });
    }
    if data_end != data_len {
        let reason =
            format!("its tensors end at data offset {data_end}, but {data_len} bytes of data are there");
        return Err(Error::malformed(path, reason));
    }
    Ok(Part { path: path.to_owned(), bytes, tensors, mapping: None })
}

/// Bits of one element.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "U16" | "I16" | "F16" | "BF16" => 16,
        "U32" | "I32" | "F32" => 32,
        "U64" | "I64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// What the header says of one tensor; offsets count from the start of the data.
#[derive(serde::Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The entries of the header. Not a map, so that a name that stands there twice is seen.
struct Header(Vec<(String, Tensor)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Header, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
