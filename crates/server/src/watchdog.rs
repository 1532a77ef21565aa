//! Notices when a part of the server does not get on: an engine's thread, the threads that compute its masks, those that compile formats,
//! those that prepare requests, or the async runtime.
//!
//! Each part is judged by what it does when it gets on. An engine says what it is at (`Client::stuck`). A format has a time limit,
//! so a thread that has been at one for several times that is stuck. Threads that prepare requests finish one after the other, and
//! take a probe in between. The runtime beats twice a second. `/health` asks, and a thread of its own logs, since a runtime that is
//! stuck answers no probe.

use crate::app::App;
use crate::models::Resident;
use realizar_engine::StuckPart;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Between two beats of the runtime.
const BEAT: Duration = Duration::from_millis(500);
/// How long the runtime may be silent.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// How long the threads that prepare requests may finish nothing: tokenizing the largest body takes seconds.
const LONGEST_PREPARATION: Duration = Duration::from_secs(30);
/// How many times its limit a format may take.
const FORMAT_MARGIN: u32 = 5;

/// When the server's threads last got on.
pub(crate) struct Watchdog {
    start: Instant,
    /// In milliseconds since the start; 0 before the first time.
    runtime_ms: AtomicU64,
    preparation_ms: AtomicU64,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), runtime_ms: AtomicU64::new(0), preparation_ms: AtomicU64::new(0) }
    }

    /// A thread that prepares requests has finished something.
    pub(crate) fn prepared(&self) {
        self.preparation_ms.store(self.now_ms(), Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis().max(1) as u64
    }

    /// For how long there was no beat, if that is longer than `limit`.
    fn silent(&self, last_ms: &AtomicU64, limit: Duration) -> Option<Duration> {
        let last = last_ms.load(Relaxed);
        let silence = Duration::from_millis(self.now_ms().saturating_sub(last));
        (last > 0 && silence > limit).then_some(silence)
    }
}

/// Which part is stuck, and for how long, in words.
pub(crate) fn stuck(app: &App) -> Option<String> {
    for model in app.models.loaded() {
        let model = match &model {
            Resident::Text(model) => model,
            Resident::Encoder(encoder) => {
                let busy =
                    encoder.text.client().busy().filter(|busy| *busy > app.config.longest_encoder_step);
                let Some(busy) = busy else { continue };
                let (name, seconds) = (model.name(), busy.as_secs());
                return Some(format!("the encoder {name} has been in one step for {seconds} s"));
            }
        };
        let Some(stuck) = model.engine.client().stuck() else { continue };
        let (name, seconds) = (model.name(), stuck.since.as_secs());
        return Some(match stuck.part {
            StuckPart::Host => format!("the engine of {name} has been between two steps for {seconds} s"),
            StuckPart::Device => {
                format!("the engine of {name} has been in one step on the device for {seconds} s")
            }
            StuckPart::Masks => {
                format!("all threads that compute masks for {name} have been at one each for {seconds} s")
            }
        });
    }
    if let Some(busy) = app.formats.busy().filter(|busy| *busy > FORMAT_MARGIN * app.config.format_timeout) {
        return Some(format!(
            "all threads that compile formats have been at one each for {} s",
            busy.as_secs()
        ));
    }
    let watchdog = &app.watchdog;
    if let Some(silence) = watchdog.silent(&watchdog.preparation_ms, LONGEST_PREPARATION) {
        return Some(format!(
            "no thread that prepares requests has finished anything for {} s",
            silence.as_secs()
        ));
    }
    let silence = watchdog.silent(&watchdog.runtime_ms, LONGEST_SILENCE)?;
    Some(format!("the async runtime has not run its tasks for {} s", silence.as_secs()))
}

/// Beats as long as the runtime runs; to be spawned there.
pub(crate) async fn beat(app: Arc<App>) {
    let mut probe = None::<tokio::task::JoinHandle<()>>;
    loop {
        app.watchdog.runtime_ms.store(app.watchdog.now_ms(), Relaxed);
        if probe.as_ref().is_none_or(tokio::task::JoinHandle::is_finished) {
            let app = app.clone();
            probe = Some(tokio::task::spawn_blocking(move || app.watchdog.prepared()));
        }
        tokio::time::sleep(BEAT).await;
    }
}

/// Logs what is stuck, once each time, from a thread that ends with the server.
///
/// Errors: the system gives no thread.
pub(crate) fn log(app: Weak<App>) -> std::io::Result<()> {
    let watch = move || {
        let mut was_stuck = false;
        while let Some(app) = app.upgrade() {
            let stuck = stuck(&app);
            drop(app);
            match &stuck {
                Some(what) if !was_stuck => tracing::error!(what, "the server is stuck"),
                None if was_stuck => tracing::info!("the server gets on again"),
                _ => {}
            }
            was_stuck = stuck.is_some();
            std::thread::sleep(2 * BEAT);
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(watch).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Config, LoadError, LoadedModel, ModelEntry, ModelLimits, ModelLoader, Models};
    use realizar_structured::GrammarError;

    struct NoModels;

    impl ModelLoader for NoModels {
        fn load(&self, _name: &str, _alone: bool) -> Result<LoadedModel, LoadError> {
            Err(LoadError::Failed("there is none".into()))
        }
    }

    fn app(config: Config) -> Arc<App> {
        let entry = ModelEntry { names: vec!["demo".into()], ..ModelEntry::default() };
        let models = Models::many(vec![entry], Arc::new(NoModels), ModelLimits::default()).unwrap();
        Arc::new(App::new(models, config, String::new()).unwrap())
    }

    fn until(what: &str, done: impl Fn() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn formats_that_hold_all_threads_are_named() {
        let app = app(Config { format_timeout: Duration::from_millis(20), ..Config::default() });
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let held = Arc::new(std::sync::Mutex::new(held));
        for i in 0..16 {
            let (app, held) = (app.clone(), held.clone());
            runtime.spawn(async move {
                let work = move |_| {
                    let _ = held.lock().unwrap().recv();
                    Err(GrammarError::Grammar { reason: "it was never meant to be compiled".into() })
                };
                drop(app.formats.compile(i.to_string(), work).await);
            });
        }
        until("stuck", || stuck(&app).is_some_and(|what| what.contains("compile formats")));
        drop(hold);
        until("well again", || stuck(&app).is_none());
    }

    #[test]
    fn a_runtime_that_is_blocked_is_named() {
        let app = app(Config::default());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(beat(app.clone()));
        until("a beat", || app.watchdog.runtime_ms.load(Relaxed) > 0);
        assert_eq!(stuck(&app), None);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        runtime.spawn(async move {
            let _ = held.recv();
        });
        until("stuck", || stuck(&app).is_some_and(|what| what.contains("async runtime")));
        drop(hold);
        until("well again", || stuck(&app).is_none());
    }

    #[test]
    fn threads_that_prepare_requests_are_probed_and_named() {
        let app = app(Config::default());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(beat(app.clone()));
        until("a probe", || app.watchdog.preparation_ms.load(Relaxed) > 0);
        let (hold, held) = std::sync::mpsc::channel::<()>();
        let (holds, is_held) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || {
            holds.send(()).unwrap();
            let _ = held.recv();
        });
        is_held.recv().unwrap();
        let last = app.watchdog.preparation_ms.load(Relaxed);
        let beaten = app.watchdog.runtime_ms.load(Relaxed);
        until("three beats", || app.watchdog.runtime_ms.load(Relaxed) > beaten + 3 * BEAT.as_millis() as u64);
        assert_eq!(
            app.watchdog.preparation_ms.load(Relaxed),
            last,
            "a probe ended behind what holds the thread"
        );
        drop(hold);
        until("well again", || app.watchdog.preparation_ms.load(Relaxed) > last);
    }

    #[test]
    fn preparation_that_ends_nothing_for_long_is_named() {
        let earlier =
            Instant::now().checked_sub(Duration::from_secs(100)).expect("the machine has run for that long");
        let mut app = Arc::into_inner(app(Config::default())).unwrap();
        app.watchdog = Watchdog { start: earlier, ..Watchdog::new() };
        app.watchdog.runtime_ms.store(app.watchdog.now_ms(), Relaxed);
        app.watchdog.preparation_ms.store(60_000, Relaxed);
        let what = stuck(&app).expect("nothing for 40 s");
        assert!(what.contains("prepares requests") && what.contains("for 40 s"), "{what}");
        app.watchdog.prepared();
        assert_eq!(stuck(&app), None);
    }

    #[test]
    fn silence_counts_from_the_first_beat() {
        let earlier =
            Instant::now().checked_sub(Duration::from_secs(100)).expect("the machine has run for that long");
        let watchdog = Watchdog { start: earlier, ..Watchdog::new() };
        let limit = Duration::from_secs(5);
        assert_eq!(watchdog.silent(&watchdog.runtime_ms, limit), None, "there was none yet");
        watchdog.runtime_ms.store(1_000, Relaxed);
        let silence = watchdog.silent(&watchdog.runtime_ms, limit).expect("no beat for 99 s");
        assert!(silence >= Duration::from_secs(99));
        watchdog.prepared();
        assert_eq!(watchdog.silent(&watchdog.preparation_ms, limit), None);
    }
}
