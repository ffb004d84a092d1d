//! Listing datasets whose metadata is missing, and deleting them.

use std::sync::Arc;
use std::time::Duration;

use dl_meta::Datasets;
use dl_proto::{KeyHash, User, Users};
use dl_runtime::SystemClock;
use dl_runtime::fault::Fault;
use dl_store::StoreExt;

use super::*;
use crate::auth::People;
use crate::testing::{Careless, dataset, first_name, rig, until_met};

#[tokio::test]
async fn a_listing_checks_unknown_datasets_together() {
    let rig = rig().await;
    for number in 0..64 {
        let name = format!("cut-short-{number:02}");
        let id = rig.create(&name).await;
        rig.memory.drop_dataset(&dataset(&name), id).await.unwrap();
    }
    // The names, then the objects of each.
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    rig.store.script("list", vec![second; 65]);
    let (listed, seconds) = rig.run(list(&rig.context, &Caller::Everybody, Detail::Counts)).await;
    assert_eq!(listed.unwrap().found, [], "none of them has objects");
    assert!(seconds <= 6, "{seconds} s");
    let last = names::newest(&rig.context, &dataset("cut-short-63")).await.unwrap().unwrap();
    rig.store_chunk(last.record.dataset, 1).await;
    let (listed, _) = rig.run(list(&rig.context, &Caller::Everybody, Detail::Counts)).await;
    let error = listed.unwrap_err();
    assert_eq!((error.kind, error.what.as_str()), (Kind::NeedsRecovery, "cut-short-63"));
}

/// Somebody who may read these datasets.
fn reader(pattern: &str) -> Caller {
    let grants = vec![format!("read:{pattern}").parse().unwrap()];
    let users = [("ann".parse().unwrap(), User::new(KeyHash::of_nobody(), grants))];
    let people = People::parse(&Users(users.into_iter().collect()).to_string()).unwrap();
    Caller::Known(people.person("ann").unwrap())
}

fn counts(listed: &[Dataset]) -> Vec<(&str, bool)> {
    let is_known = |one: &Dataset| matches!(one.counts, Counts::Known { .. });
    listed.iter().map(|one| (one.name.as_str(), is_known(one))).collect()
}

#[tokio::test]
async fn a_listing_counts_what_its_caller_may_read_and_nothing_else() {
    let rig = rig().await;
    for name in ["apples", "big"] {
        rig.create(name).await;
    }
    // The second one that is counted, and the metadata of it is damaged.
    rig.meta.script("dataset", [None, Some(Fault::Before(dl_meta::Kind::Corrupt))]);
    let listed = list(&rig.context, &reader("apples"), Detail::Counts).await.unwrap();
    assert_eq!(counts(&listed.found), [("apples", true)]);
    // Whoever may read it is told what is wrong, and the counts of the others.
    let listed = list(&rig.context, &Caller::Everybody, Detail::Counts).await.unwrap();
    assert_eq!(counts(&listed.found), [("apples", false), ("big", true)]);
    assert!(
        matches!(&listed.found[0].counts, Counts::Unknown(why) if why.contains("describe dataset"))
    );
    // What may pass is tried again by who asked.
    rig.meta.script("dataset", [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
    let failed = list(&rig.context, &Caller::Everybody, Detail::Counts).await.unwrap_err();
    assert_eq!(failed.kind, Kind::Unavailable);
}

/// Keeps S-20: Rule 5. What was created or changed since under a name is not removed by a deletion.
#[tokio::test]
async fn a_dataset_is_deleted_by_its_own_name_alone() {
    let rig = rig().await;
    let (id, _) = (rig.create("foo").await, rig.create("bar").await);
    rig.store_chunk(id, 1).await;
    let object = first_name("foo");
    let named = rig.context.store.read_all(&object).await.unwrap();
    rig.context.store.delete(&object).await.unwrap();
    assert_eq!(rig.delete("bar", id).await.unwrap(), DeletedDataset::default());
    // Somebody has copied the name of another dataset over it.
    let copied = rig.context.store.read_all(&first_name("bar")).await.unwrap();
    rig.context.store.create(&object, copied).await.unwrap();
    let refused = rig.delete("foo", id).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict);
    let told = ["names/foo/00000001 in the chunk store", "run `dlcmd recover dl://foo`"];
    assert!(told.iter().all(|told| refused.chain().contains(told)), "{}", refused.chain());
    assert!(names::has_objects(&rig.context, &dataset("foo"), id).await.unwrap());
    rig.replace(&object, named).await;
    assert_eq!(rig.delete("foo", id).await.unwrap().removed, 1);
    rig.create("foo").await;
    assert_eq!(rig.delete("foo", id).await.unwrap(), DeletedDataset::default(), "repeated");
}

/// Keeps S-30.
#[tokio::test]
async fn a_failed_recovery_does_not_name_a_deleted_dataset() {
    let rig = rig().await;
    rig.create("apples").await;
    let id = rig.create("secret").await;
    let record = rig.memory.record(id).await.unwrap().unwrap();
    rig.delete("secret", id).await.unwrap();
    for operation in ["record", "drop_dataset"] {
        // As a Redis does that is set back.
        rig.memory.put_dataset(&record).await.unwrap();
        rig.meta.script(operation, [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
        let caller = reader("apples");
        let error = rig.run(rig.recover_for(&caller, Some("apples"))).await.0.0.unwrap_err();
        assert!(error.kind.is_retryable() && rig.meta.is_used_up(operation), "{operation}");
        let told = error.chain();
        assert!(!told.contains("secret") && !told.contains(&id.to_string()), "{told}");
    }
}

/// Keeps S-05: what a dataset holds is not told while its metadata is being rebuilt.
#[tokio::test]
async fn a_dataset_in_rebuild_has_no_version_and_no_counts() {
    let rig = rig().await;
    let id = rig.create("pets").await;
    rig.store_chunk(id, 1).await;
    rig.adopt().await;
    let record = rig.memory.record(id).await.unwrap().unwrap();
    let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..record };
    rig.memory.put_dataset(&rebuilt).await.unwrap();
    let told = async |told| by_name(&rig.context, &dataset("pets"), &Caller::Everybody, told).await;
    assert_eq!(told(Detail::Counts).await.unwrap_err().kind, Kind::NeedsRecovery);
    // It can be deleted.
    let opened = told(Detail::Outline).await.unwrap();
    assert_eq!((opened.id, opened.objects, opened.version), (id, 0, Version::default()));
    assert!(matches!(&opened.counts, Counts::Unknown(why) if why.contains("being rebuilt")));
    let listed = list(&rig.context, &Caller::Everybody, Detail::Counts).await.unwrap();
    assert_eq!(counts(&listed.found), [("pets", false)]);
}

#[tokio::test]
async fn a_dataset_created_during_a_search_is_not_lost() {
    let rig = rig().await;
    let id = rig.create("pets").await;
    rig.store_chunk(id, 1).await;
    let record = rig.memory.record(id).await.unwrap().unwrap();
    let (name, shape) = (dataset("pets"), ChunkShape::default());
    for call in 0..3 {
        for is_made in [true, false] {
            rig.memory.drop_dataset(&name, id).await.unwrap();
            // Names that were listed before are too old.
            rig.clock.advance(Duration::from_secs(60));
            rig.store.script("list", [Some(Fault::Delay(Duration::from_secs(1)))]);
            let mut found = Box::pin(async {
                match call {
                    0 => by_name(&rig.context, &name, &Caller::Everybody, Detail::Outline).await,
                    1 => create(&rig.context, &name, shape).await,
                    _ => {
                        let listed = list(&rig.context, &Caller::Everybody, Detail::Record).await;
                        listed.map(|mut listed| listed.found.remove(0))
                    }
                }
            });
            until_met(&rig.store, "list", &mut found).await;
            if is_made {
                rig.memory.put_dataset(&record).await.unwrap();
            }
            let (found, _) = rig.run(found).await;
            assert_eq!(found.as_ref().ok().map(|found| found.id), is_made.then_some(id), "{call}");
            assert!(is_made || found.is_err_and(|error| error.kind == Kind::NeedsRecovery));
        }
    }
}

/// Keeps S-02: what is put into the one that loses would be gone with the metadata.
#[tokio::test]
async fn two_creates_in_a_careless_bucket_make_one_dataset() {
    for round in 0..20 {
        let rig = rig().await;
        let store = Arc::new(Careless::new(Arc::clone(&rig.context.store)));
        let limits =
            crate::Limits { read_back_delay: Duration::from_millis(50), ..rig.context.limits };
        let clock = Arc::new(SystemClock::new());
        let first = ServerContext { store, limits, clock, ..rig.context.clone() };
        let second = ServerContext { names: crate::NameCache::default(), ..first.clone() };
        let name = dataset("ds");
        let later = async {
            // Also when the name is there already, and its record is not.
            first.clock.sleep(Duration::from_millis(round)).await;
            create(&second, &name, ChunkShape::default()).await
        };
        let made = create(&first, &name, ChunkShape::default());
        let (one, other) = futures::future::join(made, later).await;
        let (one, other) = (one.unwrap().id, other.unwrap().id);
        let named = names::newest(&first, &name).await.unwrap().unwrap();
        assert_eq!((one, other), (named.record.dataset, named.record.dataset), "{round} ms");
    }
}

/// Keeps S-30.
#[tokio::test]
async fn an_old_id_is_refused_when_its_name_is_unreadable() {
    let rig = rig().await;
    let before = rig.create("pets").await;
    rig.delete("pets", before).await.unwrap();
    let told = by_id(&rig.context, before).await.unwrap_err();
    assert_eq!(told.kind, Kind::NotFound, "{}", told.chain());
    rig.create("secret").await;
    rig.replace(&first_name("secret"), "damaged").await;
    rig.clock.advance(Duration::from_secs(1));
    let told = by_id(&rig.context, before).await.unwrap_err();
    assert_eq!(told.kind, Kind::NotFound, "{}", told.chain());
    // Now its name says nothing of it any more: it may be the other one.
    rig.create("pets").await;
    rig.clock.advance(Duration::from_secs(1));
    let told = by_id(&rig.context, before).await.unwrap_err();
    assert_eq!(told.kind, Kind::Corrupt, "{}", told.chain());
    assert!(!told.chain().contains("secret"), "{}", told.chain());
}

#[tokio::test]
async fn a_create_that_metadata_refuses_ends_with_a_remedy() {
    for times in [3, 1_000] {
        let rig = rig().await;
        let conflict = Some(Fault::Before(dl_meta::Kind::Conflict));
        rig.meta.script("put_dataset", vec![conflict; times]);
        let name = dataset("pets");
        let (created, seconds) = rig.run(create(&rig.context, &name, ChunkShape::default())).await;
        if times == 3 {
            created.unwrap();
            continue;
        }
        let error = created.unwrap_err();
        assert!(error.kind == Kind::NeedsRecovery && error.chain().contains("recover --all"));
        assert!((10..15).contains(&seconds), "{seconds} s");
    }
}
