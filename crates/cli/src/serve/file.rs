//! The models of a file: a table for each.
//!
//! ```toml
//! [models."qwen3:0.6b"]             # the name that clients ask for
//! model = "Qwen/Qwen3-0.6B-GGUF:Q8_0"
//! aliases = ["small"]
//! preload = true
//! ctx = 8192                        # any option of a model
//! ```

use super::several::model_command;
use crate::model_arg::ModelArg;
use crate::settings::{File, scalar};
use realizar_server::KeepAlive;
use std::ffi::OsString;
use std::path::Path;
use toml::Spanned;
use toml::de::DeValue;

/// A model's table.
pub(super) struct ModelTable {
    /// The table's own, then the aliases.
    pub(super) names: Vec<String>,
    pub(super) model: ModelArg,
    pub(super) keep_alive: Option<KeepAlive>,
    pub(super) preload: bool,
    /// Its options as arguments.
    pub(super) arguments: Vec<OsString>,
    /// Switches that it says are off, as arguments.
    pub(super) off: Vec<OsString>,
}

/// The models of a file; the first is the default.
///
/// Errors: what is wrong, by its line.
pub(super) fn models(path: &Path) -> Result<Vec<ModelTable>, String> {
    let file = File::read(path)?;
    file.models(|name, table| model(&file, name, table))
}

fn model(file: &File, name: &str, table: &Spanned<DeValue<'_>>) -> Result<ModelTable, String> {
    let DeValue::Table(keys) = table.get_ref() else {
        return Err(file.wrong(&table.span(), &format!("models.{name} must be a table")));
    };
    let mut names = vec![name.to_owned()];
    let (mut model, mut keep_alive, mut preload) = (None, None, false);
    let (mut arguments, mut off) = (Vec::new(), Vec::new());
    let mut command = model_command();
    command.build();
    for (key, value) in keys {
        let wrong = |message: &str| file.wrong(&key.span(), &format!("{}: {message}", key.get_ref()));
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("model", DeValue::String(text)) => {
                model = Some(match file.beside(text) {
                    Some(path) => ModelArg::Path(path),
                    None => text.parse().map_err(|why: String| wrong(&why))?,
                });
            }
            ("aliases", DeValue::Array(aliases)) => {
                for alias in aliases {
                    let alias = alias.get_ref().as_str();
                    names.push(alias.ok_or_else(|| wrong("expected a list of names"))?.to_owned());
                }
            }
            ("preload", DeValue::Boolean(value)) => preload = *value,
            ("keep_alive" | "keep-alive", value) => {
                let text = scalar(value).ok_or_else(|| wrong("expected a duration such as \"5m\""))?;
                keep_alive = Some(text.parse().map_err(|why: String| wrong(&why))?);
            }
            ("model", _) => return Err(wrong("expected a text")),
            ("aliases", _) => return Err(wrong("expected a list of names")),
            ("preload", _) => return Err(wrong("expected true or false")),
            _ => {
                let setting = file.setting(&command, key, value)?;
                if let DeValue::Boolean(false) = value.get_ref() {
                    off.push(format!("--{}", setting.id.replace('_', "-")).into());
                }
                arguments.extend(setting.arguments);
            }
        }
    }
    let model = model.ok_or_else(|| file.wrong(&table.span(), &format!("models.{name} has no model")))?;
    Ok(ModelTable { names, model, keep_alive, preload, arguments, off })
}
