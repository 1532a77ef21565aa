//! Files to read: valid ones, and GGUF spelled byte by byte where a wrong one is wanted.

use realizar_compute::DType;
use realizar_model::{gguf, metadata};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A GGUF with a value of every metadata type and three tensors; it ends with its last tensor's last byte.
pub(crate) fn small_gguf() -> Vec<u8> {
    let mut header = gguf::Header::new("small.gguf");
    header.set("general.architecture", "llama").unwrap();
    header.set("u8", 200u8).unwrap();
    header.set("i8", -3i8).unwrap();
    header.set("u16", 60_000u16).unwrap();
    header.set("i16", -300i16).unwrap();
    header.set("u32", 4_000_000_000u32).unwrap();
    header.set("i32", -70_000i32).unwrap();
    header.set("u64", u64::MAX).unwrap();
    header.set("i64", i64::MIN).unwrap();
    header.set("f32", 1e-5f32).unwrap();
    header.set("f64", 0.1f64).unwrap();
    header.set("bool", true).unwrap();
    header.set("tokens", ["a", "", "ä€"].iter().collect::<metadata::Strings>()).unwrap();
    header.set("scores", vec![0.5f32, -1.0]).unwrap();
    header.set("types", vec![1i32, 3, 6]).unwrap();
    header.set("flags", vec![true, false]).unwrap();
    header.set("bytes", vec![1u8, 2, 255]).unwrap();
    header.tensor("norm", DType::F32, &[3]).unwrap();
    header.tensor("up", DType::F32, &[2, 3]).unwrap();
    header.tensor("half", DType::F16, &[4, 2, 2]).unwrap();
    let mut writer = gguf::Writer::new(Vec::new(), header).unwrap();
    writer.tensor("norm", &bytes_of(&[1.0, 2.0, 3.0])).unwrap();
    writer.tensor("up", &bytes_of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])).unwrap();
    writer.tensor("half", &(0..32).collect::<Vec<u8>>()).unwrap();
    writer.finish().unwrap()
}

/// A GGUF of any content, consistent or not.
pub(crate) struct Raw {
    pub(crate) magic: [u8; 4],
    pub(crate) version: u32,
    pub(crate) n_tensors: u64,
    pub(crate) n_pairs: u64,
    pub(crate) pairs: Vec<u8>,
    pub(crate) directory: Vec<u8>,
    pub(crate) alignment: usize,
    pub(crate) data: Vec<u8>,
}

impl Raw {
    pub(crate) fn new() -> Self {
        Raw {
            magic: *b"GGUF",
            version: 3,
            n_tensors: 0,
            n_pairs: 0,
            pairs: Vec::new(),
            directory: Vec::new(),
            alignment: 32,
            data: Vec::new(),
        }
    }

    /// Adds a pair whose value is `value` byte for byte.
    pub(crate) fn pair(mut self, key: &[u8], value_type: u32, value: &[u8]) -> Self {
        self.n_pairs += 1;
        self.pairs.extend(string(key));
        self.pairs.extend(value_type.to_le_bytes());
        self.pairs.extend(value);
        self
    }

    /// Adds a directory entry; `dims` in the order of the file, innermost first.
    pub(crate) fn tensor(mut self, name: &[u8], dims: &[u64], type_id: u32, offset: u64) -> Self {
        self.n_tensors += 1;
        self.directory.extend(string(name));
        self.directory.extend((dims.len() as u32).to_le_bytes());
        self.directory.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
        self.directory.extend(type_id.to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self
    }

    pub(crate) fn data(mut self, n_bytes: usize) -> Self {
        self.data = (0..n_bytes).map(|i| i as u8).collect();
        self
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.n_tensors.to_le_bytes());
        out.extend(self.n_pairs.to_le_bytes());
        out.extend(&self.pairs);
        out.extend(&self.directory);
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(&self.data);
        out
    }
}

/// A string as GGUF stores it.
pub(crate) fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// A safetensors file with this header.
pub(crate) fn safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A safetensors file with one F32 tensor per name, each of shape [2].
pub(crate) fn shard(names: &[&str]) -> Vec<u8> {
    let entry = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}"#, 8 * i, 8 * i + 8)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    safetensors(&format!("{{{}}}", entries.join(",")), &vec![0; 8 * names.len()])
}

/// A folder that goes away with this value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("realizar-formats-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A seeded stream of random numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
