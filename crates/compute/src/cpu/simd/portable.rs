//! [`Simd`] in plain Rust: the meaning of every operation, in loops that the compiler can vectorize.

use super::{LANES, Simd};
use half::{bf16, f16};

/// The implementation for every processor.
#[derive(Clone, Copy)]
pub(super) struct Portable;

#[inline(always)]
fn map<T: Copy + Default, U: Copy + Default>(a: [T; LANES], f: impl Fn(T) -> U) -> [U; LANES] {
    let mut r = [U::default(); LANES];
    for i in 0..LANES {
        r[i] = f(a[i]);
    }
    r
}

#[inline(always)]
fn zip<T: Copy + Default>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> T) -> [T; LANES] {
    let mut r = [T::default(); LANES];
    for i in 0..LANES {
        r[i] = f(a[i], b[i]);
    }
    r
}

/// Reads an array of plain numbers.
///
/// # Safety
/// `p` is readable for the size of `T`.
#[inline(always)]
unsafe fn read<T: bytemuck::AnyBitPattern>(p: *const u8) -> T {
    // SAFETY: so many readable bytes (the contract), of which any pattern is a `T`; the read has no alignment.
    unsafe { p.cast::<T>().read_unaligned() }
}

impl Simd for Portable {
    type I = [i32; LANES];
    type F = [f32; LANES];
    const CENTERS_BYTES: bool = false;
    const REGISTERS: usize = 8;
    const HAS_BF16_DOT: bool = false;

    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch_l2(_p: *const u8) {}

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::I {
        // SAFETY: 64 readable bytes (`Simd`, 2).
        map(unsafe { read::<[i32; LANES]>(p) }, i32::from_le)
    }

    #[inline(always)]
    unsafe fn load_in_order(p: *const u8) -> Self::I {
        // SAFETY: 64 readable bytes (`Simd`, 2).
        unsafe { Self::load(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut u8, v: Self::I) {
        // SAFETY: 64 writable bytes (`Simd`, 2).
        unsafe { p.cast::<[i32; LANES]>().write_unaligned(map(v, i32::to_le)) }
    }

    #[inline(always)]
    unsafe fn load_u8(p: *const u8) -> Self::I {
        // SAFETY: 16 readable bytes (`Simd`, 2).
        map(unsafe { read::<[u8; LANES]>(p) }, i32::from)
    }

    #[inline(always)]
    unsafe fn load_i8(p: *const u8) -> Self::I {
        // SAFETY: 16 readable bytes (`Simd`, 2).
        map(unsafe { read::<[i8; LANES]>(p) }, i32::from)
    }

    #[inline(always)]
    unsafe fn load_i8_as_i16(p: *const u8) -> Self::I {
        // SAFETY: 32 readable bytes (`Simd`, 2).
        map(unsafe { read::<[[i8; 2]; LANES]>(p) }, |[a, b]| i32::from(a) & 0xffff | i32::from(b) << 16)
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const u8) -> Self::F {
        // SAFETY: 32 readable bytes (`Simd`, 2).
        map(unsafe { read::<[u16; LANES]>(p) }, |b| f16::from_bits(u16::from_le(b)).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const u8) -> Self::F {
        // SAFETY: 32 readable bytes (`Simd`, 2).
        map(unsafe { read::<[u16; LANES]>(p) }, |b| f32::from_bits(u32::from(u16::from_le(b)) << 16))
    }

    #[inline(always)]
    unsafe fn load_f32(p: *const f32) -> Self::F {
        // SAFETY: 64 readable bytes (`Simd`, 2).
        unsafe { read(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store_f32(p: *mut f32, v: Self::F) {
        // SAFETY: 64 writable bytes (`Simd`, 2).
        unsafe { p.cast::<[f32; LANES]>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut u8, v: Self::F) {
        // SAFETY: 32 writable bytes (`Simd`, 2).
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(map(v, |x| bf16::from_f32(x).to_bits().to_le())) }
    }

    #[inline(always)]
    unsafe fn store_i16(p: *mut u8, v: Self::F) {
        // Adding 1.5 · 2^23 leaves the nearest integer in the lowest bits.
        let integers = map(v, |x| ((x + 12_582_912.0).to_bits() as u16).to_le());
        // SAFETY: 32 writable bytes (`Simd`, 2).
        unsafe { p.cast::<[u16; LANES]>().write_unaligned(integers) }
    }

    #[inline(always)]
    unsafe fn first(v: Self::F) -> f32 {
        v[0]
    }

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn splat_i32(x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn to_f32(v: Self::I) -> Self::F {
        map(v, |x| x as f32)
    }

    #[inline(always)]
    unsafe fn add_i32(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    unsafe fn mul_i32(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_mul)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| if b > a { b } else { a })
    }

    // As integers, infinities lie above all numbers and NaN above infinities.
    #[inline(always)]
    unsafe fn max_magnitude(a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| f32::from_bits(a.abs().to_bits().max(b.abs().to_bits())))
    }

    #[inline(always)]
    unsafe fn scale(v: Self::F, n: Self::F) -> Self::F {
        zip(v, n, |v, n| v * f32::from_bits(((n as i32 + 127) << 23) as u32))
    }

    #[inline(always)]
    unsafe fn swap<const N: usize>(v: Self::F) -> Self::F {
        let mut r = v;
        for i in 0..LANES {
            r[i] = v[i ^ N];
        }
        r
    }

    // Two roundings: without the instruction, a fused multiply-add is a slow call of the C library.
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        zip(zip(a, b, |a, b| a * b), c, |p, c| p + c)
    }

    #[inline(always)]
    unsafe fn fnma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        zip(zip(a, b, |a, b| a * b), c, |p, c| c - p)
    }

    #[inline(always)]
    unsafe fn bf16_low(v: Self::I) -> Self::F {
        map(v, |x| f32::from_bits((x as u32) << 16))
    }

    #[inline(always)]
    unsafe fn bf16_high(v: Self::I) -> Self::F {
        map(v, |x| f32::from_bits(x as u32 & 0xffff_0000))
    }

    #[inline(always)]
    unsafe fn bf16_pairs(first: Self::F, second: Self::F) -> Self::I {
        let bits = |x: f32| i32::from(bf16::from_f32(x).to_bits());
        zip(map(first, bits), map(second, bits), |l, h| l | h << 16)
    }

    #[inline(always)]
    unsafe fn load_f16_as_bf16(p: *const u8) -> Self::I {
        let round = |x: u16| u32::from(bf16::from_f32(f16::from_bits(x).to_f32()).to_bits());
        // SAFETY: 64 readable bytes (`Simd`, 2).
        map(unsafe { read::<[i32; LANES]>(p) }, |x| {
            let x = i32::from_le(x) as u32;
            (round(x as u16) | round((x >> 16) as u16) << 16) as i32
        })
    }

    #[inline(always)]
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    unsafe fn table(bytes: &[u8; 16]) -> Self::I {
        let dwords = bytemuck::cast::<[u8; 16], [[u8; 4]; 4]>(*bytes);
        std::array::from_fn(|lane| i32::from_le_bytes(dwords[lane % 4]))
    }

    #[inline(always)]
    unsafe fn lookup(table: Self::I, codes: Self::I) -> Self::I {
        let byte = |code: u8| table[usize::from(code >> 2 & 3)].to_le_bytes()[usize::from(code & 3)];
        map(codes, |codes| i32::from_le_bytes(codes.to_le_bytes().map(byte)))
    }

    #[inline(always)]
    unsafe fn shl<const N: u32>(v: Self::I) -> Self::I {
        let mask = (0xffff_u32 << N) & 0xffff;
        map(v, |x| (((x as u32) << N) & (mask | mask << 16)) as i32)
    }

    #[inline(always)]
    unsafe fn shr<const N: u32>(v: Self::I) -> Self::I {
        let mask = 0xffff_u32 >> N;
        map(v, |x| (((x as u32) >> N) & (mask | mask << 16)) as i32)
    }

    #[inline(always)]
    unsafe fn shr_by(v: Self::I, n: u32) -> Self::I {
        let mask = 0xffff_u32 >> n;
        map(v, |x| (((x as u32) >> n) & (mask | mask << 16)) as i32)
    }

    #[inline(always)]
    unsafe fn byte<const J: usize>(v: Self::I) -> Self::I {
        map(v, |x| i32::from(x.to_le_bytes()[J]))
    }

    #[inline(always)]
    unsafe fn pair(low: Self::I, high: Self::I) -> Self::I {
        zip(low, high, |l, h| l | h << 16)
    }

    #[inline(always)]
    unsafe fn dot<const N: usize, const MAX: u8, const R: usize>(
        sums: &mut [Self::I; R],
        w: &[Self::I; N],
        x: *const i8,
    ) {
        for (r, sum) in sums.iter_mut().enumerate() {
            for (i, w) in w.iter().enumerate() {
                // SAFETY: 4·N readable bytes for each sum (`Simd`, 2), of which this reads dword `i`.
                let x = unsafe { read::<[i8; 4]>(x.add(32 * r + 4 * i).cast()) }.map(i32::from);
                for l in 0..LANES {
                    let w = w[l] as u32;
                    sum[l] += (w & 0xff) as i32 * x[0]
                        + (w >> 8 & 0xff) as i32 * x[1]
                        + (w >> 16 & 0xff) as i32 * x[2]
                        + (w >> 24) as i32 * x[3];
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn dot_i16(sum: Self::I, w: Self::I, x: i32) -> Self::I {
        let (x0, x1) = (i32::from(x as i16), x >> 16);
        zip(sum, w, |s, w| s + i32::from(w as i16) * x0 + (w >> 16) * x1)
    }

    #[inline(always)]
    unsafe fn dot_bf16(sum: Self::F, w: Self::I, x: u32) -> Self::F {
        let (x0, x1) = (bf16::from_bits(x as u16).to_f32(), bf16::from_bits((x >> 16) as u16).to_f32());
        // SAFETY: any processor has the portable path's instructions (`Simd`, 1), and these functions only use registers.
        unsafe {
            let sum = Self::fma(Self::bf16_low(w), Self::splat(x0), sum);
            Self::fma(Self::bf16_high(w), Self::splat(x1), sum)
        }
    }
}
