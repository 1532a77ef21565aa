//! Launches of products of many rows of activations on the tensor cores.
//!
//! Both operands are of one kind. Hopper multiplies packed weights in 8 bits, with a scale for each 256 columns of a row on both sides.
//! Else they have 16: BF16 where the weights are, and half precision for all others, which keeps 11 bits of what a quantized weight
//! stands for, eight times finer than BF16; rows of activations in half precision have a power of two each. Weights are decoded in slabs,
//! or read where they are if they lie as the kernel wants them.

use super::Cuda;
use super::driver::{BoxMap, Boxes, DevicePtr, Driver, Function};
use super::elementwise;
use super::matmul::{self, Way};
use super::matrix::{Layout, Matrix, Part};
use super::matvec::Epilogue;
use crate::{Activation, DType, Norm, NormKind, Result, Tensor};

/// Elements of the largest slab of weights that is decoded at once. Hopper's GPUs have memory for whole matrices, which fill
/// their last wave of blocks best.
fn slab_len(driver: &dyn Driver) -> usize {
    if driver.is_hopper() { 124 << 20 } else { 60 << 20 }
}

/// The types that are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    F16,
    BF16,
    Int8,
}

impl Number {
    pub(super) const ALL: [Self; 3] = [Self::F16, Self::BF16, Self::Int8];

    /// As kernels' names have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::F16 => "Half",
            Self::BF16 => "Bfloat",
            Self::Int8 => "Int8",
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// What a block computes, and with which instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    pub(super) rows: usize,
    pub(super) outs: usize,
    /// Whether it is for Hopper only.
    pub(super) hopper: bool,
}

/// The tiles that the kernels are compiled for.
pub(super) const TILES: [Tile; 6] = [
    Tile { rows: 128, outs: 256, hopper: false },
    Tile { rows: 128, outs: 128, hopper: false },
    Tile { rows: 64, outs: 128, hopper: false },
    Tile { rows: 128, outs: 256, hopper: true },
    Tile { rows: 128, outs: 192, hopper: true },
    Tile { rows: 128, outs: 128, hopper: true },
];

/// How fast the blocks of each tile are on an H200, once they fill it: blocks of a multiprocessor, and TFLOP/s with 16 bits and with 8.
#[rustfmt::skip]
const SPEEDS: [(usize, f64, Option<f64>); 6] = [
    (1, 290.0, None), (2, 310.0, None), (2, 250.0, None),
    (1, 700.0, Some(1200.0)), (1, 685.0, Some(1110.0)), (1, 665.0, Some(1090.0)),
];

impl Tile {
    /// Four stages of 32 elements of each row, or as many stages of 64 as fit 200 KiB, from a multiple of 1024 bytes on.
    pub(super) const fn shared_bytes(self) -> usize {
        let stage = 64 * 2 * (self.rows + self.outs);
        match self.hopper {
            false => 2 * stage,
            true => (200 << 10) / stage * stage + 1024,
        }
    }

    /// Threads of a block; on Hopper those that compute and those that copy.
    const fn threads(self) -> u32 {
        if self.hopper { 384 } else { 256 }
    }

    /// Blocks of a launch over so many tiles of rows and of outputs. On Hopper a block goes through tiles until all are done.
    fn blocks(self, driver: &dyn Driver, rows: usize, outs: usize) -> [usize; 3] {
        match self.hopper {
            false => [rows, outs, 1],
            true => [(rows * outs).min(driver.n_multiprocessors() as usize), 1, 1],
        }
    }

    /// Name of the kernel for a type, where there is one.
    pub(super) fn kernel(self, number: Number) -> Option<String> {
        self.speed(number)?;
        let hopper = if self.hopper { "hopper_" } else { "" };
        Some(format!("gemm_{hopper}{}_{}x{}", number.name(), self.rows, self.outs))
    }

    /// Blocks of a multiprocessor, and TFLOP/s.
    fn speed(self, number: Number) -> Option<(usize, f64)> {
        let (blocks, of_halves, of_bytes) = SPEEDS[TILES.iter().position(|&t| t == self)?];
        Some((blocks, if number == Number::Int8 { of_bytes? } else { of_halves }))
    }
}

#[derive(Clone, Copy)]
#[repr(C)]
struct ActivationArgs {
    y: DevicePtr,
    scales: DevicePtr,
    x: DevicePtr,
    weight: DevicePtr,
    bias: DevicePtr,
    n: u32,
    n_rows: u32,
    layer: u32,
    eps: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct WeightArgs {
    y: DevicePtr,
    scales: DevicePtr,
    w: DevicePtr,
    codebook: DevicePtr,
    row_bytes: u64,
    n: u32,
    n_rows: u32,
    first_row: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Args {
    y: DevicePtr,
    x: DevicePtr,
    x_scales: DevicePtr,
    w: DevicePtr,
    w_scales: DevicePtr,
    up: DevicePtr,
    up_scales: DevicePtr,
    bias: DevicePtr,
    k: u32,
    n_out: u32,
    m: u32,
    y_stride: u32,
    epilogue: u32,
    activation: u32,
    x_rows: u32,
    w_rows: u32,
}

/// The same on Hopper, with the matrices whose rows the copy engine brings as boxes, and whether y has tiles.
#[derive(Clone, Copy)]
#[repr(C)]
struct HopperArgs {
    of_all: Args,
    boxes: WeightBoxes,
    to_tiles: u32,
    maps: [BoxMap; MAX_MATRICES],
}

/// How many matrices' rows come as boxes, and the first row of each among a product's outputs. A gate's ups come after it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct WeightBoxes {
    n_matrices: u32,
    first_rows: [u32; MAX_MATRICES],
}

/// Matrices that a product can have rows of: queries', keys' and values'.
const MAX_MATRICES: usize = 3;

/// Activations or weights as the kernel reads them.
#[derive(Clone, Copy)]
struct Operand {
    numbers: DevicePtr,
    /// Of rows in half precision, or of tiles of 8 bits; else null.
    scales: DevicePtr,
}

impl Operand {
    const NONE: Self = Self { numbers: DevicePtr::NULL, scales: DevicePtr::NULL };
}

/// What a product reads.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// Floats, which are normalized first where a norm is given.
    Floats(DevicePtr, Option<&'a Norm<Cuda>>),
    /// Tiles, as the product wants them.
    Tiles(DevicePtr),
}

/// Where an operation puts its result.
#[derive(Clone, Copy)]
pub(super) enum Output {
    Floats(DevicePtr),
    /// Tiles, as the product wants them that reads them: `gemm` those of BF16.
    Tiles(DevicePtr),
}

impl Output {
    pub(super) fn ptr(self) -> DevicePtr {
        match self {
            Self::Floats(y) | Self::Tiles(y) => y,
        }
    }

    /// Rows of tiles for `m` rows; 0 where there are none.
    pub(super) fn tile_rows(self, m: usize) -> usize {
        match self {
            Self::Floats(_) => 0,
            Self::Tiles(_) => Places::Tiled.rows(m),
        }
    }

    /// From output `first` on, a multiple of a tile's columns.
    fn after(self, first: usize, m: usize) -> Self {
        match self {
            Self::Floats(y) => Self::Floats(y.offset(4 * first)),
            Self::Tiles(y) => Self::Tiles(y.offset(2 * first * self.tile_rows(m))),
        }
    }
}

/// `x`'s memory as tiles of BF16, if the product of these matrices and its rows would round them to BF16 anyway, or to less.
pub(super) fn tiles_for(cuda: &Cuda, w: &Matrix, x: &Tensor<Cuda>) -> Option<DevicePtr> {
    let (m, n) = (x.rows(), x.row_len());
    let is_read = matches!(matmul::way(cuda, w, m), Way::Gemm)
        && w.parts.iter().all(|p| number(cuda, p) != Number::F16)
        && n.is_multiple_of(LINE / 2);
    let fits = Places::Tiled.bytes(Number::BF16, m, n) <= 4 * m * n;
    (cuda.driver.is_hopper() && is_read && fits).then(|| x.ptr())
}

/// Whether these kernels multiply with such a matrix. F32 weights have no place in 16 bits.
pub(super) fn can(cuda: &Cuda, w: &Matrix) -> bool {
    !cuda.exact && w.n_experts == 1 && w.n_in > 0 && w.parts.iter().all(|p| p.dtype != DType::F32)
}

/// Outputs that one launch computes: of parts that follow one another, `len` from `first` on.
#[derive(Clone, Copy)]
struct Span<'a> {
    parts: &'a [Part],
    first: usize,
    len: usize,
}

impl<'a> Span<'a> {
    fn all(parts: &'a [Part]) -> Self {
        Self { parts, first: 0, len: parts.iter().map(|p| p.n_out).sum() }
    }

    /// `len` of its outputs from `first` on.
    fn part(self, first: usize, len: usize) -> Self {
        Self { first: self.first + first, len, ..self }
    }

    /// The rows of the only part that has these outputs, if they lie as a kernel reads them.
    fn in_place(self, n_in: usize) -> Option<DevicePtr> {
        let (part, first, len, _) = self.pieces().next()?;
        (len == self.len && is_in_place(part, n_in))
            .then(|| part.weights.ptr().offset(first * part.row_bytes))
    }

    /// Of each part that has some of the outputs: the first of its own, how many, and where they are among these.
    fn pieces(self) -> impl Iterator<Item = (&'a Part, usize, usize, usize)> {
        let start = self.parts[0].first_out + self.first;
        self.parts.iter().filter_map(move |p| {
            let from = start.max(p.first_out);
            let to = (start + self.len).min(p.first_out + p.n_out);
            (from < to).then(|| (p, from - p.first_out, to - from, from - start))
        })
    }
}

/// `x` [m, n_in] times the matrix into `y` [m, n_out], or for a gate [m, n_out / 2].
///
/// For a gate the matrix is one part, or a gate's and its up's, as [`can_gate`] says; else `y` is floats.
pub(super) fn matmul(
    cuda: &Cuda,
    y: Output,
    x: Input<'_>,
    w: &Matrix,
    bias: Option<&Tensor<Cuda>>,
    m: usize,
    epilogue: Epilogue,
) -> Result<()> {
    if let Input::Floats(_, Some(norm)) = x {
        assert_eq!(norm.weight.len(), w.n_in);
        assert!(norm.bias.as_ref().is_none_or(|b| b.len() == w.n_in), "a bias for {} elements", w.n_in);
    }
    let hopper = cuda.driver.is_hopper();
    let layout = if hopper { Places::Tiled } else { Places::Rows };
    let mut rows = [None; Number::ALL.len()];
    let mut product = |span: Span<'_>, up: Option<Span<'_>>, y: Output, bias: DevicePtr, y_stride| {
        let number = number(cuda, &span.parts[0]);
        let n_outs = |n: usize| if up.is_some() { 2 * n } else { n };
        let to_tiles = matches!(y, Output::Tiles(_));
        let tile = choose_tile(&*cuda.driver, number, m, n_outs(span.len), to_tiles);
        let x = match rows[number as usize] {
            Some(rows) => rows,
            None => *rows[number as usize].insert(activations(cuda, number, layout, x, m, w.n_in)?),
        };
        let is_there = |span: Span<'_>| span.in_place(w.n_in).is_some();
        let boxes = if hopper { boxes(cuda, tile, span, up, w.n_in)? } else { None };
        let in_place = boxes.is_some() || !hopper && is_there(span) && up.is_none_or(is_there);
        let per_slab = (slab_len(&*cuda.driver) / n_outs(w.n_in)).next_multiple_of(128);
        let step = if in_place { span.len } else { per_slab.min(span.len) };
        for first in (0..span.len).step_by(step.max(1)) {
            let n = step.min(span.len - first);
            let slab = |names, span: Option<Span<'_>>| match span {
                Some(span) if boxes.is_none() => {
                    weights(cuda, names, number, layout, span.part(first, n), w.n_in, in_place)
                }
                _ => Ok(Operand::NONE),
            };
            let (slab, up_slab) = (slab(&SLABS[0], Some(span))?, slab(&SLABS[1], up)?);
            let args = Args {
                y: y.after(first, m).ptr(),
                x: x.numbers,
                x_scales: x.scales,
                w: slab.numbers,
                w_scales: slab.scales,
                up: up_slab.numbers,
                up_scales: up_slab.scales,
                bias: if bias == DevicePtr::NULL { bias } else { bias.offset(4 * first) },
                k: layout.padded(number, w.n_in) as u32,
                n_out: n as u32,
                m: m as u32,
                y_stride,
                epilogue: epilogue.code(),
                activation: match epilogue {
                    Epilogue::Gate(f) => elementwise::code(f),
                    _ => 0,
                },
                x_rows: layout.rows(m) as u32,
                w_rows: layout.rows(n) as u32,
            };
            let outs = if up.is_some() { tile.outs / 2 } else { tile.outs };
            let blocks = tile.blocks(&*cuda.driver, m.div_ceil(tile.rows), n.div_ceil(outs));
            let f = cuda.kernels.of_tile(number, tile);
            let shared = tile.shared_bytes();
            if !tile.hopper {
                // SAFETY: x and the weights are padded rows of k elements, of which there are m and n; y and the bias as the callers
                // checked.
                unsafe { cuda.launch_shared(f, blocks, tile.threads(), shared, &args)? };
                continue;
            }
            let (boxes, maps) = boxes.unwrap_or((WeightBoxes::default(), [BoxMap([0; 16]); MAX_MATRICES]));
            let args = HopperArgs { of_all: args, boxes, to_tiles: u32::from(to_tiles), maps };
            // SAFETY: as above, where operands are not rows but tiles, or weights boxes of rows.
            unsafe { cuda.launch_shared(f, blocks, tile.threads(), shared, &args)? };
        }
        Ok(())
    };
    if let Epilogue::Gate(_) = epilogue {
        let half = w.n_out / 2;
        let both = Span::all(&w.parts);
        return product(both.part(0, half), Some(both.part(half, half)), y, DevicePtr::NULL, half as u32);
    }
    // Parts of one kind are multiplied together, so that one launch has blocks for the whole device. Other GPUs multiply each by itself
    // that can be used in place.
    let mut left = &w.parts[..];
    while let Some(part) = left.first() {
        let in_place = |p: &Part| !hopper && is_in_place(p, w.n_in);
        let alike =
            left.iter().take_while(|p| number(cuda, p) == number(cuda, part) && !in_place(p)).count().max(1);
        let span = Span::all(&left[..alike]);
        left = &left[alike..];
        let bias = bias.map_or(DevicePtr::NULL, |b| b.ptr().offset(4 * part.first_out));
        product(span, None, y.after(part.first_out, m), bias, w.n_out as u32)?;
    }
    Ok(())
}

/// Whether the first half of a matrix's outputs can be the gate of the second in one launch.
pub(super) fn can_gate(cuda: &Cuda, w: &Matrix) -> bool {
    w.halves().is_some_and(|[(gate, _), (up, _)]| number(cuda, gate) == number(cuda, up))
}

/// Whether such a gate's outputs can be tiles.
pub(super) fn can_gate_tiles(w: &Matrix, f: Activation) -> bool {
    (w.n_out / 2).is_multiple_of(LINE / 2) && matches!(f, Activation::Silu | Activation::GeluTanh)
}

/// The tile whose blocks are done first: full waves of fast blocks. Those that write tiles have whole ones.
fn choose_tile(driver: &dyn Driver, number: Number, m: usize, n_out: usize, to_tiles: bool) -> Tile {
    let time = |tile: Tile| {
        let (resident, speed) = tile.speed(number)?;
        let blocks = m.div_ceil(tile.rows) * n_out.div_ceil(tile.outs);
        let waves = blocks.div_ceil(driver.n_multiprocessors() as usize * resident);
        Some((waves * resident * tile.rows * tile.outs) as f64 / speed)
    };
    let can = |t: &Tile| t.hopper == driver.is_hopper() && (!to_tiles || t.outs.is_multiple_of(LINE));
    let there = TILES.into_iter().filter(can).filter_map(|t| Some((t, time(t)?)));
    let best = there.min_by(|a, b| a.1.total_cmp(&b.1));
    best.expect("each kind of numbers has tiles").0
}

/// What the weights of a part become.
fn number(cuda: &Cuda, part: &Part) -> Number {
    match (part.dtype, part.layout) {
        (DType::BF16, _) => Number::BF16,
        (_, Layout::Packed) if cuda.driver.is_hopper() => Number::Int8,
        _ => Number::F16,
    }
}

/// How operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Places {
    /// Row after row.
    Rows,
    /// As Hopper's tensor cores read them, 128 bytes of all rows after each other.
    Tiled,
}

/// Bytes of a row in a tile.
const LINE: usize = 128;
/// Columns that share a scale of 8 bits.
const SCALED: usize = 256;

impl Places {
    /// Elements of a row with its padding.
    fn padded(self, number: Number, n: usize) -> usize {
        match self {
            Self::Rows => n.next_multiple_of(8),
            Self::Tiled => n.next_multiple_of(if number == Number::Int8 { SCALED } else { LINE / 2 }),
        }
    }

    /// Rows of a tiled operand, which begin at multiples of 1024 bytes; else 0.
    fn rows(self, n: usize) -> usize {
        match self {
            Self::Rows => 0,
            Self::Tiled => n.next_multiple_of(8),
        }
    }

    /// Bytes of `n_rows` rows, and of what a kernel reads past the last and does not use.
    fn bytes(self, number: Number, n_rows: usize, n: usize) -> usize {
        match self {
            Self::Rows => number.bytes() * n_rows * self.padded(number, n),
            Self::Tiled => number.bytes() * self.rows(n_rows) * self.padded(number, n) + 256 * LINE,
        }
    }

    /// The same of the scales of tiles of 8 bits.
    fn scale_bytes(self, n_rows: usize, n: usize) -> usize {
        4 * (self.rows(n_rows) * n.div_ceil(SCALED) + 256)
    }
}

/// Whether the weights lie as the kernel reads them: rows of 16 bits that begin at multiples of 16 bytes.
fn is_in_place(part: &Part, n_in: usize) -> bool {
    matches!(part.dtype, DType::F16 | DType::BF16) && n_in.is_multiple_of(8)
}

fn activations(
    cuda: &Cuda,
    number: Number,
    layout: Places,
    x: Input<'_>,
    m: usize,
    n: usize,
) -> Result<Operand> {
    let purpose = match number {
        Number::F16 => "activations in half precision",
        Number::BF16 => "activations in BF16",
        Number::Int8 => "activations in 8 bits",
    };
    let (x, norm, of_tiles) = match (x, number) {
        (Input::Floats(x, norm), _) => (x, norm, false),
        (Input::Tiles(numbers), Number::BF16) => {
            return Ok(Operand { numbers, scales: DevicePtr::NULL });
        }
        (Input::Tiles(x), Number::Int8) => (x, None, true),
        (Input::Tiles(_), Number::F16) => unreachable!("`tiles_for` refuses these"),
    };
    let y = cuda.scratch.get(&cuda.driver, purpose, layout.bytes(number, m, n))?;
    let scales = match number {
        Number::F16 => cuda.scratch.get(&cuda.driver, "factors of activations", 4 * m)?,
        Number::BF16 => DevicePtr::NULL,
        Number::Int8 => cuda.scratch.get(&cuda.driver, "scales of activations", layout.scale_bytes(m, n))?,
    };
    let pieces = layout.padded(number, n).div_ceil(2048);
    let (f, blocks) = match (number, norm) {
        _ if of_tiles => (cuda.kernels.bfloat_bytes, [m, pieces, 1]),
        (Number::Int8, None) => (cuda.kernels.activation_bytes, [m, pieces, 1]),
        _ => (cuda.kernels.of_activations(number, n), [m, 1, 1]),
    };
    let args = ActivationArgs {
        y,
        scales,
        x,
        weight: norm.map_or(DevicePtr::NULL, |n| n.weight.ptr()),
        bias: norm.and_then(|n| n.bias.as_ref()).map_or(DevicePtr::NULL, Tensor::ptr),
        n: n as u32,
        n_rows: layout.rows(m) as u32,
        layer: u32::from(norm.is_some_and(|n| n.kind == NormKind::Layer)),
        eps: norm.map_or(0.0, |n| n.eps),
    };
    // SAFETY: x has m rows of n numbers, and the scratch memory room for as many of padded numbers and their scales.
    unsafe { cuda.launch(f, blocks, 256, &args)? };
    Ok(Operand { numbers: y, scales })
}

/// The matrices that a product has its weights from, and their descriptions, where they are rows that lie as they are read.
fn boxes(
    cuda: &Cuda,
    tile: Tile,
    span: Span<'_>,
    up: Option<Span<'_>>,
    n_in: usize,
) -> Result<Option<(WeightBoxes, [BoxMap; MAX_MATRICES])>> {
    let box_rows = tile.outs / 2;
    let (mut boxes, mut maps) = (WeightBoxes::default(), [BoxMap([0; 16]); MAX_MATRICES]);
    let starts = [(0, Some(span)), (span.len, up)];
    let pieces = starts
        .iter()
        .flat_map(|&(start, span)| span.into_iter().flat_map(move |s| s.pieces().map(move |p| (start, p))));
    for (start, (part, first, n, at)) in pieces {
        let i = boxes.n_matrices as usize;
        if !is_in_place(part, n_in) || !at.is_multiple_of(box_rows) || i == MAX_MATRICES {
            return Ok(None);
        }
        boxes.first_rows[i] = (start + at) as u32;
        maps[i] = cuda.driver.box_map(Boxes {
            rows: part.weights.ptr().offset(first * part.row_bytes),
            n_rows: n,
            row_bytes: part.row_bytes,
            box_rows,
            spread: false,
            box_bytes: LINE,
            swizzled: true,
        })?;
        boxes.n_matrices += 1;
    }
    Ok(Some((boxes, maps)))
}

/// Scratch memory for decoded weights and their scales, of which a gate's product wants two.
const SLABS: [[&str; 2]; 2] = [
    ["a slab of weights for tensor cores", "its scales"],
    ["a slab of ups for tensor cores", "scales of ups"],
];

/// Rows of weights as the kernel reads them, after they were decoded if need be.
fn weights(
    cuda: &Cuda,
    [slab, scales]: &[&'static str; 2],
    number: Number,
    layout: Places,
    span: Span<'_>,
    n_in: usize,
    in_place: bool,
) -> Result<Operand> {
    if let (true, Some(numbers)) = (in_place, span.in_place(n_in)) {
        return Ok(Operand { numbers, scales: DevicePtr::NULL });
    }
    let y = cuda.scratch.get(&cuda.driver, slab, layout.bytes(number, span.len, n_in))?;
    let scales = match number {
        Number::F16 | Number::BF16 => DevicePtr::NULL,
        Number::Int8 => cuda.scratch.get(&cuda.driver, scales, layout.scale_bytes(span.len, n_in))?,
    };
    for (part, first, len, to) in span.pieces() {
        let args = WeightArgs {
            y,
            scales,
            w: part.weights.ptr().offset(first * part.row_bytes),
            codebook: part.codebook,
            row_bytes: part.row_bytes as u64,
            n: n_in as u32,
            n_rows: layout.rows(span.len) as u32,
            first_row: to as u32,
        };
        let (f, columns): (Function, usize) = match (part.layout, number) {
            (Layout::Blocks, _) => (cuda.kernels.of_type(part.dtype).halves, 1024),
            (Layout::Packed, Number::Int8) => (cuda.kernels.of_packed(part.dtype).bytes, 4096),
            (Layout::Packed, _) => (cuda.kernels.of_packed(part.dtype).halves, 2048),
        };
        let blocks = [len, layout.padded(number, n_in).div_ceil(columns), 1];
        // SAFETY: the part has these rows, and the slab room for them where they go.
        unsafe { cuda.launch(f, blocks, 128, &args)? };
    }
    Ok(Operand { numbers: y, scales })
}
