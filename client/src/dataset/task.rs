//! Handles that read through the agent of the node.
//!
//! Must hold: without an agent a handle reads from the servers, and logs a single warning.

use std::sync::Arc;
use std::time::Duration;

use dl_format::DatasetName;

use super::Dataset;
use super::open::info_of;
use crate::error::{Error, Kind};
use crate::remote::{Client, ClientCertificate, ConnectOptions, RemoteDataset};
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::worker::message::{Servers, milliseconds};
use crate::worker::{AgentReader, Attacher};

impl Client {
    /// A dataset as held by the agent of the node; none without a task.
    pub(super) fn of_task(&self, name: &DatasetName) -> Result<Option<Dataset>, Error> {
        let Some(attacher) = attacher(self.options(), name) else { return Ok(None) };
        let (snapshot, attached) = match attacher.attach() {
            Ok((attached, snapshot)) => (snapshot, Some(attached)),
            Err(error) if error.kind() == Kind::NotFound => return Err(error),
            Err(error) => {
                note_uncached(self.options(), name, &error);
                let found = self.find(name)?;
                let cache = attacher.cache();
                // Without a snapshot the servers answer all reads for good.
                let Ok(snapshot) = found.snapshot_of(found.info().version, false, cache) else {
                    return Ok(Some(Dataset::new(found)));
                };
                (Arc::new(snapshot), None)
            }
        };
        for note in attached.iter().flat_map(|attached| &attached.notes) {
            tracing::warn!("{note}");
            self.options().on_note.as_ref().inspect(|tell| tell(note));
        }
        let remote = self.described(info_of(name, &snapshot));
        let worker = AgentReader::new(attacher, Arc::clone(&snapshot), attached);
        Ok(Some(Dataset::with(remote, Some(snapshot), Some(Arc::new(worker)))))
    }
}

/// A reader of the version of a snapshot through the agent of the node; none without a task. Without
/// an agent the servers give all files until an agent runs.
pub(super) fn reader_of(
    remote: &RemoteDataset,
    snapshot: &Arc<Snapshot>,
) -> Option<Arc<AgentReader>> {
    let (options, name) = (remote.options(), &remote.info().name);
    let attacher = attacher(options, name)?.of_version(Arc::clone(snapshot));
    let attached = match attacher.attach() {
        Ok((attached, _)) => Some(attached),
        Err(error) => {
            note_uncached(options, name, &error);
            None
        }
    };
    Some(Arc::new(AgentReader::new(attacher, Arc::clone(snapshot), attached)))
}

fn attacher(options: &ConnectOptions, name: &DatasetName) -> Option<Attacher> {
    let task = options.task.clone()?;
    let cache = options.snapshots.clone().or_else(SnapshotCache::of_user);
    Some(Attacher::new(task, Servers::of(options), name.as_str().to_owned(), cache))
}

fn note_uncached(options: &ConnectOptions, name: &DatasetName, error: &Error) {
    let why = error.chain();
    tracing::warn!(%name, why, "reading without the node's cache");
    options.on_uncached.as_ref().inspect(|tell| tell(&why));
}

impl Servers {
    /// The settings of a client that an agent needs.
    pub fn of(options: &ConnectOptions) -> Self {
        let certificate = options.certificate.as_ref();
        Self {
            user: options.user.clone(),
            key: options.key.clone(),
            addresses: options.servers.clone(),
            ca: options.ca.clone(),
            certificate: certificate.map(|files| (files.certificate.clone(), files.key.clone())),
            plain_text_key: options.plain_text_key,
            connect_timeout: milliseconds(options.connect_timeout),
            request_timeout: milliseconds(options.request_timeout),
        }
    }

    /// Options of a client for reads from the servers.
    pub fn options(&self) -> ConnectOptions {
        let certificate = self.certificate.clone();
        ConnectOptions {
            user: self.user.clone(),
            key: self.key.clone(),
            servers: self.addresses.clone(),
            ca: self.ca.clone(),
            certificate: certificate
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            plain_text_key: self.plain_text_key,
            connect_timeout: Duration::from_millis(self.connect_timeout),
            request_timeout: Duration::from_millis(self.request_timeout),
            ..ConnectOptions::default()
        }
    }
}
