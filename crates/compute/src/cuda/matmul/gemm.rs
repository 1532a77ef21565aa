//! Launches of products of many rows of activations on the tensor cores.
//!
//! Both operands are of one kind. Hopper multiplies packed weights in 8 bits, with a scale for each 256 columns of a row on both sides.
//! Else they have 16: BF16 where the weights are, and half precision for all others, which keeps 11 bits of what a quantized weight
//! stands for, eight times finer than BF16; rows of activations in half precision have a power of two each. Weights are decoded in slabs,
//! or read where they are if they lie as the kernel wants them.

use super::epilogue::Epilogue;
use super::matrix::Part;
use super::op::Matmul;
use super::shape::{Layout, MatrixShape, PACKED, PartShape, Target};
use crate::cuda::common::{Input, Output, TileLayout, Tiles};
use crate::cuda::driver::{
    BoxMap, Boxes, Cuda, DevicePtr, Driver, Kernel, KernelImage, kernel_args, kernel_image,
};
use crate::quant::QUANTS;
use crate::{Activation, DType, NormKind, Result, Tensor};

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

kernel_args! {
    in "operands_args.cuh";

    struct ActivationArgs {
        /// as `place` says, one row per block
        y: DevicePtr as "uint8_t*",
        /// [m], what each row must be multiplied with; not written for bfloat16; of 8 bits [padded / 256, n_rows]
        scales: DevicePtr as "float*",
        /// [m, n]; of `bfloat_bytes` tiles of n_rows rows
        x: DevicePtr as "const float*",
        /// [n] of the norm that comes before, or null
        weight: DevicePtr as "const float*",
        /// [n] or null
        bias: DevicePtr as "const float*",
        n: u32,
        n_rows: u32,
        /// 1: the norm takes the mean out
        layer: u32,
        eps: f32,
    }

    struct WeightArgs {
        /// as `place` says, from `first_row` on one row per blockIdx.x
        y: DevicePtr as "uint8_t*",
        /// of 8 bits: [padded / 256, n_rows]
        scales: DevicePtr as "float*",
        /// rows of `row_bytes`
        w: DevicePtr as "const uint8_t*",
        codebook: DevicePtr as "const void*",
        row_bytes: u64,
        n: u32,
        n_rows: u32,
        /// a slab may hold rows of several matrices
        first_row: u32,
    }
}

kernel_args! {
    in "gemm_args.cuh";

    struct ProductArgs {
        /// [m, y_stride], and this launch's outputs from 0 on
        y: DevicePtr as "float*",
        /// [m, k], or tiles of x_rows rows
        x: DevicePtr as "const uint8_t*",
        /// [m] factors of the rows, or null; of 8 bits: [k / 256, x_rows]
        x_scales: DevicePtr as "const float*",
        /// [n_out, k], or tiles of w_rows rows
        w: DevicePtr as "const uint8_t*",
        /// of 8 bits: [k / 256, w_rows]
        w_scales: DevicePtr as "const float*",
        /// as w for GATE: what is multiplied with the activated products with w
        up: DevicePtr as "const uint8_t*",
        /// as w_scales
        up_scales: DevicePtr as "const float*",
        /// [n_out] or null
        bias: DevicePtr as "const float*",
        /// a multiple of 8, or of the columns of a tile, or of 256 of 8 bits
        k: u32,
        n_out: u32,
        m: u32,
        y_stride: u32,
        epilogue: u32,
        activation: u32,
        x_rows: u32,
        w_rows: u32,
    }
}

kernel_args! {
    in "gemm_hopper_args.cuh";
    include "../common/hopper.cuh";
    include "gemm_args.cuh";

    /// Matrices that a matmul can have rows of: queries', keys' and values'.
    const MAX_MATRICES: usize = 3;

    /// How many matrices' rows come as boxes, and the first row of each among a product's outputs. A gate's ups come after it.
    struct WeightBoxes {
        n_matrices: u32,
        first_rows: [u32; MAX_MATRICES],
    }

    /// The same on Hopper, with the matrices whose rows the copy engine brings as boxes, and whether y has tiles.
    struct ProductHopperArgs {
        of_all: ProductArgs,
        /// 0: weights are tiles. Else they are rows of 16 bits, of so many matrices one after the other, which the copy engine brings as boxes; a gate's ups come after the gates.
        boxes: WeightBoxes,
        /// Whether a gate's outputs are tiles of BF16 with as many rows as those of x.
        to_tiles: u32,
        maps: [BoxMap; MAX_MATRICES] as "ptx::TensorMap",
    }
}

/// Weights that are tiles.
const NO_BOXES: WeightBoxes = WeightBoxes { n_matrices: 0, first_rows: [0; MAX_MATRICES] };

/// Kernels of gemm.cu and gemm_hopper.cu, in the order of [`TILES`] and [`Number::ALL`]; those that the GPU can run.
pub(in crate::cuda) struct Kernels {
    ampere: Vec<[Option<Kernel<ProductArgs>>; Number::ALL.len()]>,
    hopper: Vec<[Option<Kernel<ProductHopperArgs>>; Number::ALL.len()]>,
}

impl Kernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let ampere = TILES.iter().map(|&t| match t.hopper {
            false => load_tile(driver, kernel_image!(gemm), t),
            true => Ok([None; Number::ALL.len()]),
        });
        let hopper = TILES.iter().map(|&t| match t.hopper && driver.is_hopper() {
            true => load_tile(driver, kernel_image!(gemm_hopper), t),
            false => Ok([None; Number::ALL.len()]),
        });
        Ok(Self { ampere: ampere.collect::<Result<_>>()?, hopper: hopper.collect::<Result<_>>()? })
    }
}

/// A tile's kernels, one for each kind of numbers that it has.
fn load_tile<A>(
    driver: &dyn Driver,
    image: KernelImage,
    tile: Tile,
) -> Result<[Option<Kernel<A>>; Number::ALL.len()]> {
    let kernel = |number| {
        let name = tile.kernel(number);
        name.map(|name| image.kernel(driver, &name, tile.shared_bytes())).transpose()
    };
    let [a, b, c] = Number::ALL.map(kernel);
    Ok([a?, b?, c?])
}

/// The kernel of a tile and a kind of numbers.
fn of_tile<A>(kernels: &[[Option<Kernel<A>>; Number::ALL.len()]], number: Number, tile: Tile) -> Kernel<A> {
    let i = TILES.iter().position(|&t| t == tile).expect("a tile that is compiled");
    kernels[i][number as usize].expect("a tile that the GPU can run")
}

/// Kernels of operands.cu.
pub(in crate::cuda) struct OperandKernels {
    /// In the order of [`Number::ALL`]: for rows of up to 4,096 elements, up to 16,384, and longer ones.
    activations: [[Kernel<ActivationArgs>; 3]; Number::ALL.len()],
    /// To 8 bits where no norm comes before: of floats, and of tiles of BF16.
    activation_bytes: Kernel<ActivationArgs>,
    bfloat_bytes: Kernel<ActivationArgs>,
    /// To 16 bits; indexed by element type.
    blocks: Vec<Kernel<WeightArgs>>,
    /// To 16 bits and to 8, in the order of [`PACKED`].
    packed: Vec<[Kernel<WeightArgs>; 2]>,
}

impl OperandKernels {
    pub(in crate::cuda) fn load(driver: &dyn Driver) -> Result<Self> {
        let image = kernel_image!(operands);
        let activations = |number: Number| {
            let kernel =
                |longest: &str| image.kernel(driver, &format!("activations_{}{longest}", number.name()), 0);
            Ok::<_, crate::Error>([kernel("_4096")?, kernel("_16384")?, kernel("")?])
        };
        let [half, bfloat, int8] = Number::ALL.map(activations);
        let blocks = QUANTS.iter().map(|s| image.kernel(driver, &format!("weights_{}", s.name), 0));
        let packed = PACKED.iter().map(|t| {
            Ok([
                image.kernel(driver, &format!("weights_Packed_{t}"), 0)?,
                image.kernel(driver, &format!("bytes_Packed_{t}"), 0)?,
            ])
        });
        Ok(Self {
            activations: [half?, bfloat?, int8?],
            activation_bytes: image.kernel(driver, "activation_bytes", 0)?,
            bfloat_bytes: image.kernel(driver, "bfloat_bytes", 0)?,
            blocks: blocks.collect::<Result<_>>()?,
            packed: packed.collect::<Result<_>>()?,
        })
    }

    /// To numbers that tensor cores multiply, for rows of `n` elements.
    fn of_activations(&self, number: Number, n: usize) -> Kernel<ActivationArgs> {
        self.activations[number as usize][usize::from(n > 4096) + usize::from(n > 16384)]
    }

    /// To such numbers, and the columns that a block of the kernel converts.
    fn of_weights(&self, part: &PartShape, number: Number) -> (Kernel<WeightArgs>, usize) {
        let packed = || PACKED.iter().position(|&t| t == part.dtype).expect("a packed type");
        match (part.layout, number) {
            (Layout::Blocks, _) => (self.blocks[part.dtype as usize], 1024),
            (Layout::Packed, Number::Int8) => (self.packed[packed()][1], 4096),
            (Layout::Packed, _) => (self.packed[packed()][0], 2048),
        }
    }
}

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

/// `x`'s memory as tiles of BF16, if the product of these matrices and its rows would round them to BF16 anyway, or to less.
pub(super) fn tiles_in(target: &Target, w: &MatrixShape, x: &Tensor<Cuda>) -> Option<Tiles> {
    let (m, n) = (x.rows(), x.row_len());
    let is_read =
        w.parts.iter().all(|p| number(target.hopper, p) != Number::F16) && n.is_multiple_of(LINE / 2);
    let fits = ActivationLayout::Tiled.bytes(Number::BF16, m, n) <= 4 * m * n;
    let rows = ActivationLayout::Tiled.rows(m);
    (target.hopper && is_read && fits).then(|| Tiles { layout: TileLayout::GemmBfloat, ptr: x.ptr(), rows })
}

/// Whether these kernels multiply with such a matrix, or for a `gate` with both halves of its outputs in one launch.
pub(super) fn supports(target: &Target, w: &MatrixShape, gate: bool) -> bool {
    let is_one_launch = || {
        let halves = w.halves().map(|halves| halves.map(|rows| number(target.hopper, &w.parts[rows.part])));
        halves.is_some_and(|[gate, up]| gate == up)
    };
    w.n_experts == 1 && w.n_in > 0 && (!gate || is_one_launch())
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
        Self { parts, first: 0, len: parts.iter().map(|p| p.shape.n_out).sum() }
    }

    /// `len` of its outputs from `first` on.
    fn part(self, first: usize, len: usize) -> Self {
        Self { first: self.first + first, len, ..self }
    }

    /// The rows of the only part that has these outputs, if they lie as a kernel reads them.
    fn in_place(self, n_in: usize) -> Option<DevicePtr> {
        let (part, first, len, _) = self.pieces().next()?;
        (len == self.len && is_in_place(part, n_in))
            .then(|| part.weights.ptr().offset(first * part.shape.row_bytes))
    }

    /// Of each part that has some of the outputs: the first of its own, how many, and where they are among these.
    fn pieces(self) -> impl Iterator<Item = (&'a Part, usize, usize, usize)> {
        let start = self.parts[0].shape.first_out + self.first;
        self.parts.iter().filter_map(move |p| {
            let from = start.max(p.shape.first_out);
            let to = (start + self.len).min(p.shape.first_out + p.shape.n_out);
            (from < to).then(|| (p, from - p.shape.first_out, to - from, from - start))
        })
    }
}

/// `x` [m, n_in] times the matrix into `y` [m, n_out], or for a gate [m, n_out / 2].
///
/// For a gate the matrix is one part, or a gate's and its up's, as [`supports`] says; else `y` is floats.
pub(super) fn matmul(cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
    let Matmul { w, x, y, bias, m, epilogue } = *op;
    if let Input::Floats(_, Some(norm)) = x {
        assert_eq!(norm.weight.len(), w.shape.n_in);
        assert!(
            norm.bias.as_ref().is_none_or(|b| b.len() == w.shape.n_in),
            "a bias for {} elements",
            w.shape.n_in
        );
    }
    let (w, parts) = (&w.shape, &w.parts[..]);
    let hopper = cuda.driver.is_hopper();
    let layout = if hopper { ActivationLayout::Tiled } else { ActivationLayout::Rows };
    let mut rows = [None; Number::ALL.len()];
    let mut product = |span: Span<'_>, up: Option<Span<'_>>, y: Output, bias: DevicePtr, y_stride| {
        let number = number(hopper, &span.parts[0].shape);
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
            let args = ProductArgs {
                y: y.after(first).ptr(),
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
                activation: epilogue.activation_code(),
                x_rows: layout.rows(m) as u32,
                w_rows: layout.rows(n) as u32,
            };
            let outs = if up.is_some() { tile.outs / 2 } else { tile.outs };
            let blocks = tile.blocks(&*cuda.driver, m.div_ceil(tile.rows), n.div_ceil(outs));
            let kernels = cuda.room::<Kernels>();
            let shared = tile.shared_bytes();
            if !tile.hopper {
                let f = of_tile(&kernels.ampere, number, tile);
                // SAFETY: x and the weights are padded rows of k elements, of which there are m and n; y and the bias as the callers
                // checked.
                unsafe { cuda.launch_shared(f, blocks, tile.threads(), shared, &args)? };
                continue;
            }
            let (boxes, maps) = boxes.unwrap_or((NO_BOXES, [BoxMap([0; 16]); MAX_MATRICES]));
            let f = of_tile(&kernels.hopper, number, tile);
            let args = ProductHopperArgs { of_all: args, boxes, to_tiles: u32::from(to_tiles), maps };
            // SAFETY: as above, where operands are not rows but tiles, or weights boxes of rows.
            unsafe { cuda.launch_shared(f, blocks, tile.threads(), shared, &args)? };
        }
        Ok(())
    };
    if let Epilogue::Gate(_) = epilogue {
        let half = w.n_out / 2;
        let both = Span::all(parts);
        return product(both.part(0, half), Some(both.part(half, half)), y, DevicePtr::NULL, half as u32);
    }
    // Parts of one kind are multiplied together, so that one launch has blocks for the whole device. Other GPUs multiply each by itself
    // that can be used in place.
    let mut left = parts;
    while let Some(part) = left.first() {
        let in_place = |p: &Part| !hopper && is_in_place(p, w.n_in);
        let alike = left
            .iter()
            .take_while(|p| number(hopper, &p.shape) == number(hopper, &part.shape) && !in_place(p))
            .count()
            .max(1);
        let span = Span::all(&left[..alike]);
        left = &left[alike..];
        let bias = bias.map_or(DevicePtr::NULL, |b| b.ptr().offset(4 * part.shape.first_out));
        product(span, None, y.after(part.shape.first_out), bias, w.n_out as u32)?;
    }
    Ok(())
}

/// Whether such a gate's outputs can be tiles.
pub(super) fn writes_tiles(w: &MatrixShape, tiles: Tiles, f: Activation) -> bool {
    tiles.layout == TileLayout::GemmBfloat
        && (w.n_out / 2).is_multiple_of(LINE / 2)
        && matches!(f, Activation::Silu | Activation::GeluTanh)
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
fn number(hopper: bool, part: &PartShape) -> Number {
    match (part.dtype, part.layout) {
        (DType::BF16, _) => Number::BF16,
        (_, Layout::Packed) if hopper => Number::Int8,
        _ => Number::F16,
    }
}

/// How operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ActivationLayout {
    /// Row after row.
    Rows,
    /// As Hopper's tensor cores read them, 128 bytes of all rows after each other.
    Tiled,
}

/// Bytes of a row in a tile.
const LINE: usize = 128;
/// Columns that share a scale of 8 bits.
const SCALED: usize = 256;

impl ActivationLayout {
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
    matches!(part.shape.dtype, DType::F16 | DType::BF16) && n_in.is_multiple_of(8)
}

fn activations(
    cuda: &Cuda,
    number: Number,
    layout: ActivationLayout,
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
        (Input::Tiles(tiles), Number::BF16) => {
            return Ok(Operand { numbers: tiles.ptr, scales: DevicePtr::NULL });
        }
        (Input::Tiles(tiles), Number::Int8) => (tiles.ptr, None, true),
        (Input::Tiles(_), Number::F16) => unreachable!("`tiles_in` refuses these"),
    };
    let y = cuda.scratch.get(&cuda.driver, purpose, layout.bytes(number, m, n))?;
    let scales = match number {
        Number::F16 => cuda.scratch.get(&cuda.driver, "factors of activations", 4 * m)?,
        Number::BF16 => DevicePtr::NULL,
        Number::Int8 => cuda.scratch.get(&cuda.driver, "scales of activations", layout.scale_bytes(m, n))?,
    };
    let pieces = layout.padded(number, n).div_ceil(2048);
    let kernels = cuda.room::<OperandKernels>();
    let (f, blocks) = match (number, norm) {
        _ if of_tiles => (kernels.bfloat_bytes, [m, pieces, 1]),
        (Number::Int8, None) => (kernels.activation_bytes, [m, pieces, 1]),
        _ => (kernels.of_activations(number, n), [m, 1, 1]),
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
    let (mut boxes, mut maps) = (NO_BOXES, [BoxMap([0; 16]); MAX_MATRICES]);
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
            rows: part.weights.ptr().offset(first * part.shape.row_bytes),
            n_rows: n,
            row_bytes: part.shape.row_bytes,
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
    layout: ActivationLayout,
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
            w: part.weights.ptr().offset(first * part.shape.row_bytes),
            codebook: part.codebook,
            row_bytes: part.shape.row_bytes as u64,
            n: n_in as u32,
            n_rows: layout.rows(span.len) as u32,
            first_row: to as u32,
        };
        let (f, columns) = cuda.room::<OperandKernels>().of_weights(&part.shape, number);
        let blocks = [len, layout.padded(number, n_in).div_ceil(columns), 1];
        // SAFETY: the part has these rows, and the slab room for them where they go.
        unsafe { cuda.launch(f, blocks, 128, &args)? };
    }
    Ok(Operand { numbers: y, scales })
}
