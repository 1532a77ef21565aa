//! The table of fields of `/v1/messages`.

use crate::fields::{Field, Neutral, Table};

/// The endpoints of Anthropic's API. `/v1/messages/count_tokens` takes the same requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/messages`
    Messages,
}

/// The fields of Anthropic's API.
#[derive(Clone, Debug, Default)]
pub(crate) struct MessagesFields;

impl Table for MessagesFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Field<Endpoint>] {
        FIELDS
    }
}

const ALL: &[Endpoint] = &[Endpoint::Messages];

const fn honoured(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::honoured(name, ALL, note)
}

const fn no_effect(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::no_effect(name, ALL, note)
}

const fn refused(name: &'static str, neutral: Neutral, note: &'static str) -> Field<Endpoint> {
    Field::refused(name, ALL, neutral, note)
}

static FIELDS: &[Field<Endpoint>] = &[
    honoured("model", "one of the server's names; may be left out"),
    honoured(
        "messages",
        "the conversation; ends it with an assistant's message, the answer goes on with that",
    ),
    honoured("system", "text, or blocks of text"),
    honoured("max_tokens", "tokens to generate at most"),
    honoured("stop_sequences", "up to 64 texts before which the answer ends"),
    honoured("stream", "sends the answer as server-sent events"),
    honoured(
        "thinking",
        "sets `enable_thinking`, a variable of the chat template: to true if `enabled`, to false if `disabled` or left out",
    ),
    honoured("output_config", "`format`: JSON of a schema; `effort`: the template's `reasoning_effort`"),
    honoured("output_format", "the older form of `output_config.format`"),
    honoured("tools", "tools with an `input_schema`; those that Anthropic runs are left out"),
    honoured("tool_choice", "`auto`, `any`, `tool` or `none`, with `disable_parallel_tool_use`"),
    honoured("temperature", "0 takes the likeliest token"),
    honoured("top_p", "keeps the likeliest tokens that reach this probability together"),
    honoured("top_k", "keeps this many of the likeliest tokens; 0 and -1 keep all"),
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
    no_effect("metadata", "nothing is kept about users"),
    no_effect("cache_control", "every prompt is cached; also on blocks and tools"),
    no_effect("service_tier", "there is one"),
    no_effect("speed", "there is one"),
    no_effect("inference_geo", "answers come from this server"),
    no_effect("diagnostics", "`usage` says how much of the prompt was cached"),
    no_effect("context_management", "the conversation is read as it was sent"),
    no_effect("betas", "the header `anthropic-beta` says nothing here either"),
    no_effect("billing_policy", "nothing is billed"),
    no_effect("fallbacks", "there is one model"),
    no_effect("fallback_credit_token", "nothing is billed"),
    no_effect("user_profile_id", "nothing is kept about users"),
    no_effect("workspace_id", "nothing is kept about users"),
    //
    refused("container", Neutral::Null, "no code is run here"),
    refused("mcp_servers", Neutral::Empty, "the server calls no other servers; offer their tools"),
    refused("compaction", Neutral::Null, "conversations are not shortened"),
    refused("thread", Neutral::Null, "conversations are not kept"),
];

#[cfg(test)]
mod tests {
    use super::super::wire::MessagesRequest;
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use serde_json::{Value, json};

    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let mut body = json!({"messages": []});
        body[name] = value.clone();
        serde_json::from_value::<MessagesRequest>(body).expect("a request").other.check(endpoint)
    }

    #[test]
    fn the_table_is_what_the_types_and_the_documentation_say() {
        testing::refused_by_name::<MessagesFields>(ALL, check);
        testing::honours::<MessagesFields, MessagesRequest>(Endpoint::Messages);
        testing::is_printed::<MessagesFields>(&[(Endpoint::Messages, "messages")]);
    }

    /// The fields of Anthropic's reference, as the types of its Python package 2.12 name them, with those of its beta.
    #[test]
    fn all_fields_of_the_reference_are_listed() {
        let names = "betas billing_policy cache_control compaction container context_management diagnostics fallback_credit_token \
            fallbacks inference_geo max_tokens mcp_servers messages metadata model output_config service_tier speed stop_sequences \
            stream system thinking thread tool_choice tools user_profile_id workspace_id";
        testing::lists::<MessagesFields>(Endpoint::Messages, names);
        testing::lists::<MessagesFields>(Endpoint::Messages, "temperature top_k top_p");
    }
}
