//! Traces of requests as the Azure LLM inference dataset has them: CSV with an arrival time and two lengths per line.

use anyhow::{Context, Result, bail, ensure};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::time::Duration;

/// One request of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TraceRow {
    /// Since the first arrival.
    pub(super) at: Duration,
    /// Of the prompt.
    pub(super) prompt_tokens: usize,
    /// Of the answer.
    pub(super) output_tokens: usize,
}

/// Reads the first `n` requests of a trace, in the order of their arrival.
///
/// Errors: the file cannot be read; a line is not as it should be, with its number.
pub(super) fn read(path: &Path, n: usize) -> Result<Vec<TraceRow>> {
    let file = std::fs::File::open(path).with_context(|| format!("could not read {}", path.display()))?;
    parse(file, n).with_context(|| format!("{} is not a trace", path.display()))
}

fn parse(input: impl Read, n: usize) -> Result<Vec<TraceRow>> {
    let mut lines = BufReader::new(input).lines();
    let header = lines.next().context("it is empty")?.context("line 1")?;
    let columns = Columns::find(header.trim_start_matches('\u{feff}'))?;
    let mut rows = Vec::new();
    for (i, line) in lines.enumerate() {
        if rows.len() == n {
            break;
        }
        let number = i + 2;
        let line = line.with_context(|| format!("line {number}"))?;
        if !line.trim().is_empty() {
            rows.push(columns.row(&line).with_context(|| format!("line {number}"))?);
        }
    }
    let first = rows.iter().map(|r| r.0).min().context("it has no requests")?;
    rows.sort_by_key(|r| r.0);
    let row = |(at, prompt_tokens, output_tokens): (i128, usize, usize)| {
        let at = Duration::from_nanos(u64::try_from(at - first).context("it is longer than five centuries")?);
        Ok(TraceRow { at, prompt_tokens, output_tokens })
    };
    rows.into_iter().map(row).collect()
}

/// Where in a line things stand.
struct Columns {
    time: usize,
    prompt: usize,
    output: usize,
}

const NAMES: [&str; 3] = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"];

impl Columns {
    fn find(header: &str) -> Result<Self> {
        let names: Vec<&str> = header.split(',').map(str::trim).collect();
        let find = |name: &str| {
            let place = names.iter().position(|n| n.eq_ignore_ascii_case(name));
            place.with_context(|| format!("line 1: there is no column {name}; expected {}", NAMES.join(",")))
        };
        Ok(Self { time: find(NAMES[0])?, prompt: find(NAMES[1])?, output: find(NAMES[2])? })
    }

    fn row(&self, line: &str) -> Result<(i128, usize, usize)> {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let field = |i: usize, name: &str| {
            fields.get(i).copied().with_context(|| format!("{name} is missing from {line:?}"))
        };
        let count = |i: usize, name: &str| {
            let text = field(i, name)?;
            text.parse().ok().with_context(|| format!("{name} is {text:?}, which is not a number of tokens"))
        };
        let time = field(self.time, NAMES[0])?;
        let nanoseconds = nanoseconds(time).with_context(|| {
            format!("TIMESTAMP is {time:?}; expected such as 2023-11-16 18:15:46.6805900")
        })?;
        let (prompt, output): (usize, usize) = (count(self.prompt, NAMES[1])?, count(self.output, NAMES[2])?);
        ensure!(prompt.checked_add(output).is_some(), "the request is too long");
        Ok((nanoseconds, prompt, output))
    }
}

/// `YYYY-MM-DD HH:MM:SS[.fraction][Z|+00:00]` as nanoseconds since 1970.
fn nanoseconds(text: &str) -> Result<i128> {
    ensure!(text.is_ascii() && text.len() >= 19, "too short");
    let (date_and_time, rest) = text.split_at(19);
    let b = date_and_time.as_bytes();
    let separators = [b[4], b[7], b[10], b[13], b[16]];
    ensure!(matches!(separators, [b'-', b'-', b' ' | b'T', b':', b':']), "the separators are wrong");
    let digits = |from: usize, to: usize| {
        let part = &date_and_time[from..to];
        ensure!(part.bytes().all(|b| b.is_ascii_digit()), "{part:?} is not a number");
        Ok(part.parse::<i64>()?)
    };
    let (year, month, day) = (digits(0, 4)?, digits(5, 7)?, digits(8, 10)?);
    let (hour, minute, second) = (digits(11, 13)?, digits(14, 16)?, digits(17, 19)?);
    let is_date = (1..=12).contains(&month) && (1..=days_in(year, month)).contains(&day);
    ensure!(is_date && hour < 24 && minute < 60 && second <= 60, "there is no such time");
    let rest = rest.strip_suffix('Z').or(rest.strip_suffix("+00:00")).unwrap_or(rest);
    let mut nanoseconds = 0i128;
    if let Some(fraction) = rest.strip_prefix('.') {
        ensure!(!fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit()), "a wrong fraction");
        let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
        nanoseconds = nine.parse()?;
    } else if !rest.is_empty() {
        bail!("{rest:?} follows");
    }
    let seconds = ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Ok(i128::from(seconds) * 1_000_000_000 + nanoseconds)
}

fn days_in(year: i64, month: i64) -> i64 {
    let next = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    days_since_1970(next.0, next.1, 1) - days_since_1970(year, month, 1)
}

/// Of the Gregorian calendar.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March, so that a leap day is a year's last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n";

    fn fails(text: &str) -> String {
        format!("{:#}", parse(text.as_bytes(), 9).expect_err(text))
    }

    #[test]
    fn arrivals_are_relative_and_in_order() {
        let text = format!(
            "\u{feff}{HEADER}2023-12-31 23:59:59.5000000,10,20\r\n\n2024-01-01 00:00:01.25,30,40\n2024-01-01T00:00:00Z,5,0\n"
        );
        let rows = parse(text.as_bytes(), 9).expect("a trace");
        let row = |ms, prompt_tokens, output_tokens| TraceRow {
            at: Duration::from_millis(ms),
            prompt_tokens,
            output_tokens,
        };
        assert_eq!(rows, [row(0, 10, 20), row(500, 5, 0), row(1750, 30, 40)]);
        assert_eq!(parse(text.as_bytes(), 1).expect("a trace"), rows[..1]);
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = "GeneratedTokens,Model,TIMESTAMP,ContextTokens\n4,x,2024-05-10 00:00:00.009930+00:00,3\n";
        let rows = parse(text.as_bytes(), 9).expect("a trace");
        assert_eq!((rows[0].prompt_tokens, rows[0].output_tokens), (3, 4));
    }

    #[test]
    fn the_calendar_has_leap_years() {
        let at = |text: &str| nanoseconds(text).expect(text) / 1_000_000_000;
        assert_eq!(at("1970-01-01 00:00:00"), 0);
        // date -u -d … +%s
        assert_eq!(at("2023-11-16 18:15:46"), 1_700_158_546);
        assert_eq!(at("2024-03-01 00:00:00") - at("2024-02-28 00:00:00"), 2 * 86_400);
        assert_eq!(at("2100-03-01 00:00:00") - at("2100-02-28 00:00:00"), 86_400);
        assert!(nanoseconds("2023-02-29 00:00:00").is_err());
    }

    #[test]
    fn a_bad_row_is_named_by_its_line() {
        assert!(fails("").contains("it is empty"));
        assert!(fails(HEADER).contains("it has no requests"));
        assert!(fails("TIMESTAMP,ContextTokens\n").contains("line 1: there is no column GeneratedTokens"));
        let good = "2023-11-16 18:15:46.6805900,1,2\n";
        for (line, parts) in [
            ("2023-11-16 18:15:46,1,x", ["GeneratedTokens is \"x\"", "number of tokens"]),
            ("2023-11-16 18:15:46,-1,2", ["ContextTokens is \"-1\"", "number of tokens"]),
            ("2023-11-16 18:15:46,1", ["GeneratedTokens is missing", "line 3"]),
            ("2023-13-16 18:15:46,1,2", ["TIMESTAMP is \"2023-13-16 18:15:46\"", "no such time"]),
            ("2023-11-16 25:15:46,1,2", ["TIMESTAMP", "no such time"]),
            ("16.11.2023 18:15:46,1,2", ["TIMESTAMP", "separators"]),
            ("2023-11-16 18:15:46.6x,1,2", ["TIMESTAMP", "fraction"]),
            ("2023-11-16 18:15:46+02:00,1,2", ["TIMESTAMP", "follows"]),
            ("ü,1,2", ["TIMESTAMP", "2023-11-16"]),
            ("2023-11-16 18:15:46,18446744073709551615,1", ["too long", "line 3"]),
        ] {
            let error = fails(&format!("{HEADER}{good}{line}\n{good}"));
            assert!(error.contains("line 3"), "{error}");
            parts.iter().for_each(|part| assert!(error.contains(part), "{part:?} in {error:?}"));
        }
    }
}
