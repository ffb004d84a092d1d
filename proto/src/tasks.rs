//! Domain types of a training job's registration, with checked conversion to and from the wire.
//!
//! Must hold: ids and fingerprints have their lengths, texts are short and printable, and a list of
//! members is bounded. The secret of a job is in no debug output.

use std::fmt;
use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use dl_format::{DatasetId, MemberId, Stamp, TaskId, TaskName, Version};
use prost::Message;

use crate::convert::{dataset_id, id_bytes};
use crate::error::WireError;
use crate::pb::{self, TaskCounters};
use crate::snapshot::version;

/// Most members of one job.
pub const TASK_MEMBERS_MAX: usize = 4_096;

/// Most bytes of the address of a member.
const ADDRESS_MAX: usize = 255;

/// The id of a user's training job; the user is empty if the servers have no users.
pub fn task_id(user: &str, task: &TaskName) -> TaskId {
    let named = [user.as_bytes(), &[0], task.as_str().as_bytes()].concat();
    TaskId::from_bytes(hash(&named))
}

/// The first bytes of a SHA-256.
fn hash(bytes: &[u8]) -> [u8; 16] {
    let digest = digest::digest(&digest::SHA256, bytes);
    *digest.as_ref().first_chunk().expect("a SHA-256 has 32 bytes")
}

/// The registration and sign of life of a member of a training job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTask {
    /// The dataset.
    pub dataset: DatasetId,
    /// The version to read, which the first member fixes; `None`: the newest.
    pub version: Option<Version>,
    /// The job.
    pub task: TaskName,
    /// The registering member.
    pub member: TaskMember,
    /// Whether the member leaves. The lease of the job ends with its last member.
    pub leaving: bool,
    /// Counts of this member.
    pub counters: TaskCounters,
}

/// A process of a training job with a part of the dataset in memory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskMember {
    /// Its random id.
    pub id: MemberId,
    /// `HOST:PORT` for other members; empty if not reachable.
    pub address: String,
    /// SHA-256 of the certificate at this address.
    pub key_fingerprint: Option<[u8; 32]>,
    /// Bytes of memory for the dataset.
    pub memory: u64,
    /// Chunks of the dataset that the member can keep; none while unknown.
    pub chunks: Option<u32>,
}

/// The state of a training job, sent to its members.
#[derive(Clone, PartialEq, Eq)]
pub struct TaskMembership {
    /// The version read by all members; the version of the request for a leaving member.
    pub version: Option<Version>,
    /// All members by their ids, including the caller; empty for a leaving member.
    pub members: Vec<TaskMember>,
    /// 32 random bytes known only to members; empty for a leaving member.
    pub secret: Bytes,
    /// Time until the next call.
    pub call_again: Duration,
    /// The end of the lease, unless it is renewed.
    pub leased_until: Stamp,
}

impl TaskMembership {
    /// A hash of the members, which changes with them.
    pub fn members_version(&self) -> [u8; 16] {
        let members = self.members.iter().cloned();
        let encoded = members
            .flat_map(|member| pb::TaskMember::from(member).encode_length_delimited_to_vec());
        hash(&encoded.collect::<Vec<u8>>())
    }
}

impl fmt::Debug for TaskMembership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskMembership")
            .field("version", &self.version)
            .field("members", &self.members)
            .field("leased_until", &self.leased_until)
            .finish_non_exhaustive()
    }
}

impl From<JoinTask> for pb::JoinTaskRequest {
    fn from(request: JoinTask) -> Self {
        let JoinTask { dataset, version, task, member, leaving, counters } = request;
        let pb::TaskMember { member, address, key_fingerprint, memory, chunks } = member.into();
        Self {
            dataset: id_bytes(dataset.as_bytes()),
            version: version_bytes(version),
            task: task.as_str().to_owned(),
            member,
            address,
            key_fingerprint,
            memory,
            chunks,
            leaving,
            counters: Some(counters),
        }
    }
}

impl TryFrom<pb::JoinTaskRequest> for JoinTask {
    type Error = WireError;

    fn try_from(wire: pb::JoinTaskRequest) -> Result<Self, WireError> {
        let pb::JoinTaskRequest { member, address, key_fingerprint, memory, chunks, .. } = wire;
        let member = pb::TaskMember { member, address, key_fingerprint, memory, chunks };
        let task = wire.task.parse().map_err(|why| WireError::invalid("task", why))?;
        Ok(Self {
            dataset: dataset_id(&wire.dataset)?,
            version: optional_version(&wire.version)?,
            task,
            member: member.try_into()?,
            leaving: wire.leaving,
            counters: wire.counters.unwrap_or_default(),
        })
    }
}

impl From<TaskMember> for pb::TaskMember {
    fn from(member: TaskMember) -> Self {
        let fingerprint = member.key_fingerprint.map(|bytes| Bytes::copy_from_slice(&bytes));
        Self {
            member: id_bytes(member.id.as_bytes()),
            address: member.address,
            key_fingerprint: fingerprint.unwrap_or_default(),
            memory: member.memory,
            chunks: member.chunks,
        }
    }
}

impl TryFrom<pb::TaskMember> for TaskMember {
    type Error = WireError;

    fn try_from(wire: pb::TaskMember) -> Result<Self, WireError> {
        let id = wire.member.as_ref().try_into();
        let id = id.map_err(|_| WireError::invalid("member", "an id has 16 bytes"))?;
        let is_text = wire.address.bytes().all(|byte| byte.is_ascii_graphic());
        if wire.address.len() > ADDRESS_MAX || !is_text {
            let why = format!("an address has at most {ADDRESS_MAX} printable ASCII characters");
            return Err(WireError::invalid("address", why));
        }
        let key_fingerprint = match wire.key_fingerprint.as_ref() {
            [] => None,
            bytes => {
                let why = "a fingerprint has 0 or 32 bytes";
                let bytes = bytes.try_into();
                Some(bytes.map_err(|_| WireError::invalid("key_fingerprint", why))?)
            }
        };
        let id = MemberId::from_bytes(id);
        let (memory, chunks) = (wire.memory, wire.chunks);
        Ok(Self { id, address: wire.address, key_fingerprint, memory, chunks })
    }
}

/// A member of a job in the metadata store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberRecord {
    /// The member, for the other members.
    pub member: TaskMember,
    /// Its counts, for the servers.
    pub counters: TaskCounters,
    /// The time of its heartbeat.
    pub heard: Stamp,
}

impl MemberRecord {
    /// The bytes for the metadata store.
    pub fn to_bytes(self) -> Vec<u8> {
        let Self { member, counters, heard } = self;
        let pb::TaskMember { member, address, key_fingerprint, memory, chunks } = member.into();
        let (counters, heard) = (Some(counters), heard.get());
        pb::MemberRecord { member, address, key_fingerprint, memory, chunks, counters, heard }
            .encode_to_vec()
    }

    /// Decodes a member from the metadata store.
    ///
    /// # Errors
    /// For bytes written by another program.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, WireError> {
        let wire = pb::MemberRecord::decode(bytes);
        let wire = wire.map_err(|why| WireError::invalid("member", why))?;
        let pb::MemberRecord { member, address, key_fingerprint, memory, chunks, counters, heard } =
            wire;
        Ok(Self {
            member: pb::TaskMember { member, address, key_fingerprint, memory, chunks }
                .try_into()?,
            counters: counters.unwrap_or_default(),
            heard: Stamp::new(heard),
        })
    }
}

impl From<TaskMembership> for pb::JoinTaskReply {
    fn from(membership: TaskMembership) -> Self {
        let members_version = Bytes::copy_from_slice(&membership.members_version());
        let call_again = membership.call_again.as_micros();
        Self {
            version: version_bytes(membership.version),
            members: membership.members.into_iter().map(Into::into).collect(),
            members_version,
            secret: membership.secret,
            call_again: u64::try_from(call_again).unwrap_or(u64::MAX),
            leased_until: membership.leased_until.get(),
        }
    }
}

impl TryFrom<pb::JoinTaskReply> for TaskMembership {
    type Error = WireError;

    fn try_from(wire: pb::JoinTaskReply) -> Result<Self, WireError> {
        if wire.members.len() > TASK_MEMBERS_MAX {
            return Err(WireError::invalid("members", format!("more than {TASK_MEMBERS_MAX}")));
        }
        if !matches!(wire.secret.len(), 0 | 32) {
            return Err(WireError::invalid("secret", "it has 0 or 32 bytes"));
        }
        let members = wire.members.into_iter().map(TaskMember::try_from);
        Ok(Self {
            version: optional_version(&wire.version)?,
            members: members.collect::<Result<_, _>>()?,
            secret: wire.secret,
            call_again: Duration::from_micros(wire.call_again),
            leased_until: Stamp::new(wire.leased_until),
        })
    }
}

/// The lease of a training job on a version of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskLease {
    /// The id of the job.
    pub id: TaskId,
    /// The name of the job; `None` if the lease is damaged.
    pub task: Option<TaskName>,
    /// The user of the job; empty if the servers have no users.
    pub user: String,
    /// The leased version.
    pub version: Version,
    /// The end of the lease.
    pub until: Stamp,
    /// Whether the job has living members.
    pub in_use: bool,
}

impl From<TaskLease> for pb::TaskLease {
    fn from(lease: TaskLease) -> Self {
        let TaskLease { id, task, user, version, until, in_use } = lease;
        Self {
            task_id: id_bytes(id.as_bytes()),
            task: task.map(|task| task.to_string()).unwrap_or_default(),
            user,
            version: version_bytes(Some(version)),
            until: until.get(),
            in_use,
        }
    }
}

impl TryFrom<pb::TaskLease> for TaskLease {
    type Error = WireError;

    fn try_from(wire: pb::TaskLease) -> Result<Self, WireError> {
        let task = match wire.task.as_str() {
            "" => None,
            name => Some(name.parse().map_err(|why| WireError::invalid("task", why))?),
        };
        Ok(Self {
            id: task_of(&wire.task_id)?,
            task,
            user: wire.user,
            version: version(&wire.version)?,
            until: Stamp::new(wire.until),
            in_use: wire.in_use,
        })
    }
}

/// The job whose leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndLeases {
    /// The dataset.
    pub dataset: DatasetId,
    /// The job.
    pub task: TaskId,
}

impl From<EndLeases> for pb::EndLeasesRequest {
    fn from(request: EndLeases) -> Self {
        let EndLeases { dataset, task } = request;
        Self { dataset: id_bytes(dataset.as_bytes()), task_id: id_bytes(task.as_bytes()) }
    }
}

impl TryFrom<pb::EndLeasesRequest> for EndLeases {
    type Error = WireError;

    fn try_from(wire: pb::EndLeasesRequest) -> Result<Self, WireError> {
        Ok(Self { dataset: dataset_id(&wire.dataset)?, task: task_of(&wire.task_id)? })
    }
}

fn task_of(bytes: &[u8]) -> Result<TaskId, WireError> {
    let id = bytes.try_into().map_err(|_| WireError::invalid("task_id", "an id has 16 bytes"))?;
    Ok(TaskId::from_bytes(id))
}

fn version_bytes(version: Option<Version>) -> Bytes {
    version.map(|version| Bytes::copy_from_slice(&version.to_bytes())).unwrap_or_default()
}

fn optional_version(bytes: &[u8]) -> Result<Option<Version>, WireError> {
    if bytes.is_empty() { Ok(None) } else { version(bytes).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u8) -> TaskMember {
        TaskMember {
            id: MemberId::from_bytes([number; 16]),
            address: "10.0.0.7:9000".to_owned(),
            key_fingerprint: number.is_multiple_of(2).then_some([number; 32]),
            memory: 7,
            chunks: Some(number.into()),
        }
    }

    fn request() -> JoinTask {
        JoinTask {
            dataset: DatasetId::from_bytes([9; 16]),
            version: Some(Version::default()),
            task: "resnet:7".parse().expect("legal"),
            member: member(1),
            leaving: false,
            counters: TaskCounters { hits: 1, workers: 2, peers: 3, ..TaskCounters::default() },
        }
    }

    #[test]
    fn requests_and_answers_survive_the_wire() {
        let sent = request();
        assert_eq!(JoinTask::try_from(pb::JoinTaskRequest::from(sent.clone())), Ok(sent));
        let answer = TaskMembership {
            version: Some(Version::default()),
            members: vec![member(1), member(2)],
            secret: Bytes::from(vec![5; 32]),
            call_again: Duration::from_secs(5),
            leased_until: Stamp::new(9),
        };
        let wire = pb::JoinTaskReply::from(answer.clone());
        assert_eq!(TaskMembership::try_from(wire), Ok(answer.clone()));
        let fewer = TaskMembership { members: vec![member(1)], ..answer.clone() };
        assert_ne!(answer.members_version(), fewer.members_version());
        assert!(!format!("{answer:?}").contains("secret: "));
        let counters = TaskCounters { hits: 7, epoch: Some(0), ..TaskCounters::default() };
        let record = MemberRecord { member: member(2), counters, heard: Stamp::new(9) };
        assert_eq!(MemberRecord::from_bytes(&record.clone().to_bytes()), Ok(record));
        // A record of a server that knew no counts.
        let bytes = pb::TaskMember::from(member(2)).encode_to_vec();
        assert_eq!(MemberRecord::from_bytes(&bytes).map(|record| record.member), Ok(member(2)));
    }

    #[test]
    fn a_request_out_of_bounds_is_refused_by_field() {
        type Change = fn(&mut pb::JoinTaskRequest);
        let changes: [(&str, Change); 7] = [
            ("dataset", |wire| wire.dataset = Bytes::new()),
            ("version", |wire| wire.version = Bytes::from_static(b"short")),
            ("1 to 128 letters, digits or ._:-", |wire| wire.task = "a b".to_owned()),
            ("member", |wire| wire.member = Bytes::from_static(b"short")),
            ("address", |wire| wire.address = "x".repeat(256)),
            ("address", |wire| wire.address = "a\nb".to_owned()),
            ("key_fingerprint", |wire| wire.key_fingerprint = Bytes::from_static(b"short")),
        ];
        for (field, change) in changes {
            let mut wire = pb::JoinTaskRequest::from(request());
            change(&mut wire);
            let error = JoinTask::try_from(wire).expect_err(field);
            assert!(error.to_string().contains(field), "{error}");
        }
    }

    #[test]
    fn a_lease_survives_the_wire_also_damaged() {
        let id = TaskId::from_bytes([4; 16]);
        let whole = TaskLease {
            id,
            task: Some("train".parse().expect("legal")),
            user: "ada".to_owned(),
            version: Version::default(),
            until: Stamp::new(9),
            in_use: true,
        };
        let damaged = TaskLease { task: None, user: String::new(), ..whole.clone() };
        for sent in [whole, damaged] {
            assert_eq!(TaskLease::try_from(pb::TaskLease::from(sent.clone())), Ok(sent));
        }
        let request = EndLeases { dataset: DatasetId::from_bytes([9; 16]), task: id };
        let wire = pb::EndLeasesRequest::from(request);
        assert_eq!(EndLeases::try_from(wire.clone()), Ok(request));
        let short = pb::EndLeasesRequest { task_id: Bytes::from_static(b"short"), ..wire };
        assert!(EndLeases::try_from(short).is_err());
    }

    #[test]
    fn two_users_have_two_tasks_of_one_name() {
        let task = "a".parse().expect("legal");
        assert_ne!(task_id("ada", &task), task_id("bob", &task));
        assert_eq!(task_id("ada", &task), task_id("ada", &task));
    }
}
