//! Summaries of many measurements.

use serde::{Deserialize, Serialize};

/// Mean, percentiles and largest of a set of values, in their unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    pub(super) n: usize,
    pub(super) mean: f64,
    pub(super) p50: f64,
    pub(super) p90: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
}

impl Summary {
    /// `None` of no values.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let q = |p| quantile(&values, p);
        Some(Self {
            n: values.len(),
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: q(0.5)?,
            p90: q(0.9)?,
            p95: q(0.95)?,
            p99: q(0.99)?,
            max: q(1.0)?,
        })
    }
}

/// The value at share `p` (0 to 1) of sorted values, linear between the two nearest; `None` of no values.
///
/// Source: Hyndman and Fan (1996), definition 7, which is also NumPy's default.
pub(super) fn quantile(sorted: &[f64], p: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let place = p.clamp(0.0, 1.0) * last as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    Some(below + (above - below) * place.fract())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_their_neighbours() {
        // numpy.quantile([1, 2, 3, 4, 10], [0, .5, .9, .95, .99, 1])
        let values = [1.0, 2.0, 3.0, 4.0, 10.0];
        for (p, expected) in [(0.0, 1.0), (0.5, 3.0), (0.9, 7.6), (0.95, 8.8), (0.99, 9.76), (1.0, 10.0)] {
            assert!((quantile(&values, p).expect("values") - expected).abs() < 1e-12, "{p}");
        }
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn a_summary_does_not_depend_on_the_order() {
        let summary = Summary::of(vec![10.0, 1.0, 3.0, 2.0, 4.0]).expect("values");
        assert_eq!((summary.n, summary.mean, summary.p50, summary.max), (5, 4.0, 3.0, 10.0));
        assert_eq!(Summary::of(vec![]), None);
    }
}
