//! What must hold for every format of an answer: it is refused with a reason, or its masks lead on or to an end.

use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::{Format, Grammars};
use std::path::Path;

/// Tokens to go on with at most.
const STEPS: usize = 24;

/// Formats for the vocabulary of a model's file, and the token that ends a text.
pub(crate) struct Follower {
    grammars: Grammars,
    stop: u32,
}

impl Follower {
    pub(crate) fn new(model: &Path) -> Self {
        let tokenizer =
            Tokenizer::from_source(&*source::open(model).expect("the model")).expect("its tokenizer");
        let stop = tokenizer.eos().expect("a token that ends a text");
        Self { grammars: Grammars::new(&tokenizer, &[stop]).expect("a vocabulary"), stop }
    }

    /// Compiles a text as the kind of format that its first letter names (`s`chema, `r`egular expression, `g`rammar in Lark or GBNF), and takes
    /// allowed tokens, each time another of them. Returns whether it was compiled.
    pub(crate) fn follow(&self, text: &str) -> bool {
        let Some((kind, source)) = text.split_at_checked(1) else { return false };
        let format = match kind {
            "s" => match serde_json::from_str(source) {
                Ok(schema) => Format::JsonSchema { schema, strict: source.len() % 2 == 0 },
                Err(_) => return false,
            },
            "r" => Format::Regex(source.to_owned()),
            "g" => Format::Grammar(source.to_owned()),
            _ => return false,
        };
        let mut constraint = match self.grammars.compile(&format) {
            Ok(constraint) => constraint,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return false;
            }
        };
        for step in 0..STEPS {
            // Beyond its budget a mask is an error, which ends the request.
            let Ok(mask) = constraint.allowed() else { break };
            let words = mask.words().iter().enumerate();
            let bits = words.flat_map(|(i, word)| {
                (0..32).filter(move |b| word >> b & 1 == 1).map(move |b| 32 * i as u32 + b)
            });
            let ids: Vec<u32> = bits.collect();
            assert!(!ids.is_empty(), "neither a token nor an end is allowed");
            let id = ids[step * 7 % ids.len()];
            if id == self.stop || constraint.accept(id).is_err() {
                break;
            }
        }
        true
    }
}
