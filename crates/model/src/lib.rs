//! Model files, tokenizers, chat templates and the forward pass.
#![deny(unsafe_code)]

pub mod arch;
pub mod chat_template;
mod config;
mod contract;
pub mod convert;
mod decoder;
mod error;
mod fingerprint;
pub mod gguf;
pub mod hyper;
pub mod imatrix;
mod kv_cache;
mod latent;
pub mod metadata;
mod mmap;
pub mod names;
mod per_layer_input;
pub mod quant_mix;
pub mod quantize;
mod recurrent;
mod rope;
mod safetensors;
mod sampling_hints;
mod shard;
pub mod source;
pub mod synth;
pub mod tokenizer;
pub mod values;
mod weight_memory;
mod weights;
mod workspace;

pub use config::{
    Attention, Dense, Encoder, EncoderOutput, Experts, Ffn, GatedDelta, HeadFunction, HeadLayer, KvSource,
    Latent, LayerConfig, LayerNorms, Mamba2, Mixer, ModelConfig, PerLayerInput, Presence, QkNorm,
    RecurrentState, SharedExpert, ShortConv, Tied,
};
pub use contract::check;
pub use decoder::{Decoder, DraftFrom, WeightBytes};

pub use error::{Error, Result};
pub use fingerprint::fingerprint;
pub use kv_cache::{CacheSizes, CacheUnit, KvCache, StateSpec};
pub use names::Split;
pub use rope::{RopeConfig, RopeScaling};
pub use sampling_hints::{SamplingDefaults, sampling_defaults, sampling_hints};
pub use shard::{BlockShard, Join, Shard};
pub use weight_memory::weight_memory;
pub use workspace::{Workspace, workspace_bytes};
