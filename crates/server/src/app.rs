//! What all requests share, whichever model they ask.

use crate::auth::Caller;
use crate::bodies::Budget;
use crate::config::Config;
use crate::format_pool::FormatPool;
use crate::models::Models;
use crate::response_store::ResponseStore;
use crate::server::Error;
use crate::spans::Spans;
use crate::watchdog::Watchdog;
use realizar_model::chat_template::Timestamp;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a client whose format found no place in the queue should come again.
pub(crate) const FORMAT_RETRY: Duration = Duration::from_secs(1);

/// The models and the options, with what is computed once.
pub(crate) struct App {
    pub(crate) models: Models,
    pub(crate) config: Config,
    /// When the server started, in seconds since 1970.
    pub(crate) created: u64,
    /// The OpenAPI document.
    pub(crate) openapi: String,
    /// Memory for bodies that are still arriving.
    pub(crate) bodies: Arc<Budget>,
    /// Where formats are compiled.
    pub(crate) formats: FormatPool,
    pub(crate) watchdog: Watchdog,
    /// Responses that requests may go on after.
    pub(crate) responses: ResponseStore,
    /// Spans of requests, if somebody collects them.
    pub(crate) spans: Option<Spans>,
    entropy: RandomState,
    next_id: AtomicU64,
}

impl App {
    /// Errors: the system gives no threads; the address of the collector cannot be one.
    pub(crate) fn new(models: Models, config: Config, openapi: String) -> Result<Self, Error> {
        let spans = config
            .otlp
            .as_deref()
            .map(|url| Spans::new(url).map_err(|reason| Error::Otlp { url: url.to_owned(), reason }));
        // The cores belong to the engines; one thread that is busy with a large format must not delay all others.
        let n_threads = std::thread::available_parallelism().map_or(2, |n| n.get() / 8).clamp(2, 4);
        Ok(Self {
            formats: FormatPool::new(n_threads, config.format_timeout).map_err(Error::Threads)?,
            watchdog: Watchdog::new(),
            responses: ResponseStore::new(config.response_memory),
            models,
            bodies: Budget::new(config.body_memory, config.max_body),
            config,
            created: unix_time(),
            openapi,
            spans: spans.transpose()?,
            entropy: RandomState::new(),
            next_id: AtomicU64::new(0),
        })
    }

    /// A name that no other answer has.
    pub(crate) fn new_id(&self, prefix: &str) -> String {
        let n = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{:016x}{:08x}", self.entropy.hash_one(n), n & 0xffff_ffff)
    }

    /// A number that no other request has and nobody can guess.
    pub(crate) fn new_seed(&self) -> u64 {
        self.entropy.hash_one(self.next_id.fetch_add(1, Ordering::Relaxed))
    }

    /// What a request shares cached prefixes with.
    pub(crate) fn cache_salt(&self, caller: Caller, salt: Option<&str>) -> Option<u64> {
        let key = caller.key.filter(|_| self.config.salt_by_key);
        (key.is_some() || salt.is_some()).then(|| self.entropy.hash_one((key, salt)))
    }
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// A time, in seconds since 1970, as RFC 3339 has it in UTC.
pub(crate) fn rfc3339(seconds: u64) -> String {
    // The format is a valid one.
    Timestamp::from_unix(seconds as i64, 0).strftime("%Y-%m-%dT%H:%M:%SZ").unwrap_or_default()
}

/// The time as RFC 3339 has it in UTC, with nanoseconds.
pub(crate) fn now_rfc3339() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(now.as_secs()).replace('Z', &format!(".{:09}Z", now.subsec_nanos()))
}

/// The time that templates may print, in UTC.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix(unix_time() as i64, 0)
}
