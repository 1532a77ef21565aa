//! How a model's authors say that its tokens should be chosen: `generation_config.json`, or `general.sampling.*` of a GGUF file.

use crate::metadata::Metadata;
use crate::source::{Format, TensorSource};
use crate::{Error, Result};
use realizar_compute::sampling::{SamplingOverrides, SamplingParams};

/// The parameters that files recommend: the name in `generation_config.json`, which is also ours, and in GGUF.
const HINTS: &[(&str, &str)] = &[
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
];

/// Reads what a model's files recommend. Ranges are not checked here.
///
/// Errors: an entry of another type than it should have.
pub fn sampling_hints(source: &dyn TensorSource) -> Result<SamplingOverrides> {
    let (meta, mut hints) = (source.metadata(), SamplingOverrides::default());
    for &(name, gguf_name) in HINTS {
        let value = match source.format() {
            Format::Safetensors => meta.get_f32(&format!("generation_config.{name}"))?,
            Format::Gguf => meta.get_f32(&format!("general.sampling.{gguf_name}"))?,
        };
        match value {
            // Some files turn it off by -1.
            Some(k) if name == "top_k" => hints.set(name, k.max(0.0).trunc()),
            Some(value) => hints.set(name, value),
            None => {}
        }
    }
    if source.format() == Format::Safetensors {
        match meta.get_bool("generation_config.do_sample")? {
            Some(false) => hints.set("temperature", 0.0),
            // What the transformers library does where the file has no temperature.
            Some(true) if hints.get("temperature").is_none() => hints.set("temperature", 1.0),
            Some(true) | None => {}
        }
    }
    Ok(hints)
}

/// How tokens are chosen where nobody says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// The parameters.
    pub params: SamplingParams,
    /// Whether they are what the model's files recommend.
    pub are_recommended: bool,
}

/// How tokens are chosen where neither a person nor a request says. If the model's files recommend anything, then that, and what they
/// leave out is off; otherwise temperature 0.8, top-k 40, top-p 0.95 and min-p 0.05.
///
/// Errors: a recommendation of a wrong type or out of its range.
pub fn sampling_defaults(source: &dyn TensorSource) -> Result<SamplingDefaults> {
    let hints = sampling_hints(source)?;
    let are_recommended = hints != SamplingOverrides::default();
    let unsaid = match are_recommended {
        true => SamplingParams::default(),
        false => SamplingParams {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            ..SamplingParams::default()
        },
    };
    let params = hints.over(unsaid).map_err(|why| {
        Error::malformed(source.path(), format!("the recommended sampling cannot be used: {why}"))
    })?;
    Ok(SamplingDefaults { params, are_recommended })
}

/// Writes them under GGUF's keys.
pub(crate) fn write_gguf(hints: &SamplingOverrides, to: &mut Metadata) -> Result<()> {
    for &(name, gguf_name) in HINTS {
        let key = format!("general.sampling.{gguf_name}");
        match hints.get(name) {
            Some(k) if name == "top_k" => {
                if !(0.0..i32::MAX as f32).contains(&k) {
                    return Err(Error::malformed(to.path(), format!("top_k is {k}")));
                }
                to.insert(key, k as i32)?;
            }
            Some(value) => to.insert(key, value)?,
            None => {}
        }
    }
    Ok(())
}
