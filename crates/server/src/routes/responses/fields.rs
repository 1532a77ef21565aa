//! The table of fields of `/v1/responses`.

use crate::fields::{Field, Neutral, Table};

/// The endpoints that take these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/responses`
    Responses,
}

/// The fields of OpenAI's Responses API.
#[derive(Clone, Debug, Default)]
pub(crate) struct ResponsesFields;

impl Table for ResponsesFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Field<Endpoint>] {
        FIELDS
    }
}

const ALL: &[Endpoint] = &[Endpoint::Responses];

const fn honoured(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::honoured(name, ALL, note)
}

const fn no_effect(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::no_effect(name, ALL, note)
}

const fn refused(name: &'static str, neutral: Neutral, note: &'static str) -> Field<Endpoint> {
    Field::refused(name, ALL, neutral, note)
}

const NOT_SHORTENED: &str = "the conversation is read as it was sent; see `truncation`";

static FIELDS: &[Field<Endpoint>] = &[
    honoured("model", "one of the server's names; may be left out"),
    honoured("input", "text, or items: messages, calls, results, reasoning"),
    honoured("instructions", "system prompt of this request"),
    honoured("previous_response_id", "goes on after a response that is stored"),
    honoured("store", "keeps the response in memory, which is the default"),
    honoured("max_output_tokens", "tokens to generate at most, with those of the reasoning"),
    honoured("stream", "sends the answer as server-sent events"),
    honoured(
        "include",
        "`reasoning.encrypted_content` and `message.output_text.logprobs`; other kinds say nothing here",
    ),
    honoured(
        "reasoning",
        "`effort`: the template's `reasoning_effort`; reasoning comes whole, there are no summaries",
    ),
    honoured("text", "`format`: `text`, `json_object` or `json_schema`"),
    honoured("tools", "functions; tools of other types are left out"),
    honoured("tool_choice", "none, auto, required, one function, or `allowed_tools`"),
    honoured("parallel_tool_calls", "whether an answer may have several calls"),
    honoured("truncation", "`auto` leaves out the oldest turns of a conversation that is too long"),
    honoured("top_logprobs", "likeliest tokens to report, up to 20"),
    honoured("metadata", "comes back with the response"),
    honoured("temperature", "0 takes the likeliest token"),
    honoured("top_p", "keeps the likeliest tokens that reach this probability together"),
    honoured("top_k", "extension: keeps this many of the likeliest tokens; 0 and -1 keep all"),
    honoured("min_p", "extension: drops tokens below this share of the likeliest one's probability"),
    honoured("repetition_penalty", "extension: on tokens of the prompt and the answer"),
    honoured("repeat_penalty", "extension: another name of `repetition_penalty`"),
    honoured("frequency_penalty", "extension: for each time that a token was generated"),
    honoured("presence_penalty", "extension: once for tokens that were generated"),
    honoured(
        "seed",
        "extension: the same seed and request give the same answer, on a GPU with --deterministic",
    ),
    honoured("cache_salt", "extension: only requests with the same salt share cached prefixes"),
    honoured("chat_template_kwargs", "extension: further variables of the chat template"),
    //
    no_effect("access_programs", "nothing is restricted"),
    no_effect("image", "only text is read and written"),
    no_effect("max_tool_calls", "it counts calls of tools that OpenAI runs"),
    no_effect("prompt_cache_key", "all prompts share one cache; see `cache_salt`"),
    no_effect("prompt_cache_options", "the least recently used goes first"),
    no_effect("prompt_cache_retention", "the least recently used goes first"),
    no_effect("safety_identifier", "nothing is kept about users"),
    no_effect("service_tier", "there is one"),
    no_effect("stream_options", "events are not padded"),
    no_effect("user", "nothing is kept about users"),
    no_effect("client_metadata", "nothing is kept about clients"),
    //
    refused("background", Neutral::Bool(false), "ask for a stream"),
    refused("context_management", Neutral::Empty, NOT_SHORTENED),
    refused("conversation", Neutral::Null, "conversations are not kept; use previous_response_id"),
    refused("moderation", Neutral::Null, "nothing is moderated"),
    refused("prompt", Neutral::Null, "templates of prompts are not kept; send the text"),
    refused("messages", Neutral::Null, "the conversation stands in input"),
    refused("max_tokens", Neutral::Null, "use max_output_tokens"),
    refused("max_completion_tokens", Neutral::Null, "use max_output_tokens"),
    refused("response_format", Neutral::Null, "use text.format"),
    refused("stop", Neutral::Empty, "ask /v1/chat/completions for it"),
    refused("n", Neutral::Number(1.0), "ask /v1/chat/completions for it"),
];

#[cfg(test)]
mod tests {
    use super::super::wire::ResponsesRequest;
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use serde_json::{Value, json};

    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let request: ResponsesRequest = serde_json::from_value(json!({ name: value })).expect("a request");
        request.other.check(endpoint)
    }

    #[test]
    fn the_table_is_what_the_types_and_the_documentation_say() {
        testing::refused_by_name::<ResponsesFields>(ALL, check);
        testing::honours::<ResponsesFields, ResponsesRequest>(Endpoint::Responses);
        testing::is_printed::<ResponsesFields>(&[(Endpoint::Responses, "responses")]);
    }

    /// The fields of OpenAI's reference, as the types of its Python package 3.52 name them.
    #[test]
    fn all_fields_of_the_reference_are_listed() {
        let names = "access_programs background context_management conversation image include input instructions max_output_tokens \
            max_tool_calls metadata model moderation parallel_tool_calls previous_response_id prompt prompt_cache_key \
            prompt_cache_options prompt_cache_retention reasoning safety_identifier service_tier store stream stream_options \
            temperature text tool_choice tools top_logprobs top_p truncation user";
        testing::lists::<ResponsesFields>(Endpoint::Responses, names);
    }
}
