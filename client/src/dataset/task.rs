//! Handles that read through the agent of the node.
//!
//! Must hold: without an agent a handle reads from the servers, and logs a single warning.

use std::sync::Arc;
use std::time::Duration;

use dl_format::DatasetName;
use dl_node::{Servers, milliseconds};
use dl_runtime::since_boot;

use super::Dataset;
use super::open::info_of;
use crate::error::{Error, Kind};
use crate::remote::{Client, ClientCertificate, ConnectOptions, RemoteDataset};
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::worker::{AgentReader, Attached, Attacher};

impl Client {
    /// A dataset as held by the agent of the node; none without a task.
    pub(super) fn of_task(&self, name: &DatasetName) -> Result<Option<Dataset>, Error> {
        let Some(attacher) = attacher(self.options(), name) else { return Ok(None) };
        let (snapshot, attached) = match attach(self.options(), &attacher) {
            Ok((attached, snapshot)) => (snapshot, Ok(attached)),
            Err((error, _)) if error.kind() == Kind::NotFound => return Err(error),
            Err((error, took)) => {
                note_uncached(self.options(), name, &error);
                let found = self.find(name)?;
                let cache = attacher.cache();
                // Without a snapshot the servers answer all reads for good.
                let Ok(snapshot) = found.snapshot_of(found.info().version, false, cache) else {
                    return Ok(Some(Dataset::new(found)));
                };
                (Arc::new(snapshot), Err(took))
            }
        };
        for note in attached.iter().flat_map(|attached| &attached.notes) {
            self.options().note(note);
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
    let attached = attach(options, &attacher).map(|(attached, _)| attached);
    let attached = attached.map_err(|(error, took)| {
        note_uncached(options, name, &error);
        took
    });
    Some(Arc::new(AgentReader::new(attacher, Arc::clone(snapshot), attached)))
}

fn attacher(options: &ConnectOptions, name: &DatasetName) -> Option<Attacher> {
    let task = options.task.clone()?;
    let cache = options.snapshots.clone().or_else(SnapshotCache::of_user);
    Some(Attacher::new(task, Servers::from(options), name.as_str().to_owned(), cache))
}

/// Attaches to the agent; an error comes with the duration of the attempt.
fn attach(
    options: &ConnectOptions,
    attacher: &Attacher,
) -> Result<(Attached, Arc<Snapshot>), (Error, Duration)> {
    let began = since_boot();
    let attached = attacher.attach();
    let attached = attached.map_err(|error| (error, since_boot().saturating_sub(began)))?;
    if let Some(note) = attacher.passed_over() {
        options.note(&note);
    }
    Ok(attached)
}

fn note_uncached(options: &ConnectOptions, name: &DatasetName, error: &Error) {
    let why = error.chain();
    options.note(&format!(
        "all files of dl://{name} come from the servers, not from the node's cache: {why}"
    ));
}

/// The settings of a client that an agent needs.
impl From<&ConnectOptions> for Servers {
    fn from(options: &ConnectOptions) -> Self {
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
}

/// Options of a client for reads from the servers.
impl From<&Servers> for ConnectOptions {
    fn from(servers: &Servers) -> Self {
        let certificate = servers.certificate.clone();
        Self {
            user: servers.user.clone(),
            key: servers.key.clone(),
            servers: servers.addresses.clone(),
            ca: servers.ca.clone(),
            certificate: certificate
                .map(|(certificate, key)| ClientCertificate { certificate, key }),
            plain_text_key: servers.plain_text_key,
            connect_timeout: Duration::from_millis(servers.connect_timeout),
            request_timeout: Duration::from_millis(servers.request_timeout),
            ..Self::default()
        }
    }
}
