//! Requests to batches: scheduling, sampling and text generation.
//!
//! - [`Engine::start`] puts a [`Runner`] (a model on a device) on a thread of its own; the [`Client`] submits [`Request`]s to it
//!   and gets a [`Stream`] of [`Event`]s for each.
//! - [`SavedCache`] keeps the prefix cache in a file from one process to the next.
//! - The scheduler (`scheduler`, with `sequence`, `state`, `pool`, `prefix_cache`, `cache_events`) decides what each step computes. It is plain data:
//!   no device, clock, thread or channel; time is an argument.
//! - [`speculative`] guesses how texts go on, so that one step can yield several tokens of a sequence.
//! - [`sampler`] turns a row of logits into a token.
//! - [`EncoderEngine`](encoder::EncoderEngine) does the same for a model that makes vectors or scores of texts.
//! - [`TextEngine`] puts tokenizer, chat template and stop strings around a client.
#![forbid(unsafe_code)]

pub mod background;
pub mod bench;
mod cache_events;
mod chooser;
mod chunk;
mod config;
pub mod encoder;
mod engine;
mod error;
mod generate;
pub mod imatrix;
pub mod load;
mod mask_pool;
mod model_runner;
pub mod perplexity;
mod pool;
mod prefix_cache;
mod pulse;
mod ranks;
mod request;
mod runner;
pub mod sampler;
mod saved_cache;
mod scheduler;
mod sequence;
mod state;

pub mod speculative;
mod stats;
mod stop_strings;
mod stream;

pub use cache_events::{CacheEvent, CachedKind, StoredBlocks};
pub use config::EngineConfig;
pub use engine::{Client, Engine, Health};
pub use error::{Error, Fault, Result, SampleError};
pub use generate::{Completion, TextEngine, TextEvent, TextParams, TextStream, TokenInfo};
pub use load::MemoryPlan;
pub use model_runner::ModelRunner;
pub use pulse::{Stuck, StuckPart};
pub use realizar_compute::sampling::{PARAMS, Param, SamplingOverrides, SamplingParams};
pub use request::{Constraint, Event, FinishReason, Request, Timings, TokenMask, Usage};
pub use runner::{
    BlockCopy, CacheFormat, Choice, Pass, Row, Runner, RunnerInfo, RunnerSizes, Sampled, SlotSizes, Step,
    Ticket,
};
pub use saved_cache::SavedCache;
pub use scheduler::{MaskDone, MaskJob, Scheduler, SchedulerCounters};
pub use sequence::SeqId;
pub use stats::{Histogram, Stats};
pub use stop_strings::StopStrings;
pub use stream::Stream;
