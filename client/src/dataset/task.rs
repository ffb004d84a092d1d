//! Handles that read through the agent of the node.
//!
//! Must hold: without an agent a handle reads from the servers, and logs a single warning.

use std::sync::Arc;
use std::time::Duration;

use dl_format::DatasetName;

use super::Dataset;
use super::open::info_of;
use crate::error::{Error, Kind};
use crate::remote::{Client, ClientCertificate, ConnectOptions};
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::worker::message::{Servers, milliseconds};
use crate::worker::{AgentReader, Attacher};

impl Client {
    /// A dataset as held by the agent of the node; none without a task.
    pub(super) fn of_task(&self, name: &DatasetName) -> Result<Option<Dataset>, Error> {
        let Some(task) = &self.options().task else { return Ok(None) };
        let servers = Servers::of(self.options());
        let attacher = Attacher::new(task.clone(), servers, name.as_str().to_owned());
        let (attached, file) = match attacher.attach() {
            Ok(attached) => attached,
            Err(error) if error.kind() == Kind::NotFound => return Err(error),
            Err(error) => {
                let why = error.chain();
                tracing::warn!(%name, why, "reading without the node's cache");
                self.options().on_uncached.as_ref().inspect(|tell| tell(&why));
                return self.until_attached(name, attacher).map(Some);
            }
        };
        let snapshot = Arc::new(Snapshot::map_shared(&file, "the agent's snapshot".as_ref())?);
        let remote = self.described(info_of(name, &snapshot));
        let worker = AgentReader::new(attacher, Arc::clone(&snapshot), Some(attached));
        Ok(Some(Dataset::with(remote, Some(snapshot), Some(Arc::new(worker)))))
    }

    /// A dataset by its newest snapshot, read from the servers until an agent with the same version
    /// runs. Without a snapshot the servers answer all reads for good.
    fn until_attached(&self, name: &DatasetName, attacher: Attacher) -> Result<Dataset, Error> {
        let dataset = Dataset::new(self.find(name)?);
        let cache = self.options().snapshots.clone().or_else(SnapshotCache::of_user);
        let Ok(dataset) = dataset.with_snapshot(cache.as_ref()) else { return Ok(dataset) };
        let Some(snapshot) = dataset.snapshot().map(Arc::clone) else { return Ok(dataset) };
        let worker = AgentReader::new(attacher, Arc::clone(&snapshot), None);
        let remote = self.described(info_of(name, &snapshot));
        Ok(Dataset::with(remote, Some(snapshot), Some(Arc::new(worker))))
    }
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
