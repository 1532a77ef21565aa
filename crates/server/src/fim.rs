//! Fill-in-the-middle: prompts for models that learned to write what stands between two texts.

use crate::error::{ApiError, Result};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};

/// The control tokens of a family of models, as its vocabulary writes them.
struct Markers {
    prefix: &'static str,
    suffix: &'static str,
    middle: &'static str,
    /// Whether the suffix comes before the prefix.
    suffix_first: bool,
}

const fn markers(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Markers {
    Markers { prefix, suffix, middle, suffix_first: false }
}

/// All families, in the order in which they are looked for.
static FAMILIES: &[Markers] = &[
    // Qwen 2.5 Coder, Qwen 3 Coder, CodeGemma
    markers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    // StarCoder, StarCoder 2
    markers("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    // Granite Code
    markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek Coder
    markers("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeLlama
    markers("▁<PRE>", "▁<SUF>", "▁<MID>"),
    // Codestral has no token for the middle: the prefix comes last and is continued.
    Markers { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: "", suffix_first: true },
];

/// A model's way to mark a gap.
#[derive(Debug)]
pub(crate) struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    suffix_first: bool,
}

/// The markers of a vocabulary.
///
/// Errors: it has none, so the model cannot fill gaps.
pub(crate) fn find(tokenizer: &Tokenizer) -> Result<FillInMiddle> {
    let found = FAMILIES.iter().find_map(|family| {
        let (prefix, suffix) = (tokenizer.id_of(family.prefix)?, tokenizer.id_of(family.suffix)?);
        let middle = if family.middle.is_empty() { None } else { Some(tokenizer.id_of(family.middle)?) };
        Some(FillInMiddle { prefix, suffix, middle, suffix_first: family.suffix_first })
    });
    found.ok_or_else(|| {
        let message =
            "this model cannot fill in the middle: its vocabulary has no tokens for it; leave out the suffix";
        ApiError::invalid_param("suffix", message).code("unsupported")
    })
}

impl FillInMiddle {
    /// Token ids that ask for the text between two others. Control tokens in those are text.
    pub(crate) fn prompt(&self, tokenizer: &Tokenizer, before: &str, after: &str) -> Vec<u32> {
        let encode =
            |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false });
        let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
        let (prefix, suffix) = (encode(before), encode(after));
        let parts = match self.suffix_first {
            false => [(self.prefix, prefix), (self.suffix, suffix)],
            true => [(self.suffix, suffix), (self.prefix, prefix)],
        };
        for (marker, text) in parts {
            ids.push(marker);
            ids.extend(text);
        }
        ids.extend(self.middle);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A tokenizer of single letters and these control tokens.
    fn tokenizer(specials: &[&str]) -> Tokenizer {
        let mut vocab: Vec<String> = ('a'..='f').map(String::from).collect();
        vocab.extend(specials.iter().map(|s| s.to_string()));
        let ids = vocab.iter().enumerate().map(|(i, t)| (t.clone(), json!(i)));
        let added = specials.iter().enumerate().map(|(i, s)| {
            json!({"id": 6 + i, "content": s, "special": true, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false})
        });
        let json = json!({
            "version": "1.0",
            "added_tokens": added.collect::<Vec<_>>(),
            "model": {"type": "BPE", "vocab": ids.collect::<serde_json::Map<_, _>>(), "merges": []},
        });
        Tokenizer::from_hf(json.to_string().as_bytes(), None, None).expect("a tokenizer")
    }

    #[test]
    fn the_gap_is_marked_as_the_model_learned_it() {
        let qwen = tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        assert_eq!(find(&qwen).expect("markers").prompt(&qwen, "ab", "c"), [6, 0, 1, 7, 2, 8]);
        let codestral = tokenizer(&["[PREFIX]", "[SUFFIX]"]);
        assert_eq!(find(&codestral).expect("markers").prompt(&codestral, "ab", "c"), [7, 2, 6, 0, 1]);
    }

    #[test]
    fn a_vocabulary_without_markers_is_refused() {
        let error = find(&tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"])).expect_err("no middle");
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("suffix")));
    }
}
