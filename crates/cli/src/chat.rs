//! The interactive chat of `realizar run`.

use crate::model_arg::ModelArg;
use crate::output;
use crate::run::{RunArgs, decode_tok_s};
use anyhow::{Context as _, Result, bail};
use realizar::{FinishReason, Model, TextParams};
use realizar_engine::{TextEvent, TextStream};
use rustyline::error::ReadlineError;
use serde_json::{Value, json};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

const HELP: &str = "\
/help   this text
/reset  forget the conversation
/exit   leave (or Ctrl-D)
Ctrl-C  stops an answer
\"\"\"     begins a message of several lines and ends it; so does \\ at the end of a line for the next
";

/// Around a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Asks and answers until the person leaves.
pub(crate) fn chat(args: &RunArgs, name: &ModelArg, model: &Model, params: &TextParams) -> Result<()> {
    if model.engine().template().is_none() {
        bail!("the model has no chat template to chat by; give a prompt, which is then continued as it is");
    }
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("could not take Ctrl-C")?;
    let mut editor = rustyline::DefaultEditor::new().context("could not use the terminal")?;
    note(&format!("{} on {}. /help says what else there is.\n", name, model.device()));
    let system: Vec<Value> = args.system.iter().map(|s| json!({"role": "system", "content": s})).collect();
    let mut messages = system.clone();
    loop {
        let line = match read_message(&mut editor) {
            Ok(line) => line,
            Err(ReadlineError::Interrupted) => continue,
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(error).context("could not read the terminal"),
        };
        match line.trim() {
            "" => continue,
            "/exit" | "/quit" => return Ok(()),
            "/reset" => {
                messages.clone_from(&system);
                note("the conversation is forgotten\n");
                continue;
            }
            "/help" => {
                note(HELP);
                continue;
            }
            command if command.starts_with('/') && !command.contains(' ') => {
                note(&format!("there is no {command}\n{HELP}"));
                continue;
            }
            _ => {}
        }
        messages.push(json!({"role": "user", "content": line}));
        interrupted.store(false, Ordering::Relaxed);
        let stream = model.engine().chat(&json!({ "messages": messages }), realizar::now(), params);
        match stream.map_err(anyhow::Error::from).and_then(|s| answer(s, &interrupted)) {
            Ok(text) => messages.push(json!({"role": "assistant", "content": text})),
            Err(error) if output::is_broken_pipe(&error) => return Err(error),
            // The chat goes on without the message that could not be answered.
            Err(error) => {
                messages.pop();
                note(&format!("error: {error:#}\n"));
            }
        }
    }
}

fn read_message(editor: &mut rustyline::DefaultEditor) -> rustyline::Result<String> {
    let mut message = editor.readline("> ")?;
    if let Some(begun) = message.trim_start().strip_prefix(QUOTES) {
        let mut text = begun.to_owned();
        // What stands behind the closing quotes, if anything, has no meaning of its own.
        while !text.contains(QUOTES) {
            text.push('\n');
            text += &editor.readline(". ")?;
        }
        let end = text.find(QUOTES).unwrap_or(text.len());
        message = text[..end].trim_matches('\n').to_owned();
    } else {
        while message.ends_with('\\') {
            message.pop();
            message.push('\n');
            message += &editor.readline(". ")?;
        }
    }
    if !message.trim().is_empty() {
        // A history that cannot be kept is no reason to stop.
        drop(editor.add_history_entry(message.as_str()));
    }
    Ok(message)
}

/// Prints an answer as it comes and returns it; an interruption ends it where it is.
fn answer(mut stream: TextStream, interrupted: &AtomicBool) -> Result<String> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut text = String::new();
    loop {
        if interrupted.swap(false, Ordering::Relaxed) {
            stream.cancel();
        }
        match stream.poll_next(&mut cx) {
            // Also while a long prompt is read, an interruption must be heard.
            Poll::Pending => std::thread::park_timeout(Duration::from_millis(50)),
            Poll::Ready(None) => return Ok(text),
            Poll::Ready(Some(event)) => match event? {
                TextEvent::Prompt(_) => {}
                TextEvent::Delta { text: piece, .. } => {
                    output::print(&piece)?;
                    text += &piece;
                }
                TextEvent::Finished { reason, usage, timings, .. } => {
                    output::print("\n")?;
                    if reason == FinishReason::Length {
                        note("[the end of the context or of -n; /reset begins anew]\n");
                    }
                    let n = usage.completion_tokens;
                    tracing::info!(
                        prompt_tokens = usage.prompt_tokens,
                        cached_tokens = usage.cached_tokens,
                        tokens = n,
                        decode_tok_s = decode_tok_s(n, timings.decode),
                        "answered"
                    );
                    return Ok(text);
                }
            },
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// A line for the person, beside the answers.
fn note(text: &str) {
    // Nothing is left to do when stderr is gone.
    drop(std::io::stderr().write_all(text.as_bytes()));
}
