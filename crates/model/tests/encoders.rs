//! Encoders against the reference libraries.
//!
//! `tools/make_encoder_fixtures.py` made a tiny random model per variant, with what sentence-transformers or transformers make of some texts.
//! Each form of a model runs here on the specification, on every CPU path and on the GPU's, each text alone and all in one ragged step.

#[path = "../../compute/cuda-emulation/emulation.rs"]
mod emulation;
#[allow(dead_code)]
mod support;

use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_compute::cuda::{Cuda, CudaOptions, Mode};
use realizar_compute::{Backend, Batch, BatchLimits, CacheShape, DType, Heads, Pooling, Reference};
use realizar_model::arch::{ENCODERS, configure, make_yes_no};
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_model::{CacheSizes, Decoder, EncoderOutput, KvCache, Workspace, source};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Largest difference of a number, relative to the largest of its text.
const TOLERANCE: f32 = 1e-4;

const BLOCK_SIZE: usize = 16;

struct Text {
    ids: Vec<u32>,
    types: Vec<u32>,
    output: Vec<f32>,
}

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders");
    let mut found: Vec<_> = std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    found.sort();
    found
}

fn golden(dir: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(dir.join("golden.json")).unwrap()).unwrap()
}

fn texts(golden: &Value) -> Vec<Text> {
    let numbers = |v: &Value| v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let ids = |v: &Value| numbers(v).into_iter().map(|x| x as u32).collect();
    let text = |t: &Value| Text {
        ids: ids(&t["ids"]),
        types: match &t["types"] {
            Value::Null => vec![0; t["ids"].as_array().unwrap().len()],
            types => ids(types),
        },
        output: numbers(&t["output"]).into_iter().map(|x| x as f32).collect(),
    };
    golden["texts"].as_array().unwrap().iter().map(text).collect()
}

/// What a model makes of texts, in one step.
fn encode<B: Backend>(backend: &B, model: &Decoder<B>, texts: &[&Text]) -> Vec<Vec<f32>> {
    let blocks = |n: usize| n.div_ceil(BLOCK_SIZE);
    let n_tokens = texts.iter().map(|t| t.ids.len()).sum();
    let n_blocks = texts.iter().map(|t| blocks(t.ids.len())).sum();
    let limits = BatchLimits { n_tokens, n_seqs: texts.len(), n_blocks, n_logits: texts.len() };
    let n_token_types = model.config().n_token_types;
    let shape = CacheShape {
        n_blocks,
        block_size: BLOCK_SIZE,
        n_positions: n_tokens,
        n_slots: 0,
        n_token_types,
        drafts: false,
        heads: Heads::default(),
    };
    let sizes = CacheSizes { dtype: DType::F32, n_blocks, block_size: BLOCK_SIZE, n_slots: 0 };
    let mut staged = backend.new_batch(limits, shape).unwrap();
    let mut cache = KvCache::of_one_layer(backend, model.config(), sizes).unwrap();
    let mut ws = Workspace::new(backend, model.shard(), &limits).unwrap();
    let mut batch = Batch::default();
    // In an order that is not theirs, so that the tables matter.
    let mut free: Vec<u32> = (0..n_blocks as u32).collect();
    for text in texts {
        let table = free.split_off(free.len() - blocks(text.ids.len()));
        batch.push(&text.ids, 0, &table, 0);
        if n_token_types > 0 {
            batch.token_types.extend(&text.types);
        }
    }
    backend.stage(&mut staged, &batch).unwrap();
    model.encode(backend, &staged, n_tokens, texts.len(), &mut cache, &mut ws).unwrap();
    let encoder = model.config().encoder.as_ref().unwrap();
    let len = encoder.output_len(model.config().hidden_size);
    let mut rows = vec![0.0; texts.len() * len];
    backend.download(&mut rows, ws.encoded()).unwrap();
    rows.chunks_exact(len).map(|row| finished(encoder.output, row)).collect()
}

/// A vector as the model's files want it.
fn finished(output: EncoderOutput, row: &[f32]) -> Vec<f32> {
    let length = match output {
        EncoderOutput::Embedding { normalize: true } => row.iter().map(|x| x * x).sum::<f32>().sqrt(),
        _ => 1.0,
    };
    row.iter().map(|x| x / length).collect()
}

fn check(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!(
            (g - w).abs() <= TOLERANCE * largest,
            "{what}: number {i} is {g}, not {w} of at most {largest}"
        );
    }
}

fn check_form<B: Backend>(backend: &B, path: &Path, texts: &[Text]) {
    let source = source::open(path).unwrap();
    let config = configure(&*source).unwrap();
    let model = Decoder::load(backend, &*source, config, 64).unwrap();
    let what = format!("{} on {}", path.display(), backend.describe());
    let output = model.config().encoder.as_ref().unwrap().output;
    let want = |t: &Text| finished(output, &t.output);
    for t in texts {
        let alone = encode(backend, &model, &[t]);
        check(&format!("{what}, {} tokens", t.ids.len()), &alone[0], &want(t));
    }
    let all: Vec<&Text> = texts.iter().collect();
    for (t, row) in texts.iter().zip(encode(backend, &model, &all)) {
        check(&format!("{what}, {} tokens of several texts", t.ids.len()), &row, &want(t));
    }
}

/// On the GPU, or else on the emulated one, which is so slow that two texts must do.
#[allow(clippy::print_stderr)]
fn check_on_gpus(gpus: &[(Cuda, bool)], path: &Path, texts: &[Text]) {
    for (gpu, emulated) in gpus {
        check_form(gpu, path, if *emulated { &texts[1..3] } else { texts });
    }
}

#[allow(clippy::print_stderr)]
fn gpus() -> Vec<(Cuda, bool)> {
    match Cuda::new(CudaOptions { device: 0, mode: Mode::Exact }) {
        Ok(exact) => vec![(exact, false)],
        Err(e) => {
            eprintln!("SKIPPED: encoders are not tested on a GPU: {e}");
            let emulated = emulation::Emulation::build().map(|d| Cuda::with_driver(d, Mode::Exact).unwrap());
            emulated.map(|gpu| (gpu, true)).into_iter().collect()
        }
    }
}

#[test]
fn every_fixture_equals_the_reference_libraries_on_every_path() {
    let gpus = gpus();
    let mut seen = BTreeSet::new();
    for dir in fixtures() {
        let texts = texts(&golden(&dir));
        for path in ["hf", "model.gguf"].map(|form| dir.join(form)).into_iter().filter(|path| path.exists()) {
            seen.insert(configure(&*source::open(&path).unwrap()).unwrap().arch);
            check_form(&Reference, &path, &texts);
            for &isa in Isa::available() {
                for repack in [false, true] {
                    let cpu = Cpu::new(CpuOptions { n_threads: 2, isa, exact: true, repack });
                    check_form(&cpu, &path, &texts);
                }
            }
            check_on_gpus(&gpus, &path, &texts);
        }
    }
    let all: BTreeSet<_> = ENCODERS.iter().map(|a| a.name).chain(["qwen3"]).collect();
    assert_eq!(seen, all, "every encoder has a fixture");
}

#[test]
fn texts_become_the_tokens_of_the_reference_libraries() {
    // The prompts of rerankers that answer are the engine's.
    for dir in fixtures().into_iter().filter(|dir| !dir.ends_with("qwen3-reranker")) {
        let golden = golden(&dir);
        for form in ["hf", "model.gguf"].map(|form| dir.join(form)).iter().filter(|form| form.exists()) {
            let tokenizer = Tokenizer::from_source(&*source::open(form).unwrap()).unwrap();
            for t in golden["texts"].as_array().unwrap() {
                let options = EncodeOptions { add_special: true, parse_special: false };
                let text = t["text"].as_str().unwrap();
                let got = match t["query"].as_str() {
                    Some(query) => tokenizer.encode_pair(query, text).unwrap(),
                    None => tokenizer.encode(text, options).into(),
                };
                let want: Vec<u32> = serde_json::from_value(t["ids"].clone()).unwrap();
                assert_eq!(got.tokens, want, "{}: {text}", form.display());
                let n_second =
                    t["types"].as_array().map_or(0, |types| types.iter().filter(|&t| t == 1).count());
                assert_eq!(got.n_first, want.len() - n_second, "{}: {text}", form.display());
            }
        }
    }
}

#[test]
fn pooling_is_that_of_the_files() {
    let of = |name: &str, form: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders").join(name).join(form);
        configure(&*source::open(&dir).unwrap()).unwrap().encoder.unwrap()
    };
    for form in ["hf", "model.gguf"] {
        assert_eq!(of("bert", form).pooling, Pooling::First);
        assert_eq!(of("bert-mean", form).pooling, Pooling::Mean);
        assert_eq!(of("qwen3-embedding", form).pooling, Pooling::Last);
        assert_eq!(of("xlm-roberta-reranker", form).output, EncoderOutput::Score);
        assert_eq!(of("modern-bert-reranker", form).pooling, Pooling::Mean);
        assert_eq!(of("qwen3-reranker", form).output, EncoderOutput::YesNo);
        assert_eq!(of("gemma-embedding", form).head.len(), 2);
    }
    // Only the list of modules can say that vectors stay as long as they are.
    assert_eq!(of("bert-mean", "hf").output, EncoderOutput::Embedding { normalize: false });
    assert_eq!(of("bert-mean", "model.gguf").output, EncoderOutput::Embedding { normalize: true });
}

#[test]
fn a_gguf_reranker_without_the_first_matrix_of_its_classifier_is_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/encoders/xlm-roberta-reranker");
    let mut file = std::fs::read(dir.join("model.gguf")).unwrap();
    let name = b"cls.weight";
    let at = file.windows(name.len()).position(|bytes| bytes == name).unwrap();
    file[at] = b'x';
    let path = std::env::temp_dir().join(format!("reranker-without-pooler-{}.gguf", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let error = configure(&*source::open(&path).unwrap()).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(error.contains("cls.weight") && error.contains("safetensors"), "{error}");
}

#[test]
fn a_decoder_without_an_output_matrix_answers_by_its_embedding() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch/qwen3/hf");
    let source = source::open(&path).unwrap();
    let decoder = Decoder::load(&Reference, &*source, configure(&*source).unwrap(), 64).unwrap();
    let text = Text { ids: vec![5, 80, 3, 41], types: vec![], output: vec![] };
    let logits = support::Session::new(&Reference, &decoder, 64, DType::F32).step(&text.ids);
    let last = &logits[logits.len() - decoder.config().vocab_size..];

    let mut config = configure(&*source).unwrap();
    make_yes_no(&mut config, &*source, [7, 100]).unwrap();
    let reranker = Decoder::load(&Reference, &*source, config.clone(), 64).unwrap();
    check("answers", &encode(&Reference, &reranker, &[&text])[0], &[last[7], last[100]]);

    let error = make_yes_no(&mut config, &*source, [7, 100]).unwrap_err().to_string();
    assert!(error.contains("only a Qwen3 that makes text"), "{error}");
    let mut config = configure(&*source).unwrap();
    let error = make_yes_no(&mut config, &*source, [7, 272]).unwrap_err().to_string();
    assert!(error.contains("token 272 is not among its 272 tokens"), "{error}");
}
