//! The life of a server: bind, run, drain, end.

use crate::app::App;
use crate::config::Config;
use crate::connections::Connections;
use crate::models::Models;
use crate::{routes, watchdog};
use axum::Router;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// How long connections may take to deliver what is left when the engine has ended.
const LAST_WRITES: Duration = Duration::from_secs(2);
/// How long idle connections are kept for one more request after another process has taken over: a client may be sending one.
const LINGER: Duration = Duration::from_secs(5);

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system gives no threads.
    #[error("could not start the server's threads")]
    Threads(#[source] std::io::Error),
    /// There is no address, it is not ours, or somebody else listens there.
    #[error("could not listen at {host}:{port}")]
    Bind {
        /// As asked for.
        host: String,
        /// As asked for.
        port: u16,
        /// What the system says.
        source: std::io::Error,
    },
    /// The process cannot be told to stop.
    #[error("could not listen for signals")]
    Signals(#[source] std::io::Error),
    /// A listening socket that another process made cannot be used.
    #[error("could not use the listening socket that was passed on")]
    PassedOn(#[source] std::io::Error),
    /// Spans cannot be sent there.
    #[error("could not send spans to {url:?}: {reason}")]
    Otlp {
        /// As asked for.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing to listen at.
    #[error("the server needs a name or address to listen at")]
    NoHost,
    /// The model has no name by which clients could ask for it.
    #[error("a model needs a name, and a server a model")]
    NoName,
    /// Clients could not tell two models apart.
    #[error("two models have the name {name:?}")]
    SameName {
        /// The name.
        name: String,
    },
    /// An option that is no value of its header.
    #[error("{origin:?} is not an origin; expected * or such as https://example.com")]
    Origin {
        /// What was given.
        origin: String,
    },
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As told, with all answers finished or out of time.
    Drained,
    /// At once, because it was told twice.
    AtOnce,
}

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    listeners: Vec<TcpListener>,
    /// One per listener.
    addresses: Vec<SocketAddr>,
    app: Arc<App>,
    router: Router,
    told: watch::Sender<Told>,
}

/// What a server was told.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// How often to stop.
    n_stops: u32,
    /// That another process accepts its connections.
    is_succeeded: bool,
}

/// Tells a server to stop, from any thread.
#[derive(Clone, Debug)]
pub struct Handle {
    told: watch::Sender<Told>,
}

impl Handle {
    /// The first time, the server takes no more requests and ends when the answers are finished; the second time, at once.
    pub fn stop(&self) {
        self.told.send_modify(|told| told.n_stops += 1);
    }

    /// Says that another process accepts connections at the same sockets from now on. The server accepts no more, answers what comes on
    /// those that it has, and ends when they are gone, after [`Config::drain`] at the latest.
    pub fn succeeded(&self) {
        self.told.send_modify(|told| told.is_succeeded = true);
    }
}

impl Server {
    /// Listens; nothing is answered before [`Server::run`].
    ///
    /// Errors: the address or an origin that cannot be.
    pub fn bind(models: Models, config: Config) -> Result<Self, Error> {
        Self::with(models, config, Vec::new())
    }

    /// Takes sockets that listen already, instead of those of [`Config::hosts`]; as [`Server::bind`] if there are none.
    ///
    /// Errors: a socket or an origin that cannot be.
    pub fn with(models: Models, config: Config, sockets: Vec<StdListener>) -> Result<Self, Error> {
        let is_origin = |o: &str| o == "*" || (o.contains("://") && o.bytes().all(|b| b.is_ascii_graphic()));
        if let Some(origin) = config.cors.iter().find(|o| !is_origin(o)) {
            return Err(Error::Origin { origin: origin.clone() });
        }
        let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // The cores belong to the engine; moving bytes takes little.
            .worker_threads(n_cores.clamp(2, 4))
            // Templates and tokenizers compute: more threads than cores would only share them.
            .max_blocking_threads(n_cores.max(2))
            .thread_name("http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(Error::Threads)?;
        let (listeners, addresses) = match sockets.is_empty() {
            true => runtime.block_on(listen(&config))?,
            false => {
                // Tokio registers them with its runtime.
                let _entered = runtime.enter();
                sockets.into_iter().map(adopt).collect::<std::io::Result<_>>().map_err(Error::PassedOn)?
            }
        };
        tracing::info!(?config, ?models, ?addresses, "server listens");
        let (app, router) = routes::router(models, config, &addresses)?;
        Ok(Self { runtime, listeners, addresses, app, router, told: watch::Sender::default() })
    }

    /// Where it listens: an address for each of [`Config::hosts`].
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// For telling it to stop.
    pub fn handle(&self) -> Handle {
        Handle { told: self.told.clone() }
    }

    /// Its listening sockets once more, to be passed on to another process.
    ///
    /// Errors: the process has no file descriptors left.
    #[cfg(unix)]
    pub fn sockets(&self) -> std::io::Result<Vec<StdListener>> {
        use std::os::fd::AsFd;
        self.listeners.iter().map(|socket| Ok(socket.as_fd().try_clone_to_owned()?.into())).collect()
    }

    /// Answers until it is told to stop, by its [`Handle`] or by SIGTERM, SIGINT or SIGHUP: then it takes no more requests, says so at
    /// `/ready`, finishes what runs for up to [`Config::drain`], and ends. Told again, it ends at once.
    ///
    /// Errors: the process cannot listen for signals, or gets no threads.
    pub fn run(self) -> Result<Ended, Error> {
        let Self { runtime, listeners, app, router, told, .. } = self;
        let ended = runtime.block_on(async {
            let signals = signals().map_err(Error::Signals)?;
            watchdog::log(Arc::downgrade(&app)).map_err(Error::Threads)?;
            tokio::spawn(watchdog::beat(app.clone()));
            tokio::spawn(pass_on(signals, Handle { told: told.clone() }));
            Ok(serve(listeners, app.clone(), router, told.subscribe()).await)
        });
        if let Some(spans) = &app.spans {
            spans.end();
        }
        // Whoever still computes or waits for the engine is not waited for.
        runtime.shutdown_background();
        ended
    }
}

/// Listens at all hosts, and at the same port of each.
async fn listen(config: &Config) -> Result<(Vec<TcpListener>, Vec<SocketAddr>), Error> {
    let (mut listeners, mut addresses) = (Vec::new(), Vec::<SocketAddr>::new());
    for host in &config.hosts {
        let port = addresses.first().map_or(config.port, SocketAddr::port);
        let refuse = |source| Error::Bind { host: host.clone(), port, source };
        let listener = TcpListener::bind((host.as_str(), port)).await.map_err(refuse)?;
        addresses.push(listener.local_addr().map_err(refuse)?);
        listeners.push(listener);
    }
    match listeners.is_empty() {
        true => Err(Error::NoHost),
        false => Ok((listeners, addresses)),
    }
}

fn adopt(socket: StdListener) -> std::io::Result<(TcpListener, SocketAddr)> {
    socket.set_nonblocking(true)?;
    let address = socket.local_addr()?;
    Ok((TcpListener::from_std(socket)?, address))
}

async fn serve(
    listeners: Vec<TcpListener>,
    app: Arc<App>,
    router: Router,
    mut told: watch::Receiver<Told>,
) -> Ended {
    let connections = Connections::new(&app.config);
    let accept = |listener| tokio::spawn(connections.clone().accept(listener, router.clone()));
    let accepting: Vec<_> = listeners.into_iter().map(accept).collect();
    let until = async |told: &mut watch::Receiver<Told>, is_so: fn(&Told) -> bool| {
        // The sender lives as long as this.
        let _ = told.wait_for(is_so).await;
    };
    until(&mut told, |told| told.n_stops >= 1 || told.is_succeeded).await;
    let is_succeeded = told.borrow().is_succeeded || app.config.keeps_sockets;
    let end = Instant::now() + app.config.drain;
    let drained = async {
        if is_succeeded {
            tracing::info!("connections end with their next answers");
            accepting.iter().for_each(|task| task.abort());
            connections.leave(LINGER.min(app.config.drain / 2), end).await;
        }
        // New connections are still answered meanwhile where nobody else does, so that probes see why nothing else is.
        drain(&app, end.saturating_duration_since(Instant::now())).await;
        accepting.iter().for_each(|task| task.abort());
        connections.close(LAST_WRITES).await;
    };
    tokio::select! {
        () = drained => Ended::Drained,
        () = until(&mut told, |told| told.n_stops >= 2) => Ended::AtOnce,
    }
}

/// Lets all engines finish what they have, and no more.
async fn drain(app: &App, timeout: Duration) {
    app.models.close();
    let (done, is_done) = tokio::sync::oneshot::channel();
    let models = app.models.loaded();
    tracing::info!(n_models = models.len(), "draining");
    let waits = std::thread::Builder::new().name("drain".into()).spawn(move || {
        std::thread::scope(|scope| {
            for model in &models {
                scope.spawn(|| model.shutdown(timeout));
            }
        });
        // Nobody waits any more if it was told twice.
        let _ = done.send(());
    });
    if waits.is_ok() {
        let _ = is_done.await;
    }
}

/// What tells the process to stop.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    /// Absent where the process was started to outlive its terminal, as by nohup.
    hangup: Option<tokio::signal::unix::Signal>,
}

#[cfg(unix)]
fn signals() -> std::io::Result<Signals> {
    use tokio::signal::unix::{SignalKind, signal};
    let hangup = (!hangup_is_ignored()).then(|| signal(SignalKind::hangup())).transpose()?;
    Ok(Signals {
        terminate: signal(SignalKind::terminate())?,
        interrupt: signal(SignalKind::interrupt())?,
        hangup,
    })
}

/// Whether whoever started the process made it ignore SIGHUP; only Linux tells.
#[cfg(unix)]
fn hangup_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal n is bit n - 1, and SIGHUP is 1 everywhere.
    ignored.is_some_and(|mask| mask & 1 != 0)
}

#[cfg(unix)]
async fn pass_on(signals: Signals, handle: Handle) {
    let Signals { mut terminate, mut interrupt, mut hangup } = signals;
    loop {
        let hung_up = async {
            match &mut hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = hung_up => {}
        }
        handle.stop();
    }
}

#[cfg(not(unix))]
fn signals() -> std::io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
async fn pass_on((): (), handle: Handle) {
    while tokio::signal::ctrl_c().await.is_ok() {
        handle.stop();
    }
}
