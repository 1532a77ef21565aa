//! `realizar ps` and `realizar stop`: the models that a running server has loaded.

use crate::args::KeyOption;
use crate::output;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// How long a server may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is spoken to.
#[derive(Debug, Args)]
pub(crate) struct ServerOptions {
    /// The server's address.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    #[command(flatten)]
    key: KeyOption,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    server: ServerOptions,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// What `ps` calls it.
    #[arg(value_name = "MODEL", required = true)]
    models: Vec<String>,
    #[command(flatten)]
    server: ServerOptions,
}

pub(crate) fn ps(args: &PsArgs) -> Result<()> {
    let report = args.server.ask("/api/ps", None)?;
    if args.json {
        return output::print_json(&report);
    }
    let text = |model: &Value, key: &str| model[key].as_str().unwrap_or_default().to_owned();
    let rows: Vec<[String; 4]> = report["models"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|model| {
            let until = text(model, "expires_at");
            let is_never = until.as_str() > "2300";
            [
                text(model, "name"),
                HumanBytes(model["size"].as_u64().unwrap_or(0)).to_string(),
                model["context_length"].to_string(),
                if is_never { "its room is needed".to_owned() } else { until },
            ]
        })
        .collect();
    let width = rows.iter().map(|row| row[0].len()).max().unwrap_or(0).max(4);
    let mut table = format!("{:width$}  {:>10}  {:>8}  UNTIL\n", "NAME", "SIZE", "CONTEXT");
    for [name, size, context, until] in &rows {
        writeln!(table, "{name:width$}  {size:>10}  {context:>8}  {until}")?;
    }
    output::print(output::visible(&table))
}

pub(crate) fn stop(args: &StopArgs) -> Result<()> {
    for model in &args.models {
        args.server.ask("/models/unload", Some(json!({"model": model})))?;
    }
    Ok(())
}

impl ServerOptions {
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The answer to a GET, or to a POST of `body`.
    ///
    /// Errors: no answer; what the server says is wrong.
    pub(crate) fn ask(&self, path: &str, body: Option<Value>) -> Result<Value> {
        let url = format!("{}{path}", self.url.trim_end_matches('/'));
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        let agent: ureq::Agent = config.build().into();
        let key = self.key.get()?.map(|key| format!("Bearer {key}"));
        let reply = match body {
            None => {
                let request = agent.get(&url);
                key.into_iter().fold(request, |request, key| request.header("authorization", key)).call()
            }
            Some(body) => {
                let request = agent.post(&url).content_type("application/json");
                let request =
                    key.into_iter().fold(request, |request, key| request.header("authorization", key));
                request.send(body.to_string())
            }
        };
        let no_server = || format!("no server answers at {}; --url names another", self.url);
        let mut reply = reply.with_context(no_server)?;
        let (status, text) = (reply.status(), reply.body_mut().read_to_string().with_context(no_server)?);
        let answer = serde_json::from_str::<Value>(&text);
        match answer {
            Ok(answer) if status.is_success() => Ok(answer),
            Ok(answer) if answer["error"]["message"].is_string() => {
                bail!("{}", answer["error"]["message"].as_str().unwrap_or_default())
            }
            Ok(answer) if answer["error"].is_string() => {
                bail!("{}", answer["error"].as_str().unwrap_or_default())
            }
            _ => bail!("{url} answered {status}, and not as a realizar server does"),
        }
    }
}
