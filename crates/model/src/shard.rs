//! What one of several devices computes of a model: some heads, some columns of the feed-forward blocks, some tokens' logits.
//!
//! Each block of a layer has a wide inside that ranks share by its elements: attention by heads, a feed-forward block by columns of its
//! hidden activations. Its first matrices are cut by rows, and nothing has to be exchanged. Its last matrix then joins the parts, in
//! one of two ways ([`Join`]). The names table says which weight is cut how.

use crate::config::ModelConfig;
use crate::names;
use crate::source::TensorSource;
use crate::{Error, Result};
use realizar_compute::{Heads, Rank};
use std::ops::Range;

/// How a weight is cut among ranks. "Rows" are outputs, "columns" inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Every rank has all of it.
    Whole,
    /// Rows, by query heads.
    QueryHeads,
    /// Rows, by key and value heads.
    KvHeads,
    /// Rows of query, key and value heads, one after the other.
    Qkv,
    /// Rows, by hidden activations of the feed-forward block.
    Hidden,
    /// Rows of gate and up, one after the other.
    GateUp,
    /// What leads from attention's heads to the residual.
    FromHeads,
    /// What leads from a feed-forward block's hidden activations to the residual.
    FromHidden,
    /// Rows, by tokens of the vocabulary.
    Vocab,
}

/// How the last matrix of a block joins what ranks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// There is one rank.
    Alone,
    /// The matrix is cut by columns, and the ranks' products are added.
    Sum,
    /// The matrix is cut by rows: ranks exchange its input and then its output. Every number is computed by the same operations in
    /// the same order as by one rank.
    Gather,
}

/// The part of a weight that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// These rows, one range after the other.
    Rows(Vec<Range<usize>>),
    /// These columns.
    Columns(Range<usize>),
}

impl Cut {
    /// All of `n` rows.
    pub(crate) fn all(n: usize) -> Self {
        Self::Rows(std::iter::once(0..n).collect())
    }
}

/// What one rank computes.
#[derive(Clone, Debug)]
pub struct Shard {
    rank: Rank,
    config: ModelConfig,
    whole: Sizes,
    heads: Range<usize>,
    kv_heads: Range<usize>,
    expert_hidden: Range<usize>,
    attention: Join,
    feed_forward: Join,
    starts: Starts,
}

/// Sizes of the model before it was cut.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    heads: Heads,
    intermediate_size: usize,
}

/// Where each rank's columns begin, and after the last their number.
#[derive(Clone, Debug)]
pub(crate) struct Starts {
    /// Of attention's result.
    pub(crate) attended: Vec<usize>,
    /// Of a feed-forward block's hidden activations.
    pub(crate) hidden: Vec<usize>,
    /// Of the residual, where a block's last matrix is cut by rows.
    pub(crate) residual: Vec<usize>,
    /// Of the logits.
    pub(crate) vocab: Vec<usize>,
}

impl Shard {
    /// The part of `rank`. With `exact`, results are those of one rank, bit for bit, as far as experts are not concerned.
    ///
    /// Errors: `CannotSplit` where there are fewer heads, columns or blocks of quantized weights than ranks.
    pub fn new(config: &ModelConfig, source: &dyn TensorSource, rank: Rank, exact: bool) -> Result<Self> {
        let n = rank.count;
        let cannot = |what: String| Error::CannotSplit { path: source.path().to_owned(), what, n_ranks: n };
        let h = config.heads;
        let mut shared = Vec::with_capacity(n);
        for i in 0..n {
            shared.push(share_heads(h, i, n).ok_or_else(|| {
                cannot(format!("{} query heads with {} for keys and values", h.n_heads, h.n_kv_heads))
            })?);
        }
        let gathers = exact || config.sub_norms;
        let mut attended: Vec<usize> = shared.iter().map(|(heads, _)| heads.start * h.head_dim).collect();
        attended.push(h.n_heads * h.head_dim);
        let block = largest_block(config, source, "o_proj");
        let attention = match () {
            () if n == 1 => Join::Alone,
            () if gathers || attended.iter().any(|s| !s.is_multiple_of(block)) => Join::Gather,
            () => Join::Sum,
        };
        let whole = config.intermediate_size;
        let has_dense = config.layers.iter().any(|l| !l.moe);
        let block = largest_block(config, source, "down_proj");
        let (feed_forward, hidden) = match share_blocks(whole, block, n) {
            Some(starts) if n == 1 => (Join::Alone, starts),
            Some(starts) if !gathers => (Join::Sum, starts),
            _ if n <= whole => (Join::Gather, share(whole, 1, n)),
            _ if has_dense => return Err(cannot(format!("a feed-forward block of {whole} columns"))),
            _ => (Join::Gather, vec![0; n + 1]),
        };
        let mut local = config.clone();
        let mut expert_hidden = 0..0;
        if let Some(moe) = &mut local.moe {
            let block = largest_block(config, source, "experts.down_proj");
            let inner = moe.intermediate_size;
            let starts = share_blocks(inner, block, n)
                .ok_or_else(|| cannot(format!("experts of {inner} columns in blocks of {block}")))?;
            expert_hidden = starts[rank.index]..starts[rank.index + 1];
            moe.intermediate_size = expert_hidden.len();
        }
        if n > config.vocab_size || n > config.hidden_size {
            return Err(cannot(format!("{} tokens, {} columns", config.vocab_size, config.hidden_size)));
        }
        let (heads, kv_heads) = shared.swap_remove(rank.index);
        local.heads = Heads { n_heads: heads.len(), n_kv_heads: kv_heads.len(), ..h };
        local.intermediate_size = hidden[rank.index + 1] - hidden[rank.index];
        let starts = Starts {
            attended,
            hidden,
            residual: share(config.hidden_size, 1, n),
            vocab: share(config.vocab_size, 1, n),
        };
        Ok(Self {
            rank,
            config: local,
            whole: Sizes { heads: h, intermediate_size: whole },
            heads,
            kv_heads,
            expert_hidden,
            attention,
            feed_forward,
            starts,
        })
    }

    /// Whose part it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The model with the sizes of this part: heads and hidden activations are this rank's, all else is the model's.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How attention's parts are joined.
    pub fn attention(&self) -> Join {
        self.attention
    }

    /// How the parts of a dense feed-forward block are joined. Those of experts are added.
    pub fn feed_forward(&self) -> Join {
        self.feed_forward
    }

    pub(crate) fn starts(&self) -> &Starts {
        &self.starts
    }

    /// This rank's entry of one of [`Starts`].
    pub(crate) fn mine(&self, starts: &[usize]) -> Range<usize> {
        starts[self.rank.index]..starts[self.rank.index + 1]
    }

    /// The part of a weight of `n_out` rows that is cut by `split`; `of_experts`: its columns or rows are an expert's.
    pub(crate) fn cut(&self, split: Split, n_out: usize, of_experts: bool) -> Cut {
        let dim = self.config.heads.head_dim;
        let at = |from: usize, r: &Range<usize>, size: usize| from + r.start * size..from + r.end * size;
        let hidden = if of_experts { self.expert_hidden.clone() } else { self.mine(&self.starts.hidden) };
        let residual = || Cut::Rows(vec![self.mine(&self.starts.residual)]);
        let Sizes { heads, intermediate_size } = self.whole;
        match split {
            _ if self.rank.is_alone() => Cut::all(n_out),
            Split::Whole => Cut::all(n_out),
            Split::QueryHeads => Cut::Rows(vec![at(0, &self.heads, dim)]),
            Split::KvHeads => Cut::Rows(vec![at(0, &self.kv_heads, dim)]),
            Split::Qkv => {
                let (k, v) = (heads.n_heads * dim, (heads.n_heads + heads.n_kv_heads) * dim);
                Cut::Rows(vec![
                    at(0, &self.heads, dim),
                    at(k, &self.kv_heads, dim),
                    at(v, &self.kv_heads, dim),
                ])
            }
            Split::Hidden => Cut::Rows(vec![hidden]),
            Split::GateUp => Cut::Rows(vec![hidden.clone(), at(intermediate_size, &hidden, 1)]),
            Split::FromHeads if self.attention == Join::Gather => residual(),
            Split::FromHeads => Cut::Columns(self.mine(&self.starts.attended)),
            Split::FromHidden if self.feed_forward == Join::Gather && !of_experts => residual(),
            Split::FromHidden => Cut::Columns(hidden),
            Split::Vocab => Cut::Rows(vec![self.mine(&self.starts.vocab)]),
        }
    }
}

/// The largest block of quantized weights that a matrix has in any layer.
fn largest_block(config: &ModelConfig, source: &dyn TensorSource, name: &str) -> usize {
    let of_layer = |i| {
        let expert = name.starts_with("experts.").then_some(0);
        let name = names::file_name(source, name, Some(i), expert, "weight")?;
        source.find(&name).map(|t| t.dtype.block_len())
    };
    (0..config.layers.len()).filter_map(of_layer).max().unwrap_or(1)
}

/// Shares `n` elements in units among ranks, as evenly as can be.
fn share(n: usize, unit: usize, n_ranks: usize) -> Vec<usize> {
    (0..=n_ranks).map(|i| n / unit * i / n_ranks * unit).collect()
}

/// As `share`, in units that hold whole blocks of weights, rather larger ones; `None` where there are fewer than ranks.
fn share_blocks(n: usize, block: usize, n_ranks: usize) -> Option<Vec<usize>> {
    // Products are fastest on rows of whole groups of 256.
    let units = [256usize.next_multiple_of(block), 64usize.next_multiple_of(block), block];
    let unit = units.into_iter().find(|&unit| n.is_multiple_of(unit) && n / unit >= n_ranks)?;
    Some(share(n, unit, n_ranks))
}

/// The query heads of a rank and the key and value heads that they read. Where there are more ranks than the latter, several ranks
/// keep the same ones.
fn share_heads(h: Heads, rank: usize, n_ranks: usize) -> Option<(Range<usize>, Range<usize>)> {
    let (n_kv, group) = (h.n_kv_heads, h.n_heads / h.n_kv_heads);
    if n_ranks <= n_kv {
        let kv = rank * n_kv / n_ranks..(rank + 1) * n_kv / n_ranks;
        return Some((kv.start * group..kv.end * group, kv));
    }
    let kv = rank * n_kv / n_ranks;
    let mine = |r: &usize| r * n_kv / n_ranks == kv;
    let sharers = (0..n_ranks).filter(mine).count();
    let before = (0..rank).filter(mine).count();
    let at = |i: usize| kv * group + i * group / sharers;
    (sharers <= group).then(|| (at(before)..at(before + 1), kv..kv + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(n_heads: usize, n_kv_heads: usize, n_ranks: usize) -> Option<Vec<(usize, usize)>> {
        let h = Heads { n_heads, n_kv_heads, head_dim: 64 };
        let all = (0..n_ranks).map(|i| share_heads(h, i, n_ranks)).collect::<Option<Vec<_>>>()?;
        // Every query head belongs to one rank, together with the key and value head that it reads.
        assert_eq!(
            all.iter().flat_map(|(q, _)| q.clone()).collect::<Vec<_>>(),
            (0..n_heads).collect::<Vec<_>>()
        );
        for (q, kv) in &all {
            let group = n_heads / n_kv_heads;
            assert_eq!((q.start / group, (q.end - 1) / group), (kv.start, kv.end - 1), "{n_ranks} ranks");
        }
        Some(all.iter().map(|(q, kv)| (q.len(), kv.len())).collect())
    }

    #[test]
    fn heads_go_to_ranks_with_the_keys_and_values_that_they_read() {
        assert_eq!(heads(64, 8, 4), Some(vec![(16, 2); 4]));
        assert_eq!(heads(28, 4, 3), Some(vec![(7, 1), (7, 1), (14, 2)]));
        // Two ranks keep the same keys and values.
        assert_eq!(heads(32, 4, 8), Some(vec![(4, 1); 8]));
        assert_eq!(heads(3, 1, 2), Some(vec![(1, 1), (2, 1)]));
        assert_eq!(heads(3, 3, 4), None);
    }

    #[test]
    fn columns_are_shared_in_whole_blocks() {
        assert_eq!(share_blocks(18944, 256, 4), Some(vec![0, 4608, 9472, 14080, 18944]));
        assert_eq!(share_blocks(768, 256, 2), Some(vec![0, 256, 768]));
        assert_eq!(share_blocks(768, 256, 4), None);
        assert_eq!(share_blocks(768, 32, 4), Some(vec![0, 192, 384, 576, 768]));
        assert_eq!(share_blocks(28, 1, 2), Some(vec![0, 14, 28]));
    }
}
