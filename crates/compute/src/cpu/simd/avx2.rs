//! [`Simd`] with AVX2, FMA and F16C: a vector is a pair of registers, lanes 0 to 7 and 8 to 15.

use super::{Kernel, Simd, byte_of_dwords, simd_fns};
use std::arch::x86_64::*;

/// Runs a kernel compiled for AVX2.
///
/// # Safety
/// *Memory*: that of [`Kernel::run`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: this function is compiled for the instruction set of `Avx2`, and whoever calls it has it (1); memory is the kernel's own (2).
    unsafe { kernel.run::<Avx2>() }
}

/// The implementation.
#[derive(Clone, Copy)]
pub(super) struct Avx2;

/// Integer lanes 0 to 7 and 8 to 15.
type I = [__m256i; 2];
/// Float lanes 0 to 7 and 8 to 15.
type F = [__m256; 2];

/// Applies an intrinsic to both halves; in an unsafe block.
macro_rules! both {
    ($f:expr, $a:expr) => {{
        let a = $a;
        [$f(a[0]), $f(a[1])]
    }};
    ($f:expr, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        [$f(a[0], b[0]), $f(a[1], b[1])]
    }};
    ($f:expr, $a:expr, $b:expr, $c:expr) => {{
        let (a, b, c) = ($a, $b, $c);
        [$f(a[0], b[0], c[0]), $f(a[1], b[1], c[1])]
    }};
}

/// Lanes whose upper half is the nearest BF16 number, ties to even.
///
/// # Safety
/// *Instructions*: AVX2.
#[inline(always)]
unsafe fn rounded(x: __m256) -> __m256i {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        // Half of the last place that stays, less one where that place is even.
        let bits = _mm256_castps_si256(x);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)))
    }
}

/// Lanes with the nearest BF16 number.
///
/// # Safety
/// *Instructions*: AVX2.
#[inline(always)]
unsafe fn nearest_bf16(x: __m256) -> __m256i {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe { _mm256_srli_epi32::<16>(rounded(x)) }
}

/// 16 BF16 numbers.
///
/// # Safety
/// *Instructions*: AVX2.
#[inline(always)]
unsafe fn packed_bf16(v: F) -> __m256i {
    // SAFETY: only registers; the instructions are this function's contract. Packing works within halves of a register; the permutation puts the quarters in order.
    unsafe {
        let packed = _mm256_packus_epi32(nearest_bf16(v[0]), nearest_bf16(v[1]));
        _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
    }
}

impl Simd for Avx2 {
    type I = I;
    type F = F;
    // The multiply takes unsigned times signed and saturates at 16 bits: 255 · 127 · 2 is too much, 128 · 127 · 2 is not.
    const CENTERS_BYTES: bool = true;
    const REGISTERS: usize = 8;
    const HAS_BF16_DOT: bool = false;

    simd_fns! {
        registers:
        fn first(v: F) -> f32 = _mm256_cvtss_f32(v[0]);
        fn to_f32(v: I) -> F = both!(_mm256_cvtepi32_ps, v);
        fn add_i32(a: I, b: I) -> I = both!(_mm256_add_epi32, a, b);
        fn mul_i32(a: I, b: I) -> I = both!(_mm256_mullo_epi32, a, b);
        fn mul(a: F, b: F) -> F = both!(_mm256_mul_ps, a, b);
        fn add(a: F, b: F) -> F = both!(_mm256_add_ps, a, b);
        fn sub(a: F, b: F) -> F = both!(_mm256_sub_ps, a, b);
        fn max(a: F, b: F) -> F = both!(_mm256_max_ps, b, a);
        fn fma(a: F, b: F, c: F) -> F = both!(_mm256_fmadd_ps, a, b, c);
        fn fnma(a: F, b: F, c: F) -> F = both!(_mm256_fnmadd_ps, a, b, c);
        fn bf16_low(v: I) -> F = [
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v[0])),
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v[1])),
        ];
        fn and(a: I, b: I) -> I = both!(_mm256_and_si256, a, b);
        fn or(a: I, b: I) -> I = both!(_mm256_or_si256, a, b);
        fn lookup(table: I, codes: I) -> I = both!(_mm256_shuffle_epi8, table, codes);
        fn pair(low: I, high: I) -> I = [
            _mm256_or_si256(low[0], _mm256_slli_epi32::<16>(high[0])),
            _mm256_or_si256(low[1], _mm256_slli_epi32::<16>(high[1])),
        ];
    }

    simd_fns! {
        memory:
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        fn prefetch_l2(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn load(p: *const u8) -> I = [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())];
        fn load_i8_as_i16(p: *const u8) -> I = [
            _mm256_cvtepi8_epi16(_mm_loadu_si128(p.cast())),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(p.add(16).cast())),
        ];
        fn load_f16(p: *const u8) -> F =
            [_mm256_cvtph_ps(_mm_loadu_si128(p.cast())), _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast()))];
        fn load_f32(p: *const f32) -> F = [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))];
    }

    #[inline(always)]
    unsafe fn load_in_order(p: *const u8) -> I {
        let p = p.cast::<__m256i>();
        // SAFETY: two vectors of 32 readable bytes at a multiple of 64 (`Simd`, 2), of which any are a vector.
        unsafe { [p.read_volatile(), p.add(1).read_volatile()] }
    }

    #[inline(always)]
    unsafe fn store(p: *mut u8, v: I) {
        // SAFETY: 64 writable bytes (`Simd`, 2), stored as two vectors without alignment; the instructions are there (1).
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(32).cast(), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> I {
        // SAFETY: 16 readable bytes (`Simd`, 2), loaded without alignment; the instructions are there (1).
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            [_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(v))]
        }
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> I {
        // SAFETY: 16 readable bytes (`Simd`, 2), loaded without alignment; the instructions are there (1).
        unsafe {
            let v = _mm_loadu_si128(p.cast());
            [_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v))]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> F {
        // SAFETY: 32 readable bytes (`Simd`, 2), loaded without alignment; the instructions are there (1).
        unsafe {
            let wide = |p: *const u8| _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            let float = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            [float(wide(p)), float(wide(p.add(16)))]
        }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: F) {
        // SAFETY: 64 writable bytes (`Simd`, 2), stored as two vectors without alignment; the instructions are there (1).
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u8, v: F) {
        // SAFETY: 32 writable bytes (`Simd`, 2), stored without alignment; the instructions are there (1).
        unsafe {
            _mm256_storeu_si256(p.cast(), packed_bf16(v));
        }
    }

    #[inline(always)]
    unsafe fn store_i16(p: *mut u8, v: F) {
        // SAFETY: 32 writable bytes (`Simd`, 2), stored without alignment; the instructions are there (1).
        unsafe {
            let packed = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe { [_mm256_set1_epi32(x); 2] }
    }

    // As integers, infinities lie above all numbers and NaN above infinities.
    #[inline(always)]
    unsafe fn max_magnitude(a: F, b: F) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let mask = _mm256_set1_epi32(i32::MAX);
            let bits = |x| _mm256_and_si256(_mm256_castps_si256(x), mask);
            let max = |a, b| _mm256_castsi256_ps(_mm256_max_epi32(bits(a), bits(b)));
            [max(a[0], b[0]), max(a[1], b[1])]
        }
    }

    #[inline(always)]
    unsafe fn scale(v: F, n: F) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let power = |n| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            };
            Self::mul(v, [power(n[0]), power(n[1])])
        }
    }

    #[inline(always)]
    unsafe fn swap<const N: usize>(v: F) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        let swap = |v| unsafe {
            match N {
                4 => _mm256_permute2f128_ps::<1>(v, v),
                2 => _mm256_permute_ps::<0b01_00_11_10>(v),
                1 => _mm256_permute_ps::<0b10_11_00_01>(v),
                _ => unreachable!("lanes {N} apart"),
            }
        };
        if N == 8 { [v[1], v[0]] } else { [swap(v[0]), swap(v[1])] }
    }

    #[inline(always)]
    unsafe fn bf16_high(v: I) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let mask = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                _mm256_castsi256_ps(_mm256_and_si256(v[0], mask)),
                _mm256_castsi256_ps(_mm256_and_si256(v[1], mask)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn bf16_pairs(first: F, second: F) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        let pair = |a, b| unsafe { _mm256_blend_epi16::<0b1010_1010>(nearest_bf16(a), rounded(b)) };
        [pair(first[0], second[0]), pair(first[1], second[1])]
    }

    #[inline(always)]
    unsafe fn load_f16_as_bf16(p: *const u8) -> I {
        // SAFETY: 64 readable bytes (`Simd`, 2), loaded as two vectors of 32; the instructions are there (1).
        unsafe {
            let (first, second) = (Self::load_f16(p), Self::load_f16(p.add(32)));
            [packed_bf16(first), packed_bf16(second)]
        }
    }

    #[inline(always)]
    unsafe fn table(bytes: &[u8; 16]) -> I {
        // SAFETY: the reference's 16 bytes are readable; the instructions are there (`Simd`, 1).
        unsafe { [_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())); 2] }
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: I) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_sll_epi16(v[0], n), _mm256_sll_epi16(v[1], n)]
        }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: I) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let n = _mm_cvtsi32_si128(N as i32);
            [_mm256_srl_epi16(v[0], n), _mm256_srl_epi16(v[1], n)]
        }
    }

    #[inline(always)]
    unsafe fn shr_by(v: I, n: u32) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            [_mm256_srl_epi16(v[0], n), _mm256_srl_epi16(v[1], n)]
        }
    }

    #[inline(always)]
    unsafe fn byte<const J: usize>(v: I) -> I {
        // SAFETY: the reference's 16 bytes are readable; the instructions are there (`Simd`, 1).
        unsafe {
            let index = _mm256_broadcastsi128_si256(_mm_loadu_si128(byte_of_dwords::<J>().as_ptr().cast()));
            [_mm256_shuffle_epi8(v[0], index), _mm256_shuffle_epi8(v[1], index)]
        }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const MAX: u8, const R: usize>(
        sums: &mut [I; R],
        w: &[I; N],
        x: *const i8,
    ) {
        // How many products of two pairs an i16 holds: 8 · 2 · 15 · 127, 4 · 2 · 31 · 127, 2 · 2 · 63 · 127
        // and 2 · 127 · 127 do.
        let run = match MAX {
            15 => 8,
            31 => 4,
            63 => 2,
            _ => 1,
        };
        // SAFETY: 4·N readable bytes for each sum (`Simd`, 2), of which this reads dword after dword; the instructions are there (1).
        unsafe {
            let ones = _mm256_set1_epi16(1);
            for (r, sum) in sums.iter_mut().enumerate() {
                let mut i = 0;
                while i < N {
                    let mut pairs = [_mm256_setzero_si256(); 2];
                    for k in i..N.min(i + run) {
                        let xs = _mm256_set1_epi32(x.add(32 * r + 4 * k).cast::<i32>().read_unaligned());
                        for h in 0..2 {
                            let p = if MAX == 255 {
                                let signed = _mm256_xor_si256(w[k][h], _mm256_set1_epi8(-128));
                                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(xs, signed))
                            } else {
                                _mm256_maddubs_epi16(w[k][h], xs)
                            };
                            pairs[h] = if k == i { p } else { _mm256_add_epi16(pairs[h], p) };
                        }
                    }
                    for h in 0..2 {
                        sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(pairs[h], ones));
                    }
                    i += run;
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_i16(sum: I, w: I, x: i32) -> I {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let x = _mm256_set1_epi32(x);
            [
                _mm256_add_epi32(sum[0], _mm256_madd_epi16(w[0], x)),
                _mm256_add_epi32(sum[1], _mm256_madd_epi16(w[1], x)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16(sum: F, w: I, x: u32) -> F {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let sum = Self::fma(Self::bf16_low(w), Self::splat(f32::from_bits(x << 16)), sum);
            Self::fma(Self::bf16_high(w), Self::splat(f32::from_bits(x & 0xffff_0000)), sum)
        }
    }
}
