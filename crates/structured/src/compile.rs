//! Compiles a format within bounds of time and memory.
//!
//! The library that compiles cannot be interrupted. So the source is held to the bounds of `limits` first, each phase is held to the
//! library's own limits ([`limits`]), the search that has none (the first byte of every lexeme) is tried out with a limit before the
//! library does it, and between the phases the [`Deadline`] is looked at.

use super::constraint::TokenConstraint;
use super::limits::check_lark;
use super::pushdown::PushdownConstraint;
use super::{Format, GrammarError, check_size, gbnf, message, schema};
use llguidance::api::{GrammarInit, GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use llguidance::{GrammarBuilder, ParserFactory, panic_utils};
use realizar_engine::Constraint;
use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

/// When compiling has to end.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Instant,
    limit: Duration,
}

impl Deadline {
    /// From now.
    pub fn after(limit: Duration) -> Self {
        Self { end: Instant::now() + limit, limit }
    }

    /// Errors: [`GrammarError::TooSlow`] if it is over.
    pub(super) fn check(&self) -> Result<(), GrammarError> {
        match Instant::now() < self.end {
            true => Ok(()),
            false => Err(GrammarError::TooSlow { limit: self.limit }),
        }
    }
}

/// A compiled format, at the beginning of a text, with its first mask.
pub struct Compiled(Machine);

enum Machine {
    /// By llguidance.
    Tokens(Box<TokenConstraint>),
    /// From GBNF.
    Bytes(PushdownConstraint),
}

impl Compiled {
    /// A constraint for one request, which shares nothing with others: what one text makes the machine remember, or fail at, concerns
    /// no other.
    pub fn constraint(&self) -> Box<dyn Constraint> {
        match &self.0 {
            Machine::Tokens(constraint) => Box::new(constraint.separate()),
            Machine::Bytes(constraint) => Box::new(constraint.separate()),
        }
    }

    /// Bytes that it takes, about.
    pub fn n_bytes(&self) -> usize {
        match &self.0 {
            Machine::Tokens(constraint) => constraint.n_bytes(),
            Machine::Bytes(constraint) => constraint.n_bytes(),
        }
    }
}

/// What one request may cost. A step that goes beyond its share ends the request with an error.
pub(super) fn limits() -> ParserLimits {
    ParserLimits {
        // About 2 kB each: 60 MB at most for one request.
        max_lexer_states: 30_000,
        // Earley items of one row are compared with each other.
        max_items_in_row: 1_000,
        // Its errors would bring along the whole text and grammar.
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// See [`super::Grammars::compile`].
pub(super) fn compile(
    factory: &ParserFactory,
    format: &Format,
    deadline: Deadline,
) -> Result<Compiled, GrammarError> {
    let (grammar, kind) = match format {
        Format::Json => {
            let schema = schema::prepare(&serde_json::json!({"type": "object"}), true)?;
            (GrammarWithLexer::from_json_schema(schema), Kind::Schema)
        }
        Format::JsonSchema { schema, strict } => {
            let schema = schema::prepare(schema, *strict)?;
            (GrammarWithLexer::from_json_schema(schema), Kind::Schema)
        }
        Format::Regex(pattern) => {
            check_size("the regular expression, in bytes,", pattern.len())?;
            check_regex(pattern)?;
            (GrammarWithLexer::from_regex(pattern), Kind::Regex)
        }
        Format::Grammar(text) => {
            check_size("the grammar, in bytes,", text.len())?;
            if gbnf::is_gbnf(text) {
                return compile_gbnf(factory, text).map_err(|reason| GrammarError::Grammar { reason });
            }
            check_lark(text)?;
            (GrammarWithLexer::from_lark(text.clone()), Kind::Grammar)
        }
    };
    deadline.check()?;
    compile_lexed(factory, grammar, kind, deadline)
}

/// What went into llguidance, for its errors.
#[derive(Clone, Copy)]
enum Kind {
    Schema,
    Regex,
    Grammar,
}

impl Kind {
    fn error(self, reason: String) -> GrammarError {
        match self {
            Kind::Schema => GrammarError::Schema { path: "#".to_owned(), reason },
            Kind::Regex => GrammarError::Regex { reason },
            Kind::Grammar => GrammarError::Grammar { reason },
        }
    }
}

fn compile_lexed(
    factory: &ParserFactory,
    grammar: GrammarWithLexer,
    kind: Kind,
    deadline: Deadline,
) -> Result<Compiled, GrammarError> {
    let environment = factory.tok_env().clone();
    let init = GrammarInit::Serialized(TopLevelGrammar::from_grammar(grammar));
    let internal =
        panic_utils::catch_unwind(AssertUnwindSafe(|| init.to_internal(Some(environment), limits())));
    let (grammar, lexemes) = internal.map_err(|error| kind.error(message(&error)))?;
    deadline.check()?;
    try_first_byte(&lexemes).map_err(|reason| kind.error(reason))?;
    deadline.check()?;
    let parser = factory.create_parser_from_init_default(GrammarInit::Internal(grammar, lexemes));
    let parser = parser.map_err(|error| kind.error(message(&error)))?;
    deadline.check()?;
    // The first mask here and not in the engine; it also tells whether anything satisfies the format at all.
    let mut constraint = TokenConstraint::new(parser, factory.tok_env().tok_trie().vocab_size());
    constraint.allowed().map_err(|reason| kind.error(reason))?;
    Ok(Compiled(Machine::Tokens(Box::new(constraint))))
}

/// Finds out within limits whether the lexer can be built: llguidance takes its steps by the first byte without any.
fn try_first_byte(lexemes: &LexerSpec) -> Result<(), String> {
    let tried = panic_utils::catch_unwind(AssertUnwindSafe(|| {
        let mut limits = limits();
        let mut lexer = lexemes.to_regex_vec(&mut limits)?;
        lexer.set_fuel(limits.initial_lexer_fuel);
        lexer.set_max_states(limits.max_lexer_states);
        let start = lexer.initial_state(&lexemes.all_lexemes());
        for byte in 0..=u8::MAX {
            lexer.transition(start, byte);
            if lexer.has_error() {
                break;
            }
        }
        Ok(lexer.get_error())
    }));
    match tried {
        Ok(None) => Ok(()),
        Ok(Some(reason)) => Err(format!("it is too complex: {reason}")),
        Err(error) => Err(message(&error)),
    }
}

fn compile_gbnf(factory: &ParserFactory, text: &str) -> Result<Compiled, String> {
    let mut constraint = PushdownConstraint::new(gbnf::parse(text)?, factory.tok_env().clone())?;
    constraint.allowed()?;
    Ok(Compiled(Machine::Bytes(constraint)))
}

/// On its own first: inside a grammar its errors would speak of a grammar that the caller did not write.
fn check_regex(pattern: &str) -> Result<(), GrammarError> {
    if pattern.is_empty() {
        return Err(GrammarError::Regex { reason: "it is empty".to_owned() });
    }
    let checked = GrammarBuilder::new(None, limits()).regex.regex(pattern);
    checked.map(|_| ()).map_err(|error| GrammarError::Regex { reason: message(&error) })
}
