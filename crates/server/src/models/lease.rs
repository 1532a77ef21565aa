//! A model in the hands of a request.

use super::table::Use;
use super::{Encoder, KeepAlive, Model, Resident};
use crate::access::Access;
use crate::app::{App, FORMAT_RETRY};
use crate::error::{ApiError, Result};
use crate::format_pool::Refused;
use crate::generation::{Generation, Plan, Wanted};
use crate::seal::Seal;
use realizar_engine::Constraint;
use realizar_structured::Compiled;
use std::ops::Deref;
use std::sync::{Arc, PoisonError};

/// The model that a request uses, with what all models share. While one of its clones lives, the model stays loaded.
#[derive(Clone)]
pub(crate) struct Lease(Arc<Leased>);

pub(crate) struct Leased {
    pub(crate) app: Arc<App>,
    pub(crate) model: Arc<Model>,
    /// As the request calls it.
    pub(crate) name: String,
    /// What is recorded of the request.
    pub(crate) access: Option<Arc<Access>>,
    used: Use,
}

impl Deref for Lease {
    type Target = Leased;

    fn deref(&self) -> &Leased {
        &self.0
    }
}

impl Lease {
    /// Says how long the model stays loaded after this request.
    pub(crate) fn keep_alive(&self, keep_alive: KeepAlive) {
        self.used.keep_alive(keep_alive);
    }

    /// Signs what the model thinks.
    pub(crate) fn seal(&self) -> Seal {
        Seal::new(&self.model.names, &self.app.config.api_keys)
    }

    /// What makes an answer follow the format that a request wants.
    ///
    /// Errors: what is wrong with the format, by the field that says it; 429 if too many formats wait to be compiled.
    async fn constraint(&self, wanted: Wanted) -> Result<Box<dyn Constraint>> {
        let Wanted { key, field, before, format } = wanted;
        let model = self.model.clone();
        let key = model.format_key(&key);
        let work = move |deadline| {
            let grammars = model.grammars()?;
            grammars.compile_until(&format(&model)?, deadline)
        };
        let compiled = self.app.formats.compile(key, work).await.map_err(|refused| match refused {
            Refused::Format(error) => ApiError::from(error).or_param(field),
            Refused::Busy => ApiError::overloaded("too many formats wait to be compiled", FORMAT_RETRY),
        })?;
        self.compute(move |lease| {
            let constraint = {
                let compiled: &Compiled = &compiled.lock().unwrap_or_else(PoisonError::into_inner);
                compiled.constraint()
            };
            Ok(lease.model.grammars()?.after(&before, constraint)?)
        })
        .await
    }

    /// Hands prompts to the engine, with what the answers must look like. `field`: the one that has the prompts.
    ///
    /// Errors: as [`Lease::constraint`] and [`Plan::submit`].
    pub(crate) async fn start(
        &self,
        mut plan: Plan,
        wanted: Option<Wanted>,
        prompts: Vec<Vec<u32>>,
        field: &'static str,
    ) -> Result<Generation> {
        if let Some(wanted) = wanted {
            plan.constraint = Some(self.constraint(wanted).await?);
        }
        self.compute(move |lease| plan.submit(lease, prompts).map_err(|error| error.or_param(field))).await
    }

    /// Runs work that computes for a while beside the streams, and not between them.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Self) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let lease = self.clone();
        self.app.compute(move || work(&lease)).await
    }
}

/// The encoder that a request uses. While it lives, the encoder stays loaded.
pub(crate) struct EncoderLease {
    pub(crate) encoder: Arc<Encoder>,
    /// As the request calls it.
    pub(crate) name: String,
    used: Use,
}

impl EncoderLease {
    /// Says how long the model stays loaded after this request.
    pub(crate) fn keep_alive(&self, keep_alive: KeepAlive) {
        self.used.keep_alive(keep_alive);
    }
}

impl App {
    /// Runs work that computes for a while beside the streams, and not between them.
    pub(crate) async fn compute<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (app, span) = (self.clone(), tracing::Span::current());
        let work = move || {
            let done = span.in_scope(work);
            app.watchdog.prepared();
            done
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|_| Err(ApiError::internal("the request could not be prepared")))
    }

    /// The model of a name, or the default, for a request that generates text; it is loaded if it is not.
    ///
    /// Errors: 404 for a model that is not here; 503 for one that cannot be loaded; 400 for one that generates no text.
    pub(crate) async fn model(self: &Arc<Self>, asked: Option<&str>) -> Result<Lease> {
        let (model, used, name) = self.models.get(asked).await?;
        let Resident::Text(model) = model else {
            let message = format!(
                "the model {name} embeds texts and generates none; ask /v1/embeddings or /v1/rerank, or another model"
            );
            return Err(ApiError::invalid_param("model", message).code("unsupported"));
        };
        Ok(Lease(Arc::new(Leased { app: self.clone(), model, name, used, access: Access::current() })))
    }

    /// The encoder of a name, or the default; it is loaded if it is not.
    ///
    /// Errors: 404 for a model that is not here; 503 for one that cannot be loaded; 400 for one that generates text.
    pub(crate) async fn encoder(&self, asked: Option<&str>) -> Result<EncoderLease> {
        let (model, used, name) = self.models.get(asked).await?;
        let Resident::Encoder(encoder) = model else {
            let message = format!(
                "the model {name} generates text and embeds none; serve an embedding model or a reranker, and name it"
            );
            return Err(ApiError::invalid_param("model", message).code("unsupported"));
        };
        Ok(EncoderLease { encoder, name, used })
    }
}
