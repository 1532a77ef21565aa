//! Sixteen lanes of numbers, and the one place where a kernel meets an instruction set.
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]: its body is written once over [`Simd`] and compiled for
//! every instruction set; [`dispatch`] picks the compiled copy. Vectors have 16 lanes of 32 bits everywhere (one register
//! of AVX-512, two of AVX2, an array elsewhere), so the layouts of packed weights do not depend on the processor.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use super::isa::Isa;

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;
/// Bytes of a vector.
pub(crate) const LINE: usize = 64;

/// Operations on vectors of 16 lanes.
///
/// # Safety
/// Every function has the same contract: it is inlined into a function that was compiled for the instruction set of the
/// implementing type, on a processor that has it ([`dispatch`] sees to both), and pointers are readable (or writable) for
/// the bytes that the function's comment names. No function but [`Simd::load_in_order`] asks for alignment.
pub(crate) trait Simd: Copy {
    /// 16 lanes of `i32`, or the same register as 64 bytes.
    type I: Copy;
    /// 16 lanes of `f32`.
    type F: Copy;

    /// Whether [`Simd::dot`] with `MAX == 255` takes its weights as `byte - 128` (true) or as `byte` (false).
    ///
    /// The caller starts the sum at zero in the first case and at -128 times the sum of the activations in the second.
    const CENTERS_BYTES: bool;
    /// Float vectors that the registers hold, counting one for what an instruction needs besides.
    const REGISTERS: usize;
    /// Whether [`Simd::dot_bf16`] is one instruction.
    const DOTS_BF16: bool;

    /// Asks for the line at `p` to come into the cache; `p` may point anywhere.
    unsafe fn prefetch(p: *const u8);
    /// As [`Simd::prefetch`], but not nearer than the second-level cache: it has more lines on their way at once.
    unsafe fn prefetch_l2(p: *const u8);
    /// 64 bytes.
    unsafe fn load(p: *const u8) -> Self::I;
    /// 64 bytes of a weight; `p` is a multiple of 64. These loads stay in the order of the program: the processor fetches ahead where
    /// addresses ascend, and where the compiler mixes them, memory is read at half the speed.
    unsafe fn load_in_order(p: *const u8) -> Self::I;
    /// Writes 64 bytes.
    unsafe fn store(p: *mut u8, v: Self::I);
    /// 16 unsigned bytes, widened.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// 16 signed bytes, widened.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    /// 32 signed bytes to 16 lanes of two integers of 16 bits.
    unsafe fn load_i8_as_i16(p: *const u8) -> Self::I;
    /// 16 numbers of half precision (32 bytes).
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// 16 BF16 numbers (32 bytes).
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// 16 floats (64 bytes).
    unsafe fn load_f32(p: *const f32) -> Self::F;
    /// Writes 16 floats.
    unsafe fn store_f32(p: *mut f32, v: Self::F);
    /// Writes 16 numbers rounded to BF16 (32 bytes).
    unsafe fn store_bf16(p: *mut u8, v: Self::F);
    /// Writes the nearest integers of 16 bits (32 bytes); magnitudes are below 32,767.5.
    unsafe fn store_i16(p: *mut u8, v: Self::F);
    /// Lane 0.
    unsafe fn first(v: Self::F) -> f32;

    /// The same float in every lane.
    unsafe fn splat(x: f32) -> Self::F;
    /// The same integer in every lane.
    unsafe fn splat_i32(x: i32) -> Self::I;
    /// The nearest float of every integer.
    unsafe fn to_f32(v: Self::I) -> Self::F;
    /// `a + b`, wrapping.
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// The low half of `a * b`.
    unsafe fn mul_i32(a: Self::I, b: Self::I) -> Self::I;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `b` where it is larger, else `a`.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The larger magnitude, or what is no number.
    unsafe fn max_magnitude(a: Self::F, b: Self::F) -> Self::F;
    /// `v · 2^n` for whole numbers `n` from -126 to 127.
    unsafe fn scale(v: Self::F, n: Self::F) -> Self::F;
    /// Lane `i ^ N` in lane `i`; `N` is 8, 4, 2 or 1.
    unsafe fn swap<const N: usize>(v: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the instruction set can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `c - a * b`, rounded once where the instruction set can.
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The first number of every lane's pair of BF16 numbers.
    unsafe fn bf16_low(v: Self::I) -> Self::F;
    /// The second number of every lane's pair of BF16 numbers.
    unsafe fn bf16_high(v: Self::I) -> Self::F;

    /// Every lane's two numbers rounded to BF16, the first in the low half.
    unsafe fn bf16_pairs(first: Self::F, second: Self::F) -> Self::I;

    /// Every lane's two numbers of half precision (64 bytes) rounded to BF16.
    unsafe fn load_f16_as_bf16(p: *const u8) -> Self::I;

    /// Bitwise and.
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    /// A table of 16 bytes for [`Simd::lookup`].
    unsafe fn table(bytes: &[u8; 16]) -> Self::I;
    /// For each byte of `codes`, which lie in 0..16, the byte of the table that it numbers.
    unsafe fn lookup(table: Self::I, codes: Self::I) -> Self::I;
    /// Every 16-bit half lane shifted left by `N` bits.
    unsafe fn shl<const N: u32>(v: Self::I) -> Self::I;
    /// Every 16-bit half lane shifted right by `N` bits.
    unsafe fn shr<const N: u32>(v: Self::I) -> Self::I;
    /// Every 16-bit half lane shifted right by `n` bits, `n` < 16.
    unsafe fn shr_by(v: Self::I, n: u32) -> Self::I;
    /// Byte `J` of every lane, as an integer.
    unsafe fn byte<const J: usize>(v: Self::I) -> Self::I;
    /// Lanes whose low half is `low` and whose high half is `high`; both lie in 0..65536.
    unsafe fn pair(low: Self::I, high: Self::I) -> Self::I;

    /// Adds to every lane of sum `r` the products of its 4·N weights with the 4·N signed activations at `x + 32 * r`.
    ///
    /// Lane `l` of `w[i]` holds, as bytes, its weights for activations `4 * i..4 * i + 4`. Weights lie in `0..=MAX`, where
    /// `MAX` is 15, 31, 63, 127 or 255 (see [`Simd::CENTERS_BYTES`]); activations lie in -127..=127. The result is exact.
    unsafe fn dot<const N: usize, const MAX: u8, const R: usize>(
        sums: &mut [Self::I; R],
        w: &[Self::I; N],
        x: *const i8,
    );
    /// Adds to every lane the products of its two signed 16-bit numbers with the two in `x`.
    unsafe fn dot_i16(sum: Self::I, w: Self::I, x: i32) -> Self::I;
    /// Adds to every lane the products of its two BF16 numbers with the two in `x`.
    unsafe fn dot_bf16(sum: Self::F, w: Self::I, x: u32) -> Self::F;
}

/// Indices of a byte shuffle of 16 bytes that bring byte `J` of each four to the lowest place and zeros above it.
#[cfg(target_arch = "x86_64")]
const fn byte_of_dwords<const J: usize>() -> &'static [i8; 16] {
    const { &[J as i8, -1, -1, -1, J as i8 + 4, -1, -1, -1, J as i8 + 8, -1, -1, -1, J as i8 + 12, -1, -1, -1] }
}

/// A body that is compiled once per instruction set.
pub(crate) trait Kernel {
    /// Does the work.
    ///
    /// # Safety
    /// The contract of [`Simd`], and that of the kernel's own pointers. Implementations are `#[inline(always)]`.
    unsafe fn run<S: Simd>(self);
}

/// Runs the copy of a kernel that was compiled for `isa`.
///
/// # Safety
/// The processor has `isa`, and the kernel's own contract holds.
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    debug_assert!(isa.is_available());
    // SAFETY: each function is compiled for the instruction set that the caller says is there.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => avx512::run_bf16(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}
