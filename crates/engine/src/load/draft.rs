//! From a file to a draft model on its device.

use super::{Device, LoadError, LoadOptions, load};
use crate::speculative::DraftModel;
use realizar_model::arch;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::Tokenizer;

/// Brings a draft model to its device. `options`: those of `model`, for which it drafts. Its cache holds as many tokens as the model's.
///
/// Errors: as [`load`]; [`LoadError::Vocabulary`] if the two models number their tokens differently.
pub fn load_draft(
    draft: &dyn TensorSource,
    model: &dyn TensorSource,
    options: &LoadOptions,
) -> Result<DraftModel, LoadError> {
    check_vocabulary(draft, model)?;
    let context_length = arch::configure(draft)?.context_length;
    let n_ctx = options.n_ctx.map(|n| n.min(context_length));
    let mut options = LoadOptions { n_ctx, max_guesses: 0, draft_layer: false, tp: 1, ..options.clone() };
    // A draft model is small enough for the first of several GPUs.
    if let Device::Cuda(gpus) = &mut options.device {
        gpus.truncate(1);
    }
    Ok(DraftModel::new(load(draft, &options)?.runner))
}

/// Whether the tokens that both models have are the same.
fn check_vocabulary(draft: &dyn TensorSource, model: &dyn TensorSource) -> Result<(), LoadError> {
    let (draft, model) = (Tokenizer::from_source(draft)?, Tokenizer::from_source(model)?);
    // Vocabularies of one family may be padded to different sizes.
    let n = model.vocab_size().min(draft.vocab_size()) as u32;
    match (0..n).find(|&id| model.token_text(id) != draft.token_text(id)) {
        None => Ok(()),
        Some(id) => {
            let text = |tokenizer: &Tokenizer| tokenizer.token_text(id).unwrap_or("").to_owned();
            Err(LoadError::Vocabulary { id, draft: text(&draft), model: text(&model) })
        }
    }
}
