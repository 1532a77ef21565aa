//! What a model thinks before it answers, and how a terminal shows it.

use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use realizar::{Model, TextParams};
use realizar_engine::{StopStrings, TextStream};
use realizar_server::reasoning::{self, Piece, ReasoningParser};
use serde_json::{Value, json};
use std::io::IsTerminal;

#[derive(Debug, Args)]
pub(crate) struct ThinkingOptions {
    /// Leaves out what the model thinks before it answers.
    #[arg(long, alias = "hidethinking")]
    hide_thinking: bool,
    /// Asks for an answer without thinking, where the model's chat template has a switch for it.
    #[arg(long)]
    no_think: bool,
}

impl ThinkingOptions {
    /// Begins to answer a conversation. `splits`: thoughts are told apart from the answer, also where neither is shown in its own way.
    ///
    /// Errors: the template has no switch for thinking, and it was used; as [`TextEngine::chat`](realizar::TextEngine::chat).
    pub(crate) fn ask(
        &self,
        model: &Model,
        messages: &[Value],
        params: &TextParams,
        splits: bool,
    ) -> Result<(TextStream, Printer)> {
        let engine = model.engine();
        let template = engine.template().context("the model has no chat template")?;
        let mut conversation = json!({ "messages": messages });
        if self.no_think {
            ensure!(
                template.source().contains("enable_thinking"),
                "the model's chat template has no switch for thinking; leave out --no-think"
            );
            conversation["enable_thinking"] = json!(false);
        }
        let now = realizar::now();
        let shows = if self.hide_thinking {
            Thoughts::Hidden
        } else if std::io::stdout().is_terminal() {
            Thoughts::Dimmed
        } else if splits {
            Thoughts::Plain
        } else {
            return Ok((engine.chat(&conversation, now, params)?, Printer::of_text()));
        };
        let opens = reasoning::open_in(&template.render(&conversation, true, now)?);
        let request = engine.request(engine.encode_chat(&conversation, now)?, params);
        let shown = reasoning::shown_tokens(engine.tokenizer());
        let stream = engine.submit_showing(request, &StopStrings::new(&params.stop)?, &shown)?;
        Ok((stream, Printer { parser: Some((ReasoningParser::new(opens), shows)), ..Printer::of_text() }))
    }
}

/// How thoughts are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thoughts {
    Hidden,
    Dimmed,
    Plain,
}

/// Prints an answer as it comes.
pub(crate) struct Printer {
    /// `None`: all is printed as it is.
    parser: Option<(ReasoningParser, Thoughts)>,
    /// The answer so far, without thoughts.
    pub(crate) content: String,
    /// Whether thoughts were printed last, which the answer is set apart from.
    thought: bool,
    /// Whether the last line printed has ended; nothing counts as a line.
    ended_line: bool,
}

impl Printer {
    /// Prints a text without looking for thoughts in it.
    pub(crate) fn of_text() -> Self {
        Self { parser: None, content: String::new(), thought: false, ended_line: true }
    }

    /// Errors: stdout is gone.
    pub(crate) fn push(&mut self, text: &str) -> Result<()> {
        let pieces = match &mut self.parser {
            Some((parser, _)) => parser.push(text),
            None => vec![Piece::Content(text.to_owned())],
        };
        self.print(pieces)
    }

    /// Prints what was held back and ends the line. Errors: stdout is gone.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let rest = self.parser.as_mut().map_or_else(Vec::new, |(parser, _)| parser.finish());
        self.print(rest)?;
        if self.ended_line { Ok(()) } else { output::print("\n") }
    }

    fn print(&mut self, pieces: Vec<Piece>) -> Result<()> {
        let shows = self.parser.as_ref().map_or(Thoughts::Plain, |(_, shows)| *shows);
        for piece in pieces {
            let text = match &piece {
                Piece::Reasoning(_) if shows == Thoughts::Hidden => continue,
                Piece::Reasoning(text) | Piece::Content(text) => text,
            };
            self.ended_line = text.ends_with('\n');
            match (&piece, shows) {
                (Piece::Reasoning(_), Thoughts::Dimmed) => {
                    output::print_dimmed(text)?;
                    self.thought = true;
                }
                (Piece::Reasoning(_), _) => {
                    output::print(text)?;
                    self.thought = true;
                }
                (Piece::Content(_), _) => {
                    if std::mem::take(&mut self.thought) {
                        output::print("\n\n")?;
                    }
                    output::print(text)?;
                    self.content += text;
                }
            }
        }
        Ok(())
    }
}
