//! The contract of a metadata store, on one Redis and on a cluster.

use std::sync::Arc;

use dl_format::StoreId;

use super::{STORE, open};
use crate::conformance::contest;
use crate::redis::testing::{Cluster, Server};
use crate::{MetaStore, conformance};

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_keeps_the_contract() {
    let server = Server::start(&[]).await;
    conformance::run(async || {
        server.ask(&["FLUSHALL"]).await;
        // A store gives the scripts to a server that has forgotten them.
        server.ask(&["SCRIPT", "FLUSH"]).await;
        let store: Arc<dyn MetaStore> = Arc::new(open(&server.url()).await);
        store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_keeps_the_contract() {
    let cluster = Cluster::start(3, 0).await;
    conformance::run(async || {
        cluster.flush().await;
        let store: Arc<dyn MetaStore> = Arc::new(open(&cluster.url()).await);
        store
    })
    .await;
}

/// Keeps S-04 (I4): two servers over one Redis, or over one cluster.
#[tokio::test(flavor = "multi_thread")]
async fn handles_that_append_at_once_agree_on_the_winners() {
    let (server, cluster) = (Server::start(&[]).await, Cluster::start(3, 0).await);
    for url in [server.url(), cluster.url()] {
        let handle = |store| Arc::new(store) as Arc<dyn MetaStore>;
        let handles = [open(&url).await, open(&url).await].map(handle);
        for seed in 0..6 {
            contest::any_history_appended_at_once_is_answered_like_the_fold(&handles, seed).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_handles_that_bind_at_once_one_wins() {
    let cluster = Cluster::start(3, 0).await;
    let (first, second) = (open(&cluster.url()).await, open(&cluster.url()).await);
    for round in 0..20 {
        cluster.flush().await;
        let other = StoreId::from_bytes([1 + round % 2; 16]);
        contest::of_two_that_bind_at_once_one_wins([&first, &second], [STORE, other]).await;
    }
}
