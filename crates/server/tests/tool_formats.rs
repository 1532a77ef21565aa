//! Tool calls under their grammar: whatever is drawn, the syntax's parser finds calls whose arguments satisfy their schema.

#[path = "../../structured/tests/structured/json_schema.rs"]
mod json_schema;
#[path = "../../structured/tests/structured/support.rs"]
mod support;

use json_schema::validates;
use realizar_model::tokenizer::{EncodeOptions, Tokenizer};
use realizar_server::tool_calls::{Delta, SYNTAXES, Syntax, Tool, ToolChoice};
use realizar_structured::reasoning::{self, TAGS};
use realizar_structured::{Before, Format, GrammarError};
use serde_json::{Value, json};
use support::{Random, babble, compile, demo, follow, grammars, plain};

fn tools(strict: bool) -> Vec<Tool> {
    let function = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}});
    serde_json::from_value(json!([
        function("get_weather", json!({
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["c", "f"]}},
            "required": ["city"],
            "additionalProperties": false,
        })),
        function("add-2", json!({
            "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1000}}},
            "required": ["a", "b"],
            "additionalProperties": false,
        })),
        {"type": "function", "function": {"name": "now"}},
    ]))
    .unwrap()
}

/// A vocabulary of bytes, and the tokens that frame calls and reasoning as control tokens.
fn with_control_tokens() -> Tokenizer {
    let printable = |b: u8| (b'!'..=b'~').contains(&b) || (0xA1..=0xAC).contains(&b) || b >= 0xAE;
    let mut others = 256u32..;
    let mut vocabulary = serde_json::Map::new();
    for b in 0..=255u8 {
        let c = if printable(b) { u32::from(b) } else { others.next().unwrap() };
        vocabulary.insert(char::from_u32(c).unwrap().to_string(), json!(b));
    }
    let added = [
        "<eos>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "[CALL_ID]",
        "<tool_call>",
        "</tool_call>",
        "<|python_tag|>",
        "<think>",
        "</think>",
        "<|tool_call>",
        "<tool_call|>",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<|\"|>",
        "<|start|>",
        "<|channel|>",
        "<|constrain|>",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|return|>",
    ];
    let added: Vec<Value> = added
        .iter()
        .enumerate()
        .map(|(i, text)| json!({"id": 256 + i, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}))
        .collect();
    let file = json!({
        "added_tokens": added,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let tokenizer = Tokenizer::from_hf(file.to_string().as_bytes(), None, None).unwrap();
    let ends = ["<eos>", "<|call|>", "<|return|>"].map(|text| tokenizer.id_of(text).unwrap());
    assert_eq!(tokenizer.eos_ids(), ends);
    assert!(tokenizer.is_special(257));
    tokenizer
}

fn parse(syntax: &Syntax, tools: &[Tool], text: &str) -> (String, Vec<(String, String)>) {
    let mut parser = syntax.parser(tools, 1);
    let (mut rest, mut calls) = (String::new(), Vec::<(String, String)>::new());
    for delta in parser.push(text).into_iter().chain(parser.finish()) {
        match delta {
            Delta::Text(text) => rest += &text,
            Delta::Reasoning(_) => {}
            Delta::Call { name, .. } => calls.push((name, String::new())),
            Delta::Arguments { fragment, .. } => calls.last_mut().unwrap().1 += &fragment,
        }
    }
    (rest, calls)
}

fn rules(
    syntax: &Syntax,
    tokenizer: &Tokenizer,
    tools: &[Tool],
    choice: &ToolChoice,
    parallel: bool,
) -> Format {
    syntax.grammar(tokenizer, tools, choice, parallel, None).unwrap().expect("a grammar")
}

#[test]
fn demanded_calls_are_found_and_their_arguments_satisfy_the_schema() {
    for tokenizer in [Tokenizer::from_source(&*demo()).unwrap(), with_control_tokens()] {
        let grammars = grammars(&tokenizer);
        for syntax in SYNTAXES {
            let mut most = 0;
            for (choice, parallel, strict) in [
                (ToolChoice::Required, true, false),
                (ToolChoice::Required, false, true),
                (ToolChoice::Named("add-2".to_owned()), true, false),
            ] {
                let tools = tools(strict);
                let start = compile(&grammars, rules(syntax, &tokenizer, &tools, &choice, parallel));
                for seed in 0..20 {
                    let mut random = Random(seed);
                    let n_free = random.below(400);
                    let ids = babble(&mut *start.fork(), &tokenizer, &mut random, n_free);
                    let text = tokenizer.decode(&ids, false);
                    let (rest, calls) = parse(syntax, &tools, &text);
                    // In channels something may be said before a call.
                    let may_speak = syntax.before_text(&tokenizer).is_some();
                    assert!(rest.trim().is_empty() || may_speak, "{}: {text:?}", syntax.name);
                    assert!(!calls.is_empty(), "{}: {text:?}", syntax.name);
                    assert!(
                        parallel && choice == ToolChoice::Required || calls.len() == 1,
                        "{}: {text:?}",
                        syntax.name
                    );
                    most = most.max(calls.len());
                    for (name, arguments) in calls {
                        let arguments: Value = serde_json::from_str(&arguments).unwrap();
                        let tool = tools.iter().find(|tool| tool.function.name == name).unwrap();
                        let none = json!({"type": "object", "maxProperties": 0});
                        let schema = tool.function.parameters.as_ref().unwrap_or(&none);
                        assert!(
                            arguments.is_object() && validates(schema, schema, &arguments),
                            "{name}: {arguments}"
                        );
                        if let ToolChoice::Named(only) = &choice {
                            assert_eq!(name, *only);
                        }
                    }
                }
            }
            assert!(
                most > 1 || ["llama3", "harmony"].contains(&syntax.name),
                "{} never had several calls",
                syntax.name
            );
        }
    }
}

#[test]
fn a_strict_tool_s_arguments_are_enforced_wherever_a_call_may_come() {
    let (good, bad) = ("{\"city\": \"Paris\"}", "{\"town\": \"Paris\"}");
    for tokenizer in [Tokenizer::from_source(&*demo()).unwrap(), with_control_tokens()] {
        let grammars = grammars(&tokenizer);
        for (name, before, call) in [
            (
                "hermes",
                "Let me see: ",
                "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": ARGUMENTS}\n</tool_call>",
            ),
            (
                "mistral",
                "Let me see: ",
                "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": ARGUMENTS}]",
            ),
            ("mistral-args", "Let me see: ", "[TOOL_CALLS]get_weather[ARGS]ARGUMENTS"),
            ("llama3", "", "{\"name\": \"get_weather\", \"parameters\": ARGUMENTS}"),
            ("generic", "", "{\"name\": \"get_weather\", \"arguments\": ARGUMENTS}"),
            ("gemma4", "Let me see: ", "<|tool_call>call:get_weatherARGUMENTS<tool_call|>"),
        ] {
            // Keys and strings without quotation marks.
            let in_syntax = |arguments: &str| match name {
                "gemma4" => {
                    arguments.replace("\": \"", ":<|\"|>").replace("\"}", "<|\"|>}").replace("{\"", "{")
                }
                _ => arguments.to_owned(),
            };
            let [good, bad] = [good, bad].map(in_syntax);
            let syntax = SYNTAXES.iter().find(|syntax| syntax.name == name).unwrap();
            let start = compile(&grammars, rules(syntax, &tokenizer, &tools(true), &ToolChoice::Auto, true));
            // One token per byte, but for control tokens: SentencePiece would begin with a space.
            let ids = |text: &str| {
                let byte = |b: u8| {
                    (0..tokenizer.vocab_size() as u32)
                        .find(|&id| {
                            !tokenizer.is_special(id) && tokenizer.token_bytes(id).as_deref() == Some(&[b])
                        })
                        .unwrap()
                };
                let parts = tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true });
                parts
                    .into_iter()
                    .flat_map(|id| match tokenizer.is_special(id) {
                        true => vec![id],
                        false => tokenizer.token_bytes(id).unwrap().iter().map(|&b| byte(b)).collect(),
                    })
                    .skip_while(|&id| tokenizer.token_bytes(id).as_deref() == Some(b" "))
                    .collect::<Vec<_>>()
            };
            let end = |text: String| follow(&mut *start.fork(), &tokenizer, &ids(&text));
            assert_eq!(end(before.to_owned() + &call.replace("ARGUMENTS", &good)), Ok(true), "{name}");
            assert!(end(before.to_owned() + &call.replace("ARGUMENTS", &bad)).is_err(), "{name}");
            assert_eq!(end("The weather is <fine>.\n\nReally.".to_owned()), Ok(true), "{name}");
            assert_eq!(end("".to_owned()), Ok(true), "{name}");
        }
    }
}

/// Where arguments are not JSON, the schema is more than what the JSON compiler makes of it.
#[test]
fn a_syntax_of_its_own_enforces_schemas_at_every_depth() {
    let schema = json!({
        "type": "object",
        "properties": {
            "Title": {"type": "string", "minLength": 2, "maxLength": 6},
            "tags": {"type": "array", "items": {"enum": ["a", "b c", "", 3, null]}, "minItems": 1, "maxItems": 3},
            "at": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x y": {"type": "number", "minimum": -5, "maximum": 5}},
                                                "required": ["x y"], "additionalProperties": false}]},
            "more": {"type": "object", "properties": {"on": {"type": "boolean"}},
                     "additionalProperties": {"type": ["string", "integer"], "maxLength": 9}},
            "names": {"items": {"type": "string", "maxLength": 9}, "maxItems": 4},
            "mode": {"const": {"k": ["v", 1]}},
            "none": {"type": "object", "properties": {}, "additionalProperties": false},
        },
        "required": ["tags", "more", "none"],
        "additionalProperties": false,
    });
    let syntax = SYNTAXES.iter().find(|syntax| syntax.name == "gemma4").unwrap();
    let tools = |schema: &Value| -> Vec<Tool> {
        let function = json!({"name": "note", "parameters": schema, "strict": true});
        serde_json::from_value(json!([{"type": "function", "function": function}])).unwrap()
    };
    let mut seen = std::collections::BTreeSet::new();
    for tokenizer in [Tokenizer::from_source(&*demo()).unwrap(), with_control_tokens()] {
        let (grammars, tools) = (grammars(&tokenizer), tools(&schema));
        let start = compile(&grammars, rules(syntax, &tokenizer, &tools, &ToolChoice::Required, false));
        for seed in 0..40 {
            let mut random = Random(seed);
            let n_free = random.below(300);
            let ids = babble(&mut *start.fork(), &tokenizer, &mut random, n_free);
            let text = tokenizer.decode(&ids, false);
            let (rest, calls) = parse(syntax, &tools, &text);
            assert_eq!((rest.trim(), calls.len()), ("", 1), "{text:?}");
            let arguments: Value =
                serde_json::from_str(&calls[0].1).unwrap_or_else(|e| panic!("{text:?}: {e}"));
            assert!(validates(&schema, &schema, &arguments), "{text:?}: {arguments}");
            seen.extend(arguments.as_object().unwrap().keys().cloned());
        }
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
    let tokenizer = with_control_tokens();
    for (property, place) in [
        (json!({"a": {"type": "string", "pattern": "a+"}}), "/properties/a/pattern"),
        (json!({"a": {"items": {"type": "string", "format": "date"}}}), "/properties/a/items/format"),
        (json!({"a:b": {"type": "string"}}), "/properties/a:b"),
        (
            json!({"a": {"type": "object", "properties": {"b": {"type": "string"}}, "anyOf": [{"required": ["b"]}]}}),
            "/properties/a/anyOf",
        ),
    ] {
        let schema = json!({"type": "object", "properties": property, "additionalProperties": false});
        match syntax.grammar(&tokenizer, &tools(&schema), &ToolChoice::Required, true, None) {
            Err(GrammarError::Schema { path, .. }) => {
                assert_eq!(path, format!("tools/0/function/parameters{place}"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn only_demands_make_a_grammar() {
    let tokenizer = with_control_tokens();
    let syntax = &SYNTAXES[0];
    let grammar = |tools: &[Tool], choice: &ToolChoice, parallel, answer: Option<&Format>| {
        syntax.grammar(&tokenizer, tools, choice, parallel, answer)
    };
    assert_eq!(grammar(&tools(true), &ToolChoice::None, true, None), Ok(None));
    assert_eq!(grammar(&tools(false), &ToolChoice::Auto, true, None), Ok(None));
    assert!(grammar(&tools(false), &ToolChoice::Auto, false, None).unwrap().is_some());
    // An answer in JSON beside calls.
    let beside = grammar(&tools(false), &ToolChoice::Auto, true, Some(&Format::Json)).unwrap().unwrap();
    let start = compile(&grammars(&tokenizer), beside);
    let ids = |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true });
    let call = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids(call)), Ok(true));
    assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids("{\"a\": 1}")), Ok(true));
    assert!(follow(&mut *start.fork(), &tokenizer, &ids("text")).is_err());
    let regex = Format::Regex("a".to_owned());
    assert!(matches!(
        grammar(&tools(false), &ToolChoice::Auto, true, Some(&regex)),
        Err(GrammarError::Grammar { .. })
    ));
}

#[test]
fn a_schema_s_error_names_the_tool() {
    let tokenizer = Tokenizer::from_source(&*demo()).unwrap();
    let path = |parameters: Value| {
        let mut tools = tools(true);
        tools[1].function.parameters = Some(parameters);
        match SYNTAXES[0].grammar(&tokenizer, &tools, &ToolChoice::Required, true, None) {
            Err(GrammarError::Schema { path, .. }) => path,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        path(json!({"type": "object", "properties": {"a": {"typ": 1}}})),
        "tools/1/function/parameters/properties/a/typ"
    );
    assert_eq!(path(json!({"type": "string"})), "tools/1/function/parameters/type");
    assert_eq!(path(json!([])), "tools/1/function/parameters");
}

#[test]
fn a_format_may_wait_for_the_end_of_the_reasoning() {
    for tokenizer in [Tokenizer::from_source(&*demo()).unwrap(), with_control_tokens()] {
        let grammars = grammars(&tokenizer);
        let format = Format::JsonSchema {
            schema: json!({"type": "array", "items": {"type": "integer"}}),
            strict: true,
        };
        let start =
            grammars.compile_after(&Before::Reasoning { tags: &TAGS[0], is_begun: true }, &format).unwrap();
        let mut ids = plain(&tokenizer, "Hm, > is </thin");
        ids.extend(tokenizer.encode("</think>", EncodeOptions { add_special: false, parse_special: true }));
        let mut constraint = start.fork();
        assert_eq!(follow(&mut *constraint, &tokenizer, &ids), Ok(false));
        let byte = |b: u8| {
            (0..tokenizer.vocab_size() as u32)
                .find(|&id| tokenizer.token_bytes(id).as_deref() == Some(&[b]))
                .unwrap()
        };
        let rest: Vec<u32> = "\n\n[1, 2]".bytes().map(byte).collect();
        assert_eq!(follow(&mut *constraint.fork(), &tokenizer, &rest), Ok(true));
        assert_eq!(follow(&mut *constraint, &tokenizer, &[byte(b'\n'), byte(b'x')]), Err(byte(b'x')));
        assert_eq!(follow(&mut *start.fork(), &tokenizer, tokenizer.eos_ids()), Err(tokenizer.eos_ids()[0]));
    }
    // The answer may begin the reasoning itself.
    let tokenizer = with_control_tokens();
    let before = Before::Reasoning { tags: &TAGS[0], is_begun: false };
    let start = grammars(&tokenizer).compile_after(&before, &Format::Regex("[0-9]+".to_owned())).unwrap();
    let ids = |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true });
    for (text, ends) in [("12", true), ("<think>\nHm.</think>\n\n12", true), ("<think>12", false)] {
        assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids(text)), Ok(ends), "{text}");
    }
    for text in ["Hm", "<think>Hm.</think>Hm", "</think>", "1<think>"] {
        assert!(follow(&mut *start.fork(), &tokenizer, &ids(text)).is_err(), "{text}");
    }
    assert_eq!(reasoning::shown_tokens(&tokenizer).len(), 2);
    assert_eq!(SYNTAXES[0].shown_tokens(&tokenizer).len(), 2);
}

/// Harmony: thoughts may come before a call and an answer, and nothing else.
#[test]
fn channels_leave_room_for_thoughts() {
    let tokenizer = with_control_tokens();
    let grammars = grammars(&tokenizer);
    let syntax = SYNTAXES.iter().find(|syntax| syntax.name == "harmony").unwrap();
    let ids = |text: &str| tokenizer.encode(text, EncodeOptions { add_special: false, parse_special: true });
    let thoughts = "<|channel|>analysis<|message|>Hm. <final><|end|><|start|>assistant";
    let call =
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rome\"}";
    let other = " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Rome\"}";
    let text = "<|channel|>final<|message|>It rains.";
    for (choice, accepted, refused) in [
        (ToolChoice::Required, vec![call, other], vec![text, "It rains."]),
        (ToolChoice::Auto, vec![call, other, text], vec!["It rains."]),
        (ToolChoice::Named("now".to_owned()), vec![], vec![call, text]),
    ] {
        let start = compile(&grammars, rules(syntax, &tokenizer, &tools(true), &choice, true));
        for before in ["", thoughts, &thoughts.repeat(3)] {
            for text in &accepted {
                let ids = ids(&format!("{before}{text}"));
                assert_eq!(follow(&mut *start.fork(), &tokenizer, &ids), Ok(true), "{before}{text}");
            }
            for text in &refused {
                let ids = ids(&format!("{before}{text}"));
                assert!(follow(&mut *start.fork(), &tokenizer, &ids) != Ok(true), "{before}{text}");
            }
        }
        let bad = ids(&call.replace("city", "town"));
        assert!(follow(&mut *start.fork(), &tokenizer, &bad).is_err());
    }
    // A format of another kind than a grammar's.
    let before = Before::Grammar(syntax.before_text(&tokenizer).expect("channels"));
    let digits = Format::Regex("[0-9]+".to_owned());
    let start = grammars.compile_after(&before, &digits).unwrap();
    for (text, ends) in [
        ("<|channel|>final<|message|>12", Ok(true)),
        (&format!("{thoughts}<|channel|>final<|message|>1")[..], Ok(true)),
        (&format!("{thoughts}<|channel|>final<|message|>")[..], Ok(false)),
        ("<|channel|>final<|message|>a", Err(97)),
        ("12", Err(49)),
        ("<|channel|>analysis<|message|>12", Ok(false)),
    ] {
        let found = follow(&mut *start.fork(), &tokenizer, &ids(text));
        match ends {
            Err(_) => assert!(found.is_err(), "{text}"),
            ends => assert_eq!(found, ends, "{text}"),
        }
    }
}

/// Arguments between tags: strings are text without quotation marks, all else is JSON.
#[test]
fn arguments_between_tags_follow_their_schemas() {
    let schema = json!({
        "type": "object",
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number", "minimum": -5, "maximum": 5}},
                            "required": ["x"], "additionalProperties": false}},
        "properties": {
            "title": {"type": "string", "minLength": 2, "maxLength": 9},
            "text": {"type": "string"},
            "mode": {"enum": ["a", "b c", 3, null]},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 5}, "maxItems": 3},
            "at": {"$ref": "#/$defs/point"},
            "union": {"anyOf": [{"type": "string", "maxLength": 8}, {"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
            "kinds": {"type": ["string", "boolean"], "maxLength": 8},
            "anything": {},
        },
        "required": ["title", "mode", "union", "kinds"],
        "additionalProperties": false,
    });
    let function = json!({"name": "note", "parameters": schema, "strict": true});
    let tools: Vec<Tool> =
        serde_json::from_value(json!([{"type": "function", "function": function}])).unwrap();
    for tokenizer in [Tokenizer::from_source(&*demo()).unwrap(), with_control_tokens()] {
        let grammars = grammars(&tokenizer);
        for name in ["qwen-xml", "seed-oss", "minimax-m2", "glm", "glm-dense"] {
            let syntax = SYNTAXES.iter().find(|syntax| syntax.name == name).unwrap();
            let start = compile(&grammars, rules(syntax, &tokenizer, &tools, &ToolChoice::Required, false));
            let mut seen = std::collections::BTreeSet::new();
            for seed in 0..30 {
                let mut random = Random(seed);
                let n_free = random.below(300);
                let ids = babble(&mut *start.fork(), &tokenizer, &mut random, n_free);
                let text = tokenizer.decode(&ids, false);
                let (rest, calls) = parse(syntax, &tools, &text);
                assert_eq!((rest.trim(), calls.len()), ("", 1), "{name}: {text:?}");
                let arguments: Value =
                    serde_json::from_str(&calls[0].1).unwrap_or_else(|e| panic!("{name}: {text:?}: {e}"));
                assert!(validates(&schema, &schema, &arguments), "{name}: {text:?}: {arguments}");
                seen.extend(arguments.as_object().unwrap().keys().cloned());
            }
            assert!(seen.len() > 6, "{name}: {seen:?}");
            for (property, place) in [
                (json!({"a": {"type": "string", "pattern": "a+"}}), "/properties/a/pattern"),
                (json!({"a<b": {"type": "string"}}), "/properties/a<b"),
            ] {
                let schema = json!({"type": "object", "properties": property, "additionalProperties": false});
                let function = json!({"name": "note", "parameters": schema, "strict": true});
                let tools: Vec<Tool> =
                    serde_json::from_value(json!([{"type": "function", "function": function}])).unwrap();
                match syntax.grammar(&tokenizer, &tools, &ToolChoice::Required, true, None) {
                    Err(GrammarError::Schema { path, .. }) => {
                        assert_eq!(path, format!("tools/0/function/parameters{place}"));
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}
