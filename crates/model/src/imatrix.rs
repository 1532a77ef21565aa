//! Importance matrices: for each matrix of a model the sums of squares of what its columns were multiplied with, over some text.
//!
//! llama.cpp's files, read and written in both forms. GGUF: `general.type` is `imatrix`, `imatrix.datasets`, `imatrix.chunk_count` and
//! `imatrix.chunk_size` say what text it was, and each tensor has a `NAME.in_sum2` (F32 `[n_matrices, n_in]`) and a `NAME.counts` (F32
//! `[n_matrices, 1]`, rows that were summed). The older form (`.dat`), all little-endian: i32 number of entries; the entries (i32 length of
//! the name, the name, i32 chunks, i32 number of values, the values as f32: mean squares times chunks); i32 chunks in all, i32 length of
//! the text's name, the name. Older files end after the entries.

use crate::gguf::{self, Header, Writer};
use crate::metadata::{Array, Metadata, Strings, Value};
use crate::source::part::Element;
use crate::{Error, Result, mmap};
use bytes::Bytes;
use realizar_compute::DType;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

/// What a model's matrices were multiplied with over some text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Imatrix {
    /// Names of the texts.
    pub datasets: Vec<String>,
    /// Chunks of text.
    pub chunk_count: u32,
    /// Tokens of a chunk; 0 where the file does not say.
    pub chunk_size: u32,
    /// The file that it was read from; empty where it was not.
    pub path: PathBuf,
    tensors: BTreeMap<String, InputSquares>,
}

/// Sums of squares of the inputs of one tensor's matrices.
#[derive(Clone, Debug, PartialEq)]
struct InputSquares {
    /// `[n_matrices, n_in]`
    sums: Vec<f32>,
    /// How many rows were summed, for each matrix, or once for all of them.
    counts: Vec<u64>,
}

/// The forms of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImatrixFormat {
    /// GGUF.
    Gguf,
    /// The older form, which knows no counts of single experts.
    Dat,
}

impl ImatrixFormat {
    /// The form of a file of this name: the older one if it ends in `.dat`.
    pub fn of(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "dat") { Self::Dat } else { Self::Gguf }
    }
}

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

impl Imatrix {
    /// Reads a file of either form.
    ///
    /// Errors: `Io`; `Truncated`, `Malformed`, `BadTensor` and `MissingTensor` where it contradicts its form.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(path, mmap::map(path)?.bytes())
    }

    /// As [`Imatrix::open`], of a file that is in memory. `path` is the name for errors.
    pub fn read(path: &Path, bytes: Bytes) -> Result<Self> {
        let mut this =
            if bytes.starts_with(b"GGUF") { read_gguf(path, bytes)? } else { read_dat(path, &bytes)? };
        this.path = path.to_owned();
        for (name, InputSquares { sums, .. }) in &this.tensors {
            if let Some(bad) = sums.iter().find(|v| !(v.is_finite() && **v >= 0.0)) {
                return Err(Error::bad_tensor(
                    path,
                    name,
                    format!("has {bad} where a sum of squares stands"),
                ));
            }
        }
        if this.tensors.is_empty() {
            return Err(Error::malformed(path, "it has no importance of any tensor"));
        }
        Ok(this)
    }

    /// Number of tensors that it knows.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether it knows none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Adds rows that a tensor's matrix was multiplied with: `rows`, `[n_rows, n_in]`, with the matrix of number `index` of `n_matrices`.
    ///
    /// # Panics
    /// If the tensor had other sizes before.
    pub fn add(&mut self, tensor: &str, n_matrices: usize, index: usize, rows: &[f32], n_in: usize) {
        if !self.tensors.contains_key(tensor) {
            let entry = InputSquares { sums: vec![0.0; n_matrices * n_in], counts: vec![0; n_matrices] };
            self.tensors.insert(tensor.to_owned(), entry);
        }
        let entry = self.tensors.get_mut(tensor).expect("it is there now");
        assert_eq!((entry.sums.len(), entry.counts.len()), (n_matrices * n_in, n_matrices), "{tensor}");
        // First by themselves: a small number added to a large sum would be lost.
        let mut squares = vec![0.0f32; n_in];
        for row in rows.chunks_exact(n_in) {
            squares.iter_mut().zip(row).for_each(|(sum, x)| *sum += x * x);
        }
        let sums = &mut entry.sums[index * n_in..][..n_in];
        sums.iter_mut().zip(&squares).for_each(|(sum, square)| *sum += square);
        entry.counts[index] += (rows.len() / n_in) as u64;
    }

    /// The importance of a tensor's columns, `[n_matrices, n_in]`: mean squares, divided by their mean in each matrix. A matrix that no row
    /// was seen of has 1 everywhere. `None` for a tensor that it does not know. `shape` is row-major.
    ///
    /// Errors: `BadTensor` if the tensor has other sizes here.
    pub fn importance(&self, tensor: &str, shape: &[usize]) -> Result<Option<Vec<f32>>> {
        let Some(InputSquares { sums, counts }) = self.tensors.get(tensor) else { return Ok(None) };
        let n_in = shape[shape.len() - 1];
        let n_matrices = shape[..shape.len().saturating_sub(2)].iter().product::<usize>();
        if sums.len() != n_matrices * n_in || !(counts.len() == 1 || counts.len() == n_matrices) {
            let reason = format!(
                "has {} sums of squares for {} matrices, and the model's has {n_matrices} of {n_in} columns; was the matrix made with another model?",
                sums.len(),
                counts.len()
            );
            return Err(Error::bad_tensor(&self.path, tensor, reason));
        }
        let mut importance = sums.clone();
        for (i, matrix) in importance.chunks_exact_mut(n_in).enumerate() {
            let mean = matrix.iter().map(|v| f64::from(*v)).sum::<f64>() / n_in as f64;
            let is_seen = counts[i % counts.len()] > 0 && mean > 0.0;
            matrix.iter_mut().for_each(|v| *v = if is_seen { (f64::from(*v) / mean) as f32 } else { 1.0 });
        }
        Ok(Some(importance))
    }

    /// Tensors of experts, of which some were not seen in the text, with their number.
    pub fn unseen(&self) -> impl Iterator<Item = (&str, usize)> {
        let unseen = |entry: &InputSquares| entry.counts.iter().filter(|n| **n == 0).count();
        self.tensors.iter().map(move |(name, entry)| (&**name, unseen(entry))).filter(|(_, n)| *n > 0)
    }

    /// Writes it. `path` is the file that errors name.
    ///
    /// Errors: `Io`; `BadTensor` for a name that is too long for GGUF.
    pub fn write<W: Write>(&self, path: &Path, format: ImatrixFormat, mut out: W) -> Result<W> {
        match format {
            ImatrixFormat::Gguf => self.write_gguf(path, out),
            ImatrixFormat::Dat => {
                out.write_all(&self.dat()).map_err(|e| Error::io("write", path, e))?;
                Ok(out)
            }
        }
    }

    fn write_gguf<W: Write>(&self, path: &Path, out: W) -> Result<W> {
        let mut header = Header::new(path);
        header.set("general.type", "imatrix")?;
        header.set("imatrix.datasets", self.datasets.iter().collect::<Strings>())?;
        header.set("imatrix.chunk_count", self.chunk_count)?;
        header.set("imatrix.chunk_size", self.chunk_size)?;
        for (name, InputSquares { sums, counts }) in &self.tensors {
            let n = counts.len();
            header.tensor(format!("{name}{SUMS}"), DType::F32, &[n, sums.len() / n])?;
            header.tensor(format!("{name}{COUNTS}"), DType::F32, &[n, 1])?;
        }
        let mut writer = Writer::new(out, header)?;
        for (name, InputSquares { sums, counts }) in &self.tensors {
            let counts = counts.iter().map(|&n| n as f32);
            writer.tensor(
                &format!("{name}{SUMS}"),
                &sums.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>(),
            )?;
            writer.tensor(
                &format!("{name}{COUNTS}"),
                &counts.flat_map(f32::to_le_bytes).collect::<Vec<u8>>(),
            )?;
        }
        writer.finish()
    }

    /// The file of the older form. Matrices that no row was seen of have 1 as mean square.
    fn dat(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let int = |out: &mut Vec<u8>, n: u64| out.extend(i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes());
        let string = |out: &mut Vec<u8>, s: &str| {
            int(out, s.len() as u64);
            out.extend(s.as_bytes());
        };
        int(&mut out, self.tensors.len() as u64);
        for (name, InputSquares { sums, counts }) in &self.tensors {
            let most = counts.iter().max().copied().unwrap_or(0);
            let chunks = most.div_ceil(u64::from(self.chunk_size.max(1)));
            string(&mut out, name);
            int(&mut out, chunks);
            int(&mut out, sums.len() as u64);
            for (i, sum) in sums.iter().enumerate() {
                let count = counts[i / (sums.len() / counts.len())];
                let mean = if count == 0 { 1.0 } else { sum / count as f32 };
                out.extend((mean * chunks as f32).to_le_bytes());
            }
        }
        int(&mut out, self.chunk_count.into());
        string(&mut out, self.datasets.last().map_or("", |name| name));
        out
    }
}

fn read_gguf(path: &Path, bytes: Bytes) -> Result<Imatrix> {
    let (part, metadata) = gguf::read(path, bytes)?;
    if let Some(kind) = metadata.get_str("general.type")?
        && kind != "imatrix"
    {
        return Err(Error::malformed(path, format!("it is a {kind:?}, not an importance matrix")));
    }
    let mut this = Imatrix {
        datasets: datasets(&metadata),
        chunk_count: count(&metadata, "imatrix.chunk_count")?,
        chunk_size: count(&metadata, "imatrix.chunk_size")?,
        ..Imatrix::default()
    };
    let floats = |name: &str| -> Result<Option<Vec<f32>>> {
        let Some(tensor) = part.tensors.iter().find(|t| t.name == name) else { return Ok(None) };
        if !matches!(tensor.element, Element::Weight(DType::F32)) {
            return Err(Error::bad_tensor(path, name, "is not F32"));
        }
        let numbers = part.bytes[tensor.range.clone()].as_chunks().0;
        Ok(Some(numbers.iter().map(|n| f32::from_le_bytes(*n)).collect()))
    };
    for tensor in &part.tensors {
        let Some(name) = tensor.name.strip_suffix(SUMS) else { continue };
        let sums = floats(&tensor.name)?.expect("it is in the list");
        let counts = format!("{name}{COUNTS}");
        let counts = floats(&counts)?
            .ok_or_else(|| Error::MissingTensor { path: path.to_owned(), tensor: counts.clone() })?;
        if counts.is_empty() || sums.is_empty() || sums.len() % counts.len() != 0 {
            let reason = format!("has {} numbers for {} counts", sums.len(), counts.len());
            return Err(Error::bad_tensor(path, &tensor.name, reason));
        }
        // A cast takes what is no number for 0 and what is too large for the largest.
        let counts = counts.iter().map(|n| n.round() as u64).collect();
        this.tensors.insert(name.to_owned(), InputSquares { sums, counts });
    }
    Ok(this)
}

fn datasets(metadata: &Metadata) -> Vec<String> {
    match metadata.get("imatrix.datasets") {
        Some(Value::Array(Array::Strings(names))) => {
            names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
        }
        _ => Vec::new(),
    }
}

/// A count that a file may leave out.
fn count(metadata: &Metadata, key: &str) -> Result<u32> {
    let n = metadata.get_usize(key)?.unwrap_or(0);
    u32::try_from(n).map_err(|_| metadata.wrong_type(key, "a u32", n))
}

fn read_dat(path: &Path, bytes: &[u8]) -> Result<Imatrix> {
    let mut reader = DatReader { path, bytes, position: 0 };
    let n_entries = reader.count("the number of entries")?;
    if n_entries == 0 || n_entries > bytes.len() / 12 {
        let reason = format!("it is no GGUF file, and as an older one it would have {n_entries} entries");
        return Err(Error::malformed(path, reason));
    }
    let mut this = Imatrix::default();
    for index in 0..n_entries {
        let name = reader.string(&format!("the name of entry {index}"))?;
        let what = format!("entry {name:?}");
        let n_chunks = reader.count(&what)?;
        let n_values = reader.count(&what)?;
        let values = reader.take(n_values.saturating_mul(4), &what)?.as_chunks().0;
        let sums = values.iter().map(|n| f32::from_le_bytes(*n)).collect();
        if n_values == 0 {
            return Err(Error::bad_tensor(path, &name, "has no values"));
        }
        let entry = InputSquares { sums, counts: vec![n_chunks.max(1) as u64] };
        if this.tensors.insert(name.clone(), entry).is_some() {
            return Err(Error::bad_tensor(path, &name, "stands in the file twice"));
        }
    }
    if reader.position < bytes.len() {
        this.chunk_count = reader.count("the number of chunks")? as u32;
        if reader.position < bytes.len() {
            let name = reader.string("the name of the text")?;
            this.datasets.extend(Some(name).filter(|name| !name.is_empty()));
        }
    }
    Ok(this)
}

/// The bytes of a file of the older form, and how far they are read.
struct DatReader<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    position: usize,
}

impl<'a> DatReader<'a> {
    fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        let taken = self.bytes[self.position..].get(..n).ok_or_else(|| Error::Truncated {
            path: self.path.to_owned(),
            what: what.to_owned(),
            offset: self.position as u64,
            needed: n as u64,
            len: self.bytes.len() as u64,
        })?;
        self.position += n;
        Ok(taken)
    }

    /// An i32 that is not negative.
    fn count(&mut self, what: &str) -> Result<usize> {
        let bytes = self.take(4, what)?.as_chunks().0[0];
        let n = i32::from_le_bytes(bytes);
        usize::try_from(n).map_err(|_| Error::malformed(self.path, format!("{what} has a count of {n}")))
    }

    fn string(&mut self, what: &str) -> Result<String> {
        let n = self.count(what)?;
        let bytes = self.take(n, what)?;
        let text = std::str::from_utf8(bytes);
        Ok(text.map_err(|_| Error::malformed(self.path, format!("{what} is not UTF-8")))?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plain tensor, and three experts of which the second was not seen.
    fn sample() -> Imatrix {
        let mut m =
            Imatrix { datasets: vec!["a.txt".into()], chunk_count: 2, chunk_size: 4, ..Imatrix::default() };
        m.add("blk.0.attn_q.weight", 1, 0, &[1.0, 2.0, 3.0, 0.0, 1.0, 1.0, 1.0, 1.0], 4);
        m.add("blk.0.attn_q.weight", 1, 0, &[0.5; 24], 4);
        m.add("blk.0.ffn_up_exps.weight", 3, 0, &[1.0, -3.0], 2);
        m.add("blk.0.ffn_up_exps.weight", 3, 2, &[2.0, 2.0, 0.0, 2.0], 2);
        m
    }

    fn written(m: &Imatrix, format: ImatrixFormat) -> Vec<u8> {
        m.write(Path::new("m"), format, Vec::new()).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Imatrix> {
        Imatrix::read(Path::new("m"), Bytes::copy_from_slice(bytes))
    }

    fn close(a: &[f32], b: &[f32]) -> bool {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5)
    }

    #[test]
    fn both_forms_give_the_same_importance() {
        let m = sample();
        assert_eq!(m.unseen().collect::<Vec<_>>(), [("blk.0.ffn_up_exps.weight", 1)]);
        for format in [ImatrixFormat::Gguf, ImatrixFormat::Dat] {
            let back = read(&written(&m, format)).unwrap();
            assert_eq!((back.len(), back.chunk_count, &back.datasets[..]), (2, 2, &["a.txt".to_owned()][..]));
            let q = back.importance("blk.0.attn_q.weight", &[8, 4]).unwrap().unwrap();
            // Sums of squares 3.5, 6.5, 11.5 and 2.5 have the mean 6.
            assert!(close(&q, &[3.5 / 6.0, 6.5 / 6.0, 11.5 / 6.0, 2.5 / 6.0]), "{format:?}: {q:?}");
            let up = back.importance("blk.0.ffn_up_exps.weight", &[3, 16, 2]).unwrap().unwrap();
            assert!(close(&up, &[0.2, 1.8, 1.0, 1.0, 4.0 / 6.0, 8.0 / 6.0]), "{format:?}: {up:?}");
            assert!(back.importance("blk.1.attn_q.weight", &[8, 4]).unwrap().is_none());
        }
        let gguf = read(&written(&m, ImatrixFormat::Gguf)).unwrap();
        assert_eq!((gguf.chunk_size, &gguf.tensors), (4, &m.tensors));
    }

    #[test]
    fn a_matrix_of_another_model_is_refused() {
        let m = sample();
        for shape in [&[8, 5][..], &[2, 8, 4]] {
            let error = m.importance("blk.0.attn_q.weight", shape).unwrap_err().to_string();
            assert!(error.contains("another model"), "{error}");
        }
    }

    #[test]
    fn damaged_files_are_errors_of_one_line() {
        for format in [ImatrixFormat::Gguf, ImatrixFormat::Dat] {
            let whole = written(&sample(), format);
            for end in 0..whole.len() {
                match read(&whole[..end]) {
                    Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
                    // Zeros after the last tensor of a GGUF file may be missing, and the last field of the older form.
                    Ok(m) => assert_eq!(m.tensors, read(&whole).unwrap().tensors, "{format:?} cut at {end}"),
                }
            }
            for at in 0..whole.len() {
                for value in [0, 1, 0x7f, 0x80, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    match read(&bytes) {
                        Ok(m) => drop(m.importance("blk.0.attn_q.weight", &[8, 4])),
                        Err(error) => assert!(!error.to_string().contains(char::is_control), "{error}"),
                    }
                }
            }
        }
        assert!(read(b"").is_err() && read(b"# a text\n, and more of it").is_err());
    }

    #[test]
    fn sums_that_are_no_sums_of_squares_are_refused() {
        for bad in [-1.0, f32::NAN, f32::INFINITY] {
            let mut m = sample();
            m.tensors.get_mut("blk.0.attn_q.weight").unwrap().sums[2] = bad;
            let error = read(&written(&m, ImatrixFormat::Gguf)).unwrap_err().to_string();
            assert!(error.contains("blk.0.attn_q.weight") && error.contains("sum of squares"), "{error}");
        }
    }

    #[test]
    fn a_model_is_no_importance_matrix() {
        let mut header = Header::new("m");
        header.set("general.type", "model").unwrap();
        let bytes = Writer::new(Vec::new(), header).unwrap().finish().unwrap();
        assert!(read(&bytes).unwrap_err().to_string().contains("not an importance matrix"));
        let bytes = Writer::new(Vec::new(), Header::new("m")).unwrap().finish().unwrap();
        assert!(read(&bytes).unwrap_err().to_string().contains("no importance"));
    }
}
