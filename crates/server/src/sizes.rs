//! How long prompts and answers are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Lengths of what was finished.
#[derive(Debug, Default)]
pub(crate) struct Sizes {
    /// Of prompts, each once per continuation.
    pub(crate) prompt: SizeHistogram,
    /// Of continuations.
    pub(crate) generated: SizeHistogram,
}

/// Upper ends of the buckets: 2^0 to 2^17 tokens.
const N_BOUNDS: usize = 18;

/// How often numbers of tokens fell into ranges.
#[derive(Debug, Default)]
pub(crate) struct SizeHistogram {
    /// One per bound, and one for what exceeds all.
    buckets: [AtomicU64; N_BOUNDS + 1],
    sum: AtomicU64,
}

impl SizeHistogram {
    pub(crate) fn record(&self, n: usize) {
        let at = (0..N_BOUNDS).find(|&i| n <= 1 << i).unwrap_or(N_BOUNDS);
        self.buckets[at].fetch_add(1, Relaxed);
        self.sum.fetch_add(n as u64, Relaxed);
    }

    /// Per bucket: its upper end (infinity for the last) and how many numbers were at most that.
    pub(crate) fn cumulative(&self) -> Vec<(f64, u64)> {
        let bounds = (0..N_BOUNDS).map(|i| (1u64 << i) as f64).chain([f64::INFINITY]);
        let mut sum = 0;
        bounds
            .zip(&self.buckets)
            .map(|(bound, bucket)| {
                sum += bucket.load(Relaxed);
                (bound, sum)
            })
            .collect()
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_counts_in_its_bucket_and_all_above() {
        let h = SizeHistogram::default();
        [0, 1, 2, 3, 1 << 17, (1 << 17) + 1].iter().for_each(|&n| h.record(n));
        let cumulative = h.cumulative();
        assert_eq!(cumulative[..3], [(1.0, 2), (2.0, 3), (4.0, 4)]);
        assert_eq!(cumulative[17..], [(131_072.0, 5), (f64::INFINITY, 6)]);
        assert_eq!(h.sum(), 6 + (2 << 17) + 1);
    }
}
