//! Tool calls: how models write them, found in their text while it comes, and enforced where the client asks for it.
//!
//! Each syntax has a file and a row in [`SYNTAXES`]: how to recognise the template that asks for it, the tokens that frame its
//! calls, a parser and a grammar. [`Syntax::of`] picks the row for a model by letting its chat template render a call.
//! [`ToolCallParser`] turns a stream of text into text and calls; `call_object`, `output`,
//! `python_literal` and `schema_types` (what values without quotation marks are) are what the parsers share, `grammar`
//! what the grammars share. A model without such a template gets its tools by the system message (`generic`).

mod call_object;
mod gemma4;
mod gemma4_grammar;
mod generic;
mod grammar;
mod harmony;
mod hermes;
mod json_list;
mod llama3;
mod mistral;
mod named_json;
mod output;
mod python_literal;
mod pythonic;
mod schema_types;
mod tagged;
mod tagged_grammar;

use grammar::CallRules;
use output::Output;
use realizar_model::chat_template::{ChatTemplate, Timestamp};
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::{Format, GrammarError, close_objects};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// All syntaxes; the last is for models that have none of the others.
pub static SYNTAXES: &[Syntax] = &[
    hermes::SYNTAX,
    llama3::SYNTAX,
    mistral::LIST,
    mistral::NAMED,
    gemma4::SYNTAX,
    harmony::SYNTAX,
    tagged::QWEN_SYNTAX,
    tagged::SEED_OSS_SYNTAX,
    tagged::MINIMAX_SYNTAX,
    tagged::GLM_SYNTAX,
    tagged::GLM_DENSE_SYNTAX,
    named_json::DEEPSEEK_SYNTAX,
    named_json::DEEPSEEK_R1_SYNTAX,
    named_json::KIMI_SYNTAX,
    pythonic::SYNTAX,
    json_list::GRANITE_SYNTAX,
    json_list::NEMOTRON_SYNTAX,
    json_list::COMMAND_SYNTAX,
    generic::SYNTAX,
];

/// A tool that the model may call, as the client describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Tool {
    /// What kind of tool it is.
    #[serde(rename = "type")]
    pub kind: ToolKind,
    /// The function.
    pub function: Function,
}

/// Kinds of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// A function of the client's.
    Function,
}

/// A function that the client can run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Function {
    /// Letters, digits, `_`, `-` and `.`, at most 64.
    pub name: String,
    /// When and how to call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON schema of its arguments, an object; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<Value>,
    /// Whether arguments satisfy the schema in any case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// Whether the model has to call a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
pub enum ToolChoice {
    /// As if there were no tools.
    None,
    /// The model decides.
    #[default]
    Auto,
    /// One or several calls.
    Required,
    /// One call of the tool with this name.
    Named(String),
}

impl TryFrom<Value> for ToolChoice {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value.as_str() {
            Some("none") => return Ok(Self::None),
            Some("auto") => return Ok(Self::Auto),
            Some("required") => return Ok(Self::Required),
            _ => {}
        }
        match (value.get("type").and_then(Value::as_str), value.pointer("/function/name").and_then(Value::as_str)) {
            (Some("function"), Some(name)) => Ok(Self::Named(name.to_owned())),
            _ => Err("tool_choice is none, auto, required, or {\"type\": \"function\", \"function\": {\"name\": …}}".to_owned()),
        }
    }
}

/// What an answer may call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callable {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
    /// Whether there may be several calls.
    pub(crate) parallel: bool,
}

impl Callable {
    /// The tools with their objects closed, as far as their schemas do not say otherwise.
    pub(crate) fn closed_tools(&self, open_schemas: bool) -> Vec<Tool> {
        let mut tools = self.tools.clone();
        if !open_schemas {
            tools.iter_mut().filter_map(|tool| tool.function.parameters.as_mut()).for_each(close_objects);
        }
        tools
    }
}

/// Checks tools and choice for what concerns them together: names that are valid and differ, and a choice that is among them.
///
/// Errors: the place in the request, and what is wrong there.
pub fn check_tools(tools: &[Tool], choice: &ToolChoice) -> Result<(), (String, String)> {
    for (i, tool) in tools.iter().enumerate() {
        let name = &tool.function.name;
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        let place = format!("tools/{i}/function/name");
        if name.is_empty() || name.len() > 64 || !name.chars().all(fits) {
            return Err((place, "a name has 1 to 64 letters, digits, '_', '-' and '.'".to_owned()));
        }
        if tools[..i].iter().any(|other| other.function.name == *name) {
            return Err((place, format!("there are two tools of the name {name:?}")));
        }
    }
    match choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(("tool_choice".to_owned(), "a call is required, but there are no tools".to_owned()))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.function.name == *name) => {
            Err(("tool_choice/function/name".to_owned(), format!("there is no tool of the name {name:?}")))
        }
        _ => Ok(()),
    }
}

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delta {
    /// What the model thinks before it answers.
    Reasoning(String),
    /// Text that is part of no call.
    Text(String),
    /// A call begins.
    Call {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// What the client names it by in its result.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a call's arguments.
    Arguments {
        /// Which of the answer's calls, from 0.
        index: usize,
        /// A piece of JSON text. A model without constraint may write what is no JSON, or be cut off.
        fragment: String,
    },
}

/// How ids of calls look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdStyle {
    /// As OpenAI's.
    Call,
    /// Nine letters and digits, which Mistral's templates insist on.
    Nine,
}

impl IdStyle {
    /// The id of the call `index` of the answer with this seed.
    fn make(self, seed: u64, index: usize) -> String {
        const CHARS: &[u8; 62] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
        let (mut id, n) = match self {
            Self::Call => ("call_".to_owned(), 24),
            Self::Nine => (String::new(), 9),
        };
        let mut state = seed ^ (index as u64).wrapping_mul(0xA24B_AED4_963E_E407);
        for _ in 0..n {
            // SplitMix64 (Steele, Lea and Flood 2014).
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            id.push(char::from(CHARS[((z ^ (z >> 31)) % 62) as usize]));
        }
        id
    }
}

/// Finds calls in text, one character at a time, so that the division of the text into pieces makes no difference.
trait Parse: Send {
    /// Takes the next character.
    fn push(&mut self, c: char, out: &mut Output);

    /// The text is at its end; what was held back is text, unless it is the frame of a call.
    fn finish(&mut self, out: &mut Output);

    /// Whether what comes next is reasoning, as far as is known.
    fn is_reasoning(&self) -> bool {
        false
    }
}

/// How a family of models writes tool calls.
pub struct Syntax {
    /// For logs.
    pub name: &'static str,
    /// Whether a template that renders this text for a call of `probe_tool` belongs to it.
    recognise: fn(&str) -> bool,
    /// Texts of tokens that frame calls.
    markers: &'static [&'static str],
    ids: IdStyle,
    /// Of answers that may call these tools.
    parser: fn(&[Tool]) -> Box<dyn Parse>,
    grammar: fn(&CallRules<'_>) -> Result<String, GrammarError>,
    /// Turns a conversation into what its templates take.
    rewrite: fn(&mut Map<String, Value>),
    /// The parser reads all of an answer, with its reasoning.
    channels: Option<Channels>,
    /// Models go over from thoughts to a call without ending the thoughts.
    ends_reasoning: bool,
}

/// What most syntaxes have in common.
const BASE: Syntax = generic::SYNTAX;

/// Answers that consist of messages with headers.
#[derive(Clone, Copy)]
pub(crate) struct Channels {
    /// What a prompt ends with; the answer goes on with a header. After another end it goes on within a text.
    pub(crate) begin: &'static str,
    /// The header of a text.
    text: &'static str,
    /// What comes in an answer before its text, in Lark.
    before_text: fn(&Tokenizer) -> String,
}

impl std::fmt::Debug for Syntax {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Syntax").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Syntax {
    /// The syntax that a model's chat template asks for, by letting it render a call.
    pub fn of(template: Option<&ChatTemplate>) -> &'static Syntax {
        let rendered = template.map(probes).unwrap_or_default();
        let found = SYNTAXES.iter().find(|syntax| rendered.iter().any(|text| (syntax.recognise)(text)));
        found.unwrap_or(&SYNTAXES[SYNTAXES.len() - 1])
    }

    /// Whether tools stand in the system message because the model's template does not know them.
    pub fn is_generic(&self) -> bool {
        self.name == generic::SYNTAX.name
    }

    /// Tokens that frame calls but would not be shown as text: the text for the parser has to show them.
    pub fn shown_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let ids = self.markers.iter().filter_map(|text| tokenizer.id_of(text));
        ids.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// Puts the tools into a conversation for the chat template, an object with `messages`, and turns calls of earlier answers into
    /// what templates expect: arguments as objects, which OpenAI's clients send as strings.
    pub fn prepare(&self, conversation: &mut Value, tools: &[Tool], choice: &ToolChoice) {
        let Some(entries) = conversation.as_object_mut() else { return };
        if let Some(Value::Array(messages)) = entries.get_mut("messages") {
            messages.iter_mut().for_each(parse_arguments);
            if self.is_generic() {
                generic::rewrite(messages, tools, choice);
            }
        }
        if !self.is_generic() && !tools.is_empty() && *choice != ToolChoice::None {
            entries.insert("tools".to_owned(), json!(tools));
        }
        (self.rewrite)(entries);
    }

    /// How answers are divided into messages, if they are. Then the parser finds their reasoning, too.
    pub(crate) fn channels(&self) -> Option<&Channels> {
        self.channels.as_ref()
    }

    /// What comes before the text in answers that are divided into messages, as a grammar in Lark.
    pub fn before_text(&self, tokenizer: &Tokenizer) -> Option<String> {
        self.channels.map(|channels| (channels.before_text)(tokenizer))
    }

    /// Whether models go over from thoughts to a call without ending the thoughts.
    pub(crate) fn ends_reasoning(&self) -> bool {
        self.ends_reasoning
    }

    /// A parser for one answer. `seed`: of the calls' ids; two answers of one conversation need different ones.
    pub fn parser(&self, tools: &[Tool], seed: u64) -> ToolCallParser {
        let names = tools.iter().map(|tool| tool.function.name.clone()).collect();
        ToolCallParser { parse: (self.parser)(tools), out: Output::new(names, self.ids, seed) }
    }

    /// A parser for an answer that goes on within a text.
    pub(crate) fn parser_in_text(&self, tools: &[Tool], seed: u64) -> ToolCallParser {
        let mut parser = self.parser(tools, seed);
        parser.push(self.channels.map_or("", |channels| channels.text));
        parser
    }

    /// Whether tools demand anything of an answer; see [`Syntax::grammar`].
    pub(crate) fn demands(
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
        answer: Option<&Format>,
    ) -> bool {
        grammar::demands(tools, choice, parallel, answer)
    }

    /// What an answer must look like because of its tools; `None` if they demand nothing.
    ///
    /// They demand nothing for [`ToolChoice::None`], and for [`ToolChoice::Auto`] with parallel calls and no strict tool. Otherwise
    /// names and arguments are enforced: by the whole schema for strict tools, for others as far as their keywords allow.
    /// `parallel`: whether there may be several calls. `answer`: what an answer without calls must look like.
    ///
    /// Errors: [`GrammarError::Schema`] with the path from the request's `tools`; an `answer` that is not JSON where there may be
    /// calls.
    pub fn grammar(
        &self,
        tokenizer: &Tokenizer,
        tools: &[Tool],
        choice: &ToolChoice,
        parallel: bool,
        answer: Option<&Format>,
    ) -> Result<Option<Format>, GrammarError> {
        grammar::format(self.grammar, tokenizer, tools, choice, parallel, answer)
    }
}

/// Finds the tool calls in an answer while it comes.
///
/// All pieces together contain all of the text, except the frames of calls and the blanks before them. Only calls of known tools
/// count; whatever else looks like a call is text. How the text is divided into pieces makes no difference.
pub struct ToolCallParser {
    parse: Box<dyn Parse>,
    out: Output,
}

impl ToolCallParser {
    /// Takes the next piece of the answer; returns what has become certain by it.
    pub fn push(&mut self, text: &str) -> Vec<Delta> {
        text.chars().for_each(|c| self.parse.push(c, &mut self.out));
        self.out.take()
    }

    /// The rest, at the answer's end.
    pub fn finish(&mut self) -> Vec<Delta> {
        self.parse.finish(&mut self.out);
        self.out.take()
    }

    /// Whether what comes next is reasoning, as far as is known.
    pub(crate) fn is_reasoning(&self) -> bool {
        self.parse.is_reasoning()
    }

    /// Calls so far. With any, the answer's finish reason is `tool_calls`.
    pub fn n_calls(&self) -> usize {
        self.out.n_calls()
    }

    /// Calls whose arguments are complete. Without parallel calls an answer may be ended after the first.
    pub fn n_complete(&self) -> usize {
        self.out.n_complete()
    }
}

/// Turns the arguments of a message's calls from JSON text into objects.
fn parse_arguments(message: &mut Value) {
    let Some(Value::Array(calls)) = message.get_mut("tool_calls") else { return };
    for call in calls {
        let Some(arguments) = call.pointer_mut("/function/arguments") else { continue };
        if let Some(Ok(object)) = arguments.as_str().map(serde_json::from_str::<Value>) {
            *arguments = object;
        }
    }
}

/// What a template renders for a call, in the forms of the conversation that templates can take.
fn probes(template: &ChatTemplate) -> Vec<String> {
    let tools = json!([{"type": "function", "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"probe": {"type": "string", "description": "A probe."}},
            "required": ["probe"],
        },
    }}]);
    let call = json!([{"id": "probe1234", "type": "function", "function": {
        "name": "probe_tool",
        "arguments": {"probe": "1"},
    }}]);
    let user = json!({"role": "user", "content": "Probe."});
    let result = json!({"role": "tool", "tool_call_id": "probe1234", "name": "probe_tool", "content": "1"});
    let mut rendered = Vec::new();
    for content in [json!(""), Value::Null] {
        let assistant = json!({"role": "assistant", "content": content, "tool_calls": call});
        for messages in [json!([user, assistant, result]), json!([user, assistant])] {
            let conversation = json!({"messages": messages, "tools": tools});
            rendered.extend(template.render(&conversation, false, Timestamp::utc(2024, 1, 1, 0, 0, 0)));
        }
    }
    rendered
}

#[cfg(test)]
mod tests;
