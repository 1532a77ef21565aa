//! What a packed layout of weights is: a value with functions that pack rows, restore them, and multiply.
//!
//! Sixteen rows form a panel. Inside a panel the rows are interleaved four bytes at a time: a line of 64 bytes holds four
//! bytes of each row, so that one vector load feeds 16 output elements and a whole panel is one sequential stream.
//!
//! ```text
//! line 0:  row 0 bytes 0..4 | row 1 bytes 0..4 | … | row 15 bytes 0..4
//! line 1:  row 0 bytes 4..8 | row 1 bytes 4..8 | … | row 15 bytes 4..8
//! ```
//!
//! Scales are interleaved number by number and stand before the lines that they scale. A panel takes as many bytes as its
//! rows did, rounded up to lines. A last panel with fewer rows is filled with zeros.
//!
//! Weights that are multiplied with 8-bit activations are cut along their inputs: first come all panels of the first slice of columns,
//! then all of the second. A slice of a panel is a panel with shorter rows.
//!
//! A file of [`layouts`](super::layouts) implements [`Packing`] and [`PanelKernel`] for its type; together they make a [`Layout`], which
//! is all that matrix.rs and gemm.rs see.

use super::activations::{ActivationLayout, Tile};
use super::sums::Sums;
use crate::cpu::isa::Isa;
use crate::cpu::simd::{Kernel, LANES, LINE, Simd, dispatch};

/// How rows lie in a panel.
pub(super) trait Packing: Sync {
    /// For messages.
    fn name(&self) -> &'static str;

    /// How the activations of a matmul must lie.
    fn activations(&self) -> ActivationLayout;

    /// Bytes of a panel of 16 rows of `n_in` elements, a multiple of [`LINE`].
    fn panel_bytes(&self, n_in: usize) -> usize;

    /// Whether packed rows have about the size that they have in a file, so that packing them at load costs little memory.
    fn keeps_size(&self) -> bool {
        true
    }

    /// Writes a row, or a slice of it, into its lane of a panel. `row` is as in a file; `lane` is below 16.
    fn pack(&self, panel: &mut [u8], lane: usize, row: &[u8]);

    /// Decodes the row in a lane of a panel, as the type's own decoder would, bit for bit. `out`: [n_in].
    fn dequantize(&self, out: &mut [f32], panel: &[u8], lane: usize);

    /// The layout that panels are converted to, once for all tiles, before they are multiplied with more than
    /// [`BAND`](super::activations::BAND) rows.
    fn for_many_rows(&self) -> Option<&'static dyn Converted> {
        None
    }
}

/// Panels of one layout multiplied with tiles of activations.
pub(super) trait PanelKernel: Packing {
    /// [`Kernel::USES_BF16`]
    const USES_BF16: bool = false;

    /// Adds the products of one panel to `args.y`. Where the number of rows is known, for `ONE_ROW`, the sums stay in registers.
    ///
    /// Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Weights*: `args.w` is one panel, `panel_bytes(args.n_in)` bytes from a multiple of 64 on.
    /// 3. *Activations*: `args.x` lies as `activations()` says and has `args.n_in` columns, and one row for `ONE_ROW`.
    /// 4. *Sums*: `args.y` is valid for reads and writes of [args.x.rows, 16] floats, and used by no other thread meanwhile.
    unsafe fn add_panel<S: Simd, const ONE_ROW: bool>(&self, args: Args<'_>);
}

/// A layout of weights as a value.
pub(super) trait Layout: Packing {
    /// Adds the products of panel after panel to `args.y`, with the copy of the kernel that was compiled for `isa`.
    ///
    /// # Safety
    /// 1. *Instructions*: the processor has `isa`.
    /// 2. to 4. As [`PanelKernel::add_panel`], but for `args.n_panels` panels and [args.n_panels, args.x.rows, 16] floats.
    unsafe fn multiply_panels(&self, isa: Isa, args: Args<'_>);
}

impl<K: PanelKernel> Layout for K {
    unsafe fn multiply_panels(&self, isa: Isa, args: Args<'_>) {
        // SAFETY: the processor has `isa` (1); the kernel's own contract is 2 to 4.
        unsafe { dispatch(isa, EachPanel(args, self)) }
    }
}

/// A layout that panels of another one are converted to.
pub(super) trait Converted: Layout {
    /// Converts a panel. `to` and `from` are equally long, whole lines.
    ///
    /// # Safety
    /// The processor has `isa`.
    unsafe fn convert(&self, isa: Isa, to: &mut [u8], from: &[u8]);
}

/// Some panels of a weight, one after the other.
#[derive(Clone, Copy)]
pub(super) struct Panels<'a> {
    /// `n` times [`Packing::panel_bytes`].
    pub(super) bytes: &'a [u8],
    pub(super) n: usize,
    /// Elements of a row.
    pub(super) n_in: usize,
    /// Where reading goes on after these panels, if that is not right behind them; else null. Only used for prefetches.
    pub(super) next: *const u8,
}

/// One matmul: panels, one after the other, by a tile of activations.
#[derive(Clone, Copy)]
pub(super) struct Args<'a> {
    pub(super) w: &'a [u8],
    /// [`Panels::next`]
    pub(super) next: *const u8,
    pub(super) n_panels: usize,
    /// Elements of a row.
    pub(super) n_in: usize,
    pub(super) x: Tile<'a>,
    /// What the products are added to, `f32` [n_panels, x.rows, 16].
    pub(super) y: *mut f32,
}

impl dyn Layout {
    /// Multiplies panels by a tile and adds the products to `y` [panels.n, x.rows, 16].
    ///
    /// Panics if the sizes disagree.
    ///
    /// # Safety
    /// The processor has `isa`.
    pub(super) unsafe fn multiply(&self, isa: Isa, y: &mut [f32], panels: Panels<'_>, x: Tile<'_>) {
        let Panels { bytes: w, n: n_panels, n_in, next } = panels;
        // The kernels read and write without bounds checks; these are the bounds.
        let sizes = (n_panels * self.panel_bytes(n_in), n_panels * x.rows * LANES);
        assert_eq!((w.len(), y.len()), sizes, "{}", self.name());
        assert!(w.as_ptr().addr().is_multiple_of(LINE), "{}", self.name());
        assert_eq!((x.layout, x.n_in), (self.activations(), n_in), "{}", self.name());
        if w.is_empty() {
            return;
        }
        // SAFETY: the processor has `isa` by this function's contract; weights, activations and sums were just checked, and `y` is
        // borrowed mutably.
        unsafe { self.multiply_panels(isa, Args { w, next, n_panels, n_in, x, y: y.as_mut_ptr() }) }
    }
}

/// Lines that are prefetched for one row where reading goes on elsewhere, until the processor's own prefetchers follow.
const NEXT_LINES: usize = 16;

/// The matmul of panel after panel.
struct EachPanel<'a, K>(Args<'a>, &'a K);

impl<K: PanelKernel> EachPanel<'_, K> {
    /// # Safety
    /// As [`Layout::multiply_panels`], with [`Simd`]'s instructions in place of `isa`; one row for `ONE_ROW`.
    #[inline(always)]
    unsafe fn add<S: Simd, const ONE_ROW: bool>(self) {
        let Self(args, kernel) = self;
        let rows = if ONE_ROW { 1 } else { args.x.rows };
        for (p, w) in args.w.chunks_exact(args.w.len() / args.n_panels).enumerate() {
            // SAFETY: `w` is panel `p`, and p < n_panels, so its rows of `y` [n_panels, rows, 16] are there; a panel's bytes are whole
            // lines, so it starts at one. Prefetches take any address.
            unsafe {
                if ONE_ROW && p + 1 == args.n_panels && !args.next.is_null() {
                    for i in 0..NEXT_LINES {
                        S::prefetch(args.next.wrapping_add(i * LINE));
                    }
                }
                let y = args.y.add(p * rows * LANES);
                if ONE_ROW {
                    // The compiler sees all uses of this address, so that the sums stay in a register.
                    let mut own = Sums::<1>::uninit();
                    let own = own.as_mut_ptr();
                    S::store_f32(own, S::load_f32(y));
                    kernel.add_panel::<S, ONE_ROW>(Args { w, n_panels: 1, y: own, ..args });
                    S::store_f32(y, S::load_f32(own));
                } else {
                    kernel.add_panel::<S, ONE_ROW>(Args { w, n_panels: 1, y, ..args });
                }
            }
        }
    }
}

impl<K: PanelKernel> Kernel for EachPanel<'_, K> {
    const USES_BF16: bool = K::USES_BF16;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the kernel's own contract is that of `multiply_panels`, and `x.rows` chooses the copy for one row.
        unsafe { if self.0.x.rows == 1 { self.add::<S, true>() } else { self.add::<S, false>() } }
    }
}

/// Spreads the bytes of one row over lines, four per line.
#[inline]
pub(super) fn put_dwords(lines: &mut [u8], lane: usize, src: &[u8]) {
    for (line, dword) in lines.as_chunks_mut::<LINE>().0.iter_mut().zip(src.as_chunks::<4>().0) {
        line[4 * lane..4 * lane + 4].copy_from_slice(dword);
    }
}

/// Collects what [`put_dwords`] spread.
#[inline]
pub(super) fn get_dwords(dst: &mut [u8], lines: &[u8], lane: usize) {
    for (dword, line) in dst.as_chunks_mut::<4>().0.iter_mut().zip(lines.as_chunks::<LINE>().0) {
        dword.copy_from_slice(&line[4 * lane..4 * lane + 4]);
    }
}
