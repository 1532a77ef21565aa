//! Where a model keeps its chat template.

use super::{ChatTemplate, Error, Result};
use crate::metadata::Metadata;
use crate::tokenizer::Tokenizer;
use serde_json::Value;

const KEY: &str = "tokenizer.chat_template";

/// Contents of the files of a Hugging Face folder that may hold a template.
#[derive(Clone, Copy, Debug, Default)]
pub struct TemplateFiles<'a> {
    /// chat_template.jinja
    pub jinja: Option<&'a str>,
    /// chat_template.json
    pub json: Option<&'a [u8]>,
    /// tokenizer_config.json
    pub tokenizer_config: Option<&'a [u8]>,
}

/// The template of a GGUF file. `name`: which of several (`tool_use`, …); without it, the default one.
///
/// `None` if the file has none of that name. Errors: as [`ChatTemplate::new`]; a key that is not text.
pub fn from_gguf(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
    name: Option<&str>,
) -> Result<Option<ChatTemplate>> {
    let key = name.map_or_else(|| KEY.to_owned(), |name| format!("{KEY}.{name}"));
    let source = metadata
        .get_str(&key)
        .map_err(|error| Error::File { file: "the metadata", reason: error.to_string() })?;
    source.map(|source| compile(source, tokenizer)).transpose()
}

/// The template of a Hugging Face folder: chat_template.jinja, else chat_template.json, else tokenizer_config.json.
/// `name`: which of several; without it, the one named `default` or the only one.
///
/// `None` if there is none of that name. Errors: as [`ChatTemplate::new`]; files that are not what they should be.
pub fn from_hf(
    files: TemplateFiles<'_>,
    tokenizer: &Tokenizer,
    name: Option<&str>,
) -> Result<Option<ChatTemplate>> {
    if let Some(source) = files.jinja.filter(|_| name.is_none_or(|name| name == "default")) {
        return compile(source, tokenizer).map(Some);
    }
    for (file, json) in
        [("chat_template.json", files.json), ("tokenizer_config.json", files.tokenizer_config)]
    {
        let Some(json) = json else { continue };
        let json: Value =
            serde_json::from_slice(json).map_err(|error| Error::File { file, reason: error.to_string() })?;
        if let Some(source) = in_json(file, &json, name)? {
            return compile(source, tokenizer).map(Some);
        }
    }
    Ok(None)
}

/// `chat_template` of a JSON file: one template, or a list of named ones.
fn in_json<'a>(file: &'static str, json: &'a Value, name: Option<&str>) -> Result<Option<&'a str>> {
    let wrong = |reason: &str| Error::File { file, reason: reason.to_owned() };
    match json.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(source)) => {
            Ok(Some(source.as_str()).filter(|_| name.is_none_or(|name| name == "default")))
        }
        Some(Value::Array(templates)) => {
            let mut found = None;
            for template in templates {
                let field = |key: &str| template.get(key).and_then(Value::as_str);
                let (Some(this), Some(source)) = (field("name"), field("template")) else {
                    return Err(wrong("an entry of chat_template has no name or no template"));
                };
                if this == name.unwrap_or("default") || (name.is_none() && templates.len() == 1) {
                    found = Some(source);
                }
            }
            Ok(found)
        }
        Some(_) => Err(wrong("chat_template is neither text nor a list")),
    }
}

fn compile(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default();
    ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat_template::Timestamp;

    fn tokenizer() -> Tokenizer {
        let json = br#"{"added_tokens":[{"id":1,"content":"<s>","special":true}],
            "model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#;
        Tokenizer::from_hf(json, Some(br#"{"bos_token":{"content":"<s>"}}"#), None).unwrap()
    }

    fn rendered(template: Option<ChatTemplate>) -> String {
        let now = Timestamp::from_unix(0, 0);
        template.unwrap().render(&serde_json::json!({"messages": []}), true, now).unwrap()
    }

    #[test]
    fn files_are_asked_in_order_and_templates_by_name() {
        let tokenizer = tokenizer();
        let config: &[u8] = br#"{"chat_template":[{"name":"default","template":"{{ bos_token }}d"},{"name":"tool_use","template":"t"}]}"#;
        let files = TemplateFiles { tokenizer_config: Some(config), ..TemplateFiles::default() };
        assert_eq!(rendered(from_hf(files, &tokenizer, None).unwrap()), "<s>d");
        assert_eq!(rendered(from_hf(files, &tokenizer, Some("tool_use")).unwrap()), "t");
        assert!(from_hf(files, &tokenizer, Some("other")).unwrap().is_none());
        let files = TemplateFiles { json: Some(br#"{"chat_template":"j"}"#), ..files };
        assert_eq!(rendered(from_hf(files, &tokenizer, None).unwrap()), "j");
        let files = TemplateFiles { jinja: Some("x"), ..files };
        assert_eq!(rendered(from_hf(files, &tokenizer, None).unwrap()), "x");
    }

    #[test]
    fn metadata_has_a_default_and_named_templates() {
        let mut metadata = Metadata::new("m.gguf");
        metadata.insert("tokenizer.chat_template", "{{ bos_token }}g").unwrap();
        metadata.insert("tokenizer.chat_template.tool_use", "n").unwrap();
        let tokenizer = tokenizer();
        assert_eq!(rendered(from_gguf(&metadata, &tokenizer, None).unwrap()), "<s>g");
        assert_eq!(rendered(from_gguf(&metadata, &tokenizer, Some("tool_use")).unwrap()), "n");
        assert!(from_gguf(&metadata, &tokenizer, Some("rag")).unwrap().is_none());
    }
}
