//! The interactive chat of `realizar run`.

use crate::chat_commands::{self, Done, Next};
use crate::conversation::Conversation;
use crate::environment;
use crate::model_arg::ModelArg;
use crate::output::{self, decode_tok_s, note};
use crate::thinking::{Printer, ThinkingOptions};
use anyhow::{Context as _, Result};
use realizar::{FinishReason, Model, TextParams};
use realizar_engine::{TextEvent, TextStream};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

/// Around a message of several lines.
const QUOTES: &str = "\"\"\"";

type Editor = rustyline::Editor<(), FileHistory>;

/// What a chat keeps, whichever model answers.
pub(crate) struct Chat {
    editor: Editor,
    /// Where lines are kept for the next chat; `None` where there is no place for them.
    history: Option<PathBuf>,
    /// Set by Ctrl-C.
    interrupted: Arc<AtomicBool>,
    conversation: Conversation,
}

impl Chat {
    pub(crate) fn new(system: Option<&str>) -> Result<Self> {
        let interrupted = Arc::new(AtomicBool::new(false));
        let flag = interrupted.clone();
        ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("could not take Ctrl-C")?;
        let mut editor = Editor::new().context("could not use the terminal")?;
        let history = history_file();
        if let Some(file) = &history {
            // The first chat finds none.
            drop(editor.load_history(file));
        }
        Ok(Self { editor, history, interrupted, conversation: Conversation::new(system) })
    }

    /// Asks and answers until the person leaves or wants another model.
    pub(crate) fn talk(
        &mut self,
        name: &ModelArg,
        model: &Model,
        params: &TextParams,
        thinking: &ThinkingOptions,
    ) -> Result<Next> {
        note(&format!("{name} on {}. /help says what else there is.\n", model.device()));
        loop {
            let line = match self.read_message() {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => return Ok(Next::Leave),
                Err(error) => return Err(error).context("could not read the terminal"),
            };
            let line = line.trim();
            match chat_commands::run(&mut self.conversation, line) {
                None if line.is_empty() => continue,
                None => self.conversation.messages.push(json!({"role": "user", "content": line})),
                Some(Ok(Done::Answer)) => {}
                Some(Ok(Done::Note(text))) => {
                    note(&text);
                    continue;
                }
                Some(Ok(Done::Next(next))) => return Ok(next),
                Some(Err(error)) => {
                    note(&format!("error: {error:#}\n"));
                    continue;
                }
            }
            self.ask(model, params, thinking)?;
        }
    }

    /// Answers the last message. Errors: stdout is gone.
    fn ask(&mut self, model: &Model, params: &TextParams, thinking: &ThinkingOptions) -> Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        let answered = self.conversation.params(params).and_then(|params| {
            let (stream, printer) = thinking.ask(model, &self.conversation.messages, &params, true)?;
            answer(stream, printer, &self.interrupted, model.engine().client().info().max_seq_len())
        });
        match answered {
            Ok(text) => self.conversation.messages.push(json!({"role": "assistant", "content": text})),
            Err(error) if output::is_broken_pipe(&error) => return Err(error),
            // The chat goes on without the message that could not be answered.
            Err(error) => {
                self.conversation.messages.pop();
                note(&format!("error: {error:#}\n"));
            }
        }
        Ok(())
    }

    fn read_message(&mut self) -> rustyline::Result<String> {
        let mut message = self.editor.readline("> ")?;
        if let Some(begun) = message.trim_start().strip_prefix(QUOTES) {
            let mut text = begun.to_owned();
            while !text.contains(QUOTES) {
                text.push('\n');
                text += &self.editor.readline(". ")?;
            }
            let end = text.find(QUOTES).unwrap_or(text.len());
            message = text[..end].trim_matches('\n').to_owned();
        } else {
            while message.ends_with('\\') {
                message.pop();
                message.push('\n');
                message += &self.editor.readline(". ")?;
            }
        }
        if !message.trim().is_empty() {
            // A history that cannot be kept is no reason to stop.
            drop(self.editor.add_history_entry(message.as_str()));
            if let Some(file) = &self.history {
                drop(self.editor.append_history(file));
            }
        }
        Ok(message)
    }
}

/// Where lines are kept, by the XDG base directories; their folder is made. `None` without a home directory.
fn history_file() -> Option<PathBuf> {
    let state = match environment("XDG_STATE_HOME") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::home_dir().filter(|home| !home.as_os_str().is_empty())?.join(".local/state"),
    };
    let folder = state.join("realizar");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}

/// Prints an answer as it comes, and behind it what it took of `context` tokens, and returns it; an interruption ends it where it is.
fn answer(
    mut stream: TextStream,
    mut printer: Printer,
    interrupted: &AtomicBool,
    context: usize,
) -> Result<String> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut cx = Context::from_waker(&waker);
    loop {
        if interrupted.swap(false, Ordering::Relaxed) {
            stream.cancel();
        }
        match stream.poll_next(&mut cx) {
            // Also while a long prompt is read, an interruption must be heard.
            Poll::Pending => std::thread::park_timeout(Duration::from_millis(50)),
            Poll::Ready(None) => return Ok(printer.content),
            Poll::Ready(Some(event)) => match event? {
                TextEvent::Prompt(_) => {}
                TextEvent::Delta { text, .. } => printer.push(&text)?,
                TextEvent::Finished { reason, usage, timings, .. } => {
                    printer.finish()?;
                    if reason == FinishReason::Length {
                        note("[the end of the context or of -n; /reset begins anew]\n");
                    }
                    let n = usage.completion_tokens;
                    note(&format!(
                        "[{n} tokens, {:.1} tokens/s, context {} of {context}, {} left]\n",
                        decode_tok_s(n, timings.decode),
                        usage.prompt_tokens + n,
                        context.saturating_sub(usage.prompt_tokens + n)
                    ));
                    tracing::info!(
                        prompt_tokens = usage.prompt_tokens,
                        cached_tokens = usage.cached_tokens,
                        tokens = n,
                        decode_tok_s = decode_tok_s(n, timings.decode),
                        "answered"
                    );
                    return Ok(printer.content);
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
