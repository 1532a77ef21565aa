//! Running the program and looking at what it leaves behind.

#[cfg(unix)]
pub mod server;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The program, with an environment that does not depend on who runs the tests.
pub fn realizar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_realizar"));
    without_settings(&mut command);
    command.stdin(Stdio::null());
    command
}

/// Takes the variables that set options from a command, and those of the libraries below.
pub fn without_settings(command: &mut Command) {
    for name in ["RUST_LOG", "HF_TOKEN", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"] {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("REALIZAR_")) {
        command.env_remove(name);
    }
}

/// Runs the program to its end.
pub fn run(args: &[&str]) -> Output {
    realizar().args(args).output().expect("the program starts")
}

/// Runs the program with a text on stdin.
pub fn run_with_stdin(args: &[&str], stdin: &[u8]) -> Output {
    let mut child = realizar()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    // A program that refuses its arguments does not read.
    drop(child.stdin.take().expect("a pipe").write_all(stdin));
    child.wait_with_output().expect("the program ends")
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).expect("stdout is UTF-8")
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).expect("stderr is UTF-8")
}

/// Asserts success and hands back stdout.
#[track_caller]
pub fn succeeds(output: &Output) -> &str {
    assert_eq!(output.status.code(), Some(0), "stderr: {}", stderr(output));
    stdout(output)
}

/// Asserts success and that stdout is one JSON object on one line.
#[track_caller]
pub fn json(output: &Output) -> serde_json::Value {
    let text = succeeds(output);
    assert!(text.ends_with('\n') && text.lines().count() == 1, "{text}");
    let value: serde_json::Value = serde_json::from_str(text).expect("stdout is JSON");
    assert!(value.is_object(), "{text}");
    value
}

/// Asserts a failure by exit code 1, nothing on stdout, and one line on stderr with all of `parts`.
#[track_caller]
pub fn fails(output: &Output, parts: &[&str]) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(1), "stderr: {text}");
    assert_eq!(stdout(output), "", "a failure prints no result");
    assert!(text.starts_with("error: ") && text.lines().count() == 1, "one line: {text:?}");
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
}

/// Asserts wrong usage: exit code 2, nothing on stdout.
#[track_caller]
pub fn is_wrong_usage(output: &Output, part: &str) {
    assert_eq!(output.status.code(), Some(2), "stderr: {}", stderr(output));
    assert_eq!(stdout(output), "");
    assert!(stderr(output).contains(part), "{part:?} in {:?}", stderr(output));
}

/// A folder that goes away with the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("realizar-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary folder");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file or folder in it, as text.
    pub fn join(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a plain path").to_owned()
    }

    /// Writes a file in it, or in a folder below.
    pub fn write(&self, name: &str, bytes: &[u8]) -> String {
        let parent = self.0.join(name).parent().expect("the folder itself").to_owned();
        std::fs::create_dir_all(parent).expect("a folder in the temporary folder");
        std::fs::write(self.0.join(name), bytes).expect("a file in the temporary folder");
        self.join(name)
    }

    /// Names of what is in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder is there");
        let mut names: Vec<String> =
            entries.map(|e| e.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// The model in the program.
pub fn demo() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo.gguf");
    std::fs::read(path).expect("the demo model")
}

/// A fixture of the model crate: a tiny model of this architecture.
pub fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data/arch").join(name);
    path.to_str().expect("a plain path").to_owned()
}
