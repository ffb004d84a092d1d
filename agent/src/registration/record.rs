//! Records of registrations in the user's cache folder. A new agent reads them while no server
//! answers.
//!
//! Must hold: only the user can read a record. A record is a hint: other agents prove that they know
//! the secret, and the snapshot checks each byte. Records are few, small and at most a day old.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use dl_format::{DatasetId, MemberId, Stamp, Version};
use dl_proto::{TaskMember, TaskMembership};
use dl_runtime::Clock;
use libdiesel::SnapshotCache;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

/// Lifetime of a record without a registration: as long as the lease on a version.
const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum of records in the folder.
const RECORDS_MAX: usize = 64;

/// Maximum of members in a record: enough to find the chunks.
const MEMBERS_MAX: usize = 64;

/// Maximum bytes of a record.
const BYTES_MAX: u64 = 64 << 10;

const ENDING: &str = "json";

/// The records of a user, a key and a task.
#[derive(Debug)]
pub(crate) struct Records {
    folder: PathBuf,
    /// The name of the agent's socket, which depends on user, key and task.
    owner: String,
    clock: Arc<dyn Clock>,
}

/// The name by which servers found a dataset.
#[derive(Debug, Clone)]
pub(crate) struct FoundName {
    pub(crate) name: String,
    /// The servers.
    pub(crate) hosts: BTreeSet<String>,
}

/// A registration.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    /// The name of the dataset at its servers; empty if the servers did not find the dataset by name.
    name: String,
    /// The servers; empty without a name.
    hosts: BTreeSet<String>,
    dataset: String,
    version: String,
    /// Whether the version is the version of the task, for a dataset with a name.
    is_of_task: bool,
    secret: Vec<u8>,
    members: Vec<RecordedMember>,
}

/// A member of the task.
#[derive(Serialize, Deserialize)]
struct RecordedMember {
    id: String,
    address: String,
    key_fingerprint: Option<[u8; 32]>,
    memory: u64,
    #[serde(default)]
    chunks: Option<u32>,
}

impl Record {
    pub(crate) fn new(
        found: Option<FoundName>,
        (dataset, version): (DatasetId, Version),
        is_of_task: bool,
        joined: &TaskMembership,
    ) -> Self {
        let members = joined.members.iter().filter(|member| !member.address.is_empty());
        let members = members.take(MEMBERS_MAX).map(|member| RecordedMember {
            id: member.id.to_string(),
            address: member.address.clone(),
            key_fingerprint: member.key_fingerprint,
            memory: member.memory,
            chunks: member.chunks,
        });
        let is_of_task = is_of_task && found.is_some();
        let (name, hosts) = found.map(|found| (found.name, found.hosts)).unwrap_or_default();
        Self {
            name,
            hosts,
            dataset: dataset.to_string(),
            version: version.to_string(),
            is_of_task,
            secret: joined.secret.to_vec(),
            members: members.collect(),
        }
    }

    /// The dataset and the version; none for a text of another program.
    pub(crate) fn ids(&self) -> Option<(DatasetId, Version)> {
        Some((self.dataset.parse().ok()?, self.version.parse().ok()?))
    }

    /// The name of the dataset, if known.
    pub(crate) fn found(self) -> Option<FoundName> {
        let Self { name, hosts, .. } = self;
        (!hosts.is_empty()).then_some(FoundName { name, hosts })
    }

    /// The members of the task at the time of the record, with a new member.
    pub(crate) fn membership(&self, me: TaskMember) -> TaskMembership {
        let members = self.members.iter().filter_map(|member| {
            let RecordedMember { id, address, key_fingerprint, memory, chunks } = member;
            let id: MemberId = id.parse().ok()?;
            let (key_fingerprint, memory, chunks) = (*key_fingerprint, *memory, *chunks);
            Some(TaskMember { id, address: address.clone(), key_fingerprint, memory, chunks })
        });
        TaskMembership {
            version: self.ids().map(|(_, version)| version),
            members: members.chain([me]).collect(),
            secret: Bytes::copy_from_slice(&self.secret),
            call_again: Duration::ZERO,
            leased_until: Stamp::default(),
        }
    }
}

impl Records {
    /// The records in the cache folder of the user; none without such a folder.
    pub(crate) fn of_user(owner: &str, clock: Arc<dyn Clock>) -> Option<Self> {
        let cache = SnapshotCache::of_user()?;
        let folder = cache.folder().parent()?.join("tasks");
        Some(Self { folder, owner: owner.to_owned(), clock })
    }

    /// The record of a version.
    pub(crate) fn of_version(&self, (dataset, version): (DatasetId, Version)) -> Option<Record> {
        let record = self.read(&self.path(&dataset.to_string(), &version.to_string())).ok()?.1;
        (record.ids() == Some((dataset, version))).then_some(record)
    }

    /// The newest record of the task's version of a dataset at one of some servers.
    pub(crate) fn of_task(&self, name: &str, hosts: &BTreeSet<String>) -> Option<Record> {
        let records = self.paths().into_iter().filter(|path| self.is_own(path));
        let records = records.filter_map(|path| self.read(&path).ok());
        let records = records.filter(|(_, record)| {
            record.is_of_task && record.name == name && !record.hosts.is_disjoint(hosts)
        });
        Some(records.max_by_key(|(time, _)| *time)?.1)
    }

    /// Writes a record, and removes old records. Blocks.
    pub(crate) fn save(&self, record: &Record) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.path(&record.dataset, &record.version);
        let partial = path.with_extension(format!("{}", std::process::id()));
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
        let mut options = OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.custom_flags(flags).open(&partial)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        fs::rename(&partial, &path)?;
        self.tidy();
        Ok(())
    }

    /// Removes the record of a version. Blocks.
    pub(crate) fn remove(&self, (dataset, version): (DatasetId, Version)) -> io::Result<()> {
        fs::remove_file(self.path(&dataset.to_string(), &version.to_string()))
    }

    /// Removes the oldest records beyond the limit, and other files that are a day old.
    fn tidy(&self) {
        let time = |path: &PathBuf| fs::symlink_metadata(path).and_then(|there| there.modified());
        let mut paths: Vec<_> =
            self.paths().into_iter().filter_map(|path| Some((time(&path).ok()?, path))).collect();
        paths.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        for (number, (time, path)) in paths.into_iter().enumerate() {
            if number >= RECORDS_MAX || self.is_over(time) {
                // Another agent may tidy up at the same time.
                let _ = fs::remove_file(path);
            }
        }
    }

    fn is_over(&self, time: SystemTime) -> bool {
        self.clock.now().duration_since(time).is_ok_and(|age| age > LIFETIME)
    }

    /// The record in a file of the user alone, and its time.
    fn read(&self, path: &Path) -> io::Result<(SystemTime, Record)> {
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as i32;
        let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let there = file.metadata()?;
        let user = rustix::process::geteuid().as_raw();
        let is_own = there.is_file() && there.uid() == user && there.mode() & 0o077 == 0;
        let time = there.modified()?;
        if !is_own || there.len() > BYTES_MAX || self.is_over(time) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        Ok((time, serde_json::from_slice(&text)?))
    }

    fn path(&self, dataset: &str, version: &str) -> PathBuf {
        self.folder.join(format!("{}-{dataset}-{version}.{ENDING}", self.owner))
    }

    fn is_own(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with(&self.owner) && name.ends_with(ENDING)
    }

    fn paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use dl_runtime::SystemClock;

    use super::*;

    fn joined(members: u8) -> TaskMembership {
        let member = |number| TaskMember {
            id: MemberId::from_bytes([number; 16]),
            address: format!("node-{number}:7"),
            key_fingerprint: Some([number; 32]),
            memory: 5,
            chunks: Some(3),
        };
        TaskMembership {
            version: None,
            members: (0..members).map(member).collect(),
            secret: Bytes::from_static(&[9; 32]),
            call_again: Duration::ZERO,
            leased_until: Stamp::default(),
        }
    }

    fn hosts(hosts: &[&str]) -> BTreeSet<String> {
        hosts.iter().map(|host| (*host).to_owned()).collect()
    }

    fn found(name: &str, of: &[&str]) -> Option<FoundName> {
        Some(FoundName { name: name.to_owned(), hosts: hosts(of) })
    }

    fn ids(byte: u8) -> (DatasetId, Version) {
        (DatasetId::from_bytes([byte; 16]), Version::default())
    }

    #[test]
    fn a_record_serves_its_task_and_servers_for_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let records = |owner: &str| Records {
            clock: Arc::new(SystemClock::new()),
            folder: folder.path().join("diesel/tasks"),
            owner: owner.to_owned(),
        };
        let own = records("a");
        let record = Record::new(found("ds", &["x:1", "y:1"]), ids(1), true, &joined(2));
        own.save(&record).unwrap();
        own.save(&Record::new(found("ds", &["x:1"]), ids(2), false, &joined(1))).unwrap();
        let of_task = own.of_task("ds", &hosts(&["y:1"])).unwrap();
        assert_eq!(of_task.ids(), Some(ids(1)));
        let me = TaskMember { id: MemberId::from_bytes([7; 16]), ..joined(1).members[0].clone() };
        let membership = of_task.membership(me.clone());
        assert_eq!(membership.members, [joined(2).members, vec![me]].concat());
        assert_eq!(membership.secret, joined(1).secret);
        assert!(own.of_task("ds", &hosts(&["z:1"])).is_none(), "other servers");
        assert!(own.of_task("other", &hosts(&["x:1"])).is_none(), "another dataset");
        assert!(records("b").of_task("ds", &hosts(&["x:1"])).is_none(), "another key");
        assert!(own.of_version(ids(2)).is_some() && own.of_version(ids(3)).is_none());

        let path = own.path(&ids(1).0.to_string(), &ids(1).1.to_string());
        let file = File::open(&path).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
        file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        assert!(own.of_version(ids(1)).is_none(), "readable for others");
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
        let old = SystemClock::new().now() - LIFETIME - Duration::from_secs(1);
        file.set_modified(old).unwrap();
        assert!(own.of_version(ids(1)).is_none(), "a day old");
        own.save(&Record::new(found("ds", &["x:1"]), ids(2), false, &joined(1))).unwrap();
        assert_eq!(own.paths().len(), 1, "the old record is removed");
        for number in 0..=u8::try_from(RECORDS_MAX).unwrap() {
            own.save(&Record::new(found("ds", &[]), ids(number), true, &joined(100))).unwrap();
        }
        assert_eq!(own.paths().len(), RECORDS_MAX, "bounded");
        assert!(own.paths().iter().all(|path| fs::metadata(path).unwrap().len() < BYTES_MAX));
    }

    #[test]
    fn a_record_without_a_name_is_no_version_of_the_task() {
        let folder = tempfile::tempdir().unwrap();
        let clock = Arc::new(SystemClock::new());
        let records = Records { folder: folder.path().join("tasks"), owner: "a".to_owned(), clock };
        records.save(&Record::new(None, ids(1), true, &joined(1))).unwrap();
        let record = records.of_version(ids(1)).unwrap();
        assert!(!record.is_of_task && record.found().is_none());
        records.save(&Record::new(found("ds", &["x:1"]), ids(1), true, &joined(1))).unwrap();
        let name = records.of_version(ids(1)).and_then(Record::found).unwrap();
        assert_eq!((name.name.as_str(), name.hosts), ("ds", hosts(&["x:1"])));
        records.remove(ids(1)).unwrap();
        assert!(records.of_task("ds", &hosts(&["x:1"])).is_none(), "removed");
        assert!(records.of_version(ids(1)).is_none() && records.paths().is_empty());
    }
}
