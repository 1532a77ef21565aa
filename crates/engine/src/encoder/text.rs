//! Texts around an encoder: tokens of a text, and of a query with a document.

use super::EncoderClient;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::{self, EncodeOptions, Encoding, Tokenizer};
use realizar_model::{EncoderOutput, Error, Result};
use std::sync::Arc;

/// An encoder with its tokenizer.
#[derive(Clone)]
pub struct TextEncoder {
    client: EncoderClient,
    tokenizer: Arc<Tokenizer>,
    /// A reranker's prompt, with places for the query and the document.
    template: Option<String>,
}

/// Where GGUF has the prompt of a reranker that answers "yes" or "no".
const TEMPLATE_KEY: &str = "tokenizer.chat_template.rerank";

impl TextEncoder {
    /// Puts the tokenizer of a model around its encoder.
    ///
    /// Errors: a prompt in the metadata that is no text; a reranker whose tokenizer does not say how it puts a query and a document
    /// together.
    pub fn new(client: EncoderClient, tokenizer: Arc<Tokenizer>, source: &dyn TensorSource) -> Result<Self> {
        let template = source.metadata().get_str(TEMPLATE_KEY)?.map(str::to_owned);
        let is_reranker = !matches!(client.info().output, EncoderOutput::Embedding { .. });
        if is_reranker && tokenizer.encode_pair("", "").is_none() {
            let reason = "its tokenizer does not say how it puts a query and a document together".into();
            return Err(Error::Unsupported { path: source.path().to_owned(), reason });
        }
        Ok(Self { client, tokenizer, template })
    }

    /// The encoder.
    pub fn client(&self) -> &EncoderClient {
        &self.client
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &tokenizer::Tokenizer {
        &self.tokenizer
    }

    /// Token ids of a text, with what the tokenizer puts around it.
    pub fn tokens(&self, text: &str) -> Encoding {
        self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false }).into()
    }

    /// Token ids of a query and a document for a reranker.
    ///
    /// # Panics
    /// If the model is not a reranker.
    pub fn pair(&self, query: &str, document: &str) -> Encoding {
        if let (EncoderOutput::YesNo, Some(template)) = (self.client.info().output, &self.template) {
            // The document last, so that nothing in it is taken for the query's place.
            let (before, after) = template.split_once("{document}").unwrap_or((template, ""));
            let text = format!("{}{document}{after}", before.replace("{query}", query));
            let options = EncodeOptions { add_special: false, parse_special: true };
            return self.tokenizer.encode(&text, options).into();
        }
        self.tokenizer.encode_pair(query, document).expect("a reranker's tokenizer was asked for this before")
    }

    /// Cuts tokens to the first `max`, the last of which are what the tokenizer puts after a text.
    pub fn truncate(&self, text: &mut Encoding, max: usize) {
        let Encoding { tokens, n_first } = text;
        let n = tokens.len();
        if n > max {
            let suffix = self.tokenizer.suffix();
            let n_suffix = if tokens.ends_with(suffix) { suffix.len().min(max) } else { 0 };
            let suffix = tokens.split_off(n - n_suffix);
            tokens.truncate(max - n_suffix);
            tokens.extend(suffix);
            // The suffix keeps its type.
            *n_first = if *n_first == n { max } else { (*n_first).min(max - n_suffix) };
        }
    }
}
