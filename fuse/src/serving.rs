//! The process of a server: opens the dataset, takes the channels from its holder, and answers until
//! the mount ends.
//!
//! Must hold: a server opens the version of the mount or ends. A server whose holder has ended goes
//! on until the mount ends.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use libdiesel::agent::{self, DatasetId, Socket};
use libdiesel::{Client, Dataset, DatasetName, Error, Snapshot, SnapshotCache};

use crate::abi::notice;
use crate::channel::Channel;
use crate::following::Follower;
use crate::messages::{FromServer, Shown, ToServer, ids};
use crate::server::{Served, Version, Versions};
use crate::tree::{Owner, Tree};

/// Time for a message to the holder.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time without a message of the holder: a mount may stay for months.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);

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
    pub at: Option<agent::Version>,
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
    fn open_all(&self, wanted: &[Shown]) -> Result<Versions, Refused> {
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
    pub(crate) fn open_newest(&self, generation: u16) -> Result<Version, Refused> {
        let newest = agent::at_servers(&self.client, &self.name)
            .and_then(|dataset| dataset.with_snapshot(self.cache.as_ref()));
        self.version(newest.map_err(self.describe)?, generation)
    }

    /// The mounted folder of a version.
    fn version(&self, dataset: Dataset, generation: u16) -> Result<Version, Refused> {
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

    fn open_version(&self, ids: (DatasetId, agent::Version)) -> Result<Dataset, Error> {
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

    fn at_version(&self, version: agent::Version) -> Result<Dataset, Error> {
        let dataset = agent::at_servers(&self.client, &self.name)?;
        agent::at_version(&dataset, version, self.cache.as_ref())
    }
}

/// Serves a mount, whose holder is at the other end of the socket.
///
/// # Errors
/// Errors of the connection with the holder and with the kernel. A dataset that can't be opened is
/// reported to the holder.
pub fn serve(source: Source, holder: &Arc<Socket>) -> io::Result<()> {
    let Some((ToServer::Open(wanted), _)) = holder.receive::<ToServer>(PATIENCE)? else {
        return Err(io::Error::other("the holder sent no dataset"));
    };
    let versions = match source.open_all(&wanted) {
        Ok(versions) => versions,
        Err(Refused { exit, why }) => {
            return holder.send(&FromServer::Failed { exit, why }, &[], PATIENCE);
        }
    };
    let (shown, task) = (versions.current.shown(), source.task.clone());
    holder.send(&FromServer::Opened { shown, task }, &[], PATIENCE)?;
    let (features, files) = loop {
        match holder.receive::<ToServer>(FOR_EVER)? {
            Some((ToServer::Serve(features), files)) => break (features, files),
            Some(_) => {}
            // The mount has failed.
            None => return Ok(()),
        }
    };
    let channels = channels(files, (!features.resends).then_some(source.threads))?;
    let first = channels.first().ok_or_else(|| io::Error::other("the holder sent no channel"))?;
    if features.resends {
        // An earlier server may have taken requests along.
        first.notify(notice::RESEND, &[])?;
    }
    let (notices, patience) = (first.try_clone()?, source.patience);
    let served = Served::new(versions, patience);
    let follower = Follower {
        source,
        served: Arc::clone(&served),
        holder: Arc::clone(holder),
        notices,
        features,
    };
    let refreshes = follower.start()?;
    let (counted, holder) = (Arc::clone(&served), Arc::clone(holder));
    let report = move || report(&counted, &holder, &refreshes);
    thread::Builder::new().name("holder".to_owned()).spawn(report)?;
    served.run(channels)
}

/// The channels of the holder; or with `threads` as many clones of its only channel, which closes with
/// the holder alone: a kernel that sends nothing again must see the channels of a dead server close.
fn channels(files: Vec<OwnedFd>, threads: Option<NonZeroUsize>) -> io::Result<Vec<Channel>> {
    let channels: Vec<Channel> = files.into_iter().map(Channel::from).collect();
    let first = channels.first().ok_or_else(|| io::Error::other("the holder sent no channel"))?;
    match threads {
        None => Ok(channels),
        Some(threads) => (0..threads.get()).map(|_| first.try_clone()).collect(),
    }
}

/// Answers the holder until its end.
fn report(served: &Served, holder: &Socket, refreshes: &Sender<()>) {
    loop {
        match holder.receive::<ToServer>(FOR_EVER) {
            Ok(Some((ToServer::Count, _))) => {
                let counted = serde_json::to_string(&served.counted()).unwrap_or_default();
                let sent = holder.send(&FromServer::Counted(counted), &[], PATIENCE);
                if let Err(why) = sent {
                    tracing::debug!(%why, "answer the holder");
                }
            }
            Ok(Some((ToServer::Refresh, _))) => {
                // Without the follower no server runs.
                let _ = refreshes.send(());
            }
            Ok(Some(_)) => {}
            Ok(None) => break,
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {}
            Err(why) => {
                tracing::warn!(%why, "the connection with the holder failed");
                break;
            }
        }
    }
    tracing::warn!("the holder of the mount has ended: no other server will follow");
}
