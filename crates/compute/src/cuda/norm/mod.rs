//! Launches of normalization.

use super::batch::StagedBatch;
use super::common::{TileLayout, Tiles};
use super::driver::{Cuda, DevicePtr, kernel_args, kernels};
use crate::{Norm, NormKind, Result, Tensor};

/// Threads of a block of `norm_rows` and `add_norms`, at most.
const MAX_THREADS: usize = 1024;

kernel_args! {
    in "norm_args.cuh";

    struct NormArgs {
        /// [n_rows, n] in rows of `row_len`, may be x
        y: DevicePtr as "float*",
        /// As y.
        x: DevicePtr as "const float*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        n: u32,
        /// Elements from one row to the next, of which n are normalized.
        row_len: u32,
        /// Whether the mean is taken out first.
        layer: u32,
        /// Whether the result is added to y.
        add: u32,
        /// Whether threads hold 8 elements each: rows, x, y, weight and bias begin at multiples of 16 bytes, and n is a multiple of 8.
        held: u32,
        eps: f32,
    }

    struct NormHeadsArgs {
        /// [n_heads, n]: rows of `heads_of_row` heads, n a multiple of 8
        x: DevicePtr as "float*",
        /// [n] of all heads
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        /// [heads_of_row, n]
        weights: DevicePtr as "const float*",
        n_heads: u32,
        heads_of_row: u32,
        n: u32,
        /// 1: the mean is taken out first
        layer: u32,
        eps: f32,
    }

    struct AddNormsArgs {
        /// [rows, n], n a multiple of 8
        y: DevicePtr as "float*",
        /// [rows, n] each
        x: [DevicePtr; 2] as "const float*",
        /// [n]: of both x, and of their sum
        weights: [DevicePtr; 3] as "const float*",
        eps: [f32; 3],
        n: u32,
    }

    struct NormSumArgs {
        /// [m, n], n a multiple of 8; null: x is in the tiles of the result
        x: DevicePtr as "const float*",
        /// tiles of half precision, [m, n]
        y: DevicePtr as "const uint8_t*",
        /// the result, [m, n]
        tiles: DevicePtr as "uint8_t*",
        /// the result, may be x, or null
        sum: DevicePtr as "float*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        m: u32,
        n: u32,
        /// of all tiles
        n_rows: u32,
        /// TileNumber of the result
        number: u32,
        /// 1: the mean is taken out first
        layer: u32,
        eps: f32,
    }

    struct NormEmbeddedArgs {
        /// [m, n], n a multiple of 8
        x: DevicePtr as "float*",
        /// [n_positions, n] or null
        positions: DevicePtr as "const float*",
        /// [m]
        position_of: DevicePtr as "const uint32_t*",
        /// [n_types, n] or null
        types: DevicePtr as "const float*",
        /// [m]
        type_of: DevicePtr as "const uint32_t*",
        /// [n]
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        m: u32,
        n: u32,
        n_positions: u32,
        n_types: u32,
        /// 1: the mean is taken out first
        layer: u32,
        eps: f32,
    }

    struct ReadTilesArgs {
        /// [m, n], n a multiple of 8
        y: DevicePtr as "float*",
        /// of half precision, [m, n]
        tiles: DevicePtr as "const uint8_t*",
        m: u32,
        n: u32,
        /// of the tiles
        n_rows: u32,
    }
}

kernels! {
    /// Kernels of norm.cu.
    pub(in crate::cuda) struct Kernels in norm {
        norm_rows: NormArgs,
        norm_heads: NormHeadsArgs,
        add_norms: AddNormsArgs,
        /// For rows of up to 768 elements, up to 1,024, and up to 2,048; so are the next three.
        norm_sum_768: NormSumArgs,
        norm_sum_1024: NormSumArgs,
        norm_sum_2048: NormSumArgs,
        norm_embedded_768: NormEmbeddedArgs,
        norm_embedded_1024: NormEmbeddedArgs,
        norm_embedded_2048: NormEmbeddedArgs,
        read_tiles: ReadTilesArgs,
    }
}

/// `y = norm(x)`, or `y += norm(x)`; `y` has the shape of `x`.
pub(in crate::cuda) fn norm(
    cuda: &Cuda,
    y: DevicePtr,
    x: &Tensor<Cuda>,
    norm: &Norm<Cuda>,
    add: bool,
) -> Result<()> {
    assert_eq!(x.row_len(), norm.weight.len());
    // SAFETY: the norm has as many elements as a row of `x`, and `y` has the shape of `x`.
    unsafe { launch(cuda, y, x.ptr(), norm, add, [x.rows(), x.row_len()]) }
}

/// `x = norm(x)` in the columns from `start` on that the norm has elements for.
pub(in crate::cuda) fn norm_columns(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    start: usize,
    norm: &Norm<Cuda>,
) -> Result<()> {
    let (n, row_len) = (norm.weight.len(), x.row_len());
    assert!(start + n <= row_len, "columns {start}.. of {row_len} for {n} elements of a norm");
    let first = x.ptr().offset(start * size_of::<f32>());
    // SAFETY: from `start` on each row of `x` has `n` elements, as asserted above.
    unsafe { launch(cuda, first, first, norm, false, [x.rows(), row_len]) }
}

/// Normalizes as many elements of each row as `norm` has.
///
/// # Safety
/// - `x` and `y` point to `rows` rows, `row_len` elements apart, with as many elements in each as `norm` has.
unsafe fn launch(
    cuda: &Cuda,
    y: DevicePtr,
    x: DevicePtr,
    norm: &Norm<Cuda>,
    add: bool,
    [rows, row_len]: [usize; 2],
) -> Result<()> {
    let n = norm.weight.len();
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let (weight, bias) = (norm.weight.ptr(), norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr));
    let is_aligned = [y, x, weight, bias].iter().all(|p| p.0.is_multiple_of(16)) && row_len.is_multiple_of(4);
    let is_held = is_aligned && n.is_multiple_of(8) && n <= 8 * MAX_THREADS;
    let args = NormArgs {
        y,
        x,
        weight,
        bias,
        n: n as u32,
        row_len: row_len as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        add: u32::from(add),
        held: u32::from(is_held),
        eps: norm.eps,
    };
    let threads = n.div_ceil(if is_held { 8 } else { 4 }).next_multiple_of(32).clamp(32, MAX_THREADS) as u32;
    // SAFETY: every row has n elements, as this function's contract says; weight and bias have n, as read and asserted above.
    unsafe { cuda.launch(cuda.room::<Kernels>().norm_rows, [rows, 1, 1], threads, &args) }
}

/// Whether [`norm_heads`] takes heads of `n` elements.
pub(in crate::cuda) fn takes_heads(n: usize) -> bool {
    n <= 512 && n.is_multiple_of(8)
}

/// `x = norm(x) · weights`, head by head of as many elements as `norm` has, with a weight for each column.
pub(in crate::cuda) fn norm_heads(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    norm: &Norm<Cuda>,
    weights: &Tensor<Cuda>,
) -> Result<()> {
    let (n, row_len) = (norm.weight.len(), x.row_len());
    assert!(takes_heads(n) && row_len.is_multiple_of(n) && weights.len() == row_len, "{x:?} in heads of {n}");
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let n_heads = x.len() / n;
    let args = NormHeadsArgs {
        x: x.ptr(),
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        weights: weights.ptr(),
        n_heads: n_heads as u32,
        heads_of_row: (row_len / n) as u32,
        n: n as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    // SAFETY: rows of x are whole heads, the norm and its bias have elements for one, and `weights` for those of a row, as asserted.
    unsafe { cuda.launch(cuda.room::<Kernels>().norm_heads, [n_heads.div_ceil(8), 1, 1], 256, &args) }
}

/// Whether [`add_norms`] takes rows of `n` elements with these norms.
pub(in crate::cuda) fn adds_norms(n: usize, norms: [&Norm<Cuda>; 3]) -> bool {
    let is_plain = |norm: &Norm<Cuda>| norm.kind == NormKind::Rms && norm.bias.is_none();
    n <= 8 * MAX_THREADS && n.is_multiple_of(8) && norms.into_iter().all(is_plain)
}

/// `y += norms[2](norms[0](x[0]) + norms[1](x[1]))`
pub(in crate::cuda) fn add_norms(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: [&Tensor<Cuda>; 2],
    norms: [&Norm<Cuda>; 3],
) -> Result<()> {
    let (m, n) = (y.rows(), y.row_len());
    assert!(adds_norms(n, norms) && norms.iter().all(|norm| norm.weight.len() == n), "{y:?}");
    assert!(x.iter().all(|x| (x.rows(), x.row_len()) == (m, n)), "{y:?} of {x:?}");
    let args = AddNormsArgs {
        y: y.ptr(),
        x: x.map(Tensor::ptr),
        weights: norms.map(|norm| norm.weight.ptr()),
        eps: norms.map(|norm| norm.eps),
        n: n as u32,
    };
    let threads = n.div_ceil(8).next_multiple_of(32) as u32;
    // SAFETY: all have m rows of n elements, and the norms have n, as asserted.
    unsafe { cuda.launch(cuda.room::<Kernels>().add_norms, [m, 1, 1], threads, &args) }
}

/// Whether [`norm_sum`] and [`norm_embedded`] take rows of `n` elements.
pub(in crate::cuda) fn is_held(n: usize) -> bool {
    n <= 2048 && n.is_multiple_of(8)
}

/// Of kernels for rows of up to 768, 1,024 and 2,048 elements, the one for rows of `n`.
fn for_len<T: Copy>(n: usize, kernels: [T; 3]) -> T {
    kernels[usize::from(n > 768) + usize::from(n > 1024)]
}

/// `tiles = norm(x + y)`, of `y` in tiles of half precision with as many rows. Tiles of bfloats are too coarse for a residual: `x` becomes
/// the same then. Half precision keeps it alone, as other libraries do, and `x` is what [`read_tiles`] makes of them. `x` comes with the
/// tiles that hold it so, which are `tiles`.
pub(in crate::cuda) fn norm_sum(
    cuda: &Cuda,
    (x, held): (&mut Tensor<Cuda>, Option<Tiles>),
    y: Tiles,
    tiles: Tiles,
    norm: &Norm<Cuda>,
) -> Result<()> {
    let (m, n) = (x.rows(), x.row_len());
    let in_tiles = held.is_some_and(|held| held.layout == TileLayout::GemmHalf);
    assert!(!in_tiles || held == Some(tiles), "{held:?} to {tiles:?}");
    assert!(n == norm.weight.len() && is_held(n), "{x:?}");
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    assert!(y.layout == TileLayout::GemmHalf && y.rows == tiles.rows && m <= y.rows, "{y:?} to {tiles:?}");
    let args = NormSumArgs {
        x: if in_tiles { DevicePtr::NULL } else { x.ptr() },
        y: y.ptr,
        tiles: tiles.ptr,
        sum: if tiles.layout == TileLayout::GemmHalf { DevicePtr::NULL } else { x.ptr() },
        weight: norm.weight.ptr(),
        bias: norm.bias.as_ref().map_or(DevicePtr::NULL, Tensor::ptr),
        m: m as u32,
        n: n as u32,
        n_rows: y.rows as u32,
        number: tiles.number() as u32,
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    let kernels = cuda.room::<Kernels>();
    let f = for_len(n, [kernels.norm_sum_768, kernels.norm_sum_1024, kernels.norm_sum_2048]);
    // SAFETY: x, the norm and its bias have n columns, and tiles room for m rows of them, as their maker checked.
    unsafe { cuda.launch(f, [m.div_ceil(4), 1, 1], 128, &args) }
}

/// `x = norm(x + positions[position] + types[type])`, of the tables that there are.
pub(in crate::cuda) fn norm_embedded(
    cuda: &Cuda,
    x: &mut Tensor<Cuda>,
    batch: &StagedBatch,
    positions: Option<&Tensor<Cuda>>,
    types: Option<&Tensor<Cuda>>,
    norm: &Norm<Cuda>,
) -> Result<()> {
    let (m, n) = (x.rows(), x.row_len());
    assert!(n == norm.weight.len() && is_held(n) && m == batch.n_tokens(), "{x:?}");
    assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n), "a bias for {n} elements");
    let is_whole = |table: &Tensor<Cuda>| table.row_len() == n && table.rows() > 0;
    assert!(positions.is_none_or(is_whole) && types.is_none_or(is_whole), "tables of other rows");
    assert!(types.is_none() || batch.n_token_types() == m, "types of other tokens");
    let ptr = |table: Option<&Tensor<Cuda>>| table.map_or(DevicePtr::NULL, Tensor::ptr);
    let rows = |table: Option<&Tensor<Cuda>>| table.map_or(0, |t| t.rows() as u32);
    let args = NormEmbeddedArgs {
        x: x.ptr(),
        positions: ptr(positions),
        position_of: batch.positions(),
        types: ptr(types),
        type_of: batch.token_types(),
        weight: norm.weight.ptr(),
        bias: ptr(norm.bias.as_ref()),
        m: m as u32,
        n: n as u32,
        n_positions: rows(positions),
        n_types: rows(types),
        layer: u32::from(norm.kind == NormKind::Layer),
        eps: norm.eps,
    };
    let kernels = cuda.room::<Kernels>();
    let f = for_len(n, [kernels.norm_embedded_768, kernels.norm_embedded_1024, kernels.norm_embedded_2048]);
    // SAFETY: x, the tables, the norm and its bias have n columns, the kernel keeps to the tables' rows, and the batch has a position, and
    // a type where there are types, for each of the m rows.
    unsafe { cuda.launch(f, [m.div_ceil(4), 1, 1], 128, &args) }
}

/// `y = tiles`, where [`norm_sum`] has not written both.
pub(in crate::cuda) fn read_tiles(cuda: &Cuda, y: &mut Tensor<Cuda>, tiles: Tiles) -> Result<()> {
    if tiles.layout != TileLayout::GemmHalf {
        return Ok(());
    }
    let (m, n) = (y.rows(), y.row_len());
    assert!(n.is_multiple_of(8) && m <= tiles.rows, "{tiles:?} to {y:?}");
    let args =
        ReadTilesArgs { y: y.ptr(), tiles: tiles.ptr, m: m as u32, n: n as u32, n_rows: tiles.rows as u32 };
    // SAFETY: y has m rows of n columns, and the tiles were made for as many.
    unsafe { cuda.launch(cuda.room::<Kernels>().read_tiles, [m.div_ceil(8), 1, 1], 256, &args) }
}

/// `y += norm(x)`
pub(in crate::cuda) fn add_norm(
    cuda: &Cuda,
    y: &mut Tensor<Cuda>,
    x: &Tensor<Cuda>,
    post_norm: &Norm<Cuda>,
) -> Result<()> {
    assert_eq!(y.shape(), x.shape());
    norm(cuda, y.ptr(), x, post_norm, true)
}
