//! What one rendering may take: a budget of bytes that everything which makes or reads values draws from.
//!
//! The engine's fuel bounds the number of instructions, but a single instruction can copy a text of any length, print a
//! list that contains itself a million times over, or nest values deeper than the stack is when they are dropped. So
//! each such instruction passes through a filter, a function or a method of `builtins`, which pays here for what it
//! reads and makes. Each rendering has a thread of its own, so the budget is the thread's.

use super::lists::{self, List};
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use std::cell::Cell;

/// How deep values may nest. Dropping and printing them takes a stack frame per level.
const MAX_DEPTH: usize = 150;
/// Bytes that an element of a list or an entry of a map counts for when it is made or read.
pub(super) const ELEMENT: usize = 32;

/// Bytes that looking at a value in another one counts for.
const VISIT: usize = 4;
/// Bytes that reading a list or map counts for, beside what is in it: it takes as long as copying that many.
const READ_OBJECT: usize = 256;

thread_local! {
    static LEFT: Cell<usize> = const { Cell::new(0) };
    static TOTAL: Cell<usize> = const { Cell::new(0) };
}

/// Gives the rendering on this thread `bytes`.
pub(super) fn start(bytes: usize) {
    LEFT.set(bytes);
    TOTAL.set(bytes);
}

/// What is left, in bytes.
pub(super) fn left() -> usize {
    LEFT.get()
}

/// Takes `bytes` from the budget.
pub(super) fn spend(bytes: usize) -> Result<(), Error> {
    match LEFT.get().checked_sub(bytes) {
        Some(left) => {
            LEFT.set(left);
            Ok(())
        }
        None => Err(error(format!("it reads and makes more than {} bytes of text and lists", TOTAL.get()))),
    }
}

pub(super) fn error(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Pays for reading a value with everything in it, as printing, comparing and hashing do.
///
/// Errors: the budget is spent; the value nests too deep.
pub(super) fn read(value: &Value) -> Result<(), Error> {
    walk(value, 0, false)
}

/// Pays for reading all arguments of a call, named ones included.
pub(super) fn read_all(args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(read)
}

/// Checks that a value may become part of another: it is plain data, so that nothing can contain itself, and does not
/// nest too deep.
///
/// Errors: it is, or contains, a namespace, a loop, a macro or a function; the budget is spent.
pub(super) fn store(value: &Value) -> Result<(), Error> {
    walk(value, 0, true)
}

/// As [`store`], for each argument of a call, named ones included.
pub(super) fn store_all(args: &[Value]) -> Result<(), Error> {
    for arg in args {
        match Kwargs::try_from(arg.clone()) {
            Ok(named) if arg.is_kwargs() => {
                for name in named.args() {
                    store(&named.peek::<Value>(name)?)?;
                }
            }
            _ => store(arg)?,
        }
    }
    Ok(())
}

/// Pays for a text's length or a list's elements, without what is in them.
pub(super) fn skim(value: &Value) -> Result<(), Error> {
    spend(size(value))
}

/// Bytes of a text, or of a list's elements without what is in them.
pub(super) fn size(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(ELEMENT),
    }
}

fn walk(value: &Value, depth: usize, data: bool) -> Result<(), Error> {
    let object = value.as_object();
    spend(match (data, object.is_some()) {
        // Whoever stores a value copies a reference, not the text.
        (true, true) => 4 * VISIT,
        (true, false) => VISIT,
        (false, false) => ELEMENT + value.as_str().map_or(0, str::len),
        // An iterator is made, and what it yields is cloned.
        (false, true) => READ_OBJECT,
    })?;
    let Some(object) = object else { return Ok(()) };
    // The engine's own objects are namespaces, loops, macros and functions. Lists and maps are types of other crates;
    // an iterable is a `range`, since `builtins` makes lists of all others.
    let plain = value.is_tuple()
        || value.kind() == ValueKind::Iterable
        || !object.type_name().starts_with("minijinja::");
    if data && !plain {
        return Err(error("only texts, numbers, lists and dicts can be kept in lists, dicts and namespaces"));
    }
    if data && depth > 0 && value.downcast_object_ref::<List>().is_some() {
        return Err(error("a list that can change cannot be kept in another value"));
    }
    if depth >= MAX_DEPTH {
        return Err(error(format!("values nest deeper than {MAX_DEPTH} levels")));
    }
    match value.kind() {
        ValueKind::Map => {
            for key in value.try_iter()? {
                walk(&key, depth + 1, data)?;
                walk(&value.get_item(&key)?, depth + 1, data)?;
            }
        }
        ValueKind::Seq | ValueKind::Iterable => {
            for item in value.try_iter()? {
                walk(&item, depth + 1, data)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Pays for what a filter, function or method made, and makes a list of an iterable: iterables that refer to iterables
/// would nest without a bound.
pub(super) fn made(value: Value) -> Result<Value, Error> {
    if value.kind() != ValueKind::Iterable {
        skim(&value)?;
        return Ok(value);
    }
    let mut items = Vec::new();
    for item in value.try_iter()?.checked() {
        spend(ELEMENT)?;
        items.push(lists::frozen(item?)?);
    }
    Ok(List::from(items).into())
}
