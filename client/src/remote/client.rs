//! What can be done without a dataset at hand: find, create and delete datasets, rebuild metadata.
//!
//! Must hold: what is done can be asked for again, through any server, with the effect of one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::{ChunkShape, DatasetName};
use dl_proto::pb;
use dl_proto::{Dataset as DatasetInfo, DeletedDataset, Listed, RecoverProgress, RecoverRequest};

use crate::error::Error;
use crate::remote::connections::{Connection, Try};
use crate::remote::dataset::RemoteDataset;
use crate::remote::lookup::{dataset_address, get_dataset, info};
use crate::remote::options::ConnectOptions;
use crate::remote::session::Shared;
use crate::remote::snapshot::load;
use crate::snapshot::{Snapshot, SnapshotCache};

/// The servers, as one user sees them. Cheap to clone; usable from any thread and, after a fork,
/// from any process.
#[derive(Debug, Clone)]
pub struct Client {
    pub(super) shared: Arc<Shared>,
}

impl Client {
    /// Connects to the servers.
    ///
    /// # Errors
    /// [`Kind::Unreachable`](crate::Kind::Unreachable) when none answered in
    /// [`ConnectOptions::connect_timeout`], with each address and the reason;
    /// [`Kind::Invalid`](crate::Kind::Invalid) for what is no address.
    pub fn connect(options: ConnectOptions) -> Result<Self, Error> {
        let client = Self { shared: Arc::new(Shared::new(options)) };
        // The agent asks the servers, and goes on without them.
        if client.options().task.is_some() {
            return Ok(client);
        }
        let session = client.shared.session()?;
        session.wait(session.connections.check())?;
        Ok(client)
    }

    /// All datasets, by name, with their counts, for which the servers may have to look at every
    /// file. What is wrong with one of them is in its [`DatasetInfo::counts`].
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn datasets(&self) -> Result<Listed<DatasetInfo>, Error> {
        self.listed(false)
    }

    /// The names of all datasets, in order.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
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

    /// A dataset that exists.
    pub(crate) fn find(&self, name: &DatasetName) -> Result<RemoteDataset, Error> {
        let session = self.shared.session()?;
        let info = session.wait(get_dataset(&session.connections, name, false))?;
        Ok(self.described(info))
    }

    /// A dataset of which this is said.
    pub(crate) fn described(&self, info: DatasetInfo) -> RemoteDataset {
        RemoteDataset::new(Arc::clone(&self.shared), info)
    }

    /// A snapshot in a file, as [`load`] gives it.
    pub(crate) fn load(
        &self,
        file: &Path,
        cache: Option<&SnapshotCache>,
    ) -> Result<Snapshot, Error> {
        load(file, cache, &self.shared.session()?)
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.shared.options
    }

    /// The same servers, of which none has been asked yet: the first request that needs one
    /// connects, and takes no longer than that when none answers.
    pub fn unconnected(options: ConnectOptions) -> Self {
        Self { shared: Arc::new(Shared::new(options)) }
    }

    /// The dataset of that name, which is made if there is none.
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

    /// Deletes a dataset with all its files (paper, DL_delete_dataset), for good when this returns. Its
    /// name can be used again at once. Gives how many objects were removed, by the last try where there
    /// were several: after some 20 seconds the servers go on with the others by themselves.
    ///
    /// # Errors
    /// [`Kind::NotFound`](crate::Kind::NotFound) when there is none of that name.
    pub fn delete_dataset(&self, name: &DatasetName) -> Result<DeletedDataset, Error> {
        let session = self.shared.session()?;
        let connections = &session.connections;
        session.wait(async {
            // By id, so that a second try can't delete one that was created since.
            let id = get_dataset(connections, name, false).await?.id;
            let message = pb::DeleteDatasetRequest {
                name: name.as_str().to_owned(),
                id: Bytes::copy_from_slice(id.as_bytes()),
            };
            let attempt = |mut server: Connection, this: Try| {
                let request = this.request(message.clone());
                async move { Ok(this.answer(server.delete_dataset(request)).await?.into()) }
            };
            connections.call("delete", || dataset_address(name), connections.long(), attempt).await
        })
    }

    /// Rebuilds metadata from the chunk store, while readers and writers go on. `progress` is told
    /// how far it is; the last word on each dataset comes back, with all problems that are left of it.
    ///
    /// # Errors
    /// Those of the servers and of the way to them. What could not be repaired is no error: it is
    /// in [`RecoverProgress::problems`].
    pub fn recover(
        &self,
        request: RecoverRequest,
        progress: &mut dyn FnMut(&RecoverProgress),
    ) -> Result<Vec<RecoverProgress>, Error> {
        let session = self.shared.session()?;
        let subject = || match &request.dataset {
            Some(name) => dataset_address(name),
            None => "all datasets".to_owned(),
        };
        let message = pb::RecoverRequest::from(request.clone());
        let (told, progress) = (RefCell::new(BTreeMap::new()), RefCell::new(progress));
        session.wait(session.connections.call(
            "recover",
            subject,
            session.connections.long(),
            |mut server, this| {
                let request = this.request(message.clone());
                let (told, progress) = (&told, &progress);
                async move {
                    // What an earlier try met, this one meets again, if it is still so.
                    told.borrow_mut().clear();
                    let mut stream = this.answer(server.recover(request)).await?;
                    while let Some(message) = this.message(&mut stream).await? {
                        let step = RecoverProgress::from(message);
                        (progress.borrow_mut())(&step);
                        add(&mut told.borrow_mut(), step);
                    }
                    Ok(())
                }
            },
        ))?;
        Ok(told.into_inner().into_values().collect())
    }
}

/// The last word on a dataset, with all its problems, of which a server tells each once.
fn add(told: &mut BTreeMap<String, RecoverProgress>, mut step: RecoverProgress) {
    if let Some(before) = told.remove(&step.dataset) {
        let mut problems = before.problems;
        problems.append(&mut step.problems);
        step.problems = problems;
    }
    told.insert(step.dataset.clone(), step);
}

#[cfg(test)]
mod tests;
