//! Every name that docs/migrating-from-0.8.md gives for today exists and is public.
//!
//! Names of Rust items stand in a function that compiles only if they resolve; commands and flags are looked for in the program's own help,
//! endpoints and fields of requests in the server's OpenAPI document. A name that is none of these fails.
#![allow(missing_docs, unreachable_pub, dead_code)]

mod support;

use realizar_compute::{Backend, Blocks, Ops, Profile};
use realizar_engine::load::{LoadError, LoadOptions, load};
use realizar_engine::{Client, Completion, Request, Runner, TextEngine, TextStream};
use realizar_model::Decoder;
use support::{run, succeeds};

fn profiles<P: Profile>() {}

/// The page's names of Rust items.
fn rust_names<B: Backend, R: Runner>() -> Vec<&'static str> {
    macro_rules! resolved {
        ($($name:literal => $item:expr,)*) => {{ $(let _ = $item;)* vec![$($name),*] }};
    }
    resolved! {
        "realizar_engine::load::load" => load,
        "realizar_engine::load::LoadError" => size_of::<LoadError>(),
        "Decoder::forward" => Decoder::<B>::forward,
        "Runner::launch" => R::launch,
        "Runner::finish" => R::finish,
        "TextStream::run" => |s: TextStream| s.run(|_: &str| true),
        "realizar::Model::generate" => |m: &realizar::Model, o: &realizar::TextParams| m.generate("", o),
        "TextEngine::generate_batch" => TextEngine::generate_batch,
        "Client::submit" => Client::submit,
        "Ops::store_kv" => <B as Ops>::store_kv,
        "Ops::attention" => <B as Ops>::attention,
        "Ops::matmul" => <B as Ops>::matmul,
        "Blocks::feed_forward" => <B as Blocks>::feed_forward,
        "LoadOptions::exact" => |o: &LoadOptions| o.exact,
        "Capture::captured" => |b: &B, key| b.captured(key, || Ok::<(), realizar_compute::Error>(())),
        "Request::stop_tokens" => |r: &Request| r.stop_tokens.len(),
        "Completion::timings" => |c: &Completion| c.timings,
        "Profile" => profiles::<B>,
    }
}

/// What stands between backticks in the columns that say what to use now.
fn names_of_today(page: &str) -> Vec<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = rows.flat_map(|row| row.trim_matches('|').split(" | ").skip(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn names_of_today_exist() {
    let page = include_str!("../../../docs/migrating-from-0.8.md");
    let rust =
        rust_names::<realizar_compute::Reference, realizar_engine::ModelRunner<realizar_compute::Reference>>(
        );
    let serving = include_str!("../../../docs/serving.md");
    let names = names_of_today(page);
    assert!(names.len() > 20, "the page has tables of names: {names:?}");
    for name in &names {
        let exists = if let Some(command) = name.strip_prefix("realizar ") {
            let (subcommand, flag) = command.split_once(' ').unwrap_or((command, ""));
            succeeds(&run(&[subcommand, "--help"])).contains(flag)
        } else if name.starts_with("--") {
            succeeds(&run(&["run", "--help"])).contains(name)
                && succeeds(&run(&["serve", "--help"])).contains(name)
        } else if name.starts_with('/') || name.starts_with("stop_token") {
            // A test of the server compares that page with what is served.
            serving.contains(&format!("`{name}`"))
        } else {
            // `false`: the answer of a callback.
            rust.contains(name) || *name == "false"
        };
        assert!(exists, "{name} does not exist");
    }
    for name in rust {
        assert!(names.contains(&name), "{name} is not on the page any more");
    }
}
