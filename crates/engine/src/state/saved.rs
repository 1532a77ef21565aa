//! What of the prefix cache can be kept for another process, and how it comes back.

use super::{Need, StateStore};
use crate::Result;
use crate::prefix_cache::ROOT;
use std::collections::HashMap;

/// A block that the prefix cache lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedBlock {
    pub(crate) block: u32,
    /// The block before, as its index in the list; `None` for the first of a text.
    pub(crate) parent: Option<usize>,
    /// Fewer than a block's in the last block of a text.
    pub(crate) tokens: Vec<u32>,
    /// The slot with the state after it, if there is one.
    pub(crate) snapshot: Option<u32>,
}

/// A block that was listed again, referenced until [`StateStore::end_restore`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Restored {
    block: u32,
    slot: Option<u32>,
    /// The parent of the blocks after.
    pub(crate) node: u64,
}

impl StateStore {
    /// All blocks that a text without a salt can find, the last used first, and each after the block before it in its text: salts are
    /// made by a process for itself, so nobody would find the others.
    pub(crate) fn cached(&self) -> Vec<CachedBlock> {
        let mut blocks: Vec<_> = (0..self.blocks.len() as u32)
            .filter_map(|block| {
                let place = self.cache.place(block)?;
                // A text uses a block whenever it uses the one after, and gives it up later. Those in use come first.
                let last_use = self.blocks.idle_since(block).unwrap_or(u64::MAX);
                place.salt.is_none().then_some((std::cmp::Reverse(last_use), place.node, place.parent, block))
            })
            .collect();
        blocks.sort_unstable();
        let mut indices = HashMap::from([(ROOT, None)]);
        let mut cached = Vec::new();
        for (_, node, parent, block) in blocks {
            // What came after a block that is gone is found no more.
            let Some(&parent) = indices.get(&parent) else { continue };
            let tokens = self.cache.contents(block).unwrap_or_default().to_vec();
            indices.insert(node, Some(cached.len()));
            cached.push(CachedBlock { block, parent, tokens, snapshot: self.cache.snapshot(block) });
        }
        cached
    }

    /// Lists a block again, after the node `parent`. `write` fills the block and the slot that it is given. `None` if there is no free
    /// room, or the cache has such a block.
    ///
    /// Errors: those of `write`; nothing is listed then.
    pub(crate) fn restore(
        &mut self,
        tokens: &[u32],
        parent: u64,
        has_snapshot: bool,
        write: impl FnOnce(u32, Option<u32>) -> Result<()>,
    ) -> Result<Option<Restored>> {
        let need = Need { blocks: 1, slots: usize::from(has_snapshot) };
        let held = self.blocks.len() - self.blocks.n_free() + need.blocks;
        let held_slots = self.slots.len() - self.slots.n_free() + need.slots;
        let has_room = held <= self.blocks.len() && held_slots <= self.slots.len();
        if !has_room || self.bytes(held, held_slots) > self.budget() {
            return Ok(None);
        }
        let block = self.blocks.take_free().expect("there is room");
        let slot = has_snapshot.then(|| self.slots.take_free().expect("there is room"));
        let node = match write(block, slot) {
            Err(error) => Err(error),
            Ok(()) if tokens.len() == self.block_size => {
                let inserted = self.cache.insert(block, tokens, parent, None);
                Ok(inserted.filter(|i| i.listed).map(|i| i.node))
            }
            Ok(()) => {
                let is_listed = self.cache.insert_part(block, tokens, parent, None);
                Ok(self.cache.node(block).filter(|_| is_listed))
            }
        };
        if let Ok(Some(node)) = node {
            self.blocks.set_cached(block);
            if let Some(slot) = slot.filter(|&slot| self.cache.set_snapshot(block, slot)) {
                self.slots.set_cached(slot);
                self.counters.listed_snapshots += 1;
            }
            return Ok(Some(Restored { block, slot, node }));
        }
        self.blocks.release(block, self.clock);
        slot.into_iter().for_each(|slot| self.slots.release(slot, self.clock));
        node.map(|_| None)
    }

    /// Drops the references to blocks that were restored, given in the order of [`StateStore::cached`], which is that of their last use
    /// then.
    pub(crate) fn end_restore(&mut self, restored: &[Restored]) {
        for restored in restored.iter().rev() {
            self.clock += 1;
            self.blocks.release(restored.block, self.clock);
            restored.slot.into_iter().for_each(|slot| self.slots.release(slot, self.clock));
        }
    }
}
