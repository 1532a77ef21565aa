//! A model's chat template, wherever its files keep it.

use super::ChatTemplate;
use super::find::{TemplateFiles, from_gguf, from_hf};
use crate::source::{Format, TensorSource};
use crate::tokenizer::Tokenizer;
use crate::{Error, Result};

impl ChatTemplate {
    /// The default template of a model; `None` if it has none.
    ///
    /// Errors: a file that cannot be read; a template that does not compile.
    pub fn from_source(source: &dyn TensorSource, tokenizer: &Tokenizer) -> Result<Option<Self>> {
        let invalid = |e: super::Error| Error::malformed(source.path(), e.to_string());
        if source.format() == Format::Gguf {
            return from_gguf(source.metadata(), tokenizer, None).map_err(invalid);
        }
        let read = |name: &str| {
            let file = source.sibling(name);
            file.map(|f| std::fs::read(&f).map_err(|e| Error::io("read", &f, e))).transpose()
        };
        let jinja = match read("chat_template.jinja")?.map(String::from_utf8) {
            Some(Ok(text)) => Some(text),
            Some(Err(_)) => return Err(Error::malformed(source.path(), "chat_template.jinja is not UTF-8")),
            None => None,
        };
        let (json, config) = (read("chat_template.json")?, read("tokenizer_config.json")?);
        let files = TemplateFiles {
            jinja: jinja.as_deref(),
            json: json.as_deref(),
            tokenizer_config: config.as_deref(),
        };
        from_hf(files, tokenizer, None).map_err(invalid)
    }
}
