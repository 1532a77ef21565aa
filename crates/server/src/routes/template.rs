//! `/apply-template`: what a conversation becomes before it is tokenized.

use super::chat::conversation;
use crate::app::{App, now};
use crate::error::{ApiError, ErrorResponses, Result};
use crate::json::Json;
use crate::openai::ChatRequest;
use axum::extract::State;
use realizar_engine::Error as EngineError;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A rendered conversation.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Rendered {
    /// The text that would be tokenized.
    prompt: String,
}

/// Render a conversation by the model's chat template
#[utoipa::path(
    post, path = "/apply-template", operation_id = "apply_template", tag = "tokens", 
    request_body(content = ChatRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}]})),
    responses((status = 200, description = "The text", body = Rendered), ErrorResponses)
)]
pub(crate) async fn apply(
    State(app): State<Arc<App>>,
    Json(request): Json<ChatRequest>,
) -> Result<axum::Json<Rendered>> {
    app.check_model(request.model.as_deref())?;
    let prompt = app
        .compute(move |app| {
            let template = app.engine.template().ok_or(EngineError::NoChatTemplate)?;
            let text = template.render(&conversation(app, &request)?, true, now());
            let text = text.map_err(|error| EngineError::Template { message: error.to_string() });
            text.map_err(|e| ApiError::from(e).or_param("messages"))
        })
        .await?;
    Ok(axum::Json(Rendered { prompt }))
}
