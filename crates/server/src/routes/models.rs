//! `/v1/models`: the models that are here, and what loads and unloads them.

use crate::app::{App, rfc3339};
use crate::error::{ApiError, ErrorBody, ErrorResponses, Result};
use crate::json;
use crate::models::{Listed, Status};
use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// The models of this server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// list
    object: &'static str,
    /// One per name of the model.
    data: Vec<Model>,
    /// As Codex expects them, if the query has a `client_version`.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<CodexModel>>,
    /// As Anthropic's API has it: the first of them.
    first_id: Option<String>,
    /// As Anthropic's API has it: the last of them.
    last_id: Option<String>,
    /// As Anthropic's API has it: false, this is the whole list.
    has_more: bool,
}

/// A model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Model {
    /// Its name in requests.
    id: String,
    /// model
    object: &'static str,
    /// When the server started, in seconds since 1970.
    created: u64,
    /// realizar
    owned_by: &'static str,
    /// Extension: longest sequence of prompt and answer, in tokens; may be missing of a model that is not loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<usize>,
    /// As llama.cpp has it.
    status: LoadStatus,
    /// As Anthropic's API has it: model
    #[serde(rename = "type")]
    kind: &'static str,
    /// As Anthropic's API has it: its name again.
    display_name: String,
    /// As Anthropic's API has it: when the server started, in UTC by RFC 3339.
    created_at: String,
}

/// Whether a model is loaded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LoadStatus {
    /// unloaded, loading or loaded
    value: &'static str,
}

/// What Codex wants to know of a model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodexModel {
    /// Its name in requests.
    slug: String,
    display_name: String,
    description: Option<String>,
    /// Empty: whether the model reads `reasoning.effort` is its template's matter.
    #[schema(value_type = Vec<Object>)]
    supported_reasoning_levels: Vec<Value>,
    /// `shell_command`: how it runs commands.
    shell_type: &'static str,
    /// list
    visibility: &'static str,
    supported_in_api: bool,
    priority: i32,
    #[schema(value_type = Option<Object>)]
    upgrade: Option<Value>,
    /// The system prompt that Codex gives it.
    base_instructions: &'static str,
    supports_reasoning_summaries: bool,
    support_verbosity: bool,
    default_verbosity: Option<&'static str>,
    /// Null: files are changed by commands.
    apply_patch_tool_type: Option<&'static str>,
    truncation_policy: CodexTruncation,
    supports_parallel_tool_calls: bool,
    /// Longest sequence of prompt and answer, in tokens, if it is known.
    context_window: Option<usize>,
    experimental_supported_tools: Vec<String>,
    /// text
    input_modalities: Vec<&'static str>,
}

/// How much of a command's output Codex shows to the model.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CodexTruncation {
    /// bytes
    mode: &'static str,
    limit: usize,
}

/// What Codex tells a model of this server, which has not been trained for it.
const CODEX_INSTRUCTIONS: &str = "You are a coding agent that works in a terminal on the user's computer. You read and change files and run \
    programs by calling tools. Look at the files before you change them. Make the smallest change that does what the user asks, in the \
    style of the code around it. Do not change what you were not asked to change. When you have changed something, run what shows that \
    it works. If a command fails, read its output and mend the cause. Go on until the task is done; then say in a few sentences what you \
    did, and what is left to do.";

impl CodexModel {
    fn new(name: &str, context: Option<usize>) -> Self {
        Self {
            slug: name.to_owned(),
            display_name: name.to_owned(),
            description: None,
            supported_reasoning_levels: Vec::new(),
            shell_type: "shell_command",
            visibility: "list",
            supported_in_api: true,
            priority: 0,
            upgrade: None,
            base_instructions: CODEX_INSTRUCTIONS,
            supports_reasoning_summaries: false,
            support_verbosity: false,
            default_verbosity: None,
            apply_patch_tool_type: None,
            truncation_policy: CodexTruncation { mode: "bytes", limit: 10_000 },
            supports_parallel_tool_calls: true,
            context_window: context,
            experimental_supported_tools: Vec::new(),
            input_modalities: vec!["text"],
        }
    }
}

/// What a client says about itself.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Codex's version.
    client_version: Option<String>,
}

impl Model {
    fn new(app: &App, listed: &Listed) -> Self {
        let value = match listed.status {
            Status::Unloaded => "unloaded",
            Status::Loading => "loading",
            Status::Loaded(..) => "loaded",
        };
        Self {
            display_name: listed.name.clone(),
            id: listed.name.clone(),
            object: "model",
            created: app.created,
            owned_by: "realizar",
            max_model_len: listed.context,
            status: LoadStatus { value },
            kind: "model",
            created_at: rfc3339(app.created),
        }
    }
}

/// List the models
#[utoipa::path(
    get, path = "/v1/models", operation_id = "list_models", tag = "models",
    params(ListQuery),
    responses(
        (status = 200, description = "The models", body = ModelList),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody)
    )
)]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    query: std::result::Result<Query<ListQuery>, QueryRejection>,
) -> Json<ModelList> {
    let listed = app.models.listed();
    let is_codex = query.is_ok_and(|Query(query)| query.client_version.is_some());
    Json(ModelList {
        object: "list",
        data: listed.iter().map(|listed| Model::new(&app, listed)).collect(),
        models: is_codex.then(|| listed.iter().map(|l| CodexModel::new(&l.name, l.context)).collect()),
        first_id: listed.first().map(|l| l.name.clone()),
        last_id: listed.last().map(|l| l.name.clone()),
        has_more: false,
    })
}

/// Describe a model
#[utoipa::path(
    get, path = "/v1/models/{*model}", operation_id = "describe_model", tag = "models",
    params(("model" = String, Path, description = "The model's name")),
    responses(
        (status = 200, description = "The model", body = Model),
        (status = 400, description = "The name is not UTF-8", body = ErrorBody),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody),
        (status = 404, description = "There is no such model", body = ErrorBody)
    )
)]
pub(crate) async fn retrieve(
    State(app): State<Arc<App>>,
    name: std::result::Result<Path<String>, PathRejection>,
) -> Result<Json<Model>> {
    let Path(name) = name.map_err(|_| ApiError::invalid_param("model", "the model's name is not UTF-8"))?;
    Ok(Json(Model::new(&app, &app.models.describe(Some(&name))?)))
}

/// Which model to load or unload.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ModelChoice {
    /// One of its names.
    model: String,
}

/// Of a model that was loaded or unloaded.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Done {
    /// true
    success: bool,
}

/// Load a model
///
/// As llama.cpp has it; the answer comes when the model is loaded. A request for a model loads it, too.
#[utoipa::path(
    post, path = "/models/load", operation_id = "load_model", tag = "models",
    request_body(content = ModelChoice, example = json!({"model": "demo"})),
    responses((status = 200, description = "It is loaded", body = Done), ErrorResponses)
)]
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    json::Json(request): json::Json<ModelChoice>,
) -> Result<Json<Done>> {
    app.model(Some(&request.model)).await?;
    Ok(Json(Done { success: true }))
}

/// Unload a model
///
/// As llama.cpp has it. The model goes when the requests that use it are answered; the answer does not wait for that.
#[utoipa::path(
    post, path = "/models/unload", operation_id = "unload_model", tag = "models",
    request_body(content = ModelChoice, example = json!({"model": "demo"})),
    responses(
        (status = 200, description = "It is unloaded, or will be", body = Done),
        (status = 501, description = "The server has one model, which stays loaded", body = ErrorBody),
        ErrorResponses
    )
)]
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    json::Json(request): json::Json<ModelChoice>,
) -> Result<Json<Done>> {
    app.models.unload(Some(&request.model))?;
    match app.models.can_load() {
        true => Ok(Json(Done { success: true })),
        false => {
            let message =
                "this server was started with one model, which stays loaded until the server is stopped";
            Err(ApiError::refused(StatusCode::NOT_IMPLEMENTED, "unsupported", message))
        }
    }
}
