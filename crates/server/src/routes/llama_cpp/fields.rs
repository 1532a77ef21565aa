//! The fields of llama.cpp's endpoints that clients are known to send, and what is done with each.

use crate::fields::{Field, Neutral, Table};

/// What takes these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/completion`
    Completion,
    /// `/infill`
    Infill,
}

/// The fields of llama.cpp's endpoints.
#[derive(Clone, Debug, Default)]
pub(crate) struct LlamaCppFields;

impl Table for LlamaCppFields {
    type Endpoint = Endpoint;

    fn fields() -> &'static [Field<Endpoint>] {
        FIELDS
    }
}

const BOTH: &[Endpoint] = &[Endpoint::Completion, Endpoint::Infill];
const INFILL: &[Endpoint] = &[Endpoint::Infill];

const fn honoured(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::honoured(name, BOTH, note)
}

const fn no_effect(name: &'static str, note: &'static str) -> Field<Endpoint> {
    Field::no_effect(name, BOTH, note)
}

const fn refused(name: &'static str, neutral: Neutral, note: &'static str) -> Field<Endpoint> {
    Field::refused(name, BOTH, neutral, note)
}

const NO_SHIFT: &str = "the context is never shifted";
const NO_SAMPLER: &str = "this sampler is not offered; use temperature, top_k, top_p or min_p";
const NO_PENALTY: &str = "use repeat_penalty, frequency_penalty or presence_penalty";
const ONLY_DRY: &str = "only `dry_multiplier` reads it, and that is refused";
const ONLY_XTC: &str = "only `xtc_probability` reads it, and that is refused";
const ONLY_MIROSTAT: &str = "only `mirostat` reads it, and that is refused";
const ONLY_DYNATEMP: &str = "only `dynatemp_range` reads it, and that is refused";

static FIELDS: &[Field<Endpoint>] = &[
    honoured("model", "one of the server's names; may be left out"),
    honoured(
        "prompt",
        "of `/completion`: text, token ids, both mixed, or several prompts; of `/infill`: what the gap begins with",
    ),
    Field::honoured("input_prefix", INFILL, "text before the gap"),
    Field::honoured("input_suffix", INFILL, "text after the gap"),
    Field::honoured("input_extra", INFILL, "other files, which come first"),
    honoured("n_predict", "tokens to generate at most; negative, and by default: to the end of the context"),
    honoured("n_cmpl", "continuations of each prompt, up to 128"),
    honoured("stream", "sends the answer as server-sent events"),
    honoured("stop", "up to 64 texts before which the answer ends"),
    honoured(
        "seed",
        "the same seed and request give the same answer, on a GPU with --deterministic; -1: at random",
    ),
    honoured("temperature", "0 takes the likeliest token"),
    honoured("top_k", "keeps this many of the likeliest tokens; 0 and -1 keep all"),
    honoured("top_p", "keeps the likeliest tokens that reach this probability together"),
    honoured("min_p", "drops tokens below this share of the likeliest one's probability"),
    honoured("repeat_penalty", "on tokens of the prompt and the answer"),
    honoured("repetition_penalty", "another name of `repeat_penalty`"),
    honoured("repeat_last_n", "how many of the last tokens penalties look at; -1: all; 64 by default"),
    honoured("frequency_penalty", "for each time that a token was generated"),
    honoured("presence_penalty", "once for tokens that were generated"),
    honoured("ignore_eos", "goes on after the model's own end tokens"),
    honoured("logit_bias", "token ids or texts, with numbers from -100 to 100, or `false` for never"),
    honoured("n_probs", "reports log-probabilities, with up to 20 of the likeliest tokens"),
    honoured("return_tokens", "reports the generated token ids"),
    honoured("grammar", "the answer follows it; GBNF or Lark"),
    honoured("json_schema", "the answer is JSON of this schema"),
    honoured(
        "response_fields",
        "the only fields of the answer, also of objects in it, as `generation_settings/n_predict`",
    ),
    //
    no_effect("cache_prompt", "a cached prompt gives the same answer"),
    no_effect("id_slot", "requests do not belong to slots"),
    no_effect("n_keep", NO_SHIFT),
    no_effect("n_discard", NO_SHIFT),
    no_effect("n_cache_reuse", NO_SHIFT),
    no_effect("timings_per_token", "an answer's timings come with its end"),
    no_effect("return_progress", "progress of the prompt is not reported"),
    no_effect("sse_ping_interval", "a silent stream sends a comment every 15 seconds"),
    no_effect("mirostat_tau", ONLY_MIROSTAT),
    no_effect("mirostat_eta", ONLY_MIROSTAT),
    no_effect("dry_base", ONLY_DRY),
    no_effect("dry_allowed_length", ONLY_DRY),
    no_effect("dry_penalty_last_n", ONLY_DRY),
    no_effect("dry_sequence_breakers", ONLY_DRY),
    no_effect("xtc_threshold", ONLY_XTC),
    no_effect("dynatemp_exponent", ONLY_DYNATEMP),
    //
    refused("typical_p", Neutral::Number(1.0), NO_SAMPLER),
    refused("top_n_sigma", Neutral::AtMost(0.0), NO_SAMPLER),
    refused("xtc_probability", Neutral::Number(0.0), NO_SAMPLER),
    refused("mirostat", Neutral::Number(0.0), NO_SAMPLER),
    refused("dynatemp_range", Neutral::Number(0.0), NO_SAMPLER),
    refused("adaptive_target", Neutral::AtMost(0.0), NO_SAMPLER),
    refused("min_keep", Neutral::AtMost(1.0), NO_SAMPLER),
    refused("samplers", Neutral::Null, "the order of the sampling steps is fixed"),
    refused("dry_multiplier", Neutral::Number(0.0), NO_PENALTY),
    refused("penalize_nl", Neutral::Bool(false), NO_PENALTY),
    refused("post_sampling_probs", Neutral::Bool(false), "log-probabilities are the model's own"),
    refused("n_indent", Neutral::Number(0.0), "use stop or grammar"),
    refused("t_max_predict_ms", Neutral::AtMost(0.0), "answers have no limit in time; use n_predict"),
    refused("lora", Neutral::Empty, "adapters are not offered"),
    refused("image_data", Neutral::Empty, "only text is read and written"),
    refused("grammar_lazy", Neutral::Bool(false), "a grammar holds from the answer's beginning"),
    refused("grammar_triggers", Neutral::Empty, "a grammar holds from the answer's beginning"),
];

#[cfg(test)]
mod tests {
    use super::super::wire::{CompletionRequest, InfillRequest};
    use super::*;
    use crate::error::Result;
    use crate::fields::testing;
    use serde_json::{Value, json};

    fn check(endpoint: Endpoint, name: &str, value: &Value) -> Result<()> {
        let mut body = json!({"prompt": "a", "input_prefix": "", "input_suffix": ""});
        body[name] = value.clone();
        let options = match endpoint {
            Endpoint::Completion => {
                serde_json::from_value::<CompletionRequest>(body).expect("a request").options
            }
            Endpoint::Infill => serde_json::from_value::<InfillRequest>(body).expect("a request").options,
        };
        options.other.check(endpoint)
    }

    #[test]
    fn the_table_is_what_the_types_and_the_documentation_say() {
        testing::refused_by_name::<LlamaCppFields>(&[Endpoint::Completion, Endpoint::Infill], check);
        testing::honours::<LlamaCppFields, CompletionRequest>(Endpoint::Completion);
        testing::honours::<LlamaCppFields, InfillRequest>(Endpoint::Infill);
        testing::is_printed::<LlamaCppFields>(&[
            (Endpoint::Completion, "completion"),
            (Endpoint::Infill, "infill"),
        ]);
    }

    /// The fields that llama-server's documentation of November 2026 lists.
    #[test]
    fn all_fields_of_llama_server_are_listed() {
        let fields = "prompt temperature dynatemp_range dynatemp_exponent top_k top_p min_p n_predict n_indent n_keep n_cmpl \
            n_cache_reuse stream stop typical_p repeat_penalty repeat_last_n presence_penalty frequency_penalty dry_multiplier \
            dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_probability xtc_threshold mirostat \
            mirostat_tau mirostat_eta grammar json_schema seed ignore_eos logit_bias n_probs min_keep t_max_predict_ms id_slot \
            cache_prompt return_tokens samplers timings_per_token return_progress sse_ping_interval post_sampling_probs \
            response_fields lora";
        testing::lists::<LlamaCppFields>(Endpoint::Completion, fields);
        testing::lists::<LlamaCppFields>(
            Endpoint::Infill,
            &(fields.to_owned() + " input_prefix input_suffix input_extra"),
        );
    }
}
