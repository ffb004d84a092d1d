//! The servers, by their records in the metadata store.
//!
//! Must hold: numbers of a restarted server never make a negative rate. A bounded number of servers is kept.

use std::collections::BTreeMap;
use std::time::Duration;

use dl_format::{MemberId, Stamp};
use dl_proto::{FailedRequest, MethodCounters, ServerCounters, ServerRecord, ServerStatus};

use super::history::History;
use super::{DEAD_AFTER, per_second, seconds_between};
use crate::metrics::BOUNDS_MICROS;

/// How long a silent server is shown.
const SHOWN: Duration = Duration::from_secs(60 * 60);

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
    /// The record before, with another time.
    before: Option<(u64, ServerCounters)>,
    /// The last sight, on the monotonic clock of this server.
    at: Duration,
    is_living: bool,
}

impl Seen {
    fn counters(&self) -> ServerCounters {
        self.record.counters.clone().unwrap_or_default()
    }

    /// Per second, between the last two records.
    fn rate(&self, of: impl Fn(&ServerCounters) -> u64) -> f64 {
        let Some((heard, before)) = &self.before else { return 0.0 };
        let seconds = seconds_between(*heard, self.record.heard);
        per_second(of(before), self.record.counters.as_ref().map_or(0, of), seconds)
    }
}

impl Servers {
    pub(super) fn new() -> Self {
        Self { seen: BTreeMap::new(), history: History::new(LINES) }
    }

    /// Takes the records of the living servers.
    pub(super) fn see(&mut self, now: Duration, records: Vec<(MemberId, ServerRecord)>) {
        self.seen.values_mut().for_each(|seen| seen.is_living = false);
        for (id, record) in records {
            let before = self.seen.remove(&id).map(|seen| {
                let counters = seen.counters();
                if seen.record.heard < record.heard {
                    Some((seen.record.heard, counters))
                } else {
                    seen.before
                }
            });
            let before = before.flatten();
            self.seen.insert(id, Seen { record, before, at: now, is_living: true });
        }
        self.seen.retain(|_, seen| seen.is_living || now.saturating_sub(seen.at) < SHOWN);
        // A new server at the same address follows an old one.
        let living: Vec<_> = self.living().map(|seen| seen.record.address.clone()).collect();
        self.seen.retain(|_, seen| seen.is_living || !living.contains(&seen.record.address));
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
            let (Some(now), Some((_, before))) = (now, &seen.before) else { continue };
            let before = method(before, name);
            let before = before.map_or(&[][..], |before| &before.up_to);
            for (number, count) in counts.iter_mut().enumerate() {
                let of = |up_to: &[u64]| up_to.get(number).copied().unwrap_or_default();
                *count += of(&now.up_to).saturating_sub(of(before));
            }
        }
        [0.5, 0.99].map(|part| within(&counts, part))
    }

    pub(super) fn statuses(&self, me: MemberId) -> Vec<ServerStatus> {
        let statuses = self.seen.iter().map(|(id, seen)| {
            let record = seen.record.clone();
            ServerStatus {
                id: id.to_string(),
                address: record.address,
                http_address: record.http_address,
                version: record.version,
                started: record.started,
                heard: record.heard,
                is_living: seen.is_living,
                problem: match seen.is_living {
                    true => record.problem,
                    false => format!("silent for more than {} s", DEAD_AFTER.as_secs()),
                },
                is_me: *id == me,
                counters: record.counters,
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
    fn rates_are_sums_over_servers_and_a_dead_server_stays_in_sight() {
        let mut servers = Servers::new();
        let second = Duration::from_secs;
        servers.see(second(0), vec![(id(1), record("a", 100, 50)), (id(2), record("b", 100, 9))]);
        servers.see(second(5), vec![(id(1), record("a", 105, 100)), (id(2), record("b", 105, 59))]);
        // The same record again changes no rate.
        servers.see(second(6), vec![(id(1), record("a", 105, 100)), (id(2), record("b", 105, 59))]);
        servers.point(Stamp::new(105_000_000));
        let series = servers.history.after(Stamp::default(), 5);
        let line = |name: &str| series.lines.iter().find(|line| line.name == name).unwrap();
        assert_eq!(line("reads").points, [20.0]);
        assert_eq!(line("others").points, [0.0]);
        // All took between 1 and 2.5 ms.
        assert_eq!(line("read_p50").points, [1.75]);
        assert!(line("chunks_p50").points[0].is_nan());
        servers.see(second(20), vec![(id(2), record("b", 120, 60))]);
        let statuses = servers.statuses(id(2));
        assert!(!statuses[0].is_living && statuses[0].problem.contains("silent"));
        assert!(statuses[1].is_me && statuses[1].requests_per_second < 0.1);
        // It comes back with a new id and small counts.
        servers.see(second(25), vec![(id(2), record("b", 125, 61)), (id(3), record("a", 125, 1))]);
        let statuses = servers.statuses(id(2));
        assert_eq!((statuses.len(), statuses[0].requests_per_second), (2, 0.0));
        servers.see(second(20) + SHOWN, Vec::new());
        assert_eq!(servers.statuses(id(2)).len(), 2);
        servers.see(second(30) + 2 * SHOWN, Vec::new());
        assert_eq!(servers.statuses(id(2)).len(), 0);
    }
}
