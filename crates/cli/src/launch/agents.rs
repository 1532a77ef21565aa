//! The agents that `realizar launch` knows: what each is called, how it is installed, and the settings that point it at a server.
//!
//! Settings are environment variables, arguments and files in a temporary folder. The user's own configuration is not written to.

use serde_json::json;
use std::path::PathBuf;

/// A coding agent.
#[derive(Debug)]
pub(crate) struct Agent {
    /// Its name on the command line, and that of its program.
    pub(crate) name: &'static str,
    /// How to install it.
    pub(crate) install: &'static str,
    settings: fn(&Target) -> Settings,
}

/// What an agent is pointed at.
#[derive(Debug)]
pub(crate) struct Target {
    /// The server, as `http://host:port`.
    pub(crate) url: String,
    /// Name of the model in requests.
    pub(crate) model: String,
    /// Longest sequence of prompt and answer, in tokens.
    pub(crate) context: usize,
    /// API key.
    pub(crate) key: String,
    /// What the server tells Codex about its models.
    pub(crate) codex_models: String,
    /// Where [`Settings::files`] are.
    pub(crate) folder: PathBuf,
}

/// How an agent is told about its server.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    /// Environment variables.
    pub(crate) env: Vec<(&'static str, String)>,
    /// Arguments that come before the user's.
    pub(crate) args: Vec<String>,
    /// Names and contents of files in [`Target::folder`].
    pub(crate) files: Vec<(&'static str, String)>,
}

impl Agent {
    /// The agent of a name.
    pub(crate) fn find(name: &str) -> Result<&'static Self, String> {
        AGENTS.iter().find(|agent| agent.name == name).ok_or_else(|| format!("expected one of {}", names()))
    }

    pub(crate) fn settings(&self, target: &Target) -> Settings {
        (self.settings)(target)
    }
}

/// The names of all agents.
pub(crate) fn names() -> String {
    AGENTS.iter().map(|agent| agent.name).collect::<Vec<_>>().join(", ")
}

static AGENTS: &[Agent] = &[
    Agent { name: "claude", install: "npm install -g @anthropic-ai/claude-code", settings: claude },
    Agent { name: "codex", install: "npm install -g @openai/codex", settings: codex },
    Agent { name: "opencode", install: "npm install -g opencode-ai", settings: opencode },
    Agent { name: "qwen", install: "npm install -g @qwen-code/qwen-code", settings: qwen },
    Agent { name: "aider", install: "uv tool install aider-chat", settings: aider },
    Agent { name: "goose", install: "see https://goose-docs.ai", settings: goose },
    Agent { name: "crush", install: "npm install -g @charmland/crush", settings: crush },
];

impl Target {
    /// Base address of OpenAI's API.
    fn v1(&self) -> String {
        format!("{}/v1", self.url)
    }

    /// Tokens of an answer at most, for agents that want to be told: a quarter of the context.
    fn output(&self) -> usize {
        (self.context / 4).clamp(1, 32_000)
    }

    /// A file of [`Settings::files`].
    fn path(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }
}

fn claude(target: &Target) -> Settings {
    let model = || target.model.clone();
    let env = vec![
        ("ANTHROPIC_BASE_URL", target.url.clone()),
        ("ANTHROPIC_AUTH_TOKEN", target.key.clone()),
        // The user's own key would take precedence over the token.
        ("ANTHROPIC_API_KEY", String::new()),
        ("ANTHROPIC_MODEL", model()),
        ("ANTHROPIC_DEFAULT_OPUS_MODEL", model()),
        ("ANTHROPIC_DEFAULT_SONNET_MODEL", model()),
        ("ANTHROPIC_DEFAULT_HAIKU_MODEL", model()),
        ("CLAUDE_CODE_SUBAGENT_MODEL", model()),
        ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
    ];
    Settings { env, ..Settings::default() }
}

fn codex(target: &Target) -> Settings {
    // Values are TOML; its basic strings take what JSON's escape.
    let provider = format!(
        "model_providers.realizar={{name = \"realizar\", base_url = {}, wire_api = \"responses\", env_key = \"REALIZAR_API_KEY\"}}",
        json!(target.v1())
    );
    let catalog = format!("model_catalog_json={}", json!(target.path("models.json")));
    let args =
        ["-c", "model_provider=\"realizar\"", "-c", &provider, "-c", &catalog, "--model", &target.model];
    Settings {
        env: vec![("REALIZAR_API_KEY", target.key.clone())],
        args: args.map(str::to_owned).to_vec(),
        files: vec![("models.json", target.codex_models.clone())],
    }
}

fn opencode(target: &Target) -> Settings {
    let model = format!("realizar/{}", target.model);
    let config = json!({
        "model": model,
        "small_model": model,
        "provider": {"realizar": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "realizar",
            "options": {"baseURL": target.v1(), "apiKey": target.key},
            "models": {&target.model: {"limit": {"context": target.context, "output": target.output()}}},
        }},
    });
    // OpenCode merges this over the user's configuration.
    Settings { env: vec![("OPENCODE_CONFIG_CONTENT", config.to_string())], ..Settings::default() }
}

fn qwen(target: &Target) -> Settings {
    let env = vec![
        ("OPENAI_BASE_URL", target.v1()),
        ("OPENAI_API_KEY", target.key.clone()),
        ("OPENAI_MODEL", target.model.clone()),
    ];
    Settings { env, args: vec!["--auth-type".to_owned(), "openai".to_owned()], ..Settings::default() }
}

fn aider(target: &Target) -> Settings {
    let env = vec![("OPENAI_API_BASE", target.v1()), ("OPENAI_API_KEY", target.key.clone())];
    let model = format!("openai/{}", target.model);
    // Aider warns of each model that it has no prices of.
    let args = vec!["--model".to_owned(), model, "--no-show-model-warnings".to_owned()];
    Settings { env, args, ..Settings::default() }
}

fn goose(target: &Target) -> Settings {
    let env = vec![
        ("GOOSE_PROVIDER", "openai".to_owned()),
        ("GOOSE_MODEL", target.model.clone()),
        ("GOOSE_CONTEXT_LIMIT", target.context.to_string()),
        ("OPENAI_HOST", target.url.clone()),
        ("OPENAI_BASE_PATH", "v1/chat/completions".to_owned()),
        ("OPENAI_API_KEY", target.key.clone()),
    ];
    Settings { env, ..Settings::default() }
}

fn crush(target: &Target) -> Settings {
    let choice = json!({"provider": "realizar", "model": target.model});
    let model = json!({
        "id": target.model,
        "name": target.model,
        "context_window": target.context,
        "default_max_tokens": target.output(),
    });
    let config = json!({
        "providers": {"realizar": {
            "name": "realizar",
            "type": "openai-compat",
            "base_url": target.v1(),
            "api_key": target.key,
            "models": [model],
        }},
        "models": {"large": choice, "small": choice},
    });
    // Crush keeps the model that was chosen last among its data, which takes precedence over its configuration.
    let env = vec![
        ("CRUSH_GLOBAL_CONFIG", target.folder.to_string_lossy().into_owned()),
        ("CRUSH_GLOBAL_DATA", target.path("data")),
    ];
    Settings { env, files: vec![("crush.json", config.to_string())], ..Settings::default() }
}
