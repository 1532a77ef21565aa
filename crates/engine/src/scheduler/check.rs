//! The books of the scheduler, checked.

use super::Scheduler;

impl Scheduler {
    /// All full blocks that the prefix cache can find, each as the salt and the text up to its end, and whether a sequence with recurrent
    /// layers can go on after it. For tests.
    pub fn cached_texts(&self) -> Vec<(Option<u64>, Vec<u32>, bool)> {
        self.store.cached_texts()
    }

    /// Says what is wrong if the books do not balance. Takes time in proportion to the cache; for tests.
    pub fn check(&self) -> std::result::Result<(), String> {
        let block_size = self.info.block_size;
        for (id, seq) in &self.seqs {
            if seq.running != self.running.contains(&seq.turn)
                || seq.running == self.waiting.contains(&seq.turn)
            {
                return Err(format!("{id:?} is listed wrongly: running {}", seq.running));
            }
            let blocks = &seq.state.blocks;
            if !seq.running && !seq.state.is_empty() {
                return Err(format!("{id:?} waits and holds {:?}", seq.state));
            }
            if seq.n_computed > seq.n_launched || seq.n_launched > blocks.len() * block_size {
                let (c, l, b) = (seq.n_computed, seq.n_launched, blocks.len());
                return Err(format!("{id:?} has computed {c} of {l} positions in {b} blocks"));
            }
            for (i, &block) in blocks.iter().enumerate().take(seq.n_computed / block_size) {
                let tokens = &seq.tokens[i * block_size..(i + 1) * block_size];
                if self.store.contents(block).is_some_and(|cached| cached != tokens) {
                    return Err(format!("{id:?} has {tokens:?} in block {block}, unlike the cache"));
                }
            }
        }
        if self.running.len() + self.waiting.len() != self.seqs.len() {
            return Err(format!("{} sequences, {} running", self.seqs.len(), self.running.len()));
        }
        self.store.check(self.seqs.values().map(|s| &s.state))
    }
}
