//! Every architecture shared among ranks against one that has it all.
//!
//! The ranks are CPU backends on threads of their own. Where sums are taken in one order (`exact`), the logits must be the same bits;
//! only experts' parts are added in another order. Otherwise rounding may differ.

#[path = "../../compute/cuda-emulation/emulation.rs"]
mod emulation;
mod support;

use realizar_compute::cpu::{Cpu, CpuOptions};
use realizar_compute::cuda::{Cuda, Mode};
use realizar_compute::{Backend, Collectives as _, DType, Reference};
use realizar_model::arch::configure;
use realizar_model::{Decoder, Error, Join, gguf, source};
use std::path::{Path, PathBuf};
use support::{Session, argmax};

/// Largest difference of a logit, relative to the largest logit.
const TOLERANCE: f32 = 1e-4;
const PROMPT: &[u32] = &[3, 140, 7, 7, 201, 99, 18, 256, 41];
const N_GENERATED: usize = 8;

struct Answer {
    /// Of the prompt, read in two chunks, and of each token after it.
    logits: Vec<f32>,
    tokens: Vec<u32>,
    joins: Vec<Join>,
}

fn answer<B: Backend>(backend: &B, path: &Path) -> Result<Answer, Error> {
    let source = source::open(path).unwrap();
    let n_ctx = PROMPT.len() + N_GENERATED;
    let model = Decoder::load(backend, &*source, configure(&*source).unwrap(), n_ctx)?;
    let mut session = Session::new(backend, &model, n_ctx, DType::F32);
    let (first, rest) = PROMPT.split_at(4);
    let mut logits = session.step(first);
    logits.extend(session.step(rest));
    let mut tokens = Vec::new();
    for _ in 0..N_GENERATED {
        let vocab_size = model.config().vocab_size;
        tokens.push(argmax(&logits[logits.len() - vocab_size..]));
        logits.extend(session.step(&tokens[tokens.len() - 1..]));
    }
    let layers = 0..model.config().layers.len();
    let joins = layers.flat_map(|i| [model.shard().mixer(i).join, model.shard().ffn(i).join]).collect();
    Ok(Answer { logits, tokens, joins })
}

/// What each rank has in the end.
fn answers(count: usize, exact: bool, path: &Path) -> Vec<Result<Answer, Error>> {
    let ranks = Cpu::group(count, CpuOptions { n_threads: 1, exact, ..CpuOptions::default() });
    answers_of(&ranks, path)
}

fn answers_of<B: Backend>(ranks: &[B], path: &Path) -> Vec<Result<Answer, Error>> {
    let run = |rank: &B| {
        let found = answer(rank, path);
        if found.is_err() {
            rank.leave();
        }
        found
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    let mut found: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .flat_map(|e| ["hf", "model.gguf"].map(|form| e.as_ref().unwrap().path().join(form)))
        .filter(|p| p.exists())
        .collect();
    found.sort();
    found
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let largest = a.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    a.iter().zip(b).fold(0.0f32, |m, (a, b)| m.max((a - b).abs())) / largest
}

#[test]
fn ranks_together_answer_as_one_that_has_the_whole_model() {
    let mut joins = Vec::new();
    for path in fixtures() {
        let config = configure(&*source::open(&path).unwrap()).unwrap();
        for exact in [true, false] {
            let alone = answers(1, exact, &path).swap_remove(0).unwrap();
            for count in 2..=4 {
                let what = format!("{} with {count} ranks, exact: {exact}", path.display());
                let can = config.heads().all(|heads| heads.n_heads >= count);
                for (rank, found) in answers(count, exact, &path).into_iter().enumerate() {
                    let found = match found {
                        Ok(found) => found,
                        Err(Error::CannotSplit { n_ranks, .. }) if !can => {
                            assert_eq!(n_ranks, count);
                            continue;
                        }
                        Err(e) => panic!("{what}: {e}"),
                    };
                    assert!(can, "{what}");
                    if exact && config.experts().next().is_none() {
                        assert!(found.logits == alone.logits, "{what}, rank {rank}: other bits");
                    } else {
                        let difference = largest_difference(&alone.logits, &found.logits);
                        assert!(difference < TOLERANCE, "{what}, rank {rank}: {difference}");
                    }
                    assert_eq!(found.tokens, alone.tokens, "{what}, rank {rank}");
                    joins.extend(found.joins);
                }
            }
        }
    }
    assert!(joins.contains(&Join::Sum) && joins.contains(&Join::Gather), "both ways were taken");
}

/// On GPUs where there are several, or else on emulated ones, which are slow.
#[test]
#[allow(clippy::print_stderr)]
fn gpus_together_answer_as_a_cpu_alone() {
    // Connecting takes long, so that all models take turns.
    let connect = |mode| Cuda::group(&[0, 1], mode).map(|gpus| (mode == Mode::Exact, gpus));
    let (groups, real) = match (connect(Mode::Exact), connect(Mode::Fast)) {
        (Ok(exact), Ok(fast)) => (vec![exact, fast], true),
        _ => {
            let Some((drivers, link)) = emulation::group(2) else { return };
            let exact = Cuda::group_on(drivers.clone(), link.clone(), Mode::Exact).unwrap();
            (vec![(true, exact), (false, Cuda::group_on(drivers, link, Mode::Fast).unwrap())], false)
        }
    };
    for path in fixtures() {
        let names = [
            "llama-gqa/hf",
            "mixtral/hf",
            "bitnet/model.gguf",
            "gemma4/hf",
            "gemma4-moe/model.gguf",
            "deepseek3/model.gguf",
        ];
        if !real && !names.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let alone = answers(1, true, &path).swap_remove(0).unwrap();
        for (exact, gpus) in &groups {
            let exact = *exact;
            for (rank, found) in answers_of(gpus, &path).into_iter().enumerate() {
                let (found, what) = (found.unwrap(), format!("{}, rank {rank}", path.display()));
                // Where products round, another token may follow.
                let n = alone.logits.len() / (PROMPT.len() + N_GENERATED)
                    * if exact { PROMPT.len() + N_GENERATED } else { PROMPT.len() };
                let difference = largest_difference(&alone.logits[..n], &found.logits[..n]);
                let tolerance = if exact { TOLERANCE } else { 0.02 };
                assert!(difference < tolerance, "{what}, exact: {exact}: {difference}");
                assert!(!exact || found.tokens == alone.tokens, "{what}");
            }
        }
    }
    if !real {
        eprintln!("SKIPPED: models are not shared among GPUs, since there are not two");
    }
}

#[test]
fn a_rank_that_leaves_fails_the_others_instead_of_keeping_them_waiting() {
    let path = fixtures().into_iter().find(|p| p.ends_with("llama/hf")).unwrap();
    let mut ranks = Cpu::group(2, CpuOptions { n_threads: 1, ..CpuOptions::default() });
    let leaver = ranks.pop().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let source = source::open(&path).unwrap();
            let model = Decoder::load(&ranks[0], &*source, configure(&*source).unwrap(), 8).unwrap();
            Session::new(&ranks[0], &model, 8, DType::F32).try_step(&[1, 2]).err()
        });
        leaver.leave();
        let error = other.join().unwrap().expect("a step without the other rank");
        assert!(error.to_string().contains("another rank has failed"), "{error}");
    });
}

/// A number for one element of a weight, between -1 and 1.
fn weight(name: &str, row: usize, column: usize) -> f32 {
    let mut state = (row as u64) << 32 | column as u64;
    for byte in name.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        state ^= state >> 29;
    }
    (state >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Writes a Llama model of two layers. Their query heads and hidden activations are 4 and 2, 40 and 24, or 4 and 40 in both: then what
/// the second layer has more leads nowhere.
fn write_uneven(path: &Path, padded: bool) {
    const N: usize = 16;
    const DIM: usize = 8;
    const VOCAB: usize = 260;
    let mut tensors = vec![("token_embd".to_owned(), [VOCAB, N], N), ("output_norm".into(), [1, N], N)];
    let (mut heads, mut kv_heads, mut widths) = (Vec::new(), Vec::new(), Vec::new());
    for (i, (own_heads, own_width)) in [(4, 40), (2, 24)].into_iter().enumerate() {
        let (n_heads, width) = if padded { (4, 40) } else { (own_heads, own_width) };
        heads.push(n_heads as i32);
        kv_heads.push(n_heads as i32 / 2);
        widths.push(width as i32);
        let q = n_heads * DIM;
        for (name, shape, used) in [
            ("attn_norm", [1, N], N),
            ("attn_q", [q, N], N),
            ("attn_k", [q / 2, N], N),
            ("attn_v", [q / 2, N], N),
            ("attn_output", [N, q], own_heads * DIM),
            ("ffn_norm", [1, N], N),
            ("ffn_gate", [width, N], N),
            ("ffn_up", [width, N], N),
            ("ffn_down", [N, width], own_width),
        ] {
            tensors.push((format!("blk.{i}.{name}"), shape, used));
        }
    }
    let mut header = gguf::Header::new(path);
    header.set("general.architecture", "llama").unwrap();
    for (key, n) in
        [("block_count", 2), ("context_length", 64), ("embedding_length", N), ("attention.key_length", DIM)]
    {
        header.set(format!("llama.{key}"), n as u32).unwrap();
    }
    header.set("llama.attention.head_count", heads).unwrap();
    header.set("llama.attention.head_count_kv", kv_heads).unwrap();
    header.set("llama.feed_forward_length", widths).unwrap();
    header.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32).unwrap();
    for (name, [rows, columns], _) in &tensors {
        let shape = [*rows, *columns];
        header.tensor(format!("{name}.weight"), DType::F32, &shape[usize::from(*rows == 1)..]).unwrap();
    }
    let mut writer = gguf::Writer::new(std::fs::File::create(path).unwrap(), header).unwrap();
    for (name, [rows, columns], used) in &tensors {
        let value = |r, c| if c < *used { weight(name, r, c) } else { 0.0 };
        let bytes = (0..*rows).flat_map(|r| (0..*columns).flat_map(move |c| value(r, c).to_le_bytes()));
        writer.tensor(&format!("{name}.weight"), &bytes.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn layers_may_differ_in_size() {
    let folder = std::env::temp_dir().join(format!("realizar-uneven-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (uneven, padded) = (folder.join("uneven.gguf"), folder.join("padded.gguf"));
    write_uneven(&uneven, false);
    write_uneven(&padded, true);
    let config = configure(&*source::open(&uneven).unwrap()).unwrap();
    assert_eq!(config.kv_bytes_per_token(DType::F32), 4 * 2 * 8 * (2 + 1));
    let expected = answers(1, true, &padded).swap_remove(0).unwrap();
    let same = |found: Answer, what: &str| {
        let difference = largest_difference(&expected.logits, &found.logits);
        assert!(difference < TOLERANCE, "{what}: {difference}");
        assert_eq!(found.tokens, expected.tokens, "{what}");
    };
    for (count, exact) in [(1, true), (1, false), (2, true), (2, false)] {
        for found in answers(count, exact, &uneven) {
            same(found.unwrap(), &format!("{count} ranks, exact: {exact}"));
        }
    }
    same(answer(&Reference, &uneven).unwrap(), "reference");
    if let Some((drivers, link)) = emulation::group(2) {
        for found in answers_of(&Cuda::group_on(drivers, link, Mode::Exact).unwrap(), &uneven) {
            same(found.unwrap(), "emulated GPUs");
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}
