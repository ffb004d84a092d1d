//! What is done for what the fast store is to keep.

use std::time::UNIX_EPOCH;

use dl_format::ChunkShape;
use dl_meta::{Memory, Stop};
use dl_runtime::{Clock, ManualClock, OsRandom};
use dl_store::{CountStore, StoreExt};

use super::*;
use crate::DiskReserve;
use crate::Limits;
use crate::NameCache;
use crate::prepare;
use crate::testing::{Rig, rig};

impl Keeper<'_> {
    /// Looks at all of them, and waits for it.
    async fn look_after(&mut self, keep: &[Pattern]) -> Kept {
        self.look(keep).await.unwrap();
        while !self.under_way.is_empty() {
            self.arrive().await;
        }
        self.kept()
    }
}

#[tokio::test]
async fn a_kept_dataset_is_listed_again_only_after_changes() {
    let (store, counters) = CountStore::new(dl_store::memory());
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH + RELIST_INTERVAL));
    clock.advance(Duration::from_secs(10));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let slow: Arc<dyn dl_store::Store> = Arc::new(store);
    let fast = TierStore::new(Arc::clone(&slow), dl_store::memory(), 1 << 30, Arc::clone(&time));
    let context = ServerContext {
        store: slow,
        meta: Arc::new(Memory::new()),
        clock: time,
        random: Arc::new(OsRandom),
        limits: Limits::default(),
        reserve: DiskReserve::default(),
        replaced: crate::Replaced::default(),
        settings: Settings::default(),
        names: NameCache::default(),
    };
    prepare(&context, Stop::Fresh).await.unwrap();
    let name = dl_format::DatasetName::new("kept").unwrap();
    let shape = ChunkShape::default();
    let dataset = crate::datasets::catalog::create(&context, &name, shape).await.unwrap().id;
    let object =
        crate::shared::context::key(format!("{}/00/a", dl_format::dataset_prefix(dataset)));
    context.store.create(&object, vec![7; 100].into()).await.unwrap();
    let keep = ["kept*".parse::<Pattern>().unwrap()];
    let mut keeper = Keeper::new(&context, &fast);
    let look = async |keeper: &mut Keeper<'_>| {
        clock.advance(PERIOD);
        let before = counters.counts().lists;
        let kept = keeper.look_after(&keep).await;
        (kept, counters.counts().lists - before)
    };
    // The names, then the dataset.
    assert_eq!(look(&mut keeper).await, (Kept { bytes: 100, left_out: 0 }, 2));
    for _ in 0..5 {
        assert_eq!(look(&mut keeper).await, (Kept { bytes: 100, left_out: 0 }, 1));
    }
    clock.advance(RELIST_INTERVAL);
    assert_eq!(look(&mut keeper).await.1, 2, "after a long time");
    let range = dl_store::ByteRange::exact(0, 9).unwrap();
    assert_eq!(fast.read_one(&object, range).await.unwrap(), vec![7; 9]);
    assert_eq!(fast.counts().hits, 1);
}

/// A dataset with a chunk, a fast store, and what keeps it there.
async fn kept() -> (Rig, TierStore, [Pattern; 1]) {
    let rig = rig().await;
    let fast = TierStore::new(
        Arc::clone(&rig.context.store),
        dl_store::memory(),
        1 << 30,
        Arc::clone(&rig.context.clock),
    );
    let id = rig.create("kept").await;
    rig.store_chunk(id, 1).await;
    (rig, fast, ["kept".parse().unwrap()])
}

#[tokio::test]
async fn a_kept_dataset_is_soon_listed_again_after_a_failure() {
    let (rig, fast, keep) = kept().await;
    let mut keeper = Keeper::new(&rig.context, &fast);
    let refused = dl_runtime::fault::Fault::Before(dl_store::Kind::Unavailable);
    // The names can be listed, and the dataset can't.
    rig.store.script("list", [None, Some(refused)]);
    let mut kept = Vec::new();
    for _ in 0..2 {
        rig.clock.advance(PERIOD);
        kept.push(rig.run(keeper.look_after(&keep)).await.0.bytes > 0);
    }
    assert_eq!(kept, [false, true]);
}

#[tokio::test]
async fn nothing_is_counted_to_learn_whether_a_kept_dataset_changed() {
    let (rig, fast, keep) = kept().await;
    let counted = dl_runtime::fault::Fault::Before(dl_meta::Kind::Unavailable);
    rig.meta.script("dataset", [Some(counted)]);
    let mut keeper = Keeper::new(&rig.context, &fast);
    let (kept, _) = rig.run(keeper.look_after(&keep)).await;
    assert!(kept.bytes > 0 && !rig.meta.is_used_up("dataset"));
}

#[tokio::test]
async fn a_dataset_that_takes_long_to_come_holds_up_no_other_one() {
    let (rig, fast, _) = kept().await;
    let keep = ["kept*".parse().unwrap()];
    let hour = dl_runtime::fault::Fault::Delay(Duration::from_secs(3_600));
    let mut keeper = Keeper::new(&rig.context, &fast);
    // The names can be read, and the chunk takes long.
    rig.store.script("read", [None, Some(hour)]);
    rig.run(keeper.look(&keep)).await.0.unwrap();
    let mut arrives = Box::pin(keeper.arrive());
    for _ in 0..1_000 {
        assert!(futures::poll!(&mut arrives).is_pending(), "nothing waits");
        tokio::task::yield_now().await;
        rig.clock.advance(Duration::from_secs(1));
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(arrives);
    assert!(rig.store.is_used_up("read"));
    let id = rig.create("kept-too").await;
    rig.store_chunk(id, 2).await;
    let ((), seconds) = rig
        .run(async {
            keeper.look(&keep).await.unwrap();
            keeper.arrive().await;
        })
        .await;
    assert!(keeper.seen.contains_key(&id) && seconds < 60, "{seconds} s");
    assert!(keeper.kept().bytes > 0 && keeper.kept().left_out == 0);
}
