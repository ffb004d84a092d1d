//! The dataset of a mount, and how its versions are opened.
//!
//! Must hold: a version of the mount is opened as such or not at all.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use dl_format::DatasetId;
use libdiesel::agent;
use libdiesel::{Client, Dataset, DatasetName, Error, Snapshot, SnapshotCache};

use crate::messages::{Shown, ids};
use crate::server::{Version, Versions};
use crate::tree::{Owner, Tree};

/// The dataset of a mount.
#[derive(Debug)]
pub struct Source {
    /// The servers, and the task with its agent.
    pub client: Client,
    /// The dataset.
    pub name: DatasetName,
    /// The job of the mount.
    pub task: String,
    /// The mounted folder; empty for the root.
    pub folder: Vec<u8>,
    /// The snapshots of the user.
    pub cache: Option<SnapshotCache>,
    /// The owner of all entries.
    pub owner: Owner,
    /// Whether the version is that of a job, and not the newest.
    pub has_job: bool,
    /// A version to show in place of the newest.
    pub at: Option<dl_format::Version>,
    /// The interval between two looks for a newer version to show; none to stay at a version.
    pub follow: Option<Duration>,
    /// Time for a read of absent bytes.
    pub patience: Duration,
    /// Threads that answer.
    pub threads: NonZeroUsize,
    /// The text and the exit code for an error of the library.
    pub describe: fn(Error) -> Refused,
    /// The exit code for a missing folder.
    pub exit_of_missing: u8,
}

/// The reason why a server can't start, with the exit code of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// The exit code.
    pub exit: u8,
    /// The text for the user.
    pub why: String,
}

impl Source {
    /// Opens the versions of the mount; without any, the version of the job or the newest version.
    pub(crate) fn open_all(&self, wanted: &[Shown]) -> Result<Versions, Refused> {
        let Some((current, before)) = wanted.split_first() else {
            let opened = match (self.at, self.has_job) {
                (Some(version), _) => self.at_version(version),
                (None, true) => self.client.dataset(&self.name),
                (None, false) => agent::at_servers(&self.client, &self.name),
            };
            let opened = opened.and_then(|dataset| match dataset.snapshot() {
                Some(_) => Ok(dataset),
                None => dataset.with_snapshot(self.cache.as_ref()),
            });
            let current = self.version(opened.map_err(self.describe)?, 0)?;
            return Ok(Versions { current: Arc::new(current), before: None });
        };
        let current = self.open(current)?;
        // Files opened earlier are less than the mount.
        let before = before.first().and_then(|before| {
            let opened = self.open(before);
            let refused = |why: &Refused| tracing::warn!(why.why, "open the version before");
            opened.inspect_err(refused).ok()
        });
        let before = before.map(|before| Arc::new(before.without_agent()));
        Ok(Versions { current: Arc::new(current), before })
    }

    fn open(&self, shown: &Shown) -> Result<Version, Refused> {
        let none = || self.refuse("the holder sent an unknown version");
        let ids = ids(&shown.ids).ok_or_else(none)?;
        self.version(self.open_version(ids).map_err(self.describe)?, shown.generation)
    }

    /// The newest version, in a generation.
    pub(crate) fn open_newest(&self, generation: u32) -> Result<Version, Refused> {
        let newest = agent::at_servers(&self.client, &self.name)
            .and_then(|dataset| dataset.with_snapshot(self.cache.as_ref()));
        self.version(newest.map_err(self.describe)?, generation)
    }

    /// The mounted folder of a version.
    fn version(&self, dataset: Dataset, generation: u32) -> Result<Version, Refused> {
        let snapshot = dataset.snapshot().map(Arc::clone);
        let snapshot = snapshot.ok_or_else(|| self.refuse("it has no snapshot"))?;
        let folder = snapshot.folder(&self.folder).map_err(self.describe)?;
        let folder = folder.ok_or_else(|| self.refuse("there is no such folder"))?;
        let tree = Tree::new(snapshot, folder, self.owner, generation);
        Ok(Version { dataset, tree })
    }

    fn refuse(&self, what: &str) -> Refused {
        let why = format!("mount {}: {what}", self.address());
        Refused { exit: self.exit_of_missing, why }
    }

    fn address(&self) -> String {
        let folder = String::from_utf8_lossy(&self.folder);
        let slash = if folder.is_empty() { "" } else { "/" };
        format!("dl://{}{slash}{folder}", self.name.as_str())
    }

    fn open_version(&self, ids: (DatasetId, dl_format::Version)) -> Result<Dataset, Error> {
        let kept = self.cache.as_ref();
        let kept = kept.and_then(|cache| agent::of_cache(&self.client, &self.name, ids, cache));
        if let Some(dataset) = kept {
            return Ok(dataset);
        }
        let is_it = |snapshot: &Arc<Snapshot>| (snapshot.dataset(), snapshot.version()) == ids;
        if self.has_job {
            let dataset = self.client.dataset(&self.name)?;
            if dataset.snapshot().is_some_and(is_it) {
                return Ok(dataset);
            }
        }
        self.at_version(ids.1)
    }

    fn at_version(&self, version: dl_format::Version) -> Result<Dataset, Error> {
        let dataset = agent::at_servers(&self.client, &self.name)?;
        agent::at_version(&dataset, version, self.cache.as_ref())
    }
}
