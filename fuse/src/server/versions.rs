//! The versions that a mount shows: the current version, and the version before for files opened
//! earlier.
//!
//! Must hold: the top folder is that of the current version. All other entries stay with the version of
//! their node id, or are gone.

use std::sync::Arc;

use libdiesel::{Dataset, agent};

use crate::messages::{Shown, ids_of};
use crate::tree::{Tree, generation_of};

/// A dataset version and its tree.
#[derive(Debug)]
pub(crate) struct Version {
    pub(crate) dataset: Dataset,
    pub(crate) tree: Tree,
}

/// The versions of a mount.
#[derive(Debug)]
pub(crate) struct Versions {
    pub(crate) current: Arc<Version>,
    pub(crate) before: Option<Arc<Version>>,
}

impl Version {
    fn generation(&self) -> u32 {
        self.tree.numbers().generation
    }

    /// The same, with all bytes from the servers: the agent then closes the version.
    pub(crate) fn without_agent(&self) -> Self {
        Self { dataset: agent::without_agent(&self.dataset), tree: self.tree.clone() }
    }

    /// The version for messages.
    pub(crate) fn shown(&self) -> Shown {
        let snapshot = self.tree.snapshot();
        let ids = ids_of((snapshot.dataset(), snapshot.version()));
        Shown { generation: self.generation(), ids }
    }
}

impl Versions {
    /// The version of a node; none for a version that is no longer there.
    pub(super) fn of(&self, node: u64) -> Option<&Arc<Version>> {
        match generation_of(node) {
            None => Some(&self.current),
            Some(generation) if generation == self.current.generation() => Some(&self.current),
            Some(generation) => {
                self.before.as_ref().filter(|before| before.generation() == generation)
            }
        }
    }

    /// Both versions.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Version>> {
        [&self.current].into_iter().chain(&self.before)
    }
}
