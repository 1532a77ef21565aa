//! The table of fields of Ollama's API, and of its `options`.

use crate::fields::{Field, Neutral, Table};

/// What takes these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/api/chat`
    Chat,
    /// `/api/generate`
    Generate,
    /// `options` of both
    Options,
}

/// The fields of Ollama's API.
#[derive(Clone, Debug, Default)]
pub(crate) struct OllamaFields;

impl Table for OllamaFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Field<Endpoint>] {
        FIELDS
    }
}

const BOTH: &[Endpoint] = &[Endpoint::Chat, Endpoint::Generate];
const CHAT: &[Endpoint] = &[Endpoint::Chat];
const GENERATE: &[Endpoint] = &[Endpoint::Generate];
const OPTIONS: &[Endpoint] = &[Endpoint::Options];

const fn option(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::honoured(name, OPTIONS, note)
}

const fn no_option(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::no_effect(name, OPTIONS, note)
}

const fn refused_option(name: &'static str, neutral: Neutral, note: &'static str) -> Field<Endpoint> {
    Field::refused(name, OPTIONS, neutral, note)
}

const AT_START: &str = "it is chosen when the server is started";
const NO_SAMPLER: &str = "this way to choose tokens is not offered; use temperature, top_k, top_p or min_p";
const NO_MIROSTAT: &str = "only `mirostat` reads it, and that is refused";

static FIELDS: &[Field<Endpoint>] = &[
    Field::honoured("model", BOTH, "one of the server's names, with or without `:latest`; may be left out"),
    Field::honoured("messages", CHAT, "the conversation; without any, nothing is generated"),
    Field::honoured("tools", CHAT, "functions"),
    Field::honoured("prompt", GENERATE, "what the user says; without it, nothing is generated"),
    Field::honoured("system", GENERATE, "system prompt"),
    Field::honoured("suffix", GENERATE, "text after the gap, for models that fill gaps"),
    Field::honoured("raw", GENERATE, "the prompt is continued as it is, without the chat template"),
    Field::honoured(
        "think",
        BOTH,
        "a variable of the chat template: `enable_thinking`, or `reasoning_effort` where it is a text",
    ),
    Field::honoured("format", BOTH, "`json`, or the schema of the answer"),
    Field::honoured("stream", BOTH, "sends the answer as lines of JSON, which is the default"),
    Field::honoured("options", BOTH, "see below"),
    Field::honoured(
        "keep_alive",
        BOTH,
        "how long the model stays loaded after this request, where the server has several: seconds, or a text such as `5m`; negative: until its \
         room is needed, 0: not at all",
    ),
    Field::honoured("logprobs", BOTH, "reports log-probabilities"),
    Field::honoured("top_logprobs", BOTH, "likeliest tokens to report, up to 20"),
    option(
        "num_ctx",
        "prompt and answer together have so many tokens at most; more than the server's `--ctx` are refused",
    ),
    option("num_predict", "tokens to generate at most; negative: to the end of the context"),
    option("stop", "up to 64 texts before which the answer ends"),
    option("seed", "the same seed and request give the same answer, on a GPU with --deterministic"),
    option("temperature", "0 takes the likeliest token"),
    option("top_p", "keeps the likeliest tokens that reach this probability together"),
    option("top_k", "keeps this many of the likeliest tokens; 0 and -1 keep all"),
    option("min_p", "drops tokens below this share of the likeliest one's probability"),
    option("repeat_penalty", "on tokens of the prompt and the answer"),
    option("repetition_penalty", "another name of `repeat_penalty`"),
    option("repeat_last_n", "how many of the last tokens penalties look at; -1: all"),
    option("frequency_penalty", "for each time that a token was generated"),
    option("presence_penalty", "once for tokens that were generated"),
    //
    Field::no_effect("truncate", BOTH, "a prompt that is too long is refused"),
    Field::no_effect("shift", BOTH, "the context is never shifted"),
    no_option("num_batch", AT_START),
    no_option("num_gpu", AT_START),
    no_option("main_gpu", AT_START),
    no_option("num_thread", AT_START),
    no_option("numa", AT_START),
    no_option("low_vram", AT_START),
    no_option("f16_kv", AT_START),
    no_option("use_mmap", AT_START),
    no_option("use_mlock", AT_START),
    no_option("vocab_only", AT_START),
    no_option("embedding_only", AT_START),
    no_option("logits_all", AT_START),
    no_option("num_keep", "the context is never shifted"),
    no_option("mirostat_tau", NO_MIROSTAT),
    no_option("mirostat_eta", NO_MIROSTAT),
    //
    Field::refused("images", GENERATE, Neutral::Empty, "only text is read and written"),
    Field::refused("template", GENERATE, Neutral::Text(&[""]), "the model's own is used"),
    Field::refused("context", GENERATE, Neutral::Empty, "send the conversation to /api/chat"),
    Field::refused("width", GENERATE, Neutral::Number(0.0), "only text is read and written"),
    Field::refused("height", GENERATE, Neutral::Number(0.0), "only text is read and written"),
    Field::refused("steps", GENERATE, Neutral::Number(0.0), "only text is read and written"),
    refused_option("mirostat", Neutral::Number(0.0), NO_SAMPLER),
    refused_option("tfs_z", Neutral::Number(1.0), NO_SAMPLER),
    refused_option("typical_p", Neutral::Number(1.0), NO_SAMPLER),
    refused_option(
        "penalize_newline",
        Neutral::Bool(false),
        "use repeat_penalty, frequency_penalty or presence_penalty",
    ),
];

#[cfg(test)]
mod tests {
    use super::super::wire::{ChatRequest, GenerateRequest, Options};
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use serde_json::{Value, json};

    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let body = json!({ name: value });
        match endpoint {
            Endpoint::Chat => serde_json::from_value::<ChatRequest>(body).expect("a request").other,
            Endpoint::Generate => serde_json::from_value::<GenerateRequest>(body).expect("a request").other,
            Endpoint::Options => serde_json::from_value::<Options>(body).expect("options").other,
        }
        .check(endpoint)
    }

    #[test]
    fn the_table_is_what_the_types_and_the_documentation_say() {
        testing::refused_by_name::<OllamaFields>(
            &[Endpoint::Chat, Endpoint::Generate, Endpoint::Options],
            check,
        );
        testing::honours::<OllamaFields, ChatRequest>(Endpoint::Chat);
        testing::honours::<OllamaFields, GenerateRequest>(Endpoint::Generate);
        testing::honours::<OllamaFields, Options>(Endpoint::Options);
        let names =
            [(Endpoint::Chat, "chat"), (Endpoint::Generate, "generate"), (Endpoint::Options, "options")];
        testing::is_printed::<OllamaFields>(&names);
    }

    /// The fields that Ollama's Python package 0.6 sends.
    #[test]
    fn all_fields_of_the_client_are_listed() {
        let both = "model stream options format keep_alive think logprobs top_logprobs ";
        testing::lists::<OllamaFields>(Endpoint::Chat, &(both.to_owned() + "messages tools"));
        let generate = "prompt suffix system template context raw images width height steps";
        testing::lists::<OllamaFields>(Endpoint::Generate, &(both.to_owned() + generate));
        let options = "numa num_ctx num_batch num_gpu main_gpu low_vram f16_kv logits_all vocab_only use_mmap use_mlock embedding_only \
            num_thread num_keep seed num_predict top_k top_p tfs_z typical_p repeat_last_n temperature repeat_penalty \
            presence_penalty frequency_penalty mirostat mirostat_tau mirostat_eta penalize_newline stop";
        testing::lists::<OllamaFields>(Endpoint::Options, options);
    }
}
