//! What a request says to the chat template.

use super::wire::{Block, Content, MessagesRequest};
use crate::conversation::{Conversation, Ending, MessageList, add_variables, effort_variables};
use crate::error::{ApiError, Result};
use crate::models::Lease;
use crate::seal::Seal;
use serde_json::{Map, Value, json};

/// Begins a line in the system prompt that says nothing to the model and has another value in every request of Claude Code, so that no
/// two prompts would begin alike.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The conversation for the chat template.
///
/// Errors: content that cannot be read, with its place.
pub(super) fn conversation(lease: &Lease, request: &MessagesRequest) -> Result<Conversation> {
    let mut reader = Reader { seal: &lease.seal(), list: MessageList::default() };
    let keep_billing_header = lease.app.config.keep_billing_header;
    if let Some(system) = &request.system {
        reader.list.system(&system_text(system, "system", keep_billing_header)?);
    }
    for (i, message) in request.messages.iter().enumerate() {
        let place = format!("messages[{i}]");
        match message.role.as_str() {
            "user" => reader.user(&message.content, &place)?,
            "assistant" => reader.assistant(&message.content, &place)?,
            "system" => {
                let content = format!("{place}.content");
                reader.list.system(&system_text(&message.content, &content, keep_billing_header)?);
            }
            role => {
                let message = format!("{place}.role is {role:?} but must be user, assistant or system");
                return Err(ApiError::invalid_param(format!("{place}.role"), message));
            }
        }
    }
    let goes_on = request.messages.last().is_some_and(|message| message.role == "assistant");
    let ending = if goes_on { Ending::Open } else { Ending::Answer };
    let messages = reader.list.into_messages();
    // A system prompt alone is no conversation.
    let messages = if request.messages.is_empty() { Vec::new() } else { messages };
    Ok(Conversation { messages, variables: variables(request), ending, field: "messages" })
}

/// The template's variables.
fn variables(request: &MessagesRequest) -> Map<String, Value> {
    let effort = request.output_config.as_ref().and_then(|config| config.effort.as_deref());
    let mut variables = effort.map(effort_variables).unwrap_or_default();
    let thinking = match request.thinking.as_ref().map(|thinking| thinking.kind.as_str()) {
        Some("enabled") => Some(true),
        None | Some("disabled") => Some(false),
        Some(_) => None,
    };
    variables.extend(thinking.map(|thinking| ("enable_thinking".to_owned(), thinking.into())));
    add_variables(&mut variables, request.chat_template_kwargs.as_ref());
    variables
}

/// The texts of a system prompt with an empty line between them.
fn system_text(system: &Content, place: &str, keep_billing_header: bool) -> Result<String> {
    let clean = |text: &str| if keep_billing_header { text.to_owned() } else { without_billing_header(text) };
    let texts = match system {
        Content::Text(text) => vec![clean(text)],
        Content::Blocks(blocks) => {
            let texts = blocks.iter().enumerate();
            texts
                .map(|(i, b)| text_of(b, &format!("{place}[{i}]")).map(|t| clean(&t)))
                .collect::<Result<_>>()?
        }
    };
    Ok(texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n"))
}

/// A system prompt without the lines at its beginning that only say whom to bill.
fn without_billing_header(text: &str) -> String {
    let mut rest = text;
    while rest.trim_start().starts_with(BILLING_HEADER) {
        rest = rest.trim_start().split_once('\n').map_or("", |(_, rest)| rest);
    }
    rest.to_owned()
}

/// Reads the blocks of messages.
struct Reader<'a> {
    seal: &'a Seal,
    list: MessageList,
}

impl Reader<'_> {
    fn user(&mut self, content: &Content, place: &str) -> Result<()> {
        let blocks = match content {
            Content::Text(text) => {
                self.list.user(text);
                return Ok(());
            }
            Content::Blocks(blocks) => blocks,
        };
        let mut texts = Vec::new();
        for (i, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content[{i}]");
            if block.kind != "tool_result" {
                texts.push(text_of(block, &place)?);
                continue;
            }
            if !texts.is_empty() {
                self.list.user(&std::mem::take(&mut texts).join("\n"));
            }
            let id = block.tool_use_id.as_ref().ok_or_else(|| lacks(&place, "tool_use_id"))?;
            self.list.result(id, &result_text(block, &place)?);
        }
        if !texts.is_empty() {
            self.list.user(&texts.join("\n"));
        }
        Ok(())
    }

    fn assistant(&mut self, content: &Content, place: &str) -> Result<()> {
        let blocks = match content {
            Content::Text(text) => {
                self.list.assistant(text);
                return Ok(());
            }
            Content::Blocks(blocks) => blocks,
        };
        for (i, block) in blocks.iter().enumerate() {
            let place = format!("{place}.content[{i}]");
            match block.kind.as_str() {
                "thinking" => self.thought(block).iter().for_each(|text| self.list.thought(text)),
                // Thoughts that Anthropic hides; nobody else can read them.
                "redacted_thinking" => {}
                "tool_use" => {
                    let name = block.name.as_ref().ok_or_else(|| lacks(&place, "name"))?;
                    let id = block.id.as_ref().ok_or_else(|| lacks(&place, "id"))?;
                    self.list.call(id, name, block.input.clone().unwrap_or_else(|| json!({})));
                }
                _ => self.list.assistant(&text_of(block, &place)?),
            }
        }
        Ok(())
    }

    /// A thought of this server's model; `None` for those of others.
    fn thought(&self, block: &Block) -> Option<String> {
        let signature = block.signature.as_deref()?;
        match block.thinking.as_deref().unwrap_or_default() {
            "" => self.seal.open(signature),
            text => self.seal.verify(text, signature).then(|| text.to_owned()),
        }
    }
}

fn lacks(place: &str, field: &str) -> ApiError {
    ApiError::invalid_param(place, format!("{place} has no {field}"))
}

/// What a tool answered.
fn result_text(block: &Block, place: &str) -> Result<String> {
    let text = match &block.content {
        None => String::new(),
        Some(Content::Text(text)) => text.clone(),
        Some(Content::Blocks(blocks)) => texts_of(blocks, place)?,
    };
    Ok(if block.is_error == Some(true) { format!("Error: {text}") } else { text })
}

fn texts_of(blocks: &[Block], place: &str) -> Result<String> {
    let texts = blocks.iter().enumerate().map(|(i, block)| text_of(block, &format!("{place}.content[{i}]")));
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n"))
}

/// The text of a block.
///
/// Errors: a block that is no text.
fn text_of(block: &Block, place: &str) -> Result<String> {
    match block.kind.as_str() {
        "text" => block.text.clone().ok_or_else(|| lacks(place, "text")),
        "tool_reference" => block.tool_name.clone().ok_or_else(|| lacks(place, "tool_name")),
        "search_result" => {
            let source = block.source.as_ref().and_then(Value::as_str).unwrap_or_default();
            let title = block.title.as_deref().unwrap_or_default();
            let text = match &block.content {
                Some(Content::Blocks(blocks)) => texts_of(blocks, place)?,
                _ => return Err(lacks(place, "content")),
            };
            Ok(format!("{title}\n{source}\n\n{text}"))
        }
        "document" => document_text(block, place),
        kind => {
            let message = format!("{place} is of type {kind:?}; this model reads text only");
            Err(ApiError::invalid_param(place, message).code("unsupported"))
        }
    }
}

fn document_text(block: &Block, place: &str) -> Result<String> {
    let of = |name: &str| block.source.as_ref().and_then(|source| source.get(name));
    let text = match (of("type").and_then(Value::as_str), of("data"), of("content")) {
        (Some("text"), Some(Value::String(data)), _) => data.clone(),
        (Some("content"), _, Some(content)) => {
            let content = Content::deserialize_from(content).map_err(|error| {
                ApiError::invalid_param(place, format!("{place}.source.content: {error}"))
            })?;
            match content {
                Content::Text(text) => text,
                Content::Blocks(blocks) => texts_of(&blocks, &format!("{place}.source"))?,
            }
        }
        _ => {
            let message =
                format!("{place} is a document whose source is no text; this model reads text only");
            return Err(ApiError::invalid_param(place, message).code("unsupported"));
        }
    };
    Ok(block.title.as_ref().map_or(text.clone(), |title| format!("{title}\n\n{text}")))
}

impl Content {
    fn deserialize_from(value: &Value) -> std::result::Result<Self, serde_json::Error> {
        serde::Deserialize::deserialize(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(messages: Value) -> Result<Vec<Value>> {
        let seal = Seal::new(&["demo".to_owned()], &[]);
        let mut reader = Reader { seal: &seal, list: MessageList::default() };
        for (i, message) in messages.as_array().expect("a list").iter().enumerate() {
            let content = Content::deserialize_from(&message["content"]).expect("content");
            let place = format!("messages[{i}]");
            match message["role"].as_str() {
                Some("assistant") => reader.assistant(&content, &place)?,
                Some("system") => reader.list.system(&system_text(&content, &place, false)?),
                _ => reader.user(&content, &place)?,
            }
        }
        Ok(reader.list.into_messages())
    }

    #[test]
    fn calls_and_results_become_messages_of_chat_templates() {
        let read = read(json!([
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [{"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rome"}, "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "t2", "name": "now", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "21"}, {"type": "tool_reference", "tool_name": "x"}]},
                {"type": "tool_result", "tool_use_id": "t2", "content": "no clock", "is_error": true},
                {"type": "text", "text": "Well?"}]},
            {"role": "user", "content": "Say it."},
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        ]));
        assert_eq!(
            read.expect("messages"),
            [
                json!({"role": "user", "content": "Weather?"}),
                json!({"role": "assistant", "content": "I look.", "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}},
                    {"id": "t2", "type": "function", "function": {"name": "now", "arguments": {}}},
                ]}),
                json!({"role": "tool", "tool_call_id": "t1", "name": "weather", "content": "21\nx"}),
                json!({"role": "tool", "tool_call_id": "t2", "name": "now", "content": "Error: no clock"}),
                json!({"role": "user", "content": "Well?\n\nSay it.\n\n<system-reminder>\nBe brief.\n</system-reminder>"}),
            ]
        );
    }

    #[test]
    fn only_thoughts_of_this_server_are_read_again() {
        let seal = Seal::new(&["demo".to_owned()], &[]);
        let thought = |thinking: &str, signature: String| {
            let block = json!({"type": "thinking", "thinking": thinking, "signature": signature});
            let read =
                read(json!([{"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}]));
            read.expect("messages")[0].get("reasoning_content").cloned()
        };
        assert_eq!(thought("Hm.", seal.sign("Hm.")), Some(json!("Hm.")));
        assert_eq!(thought("", seal.seal("Hm.")), Some(json!("Hm.")));
        assert_eq!(thought("Ha.", seal.sign("Hm.")), None);
        assert_eq!(thought("Hm.", String::new()), None);
    }

    #[test]
    fn documents_and_search_results_are_text_and_images_are_refused() {
        let one = |block: Value| read(json!([{"role": "user", "content": [block]}]));
        let text = |block: Value| one(block).expect("messages")[0]["content"].clone();
        let source = json!({"type": "text", "media_type": "text/plain", "data": "Foxes."});
        assert_eq!(text(json!({"type": "document", "title": "T", "source": source})), "T\n\nFoxes.");
        let source = json!({"type": "content", "content": [{"type": "text", "text": "Owls."}]});
        assert_eq!(text(json!({"type": "document", "source": source})), "Owls.");
        let content = json!([{"type": "text", "text": "Found."}]);
        let result = json!({"type": "search_result", "source": "s", "title": "T", "content": content});
        assert_eq!(text(result), "T\ns\n\nFound.");
        let pdf = json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}});
        for block in [json!({"type": "image", "source": {"type": "base64"}}), pdf, json!({"type": "text"})] {
            let error = one(block.clone()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some("messages[0].content[0]"), "{block}");
        }
    }

    #[test]
    fn a_billing_header_is_no_part_of_the_system_prompt() {
        let header = "x-anthropic-billing-header: cc_version=2.1.177.01c; cc_entrypoint=cli; cch=36ee5;";
        let blocks = json!([{"type": "text", "text": header}, {"type": "text", "text": "You are an agent."}]);
        let text = format!("{header}\nYou are an agent.");
        for system in [blocks, text.clone().into()] {
            let system = Content::deserialize_from(&system).expect("content");
            assert_eq!(system_text(&system, "system", false), Ok("You are an agent.".to_owned()));
            assert!(system_text(&system, "system", true).expect("text").starts_with(header));
        }
        let later = format!("Never send {header}");
        assert_eq!(without_billing_header(&later), later, "elsewhere it is text");
    }
}
