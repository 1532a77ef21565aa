//! A point in time and Python's `strftime` for it.

use std::fmt::Write;

/// A time of day on a calendar day, in whatever zone the caller means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00 on the caller's clock.
    seconds: i64,
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY: i64 = 86_400;

impl Timestamp {
    /// A date and time of the proleptic Gregorian calendar; `month` and `day` from 1.
    pub fn utc(year: i64, month: u32, day: u32, hour: u32, minute: u32, second: u32) -> Self {
        let days = days_from_civil(year, i64::from(month), i64::from(day));
        Timestamp {
            seconds: days * DAY + i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second),
        }
    }

    /// A Unix time in seconds, as a clock shows it that is `offset_seconds` east of UTC.
    pub fn from_unix(seconds: i64, offset_seconds: i32) -> Self {
        Timestamp { seconds: seconds.saturating_add(i64::from(offset_seconds)) }
    }

    /// Formats as Python's `strftime` in the C locale. Errors: the directive that is not known.
    pub fn strftime(self, format: &str) -> Result<String, String> {
        let days = self.seconds.div_euclid(DAY);
        let of_day = self.seconds.rem_euclid(DAY);
        let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
        let hour12 = (hour + 11) % 12 + 1;
        let (year, month, day) = civil_from_days(days);
        let weekday = (days + 4).rem_euclid(7) as usize;
        let of_year = days - days_from_civil(year, 1, 1) + 1;
        let month_name = MONTHS[month as usize - 1];
        let half = if hour < 12 { "AM" } else { "PM" };

        let mut out = String::new();
        let mut chars = format.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = chars.next();
            // glibc's flag: no padding.
            let plain = directive == Some('-');
            if plain {
                directive = chars.next();
            }
            let mut number = |value: i64, width: usize| {
                let width = if plain { 0 } else { width };
                write!(out, "{value:0width$}")
            };
            let written = match directive {
                Some('Y') => number(year, 4),
                Some('m') => number(month, 2),
                Some('d') => number(day, 2),
                Some('H') => number(hour, 2),
                Some('I') => number(hour12, 2),
                Some('M') => number(minute, 2),
                Some('S') => number(second, 2),
                Some('y') => number(year.rem_euclid(100), 2),
                Some('j') => number(of_year, 3),
                Some('w') => number(weekday as i64, 1),
                Some('u') => number((weekday as i64 + 6) % 7 + 1, 1),
                Some('f') => number(0, 6),
                Some('e') if plain => write!(out, "{day}"),
                Some('e') => write!(out, "{day:2}"),
                Some('B') => write!(out, "{month_name}"),
                Some('b' | 'h') => write!(out, "{}", &month_name[..3]),
                Some('A') => write!(out, "{}", WEEKDAYS[weekday]),
                Some('a') => write!(out, "{}", &WEEKDAYS[weekday][..3]),
                Some('p') => write!(out, "{half}"),
                Some('F') => write!(out, "{year:04}-{month:02}-{day:02}"),
                Some('T' | 'X') => write!(out, "{hour:02}:{minute:02}:{second:02}"),
                Some('R') => write!(out, "{hour:02}:{minute:02}"),
                Some('D' | 'x') => write!(out, "{month:02}/{day:02}/{:02}", year.rem_euclid(100)),
                Some('c') => write!(
                    out,
                    "{} {} {day:2} {hour:02}:{minute:02}:{second:02} {year}",
                    &WEEKDAYS[weekday][..3],
                    &month_name[..3]
                ),
                Some('n') => out.write_char('\n'),
                Some('t') => out.write_char('\t'),
                Some('%') => out.write_char('%'),
                // A time without a zone has nothing to print here.
                Some('Z' | 'z') => Ok(()),
                Some(other) => return Err(format!("strftime_now does not know %{other}")),
                None => return Err("the format of strftime_now ends with %".to_owned()),
            };
            written.map_err(|error| error.to_string())?;
        }
        Ok(out)
    }
}

/// Days since 1970-01-01. Source: Howard Hinnant, "chrono-compatible low-level date algorithms".
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// Year, month and day of a number of days since 1970-01-01. Source: as above.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_print_as_in_python() {
        let time = Timestamp::utc(2026, 1, 5, 15, 4, 9);
        assert_eq!(time.strftime("%Y-%m-%d %H:%M:%S").unwrap(), "2026-01-05 15:04:09");
        assert_eq!(
            time.strftime("%A, %B %-d, %y; %a %b %e; %I %p; %j; 100%%").unwrap(),
            "Monday, January 5, 26; Mon Jan  5; 03 PM; 005; 100%"
        );
        assert_eq!(time.strftime("%c").unwrap(), "Mon Jan  5 15:04:09 2026");
        assert_eq!(time.strftime("%Q").unwrap_err(), "strftime_now does not know %Q");
        assert!(time.strftime("%").is_err());
    }

    #[test]
    fn days_and_dates_convert_both_ways() {
        for days in (-800_000..800_000).step_by(37) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, month, day), days);
        }
        assert_eq!(Timestamp::from_unix(951_782_400, 3600), Timestamp::utc(2000, 2, 29, 1, 0, 0));
    }
}
