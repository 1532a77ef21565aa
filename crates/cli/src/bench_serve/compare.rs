//! Two runs side by side.

use super::report::Report;

/// One figure of both runs.
pub(super) struct Row {
    pub(super) name: String,
    pub(super) before: f64,
    pub(super) now: f64,
}

impl Row {
    /// How many times the figure before it is now, as text; a dash where there was nothing before.
    pub(super) fn ratio(&self) -> String {
        if self.before > 0.0 { format!("{:.3}", self.now / self.before) } else { "–".to_owned() }
    }
}

/// The figures that both runs have.
pub(super) fn rows(before: &Report, now: &Report) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |name: String, before: f64, now: f64| rows.push(Row { name, before, now });
    for ((name, _, old), (.., new)) in before.totals().into_iter().zip(now.totals()) {
        add(format!("{name}/s"), old, new);
    }
    add("goodput, requests/s".into(), before.goodput.requests_per_s, now.goodput.requests_per_s);
    for ((name, old), (_, new)) in before.latencies().into_iter().zip(now.latencies()) {
        let (Some(old), Some(new)) = (old, new) else { continue };
        add(format!("{name} p50, ms"), old.p50, new.p50);
        add(format!("{name} p99, ms"), old.p99, new.p99);
    }
    rows
}

/// What makes the comparison less than fair.
pub(super) fn differences(before: &Report, now: &Report) -> Vec<String> {
    let mut out = Vec::new();
    let (old, new) = (&before.workload, &now.workload);
    if old.description != new.description || old.seed != new.seed {
        out.push(format!("the earlier run had other requests: {}, seed {}", old.description, old.seed));
    }
    let (old, new) = (before.goodput.objective, now.goodput.objective);
    if old != new {
        out.push("the earlier run had another objective, so goodput does not compare".to_owned());
    }
    if before.run.machine != now.run.machine {
        out.push(format!("the earlier run was sent from another machine: {}", before.run.machine));
    }
    out
}

/// The comparison as text.
pub(super) fn table(before: &Report, now: &Report) -> String {
    let mut out = format!("\nbefore: {} at {}, {}\n", before.model, before.url, before.run.in_words());
    out += &format!("{:<26} {:>12} {:>12} {:>8}\n", "", "before", "now", "ratio");
    for row in rows(before, now) {
        out += &format!("{:<26} {:>12.2} {:>12.2} {:>8}\n", row.name, row.before, row.now, row.ratio());
    }
    differences(before, now).iter().for_each(|line| out += &format!("{line}\n"));
    out
}
