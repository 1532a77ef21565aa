//! Prompts in all forms that llama.cpp takes: text, token ids, both mixed, and several of these.

use crate::error::{ApiError, Result};
use crate::models::Lease;
use realizar_model::tokenizer::EncodeOptions;
use serde_json::Value;

/// Token ids of each prompt, and whether there may be several.
///
/// Errors: a form that is none of these; a token that does not exist.
pub(super) fn read(prompt: &Value, lease: &Lease) -> Result<(Vec<Vec<u32>>, bool)> {
    match prompt {
        Value::Array(parts) if !is_mixed(parts) => {
            if parts.is_empty() {
                return Err(refuse("prompt is an empty list"));
            }
            let prompts = parts.iter().map(|part| one(part, lease)).collect::<Result<Vec<_>>>()?;
            Ok((prompts, parts.len() > 1))
        }
        prompt => Ok((vec![one(prompt, lease)?], false)),
    }
}

/// Whether a list is one prompt: texts alone are several.
fn is_mixed(parts: &[Value]) -> bool {
    parts.iter().any(Value::is_number) && parts.iter().all(|part| part.is_number() || part.is_string())
}

/// Token ids of one prompt.
fn one(prompt: &Value, lease: &Lease) -> Result<Vec<u32>> {
    match prompt {
        Value::String(text) => Ok(encode(lease, text, true)),
        Value::Array(parts) if is_mixed(parts) => {
            let mut ids = Vec::new();
            for (i, part) in parts.iter().enumerate() {
                match part {
                    // What begins a text comes first, or not at all.
                    Value::String(text) => ids.extend(encode(lease, text, i == 0)),
                    number => ids.push(token(number, lease)?),
                }
            }
            Ok(ids)
        }
        Value::Object(object) => {
            if object
                .get("multimodal_data")
                .is_some_and(|data| data.as_array().is_none_or(|data| !data.is_empty()))
            {
                return Err(refuse("multimodal_data is not supported: only text is read and written"));
            }
            match object.get("prompt_string") {
                Some(Value::String(text)) => Ok(encode(lease, text, true)),
                _ => Err(refuse("an object in prompt needs the text prompt_string")),
            }
        }
        _ => Err(refuse(
            "prompt is a text, a list of token ids and texts, an object with prompt_string, or a list of these",
        )),
    }
}

fn token(number: &Value, lease: &Lease) -> Result<u32> {
    let n = lease.model.engine.client().info().vocab_size;
    let id = number.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < n);
    id.ok_or_else(|| refuse(format!("prompt names token {number} but the vocabulary has {n} tokens")))
}

fn refuse(message: impl Into<String>) -> ApiError {
    ApiError::invalid_param("prompt", message)
}

/// Token ids of a text, with what the model expects around it if it stands alone.
pub(super) fn encode(lease: &Lease, text: &str, add_special: bool) -> Vec<u32> {
    lease.model.engine.tokenizer().encode(text, EncodeOptions { add_special, parse_special: true })
}
