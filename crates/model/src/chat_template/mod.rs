//! Chat templates: a conversation becomes the text that the model was trained on, by the model's own Jinja template.
//!
//! The environment is the one of the reference library (transformers): its filters, functions and whitespace rules, and
//! Python's way to print values. `find` says where models keep their templates, `tojson` and `strftime` are Python's.

mod find;
mod load;
mod source;
mod strftime;
mod tojson;

pub use find::{TemplateFiles, from_gguf, from_hf};
pub use strftime::Timestamp;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, ValueKind};
use minijinja::{Environment, ErrorKind, Value};
use std::fmt::Write;
use std::io;

/// Instructions that one rendering may execute. The longest real conversations take less than a million.
const FUEL: u64 = 20_000_000;
/// Bytes that one rendering may write beyond 16 times what the conversation holds.
const OUTPUT_BYTES: usize = 16 << 20;
const NAME: &str = "chat template";

/// Why a template could not be read or rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The template is not valid Jinja, or uses what we do not have.
    #[error("the chat template is invalid{}: {reason}", at(.line))]
    Syntax {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
    },
    /// The template refused the conversation by `raise_exception`; the client may read why.
    #[error("the chat template refuses the conversation{}: {message}", at(.line))]
    Refused {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// The template's own words.
        message: String,
    },
    /// Rendering failed.
    #[error("could not render the chat template{}: {reason}", at(.line))]
    Render {
        /// Line of the template, from 1.
        line: Option<usize>,
        /// What went wrong.
        reason: String,
    },
    /// The conversation is not an object.
    #[error("a conversation is a JSON object with \"messages\", and not {found}")]
    NoConversation {
        /// What it is instead.
        found: &'static str,
    },
    /// A file with a template cannot be read as what it is.
    #[error("could not read the chat template of {file}: {reason}")]
    File {
        /// Which file or key.
        file: &'static str,
        /// What is wrong.
        reason: String,
    },
}

/// Result of reading and rendering templates.
pub type Result<T> = std::result::Result<T, Error>;

fn at(line: &Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(" (line {line})"))
}

/// A compiled chat template with the texts of its model's BOS and EOS tokens.
pub struct ChatTemplate {
    environment: Environment<'static>,
    source: String,
    bos: String,
    eos: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("source", &self.source).finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template. `bos` and `eos`: what it finds in `bos_token` and `eos_token`.
    ///
    /// Errors: `Syntax` with the line.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|error| Error::Syntax { line: None, reason: reason(&error) })?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(|out, _, value| {
            if value.as_str().is_none() && has_float(value) {
                return out.write_str(&tojson::python_str(value)).map_err(minijinja::Error::from);
            }
            write!(out, "{value}").map_err(minijinja::Error::from)
        });
        environment.add_filter("tojson", tojson::filter);
        environment.add_filter("string", |value: &Value| match value.as_str() {
            Some(text) => text.to_owned(),
            None => tojson::python_str(value),
        });
        environment.add_filter(source::ITERABLE, |value: Value| {
            if value.is_none() {
                return Err(minijinja::Error::new(ErrorKind::InvalidOperation, "None is not iterable"));
            }
            Ok(value)
        });
        // The engine takes None for iterable, Python does not.
        environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_function("raise_exception", raise_exception);
        environment
            .add_template_owned(NAME, source::rewrite(source))
            .map_err(|error| Error::Syntax { line: error.line(), reason: reason(&error) })?;
        Ok(ChatTemplate { environment, source: source.to_owned(), bos: bos.to_owned(), eos: eos.to_owned() })
    }

    /// The template as it was given.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation: an object with `messages` and, if there are any, `tools`, `documents` and whatever else
    /// the template takes (`enable_thinking`, …). An `add_generation_prompt` in it overrules the argument.
    ///
    /// `now`: what `strftime_now` prints.
    ///
    /// Errors: `Refused` with the template's message, `Render` with the line.
    pub fn render(
        &self,
        conversation: &serde_json::Value,
        add_generation_prompt: bool,
        now: Timestamp,
    ) -> Result<String> {
        let serde_json::Value::Object(conversation) = conversation else {
            return Err(Error::NoConversation { found: kind_of(conversation) });
        };
        let mut variables: Vec<(&str, Value)> = vec![
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            (
                "strftime_now",
                Value::from_function(move |format: &str| {
                    now.strftime(format)
                        .map_err(|reason| minijinja::Error::new(ErrorKind::InvalidOperation, reason))
                }),
            ),
        ];
        variables.extend(conversation.iter().map(|(key, value)| (key.as_str(), Value::from(Serde(value)))));
        let context = Value::from_pairs(variables);

        let limit = conversation.values().map(text_bytes).sum::<usize>() * 16 + OUTPUT_BYTES;
        let mut out = Bounded { text: Vec::new(), limit };
        let template = self.environment.get_template(NAME).map_err(|error| render_error(&error))?;
        template.render_captured_to(context, &mut out).map_err(|error| render_error(&error))?;
        String::from_utf8(out.text).map_err(|error| Error::Render { line: None, reason: error.to_string() })
    }
}

/// A writer that refuses more than `limit` bytes.
struct Bounded {
    text: Vec<u8>,
    limit: usize,
}

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(io::Error::other(format!("it writes more than {} bytes", self.limit)));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes of text in a value, nested ones included.
fn text_bytes(value: &serde_json::Value) -> usize {
    match value {
        serde_json::Value::String(text) => text.len(),
        serde_json::Value::Array(items) => items.iter().map(text_bytes).sum(),
        serde_json::Value::Object(entries) => {
            entries.iter().map(|(key, value)| key.len() + text_bytes(value)).sum()
        }
        _ => 8,
    }
}

fn kind_of(value: &serde_json::Value) -> &'static str {
    match value {
        serde_json::Value::Null => "null",
        serde_json::Value::Bool(_) => "a truth value",
        serde_json::Value::Number(_) => "a number",
        serde_json::Value::String(_) => "a string",
        serde_json::Value::Array(_) => "a list",
        serde_json::Value::Object(_) => "an object",
    }
}

/// Marks the errors that a template raises itself.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

fn raise_exception(message: &Value, _more: Kwargs) -> std::result::Result<Value, minijinja::Error> {
    let message = message.to_string();
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

fn render_error(error: &minijinja::Error) -> Error {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    let mut line = error.line();
    let mut refused = None;
    let mut innermost = error;
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            refused = Some(raised.0.clone());
        }
        if let Some(inner) = cause.downcast_ref::<minijinja::Error>() {
            line = inner.line().or(line);
            innermost = inner;
        }
        source = cause.source();
    }
    match refused {
        Some(message) => Error::Refused { line, message },
        None => Error::Render { line, reason: reason(innermost) },
    }
}

/// The message without the place, which has a field of its own.
fn reason(error: &minijinja::Error) -> String {
    let mut reason = error.kind().to_string();
    if let Some(detail) = error.detail() {
        let _ = write!(reason, ": {detail}");
    }
    let cause = std::error::Error::source(error).filter(|cause| !cause.is::<minijinja::Error>());
    if let Some(cause) = cause {
        let _ = write!(reason, ": {cause}");
    }
    reason
}

/// Whether printing the value prints a float, which Python writes differently.
fn has_float(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Number => !value.is_integer(),
        ValueKind::Seq | ValueKind::Map => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    //! Aim: templates of our own behave as in the reference library. Expected texts were worked out with Python's jinja2.
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        Timestamp::utc(2026, 1, 15, 12, 0, 0)
    }

    fn render(source: &str, conversation: serde_json::Value) -> Result<String> {
        ChatTemplate::new(source, "<s>", "</s>")?.render(&conversation, true, now())
    }

    const CHATML: &str = "{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
";

    #[test]
    fn a_conversation_becomes_the_template_s_text() {
        let conversation = json!({"messages": [{"role": "user", "content": "Hi"}]});
        let text = render(CHATML, conversation.clone()).unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
        let template = ChatTemplate::new(CHATML, "", "").unwrap();
        assert_eq!(template.render(&conversation, false, now()).unwrap(), "<|im_start|>user\nHi<|im_end|>\n");
    }

    #[test]
    fn values_print_as_in_python() {
        let values = json!({"a": [true, null, 1.0, 1e20, 0.00001, "it's", "é"]});
        assert_eq!(
            render("{{ a }}", values.clone()).unwrap(),
            r#"[True, None, 1.0, 1e+20, 1e-05, "it's", 'é']"#
        );
        assert_eq!(
            render("{{ a|string }}", values.clone()).unwrap(),
            r#"[True, None, 1.0, 1e+20, 1e-05, "it's", 'é']"#
        );
        assert_eq!(render("{{ a[2] }}|{{ tools }}", values).unwrap(), "1.0|None");
    }

    #[test]
    fn a_refusal_carries_the_template_s_words_and_line() {
        let error = render("a\n{{ raise_exception('No <b> & no') }}", json!({})).unwrap_err();
        let Error::Refused { line, message } = error else { panic!("{error}") };
        assert_eq!((line, message.as_str()), (Some(2), "No <b> & no"));
    }

    #[test]
    fn mistakes_are_errors_with_their_line() {
        let error = render("x\n{% if %}", json!({})).unwrap_err().to_string();
        assert!(error.contains("invalid (line 2)"), "{error}");
        let error = render("x\n\n{{ messages[0].role.nothing.more }}", json!({"messages": []}))
            .unwrap_err()
            .to_string();
        assert!(error.contains("(line 3)"), "{error}");
        assert!(render("{{ 1 }}", json!([])).unwrap_err().to_string().contains("a list"));
    }

    #[test]
    fn a_hostile_template_ends() {
        let error = render(
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
            json!({}),
        );
        assert!(error.unwrap_err().to_string().contains("fuel"));
        let error = render("{% for a in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", json!({}));
        assert!(error.unwrap_err().to_string().contains("bytes"));
    }

    #[test]
    fn python_methods_loop_controls_and_namespaces_work() {
        let source = "{% set ns = namespace(n=0) %}{% for k, v in d.items() %}{% if k.startswith('_') %}{% continue %}\
            {% endif %}{% set ns.n = ns.n + v %}{% if ns.n > 5 %}{% break %}{% endif %}{% endfor %}{{ ns.n }} \
            {{ ' a-b '.strip().split('-')[-1].upper() }} {{ l[1:] }} {{ l[::-1] }} {{ d is mapping }} {{ l is string }}";
        let text = render(source, json!({"d": {"_x": 9, "a": 2, "b": 4, "c": 8}, "l": [1, 2, 3]})).unwrap();
        assert_eq!(text, "6 B [2, 3] [3, 2, 1] True False");
    }

    #[test]
    fn generation_tags_leave_their_contents() {
        assert_eq!(render("a {%- generation -%} b {% endgeneration %} c", json!({})).unwrap(), "ab  c");
    }

    #[test]
    fn none_is_not_iterable() {
        let error = render("{% for tool in tools %}{% endfor %}", json!({})).unwrap_err().to_string();
        assert!(error.contains("None is not iterable"), "{error}");
        assert_eq!(
            render("{{ tools is iterable }} {{ '' is iterable }} {{ 1 is iterable }}", json!({})).unwrap(),
            "False True False"
        );
    }

    #[test]
    fn the_clock_is_an_argument() {
        assert_eq!(render("{{ strftime_now('%d %b %Y') }}", json!({})).unwrap(), "15 Jan 2026");
    }
}
