//! The contract of [`MetaStore`] as checks, for every store and every layer.
//!
//! Must hold: each sentence of the contract that a program can see has a check here, and a store
//! that breaks it fails the suite. What a dataset holds is compared with `dl_format::Fold`.

pub(crate) mod contest;
pub(crate) mod history;
pub(crate) mod model;
mod retire;
mod tasks;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use dl_format::{
    ChunkId, ChunkShape, Committed, DatasetId, DatasetName, DirPath, EntryVersion, FilePath, Stamp,
    StoreId, Version,
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
    it_is_bound_once(&*make().await).await;
    what_was_recovered_is_bound_once(&*make().await).await;
    a_dataset_is_what_was_put(&*make().await).await;
    a_higher_generation_drives_the_older_dataset_out(&*make().await).await;
    conflicting_records_change_nothing(&*make().await).await;
    putting_a_record_again_keeps_the_log(&*make().await).await;
    a_dropped_dataset_is_gone_and_can_come_back_empty(&*make().await).await;
    unknown_datasets_are_refused(&*make().await).await;
    stamps_rise_whatever_the_clock_says(&*make().await).await;
    concurrent_stamps_are_distinct(make().await).await;
    one_of_several_appends_of_an_id_is_new(make().await).await;
    the_log_comes_in_pages(&*make().await).await;
    datasets_do_not_mix(&*make().await).await;
    a_deep_path_is_found_and_listed(&*make().await).await;
    a_folder_hides_its_file_also_behind_names_that_sort_between(&*make().await).await;
    for seed in 0..16 {
        any_history_is_answered_like_the_fold(&*make().await, seed).await;
    }
    for seed in 0..4 {
        log_and_rows_take_the_stamps_of_the_objects(&*make().await, seed).await;
    }
    questions_during_appends_see_all_that_returned(make().await).await;
    for seed in 0..4 {
        contest::of_appends_at_once_the_same_ones_win_everywhere(&[make().await], seed).await;
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

fn id(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 16])
}

fn record(text: &str, generation: u32, number: u8) -> DatasetRecord {
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

async fn it_is_bound_once(store: &dyn MetaStore) {
    let (first, second) = (StoreId::from_bytes([1; 16]), StoreId::from_bytes([2; 16]));
    assert_eq!(store.identity().await.expect("ask a new store"), None);
    for _ in 0..2 {
        store.bind(first).await.expect("bind to the same store, twice");
    }
    let refused = store.bind(second).await.expect_err("bound to another one");
    assert_eq!(refused.kind, Kind::Conflict, "{store}");
    assert_eq!(store.identity().await.expect("ask"), Some(first));
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

async fn a_dataset_is_what_was_put(store: &dyn MetaStore) {
    assert_eq!(store.records().await.expect("list none"), []);
    let (b, a) = (record("b", 1, 1), record("a", 7, 2));
    for wanted in [&b, &a] {
        put(store, wanted).await;
        let info = store.dataset(wanted.id).await.expect("ask").expect("it was put");
        assert_eq!((&info.record, info.objects, info.files), (wanted, 0, 0));
        assert_eq!((info.bytes, info.version), (0, Version::default()));
        let outline = store.outline(wanted.id).await.expect("ask").expect("it was put");
        assert_eq!((&outline.record, outline.objects), (wanted, 0));
        assert_eq!(outline.version, info.version);
        let records = [store.record(wanted.id).await, store.record_named(&wanted.name).await];
        for found in records {
            assert_eq!(found.expect("ask").as_ref(), Some(wanted));
        }
    }
    assert_eq!(store.records().await.expect("list two"), [a, b]);
    assert_eq!(store.record_named(&name("c")).await.expect("ask"), None);
    assert_eq!(store.dataset(id(3)).await.expect("ask"), None);
    assert_eq!(store.outline(id(3)).await.expect("ask"), None);
    assert_eq!(store.record(id(3)).await.expect("ask"), None);
}

async fn a_higher_generation_drives_the_older_dataset_out(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), 0);
    let object = maker.chunk([(&b"x"[..], 1)]);
    store.append(&object).await.expect("append");
    put(store, &record("a", 3, 2)).await;
    assert_eq!(store.dataset(id(1)).await.expect("ask"), None);
    let late = store.append(&maker.chunk([(&b"y"[..], 1)])).await.expect_err("the id is dead");
    assert_eq!(late.kind, Kind::Missing, "{store}");
    assert_eq!(store.records().await.expect("list"), [record("a", 3, 2)]);
    assert_eq!(store.outline(id(1)).await.expect("ask"), None);
    let new = store.outline(id(2)).await.expect("ask").expect("it was put");
    assert_eq!(new.objects, 0);
}

async fn conflicting_records_change_nothing(store: &dyn MetaStore) {
    put(store, &record("a", 3, 1)).await;
    for refused in [record("a", 2, 2), record("a", 2, 1), record("a", 3, 2), record("b", 4, 1)] {
        let error = store.put_dataset(&refused).await.expect_err("a conflict");
        assert_eq!(error.kind, Kind::Conflict, "{store}: {refused:?}");
    }
    assert_eq!(store.records().await.expect("list"), [record("a", 3, 1)]);
    assert_eq!(store.record_named(&name("b")).await.expect("ask"), None);
}

async fn putting_a_record_again_keeps_the_log(store: &dyn MetaStore) {
    let recovering = DatasetRecord { state: DatasetState::Recovering, ..record("a", 1, 1) };
    put(store, &recovering).await;
    let object = Maker::new(id(1), 0).chunk([(&b"x"[..], 1)]);
    store.append(&object).await.expect("append");
    for record in [record("a", 1, 1), record("a", 2, 1)] {
        put(store, &record).await;
        let info = store.dataset(id(1)).await.expect("ask").expect("it is there");
        assert_eq!((&info.record, info.objects, info.files), (&record, 1, 1));
        let outline = store.outline(id(1)).await.expect("ask").expect("it is there");
        assert_eq!((outline.record, outline.objects, outline.version), (record, 1, info.version));
    }
}

async fn a_dropped_dataset_is_gone_and_can_come_back_empty(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    put(store, &record("b", 1, 2)).await;
    let mut maker = Maker::new(id(1), 0);
    let object = maker.chunk([(&b"x"[..], 1)]);
    store.append(&object).await.expect("append");
    let found = store.lookup(id(1), &[path(b"x")]).await.expect("look up");
    assert!(matches!(found.as_slice(), [Found::File(_)]), "{store}: {found:?}");
    for _ in 0..2 {
        store.drop_dataset(&name("a"), id(1)).await.expect("drop, twice");
        assert_eq!(store.dataset(id(1)).await.expect("ask"), None);
        assert_eq!(store.outline(id(1)).await.expect("ask"), None);
        assert_eq!(store.record_named(&name("a")).await.expect("ask"), None);
        let error = store.append(&object).await.expect_err("no such dataset");
        assert_eq!(error.kind, Kind::Missing, "{store}");
    }
    assert_eq!(store.records().await.expect("list").len(), 1);
    put(store, &record("a", 1, 1)).await;
    let found = store.lookup(id(1), &[path(b"x")]).await.expect("look up");
    assert_eq!(found, [Found::Missing], "{store}");
    let mut model = Model::default();
    model.check(store, id(1), 3).await;
    assert_eq!(store.append(&object).await.expect("append"), Appended::New);
    model.add(&object);
    model.check(store, id(1), 3).await;
}

async fn unknown_datasets_are_refused(store: &dyn MetaStore) {
    let object = Maker::new(id(1), 0).chunk([(&b"x"[..], 1)]);
    let query = ListQuery::of(DirPath::ROOT, true, 5);
    let errors = [
        store.append(&object).await.expect_err("append").kind,
        store.stamp(id(1), Stamp::new(1)).await.expect_err("stamp").kind,
        store.objects(id(1), None, 5).await.expect_err("objects").kind,
        store.lookup(id(1), &[path(b"x")]).await.expect_err("lookup").kind,
        store.list(id(1), &query).await.expect_err("list").kind,
    ];
    assert_eq!(errors, [Kind::Missing; 5], "{store}");
    put(store, &record("a", 1, 1)).await;
    Model::default().check(store, id(1), 3).await;
}

async fn stamps_rise_whatever_the_clock_says(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut given = Vec::new();
    for now in [50, 40, 51, 60] {
        given.push(store.stamp(id(1), Stamp::new(now)).await.expect("stamp").get());
    }
    assert_eq!(given, [50, 51, 52, 60], "{store}");
    let mut maker = Maker::new(id(1), 0);
    let object = maker.chunk([(&b"x"[..], 1)]);
    let appended = object.stamp().get();
    store.append(&object).await.expect("append");
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

async fn one_of_several_appends_of_an_id_is_new(store: Arc<dyn MetaStore>) {
    put(&*store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), 0);
    for _ in 0..20 {
        let object = maker.chunk([(&b"x"[..], 1)]);
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            let (store, object) = (Arc::clone(&store), read_back(&object));
            tasks.spawn(async move {
                // Some with a question in between, so that the index moves on meanwhile.
                let appended = store.append(&object).await.expect("append");
                store.dataset(id(1)).await.expect("ask");
                appended
            });
        }
        let answers = tasks.join_all().await;
        let new = answers.iter().filter(|answer| **answer == Appended::New).count();
        assert_eq!(new, 1, "{store}: {answers:?}");
    }
    let info = store.dataset(id(1)).await.expect("ask").expect("it is there");
    assert_eq!((info.objects, info.files), (20, 1), "{store}");
}

async fn the_log_comes_in_pages(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut model = Model::default();
    for object in Maker::new(id(1), 3).history(30) {
        store.append(&object).await.expect("append");
        model.add(&object);
    }
    let whole = model.objects();
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
    let missing = store.log(id(9)).await.expect_err("nobody put it");
    assert_eq!(missing.kind, Kind::Missing, "{store}");
    let last = ChunkId::from_bytes([0xFF; 16]);
    assert_eq!(store.objects(id(1), Some(last), 5).await.expect("none"), []);
}

async fn datasets_do_not_mix(store: &dyn MetaStore) {
    let mut models = Vec::new();
    for (text, number) in [("a", 1), ("b", 2)] {
        put(store, &record(text, 1, number)).await;
        models.push((Model::default(), Maker::new(id(number), number.into()).history(12)));
    }
    // The same object ids in both.
    for step in 0..12 {
        for (model, history) in &mut models {
            if let Some(object) = history.get(step) {
                store.append(object).await.expect("append");
                model.add(object);
            }
        }
    }
    for ((model, _), number) in models.iter().zip([1, 2]) {
        model.check(store, id(number), 5).await;
    }
}

async fn a_deep_path_is_found_and_listed(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut deep = [&[b'x'; 255][..]; 15].join(&b'/');
    deep.extend([b'/'].iter().chain(&[b'y'; 255]));
    let mut maker = Maker::new(id(1), 0);
    let object = maker.chunk([(deep.as_slice(), 3), (&b"x/y/z"[..], 0)]);
    store.append(&object).await.expect("append");
    let parent = path(&deep).parent();
    let found = store.lookup(id(1), &[path(&deep), path(parent.as_bytes())]).await;
    let found = found.expect("look up");
    assert!(matches!(found.as_slice(), [Found::File(_), Found::Folder]), "{found:?}");
    let mut model = Model::default();
    model.add(&object);
    model.check(store, id(1), 1).await;
}

/// `P`, `P-x` and `P/y`: what is in the folder `P` doesn't come right behind the file `P`.
async fn a_folder_hides_its_file_also_behind_names_that_sort_between(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let (mut maker, mut model) = (Maker::new(id(1), 0), Model::default());
    let files: [(&[u8], usize); 4] = [(b"P", 1), (b"P-x", 2), (b"P.z", 3), (b"P/y", 4)];
    let object = maker.chunk(files);
    let version = |path: &FilePath| {
        let entries = object.header().entries();
        let found = entries.zip(0..).find(|(entry, _)| entry.path == *path);
        let (_, entry) = found.expect("the chunk holds it");
        EntryVersion { stamp: object.stamp(), chunk: object.header().id(), entry }
    };
    let in_between = maker.tombstone(&[version(&path(b"P-x")), version(&path(b"P.z"))]);
    let inside = maker.tombstone(&[version(&path(b"P/y"))]);
    let steps: [(&Committed, bool); 3] = [(&object, true), (&in_between, true), (&inside, false)];
    for (object, is_folder) in steps {
        store.append(object).await.expect("append");
        model.add(object);
        let found = store.lookup(id(1), &[path(b"P")]).await.expect("look up");
        let found = found.as_slice();
        assert_eq!(matches!(found, [Found::Folder]), is_folder, "{store}: {found:?}");
        assert_eq!(matches!(found, [Found::File(_)]), !is_folder, "{store}: {found:?}");
        for limit in [1, 2, 1_000] {
            model.check(store, id(1), limit).await;
        }
    }
}

async fn any_history_is_answered_like_the_fold(store: &dyn MetaStore, seed: u64) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), seed);
    let (mut model, history) = (Model::default(), maker.history(40));
    for object in &history {
        let wanted = if model.add(object) { Appended::New } else { Appended::Known };
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
    let mut model = Model::default();
    objects.iter().for_each(|object| _ = model.add(object));
    model.check(store, id(1), 1_000).await;
}

async fn questions_during_appends_see_all_that_returned(store: Arc<dyn MetaStore>) {
    put(&*store, &record("a", 1, 1)).await;
    let mut tasks = JoinSet::new();
    let mut maker = Maker::new(id(1), 0);
    for task in 0..4 {
        let names: Vec<_> = (0..25).map(|file| format!("{task}/{file}")).collect();
        let objects: Vec<_> =
            names.iter().map(|name| maker.chunk([(name.as_bytes(), 1)])).collect();
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
    let mut objects: Vec<_> = (0..60).map(|_| maker.chunk([(&b"x"[..], 1)])).collect();
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
    for object in &objects {
        store.append(object).await.expect("append");
    }
    read.await.expect("the reader ends");
}

async fn a_dropped_append_is_done_or_not(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let (mut model, mut maker) = (Model::default(), Maker::new(id(1), 5));
    for polls in 0..6 {
        let object = maker.chunk([(&b"x"[..], 1)]);
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
    let object = Maker::new(id(1), 0).chunk([(&b"x"[..], 1)]);
    if let Err(error) = store.append(&object).await {
        assert_eq!(error.kind, Kind::Unavailable, "{store}");
    }
}
