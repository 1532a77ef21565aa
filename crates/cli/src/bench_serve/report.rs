//! What a run says: throughput, latencies, errors, and how much of it met the objective.

use super::drive::Record;
use super::run_info::RunInfo;
use super::stats::Summary;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A request meets it by its first token and by its mean time between tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Objective {
    pub(super) first_token_ms: f64,
    pub(super) inter_token_ms: f64,
}

/// The run as a whole. Latencies are of the requests that were answered.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Report {
    pub(super) run: RunInfo,
    pub(super) url: String,
    pub(super) model: String,
    pub(super) workload: Workload,
    pub(super) requests: Counts,
    /// From the start to the end of the last answer.
    pub(super) duration_s: f64,
    pub(super) throughput: Throughput,
    pub(super) latency_ms: Latencies,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) long_prompt: Option<LongPrompt>,
    pub(super) goodput: Goodput,
    /// How late the latest request was sent: what the client itself added.
    pub(super) client_lag_ms: f64,
    pub(super) errors: Vec<ErrorCount>,
    pub(super) each: Vec<Each>,
}

/// What was sent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Workload {
    /// In words.
    pub(super) description: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) length_scale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) time_scale: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) concurrency: Option<usize>,
    pub(super) seed: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counts {
    pub(super) sent: usize,
    pub(super) answered: usize,
    pub(super) failed: usize,
    /// Answered with fewer tokens than were asked for.
    pub(super) short: usize,
}

/// Totals of the requests that were answered, and the same per second.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Throughput {
    pub(super) prompt_tokens: usize,
    pub(super) cached_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) requests_per_s: f64,
    pub(super) prompt_tokens_per_s: f64,
    pub(super) output_tokens_per_s: f64,
}

/// In milliseconds; `None` where nothing was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Latencies {
    /// From the start to the first token.
    pub(super) first_token: Option<Summary>,
    /// From each token to the next, of all answers together.
    pub(super) inter_token: Option<Summary>,
    /// The mean time between tokens of each answer.
    pub(super) per_output_token: Option<Summary>,
    /// From the start to the end.
    pub(super) end_to_end: Option<Summary>,
}

/// A long prompt that came while others were answered, and how long these waited for their tokens.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct LongPrompt {
    pub(super) prompt_tokens: usize,
    /// From its arrival to its first token.
    pub(super) first_token_ms: Option<f64>,
    /// Of the others, from each token to the next: those that overlap that time.
    pub(super) inter_token_meanwhile_ms: Option<Summary>,
    /// The others' before it came.
    pub(super) inter_token_before_ms: Option<Summary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

impl LongPrompt {
    pub(super) fn new(long: &Record, others: &[Record]) -> Self {
        let begin = long.sent;
        let end = long.start + long.outcome.first_token.unwrap_or_default();
        let (mut meanwhile, mut before) = (Vec::new(), Vec::new());
        for record in others {
            let Some(first) = record.outcome.first_token else { continue };
            let mut at = record.start + first;
            for &gap in &record.outcome.gaps {
                let from = at;
                at += gap;
                if at <= begin {
                    before.push(ms(gap));
                } else if from < end {
                    meanwhile.push(ms(gap));
                }
            }
        }
        Self {
            prompt_tokens: long.planned.prompt_tokens,
            first_token_ms: long.outcome.first_token.map(ms),
            inter_token_meanwhile_ms: Summary::of(meanwhile),
            inter_token_before_ms: Summary::of(before),
            error: long.outcome.error.clone(),
        }
    }
}

/// What met the objective.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Goodput {
    pub(super) objective: Objective,
    pub(super) requests: usize,
    /// Of all that were sent, 0 to 1.
    pub(super) share: f64,
    pub(super) requests_per_s: f64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ErrorCount {
    pub(super) count: usize,
    pub(super) message: String,
}

/// One request. Times in milliseconds.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Each {
    /// Since the start of the run.
    pub(super) start_ms: f64,
    pub(super) prompt_tokens: usize,
    pub(super) output_tokens: usize,
    pub(super) first_token_ms: Option<f64>,
    pub(super) per_output_token_ms: Option<f64>,
    pub(super) end_to_end_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<String>,
}

pub(super) fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Different errors that are named; the rest is counted together.
const MAX_ERRORS: usize = 10;

impl Report {
    pub(super) fn new(
        run: RunInfo,
        url: String,
        model: String,
        workload: Workload,
        objective: Objective,
        records: &[Record],
    ) -> Self {
        let each: Vec<Each> = records.iter().map(Each::new).collect();
        let good = each.iter().filter(|e| e.meets(objective)).count();
        let answered = || records.iter().filter(|r| r.outcome.error.is_none());
        let duration_s = records.iter().map(|r| r.end).max().unwrap_or_default().as_secs_f64();
        // A run without any duration has nothing in it.
        let per_s = |n: usize| if duration_s > 0.0 { n as f64 / duration_s } else { 0.0 };
        let sum = |f: fn(&Record) -> usize| answered().map(f).sum::<usize>();
        let (prompt_tokens, output_tokens) =
            (sum(|r| r.outcome.prompt_tokens), sum(|r| r.outcome.output_tokens));
        let n_answered = answered().count();
        let of_answered = |f: fn(&Each) -> Option<f64>| {
            Summary::of(each.iter().filter(|e| e.error.is_none()).filter_map(f).collect())
        };
        let gaps = answered().flat_map(|r| &r.outcome.gaps).map(|&gap| ms(gap));
        Self {
            run,
            url,
            model,
            workload,
            requests: Counts {
                sent: records.len(),
                answered: n_answered,
                failed: records.len() - n_answered,
                short: answered().filter(|r| r.outcome.output_tokens < r.planned.output_tokens).count(),
            },
            duration_s,
            throughput: Throughput {
                prompt_tokens,
                cached_tokens: sum(|r| r.outcome.cached_tokens),
                output_tokens,
                requests_per_s: per_s(n_answered),
                prompt_tokens_per_s: per_s(prompt_tokens),
                output_tokens_per_s: per_s(output_tokens),
            },
            latency_ms: Latencies {
                first_token: of_answered(|e| e.first_token_ms),
                inter_token: Summary::of(gaps.collect()),
                per_output_token: of_answered(|e| e.per_output_token_ms),
                end_to_end: of_answered(|e| Some(e.end_to_end_ms)),
            },
            long_prompt: None,
            goodput: Goodput {
                objective,
                requests: good,
                share: good as f64 / records.len().max(1) as f64,
                requests_per_s: per_s(good),
            },
            client_lag_ms: records.iter().map(|r| ms(r.sent.saturating_sub(r.start))).fold(0.0, f64::max),
            errors: count_errors(records),
            each,
        }
    }

    /// The latencies by name.
    pub(super) fn latencies(&self) -> [(&'static str, Option<Summary>); 4] {
        let l = &self.latency_ms;
        [
            ("first token", l.first_token),
            ("inter-token", l.inter_token),
            ("per output token", l.per_output_token),
            ("end to end", l.end_to_end),
        ]
    }

    /// The totals by name, and the same per second.
    pub(super) fn totals(&self) -> [(&'static str, usize, f64); 3] {
        let t = &self.throughput;
        [
            ("requests", self.requests.answered, t.requests_per_s),
            ("prompt tokens", t.prompt_tokens, t.prompt_tokens_per_s),
            ("output tokens", t.output_tokens, t.output_tokens_per_s),
        ]
    }

    /// What met the objective, in words.
    pub(super) fn goodput_in_words(&self) -> String {
        let Goodput { objective, requests, share, requests_per_s } = &self.goodput;
        format!(
            "{requests_per_s:.2} requests/s: {requests} of {} ({:.1} %) had their first token within {} ms and \
             on average at most {} ms between tokens",
            self.requests.sent,
            share * 100.0,
            objective.first_token_ms,
            objective.inter_token_ms
        )
    }

    /// What went otherwise than planned, one line each.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut out = Vec::new();
        let Counts { answered, failed, short, .. } = self.requests;
        if failed > 0 {
            out.push(format!("{failed} requests failed:"));
            out.extend(self.errors.iter().map(|e| format!("  {} × {}", e.count, e.message)));
        }
        if short > 0 {
            out.push(format!("{short} of {answered} answers have fewer tokens than were asked for"));
        }
        if self.client_lag_ms > 50.0 {
            out.push(format!(
                "the client sent a request {:.0} ms late: it is too busy, and latencies are overstated",
                self.client_lag_ms
            ));
        }
        out
    }

    /// The report as text.
    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{} at {}\n{}\n{}\n\n{:<18} {:>10} {:>12}\n",
            self.model,
            self.url,
            self.run.in_words(),
            self.workload.description,
            "",
            "total",
            "per second"
        );
        for (name, total, per_s) in self.totals() {
            out += &format!("{name:<18} {total:>10} {per_s:>12.2}\n");
        }
        out += &format!("{:<18} {:>10.2}\n\n", "seconds", self.duration_s);
        out += &format!("{:<18}", "latency, ms");
        for name in ["mean", "p50", "p90", "p95", "p99", "max"] {
            out += &format!(" {name:>9}");
        }
        out.push('\n');
        let row = |name: &str, summary: Option<Summary>| {
            let values =
                |s: Summary| [s.mean, s.p50, s.p90, s.p95, s.p99, s.max].map(|v| format!(" {v:>9.2}"));
            let values = summary.map_or(" nothing was measured".to_owned(), |s| values(s).concat());
            format!("{name:<18}{values}\n")
        };
        self.latencies().into_iter().for_each(|(name, summary)| out += &row(name, summary));
        if let Some(long) = &self.long_prompt {
            out += &match (&long.error, long.first_token_ms) {
                (Some(error), _) => format!("\na prompt of {} tokens failed: {error}\n", long.prompt_tokens),
                (None, first) => format!(
                    "\na prompt of {} tokens had its first token after {:.2} ms; time between tokens of the others\n",
                    long.prompt_tokens,
                    first.unwrap_or_default()
                ),
            };
            out += &row("before", long.inter_token_before_ms);
            out += &row("meanwhile", long.inter_token_meanwhile_ms);
        }
        out += &format!("\ngoodput {}\n", self.goodput_in_words());
        self.remarks().iter().for_each(|line| out += &format!("{line}\n"));
        out
    }
}

impl Each {
    fn new(record: &Record) -> Self {
        let outcome = &record.outcome;
        let end_to_end = record.end - record.start;
        // One event may carry several tokens, so the time is shared by the tokens and not by the events.
        let last = outcome.first_token.map(|first| first + outcome.gaps.iter().sum::<Duration>());
        let per_output_token_ms = match (outcome.first_token, last) {
            (Some(first), Some(last)) if outcome.output_tokens > 1 => {
                Some(ms(last - first) / (outcome.output_tokens - 1) as f64)
            }
            _ => None,
        };
        Self {
            start_ms: ms(record.start),
            prompt_tokens: outcome.prompt_tokens,
            output_tokens: outcome.output_tokens,
            first_token_ms: outcome.first_token.map(ms),
            per_output_token_ms,
            end_to_end_ms: ms(end_to_end),
            error: outcome.error.clone(),
        }
    }

    /// An answer of one token has nothing between tokens.
    fn meets(&self, objective: Objective) -> bool {
        self.error.is_none()
            && self.first_token_ms.is_some_and(|t| t <= objective.first_token_ms)
            && self.per_output_token_ms.is_none_or(|t| t <= objective.inter_token_ms)
    }
}

/// Errors by frequency.
fn count_errors(records: &[Record]) -> Vec<ErrorCount> {
    let mut counts: Vec<ErrorCount> = Vec::new();
    for message in records.iter().filter_map(|r| r.outcome.error.as_ref()) {
        let n = counts.len();
        match counts.iter_mut().find(|e| e.message == *message || (n > MAX_ERRORS && e.message == "others")) {
            Some(known) => known.count += 1,
            None if n == MAX_ERRORS => counts.push(ErrorCount { count: 1, message: "others".into() }),
            None => counts.push(ErrorCount { count: 1, message: message.clone() }),
        }
    }
    counts.sort_by_key(|e| std::cmp::Reverse(e.count));
    counts
}

#[cfg(test)]
mod tests {
    use super::super::client::Outcome;
    use super::super::workload::Planned;
    use super::*;

    fn record(first_ms: u64, gaps_ms: &[u64], error: Option<&str>) -> Record {
        let of_ms = Duration::from_millis;
        let n = gaps_ms.len() + 1;
        Record {
            planned: Planned { at: of_ms(100), prompt_tokens: 5, output_tokens: n },
            sent: of_ms(101),
            start: of_ms(100),
            end: of_ms(100 + first_ms + gaps_ms.iter().sum::<u64>()),
            outcome: Outcome {
                first_token: Some(of_ms(first_ms)),
                gaps: gaps_ms.iter().map(|&g| of_ms(g)).collect(),
                prompt_tokens: 5,
                cached_tokens: 0,
                output_tokens: n,
                error: error.map(str::to_owned),
            },
        }
    }

    fn report(records: &[Record]) -> Report {
        let workload = Workload {
            description: "three requests".into(),
            length_scale: None,
            time_scale: None,
            concurrency: None,
            seed: 1,
        };
        let objective = Objective { first_token_ms: 50.0, inter_token_ms: 10.0 };
        Report::new(RunInfo::now(None), "http://host".into(), "m".into(), workload, objective, records)
    }

    #[test]
    fn only_what_meets_both_limits_is_good() {
        let records = [
            record(50, &[10, 10], None),
            record(51, &[1], None),
            record(1, &[9, 12], None),
            record(1, &[], None),
            record(1, &[1], Some("gone")),
        ];
        let report = report(&records);
        assert_eq!((report.goodput.requests, report.goodput.share), (2, 0.4));
        assert_eq!((report.requests.answered, report.requests.failed), (4, 1));
        assert_eq!(report.throughput.output_tokens, 3 + 2 + 3 + 1);
        let latency = &report.latency_ms;
        assert_eq!(latency.inter_token.expect("gaps").n, 5);
        assert_eq!(latency.per_output_token.expect("gaps").max, 10.5);
        assert_eq!(latency.end_to_end.expect("ends").max, 70.0);
        assert!((report.duration_s - 0.17).abs() < 1e-9 && (report.client_lag_ms - 1.0).abs() < 1e-9);
        let table = report.table();
        assert!(table.contains("2 of 5 (40.0 %)") && table.contains("1 × gone"), "{table}");
    }

    #[test]
    fn waiting_for_a_long_prompt_is_told_from_waiting_before_it() {
        let of_ms = Duration::from_millis;
        // Tokens at 110, 120, 130, 150, 190 and 200 ms.
        let others = [record(10, &[10, 10, 20, 40, 10], None)];
        let mut long = record(45, &[], None);
        (long.start, long.sent, long.planned.prompt_tokens) = (of_ms(130), of_ms(130), 9000);
        let found = LongPrompt::new(&long, &others);
        assert_eq!((found.prompt_tokens, found.first_token_ms), (9000, Some(45.0)));
        let before = found.inter_token_before_ms.expect("gaps before");
        assert_eq!((before.n, before.max), (2, 10.0));
        // Until its first token at 175 ms; the gap that began before counts.
        let meanwhile = found.inter_token_meanwhile_ms.expect("gaps meanwhile");
        assert_eq!((meanwhile.n, meanwhile.max), (2, 40.0));
        let mut report = report(&others);
        report.long_prompt = Some(found);
        assert!(report.table().contains("a prompt of 9000 tokens had its first token after 45.00 ms"));
    }

    #[test]
    fn nothing_measured_is_said_and_not_zero() {
        let report = report(&[Record {
            outcome: Outcome { error: Some("gone".into()), ..Outcome::default() },
            ..record(1, &[], None)
        }]);
        assert!(report.latency_ms.first_token.is_none());
        assert!(report.table().contains("nothing was measured"));
        assert!(serde_json::to_value(&report).expect("JSON")["latency_ms"]["first_token"].is_null());
    }

    #[test]
    fn errors_are_counted_by_their_words() {
        let mut records: Vec<Record> =
            (0..30).map(|i| record(1, &[], Some(&format!("error {}", i % 15)))).collect();
        records.push(record(1, &[], Some("error 3")));
        let errors = count_errors(&records);
        assert_eq!(errors.len(), MAX_ERRORS + 1);
        assert_eq!(errors[0], ErrorCount { count: 10, message: "others".into() });
        assert_eq!(errors[1], ErrorCount { count: 3, message: "error 3".into() });
    }
}
