//! Every architecture against the reference library.
//!
//! `tools/make_fixtures.py` made a tiny random model per variant, with the reference library's logits at every position and its greedy
//! continuation. Each form of a model (Hugging Face folder, GGUF) runs here on the specification and on every CPU path, whole and in
//! chunks, and must give the same logits; greedy decoding through the cache must give the same tokens.

#[path = "../../compute/cuda-emulation/emulation.rs"]
mod emulation;
mod support;

use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_compute::cuda::{Cuda, CudaOptions, Mode};
use realizar_compute::{Backend, DType, Device, Reference};
use realizar_model::arch::{ARCHS, configure};
use realizar_model::source::{Format, TensorSource};
use realizar_model::{Decoder, gguf, source};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{Session, argmax};

/// Largest difference of a logit, relative to the largest logit.
const TOLERANCE: f32 = 1e-4;
/// The same where a GPU rounds activations to the 16 bits of the weights: a rounding is off by 2^-9 at most, and errors of layers add up.
const ROUNDED_TOLERANCE: f32 = 2e-2;

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    let mut found: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

struct Prompt {
    ids: Vec<u32>,
    greedy: Vec<u32>,
    gaps: Vec<f64>,
    logits: Vec<f32>,
    /// Of the layer that drafts; empty for a model without.
    draft_logits: Vec<f32>,
    vocab_size: usize,
}

fn prompts(dir: &Path, golden: &Value) -> Vec<Prompt> {
    let floats = |bytes: Vec<u8>| -> Vec<f32> {
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    let all = floats(std::fs::read(dir.join("logits.f32")).unwrap());
    let drafts = std::fs::read(dir.join("draft_logits.f32")).map_or_else(|_| Vec::new(), floats);
    assert!(drafts.is_empty() || drafts.len() == all.len(), "{dir:?}: draft_logits.f32");
    let (mut all, mut drafts) = (all.into_iter(), drafts.into_iter());
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let ids = |v: &Value| numbers(v).into_iter().map(|x| x as u32).collect::<Vec<_>>();
    let read = |p: &Value| {
        let shape = ids(&p["shape"]);
        let vocab_size = shape[1] as usize;
        let n = shape[0] as usize * vocab_size;
        Prompt {
            ids: ids(&p["ids"]),
            greedy: ids(&p["greedy"]),
            gaps: numbers(&p["gaps"]),
            logits: all.by_ref().take(n).collect(),
            draft_logits: drafts.by_ref().take(n).collect(),
            vocab_size,
        }
    };
    let prompts: Vec<_> = golden["prompts"].as_array().unwrap().iter().map(read).collect();
    assert!(all.next().is_none(), "{dir:?}: logits.f32 holds more than golden.json says");
    prompts
}

fn check_logits(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= tolerance * largest,
            "{what}: logit {i} is {g}, not {w} (largest {largest})"
        );
    }
}

fn check_form<B: Backend>(backend: &B, path: &Path, prompts: &[Prompt], tolerance: f32) {
    let source = source::open(path).unwrap();
    for p in prompts {
        let what = format!("{} on {}, prompt of {}", path.display(), backend.describe(), p.ids.len());
        // Frequencies that depend on the context are chosen at load, and the reference chooses by the prompt.
        let config = configure(&*source).unwrap();
        let n_ctx = p.ids.len() + p.greedy.len();
        let other_frequencies =
            config.ropes.iter().any(|r| r.frequencies(p.ids.len()) != r.frequencies(n_ctx));
        let n_load = if other_frequencies { p.ids.len() } else { n_ctx };
        let model = Decoder::load(backend, &*source, config, n_load).unwrap();
        assert_eq!(model.config().vocab_size, p.vocab_size, "{what}");

        let mut whole = Session::new(backend, &model, n_ctx, DType::F32);
        check_logits(&what, &whole.step(&p.ids), &p.logits, tolerance);

        let mut chunked = Session::new(backend, &model, n_ctx, DType::F32);
        let chunks = p.ids.chunks(5).flat_map(|c| chunked.step(c)).collect::<Vec<_>>();
        check_logits(&format!("{what}, in chunks"), &chunks, &p.logits, tolerance);

        let mut single = Session::new(backend, &model, n_ctx, DType::F32);
        let singles = p.ids.iter().flat_map(|&id| single.step(&[id])).collect::<Vec<_>>();
        check_logits(&format!("{what}, token by token"), &singles, &p.logits, tolerance);
        // llama.cpp's converter leaves out DeepSeek's.
        let leaves_out = source.format() == Format::Gguf && model.config().arch == "deepseek2";
        assert_eq!(model.drafts(), !p.draft_logits.is_empty() && !leaves_out, "{what}");
        if model.drafts() {
            let want = p.draft_logits.chunks(p.vocab_size);
            for (i, (&token, want)) in p.ids.iter().zip(want).enumerate() {
                let what = format!("{what}, draft after {i}");
                check_logits(&what, &whole.draft(token, i), want, tolerance);
                if i > (p.ids.len() - 1) / 5 * 5 {
                    check_logits(&format!("{what}, in chunks"), &chunked.draft(token, i), want, tolerance);
                }
            }
        }

        // The reference turns new keys by another base as a dynamically scaled context grows; ours stays what the context asks for.
        if other_frequencies {
            continue;
        }
        let mut next = argmax(&p.logits[p.logits.len() - p.vocab_size..]);
        let spread = p.logits.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        for (i, (&want, &gap)) in p.greedy.iter().zip(&p.gaps).enumerate() {
            assert!(
                next == want || gap < f64::from(2.0 * tolerance * spread),
                "{what}: greedy token {i} is {next}, not {want}"
            );
            next = argmax(&whole.step(&[want]));
        }
    }
}

/// On the GPU, or else on the emulated one, which is so slow that one prompt must do.
#[allow(clippy::print_stderr)]
fn check_on_gpus(path: &Path, prompts: &[Prompt], types: &BTreeSet<DType>) {
    static GPUS: OnceLock<Vec<(Cuda, bool)>> = OnceLock::new();
    let gpus = GPUS.get_or_init(|| {
        let open = |mode| Cuda::new(CudaOptions { device: 0, mode });
        match (open(Mode::Exact), open(Mode::Fast)) {
            (Ok(exact), Ok(fast)) => vec![(exact, false), (fast, false)],
            (Err(e), _) | (_, Err(e)) => {
                eprintln!("SKIPPED: models are not tested on a GPU: {e}");
                let emulated =
                    emulation::Emulation::build().map(|d| Cuda::with_driver(d, Mode::Exact).unwrap());
                emulated.map(|gpu| (gpu, true)).into_iter().collect()
            }
        }
    });
    for (gpu, emulated) in gpus {
        let shortest = prompts.iter().enumerate().min_by_key(|(_, p)| p.ids.len()).map_or(0, |(i, _)| i);
        // Products of F32 weights round nothing.
        let rounds = !gpu.joins_exactly() && types.iter().any(|&t| t != DType::F32);
        let tolerance = if rounds { ROUNDED_TOLERANCE } else { TOLERANCE };
        check_form(gpu, path, if *emulated { &prompts[shortest..=shortest] } else { prompts }, tolerance);
    }
}

/// Compares all forms of a fixture, and returns their architectures.
fn check_fixture(dir: &Path) -> BTreeSet<&'static str> {
    let golden: Value = serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
    let prompts = prompts(dir, &golden);
    let (mut seen, mut on_gpus) = (BTreeSet::new(), BTreeSet::new());
    for form in golden["forms"].as_array().unwrap() {
        let form = form.as_str().unwrap();
        let path = dir.join(form);
        let source = source::open(&path).unwrap();
        seen.insert(configure(&*source).unwrap().arch);
        let types: BTreeSet<DType> = source.tensors().iter().map(|t| t.dtype).collect();
        let n = if form.ends_with(".gguf") {
            golden["gguf_prompts"].as_u64().unwrap() as usize
        } else {
            prompts.len()
        };
        check_form(&Reference, &path, &prompts[..n], TOLERANCE);
        for &isa in Isa::available() {
            for repack in [false, true] {
                let cpu = Cpu::new(CpuOptions { n_threads: 2, isa, exact: true, repack });
                check_form(&cpu, &path, &prompts[..n], TOLERANCE);
            }
        }
        // Once loaded, forms with the same element types are the same to a device.
        if on_gpus.insert(types.clone()) {
            check_on_gpus(&path, &prompts[..n], &types);
        }
    }
    seen
}

#[test]
fn every_fixture_equals_the_reference_library_on_every_path() {
    let fixtures = fixtures();
    let next = AtomicUsize::new(0);
    let check_some = || {
        let mut seen = BTreeSet::new();
        while let Some(dir) = fixtures.get(next.fetch_add(1, Ordering::Relaxed)) {
            seen.extend(check_fixture(dir));
        }
        seen
    };
    // Emulated kernels take nearly all of the time, each on one processor.
    let seen: BTreeSet<_> = std::thread::scope(|scope| {
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(check_some)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        let seen: Vec<BTreeSet<_>> = threads
            .into_iter()
            .map(join)
            .collect::<Result<_, _>>()
            .unwrap_or_else(|p| std::panic::resume_unwind(p));
        seen.into_iter().flatten().collect()
    });
    let all: BTreeSet<_> = ARCHS.iter().map(|a| a.name).collect();
    assert_eq!(seen, all, "every architecture has a fixture");
}

/// A GGUF file in the layout that latent attention had at first: keys and values of all heads in one matrix, and sizes of heads as those of
/// attention.
fn write_in_older_layout(from: &dyn TensorSource, path: &Path) {
    let mut header = gguf::Header::new(path);
    for (key, value) in from.metadata().iter().filter(|(key, _)| !key.ends_with("_length_mla")) {
        let stated = key.strip_suffix("_length").map(|key| format!("{key}_length_mla"));
        let older = stated.filter(|_| key.contains("attention.")).and_then(|key| from.metadata().get(&key));
        header.set(key, older.unwrap_or(value).clone()).unwrap();
    }
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for info in from.tensors().iter().filter(|t| !t.name.ends_with("attn_v_b.weight")) {
        let t = from.tensor(&info.name).unwrap();
        let Some(layer) = info.name.strip_suffix("attn_k_b.weight") else {
            tensors.push((info.name.clone(), t.shape, t.bytes.to_vec()));
            continue;
        };
        let values = from.tensor(&format!("{layer}attn_v_b.weight")).unwrap();
        let (rank, k_dim, v_bytes) = (t.shape[1], t.shape[2], values.bytes.len() / t.shape[0]);
        let mut both = Vec::new();
        for (keys, values) in t.bytes.chunks(4 * rank * k_dim).zip(values.bytes.chunks(v_bytes)) {
            let element = |i: usize, j: usize| &keys[4 * (j * k_dim + i)..][..4];
            (0..k_dim).for_each(|i| (0..rank).for_each(|j| both.extend_from_slice(element(i, j))));
            both.extend_from_slice(values);
        }
        let n_rows = both.len() / (4 * rank);
        tensors.push((format!("{layer}attn_kv_b.weight"), vec![n_rows, rank], both));
    }
    write_f32(header, &tensors, path);
}

/// Tensors of F32, each with its name, shape and bytes.
fn write_f32(mut header: gguf::Header, tensors: &[(String, Vec<usize>, Vec<u8>)], path: &Path) {
    for (name, shape, _) in tensors {
        header.tensor(name, DType::F32, shape).unwrap();
    }
    let mut writer = gguf::Writer::new(std::fs::File::create(path).unwrap(), header).unwrap();
    tensors.iter().for_each(|(name, _, bytes)| writer.tensor(name, bytes).unwrap());
    writer.finish().unwrap();
}

#[test]
fn older_files_with_latent_attention_give_the_same_logits() {
    let newer = fixtures().into_iter().find(|p| p.ends_with("deepseek3")).unwrap().join("model.gguf");
    let older = std::env::temp_dir().join(format!("realizar-older-{}.gguf", std::process::id()));
    write_in_older_layout(&*source::open(&newer).unwrap(), &older);
    let logits = |path: &Path| {
        let source = source::open(path).unwrap();
        let model = Decoder::load(&Reference, &*source, configure(&*source).unwrap(), 8).unwrap();
        Session::new(&Reference, &model, 8, DType::F32).step(&[3, 140, 7, 201, 99])
    };
    assert!(logits(&older) == logits(&newer));
    let stated = |path: &Path, key: &str| {
        source::open(path).unwrap().metadata().get_usize(&format!("deepseek2.attention.{key}")).unwrap()
    };
    assert_eq!([&older, &newer].map(|path| stated(path, "key_length")), [Some(20), Some(32)]);
    assert_eq!(stated(&older, "key_length_mla"), None);
    std::fs::remove_file(older).unwrap();
}

/// Older files of Phi-2 have queries, keys and values in one matrix with one bias, as their models had.
#[test]
fn a_fused_matrix_of_queries_keys_and_values_gives_the_same_logits() {
    let dir = fixtures().into_iter().find(|p| p.ends_with("phi2")).unwrap();
    let separate = source::open(&dir.join("model.gguf")).unwrap();
    let fused = std::env::temp_dir().join(format!("realizar-fused-{}.gguf", std::process::id()));
    let mut header = gguf::Header::new(&fused);
    separate.metadata().iter().for_each(|(key, value)| header.set(key, value.clone()).unwrap());
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for info in separate.tensors() {
        let t = separate.tensor(&info.name).unwrap();
        let (layer, part) = info.name.split_once("attn_").unwrap_or((&info.name, ""));
        match part {
            "q.weight" | "q.bias" => {
                let (mut shape, mut bytes) = (t.shape, t.bytes.to_vec());
                for other in ["k", "v"] {
                    let t = separate.tensor(&format!("{layer}attn_{other}{}", &part[1..])).unwrap();
                    shape[0] += t.shape[0];
                    bytes.extend_from_slice(&t.bytes);
                }
                tensors.push((format!("{layer}attn_qkv{}", &part[1..]), shape, bytes));
            }
            "k.weight" | "k.bias" | "v.weight" | "v.bias" => {}
            _ => tensors.push((info.name.clone(), t.shape, t.bytes.to_vec())),
        }
    }
    assert_eq!(tensors.iter().filter(|(name, ..)| name.contains("attn_qkv.")).count(), 4);
    write_f32(header, &tensors, &fused);

    let golden: Value = serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap();
    let prompts = prompts(&dir, &golden);
    check_form(&Reference, &fused, &prompts, TOLERANCE);
    for repack in [false, true] {
        let cpu = Cpu::new(CpuOptions { n_threads: 2, isa: Isa::best(), exact: true, repack });
        check_form(&cpu, &fused, &prompts, TOLERANCE);
    }
    check_on_gpus(&fused, &prompts, &BTreeSet::from([DType::F32]));
    std::fs::remove_file(fused).unwrap();
}
