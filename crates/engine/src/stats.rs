//! Counters, gauges and histograms of an engine: written by its thread, read by anyone at any time.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// A number that others may read while it changes.
#[derive(Debug, Default)]
pub struct Value(AtomicU64);

impl Value {
    /// Its value now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    pub(crate) fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }
}

/// What an engine has done and what it is doing.
#[derive(Debug, Default)]
pub struct Stats {
    /// Requests taken.
    pub requests: Value,
    /// Requests refused because too many waited.
    pub overloaded: Value,
    /// Continuations that ended with a stop token.
    pub finished_stop: Value,
    /// Continuations that ended with their length.
    pub finished_length: Value,
    /// Continuations that the caller cancelled, by a stop string or by going away.
    pub finished_cancelled: Value,
    /// Requests that ended with an error.
    pub finished_error: Value,
    /// Tokens of the prompts of finished continuations.
    pub prompt_tokens: Value,
    /// Tokens generated.
    pub generated_tokens: Value,
    /// Steps computed.
    pub steps: Value,
    /// Steps that failed.
    pub failed_steps: Value,
    /// Tokens computed, of prompts and of running sequences, those computed again included.
    pub computed_tokens: Value,
    /// Sequences whose blocks were taken before their end.
    pub preemptions: Value,
    /// Tokens of prompts found in the prefix cache.
    pub cache_hit_tokens: Value,
    /// Tokens of prompts not found there.
    pub cache_miss_tokens: Value,
    /// Cached blocks that were given up for new contents.
    pub cache_evictions: Value,
    /// Snapshots of recurrent state that were given up for new contents.
    pub snapshot_evictions: Value,
    /// Guessed tokens that were verified.
    pub drafted_tokens: Value,
    /// Of those, the ones that were right.
    pub accepted_tokens: Value,
    /// Now: sequences in steps.
    pub running: Value,
    /// Now: sequences that wait.
    pub waiting: Value,
    /// Now: requests whose reader does not keep up.
    pub paused: Value,
    /// Now: cache blocks that sequences use.
    pub blocks_in_use: Value,
    /// Now: cache blocks that only the prefix cache uses.
    pub blocks_cached: Value,
    /// Now: cache blocks without contents.
    pub blocks_free: Value,
    /// Now: slots of recurrent state that sequences use.
    pub slots_in_use: Value,
    /// Now: slots that hold snapshots for the prefix cache.
    pub slots_cached: Value,
    /// Now: slots without contents.
    pub slots_free: Value,
    /// Time from arrival to the first step.
    pub queue_time: Histogram,
    /// Time from arrival to the first token.
    pub first_token_time: Histogram,
    /// Time between two tokens of a continuation.
    pub inter_token_time: Histogram,
    /// Time from arrival to the end.
    pub total_time: Histogram,
    /// Time of a step, from its schedule to its commit.
    pub step_time: Histogram,
}

/// Upper ends of the buckets, in microseconds: 0.1 ms to 500 s, about three per factor of ten.
const BOUNDS_US: [u64; 21] = [
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
];

/// How often durations fell into ranges.
#[derive(Debug, Default)]
pub struct Histogram {
    /// One per bound, and one for what exceeds all.
    buckets: [AtomicU64; BOUNDS_US.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    pub(crate) fn record(&self, duration: Duration) {
        let us = duration.as_micros() as u64;
        self.buckets[BOUNDS_US.partition_point(|&b| b < us)].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// Per bucket: its upper end in seconds (infinity for the last) and how many durations were at most that; as Prometheus wants it.
    pub fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = BOUNDS_US.iter().map(|&us| us as f64 * 1e-6).chain([f64::INFINITY]);
        let mut sum = 0;
        let counts = self.buckets.iter().map(|b| {
            sum += b.load(Relaxed);
            sum
        });
        bounds.zip(counts).collect()
    }

    /// Durations recorded.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Relaxed)).sum()
    }

    /// Their sum.
    pub fn sum(&self) -> Duration {
        Duration::from_micros(self.sum_us.load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_in_its_bucket_and_all_above() {
        let h = Histogram::default();
        [0, 100, 101, 3_000_000, 600_000_000].iter().for_each(|&us| h.record(Duration::from_micros(us)));
        let cumulative = h.cumulative();
        assert_eq!(cumulative[0], (100.0 * 1e-6, 2));
        assert_eq!(cumulative[1].1, 3);
        assert_eq!(cumulative[14], (5.0, 4));
        assert_eq!(*cumulative.last().unwrap(), (f64::INFINITY, 5));
        assert_eq!((h.count(), h.sum()), (5, Duration::from_micros(603_000_201)));
    }
}
