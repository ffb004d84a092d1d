//! Counters of the server for Prometheus; docs/METRICS.md describes each metric.
//!
//! Must hold: counting takes no lock and no growing memory. Labels are words of the program, never names of
//! datasets or users, nor addresses; only training jobs, of bounded number and behind a lock, are named. No
//! crate, as its registry would be shared by all servers of a process.

mod failures;
mod histogram;
mod meta;
mod rebuild;
mod requests;
mod snapshot;
mod store;
mod tasks;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dl_proto::{FailedRequest, ServerCounters};
use dl_runtime::Clock;
use dl_store::TierStore;

pub(crate) use self::histogram::BOUNDS_MICROS;
use self::histogram::Operation;
use self::meta::{MetaMetrics, MeteredMeta};
pub(crate) use self::rebuild::RebuildMetrics;
use self::requests::{CODES, Measured, Requests};
pub(crate) use self::snapshot::SnapshotMetrics;
use self::store::{MeteredStore, StoreMetrics};
pub(crate) use self::tasks::TaskMetrics;
pub(crate) use self::text::CONTENT_TYPE;
use self::text::{Kind, Text};
use crate::auth::People;
use crate::net::connections::ConnectionLimiter;
use crate::net::tls::Certificate;
use crate::read::executor::Executor;
use crate::settings::Live;
use crate::shared::context::{Budget, ServerContext};
use crate::shared::disk_reserve::Disk;
use crate::source::Followed;

/// All counters of a server.
#[derive(Debug)]
pub(crate) struct Metrics {
    requests: Arc<Requests>,
    refused_keys: AtomicU64,
    store: Arc<StoreMetrics>,
    meta: Arc<MetaMetrics>,
    snapshots: Arc<SnapshotMetrics>,
    tasks: Arc<TaskMetrics>,
    rebuild: Arc<RebuildMetrics>,
}

/// Sources of gauges in the service.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    pub(crate) executor: Executor,
    pub(crate) writes: Budget,
    pub(crate) reads: Budget,
}

/// The losses of the metadata store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    None,
    /// Some writes: the servers rebuild the metadata.
    Last,
    /// Anything: all datasets need a recovery.
    All,
}

/// Values that are asked for a page of metrics.
#[derive(Debug)]
pub(crate) struct Readings {
    pub(crate) loss: Loss,
    /// Datasets refused until their recovery.
    pub(crate) recovering: u64,
    /// Bytes of memory in use.
    pub(crate) resident: u64,
    pub(crate) disks: Vec<Disk>,
    /// The time since 1970.
    pub(crate) seconds: i64,
}

/// Parts that are read only for a page of metrics.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) gauges: Gauges,
    pub(crate) connections: ConnectionLimiter,
    pub(crate) fast_store: Option<Arc<TierStore>>,
    pub(crate) sources: Sources,
}

/// Sources that an admin may change while the server runs.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) settings: Option<Arc<Followed<Live>>>,
    pub(crate) users: Option<Arc<Followed<People>>>,
    pub(crate) certificate: Option<Arc<Certificate>>,
}

impl Metrics {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            tasks: Arc::new(TaskMetrics::new(Arc::clone(&clock))),
            requests: Arc::new(Requests::new(clock)),
            refused_keys: AtomicU64::new(0),
            store: Arc::default(),
            meta: Arc::default(),
            snapshots: Arc::default(),
            rebuild: Arc::default(),
        }
    }

    /// Counters of snapshots.
    pub(crate) fn snapshots(&self) -> Arc<SnapshotMetrics> {
        Arc::clone(&self.snapshots)
    }

    /// Counters of training jobs.
    pub(crate) fn tasks(&self) -> Arc<TaskMetrics> {
        Arc::clone(&self.tasks)
    }

    /// Progress of the rebuild of this server.
    pub(crate) fn rebuild(&self) -> Arc<RebuildMetrics> {
        Arc::clone(&self.rebuild)
    }

    /// The same parts, with measured stores.
    pub(crate) fn measure(&self, context: ServerContext) -> ServerContext {
        let (clock, store) = (Arc::clone(&context.clock), Arc::clone(&self.store));
        let store =
            MeteredStore { inner: context.store, metrics: store, clock: Arc::clone(&clock) };
        let meta = MeteredMeta { inner: context.meta, metrics: Arc::clone(&self.meta), clock };
        ServerContext { store: Arc::new(store), meta: Arc::new(meta), ..context }
    }

    /// Begins to measure a request; none for methods outside the service.
    pub(crate) fn begin(&self, method: Option<&str>) -> Measured {
        self.requests.begin(method)
    }

    /// Counts a refused user or key.
    pub(crate) fn refused_key(&self) {
        self.refused_keys.fetch_add(1, Ordering::Relaxed);
    }

    /// The last requests that failed for a reason in this server.
    pub(crate) fn failures(&self) -> Vec<FailedRequest> {
        self.requests.failures.all()
    }

    /// The counts for other servers.
    pub(crate) fn counters(
        &self,
        gauges: &Gauges,
        connections: &ConnectionLimiter,
        resident: Option<u64>,
    ) -> ServerCounters {
        let (requests, failed_requests) = self.requests.ended();
        let errors = |operations: &[(&str, &Operation)]| {
            operations.iter().map(|(_, operation)| read(&operation.failed)).sum()
        };
        let (read_memory, read_memory_used) = gauges.reads.total_and_used();
        let (write_memory, write_memory_used) = gauges.writes.total_and_used();
        let traffic = connections.traffic();
        ServerCounters {
            requests,
            failed_requests,
            requests_in_flight: self.requests.in_flight(),
            received_bytes: read(&traffic.received_bytes),
            sent_bytes: read(&traffic.sent_bytes),
            store_read_bytes: read(&self.store.read_bytes),
            store_created_bytes: read(&self.store.created_bytes),
            store_errors: errors(&self.store.operations()),
            meta_errors: errors(&self.meta.operations()),
            read_memory,
            read_memory_used,
            write_memory,
            write_memory_used,
            resident_bytes: resident.unwrap_or_default(),
            methods: self.requests.counters(),
        }
    }

    /// All metrics in the text format of Prometheus.
    pub(crate) fn text(&self, watched: &Watched, readings: &Readings) -> String {
        let Readings { loss, recovering, resident, disks, seconds } = readings;
        let mut text = Text::default();
        let name = "diesel_build_info";
        text.metric(name, Kind::Gauge, "Always 1; the version of dlserver is its label.");
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        let help = "Memory of the process that is in use.";
        text.metric("process_resident_memory_bytes", Kind::Gauge, help);
        text.sample(&[], resident);
        self.write_requests(&mut text);
        write_connections(&mut text, &watched.connections);
        let help = "Requests that were refused for their user or key.";
        text.metric("diesel_refused_keys_total", Kind::Counter, help);
        text.sample(&[], read(&self.refused_keys));
        write_operations(&mut text, self.store.operations(), STORE);
        let help = "Bytes of objects created in the chunk store, and of ranges read from it.";
        text.metric("diesel_store_bytes_total", Kind::Counter, help);
        text.sample(&[("operation", "create")], read(&self.store.created_bytes));
        text.sample(&[("operation", "read")], read(&self.store.read_bytes));
        write_operations(&mut text, self.meta.operations(), META);
        write_operations(&mut text, self.snapshots.operations(), SNAPSHOTS);
        let help = "Bytes of snapshots that were stored in the chunk store.";
        text.metric("diesel_snapshot_bytes_total", Kind::Counter, help);
        text.sample(&[], read(&self.snapshots.stored_bytes));
        let help = "What the metadata store has lost and not got back, by extent.";
        text.metric("diesel_meta_losses", Kind::Gauge, help);
        text.sample(&[("extent", "last")], u8::from(*loss == Loss::Last));
        text.sample(&[("extent", "all")], u8::from(*loss == Loss::All));
        let help = "Datasets that are refused until they are recovered.";
        text.metric("diesel_recovering_datasets", Kind::Gauge, help);
        text.sample(&[], recovering);
        self.rebuild.write(&mut text);
        self.tasks.write(&mut text);
        self.snapshots.write_leases(&mut text);
        write_disks(&mut text, disks);
        write_gauges(&mut text, &watched.gauges);
        write_fast_store(&mut text, watched.fast_store.as_deref());
        write_sources(&mut text, &watched.sources);
        write_certificates(&mut text, watched.sources.certificate.as_deref(), *seconds);
        text.finish()
    }

    fn write_requests(&self, text: &mut Text) {
        let help = "Requests that ended, by method and gRPC code.";
        text.metric("diesel_requests_total", Kind::Counter, help);
        for (name, method) in self.requests.methods() {
            for (code, count) in CODES.iter().zip(&method.ended) {
                // Codes other than OK appear with their first request, as most never happen.
                if read(count) > 0 || *code == "OK" {
                    text.sample(&[("method", name), ("code", code)], read(count));
                }
            }
        }
        let help = "Time from the head of a request to the end of its answer.";
        text.metric("diesel_request_seconds", Kind::Histogram, help);
        for (name, method) in self.requests.methods() {
            text.histogram(("method", name), &method.took);
        }
        let help = "Requests that have not ended.";
        text.metric("diesel_requests_in_flight", Kind::Gauge, help);
        text.sample(&[], self.requests.in_flight());
    }
}

fn write_connections(text: &mut Text, connections: &ConnectionLimiter) {
    let (newcomers, known) = connections.open();
    let traffic = connections.traffic();
    let help = "Open gRPC connections, by whether they have asked anything.";
    text.metric("diesel_connections", Kind::Gauge, help);
    text.sample(&[("state", "new")], newcomers);
    text.sample(&[("state", "known")], known);
    let help =
        "Connections closed because they asked or took nothing, for too long or while others came.";
    text.metric("diesel_connections_closed_total", Kind::Counter, help);
    text.sample(&[], read(&traffic.closed));
    let help = "Bytes received on gRPC connections, TLS included.";
    text.metric("diesel_received_bytes_total", Kind::Counter, help);
    text.sample(&[], read(&traffic.received_bytes));
    let help = "Bytes sent on gRPC connections, TLS included.";
    text.metric("diesel_sent_bytes_total", Kind::Counter, help);
    text.sample(&[], read(&traffic.sent_bytes));
    let help = "Bytes that came on gRPC connections and that no request has taken.";
    text.metric("diesel_unread_bytes", Kind::Gauge, help);
    text.sample(&[], connections.inflight_bytes());
}

/// Names and helps of the times of operations and of their failures.
type Names = [(&'static str, &'static str); 2];

const STORE: Names = [
    ("diesel_store_operation_seconds", "Time of each call of the chunk store."),
    ("diesel_store_errors_total", "Calls and ranges that the chunk store failed."),
];

const META: Names = [
    ("diesel_meta_operation_seconds", "Time of each call of the metadata store."),
    ("diesel_meta_errors_total", "Calls that the metadata store failed."),
];

const SNAPSHOTS: Names = [
    ("diesel_snapshot_operation_seconds", "Time to build each snapshot, and to store it."),
    ("diesel_snapshot_errors_total", "Snapshots that could not be built or stored."),
];

fn write_operations<const N: usize>(
    text: &mut Text,
    operations: [(&'static str, &Operation); N],
    [(times, times_help), (errors, errors_help)]: Names,
) {
    text.metric(times, Kind::Histogram, times_help);
    for (name, operation) in operations {
        text.histogram(("operation", name), &operation.took);
    }
    text.metric(errors, Kind::Counter, errors_help);
    for (name, operation) in operations {
        text.sample(&[("operation", name)], read(&operation.failed));
    }
}

fn write_gauges(text: &mut Text, gauges: &Gauges) {
    let counts = gauges.executor.counts();
    let help = "Ranges of chunks that requests wanted.";
    text.metric("diesel_read_ranges_total", Kind::Counter, help);
    text.sample(&[], read(&counts.wanted));
    let help = "Reads of the chunk store that these were merged into.";
    text.metric("diesel_read_merged_total", Kind::Counter, help);
    text.sample(&[], read(&counts.merged));
    let help = "Times that a request waited for a chunk another one was reading, to share it.";
    text.metric("diesel_read_waits_total", Kind::Counter, help);
    text.sample(&[], read(&counts.waits));
    let budgets = [("read", &gauges.reads), ("write", &gauges.writes)];
    let help = "Most memory for files being read, and for chunks being received.";
    text.metric("diesel_memory_budget_bytes", Kind::Gauge, help);
    for (name, budget) in budgets {
        text.sample(&[("budget", name)], budget.total_and_used().0);
    }
    let help = "What of that is in use.";
    text.metric("diesel_memory_used_bytes", Kind::Gauge, help);
    for (name, budget) in budgets {
        text.sample(&[("budget", name)], budget.total_and_used().1);
    }
}

fn write_fast_store(text: &mut Text, store: Option<&TierStore>) {
    let counts = store.map(TierStore::counts).unwrap_or_default();
    let counters = [
        ("diesel_fast_store_hits_total", "Ranges read from the fast store.", counts.hits),
        ("diesel_fast_store_misses_total", "Ranges read past the fast store.", counts.misses),
        ("diesel_fast_store_copies_total", "Chunks copied to the fast store.", counts.made),
        ("diesel_fast_store_errors_total", "Failures of the fast store.", counts.failures),
        (
            "diesel_fast_store_rotten_total",
            "Copies that were dropped as damaged.",
            counts.invalidated,
        ),
    ];
    for (name, help, value) in counters {
        text.metric(name, Kind::Counter, help);
        text.sample(&[], value);
    }
    let help = "Bytes of copies in the fast store.";
    text.metric("diesel_fast_store_used_bytes", Kind::Gauge, help);
    text.sample(&[], counts.used);
}

fn write_sources(text: &mut Text, sources: &Sources) {
    let Sources { settings, users, certificate } = sources;
    let stale = [
        ("settings", settings.as_ref().map(|followed| followed.stale_for())),
        ("users", users.as_ref().map(|followed| followed.stale_for())),
        ("certificate", certificate.as_ref().map(|followed| followed.stale_for())),
    ];
    let help = "For how long a change has been there that can't be used, by what was changed.";
    text.metric("diesel_config_stale_seconds", Kind::Gauge, help);
    for (name, stale) in stale {
        text.sample(&[("source", name)], stale.unwrap_or_default().as_secs());
    }
}

fn write_disks(text: &mut Text, disks: &[Disk]) {
    let help = "Free bytes on the disks of the server.";
    text.metric("diesel_disk_free_bytes", Kind::Gauge, help);
    for disk in disks {
        text.sample(&[("folder", disk.folder)], disk.free);
    }
    text.metric("diesel_disk_size_bytes", Kind::Gauge, "Bytes of these disks.");
    for disk in disks {
        text.sample(&[("folder", disk.folder)], disk.size);
    }
}

fn write_certificates(text: &mut Text, certificate: Option<&Certificate>, now: i64) {
    let help = "Time until the certificates in use expire; negative afterwards.";
    text.metric("diesel_certificate_expiry_seconds", Kind::Gauge, help);
    let settings = certificate.map(Certificate::now);
    for (name, end) in settings.iter().flat_map(|settings| &settings.ends) {
        text.sample(&[("certificate", name)], end.saturating_sub(now));
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
