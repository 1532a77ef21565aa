//! Attention over a paged cache, and what prepares queries, keys and values for it.
//!
//! [`attend`] chooses: [`decode_attention`] for steps of one token per sequence, [`prefill_attention`] for more than two on average, both
//! on tensor cores, as [`wide_attention`] is for wider heads and for latent attention, which [`latent`] prepares; [`paged_attention`] for
//! all else, such as scores that fall with distance, and for exact sums.

mod cache;
mod decode_attention;
mod latent;
mod paged_attention;
mod prefill_attention;
mod prep;
mod rope;
mod step;
mod wide_attention;

pub(in crate::cuda) use cache::check_cache_type;
pub(in crate::cuda) use latent::{check_latent, store_latent};
pub(in crate::cuda) use rope::{angles, store_kv};
pub(in crate::cuda) use step::{AttentionInput, Step};

use super::batch::StagedBatch;
use super::common::{KvSlots, Output, TileLayout, TileNumber, Tiles};
use super::driver::{Cuda, Driver, Rooms};
use crate::{AttentionParams, DType, Error, Heads, KvLayer, Profile, QkvPrep, Result, Tensor};

/// Largest head dimension of any kernel, but for the keys of latent attention.
const MAX_HEAD_DIM: usize = 512;

/// Loads the room's kernels.
pub(in crate::cuda) fn load(driver: &dyn Driver, rooms: &mut Rooms) -> Result<()> {
    rooms.add(rope::Kernels::load(driver)?);
    rooms.add(latent::Kernels::load(driver)?);
    rooms.add(paged_attention::Kernels::load(driver)?);
    rooms.add(decode_attention::Kernels::load(driver)?);
    rooms.add(prefill_attention::Kernels::load(driver)?);
    rooms.add(wide_attention::Kernels::load(driver)?);
    Ok(())
}

/// Errors: `UnsupportedSize` for heads larger than any kernel takes.
pub(in crate::cuda) fn check_heads(heads: Heads) -> Result<()> {
    let dim = heads.head_dim;
    if (1..=MAX_HEAD_DIM).contains(&dim) {
        return Ok(());
    }
    Err(Error::UnsupportedSize {
        op: "attention",
        what: format!("heads of {dim} elements; the largest have {MAX_HEAD_DIM}"),
        backend: "cuda",
    })
}

/// # Panics
/// If the shapes contradict each other.
fn check_shapes(y: &Tensor<Cuda>, input: &AttentionInput<'_>) {
    let AttentionInput { qkv, kv, batch, params, .. } = input;
    let (h, n_tokens) = (params.heads, batch.n_tokens());
    let q_len = h.n_heads * h.head_dim;
    let is_part = kv.v.is_none() && y.row_len() < q_len && y.row_len().is_multiple_of(h.n_heads);
    assert!(is_part || y.row_len() == q_len, "{y:?} for {h:?}");
    assert!([h.qkv_len(), q_len].contains(&qkv.row_len()), "{qkv:?} for {h:?}");
    assert_eq!((qkv.rows(), y.rows()), (n_tokens, n_tokens));
    assert_eq!((kv.k.shape()[1], kv.k.shape()[3]), (h.n_kv_heads, h.head_dim));
}

/// Attention of queries that are prepared, over keys and values in the cache.
pub(in crate::cuda) fn attention(cuda: &Cuda, y: &mut Tensor<Cuda>, input: AttentionInput<'_>) -> Result<()> {
    check_shapes(y, &input);
    let AttentionInput { kv, batch, params, .. } = input;
    if wide_attention::supports(cuda, kv, params, y.row_len() / params.heads.n_heads) {
        return wide_attention::attention(cuda, y, input);
    }
    if kv.v.is_some() && prefill_attention::supports(cuda, kv, batch, params) {
        let (y, queries) = (Output::Floats(y.ptr()), prefill_attention::Queries::Prepared);
        return prefill_attention::attention(cuda, y, input, queries);
    }
    paged_attention::attention(cuda, y, input)
}

/// Where a product may store queries, in the memory of `qkv`, keys and values itself, so that [`attend`] finds them `stored`: if nothing is
/// done to them, and a kernel attends that reads them so.
pub(in crate::cuda) fn slots(
    cuda: &Cuda,
    qkv: &Tensor<Cuda>,
    kv: &KvLayer<Cuda>,
    batch: &StagedBatch,
    prep: &QkvPrep<'_, Cuda>,
    params: &AttentionParams,
) -> Option<KvSlots> {
    let Heads { n_heads, n_kv_heads, head_dim } = prep.heads;
    let number = match kv.k.dtype() {
        DType::BF16 => TileNumber::Bfloat,
        DType::F16 => TileNumber::Half,
        _ => return None,
    };
    let n_rows = kv.k.shape()[..3].iter().product::<usize>();
    let is_plain = prep.heads == params.heads && prep.qk_norm.is_none() && prep.angles.is_none();
    let attends = cuda.driver.is_hopper()
        && !decode_attention::supports(cuda, kv, batch, params)
        && prefill_attention::supports(cuda, kv, batch, params);
    (is_plain && attends && u32::try_from(n_rows).is_ok()).then(|| KvSlots {
        q: qkv.ptr(),
        k: kv.k.buffer().ptr(),
        v: kv.values().buffer().ptr(),
        positions: batch.positions(),
        table_starts: batch.table_starts(),
        block_tables: batch.block_tables(),
        first_key: (n_heads * head_dim) as u32,
        first_value: ((n_heads + n_kv_heads) * head_dim) as u32,
        first_out: 0,
        n_kv_heads: n_kv_heads as u32,
        head_dim: head_dim as u32,
        block_size: kv.k.shape()[2] as u32,
        number: number as u32,
    })
}

/// Prepares queries, keys and values, stores keys and values in the cache, unless all that was done ([`slots`]), and attends. Returns true if the result is in `tiles`, which
/// share the memory of `y`, and false if it is in `y` as floats.
pub(in crate::cuda) fn attend(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    tiles: Option<Tiles>,
    qkv: &mut Tensor<Cuda>,
    step: Step<'_>,
    stored: bool,
) -> Result<bool> {
    let Step { kv, batch, prep, params, sinks } = step;
    // The other kernels do not take queries without keys and values.
    let is_whole = prep.heads == params.heads;
    if is_whole && decode_attention::supports(cuda, kv, batch, params) {
        let writes_tiles = decode_attention::writes_tiles(cuda);
        let tiles = tiles.filter(|t| t.layout == TileLayout::PackedHalf && writes_tiles);
        let rows = tiles.map_or(0, |t| t.rows);
        let step = Step { kv, batch, prep, params, sinks };
        cuda.timed("attention", || decode_attention::attention(cuda, y, rows, qkv, step))?;
        return Ok(tiles.is_some());
    }
    if is_whole && prefill_attention::supports(cuda, kv, batch, params) {
        let tiles = tiles.filter(|t| matches!(t.layout, TileLayout::GemmBfloat | TileLayout::GemmHalf));
        let to = tiles.map_or(Output::Floats(y.ptr()), Output::Tiles);
        prefill_attention::store_and_attend(cuda, to, qkv, Step { kv, batch, prep, params, sinks }, stored)?;
        return Ok(tiles.is_some());
    }
    cuda.timed("store_kv", || store_kv(cuda, qkv, kv, batch, &prep, 0))?;
    let input = AttentionInput { qkv, kv, batch, params, sinks };
    cuda.timed("attention", || attention(cuda, y, input))?;
    Ok(false)
}
