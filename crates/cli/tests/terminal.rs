//! The interactive chat, driven on a pseudo-terminal as a person would.

#![cfg(target_os = "linux")]

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, tcgetattr, tcsetattr};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_realizar");

/// A chat and the person's end of its terminal.
struct Chat {
    child: Child,
    terminal: File,
    /// What was shown and not yet waited for.
    shown: String,
}

impl Chat {
    fn start(args: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&controller).expect("its rights");
        unlockpt(&controller).expect("its lock");
        // A terminal that Ctrl-C interrupts throws away what it was given and has not shown yet, be it the middle of an answer.
        let mut modes = tcgetattr(&controller).expect("its modes");
        modes.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&controller, OptionalActions::Now, &modes).expect("its modes are set");
        let name = ptsname(&controller, Vec::new()).expect("its name");
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let end =
            || Stdio::from(OpenOptions::new().read(true).write(true).open(path).expect("its other end"));
        // Ctrl-C becomes a signal only where the terminal controls a session.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", PROGRAM, "run"])
            .args(args)
            .env("TERM", "xterm")
            .env_remove("RUST_LOG")
            .stdin(end())
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("setsid starts");
        Self { child, terminal: File::from(controller), shown: String::new() }
    }

    fn type_in(&mut self, keys: &str) {
        self.terminal.write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Reads until `text` is shown; returns what came before it.
    #[track_caller]
    fn wait_for(&mut self, text: &str) -> String {
        let mut piece = [0; 4096];
        loop {
            if let Some(at) = self.shown.find(text) {
                let before = self.shown[..at].to_string();
                self.shown.drain(..at + text.len());
                return before;
            }
            // The end of a terminal is an error on Linux.
            match self.terminal.read(&mut piece) {
                Ok(n @ 1..) => self.shown += &String::from_utf8_lossy(&piece[..n]),
                _ => panic!("the chat ended before it showed {text:?}: {:?}", self.shown),
            }
        }
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().expect("it ends").code()
    }
}

/// Enter, as the terminal sends it, then the end of the line editor's raw mode: what follows is the program's answer.
const AFTER_LINE: &str = "\x1b[?2004l";
const PROMPT: &str = "> ";

#[test]
fn chats_remembers_forgets_and_survives_ctrl_c() {
    let question = "Tell me a story about a brave owl with two friends.";
    let plain = Command::new(PROGRAM).args(["run", "--temp", "0", question]).output().expect("it starts");
    let story = String::from_utf8(plain.stdout).expect("text");
    let story = story.trim_end();
    assert!(story.contains("owl"), "{story}");

    let mut chat = Chat::start(&["--temp", "0"]);
    chat.wait_for("/help says what else there is.");
    chat.wait_for(PROMPT);
    let mut ask = |line: &str| {
        chat.type_in(line);
        chat.type_in("\r");
        chat.wait_for(AFTER_LINE);
        // The terminal turns line ends into what moves its cursor.
        let answer = chat.wait_for("\x1b[?2004h").replace('\r', "");
        chat.wait_for(PROMPT);
        answer.trim().to_string()
    };
    assert!(ask("/help").contains("/reset"), "the commands are listed");
    assert!(ask("/bogus").contains("there is no /bogus"), "a wrong command is named");
    assert_eq!(ask(question), story, "the first answer is that of a single run");
    let remembered = ask("Who was the story about?");
    assert!(remembered.contains("owl"), "{remembered}");
    assert!(ask("/reset").contains("forgotten"), "the conversation is gone");
    assert_eq!(ask(question), story, "after a reset the answer is the first one again");
    assert!(ask("/reset").contains("forgotten"), "the conversation is gone");

    chat.type_in(question);
    chat.type_in("\r");
    chat.wait_for(AFTER_LINE);
    chat.wait_for("Once");
    chat.type_in("\x03");
    // The terminal shows the key wherever the answer stands.
    let rest = chat.wait_for(PROMPT).replace('\r', "").replace("^C", "");
    let begun = format!("Once{}", rest.split('\x1b').next().expect("text"));
    assert!(
        story.starts_with(begun.trim_end()),
        "an interrupted answer is the beginning of the whole one: {begun}"
    );
    chat.type_in("/exit\r");
    assert_eq!(chat.code(), Some(0), "it leaves when asked");
}

#[test]
fn leaves_at_the_end_of_input() {
    let mut chat = Chat::start(&[]);
    chat.wait_for(PROMPT);
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn quotes_hold_a_message_of_several_lines() {
    let lines = ["Tell me a story about", "a brave owl with two friends."];
    let plain =
        Command::new(PROGRAM).args(["run", "--temp", "0", &lines.join("\n")]).output().expect("it starts");
    let story = String::from_utf8(plain.stdout).expect("text");

    let mut chat = Chat::start(&["--temp", "0"]);
    chat.wait_for(PROMPT);
    chat.type_in(&format!("\"\"\"{}\r", lines[0]));
    chat.wait_for(AFTER_LINE);
    chat.wait_for(". ");
    chat.type_in(&format!("{}\"\"\"\r", lines[1]));
    chat.wait_for(AFTER_LINE);
    let answer = chat.wait_for("\x1b[?2004h").replace('\r', "");
    assert_eq!(answer.trim(), story.trim());
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}
