//! `/v1/…/render`: the tokens that a request would be computed from, for routers that look for the server that has them cached.

use super::messages::{self, MessagesRequest};
use super::responses::{self, ResponsesRequest};
use super::{chat, completions};
use crate::app::App;
use crate::auth::Caller;
use crate::error::{ErrorResponses, Result};
use crate::json::Json;
use crate::models::Lease;
use crate::openai::{ChatRequest, CompletionRequest};
use axum::Extension;
use axum::extract::State;
use realizar_engine::TextParams;
use serde::Serialize;
use std::sync::Arc;
use utoipa::ToSchema;

/// A prompt as the engine would compute it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PromptTokens {
    /// Its tokens.
    token_ids: Vec<u32>,
}

impl PromptTokens {
    /// Errors: those with which the engine would refuse the prompt.
    fn new(lease: &Lease, token_ids: Vec<u32>) -> Result<Self> {
        let request = lease.model.engine.request(token_ids, &TextParams::default());
        request.validate(&lease.model.engine.client().info())?;
        Ok(Self { token_ids: request.prompt })
    }
}

/// Turn a conversation into the tokens that would answer it
#[utoipa::path(
    post, path = "/v1/chat/completions/render", operation_id = "render_chat_completion", tag = "tokens",
    request_body(content = ChatRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}]})),
    responses((status = 200, description = "The tokens", body = PromptTokens), ErrorResponses)
)]
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ChatRequest>,
) -> Result<axum::Json<PromptTokens>> {
    let lease = app.model(request.model.as_deref()).await?;
    let work = move |lease: &Lease| PromptTokens::new(lease, chat::prompt(lease, caller, &request)?);
    lease.compute(work).await.map(axum::Json)
}

/// Turn texts into the tokens that would be continued
#[utoipa::path(
    post, path = "/v1/completions/render", operation_id = "render_completion", tag = "tokens",
    request_body(content = CompletionRequest, example = json!({"prompt": "Once upon a time"})),
    responses((status = 200, description = "The tokens of each prompt", body = Vec<PromptTokens>), ErrorResponses)
)]
pub(crate) async fn completion(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<CompletionRequest>,
) -> Result<axum::Json<Vec<PromptTokens>>> {
    let lease = app.model(request.model.as_deref()).await?;
    let work = move |lease: &Lease| {
        let prompts = completions::token_ids(lease, caller, &request)?;
        prompts.into_iter().map(|prompt| PromptTokens::new(lease, prompt)).collect()
    };
    lease.compute(work).await.map(axum::Json)
}

/// Turn a conversation into the tokens that would answer it (Responses)
#[utoipa::path(
    post, path = "/v1/responses/render", operation_id = "render_response", tag = "tokens",
    request_body(content = ResponsesRequest, example = json!({"input": "Tell me a story."})),
    responses((status = 200, description = "The tokens", body = PromptTokens), ErrorResponses)
)]
pub(crate) async fn response(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<ResponsesRequest>,
) -> Result<axum::Json<PromptTokens>> {
    let lease = app.model(request.model.as_deref()).await?;
    let work = move |lease: &Lease| PromptTokens::new(lease, responses::prompt(lease, caller, &request)?);
    lease.compute(work).await.map(axum::Json)
}

/// Turn a conversation into the tokens that would answer it (Anthropic's API)
#[utoipa::path(
    post, path = "/v1/messages/render", operation_id = "render_message", tag = "tokens",
    request_body(content = MessagesRequest, example = json!({"messages": [{"role": "user", "content": "Tell me a story."}]})),
    responses((status = 200, description = "The tokens", body = PromptTokens), messages::ErrorResponses)
)]
pub(crate) async fn message(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Json(request): Json<MessagesRequest>,
) -> Result<axum::Json<PromptTokens>> {
    let lease = app.model(request.model.as_deref()).await?;
    let work = move |lease: &Lease| PromptTokens::new(lease, messages::prompt(lease, caller, &request)?);
    lease.compute(work).await.map(axum::Json)
}
