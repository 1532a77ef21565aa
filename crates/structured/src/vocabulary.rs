//! The vocabulary as a trie of bytes, along which grammars are walked.

use super::GrammarError;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use realizar_model::tokenizer::Tokenizer;
use std::sync::Arc;

/// Longer tokens are not used in structured text: the trie's nodes count their depth in 10 bits.
const MAX_TOKEN_BYTES: usize = 1000;
/// The trie's nodes count the size of their subtree in 22 bits.
const MAX_NODES: usize = (1 << 22) - 1;

/// The trie of a tokenizer's tokens by the bytes that they stand for.
///
/// Tokens that steer the model, `stops` among them, stand under a byte that no text contains: only a grammar that names such a token
/// allows it. Tokens with bytes that UTF-8 does not know are left out.
pub(super) fn token_environment(tokenizer: &Tokenizer, stops: &[u32]) -> Result<TokEnv, GrammarError> {
    let refuse = |reason: String| GrammarError::Vocabulary { reason };
    let n_tokens = tokenizer.vocab_size();
    let mut stops: Vec<u32> = stops.iter().copied().filter(|&id| (id as usize) < n_tokens).collect();
    stops.sort_unstable();
    stops.dedup();
    let Some(&eos) = stops.first() else {
        return Err(refuse("it has no token that ends a text".to_owned()));
    };
    let word = |id: u32| -> Vec<u8> {
        if tokenizer.is_special(id) || stops.binary_search(&id).is_ok() {
            let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
            word.extend(tokenizer.token_text(id).unwrap_or_default().as_bytes());
            word.truncate(MAX_TOKEN_BYTES);
            return word;
        }
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        let usable = bytes.len() <= MAX_TOKEN_BYTES && !bytes.contains(&TokTrie::SPECIAL_TOKEN_MARKER);
        if usable { bytes.into_owned() } else { Vec::new() }
    };
    let words: Vec<Vec<u8>> = (0..n_tokens as u32).map(word).collect();
    let n_nodes = count_nodes(&words);
    if n_nodes > MAX_NODES {
        return Err(refuse(format!(
            "its vocabulary has {n_nodes} different beginnings, at most {MAX_NODES} fit"
        )));
    }
    let trie = TokTrie::from(&TokRxInfo::new(n_tokens as u32, eos), &words).with_eos_tokens(&stops);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Nodes of the words' trie: one for each different beginning, and one more for each repeated word.
fn count_nodes(words: &[Vec<u8>]) -> usize {
    let mut sorted: Vec<&[u8]> = words.iter().map(Vec::as_slice).filter(|word| !word.is_empty()).collect();
    sorted.sort_unstable();
    let mut last: &[u8] = &[];
    let mut n_nodes = 1;
    for word in sorted {
        let shared = word.iter().zip(last).take_while(|(a, b)| a == b).count();
        n_nodes += (word.len() - shared).max(1);
        last = word;
    }
    n_nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_counted_as_the_trie_has_them() {
        let words: Vec<Vec<u8>> =
            ["a", "ab", "abc", "abd", "b", "", "abd"].iter().map(|w| w.as_bytes().to_vec()).collect();
        // The root, a, b under it, c and d, b, and the second "abd".
        assert_eq!(count_nodes(&words), 7);
    }
}
