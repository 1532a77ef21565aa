//! Model files from disk and from memory: what is read is what was written, and whatever is wrong with a file is an
//! error that names the file, never a panic.
//!
//! Files are made here by [`gguf::Writer`] and by hand; those of the shared test data are read where it is present.

use bytes::Bytes;
use realizar_compute::DType;
use realizar_model::source::{self, Format, TensorSource};
use realizar_model::{gguf, metadata};
use std::path::{Path, PathBuf};

/// The folder of shared test data, or `None` with a note.
fn shared_data() -> Option<PathBuf> {
    // The one place where a test reads the environment: the data lies wherever its user put it.
    #[allow(clippy::disallowed_methods)]
    let given = std::env::var_os("REALIZAR_TEST_DATA").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data"));
    if folder.is_dir() {
        return Some(folder);
    }
    println!("SKIPPED: no shared test data at {}", folder.display());
    None
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A small GGUF with one value of every metadata type and three tensors; it ends with its last tensor's last byte.
fn small_gguf() -> Vec<u8> {
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
    let tokens: metadata::Strings = ["a", "", "ä€"].iter().collect();
    header.set("tokens", tokens).unwrap();
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

fn open_bytes(bytes: &[u8]) -> realizar_model::Result<Box<dyn TensorSource>> {
    source::open_gguf_bytes("small.gguf", Bytes::copy_from_slice(bytes))
}

#[test]
fn what_the_writer_wrote_is_read_back() {
    let model = open_bytes(&small_gguf()).unwrap();
    assert_eq!(model.format(), Format::Gguf);
    let m = model.metadata();
    assert_eq!(m.get_str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.get_usize("u8").unwrap(), Some(200));
    assert_eq!(m.get_i64("i8").unwrap(), Some(-3));
    assert_eq!(m.get_usize("u16").unwrap(), Some(60_000));
    assert_eq!(m.get_i64("i16").unwrap(), Some(-300));
    assert_eq!(m.get_usize("u32").unwrap(), Some(4_000_000_000));
    assert_eq!(m.get_i64("i32").unwrap(), Some(-70_000));
    assert_eq!(m.get_usize("u64").unwrap(), Some(usize::MAX));
    assert_eq!(m.get_i64("i64").unwrap(), Some(i64::MIN));
    assert_eq!(m.get_f32("f32").unwrap(), Some(1e-5));
    assert_eq!(m.get_f64("f64").unwrap(), Some(0.1));
    assert_eq!(m.get_bool("bool").unwrap(), Some(true));
    assert_eq!(m.get_strings("tokens").unwrap(), Some(vec!["a", "", "ä€"]));
    assert_eq!(m.get_f32s("scores").unwrap(), Some(vec![0.5, -1.0]));
    assert_eq!(m.get_i64s("types").unwrap(), Some(vec![1, 3, 6]));
    assert_eq!(m.get_bools("flags").unwrap(), Some(vec![true, false]));
    assert_eq!(m.get_i64s("bytes").unwrap(), Some(vec![1, 2, 255]));
    assert_eq!(m.len(), 17);

    let shapes: Vec<_> =
        model.tensors().iter().map(|t| (t.name.as_str(), t.dtype, t.shape.clone())).collect();
    let expected =
        [("norm", DType::F32, vec![3]), ("up", DType::F32, vec![2, 3]), ("half", DType::F16, vec![4, 2, 2])];
    assert_eq!(shapes, expected);
    assert_eq!(model.tensor("norm").unwrap().bytes, bytes_of(&[1.0, 2.0, 3.0]));
    assert_eq!(model.tensor("up").unwrap().bytes, bytes_of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(model.tensor("half").unwrap().bytes, (0..32).collect::<Vec<u8>>());
}

#[test]
fn the_shared_models_open() {
    let Some(data) = shared_data() else { return };
    let models = data.join("models");
    for (path, format) in [
        ("stories260K/stories260K-F32.gguf", Format::Gguf),
        ("stories260K/stories260K-F16.gguf", Format::Gguf),
        ("stories260K/hf", Format::Safetensors),
        ("stories260K/hf-bf16-sharded", Format::Safetensors),
        ("TinyStories-656K", Format::Safetensors),
    ] {
        let model = source::open(&models.join(path)).unwrap();
        assert_eq!(model.format(), format);
        assert!(!model.tensors().is_empty());
        for info in model.tensors() {
            let view = model.tensor(&info.name).unwrap();
            assert_eq!(
                Some(view.bytes.len()),
                info.dtype.bytes_for(info.n_elements()),
                "{path} {}",
                info.name
            );
        }
    }
}
