//! Training jobs, by the heartbeats of their members to this server.
//!
//! Must hold: a counter never falls while its job is shown. A bounded number of jobs is shown, until some time after
//! their end. Labels respect the caller's permissions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::MemberId;
use dl_meta::TaskKey;
use dl_proto::TaskCounters;
use dl_runtime::{Clock, locked};

use super::text::{Kind, Text};

/// Most jobs shown. A new job takes the place of a job without members; otherwise the first jobs stay.
const TASKS_MAX: usize = 100;

/// How long a heartbeat counts: three times the pause between two.
const HEARD_FOR: Duration = Duration::from_secs(15);

/// Silence after which a member or a job is forgotten: Prometheus has read the last values by then.
const KEPT_FOR: Duration = Duration::from_secs(10 * 60);

/// A value of a member: metric, help and value.
type Value = (&'static str, &'static str, fn(&TaskCounters) -> u64);

/// Sums over the living members.
const GAUGES: [Value; 3] = [
    ("diesel_task_workers", "Processes that read through them.", |of| of.workers.into()),
    ("diesel_task_peer_connections", "Connections between them.", |of| of.peers.into()),
    ("diesel_task_memory_used_bytes", "Memory that they use.", |of| of.memory_used),
];

const COUNTERS_COUNT: usize = 11;

/// Work of the members, also of members that have left.
const COUNTERS: [Value; COUNTERS_COUNT] = [
    ("diesel_task_hits_total", "Files that were read from their memory.", |of| of.hits),
    ("diesel_task_misses_total", "Files that were not in their memory.", |of| of.misses),
    ("diesel_task_fallbacks_total", "Files that workers read from servers.", |of| of.fallbacks),
    ("diesel_task_chunks_from_servers_total", "Chunks that they fetched from servers.", |of| {
        of.chunks_from_servers
    }),
    ("diesel_task_chunks_from_peers_total", "Chunks that they fetched from each other.", |of| {
        of.chunks_from_peers
    }),
    ("diesel_task_bytes_from_peers_total", "Bytes of these.", |of| of.bytes_from_peers),
    ("diesel_task_chunks_from_disk_total", "Chunks that they read from local disks.", |of| {
        of.chunks_from_disk
    }),
    ("diesel_task_bytes_from_disk_total", "Bytes of these.", |of| of.bytes_from_disk),
    ("diesel_task_slow_answers_total", "Answers to each other that were given up.", |of| {
        of.slow_answers
    }),
    ("diesel_task_damaged_answers_total", "Answers to each other with wrong bytes.", |of| {
        of.damaged_answers
    }),
    ("diesel_task_failed_connections_total", "Connections between them that failed.", |of| {
        of.failed_connections
    }),
];

/// Jobs with recent heartbeats.
#[derive(Debug)]
pub(crate) struct TaskMetrics {
    clock: Arc<dyn Clock>,
    tasks: Mutex<HashMap<TaskKey, Task>>,
}

#[derive(Debug)]
struct Task {
    /// The job and the dataset, in words.
    labels: [String; 2],
    members: HashMap<MemberId, Member>,
    /// Work since the first heartbeat of each member to this server.
    counts: [u64; COUNTERS_COUNT],
    waited_micros: u64,
    /// The last heartbeat, on the monotonic clock.
    heard: Duration,
}

#[derive(Debug)]
struct Member {
    /// The last heartbeat, on the monotonic clock.
    heard: Duration,
    has_left: bool,
    counters: TaskCounters,
}

impl Task {
    fn new(labels: [String; 2]) -> Self {
        let (members, heard) = (HashMap::new(), Duration::ZERO);
        Self { labels, members, counts: [0; COUNTERS_COUNT], waited_micros: 0, heard }
    }

    /// Adds the work of a member since its last heartbeat to this server. Earlier work is counted by other servers.
    fn hear(&mut self, now: Duration, member: MemberId, counters: TaskCounters, has_left: bool) {
        let before = self.members.get(&member).map_or(counters, |member| member.counters);
        for (count, (_, _, of)) in self.counts.iter_mut().zip(COUNTERS) {
            *count = count.saturating_add(of(&counters).saturating_sub(of(&before)));
        }
        let waited = counters.waited.saturating_sub(before.waited);
        self.waited_micros = self.waited_micros.saturating_add(waited);
        self.heard = now;
        self.members.insert(member, Member { heard: now, has_left, counters });
    }

    fn living(&self, now: Duration) -> impl Iterator<Item = &TaskCounters> {
        let is_living = move |member: &&Member| {
            !member.has_left && now.saturating_sub(member.heard) < HEARD_FOR
        };
        self.members.values().filter(is_living).map(|member| &member.counters)
    }
}

impl TaskMetrics {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, tasks: Mutex::default() }
    }

    /// Records a heartbeat of a member.
    pub(crate) fn heard(
        &self,
        key: TaskKey,
        labels: [String; 2],
        member: MemberId,
        counters: TaskCounters,
    ) {
        let now = self.clock.monotonic();
        let mut tasks = self.known(now);
        if tasks.len() >= TASKS_MAX && !tasks.contains_key(&key) {
            let ended = tasks.iter().filter(|(_, task)| task.living(now).next().is_none());
            let Some(ended) = ended.min_by_key(|(_, task)| task.heard).map(|(key, _)| *key) else {
                return;
            };
            tasks.remove(&ended);
        }
        tasks.entry(key).or_insert_with(|| Task::new(labels)).hear(now, member, counters, false);
    }

    /// Records the leave of a known member, with its last counters.
    pub(crate) fn left(&self, key: &TaskKey, member: MemberId, counters: TaskCounters) {
        let now = self.clock.monotonic();
        if let Some(task) = self.known(now).get_mut(key)
            && task.members.contains_key(&member)
        {
            task.hear(now, member, counters, true);
        }
    }

    /// Forgets members and jobs after a long silence; gives the jobs left.
    fn known(&self, now: Duration) -> MutexGuard<'_, HashMap<TaskKey, Task>> {
        let mut tasks = locked(&self.tasks);
        tasks.retain(|_, task| {
            task.members.retain(|_, member| now.saturating_sub(member.heard) < KEPT_FOR);
            !task.members.is_empty()
        });
        tasks
    }

    pub(crate) fn write(&self, text: &mut Text) {
        let now = self.clock.monotonic();
        let tasks = self.known(now);
        let tasks: BTreeMap<_, _> = tasks.values().map(|task| (&task.labels, task)).collect();
        let mut write = |name, help, kind, value: &dyn Fn(&Task) -> f64| {
            text.metric(name, kind, help);
            for ([job, dataset], task) in &tasks {
                text.sample(&[("task", job), ("dataset", dataset)], value(task));
            }
        };
        let help = "Members of training jobs that were heard in the last 15 seconds.";
        let count = |task: &Task| task.living(now).count() as f64;
        write("diesel_task_members", help, Kind::Gauge, &count);
        for (name, help, of) in GAUGES {
            let sum = |task: &Task| task.living(now).map(of).sum::<u64>() as f64;
            write(name, help, Kind::Gauge, &sum);
        }
        for (number, (name, help, _)) in COUNTERS.into_iter().enumerate() {
            let count = |task: &Task| task.counts.get(number).copied().unwrap_or_default() as f64;
            write(name, help, Kind::Counter, &count);
        }
        let help = "Time that workers have waited for them.";
        let waited = |task: &Task| task.waited_micros as f64 / 1e6;
        write("diesel_task_wait_seconds_total", help, Kind::Counter, &waited);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_format::{DatasetId, TaskId};
    use dl_runtime::ManualClock;

    use super::*;

    struct Rig {
        clock: Arc<ManualClock>,
        metrics: TaskMetrics,
    }

    impl Rig {
        fn new() -> Self {
            let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
            Self { metrics: TaskMetrics::new(Arc::<ManualClock>::clone(&clock)), clock }
        }

        fn hear(&self, task: u8, member: u8, hits: u64) {
            let counters = TaskCounters {
                hits,
                workers: 1,
                waited: hits * 500_000,
                ..TaskCounters::default()
            };
            let labels = [format!("t{task}"), "ds".to_owned()];
            self.metrics.heard(key(task), labels, MemberId::from_bytes([member; 16]), counters);
        }

        fn told(&self) -> String {
            let mut text = Text::default();
            self.metrics.write(&mut text);
            text.finish()
        }

        fn shows(&self, name: &str, task: u8, value: &str) -> bool {
            self.told().contains(&format!("{name}{{task=\"t{task}\",dataset=\"ds\"}} {value}\n"))
        }
    }

    fn key(task: u8) -> TaskKey {
        TaskKey { dataset: DatasetId::from_bytes([1; 16]), task: TaskId::from_bytes([task; 16]) }
    }

    #[test]
    fn counters_of_a_job_never_fall_when_members_leave_or_die() {
        let rig = Rig::new();
        rig.hear(1, 1, 0);
        // This member was heard by another server before.
        rig.hear(1, 2, 100);
        rig.hear(1, 1, 7);
        rig.hear(1, 2, 110);
        assert!(rig.shows("diesel_task_members", 1, "2"), "{}", rig.told());
        assert!(rig.shows("diesel_task_hits_total", 1, "17"), "{}", rig.told());
        assert!(rig.shows("diesel_task_wait_seconds_total", 1, "8.5"), "{}", rig.told());
        let counters = TaskCounters { hits: 120, ..TaskCounters::default() };
        rig.metrics.left(&key(1), MemberId::from_bytes([2; 16]), counters);
        assert!(
            rig.shows("diesel_task_members", 1, "1") && rig.shows("diesel_task_workers", 1, "1")
        );
        assert!(rig.shows("diesel_task_hits_total", 1, "27"));
        rig.clock.advance(HEARD_FOR);
        assert!(rig.shows("diesel_task_members", 1, "0"));
        assert!(rig.shows("diesel_task_hits_total", 1, "27"));
        // Silent for a while, and back.
        rig.hear(1, 1, 9);
        assert!(rig.shows("diesel_task_hits_total", 1, "29"));
        rig.clock.advance(KEPT_FOR);
        assert!(!rig.told().contains("t1"));
    }

    #[test]
    fn shown_jobs_are_bounded_and_ended_ones_make_room() {
        let rig = Rig::new();
        (0..150).for_each(|task| rig.hear(task, 1, 1));
        assert_eq!(rig.told().matches("diesel_task_members{").count(), TASKS_MAX);
        assert!(rig.told().contains("\"t0\"") && !rig.told().contains("\"t149\""));
        rig.metrics.left(&key(7), MemberId::from_bytes([1; 16]), TaskCounters::default());
        rig.hear(149, 1, 1);
        assert!(rig.told().contains("\"t149\"") && !rig.told().contains("\"t7\""));
        assert_eq!(rig.told().matches("diesel_task_members{").count(), TASKS_MAX);
    }
}
