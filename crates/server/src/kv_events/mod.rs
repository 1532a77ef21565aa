//! Tells routers what is in the prefix cache: events in vLLM's encoding over ZeroMQ.
//!
//! The engine's thread hands over what a step changed and never waits. One thread of its own encodes each step's changes as a batch,
//! numbers it and appends it to the [`Log`], a ring of the last batches. Each subscriber has a task with a place in the log (`publish`);
//! a second socket sends again what somebody has missed (`replay`). `zmtp` is as much of ZeroMQ's protocol as that takes: the pure-Rust
//! library for it waits for the slowest subscriber before it sends the next message.

mod encode;
mod log;
mod publish;
mod replay;
mod zmtp;

use log::Log;
use realizar_engine::{CacheEvent, Client};
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

/// Where and how to publish what is in the prefix cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvents {
    /// Where subscribers connect, such as `tcp://*:5557`; `*` listens at all addresses, port 0 takes any free one.
    pub endpoint: String,
    /// Where subscribers ask for batches that they have missed. Default nowhere.
    pub replay_endpoint: Option<String>,
    /// What each message begins with, for subscribers that choose by it. Default empty.
    pub topic: String,
    /// Batches kept for subscribers that are late or ask again; the engine fills at most one per step. Default 10,000.
    pub buffer: usize,
}

impl Default for KvEvents {
    fn default() -> Self {
        Self { endpoint: "tcp://*:5557".into(), replay_endpoint: None, topic: String::new(), buffer: 10_000 }
    }
}

/// Why events cannot be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KvEventsError {
    /// It is not of the form that is offered.
    #[error("{endpoint:?} is no endpoint for KV events; expected tcp://HOST:PORT, such as tcp://*:5557")]
    Endpoint {
        /// As asked for.
        endpoint: String,
    },
    /// There is no such address, or somebody else listens there.
    #[error("could not listen at {endpoint} for subscribers of KV events")]
    Bind {
        /// As asked for.
        endpoint: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system gives no thread.
    #[error("could not start the thread that publishes KV events")]
    Thread(#[source] std::io::Error),
}

/// Connections to each socket at one time; routers are few.
const MAX_CONNECTIONS: usize = 256;

impl KvEvents {
    /// Listens, and publishes what is and what changes in an engine's prefix cache until the engine ends. Returns the address of each socket.
    ///
    /// Errors: the endpoints, or the system gives no thread.
    pub fn publish(&self, client: &Client) -> Result<Vec<SocketAddr>, KvEventsError> {
        let mut listeners = vec![listen(&self.endpoint)?];
        if let Some(endpoint) = &self.replay_endpoint {
            listeners.push(listen(endpoint)?);
        }
        let addresses =
            listeners.iter().map(std::net::TcpListener::local_addr).collect::<Result<Vec<_>, _>>();
        let addresses =
            addresses.map_err(|source| KvEventsError::Bind { endpoint: self.endpoint.clone(), source })?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(KvEventsError::Thread)?;
        let (batches, received) = mpsc::unbounded_channel();
        let block_size = client.info().block_size;
        let log = Arc::new(Log::new(self.topic.clone().into_bytes(), self.buffer));
        tracing::info!(options = ?self, ?addresses, "KV events");
        std::thread::Builder::new()
            .name("kv-events".into())
            .spawn(move || runtime.block_on(run(listeners, log, received, block_size)))
            .map_err(KvEventsError::Thread)?;
        // Without the thread there is nobody to tell.
        client.record_cache(move |events| drop(batches.send(events)));
        Ok(addresses)
    }
}

fn listen(endpoint: &str) -> Result<std::net::TcpListener, KvEventsError> {
    let wrong = || KvEventsError::Endpoint { endpoint: endpoint.to_owned() };
    let refuse = |source| KvEventsError::Bind { endpoint: endpoint.to_owned(), source };
    let (host, port) =
        endpoint.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
    let port: u16 = if port == "*" { 0 } else { port.parse().map_err(|_| wrong())? };
    let host = match host {
        "" => return Err(wrong()),
        "*" => "0.0.0.0",
        host => host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host),
    };
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(refuse)?.collect();
    let listener = std::net::TcpListener::bind(&*addresses).map_err(refuse)?;
    listener.set_nonblocking(true).map_err(refuse)?;
    Ok(listener)
}

async fn run(
    listeners: Vec<std::net::TcpListener>,
    log: Arc<Log>,
    mut received: mpsc::UnboundedReceiver<Vec<CacheEvent>>,
    block_size: usize,
) {
    let mut sockets = listeners.into_iter().map(TcpListener::from_std);
    if let Some(Ok(listener)) = sockets.next() {
        tokio::spawn(accept(listener, log.clone(), publish::serve));
    }
    if let Some(Ok(listener)) = sockets.next() {
        tokio::spawn(accept(listener, log.clone(), replay::serve));
    }
    while let Some(events) = received.recv().await {
        encode::batches(&events, block_size).for_each(|batch| log.append(batch));
    }
}

/// Serves each connection in a task of its own.
async fn accept<F>(listener: TcpListener, log: Arc<Log>, serve: impl Fn(TcpStream, Arc<Log>) -> F)
where
    F: Future<Output = Result<(), zmtp::Error>> + Send + 'static,
{
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let permit = room.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, peer)) => {
                let served = serve(stream, log.clone());
                tokio::spawn(async move {
                    if let Err(error) = served.await {
                        tracing::debug!(%peer, %error, "a subscriber of KV events is gone");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a subscriber of KV events");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}
