//! Metadata in Redis or a Redis Cluster, shared by any number of servers.
//!
//! Must hold: an append is acknowledged once Redis has the object in its log and in its index. Redis may lose
//! acknowledged writes: each loss is noticed, and contents are refused until a rebuild. No server keeps state
//! that another server needs.

mod address;
mod batches;
mod command;
mod dataset_root;
mod datasets;
mod deletions;
mod failure;
mod folders;
mod gather;
mod health;
mod keys;
mod known_parents;
mod link;
mod live;
mod live_objects;
mod read;
mod records;
mod retire;
mod router;
mod rows;
mod scripts;
mod slots;
mod stamps;
mod sweep;
mod tasks;
#[cfg(any(test, feature = "conformance"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod tree;
mod turn;
mod write;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use async_trait::async_trait;
use dl_format::{ChunkId, Committed, DatasetId, DatasetName, EntrySet, FilePath, Stamp, StoreId};
use dl_runtime::{Clock, OsRandom, Random, locked};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use self::address::Address;
pub(crate) use self::address::FORMS as ADDRESSES;
pub use self::address::without_login;
use self::failure::{Failure, Verdict};
use self::gather::Gathering;
use self::health::Health;
use self::keys::Keys;
use self::known_parents::KnownParents;
use self::live_objects::Logged;
use self::read::Lookups;
use self::router::Router;
use self::stamps::Stamps;
use self::write::LargeFolders;
use crate::types::still_in_use;
use crate::{
    Appended, Damage, DatasetInfo, DatasetRecord, Datasets, Error, Found, Heartbeat, Integrity,
    Kind, ListEntry, ListQuery, MetaStore, ObjectRecord, Outline, Rebuild, Refusal, TaskGroup,
    TaskKey, TaskMembers, TaskTerms,
};

/// Settings of a [`Redis`] store.
#[derive(Debug, Clone)]
pub struct RedisOptions {
    /// Longest time to connect.
    pub connect_timeout: Duration,
    /// Longest wait for an answer before the connection is closed.
    pub command_timeout: Duration,
    /// How long a call without an answer is repeated, whatever moves or dies meanwhile.
    pub patience: Duration,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(5),
            patience: Duration::from_secs(10),
        }
    }
}

/// A metadata store in Redis. An append is as durable as Redis: even with `appendonly` and replicas, the last
/// writes may be lost. [`Integrity::damage`] reports such losses.
#[derive(Debug)]
pub struct Redis {
    shared: Arc<Shared>,
    sweeper: JoinHandle<()>,
}

/// The common state of calls and background work.
#[derive(Debug)]
struct Shared {
    /// A reference to itself, for work that outlives its call.
    me: Weak<Self>,
    router: Router,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    known: Mutex<HashMap<DatasetId, Known>>,
    stamps: Mutex<Stamps>,
    large: Mutex<LargeFolders>,
    known_parents: KnownParents,
    logged: Mutex<Logged>,
    lookups: Lookups,
    records: Gathering<DatasetId, (), Option<DatasetRecord>>,
    outlines: Gathering<DatasetId, (), Option<Outline>>,
    infos: Gathering<DatasetId, (), Option<DatasetInfo>>,
    health: Mutex<Health>,
    /// The turn of the call that surveys for all waiting calls.
    surveys: Semaphore,
    /// When and why the last survey failed.
    failed: Mutex<Option<(Duration, Failure)>>,
    /// Turns of searches that read many rows at a time.
    searches: Semaphore,
    sweep_now: Arc<Notify>,
}

/// A dataset as last read by the process. May be out of date: reads and writes are checked by the root.
#[derive(Debug, Clone, Copy)]
struct Known {
    keys: Keys,
    /// The time of the next look for objects without rows.
    looks: Duration,
}

impl Redis {
    /// The problem with the address of a Redis, without its password; none for the address of another store.
    pub fn check(url: &str) -> Option<Result<(), String>> {
        let parsed = Address::parse(url)?.map(|_| ());
        Some(parsed.map_err(|why| format!("{why}; write {ADDRESSES}")))
    }

    /// Connects to the Redis, or to the primaries of the Redis Cluster, at `url`. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`Kind::Unsupported`] for an unreadable address, a Redis that drops keys, or a cluster at the address
    /// of a single Redis and vice versa; [`Kind::Denied`] for a refused login; [`Kind::Unavailable`] without
    /// answer.
    pub async fn open(
        url: &str,
        options: RedisOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let action = "open metadata store";
        let address = match Address::parse(url) {
            Some(Ok(address)) => address,
            Some(Err(why)) => {
                let why = format!("{why}; write {ADDRESSES}");
                return Err(Error::because(Kind::Unsupported, action, without_login(url), why));
            }
            None => {
                let why = format!("write {ADDRESSES}");
                return Err(Error::because(Kind::Unsupported, action, without_login(url), why));
            }
        };
        let name = address.to_string();
        let random: Arc<dyn Random> = Arc::new(OsRandom);
        let router = Router::new(address, options, Arc::clone(&clock), Arc::clone(&random));
        let shared = Arc::new_cyclic(|me| Shared {
            me: Weak::clone(me),
            router,
            clock: Arc::clone(&clock),
            random,
            known: Mutex::default(),
            stamps: Mutex::default(),
            large: Mutex::default(),
            known_parents: KnownParents::default(),
            logged: Mutex::default(),
            lookups: Lookups::default(),
            records: Gathering::default(),
            outlines: Gathering::default(),
            infos: Gathering::default(),
            health: Mutex::default(),
            surveys: Semaphore::new(1),
            failed: Mutex::default(),
            searches: Semaphore::new(live::TURNS),
            sweep_now: Arc::new(Notify::new()),
        });
        let opened = shared.open().await;
        opened.map_err(|failure| failure.during(action, &name))?;
        let sweeper = dl_runtime::spawn_for_all(sweep::run(Arc::downgrade(&shared), clock));
        Ok(Self { shared, sweeper })
    }
}

impl Shared {
    /// Connects to all primaries, which finds unfit primaries.
    async fn open(&self) -> Result<(), Failure> {
        if let Err(Verdict::Fatal(failure)) = self.router.refresh().await {
            return Err(failure);
        }
        // Waits for primaries without an answer.
        self.identity().await?;
        self.router.runs().await?;
        Ok(())
    }

    fn health(&self) -> MutexGuard<'_, Health> {
        locked(&self.health)
    }

    fn failed(&self) -> MutexGuard<'_, Option<(Duration, Failure)>> {
        locked(&self.failed)
    }

    fn large(&self) -> MutexGuard<'_, LargeFolders> {
        locked(&self.large)
    }

    fn all_known(&self) -> MutexGuard<'_, HashMap<DatasetId, Known>> {
        locked(&self.known)
    }

    fn known(&self, id: DatasetId) -> Option<Keys> {
        self.all_known().get(&id).map(|known| known.keys)
    }

    fn learn(&self, keys: Keys) {
        let mut known = self.all_known();
        if known.get(&keys.dataset).is_none_or(|known| known.keys != keys) {
            known.insert(keys.dataset, Known { keys, looks: Duration::ZERO });
        }
    }

    fn stamps(&self) -> MutexGuard<'_, Stamps> {
        locked(&self.stamps)
    }

    fn forget(&self, id: DatasetId) {
        self.all_known().remove(&id);
        self.logged().forget(id);
    }

    /// Whether the call may look for objects without rows. If so, no other call may until [`Shared::looked`].
    fn may_look(&self, id: DatasetId) -> bool {
        let mut known = self.all_known();
        let Some(known) = known.get_mut(&id) else { return false };
        let may = self.clock.monotonic() >= known.looks;
        if may {
            known.looks = Duration::MAX;
        }
        may
    }

    /// Ends the look; the next look may begin after `pause`.
    fn looked(&self, id: DatasetId, pause: Duration) {
        if let Some(known) = self.all_known().get_mut(&id) {
            known.looks = self.clock.monotonic() + pause;
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.sweeper.abort();
    }
}

impl fmt::Display for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.shared.router.address)
    }
}

#[async_trait]
impl Datasets for Redis {
    async fn put_dataset(&self, record: &DatasetRecord) -> Result<(), Error> {
        let put = self.shared.put(record).await;
        put.map_err(|failure| failure.during("put dataset", &record.name))?
    }

    async fn record(&self, id: DatasetId) -> Result<Option<DatasetRecord>, Error> {
        let record = self.shared.record_together(id).await;
        record.map_err(|failure| failure.during("find dataset", id))
    }

    async fn record_named(&self, name: &DatasetName) -> Result<Option<DatasetRecord>, Error> {
        let root = self.shared.root_named(name).await;
        let root = root.map_err(|failure| failure.during("find dataset", name))?;
        Ok(root.map(|root| root.record))
    }

    async fn records(&self) -> Result<Vec<DatasetRecord>, Error> {
        let records = self.shared.all_records().await;
        records.map_err(|failure| failure.during("list datasets of", self))
    }

    async fn remnants(&self) -> Result<Vec<DatasetRecord>, Error> {
        let records = self.shared.remnants().await;
        records.map_err(|failure| failure.during("list datasets of", self))
    }

    async fn drop_dataset(&self, name: &DatasetName, id: DatasetId) -> Result<(), Error> {
        let dropped = self.shared.drop_dataset(name, id).await;
        dropped.map_err(|failure| failure.during("drop dataset", id))
    }
}

#[async_trait]
impl Integrity for Redis {
    async fn identity(&self) -> Result<Option<StoreId>, Error> {
        let identity = self.shared.identity().await;
        identity.map_err(|failure| failure.during("read the identity in", self))
    }

    async fn bind(&self, store: StoreId) -> Result<(), Error> {
        let bound = self.shared.bind(store).await;
        bound.map_err(|failure| failure.during("bind metadata to", store))?
    }

    async fn damage(&self) -> Result<Option<Damage>, Error> {
        let damage = self.shared.damage().await;
        damage.map_err(|failure| failure.during("look for damage in", self))
    }

    async fn refusal(&self) -> Result<Option<Refusal>, Error> {
        let refusal = self.shared.router.refusal().await;
        refusal.map_err(|failure| failure.during("look for room in", self))
    }

    fn trouble(&self) -> Option<String> {
        self.shared.router.trouble()
    }

    async fn begin_rebuild(&self) -> Result<Rebuild, Error> {
        let rebuild = self.shared.begin_rebuild().await;
        rebuild.map_err(|failure| failure.during("begin to rebuild", self))
    }

    async fn end_rebuild(&self, rebuild: &Rebuild, store: StoreId) -> Result<(), Error> {
        let ended = self.shared.end_rebuild(rebuild, store).await;
        ended.map_err(|failure| failure.during("end the rebuild of", self))?
    }

    async fn rebuild_turn(&self, owner: u64, lasts: Duration) -> Result<bool, Error> {
        let turn = self.shared.rebuild_turn(owner, lasts).await;
        turn.map_err(|failure| failure.during("take the turn to rebuild", self))
    }
}

#[async_trait]
impl TaskMembers for Redis {
    async fn join(
        &self,
        beat: &Heartbeat,
        terms: Option<&TaskTerms>,
    ) -> Result<Option<TaskGroup>, Error> {
        let joined = self.shared.join(beat, terms).await;
        joined.map_err(|failure| failure.during("join task", beat.task.task))?
    }

    async fn leave(&self, beat: &Heartbeat) -> Result<Option<TaskTerms>, Error> {
        let left = self.shared.leave(beat).await;
        left.map_err(|failure| failure.during("leave task", beat.task.task))
    }

    async fn group(
        &self,
        task: &TaskKey,
        now: Stamp,
        dead_after: Duration,
    ) -> Result<Option<TaskGroup>, Error> {
        let found = self.shared.group(task, now, dead_after).await;
        found.map_err(|failure| failure.during("find the members of task", task.task))
    }
}

#[async_trait]
impl MetaStore for Redis {
    async fn outline(&self, id: DatasetId) -> Result<Option<Outline>, Error> {
        let outline = self.shared.outline_together(id).await;
        outline.map_err(|failure| failure.during("describe dataset", id))
    }

    async fn dataset(&self, id: DatasetId) -> Result<Option<DatasetInfo>, Error> {
        let counted = self.shared.info_together(id).await;
        counted.map_err(|failure| failure.during("describe dataset", id))
    }

    async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Error> {
        let stamp = self.shared.stamp(dataset, now).await;
        stamp.map_err(|failure| failure.during("take a stamp of dataset", dataset))
    }

    async fn append(&self, object: &Committed) -> Result<Appended, Error> {
        let dataset = object.header().dataset();
        let appended = self.shared.append(object).await;
        appended.map_err(|failure| failure.during("append to dataset", dataset))
    }

    async fn retire(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Error> {
        let retired = self.shared.retire(dataset, ids).await;
        let in_use = retired.map_err(|failure| failure.during("retire objects of", dataset))?;
        if in_use { Err(still_in_use(dataset)) } else { Ok(()) }
    }

    async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Error> {
        let objects = self.shared.objects(dataset, after, limit).await;
        objects.map_err(|failure| failure.during("list objects of dataset", dataset))
    }

    async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Error> {
        let log = self.shared.log(dataset).await;
        log.map_err(|failure| failure.during("read the log of dataset", dataset))
    }

    async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Error> {
        let deleted = self.shared.deleted(dataset, chunks).await;
        deleted.map_err(|failure| failure.during("look up deleted entries of dataset", dataset))
    }

    async fn lookup(&self, dataset: DatasetId, paths: &[FilePath]) -> Result<Vec<Found>, Error> {
        let found = self.shared.lookup_together(dataset, paths).await;
        found.map_err(|failure| failure.during("look up paths of dataset", dataset))
    }

    async fn list(&self, dataset: DatasetId, query: &ListQuery) -> Result<Vec<ListEntry>, Error> {
        let entries = self.shared.list(dataset, query).await;
        entries.map_err(|failure| failure.during("list dataset", dataset))
    }

    async fn close(&self) -> Result<(), Error> {
        self.sweeper.abort();
        Ok(())
    }
}
