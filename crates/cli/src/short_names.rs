//! Short names of models, as Ollama's users type them, each with the GGUF repository and file type that it stands for.

use realizar::hub::HubModel;

/// `(name, OWNER/NAME, type)`. `NAME` alone stands for the first row that begins with `NAME:`.
///
/// Only models that this program runs are listed, in the type that most people take: Q4_K_M, MXFP4 where the model was trained in it, or Q8_0
/// where a repository has nothing smaller or the model is too small to lose more.
const SHORT_NAMES: &[(&str, &str, &str)] = &[
    ("qwen3.6:35b", "unsloth/Qwen3.6-35B-A3B-GGUF", "UD-Q4_K_M"),
    ("qwen3.6:27b", "unsloth/Qwen3.6-27B-GGUF", "Q4_K_M"),
    ("qwen3.5:4b", "unsloth/Qwen3.5-4B-GGUF", "Q4_K_M"),
    ("qwen3.5:0.8b", "unsloth/Qwen3.5-0.8B-GGUF", "Q8_0"),
    ("qwen3.5:2b", "unsloth/Qwen3.5-2B-GGUF", "Q4_K_M"),
    ("qwen3.5:9b", "unsloth/Qwen3.5-9B-GGUF", "Q4_K_M"),
    ("qwen3.5:27b", "unsloth/Qwen3.5-27B-GGUF", "Q4_K_M"),
    ("qwen3.5:35b", "unsloth/Qwen3.5-35B-A3B-GGUF", "Q4_K_M"),
    ("gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF", "MXFP4"),
    ("gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF", "MXFP4"),
    ("gemma4:e4b", "unsloth/gemma-4-E4B-it-GGUF", "Q4_K_M"),
    ("gemma4:e2b", "unsloth/gemma-4-E2B-it-GGUF", "Q4_K_M"),
    ("gemma4:26b", "unsloth/gemma-4-26B-A4B-it-GGUF", "UD-Q4_K_M"),
    ("gemma4:31b", "unsloth/gemma-4-31B-it-GGUF", "Q4_K_M"),
    ("glm-4.7-flash:30b", "unsloth/GLM-4.7-Flash-GGUF", "Q4_K_M"),
    ("glm-4.5-air:106b", "unsloth/GLM-4.5-Air-GGUF", "Q4_K_M"),
    ("ministral-3:8b", "mistralai/Ministral-3-8B-Instruct-2512-GGUF", "Q4_K_M"),
    ("ministral-3:3b", "mistralai/Ministral-3-3B-Instruct-2512-GGUF", "Q4_K_M"),
    ("ministral-3:14b", "mistralai/Ministral-3-14B-Instruct-2512-GGUF", "Q4_K_M"),
    ("mistral-small3.2:24b", "unsloth/Mistral-Small-3.2-24B-Instruct-2506-GGUF", "Q4_K_M"),
    ("lfm2:1.2b", "LiquidAI/LFM2-1.2B-GGUF", "Q4_K_M"),
    ("lfm2:8b", "LiquidAI/LFM2-8B-A1B-GGUF", "Q4_K_M"),
    ("granite4:tiny-h", "ibm-granite/granite-4.0-h-tiny-GGUF", "Q4_K_M"),
    ("olmo-3:7b", "unsloth/Olmo-3-7B-Instruct-GGUF", "Q4_K_M"),
    ("qwen3-coder:30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF", "Q4_K_M"),
    ("qwen3-next:80b", "unsloth/Qwen3-Next-80B-A3B-Instruct-GGUF", "Q4_K_M"),
    ("qwen3:4b", "Qwen/Qwen3-4B-GGUF", "Q4_K_M"),
    ("qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF", "Q8_0"),
    ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", "Q8_0"),
    ("qwen3:8b", "Qwen/Qwen3-8B-GGUF", "Q4_K_M"),
    ("qwen3:14b", "Qwen/Qwen3-14B-GGUF", "Q4_K_M"),
    ("qwen3:32b", "Qwen/Qwen3-32B-GGUF", "Q4_K_M"),
    ("qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M"),
    ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF", "Q4_K_M"),
    ("qwen2.5:7b", "bartowski/Qwen2.5-7B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:0.5b", "bartowski/Qwen2.5-0.5B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:1.5b", "bartowski/Qwen2.5-1.5B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:3b", "bartowski/Qwen2.5-3B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:14b", "bartowski/Qwen2.5-14B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:32b", "bartowski/Qwen2.5-32B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5:72b", "bartowski/Qwen2.5-72B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5-coder:7b", "bartowski/Qwen2.5-Coder-7B-Instruct-GGUF", "Q4_K_M"),
    ("qwen2.5-coder:32b", "bartowski/Qwen2.5-Coder-32B-Instruct-GGUF", "Q4_K_M"),
    ("llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF", "Q4_K_M"),
    ("llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF", "Q4_K_M"),
    ("llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF", "Q4_K_M"),
    ("llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF", "Q4_K_M"),
    ("llama3.1:70b", "bartowski/Meta-Llama-3.1-70B-Instruct-GGUF", "Q4_K_M"),
    ("llama3:8b", "bartowski/Meta-Llama-3-8B-Instruct-GGUF", "Q4_K_M"),
    ("gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF", "Q4_K_M"),
    ("gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF", "Q4_K_M"),
    ("gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF", "Q4_K_M"),
    ("gemma3:27b", "ggml-org/gemma-3-27b-it-GGUF", "Q4_K_M"),
    ("gemma2:9b", "bartowski/gemma-2-9b-it-GGUF", "Q4_K_M"),
    ("gemma2:2b", "bartowski/gemma-2-2b-it-GGUF", "Q4_K_M"),
    ("gemma2:27b", "bartowski/gemma-2-27b-it-GGUF", "Q4_K_M"),
    ("mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF", "Q4_K_M"),
    ("mistral-nemo:12b", "bartowski/Mistral-Nemo-Instruct-2407-GGUF", "Q4_K_M"),
    ("phi4:14b", "bartowski/phi-4-GGUF", "Q4_K_M"),
    ("phi3.5:3.8b", "bartowski/Phi-3.5-mini-instruct-GGUF", "Q4_K_M"),
    ("deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF", "Q4_K_M"),
    ("deepseek-r1:1.5b", "bartowski/DeepSeek-R1-Distill-Qwen-1.5B-GGUF", "Q4_K_M"),
    ("deepseek-r1:8b", "bartowski/DeepSeek-R1-Distill-Llama-8B-GGUF", "Q4_K_M"),
    ("deepseek-r1:14b", "bartowski/DeepSeek-R1-Distill-Qwen-14B-GGUF", "Q4_K_M"),
    ("deepseek-r1:32b", "bartowski/DeepSeek-R1-Distill-Qwen-32B-GGUF", "Q4_K_M"),
    ("deepseek-r1:70b", "bartowski/DeepSeek-R1-Distill-Llama-70B-GGUF", "Q4_K_M"),
    ("smollm2:1.7b", "bartowski/SmolLM2-1.7B-Instruct-GGUF", "Q4_K_M"),
    ("smollm2:360m", "bartowski/SmolLM2-360M-Instruct-GGUF", "Q8_0"),
    ("smollm2:135m", "bartowski/SmolLM2-135M-Instruct-GGUF", "Q8_0"),
    ("tinyllama:1.1b", "TheBloke/TinyLlama-1.1B-Chat-v1.0-GGUF", "Q4_K_M"),
    ("olmo2:7b", "bartowski/OLMo-2-1124-7B-Instruct-GGUF", "Q4_K_M"),
    ("olmo2:13b", "bartowski/OLMo-2-1124-13B-Instruct-GGUF", "Q4_K_M"),
    ("glm4:9b", "bartowski/THUDM_GLM-4-9B-0414-GGUF", "Q4_K_M"),
    ("glm4:32b", "bartowski/THUDM_GLM-4-32B-0414-GGUF", "Q4_K_M"),
];

/// What a short name stands for. `:latest` is the size that the name has alone.
pub(crate) fn find(name: &str) -> Option<HubModel> {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(":latest").unwrap_or(&name);
    let is_meant = |row: &str| row == name || (!name.contains(':') && family(row) == name);
    let (_, repo, quant) = SHORT_NAMES.iter().find(|(row, _, _)| is_meant(row))?;
    Some(HubModel { repo: (*repo).to_owned(), file: Some((*quant).to_owned()) })
}

/// Short names of the family that `name` begins with; all families where there is none.
pub(crate) fn similar(name: &str) -> Vec<&'static str> {
    let wanted = family(name).to_ascii_lowercase();
    let rows = SHORT_NAMES.iter().map(|(row, _, _)| *row);
    let found: Vec<_> = rows.clone().filter(|row| family(row) == wanted).collect();
    if !found.is_empty() {
        return found;
    }
    let mut families: Vec<_> = rows.map(family).collect();
    families.dedup();
    families
}

fn family(name: &str) -> &str {
    name.split_once(':').map_or(name, |(family, _)| family)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_arg::ModelArg;

    #[test]
    fn every_row_is_found_by_its_name_and_is_a_repository() {
        for (name, repo, quant) in SHORT_NAMES {
            let model: HubModel = format!("{repo}:{quant}").parse().expect("a repository");
            assert_eq!(find(name), Some(model.clone()), "{name} stands in the table once");
            assert_eq!(name.parse::<ModelArg>(), Ok(ModelArg::Hub(model)));
        }
    }

    #[test]
    fn a_family_means_its_first_row() {
        assert_eq!(find("qwen3"), find("qwen3:4b"));
        assert_eq!(find("gpt-oss"), find("gpt-oss:20b"));
        assert_eq!(find("Llama3.2:latest"), find("llama3.2:3b"));
        assert_eq!(find("qwen3:9b"), None);
        assert_eq!(similar("llama3.2:2b"), ["llama3.2:3b", "llama3.2:1b"]);
        assert!(similar("nonsense").contains(&"gemma3"));
    }
}
