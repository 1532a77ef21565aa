//! `realizar tokenize`: text to ids and back.

use crate::args::ModelOption;
use crate::{input, output};
use anyhow::{Context, Result, ensure};
use clap::Args;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    model: ModelOption,
    /// The text, or with --decode ids; - or nothing reads stdin.
    #[arg(value_name = "TEXT", allow_hyphen_values = true)]
    text: Option<String>,
    /// Take special tokens in the text as plain text and add none; with --decode, leave them out.
    #[arg(long)]
    no_special: bool,
    /// Turn ids into text.
    #[arg(long)]
    decode: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &TokenizeArgs) -> Result<()> {
    let tokenizer = Tokenizer::from_source(&*args.model.model.open()?)?;
    let text = input::text_or_stdin(args.text.as_deref())?;
    if args.decode {
        let ids = parse_ids(&text, tokenizer.vocab_size())?;
        let text = tokenizer.decode(&ids, args.no_special);
        return if args.json { output::print_json(&json!({ "text": text })) } else { output::print(text) };
    }
    let special = !args.no_special;
    let ids = tokenizer.encode(&text, EncodeOptions { add_special: special, parse_special: special });
    if args.json {
        let tokens: Vec<&str> = ids.iter().map(|&id| tokenizer.token_text(id).unwrap_or_default()).collect();
        return output::print_json(&json!({ "ids": ids, "tokens": tokens }));
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    output::print(ids.join(" ") + "\n")
}

/// Numbers with spaces, commas or brackets between them, as any program prints a list.
fn parse_ids(text: &str, n_tokens: usize) -> Result<Vec<u32>> {
    let words =
        text.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).filter(|w| !w.is_empty());
    words
        .map(|word| {
            let id: u32 = word.parse().with_context(|| format!("{word:?} is not a token id"))?;
            ensure!(
                (id as usize) < n_tokens,
                "token id {id} is out of range: the model has {n_tokens} tokens"
            );
            Ok(id)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_from_any_list() {
        assert_eq!(parse_ids("[1, 2,3]\n 4\t5", 6).expect("ids"), [1, 2, 3, 4, 5]);
        assert_eq!(parse_ids(" ", 6).expect("none"), [0; 0]);
        for wrong in ["6", "-1", "x", "1.5"] {
            assert!(parse_ids(wrong, 6).is_err(), "{wrong}");
        }
    }
}
