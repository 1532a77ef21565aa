//! The models of a server: the table in which requests find theirs by name, and in which models come and go.
//!
//! [`Model`] is one model with all that belongs to it, [`Lease`] a model in the hands of a request; `table` says which are loaded, and a
//! [`ModelLoader`] loads them.

mod lease;
mod loader;
mod model;
mod table;

pub(crate) use lease::{EncoderLease, Lease};
pub use loader::{KeepAlive, LoadError, ModelEntry, ModelLimits, ModelLoader};
pub(crate) use model::{Encoder, Model, Resident};
pub use model::{EncoderModel, LoadedModel, ModelFacts, TextModel};
pub(crate) use table::Status;

use crate::error::{ApiError, Result};
use crate::server::Error;
use std::collections::HashSet;
use std::sync::Arc;
use table::{Table, Use};

/// The models of a server.
pub struct Models {
    table: Arc<Table>,
}

/// A name of a model and how that model is, for lists.
pub(crate) struct Listed {
    pub(crate) name: String,
    pub(crate) facts: ModelFacts,
    /// Longest sequence, in tokens, if it is known.
    pub(crate) context: Option<usize>,
    pub(crate) status: Status,
}

impl Models {
    /// One model, which is loaded for good.
    ///
    /// Errors: it has no name.
    pub fn one(names: Vec<String>, model: LoadedModel) -> std::result::Result<Self, Error> {
        if names.is_empty() {
            return Err(Error::NoName);
        }
        let entry = ModelEntry { names: names.clone(), ..ModelEntry::default() };
        Ok(Self { table: Table::of_one(entry, Resident::new(names, model)) })
    }

    /// Models that `loader` loads when somebody asks for them.
    ///
    /// Errors: there is none; one has no name; two have the same; the system gives no thread.
    pub fn many(
        entries: Vec<ModelEntry>,
        loader: Arc<dyn ModelLoader>,
        limits: ModelLimits,
    ) -> std::result::Result<Self, Error> {
        if entries.is_empty() || entries.iter().any(|entry| entry.names.is_empty()) {
            return Err(Error::NoName);
        }
        let mut seen = HashSet::new();
        if let Some(name) = entries.iter().flat_map(|entry| &entry.names).find(|name| !seen.insert(*name)) {
            return Err(Error::SameName { name: name.clone() });
        }
        Ok(Self { table: Table::of_many(entries, loader, limits).map_err(Error::Threads)? })
    }

    /// Loads a model on the caller's thread, if it is not loaded.
    ///
    /// Errors: there is none of this name; it cannot be loaded.
    pub fn load(&self, name: &str) -> std::result::Result<(), LoadError> {
        let (index, _) = self.find(Some(name)).map_err(|error| LoadError::Failed(error.message))?;
        self.table.load_now(index)
    }

    /// The model of a name and that name, or the default and its first name; it is loaded if it is not.
    ///
    /// Errors: 404 for a model that is not here, with those that are; 503 for one that cannot be loaded.
    pub(crate) async fn get(&self, asked: Option<&str>) -> Result<(Resident, Use, String)> {
        let (index, name) = self.find(asked)?;
        let (model, used) = self.table.acquire(index).await?;
        Ok((model, used, name))
    }

    /// The place of a name in the table and that name, or the first place and its first name.
    fn find(&self, asked: Option<&str>) -> Result<(usize, String)> {
        let entries = &self.table.entries;
        let index = match asked {
            None => Some(0).filter(|_| !entries.is_empty()),
            Some(name) => entries.iter().position(|entry| entry.names.iter().any(|n| n == name)),
        };
        let name_of = |index: usize| asked.or(entries[index].names.first().map(String::as_str));
        let found = index.and_then(|index| Some((index, name_of(index)?.to_owned())));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.names().collect();
            let asked = asked.unwrap_or_default();
            let message = format!("the model {asked:?} does not exist; this server has {}", known.join(", "));
            ApiError::not_found("model_not_found", message).param("model")
        })
    }

    /// Whether a model has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// All names of all models.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.table.entries.iter().flat_map(|entry| entry.names.iter().map(String::as_str))
    }

    /// All names of all models, in the order of the table, and how the models are.
    pub(crate) fn listed(&self) -> Vec<Listed> {
        let entries = self.table.entries.iter().zip(self.table.statuses());
        let of_entry = |(entry, status): (&ModelEntry, Status)| {
            let (facts, context) = match &status {
                Status::Loaded(model, _) => (model.facts().clone(), Some(model.context())),
                Status::Unloaded | Status::Loading => (entry.facts.clone(), entry.context),
            };
            let listed = |name: &String| Listed {
                name: name.clone(),
                facts: facts.clone(),
                context,
                status: status.clone(),
            };
            entry.names.iter().map(listed).collect::<Vec<_>>()
        };
        entries.flat_map(of_entry).collect()
    }

    /// How a model is.
    ///
    /// Errors: 404 for a model that is not here.
    pub(crate) fn describe(&self, asked: Option<&str>) -> Result<Listed> {
        let (_, name) = self.find(asked)?;
        let found = self.listed().into_iter().find(|listed| listed.name == name);
        found.ok_or_else(|| ApiError::internal("a model without a name"))
    }

    /// Whether a request for this model has to wait until it is loaded.
    pub(crate) fn must_load(&self, asked: Option<&str>) -> bool {
        self.describe(asked).is_ok_and(|listed| !matches!(listed.status, Status::Loaded(..)))
    }

    /// Unloads a model as soon as no request uses it, if models come and go here.
    ///
    /// Errors: 404 for a model that is not here.
    pub(crate) fn unload(&self, asked: Option<&str>) -> Result<()> {
        let (index, _) = self.find(asked)?;
        if self.table.can_load() {
            self.table.unload_soon(index);
        }
        Ok(())
    }

    /// Whether models come and go.
    pub(crate) fn can_load(&self) -> bool {
        self.table.can_load()
    }

    /// The models that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Resident> {
        let loaded = |status| match status {
            Status::Loaded(model, _) => Some(model),
            Status::Unloaded | Status::Loading => None,
        };
        self.table.statuses().into_iter().filter_map(loaded).collect()
    }

    /// Takes no more requests that need a model to be loaded.
    pub(crate) fn close(&self) {
        self.table.close();
    }

    /// Whether the server is about to stop.
    pub(crate) fn is_closed(&self) -> bool {
        self.table.is_closed()
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.table.entries.iter().map(|entry| &entry.names)).finish()
    }
}
