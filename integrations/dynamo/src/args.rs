//! The worker's arguments: Dynamo's own, and those of the engine.

use crate::engine::Options;
use clap::Parser;
use dynamo_backend_common::{CommonArgs, DisaggregationMode, WorkerConfig};
use realizar_engine::load::{CacheSize, Device, LoadOptions};
use std::path::PathBuf;
use std::time::Duration;

/// A worker for NVIDIA Dynamo that computes with realizar's engine.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Args {
    #[command(flatten)]
    common: CommonArgs,
    /// Folder with config.json, tokenizer.json and the chat template, which Dynamo's frontend reads, and with the weights.
    #[arg(long, value_name = "DIR")]
    model_path: PathBuf,
    /// GGUF file with the weights, instead of the folder's safetensors; its vocabulary must be the folder's.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Name by which clients ask for the model; by default the folder's.
    #[arg(long, value_name = "NAME")]
    served_model_name: Option<String>,
    /// Where it runs: auto, cpu, cuda, cuda:N or cuda:N,M.
    #[arg(long, default_value = "auto")]
    device: Device,
    /// GPUs that share the model.
    #[arg(long, value_name = "N", default_value_t = 1)]
    tp: usize,
    /// Longest sequence of prompt and answer, in tokens; by default the model's own, or less where memory is short.
    #[arg(long, value_name = "N")]
    ctx: Option<usize>,
    /// Memory for keys and values, in MiB; by default enough for --max-seqs whole sequences, but at most nine tenths of what is left
    /// of a GPU's memory, or 1024 on the CPU unless one sequence needs more.
    #[arg(long, value_name = "MIB")]
    kv_memory: Option<usize>,
    /// Tokens in a block of keys and values.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    block_size: u32,
    /// Sequences that are computed at the same time [default: 64 on the CPU, 256 on a GPU].
    #[arg(long, value_name = "N")]
    max_seqs: Option<usize>,
    /// Tokens of a step at most [default: 512 on the CPU, 2048 on a GPU].
    #[arg(long, value_name = "N")]
    step_tokens: Option<usize>,
    /// Sequences that may wait; further requests are refused.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_queue: usize,
    /// Threads on the CPU; by default as many as it has cores.
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// How long a worker that is told to end may finish its answers; DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT must be longer.
    #[arg(long, value_name = "SECONDS", default_value_t = 25)]
    drain_seconds: u64,
}

impl Args {
    /// The engine's options and Dynamo's.
    ///
    /// Errors: what this worker cannot be, in words.
    pub fn into_options(self) -> anyhow::Result<(Options, WorkerConfig)> {
        let common = self.common;
        if common.disaggregation_mode != DisaggregationMode::Aggregated {
            anyhow::bail!(
                "this worker computes prompts and answers itself: --disaggregation-mode must be agg"
            );
        }
        if !self.model_path.join("config.json").is_file() {
            anyhow::bail!("{} is not a folder with a config.json", self.model_path.display());
        }
        let name =
            self.model_path.canonicalize()?.file_name().map(|name| name.to_string_lossy().into_owned());
        let served_name = self.served_model_name.or(name);
        let options = Options {
            weights: self.weights.unwrap_or_else(|| self.model_path.clone()),
            model: self.model_path.display().to_string(),
            load: LoadOptions {
                device: self.device,
                tp: self.tp,
                n_ctx: self.ctx,
                cache: CacheSize::AllSequences,
                kv_memory: self.kv_memory.map(|mib| mib << 20),
                block_size: self.block_size as usize,
                step_tokens: self.step_tokens,
                max_seqs: self.max_seqs,
                n_threads: self.threads,
                ..LoadOptions::default()
            },
            max_queue: self.max_queue,
            drain: Duration::from_secs(self.drain_seconds),
        };
        let config = WorkerConfig {
            namespace: common.namespace,
            component: common.component,
            endpoint: common.endpoint,
            model_name: options.model.clone(),
            served_model_name: served_name,
            endpoint_types: common.endpoint_types,
            custom_jinja_template: common.custom_jinja_template,
            tool_call_parser: common.dyn_tool_call_parser,
            reasoning_parser: common.dyn_reasoning_parser,
            exclude_tools_when_tool_choice_none: common.exclude_tools_when_tool_choice_none,
            route_to_encoder: common.route_to_encoder,
            enable_rl: common.enable_rl,
            runtime: common.runtime,
            ..WorkerConfig::default()
        };
        Ok((options, config))
    }
}
