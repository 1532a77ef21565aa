//! What a model thinks before it answers, and how a terminal shows it.

use crate::live::Live;
use crate::output;
use anyhow::{Context, Result, ensure};
use clap::Args;
use realizar::{Model, TextParams};
use realizar_engine::{StopStrings, TextStream};
use realizar_structured::reasoning::{self, Piece, ReasoningParser};
use serde_json::{Value, json};

#[derive(Debug, Args)]
pub(crate) struct ThinkingOptions {
    /// Leaves out what the model thinks before it answers.
    #[arg(long, alias = "hidethinking")]
    hide_thinking: bool,
    /// Asks for an answer without thinking, where the model's chat template has a switch for it.
    #[arg(long)]
    no_think: bool,
    /// Shows answers as the model writes them, instead of drawing their Markdown where stdout is a terminal.
    #[arg(long)]
    plain: bool,
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
        let draws = !self.plain && output::can_draw();
        if !(self.hide_thinking || draws || splits) {
            return Ok((engine.chat(&conversation, now, params)?, Printer::of_text()));
        }
        let thoughts = if self.hide_thinking { Thoughts::Hidden } else { Thoughts::Shown };
        let opens = reasoning::open_in(&template.render(&conversation, true, now)?);
        let request = engine.request(engine.encode_chat(&conversation, now)?, params);
        let shown = reasoning::shown_tokens(engine.tokenizer());
        let stream = engine.submit_showing(request, &StopStrings::new(&params.stop)?, &shown)?;
        let live = draws.then(|| Live::new(false));
        let parser = Some((ReasoningParser::new(opens), thoughts));
        Ok((stream, Printer { parser, live, ..Printer::of_text() }))
    }
}

/// What is made of thoughts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thoughts {
    Hidden,
    Shown,
}

/// Prints an answer as it comes.
pub(crate) struct Printer {
    /// `None`: all is printed as it is.
    parser: Option<(ReasoningParser, Thoughts)>,
    /// The answer so far, without thoughts.
    pub(crate) content: String,
    /// What is on the terminal, if text is drawn there and not written as it is.
    live: Option<Live>,
    /// Whether thoughts were printed last, which the answer is set apart from.
    thought: bool,
    /// Whether the last line printed has ended; nothing counts as a line.
    ended_line: bool,
}

impl Printer {
    /// Prints a text without looking for thoughts or Markdown in it.
    pub(crate) fn of_text() -> Self {
        Self { parser: None, content: String::new(), live: None, thought: false, ended_line: true }
    }

    /// Errors: stdout is gone.
    pub(crate) fn push(&mut self, text: &str) -> Result<()> {
        let pieces = match &mut self.parser {
            Some((parser, _)) => parser.push(text),
            None => vec![Piece::Content(text.to_owned())],
        };
        pieces.into_iter().try_for_each(|piece| self.print(piece))
    }

    /// Prints what was held back and ends the line. Errors: stdout is gone.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let rest = self.parser.as_mut().map_or_else(Vec::new, |(parser, _)| parser.finish());
        rest.into_iter().try_for_each(|piece| self.print(piece))?;
        if let Some(live) = &mut self.live {
            output::print_drawn(&live.finish())?;
        }
        if self.ended_line { Ok(()) } else { output::print("\n") }
    }

    fn print(&mut self, piece: Piece) -> Result<()> {
        let (text, is_thought) = match piece {
            Piece::Reasoning(_)
                if self.parser.as_ref().is_some_and(|(_, thoughts)| *thoughts == Thoughts::Hidden) =>
            {
                return Ok(());
            }
            Piece::Reasoning(text) => (text, true),
            Piece::Content(text) => (text, false),
        };
        if std::mem::replace(&mut self.thought, is_thought) && !is_thought {
            if let Some(live) = &mut self.live {
                output::print_drawn(&live.finish())?;
            }
            output::print("\n\n")?;
        }
        match &mut self.live {
            Some(live) => {
                if live.is_dim() != is_thought {
                    *live = Live::new(is_thought);
                }
                output::print_drawn(&live.push(&text))?;
                // What is drawn has no line end behind it.
                self.ended_line = false;
            }
            None => {
                output::print(&text)?;
                self.ended_line = text.ends_with('\n');
            }
        }
        if !is_thought {
            self.content += &text;
        }
        Ok(())
    }
}
