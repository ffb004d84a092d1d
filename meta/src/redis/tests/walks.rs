//! Listings of very many chunks, and what changes under calls that are half done.

use std::collections::BTreeSet;
use std::sync::Arc;

use dl_format::{Committed, DirPath, FileRecord};
use futures::StreamExt;
use futures::stream;

use super::{STORE, id, open, path, record};
use crate::conformance::history::Maker;
use crate::redis::keys::LARGE_ROWS;
use crate::redis::testing::Server;
use crate::{Appended, DatasetRecord, DatasetState, Found, ListQuery, MetaStore, Redis};

fn everything() -> ListQuery {
    ListQuery::of(DirPath::ROOT, true, 10_000)
}

async fn filled(url: &str, objects: &[Committed]) -> Redis {
    let store = open(url).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let appended = stream::iter(objects).map(|object| store.append(object));
    let appended: Vec<_> = appended.buffer_unordered(32).collect().await;
    assert!(appended.iter().all(|appended| matches!(appended, Ok(Appended::New))), "{appended:?}");
    store
}

/// More than are in mind at once, in a folder that has hashed buckets.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_of_very_many_chunks_is_in_no_listing_and_no_count() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names = (0..LARGE_ROWS + 1_000).map(|number| format!("{number:05}"));
    let objects: Vec<_> = names.map(|name| maker.chunk([(name.as_bytes(), 1)])).collect();
    let store = filled(&server.url(), &objects).await;
    assert!(store.shared.root(id()).await.unwrap().unwrap().is_large);
    let versions = objects.iter().flat_map(|object| {
        object.header().entries().map(|entry| FileRecord::of(object, &entry).version)
    });
    store.append(&maker.tombstone(&versions.collect::<Vec<_>>())).await.unwrap();
    let listed = store.list(id(), &everything()).await.unwrap();
    assert!(listed.is_empty(), "{} of {}", listed.len(), objects.len());
    let info = store.dataset(id()).await.unwrap().unwrap();
    assert_eq!((info.files, info.bytes), (0, 0));
    let found = store.lookup(id(), &[path("00001"), path("05000")]).await.unwrap();
    assert_eq!(found, [Found::Missing, Found::Missing]);
}

/// A listing that has begun then begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_a_flush_or_of_what_was_dropped_is_not_taken_for_all() {
    let server = Server::start(&[]).await;
    let object = Maker::new(id(), 1).chunk([(&b"a/b"[..], 1)]);
    let store = filled(&server.url(), std::slice::from_ref(&object)).await;
    let shared = Arc::clone(&store.shared);
    let begun = async || {
        let changes = shared.assure().await.unwrap();
        (changes, shared.root(id()).await.unwrap().unwrap().keys)
    };
    let (changes, keys) = begun().await;
    let read = BTreeSet::from([keys.log().shard]);
    assert!(shared.confirm(keys, &read).await.unwrap(), "nothing has changed");
    assert!(shared.is_as(changes), "nothing has changed");
    store.put_dataset(&DatasetRecord { state: DatasetState::Ending, ..record() }).await.unwrap();
    store.drop_dataset(&record().name, id()).await.unwrap();
    assert!(!shared.confirm(keys, &read).await.unwrap(), "it was dropped");
    assert!(shared.is_as(changes), "others go on");

    store.put_dataset(&record()).await.unwrap();
    store.append(&object).await.unwrap();
    let (changes, _) = begun().await;
    server.ask(&["FLUSHALL"]).await;
    // Whoever notices first.
    store.damage().await.unwrap();
    assert!(!shared.is_as(changes), "all of it was flushed");
}
