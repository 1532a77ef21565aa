//! Finds blocks that already hold the beginning of a prompt.
//!
//! The cached blocks form a tree: a node is one full block of tokens after the node of the block before. Nodes have numbers that are
//! never used again, and a lookup compares the block's tokens themselves, not only their hash. A match is therefore exact, by
//! induction from the root: no collision, accidental or made by a client, can give a request another one's keys and values.
//!
//! The last block of a text that has ended may be partly filled. It is listed too, but nothing comes after it. A text that agrees with
//! a block, full or not, only as far as its first tokens goes on from a copy of it.
//!
//! A node may also have a snapshot: a slot with the recurrent state after its block. A model with recurrent layers can go on only from
//! there.

use crate::cache_events::{CacheEvent, Recorder};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

/// The tree of cached blocks.
#[derive(Debug)]
pub(crate) struct PrefixCache<S = RandomState> {
    block_size: usize,
    children: HashMap<Key, u32>,
    /// All blocks after a node, full or not, in the order in which they were listed.
    siblings: HashMap<(Option<u64>, u64), Vec<u32>>,
    /// Per block: its node, if it is cached.
    nodes: Vec<Option<Node>>,
    /// Per block: its tokens, if it is cached.
    tokens: Vec<u32>,
    /// Per block: the slot with the state after it, if there is one.
    snapshots: Vec<Option<u32>>,
    /// Per slot: the block and the node that it belongs to, if it is a snapshot.
    owners: Vec<Option<(u32, u64)>>,
    next: u64,
    hasher: S,
    /// Whoever wants to know what changes.
    recorder: Option<Recorder>,
}

/// Where a block stands in the tree. The hash only finds candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    salt: Option<u64>,
    parent: u64,
    hash: u64,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    id: u64,
    key: Key,
    /// Fewer than a block's in the last block of a text.
    n_tokens: usize,
}

/// How many of the newest blocks after a node are compared with a text that goes on with none of them.
const MAX_COMPARED: usize = 64;

/// The number of the node before the first block.
pub(crate) const ROOT: u64 = 0;

impl<S: BuildHasher + Default> PrefixCache<S> {
    /// Room for all of `n_blocks` blocks of `block_size` tokens, and for snapshots in `n_slots` slots.
    pub(crate) fn new(n_blocks: usize, block_size: usize, n_slots: usize) -> Self {
        Self {
            block_size,
            children: HashMap::with_capacity(n_blocks),
            siblings: HashMap::new(),
            nodes: vec![None; n_blocks],
            tokens: vec![0; n_blocks * block_size],
            snapshots: vec![None; n_blocks],
            owners: vec![None; n_slots],
            next: ROOT + 1,
            hasher: S::default(),
            recorder: None,
        }
    }

    /// Has changes recorded from now on, after all that is there.
    pub(crate) fn record(&mut self) {
        self.recorder = Some(Recorder::new());
        let mut nodes: Vec<(u64, u32)> =
            (0..).zip(&self.nodes).filter_map(|(b, n)| Some((n.as_ref()?.id, b))).collect();
        // Parents before children.
        nodes.sort_unstable();
        for &(_, block) in &nodes {
            self.record_block(block);
        }
        for (_, block) in nodes {
            if self.snapshots[block as usize].is_some() {
                self.record_snapshot(block);
            }
        }
    }

    /// What was recorded since the last call.
    pub(crate) fn take_events(&mut self) -> Vec<CacheEvent> {
        self.recorder.as_mut().map(Recorder::take).unwrap_or_default()
    }

    /// Appends to `blocks` the blocks that hold the beginning of `tokens`, as many as match. Returns the last one's node.
    pub(crate) fn lookup(&self, blocks: &mut Vec<u32>, tokens: &[u32], salt: Option<u64>) -> u64 {
        let mut parent = ROOT;
        for chunk in tokens.chunks_exact(self.block_size) {
            let Some((block, node)) = self.child(salt, parent, chunk) else { break };
            blocks.push(block);
            parent = node;
        }
        parent
    }

    /// Of the blocks after a node, the one that agrees with most of the first `tokens`, and with how many; none if copying it would cost
    /// more than it saves.
    pub(crate) fn lookup_part(&self, parent: u64, tokens: &[u32], salt: Option<u64>) -> Option<(u32, usize)> {
        let siblings = self.siblings.get(&(salt, parent))?.iter().rev().take(MAX_COMPARED);
        let agreeing = siblings.map(|&block| {
            let n = self.contents(block).unwrap_or_default().iter().zip(tokens).take_while(|(a, b)| a == b);
            // A whole block that is not a child collides with another one.
            (n.count().min(self.block_size - 1), block)
        });
        let (n, block) = agreeing.max()?;
        (n * 4 >= self.block_size && n > 0).then_some((block, n))
    }

    /// Lists the partly filled last block of a text that has ended. Returns false if that brings nothing new.
    pub(crate) fn insert_part(&mut self, block: u32, tokens: &[u32], parent: u64, salt: Option<u64>) -> bool {
        assert!(tokens.len() < self.block_size, "{} tokens are a full block", tokens.len());
        let siblings = self.siblings.get(&(salt, parent)).into_iter().flatten().rev().take(MAX_COMPARED);
        let mut known = siblings.map(|&sibling| self.contents(sibling).unwrap_or_default());
        if self.nodes[block as usize].is_some() || known.any(|known| known.starts_with(tokens)) {
            return false;
        }
        self.list(block, tokens, self.key(salt, parent, tokens));
        true
    }

    /// Lists a full block under `parent` and returns its node. If the same tokens are already cached there, that node is returned
    /// and the block is not listed. `None` if that cannot be: another block stands in the way, or this one is already listed under
    /// a parent that was evicted and came back as another node.
    pub(crate) fn insert(
        &mut self,
        block: u32,
        tokens: &[u32],
        parent: u64,
        salt: Option<u64>,
    ) -> Option<Inserted> {
        assert_eq!(tokens.len(), self.block_size, "only full blocks are cached");
        let key = self.key(salt, parent, tokens);
        if let Some(&other) = self.children.get(&key) {
            let node = self.nodes[other as usize].expect("a listed block has a node");
            let found = Inserted { node: node.id, block: other, listed: false };
            return (self.tokens_of(other) == tokens).then_some(found);
        }
        if self.nodes[block as usize].is_some() {
            return None;
        }
        self.children.insert(key, block);
        let node = self.list(block, tokens, key);
        self.record_block(block);
        Some(Inserted { node, block, listed: true })
    }

    /// Makes a block a node and returns its number.
    fn list(&mut self, block: u32, tokens: &[u32], key: Key) -> u64 {
        let node = Node { id: self.next, key, n_tokens: tokens.len() };
        self.next += 1;
        self.siblings.entry((key.salt, key.parent)).or_default().push(block);
        self.nodes[block as usize] = Some(node);
        self.tokens[block as usize * self.block_size..][..tokens.len()].copy_from_slice(tokens);
        node.id
    }

    /// Forgets a block and its snapshot, and returns the snapshot's slot.
    pub(crate) fn remove(&mut self, block: u32) -> Option<u32> {
        let node = self.nodes[block as usize].take().expect("only cached blocks are evicted");
        if node.n_tokens == self.block_size {
            self.children.remove(&node.key);
            self.record_removal(&node);
        }
        let place = (node.key.salt, node.key.parent);
        if let Some(siblings) = self.siblings.get_mut(&place) {
            siblings.retain(|&sibling| sibling != block);
            if siblings.is_empty() {
                self.siblings.remove(&place);
            }
        }
        let slot = self.snapshots[block as usize].take()?;
        self.owners[slot as usize] = None;
        Some(slot)
    }

    /// Lists a slot with the state after a cached block. Returns false if the block has a snapshot already.
    pub(crate) fn set_snapshot(&mut self, block: u32, slot: u32) -> bool {
        let node = self.nodes[block as usize].expect("only cached blocks have snapshots");
        let snapshot = &mut self.snapshots[block as usize];
        if snapshot.is_some() {
            return false;
        }
        *snapshot = Some(slot);
        self.owners[slot as usize] = Some((block, node.id));
        self.record_snapshot(block);
        true
    }

    /// Forgets a snapshot.
    pub(crate) fn remove_snapshot(&mut self, slot: u32) {
        let (block, node) = self.owners[slot as usize].take().expect("only snapshots are evicted");
        self.snapshots[block as usize] = None;
        if let Some(recorder) = &mut self.recorder {
            recorder.remove_state(node);
        }
    }

    /// The slot with the state after a block, if the cache has one.
    pub(crate) fn snapshot(&self, block: u32) -> Option<u32> {
        self.snapshots[block as usize]
    }

    /// The node whose snapshot a slot holds.
    pub(crate) fn snapshot_node(&self, slot: u32) -> Option<u64> {
        self.owners[slot as usize].map(|(_, node)| node)
    }

    /// The node of a cached block.
    pub(crate) fn node(&self, block: u32) -> Option<u64> {
        self.nodes[block as usize].map(|node| node.id)
    }

    /// Where a block stands in the tree; `None` if the cache does not list it.
    pub(crate) fn place(&self, block: u32) -> Option<Place> {
        let node = self.nodes[block as usize]?;
        Some(Place { salt: node.key.salt, parent: node.key.parent, node: node.id })
    }

    /// The tokens that the cache believes to be in a block; `None` if it does not list it.
    pub(crate) fn contents(&self, block: u32) -> Option<&[u32]> {
        self.nodes[block as usize].map(|node| &self.tokens_of(block)[..node.n_tokens])
    }

    /// All blocks that a lookup can find, each as the salt and the text up to its end, and whether it has a snapshot. For tests.
    pub(crate) fn texts(&self) -> Vec<(Option<u64>, Vec<u32>, bool)> {
        let by_id: HashMap<u64, u32> =
            (0..).zip(&self.nodes).filter_map(|(b, n)| Some((n.as_ref()?.id, b))).collect();
        let text = |&block: &u32| {
            let key = self.nodes[block as usize]?.key;
            let (mut parent, mut blocks) = (key.parent, vec![self.contents(block)?]);
            while parent != ROOT {
                let block = *by_id.get(&parent)?;
                parent = self.nodes[block as usize]?.key.parent;
                blocks.push(self.contents(block)?);
            }
            blocks.reverse();
            Some((key.salt, blocks.concat(), self.snapshot(block).is_some()))
        };
        self.children.values().filter_map(text).collect()
    }

    fn record_block(&mut self, block: u32) {
        let Some(recorder) = &mut self.recorder else { return };
        let node = self.nodes[block as usize].expect("a listed block has a node");
        if node.n_tokens == self.block_size {
            let tokens = &self.tokens[block as usize * self.block_size..][..self.block_size];
            recorder.list(node.id, node.key.parent, tokens, node.key.salt);
        }
    }

    fn record_snapshot(&mut self, block: u32) {
        let Some(recorder) = &mut self.recorder else { return };
        let node = self.nodes[block as usize].expect("only cached blocks have snapshots");
        let tokens = &self.tokens[block as usize * self.block_size..][..self.block_size];
        recorder.list_state(node.id, tokens, node.key.salt);
    }

    /// Without a block, those after it cannot be found either.
    fn record_removal(&mut self, node: &Node) {
        let Some(recorder) = &mut self.recorder else { return };
        let mut ids = vec![node.id];
        while let Some(id) = ids.pop() {
            recorder.remove(id);
            let after = self.siblings.get(&(node.key.salt, id)).into_iter().flatten();
            ids.extend(after.filter_map(|&block| Some(self.nodes[block as usize]?.id)));
        }
    }

    fn child(&self, salt: Option<u64>, parent: u64, tokens: &[u32]) -> Option<(u32, u64)> {
        let &block = self.children.get(&self.key(salt, parent, tokens))?;
        let node = self.nodes[block as usize].expect("a listed block has a node");
        (self.tokens_of(block) == tokens).then_some((block, node.id))
    }

    fn tokens_of(&self, block: u32) -> &[u32] {
        &self.tokens[block as usize * self.block_size..][..self.block_size]
    }

    fn key(&self, salt: Option<u64>, parent: u64, tokens: &[u32]) -> Key {
        Key { salt, parent, hash: self.hasher.hash_one(tokens) }
    }
}

/// Where a block stands in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// What only texts with the same one find.
    pub(crate) salt: Option<u64>,
    /// The node of the block before.
    pub(crate) parent: u64,
    /// Its own.
    pub(crate) node: u64,
}

/// Where [`PrefixCache::insert`] found or put the tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inserted {
    /// Their node, the parent of the block after.
    pub(crate) node: u64,
    /// The block that it stands for.
    pub(crate) block: u32,
    /// Whether the given block was listed, rather than another with the same tokens.
    pub(crate) listed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_shared_beginning_is_found() {
        let mut cache: PrefixCache = PrefixCache::new(8, 2, 4);
        let a = cache.insert(5, &[1, 2], ROOT, None).unwrap();
        let b = cache.insert(3, &[3, 4], a.node, None).unwrap();
        assert!(a.listed && b.listed);
        let find = |cache: &PrefixCache, tokens: &[u32], salt| {
            let mut blocks = vec![];
            cache.lookup(&mut blocks, tokens, salt);
            blocks
        };
        assert_eq!(find(&cache, &[1, 2, 3, 4, 5], None), [5, 3]);
        assert_eq!(find(&cache, &[1, 2, 3, 5], None), [5]);
        assert_eq!(find(&cache, &[1], None), [0u32; 0]);
        // The same tokens elsewhere in a text, or under another salt, are not the same block.
        assert_eq!(find(&cache, &[3, 4], None), [0u32; 0]);
        assert_eq!(find(&cache, &[1, 2, 3, 4], Some(7)), [0u32; 0]);
        assert_eq!(
            cache.insert(6, &[1, 2], ROOT, None),
            Some(Inserted { node: a.node, block: 5, listed: false })
        );
        assert!(cache.set_snapshot(5, 2));
        assert!(!cache.set_snapshot(5, 3), "one snapshot is enough");
        assert_eq!((cache.snapshot(5), cache.snapshot_node(2)), (Some(2), Some(a.node)));
        assert_eq!(cache.remove(5), Some(2));
        assert_eq!((cache.snapshot(5), cache.snapshot_node(2)), (None, None));
        assert_eq!(find(&cache, &[1, 2, 3, 4], None), [0u32; 0]);
        assert_eq!(cache.children.len(), 1);
    }

    #[test]
    fn a_block_may_be_shared_in_part() {
        let mut cache: PrefixCache = PrefixCache::new(8, 4, 0);
        let a = cache.insert(5, &[1, 2, 3, 4], ROOT, None).unwrap();
        assert!(cache.insert_part(6, &[5, 6, 7], a.node, None));
        assert_eq!(cache.lookup_part(a.node, &[5, 6, 9, 9, 9], None), Some((6, 2)));
        assert_eq!(cache.lookup_part(ROOT, &[1, 2, 3], None), Some((5, 3)), "a full block, too");
        assert_eq!(cache.lookup_part(a.node, &[9], None), None);
        assert_eq!(cache.lookup_part(a.node, &[5, 6], Some(7)), None);
        // What a block begins with already is not listed again.
        assert!(!cache.insert_part(2, &[5, 6], a.node, None) && !cache.insert_part(2, &[1], ROOT, None));
        assert!(cache.insert_part(2, &[5, 6, 8], a.node, None));
        assert_eq!(cache.lookup_part(a.node, &[5, 6, 8, 1], None), Some((2, 3)));
        let mut blocks = vec![];
        assert_eq!(cache.lookup(&mut blocks, &[1, 2, 3, 4, 5, 6, 8, 0], None), a.node);
        assert_eq!((blocks, cache.contents(2)), (vec![5], Some(&[5, 6, 8][..])));
        cache.remove(2);
        cache.remove(6);
        assert_eq!(cache.lookup_part(a.node, &[5, 6, 8], None), None);
        assert_eq!(cache.siblings.len(), 1);
    }

    #[test]
    fn equal_hashes_of_different_tokens_are_no_match() {
        /// Gives everything the same hash.
        #[derive(Default)]
        struct Collide;
        impl std::hash::Hasher for Collide {
            fn finish(&self) -> u64 {
                7
            }
            fn write(&mut self, _: &[u8]) {}
        }
        type Build = std::hash::BuildHasherDefault<Collide>;
        let mut cache: PrefixCache<Build> = PrefixCache::new(8, 2, 4);
        let a = cache.insert(0, &[1, 2], ROOT, None).unwrap();
        assert_eq!(cache.insert(1, &[3, 4], ROOT, None), None, "another block stands in the way");
        let mut blocks = vec![];
        assert_eq!(cache.lookup(&mut blocks, &[3, 4], None), ROOT);
        assert!(blocks.is_empty());
        assert_eq!(cache.lookup(&mut blocks, &[1, 2], None), a.node);
        assert_eq!(blocks, [0]);
    }
}
