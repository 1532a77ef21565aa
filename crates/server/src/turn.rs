//! One turn of an assistant, whichever API asked for it: from a conversation, tools and a format to a prompt, and from the generated
//! text to thoughts, text and calls.

use crate::conversation::Conversation;
use crate::error::Result;
use crate::generation::{Plan, Wanted};
use crate::models::{Lease, Model};
use crate::tool_calls::{Callable, Syntax, Tool, ToolCallParser, ToolChoice};
use realizar_structured::reasoning::{self, Piece, ReasoningParser, Tags};
use realizar_structured::{Before, Format, GrammarError};

pub(crate) use crate::tool_calls::Delta as News;

/// A format that a request asks for, with the field that says so.
pub(crate) type Asked = (Format, &'static str);

/// What a request says about the turn that it wants.
pub(crate) struct Turn {
    pub(crate) conversation: Conversation,
    pub(crate) callable: Callable,
    pub(crate) format: Option<Asked>,
}

/// A turn that can be generated.
pub(crate) struct Prepared {
    /// Token ids of the prompt.
    pub(crate) prompt: Vec<u32>,
    /// What the answer must look like.
    pub(crate) wanted: Option<Wanted>,
    /// What takes answers apart.
    pub(crate) parsers: Parsers,
}

impl Turn {
    /// Renders and tokenizes the prompt, and tells the plan which control tokens are part of the text. It computes for a while.
    ///
    /// Errors: as [`Conversation::render`]; a format beside fields that contradict it.
    pub(crate) fn prepare(self, lease: &Lease, plan: &mut Plan) -> Result<Prepared> {
        let Self { conversation, callable, format } = self;
        let rendered = conversation.render(lease, &callable.tools, &callable.choice)?;
        let mut prompt = lease.model.engine.encode_rendered(&rendered.text);
        plan.truncate(lease, &mut prompt);
        let tokenizer = lease.model.engine.tokenizer();
        let thinking = rendered.thinking;
        let channels = lease.model.syntax.channels();
        let in_text = channels.is_some_and(|channels| !rendered.text.ends_with(channels.begin));
        let before = match lease.model.syntax.before_text(tokenizer) {
            Some(lark) if !in_text => Before::Grammar(lark),
            _ => Before::reasoning(thinking, rendered.may_think),
        };
        let choice = if callable.tools.is_empty() { ToolChoice::None } else { callable.choice.clone() };
        let answer = format.as_ref().map(|(format, _)| format);
        let closed = callable.closed_tools(lease.app.config.open_schemas);
        let wanted = match Syntax::demands(&closed, &choice, callable.parallel, answer) {
            true => {
                // The grammar of calls in channels has all of the answer.
                let before = if channels.is_some() { Before::Nothing } else { before };
                Some(tools_wanted(&closed, &choice, callable.parallel, answer, before))
            }
            false => format.map(|(format, field)| Wanted::format(format, field, before)),
        };
        wanted.as_ref().map_or(Ok(()), |_| plan.check_format())?;
        plan.shown.extend(reasoning::shown_tokens(tokenizer));
        let tools = if choice == ToolChoice::None { Vec::new() } else { callable.tools };
        if !tools.is_empty() || channels.is_some() {
            plan.shown.extend(lease.model.syntax.shown_tokens(tokenizer));
        }
        let calls_in_reasoning = wanted.is_none() && lease.model.syntax.ends_reasoning();
        Ok(Prepared {
            prompt,
            wanted,
            parsers: Parsers {
                thinking,
                calls_in_reasoning,
                in_text,
                tools,
                syntax: lease.model.syntax,
                seed: lease.app.new_seed(),
            },
        })
    }
}

/// The format that tools demand.
fn tools_wanted(
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
    answer: Option<&Format>,
    before: Before,
) -> Wanted {
    let key = format!("{choice:?} {parallel} {answer:?} {tools:?}");
    let (tools, choice, answer) = (tools.to_vec(), choice.clone(), answer.cloned());
    let format = move |model: &Model| {
        let format =
            model.syntax.grammar(model.engine.tokenizer(), &tools, &choice, parallel, answer.as_ref())?;
        // `Syntax::demands` has said that there is one.
        format.ok_or_else(|| GrammarError::Grammar { reason: "the tools demand nothing".to_owned() })
    };
    Wanted { key, field: "tools", before, format: Box::new(format) }
}

/// Makes the parsers of a turn's answers.
pub(crate) struct Parsers {
    /// What the prompt ends within.
    thinking: Option<&'static Tags>,
    /// A call ends the reasoning, too.
    calls_in_reasoning: bool,
    /// The answer is in channels, and the prompt ends within a text.
    in_text: bool,
    /// What the answer may call.
    tools: Vec<Tool>,
    syntax: &'static Syntax,
    /// Of the calls' ids.
    seed: u64,
}

impl Parsers {
    /// For the answer of this number.
    pub(crate) fn parser(&self, index: usize) -> AnswerParser {
        let seed = self.seed.wrapping_add(index as u64);
        let calls = || match self.in_text {
            true => self.syntax.parser_in_text(&self.tools, seed),
            false => self.syntax.parser(&self.tools, seed),
        };
        let channels = self.syntax.channels().is_some();
        AnswerParser {
            reasoning: (!channels).then(|| ReasoningParser::new(self.thinking)),
            calls: (channels || !self.tools.is_empty()).then(calls),
            calls_in_reasoning: self.calls_in_reasoning,
            reasoning_tokens: 0,
        }
    }
}

/// Takes an answer's text apart while it comes.
pub(crate) struct AnswerParser {
    /// For answers that begin with their reasoning; text and calls follow.
    reasoning: Option<ReasoningParser>,
    /// If there is something to call, or answers are in channels.
    calls: Option<ToolCallParser>,
    calls_in_reasoning: bool,
    reasoning_tokens: usize,
}

impl AnswerParser {
    /// The news in the next piece of text. `n_tokens`: tokens behind it.
    pub(crate) fn push(&mut self, text: &str, n_tokens: usize) -> Vec<News> {
        let was_reasoning = self.is_reasoning();
        let pieces = match &mut self.reasoning {
            Some(reasoning) => reasoning.push(text),
            None => vec![Piece::Content(text.to_owned())],
        };
        let news = self.take(pieces);
        if was_reasoning || self.is_reasoning() {
            self.reasoning_tokens += n_tokens;
        }
        news
    }

    /// The rest, at the answer's end.
    pub(crate) fn finish(&mut self) -> Vec<News> {
        let is_reasoning = self.calls_in_reasoning && self.is_reasoning();
        let pieces = self.reasoning.as_mut().map(ReasoningParser::finish);
        let mut news = self.take(pieces.unwrap_or_default());
        if let Some(calls) = &mut self.calls {
            let rest = calls.finish().into_iter();
            news.extend(rest.map(|news| if is_reasoning { as_reasoning(news) } else { news }));
        }
        news
    }

    fn take(&mut self, pieces: Vec<Piece>) -> Vec<News> {
        let mut news = Vec::new();
        for piece in pieces {
            match (piece, &mut self.calls) {
                (Piece::Reasoning(text), Some(calls)) if self.calls_in_reasoning => {
                    let mut found = calls.push(&text);
                    match found.iter().position(|news| matches!(news, News::Call { .. })) {
                        None => news.extend(found.into_iter().map(as_reasoning)),
                        Some(at) => {
                            let call = found.split_off(at);
                            news.extend(found.into_iter().map(as_reasoning).chain(call));
                            self.calls_in_reasoning = false;
                            let held = self.reasoning.as_mut().map(ReasoningParser::end);
                            news.extend(calls.push(&held.unwrap_or_default()));
                        }
                    }
                }
                (Piece::Reasoning(text), _) => news.push(News::Reasoning(text)),
                (Piece::Content(text), Some(calls)) if std::mem::take(&mut self.calls_in_reasoning) => {
                    // What looked like a call in the reasoning was none.
                    news.extend(calls.finish().into_iter().map(as_reasoning));
                    news.extend(calls.push(&text));
                }
                (Piece::Content(text), None) => news.push(News::Text(text)),
                (Piece::Content(text), Some(calls)) => news.extend(calls.push(&text)),
            }
        }
        news
    }

    fn is_reasoning(&self) -> bool {
        match &self.reasoning {
            Some(reasoning) => reasoning.is_reasoning(),
            None => self.calls.as_ref().is_some_and(ToolCallParser::is_reasoning),
        }
    }

    /// Calls so far.
    pub(crate) fn n_calls(&self) -> usize {
        self.calls.as_ref().map_or(0, ToolCallParser::n_calls)
    }

    /// Tokens of the reasoning so far, with those of the tag at its end.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }
}

/// Text that a parser of calls found in the reasoning.
fn as_reasoning(news: News) -> News {
    match news {
        News::Text(text) => News::Reasoning(text),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool_calls::SYNTAXES;
    use realizar_structured::reasoning::TAGS;
    use serde_json::json;

    /// Reasoning, text, and names with arguments.
    fn run(parsers: &Parsers, text: &str) -> (String, String, Vec<(String, String)>) {
        let mut parser = parsers.parser(0);
        let mut news: Vec<News> = text.split("").flat_map(|piece| parser.push(piece, 1)).collect();
        news.extend(parser.finish());
        let (mut reasoning, mut text, mut calls) = (String::new(), String::new(), Vec::new());
        for news in news {
            match news {
                News::Reasoning(piece) => reasoning += &piece,
                News::Text(piece) => text += &piece,
                News::Call { name, .. } => calls.push((name, String::new())),
                News::Arguments { index, fragment } => calls[index].1 += &fragment,
            }
        }
        (reasoning, text, calls)
    }

    #[test]
    fn a_call_may_end_the_reasoning_where_models_do_so() {
        let tools: Vec<Tool> =
            serde_json::from_value(json!([{"type": "function", "function": {"name": "pwd"}}])).unwrap();
        let parsers = |name: &str, is_free| {
            let syntax = SYNTAXES.iter().find(|syntax| syntax.name == name).unwrap();
            let calls_in_reasoning = is_free && syntax.ends_reasoning();
            let thinking = Some(&TAGS[0]);
            Parsers { thinking, calls_in_reasoning, in_text: false, tools: tools.clone(), syntax, seed: 1 }
        };
        let call = "<tool_call>\n<function=pwd>\n</function>\n</tool_call>";
        let of = |reasoning: &str, text: &str, n: usize| {
            (reasoning.to_owned(), text.to_owned(), vec![("pwd".to_owned(), "{}".to_owned()); n])
        };
        let qwen = parsers("qwen-xml", true);
        assert_eq!(run(&qwen, &format!("Where?\n{call}")), of("Where?", "", 1));
        assert_eq!(run(&qwen, call), of("", "", 1));
        assert_eq!(run(&qwen, &format!("Hm.\n</think>\n\nSo:\n{call}\n{call}")), of("Hm.", "So:", 2));
        assert_eq!(
            run(&qwen, "I say <tool_call> or <function=x>\n</think>No."),
            of("I say <tool_call> or <function=x>", "No.", 0)
        );
        assert_eq!(run(&qwen, "Cut off <tool_call>\n<func"), of("Cut off <tool_call>\n<func", "", 0));
        // A format holds only after the reasoning.
        let forced = format!("I could {call}</think>{call}");
        assert_eq!(run(&parsers("qwen-xml", false), &forced), of(&format!("I could {call}"), "", 1));
        // Elsewhere models speak of calls in their thoughts.
        let call = "<|tool_call_start|>[pwd()]<|tool_call_end|>";
        let spoken = format!("I could {call} hm</think>{call}");
        assert_eq!(run(&parsers("lfm2", true), &spoken), of(&format!("I could {call} hm"), "", 1));
    }
}
