//! What llama.cpp's server tells of itself: its properties, its slots, and what it does not offer.

use super::wire::{ErrorBody, GenerationSettings};
use super::{ErrorResponses, not_offered, settings};
use crate::app::App;
use crate::error::{ApiError, Result};
use crate::models::{Model, Resident, Status};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use realizar_model::tokenizer::Tokenizer;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// What the server is.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppProps)]
pub(crate) struct Props {
    /// What a request without fields gets.
    default_generation_settings: DefaultSettings,
    /// Sequences that are computed at the same time.
    total_slots: usize,
    /// The model's name; paths of the server are not told.
    model_path: String,
    model_alias: String,
    /// The model's chat template, or nothing.
    chat_template: String,
    /// The token that begins a text, or nothing.
    bos_token: String,
    /// The token that ends a text, or nothing.
    eos_token: String,
    modalities: Modalities,
    build_info: &'static str,
    /// false: the model is loaded.
    is_sleeping: bool,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppDefaultSettings)]
pub(crate) struct DefaultSettings {
    /// Longest sequence of prompt and answer, in tokens.
    n_ctx: usize,
    params: GenerationSettings,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppModalities)]
pub(crate) struct Modalities {
    vision: bool,
    audio: bool,
}

/// A place for a sequence among those that are computed at the same time.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = LlamaCppSlot)]
pub(crate) struct Slot {
    id: usize,
    /// Longest sequence of prompt and answer, in tokens.
    n_ctx: usize,
    /// Whether drafts are made.
    speculative: bool,
    /// Sequences have no numbers here: as many of the first slots as sequences run.
    is_processing: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct InfoQuery {
    /// The model's name; may be left out.
    model: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct SlotsQuery {
    /// The model's name; may be left out.
    model: Option<String>,
    /// Anything but 0: 503 where all slots are busy.
    fail_on_no_slot: Option<String>,
}

type Queried<T> = std::result::Result<Query<T>, QueryRejection>;

/// The model that a query names, and its name. It is not loaded for this, nor kept loaded.
///
/// Errors: 404 for a model that is not here; 503 for one that is not loaded; 400 for one that generates no text.
fn model(app: &App, asked: Option<&str>) -> Result<(Arc<Model>, String)> {
    let listed = app.models.describe(asked.filter(|name| !name.is_empty()))?;
    match listed.status {
        Status::Loaded(Resident::Text(model), _) => Ok((model, listed.name)),
        Status::Loaded(Resident::Encoder(_), _) => {
            let message = format!("the model {} embeds texts: it has no slots and no template", listed.name);
            Err(ApiError::invalid_param("model", message).code("unsupported"))
        }
        Status::Unloaded | Status::Loading => {
            let message = format!(
                "the model {:?} is not loaded; a request to it or to /models/load loads it",
                listed.name
            );
            Err(ApiError::refused(StatusCode::SERVICE_UNAVAILABLE, "model_not_loaded", message))
        }
    }
}

fn query<T>(query: Queried<T>) -> Result<T> {
    query.map(|Query(query)| query).map_err(|error| ApiError::invalid(error.body_text()))
}

/// Describe the server (llama.cpp's API)
#[utoipa::path(
    get, path = "/props", operation_id = "llama_cpp_props", tag = "models", params(InfoQuery),
    responses((status = 200, description = "The properties", body = Props), ErrorResponses)
)]
pub(crate) async fn props(
    State(app): State<Arc<App>>,
    asked: Queried<InfoQuery>,
) -> Result<axum::Json<Props>> {
    let (model, name) = model(&app, query(asked)?.model.as_deref())?;
    let (engine, tokenizer) = (&model.engine, model.engine.tokenizer());
    let text = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id)).unwrap_or_default().to_owned();
    Ok(axum::Json(Props {
        default_generation_settings: DefaultSettings {
            n_ctx: model.context(),
            params: settings(&model.sampling),
        },
        total_slots: engine.client().config().max_seqs,
        model_path: name.clone(),
        model_alias: name,
        chat_template: engine.template().map_or_else(String::new, |template| template.source().to_owned()),
        bos_token: text(Tokenizer::bos(tokenizer)),
        eos_token: text(Tokenizer::eos(tokenizer)),
        modalities: Modalities { vision: false, audio: false },
        build_info: concat!("realizar ", env!("CARGO_PKG_VERSION")),
        is_sleeping: false,
    }))
}

/// List the places for sequences (llama.cpp's API)
#[utoipa::path(
    get, path = "/slots", operation_id = "llama_cpp_slots", tag = "models", params(SlotsQuery),
    responses((status = 200, description = "The slots", body = Vec<Slot>), ErrorResponses)
)]
pub(crate) async fn slots(
    State(app): State<Arc<App>>,
    asked: Queried<SlotsQuery>,
) -> Result<axum::Json<Vec<Slot>>> {
    let asked = query(asked)?;
    let (model, _) = model(&app, asked.model.as_deref())?;
    let client = model.engine.client();
    let (n, running) = (client.config().max_seqs, client.stats().running.get() as usize);
    if running >= n && asked.fail_on_no_slot.is_some_and(|value| value != "0") {
        return Err(ApiError::refused(StatusCode::SERVICE_UNAVAILABLE, "no_slot", "all slots are busy"));
    }
    let n_ctx = model.context();
    let speculative = client.config().max_drafts > 0;
    let slot = |id| Slot { id, n_ctx, speculative, is_processing: id < running };
    Ok(axum::Json((0..n).map(slot).collect()))
}

/// List LoRA adapters (llama.cpp's API)
///
/// There are none.
#[utoipa::path(
    get, path = "/lora-adapters", operation_id = "llama_cpp_lora_adapters", tag = "models",
    responses((status = 200, description = "An empty list", body = Vec<Object>), (status = 401, description = "The key is missing or wrong", body = ErrorBody))
)]
pub(crate) async fn lora_adapters() -> axum::Json<[(); 0]> {
    axum::Json([])
}

/// Choose LoRA adapters (llama.cpp's API)
///
/// Always a 501.
#[utoipa::path(
    post, path = "/lora-adapters", operation_id = "llama_cpp_set_lora_adapters", tag = "models",
    responses((status = 501, description = "Adapters are not offered", body = ErrorBody), (status = 401, description = "The key is missing or wrong", body = ErrorBody))
)]
pub(crate) async fn set_lora_adapters() -> Result<()> {
    Err(not_offered("LoRA adapters are not offered: serve a model into which the adapter is merged"))
}

/// Change the server (llama.cpp's API)
///
/// Always a 501.
#[utoipa::path(
    post, path = "/props", operation_id = "llama_cpp_set_props", tag = "models",
    responses((status = 501, description = "The server's options do not change", body = ErrorBody), (status = 401, description = "The key is missing or wrong", body = ErrorBody))
)]
pub(crate) async fn set_props() -> Result<()> {
    Err(not_offered("the server's options do not change while it runs: start it with others"))
}

/// Save, restore or erase the cache of a slot (llama.cpp's API)
///
/// Always a 501.
#[utoipa::path(
    post, path = "/slots/{id}", operation_id = "llama_cpp_slot_action", tag = "models",
    params(("id" = String, Path, description = "A slot")),
    responses((status = 501, description = "Slots have no caches of their own", body = ErrorBody), (status = 401, description = "The key is missing or wrong", body = ErrorBody))
)]
pub(crate) async fn slot_action() -> Result<()> {
    Err(not_offered(
        "slots have no caches of their own: all requests share one, which finds common prefixes by itself",
    ))
}
