//! A model's tokenizer, wherever its files keep it.

use super::Tokenizer;
use crate::source::{Format, TensorSource};
use crate::{Error, Result, names};
use std::path::PathBuf;

impl Tokenizer {
    /// The tokenizer of a model: GGUF metadata, or `tokenizer.json` with the files beside it.
    ///
    /// Errors: there is none; it is malformed; it has more tokens than the model's embedding has rows. (Fewer are usual: embeddings
    /// are padded.)
    pub fn from_source(source: &dyn TensorSource) -> Result<Self> {
        let invalid = |error: super::Error| Error::Tokenizer { path: source.path().to_owned(), error };
        let tokenizer = match source.format() {
            Format::Gguf => Self::from_gguf(source.metadata()).map_err(invalid)?,
            Format::Safetensors => {
                let read = |name: &str| {
                    let file: Option<PathBuf> = source.sibling(name);
                    file.map(|f| std::fs::read(&f).map_err(|e| Error::io("read", &f, e))).transpose()
                };
                let Some(json) = read("tokenizer.json")? else {
                    return Err(Error::not_a_model(source.path(), "it has no tokenizer.json"));
                };
                let (config, special) = (read("tokenizer_config.json")?, read("special_tokens_map.json")?);
                Self::from_hf(&json, config.as_deref(), special.as_deref()).map_err(invalid)?
            }
        };
        let embed = names::file_name(source, "embed", None, None, "weight");
        if let Some(info) = embed.and_then(|name| source.find(&name)) {
            let (n_tokens, n_rows) = (tokenizer.vocab_size(), info.shape.first().copied().unwrap_or(0));
            if n_tokens > n_rows {
                let reason = format!("has {n_rows} rows, but the tokenizer has {n_tokens} tokens");
                return Err(Error::bad_tensor(source.path(), &info.name, reason));
            }
        }
        Ok(tokenizer)
    }
}
