//! Models of the Hugging Face hub, with bars for what comes.

use crate::progress::download_bar;
use anyhow::{Context, Result};
use indicatif::ProgressBar;
use realizar::hub::{Download, Hub, HubModel};
use std::cell::RefCell;
use std::path::PathBuf;

/// The model's path in the cache, downloaded only where something is missing.
pub(crate) fn find_or_pull(model: &HubModel) -> Result<PathBuf> {
    hub()?.get(model).with_context(|| format!("could not get {model}"))
}

/// The model's path in the cache, downloaded where something is missing or newer on the hub.
pub(crate) fn pull(model: &HubModel) -> Result<PathBuf> {
    hub()?.update(model).with_context(|| format!("could not get {model}"))
}

fn hub() -> Result<Hub> {
    let bar: RefCell<Option<ProgressBar>> = RefCell::default();
    Ok(Hub::from_env()?.on_progress(move |Download { file, done, total }| {
        let mut bar = bar.borrow_mut();
        let shown = bar.get_or_insert_with(|| download_bar(file));
        shown.set_length(total);
        shown.set_position(done);
        if done == total {
            shown.finish_and_clear();
            *bar = None;
        }
    }))
}
