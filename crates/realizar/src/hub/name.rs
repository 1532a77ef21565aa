//! Names of models of the Hugging Face hub.

use super::error::{HubError, Result};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A model of the hub. Its text is `OWNER/NAME[:FILE-OR-QUANT]`, with or without `hf:`, or an address of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubModel {
    /// `OWNER/NAME`.
    pub repo: String,
    /// A file of the repository, or a type such as `Q4_K_M` that picks the GGUF file with it in its name.
    pub file: Option<String>,
}

/// Beginnings of addresses of the hub's repositories.
pub const HUB_HOSTS: [&str; 4] = ["https://huggingface.co/", "https://hf.co/", "huggingface.co/", "hf.co/"];

/// Whether a name means a file or a folder and not a model of the hub: something of this name is there, it begins as only paths do, or it
/// ends as a model's file does and names none of a repository.
pub fn is_path(name: &str) -> bool {
    let path = Path::new(name);
    let is_rooted = ["/", "./", "../", "~"].iter().any(|start| name.starts_with(start)) || path.is_absolute();
    let is_file_name =
        matches!(path.extension().and_then(|e| e.to_str()), Some("gguf" | "safetensors" | "json"));
    let has_mark = || name.contains(':') || HUB_HOSTS.iter().any(|host| name.starts_with(host));
    let is_on_the_hub = || has_mark() && name.parse::<HubModel>().is_ok();
    is_rooted || path.exists() || (is_file_name && !is_on_the_hub())
}

impl FromStr for HubModel {
    type Err = HubError;

    fn from_str(s: &str) -> Result<Self> {
        let s = s.strip_prefix("hf:").unwrap_or(s);
        let (repo, file) = match HUB_HOSTS.iter().find_map(|host| s.strip_prefix(host)) {
            Some(address) if !address.contains(':') => split_address(address)?,
            rest => {
                let s = rest.unwrap_or(s);
                s.split_once(':').map_or((s.to_owned(), None), |(repo, file)| (repo.to_owned(), Some(file)))
            }
        };
        let part = |p: &str| {
            !p.is_empty()
                && !p.starts_with('.')
                && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
        };
        let plain_file =
            |f: &str| !f.is_empty() && f.split('/').all(|p| !p.is_empty() && p != "." && p != "..");
        match repo.split_once('/') {
            Some((owner, name)) if part(owner) && part(name) && file.is_none_or(plain_file) => {
                Ok(Self { file: file.map(str::to_owned), repo })
            }
            _ => Err(HubError::new("expected OWNER/NAME or OWNER/NAME:FILE-OR-QUANT, with or without hf:")),
        }
    }
}

/// The repository, and the file if any, of what follows the hub's host in an address:
/// `OWNER/NAME[/(tree|blob|resolve)/main[/FILE]][?…]`.
fn split_address(address: &str) -> Result<(String, Option<&str>)> {
    let address = address.split(['?', '#']).next().unwrap_or_default().trim_end_matches('/');
    let mut parts = address.splitn(5, '/');
    let repo = [parts.next(), parts.next()].map(Option::unwrap_or_default).join("/");
    match (parts.next(), parts.next(), parts.next()) {
        (None, _, _) => Ok((repo, None)),
        (Some("tree"), Some("main"), None) => Ok((repo, None)),
        (Some("blob" | "resolve"), Some("main"), Some(file)) => Ok((repo, Some(file))),
        (Some("tree" | "blob" | "resolve"), Some(revision), _) if revision != "main" => {
            Err(HubError::new(format!("revision {revision:?} cannot be had, only main")))
        }
        _ => Err(HubError::new(format!("{address:?} is no model's address"))),
    }
}

impl fmt::Display for HubModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf:{}", self.repo)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_names_of_the_hub() {
        // The tests run in the folder of this crate.
        for path in
            ["src", "src/lib.rs", "/a/b", "./a", "../a", "~/a", "a/b.gguf", "model.safetensors", "a:b.gguf"]
        {
            assert!(is_path(path), "{path}");
        }
        for name in
            ["a/b", "a/b:q8_0", "a/b:sub/x.gguf", "hf:a/b:x.gguf", "hf.co/a/b/blob/main/x.gguf", "demo"]
        {
            assert!(!is_path(name), "{name}");
        }
    }
}
