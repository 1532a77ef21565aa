//! From a path to a model: which files are chosen, and what is said where none can be.

use crate::make::{Folder, safetensors, shard, small_gguf};
use crate::{assert_contains, refusal};
use realizar_model::source::{self, Format};

const CONFIG: &str = r#"{"model_type": "llama", "rope_scaling": {"factor": 2.0}}"#;

fn index(entries: &[(&str, &str)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(tensor, shard)| format!(r#""{tensor}":"{shard}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{{}}}}}"#, entries.join(","))
}

fn names(model: &dyn source::TensorSource) -> Vec<&str> {
    model.tensors().iter().map(|tensor| tensor.name.as_str()).collect()
}

#[test]
fn a_folder_with_one_safetensors_file_opens_with_its_siblings() {
    let folder = Folder::new();
    let file = folder.file("model.safetensors", shard(&["a", "b"]));
    folder.file("adapter.safetensors", shard(&["a"]));
    folder.file("config.json", CONFIG);
    folder.file("generation_config.json", r#"{"eos_token_id": [1, 2], "temperature": 0.6}"#);
    let tokenizer = folder.file("tokenizer.json", "{}");
    for path in [folder.path(), &file] {
        let model = source::open(path).unwrap();
        assert_eq!((model.path(), model.format()), (path, Format::Safetensors));
        assert_eq!(names(&*model), ["a", "b"]);
        let m = model.metadata();
        assert_eq!(m.get_f32("rope_scaling.factor").unwrap(), Some(2.0));
        assert_eq!(m.get_i64s("generation_config.eos_token_id").unwrap(), Some(vec![1, 2]));
        assert_eq!(m.get_f32("generation_config.temperature").unwrap(), Some(0.6));
        assert_eq!(model.sibling("tokenizer.json"), Some(tokenizer.clone()));
        assert_eq!(model.sibling("chat_template.jinja"), None);
    }
}

/// A link to itself stands for a file that a failing disk does not let anybody look at.
#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_looked_at_does_not_count_as_missing() {
    let looped = |folder: &Folder, name: &str| {
        let path = folder.path().join(name);
        std::os::unix::fs::symlink(&path, &path).unwrap();
        path
    };
    for name in ["config.json", "generation_config.json", "2_Dense"] {
        let folder = Folder::new();
        folder.file("model.safetensors", shard(&["a"]));
        if name != "config.json" {
            folder.file("config.json", CONFIG);
        }
        let path = looped(&folder, name);
        refusal(path.to_str().unwrap(), source::open(folder.path()));
    }
    let folder = Folder::new();
    let file = folder.file("model.safetensors", shard(&["a"]));
    folder.file("config.json", CONFIG);
    let template = looped(&folder, "chat_template.jinja");
    assert_eq!(source::open(&file).unwrap().sibling("chat_template.jinja"), Some(template));
    let index = looped(&folder, "model.safetensors.index.json");
    refusal(index.to_str().unwrap(), source::open(&file));
}

#[test]
fn an_index_joins_its_shards() {
    let folder = Folder::new();
    folder.file("config.json", CONFIG);
    let second = folder.file("two.safetensors", shard(&["c", "stray"]));
    folder.file("one.safetensors", shard(&["a", "b"]));
    folder.file("unrelated.safetensors", shard(&["a"]));
    let index = folder.file(
        "model.safetensors.index.json",
        index(&[("a", "one.safetensors"), ("b", "one.safetensors"), ("c", "two.safetensors")]),
    );
    for path in [folder.path(), &second, &index] {
        assert_eq!(names(&*source::open(path).unwrap()), ["a", "b", "c"], "{}", path.display());
    }
}

#[test]
fn an_index_that_lies_is_refused() {
    let open = |index: &str| {
        let folder = Folder::new();
        folder.file("config.json", CONFIG);
        folder.file("one.safetensors", shard(&["a"]));
        folder.file("model.safetensors.index.json", index);
        source::open(folder.path())
    };
    let message = refusal("two.safetensors", open(&index(&[("a", "two.safetensors")])));
    assert_contains(&message, &["could not open"]);
    let message = refusal("index.json", open(&index(&[("a", "one.safetensors"), ("b", "one.safetensors")])));
    assert_contains(&message, &["\"b\" is not in", "one.safetensors"]);
    for outside in ["../x", "/etc/passwd", "sub/x.safetensors", r"..\\x", "", ".."] {
        let message = refusal("index.json", open(&index(&[("a", outside)])));
        assert_contains(&message, &["\"a\"", "not the name of a file beside the index"]);
    }
    assert_contains(&refusal("index.json", open("{}")), &["weight_map"]);
    assert_contains(&refusal("index.json", open(&index(&[]))), &["weight_map is empty"]);
    assert_contains(&refusal("index.json", open(r#"{"weight_map": ["a"]}"#)), &["not a safetensors index"]);
    assert_contains(&refusal("index.json", open("nonsense")), &["not a safetensors index"]);
}

#[test]
fn several_files_without_an_index_join_unless_names_collide() {
    let folder = Folder::new();
    folder.file("config.json", CONFIG);
    folder.file("1.safetensors", shard(&["a"]));
    folder.file("2.safetensors", shard(&["b"]));
    assert_eq!(names(&*source::open(folder.path()).unwrap()), ["a", "b"]);
    folder.file("3.safetensors", shard(&["a"]));
    let message = refusal("3.safetensors", source::open(folder.path()));
    assert_contains(&message, &["\"a\" is also in", "1.safetensors"]);
}

#[test]
fn a_folder_with_one_gguf_opens_and_with_two_asks_which() {
    let folder = Folder::new();
    let file = folder.file("m.gguf", small_gguf());
    folder.file("README.md", "hello");
    folder.file("tokenizer.json", "{}");
    let model = source::open(folder.path()).unwrap();
    assert_eq!((model.path(), model.format()), (file.as_path(), Format::Gguf));
    assert_eq!(model.sibling("tokenizer.json"), None);
    folder.file("n.gguf", small_gguf());
    let message = refusal(folder.path().to_str().unwrap(), source::open(folder.path()));
    assert_contains(&message, &["2 GGUF models", "\"m.gguf\"", "\"n.gguf\"", "name one"]);
}

#[test]
fn folders_without_a_model_say_what_was_looked_for() {
    let folder = Folder::new();
    let name = folder.path().to_str().unwrap();
    let message = refusal(name, source::open(folder.path()));
    assert_contains(&message, &["model.safetensors", ".gguf"]);
    folder.file("pytorch_model.bin", "PK");
    assert_contains(&refusal(name, source::open(folder.path())), &["convert", "safetensors"]);
    let message = refusal("pytorch_model.bin", source::open(&folder.path().join("pytorch_model.bin")));
    assert_contains(&message, &["convert"]);
    let file = folder.file("model.safetensors", shard(&["a"]));
    for path in [folder.path(), &file] {
        assert_contains(&refusal(name, source::open(path)), &["config.json", "is not there"]);
    }
    folder.file("config.json", "{");
    assert_contains(&refusal("config.json", source::open(folder.path())), &["JSON"]);
    folder.file("config.json", CONFIG);
    folder.file("generation_config.json", "[]");
    assert_contains(&refusal("generation_config.json", source::open(folder.path())), &["JSON object"]);
}

#[test]
fn things_that_are_no_files_are_refused() {
    let folder = Folder::new();
    let message = refusal("absent.gguf", source::open(&folder.path().join("absent.gguf")));
    assert_contains(&message, &["could not open"]);
    let empty = folder.file("empty.gguf", "");
    assert_contains(&refusal("empty.gguf", source::open(&empty)), &["empty"]);
    let empty = folder.file("empty.safetensors", "");
    folder.file("config.json", CONFIG);
    assert_contains(&refusal("empty.safetensors", source::open(&empty)), &["empty"]);
    let text = folder.file("notes.txt", "hello");
    assert_contains(&refusal("notes.txt", source::open(&text)), &["neither a GGUF nor a safetensors"]);
    let inner = folder.path().join("inner.gguf");
    std::fs::create_dir(&inner).unwrap();
    assert_contains(&refusal("inner.gguf", source::open(&inner)), &["holds no"]);
    #[cfg(unix)]
    assert_contains(&refusal("/dev/null", source::open("/dev/null".as_ref())), &["not a regular file"]);
}

#[test]
fn files_without_an_extension_are_told_apart_by_content() {
    let folder = Folder::new();
    folder.file("config.json", CONFIG);
    let gguf = folder.file("0a1b", small_gguf());
    let tensors = folder.file("2c3d", safetensors("{}", &[]));
    assert_eq!(source::open(&gguf).unwrap().format(), Format::Gguf);
    assert_eq!(source::open(&tensors).unwrap().format(), Format::Safetensors);
}
