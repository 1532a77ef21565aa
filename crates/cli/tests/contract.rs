//! What scripts rely on: exit codes, what goes to stdout and what to stderr, the fields of JSON, and how failures read.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::Value;
use std::io::Read;
use std::process::Stdio;
use support::{
    Folder, demo, fails, fixture, is_wrong_usage, json, realizar, run, run_with_stdin, stderr, succeeds,
};

#[test]
fn help_and_version_are_results() {
    assert!(succeeds(&run(&["--help"])).contains("Exit codes: 0 fine, 1 failed, 2 wrong usage"));
    assert!(succeeds(&run(&["--version"])).contains(env!("CARGO_PKG_VERSION")));
    for command in [
        "tokenize",
        "template",
        "inspect",
        "perplexity",
        "bench",
        "pull",
        "quantize",
        "imatrix",
        "synth",
        "launch",
    ] {
        assert!(succeeds(&run(&[command, "--help"])).contains("Usage: realizar"), "{command}");
    }
}

#[test]
fn completions_and_man_page_know_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(succeeds(&run(&["completions", shell])).contains("quantize"), "{shell}");
    }
    let man = run(&["man"]);
    assert!(succeeds(&man).contains(".TH realizar") && succeeds(&man).contains("quantize"));
    let serve = run(&["man", "bench", "serve"]);
    assert!(
        succeeds(&serve).contains("realizar\\-bench\\-serve") && succeeds(&serve).contains("slo\\-ttft\\-ms")
    );
    fails(&run(&["man", "nonsense"]), &["realizar has no command \"nonsense\""]);
    let folder = Folder::new();
    assert_eq!(succeeds(&run(&["man", "--dir", &folder.join("man1")])), "");
    for page in ["realizar.1", "realizar-serve.1", "realizar-bench-serve.1"] {
        assert!(folder.path().join("man1").join(page).exists(), "{page}");
    }
}

#[test]
fn wrong_usage_exits_with_2() {
    is_wrong_usage(&run(&[]), "Usage");
    is_wrong_usage(&run(&["nonsense"]), "nonsense");
    is_wrong_usage(&run(&["tokenize", "--nonsense"]), "--nonsense");
    is_wrong_usage(&run(&["tokenize", "-m", "hf:nonsense", "x"]), "OWNER/NAME");
    is_wrong_usage(&run(&["synth", "llama-9:q4_0", "x.gguf"]), "llama-3.2-1b");
    is_wrong_usage(&run(&["synth", "llama-3.2-1b:q9", "x.gguf"]), "q4_k_m");
    is_wrong_usage(&run(&["quantize", "demo", "x.gguf", "q9"]), "q4_k_m");
    is_wrong_usage(&run(&["quantize", "demo", "x.gguf"]), "TYPE");
    is_wrong_usage(&run(&["quantize", "demo", "x.gguf", "f16", "--threads", "0"]), "--threads");
    is_wrong_usage(&run(&["imatrix", "-m", "demo"]), "--file");
    is_wrong_usage(&run(&["imatrix", "-f", "t.txt", "--device", "cuda"]), "--device");
    is_wrong_usage(&run(&["pull", "gpt2"]), "OWNER/NAME");
    is_wrong_usage(&run(&["perplexity"]), "FILE");
    is_wrong_usage(&run(&["bench", "--device", "tpu"]), "tpu");
    is_wrong_usage(&run(&["bench", "--device", "cuda:0,x"]), "not the number of a GPU");
    is_wrong_usage(&run(&["bench", "--tp", "0"]), "1..=8");
    is_wrong_usage(&run(&["run", "--temp=-1", "x"]), "at least 0");
    is_wrong_usage(&run(&["run", "--temp=nan", "x"]), "at least 0");
    is_wrong_usage(&run(&["run", "--top-p=1.5", "x"]), "between 0 and 1");
    is_wrong_usage(&run(&["run", "--repeat-penalty=0", "x"]), "between 0.01 and 100");
    is_wrong_usage(&run(&["template", "--file", "x", "-m", "demo"]), "--model");
    is_wrong_usage(&run(&["serve", "--prot", "1"]), "a similar argument exists: '--port'");
    is_wrong_usage(&run(&["serve", "--max-model-len", "1"]), "here, --ctx N stands for --max-model-len");
    for letters_behind_h in ["-hv", "-hfv", "-vhx", "-vvhf"] {
        is_wrong_usage(&run(&["serve", letters_behind_h, "x"]), "-h or --help prints help");
    }
}

#[test]
fn help_has_headings_and_rare_options_last() {
    let help = run(&["serve", "--help"]);
    let help = succeeds(&help);
    let headings: Vec<&str> =
        help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    assert_eq!(headings.first(), Some(&"Arguments:"));
    assert!(headings.contains(&"Address and access:") && headings.contains(&"Device:"), "{headings:?}");
    assert_eq!(headings[headings.len() - 2..], ["Rarely needed:", "Settings and logs:"]);
    // The short help leaves them out and says where they are.
    let short = run(&["serve", "-h"]);
    let short = succeeds(&short);
    assert!(!short.contains("--format-timeout") && help.contains("--format-timeout"), "{short}");
    assert!(short.contains("see more with '--help'"), "{short}");
    assert!(
        succeeds(&run(&["--help"])).contains("completions") && succeeds(&run(&["--help"])).contains("man ")
    );
}

#[test]
fn a_model_is_shown_with_its_licence_and_template() {
    let folder = Folder::new();
    let hf = fixture("qwen2/hf");
    for entry in std::fs::read_dir(&hf).expect("the fixture") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).expect("a plain name");
        std::fs::copy(&path, folder.join(name)).expect("it is copied");
    }
    folder.write("README.md", b"---\nlicense: apache-2.0\n---\n# A model\n");
    let model = folder.path().to_str().expect("a plain path");
    assert_eq!(json(&run(&["show", model, "--json"]))["license"], "apache-2.0");
    let shown = run(&["show", model]);
    let shown = succeeds(&shown);
    assert!(
        shown.contains("licence        apache-2.0\n") && shown.contains("sampling       temperature"),
        "{shown}"
    );
    assert_eq!(json(&run(&["show", "demo", "--json"]))["license"], "mit OR apache-2.0");
    assert_eq!(json(&run(&["show", &fixture("qwen2/hf"), "--json"]))["license"], Value::Null);
    let template = std::fs::read_to_string(folder.join("chat_template.jinja")).expect("the fixture's");
    assert_eq!(succeeds(&run(&["show", model, "--template"])), template);
    fails(&run(&["show", &fixture("phi2/model.gguf"), "--template"]), &["has no chat template"]);
}

#[test]
fn ids_and_text_convert_into_each_other() {
    let text = "Once upon a time, there was a fox.\n  Ünïcode 🦊";
    let ids = run(&["tokenize", text]);
    let ids = succeeds(&ids).trim_end();
    assert!(ids.split(' ').all(|id| id.parse::<u32>().is_ok()), "{ids}");
    assert_eq!(succeeds(&run(&["tokenize", "--decode", ids])), text);
    assert_eq!(succeeds(&run_with_stdin(&["tokenize", "-"], text.as_bytes())).trim_end(), ids);
    assert_eq!(succeeds(&run_with_stdin(&["tokenize", "--decode"], ids.as_bytes())), text);

    let object = json(&run(&["tokenize", "--json", text]));
    let listed: Vec<String> = object["ids"].as_array().expect("ids").iter().map(Value::to_string).collect();
    assert_eq!(listed.join(" "), ids);
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(listed.len()));
    assert_eq!(json(&run(&["tokenize", "--decode", "--json", ids]))["text"], text);
}

#[test]
fn special_tokens_can_be_taken_as_text() {
    let count = |args: &[&str]| json(&run(args))["ids"].as_array().map(Vec::len);
    assert_eq!(count(&["tokenize", "--json", "<|im_end|>"]), Some(1));
    assert!(count(&["tokenize", "--json", "--no-special", "<|im_end|>"]) > Some(1));
}

#[test]
fn ids_that_are_none_are_refused() {
    fails(&run(&["tokenize", "--decode", "1 x"]), &["\"x\" is not a token id"]);
    fails(&run(&["tokenize", "--decode", "99999999"]), &["99999999", "out of range"]);
    fails(&run_with_stdin(&["tokenize"], b"\xff\xfe"), &["not UTF-8"]);
}

#[test]
fn a_conversation_is_rendered_by_the_model_or_by_a_file() {
    let conversation = br#"{"messages": [{"role": "user", "content": "Hi"}]}"#;
    let asked = run_with_stdin(&["template"], conversation);
    assert_eq!(succeeds(&asked), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    let told = run_with_stdin(&["template", "--no-generation-prompt", "-"], conversation);
    assert_eq!(succeeds(&told), "<|im_start|>user\nHi<|im_end|>\n");

    let folder = Folder::new();
    let template = folder.write("t.jinja", b"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}");
    let messages = folder.write("m.json", br#"[{"role": "user", "content": "Hi"}]"#);
    let output = run(&["template", "--file", &template, "--bos", "<s>", "--eos", "</s>", &messages]);
    assert_eq!(succeeds(&output), "<s>Hi</s>");
    assert_eq!(succeeds(&run(&["template", "--file", &template, &messages])), "Hi");

    fails(&run_with_stdin(&["template"], b"{"), &["stdin is not JSON"]);
    fails(&run_with_stdin(&["template"], b"7"), &["messages"]);
    fails(&run(&["template", &folder.join("none.json")]), &["none.json", "No such file"]);
    let broken = folder.write("broken.jinja", b"a\n{% if %}");
    fails(&run(&["template", "--file", &broken, &messages]), &["broken.jinja", "line 2"]);
    fails(
        &run_with_stdin(&["template", "-m", &fixture("phi2/model.gguf")], conversation),
        &["no chat template"],
    );
}

#[test]
fn inspect_tells_what_a_model_is() {
    let object = json(&run(&["inspect", "--json"]));
    assert_eq!(object["architecture"], "llama");
    assert!(object["family"].as_str().is_some_and(|family| family.contains("Llama")), "{object}");
    assert_eq!(object["format"], "GGUF");
    assert_eq!(object["unsupported"], Value::Null);
    let sum: u64 =
        object["types"].as_array().expect("types").iter().filter_map(|t| t["bytes"].as_u64()).sum();
    assert_eq!(object["weight_bytes"].as_u64(), Some(sum));
    assert_eq!(object["devices"][0]["device"], "cpu");
    assert_eq!(object["devices"][0]["runs"], true);
    let tokens = |n: &str| json(&run(&["inspect", "--json", "--ctx", n]))["cache_bytes"]["F16"].as_u64();
    assert_eq!(tokens("200"), tokens("100").map(|b| b * 2));
    for model in [fixture("qwen3moe/hf"), fixture("gemma2/model.gguf"), fixture("llama-linear/hf-sharded")] {
        assert_eq!(json(&run(&["inspect", &model, "--json"]))["unsupported"], Value::Null, "{model}");
        assert!(succeeds(&run(&["inspect", &model])).contains("parameters"), "{model}");
    }
}

#[test]
fn inspect_names_what_is_wrong_with_a_template() {
    let folder = Folder::new();
    for entry in std::fs::read_dir(fixture("qwen2/hf")).expect("the fixture") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, folder.join(path.file_name().and_then(|n| n.to_str()).expect("a name")))
            .expect("a copy");
    }
    let model = folder.path().to_str().expect("a plain path");
    for (template, part) in [
        (format!("{{{{ 1{} }}}}", " + 1".repeat(50_000)), "nest deeper than 500 levels"),
        (format!("{{{{ {}1 }}}}", "not ".repeat(60_000)), "nest deeper than 500 levels"),
        (
            format!("{}{}", "{% if a %}".repeat(8_000), "{% endif %}".repeat(8_000)),
            "exceeds maximum recursion limits",
        ),
        ("x".repeat(300_000), "at most 262144 are allowed"),
        ("{{ messages".to_owned(), "chat template"),
    ] {
        folder.write("chat_template.jinja", template.as_bytes());
        let object = json(&run(&["inspect", model, "--json"]));
        let error = object["chat_template_error"].as_str().unwrap_or_else(|| panic!("no error in {object}"));
        assert!(error.contains(part) && error.len() < 1000, "{error}");
        let table = run(&["inspect", model]);
        assert!(succeeds(&table).contains(part), "{table:?}");
    }
}

#[test]
fn perplexity_has_its_fields() {
    let folder = Folder::new();
    let text = folder.write("t.txt", "There was a small fox. It had a red ball. ".repeat(30).as_bytes());
    let object =
        json(&run(&["perplexity", &text, "--ctx", "64", "--chunks", "2", "--threads", "1", "--json"]));
    let number = |key: &str| object[key].as_f64().unwrap_or_else(|| panic!("{key} in {object}"));
    assert_eq!(number("tokens"), 2.0 * 31.0);
    assert!(
        (number("ppl") - (number("nll") / number("tokens")).exp()).abs() < 1e-3 * number("ppl"),
        "{object}"
    );
    assert!(number("ppl") > 1.0 && number("ppl") < 3072.0, "{object}");
    fails(&run(&["perplexity", &text, "--ctx", "4096"]), &["t.txt"]);
    fails(&run(&["perplexity", &folder.join("none.txt")]), &["none.txt", "No such file"]);
}

#[test]
fn bench_has_its_fields() {
    let args = [
        "bench",
        "--prompt",
        "8",
        "--gen",
        "4",
        "--batch",
        "1,2",
        "--depth",
        "0,16",
        "--repeat",
        "1",
        "--threads",
        "1",
        "--json",
    ];
    let object = json(&run(&args));
    assert_eq!(object["model"], "demo");
    assert_eq!(object["threads"], 1);
    assert!(object["device"].is_string());
    let results = object["results"].as_array().expect("results");
    let count = |kind: &str| results.iter().filter(|r| r["kind"] == kind).count();
    assert_eq!((count("prefill"), count("decode")), (2, 4));
    for row in results {
        let rate = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key} in {row}"));
        assert!(
            rate("tok_s") > 0.0 && rate("tok_s_min") <= rate("tok_s") && rate("tok_s") <= rate("tok_s_max"),
            "{row}"
        );
        for key in ["tokens", "batch", "depth"] {
            assert!(row[key].is_u64(), "{key} in {row}");
        }
        assert_eq!(row["gb_s"].is_f64(), row["kind"] == "decode", "{row}");
    }
}

#[test]
fn a_quantized_model_is_a_model() {
    let folder = Folder::new();
    for (input, mix, dtype) in [
        ("demo".to_owned(), "q4_0", "Q4_0"),
        (fixture("qwen2/hf"), "f16", "F16"),
        (fixture("mixtral/hf"), "q8_0", "Q8_0"),
        (fixture("gpt2/hf"), "bf16", "BF16"),
        (fixture("gemma3/model.gguf"), "q5_0", "Q5_0"),
        ("demo".to_owned(), "iq4_nl", "IQ4_NL"),
    ] {
        let out = folder.join("out.gguf");
        let output = run(&["quantize", &input, &out, mix, "--allow-requantize"]);
        assert_eq!(succeeds(&output), "", "{input}: nothing is a result but the file");
        let object = json(&run(&["inspect", &out, "--json"]));
        assert_eq!(object["unsupported"], Value::Null, "{input}");
        assert_eq!(object["tokenizer_error"], Value::Null, "{input}");
        let types = object["types"].as_array().expect("types");
        assert!(types.iter().any(|t| t["dtype"] == dtype), "{input} {mix}: {object}");
        assert_eq!(folder.names(), ["out.gguf"], "no temporary file stays");
    }
}

#[test]
fn a_quantized_file_is_quantized_again_only_if_asked_for() {
    let folder = Folder::new();
    let out = folder.join("out.gguf");
    fails(&run(&["quantize", "demo", &out, "q4_k_s"]), &["quantized already", "--allow-requantize"]);
    assert!(folder.names().is_empty(), "nothing was written");
    // Nothing is lost where it becomes plain numbers.
    succeeds(&run(&["quantize", "demo", &out, "f32"]));
}

#[test]
fn an_importance_matrix_makes_types_of_few_bits_possible() {
    let folder = Folder::new();
    let text = folder.write("t.txt", "There was a small fox. It had a red ball. ".repeat(30).as_bytes());
    let out = folder.join("out.gguf");
    let quantize =
        |more: &[&str]| run(&[&["quantize", "demo", &out, "iq2_xs", "--allow-requantize"], more].concat());
    fails(&quantize(&[]), &["blk.0.", "IQ2_XS", "importance matrix"]);
    assert_eq!(folder.names(), ["t.txt"], "nothing was written");
    for name in ["m.gguf", "m.dat"] {
        let matrix = folder.join(name);
        let made =
            run(&["imatrix", "-m", "demo", "-f", &text, "-o", &matrix, "--ctx", "64", "--chunks", "2"]);
        assert_eq!(succeeds(&made), "", "nothing is a result but the file");
        succeeds(&quantize(&["--imatrix", &matrix]));
        let types = json(&run(&["inspect", &out, "--json"]));
        let types = types["types"].as_array().expect("types").clone();
        assert!(types.iter().any(|t| t["dtype"] == "IQ2_XS"), "{types:?}");
        let ppl = json(&run(&["perplexity", "-m", &out, &text, "--ctx", "64", "--chunks", "1", "--json"]));
        assert!(ppl["ppl"].as_f64().is_some_and(f64::is_finite), "{ppl}");
    }
    let damaged =
        folder.write("damaged.gguf", &std::fs::read(folder.join("m.gguf")).expect("a file")[..5000]);
    fails(&quantize(&["--imatrix", &damaged]), &["damaged.gguf"]);
    fails(&quantize(&["--imatrix", &text]), &["t.txt"]);
    fails(&run(&["imatrix", "-f", &text, "--ctx", "4096", "-o", &out]), &["t.txt", "4096"]);
    // Experts have an importance each.
    let experts = folder.join("experts.gguf");
    let mixtral = fixture("mixtral/hf");
    let args = [
        "imatrix",
        "-m",
        &mixtral,
        "-f",
        &text,
        "-o",
        &experts,
        "--ctx",
        "16",
        "--process-output",
        "--exact",
    ];
    succeeds(&run(&args));
    succeeds(&run(&["quantize", &mixtral, &out, "q4_0", "--imatrix", &experts]));
    fails(&quantize(&["--imatrix", &experts]), &["experts.gguf", "another model"]);
}

#[test]
fn a_profile_accounts_for_the_time_of_every_token() {
    const N_LAYERS: usize = 8;
    let folder = Folder::new();
    let trace = folder.join("trace.json");
    let args =
        ["bench", "demo", "--device", "cpu", "--prompt", "16", "--gen", "8", "--repeat", "1", "--json"];
    let profiled = || json(&run(&[&args[..], &["--profile", &trace]].concat()));
    // What else runs on the machine may interrupt a step between its parts.
    let covers = |report: &Value, share: f64| {
        let work = report["profile"].as_array().expect("pieces of work");
        work.iter().all(|work| work["covered"].as_f64().is_some_and(|covered| covered >= share))
    };
    let report = (0..10).map(|_| profiled()).find(|report| covers(report, 0.85));
    let report = report.expect("parts that cover 85 % of the time");
    let work = report["profile"].as_array().expect("pieces of work");
    assert_eq!(work.iter().map(|work| work["tokens"].as_u64()).collect::<Vec<_>>(), [Some(16), Some(8)]);
    // A prompt is one step, and each token that follows another.
    for (work, n_steps) in work.iter().zip([1, 8]) {
        let runs = |part: &str| {
            let parts = work["parts"].as_array().expect("parts");
            let part =
                parts.iter().find(|p| p["name"] == part).unwrap_or_else(|| panic!("no {part} in {work}"));
            part["runs"].as_u64().expect("a number") as usize
        };
        assert_eq!((runs("lm_head"), runs("sample")), (n_steps, n_steps));
        for part in ["qkv_proj", "attention", "o_proj", "gate_up_proj", "down_proj"] {
            assert_eq!(runs(part), n_steps * N_LAYERS, "{part}");
        }
    }
    let events: Value = serde_json::from_slice(&std::fs::read(&trace).expect("a trace")).expect("JSON");
    let events = events["traceEvents"].as_array().expect("events");
    let n_runs = work.iter().flat_map(|work| work["parts"].as_array().expect("parts"));
    let n_runs: u64 = n_runs.map(|part| part["runs"].as_u64().expect("a number")).sum();
    assert_eq!(events.iter().filter(|event| event["ph"] == "X").count() as u64, n_runs);
    assert!(json(&run(&args))["profile"].as_array().is_none_or(Vec::is_empty), "off unless asked for");
}

#[test]
fn a_synthetic_model_has_the_shape_and_runs() {
    let folder = Folder::new();
    let out = folder.join("out.gguf");
    assert_eq!(succeeds(&run(&["synth", "ernie-4.5-0.3b:q4_0", &out])), "");
    let facts = json(&run(&["inspect", &out, "--json"]));
    assert_eq!((&facts["architecture"], &facts["shape"]["n_layers"]), (&"ernie4_5".into(), &18.into()));
    assert_eq!(facts["shape"]["vocab_size"], 103_424);
    let types = facts["types"].as_array().expect("types");
    assert!(types.iter().any(|t| t["dtype"] == "Q4_0"), "{types:?}");
    let text = json(&run(&["run", &out, "--raw", "-n", "3", "--device", "cpu", "--json", "x"]));
    assert_eq!(text["tokens"].as_array().map(Vec::len), Some(3), "{text}");
}

#[test]
fn an_output_that_cannot_be_written_is_named() {
    let folder = Folder::new();
    let nowhere = folder.join("nowhere/out.gguf");
    let model = fixture("qwen2/hf");
    fails(&run(&["quantize", &model, &nowhere, "q8_0"]), &[&nowhere, "No such file"]);
    fails(&run(&["quantize", &model, folder.path().to_str().expect("a path"), "q8_0"]), &["folder"]);
    // What was there before a failure is there after it.
    let kept = folder.write("kept.gguf", b"before");
    let broken = folder.write("broken.gguf", &demo()[..100_000]);
    fails(&run(&["quantize", &broken, &kept, "q8_0"]), &["broken.gguf"]);
    assert_eq!(std::fs::read(&kept).expect("still there"), b"before");
    assert_eq!(folder.names(), ["broken.gguf", "kept.gguf"]);
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let text = "a fox ".repeat(100_000);
    let folder = Folder::new();
    let path = folder.write("long.txt", text.as_bytes());
    let mut child = realizar()
        .args(["tokenize", "-"])
        .stdin(std::fs::File::open(path).expect("the file"))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut out = child.stdout.take().expect("a pipe");
    out.read_exact(&mut [0; 10]).expect("the first ids");
    drop(out);
    let output = child.wait_with_output().expect("the program ends");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

#[test]
fn logs_go_to_stderr() {
    let output = run(&["-v", "perplexity", "/dev/null"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(support::stdout(&output), "");
    let output =
        realizar().args(["tokenize", "x"]).env("RUST_LOG", "no=such=level").output().expect("it runs");
    fails(&output, &["RUST_LOG"]);
    let output = realizar().args(["tokenize", "x"]).env("RUST_LOG", "trace").output().expect("it runs");
    assert!(succeeds(&output).trim_end().split(' ').all(|id| id.parse::<u32>().is_ok()));
}

/// Every file of every kind of damage, through every command that opens a model: one line, exit 1.
#[test]
fn damaged_models_are_refused_in_one_line() {
    let folder = Folder::new();
    let whole = demo();
    let mut cases: Vec<(String, &str)> = Vec::new();
    for n in [0, 1, 3, 4, 8, 23, 24, 100, 1000, 30_000, 60_000, 100_000, whole.len() / 2, whole.len() - 1] {
        cases.push((folder.write(&format!("cut-{n}.gguf"), &whole[..n]), ""));
    }
    let mut magic = whole.clone();
    magic[..4].copy_from_slice(b"NOPE");
    cases.push((folder.write("magic.gguf", &magic), ""));
    let mut version = whole.clone();
    version[4] = 77;
    cases.push((folder.write("version.gguf", &version), "77"));
    let mut counts = whole.clone();
    counts[8..24].fill(0xff);
    cases.push((folder.write("counts.gguf", &counts), ""));
    cases.push((folder.write("text.txt", b"no model at all"), "neither a GGUF nor a safetensors file"));
    cases.push((folder.join("missing.gguf"), "No such file"));
    std::fs::create_dir(folder.path().join("empty")).expect("a folder");
    cases.push((folder.join("empty"), "folder holds no"));
    std::fs::create_dir(folder.path().join("pickle")).expect("a folder");
    folder.write("pickle/pytorch_model.bin", b"x");
    cases.push((folder.join("pickle"), "pickle"));
    std::fs::create_dir(folder.path().join("liar")).expect("a folder");
    folder.write("liar/model.safetensors", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}");
    folder.write("liar/config.json", b"{}");
    cases.push((folder.join("liar"), "model.safetensors"));
    let text = folder.write("t.txt", "a ".repeat(500).as_bytes());
    let out = folder.join("out.gguf");
    for (model, part) in &cases {
        fails(&run(&["tokenize", "-m", model, "x"]), &[part]);
        fails(&run(&["inspect", model]), &[part]);
        fails(&run(&["inspect", model, "--json"]), &[part]);
        fails(&run(&["perplexity", "-m", model, &text]), &[part]);
        fails(&run(&["quantize", model, &out, "q4_0"]), &[part]);
        fails(&run_with_stdin(&["template", "-m", model], br#"{"messages": []}"#), &[part]);
    }
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    let folder = Folder::new();
    let mut model = demo();
    let at = model.windows(5).position(|w| w == b"llama").expect("general.architecture");
    model[at..at + 5].copy_from_slice(b"drama");
    let path = folder.write("drama.gguf", &model);
    let text = folder.write("t.txt", "a ".repeat(500).as_bytes());
    fails(&run(&["perplexity", "-m", &path, &text, "--ctx", "64"]), &["drama.gguf", "\"drama\"", "qwen3moe"]);
    // Looking at it still works, and says why it does not run.
    let object = json(&run(&["inspect", &path, "--json"]));
    assert_eq!(object["devices"][0]["runs"], false);
    assert!(object["unsupported"].as_str().is_some_and(|why| why.contains("drama")), "{object}");
    // One that is known says what it would need.
    model[at..at + 5].copy_from_slice(b"jamba");
    let path = folder.write("jamba.gguf", &model);
    fails(
        &run(&["perplexity", "-m", &path, &text, "--ctx", "64"]),
        &["jamba.gguf", "Jamba", "needs Mamba layers"],
    );
}

#[test]
fn an_answer_has_its_fields() {
    let args =
        ["run", "Tell me a story about a brave owl.", "-n", "12", "--temp", "0", "--threads", "1", "--json"];
    let object = json(&run(&args));
    assert_eq!(object["model"], "demo");
    assert_eq!(object["tokens"].as_array().map(Vec::len), Some(12));
    assert_eq!(object["finish_reason"], "length");
    assert!(object["prompt_tokens"].as_u64() > Some(8), "{object}");
    assert!(object["text"].as_str().is_some_and(|text| text.len() > 12), "{object}");
    for key in ["load_ms", "prefill_ms", "ttft_ms", "decode_tok_s"] {
        assert!(object["timings"][key].as_f64().is_some_and(|ms| ms > 0.0), "{key} in {object}");
    }
    // The text alone is the result, and the prompt may come from stdin.
    let text = object["text"].as_str().expect("text").to_owned() + "\n";
    assert_eq!(succeeds(&run(&args[..args.len() - 1])), text);
    let stdin = ["run", "-n", "12", "--temp", "0", "--threads", "1"];
    assert_eq!(succeeds(&run_with_stdin(&stdin, args[1].as_bytes())), text);
}

#[test]
fn a_seed_gives_the_same_answer_again() {
    let answer = |seed: &str| {
        let args = [
            "run",
            "Tell me a story.",
            "-n",
            "24",
            "--temp",
            "1.5",
            "--top-k",
            "0",
            "--top-p",
            "1",
            "--seed",
            seed,
            "--json",
        ];
        json(&run(&args))["tokens"].clone()
    };
    assert_eq!(answer("1"), answer("1"));
    assert_ne!(answer("1"), answer("2"));
}

#[test]
fn an_answer_ends_before_a_stop_text() {
    let args = ["run", "Once upon a time", "--raw", "-n", "20", "--temp", "0"];
    let whole = run(&args);
    let whole = succeeds(&whole).trim_end();
    let (before, stop) = (&whole[..whole.len() / 2], &whole[whole.len() / 2..whole.len() / 2 + 3]);
    let before = &before[..whole.find(stop).expect("it is a part")];
    let object = json(&run(&[&args[..], &["--stop", stop, "--json"]].concat()));
    assert_eq!(object["text"], before);
    assert_eq!(object["finish_reason"], "stop");
}

#[test]
fn limits_of_an_answer_are_kept() {
    let object = json(&run(&["run", "Hello", "-n", "0", "--json"]));
    assert_eq!((object["text"].as_str(), object["tokens"].as_array().map(Vec::len)), (Some(""), Some(0)));
    fails(&run(&["run", ""]), &["prompt is empty"]);
    fails(&run(&["run", &"a fox ".repeat(200), "--ctx", "32"]), &["32"]);
    fails(&run(&["run", "Hello", "--device", "cuda:99"]), &["cuda:99"]);
    is_wrong_usage(&run(&["run", "Hello", "--device", "tpu"]), "tpu");
    is_wrong_usage(&run(&["run", "Hello", "-n", "many"]), "many");
}

#[test]
fn guesses_change_no_answer() {
    let text = "Once upon a time, there was a fox. Once upon a time, there was an owl. Once upon a time,";
    for temperature in ["0", "0.7"] {
        let args = [
            "run",
            text,
            "--raw",
            "-n",
            "40",
            "--temp",
            temperature,
            "--seed",
            "3",
            "--device",
            "cpu",
            "--json",
        ];
        let plain = json(&run(&args));
        assert!(plain.get("speculation").is_none());
        let guessed = json(&run(&[&args[..], &["--speculate", "ngram"]].concat()));
        let drafted = json(&run(&[&args[..], &["--draft", "demo", "--max-drafts", "3"]].concat()));
        for object in [&guessed, &drafted] {
            assert_eq!(object["tokens"], plain["tokens"]);
            let (n, right) =
                (&object["speculation"]["drafted_tokens"], &object["speculation"]["accepted_tokens"]);
            assert!(right.as_u64().expect("a number") <= n.as_u64().expect("a number"));
        }
    }
    is_wrong_usage(&run(&["run", "Hello", "--speculate", "magic"]), "ngram");
    is_wrong_usage(&run(&["run", "Hello", "--speculate", "ngram", "--draft", "demo"]), "--draft");
    fails(&run(&["run", "Hello", "--draft", "/no/such/file.gguf"]), &["/no/such/file.gguf"]);
    let other = fixture("../tokenizers/gpt2.gguf");
    fails(&run(&["run", "Hello", "--draft", &other]), &["draft model", "gpt2.gguf", "same vocabulary"]);
}

#[test]
fn guesses_are_measured_on_texts() {
    let folder = Folder::new();
    let file = folder.join("prompts.jsonl");
    let lines = "{\"turns\": [\"Tell me a story about a fox.\"], \"category\": \"story\"}\n{\"prompt\": \"The owl said\"}\n";
    std::fs::write(&file, lines).expect("a file to measure on");
    let args =
        ["bench", "--prompts", &file, "--speculate", "ngram", "--gen", "12", "--device", "cpu", "--json"];
    let object = json(&run(&args));
    let rows = object["results"].as_array().expect("results");
    assert_eq!(rows.len(), 2, "a row per category: {object}");
    for row in rows {
        assert_eq!((row["prompts"].as_u64(), row["differing"].as_u64()), (Some(1), Some(0)));
        for field in ["tok_s_without", "tok_s_with", "drafted_tokens", "accepted_tokens", "tokens_per_step"] {
            assert!(row[field].is_number(), "{field} in {row}");
        }
    }
    let costs = json(&run(&["bench", "--speculate", "ngram", "--device", "cpu", "--json"]));
    assert_eq!(costs["guess"], 0.0);
    assert!(costs["row"].as_f64().unwrap() > 0.0 && costs["step_ms"].as_f64().unwrap() > 0.0, "{costs}");
    fails(&run(&["bench", "--speculate", "mtp", "--device", "cpu"]), &["--speculate mtp", "drafting layer"]);
    fails(&run(&["bench", "--prompts", &file]), &["--speculate"]);
    std::fs::write(&file, "{\"text\": 1}\n").expect("a file to refuse");
    fails(&run(&["bench", "--prompts", &file, "--speculate", "ngram"]), &["line 1", "prompt"]);
}
