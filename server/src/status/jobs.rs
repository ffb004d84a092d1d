//! Training jobs, by the records of their members in the metadata store.
//!
//! Must hold: the counts of a job hold the work of all its members, also of those that left or died. A bounded
//! number of jobs and members is kept.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use dl_format::{MemberId, Stamp, Version};
use dl_meta::{TaskGroup, TaskKey};
use dl_proto::{JobStatus, MemberRecord, MemberStatus, RateStatus, TASK_MEMBERS_MAX, TaskCounters};
use xxhash_rust::xxh3::xxh3_64;

use super::history::History;
use super::{SILENT_AFTER, per_second, seconds_between};

/// Most jobs kept. A new job takes the place of the job that ended first; else it is not shown.
const JOBS_MAX: usize = 200;

/// How long a job is shown after its end.
const SHOWN: Duration = Duration::from_secs(24 * 60 * 60);

/// Most members of a job that left and are kept apart; the counts of others are kept as a sum. After the end of the
/// job fewer are kept.
const LEFT_MAX: usize = TASK_MEMBERS_MAX;
const LEFT_MAX_ENDED: usize = 64;

const LINES: [&str; 11] = [
    "files",
    "waited",
    "fallbacks",
    "bytes",
    "waiting",
    "bytes_from_servers",
    "bytes_from_peers",
    "memory_used",
    "members",
    "workers",
    "failed_fetches",
];

/// The names of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobName {
    pub(crate) dataset: String,
    pub(crate) task: String,
    /// Empty without users.
    pub(crate) user: String,
}

/// All jobs.
#[derive(Debug, Default)]
pub(super) struct Jobs(HashMap<TaskKey, Job>);

#[derive(Debug)]
pub(super) struct Job {
    pub(super) name: JobName,
    version: Version,
    /// A hash of the secret, which tells a job from the next of the same name.
    begun: u64,
    since: Stamp,
    heard: Stamp,
    /// The last sight of a living member, on the monotonic clock.
    at: Duration,
    members: BTreeMap<MemberId, Member>,
    /// The work of members that are not kept.
    gone: TaskCounters,
    history: History<{ LINES.len() }>,
}

#[derive(Debug)]
struct Member {
    record: MemberRecord,
    /// The counts of the heartbeat before, and the seconds between the two.
    before: Option<(TaskCounters, f64)>,
    /// The first sight of the record, on the monotonic clock of this server: the clocks of servers differ.
    at: Duration,
    is_living: bool,
}

impl Member {
    fn hear(&mut self, now: Duration, record: MemberRecord) {
        if record.heard != self.record.heard {
            let since = now.saturating_sub(self.at);
            let seconds = seconds_between(self.record.heard.get(), record.heard.get(), since);
            let before = std::mem::replace(&mut self.record, record);
            self.before = Some((before.counters, seconds));
            self.at = now;
        }
        self.is_living = now.saturating_sub(self.at) < SILENT_AFTER;
    }

    fn rates(&self) -> RateStatus {
        let (Some((before, _)), true) = (&self.before, self.is_living) else {
            return RateStatus::default();
        };
        let now = &self.record.counters;
        let rate = |of| self.rate(of);
        let waited = rate(|of| of.waited) / 1e6;
        RateStatus {
            files: rate(|of| of.hits.saturating_add(of.fallbacks)),
            bytes: rate(|of| of.hit_bytes),
            fallbacks: rate(|of| of.fallbacks),
            waiting: (waited / f64::from(now.workers.max(before.workers).max(1))).min(1.0),
            bytes_from_servers: rate(|of| of.bytes_from_servers),
            bytes_from_peers: rate(|of| of.bytes_from_peers),
        }
    }

    /// Per second, of a value without a place in [`RateStatus`].
    fn rate(&self, of: fn(&TaskCounters) -> u64) -> f64 {
        let (Some((before, seconds)), true) = (&self.before, self.is_living) else { return 0.0 };
        per_second(of(before), of(&self.record.counters), *seconds)
    }
}

impl Jobs {
    /// Takes the living members of a job.
    pub(super) fn see(&mut self, now: Duration, key: TaskKey, name: &JobName, group: TaskGroup) {
        let heard: Vec<_> = group
            .members
            .values()
            .filter_map(|record| MemberRecord::from_bytes(record).ok())
            .collect();
        let last = heard.iter().map(|record| record.heard).max().unwrap_or_default();
        let begun = xxh3_64(&group.terms.secret);
        let goes_on = |job: &Job| {
            // The metadata store may have lost the job, and its members begin it again.
            job.begun == begun
                || heard.iter().any(|record| job.members.contains_key(&record.member.id))
        };
        if !self.0.get(&key).is_some_and(goes_on) {
            if !self.make_room(&key) {
                return;
            }
            let history = self.0.remove(&key).map(|job| job.history);
            let job = Job {
                name: name.clone(),
                version: group.terms.version,
                begun,
                since: last,
                heard: last,
                at: now,
                members: BTreeMap::new(),
                gone: TaskCounters::default(),
                history: history.unwrap_or_else(|| History::new(LINES)),
            };
            self.0.insert(key, job);
        }
        let Some(job) = self.0.get_mut(&key) else { return };
        (job.begun, job.at, job.heard) = (begun, now, job.heard.max(last));
        job.members.values_mut().for_each(|member| member.is_living = false);
        for record in heard {
            match job.members.get_mut(&record.member.id) {
                Some(member) => member.hear(now, record),
                None => {
                    let id = record.member.id;
                    let member = Member { record, before: None, at: now, is_living: true };
                    job.members.insert(id, member);
                }
            }
        }
        job.forget_some(LEFT_MAX);
    }

    /// A job has no living members.
    pub(super) fn ended(&mut self, key: &TaskKey) {
        if let Some(job) = self.0.get_mut(key) {
            job.members.values_mut().for_each(|member| member.is_living = false);
            job.forget_some(LEFT_MAX_ENDED);
        }
    }

    /// Forgets jobs a day after their end.
    pub(super) fn forget_old(&mut self, now: Duration) {
        self.0.retain(|_, job| now.saturating_sub(job.at) < SHOWN);
    }

    /// Takes the last counts of a member that left.
    pub(super) fn left(&mut self, key: &TaskKey, id: MemberId, counters: TaskCounters) {
        let member = self.0.get_mut(key).and_then(|job| job.members.get_mut(&id));
        if let Some(member) = member {
            member.is_living = false;
            if counters.hits >= member.record.counters.hits {
                member.record.counters = counters;
            }
        }
    }

    /// Whether there is room for a new job, perhaps instead of an old one.
    fn make_room(&mut self, key: &TaskKey) -> bool {
        if self.0.len() < JOBS_MAX || self.0.contains_key(key) {
            return true;
        }
        let ended = self.0.iter().filter(|(_, job)| !job.is_living());
        let first = ended.min_by_key(|(_, job)| job.at).map(|(key, _)| *key);
        first.is_some_and(|first| self.0.remove(&first).is_some())
    }

    /// The keys and names of the jobs that live, as far as known.
    pub(super) fn living(&self) -> impl Iterator<Item = (&TaskKey, &JobName)> {
        self.0.iter().filter(|(_, job)| job.is_living()).map(|(key, job)| (key, &job.name))
    }

    /// Adds a point to the series of each living job that was seen lately.
    pub(super) fn point(&mut self, monotonic: Duration, now: Stamp) {
        let is_seen = |job: &&mut Job| monotonic.saturating_sub(job.at) < SILENT_AFTER;
        let seen = self.0.values_mut().filter(|job| job.is_living()).filter(is_seen);
        seen.for_each(|job| job.point(now));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&TaskKey, &Job)> {
        self.0.iter()
    }

    pub(super) fn get(&self, key: &TaskKey) -> Option<&Job> {
        self.0.get(key)
    }
}

impl Job {
    fn is_living(&self) -> bool {
        self.members.values().any(|member| member.is_living)
    }

    /// Keeps only the sum of members that left long ago.
    fn forget_some(&mut self, most: usize) {
        let mut left: Vec<_> = self
            .members
            .iter()
            .filter(|(_, member)| !member.is_living)
            .map(|(id, member)| (member.record.heard, *id))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        for (_, id) in left.drain(..).skip(most) {
            if let Some(member) = self.members.remove(&id) {
                add(&mut self.gone, &member.record.counters);
            }
        }
    }

    fn point(&mut self, now: Stamp) {
        let rates = self.rates();
        let (counters, living) = (self.counters(), self.living().count());
        let sum = |of| self.living().map(|member| member.rate(of)).sum::<f64>() as f32;
        let values = [
            rates.files as f32,
            sum(|of| of.misses),
            rates.fallbacks as f32,
            rates.bytes as f32,
            rates.waiting as f32,
            rates.bytes_from_servers as f32,
            rates.bytes_from_peers as f32,
            counters.memory_used as f32,
            living as f32,
            counters.workers as f32,
            sum(|of| of.failed_fetches),
        ];
        self.history.push(now, values);
    }

    fn living(&self) -> impl Iterator<Item = &Member> {
        self.members.values().filter(|member| member.is_living)
    }

    /// The work of all members, and what the living members have now.
    fn counters(&self) -> TaskCounters {
        let mut sum = self.gone;
        self.members.values().for_each(|member| add(&mut sum, &member.record.counters));
        let living = || self.living().map(|member| &member.record.counters);
        sum.workers = living().map(|of| of.workers).fold(0, u32::saturating_add);
        sum.peers = living().map(|of| of.peers).fold(0, u32::saturating_add);
        sum.memory_used = living().map(|of| of.memory_used).fold(0, u64::saturating_add);
        sum.chunks_present = living().map(|of| of.chunks_present).fold(0, u64::saturating_add);
        sum.chunks = living().map(|of| of.chunks).max().unwrap_or(sum.chunks);
        sum.epoch = living().filter_map(|of| of.epoch).max();
        let of_epoch = || living().filter(|of| of.epoch.is_some() && of.epoch == sum.epoch);
        sum.epoch_files = of_epoch().map(|of| of.epoch_files).fold(0, u64::saturating_add);
        sum.epoch_position = of_epoch().map(|of| of.epoch_position).fold(0, u64::saturating_add);
        sum
    }

    fn rates(&self) -> RateStatus {
        let mut sum = RateStatus::default();
        let mut workers = 0.0;
        for member in self.living() {
            let rates = member.rates();
            let own = f64::from(member.record.counters.workers);
            sum.files += rates.files;
            sum.bytes += rates.bytes;
            sum.fallbacks += rates.fallbacks;
            sum.waiting += rates.waiting * own;
            sum.bytes_from_servers += rates.bytes_from_servers;
            sum.bytes_from_peers += rates.bytes_from_peers;
            workers += own;
        }
        sum.waiting /= f64::max(workers, 1.0);
        sum
    }

    /// With names, or with ids for a caller without a key.
    pub(super) fn status(&self, key: &TaskKey, has_names: bool) -> JobStatus {
        let TaskKey { dataset, task } = key;
        let JobName { dataset: dataset_name, task: task_name, user } = self.name.clone();
        let or_id = |name: String, id: String| if has_names { name } else { id };
        let counters = self.counters();
        JobStatus {
            id: id_of(key),
            task: or_id(task_name, task.to_string()),
            user: or_id(user, String::new()),
            dataset: or_id(dataset_name, dataset.to_string()),
            version: self.version.to_string(),
            since: self.since.get(),
            heard: self.heard.get(),
            is_living: self.is_living(),
            members: u32::try_from(self.living().count()).unwrap_or(u32::MAX),
            workers: counters.workers,
            counters: Some(counters),
            memory: self.living().map(|of| of.record.member.memory).fold(0, u64::saturating_add),
            rates: Some(self.rates()),
        }
    }

    /// The members, the one that waits most first; perhaps without their addresses.
    pub(super) fn members(&self, most: usize, has_addresses: bool) -> Vec<MemberStatus> {
        let members = self.members.iter().map(|(id, member)| MemberStatus {
            id: id.to_string(),
            address: match has_addresses {
                true => member.record.member.address.clone(),
                false => String::new(),
            },
            memory: member.record.member.memory,
            heard: member.record.heard.get(),
            is_living: member.is_living,
            counters: Some(member.record.counters),
            rates: Some(member.rates()),
        });
        let mut members: Vec<_> = members.collect();
        let waiting = |member: &MemberStatus| member.rates.map_or(0.0, |rates| rates.waiting);
        members.sort_by(|a, b| {
            let order = waiting(b).total_cmp(&waiting(a));
            b.is_living.cmp(&a.is_living).then(order).then_with(|| a.address.cmp(&b.address))
        });
        members.truncate(most);
        members
    }

    pub(super) fn history(&self) -> &History<{ LINES.len() }> {
        &self.history
    }
}

/// The id of a job in requests and answers.
pub(super) fn id_of(key: &TaskKey) -> String {
    format!("{}.{}", key.dataset, key.task)
}

/// The key of a job from its id.
pub(super) fn key_of(id: &str) -> Option<TaskKey> {
    let (dataset, task) = id.split_once('.')?;
    Some(TaskKey { dataset: dataset.parse().ok()?, task: task.parse().ok()? })
}

/// Adds the work of a member.
fn add(sum: &mut TaskCounters, of: &TaskCounters) {
    let pairs = [
        (&mut sum.hits, of.hits),
        (&mut sum.misses, of.misses),
        (&mut sum.fallbacks, of.fallbacks),
        (&mut sum.waited, of.waited),
        (&mut sum.chunks_from_servers, of.chunks_from_servers),
        (&mut sum.bytes_from_servers, of.bytes_from_servers),
        (&mut sum.chunks_from_peers, of.chunks_from_peers),
        (&mut sum.bytes_from_peers, of.bytes_from_peers),
        (&mut sum.chunks_from_disk, of.chunks_from_disk),
        (&mut sum.bytes_from_disk, of.bytes_from_disk),
        (&mut sum.slow_answers, of.slow_answers),
        (&mut sum.damaged_answers, of.damaged_answers),
        (&mut sum.failed_connections, of.failed_connections),
        (&mut sum.hit_bytes, of.hit_bytes),
        (&mut sum.failed_fetches, of.failed_fetches),
    ];
    for (sum, of) in pairs {
        *sum = sum.saturating_add(of);
    }
    sum.chunks = sum.chunks.max(of.chunks);
}
