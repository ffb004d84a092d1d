//! Opening of datasets.
//!
//! Must hold: a handle gets a snapshot if the caller asks for snapshots and a snapshot is
//! available.

use std::path::Path;

use dl_format::{ChunkShape, DatasetName, Stamp};
use dl_proto::{Counts, Dataset as DatasetInfo, SmallChunks};

use super::Dataset;
use crate::error::{Error, Kind};
use crate::remote::{Client, ConnectOptions};
use crate::snapshot::{Snapshot, SnapshotCache, UserFile};

impl Dataset {
    /// Connects to an existing dataset, with usual settings (paper, DL_connect). The handle reads
    /// from a snapshot in the cache of the user, [`SnapshotCache::of_user`], if a snapshot is
    /// available.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for an unknown name ([`Client::create_dataset`] creates a dataset),
    /// [`Kind::Invalid`] for an invalid name. Otherwise as for [`Client::connect`].
    pub fn connect(
        user: &str,
        key: Option<&str>,
        dataset: &str,
        servers: &[&str],
    ) -> Result<Self, Error> {
        let name = DatasetName::new(dataset)
            .map_err(|why| Error::new(Kind::Invalid, "open dataset", dataset, why))?;
        let options = ConnectOptions {
            user: user.to_owned(),
            key: key.map(str::to_owned),
            servers: servers.iter().map(|server| (*server).to_owned()).collect(),
            snapshots: SnapshotCache::of_user(),
            ..ConnectOptions::default()
        };
        Client::connect(options)?.dataset(&name)
    }
}

impl Client {
    /// An existing dataset. With [`ConnectOptions::snapshots`] the handle answers from a snapshot,
    /// as with [`Dataset::with_snapshot`]. The servers answer if no snapshot is available.
    ///
    /// # Errors
    /// [`Kind::NotFound`] for an unknown name.
    pub fn dataset(&self, name: &DatasetName) -> Result<Dataset, Error> {
        if let Some(dataset) = self.of_task(name)? {
            return Ok(dataset);
        }
        let dataset = Dataset::new(self.find(name)?);
        // A dataset has no known version during a rebuild of its metadata.
        let is_known = !matches!(dataset.info().counts, Counts::Unknown(_));
        let cache = self.options().snapshots.as_ref().filter(|_| is_known);
        let Some(cache) = cache else { return Ok(dataset) };
        dataset.with_snapshot_of(dataset.info().version, cache).or_else(|error| {
            tracing::warn!(%name, why = error.chain(), "reading without a snapshot");
            Ok(dataset)
        })
    }

    /// A dataset by a snapshot file. Only reads of files send requests to the servers. With a
    /// [task](ConnectOptions::task), the agent of the node gives the files of the snapshot's version.
    /// `name` is the name of the dataset at the servers.
    ///
    /// # Errors
    /// As for [`Dataset::load_meta`].
    pub fn by_snapshot(
        &self,
        name: &DatasetName,
        file: &Path,
        cache: Option<&SnapshotCache>,
    ) -> Result<Dataset, Error> {
        Ok(self.answering(name, self.load(&UserFile::open(file)?, cache)?))
    }

    /// A dataset by a snapshot, without a request.
    pub(crate) fn answering(&self, name: &DatasetName, snapshot: Snapshot) -> Dataset {
        let info = info_of(name, &snapshot);
        Dataset::new(self.described(info)).answering(snapshot)
    }

    /// The dataset with a name: a new dataset with chunks of the given shape, or the existing
    /// dataset, with its own shape.
    ///
    /// # Errors
    /// Errors of the servers and of the connection.
    pub fn create_dataset(&self, name: &DatasetName, shape: ChunkShape) -> Result<Dataset, Error> {
        Ok(Dataset::new(self.create(name, shape)?))
    }
}

/// The description of a dataset by its snapshot and its name at the servers.
pub(super) fn info_of(name: &DatasetName, snapshot: &Snapshot) -> DatasetInfo {
    DatasetInfo {
        name: name.clone(),
        id: snapshot.dataset(),
        shape: snapshot.shape(),
        created: Stamp::default(),
        objects: u64::from(snapshot.chunks()),
        version: snapshot.version(),
        counts: Counts::Known { files: u64::from(snapshot.files()), bytes: snapshot.file_bytes() },
        small: SmallChunks::default(),
    }
}
