//! The filters, tests, functions and methods that templates have, each with what it costs paid before it runs.
//!
//! Most are the engine's own; a few behave as in Jinja where the engine's do not. Those that would make much of little (`indent`, `replace`, `join`, …) pay for their
//! result first. The engine's filters that Jinja does not have, or that no chat template uses and that have no bound
//! (`chain`, `groupby`, `lines`, `pprint`, `zip`), are absent.

use super::budget::{self, ELEMENT, error};
use super::lists::{self, List};
use super::{Raised, tojson};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters, functions, tests};

/// The filter around what a `for` iterates over.
pub(super) const ITERABLE: &str = "_iterable";
/// The filter around what becomes part of another value.
pub(super) const STORE: &str = "_store";
/// The filter that makes a list that can change.
pub(super) const LIST: &str = "_list";
/// The filter around what becomes an element of a list, tuple or dict.
pub(super) const FROZEN: &str = "_frozen";
/// The filter around what is read with everything in it.
pub(super) const READ: &str = "_read";
/// The filter around a text or list that is read without what is in its elements.
pub(super) const SKIM: &str = "_skim";
/// The filter around what an operator made.
pub(super) const MADE: &str = "_made";
/// The filter that prints a value as text.
pub(super) const STRING: &str = "string";
/// The filter that pays for as many bytes as its input says.
pub(super) const PAY: &str = "_pay";
/// The filters that stand for `*` and `[a:b:c]`.
pub(super) const MULTIPLY: &str = "_multiply";
pub(super) const SLICE: &str = "_slice";
/// The variable that takes values nobody wants.
pub(super) const DISCARDED: &str = "_discarded";

/// Filters that fail at what is undefined in the engine, and take it for an empty list in Jinja.
const EMPTY_IF_UNDEFINED: [&str; 4] = ["count", "first", "last", "length"];

type Paid = Result<(), Error>;
/// Pays for a call with these arguments.
type Price = fn(&[Value]) -> Paid;

/// Adds everything to an environment.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    for name in ["chain", "groupby", "lines", "pprint", "zip"] {
        environment.remove_filter(name);
    }
    environment.remove_global("debug");
    for (name, filter, price) in priced_filters() {
        environment.add_filter(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let mut args = args.into_values();
            if EMPTY_IF_UNDEFINED.contains(&name) && args.first().is_some_and(Value::is_undefined) {
                args[0] = Value::from(Vec::<Value>::new());
            }
            price(&args)?;
            budget::made(filter.call(state, &args)?)
        });
    }
    add_operators(environment);
    environment.add_filter("tojson", tojson::filter);
    environment.add_filter(STRING, |value: &Value| {
        budget::read(value)?;
        let text = match value.as_str() {
            Some(text) => text.to_owned(),
            None => tojson::python_str(value),
        };
        budget::spend(text.len())?;
        Ok(text)
    });
    add_tests(environment);
    add_functions(environment);
    environment.set_unknown_method_callback(method);
}

/// Filters with the price of each.
fn priced_filters() -> Vec<(&'static str, Value, Price)> {
    vec![
        ("abs", Value::from_function(filters::abs), budget::read_all),
        ("attr", Value::from_function(filters::attr), skim_all),
        ("batch", Value::from_function(filters::batch), parts),
        ("bool", Value::from_function(filters::bool), skim_all),
        ("capitalize", Value::from_function(filters::capitalize), budget::read_all),
        ("count", Value::from_function(filters::length), skim_all),
        ("d", Value::from_function(default), free),
        ("default", Value::from_function(default), free),
        ("dictsort", Value::from_function(filters::dictsort), sorting),
        ("e", Value::from_function(escape), escaping),
        ("escape", Value::from_function(escape), escaping),
        ("first", Value::from_function(filters::first), free),
        ("float", Value::from_function(float), budget::read_all),
        ("format", Value::from_function(filters::format), percent_formatting),
        ("indent", Value::from_function(filters::indent), indenting),
        ("int", Value::from_function(int), budget::read_all),
        ("items", Value::from_function(items), pairs),
        ("join", Value::from_function(filters::join), joining),
        ("last", Value::from_function(filters::last), free),
        ("length", Value::from_function(filters::length), skim_all),
        ("list", Value::from_function(filters::list), elements),
        ("lower", Value::from_function(filters::lower), budget::read_all),
        ("map", Value::from_function(filters::map), per_element),
        ("max", Value::from_function(filters::max), sorting),
        ("min", Value::from_function(filters::min), sorting),
        ("reject", Value::from_function(filters::reject), per_element),
        ("rejectattr", Value::from_function(filters::rejectattr), per_element),
        ("replace", Value::from_function(replace), replacing),
        ("reverse", Value::from_function(filters::reverse), elements),
        ("round", Value::from_function(filters::round), budget::read_all),
        ("safe", Value::from_function(filters::safe), budget::read_all),
        ("select", Value::from_function(filters::select), per_element),
        ("selectattr", Value::from_function(filters::selectattr), per_element),
        ("slice", Value::from_function(filters::slice), parts),
        ("sort", Value::from_function(filters::sort), sorting),
        ("split", Value::from_function(filters::split), splitting),
        ("sum", Value::from_function(filters::sum), summing),
        ("title", Value::from_function(filters::title), budget::read_all),
        ("trim", Value::from_function(filters::trim), trimming),
        ("unique", Value::from_function(filters::unique), sorting),
        ("upper", Value::from_function(filters::upper), budget::read_all),
    ]
}

/// `default(default_value, boolean)`; the engine's takes no names.
fn default(value: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    let args = args.into_values();
    let (args, options): (&[Value], Kwargs) = from_args(&args)?;
    let argument = |at: usize, name: &str| match args.get(at) {
        Some(value) => Ok(Some(value.clone())),
        None if options.has(name) => options.get(name).map(Some),
        None => Ok(None),
    };
    let (other, boolean) = (argument(0, "default_value")?, argument(1, "boolean")?);
    options.assert_all_used()?;
    let also_false = boolean.is_some_and(|boolean| boolean.is_true());
    let takes_other = value.is_undefined() || (also_false && !value.is_true());
    Ok(if takes_other { other.unwrap_or_else(|| Value::from("")) } else { value.clone() })
}

/// The engine writes other entities.
fn escape(value: &Value) -> Value {
    if value.is_safe() {
        return value.clone();
    }
    let mut out = String::new();
    for c in tojson::python_str(value).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}

/// What is no number is the default, which is 0.
fn int(
    state: &State,
    value: &Value,
    default: Option<Value>,
    base: Option<u32>,
    options: Kwargs,
) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get::<Option<Value>>("default"), |value| Ok(Some(value)))?;
    filters::int(state, value, Some(default.unwrap_or_else(|| Value::from(0))), base, options)
}

/// As [`int`].
fn float(state: &State, value: &Value, default: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = default.map_or_else(|| options.get::<Option<Value>>("default"), |value| Ok(Some(value)))?;
    filters::float(state, value, Some(default.unwrap_or_else(|| Value::from(0.0))), options)
}

/// Nothing of what is undefined.
fn items(value: &Value) -> Result<Value, Error> {
    if value.is_undefined() { Ok(Value::from(Vec::<Value>::new())) } else { filters::items(value) }
}

/// `replace(old, new, count)`; the engine's has no count.
fn replace(value: &Value, old: &Value, new: &Value, count: Option<usize>) -> String {
    let [text, old, new] = [value, old, new].map(tojson::python_str);
    text.replacen(&old, &new, count.unwrap_or(usize::MAX))
}

/// The filters that `compile` puts around operands and results.
fn add_operators(environment: &mut Environment<'static>) {
    environment.add_filter(ITERABLE, |value: Value| {
        if value.is_none() {
            return Err(error("None is not iterable"));
        }
        // The characters of a text are counted first; a list is not copied.
        budget::spend(value.as_str().map_or(0, str::len))?;
        Ok(value)
    });
    environment.add_filter(STORE, |value: Value| budget::store(&value).map(|()| value));
    environment.add_filter(LIST, |value: &Value| lists::list(value));
    environment.add_filter(FROZEN, lists::frozen);
    environment.add_filter(READ, |value: Value| budget::read(&value).map(|()| value));
    environment.add_filter(SKIM, |value: Value| budget::skim(&value).map(|()| value));
    environment.add_filter(MADE, budget::made);
    environment.add_filter(PAY, |bytes: usize| budget::spend(bytes));
    environment.add_filter(MULTIPLY, multiply);
    environment.add_filter(SLICE, slice);
}

fn add_tests(environment: &mut Environment<'static>) {
    // The engine takes None for iterable, Python does not.
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    // As in Python, what has a length and elements.
    environment.add_test("sequence", |value: &Value| value.len().is_some() && value.try_iter().is_ok());
    let comparisons: [(&[&str], Value); 10] = [
        (&["eq", "equalto", "=="], Value::from_function(tests::is_eq)),
        (&["ne", "!="], Value::from_function(tests::is_ne)),
        (&["lt", "lessthan", "<"], Value::from_function(tests::is_lt)),
        (&["le", "<="], Value::from_function(tests::is_le)),
        (&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt)),
        (&["ge", ">="], Value::from_function(tests::is_ge)),
        (&["in"], Value::from_function(tests::is_in)),
        (&["startingwith"], Value::from_function(tests::is_startingwith)),
        (&["endingwith"], Value::from_function(tests::is_endingwith)),
        (&["lower"], Value::from_function(tests::is_lower)),
    ];
    let upper: (&[&str], Value) = (&["upper"], Value::from_function(tests::is_upper));
    for (names, test) in comparisons.into_iter().chain([upper]) {
        for name in names {
            let test = test.clone();
            environment.add_test(*name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
                let args = args.into_values();
                budget::read_all(&args)?;
                test.call(state, &args).map(|result| result.is_true())
            });
        }
    }
}

fn add_functions(environment: &mut Environment<'static>) {
    for (name, function) in [
        ("dict", Value::from_function(functions::dict)),
        ("namespace", Value::from_function(functions::namespace)),
    ] {
        environment.add_function(name, move |state: &mut State, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            budget::store_all(&args)?;
            function.call(state, &args)
        });
    }
    environment.add_function("raise_exception", |message: &Value, _more: Kwargs| -> Result<Value, Error> {
        budget::read(message)?;
        let message = message.to_string();
        Err(Error::new(ErrorKind::InvalidOperation, "").with_source(Raised(message)))
    });
}

/// Python's methods of texts, dicts and lists.
fn method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    if let Some(done) = value.downcast_object_ref::<List>().and_then(|list| list.call(name, args)) {
        return done;
    }
    match (value.kind(), name) {
        (ValueKind::String, _) => {
            budget::skim(value)?;
            let all: Vec<Value> = std::iter::once(value.clone()).chain(args.iter().cloned()).collect();
            match name {
                "replace" => replacing(&all)?,
                "format" => {
                    keys_are_ascii(value.as_str().unwrap_or_default())?;
                    formatting(&all)?;
                }
                "split" => splitting(&all)?,
                "rsplit" => {
                    splitting(&all)?;
                    return budget::made(rsplit(value.as_str().unwrap_or_default(), args)?);
                }
                "splitlines" => {
                    budget::spend(value.as_str().map_or(0, |s| s.matches('\n').count()) * ELEMENT)?
                }
                "strip" | "lstrip" | "rstrip" => trimming(&all)?,
                "removeprefix" | "removesuffix" | "partition" | "rpartition" => {
                    budget::read_all(args)?;
                    return budget::made(cut(value.as_str().unwrap_or_default(), name, args)?);
                }
                // The separator is the text, the list an argument.
                "join" if !args.is_empty() => joining(&[args[0].clone(), value.clone()])?,
                _ => budget::read_all(args)?,
            }
        }
        (ValueKind::Map, "keys" | "values" | "items") => pairs(std::slice::from_ref(value))?,
        (ValueKind::Map, _) => budget::read_all(args)?,
        _ => {
            budget::read(value)?;
            budget::read_all(args)?;
        }
    }
    budget::made(minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)?)
}

/// Methods that take a text apart at another one, which the engine lacks.
fn cut(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let [at] = args else { return Err(error(format!("{name}() takes one argument"))) };
    let at = at.as_str().ok_or_else(|| error(format!("{name}() takes a text and not a {}", at.kind())))?;
    let parts = match name {
        "removeprefix" => return Ok(Value::from(text.strip_prefix(at).unwrap_or(text))),
        "removesuffix" => return Ok(Value::from(text.strip_suffix(at).unwrap_or(text))),
        _ if at.is_empty() => return Err(error("empty separator")),
        "partition" => text.split_once(at).map_or([text, "", ""], |(before, after)| [before, at, after]),
        _ => text.rsplit_once(at).map_or(["", "", text], |(before, after)| [before, at, after]),
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
}

/// `rsplit(separator, maxsplit)`, which the engine lacks.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let separator = args.first().and_then(Value::as_str).filter(|separator| !separator.is_empty());
    let separator = separator.ok_or_else(|| error("rsplit() takes a separator"))?;
    let at_most = args.get(1).and_then(Value::as_usize).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<Value> = text.rsplitn(at_most + 1, separator).map(Value::from).collect();
    parts.reverse();
    Ok(Value::from(parts))
}

/// Refuses a format whose fields have keys, as in `{0[key]}`, that are not ASCII: the template engine reads them byte by byte, and panics.
fn keys_are_ascii(format: &str) -> Result<(), Error> {
    let (mut in_field, mut in_key) = (false, false);
    let mut chars = format.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // A brace of the text.
            '{' if !in_field && chars.next_if_eq(&'{').is_some() => {}
            '[' if in_field => in_key = true,
            ']' => in_key = false,
            '{' => in_field = true,
            '}' if !in_key => in_field = false,
            _ if in_key && !c.is_ascii() => return Err(error("a key of a format is not ASCII")),
            _ => {}
        }
    }
    Ok(())
}

/// `a * b` for numbers, texts and lists.
fn multiply(left: &Value, right: &Value) -> Result<Value, Error> {
    let times = |value: &Value, n: &Value| -> Result<usize, Error> {
        // As in Python, less than once is not at all.
        let n = n
            .as_i64()
            .ok_or_else(|| error(format!("cannot multiply a {} by a {}", value.kind(), n.kind())))?;
        let n = usize::try_from(n).unwrap_or(0);
        budget::spend(budget::size(value).saturating_mul(n))?;
        Ok(n)
    };
    let is_list = |value: &Value| matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    for (value, n) in [(left, right), (right, left)] {
        if let Some(text) = value.as_str() {
            return Ok(Value::from(text.repeat(times(value, n)?)));
        }
        if is_list(value) {
            let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
            let n = times(value, n)?;
            // The budget does not count how often nothing is repeated.
            let n = if items.is_empty() { 0 } else { n };
            let repeated: Vec<Value> = (0..n).flat_map(|_| items.iter().cloned()).collect();
            return Ok(if value.is_tuple() {
                Value::from(Tuple::from(repeated))
            } else {
                List::from(repeated).into()
            });
        }
    }
    let whole = |value: &Value| (!is_float(value)).then(|| i128::try_from(value.clone()).ok()).flatten();
    if let (Some(a), Some(b)) = (whole(left), whole(right)) {
        let product = a.checked_mul(b).ok_or_else(|| error("a product is too large"))?;
        return Ok(i64::try_from(product).map_or_else(|_| Value::from(product), Value::from));
    }
    match (f64::try_from(left.clone()), f64::try_from(right.clone())) {
        (Ok(a), Ok(b)) => Ok(Value::from(a * b)),
        _ => Err(error(format!("cannot multiply a {} by a {}", left.kind(), right.kind()))),
    }
}

fn is_float(value: &Value) -> bool {
    value.is_number() && !value.is_integer()
}

/// `value[start:stop:step]` as in Python, for texts, lists and tuples. Nothing of what is undefined is an empty list.
fn slice(value: &Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let bound = |v: &Value| if v.is_none() { Ok(None) } else { i64::try_from(v.clone()).map(Some) };
    let (start, stop, step) = (bound(start)?, bound(stop)?, bound(step)?.unwrap_or(1));
    if step == 0 {
        return Err(error("cannot slice by step size of 0"));
    }
    budget::skim(value)?;
    if let Some(text) = value.as_str() {
        let places = places(text.chars().count(), start, stop, step);
        if step == 1 {
            let (from, n) = (places.clone().next().unwrap_or(0), places.count());
            return Ok(Value::from(text.chars().skip(from).take(n).collect::<String>()));
        }
        budget::spend(text.len().saturating_mul(size_of::<char>()))?;
        let chars: Vec<char> = text.chars().collect();
        return Ok(Value::from(places.map(|at| chars[at]).collect::<String>()));
    }
    if value.is_undefined() || value.is_none() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
        return Err(error(format!("value of type {} cannot be sliced", value.kind())));
    }
    let items: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
    let part: Vec<Value> = places(items.len(), start, stop, step).map(|at| items[at].clone()).collect();
    Ok(if value.is_tuple() { Value::from(Tuple::from(part)) } else { List::from(part).into() })
}

/// Which of `n` elements a slice takes, in order. `step` is not 0.
fn places(n: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl Iterator<Item = usize> + Clone {
    let n = n as i64;
    let (lowest, highest) = if step > 0 { (0, n) } else { (-1, n - 1) };
    let clamp = |at: i64| if at < 0 { at.saturating_add(n).max(lowest) } else { at.min(highest) };
    let first = start.map_or(if step > 0 { lowest } else { highest }, clamp);
    let end = stop.map_or(if step > 0 { highest } else { lowest }, clamp);
    let next = move |&at: &i64| at.checked_add(step);
    std::iter::successors(Some(first), next)
        .take_while(move |&at| if step > 0 { at < end } else { at > end })
        .map(|at| at as usize)
}

fn free(_: &[Value]) -> Paid {
    Ok(())
}

fn skim_all(args: &[Value]) -> Paid {
    args.iter().try_for_each(budget::skim)
}

/// Elements of a list, characters of a text.
fn n_elements(value: Option<&Value>) -> usize {
    value.and_then(Value::len).unwrap_or(0)
}

/// A list of the elements or characters.
fn elements(args: &[Value]) -> Paid {
    budget::spend(n_elements(args.first()).saturating_mul(ELEMENT))
}

fn pairs(args: &[Value]) -> Paid {
    budget::spend(n_elements(args.first()).saturating_mul(4 * ELEMENT))
}

/// The other arguments are read for each element.
fn per_element(args: &[Value]) -> Paid {
    elements(args)?;
    read_times(args.get(1..).unwrap_or_default(), n_elements(args.first()))
}

/// Pays for reading values once and `times` more.
fn read_times(args: &[Value], times: usize) -> Paid {
    let before = budget::left();
    budget::read_all(args)?;
    budget::spend((before - budget::left()).saturating_mul(times))
}

/// Elements are compared with each other, a few times each.
fn sorting(args: &[Value]) -> Paid {
    per_element(args)?;
    read_times(args, (n_elements(args.first()) + 1).ilog2() as usize)
}

/// As [`per_element`]; only numbers are added up, since sums of texts or lists would be copied at each step.
fn summing(args: &[Value]) -> Paid {
    per_element(args)?;
    let named = args.last().filter(|a| a.is_kwargs()).and_then(|a| Kwargs::try_from(a.clone()).ok());
    let start = match named.and_then(|named| named.peek::<Value>("start").ok()) {
        Some(start) => Some(start),
        None => args.get(2).filter(|a| !a.is_kwargs()).cloned(),
    };
    match start {
        Some(start) if !start.is_number() && !start.is_none() => Err(error("sum adds numbers only")),
        _ => Ok(()),
    }
}

/// Each character may become an entity of six.
fn escaping(args: &[Value]) -> Paid {
    budget::read_all(args)?;
    budget::spend(args.first().map_or(0, budget::size).saturating_mul(6))
}

/// A number as the engine's filters take one, which may be larger than any `i64`.
fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.clone()).ok()
}

/// `batch(n)` and `slice(n)`: lists of up to n places, or n lists.
fn parts(args: &[Value]) -> Paid {
    elements(args)?;
    let n = args.get(1).and_then(count).unwrap_or(0);
    budget::spend(n.saturating_mul(ELEMENT))?;
    budget::store_all(args)
}

fn indenting(args: &[Value]) -> Paid {
    budget::read_all(args)?;
    let named = args.last().filter(|a| a.is_kwargs()).and_then(|a| Kwargs::try_from(a.clone()).ok());
    let width = named.and_then(|named| named.peek::<Value>("width").ok()).or_else(|| args.get(1).cloned());
    let width = width.as_ref().and_then(count).unwrap_or(4);
    let lines = args.first().and_then(Value::as_str).map_or(0, |text| text.matches('\n').count());
    budget::spend(width.saturating_mul(lines + 2))
}

fn joining(args: &[Value]) -> Paid {
    per_element(args)?;
    budget::read_all(args)
}

fn replacing(args: &[Value]) -> Paid {
    budget::read_all(args)?;
    let text = |i: usize| args.get(i).and_then(Value::as_str).unwrap_or_default();
    budget::spend(text(0).matches(text(1)).count().saturating_mul(text(2).len()))
}

fn splitting(args: &[Value]) -> Paid {
    budget::read_all(args)?;
    let text = args.first().and_then(Value::as_str).unwrap_or_default();
    let pieces = match args.get(1).and_then(Value::as_str) {
        Some(separator) => text.matches(separator).count(),
        None => text.split_whitespace().count(),
    };
    budget::spend((pieces + 1).saturating_mul(ELEMENT))
}

/// Each character of the text may be compared with each of the second argument.
fn trimming(args: &[Value]) -> Paid {
    budget::read_all(args)?;
    budget::spend(args.first().map_or(0, budget::size).saturating_mul(args.get(1).map_or(0, budget::size)))
}

/// `%`-style: keys, as in `%(key)s`, must be ASCII for the reason that [`keys_are_ascii`] gives.
fn percent_formatting(args: &[Value]) -> Paid {
    let format = args.first().and_then(Value::as_str).unwrap_or_default().replace("%%", "");
    let mut keys = format.split("%(").skip(1).map(|rest| rest.split(')').next().unwrap_or_default());
    if !keys.all(str::is_ascii) {
        return Err(error("a key of a format is not ASCII"));
    }
    formatting(args)
}

/// Both styles of formatting: each directive may print all arguments, padded to the widths that its digits say. Widths
/// from arguments (`%*d`, `{:{}}`) are refused.
fn formatting(args: &[Value]) -> Paid {
    let mut rest = args.first().and_then(Value::as_str).unwrap_or_default();
    let before = budget::left();
    budget::read_all(args)?;
    let per_directive = before - budget::left();
    while let Some(at) = rest.find(['%', '{']) {
        let directive = &rest[at + 1..];
        if rest.as_bytes()[at] == b'{' && directive.starts_with('{') {
            // A brace of the text.
            rest = &directive[1..];
            continue;
        }
        let end = match rest.as_bytes()[at] {
            b'{' => directive.find('}'),
            _ => directive.find(|c: char| c.is_ascii_alphabetic() || c == '%'),
        };
        let end = end.unwrap_or(directive.len());
        let spec = &directive[..end];
        if spec.contains(['*', '{']) {
            return Err(error("widths that are arguments are not supported"));
        }
        let digits = spec.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let width = digits.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(0, usize::saturating_add);
        budget::spend(per_directive.saturating_add(width))?;
        rest = &directive[end..];
        // The directive's last character; what follows may be the next directive.
        rest = rest.get(1..).unwrap_or_default();
    }
    Ok(())
}
