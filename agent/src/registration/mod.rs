//! The registration of an open dataset with the servers: the version of the task, and notes for
//! users.
//!
//! Must hold: a dataset is served at a single version, whatever the servers answer later.

mod record;
mod terms;

use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dl_format::{Stamp, TaskName, Version};
use dl_proto::TaskMembership;
use dl_runtime::locked;

pub(crate) use record::{FoundName, Record, Records};
pub(crate) use terms::Terms;

/// The last answers of the servers.
#[derive(Debug, Default)]
pub(crate) struct Registration(Mutex<Answers>);

#[derive(Debug, Default)]
struct Answers {
    /// The end of the lease.
    until: Option<Stamp>,
    /// Whether the dataset was opened before the registration.
    is_late: bool,
    /// Whether the version is the last known version of the task, which no server has confirmed yet.
    is_recorded: bool,
    /// The lag of the version behind the newest version, and whether only ended agents read it.
    lag: Option<(Duration, bool)>,
    /// The reason for missing answers.
    failure: Option<String>,
}

impl Registration {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        locked(&self.0)
    }

    /// Notes the answer to a registration.
    pub(crate) fn answered(&self, joined: &TaskMembership) {
        let mut answers = self.answers();
        answers.until = Some(joined.leased_until);
        answers.failure = None;
        answers.is_recorded = false;
    }

    /// Notes the first answer, for a task without a version of its own choice.
    pub(crate) fn began(&self, joined: &TaskMembership, newest: Version) {
        let stamp = |version: Version| version.last_stamp().map(Stamp::time);
        let stamps = joined.version.and_then(stamp).zip(stamp(newest));
        let lag = stamps.and_then(|(task, newest)| newest.duration_since(task).ok());
        let lag = lag.filter(|lag| !lag.is_zero());
        self.answers().lag = lag.map(|lag| (lag, joined.members.len() <= 1));
    }

    /// Notes that the dataset was opened without a registration.
    pub(crate) fn began_late(&self, why: &str) {
        self.answers().is_late = true;
        self.failed(why);
    }

    /// Notes that the last known version of the task was opened, as no server answers.
    pub(crate) fn began_recorded(&self, why: &str) {
        self.answers().is_recorded = true;
        self.began_late(why);
    }

    /// Notes a registration without an answer.
    pub(crate) fn failed(&self, why: &str) {
        self.answers().failure = Some(why.to_owned());
    }

    /// The end of the lease, in microseconds since 1970.
    pub(crate) fn leased_until(&self) -> Option<u64> {
        self.answers().until.map(Stamp::get)
    }

    /// Facts that a user of the job should know, for a dataset open at a version. `is_beside`: the
    /// task reads another version.
    pub(crate) fn notes(
        &self,
        name: &str,
        version: Version,
        task: &TaskName,
        is_beside: bool,
    ) -> Vec<String> {
        let answers = self.answers();
        let failure = answers.failure.as_ref().map(|why| match answers.is_recorded {
            true => format!(
                "dl://{name}: no server answers: the last known version {version} of task {task} is \
                 read, and the agent can't renew its lease now: {why}"
            ),
            false => format!(
                "dl://{name}: the agent can't register with the servers now, so no lease protects \
                 version {version}; reads go on: {why}"
            ),
        });
        let other = (answers.is_late && is_beside).then(|| {
            format!(
                "dl://{name}: this node reads version {version}, other nodes of task {task} read \
                 another version; to read the same version, run dlcmd agent stop here and start the \
                 processes of this node again"
            )
        });
        let lag = answers.lag.map(|(lag, is_left)| {
            let lag = in_words(lag);
            match is_left {
                true => format!(
                    "dl://{name}: task {task} reads a version {lag} older than the newest: agents \
                     of the task that ended without leave lease it, for 24 h after their last sign \
                     of life. To read the newest version, run dlcmd agent stop and start again, or \
                     give another --task"
                ),
                false => format!(
                    "dl://{name}: task {task} reads a version {lag} older than the newest, as its \
                     other agents do"
                ),
            }
        });
        lag.into_iter().chain(other).chain(failure).collect()
    }
}

/// A time with its largest unit, rounded down.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} min", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use dl_format::MemberId;
    use dl_proto::TaskMember;

    use super::*;

    const HOUR: u64 = 3_600_000_000;

    fn version(stamp: u64) -> Version {
        let mut bytes = [1; Version::LENGTH];
        let (_, last) = bytes.split_at_mut(16);
        last.copy_from_slice(&stamp.to_le_bytes());
        Version::from_bytes(&bytes).unwrap()
    }

    fn joined(version: Version, members: u8) -> TaskMembership {
        let member = |number| TaskMember {
            id: MemberId::from_bytes([number; 16]),
            address: String::new(),
            key_fingerprint: None,
            memory: 1,
            chunks: None,
        };
        TaskMembership {
            version: Some(version),
            members: (0..members).map(member).collect(),
            secret: Bytes::new(),
            call_again: Duration::ZERO,
            leased_until: Stamp::new(9),
        }
    }

    #[test]
    fn an_old_version_is_noted_with_its_age_and_reason() {
        let task = "job".parse().unwrap();
        let (old, newest) = (version(HOUR), version(31 * HOUR));
        for (members, says) in [(1, "ended without leave"), (2, "as its other agents do")] {
            let registration = Registration::default();
            registration.began(&joined(old, members), newest);
            let notes = registration.notes("ds", old, &task, false);
            let [note] = notes.as_slice() else { panic!("{notes:?}") };
            assert!(note.contains("30 h older") && note.contains(says), "{note}");
        }
        let registration = Registration::default();
        registration.began(&joined(newest, 1), newest);
        registration.answered(&joined(newest, 1));
        assert_eq!(registration.notes("ds", newest, &task, false), Vec::<String>::new());
        assert_eq!(registration.leased_until(), Some(9));
    }

    #[test]
    fn a_missing_registration_is_noted_until_servers_answer() {
        let task = "job".parse().unwrap();
        let registration = Registration::default();
        registration.began_late("no answer");
        assert!(registration.notes("ds", version(1), &task, false)[0].contains("no answer"));
        registration.answered(&joined(version(2), 2));
        let notes = registration.notes("ds", version(1), &task, true);
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(note.contains("other nodes of task job read"), "{note}");
    }

    #[test]
    fn the_last_known_version_is_noted_until_the_servers_answer() {
        let task = "job".parse().unwrap();
        let registration = Registration::default();
        registration.began_recorded("refused");
        registration.failed("refused again");
        let notes = registration.notes("ds", version(1), &task, false);
        let [note] = notes.as_slice() else { panic!("{notes:?}") };
        assert!(note.contains("last known version") && note.contains("refused again"), "{note}");
        assert_eq!(registration.leased_until(), None);
        registration.answered(&joined(version(1), 1));
        assert_eq!(registration.notes("ds", version(1), &task, false), Vec::<String>::new());
    }
}
