//! What a person sees on a terminal: the interactive chat, driven on a pseudo-terminal, and control characters that are shown.

#![cfg(target_os = "linux")]
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use support::Folder;

/// Of the terminal: narrow enough that answers are wrapped.
const COLUMNS: u16 = 60;
const ROWS: u16 = 40;
const PROGRAM: &str = env!("CARGO_BIN_EXE_realizar");

/// A chat and the person's end of its terminal.
struct Chat {
    child: Child,
    terminal: File,
    /// What was shown and not yet waited for.
    shown: String,
}

impl Chat {
    /// A chat with no history of earlier ones, which shows answers as they come.
    fn start(args: &[&str]) -> Self {
        Self::start_in(&Folder::new(), args)
    }

    /// A chat that keeps its history in `state`, and shows answers as they come.
    fn start_in(state: &Folder, args: &[&str]) -> Self {
        Self::program(state, &[&["run", "--plain"], args].concat())
    }

    /// A chat that draws answers.
    fn start_drawing(args: &[&str]) -> Self {
        Self::program(&Folder::new(), &[&["run"], args].concat())
    }

    /// Any of the program's commands.
    fn program(state: &Folder, args: &[&str]) -> Self {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&controller).expect("its rights");
        unlockpt(&controller).expect("its lock");
        // A terminal that Ctrl-C interrupts throws away what it was given and has not shown yet, be it the middle of an answer.
        let mut modes = tcgetattr(&controller).expect("its modes");
        modes.local_modes |= LocalModes::NOFLSH;
        tcsetattr(&controller, OptionalActions::Now, &modes).expect("its modes are set");
        let size = Winsize { ws_row: ROWS, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&controller, size).expect("its size is set");
        let name = ptsname(&controller, Vec::new()).expect("its name");
        let path = std::ffi::OsStr::from_bytes(name.as_bytes());
        let end =
            || Stdio::from(OpenOptions::new().read(true).write(true).open(path).expect("its other end"));
        // Ctrl-C becomes a signal only where the terminal controls a session.
        let child = Command::new("setsid")
            .args(["--ctty", "--wait", PROGRAM])
            .args(args)
            .env("TERM", "xterm")
            .env("XDG_STATE_HOME", state.path())
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
    /// Sends a line; returns what is shown until the next one is asked for.
    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.type_in(line);
        self.type_in("\r");
        self.wait_for(AFTER_LINE);
        // The terminal turns line ends into what moves its cursor.
        let answer = self.wait_for("\x1b[?2004h").replace('\r', "");
        self.wait_for(PROMPT);
        answer.trim().to_string()
    }

    /// As `ask`, without the line of figures behind an answer.
    #[track_caller]
    fn answer(&mut self, line: &str) -> String {
        let answer = self.ask(line);
        let (text, figures) = answer.rsplit_once('\n').unwrap_or(("", &answer));
        assert!(figures.starts_with('[') && figures.contains("tokens/s, context "), "{figures:?}");
        text.trim().to_string()
    }

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
    assert!(chat.ask("/help").contains("/reset"), "the commands are listed");
    assert!(chat.ask("/bogus").contains("there is no /bogus"), "a wrong command is named");
    assert_eq!(chat.answer(question), story, "the first answer is that of a single run");
    let remembered = chat.answer("Who was the story about?");
    assert!(remembered.contains("owl"), "{remembered}");
    assert!(chat.ask("/reset").contains("forgotten"), "the conversation is gone");
    assert_eq!(chat.answer(question), story, "after a reset the answer is the first one again");
    assert_eq!(chat.answer("/regen"), story, "and again when it is asked for again");
    assert!(chat.ask("/reset").contains("forgotten"), "the conversation is gone");

    chat.type_in(question);
    chat.type_in("\r");
    chat.wait_for(AFTER_LINE);
    chat.wait_for("Once");
    chat.type_in("\x03");
    // The terminal shows the key wherever the answer stands.
    let rest = chat.wait_for(PROMPT).replace('\r', "").replace("^C", "");
    let begun = format!("Once{}", rest.split(['\x1b', '[']).next().expect("text"));
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
    assert_eq!(answer.rsplit_once('[').expect("figures").0.trim(), story.trim());
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn a_conversation_is_saved_loaded_and_given_to_another_model() {
    let folder = Folder::new();
    let file = folder.join("chat.json");
    let model = folder.write("copy.gguf", include_bytes!("../../../assets/demo.gguf"));
    let question = "Tell me a story about a brave owl with two friends.";

    let mut chat = Chat::start(&["--temp", "0"]);
    chat.wait_for(PROMPT);
    let story = chat.answer(question);
    assert!(chat.ask("/system Be brief.").contains("changed"));
    assert!(chat.ask("/system").contains("Be brief."));
    assert!(chat.ask(&format!("/save {file}")).contains("3 messages"));
    chat.type_in("/exit\r");
    assert_eq!(chat.code(), Some(0));
    let saved: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&file).expect("the file is there")).expect("JSON");
    assert_eq!(saved["messages"][2]["content"], story.as_str());

    let mut chat = Chat::start(&["--temp", "0"]);
    chat.wait_for(PROMPT);
    assert!(chat.ask("/regen").contains("no message to answer"));
    assert!(chat.ask(&format!("/load {file}")).contains("3 messages"));
    assert!(chat.ask("/system").contains("Be brief."));
    assert!(chat.ask("/load /no/such/file").contains("No such file"));
    assert!(chat.ask("/model /no/such/model.gguf").contains("No such file"), "the chat goes on");
    assert!(chat.ask(&format!("/model {model}")).contains("copy.gguf on CPU"));
    let remembered = chat.answer("Who was the story about?");
    assert!(remembered.contains("owl"), "the conversation is still there: {remembered}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn settings_hold_for_what_is_asked_next() {
    let mut chat = Chat::start(&[]);
    chat.wait_for(PROMPT);
    assert!(chat.ask("/set temperature 0").contains("temperature is 0"));
    assert!(chat.ask("/set max_tokens 5").contains("max_tokens is 5"));
    assert!(chat.ask("/set").contains("max_tokens                  5"));
    assert!(chat.ask("/set top_p 2").contains("top_p"), "a value out of range is refused");
    assert!(
        chat.ask("/set warmth 2").contains("there is no \"warmth\"; there are seed, max_tokens, temperature")
    );
    let answer = chat.ask("Tell me a story about a brave owl with two friends.");
    assert!(answer.contains("[5 tokens, "), "{answer}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn lines_of_earlier_chats_come_back() {
    let state = Folder::new();
    let mut chat = Chat::start_in(&state, &[]);
    chat.wait_for(PROMPT);
    chat.ask("/set seed 12345");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
    let mut chat = Chat::start_in(&state, &[]);
    chat.wait_for(PROMPT);
    chat.type_in("\x1b[A");
    chat.wait_for("/set seed 12345");
    chat.type_in("\r");
    chat.wait_for("seed is 12345");
    chat.wait_for(PROMPT);
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn thoughts_are_dimmed_or_hidden_and_not_part_of_the_conversation() {
    let folder = Folder::new();
    // An answer that begins within thoughts which never end is all thoughts.
    let text = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                <|im_start|>assistant\n{% if enable_thinking is not defined %}<think>{% endif %}";
    let template = folder.write("t.jinja", text.as_bytes());
    let question = "Tell me a story about a brave owl with two friends.";
    let options = ["--temp", "0", "-n", "20", "--chat-template", &template];

    let mut chat = Chat::start_drawing(&options);
    chat.wait_for(PROMPT);
    chat.type_in(question);
    chat.type_in("\r");
    chat.wait_for(AFTER_LINE);
    chat.wait_for("\x1b[2m");
    chat.wait_for("\x1b[0m");
    chat.wait_for("tokens/s");
    chat.wait_for(PROMPT);
    let file = folder.join("chat.json");
    assert!(chat.ask(&format!("/save {file}")).contains("2 messages"));
    let saved = std::fs::read_to_string(&file).expect("the file is there");
    assert!(saved.contains("\"content\": \"\""), "{saved}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));

    let mut chat = Chat::start_drawing(&[&options[..], &["--hide-thinking"]].concat());
    chat.wait_for(PROMPT);
    let shown = chat.ask(question);
    assert!(shown.lines().all(|line| line.starts_with('[')), "figures alone: {shown:?}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));

    let mut chat = Chat::start_drawing(&[&options[..], &["--no-think"]].concat());
    chat.wait_for(PROMPT);
    let shown = chat.ask(question);
    assert!(shown.starts_with("Once"), "{shown:?}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn an_answer_is_wrapped_between_words_while_it_comes() {
    let question = "Tell me a story about a brave owl with two friends.";
    let plain = Command::new(PROGRAM).args(["run", "--temp", "0", question]).output().expect("it starts");
    let story = String::from_utf8(plain.stdout).expect("text");
    assert!(story.lines().any(|line| line.len() > usize::from(COLUMNS)), "it needs wrapping: {story}");
    let mut program = Chat::program(&Folder::new(), &["run", "--temp", "0", question]);
    let mut sent = Vec::new();
    // The end of a terminal is an error on Linux.
    drop(program.terminal.read_to_end(&mut sent));
    assert_eq!(program.code(), Some(0));
    let mut terminal = vt100::Parser::new(ROWS, COLUMNS, 0);
    terminal.process(&sent);
    let screen = terminal.screen();
    let rows = screen.rows(0, COLUMNS).map(|row| row.trim_end().to_owned());
    // Behind the story stands that the demo wrote it.
    let rows: Vec<String> = rows.take_while(|row| !row.contains("no model was named")).collect();
    let words: Vec<&str> = rows.iter().flat_map(|row| row.split_whitespace()).collect();
    let expected: Vec<&str> = story.split_whitespace().collect();
    assert_eq!(words, expected, "each word is whole in {rows:?}");
    assert!(rows.iter().all(|row| row.len() < usize::from(COLUMNS)), "{rows:?}");
}

#[test]
fn figures_follow_an_answer_and_say_what_is_left() {
    let mut chat = Chat::start_drawing(&["--temp", "0", "-n", "5"]);
    chat.wait_for(PROMPT);
    let shown = chat.ask("Tell me a story.");
    let figures = shown.lines().last().expect("a line");
    let numbers: Vec<usize> =
        figures.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    let [5, _, _, used, 1024, left] = numbers[..] else { panic!("{figures}") };
    assert_eq!(used + left, 1024, "{figures}");
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
}

#[test]
fn a_model_that_loads_and_measurements_show_that_something_goes_on() {
    let mut chat = Chat::start_drawing(&["demo"]);
    chat.wait_for("loading demo");
    chat.wait_for(PROMPT);
    chat.type_in("\x04");
    assert_eq!(chat.code(), Some(0));
    let args = ["bench", "--prompt", "64", "--gen", "8", "--repeat", "1", "--threads", "1"];
    let mut bench = Chat::program(&Folder::new(), &args);
    bench.wait_for("0/2 prompt of 64 × 1");
    bench.wait_for("1/2 8 tokens × 1 behind 0");
    bench.wait_for("decode");
    assert_eq!(bench.code(), Some(0));
    let folder = Folder::new();
    let text = folder.write("t.txt", "There was a small fox. ".repeat(60).as_bytes());
    let args = ["perplexity", &text, "--ctx", "64", "--chunks", "2", "--threads", "1"];
    let mut perplexity = Chat::program(&Folder::new(), &args);
    perplexity.wait_for("1/2");
    perplexity.wait_for("over 62 tokens");
    assert_eq!(perplexity.code(), Some(0));
}

#[test]
fn control_characters_of_a_template_are_shown_and_not_obeyed() {
    let folder = std::env::temp_dir().join(format!("realizar-terminal-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let (template, messages) = (folder.join("t.jinja"), folder.join("m.json"));
    std::fs::write(&template, "a\x1b]52;c;eA==\x07b\u{9b}31m{{ raise }}\nend").expect("it is written");
    std::fs::write(&messages, r#"{"messages": []}"#).expect("it is written");
    let args = ["template", "--file", template.to_str().expect("text"), messages.to_str().expect("text")];
    let mut terminal = Chat::program(&Folder::new(), &args);
    terminal.wait_for(r"a\x1b]52;c;eA==\x07b\x9b31m");
    terminal.wait_for("end");
    // Into a pipe the text goes as it is.
    let piped = Command::new(PROGRAM).args(args).output().expect("it starts");
    assert_eq!(piped.stdout, "a\x1b]52;c;eA==\x07b\u{9b}31m\nend".as_bytes());
    // Errors are for people, wherever they go.
    std::fs::write(&template, "{{ raise_exception('no\x1b[2J') }}").expect("it is written");
    let failed = Command::new(PROGRAM).args(args).output().expect("it starts");
    let error = String::from_utf8(failed.stderr).expect("text");
    assert!(error.contains(r"no\x1b[2J"), "{error:?}");
    drop(std::fs::remove_dir_all(&folder));
}
