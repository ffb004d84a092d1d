//! The contract of [`MetaStore`] as checks, for every store and every layer.
//!
//! Must hold: each sentence of the contract that a program can see has a check here, and a store
//! that breaks it fails the suite. What a dataset holds is compared with `dl_format::Fold`.

pub(crate) mod contest;
pub(crate) mod history;
pub(crate) mod model;
mod retire;
mod tasks;

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, DatasetName, DirPath, FilePath, Stamp, StoreId,
};
use tokio::task::JoinSet;

use self::history::{Maker, read_back};
use self::model::Model;
use crate::{
    Appended, DatasetRecord, DatasetState, Found, Kind, ListQuery, MetaStore, ObjectRecord,
};

/// Runs every check, each on a new, empty store from `make`.
///
/// # Panics
/// When the store breaks the contract. Needs a tokio runtime.
pub async fn run(make: impl AsyncFn() -> Arc<dyn MetaStore>) {
    for wanted in [[1, 2], [1, 1]] {
        let (store, wanted) =
            (make().await, wanted.map(|number| StoreId::from_bytes([number; 16])));
        contest::of_two_that_bind_at_once_one_wins([&*store, &*store], wanted).await;
    }
    what_was_recovered_is_bound_once(&*make().await).await;
    for seed in 0..6 {
        datasets_come_and_go_as_in_a_map(&*make().await, seed).await;
    }
    stamps_rise_whatever_the_clock_says(&*make().await).await;
    concurrent_stamps_are_distinct(make().await).await;
    the_log_comes_in_pages(&*make().await).await;
    a_deep_path_is_found_and_listed(&*make().await).await;
    for seed in 0..16 {
        any_history_is_answered_like_the_fold(&*make().await, seed).await;
    }
    for seed in 0..4 {
        log_and_rows_take_the_stamps_of_the_objects(&*make().await, seed).await;
    }
    questions_during_appends_see_all_that_returned(make().await).await;
    for seed in 0..6 {
        contest::any_history_appended_at_once_is_answered_like_the_fold(&[make().await], seed)
            .await;
    }
    a_log_is_that_of_one_moment(make().await).await;
    for seed in 0..12 {
        retire::retired_objects_are_as_if_they_had_never_been(&*make().await, seed).await;
    }
    retire::an_object_in_which_a_file_lies_stays(&*make().await).await;
    retire::what_was_counted_of_other_objects_is_not_taken_for_now(&*make().await).await;
    tasks::the_first_member_fixes_a_job(&*make().await).await;
    tasks::a_silent_member_is_dead(&*make().await).await;
    tasks::the_last_member_ends_a_job(&*make().await).await;
    tasks::living_members_can_be_asked_for(&*make().await).await;
    tasks::members_are_bounded(&*make().await).await;
    tasks::one_of_several_fixes_a_job(make().await).await;
    a_dropped_append_is_done_or_not(&*make().await).await;
    a_closed_store_takes_no_surprise(&*make().await).await;
}

fn path(bytes: &[u8]) -> FilePath {
    FilePath::new(bytes.to_vec()).expect("the paths of the suite are paths")
}

fn name(text: &str) -> DatasetName {
    DatasetName::new(text).expect("the names of the suite are names")
}

pub(crate) fn id(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 16])
}

pub(crate) fn record(text: &str, generation: u32, number: u8) -> DatasetRecord {
    DatasetRecord {
        name: name(text),
        generation,
        id: id(number),
        shape: ChunkShape::default(),
        created: Stamp::new(9),
        state: DatasetState::Live,
    }
}

async fn put(store: &dyn MetaStore, record: &DatasetRecord) {
    store.put_dataset(record).await.expect("put a dataset");
}

async fn append(store: &dyn MetaStore, objects: impl IntoIterator<Item = &Committed>) {
    for object in objects {
        store.append(&read_back(object)).await.expect("append");
    }
}

async fn what_was_recovered_is_bound_once(store: &dyn MetaStore) {
    let (first, second) = (StoreId::from_bytes([1; 16]), StoreId::from_bytes([2; 16]));
    for _ in 0..3 {
        let rebuild = store.begin_rebuild().await.expect("begin to recover");
        assert_eq!(rebuild.damage, None, "{store}");
        let a = record("a", 1, 1);
        put(store, &a).await;
        store.end_rebuild(&rebuild, first).await.expect("end it");
        assert_eq!(store.identity().await.expect("ask"), Some(first));
        assert_eq!(store.damage().await.expect("look for damage"), None);
        assert_eq!(store.record(a.id).await.expect("ask"), Some(a));
    }
    let rebuild = store.begin_rebuild().await.expect("begin to recover");
    let refused = store.end_rebuild(&rebuild, second).await.expect_err("of another one");
    assert_eq!(refused.kind, Kind::Conflict, "{store}");
}

/// Puts, drops and appends among a few names and ids, compared with a map after each step.
async fn datasets_come_and_go_as_in_a_map(store: &dyn MetaStore, seed: u64) {
    let draw = Maker::new(id(0), seed);
    let mut map: BTreeMap<DatasetId, (DatasetRecord, Model)> = BTreeMap::new();
    // The same object ids in all datasets.
    let histories = [1, 2, 3].map(|number| Maker::new(id(number), seed).history(12));
    for _ in 0..40 {
        let (name, number) = (["a", "b"][draw.below(2)], draw.below(3));
        let state = [DatasetState::Live, DatasetState::Recovering][draw.below(2)];
        let new = record(name, 1 + draw.below(3) as u32, 1 + number as u8);
        let new = DatasetRecord { state, ..new };
        match draw.below(4) {
            0 => {
                let name = map.remove(&new.id).map_or(new.name, |(known, _)| known.name);
                store.drop_dataset(&name, new.id).await.expect("drop");
            }
            1 => {
                let holder = map.values().map(|(known, _)| known).find(|of| of.name == new.name);
                let is_refused = map.get(&new.id).is_some_and(|(known, _)| known.name != new.name)
                    || holder.is_some_and(|holder| match holder.generation.cmp(&new.generation) {
                        Ordering::Less => false,
                        Ordering::Equal => holder.id != new.id,
                        Ordering::Greater => true,
                    });
                let refusal = store.put_dataset(&new).await.err().map(|error| error.kind);
                assert_eq!(refusal, is_refused.then_some(Kind::Conflict), "{store}: {new:?}");
                if !is_refused {
                    map.retain(|id, (known, _)| *id == new.id || known.name != new.name);
                    let model = map.remove(&new.id).map(|(_, model)| model);
                    map.insert(new.id, (new.clone(), model.unwrap_or_default()));
                }
            }
            _ => {
                let history = &histories[number];
                let object = &history[draw.below(history.len())];
                let wanted = map.get_mut(&new.id).map(|(_, model)| model.add(object));
                let wanted = wanted.ok_or(Kind::Missing);
                let appended = store.append(object).await.map_err(|error| error.kind);
                assert_eq!(appended, wanted, "{store}");
            }
        }
        check_datasets(store, &map).await;
        match map.get(&id(1)) {
            Some((_, model)) => model.check(store, id(1), 3).await,
            None => is_unknown(store, id(1)).await,
        }
    }
    for (id, (_, model)) in &map {
        model.check(store, *id, 5).await;
    }
}

async fn check_datasets(store: &dyn MetaStore, map: &BTreeMap<DatasetId, (DatasetRecord, Model)>) {
    let mut records: Vec<_> = map.values().map(|(record, _)| record.clone()).collect();
    records.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(store.records().await.expect("list"), records, "{store}");
    for text in ["a", "b", "c"].map(name) {
        let found = store.record_named(&text).await.expect("ask");
        assert_eq!(found.as_ref(), records.iter().find(|record| record.name == text), "{store}");
    }
    for id in [1, 2, 3, 4].map(id) {
        let wanted = map.get(&id).map(|(record, _)| record.clone());
        let outline = store.outline(id).await.expect("ask").map(|outline| outline.record);
        let info = store.dataset(id).await.expect("ask").map(|info| info.record);
        for found in [store.record(id).await.expect("ask"), outline, info] {
            assert_eq!(found, wanted, "{store}");
        }
    }
}

/// Each call about a dataset that is not known is refused.
async fn is_unknown(store: &dyn MetaStore, id: DatasetId) {
    let object = Maker::new(id, 0).files(["x"]);
    let (chunk, paths) = ([object.header().id()], [path(b"x")]);
    let errors = [
        store.append(&object).await.expect_err("append").kind,
        store.stamp(id, Stamp::new(1)).await.expect_err("stamp").kind,
        store.objects(id, None, 5).await.expect_err("objects").kind,
        store.log(id).await.expect_err("log").kind,
        store.deleted(id, &chunk).await.expect_err("deleted").kind,
        store.retire(id, &chunk).await.expect_err("retire").kind,
        store.lookup(id, &paths).await.expect_err("lookup").kind,
        store.list(id, &ListQuery::of(DirPath::ROOT, true, 5)).await.expect_err("list").kind,
    ];
    assert_eq!(errors, [Kind::Missing; 8], "{store}");
}

async fn stamps_rise_whatever_the_clock_says(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut given = Vec::new();
    for now in [50, 40, 51, 60] {
        given.push(store.stamp(id(1), Stamp::new(now)).await.expect("stamp").get());
    }
    assert_eq!(given, [50, 51, 52, 60], "{store}");
    let object = Maker::new(id(1), 0).files(["x"]);
    let appended = object.stamp().get();
    append(store, [&object]).await;
    let next = store.stamp(id(1), Stamp::new(5)).await.expect("stamp").get();
    assert_eq!(next, appended + 1, "{store}: never below one that was appended");
}

async fn concurrent_stamps_are_distinct(store: Arc<dyn MetaStore>) {
    put(&*store, &record("a", 1, 1)).await;
    let mut tasks = JoinSet::new();
    for _ in 0..8 {
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            let mut given = Vec::new();
            for _ in 0..50 {
                given.push(store.stamp(id(1), Stamp::new(100)).await.expect("stamp"));
            }
            assert!(given.is_sorted_by(|a, b| a < b), "{store}: {given:?}");
            given
        });
    }
    let mut all: Vec<_> = tasks.join_all().await.concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8 * 50, "{store}");
}

async fn the_log_comes_in_pages(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let history = Maker::new(id(1), 3).history(30);
    append(store, &history).await;
    let whole = Model::of(&history).objects();
    assert_eq!(store.objects(id(1), None, 1_000).await.expect("all"), whole);
    for limit in [1, 7] {
        let (mut pages, mut after) = (Vec::new(), None);
        loop {
            let page = store.objects(id(1), after, limit).await.expect("a page");
            let Some(last) = page.last() else { break };
            assert!(page.len() <= limit, "{store}");
            after = Some(last.id);
            pages.extend(page);
        }
        assert_eq!(pages, whole, "{store}");
    }
    let undeleted = whole.iter().map(|record| ObjectRecord { deleted_entries: 0, ..*record });
    assert_eq!(store.log(id(1)).await.expect("all"), undeleted.collect::<Vec<_>>(), "{store}");
    let last = ChunkId::from_bytes([0xFF; 16]);
    assert_eq!(store.objects(id(1), Some(last), 5).await.expect("none"), []);
}

async fn a_deep_path_is_found_and_listed(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let deep = [[b'x'; 255]; 16].join(&b'/');
    let object = Maker::new(id(1), 0).chunk([(deep.as_slice(), 3), (b"x/y/z", 0)]);
    append(store, [&object]).await;
    Model::of([&object]).check(store, id(1), 1).await;
}

async fn any_history_is_answered_like_the_fold(store: &dyn MetaStore, seed: u64) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), seed);
    let (mut model, history) = (Model::default(), maker.history(40));
    for object in &history {
        let wanted = model.add(object);
        let object = read_back(object);
        assert_eq!(store.append(&object).await.expect("append"), wanted, "seed {seed}");
        if maker.below(6) == 0 {
            model.check(store, id(1), 4).await;
        }
    }
    for limit in [1, 2, 3, 1_000] {
        model.check(store, id(1), limit).await;
    }
}

/// A chunk store that checks and writes in two steps may keep the other one of two creates.
async fn log_and_rows_take_the_stamps_of_the_objects(store: &dyn MetaStore, seed: u64) {
    put(store, &record("a", 1, 1)).await;
    let (mut acknowledged, mut stored) = (Maker::new(id(1), seed), Maker::new(id(1), seed));
    let mut objects = Vec::new();
    for number in 0..12 {
        let files: Vec<_> = (0..4).map(|_| (acknowledged.path(), acknowledged.below(9))).collect();
        let other = if number % 3 == 0 { number } else { acknowledged.below(12) as u64 };
        let object = acknowledged.chunk_at(Stamp::new(100 + number), files.clone());
        let appended = store.append(&object).await.expect("append");
        assert_eq!(appended, Appended::New, "{store}");
        objects.push(stored.chunk_at(Stamp::new(100 + other), files));
    }
    // A stamp that falls lets older versions win, which come back with their own objects.
    for _ in 0..2 {
        for object in &objects {
            let appended = store.append(object).await.expect("append again");
            assert_ne!(appended, Appended::New, "{store}");
        }
        // Until the file has all of them.
        store.objects(id(1), None, 1).await.expect("list");
    }
    Model::of(&objects).check(store, id(1), 1_000).await;
}

async fn questions_during_appends_see_all_that_returned(store: Arc<dyn MetaStore>) {
    put(&*store, &record("a", 1, 1)).await;
    let mut tasks = JoinSet::new();
    let mut maker = Maker::new(id(1), 0);
    for task in 0..4 {
        let names: Vec<_> = (0..25).map(|file| format!("{task}/{file}")).collect();
        let objects: Vec<_> = names.iter().map(|name| maker.files([name])).collect();
        let store = Arc::clone(&store);
        tasks.spawn(async move {
            for (object, name) in objects.iter().zip(&names) {
                store.append(object).await.expect("append");
                let found = store.lookup(id(1), &[path(name.as_bytes())]).await;
                let found = found.expect("look up what was appended");
                assert!(matches!(found.as_slice(), [Found::File(_)]), "{store}: {name} {found:?}");
            }
        });
    }
    tasks.join_all().await;
    let info = store.dataset(id(1)).await.expect("ask").expect("it is there");
    assert_eq!((info.objects, info.files, info.bytes), (100, 100, 100), "{store}");
}

/// Whoever finds an object finds those that were there before it, whatever their ids.
async fn a_log_is_that_of_one_moment(store: Arc<dyn MetaStore>) {
    put(&*store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), 0);
    let mut objects: Vec<_> = (0..60).map(|_| maker.files(["x"])).collect();
    objects.reverse();
    let order: Vec<_> = objects.iter().map(|object| object.header().id()).collect();
    let reader = Arc::clone(&store);
    let read = dl_runtime::spawn(async move {
        let mut seen = 0;
        while seen < order.len() {
            let log = reader.log(id(1)).await.expect("read the log");
            let there: Vec<_> = log.iter().rev().map(|object| object.id).collect();
            assert!(there.len() >= seen && order.starts_with(&there), "{reader}: {there:?}");
            seen = there.len();
        }
    });
    append(&*store, &objects).await;
    read.await.expect("the reader ends");
}

async fn a_dropped_append_is_done_or_not(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let (mut model, mut maker) = (Model::default(), Maker::new(id(1), 5));
    for polls in 0..6 {
        let object = maker.files(["x"]);
        let mut append = store.append(&object);
        for _ in 0..polls {
            let done = poll_fn(|context| Poll::Ready(append.as_mut().poll(context))).await;
            if done.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(append);
        store.append(&object).await.expect("append again");
        model.add(&object);
        model.check(store, id(1), 3).await;
    }
}

async fn a_closed_store_takes_no_surprise(store: &dyn MetaStore) {
    assert!(!store.to_string().is_empty());
    put(store, &record("a", 1, 1)).await;
    store.close().await.expect("close");
    let object = Maker::new(id(1), 0).files(["x"]);
    if let Err(error) = store.append(&object).await {
        assert_eq!(error.kind, Kind::Unavailable, "{store}");
    }
}
