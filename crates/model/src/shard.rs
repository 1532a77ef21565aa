//! What one of several devices computes of a model: some heads, some columns of the feed-forward blocks, some tokens' logits.
//!
//! Each block of a layer has a wide inside that ranks share by its elements: attention by heads, a feed-forward block by columns of its
//! hidden activations. Its first matrices are cut by rows, and nothing has to be exchanged. Its last matrix then joins the parts, in
//! one of two ways ([`Join`]). The names table says which weight is cut how.

use crate::config::{Attention, Dense, Experts, Ffn, Latent, Mixer, ModelConfig, QkNorm};
use crate::names::{self, Split};
use crate::source::TensorSource;
use crate::{Error, Result};
use realizar_compute::{Heads, Rank};
use std::ops::Range;

/// How the last matrix of a block joins what ranks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// There is one rank, or each computes the whole block: nothing is exchanged.
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
    layers: Vec<LayerShard>,
    residual: Vec<usize>,
    vocab: Vec<usize>,
}

/// How ranks share one block of a layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockShard {
    /// How the parts are joined.
    pub join: Join,
    /// Where each rank's columns of the last matrix's input begin, and after the last their number; empty where there is nothing to
    /// join.
    pub starts: Vec<usize>,
}

#[derive(Clone, Debug)]
struct LayerShard {
    mixer: BlockShard,
    /// `None` without attention.
    heads: Option<HeadShard>,
    ffn: BlockShard,
    /// Of the shared expert, where there is one.
    shared_expert: BlockShard,
}

/// The heads of one layer's attention that a rank has.
#[derive(Clone, Debug)]
struct HeadShard {
    whole: Heads,
    query: Range<usize>,
    kv: Range<usize>,
}

impl Shard {
    /// The part of `rank`. With `exact`, results are those of one rank, bit for bit, as far as experts are not concerned.
    ///
    /// Errors: `CannotSplit` where there are fewer heads, columns or blocks of quantized weights than ranks.
    pub fn new(config: &ModelConfig, source: &dyn TensorSource, rank: Rank, exact: bool) -> Result<Self> {
        let n = rank.count;
        let cut = Cutter { source, rank, exact };
        if n > config.vocab_size || n > config.hidden_size {
            return Err(cut.cannot(format!("{} tokens, {} columns", config.vocab_size, config.hidden_size)));
        }
        let mut local = config.clone();
        let mut layers = Vec::with_capacity(config.layers.len());
        for (i, layer) in local.layers.iter_mut().enumerate() {
            let (mixer, heads) = match &mut layer.mixer {
                Mixer::Attention(attention) => {
                    let (block, heads) = cut.attention(i, attention)?;
                    (block, Some(heads))
                }
                Mixer::Latent(latent) => {
                    let (block, heads) = cut.latent(i, latent)?;
                    (block, Some(heads))
                }
                // Each rank computes all of it.
                Mixer::GatedDelta(_) | Mixer::ShortConv(_) | Mixer::Mamba2(_) | Mixer::None => {
                    (BlockShard { join: Join::Alone, starts: Vec::new() }, None)
                }
            };
            let nothing = BlockShard { join: Join::Alone, starts: Vec::new() };
            let (ffn, shared_expert) = match &mut layer.ffn {
                Ffn::Gated(dense) | Ffn::Plain(dense) => (cut.dense(i, dense)?, nothing),
                Ffn::Experts(Experts { intermediate_size, shared, .. }) => (
                    cut.experts(i, "experts.down_proj", intermediate_size)?,
                    match shared {
                        Some(shared) => cut.experts(i, shared.proj[2], &mut shared.intermediate_size)?,
                        None => nothing,
                    },
                ),
                Ffn::None => (nothing.clone(), nothing),
            };
            layers.push(LayerShard { mixer, heads, ffn, shared_expert });
        }
        let (residual, vocab) = (share(config.hidden_size, 1, n), share(config.vocab_size, 1, n));
        Ok(Self { rank, config: local, layers, residual, vocab })
    }

    /// Whose part it is.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The model with the sizes of this part: heads and hidden activations are this rank's, all else is the model's.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How a layer's mixer is shared; its last matrix reads what was attended.
    pub fn mixer(&self, layer: usize) -> &BlockShard {
        &self.layers[layer].mixer
    }

    /// How a layer's feed-forward block is shared; its last matrix reads the hidden activations.
    pub fn ffn(&self, layer: usize) -> &BlockShard {
        &self.layers[layer].ffn
    }

    /// Where each rank's columns of the residual begin, where a block's last matrix is cut by rows.
    pub fn residual(&self) -> &[usize] {
        &self.residual
    }

    /// Where each rank's logits begin.
    pub fn vocab(&self) -> &[usize] {
        &self.vocab
    }

    /// This rank's range of a list of starts.
    pub(crate) fn mine(&self, starts: &[usize]) -> Range<usize> {
        starts[self.rank.index]..starts[self.rank.index + 1]
    }

    /// The part of a weight of `n_out` rows, cut by `split`. `layer`: of a weight in a layer.
    pub(crate) fn cut(&self, split: Split, layer: Option<usize>, n_out: usize) -> Cut {
        let layer =
            || &self.layers[layer.expect("only weights of layers are cut by heads or hidden activations")];
        let heads = || layer().heads.as_ref().expect("only weights of attention are cut by heads");
        let at = |from: usize, r: &Range<usize>, size: usize| from + r.start * size..from + r.end * size;
        let last = |block: &BlockShard| match block.join {
            Join::Alone => Cut::all(n_out),
            Join::Sum => Cut::Columns(self.mine(&block.starts)),
            Join::Gather => Cut::Rows(vec![self.mine(&self.residual)]),
        };
        match split {
            _ if self.rank.is_alone() => Cut::all(n_out),
            Split::Whole => Cut::all(n_out),
            Split::QueryHeads => {
                let HeadShard { whole, query, .. } = heads();
                Cut::Rows(vec![at(0, query, whole.head_dim)])
            }
            Split::PerQueryHead => Cut::Rows(vec![heads().query.clone()]),
            Split::KvHeads => {
                let HeadShard { whole, kv, .. } = heads();
                Cut::Rows(vec![at(0, kv, whole.head_dim)])
            }
            Split::Qkv => {
                let HeadShard { whole, query, kv } = heads();
                let dim = whole.head_dim;
                let (k, v) = (whole.n_heads * dim, (whole.n_heads + whole.n_kv_heads) * dim);
                Cut::Rows(vec![at(0, query, dim), at(k, kv, dim), at(v, kv, dim)])
            }
            Split::Hidden => Cut::Rows(vec![self.mine(&layer().ffn.starts)]),
            Split::GateUp => {
                let hidden = self.mine(&layer().ffn.starts);
                Cut::Rows(vec![hidden.clone(), at(n_out / 2, &hidden, 1)])
            }
            Split::FromHeads => last(&layer().mixer),
            Split::FromHidden => last(&layer().ffn),
            Split::SharedHidden => Cut::Rows(vec![self.mine(&layer().shared_expert.starts)]),
            Split::FromSharedHidden => last(&layer().shared_expert),
            Split::Vocab => Cut::Rows(vec![self.mine(&self.vocab)]),
        }
    }
}

/// Cuts the blocks of layers: each function makes the sizes of a block those of the rank.
struct Cutter<'a> {
    source: &'a dyn TensorSource,
    rank: Rank,
    exact: bool,
}

impl Cutter<'_> {
    fn cannot(&self, what: String) -> Error {
        Error::CannotSplit { path: self.source.path().to_owned(), what, n_ranks: self.rank.count }
    }

    fn mine(&self, starts: &[usize]) -> usize {
        starts[self.rank.index + 1] - starts[self.rank.index]
    }

    /// Elements in a block of quantized weights of a layer's matrix.
    fn block_len(&self, name: &str, layer: usize) -> usize {
        let expert = name.starts_with("experts.").then_some(0);
        let name = names::file_name(self.source, name, Some(layer), expert, "weight");
        name.and_then(|name| self.source.find(&name)).map_or(1, |t| t.dtype.block_len())
    }

    fn attention(&self, layer: usize, attention: &mut Attention) -> Result<(BlockShard, HeadShard)> {
        let (whole, n) = (attention.heads, self.rank.count);
        if n == 1 || attention.qk_norm == Some(QkNorm::FullWidth) || attention.output_gate {
            // A norm over all heads needs all of them on every rank, and then attention has its whole input there too. Gates go with
            // the heads, whose number is small in the models that have them.
            let shard = BlockShard { join: Join::Alone, starts: Vec::new() };
            return Ok((shard, HeadShard { whole, query: 0..whole.n_heads, kv: 0..whole.n_kv_heads }));
        }
        let (block, heads) = self.heads(layer, whole, whole.head_dim, attention.sub_norm)?;
        attention.heads = Heads { n_heads: heads.query.len(), n_kv_heads: heads.kv.len(), ..whole };
        Ok((block, heads))
    }

    /// Each rank keeps the vectors that all heads share.
    fn latent(&self, layer: usize, latent: &mut Latent) -> Result<(BlockShard, HeadShard)> {
        let shape = &mut latent.shape;
        let whole = Heads { n_heads: shape.n_heads, n_kv_heads: 1, head_dim: shape.q_dim() };
        if self.rank.is_alone() {
            let shard = BlockShard { join: Join::Alone, starts: Vec::new() };
            return Ok((shard, HeadShard { whole, query: 0..whole.n_heads, kv: 0..1 }));
        }
        let (block, heads) = self.heads(layer, whole, shape.v_dim, false)?;
        shape.n_heads = heads.query.len();
        Ok((block, heads))
    }

    /// Shares heads, whose values have `v_dim` elements, among ranks. With `gathers` the last matrix needs its whole input.
    fn heads(
        &self,
        layer: usize,
        whole: Heads,
        v_dim: usize,
        gathers: bool,
    ) -> Result<(BlockShard, HeadShard)> {
        let n = self.rank.count;
        let mut shared = Vec::with_capacity(n);
        for i in 0..n {
            shared.push(share_heads(whole, i, n).ok_or_else(|| {
                self.cannot(format!(
                    "{} query heads with {} for keys and values",
                    whole.n_heads, whole.n_kv_heads
                ))
            })?);
        }
        let mut starts: Vec<usize> = shared.iter().map(|(query, _)| query.start * v_dim).collect();
        starts.push(whole.n_heads * v_dim);
        let block = self.block_len("o_proj", layer);
        let cuts_blocks = starts.iter().any(|s| !s.is_multiple_of(block));
        let join = match () {
            () if self.exact || gathers || cuts_blocks => Join::Gather,
            () => Join::Sum,
        };
        let (query, kv) = shared.swap_remove(self.rank.index);
        Ok((BlockShard { join, starts }, HeadShard { whole, query, kv }))
    }

    fn dense(&self, layer: usize, dense: &mut Dense) -> Result<BlockShard> {
        let (n, whole) = (self.rank.count, dense.intermediate_size);
        let gathers = self.exact || dense.sub_norm;
        let (join, starts) = match share_blocks(whole, self.block_len("down_proj", layer), n) {
            _ if n == 1 => (Join::Alone, vec![0, whole]),
            Some(starts) if !gathers => (Join::Sum, starts),
            _ if n <= whole => (Join::Gather, share(whole, 1, n)),
            _ => return Err(self.cannot(format!("a feed-forward block of {whole} columns"))),
        };
        dense.intermediate_size = self.mine(&starts);
        Ok(BlockShard { join, starts })
    }

    /// Every expert by its hidden activations, before the matrix `down`.
    fn experts(&self, layer: usize, down: &str, intermediate_size: &mut usize) -> Result<BlockShard> {
        let (n, whole) = (self.rank.count, *intermediate_size);
        if n == 1 {
            return Ok(BlockShard { join: Join::Alone, starts: vec![0, whole] });
        }
        let block = self.block_len(down, layer);
        let starts = share_blocks(whole, block, n)
            .ok_or_else(|| self.cannot(format!("experts of {whole} columns in blocks of {block}")))?;
        *intermediate_size = self.mine(&starts);
        Ok(BlockShard { join: Join::Sum, starts })
    }
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
