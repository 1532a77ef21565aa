//! Operands of the GEMMs on the tensor cores: activations and weights as numbers of one kind, converted by operands.cu.
//!
//! Both operands are of one kind. Hopper multiplies packed weights in 8 bits, with a scale for each 256 columns of a row on both sides.
//! Else they have 16: BF16 where the weights are, and half precision for all others, which keeps 11 bits of what a quantized weight
//! stands for, eight times finer than BF16; rows of activations in half precision have a power of two each. Weights are decoded in slabs,
//! or read where they are if they lie as the kernel wants them.

use super::matrix::Part;
use super::packed_types::{PACKED, packed_index};
use super::shape::{Layout, PartShape};
use crate::cuda::common::{Input, Tiles};
use crate::cuda::driver::{Cuda, DevicePtr, Driver, Kernel, kernel_args, kernel_image};
use crate::quant::QUANTS;
use crate::{DType, NormKind, Result, Tensor};

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

    /// Of the memory for activations of this kind.
    fn purpose(self) -> &'static str {
        match self {
            Self::F16 => "activations in half precision",
            Self::BF16 => "activations in BF16",
            Self::Int8 => "activations in 8 bits",
        }
    }

    const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::Int8 => 1,
        }
    }
}

/// How operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperandLayout {
    /// Row after row.
    Rows,
    /// As Hopper's tensor cores read them, 128 bytes of all rows after each other.
    Tiled,
}

/// Bytes of a row in a tile.
pub(super) const LINE: usize = 128;
/// Columns that share a scale of 8 bits.
const SCALED: usize = 256;

impl OperandLayout {
    /// Elements of a row with its padding.
    pub(super) fn padded(self, number: Number, n: usize) -> usize {
        match self {
            Self::Rows => n.next_multiple_of(8),
            Self::Tiled => n.next_multiple_of(if number == Number::Int8 { SCALED } else { LINE / 2 }),
        }
    }

    /// Rows of a tiled operand, which begin at multiples of 1024 bytes; else 0.
    pub(super) fn rows(self, n: usize) -> usize {
        match self {
            Self::Rows => 0,
            Self::Tiled => n.next_multiple_of(8),
        }
    }

    /// Bytes of `n_rows` rows, and of what a kernel reads past the last and does not use.
    pub(super) fn bytes(self, number: Number, n_rows: usize, n: usize) -> usize {
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

/// What the weights of a part, and the activations that they are multiplied with, become.
pub(super) fn number_of(hopper: bool, part: &PartShape) -> Number {
    match (part.dtype, part.layout) {
        (DType::BF16, _) => Number::BF16,
        (_, Layout::Packed) if hopper => Number::Int8,
        _ => Number::F16,
    }
}

kernel_args! {
    in "operands_args.cuh";

    struct ActivationArgs {
        /// as `swizzled_offset` says, one row per block
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
        /// as `swizzled_offset` says, from `first_row` on one row per blockIdx.x
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

/// Kernels of operands.cu.
pub(in crate::cuda) struct Kernels {
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

impl Kernels {
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
                image.kernel(driver, &format!("weights_Packed_{}", t.dtype), 0)?,
                image.kernel(driver, &format!("bytes_Packed_{}", t.dtype), 0)?,
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
        match (part.layout, number) {
            (Layout::Blocks, _) => (self.blocks[part.dtype as usize], 1024),
            (Layout::Packed, Number::Int8) => (self.packed[packed_index(part.dtype)][1], 4096),
            (Layout::Packed, _) => (self.packed[packed_index(part.dtype)][0], 2048),
        }
    }
}

/// Activations or weights as the kernel reads them.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) numbers: DevicePtr,
    /// Of rows in half precision, or of tiles of 8 bits; else null.
    pub(super) scales: DevicePtr,
    /// Of all rows that have none in `scales`.
    pub(super) factor: f32,
}

impl Operand {
    pub(super) const NONE: Self = Self { numbers: DevicePtr::NULL, scales: DevicePtr::NULL, factor: 1.0 };
}

/// Outputs that one launch computes: of parts that follow one another, `len` from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Span<'a> {
    pub(super) parts: &'a [Part],
    pub(super) first: usize,
    pub(super) len: usize,
}

impl<'a> Span<'a> {
    pub(super) fn all(parts: &'a [Part]) -> Self {
        Self { parts, first: 0, len: parts.iter().map(|p| p.shape.n_out).sum() }
    }

    /// `len` of its outputs from `first` on.
    pub(super) fn part(self, first: usize, len: usize) -> Self {
        Self { first: self.first + first, len, ..self }
    }

    /// The rows of the only part that has these outputs, if they lie as a kernel reads them.
    pub(super) fn in_place(self, n_in: usize) -> Option<DevicePtr> {
        let (part, first, len, _) = self.pieces().next()?;
        (len == self.len && is_in_place(part, n_in))
            .then(|| part.weights.ptr().offset(first * part.shape.row_bytes))
    }

    /// Of each part that has some of the outputs: the first of its own, how many, and where they are among these.
    pub(super) fn pieces(self) -> impl Iterator<Item = (&'a Part, usize, usize, usize)> {
        let start = self.parts[0].shape.first_out + self.first;
        self.parts.iter().filter_map(move |p| {
            let from = start.max(p.shape.first_out);
            let to = (start + self.len).min(p.shape.first_out + p.shape.n_out);
            (from < to).then(|| (p, from - p.shape.first_out, to - from, from - start))
        })
    }
}

/// Whether the weights lie as the kernel reads them: rows of 16 bits that begin at multiples of 16 bytes.
pub(super) fn is_in_place(part: &Part, n_in: usize) -> bool {
    matches!(part.shape.dtype, DType::F16 | DType::BF16) && n_in.is_multiple_of(8)
}

/// Rows of activations as the kernel reads them, normalized where a norm comes before.
pub(super) fn activations(
    cuda: &Cuda,
    number: Number,
    layout: OperandLayout,
    x: Input<'_>,
    m: usize,
    n: usize,
) -> Result<Operand> {
    let (x, norm, of_tiles) = match (x, number) {
        (Input::Floats(x, norm), _) => (x, norm, false),
        (Input::Tiles(tiles), Number::BF16) => {
            return Ok(Operand { numbers: tiles.ptr, ..Operand::NONE });
        }
        (Input::Tiles(tiles), Number::F16) => {
            return Ok(Operand { numbers: tiles.ptr, factor: Tiles::HALF_FACTOR, ..Operand::NONE });
        }
        (Input::Tiles(tiles), Number::Int8) => (tiles.ptr, None, true),
    };
    let y = cuda.scratch.get(&cuda.driver, number.purpose(), layout.bytes(number, m, n))?;
    let scales = match number {
        Number::F16 => cuda.scratch.get(&cuda.driver, "factors of activations", 4 * m)?,
        Number::BF16 => DevicePtr::NULL,
        Number::Int8 => cuda.scratch.get(&cuda.driver, "scales of activations", layout.scale_bytes(m, n))?,
    };
    let pieces = layout.padded(number, n).div_ceil(2048);
    let kernels = cuda.room::<Kernels>();
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
    Ok(Operand { numbers: y, scales, factor: 1.0 })
}

/// Scratch memory for decoded weights and their scales, of which a gate wants two.
pub(super) const SLABS: [[&str; 2]; 2] = [
    ["a slab of weights for tensor cores", "its scales"],
    ["a slab of ups for tensor cores", "scales of ups"],
];

/// Rows of weights as the kernel reads them, after they were decoded if need be.
pub(super) fn weights(
    cuda: &Cuda,
    [slab, scales]: &[&'static str; 2],
    number: Number,
    layout: OperandLayout,
    span: Span<'_>,
    n_in: usize,
    in_place: bool,
) -> Result<Operand> {
    if let (true, Some(numbers)) = (in_place, span.in_place(n_in)) {
        return Ok(Operand { numbers, ..Operand::NONE });
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
        let (f, columns) = cuda.room::<Kernels>().of_weights(&part.shape, number);
        let blocks = [len, layout.padded(number, n_in).div_ceil(columns), 1];
        // SAFETY: the part has these rows, and the slab room for them where they go.
        unsafe { cuda.launch(f, blocks, 128, &args)? };
    }
    Ok(Operand { numbers: y, scales, factor: 1.0 })
}
