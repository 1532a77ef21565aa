//! Events as vLLM encodes them: a batch is an array in msgpack of its time, its events, each a map with its `type`, and the rank.

use realizar_engine::{CacheEvent, CachedKind};
use serde::Serialize;
use std::time::SystemTime;

#[derive(Serialize)]
#[serde(tag = "type")]
enum Event<'a> {
    BlockStored {
        block_hashes: &'a [u64],
        parent_block_hash: Option<u64>,
        token_ids: &'a [u32],
        block_size: usize,
        lora_id: Option<u64>,
        medium: &'a str,
        lora_name: Option<&'a str>,
        /// Per block what its hash depends on besides tokens: the salt, for the first block of a text.
        #[serde(skip_serializing_if = "Option::is_none")]
        extra_keys: Option<Vec<Option<[String; 1]>>>,
        group_idx: u32,
        kv_cache_spec_kind: &'a str,
    },
    BlockRemoved {
        block_hashes: &'a [u64],
        medium: &'a str,
        group_idx: u32,
    },
    AllBlocksCleared {},
}

/// vLLM's name of an engine's own cache, wherever that is.
const MEDIUM: &str = "GPU";

/// Events of a batch at most; vLLM's router refuses batches of more than 4,096.
const MAX_EVENTS: usize = 1024;

/// Events that happened now, in as many batches as they take.
pub(super) fn batches(events: &[CacheEvent], block_size: usize) -> impl Iterator<Item = Vec<u8>> {
    events.chunks(MAX_EVENTS).map(move |events| {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let events: Vec<Event<'_>> = events.iter().map(|event| encode(event, block_size)).collect();
        // Seconds, events, and the rank among servers that share their requests, which is the router's matter here.
        let batch = (since_1970.as_secs_f64(), events, 0);
        rmp_serde::to_vec_named(&batch).expect("numbers and texts can be encoded")
    })
}

fn encode(event: &CacheEvent, block_size: usize) -> Event<'_> {
    match event {
        CacheEvent::Stored(stored) => Event::BlockStored {
            block_hashes: &stored.hashes,
            parent_block_hash: stored.parent,
            token_ids: &stored.tokens,
            block_size,
            lora_id: None,
            medium: MEDIUM,
            lora_name: None,
            extra_keys: stored.salt.map(|salt| {
                let is_first = |i| i == 0 && stored.parent.is_none();
                (0..stored.hashes.len()).map(|i| is_first(i).then(|| [format!("{salt:016x}")])).collect()
            }),
            group_idx: group(stored.kind).0,
            kv_cache_spec_kind: group(stored.kind).1,
        },
        CacheEvent::Removed { kind, hashes } => {
            Event::BlockRemoved { block_hashes: hashes, medium: MEDIUM, group_idx: group(*kind).0 }
        }
        CacheEvent::Cleared => Event::AllBlocksCleared {},
    }
}

/// The number and kind of the group of layers that keep this of a block, as vLLM names them.
fn group(kind: CachedKind) -> (u32, &'static str) {
    match kind {
        CachedKind::KeysValues => (0, "full_attention"),
        CachedKind::State => (1, "mamba"),
    }
}
