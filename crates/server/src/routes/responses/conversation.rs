//! Items of a request as a conversation.

use super::wire::{Content, Input, Item, ResponsesRequest};
use crate::conversation::{Conversation, Ending, MessageList, add_variables, effort_variables};
use crate::error::{ApiError, Result};
use crate::seal::Seal;
use serde_json::{Value, json};

/// Types of items about tools that OpenAI runs. They say nothing to another model and are left out.
const LEFT_OUT: &[&str] = &[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "additional_tools",
];

/// The conversation without the request's instructions, as messages for the chat template. `before`: what it goes on after.
///
/// Errors: an item that cannot be read, with its place.
pub(super) fn messages(seal: &Seal, request: &ResponsesRequest, before: Vec<Value>) -> Result<Vec<Value>> {
    let mut list = MessageList::after(before);
    match &request.input {
        None => {}
        Some(Input::Text(text)) => list.user(text),
        Some(Input::Items(items)) => {
            for (i, item) in items.iter().enumerate() {
                add(&mut list, seal, item, &format!("input[{i}]"))?;
            }
        }
    }
    Ok(list.into_messages())
}

/// The conversation for the chat template.
pub(super) fn conversation(request: &ResponsesRequest, messages: &[Value]) -> Conversation {
    let mut messages = messages.to_vec();
    // Instructions alone are no conversation.
    if let Some(text) = request.instructions.as_ref().filter(|text| !text.is_empty() && !messages.is_empty())
    {
        match messages.first_mut() {
            Some(first) if first["role"] == "system" => {
                let more = first["content"].as_str().unwrap_or_default();
                first["content"] = format!("{text}\n\n{more}").into();
            }
            _ => messages.insert(0, json!({"role": "system", "content": text})),
        }
    }
    let effort = request.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let mut variables = effort.map(effort_variables).unwrap_or_default();
    add_variables(&mut variables, request.chat_template_kwargs.as_ref());
    Conversation { messages, variables, ending: Ending::Answer, field: "input" }
}

/// Adds an item to the conversation.
fn add(list: &mut MessageList, seal: &Seal, item: &Item, place: &str) -> Result<()> {
    let lacks = |field: &str| ApiError::invalid_param(place, format!("{place} has no {field}"));
    let call_id = || item.call_id.as_deref().ok_or_else(|| lacks("call_id"));
    let name = || item.name.as_deref().ok_or_else(|| lacks("name"));
    match item.kind.as_deref().unwrap_or("message") {
        "message" => {
            let content = item.content.as_ref().ok_or_else(|| lacks("content"))?;
            let text = text_of(content, &format!("{place}.content"))?;
            match item.role.as_deref() {
                Some("user") => list.user(&text),
                Some("assistant") => list.assistant(&text),
                Some("system" | "developer") => list.system(&text),
                role => {
                    let role = role.unwrap_or_default();
                    let message =
                        format!("{place}.role is {role:?} but must be user, assistant, system or developer");
                    return Err(ApiError::invalid_param(format!("{place}.role"), message));
                }
            }
        }
        "reasoning" => thought(seal, item, place)?.iter().for_each(|text| list.thought(text)),
        "function_call" => {
            let arguments = item.arguments.as_deref().unwrap_or_default();
            let arguments = serde_json::from_str(arguments).unwrap_or_else(|_| arguments.into());
            list.call(call_id()?, name()?, arguments);
        }
        "custom_tool_call" => list.call(call_id()?, name()?, json!({ "input": item.input })),
        "function_call_output" | "custom_tool_call_output" => {
            let output = item.output.as_ref().ok_or_else(|| lacks("output"))?;
            list.result(call_id()?, &text_of(output, &format!("{place}.output"))?);
        }
        kind if LEFT_OUT.contains(&kind) => {}
        "item_reference" => {
            let message = format!("{place} refers to an item; send the item itself, or previous_response_id");
            return Err(ApiError::invalid_param(place, message).code("unsupported"));
        }
        kind => {
            let message = format!("{place} is of type {kind:?}, which this server cannot read");
            return Err(ApiError::invalid_param(place, message).code("unsupported"));
        }
    }
    Ok(())
}

/// What this server's model thought; `None` for the thoughts of others, which they keep to themselves.
fn thought(seal: &Seal, item: &Item, place: &str) -> Result<Option<String>> {
    if let Some(text) = item.encrypted_content.as_deref().and_then(|sealed| seal.open(sealed)) {
        return Ok(Some(text));
    }
    match &item.content {
        Some(content) => {
            text_of(content, &format!("{place}.content")).map(|t| Some(t).filter(|t| !t.is_empty()))
        }
        None => Ok(None),
    }
}

/// Parts in one text.
///
/// Errors: a part that is no text.
fn text_of(content: &Content, place: &str) -> Result<String> {
    let parts = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::Parts(parts) => parts,
    };
    let texts = parts.iter().enumerate().map(|(i, part)| {
        let place = format!("{place}[{i}]");
        match (part.kind.as_str(), part.text.as_ref().or(part.refusal.as_ref())) {
            ("input_text" | "output_text" | "text" | "refusal" | "reasoning_text" | "summary_text", text) => {
                text.cloned().ok_or_else(|| ApiError::invalid_param(&place, format!("{place} has no text")))
            }
            (kind, _) => {
                let message = format!("{place} is of type {kind:?}; this model reads text only");
                Err(ApiError::invalid_param(&place, message).code("unsupported"))
            }
        }
    });
    Ok(texts.collect::<Result<Vec<_>>>()?.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seal() -> Seal {
        Seal::new(&["demo".to_owned()], &[])
    }

    fn read(request: Value, before: Vec<Value>) -> Result<Vec<Value>> {
        let request: ResponsesRequest = serde_json::from_value(request).expect("a request");
        messages(&seal(), &request, before)
    }

    #[test]
    fn items_become_messages_of_chat_templates() {
        let input = json!([
            {"role": "developer", "content": "Be brief."},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather"}, {"type": "input_text", "text": "in Rome?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal().seal("Hm.")},
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAAAABo"},
            {"type": "web_search_call", "id": "ws_1", "status": "completed"},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{\"city\": \"Rome\"}", "id": "fc_1"},
            {"type": "function_call_output", "call_id": "c1", "output": "21"},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 21."}]},
        ]);
        let call = |id: &str, name: &str, arguments: Value| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
        let expected = [
            json!({"role": "system", "content": "Be brief."}),
            json!({"role": "user", "content": "Weather\nin Rome?"}),
            json!({"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call("c1", "weather", json!({"city": "Rome"}))]}),
            json!({"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "21"}),
            json!({"role": "assistant", "content": "", "tool_calls": [call("c2", "patch", json!({"input": "x"}))]}),
            json!({"role": "tool", "tool_call_id": "c2", "name": "patch", "content": "done"}),
            json!({"role": "assistant", "content": "It is 21."}),
        ];
        let all = read(json!({ "input": input }), Vec::new()).expect("messages");
        assert_eq!(all, expected);
        // In two requests it is the same.
        let items = input.as_array().expect("a list");
        for n in 1..items.len() {
            let before = read(json!({ "input": items[..n] }), Vec::new()).expect("messages");
            assert_eq!(read(json!({ "input": items[n..] }), before).expect("messages"), expected, "{n}");
        }
        let request = serde_json::from_value(json!({"instructions": "You are an agent.", "input": input}));
        let conversation = conversation(&request.expect("a request"), &all);
        assert_eq!(conversation.messages[0]["content"], "You are an agent.\n\nBe brief.");
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_place() {
        for (item, place) in [
            (
                json!({"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}),
                "input[0].content[0]",
            ),
            (json!({"role": "critic", "content": "x"}), "input[0].role"),
            (json!({"type": "item_reference", "id": "msg_1"}), "input[0]"),
            (json!({"type": "compaction", "encrypted_content": "x"}), "input[0]"),
            (json!({"type": "function_call", "name": "x", "arguments": "{}"}), "input[0]"),
            (json!({"type": "function_call_output", "call_id": "x"}), "input[0]"),
        ] {
            let error = read(json!({ "input": [item] }), Vec::new()).expect_err("refused");
            assert_eq!(error.param.as_deref(), Some(place), "{item}");
        }
    }
}
