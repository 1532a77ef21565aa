//! `/metrics`: counters, gauges and histograms in Prometheus' text format.
//!
//! Those named `vllm:…` are what routers of fleets read by default; the rest are our own.

use crate::app::App;
use crate::models::Resident;
use crate::sizes::Sizes;
use axum::extract::State;
use axum::http::{HeaderName, header};
use realizar_engine::encoder::EncoderStats;
use realizar_engine::{RunnerInfo, Stats};
use std::sync::Arc;

/// Counters, gauges and histograms in Prometheus' text format
#[utoipa::path(
    get, path = "/metrics", tag = "operation",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> ([(HeaderName, &'static str); 1], String) {
    let mut page = Page::default();
    for model in app.models.loaded() {
        page.label = label(model.name());
        match &model {
            Resident::Text(model) => {
                let client = model.engine.client();
                write_model(&mut page, client.stats(), &model.sizes, &client.info());
            }
            Resident::Encoder(encoder) => write_encoder(&mut page, encoder.text.client().stats()),
        }
    }
    let text = page.into_text();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// All metrics so far, those of the same name together.
#[derive(Default)]
struct Page {
    families: Vec<Family>,
    /// Of the family that lines are added to.
    current: usize,
    /// Of the model, as it stands between braces.
    label: String,
}

/// A metric, with a line or more per model.
struct Family {
    name: String,
    head: String,
    lines: String,
}

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let known = self.families.iter().position(|family| family.name == name);
        self.current = known.unwrap_or_else(|| {
            let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n");
            self.families.push(Family { name: name.to_owned(), head, lines: String::new() });
            self.families.len() - 1
        });
    }

    fn line(&mut self, name: &str, more: &str, value: f64) {
        let comma = if more.is_empty() { "" } else { "," };
        let line = format!("{name}{{{}{comma}{more}}} {value}\n", self.label);
        if let Some(family) = self.families.get_mut(self.current) {
            family.lines += &line;
        }
    }

    fn into_text(self) -> String {
        self.families.into_iter().map(|family| family.head + &family.lines).collect()
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.line(name, "", value as f64);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.head(name, "gauge", help);
        self.line(name, "", value);
    }

    fn histogram(&mut self, name: &str, help: &str, buckets: &[(f64, u64)], sum: f64) {
        self.head(name, "histogram", help);
        for &(bound, count) in buckets {
            let le =
                if bound.is_finite() { format!("{}", (bound * 1e6).round() / 1e6) } else { "+Inf".into() };
            self.line(&format!("{name}_bucket"), &format!("le=\"{le}\""), count as f64);
        }
        self.line(&format!("{name}_sum"), "", sum);
        // The same reading as the last bucket, which a later one might exceed.
        self.line(&format!("{name}_count"), "", buckets.last().map_or(0, |b| b.1) as f64);
    }
}

fn label(model: &str) -> String {
    format!("model_name=\"{}\"", model.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
}

/// Adds what there is to say about an encoder.
fn write_encoder(p: &mut Page, stats: EncoderStats) {
    p.gauge("realizar_encoder_waiting", "Texts that wait for an encoder now.", stats.n_waiting as f64);
    for (name, help, value) in [
        ("texts", "Texts that an encoder has computed.", stats.n_texts),
        ("tokens", "Tokens of texts that an encoder has computed.", stats.n_tokens),
        ("steps", "Steps that an encoder has computed.", stats.n_steps),
    ] {
        p.counter(&format!("realizar_encoder_{name}_total"), help, value);
    }
}

/// Adds what there is to say about a model that generates text.
fn write_model(p: &mut Page, stats: &Stats, sizes: &Sizes, info: &RunnerInfo) {
    let (in_use, cached) = (stats.blocks_in_use.get(), stats.blocks_cached.get());
    let free = (info.n_blocks as u64).saturating_sub(in_use + cached);
    let usage = in_use as f64 / info.n_blocks.max(1) as f64;

    p.gauge("vllm:num_requests_running", "Sequences in steps now.", stats.running.get() as f64);
    p.gauge("vllm:num_requests_waiting", "Sequences that wait now.", stats.waiting.get() as f64);
    p.gauge("vllm:kv_cache_usage_perc", "Share of the cache that sequences use, 0 to 1.", usage);
    p.head("vllm:cache_config_info", "gauge", "Sizes of the cache.");
    let config = format!("block_size=\"{}\",num_gpu_blocks=\"{}\"", info.block_size, info.n_blocks);
    p.line("vllm:cache_config_info", &config, 1.0);
    p.head("vllm:lora_requests_info", "gauge", "Adapters in use; there are none.");
    let none = "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"";
    p.line("vllm:lora_requests_info", none, 0.0);

    counters(p, stats);
    for (name, help, value) in [
        ("running", "Sequences in steps now.", stats.running.get()),
        ("waiting", "Sequences that wait now.", stats.waiting.get()),
        ("paused", "Requests whose reader does not keep up now.", stats.paused.get()),
        ("kv_blocks", "Blocks of the cache.", info.n_blocks as u64),
        ("kv_block_tokens", "Tokens in a block of the cache.", info.block_size as u64),
        ("kv_blocks_in_use", "Blocks that sequences use now.", in_use),
        ("kv_blocks_cached", "Blocks that only the prefix cache uses now.", cached),
        ("kv_blocks_free", "Blocks without contents now.", free),
        ("state_slots_in_use", "Slots of recurrent state that sequences use now.", stats.slots_in_use.get()),
        ("state_slots_cached", "Slots with snapshots for the prefix cache now.", stats.slots_cached.get()),
        ("state_slots_free", "Slots without contents now.", stats.slots_free.get()),
    ] {
        p.gauge(&format!("realizar_{name}"), help, value as f64);
    }
    histograms(p, stats, sizes);
}

/// What has been counted since the start.
fn counters(p: &mut Page, stats: &Stats) {
    p.counter("realizar_requests_total", "Requests taken.", stats.requests.get());
    p.counter(
        "realizar_requests_refused_total",
        "Requests refused because too many waited.",
        stats.overloaded.get(),
    );
    p.head("realizar_finished_total", "counter", "Continuations that ended, by why.");
    for (reason, value) in [
        ("stop", &stats.finished_stop),
        ("length", &stats.finished_length),
        ("cancelled", &stats.finished_cancelled),
        ("error", &stats.finished_error),
    ] {
        p.line("realizar_finished_total", &format!("reason=\"{reason}\""), value.get() as f64);
    }
    for (name, help, value) in [
        ("prompt_tokens", "Tokens of the prompts of finished continuations.", &stats.prompt_tokens),
        ("generated_tokens", "Tokens generated.", &stats.generated_tokens),
        ("steps", "Steps computed.", &stats.steps),
        ("failed_steps", "Steps that failed.", &stats.failed_steps),
        ("computed_tokens", "Tokens computed, those computed again included.", &stats.computed_tokens),
        ("preemptions", "Sequences whose blocks were taken before their end.", &stats.preemptions),
        ("cache_hit_tokens", "Tokens of prompts found in the prefix cache.", &stats.cache_hit_tokens),
        ("cache_miss_tokens", "Tokens of prompts not found in the prefix cache.", &stats.cache_miss_tokens),
        ("drafted_tokens", "Guesses of next tokens that were verified.", &stats.drafted_tokens),
        ("accepted_tokens", "Of those, the ones that were right.", &stats.accepted_tokens),
        ("cache_evictions", "Cached blocks given up for new contents.", &stats.cache_evictions),
        (
            "snapshot_evictions",
            "Snapshots of recurrent state given up for new contents.",
            &stats.snapshot_evictions,
        ),
    ] {
        p.counter(&format!("realizar_{name}_total"), help, value.get());
    }
}

/// Distributions of times and lengths.
fn histograms(p: &mut Page, stats: &Stats, sizes: &Sizes) {
    for (name, help, histogram) in [
        ("queue", "From arrival to the first step.", &stats.queue_time),
        ("first_token", "From arrival to the first token.", &stats.first_token_time),
        ("inter_token", "Between two tokens of a continuation.", &stats.inter_token_time),
        ("request", "From arrival to the end.", &stats.total_time),
        ("step", "A step, from its schedule to its commit.", &stats.step_time),
    ] {
        let sum = histogram.sum().as_secs_f64();
        p.histogram(&format!("realizar_{name}_seconds"), help, &histogram.cumulative(), sum);
    }
    for (name, help, histogram) in [
        ("prompt", "Tokens of the prompt of a finished continuation.", &sizes.prompt),
        ("generated", "Tokens of a finished continuation.", &sizes.generated),
    ] {
        let sum = histogram.sum() as f64;
        p.histogram(&format!("realizar_request_{name}_tokens"), help, &histogram.cumulative(), sum);
    }
}
