//! A prefix cache that outlives its process: what is computed again, and that texts stay the same.
//!
//! Method: the fixtures of the architecture tests, with keys and values of one and of several sizes, latent attention and recurrent
//! layers. One engine answers, a second one goes on from its file, and its texts are compared with those of an engine without one.

use realizar_compute::DType;
use realizar_engine::load::{CacheSize, Device, LoadOptions, load};
use realizar_engine::{Client, Engine, EngineConfig, Event, Request, SamplingParams, SavedCache, Usage};
use realizar_model::{arch, fingerprint, source};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MODELS: [&str; 5] = ["qwen3", "gemma4", "deepseek3", "lfm2", "nemotron-h"];

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("realizar-saved-cache-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// The files in it.
    fn files(&self) -> Vec<PathBuf> {
        std::fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

fn options() -> LoadOptions {
    LoadOptions {
        device: Device::Cpu,
        n_ctx: Some(200),
        cache: CacheSize::Tokens(2000),
        kv_type: DType::F32,
        block_size: 4,
        n_threads: 1,
        ..LoadOptions::default()
    }
}

/// An engine with so many bytes for its file.
fn start(name: &str, folder: Option<&Folder>, options: &LoadOptions, max_bytes: u64) -> Client {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/arch");
    let source = source::open(&data.join(name).join("hf")).unwrap();
    let model = fingerprint(&*source, &arch::configure(&*source).unwrap()).unwrap();
    let saved_cache = folder.map(|folder| SavedCache { folder: folder.0.clone(), max_bytes, model });
    let config = EngineConfig { saved_cache, ..EngineConfig::default() };
    Engine::start(load(&*source, options).unwrap().runner, config)
}

fn prompt() -> Vec<u32> {
    (0..90u32).map(|i| 5 + i * i % 91).collect()
}

fn answer(client: &Client, prompt: &[u32], salt: Option<u64>) -> (Vec<u32>, Usage) {
    let sampling = SamplingParams { seed: Some(1), ..SamplingParams::default() };
    let request =
        Request { sampling, ignore_eos: true, cache_salt: salt, ..Request::new(prompt.to_vec(), 12) };
    let mut stream = client.submit(request).unwrap();
    let mut text = Vec::new();
    loop {
        match stream.recv().unwrap() {
            Event::Token { id, .. } => text.push(id),
            Event::Finished { usage, .. } => return (text, usage),
            other => panic!("{other:?}"),
        }
    }
}

fn end(client: Client) {
    client.shutdown(Duration::from_secs(60));
}

#[test]
fn the_next_process_computes_only_what_is_new() {
    for name in MODELS {
        let folder = Folder::new(name);
        let first = start(name, Some(&folder), &options(), 1 << 30);
        let (text, usage) = answer(&first, &prompt(), None);
        assert_eq!(usage.cached_tokens, 0, "{name}");
        end(first);
        let mut next_turn = prompt();
        next_turn.extend(text);
        next_turn.extend([9, 8, 7]);
        let (expected, _) = answer(&start(name, None, &options(), 0), &next_turn, None);
        let second = start(name, Some(&folder), &options(), 1 << 30);
        let (found, usage) = answer(&second, &next_turn, None);
        assert_eq!(found, expected, "{name}");
        // All but the last token of the answer has been computed; recurrent layers go on from a border of blocks.
        let known = next_turn.len() - 4;
        assert!(usage.cached_tokens >= known / 4 * 4, "{name}: {usage:?}");
        // What was read is written again.
        end(second);
        let third = start(name, Some(&folder), &options(), 1 << 30);
        let (again, usage) = answer(&third, &next_turn, None);
        assert_eq!(again, expected, "{name}");
        assert!(usage.cached_tokens >= known / 4 * 4, "{name}: {usage:?}");
    }
}

#[test]
fn a_file_of_another_format_or_model_is_not_used() {
    let folder = Folder::new("other");
    let first = start("qwen3", Some(&folder), &options(), 1 << 30);
    answer(&first, &prompt(), None);
    end(first);
    for other in [
        LoadOptions { kv_type: DType::F16, ..options() },
        LoadOptions { block_size: 8, ..options() },
        LoadOptions { n_ctx: Some(100), ..options() },
        LoadOptions { exact: true, ..options() },
    ] {
        let client = start("qwen3", Some(&folder), &other, 1 << 30);
        assert_eq!(answer(&client, &prompt()[..80], None).1.cached_tokens, 0, "{other:?}");
        end(client);
    }
    // A file with the name of another model's.
    let client = start("lfm2", Some(&folder), &options(), 1 << 30);
    end(client);
    let [own, others] = [0, 1].map(|i| folder.files()[i].clone());
    let bytes = std::fs::read(&own).unwrap();
    std::fs::copy(&others, &own).unwrap();
    std::fs::write(&others, bytes).unwrap();
    for name in ["qwen3", "lfm2"] {
        let client = start(name, Some(&folder), &options(), 1 << 30);
        assert_eq!(answer(&client, &prompt(), None).1.cached_tokens, 0, "{name}");
        end(client);
    }
}

#[test]
fn a_damaged_file_changes_no_text() {
    let folder = Folder::new("damaged");
    let first = start("qwen3", Some(&folder), &options(), 1 << 30);
    let (expected, _) = answer(&first, &prompt(), None);
    end(first);
    let path = folder.files().pop().unwrap();
    let whole = std::fs::read(&path).unwrap();
    for at in [3, 50, whole.len() / 3, whole.len() / 2, whole.len() - 2] {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        std::fs::write(&path, damaged).unwrap();
        let client = start("qwen3", Some(&folder), &options(), 1 << 30);
        let (text, usage) = answer(&client, &prompt(), None);
        assert_eq!(text, expected, "byte {at}");
        assert!(usage.cached_tokens < prompt().len() * (at + 1) / whole.len() + 4, "byte {at}: {usage:?}");
        // It writes the file anew, which must not be in the way of the next one.
        end(client);
    }
}

#[test]
fn a_file_is_bounded_and_keeps_what_was_used_last() {
    let folder = Folder::new("bounded");
    let first = start("qwen3", Some(&folder), &options(), 1 << 30);
    let others: Vec<u32> = prompt().into_iter().rev().collect();
    answer(&first, &others, None);
    answer(&first, &prompt(), None);
    end(first);
    let size = |folder: &Folder| folder.files().iter().map(|f| f.metadata().unwrap().len()).sum::<u64>();
    // Room for the last text only.
    let limit = size(&folder) * 6 / 10;
    end(start("qwen3", Some(&folder), &options(), limit));
    assert!(size(&folder) <= limit && size(&folder) > limit * 8 / 10);
    let next = start("qwen3", Some(&folder), &options(), limit);
    assert!(answer(&next, &prompt(), None).1.cached_tokens > 80);
    assert!(answer(&next, &others, None).1.cached_tokens < 40);
    end(next);
    // Another model's file takes the place of this one.
    let other = start("lfm2", Some(&folder), &options(), limit);
    answer(&other, &prompt(), None);
    end(other);
    assert!(size(&folder) <= limit);
}

#[test]
fn what_only_one_client_may_find_is_not_saved() {
    let folder = Folder::new("salted");
    let first = start("qwen3", Some(&folder), &options(), 1 << 30);
    answer(&first, &prompt(), Some(7));
    end(first);
    let second = start("qwen3", Some(&folder), &options(), 1 << 30);
    for salt in [Some(7), None] {
        assert_eq!(answer(&second, &prompt(), salt).1.cached_tokens, 0);
    }
}
