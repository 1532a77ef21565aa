//! How much of a device's memory a model's weights will take, computed from shapes and types before any weight is read.

use crate::config::ModelConfig;
use crate::contract::{Contract, Entry, Part, Weight};
use crate::names::{self, Split};
use crate::shard::{Cut, Shard};
use crate::source::TensorSource;
use crate::{Error, Result};
use realizar_compute::{DType, Device};

/// Bytes of `backend`'s memory that the weights of `shard` take: what it keeps of matrices (0 where it reads them from the mapped file), and
/// vectors in `F32`.
///
/// `config`: the whole model. Errors: those of [`check`](crate::check); a number beyond `usize` counts as the largest.
pub fn weight_memory<D: Device>(
    backend: &D,
    source: &dyn TensorSource,
    config: &ModelConfig,
    shard: &Shard,
) -> Result<usize> {
    let contract = Contract::check(source, config)?;
    let counter = Counter { backend, source, shard, transposed: config.transposed };
    let mut sum = 0_usize;
    for entry in contract.entries() {
        sum = sum.saturating_add(counter.entry(entry)?);
    }
    // Ranks have the embedding for look-ups, and their part of it as the output matrix where there is no other.
    let embed = contract.find(Weight { name: "embed", layer: None }, Part::Weight);
    let lm_head = contract.find(Weight { name: "lm_head", layer: None }, Part::Weight);
    match embed {
        Some(embed) if lm_head.is_none() && !shard.rank().is_alone() => {
            Ok(sum.saturating_add(counter.matrix(embed, Split::Vocab)?))
        }
        _ => Ok(sum),
    }
}

/// What has two dimensions and yet is uploaded as numbers.
const TABLES: [&str; 5] = ["position_embed", "token_types", "delta.conv", "conv.conv", "mamba.conv"];

struct Counter<'a, D> {
    backend: &'a D,
    source: &'a dyn TensorSource,
    shard: &'a Shard,
    /// Whether layers' matrices stand transposed in the file.
    transposed: bool,
}

impl<D: Device> Counter<'_, D> {
    fn entry(&self, entry: &Entry) -> Result<usize> {
        let Weight { name, .. } = entry.weight;
        let is_matrix = entry.part == Part::Weight && entry.shape.len() > 1 && !TABLES.contains(&name);
        match is_matrix {
            false => Ok(entry.shape.iter().fold(size_of::<f32>(), |n, &d| n.saturating_mul(d))),
            true if name == "per_layer_embed" => {
                Ok(self.backend.table_memory(self.dtype(entry)?, [1, entry.shape[0], entry.shape[1]]))
            }
            true if name == "embed" => self.matrix(entry, Split::Whole),
            true => self.matrix(entry, names::split(name)),
        }
    }

    fn dtype(&self, entry: &Entry) -> Result<DType> {
        let found = self.source.find(&entry.files[0]);
        let missing =
            || Error::MissingTensor { path: self.source.path().to_owned(), tensor: entry.files[0].clone() };
        found.map(|t| t.dtype).ok_or_else(missing)
    }

    /// A matrix of `[n_out, n_in]`, or one for each expert or head, cut by `split`.
    fn matrix(&self, entry: &Entry, split: Split) -> Result<usize> {
        let dtype = self.dtype(entry)?;
        let (n, n_out, n_in) = match entry.shape[..] {
            [n_out, n_in] => (1, n_out, n_in),
            [n, n_out, n_in] => (n, n_out, n_in),
            _ => return Ok(0),
        };
        let heads = split == Split::PerQueryHead;
        let cut = self.shard.cut(split, entry.weight.layer, if heads { n } else { n_out });
        let shapes: Vec<[usize; 3]> = match cut {
            Cut::Rows(rows) if heads => rows.into_iter().map(|r| [r.len(), n_out, n_in]).collect(),
            Cut::Rows(rows) => rows.into_iter().map(|r| [n, r.len(), n_in]).collect(),
            Cut::Columns(columns) => vec![[n, n_out, columns.len()]],
        };
        // What the loader puts together is not in the file, so it is in memory even where a file's rows would be read in place.
        let is_copied = entry.files.len() > 1
            || (self.transposed && entry.weight.layer.is_some())
            || entry.weight.name == "draft.proj";
        let bytes = |shape: [usize; 3]| {
            let copied =
                shape[0].saturating_mul(shape[1]).saturating_mul(dtype.bytes_for(shape[2]).unwrap_or(0));
            match self.backend.matrix_memory(dtype, shape) {
                0 if is_copied => copied,
                memory => memory,
            }
        };
        Ok(shapes.into_iter().map(bytes).fold(0, usize::saturating_add))
    }
}
