//! Reads a model's weights from its files, once the contract is checked, and hands them to a backend.

use crate::config::ModelConfig;
use crate::contract::{Contract, Entry, Part, Weight};
use crate::names::{self, Split};
use crate::shard::{Cut, Shard};
use crate::source::{TensorSource, TensorView};
use crate::{Result, values};
use bytes::Bytes;
use realizar_compute::{Backend, DeltaShape, Heads, Linear, MatrixPart, Norm, SsmShape, Tensor};

/// Reads what the contract found and hands this rank's part of it to the backend.
pub(crate) struct Loader<'a, B: Backend> {
    pub(crate) backend: &'a B,
    pub(crate) source: &'a dyn TensorSource,
    /// The whole model.
    pub(crate) config: &'a ModelConfig,
    /// Its tensors.
    pub(crate) contract: &'a Contract,
    /// The part of it to load.
    pub(crate) shard: &'a Shard,
}

impl<B: Backend> Loader<'_, B> {
    /// Whether the model's files have a weight.
    pub(crate) fn has(&self, layer: Option<usize>, name: &'static str) -> bool {
        self.contract.find(Weight { name, layer }, Part::Weight).is_some()
    }

    fn need(&self, w: Weight) -> &Entry {
        let found = self.contract.find(w, Part::Weight);
        found.unwrap_or_else(|| panic!("{w:?} is loaded but the contract does not ask for it"))
    }

    fn values(&self, entry: &Entry) -> Result<Vec<f32>> {
        values::vector(self.source, &entry.files[0], Some(entry.shape.iter().product()))
    }

    pub(crate) fn norm(&self, layer: Option<usize>, name: &'static str) -> Result<Norm<B>> {
        self.norm_with_offset(layer, name, self.config.norm_offset)
    }

    /// A norm whose weights count as they are stored, whatever the other norms do.
    pub(crate) fn plain_norm(&self, layer: usize, name: &'static str) -> Result<Norm<B>> {
        self.norm_with_offset(Some(layer), name, 0.0)
    }

    fn norm_with_offset(&self, layer: Option<usize>, name: &'static str, offset: f32) -> Result<Norm<B>> {
        let w = Weight { name, layer };
        let mut weight = self.values(self.need(w))?;
        weight.iter_mut().for_each(|w| *w += offset);
        let mut bias = self.contract.find(w, Part::Bias).map(|entry| self.values(entry)).transpose()?;
        if Some(name) == self.config.final_norm {
            let factor = self.config.logit_scale;
            weight.iter_mut().chain(bias.iter_mut().flatten()).for_each(|w| *w *= factor);
        }
        let upload = |values: Vec<f32>| self.backend.upload(&[values.len()], &values);
        Ok(Norm {
            kind: self.config.norm_kind,
            weight: upload(weight)?,
            bias: bias.map(upload).transpose()?,
            // Only norms of the residual are in a model that scales it, and the residual is that much larger here.
            eps: self.config.norm_eps / self.config.residual_scale.powi(2),
        })
    }

    /// A norm whose weights count as they are stored, times a factor.
    pub(crate) fn scaled_norm(
        &self,
        layer: Option<usize>,
        name: &'static str,
        factor: f32,
        eps: f32,
    ) -> Result<Norm<B>> {
        let weight = self.values(self.need(Weight { name, layer }))?;
        let weight: Vec<f32> = weight.into_iter().map(|w| w * factor).collect();
        let weight = self.backend.upload(&[weight.len()], &weight)?;
        Ok(Norm { kind: self.config.norm_kind, weight, bias: None, eps })
    }

    /// The one number of a layer's tensor; `None` where the files do not have it.
    pub(crate) fn number(&self, layer: usize, name: &'static str) -> Result<Option<f32>> {
        let entry = self.contract.find(Weight { name, layer: Some(layer) }, Part::Weight);
        entry.map(|entry| Ok(self.values(entry)?[0])).transpose()
    }

    /// A table of which only rows are looked up, whatever its element type.
    pub(crate) fn lookup_table(&self, name: &'static str) -> Result<B::Matrix> {
        let part = self.parts(Weight { name, layer: None }, Split::Whole)?.swap_remove(0);
        Ok(self.backend.table(part)?)
    }

    /// A vector of a layer, each number through `f`.
    pub(crate) fn vector_map(
        &self,
        layer: usize,
        name: &'static str,
        f: impl Fn(f32) -> f32,
    ) -> Result<Tensor<B>> {
        let values = self.values(self.need(Weight { name, layer: Some(layer) }))?;
        let values: Vec<f32> = values.into_iter().map(f).collect();
        Ok(self.backend.upload(&[values.len()], &values)?)
    }

    /// The weights of a convolution, `[width, n_channels]`.
    pub(crate) fn conv(&self, layer: usize, name: &'static str) -> Result<Tensor<B>> {
        let entry = self.need(Weight { name, layer: Some(layer) });
        let (n_channels, width) = (entry.shape[0], entry.shape[entry.shape.len() - 1]);
        let values = self.values(entry)?;
        let column = |j: usize| (0..n_channels).map(move |c| c * width + j);
        let transposed: Vec<f32> = (0..width).flat_map(column).map(|at| values[at]).collect();
        Ok(self.backend.upload(&[width, n_channels], &transposed)?)
    }

    /// Queries, keys and values stacked, and the gate of attention's output, from a `q_proj` that has behind each head's rows those of
    /// its gate.
    pub(crate) fn gated_qkv(&self, layer: usize, heads: Heads) -> Result<(Linear<B>, Linear<B>)> {
        let of = |name| Weight { name, layer: Some(layer) };
        let q = self.parts(of("q_proj"), Split::Whole)?.swap_remove(0);
        let [q, gate] = alternating(&q, heads.n_heads);
        let mut stacked = vec![q];
        for name in ["k_proj", "v_proj"] {
            stacked.extend(self.parts(of(name), Split::Whole)?);
        }
        let (q_len, kv_len) = (gate.n_out, heads.n_kv_heads * heads.head_dim);
        let lens = [("q_proj", q_len), ("k_proj", kv_len), ("v_proj", kv_len)];
        let linear = |parts, lens: &[(&'static str, usize)]| -> Result<Linear<B>> {
            let scale = self.scale_of(lens.iter().map(|&(name, len)| (of(name), len)))?;
            Ok(Linear { weight: self.backend.matrix(parts)?, scale, bias: None })
        };
        Ok((linear(stacked, &lens)?, linear(vec![gate], &lens[..1])?))
    }

    /// What the gated delta rule makes of its input, stacked: queries, keys and values, output gates, and both rates, whose rows may stand
    /// in one matrix, key head by key head.
    pub(crate) fn delta_in_proj(&self, layer: usize, shape: DeltaShape) -> Result<Linear<B>> {
        let fused = Weight { name: "delta.ba_proj", layer: Some(layer) };
        if !self.has(fused.layer, fused.name) {
            let names = ["delta.qkv_proj", "delta.z_proj", "delta.b_proj", "delta.a_proj"];
            return self.linear(Some(layer), &names);
        }
        let weights = ["delta.qkv_proj", "delta.z_proj"].map(|name| Weight { name, layer: Some(layer) });
        let mut stacked = Vec::new();
        for w in weights {
            stacked.extend(self.parts(w, Split::Whole)?);
        }
        let rates = self.parts(fused, Split::Whole)?.swap_remove(0);
        stacked.extend(alternating(&rates, shape.n_k_heads));
        let scale = self.scale(&[weights[0], weights[1], fused])?;
        Ok(Linear { weight: self.backend.matrix(stacked)?, scale, bias: None })
    }

    /// What Mamba-2 makes of its input, stacked: `x`, `B` and `C`, which its convolution reads, the gate, and `dt`. The files have the gate
    /// first.
    pub(crate) fn mamba_in_proj(&self, layer: usize, shape: &SsmShape) -> Result<Linear<B>> {
        let w = Weight { name: "mamba.in_proj", layer: Some(layer) };
        let whole = self.parts(w, Split::Whole)?.swap_remove(0);
        let (gate_len, dt_start) = (shape.inner_len(), shape.inner_len() + shape.xbc_len());
        let rows = vec![gate_len..dt_start, 0..gate_len, dt_start..whole.n_out];
        let scale = self.scale(&[w])?;
        Ok(Linear { weight: self.backend.matrix(cut(whole, Cut::Rows(rows)))?, scale, bias: None })
    }

    /// Some rows of a matrix that has one for each token.
    pub(crate) fn token_rows(&self, name: &'static str, tokens: &[u32]) -> Result<Linear<B>> {
        let w = Weight { name, layer: None };
        let whole = self.parts(w, Split::Whole)?.swap_remove(0);
        let rows = tokens.iter().map(|&token| token as usize..token as usize + 1).collect();
        let scale = self.scale_of([(w, tokens.len())].into_iter())?;
        Ok(Linear { weight: self.backend.matrix(cut(whole, Cut::Rows(rows)))?, scale, bias: None })
    }

    /// The weight of a layer's norm.
    pub(crate) fn norm_weight(&self, layer: usize, name: &'static str) -> Result<Vec<f32>> {
        let mut weight = self.values(self.need(Weight { name, layer: Some(layer) }))?;
        weight.iter_mut().for_each(|w| *w += self.config.norm_offset);
        Ok(weight)
    }

    /// A norm without weights.
    pub(crate) fn unit_norm(&self, len: usize) -> Result<Norm<B>> {
        let weight = self.backend.upload(&[len], &vec![1.0; len])?;
        Ok(Norm { kind: self.config.norm_kind, weight, bias: None, eps: self.config.norm_eps })
    }

    /// What is added to embeddings by their positions, `[rows, hidden_size]`.
    pub(crate) fn position_table(&self) -> Result<Option<Tensor<B>>> {
        let ModelConfig { hidden_size: n, learned_positions, position_offset, .. } = *self.config;
        if !learned_positions {
            return Ok(None);
        }
        let all = self.values(self.need(Weight { name: "position_embed", layer: None }))?;
        let table = &all[position_offset * n..];
        Ok(Some(self.backend.upload(&[table.len() / n, n], table)?))
    }

    /// What is added to embeddings by the types of tokens, `[n_token_types, hidden_size]`.
    pub(crate) fn token_types(&self) -> Result<Option<Tensor<B>>> {
        let ModelConfig { hidden_size: n, n_token_types, .. } = *self.config;
        if n_token_types == 0 {
            return Ok(None);
        }
        let table = self.values(self.need(Weight { name: "token_types", layer: None }))?;
        Ok(Some(self.backend.upload(&[n_token_types, n], &table)?))
    }

    /// The biases of stacked matrices, which have all or none. Where the products of several ranks are added, the first has the
    /// bias.
    fn bias(&self, parts: &[Weight]) -> Result<Option<Tensor<B>>> {
        let mut all = Vec::new();
        for &w in parts {
            let Some(entry) = self.contract.find(w, Part::Bias) else { return Ok(None) };
            let len = entry.shape[0];
            let rows = match self.shard.cut(names::split(w.name), w.layer, len) {
                Cut::Rows(rows) => rows,
                Cut::Columns(_) if self.shard.rank().is_first() => std::iter::once(0..len).collect(),
                Cut::Columns(_) => return Ok(None),
            };
            let whole = self.values(entry)?;
            rows.into_iter().for_each(|r| all.extend_from_slice(&whole[r]));
        }
        Ok(Some(self.backend.upload(&[all.len()], &all)?))
    }

    /// The factors of stacked matrices; a part without one counts as 1.
    fn scale(&self, parts: &[Weight]) -> Result<Option<Tensor<B>>> {
        self.scale_of(parts.iter().map(|&w| {
            let n_out = self.need(w).shape[0];
            let len = match self.shard.cut(names::split(w.name), w.layer, n_out) {
                Cut::Rows(rows) => rows.into_iter().map(|r| r.len()).sum(),
                Cut::Columns(_) => n_out,
            };
            (w, len)
        }))
    }

    /// The factors of matrices, each with its number of outputs.
    fn scale_of(&self, parts: impl Iterator<Item = (Weight, usize)>) -> Result<Option<Tensor<B>>> {
        let mut all = Vec::new();
        let mut any = false;
        for (w, len) in parts {
            let scale = match self.contract.find(w, Part::Scale) {
                Some(entry) => {
                    any = true;
                    self.values(entry)?[0]
                }
                None => 1.0,
            };
            all.resize(all.len() + len, scale);
        }
        if any { Ok(Some(self.backend.upload(&[all.len()], &all)?)) } else { Ok(None) }
    }

    /// One matrix of the file as parts to stack, cut by `split`.
    pub(crate) fn parts(&self, w: Weight, split: Split) -> Result<Vec<MatrixPart>> {
        let entry = self.need(w);
        let mut t = self.source.tensor(&entry.files[0])?;
        if self.config.transposed && w.layer.is_some() {
            t = transpose(t).expect("the contract lets only matrices of plain numbers stand transposed");
        }
        let (n_out, n_in) = (entry.shape[0], entry.shape[1]);
        let name = entry.files[0].as_str().into();
        let whole = MatrixPart { name, dtype: t.dtype, n_experts: 1, n_out, n_in, bytes: t.bytes };
        Ok(cut(whole, self.shard.cut(split, w.layer, n_out)))
    }

    /// Matrices stacked along their outputs, with their biases.
    pub(crate) fn linear(&self, layer: Option<usize>, names: &[&'static str]) -> Result<Linear<B>> {
        let parts: Vec<Weight> = names.iter().map(|&name| Weight { name, layer }).collect();
        let mut stacked = Vec::with_capacity(parts.len());
        for &w in &parts {
            stacked.extend(self.parts(w, names::split(w.name))?);
        }
        let (scale, bias) = (self.scale(&parts)?, self.bias(&parts)?);
        Ok(Linear { weight: self.backend.matrix(stacked)?, scale, bias })
    }

    /// The halves of a matrix's columns, as matrices of their own.
    pub(crate) fn halves(&self, layer: usize, name: &'static str) -> Result<[Linear<B>; 2]> {
        let w = Weight { name, layer: Some(layer) };
        let whole = self.parts(w, Split::Whole)?.swap_remove(0);
        let middle = whole.n_in / 2;
        let half = |columns| -> Result<_> {
            let weight = self.backend.matrix(cut(whole.clone(), Cut::Columns(columns)))?;
            Ok(Linear { weight, scale: self.scale(&[w])?, bias: None })
        };
        Ok([half(0..middle)?, half(middle..whole.n_in)?])
    }

    /// Matrices in one tensor where the files have it, or else in one each.
    pub(crate) fn fused_or(
        &self,
        layer: Option<usize>,
        fused: &'static str,
        names: &[&'static str],
    ) -> Result<Linear<B>> {
        self.linear(layer, if self.has(layer, fused) { std::slice::from_ref(&fused) } else { names })
    }

    /// A vector that is not stacked, cut among ranks; `None` where the files do not have it.
    pub(crate) fn vector(&self, layer: usize, name: &'static str, part: Part) -> Result<Option<Tensor<B>>> {
        let w = Weight { name, layer: Some(layer) };
        let Some(entry) = self.contract.find(w, part) else { return Ok(None) };
        let values = self.values(entry)?;
        let Cut::Rows(rows) = self.shard.cut(names::split(name), w.layer, values.len()) else {
            panic!("{name} has no columns")
        };
        let mine: Vec<f32> = rows.into_iter().flat_map(|r| &values[r]).copied().collect();
        Ok(Some(self.backend.upload(&[mine.len()], &mine)?))
    }

    /// The biases of the experts' stacked matrices, `[n_experts, sum of n_out]`. Where the products of several ranks are added, the
    /// first has them.
    pub(crate) fn expert_bias(&self, layer: usize, names: &[&'static str]) -> Result<Option<Tensor<B>>> {
        let mut parts = Vec::new();
        let mut n_experts = 0;
        for &name in names {
            let w = Weight { name, layer: Some(layer) };
            let Some(entry) = self.contract.find(w, Part::Bias) else { return Ok(None) };
            let &[n, n_out] = &entry.shape[..] else {
                panic!("biases of experts have two dimensions, not {:?}", entry.shape)
            };
            n_experts = n;
            let rows = match self.shard.cut(names::split(name), w.layer, n_out) {
                Cut::Rows(rows) => rows,
                Cut::Columns(_) if self.shard.rank().is_first() => std::iter::once(0..n_out).collect(),
                Cut::Columns(_) => return Ok(None),
            };
            parts.push((self.values(entry)?, n_out, rows));
        }
        let mut all = Vec::new();
        for e in 0..n_experts {
            for (values, n_out, rows) in &parts {
                let values = &values[e * n_out..][..*n_out];
                rows.iter().for_each(|r| all.extend_from_slice(&values[r.clone()]));
            }
        }
        Ok(Some(self.backend.upload(&[n_experts, all.len() / n_experts], &all)?))
    }

    /// One matrix for each head of this rank.
    pub(crate) fn head_matrices(&self, layer: usize, name: &'static str) -> Result<B::Matrix> {
        let w = Weight { name, layer: Some(layer) };
        let entry = self.need(w);
        let &[n_heads, n_out, n_in] = &entry.shape[..] else {
            panic!("matrices of heads have three dimensions, not {:?}", entry.shape)
        };
        let all = self.source.tensor(&entry.files[0])?;
        // As a matrix with a row for each head.
        let rows = MatrixPart {
            name: entry.files[0].as_str().into(),
            dtype: all.dtype,
            n_experts: 1,
            n_out: n_heads,
            n_in: n_out * n_in,
            bytes: all.bytes,
        };
        let mine = cut(rows, self.shard.cut(names::split(name), w.layer, n_heads));
        let [part] = &mine[..] else { panic!("the heads of a rank are one range") };
        let part = MatrixPart { n_experts: part.n_out, n_out, n_in, ..part.clone() };
        Ok(self.backend.matrix(vec![part])?)
    }

    /// One matrix per expert, from one tensor of all or from one tensor each; gate and up in one matrix as parts to stack.
    pub(crate) fn experts(&self, layer: usize, name: &'static str) -> Result<Vec<MatrixPart>> {
        let w = Weight { name, layer: Some(layer) };
        let entry = self.need(w);
        let &[n_experts, n_out, n_in] = &entry.shape[..] else {
            panic!("experts have three dimensions, not {:?}", entry.shape)
        };
        let first = self.source.tensor(&entry.files[0])?;
        let bytes = if entry.files.len() == 1 {
            first.bytes
        } else {
            let mut all = Vec::with_capacity(first.bytes.len() * n_experts);
            for file in &entry.files {
                all.extend_from_slice(&self.source.tensor(file)?.bytes);
            }
            Bytes::from(all)
        };
        let file = entry.files[0].as_str().into();
        let all = MatrixPart { name: file, dtype: first.dtype, n_experts, n_out, n_in, bytes };
        Ok(cut(all, self.shard.cut(names::split(name), w.layer, n_out)))
    }
}

/// Two matrices whose rows alternate in one: `n_runs` times a run of the first's and a run of the second's.
fn alternating(both: &MatrixPart, n_runs: usize) -> [MatrixPart; 2] {
    let run_bytes = both.bytes.len() / (2 * n_runs);
    [0, 1].map(|first| {
        let runs = both.bytes.chunks_exact(run_bytes).skip(first).step_by(2);
        let bytes = Bytes::from(runs.flatten().copied().collect::<Vec<u8>>());
        MatrixPart { n_out: both.n_out / 2, bytes, ..both.clone() }
    })
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
                MatrixPart { n_out: rows.len(), bytes, ..p.clone() }
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
