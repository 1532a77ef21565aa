//! Options by which `serve` tells routers what is in the prefix cache.

use crate::serve::positive;
use anyhow::Result;
use clap::Args;
use realizar_engine::Client;
use realizar_server::KvEvents;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "KV events")]
pub(crate) struct KvEventsOptions {
    /// Publishes what enters and leaves the prefix cache for routers, as vLLM does over ZeroMQ, at an endpoint such as tcp://*:5557. It tells
    /// the tokens of all prompts to whoever connects.
    #[arg(long = "kv-events", value_name = "ENDPOINT", conflicts_with = "no_prefix_cache")]
    endpoint: Option<String>,
    /// Sends KV events again to routers that have missed some, at an endpoint such as tcp://*:5558.
    #[arg(long = "kv-events-replay", value_name = "ENDPOINT", requires = "endpoint")]
    replay_endpoint: Option<String>,
    /// What messages with KV events begin with.
    #[arg(long = "kv-events-topic", value_name = "TOPIC", requires = "endpoint")]
    topic: Option<String>,
    /// Steps whose KV events are kept for routers that have missed some.
    #[arg(long = "kv-events-buffer", value_name = "N", default_value_t = 10_000, value_parser = positive, requires = "endpoint")]
    buffer: usize,
}

impl KvEventsOptions {
    /// Publishes an engine's events, if that is wanted.
    pub(crate) fn publish(&self, client: &Client) -> Result<()> {
        if let Some(endpoint) = self.endpoint.clone() {
            let (replay_endpoint, buffer) = (self.replay_endpoint.clone(), self.buffer);
            let topic = self.topic.clone().unwrap_or_default();
            KvEvents { endpoint, replay_endpoint, topic, buffer }.publish(client)?;
        }
        Ok(())
    }
}
