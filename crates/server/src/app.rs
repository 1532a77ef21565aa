//! What all requests share.

use crate::auth::Caller;
use crate::bodies::Budget;
use crate::config::Config;
use crate::error::{ApiError, Result};
use crate::generation::{Generation, Plan, Wanted};
use crate::response_store::ResponseStore;
use crate::seal::Seal;
use crate::sizes::Sizes;
use crate::structured::{Compiled, FormatPool, GrammarError, Grammars, Refused};
use crate::tool_calls::Syntax;
use crate::watchdog::Watchdog;
use realizar_engine::{Constraint, TextEngine};
use realizar_model::chat_template::Timestamp;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// When a client whose format found no place in the queue should come again.
const FORMAT_RETRY: Duration = Duration::from_secs(1);

/// The engine and the options, with what is computed once.
pub(crate) struct App {
    pub(crate) engine: TextEngine,
    pub(crate) config: Config,
    /// When the server started, in seconds since 1970.
    pub(crate) created: u64,
    /// The OpenAPI document.
    pub(crate) openapi: String,
    /// Memory for bodies that are still arriving.
    pub(crate) bodies: Arc<Budget>,
    /// Lengths of prompts and answers so far.
    pub(crate) sizes: Arc<Sizes>,
    /// How the model writes tool calls.
    pub(crate) syntax: &'static Syntax,
    grammars: OnceLock<std::result::Result<Grammars, GrammarError>>,
    /// Where formats are compiled.
    pub(crate) formats: FormatPool,
    pub(crate) watchdog: Watchdog,
    /// Responses that requests may go on after.
    pub(crate) responses: ResponseStore,
    /// Signs what the model thinks.
    pub(crate) seal: Seal,
    entropy: RandomState,
    next_id: AtomicU64,
}

impl App {
    /// Errors: the system gives no threads.
    pub(crate) fn new(engine: TextEngine, config: Config, openapi: String) -> std::io::Result<Self> {
        let syntax = Syntax::of(engine.template());
        tracing::info!(syntax = syntax.name, "tool calls are recognised");
        // The cores belong to the engine; one thread that is busy with a large format must not delay all others.
        let n_threads = std::thread::available_parallelism().map_or(2, |n| n.get() / 8).clamp(2, 4);
        Ok(Self {
            formats: FormatPool::new(n_threads, config.format_timeout)?,
            watchdog: Watchdog::new(),
            responses: ResponseStore::new(config.response_memory),
            seal: Seal::new(&config.names, &config.api_keys),
            engine,
            bodies: Budget::new(config.body_memory, config.max_body),
            config,
            created: unix_time(),
            openapi,
            syntax,
            grammars: OnceLock::new(),
            sizes: Arc::default(),
            entropy: RandomState::new(),
            next_id: AtomicU64::new(0),
        })
    }

    /// The model's first name.
    pub(crate) fn name(&self) -> &str {
        self.config.names.first().map_or("model", String::as_str)
    }

    /// The name under which a request asks for the model.
    ///
    /// Errors: 404 for a model that is not here.
    pub(crate) fn check_model(&self, asked: Option<&str>) -> Result<String> {
        match asked {
            None => Ok(self.name().to_owned()),
            Some(name) if self.config.names.iter().any(|n| n == name) => Ok(name.to_owned()),
            Some(name) => {
                let known = self.config.names.join(", ");
                let message = format!("the model {name:?} does not exist; this server has {known}");
                Err(ApiError::not_found("model_not_found", message).param("model"))
            }
        }
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

    /// What compiles grammars for the model. The first call sorts its vocabulary.
    fn grammars(&self) -> std::result::Result<&Grammars, GrammarError> {
        let make = || {
            let tokenizer = self.engine.tokenizer();
            Grammars::new(tokenizer, tokenizer.eos_ids())
        };
        self.grammars.get_or_init(make).as_ref().map_err(Clone::clone)
    }

    /// What makes an answer follow the format that a request wants.
    ///
    /// Errors: what is wrong with the format, by the field that says it; 429 if too many formats wait to be compiled.
    async fn constraint(self: &Arc<Self>, wanted: Wanted) -> Result<Box<dyn Constraint>> {
        let Wanted { key, field, before, format } = wanted;
        let app = self.clone();
        let work = move |deadline| {
            let grammars = app.grammars()?;
            grammars.compile_until(&format(&app)?, deadline)
        };
        let compiled = self.formats.compile(key, work).await.map_err(|refused| match refused {
            Refused::Format(error) => ApiError::from(error).or_param(field),
            Refused::Busy => ApiError::overloaded("too many formats wait to be compiled", FORMAT_RETRY),
        })?;
        self.compute(move |app| {
            let constraint = {
                let compiled: &Compiled = &compiled.lock().unwrap_or_else(PoisonError::into_inner);
                compiled.constraint()
            };
            Ok(app.grammars()?.after(&before, constraint)?)
        })
        .await
    }

    /// Hands prompts to the engine, with what the answers must look like. `field`: the one that has the prompts.
    ///
    /// Errors: as [`App::constraint`] and [`Plan::submit`].
    pub(crate) async fn start(
        self: &Arc<Self>,
        mut plan: Plan,
        wanted: Option<Wanted>,
        prompts: Vec<Vec<u32>>,
        field: &'static str,
    ) -> Result<Generation> {
        if let Some(wanted) = wanted {
            plan.constraint = Some(self.constraint(wanted).await?);
        }
        self.compute(move |app| plan.submit(app, prompts).map_err(|error| error.or_param(field))).await
    }

    /// What a request shares cached prefixes with.
    pub(crate) fn cache_salt(&self, caller: Caller, salt: Option<&str>) -> Option<u64> {
        let key = caller.key.filter(|_| self.config.salt_by_key);
        (key.is_some() || salt.is_some()).then(|| self.entropy.hash_one((key, salt)))
    }

    /// Runs work that computes for a while beside the streams, and not between them.
    pub(crate) async fn compute<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&App) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (app, span) = (self.clone(), tracing::Span::current());
        let work = move || {
            let done = span.in_scope(|| work(&app));
            app.watchdog.prepared();
            done
        };
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|_| Err(ApiError::internal("the request could not be prepared")))
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
