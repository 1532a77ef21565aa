//! Sends a workload: at its times whatever the server does, or so many requests at once.

use super::client::{Client, Outcome};
use super::workload::Planned;
use bytes::Bytes;
use indicatif::ProgressBar;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What was measured of one request. Times count from the start of the run.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) planned: Planned,
    /// When it was sent.
    pub(super) sent: Duration,
    /// What its times count from: when it was due, or where nothing was due when it was sent.
    pub(super) start: Duration,
    /// When its answer had ended.
    pub(super) end: Duration,
    pub(super) outcome: Outcome,
}

/// How requests follow each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pace {
    /// Each when it is due.
    Open,
    /// So many at once; the next when one has ended.
    Closed { concurrency: usize },
}

/// Sends all requests and returns their records in the order of the plan; and that of `beside`, which is sent when it is due, whatever
/// the pace of the others.
pub(super) async fn drive(
    client: Arc<Client>,
    requests: Vec<(Planned, Bytes)>,
    beside: Option<(Planned, Bytes)>,
    pace: Pace,
    timeout: Duration,
    bar: ProgressBar,
) -> (Vec<Record>, Option<Record>) {
    let began = Instant::now();
    let beside = beside.map(|(planned, body)| {
        let client = client.clone();
        tokio::spawn(async move {
            tokio::time::sleep_until((began + planned.at).into()).await;
            let sent = began.elapsed();
            let outcome = client.complete(body, began + planned.at, timeout).await;
            Record { planned, sent, start: planned.at, end: began.elapsed(), outcome }
        })
    });
    let requests = Arc::new(requests);
    let one = {
        let requests = requests.clone();
        move |i: usize| {
            let (client, bar) = (client.clone(), bar.clone());
            let (planned, body) = requests[i].clone();
            async move {
                let sent = began.elapsed();
                // A user who came when the request was due has waited since then.
                let start = if matches!(pace, Pace::Open) { planned.at } else { sent };
                let outcome = client.complete(body, began + start, timeout).await;
                bar.inc(1);
                (i, Record { planned, sent, start, end: began.elapsed(), outcome })
            }
        }
    };
    let mut tasks = tokio::task::JoinSet::new();
    let mut records: Vec<(usize, Record)> = Vec::new();
    match pace {
        Pace::Open => {
            for (i, (planned, _)) in requests.iter().enumerate() {
                tokio::time::sleep_until((began + planned.at).into()).await;
                tasks.spawn(one(i));
            }
            while let Some(record) = tasks.join_next().await {
                records.push(record.expect("no task panics or is aborted"));
            }
        }
        Pace::Closed { concurrency } => {
            let next = Arc::new(AtomicUsize::new(0));
            let mut workers = tokio::task::JoinSet::new();
            for _ in 0..concurrency.min(requests.len()) {
                let (next, one, n) = (next.clone(), one.clone(), requests.len());
                workers.spawn(async move {
                    let mut records = Vec::new();
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= n {
                            return records;
                        }
                        records.push(one(i).await);
                    }
                });
            }
            while let Some(some) = workers.join_next().await {
                records.extend(some.expect("no task panics or is aborted"));
            }
        }
    }
    records.sort_by_key(|r| r.0);
    let beside = match beside {
        Some(task) => Some(task.await.expect("no task panics or is aborted")),
        None => None,
    };
    (records.into_iter().map(|r| r.1).collect(), beside)
}
