//! Instruction sets of the processor: found once, chosen by the caller, so that tests can force each in turn.

use std::fmt;
use std::sync::OnceLock;

/// A family of instructions that the kernels are written for, from the plainest to the richest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Isa {
    /// Plain Rust; the compiler vectorizes it for the target it was told of.
    Portable,
    /// x86-64 with AVX2, FMA and F16C: Intel since 2013, AMD since 2015.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI: Intel servers since 2019, AMD since Zen 4.
    Avx512,
    /// [`Isa::Avx512`] and dot products of BF16 numbers: Intel servers since 2020, AMD since Zen 4.
    Avx512Bf16,
    /// [`Isa::Avx512Bf16`] and AMX, which multiplies tiles of BF16 numbers: Intel servers since 2023.
    AmxBf16,
}

impl Isa {
    /// What this processor can run, plainest first. Never empty.
    pub fn available() -> &'static [Isa] {
        static FOUND: OnceLock<Vec<Isa>> = OnceLock::new();
        FOUND.get_or_init(|| {
            let found = detect();
            tracing::info!(available = ?found, "instruction sets of the processor");
            found
        })
    }

    /// The richest instruction set of this processor.
    pub fn best() -> Isa {
        Self::available().iter().copied().max().unwrap_or(Isa::Portable)
    }

    /// Whether this processor can run it.
    pub fn is_available(self) -> bool {
        Self::available().contains(&self)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::AmxBf16 => "amx-bf16",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Isa> {
    let mut found = vec![Isa::Portable];
    let avx2 = is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni");
    if avx2 {
        found.push(Isa::Avx2);
    }
    if avx512 {
        found.push(Isa::Avx512);
    }
    if avx512 && is_x86_feature_detected!("avx512bf16") {
        found.push(Isa::Avx512Bf16);
        if has_amx_bf16() {
            found.push(Isa::AmxBf16);
        }
    }
    found
}

/// Whether the processor has AMX for BF16 and the system lets this process use its registers.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn has_amx_bf16() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    use std::ffi::c_long;
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    const LEAF: u32 = 7;
    /// AMX-BF16 and AMX-TILE.
    const AMX: u32 = 1 << 22 | 1 << 24;
    const SYS_ARCH_PRCTL: c_long = 158;
    const ARCH_REQ_XCOMP_PERM: c_long = 0x1023;
    /// The registers' number among those that the system saves.
    const XTILEDATA: c_long = 18;
    if __cpuid(0).eax < LEAF || __cpuid_count(LEAF, 0).edx & AMX != AMX {
        return false;
    }
    // SAFETY: the call asks for a permission and touches no memory; Linux older than 5.16 answers with an error. Threads that are started later
    // inherit it.
    unsafe { syscall(SYS_ARCH_PRCTL, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 }
}

#[cfg(all(target_arch = "x86_64", not(target_os = "linux")))]
fn has_amx_bf16() -> bool {
    false
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<Isa> {
    vec![Isa::Portable]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_portable_path_is_always_there_and_the_list_is_ordered() {
        let found = Isa::available();
        assert_eq!(found[0], Isa::Portable);
        assert!(found.is_sorted());
        assert_eq!(Isa::best(), found[found.len() - 1]);
        assert!(found.iter().all(|isa| isa.is_available()));
    }
}
