//! Guided decoding: its format, compiled for the engine.

use crate::error::{internal, invalid};
use dynamo_backend_common::{DynamoError, GuidedDecodingOptions};
use realizar_engine::Constraint;
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::reasoning::{self, TAGS};
use realizar_structured::{Before, COMPILER_STACK_BYTES, Format, GrammarError, Grammars};
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::{Semaphore, oneshot};

/// Formats that are compiled at the same time; more wait.
const MAX_THREADS: usize = 2;
/// Tokens at a prompt's end that may show that reasoning has begun.
const N_LAST: usize = 16;

/// Compiles formats for one model.
pub(crate) struct Guide {
    tokenizer: Arc<Tokenizer>,
    grammars: Result<Grammars, GrammarError>,
    threads: Semaphore,
}

impl Guide {
    pub(crate) fn new(tokenizer: Arc<Tokenizer>) -> Self {
        let grammars = Grammars::new(&tokenizer, tokenizer.eos_ids());
        Self { tokenizer, grammars, threads: Semaphore::new(MAX_THREADS) }
    }

    /// What an answer to a prompt must look like. `reasons`: the model thinks first, and the format holds for what comes then.
    ///
    /// Errors: what is wrong with the format.
    pub(crate) async fn constraint(
        &self,
        options: &GuidedDecodingOptions,
        prompt: &[u32],
        reasons: bool,
    ) -> Result<Option<Box<dyn Constraint>>, DynamoError> {
        let Some(format) = format(options)? else { return Ok(None) };
        let grammars = self.grammars.clone().map_err(invalid)?;
        let before = if reasons { self.reasoning(prompt) } else { Before::Nothing };
        let _permit = self.threads.acquire().await.map_err(internal)?;
        let (reply, compiled) = oneshot::channel();
        std::thread::Builder::new()
            .name("format".to_owned())
            .stack_size(COMPILER_STACK_BYTES)
            // A request that is gone needs no answer.
            .spawn(move || drop(reply.send(grammars.compile_after(&before, &format))))
            .map_err(internal)?;
        match compiled.await {
            Ok(Ok(constraint)) => Ok(Some(constraint)),
            Ok(Err(error)) => Err(invalid(error)),
            Err(_) => Err(internal("the format's compiler failed")),
        }
    }

    /// The reasoning before the answer, which the prompt may have begun already.
    fn reasoning(&self, prompt: &[u32]) -> Before {
        let last = &prompt[prompt.len().saturating_sub(N_LAST)..];
        let begun = reasoning::open_in(&self.tokenizer.decode(last, false));
        Before::reasoning(begun, TAGS.iter().find(|tags| self.tokenizer.id_of(tags.token).is_some()))
    }
}

/// Errors: what is not supported, or several formats.
fn format(options: &GuidedDecodingOptions) -> Result<Option<Format>, DynamoError> {
    for (name, is_given) in [
        ("structural_tag", options.structural_tag.is_some()),
        ("whitespace_pattern", options.whitespace_pattern.is_some()),
    ] {
        if is_given {
            return Err(invalid(format!("this worker does not support guided decoding with a {name}")));
        }
    }
    let formats = [
        options.json.as_ref().map(schema).transpose()?,
        options.regex.clone().map(Format::Regex),
        options.grammar.clone().map(Format::Grammar),
        options.choice.as_ref().map(|choices| Format::Regex(one_of(choices))),
    ];
    let mut formats = formats.into_iter().flatten();
    match (formats.next(), formats.next()) {
        (format, None) => Ok(format),
        _ => Err(invalid("guided decoding takes one of json, regex, choice and grammar")),
    }
}

fn schema(json: &Value) -> Result<Format, DynamoError> {
    let schema = match json {
        Value::String(text) => serde_json::from_str(text)
            .map_err(|error| invalid(format!("the JSON schema of guided decoding is not JSON: {error}")))?,
        other => other.clone(),
    };
    Ok(Format::JsonSchema { schema, strict: false })
}

fn one_of(choices: &[String]) -> String {
    let escaped: Vec<String> = choices.iter().map(|choice| regex_syntax::escape(choice)).collect();
    format!("(?:{})", escaped.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(options: Value) -> Result<Option<Format>, DynamoError> {
        format(&serde_json::from_value(options).expect("options"))
    }

    #[test]
    fn one_format_is_taken() {
        assert_eq!(parse(json!({})).expect("no format"), None);
        let schema = Some(Format::JsonSchema { schema: json!({"type": "object"}), strict: false });
        assert_eq!(parse(json!({"json": {"type": "object"}})).expect("a schema"), schema);
        assert_eq!(parse(json!({"json": "{\"type\": \"object\"}"})).expect("a schema"), schema);
        let choice = parse(json!({"choice": ["a.b", "c"]})).expect("choices");
        assert_eq!(choice, Some(Format::Regex(r"(?:a\.b|c)".to_owned())));
    }

    #[test]
    fn what_cannot_be_enforced_is_refused() {
        for (options, what) in [
            (json!({"json": {}, "regex": "a"}), "one of json"),
            (json!({"json": "{"}), "is not JSON"),
            (json!({"structural_tag": {}}), "structural_tag"),
            (json!({"regex": "a", "whitespace_pattern": " "}), "whitespace_pattern"),
        ] {
            let error = parse(options).expect_err(what).to_string();
            assert!(error.contains(what), "{error} does not say {what}");
        }
    }
}
