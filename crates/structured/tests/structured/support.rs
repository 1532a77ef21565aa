//! What the tests of structured output share: vocabularies, random texts within a mask, a validator.
#![allow(dead_code, unreachable_pub)]

use realizar_engine::{Constraint, TokenMask};
use realizar_model::source::{self, TensorSource};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_structured::{Format, Grammars};
use std::path::Path;

/// The embedded demo model.
pub fn demo() -> Box<dyn TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")).unwrap()
}

pub fn grammars(tokenizer: &Tokenizer) -> Grammars {
    Grammars::new(tokenizer, tokenizer.eos_ids()).unwrap()
}

pub fn compile(grammars: &Grammars, format: Format) -> Box<dyn Constraint> {
    grammars.compile(&format).unwrap_or_else(|error| panic!("{format:?}: {error}"))
}

pub fn plain(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false })
}

/// A generator of test data: SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

pub fn allowed_ids(mask: &TokenMask) -> Vec<u32> {
    let words = mask.words().iter().enumerate();
    words
        .flat_map(|(i, &word)| {
            (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as u32 * 32 + bit)
        })
        .collect()
}

/// Texts that end free text within the syntaxes of tool calls.
const CLOSERS: [&str; 5] = ["<|end|>", "\n</parameter>", "</parameter>", "</arg_value>", "</think>"];

/// The tokens of a text that ends the free text in which the constraint is.
fn closer(constraint: &dyn Constraint, tokenizer: &Tokenizer, n_allowed: usize) -> Option<Vec<u32>> {
    let encode = |text: &str| {
        // SentencePiece begins a text with a space of its own.
        let ids =
            tokenizer.encode(&format!("x{text}"), EncodeOptions { add_special: false, parse_special: false });
        ids.into_iter().skip_while(|&id| tokenizer.token_bytes(id).is_none_or(|b| !b.ends_with(b"x"))).skip(1)
    };
    CLOSERS.iter().map(|text| encode(text).collect::<Vec<u32>>()).find(|ids| {
        let mut fork = constraint.fork();
        let goes = ids
            .iter()
            .all(|&id| fork.allowed().is_ok_and(|mask| mask.contains(id)) && fork.accept(id).is_ok());
        goes && !ids.is_empty() && fork.allowed().is_ok_and(|mask| allowed_ids(mask).len() < n_allowed / 2)
    })
}

/// Random tokens within the mask until a stop token is drawn. After `n_free` of them, tokens that close what is open come first.
pub fn babble(
    constraint: &mut dyn Constraint,
    tokenizer: &Tokenizer,
    random: &mut Random,
    n_free: usize,
) -> Vec<u32> {
    let mut ids = Vec::new();
    loop {
        assert!(ids.len() < n_free + 2000, "the text does not end: {:?}", tokenizer.decode(&ids, false));
        let mask =
            constraint.allowed().unwrap_or_else(|e| panic!("{e} after {:?}", tokenizer.decode(&ids, false)));
        let mut allowed = allowed_ids(mask);
        assert!(!allowed.is_empty(), "nothing may follow {:?}", tokenizer.decode(&ids, false));
        let is_free_text = allowed.len() > tokenizer.vocab_size() / 2;
        if ids.len() >= n_free && is_free_text {
            let closer = closer(constraint, tokenizer, allowed.len());
            if let Some(more) = closer {
                more.iter().for_each(|&id| constraint.accept(id).unwrap());
                ids.extend(more);
                continue;
            }
        }
        if ids.len() >= n_free {
            let rank = |&id: &u32| match tokenizer.token_bytes(id).as_deref() {
                _ if tokenizer.eos_ids().contains(&id) => 0,
                // A header may go on with a recipient, after which a call ends the text.
                _ if tokenizer.token_text(id) == Some("<|message|>") => 5,
                _ if tokenizer.is_special(id) => 1,
                Some(b"\"") => 1,
                Some([b'}' | b']']) => 2,
                Some([b',' | b':']) => 3,
                _ => 4,
            };
            let best = allowed.iter().map(rank).min().expect("not empty");
            allowed.retain(|id| rank(id) == best);
        }
        let id = allowed[random.below(allowed.len())];
        if tokenizer.eos_ids().contains(&id) {
            return ids;
        }
        constraint.accept(id).unwrap();
        ids.push(id);
    }
}

/// How far `text`, in the tokenizer's own tokens, goes along the constraint: `Ok(whether it may end there)`, or the refused token.
pub fn follow(constraint: &mut dyn Constraint, tokenizer: &Tokenizer, ids: &[u32]) -> Result<bool, u32> {
    for &id in ids {
        if !constraint.allowed().unwrap().contains(id) {
            return Err(id);
        }
        constraint.accept(id).unwrap();
    }
    let mask = constraint.allowed().unwrap();
    Ok(tokenizer.eos_ids().iter().any(|&id| mask.contains(id)))
}
