//! Logs and errors on stderr.

use anyhow::{Context, Result};
use clap::ValueEnum;
use serde_json::{Map, Value};
use std::fmt;
use std::io::IsTerminal;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// Where events come from that are printed even if nobody asks for more than warnings.
pub(crate) const ALWAYS: &str = "realizar::always";

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object on each line.
    Json,
}

/// Writes an event as one JSON object.
struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut to: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = Fields(Map::new());
        fields.0.insert("timestamp".to_owned(), time.into());
        fields.0.insert("level".to_owned(), event.metadata().level().as_str().into());
        fields.0.insert("target".to_owned(), event.metadata().target().into());
        event.record(&mut fields);
        writeln!(to, "{}", Value::Object(fields.0))
    }
}

/// Fields of an event, among them its message.
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }
}

/// Prints logs on stderr from now on: what `RUST_LOG` asks for, else warnings, or more for each `-v`.
pub(crate) fn start(verbose: u8, format: LogFormat) -> Result<()> {
    let filter = match crate::environment("RUST_LOG") {
        Some(directives) => directives.parse().with_context(|| format!("RUST_LOG is {directives:?}"))?,
        None => Targets::new().with_default(match verbose {
            0 => LevelFilter::WARN,
            1 => LevelFilter::INFO,
            2 => LevelFilter::DEBUG,
            _ => LevelFilter::TRACE,
        }),
    };
    let filter = filter.with_target(ALWAYS, LevelFilter::INFO);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(verbose > 1);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.event_format(JsonLines).boxed(),
    };
    tracing_subscriber::registry().with(filter).with(lines).try_init().context("could not start logging")
}

/// Prints an error and its causes as one line.
pub(crate) fn report(error: &anyhow::Error, format: LogFormat) {
    let mut line = String::new();
    // A cause that its consequence has quoted already says nothing new.
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            line = if line.is_empty() { cause } else { format!("{line}: {cause}") };
        }
    }
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    match format {
        LogFormat::Text => crate::output::note(&format!("error: {line}\n")),
        LogFormat::Json => tracing::error!(target: ALWAYS, "{line}"),
    }
}
