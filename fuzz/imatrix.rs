//! Any bytes as an importance matrix: an error, or one that can be asked for any tensor and written in both forms.
//!
//! `cargo +nightly fuzz run imatrix fuzz/corpus/imatrix fuzz/seeds/imatrix -- -malloc_limit_mb=64 -max_len=4096`
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use realizar_model::imatrix::{Imatrix, ImatrixFormat};
use std::path::Path;

fuzz_target!(|data: &[u8]| {
    let path = Path::new("fuzz.gguf");
    let matrix = match Imatrix::read(path, Bytes::copy_from_slice(data)) {
        Ok(matrix) => matrix,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
            return;
        }
    };
    for shape in [&[4, 4][..], &[3, 4, 2]] {
        for tensor in ["blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"] {
            if let Ok(Some(importance)) = matrix.importance(tensor, shape) {
                assert!(importance.iter().all(|v| v.is_finite() && *v >= 0.0), "{importance:?}");
            }
        }
    }
    assert!(matrix.unseen().all(|(_, n)| n > 0));
    for format in [ImatrixFormat::Gguf, ImatrixFormat::Dat] {
        // A name that is too long for GGUF is an error.
        let _ = matrix.write(path, format, Vec::new());
    }
});
