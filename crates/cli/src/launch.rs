//! `realizar launch`: a coding agent pointed at a server, which is started if there is none.
//!
//! The server is a process in a process group of its own, so that Ctrl-C reaches the agent and not the server. It ends when its stdin does, and so
//! with this process, however that ends.

mod agents;

use crate::args::KeyOption;
use crate::model_arg::ModelArg;
use crate::output;
use agents::{Agent, Settings, Target};
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use serde::Deserialize;
use std::fmt::Write;
use std::fs::{self, DirBuilder, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

/// Between two looks whether a server is ready.
const POLL: Duration = Duration::from_millis(100);
/// How long a server may take to answer `/v1/models`.
const ANSWER: Duration = Duration::from_secs(10);
/// System prompt, tools and a few files of a small task, in tokens.
const USEFUL_CONTEXT: usize = 32_768;
/// For servers that ask for no key: agents want one that is not empty.
const NO_KEY: &str = "none";

#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// The agent.
    #[arg(value_name = "AGENT", value_parser = Agent::find, help = format!("One of {}", agents::names()))]
    agent: &'static Agent,
    /// Server to use. Without an answer there, one is started at this address, which must be of this machine then.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = url)]
    url: String,
    /// Model for the agent: one that the server has, or the one to start a server with.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,
    /// Longest sequence of prompt and answer of a server that is started, in tokens.
    #[arg(short, long, value_name = "N")]
    ctx: Option<usize>,
    /// Device of a server that is started: auto, cpu, cuda or cuda:N.
    #[arg(long, value_name = "D")]
    device: Option<String>,
    #[command(flatten)]
    key: KeyOption,
    /// Print a shell script with the settings instead of starting the agent; it needs a server that runs.
    #[arg(long)]
    print: bool,
    /// Arguments for the agent.
    #[arg(last = true, value_name = "ARGS")]
    args: Vec<String>,
}

/// Runs the agent to its end; its exit code is the command's.
pub(crate) fn run(args: &LaunchArgs) -> Result<ExitCode> {
    if args.print {
        let found = find_server(args)?.ok_or_else(|| {
            anyhow!(
                "no server answers at {}: start one with `realizar serve MODEL`, then print the settings",
                args.url
            )
        })?;
        let target = target(args, found, std::env::temp_dir().join(format!("realizar-{}", args.agent.name)))?;
        return output::print(script(args, &target)).map(|()| ExitCode::SUCCESS);
    }
    let agent = args.agent;
    let program = program(agent.name).ok_or_else(|| {
        anyhow!("{} is not installed, or not on PATH; to install it: {}", agent.name, agent.install)
    })?;
    let folder = Folder::new()?;
    let (server, found) = match find_server(args)? {
        Some(found) => (None, found),
        None => {
            let (server, found) = Server::start(args, &folder.0)?;
            (Some(server), found)
        }
    };
    let target = target(args, found, folder.0.clone())?;
    warn_of_short_context(&target);
    let settings = agent.settings(&target);
    for (name, content) in &settings.files {
        let path = folder.0.join(name);
        fs::write(&path, content).with_context(|| format!("could not write {}", path.display()))?;
    }
    let status = run_agent(&program, &settings, &args.args)?;
    drop(server);
    Ok(exit_code(status))
}

/// A server's address, without a path and the slash after it.
fn url(text: &str) -> std::result::Result<String, String> {
    let text = text.trim_end_matches('/').trim_end_matches("/v1");
    let url: hyper::Uri = text.parse().map_err(|_| "expected http://HOST:PORT".to_owned())?;
    match (url.scheme_str(), url.host(), url.path()) {
        (Some("http" | "https"), Some(_), "" | "/") => Ok(text.to_owned()),
        _ => Err("expected http://HOST:PORT".to_owned()),
    }
}

/// What a server says about its models.
#[derive(Debug, Deserialize)]
struct Found {
    data: Vec<FoundModel>,
    /// For Codex; other servers have none.
    #[serde(default)]
    models: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct FoundModel {
    id: String,
    max_model_len: Option<usize>,
}

/// Asks for the models of the server at the address; `None` if there is no server.
///
/// Errors: it wants a key; it is something else.
fn find_server(args: &LaunchArgs) -> Result<Option<Found>> {
    let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(ANSWER));
    let http: ureq::Agent = config.build().into();
    // Codex asks with its version, and is told more.
    let mut request = http.get(format!("{}/v1/models?client_version=1", args.url));
    if let Some(key) = args.key.get()? {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    let mut response = match request.call() {
        Ok(response) => response,
        Err(ureq::Error::ConnectionFailed | ureq::Error::HostNotFound) => return Ok(None),
        Err(ureq::Error::Io(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("could not ask the server at {}", args.url)),
    };
    match response.status().as_u16() {
        200 => {}
        401 | 403 => bail!("the server at {} refuses the key: give the right one with --api-key", args.url),
        status => bail!("the server at {} answers /v1/models with status {status}", args.url),
    }
    let body = response.body_mut().read_to_string().context("could not read the list of models")?;
    let found = serde_json::from_str(&body)
        .with_context(|| format!("what answers at {} is not a server for OpenAI's clients", args.url))?;
    Ok(Some(found))
}

/// What the agent is pointed at.
///
/// Errors: the server does not have the model.
fn target(args: &LaunchArgs, found: Found, folder: PathBuf) -> Result<Target> {
    let names = || found.data.iter().map(|model| model.id.as_str()).collect::<Vec<_>>().join(", ");
    let model = match &args.model {
        Some(name) => found
            .data
            .iter()
            .find(|model| model.id == *name || served_name(name).as_deref() == Some(&model.id)),
        None => found.data.first(),
    };
    let Some(model) = model else {
        bail!(
            "the server at {} has {}; leave out --model, or start another server with --url http://127.0.0.1:PORT",
            args.url,
            names()
        )
    };
    Ok(Target {
        url: args.url.clone(),
        model: model.id.clone(),
        context: model.max_model_len.unwrap_or(USEFUL_CONTEXT),
        key: args.key.get()?.unwrap_or_else(|| NO_KEY.to_owned()),
        codex_models: serde_json::json!({ "models": found.models }).to_string(),
        folder,
    })
}

/// The name under which `realizar serve` offers a model.
fn served_name(model: &str) -> Option<String> {
    model.parse::<ModelArg>().ok().map(|model| model.served_name())
}

fn warn_of_short_context(target: &Target) {
    if target.context < USEFUL_CONTEXT {
        tracing::warn!(
            context = target.context,
            "agents need a context of at least {USEFUL_CONTEXT} tokens; --ctx sets it where the model can have more"
        );
    }
}

/// A program on PATH.
fn program(name: &str) -> Option<PathBuf> {
    let path = crate::environment("PATH")?;
    let names = if cfg!(windows) {
        vec![format!("{name}.exe"), format!("{name}.cmd")]
    } else {
        vec![name.to_owned()]
    };
    std::env::split_paths(&path)
        .flat_map(|folder| names.iter().map(move |n| folder.join(n)).collect::<Vec<_>>())
        .find(|p| p.is_file())
}

/// A folder for the time of one launch.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("realizar-launch-{}", std::process::id()));
        let mut builder = DirBuilder::new();
        // Files may hold a key.
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&path).with_context(|| format!("could not create {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "could not remove the folder of the agent's settings");
        }
    }
}

/// A server that ends when this is dropped.
struct Server(Child);

impl Server {
    /// Starts `realizar serve` at the address and waits until it answers.
    ///
    /// Errors: no model is named; the address is not of this machine; the server's own.
    fn start(args: &LaunchArgs, folder: &Path) -> Result<(Self, Found)> {
        let Some(model) = &args.model else {
            bail!("no server answers at {}: name the model to serve with --model", args.url)
        };
        let (host, port) = local_address(&args.url).ok_or_else(|| {
            anyhow!("no server answers at {}, and one can only be started on this machine", args.url)
        })?;
        // Downloads with a progress bar, and says what is wrong with the name.
        drop(model.parse::<ModelArg>().map_err(|why| anyhow!("--model {model}: {why}"))?.open()?);
        let log = folder.join("server.log");
        let mut command = Command::new(std::env::current_exe().context("could not find this program")?);
        command.args(["serve", model, "--host", &host, "--port", &port.to_string(), "--until-stdin-ends"]);
        for (flag, value) in [
            ("--ctx", args.ctx.map(|n| n.to_string())),
            ("--device", args.device.clone()),
            ("--api-key", args.key.get()?),
        ] {
            command.args(value.map(|value| [flag.to_owned(), value]).into_iter().flatten());
        }
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let file = File::create(&log).with_context(|| format!("could not create {}", log.display()))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(file).spawn();
        let mut server = Self(child.context("could not start the server")?);
        output::note(&format!("loading {model}; the server's log is {}\n", log.display()));
        loop {
            if let Some(status) = server.0.try_wait().context("could not wait for the server")? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                let last = said.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
                bail!("the server ended with {status}: {last}");
            }
            if let Some(found) = find_server(args)? {
                return Ok((server, found));
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It may have ended long ago.
        drop(self.0.wait());
    }
}

/// Host and port of an address on this machine.
fn local_address(url: &str) -> Option<(String, u16)> {
    let uri: hyper::Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_owned();
    let local = host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    (local && uri.scheme_str() == Some("http")).then(|| (host, uri.port_u16().unwrap_or(80)))
}

fn run_agent(program: &Path, settings: &Settings, args: &[String]) -> Result<ExitStatus> {
    // Ctrl-C is for the agent, which shares the terminal; what this process holds is freed when the agent has ended.
    ctrlc::set_handler(|| ()).context("could not handle Ctrl-C")?;
    let mut command = Command::new(program);
    command.args(&settings.args).args(args).envs(settings.env.iter().map(|(name, value)| (name, value)));
    command.status().with_context(|| format!("could not start {}", program.display()))
}

/// The exit code of a process; 128 and the signal's number for one that a signal ended, as shells have it.
fn exit_code(status: ExitStatus) -> ExitCode {
    #[cfg(unix)]
    if let Some(signal) = std::os::unix::process::ExitStatusExt::signal(&status) {
        return ExitCode::from(128 + signal as u8);
    }
    ExitCode::from(status.code().map_or(1, |code| code as u8))
}

/// A shell script that does what the command would have done with a server that runs.
fn script(args: &LaunchArgs, target: &Target) -> String {
    let settings = args.agent.settings(target);
    let mut text = String::new();
    if !settings.files.is_empty() {
        let _ = writeln!(text, "mkdir -p {}", quoted(&target.folder.to_string_lossy()));
    }
    for (name, content) in &settings.files {
        let path = target.folder.join(name);
        let _ = writeln!(text, "printf '%s\\n' {} > {}", quoted(content), quoted(&path.to_string_lossy()));
    }
    for (name, value) in &settings.env {
        let _ = writeln!(text, "export {name}={}", quoted(value));
    }
    let words = settings.args.iter().chain(&args.args).map(|word| format!(" {}", quoted(word)));
    let _ = writeln!(text, "{}{}", args.agent.name, words.collect::<String>());
    text
}

/// A word as a POSIX shell reads it.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_with_and_without_a_path() {
        for text in [
            "http://127.0.0.1:8080",
            "http://127.0.0.1:8080/",
            "http://127.0.0.1:8080/v1/",
            "http://127.0.0.1:8080/v1",
        ] {
            assert_eq!(url(text).as_deref(), Ok("http://127.0.0.1:8080"), "{text}");
        }
        for wrong in ["", "8080", "localhost:8080", "ftp://localhost", "http://localhost/x"] {
            assert!(url(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_server_is_started_on_this_machine_only() {
        assert_eq!(local_address("http://localhost:1"), Some(("localhost".to_owned(), 1)));
        assert_eq!(local_address("http://[::1]:8080"), Some(("::1".to_owned(), 8080)));
        for other in ["http://10.0.0.1:8080", "http://example.com", "https://127.0.0.1:8080"] {
            assert_eq!(local_address(other), None, "{other}");
        }
    }

    #[test]
    fn words_are_quoted_for_the_shell() {
        assert_eq!(quoted("http://127.0.0.1:8080/v1"), "http://127.0.0.1:8080/v1");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
    }
}
