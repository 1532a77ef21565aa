//! Files cut at every length and files with flipped bytes: an error or a consistent model, never a panic, and never
//! more memory than a small multiple of the file.

use crate::allocations::peak_bytes;
use crate::make::{Random, safetensors, small_gguf};
use bytes::Bytes;
use realizar_model::source::{self, TensorSource};

/// What a parser may allocate for a file of `len` bytes. A tensor's entry takes at least 24 bytes in the file and about
/// 300 here (its name three times, its shape, its place), and collections double as they grow.
fn allowed_bytes(len: usize) -> usize {
    64 * len + 16 * 1024
}

fn small_safetensors() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]},
        "b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
        "c":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}}"#;
    safetensors(header, &[7; 20])
}

fn open_gguf(bytes: Bytes) -> realizar_model::Result<Box<dyn TensorSource>> {
    source::open_gguf_bytes("f.gguf", bytes)
}

fn open_safetensors(bytes: Bytes) -> realizar_model::Result<Box<dyn TensorSource>> {
    source::open_safetensors_bytes("f.safetensors", b"{}", bytes)
}

type Open = fn(Bytes) -> realizar_model::Result<Box<dyn TensorSource>>;

/// Opens and, if that works, reads everything: each tensor must have the size of its type and shape.
fn exercise(open: Open, bytes: &[u8]) -> Result<(), String> {
    let len = bytes.len();
    let bytes = Bytes::copy_from_slice(bytes);
    let (result, peak) = peak_bytes(|| open(bytes));
    assert!(peak <= allowed_bytes(len), "{peak} bytes allocated for a file of {len}");
    let model = match result {
        Ok(model) => model,
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("f.gguf") || message.contains("f.safetensors"), "{message:?}");
            assert!(!message.contains(char::is_control), "{message:?}");
            return Err(message);
        }
    };
    for info in model.tensors() {
        let view = model.tensor(&info.name).unwrap();
        assert_eq!(Some(view.bytes.len()), info.dtype.bytes_for(info.n_elements()));
    }
    for (key, value) in model.metadata().iter() {
        assert!(!value.to_string().contains(char::is_control));
        let _ = model.metadata().get_strings(key);
        let _ = model.metadata().get_i64s(key);
        let _ = model.metadata().get_f32s(key);
    }
    Ok(())
}

#[test]
fn a_file_cut_at_any_length_is_refused() {
    for (open, file) in [(open_gguf as Open, small_gguf()), (open_safetensors, small_safetensors())] {
        exercise(open, &file).unwrap();
        for len in 0..file.len() {
            let message = exercise(open, &file[..len]).expect_err("a cut file must be refused");
            assert!(message.contains("cut off") || message.contains("only"), "{len}: {message}");
        }
    }
}

#[test]
fn flipped_bytes_never_panic_and_never_allocate_much() {
    let mut random = Random(1);
    for (open, file) in [(open_gguf as Open, small_gguf()), (open_safetensors, small_safetensors())] {
        let (mut n_opened, mut n_refused) = (0, 0);
        for _ in 0..100_000 {
            let mut mutated = file.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(mutated.len());
                mutated[at] = match random.below(4) {
                    0 => mutated[at] ^ (1 << random.below(8)),
                    1 => 0xFF,
                    2 => 0,
                    _ => random.next() as u8,
                };
            }
            match exercise(open, &mutated) {
                Ok(()) => n_opened += 1,
                Err(_) => n_refused += 1,
            }
        }
        // Flips in data and in values stay valid, flips in structure do not: both must have happened.
        assert!(n_opened > 1_000 && n_refused > 1_000, "{n_opened} opened, {n_refused} refused");
    }
}

/// Whole 4- and 8-byte fields replaced by the numbers that parsers trip over.
#[test]
fn extreme_numbers_at_any_place_never_panic_and_never_allocate_much() {
    let numbers =
        [0, 1, 31, 32, u32::MAX.into(), 1 << 31, 1 << 32, 1 << 60, i64::MAX as u64, u64::MAX - 31, u64::MAX];
    let file = small_gguf();
    for at in 0..file.len() - 8 {
        for number in numbers {
            for width in [4, 8] {
                let mut mutated = file.clone();
                mutated[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
                let _ = exercise(open_gguf, &mutated);
            }
        }
    }
}

#[test]
fn random_bytes_after_a_valid_beginning_never_panic() {
    let mut random = Random(2);
    for _ in 0..20_000 {
        let mut file = [&b"GGUF"[..], &3u32.to_le_bytes()].concat();
        // Small numbers keep the parser going for longer than bytes of any size would.
        file.extend(
            (0..random.below(200)).map(|_| if random.below(3) == 0 { random.below(16) as u8 } else { 0 }),
        );
        let _ = exercise(open_gguf, &file);
    }
}
