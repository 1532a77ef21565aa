//! Leap seconds in `format: time` and `format: date-time`.
//!
//! The compiler of schemas takes second 60 at any minute. RFC 3339 (section 5.7) has leap seconds only at 23:59:60 UTC, which is
//! another local time for each offset: 15:59:60-08:00, 05:29:60+05:30. So the minutes of a day and the offsets that fit them are
//! listed in a pattern, which the compiler applies beside the format.

use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::sync::LazyLock;

const MINUTES_PER_DAY: u32 = 24 * 60;
/// The last minute of a day in UTC.
const LAST_MINUTE: u32 = MINUTES_PER_DAY - 1;

/// What follows the date, if there is one: a second below 60, or a leap second. The format sees to all else.
static TIME: LazyLock<String> = LazyLock::new(|| {
    let clock = |minute: u32| format!("{:02}:{:02}", minute / 60, minute % 60);
    let mut pattern = String::from("(?:.{6}[0-5].*");
    for local in 0..MINUTES_PER_DAY {
        let ahead = clock((local + MINUTES_PER_DAY - LAST_MINUTE) % MINUTES_PER_DAY);
        let behind = clock(LAST_MINUTE - local);
        let utc = if local == LAST_MINUTE { "[zZ]|" } else { "" };
        write!(pattern, r"|{}:60[.0-9]*(?:{utc}\+{ahead}|-{behind})", clock(local))
            .expect("a string takes text");
    }
    pattern + ")"
});

/// Adds to a schema with one of the two formats that its leap seconds are at the end of a day in UTC.
pub(super) fn restrict(keywords: &mut Map<String, Value>) {
    let date = match keywords.get("format").and_then(Value::as_str) {
        Some("time") => "",
        Some("date-time") => ".{11}",
        _ => return,
    };
    let pattern = format!("^{date}{}$", *TIME);
    let has_pattern = keywords.contains_key("pattern");
    match keywords.get_mut("allOf") {
        None if !has_pattern => {
            keywords.insert("pattern".to_owned(), Value::String(pattern));
        }
        None => {
            keywords.insert("allOf".to_owned(), json!([{ "pattern": pattern }]));
        }
        Some(Value::Array(all)) => all.push(json!({ "pattern": pattern })),
        // Not a list: compiling says so.
        Some(_) => {}
    }
}
