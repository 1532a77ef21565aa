//! Every option of the engine, with its unit and default.

use crate::SavedCache;
use crate::speculative::SpeculationCosts;
use std::time::Duration;

/// Options of the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineConfig {
    /// Sequences that share a step at most; the runner's own limit also holds. Default 64.
    pub max_seqs: usize,
    /// Tokens of a step at most, those of prompts and of running sequences together; the runner's own limit also holds, and alone where
    /// this is `None`. It bounds how long a long prompt can delay the next token of others. Default `None`.
    pub step_tokens: Option<usize>,
    /// Sequences that may wait for their turn; further requests are refused. Default 1024.
    pub max_queue: usize,
    /// Keeps blocks of finished sequences for prompts that begin alike. Default true.
    pub prefix_cache: bool,
    /// Where the prefix cache is kept from one process to the next, if anywhere. Default `None`.
    pub saved_cache: Option<SavedCache>,
    /// How much waiting one step of a request's priority is worth. Default 10 s.
    pub priority_step: Duration,
    /// Launches a step before the results of the one before are read. `None`: if the runner computes in the background. Default
    /// `None`.
    pub overlap: Option<bool>,
    /// Whether requests that do not say otherwise are sped up by guesses, where the engine was started with a
    /// [`crate::speculative::Proposer`]. Default true.
    pub speculate: bool,
    /// Guesses per sequence and step at most. Default 8.
    pub max_drafts: usize,
    /// What guesses cost; `None` measures it when the engine starts. Default `None`.
    pub speculation_costs: Option<SpeculationCosts>,
    /// Events that a stream holds for its reader before its sequences pause. Default 256.
    pub stream_capacity: usize,
    /// How long a stream's reader may take nothing of a full stream before the request is cancelled. Default 30 s.
    pub stall_timeout: Duration,
    /// How long a step may wait for what the constraints of its sequences allow next; where sequences without constraints could run, an eighth
    /// of what steps take at most, or 50 µs. A sequence whose constraint takes longer waits alone, and the next step does not wait for it again. Default 5 ms.
    pub mask_patience: Duration,
    /// How long one step may take on the device before the engine counts as stuck; where faster steps were seen, less. Default 120 s.
    pub longest_step: Duration,
    /// How long all threads may be at one mask each before the engine counts as stuck. Default 30 s.
    pub longest_mask: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_seqs: 64,
            step_tokens: None,
            max_queue: 1024,
            prefix_cache: true,
            saved_cache: None,
            priority_step: Duration::from_secs(10),
            overlap: None,
            speculate: true,
            max_drafts: 8,
            speculation_costs: None,
            stream_capacity: 256,
            stall_timeout: Duration::from_secs(30),
            mask_patience: Duration::from_millis(5),
            longest_step: Duration::from_secs(120),
            longest_mask: Duration::from_secs(30),
        }
    }
}
