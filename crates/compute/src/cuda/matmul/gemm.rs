//! Launches of GEMMs on the tensor cores, for many rows of activations.
//!
//! Activations and weights are converted first ([`super::operands`]).

use super::epilogue::Epilogue;
use super::matrix::Part;
use super::op::Matmul;
use super::operands::{
    LINE, Number, Operand, OperandLayout, SLABS, Span, activations, is_in_place, number_of, weights,
};
use super::shape::{MatrixShape, Target};
use crate::cuda::common::{Input, KvSlots, Output, TileLayout, Tiles};
use crate::cuda::driver::{
    BoxMap, Boxes, Cuda, DevicePtr, Driver, Kernel, KernelImage, kernel_args, kernel_image,
};
use crate::{Activation, Result, Tensor};

/// Elements of the largest slab of weights that is decoded at once. Hopper's GPUs have memory for whole matrices, which fill
/// their last wave of blocks best.
fn slab_len(driver: &dyn Driver) -> usize {
    if driver.is_hopper() { 124 << 20 } else { 60 << 20 }
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

/// How fast the blocks of each tile are on an H200, once they fill it: blocks of an SM, and TFLOP/s with 16 bits and with 8.
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

    /// Blocks of an SM, and TFLOP/s.
    fn speed(self, number: Number) -> Option<(usize, f64)> {
        let (blocks, of_halves, of_bytes) = SPEEDS[TILES.iter().position(|&t| t == self)?];
        Some((blocks, if number == Number::Int8 { of_bytes? } else { of_halves }))
    }
}

kernel_args! {
    in "gemm_args.cuh";

    struct GemmArgs {
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
        /// as w for GATE: what is multiplied with the activated outputs of w
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
    include "../common/kv_slots_args.cuh";
    include "gemm_args.cuh";

    /// Matrices that a matmul can have rows of: queries', keys' and values'.
    const MAX_MATRICES: usize = 3;

    /// How many matrices' rows come as boxes, and the first row of each among the outputs. A gate's ups come after it.
    struct WeightBoxes {
        n_matrices: u32,
        first_rows: [u32; MAX_MATRICES],
    }

    /// The same on Hopper, with the matrices whose rows TMA brings as boxes, and whether x and y have tiles.
    struct GemmHopperArgs {
        of_all: GemmArgs,
        /// 0: weights are tiles. Else they are rows of 16 bits, of so many matrices one after the other, which TMA brings as boxes; a gate's ups come after the gates.
        boxes: WeightBoxes,
        /// A TileNumber: whether outputs are tiles, with as many rows as those of x.
        to_tiles: u32,
        /// Factor of all rows where x_scales is null.
        x_factor: f32,
        slots: KvSlots,
        maps: [BoxMap; MAX_MATRICES] as "ptx::TensorMap",
    }
}

/// Weights that are tiles.
const NO_BOXES: WeightBoxes = WeightBoxes { n_matrices: 0, first_rows: [0; MAX_MATRICES] };

/// Kernels of gemm.cu and gemm_hopper.cu, in the order of [`TILES`] and [`Number::ALL`]; those that the GPU can run.
pub(in crate::cuda) struct Kernels {
    ampere: Vec<[Option<Kernel<GemmArgs>>; Number::ALL.len()]>,
    hopper: Vec<[Option<Kernel<GemmHopperArgs>>; Number::ALL.len()]>,
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

/// The tiles that a matmul of these matrices reads: of BF16 if it would round floats to BF16 anyway, or to less, and of half precision if
/// all matrices are multiplied in that.
pub(super) fn tile_layout(target: &Target, w: &MatrixShape) -> Option<TileLayout> {
    let n_half = w.parts.iter().filter(|p| number_of(target.hopper, p) == Number::F16).count();
    match n_half {
        _ if !target.hopper => None,
        0 => Some(TileLayout::GemmBfloat),
        n if n == w.parts.len() => Some(TileLayout::GemmHalf),
        _ => None,
    }
}

/// `x`'s memory as tiles for Hopper, if they have room there.
pub(in crate::cuda) fn tiles(layout: TileLayout, x: &Tensor<Cuda>) -> Option<Tiles> {
    let (m, n) = (x.rows(), x.row_len());
    let fits = OperandLayout::Tiled.bytes(Number::BF16, m, n) <= 4 * m * n;
    let rows = OperandLayout::Tiled.rows(m);
    (n.is_multiple_of(LINE / 2) && fits).then(|| Tiles { layout, ptr: x.ptr(), rows })
}

/// Whether these kernels multiply with such a matrix, or for a `gate` with both halves of its outputs in one launch.
pub(super) fn supports(target: &Target, w: &MatrixShape, gate: bool) -> bool {
    let is_one_launch = || {
        let halves =
            w.halves().map(|halves| halves.map(|rows| number_of(target.hopper, &w.parts[rows.part])));
        halves.is_some_and(|[gate, up]| gate == up)
    };
    w.n_experts == 1 && w.n_in > 0 && (!gate || is_one_launch())
}

/// `x` [m, n_in] times the matrix into `y` [m, n_out], or for a gate [m, n_out / 2].
///
/// For a gate the matrix is one part, or a gate's and its up's, as [`supports`] says; else `y` is floats.
pub(super) fn matmul(cuda: &Cuda, op: &Matmul<'_>) -> Result<()> {
    let Matmul { w, x, y, bias, .. } = *op;
    if let Input::Floats(_, Some(norm)) = x {
        let n_in = w.shape.n_in;
        assert_eq!(norm.weight.len(), n_in);
        assert!(norm.bias.as_ref().is_none_or(|b| b.len() == n_in), "a bias for {n_in} elements");
    }
    let (w, parts) = (&w.shape, &w.parts[..]);
    let hopper = cuda.driver.is_hopper();
    let layout = if hopper { OperandLayout::Tiled } else { OperandLayout::Rows };
    let mut gemm = Gemm { cuda, op, layout, activations: [None; Number::ALL.len()] };
    if let Epilogue::Gate(_) = op.epilogue {
        let half = w.n_out / 2;
        let both = Span::all(parts);
        let result = Destination { y, bias: DevicePtr::NULL, stride: half as u32 };
        return gemm.multiply(both.part(0, half), Some(both.part(half, half)), result);
    }
    // Parts of one kind are multiplied together, so that one launch has blocks for the whole device. Other GPUs multiply each by itself
    // that can be used in place.
    let mut left = parts;
    while let Some(part) = left.first() {
        let in_place = |p: &Part| !hopper && is_in_place(p, w.n_in);
        let is_alike =
            |p: &&Part| number_of(hopper, &p.shape) == number_of(hopper, &part.shape) && !in_place(p);
        let n_alike = left.iter().take_while(is_alike).count().max(1);
        let span = Span::all(&left[..n_alike]);
        left = &left[n_alike..];
        let bias = bias.map_or(DevicePtr::NULL, |b| b.ptr().offset(4 * part.shape.first_out));
        let result = Destination { y: y.after(part.shape.first_out), bias, stride: w.n_out as u32 };
        gemm.multiply(span, None, result)?;
    }
    Ok(())
}

/// Where the outputs of a span go.
#[derive(Clone, Copy)]
struct Destination {
    y: Output,
    /// Of the span's outputs, or null.
    bias: DevicePtr,
    /// Outputs from one row of `y` to the next.
    stride: u32,
}

/// What one launch multiplies: `n` outputs from `first` of a span on.
struct Slab {
    first: usize,
    n: usize,
    w: Operand,
    /// For a gate.
    up: Operand,
}

/// One matmul, with the activations that it has converted so far.
struct Gemm<'a> {
    cuda: &'a Cuda,
    op: &'a Matmul<'a>,
    layout: OperandLayout,
    /// In the order of [`Number::ALL`].
    activations: [Option<Operand>; Number::ALL.len()],
}

impl Gemm<'_> {
    /// Multiplies with the rows of a span, or for a gate with as many of two, slab by slab.
    fn multiply(&mut self, span: Span<'_>, up: Option<Span<'_>>, result: Destination) -> Result<()> {
        let (cuda, layout, n_in) = (self.cuda, self.layout, self.op.w.shape.n_in);
        let hopper = cuda.driver.is_hopper();
        let number = number_of(hopper, &span.parts[0].shape);
        let n_halves = if up.is_some() { 2 } else { 1 };
        let gate_to_tiles = up.is_some() && matches!(result.y, Output::Tiles(_));
        let tile = choose_tile(&*cuda.driver, number, self.op.m, n_halves * span.len, gate_to_tiles);
        let x = self.activations(number)?;
        let is_there = |span: Span<'_>| span.in_place(n_in).is_some();
        let boxes = if hopper { boxes(cuda, tile, span, up, n_in)? } else { None };
        let in_place = boxes.is_some() || !hopper && is_there(span) && up.is_none_or(is_there);
        let per_slab = (slab_len(&*cuda.driver) / (n_halves * n_in)).next_multiple_of(128);
        let step = if in_place { span.len } else { per_slab.min(span.len) };
        for first in (0..span.len).step_by(step.max(1)) {
            let n = step.min(span.len - first);
            let operand = |names, span: Option<Span<'_>>| match span {
                Some(span) if boxes.is_none() => {
                    weights(cuda, names, number, layout, span.part(first, n), n_in, in_place)
                }
                _ => Ok(Operand::NONE),
            };
            let slab = Slab { first, n, w: operand(&SLABS[0], Some(span))?, up: operand(&SLABS[1], up)? };
            let args = self.args(number, x, &slab, result);
            let outs = tile.outs / n_halves;
            let blocks = tile.blocks(&*cuda.driver, self.op.m.div_ceil(tile.rows), n.div_ceil(outs));
            let y = result.y.after(slab.first);
            let (boxes, maps) = boxes.unwrap_or((NO_BOXES, [BoxMap([0; 16]); MAX_MATRICES]));
            let slots = if let Output::Qkv(slots) = y { slots } else { KvSlots::NONE };
            let args = GemmHopperArgs {
                of_all: args,
                boxes,
                to_tiles: y.tile_number(),
                x_factor: x.factor,
                slots,
                maps,
            };
            self.launch(number, tile, blocks, &args)?;
        }
        Ok(())
    }

    /// The rows of x as numbers of this kind, converted the first time.
    fn activations(&mut self, number: Number) -> Result<Operand> {
        let Matmul { w, x, m, .. } = *self.op;
        match self.activations[number as usize] {
            Some(rows) => Ok(rows),
            None => {
                let rows = activations(self.cuda, number, self.layout, x, m, w.shape.n_in)?;
                Ok(*self.activations[number as usize].insert(rows))
            }
        }
    }

    fn args(&self, number: Number, x: Operand, slab: &Slab, result: Destination) -> GemmArgs {
        let Destination { y, bias, stride } = result;
        let (layout, epilogue) = (self.layout, self.op.epilogue);
        GemmArgs {
            y: y.after(slab.first).ptr(),
            x: x.numbers,
            x_scales: x.scales,
            w: slab.w.numbers,
            w_scales: slab.w.scales,
            up: slab.up.numbers,
            up_scales: slab.up.scales,
            bias: if bias == DevicePtr::NULL { bias } else { bias.offset(4 * slab.first) },
            k: layout.padded(number, self.op.w.shape.n_in) as u32,
            n_out: slab.n as u32,
            m: self.op.m as u32,
            y_stride: stride,
            epilogue: epilogue.code(),
            activation: epilogue.activation_code(),
            x_rows: layout.rows(self.op.m) as u32,
            w_rows: layout.rows(slab.n) as u32,
        }
    }

    fn launch(&self, number: Number, tile: Tile, blocks: [usize; 3], args: &GemmHopperArgs) -> Result<()> {
        let kernels = self.cuda.room::<Kernels>();
        let shared = tile.shared_bytes();
        // SAFETY: x and the weights are padded rows of k elements, of which there are m and n, or on Hopper tiles and boxes of such
        // rows; y and the bias as the callers checked.
        unsafe {
            if tile.hopper {
                let f = of_tile(&kernels.hopper, number, tile);
                self.cuda.launch_shared(f, blocks, tile.threads(), shared, args)
            } else {
                let f = of_tile(&kernels.ampere, number, tile);
                self.cuda.launch_shared(f, blocks, tile.threads(), shared, &args.of_all)
            }
        }
    }
}

/// Whether the outputs of this matmul can be such tiles.
pub(super) fn writes_tiles(target: &Target, w: &MatrixShape, tiles: Tiles, epilogue: Epilogue) -> bool {
    let is_whole = || w.parts.iter().all(|p| p.n_out.is_multiple_of(LINE / 2));
    let is_read = matches!(tiles.layout, TileLayout::GemmBfloat | TileLayout::GemmHalf);
    target.hopper
        && is_read
        && match epilogue {
            Epilogue::Gate(f) => {
                tiles.layout == TileLayout::GemmBfloat
                    && (w.n_out / 2).is_multiple_of(LINE / 2)
                    && matches!(f, Activation::Silu | Activation::GeluTanh)
            }
            Epilogue::Activate(f) => {
                use Activation::{GeluErf, GeluTanh, Relu, Silu};
                is_whole() && matches!(f, Silu | GeluTanh | GeluErf | Relu)
            }
            Epilogue::Store => is_whole(),
            Epilogue::Add | Epilogue::AddRanks => false,
        }
}

/// The tile whose blocks are done first: full waves of fast blocks. Those of a gate that write tiles have whole ones.
fn choose_tile(driver: &dyn Driver, number: Number, m: usize, n_out: usize, gate_to_tiles: bool) -> Tile {
    let time = |tile: Tile| {
        let (resident, speed) = tile.speed(number)?;
        let blocks = m.div_ceil(tile.rows) * n_out.div_ceil(tile.outs);
        let waves = blocks.div_ceil(driver.n_multiprocessors() as usize * resident);
        Some((waves * resident * tile.rows * tile.outs) as f64 / speed)
    };
    let can = |t: &Tile| t.hopper == driver.is_hopper() && (!gate_to_tiles || t.outs.is_multiple_of(LINE));
    let there = TILES.into_iter().filter(can).filter_map(|t| Some((t, time(t)?)));
    let best = there.min_by(|a, b| a.1.total_cmp(&b.1));
    best.expect("each kind of numbers has tiles").0
}

/// The matrices that a matmul has its weights from, and their descriptions, where they are rows that lie as they are read.
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
