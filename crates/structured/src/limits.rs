//! Bounds on formats, checked before anything is compiled.
//!
//! The compiler recurses along references and nesting, multiplies alternatives out and searches the products of intersected regular
//! expressions; it knows no deadline. What is bounded here therefore bounds its stack, its memory and its time. [`check_schema`]
//! walks a JSON schema as the compiler will, each reference once, and [`check_lark`] scans a grammar and the schemas in it.

use super::{GrammarError, check_size};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Schemas and constant values in one format.
const MAX_NODES: usize = 10_000;
/// Entries of one `properties`, or names in one `required`.
const MAX_PROPERTIES: usize = 1_000;
/// Entries of one `patternProperties`: the compiler compares all pairs.
const MAX_PATTERN_PROPERTIES: usize = 32;
/// Entries of one `allOf`, `anyOf`, `oneOf` or `prefixItems`.
const MAX_SCHEMA_LIST: usize = 500;
/// Values of one `enum`.
const MAX_ENUM: usize = 5_000;
/// Definitions that are referred to.
const MAX_REFERENCES: usize = 500;
/// Schemas and references on one path from the root.
const MAX_PATH: usize = 256;
/// Schemas after alternatives that apply together are multiplied out.
const MAX_EXPANDED: f64 = 100_000.0;
/// Intersections of patterns: the binary logarithm of the product of their sizes.
const MAX_PATTERN_BITS: f64 = 20.0;
/// Combined `multipleOf`: the binary logarithm of their product. The compiler computes remainders times ten in 32 bits.
const MAX_MULTIPLE_BITS: f64 = 26.0;
/// Decimals of a `multipleOf`.
const MAX_DECIMALS: u32 = 6;

/// Lines of a grammar in Lark, each of which defines one rule at most.
const MAX_LARK_LINES: usize = 3_000;
/// Groups within groups, and negations, of a grammar in Lark.
const MAX_LARK_DEPTH: usize = 64;
/// Intersections (`&`) and negations (`~`) of a grammar in Lark, each kind.
const MAX_LARK_OPERATORS: usize = 8;
/// What intersections in Lark may cost, as [`MAX_PATTERN_BITS`].
const MAX_LARK_BITS: f64 = 24.0;

fn too_large(what: &'static str, size: usize, limit: usize) -> Result<(), GrammarError> {
    match size > limit {
        true => Err(GrammarError::TooLarge { what, size, limit }),
        false => Ok(()),
    }
}

/// Checks a JSON schema against all bounds.
///
/// Errors: [`GrammarError::TooLarge`] names the bound.
pub(super) fn check_schema(root: &Value) -> Result<(), GrammarError> {
    let mut walk = Walk::new(root);
    walk.index(root, 0)?;
    walk.weigh(root, 0).map(|_| ())
}

/// What a schema costs where it is combined with others.
#[derive(Clone, Copy, Debug)]
struct Weight {
    /// Of intersected patterns, as a binary logarithm.
    pattern_bits: f64,
    /// Of combined `multipleOf`, as a binary logarithm.
    multiple_bits: f64,
    /// Alternatives when all are multiplied out.
    alternatives: f64,
    /// Schemas in one alternative.
    size: f64,
}

impl Weight {
    const NONE: Self = Self { pattern_bits: 0.0, multiple_bits: 0.0, alternatives: 1.0, size: 1.0 };

    /// Both hold.
    fn and(self, other: Self) -> Self {
        Self {
            pattern_bits: self.pattern_bits + other.pattern_bits,
            multiple_bits: self.multiple_bits + other.multiple_bits,
            alternatives: self.alternatives * other.alternatives,
            size: self.size + other.size,
        }
    }

    /// One of both holds.
    fn or(self, other: Self) -> Self {
        Self {
            pattern_bits: self.pattern_bits.max(other.pattern_bits),
            multiple_bits: self.multiple_bits.max(other.multiple_bits),
            alternatives: self.alternatives + other.alternatives,
            size: self.size.max(other.size),
        }
    }

    /// As a part of an array or object.
    fn inside(self) -> Self {
        Self { alternatives: 1.0, size: self.size * self.alternatives, ..self }
    }
}

struct Walk<'a> {
    root: &'a Value,
    n_nodes: usize,
    anchors: HashMap<&'a str, &'a Value>,
    references: HashSet<&'a str>,
    /// Definitions that were weighed; `None` while they are.
    weighed: HashMap<&'a str, Option<Weight>>,
    /// All patterns of the schema together, for references that are not resolved here.
    all: Weight,
}

impl<'a> Walk<'a> {
    fn new(root: &'a Value) -> Self {
        Self {
            root,
            n_nodes: 0,
            anchors: HashMap::new(),
            references: HashSet::new(),
            weighed: HashMap::new(),
            all: Weight::NONE,
        }
    }

    /// Counts everything, wherever it stands, and notes anchors and references.
    fn index(&mut self, value: &'a Value, depth: usize) -> Result<(), GrammarError> {
        self.n_nodes += 1;
        too_large("the number of schemas and values in the JSON schema", self.n_nodes, MAX_NODES)?;
        too_large("the depth of the JSON schema", depth, 2 * MAX_PATH)?;
        match value {
            Value::Object(entries) => {
                if let Some(Value::String(anchor)) = entries.get("$anchor") {
                    self.anchors.insert(anchor, value);
                }
                if let Some(Value::String(reference)) = entries.get("$ref") {
                    self.references.insert(reference);
                    too_large(
                        "the number of definitions referred to",
                        self.references.len(),
                        MAX_REFERENCES,
                    )?;
                }
                let own = own_weight(entries)?;
                self.all.pattern_bits += own.pattern_bits;
                self.all.multiple_bits += own.multiple_bits;
                entries.values().try_for_each(|entry| self.index(entry, depth + 1))
            }
            Value::Array(items) => items.iter().try_for_each(|item| self.index(item, depth + 1)),
            _ => Ok(()),
        }
    }

    fn weigh(&mut self, schema: &'a Value, depth: usize) -> Result<Weight, GrammarError> {
        too_large("the depth of the JSON schema, references followed,", depth, MAX_PATH)?;
        let Value::Object(keywords) = schema else { return Ok(Weight::NONE) };
        let mut weight = own_weight(keywords)?;
        let mut inside = Weight { alternatives: 1.0, size: 0.0, ..Weight::NONE };
        for (keyword, value) in keywords {
            match (keyword.as_str(), value) {
                ("allOf", Value::Array(schemas)) => {
                    for schema in schemas {
                        weight = weight.and(self.weigh(schema, depth + 1)?);
                    }
                }
                ("anyOf" | "oneOf", Value::Array(schemas)) => {
                    let mut either = Weight { alternatives: 0.0, ..Weight::NONE };
                    for schema in schemas {
                        either = either.or(self.weigh(schema, depth + 1)?);
                    }
                    weight = weight.and(Weight { alternatives: either.alternatives.max(1.0), ..either });
                }
                ("$ref", Value::String(reference)) => {
                    let alone = keywords.len() == 1;
                    let target = self.weigh_reference(reference, depth + 1)?;
                    // A reference on its own stays one; combined with more, it is replaced by what it refers to.
                    weight = weight.and(if alone { Weight { size: 1.0, ..target } } else { target });
                }
                ("items" | "prefixItems", Value::Array(schemas)) => {
                    for schema in schemas {
                        self.weigh_inside(schema, depth, &mut inside)?;
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", schema) => {
                    self.weigh_inside(schema, depth, &mut inside)?;
                }
                ("properties" | "patternProperties", Value::Object(schemas)) => {
                    for schema in schemas.values() {
                        self.weigh_inside(schema, depth, &mut inside)?;
                    }
                }
                _ => {}
            }
        }
        let weight = weight.and(Weight { size: inside.size, ..inside });
        too_large(
            "the number of schemas after all alternatives are multiplied out",
            (weight.alternatives * weight.size).min(1e15) as usize,
            MAX_EXPANDED as usize,
        )?;
        check_bits(weight)?;
        Ok(weight)
    }

    fn weigh_inside(
        &mut self,
        schema: &'a Value,
        depth: usize,
        inside: &mut Weight,
    ) -> Result<(), GrammarError> {
        let part = self.weigh(schema, depth + 1)?.inside();
        inside.pattern_bits = inside.pattern_bits.max(part.pattern_bits);
        inside.multiple_bits = inside.multiple_bits.max(part.multiple_bits);
        inside.size += part.size;
        Ok(())
    }

    fn weigh_reference(&mut self, reference: &'a str, depth: usize) -> Result<Weight, GrammarError> {
        match self.weighed.get(reference) {
            Some(Some(weight)) => return Ok(*weight),
            // Around a circle nothing is added twice.
            Some(None) => return Ok(Weight::NONE),
            None => {}
        }
        let Some(target) = self.resolve(reference) else { return Ok(self.all) };
        self.weighed.insert(reference, None);
        let weight = self.weigh(target, depth)?;
        self.weighed.insert(reference, Some(weight));
        Ok(weight)
    }

    fn resolve(&self, reference: &str) -> Option<&'a Value> {
        let fragment = reference.strip_prefix('#')?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return self.root.pointer(fragment);
        }
        self.anchors.get(fragment).copied()
    }
}

fn check_bits(weight: Weight) -> Result<(), GrammarError> {
    let (bits, limit) = (weight.pattern_bits.ceil() as usize, MAX_PATTERN_BITS as usize);
    too_large("the binary logarithm of the product of patterns that apply together", bits, limit)?;
    let (bits, limit) = (weight.multiple_bits.ceil() as usize, MAX_MULTIPLE_BITS as usize);
    too_large("the binary logarithm of the product of multipleOf that apply together", bits, limit)
}

/// What the keywords of one schema cost, without those of the schemas in it.
fn own_weight(keywords: &Map<String, Value>) -> Result<Weight, GrammarError> {
    let mut weight = Weight::NONE;
    for (keyword, value) in keywords {
        match (keyword.as_str(), value) {
            ("pattern", Value::String(pattern)) => weight.pattern_bits += pattern_bits(pattern),
            ("format", Value::String(_)) => weight.pattern_bits += 5.0,
            ("minLength" | "maxLength", _) => weight.pattern_bits += 0.5,
            ("multipleOf", Value::Number(number)) => {
                weight.multiple_bits += multiple_bits(&number.to_string())?
            }
            ("enum", Value::Array(values)) => {
                too_large("the number of values of one enum", values.len(), MAX_ENUM)?;
            }
            ("required", Value::Array(names)) => {
                too_large("the number of required properties of one object", names.len(), MAX_PROPERTIES)?;
            }
            ("properties", Value::Object(entries)) => {
                too_large("the number of properties of one object", entries.len(), MAX_PROPERTIES)?;
            }
            ("patternProperties", Value::Object(entries)) => {
                too_large(
                    "the number of patternProperties of one object",
                    entries.len(),
                    MAX_PATTERN_PROPERTIES,
                )?;
                for pattern in entries.keys() {
                    weight.pattern_bits = weight.pattern_bits.max(pattern_bits(pattern));
                }
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(schemas)) => {
                too_large("the number of schemas in one list", schemas.len(), MAX_SCHEMA_LIST)?;
            }
            _ => {}
        }
    }
    Ok(weight)
}

/// The binary logarithm of how many sets of bytes a pattern tells apart at most: what its size counts for in an intersection.
fn pattern_bits(pattern: &str) -> f64 {
    let n_classes = pattern.bytes().filter(|b| matches!(b, b'[' | b'\\' | b'.')).count();
    let different: HashSet<char> = pattern.chars().collect();
    ((1 + n_classes + different.len()) as f64).log2()
}

/// The binary logarithm of a number without its decimal point.
fn multiple_bits(number: &str) -> Result<f64, GrammarError> {
    let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
    let decimals = decimals.trim_end_matches('0');
    let n_decimals = if number.contains(['e', 'E']) { usize::MAX } else { decimals.len() };
    too_large("the number of decimals of multipleOf", n_decimals, MAX_DECIMALS as usize)?;
    let digits = format!("{whole}{decimals}");
    Ok(digits.parse::<f64>().map_or(f64::INFINITY, |digits| digits.abs().max(1.0).log2()))
}

/// Checks a grammar in Lark, and the JSON schemas in it, against all bounds.
///
/// Errors: [`GrammarError::TooLarge`] names the bound; [`GrammarError::Grammar`] for a string that does not end.
pub(super) fn check_lark(text: &str) -> Result<(), GrammarError> {
    check_size("the grammar, in bytes,", text.len())?;
    too_large("the number of lines of the grammar", text.lines().count(), MAX_LARK_LINES)?;
    let scan = scan_lark(text)?;
    too_large("the depth of groups in the grammar", scan.depth, MAX_LARK_DEPTH)?;
    too_large("the number of negations (~) in the grammar", scan.n_negations, MAX_LARK_OPERATORS)?;
    too_large("the number of intersections (&) in the grammar", scan.n_intersections, MAX_LARK_OPERATORS)?;
    if scan.n_intersections > 0 {
        // A terminal may be used on both sides of an intersection, so each one can double the number of operands.
        let bits = pattern_bits(&scan.terminals) * f64::from(1u32 << scan.n_intersections);
        let limit = MAX_LARK_BITS as usize;
        too_large("the binary logarithm of what intersections (&) multiply", bits.ceil() as usize, limit)?;
    }
    scan.schemas.iter().try_for_each(check_schema)
}

/// What [`check_lark`] wants to know of a grammar.
#[derive(Default)]
struct LarkScan {
    depth: usize,
    n_negations: usize,
    n_intersections: usize,
    /// The lines with intersections and everything that is not JSON, for the size of the terminals.
    terminals: String,
    schemas: Vec<Value>,
}

fn scan_lark(text: &str) -> Result<LarkScan, GrammarError> {
    let mut scan = LarkScan::default();
    let (mut at, mut depth) = (0, 0usize);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let n = match c {
            '#' => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' | '/' => {
                let end = closing(rest, c).ok_or_else(|| {
                    let line = text[..at].matches('\n').count() + 1;
                    GrammarError::Grammar { reason: format!("line {line}: the {c} has no end") }
                })?;
                scan.terminals.push_str(&rest[1..end]);
                end + 1
            }
            '<' => special_token(rest).unwrap_or(1),
            '%' => match embedded_json(rest) {
                Some((schema, n)) => {
                    scan.schemas.push(schema);
                    n
                }
                None => 1,
            },
            c => {
                match c {
                    '(' | '[' | '{' => depth += 1,
                    ')' | ']' | '}' => depth = depth.saturating_sub(1),
                    '~' => {
                        scan.n_negations +=
                            usize::from(!rest[1..].trim_start().starts_with(|c: char| c.is_ascii_digit()))
                    }
                    '&' => scan.n_intersections += 1,
                    _ => {}
                }
                scan.depth = scan.depth.max(depth);
                c.len_utf8()
            }
        };
        at += n;
    }
    Ok(scan)
}

/// Where a string or regular expression ends that begins `text` with `quote`.
fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' if quote == '"' => return None,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return Some(at),
            _ => {}
        }
    }
    None
}

/// Bytes of a special token, such as `</s>`, that `text` begins with.
fn special_token(text: &str) -> Option<usize> {
    let end = text[1..].find(|c: char| c == '<' || c == '>' || c.is_whitespace())? + 1;
    (end > 1 && text[end..].starts_with('>')).then_some(end + 1)
}

/// The JSON schema after `%json` and how many bytes both take.
fn embedded_json(text: &str) -> Option<(Value, usize)> {
    let after = text.strip_prefix("%json")?;
    let mut values = serde_json::Deserializer::from_str(after).into_iter::<Value>();
    let schema = values.next()?.ok()?;
    Some((schema, text.len() - after.len() + values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_SOURCE_BYTES, gbnf, pushdown, schema};
    use serde_json::json;

    #[test]
    fn the_documents_state_the_bounds() {
        let n = |n: usize| match (n / 1000, n % 1000) {
            (0, n) => n.to_string(),
            (thousands, rest) => format!("{thousands},{rest:03}"),
        };
        let rows = [
            ("bytes of a schema, pattern or grammar", format!("{} KiB", MAX_SOURCE_BYTES >> 10)),
            ("schemas and constant values of a schema", n(MAX_NODES)),
            (
                "schemas nested, without and with references followed",
                format!("{}, {}", n(schema::MAX_DEPTH), n(MAX_PATH)),
            ),
            ("definitions referred to", n(MAX_REFERENCES)),
            (
                "`properties` or `required` of one object; `patternProperties`",
                format!("{}; {}", n(MAX_PROPERTIES), n(MAX_PATTERN_PROPERTIES)),
            ),
            (
                "entries of one `allOf`, `anyOf`, `oneOf` or `prefixItems`; of one `enum`",
                format!("{}; {}", n(MAX_SCHEMA_LIST), n(MAX_ENUM)),
            ),
            ("schemas after alternatives that apply together are multiplied out", n(MAX_EXPANDED as usize)),
            (
                "patterns that apply together: binary logarithm of the product of their sizes",
                MAX_PATTERN_BITS.to_string(),
            ),
            (
                "`multipleOf` that apply together: binary logarithm of their product; decimals",
                format!("{MAX_MULTIPLE_BITS}; {MAX_DECIMALS}"),
            ),
            (
                "lines, depth of groups, `&` and `~` of a grammar in Lark",
                format!("{}; {}; {} each", n(MAX_LARK_LINES), n(MAX_LARK_DEPTH), n(MAX_LARK_OPERATORS)),
            ),
            (
                "elements (repetitions written out) and depth of groups of a grammar in GBNF",
                format!("{}; {}", n(gbnf::MAX_ELEMENTS), n(gbnf::MAX_DEPTH)),
            ),
            ("states of the automaton of one answer", n(pushdown::MAX_STATES)),
        ];
        let page = include_str!("../../../docs/serving.md");
        for (what, bound) in rows {
            let row = format!("| {what} | {bound} |");
            assert!(page.contains(&row), "docs/serving.md lacks {row}");
        }
    }

    fn refused(schema: &Value) -> &'static str {
        match check_schema(schema) {
            Err(GrammarError::TooLarge { what, .. }) => what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ordinary_schemas_are_within_all_bounds() {
        let person = json!({
            "$defs": {"name": {"type": "string", "pattern": "^[A-Z][a-z]+( [A-Z][a-z]+)*$", "maxLength": 80}},
            "type": "object",
            "properties": {
                "name": {"$ref": "#/$defs/name"},
                "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}},
                "price": {"type": "number", "multipleOf": 0.01, "minimum": 0},
                "parent": {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
            },
            "required": ["name", "price"],
        });
        check_schema(&person).unwrap();
    }

    #[test]
    fn each_bound_is_named() {
        let names: Vec<String> = (0..1001).map(|i| format!("n{i}")).collect();
        assert!(refused(&json!({"type": "object", "required": names})).contains("required"));
        let properties: Map<String, Value> = names.iter().map(|n| (n.clone(), json!({}))).collect();
        assert!(refused(&json!({"properties": properties})).contains("properties"));
        let primes: Vec<Value> = [2, 3, 5, 7, 11, 13, 17, 19, 23].map(|p| json!({"multipleOf": p})).to_vec();
        assert!(refused(&json!({"allOf": primes})).contains("multipleOf"));
        assert!(refused(&json!({"multipleOf": 1e-9})).contains("decimals"));
        let either: Vec<Value> = (0..100).map(|i| json!({"required": [format!("a{i}")]})).collect();
        let product = json!({"allOf": [{"anyOf": either}, {"anyOf": either}, {"anyOf": either}]});
        assert!(refused(&product).contains("multiplied out"));
        let patterns: Vec<Value> =
            (0..9).map(|i| json!({"pattern": format!("[a-f]+{i}|[b-z]{{3}}x")})).collect();
        assert!(refused(&json!({"allOf": patterns})).contains("patterns"));
        let chain: Map<String, Value> =
            (0..300).map(|i| (format!("d{i}"), json!({"$ref": format!("#/$defs/d{}", i + 1)}))).collect();
        assert!(refused(&json!({"$defs": chain, "$ref": "#/$defs/d0"})).contains("references followed"));
    }

    #[test]
    fn lark_is_scanned_as_its_lexer_reads_it() {
        check_lark(
            "start: \"((((\" /[(\\/]+/ // (((\nA: /a/ & ~/b/\n# ((((\nB: \"x\"~2..3\nc: </s> <|a|> <[1]>\n",
        )
        .unwrap();
        let deep = format!("start: {}\"a\"{}", "(".repeat(65), ")".repeat(65));
        assert!(matches!(check_lark(&deep), Err(GrammarError::TooLarge { size: 65, .. })));
        let negated = format!("start: A\nA: {}/a/", "~".repeat(9));
        assert!(matches!(check_lark(&negated), Err(GrammarError::TooLarge { size: 9, .. })));
        let lines = "a: \"a\"\n".repeat(3001);
        assert!(matches!(check_lark(&lines), Err(GrammarError::TooLarge { size: 3001, .. })));
        assert!(matches!(check_lark("start: \"a"), Err(GrammarError::Grammar { .. })));
        let hostile = "start: %json {\"allOf\": [{\"multipleOf\": 65537}, {\"multipleOf\": 65539}]} \"(\"";
        assert!(matches!(check_lark(hostile), Err(GrammarError::TooLarge { .. })));
    }
}
