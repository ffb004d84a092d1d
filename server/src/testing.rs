//! The scene of unit tests: parts over stores in memory with faults, and a clock that the test sets.
//!
//! Must hold: each wait for a store or a patience is a wait for that clock alone.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::Bytes;
use dl_format::{
    Attributes, ChunkId, ChunkIdMaker, ChunkShape, ChunkWriter, DatasetId, DatasetName, FilePath,
    Sealed, Stamp, name_key,
};
use dl_meta::{FaultMeta, Memory, MetaStore};
use dl_proto::{
    DeletedDataset, PurgeProgress, PurgeRequest, RecoverProgress, RecoverRequest, VerifyProgress,
    VerifyRequest,
};
use dl_runtime::fault::{CutPoint, Faults};
use dl_runtime::{Clock, ManualClock, OsRandom, SeededRandom};
use dl_store::{
    CountStore, Counters, FaultStore, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store,
};
use futures::stream::BoxStream;
use tokio::sync::mpsc;

use crate::DiskReserve;
use crate::Limits;
use crate::NameCache;
use crate::Settings;
use crate::answers::answer::Reply;
use crate::auth::Caller;
use crate::datasets::leftovers::Leftovers;
use crate::error::Error;
use crate::housekeeping::turns::Turns;
use crate::housekeeping::{purge, verify};
use crate::recovery::recover;
use crate::shared::context::{Budget, ServerContext, key, object_key};

/// Parts, and what a test does to them.
pub(crate) struct Rig {
    pub(crate) context: ServerContext,
    pub(crate) clock: Arc<ManualClock>,
    /// Before the chunk store.
    pub(crate) store: Faults<Kind>,
    pub(crate) counters: Arc<Counters>,
    /// Before the metadata.
    pub(crate) meta: Faults<Kind>,
    /// Behind it.
    pub(crate) memory: Arc<Memory>,
}

/// Parts over stores in memory that were put together.
pub(crate) async fn rig() -> Rig {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH + Duration::from_secs(1_800_000_000)));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let (store, meta) =
        (Faults::new(Arc::new(SeededRandom::new(1))), Faults::new(Arc::new(SeededRandom::new(2))));
    let memory = Arc::new(Memory::new());
    let (counted, counters) = CountStore::new(dl_store::memory());
    let before_store =
        FaultStore::new(Arc::new(counted), Arc::clone(&time), store.clone(), CutPoint::new());
    let inner: Arc<dyn MetaStore> = Arc::<Memory>::clone(&memory);
    let before_meta = FaultMeta::new(inner, Arc::clone(&time), meta.clone(), CutPoint::new());
    let context = ServerContext {
        store: Arc::new(before_store),
        meta: Arc::new(before_meta),
        clock: time,
        random: Arc::new(OsRandom),
        limits: Limits::default(),
        reserve: DiskReserve::default(),
        replaced: crate::Replaced::default(),
        settings: Settings::default(),
        names: NameCache::default(),
    };
    crate::prepare(&context, dl_meta::Stop::Fresh).await.unwrap();
    Rig { context, clock, store, counters, meta, memory }
}

/// The end of long work, and its reports.
pub(crate) type Told<T> = (Result<(), Error>, Vec<T>);

async fn told<T>(work: impl AsyncFnOnce(&mpsc::Sender<Reply<T>>) -> Result<(), Error>) -> Told<T> {
    let (progress, mut heard) = mpsc::channel(3_000);
    let ended = work(&progress).await;
    drop(progress);
    let mut reports = Vec::new();
    while let Some(Reply::More(report) | Reply::Last(report)) = heard.recv().await {
        reports.push(report);
    }
    (ended, reports)
}

/// Lets work go on until a call has met the last scripted fault of an operation.
pub(crate) async fn until_met<K: Copy + fmt::Debug>(
    faults: &Faults<K>,
    operation: &'static str,
    work: &mut (impl Future + Unpin),
) {
    while !faults.is_used_up(operation) {
        assert!(futures::poll!(&mut *work).is_pending());
        tokio::task::yield_now().await;
    }
}

/// Commits an object that began to come at `arrived`, as a put does.
pub(crate) async fn commit(
    context: &ServerContext,
    dataset: DatasetId,
    object: Vec<u8>,
    arrived: SystemTime,
) -> Result<Stamp, Error> {
    let record = crate::datasets::catalog::by_id(context, dataset).await?;
    crate::write::commit::put_chunk(context, &Arc::default(), &record, object, arrived).await
}

impl Rig {
    pub(crate) async fn create(&self, name: &str) -> DatasetId {
        let shape = ChunkShape::default();
        crate::datasets::catalog::create(&self.context, &dataset(name), shape).await.unwrap().id
    }

    /// Recovers a dataset, or all, for everybody.
    pub(crate) async fn recover(&self, name: Option<&str>) -> Told<RecoverProgress> {
        self.recover_for(&Caller::Everybody, name).await
    }

    pub(crate) async fn recover_for(
        &self,
        caller: &Caller,
        name: Option<&str>,
    ) -> Told<RecoverProgress> {
        let request = RecoverRequest { dataset: name.map(dataset), since: None };
        told(async |told| recover::recover(&self.context, request, caller, told).await).await
    }

    pub(crate) async fn purge(&self, request: PurgeRequest) -> Told<PurgeProgress> {
        self.purge_with(&Turns::new(), request).await
    }

    pub(crate) async fn purge_with(
        &self,
        turns: &Turns,
        request: PurgeRequest,
    ) -> Told<PurgeProgress> {
        let (context, left, caller) = (&self.context, Leftovers::default(), &Caller::Everybody);
        let purge = async |told: &_| {
            Box::pin(purge::purge(context, turns, &left, request, caller, told)).await
        };
        told(purge).await
    }

    pub(crate) async fn verify(&self, name: &str, checksums: bool) -> Told<VerifyProgress> {
        let request = VerifyRequest { dataset: dataset(name), checksums };
        let (context, memory, turns) = (&self.context, Budget::new(64 << 20, "test"), Turns::new());
        let verify = async |told: &_| {
            let with = (&memory, &turns);
            Box::pin(verify::verify(context, with, request, &Caller::Everybody, told)).await
        };
        told(verify).await
    }

    /// Adopts all objects that the logs lack; gives their number.
    pub(crate) async fn adopt(&self) -> u64 {
        self.run(recover::recover_unlogged(&self.context)).await.0.unwrap()
    }

    /// Puts other bytes in the place of an object.
    pub(crate) async fn replace(&self, key: &Key, bytes: impl Into<Bytes>) {
        self.context.store.delete(key).await.unwrap();
        self.context.store.create(key, bytes.into()).await.unwrap();
    }

    /// Deletes it, and no job goes on with what is left.
    pub(crate) async fn delete(&self, name: &str, id: DatasetId) -> Result<DeletedDataset, Error> {
        let (left, which) = (Leftovers::default(), (&dataset(name), id));
        crate::datasets::catalog::delete(&self.context, &left, which).await
    }

    /// Stores a sealed and stamped chunk behind the metadata's back.
    pub(crate) async fn store_chunk(&self, dataset: DatasetId, number: u8) -> ChunkId {
        let id = ChunkIdMaker::new([number; 9]).next(self.context.clock.now());
        self.store_file(dataset, id, usize::from(number)).await;
        id
    }

    /// Stores so many.
    pub(crate) async fn store_chunks(&self, dataset: DatasetId, count: usize) {
        let mut ids = ChunkIdMaker::new([1; 9]);
        for number in 0..count {
            self.store_file(dataset, ids.next(self.context.clock.now()), number).await;
        }
    }

    async fn store_file(&self, dataset: DatasetId, id: ChunkId, number: usize) {
        self.store_sealed(&chunk(id, dataset, [format!("file-{number}")], b"bytes")).await;
    }

    /// The same for an object of any kind; gives its key and what is stored there.
    pub(crate) async fn store_sealed(&self, sealed: &Sealed) -> (Key, Bytes) {
        let verified = dl_format::Verified::check(sealed.as_slice().to_vec()).unwrap();
        let header = verified.header();
        let key = object_key(header.dataset(), header.id(), header.kind());
        let stamp = Stamp::at(self.context.clock.now());
        let object = Bytes::from(verified.commit(stamp).unwrap().1);
        self.context.store.create(&key, object.clone()).await.unwrap();
        (key, object)
    }

    /// Runs work to its end, a second at a time; gives how many seconds it took.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> (T, u32) {
        let (mut work, mut seconds) = (Box::pin(work), 0);
        loop {
            for _ in 0..200 {
                if let std::task::Poll::Ready(done) = futures::poll!(&mut work) {
                    return (done, seconds);
                }
                tokio::task::yield_now().await;
            }
            assert!(seconds < 7_200, "it goes on for ever");
            // No time passes while something runs on other threads.
            std::thread::sleep(Duration::from_millis(2));
            if dl_runtime::blocking::running() > 0 {
                continue;
            }
            self.clock.advance(Duration::from_secs(1));
            seconds += 1;
        }
    }
}

/// A bucket that takes an object from each of two that create it at once; the last one stays.
#[derive(Debug)]
pub(crate) struct Careless {
    inner: Arc<dyn Store>,
    /// Whether the next create is held back.
    holds: AtomicBool,
    held: Mutex<Option<(Key, Bytes)>>,
    invalidated: Mutex<Vec<Key>>,
}

impl Careless {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Self {
        Self {
            inner,
            holds: AtomicBool::new(false),
            held: Mutex::default(),
            invalidated: Mutex::default(),
        }
    }

    /// Objects whose copies were given up.
    pub(crate) fn invalidated(&self) -> Vec<Key> {
        self.invalidated.lock().unwrap().clone()
    }

    /// The next create fails for its caller and is done by [`Careless::land`].
    pub(crate) fn hold_next(&self) {
        self.holds.store(true, Ordering::Relaxed);
    }

    /// Does the create that was held back, over whatever is there.
    pub(crate) async fn land(&self) {
        let (key, body) = self.held.lock().unwrap().take().unwrap();
        self.create(&key, body).await.unwrap();
    }
}

impl fmt::Display for Careless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "careless({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for Careless {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), dl_store::Error> {
        if self.holds.swap(false, Ordering::Relaxed) {
            *self.held.lock().unwrap() = Some((key.clone(), body));
            return Err(dl_store::Error::new(Kind::Unavailable, "create object", key));
        }
        self.inner.delete(key).await?;
        self.inner.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, dl_store::Error>> {
        self.inner.read(wanted).await
    }

    async fn delete(&self, key: &Key) -> Result<(), dl_store::Error> {
        self.inner.delete(key).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), dl_store::Error> {
        self.inner.make_durable(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), dl_store::Error> {
        self.inner.prune(prefix).await
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, dl_store::Error>> {
        self.inner.list(prefix)
    }

    fn invalidate(&self, key: &Key) {
        self.invalidated.lock().unwrap().push(key.clone());
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }
}

pub(crate) fn dataset(name: &str) -> DatasetName {
    DatasetName::new(name).unwrap()
}

/// The key of the first generation of a name.
pub(crate) fn first_name(name: &str) -> Key {
    key(name_key(&dataset(name), 1))
}

pub(crate) fn path(name: &str) -> FilePath {
    FilePath::new(name.to_owned()).unwrap()
}

/// A chunk with files of the same bytes.
pub(crate) fn chunk(
    id: ChunkId,
    dataset: DatasetId,
    names: impl IntoIterator<Item = String>,
    bytes: &[u8],
) -> Sealed {
    let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
    for name in names {
        writer.append(&path(&name), Attributes { mode: 0o644, mtime: 1 }, bytes).unwrap();
    }
    writer.seal(id, dataset)
}
