//! `/v1/models`: the model that is here.

use crate::app::App;
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
}

impl Model {
    fn new(app: &App, id: String) -> Self {
        let max_model_len = app.engine.client().info().max_seq_len();
        Self { id, object: "model", created: app.created, owned_by: "realizar", max_model_len }
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
    let data = app.config.names.iter().map(|name| Model::new(&app, name.clone())).collect();
    Json(ModelList { object: "list", data })
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
