//! Copies alone, as a cache without a slow store behind it.

use std::time::UNIX_EPOCH;

use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_runtime::{ManualClock, Random, SeededRandom};

use super::*;
use crate::{ByteRange, FaultStore, StoreExt, memory};

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(ManualClock::new(UNIX_EPOCH))
}

async fn opened(store: &Arc<dyn Store>, quota: u64) -> Copies {
    let copies = Copies::new(Arc::clone(store), quota, clock());
    copies.quiet().await;
    copies
}

async fn read(copies: &Copies, key: &Key, start: u64, end: u64) -> Option<Bytes> {
    let range = ByteRange::exact(start, end).unwrap();
    copies.read(&[ObjectRange { key: key.clone(), range }]).await.remove(0)
}

#[tokio::test]
async fn an_offered_object_is_read_also_after_a_restart() {
    let store = memory();
    let (copies, a) = (opened(&store, 100).await, key("a"));
    assert_eq!(read(&copies, &a, 0, 2).await, None);
    // Offers at the same time make one copy.
    for _ in 0..3 {
        copies.offer(&a, "body".into());
    }
    copies.quiet().await;
    let mut copies = copies;
    for restarts in 0..2 {
        assert_eq!(read(&copies, &a, 1, 4).await.unwrap(), "ody");
        assert_eq!(read(&copies, &a, 1, 5).await, None, "past the end");
        let (made, used) = (copies.counts().made, copies.counts().used);
        assert_eq!((made, used), (1 - restarts, 4));
        assert_eq!(store.list_sorted(&Prefix::ROOT).await.unwrap().len(), 1);
        copies = opened(&store, 100).await;
    }
    // With a smaller quota, the copy goes at the start.
    let copies = opened(&store, 3).await;
    assert_eq!((copies.counts().used, read(&copies, &a, 0, 2).await), (0, None));
    assert_eq!(store.list_sorted(&Prefix::ROOT).await.unwrap(), []);
}

#[tokio::test]
async fn a_copy_that_is_begun_and_not_filled_is_none() {
    let (copies, a) = (opened(&memory(), 100).await, key("a"));
    let pending = copies.begin(&a, 1, false).unwrap();
    assert!(copies.begin(&a, 1, false).is_none() && copies.index().knows(&a));
    drop(pending);
    assert!(!copies.index().knows(&a));
    // Invalidated or deleted before it is filled.
    for invalidate in [true, false] {
        let pending = copies.begin(&a, 1, false).unwrap();
        match invalidate {
            true => copies.invalidate(&a),
            false => copies.remove(&a).await,
        }
        pending.fill("old".into()).await;
        copies.quiet().await;
        assert_eq!((read(&copies, &a, 0, 1).await, copies.counts().used), (None, 0));
    }
}

/// Whatever is offered, kept, invalidated and read, and whichever calls of the store fail or take long.
#[tokio::test]
async fn copies_never_exceed_the_quota() {
    let (store, random) = (memory(), Arc::new(SeededRandom::new(7)));
    let clock = Arc::new(ManualClock::jumping(UNIX_EPOCH));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let faults = Faults::new(Arc::<SeededRandom>::clone(&random));
    let faulty =
        FaultStore::new(Arc::clone(&store), Arc::clone(&time), faults.clone(), CutPoint::new());
    let copies = Copies::new(Arc::new(faulty), 1_000, time);
    copies.quiet().await;
    let longest_delay = Duration::from_secs(1);
    let rates = Rates {
        before: 0.02,
        answer_lost: 0.02,
        delay: 0.1,
        longest_delay,
        error: Kind::Unavailable,
    };
    let operations = ["create", "read", "delete"];
    for operation in operations {
        faults.set_rates(operation, Some(rates));
    }
    let stored = async || {
        let listed = store.list_sorted(&Prefix::ROOT).await.unwrap();
        listed.iter().map(|copy| copy.size).sum::<u64>()
    };
    for _ in 0..3_000 {
        let number = random.u64() % 40;
        let key = key(&format!("{}/{number}", number % 3));
        match random.u64() % 8 {
            0 => copies.invalidate(&key),
            1 => copies.index().keep(vec![Prefix::new((random.u64() % 3).to_string()).unwrap()]),
            2 => clock.advance(KEPT / 4),
            3 | 4 => drop(read(&copies, &key, 0, 1).await),
            _ => copies.offer(&key, vec![number as u8; 50 + number as usize].into()),
        }
        if random.u64() % 4 == 0 {
            copies.quiet().await;
        }
        let (stored, used) = (stored().await, copies.counts().used);
        assert!(stored <= 1_000 && stored <= used, "{stored} bytes stored, {used} counted");
    }
    for operation in operations {
        faults.set_rates(operation, None);
    }
    copies.quiet().await;
    // The next copy removes the copies that could not be removed.
    clock.advance(KEPT);
    copies.offer(&key("last"), "body".into());
    copies.quiet().await;
    assert_eq!(stored().await, copies.counts().used);
    let counts = copies.counts();
    assert!(counts.made > 100 && counts.failures > 10, "{counts:?}");
}
