//! A dataset version served by the agent: its snapshot, its table, and the source of its chunks.
//!
//! Must hold: the version never changes while the agent lives, and all workers get the same
//! version.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use dl_format::{DatasetId, DatasetName, TaskName, Version};
use dl_node::{Servers, Table};
use dl_proto::TaskMembership;
use dl_runtime::{Shutdown, blocking, locked};
use libdiesel::agent::{ChunkSource, at_version, by_descriptor, of_cache, snapshot_file};
use libdiesel::{Client, ConnectOptions, Dataset, Error, Kind, Snapshot, SnapshotCache};

use crate::peers::{JobKey, Peers};
use crate::registration::{FoundName, Registration, Terms};

/// Connections to each server: one agent fetches for many processes.
const CONNECTIONS: usize = 4;

/// An open dataset.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) name: String,
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) first_files: Arc<[u32]>,
    pub(crate) table: Arc<Table>,
    pub(crate) source: ChunkSource,
    /// The connection to the servers.
    pub(crate) dataset: Dataset,
    /// The other agents that read the dataset.
    pub(crate) peers: Peers,
    /// The name by which the servers found the dataset; unset while only workers' snapshots name the
    /// dataset.
    pub(crate) found: OnceLock<FoundName>,
    terms: Mutex<Terms>,
    pub(crate) registration: Registration,
    /// Requested when the agent closes the dataset.
    pub(crate) closed: Shutdown,
    /// Descriptors for workers.
    pub(crate) snapshot_file: OwnedFd,
    pub(crate) table_file: OwnedFd,
}

/// The open datasets by number. A number is never used again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opens(Vec<Option<Arc<Open>>>);

impl Opens {
    /// An open dataset.
    pub(crate) fn get(&self, number: usize) -> Option<&Arc<Open>> {
        self.0.get(number)?.as_ref()
    }

    /// All open datasets.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Arc<Open>)> {
        self.0.iter().enumerate().filter_map(|(number, open)| Some((number, open.as_ref()?)))
    }

    /// Adds a dataset; gives its number.
    pub(crate) fn push(&mut self, open: Arc<Open>) -> usize {
        self.0.push(Some(open));
        self.0.len() - 1
    }

    /// Removes a dataset.
    pub(crate) fn remove(&mut self, number: usize) -> Option<Arc<Open>> {
        self.0.get_mut(number)?.take()
    }

    /// The keys for handshakes by number.
    pub(crate) fn keys(&self) -> Vec<Option<JobKey>> {
        self.0.iter().map(|open| open.as_ref()?.peers.key()).collect()
    }
}

/// The reason for a dataset that can't be opened.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) is_missing: bool,
    pub(crate) reason: String,
}

impl Refusal {
    pub(crate) fn because(why: &dyn std::error::Error) -> Self {
        Self { is_missing: false, reason: chain(why) }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { is_missing: error.kind() == Kind::NotFound, ..Self::because(&error) }
    }
}

impl Open {
    /// Finds a dataset on its servers. Blocks.
    pub(crate) fn find(name: &DatasetName, servers: &Servers) -> Result<Dataset, Error> {
        Client::connect(options(servers))?.dataset(name)
    }

    /// A handle at a version that a worker already has, by the file of the worker's snapshot, else
    /// from the user's cache. Asks no server. Blocks.
    pub(crate) fn handed(
        name: &DatasetName,
        servers: &Servers,
        ids: (DatasetId, Version),
        handed: Option<OwnedFd>,
    ) -> Result<Dataset, Refusal> {
        let (client, cache) = (Client::unconnected(options(servers)), SnapshotCache::of_user());
        let found = match (handed, &cache) {
            (Some(file), _) => Some(by_descriptor(&client, name, file, cache.as_ref())?),
            (None, Some(cache)) => of_cache(&client, name, ids, cache),
            (None, None) => None,
        };
        let is_wanted = |found: &Dataset| (found.info().id, found.info().version) == ids;
        found.filter(is_wanted).ok_or_else(|| {
            let reason = format!("the agent has no snapshot of version {}", ids.1);
            Refusal { is_missing: false, reason }
        })
    }

    /// Opens a dataset at the version read by the task. The newest version is used if the task's
    /// version is unknown or gone from the servers. Blocks.
    pub(crate) fn new(
        name: &str,
        dataset: &Dataset,
        version: Option<Version>,
        peers: Peers,
    ) -> Result<Self, Refusal> {
        let cache = SnapshotCache::of_user();
        let of_task = version.map(|version| at_version(dataset, version, cache.as_ref()));
        let dataset = match of_task {
            Some(Err(why)) if why.kind() == Kind::NotFound => {
                let why = chain(&why);
                tracing::warn!(
                    dataset = name,
                    ?version,
                    why,
                    "the servers no longer have the version of the task"
                );
                dataset.with_snapshot(cache.as_ref())?
            }
            Some(opened) => opened?,
            None => dataset.with_snapshot(cache.as_ref())?,
        };
        Self::of(name, dataset, peers)
    }

    /// Opens a dataset at the version of a handle with a snapshot. Blocks.
    pub(crate) fn of(name: &str, dataset: Dataset, peers: Peers) -> Result<Self, Refusal> {
        let cache = SnapshotCache::of_user();
        let Some(snapshot) = dataset.snapshot().map(Arc::clone) else {
            let reason = "the dataset has no snapshot".to_owned();
            return Err(Refusal { is_missing: false, reason });
        };
        let first_files = snapshot.first_files()?;
        let (table, table_file) =
            Table::create(snapshot.holders()).map_err(|why| Refusal::because(&why))?;
        let file = snapshot_file(&snapshot, cache.as_ref());
        let snapshot_file = file.map_err(|why| Refusal::because(&why))?;
        let source = ChunkSource::of(&dataset)?;
        let name = name.to_owned();
        Ok(Self {
            name,
            snapshot,
            first_files,
            table: Arc::new(table),
            source,
            dataset,
            peers,
            found: OnceLock::new(),
            terms: Mutex::default(),
            registration: Registration::default(),
            closed: Shutdown::new(),
            snapshot_file,
            table_file,
        })
    }
}

impl Open {
    /// The dataset and its version.
    pub(crate) fn ids(&self) -> (DatasetId, Version) {
        (self.snapshot.dataset(), self.snapshot.version())
    }

    /// The terms of the registration.
    pub(crate) fn terms(&self) -> Terms {
        *locked(&self.terms)
    }

    pub(crate) fn set_terms(&self, terms: Terms) {
        *locked(&self.terms) = terms;
    }

    /// Facts that a user of the task should know.
    pub(crate) fn notes(&self, task: &TaskName) -> Vec<String> {
        let is_beside = self.terms() == Terms::Beside;
        self.registration.notes(&self.name, self.snapshot.version(), task, is_beside)
    }

    /// Takes the servers' answer for the task; returns whether the members have changed.
    pub(crate) fn apply_membership(&self, joined: &TaskMembership) -> bool {
        self.registration.answered(joined);
        self.peers.update(self.snapshot.dataset(), self.snapshot.version(), joined)
    }
}

fn options(servers: &Servers) -> ConnectOptions {
    ConnectOptions { connections_per_server: CONNECTIONS, ..ConnectOptions::from(servers) }
}

/// Runs blocking work on a thread for blocking work.
pub(crate) async fn unblocked<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    blocking::run(work).await.map_err(|why| Refusal::because(&why))?
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |why| why.source());
    causes.fold(error.to_string(), |text, why| format!("{text}: {why}"))
}
