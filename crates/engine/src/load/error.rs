//! Why a model could not be loaded.

use super::memory_plan::{MemoryPlan, mib};
use super::options::Device;
use realizar_compute::DType;

/// Why a model could not be brought to its device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file, its weights, or the device's memory.
    #[error(transparent)]
    Model(#[from] realizar_model::Error),
    /// The device is not there or cannot run this model.
    #[error("could not use device {device}: {reason}")]
    Device {
        /// As it was asked for.
        device: Device,
        /// Why not.
        reason: String,
        /// Whether there is no such device at all.
        absent: bool,
    },
    /// The device's memory does not hold the model.
    #[error(
        "the model does not fit: {plan} ({context} tokens in {kv_type}), {} in all, and {} are free: {} are missing; {remedy}",
        mib(plan.total()), mib(*free), mib(plan.total() - free)
    )]
    Memory {
        /// Longest sequence, in tokens.
        context: usize,
        /// Element type of the cache.
        kv_type: DType,
        /// What it would take.
        plan: MemoryPlan,
        /// What is free on the device, in bytes.
        free: usize,
        /// What would fit.
        remedy: String,
    },
    /// A model that makes no text.
    #[error("the model makes vectors or scores of texts ({arch}) and no text: use `realizar embed`")]
    Encoder {
        /// Its architecture.
        arch: &'static str,
    },
    /// A model that makes text.
    #[error(
        "the model ({arch}) makes text, and no vectors or scores of texts: its files do not say how to pool (of a Qwen3-Reranker, \
         --reranker makes a reranker)"
    )]
    NotAnEncoder {
        /// Its architecture.
        arch: &'static str,
    },
    /// A draft model whose tokens are not those of the model.
    #[error("token {id} is {draft:?} there and {model:?} in the model: they need the same vocabulary")]
    Vocabulary {
        /// The first token that differs.
        id: u32,
        /// Its text in the draft model.
        draft: String,
        /// Its text in the model.
        model: String,
    },
    /// An option contradicts the model.
    #[error("{option} of {value} cannot be: {reason}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What was given.
        value: String,
        /// Why not.
        reason: String,
    },
}
