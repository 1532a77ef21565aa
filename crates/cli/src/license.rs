//! The licence of a model, as far as its files state one.

use realizar_model::source::{Format, TensorSource};
use std::io::Read;

/// Bytes at the beginning of a README.md in which its head is looked for.
const HEAD: u64 = 64 << 10;

/// `general.license` of a GGUF file, or the licence in the head of the README.md beside safetensors.
pub(crate) fn license(source: &dyn TensorSource) -> Option<String> {
    match source.format() {
        Format::Gguf => source.metadata().get_str("general.license").ok().flatten().map(str::to_owned),
        Format::Safetensors => {
            let folder = source.path();
            let folder = if folder.is_dir() { folder } else { folder.parent()? };
            let mut head = Vec::new();
            std::fs::File::open(folder.join("README.md")).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
            of_readme(&String::from_utf8_lossy(&head))
        }
    }
}

/// The licence in the YAML between two lines of dashes at the beginning; its own name where the hub has none for it.
fn of_readme(text: &str) -> Option<String> {
    let head = text.strip_prefix("---")?.split("\n---").next()?;
    let value = |key: &str| {
        let value = head.lines().find_map(|line| line.strip_prefix(key))?.trim().trim_matches(['"', '\'']);
        (!value.is_empty()).then(|| value.to_owned())
    };
    match value("license:") {
        Some(other) if other == "other" => value("license_name:").or(Some(other)),
        license => license,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_readme_states_its_licence_in_its_head() {
        let license = |text| of_readme(text);
        assert_eq!(
            license("---\nlanguage:\n- en\nlicense: apache-2.0\n---\n# A").as_deref(),
            Some("apache-2.0")
        );
        assert_eq!(
            license("---\nlicense: other\nlicense_name: 'gemma'\n---\n").as_deref(),
            Some("gemma"),
            "its own name"
        );
        assert_eq!(license("---\nlicense: other\n---\n").as_deref(), Some("other"));
        for none in ["", "# A\nlicense: mit\n", "---\ntags:\n---\nlicense: mit\n", "---\nlicense:\n---\n"] {
            assert_eq!(license(none), None, "{none:?}");
        }
    }
}
