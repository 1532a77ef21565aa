//! What a person can tell the chat, beside messages.

use crate::conversation::Conversation;
use crate::model_arg::ModelArg;
use crate::{input, output};
use anyhow::{Context, Result, bail, ensure};
use realizar_compute::sampling::{PARAMS, Param, SamplingParams};
use realizar_model::arch;
use realizar_model::source::TensorSource;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// How a chat with a model ends.
pub(crate) enum Next {
    /// The person leaves.
    Leave,
    /// Another model goes on.
    Model(ModelArg, Box<dyn TensorSource>),
}

/// What follows a command.
pub(crate) enum Done {
    /// Something to tell the person.
    Note(String),
    /// The last message is answered.
    Answer,
    /// The chat with this model ends.
    Next(Next),
}

struct Command {
    name: &'static str,
    /// What stands behind the name.
    args: &'static str,
    help: &'static str,
    run: fn(&mut Conversation, &str) -> Result<Done>,
}

static COMMANDS: &[Command] = &[
    Command { name: "/help", args: "", help: "this text", run: |_, _| Ok(Done::Note(help())) },
    Command { name: "/reset", args: "", help: "forget the conversation", run: reset },
    Command { name: "/regen", args: "", help: "answer the last message again", run: regenerate },
    Command { name: "/system", args: "[TEXT]", help: "show or change the system message", run: system },
    Command { name: "/set", args: "[NAME VALUE]", help: "show or change how tokens are chosen", run: set },
    Command { name: "/save", args: "FILE", help: "write the conversation to a file", run: save },
    Command { name: "/load", args: "FILE", help: "go on with a conversation from a file", run: load },
    Command { name: "/model", args: "MODEL", help: "go on with another model", run: switch_model },
    Command { name: "/exit", args: "", help: "leave (or Ctrl-D)", run: |_, _| Ok(Done::Next(Next::Leave)) },
];

/// Does what a line says; `None` if it is a message and no command.
pub(crate) fn run(conversation: &mut Conversation, line: &str) -> Option<Result<Done>> {
    let (name, args) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let name = if matches!(name, "/quit" | "/bye") { "/exit" } else { name };
    // A message may begin with a path.
    if !name.starts_with('/') || name[1..].contains('/') {
        return None;
    }
    let Some(command) = COMMANDS.iter().find(|c| c.name == name) else {
        return Some(Ok(Done::Note(format!("there is no {name}\n{}", help()))));
    };
    let args = args.trim();
    Some(match (command.args, args) {
        ("", a) if !a.is_empty() => Err(anyhow::anyhow!("nothing stands behind {name}")),
        (wanted, "") if !wanted.is_empty() && !wanted.starts_with('[') => {
            Err(anyhow::anyhow!("{name} needs {wanted}"))
        }
        _ => (command.run)(conversation, args),
    })
}

fn help() -> String {
    let mut text = String::new();
    for c in COMMANDS {
        let usage = format!("{} {}", c.name, c.args);
        writeln!(text, "{usage:20} {}", c.help).expect("a string takes it");
    }
    text + "Ctrl-C               stops an answer\n\
            \"\"\"                  begins a message of several lines and ends it; so does \\ at the end of a line for the next\n"
}

fn has_role(message: &Value, role: &str) -> bool {
    message["role"] == role
}

fn reset(conversation: &mut Conversation, _: &str) -> Result<Done> {
    conversation.messages.retain(|m| has_role(m, "system"));
    Ok(Done::Note("the conversation is forgotten\n".to_owned()))
}

fn regenerate(conversation: &mut Conversation, _: &str) -> Result<Done> {
    if conversation.messages.last().is_some_and(|m| has_role(m, "assistant")) {
        conversation.messages.pop();
    }
    ensure!(
        conversation.messages.last().is_some_and(|m| has_role(m, "user")),
        "there is no message to answer"
    );
    Ok(Done::Answer)
}

fn system(conversation: &mut Conversation, text: &str) -> Result<Done> {
    let present = conversation.messages.first().is_some_and(|m| has_role(m, "system"));
    if text.is_empty() {
        let text = if present { conversation.messages[0]["content"].as_str() } else { None };
        return Ok(Done::Note(format!("{}\n", text.unwrap_or("there is no system message"))));
    }
    let message = json!({"role": "system", "content": text});
    match present {
        true => conversation.messages[0] = message,
        false => conversation.messages.insert(0, message),
    }
    Ok(Done::Note("the system message is changed\n".to_owned()))
}

fn set(conversation: &mut Conversation, args: &str) -> Result<Done> {
    let Some((name, value)) = args.split_once(char::is_whitespace) else {
        ensure!(args.is_empty(), "expected /set {args} VALUE");
        return Ok(Done::Note(settings(conversation)));
    };
    let value = value.trim();
    let not_a_number = || format!("{value:?} is not a number for {name}");
    match name {
        "seed" => conversation.seed = Some(value.parse().with_context(not_a_number)?),
        "max_tokens" => conversation.max_tokens = Some(value.parse().with_context(not_a_number)?),
        _ => {
            let known = || PARAMS.iter().map(|p| p.name).collect::<Vec<_>>().join(", ");
            let param = Param::find(name)
                .with_context(|| format!("there is no {name:?}; there are seed, max_tokens, {}", known()))?;
            let mut overrides = conversation.overrides.clone();
            overrides.set(param.name, value.parse().with_context(not_a_number)?);
            overrides.over(SamplingParams::default())?;
            conversation.overrides = overrides;
        }
    }
    Ok(Done::Note(format!("{name} is {value}\n")))
}

/// What was set, and what can be.
fn settings(conversation: &Conversation) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>, about: &str| {
        let value = value.unwrap_or_else(|| "-".to_owned());
        writeln!(text, "{name:20} {value:>8}  {about}").expect("a string takes it");
    };
    for p in PARAMS {
        line(p.name, conversation.overrides.get(p.name).map(|v| v.to_string()), p.description);
    }
    line("seed", conversation.seed.map(|v| v.to_string()), "The same seed gives the same answer.");
    line("max_tokens", conversation.max_tokens.map(|v| v.to_string()), "Tokens of an answer at most.");
    text
}

fn save(conversation: &mut Conversation, file: &str) -> Result<Done> {
    let text = serde_json::to_vec_pretty(&json!({ "messages": conversation.messages }))?;
    output::write_file(Path::new(file), |mut out| {
        out.write_all(&text).with_context(|| format!("could not write {file}"))?;
        Ok(out)
    })?;
    Ok(Done::Note(format!("{} messages are in {file}\n", conversation.messages.len())))
}

fn load(conversation: &mut Conversation, file: &str) -> Result<Done> {
    let text = input::file_or_stdin(Some(Path::new(file)))?;
    let saved: Value = serde_json::from_str(&text).with_context(|| format!("{file} is not JSON"))?;
    let messages = saved["messages"].as_array().with_context(|| format!("{file} has no messages"))?;
    let is_message = |m: &&Value| m["role"].is_string() && m["content"].is_string();
    if let Some(i) = messages.iter().position(|m| !is_message(&m)) {
        bail!("{file}: message {i} has no role and content of text");
    }
    conversation.messages.clone_from(messages);
    Ok(Done::Note(format!("{} messages from {file}\n", conversation.messages.len())))
}

/// Leaves the present model only when the other one is there and known.
fn switch_model(_: &mut Conversation, name: &str) -> Result<Done> {
    let model: ModelArg = name.parse().map_err(anyhow::Error::msg)?;
    let source = model.open()?;
    arch::configure(&*source)?;
    Ok(Done::Next(Next::Model(model, source)))
}
