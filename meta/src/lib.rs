//! The metadata store: the log of each dataset and the index behind it (paper, 4.1.1).
//!
//! Must hold: the contents of a dataset are `dl_format::Fold` over the objects of its log, in every store;
//! all metadata can be rebuilt from the chunks.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod embedded;
mod fault;
mod memory;
mod open;
mod redis;
mod stored;
mod tasks;
mod types;
mod walk;

use std::fmt::{Debug, Display};
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Stamp, StoreId};

pub use dl_runtime::storage::{Error, Kind};
#[cfg(any(test, feature = "conformance"))]
pub use embedded::VolatileFile;
pub use embedded::{Embedded, EmbeddedOptions, Stop};
pub use fault::FaultMeta;
pub use memory::Memory;
pub use open::{check, open};
#[cfg(any(test, feature = "conformance"))]
pub use redis::testing as redis_testing;
pub use redis::{Redis, RedisOptions, without_login};
pub use tasks::{Heartbeat, TaskGroup, TaskKey, TaskTerms};
pub use types::{
    Appended, Damage, DatasetInfo, DatasetRecord, DatasetState, Found, ListEntry, ListQuery,
    ObjectRecord, Outline, Rebuild, Refusal, Steps,
};

/// The records of datasets and their names.
#[async_trait]
pub trait Datasets: Send + Sync {
    /// Creates or replaces the record of a dataset id, and points its name to the id. The step also drops
    /// a dataset with the same name and a lower generation. The log of an existing dataset stays.
    ///
    /// # Errors
    /// [`Kind::Conflict`] when the name has a higher generation, when another id has the name in
    /// this generation, or when the id has another name.
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error>;

    /// The record of a dataset id; none for an unknown id. Cheap: the index is not read.
    ///
    /// # Errors
    /// As the store fails.
    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error>;

    /// The record of the dataset with a name.
    ///
    /// # Errors
    /// As the store fails.
    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error>;

    /// The records of all datasets, by name.
    ///
    /// # Errors
    /// As the store fails.
    async fn records(&self) -> Result<Vec<DatasetRecord>, Error>;

    /// The rest of [`Datasets::records`] in damaged metadata: records may be missing, and deleted
    /// datasets may be among the records.
    ///
    /// # Errors
    /// As the store fails.
    async fn remnants(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.records().await
    }

    /// Forgets a dataset: record, name, log and index, in one step for all callers. An unknown id succeeds;
    /// without a record, `name` is the name that may still point to the id.
    ///
    /// # Errors
    /// As the store fails.
    async fn drop_dataset(&self, name: &DatasetName, id: DatasetId) -> Result<(), Error>;
}

/// The chunk store of the metadata, losses of metadata, and their rebuild.
#[async_trait]
pub trait Integrity: Send + Sync {
    /// The chunk store of this metadata; none before the first [`Integrity::bind`].
    ///
    /// # Errors
    /// As the store fails.
    async fn identity(&self) -> Result<Option<StoreId>, Error>;

    /// Binds this metadata for good to a chunk store without datasets; [`Integrity::end_rebuild`] binds
    /// recovered metadata. A second bind to the same chunk store succeeds.
    ///
    /// # Errors
    /// [`Kind::Conflict`] for metadata of another chunk store.
    async fn bind(&self, store: StoreId) -> Result<(), Error>;

    /// Acknowledged writes that the store may have lost. Meanwhile, questions about contents may fail
    /// with [`Kind::Unavailable`], and writes go on. Cheap enough for a call each second.
    ///
    /// # Errors
    /// As the store fails.
    async fn damage(&self) -> Result<Option<Damage>, Error> {
        Ok(None)
    }

    /// The reason why the store takes no new objects at the moment, if known; reads go on.
    ///
    /// # Errors
    /// As the store fails.
    async fn refusal(&self) -> Result<Option<Refusal>, Error> {
        Ok(None)
    }

    /// The reason and the age of the last wait within half a minute, for the error of a call that got no
    /// answer in time.
    fn trouble(&self) -> Option<String> {
        None
    }

    /// Begins a rebuild: a later loss keeps [`Integrity::end_rebuild`] from making the metadata whole.
    /// Rebuilds of several servers at once don't disturb each other.
    ///
    /// # Errors
    /// As the store fails.
    async fn begin_rebuild(&self) -> Result<Rebuild, Error> {
        Ok(Rebuild::default())
    }

    /// Ends a rebuild that appended every object of the chunk store again. The metadata is whole then, and
    /// bound to this chunk store.
    ///
    /// # Errors
    /// [`Kind::Lost`] after a loss since the rebuild began: nothing is whole, and the rebuild has to begin
    /// anew. [`Kind::Conflict`] for metadata of another chunk store.
    async fn end_rebuild(&self, _rebuild: &Rebuild, store: StoreId) -> Result<(), Error> {
        self.bind(store).await
    }

    /// Takes or renews the turn of the server `owner` to rebuild, for the time `lasts`; zero gives the turn back.
    /// False while another server has the turn. The turn only saves work.
    ///
    /// # Errors
    /// As the store fails.
    async fn rebuild_turn(&self, _owner: u64, _lasts: Duration) -> Result<bool, Error> {
        Ok(true)
    }
}

/// Members of training jobs: soft state, lost at any time and at each start, and restored by heartbeats.
#[async_trait]
pub trait TaskMembers: Send + Sync {
    /// Notes in one step that a member of a training job lives. A job without living members begins with
    /// `terms`; without `terms` nothing is written. For a living job, `terms` of its version extend the
    /// lease, and nothing else.
    ///
    /// # Errors
    /// [`Kind::Full`] when the job has [`Heartbeat::most`] other members.
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error>;

    /// Removes a member from its job in one step. Gives the terms of a job without members left, once.
    ///
    /// # Errors
    /// As the store fails.
    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error>;

    /// A job and its living members by a clock that says `now`; none for a job without any. Writes
    /// nothing.
    ///
    /// # Errors
    /// As the store fails.
    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error>;
}

/// The logs of datasets, and answers from the logs.
///
/// # Contract
///
/// - The log of a dataset is a set of objects, by id. `append` is the commit point of a write: one
///   atomic step in which the dataset is known and the object joins. Appending an object again changes
///   nothing but a differing stamp. Only `retire` removes objects, each in one atomic step.
/// - Every answer about the contents of a dataset is the answer of `dl_format::Fold` over its log, with
///   all objects whose `append` had returned before the question. During an append, some files of the
///   object may be there and others not.
/// - A call about an unknown dataset id fails with [`Kind::Missing`] and writes nothing, unless its
///   documentation says otherwise.
/// - A name stands for at most one dataset id: the id that was put with the highest generation. An id
///   has one name.
/// - A call that fails with [`Kind::Missing`] or [`Kind::Conflict`] changed nothing; any other failed
///   write may have taken effect, and a repetition is harmless.
/// - Dropping a future leaves its write done or not done.
///
/// Each store documents whether an append survives a crash. An append of the same object from the chunk
/// store restores a lost append.
///
/// `conformance::run` checks each sentence, for every store and every layer.
#[async_trait]
pub trait MetaStore: Datasets + Integrity + TaskMembers + Debug + Display + 'static {
    /// A dataset and the objects of its log; none for an unknown id. May cost a walk over the log, never
    /// over the paths.
    ///
    /// # Errors
    /// As the store fails.
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error>;

    /// A dataset and the sums over its log; none for an unknown id. May cost a walk over its paths after
    /// a change.
    ///
    /// # Errors
    /// As the store fails.
    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error>;

    /// The next stamp of a dataset: max(`now`, last + 1), where last is the highest given or appended
    /// stamp. Stamps are unique and ascend, however many callers ask at once.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error>;

    /// Adds an object to the log of its dataset: the commit point. The rows of a known object are written
    /// again, as they may be lost or damaged. A stamp in the log that differs from the header is replaced
    /// by the stamp of the header ([`Appended::Restamped`]). The store may keep the header's bytes for a
    /// while: they should be no view into a larger buffer.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn append(&self, object: &Committed) -> Result<Appended, Error>;

    /// Removes objects from the log, and passes over unknown ids. Counts and version are those of the
    /// rest from then on; stamps never go back. The removal is then as durable as the store can make it,
    /// because the caller removes the objects next.
    ///
    /// The caller vouches that answers about files stay the same: winners in these objects are deleted,
    /// older versions of their paths in the rest are deleted too, and no remaining object holds a version
    /// named by a retired tombstone. Rows of deleted winners may go.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset. [`Kind::Conflict`] when the store finds a live file in
    /// these objects: nothing was removed.
    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error>;

    /// At most `limit` objects of the log, by id, behind `after`.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error>;

    /// The whole log at one moment, by id, in memory, with no entry counted as deleted.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error>;

    /// The deleted entries of each of these chunks, in the order asked: versions that were first committed
    /// there, wherever they lie now. Versions that no object of the log holds may be missing.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn deleted(&self, dataset: DatasetId, chunks: &[ChunkId])
    -> Result<Vec<EntrySet>, Error>;

    /// The file or folder at each path, in the order asked.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error>;

    /// One page of a folder, sorted by [`ListEntry::key`], up to [`ListQuery::limit`] entries or
    /// [`ListQuery::bytes`] of paths. Empty folders don't exist: a folder without entries and without
    /// [`ListQuery::after`] does not exist. [`ListQuery::steps`] counts the progress.
    ///
    /// # Errors
    /// [`Kind::Missing`] for an unknown dataset.
    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error>;

    /// Writes the contents of memory to the disk and ends background work. Later calls fail with
    /// [`Kind::Unavailable`] or answer as before.
    ///
    /// # Errors
    /// As the store fails; the store is then in the state after a crash.
    async fn close(&self) -> Result<(), Error>;
}
