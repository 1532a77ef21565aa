//! `realizar serve` as a process.

use super::realizar;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes, also on a machine that is busy with other things.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub struct Server {
    child: Child,
    pub stderr: BufReader<ChildStderr>,
    pub line: String,
    pub more: String,
    pub agent: ureq::Agent,
}

impl Server {
    /// Starts one at any free port and waits until it says that it is ready.
    pub fn start(more: &[&str]) -> Self {
        Self::by(realizar(), more)
    }

    /// Starts one from a shell, after a command that changes what it inherits.
    pub fn after(shell: &str, more: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("{shell}; exec \"$0\" \"$@\""), env!("CARGO_BIN_EXE_realizar")]);
        command.env_remove("RUST_LOG");
        Self::by(command, more)
    }

    pub fn by(mut command: Command, more: &[&str]) -> Self {
        command.args(["serve", "--port", "0", "--device", "cpu", "--kv-memory", "32M"]).args(more);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        stderr.read_line(&mut line).expect("a line");
        // What it says besides its address: a line on its device and one on sizes, or one on all models.
        let mut more = String::new();
        if line.contains(" is ready at ") {
            for _ in 0..if line.starts_with("a server with") { 1 } else { 2 } {
                stderr.read_line(&mut more).expect("a line");
            }
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { child, stderr, line, more, agent: config.build().into() }
    }

    /// An address of the server's.
    pub fn url(&self, path: &str) -> String {
        let start = self.line.find("http://").expect("an address");
        let end = self.line[start..].find(": ").expect("its end");
        format!("{}{path}", &self.line[start..start + end])
    }

    /// The answer to a POST that is fine.
    pub fn post(&self, path: &str, body: &Value) -> Value {
        let answer = self.agent.post(self.url(path)).content_type("application/json").send(body.to_string());
        Self::ok(answer.expect("an answer"))
    }

    /// The answer to a GET that is fine.
    pub fn get(&self, path: &str) -> Value {
        Self::ok(self.agent.get(self.url(path)).call().expect("an answer"))
    }

    fn ok(mut answer: ureq::http::Response<ureq::Body>) -> Value {
        let text = answer.body_mut().read_to_string().expect("text");
        assert_eq!(answer.status(), 200, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// Memory of the process that is not swapped out or given back.
    #[cfg(target_os = "linux")]
    pub fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("a status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
        line.trim().strip_suffix(" kB").expect("a unit").parse::<usize>().expect("a number") * 1024
    }

    /// Sends the process a signal.
    pub fn signal(&self, name: &str) {
        let done = Command::new("kill").args([name, &self.child.id().to_string()]).status();
        assert!(done.expect("kill is there").success());
    }

    /// Waits for the end; returns its status and what stood on stdout and on stderr after the first line.
    pub fn end(mut self) -> (ExitStatus, String, String) {
        let start = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a status") {
                Some(status) => break status,
                None if start.elapsed() > PATIENCE => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (mut out, mut err) = (String::new(), String::new());
        self.child.stdout.take().expect("a pipe").read_to_string(&mut out).expect("text");
        self.stderr.read_to_string(&mut err).expect("text");
        (status, out, err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended long ago.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
