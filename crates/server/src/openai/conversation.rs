//! What a chat request says to the chat template.

use super::ChatRequest;
use crate::conversation::{Conversation, Ending, add_variables};
use crate::error::{ApiError, Result};
use serde_json::{Map, Value};

impl ChatRequest {
    /// The conversation for the chat template.
    ///
    /// Errors: messages that cannot be read; two endings at once.
    pub(crate) fn conversation(&self) -> Result<Conversation> {
        let messages = self.messages.iter().enumerate().map(|(i, m)| m.to_template(i));
        Ok(Conversation {
            messages: messages.collect::<Result<_>>()?,
            variables: self.variables(),
            ending: self.ending()?,
            field: "messages",
        })
    }

    /// Errors: two endings at once.
    fn ending(&self) -> Result<Ending> {
        let variable = |name: &str| {
            self.chat_template_kwargs.as_ref().and_then(|all| all.get(name)).and_then(Value::as_bool)
        };
        let begins = self.add_generation_prompt.or_else(|| variable("add_generation_prompt"));
        let goes_on = self.continue_final_message.or_else(|| variable("continue_final_message"));
        match (begins, goes_on.unwrap_or(false)) {
            (Some(true), true) => {
                let message = "add_generation_prompt and continue_final_message cannot both be true";
                Err(ApiError::invalid_param("continue_final_message", message))
            }
            (_, true) => Ok(Ending::Open),
            (Some(false), false) => Ok(Ending::Message),
            (None | Some(true), false) => Ok(Ending::Answer),
        }
    }

    /// The template's variables that the request names.
    fn variables(&self) -> Map<String, Value> {
        let mut object = Map::new();
        let effort = self.reasoning_effort.as_deref();
        let thinking = self.enable_thinking.or((effort == Some("none")).then_some(false));
        for (name, value) in [
            ("enable_thinking", thinking.map(Value::from)),
            ("reasoning_effort", effort.map(Value::from)),
            ("date_string", self.date_string.clone().map(Value::from)),
            ("documents", self.documents.clone().map(Value::from)),
        ] {
            object.extend(value.map(|value| (name.to_owned(), value)));
        }
        add_variables(&mut object, self.chat_template_kwargs.as_ref());
        object
    }
}
