//! Writes GGUF version 3: first what the file will hold, then the data of one tensor after another.

use super::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, value_type};
use crate::metadata::{Array, Metadata, Value};
use crate::{Error, Result};
use realizar_compute::DType;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// The version that is written.
const VERSION: u32 = 3;
/// ggml keeps names in 64 bytes, the last of them 0.
const MAX_TENSOR_NAME_BYTES: usize = 63;

/// What a file will hold: its metadata, and name, type and shape of every tensor.
#[derive(Clone, Debug)]
pub struct Header {
    metadata: Metadata,
    tensors: Vec<Declared>,
    names: HashSet<String>,
}

#[derive(Clone, Debug)]
struct Declared {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    n_bytes: usize,
}

impl Header {
    /// A header for a file without metadata and tensors. `path` is the file that errors will name.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Header { metadata: Metadata::new(path), tensors: Vec::new(), names: HashSet::new() }
    }

    /// Adds a metadata value, stored with exactly the type it has: ggml's readers insist on `u32` for most counts.
    ///
    /// Errors: `Malformed` for a key that is there already; `WrongType` for a `general.alignment` that is not a `u32`
    /// and a power of two.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> Result<()> {
        let (key, value) = (key.into(), value.into());
        if key == ALIGNMENT_KEY && !matches!(value, Value::U32(n) if n.is_power_of_two()) {
            return Err(self.metadata.wrong_type(&key, "a u32 and a power of two", value));
        }
        self.metadata.insert(key, value)
    }

    /// Announces a tensor with a row-major shape, outermost dimension first. The file will hold the tensors in the
    /// order of these calls.
    ///
    /// Errors: `BadTensor` for a name that is there already or too long for ggml, for more than four dimensions, and for
    /// rows that are not a whole number of blocks.
    pub fn tensor(&mut self, name: impl Into<String>, dtype: DType, shape: &[usize]) -> Result<()> {
        let name = name.into();
        let bad = |reason: String| Error::bad_tensor(self.metadata.path(), &name, reason);
        if name.is_empty() || name.len() > MAX_TENSOR_NAME_BYTES {
            return Err(bad(format!("must have a name of 1 to {MAX_TENSOR_NAME_BYTES} bytes")));
        }
        if shape.is_empty() || shape.len() > MAX_DIMS {
            return Err(bad(format!("has {} dimensions; GGUF holds 1 to {MAX_DIMS}", shape.len())));
        }
        let row_len = shape[shape.len() - 1];
        if !row_len.is_multiple_of(dtype.block_len()) {
            let block_len = dtype.block_len();
            return Err(bad(format!(
                "has rows of {row_len} elements, not a multiple of {dtype}'s block of {block_len}"
            )));
        }
        let n_elements = shape.iter().try_fold(1usize, |n, &dim| n.checked_mul(dim));
        let n_bytes = n_elements
            .and_then(|n| dtype.bytes_for(n))
            .ok_or_else(|| bad(format!("of shape {shape:?} is larger than any file")))?;
        if !self.names.insert(name.clone()) {
            return Err(bad("is announced twice".to_owned()));
        }
        self.tensors.push(Declared { name, dtype, shape: shape.to_vec(), n_bytes });
        Ok(())
    }

    fn alignment(&self) -> usize {
        match self.metadata.get(ALIGNMENT_KEY) {
            Some(&Value::U32(alignment)) => alignment as usize,
            _ => DEFAULT_ALIGNMENT,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in self.metadata.iter() {
            put_string(&mut out, key.as_bytes());
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_string(&mut out, tensor.name.as_bytes());
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for &dim in tensor.shape.iter().rev() {
                out.extend((dim as u64).to_le_bytes());
            }
            out.extend(tensor.dtype.spec().ggml_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset += (tensor.n_bytes as u64).next_multiple_of(self.alignment() as u64);
        }
        out.resize(out.len().next_multiple_of(self.alignment()), 0);
        out
    }
}

/// Writes the file that a [`Header`] describes, one tensor at a time, so that a model need not fit into memory.
pub struct Writer<W: Write> {
    out: W,
    header: Header,
    n_written: usize,
}

impl Writer<BufWriter<File>> {
    /// Creates the file that the header names, or empties it, and writes the header. Errors: `Io`.
    pub fn create(header: Header) -> Result<Self> {
        let path = header.metadata.path();
        let file = File::create(path).map_err(|e| Error::io("create", path, e))?;
        Writer::new(BufWriter::new(file), header)
    }
}

impl<W: Write> Writer<W> {
    /// Writes the header to `out`. Errors: `Io`.
    pub fn new(mut out: W, header: Header) -> Result<Self> {
        out.write_all(&header.encode()).map_err(|e| Error::io("write", header.metadata.path(), e))?;
        Ok(Writer { out, header, n_written: 0 })
    }

    /// Writes the data of the next announced tensor.
    ///
    /// Errors: `Io`; `BadTensor` unless it is the next one's name and size.
    pub fn tensor(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path();
        let next = self.header.tensors.get(self.n_written);
        let Some(next) = next.filter(|next| next.name == name) else {
            let expected = next.map_or("the end".to_owned(), |next| format!("{:?}", next.name));
            return Err(Error::bad_tensor(path, name, format!("is written where {expected} was announced")));
        };
        if bytes.len() != next.n_bytes {
            let (dtype, shape) = (next.dtype, &next.shape);
            let reason = format!("of {dtype} {shape:?} needs {} bytes but has {}", next.n_bytes, bytes.len());
            return Err(Error::bad_tensor(path, name, reason));
        }
        let alignment = self.header.alignment();
        let padding = bytes.len().next_multiple_of(alignment) - bytes.len();
        let written = self.out.write_all(bytes).and_then(|()| pad(&mut self.out, padding));
        written.map_err(|e| Error::io("write", self.header.metadata.path(), e))?;
        self.n_written += 1;
        Ok(())
    }

    /// Flushes and hands back what was written to. Errors: `Io`; `MissingTensor` for one that was announced only.
    pub fn finish(mut self) -> Result<W> {
        let path = self.header.metadata.path();
        if let Some(missing) = self.header.tensors.get(self.n_written) {
            return Err(Error::MissingTensor { path: path.to_owned(), tensor: missing.name.clone() });
        }
        self.out.flush().map_err(|e| Error::io("write", path, e))?;
        Ok(self.out)
    }

    fn path(&self) -> &Path {
        self.header.metadata.path()
    }
}

fn pad(out: &mut impl Write, n: usize) -> io::Result<()> {
    io::copy(&mut io::Read::take(io::repeat(0), n as u64), out).map(drop)
}

fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string);
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    macro_rules! put {
        ($type:ident, $number:expr) => {{
            out.extend(value_type::$type.to_le_bytes());
            out.extend($number.to_le_bytes());
        }};
    }
    match value {
        Value::U8(v) => put!(U8, v),
        Value::I8(v) => put!(I8, v),
        Value::U16(v) => put!(U16, v),
        Value::I16(v) => put!(I16, v),
        Value::U32(v) => put!(U32, v),
        Value::I32(v) => put!(I32, v),
        Value::U64(v) => put!(U64, v),
        Value::I64(v) => put!(I64, v),
        Value::F32(v) => put!(F32, v),
        Value::F64(v) => put!(F64, v),
        Value::Bool(v) => put!(BOOL, u8::from(*v)),
        Value::String(v) => {
            out.extend(value_type::STRING.to_le_bytes());
            put_string(out, v.as_bytes());
        }
        Value::Array(v) => {
            out.extend(value_type::ARRAY.to_le_bytes());
            put_array(out, v);
        }
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    macro_rules! put {
        ($type:ident, $numbers:expr) => {{
            out.extend(value_type::$type.to_le_bytes());
            out.extend(($numbers.len() as u64).to_le_bytes());
            out.extend($numbers.iter().flat_map(|v| v.to_le_bytes()));
        }};
    }
    match array {
        Array::U8(v) => put!(U8, v),
        Array::I8(v) => put!(I8, v),
        Array::U16(v) => put!(U16, v),
        Array::I16(v) => put!(I16, v),
        Array::U32(v) => put!(U32, v),
        Array::I32(v) => put!(I32, v),
        Array::U64(v) => put!(U64, v),
        Array::I64(v) => put!(I64, v),
        Array::F32(v) => put!(F32, v),
        Array::F64(v) => put!(F64, v),
        Array::Bool(v) => {
            out.extend(value_type::BOOL.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            out.extend(v.iter().map(|&v| u8::from(v)));
        }
        Array::Strings(v) => {
            out.extend(value_type::STRING.to_le_bytes());
            out.extend((v.len() as u64).to_le_bytes());
            v.iter().for_each(|string| put_string(out, string));
        }
    }
}
