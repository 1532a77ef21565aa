//! Writes any model as a GGUF file of a given mix of element types, one tensor at a time.

use crate::gguf::{Header, Writer};
use crate::imatrix::Imatrix;
use crate::names;
use crate::quant_mix::{MixModel, QuantMix, needs_imatrix};
use crate::source::{Format, TensorInfo, TensorSource, TensorView};
use crate::{Error, Result};
use realizar_compute::DType;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes `source` to `out`, every matrix in the type that `mix` gives it, and returns `out`.
///
/// `source` must have GGUF's names and layout: a GGUF file, a model of [`synth`](crate::synth), or a view of another format by
/// [`convert`](crate::convert). With `imatrix`, the errors of weights cost in proportion to their importance. `path` is the file that errors
/// name. `progress` hears the number of elements that were written since it was last called, from any thread.
///
/// Errors: `Io`; whatever is wrong in the source; `BadTensor` for a weight that is not finite or does not fit its new type, for one that
/// needs an importance that `imatrix` does not know, and for one that has other sizes there.
pub fn write_gguf<W: Write>(
    source: &dyn TensorSource,
    mix: &QuantMix,
    imatrix: Option<&Imatrix>,
    path: &Path,
    out: W,
    n_threads: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<W> {
    assert_eq!(source.format(), Format::Gguf, "only models in GGUF's layout can be written");
    let model = mix_model(source, imatrix.is_some())?;
    let mut header = Header::new(path);
    for (key, value) in source.metadata().iter() {
        let is_replaced = ["general.file_type", "general.quantization_version"].contains(&key)
            || ["split.", "quantize.imatrix."].iter().any(|prefix| key.starts_with(prefix));
        if !is_replaced {
            header.set(key, value.clone())?;
        }
    }
    header.set("general.file_type", mix.file_type)?;
    header.set("general.quantization_version", 2u32)?;
    if let Some(imatrix) = imatrix {
        header.set("quantize.imatrix.file", imatrix.path.display().to_string())?;
        if let Some(dataset) = imatrix.datasets.first() {
            header.set("quantize.imatrix.dataset", &**dataset)?;
        }
        header.set("quantize.imatrix.entries_count", imatrix.len() as u32)?;
        header.set("quantize.imatrix.chunks_count", imatrix.chunk_count)?;
    }
    let dtype = |t: &TensorInfo| mix.dtype_of(&t.name, &t.shape, &model).unwrap_or(t.dtype);
    // All before anything is written.
    let mut importance = Vec::with_capacity(source.tensors().len());
    for t in source.tensors() {
        header.tensor(&t.name, dtype(t), &t.shape)?;
        importance.push(match dtype(t) {
            same if same == t.dtype => None,
            new => importance_of(source.path(), t, new, imatrix)?,
        });
    }
    let mut writer = Writer::new(out, header)?;
    for (t, importance) in source.tensors().iter().zip(&importance) {
        let view = source.tensor(&t.name)?;
        if view.dtype == dtype(t) {
            writer.tensor(&t.name, &view.bytes)?;
            progress(t.n_elements());
        } else {
            let to = New { dtype: dtype(t), importance: importance.as_deref() };
            let bytes = requantize(source.path(), &t.name, &view, to, n_threads, progress)?;
            writer.tensor(&t.name, &bytes)?;
        }
    }
    writer.finish()
}

/// The importance of the columns of a tensor that becomes `new`, `[n_matrices, n_in]`. Says so where the matrix does not know a tensor of a
/// layer; embeddings and outputs usually are not there.
///
/// Errors: `BadTensor` where there is none for a type that needs it, or one of other sizes.
fn importance_of(
    path: &Path,
    t: &TensorInfo,
    new: DType,
    imatrix: Option<&Imatrix>,
) -> Result<Option<Vec<f32>>> {
    let Some(imatrix) = imatrix else {
        if needs_imatrix(&t.name, new) {
            let reason = format!("can become {new} only with an importance matrix");
            return Err(Error::bad_tensor(path, &t.name, reason));
        }
        return Ok(None);
    };
    let found = imatrix.importance(&t.name, &t.shape)?;
    let file = imatrix.path.display();
    if found.is_none() && needs_imatrix(&t.name, new) {
        let reason = format!("can become {new} only with its importance, which {file} does not have");
        return Err(Error::bad_tensor(path, &t.name, reason));
    }
    if found.is_none() && t.name.starts_with("blk.") && new.block_len() > 1 {
        tracing::warn!("{file} has no importance of {}, so that its columns count alike", t.name);
    }
    Ok(found)
}

/// What a mix needs to know about a model in GGUF's layout.
fn mix_model(source: &dyn TensorSource, has_imatrix: bool) -> Result<MixModel<'_>> {
    let metadata = source.metadata();
    let key = "general.architecture";
    let arch = metadata.get_str(key)?.ok_or_else(|| metadata.missing(key))?;
    // Some models state one number per layer; the first layer's counts.
    let count = |key: &str| -> Result<Option<usize>> {
        let numbers = metadata.get_i64s(&format!("{arch}.{key}"))?;
        Ok(numbers.and_then(|n| n.first().and_then(|&n| usize::try_from(n).ok())))
    };
    let need = |key: &str| count(key)?.ok_or_else(|| metadata.missing(&format!("{arch}.{key}")));
    let n_heads = need("attention.head_count")?;
    Ok(MixModel {
        arch,
        n_layers: need("block_count")?,
        n_heads,
        n_kv_heads: count("attention.head_count_kv")?.unwrap_or(n_heads),
        n_experts: count("expert_count")?.unwrap_or(0),
        tied: names::file_name(source, "lm_head", None, None, "weight").is_none(),
        has_imatrix,
    })
}

/// Weights that a thread decodes and encodes at once.
const CHUNK: usize = 1 << 16;

/// What a tensor becomes.
#[derive(Clone, Copy)]
struct New<'a> {
    dtype: DType,
    /// Of its columns, `[n_matrices, n_in]`.
    importance: Option<&'a [f32]>,
}

fn requantize(
    path: &Path,
    name: &str,
    view: &TensorView,
    New { dtype: to, importance }: New<'_>,
    n_threads: usize,
    progress: &(dyn Fn(usize) + Sync),
) -> Result<Vec<u8>> {
    let quantize = to.spec().quantize.ok_or_else(|| {
        Error::bad_tensor(path, name, format!("cannot become {to}, which this program only reads"))
    })?;
    let from = view.dtype.spec();
    let n_elements: usize = view.shape.iter().product();
    let row_len = *view.shape.last().unwrap_or(&1);
    let n_bytes = to.bytes_for(n_elements).filter(|_| row_len.is_multiple_of(to.block_len()));
    let mut out = vec![
        0;
        n_bytes.ok_or_else(|| Error::bad_tensor(
            path,
            name,
            format!("has rows that {to} cannot hold")
        ))?
    ];
    // Whole rows, so that both types' blocks are whole too.
    let rows_per_chunk = (CHUNK / row_len.max(1)).max(1);
    let chunk = rows_per_chunk * row_len.max(1);
    let rows_per_matrix = view.shape[..view.shape.len() - 1].last().copied().unwrap_or(1);
    let bytes_of_row = row_len / to.block_len() * to.spec().block_bytes;
    let bytes_of = |dtype: DType| chunk / dtype.block_len() * dtype.spec().block_bytes;
    let chunks = view.bytes.chunks(bytes_of(view.dtype)).zip(out.chunks_mut(bytes_of(to)));
    let chunks = Mutex::new(chunks.enumerate());
    let bad: Mutex<Option<(usize, f32)>> = Mutex::new(None);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..n_threads.max(1) {
            scope.spawn(|| {
                let mut values = vec![0.0f32; chunk];
                while !stop.load(Ordering::Relaxed) {
                    let next = chunks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).next();
                    let Some((i, (src, dst))) = next else { return };
                    let values = &mut values[..src.len() / from.block_bytes * from.block_len];
                    (from.dequantize)(src, values);
                    if let Some(at) = values.iter().position(|&v| !fits(v, to)) {
                        *bad.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) =
                            Some((i * chunk + at, values[at]));
                        stop.store(true, Ordering::Relaxed);
                        return;
                    }
                    match importance {
                        None => quantize(values, dst, None),
                        Some(importance) => {
                            let rows = values.chunks_exact(row_len).zip(dst.chunks_exact_mut(bytes_of_row));
                            for (row, (values, dst)) in (i * rows_per_chunk..).zip(rows) {
                                let importance = &importance[row / rows_per_matrix * row_len..][..row_len];
                                quantize(values, dst, Some(importance));
                            }
                        }
                    }
                    progress(values.len());
                }
            });
        }
    });
    match bad.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some((at, v)) => {
            Err(Error::bad_tensor(path, name, format!("has {v} at element {at}, which {to} cannot hold")))
        }
        None => Ok(out),
    }
}

/// Whether a weight has a finite counterpart.
fn fits(v: f32, to: DType) -> bool {
    const F16_MAX: f32 = 65_504.0;
    v.is_finite() && (to != DType::F16 || v.abs() <= F16_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::open_gguf_bytes;
    use bytes::Bytes;

    /// Columns of the matrix.
    const ROW: usize = 256;

    /// A model of one matrix and one norm.
    fn tiny(weights: &[f32]) -> Box<dyn TensorSource> {
        let mut header = Header::new("tiny.gguf");
        header.set("general.architecture", "llama").unwrap();
        header.set("llama.block_count", 1u32).unwrap();
        header.set("llama.attention.head_count", 1u32).unwrap();
        header.set("split.count", 1u16).unwrap();
        header.tensor("blk.0.attn_norm.weight", DType::F32, &[4]).unwrap();
        header.tensor("blk.0.attn_q.weight", DType::F32, &[weights.len() / ROW, ROW]).unwrap();
        let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let mut w = Writer::new(Vec::new(), header).unwrap();
        w.tensor("blk.0.attn_norm.weight", &bytes(&[1.0; 4])).unwrap();
        w.tensor("blk.0.attn_q.weight", &bytes(weights)).unwrap();
        open_gguf_bytes("tiny.gguf", Bytes::from(w.finish().unwrap())).unwrap()
    }

    fn write(weights: &[f32], mix: &str) -> Result<Box<dyn TensorSource>> {
        write_with(weights, mix, None)
    }

    fn write_with(weights: &[f32], mix: &str, imatrix: Option<&Imatrix>) -> Result<Box<dyn TensorSource>> {
        let out = write_gguf(
            &*tiny(weights),
            QuantMix::from_name(mix).unwrap(),
            imatrix,
            Path::new("out.gguf"),
            Vec::new(),
            2,
            &|_| {},
        )?;
        open_gguf_bytes("out.gguf", Bytes::from(out))
    }

    #[test]
    fn matrices_change_type_and_norms_stay() {
        let weights: Vec<f32> = (0..ROW * 750).map(|i| (i % 127) as f32 / 127.0 - 0.5).collect();
        let out = write(&weights, "q8_0").unwrap();
        assert_eq!(out.metadata().get_usize("general.file_type").unwrap(), Some(7));
        assert!(out.metadata().get("split.count").is_none());
        assert_eq!(out.tensor("blk.0.attn_norm.weight").unwrap().dtype, DType::F32);
        let q = out.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!((q.dtype, &q.shape[..]), (DType::Q8_0, &[750, ROW][..]));
        let mut values = vec![0.0; weights.len()];
        (q.dtype.spec().dequantize)(&q.bytes, &mut values);
        assert!(values.iter().zip(&weights).all(|(a, b)| (a - b).abs() < 0.005));
    }

    #[test]
    fn a_weight_that_the_new_type_cannot_hold_is_named() {
        let mut weights = vec![0.5; ROW * 2];
        weights[70] = f32::NAN;
        let error = write(&weights, "q4_0").err().expect("NaN").to_string();
        assert!(error.contains("blk.0.attn_q.weight") && error.contains("NaN at element 70"), "{error}");
        weights[70] = 1e5;
        assert!(write(&weights, "f16").is_err());
        assert!(write(&weights, "q8_0").is_ok());
    }

    /// Columns of which every eighth matters a hundred times as much as the others.
    fn uneven() -> Imatrix {
        let mut imatrix = Imatrix::default();
        let row: Vec<f32> = (0..ROW).map(|i| if i % 8 == 0 { 10.0 } else { 1.0 }).collect();
        imatrix.add("blk.0.attn_q.weight", 1, 0, &row, ROW);
        imatrix
    }

    #[test]
    fn an_importance_matrix_moves_errors_to_where_they_cost_little() {
        let weights: Vec<f32> = (0..ROW * 64).map(|i| ((i * i) as f32 * 0.37).sin() * 0.1).collect();
        let imatrix = uneven();
        let importance = imatrix.importance("blk.0.attn_q.weight", &[64, ROW]).unwrap().unwrap();
        let error = |imatrix: Option<&Imatrix>, mix: &str| -> f32 {
            let q = write_with(&weights, mix, imatrix).unwrap().tensor("blk.0.attn_q.weight").unwrap();
            let mut values = vec![0.0; weights.len()];
            (q.dtype.spec().dequantize)(&q.bytes, &mut values);
            let errors = values.iter().zip(&weights).map(|(a, b)| (a - b) * (a - b));
            errors.zip(importance.iter().cycle()).map(|(e, w)| e * w).sum()
        };
        for mix in ["q2_k", "q3_k_s", "q4_k_s", "q4_0", "q5_1", "iq4_xs", "iq3_s"] {
            let (without, with) = (error(None, mix), error(Some(&imatrix), mix));
            assert!(with < 0.9 * without, "{mix}: {with} with, {without} without");
        }
    }

    #[test]
    fn types_of_few_bits_are_refused_without_the_importance_of_each_matrix() {
        let weights = vec![0.5; ROW * 2];
        let message = |imatrix| write_with(&weights, "iq2_xs", imatrix).err().expect("refused").to_string();
        let without = message(None);
        assert!(
            without.contains("blk.0.attn_q.weight") && without.contains("importance matrix"),
            "{without}"
        );
        let other = Imatrix::default();
        assert!(message(Some(&other)).contains("does not have"));
        let out = write_with(&weights, "iq2_xs", Some(&uneven())).unwrap();
        assert_eq!(out.tensor("blk.0.attn_q.weight").unwrap().dtype, DType::IQ2_XS);
        assert_eq!(out.metadata().get_usize("quantize.imatrix.entries_count").unwrap(), Some(1));
    }
}
