//! A server with the demo model on a free port, and clients.

pub(crate) mod recital;

use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{Client, Engine, EngineConfig, Runner, SamplingParams, TextEngine};
use realizar_model::chat_template::ChatTemplate;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_server::{Config, Ended, Handle, LoadedModel, ModelFacts, Models, Server, TextModel};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longer than anything takes, also on a machine that is busy with other things.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    /// Of the engine, where there is one from the start.
    client: Option<Client>,
    pub(crate) handle: Handle,
    thread: Option<JoinHandle<Ended>>,
    agent: ureq::Agent,
}

/// What a test changes before the start.
#[derive(Default)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) engine: EngineConfig,
    pub(crate) load: LoadOptions,
    /// Of the model.
    pub(crate) names: Vec<String>,
}

fn demo_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf")
}

/// The demo model's tokenizer and template around a runner of the test's.
pub(crate) fn text_engine(runner: Box<dyn Runner>, config: EngineConfig) -> TextEngine {
    let source = source::open(&demo_path()).expect("the demo model");
    let tokenizer = Arc::new(Tokenizer::from_source(&*source).expect("a tokenizer"));
    let template = ChatTemplate::from_source(&*source, &tokenizer).expect("a template");
    TextEngine::new(Engine::start(runner, config), tokenizer, template)
}

/// A table of one model.
fn models(names: Vec<String>, engine: TextEngine) -> Models {
    let model = TextModel { engine, facts: ModelFacts::default(), sampling: SamplingParams::default() };
    Models::one(names, LoadedModel::Text(model)).expect("a name")
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Setup)) -> Self {
        let load_options = LoadOptions {
            device: Device::Cpu,
            n_threads: 1,
            cache: CacheSize::Tokens(8192),
            ..LoadOptions::default()
        };
        let mut setup = Setup { load: load_options, ..Setup::default() };
        setup.names = vec!["demo".into()];
        change(&mut setup);
        let source = source::open(&demo_path()).expect("the demo model");
        let loaded = load(&*source, &setup.load).expect("a runner");
        let engine = text_engine(loaded.runner, setup.engine);
        Self::around_one(setup.names, engine, setup.config)
    }

    /// A server whose only model, named demo, is run by this engine.
    pub(crate) fn around(engine: TextEngine, config: Config) -> Self {
        Self::around_one(vec!["demo".into()], engine, config)
    }

    fn around_one(names: Vec<String>, engine: TextEngine, config: Config) -> Self {
        let client = engine.client().clone();
        let mut server = Self::around_models(models(names, engine), config);
        server.client = Some(client);
        server
    }

    pub(crate) fn around_models(models: Models, config: Config) -> Self {
        let server = Server::bind(models, Config { port: 0, ..config }).expect("a free port");
        let (address, handle) = (server.addresses()[0], server.handle());
        let thread = Some(std::thread::spawn(move || server.run().expect("an end")));
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { address, client: None, handle, thread, agent: config.build().into() }
    }

    pub(crate) fn client(&self) -> &Client {
        self.client.as_ref().expect("one model from the start")
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        Reply::new(self.agent.get(self.url(path)).call().expect("an answer"))
    }

    pub(crate) fn delete(&self, path: &str) -> Reply {
        Reply::new(self.agent.delete(self.url(path)).call().expect("an answer"))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body)
    }

    pub(crate) fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut request = self.agent.post(self.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Reply::new(request.send_json(body).expect("an answer"))
    }

    pub(crate) fn post_bytes(&self, path: &str, body: &[u8]) -> Reply {
        let request = self.agent.post(self.url(path)).header("content-type", "application/json");
        Reply::new(request.send(body).expect("an answer"))
    }

    /// A streamed answer's events, each as JSON, without the last, which is checked.
    pub(crate) fn events(&self, path: &str, body: &Value) -> Vec<Value> {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.header("content-type"), "text/event-stream");
        let mut events = data_of(&reply.text);
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|e| serde_json::from_str(e).expect("JSON")).collect()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends bytes as they are and returns all that comes back before the connection ends.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        // A server that refuses early does not read everything.
        let _ = stream.write_all(bytes);
        read_all(&mut stream)
    }

    /// Begins a streamed answer and returns its connection after the first piece of text.
    pub(crate) fn begin_stream(&self, body: &Value) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        stream.write_all(&post_bytes("/v1/chat/completions", body)).expect("it is read");
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.contains("\"content\":\"") || line.contains("\"content\":\"\"") {
            line.clear();
            assert_ne!(reader.read_line(&mut line).expect("more"), 0, "the stream has ended");
        }
        reader
    }

    /// Waits until nothing runs, and checks that no block is held.
    #[track_caller]
    pub(crate) fn is_idle_in_the_end(&self) {
        let stats = self.client().stats();
        until("the engine is idle", || {
            stats.running.get() + stats.waiting.get() + stats.blocks_in_use.get() == 0
        });
        // Until its first step, or the end of a request that has none, the engine has not counted its blocks.
        let counted = stats.blocks_free.get() + stats.blocks_cached.get();
        let all = self.client().info().n_blocks as u64;
        assert!(counted == all || (counted, stats.steps.get()) == (0, 0), "{counted} of {all} blocks");
    }

    /// How `Server::run` ended.
    pub(crate) fn join(mut self) -> Ended {
        self.thread.take().expect("not joined before").join().expect("no panic")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.handle.stop();
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // A test that fails should say why, and not this.
            let _ = thread.join();
        }
    }
}

pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) text: String,
}

impl Reply {
    fn new(mut response: ureq::http::Response<ureq::Body>) -> Self {
        let headers = response.headers().iter();
        let headers =
            headers.map(|(k, v)| (k.to_string(), v.to_str().unwrap_or_default().to_owned())).collect();
        let text = response.body_mut().read_to_string().expect("text");
        Self { status: response.status().as_u16(), headers, text }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(k, _)| k == name).map_or("", |(_, v)| v)
    }

    /// The body of an answer that is fine.
    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        serde_json::from_str(&self.text).expect("JSON")
    }

    /// Checks an error's status, its shape, and what it says.
    #[track_caller]
    pub(crate) fn is_error(&self, status: u16, param: Option<&str>, part: &str) {
        assert_eq!(self.status, status, "{}", self.text);
        let body: Value = serde_json::from_str(&self.text).expect("JSON");
        let error = &body["error"];
        assert!(error["type"].is_string() && error.get("code").is_some(), "{body}");
        assert_eq!(error["param"].as_str(), param, "{body}");
        assert!(error["message"].as_str().expect("a message").contains(part), "{part:?} in {body}");
    }
}

/// The data of server-sent events.
pub(crate) fn data_of(text: &str) -> Vec<String> {
    text.lines().filter_map(|l| l.strip_prefix("data: ")).map(str::to_owned).collect()
}

/// Server-sent events with a name, and their data as JSON.
pub(crate) fn named_events(text: &str) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(event) = line.strip_prefix("event: ") {
            event.clone_into(&mut name);
        } else if let Some(data) = line.strip_prefix("data: ") {
            events.push((std::mem::take(&mut name), serde_json::from_str(data).expect("JSON")));
        }
    }
    events
}

/// A POST as it goes over the wire.
pub(crate) fn post_bytes(path: &str, body: &Value) -> Vec<u8> {
    let body = body.to_string();
    let n = body.len();
    format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {n}\r\n\r\n{body}")
        .into_bytes()
}

pub(crate) fn read_all(stream: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    // A connection that is reset has said all it will.
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a condition.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A conversation of one question, answered greedily.
pub(crate) fn ask(question: &str, more: &Value) -> Value {
    let mut body = json!({
        "model": "demo",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 24,
    });
    for (key, value) in more.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}
