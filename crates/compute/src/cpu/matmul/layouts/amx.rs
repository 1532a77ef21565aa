//! BF16 and F16 weights by AMX, which multiplies tiles of 16 rows of 64 bytes.
//!
//! A panel is a list of tiles of weights: [n_in / 32, 16 pairs of inputs, 16 rows, 2], the last filled with zeros. With a tile of 16 rows of
//! 32 activations it makes 16 × 16 sums: for each tile of weights, the products of even and of odd inputs are added up by themselves, and
//! then to the sum. So a row's sums do not depend on the rows beside it. Numbers below the smallest normal one count as zero.
//!
//! The instructions stand as assembly, since the compiler has no stable functions for them. It never touches these registers itself.

use super::bf16;
use crate::cpu::isa::Isa;
use crate::cpu::matmul::activations::{ActivationLayout, TILE};
use crate::cpu::matmul::float::{dequantize_pairs, pack_pairs};
use crate::cpu::matmul::layout::{Args, Converted, Layout, Packing};
use crate::cpu::memory::Line;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, dispatch};
use half::{bf16 as Bf16, f16 as F16};
use std::arch::asm;

pub(super) static BF16_LAYOUT: Tiles<false> = Tiles;
pub(super) static F16_LAYOUT: Tiles<true> = Tiles;

/// Inputs of a tile of weights.
const STEP: usize = 32;
/// Bytes of a tile of weights.
const TILE_BYTES: usize = 16 * LINE;
/// Rows of a tile of activations.
const ROWS: usize = 16;
/// Tiles of activations that are multiplied with a tile of weights while it is loaded.
const GROUPS: usize = TILE.div_ceil(ROWS);

/// BF16, or F16 that is rounded to BF16 before it is multiplied.
pub(super) struct Tiles<const IS_F16: bool>;

impl<const IS_F16: bool> Packing for Tiles<IS_F16> {
    fn name(&self) -> &'static str {
        if IS_F16 { "F16" } else { "BF16" }
    }

    fn activations(&self) -> ActivationLayout {
        ActivationLayout::Bf16Lines
    }

    fn panel_bytes(&self, n_in: usize) -> usize {
        n_in.div_ceil(STEP) * TILE_BYTES
    }

    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]) {
        pack_pairs(panel, lane, row);
        let n_pairs = (row.len() / 2).div_ceil(2);
        for line in &mut panel.as_chunks_mut::<LINE>().0[n_pairs..] {
            line[4 * lane..4 * lane + 4].fill(0);
        }
    }

    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize) {
        let decode = |bytes| {
            if IS_F16 { F16::from_le_bytes(bytes).to_f32() } else { Bf16::from_le_bytes(bytes).to_f32() }
        };
        dequantize_pairs(out, panel, lane, decode);
    }

    /// Rounding to BF16 once costs less than at each tile of activations.
    fn for_many_rows(&self) -> Option<&'static dyn Converted> {
        if IS_F16 { Some(&BF16_LAYOUT) } else { None }
    }
}

impl Converted for Tiles<false> {
    unsafe fn convert(&self, isa: Isa, to: &mut [u8], from: &[u8]) {
        // SAFETY: the processor has `isa` by this function's contract; the kernel has no other.
        unsafe { dispatch(isa, bf16::FromF16 { to, from }) }
    }
}

impl<const IS_F16: bool> Layout for Tiles<IS_F16> {
    unsafe fn multiply_panels(&self, isa: Isa, args: Args<'_>) {
        debug_assert!(isa >= Isa::AmxBf16);
        // SAFETY: the processor has `isa` (1), which is one with AMX, since this layout is chosen for no other; weights, activations and
        // sums are as this function's contract says.
        unsafe { dispatch(isa, Multiply::<IS_F16>(args)) }
    }
}

/// Shapes of the registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

// What the registers hold: sums 0, 1, 2; activations 3, 4, 5; weights 6.
const X: usize = GROUPS;
const W: usize = 2 * GROUPS;

impl Shapes {
    fn new(groups: [usize; GROUPS]) -> Self {
        let mut shapes =
            Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        for (g, rows) in groups.into_iter().enumerate().filter(|(_, rows)| *rows > 0) {
            for register in [g, X + g] {
                (shapes.row_bytes[register], shapes.rows[register]) = (LINE as u16, rows as u8);
            }
        }
        (shapes.row_bytes[W], shapes.rows[W]) = (LINE as u16, 16);
        shapes
    }
}

/// Loads a register from rows of 64 bytes that lie one after the other.
///
/// # Safety
/// The processor has AMX, the register has a shape, and `p` is readable for its rows.
#[inline(always)]
unsafe fn load<const REGISTER: usize>(p: *const u8) {
    // SAFETY: the contract.
    unsafe {
        asm!("tileloadd tmm{r}, [{p} + {stride}*1]", r = const REGISTER, p = in(reg) p, stride = in(reg) LINE,
             options(nostack, preserves_flags, readonly));
    }
}

/// Stores a register to rows of 64 bytes that lie one after the other.
///
/// # Safety
/// The processor has AMX, the register has a shape, and `p` is writable for its rows.
#[inline(always)]
unsafe fn store<const REGISTER: usize>(p: *mut u8) {
    // SAFETY: the contract.
    unsafe {
        asm!("tilestored [{p} + {stride}*1], tmm{r}", r = const REGISTER, p = in(reg) p, stride = in(reg) LINE,
             options(nostack, preserves_flags));
    }
}

/// Adds the products of activations `X + G` with the weights to sums `G`.
///
/// # Safety
/// The processor has AMX, and the registers have shapes.
#[inline(always)]
unsafe fn multiply<const G: usize>() {
    // SAFETY: the contract.
    unsafe {
        asm!("tdpbf16ps tmm{y}, tmm{x}, tmm{w}", y = const G, x = const X + G, w = const W,
             options(nomem, nostack, preserves_flags));
    }
}

/// Panel after panel by a tile of activations.
struct Multiply<'a, const IS_F16: bool>(Args<'a>);

impl<const IS_F16: bool> Kernel for Multiply<'_, IS_F16> {
    const USES_BF16: bool = true;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let args = self.0;
        let rows = args.x.rows;
        // As many registers as are needed, about equally full.
        let n_groups = rows.div_ceil(ROWS);
        let size = rows.div_ceil(n_groups);
        let shapes = Shapes::new(std::array::from_fn(|g| size.min(rows.saturating_sub(g * size))));
        // SAFETY: the processor has AMX, and `shapes` is what the instruction reads. `w` is a panel, of whose sums `y` has room for `rows` rows
        // (`Layout::multiply_panels`, 2 to 4); no group is empty, since (n_groups - 1) · size < rows.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, preserves_flags, readonly));
            for (p, w) in args.w.chunks_exact(args.w.len() / args.n_panels).enumerate() {
                let y = args.y.add(p * rows * LANES);
                match n_groups {
                    1 => panel::<S, IS_F16, 1>(&args, w, y, size),
                    2 => panel::<S, IS_F16, 2>(&args, w, y, size),
                    _ => panel::<S, IS_F16, GROUPS>(&args, w, y, size),
                }
            }
            asm!("tilerelease", options(nomem, nostack, preserves_flags));
        }
    }
}

/// How far ahead of their use weights are prefetched, in bytes.
const AHEAD: usize = 4096;

/// Adds the products of one panel with `N` groups of `size` rows, the last maybe fewer.
///
/// # Safety
/// The processor has AMX, the registers have shapes for these groups, and panel, activations and sums are as [`Layout::multiply_panels`] says.
#[inline(always)]
unsafe fn panel<S: Simd, const IS_F16: bool, const N: usize>(
    args: &Args<'_>,
    w: &[u8],
    y: *mut f32,
    size: usize,
) {
    let rows = args.x.rows;
    let y = y.cast::<u8>();
    let mut rounded = [Line::ZERO; 16];
    // SAFETY: groups begin below `rows`; the activations have a line per tile of weights and row.
    unsafe {
        load::<0>(y);
        if N > 1 {
            load::<1>(y.add(size * LINE));
        }
        if N > 2 {
            load::<2>(y.add(2 * size * LINE));
        }
        for (k, w) in w.as_chunks::<TILE_BYTES>().0.iter().enumerate() {
            for i in 0..16 {
                S::prefetch_l2(w.as_ptr().wrapping_add(AHEAD + i * LINE));
            }
            if IS_F16 {
                let to = rounded.as_mut_ptr().cast::<u8>();
                for i in 0..16 {
                    S::store(to.add(i * LINE), S::load_f16_as_bf16(w.as_ptr().add(i * LINE)));
                }
                load::<W>(to);
            } else {
                load::<W>(w.as_ptr());
            }
            let x = args.x.lines.as_ptr().add(k * rows).cast::<u8>();
            load::<X>(x);
            multiply::<0>();
            if N > 1 {
                load::<{ X + 1 }>(x.add(size * LINE));
                multiply::<1>();
            }
            if N > 2 {
                load::<{ X + 2 }>(x.add(2 * size * LINE));
                multiply::<2>();
            }
        }
        store::<0>(y);
        if N > 1 {
            store::<1>(y.add(size * LINE));
        }
        if N > 2 {
            store::<2>(y.add(2 * size * LINE));
        }
    }
}
