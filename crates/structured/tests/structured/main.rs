//! Aim: whatever a model's logits are, its text satisfies the format, and everything that satisfies the format can be written.
//!
//! Method: random tokens within the mask, several seeds for each of a list of schemas, on the demo's vocabulary and on larger ones;
//! each text is parsed and validated by a validator of the tests' own. Examples and counterexamples, in the tokenizer's own tokens,
//! check that the mask is neither too narrow nor too wide. `cost` measures.

#![expect(clippy::print_stdout, reason = "a test says what it measured")]

mod cost;
mod gbnf;
mod json_schema;
mod support;
#[path = "../../../compute/tests/support/test_data.rs"]
mod test_data;

use json_schema::validates;
use realizar_engine::TokenMask;
use realizar_model::source;
use realizar_model::tokenizer::Tokenizer;
use realizar_structured::{Format, GrammarError, Grammars};
use serde_json::{Value, json};
use std::time::Instant;
use support::{Random, allowed_ids, babble, compile, demo, follow, grammars, plain};
use test_data::test_data;

/// A schema, values that satisfy it, and values that do not.
type Example = (Value, Vec<Value>, Vec<Value>);

fn schemas() -> Vec<Example> {
    [schemas_of_closed_objects(), other_schemas()].concat()
}

/// An object with all of these properties and no others.
fn object(properties: Value) -> Value {
    let required: Vec<&String> = properties.as_object().unwrap().keys().collect();
    json!({"type": "object", "required": required, "properties": properties, "additionalProperties": false})
}

fn schemas_of_closed_objects() -> Vec<Example> {
    let tree = json!({
        "$defs": {"node": {
            "type": "object",
            "properties": {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "required": ["value", "children"],
            "additionalProperties": false,
        }},
        "$ref": "#/$defs/node",
    });
    vec![
        (
            object(json!({"name": {"type": "string"}, "age": {"type": "integer"}})),
            vec![json!({"name": "Ann \"é\" 😀\n", "age": -3})],
            vec![
                json!({"name": "Ann"}),
                json!({"name": "Ann", "age": 1.5}),
                json!({"name": "Ann", "age": 1, "x": 1}),
            ],
        ),
        (
            object(json!({"outer": object(json!({"inner": object(json!({"leaf": {"type": "boolean"}}))}))})),
            vec![json!({"outer": {"inner": {"leaf": true}}})],
            vec![json!({"outer": {"inner": {"leaf": "true"}}}), json!({"outer": {"leaf": true}})],
        ),
        (
            json!({"anyOf": [object(json!({"a": {"type": "integer"}})), object(json!({"b": {"type": "string"}})), {"type": "null"}]}),
            vec![json!({"a": 1}), json!({"b": "x"}), json!(null)],
            vec![json!({"a": "x"}), json!({"a": 1, "b": "x"}), json!(3)],
        ),
        (
            tree,
            vec![json!({"value": 1, "children": [{"value": 2, "children": []}]})],
            vec![json!({"value": 1, "children": [3]})],
        ),
        (
            object(json!({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})),
            vec![json!({"next": null}), json!({"next": {"next": null}})],
            vec![json!({"next": {}}), json!({"next": 1})],
        ),
        (
            object(
                json!({"größe": {"type": "string", "enum": ["klein", "groß"]}, "日本": {"const": "東京"}, "\"q\"": {"type": "boolean"}}),
            ),
            vec![json!({"größe": "groß", "日本": "東京", "\"q\"": false})],
            vec![json!({"größe": "gross", "日本": "東京", "\"q\"": false})],
        ),
        (
            object(
                json!({"day": {"type": "string", "format": "date"}, "ip": {"type": "string", "format": "ipv4"}, "id": {"type": "string", "format": "uuid"}}),
            ),
            vec![
                json!({"day": "2024-02-29", "ip": "10.0.0.255", "id": "123e4567-e89b-12d3-a456-426614174000"}),
            ],
            vec![
                json!({"day": "2024-13-01", "ip": "10.0.0.255", "id": "123e4567-e89b-12d3-a456-426614174000"}),
            ],
        ),
        (
            json!({"oneOf": [{"type": "string"}, object(json!({"kind": {"const": "a"}})), {"type": "array", "items": true, "maxItems": 1}]}),
            vec![json!("a"), json!({"kind": "a"}), json!([])],
            vec![json!({"kind": "b"}), json!(1)],
        ),
    ]
}

fn other_schemas() -> Vec<Example> {
    vec![
        (
            json!({"type": "object"}),
            vec![json!({}), json!({"a": [1, {"b": null}]})],
            vec![json!([]), json!("a")],
        ),
        (
            json!({"enum": ["red", "größe", 7, -0.25, 1e-7, null, {"a": [1]}]}),
            vec![json!("größe"), json!({"a": [1]}), json!(null), json!(-0.25), json!(7)],
            vec![json!("re"), json!(8)],
        ),
        (
            json!({"const": {"kind": "x", "n": [1, 2]}}),
            vec![json!({"kind": "x", "n": [1, 2]})],
            vec![json!({"kind": "x", "n": [1]})],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}),
            vec![json!([1, 2]), json!([1, 2, 3, 4])],
            vec![json!([1]), json!([1, 2, 3, 4, 5]), json!(["a", "b"])],
        ),
        (
            json!({"type": "array", "prefixItems": [{"type": "string"}, {"type": "number"}], "items": {"type": "boolean"}, "minItems": 2}),
            vec![json!(["a", 1.5]), json!(["a", 1, true])],
            vec![json!(["a"]), json!([1, "a"]), json!(["a", 1, 2])],
        ),
        (
            json!({"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
            vec![json!("AB-123")],
            vec![json!("AB-12"), json!("xAB-123"), json!("AB-1234")],
        ),
        (
            json!({"type": "string", "minLength": 2, "maxLength": 5}),
            vec![json!("ab"), json!("éééé"), json!("a\"b")],
            vec![json!("a"), json!("abcdef")],
        ),
        (
            json!({"type": "integer", "minimum": -5, "maximum": 120}),
            vec![json!(-5), json!(0), json!(120)],
            vec![json!(-6), json!(121), json!(1.5)],
        ),
        (
            json!({"type": "number", "exclusiveMinimum": 0, "maximum": 1.5}),
            vec![json!(0.1), json!(1.5), json!(1)],
            vec![json!(0), json!(1.6), json!(-1)],
        ),
        (
            json!({"type": "integer", "multipleOf": 5, "minimum": 10}),
            vec![json!(10), json!(105)],
            vec![json!(5), json!(11)],
        ),
        (json!({"type": ["string", "null"]}), vec![json!("a"), json!(null)], vec![json!(1)]),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["b"], "additionalProperties": {"type": "string"}}),
            vec![json!({"b": 1}), json!({"a": 1, "b": 2, "c": "x"})],
            vec![json!({"a": 1}), json!({"b": 1, "c": 2})],
        ),
        (
            json!({"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": false, "minProperties": 1, "maxProperties": 2}),
            vec![json!({"x_a": 1}), json!({"x_a": 1, "x_b": 2})],
            vec![json!({}), json!({"y": 1}), json!({"x_a": "1"}), json!({"x_a": 1, "x_b": 2, "x_c": 3})],
        ),
        (
            json!({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"a": {"minimum": 3}}}]}),
            vec![json!({"a": 3})],
            vec![json!({"a": 2}), json!({})],
        ),
    ]
}

fn schema(schema: &Value) -> Format {
    Format::JsonSchema { schema: schema.clone(), strict: true }
}

/// Random texts of every schema; returns how many.
fn check_random_texts(tokenizer: &Tokenizer, seeds: std::ops::Range<u64>) -> usize {
    let grammars = grammars(tokenizer);
    let mut n_texts = 0;
    for (rule, _, _) in schemas() {
        let start = compile(&grammars, schema(&rule));
        for seed in seeds.clone() {
            let mut random = Random(seed);
            let n_free = random.below(60);
            let ids = babble(&mut *start.fork(), tokenizer, &mut random, n_free);
            let bytes: Vec<u8> =
                ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned()).collect();
            let text = String::from_utf8(bytes).unwrap_or_else(|error| panic!("{rule}: {error}"));
            assert_eq!(tokenizer.decode(&ids, true).trim_start(), text.trim_start(), "{rule}");
            n_texts += 1;
            let value: Value = match serde_json::from_str(&text) {
                Ok(value) => value,
                // JSON bounds no number; our parser does.
                Err(error) if error.to_string().starts_with("number out of range") => continue,
                Err(error) => panic!("{rule}: {error}: {text}"),
            };
            assert!(validates(&rule, &rule, &value), "{rule}: {text}");
        }
    }
    n_texts
}

fn check_examples(tokenizer: &Tokenizer) {
    let grammars = grammars(tokenizer);
    // SentencePiece puts a space before a text, which a continuation does not have.
    let encode = |text: &str| -> Vec<u32> {
        let mut ids = plain(tokenizer, text);
        if tokenizer.token_bytes(ids[0]).as_deref() == Some(b" ") {
            ids.remove(0);
        } else if tokenizer.token_bytes(ids[0]).is_some_and(|bytes| bytes.starts_with(b" ")) {
            let bare = tokenizer.token_bytes(ids[0]).unwrap()[1..].to_vec();
            ids[0] = (0..tokenizer.vocab_size() as u32)
                .find(|&id| tokenizer.token_bytes(id).as_deref() == Some(&bare))
                .unwrap();
        }
        ids
    };
    // Random texts would seldom come across its pattern.
    let unanchored = (
        json!({"type": "string", "pattern": "a.c"}),
        vec![json!("xxabcxx"), json!("aéc")],
        vec![json!("xx"), json!("")],
    );
    for (rule, good, bad) in schemas().into_iter().chain([unanchored]) {
        let start = compile(&grammars, schema(&rule));
        for value in &good {
            assert!(validates(&rule, &rule, value), "{rule}: {value}");
            for text in [value.to_string(), serde_json::to_string_pretty(value).unwrap()] {
                let end = follow(&mut *start.fork(), tokenizer, &encode(&text));
                assert_eq!(end, Ok(true), "{rule}: {text}");
            }
        }
        for value in &bad {
            assert!(!validates(&rule, &rule, value), "{rule}: {value}");
            let end = follow(&mut *start.fork(), tokenizer, &encode(&value.to_string()));
            assert_ne!(end, Ok(true), "{rule}: {value}");
        }
    }
}

#[test]
fn random_texts_of_the_demo_s_vocabulary_satisfy_their_schema() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    assert!(check_random_texts(&tokenizer, 0..40) >= 800);
}

#[test]
fn examples_are_followed_and_counterexamples_are_not() {
    check_examples(&Tokenizer::from_source(&*demo()).unwrap());
}

#[test]
fn large_vocabularies_of_real_models_do_the_same() {
    let Some(dir) = test_data("tokenizers/gguf") else { return };
    for name in ["rebuilt-vocab-llama-bpe", "ggml-vocab-llama-spm", "rebuilt-vocab-qwen2"] {
        let tokenizer =
            Tokenizer::from_source(&*source::open(&dir.join(format!("{name}.gguf"))).unwrap()).unwrap();
        check_random_texts(&tokenizer, 0..6);
        check_examples(&tokenizer);
    }
}

#[test]
fn special_tokens_are_allowed_only_at_the_end() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    let special = |mask: &TokenMask| {
        allowed_ids(mask).into_iter().filter(|&id| tokenizer.is_special(id)).collect::<Vec<_>>()
    };
    let mut constraint = compile(&grammars, Format::Regex("(.|\n)*".to_owned()));
    assert_eq!(special(constraint.allowed().unwrap()), tokenizer.eos_ids());
    let mut constraint = compile(&grammars, Format::Regex("(?s:.{3})".to_owned()));
    assert_eq!(special(constraint.allowed().unwrap()), Vec::<u32>::new());
    for id in plain(&tokenizer, "abc") {
        constraint.accept(id).unwrap_or_default();
    }
}

#[test]
fn leap_seconds_are_the_last_of_a_day_in_utc() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    let check = |schema_text: Value, text: &str| {
        let text = Value::from(text).to_string();
        follow(&mut *compile(&grammars, schema(&schema_text)), &tokenizer, &plain(&tokenizer, &text))
            == Ok(true)
    };
    let (good, bad) = (
        [
            "23:59:60Z",
            "23:59:60.25z",
            "15:59:60-08:00",
            "05:29:60+05:30",
            "00:00:60+00:01",
            "23:58:60-00:01",
            "12:00:59Z",
        ],
        [
            "22:59:60Z",
            "23:58:60Z",
            "23:59:60+01:00",
            "15:59:60-07:59",
            "05:29:60+05:29",
            "23:59:61Z",
            "24:00:00Z",
        ],
    );
    for time in good {
        assert!(check(json!({"type": "string", "format": "time"}), time), "{time}");
        assert!(
            check(json!({"type": "string", "format": "date-time"}), &format!("2016-12-31T{time}")),
            "{time}"
        );
        assert!(check(json!({"type": "string", "format": "time", "pattern": "[0-9]"}), time), "{time}");
    }
    for time in bad {
        assert!(!check(json!({"type": "string", "format": "time"}), time), "{time}");
        assert!(
            !check(json!({"type": "string", "format": "date-time"}), &format!("2016-12-31T{time}")),
            "{time}"
        );
        assert!(!check(json!({"type": "string", "format": "time", "pattern": "[0-9]"}), time), "{time}");
    }
}

#[test]
fn a_complete_text_leaves_only_its_end() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let mut constraint = compile(&grammars(&tokenizer), Format::Regex("a".to_owned()));
    let a = (0..tokenizer.vocab_size() as u32)
        .find(|&id| tokenizer.token_bytes(id).as_deref() == Some(b"a"))
        .unwrap();
    assert_eq!(allowed_ids(constraint.allowed().unwrap()), [a]);
    constraint.accept(a).unwrap();
    assert_eq!(allowed_ids(constraint.allowed().unwrap()), tokenizer.eos_ids());
    assert!(constraint.accept(a).is_err());
}

#[test]
fn a_fork_goes_its_own_way() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let mut first = compile(&grammars(&tokenizer), schema(&json!({"enum": [true, false]})));
    let mut second = first.fork();
    let t = allowed_ids(first.allowed().unwrap())[0];
    let f = *allowed_ids(second.allowed().unwrap()).last().unwrap();
    assert_ne!(t, f);
    first.accept(t).unwrap();
    assert!(second.allowed().unwrap().contains(t));
    second.accept(f).unwrap();
    assert_ne!(first.allowed().unwrap(), second.allowed().unwrap());
}

#[test]
fn regular_expressions_match_the_whole_text() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    for pattern in
        [r"[0-9]{3}/[a-z]+", "(yes|no)( maybe)?", r"\d{4}-\d\d", "é{2,3}", "a\nb", r#"["'\\/]{4}"#, r"\/\\"]
    {
        let start = compile(&grammars, Format::Regex(pattern.to_owned()));
        for seed in 0..20 {
            let ids = babble(&mut *start.fork(), &tokenizer, &mut Random(seed), 8);
            let bytes: Vec<u8> =
                ids.iter().flat_map(|&id| tokenizer.token_bytes(id).unwrap().into_owned()).collect();
            let text = String::from_utf8(bytes).unwrap();
            let whole = fancy_regex::Regex::new(&format!("^(?:{pattern})$")).unwrap();
            assert!(whole.is_match(&text).unwrap(), "{pattern}: {text:?}");
        }
    }
    for wrong in ["", "(", "a{", r"(?=a)b", r"(a)\1", "[z-a]", "a\\", r"\p{Nonsense}"] {
        let error = grammars.compile(&Format::Regex(wrong.to_owned())).err();
        assert!(matches!(error, Some(GrammarError::Regex { .. })), "{wrong:?}: {error:?}");
    }
}

#[test]
fn grammars_in_lark_are_followed_and_their_mistakes_have_a_place() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    let lark =
        "start: expr\nexpr: term ((\"+\" | \"*\") term)*\nterm: NUM | \"(\" expr \")\"\nNUM: /[0-9]{1,3}/\n";
    let start = compile(&grammars, Format::Grammar(lark.to_owned()));
    let ids = |text: &str| {
        text.bytes()
            .map(|b| {
                (0..tokenizer.vocab_size() as u32)
                    .find(|&id| tokenizer.token_bytes(id).as_deref() == Some(&[b]))
                    .unwrap()
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids("(1+22)*3")), Ok(true));
    assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids("(1+22")), Ok(false));
    assert!(follow(&mut *start.fork(), &tokenizer, &ids("1++2")).is_err());
    for (wrong, place) in [
        ("start: expr", "expr"),
        ("", ""),
        ("start: \"a\"\nb: (\n", "2"),
        ("%import nothing", ""),
        ("start: <no_such_token>", "no_such_token"),
    ] {
        match grammars.compile(&Format::Grammar(wrong.to_owned())).err() {
            Some(GrammarError::Grammar { reason }) => assert!(reason.contains(place), "{wrong:?}: {reason}"),
            other => panic!("{wrong:?}: {other:?}"),
        }
    }
}

#[test]
fn bombs_are_refused_or_bounded() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let grammars = grammars(&tokenizer);
    let deep = (0..200).fold(json!({"type": "string"}), |inner, _| json!({"type": "array", "items": inner}));
    let branches: Vec<Value> = (0..14).map(|_| json!({"anyOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}]})).collect();
    let wide: serde_json::Map<String, Value> =
        (0..20_000).map(|i| (format!("property_{i}"), json!({"type": "integer"}))).collect();
    let doubling: serde_json::Map<String, Value> = (0..40)
        .map(|i| (format!("d{i}"), json!({"allOf": [{"$ref": format!("#/$defs/d{}", i + 1)}, {"$ref": format!("#/$defs/d{}", i + 1)}]})))
        .chain([("d40".to_owned(), json!({"type": "string"}))])
        .collect();
    let bombs = [
        schema(&deep),
        schema(&json!({"allOf": branches})),
        schema(&json!({"type": "object", "properties": wide})),
        schema(&json!({"$ref": "#/$defs/d0", "$defs": doubling})),
        schema(&json!({"type": "array", "items": {"type": "string"}, "minItems": 1_000_000_000})),
        schema(&json!({"type": "array", "items": {"type": "string"}, "maxItems": 4_000_000_000u64})),
        schema(&json!({"type": "string", "minLength": 1_000_000_000})),
        schema(&json!({"type": "string", "maxLength": u64::MAX})),
        schema(&json!({"type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}"})),
        schema(&json!({"type": "string", "pattern": "(a|b)*a(a|b){60}c(a|b)*d(a|b){60}"})),
        schema(&json!({"type": "object", "minProperties": 1_000_000})),
        schema(&json!({"type": "object", "maxProperties": 1_000_000_000})),
        schema(&json!({"type": "number", "multipleOf": 1e-300})),
        schema(&json!({"type": "integer", "minimum": -1e300, "maximum": 1e300})),
        schema(&json!({"type": "integer", "minimum": i64::MIN, "maximum": u64::MAX})),
        schema(&json!({"type": "integer", "minimum": i64::MIN + 1, "maximum": i64::MAX})),
        schema(&json!({"type": "number", "minimum": -1e300, "maximum": 1e300})),
        schema(&json!({"const": 1e300})),
        schema(&json!({"enum": ["x".repeat(300_000)]})),
        schema(&json!({"$ref": "#"})),
        schema(&json!({"allOf": [{"$ref": "#"}]})),
        Format::Regex("((((a{1,1000}){1,1000}){1,1000}){1,1000}){1,1000}".to_owned()),
        Format::Regex(format!("{}a{}", "(".repeat(100_000), ")".repeat(100_000))),
        Format::Grammar(format!("start: {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000))),
        Format::Grammar("start: start | start start | \"a\"".to_owned()),
        Format::Grammar("start: start".to_owned()),
        Format::Grammar("root ::= root".to_owned()),
        Format::Grammar("root ::= \"a\" root".to_owned()),
        Format::Grammar(format!("root ::= {}\"a\"{}", "(".repeat(50_000), ")".repeat(50_000))),
        Format::Grammar("root ::= a{90}\na ::= b{90} \nb ::= [a-z]{90} | [a-y]{0,90} | a".to_owned()),
        Format::Grammar(
            "root ::= (a a | a a a)* \na ::= \"x\"? \"x\" | \"x\" \"x\" | \"(\" root \")\"".to_owned(),
        ),
        Format::Grammar("root ::= [^a]{1,3000} \"b\"".to_owned()),
        Format::Grammar("start: a{1000000}\na: b{1000000}\nb: \"x\"{1000000}".to_owned()),
    ];
    for bomb in bombs {
        let name: String = format!("{bomb:?}").chars().take(150).collect();
        let before = Instant::now();
        let outcome = twenty_tokens(&tokenizer, &grammars, &bomb);
        let seconds = before.elapsed().as_secs_f64();
        println!("{seconds:.3} s  {name}\n         {outcome}");
        assert!(seconds < 5.0, "{name}: {outcome}");
    }
}

/// What became of random tokens within a format.
fn twenty_tokens(tokenizer: &Tokenizer, grammars: &Grammars, format: &Format) -> String {
    let mut constraint = match grammars.compile(format) {
        Ok(constraint) => constraint,
        Err(error) => return format!("refused: {}", error.to_string().chars().take(200).collect::<String>()),
    };
    let mut random = Random(1);
    for _ in 0..20 {
        let ids = match constraint.allowed() {
            Ok(mask) => allowed_ids(mask),
            Err(error) => return format!("stopped: {error}"),
        };
        let id = ids[random.below(ids.len())];
        if tokenizer.eos_ids().contains(&id) {
            break;
        }
        if let Err(error) = constraint.accept(id) {
            return format!("stopped: {error}");
        }
    }
    "20 tokens".to_owned()
}
