//! Reading names, and what a start costs when many were used before.

use dl_format::ChunkShape;
use dl_runtime::fault::Fault;
use dl_runtime::{Clock, SystemClock};
use dl_store::{Throttle, ThrottleStore};

use super::*;
use crate::auth::Caller;
use crate::datasets::catalog::{self, Detail};
use crate::datasets::leftovers::Leftovers;
use crate::testing::{Rig, dataset, first_name, rig};

#[test]
fn the_nearest_name_is_the_one_that_was_meant() {
    for (typed, names, meant) in [
        // A letter left out, added, changed, or two of them swapped.
        ("imagnet", &["imagenet", "imagenet-val", "cifar10"][..], Some("imagenet")),
        ("CIFAR-10", &["imagenet", "cifar10"], Some("cifar10")),
        ("imaegnet", &["imagenet"], Some("imagenet")),
        ("oen", &["one", "two"], Some("one")),
        ("on", &["one"], Some("one")),
        ("tow", &["one", "two"], Some("two")),
        ("ONE", &["one"], Some("one")),
        // One of two letters.
        ("t2", &["s1", "t1"], Some("t1")),
        ("t", &["t1"], Some("t1")),
        // It goes on.
        ("nam", &["names", "imagenet"], Some("names")),
        ("img", &["img-train-2012"], Some("img-train-2012")),
        // Too far from any.
        ("nope", &["one"], None),
        ("voices", &["imagenet", "cifar10"], None),
        ("abc", &["xyz", "uvw"], None),
        ("a", &["b", "c"], None),
        ("ab", &["xb", "cd"], None),
        ("two", &["one"], None),
        ("train", &["brain-mri", "grants"], None),
        ("ds", &[], None),
        // Of two that are as near, the one that begins like it.
        ("photos-21", &["photos-11", "photos-22"], Some("photos-22")),
        ("cat", &["bat", "car"], Some("car")),
        // All else equal, the first by name.
        ("set-1", &["set-3", "set-2"], Some("set-2")),
    ] {
        let names: Vec<_> = names.iter().map(|text| dataset(text)).collect();
        let found = nearest(&dataset(typed), names.iter()).map(DatasetName::as_str);
        assert_eq!(found, meant, "{typed} among {names:?}");
    }
}

#[tokio::test]
async fn askers_for_missing_names_share_one_reading() {
    let Rig { context, counters, .. } = rig().await;
    // Each call takes its time, so that they meet.
    let slow = Throttle { latency: Duration::from_millis(20), ..Throttle::default() };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (store, _) =
        ThrottleStore::new(Arc::clone(&context.store), Arc::clone(&clock), slow, 1_000);
    let context = ServerContext { store: Arc::new(store), clock, ..context };
    let (caller, shape) = (Caller::Everybody, ChunkShape::default());
    for number in 0..20 {
        catalog::create(&context, &dataset(&format!("imagenet-{number}")), shape).await.unwrap();
    }
    let before = counters.counts();
    let asked = (0..100).map(|number| {
        let (name, context, caller) = (dataset(&format!("imagenet-{number}x")), &context, &caller);
        async move { catalog::by_name(context, &name, caller, Detail::Outline).await.unwrap_err() }
    });
    let errors = futures::future::join_all(asked).await;
    assert!(errors.iter().any(|error| error.chain().contains("did you mean imagenet-1?")));
    let after = counters.counts();
    assert!(after.listed - before.listed <= 40, "{before:?}, {after:?}");
    assert!(after.ranges - before.ranges <= 40, "{before:?}, {after:?}");
    let unknown = DatasetId::from_bytes([9; 16]);
    let asked = (0..100).map(|_| catalog::not_known(&context, unknown, &caller));
    futures::future::join_all(asked).await;
    let last = counters.counts();
    assert!(last.lists - after.lists <= 3, "{after:?}, {last:?}");
    // What is created counts at once.
    let name = dataset("new");
    let new = catalog::create(&context, &name, shape).await.unwrap().id;
    context.meta.drop_dataset(&name, new).await.unwrap();
    let told = catalog::not_known(&context, new, &caller).await;
    assert_eq!(told.kind, Kind::NeedsRecovery, "{}", told.chain());
}

#[tokio::test]
async fn a_start_tidies_no_names_and_reads_no_tidied_ones() {
    let rig = rig().await;
    let context = &rig.context;
    let mut created = Vec::new();
    for number in 0..20 {
        let name = format!("used-{}", number % 10);
        let id = rig.create(&name).await;
        if number < 15 {
            rig.delete(&name, id).await.unwrap();
        }
        created.push((dataset(&name), id));
    }
    let generations = || async { list(context, &prefix("names".to_owned())).await.unwrap() };
    let before = generations().await;
    let left = Leftovers::default();
    let sweep = async || left.sweep_deleted(context, Past::Untidied).await.unwrap();
    sweep().await;
    assert_eq!(generations().await, before, "somebody may still be at work");
    rig.clock.advance(SPENT_AFTER + Duration::from_secs(1));
    crate::prepare(context, dl_meta::Stop::Clean).await.unwrap();
    assert_eq!(generations().await, before, "a start does not wait for that");
    sweep().await;
    assert_eq!(generations().await.len(), 10, "one for each name");
    let quiet = rig.counters.counts();
    crate::prepare(context, dl_meta::Stop::Clean).await.unwrap();
    let after = rig.counters.counts();
    assert!(after.ranges - quiet.ranges <= 1, "more than the identity: {quiet:?} {after:?}");
    for (name, id) in created.into_iter().skip(10) {
        let newest = newest(context, &name).await.unwrap().unwrap();
        let lives = newest.record.state == NameState::Live;
        assert_eq!(lives, name.as_str() >= "used-5", "{name}");
        assert!(newest.record.dataset == id && newest.generation >= 3, "{name}");
    }
}

#[tokio::test]
async fn a_listing_reads_only_names_that_are_new() {
    let rig = rig().await;
    let caller = Caller::Everybody;
    for number in 0..60 {
        let name = format!("ds-{number}");
        let id = rig.create(&name).await;
        if number > 0 {
            rig.delete(&name, id).await.unwrap();
        }
    }
    let reads = async || {
        rig.clock.advance(RECENT * 2);
        let before = rig.counters.counts().ranges;
        let listed = catalog::list(&rig.context, &caller, Detail::Counts).await.unwrap();
        (listed.found.len(), rig.counters.counts().ranges - before)
    };
    assert_eq!(reads().await, (1, 60));
    // That of a young dataset may have been taken from two servers.
    assert_eq!(reads().await, (1, 1));
    rig.clock.advance(SPENT_AFTER * 2);
    assert_eq!(reads().await, (1, 0));
    // One that is used again has another generation.
    let id = rig.create("ds-7").await;
    assert_eq!(reads().await, (2, 1));
    rig.delete("ds-7", id).await.unwrap();
    assert_eq!(reads().await, (1, 1));
    // What can't be read is tried again each time.
    rig.create("new").await;
    rig.clock.advance(RECENT * 2);
    rig.store.script("read", [Some(Fault::Before(dl_store::Kind::Denied))]);
    assert_eq!(shared(&rig.context).await.unwrap().unread.len(), 1);
    assert_eq!(reads().await, (2, 1));
    rig.clock.advance(SPENT_AFTER * 2);
    assert_eq!(reads().await, (2, 0));
}

#[tokio::test]
async fn a_silent_store_fails_all_askers_for_names_together() {
    let rig = rig().await;
    rig.create("there").await;
    rig.clock.advance(RECENT * 2);
    let patience = rig.context.limits.patience.as_secs() as u32;
    let listed = rig.counters.counts().lists;
    rig.store.script("list", [Some(Fault::Delay(Duration::from_secs(3600)))]);
    let asked = futures::future::join_all((0..50).map(|_| shared(&rig.context)));
    let (answers, seconds) = rig.run(asked).await;
    for answer in answers {
        assert_eq!(answer.unwrap_err().kind, Kind::Unavailable);
    }
    assert!(seconds <= patience + 1, "{seconds} s");
    // The one reading goes on, and is there for who asks for what was a moment ago.
    rig.clock.advance(Duration::from_secs(3600));
    let (names, _) = rig.run(shared(&rig.context)).await;
    assert_eq!(names.unwrap().live().count(), 1);
    let listed = rig.counters.counts().lists - listed;
    assert!(listed <= 2, "{listed} listings");
    rig.clock.advance(RECENT * 2);
    // One that fails is told to who waits for it, and to nobody later.
    rig.store.script("list", [Some(Fault::Before(dl_store::Kind::Denied))]);
    let asked = futures::future::join_all((0..50).map(|_| shared(&rig.context)));
    let (answers, _) = rig.run(asked).await;
    assert!(answers.into_iter().all(|answer| answer.unwrap_err().kind == Kind::Denied));
    assert!(rig.run(shared(&rig.context)).await.0.is_ok());
}

#[tokio::test]
async fn a_deletion_keeps_the_mark_of_an_unfinished_one() {
    let rig = rig().await;
    let name = dataset("ds");
    for _ in 0..2 {
        let id = rig.create("ds").await;
        rig.delete(name.as_str(), id).await.unwrap();
    }
    rig.clock.advance(SPENT_AFTER + Duration::from_secs(1));
    let deletions = deleted(&rig.context, Past::Untidied).await.unwrap();
    assert_eq!(deletions.used_again, [(name.clone(), 4)]);
    let [first, second] = &deletions.found[..] else { panic!("{:?}", deletions.found) };
    second.tidy(&rig.context).await.unwrap();
    let left = || async { list(&rig.context, &prefix(name_prefix(&name))).await.unwrap() };
    let of = |all: &[u32]| all.iter().map(|one| (name.clone(), *one)).collect::<Vec<_>>();
    assert_eq!(left().await, of(&[1, 2, 4]));
    first.tidy(&rig.context).await.unwrap();
    assert_eq!(left().await, of(&[4]));
}

#[tokio::test]
async fn a_copied_deleted_name_is_taken_by_nobody() {
    let rig = rig().await;
    let (name, copy) = (dataset("ds"), dataset("zz"));
    let id = rig.create("ds").await;
    let record = newest(&rig.context, &name).await.unwrap().unwrap().record;
    create(&rig.context, &copy, 1, &record).await.unwrap();
    let unread = || async {
        let names = all(&rig.context).await.unwrap();
        names.unread.into_iter().map(|(name, why)| (name, why.chain())).collect::<Vec<_>>()
    };
    assert_eq!(unread().await.len(), 2, "nobody knows which of them is right");
    rig.context.store.delete(&first_name("zz")).await.unwrap();
    rig.delete("ds", id).await.unwrap();
    create(&rig.context, &copy, 1, &record).await.unwrap();
    let [(only, why)] = &unread().await[..] else { panic!("{:?}", unread().await) };
    assert!(*only == copy && why.contains("the same dataset as another name"), "{only}: {why}");
    let put = catalog::create(&rig.context, &copy, record.shape).await;
    assert_eq!(put.unwrap_err().kind, Kind::Corrupt);
    // Once the name stands for something else, that says nothing more; what lies there is left alone.
    rig.create("ds").await;
    rig.store_chunk(id, 1).await;
    assert_eq!(unread().await, []);
    let swept = Leftovers::default().sweep_deleted(&rig.context, Past::All).await;
    assert_eq!(swept.unwrap(), 0);
    rig.context.store.delete(&first_name("zz")).await.unwrap();
    rig.clock.advance(RECENT * 2);
    assert_eq!(Leftovers::default().sweep_deleted(&rig.context, Past::All).await.unwrap(), 1);
}
