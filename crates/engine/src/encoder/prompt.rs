//! The prompt of a reranker that answers "yes" or "no": a text with places for the query and the document.

use realizar_model::chat_template::{ChatTemplate, Timestamp};
use realizar_model::source::{Format, TensorSource, read_text};
use realizar_model::tokenizer::Tokenizer;
use realizar_model::{Error, Result};
use serde_json::{Map, Value, json};

/// Where GGUF has the prompt.
const KEY: &str = "tokenizer.chat_template.rerank";
/// The prompt that Qwen3-Reranker was trained on, where its files have none.
const QWEN3: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. Note that \
                     the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search query, retrieve \
                     relevant passages that answer the query\n<Query>: {query}\n<Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n\
                     </think>\n\n";
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";
/// The largest file of sentence-transformers that is read, in bytes; real ones have hundreds.
const MAX_BYTES: u64 = 1 << 20;

/// A prompt, taken apart at its places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    before: String,
    between: String,
    after: String,
    document_first: bool,
}

impl Prompt {
    /// The prompt of a model. A folder with the modules of sentence-transformers has it as a chat template with the roles `query` and
    /// `document`, and with the instruction as a system message.
    ///
    /// Errors: files that are not what they should be; a chat template without these roles.
    pub(super) fn of(source: &dyn TensorSource, tokenizer: &Tokenizer) -> Result<Self> {
        let text = match source.format() {
            Format::Gguf => source.metadata().get_str(KEY)?.map(str::to_owned),
            Format::Safetensors => match source.sibling("modules.json") {
                Some(_) => Some(render(source, tokenizer)?),
                None => None,
            },
        };
        Self::parse(text.as_deref().unwrap_or(QWEN3)).ok_or_else(|| {
            let reason = "its prompt does not have one place for a query and one for a document".into();
            Error::Unsupported { path: source.path().to_owned(), reason }
        })
    }

    /// `None` unless the text has each place once.
    fn parse(text: &str) -> Option<Self> {
        let at = |place: &str| {
            let mut found = text.match_indices(place).map(|(at, _)| at);
            found.next().filter(|_| found.next().is_none())
        };
        let (query, document) = (at(QUERY)?, at(DOCUMENT)?);
        let document_first = document < query;
        let [first, second] = match document_first {
            true => [document..document + DOCUMENT.len(), query..query + QUERY.len()],
            false => [query..query + QUERY.len(), document..document + DOCUMENT.len()],
        };
        Some(Self {
            before: text[..first.start].to_owned(),
            between: text[first.end..second.start].to_owned(),
            after: text[second.end..].to_owned(),
            document_first,
        })
    }

    /// What stands behind both.
    pub(super) fn after(&self) -> &str {
        &self.after
    }

    /// The prompt with a query and a document in their places.
    pub(super) fn with(&self, query: &str, document: &str) -> String {
        let [first, second] = if self.document_first { [document, query] } else { [query, document] };
        [&self.before, first, &self.between, second, &self.after].concat()
    }
}

/// What a folder's chat template makes of the two places.
fn render(source: &dyn TensorSource, tokenizer: &Tokenizer) -> Result<String> {
    let malformed = |reason: String| Error::Malformed { path: source.path().to_owned(), reason };
    let template = ChatTemplate::from_source(source, tokenizer)?
        .ok_or_else(|| malformed("a reranker that answers yes or no has no chat template".into()))?;
    let settings = read_json(source, "config_sentence_transformers.json")?;
    let prompt = settings.get("default_prompt_name").and_then(Value::as_str);
    let prompt = prompt.and_then(|name| settings.get("prompts")?.get(name)?.as_str());
    let message = |role: &str, content: &str| json!({ "role": role, "content": content });
    let mut messages: Vec<_> = prompt.map(|prompt| message("system", prompt)).into_iter().collect();
    messages.extend([message("query", QUERY), message("document", DOCUMENT)]);
    // What else the template is given.
    let modules = read_json(source, "sentence_bert_config.json")?;
    let own = modules.get("processing_kwargs").and_then(|all| all.get("chat_template")?.as_object());
    let mut conversation = own.cloned().unwrap_or_else(Map::new);
    conversation.insert("messages".into(), messages.into());
    template
        .render(&conversation.into(), false, Timestamp::from_unix(0, 0))
        .map_err(|e| malformed(format!("its chat template has no roles query and document: {e}")))
}

/// A JSON file of the folder; `null` where there is none.
fn read_json(source: &dyn TensorSource, name: &str) -> Result<Value> {
    let Some(path) = source.sibling(name) else { return Ok(Value::Null) };
    let text = read_text(&path, MAX_BYTES)?;
    serde_json::from_slice(&text).map_err(|e| Error::Malformed {
        path: source.path().to_owned(),
        reason: format!("{name} is not valid JSON: {e}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_or_a_document_may_name_the_places() {
        let prompt = Prompt::parse("Q {query} D {document}.").unwrap();
        assert_eq!(prompt.with("{document}", "{query}"), "Q {document} D {query}.");
        let turned = Prompt::parse("{document}? {query}").unwrap();
        assert_eq!(turned.with("q", "d"), "d? q");
    }

    #[test]
    fn a_prompt_has_each_place_once() {
        for text in ["", "{query}", "{document}", "{query}{document}{query}"] {
            assert_eq!(Prompt::parse(text), None, "{text}");
        }
        assert!(Prompt::parse(QWEN3).is_some());
    }
}
