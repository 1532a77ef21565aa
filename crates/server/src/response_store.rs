//! Responses that later requests may go on after, in memory: up to a bound, the least recently used go first.

use crate::auth::Caller;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// A response, and the conversation that it ended.
#[derive(Debug)]
pub(crate) struct Stored {
    /// As it was sent.
    pub(crate) response: Value,
    /// The conversation with the answer, in the form of chat templates, without the request's instructions.
    pub(crate) messages: Vec<Value>,
}

/// The responses of all clients. A client sees those that were made with its key.
#[derive(Debug)]
pub(crate) struct ResponseStore {
    /// Bytes at most.
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// By the key's number and the response's id.
    entries: HashMap<(Option<usize>, String), Entry>,
    /// The entries by their last use, the least recent first.
    order: BTreeMap<u64, (Option<usize>, String)>,
    /// Counts uses.
    clock: u64,
    n_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    stored: Arc<Stored>,
    n_bytes: usize,
    used: u64,
}

impl ResponseStore {
    /// `limit`: bytes of JSON at most; with 0 nothing is stored.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, kept: Mutex::default() }
    }

    /// Bytes at most.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Keeps a response; one beyond the bound is not kept at all.
    pub(crate) fn put(&self, caller: Caller, id: &str, stored: Stored) {
        let sizes = stored.messages.iter().chain([&stored.response]).map(|value| value.to_string().len());
        let n_bytes = sizes.sum::<usize>() + id.len();
        if n_bytes > self.limit {
            tracing::debug!(id, n_bytes, "a response is too large to be stored");
            return;
        }
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (caller.key, id.to_owned());
        kept.remove(&key);
        while kept.n_bytes + n_bytes > self.limit {
            let Some((_, oldest)) = kept.order.pop_first() else { break };
            kept.remove(&oldest);
        }
        kept.clock += 1;
        kept.order.insert(kept.clock, key.clone());
        kept.n_bytes += n_bytes;
        kept.entries.insert(key, Entry { stored: Arc::new(stored), n_bytes, used: kept.clock });
    }

    /// The response of this id, if it is still there.
    pub(crate) fn get(&self, caller: Caller, id: &str) -> Option<Arc<Stored>> {
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (caller.key, id.to_owned());
        let entry = kept.entries.get_mut(&key)?;
        kept.order.remove(&entry.used);
        kept.clock += 1;
        entry.used = kept.clock;
        kept.order.insert(kept.clock, key);
        Some(entry.stored.clone())
    }

    /// Forgets a response; whether it was there.
    pub(crate) fn delete(&self, caller: Caller, id: &str) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(&(caller.key, id.to_owned()))
    }
}

impl Kept {
    fn remove(&mut self, key: &(Option<usize>, String)) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.order.remove(&entry.used);
        self.n_bytes -= entry.n_bytes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(text: &str) -> Stored {
        Stored { response: text.into(), messages: Vec::new() }
    }

    #[test]
    fn the_least_recently_used_go_first_and_the_bound_holds() {
        let (store, me) = (ResponseStore::new(100), Caller { key: None });
        let text = "a".repeat(28); // 30 bytes of JSON, and 1 of the id.
        for id in ["a", "b", "c"] {
            store.put(me, id, stored(&text));
        }
        assert!(store.get(me, "a").is_some());
        store.put(me, "d", stored(&text));
        let there = |id: &str| store.get(me, id).is_some();
        assert_eq!(["a", "b", "c", "d"].map(there), [true, false, true, true]);
        store.put(me, "e", stored(&"a".repeat(100)));
        assert_eq!(["a", "c", "d", "e"].map(there), [true, true, true, false]);
        store.put(me, "a", stored("shorter"));
        assert!(store.delete(me, "c") && !store.delete(me, "c"));
        let kept = store.kept.lock().expect("not poisoned");
        assert_eq!((kept.n_bytes, kept.entries.len(), kept.order.len()), (10 + 31, 2, 2));
    }

    #[test]
    fn responses_belong_to_the_key_that_made_them() {
        let store = ResponseStore::new(1000);
        let (one, two) = (Caller { key: Some(0) }, Caller { key: Some(1) });
        store.put(one, "a", stored("mine"));
        assert!(store.get(two, "a").is_none() && !store.delete(two, "a"));
        assert_eq!(store.get(one, "a").expect("stored").response, "mine");
    }
}
