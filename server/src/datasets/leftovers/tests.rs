//! What is left of deleted datasets goes, whatever stands in the way for a while.

use std::pin::pin;

use dl_runtime::Clock;
use dl_runtime::fault::Fault;
use dl_store::{Prefix, StoreExt};
use futures::future::{Either, select};

use super::*;
use crate::testing::{Rig, dataset, rig};

async fn objects(rig: &Rig) -> usize {
    let all = rig.context.store.list_sorted(&Prefix::ROOT).await.unwrap();
    all.iter().filter(|object| dl_format::parse_object_key(object.key.as_str()).is_some()).count()
}

/// Lets the job work until so many objects are left; gives how many seconds it took.
async fn until(
    rig: &Rig,
    left: usize,
    job: &mut (impl Future<Output = Infallible> + Unpin),
) -> u32 {
    let reached = pin!(async {
        while objects(rig).await != left {
            rig.clock.sleep(Duration::from_secs(1)).await;
        }
    });
    match rig.run(select(job, reached)).await {
        (Either::Right(_), seconds) => seconds,
        (Either::Left((never, _)), _) => match never {},
    }
}

#[tokio::test]
async fn objects_that_stay_block_neither_servers_nor_removals() {
    let rig = rig().await;
    let refused = Some(Fault::Before(dl_store::Kind::Denied));
    rig.store.script("delete", [refused; 3]);
    for (name, chunks) in [("large", 2), ("small", 1)] {
        let id = rig.create(name).await;
        for number in 0..chunks {
            rig.store_chunk(id, number).await;
        }
        let deleted = rig.delete(name, id).await.unwrap();
        assert_eq!(deleted, DeletedDataset { removed: 0, more_left: true });
    }
    // The server that was asked is gone.
    rig.store.script("delete", [refused]);
    crate::prepare(&rig.context, dl_meta::Stop::Clean).await.unwrap();
    assert_eq!(objects(&rig).await, 3, "a start waits for no removal");
    let left = Leftovers::default();
    let mut job = pin!(watch(&rig.context, &left));
    assert_eq!(until(&rig, 1, &mut job).await, 0, "all others go at once");
    let seconds = until(&rig, 0, &mut job).await;
    assert!((5..=11).contains(&seconds), "{seconds} s");
}

#[tokio::test]
async fn a_large_delete_is_answered_in_time_and_goes_on() {
    let rig = rig().await;
    let id = rig.create("large").await;
    for number in 0..200 {
        rig.store_chunk(id, number).await;
    }
    let left = Leftovers::default();
    let mut job = pin!(watch(&rig.context, &left));
    assert!(futures::poll!(&mut job).is_pending(), "it has nothing to do");
    let slow = Some(Fault::Delay(Duration::from_secs(7)));
    rig.store.script("delete", [slow; 3 * REMOVALS_AT_ONCE]);
    let name = dataset("large");
    let deletion = crate::datasets::catalog::delete(&rig.context, &left, (&name, id));
    let (deleted, seconds) = rig.run(deletion).await;
    // Twice so many, in 14 seconds; those that were under way then are not counted.
    let removed = 2 * REMOVALS_AT_ONCE as u64;
    assert_eq!(deleted.unwrap(), DeletedDataset { removed, more_left: true });
    assert_eq!(seconds, ANSWERED_WITHIN.as_secs() as u32);
    let record = rig.context.meta.record_named(&name).await.unwrap();
    assert_eq!(record, None, "it is deleted all the same");
    let seconds = until(&rig, 0, &mut job).await;
    assert!(seconds <= 1, "{seconds} s");
}

#[tokio::test]
async fn writes_after_a_deletion_go_with_the_next_purge() {
    let rig = rig().await;
    let id = rig.create("gone").await;
    rig.delete("gone", id).await.unwrap();
    rig.clock.advance(Duration::from_secs(2 * 3600));
    let left = Leftovers::default();
    left.sweep_deleted(&rig.context, Past::Untidied).await.unwrap();
    let deletions = names::deleted(&rig.context, Past::Untidied).await.unwrap();
    assert!(deletions.found.is_empty(), "it is tidied up: {deletions:?}");
    // By a server that hung for two hours and then died.
    rig.store_chunk(id, 1).await;
    assert_eq!(left.sweep_deleted(&rig.context, Past::All).await.unwrap(), 1);
    let objects = rig.context.store.list_sorted(&prefix(dataset_prefix(id))).await.unwrap();
    assert!(objects.is_empty());
}
