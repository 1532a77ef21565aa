//! GGUF files in memory: round trips, and one refusal per rule of the format.

use crate::make::{Random, Raw, bytes_of, small_gguf, string};
use crate::{assert_contains, refusal};
use bytes::Bytes;
use realizar_compute::DType;
use realizar_model::metadata::{Array, Strings, Value};
use realizar_model::source::{self, Format, TensorSource};
use realizar_model::{Error, gguf};
use std::collections::HashSet;

fn open(bytes: &[u8]) -> realizar_model::Result<Box<dyn TensorSource>> {
    source::open_gguf_bytes("small.gguf", Bytes::copy_from_slice(bytes))
}

#[track_caller]
fn assert_refused(raw: Raw, wanted: &[&str]) {
    assert_contains(&refusal("small.gguf", open(&raw.bytes())), wanted);
}

#[test]
fn what_the_writer_wrote_is_read_back() {
    let model = open(&small_gguf()).unwrap();
    assert_eq!(model.format(), Format::Gguf);
    let m = model.metadata();
    assert_eq!(m.get_str("general.architecture").unwrap(), Some("llama"));
    assert_eq!(m.get_usize("u8").unwrap(), Some(200));
    assert_eq!(m.get_i64("i8").unwrap(), Some(-3));
    assert_eq!(m.get_usize("u16").unwrap(), Some(60_000));
    assert_eq!(m.get_i64("i16").unwrap(), Some(-300));
    assert_eq!(m.get_usize("u32").unwrap(), Some(4_000_000_000));
    assert_eq!(m.get_i64("i32").unwrap(), Some(-70_000));
    assert_eq!(m.get("u64"), Some(&Value::U64(u64::MAX)));
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

    let found: Vec<_> = model.tensors().iter().map(|t| (t.name.as_str(), t.dtype, t.shape.clone())).collect();
    let expected =
        [("norm", DType::F32, vec![3]), ("up", DType::F32, vec![2, 3]), ("half", DType::F16, vec![4, 2, 2])];
    assert_eq!(found, expected);
    assert_eq!(model.tensor("norm").unwrap().bytes, bytes_of(&[1.0, 2.0, 3.0]));
    assert_eq!(model.tensor("up").unwrap().bytes, bytes_of(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]));
    assert_eq!(model.tensor("half").unwrap().bytes, (0..32).collect::<Vec<u8>>());
}

#[test]
fn a_view_outlives_its_model() {
    let view = open(&small_gguf()).unwrap().tensor("norm").unwrap();
    assert_eq!((view.dtype, view.shape), (DType::F32, vec![3]));
    assert_eq!(view.bytes, bytes_of(&[1.0, 2.0, 3.0]));
}

#[test]
fn a_missing_tensor_is_named_with_its_file() {
    let model = open(&small_gguf()).unwrap();
    let error = model.tensor("down").unwrap_err();
    assert!(matches!(error, Error::MissingTensor { .. }));
    assert_eq!(error.to_string(), r#"small.gguf: tensor "down" is missing"#);
    assert!(model.find("down").is_none());
    assert_eq!(model.sibling("small.gguf"), None);
}

#[test]
fn a_value_of_another_type_is_an_error_that_names_file_key_and_value() {
    let model = open(&small_gguf()).unwrap();
    let m = model.metadata();
    let message = m.get_usize("general.architecture").unwrap_err().to_string();
    assert_eq!(
        message,
        r#"small.gguf: metadata key "general.architecture" must be a non-negative integer but is "llama""#
    );
    assert_contains(&m.get_usize("i8").unwrap_err().to_string(), &["small.gguf", "\"i8\"", "-3"]);
    assert_contains(&m.get_i64("u64").unwrap_err().to_string(), &["18446744073709551615"]);
    assert_contains(&m.get_usize("f32").unwrap_err().to_string(), &["non-negative integer"]);
    assert_contains(&m.get_bool("u8").unwrap_err().to_string(), &["true or false", "200"]);
    assert_contains(&m.get_str("tokens").unwrap_err().to_string(), &["a string", "an array of 3 strings"]);
    assert_contains(&m.get_strings("scores").unwrap_err().to_string(), &["array of strings", "2 f32"]);
    assert_contains(&m.get_i64s("scores").unwrap_err().to_string(), &["array of integers", "2 f32"]);
    assert_contains(&m.get_f32s("tokens").unwrap_err().to_string(), &["array of numbers", "3 strings"]);
    assert_contains(&m.get_f32("bool").unwrap_err().to_string(), &["a number", "true"]);
    assert_eq!(m.get_usize("absent").unwrap(), None);
    assert_eq!(m.get_strings("absent").unwrap(), None);
}

#[test]
fn numbers_widen_and_single_ones_count_as_lists() {
    let model = open(&small_gguf()).unwrap();
    let m = model.metadata();
    assert_eq!(m.get_f32("u8").unwrap(), Some(200.0));
    assert_eq!(m.get_f32s("types").unwrap(), Some(vec![1.0, 3.0, 6.0]));
    assert_eq!(m.get_i64s("u8").unwrap(), Some(vec![200]));
    assert_eq!(m.get_f32s("f32").unwrap(), Some(vec![1e-5]));
}

#[test]
fn a_vocabulary_may_hold_tokens_that_are_not_utf8() {
    let tokens =
        [8u32.to_le_bytes().to_vec(), 2u64.to_le_bytes().to_vec(), string(b"ok"), string(&[0xE2, 0x82])];
    let model = open(&Raw::new().pair(b"tokens", 9, &tokens.concat()).bytes()).unwrap();
    let strings = model.metadata().get_byte_strings("tokens").unwrap().unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), [&b"ok"[..], &[0xE2, 0x82]]);
    let message = model.metadata().get_strings("tokens").unwrap_err().to_string();
    assert_contains(&message, &["small.gguf", "\"tokens\"", "UTF-8", "index 1"]);
}

#[test]
fn other_magic_versions_and_byte_orders_are_refused_by_name() {
    assert_refused(Raw { magic: *b"GGML", ..Raw::new() }, &["not a model", "begins with \"GGUF\"", "GGML"]);
    assert_refused(Raw { magic: *b"\x1b[2J", ..Raw::new() }, &["not a model"]);
    assert_refused(Raw { version: 1, ..Raw::new() }, &["version 1", "convert"]);
    assert_refused(Raw { version: 0, ..Raw::new() }, &["version is 0"]);
    assert_refused(Raw { version: 4, ..Raw::new() }, &["version is 4"]);
    assert_refused(Raw { version: 3u32.swap_bytes(), ..Raw::new() }, &["big-endian"]);
    open(&Raw { version: 2, ..Raw::new() }.bytes()).unwrap();
}

#[test]
fn counts_and_lengths_beyond_the_file_are_refused() {
    for count in [1, 1 << 20, 1 << 60, u64::MAX] {
        assert_refused(Raw { n_tensors: count, ..Raw::new() }, &[&count.to_string(), "tensors"]);
        assert_refused(Raw { n_pairs: count, ..Raw::new() }, &[&count.to_string(), "metadata pairs"]);
        let length = count + (count == 1) as u64 * 100;
        assert_refused(Raw::new().pair(b"name", 8, &length.to_le_bytes()), &["cut off", "\"name\""]);
        for element_type in 0..=12u32 {
            let array = [&element_type.to_le_bytes()[..], &length.to_le_bytes()].concat();
            assert_refused(Raw::new().pair(b"list", 9, &array), &["\"list\""]);
        }
    }
}

#[test]
fn malformed_metadata_is_refused() {
    assert_refused(Raw::new().pair(b"", 0, &[1]), &["metadata key 0 is empty"]);
    assert_refused(Raw::new().pair(b"a", 0, &[1]).pair(b"a", 0, &[2]), &["\"a\"", "twice"]);
    assert_refused(Raw::new().pair(b"a\xFF\n", 0, &[1]), &["metadata key 0", "UTF-8", r"a\xff\n"]);
    assert_refused(Raw::new().pair(b"name", 8, &string(b"\xFF")), &["\"name\"", "UTF-8"]);
    assert_refused(Raw::new().pair(b"flag", 7, &[2]), &["\"flag\"", "bool of 2"]);
    assert_refused(Raw::new().pair(b"what", 13, &[0; 8]), &["\"what\"", "unknown type 13"]);
    let flags = [&7u32.to_le_bytes()[..], &2u64.to_le_bytes(), &[1, 3]].concat();
    assert_refused(Raw::new().pair(b"flags", 9, &flags), &["\"flags\"", "bool of 3"]);
    let list = |element_type: u32| [&element_type.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    assert_refused(Raw::new().pair(b"list", 9, &list(9)), &["\"list\"", "array of arrays"]);
    assert_refused(Raw::new().pair(b"list", 9, &list(99)), &["\"list\"", "unknown element type 99"]);
    assert_refused(Raw::new().pair(&[b'k'; 70_000], 0, &[1]), &["70000 bytes", "65535"]);
}

#[test]
fn the_alignment_of_the_file_is_honoured() {
    let aligned = |alignment: u32| {
        Raw { alignment: alignment as usize, ..Raw::new() }
            .pair(b"general.alignment", 4, &alignment.to_le_bytes())
            .tensor(b"a", &[1], 0, 0)
            .tensor(b"b", &[1], 0, u64::from(alignment))
            .data(alignment as usize + 4)
    };
    for alignment in [1, 8, 64, 4096] {
        // With an alignment below 4, b would begin inside a.
        let model = open(&aligned(alignment).bytes());
        if alignment < 4 {
            assert_contains(&refusal("small.gguf", model), &["overlaps"]);
        } else {
            assert_eq!(
                model.unwrap().tensor("b").unwrap().bytes,
                &aligned(alignment).data[alignment as usize..]
            );
        }
    }
    for wrong in [0u32, 3, 48] {
        let raw = Raw::new().pair(b"general.alignment", 4, &wrong.to_le_bytes());
        assert_refused(raw, &["general.alignment", "power of two", &wrong.to_string()]);
    }
    assert_refused(Raw::new().pair(b"general.alignment", 8, &string(b"x")), &["general.alignment"]);
    let huge = (1u64 << 63).to_le_bytes();
    assert_refused(
        Raw::new().pair(b"general.alignment", 10, &huge).tensor(b"a", &[1], 0, 0),
        &["cut off", "\"a\""],
    );
}

#[test]
fn tensors_outside_the_file_or_on_each_other_are_refused() {
    let ok = |offset_b: u64, n_bytes: usize| {
        Raw::new().tensor(b"a", &[8, 2], 0, 0).tensor(b"b", &[8], 0, offset_b).data(n_bytes)
    };
    open(&ok(64, 96).bytes()).unwrap();
    open(&ok(96, 128).bytes()).unwrap();
    assert_refused(ok(64, 95), &["cut off", "\"b\"", "32 bytes"]);
    assert_refused(ok(32, 96), &["\"b\"", "overlaps", "\"a\""]);
    assert_refused(ok(0, 96), &["overlaps"]);
    assert_refused(ok(65, 256), &["\"b\"", "offset 65", "32"]);
    assert_refused(ok(1 << 40, 96), &["cut off", "\"b\""]);
    assert_refused(ok(u64::MAX - 31, 96), &["\"b\""]);
    // The directory need not be in the order of the data.
    let swapped = Raw::new().tensor(b"a", &[8], 0, 32).tensor(b"b", &[8], 0, 0).data(64).bytes();
    let model = open(&swapped).unwrap();
    assert_eq!(model.tensors()[0].name, "a");
    assert_eq!(model.tensor("a").unwrap().bytes[0], 32);
}

#[test]
fn malformed_directory_entries_are_refused() {
    let one = |dims: &[u64], type_id| Raw::new().tensor(b"w", dims, type_id, 0).data(4096);
    assert_refused(one(&[4], 4), &["\"w\"", "ggml type 4"]);
    assert_refused(one(&[4], 9), &["\"w\"", "ggml type 9"]);
    assert_refused(one(&[4], 77), &["\"w\"", "ggml type 77"]);
    assert_refused(one(&[4], u32::MAX), &["\"w\"", "ggml type 4294967295"]);
    assert_refused(one(&[1, 1, 1, 1, 1], 0), &["\"w\"", "5 dimensions"]);
    assert_refused(one(&[1 << 32, 1 << 32], 0), &["\"w\"", "larger than any file"]);
    assert_refused(one(&[u64::MAX], 0), &["\"w\"", "larger than any file"]);
    assert_refused(one(&[1 << 62], 0), &["\"w\"", "larger than any file"]);
    assert_refused(one(&[48], DType::Q8_0.spec().ggml_id), &["\"w\"", "48 elements", "block of 32"]);
    // 16 rows of half a block are as many elements as 8 blocks, but no row may share a block with the next.
    assert_refused(one(&[16, 16], DType::Q8_0.spec().ggml_id), &["\"w\"", "16 elements"]);
    assert_refused(one(&[4], 0).tensor(b"w", &[4], 0, 32), &["\"w\"", "twice"]);
    assert_refused(Raw::new().tensor(b"\xFF", &[4], 0, 0).data(64), &["tensor 0", "UTF-8"]);
}

#[test]
fn dimensions_come_out_outermost_first_without_outer_ones() {
    for (dims, shape) in [
        (&[][..], vec![1]),
        (&[5], vec![5]),
        (&[5, 1, 1, 1], vec![5]),
        (&[2, 3], vec![3, 2]),
        (&[2, 3, 1, 1], vec![3, 2]),
        (&[1, 3], vec![3, 1]),
        (&[2, 1, 3], vec![3, 1, 2]),
        (&[1, 1, 1], vec![1]),
        (&[2, 0], vec![0, 2]),
    ] {
        let model = open(&Raw::new().tensor(b"w", dims, 0, 0).data(64).bytes()).unwrap();
        assert_eq!(model.tensors()[0].shape, shape, "{dims:?}");
        assert_eq!(model.tensor("w").unwrap().bytes.len(), 4 * shape.iter().product::<usize>());
    }
}

#[test]
fn tensors_that_cannot_be_weights_are_refused_only_when_asked_for() {
    let raw = Raw::new().tensor(b"ids", &[8], 26, 0).tensor(b"w", &[8], 0, 32).data(64);
    let model = open(&raw.bytes()).unwrap();
    assert_eq!(model.tensors().len(), 1);
    assert!(model.find("ids").is_none());
    let error = model.tensor("ids").unwrap_err();
    assert!(matches!(error, Error::UnsupportedType { .. }));
    assert_contains(&error.to_string(), &["small.gguf", "\"ids\"", "I32"]);
    let overlapping = Raw::new().tensor(b"ids", &[8], 27, 0).tensor(b"w", &[8], 0, 32).data(64);
    assert_refused(overlapping, &["\"w\"", "overlaps"]);
}

#[test]
fn a_part_of_a_split_model_in_memory_is_refused() {
    assert_refused(Raw::new().pair(b"split.count", 2, &3u16.to_le_bytes()), &["3 parts"]);
    open(&Raw::new().pair(b"split.count", 2, &1u16.to_le_bytes()).bytes()).unwrap();
}

#[test]
fn the_writer_refuses_what_no_reader_could_use() {
    let mut header = gguf::Header::new("out.gguf");
    header.tensor("w", DType::F32, &[2]).unwrap();
    header.tensor("v", DType::F32, &[1]).unwrap();
    let long = "n".repeat(64);
    for (name, dtype, shape, wanted) in [
        ("w", DType::F32, &[2][..], "twice"),
        ("", DType::F32, &[2], "1 to 63"),
        (&long, DType::F32, &[2], "1 to 63"),
        ("x", DType::F32, &[], "0 dimensions"),
        ("x", DType::F32, &[1; 5], "5 dimensions"),
        ("x", DType::Q8_0, &[2, 48], "block of 32"),
        ("x", DType::F32, &[usize::MAX, 2], "larger than any file"),
    ] {
        let message = header.tensor(name, dtype, shape).unwrap_err().to_string();
        assert_contains(&message, &["out.gguf", wanted]);
    }
    header.set("a", 1u32).unwrap();
    assert_contains(&header.set("a", 2u32).unwrap_err().to_string(), &["out.gguf", "\"a\"", "twice"]);
    assert_contains(&header.set("general.alignment", 5u32).unwrap_err().to_string(), &["power of two"]);
    assert_contains(&header.set("general.alignment", 32u64).unwrap_err().to_string(), &["u32"]);

    let mut writer = gguf::Writer::new(Vec::new(), header.clone()).unwrap();
    assert_contains(&writer.tensor("v", &[0; 4]).unwrap_err().to_string(), &["\"v\"", "\"w\" was announced"]);
    assert_contains(
        &writer.tensor("w", &[0; 4]).unwrap_err().to_string(),
        &["\"w\"", "needs 8 bytes but has 4"],
    );
    writer.tensor("w", &[0; 8]).unwrap();
    let error = writer.finish().unwrap_err();
    assert_contains(&error.to_string(), &["out.gguf", "\"v\"", "missing"]);

    let nowhere = gguf::Header::new("/nonexistent/out.gguf");
    let error = gguf::Writer::create(nowhere).err().unwrap();
    assert_contains(&error.to_string(), &["could not create /nonexistent/out.gguf"]);
}

fn random_value(random: &mut Random) -> Value {
    let list = |random: &mut Random| (0..random.below(6)).map(|_| random.next()).collect::<Vec<u64>>();
    match random.below(25) {
        0 => (random.next() as u8).into(),
        1 => (random.next() as i8).into(),
        2 => (random.next() as u16).into(),
        3 => (random.next() as i16).into(),
        4 => (random.next() as u32).into(),
        5 => (random.next() as i32).into(),
        6 => random.next().into(),
        7 => (random.next() as i64).into(),
        8 => (random.next() as i32 as f32 / 256.0).into(),
        9 => (random.next() as i64 as f64 / 256.0).into(),
        10 => (random.below(2) == 1).into(),
        11 | 12 => "ä".repeat(random.below(20)).into(),
        13 => list(random).iter().map(|&v| v as u8).collect::<Vec<_>>().into(),
        14 => list(random).iter().map(|&v| v as i8).collect::<Vec<_>>().into(),
        15 => list(random).iter().map(|&v| v as u16).collect::<Vec<_>>().into(),
        16 => list(random).iter().map(|&v| v as i16).collect::<Vec<_>>().into(),
        17 => list(random).iter().map(|&v| v as u32).collect::<Vec<_>>().into(),
        18 => list(random).iter().map(|&v| v as i32).collect::<Vec<_>>().into(),
        19 => list(random).into(),
        20 => list(random).iter().map(|&v| v as i64).collect::<Vec<_>>().into(),
        21 => list(random).iter().map(|&v| v as i32 as f32).collect::<Vec<_>>().into(),
        22 => list(random).iter().map(|&v| v as i32 as f64).collect::<Vec<_>>().into(),
        23 => list(random).iter().map(|&v| v & 1 == 1).collect::<Vec<_>>().into(),
        _ => list(random).iter().map(|v| v.to_le_bytes()).collect::<Strings>().into(),
    }
}

/// Any header that the writer accepts is read back equal, type for type, and tensors byte for byte.
#[test]
fn random_files_survive_the_round_trip() {
    let dtypes = [DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q6_K];
    let mut kinds = HashSet::new();
    for seed in 0..500 {
        let mut random = Random(seed);
        let mut header = gguf::Header::new("random.gguf");
        let mut values = Vec::new();
        if random.below(2) == 1 {
            values.push(("general.alignment".to_owned(), Value::U32(8 << random.below(5))));
        }
        for index in 0..random.below(8) {
            values.push((format!("key.{index}"), random_value(&mut random)));
        }
        for (key, value) in &values {
            kinds.insert(match value {
                Value::Array(array) => array.type_name().to_owned(),
                scalar => format!("{:?}", std::mem::discriminant(scalar)),
            });
            header.set(key, value.clone()).unwrap();
        }
        let mut tensors = Vec::new();
        for index in 0..random.below(6) {
            let dtype = dtypes[random.below(dtypes.len())];
            // The outermost dimension is not 1: that would be dropped, as ggml does.
            let mut shape: Vec<usize> = (0..random.below(4)).map(|_| 2 + random.below(3)).collect();
            shape.push(dtype.block_len() * (1 + random.below(2)));
            let n_bytes = dtype.bytes_for(shape.iter().product()).unwrap();
            let data: Vec<u8> = (0..n_bytes).map(|_| random.next() as u8).collect();
            header.tensor(format!("blk.{index}.weight"), dtype, &shape).unwrap();
            tensors.push((format!("blk.{index}.weight"), dtype, shape, data));
        }
        let mut writer = gguf::Writer::new(Vec::new(), header).unwrap();
        for (name, _, _, data) in &tensors {
            writer.tensor(name, data).unwrap();
        }
        let model = open(&writer.finish().unwrap()).unwrap();
        let read: Vec<_> =
            model.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone())).collect();
        assert_eq!(read, values, "seed {seed}");
        assert_eq!(model.tensors().len(), tensors.len(), "seed {seed}");
        for (info, (name, dtype, shape, data)) in model.tensors().iter().zip(&tensors) {
            assert_eq!((&info.name, info.dtype, &info.shape), (name, *dtype, shape), "seed {seed}");
            assert_eq!(model.tensor(name).unwrap().bytes, data, "seed {seed}");
        }
    }
    assert_eq!(kinds.len(), 24, "every scalar and array type was tried");
}

#[test]
fn empty_arrays_count_as_arrays_of_any_type() {
    let mut header = gguf::Header::new("small.gguf");
    header.set("none", Value::Array(Array::I64(Vec::new()))).unwrap();
    let model = open(&gguf::Writer::new(Vec::new(), header).unwrap().finish().unwrap()).unwrap();
    let m = model.metadata();
    assert_eq!(m.get_f32s("none").unwrap(), Some(vec![]));
    assert_eq!(m.get_strings("none").unwrap(), Some(vec![]));
    assert_eq!(m.get_bools("none").unwrap(), Some(vec![]));
}
