//! `realizar template`: what a conversation becomes before it is tokenized.

use crate::model_arg::ModelArg;
use crate::{input, output};
use anyhow::{Context, Result};
use clap::{Args, ValueHint};
use realizar_model::chat_template::{ChatTemplate, Timestamp};
use realizar_model::tokenizer::Tokenizer;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Args)]
pub(crate) struct TemplateArgs {
    /// The model whose template is rendered.
    #[arg(short, long, value_name = "MODEL", default_value = "demo", value_hint = ValueHint::AnyPath)]
    model: ModelArg,
    /// A template to render instead of a model's.
    #[arg(long, value_name = "T.jinja", conflicts_with = "model", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The conversation as {"messages": […], "tools": […]}; - or nothing reads stdin.
    #[arg(value_name = "MESSAGES.json", value_hint = ValueHint::FilePath)]
    messages: Option<PathBuf>,
    /// End with the last message and not with the beginning of an answer.
    #[arg(long)]
    no_generation_prompt: bool,
    /// The text of the token that begins a text; by default the model's, or none with --file.
    #[arg(long, value_name = "S")]
    bos: Option<String>,
    /// The text of the token that ends a text; by default the model's, or none with --file.
    #[arg(long, value_name = "S")]
    eos: Option<String>,
}

pub(crate) fn run(args: &TemplateArgs) -> Result<()> {
    let template = match &args.file {
        Some(path) => {
            let source = input::file_or_stdin(Some(path))?;
            let (bos, eos) = (args.bos.as_deref().unwrap_or(""), args.eos.as_deref().unwrap_or(""));
            ChatTemplate::new(&source, bos, eos).with_context(|| path.display().to_string())?
        }
        None => of_model(args)?,
    };
    let name = args.messages.as_deref().unwrap_or(Path::new("stdin"));
    let text = input::file_or_stdin(args.messages.as_deref())?;
    let conversation =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", name.display()))?;
    // A bare list is taken for the messages.
    let conversation = if let Value::Array(messages) = conversation {
        json!({ "messages": messages })
    } else {
        conversation
    };
    output::print(template.render(&conversation, !args.no_generation_prompt, now())?)
}

fn of_model(args: &TemplateArgs) -> Result<ChatTemplate> {
    let source = args.model.open()?;
    let tokenizer = Tokenizer::from_source(&*source)?;
    let template = ChatTemplate::from_source(&*source, &tokenizer)?
        .with_context(|| format!("{} has no chat template", args.model))?;
    if args.bos.is_none() && args.eos.is_none() {
        return Ok(template);
    }
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
    let bos = args.bos.clone().unwrap_or_else(|| text(tokenizer.bos()));
    let eos = args.eos.clone().unwrap_or_else(|| text(tokenizer.eos()));
    Ok(ChatTemplate::new(template.source(), &bos, &eos)?)
}

/// The time that templates may print, in UTC: the standard library does not know the local time zone.
pub(crate) fn now() -> Timestamp {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    Timestamp::from_unix(seconds as i64, 0)
}
