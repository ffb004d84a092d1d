//! The lease of a training job on a version of a dataset, and the name of a job.
//!
//! Must hold: a lease is accepted only if its checksum and all of its fields are valid. Names are
//! printable ASCII, so they can be displayed unchanged.

use std::fmt;
use std::str::FromStr;

use crate::decode::Cursor;
use crate::encode::FieldWriter;
use crate::error::DecodeError;
use crate::id::{DatasetId, Stamp};
use crate::layout::{FORMAT_VERSION, LEASE_LEN, LEASE_MAGIC, LEASE_USER_MAX, TASK_NAME_MAX};
use crate::record::{open, seal};
use crate::version::Version;

/// The name of a training job, chosen by its user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName(String);

/// A text that is no valid name of a training job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the name of a task has 1 to 128 letters, digits or ._:-")]
pub struct InvalidTaskName;

impl TaskName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TaskName {
    type Err = InvalidTaskName;

    fn from_str(text: &str) -> Result<Self, InvalidTaskName> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let is_name = (1..=TASK_NAME_MAX).contains(&text.len()) && text.bytes().all(is_legal);
        is_name.then(|| Self(text.to_owned())).ok_or(InvalidTaskName)
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The claim of a training job to keep a version of a dataset readable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// The dataset.
    pub dataset: DatasetId,
    /// The version read by the job.
    pub version: Version,
    /// The end of the claim.
    pub until: Stamp,
    /// The job's user; empty for servers without users.
    pub user: String,
    /// The job.
    pub task: TaskName,
}

impl Lease {
    /// The object's bytes. Too long user names are cut off.
    pub fn encode(&self) -> Vec<u8> {
        let user = self.user.as_bytes();
        let user = user.get(..LEASE_USER_MAX).unwrap_or(user);
        let task = self.task.as_str().as_bytes();
        let length = |text: &[u8]| [u8::try_from(text.len()).unwrap_or(u8::MAX)];
        let mut head = [0; LEASE_LEN];
        let mut put = FieldWriter(&mut head);
        put.field(&LEASE_MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&length(user));
        put.field(&length(task));
        put.field(self.dataset.as_bytes());
        put.field(&self.version.to_bytes());
        put.field(&self.until.get().to_le_bytes());
        seal([&head, user, task, &[0; 4]].concat())
    }

    /// Checks and decodes the object.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut cursor = open(bytes, LEASE_MAGIC, bytes.len())?;
        let [user_length, task_length] = cursor.array("lengths")?.map(usize::from);
        let dataset = DatasetId::from_bytes(cursor.array("dataset id")?);
        let version = Version::from_bytes(&cursor.array::<{ Version::LENGTH }>("version")?)?;
        let until = Stamp::new(cursor.u64("until")?);
        let at = cursor.offset();
        let user = text(&mut cursor, user_length, "user")?.to_owned();
        if user.len() > LEASE_USER_MAX || !user.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(DecodeError::new("user", at, "is no user's name"));
        }
        let at = cursor.offset();
        let task = text(&mut cursor, task_length, "task")?.parse();
        let task = task.map_err(|_| DecodeError::new("task", at, "is no task's name"))?;
        let end = bytes.len().saturating_sub(4);
        if cursor.offset() != end {
            return Err(DecodeError::new("checksum", end, "the object has another length"));
        }
        Ok(Self { dataset, version, until, user, task })
    }
}

fn text<'a>(
    cursor: &mut Cursor<'a>,
    length: usize,
    field: &'static str,
) -> Result<&'a str, DecodeError> {
    let at = cursor.offset();
    let bytes = cursor.slice(length, field)?;
    str::from_utf8(bytes).map_err(|_| DecodeError::new(field, at, "is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_reads_back() {
        for (user, task) in [("", "t".to_owned()), ("ada@example", "a:b-2".to_owned()), {
            ("u", "x".repeat(TASK_NAME_MAX))
        }] {
            let Ok(task) = task.parse() else { unreachable!("legal") };
            let (dataset, version) = (DatasetId::from_bytes([7; 16]), Version::default());
            let lease =
                Lease { dataset, version, until: Stamp::new(5), user: user.to_owned(), task };
            assert_eq!(Lease::decode(&lease.encode()), Ok(lease));
        }
    }

    #[test]
    fn a_task_name_is_short_and_printable() {
        for name in ["", " ", "a b", "a/b", "\u{e9}", "a\n", &"x".repeat(129)] {
            assert!(name.parse::<TaskName>().is_err(), "{name:?}");
        }
        assert_eq!(
            "Run-7.b:2".parse::<TaskName>().map(|name| name.to_string()),
            Ok("Run-7.b:2".to_owned())
        );
    }
}
