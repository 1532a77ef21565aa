//! The packed layouts of weights, one file per element type, and the table that chooses one.

#[cfg(target_arch = "x86_64")]
mod amx;
mod bf16;
mod decoded;
mod f16;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use super::layout::Layout;
use crate::DType;
use crate::cpu::isa::Isa;

/// The layout that serves a type best on `isa`; with `exact`, one that keeps activations in `f32`.
pub(super) fn select(dtype: DType, isa: Isa, exact: bool) -> &'static dyn Layout {
    let dots_bf16 = isa >= Isa::Avx512Bf16 && !exact;
    #[cfg(target_arch = "x86_64")]
    if isa >= Isa::AmxBf16 && !exact {
        match dtype {
            DType::F16 => return &amx::F16_LAYOUT,
            DType::BF16 => return &amx::BF16_LAYOUT,
            _ => {}
        }
    }
    match dtype {
        DType::F16 if dots_bf16 => &f16::DOT_LAYOUT,
        DType::F16 => &f16::LAYOUT,
        DType::BF16 if dots_bf16 => &bf16::DOT_LAYOUT,
        DType::BF16 => &bf16::LAYOUT,
        _ if exact => dtype.spec(),
        DType::F32 => dtype.spec(),
        DType::Q4_0 => &q4_0::LAYOUT,
        DType::Q4_1 => &q4_1::LAYOUT,
        DType::Q5_0 => &q5_0::LAYOUT,
        DType::Q5_1 => &q5_1::LAYOUT,
        DType::Q8_0 => &q8_0::LAYOUT,
        DType::Q2_K => &q2_k::LAYOUT,
        DType::Q3_K => &q3_k::LAYOUT,
        DType::Q4_K => &q4_k::LAYOUT,
        DType::Q5_K => &q5_k::LAYOUT,
        DType::Q6_K => &q6_k::LAYOUT,
        DType::IQ1_S => &iq1_s::LAYOUT,
        DType::IQ1_M => &iq1_m::LAYOUT,
        DType::IQ2_XXS => &iq2_xxs::LAYOUT,
        DType::IQ2_XS => &iq2_xs::LAYOUT,
        DType::IQ2_S => &iq2_s::LAYOUT,
        DType::IQ3_XXS => &iq3_xxs::LAYOUT,
        DType::IQ3_S => &iq3_s::LAYOUT,
        DType::IQ4_NL => &iq4_nl::LAYOUT,
        DType::IQ4_XS => &iq4_xs::LAYOUT,
        DType::TQ1_0 => &tq1_0::LAYOUT,
        DType::TQ2_0 => &tq2_0::LAYOUT,
        DType::MXFP4 => &mxfp4::LAYOUT,
        DType::NVFP4 => &nvfp4::LAYOUT,
        DType::Q1_0 => &q1_0::LAYOUT,
    }
}
