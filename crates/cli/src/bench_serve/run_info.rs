//! When and where a run was.

use serde::{Deserialize, Serialize};
use std::num::NonZero;

/// What a reader needs to tell one run from another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RunInfo {
    /// In UTC, such as `2026-11-27 16:05`.
    pub(super) date: String,
    /// The machine that sent the requests: processor, cores and system. The server's own, if the server was there too.
    pub(super) machine: String,
    /// The version of this program.
    pub(super) client_version: String,
    /// What the server says its version is.
    pub(super) server_version: Option<String>,
}

impl RunInfo {
    pub(super) fn now(server_version: Option<String>) -> Self {
        // The format is one that it knows.
        let date = realizar::now().strftime("%Y-%m-%d %H:%M").unwrap_or_default();
        Self { date, machine: machine(), client_version: env!("CARGO_PKG_VERSION").into(), server_version }
    }

    /// In a line, without the server's address.
    pub(super) fn in_words(&self) -> String {
        let Self { date, machine, client_version, server_version } = self;
        let server =
            server_version.as_ref().map_or("of a version it does not say".into(), |v| format!("version {v}"));
        format!("{date} UTC, server {server}, client realizar {client_version} on {machine}")
    }
}

fn machine() -> String {
    // Of Linux on x86-64; elsewhere the system and its cores have to do.
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpu
        .lines()
        .find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim().to_owned()));
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let system = format!("{} {}", std::env::consts::OS, std::env::consts::ARCH);
    let words = [name, Some(format!("{cores} cores")), Some(system)];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
