//! Rotary embedding: how fast each pair of a head turns, with the scalings that stretch a model's context.

use crate::Result;
use crate::hyper::Hyper;
use crate::values;
use realizar_compute::RopeStyle;

/// One kind of rotation; a model may have one for all layers, or one for local and one for global layers.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Elements of a head that turn, from its first on; even.
    pub dim: usize,
    /// Which elements form a pair.
    pub style: RopeStyle,
    /// The slowest pair turns about once in `2π · theta` positions.
    pub theta: f32,
    /// Stretching.
    pub scaling: RopeScaling,
}

/// How rotation is slowed down for contexts longer than the model was first trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All positions divided by a factor (Chen et al. 2023).
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// A larger base where the context is longer than `trained_context` ("NTK-aware").
    Dynamic {
        /// How much longer contexts may get.
        factor: f32,
        /// Context of the training, in tokens.
        trained_context: usize,
    },
    /// A blend by frequency (Peng et al. 2023).
    Yarn {
        /// How much longer contexts may get.
        factor: f32,
        /// Context of the first training, in tokens.
        trained_context: usize,
        /// Pairs that turn more often than this in `trained_context` stay.
        beta_fast: f32,
        /// Pairs that turn less often than this are slowed by the whole factor.
        beta_slow: f32,
        /// Whether the ends of the blend are rounded to whole pairs.
        truncate: bool,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
    /// As Llama 3.1 was trained: by wavelength.
    Llama3 {
        /// Divisor of slow pairs.
        factor: f32,
        /// Wavelengths above `trained_context / low_freq_factor` are slow.
        low_freq_factor: f32,
        /// Wavelengths below `trained_context / high_freq_factor` stay.
        high_freq_factor: f32,
        /// Context of the first training, in tokens.
        trained_context: usize,
    },
    /// A divisor for each pair.
    Factors(
        /// `[dim / 2]`
        Vec<f32>,
    ),
    /// A divisor for each pair, one list for short and one for long contexts (Ding et al. 2024).
    LongRope {
        /// For contexts of up to `trained_context` tokens, `[dim / 2]`.
        short: Vec<f32>,
        /// For longer ones, `[dim / 2]`.
        long: Vec<f32>,
        /// Context of the first training, in tokens.
        trained_context: usize,
        /// Factor on cosine and sine.
        attention_factor: f32,
    },
}

impl RopeConfig {
    /// Angles per position of each pair, `[dim / 2]`, and the factor on cosine and sine, for contexts of up to `n_ctx` tokens.
    ///
    /// Scalings that depend on the length of the context take the longest that the cache can hold, so that keys in the cache never
    /// have to turn again.
    pub fn frequencies(&self, n_ctx: usize) -> (Vec<f32>, f32) {
        let dim = self.dim as f32;
        let plain = |theta: f32| (0..self.dim / 2).map(move |i| 1.0 / theta.powf((2 * i) as f32 / dim));
        let divided = |by: &[f32]| plain(self.theta).zip(by).map(|(f, d)| f / d).collect();
        match &self.scaling {
            RopeScaling::None => (plain(self.theta).collect(), 1.0),
            RopeScaling::Linear { factor } => (plain(self.theta).map(|f| f / factor).collect(), 1.0),
            RopeScaling::Dynamic { factor, trained_context } => {
                let ratio = n_ctx.max(*trained_context) as f32 / *trained_context as f32;
                let theta = self.theta * (factor * ratio - (factor - 1.0)).powf(dim / (dim - 2.0));
                (plain(theta).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                trained_context,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor,
            } => {
                let pair_that_turns = |times: f32| {
                    dim * (*trained_context as f32 / (times * std::f32::consts::TAU)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (pair_that_turns(*beta_fast), pair_that_turns(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(dim - 1.0));
                if low == high {
                    high += 0.001;
                }
                let f = plain(self.theta).enumerate().map(|(i, f)| {
                    let slow = ((i as f32 - low) / (high - low)).clamp(0.0, 1.0);
                    f / factor * slow + f * (1.0 - slow)
                });
                (f.collect(), *attention_factor)
            }
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, trained_context } => {
                let trained = *trained_context as f32;
                let f = plain(self.theta).map(|f| {
                    let wavelength = std::f32::consts::TAU / f;
                    if wavelength < trained / high_freq_factor {
                        f
                    } else if wavelength > trained / low_freq_factor {
                        f / factor
                    } else {
                        let keep =
                            (trained / wavelength - low_freq_factor) / (high_freq_factor - low_freq_factor);
                        (1.0 - keep) * f / factor + keep * f
                    }
                });
                (f.collect(), 1.0)
            }
            RopeScaling::Factors(by) => (divided(by), 1.0),
            RopeScaling::LongRope { short, long, trained_context, attention_factor } => {
                (divided(if n_ctx > *trained_context { long } else { short }), *attention_factor)
            }
        }
    }
}

/// YaRN's factor on cosine and sine (eq. 22).
pub(crate) fn yarn_magnitude(factor: f32, log_multiplier: f32) -> f32 {
    if factor <= 1.0 { 1.0 } else { 0.1 * log_multiplier * factor.ln() + 1.0 }
}

/// Reads the scaling of the model's (global) rotation.
///
/// `dim` is the number of elements that turn and `context` the model's stated context length.
pub(crate) fn read_scaling(h: &Hyper<'_>, dim: usize, context: usize) -> Result<RopeScaling> {
    let scaling = if h.is_gguf() { read_gguf(h, dim, context)? } else { read_hf(h, dim, context)? };
    let factors = match &scaling {
        RopeScaling::Factors(f) => vec![f],
        RopeScaling::LongRope { short, long, .. } => vec![short, long],
        _ => vec![],
    };
    for f in factors {
        if f.len() != dim / 2 || f.iter().any(|f| !f.is_finite() || *f <= 0.0) {
            return Err(
                h.invalid(format!("RoPE needs {} positive factors for {dim} rotated elements", dim / 2))
            );
        }
    }
    let factor = match scaling {
        RopeScaling::Linear { factor }
        | RopeScaling::Dynamic { factor, .. }
        | RopeScaling::Yarn { factor, .. }
        | RopeScaling::Llama3 { factor, .. } => factor,
        _ => 1.0,
    };
    if !(factor.is_finite() && factor > 0.0) {
        return Err(h.invalid(format!("RoPE scaling factor {factor} is not a positive number")));
    }
    Ok(scaling)
}

fn read_gguf(h: &Hyper<'_>, dim: usize, context: usize) -> Result<RopeScaling> {
    let source = h.source();
    let trained_context = h.usize("rope_original_context")?.unwrap_or(context);
    let attention_factor = h.gguf_f32("rope.scaling.attn_factor")?.unwrap_or(1.0);
    if source.find("rope_factors_long.weight").is_some() {
        return Ok(RopeScaling::LongRope {
            short: values::vector(source, "rope_factors_short.weight", Some(dim / 2))?,
            long: values::vector(source, "rope_factors_long.weight", Some(dim / 2))?,
            trained_context,
            attention_factor,
        });
    }
    if source.find("rope_freqs.weight").is_some() {
        return Ok(RopeScaling::Factors(values::vector(source, "rope_freqs.weight", Some(dim / 2))?));
    }
    let factor = match h.gguf_f32("rope.scaling.factor")? {
        Some(f) => Some(f),
        None => h.gguf_f32("rope.scale_linear")?,
    };
    // Converters write a factor of 0 for "none".
    let factor = factor.filter(|f| *f != 0.0).unwrap_or(1.0);
    match h.gguf_str("rope.scaling.type")?.unwrap_or("linear") {
        "none" => Ok(RopeScaling::None),
        "linear" if factor == 1.0 => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor }),
        "yarn" => {
            let log_multiplier = h.gguf_f32("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
            let magnitude = match log_multiplier {
                0.0 => yarn_magnitude(factor, 1.0),
                m => yarn_magnitude(factor, 1.0) / yarn_magnitude(factor, m),
            };
            // What `config.json` states in place of the usual factor.
            let stated = h.gguf_f32("rope.scaling.yarn_attn_factor")?;
            Ok(RopeScaling::Yarn {
                factor,
                trained_context,
                beta_fast: h.gguf_f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: h.gguf_f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                truncate: true,
                attention_factor: stated.unwrap_or(magnitude * attention_factor),
            })
        }
        "longrope" => {
            Err(h.invalid("RoPE scaling is longrope, but tensor rope_factors_long.weight is missing"))
        }
        other => {
            Err(h.unsupported(format!("RoPE scaling {other:?} is not one of none, linear, yarn, longrope")))
        }
    }
}

/// A divisor of frequencies with which a pair does not turn within any context.
const STILL: f32 = 1e30;

/// Only the first pairs of a head turn, at the speeds that they have among all of them: the divisors of a head of `dim` elements, of which
/// the part `turning` turns, `factor` times slower.
pub(crate) fn proportional(dim: usize, turning: f32, factor: f32) -> RopeScaling {
    let n_turning = (turning * dim as f32 / 2.0) as usize;
    let divisor = |i| if i < n_turning { factor } else { STILL };
    RopeScaling::Factors((0..dim / 2).map(divisor).collect())
}

fn read_hf(h: &Hyper<'_>, dim: usize, context: usize) -> Result<RopeScaling> {
    // Files of transformers 5 have `rope_parameters`, older ones `rope_scaling`, and gemma 3 has one per kind of layer.
    let sections = ["rope_scaling", "rope_parameters.full_attention", "rope_parameters"];
    let mut kind = None;
    for section in sections {
        for key in ["rope_type", "type"] {
            if kind.is_none() {
                kind = h.hf_str(&format!("{section}.{key}"))?.map(|k| (section, k));
            }
        }
    }
    let Some((section, kind)) = kind else { return Ok(RopeScaling::None) };
    let number = |key: &str| h.hf_f32(&format!("{section}.{key}"));
    let need = |key: &str| {
        number(key)?
            .ok_or_else(|| h.invalid(format!("RoPE scaling {kind:?} needs {section}.{key} in config.json")))
    };
    let trained_context = match h.usize("rope_original_context")? {
        Some(n) => n,
        None => h.hf_usize(&format!("{section}.original_max_position_embeddings"))?.unwrap_or(context),
    };
    let stretched = context as f32 / trained_context as f32;
    Ok(match kind {
        "default" | "mrope" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: need("factor")? },
        "proportional" => {
            let turning = number("partial_rotary_factor")?.unwrap_or(1.0);
            proportional(dim, turning, number("factor")?.unwrap_or(1.0))
        }
        "dynamic" => RopeScaling::Dynamic { factor: need("factor")?, trained_context: context },
        "llama3" => RopeScaling::Llama3 {
            factor: need("factor")?,
            low_freq_factor: need("low_freq_factor")?,
            high_freq_factor: need("high_freq_factor")?,
            trained_context,
        },
        "longrope" | "su" => {
            let factors = |key: &str| {
                h.hf_f32s(&format!("{section}.{key}"))?.ok_or_else(|| {
                    h.invalid(format!("RoPE scaling {kind:?} needs {section}.{key} in config.json"))
                })
            };
            let factor = number("factor")?.unwrap_or(stretched);
            let attention_factor = match number("attention_factor")? {
                Some(a) => a,
                None if factor <= 1.0 => 1.0,
                None => (1.0 + factor.ln() / (trained_context as f32).ln()).sqrt(),
            };
            RopeScaling::LongRope {
                short: factors("short_factor")?,
                long: factors("long_factor")?,
                trained_context,
                attention_factor,
            }
        }
        "yarn" => {
            let factor = number("factor")?.unwrap_or(stretched);
            let mscale = number("mscale")?.filter(|m| *m != 0.0);
            let mscale_all = number("mscale_all_dim")?.filter(|m| *m != 0.0);
            let attention_factor = match (number("attention_factor")?, mscale, mscale_all) {
                (Some(a), ..) => a,
                (None, Some(m), Some(all)) => yarn_magnitude(factor, m) / yarn_magnitude(factor, all),
                _ => yarn_magnitude(factor, 1.0),
            };
            RopeScaling::Yarn {
                factor,
                trained_context,
                beta_fast: number("beta_fast")?.unwrap_or(32.0),
                beta_slow: number("beta_slow")?.unwrap_or(1.0),
                truncate: h.hf_bool(&format!("{section}.truncate"))?.unwrap_or(true),
                attention_factor,
            }
        }
        other => {
            return Err(h.unsupported(format!(
                "RoPE scaling {other:?} is not one of default, linear, dynamic, proportional, yarn, llama3, longrope"
            )));
        }
    })
}
