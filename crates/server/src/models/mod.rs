//! The models of a server: the table in which requests find theirs by name.
//!
//! [`Model`] is one model with all that belongs to it, [`Lease`] a model in the hands of a request.

mod lease;
mod model;

pub(crate) use lease::Lease;
pub(crate) use model::Model;
pub use model::{LoadedModel, ModelFacts, TextModel};

use crate::error::{ApiError, Result};
use crate::server::Error;
use realizar_engine::Client;
use std::sync::Arc;

/// The models of a server.
pub struct Models {
    /// In the order in which they are listed; the first is the default.
    entries: Vec<Entry>,
}

/// A row of the table.
pub(crate) struct Entry {
    /// Under which clients may ask for it; answers that choose one carry the first.
    names: Vec<String>,
    model: Arc<Model>,
}

impl Models {
    /// One model, which is loaded for good.
    ///
    /// Errors: it has no name.
    pub fn one(names: Vec<String>, model: LoadedModel) -> std::result::Result<Self, Error> {
        if names.is_empty() {
            return Err(Error::NoName);
        }
        let model = Arc::new(Model::new(names.clone(), model));
        Ok(Self { entries: vec![Entry { names, model }] })
    }

    /// The model of a name and that name, or the default and its first name.
    ///
    /// Errors: 404 for a model that is not here, with those that are.
    pub(crate) async fn get(&self, asked: Option<&str>) -> Result<(Arc<Model>, String)> {
        let (entry, name) = self.find(asked)?;
        Ok((entry.model.clone(), name))
    }

    /// The row of a name and that name, or the first row and its first name.
    ///
    /// Errors: 404 for a model that is not here, with those that are.
    pub(crate) fn find(&self, asked: Option<&str>) -> Result<(&Entry, String)> {
        let entry = match asked {
            None => self.entries.first(),
            Some(name) => self.entries.iter().find(|entry| entry.names.iter().any(|n| n == name)),
        };
        let found = entry.and_then(|entry| Some((entry, asked.or(entry.names.first().map(String::as_str))?)));
        found.map(|(entry, name)| (entry, name.to_owned())).ok_or_else(|| {
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
        self.entries.iter().flat_map(|entry| entry.names.iter().map(String::as_str))
    }

    /// All names of all models, in the order of the table.
    pub(crate) fn listed(&self) -> Vec<(String, Arc<Model>)> {
        let of_entry = |entry: &Entry| {
            entry.names.iter().map(|name| (name.clone(), entry.model.clone())).collect::<Vec<_>>()
        };
        self.entries.iter().flat_map(of_entry).collect()
    }

    /// What is known of a model.
    ///
    /// Errors: 404 for a model that is not here.
    pub(crate) fn describe(&self, name: &str) -> Result<Arc<Model>> {
        Ok(self.find(Some(name))?.0.model.clone())
    }

    /// The models that are loaded.
    pub(crate) fn loaded(&self) -> Vec<Arc<Model>> {
        self.entries.iter().map(|entry| entry.model.clone()).collect()
    }

    /// Of the engines of all models that are loaded.
    pub(crate) fn clients(&self) -> Vec<Client> {
        self.loaded().iter().map(|model| model.engine.client().clone()).collect()
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.entries.iter().map(|entry| &entry.names)).finish()
    }
}
