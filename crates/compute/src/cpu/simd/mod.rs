//! Vectors of sixteen lanes, and the one place where a kernel is compiled for an instruction set.
//!
//! A kernel is a struct of its arguments that implements [`Kernel`]: its body is written once over [`Simd`] and compiled for
//! every instruction set; [`dispatch`] picks the compiled copy. Vectors have 16 lanes of 32 bits everywhere (one register
//! of AVX-512, two of AVX2, an array elsewhere), so the layouts of packed weights do not depend on the processor.
//!
//! A kernel's vectors do not pass through closures that others call, such as those of `array::map`: these are not always inlined, and
//! a call costs more than the vector's operation.

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
/// 1. *Instructions*, of every function: it is inlined into a function that was compiled for the instruction set of the implementing
///    type, on a processor that has it. [`dispatch`] sees to both; whoever else calls these functions is generic over `Simd`, inlined,
///    and asks its own callers for the same.
/// 2. *Memory*, of functions that take a pointer: it is valid for reads, or writes, of the bytes that the function's own `# Safety`
///    names, which have no alignment unless it says so.
///
/// Functions without a section of their own only use registers and ask for item 1 alone.
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
    const HAS_BF16_DOT: bool;

    /// Prefetches the line at `p`; `p` may be any address.
    unsafe fn prefetch(p: *const u8);
    /// As [`Simd::prefetch`], but not nearer than the second-level cache, which has more lines on their way at once.
    unsafe fn prefetch_l2(p: *const u8);
    /// Loads 64 bytes.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes.
    unsafe fn load(p: *const u8) -> Self::I;
    /// Loads 64 bytes of a weight. These loads stay in the order of the program: the processor fetches ahead where addresses ascend, and
    /// where the compiler mixes them, memory is read at half the speed.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes and a multiple of 64.
    unsafe fn load_in_order(p: *const u8) -> Self::I;
    /// Stores 64 bytes.
    ///
    /// # Safety
    /// `p` is writable for 64 bytes.
    unsafe fn store(p: *mut u8, v: Self::I);
    /// Loads 16 unsigned bytes, widened.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn load_u8(p: *const u8) -> Self::I;
    /// Loads 16 signed bytes, widened.
    ///
    /// # Safety
    /// `p` is readable for 16 bytes.
    unsafe fn load_i8(p: *const u8) -> Self::I;
    /// Loads 32 signed bytes as 16 lanes of two integers of 16 bits.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn load_i8_as_i16(p: *const u8) -> Self::I;
    /// Loads 16 numbers of half precision.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn load_f16(p: *const u8) -> Self::F;
    /// Loads 16 BF16 numbers.
    ///
    /// # Safety
    /// `p` is readable for 32 bytes.
    unsafe fn load_bf16(p: *const u8) -> Self::F;
    /// Loads 16 floats.
    ///
    /// # Safety
    /// `p` is readable for 16 floats.
    unsafe fn load_f32(p: *const f32) -> Self::F;
    /// Stores 16 floats.
    ///
    /// # Safety
    /// `p` is writable for 16 floats.
    unsafe fn store_f32(p: *mut f32, v: Self::F);
    /// Stores 16 numbers rounded to BF16.
    ///
    /// # Safety
    /// `p` is writable for 32 bytes.
    unsafe fn store_bf16(p: *mut u8, v: Self::F);
    /// Stores the nearest integers of 16 bits; magnitudes are below 32,767.5.
    ///
    /// # Safety
    /// `p` is writable for 32 bytes.
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

    /// Loads two numbers of half precision per lane, rounded to BF16.
    ///
    /// # Safety
    /// `p` is readable for 64 bytes.
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
    ///
    /// # Safety
    /// `x + 32 * r` is readable for 4·N bytes for each `r` below R.
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

/// Defines functions of [`Simd`] that are one expression of intrinsics: `registers` for those that only use registers, `memory` for those
/// that take a pointer.
#[cfg(target_arch = "x86_64")]
macro_rules! simd_fns {
    (registers: $(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) -> $result {
            // SAFETY: only registers; the instructions are there (`Simd`, 1).
            unsafe { $body }
        }
    )*};
    (memory: $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? = $body:expr;)*) => {$(
        #[inline(always)]
        unsafe fn $name($($arg: $type),*) $(-> $result)? {
            // SAFETY: the expression reads or writes no more bytes than `Simd` asks for (2), by intrinsics without alignment, or prefetches;
            // the instructions are there (1).
            unsafe { $body }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
use simd_fns;

/// Indices of a byte shuffle of 16 bytes that bring byte `J` of each four to the lowest place and zeros above it.
#[cfg(target_arch = "x86_64")]
const fn byte_of_dwords<const J: usize>() -> &'static [i8; 16] {
    const { &[J as i8, -1, -1, -1, J as i8 + 4, -1, -1, -1, J as i8 + 8, -1, -1, -1, J as i8 + 12, -1, -1, -1] }
}

/// A body that is compiled once per instruction set.
pub(crate) trait Kernel {
    /// Whether it has work for the instructions of AVX-512 BF16. Others have one copy for AVX-512, with these or without.
    const USES_BF16: bool = false;

    /// Does the work. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// 1. *Instructions*: those of [`Simd`].
    /// 2. *Memory*: the kernel's pointers, if it has any, are valid for what the kernel's own comment says.
    unsafe fn run<S: Simd>(self);
}

/// Runs the copy of a kernel that was compiled for `isa`.
///
/// # Safety
/// 1. *Instructions*: the processor has `isa`.
/// 2. *Memory*: that of [`Kernel::run`].
pub(crate) unsafe fn dispatch<K: Kernel>(isa: Isa, kernel: K) {
    debug_assert!(isa.is_available());
    // SAFETY: each arm calls the function that was compiled for `isa`, which the processor has (1); memory is the kernel's own (2).
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 | Isa::AmxBf16 if K::USES_BF16 => avx512::run_bf16(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Bf16 | Isa::AmxBf16 => avx512::run(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::run(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}
