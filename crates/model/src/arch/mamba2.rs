//! The hyper-parameters of Mamba-2 layers, which several hybrids have.

use crate::Result;
use crate::config::{Mamba2, Presence};
use crate::hyper::Hyper;
use realizar_compute::{DtLimits, MAX_CONV_WIDTH, SsmShape};

/// The keys of `config.json` under which a family states what GGUF has one name for.
pub(super) struct HfKeys {
    pub(super) n_heads: &'static str,
    pub(super) head_dim: &'static str,
    pub(super) n_groups: &'static str,
    pub(super) state_dim: &'static str,
    pub(super) conv_width: &'static str,
    pub(super) conv_bias: &'static str,
}

/// Sizes of Mamba-2 layers.
///
/// Errors: sizes that no layer can have; a key that is missing.
pub(super) fn read(h: &Hyper<'_>, keys: &HfKeys) -> Result<Mamba2> {
    /// More heads, or elements in one, are a damaged file.
    const MAX: usize = 1 << 12;
    let need = |gguf: &str, hf: &str| {
        let found = if h.is_gguf() { h.gguf_usize(gguf)? } else { h.hf_usize(hf)? };
        found.ok_or_else(|| h.missing_key(if h.is_gguf() { gguf } else { hf }))
    };
    let n_heads = need("ssm.time_step_rank", keys.n_heads)?;
    let n_groups = need("ssm.group_count", keys.n_groups)?;
    let state_dim = need("ssm.state_size", keys.state_dim)?;
    let conv_width = need("ssm.conv_kernel", keys.conv_width)?;
    let head_dim = match h.is_gguf() {
        true => {
            let inner = need("ssm.inner_size", "")?;
            inner.checked_div(n_heads).filter(|dim| dim * n_heads == inner).unwrap_or(0)
        }
        false => need("", keys.head_dim)?,
    };
    if [n_heads, head_dim, n_groups, state_dim].iter().any(|n| !(1..=MAX).contains(n)) {
        return Err(h.invalid(format!(
            "Mamba-2 layers have {n_heads} heads of {head_dim} and {n_groups} groups with states of {state_dim}"
        )));
    }
    if !n_heads.is_multiple_of(n_groups) {
        return Err(h.invalid(format!("{n_heads} heads of Mamba-2 layers cannot share {n_groups} groups")));
    }
    if !(2..=MAX_CONV_WIDTH).contains(&conv_width) {
        return Err(h.unsupported(format!(
            "a convolution over {conv_width} tokens, which is not from 2 to {MAX_CONV_WIDTH}"
        )));
    }
    let conv_bias = match h.is_gguf() {
        true => Presence::Optional,
        false if h.hf_bool(keys.conv_bias)?.unwrap_or(true) => Presence::Needed,
        false => Presence::Absent,
    };
    let shape = SsmShape { n_heads, head_dim, n_groups, state_dim };
    Ok(Mamba2 { shape, conv_width, conv_bias, dt_limits: read_dt_limits(h)? })
}

/// Bounds of time steps, which GGUF cannot state.
fn read_dt_limits(h: &Hyper<'_>) -> Result<DtLimits> {
    let stated = if h.is_gguf() { None } else { h.hf_f32s("time_step_limit")? };
    match stated.as_deref() {
        None => Ok(DtLimits::NONE),
        Some(&[min, max]) if min >= 0.0 && max >= min => Ok(DtLimits { min, max }),
        Some(other) => Err(h.invalid(format!("time_step_limit is {other:?}"))),
    }
}
