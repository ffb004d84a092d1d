//! The ways to a handle.
//!
//! Must hold: a handle with a snapshot is given where a snapshot can be had and was asked for.

use std::path::Path;

use dl_format::{ChunkShape, DatasetName, Stamp};
use dl_proto::{Counts, Dataset as DatasetInfo};

use super::Dataset;
use crate::error::{Error, Kind};
use crate::remote::{Client, ConnectOptions};
use crate::snapshot::{Snapshot, SnapshotCache};

impl Dataset {
    /// Connects to a dataset that exists, with usual settings (paper, DL_connect), to read it: with
    /// a snapshot in the cache of this user, [`SnapshotCache::of_user`], where one can be had.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when there is none of that name ([`Client::create_dataset`] makes one),
    /// [`Kind::Invalid`] for what can't be a name, and those of [`Client::connect`].
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
    /// A dataset that exists. With [`ConnectOptions::snapshots`] it answers from a snapshot, as
    /// [`Dataset::with_snapshot`] does, unless none can be had: then it asks the servers.
    ///
    /// # Errors
    /// [`Kind::NotFound`] when there is none of that name.
    pub fn dataset(&self, name: &DatasetName) -> Result<Dataset, Error> {
        if let Some(dataset) = self.of_task(name)? {
            return Ok(dataset);
        }
        let dataset = Dataset::new(self.find(name)?);
        // Of one that is being rebuilt no version is known.
        let is_known = !matches!(dataset.info().counts, Counts::Unknown(_));
        let cache = self.options().snapshots.as_ref().filter(|_| is_known);
        let Some(cache) = cache else { return Ok(dataset) };
        dataset.with_snapshot_of(dataset.info().version, cache).or_else(|error| {
            tracing::warn!(%name, why = error.chain(), "reading without a snapshot");
            Ok(dataset)
        })
    }

    /// A dataset by its snapshot in a file, of which the servers are asked nothing: only when a file
    /// is read. `name` is what they call it.
    ///
    /// # Errors
    /// As [`Dataset::load_meta`].
    pub fn by_snapshot(
        &self,
        name: &DatasetName,
        file: &Path,
        cache: Option<&SnapshotCache>,
    ) -> Result<Dataset, Error> {
        let snapshot = self.load(file, cache)?;
        let info = info_of(name, &snapshot);
        Ok(Dataset::new(self.described(info)).answering(snapshot))
    }

    /// The dataset of that name: a new one with chunks of that shape, or the one that exists, with
    /// the shape it has.
    ///
    /// # Errors
    /// Those of the servers and of the way to them.
    pub fn create_dataset(&self, name: &DatasetName, shape: ChunkShape) -> Result<Dataset, Error> {
        Ok(Dataset::new(self.create(name, shape)?))
    }
}

/// What a snapshot says of its dataset, which the servers call by this name.
pub(super) fn info_of(name: &DatasetName, snapshot: &Snapshot) -> DatasetInfo {
    DatasetInfo {
        name: name.clone(),
        id: snapshot.dataset(),
        shape: snapshot.shape(),
        created: Stamp::default(),
        objects: u64::from(snapshot.chunks()),
        version: snapshot.version(),
        counts: Counts::Known { files: u64::from(snapshot.files()), bytes: snapshot.file_bytes() },
    }
}
