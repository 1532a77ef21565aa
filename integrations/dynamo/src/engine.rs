//! The engine as Dynamo drives it: start, requests, events and load for the router, end.

use crate::error::{from_engine, internal, invalid, shut_down};
use crate::guided::Guide;
use crate::{answer, cache_events, load, request};
use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput, LlmRegistration,
    MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use futures::stream::BoxStream;
use realizar_engine::load::{LoadOptions, load as load_model};
use realizar_engine::{Client, Engine, SamplingParams};
use realizar_model::sampling_hints;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Options of the worker's engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// GGUF file, or folder with safetensors.
    pub weights: PathBuf,
    /// The model's name in Dynamo's registry.
    pub model: String,
    /// How the model is loaded.
    pub load: LoadOptions,
    /// Sequences that may wait; further requests are refused.
    pub max_queue: usize,
    /// How long answers may take to finish once the worker is told to end.
    pub drain: Duration,
}

/// realizar's engine as a Dynamo worker.
pub struct RealizarEngine {
    options: Options,
    running: OnceLock<Running>,
}

/// The engine and what its requests need.
struct Running {
    client: Client,
    /// How tokens are chosen where a request does not say: as the model's files recommend.
    sampling: SamplingParams,
    guide: Guide,
}

impl RealizarEngine {
    /// An engine that is not started.
    pub fn new(options: Options) -> Self {
        Self { options, running: OnceLock::new() }
    }

    fn running(&self) -> Result<&Running, DynamoError> {
        self.running.get().ok_or_else(|| shut_down("the engine is not started"))
    }
}

/// Loads the model and starts its engine.
fn start(options: &Options) -> anyhow::Result<Running> {
    let source = source::open(&options.weights)?;
    let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
    let sampling = sampling_hints(&*source)?.over(SamplingParams::default())?;
    let loaded = load_model(&*source, &options.load)?;
    if let Some(why) = &loaded.no_gpu {
        tracing::warn!("running on the CPU: {why}");
    }
    let config = realizar_engine::EngineConfig {
        max_seqs: loaded.runner.info().limits.n_seqs,
        step_tokens: options.load.step_tokens,
        max_queue: options.max_queue,
        ..Default::default()
    };
    Ok(Running { client: Engine::start(loaded.runner, config), sampling, guide: Guide::new(tokenizer) })
}

#[async_trait]
impl LLMEngine for RealizarEngine {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let options = self.options.clone();
        let started = tokio::task::spawn_blocking(move || start(&options)).await.map_err(internal)?;
        let running = started.map_err(|error| invalid(format!("could not start the engine: {error:#}")))?;
        let info = running.client.info();
        self.running.set(running).map_err(|_| internal("the engine is started already"))?;
        let llm = LlmRegistration {
            context_length: Some(info.max_seq_len() as u32),
            kv_cache_block_size: Some(info.block_size as u32),
            total_kv_blocks: Some(info.n_blocks as u64),
            max_num_seqs: Some(info.limits.n_seqs as u64),
            max_num_batched_tokens: Some(info.limits.n_tokens as u64),
            ..LlmRegistration::default()
        };
        Ok(EngineConfig { model: self.options.model.clone(), llm: Some(llm), ..EngineConfig::default() })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        context: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let running = self.running()?;
        let mut engine_request =
            request::engine_request(&request, &running.sampling, &running.client.info())?;
        if let Some(guided) = &request.sampling_options.guided_decoding {
            let format =
                running.guide.constraint(guided, &engine_request.prompt, request.require_reasoning).await?;
            if format.is_some() && engine_request.constraint.is_some() {
                return Err(invalid("this worker does not support min_tokens together with guided decoding"));
            }
            engine_request.constraint = format.or(engine_request.constraint);
        }
        let n_prompt = engine_request.prompt.len();
        let stream = running.client.submit(engine_request).map_err(|error| from_engine(&error))?;
        Ok(Box::pin(answer::chunks(stream, context, n_prompt)))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let client = self.running()?.client.clone();
        let on_ready = Box::new(move |publisher| {
            cache_events::publish(&client, publisher);
            Ok(())
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: 0 }])
    }

    async fn setup_metrics(&self, _context: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let client = self.running()?.client.clone();
        let on_ready = Box::new(move |publisher| {
            tokio::spawn(load::publish(client, publisher));
            Ok(())
        });
        Ok(MetricsBindings { dp_ranks: vec![0], on_publisher_ready: Some(on_ready) })
    }

    /// A prompt of one token and an answer of one.
    async fn health_check_payload(&self) -> Result<Option<serde_json::Value>, DynamoError> {
        Ok(Some(serde_json::json!({
            "token_ids": [0],
            "stop_conditions": {"max_tokens": 1, "ignore_eos": true},
            "sampling_options": {"temperature": 0.0},
        })))
    }

    /// Lets the answers finish that have begun, for a while, and gives the device back.
    async fn cleanup(&self) -> Result<(), DynamoError> {
        let Some(running) = self.running.get() else { return Ok(()) };
        let (client, drain) = (running.client.clone(), self.options.drain);
        tokio::task::spawn_blocking(move || client.shutdown(drain)).await.map_err(internal)
    }
}
