//! Split GGUF models.

use crate::make::{Folder, bytes_of};
use crate::{assert_contains, refusal};
use realizar_compute::DType;
use realizar_model::metadata::Value;
use realizar_model::{gguf, source};
use std::path::PathBuf;

/// Writes parts the way llama.cpp's splitter does: all metadata in the first, `split.*` in each.
fn write_parts(
    folder: &Folder,
    prefix: &str,
    parts: &[&[&str]],
    overrides: &[(usize, &str, Value)],
) -> Vec<PathBuf> {
    let n_tensors: usize = parts.iter().map(|names| names.len()).sum();
    let mut paths = Vec::new();
    for (index, names) in parts.iter().enumerate() {
        let path = folder.path().join(format!("{prefix}-{:05}-of-{:05}.gguf", index + 1, parts.len()));
        let mut header = gguf::Header::new(&path);
        if index == 0 {
            header.set("general.architecture", "llama").unwrap();
        }
        for (key, value) in [
            ("split.no", Value::U16(index as u16)),
            ("split.count", Value::U16(parts.len() as u16)),
            ("split.tensors.count", Value::I32(n_tensors as i32)),
        ] {
            let replaced = overrides.iter().find(|(part, k, _)| (*part, *k) == (index, key));
            header.set(key, replaced.map_or(value, |(_, _, value)| value.clone())).unwrap();
        }
        for name in *names {
            header.tensor(*name, DType::F32, &[1]).unwrap();
        }
        let mut writer = gguf::Writer::create(header).unwrap();
        for name in *names {
            writer.tensor(name, &bytes_of(&[name.len() as f32])).unwrap();
        }
        writer.finish().unwrap();
        paths.push(path);
    }
    paths
}

const PARTS: &[&[&str]] = &[&["a", "bb"], &["ccc"], &["dddd"]];

#[test]
fn any_part_opens_the_whole_model() {
    let folder = Folder::new();
    let paths = write_parts(&folder, "my-model", PARTS, &[]);
    for given in paths.iter().chain([&folder.path().to_owned()]) {
        let model = source::open(given).unwrap();
        assert_eq!(model.path(), paths[0]);
        let names: Vec<_> = model.tensors().iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "bb", "ccc", "dddd"]);
        for name in names {
            assert_eq!(model.tensor(name).unwrap().bytes, bytes_of(&[name.len() as f32]));
        }
        assert_eq!(model.metadata().get_str("general.architecture").unwrap(), Some("llama"));
        assert_contains(&model.tensor("e").unwrap_err().to_string(), &["00001-of-00003.gguf", "\"e\""]);
    }
}

#[test]
fn a_first_part_without_tensors_is_fine() {
    let folder = Folder::new();
    let paths = write_parts(&folder, "m", &[&[], &["a"]], &[]);
    assert_eq!(source::open(&paths[0]).unwrap().tensors().len(), 1);
}

#[test]
fn a_missing_part_is_named() {
    for missing in 1..3 {
        let folder = Folder::new();
        let paths = write_parts(&folder, "m", PARTS, &[]);
        std::fs::remove_file(&paths[missing]).unwrap();
        let message = refusal(&format!("m-0000{}-of-00003.gguf", missing + 1), source::open(&paths[0]));
        assert_contains(&message, &["could not open"]);
    }
}

#[test]
fn parts_that_disagree_are_refused() {
    let open = |parts: &[&[&str]], overrides: &[(usize, &str, Value)]| {
        let folder = Folder::new();
        let paths = write_parts(&folder, "m", parts, overrides);
        source::open(&paths[0])
    };
    let (second, third) = ("m-00002-of-00003.gguf", "m-00003-of-00003.gguf");
    let message = refusal(second, open(PARTS, &[(1, "split.no", Value::U16(2))]));
    assert_contains(&message, &["\"split.no\" must be 1 but is 2"]);
    let message = refusal(third, open(PARTS, &[(2, "split.count", Value::U16(4))]));
    assert_contains(&message, &["\"split.count\" must be 3 but is 4"]);
    let message = refusal(second, open(PARTS, &[(1, "split.no", Value::Bool(true))]));
    assert_contains(&message, &["split.no"]);
    let message = refusal("m-00001-of", open(PARTS, &[(0, "split.tensors.count", Value::I32(9))]));
    assert_contains(&message, &["9 tensors", "hold 4"]);
    let message = refusal(third, open(&[&["a"], &["b"], &["a"]], &[]));
    assert_contains(&message, &["\"a\" is also in", "m-00001-of-00003.gguf"]);
}

#[test]
fn a_renamed_part_is_refused_with_the_name_it_must_have() {
    let folder = Folder::new();
    let paths = write_parts(&folder, "m", PARTS, &[]);
    let renamed = folder.path().join("x.gguf");
    std::fs::rename(&paths[1], &renamed).unwrap();
    assert_contains(&refusal("x.gguf", source::open(&renamed)), &["<name>-00002-of-00003.gguf"]);
    // A name that claims another part than the file is.
    let wrong = folder.path().join("m-00002-of-00003.gguf");
    std::fs::rename(&paths[2], &wrong).unwrap();
    assert_contains(&refusal("m-00002-of", source::open(&wrong)), &["<name>-00003-of-00003.gguf"]);
}
