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
    /// Begins a repository's name, and a file's; models without them see other files as text before the gap.
    files: Option<(&'static str, &'static str)>,
}

const fn markers(prefix: &'static str, suffix: &'static str, middle: &'static str) -> Markers {
    Markers { prefix, suffix, middle, suffix_first: false, files: None }
}

impl Markers {
    const fn with_files(self, repository: &'static str, file: &'static str) -> Self {
        Self { files: Some((repository, file)), ..self }
    }
}

/// All families, in the order in which they are looked for.
static FAMILIES: &[Markers] = &[
    // Qwen 2.5 Coder, Qwen 3 Coder, CodeGemma
    markers("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>").with_files("<|repo_name|>", "<|file_sep|>"),
    // StarCoder, StarCoder 2
    markers("<fim_prefix>", "<fim_suffix>", "<fim_middle>").with_files("<repo_name>", "<file_sep>"),
    // Granite Code
    markers("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    // DeepSeek Coder
    markers("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    // CodeLlama
    markers("▁<PRE>", "▁<SUF>", "▁<MID>"),
    // Codestral has no token for the middle: the prefix comes last and is continued.
    Markers { prefix: "[PREFIX]", suffix: "[SUFFIX]", middle: "", suffix_first: true, files: None },
];

/// A model's way to mark a gap.
#[derive(Debug)]
pub(crate) struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    middle: Option<u32>,
    suffix_first: bool,
    /// Begin a repository's name, and a file's.
    files: Option<(u32, u32)>,
}

/// The markers of a vocabulary.
///
/// Errors: it has none, so the model cannot fill gaps.
pub(crate) fn find(tokenizer: &Tokenizer) -> Result<FillInMiddle> {
    let found = FAMILIES.iter().find_map(|family| {
        let (prefix, suffix) = (tokenizer.id_of(family.prefix)?, tokenizer.id_of(family.suffix)?);
        let middle = if family.middle.is_empty() { None } else { Some(tokenizer.id_of(family.middle)?) };
        let files = family
            .files
            .and_then(|(repository, file)| Some((tokenizer.id_of(repository)?, tokenizer.id_of(file)?)));
        Some(FillInMiddle { prefix, suffix, middle, suffix_first: family.suffix_first, files })
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
        self.prompt_among(tokenizer, &[], before, after, "")
    }

    /// As [`FillInMiddle::prompt`], where other files of the same project are known, and the gap begins with a text.
    ///
    /// `files`: names and texts. `begun`: the beginning of the gap.
    pub(crate) fn prompt_among(
        &self,
        tokenizer: &Tokenizer,
        files: &[(&str, &str)],
        before: &str,
        after: &str,
        begun: &str,
    ) -> Vec<u32> {
        let encode =
            |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: false });
        let mut ids: Vec<u32> = tokenizer.bos().filter(|_| tokenizer.add_bos()).into_iter().collect();
        if let Some((repository, file)) = self.files.filter(|_| !files.is_empty()) {
            ids.push(repository);
            ids.extend(encode("project\n"));
            for (name, text) in files {
                ids.push(file);
                ids.extend(encode(&format!("{name}\n{text}\n")));
            }
            ids.push(file);
            ids.extend(encode("file\n"));
        } else {
            files.iter().for_each(|(_, text)| ids.extend(encode(&format!("{text}\n\n"))));
        }
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
        ids.extend(encode(begun));
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
    fn other_files_come_first_and_a_gap_may_have_begun() {
        let plain = tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"]);
        let prompt = |tokenizer: &Tokenizer| {
            find(tokenizer).expect("markers").prompt_among(tokenizer, &[("f", "ab")], "c", "d", "e")
        };
        // Line breaks are not in this vocabulary.
        assert_eq!(prompt(&plain), [0, 1, 6, 2, 7, 3, 8, 4]);
        let names = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"];
        let ids = prompt(&tokenizer(&names));
        let markers: Vec<u32> = ids.iter().copied().filter(|&id| id > 5).collect();
        assert_eq!(markers, [9, 10, 10, 6, 7, 8]);
        assert!(ids.ends_with(&[6, 2, 7, 3, 8, 4]), "{ids:?}");
    }

    #[test]
    fn a_vocabulary_without_markers_is_refused() {
        let error = find(&tokenizer(&["<|fim_prefix|>", "<|fim_suffix|>"])).expect_err("no middle");
        assert_eq!((error.status.as_u16(), error.param.as_deref()), (400, Some("suffix")));
    }
}
