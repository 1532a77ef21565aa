//! The demo model served from a GPU, or from an emulated one that runs the kernels' sources on the CPU, until the device fails.
#![cfg(feature = "cuda")]

#[path = "../../compute/cuda-emulation/emulation.rs"]
mod emulation;
#[path = "../../compute/cuda-emulation/faulty.rs"]
#[allow(dead_code)]
mod faulty;
#[allow(dead_code, unreachable_pub)]
mod http;

use faulty::{Call, Faulty};
use http::{TestServer, text_engine, until};
use realizar_compute::cuda::{Cuda, Mode};
use realizar_engine::EngineConfig;
use realizar_engine::load::{LoadOptions, load_on_device};
use realizar_model::source;
use realizar_server::Config;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Tests take turns: the emulation runs one device's kernels at a time.
static TURN: Mutex<()> = Mutex::new(());

fn start() -> Option<(TestServer, Arc<Faulty>)> {
    let driver = Faulty::new(Cuda::open_driver(0).ok().or_else(emulation::Emulation::build)?);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    let source = source::open(&path).unwrap();
    let options = LoadOptions { n_ctx: Some(64), max_seqs: Some(4), ..LoadOptions::default() };
    let cuda = Cuda::with_driver(driver.clone(), Mode::Fast).unwrap();
    let loaded = load_on_device(cuda, &*source, &options).unwrap();
    let config = Config::default();
    Some((TestServer::around(text_engine(loaded.runner, EngineConfig::default()), config), driver))
}

fn request(stream: bool) -> Value {
    json!({ "model": "demo", "prompt": "Once", "max_tokens": 3, "seed": 1, "ignore_eos": true, "stream": stream })
}

fn text(server: &TestServer) -> String {
    server.post("/v1/completions", &request(false)).ok()["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_failed_step_fails_its_request_and_no_other() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((server, driver)) = start() else { return };
    let want = text(&server);
    for call in [Call::Launch, Call::ClaimReadback, Call::FinishReadback] {
        driver.fail(call, 2, false);
        server.post("/v1/completions", &request(false)).is_error(500, None, "a faulty GPU");
        assert!(driver.heal());
        assert_eq!(text(&server), want, "after {call:?}");
    }
    assert_eq!(server.get("/ready").status, 200);
}

#[test]
fn a_lost_device_is_said_to_everybody() {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let Some((server, driver)) = start() else { return };
    text(&server);
    driver.fail(Call::FinishReadback, 1, true);
    let reply = server.post("/v1/completions", &request(true));
    assert!(reply.text.contains("\"error\"") && reply.text.contains("a faulty GPU"), "{}", reply.text);
    until("the server is not ready", || server.get("/ready").status == 503);
    let condition = server.get("/ready").text;
    assert!(condition.contains("failed") && condition.contains("lost"), "{condition}");
    assert_eq!(server.get("/health").status, 503, "the process should be started anew");
    server.post("/v1/completions", &request(false)).is_error(500, None, "engine has failed");
}
