//! The process of a server: opens the dataset, takes the channels from its holder, and answers until
//! the mount ends.
//!
//! Must hold: a server opens the version of the mount or ends. A server whose holder has ended goes
//! on until the mount ends.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use libdiesel::agent::{self, DatasetId, Socket, Version};
use libdiesel::{Client, Dataset, DatasetName, Error, Snapshot, SnapshotCache};

use crate::abi::notice;
use crate::channel::Channel;
use crate::messages::{FromServer, Ids, ToServer, ids, ids_of};
use crate::server::Served;
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
    /// Opens the dataset: at a version, else at that of the task. Gives the folder too.
    fn open(&self, wanted: Option<&Ids>) -> Result<(Dataset, Tree), Refused> {
        let failed = |error| (self.describe)(error);
        let dataset = match wanted.and_then(ids) {
            Some(ids) => self.open_version(ids),
            None => self.client.dataset(&self.name),
        };
        let dataset = dataset.map_err(failed)?;
        let dataset = match dataset.snapshot() {
            Some(_) => dataset,
            None => dataset.with_snapshot(self.cache.as_ref()).map_err(failed)?,
        };
        let none = |what: &str| Refused {
            exit: self.exit_of_missing,
            why: format!("mount {}: {what}", self.address()),
        };
        let snapshot =
            dataset.snapshot().map(Arc::clone).ok_or_else(|| none("it has no snapshot"))?;
        let folder = snapshot.folder(&self.folder).map_err(failed)?;
        let folder = folder.ok_or_else(|| none("there is no such folder"))?;
        let tree = Tree::new(snapshot, folder, self.owner);
        Ok((dataset, tree))
    }

    fn address(&self) -> String {
        let folder = String::from_utf8_lossy(&self.folder);
        let slash = if folder.is_empty() { "" } else { "/" };
        format!("dl://{}{slash}{folder}", self.name.as_str())
    }

    fn open_version(&self, ids: (DatasetId, Version)) -> Result<Dataset, Error> {
        let kept = self.cache.as_ref();
        let kept = kept.and_then(|cache| agent::of_cache(&self.client, &self.name, ids, cache));
        if let Some(dataset) = kept {
            return Ok(dataset);
        }
        let dataset = self.client.dataset(&self.name)?;
        let is_it = |snapshot: &Arc<Snapshot>| (snapshot.dataset(), snapshot.version()) == ids;
        if dataset.snapshot().is_some_and(is_it) {
            return Ok(dataset);
        }
        agent::at_version(&dataset, ids.1, self.cache.as_ref())
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
    let (dataset, tree) = match source.open(wanted.as_ref()) {
        Ok(opened) => opened,
        Err(Refused { exit, why }) => {
            return holder.send(&FromServer::Failed { exit, why }, &[], PATIENCE);
        }
    };
    let snapshot = tree.snapshot();
    let ids = ids_of((snapshot.dataset(), snapshot.version()));
    let task = source.task.clone();
    holder.send(&FromServer::Opened { ids, task }, &[], PATIENCE)?;
    let (clones, resends, files) = loop {
        match holder.receive::<ToServer>(FOR_EVER)? {
            Some((ToServer::Serve { clones, resends }, files)) => break (clones, resends, files),
            Some(_) => {}
            // The mount has failed.
            None => return Ok(()),
        }
    };
    let channels = channels(files, clones.then_some(source.threads))?;
    if let Some(first) = channels.first().filter(|_| resends) {
        // An earlier server may have taken requests along.
        first.notify(notice::RESEND)?;
    }
    let served = Served::new(dataset, tree, source.patience);
    let (counted, holder) = (Arc::clone(&served), Arc::clone(holder));
    thread::Builder::new().name("holder".to_owned()).spawn(move || report(&counted, &holder))?;
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
fn report(served: &Served, holder: &Socket) {
    loop {
        match holder.receive::<ToServer>(FOR_EVER) {
            Ok(Some((ToServer::Count, _))) => {
                let counted = serde_json::to_string(&served.counted()).unwrap_or_default();
                let sent = holder.send(&FromServer::Counted(counted), &[], PATIENCE);
                if let Err(why) = sent {
                    tracing::debug!(%why, "answer the holder");
                }
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
