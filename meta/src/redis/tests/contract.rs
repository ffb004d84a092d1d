//! The contract of a metadata store, on one Redis and on a cluster.

use std::sync::Arc;

use dl_runtime::fault::{CutPoint, Faults};
use dl_runtime::{SeededRandom, SystemClock};

use super::open;
use crate::conformance::contest;
use crate::redis::testing::{Cluster, Server};
use crate::{FaultMeta, MetaStore, conformance};

fn faulty(inner: Arc<dyn MetaStore>) -> Arc<dyn MetaStore> {
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    Arc::new(FaultMeta::new(inner, Arc::new(SystemClock::new()), faults, CutPoint::new()))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_keeps_the_contract() {
    let server = Server::start(&[]).await;
    conformance::run(async || {
        server.ask(&["FLUSHALL"]).await;
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

#[tokio::test(flavor = "multi_thread")]
async fn behind_the_fault_layer_they_keep_it_too() {
    let (server, cluster) = (Server::start(&[]).await, Cluster::start(3, 0).await);
    conformance::run(async || {
        server.ask(&["FLUSHALL"]).await;
        faulty(Arc::new(open(&server.url()).await))
    })
    .await;
    conformance::run(async || {
        cluster.flush().await;
        faulty(Arc::new(open(&cluster.url()).await))
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
        contest::of_appends_at_once_the_same_ones_win_everywhere(&handles, 1).await;
    }
}
