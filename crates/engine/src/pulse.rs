//! What the engine's thread is at and since when, so that others can tell a thread that works from one that is stuck.
//!
//! Work on the host takes milliseconds, so some seconds of it mean that it is stuck. A step on the device may take long where the
//! device is slow and the step large; it is measured by the steps before it: their slowest time per token, times the step's tokens,
//! times a wide margin.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How long the host may work between two steps.
const HOST: Duration = Duration::from_secs(5);
/// How long any step may take.
const SHORTEST_STEP: Duration = Duration::from_secs(10);
/// How many times slower than any before a step may be.
const MARGIN: u64 = 20;

const IDLE: u64 = 0;
const HOST_WORK: u64 = 1;
const DEVICE_WORK: u64 = 2;

/// Written by the engine's thread, read by others.
pub(crate) struct Pulse {
    start: Instant,
    /// How long any step may take before one was measured, and at most.
    longest_step: Duration,
    phase: AtomicU64,
    since_us: AtomicU64,
    /// Tokens of the step on the device.
    n_tokens: AtomicU64,
    /// Of the slowest step so far.
    us_per_token: AtomicU64,
}

/// A part of an engine that does not get on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which.
    pub part: StuckPart,
    /// For how long.
    pub since: Duration,
}

/// Parts of an engine that can be stuck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StuckPart {
    /// The engine's thread, between two steps.
    Host,
    /// The device, in one step.
    Device,
    /// The threads that compute what constraints allow next.
    Masks,
}

impl Pulse {
    pub(crate) fn new(longest_step: Duration) -> Self {
        Self {
            start: Instant::now(),
            longest_step,
            phase: AtomicU64::new(IDLE),
            since_us: AtomicU64::new(0),
            n_tokens: AtomicU64::new(0),
            us_per_token: AtomicU64::new(0),
        }
    }

    /// The thread waits for something to do.
    pub(crate) fn idle(&self) {
        self.enter(IDLE, self.now_us());
    }

    /// The thread works on the host.
    pub(crate) fn host(&self) {
        self.enter(HOST_WORK, self.now_us());
    }

    /// The thread waits for a step of so many tokens; 0 if that is not known.
    pub(crate) fn device(&self, n_tokens: usize) {
        self.n_tokens.store(n_tokens as u64, Relaxed);
        self.enter(DEVICE_WORK, self.now_us());
    }

    /// A thread that has been at one thing for too long.
    pub(crate) fn stuck(&self) -> Option<Stuck> {
        self.stuck_at(self.now_us())
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    fn enter(&self, phase: u64, now_us: u64) {
        let n_tokens = self.n_tokens.load(Relaxed);
        if self.phase.load(Relaxed) == DEVICE_WORK && n_tokens > 0 {
            let taken = now_us.saturating_sub(self.since_us.load(Relaxed));
            self.us_per_token.fetch_max(taken / n_tokens, Relaxed);
        }
        self.since_us.store(now_us, Relaxed);
        self.phase.store(phase, Relaxed);
    }

    fn stuck_at(&self, now_us: u64) -> Option<Stuck> {
        let since = Duration::from_micros(now_us.saturating_sub(self.since_us.load(Relaxed)));
        let (part, limit) = match self.phase.load(Relaxed) {
            HOST_WORK => (StuckPart::Host, HOST),
            DEVICE_WORK => (StuckPart::Device, self.step_limit()),
            _ => return None,
        };
        (since > limit).then_some(Stuck { part, since })
    }

    fn step_limit(&self) -> Duration {
        let expected = self.us_per_token.load(Relaxed).saturating_mul(self.n_tokens.load(Relaxed));
        match expected {
            0 => self.longest_step,
            us => Duration::from_micros(us.saturating_mul(MARGIN)).max(SHORTEST_STEP).min(self.longest_step),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn pulse() -> Pulse {
        Pulse::new(Duration::from_secs(120))
    }

    #[test]
    fn a_thread_without_work_is_never_stuck() {
        let pulse = pulse();
        pulse.enter(IDLE, SECOND);
        assert_eq!(pulse.stuck_at(1_000_000 * SECOND), None);
    }

    #[test]
    fn work_between_steps_is_stuck_after_seconds() {
        let pulse = pulse();
        pulse.enter(HOST_WORK, SECOND);
        assert_eq!(pulse.stuck_at(5 * SECOND), None);
        let since = Duration::from_secs(7);
        assert_eq!(pulse.stuck_at(8 * SECOND), Some(Stuck { part: StuckPart::Host, since }));
    }

    #[test]
    fn a_step_is_measured_by_those_before_it() {
        let first = pulse();
        first.n_tokens.store(512, Relaxed);
        first.enter(DEVICE_WORK, 0);
        assert_eq!(first.stuck_at(100 * SECOND), None, "nothing is known of the first");
        let pulse = pulse();
        let step = |n_tokens: u64, from: u64, to: u64| {
            pulse.n_tokens.store(n_tokens, Relaxed);
            pulse.enter(DEVICE_WORK, from);
            let alive = pulse.stuck_at(to).is_none();
            pulse.enter(HOST_WORK, to);
            alive
        };
        assert!(step(1, 0, SECOND / 100));
        assert!(step(1, SECOND, 10 * SECOND));
        assert_eq!(pulse.us_per_token.load(Relaxed), 9 * SECOND);
        // A prompt of 100 tokens may take its share, up to the longest of all steps.
        assert!(step(100, 20 * SECOND, 130 * SECOND));
        assert!(!step(100, 200 * SECOND, 330 * SECOND));
    }

    #[test]
    fn a_fast_device_is_stuck_after_seconds() {
        let pulse = pulse();
        pulse.n_tokens.store(1, Relaxed);
        pulse.enter(DEVICE_WORK, 0);
        pulse.enter(HOST_WORK, 5_000);
        pulse.enter(DEVICE_WORK, SECOND);
        assert_eq!(pulse.stuck_at(10 * SECOND), None);
        assert!(pulse.stuck_at(12 * SECOND).is_some());
    }
}
