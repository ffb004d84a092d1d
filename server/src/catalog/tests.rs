//! Listing datasets whose metadata is missing, and what is left of deleted ones.

use std::time::Duration;

use dl_meta::MetaStore;
use dl_runtime::fault::Fault;
use dl_store::StoreExt;

use super::*;
use crate::testing::{dataset, rig};

#[tokio::test]
async fn a_listing_looks_for_the_objects_of_many_unknown_datasets_at_once() {
    let rig = rig().await;
    for number in 0..64 {
        let id = rig.create(&format!("cut-short-{number:02}")).await;
        rig.memory.drop_dataset(id).await.unwrap();
    }
    // The names, then the objects of each.
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    rig.store.script("list", vec![second; 65]);
    let (listed, seconds) = rig.run(list(&rig.parts, &Caller::Everybody)).await;
    assert_eq!(listed.unwrap(), [], "none of them has objects");
    assert!(seconds <= 6, "{seconds} s");
    let last = names::newest(&rig.parts, &dataset("cut-short-63")).await.unwrap().unwrap();
    rig.store_chunk(last.record.dataset, 1).await;
    let (listed, _) = rig.run(list(&rig.parts, &Caller::Everybody)).await;
    let error = listed.unwrap_err();
    assert_eq!((error.kind, error.what.as_str()), (Kind::NeedsRecovery, "cut-short-63"));
}

#[tokio::test]
async fn what_is_written_behind_the_end_of_a_deletion_goes_with_the_next_purge_of_all() {
    let rig = rig().await;
    let name = dataset("gone");
    let id = rig.create("gone").await;
    delete(&rig.parts, &name, id).await.unwrap();
    rig.clock.advance(Duration::from_secs(2 * 3600));
    finish_deletions(&rig.parts).await.unwrap();
    let deletions = names::deleted(&rig.parts, Past::Untidied).await.unwrap();
    assert!(deletions.is_empty(), "it is tidied up: {deletions:?}");
    // By a server that hung for two hours and then died.
    rig.store_chunk(id, 1).await;
    assert_eq!(sweep_deleted(&rig.parts, Past::All).await.unwrap(), 1);
    let left = rig.parts.store.list_sorted(&prefix(dataset_prefix(id))).await.unwrap();
    assert!(left.is_empty());
}
