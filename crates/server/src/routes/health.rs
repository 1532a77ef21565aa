//! `/health` and `/ready`: for probes.

use crate::app::App;
use crate::models::Resident;
use crate::watchdog;
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
    /// ready, draining, stopped, failed or stuck.
    status: &'static str,
    /// Why an engine failed, or what is stuck.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

fn condition(app: &App) -> Condition {
    // What is worse hides what is better.
    let severity = |health: &Health| match health {
        Health::Ready => 0,
        Health::Draining => 1,
        Health::Stopped => 2,
        Health::Failed { .. } => 3,
    };
    let own = if app.models.is_closed() { Health::Draining } else { Health::Ready };
    let models = app.models.loaded();
    let health = models.iter().map(Resident::health).chain([own]).max_by_key(severity);
    let (status, message) = match (health.unwrap_or(Health::Ready), watchdog::stuck(app)) {
        (Health::Ready | Health::Draining, Some(what)) => ("stuck", Some(what)),
        (Health::Ready, None) => ("ready", None),
        (Health::Draining, None) => ("draining", None),
        (Health::Stopped, _) => ("stopped", None),
        (Health::Failed { message }, _) => ("failed", Some(message)),
    };
    Condition { status, message }
}

/// Is it alive
///
/// Fails only when an engine has died, or a part of the server does not get on, and the process should be restarted.
#[utoipa::path(
    get, path = "/health", operation_id = "health", tag = "operation",
    responses(
        (status = 200, description = "It is", body = Condition),
        (status = 503, description = "An engine has died, or something is stuck", body = Condition)
    )
)]
pub(crate) async fn live(State(app): State<Arc<App>>) -> (StatusCode, Json<Condition>) {
    let condition = condition(&app);
    let dead = matches!(condition.status, "failed" | "stuck");
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
