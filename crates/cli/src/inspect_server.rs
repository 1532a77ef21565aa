//! `realizar inspect --running`: what a server says about a model.

use crate::output;
use crate::server_models::ServerOptions;
use anyhow::{Context, Result};
use indicatif::HumanBytes;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Serialize)]
struct Report {
    model: String,
    server: String,
    /// unloaded, loading or loaded; of one that is not loaded the server does not know all.
    status: String,
    format: String,
    family: String,
    parameters: String,
    quantization: String,
    /// Of its files.
    bytes: u64,
    license: Option<String>,
    /// Longest sequence of prompt and answer.
    context: Option<u64>,
    capabilities: Vec<String>,
    /// Length of the template in bytes.
    chat_template_bytes: Option<usize>,
    /// How tokens are chosen where a request does not say.
    sampling: BTreeMap<String, f64>,
}

/// Prints what the server says about the model of this name, or about its first.
pub(crate) fn run(name: Option<&str>, server: &ServerOptions, template: bool, as_json: bool) -> Result<()> {
    let listed = server.ask("/v1/models", None)?;
    let listed = listed["data"].as_array().context("the server lists no models")?;
    let name = match name {
        Some(name) => name.to_owned(),
        None => text(&listed.first().context("the server has no model")?["id"]),
    };
    let shown = server.ask("/api/show", Some(json!({"model": name})))?;
    if template {
        return output::print(text(&shown["template"]));
    }
    let known = listed.iter().find(|model| model["id"] == name.as_str()).unwrap_or(&Value::Null);
    let tags = server.ask("/api/tags", None)?;
    let size = |tag: &&Value| tag["name"] == name.as_str();
    let report = Report {
        server: server.url().to_owned(),
        status: text(&known["status"]["value"]),
        format: text(&shown["details"]["format"]),
        family: text(&shown["details"]["family"]),
        parameters: text(&shown["details"]["parameter_size"]),
        quantization: text(&shown["details"]["quantization_level"]),
        bytes: tags["models"]
            .as_array()
            .into_iter()
            .flatten()
            .find(size)
            .map_or(0, |t| t["size"].as_u64().unwrap_or(0)),
        license: Some(text(&shown["license"])).filter(|license| !license.is_empty()),
        context: known["max_model_len"].as_u64(),
        capabilities: shown["capabilities"].as_array().into_iter().flatten().map(text).collect(),
        chat_template_bytes: Some(text(&shown["template"]).len()).filter(|n| *n > 0),
        sampling: parameters(&text(&shown["parameters"])),
        model: name,
    };
    if as_json { output::print_json(&report) } else { output::print(table(&report)) }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Lines of a name and a number.
fn parameters(lines: &str) -> BTreeMap<String, f64> {
    let pair = |line: &str| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        Some((name.to_owned(), value.trim().parse().ok()?))
    };
    lines.lines().filter_map(pair).collect()
}

fn table(r: &Report) -> String {
    let mut out = String::new();
    let mut line = |key: &str, value: &str| {
        if !value.is_empty() {
            writeln!(out, "{key:<14} {value}").expect("a string takes text");
        }
    };
    line("model", &r.model);
    line("server", &r.server);
    line("status", &r.status);
    line("format", &r.format);
    line("family", &r.family);
    line("parameters", &r.parameters);
    line("types", &format!("mostly {}", r.quantization));
    line("size", &HumanBytes(r.bytes).to_string());
    line("licence", r.license.as_deref().unwrap_or_default());
    line("context", &r.context.map_or_else(String::new, |n| format!("{n} tokens")));
    line("capabilities", &r.capabilities.join(", "));
    line("template", &r.chat_template_bytes.map_or_else(String::new, |n| format!("{n} bytes")));
    let sampling: Vec<String> = r.sampling.iter().map(|(name, value)| format!("{name} {value}")).collect();
    line("sampling", &sampling.join(", "));
    out
}
