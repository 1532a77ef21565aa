//! `/health` and `/ready`: for probes.

use crate::app::App;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use realizar_engine::Health;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// How the server is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Condition {
    /// ready, draining, stopped or failed.
    status: &'static str,
    /// Why the engine failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

fn condition(app: &App) -> Condition {
    let (status, message) = match app.engine.client().health() {
        Health::Ready => ("ready", None),
        Health::Draining => ("draining", None),
        Health::Stopped => ("stopped", None),
        Health::Failed { message } => ("failed", Some(message)),
    };
    Condition { status, message }
}

/// Is it alive
///
/// Fails only when the engine has died and the process should be restarted.
#[utoipa::path(
    get, path = "/health", operation_id = "health", tag = "operation",
    responses(
        (status = 200, description = "It is", body = Condition),
        (status = 503, description = "The engine has died", body = Condition)
    )
)]
pub(crate) async fn live(State(app): State<Arc<App>>) -> (StatusCode, Json<Condition>) {
    let condition = condition(&app);
    let dead = condition.status == "failed";
    (if dead { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }, Json(condition))
}

/// Does it take requests
#[utoipa::path(
    get, path = "/ready", operation_id = "ready", tag = "operation",
    responses(
        (status = 200, description = "It does", body = Condition),
        (status = 503, description = "It does not, or no longer", body = Condition)
    )
)]
pub(crate) async fn ready(State(app): State<Arc<App>>) -> (StatusCode, Json<Condition>) {
    let condition = condition(&app);
    let ready = condition.status == "ready";
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(condition))
}
