//! Answers of a given form: JSON of a schema, text that a regular expression matches or a grammar describes.

pub use realizar_structured::{Format, GrammarError, reasoning};

use crate::message::conversation;
use crate::{Error, GenerateError, Message, Model, Prompt, TextParams, TextStream, now};
use realizar_engine::{Constraint, Request, StopStrings};
use realizar_structured::{Before, COMPILER_STACK_BYTES, Compiled};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// A model whose answers have a form; made by [`Model::structured`].
///
/// It may be used for any number of requests, from any threads. A text that reaches [`TextParams::max_tokens`] or the end of the context is
/// cut off there, as [`Completion::reason`](crate::Completion::reason) says.
pub struct Structured<'m> {
    model: &'m Model,
    compiled: Mutex<Compiled>,
}

impl fmt::Debug for Structured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Structured").finish_non_exhaustive()
    }
}

impl Model {
    /// Prepares answers of a form: once for all requests that want it. It takes milliseconds, and up to a minute for forms that are hardly
    /// possible.
    ///
    /// ```no_run
    /// # use realizar::{Format, Message, Model};
    /// # let model = Model::load("model.gguf")?;
    /// let schema = r#"{"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
    ///     "required": ["city", "people"], "additionalProperties": false}"#;
    /// let city = model.structured(&Format::JsonSchema { schema: schema.parse().unwrap(), strict: true })?;
    /// let answer = city.chat(&[Message::user("The capital of Italy?")], &model.default_params())?.completion()?;
    /// assert!(answer.text.starts_with('{'));
    /// # Ok::<(), realizar::Error>(())
    /// ```
    ///
    /// Errors: [`Error::Format`] says what is wrong with the format, and where.
    pub fn structured(&self, format: &Format) -> Result<Structured<'_>, Error> {
        let grammars = self.grammars()?;
        // The compiler recurses along its input, and how much stack the caller has left is not known.
        let compile = || grammars.prepare(format);
        let compiled = std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().stack_size(COMPILER_STACK_BYTES).spawn_scoped(scope, compile);
            let failed = |reason: String| GrammarError::Grammar { reason };
            let thread = thread.map_err(|error| failed(format!("its compiler got no thread: {error}")))?;
            thread.join().unwrap_or_else(|_| Err(failed("the compiler failed at it".to_owned())))
        })?;
        Ok(Structured { model: self, compiled: Mutex::new(compiled) })
    }
}

impl Structured<'_> {
    /// Continues a text or token ids with a text of the form.
    ///
    /// Errors: as [`Model::generate`].
    pub fn generate<'a>(
        &self,
        prompt: impl Into<Prompt<'a>>,
        params: &TextParams,
    ) -> Result<TextStream, Error> {
        let engine = self.model.engine();
        let prompt = prompt.into().tokens(engine);
        let request = Request { constraint: Some(self.constraint()), ..engine.request(prompt, params) };
        Ok(engine.submit(request, &params.stop)?)
    }

    /// Answers a conversation with a text of the form. A model that thinks before it answers does so first, in any form; its thoughts come in
    /// the stream as it writes them, tags included, and [`reasoning::ReasoningParser`] tells them from the answer.
    ///
    /// Errors: as [`Model::chat`].
    pub fn chat(&self, messages: &[Message], params: &TextParams) -> Result<TextStream, Error> {
        let engine = self.model.engine();
        let template = engine.template().ok_or(GenerateError::NoChatTemplate)?;
        let text = template.render(&conversation(messages), true, now());
        let text = text.map_err(|error| GenerateError::Template { message: error.to_string() })?;
        let may_think = reasoning::possible_after(&text, template.source());
        let before = Before::reasoning(reasoning::open_in(&text), may_think);
        let constraint = self.model.grammars()?.after(&before, self.constraint())?;
        let request =
            Request { constraint: Some(constraint), ..engine.request(engine.encode_rendered(&text), params) };
        let shown = reasoning::shown_tokens(engine.tokenizer());
        Ok(engine.submit_showing(request, &StopStrings::new(&params.stop)?, &shown)?)
    }

    fn constraint(&self) -> Box<dyn Constraint> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).constraint()
    }
}
