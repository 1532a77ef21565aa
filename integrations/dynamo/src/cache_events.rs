//! What enters and leaves the prefix cache, as Dynamo's router wants it.
//!
//! The router finds blocks by hashes of its own over their tokens; the engine's hashes only name them. Of models with recurrent layers
//! it is told the keys and values, not the states, which it has no notion of: it may expect more of a prefix than can be used.

use dynamo_backend_common::KvEventPublisher;
use dynamo_kv_hashing::compute_salt_hash;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash,
};
use dynamo_tokens::compute_block_hash_for_tokens;
use realizar_engine::{CacheEvent, CachedKind, Client, StoredBlocks};
use std::sync::Arc;

/// Publishes what the cache holds, and from now on what changes.
pub(crate) fn publish(client: &Client, publisher: Arc<KvEventPublisher>) {
    let block_size = client.info().block_size;
    client.record_cache(move |events| {
        let events = events.into_iter().filter_map(|event| data(event, block_size));
        let numbered = |data| KvCacheEvent { event_id: publisher.next_event_id(), data, dp_rank: 0 };
        // Nobody listens once the worker has ended.
        drop(publisher.publish_batch(events.map(numbered).collect()));
    });
}

fn data(event: CacheEvent, block_size: usize) -> Option<KvCacheEventData> {
    match event {
        CacheEvent::Stored(StoredBlocks { kind: CachedKind::State, .. }) => None,
        CacheEvent::Removed { kind: CachedKind::State, .. } => None,
        CacheEvent::Stored(stored) => Some(KvCacheEventData::Stored(store(&stored, block_size))),
        CacheEvent::Removed { kind: CachedKind::KeysValues, hashes } => {
            let block_hashes = hashes.into_iter().map(ExternalSequenceBlockHash).collect();
            Some(KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
        }
        CacheEvent::Cleared => Some(KvCacheEventData::Cleared),
    }
}

fn store(stored: &StoredBlocks, block_size: usize) -> KvCacheStoreData {
    // A request's salt is the seed of its namespace already.
    let seed = stored.salt.unwrap_or_else(|| compute_salt_hash(None, None).expect("nothing can be hashed"));
    let block = |(hash, tokens): (&u64, &[u32])| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(*hash),
        tokens_hash: LocalBlockHash(compute_block_hash_for_tokens(tokens, seed)),
        mm_extra_info: None,
    };
    KvCacheStoreData {
        parent_hash: stored.parent.map(ExternalSequenceBlockHash),
        start_position: None,
        blocks: stored.hashes.iter().zip(stored.tokens.chunks(block_size)).map(block).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynamo_kv_router::protocols::{BlockHashOptions, compute_block_hash_for_seq};

    #[test]
    fn the_router_finds_blocks_by_its_own_hashes() {
        let tokens: Vec<u32> = (5..13).collect();
        for namespace in [None, Some("tenant")] {
            let salt = namespace.map(|name| compute_salt_hash(Some(name), None).expect("a salt"));
            let (hashes, kind) = (vec![70, 71], CachedKind::KeysValues);
            let stored = StoredBlocks { kind, hashes, parent: Some(69), tokens: tokens.clone(), salt };
            let Some(KvCacheEventData::Stored(data)) = data(CacheEvent::Stored(stored), 4) else {
                panic!("keys and values are reported");
            };
            let options = BlockHashOptions { cache_namespace: namespace, ..BlockHashOptions::default() };
            let expected = compute_block_hash_for_seq(&tokens, 4, options);
            assert_eq!(data.blocks.iter().map(|block| block.tokens_hash).collect::<Vec<_>>(), expected);
            assert_eq!(data.blocks.iter().map(|block| block.block_hash.0).collect::<Vec<_>>(), [70, 71]);
            assert_eq!(data.parent_hash, Some(ExternalSequenceBlockHash(69)));
        }
    }

    #[test]
    fn states_are_not_reported() {
        let removed = |kind| data(CacheEvent::Removed { kind, hashes: vec![1] }, 4);
        assert_eq!(removed(CachedKind::State), None);
        assert!(matches!(removed(CachedKind::KeysValues), Some(KvCacheEventData::Removed(_))));
    }
}
