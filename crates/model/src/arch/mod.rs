//! The architectures: for each one, how its hyper-parameters become a [`ModelConfig`].
//!
//! A new architecture is a file here and a row in [`ARCHS`]; `names.rs` only where it has a weight that nobody had before.

mod bitnet;
mod gemma2;
mod gemma3;
mod glm4;
mod gpt2;
mod lfm2;
mod llama;
mod mistral;
mod mixtral;
mod olmo2;
mod phi2;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen35;
mod qwen3_moe;

use crate::config::ModelConfig;
use crate::hyper::Hyper;
use crate::source::{Format, TensorSource};
use crate::{Error, Result};

/// One architecture.
pub struct ArchSpec {
    /// Our name.
    pub name: &'static str,
    /// `general.architecture` in GGUF.
    pub gguf: &'static [&'static str],
    /// `architectures` in `config.json`.
    pub hf: &'static [&'static str],
    /// Reads the hyper-parameters.
    pub configure: fn(&Hyper<'_>) -> Result<ModelConfig>,
    /// Tensors that files of this architecture are known to have and that change nothing.
    pub ignored: &'static [Ignored],
}

/// Tensors that a model does without.
pub struct Ignored {
    /// Their names in files of any format; `*` stands for any characters.
    pub pattern: &'static str,
    /// Why nothing is lost.
    pub reason: &'static str,
}

/// Buffers that old versions of the reference library saved.
const INV_FREQ: Ignored =
    Ignored { pattern: "*.rotary_emb.inv_freq", reason: "the hyper-parameters say the frequencies" };

/// All architectures.
pub static ARCHS: &[ArchSpec] = &[
    llama::SPEC,
    mistral::SPEC,
    mixtral::SPEC,
    qwen2::SPEC,
    qwen3::SPEC,
    qwen3_moe::SPEC,
    qwen35::SPEC,
    phi2::SPEC,
    phi3::SPEC,
    gemma2::SPEC,
    gemma3::SPEC,
    gpt2::SPEC,
    bitnet::SPEC,
    glm4::SPEC,
    olmo2::SPEC,
    lfm2::SPEC,
];

/// Reads a model's description.
///
/// Errors: `UnknownArchitecture` with the names of those we know; any contradiction in the file.
pub fn configure(source: &dyn TensorSource) -> Result<ModelConfig> {
    let (name, spec) = find(source)?;
    let hyper = Hyper::new(source, &name);
    let config = (spec.configure)(&hyper)?;
    if config.attentions().next().is_none() {
        return Err(hyper.unsupported("a model of which no layer attends"));
    }
    Ok(config)
}

/// The tensors that an architecture does without.
pub(crate) fn ignored(arch: &str) -> &'static [Ignored] {
    ARCHS.iter().find(|a| a.name == arch).map_or(&[], |a| a.ignored)
}

fn find(source: &dyn TensorSource) -> Result<(String, &'static ArchSpec)> {
    let meta = source.metadata();
    let missing = |key: &str| Error::MissingKey { path: source.path().to_owned(), key: key.to_owned() };
    let (name, spec) = match source.format() {
        Format::Gguf => {
            let name =
                meta.get_str("general.architecture")?.ok_or_else(|| missing("general.architecture"))?;
            (name.to_owned(), ARCHS.iter().find(|a| a.gguf.contains(&name)))
        }
        Format::Safetensors => {
            let names = meta.get_strings("architectures")?.ok_or_else(|| missing("architectures"))?;
            let name = names.first().ok_or_else(|| missing("architectures"))?.to_string();
            let spec = ARCHS.iter().find(|a| a.hf.contains(&name.as_str()));
            (name, spec)
        }
    };
    spec.map(|spec| (name.clone(), spec)).ok_or_else(|| {
        let known = ARCHS.iter().flat_map(|a| match source.format() {
            Format::Gguf => a.gguf,
            Format::Safetensors => a.hf,
        });
        Error::UnknownArchitecture {
            path: source.path().to_owned(),
            found: name,
            known: known.copied().collect::<Vec<_>>().join(", "),
        }
    })
}
