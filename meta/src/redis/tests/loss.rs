//! What a Redis that lost something is asked and answers.

use super::{STORE, hasty, id, open, path, reason, record};
use crate::conformance::history::Maker;
use crate::conformance::model::Model;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Damage, Found, Kind, MetaStore, Redis};

use dl_format::{Committed, DirPath, Stamp};
use dl_runtime::SystemClock;
use std::sync::Arc;
use std::time::Duration;

use crate::ListQuery;

/// Files in many folders, so that all shards have some.
fn objects() -> Vec<Committed> {
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..600).map(|number| format!("{}/{number}", number % 200)).collect();
    names.chunks(50).map(|names| maker.chunk(names.iter().map(|n| (n.as_bytes(), 1)))).collect()
}

async fn filled(url: &str) -> (Redis, Vec<Committed>) {
    let store = open(url).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let objects = objects();
    for object in &objects {
        store.append(object).await.unwrap();
    }
    assert_eq!(store.damage().await.unwrap(), None);
    (store, objects)
}

fn whole() -> ListQuery {
    ListQuery { dir: DirPath::ROOT, recursive: true, after: None, limit: 10_000, bytes: usize::MAX }
}

async fn recover(store: &Redis, objects: &[Committed]) {
    store.put_dataset(&record()).await.unwrap();
    let mut model = Model::default();
    for object in objects {
        store.append(object).await.unwrap();
        model.add(object);
    }
    store.mended().await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    model.check(store, id(), 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_was_flushed_is_noticed_and_nothing_is_called_missing() {
    let cluster = Cluster::start(3, 0).await;
    for flushed in 0..3 {
        cluster.flush().await;
        let (store, objects) = filled(&cluster.url()).await;
        cluster.servers()[flushed].ask(&["FLUSHALL"]).await;
        let paths: Vec<_> = (0..600).map(|n| path(format!("{}/{n}", n % 200))).collect();
        for asked in &paths {
            match store.lookup(id(), std::slice::from_ref(asked)).await {
                Ok(found) => assert!(matches!(found[..], [Found::File(_)]), "{asked}: {found:?}"),
                Err(error) => {
                    let is_home = error.kind == Kind::Missing;
                    assert!(is_home || reason(&error).contains("dlcmd recover"), "{error:?}");
                }
            }
        }
        store.list(id(), &whole()).await.unwrap_err();
        assert_eq!(store.damage().await.unwrap(), Some(Damage { since: None }));
        if store.identity().await.unwrap().is_none() {
            store.bind(STORE).await.unwrap();
        }
        recover(&store, &objects).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_nothing_is_served_until_it_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let server = Server::start(&["--appendonly", "yes", "--dir", &dir]).await;
    let (store, objects) = filled(&server.url()).await;
    let before = now();
    eventually("the time of the marks moves on", || async {
        store.damage().await.unwrap();
        tokio::task::yield_now().await;
        store.shared.clock.sleep(Duration::from_millis(200)).await;
        let seen = server.text(&["HGET", "dl:{9}:mark", "seen"]).await;
        seen.parse::<u64>().is_ok_and(|ms| ms * 1_000 > before) || seen == "Nil"
    })
    .await;
    server.kill();
    server.run().await;
    let error = store.lookup(id(), &[path("1/1")]).await.unwrap_err();
    assert!(
        error.kind == Kind::Unavailable && reason(&error).contains("dlcmd recover"),
        "{error:?}"
    );
    let Some(Damage { since: Some(since) }) = store.damage().await.unwrap() else {
        panic!("a restart may lose the last writes")
    };
    assert!(since > Stamp::new(before) && since.get() <= now(), "{since:?}");
    store.list(id(), &whole()).await.unwrap_err();
    recover(&store, &objects).await;
    // One that never saw the damage.
    let other = open(&server.url()).await;
    assert_eq!(other.damage().await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_empty_is_as_good_as_new() {
    let server = Server::start(&[]).await;
    let (store, objects) = filled(&server.url()).await;
    server.kill();
    server.run().await;
    assert_eq!(store.identity().await.unwrap(), None);
    assert_eq!(store.record(id()).await.unwrap(), None);
    store.put_dataset(&record()).await.unwrap();
    for object in &objects {
        store.append(object).await.unwrap();
    }
    store.bind(STORE).await.unwrap();
    recover(&store, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_it_is_away_calls_fail_in_time_and_go_on_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let server =
        Server::start(&["--appendonly", "yes", "--appendfsync", "always", "--dir", &dir]).await;
    let store = Redis::open(&server.url(), hasty(), Arc::new(SystemClock::new())).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    server.kill();
    let objects = objects();
    let error = store.append(&objects[0]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
    let clock = &store.shared.clock;
    let began = clock.monotonic();
    let many = (0..8).map(|n| {
        let store = &store;
        async move { store.lookup(id(), &[path(format!("1/{n}"))]).await }
    });
    for answer in futures::future::join_all(many).await {
        assert_eq!(answer.unwrap_err().kind, Kind::Unavailable);
    }
    let waited = clock.monotonic() - began;
    assert!(waited < hasty().patience * 3, "they wait for each other: {waited:?}");
    let later = async {
        store.shared.clock.sleep(Duration::from_millis(500)).await;
        server.run().await;
    };
    let (appended, ()) = tokio::join!(store.append(&objects[0]), later);
    appended.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_do_not_go_back_when_redis_forgot_the_last_ones() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let given = store.stamp(id(), Stamp::new(100)).await.unwrap();
    server.ask(&["FLUSHALL"]).await;
    store.put_dataset(&record()).await.unwrap();
    assert!(store.stamp(id(), Stamp::new(5)).await.unwrap() > given);
}

fn now() -> u64 {
    use dl_runtime::Clock;
    Stamp::at(SystemClock::new().now()).get()
}
