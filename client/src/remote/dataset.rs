//! A dataset as the servers have it: questions about it, deletes, and the writer of one handle.
//!
//! Must hold: a value means the same dataset id for ever; a dataset created later under its name is
//! never found.

use std::sync::Arc;

use dl_format::{Deletions, FilePath, Version};
use dl_proto::{Counts, Dataset as DatasetInfo, DeleteRequest, StatItem, pb};

use crate::error::{Error, Kind};
use crate::process::PerProcess;
use crate::remote::lookup::{dataset_address, get_dataset};
use crate::remote::options::ConnectOptions;
use crate::remote::session::{Session, Shared};
use crate::remote::stats::Stats;
use crate::remote::writer::Writer;

/// The requests and the writer of a single handle.
#[derive(Debug)]
pub(crate) struct RemoteDataset {
    shared: Arc<Shared>,
    info: DatasetInfo,
    writer: PerProcess<Arc<Writer>>,
    stats: PerProcess<Stats>,
}

impl RemoteDataset {
    pub(crate) fn new(shared: Arc<Shared>, info: DatasetInfo) -> Self {
        Self { shared, info, writer: PerProcess::new(), stats: PerProcess::new() }
    }

    /// The same dataset at another version, for a handle of its own.
    pub(crate) fn at_version(&self, version: Version) -> Self {
        let info = DatasetInfo { version, ..self.info.clone() };
        Self::new(Arc::clone(&self.shared), info)
    }

    pub(crate) fn options(&self) -> &ConnectOptions {
        &self.shared.options
    }

    /// The description from the time of opening.
    pub(crate) fn info(&self) -> &DatasetInfo {
        &self.info
    }

    /// The name in the form of users: `dl://NAME`.
    pub(crate) fn address(&self) -> String {
        dataset_address(&self.info.name)
    }

    /// Hands over a note for the user.
    pub(crate) fn note(&self, text: &str) {
        self.shared.options.note(text);
    }

    pub(crate) fn session(&self) -> Result<Session, Error> {
        self.shared.session()
    }

    /// The current description, by the servers; with `counts` also how much the dataset holds.
    pub(crate) fn describe(&self, counts: bool) -> Result<DatasetInfo, Error> {
        let session = self.session()?;
        let info = session.wait(get_dataset(&session.connections, &self.info.name, counts))?;
        if info.id != self.info.id {
            let why = "the dataset was deleted, and its name is in use again";
            return Err(Error::new(Kind::NotFound, "open", self.address(), why));
        }
        match info.counts {
            // Without its metadata, the dataset can't be opened.
            Counts::Unknown(why) if !counts => {
                Err(Error::new(Kind::NeedsRecovery, "open", self.address(), why))
            }
            _ => Ok(info),
        }
    }

    /// The current entries at some paths, in the order of the paths.
    pub(crate) fn stat_many(&self, paths: &[FilePath]) -> Result<Vec<StatItem>, Error> {
        let session = self.session()?;
        let stats = self.stats.get_or_make(|| Ok::<_, Error>(Stats::default()))?;
        stats.ask(&session, &self.info, paths)
    }

    pub(crate) fn writer(&self) -> Result<&Arc<Writer>, Error> {
        self.writer.get_or_make(|| {
            let in_flight = self.shared.options.in_flight(self.info.shape.size());
            Ok(Writer::new(self.session()?, &self.info, in_flight))
        })
    }

    /// The writer of the process, after a first put.
    pub(crate) fn started_writer(&self) -> Option<&Arc<Writer>> {
        self.writer.get()
    }

    /// Deletes versions; gives their number.
    pub(crate) fn delete_versions(&self, deletions: Deletions) -> Result<u64, Error> {
        let session = self.session()?;
        let count = deletions.count();
        for deletions in deletions.split() {
            session.wait(self.delete_piece(&session, deletions))?;
        }
        Ok(count)
    }

    async fn delete_piece(&self, session: &Session, deletions: Deletions) -> Result<(), Error> {
        let message = pb::DeleteRequest::from(DeleteRequest {
            dataset: self.info.id,
            // A second try with the same id is harmless after a lost answer.
            tombstone: session.process.next_id(),
            deletions,
        });
        let connections = &session.connections;
        let subject = || format!("files of {}", self.address());
        connections
            .call("delete", subject, connections.usual(), |mut server, this| {
                let request = this.request(message.clone());
                async move {
                    this.answer(server.delete(request)).await?;
                    Ok(())
                }
            })
            .await
    }
}
