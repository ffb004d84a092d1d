//! Members of training jobs: soft state, restored by heartbeats.
//!
//! Must hold: the first living member sets version and secret for later members. A member without heartbeats
//! is dropped. The time of a job never goes back, whatever the clocks of its servers say.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{DatasetId, MemberId, Stamp, TaskId, Version};
use dl_runtime::locked;

use crate::{Error, Kind};

/// Bytes of the secret of a job.
pub(crate) const SECRET_LENGTH: usize = 32;

/// A training job, for a single dataset among the datasets of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TaskKey {
    /// The dataset.
    pub dataset: DatasetId,
    /// The job.
    pub task: TaskId,
}

impl TaskKey {
    /// The group of the servers: each is a member, so that any server knows all.
    pub const SERVERS: Self =
        Self { dataset: DatasetId::from_bytes([0; 16]), task: TaskId::from_bytes([0; 16]) };
}

/// The sign of life of a member.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    /// The job.
    pub task: TaskKey,
    /// The member.
    pub member: MemberId,
    /// The record of the member, for the other members.
    pub record: Bytes,
    /// The time by the clock of the caller.
    pub now: Stamp,
    /// The time from the last heartbeat to the death of a member.
    pub dead_after: Duration,
    /// Most living members of the job.
    pub most: usize,
}

/// Facts for all members of a job.
#[derive(Clone, PartialEq, Eq)]
pub struct TaskTerms {
    /// The version of the dataset, as read by the job.
    pub version: Version,
    /// Random bytes known only to members.
    pub secret: [u8; SECRET_LENGTH],
    /// The end of the lease on the version.
    pub leased_until: Stamp,
}

impl std::fmt::Debug for TaskTerms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { version, leased_until, .. } = self;
        write!(f, "TaskTerms({version} until {})", leased_until.get())
    }
}

/// A job and its living members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskGroup {
    /// Facts for all members.
    pub terms: TaskTerms,
    /// The record of each member, by id.
    pub members: BTreeMap<MemberId, Bytes>,
}

impl Heartbeat {
    pub(crate) fn dead_after_micros(&self) -> u64 {
        micros(self.dead_after)
    }

    pub(crate) fn crowded(&self) -> Error {
        let why = format!("it has {} members, the most that a task may have", self.most);
        Error::because(Kind::Full, "join task", self.task.task, why)
    }
}

/// Jobs in the memory of the process.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    groups: Mutex<HashMap<TaskKey, Group>>,
}

#[derive(Debug)]
struct Group {
    terms: TaskTerms,
    /// The last heartbeat and the record of each member.
    members: BTreeMap<MemberId, (Stamp, Bytes)>,
}

impl Group {
    /// Drops dead members; gives the time of the job.
    fn prune(&mut self, beat: &Heartbeat) -> Stamp {
        let now = now_of(self.members.values().map(|(seen, _)| *seen), beat.now);
        self.members.retain(|_, (seen, _)| is_alive(*seen, now, beat.dead_after));
        now
    }
}

/// The time of a job: the clock of the caller, which may be behind the last heartbeat.
pub(crate) fn now_of(seen: impl Iterator<Item = Stamp>, now: Stamp) -> Stamp {
    seen.fold(now, Stamp::max)
}

/// Whether a member last seen at a time is alive.
pub(crate) fn is_alive(seen: Stamp, now: Stamp, dead_after: Duration) -> bool {
    seen.get().saturating_add(micros(dead_after)) > now.get()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Tasks {
    /// [`join`](crate::TaskMembers::join).
    pub(crate) fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        let mut groups = self.groups();
        let (mut group, now) = match groups.remove(&beat.task) {
            Some(mut group) => {
                let now = group.prune(beat);
                (Some(group).filter(|group| !group.members.is_empty()), now)
            }
            None => (None, beat.now),
        };
        if let (Some(group), Some(terms)) = (&mut group, terms)
            && group.terms.version == terms.version
        {
            group.terms.leased_until = group.terms.leased_until.max(terms.leased_until);
        }
        let group = group.or_else(|| {
            // Jobs without living members are dropped when another job begins.
            if beat.task != TaskKey::SERVERS {
                groups.retain(|_, group| {
                    group.prune(beat);
                    !group.members.is_empty()
                });
            }
            Some(Group { terms: terms?.clone(), members: BTreeMap::new() })
        });
        let Some(mut group) = group else { return Ok(None) };
        let has_room = group.members.len() < beat.most;
        let is_in = has_room || group.members.contains_key(&beat.member);
        if is_in {
            group.members.insert(beat.member, (now, beat.record.clone()));
        }
        let members = group.members.iter();
        let members = members.map(|(id, (_, record))| (*id, record.clone())).collect();
        let joined = TaskGroup { terms: group.terms.clone(), members };
        groups.insert(beat.task, group);
        if is_in { Ok(Some(joined)) } else { Err(beat.crowded()) }
    }

    /// [`leave`](crate::TaskMembers::leave).
    pub(crate) fn leave(&self, beat: &Heartbeat) -> Option<TaskTerms> {
        let mut groups = self.groups();
        let group = groups.get_mut(&beat.task)?;
        group.members.remove(&beat.member);
        group.prune(beat);
        if !group.members.is_empty() {
            return None;
        }
        groups.remove(&beat.task).map(|group| group.terms)
    }

    /// [`group`](crate::TaskMembers::group).
    pub(crate) fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Option<TaskGroup> {
        let groups = self.groups();
        let group = groups.get(task)?;
        let now = now_of(group.members.values().map(|(seen, _)| *seen), now);
        let living = group.members.iter().filter(|(_, (seen, _))| is_alive(*seen, now, dead_after));
        let members: BTreeMap<_, _> =
            living.map(|(id, (_, record))| (*id, record.clone())).collect();
        (!members.is_empty()).then(|| TaskGroup { terms: group.terms.clone(), members })
    }

    fn groups(&self) -> MutexGuard<'_, HashMap<TaskKey, Group>> {
        locked(&self.groups)
    }
}
