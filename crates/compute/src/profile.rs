//! Time per part of the forward pass, for whoever asks for it.

use crate::{Device, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Names the parts of the forward pass for a profiler.
pub trait Profile: Device {
    /// Records times of operations where it is on; `None` for a backend that nobody profiles.
    fn profiler(&self) -> Option<&Profiler> {
        None
    }

    /// Runs a part of the forward pass under a name for the profiler. While that is on, the device finishes each part before the next.
    fn timed<T>(&self, name: &'static str, f: impl FnOnce() -> Result<T>) -> Result<T> {
        match self.profiler().filter(|p| p.is_on()) {
            None => f(),
            Some(profiler) => {
                self.synchronize()?;
                profiler.time(name, || {
                    let result = f()?;
                    self.synchronize()?;
                    Ok(result)
                })
            }
        }
    }
}

/// One run of a part of the forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTime {
    /// Which part of the forward pass it is.
    pub op: &'static str,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub duration: Duration,
}

/// Records times while it is on. Off, it costs one load of a flag per part.
#[derive(Debug, Default)]
pub struct Profiler {
    on: AtomicBool,
    times: Mutex<Vec<OpTime>>,
}

impl Profiler {
    /// Starts to record, or stops and forgets.
    pub fn set(&self, on: bool) {
        self.times.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.on.store(on, Ordering::Relaxed);
    }

    /// Whether it records.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// What was recorded since it was last asked, in the order of ends.
    pub fn take(&self) -> Vec<OpTime> {
        std::mem::take(&mut *self.times.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Runs `f`, and records its time if that was asked for.
    pub fn time<T>(&self, op: &'static str, f: impl FnOnce() -> T) -> T {
        if !self.is_on() {
            return f();
        }
        let start = Instant::now();
        let result = f();
        let time = OpTime { op, start, duration: start.elapsed() };
        self.times.lock().unwrap_or_else(PoisonError::into_inner).push(time);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_runs_while_it_is_on_is_recorded() {
        let profiler = Profiler::default();
        assert_eq!(profiler.time("norm", || 1), 1);
        assert!(profiler.take().is_empty());
        profiler.set(true);
        profiler.time("matmul", || ());
        profiler.time("add", || ());
        let times = profiler.take();
        assert_eq!(times.iter().map(|t| t.op).collect::<Vec<_>>(), ["matmul", "add"]);
        assert!(times[0].start + times[0].duration <= times[1].start);
        assert!(profiler.take().is_empty());
        profiler.set(false);
        profiler.time("add", || ());
        assert!(profiler.take().is_empty());
    }
}
