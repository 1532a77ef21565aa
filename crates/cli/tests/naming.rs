//! How people name models and give prompts, as they are used to from Ollama and llama.cpp.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::Value;
use support::{
    Folder, demo, fails, fixture, is_wrong_usage, json, realizar, run, run_with_stdin, stderr, succeeds,
};

const NO_MODEL: &str = "no model was named";

/// The prompt's length and the answer of `run` with these arguments.
#[track_caller]
fn asked(args: &[&str]) -> (u64, Value) {
    let args = [&["run", "--json", "--temp", "0", "-n", "4"], args].concat();
    let report = json(&run(&args));
    (report["prompt_tokens"].as_u64().expect("a number"), report["text"].clone())
}

#[test]
fn the_first_argument_may_be_the_model() {
    let folder = Folder::new();
    let file = folder.write("model.gguf", &demo());
    let (n, text) = asked(&["-m", &file, "Tell me a story."]);
    for same in [
        &[&file, "Tell me a story."][..],
        &[&file, "Tell", "me", "a", "story."],
        &["demo", "Tell me a story."],
    ] {
        assert_eq!(asked(same), (n, text.clone()), "{same:?}");
    }
    assert_eq!(asked(&["Tell me a story."]), (n, text.clone()), "without a model the demo answers");
    assert_eq!(asked(&["-p", "Tell me a story."]), (n, text), "llama.cpp's flag");
    for command in
        [&["inspect", &file, "--json"][..], &["show", &file, "--json"], &["inspect", "-m", &file, "--json"]]
    {
        assert_eq!(json(&run(command))["model"], file.as_str(), "{command:?}");
    }
    let bench = ["bench", &file, "--prompt", "8", "--gen", "0", "--repeat", "1", "--threads", "1", "--json"];
    assert_eq!(json(&run(&bench))["model"], file.as_str());
}

#[test]
fn the_demo_never_answers_a_model_as_a_prompt() {
    for missing in ["none.gguf", "./none", "sub/none.safetensors", "config.json"] {
        fails(&run(&["run", missing]), &[missing]);
        fails(&run(&["run", missing, "Hello"]), &[missing]);
    }
    let folder = Folder::new();
    fails(&run(&["run", folder.path().to_str().expect("a path"), "Hello"]), &["is not a model"]);
    fails(&run(&["run", "-m", "qwen3:9b", "Hello"]), &["qwen3:9b", "qwen3:0.6b"]);
    fails(&run(&["inspect", "lama3"]), &["lama3", "llama3.2"]);
    let named = run(&["run", "-n", "1", "demo", "Hello"]);
    assert!(!stderr(&named).contains(NO_MODEL), "{}", stderr(&named));
    let unnamed = run(&["run", "-n", "1", "Hello"]);
    succeeds(&unnamed);
    assert!(stderr(&unnamed).contains(NO_MODEL), "{}", stderr(&unnamed));
}

#[test]
fn stdin_stands_behind_the_prompt() {
    let prompt = |args: &[&str], stdin: &[u8]| {
        let args = [&["run", "--json", "-n", "1", "--raw"], args].concat();
        json(&run_with_stdin(&args, stdin))["prompt_tokens"].as_u64()
    };
    let both = prompt(&["One fox.\n\nTwo owls."], b"");
    assert_eq!(prompt(&["One fox."], b"Two owls."), both);
    assert_eq!(prompt(&["demo", "One fox."], b"Two owls."), both);
    assert_eq!(prompt(&["demo"], b"One fox.\n\nTwo owls."), both);
    assert_eq!(prompt(&["-"], b"One fox.\n\nTwo owls."), both);
    fails(&run_with_stdin(&["run", "demo"], b""), &["the prompt is empty"]);
}

#[test]
fn flags_of_other_programs_are_known() {
    let flags = ["-t", "1", "-c", "256", "-s", "7", "--temperature", "0", "--n-predict", "2", "-ngl", "99"];
    let output = realizar().args(["run", "--json", "demo", "Hello"]).args(flags).output().expect("it starts");
    assert_eq!(json(&output)["tokens"].as_array().map(Vec::len), Some(2));
    assert!(stderr(&output).contains("-ngl is not needed"), "{}", stderr(&output));
    let output = run(&["run", "-hf", "demo", "-n", "1", "Hello"]);
    assert!(!succeeds(&output).contains("Usage"), "-hf names a model");
    is_wrong_usage(&run(&["run", "-hfv", "x"]), "-hf");
    is_wrong_usage(&run(&["run", "demo", "-p", "a", "--nonsense"]), "--nonsense");
    fails(&run(&["run", "demo", "-p", "a", "b"]), &["the prompt stands twice"]);
}

#[test]
fn a_model_without_a_template_chats_by_chatml_or_by_what_it_is_given() {
    let model = fixture("phi2/model.gguf");
    let n_tokens = |args: &[&str]| {
        let output = run(&[&["run", &model, "-n", "0", "--json"], args].concat());
        (json(&output)["prompt_tokens"].as_u64(), stderr(&output).to_owned())
    };
    let raw = |text: &str| n_tokens(&["--raw", text]).0;
    let chatml = raw("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let (n, note) = n_tokens(&["Hi"]);
    assert_eq!(n, chatml);
    assert!(note.contains("no chat template") && note.contains("ChatML"), "{note}");
    assert_eq!(n_tokens(&["Hi", "--chat-template", "chatml"]), (chatml, String::new()));
    assert_eq!(n_tokens(&["--raw", "Hi"]).1, "", "a prompt that is continued needs no template");

    let folder = Folder::new();
    let file = folder.write("t.jinja", b"[{{ messages[0].content }}]");
    assert_eq!(n_tokens(&["Hi", "--chat-template", &file]), (raw("[Hi]"), String::new()));
    fails(&run(&["run", &model, "Hi", "--chat-template", "/no/such"]), &["/no/such"]);
    let broken = folder.write("b.jinja", b"{% if %}");
    fails(&run(&["run", &model, "Hi", "--chat-template", &broken]), &["b.jinja", "line 1"]);
}

#[test]
fn a_switch_that_the_template_has_not_is_refused() {
    fails(&run(&["run", "demo", "--no-think", "Hello"]), &["no switch for thinking"]);
    let plain = run(&["run", "demo", "--temp", "0", "-n", "5", "Hello"]);
    let hidden = run(&["run", "demo", "--temp", "0", "-n", "5", "--hide-thinking", "Hello"]);
    assert_eq!(succeeds(&hidden), succeeds(&plain), "an answer without thoughts is whole");
}

#[test]
fn a_context_longer_than_the_models_is_warned_of() {
    let output = run(&["run", "demo", "-n", "1", "--ctx", "2000", "Hello"]);
    succeeds(&output);
    assert!(stderr(&output).contains("more than the 1024 tokens"), "{}", stderr(&output));
    let output = run(&["run", "demo", "-n", "1", "--ctx", "1024", "Hello"]);
    assert_eq!((succeeds(&output).is_empty(), stderr(&output)), (false, ""));
    let folder = Folder::new();
    let text = folder.write("t.txt", "a fox ".repeat(2000).as_bytes());
    let output = run(&["perplexity", &text, "--ctx", "1100", "--chunks", "1"]);
    succeeds(&output);
    assert!(stderr(&output).contains("more than the 1024 tokens"), "{}", stderr(&output));
}
