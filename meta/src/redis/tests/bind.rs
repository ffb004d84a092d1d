//! Several servers that bind fresh metadata at the same moment.

use dl_format::StoreId;

use super::{STORE, open};
use crate::redis::testing::{Cluster, Server};
use crate::{Kind, MetaStore, Redis};

const OTHER: StoreId = StoreId::from_bytes([2; 16]);

/// Has two bind it at once; fails unless exactly those are told so whose store is stored.
async fn bind_at_once(first: (&Redis, StoreId), second: (&Redis, StoreId)) {
    let ended = tokio::join!(first.0.bind(first.1), second.0.bind(second.1));
    let bound = first.0.identity().await.unwrap().unwrap();
    for (store, ended) in [(first.1, ended.0), (second.1, ended.1)] {
        match ended {
            Ok(()) => assert_eq!(store, bound, "bound to another one"),
            Err(error) => {
                assert_eq!(error.kind, Kind::Conflict, "{error:?}");
                assert_ne!(store, bound, "{error:?}");
            }
        }
    }
    for (redis, _) in [first, second] {
        assert_eq!(redis.damage().await.unwrap(), None);
        assert_eq!(redis.identity().await.unwrap(), Some(bound));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_chunk_stores_that_bind_at_once_one_wins_and_the_other_is_refused() {
    let server = Server::start(&[]).await;
    let (first, second) = (open(&server.url()).await, open(&server.url()).await);
    for _ in 0..20 {
        server.ask(&["FLUSHALL"]).await;
        bind_at_once((&first, STORE), (&second, OTHER)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_one_chunk_store_bind_a_cluster_at_once() {
    let cluster = Cluster::start(3, 0).await;
    let (first, second) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for _ in 0..5 {
        cluster.flush().await;
        bind_at_once((&first, STORE), (&second, STORE)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_into_metadata_that_is_bound_to_another_store_meanwhile_is_refused() {
    let server = Server::start(&[]).await;
    let (first, second) = (open(&server.url()).await, open(&server.url()).await);
    let rebuild = first.begin_rebuild().await.unwrap();
    second.bind(OTHER).await.unwrap();
    let error = first.end_rebuild(&rebuild, STORE).await.unwrap_err();
    assert_eq!(error.kind, Kind::Conflict, "{error:?}");
    assert_eq!(first.identity().await.unwrap(), Some(OTHER));
}
