//! Connections and their time limits.
//!
//! A client that sends its headers slowly, sends its body slowly (see `json`) or does not read its answer loses its connection, so
//! that none is held for nothing.

use crate::access::Peer;
use crate::config::Config;
use axum::Router;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request};
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep};

/// How long to wait for other connections to end where the system has no handle or memory for one more.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A run of failures of the same kind, of which only the first and the end are worth a line in the log.
#[derive(Debug, Default)]
struct Failing {
    n_failures: u64,
}

impl Failing {
    /// Counts a failure; whether it is the first.
    fn first(&mut self) -> bool {
        self.n_failures += 1;
        self.n_failures == 1
    }

    /// How many failures there were, if any.
    fn ended(&mut self) -> Option<u64> {
        let n_failures = std::mem::take(&mut self.n_failures);
        (n_failures > 0).then_some(n_failures)
    }
}

/// Whether a client gave up before it was accepted, which says nothing about the next.
fn is_the_client_s(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted)
}

/// All connections of a server.
#[derive(Clone)]
pub(crate) struct Connections {
    header_timeout: Duration,
    write_timeout: Duration,
    places: Arc<Semaphore>,
    /// Whether each answer is the last on its connection.
    leaving: Arc<AtomicBool>,
    /// Whether connections should end with the answer that they deliver.
    closing: watch::Sender<bool>,
}

impl Connections {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            header_timeout: config.header_timeout,
            write_timeout: config.write_timeout,
            places: Arc::new(Semaphore::new(config.max_connections.max(1))),
            leaving: Arc::default(),
            closing: watch::Sender::new(false),
        }
    }

    /// Accepts connections and answers on each, for ever.
    pub(crate) async fn accept(self, listener: TcpListener, router: Router) {
        let leaving = self.leaving.clone();
        // Read when an answer begins, since its connection may be older than the wish to end it.
        let router = router.layer(axum::middleware::map_response(move |mut answer: Response| {
            if leaving.load(Relaxed) {
                answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            std::future::ready(answer)
        }));
        let mut failing = Failing::default();
        loop {
            // Never closed, so there is always a place in the end.
            let place = self.places.clone().acquire_owned().await;
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_the_client_s(&error) => continue,
                Err(error) => {
                    if failing.first() {
                        tracing::warn!(%error, "cannot accept connections; trying on until others end");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if let Some(n_failures) = failing.ended() {
                tracing::info!(n_failures, "accepts connections again");
            }
            let (this, router) = (self.clone(), router.clone());
            tokio::spawn(async move {
                this.serve(stream, peer, router).await;
                drop(place);
            });
        }
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr, router: Router) {
        // Tokens are small and wanted at once.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(Patient::new(stream, self.write_timeout));
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.header_timeout);
        let router = TowerToHyperService::new(router);
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            router.call(request)
        });
        let connection = http.serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let mut closing = self.closing.subscribe();
        let closed = async {
            // The sender is ours.
            let _ = closing.wait_for(|&c| c).await;
        };
        let done = tokio::select! {
            done = &mut connection => done,
            () = closed => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, "connection ended");
        }
    }

    /// Lets all connections end with their next answer, and after `linger` those that wait for no answer; returns when all are gone, or
    /// at `end`.
    pub(crate) async fn leave(&self, linger: Duration, end: std::time::Instant) {
        self.leaving.store(true, Relaxed);
        // Each connection holds a receiver.
        let _ = tokio::time::timeout(linger, self.closing.closed()).await;
        self.close(end.saturating_duration_since(std::time::Instant::now())).await;
    }

    /// Ends all connections, each after the answer that it delivers, and waits for that.
    pub(crate) async fn close(&self, timeout: Duration) {
        let all_gone = async {
            // Each connection holds a receiver.
            self.closing.send_replace(true);
            self.closing.closed().await;
        };
        let _ = tokio::time::timeout(timeout, all_gone).await;
    }
}

/// A connection that breaks off when the other side takes nothing for too long.
struct Patient<S> {
    stream: S,
    timeout: Duration,
    /// While a write waits: when it has waited too long.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Patient<S> {
    fn new(stream: S, timeout: Duration) -> Self {
        Self { stream, timeout, deadline: None }
    }

    /// Passes on the outcome of a write, or an error if it has waited too long.
    fn bounded<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.deadline = None;
            return outcome;
        }
        let end = Instant::now() + self.timeout;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(end)));
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its answer")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.bounded(cx, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.bounded(cx, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime")
            .block_on(test);
    }

    #[test]
    fn a_run_of_failures_is_told_once() {
        let mut failing = Failing::default();
        assert_eq!(failing.ended(), None);
        assert_eq!([failing.first(), failing.first(), failing.first()], [true, false, false]);
        assert_eq!(failing.ended(), Some(3));
        assert_eq!((failing.ended(), failing.first()), (None, true));
    }

    #[test]
    fn a_reader_that_stops_reading_is_given_up() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(8);
            let mut patient = Patient::new(ours, Duration::from_millis(50));
            patient.write_all(b"12345678").await.expect("room");
            let start = Instant::now();
            let error = patient.write_all(b"9").await.expect_err("no room");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(50));
            let mut read = [0; 8];
            theirs.read_exact(&mut read).await.expect("what was written");
            assert_eq!(&read, b"12345678");
        });
    }

    #[test]
    fn each_byte_that_is_read_gives_new_patience() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(1);
            let mut patient = Patient::new(ours, Duration::from_secs(5));
            let start = Instant::now();
            let reads = tokio::spawn(async move {
                let mut read = Vec::new();
                for _ in 0..20 {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    read.push(theirs.read_u8().await.expect("a byte"));
                }
                read
            });
            patient.write_all(&[7; 20]).await.expect("it is read");
            assert_eq!(reads.await.expect("no panic"), [7; 20]);
            assert!(start.elapsed() >= Duration::from_millis(150) && patient.deadline.is_none());
        });
    }
}
