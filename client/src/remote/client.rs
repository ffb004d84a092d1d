//! Calls without a dataset handle: find, create and delete datasets, rebuild metadata.
//!
//! Must hold: a repeated call, through any server, has the effect of a single call.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::{ChunkShape, DatasetId, DatasetName, Version};
use dl_proto::pb;
use dl_proto::{Dataset as DatasetInfo, DeletedDataset, Listed, RecoverProgress, RecoverRequest};
use tonic::{Response, Status, Streaming};

use crate::error::Error;
use crate::remote::connections::{Connection, Try};
use crate::remote::dataset::RemoteDataset;
use crate::remote::lookup::{address_of, dataset_address, get_dataset, info};
use crate::remote::options::ConnectOptions;
use crate::remote::session::Shared;
use crate::remote::snapshot::load;
use crate::snapshot::{Key, Origin, Snapshot, SnapshotCache, UserFile};

/// The servers, for a single user. A clone is cheap. Usable from any thread and, after a fork, from
/// any process.
#[derive(Debug, Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
}

impl Client {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`Kind::Unreachable`](crate::Kind::Unreachable) if no server answers within
    /// [`ConnectOptions::connect_timeout`], with each address and cause;
    /// [`Kind::Invalid`](crate::Kind::Invalid) for an invalid address.
    pub fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let client = Self { shared: Arc::new(Shared::new(options)) };
        // A client with a task reads through the agent, even without a server.
        if client.options().task.is_some() {
            return Ok(client);
        }
        let session = client.shared.session()?;
        session.wait(session.connections.check())?;
        Ok(client)
    }

    /// All datasets, by name, with their counts. The servers may have to look at every file.
    /// [`DatasetInfo::counts`] names the problem of a dataset without counts.
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
    pub fn datasets(&self) -> Result<Listed<DatasetInfo>, Error> {
        self.listed(false)
    }

    /// The names of all datasets, in order.
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
    pub fn dataset_names(&self) -> Result<Listed<DatasetName>, Error> {
        let Listed { found, unread } = self.listed(true)?;
        Ok(Listed { found: found.into_iter().map(|info| info.name).collect(), unread })
    }

    fn listed(&self, names_only: bool) -> Result<Listed<DatasetInfo>, Error> {
        let session = self.shared.session()?;
        let subject = || "the datasets".to_owned();
        let usual = session.connections.usual();
        session.wait(session.connections.call(
            "list",
            subject,
            usual,
            |mut server, this| async move {
                let request = this.request(pb::ListDatasetsRequest { names_only });
                Ok(Listed::try_from(this.answer(server.list_datasets(request)).await?)?)
            },
        ))
    }

    pub(crate) fn find(&self, name: &DatasetName) -> Result<RemoteDataset, Error> {
        let session = self.shared.session()?;
        let info = session.wait(get_dataset(&session.connections, name, false))?;
        Ok(self.described(info))
    }

    /// A dataset with a known description.
    pub(crate) fn described(&self, info: DatasetInfo) -> RemoteDataset {
        RemoteDataset::new(Arc::clone(&self.shared), info)
    }

    /// A snapshot from a file, as in [`load`].
    pub(crate) fn load(
        &self,
        file: &UserFile,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        load(file, cache, &self.shared.session()?)
    }

    /// A snapshot from the servers, if a cache has the snapshot.
    pub(crate) fn kept(
        &self,
        (dataset, version): (DatasetId, Version),
        cache: &SnapshotCache,
    ) -> Option<Snapshot> {
        let now = self.shared.session().ok()?.process.clock.now();
        cache.find(Key { origin: Origin::Servers, dataset, version }, now)
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.shared.options
    }

    /// A client without a connection: the first request connects, within the connect timeout.
    pub fn unconnected(options: ConnectOptions) -> Self {
        Self { shared: Arc::new(Shared::new(options)) }
    }

    /// The dataset with a name, created if missing.
    pub(crate) fn create(
        &self,
        name: &DatasetName,
        shape: ChunkShape,
    ) -> Result<RemoteDataset, Error> {
        let session = self.shared.session()?;
        let message = pb::CreateDatasetRequest {
            name: name.as_str().to_owned(),
            chunk_size: shape.size(),
            alignment: shape.alignment(),
        };
        let info = session.wait(session.connections.call(
            "create",
            || dataset_address(name),
            session.connections.usual(),
            |mut server, this| {
                let request = this.request(message.clone());
                async move { info(this.answer(server.create_dataset(request)).await?) }
            },
        ))?;
        Ok(self.described(info))
    }

    /// Deletes a dataset with all its files (paper, DL_delete_dataset). The deletion is final when
    /// the call returns, and the name is free again. Gives the number of objects removed by the
    /// last try; after some 20 seconds, the servers remove the rest in the background.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) for an unknown name.
    pub fn delete_dataset(&self, name: &DatasetName) -> Result<DeletedDataset, Error> {
        let session = self.shared.session()?;
        let connections = &session.connections;
        session.wait(async {
            // A second try by id can't delete a newer dataset of the same name.
            let id = get_dataset(connections, name, false).await?.id;
            let message = pb::DeleteDatasetRequest {
                name: name.as_str().to_owned(),
                id: Bytes::copy_from_slice(id.as_bytes()),
            };
            let attempt = |mut server: Connection, this: Try| {
                let request = this.request(message.clone());
                async move { this.answer(server.delete_dataset(request)).await }
            };
            connections.call("delete", || dataset_address(name), connections.long(), attempt).await
        })
    }

    /// Rebuilds metadata from the chunk store, while readers and writers go on. `progress` receives
    /// each step. Gives the last step of each dataset, with all its remaining problems.
    ///
    /// # Errors
    /// Errors of the servers and of the connection. Problems of datasets are no error: see
    /// [`RecoverProgress::problems`].
    pub fn recover(
        &self,
        request: RecoverRequest,
        progress: &mut dyn FnMut(&RecoverProgress),
    ) -> Result<Vec<RecoverProgress>, Error> {
        let message = pb::RecoverRequest::from(request.clone());
        let last = RefCell::new(BTreeMap::new());
        let open = |mut server: Connection, this: &Try| {
            // The server reports all remaining problems again in each try.
            last.borrow_mut().clear();
            let request = this.request(message.clone());
            async move { server.recover(request).await }
        };
        self.follow(
            "recover",
            || address_of(request.dataset.as_ref()),
            open,
            |message| {
                progress(&message);
                add(&mut last.borrow_mut(), message);
            },
        )?;
        Ok(last.into_inner().into_values().collect())
    }

    /// Sends a request that works through whole datasets until an answer is complete; `take`
    /// receives each message, also of broken answers.
    pub(super) fn follow<Message, Opened>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        open: impl Fn(Connection, &Try) -> Opened,
        take: impl FnMut(Message),
    ) -> Result<(), Error>
    where
        Opened: Future<Output = Result<Response<Streaming<Message>>, Status>>,
    {
        let session = self.shared.session()?;
        let (connections, take) = (&session.connections, RefCell::new(take));
        session.wait(connections.call(action, subject, connections.long(), |server, this| {
            let (opened, take) = (open(server, &this), &take);
            async move {
                let mut stream = this.answer(opened).await?;
                while let Some(message) = this.message(&mut stream).await? {
                    (take.borrow_mut())(message);
                }
                Ok(())
            }
        }))
    }
}

/// Keeps the last step of a dataset, with its earlier problems, which a server reports once.
fn add(last: &mut BTreeMap<String, RecoverProgress>, mut step: RecoverProgress) {
    if let Some(before) = last.remove(&step.dataset) {
        let mut problems = before.problems;
        problems.append(&mut step.problems);
        step.problems = problems;
    }
    last.insert(step.dataset.clone(), step);
}

#[cfg(test)]
mod tests;
