//! `realizar bench serve` against `realizar serve` with the demo model, and against servers that misbehave.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use support::{Folder, fails, is_wrong_usage, json, realizar, run, stdout, succeeds};

/// A server with the demo model, until the test ends.
struct Server {
    child: Child,
    url: String,
}

impl Server {
    fn start(options: &[&str]) -> Self {
        let mut child = realizar()
            .args(["serve", "--port", "0", "--threads", "1"])
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut line = String::new();
        let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        stderr.read_line(&mut line).expect("a line");
        let url = line.split_whitespace().find(|w| w.starts_with("http://"));
        let url = url.unwrap_or_else(|| panic!("no address in {line:?}")).trim_end_matches(':').to_owned();
        // Nobody else reads what it has to say.
        std::thread::spawn(move || drop(std::io::copy(&mut stderr, &mut std::io::sink())));
        Self { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn trace() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/trace.csv").to_owned()
}

fn number(object: &Value, path: &str) -> f64 {
    object.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {object}"))
}

#[test]
fn a_trace_is_replayed_at_its_times_and_reported() {
    let server = Server::start(&["--served-name", "a<b", "--api-key", "k"]);
    let folder = Folder::new();
    let page = folder.join("report.html");
    let args = [
        "bench",
        "serve",
        "--url",
        &server.url,
        "--api-key",
        "k",
        "--trace",
        &trace(),
        "--time-scale",
        "0.5",
        "--json",
        "--html",
        &page,
        "--slo-ttft-ms",
        "1e8",
        "--slo-itl-ms",
        "1e8",
    ];
    let report = json(&run(&args));
    assert_eq!(report["model"], "a<b");
    assert_eq!(report["requests"]["sent"], 8);
    assert_eq!(
        (&report["requests"]["answered"], &report["requests"]["short"]),
        (&Value::from(8), &Value::from(0))
    );
    // 2200 + 120 tokens are made to fit the demo model's 1024.
    let scale = 1024.0 / 2320.0;
    assert!((number(&report, "/workload/length_scale") - scale).abs() < 1e-9, "{report}");
    let each = report["each"].as_array().expect("requests");
    let expected =
        [(0, 1500, 40), (75, 90, 12), (75, 700, 3), (250, 31, 25), (375, 2200, 120), (400, 12, 60)];
    for (request, (at_ms, prompt, output)) in each.iter().zip(expected) {
        let scaled = |n: i32| (f64::from(n) * scale).floor().max(1.0);
        assert_eq!(number(request, "/prompt_tokens"), scaled(prompt), "{request}");
        assert_eq!(number(request, "/output_tokens"), scaled(output), "{request}");
        assert_eq!(number(request, "/start_ms"), f64::from(at_ms), "{request}");
        let (first, end) = (number(request, "/first_token_ms"), number(request, "/end_to_end_ms"));
        assert!(first > 0.0 && first <= end, "{request}");
    }
    let total: f64 = each.iter().map(|r| number(r, "/output_tokens")).sum();
    assert_eq!(number(&report, "/throughput/output_tokens"), total);
    let seconds = number(&report, "/duration_s");
    assert!(seconds >= 0.6, "it ends before the last arrival: {seconds}");
    assert!((number(&report, "/throughput/output_tokens_per_s") - total / seconds).abs() < 1e-6 * total);
    for name in ["first_token", "inter_token", "per_output_token", "end_to_end"] {
        let at = |p: &str| number(&report, &format!("/latency_ms/{name}/{p}"));
        let ordered = [at("p50"), at("p90"), at("p95"), at("p99"), at("max")];
        assert!(ordered.is_sorted() && at("mean") > 0.0, "{name}: {ordered:?}");
    }
    assert_eq!(number(&report, "/goodput/share"), 1.0);

    let page = std::fs::read_to_string(page).expect("the page");
    assert_eq!(page.matches("<svg").count(), 4);
    assert!(page.contains("a&lt;b under load") && !page.contains("a<b") && !page.contains("NaN"), "{page}");
    assert!(!page.contains("src=") && !page.contains("href="), "it needs nothing else");
}

#[test]
fn two_runs_stand_side_by_side() {
    let server = Server::start(&[]);
    let folder = Folder::new();
    let (earlier, page) = (folder.join("earlier.json"), folder.join("report.html"));
    let run_with = |more: &[&str]| {
        let usual = ["bench", "serve", "--url", &server.url, "--concurrency", "2", "--requests", "4"];
        run(&[&usual[..], &["--prompt-tokens", "8", "--max-tokens", "4"], more].concat())
    };
    let first = run_with(&["--json"]);
    std::fs::write(&earlier, succeeds(&first)).expect("the report is written");
    let described = json(&first)["run"].clone();
    assert_eq!(described["server_version"], env!("CARGO_PKG_VERSION"));
    assert!(described["machine"].as_str().is_some_and(|m| m.contains("cores")), "{described}");

    let second = run_with(&["--compare", &earlier, "--html", &page]);
    let table = succeeds(&second);
    assert!(table.contains("before: demo at http://") && table.contains("ratio"), "{table}");
    assert!(table.contains("first token p99, ms") && !table.contains("other requests"), "{table}");
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(
        page.contains("Compared with an earlier run") && page.contains("<td>output tokens/s</td>"),
        "{page}"
    );
    let other = run_with(&["--compare", &earlier, "--seed", "2"]);
    assert!(succeeds(&other).contains("had other requests"), "{}", stdout(&other));
    fails(&run_with(&["--compare", &trace()]), &["trace.csv", "bench serve --json"]);
    fails(&run_with(&["--compare", &folder.join("none")]), &["none cannot be read"]);
}

#[test]
fn clients_that_wait_for_each_other_are_never_more_than_asked_for() {
    let server = Server::start(&["--max-seqs", "2"]);
    let args = [
        "bench",
        "serve",
        "--url",
        &server.url,
        "--concurrency",
        "3",
        "--requests",
        "7",
        "--prompt-tokens",
        "20",
        "--max-tokens",
        "5",
        "--slo-ttft-ms",
        "0.001",
    ];
    let text = run(&args);
    let text = succeeds(&text);
    for part in ["7 requests of 20 tokens for 5 tokens each, 3 at one time", "prompt tokens             140"]
    {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(text.contains("output tokens              35") && text.contains("0 of 7 (0.0 %)"), "{text}");

    let report = json(&run(&[&args[..], &["--json"]].concat()));
    let times = |r: &Value| (number(r, "/start_ms"), number(r, "/start_ms") + number(r, "/end_to_end_ms"));
    let each: Vec<(f64, f64)> = report["each"].as_array().expect("requests").iter().map(times).collect();
    for &(start, _) in &each {
        let running = each.iter().filter(|&&(from, to)| from <= start && start < to).count();
        assert!((1..=3).contains(&running), "{running} at {start}: {each:?}");
    }
}

#[test]
fn what_cannot_be_measured_is_said() {
    let server = Server::start(&[]);
    let folder = Folder::new();
    let trace = trace();
    let bench = |more: &[&str]| run(&[&["bench", "serve", "--url", &server.url], more].concat());
    fails(&bench(&["--trace", &trace, "--length-scale", "1"]), &["request 1", "1500 + 40", "1024"]);
    fails(&bench(&["--prompt-tokens", "1000", "--max-tokens", "100"]), &["1000", "100", "1024 tokens"]);
    fails(&bench(&["--model", "other"]), &["no model", "other"]);
    let bad =
        folder.write("bad.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,1,many\n");
    fails(&bench(&["--trace", &bad]), &["bad.csv", "line 2", "GeneratedTokens is \"many\""]);
    fails(&bench(&["--trace", &folder.join("none.csv")]), &["none.csv", "No such file"]);
    fails(&run(&["bench", "serve", "--url", "https://localhost"]), &["only plain http"]);
    fails(&run(&["bench", "serve", "--url", "http://127.0.0.1:1"]), &["could not connect to 127.0.0.1:1"]);
    is_wrong_usage(&bench(&["--trace", &trace, "--concurrency", "3"]), "--concurrency");
    is_wrong_usage(&bench(&["--time-scale", "2"]), "--trace");
    is_wrong_usage(&bench(&["--trace", &trace, "--time-scale", "NaN"]), "above 0");
    fails(&run(&["bench", "--gen", "4", "serve"]), &["serve"]);
    let guarded = Server::start(&["--api-key", "k"]);
    fails(&run(&["bench", "serve", "--url", &guarded.url]), &["401"]);
}

/// Answers each request by what `answer` says of its path, then closes the connection.
fn canned(answer: impl Fn(&str, usize) -> (&'static str, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let mut n_completions = 0;
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut reader = BufReader::new(stream.try_clone().expect("a handle"));
            let (mut first, mut length) = (String::new(), 0);
            drop(reader.read_line(&mut first));
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
                    break;
                }
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().expect("a length");
                }
            }
            drop(reader.read_exact(&mut vec![0; length]));
            let path = first.split(' ').nth(1).unwrap_or_default();
            let (status, body) = answer(path, n_completions);
            n_completions += usize::from(path == "/v1/completions");
            let head = format!("HTTP/1.1 {status}\r\nConnection: close\r\n\r\n");
            drop(stream.write_all((head + &body).as_bytes()));
        }
    });
    url
}

#[test]
fn failures_of_the_server_are_counted_and_do_not_end_the_run() {
    let event = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
    let good = event("a") + &event("b") + "data: [DONE]\n\n";
    let url = canned(move |path, n| match (path, n) {
        ("/v1/models", _) => ("200 OK", r#"{"data":[{"id":"m"}]}"#.into()),
        ("/tokenize", _) => ("200 OK", r#"{"tokens":[1,2,3]}"#.into()),
        (_, 0 | 1 | 5) => ("200 OK", good.clone()),
        (_, 2) => ("503 Service Unavailable", r#"{"error":{"message":"busy"}}"#.into()),
        (_, 3) => ("200 OK", event("a")),
        (_, 4) => ("200 OK", event("a") + "data: {\"error\":{\"message\":\"gone\"}}\n\n"),
        _ => ("200 OK", "data: nonsense\n\n".into()),
    });
    let args = [
        "bench",
        "serve",
        "--url",
        &url,
        "--concurrency",
        "1",
        "--requests",
        "6",
        "--max-tokens",
        "2",
        "--json",
    ];
    let report = json(&run(&args));
    assert_eq!(
        (&report["requests"]["answered"], &report["requests"]["failed"]),
        (&Value::from(2), &Value::from(4))
    );
    // Without usage, events with text are counted.
    assert_eq!(report["throughput"]["output_tokens"], 4);
    let errors: Vec<&str> =
        report["errors"].as_array().expect("errors").iter().filter_map(|e| e["message"].as_str()).collect();
    for part in ["503: busy", "[DONE]", "gone", "not as expected"] {
        assert!(errors.iter().any(|e| e.contains(part)), "{part:?} in {errors:?}");
    }
    assert_eq!(number(&report, "/goodput/share"), 2.0 / 6.0);
}

#[test]
fn a_server_that_answers_nothing_fails_the_run() {
    let url = canned(|path, n| match (path, n) {
        ("/v1/models", _) => ("200 OK", r#"{"data":[{"id":"m"}]}"#.into()),
        ("/tokenize", _) => ("200 OK", r#"{"tokens":[1,2,3]}"#.into()),
        (_, 0) => ("200 OK", "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: [DONE]\n\n".into()),
        _ => ("500 Internal Server Error", String::new()),
    });
    let output = run(&["bench", "serve", "--url", &url, "--requests", "2"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(support::stdout(&output).contains("2 requests failed"), "{output:?}");
    assert!(support::stderr(&output).contains("no request was answered: 500"), "{output:?}");
    let url = canned(|path, _| match path {
        "/v1/models" => ("200 OK", r#"{"data":[]}"#.into()),
        _ => ("404 Not Found", String::new()),
    });
    fails(&run(&["bench", "serve", "--url", &url]), &["the server has no model"]);
}
