//! Calls whose arguments stand between tags, each under its name and without quotation marks, as in XML. What a value is, the tool's
//! schema says ([`super::schema_types`]).
//!
//! [`Tags`] has the texts of a syntax: Qwen3-Coder, Qwen 3.5 and others, Seed-OSS, MiniMax M2, GLM 4.5 to 4.7.

use super::call_object::is_blank;
use super::output::{Output, TextBefore, Until};
use super::schema_types::{Types, of_argument, to_json};
use super::{BASE, Parse, Syntax, Tool, tagged_grammar};
use serde_json::Value;

/// Bytes of a name or a key at most, with what stands around it.
const MAX_NAME: usize = 320;

/// The texts around the parts of a call.
pub(super) struct Tags {
    /// What begins a call, or several of them. Some models forget it and begin with the text before the name, which then comes second.
    pub(super) open: &'static [&'static str],
    /// Whether several calls follow `open`.
    pub(super) is_list: bool,
    pub(super) before_name: &'static str,
    /// Empty: a blank or a tag ends the name.
    pub(super) after_name: &'static str,
    pub(super) before_key: &'static str,
    pub(super) after_key: &'static str,
    /// A tag of its own before a value.
    pub(super) before_value: &'static str,
    /// What a value may end with; first what it should.
    pub(super) after_value: &'static [&'static str],
    /// After the last argument, if not `close` says it.
    pub(super) after_call: &'static str,
    pub(super) close: &'static str,
    /// What enforced calls have between tags.
    pub(super) blanks: Blanks,
}

/// Blanks between the tags of enforced calls.
pub(super) struct Blanks {
    pub(super) after_open: &'static str,
    pub(super) after_name: &'static str,
    pub(super) before_value: &'static str,
    pub(super) after_argument: &'static str,
    pub(super) after_call: &'static str,
    pub(super) between: &'static str,
}

impl Tags {
    /// Whether the line ends around a value are part of the frame.
    pub(super) fn has_padded_values(&self) -> bool {
        self.after_value[0].starts_with('\n')
    }
}

/// Qwen3-Coder, Qwen 3.5 and 3.6, Nemotron 3, Step 3.5.
const QWEN: Tags = Tags {
    open: &["<tool_call>", "<function="],
    is_list: false,
    before_name: "<function=",
    after_name: ">",
    before_key: "<parameter=",
    after_key: ">",
    before_value: "",
    after_value: &["\n</parameter>", "</parameter>"],
    after_call: "</function>",
    close: "</tool_call>",
    blanks: Blanks {
        after_open: "\n",
        after_name: "\n",
        before_value: "",
        after_argument: "\n",
        after_call: "\n",
        between: "\n",
    },
};

const SEED_OSS: Tags =
    Tags { open: &["<seed:tool_call>"], after_value: &["</parameter>"], close: "</seed:tool_call>", ..QWEN };

const MINIMAX: Tags = Tags {
    open: &["<minimax:tool_call>"],
    is_list: true,
    before_name: "<invoke name=\"",
    after_name: "\">",
    before_key: "<parameter name=\"",
    after_key: "\">",
    after_value: &["</parameter>"],
    after_call: "</invoke>",
    close: "</minimax:tool_call>",
    ..QWEN
};

/// GLM 4.5 and 4.6.
const GLM: Tags = Tags {
    open: &["<tool_call>"],
    is_list: false,
    before_name: "",
    after_name: "",
    before_key: "<arg_key>",
    after_key: "</arg_key>",
    before_value: "<arg_value>",
    after_value: &["</arg_value>"],
    after_call: "",
    close: "</tool_call>",
    blanks: Blanks {
        after_open: "",
        after_name: "\n",
        before_value: "\n",
        after_argument: "\n",
        after_call: "",
        between: "\n",
    },
};

/// GLM 4.7.
const GLM_DENSE: Tags = Tags {
    blanks: Blanks {
        after_open: "",
        after_name: "",
        before_value: "",
        after_argument: "",
        after_call: "",
        between: "",
    },
    ..GLM
};

pub(super) const QWEN_SYNTAX: Syntax = Syntax {
    name: "qwen-xml",
    recognise: |probe| probe.contains("<tool_call>\n<function=probe_tool>"),
    markers: &["<tool_call>", "</tool_call>"],
    parser: |tools| Box::new(Tagged::new(&QWEN, tools)),
    grammar: |rules| tagged_grammar::calls(&QWEN, rules),
    ends_reasoning: true,
    ..BASE
};

pub(super) const SEED_OSS_SYNTAX: Syntax = Syntax {
    name: "seed-oss",
    recognise: |probe| probe.contains("<seed:tool_call>\n<function=probe_tool>"),
    markers: &["<seed:tool_call>", "</seed:tool_call>"],
    parser: |tools| Box::new(Tagged::new(&SEED_OSS, tools)),
    grammar: |rules| tagged_grammar::calls(&SEED_OSS, rules),
    ..BASE
};

pub(super) const MINIMAX_SYNTAX: Syntax = Syntax {
    name: "minimax-m2",
    recognise: |probe| probe.contains("<minimax:tool_call>\n<invoke name=\"probe_tool\">"),
    markers: &["<minimax:tool_call>", "</minimax:tool_call>"],
    parser: |tools| Box::new(Tagged::new(&MINIMAX, tools)),
    grammar: |rules| tagged_grammar::calls(&MINIMAX, rules),
    ..BASE
};

pub(super) const GLM_SYNTAX: Syntax = Syntax {
    name: "glm",
    recognise: |probe| probe.contains("<tool_call>probe_tool\n<arg_key>"),
    markers: &["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"],
    parser: |tools| Box::new(Tagged::new(&GLM, tools)),
    grammar: |rules| tagged_grammar::calls(&GLM, rules),
    ..BASE
};

pub(super) const GLM_DENSE_SYNTAX: Syntax = Syntax {
    name: "glm-dense",
    recognise: |probe| probe.contains("<tool_call>probe_tool<arg_key>"),
    grammar: |rules| tagged_grammar::calls(&GLM_DENSE, rules),
    ..GLM_SYNTAX
};

enum Place {
    Text(TextBefore),
    /// Before a name and in it: what began the call, if not the text before the name did, and what has come since.
    Head(String, String),
    /// In a call, where an argument or the call's end should come.
    Inside(String),
    Key(String),
    /// Between a key and its value.
    BeforeValue(String, String),
    Value(Argument),
    /// After a call, where another or the end of all should come.
    After(String),
}

/// A value in progress.
struct Argument {
    key: String,
    until: Until,
    /// What has come of a value that is typed at its end; `None` for a string, which goes out as it comes.
    held: Option<String>,
    is_first: bool,
}

struct Tagged {
    tags: &'static Tags,
    /// Names and schemas.
    tools: Vec<(String, Value)>,
    place: Place,
    /// The schema of the call in progress.
    schema: Value,
    n_arguments: usize,
}

/// What should come and what has.
enum Match {
    Whole,
    Begun,
    Other,
}

/// Whether blanks and then `tag` have come.
fn come(held: &str, tag: &str) -> Match {
    let rest = held.trim_start_matches(is_blank);
    match () {
        () if tag.is_empty() => Match::Other,
        () if rest == tag => Match::Whole,
        () if tag.starts_with(rest) => Match::Begun,
        () => Match::Other,
    }
}

impl Tagged {
    fn new(tags: &'static Tags, tools: &[Tool]) -> Self {
        let schema = |tool: &Tool| tool.function.parameters.clone().unwrap_or(Value::Null);
        let tools = tools.iter().map(|tool| (tool.function.name.clone(), schema(tool))).collect();
        Self { tags, tools, place: Self::text(tags), schema: Value::Null, n_arguments: 0 }
    }

    fn text(tags: &Tags) -> Place {
        Place::Text(TextBefore::new(tags.open))
    }

    fn again(&mut self, text: &str, out: &mut Output) {
        text.chars().for_each(|c| self.push(c, out));
    }

    /// Whether what has come of a head may become a name, and the name if it is whole.
    fn name_in<'a>(&self, held: &'a str) -> (Match, &'a str) {
        let rest = held.trim_start_matches(is_blank);
        let Some(name) = rest.strip_prefix(self.tags.before_name) else {
            return (come(held, self.tags.before_name), "");
        };
        let ends = match self.tags.after_name {
            "" => name.len() > 1 && name.ends_with(|c: char| is_blank(c) || c == '<'),
            after => name.ends_with(after),
        };
        let end = name.len() - if ends { self.tags.after_name.len().max(1) } else { 0 };
        let partial = (1..self.tags.after_name.len())
            .rev()
            .find(|&n| !ends && name.ends_with(&self.tags.after_name[..n]))
            .unwrap_or(0);
        let name = &name[..end - partial];
        let is_name = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'));
        match (is_name, ends) {
            (false, _) => (Match::Other, ""),
            (true, true) => (Match::Whole, name),
            (true, false) => (Match::Begun, ""),
        }
    }

    fn head(&mut self, frame: String, mut held: String, c: char, out: &mut Output) -> Option<Place> {
        held.push(c);
        if held.len() <= MAX_NAME {
            match self.name_in(&held) {
                (Match::Whole, name) => {
                    if let Some((name, schema)) = self.tools.iter().find(|(known, _)| known == name) {
                        out.begin(name, None);
                        out.arguments("{");
                        (self.schema, self.n_arguments) = (schema.clone(), 0);
                        // A tag that ends the name is part of what follows.
                        let rest =
                            if self.tags.after_name.is_empty() { c.to_string() } else { String::new() };
                        return Some(Place::Inside(rest));
                    }
                }
                (Match::Begun, _) => return Some(Place::Head(frame, held)),
                (Match::Other, _) => {}
            }
        }
        // What began no call is text; the rest may begin one.
        out.text(&frame);
        self.place = Self::text(self.tags);
        let n_text = if frame.trim().is_empty() { self.tags.before_name.len() } else { 0 };
        out.text(&held[..n_text]);
        self.again(&held[n_text..], out);
        None
    }

    /// The call is at its end.
    fn end(&mut self, out: &mut Output) {
        out.arguments("}");
        out.end();
    }

    fn inside(&mut self, held: String, out: &mut Output) -> Option<Place> {
        let tags = self.tags;
        let mut begun = false;
        for (tag, is_key) in [(tags.before_key, true), (tags.after_call, false), (tags.close, false)] {
            match come(&held, tag) {
                Match::Whole if is_key => return Some(Place::Key(String::new())),
                Match::Whole => {
                    self.end(out);
                    return Some(if tag == tags.close {
                        Self::text(tags)
                    } else {
                        Place::After(String::new())
                    });
                }
                Match::Begun => begun = true,
                Match::Other => {}
            }
        }
        if begun {
            return Some(Place::Inside(held));
        }
        self.end(out);
        self.place = Self::text(tags);
        self.again(&held, out);
        None
    }

    fn begin_value(&mut self, key: String, out: &mut Output) -> Place {
        let between = if self.n_arguments > 0 { ", " } else { "" };
        self.n_arguments += 1;
        out.arguments(&format!("{between}{}: ", Value::from(key.as_str())));
        let is_text = Types::of(of_argument(&self.schema, &key), &self.schema) == Types::STRING;
        if is_text {
            out.arguments("\"");
        }
        let held = (!is_text).then(String::new);
        Place::Value(Argument { key, until: Until::new(self.tags.after_value), held, is_first: true })
    }

    /// More of a value.
    fn more(&self, argument: &mut Argument, mut text: &str, out: &mut Output) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut argument.is_first) && self.tags.has_padded_values() {
            text = text.strip_prefix('\n').unwrap_or(text);
        }
        match &mut argument.held {
            Some(held) => held.push_str(text),
            None => {
                let quoted = Value::from(text).to_string();
                out.arguments(&quoted[1..quoted.len() - 1]);
            }
        }
    }

    fn end_value(&self, argument: Argument, out: &mut Output) {
        match argument.held {
            None => out.arguments("\""),
            Some(held) => {
                let schema = of_argument(&self.schema, &argument.key);
                out.arguments(&to_json(&held, schema, &self.schema));
            }
        }
    }
}

impl Parse for Tagged {
    fn push(&mut self, c: char, out: &mut Output) {
        let tags = self.tags;
        let next = match std::mem::replace(&mut self.place, Self::text(tags)) {
            Place::Text(mut before) => Some(match before.push(c, out) {
                // The name follows at once.
                Some(frame) if tags.open[1..].iter().any(|open| frame.ends_with(open)) => {
                    let blanks = frame.len() - tags.before_name.len();
                    Place::Head(frame[..blanks].to_owned(), tags.before_name.to_owned())
                }
                Some(frame) => Place::Head(frame, String::new()),
                None => Place::Text(before),
            }),
            Place::Head(frame, held) => self.head(frame, held, c, out),
            Place::Inside(mut held) => {
                held.push(c);
                self.inside(held, out)
            }
            Place::Key(mut held) => {
                held.push(c);
                match held.strip_suffix(tags.after_key) {
                    Some(key) if tags.before_value.is_empty() => Some(self.begin_value(key.to_owned(), out)),
                    Some(key) => Some(Place::BeforeValue(key.to_owned(), String::new())),
                    None if held.len() <= MAX_NAME => Some(Place::Key(held)),
                    None => {
                        self.end(out);
                        None
                    }
                }
            }
            Place::BeforeValue(key, mut held) => {
                held.push(c);
                match come(&held, tags.before_value) {
                    Match::Whole => Some(self.begin_value(key, out)),
                    Match::Begun => Some(Place::BeforeValue(key, held)),
                    Match::Other => {
                        self.end(out);
                        self.again(&held, out);
                        None
                    }
                }
            }
            Place::Value(mut argument) => {
                let (text, marker) = argument.until.push(c);
                self.more(&mut argument, &text, out);
                Some(match marker {
                    None => Place::Value(argument),
                    Some(_) => {
                        self.end_value(argument, out);
                        Place::Inside(String::new())
                    }
                })
            }
            Place::After(mut held) => {
                held.push(c);
                match (come(&held, tags.close), come(&held, tags.before_name)) {
                    (Match::Whole, _) => Some(Self::text(tags)),
                    (_, Match::Whole) => Some(Place::Head(String::new(), tags.before_name.to_owned())),
                    (Match::Begun, _) | (_, Match::Begun) => Some(Place::After(held)),
                    _ => {
                        self.again(&held, out);
                        None
                    }
                }
            }
        };
        if let Some(place) = next {
            self.place = place;
        }
    }

    fn finish(&mut self, out: &mut Output) {
        match std::mem::replace(&mut self.place, Self::text(self.tags)) {
            Place::Text(mut before) => before.finish(out),
            Place::Head(frame, held) => {
                out.text(&frame);
                out.text(&held);
            }
            // The closing tag was forgotten.
            Place::Inside(held) if held.trim().is_empty() => self.end(out),
            // Cut off within a call, or after a whole one.
            Place::Inside(_) | Place::Key(_) | Place::BeforeValue(..) | Place::Value(_) | Place::After(_) => {
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{check, template};
    use super::*;
    use serde_json::json;

    /// The tools of the tests: a string, an enumeration and two integers.
    const WEATHER: (&str, &str) = ("get_weather", "city");

    #[test]
    fn transcripts_of_qwen() {
        let one = "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>";
        let two = "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n-2\n</parameter>\n</function>\n</tool_call>";
        let (weather, add) = ((WEATHER.0, json!({WEATHER.1: "Paris"})), ("add", json!({"a": 1, "b": -2})));
        let syntax = &QWEN_SYNTAX;
        check(syntax, one, "", std::slice::from_ref(&weather));
        check(syntax, &format!("I look.\n\n{one}\n{two}\n"), "I look.\n", &[weather.clone(), add.clone()]);
        // Some begin with the name.
        let bare = one.trim_start_matches("<tool_call>\n");
        check(syntax, &format!("I look.\n{bare}\n{two}"), "I look.", &[weather.clone(), add]);
        // Closing tags were forgotten.
        check(syntax, &one.replace("</function>\n", ""), "", std::slice::from_ref(&weather));
        check(syntax, &one.replace("\n</tool_call>", ""), "", std::slice::from_ref(&weather));
        check(syntax, &one.replace("</function>\n</tool_call>", ""), "", &[weather]);
        let with = |value: &str| one.replace("\nParis\n", value);
        for (value, city) in [
            ("Paris", "Paris"),
            ("\n", ""),
            ("\n\n", ""),
            ("", ""),
            ("\n  def f():\n    return \"a\\b\"\n\n", "  def f():\n    return \"a\\b\"\n"),
            ("\n<p>\n</para\n</p>é格\n", "<p>\n</para\n</p>é格"),
            ("\n12\n", "12"),
        ] {
            check(syntax, &with(value), "", &[("get_weather", json!({"city": city}))]);
        }
        let none = "<tool_call>\n<function=add>\n</function>\n</tool_call>";
        check(syntax, none, "", &[("add", json!({}))]);
        let unknown = none.replace(
            "</function>",
            "<parameter=c>\n[1, {'x': None}]\n</parameter>\n<parameter=d>\nx y\n</parameter>\n</function>",
        );
        check(syntax, &unknown, "", &[("add", json!({"c": [1, {"x": null}], "d": "x y"}))]);
        for text in [
            "<tool_call>\n<function=nobody>\n</function>\n</tool_call>",
            "<function=nobody>",
            "<function=<function=>",
            "<tool_call>\n{\"name\": \"add\"}</tool_call>",
            " <tool_call>\n<functi",
            "a <function=",
            "",
        ] {
            check(syntax, text, text, &[]);
        }
    }

    #[test]
    fn transcripts_of_others() {
        let weather = ("get_weather", json!({"city": "Paris\n", "unit": "c"}));
        let add = ("add", json!({"a": 1, "b": 2}));
        let none = ("add", json!({}));
        let seed = "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Paris\n</parameter>\n<parameter=unit>c</parameter>\n</function>\n</seed:tool_call>";
        let seed_add = "<seed:tool_call>\n<function=add>\n<parameter=a>1</parameter>\n<parameter=b>2</parameter>\n</function>\n</seed:tool_call>";
        check(&SEED_OSS_SYNTAX, &format!("So: {seed}\n{seed_add}"), "So:", &[weather.clone(), add.clone()]);
        let minimax = "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Paris\n</parameter>\n<parameter name=\"unit\">c</parameter>\n</invoke>\n\
                       <invoke name=\"add\">\n<parameter name=\"a\">1</parameter>\n<parameter name=\"b\">2</parameter>\n</invoke>\n<invoke name=\"add\">\n</invoke>\n</minimax:tool_call>";
        check(&MINIMAX_SYNTAX, minimax, "", &[weather.clone(), add.clone(), none.clone()]);
        check(
            &MINIMAX_SYNTAX,
            "<minimax:tool_call>\n<invoke name=\"x\">",
            "<minimax:tool_call>\n<invoke name=\"x\">",
            &[],
        );
        let glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris\n</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>c</arg_value>\n</tool_call>";
        let glm_add = "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>2</arg_value>\n</tool_call>";
        for syntax in [&GLM_SYNTAX, &GLM_DENSE_SYNTAX] {
            check(syntax, &format!("{glm}\n{glm_add}"), "", &[weather.clone(), add.clone()]);
            let dense = format!("{glm}{glm_add}")
                .replace(">\n<", "><")
                .replace("add\n", "add")
                .replace("weather\n", "weather");
            check(syntax, &dense, "", &[weather.clone(), add.clone()]);
            check(syntax, "Let me.\n<tool_call>add</tool_call>", "Let me.", std::slice::from_ref(&none));
            for text in [
                "<tool_call>nobody</tool_call>",
                "<tool_call>add",
                "<tool_call>{\"name\": \"add\"}</tool_call>",
            ] {
                check(syntax, text, text, &[]);
            }
        }
    }

    #[test]
    fn templates_that_write_it_are_recognised() {
        for (name, syntax) in
            [("Qwen3-Coder", "qwen-xml"), ("MiniMax-M2", "minimax-m2"), ("GLM-4.7-Flash", "glm-dense")]
        {
            let Some(template) = template(name) else { return };
            assert_eq!(Syntax::of(Some(&template)).name, syntax, "{name}");
        }
    }
}
