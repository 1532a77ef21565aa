//! What Ollama's API says about models: `/api/tags`, `show`, `ps`, `version`, `pull`, `delete`.

use super::wire::{Details, ErrorBody, Model, ModelName, Models, Progress, Shown, Version};
use super::{ErrorResponses, Lines, known_name};
use crate::app::{App, rfc3339, unix_time};
use crate::error::{ApiError, Result};
use crate::fim;
use crate::json::Json;
use crate::models::{Listed, ModelFacts, Resident, Status};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use realizar_engine::SamplingParams;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Ollama's clients show when a model is unloaded; this is for those that never are.
const NEVER: &str = "2318-01-01T00:00:00Z";

fn details(facts: &ModelFacts) -> Details {
    Details {
        parent_model: "",
        format: facts.format.clone(),
        family: facts.family.clone(),
        families: vec![facts.family.clone()],
        parameter_size: parameter_size(facts.n_parameters),
        quantization_level: facts.quantization.clone(),
    }
}

/// Such as 8.0B.
fn parameter_size(n: u64) -> String {
    match n {
        0 => String::new(),
        1_000_000_000.. => format!("{:.1}B", n as f64 / 1e9),
        1_000_000.. => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}K", n as f64 / 1e3),
    }
}

fn model(app: &App, Listed { name, facts, .. }: &Listed) -> Model {
    Model {
        name: name.clone(),
        model: name.clone(),
        modified_at: rfc3339(app.created),
        size: facts.size,
        digest: Sha256::digest(name).iter().map(|byte| format!("{byte:02x}")).collect(),
        details: details(facts),
        expires_at: None,
        size_vram: None,
        context_length: None,
    }
}

/// List the models (Ollama's API)
#[utoipa::path(
    get, path = "/api/tags", operation_id = "ollama_tags", tag = "models",
    responses(
        (status = 200, description = "The models", body = Models),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody)
    )
)]
pub(crate) async fn tags(State(app): State<Arc<App>>) -> axum::Json<Models> {
    let listed = app.models.listed();
    axum::Json(Models { models: listed.iter().map(|known| model(&app, known)).collect() })
}

/// List the models that run (Ollama's API)
#[utoipa::path(
    get, path = "/api/ps", operation_id = "ollama_ps", tag = "models",
    responses(
        (status = 200, description = "The models", body = Models),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody)
    )
)]
pub(crate) async fn ps(State(app): State<Arc<App>>) -> axum::Json<Models> {
    let running = |known: &Listed| {
        let Status::Loaded(loaded, remaining) = &known.status else { return None };
        let expires = remaining.map(|remaining| rfc3339(unix_time().saturating_add(remaining.as_secs())));
        Some(Model {
            expires_at: Some(expires.unwrap_or_else(|| NEVER.to_owned())),
            size_vram: Some(loaded.facts().gpu_size),
            context_length: Some(loaded.context()),
            ..model(&app, known)
        })
    };
    axum::Json(Models { models: app.models.listed().iter().filter_map(running).collect() })
}

/// The server's version (Ollama's API)
#[utoipa::path(
    get, path = "/api/version", operation_id = "ollama_version", tag = "models",
    responses(
        (status = 200, description = "The version", body = Version),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody)
    )
)]
pub(crate) async fn version() -> axum::Json<Version> {
    axum::Json(Version { version: env!("CARGO_PKG_VERSION") })
}

/// Describe a model (Ollama's API)
///
/// Of a model that is not loaded, without its template.
#[utoipa::path(
    post, path = "/api/show", operation_id = "ollama_show", tag = "models",
    request_body(content = ModelName, example = json!({})),
    responses((status = 200, description = "The model", body = Shown), ErrorResponses)
)]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Json(request): Json<ModelName>,
) -> Result<axum::Json<Shown>> {
    let asked = request.model.or(request.name);
    let known = app.models.describe(known_name(&app, asked.as_deref()))?;
    let facts = &known.facts;
    let mut info: Map<String, Value> = Map::new();
    info.insert("general.architecture".to_owned(), facts.family.as_str().into());
    info.insert("general.parameter_count".to_owned(), facts.n_parameters.into());
    if let Some(context) = known.context {
        info.insert(format!("{}.context_length", facts.family), context.into());
    }
    let mut capabilities = vec!["completion"];
    let (mut template, mut parameters) = (String::new(), String::new());
    if let Status::Loaded(Resident::Encoder(_), _) = &known.status {
        capabilities = vec!["embedding"];
    }
    if let Status::Loaded(Resident::Text(model), _) = &known.status {
        template = model.engine.template().map_or_else(String::new, |template| template.source().to_owned());
        parameters = sampling_lines(&model.sampling);
        if !template.is_empty() {
            capabilities.push("tools");
        }
        if ["enable_thinking", "reasoning_effort", "<think>"].iter().any(|sign| template.contains(sign)) {
            capabilities.push("thinking");
        }
        if fim::find(model.engine.tokenizer()).is_ok() {
            capabilities.push("insert");
        }
    }
    Ok(axum::Json(Shown {
        template,
        modelfile: "",
        parameters,
        license: facts.license.clone(),
        details: details(facts),
        model_info: info,
        capabilities,
        modified_at: rfc3339(app.created),
    }))
}

/// Parameters as a Modelfile has them.
fn sampling_lines(sampling: &SamplingParams) -> String {
    let SamplingParams { temperature, top_k, top_p, min_p, repetition_penalty, .. } = sampling;
    format!(
        "temperature {temperature}\ntop_k {top_k}\ntop_p {top_p}\nmin_p {min_p}\nrepeat_penalty {repetition_penalty}"
    )
}

/// Download a model (Ollama's API)
///
/// The server has one model, which is there; others are a 501.
#[utoipa::path(
    post, path = "/api/pull", operation_id = "ollama_pull", tag = "models",
    request_body(content = ModelName, example = json!({})),
    responses(
        (status = 200, description = "The model is there", content((Progress = "application/x-ndjson"), (Progress = "application/json"))),
        (status = 501, description = "The server does not download models", body = ErrorBody),
        ErrorResponses
    )
)]
pub(crate) async fn pull(State(app): State<Arc<App>>, Json(request): Json<ModelName>) -> Result<Response> {
    let name = request.model.or(request.name).unwrap_or_default();
    if known_name(&app, Some(&name)).is_some_and(|name| !app.models.has(name)) {
        return Err(not_offered(format!(
            "this server does not download models; `realizar pull {name}` does, and `realizar serve {name}` serves it"
        )));
    }
    let success = Progress { status: "success" };
    if request.stream == Some(false) {
        return Ok(axum::Json(success).into_response());
    }
    Ok(Lines::of(&[Progress { status: "pulling manifest" }, success]))
}

/// Remove a model (Ollama's API)
///
/// Always a 501 or a 404.
#[utoipa::path(
    delete, path = "/api/delete", operation_id = "ollama_delete", tag = "models",
    request_body(content = ModelName, example = json!({})),
    responses((status = 501, description = "The server does not remove models", body = ErrorBody), ErrorResponses)
)]
pub(crate) async fn delete(State(app): State<Arc<App>>, Json(request): Json<ModelName>) -> Result<Response> {
    let asked = request.model.or(request.name);
    let name = app.models.describe(known_name(&app, asked.as_deref()))?.name;
    Err(not_offered(format!(
        "this server does not remove models; `realizar rm {name}` does when it is stopped"
    )))
}

fn not_offered(message: String) -> ApiError {
    ApiError::refused(StatusCode::NOT_IMPLEMENTED, "unsupported", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_parameters_are_short() {
        for (n, text) in [(0, ""), (999, "1.0K"), (2_500_000, "2.5M"), (8_030_261_312, "8.0B")] {
            assert_eq!(parameter_size(n), text);
        }
    }
}
