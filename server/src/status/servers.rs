//! The servers, by their records in the metadata store.
//!
//! Must hold: numbers of a restarted server never make a negative rate. A bounded number of servers is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use dl_format::{MemberId, Stamp};
use dl_proto::{FailedRequest, MethodCounters, ServerCounters, ServerRecord, ServerStatus};

use super::history::History;
use super::{SILENT_AFTER, per_second, seconds_between};
use crate::metrics::BOUNDS_MICROS;

/// How long a silent server is shown.
const SHOWN: Duration = Duration::from_secs(60 * 60);

/// The age of the last record of a server that left: less than two announcements.
const LEFT_WITHIN: Duration = Duration::from_secs(8);

/// Most servers shown.
pub(super) const SERVERS_MAX: usize = 256;

const LINES: [&str; 13] = [
    "reads",
    "chunks",
    "writes",
    "others",
    "received",
    "sent",
    "read_p50",
    "read_p99",
    "chunks_p50",
    "chunks_p99",
    "failed_requests",
    "store_errors",
    "meta_errors",
];

/// Methods with lines of their own.
const READ: &str = "Read";
const GET_CHUNKS: &str = "GetChunks";
const PUT_CHUNK: &str = "PutChunk";

/// All servers.
#[derive(Debug)]
pub(super) struct Servers {
    seen: BTreeMap<MemberId, Seen>,
    pub(super) history: History<{ LINES.len() }>,
}

#[derive(Debug)]
struct Seen {
    record: ServerRecord,
    /// The counters of the record before, and the seconds between the two.
    before: Option<(ServerCounters, f64)>,
    /// The first sight of the record, on the monotonic clock of this server.
    at: Duration,
    is_living: bool,
}

impl Seen {
    /// Per second, between the last two records.
    fn rate(&self, of: impl Fn(&ServerCounters) -> u64) -> f64 {
        let (Some((before, seconds)), true) = (&self.before, self.is_living) else { return 0.0 };
        per_second(of(before), self.record.counters.as_ref().map_or(0, of), *seconds)
    }
}

impl Servers {
    pub(super) fn new() -> Self {
        Self { seen: BTreeMap::new(), history: History::new(LINES) }
    }

    /// Takes records. With `is_all`, they are all records that the metadata store has.
    pub(super) fn see(
        &mut self,
        now: Duration,
        records: Vec<(MemberId, ServerRecord)>,
        is_all: bool,
    ) {
        let told: Vec<_> = records.iter().map(|(id, _)| *id).collect();
        for (id, record) in records {
            match self.seen.get_mut(&id) {
                Some(seen) if seen.record.heard == record.heard => {}
                Some(seen) => {
                    let since = now.saturating_sub(seen.at);
                    let seconds = seconds_between(seen.record.heard, record.heard, since);
                    let before = std::mem::replace(&mut seen.record, record);
                    seen.before = before.counters.map(|counters| (counters, seconds));
                    seen.at = now;
                }
                None => {
                    let seen = Seen { record, before: None, at: now, is_living: true };
                    self.seen.insert(id, seen);
                }
            }
        }
        // A server that stops takes itself out of the store while it is fresh; a dead one stays there for long.
        let is_fresh = |seen: &Seen| now.saturating_sub(seen.at) < LEFT_WITHIN;
        self.seen.retain(|id, seen| !is_all || told.contains(id) || !is_fresh(seen));
        self.seen.retain(|_, seen| now.saturating_sub(seen.at) < SHOWN);
        for seen in self.seen.values_mut() {
            seen.is_living = now.saturating_sub(seen.at) < SILENT_AFTER;
        }
        // A new server at the same address follows a dead one.
        let living = self.living().map(|seen| &seen.record);
        let followers: Vec<_> =
            living.map(|record| (record.address.clone(), record.started)).collect();
        self.seen.retain(|_, seen| {
            let follows = |(address, started): &(String, u64)| {
                *address == seen.record.address && *started > seen.record.heard
            };
            seen.is_living || !followers.iter().any(follows)
        });
        while self.seen.len() > SERVERS_MAX {
            let oldest = self.seen.iter().min_by_key(|(_, seen)| (seen.is_living, seen.at));
            let Some(oldest) = oldest.map(|(id, _)| *id) else { break };
            self.seen.remove(&oldest);
        }
    }

    fn living(&self) -> impl Iterator<Item = &Seen> {
        self.seen.values().filter(|seen| seen.is_living)
    }

    /// The records of the living servers.
    pub(super) fn records(&self) -> impl Iterator<Item = &ServerRecord> {
        self.living().map(|seen| &seen.record)
    }

    /// Adds a point to the series.
    pub(super) fn point(&mut self, now: Stamp) {
        let sum = |of: &dyn Fn(&ServerCounters) -> u64| {
            self.living().map(|seen| seen.rate(of)).sum::<f64>() as f32
        };
        let requests = |name: &'static str| {
            sum(&move |of| method(of, name).map_or(0, |method| method.requests))
        };
        let [reads, chunks, writes] = [READ, GET_CHUNKS, PUT_CHUNK].map(requests);
        let read = self.slowness(READ);
        let chunk = self.slowness(GET_CHUNKS);
        let values = [
            reads,
            chunks,
            writes,
            (sum(&|of| of.requests) - reads - chunks - writes).max(0.0),
            sum(&|of| of.received_bytes),
            sum(&|of| of.sent_bytes),
            read[0],
            read[1],
            chunk[0],
            chunk[1],
            sum(&|of| of.failed_requests),
            sum(&|of| of.store_errors),
            sum(&|of| of.meta_errors),
        ];
        self.history.push(now, values);
    }

    /// The times in milliseconds within which half and 99 % of the last requests of a method ended, over all
    /// servers; no number without requests.
    fn slowness(&self, name: &str) -> [f32; 2] {
        let mut counts = [0; BOUNDS_MICROS.len()];
        for seen in self.living() {
            let now = seen.record.counters.as_ref().and_then(|of| method(of, name));
            let (Some(now), Some((before, _))) = (now, &seen.before) else { continue };
            let before = method(before, name);
            let before = before.map_or(&[][..], |before| &before.up_to);
            for (number, count) in counts.iter_mut().enumerate() {
                let of = |up_to: &[u64]| up_to.get(number).copied().unwrap_or_default();
                let more = of(&now.up_to).saturating_sub(of(before));
                *count = u64::saturating_add(*count, more);
            }
        }
        [0.5, 0.99].map(|part| within(&counts, part))
    }

    /// With names, or with ids for a caller without a key.
    pub(super) fn statuses(&self, me: MemberId, has_names: bool) -> Vec<ServerStatus> {
        let statuses = self.seen.iter().map(|(id, seen)| {
            let record = &seen.record;
            let shown = |text: &str| if has_names { text.to_owned() } else { String::new() };
            ServerStatus {
                id: id.to_string(),
                address: if has_names { record.address.clone() } else { id.to_string() },
                http_address: shown(&record.http_address),
                version: shown(&record.version),
                started: record.started,
                heard: record.heard,
                is_living: seen.is_living,
                problem: match (seen.is_living, record.problem.as_str()) {
                    (false, _) => format!("silent for more than {} s", SILENT_AFTER.as_secs()),
                    (true, "") => String::new(),
                    (true, _) if !has_names => "not well".to_owned(),
                    (true, problem) => problem.to_owned(),
                },
                is_me: *id == me,
                counters: record.counters.clone(),
                requests_per_second: seen.rate(|of| of.requests),
                received_per_second: seen.rate(|of| of.received_bytes),
                sent_per_second: seen.rate(|of| of.sent_bytes),
            }
        });
        let mut statuses: Vec<_> = statuses.collect();
        statuses.sort_by(|a, b| a.address.cmp(&b.address));
        statuses
    }

    /// The last failed requests of all servers, the newest first.
    pub(super) fn failures(&self, most: usize) -> Vec<FailedRequest> {
        let mut failures: Vec<_> =
            self.records().flat_map(|record| record.failures.iter().cloned()).collect();
        failures.sort_by_key(|failure| std::cmp::Reverse(failure.at));
        failures.truncate(most);
        failures
    }
}

fn method<'a>(counters: &'a ServerCounters, name: &str) -> Option<&'a MethodCounters> {
    counters.methods.iter().find(|method| method.method == name)
}

/// The time in milliseconds within which a part of all requests ended.
fn within(up_to: &[u64; BOUNDS_MICROS.len()], part: f64) -> f32 {
    let all = up_to.last().copied().unwrap_or_default();
    if all == 0 {
        return f32::NAN;
    }
    let wanted = all as f64 * part;
    let (mut below, mut from) = (0.0, 0.0);
    for (count, bound) in up_to.iter().zip(BOUNDS_MICROS) {
        let (count, bound) = (*count as f64, bound as f64);
        if count >= wanted {
            let share = if count > below { (wanted - below) / (count - below) } else { 1.0 };
            return ((from + (bound - from) * share) / 1e3) as f32;
        }
        (below, from) = (count, bound);
    }
    (from / 1e3) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: &str, second: u64, requests: u64) -> ServerRecord {
        let up_to = (0..BOUNDS_MICROS.len()).map(|bucket| if bucket < 3 { 0 } else { requests });
        let methods =
            vec![MethodCounters { method: READ.to_owned(), requests, up_to: up_to.collect() }];
        ServerRecord {
            address: address.to_owned(),
            heard: second * 1_000_000,
            counters: Some(ServerCounters { requests, methods, ..ServerCounters::default() }),
            ..ServerRecord::default()
        }
    }

    fn id(number: u8) -> MemberId {
        MemberId::from_bytes([number; 16])
    }

    #[test]
    fn rates_sum_over_servers_and_dead_ones_stay_listed() {
        let mut servers = Servers::new();
        let second = Duration::from_secs;
        let both = |at, first, other| {
            vec![(id(1), record("a", at, first)), (id(2), record("b", at, other))]
        };
        servers.see(second(0), both(100, 50, 9), true);
        servers.see(second(5), both(105, 100, 59), true);
        // The same record again changes no rate.
        servers.see(second(6), both(105, 100, 59), true);
        servers.point(Stamp::new(105_000_000));
        let series = servers.history.after(Stamp::default(), 5);
        let line = |name: &str| series.lines.iter().find(|line| line.name == name).unwrap();
        assert_eq!(line("reads").points, [20.0]);
        assert_eq!(line("others").points, [0.0]);
        // All took between 1 and 2.5 ms.
        assert_eq!(line("read_p50").points, [1.75]);
        assert!(line("chunks_p50").points[0].is_nan());
        // An answer that did not come changes nothing; silence does.
        servers.see(second(10), vec![(id(2), record("b", 110, 60))], false);
        assert!(servers.statuses(id(2), true)[0].is_living);
        servers.see(second(18), vec![(id(2), record("b", 118, 60))], true);
        let statuses = servers.statuses(id(2), true);
        assert!(!statuses[0].is_living && statuses[0].problem.contains("silent"));
        assert!(statuses[1].is_me && statuses[1].requests_per_second < 0.1);
        let limited = servers.statuses(id(2), false);
        assert!(limited.iter().all(|server| server.address == server.id));
        // It comes back with a new id and small counts.
        let again = ServerRecord { started: 119_000_000, ..record("a", 120, 1) };
        servers.see(second(20), vec![(id(2), record("b", 120, 61)), (id(3), again)], true);
        let statuses = servers.statuses(id(2), true);
        assert_eq!((statuses.len(), statuses[0].requests_per_second), (2, 0.0));
        // One leaves, the other is never heard again.
        servers.see(second(23), vec![(id(2), record("b", 120, 61))], true);
        assert_eq!(servers.statuses(id(2), true).len(), 1);
        servers.see(second(15) + SHOWN, Vec::new(), true);
        assert_eq!(servers.statuses(id(2), true).len(), 1);
        servers.see(second(30) + SHOWN, Vec::new(), true);
        assert_eq!(servers.statuses(id(2), true).len(), 0);
    }
}
