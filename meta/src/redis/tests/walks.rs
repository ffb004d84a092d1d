//! Listings of very many chunks, and what changes under calls that are half done.

use crate::Datasets;
use crate::Integrity;
use std::collections::BTreeSet;

use futures::StreamExt;
use futures::stream;

use super::{append, check, filled, id, is_large, record};
use crate::MetaStore;
use crate::conformance::history::{Maker, versions};
use crate::redis::keys::LARGE_ROWS;
use crate::redis::testing::Server;

/// More than are in mind at once, in a folder that has hashed buckets.
#[tokio::test(flavor = "multi_thread")]
async fn deletes_of_many_chunks_are_in_no_listing_and_count() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names = (0..LARGE_ROWS + 1_000).map(|number| format!("{number:05}"));
    let mut objects: Vec<_> = names.map(|name| maker.files([name])).collect();
    let store = filled(&server.url(), []).await;
    let appended = stream::iter(&objects).map(|object| store.append(object));
    appended.buffer_unordered(32).for_each(async |appended| _ = appended.unwrap()).await;
    assert!(is_large(&store).await);
    objects.push(maker.tombstone(&objects.iter().flat_map(versions).collect::<Vec<_>>()));
    append(&store, objects.last()).await;
    check(&store, &objects).await;
}

/// A listing that has begun then begins anew.
#[tokio::test(flavor = "multi_thread")]
async fn reads_before_a_flush_are_not_complete() {
    let server = Server::start(&[]).await;
    let object = Maker::new(id(), 1).files(["a/b"]);
    let store = filled(&server.url(), [&object]).await;
    let shared = &store.shared;
    let begun = async || {
        let changes = shared.assure().await.unwrap();
        (changes, shared.root(id()).await.unwrap().unwrap().keys)
    };
    let (changes, keys) = begun().await;
    let read = BTreeSet::from([keys.log().shard]);
    assert!(shared.confirm(keys, &read).await.unwrap(), "nothing has changed");
    assert!(shared.is_as(changes), "nothing has changed");
    store.drop_dataset(&record().name, id()).await.unwrap();
    assert!(!shared.confirm(keys, &read).await.unwrap(), "it was dropped");
    assert!(shared.is_as(changes), "others go on");

    append(&store, [&object]).await;
    let (changes, _) = begun().await;
    server.ask(&["FLUSHALL"]).await;
    // Whoever notices first.
    store.damage().await.unwrap();
    assert!(!shared.is_as(changes), "all of it was flushed");
}
