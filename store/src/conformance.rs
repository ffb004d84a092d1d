//! The contract of [`Store`] as checks, for every store and every layer.
//!
//! Must hold: each sentence of the contract that a program can observe has a check, and a store that
//! breaks the sentence fails the suite.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt, StreamExt};

use crate::{ByteRange, Key, Kind, ObjectInfo, ObjectRange, Prefix, Store, StoreExt};

/// Runs every check, each on a new, empty store from `make`.
///
/// # Panics
/// The store breaks the contract. Needs a tokio runtime.
pub async fn run(make: impl AsyncFn() -> Arc<dyn Store>) {
    a_created_object_is_read_back(&*make().await).await;
    a_second_create_changes_nothing(&*make().await).await;
    one_of_several_creates_wins(&*make().await).await;
    ranges_are_exact_and_in_order(&*make().await).await;
    a_range_past_the_end_is_an_error(&*make().await).await;
    a_failed_range_fails_no_other(&*make().await).await;
    many_ranges_come_back_in_order(&*make().await).await;
    a_deleted_object_is_gone_and_can_come_back(&*make().await).await;
    a_listing_gives_each_object_below_its_prefix_once(&*make().await).await;
    objects_are_settled_whether_they_are_there_or_not(&*make().await).await;
    a_pruned_prefix_keeps_its_objects(&*make().await).await;
    an_invalidated_object_is_read_as_it_is(&*make().await).await;
    a_dropped_create_leaves_all_or_nothing(&*make().await).await;
    the_store_has_a_name(&*make().await);
}

fn key(text: &str) -> Key {
    Key::new(text).expect("the keys of the suite are keys")
}

fn exact(key: &Key, start: u64, end: u64) -> ObjectRange {
    let range = ByteRange::exact(start, end).expect("the ranges of the suite aren't empty");
    ObjectRange { key: key.clone(), range }
}

fn up_to(length: u64) -> ByteRange {
    ByteRange::up_to(length).expect("the ranges of the suite aren't empty")
}

/// Bytes in which all stretches differ, also from bodies with another `salt`.
fn body(salt: u8, length: usize) -> Bytes {
    let mix = |index: usize| (index ^ (index >> 8) ^ (index >> 16)) as u8 ^ salt;
    (0..length).map(mix).collect()
}

async fn a_created_object_is_read_back(store: &dyn Store) {
    for (name, length) in
        [("x/empty", 0), ("x/one", 1), ("x/chunk", 4 << 20), ("x/largest", 64 << 20)]
    {
        let (key, body) = (key(name), body(1, length));
        store.create(&key, body.clone()).await.expect("create a new key");
        let read = store.read_all(&key).await.expect("read a created object");
        assert!(read == body, "{store}: {name} came back as {} other bytes", read.len());
    }
}

async fn a_second_create_changes_nothing(store: &dyn Store) {
    let key = key("x/1");
    store.create(&key, "first".into()).await.expect("create a new key");
    for again in ["first", "second", ""] {
        let error = store.create(&key, again.into()).await.expect_err("the key is taken");
        assert_eq!(error.kind, Kind::Exists, "{store}");
        assert_eq!(store.read_all(&key).await.expect("the first object"), "first", "{store}");
    }
}

async fn one_of_several_creates_wins(store: &dyn Store) {
    for round in 0..4 {
        let key = key(&format!("x/{round}"));
        let bodies: Vec<Bytes> = (0..8).map(|salt| body(salt, 100_000)).collect();
        let creates = bodies.iter().map(|body| store.create(&key, body.clone()));
        let results = join_all(creates).await;
        let won: Vec<&Bytes> = bodies
            .iter()
            .zip(&results)
            .filter(|(_, result)| result.is_ok())
            .map(|(b, _)| b)
            .collect();
        assert_eq!(won.len(), 1, "{store}: {results:?}");
        let lost = results.iter().filter_map(|result| result.as_ref().err());
        assert!(lost.into_iter().all(|error| error.kind == Kind::Exists), "{store}: {results:?}");
        let stored = store.read_all(&key).await.expect("the winner's object");
        assert!(won.contains(&&stored), "{store}: the object isn't the winner's");
    }
}

async fn ranges_are_exact_and_in_order(store: &dyn Store) {
    let (first, second) = (key("x/1"), key("x/2"));
    store.create(&first, "0123456789".into()).await.expect("create a new key");
    store.create(&second, "abc".into()).await.expect("create a new key");
    let wanted = [
        exact(&second, 1, 3),
        exact(&first, 0, 10),
        exact(&first, 9, 10),
        exact(&first, 3, 5),
        exact(&second, 0, 1),
        exact(&first, 3, 5),
    ];
    let read: Vec<Bytes> = store
        .read(&wanted)
        .await
        .into_iter()
        .map(|result| result.expect("read a range within its object"))
        .collect();
    assert_eq!(read, ["bc", "0123456789", "9", "34", "a", "34"], "{store}");
    for (length, expected) in [(2, "ab"), (3, "abc"), (4, "abc"), (u64::MAX - 1, "abc")] {
        let read = store.read_one(&second, up_to(length)).await.expect("read a beginning");
        assert_eq!(read, expected, "{store}");
    }
    let empty = key("x/3");
    store.create(&empty, Bytes::new()).await.expect("create a new key");
    assert_eq!(store.read_one(&empty, up_to(7)).await.expect("read a beginning"), "", "{store}");
    assert!(store.read(&[]).await.is_empty(), "{store}");
}

async fn a_range_past_the_end_is_an_error(store: &dyn Store) {
    let (key, empty) = (key("x/1"), key("x/2"));
    store.create(&key, "0123456789".into()).await.expect("create a new key");
    store.create(&empty, Bytes::new()).await.expect("create a new key");
    let past = [
        exact(&key, 5, 11),
        exact(&key, 10, 11),
        exact(&key, 100, 200),
        exact(&key, 0, u64::MAX),
        exact(&empty, 0, 1),
    ];
    for (wanted, result) in past.iter().zip(store.read(&past).await) {
        let error = result.expect_err("the range is longer than the object");
        assert_eq!(error.kind, Kind::Corrupt, "{store}: {wanted:?}");
    }
}

async fn a_failed_range_fails_no_other(store: &dyn Store) {
    let (there, missing, below) = (key("x/1"), key("x/2"), key("y/z/1"));
    store.create(&there, "0123456789".into()).await.expect("create a new key");
    let wanted = [
        exact(&there, 0, 1),
        exact(&missing, 0, 1),
        exact(&there, 9, 11),
        exact(&there, 1, 2),
        exact(&below, 0, 1),
    ];
    let results = store.read(&wanted).await;
    let seen: Vec<Result<&[u8], Kind>> =
        results.iter().map(|result| result.as_deref().map_err(|error| error.kind)).collect();
    let expected: [Result<&[u8], Kind>; 5] =
        [Ok(b"0"), Err(Kind::Missing), Err(Kind::Corrupt), Ok(b"1"), Err(Kind::Missing)];
    assert_eq!(seen, expected, "{store}");
}

async fn many_ranges_come_back_in_order(store: &dyn Store) {
    const OBJECTS: u64 = 8;
    const LENGTH: u64 = 1 << 20;
    let objects: Vec<(Key, Bytes)> = (0..OBJECTS)
        .map(|number| (key(&format!("x/{number}")), body(number as u8, LENGTH as usize)))
        .collect();
    for (key, body) in &objects {
        store.create(key, body.clone()).await.expect("create a new key");
    }
    for range in [4096, 300_000] {
        let wanted: Vec<(ObjectRange, Bytes)> = (0..256_u64)
            .filter_map(|number| {
                let (key, body) = objects.get((number * 5 % OBJECTS) as usize)?;
                let start = number * 7919 % (LENGTH - range);
                let expected = body.slice(start as usize..(start + range) as usize);
                Some((exact(key, start, start + range), expected))
            })
            .collect();
        let ranges: Vec<ObjectRange> = wanted.iter().map(|(range, _)| range.clone()).collect();
        let results = store.read(&ranges).await;
        assert_eq!(results.len(), wanted.len(), "{store}");
        for ((range, expected), result) in wanted.iter().zip(results) {
            assert!(result.is_ok_and(|read| read == expected), "{store}: {range:?}");
        }
    }
}

async fn a_deleted_object_is_gone_and_can_come_back(store: &dyn Store) {
    let key = key("x/1");
    store.delete(&key).await.expect("delete a key that never was");
    for body in ["first", "other"] {
        store.create(&key, body.into()).await.expect("create a free key");
        assert_eq!(store.read_all(&key).await.expect("read a created object"), body, "{store}");
        store.delete(&key).await.expect("delete an object");
        let error = store.read_all(&key).await.expect_err("the object is deleted");
        assert_eq!(error.kind, Kind::Missing, "{store}");
        let listed = store.list_sorted(&Prefix::ROOT).await.expect("list a store");
        assert_eq!(listed, [], "{store}");
        store.delete(&key).await.expect("delete a deleted key");
    }
}

async fn a_listing_gives_each_object_below_its_prefix_once(store: &dyn Store) {
    let nothing = store.list_sorted(&Prefix::ROOT).await.expect("list an empty store");
    assert_eq!(nothing, [], "{store}");
    let mut objects: Vec<ObjectInfo> = (0..40)
        .map(|number| ObjectInfo {
            key: key(&format!("a/b/{:x}/{number}", number % 7)),
            size: number,
        })
        .chain(
            [("a/bc/1", 5), ("a/b.c", 0), ("top", 7), ("b/a/b/1", 2)]
                .map(|(name, size)| ObjectInfo { key: key(name), size }),
        )
        .collect();
    objects.sort();
    for object in &objects {
        let body = body(0, object.size as usize);
        store.create(&object.key, body).await.expect("create a new key");
    }
    for prefix in ["a", "a/b", "a/b/3", "a/bc", "top", "a/b.c", "b", "c", "a/c", "a/b/3/3"] {
        let prefix = Prefix::new(prefix).expect("the prefixes of the suite are prefixes");
        let expected: Vec<ObjectInfo> =
            objects.iter().filter(|object| prefix.contains(&object.key)).cloned().collect();
        let listed = store.list_sorted(&prefix).await.expect("list a prefix");
        assert_eq!(listed, expected, "{store}: {prefix}");
    }
    let listed = store.list_sorted(&Prefix::ROOT).await.expect("list a store");
    assert_eq!(listed, objects, "{store}");
    let some = store.list(&Prefix::ROOT).take(2).count().await;
    assert_eq!(some, 2, "{store}: a listing can be left half-way");
}

async fn objects_are_settled_whether_they_are_there_or_not(store: &dyn Store) {
    let keys = ["x/1", "x/y/2", "top", "x/gone", "no/where"].map(key);
    for key in &keys[..3] {
        store.create(key, "here".into()).await.expect("create a new key");
    }
    store.make_durable(&[]).await.expect("settle nothing");
    for _ in 0..2 {
        store.make_durable(&keys).await.expect("settle what is there");
        let listed = store.list_sorted(&Prefix::ROOT).await.expect("list a store");
        assert_eq!(listed.len(), 3, "{store}: {listed:?}");
    }
    store
        .create(&keys[4], "now".into())
        .await
        .expect("create what was settled before it was there");
}

async fn a_pruned_prefix_keeps_its_objects(store: &dyn Store) {
    let (kept, gone, late) = (key("x/a/1"), key("x/b/2"), key("x/b/3"));
    for key in [&kept, &gone] {
        store.create(key, "bytes".into()).await.expect("create a new key");
    }
    store.delete(&gone).await.expect("delete an object");
    for prefix in ["x", "x/b", "y"] {
        let prefix = Prefix::new(prefix).expect("the prefixes of the suite are prefixes");
        store.prune(&prefix).await.expect("prune a prefix");
    }
    store.create(&late, "bytes".into()).await.expect("create after all");
    for key in [&kept, &late] {
        assert_eq!(store.read_all(key).await.expect("read what is there"), "bytes", "{store}");
    }
}

async fn an_invalidated_object_is_read_as_it_is(store: &dyn Store) {
    let (here, gone) = (key("x/here"), key("x/gone"));
    store.create(&here, "here".into()).await.expect("create a new key");
    for _ in 0..2 {
        let read = store.read(&[exact(&here, 1, 3), exact(&gone, 0, 1)]).await;
        assert_eq!(read[0].as_ref().expect("read what is there"), &"er", "{store}");
        assert_eq!(read[1].as_ref().expect_err("it isn't there").kind, Kind::Missing, "{store}");
        store.invalidate(&here);
        store.invalidate(&gone);
    }
}

async fn a_dropped_create_leaves_all_or_nothing(store: &dyn Store) {
    const POLLS: usize = 6;
    for polls in 0..POLLS {
        let (key, dropped) = (key(&format!("x/{polls}")), body(1, 4 << 20));
        let mut create = store.create(&key, dropped.clone());
        for _ in 0..polls {
            if (&mut create).now_or_never().is_some() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(create);
        let is_whole = |read: &Bytes| *read == dropped;
        match store.read_all(&key).await {
            Ok(read) => assert!(is_whole(&read), "{store}: a part of the object is visible"),
            Err(error) => assert_eq!(error.kind, Kind::Missing, "{store}"),
        }
        let listed = store.list_sorted(&Prefix::ROOT).await.expect("list a store");
        assert!(listed.iter().all(|object| object.size == 4 << 20), "{store}: {listed:?}");
        let again = body(2, 4 << 20);
        let expected = match store.create(&key, again.clone()).await {
            Ok(()) => again,
            Err(error) => {
                assert_eq!(error.kind, Kind::Exists, "{store}: {error:?}");
                dropped
            }
        };
        let read = store.read_all(&key).await.expect("one of the two objects");
        assert!(read == expected, "{store}: the object is neither of the two");
    }
}

fn the_store_has_a_name(store: &dyn Store) {
    assert!(!store.to_string().is_empty() && !format!("{store:?}").is_empty());
}

#[cfg(test)]
mod tests {
    use dl_runtime::fault::{CutPoint, Faults};
    use dl_runtime::{Clock, SeededRandom, SystemClock};

    use super::*;
    use crate::{CountStore, FaultStore, Throttle, ThrottleStore, memory};

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock::new())
    }

    #[tokio::test]
    async fn memory_keeps_the_contract() {
        run(async || memory()).await;
    }

    #[tokio::test]
    async fn counting_keeps_the_contract() {
        run(async || Arc::new(CountStore::new(memory()).0) as Arc<dyn Store>).await;
    }

    #[tokio::test]
    async fn throttling_keeps_the_contract() {
        run(async || {
            Arc::new(ThrottleStore::new(memory(), clock(), Throttle::default(), 4).0)
                as Arc<dyn Store>
        })
        .await;
    }

    #[tokio::test]
    async fn a_fault_layer_without_faults_keeps_the_contract() {
        run(async || {
            let faults = Faults::new(Arc::new(SeededRandom::new(0)));
            Arc::new(FaultStore::new(memory(), clock(), faults, CutPoint::new())) as Arc<dyn Store>
        })
        .await;
    }
}
