//! The report as a page: one file, its plots drawn in it, light or dark as the reader's system is.

use super::compare;
use super::drive::Record;
use super::report::{Report, ms};
use super::stats::quantile;
use std::fmt::Write;
use std::time::Duration;

/// A plot in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 280.0;
const LEFT: f64 = 58.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 44.0;

/// Points of a plot at most; of more, some are left out.
const MAX_POINTS: usize = 3000;

const STYLE: &str = "
:root { color-scheme: light dark; --ground: light-dark(#fbfbf9, #141716); --text: light-dark(#1d2120, #e6e9e7);
  --muted: light-dark(#5c6360, #9da5a1); --line: light-dark(#e1e3dc, #2d3331); --bad: light-dark(#ab2a1c, #f4a396);
  --a: light-dark(#0f766e, #6cc7ba); --b: light-dark(#b45309, #f0a860); --c: light-dark(#4f46b8, #a9a4f5); }
body { margin: 0 auto; max-width: 800px; padding: 32px 20px 48px; background: var(--ground); color: var(--text);
  font: 15px/1.55 system-ui, sans-serif; }
h1 { font-size: 24px; line-height: 1.25; margin: 0 0 6px; letter-spacing: -.01em; overflow-wrap: anywhere; }
h2 { font-size: 16px; margin: 36px 0 8px; } p { margin: 0 0 10px; } .muted { color: var(--muted); }
.bad { color: var(--bad); overflow-wrap: anywhere; white-space: pre-wrap; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }
th { font-weight: 500; color: var(--muted); } td, th { text-align: right; padding: 4px 0 4px 22px; border-bottom: 1px solid var(--line); }
td:first-child, th:first-child { text-align: left; padding-left: 0; white-space: nowrap; }
svg { display: block; width: 100%; min-width: 560px; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--muted); } .grid { stroke: var(--line); } .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.curve.a { stroke: var(--a); } .curve.b { stroke: var(--b); } .curve.c { stroke: var(--c); }
.dot { opacity: .65; } .dot.a, .key.a { fill: var(--a); } .dot.b, .key.b { fill: var(--b); } .key.c { fill: var(--c); }
svg .legend { fill: var(--text); }
";

/// The whole page.
pub(super) fn page(report: &Report, records: &[Record], before: Option<&Report>) -> String {
    let title = format!("{} under load", escape(&report.model));
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <h1>{title}</h1>\n<p class=\"muted\">{}, {}.</p>\n<p class=\"muted\">{}.</p>\n",
        escape(&report.url),
        escape(&report.workload.description),
        escape(&report.run.in_words())
    );
    let mut add = |text: &str| out += text;
    add(
        "<h2>Throughput</h2>\n<div class=\"wide\"><table><tr><th></th><th>total</th><th>per second</th></tr>\n",
    );
    for (name, total, per_s) in report.totals() {
        add(&format!("<tr><td>{name}</td><td>{total}</td><td>{per_s:.2}</td></tr>\n"));
    }
    add(&format!("</table></div>\n<p class=\"muted\">Over {:.2} seconds.</p>\n", report.duration_s));
    add(
        "<h2>Latency in milliseconds</h2>\n<div class=\"wide\"><table><tr><th></th><th>mean</th><th>p50</th><th>p90</th><th>p95</th>\
         <th>p99</th><th>max</th></tr>\n",
    );
    for (name, summary) in report.latencies() {
        add(&format!("<tr><td>{name}</td>"));
        let values = summary.map(|s| [s.mean, s.p50, s.p90, s.p95, s.p99, s.max]);
        (0..6).for_each(|i| add(&values.map_or("<td>–</td>".into(), |v| format!("<td>{:.2}</td>", v[i]))));
        add("</tr>\n");
    }
    add(&format!("</table></div>\n<h2>Goodput</h2>\n<p>{}.</p>\n", escape(&report.goodput_in_words())));
    let remarks = report.remarks();
    if !remarks.is_empty() {
        add(&format!("<p class=\"bad\">{}</p>\n", escape(&remarks.join("\n"))));
    }
    if let Some(before) = before {
        add(&comparison(before, report));
    }
    for (title, plot) in [
        ("Latency by the time of arrival", latency_over_time(report)),
        ("Share of measurements below a latency", distributions(report, records)),
        ("Requests in flight", in_flight(records)),
        ("Output tokens per second", token_rate(records)),
    ] {
        add(&format!("<h2>{title}</h2>\n<div class=\"wide\">{}</div>\n", plot.svg(title)));
    }
    out + "</html>\n"
}

fn comparison(before: &Report, now: &Report) -> String {
    let mut out = format!(
        "<h2>Compared with an earlier run</h2>\n<p class=\"muted\">Before: {} at {}, {}.</p>\n<div class=\"wide\"><table>\
         <tr><th></th><th>before</th><th>now</th><th>ratio</th></tr>\n",
        escape(&before.model),
        escape(&before.url),
        escape(&before.run.in_words())
    );
    for row in compare::rows(before, now) {
        out += &format!(
            "<tr><td>{}</td><td>{:.2}</td><td>{:.2}</td><td>{}</td></tr>\n",
            row.name,
            row.before,
            row.now,
            row.ratio()
        );
    }
    out += "</table></div>\n";
    let differences = compare::differences(before, now);
    if !differences.is_empty() {
        out += &format!("<p class=\"bad\">{}</p>\n", escape(&differences.join("\n")));
    }
    out
}

fn latency_over_time(report: &Report) -> Plot {
    let answered = || report.each.iter().filter(|e| e.error.is_none());
    let series = |f: fn(&super::report::Each) -> Option<f64>| -> Vec<(f64, f64)> {
        let points: Vec<_> = answered().filter_map(|e| Some((e.start_ms / 1e3, f(e)?))).collect();
        let every = points.len().div_ceil(MAX_POINTS).max(1);
        points.into_iter().step_by(every).collect()
    };
    Plot {
        x: Axis::linear("arrival, s"),
        y: Axis::log("ms"),
        series: vec![
            Series { name: "first token", points: series(|e| e.first_token_ms), mark: Mark::Dots },
            Series { name: "end to end", points: series(|e| Some(e.end_to_end_ms)), mark: Mark::Dots },
        ],
    }
}

fn distributions(report: &Report, records: &[Record]) -> Plot {
    let answered = || report.each.iter().filter(|e| e.error.is_none());
    let gaps = records.iter().filter(|r| r.outcome.error.is_none()).flat_map(|r| &r.outcome.gaps);
    let cumulative = |mut values: Vec<f64>| -> Vec<(f64, f64)> {
        values.sort_by(f64::total_cmp);
        let n = values.len().min(200);
        let share = |i: usize| i as f64 / (n.max(2) - 1) as f64;
        (0..n).filter_map(|i| Some((quantile(&values, share(i))?, share(i) * 100.0))).collect()
    };
    Plot {
        x: Axis::log("ms"),
        y: Axis::linear("%"),
        series: vec![
            Series {
                name: "first token",
                points: cumulative(answered().filter_map(|e| e.first_token_ms).collect()),
                mark: Mark::Line,
            },
            Series {
                name: "end to end",
                points: cumulative(answered().map(|e| e.end_to_end_ms).collect()),
                mark: Mark::Line,
            },
            Series {
                name: "inter-token",
                points: cumulative(gaps.map(|&g| ms(g)).collect()),
                mark: Mark::Line,
            },
        ],
    }
}

fn in_flight(records: &[Record]) -> Plot {
    let begun = records.iter().map(|r| (r.start, 1));
    let mut changes: Vec<(Duration, i64)> = begun.chain(records.iter().map(|r| (r.end, -1))).collect();
    changes.sort();
    let mut level = 0;
    let mut points = vec![(0.0, 0.0)];
    for (at, change) in changes {
        points.push((at.as_secs_f64(), level as f64));
        level += change;
        points.push((at.as_secs_f64(), level as f64));
    }
    // Of a long run, as many steps as there are pixels to show them.
    let every = (points.len() / 2).div_ceil(MAX_POINTS).max(1);
    let points = points.chunks(2).step_by(every).flatten().copied().collect();
    Plot {
        x: Axis::linear("time, s"),
        y: Axis::linear(""),
        series: vec![Series { name: "requests", points, mark: Mark::Line }],
    }
}

fn token_rate(records: &[Record]) -> Plot {
    let end = records.iter().map(|r| r.end).max().unwrap_or_default().as_secs_f64();
    let n_bins = ((end.ceil() as usize).clamp(20, 240)).max(1);
    let width = end.max(1e-9) / n_bins as f64;
    let mut bins = vec![0u64; n_bins];
    for record in records {
        let Some(first) = record.outcome.first_token else { continue };
        let mut at = record.start + first;
        let mut count = |at: Duration| bins[((at.as_secs_f64() / width) as usize).min(n_bins - 1)] += 1;
        count(at);
        for &gap in &record.outcome.gaps {
            at += gap;
            count(at);
        }
    }
    let points =
        bins.iter().enumerate().map(|(i, &n)| ((i as f64 + 0.5) * width, n as f64 / width)).collect();
    Plot {
        x: Axis::linear("time, s"),
        y: Axis::linear("tok/s"),
        series: vec![Series { name: "output tokens", points, mark: Mark::Line }],
    }
}

struct Plot {
    x: Axis,
    y: Axis,
    series: Vec<Series>,
}

struct Series {
    name: &'static str,
    points: Vec<(f64, f64)>,
    mark: Mark,
}

#[derive(Clone, Copy, PartialEq)]
enum Mark {
    Dots,
    Line,
}

/// A scale: linear from 0, or logarithmic between the data's ends.
struct Axis {
    unit: &'static str,
    is_log: bool,
}

/// An axis whose ends are known.
struct Range {
    from: f64,
    to: f64,
    is_log: bool,
}

impl Axis {
    fn linear(unit: &'static str) -> Self {
        Self { unit, is_log: false }
    }

    fn log(unit: &'static str) -> Self {
        Self { unit, is_log: true }
    }

    fn range(&self, values: impl Iterator<Item = f64>) -> Range {
        // What takes no time at all has no logarithm: shorter times stand at the edge.
        let floor = if self.is_log { 0.1 } else { 0.0 };
        let (low, high) = values.fold((f64::INFINITY, floor), |(l, h), v| (l.min(v.max(floor)), h.max(v)));
        if !self.is_log {
            return Range { from: 0.0, to: if high > 0.0 { high } else { 1.0 }, is_log: false };
        }
        let low = if low.is_finite() { low } else { floor };
        let from = 10f64.powf((low.log10() * 4.0).floor() / 4.0);
        let to = 10f64.powf((high.log10() * 4.0).ceil() / 4.0);
        Range { from, to: to.max(from * 10.0), is_log: true }
    }
}

impl Range {
    /// Where a value lies, 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = if self.is_log {
            (value.max(self.from) / self.from).log10() / (self.to / self.from).log10()
        } else {
            (value - self.from) / (self.to - self.from)
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        let mut ticks = Vec::new();
        if self.is_log {
            let decades = (self.to / self.from).log10();
            let steps: &[f64] = if decades > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
            for exponent in -4..=12 {
                ticks.extend(steps.iter().map(|s| s * 10f64.powi(exponent)));
            }
            ticks.retain(|&t| t >= self.from * 0.999 && t <= self.to * 1.001);
            return ticks;
        }
        let rough = self.to / 5.0;
        let unit = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|s| s * unit).find(|&s| s >= rough).unwrap_or(rough);
        let n = (self.to / step).floor() as usize;
        (0..=n).map(|i| i as f64 * step).collect()
    }
}

impl Plot {
    fn svg(&self, title: &str) -> String {
        let points = || self.series.iter().flat_map(|s| &s.points);
        if points().next().is_none() {
            return "<p class=\"muted\">Nothing was measured.</p>".to_owned();
        }
        let (x, y) = (self.x.range(points().map(|p| p.0)), self.y.range(points().map(|p| p.1)));
        let across = |value: f64| LEFT + x.place(value) * (WIDTH - LEFT - RIGHT);
        let down = |value: f64| HEIGHT - BOTTOM - y.place(value) * (HEIGHT - TOP - BOTTOM);
        let bottom = HEIGHT - BOTTOM;
        let mut out =
            format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n", escape(title));
        // Writing to a string cannot fail.
        let mut add = |text: std::fmt::Arguments<'_>| {
            let _ = out.write_fmt(text);
        };
        for tick in y.ticks() {
            let at = down(tick);
            add(format_args!(
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 4.0,
                number(tick)
            ));
        }
        for tick in x.ticks() {
            let at = across(tick);
            add(format_args!(
                "<path class=\"grid\" d=\"M{at:.1} {bottom:.1}v5\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                bottom + 18.0,
                number(tick)
            ));
        }
        let (x_name, y_name) = (self.x.unit, self.y.unit);
        add(format_args!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{x_name}</text><text x=\"{:.1}\" y=\"12\" text-anchor=\"end\">{y_name}</text>\n",
            WIDTH - RIGHT,
            HEIGHT - 6.0,
            LEFT - 8.0
        ));
        for (series, class) in self.series.iter().zip(["a", "b", "c"]) {
            match series.mark {
                Mark::Dots => series.points.iter().for_each(|&(px, py)| {
                    add(format_args!(
                        "<circle class=\"dot {class}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.6\"/>",
                        across(px),
                        down(py)
                    ));
                }),
                Mark::Line => {
                    add(format_args!("<path class=\"curve {class}\" d=\""));
                    for (i, &(px, py)) in series.points.iter().enumerate() {
                        let letter = if i == 0 { 'M' } else { 'L' };
                        add(format_args!("{letter}{:.1} {:.1}", across(px), down(py)));
                    }
                    add(format_args!("\"/>"));
                }
            }
            add(format_args!("\n"));
        }
        if self.series.len() > 1 {
            let mut at = LEFT + 4.0;
            for (series, class) in self.series.iter().zip(["a", "b", "c"]) {
                add(format_args!(
                    "<rect class=\"key {class}\" x=\"{at:.1}\" y=\"{:.1}\" width=\"10\" height=\"10\" rx=\"2\"/>\
                     <text class=\"legend\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
                    HEIGHT - 15.0,
                    at + 15.0,
                    HEIGHT - 6.0,
                    series.name
                ));
                at += 34.0 + 7.0 * series.name.len() as f64;
            }
        }
        out + "</svg>"
    }
}

/// A tick's value, as short as it can be.
fn number(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{}M", (v / 1e4).round() / 100.0),
        v if v >= 1e4 => format!("{}k", (v / 10.0).round() / 100.0),
        v => format!("{}", (v * 1e4).round() / 1e4),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        let range = |to| Axis::linear("").range([0.0, to].into_iter());
        assert_eq!(range(62.0).ticks(), [0.0, 20.0, 40.0, 60.0]);
        assert_eq!(range(1.0).ticks(), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        let log = Axis::log("").range([3.0, 700.0].into_iter());
        assert!(log.from <= 3.0 && log.to >= 700.0);
        assert_eq!(log.ticks(), [2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!((log.place(log.from), log.place(log.to), log.place(0.0)), (0.0, 1.0, 0.0));
    }

    #[test]
    fn a_plot_of_nothing_or_of_one_point_is_finite() {
        let plot = |points| Plot {
            x: Axis::log("ms"),
            y: Axis::linear("%"),
            series: vec![Series { name: "x", points, mark: Mark::Line }],
        };
        assert!(plot(vec![]).svg("none").contains("Nothing was measured"));
        for points in [vec![(0.0, 0.0)], vec![(5.0, 3.0)]] {
            let svg = plot(points).svg("a < b");
            assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.contains("a &lt; b"), "{svg}");
        }
    }
}
