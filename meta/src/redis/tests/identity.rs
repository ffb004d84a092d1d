//! The identity of the metadata, with a copy in each shard, and the turn to rebuild.

use std::time::Duration;

use super::{STORE, append, ask, check, fail_over, filled, open, reason};
use crate::conformance::history::Maker;
use crate::redis::command::Ask;
use crate::redis::keys;
use crate::redis::slots::Shard;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Damage, Integrity, Kind, Redis};

async fn rebuild(store: &Redis, objects: &[dl_format::Committed]) {
    let rebuild = store.begin_rebuild().await.unwrap();
    assert_eq!(rebuild.damage, Some(Damage::Shards));
    append(store, objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
}

/// The copies of the identity, with the identity itself.
async fn copies(store: &Redis) -> usize {
    let mut count = 0;
    for shard in Shard::all() {
        let copy = Ask::to(&keys::shard_mark(shard), "HEXISTS").arg("id");
        count += redis::from_redis_value::<usize>(ask(store, copy).await).unwrap();
    }
    let identity = Ask::to(&keys::identity(), "EXISTS");
    count + redis::from_redis_value::<usize>(ask(store, identity).await).unwrap()
}

/// Keeps S-77. Also for a server that starts afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn the_identity_outlasts_the_loss_of_any_primary() {
    let cluster = Cluster::start(3, 0).await;
    let mut maker = Maker::new(super::id(), 1);
    let objects: Vec<_> = (0..60).map(|number| maker.files([format!("{number}/x")])).collect();
    let store = filled(&cluster.url(), &objects).await;
    for lost in cluster.servers() {
        lost.ask(&["FLUSHALL"]).await;
        for store in [&store, &open(&cluster.url()).await] {
            assert_eq!(store.identity().await.unwrap(), Some(STORE));
            assert_eq!(store.damage().await.unwrap(), Some(Damage::Shards));
        }
        rebuild(&store, &objects).await;
        assert_eq!(copies(&store).await, 257);
        check(&open(&cluster.url()).await, &objects).await;
    }
    // Two of three.
    for lost in &cluster.servers()[..2] {
        lost.ask(&["FLUSHALL"]).await;
    }
    rebuild(&store, &objects).await;
    check(&open(&cluster.url()).await, &objects).await;
    cluster.flush().await;
    let emptied = open(&cluster.url()).await;
    assert_eq!(emptied.identity().await.unwrap(), None);
    assert_eq!(store.damage().await.unwrap(), Some(Damage::Everything));
}

/// Also to a replica that has copied nothing yet.
#[tokio::test(flavor = "multi_thread")]
async fn the_identity_outlasts_a_failover() {
    for has_copied in [true, false] {
        let cluster = Cluster::start(3, 1).await;
        let store = filled(&cluster.url(), []).await;
        let [victim, _, _, heir, ..] = cluster.servers() else { panic!("six nodes") };
        fail_over(victim, heir).await;
        if !has_copied {
            heir.ask(&["FLUSHALL"]).await;
        }
        assert_eq!(store.identity().await.unwrap(), Some(STORE));
        assert_eq!(store.damage().await.unwrap(), Some(Damage::Shards));
        rebuild(&store, &[]).await;
        assert_eq!(copies(&store).await, 257);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn older_metadata_get_their_copies_at_the_next_start() {
    let cluster = Cluster::start(3, 0).await;
    let store = filled(&cluster.url(), []).await;
    for shard in Shard::all() {
        ask(&store, Ask::to(&keys::shard_mark(shard), "HDEL").arg("id")).await;
    }
    assert_eq!(copies(&store).await, 1);
    assert_eq!(open(&cluster.url()).await.damage().await.unwrap(), None);
    assert_eq!(copies(&store).await, 257);
    // Nor is a lost identity missed, when all marks are there.
    ask(&store, Ask::to(&keys::identity(), "DEL")).await;
    assert_eq!(store.damage().await.unwrap(), None);
    assert_eq!(copies(&store).await, 257);
}

/// Keeps S-77.
#[tokio::test(flavor = "multi_thread")]
async fn shards_of_two_chunk_stores_are_refused_by_name() {
    let cluster = Cluster::start(3, 0).await;
    let store = filled(&cluster.url(), []).await;
    let [_, _, third] = cluster.servers() else { panic!("three primaries") };
    let last = Shard::all().last().unwrap();
    ask(&store, Ask::to(&keys::shard_mark(last), "HSET").arg("id").arg([9_u8; 16].as_slice()))
        .await;
    let refused = store.damage().await.unwrap_err();
    assert_eq!(refused.kind, Kind::Lost);
    let told = reason(&refused);
    let other = dl_format::StoreId::from_bytes([9; 16]).to_string();
    let named = [STORE.to_string(), other, format!("127.0.0.1:{}", third.port())];
    assert!(named.iter().all(|named| told.contains(named)), "{told}");
    assert!(store.bind(STORE).await.is_ok() && store.begin_rebuild().await.is_err());
    // The remedy of the text.
    third.ask(&["FLUSHALL"]).await;
    rebuild(&store, &[]).await;
    assert_eq!(store.damage().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_live_server_at_a_time_rebuilds() {
    let redis = Server::start(&[]).await;
    let store = open(&redis.url()).await;
    let lasts = Duration::from_secs(60);
    let turn = async |server, lasts| store.rebuild_turn(server, lasts).await.unwrap();
    assert!(turn(1, lasts).await && turn(1, lasts).await && !turn(2, lasts).await);
    assert!(!turn(2, Duration::ZERO).await, "only its owner ends it");
    assert!(turn(1, Duration::ZERO).await && turn(2, Duration::from_millis(50)).await);
    eventually("the turn ends by itself", || turn(1, lasts)).await;
    // Also when memory is full.
    redis.ask(&["SET", "other", "x"]).await;
    redis.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(turn(1, lasts).await && !turn(2, lasts).await);
}
