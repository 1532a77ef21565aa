//! The table of fields of `/v1/chat/completions` and `/v1/completions`.

use crate::fields::{Field, Neutral, Table};

/// The fields of OpenAI's endpoints that generate text.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenAiFields;

impl Table for OpenAiFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Row] {
        FIELDS
    }
}

/// An endpoint that generates text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Text,
}

const BOTH: &[Endpoint] = &[Endpoint::Chat, Endpoint::Text];
const CHAT: &[Endpoint] = &[Endpoint::Chat];
const TEXT: &[Endpoint] = &[Endpoint::Text];

type Row = Field<Endpoint>;

const fn honoured(name: &'static str, endpoints: &'static [Endpoint], note: &'static str) -> Row {
    Field::honoured(name, endpoints, note)
}

const fn no_effect(name: &'static str, note: &'static str) -> Row {
    Field::no_effect(name, BOTH, note)
}

const fn refused(
    name: &'static str,
    endpoints: &'static [Endpoint],
    neutral: Neutral,
    note: &'static str,
) -> Row {
    Field::refused(name, endpoints, neutral, note)
}

const BEAM_SEARCH: &str = "only beam search reads it, and that is refused";
const USE_CHAT: &str = "ask /v1/chat/completions for it";
const USE_THINKING: &str = "use enable_thinking, reasoning_effort or chat_template_kwargs";
const NO_SAMPLER: &str = "this way to choose tokens is not offered; use temperature, top_k, top_p or min_p";
const NO_PENALTY: &str =
    "this penalty is not offered; use repetition_penalty, frequency_penalty or presence_penalty";
const TEXT_ONLY: &str = "only text is read and written";

/// All known fields: what is honoured, what has no effect, what is refused.
pub(crate) static FIELDS: &[Row] = &[
    honoured("model", BOTH, "one of the server's names; may be left out"),
    honoured("messages", CHAT, "the conversation"),
    honoured("prompt", TEXT, "text, texts, token ids or lists of token ids"),
    honoured("suffix", TEXT, "text after the gap, for models that fill gaps"),
    honoured("echo", TEXT, "begins the answer with the prompt"),
    honoured("best_of", TEXT, "1 or `n`; anything else is refused"),
    honoured("add_special_tokens", TEXT, "`false` adds no BOS and the like to a prompt that is text"),
    honoured("max_completion_tokens", CHAT, "tokens to generate at most; overrules `max_tokens`"),
    honoured("max_tokens", BOTH, "tokens to generate at most"),
    honoured("n_predict", BOTH, "another name of `max_tokens`; negative: to the end of the context"),
    honoured("min_tokens", BOTH, "tokens before which the answer cannot end"),
    honoured("n", BOTH, "answers per prompt, up to 128"),
    honoured("temperature", BOTH, "0 takes the likeliest token"),
    honoured("top_p", BOTH, "keeps the likeliest tokens that reach this probability together"),
    honoured("top_k", BOTH, "keeps this many of the likeliest tokens; 0 and -1 keep all"),
    honoured("min_p", BOTH, "drops tokens below this share of the likeliest one's probability"),
    honoured("repetition_penalty", BOTH, "on tokens of the prompt and the answer"),
    honoured("repeat_penalty", BOTH, "another name of `repetition_penalty`"),
    honoured("repeat_last_n", BOTH, "how many of the last tokens penalties look at; -1: all"),
    honoured("frequency_penalty", BOTH, "for each time that a token was generated"),
    honoured("presence_penalty", BOTH, "once for tokens that were generated"),
    honoured("logit_bias", BOTH, "added to the logits of tokens, by id"),
    honoured("allowed_token_ids", BOTH, "no other tokens are generated"),
    honoured("bad_words", BOTH, "the answer contains none of these texts, however they are tokenized"),
    honoured("seed", BOTH, "the same seed and request give the same answer, on a GPU with --deterministic"),
    honoured("stop", BOTH, "a string, or up to 64, before which the answer ends"),
    honoured("stop_token_ids", BOTH, "tokens that end the answer, besides the model's own"),
    honoured("include_stop_str_in_output", BOTH, "the answer ends after the stop string instead"),
    honoured("ignore_eos", BOTH, "goes on after the model's own end tokens"),
    honoured("skip_special_tokens", BOTH, "`false` shows control tokens in the text"),
    honoured("stream", BOTH, "sends the answer as server-sent events"),
    honoured("stream_options", BOTH, "`include_usage`"),
    honoured("logprobs", BOTH, "reports log-probabilities"),
    honoured("top_logprobs", CHAT, "likeliest tokens to report, up to 20"),
    honoured(
        "prompt_logprobs",
        BOTH,
        "reports those of the prompt, with so many of the likeliest; not streamed",
    ),
    honoured("return_token_ids", BOTH, "reports the token ids of prompt and answer"),
    honoured(
        "truncate_prompt_tokens",
        BOTH,
        "keeps the last tokens of a longer prompt; -1: what the context holds",
    ),
    honoured("response_format", BOTH, "`text`, `json_object` (also with `schema`), `json_schema`"),
    honoured("json_schema", BOTH, "the answer is JSON of this schema"),
    honoured("regex", BOTH, "the answer matches it from beginning to end"),
    honoured("grammar", BOTH, "the answer follows it; GBNF or Lark"),
    honoured("ebnf", BOTH, "another name of `grammar`"),
    honoured("structured_outputs", BOTH, "`json`, `json_object`, `regex`, `choice` or `grammar`"),
    honoured("guided_json", BOTH, "another name of `json_schema`"),
    honoured("guided_regex", BOTH, "another name of `regex`"),
    honoured("guided_choice", BOTH, "the answer is one of these texts"),
    honoured("guided_grammar", BOTH, "another name of `grammar`"),
    honoured("tools", CHAT, "functions and custom tools"),
    honoured("tool_choice", CHAT, "none, auto, required, one tool, or `allowed_tools`"),
    honoured("parallel_tool_calls", CHAT, "whether an answer may have several calls"),
    honoured("functions", CHAT, "the older form of `tools`; the answer has the older form too"),
    honoured("function_call", CHAT, "the older form of `tool_choice`"),
    honoured("chat_template_kwargs", CHAT, "further variables of the chat template"),
    honoured("enable_thinking", CHAT, "a variable of the chat template"),
    honoured(
        "reasoning_effort",
        CHAT,
        "a variable of the chat template; `none` also sets `enable_thinking` to false",
    ),
    honoured("date_string", CHAT, "a variable of the chat template"),
    honoured("documents", CHAT, "a variable of the chat template"),
    honoured("add_generation_prompt", CHAT, "`false` does not begin the assistant's turn"),
    honoured("continue_final_message", CHAT, "goes on with the last message"),
    honoured("speculate", BOTH, "`false` generates without drafts; the answer is the same"),
    honoured("priority", BOTH, "lower goes first"),
    honoured("cache_salt", BOTH, "only requests with the same salt share cached prefixes"),
    //
    no_effect("user", "nothing is kept about users"),
    no_effect("safety_identifier", "nothing is kept about users"),
    no_effect("metadata", "nothing is stored"),
    no_effect("store", "nothing is stored"),
    no_effect("service_tier", "there is one; see `priority`"),
    no_effect("prediction", "it only speeds up; see `speculate`"),
    no_effect("prompt_cache_key", "all prompts share one cache; see `cache_salt`"),
    no_effect("prompt_cache_retention", "the least recently used goes first"),
    no_effect("prompt_cache_options", "the least recently used goes first"),
    no_effect("cache_prompt", "a cached prompt gives the same answer"),
    no_effect("id_slot", "requests do not belong to slots"),
    no_effect("n_keep", "the context is never shifted"),
    no_effect("n_discard", "the context is never shifted"),
    no_effect("keep_alive", "only Ollama's API reads it"),
    no_effect("request_id", "send the header `X-Request-Id`"),
    no_effect("data_parallel_rank", "there is one engine"),
    no_effect("timings_per_token", "an answer's timings come with its end"),
    no_effect("return_progress", "progress of the prompt is not reported"),
    no_effect("guided_decoding_backend", "every format is enforced by the same engine"),
    no_effect("preserved_tokens", "tokens that frame tool calls are found by themselves"),
    no_effect("spaces_between_special_tokens", "no spaces are put between tokens"),
    no_effect("mm_processor_kwargs", "only images, audio and video would need it"),
    no_effect("media_io_kwargs", "only images, audio and video would need it"),
    no_effect("length_penalty", BEAM_SEARCH),
    no_effect("early_stopping", BEAM_SEARCH),
    no_effect("mirostat_tau", "only `mirostat` reads it, and that is refused"),
    no_effect("mirostat_eta", "only `mirostat` reads it, and that is refused"),
    no_effect("dry_base", "only `dry_multiplier` reads it, and that is refused"),
    no_effect("dry_allowed_length", "only `dry_multiplier` reads it, and that is refused"),
    no_effect("dry_penalty_last_n", "only `dry_multiplier` reads it, and that is refused"),
    no_effect("dry_sequence_breakers", "only `dry_multiplier` reads it, and that is refused"),
    no_effect("xtc_threshold", "only `xtc_probability` reads it, and that is refused"),
    no_effect("dynatemp_exponent", "only `dynatemp_range` reads it, and that is refused"),
    no_effect("smoothing_curve", "only `smoothing_factor` reads it, and that is refused"),
    //
    refused("use_beam_search", BOTH, Neutral::Bool(false), "beam search is not offered; ask for n answers"),
    refused("num_beams", BOTH, Neutral::Number(1.0), "beam search is not offered; ask for n answers"),
    refused("best_of", CHAT, Neutral::Number(1.0), "choosing the best of several is not offered; ask for n"),
    refused("do_sample", BOTH, Neutral::Bool(true), "set temperature to 0 for the likeliest tokens"),
    refused("typical_p", BOTH, Neutral::Number(1.0), NO_SAMPLER),
    refused("tfs_z", BOTH, Neutral::Number(1.0), NO_SAMPLER),
    refused("top_a", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("top_n_sigma", BOTH, Neutral::AtMost(0.0), NO_SAMPLER),
    refused("xtc_probability", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("mirostat", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("mirostat_mode", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("dynatemp_range", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("smoothing_factor", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("epsilon_cutoff", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("eta_cutoff", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("penalty_alpha", BOTH, Neutral::Number(0.0), NO_SAMPLER),
    refused("samplers", BOTH, Neutral::Null, "the order of the sampling steps is fixed"),
    refused("min_keep", BOTH, Neutral::AtMost(1.0), NO_SAMPLER),
    refused("dry_multiplier", BOTH, Neutral::Number(0.0), NO_PENALTY),
    refused("no_repeat_ngram_size", BOTH, Neutral::Number(0.0), NO_PENALTY),
    refused("penalize_nl", BOTH, Neutral::Bool(false), NO_PENALTY),
    refused(
        "logits_processors",
        BOTH,
        Neutral::Empty,
        "code of clients is not run; use logit_bias or a format",
    ),
    refused("vllm_xargs", BOTH, Neutral::Empty, "there are no such extensions"),
    refused("kv_transfer_params", BOTH, Neutral::Empty, "keys and values are not sent between servers"),
    refused("lora", BOTH, Neutral::Empty, "adapters are not offered"),
    refused("t_max_predict_ms", BOTH, Neutral::AtMost(0.0), "answers have no limit in time; use max_tokens"),
    refused("n_indent", BOTH, Neutral::Number(0.0), "use stop, regex or grammar"),
    refused("n_probs", BOTH, Neutral::Number(0.0), "ask for logprobs"),
    refused("post_sampling_probs", BOTH, Neutral::Bool(false), "log-probabilities are the model's own"),
    refused("return_tokens_as_token_ids", BOTH, Neutral::Bool(false), "ask for return_token_ids"),
    refused("detokenize", BOTH, Neutral::Bool(true), "answers are text; return_token_ids adds the ids"),
    refused("max_new_tokens", BOTH, Neutral::Null, "use max_tokens"),
    refused("min_new_tokens", BOTH, Neutral::Null, "use min_tokens"),
    refused("random_seed", BOTH, Neutral::Null, "use seed"),
    refused("format", BOTH, Neutral::Null, "use response_format"),
    refused("options", BOTH, Neutral::Empty, "write each option as a field of the request"),
    refused("structural_tag", BOTH, Neutral::Null, "use grammar"),
    refused(
        "guided_whitespace_pattern",
        BOTH,
        Neutral::Null,
        "blanks between JSON's tokens are fixed; use grammar",
    ),
    refused("grammar_lazy", BOTH, Neutral::Bool(false), "a grammar holds from the answer's beginning"),
    refused("grammar_triggers", BOTH, Neutral::Empty, "a grammar holds from the answer's beginning"),
    refused("images", BOTH, Neutral::Empty, TEXT_ONLY),
    refused("image_data", BOTH, Neutral::Empty, TEXT_ONLY),
    refused("prompt_embeds", BOTH, Neutral::Null, TEXT_ONLY),
    refused("audio", CHAT, Neutral::Null, TEXT_ONLY),
    refused("modalities", CHAT, Neutral::Only("text"), TEXT_ONLY),
    refused("web_search_options", CHAT, Neutral::Null, "the server does not search the web; offer a tool"),
    refused("moderation", CHAT, Neutral::Null, "nothing is moderated"),
    refused("verbosity", CHAT, Neutral::Text(&["medium"]), "say in a message how long the answer should be"),
    refused(
        "chat_template",
        CHAT,
        Neutral::Null,
        "the model's own is used; its variables are chat_template_kwargs",
    ),
    refused(
        "add_special_tokens",
        CHAT,
        Neutral::Bool(false),
        "the chat template writes what the model expects",
    ),
    refused("echo", CHAT, Neutral::Bool(false), "use add_generation_prompt and continue_final_message"),
    refused("suffix", CHAT, Neutral::Null, "ask /v1/completions for it"),
    refused("prompt", CHAT, Neutral::Null, "a conversation stands in messages"),
    refused("safe_prompt", CHAT, Neutral::Bool(false), "write a system message"),
    refused("prompt_mode", CHAT, Neutral::Null, USE_THINKING),
    refused("reasoning", CHAT, Neutral::Null, USE_THINKING),
    refused("think", CHAT, Neutral::Null, USE_THINKING),
    refused("thinking", CHAT, Neutral::Null, USE_THINKING),
    refused("thinking_budget", CHAT, Neutral::AtMost(-1.0), USE_THINKING),
    refused("thinking_budget_tokens", CHAT, Neutral::AtMost(-1.0), USE_THINKING),
    refused("thinking_token_budget", CHAT, Neutral::AtMost(-1.0), USE_THINKING),
    refused("reasoning_budget", CHAT, Neutral::AtMost(-1.0), USE_THINKING),
    refused("thinking_forced_open", CHAT, Neutral::Bool(false), USE_THINKING),
    refused(
        "include_reasoning",
        CHAT,
        Neutral::Bool(true),
        "reasoning is a field of its own and can be ignored",
    ),
    refused("separate_reasoning", CHAT, Neutral::Bool(true), "reasoning is a field of its own"),
    refused("stream_reasoning", CHAT, Neutral::Bool(true), "reasoning is streamed in a field of its own"),
    refused(
        "reasoning_format",
        CHAT,
        Neutral::Text(&["auto", "deepseek"]),
        "reasoning is a field of its own",
    ),
    refused("parse_tool_calls", CHAT, Neutral::Bool(true), "leave out the tools"),
    refused("messages", TEXT, Neutral::Empty, USE_CHAT),
    refused("max_completion_tokens", TEXT, Neutral::Null, "use max_tokens"),
    refused("top_logprobs", TEXT, Neutral::Number(0.0), "logprobs is the number here"),
    refused("tools", TEXT, Neutral::Empty, USE_CHAT),
    refused("tool_choice", TEXT, Neutral::Text(&["none", "auto"]), USE_CHAT),
    refused("functions", TEXT, Neutral::Empty, USE_CHAT),
    refused("function_call", TEXT, Neutral::Text(&["none", "auto"]), USE_CHAT),
    refused("chat_template", TEXT, Neutral::Null, USE_CHAT),
    refused("chat_template_kwargs", TEXT, Neutral::Empty, USE_CHAT),
    refused("enable_thinking", TEXT, Neutral::Null, USE_CHAT),
    refused("reasoning_effort", TEXT, Neutral::Null, USE_CHAT),
    refused("documents", TEXT, Neutral::Empty, USE_CHAT),
    refused("add_generation_prompt", TEXT, Neutral::Bool(false), USE_CHAT),
    refused("continue_final_message", TEXT, Neutral::Bool(false), USE_CHAT),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use crate::openai::{ChatRequest, CompletionRequest};
    use serde_json::Value;

    const ENDPOINTS: &[(Endpoint, &str)] = &[(Endpoint::Chat, "chat"), (Endpoint::Text, "completions")];

    /// The request's own check of a body.
    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let mut body = serde_json::json!({"messages": [], "prompt": "a"});
        body.as_object_mut().expect("an object").retain(|key, _| match endpoint {
            Endpoint::Chat => key == "messages",
            Endpoint::Text => key == "prompt",
        });
        body[name] = value.clone();
        match endpoint {
            Endpoint::Chat => serde_json::from_value::<ChatRequest>(body).expect("a request").common,
            Endpoint::Text => serde_json::from_value::<CompletionRequest>(body).expect("a request").common,
        }
        .other
        .check(endpoint)
    }

    #[test]
    fn refused_fields_are_refused_by_name_unless_they_ask_for_nothing() {
        testing::refused_by_name::<OpenAiFields>(&[Endpoint::Chat, Endpoint::Text], check);
        assert_eq!(check(Endpoint::Chat, "mirostat", &0.into()), Ok(()), "whole numbers are numbers");
    }

    #[test]
    fn what_is_read_is_listed_as_honoured_and_nothing_else_is() {
        testing::honours::<OpenAiFields, ChatRequest>(Endpoint::Chat);
        testing::honours::<OpenAiFields, CompletionRequest>(Endpoint::Text);
    }

    /// The fields of OpenAI's reference, as the types of its Python package 3.54 name them.
    #[test]
    fn all_fields_of_openai_s_reference_are_listed() {
        let chat = "audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens messages \
            metadata modalities model moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key \
            prompt_cache_options prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop \
            store stream stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options";
        let text = "best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed stop stream \
            stream_options suffix temperature top_p user";
        testing::lists::<OpenAiFields>(Endpoint::Chat, chat);
        testing::lists::<OpenAiFields>(Endpoint::Text, text);
    }

    #[test]
    fn the_documentation_prints_the_list() {
        testing::is_printed::<OpenAiFields>(ENDPOINTS);
    }
}
