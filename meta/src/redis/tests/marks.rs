//! Stamps of objects while shards are damaged, and a shard whose life ended.

use dl_format::Stamp;

use super::{STORE, id, open, record};
use crate::redis::keys;
use crate::redis::slots::Shard;
use crate::redis::testing::Server;
use crate::{MetaStore, Redis};

async fn bound(server: &Server) -> Redis {
    let store = open(&server.url()).await;
    store.bind(STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    store
}

fn now(store: &Redis) -> u64 {
    Stamp::at(store.shared.clock.now()).get()
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_given_while_something_is_lost_are_above_those_that_were() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    store.put_dataset(&record()).await.unwrap();
    let usual = store.stamp(id(), Stamp::new(now(&store))).await.unwrap();
    // By a server whose clock is ahead; then it is lost, as by a replica that took over too early.
    let minutes = 10 * 60 * 1_000_000;
    let lost = open(&server.url()).await;
    let lost = lost.stamp(id(), Stamp::new(now(&store) + minutes)).await.unwrap();
    assert!(lost > usual);
    let home = String::from_utf8(keys::home(id()).bytes).unwrap();
    server.ask(&["HSET", &home, "given", &usual.get().to_string()]).await;
    let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
    server.ask(&["HSET", &mark, "run", "other:other"]).await;
    assert!(store.damage().await.unwrap().is_some());
    let now = Stamp::new(now(&store));
    assert!(store.stamp(id(), now).await.unwrap() > lost, "an overwrite would be older");
}
