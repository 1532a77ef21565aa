//! Grammars in GBNF: what they say, and nothing else.

use super::support::{Random, allowed_ids, babble, compile, demo, follow, grammars};
use super::test_data::test_data;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::{Format, Grammars};
use std::time::Instant;

/// One token per byte.
fn bytes(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let of = |b: u8| {
        (0..tokenizer.vocab_size() as u32)
            .find(|&id| tokenizer.token_bytes(id).as_deref() == Some(&[b]))
            .unwrap()
    };
    text.bytes().map(of).collect()
}

fn check(grammars: &Grammars, tokenizer: &Tokenizer, text: &str, good: &[&str], bad: &[&str]) {
    let start = compile(grammars, Format::Grammar(text.to_owned()));
    for example in good {
        assert_eq!(
            follow(&mut *start.fork(), tokenizer, &bytes(tokenizer, example)),
            Ok(true),
            "{text}\n{example:?}"
        );
    }
    for example in bad {
        assert_ne!(
            follow(&mut *start.fork(), tokenizer, &bytes(tokenizer, example)),
            Ok(true),
            "{text}\n{example:?}"
        );
    }
}

#[test]
fn examples_are_followed_and_counterexamples_are_not() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    for (text, good, bad) in [
        ("root ::= \"a\" | \"ab\" \"c\"", &["a", "abc"][..], &["ab", "", "ac"][..]),
        // The longest match is not the only one.
        ("root ::= \"a\" \"bc\" | \"ab\" \"d\"", &["abc", "abd"], &["ab", "abcd"]),
        ("root ::= [a-z]* \"z\"", &["z", "zz", "abz"], &["", "za"]),
        ("root ::= (\"=\" ws \"\\n\")+\nws ::= [ \\t\\n]*", &["=\n", "=\n\n\n=\n", "= \n"], &["=", "=\n="]),
        ("root ::= \"(\" root \")\" | \"\"", &["", "()", "((()))"], &["(", "())"]),
        (
            "root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\"",
            &["1", "12+(3+4)"],
            &["1+", "(1"],
        ),
        (
            "root ::= \"x\"{2} \"y\"{1,3} \"z\"{2,} \"w\"{,1}",
            &["xxyzz", "xxyyyzzzzw"],
            &["xyzz", "xxyyyyzz", "xxyz", "xxyzzww"],
        ),
        ("root ::= [^a\\n]", &["b", "é", "日", "😀"], &["a", "\n", "bb", ""]),
        (
            "root ::= [а-я😀-😂]+ . \"\\u00e9\\x41\\U0001F600\"",
            &["яx\u{e9}A😀", "😁日\u{e9}A😀"],
            &["ax\u{e9}A😀", "яéA"],
        ),
        (
            "# all\nroot ::= # of it\n  (a |\n   b)? # in lines\n  | c-d\na ::= \"a\"\nb ::= [-b\\]]\nc-d ::= \"c\"",
            &["", "a", "b", "-", "]", "c"],
            &["d", "ab"],
        ),
        ("root ::= (\"a\"* \"b\"?)* \"c\"", &["c", "abaabc", "bbc"], &["a", "ca"]),
        (
            "root ::= a b\na ::= \"x\" | a2\na2 ::= \"\" | \"y\" a2\nb ::= a a",
            &["", "xxx", "yyyx"],
            &["xyxy", "z"],
        ),
    ] {
        check(&grammars, &tokenizer, text, good, bad);
    }
}

#[test]
fn random_texts_are_what_an_equal_expression_matches() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    for (text, pattern) in [
        ("root ::= item+\nitem ::= \"- \" [^\\r\\n]{1,20} \"\\n\"", "^(- [^\r\n]{1,20}\n)+$"),
        ("root ::= (\"yes\" | \"no\") (\", \" [a-c]+ [0-9]?){2,4}", "^(yes|no)(, [a-c]+[0-9]?){2,4}$"),
        ("root ::= \"é\"{1,3} . [日-本]*", "^é{1,3}(?s:.)[日-本]*$"),
    ] {
        let pattern = fancy_regex::Regex::new(pattern).unwrap();
        let start = compile(&grammars, Format::Grammar(text.to_owned()));
        for seed in 0..50 {
            let ids = babble(&mut *start.fork(), &tokenizer, &mut Random(seed), 30);
            let bytes: Vec<u8> =
                ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned()).collect();
            let said = String::from_utf8(bytes).unwrap();
            assert!(pattern.is_match(&said).unwrap(), "{text}\n{said:?}");
        }
    }
}

#[test]
fn public_grammars_are_followed() {
    let Some(dir) = test_data("grammars") else { return };
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    for (name, good, bad) in [
        ("arithmetic", &["a=1\n", "(a +b2)*3= 4\n\nx=y\n"][..], &["a=1", "1+=2\n"][..]),
        (
            "c",
            &["int main(){return 0;}", "float f(int a){while(a<3){a = a+1;}}"],
            &["int main(){return 0}", "main(){}"],
        ),
        (
            "chess",
            &["1. e4 e5\n2. Nf3 Nc6\n", "1. d4 O-O-O\n12. axb8=Q Rxh1+\n"],
            &["1. e4 e5\n", "2. e4 e5\n1. e4 e5\n", "1. e9 e5\n2. a1 a1\n"],
        ),
        ("english", &["Hello, world!", "a b\n1"], &["é", " a", "a  b"]),
        ("japanese", &["こんにちは", "日本 カタカナ"], &["abc", "日本x"]),
        (
            "json",
            &["{\"a\": [1, -2.5e3, \"x\\u00e9\", {}, null]}", "{}"],
            &["[1]", "{\"a\": 1", "{\"a\":  1}"],
        ),
        ("json_arr", &["[\n1,\n\"a\"]", "[\n]"], &["{}", "[1]"]),
        ("list", &["- a\n- b é\n"], &["- a", "a\n", "- \n"]),
    ] {
        let text = std::fs::read_to_string(dir.join(format!("{name}.gbnf"))).unwrap();
        check(&grammars, &tokenizer, &text, good, bad);
        if name == "json" {
            let start = compile(&grammars, Format::Grammar(text));
            for seed in 0..30 {
                let mut random = Random(seed);
                let n_free = random.below(80);
                let said =
                    tokenizer.decode(&babble(&mut *start.fork(), &tokenizer, &mut random, n_free), true);
                let parsed: Result<serde_json::Value, _> = serde_json::from_str(&said);
                let fits = match &parsed {
                    Ok(value) => value.is_object(),
                    // The grammar lets surrogates stand alone, and numbers be any.
                    Err(error) => ["surrogate", "hex escape", "out of range"]
                        .iter()
                        .any(|part| error.to_string().contains(part)),
                };
                assert!(fits, "{said}: {parsed:?}");
            }
        }
    }
}

#[test]
fn masks_of_a_large_vocabulary_come_in_time() {
    let (Some(dir), Some(texts)) = (test_data("tokenizers/gguf"), test_data("grammars")) else { return };
    let tokenizer =
        Tokenizer::from_source(&*source::open(&dir.join("rebuilt-vocab-llama-bpe.gguf")).unwrap()).unwrap();
    let grammars = grammars(&tokenizer);
    for name in ["json", "c", "chess"] {
        let text = std::fs::read_to_string(texts.join(format!("{name}.gbnf"))).unwrap();
        let before = Instant::now();
        let start = compile(&grammars, Format::Grammar(text));
        let compiling = before.elapsed();
        let mut times = Vec::new();
        for seed in 0..5 {
            let (mut constraint, mut random) = (start.fork(), Random(seed));
            for _ in 0..200 {
                let before = Instant::now();
                let allowed = allowed_ids(constraint.allowed().unwrap());
                times.push(before.elapsed());
                let id = allowed[random.below(allowed.len())];
                if tokenizer.eos_ids().contains(&id) {
                    break;
                }
                constraint.accept(id).unwrap();
            }
        }
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e6;
        println!(
            "{name}.gbnf: compiling {:.1} ms; mask, of {}: median {:.0} µs, p99 {:.0} µs, largest {:.0} µs",
            compiling.as_secs_f64() * 1e3,
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
