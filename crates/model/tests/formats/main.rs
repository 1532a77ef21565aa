//! Model files from disk and from memory: what is read is what was written, and whatever is wrong with a file is an
//! error that names the file, never a panic and never an allocation beyond the size of the file.
//!
//! Files are made here, by `gguf::Writer` or byte by byte; whole models are this crate's fixtures, made by other
//! programs, and those of the shared test data where it is present.

mod allocations;
mod folders;
mod gguf_files;
mod hostile;
mod make;
mod safetensors_files;
mod split;
#[path = "../../../compute/tests/support/test_data.rs"]
mod test_data;
mod whole_models;

use realizar_model::source::TensorSource;

/// The message of a refusal: one line that names the file.
fn refusal(file: &str, result: realizar_model::Result<Box<dyn TensorSource>>) -> String {
    let message = match result {
        Ok(_) => panic!("{file} was opened, but must be refused"),
        Err(error) => error.to_string(),
    };
    assert!(message.contains(file), "{message:?} does not name {file}");
    assert!(!message.contains(char::is_control), "{message:?} is not one plain line");
    message
}

#[track_caller]
fn assert_contains(message: &str, wanted: &[&str]) {
    for wanted in wanted {
        assert!(message.contains(wanted), "{message:?} lacks {wanted:?}");
    }
}
