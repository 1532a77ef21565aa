//! `/apply-template`: what a conversation becomes before it is tokenized.

use crate::app::App;
use crate::error::{ErrorResponses, Result};
use crate::json::Json;
use crate::models::Lease;
use crate::openai::ChatRequest;
use axum::extract::State;
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
    let lease = app.model(request.model.as_deref()).await?;
    let render = move |lease: &Lease| {
        let callable = request.request_tools()?.callable;
        Ok(request.conversation()?.render(lease, &callable.tools, &callable.choice)?.text)
    };
    let prompt = lease.compute(render).await?;
    Ok(axum::Json(Rendered { prompt }))
}
