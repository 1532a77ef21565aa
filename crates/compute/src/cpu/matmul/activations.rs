//! The activations of a matmul, in the layout that a kernel needs: floats, BF16 pairs, BF16 lines, or 8-bit integers with scales.
//!
//! Rows are cut into tiles of at most [`TILE`]; inside a tile the rows of one block of elements lie side by side, so that a kernel
//! walks one stream. A row's layout depends on that row alone.

use crate::cpu::isa::Isa;
use crate::cpu::memory::Line;
use crate::cpu::simd::{Kernel, LANES, Simd, dispatch};
use crate::cpu::threads::Pool;
use std::ops::Range;

/// Most rows of a tile: a few bands.
pub(super) const TILE: usize = 3 * BAND;

/// Rows that a kernel for plain numbers multiplies together: as many as 32 registers have room for two sums of each. Each band of a
/// tile is one stream.
pub(super) const BAND: usize = 12;

/// What a kernel wants activations as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ActivationLayout {
    /// `f32`, in bands of [`BAND`] rows: [n_in, BAND] each, the rows left over [n_in, rest]
    F32,
    /// Pairs of BF16 in bands: [n_in / 2, BAND] each, the rows left over [n_in / 2, rest]
    Bf16,
    /// Lines of 32 BF16: [n_in / 32, rows], the last filled with zeros
    Bf16Lines,
    /// `i8` [n_in / 32, rows, 32] with a scale for each block of 32
    Int8Block32,
    /// `i8` [n_in / 32, rows, 32] with a scale for each block of 256
    Int8Block256,
}

impl ActivationLayout {
    pub(super) fn is_int8(self) -> bool {
        matches!(self, ActivationLayout::Int8Block32 | ActivationLayout::Int8Block256)
    }
}

/// Buffers for the layouts of one input; reused from matmul to matmul, they grow and never shrink.
#[derive(Default)]
pub struct Activations {
    rows: TiledRows,
    f32: Prepared,
    bf16: Prepared,
    bf16_lines: Prepared,
    int8_block32: Prepared,
    int8_block256: Prepared,
}

/// How the rows of a result are cut into tiles.
#[derive(Default)]
pub(super) struct TiledRows {
    /// The row of the input that each prepared row is.
    sources: Vec<u32>,
    /// In the order of the result's rows.
    pub(super) tiles: Vec<TileRows>,
}

/// Rows of a result that kernels multiply together.
#[derive(Clone, Copy)]
pub(super) struct TileRows {
    /// The first row of the result.
    pub(super) first: usize,
    /// Number of rows, 1 to [`TILE`].
    pub(super) n: usize,
    /// Where the prepared rows begin.
    at: usize,
}

impl TiledRows {
    fn clear(&mut self) {
        self.sources.clear();
        self.tiles.clear();
    }

    /// Cuts rows `rows` of the result, which are made of the rows of the input that `source` names, and returns their tiles. Tiles of the
    /// same rows of the input as the one before, as of a single token's experts, share what is prepared.
    fn push(&mut self, rows: Range<usize>, source: impl Fn(usize) -> u32) -> Range<usize> {
        let first_tile = self.tiles.len();
        for first in rows.clone().step_by(TILE) {
            let n = TILE.min(rows.end - first);
            let same =
                self.tiles.last().copied().filter(|last| {
                    last.n == n && (0..n).all(|r| self.sources[last.at + r] == source(first + r))
                });
            let at = same.map_or(self.sources.len(), |last| last.at);
            if same.is_none() {
                self.sources.extend((first..first + n).map(&source));
            }
            self.tiles.push(TileRows { first, n, at });
        }
        first_tile..self.tiles.len()
    }

    /// The tile of prepared row `row`.
    fn tile_of(&self, row: usize) -> TileRows {
        self.tiles[self.tiles.partition_point(|tile| tile.at <= row) - 1]
    }
}

/// All rows of an input in one layout; tiles one after the other.
#[derive(Default)]
pub(super) struct Prepared {
    n_in: usize,
    floats: Vec<f32>,
    pairs: Vec<u32>,
    lines: Vec<Line>,
    q: Vec<i8>,
    scales: Vec<f32>,
    offsets: [Vec<i32>; 4],
}

/// A tile of rows in one layout, or a slice of its columns; fields that the layout does not have are empty. Made by [`Prepared::tile`] alone,
/// so that its fields have the sizes that they should.
#[derive(Clone, Copy)]
pub(super) struct Tile<'a> {
    pub(super) layout: ActivationLayout,
    /// Number of columns.
    pub(super) n_in: usize,
    /// Number of rows, 1 to [`TILE`].
    pub(super) rows: usize,
    /// [`ActivationLayout::F32`]: [n_in, BAND] for each band of rows
    pub(super) floats: &'a [f32],
    /// [`ActivationLayout::Bf16`]: [n_in / 2, BAND] for each band of rows; the earlier number in the low half.
    pub(super) pairs: &'a [u32],
    /// [`ActivationLayout::Bf16Lines`]: [n_in / 32, rows]
    pub(super) lines: &'a [Line],
    /// [n_in / 32, rows, 32]; values in -127..=127
    pub(super) q: &'a [i8],
    /// [n_in / 32, rows] or [n_in / 256, rows]
    pub(super) scales: &'a [f32],
    /// What integer sums start from or subtract, for weights that are stored with a zero point.
    ///
    /// [`ActivationLayout::Int8Block32`]: -128, -8 and -64 times the sum of each block, [n_in / 32, rows] each; -16 times the sums of half
    /// blocks, [n_in / 16, rows].
    /// [`ActivationLayout::Int8Block256`]: the sums of blocks of 32 as pairs of `i16`, [n_in / 256, rows, 4], those of blocks 0 and 2, 1 and 3, 4 and 6, 5 and 7; -32 and -64 times the sums of
    /// blocks of 16, [n_in / 16, rows] both; the sums of blocks of 16 as pairs of `i16`, [n_in / 256, rows, 8].
    pub(super) offsets: [&'a [i32]; 4],
}

/// Numbers per row of a layout's arrays: floats, pairs, lines, q, scales, four kinds of offsets.
fn sizes(layout: ActivationLayout, n_in: usize) -> [usize; 9] {
    match layout {
        ActivationLayout::F32 => [n_in, 0, 0, 0, 0, 0, 0, 0, 0],
        ActivationLayout::Bf16 => [0, n_in.div_ceil(2), 0, 0, 0, 0, 0, 0, 0],
        ActivationLayout::Bf16Lines => [0, 0, n_in.div_ceil(32), 0, 0, 0, 0, 0, 0],
        ActivationLayout::Int8Block32 => {
            [0, 0, 0, n_in, n_in / 32, n_in / 32, n_in / 32, n_in / 32, n_in / 16]
        }
        ActivationLayout::Int8Block256 => {
            [0, 0, 0, n_in, n_in / 256, n_in / 64, n_in / 16, n_in / 16, n_in / 32]
        }
    }
}

impl Activations {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins with another input.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Adds rows of the result, which follow those before, and returns their tiles; see [`TiledRows::push`].
    pub(super) fn push(&mut self, rows: Range<usize>, source: impl Fn(usize) -> u32) -> Range<usize> {
        self.rows.push(rows, source)
    }

    /// The tiles of all rows.
    pub(super) fn tiles(&self) -> &[TileRows] {
        &self.rows.tiles
    }

    /// Converts the rows of `x` `[.., n_in]` that were pushed into one layout.
    pub(super) fn prepare(
        &mut self,
        layout: ActivationLayout,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        n_in: usize,
    ) {
        let rows = std::mem::take(&mut self.rows);
        self.slot(layout).fill(layout, isa, pool, x, n_in, &rows);
        self.rows = rows;
    }

    /// What [`Activations::prepare`] last made in this layout.
    pub(super) fn get(&self, layout: ActivationLayout) -> &Prepared {
        match layout {
            ActivationLayout::F32 => &self.f32,
            ActivationLayout::Bf16 => &self.bf16,
            ActivationLayout::Bf16Lines => &self.bf16_lines,
            ActivationLayout::Int8Block32 => &self.int8_block32,
            ActivationLayout::Int8Block256 => &self.int8_block256,
        }
    }

    fn slot(&mut self, layout: ActivationLayout) -> &mut Prepared {
        match layout {
            ActivationLayout::F32 => &mut self.f32,
            ActivationLayout::Bf16 => &mut self.bf16,
            ActivationLayout::Bf16Lines => &mut self.bf16_lines,
            ActivationLayout::Int8Block32 => &mut self.int8_block32,
            ActivationLayout::Int8Block256 => &mut self.int8_block256,
        }
    }
}

impl Prepared {
    /// Columns `columns` of a tile. Part of the columns can be had of 8-bit forms, from the start of a block to the end of one.
    pub(super) fn tile(&self, layout: ActivationLayout, tile: TileRows, columns: Range<usize>) -> Tile<'_> {
        assert!(layout.is_int8() || columns == (0..self.n_in), "{layout:?} {columns:?} of {}", self.n_in);
        let TileRows { n: rows, at: first, .. } = tile;
        let all = sizes(layout, self.n_in);
        let before = sizes(layout, columns.start);
        let n = sizes(layout, columns.len());
        let range = |i: usize| {
            let start = first * all[i] + rows * before[i];
            start..start + rows * n[i]
        };
        Tile {
            layout,
            n_in: columns.len(),
            rows,
            floats: &self.floats[range(0)],
            pairs: &self.pairs[range(1)],
            lines: &self.lines[range(2)],
            q: &self.q[range(3)],
            scales: &self.scales[range(4)],
            offsets: std::array::from_fn(|o| &self.offsets[o][range(5 + o)]),
        }
    }

    fn fill(
        &mut self,
        layout: ActivationLayout,
        isa: Isa,
        pool: &Pool,
        x: &[f32],
        n_in: usize,
        rows: &TiledRows,
    ) {
        self.n_in = n_in;
        let (m, n) = (rows.sources.len(), sizes(layout, n_in));
        self.floats.resize(m * n[0], 0.0);
        self.pairs.resize(m * n[1], 0);
        self.lines.resize(m * n[2], Line::ZERO);
        self.q.resize(m * n[3], 0);
        self.scales.resize(m * n[4], 0.0);
        self.offsets.iter_mut().zip(&n[5..]).for_each(|(offsets, n)| offsets.resize(m * n, 0));
        let out = Out {
            floats: self.floats.as_mut_ptr(),
            pairs: self.pairs.as_mut_ptr(),
            lines: self.lines.as_mut_ptr(),
            q: self.q.as_mut_ptr(),
            scales: self.scales.as_mut_ptr(),
            offsets: self.offsets.each_mut().map(Vec::as_mut_ptr),
        };
        // Below some ten thousand elements the conversion takes less time than waking the others.
        let chunk = (16_384 / n_in.max(1)).max(1);
        pool.for_each_chunk(m, chunk, |range| {
            for i in range {
                let (tile, source) = (rows.tile_of(i), rows.sources[i] as usize);
                let row = Row {
                    x: &x[source * n_in..][..n_in],
                    layout,
                    r: i - tile.at,
                    rows: tile.n,
                    out: out.tile(tile.at, n),
                };
                // SAFETY: `isa` is available (checked when the weight was made); the buffers have room for `rows` rows
                // from `first` on, of which this call writes row r only, and no other call writes that row.
                unsafe { dispatch(isa, row) }
            }
        });
    }
}

/// Where a tile's numbers go.
#[derive(Clone, Copy)]
struct Out {
    floats: *mut f32,
    pairs: *mut u32,
    lines: *mut Line,
    q: *mut i8,
    scales: *mut f32,
    offsets: [*mut i32; 4],
}

// SAFETY: rows are written by one thread each, to addresses that no other row has.
unsafe impl Sync for Out {}

impl Out {
    /// The tile that starts at row `first`; `n` as in [`sizes`].
    fn tile(&self, first: usize, n: [usize; 9]) -> Self {
        Self {
            floats: self.floats.wrapping_add(first * n[0]),
            pairs: self.pairs.wrapping_add(first * n[1]),
            lines: self.lines.wrapping_add(first * n[2]),
            q: self.q.wrapping_add(first * n[3]),
            scales: self.scales.wrapping_add(first * n[4]),
            offsets: std::array::from_fn(|o| self.offsets[o].wrapping_add(first * n[5 + o])),
        }
    }
}

/// Conversion of one row into its place in a tile.
struct Row<'a> {
    x: &'a [f32],
    layout: ActivationLayout,
    /// Number of the row in its tile.
    r: usize,
    /// Rows of the tile.
    rows: usize,
    out: Out,
}

impl Kernel for Row<'_> {
    const USES_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Row { x, r, rows, out, .. } = self;
        // SAFETY: the tile has room for `rows` rows of `x.len()` elements, and r < rows.
        unsafe {
            match self.layout {
                ActivationLayout::F32 => {
                    let (start, step) = band(r, rows, x.len());
                    for (k, &x) in x.iter().enumerate() {
                        *out.floats.add(start + k * step) = x;
                    }
                }
                ActivationLayout::Bf16 => {
                    let (start, step) = band(r, rows, x.len().div_ceil(2));
                    let (pairs, odd) = x.as_chunks::<2>();
                    for (k, &[a, b]) in pairs.iter().enumerate() {
                        *out.pairs.add(start + k * step) = to_bf16(a) | to_bf16(b) << 16;
                    }
                    if let [last] = odd {
                        *out.pairs.add(start + pairs.len() * step) = to_bf16(*last);
                    }
                }
                ActivationLayout::Bf16Lines => {
                    for (k, x) in x.chunks(32).enumerate() {
                        let mut line = [0.0; 32];
                        line[..x.len()].copy_from_slice(x);
                        let to = out.lines.add(k * rows + r).cast::<u8>();
                        S::store_bf16(to, S::load_f32(line.as_ptr()));
                        S::store_bf16(to.add(32), S::load_f32(line[LANES..].as_ptr()));
                    }
                }
                ActivationLayout::Int8Block32 => {
                    for (b, block) in x.as_chunks::<32>().0.iter().enumerate() {
                        let (scale, inverse) = scale_of(max_bits(block));
                        let at = b * rows + r;
                        let sums = quantize(out.q.add(at * 32), block, inverse);
                        let sum = sums[0] + sums[1];
                        *out.scales.add(at) = scale;
                        *out.offsets[0].add(at) = -128 * sum;
                        *out.offsets[1].add(at) = -8 * sum;
                        *out.offsets[2].add(at) = -64 * sum;
                        for (half, sum) in sums.into_iter().enumerate() {
                            *out.offsets[3].add((2 * b + half) * rows + r) = -16 * sum;
                        }
                    }
                }
                ActivationLayout::Int8Block256 => {
                    for (b, block) in x.as_chunks::<256>().0.iter().enumerate() {
                        let (scale, inverse) = scale_of(max_bits(block));
                        *out.scales.add(b * rows + r) = scale;
                        let mut sums = [0; 8];
                        for (j, sub) in block.as_chunks::<32>().0.iter().enumerate() {
                            let two = quantize(out.q.add(((8 * b + j) * rows + r) * 32), sub, inverse);
                            *out.offsets[1].add((16 * b + 2 * j) * rows + r) = -32 * two[0];
                            *out.offsets[1].add((16 * b + 2 * j + 1) * rows + r) = -32 * two[1];
                            *out.offsets[2].add((16 * b + 2 * j) * rows + r) = -64 * two[0];
                            *out.offsets[2].add((16 * b + 2 * j + 1) * rows + r) = -64 * two[1];
                            *out.offsets[3].add((b * rows + r) * 8 + j) = two[0] & 0xffff | two[1] << 16;
                            sums[j] = two[0] + two[1];
                        }
                        for p in 0..4 {
                            let first = p / 2 * 4 + p % 2;
                            *out.offsets[0].add((b * rows + r) * 4 + p) =
                                sums[first] & 0xffff | sums[first + 2] << 16;
                        }
                    }
                }
            }
        }
    }
}

/// Where row `r` of a tile of `rows` rows starts in its band, and how far its steps are apart.
#[inline(always)]
pub(super) fn band(r: usize, rows: usize, n_steps: usize) -> (usize, usize) {
    let (first, within) = (r / BAND * BAND, r % BAND);
    (first * n_steps + within, BAND.min(rows - first))
}

/// Rounds to BF16, ties to even; NaN stays NaN.
#[inline(always)]
fn to_bf16(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if x.is_nan() { bits >> 16 | 0x40 } else { rounded }
}

/// The bits of the greatest magnitude. As integers, infinities lie above all numbers and NaN above infinities, so that
/// neither gets lost.
#[inline(always)]
fn max_bits(x: &[f32]) -> u32 {
    let mut max = [0; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for (max, x) in max.iter_mut().zip(x) {
            *max = (*max).max(x.to_bits() & 0x7fff_ffff);
        }
    }
    max.into_iter().fold(0, u32::max)
}

/// Scale of a block whose greatest magnitude has these bits, and the factor that takes it to 127.
#[inline(always)]
fn scale_of(max_bits: u32) -> (f32, f32) {
    let scale = f32::from_bits(max_bits) / 127.0;
    let inverse = 1.0 / scale;
    // A block of zeros, or of numbers whose inverse is out of range, counts as zero.
    if inverse.is_infinite() { (0.0, 0.0) } else { (scale, inverse) }
}

/// Rounds 32 numbers to integers, ties to even, and returns the sums of the two halves.
///
/// # Safety
/// `q` is writable for 32 bytes.
#[inline(always)]
unsafe fn quantize(q: *mut i8, x: &[f32; 32], inverse: f32) -> [i32; 2] {
    // Adding 1.5 · 2²³ leaves the rounded integer in the low bits of the sum.
    const MAGIC: f32 = 12_582_912.0;
    let mut bytes = [0_i8; 32];
    for i in 0..32 {
        bytes[i] = (x[i] * inverse + MAGIC).to_bits() as i8;
    }
    // SAFETY: 32 writable bytes, and bytes have no alignment (the contract).
    unsafe { q.cast::<[i8; 32]>().write_unaligned(bytes) }
    let mut sums = [0; 2];
    for i in 0..16 {
        sums[0] += i32::from(bytes[i]);
        sums[1] += i32::from(bytes[16 + i]);
    }
    sums
}
