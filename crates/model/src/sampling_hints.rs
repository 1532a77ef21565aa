//! How a model's authors say that its tokens should be chosen: `generation_config.json`, or `general.sampling.*` of a GGUF file.

use crate::metadata::Metadata;
use crate::source::{Format, TensorSource};
use crate::{Error, Result};

/// What a model's files recommend; `None` where they are silent. Ranges are not checked here.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingHints {
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: Option<f32>,
    /// Likeliest tokens to keep; 0 keeps all.
    pub top_k: Option<usize>,
    /// Total probability of the likeliest tokens to keep.
    pub top_p: Option<f32>,
    /// Share of the likeliest token's probability that others must reach.
    pub min_p: Option<f32>,
    /// Divides the logits of tokens that are in the text already.
    pub repetition_penalty: Option<f32>,
}

impl SamplingHints {
    /// Reads them.
    ///
    /// Errors: an entry of another type than it should have.
    pub fn read(source: &dyn TensorSource) -> Result<Self> {
        let meta = source.metadata();
        match source.format() {
            Format::Safetensors => {
                let greedy = meta.get_bool("generation_config.do_sample")? == Some(false);
                let temperature = meta.get_f32("generation_config.temperature")?;
                Ok(Self {
                    temperature: if greedy { Some(0.0) } else { temperature },
                    top_k: count(meta, "generation_config.top_k")?,
                    top_p: meta.get_f32("generation_config.top_p")?,
                    min_p: meta.get_f32("generation_config.min_p")?,
                    repetition_penalty: meta.get_f32("generation_config.repetition_penalty")?,
                })
            }
            Format::Gguf => Ok(Self {
                temperature: meta.get_f32("general.sampling.temp")?,
                top_k: count(meta, "general.sampling.top_k")?,
                top_p: meta.get_f32("general.sampling.top_p")?,
                min_p: meta.get_f32("general.sampling.min_p")?,
                repetition_penalty: meta.get_f32("general.sampling.penalty_repeat")?,
            }),
        }
    }

    /// Writes them under GGUF's keys.
    pub(crate) fn write_gguf(&self, to: &mut Metadata) -> Result<()> {
        if let Some(k) = self.top_k {
            let k = i32::try_from(k).map_err(|_| Error::malformed(to.path(), format!("top_k is {k}")))?;
            to.insert("general.sampling.top_k", k)?;
        }
        let numbers = [
            ("temp", self.temperature),
            ("top_p", self.top_p),
            ("min_p", self.min_p),
            ("penalty_repeat", self.repetition_penalty),
        ];
        for (key, value) in numbers {
            if let Some(value) = value {
                to.insert(format!("general.sampling.{key}"), value)?;
            }
        }
        Ok(())
    }
}

/// A count that some files write as a fraction (`50.0`) or, to turn it off, as -1.
fn count(meta: &Metadata, key: &str) -> Result<Option<usize>> {
    Ok(meta.get_f32(key)?.map(|k| k.max(0.0) as usize))
}
