//! Metrics that dashboards and documents name are metrics that the server has.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod http;

use http::TestServer;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of all series at `/metrics`, after a request.
fn series() -> BTreeSet<String> {
    let server = TestServer::start();
    server.post("/v1/completions", &json!({"prompt": "Once", "max_tokens": 2})).ok();
    let page = server.get("/metrics");
    let lines = page.text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| Some(line.split_once('{')?.0.to_owned())).collect()
}

/// All words of a text that are metrics by their beginning.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = |word: &&str| word.starts_with("realizar_") || word.starts_with("vllm:");
    words.filter(ours).map(str::to_owned).collect()
}

/// The expressions of a dashboard's panels.
fn expressions(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|v| expressions(v, found)),
        Value::Object(map) => {
            for (key, value) in map {
                match value.as_str() {
                    Some(text) if key == "expr" || key == "query" => found.push(text.to_owned()),
                    _ => expressions(value, found),
                }
            }
        }
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_series_that_exist() {
    let dashboard: Value = serde_json::from_str(&read("deploy/grafana.json")).expect("JSON");
    let mut found = Vec::new();
    expressions(&dashboard, &mut found);
    let asked: BTreeSet<String> = found.iter().flat_map(|text| metrics(text)).collect();
    assert!(asked.len() > 20, "{asked:?}");
    let missing: Vec<_> = asked.difference(&series()).cloned().collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_metrics_of_the_document_exist() {
    let (document, series) = (read("docs/serving.md"), series());
    let section = document.split("\n## Metrics\n").nth(1).and_then(|rest| rest.split("\n## ").next());
    let mut n_checked = 0;
    for part in section.expect("a section on metrics").split('`').skip(1).step_by(2) {
        let name = part.split('{').next().unwrap_or_default();
        // Names after the first leave out its beginning.
        let name = if name.starts_with('_') { format!("realizar{name}") } else { name.to_owned() };
        if metrics(&name).len() == 1 {
            assert!(series.contains(&name) || series.contains(&format!("{name}_bucket")), "{name}");
            n_checked += 1;
        }
    }
    assert!(n_checked > 25, "{n_checked}");
}
