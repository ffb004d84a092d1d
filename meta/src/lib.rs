//! The metadata store: the log of each dataset and the index behind it (paper, 4.1.1).
//!
//! Must hold: what a dataset contains is `dl_format::Fold` over the objects of its log, whichever
//! store answers; and everything here can be rebuilt from the chunks.
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

/// Datasets, their logs, and answers from what the logs say.
///
/// # Contract
///
/// - The log of a dataset is a set of objects, by id. `append` is the commit point of a write: one
///   atomic step in which the dataset is known and the object joins. Appending an object again changes
///   nothing but a stamp that differs. Only `retire` takes objects off again, each in one atomic step.
/// - Every answer about the contents of a dataset is that of `dl_format::Fold` over its log, which
///   includes all whose `append` had returned when the question was asked. Of an object whose
///   append has not returned yet, some files may be there and others not.
/// - A call about a dataset id that is not known fails with [`Kind::Missing`] and writes nothing,
///   unless it says otherwise.
/// - A name stands for at most one dataset id, the one that was put with the highest generation;
///   an id has one name.
/// - A call that fails with [`Kind::Missing`] or [`Kind::Conflict`] changed nothing; after any
///   other failure of a write it may have been done, and doing it again is harmless.
/// - Dropping a future leaves its write done or not done.
///
/// Whether an append survives a crash is up to the store; each says so. What it loses, an append
/// of the same object from the chunk store brings back.
///
/// `conformance::run` checks each sentence, for every store and every layer.
#[async_trait]
pub trait MetaStore: Debug + Display + Send + Sync + 'static {
    /// Which chunk store this metadata indexes; none when it was never bound to one.
    ///
    /// # Errors
    /// As the store fails.
    async fn identity(&self) -> Result<Option<StoreId>, Error>;

    /// Binds this metadata to a chunk store that holds no dataset yet, for good;
    /// [`MetaStore::end_rebuild`] binds recovered metadata. Binding to the same one again succeeds.
    ///
    /// # Errors
    /// [`Kind::Conflict`] when it is bound to another one.
    async fn bind(&self, store: StoreId) -> Result<(), Error>;

    /// Creates or replaces the record of a dataset id and points its name to it. A dataset that
    /// the name stood for under a lower generation is dropped in the same step. The log of a
    /// dataset that is there stays.
    ///
    /// # Errors
    /// [`Kind::Conflict`] when the name has a higher generation, when another id has the name in
    /// this generation, or when the id has another name.
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error>;

    /// What was put for a dataset id; none when it is not known. Cheap: the index is not asked.
    ///
    /// # Errors
    /// As the store fails.
    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error>;

    /// [`MetaStore::record`] of the dataset that a name stands for.
    ///
    /// # Errors
    /// As the store fails.
    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error>;

    /// [`MetaStore::record`] of all datasets, by name.
    ///
    /// # Errors
    /// As the store fails.
    async fn records(&self) -> Result<Vec<DatasetRecord>, Error>;

    /// What is left of [`MetaStore::records`] while the metadata lacks something: there may be others,
    /// and some of these may have been deleted.
    ///
    /// # Errors
    /// As the store fails.
    async fn remnants(&self) -> Result<Vec<DatasetRecord>, Error> {
        self.records().await
    }

    /// A dataset and which objects its log holds; none when the id is not known. May cost a walk over
    /// the log, never one over the paths.
    ///
    /// # Errors
    /// As the store fails.
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error>;

    /// A dataset and what its log adds up to; none when the id is not known. May cost a walk over
    /// its paths, when anything changed since the last one.
    ///
    /// # Errors
    /// As the store fails.
    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error>;

    /// Forgets a dataset: record, name, log and index, in one step for everybody who asks. An id
    /// that is not known is none already; where its record is lost, `name` says what may still point
    /// to it.
    ///
    /// # Errors
    /// As the store fails.
    async fn drop_dataset(&self, name: &DatasetName, id: DatasetId) -> Result<(), Error>;

    /// The next stamp of a dataset: max(`now`, last + 1), where last is the highest that was given
    /// or appended. Never the same twice, never a lower one later, however many ask at once.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error>;

    /// Adds an object to the log of its dataset: the commit point. What the log knows already is
    /// brought into the index again, where a row of it may be gone or damaged. Where the log has
    /// another stamp for the object, log and rows take the stamp of the header: the object is the
    /// truth ([`Appended::Restamped`]). The header's bytes
    /// may be kept for a while, so they should not be a view into a larger buffer.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known: nothing was written.
    async fn append(&self, object: &Committed) -> Result<Appended, Error>;

    /// Takes objects off the log; ids that are not in it are passed over. Counts and version are
    /// those of the rest from then on; stamps go on from where they were. When it returns this is
    /// as durable as the store can make it, for the objects themselves are removed next.
    ///
    /// The caller vouches that no answer about files changes by it: a winner that lies in one of
    /// them is deleted, every older version of its path in the rest is deleted too, and no object
    /// of the rest holds a version that a retired tombstone names. Rows of winners that are deleted
    /// may go.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known. [`Kind::Conflict`] when the store sees that
    /// a file which is not deleted lies in one of them: none was taken off.
    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error>;

    /// At most `limit` objects of the log, by id, from the first one after `after`.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error>;

    /// The whole log as it was at one moment, by id, with no entry counted as deleted. Holds
    /// all of it in memory.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error>;

    /// Which entries of each of these chunks are deleted, in the order asked: of versions that were first
    /// committed there, wherever they lie by now. Of those that no object of the log holds, some may be
    /// missing.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn deleted(&self, dataset: DatasetId, chunks: &[ChunkId])
    -> Result<Vec<EntrySet>, Error>;

    /// What each path is, in the order asked.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error>;

    /// One page of a folder, sorted by [`ListEntry::key`]: as many entries as there are, until it
    /// has [`ListQuery::limit`] or their paths [`ListQuery::bytes`]. Empty folders don't exist: no entry at
    /// all without [`ListQuery::after`] says that the folder doesn't. [`ListQuery::steps`] counts up as long
    /// as it gets on.
    ///
    /// # Errors
    /// [`Kind::Missing`] when the dataset is not known.
    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error>;

    /// Whether the store may have lost acknowledged writes. Meanwhile, questions about contents may fail
    /// with [`Kind::Unavailable`], and writes go on. Cheap enough to be asked every second.
    ///
    /// # Errors
    /// As the store fails.
    async fn damage(&self) -> Result<Option<Damage>, Error>;

    /// Why the store takes no new objects at the moment, where it knows that; reads go on.
    ///
    /// # Errors
    /// As the store fails.
    async fn refusal(&self) -> Result<Option<Refusal>, Error>;

    /// What a question had to wait for in the last half minute, and how long ago, to be told where one is
    /// not answered: who waits for it no longer can't know.
    fn trouble(&self) -> Option<String>;

    /// Begins a rebuild: a loss from now on keeps [`MetaStore::end_rebuild`] from making the metadata
    /// whole. Rebuilds of several servers at once don't disturb each other.
    ///
    /// # Errors
    /// As the store fails.
    async fn begin_rebuild(&self) -> Result<Rebuild, Error> {
        Ok(Rebuild::default())
    }

    /// Ends a rebuild after which all datasets are in the metadata: every object of the chunk store was
    /// appended again since the rebuild began. The metadata is whole then, and bound to this chunk store.
    ///
    /// # Errors
    /// [`Kind::Lost`] when the store lost something since the rebuild began: nothing is whole, and the
    /// rebuild has to begin anew. [`Kind::Conflict`] when the metadata is bound to another chunk store.
    async fn end_rebuild(&self, _rebuild: &Rebuild, store: StoreId) -> Result<(), Error> {
        self.bind(store).await
    }

    /// Takes note that a member of a training job lives, in one step. A job without living members begins
    /// with `terms`, or is none without them: nothing is written then. To a job that is there, `terms` of
    /// its version give a later end of the lease, and nothing else. This is soft state: a store may lose it
    /// at any time, also at each start, and heartbeats bring it back.
    ///
    /// # Errors
    /// [`Kind::Full`] when the job has as many other members as [`Heartbeat::most`] says.
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error>;

    /// Takes a member off its job, in one step. Gives the terms of a job that ended by this: no member is
    /// left. A second call gives none.
    ///
    /// # Errors
    /// As the store fails.
    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error>;

    /// Writes down all that is still only in memory and ends background work. The last call: what
    /// comes after it fails with [`Kind::Unavailable`] or answers as before.
    ///
    /// # Errors
    /// As the store fails; it is then as after a crash.
    async fn close(&self) -> Result<(), Error>;
}
