//! Requests to batches: scheduling, sampling and text generation.
#![forbid(unsafe_code)]
