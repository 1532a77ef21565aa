//! Where the time of a benchmark goes: a table, and a trace in Chrome's format.

use crate::output;
use anyhow::{Context, Result};
use realizar_compute::OpTime;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Time per part of the forward pass, over one piece of work.
#[derive(Serialize)]
pub(crate) struct Profile {
    work: String,
    tokens: usize,
    total_ms: f64,
    /// Share of the time that the parts below account for.
    covered: f64,
    parts: Vec<Part>,
}

#[derive(Serialize)]
struct Part {
    name: &'static str,
    runs: usize,
    ms: f64,
    share: f64,
}

impl Profile {
    pub(crate) fn new(work: String, total: Duration, tokens: usize, times: &[OpTime]) -> Self {
        let mut parts: Vec<Part> = Vec::new();
        for t in times {
            let ms = t.duration.as_secs_f64() * 1e3;
            match parts.iter_mut().find(|p| p.name == t.op) {
                Some(part) => (part.runs, part.ms) = (part.runs + 1, part.ms + ms),
                None => parts.push(Part { name: t.op, runs: 1, ms, share: 0.0 }),
            }
        }
        let total_ms = total.as_secs_f64() * 1e3;
        parts.iter_mut().for_each(|p| p.share = p.ms / total_ms);
        parts.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        let covered = parts.iter().map(|p| p.share).sum();
        Self { work, tokens, total_ms, covered, parts }
    }

    pub(crate) fn table(&self) -> String {
        let mut out = format!(
            "\n{}: {:.2} ms for {} tokens, {:.1} % of it below\n{:>14} {:>8} {:>10} {:>10} {:>7}\n",
            self.work,
            self.total_ms,
            self.tokens,
            self.covered * 100.0,
            "part",
            "runs",
            "ms",
            "µs/run",
            "share"
        );
        for p in &self.parts {
            let per_run = p.ms * 1e3 / p.runs as f64;
            let share = p.share * 100.0;
            out += &format!("{:>14} {:>8} {:>10.2} {per_run:>10.1} {share:>6.1}%\n", p.name, p.runs, p.ms);
        }
        out
    }
}

/// Events of one or several pieces of work, one row of the picture each.
#[derive(Default)]
pub(crate) struct Trace {
    start: Option<Instant>,
    n_rows: usize,
    events: Vec<Value>,
}

impl Trace {
    pub(crate) fn add(&mut self, row: &str, times: &[OpTime]) {
        let Some(first) = times.first() else { return };
        let start = *self.start.get_or_insert(first.start);
        let tid = self.n_rows;
        self.n_rows += 1;
        self.events
            .push(json!({"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": row}}));
        self.events.extend(times.iter().map(|t| {
            let begin = t.start.duration_since(start).as_secs_f64() * 1e6;
            json!({"name": t.op, "ph": "X", "pid": 0, "tid": tid, "ts": begin, "dur": t.duration.as_secs_f64() * 1e6})
        }));
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        output::write_file(path, |mut out| {
            serde_json::to_writer(&mut out, &json!({ "traceEvents": self.events, "displayTimeUnit": "ms" }))?;
            out.flush().with_context(|| format!("could not write {}", path.display()))?;
            Ok(out)
        })
    }
}
