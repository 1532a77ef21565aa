//! Compiled formats by their text, least recently used first to go.

use realizar_structured::{Compiled, GrammarError};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

/// What compiling a text came to. A refusal is remembered too: the same text is refused again without any work.
pub(super) type Outcome = Result<Arc<Mutex<Compiled>>, GrammarError>;

/// Outcomes within a budget of bytes.
pub(super) struct Cache {
    budget: usize,
    n_bytes: usize,
    entries: HashMap<Arc<str>, Entry>,
    /// Keys by when they were last used.
    by_use: BTreeMap<u64, Arc<str>>,
    clock: u64,
}

struct Entry {
    outcome: Outcome,
    n_bytes: usize,
    used: u64,
}

impl Cache {
    /// An empty one. `budget`: bytes of all entries together.
    pub(super) fn new(budget: usize) -> Self {
        Self { budget, n_bytes: 0, entries: HashMap::new(), by_use: BTreeMap::new(), clock: 0 }
    }

    pub(super) fn get(&mut self, key: &str) -> Option<Outcome> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        if let Some(key) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.clock, key);
        }
        entry.used = self.clock;
        Some(entry.outcome.clone())
    }

    /// `n_bytes`: of the outcome, without the key. What alone exceeds the budget is not kept.
    pub(super) fn insert(&mut self, key: &str, outcome: Outcome, n_bytes: usize) {
        self.clock += 1;
        let n_bytes = n_bytes + 2 * key.len() + 256;
        self.remove(key);
        if n_bytes > self.budget {
            return;
        }
        let key: Arc<str> = key.into();
        self.by_use.insert(self.clock, key.clone());
        self.entries.insert(key, Entry { outcome, n_bytes, used: self.clock });
        self.n_bytes += n_bytes;
        while self.n_bytes > self.budget
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            if let Some(entry) = self.entries.remove(&oldest) {
                self.n_bytes -= entry.n_bytes;
            }
        }
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.n_bytes -= entry.n_bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(reason: &str) -> Outcome {
        Err(GrammarError::Regex { reason: reason.to_owned() })
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let mut cache = Cache::new(1000);
        cache.insert("a", refusal("a"), 100);
        cache.insert("b", refusal("b"), 100);
        assert!(cache.get("a").is_some());
        cache.insert("c", refusal("c"), 100);
        assert_eq!(["a", "b", "c"].map(|key| cache.get(key).is_some()), [true, false, true]);
        cache.insert("large", refusal("large"), 1000);
        assert!(cache.get("large").is_none() && cache.get("a").is_some());
    }

    #[test]
    fn a_key_counts_once() {
        let mut cache = Cache::new(1000);
        for _ in 0..10 {
            cache.insert("a", refusal("a"), 100);
        }
        assert_eq!((cache.entries.len(), cache.by_use.len(), cache.n_bytes), (1, 1, 358));
    }
}
