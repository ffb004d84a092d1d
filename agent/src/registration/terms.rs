//! The terms under which an agent registers for a version of a dataset.
//!
//! Must hold: agents of a task that read the same version register under the same name, and so find
//! each other. A version that the servers have is leased.

use dl_format::{TaskName, Version};
use dl_proto::{TaskMembership, task_id};
use libdiesel::Kind;

/// The terms of a version. The servers keep one version for each name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Terms {
    /// As the version of the task.
    #[default]
    OfTask,
    /// As another version beside the version of the task, under a name of its own.
    Beside,
    /// Under the same name, but the servers have no snapshot of the version any more: the lease is on
    /// the newest version, and the registration serves only to find the other agents.
    Unleased,
}

impl Terms {
    /// The name of the registration.
    pub(crate) fn name(self, task: &TaskName, version: Version) -> TaskName {
        if self == Self::OfTask {
            return task.clone();
        }
        let named = format!("{task}:{version}").parse();
        // The hash stands for a long name.
        let hashed = || format!("{}:{version}", task_id("", task)).parse();
        named.or_else(|_| hashed()).unwrap_or_else(|_| task.clone())
    }

    /// The version to lease; none for the newest.
    pub(crate) fn version(self, version: Version) -> Option<Version> {
        Some(version).filter(|_| self != Self::Unleased)
    }

    /// The terms to try next, if the answer of the servers calls for others.
    pub(crate) fn after(
        self,
        version: Version,
        answer: Result<&TaskMembership, Kind>,
    ) -> Option<Self> {
        match (self, answer) {
            (Self::OfTask, Ok(joined)) if joined.version != Some(version) => Some(Self::Beside),
            (Self::OfTask | Self::Beside, Err(Kind::NotFound)) => Some(Self::Unleased),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_of_a_task_has_its_own_name() {
        let version = Version::default();
        for length in [1, 71, 72, 128] {
            let task: TaskName = "x".repeat(length).parse().unwrap();
            let other: TaskName = "y".repeat(length).parse().unwrap();
            let name = |terms: Terms| terms.name(&task, version);
            assert_eq!(name(Terms::OfTask), task);
            assert_eq!(name(Terms::Beside), name(Terms::Unleased));
            assert_ne!(name(Terms::Beside), task);
            assert_ne!(name(Terms::Beside), Terms::Beside.name(&other, version));
        }
    }
}
