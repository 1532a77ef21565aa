//! Which files of a repository make a model.

use super::error::{Context, HubError, Result};
use std::path::PathBuf;

/// What a folder of safetensors may have beside its weights.
const COMPANIONS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// Whether a name can be part of paths and addresses.
pub(super) fn is_plain(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | '/');
    name.chars().all(plain) && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

/// The files of a repository that make one model.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Files {
    pub(super) names: Vec<String>,
    /// What to open: one of them, or the folder they are in.
    pub(super) open: PathBuf,
}

impl Files {
    /// `wanted` is a file, a type such as `Q4_K_M`, or nothing: then safetensors are preferred to GGUF, and among several GGUF
    /// models the one of type Q4_K_M. `shards` lists the files that an index names.
    pub(super) fn choose(
        names: &[String],
        wanted: Option<&str>,
        shards: impl FnOnce(&str) -> Result<Vec<String>>,
    ) -> Result<Self> {
        let has = |name: &str| names.iter().any(|n| n == name);
        if let Some(file) = wanted.filter(|file| has(file)) {
            if file.ends_with(".gguf") {
                return Ok(Self::gguf(file));
            }
            if !file.ends_with(".safetensors") {
                return Err(HubError::new(format!("{file} is neither a .gguf nor a .safetensors file")));
            }
        } else if let Some(quant) = wanted {
            return Self::of_type(names, quant);
        }
        let mut weights = match wanted {
            Some(file) => vec![file.to_owned()],
            None if has("model.safetensors") => vec!["model.safetensors".to_owned()],
            None if has(INDEX) => shards(INDEX)?,
            None => match models(names)[..] {
                [] => {
                    return Err(HubError::new("it has no .gguf and no .safetensors files that make a model"));
                }
                [one] => return Ok(Self::gguf(one)),
                _ => {
                    return Self::of_type(names, "Q4_K_M")
                        .context(|| "it has several models and none was named".into());
                }
            },
        };
        if has(INDEX) && wanted.is_none() && !has("model.safetensors") {
            weights.push(INDEX.to_owned());
        }
        weights.extend(COMPANIONS.iter().filter(|c| has(c)).map(|c| (*c).to_owned()));
        let open = match wanted {
            Some(file) => PathBuf::from(file),
            None => PathBuf::new(),
        };
        Ok(Self { names: weights, open })
    }

    /// The GGUF model with this type in its name.
    pub(super) fn of_type(names: &[String], quant: &str) -> Result<Self> {
        let all = models(names);
        let is_wanted = |name: &&str| {
            let (name, quant) = (name.to_ascii_lowercase(), quant.to_ascii_lowercase());
            // Between two signs that separate, so that Q4_K does not mean Q4_K_M.
            name.match_indices(&quant).any(|(at, _)| {
                let edge = |c: Option<char>| c.is_none_or(|c| matches!(c, '-' | '.' | '/'));
                edge(name[..at].chars().next_back()) && edge(name[at + quant.len()..].chars().next())
            })
        };
        let found: Vec<&str> = all.iter().copied().filter(is_wanted).collect();
        match found[..] {
            [one] => Ok(Self::gguf(one)),
            [] => Err(HubError::new(format!(
                "it has no file {quant:?}; its GGUF models are: {}",
                all.join(", ")
            ))),
            _ => Err(HubError::new(format!("{quant:?} may mean {}", found.join(", ")))),
        }
    }

    /// A GGUF file and, if it is one of several parts, the others.
    pub(super) fn gguf(name: &str) -> Self {
        let names = match split_of(name) {
            Some((prefix, count)) => {
                (1..=count).map(|i| format!("{prefix}-{i:05}-of-{count:05}.gguf")).collect()
            }
            None => vec![name.to_owned()],
        };
        Self { open: PathBuf::from(&names[0]), names }
    }
}

/// GGUF models by their only or first file; vision encoders and importance matrices are none.
pub(super) fn models(names: &[String]) -> Vec<&str> {
    let file = |name: &str| name.rsplit('/').next().unwrap_or_default().to_ascii_lowercase();
    names
        .iter()
        .map(String::as_str)
        .filter(|n| n.ends_with(".gguf") && !file(n).starts_with("mmproj") && !file(n).contains("imatrix"))
        .filter(|n| {
            split_of(n).is_none_or(|(prefix, count)| *n == format!("{prefix}-00001-of-{count:05}.gguf"))
        })
        .collect()
}

/// What stands before the number of a part, and the number of parts.
fn split_of(name: &str) -> Option<(&str, usize)> {
    let number = |s: &str| (s.len() == 5).then(|| s.parse::<usize>().ok()).flatten();
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, part) = rest.rsplit_once('-')?;
    let (part, count) = (number(part)?, number(count)?);
    (1..=count).contains(&part).then_some((prefix, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn choose(names: &[&str], wanted: Option<&str>) -> Result<Files> {
        let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
        Files::choose(&names, wanted, |_| Ok(vec!["model-00001-of-00001.safetensors".to_owned()]))
    }

    fn opened(names: &[&str], wanted: Option<&str>) -> String {
        choose(names, wanted).expect("chosen").open.display().to_string()
    }

    const GGUFS: [&str; 5] =
        ["README.md", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "mmproj-m-Q4_K_M.gguf", "sub/m.Q8_0.gguf"];

    #[test]
    fn a_type_picks_the_file_with_it_in_its_name() {
        assert_eq!(opened(&GGUFS, Some("q4_k_s")), "m-Q4_K_S.gguf");
        assert_eq!(opened(&GGUFS, Some("Q8_0")), "sub/m.Q8_0.gguf");
        assert_eq!(opened(&GGUFS, None), "m-Q4_K_M.gguf");
        assert_eq!(opened(&GGUFS, Some("sub/m.Q8_0.gguf")), "sub/m.Q8_0.gguf");
        let error = choose(&GGUFS, Some("Q4_K")).expect_err("no such type").to_string();
        assert!(error.contains("m-Q4_K_M.gguf"), "{error}");
    }

    #[test]
    fn all_parts_of_a_split_model_belong_to_it() {
        let names = ["q8/m-Q8_0-00001-of-00002.gguf", "q8/m-Q8_0-00002-of-00002.gguf"];
        for wanted in [None, Some("q8_0"), Some("q8/m-Q8_0-00002-of-00002.gguf")] {
            let files = choose(&names, wanted).expect("chosen");
            assert_eq!(files.names, names);
            assert_eq!(files.open, Path::new(names[0]));
        }
    }

    #[test]
    fn safetensors_come_with_what_stands_beside_them() {
        let one = choose(&["config.json", "model.safetensors", "pytorch_model.bin", "tokenizer.json"], None);
        assert_eq!(one.expect("chosen").names, ["model.safetensors", "config.json", "tokenizer.json"]);
        let shards = choose(&["config.json", INDEX, "model-00001-of-00001.safetensors", "x.gguf"], None);
        assert_eq!(shards.expect("chosen").names, ["model-00001-of-00001.safetensors", INDEX, "config.json"]);
        assert!(choose(&["pytorch_model.bin", "config.json"], None).is_err());
    }

    #[test]
    fn names_that_lead_elsewhere_are_not_plain() {
        assert!(is_plain("a/b-c_1.gguf"));
        for name in ["../a", "a/../b", "/a", "a//b", "a b", "a\\b", "a?b", ""] {
            assert!(!is_plain(name), "{name:?}");
        }
    }
}
