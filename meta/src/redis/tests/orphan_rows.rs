//! Rows that are there though their object was taken off the log.

use std::sync::atomic::{AtomicBool, Ordering};

use dl_format::{Committed, FileRecord};
use futures::future::join_all;

use super::{append, ask, check, filled, id, keys_of, open, path, whole};
use crate::conformance::history::{Maker, versions};
use crate::redis::command::Ask;
use crate::redis::folders::PAGE;
use crate::redis::keys::LARGE_ROWS;
use crate::redis::rows::file;
use crate::redis::scripts::RETIRE;
use crate::redis::testing::{Cluster, Server};
use crate::redis::tree::Walk;
use crate::{Found, MetaStore, Redis};

/// Puts the rows of an object back, as a primary does that died before its replica, or the disk, had
/// heard of their removal.
async fn bring_back(store: &Redis, object: &Committed) {
    let rows = keys_of(store).await.rows(0, b"d");
    for entry in object.header().entries() {
        let row = file(entry.path.name(), &FileRecord::of(object, &entry));
        let added = ask(store, Ask::to(&rows, "ZADD").arg(0).arg(row)).await;
        assert_eq!(added, redis::Value::Int(1), "it was there");
    }
}

/// That the store answers by the objects that are left, and has none of the files of others.
async fn has(store: &Redis, left: &[Committed], gone: &[String]) {
    check(store, left).await;
    for names in gone.chunks(20) {
        let paths: Vec<_> = names.iter().map(path).collect();
        let found = store.lookup(id(), &paths).await.unwrap();
        assert!(found.iter().all(|found| *found == Found::Missing), "{names:?}: {found:?}");
    }
}

/// The older versions lie in the first bucket, the newer ones in hashed ones: what the newer ones are
/// written into does not drop the older ones.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_row_that_returns_after_a_purge_is_no_file() {
    let cluster = Cluster::start(3, 0).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..LARGE_ROWS + 500).map(|number| format!("d/{number:05}")).collect();
    let parts = names.chunks(500).chain([&names[..500]]);
    let mut objects: Vec<_> = parts.map(|names| maker.files(names)).collect();
    let store = filled(&cluster.url(), &objects).await;
    let older = objects.remove(0);
    store.retire(id(), &[older.header().id()]).await.unwrap();
    bring_back(&store, &older).await;
    has(&store, &objects, &[]).await;

    // First the newer ones go, then all that is left.
    let (newer, all) = (versions(objects.last().unwrap()), objects.len() - 1);
    let others = objects[..all].iter().flat_map(versions).collect();
    for (first, deleted, gone) in [(all, newer, &names[..500]), (0, others, &names[..])] {
        objects.push(maker.tombstone(&deleted));
        append(&store, objects.last()).await;
        has(&store, &objects, gone).await;
        let retired = objects.split_off(first);
        let ids: Vec<_> = retired.iter().map(|object| object.header().id()).collect();
        store.retire(id(), &ids).await.unwrap();
        has(&store, &objects, gone).await;
    }
    // Another server remembers nothing.
    has(&open(&cluster.url()).await, &[], &names).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_under_constant_moves_are_always_found() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..50).map(|number| format!("d/{number:02}")).collect();
    let mut chunk = maker.files(&names);
    let store = filled(&server.url(), [&chunk]).await;
    let is_over = AtomicBool::new(false);
    let move_all = async {
        let mut live = versions(&chunk);
        for _ in 0..200 {
            let files = names.iter().zip(&live).map(|(name, version)| (path(name), *version, 1));
            let moved = maker.rewrite(&files.collect::<Vec<_>>());
            live = versions(&moved);
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
                let listed = other.list(id(), &whole()).await.unwrap();
                assert_eq!(listed.len(), names.len());
            }
            rounds += 1;
        }
        assert!(rounds > 10, "{rounds} rounds");
    };
    tokio::join!(move_all, join_all((0..16).map(read_all)));
    has(&other, &[chunk], &[]).await;
}

/// What deletes left is dead either way: a walk beside a purge of it does not begin anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_walk_begins_anew_when_its_next_rows_left_the_log() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    // Three pages of one bucket.
    let names: Vec<_> = (0..2 * PAGE + 40).map(|number| format!("d/{number:05}")).collect();
    let objects: Vec<_> = names.chunks(PAGE).map(|names| maker.files(names)).collect();
    let store = filled(&server.url(), &objects).await;
    let gone = maker.files(["gone"]);
    append(&store, [&gone, &maker.tombstone(&versions(&gone))]).await;
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
    ask(&store, taken).await;
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
