//! Training jobs, by their recent heartbeats to this server.
//!
//! Must hold: a bounded number of jobs is shown, while members are heard. Labels respect the caller's
//! permissions.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::MemberId;
use dl_meta::TaskKey;
use dl_proto::TaskCounters;
use dl_runtime::Clock;

use super::text::{Kind, Text};

/// Most jobs shown; the first jobs stay.
const TASKS_MAX: usize = 100;

/// How long a heartbeat counts: three times the pause between two.
const HEARD_FOR: Duration = Duration::from_secs(15);

/// Sums over the members of a job: metric, help and counter.
type Sum = (&'static str, &'static str, fn(&TaskCounters) -> u64);

const SUMS: [Sum; 8] = [
    ("diesel_task_workers", "Processes that read through them.", |of| of.workers.into()),
    ("diesel_task_hits", "Files that were read from their memory.", |of| of.hits),
    ("diesel_task_misses", "Files that were not in their memory.", |of| of.misses),
    ("diesel_task_chunks_from_servers", "Chunks that they fetched from servers.", |of| {
        of.chunks_from_servers
    }),
    ("diesel_task_chunks_from_peers", "Chunks that they fetched from each other.", |of| {
        of.chunks_from_peers
    }),
    ("diesel_task_bytes_from_peers", "Bytes of these.", |of| of.bytes_from_peers),
    ("diesel_task_peer_connections", "Connections between them.", |of| of.peers.into()),
    ("diesel_task_memory_used_bytes", "Memory that they use.", |of| of.memory_used),
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
    /// When each member was heard last, on the monotonic clock.
    members: HashMap<MemberId, (Duration, TaskCounters)>,
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
        let mut tasks = self.living();
        if tasks.len() < TASKS_MAX || tasks.contains_key(&key) {
            let task = tasks.entry(key).or_insert(Task { labels, members: HashMap::new() });
            task.members.insert(member, (self.clock.monotonic(), counters));
        }
    }

    /// Records the leave of a member.
    pub(crate) fn left(&self, key: &TaskKey, member: MemberId) {
        if let Some(task) = self.living().get_mut(key) {
            task.members.remove(&member);
        }
    }

    /// Drops silent members and jobs without members; gives the jobs left.
    fn living(&self) -> MutexGuard<'_, HashMap<TaskKey, Task>> {
        let now = self.clock.monotonic();
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|_, task| {
            task.members.retain(|_, (heard, _)| now.saturating_sub(*heard) < HEARD_FOR);
            !task.members.is_empty()
        });
        tasks
    }

    pub(crate) fn write(&self, text: &mut Text) {
        let tasks = self.living();
        let tasks: BTreeMap<_, _> = tasks.values().map(|task| (&task.labels, task)).collect();
        let mut write = |name, help, value: &dyn Fn(&Task) -> u64| {
            text.metric(name, Kind::Gauge, help);
            for ([job, dataset], task) in &tasks {
                text.sample(&[("task", job), ("dataset", dataset)], value(task));
            }
        };
        let help = "Members of training jobs that were heard in the last 15 seconds.";
        write("diesel_task_members", help, &|task| task.members.len() as u64);
        for (name, help, of) in SUMS {
            let sum = |task: &Task| task.members.values().map(|(_, counters)| of(counters)).sum();
            write(name, help, &sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_format::{DatasetId, TaskId};
    use dl_runtime::ManualClock;

    use super::*;

    #[test]
    fn jobs_are_shown_while_their_members_are_heard_and_no_more_than_a_bound() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let metrics = TaskMetrics::new(Arc::<ManualClock>::clone(&clock));
        let key = |task: u8| TaskKey {
            dataset: DatasetId::from_bytes([1; 16]),
            task: TaskId::from_bytes([task; 16]),
        };
        let hear = |task: u8, member: u8| {
            let counters = TaskCounters { hits: 7, ..TaskCounters::default() };
            let labels = [format!("t{task}"), "ds".to_owned()];
            metrics.heard(key(task), labels, MemberId::from_bytes([member; 16]), counters);
        };
        let told = || {
            let mut text = Text::default();
            metrics.write(&mut text);
            text.finish()
        };
        hear(1, 1);
        hear(1, 2);
        assert!(told().contains("diesel_task_members{task=\"t1\",dataset=\"ds\"} 2\n"));
        assert!(told().contains("diesel_task_hits{task=\"t1\",dataset=\"ds\"} 14\n"));
        metrics.left(&key(1), MemberId::from_bytes([2; 16]));
        assert!(told().contains("diesel_task_hits{task=\"t1\",dataset=\"ds\"} 7\n"));
        clock.advance(HEARD_FOR);
        assert!(!told().contains("t1"));
        (0..150).for_each(|task| hear(task, 1));
        assert_eq!(told().matches("diesel_task_members{").count(), TASKS_MAX);
    }
}
