//! Rows that are there though their object was taken off the log.

use std::sync::atomic::{AtomicBool, Ordering};

use dl_format::{Committed, DirPath, EntryVersion, FileRecord};
use futures::future::join_all;

use super::{STORE, id, open, path, reason, record};
use crate::conformance::history::Maker;
use crate::redis::command::Ask;
use crate::redis::dataset_root::DatasetRoot;
use crate::redis::folders::PAGE;
use crate::redis::keys::LARGE_ROWS;
use crate::redis::live_objects::{Count, LiveObjects};
use crate::redis::rows::file;
use crate::redis::scripts::RETIRE;
use crate::redis::testing::{Cluster, Server};
use crate::redis::tree::Walk;
use crate::{DatasetRecord, DatasetState, Found, Kind, ListEntry, ListQuery, MetaStore, Redis};

fn query(dir: DirPath, recursive: bool) -> ListQuery {
    ListQuery::of(dir, recursive, 10_000)
}

async fn empty(url: &str) -> Redis {
    let store = open(url).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    store
}

fn records(object: &Committed) -> Vec<(Vec<u8>, FileRecord)> {
    let entries = object.header().entries();
    entries.map(|entry| (entry.path.name().to_vec(), FileRecord::of(object, &entry))).collect()
}

fn versions(object: &Committed) -> Vec<EntryVersion> {
    records(object).iter().map(|(_, record)| record.version).collect()
}

/// Puts the rows of an object back, as a primary does that died before its replica, or the disk, had
/// heard of their removal.
async fn bring_back(store: &Redis, object: &Committed) {
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let asks = records(object).into_iter().map(|(name, record)| {
        Ask::to(&keys.rows(0, b"d"), "ZADD").arg(0).arg(file(&name, &record))
    });
    for added in store.shared.router.ask(asks.collect()).await.unwrap() {
        assert_eq!(added, redis::Value::Int(1), "it was there");
    }
}

/// Everything that tells what is there says that these files of folder d are not, and others are.
async fn has(store: &Redis, live: &[String], gone: &[String]) {
    let listed = store.list(id(), &query(DirPath::ROOT, true)).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|entry| entry.path().clone()).collect();
    let wanted: Vec<_> = live.iter().map(path).collect();
    assert_eq!(listed, wanted);
    for names in gone.chunks(20) {
        let paths: Vec<_> = names.iter().map(path).collect();
        let found = store.lookup(id(), &paths).await.unwrap();
        assert!(found.iter().all(|found| *found == Found::Missing), "{names:?}: {found:?}");
    }
    let found = store.lookup(id(), &live.iter().map(path).collect::<Vec<_>>()).await.unwrap();
    assert!(found.iter().all(|found| matches!(found, Found::File(_))), "{found:?}");
    let info = store.dataset(id()).await.unwrap().unwrap();
    assert_eq!(info.files, live.len() as u64);
    let root = store.list(id(), &query(DirPath::ROOT, false)).await.unwrap();
    let folders = if live.is_empty() { vec![] } else { vec![ListEntry::Folder(path("d"))] };
    assert_eq!(root, folders);
}

/// The older versions lie in the first bucket, the newer ones in hashed ones: what the newer ones are
/// written into does not drop the older ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_row_that_came_back_is_no_file_once_the_newer_one_was_deleted_and_purged() {
    let cluster = Cluster::start(3, 0).await;
    let store = empty(&cluster.url()).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..LARGE_ROWS + 500).map(|number| format!("d/{number:05}")).collect();
    let mut objects = Vec::new();
    for names in names.chunks(500).chain([&names[..500]]) {
        objects.push(maker.chunk(names.iter().map(|name| (name.as_bytes(), 1))));
        store.append(objects.last().unwrap()).await.unwrap();
    }
    let (older, newer) = (objects.remove(0), objects.pop().unwrap());
    store.retire(id(), &[older.header().id()]).await.unwrap();
    bring_back(&store, &older).await;
    has(&store, &names, &[]).await;

    let deleted = maker.tombstone(&versions(&newer));
    store.append(&deleted).await.unwrap();
    has(&store, &names[500..], &names[..500]).await;
    store.retire(id(), &[newer.header().id(), deleted.header().id()]).await.unwrap();
    has(&store, &names[500..], &names[..500]).await;

    let rest: Vec<_> = objects.iter().flat_map(versions).collect();
    let deleted = maker.tombstone(&rest);
    store.append(&deleted).await.unwrap();
    has(&store, &[], &names).await;
    let objects: Vec<_> = objects.iter().map(|object| object.header().id()).collect();
    store.retire(id(), &objects).await.unwrap();
    has(&store, &[], &names).await;
    // Another server, which remembers nothing.
    has(&open(&cluster.url()).await, &[], &names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_whose_log_was_removed_are_not_taken_for_those_of_purged_objects() {
    let server = Server::start(&[]).await;
    let store = empty(&server.url()).await;
    let mut maker = Maker::new(id(), 1);
    let objects: Vec<_> = (0..2).map(|_| maker.chunk([(&b"d/a"[..], 1)])).collect();
    for object in &objects {
        store.append(object).await.unwrap();
    }
    store.retire(id(), &[objects[0].header().id()]).await.unwrap();
    has(&store, &["d/a".to_owned()], &[]).await;
    let log = store.shared.keys_of(id()).await.unwrap().unwrap().log();
    server.ask(&["DEL", str::from_utf8(&log.bytes).unwrap()]).await;
    let other = open(&server.url()).await;
    let lost = [
        other.lookup(id(), &[path("d/a")]).await.unwrap_err(),
        other.list(id(), &query(DirPath::ROOT, true)).await.unwrap_err(),
    ];
    assert!(lost.iter().all(|error| error.kind == Kind::Lost), "{lost:?}");
    assert!(lost.iter().all(|error| reason(error).contains("recover --all")), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_that_are_moved_all_the_time_are_found_and_listed_all_the_time() {
    let server = Server::start(&[]).await;
    let store = empty(&server.url()).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..50).map(|number| format!("d/{number:02}")).collect();
    let mut chunk = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.append(&chunk).await.unwrap();
    let is_over = AtomicBool::new(false);
    let move_all = async {
        for _ in 0..200 {
            let live = records(&chunk).into_iter().map(|(name, record)| {
                (path([b"d/", name.as_slice()].concat()), record.version, record.length)
            });
            let moved = maker.rewrite(&live.collect::<Vec<_>>());
            store.append(&moved).await.unwrap();
            store.retire(id(), &[chunk.header().id()]).await.unwrap();
            chunk = moved;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    // A server that moves nothing itself, many calls of which are on their way.
    let other = open(&server.url()).await;
    let paths: Vec<_> = names.iter().map(path).collect();
    let read_all = async |number: usize| {
        let mut rounds = 0;
        while !is_over.load(Ordering::Relaxed) {
            if number.is_multiple_of(2) {
                let found = other.lookup(id(), &paths[number..=number]).await.unwrap();
                assert!(matches!(found[..], [Found::File(_)]), "{number}: {found:?}");
            } else {
                let listed = other.list(id(), &query(DirPath::ROOT, true)).await.unwrap();
                assert_eq!(listed.len(), names.len());
            }
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds} rounds");
    };
    tokio::join!(move_all, join_all((0..16).map(read_all)));
    has(&other, &names, &[]).await;
}

/// A file that was moved meanwhile would be missed: neither its old row would count, nor was its new
/// one there to be read.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_read_before_their_object_left_the_log_are_read_again() {
    let server = Server::start(&[]).await;
    let store = empty(&server.url()).await;
    let mut maker = Maker::new(id(), 1);
    let objects: Vec<_> = (0..4).map(|_| maker.chunk([(&b"d/a"[..], 1)])).collect();
    let ids: Vec<_> = objects.iter().map(|object| object.header().id()).collect();
    for object in &objects {
        store.append(object).await.unwrap();
    }
    let shared = &store.shared;
    let root = async || shared.root(id()).await.unwrap().unwrap();
    let places = shared.router.changes();
    let count = |root: &DatasetRoot| Count { retired: root.retired, places };
    let lacking = |live_objects: &LiveObjects| {
        ids.iter().map(|id| live_objects.lack(*id)).collect::<Vec<_>>()
    };

    store.retire(id(), &ids[..1]).await.unwrap();
    let old = root().await;
    let (mut after, mut beside) =
        (LiveObjects::after(&old, places), LiveObjects::heard(shared, old.keys, places));
    store.retire(id(), &ids[1..2]).await.unwrap();
    for live_objects in [&mut after, &mut beside] {
        for is_uncertain in [true, false] {
            live_objects.load(shared, &old, count(&old), ids.clone()).await.unwrap();
            assert_eq!(live_objects.are_uncertain(), is_uncertain);
            assert_eq!(lacking(live_objects), [true, true, false, false]);
        }
        // However much leaves it all the time, what is known to lack is.
        store.retire(id(), &ids[2..3]).await.unwrap();
        live_objects.load(shared, &old, count(&old), ids[..2].to_vec()).await.unwrap();
        assert!(!live_objects.are_uncertain());
        store.append(&objects[2]).await.unwrap();
    }
    // What was heard of the log is remembered until more leaves it.
    let asked = async || {
        let stats = server.text(&["INFO", "commandstats"]).await;
        let line = stats.lines().find(|line| line.contains("zrangebylex")).map(str::to_owned);
        line.expect("logs are asked with it")
    };
    let (new, held) = (root().await, ids[2..].to_vec());
    let mut counts = Vec::new();
    for _ in 0..2 {
        let mut live_objects = LiveObjects::heard(shared, new.keys, places);
        live_objects.load(shared, &new, count(&new), held.clone()).await.unwrap();
        counts.push(asked().await);
    }
    assert_eq!(counts[0], counts[1]);
    store.retire(id(), &ids[2..3]).await.unwrap();
    let mut then = LiveObjects::heard(shared, new.keys, places);
    let new = root().await;
    then.load(shared, &new, count(&new), held.clone()).await.unwrap();
    assert!(then.lack(ids[2]) && !then.lack(ids[3]));
    let mut then = LiveObjects::heard(shared, new.keys, places);
    then.load(shared, &new, count(&new), held).await.unwrap();
    assert!(then.lack(ids[2]) && !then.are_uncertain(), "nothing left it since it was heard of");

    store.put_dataset(&DatasetRecord { state: DatasetState::Ending, ..record() }).await.unwrap();
    store.drop_dataset(&record().name, id()).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    then.load(shared, &new, count(&new), ids).await.unwrap();
    assert!(then.are_stale(), "it was made again");
}

/// What deletes left is dead either way: a walk beside a purge of it does not begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_walk_whose_next_rows_left_the_log_begins_anew_unless_they_were_deleted() {
    let server = Server::start(&[]).await;
    let store = empty(&server.url()).await;
    let mut maker = Maker::new(id(), 1);
    // Three pages of one bucket.
    let names: Vec<_> = (0..2 * PAGE + 40).map(|number| format!("d/{number:05}")).collect();
    let mut objects = Vec::new();
    for names in names.chunks(PAGE) {
        objects.push(maker.chunk(names.iter().map(|name| (name.as_bytes(), 1))));
        store.append(objects.last().unwrap()).await.unwrap();
    }
    let gone = maker.chunk([(&b"gone"[..], 1)]);
    store.append(&gone).await.unwrap();
    store.append(&maker.tombstone(&versions(&gone))).await.unwrap();
    store.retire(id(), &[gone.header().id()]).await.unwrap();
    let root = store.shared.root(id()).await.unwrap().unwrap();
    let mut walk = Walk::of_everything(&store.shared, &root);
    for _ in 0..=PAGE {
        assert!(walk.next_file().await.unwrap().is_some());
    }
    // As a purge does, when a copy of its files is there.
    let keys = root.keys;
    let taken = Ask::script(&RETIRE, &keys.root(), &[&keys.log(), &keys.todo()]);
    let taken = taken.arg(keys.epoch.to_string()).arg(objects[2].header().id().as_bytes());
    store.shared.router.ask_one(taken).await.unwrap();
    while walk.next_file().await.unwrap().is_some() {}
    assert!(walk.is_stale());

    store.append(&maker.tombstone(&versions(&objects[1]))).await.unwrap();
    let root = store.shared.root(id()).await.unwrap().unwrap();
    let mut walk = Walk::of_everything(&store.shared, &root);
    assert!(walk.next_file().await.unwrap().is_some());
    store.retire(id(), &[objects[1].header().id()]).await.unwrap();
    bring_back(&store, &objects[1]).await;
    let mut files = 1;
    while walk.next_file().await.unwrap().is_some() {
        files += 1;
    }
    assert_eq!((files, walk.is_stale()), (PAGE, false));
}
