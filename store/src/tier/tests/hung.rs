//! A fast store whose disk hangs: its file calls don't come back.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use dl_runtime::{Deadline, blocking};

use super::*;

/// Tries that together would take all places of the process.
const TRIES: u64 = 2 * blocking::AT_ONCE as u64;

/// A store whose calls block a thread each, for as long as somebody holds the other end.
#[derive(Debug)]
struct Hung {
    inner: Arc<dyn Store>,
    held: Mutex<Option<Arc<Mutex<Receiver<()>>>>>,
}

impl Hung {
    fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, held: Mutex::default() })
    }

    /// Hangs until this is dropped.
    fn hang(&self) -> Sender<()> {
        let (holds, held) = channel();
        *self.held.lock().unwrap() = Some(Arc::new(Mutex::new(held)));
        holds
    }

    async fn pass(&self) {
        let held = self.held.lock().unwrap().clone();
        let wait = move || {
            if let Some(held) = held {
                held.lock().unwrap().recv().unwrap_err();
            }
        };
        blocking::run(wait).await.unwrap();
    }
}

impl fmt::Display for Hung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hung({})", self.inner)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for Hung {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.pass().await;
        self.inner.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        self.pass().await;
        self.inner.read(wanted).await
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.pass().await;
        self.inner.delete(key).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.inner.make_durable(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.inner.prune(prefix).await
    }

    fn invalidate(&self, key: &Key) {
        self.inner.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.inner.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        let prefix = prefix.clone();
        let listing = async move {
            self.pass().await;
            self.inner.list(&prefix)
        };
        futures::stream::once(listing).flatten().boxed()
    }
}

/// Whether somebody else's work is done, by the clock of the machine.
async fn others_go_on() -> bool {
    let clock = SystemClock::new();
    let soon = Deadline::after(&clock, Duration::from_secs(20));
    soon.bound(&clock, blocking::run(|| ())).await.is_ok()
}

#[tokio::test]
async fn reads_that_hang_hold_up_no_others_and_copies_are_used_later() {
    let (fast, clock) = (Hung::new(memory()), Arc::new(ManualClock::new(UNIX_EPOCH)));
    let (below, time) = (Arc::clone(&fast), Arc::<ManualClock>::clone(&clock));
    let (tier, [key]) = (TierStore::new(memory(), below, 1000, time), keys(["a"]));
    tier.quiet().await;
    let range = ByteRange::exact(0, 4).unwrap();
    tier.create(&key, "body".into()).await.unwrap();
    tier.read_one(&key, range).await.unwrap();
    tier.quiet().await;
    let held = fast.hang();
    for failures in 1..=TRIES {
        let mut read = Box::pin(tier.read_one(&key, range));
        assert!(futures::poll!(&mut read).is_pending());
        clock.advance(READ_TIMEOUT);
        assert_eq!(read.await.unwrap(), "body");
        assert_eq!((tier.counts().failures, tier.counts().hits), (failures, 0));
        clock.advance(REST);
    }
    assert!(others_go_on().await);
    *fast.held.lock().unwrap() = None;
    drop(held);
    assert_eq!(tier.read_one(&key, range).await.unwrap(), "body");
    assert_eq!(tier.counts().hits, 1);
}
