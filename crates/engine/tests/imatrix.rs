//! Importance matrices: the sums are those of what a model's matrices read, for each expert by itself, however a chunk is cut into steps.

use realizar_engine::imatrix::InputCollector;
use realizar_engine::load::{LoadOptions, load_observed};
use realizar_model::imatrix::{Imatrix, ImatrixFormat};
use realizar_model::source::{self, TensorSource};
use std::path::Path;
use std::sync::Arc;

fn open(path: &str) -> Box<dyn TensorSource> {
    source::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

fn gather(source: &dyn TensorSource, tokens: &[u32], step_tokens: usize, with_output: bool) -> Imatrix {
    let collector = Arc::new(InputCollector::new(with_output));
    let options = LoadOptions {
        n_ctx: Some(64),
        step_tokens: Some(step_tokens),
        exact: true,
        ..LoadOptions::default()
    };
    let mut model = load_observed(source, &options, collector.clone()).unwrap();
    collector.read_chunk(&mut *model.runner, tokens, None).unwrap();
    collector.take()
}

/// The numbers of a tensor of the file.
fn floats(imatrix: &Imatrix, name: &str) -> Vec<f32> {
    let bytes = imatrix.write(Path::new("m"), ImatrixFormat::Gguf, Vec::new()).unwrap();
    let file = source::open_gguf_bytes("m", bytes.into()).unwrap();
    values(&*file, name)
}

fn values(source: &dyn TensorSource, name: &str) -> Vec<f32> {
    let t = source.tensor(name).unwrap();
    let mut values = vec![0.0; t.shape.iter().product()];
    (t.dtype.spec().dequantize)(&t.bytes, &mut values);
    values
}

fn assert_close(a: &[f32], b: &[f32]) {
    assert_eq!(a.len(), b.len());
    for (a, b) in a.iter().zip(b) {
        assert!((a - b).abs() <= 1e-3 * b.abs().max(1e-3), "{a} is not {b}");
    }
}

#[test]
fn the_first_layer_reads_the_norm_of_embeddings() {
    let demo = open("assets/demo.gguf");
    let tokens: Vec<u32> = (0..50).map(|i| 300 + i * 7 % 900).collect();
    let (table, weight) = (values(&*demo, "token_embd.weight"), values(&*demo, "blk.0.attn_norm.weight"));
    let eps = demo.metadata().get_f32("llama.attention.layer_norm_rms_epsilon").unwrap().unwrap();
    let n = weight.len();
    let mut sums = vec![0.0; n];
    for &token in &tokens {
        let row = &table[token as usize * n..][..n];
        let rms = (row.iter().map(|x| x * x).sum::<f32>() / n as f32 + eps).sqrt();
        sums.iter_mut().zip(row).zip(&weight).for_each(|((sum, x), w)| *sum += (x / rms * w).powi(2));
    }
    let whole = gather(&*demo, &tokens, 512, false);
    for name in ["attn_q", "attn_k", "attn_v"] {
        assert_close(&floats(&whole, &format!("blk.0.{name}.weight.in_sum2")), &sums);
        assert_eq!(floats(&whole, &format!("blk.0.{name}.weight.counts")), [50.0]);
    }
    let in_steps = gather(&*demo, &tokens, 16, true);
    for layer in [0, 7] {
        for name in ["attn_output", "ffn_gate", "ffn_down"] {
            let name = format!("blk.{layer}.{name}.weight.in_sum2");
            assert_close(&floats(&in_steps, &name), &floats(&whole, &name));
        }
    }
    // Embeddings that serve as the output have no tensor of that name.
    assert_eq!((whole.len(), in_steps.len()), (8 * 7, 8 * 7));
}

#[test]
fn each_expert_counts_the_tokens_that_chose_it() {
    let model = open("crates/model/tests/data/arch/qwen2moe/hf");
    let model = realizar_model::convert::as_gguf(model).unwrap();
    let used = model.metadata().get_usize("qwen2moe.expert_used_count").unwrap().unwrap();
    let tokens: Vec<u32> = (0..40).map(|i| 3 + i * 5 % 60).collect();
    let imatrix = gather(&*model, &tokens, 512, true);
    let find = |name: &str| model.find(name).map(|t| t.shape.clone()).unwrap();
    for name in ["blk.2.ffn_gate_exps.weight", "blk.2.ffn_up_exps.weight", "blk.2.ffn_down_exps.weight"] {
        let counts = floats(&imatrix, &format!("{name}.counts"));
        assert_eq!(counts.iter().sum::<f32>(), (40 * used) as f32, "{name}: {counts:?}");
        let shape = find(name);
        let importance = imatrix.importance(name, &shape).unwrap().unwrap();
        assert_eq!(importance.len(), shape[0] * shape[2]);
    }
    assert_eq!(floats(&imatrix, "output.weight.counts"), [40.0]);
}
