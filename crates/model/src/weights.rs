//! Finds a model's weights in its files, checks their shapes and hands them to a backend.

use crate::config::ModelConfig;
use crate::names;
use crate::shard::{Cut, Shard, Split};
use crate::source::{TensorSource, TensorView};
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::{Backend, DType, Linear, MatrixPart, Norm, Tensor};

/// One of our weights in one layer, or outside of the layers.
#[derive(Clone, Copy)]
pub(crate) struct Weight<'a> {
    pub(crate) name: &'a str,
    pub(crate) layer: Option<usize>,
}

/// A small weight as numbers. Errors: missing, of another length, not finite.
pub fn vector(source: &dyn TensorSource, name: &str, len: Option<usize>) -> Result<Vec<f32>> {
    let t = source.tensor(name)?;
    let n: usize = t.shape.iter().product();
    if len.is_some_and(|len| len != n) {
        let reason =
            format!("has shape {:?} where {} elements were expected", t.shape, len.unwrap_or_default());
        return Err(Error::bad_tensor(source.path(), name, reason));
    }
    let mut values = vec![0.0; n];
    (t.dtype.spec().dequantize)(&t.bytes, &mut values);
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(Error::bad_tensor(source.path(), name, format!("has {} at element {i}", values[i]))),
        None => Ok(values),
    }
}

/// The first tensor that holds a number that is not finite, with that number's index; reads all weights.
///
/// For the error message when a model's logits are not finite.
pub fn find_non_finite(source: &dyn TensorSource) -> Result<Option<(String, usize)>> {
    for info in source.tensors() {
        let t = source.tensor(&info.name)?;
        let spec = t.dtype.spec();
        let mut values = vec![0.0; spec.block_len * 1024];
        for (chunk, bytes) in t.bytes.chunks(spec.block_bytes * 1024).enumerate() {
            let values = &mut values[..bytes.len() / spec.block_bytes * spec.block_len];
            (spec.dequantize)(bytes, values);
            if let Some(i) = values.iter().position(|v| !v.is_finite()) {
                return Ok(Some((info.name.clone(), chunk * 1024 * spec.block_len + i)));
            }
        }
    }
    Ok(None)
}

pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) source: &'a dyn TensorSource,
    /// The whole model.
    pub(crate) config: &'a ModelConfig,
    /// The part of it to load. All sizes that the loader's functions take are the whole model's.
    pub(crate) shard: &'a Shard,
}

impl<B: Backend> Loader<'_, B> {
    pub(crate) fn has(&self, w: Weight<'_>) -> bool {
        self.file_name(w, None, "weight").is_some()
    }

    fn file_name(&self, w: Weight<'_>, expert: Option<usize>, suffix: &str) -> Option<String> {
        names::file_name(self.source, w.name, w.layer, expert, suffix)
    }

    fn need(&self, w: Weight<'_>, expert: Option<usize>) -> Result<String> {
        self.file_name(w, expert, "weight").ok_or_else(|| {
            let mut name = names::candidates(w.name, self.source.format())[0].to_owned() + ".weight";
            if let Some(i) = w.layer {
                name = name.replace("{i}", &i.to_string());
            }
            name = name.replace("{e}", &expert.unwrap_or(0).to_string());
            Error::MissingTensor { path: self.source.path().to_owned(), tensor: name }
        })
    }

    fn wrong_shape(&self, name: &str, found: &[usize], expected: &[usize]) -> Error {
        Error::bad_tensor(
            self.source.path(),
            name,
            format!("has shape {found:?} where {expected:?} was expected"),
        )
    }

    pub(crate) fn norm(&self, w: Weight<'_>, len: usize) -> Result<Norm<B>> {
        let mut weight = vector(self.source, &self.need(w, None)?, Some(len))?;
        weight.iter_mut().for_each(|w| *w += self.config.norm_offset);
        Ok(Norm {
            kind: self.config.norm_kind,
            weight: self.backend.upload(&[len], &weight)?,
            bias: self.bias(&[(w, len)])?,
            eps: self.config.norm_eps,
        })
    }

    /// The biases of stacked matrices; a part without one counts as zeros, and all without as none. Where the products of several
    /// ranks are added, the first has the bias.
    fn bias(&self, parts: &[(Weight<'_>, usize)]) -> Result<Option<Tensor<B>>> {
        let mut all = Vec::new();
        let mut any = false;
        for &(w, len) in parts {
            let rows = match self.shard.cut(names::split(w.name), w.layer, len) {
                Cut::Rows(rows) => rows,
                Cut::Columns(_) if self.shard.rank().is_first() => std::iter::once(0..len).collect(),
                Cut::Columns(_) => return Ok(None),
            };
            match self.file_name(w, None, "bias") {
                Some(name) => {
                    any = true;
                    let whole = vector(self.source, &name, Some(len))?;
                    rows.into_iter().for_each(|r| all.extend_from_slice(&whole[r]));
                }
                None => all.resize(all.len() + rows.into_iter().map(|r| r.len()).sum::<usize>(), 0.0),
            }
        }
        if any { Ok(Some(self.backend.upload(&[all.len()], &all)?)) } else { Ok(None) }
    }

    /// A table of vectors, such as learned positions: `[rows, row_len]`.
    pub(crate) fn table(&self, w: Weight<'_>, row_len: usize) -> Result<Tensor<B>> {
        let name = self.need(w, None)?;
        let shape = self.source.tensor(&name)?.shape;
        if shape.len() != 2 || shape[1] != row_len {
            return Err(self.wrong_shape(&name, &shape, &[self.config.context_length, row_len]));
        }
        Ok(self.backend.upload(&shape, &vector(self.source, &name, None)?)?)
    }

    /// One matrix of the file as parts to stack, cut as the names table says.
    fn parts(&self, w: Weight<'_>, n_out: usize, n_in: usize) -> Result<Vec<MatrixPart>> {
        self.parts_of(w, names::split(w.name), n_out, n_in)
    }

    /// As `parts`, cut by `split`.
    pub(crate) fn parts_of(
        &self,
        w: Weight<'_>,
        split: Split,
        n_out: usize,
        n_in: usize,
    ) -> Result<Vec<MatrixPart>> {
        let name = self.need(w, None)?;
        self.no_other_scale(&name)?;
        let mut t = self.source.tensor(&name)?;
        if self.config.transposed && w.layer.is_some() {
            t = transpose(t).ok_or_else(|| self.wrong_shape(&name, &[], &[n_in, n_out]))?;
        }
        if t.shape != [n_out, n_in] {
            return Err(self.wrong_shape(&name, &t.shape, &[n_out, n_in]));
        }
        self.check_blocks(&name, t.dtype, n_in)?;
        let whole = MatrixPart { dtype: t.dtype, n_experts: 1, n_out, n_in, bytes: t.bytes };
        Ok(cut(whole, self.shard.cut(split, w.layer, n_out)))
    }

    /// The factors of stacked matrices whose files keep one apart from the weights; a part without one counts as 1.
    fn scale(&self, parts: &[(Weight<'_>, usize)]) -> Result<Option<Tensor<B>>> {
        let mut all = Vec::new();
        let mut any = false;
        for &(w, len) in parts {
            let scale = match self.file_name(w, None, "scale") {
                Some(name) => {
                    any = true;
                    vector(self.source, &name, Some(1))?[0]
                }
                None => 1.0,
            };
            let len = match self.shard.cut(names::split(w.name), w.layer, len) {
                Cut::Rows(rows) => rows.into_iter().map(|r| r.len()).sum(),
                Cut::Columns(_) => len,
            };
            all.resize(all.len() + len, scale);
        }
        if any { Ok(Some(self.backend.upload(&[all.len()], &all)?)) } else { Ok(None) }
    }

    /// Refuses a matrix whose file keeps scales apart in a layout that nobody here reads; without them it would be wrong.
    fn no_other_scale(&self, name: &str) -> Result<()> {
        let base = name.strip_suffix(".weight").unwrap_or(name);
        for scale in
            [format!("{base}.weight_scale"), format!("{base}.weight_scale_inv"), format!("{base}.scales")]
        {
            if self.source.find(&scale).is_some() {
                let reason = format!(
                    "has its scales apart, in {scale:?}, which is not supported; use an unquantized model or GGUF"
                );
                return Err(Error::bad_tensor(self.source.path(), name, reason));
            }
        }
        Ok(())
    }

    fn check_blocks(&self, name: &str, dtype: DType, n_in: usize) -> Result<()> {
        if n_in.is_multiple_of(dtype.block_len()) {
            return Ok(());
        }
        let reason = format!(
            "has rows of {n_in} elements, which {dtype} blocks of {} do not divide",
            dtype.block_len()
        );
        Err(Error::bad_tensor(self.source.path(), name, reason))
    }

    /// Matrices stacked along their outputs, with their biases.
    pub(crate) fn linear(&self, parts: &[(Weight<'_>, usize)], n_in: usize) -> Result<Linear<B>> {
        let mut stacked = Vec::with_capacity(parts.len());
        for &(w, n_out) in parts {
            stacked.extend(self.parts(w, n_out, n_in)?);
        }
        let (scale, bias) = (self.scale(parts)?, self.bias(parts)?);
        if scale.is_some() && bias.is_some() {
            let name = self.need(parts[0].0, None)?;
            return Err(Error::bad_tensor(
                self.source.path(),
                &name,
                "has both a scale and a bias, which is not supported",
            ));
        }
        Ok(Linear { weight: self.backend.matrix(stacked)?, scale, bias })
    }

    /// One matrix per expert, from one tensor of all or from one tensor each.
    pub(crate) fn experts(
        &self,
        w: Weight<'_>,
        n_experts: usize,
        n_out: usize,
        n_in: usize,
    ) -> Result<MatrixPart> {
        let first = self.need(w, Some(0))?;
        let t = self.source.tensor(&first)?;
        self.check_blocks(&first, t.dtype, n_in)?;
        let expected = [n_experts, n_out, n_in];
        let whole = |bytes| {
            let all = MatrixPart { dtype: t.dtype, n_experts, n_out, n_in, bytes };
            let mut parts = cut(all, self.shard.cut(names::split(w.name), w.layer, n_out));
            assert_eq!(parts.len(), 1, "an expert's matrices are not fused");
            parts.swap_remove(0)
        };
        if t.shape == expected {
            return Ok(whole(t.bytes.clone()));
        }
        if t.shape != expected[1..] {
            return Err(self.wrong_shape(&first, &t.shape, &expected));
        }
        let mut bytes = Vec::with_capacity(t.bytes.len() * n_experts);
        for e in 0..n_experts {
            let name = self.need(w, Some(e))?;
            let one = self.source.tensor(&name)?;
            if one.shape != expected[1..] || one.dtype != t.dtype {
                return Err(self.wrong_shape(&name, &one.shape, &expected[1..]));
            }
            bytes.extend_from_slice(&one.bytes);
        }
        Ok(whole(Bytes::from(bytes)))
    }
}

/// Takes a part out of a matrix: a matrix per range of rows, or one of some columns. Whole rows of a single matrix are not copied.
fn cut(p: MatrixPart, cut: Cut) -> Vec<MatrixPart> {
    let bytes_of = |n: usize| p.dtype.bytes_for(n).expect("a cut falls on whole blocks");
    let row_bytes = bytes_of(p.n_in);
    match cut {
        Cut::Rows(ranges) => {
            let one = |rows: std::ops::Range<usize>| {
                let range = rows.start * row_bytes..rows.end * row_bytes;
                let bytes = match p.n_experts {
                    _ if rows == (0..p.n_out) => p.bytes.clone(),
                    1 => p.bytes.slice(range),
                    _ => {
                        let mut bytes = Vec::with_capacity(p.n_experts * range.len());
                        let experts = p.bytes.chunks_exact(p.n_out * row_bytes);
                        experts.for_each(|e| bytes.extend_from_slice(&e[range.clone()]));
                        Bytes::from(bytes)
                    }
                };
                MatrixPart { n_out: rows.len(), bytes, ..p }
            };
            ranges.into_iter().map(one).collect()
        }
        Cut::Columns(columns) => {
            let range = bytes_of(columns.start)..bytes_of(columns.end);
            let mut bytes = Vec::with_capacity(p.bytes.len() / row_bytes.max(1) * range.len());
            p.bytes.chunks_exact(row_bytes).for_each(|row| bytes.extend_from_slice(&row[range.clone()]));
            vec![MatrixPart { n_in: columns.len(), bytes: Bytes::from(bytes), ..p }]
        }
    }
}

/// Swaps the two dimensions of a matrix of plain numbers.
pub(crate) fn transpose(t: TensorView) -> Option<TensorView> {
    let &[rows, cols] = &t.shape[..] else { return None };
    if t.dtype.block_len() != 1 {
        return None;
    }
    let size = t.dtype.spec().block_bytes;
    let mut out = vec![0u8; t.bytes.len()];
    for r in 0..rows {
        for c in 0..cols {
            out[(c * rows + r) * size..][..size].copy_from_slice(&t.bytes[(r * cols + c) * size..][..size]);
        }
    }
    Some(TensorView { dtype: t.dtype, shape: vec![cols, rows], bytes: Bytes::from(out) })
}
