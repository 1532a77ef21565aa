//! Models in which several weights share a tensor: Qwen's with experts or recurrent layers, Gemma 4, Granite and Nomic Embed with experts, and
//! those with latent attention.
//!
//! Experts may stand in one tensor: `gate_up_proj` `[n_experts, 2 · n, n_in]` with each expert's gate before its up, and `down_proj`
//! `[n_experts, n_out, n]`, neither with `.weight` at its end. Those of Gemma 4 stay together, as in GGUF. Qwen3-Next has in `in_proj_qkvz` for each key head its query, its key, and
//! the values and output gates of its value heads. Latent attention has in `kv_b_proj`, and in older GGUF files in `attn_kv_b`, for each head
//! the matrix of keys, which is needed transposed, and that of values. [`Joined`] shows each weight under its own name and copies its rows when they are asked for.

use super::{Format, Model, TensorInfo, TensorSource, TensorView};
use crate::metadata::Metadata;
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::DType;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// `architectures` of the models that may store weights so.
const ARCHITECTURES: [&str; 16] = [
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Glm4MoeLiteForCausalLM",
    "KimiVLForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "Mistral4ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3NextForCausalLM",
    "Gemma4ForCausalLM",
    "Gemma4ForConditionalGeneration",
    "GraniteMoeForCausalLM",
    "GraniteMoeSharedForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "NomicBertModel",
];

/// Ends of the names of tensors that have gates before ups, of all experts or of one block, and where their parts belong.
const GATE_UP: [(&str, &str); 3] = [
    (".mlp.experts.gate_up_proj", ".mlp.experts"),
    (".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts"),
    (".shared_mlp.input_linear.weight", ".shared_mlp"),
];
/// Tensors of all experts whose names have no ending.
const EXPERTS: [&str; 2] = [".experts.gate_up_proj", ".experts.down_proj"];
/// Ends of names: of all experts' first and second matrices, `[n_experts · n, n_in]` both, the second transposed; and of what they are.
const STACKED: [[&str; 2]; 2] =
    [[".experts.mlp.w1", ".experts.up_proj.weight"], [".experts.mlp.w2", ".experts.down_proj.weight"]];
const QKVZ: &str = ".linear_attn.in_proj_qkvz.weight";
/// Ends of names: of keys and values of latent attention together, and of each, by format.
const KV_B: [[&str; 3]; 2] = [
    [".kv_b_proj.weight", ".kv_b_proj.keys.weight", ".kv_b_proj.values.weight"],
    [".attn_kv_b.weight", ".attn_k_b.weight", ".attn_v_b.weight"],
];

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
    /// As `Rows`, the rows of each group transposed; as plain numbers.
    Transposed(Rows),
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

    /// Whether a model's files say that it is one.
    pub(super) fn describes(model: &Model) -> bool {
        let metadata = &model.metadata;
        if model.format == Format::Gguf {
            // Some files have both forms.
            let has = |end: &str| model.tensors.iter().any(|t| t.name.ends_with(end));
            let arch = metadata.get_str("general.architecture").ok().flatten();
            return arch == Some("deepseek2") && has(KV_B[1][0]) && !has(KV_B[1][1]);
        }
        let names = metadata.get_strings("architectures").ok().flatten().unwrap_or_default();
        names.first().is_some_and(|name| ARCHITECTURES.contains(name))
    }

    fn add(&mut self, info: TensorInfo) -> Result<()> {
        for (end, block) in GATE_UP {
            if let Some(layer) = info.name.strip_suffix(end) {
                return self.add_gate_up(&info, &format!("{layer}{block}"));
            }
        }
        if let Some(layer) = info.name.strip_suffix(QKVZ) {
            return self.add_qkvz(&info, layer);
        }
        for [end, name] in STACKED {
            if let Some(block) = info.name.strip_suffix(end) {
                return self.add_stacked(&info, format!("{block}{name}"), end == STACKED[1][0]);
            }
        }
        for [both, k, v] in KV_B {
            if let Some(layer) = info.name.strip_suffix(both) {
                return self.add_kv_b(&info, format!("{layer}{k}"), format!("{layer}{v}"));
            }
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

    fn add_gate_up(&mut self, info: &TensorInfo, block: &str) -> Result<()> {
        let is_of_experts = block.ends_with(".experts");
        let (n_experts, n_rows, n_in) = match info.shape[..] {
            [n_experts, n_rows, n_in] if is_of_experts => (n_experts, n_rows, n_in),
            [n_rows, n_in] if !is_of_experts => (1, n_rows, n_in),
            _ => {
                let dims = if is_of_experts { "[experts, rows, columns]" } else { "[rows, columns]" };
                return Err(self.bad(&info.name, format!("has shape {:?} and not {dims}", info.shape)));
            }
        };
        if !n_rows.is_multiple_of(2) {
            return Err(self.bad(&info.name, format!("has {n_rows} rows, and gate and up are as many")));
        }
        let n = n_rows / 2;
        for (name, range) in [("gate_proj", 0..n), ("up_proj", n..n_rows)] {
            let rows = Rows { from: info.name.clone(), n_groups: n_experts, ranges: vec![range] };
            let shape = if is_of_experts { vec![n_experts, n, n_in] } else { vec![n, n_in] };
            self.add_rows(info, format!("{block}.{name}.weight"), shape, rows)?;
        }
        Ok(())
    }

    fn add_stacked(&mut self, info: &TensorInfo, name: String, is_transposed: bool) -> Result<()> {
        let n_experts = self.model.metadata().get_usize("num_experts")?;
        let n_experts = n_experts.ok_or_else(|| self.model.metadata().missing("num_experts"))?;
        let &[n_rows, n_in] = &info.shape[..] else {
            return Err(self.bad(&info.name, format!("has shape {:?} and not [rows, columns]", info.shape)));
        };
        let Some(n) = n_rows.checked_div(n_experts).filter(|n| n * n_experts == n_rows) else {
            return Err(
                self.bad(&info.name, format!("has {n_rows} rows, which {n_experts} experts cannot share"))
            );
        };
        let rows = |range| Rows { from: info.name.clone(), n_groups: n_experts, ranges: vec![range] };
        if !is_transposed {
            return self.add_rows(info, name, vec![n_experts, n, n_in], rows(0..n));
        }
        let dtype = if info.dtype.block_len() == 1 { info.dtype } else { DType::F32 };
        let transposed = TensorInfo::new(name, dtype, vec![n_experts, n_in, n]);
        let transposed =
            transposed.ok_or_else(|| self.bad(&info.name, "has a shape that no weight can have"))?;
        self.push(transposed, Recipe::Transposed(rows(0..n)))
    }

    fn add_kv_b(&mut self, info: &TensorInfo, k_name: String, v_name: String) -> Result<()> {
        let metadata = self.model.metadata();
        let size = |keys: [&str; 2]| {
            let stated = [metadata.get_usize(keys[0])?, metadata.get_usize(keys[1])?];
            stated[0].or(stated[1]).ok_or_else(|| metadata.missing(keys[0]))
        };
        let (n_heads, v_dim) = match self.model.format {
            Format::Gguf => (
                size(["deepseek2.attention.head_count"; 2])?,
                size(["deepseek2.attention.value_length_mla", "deepseek2.attention.value_length"])?,
            ),
            Format::Safetensors => (
                size(["num_attention_heads", "text_config.num_attention_heads"])?,
                size(["v_head_dim", "text_config.v_head_dim"])?,
            ),
        };
        let &[n_rows, rank] = &info.shape[..] else {
            return Err(self.bad(&info.name, format!("has shape {:?} and not [rows, columns]", info.shape)));
        };
        let per_head = n_rows.checked_div(n_heads).filter(|n| n * n_heads == n_rows);
        let Some(k_dim) = per_head.and_then(|n| n.checked_sub(v_dim)).filter(|&n| n > 0) else {
            let reason =
                format!("has {n_rows} rows, which {n_heads} heads with values of {v_dim} cannot share");
            return Err(self.bad(&info.name, reason));
        };
        let rows = |range| Rows { from: info.name.clone(), n_groups: n_heads, ranges: vec![range] };
        let values = rows(k_dim..k_dim + v_dim);
        self.add_rows(info, v_name, vec![n_heads, v_dim, rank], values)?;
        let dtype = if info.dtype.block_len() == 1 { info.dtype } else { DType::F32 };
        let keys = TensorInfo::new(k_name, dtype, vec![n_heads, rank, k_dim]);
        let keys = keys.ok_or_else(|| self.bad(&info.name, "has a shape that no weight can have"))?;
        self.push(keys, Recipe::Transposed(rows(0..k_dim)))
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

/// Transposes each of some matrices, `[n_out, n_in]` one after the other.
fn transpose_each(bytes: &[u8], n_out: usize, n_in: usize, element_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    for matrix in bytes.chunks_exact((n_out * n_in * element_bytes).max(1)) {
        for column in 0..n_in {
            for row in 0..n_out {
                out.extend_from_slice(&matrix[(row * n_in + column) * element_bytes..][..element_bytes]);
            }
        }
    }
    out
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
            Recipe::Transposed(rows) => {
                let view = self.model.tensor(&rows.from)?;
                let mut bytes = pick(&view, rows);
                if view.dtype != *dtype {
                    let mut values = vec![0.0; shape.iter().product()];
                    (view.dtype.spec().dequantize)(&bytes, &mut values);
                    bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into();
                }
                let bytes = transpose_each(&bytes, shape[2], shape[1], dtype.spec().block_bytes);
                Ok(TensorView { dtype: *dtype, shape: shape.clone(), bytes: Bytes::from(bytes) })
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
    use crate::gguf;
    use crate::source::{StoredTensor, TensorSource, open_counting, open_gguf_bytes};
    use crate::{Error, Result};
    use realizar_compute::DType;

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
    fn stacked_experts_are_taken_apart_and_the_second_matrices_transposed() {
        let config = br#"{"architectures": ["NomicBertModel"], "num_experts": 2}"#;
        let [w1, w2] = ["w1", "w2"].map(|w| format!("encoder.layers.1.mlp.experts.mlp.{w}"));
        let open = |shape: &[usize]| {
            open_counting(config, &[(w1.as_str(), "F16", 2, shape), (w2.as_str(), "F16", 2, &[6, 2])])
        };
        let source = open(&[6, 2]).unwrap();
        let of = |end: &str| numbers(&*source, &format!("encoder.layers.1.mlp.experts.{end}_proj.weight"));
        assert_eq!(of("up"), (vec![2, 3, 2], (0..12).collect()));
        assert_eq!(of("down"), (vec![2, 2, 3], vec![0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]));
        for shape in [&[5, 2][..], &[6], &[2, 3, 2]] {
            let error = open(shape).err().unwrap();
            assert!(matches!(error, Error::BadTensor { .. }), "{shape:?}: {error}");
        }
    }

    const KV_B: &str = "model.layers.0.self_attn.kv_b_proj.weight";
    const LATENT: &[u8] =
        br#"{"architectures": ["DeepseekV3ForCausalLM"], "num_attention_heads": 2, "v_head_dim": 1}"#;

    #[test]
    fn keys_and_values_of_latent_attention_are_taken_apart() {
        // For each head two rows of keys and one of values, of vectors of two elements.
        let source = open_counting(LATENT, &[(KV_B, "F16", 2, &[6, 2])]).unwrap();
        let of = |part: &str| numbers(&*source, &format!("model.layers.0.self_attn.kv_b_proj.{part}.weight"));
        assert_eq!(of("keys"), (vec![2, 2, 2], vec![0, 2, 1, 3, 6, 8, 7, 9]));
        assert_eq!(of("values"), (vec![2, 1, 2], vec![4, 5, 10, 11]));
        assert!(source.find(KV_B).is_none());
        for shape in [&[5, 2][..], &[2, 2], &[12], &[6, 2, 1]] {
            let error = open_counting(LATENT, &[(KV_B, "F16", 2, shape)]).err().unwrap();
            assert!(matches!(error, Error::BadTensor { .. }), "{shape:?}: {error}");
        }
        let unknown = br#"{"architectures": ["DeepseekV3ForCausalLM"], "v_head_dim": 1}"#;
        let error = open_counting(unknown, &[(KV_B, "F16", 2, &[6, 2])]).err().unwrap();
        assert!(error.to_string().contains("num_attention_heads"), "{error}");
    }

    /// A GGUF file whose tensors hold the numbers 0, 1, 2, … rounded to `dtype`, and these numbers.
    fn open_gguf(tensors: &[(&str, &[usize])], dtype: DType) -> (Box<dyn TensorSource>, Vec<f32>) {
        let mut header = gguf::Header::new("test");
        header.set("general.architecture", "deepseek2").unwrap();
        header.set("deepseek2.attention.head_count", 2u32).unwrap();
        header.set("deepseek2.attention.value_length", 1u32).unwrap();
        for (name, shape) in tensors {
            header.tensor(*name, dtype, shape).unwrap();
        }
        let (mut file, mut rounded) = (Vec::new(), Vec::new());
        let mut writer = gguf::Writer::new(&mut file, header).unwrap();
        for (name, shape) in tensors {
            let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|i| i as f32).collect();
            let mut bytes = vec![0; dtype.bytes_for(values.len()).unwrap()];
            dtype.spec().quantize.unwrap()(&values, &mut bytes, None);
            rounded = values;
            (dtype.spec().dequantize)(&bytes, &mut rounded);
            writer.tensor(name, &bytes).unwrap();
        }
        writer.finish().unwrap();
        (open_gguf_bytes("test", file.into()).unwrap(), rounded)
    }

    #[test]
    fn quantized_keys_become_plain_numbers_where_they_are_transposed() {
        // Older files have keys and values in one matrix: for each head three rows of keys and one of values.
        let shape = [8, 32];
        let (source, rounded) = open_gguf(&[("blk.0.attn_kv_b.weight", &shape)], DType::Q8_0);
        let keys = source.tensor("blk.0.attn_k_b.weight").unwrap();
        assert_eq!((keys.dtype, &keys.shape[..]), (DType::F32, &[2, 32, 3][..]));
        let at = |head: usize, row: usize, column: usize| rounded[(head * 4 + row) * 32 + column];
        for (i, number) in keys.bytes.chunks_exact(4).enumerate() {
            let want = at(i / 96, i % 3, i / 3 % 32);
            assert_eq!(f32::from_le_bytes(number.try_into().unwrap()), want, "{i}");
        }
        let values = source.tensor("blk.0.attn_v_b.weight").unwrap();
        assert_eq!((values.dtype, &values.shape[..]), (DType::Q8_0, &[2, 1, 32][..]));
        let mut numbers = vec![0.0; 64];
        (DType::Q8_0.spec().dequantize)(&values.bytes, &mut numbers);
        assert!((0..64).all(|i| numbers[i] == at(i / 32, 3, i % 32)));
        // A file that has both forms stays as it is.
        let both = [("blk.0.attn_kv_b.weight", &shape[..]), ("blk.0.attn_k_b.weight", &[2, 32, 32])];
        let (source, _) = open_gguf(&both, DType::Q8_0);
        assert!(source.find("blk.0.attn_kv_b.weight").is_some() && source.tensors().len() == 2);
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
