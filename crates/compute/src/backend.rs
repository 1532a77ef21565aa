//! All that a model's decoder wants of a device.

use crate::{Blocks, Capture};

/// A device that can run a transformer: [`Ops`](crate::Ops) and [`Blocks`] made of them, [`Collectives`](crate::Collectives) of the
/// devices that share a model, recorded steps, and a profiler.
pub trait Backend: Blocks + Capture {}

impl<T: Blocks + Capture> Backend for T {}
