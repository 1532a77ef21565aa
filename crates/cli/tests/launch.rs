//! `realizar launch` with agents that only look at what they were given, and ask the server for its models.
#![cfg(unix)]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{Folder, fails, is_wrong_usage, realizar, run, stderr, stdout, succeeds, without_settings};

/// Longer than anything takes, also on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

const AGENTS: [&str; 7] = ["claude", "codex", "opencode", "qwen", "aider", "goose", "crush"];

/// Prints its arguments, the variables that point agents at a server and the files that they name, asks the server for its models, and ends
/// with exit code 7.
const FAKE_AGENT: &str = r#"#!/usr/bin/env bash
printf 'argument %s\n' "$@"
env | grep -E '^(ANTHROPIC|CLAUDE|OPENAI|GOOSE|CRUSH|OPENCODE|REALIZAR)_' | sort
for file in "$CRUSH_GLOBAL_CONFIG/crush.json" $(printf '%s\n' "$@" | sed -n 's/^model_catalog_json="\(.*\)"/\1/p'); do
    if [ -f "$file" ]; then printf 'file %s\n' "$(cat "$file")"; fi
done
address=$(env | cat - <(printf '%s\n' "$@") | grep -oE '127\.0\.0\.1:[0-9]+' | head -1)
if [ -z "$address" ]; then address=$(grep -oE '127\.0\.0\.1:[0-9]+' "$CRUSH_GLOBAL_CONFIG/crush.json" | head -1); fi
exec 3<> "/dev/tcp/${address/:/\/}"
printf 'GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&3
printf 'server %s\n' "$(tr -d '\r' <&3 | head -1)"
if [ "$1" = wait ]; then sleep 1000; fi
exit 7
"#;

/// A folder on PATH with all agents.
struct Agents(Folder);

impl Agents {
    fn new() -> Self {
        let folder = Folder::new();
        for agent in AGENTS {
            let path = folder.write(agent, FAKE_AGENT.as_bytes());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is made a program");
        }
        Self(folder)
    }

    fn path(&self) -> String {
        let path = path_of_the_test();
        format!("{}:{path}", self.0.path().display())
    }

    fn launch(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the program starts")
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = realizar();
        command.env("PATH", self.path()).arg("launch").args(args);
        command
    }
}

#[expect(clippy::disallowed_methods, reason = "the agents are shell scripts, and need the shell's programs")]
fn path_of_the_test() -> String {
    std::env::var("PATH").expect("there is a PATH")
}

/// An address that nobody listens at.
fn free_url() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    format!("http://{}", listener.local_addr().expect("an address"))
}

fn answers(url: &str) -> bool {
    TcpStream::connect(url.trim_start_matches("http://")).is_ok()
}

/// Waits until nobody answers any more.
#[track_caller]
fn ends(url: &str) {
    let start = Instant::now();
    while answers(url) {
        assert!(start.elapsed() < PATIENCE, "the server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_is_started_for_the_agent_and_ends_with_it() {
    let (agents, url) = (Agents::new(), free_url());
    let output = agents
        .launch(&["claude", "--url", &url, "-m", "demo", "--device", "cpu", "--", "-p", "a b", "--model"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(7), "the agent's exit code: {}", stderr(&output));
    assert!(text.starts_with("argument -p\nargument a b\nargument --model\n"), "{text}");
    for line in [
        &format!("ANTHROPIC_BASE_URL={url}"),
        "ANTHROPIC_API_KEY=",
        "ANTHROPIC_AUTH_TOKEN=none",
        "ANTHROPIC_MODEL=demo",
        "ANTHROPIC_DEFAULT_HAIKU_MODEL=demo",
        "server HTTP/1.1 200 OK",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in {text}");
    }
    let said = stderr(&output);
    assert!(said.contains("context=1024") && said.contains("at least 32768 tokens"), "{said}");
    assert!(!answers(&url), "the server goes on");
}

#[test]
fn a_server_ends_when_its_launcher_is_killed() {
    let (agents, url) = (Agents::new(), free_url());
    let mut command =
        agents.command(&["claude", "--url", &url, "-m", "demo", "--device", "cpu", "--", "wait"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let last = lines.map(|line| line.expect("text")).find(|line| line.starts_with("server "));
    assert_eq!(last.as_deref(), Some("server HTTP/1.1 200 OK"));
    child.kill().expect("it is there");
    child.wait().expect("it ends");
    ends(&url);
}

#[test]
fn every_agent_is_pointed_at_a_server_that_runs_and_the_printed_script_does_the_same() {
    let (agents, url) = (Agents::new(), free_url());
    let port = url.rsplit(':').next().expect("a port").to_owned();
    let mut server = realizar();
    server.args([
        "serve",
        "--port",
        &port,
        "--device",
        "cpu",
        "--kv-memory",
        "32M",
        "--served-name",
        "it's/a:model",
    ]);
    let mut server = server.stderr(Stdio::piped()).spawn().expect("it starts");
    BufReader::new(server.stderr.take().expect("a pipe")).lines().next().expect("a line").expect("text");
    for agent in AGENTS {
        let launched = agents.launch(&[agent, "--url", &url, "--", "hello world"]);
        assert_eq!(launched.status.code(), Some(7), "{agent}: {}", stderr(&launched));
        let text = stdout(&launched);
        assert!(text.contains("it's/a:model") && text.contains("argument hello world\n"), "{agent}: {text}");
        assert!(text.ends_with("server HTTP/1.1 200 OK\n"), "{agent}: {text}");

        let script = agents.launch(&[agent, "--url", &url, "--print", "--", "hello world"]);
        let mut shell = Command::new("sh");
        without_settings(shell.args(["-c", succeeds(&script)]).env("PATH", agents.path()));
        let by_script = shell.output().expect("a shell");
        assert_eq!(
            without_folders(stdout(&by_script)),
            without_folders(text),
            "{agent}: {}",
            stderr(&by_script)
        );
    }
    server.kill().expect("it is there");
    server.wait().expect("it ends");
}

/// A text in which the folders of settings, which differ from launch to launch, have one name.
fn without_folders(text: &str) -> String {
    let word = |word: &str| match word.find("/realizar-") {
        Some(start) => {
            let rest = word[start + 1..].find(['/', '"']).map_or("", |end| &word[start + 1 + end..]);
            format!("FOLDER{rest}")
        }
        None => word.to_owned(),
    };
    text.split_inclusive('\n').map(|line| line.split('=').map(word).collect::<Vec<_>>().join("=")).collect()
}

#[test]
fn what_cannot_be_launched_is_said_before_anything_starts() {
    let (agents, url) = (Agents::new(), free_url());
    is_wrong_usage(&run(&["launch", "emacs"]), "claude, codex, opencode");
    is_wrong_usage(&run(&["launch", "claude", "--url", "8080"]), "http://HOST:PORT");
    let missing = realizar()
        .env("PATH", "/nowhere")
        .args(["launch", "codex", "--url", &url])
        .output()
        .expect("it starts");
    fails(&missing, &["codex is not installed", "npm install -g @openai/codex"]);
    fails(&agents.launch(&["claude", "--url", &url]), &["no server answers", "--model"]);
    fails(&agents.launch(&["claude", "--url", &url, "--print"]), &["no server answers", "realizar serve"]);
    fails(&agents.launch(&["claude", "--url", "http://127.9.9.9.9:1", "-m", "demo"]), &["127.9.9.9.9"]);
    fails(&agents.launch(&["claude", "--url", &url, "-m", "./no.gguf"]), &["no.gguf"]);
}

#[test]
fn a_server_that_refuses_the_key_or_lacks_the_model_is_not_used() {
    let (agents, url) = (Agents::new(), free_url());
    let port = url.rsplit(':').next().expect("a port").to_owned();
    let mut server = realizar();
    server.args(["serve", "--port", &port, "--device", "cpu", "--kv-memory", "32M", "--api-key", "secret"]);
    let mut server = server.stderr(Stdio::piped()).spawn().expect("it starts");
    BufReader::new(server.stderr.take().expect("a pipe")).lines().next().expect("a line").expect("text");
    fails(&agents.launch(&["claude", "--url", &url]), &["refuses the key", "--api-key"]);
    let other = ["claude", "--url", &url, "--api-key", "secret", "-m", "qwen3:0.6b"];
    fails(&agents.launch(&other), &["has demo", "--model"]);
    let output = agents.launch(&["claude", "--url", &url, "--api-key", "secret"]);
    assert!(stdout(&output).contains("ANTHROPIC_AUTH_TOKEN=secret\n"), "{}", stderr(&output));
    server.kill().expect("it is there");
    server.wait().expect("it ends");
}
