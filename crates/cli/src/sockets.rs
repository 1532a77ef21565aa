//! Where the server's listening sockets come from: its own, systemd's, or those of a running server that it follows.

use anyhow::{Result, bail};
use realizar_server::{Config, Models, Server};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

#[cfg(target_os = "linux")]
pub(crate) use crate::takeover::Offer;

/// Nobody takes over where sockets cannot be passed on.
#[cfg(not(target_os = "linux"))]
pub(crate) struct Offer;

/// What is known of the sockets before the model is loaded.
pub(crate) struct Sockets {
    by_systemd: Vec<TcpListener>,
    takeover: Option<PathBuf>,
}

impl Sockets {
    /// Takes what systemd passed on. To be called before there are threads, since it changes the environment.
    ///
    /// Errors: these are no TCP sockets, or it is asked for both ways of passing them on.
    pub(crate) fn new(takeover: Option<&Path>) -> Result<Self> {
        let by_systemd = by_systemd()?;
        if takeover.is_some() && !by_systemd.is_empty() {
            bail!("systemd keeps the listening sockets from one process to the next; leave out --takeover");
        }
        if takeover.is_some() && cfg!(not(target_os = "linux")) {
            bail!("--takeover works on Linux only");
        }
        Ok(Self { by_systemd, takeover: takeover.map(Path::to_owned) })
    }

    /// Whether they outlive this process and any that follows it.
    pub(crate) fn are_kept(&self) -> bool {
        !self.by_systemd.is_empty()
    }

    /// A server that listens, and accepts connections in place of the one before. The offer to its successor lasts until it is dropped.
    ///
    /// Errors: a socket, or an option of the server.
    #[cfg(target_os = "linux")]
    pub(crate) fn listen(self, models: Models, config: Config) -> Result<(Server, Option<Offer>)> {
        use crate::takeover::Predecessor;
        let Some(path) = self.takeover else {
            return Ok((Server::with(models, config, self.by_systemd)?, None));
        };
        let (predecessor, sockets) = Predecessor::at(&path)?.unzip();
        let server = Server::with(models, config, sockets.unwrap_or_default())?;
        let offer = Offer::new(&path, &server)?;
        if let Some(predecessor) = predecessor {
            predecessor.succeed()?;
        }
        Ok((server, Some(offer)))
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) fn listen(self, models: Models, config: Config) -> Result<(Server, Option<Offer>)> {
        Ok((Server::bind(models, config)?, None))
    }
}

#[cfg(target_os = "linux")]
fn by_systemd() -> Result<Vec<TcpListener>> {
    use anyhow::Context;
    let mut passed_on = listenfd::ListenFd::from_env();
    let taken = (0..passed_on.len()).filter_map(|i| passed_on.take_tcp_listener(i).transpose());
    let taken = taken.collect::<std::io::Result<_>>();
    taken.context("could not use the sockets of LISTEN_FDS: they must be listening TCP sockets")
}

#[cfg(not(target_os = "linux"))]
fn by_systemd() -> Result<Vec<TcpListener>> {
    Ok(Vec::new())
}
