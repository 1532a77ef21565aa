//! Texts around an encoder: tokens of a text, and of a query with a document.

use super::EncoderClient;
use super::prompt::Prompt;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::{self, EncodeOptions, Encoding, Tokenizer};
use realizar_model::{EncoderOutput, Error, Result};
use std::sync::Arc;

/// An encoder with its tokenizer.
#[derive(Clone)]
pub struct TextEncoder {
    client: EncoderClient,
    tokenizer: Arc<Tokenizer>,
    /// Of a reranker that answers "yes" or "no".
    prompt: Option<Arc<Prompt>>,
    /// What stands behind every text.
    suffix: Vec<u32>,
}

/// A prompt's texts of control tokens are these tokens.
const PROMPT: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };

impl TextEncoder {
    /// Puts the tokenizer of a model around its encoder.
    ///
    /// Errors: a reranker whose files do not say how a query and a document are put together.
    pub fn new(client: EncoderClient, tokenizer: Arc<Tokenizer>, source: &dyn TensorSource) -> Result<Self> {
        let prompt = match client.info().output {
            EncoderOutput::YesNo => Some(Prompt::of(source, &tokenizer)?),
            EncoderOutput::Score if tokenizer.encode_pair("", "").is_none() => {
                let reason = "its tokenizer does not say how it puts a query and a document together".into();
                return Err(Error::Unsupported { path: source.path().to_owned(), reason });
            }
            EncoderOutput::Score | EncoderOutput::Embedding { .. } => None,
        };
        let suffix = match &prompt {
            Some(prompt) => tokenizer.encode(prompt.after(), PROMPT),
            None => tokenizer.suffix().to_vec(),
        };
        Ok(Self { client, tokenizer, prompt: prompt.map(Arc::new), suffix })
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
        if let Some(prompt) = &self.prompt {
            return self.tokenizer.encode(&prompt.with(query, document), PROMPT).into();
        }
        self.tokenizer.encode_pair(query, document).expect("a reranker's tokenizer was asked for this before")
    }

    /// Cuts tokens to the first `max`, the last of which are what the tokenizer or the prompt has behind a text.
    pub fn truncate(&self, text: &mut Encoding, max: usize) {
        let Encoding { tokens, n_first } = text;
        let n = tokens.len();
        if n > max {
            let n_suffix = if tokens.ends_with(&self.suffix) { self.suffix.len().min(max) } else { 0 };
            let suffix = tokens.split_off(n - n_suffix);
            tokens.truncate(max - n_suffix);
            tokens.extend(suffix);
            // The suffix keeps its type.
            *n_first = if *n_first == n { max } else { (*n_first).min(max - n_suffix) };
        }
    }
}
