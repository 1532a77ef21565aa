//! Aim: no chat template, whatever it says, ends the process or takes more than a bounded part of its memory and time.
//!
//! Method: a corpus of templates, each of which makes much of little in its own way: too deep for the stack, too long for
//! memory, too many steps. Each must be refused by an error that names the limit, when it is read or when it is rendered.
//! An overflow of the stack or an allocation that fails would end the test program; the memory of all together is
//! checked at the end.

// A test says what took long.
#![allow(clippy::print_stdout)]

use realizar_model::chat_template::{ChatTemplate, Timestamp};
use serde_json::json;
use std::time::{Duration, Instant};

/// What the error must contain.
const DEEP: &str = "nest deeper than";
const BYTES: &str = "reads and makes more than";
const STEPS: &str = "instructions (out of fuel)";
const PARSER: &str = "recursion limits";
const RECURSION: &str = "recursion limit exceeded";
const LENGTH: &str = "bytes; at most";
const PLAIN: &str = "can be kept in";

fn rendered(source: &str) -> Result<String, String> {
    let conversation = json!({
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    });
    let template = ChatTemplate::new(source, "<s>", "</s>").map_err(|e| e.to_string())?;
    template.render(&conversation, true, Timestamp::utc(2026, 1, 15, 12, 0, 0)).map_err(|e| e.to_string())
}

/// `{{ … }}` around an expression.
fn emit(expression: &str) -> String {
    format!("{{{{ {expression} }}}}")
}

/// A text of 64 MB in `ns.a`, if nothing stops it.
fn doubled(step: &str) -> String {
    format!(
        "{{% set ns = namespace(a='0123456789abcdef') %}}{{% for i in range(60) %}}{{% set ns.a = {step} %}}{{% endfor %}}{{{{ ns.a|length }}}}"
    )
}

/// Runs `body` 90,000 times, with `ns.a` to work on.
fn repeated(start: &str, body: &str) -> String {
    format!(
        "{{% set ns = namespace(a={start}) %}}{{% for i in range(90000) %}}{body}{{% endfor %}}{{{{ ns.a|string|length }}}}"
    )
}

/// A list that contains itself 2^60 times over, in `ns.a`.
fn shared_list(and_then: &str) -> String {
    format!(
        "{{% set ns = namespace(a=['x'], b=['x']) %}}{{% for i in range(60) %}}{{% set ns.a = [ns.a, ns.a] %}}{{% set ns.b = [ns.b, ns.b] %}}{{% endfor %}}{and_then}"
    )
}

fn too_deep_to_read() -> Vec<(&'static str, String, &'static str)> {
    let n = 60_000;
    vec![
        ("minus signs", emit(&format!("{}1", "-".repeat(n))), DEEP),
        ("minus signs, longest", emit(&format!("{}1", "-".repeat(262_000))), DEEP),
        ("minus signs with spaces", emit(&format!("{}x", "- ".repeat(n))), DEEP),
        ("not", emit(&format!("{}x", "not ".repeat(n))), DEEP),
        ("sum", emit(&format!("x{}", "+x".repeat(n))), DEEP),
        ("difference", emit(&format!("1{}", "-1".repeat(n))), DEEP),
        ("product", emit(&format!("x{}", "*x".repeat(n))), DEEP),
        ("power", emit(&format!("x{}", "**x".repeat(n))), DEEP),
        ("concatenation", emit(&format!("x{}", "~x".repeat(n))), DEEP),
        ("and", emit(&format!("x{}", " and x".repeat(n / 2))), DEEP),
        ("or", emit(&format!("x{}", " or x".repeat(n / 2))), DEEP),
        ("conditionals", emit(&format!("x{}", " if x else x".repeat(n / 4))), DEEP),
        ("conditionals without else", emit(&format!("x{}", " if x".repeat(n / 2))), DEEP),
        ("filters", emit(&format!("x{}", "|e".repeat(n))), DEEP),
        ("tests", emit(&format!("x{}", " is eq(1)".repeat(n / 4))), DEEP),
        ("attributes", emit(&format!("x{}", ".a".repeat(n))), DEEP),
        ("items", emit(&format!("x{}", "[0]".repeat(n))), DEEP),
        ("slices", emit(&format!("x{}", "[:]".repeat(n))), DEEP),
        ("calls", emit(&format!("x{}", "()".repeat(n))), DEEP),
        ("methods", emit(&format!("x{}", ".f()".repeat(n))), DEEP),
        ("filter blocks", format!("{{% filter e{} %}}a{{% endfilter %}}", "|e".repeat(n)), DEEP),
        ("set blocks", format!("{{% set a |e{} %}}a{{% endset %}}", "|e".repeat(n)), DEEP),
        ("branches", format!("{{% if x %}}{}{{% endif %}}", "{% elif x %}".repeat(n / 3)), DEEP),
        ("parentheses", emit(&format!("{}1{}", "(".repeat(n), ")".repeat(n))), PARSER),
        ("lists", emit(&format!("{}1{}", "[".repeat(n), "]".repeat(n))), PARSER),
        ("dicts", emit(&format!("{}1{}", "{1:".repeat(n), "}".repeat(n))), PARSER),
        ("arguments", emit(&format!("{}1{}", "f(".repeat(n), ")".repeat(n))), PARSER),
        ("loops", "{% for a in b %}".repeat(n / 4), PARSER),
        ("conditions", "{% if a %}".repeat(n / 3), PARSER),
        ("with", "{% with %}".repeat(n / 3), PARSER),
        ("macros", "{% macro a() %}".repeat(n / 4), PARSER),
        ("calls of macros", "{% call a() %}".repeat(n / 4), PARSER),
        ("captures", "{% set a %}".repeat(n / 4), PARSER),
        ("filter tags", "{% filter e %}".repeat(n / 4), PARSER),
        ("blocks", "{% block a %}{% endblock %}".to_owned(), "no blocks"),
        ("itself", "{% include 'chat template' %}".to_owned(), "no other templates"),
        ("its parent", "{% extends 'chat template' %}".to_owned(), "no other templates"),
        ("an import", "{% import 'chat template' as a %}".to_owned(), "no other templates"),
        ("spread arguments", emit("dict(**x)"), "spread"),
        ("a spread list", emit("f(*range(100000))"), "spread"),
        ("a cycle of nothing", "{% for i in messages %}{{ loop.cycle() }}{% endfor %}".to_owned(), "cycle()"),
        ("a long text", "x".repeat(300_000), LENGTH),
        ("a long comment", format!("{{# {} #}}", "x".repeat(300_000)), LENGTH),
        ("an unfinished tag", "{{".repeat(100_000), ""),
        ("an unfinished comment", "{#".repeat(100_000), ""),
        ("an unfinished text", emit(&"'".repeat(99_999)), ""),
        ("a large number", emit(&"9".repeat(100_000)), ""),
        ("a large exponent", emit("10**1000000000"), "calculate"),
        ("a folded text", emit("'x' * 99999999 * 99999999"), BYTES),
    ]
}

fn too_much_in_one_step() -> Vec<(&'static str, String, &'static str)> {
    let long = "('x' * 1000000)";
    vec![
        ("repetition", emit("'x' * 10**9"), BYTES),
        ("repetition, longest", emit("'x' * 10**18"), BYTES),
        ("repetition from the left", emit("10**9 * 'x'"), BYTES),
        ("repeated list", emit("[1] * 10**9"), BYTES),
        ("repeated tuple", emit("(1, 2) * 10**9"), BYTES),
        ("repeated repetition", emit("((['x'] * 10**4) * 10**4)|length"), BYTES),
        ("indent", emit("'a\nb'|indent(10**9)"), BYTES),
        ("indent, widest", emit("'a\nb'|indent(130**9, true)"), BYTES),
        ("named indent", emit("'a\nb'|indent(width=10**9)"), BYTES),
        ("indent of lines", emit("('\n' * 10000)|indent(10000, true, true)"), BYTES),
        ("batch", emit("messages|batch(10**9, 'x')"), BYTES),
        ("batch, longest", emit("messages|batch(130**9)"), BYTES),
        ("slice", emit("messages|slice(10**9)"), BYTES),
        ("slice with filler", emit("messages|slice(10**9, 'x')"), BYTES),
        ("slice, longest", emit("messages|slice(130**9)"), BYTES),
        ("replace", emit(&format!("{long}|replace('x', {long})")), BYTES),
        ("replace of nothing", emit(&format!("{long}|replace('', {long})")), BYTES),
        ("replace as a method", emit(&format!("{long}.replace('x', {long})")), BYTES),
        ("join", emit(&format!("range(100000)|join({long})")), BYTES),
        ("join of a text", emit(&format!("{long}|join({long})")), BYTES),
        ("named join", emit(&format!("range(100000)|join(d={long})")), BYTES),
        ("join as a method", emit(&format!("{long}.join(range(100000))")), BYTES),
        ("join by attribute", emit(&format!("range(100000)|join('', attribute={long})")), BYTES),
        ("list of characters", emit("('x' * 10**7)|list|length"), BYTES),
        ("sorted characters", emit("('x' * 10**7)|sort|length"), BYTES),
        ("unique characters", emit("('x' * 10**7)|unique|length"), BYTES),
        ("greatest character", emit("('x' * 10**7)|max"), BYTES),
        ("characters as a list of parts", emit("('x' * 10**7)|batch(2)|length"), BYTES),
        ("split", emit("('a ' * 10**7)|split|length"), BYTES),
        ("split as a method", emit("('a,' * 10**7).split(',')|length"), BYTES),
        ("lines", emit("('\n' * 10**7).splitlines()|length"), BYTES),
        ("escape", emit("('<' * 3 * 10**7)|e|length"), BYTES),
        ("strip", emit("('x' * 10**6).strip('x' * 10**6)"), BYTES),
        ("trim", emit("('x' * 10**6)|trim('x' * 10**6)"), BYTES),
        ("format width", emit("'%1000000000d'|format(1)"), BYTES),
        ("format precision", emit("'%.1000000000f'|format(1.5)"), BYTES),
        ("format width from an argument", emit("'%*d'|format(10**9, 1)"), "widths"),
        ("format widths", emit("('%100000d' * 10000)|format(1)"), BYTES),
        ("format of much", emit(&format!("('%(a)s' * 10000)|format(a={long})")), BYTES),
        ("braces width", emit("'{:1000000000}'.format(1)"), BYTES),
        ("braces of much", emit(&format!("('{{0}}' * 10000).format({long})")), BYTES),
        ("braces width from an argument", emit("'{:{}}'.format(1, 10**9)"), "widths"),
        ("tojson separators", emit(&format!("range(100000)|tojson(separators=({long}, ':'))")), BYTES),
        ("tojson indent", emit(&format!("range(100000)|tojson(indent={long})")), "too wide"),
        ("the longest range", emit("range(10**9)"), "too many elements"),
        ("the longest range backwards", emit("range(10**9, 0, -1)"), ""),
        ("a range of the largest numbers", emit("range(-9223372036854775807, 9223372036854775807, 1)"), ""),
        ("texts of time", emit("strftime_now('%c' * 10**7)"), BYTES),
        ("a refusal of much", emit("raise_exception('x' * 10**7)"), "refuses"),
        ("an unknown method of much", emit("('x' * 10**6).center(10**9)"), ""),
        ("a sum of lists", emit("range(10000)|map('string')|map('list')|sum(start=[])"), "numbers only"),
        ("a sum of texts", emit("messages|sum(attribute='content', start='')"), "numbers only"),
        ("attributes of many", emit("range(100000)|map(attribute='a.' * 100000)|list|length"), BYTES),
        ("filters of many", emit("range(100000)|map('indent', 10**6)|list|length"), BYTES),
        ("tests of many", emit("range(100000)|select('in', range(100000)|list)|list|length"), BYTES),
    ]
}

fn too_much_in_many_steps() -> Vec<(&'static str, String, &'static str)> {
    let recursion = |call: &str| format!("{{% macro m(a) %}}{call}{{% endmacro %}}{{{{ m([]) }}}}");
    vec![
        ("doubling by ~", doubled("ns.a ~ ns.a"), BYTES),
        ("doubling by +", doubled("ns.a + ns.a"), BYTES),
        ("doubling by *", doubled("ns.a * 2"), BYTES),
        ("doubling by join", doubled("[ns.a, ns.a]|join"), BYTES),
        ("doubling by format", doubled("'%s%s'|format(ns.a, ns.a)"), BYTES),
        ("doubling by replace", doubled("ns.a|replace('a', 'aa')|replace('a', ns.a)"), BYTES),
        ("doubling by slices", doubled("ns.a[:] ~ ns.a[::-1]"), BYTES),
        ("doubling a list", "{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}".to_owned(), BYTES),
        ("doubling a tuple", "{% set ns = namespace(a=(1, 2)) %}{% for i in range(60) %}{% set ns.a = ns.a + ns.a %}{% endfor %}".to_owned(), BYTES),
        ("doubling captures", "{% set ns = namespace(a='0123456789abcdef') %}{% for i in range(60) %}{% set b %}{{ ns.a }}{{ ns.a }}{% endset %}{% set ns.a = b %}{% endfor %}".to_owned(), BYTES),
        ("doubling macros", "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns = namespace(a='0123456789abcdef') %}{% for i in range(60) %}{% set ns.a = m(ns.a) %}{% endfor %}".to_owned(), BYTES),
        ("raw text in a capture", format!("{{% set a %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "x".repeat(100_000)), BYTES),
        ("raw text", format!("{{% for i in range(99999) %}}{}{{% endfor %}}", "x".repeat(100_000)), BYTES),
        ("raw text in a macro", format!("{{% macro m() %}}{{% for i in range(99999) %}}{}{{% endfor %}}{{% endmacro %}}{{{{ m()|length }}}}", "x".repeat(100_000)), BYTES),
        ("loops in loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(), STEPS),
        ("comparisons of much", repeated("'x' * 1000000", "{% if ns.a == ns.a %}{% endif %}"), BYTES),
        ("chained comparisons of much", repeated("'x' * 1000000", "{% if 'a' < ns.a < ns.a ~ 'b' %}{% endif %}"), BYTES),
        ("searches in much", repeated("'x' * 1000000", "{% if 'y' in ns.a %}{% endif %}"), BYTES),
        ("tests of much", repeated("'x' * 1000000", "{% if ns.a is eq(ns.a) %}{% endif %}"), BYTES),
        ("items of a long text", repeated("'x' * 1000000", "{% if ns.a[-1] %}{% endif %}"), BYTES),
        ("slices of a long text", repeated("'x' * 1000000", "{% if ns.a[1:2] %}{% endif %}"), BYTES),
        ("slices of a long list", repeated("range(99999)|list", "{% if ns.a[1:2] %}{% endif %}"), BYTES),
        ("keys of much", repeated("'x' * 1000000", "{% if {'a': 1}[ns.a] %}{% endif %}"), BYTES),
        ("methods of much", repeated("'x' * 1000000", "{% if ns.a.isdigit() %}{% endif %}"), BYTES),
        ("assignments of much", repeated("range(99999)|list", "{% set a, b = ns.a %}"), "wrong length"),
        ("loops over characters", repeated("'x' * 1000000", "{% for c in ns.a %}{% break %}{% endfor %}"), BYTES),
        ("slices of slices", repeated("range(9999)|list", "{% set ns.a = ns.a[:] %}"), BYTES),
        ("reversals of reversals", repeated("range(9999)|list", "{% set ns.a = ns.a|reverse %}"), BYTES),
        ("sums of sums", repeated("[]", "{% set ns.a = ns.a + [i] %}"), BYTES),
        ("deeper lists", repeated("[]", "{% set ns.a = [ns.a] %}"), DEEP),
        ("deeper tuples", repeated("[]", "{% set ns.a = (ns.a,) %}"), DEEP),
        ("deeper dicts", repeated("{}", "{% set ns.a = {'a': ns.a} %}"), DEEP),
        ("deeper calls of dict", repeated("{}", "{% set ns.a = dict(a=ns.a) %}"), DEEP),
        ("deeper batches", repeated("[1]", "{% set ns.a = ns.a|batch(1) %}"), DEEP),
        ("deeper slices", repeated("[1]", "{% set ns.a = ns.a|slice(1) %}"), DEEP),
        ("deeper items", repeated("{}", "{% set ns.a = {'a': ns.a}.items()|list %}"), DEEP),
        ("namespaces in namespaces", repeated("[]", "{% set ns.a = namespace(a=ns) %}"), PLAIN),
        ("a namespace in itself", repeated("[]", "{% set ns.a = ns %}"), PLAIN),
        ("a namespace in its list", repeated("[]", "{% set ns.a = [ns] %}"), PLAIN),
        ("a namespace in its dict", repeated("[]", "{% set ns.a = {'a': ns} %}"), PLAIN),
        ("loops in lists", repeated("[]", "{% set ns.a = [loop] %}"), PLAIN),
        ("a loop in itself", repeated("[]", "{% if loop.changed(loop) %}{% endif %}"), PLAIN),
        ("macros in lists", "{% macro m() %}{% endmacro %}{{ [m] }}".to_owned(), PLAIN),
        ("many macros", repeated("[]", "{% macro m() %}{{ i }}{% endmacro %}"), BYTES),
        ("many calls of macros", format!("{{% macro m() %}}{{{{ caller() }}}}{{% endmacro %}}{}", repeated("[]", "{% call m() %}{{ i }}{% endcall %}")), BYTES),
        ("recursion", recursion("{{ m(a) }}"), RECURSION),
        ("recursion in two ways", recursion("{{ m(a) }}{{ m(a) }}"), RECURSION),
        ("recursion with deeper arguments", recursion("{{ m([a]) }}"), ""),
        ("recursion by call", "{% macro m() %}{{ caller() }}{% call m() %}x{% endcall %}{% endmacro %}{% call m() %}y{% endcall %}".to_owned(), RECURSION),
        ("recursive loops", "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(), RECURSION),
        ("recursive loops, captured", "{% for a in [1] recursive %}{% set b = loop([1]) %}{% endfor %}".to_owned(), RECURSION),
        ("a shared list printed", shared_list("{{ ns.a }}"), BYTES),
        ("a shared list as a text", shared_list("{{ ns.a|string|length }}"), BYTES),
        ("a shared list as JSON", shared_list("{{ ns.a|tojson|length }}"), BYTES),
        ("a shared list joined to a text", shared_list("{{ ('' ~ ns.a)|length }}"), BYTES),
        ("a shared list joined", shared_list("{{ ns.a|join|length }}"), BYTES),
        ("shared lists compared", shared_list("{{ ns.a == ns.b }}"), BYTES),
        ("shared lists ordered", shared_list("{{ ns.a < ns.b }}"), BYTES),
        ("shared lists tested", shared_list("{{ ns.a is eq(ns.b) }}"), BYTES),
        ("a shared list searched", shared_list("{{ 'y' in ns.a }}"), BYTES),
        ("a shared list sorted", shared_list("{{ [ns.a, ns.b]|sort|length }}"), BYTES),
        ("a shared list made unique", shared_list("{{ [ns.a, ns.b]|unique|length }}"), BYTES),
        ("a shared list counted", shared_list("{{ ns.a.count(ns.b) }}"), BYTES),
        ("a shared list as a key", shared_list("{{ {'a': 1}[ns.a] }}"), BYTES),
        ("a shared list in upper case", shared_list("{{ ns.a|upper|length }}"), BYTES),
        ("a shared list formatted", shared_list("{{ '%s'|format(ns.a)|length }}"), BYTES),
        ("a shared list raised", shared_list("{{ raise_exception(ns.a) }}"), BYTES),
    ]
}

fn check(corpus: Vec<(&'static str, String, &'static str)>) {
    for (name, source, expected) in corpus {
        let start = Instant::now();
        let result = rendered(&source);
        if start.elapsed() > Duration::from_millis(500) {
            println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        }
        let shown = |text: &str| text.chars().take(200).collect::<String>();
        match result {
            Ok(text) => panic!("{name}: rendered {} bytes: {}", text.len(), shown(&text)),
            Err(error) => {
                assert!(error.contains(expected), "{name}: expected {expected:?}: {}", shown(&error));
                assert!(error.len() < 10_000, "{name}: the error has {} bytes", error.len());
            }
        }
    }
    assert_memory();
}

/// The most memory that this process ever had.
fn assert_memory() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: usize = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(kib < 1 << 20, "{} MiB", kib >> 10);
}

#[test]
fn nothing_repeated_is_nothing_at_once() {
    for (expression, want) in
        [("[] * 20**9", "[]"), ("20**9 * []", "[]"), ("'' * 20**9", ""), ("[] * -1", "[]")]
    {
        assert_eq!(rendered(&emit(expression)).as_deref(), Ok(want), "{expression}");
    }
}

#[test]
fn formats_with_keys_that_are_not_ascii_are_errors() {
    for format in ["{0[é]}", "{a.b[x é", "{0:{1[é]}}"] {
        let reason = rendered(&emit(&format!("'{format}'.format({{'é': 1}})"))).unwrap_err();
        assert!(reason.contains("not ASCII"), "{format}: {reason}");
    }
    for format in ["%(é)s", "%d %(a é"] {
        let reason = rendered(&emit(&format!("'{format}' | format({{'é': 1}})"))).unwrap_err();
        assert!(reason.contains("not ASCII"), "{format}: {reason}");
    }
    assert_eq!(rendered(&emit("'é (é) %s' | format(1)")).as_deref(), Ok("é (é) 1"));
    assert_eq!(rendered(&emit("'[é] {0[a]} é]'.format({'a': 1})")).as_deref(), Ok("[é] 1 é]"));
}

#[test]
fn doubled_braces_of_a_format_are_text() {
    for (format, want) in
        [("{{x}} {}", "{x} 1"), ("{{{}}}", "{1}"), ("{{[é]}} {0}", "{[é]} 1"), ("{{{{", "{{")]
    {
        assert_eq!(rendered(&emit(&format!("'{format}'.format(1)"))).as_deref(), Ok(want), "{format}");
    }
    let reason = rendered(&emit("'{{{0[é]}'.format({'é': 1})")).unwrap_err();
    assert!(reason.contains("not ASCII"), "{reason}");
}

#[test]
fn templates_that_nest_too_deep_are_refused_when_read() {
    check(too_deep_to_read());
}

#[test]
fn single_steps_that_make_much_are_refused() {
    check(too_much_in_one_step());
}

#[test]
fn many_steps_that_make_much_are_refused() {
    check(too_much_in_many_steps());
}

#[test]
fn what_real_templates_do_stays_within_the_limits() {
    let parentheses = format!("{{% set {}a{} = 1 %}}{{{{ a }}}}", "(".repeat(130_000), ")".repeat(130_000));
    assert_eq!(rendered(&parentheses).unwrap(), "1");
    let chain = format!("{{{{ 'a'{} }}}}", " + 'b'".repeat(200));
    assert_eq!(rendered(&chain).unwrap().len(), 201);
    let branches = format!("{{% if 1 == 2 %}}{}{{% else %}}x{{% endif %}}", "{% elif 1 == 2 %}".repeat(200));
    assert_eq!(rendered(&branches).unwrap(), "x");
    assert_eq!(rendered("{% set ns = namespace(a=[]) %}{% for i in range(1000) %}{% set ns.a = ns.a + [{'i': i}] %}{% endfor %}{{ ns.a|length }}").unwrap(), "1000");
    assert_eq!(
        rendered("{{ 'ab' * 2 }} {{ [1] * 3 }} {{ 2 * 3.5 }} {{ -2 * 3 }} {{ (1, 2) * 2 }} {{ 'x' * -1 }}")
            .unwrap(),
        "abab [1, 1, 1] 7.0 -6 (1, 2, 1, 2) "
    );
    assert_eq!(
        rendered("{{ 'hello'[1:3] }} {{ 'hello'[::-1] }} {{ 'hello'[-3:] }} {{ [1, 2, 3, 4][::2] }} {{ [1, 2, 3][5:] }} {{ 'abc'[2:0:-1] }} {{ 'abc'[0:2:-1] }}|{{ (1, 2, 3)[:2] }}").unwrap(),
        "el olleh llo [1, 3] [] cb |(1, 2)"
    );
    assert_eq!(
        rendered("{{ 'year 20261231: %s, %5.1f|'|format('a', 1.25) }}").unwrap(),
        "year 20261231: a,   1.2|"
    );
}
