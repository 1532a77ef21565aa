//! How full the cache is, for Dynamo's router and its metrics.

use dynamo_backend_common::{ComponentSnapshot, SnapshotPublisher};
use realizar_engine::{Client, Health};
use std::sync::Arc;
use std::time::Duration;

/// Between two looks at the engine's gauges.
const INTERVAL: Duration = Duration::from_millis(200);

/// Publishes what has changed, until the engine has ended.
pub(crate) async fn publish(client: Client, publisher: Arc<SnapshotPublisher>) {
    let (mut last, mut counted) = (None, Counted::default());
    while matches!(client.health(), Health::Ready | Health::Draining) {
        let snapshot = snapshot(&client, &mut counted);
        if last.replace(snapshot) != Some(snapshot) {
            publisher.publish(0, snapshot);
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Tokens of prompts, as of the last snapshot.
#[derive(Default)]
struct Counted {
    hit: u64,
    missed: u64,
}

fn snapshot(client: &Client, counted: &mut Counted) -> ComponentSnapshot {
    let (stats, total) = (client.stats(), client.info().n_blocks);
    let used = stats.blocks_in_use.get();
    let now = Counted { hit: stats.cache_hit_tokens.get(), missed: stats.cache_miss_tokens.get() };
    let (hit, missed) = (now.hit - counted.hit, now.missed - counted.missed);
    *counted = now;
    ComponentSnapshot {
        kv_used_blocks: used,
        kv_total_blocks: total as u64,
        gpu_cache_usage: used as f32 / total.max(1) as f32,
        kv_cache_hit_rate: (hit + missed > 0).then(|| hit as f32 / (hit + missed) as f32),
        dp_rank: 0,
    }
}
