//! Servers that follow each other, as processes: no request is lost while clients ask all the time, and what one kept another finds.
#![cfg(target_os = "linux")]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};
use support::{Folder, fails, realizar, run};

/// Longer than anything takes, also on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

struct Server {
    child: Child,
    stderr: BufReader<ChildStderr>,
    line: String,
    /// What it said before.
    warnings: String,
}

impl Server {
    fn start(more: &[&str]) -> Self {
        Self::by(realizar(), more)
    }

    fn by(mut command: Command, more: &[&str]) -> Self {
        command.args(["serve", "--port", "0", "--device", "cpu", "--threads", "1"]).args(more);
        command.args(["--kv-memory", "32M"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (mut line, mut warnings) = (String::new(), String::new());
        while !line.contains("is ready at") {
            warnings += &std::mem::take(&mut line);
            assert!(stderr.read_line(&mut line).expect("a line") > 0, "{warnings}");
        }
        // A line on its device and one on sizes.
        for _ in 0..2 {
            stderr.read_line(&mut String::new()).expect("a line");
        }
        Self { child, stderr, line, warnings }
    }

    fn url(&self) -> String {
        let start = self.line.find("http://").expect("an address");
        let end = self.line[start..].find(": ").expect("its end");
        self.line[start..start + end].to_owned()
    }

    fn terminate(&self) {
        let done = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status();
        assert!(done.expect("kill is there").success());
    }

    /// Waits until it has ended well; returns what it said after its first line.
    fn end(mut self) -> String {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a status") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let mut said = String::new();
        self.stderr.read_to_string(&mut said).expect("text");
        assert_eq!(status.code(), Some(0), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended long ago.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn agent(keeps_connections: bool) -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE));
    match keeps_connections {
        true => config.build().into(),
        false => config.max_idle_connections(0).build().into(),
    }
}

/// Asks for an answer of so many tokens; returns it.
fn ask(agent: &ureq::Agent, url: &str, prompt: &str, n_tokens: usize) -> Result<Value, ureq::Error> {
    let body = json!({"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": true});
    let mut answer = agent
        .post(format!("{url}/v1/completions"))
        .content_type("application/json")
        .send(body.to_string())?;
    Ok(serde_json::from_str(&answer.body_mut().read_to_string()?).expect("JSON"))
}

/// Lets clients ask all the time, each on a connection that it keeps or on new ones, while `meanwhile` runs and looks at
/// how many answers there were.
fn under_load<T>(url: &str, meanwhile: impl FnOnce(&AtomicUsize) -> T) -> T {
    let (is_over, n_answers) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let (is_over, n_answers) = (&is_over, &n_answers);
            scope.spawn(move || {
                let agent = agent(client % 2 == 0);
                while !is_over.load(Relaxed) {
                    let answer =
                        ask(&agent, url, "Once upon a time", 4 + client).expect("no request is lost");
                    assert_eq!(answer["usage"]["completion_tokens"], 4 + client);
                    n_answers.fetch_add(1, Relaxed);
                }
            });
        }
        let outcome = meanwhile(&n_answers);
        is_over.store(true, Relaxed);
        outcome
    })
}

/// Waits for some more answers.
fn wait_for_answers(n_answers: &AtomicUsize, n: usize) {
    let (start, before) = (Instant::now(), n_answers.load(Relaxed));
    while n_answers.load(Relaxed) < before + n {
        assert!(start.elapsed() < PATIENCE, "nobody is answered");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_follows_another_under_load_without_a_failed_request() {
    let folder = Folder::new();
    let path = folder.join("takeover");
    let mut server = Server::start(&["--takeover", &path]);
    let url = server.url();
    under_load(&url, |n_answers| {
        for _ in 0..3 {
            wait_for_answers(n_answers, 20);
            let next = Server::start(&["--takeover", &path]);
            assert_eq!(next.url(), url, "it listens where the one before does");
            let before = std::mem::replace(&mut server, next);
            assert_eq!(before.end(), "", "it ends by itself");
            wait_for_answers(n_answers, 20);
        }
    });
    server.terminate();
    assert_eq!(server.end(), "");
    assert_eq!(folder.names(), [""; 0], "the socket goes with the last one");
}

#[test]
fn an_answer_that_has_begun_ends_in_the_old_process() {
    let folder = Folder::new();
    let path = folder.join("takeover");
    let server = Server::start(&["--takeover", &path]);
    let body = json!({"prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let agent = agent(true);
    let stream = agent.post(format!("{}/v1/completions", server.url())).content_type("application/json");
    let mut stream =
        BufReader::new(stream.send(body.to_string()).expect("a stream").into_body().into_reader());
    let mut line = String::new();
    stream.read_line(&mut line).expect("a first event");
    let next = Server::start(&["--takeover", &path]);
    let answer = ask(&agent, &next.url(), "Once", 1).expect("the next one answers");
    assert_eq!(answer["usage"]["completion_tokens"], 1);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).expect("the rest");
    assert!(
        rest.contains("\"finish_reason\":\"length\"") && rest.trim_end().ends_with("data: [DONE]"),
        "{rest}"
    );
    server.end();
}

#[test]
fn a_process_that_was_killed_leaves_nothing_in_the_way() {
    let folder = Folder::new();
    let path = folder.join("takeover");
    let mut server = Server::start(&["--takeover", &path]);
    server.child.kill().expect("it runs");
    server.child.wait().expect("it ends");
    let next = Server::start(&["--takeover", &path]);
    ask(&agent(true), &next.url(), "Once", 1).expect("an answer");
    let file = folder.write("a-file", b"text");
    let said = ["serve", "--port", "0", "--device", "cpu", "--takeover", &file];
    fails(&run(&said), &["a-file", "not a socket"]);
    assert_eq!(std::fs::read(&file).expect("it is there"), b"text");
}

#[test]
fn the_first_turn_after_a_restart_computes_only_what_is_new() {
    let folder = Folder::new();
    let kept = folder.join("cache");
    let prompt = "Once upon a time there was a fox who lived at the edge of a forest. ".repeat(6);
    let text = |answer: &Value| answer["choices"][0]["text"].as_str().expect("a text").to_owned();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64();
    let first = Server::start(&["--cache-dir", &kept]);
    let answer = ask(&agent(false), &first.url(), &prompt, 20).expect("an answer");
    first.terminate();
    assert_eq!(first.end(), "");
    let next_turn = format!("{prompt}{} Then", text(&answer));
    let cold = Server::start(&[]);
    let expected = ask(&agent(false), &cold.url(), &next_turn, 20).expect("an answer");
    let second = Server::start(&["--cache-dir", &kept]);
    let found = ask(&agent(false), &second.url(), &next_turn, 20).expect("an answer");
    assert_eq!((text(&found), cached(&expected)), (text(&expected), Some(0)));
    let n_before = answer["usage"]["prompt_tokens"].as_u64().expect("a number");
    assert!(cached(&found).expect("a number") >= n_before, "{found}");
    second.terminate();
    assert_eq!(second.end(), "");
    let other = Server::start(&["--cache-dir", &kept, "--kv-type", "q8_0"]);
    assert!(other.warnings.contains("not used") && other.warnings.contains("Q8_0"), "{}", other.warnings);
    fails(&run(&["serve", "--cache-dir", "/dev/null/x"]), &["--cache-dir", "/dev/null/x"]);
}

/// A process with a listening socket as systemd passes it on.
fn activated(socket: &TcpListener) -> Server {
    let mut command = Command::new("sh");
    let script = "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" \"$@\"";
    command.args(["-c", script, env!("CARGO_BIN_EXE_realizar")]).env_remove("RUST_LOG");
    command.stdin(Stdio::from(OwnedFd::from(socket.try_clone().expect("a descriptor"))));
    Server::by(command, &[])
}

#[test]
fn requests_wait_in_the_socket_of_systemd_while_the_server_restarts() {
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", socket.local_addr().expect("its address"));
    let server = under_load(&url, |n_answers| {
        // As `systemctl restart` does: the next one starts when the one before has ended.
        for _ in 0..3 {
            let server = activated(&socket);
            assert_eq!(server.url(), url);
            wait_for_answers(n_answers, 20);
            server.terminate();
            assert_eq!(server.end(), "");
        }
        let server = activated(&socket);
        wait_for_answers(n_answers, 20);
        server
    });
    server.terminate();
    assert_eq!(server.end(), "");
    let args =
        ["-c", "exec 3<&0 0</dev/null; export LISTEN_FDS=1 LISTEN_PID=$$; exec \"$0\" serve --takeover x"];
    let mut both = Command::new("sh");
    both.args(args).arg(env!("CARGO_BIN_EXE_realizar")).stdin(Stdio::from(OwnedFd::from(socket)));
    fails(&both.output().expect("it runs"), &["systemd", "--takeover"]);
}
