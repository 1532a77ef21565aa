//! gpt-oss in safetensors, seen in the layout of all other models.
//!
//! Its files have the experts of a layer in one tensor, with the rows of gate and up in turn. Published ones are MXFP4: `…_blocks`
//! `[n_experts, n_out, n_in / 32, 16]` with two codes in a byte, neighbours side by side, and their exponents `…_scales`. Others are
//! plain numbers that stand transposed, `[n_experts, n_in, n_out]`. [`GptOss`] shows both as `gate_proj`, `up_proj` and `down_proj`,
//! `[n_experts, n_out, n_in]`, and makes their bytes when they are asked for.

use super::{Format, Model, TensorInfo, TensorSource, TensorView};
use crate::metadata::Metadata;
use crate::{Error, Result};
use bytes::Bytes;
use realizar_compute::DType;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Codes in a block of MXFP4, and its bytes in our files' layout: the exponent and two codes in each byte.
const BLOCK: usize = 32;
const BLOCK_BYTES: usize = 1 + BLOCK / 2;

/// A gpt-oss model whose experts' tensors are rearranged.
pub(super) struct GptOss {
    model: Model,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// By index of `tensors`.
    recipes: Vec<Recipe>,
}

/// How a tensor comes from those of the files.
enum Recipe {
    Same,
    /// Rows of MXFP4.
    Mxfp4 {
        blocks: String,
        scales: String,
        rows: Rows,
    },
    /// `[n_experts, n_in, n_out]` turned to `[n_experts, n_out, n_in]`.
    Transposed {
        from: String,
        rows: Rows,
    },
    /// `[n_experts, n_out]`
    Bias {
        from: String,
        rows: Rows,
    },
}

/// Which rows of an expert a tensor has: `start`, `start + step`, …
#[derive(Clone, Copy)]
struct Rows {
    start: usize,
    step: usize,
}

impl Rows {
    const ALL: Self = Self { start: 0, step: 1 };
    const GATE: Self = Self { start: 0, step: 2 };
    const UP: Self = Self { start: 1, step: 2 };

    fn of(self, n: usize) -> impl Iterator<Item = usize> {
        (self.start..n).step_by(self.step)
    }
}

/// Our tensors from one of the files': the ends of their names, and their rows.
const DOWN: &[(&str, Rows)] = &[("down_proj", Rows::ALL)];
const GATE_UP: &[(&str, Rows)] = &[("gate_proj", Rows::GATE), ("up_proj", Rows::UP)];

impl GptOss {
    /// Errors: `BadTensor` where the shapes of experts' tensors contradict each other.
    pub(super) fn new(model: Model) -> Result<Self> {
        let mut this = Self { model, tensors: Vec::new(), by_name: HashMap::new(), recipes: Vec::new() };
        let mut names: Vec<String> = this.model.tensors.iter().map(|t| t.name.clone()).collect();
        let mut others: Vec<String> = this.model.others.keys().cloned().collect();
        others.sort();
        names.extend(others);
        for name in &names {
            this.add(name)?;
        }
        Ok(this)
    }

    /// Whether a model's configuration says that it is one.
    pub(super) fn describes(metadata: &Metadata) -> bool {
        matches!(metadata.get_str("model_type"), Ok(Some("gpt_oss")))
    }

    fn add(&mut self, name: &str) -> Result<()> {
        let layer = name.split_once(".mlp.experts.");
        let (stem, end) = match layer {
            Some((layer, rest)) => (format!("{layer}.mlp.experts"), rest),
            None => (String::new(), ""),
        };
        let parts = if end.starts_with("down_proj") { DOWN } else { GATE_UP };
        match end {
            "down_proj_blocks" | "gate_up_proj_blocks" => self.add_mxfp4(name, &stem, parts),
            "down_proj" | "gate_up_proj" => self.add_transposed(name, &stem, parts),
            "down_proj_bias" | "gate_up_proj_bias" => self.add_bias(name, &stem, parts),
            // Its blocks bring it along.
            "down_proj_scales" | "gate_up_proj_scales" => Ok(()),
            _ => match self.model.find(name).cloned() {
                Some(info) => {
                    self.push(info, Recipe::Same);
                    Ok(())
                }
                None => {
                    self.model.warn_of_other(name);
                    Ok(())
                }
            },
        }
    }

    fn push(&mut self, info: TensorInfo, recipe: Recipe) {
        self.by_name.insert(info.name.clone(), self.tensors.len());
        self.tensors.push(info);
        self.recipes.push(recipe);
    }

    fn bad(&self, tensor: &str, reason: impl Into<String>) -> Error {
        Error::bad_tensor(self.model.path(), tensor, reason)
    }

    /// Adds a part of `from`, if its rows can be shared so.
    fn add_part(
        &mut self,
        from: &str,
        name: String,
        dtype: DType,
        mut shape: Vec<usize>,
        recipe: Recipe,
    ) -> Result<()> {
        let (Recipe::Mxfp4 { rows, .. } | Recipe::Transposed { rows, .. } | Recipe::Bias { rows, .. }) =
            recipe
        else {
            panic!("{name} is a part of {from}")
        };
        if !shape[1].is_multiple_of(rows.step) {
            return Err(self.bad(from, format!("has {} rows, and gate and up are as many", shape[1])));
        }
        shape[1] /= rows.step;
        let info = TensorInfo::new(name, dtype, shape);
        let info = info.ok_or_else(|| self.bad(from, "has a shape that no weight can have"))?;
        self.push(info, recipe);
        Ok(())
    }

    fn add_mxfp4(&mut self, name: &str, stem: &str, parts: &[(&str, Rows)]) -> Result<()> {
        let scales = name.replace("_blocks", "_scales");
        let bytes = |name: &str| self.model.bytes_of(name).map(|(_, shape)| shape.to_vec());
        let Some(shape) = bytes(name) else { return Err(self.bad(name, "is not of type U8")) };
        let &[n_experts, n_out, n_blocks, 16] = &shape[..] else {
            return Err(self.bad(name, format!("has shape {shape:?} and not [experts, rows, blocks, 16]")));
        };
        match bytes(&scales) {
            Some(found) if found == shape[..3] => {}
            Some(found) => {
                return Err(self.bad(&scales, format!("has shape {found:?} beside blocks of {shape:?}")));
            }
            None => return Err(self.bad(name, format!("has no {scales:?} of type U8 beside it"))),
        }
        for &(end, rows) in parts {
            let shape = vec![n_experts, n_out, n_blocks * BLOCK];
            let recipe = Recipe::Mxfp4 { blocks: name.to_owned(), scales: scales.clone(), rows };
            self.add_part(name, format!("{stem}.{end}.weight"), DType::MXFP4, shape, recipe)?;
        }
        Ok(())
    }

    fn add_transposed(&mut self, name: &str, stem: &str, parts: &[(&str, Rows)]) -> Result<()> {
        let found = self.model.find(name).ok_or_else(|| self.bad(name, "has no type of weights"))?;
        let (dtype, shape) = (found.dtype, found.shape.clone());
        let &[n_experts, n_in, n_out] = &shape[..] else {
            return Err(self.bad(name, format!("has shape {shape:?} and not [experts, columns, rows]")));
        };
        for &(end, rows) in parts {
            let recipe = Recipe::Transposed { from: name.to_owned(), rows };
            let shape = vec![n_experts, n_out, n_in];
            self.add_part(name, format!("{stem}.{end}.weight"), dtype, shape, recipe)?;
        }
        Ok(())
    }

    fn add_bias(&mut self, name: &str, stem: &str, parts: &[(&str, Rows)]) -> Result<()> {
        let found = self.model.find(name).ok_or_else(|| self.bad(name, "has no type of weights"))?;
        let (dtype, shape) = (found.dtype, found.shape.clone());
        if shape.len() != 2 {
            return Err(self.bad(name, format!("has shape {shape:?} and not [experts, rows]")));
        }
        for &(end, rows) in parts {
            let recipe = Recipe::Bias { from: name.to_owned(), rows };
            self.add_part(name, format!("{stem}.{end}.bias"), dtype, shape.clone(), recipe)?;
        }
        Ok(())
    }

    fn mxfp4(&self, blocks: &str, scales: &str, rows: Rows) -> Bytes {
        let part = |name| self.model.bytes_of(name).expect("it was found at the start");
        let ((blocks, shape), (scales, _)) = (part(blocks), part(scales));
        let (n_out, n_blocks) = (shape[1], shape[2]);
        let mut out = Vec::with_capacity(scales.len() / rows.step * BLOCK_BYTES);
        for e in 0..shape[0] {
            for row in rows.of(n_out) {
                let at = (e * n_out + row) * n_blocks;
                let codes = blocks[at * 16..(at + n_blocks) * 16].as_chunks::<16>().0;
                for (scale, codes) in scales[at..at + n_blocks].iter().zip(codes) {
                    out.push(*scale);
                    out.extend_from_slice(&halves(codes));
                }
            }
        }
        Bytes::from(out)
    }
}

/// From neighbours in a byte to code `j` and `j + 16` in byte `j`.
fn halves(neighbours: &[u8; 16]) -> [u8; 16] {
    let code = |i: usize| neighbours[i / 2] >> (i % 2 * 4) & 15;
    std::array::from_fn(|j| code(j) | code(j + 16) << 4)
}

/// Turns each expert's `[n_in, n_out]` to `[n_out, n_in]` and takes some of the rows.
fn transpose(view: &TensorView, rows: Rows) -> Bytes {
    let (n_in, n_out, size) = (view.shape[1], view.shape[2], view.dtype.spec().block_bytes);
    let mut out = Vec::with_capacity(view.bytes.len() / rows.step);
    for expert in view.bytes.chunks_exact((n_in * n_out * size).max(1)) {
        for row in rows.of(n_out) {
            for column in 0..n_in {
                out.extend_from_slice(&expert[(column * n_out + row) * size..][..size]);
            }
        }
    }
    Bytes::from(out)
}

/// Some of each expert's numbers.
fn pick(view: &TensorView, rows: Rows) -> Bytes {
    let (n_out, size) = (view.shape[1], view.dtype.spec().block_bytes);
    let experts = view.bytes.chunks_exact((n_out * size).max(1));
    let numbers = experts.flat_map(|expert| rows.of(n_out).map(move |row| &expert[row * size..][..size]));
    Bytes::from(numbers.flatten().copied().collect::<Vec<u8>>())
}

impl TensorSource for GptOss {
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
        let bytes = match &self.recipes[index] {
            Recipe::Same => return self.model.tensor(name),
            Recipe::Mxfp4 { blocks, scales, rows } => self.mxfp4(blocks, scales, *rows),
            Recipe::Transposed { from, rows } => transpose(&self.model.tensor(from)?, *rows),
            Recipe::Bias { from, rows } => pick(&self.model.tensor(from)?, *rows),
        };
        Ok(TensorView { dtype: *dtype, shape: shape.clone(), bytes })
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
    use super::halves;
    use crate::source::{StoredTensor, TensorSource, open_counting};
    use crate::{Error, Result};
    use realizar_compute::DType;

    const DOWN: &str = "model.layers.0.mlp.experts.down_proj";
    const GATE_UP: &str = "model.layers.0.mlp.experts.gate_up_proj";

    fn open(tensors: &[StoredTensor<'_>]) -> Result<Box<dyn TensorSource>> {
        open_counting(br#"{"model_type": "gpt_oss"}"#, tensors)
    }

    #[test]
    fn gate_and_up_are_taken_apart_and_turned() {
        // Two experts of two inputs and four outputs, gate and up in turn.
        let source =
            open(&[(GATE_UP, "F16", 2, &[2, 2, 4]), (&format!("{GATE_UP}_bias"), "F16", 2, &[2, 4])]);
        let source = source.unwrap();
        let numbers = |end: &str| {
            let t = source.tensor(&format!("model.layers.0.mlp.experts.{end}")).unwrap();
            (t.shape, t.bytes.iter().step_by(2).map(|b| b / 2).collect::<Vec<u8>>())
        };
        assert_eq!(numbers("gate_proj.weight"), (vec![2, 2, 2], vec![0, 4, 2, 6, 8, 12, 10, 14]));
        assert_eq!(numbers("up_proj.weight"), (vec![2, 2, 2], vec![1, 5, 3, 7, 9, 13, 11, 15]));
        assert_eq!(numbers("gate_proj.bias"), (vec![2, 2], vec![0, 2, 4, 6]));
        assert_eq!(numbers("up_proj.bias"), (vec![2, 2], vec![1, 3, 5, 7]));
        assert!(source.find(GATE_UP).is_none());
    }

    #[test]
    fn blocks_and_their_scales_become_one_tensor() {
        let [blocks, scales] = [format!("{DOWN}_blocks"), format!("{DOWN}_scales")];
        let source = open(&[(&blocks, "U8", 1, &[1, 2, 1, 16]), (&scales, "U8", 1, &[1, 2, 1])]).unwrap();
        let t = source.tensor(&format!("{DOWN}.weight")).unwrap();
        assert_eq!((t.dtype, t.shape, t.bytes.len()), (DType::MXFP4, vec![1, 2, 32], 34));
        // The second row's scale; of bytes 16, 17, … the low codes are 0, 1, … and the high ones 1.
        assert_eq!(t.bytes[17..20], [1, 0x80, 0x11]);
    }

    #[test]
    fn tensors_that_contradict_each_other_are_refused() {
        let [blocks, scales] = [format!("{DOWN}_blocks"), format!("{DOWN}_scales")];
        let cases: [&[StoredTensor<'_>]; 6] = [
            &[(&blocks, "U8", 1, &[1, 2, 1, 16])],
            &[(&blocks, "U8", 1, &[1, 2, 1, 16]), (&scales, "U8", 1, &[1, 2, 2])],
            &[(&blocks, "U8", 1, &[1, 2, 1, 8]), (&scales, "U8", 1, &[1, 2, 1])],
            &[(&blocks, "F16", 2, &[1, 2, 1, 16]), (&scales, "U8", 1, &[1, 2, 1])],
            &[(GATE_UP, "F32", 4, &[2, 2, 3])],
            &[(DOWN, "F32", 4, &[2, 2])],
        ];
        for case in cases {
            let error = open(case).err().unwrap_or_else(|| panic!("{case:?} was opened"));
            assert!(matches!(error, Error::BadTensor { .. }), "{case:?}: {error}");
        }
    }

    #[test]
    fn codes_of_a_block_go_from_neighbours_to_halves() {
        // Code i is i % 16.
        let neighbours = std::array::from_fn(|j| ((2 * j) % 16) as u8 | (((2 * j + 1) % 16) as u8) << 4);
        assert_eq!(halves(&neighbours), std::array::from_fn(|j| j as u8 | (j as u8) << 4));
    }
}
