//! Which cache blocks are free, which are used and by how many, and which only keep old contents for reuse.
//!
//! Every block is in exactly one state: free (nothing of value), in use (referenced by at least one sequence), or idle (referenced
//! by none but listed in the prefix cache). Idle blocks are taken when no free one is left, the longest unused first.

/// The states of all blocks.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<u32>,
    /// Ends of the list of idle blocks, the longest unused first.
    oldest: Option<u32>,
    newest: Option<u32>,
    n_idle: usize,
}

#[derive(Clone, Debug, Default)]
struct Block {
    refs: u32,
    cached: bool,
    /// Neighbours in the list of idle blocks.
    older: Option<u32>,
    newer: Option<u32>,
}

/// A block that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// Its number; it has one reference.
    pub(crate) block: u32,
    /// It was idle: the prefix cache must forget it.
    pub(crate) evicted: bool,
}

impl BlockPool {
    /// All of `n_blocks` blocks are free.
    pub(crate) fn new(n_blocks: usize) -> Self {
        Self {
            blocks: vec![Block::default(); n_blocks],
            // Popped from the end: low numbers first.
            free: (0..n_blocks as u32).rev().collect(),
            oldest: None,
            newest: None,
            n_idle: 0,
        }
    }

    /// All blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Blocks that hold nothing of value.
    pub(crate) fn n_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks that only the prefix cache knows.
    pub(crate) fn n_idle(&self) -> usize {
        self.n_idle
    }

    /// Blocks that can be handed out.
    pub(crate) fn n_available(&self) -> usize {
        self.free.len() + self.n_idle
    }

    /// Blocks that sequences reference.
    pub(crate) fn n_in_use(&self) -> usize {
        self.len() - self.n_available()
    }

    /// Whether a write to the block would be seen by others: another sequence or the prefix cache.
    pub(crate) fn is_shared(&self, block: u32) -> bool {
        let b = &self.blocks[block as usize];
        b.refs > 1 || b.cached
    }

    /// Hands out a block: a free one, or the one idle for longest.
    pub(crate) fn allocate(&mut self) -> Option<Allocated> {
        if let Some(block) = self.free.pop() {
            self.blocks[block as usize].refs = 1;
            return Some(Allocated { block, evicted: false });
        }
        let block = self.oldest?;
        self.unlink(block);
        let b = &mut self.blocks[block as usize];
        (b.refs, b.cached) = (1, false);
        Some(Allocated { block, evicted: true })
    }

    /// Adds a reference to a block that is in use or idle.
    pub(crate) fn retain(&mut self, block: u32) {
        let b = &self.blocks[block as usize];
        assert!(b.refs > 0 || b.cached, "block {block} is free and cannot be shared");
        if b.refs == 0 {
            self.unlink(block);
        }
        self.blocks[block as usize].refs += 1;
    }

    /// Drops a reference.
    pub(crate) fn release(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        assert!(b.refs > 0, "block {block} is released more often than it was taken");
        b.refs -= 1;
        match (b.refs, b.cached) {
            (0, true) => self.link_newest(block),
            (0, false) => self.free.push(block),
            _ => {}
        }
    }

    /// Notes that the prefix cache lists a block that is in use.
    pub(crate) fn set_cached(&mut self, block: u32) {
        let b = &mut self.blocks[block as usize];
        assert!(b.refs > 0, "block {block} is not in use");
        b.cached = true;
    }

    fn link_newest(&mut self, block: u32) {
        let older = self.newest.replace(block);
        let b = &mut self.blocks[block as usize];
        (b.older, b.newer) = (older, None);
        match older {
            Some(o) => self.blocks[o as usize].newer = Some(block),
            None => self.oldest = Some(block),
        }
        self.n_idle += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, .. } = self.blocks[block as usize];
        match older {
            Some(o) => self.blocks[o as usize].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(n) => self.blocks[n as usize].older = older,
            None => self.newest = older,
        }
        self.n_idle -= 1;
    }

    /// Says what is wrong if the states contradict each other or the references counted by the caller.
    pub(crate) fn check(&self, refs: &[u32]) -> Result<(), String> {
        let mut listed = vec![0u32; self.len()];
        self.free.iter().for_each(|&b| listed[b as usize] += 1);
        let (mut idle, mut at) = (0, self.oldest);
        while let Some(b) = at {
            listed[b as usize] += 1;
            idle += 1;
            if idle > self.len() {
                return Err("the list of idle blocks is circular".into());
            }
            at = self.blocks[b as usize].newer;
        }
        if idle != self.n_idle {
            return Err(format!(
                "{idle} blocks are in the list of idle ones but {} are counted",
                self.n_idle
            ));
        }
        for (i, b) in self.blocks.iter().enumerate() {
            if b.refs != refs[i] {
                return Err(format!("block {i} counts {} references but has {}", b.refs, refs[i]));
            }
            if listed[i] != u32::from(b.refs == 0) {
                return Err(format!("block {i} with {} references is in {} lists", b.refs, listed[i]));
            }
        }
        if let Some(&b) = self.free.iter().find(|&&b| self.blocks[b as usize].cached) {
            return Err(format!("block {b} is free but listed in the prefix cache"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_idle_for_longest_is_taken_when_none_is_free() {
        let mut pool = BlockPool::new(3);
        let blocks: Vec<u32> = (0..3).map(|_| pool.allocate().unwrap().block).collect();
        assert_eq!(pool.allocate(), None);
        blocks.iter().for_each(|&b| pool.set_cached(b));
        for i in [1, 0, 2] {
            pool.release(blocks[i]);
        }
        assert_eq!((pool.n_free(), pool.n_idle(), pool.n_in_use()), (0, 3, 0));
        pool.retain(blocks[1]);
        pool.release(blocks[1]); // used again: now the newest
        let order: Vec<u32> = (0..3).map(|_| pool.allocate().unwrap().block).collect();
        assert_eq!(order, [blocks[0], blocks[2], blocks[1]]);
        pool.check(&[1, 1, 1]).unwrap();
    }

    #[test]
    fn a_block_returns_with_its_last_reference() {
        let mut pool = BlockPool::new(1);
        let b = pool.allocate().unwrap().block;
        pool.retain(b);
        assert!(pool.is_shared(b));
        pool.release(b);
        assert!(!pool.is_shared(b));
        assert_eq!(pool.n_available(), 0);
        pool.release(b);
        assert_eq!(pool.n_free(), 1);
    }

    #[test]
    #[should_panic(expected = "released more often")]
    fn a_block_cannot_be_freed_twice() {
        let mut pool = BlockPool::new(1);
        let b = pool.allocate().unwrap().block;
        pool.release(b);
        pool.release(b);
    }
}
