//! `/v1/models`: the model that is here.

use crate::app::{App, rfc3339};
use crate::error::{ApiError, ErrorBody, Result};
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// The models of this server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ModelList {
    /// list
    object: &'static str,
    /// One per name of the model.
    data: Vec<Model>,
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
    /// Extension: longest sequence of prompt and answer, in tokens.
    max_model_len: usize,
    /// As Anthropic's API has it: model
    #[serde(rename = "type")]
    kind: &'static str,
    /// As Anthropic's API has it: its name again.
    display_name: String,
    /// As Anthropic's API has it: when the server started, in UTC by RFC 3339.
    created_at: String,
}

impl Model {
    fn new(app: &App, id: String) -> Self {
        let max_model_len = app.engine.client().info().max_seq_len();
        Self {
            display_name: id.clone(),
            id,
            object: "model",
            created: app.created,
            owned_by: "realizar",
            max_model_len,
            kind: "model",
            created_at: rfc3339(app.created),
        }
    }
}

/// List the models
#[utoipa::path(
    get, path = "/v1/models", operation_id = "list_models", tag = "models",
    responses(
        (status = 200, description = "The models", body = ModelList),
        (status = 401, description = "The key is missing or wrong", body = ErrorBody)
    )
)]
pub(crate) async fn list(State(app): State<Arc<App>>) -> Json<ModelList> {
    let names = &app.config.names;
    Json(ModelList {
        object: "list",
        data: names.iter().map(|name| Model::new(&app, name.clone())).collect(),
        first_id: names.first().cloned(),
        last_id: names.last().cloned(),
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
    let id = app.check_model(Some(&name))?;
    Ok(Json(Model::new(&app, id)))
}
