//! What must hold for every model that a reader lets through.

use realizar_model::source::TensorSource;
use realizar_model::{Result, arch};

/// Reads everything of a model that was opened: tensors have the size of their type and shape, no two of them share a
/// byte, getters return, and its hyper-parameters are an error or a configuration. Errors must be one line.
pub fn exercise(opened: Result<Box<dyn TensorSource>>) {
    let model = match opened {
        Ok(model) => model,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains(char::is_control), "{message:?}");
            return;
        }
    };
    let mut ranges = Vec::new();
    for info in model.tensors() {
        let view = model.tensor(&info.name).expect("a listed tensor");
        assert_eq!(Some(view.bytes.len()), info.dtype.bytes_for(info.n_elements()));
        if !view.bytes.is_empty() {
            ranges.push(view.bytes.as_ptr_range());
        }
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start));
    let metadata = model.metadata();
    for (key, value) in metadata.iter() {
        assert!(!value.to_string().contains(char::is_control));
        let _ = metadata.get_usize(key);
        let _ = metadata.get_f32(key);
        let _ = metadata.get_strings(key);
        let _ = metadata.get_i64s(key);
        let _ = metadata.get_f32s(key);
        let _ = metadata.get_bools(key);
    }
    if let Err(error) = arch::configure(&*model) {
        assert!(!error.to_string().contains(char::is_control), "{error}");
    }
}
