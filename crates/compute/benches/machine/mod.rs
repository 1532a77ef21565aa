//! What the machine can do at most, measured: the share of it that a kernel reaches says more than GB/s or GOP/s.
#![allow(missing_docs, dead_code)]

use realizar_compute::DType;
use realizar_compute::cpu::isa::Isa;
use realizar_compute::cpu::threads::Pool;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Operations per second, in units of 10^9, of the multiplying instruction that products with weights of this type use, from
/// registers, on every thread; `None` where there is no such measurement for the instruction set.
pub(crate) fn peak_gop_s(pool: &Pool, dtype: DType, isa: Isa) -> Option<f64> {
    let kind = match dtype {
        DType::F32 => Kind::F32,
        DType::F16 | DType::BF16 if isa == Isa::Avx512Bf16 => Kind::Bf16,
        DType::F16 | DType::BF16 => Kind::F32,
        _ => Kind::Int8,
    };
    let mut best = 0.0_f64;
    for _ in 0..7 {
        let operations = AtomicU64::new(0);
        let start = Instant::now();
        pool.run(|_, _| {
            operations.fetch_add(spin(kind, isa).unwrap_or(0), Ordering::Relaxed);
        });
        let speed = operations.into_inner() as f64 / start.elapsed().as_secs_f64() / 1e9;
        best = best.max(speed);
    }
    (best > 0.0).then_some(best)
}

#[derive(Clone, Copy)]
enum Kind {
    F32,
    Bf16,
    Int8,
}

const TURNS: u64 = 300_000;

#[cfg(target_arch = "x86_64")]
fn spin(kind: Kind, isa: Isa) -> Option<u64> {
    // SAFETY: `isa` is available, or the caller could not have it.
    unsafe {
        match (kind, isa) {
            (Kind::Int8, Isa::Avx512 | Isa::Avx512Bf16) => Some(int8_avx512()),
            (Kind::Bf16, Isa::Avx512Bf16) => Some(bf16_avx512()),
            (Kind::F32, Isa::Avx512 | Isa::Avx512Bf16) => Some(f32_avx512()),
            (Kind::F32, Isa::Avx2) => Some(f32_avx2()),
            (Kind::Int8, Isa::Avx2) => Some(int8_avx2()),
            _ => None,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn spin(_: Kind, _: Isa) -> Option<u64> {
    None
}

/// Twelve independent sums cover the instruction's latency.
#[cfg(target_arch = "x86_64")]
macro_rules! spin {
    ($name:ident, $features:literal, $zero:expr, $one:expr, $step:expr, $operations:literal) => {
        #[target_feature(enable = $features)]
        pub(crate) fn $name() -> u64 {
            let (mut sums, one) = ([black_box($zero); 12], black_box($one));
            for _ in 0..TURNS {
                for sum in &mut sums {
                    *sum = $step(*sum, one);
                }
            }
            black_box(sums);
            TURNS * 12 * $operations
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod kinds {
    use super::*;
    use std::arch::x86_64::*;
    spin!(
        int8_avx512,
        "avx512f,avx512vnni",
        _mm512_setzero_si512(),
        _mm512_set1_epi8(1),
        |s, x| _mm512_dpbusd_epi32(s, x, x),
        128
    );
    spin!(
        bf16_avx512,
        "avx512f,avx512bf16",
        _mm512_setzero_ps(),
        _mm512_cvtne2ps_pbh(_mm512_set1_ps(1.0), _mm512_set1_ps(1.0)),
        |s, x| _mm512_dpbf16_ps(s, x, x),
        64
    );
    spin!(
        f32_avx512,
        "avx512f",
        _mm512_setzero_ps(),
        _mm512_set1_ps(1.0),
        |s, x| _mm512_fmadd_ps(x, x, s),
        32
    );
    spin!(
        f32_avx2,
        "avx2,fma",
        _mm256_setzero_ps(),
        _mm256_set1_ps(1.0),
        |s, x| _mm256_fmadd_ps(x, x, s),
        16
    );
    spin!(
        int8_avx2,
        "avx2",
        _mm256_setzero_si256(),
        _mm256_set1_epi8(1),
        |s, x| _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_maddubs_epi16(x, x), x)),
        64
    );
}
#[cfg(target_arch = "x86_64")]
use kinds::*;
