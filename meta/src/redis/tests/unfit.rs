//! A Redis that becomes unfit while it is used, and calls that would never end.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use dl_runtime::{Clock, SystemClock};
use futures::future::BoxFuture;

use super::{fail_over, hasty, id, open, open_with, path, reason, set, whole};
use crate::conformance::history::Maker;
use crate::redis::Shared;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Error, Integrity, Kind, MetaStore, Redis};

async fn filled(url: &str, maker: &mut Maker) -> Redis {
    let names = (0..600).map(|number| format!("{}/{number}", number % 200));
    drop(super::filled(url, [&maker.files(names)]).await);
    let store = open_with(url, hasty()).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    store
}

fn names_the_policy(error: &Error) {
    assert_eq!(error.kind, Kind::Unsupported, "{error:?}");
    assert!(reason(error).contains("maxmemory-policy noeviction"), "{}", reason(error));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_drops_keys_is_refused_until_it_keeps_them() {
    let (server, mut maker) = (Server::start(&[]).await, Maker::new(id(), 1));
    let store = filled(&server.url(), &mut maker).await;
    set(&server, "maxmemory-policy", "allkeys-lru").await;
    // As every server looks once a second.
    names_the_policy(&store.damage().await.unwrap_err());
    names_the_policy(&store.lookup(id(), &[path("1/1")]).await.unwrap_err());
    let object = maker.files(["new"]);
    names_the_policy(&store.append(&object).await.unwrap_err());
    set(&server, "maxmemory-policy", "noeviction").await;
    assert_eq!(store.damage().await.unwrap(), None, "nothing was dropped");
    store.append(&object).await.unwrap();
    store.lookup(id(), &[path("1/1")]).await.unwrap();
}

async fn takes_it_for_lost(store: &Redis) {
    eventually("it is taken for lost", || async { store.damage().await.unwrap().is_some() }).await;
    let error = store.lookup(id(), &[path("1/1")]).await.unwrap_err();
    let is_home = error.kind == Kind::Missing;
    let is_told = ["dlcmd recover", "are rebuilding"].map(|told| reason(&error).contains(told));
    assert!(is_home || is_told.contains(&true), "{error:?}");
}

/// Also where nobody looked before the policy was right again.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_dropped_keys_has_lost_them() {
    for is_seen in [true, false] {
        let server = Server::start(&[]).await;
        let store = filled(&server.url(), &mut Maker::new(id(), 1)).await;
        let other = open(&server.url()).await;
        set(&server, "maxmemory-policy", "allkeys-random").await;
        set(&server, "maxmemory", server.used_memory().await - 20_000).await;
        eventually("some keys are dropped", || async {
            server.number("stats", "evicted_keys:").await > 0
        })
        .await;
        if is_seen {
            // It may be among them.
            server.ask(&["DEL", "dl:{9}:identity"]).await;
            names_the_policy(&store.damage().await.unwrap_err());
        }
        set(&server, "maxmemory", 0).await;
        set(&server, "maxmemory-policy", "noeviction").await;
        takes_it_for_lost(&store).await;
        takes_it_for_lost(&other).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_drops_keys_is_refused_when_it_takes_over() {
    let cluster = Cluster::start(3, 1).await;
    let [victim, _, _, heir, ..] = cluster.servers() else { panic!("six nodes") };
    let store = filled(&cluster.url(), &mut Maker::new(id(), 1)).await;
    set(heir, "maxmemory-policy", "allkeys-lru").await;
    assert_eq!(store.damage().await.unwrap(), None, "a replica drops nothing by itself");
    fail_over(victim, heir).await;
    eventually("it is refused", || async {
        let error = store.damage().await.err();
        error.is_some_and(|error| reason(&error).contains("maxmemory-policy noeviction"))
    })
    .await;
    names_the_policy(&store.list(id(), &whole()).await.unwrap_err());
}

/// Time, in which something changes whenever it is asked for.
#[derive(Debug, Default)]
struct Restless {
    time: SystemClock,
    shared: OnceLock<Weak<Shared>>,
}

impl Clock for Restless {
    fn now(&self) -> SystemTime {
        self.time.now()
    }

    fn monotonic(&self) -> Duration {
        if let Some(shared) = self.shared.get().and_then(Weak::upgrade) {
            shared.router.changed();
        }
        self.time.monotonic()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.time.sleep(duration)
    }
}

/// As when connections break faster than a call can be answered.
#[tokio::test(flavor = "multi_thread")]
async fn calls_end_in_time_when_everything_changes_all_the_time() {
    let server = Server::start(&[]).await;
    drop(filled(&server.url(), &mut Maker::new(id(), 1)).await);
    let clock = Arc::new(Restless::default());
    let store = Redis::open(&server.url(), hasty(), Arc::<Restless>::clone(&clock)).await.unwrap();
    clock.shared.set(Arc::downgrade(&store.shared)).unwrap();
    let whole = whole();
    let calls = async {
        tokio::join!(
            async { store.lookup(id(), &[path("1/1")]).await.map(|_| ()) },
            async { store.list(id(), &whole).await.map(|_| ()) },
            async { store.dataset(id()).await.map(|_| ()) },
        )
    };
    let ended = tokio::time::timeout(hasty().patience * 6, calls).await;
    let (looked_up, listed, counted) = ended.expect("they end");
    for error in [looked_up, listed, counted].map(Result::unwrap_err) {
        assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
        assert!(reason(&error).contains("changed in each round"), "{}", reason(&error));
    }
}
