//! The real server with the demo model on a device that fails, to test that a failure ends only the answers that it must end.
//!
//! ```sh
//! cargo run -p realizar-server --example failing_device -- --port 8080 --seed 1 --failures 0.005 --lost-after 60
//! ```
//!
//! `--failures` is the probability that a step fails, either before or after it has written to the cache; what a step that fails later writes is
//! wrong, as if the device had broken off. With `--lost-after SECONDS` no step succeeds from then on and the device does not recover; with
//! `--stuck-after SECONDS` a step never returns. The address is printed on stdout, and then a line for each failure. Nothing fails any more once
//! stdin has ended; the server runs until it is told to stop.
#![allow(clippy::print_stdout)]

use bytes::Bytes;
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{
    BlockCopy, CacheFormat, Engine, EngineConfig, Error, Result, Runner, RunnerInfo, Sampled, SamplingParams,
    Step, TextEngine, Ticket,
};
use realizar_model::CacheUnit;
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_server::{Config, LoadedModel, ModelFacts, Models, Server, TextModel};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// What ends the program.
type Failure = Box<dyn std::error::Error>;

static DEMO: &[u8] = include_bytes!("../../../assets/demo.gguf");
const KV_BYTES: usize = 64 << 20;
/// After which `/health` must say that a step does not return. Longer than any step takes on a machine that is short of time and memory.
const LONGEST_STEP: Duration = Duration::from_secs(20);
/// For clients that stall, shorter than the defaults so that a short test sees them end.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// What fails, and when.
#[derive(Debug, Default)]
struct Faults {
    port: u16,
    seed: u64,
    /// Probability that a step fails.
    failures: f64,
    lost_after: Option<Duration>,
    stuck_after: Option<Duration>,
}

impl Faults {
    fn from_args(mut args: impl Iterator<Item = String>) -> std::result::Result<Self, Failure> {
        let mut faults = Self::default();
        while let Some(name) = args.next() {
            let value = args.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--port" => faults.port = value.parse()?,
                "--seed" => faults.seed = value.parse()?,
                "--failures" => faults.failures = value.parse()?,
                "--lost-after" => faults.lost_after = Some(Duration::try_from_secs_f64(value.parse()?)?),
                "--stuck-after" => faults.stuck_after = Some(Duration::try_from_secs_f64(value.parse()?)?),
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(faults)
    }
}

/// A runner whose steps fail.
struct FailingDevice {
    inner: Box<dyn Runner>,
    faults: Faults,
    start: Instant,
    random: u64,
    is_lost: bool,
    /// Whether each launched step that is not finished will fail.
    will_fail: VecDeque<bool>,
    /// Nothing fails any more.
    is_over: Arc<AtomicBool>,
}

impl FailingDevice {
    /// A number in 0..1 (SplitMix64).
    fn random(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.random;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws whether something fails that has this share of `--failures`.
    fn fails(&mut self, share: f64) -> bool {
        let drawn = self.random();
        drawn < self.faults.failures * share && !self.is_over.load(Relaxed)
    }

    fn error(&self, what: &str) -> Error {
        println!("{what}");
        Error::Device { message: format!("{what} on purpose") }
    }

    /// Whether the time has come for something that is not repaired.
    fn is_time(&self, after: Option<Duration>) -> bool {
        after.is_some_and(|after| self.start.elapsed() >= after) && !self.is_over.load(Relaxed)
    }
}

impl Runner for FailingDevice {
    fn info(&self) -> RunnerInfo {
        self.inner.info()
    }

    fn copy_blocks(&mut self, copies: &[BlockCopy]) -> Result<()> {
        if self.fails(0.25) {
            return Err(self.error("copy failed"));
        }
        self.inner.copy_blocks(copies)
    }

    fn launch(&mut self, step: &Step) -> Result<Ticket> {
        if self.is_time(self.faults.stuck_after) {
            println!("stuck");
            loop {
                std::thread::park();
            }
        }
        if self.is_lost || self.is_time(self.faults.lost_after) {
            self.is_lost = true;
            return Err(self.error("lost"));
        }
        if self.fails(0.5) {
            return Err(self.error("launch failed"));
        }
        let will_fail = self.fails(0.5);
        let ticket = match will_fail {
            false => self.inner.launch(step)?,
            // Whatever reads what this step writes to the cache will differ from what it should be.
            true => {
                let mut wrong = step.clone();
                wrong.batch.tokens.fill(0);
                wrong.batch.deferred.clear();
                self.inner.launch(&wrong)?
            }
        };
        self.will_fail.push_back(will_fail);
        Ok(ticket)
    }

    fn finish(&mut self, ticket: Ticket) -> Result<Sampled> {
        let sampled = self.inner.finish(ticket);
        match self.will_fail.pop_front() {
            Some(false) => sampled,
            _ => Err(self.error("step failed")),
        }
    }

    fn recover(&mut self) -> Result<()> {
        match self.is_lost {
            true => Err(self.error("recovery failed")),
            false => self.inner.recover(),
        }
    }

    fn cache_format(&mut self) -> Option<CacheFormat> {
        self.inner.cache_format()
    }

    fn read_cache(&mut self, unit: CacheUnit, out: &mut [u8]) -> Result<()> {
        self.inner.read_cache(unit, out)
    }

    fn write_cache(&mut self, unit: CacheUnit, bytes: &[u8]) -> Result<()> {
        self.inner.write_cache(unit, bytes)
    }
}

fn main() -> std::result::Result<(), Failure> {
    let faults = Faults::from_args(std::env::args().skip(1))?;
    let (port, random) = (faults.port, faults.seed);
    let is_over = Arc::new(AtomicBool::new(false));
    let told = is_over.clone();
    std::thread::spawn(move || {
        // Whether it ends or breaks makes no difference.
        drop(std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
        told.store(true, Relaxed);
    });
    let source = source::open_gguf_bytes("demo", Bytes::from_static(DEMO))?;
    let tokenizer = Arc::new(Tokenizer::from_source(&*source)?);
    let template = ChatTemplate::from_source(&*source, &tokenizer)?;
    let options = LoadOptions {
        device: Device::Cpu,
        exact: true,
        n_threads: 1,
        kv_memory: Some(KV_BYTES),
        cache: CacheSize::AllSequences,
        ..LoadOptions::default()
    };
    let inner = load(&*source, &options)?.runner;
    let start = Instant::now();
    let device =
        FailingDevice { inner, faults, start, random, is_lost: false, will_fail: VecDeque::new(), is_over };
    // As on a GPU, a step is launched before the one before was read, so that failures find steps under way.
    let config = EngineConfig {
        overlap: Some(true),
        longest_step: LONGEST_STEP,
        stall_timeout: CLIENT_TIMEOUT,
        ..EngineConfig::default()
    };
    let engine = TextEngine::new(Engine::start(Box::new(device), config), tokenizer, template);
    let model = TextModel { engine, facts: ModelFacts::default(), sampling: SamplingParams::default() };
    let models = Models::one(vec!["demo".to_owned()], LoadedModel::Text(model))?;
    let config = Config {
        port,
        drain: CLIENT_TIMEOUT,
        header_timeout: CLIENT_TIMEOUT,
        body_timeout: CLIENT_TIMEOUT,
        write_timeout: CLIENT_TIMEOUT,
        ..Config::default()
    };
    let server = Server::bind(models, config)?;
    println!("http://{}", server.addresses()[0]);
    server.run()?;
    Ok(())
}
