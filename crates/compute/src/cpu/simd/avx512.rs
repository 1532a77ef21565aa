//! [`Simd`] with AVX-512 (F, BW, VL, DQ, VNNI): a vector is one register.

use super::{Kernel, Simd, byte_of_dwords, simd_fns};
use std::arch::x86_64::*;

/// Runs a kernel compiled for AVX-512 with VNNI.
///
/// # Safety
/// *Memory*: that of [`Kernel::run`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) {
    // SAFETY: this function is compiled for the instruction set of `Avx512<false>`, and whoever calls it has it (1); memory is the
    // kernel's own (2).
    unsafe { kernel.run::<Avx512<false>>() }
}

/// Runs a kernel compiled for AVX-512 with VNNI and BF16.
///
/// # Safety
/// *Memory*: that of [`Kernel::run`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) {
    // SAFETY: the same for `Avx512<true>`.
    unsafe { kernel.run::<Avx512<true>>() }
}

/// The implementation; the parameter says whether there are dot products of BF16 numbers.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const BF16: bool>;

/// Lanes whose upper half is the nearest BF16 number, ties to even.
///
/// # Safety
/// *Instructions*: those of [`Avx512`].
#[inline(always)]
unsafe fn rounded(x: __m512) -> __m512i {
    // SAFETY: only registers; the instructions are this function's contract.
    unsafe {
        // Half of the last place that stays, less one where that place is even.
        let bits = _mm512_castps_si512(x);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)))
    }
}

/// 16 BF16 numbers, by one instruction where there is one.
///
/// # Safety
/// *Instructions*: those of [`Avx512`] with `BF16`.
#[inline(always)]
unsafe fn nearest_bf16<const BF16: bool>(x: __m512) -> __m256i {
    // SAFETY: only registers; the instructions are this function's contract. __m256bh holds any 256 bits.
    unsafe {
        if BF16 {
            return std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x));
        }
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(rounded(x)))
    }
}

/// Adds the products of two 16-bit numbers in every lane. In place of the intrinsic, of which the compiler makes two instructions where
/// several sums follow each other.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn multiply_add_i16(mut sum: __m512i, w: __m512i, x: __m512i) -> __m512i {
    // SAFETY: the function is compiled for the instruction, which changes its first operand alone.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sum}, {w}, {x}",
            sum = inout(zmm_reg) sum,
            w = in(zmm_reg) w,
            x = in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type I = __m512i;
    type F = __m512;
    const CENTERS_BYTES: bool = false;
    const REGISTERS: usize = 32;
    const HAS_BF16_DOT: bool = BF16;

    simd_fns! {
        registers:
        fn first(v: __m512) -> f32 = _mm512_cvtss_f32(v);
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn splat_i32(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn to_f32(v: __m512i) -> __m512 = _mm512_cvtepi32_ps(v);
        fn add_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn mul_i32(a: __m512i, b: __m512i) -> __m512i = _mm512_mullo_epi32(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(b, a);
        fn scale(v: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(v, n);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn bf16_low(v: __m512i) -> __m512 = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v));
        fn bf16_high(v: __m512i) -> __m512 =
            _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(0xffff_0000_u32 as i32)));
        fn and(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn lookup(table: __m512i, codes: __m512i) -> __m512i = _mm512_shuffle_epi8(table, codes);
        fn shr_by(v: __m512i, n: u32) -> __m512i = _mm512_srl_epi16(v, _mm_cvtsi32_si128(n as i32));
        fn pair(low: __m512i, high: __m512i) -> __m512i = _mm512_or_si512(low, _mm512_slli_epi32::<16>(high));
        fn dot_i16(sum: __m512i, w: __m512i, x: i32) -> __m512i =
            multiply_add_i16(sum, w, _mm512_set1_epi32(x));
    }

    simd_fns! {
        memory:
        fn prefetch(p: *const u8) = _mm_prefetch::<_MM_HINT_T0>(p.cast());
        fn prefetch_l2(p: *const u8) = _mm_prefetch::<_MM_HINT_T1>(p.cast());
        fn load(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        fn store(p: *mut u8, v: __m512i) = _mm512_storeu_si512(p.cast(), v);
        fn load_u8(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        fn load_i8(p: *const u8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
        fn load_i8_as_i16(p: *const u8) -> __m512i = _mm512_cvtepi8_epi16(_mm256_loadu_si256(p.cast()));
        fn load_f16(p: *const u8) -> __m512 = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        fn load_f32(p: *const f32) -> __m512 = _mm512_loadu_ps(p);
        fn store_f32(p: *mut f32, v: __m512) = _mm512_storeu_ps(p, v);
        fn store_bf16(p: *mut u8, v: __m512) = _mm256_storeu_si256(p.cast(), nearest_bf16::<BF16>(v));
        fn store_i16(p: *mut u8, v: __m512) =
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)));
    }

    #[inline(always)]
    unsafe fn load_in_order(p: *const u8) -> __m512i {
        // SAFETY: 64 readable bytes at a multiple of 64 (`Simd`, 2), of which any are a vector.
        unsafe { p.cast::<__m512i>().read_volatile() }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> __m512 {
        // SAFETY: 32 readable bytes (`Simd`, 2), loaded without alignment; the instructions are there (1).
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    // As integers, infinities lie above all numbers and NaN above infinities.
    #[inline(always)]
    unsafe fn max_magnitude(a: __m512, b: __m512) -> __m512 {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            let bits = |x| _mm512_castps_si512(_mm512_abs_ps(x));
            _mm512_castsi512_ps(_mm512_max_epi32(bits(a), bits(b)))
        }
    }

    #[inline(always)]
    unsafe fn swap<const N: usize>(v: __m512) -> __m512 {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe {
            match N {
                8 => _mm512_shuffle_f32x4::<0b01_00_11_10>(v, v),
                4 => _mm512_shuffle_f32x4::<0b10_11_00_01>(v, v),
                2 => _mm512_permute_ps::<0b01_00_11_10>(v),
                1 => _mm512_permute_ps::<0b10_11_00_01>(v),
                _ => unreachable!("lanes {N} apart"),
            }
        }
    }

    #[inline(always)]
    unsafe fn bf16_pairs(first: __m512, second: __m512) -> __m512i {
        if BF16 {
            // Element 2 · i is number i of the low half, which is `first`; element 2 · i + 1 that of the high half.
            const INTERLEAVED: [u16; 32] = {
                let mut order = [0; 32];
                let mut i = 0;
                while i < 16 {
                    (order[2 * i], order[2 * i + 1]) = (i as u16, i as u16 + 16);
                    i += 1;
                }
                order
            };
            // SAFETY: __m512bh holds any 512 bits; the table has 64 bytes.
            unsafe {
                let halves = std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
                _mm512_permutexvar_epi16(_mm512_loadu_si512(INTERLEAVED.as_ptr().cast()), halves)
            }
        } else {
            // SAFETY: only registers; the instructions are there (`Simd`, 1).
            unsafe {
                let low = _mm512_srli_epi32::<16>(rounded(first));
                _mm512_mask_blend_epi16(0xaaaa_aaaa, low, rounded(second))
            }
        }
    }

    #[inline(always)]
    unsafe fn load_f16_as_bf16(p: *const u8) -> __m512i {
        // SAFETY: 64 readable bytes (`Simd`, 2), loaded as two vectors of 32; the instructions are there (1).
        unsafe {
            let (first, second) = (Self::load_f16(p), Self::load_f16(p.add(32)));
            if BF16 {
                // SAFETY: __m512bh holds any 512 bits.
                return std::mem::transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first));
            }
            let low = _mm512_castsi256_si512(nearest_bf16::<false>(first));
            _mm512_inserti64x4::<1>(low, nearest_bf16::<false>(second))
        }
    }

    #[inline(always)]
    unsafe fn table(bytes: &[u8; 16]) -> __m512i {
        // SAFETY: the reference's 16 bytes are readable; the instructions are there (`Simd`, 1).
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: __m512i) -> __m512i {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe { _mm512_slli_epi16::<N>(v) }
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: __m512i) -> __m512i {
        // SAFETY: only registers; the instructions are there (`Simd`, 1).
        unsafe { _mm512_srli_epi16::<N>(v) }
    }

    #[inline(always)]
    unsafe fn byte<const J: usize>(v: __m512i) -> __m512i {
        // SAFETY: the reference's 16 bytes are readable; the instructions are there (`Simd`, 1).
        unsafe {
            _mm512_shuffle_epi8(
                v,
                _mm512_broadcast_i32x4(_mm_loadu_si128(byte_of_dwords::<J>().as_ptr().cast())),
            )
        }
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const MAX: u8, const R: usize>(
        sums: &mut [__m512i; R],
        w: &[__m512i; N],
        x: *const i8,
    ) {
        for i in 0..N {
            for r in 0..R {
                // Neighbouring instructions belong to different sums, so that none waits for the one before it.
                // SAFETY: 4·N readable bytes for each sum (`Simd`, 2), of which this reads dword after dword; the instructions are there (1).
                sums[r] = unsafe {
                    let x = x.add(32 * r + 4 * i).cast::<i32>().read_unaligned();
                    _mm512_dpbusd_epi32(sums[r], w[i], _mm512_set1_epi32(x))
                };
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_bf16(sum: __m512, w: __m512i, x: u32) -> __m512 {
        if BF16 {
            // SAFETY: __m512bh holds any 512 bits.
            unsafe {
                let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32));
                _mm512_dpbf16_ps(sum, std::mem::transmute::<__m512i, __m512bh>(w), x)
            }
        } else {
            // SAFETY: only registers; the instructions are there (`Simd`, 1).
            unsafe {
                let sum = Self::fma(Self::bf16_low(w), Self::splat(f32::from_bits(x << 16)), sum);
                Self::fma(Self::bf16_high(w), Self::splat(f32::from_bits(x & 0xffff_0000)), sum)
            }
        }
    }
}
