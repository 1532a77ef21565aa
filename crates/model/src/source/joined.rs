//! Models in which several weights share a tensor of safetensors: Qwen's with experts or recurrent layers, and Gemma 4 with experts.
//!
//! Experts may stand in one tensor: `gate_up_proj` `[n_experts, 2 · n, n_in]` with each expert's gate before its up, and `down_proj`
//! `[n_experts, n_out, n]`, neither with `.weight` at its end. Those of Gemma 4 stay together, as in GGUF. Qwen3-Next has in `in_proj_qkvz` for each key head its query, its key, and
//! the values and output gates of its value heads. [`Joined`] shows each weight under its own name and copies its rows when they are asked for.

use super::{Format, Model, TensorInfo, TensorSource, TensorView};
use crate::metadata::Metadata;
use crate::{Error, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// `architectures` of the models that may store weights so.
const ARCHITECTURES: [&str; 5] = [
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3NextForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
];

const GATE_UP: &str = ".mlp.experts.gate_up_proj";
/// Tensors of all experts whose names have no ending.
const EXPERTS: [&str; 2] = [".experts.gate_up_proj", ".experts.down_proj"];
const QKVZ: &str = ".linear_attn.in_proj_qkvz.weight";

/// A model whose shared tensors are taken apart.
pub(super) struct Joined {
    model: Model,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// By index of `tensors`.
    recipes: Vec<Recipe>,
}

/// How a tensor comes from those of the files.
enum Recipe {
    /// The tensor of this name.
    Same(String),
    Rows(Rows),
}

/// Some rows of a tensor whose rows lie in groups of equal size: each range of all groups, one range after the other.
struct Rows {
    from: String,
    n_groups: usize,
    /// Within a group.
    ranges: Vec<Range<usize>>,
}

impl Joined {
    /// Errors: `BadTensor` where a tensor's shape does not fit the weights that it should hold; `WrongType` for sizes of heads that are no
    /// numbers.
    pub(super) fn new(model: Model) -> Result<Self> {
        model.others.keys().for_each(|name| model.warn_of_other(name));
        let mut this = Self { model, tensors: Vec::new(), by_name: HashMap::new(), recipes: Vec::new() };
        for info in this.model.tensors.clone() {
            this.add(info)?;
        }
        Ok(this)
    }

    /// Whether a model's configuration says that it is one.
    pub(super) fn describes(metadata: &Metadata) -> bool {
        let names = metadata.get_strings("architectures").ok().flatten().unwrap_or_default();
        names.first().is_some_and(|name| ARCHITECTURES.contains(name))
    }

    fn add(&mut self, info: TensorInfo) -> Result<()> {
        if let Some(layer) = info.name.strip_suffix(GATE_UP) {
            return self.add_gate_up(&info, layer);
        }
        if let Some(layer) = info.name.strip_suffix(QKVZ) {
            return self.add_qkvz(&info, layer);
        }
        let from = info.name.clone();
        let is_bare = EXPERTS.iter().any(|end| from.ends_with(end));
        let name = if is_bare { format!("{from}.weight") } else { from.clone() };
        self.push(TensorInfo { name, ..info }, Recipe::Same(from))
    }

    fn push(&mut self, info: TensorInfo, recipe: Recipe) -> Result<()> {
        if self.by_name.insert(info.name.clone(), self.tensors.len()).is_some() {
            return Err(self.bad(&info.name, "stands both alone and with others in one tensor"));
        }
        self.tensors.push(info);
        self.recipes.push(recipe);
        Ok(())
    }

    fn bad(&self, tensor: &str, reason: impl Into<String>) -> Error {
        Error::bad_tensor(self.model.path(), tensor, reason)
    }

    /// Adds rows of a tensor under a name of their own.
    fn add_rows(&mut self, info: &TensorInfo, name: String, shape: Vec<usize>, rows: Rows) -> Result<()> {
        let part = TensorInfo::new(name, info.dtype, shape);
        let part = part.ok_or_else(|| self.bad(&info.name, "has a shape that no weight can have"))?;
        self.push(part, Recipe::Rows(rows))
    }

    fn add_gate_up(&mut self, info: &TensorInfo, layer: &str) -> Result<()> {
        let &[n_experts, n_rows, n_in] = &info.shape[..] else {
            let reason = format!("has shape {:?} and not [experts, rows, columns]", info.shape);
            return Err(self.bad(&info.name, reason));
        };
        if !n_rows.is_multiple_of(2) {
            return Err(self.bad(&info.name, format!("has {n_rows} rows, and gate and up are as many")));
        }
        let n = n_rows / 2;
        for (name, range) in [("gate_proj", 0..n), ("up_proj", n..n_rows)] {
            let rows = Rows { from: info.name.clone(), n_groups: n_experts, ranges: vec![range] };
            self.add_rows(
                info,
                format!("{layer}.mlp.experts.{name}.weight"),
                vec![n_experts, n, n_in],
                rows,
            )?;
        }
        Ok(())
    }

    fn add_qkvz(&mut self, info: &TensorInfo, layer: &str) -> Result<()> {
        let size = |key: &str| {
            let missing = || Error::MissingKey { path: self.model.path().to_owned(), key: key.to_owned() };
            self.model.metadata().get_usize(key)?.ok_or_else(missing)
        };
        let (n_groups, k_dim) = (size("linear_num_key_heads")?, size("linear_key_head_dim")?);
        let &[n_rows, n_in] = &info.shape[..] else {
            return Err(self.bad(&info.name, format!("has shape {:?} and not [rows, columns]", info.shape)));
        };
        let group = n_rows.checked_div(n_groups).filter(|n| n * n_groups == n_rows);
        // Of all value heads of a key head; their gates are as many.
        let values = group.and_then(|n| n.checked_sub(k_dim.checked_mul(2)?)).filter(|n| n.is_multiple_of(2));
        let Some(v_len) = values.map(|n| n / 2) else {
            let reason = format!("has {n_rows} rows, which {n_groups} key heads of {k_dim} cannot share");
            return Err(self.bad(&info.name, reason));
        };
        let v = 2 * k_dim..2 * k_dim + v_len;
        let z = v.end..v.end + v_len;
        for (name, ranges) in [("in_proj_qkv", vec![0..k_dim, k_dim..2 * k_dim, v]), ("in_proj_z", vec![z])] {
            let shape = vec![n_groups * ranges.iter().map(Range::len).sum::<usize>(), n_in];
            let rows = Rows { from: info.name.clone(), n_groups, ranges };
            self.add_rows(info, format!("{layer}.linear_attn.{name}.weight"), shape, rows)?;
        }
        Ok(())
    }
}

/// The bytes of some rows.
fn pick(view: &TensorView, rows: &Rows) -> Bytes {
    let n_rows: usize = view.shape[..view.shape.len() - 1].iter().product();
    let row_bytes = view.bytes.len() / n_rows.max(1);
    let group_bytes = (view.bytes.len() / rows.n_groups.max(1)).max(1);
    let mut out =
        Vec::with_capacity(rows.n_groups * rows.ranges.iter().map(Range::len).sum::<usize>() * row_bytes);
    for range in &rows.ranges {
        for group in view.bytes.chunks_exact(group_bytes) {
            out.extend_from_slice(&group[range.start * row_bytes..range.end * row_bytes]);
        }
    }
    Bytes::from(out)
}

impl TensorSource for Joined {
    fn path(&self) -> &Path {
        self.model.path()
    }

    fn format(&self) -> Format {
        self.model.format()
    }

    fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&index| &self.tensors[index])
    }

    fn tensor(&self, name: &str) -> Result<TensorView> {
        let Some(&index) = self.by_name.get(name) else { return self.model.tensor(name) };
        let TensorInfo { dtype, shape, .. } = &self.tensors[index];
        match &self.recipes[index] {
            Recipe::Same(from) => self.model.tensor(from),
            Recipe::Rows(rows) => {
                let bytes = pick(&self.model.tensor(&rows.from)?, rows);
                Ok(TensorView { dtype: *dtype, shape: shape.clone(), bytes })
            }
        }
    }

    fn metadata(&self) -> &Metadata {
        self.model.metadata()
    }

    fn sibling(&self, file_name: &str) -> Option<PathBuf> {
        self.model.sibling(file_name)
    }

    fn release(&self) {
        self.model.release();
    }
}

#[cfg(test)]
mod tests {
    use crate::source::{StoredTensor, TensorSource, open_counting};
    use crate::{Error, Result};

    const GATE_UP: &str = "model.layers.0.mlp.experts.gate_up_proj";
    const DOWN: &str = "model.layers.0.mlp.experts.down_proj";
    const QKVZ: &str = "model.layers.0.linear_attn.in_proj_qkvz.weight";

    /// A model of F16 tensors; two key heads of two elements.
    fn open(tensors: &[(&str, &[usize])]) -> Result<Box<dyn TensorSource>> {
        let config = br#"{"architectures": ["Qwen3NextForCausalLM"], "linear_num_key_heads": 2, "linear_key_head_dim": 2}"#;
        let tensors: Vec<StoredTensor<'_>> =
            tensors.iter().map(|&(name, shape)| (name, "F16", 2, shape)).collect();
        open_counting(config, &tensors)
    }

    /// Shape of a tensor, and the indices of its numbers in the file's tensor.
    fn numbers(source: &dyn TensorSource, name: &str) -> (Vec<usize>, Vec<u8>) {
        let t = source.tensor(name).unwrap();
        assert_eq!(source.find(name).unwrap().shape, t.shape);
        (t.shape, t.bytes.iter().step_by(2).map(|b| b / 2).collect())
    }

    #[test]
    fn experts_in_one_tensor_are_taken_apart() {
        let source = open(&[(GATE_UP, &[2, 4, 2]), (DOWN, &[2, 2, 2])]).unwrap();
        let of = |end: &str| numbers(&*source, &format!("model.layers.0.mlp.experts.{end}.weight"));
        assert_eq!(of("gate_proj"), (vec![2, 2, 2], vec![0, 1, 2, 3, 8, 9, 10, 11]));
        assert_eq!(of("up_proj"), (vec![2, 2, 2], vec![4, 5, 6, 7, 12, 13, 14, 15]));
        assert_eq!(of("down_proj"), (vec![2, 2, 2], vec![0, 1, 2, 3, 4, 5, 6, 7]));
        assert!(source.find(GATE_UP).is_none() && source.find(DOWN).is_none());
    }

    #[test]
    fn heads_in_one_tensor_are_taken_apart() {
        // For each key head two rows of query, two of key, three of values and three of gates.
        let source = open(&[(QKVZ, &[20, 1])]).unwrap();
        let of = |end: &str| numbers(&*source, &format!("model.layers.0.linear_attn.in_proj_{end}.weight"));
        assert_eq!(of("qkv"), (vec![14, 1], vec![0, 1, 10, 11, 2, 3, 12, 13, 4, 5, 6, 14, 15, 16]));
        assert_eq!(of("z"), (vec![6, 1], vec![7, 8, 9, 17, 18, 19]));
    }

    #[test]
    fn shapes_that_cannot_be_taken_apart_are_refused() {
        let alone = "model.layers.0.mlp.experts.up_proj.weight";
        let cases: [&[(&str, &[usize])]; 7] = [
            &[(GATE_UP, &[2, 3, 2])],
            &[(GATE_UP, &[4, 2])],
            &[(QKVZ, &[21, 1])],
            &[(QKVZ, &[22, 1])],
            &[(QKVZ, &[6, 1])],
            &[(QKVZ, &[20, 1, 1])],
            &[(GATE_UP, &[2, 4, 2]), (alone, &[2, 2, 2])],
        ];
        for case in cases {
            let error = open(case).err().unwrap_or_else(|| panic!("{case:?} was opened"));
            assert!(matches!(error, Error::BadTensor { .. }), "{case:?}: {error}");
        }
    }
}
