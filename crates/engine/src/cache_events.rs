//! What enters and leaves the prefix cache, as plain data: routers send a request to the server that has its beginning.
//!
//! A full block is named by a hash over its tokens and all before it, so servers of the same model name the same text alike. Only blocks
//! that a lookup can reach are reported: when a block goes, those after it go with it, even if the cache still holds their contents.

use crate::prefix_cache::ROOT;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// A change of the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks that follow each other can be found.
    Stored(StoredBlocks),
    /// Blocks can no longer be found.
    Removed {
        /// What is gone of them.
        kind: CachedKind,
        /// The blocks.
        hashes: Vec<u64>,
    },
    /// Nothing can be found.
    Cleared,
}

/// What the cache holds of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CachedKind {
    /// Keys and values of its tokens.
    KeysValues,
    /// The state of recurrent layers after its last token, which a model with such layers needs in order to go on from there.
    State,
}

/// Blocks that follow each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    /// What is there of them.
    pub kind: CachedKind,
    /// A hash per block, of its tokens and of all before it.
    pub hashes: Vec<u64>,
    /// The block before the first; `None` at the beginning of a text.
    pub parent: Option<u64>,
    /// The tokens of all these blocks.
    pub tokens: Vec<u32>,
    /// Only requests with the same salt find them.
    pub salt: Option<u64>,
}

/// Names the nodes of the prefix cache and collects what changes.
#[derive(Debug)]
pub(crate) struct Recorder {
    nodes: HashMap<u64, Named>,
    events: Vec<CacheEvent>,
}

#[derive(Clone, Copy, Debug)]
struct Named {
    hash: u64,
    parent: Option<u64>,
    has_state: bool,
}

impl Recorder {
    /// Begins with nothing.
    pub(crate) fn new() -> Self {
        Self { nodes: HashMap::new(), events: vec![CacheEvent::Cleared] }
    }

    /// What changed since the last call.
    pub(crate) fn take(&mut self) -> Vec<CacheEvent> {
        std::mem::take(&mut self.events)
    }

    /// A full block was listed. A block whose parent is gone cannot be found and has no name.
    pub(crate) fn list(&mut self, node: u64, parent: u64, tokens: &[u32], salt: Option<u64>) {
        let parent = match self.nodes.get(&parent) {
            Some(parent) => Some(parent.hash),
            None if parent == ROOT => None,
            None => return,
        };
        let hash = hash_of(parent, tokens, salt);
        self.nodes.insert(node, Named { hash, parent, has_state: false });
        self.store(CachedKind::KeysValues, hash, parent, tokens, salt);
    }

    /// The state after a block was listed.
    pub(crate) fn list_state(&mut self, node: u64, tokens: &[u32], salt: Option<u64>) {
        let Some(named) = self.nodes.get_mut(&node) else { return };
        named.has_state = true;
        let Named { hash, parent, .. } = *named;
        self.store(CachedKind::State, hash, parent, tokens, salt);
    }

    /// A block was given up, or cannot be found any more.
    pub(crate) fn remove(&mut self, node: u64) {
        self.remove_state(node);
        if let Some(named) = self.nodes.remove(&node) {
            self.lose(CachedKind::KeysValues, named.hash);
        }
    }

    /// The state after a block was given up, if it was there.
    pub(crate) fn remove_state(&mut self, node: u64) {
        let Some(named) = self.nodes.get_mut(&node).filter(|named| named.has_state) else { return };
        named.has_state = false;
        let hash = named.hash;
        self.lose(CachedKind::State, hash);
    }

    /// Appends to the last event where the block follows its last one.
    fn store(&mut self, kind: CachedKind, hash: u64, parent: Option<u64>, tokens: &[u32], salt: Option<u64>) {
        if let Some(CacheEvent::Stored(last)) = self.events.last_mut()
            && (last.kind, last.salt) == (kind, salt)
            && last.hashes.last().copied() == parent
        {
            last.hashes.push(hash);
            last.tokens.extend_from_slice(tokens);
            return;
        }
        let (hashes, tokens) = (vec![hash], tokens.to_vec());
        self.events.push(CacheEvent::Stored(StoredBlocks { kind, hashes, parent, tokens, salt }));
    }

    fn lose(&mut self, kind: CachedKind, hash: u64) {
        match self.events.last_mut() {
            Some(CacheEvent::Removed { kind: last, hashes }) if *last == kind => hashes.push(hash),
            _ => self.events.push(CacheEvent::Removed { kind, hashes: vec![hash] }),
        }
    }
}

/// The first eight bytes of SHA-256 over the parent's hash, or the salt at the beginning of a text, and the tokens.
fn hash_of(parent: Option<u64>, tokens: &[u32], salt: Option<u64>) -> u64 {
    let mut hasher = Sha256::new();
    match (parent, salt) {
        (Some(parent), _) => hasher.update([&[1][..], &parent.to_le_bytes()].concat()),
        (None, Some(salt)) => hasher.update([&[2][..], &salt.to_le_bytes()].concat()),
        (None, None) => hasher.update([0]),
    }
    tokens.iter().for_each(|token| hasher.update(token.to_le_bytes()));
    let digest = hasher.finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use CachedKind::{KeysValues, State};

    #[test]
    fn blocks_that_follow_each_other_are_one_event() {
        let mut recorder = Recorder::new();
        recorder.list(1, ROOT, &[1, 2], None);
        recorder.list(2, 1, &[3, 4], None);
        recorder.list(3, 1, &[5, 6], None);
        recorder.list_state(2, &[3, 4], None);
        let (a, b, c) = (
            hash_of(None, &[1, 2], None),
            recorder.nodes[&2].hash,
            hash_of(recorder.nodes[&3].parent, &[5, 6], None),
        );
        let stored = |kind, hashes: &[u64], parent, tokens: &[u32]| {
            let (hashes, tokens) = (hashes.to_vec(), tokens.to_vec());
            CacheEvent::Stored(StoredBlocks { kind, hashes, parent, tokens, salt: None })
        };
        assert_eq!(
            recorder.take(),
            [
                CacheEvent::Cleared,
                stored(KeysValues, &[a, b], None, &[1, 2, 3, 4]),
                stored(KeysValues, &[c], Some(a), &[5, 6]),
                stored(State, &[b], Some(a), &[3, 4]),
            ]
        );
        recorder.remove(2);
        recorder.remove(3);
        recorder.remove(4);
        assert_eq!(
            recorder.take(),
            [
                CacheEvent::Removed { kind: State, hashes: vec![b] },
                CacheEvent::Removed { kind: KeysValues, hashes: vec![b, c] },
            ]
        );
    }

    #[test]
    fn texts_and_salts_have_names_of_their_own() {
        let names = [
            hash_of(None, &[1, 2], None),
            hash_of(None, &[2, 1], None),
            hash_of(None, &[1, 2], Some(0)),
            hash_of(None, &[1, 2], Some(1)),
            hash_of(Some(0), &[1, 2], None),
        ];
        let different: std::collections::HashSet<u64> = names.into_iter().collect();
        assert_eq!(different.len(), names.len());
        // Servers of different versions in one fleet agree.
        assert_eq!(names[0], 17_748_341_636_426_148_654);
    }
}
