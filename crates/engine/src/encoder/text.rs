//! Texts around an encoder: tokens of a text, and of a query with a document.

use super::EncoderClient;
use realizar_model::source::TensorSource;
use realizar_model::tokenizer::{self, EncodeOptions, Tokenizer};
use realizar_model::{EncoderOutput, Result};
use std::sync::Arc;

/// An encoder with its tokenizer.
#[derive(Clone)]
pub struct TextEncoder {
    client: EncoderClient,
    tokenizer: Arc<Tokenizer>,
    /// What the tokenizer puts after a text.
    suffix: Vec<u32>,
    /// A reranker's prompt, with places for the query and the document.
    template: Option<String>,
}

/// Where GGUF has the prompt of a reranker that answers "yes" or "no".
const TEMPLATE_KEY: &str = "tokenizer.chat_template.rerank";

impl TextEncoder {
    /// Puts the tokenizer of a model around its encoder.
    ///
    /// Errors: a prompt in the metadata that is no text.
    pub fn new(client: EncoderClient, tokenizer: Arc<Tokenizer>, source: &dyn TensorSource) -> Result<Self> {
        let template = source.metadata().get_str(TEMPLATE_KEY)?.map(str::to_owned);
        let around = tokenizer.encode("", EncodeOptions { add_special: true, parse_special: false });
        let n_before = around.iter().take_while(|&&id| Some(id) == tokenizer.bos()).count();
        // What stands around nothing begins with what opens a text: one token, where there are several.
        let n_before = if n_before == 0 && around.len() > 1 { 1 } else { n_before };
        let suffix = around[n_before.min(around.len())..].to_vec();
        Ok(Self { client, tokenizer, suffix, template })
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
    pub fn tokens(&self, text: &str) -> Vec<u32> {
        self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })
    }

    /// Token ids of a query and a document for a reranker.
    pub fn pair(&self, query: &str, document: &str) -> Vec<u32> {
        if let (EncoderOutput::YesNo, Some(template)) = (self.client.info().output, &self.template) {
            // The document last, so that nothing in it is taken for the query's place.
            let (before, after) = template.split_once("{document}").unwrap_or((template, ""));
            let text = format!("{}{document}{after}", before.replace("{query}", query));
            return self.tokenizer.encode(&text, EncodeOptions { add_special: false, parse_special: true });
        }
        let mut tokens = self.tokens(query);
        // XLM-RoBERTa has the separator twice between two texts.
        tokens.extend_from_slice(&self.suffix);
        tokens.extend(
            self.tokenizer.encode(document, EncodeOptions { add_special: false, parse_special: false }),
        );
        tokens.extend_from_slice(&self.suffix);
        tokens
    }

    /// Cuts tokens to the first `max`, the last of which are what the tokenizer puts after a text.
    pub fn truncate(&self, tokens: &mut Vec<u32>, max: usize) {
        if tokens.len() > max {
            let n_suffix = if tokens.ends_with(&self.suffix) { self.suffix.len().min(max) } else { 0 };
            let suffix = tokens.split_off(tokens.len() - n_suffix);
            tokens.truncate(max - n_suffix);
            tokens.extend(suffix);
        }
    }
}
