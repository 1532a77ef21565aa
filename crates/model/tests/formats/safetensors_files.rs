//! safetensors files in memory: what a good one holds, and one refusal per rule of the format.

use crate::make::{bytes_of, safetensors};
use crate::{assert_contains, refusal};
use bytes::Bytes;
use realizar_compute::DType;
use realizar_model::Error;
use realizar_model::metadata::Value;
use realizar_model::source::{self, Format, TensorSource};

const CONFIG: &[u8] = br#"{"model_type": "llama"}"#;

fn open(bytes: &[u8]) -> realizar_model::Result<Box<dyn TensorSource>> {
    source::open_safetensors_bytes("small.safetensors", CONFIG, Bytes::copy_from_slice(bytes))
}

#[track_caller]
fn assert_refused(header: &str, n_data_bytes: usize, wanted: &[&str]) {
    assert_contains(
        &refusal("small.safetensors", open(&safetensors(header, &vec![0; n_data_bytes]))),
        wanted,
    );
}

#[test]
fn tensors_are_found_where_the_header_says() {
    let header = r#"{"__metadata__":{"format":"pt"},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
        "a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},
        "scalar":{"dtype":"F16","shape":[],"data_offsets":[12,14]},
        "empty":{"dtype":"F16","shape":[0,7],"data_offsets":[14,14]}}   "#;
    let data = [vec![1, 2, 3, 4], bytes_of(&[1.5, -2.0]), vec![9, 9]].concat();
    let model = open(&safetensors(header, &data)).unwrap();
    assert_eq!(model.format(), Format::Safetensors);
    let found: Vec<_> = model.tensors().iter().map(|t| (t.name.as_str(), t.dtype, t.shape.clone())).collect();
    let expected = [
        ("a", DType::BF16, vec![2, 1]),
        ("b", DType::F32, vec![2]),
        ("scalar", DType::F16, vec![]),
        ("empty", DType::F16, vec![0, 7]),
    ];
    assert_eq!(found, expected);
    assert_eq!(model.tensor("b").unwrap().bytes, bytes_of(&[1.5, -2.0]));
    assert_eq!(model.tensor("a").unwrap().bytes, [1, 2, 3, 4][..]);
    assert_eq!(model.metadata().get_str("model_type").unwrap(), Some("llama"));
}

#[test]
fn types_that_cannot_be_weights_are_refused_only_when_asked_for() {
    let header = r#"{"scale":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},
        "ids":{"dtype":"I64","shape":[1],"data_offsets":[4,12]}}"#;
    let model = open(&safetensors(header, &[0; 12])).unwrap();
    assert!(model.tensors().is_empty());
    for (name, dtype) in [("scale", "F8_E4M3"), ("ids", "I64")] {
        let error = model.tensor(name).unwrap_err();
        assert!(matches!(error, Error::UnsupportedType { .. }));
        assert_contains(&error.to_string(), &["small.safetensors", name, dtype]);
    }
}

#[test]
fn headers_that_lie_are_refused() {
    let w = |rest: &str| format!(r#"{{"w":{{"dtype":"F32",{rest}}}}}"#);
    assert_refused(&w(r#""shape":[2],"data_offsets":[0,12]"#), 12, &["\"w\"", "F32 [2]", "12 bytes"]);
    assert_refused(&w(r#""shape":[2],"data_offsets":[0,8]"#), 7, &["cut off", "\"w\""]);
    assert_refused(&w(r#""shape":[2],"data_offsets":[0,8]"#), 9, &["end at data offset 8", "9 bytes"]);
    assert_refused(&w(r#""shape":[2],"data_offsets":[4,12]"#), 12, &["\"w\"", "gap"]);
    assert_refused(&w(r#""shape":[2],"data_offsets":[8,0]"#), 8, &["\"w\""]);
    assert_refused(&w(r#""shape":[2],"data_offsets":[0]"#), 8, &["bad safetensors header"]);
    assert_refused(&w(r#""shape":[-2],"data_offsets":[0,8]"#), 8, &["bad safetensors header"]);
    assert_refused(&w(r#""shape":[2]"#), 8, &["bad safetensors header", "data_offsets"]);
    let huge = u64::MAX;
    assert_refused(&w(&format!(r#""shape":[{huge},{huge}],"data_offsets":[0,8]"#)), 8, &["\"w\""]);
    assert_refused(&w(&format!(r#""shape":[2],"data_offsets":[0,{huge}]"#)), 8, &["cut off", "\"w\""]);
    assert_refused(&w(&format!(r#""shape":[2],"data_offsets":[{huge},{huge}]"#)), 8, &["\"w\"", "gap"]);
    assert_refused(
        r#"{"w":{"dtype":"Q9","shape":[2],"data_offsets":[0,8]}}"#,
        8,
        &["\"w\"", "unknown element type", "Q9"],
    );
    assert_refused("[]", 0, &["bad safetensors header"]);
    assert_refused("{", 0, &["bad safetensors header"]);
    assert_refused(&"[".repeat(10_000), 0, &["bad safetensors header"]);
    assert_refused(&format!(r#"{{"w":{}"#, "[".repeat(10_000)), 0, &["bad safetensors header"]);
}

#[test]
fn tensors_on_each_other_or_twice_are_refused() {
    let two = |a: &str, b: &str, offsets: &str| {
        format!(
            r#"{{"{a}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}},
                "{b}":{{"dtype":"F32","shape":[2],"data_offsets":{offsets}}}}}"#
        )
    };
    open(&safetensors(&two("a", "b", "[8,16]"), &[0; 16])).unwrap();
    assert_refused(&two("a", "b", "[4,12]"), 12, &["\"b\"", "inside the tensor before it"]);
    assert_refused(&two("a", "b", "[0,8]"), 8, &["inside the tensor before it"]);
    assert_refused(&two("a", "b", "[12,20]"), 20, &["\"b\"", "gap"]);
    assert_refused(&two("a", "a", "[8,16]"), 16, &["\"a\"", "twice"]);
}

#[test]
fn absurd_header_lengths_are_refused() {
    for length in [3u64, 1 << 20, 99_999_999] {
        assert_contains(&refusal("small.safetensors", open(&length.to_le_bytes())), &["cut off", "header"]);
    }
    for length in [100_000_001, u64::MAX] {
        let message = refusal("small.safetensors", open(&length.to_le_bytes()));
        assert_contains(&message, &["at most 100000000 bytes", &length.to_string()]);
    }
    assert_contains(&refusal("small.safetensors", open(&[1, 2, 3])), &["cut off", "header's length"]);
}

#[test]
fn the_config_is_flattened_and_typed() {
    let config = br#"{"hidden_size": 64, "rope_theta": 10000, "eps": 1e-05, "tie": true, "head_dim": null,
        "rope_scaling": {"factor": 8.0, "rope_type": "llama3", "deep": {"er": -1}},
        "eos_token_id": [1, 2], "names": ["a", "b"], "mixed": [1, "a"], "floats": [1, 2.5], "flags": [true],
        "none": [], "big": 18446744073709551615}"#;
    let file = safetensors("{}", &[]);
    let model = source::open_safetensors_bytes("m", config, Bytes::from(file)).unwrap();
    let m = model.metadata();
    assert_eq!(m.get_usize("hidden_size").unwrap(), Some(64));
    assert_eq!(m.get_f32("rope_theta").unwrap(), Some(10000.0));
    assert_eq!(m.get_f32("eps").unwrap(), Some(1e-5));
    assert_eq!(m.get_bool("tie").unwrap(), Some(true));
    assert_eq!(m.get_usize("head_dim").unwrap(), None);
    assert_eq!(m.get_f32("rope_scaling.factor").unwrap(), Some(8.0));
    assert_eq!(m.get_str("rope_scaling.rope_type").unwrap(), Some("llama3"));
    assert_eq!(m.get_i64("rope_scaling.deep.er").unwrap(), Some(-1));
    assert_eq!(m.get_i64s("eos_token_id").unwrap(), Some(vec![1, 2]));
    assert_eq!(m.get_strings("names").unwrap(), Some(vec!["a", "b"]));
    assert_eq!(m.get_f32s("floats").unwrap(), Some(vec![1.0, 2.5]));
    assert_eq!(m.get_bools("flags").unwrap(), Some(vec![true]));
    assert_eq!(m.get_i64s("none").unwrap(), Some(vec![]));
    assert_eq!(m.get("big"), Some(&Value::U64(u64::MAX)));
    assert_eq!(m.get("mixed"), None);
    assert_eq!(m.config_json().unwrap()["mixed"][1], "a");
    let message = m.get_usize("rope_scaling.factor").unwrap_err().to_string();
    assert_contains(&message, &["config.json", "rope_scaling.factor", "8"]);
}

#[test]
fn bad_configs_are_refused() {
    let nested = "{\"a\":".repeat(200);
    let long = format!(r#"{{"{}": 1}}"#, "k".repeat(600));
    for (config, wanted) in [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        ("[1]", "not a JSON object"),
        (r#"{"a.b": 1, "a": {"b": 2}}"#, "twice"),
        (nested.as_str(), "not valid JSON"),
        (long.as_str(), "longer than 512"),
        (r#"{"a": 1e999}"#, "not valid JSON"),
    ] {
        let model =
            source::open_safetensors_bytes("m", config.as_bytes(), Bytes::from(safetensors("{}", &[])));
        assert_contains(&refusal("config.json", model), &[wanted]);
    }
}
