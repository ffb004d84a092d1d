//! The tier over stores in memory, with faults in front of the fast store and a manual clock.

mod damaged;
mod group_prefetch;
mod hung;
mod slow;

use std::time::{Duration, UNIX_EPOCH};

use dl_runtime::fault::{CutPoint, Fault, Faults, Rates};
use dl_runtime::{ManualClock, SeededRandom, SystemClock};

use super::copies::{KEPT, READ_TIMEOUT, REST, WRITE_TIMEOUT, name_of, original_of};
use super::*;
use crate::{CountStore, FaultStore, conformance, memory};

/// Reads everything twice, the second time from the copies, and compares both answers.
#[derive(Debug)]
struct Twice(TierStore);

impl fmt::Display for Twice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "twice({})", self.0)
    }
}

#[deny(clippy::missing_trait_methods, reason = "a layer may not forget a method")]
#[async_trait]
impl Store for Twice {
    async fn create(&self, key: &Key, body: Bytes) -> Result<(), Error> {
        self.0.create(key, body).await
    }

    async fn read(&self, wanted: &[ObjectRange]) -> Vec<Result<Bytes, Error>> {
        let first = self.0.read(wanted).await;
        self.0.quiet().await;
        let second = self.0.read(wanted).await;
        for (first, second) in first.iter().zip(&second) {
            let kind = |error: &Error| error.kind;
            assert_eq!(first.as_ref().map_err(kind), second.as_ref().map_err(kind));
        }
        second
    }

    async fn delete(&self, key: &Key) -> Result<(), Error> {
        self.0.delete(key).await
    }

    async fn make_durable(&self, keys: &[Key]) -> Result<(), Error> {
        self.0.make_durable(keys).await
    }

    async fn prune(&self, prefix: &Prefix) -> Result<(), Error> {
        self.0.prune(prefix).await
    }

    fn invalidate(&self, key: &Key) {
        self.0.invalidate(key);
    }

    fn will_read(&self, key: &Key) {
        self.0.will_read(key);
    }

    fn list(&self, prefix: &Prefix) -> BoxStream<'_, Result<ObjectInfo, Error>> {
        self.0.list(prefix)
    }
}

impl TierStore {
    async fn quiet(&self) {
        self.tier.copies.quiet().await;
    }
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

struct Rig {
    slow: Arc<dyn Store>,
    fast: Arc<dyn Store>,
    clock: Arc<ManualClock>,
    faults: Faults<Kind>,
    tier: TierStore,
}

/// A tier with room for `quota` bytes of copies.
async fn rig(quota: u64) -> Rig {
    let (slow, fast) = (memory(), memory());
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    clock.advance(Duration::from_secs(1));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let faulty =
        FaultStore::new(Arc::clone(&fast), Arc::clone(&time), faults.clone(), CutPoint::new());
    let tier = TierStore::new(Arc::clone(&slow), Arc::new(faulty), quota, time);
    tier.quiet().await;
    Rig { slow, fast, clock, faults, tier }
}

impl Rig {
    /// Creates objects of 100 bytes.
    async fn create(&self, keys: &[Key]) {
        for key in keys {
            self.tier.create(key, vec![1; 100].into()).await.unwrap();
        }
    }

    /// Reads a part of an object, and waits for its copy.
    async fn read(&self, key: &Key) -> Result<Bytes, Error> {
        let read = self.tier.read_one(key, ByteRange::exact(10, 20).unwrap()).await;
        self.tier.quiet().await;
        read
    }

    async fn copies(&self) -> Vec<Key> {
        let listed = self.fast.list_sorted(&Prefix::ROOT).await.unwrap();
        listed.into_iter().filter_map(|object| original_of(&object.key)).collect()
    }

    fn rest(&self) {
        self.clock.advance(REST);
    }
}

fn keys<const N: usize>(names: [&str; N]) -> [Key; N] {
    names.map(|name| Key::new(name).unwrap())
}

#[tokio::test]
async fn a_tier_keeps_the_contract() {
    for quota in [3 << 20, 1 << 40] {
        conformance::run(async || {
            Arc::new(Twice(TierStore::new(memory(), memory(), quota, clock()))) as Arc<dyn Store>
        })
        .await;
    }
}

#[tokio::test]
async fn a_tier_whose_fast_store_fails_keeps_the_contract() {
    for seed in 0..4 {
        conformance::run(async || {
            let faults = Faults::new(Arc::new(SeededRandom::new(seed)));
            for operation in ["create", "read", "delete", "list"] {
                let rates = Rates {
                    before: 0.2,
                    answer_lost: 0.2,
                    delay: 0.1,
                    longest_delay: Duration::from_millis(1),
                    error: Kind::Unavailable,
                };
                faults.set_rates(operation, Some(rates));
            }
            let time: Arc<dyn Clock> = Arc::new(ManualClock::jumping(UNIX_EPOCH));
            let fast = FaultStore::new(memory(), Arc::clone(&time), faults, CutPoint::new());
            Arc::new(TierStore::new(memory(), Arc::new(fast), 1 << 40, time)) as Arc<dyn Store>
        })
        .await;
    }
}

#[tokio::test]
async fn exact_ranges_come_from_copies_and_other_reads_do_not() {
    let rig = rig(1000).await;
    let [key] = keys(["a"]);
    rig.create(std::slice::from_ref(&key)).await;
    rig.read(&key).await.unwrap();
    rig.read(&key).await.unwrap();
    let counts = rig.tier.counts();
    assert_eq!((counts.misses, counts.made, counts.hits, counts.used), (1, 1, 1, 100));
    rig.slow.delete(&key).await.unwrap();
    assert_eq!(rig.tier.read_all(&key).await.unwrap_err().kind, Kind::Missing);
}

#[tokio::test]
async fn a_full_fast_store_keeps_copies_that_were_read_lately() {
    let rig = rig(250).await;
    let [a, b, c, d] = keys(["a", "b", "c", "d"]);
    rig.create(&[a.clone(), b.clone(), c.clone(), d.clone()]).await;
    for key in [&a, &b, &c] {
        rig.read(key).await.unwrap();
    }
    assert_eq!(rig.copies().await, [a.clone(), b.clone()]);
    rig.clock.advance(KEPT);
    rig.read(&b).await.unwrap();
    rig.read(&c).await.unwrap();
    assert_eq!(rig.copies().await, [b.clone(), c.clone()], "the one not read for longest goes");
    rig.read(&d).await.unwrap();
    assert_eq!(rig.copies().await, [b, c]);
    assert_eq!(rig.tier.counts().used, 200);
}

/// Another process after the first one, over the same stores.
async fn restarted(first: Rig, quota: u64) -> Rig {
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&first.clock);
    let (slow, fast) = (Arc::clone(&first.slow), Arc::clone(&first.fast));
    let second = Rig { tier: TierStore::new(slow, fast, quota, time), ..first };
    second.tier.quiet().await;
    second
}

#[tokio::test]
async fn copies_of_an_earlier_process_count_and_are_read() {
    let first = rig(250).await;
    let [a, b, c] = keys(["a", "b", "c"]);
    first.create(&[a.clone(), b.clone(), c.clone()]).await;
    first.read(&a).await.unwrap();
    first.read(&b).await.unwrap();
    let second = restarted(first, 250).await;
    assert_eq!(second.tier.counts().used, 200);
    second.read(&b).await.unwrap();
    assert_eq!(second.tier.counts().hits, 1);
    second.read(&c).await.unwrap();
    assert_eq!(second.copies().await, [b, c], "the copy that was never read went");
}

#[tokio::test]
async fn other_objects_of_the_fast_store_neither_count_nor_go() {
    let first = rig(100).await;
    let [theirs, key] = keys(["identity", "a"]);
    first.fast.create(&theirs, vec![0; 100].into()).await.unwrap();
    let second = restarted(first, 110).await;
    second.create(std::slice::from_ref(&key)).await;
    second.read(&key).await.unwrap();
    assert_eq!(second.copies().await, [key]);
    assert_eq!(second.fast.read_all(&theirs).await.unwrap().len(), 100);
}

#[tokio::test]
async fn a_copy_of_a_deleted_object_that_stays_is_not_read() {
    let rig = rig(1000).await;
    let [key] = keys(["a"]);
    rig.create(std::slice::from_ref(&key)).await;
    rig.read(&key).await.unwrap();
    rig.faults.script("delete", [Some(Fault::Before(Kind::Unavailable))]);
    rig.tier.delete(&key).await.unwrap();
    rig.rest();
    assert_eq!(rig.read(&key).await.unwrap_err().kind, Kind::Missing);
    rig.tier.create(&key, vec![2; 100].into()).await.unwrap();
    assert_eq!(rig.read(&key).await.unwrap(), vec![2; 10]);
    // The old copy goes before the next one comes.
    let [other] = keys(["b"]);
    rig.create(std::slice::from_ref(&other)).await;
    rig.read(&other).await.unwrap();
    assert_eq!(rig.copies().await, [other]);
    rig.read(&key).await.unwrap();
    assert_eq!(rig.read(&key).await.unwrap(), vec![2; 10]);
}

#[tokio::test]
async fn folders_without_copies_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let fast = crate::open(directory.path().to_str().unwrap()).await.unwrap();
    let slow = memory();
    let keys = keys(["one/00/a", "two/00/b"]);
    let of_one = |name: &str| directory.path().join("copies/one").join(name).exists();
    for restarts in [false, true] {
        let tier = TierStore::new(Arc::clone(&slow), Arc::clone(&fast), 1000, clock());
        for key in &keys {
            tier.create(key, vec![1; 100].into()).await.unwrap();
            tier.read_one(key, ByteRange::exact(0, 10).unwrap()).await.unwrap();
            tier.quiet().await;
            tier.read_one(key, ByteRange::exact(0, 10).unwrap()).await.unwrap();
            tier.quiet().await;
        }
        assert!(of_one("00"));
        for key in &keys {
            tier.delete(key).await.unwrap();
        }
        match restarts {
            true => {
                let next = TierStore::new(Arc::clone(&slow), Arc::clone(&fast), 1000, clock());
                next.tier.copies.find_copies().await;
            }
            false => tier.prune(&Prefix::new("one").unwrap()).await.unwrap(),
        }
        assert!(!of_one(""), "restarts {restarts}");
        assert_eq!(directory.path().join("copies/two").exists(), !restarts);
    }
}

#[tokio::test]
async fn a_fast_store_that_fails_rests_and_is_tried_again() {
    let rig = rig(1000).await;
    let [key] = keys(["a"]);
    rig.create(std::slice::from_ref(&key)).await;
    rig.read(&key).await.unwrap();
    rig.faults.script("read", [Some(Fault::Before(Kind::Unavailable))]);
    for _ in 0..5 {
        rig.read(&key).await.unwrap();
    }
    assert_eq!((rig.tier.counts().hits, rig.tier.counts().failures), (0, 1));
    rig.rest();
    rig.read(&key).await.unwrap();
    assert_eq!(rig.tier.counts().hits, 1);
}

#[tokio::test]
async fn objects_to_keep_are_copied_and_stay() {
    let rig = rig(320).await;
    let [one, two, three, other, late] = keys(["a/1", "a/2", "a/3", "b/1", "a/4"]);
    let all = [one.clone(), two.clone(), three.clone(), other.clone()];
    rig.create(&all).await;
    rig.read(&other).await.unwrap();
    let a = Prefix::new("a").unwrap();
    rig.tier.keep(vec![a.clone(), Prefix::new("a-b").unwrap()]);
    let kept = rig.tier.copy_all(&a).await.unwrap();
    assert_eq!(kept, Kept { bytes: 300, left_out: 0 }, "the copy that was just read went");
    rig.clock.advance(KEPT * 2);
    rig.read(&other).await.unwrap();
    assert_eq!(rig.copies().await, [one.clone(), two, three], "they stay though nobody reads them");
    rig.create(std::slice::from_ref(&late)).await;
    assert_eq!(rig.tier.copy_all(&a).await.unwrap(), Kept { bytes: 300, left_out: 1 });
    rig.tier.keep(Vec::new());
    rig.read(&other).await.unwrap();
    assert!(rig.copies().await.contains(&other), "nothing is kept any more");
    rig.tier.delete(&one).await.unwrap();
    assert!(!rig.copies().await.contains(&one));
}

#[tokio::test]
async fn copies_of_earlier_versions_are_removed_and_not_read() {
    let first = rig(1000).await;
    let [key, plain, pages, sums] = keys(["a", "copies/a", "copies/a.p", "copies/a.s"]);
    first.create(std::slice::from_ref(&key)).await;
    for name in [&plain, &pages, &sums] {
        first.fast.create(name, vec![9; 104].into()).await.unwrap();
    }
    let second = restarted(first, 1000).await;
    assert_eq!(second.read(&key).await.unwrap(), vec![1; 10]);
    assert_eq!(second.read(&key).await.unwrap(), vec![1; 10]);
    let left = second.fast.list_sorted(&Prefix::ROOT).await.unwrap();
    assert_eq!(left.len(), 1, "only the new copy: {left:?}");
    assert_eq!(second.tier.counts().used, 100);
}

#[tokio::test]
async fn an_object_of_which_most_is_wanted_is_read_once_for_its_copy() {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    for (length, requests) in [(USUAL as usize, 1), (USUAL as usize + 1, 3)] {
        let (slow, counters) = CountStore::new(memory());
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let tier = TierStore::new(Arc::new(slow), memory(), 1 << 30, time);
        let [key] = keys(["a"]);
        let body: Bytes = (0..length).map(|n| (n % 251) as u8).collect::<Vec<_>>().into();
        tier.create(&key, body.clone()).await.unwrap();
        tier.quiet().await;
        let ranges = [(1_000, 2_000_000), (2_000_000, 4_000_000)];
        let wanted = ranges.map(|(start, end)| {
            let range = ByteRange::exact(start, end).unwrap();
            ObjectRange { key: key.clone(), range }
        });
        let readers = futures::future::join(tier.read(&wanted), tier.read(&wanted));
        let (first, second) = readers.await;
        for read in [first, second] {
            for (read, (start, end)) in read.into_iter().zip(ranges) {
                assert!(read.unwrap() == body.slice(start as usize..end as usize));
            }
        }
        tier.quiet().await;
        // The other reader's two ranges go beside the copy.
        assert_eq!(counters.counts().ranges, 2 + requests, "{length}");
        assert_eq!((tier.counts().made, tier.counts().used), (1, length as u64));
        assert_eq!(tier.read(&wanted).await[1].as_ref().unwrap().len(), 2_000_000);
        assert_eq!(tier.counts().hits, 2);
    }
}

#[tokio::test]
async fn a_range_past_the_end_fails_alone_in_a_whole_read() {
    let rig = rig(1 << 30).await;
    let [key, missing] = keys(["a", "b"]);
    rig.tier.create(&key, vec![1; 3_000_000].into()).await.unwrap();
    let wanted = [(&key, 0, 2_500_000), (&key, 2_500_000, 3_000_001), (&missing, 0, 3_000_000)];
    let wanted = wanted.map(|(key, start, end)| ObjectRange {
        key: key.clone(),
        range: ByteRange::exact(start, end).unwrap(),
    });
    for _ in 0..2 {
        let read = rig.tier.read(&wanted).await;
        assert_eq!(read[0].as_ref().unwrap().len(), 2_500_000);
        assert_eq!(read[1].as_ref().unwrap_err().kind, Kind::Corrupt);
        assert_eq!(read[2].as_ref().unwrap_err().kind, Kind::Missing);
        rig.tier.quiet().await;
    }
    assert_eq!((rig.tier.counts().made, rig.tier.counts().hits), (1, 1));
}
