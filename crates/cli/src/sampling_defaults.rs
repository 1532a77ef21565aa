//! How a model's makers want its tokens chosen.

use anyhow::Result;
use realizar::SamplingParams;
use realizar_model::source::{Format, TensorSource};

/// What the model's generation_config.json says, and where it says nothing, `defaults`.
pub(crate) fn of_model(source: &dyn TensorSource, defaults: SamplingParams) -> Result<SamplingParams> {
    if source.format() != Format::Safetensors {
        return Ok(defaults);
    }
    let number = |key: &str| source.metadata().get_f32(&format!("generation_config.{key}"));
    let greedy = source.metadata().get_bool("generation_config.do_sample")? == Some(false);
    let temperature = if greedy { Some(0.0) } else { number("temperature")? };
    Ok(SamplingParams {
        temperature: temperature.unwrap_or(defaults.temperature),
        top_k: number("top_k")?.map_or(defaults.top_k, |k| k.max(0.0) as usize),
        top_p: number("top_p")?.unwrap_or(defaults.top_p),
        min_p: number("min_p")?.unwrap_or(defaults.min_p),
        repetition_penalty: number("repetition_penalty")?.unwrap_or(defaults.repetition_penalty),
        ..defaults
    })
}
