//! What somebody who reads only the events believes to be in the prefix cache.

use realizar_engine::{CacheEvent, CachedKind};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks by what is there of them and by name, each with its salt and the text up to its end.
#[derive(Default)]
pub struct Subscriber {
    known: BTreeMap<(CachedKind, u64), (Option<u64>, Vec<u32>)>,
    pub n_stored: u64,
    pub n_removed: u64,
}

impl Subscriber {
    /// Follows events, each of which must fit what came before.
    pub fn take(&mut self, events: Vec<CacheEvent>, block_size: usize) {
        for event in events {
            match event {
                CacheEvent::Cleared => self.known.clear(),
                CacheEvent::Removed { kind, hashes } => {
                    for hash in hashes {
                        self.n_removed += 1;
                        assert!(self.known.remove(&(kind, hash)).is_some(), "{kind:?} {hash} was not stored");
                    }
                }
                CacheEvent::Stored(stored) => {
                    assert_eq!(stored.tokens.len(), stored.hashes.len() * block_size, "full blocks only");
                    let parent = stored.parent.map(|parent| {
                        let parent = self.known.get(&(CachedKind::KeysValues, parent));
                        parent.expect("a parent is stored before its children").clone()
                    });
                    let (salt, mut text) = parent.unwrap_or((stored.salt, Vec::new()));
                    assert_eq!(salt, stored.salt);
                    for (hash, tokens) in stored.hashes.iter().zip(stored.tokens.chunks(block_size)) {
                        self.n_stored += 1;
                        text.extend(tokens);
                        let before = self.known.insert((stored.kind, *hash), (salt, text.clone()));
                        assert_eq!(before, None, "{hash} was stored before");
                    }
                }
            }
        }
    }

    /// The cache as [`realizar_engine::Scheduler::cached_texts`] lists it.
    pub fn texts(&self) -> BTreeSet<(Option<u64>, Vec<u32>, bool)> {
        let has_state = |hash| self.known.contains_key(&(CachedKind::State, hash));
        let blocks = self.known.iter().filter(|((kind, _), _)| *kind == CachedKind::KeysValues);
        blocks.map(|((_, hash), (salt, text))| (*salt, text.clone(), has_state(*hash))).collect()
    }
}
