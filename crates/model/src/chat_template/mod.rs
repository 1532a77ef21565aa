//! Chat templates: a conversation becomes the text that the model was trained on, by the model's own Jinja template.
//!
//! The environment is the one of the reference library (transformers): its filters, functions and whitespace rules, and
//! Python's way to print values. `find` says where models keep their templates, `tojson` and `strftime` are Python's.
//!
//! A template comes with a model file and is hostile input: `compile` bounds its text and its nesting, the engine's fuel
//! the number of its instructions, and `budget` what they read and make, which `builtins` and `compile` see to.

mod budget;
mod builtins;
mod compile;
mod find;
mod lists;
mod load;
mod source;
mod strftime;
mod tojson;

pub use find::{TemplateFiles, from_gguf, from_hf};
pub use strftime::Timestamp;

use compile::Program;
use minijinja::value::{Serde, ValueKind};
use minijinja::{AutoEscape, Environment, ErrorKind, Value};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::thread;

/// Instructions that one rendering may execute. The longest real conversations take less than a million.
const FUEL: u64 = 20_000_000;
/// Bytes of text and lists that one rendering may read and make, beyond [`BYTES_PER_BYTE`] times the conversation's.
const BYTES: usize = 64 << 20;
const BYTES_PER_BYTE: usize = 64;
/// Stack of a rendering: macros call each other up to a fixed depth, and values nest up to one.
const STACK_BYTES: usize = 16 << 20;
/// Bytes of a template's own words that an error repeats.
const MESSAGE_BYTES: usize = 4 << 10;

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
    program: Program,
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
    /// Errors: `Syntax` with the line, also for a template that is too long or nests too deep.
    pub fn new(source: &str, bos: &str, eos: &str) -> Result<Self> {
        let program = compile::compile(source)?;
        let mut environment = Environment::new();
        environment.set_fuel(Some(FUEL));
        environment.set_debug(false);
        environment.set_formatter(|out, _, value| {
            let text = match value.as_str() {
                Some(text) => std::borrow::Cow::Borrowed(text),
                None => {
                    budget::read(value)?;
                    if has_float(value) { tojson::python_str(value) } else { value.to_string() }.into()
                }
            };
            budget::spend(text.len())?;
            out.write_str(&text).map_err(minijinja::Error::from)
        });
        builtins::add_to(&mut environment);
        let (source, bos, eos) = (source.to_owned(), bos.to_owned(), eos.to_owned());
        Ok(ChatTemplate { environment, program, source, bos, eos })
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
    /// Errors: `Refused` with the template's message, `Render` with the line, also where a limit is reached.
    pub fn render(
        &self,
        conversation: &serde_json::Value,
        add_generation_prompt: bool,
        now: Timestamp,
    ) -> Result<String> {
        let serde_json::Value::Object(conversation) = conversation else {
            return Err(Error::NoConversation { found: kind_of(conversation) });
        };
        let budget =
            conversation.values().map(text_bytes).sum::<usize>().saturating_mul(BYTES_PER_BYTE) + BYTES;
        let failed = |reason: String| Error::Render { line: None, reason };
        thread::scope(|scope| {
            let renderer = thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
            let render = || {
                budget::start(budget);
                self.evaluate(self.variables(conversation, add_generation_prompt, now))
            };
            let renderer = renderer.spawn_scoped(scope, render);
            let rendered = renderer.map_err(|error| failed(format!("no thread: {error}")))?.join();
            rendered.unwrap_or_else(|_| Err(failed("the template engine failed".to_owned())))
        })
    }

    /// What the template sees.
    fn variables(
        &self,
        conversation: &serde_json::Map<String, serde_json::Value>,
        add_generation_prompt: bool,
        now: Timestamp,
    ) -> Value {
        let mut variables: Vec<(&str, Value)> = vec![
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("add_generation_prompt", Value::from(add_generation_prompt)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            (
                "strftime_now",
                Value::from_function(move |format: &str| {
                    // `%c` prints 24 characters.
                    budget::spend(format.len().saturating_mul(16))?;
                    now.strftime(format).map_err(budget::error)
                }),
            ),
        ];
        variables.extend(conversation.iter().map(|(key, value)| (key.as_str(), Value::from(Serde(value)))));
        Value::from_pairs(variables)
    }

    fn evaluate(&self, variables: Value) -> Result<String> {
        let mut text = String::new();
        let mut out = minijinja::machinery::make_string_output(&mut text);
        let blocks = BTreeMap::new();
        let instructions = self.program.borrow_dependent();
        minijinja::machinery::eval(
            &self.environment,
            instructions,
            variables,
            &blocks,
            &mut out,
            AutoEscape::None,
        )
        .map_err(|error| render_error(&error))?;
        drop(out);
        Ok(text)
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

fn render_error(error: &minijinja::Error) -> Error {
    let mut source: Option<&dyn std::error::Error> = Some(error);
    let mut line = error.line();
    let mut refused = None;
    let mut innermost = error;
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            refused = Some(shortened(raised.0.clone()));
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

/// A text of bounded length.
fn shortened(mut text: String) -> String {
    if text.len() > MESSAGE_BYTES {
        text.truncate(text.floor_char_boundary(MESSAGE_BYTES));
        text.push('…');
    }
    text
}

/// The message without the place, which has a field of its own.
fn reason(error: &minijinja::Error) -> String {
    if error.kind() == ErrorKind::OutOfFuel {
        return format!("it takes more than {FUEL} instructions (out of fuel)");
    }
    let mut reason = error.kind().to_string();
    if let Some(detail) = error.detail() {
        let _ = write!(reason, ": {detail}");
    }
    let cause = std::error::Error::source(error).filter(|cause| !cause.is::<minijinja::Error>());
    if let Some(cause) = cause {
        let _ = write!(reason, ": {cause}");
    }
    shortened(reason)
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

    #[test]
    fn the_documents_state_the_limits() {
        let (kib, nesting) = (compile::MAX_SOURCE_BYTES >> 10, compile::MAX_NESTING);
        let (million, mib) = (FUEL / 1_000_000, BYTES >> 20);
        assert_eq!((million * 1_000_000, mib << 20), (FUEL, BYTES), "the documents round");
        let security = include_str!("../../../../SECURITY.md");
        let row = format!(
            "| a chat template | {kib} KiB, {nesting} nested operators; per rendering {million} million instructions, {mib} MiB, and \
             {BYTES_PER_BYTE} times what the conversation holds |"
        );
        assert!(security.contains(&row), "{row}");
        let serving = include_str!("../../../../docs/serving.md").replace('\n', " ");
        for part in [
            format!(
                "{kib} KiB of text with at most {nesting} operators, calls and branches inside each other"
            ),
            format!("{million} million instructions and {mib} MiB of text and lists read and made"),
            format!("and {BYTES_PER_BYTE} times what the conversation holds"),
        ] {
            assert!(serving.contains(&part), "{part}");
        }
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
        assert!(error.unwrap_err().to_string().contains("instructions (out of fuel)"));
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
    fn lists_change_as_in_python() {
        let source = "{% set x = [1] %}{% set y = x %}{% set _ = y.append(2) %}{{ x }} {{ x.pop(0) }} {{ x.pop() }} {{ x }}\
            {% do x.extend([1, 2, 3]) %}{% do x.insert(-1, 9) %}{% do x.reverse() %} {{ x }} {{ x[1:] }} {{ x|length }} \
            {{ x == [3, 9, 2, 1] }} {{ 9 in x }}{% do x.clear() %} {{ 'empty' if not x }}";
        assert_eq!(
            render(source, json!({})).unwrap(),
            "[1, 2] 1 2 [] [3, 9, 2, 1] [9, 2, 1] 4 True True empty"
        );
        let source = "{% set ns = namespace(l=[]) %}{% for i in range(3) %}{% set _ = ns.l.append({'n': [i]}) %}\
            {% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.l }}{% for i in [1, 2] %}{% set z = [] %}{% do z.append(i) %} {{ z }}{% endfor %}";
        assert_eq!(
            render(source, json!({})).unwrap(),
            "[{'n': [0]}, 0, {'n': [1]}, 1, {'n': [2]}, 2] [1] [2]"
        );
        let error = render("{% set x = [1] %}\n{{ x.pop(1) }}", json!({})).unwrap_err().to_string();
        assert!(error.contains("(line 2)") && error.contains("pop(1) of a list of 1 elements"), "{error}");
    }

    #[test]
    fn a_list_never_contains_itself() {
        let source =
            "{% set a = [1] %}{% set b = [a] %}{% do a.append(a) %}{% do a.append(b) %}{{ a }} {{ b }}";
        assert_eq!(render(source, json!({})).unwrap(), "[1, [1], [[1]]] [[1]]");
        let deep =
            "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}";
        assert!(render(deep, json!({})).unwrap_err().to_string().contains("nest deeper"));
        let deep = "{% set x = [] %}{% for i in range(999) %}{% do x.append(x) %}{% endfor %}";
        assert!(render(deep, json!({})).is_err());
        let kept = "{% set a = [] %}{% set b = [u]|map('default', a)|list %}{% do a.append(b) %}{{ a }}";
        assert!(render(kept, json!({})).unwrap_err().to_string().contains("cannot be kept in another value"));
        let long = "{% set a = [] %}{% for i in range(99999) %}{% for j in range(99) %}{% do a.append('x') %}{% endfor %}{% endfor %}";
        assert!(render(long, json!({})).unwrap_err().to_string().contains("bytes"));
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
