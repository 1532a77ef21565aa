//! Lists that a template can change, as Python's: `append`, `extend`, `insert`, `pop`, `reverse` and `clear`.
//!
//! The engine's own lists cannot change. So each list that a template writes down becomes a [`List`], which variables and namespaces share.
//! Within another list or a dict stands a copy that cannot change. A [`List`] therefore contains no other: nothing can contain itself, and
//! what nests within bounds when it is made stays within them.

use super::budget::{self, ELEMENT, error};
use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that moving an element within a list counts for.
const MOVE: usize = 1;

/// A list that can change.
#[derive(Debug, Default)]
pub(super) struct List(Mutex<VecDeque<Value>>);

impl From<Vec<Value>> for List {
    /// Of elements that are no lists that can change.
    fn from(items: Vec<Value>) -> Self {
        Self(Mutex::new(items.into()))
    }
}

impl From<List> for Value {
    fn from(list: List) -> Self {
        Value::from_object(list)
    }
}

impl List {
    fn items(&self) -> MutexGuard<'_, VecDeque<Value>> {
        // A rendering has one thread, and nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a method that changes the list. `None` if it is none of these.
    ///
    /// Errors: wrong arguments; an index that is not there; the budget is spent.
    pub(super) fn call(&self, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
        let done = match (method, args) {
            ("append", [value]) => element(value).map(|value| self.items().push_back(value)),
            ("extend", [more]) => elements(more).map(|more| self.items().extend(more)),
            ("insert", [at, value]) => self.insert(at, value),
            ("pop", [] | [_]) => return Some(self.pop(args.first())),
            ("clear", []) => {
                self.items().clear();
                Ok(())
            }
            ("reverse", []) => {
                let mut items = self.items();
                let paid = budget::spend(items.len() * MOVE);
                paid.map(|()| items.make_contiguous().reverse())
            }
            ("append" | "extend" | "insert" | "pop" | "clear" | "reverse", _) => {
                Err(error(format!("a list's {method}() does not take {} arguments", args.len())))
            }
            _ => return None,
        };
        Some(done.map(|()| Value::from(())))
    }

    fn insert(&self, at: &Value, value: &Value) -> Result<(), Error> {
        let at = at.as_i64().ok_or_else(|| error("insert() takes an index and a value"))?;
        let value = element(value)?;
        let mut items = self.items();
        budget::spend(items.len() * MOVE)?;
        // As in Python, indices beyond the ends are the ends.
        let n = items.len() as i64;
        let at = if at < 0 { at.saturating_add(n).max(0) } else { at.min(n) };
        items.insert(at as usize, value);
        Ok(())
    }

    fn pop(&self, at: Option<&Value>) -> Result<Value, Error> {
        let at = match at {
            Some(at) => at.as_i64().ok_or_else(|| error("pop() takes an index"))?,
            None => -1,
        };
        let mut items = self.items();
        let n = items.len() as i64;
        let index = usize::try_from(if at < 0 { at.saturating_add(n) } else { at }).ok();
        // Elements at either end leave without moving others.
        if (1..n - 1).contains(&at) {
            budget::spend(items.len() * MOVE)?;
        }
        let found = index.and_then(|index| items.remove(index));
        found.ok_or_else(|| error(format!("pop({at}) of a list of {n} elements")))
    }
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items().get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items().len())
    }
}

/// A list that can change with the elements of one that cannot, which may become parts of another value.
pub(super) fn list(value: &Value) -> Result<Value, Error> {
    Ok(List::from(elements(value)?).into())
}

/// The value as it may stand in another one: a copy of a list that can change.
pub(super) fn frozen(value: Value) -> Result<Value, Error> {
    match value.downcast_object_ref::<List>() {
        Some(list) => {
            let items = list.items();
            budget::spend(items.len() * ELEMENT)?;
            Ok(Value::from(items.iter().cloned().collect::<Vec<_>>()))
        }
        None => Ok(value),
    }
}

/// A value as it may become an element, paid for.
fn element(value: &Value) -> Result<Value, Error> {
    budget::spend(ELEMENT)?;
    let value = frozen(value.clone())?;
    budget::store(&value)?;
    Ok(value)
}

fn elements(value: &Value) -> Result<Vec<Value>, Error> {
    budget::skim(value)?;
    value.try_iter()?.checked().map(|item| element(&item?)).collect()
}
