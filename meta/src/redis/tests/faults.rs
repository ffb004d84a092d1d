//! Appends while the cluster changes under them, and while memory is short.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dl_format::Stamp;
use futures::future::join_all;
use redis::Value;

use super::{
    STORE, append, as_left_by_a_dead_maker, ask, check, filled, hasty, id, keys_of, open_with,
    path, record, set, whole,
};
use crate::conformance::history::Maker;
use crate::redis::command::{Ask, bytes};
use crate::redis::keys;
use crate::redis::slots::Shard;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{
    DatasetRecord, DatasetState, Datasets, Found, Integrity, Kind, MetaStore, RedisOptions, Refusal,
};

/// Moves a slot with all that is in it to another primary.
async fn move_slot(slot: u16, from: &Server, to: &Server) {
    let (slot, port) = (slot.to_string(), to.port().to_string());
    let (from_id, to_id) =
        (from.text(&["CLUSTER", "MYID"]).await, to.text(&["CLUSTER", "MYID"]).await);
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    loop {
        let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        let keys: Vec<String> = redis::from_redis_value(keys).unwrap();
        if keys.is_empty() {
            break;
        }
        for key in keys {
            from.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
        }
    }
    for server in [to, from] {
        server.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_appends_and_reads_cost_nothing() {
    let cluster = Cluster::start(3, 0).await;
    let store = filled(&cluster.url(), []).await;
    let [from, to, _] = cluster.servers() else { panic!("three primaries") };
    let mut maker = Maker::new(id(), 1);
    let all: Vec<_> = (0..4_000).map(|n| maker.files([format!("{}/{n}", n % 97)])).collect();
    let is_over = &AtomicBool::new(false);
    let appended = all.chunks(500).map(async |objects| {
        let mut done = Vec::new();
        for object in objects.iter().take_while(|_| !is_over.load(Ordering::Relaxed)) {
            store.append(object).await.unwrap();
            store.lookup(id(), &[path("1/1")]).await.unwrap();
            done.push(object);
            store.shared.clock.sleep(Duration::from_millis(5)).await;
        }
        done
    });
    let moved = async {
        for shard in Shard::all().filter(|shard| shard.slot() < 5_400) {
            move_slot(shard.slot(), from, to).await;
        }
        is_over.store(true, Ordering::Relaxed);
    };
    let done = tokio::join!(join_all(appended), moved).0.concat();
    assert!(done.len() > 100, "{} were appended", done.len());
    assert_eq!(store.damage().await.unwrap(), None, "what moved is not lost");
    check(&store, done).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_it_is_read_as_before_and_datasets_end() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut maker = Maker::new(id(), 1);
    let objects = [maker.files(["a"]), maker.files(["b"])];
    let store = filled(&server.url(), &objects[..1]).await;
    as_left_by_a_dead_maker(&store, &objects[0], 0, &[]).await;
    set(&server, "maxmemory", "100kb").await;
    let refusal = store.refusal().await.unwrap();
    assert!(matches!(&refusal, Some(Refusal::Full(why)) if why.contains("reached its maxmemory")));
    assert_eq!(store.append(&objects[1]).await.unwrap_err().kind, Kind::Full);
    // What it adds up to was never counted before.
    check(&store, &objects[..1]).await;
    assert_eq!(store.damage().await.unwrap(), None);
    let rebuild = store.begin_rebuild().await.unwrap();
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    store.stamp(id(), Stamp::new(1)).await.unwrap();
    set(&server, "maxmemory", 0).await;
    append(&store, &objects).await;
    check(&store, &objects).await;
    set(&server, "maxmemory", "100kb").await;
    let ending = DatasetRecord { state: DatasetState::Ending, ..record() };
    store.put_dataset(&ending).await.unwrap();
    store.drop_dataset(&record().name, id()).await.unwrap();
    assert_eq!(store.record(id()).await.unwrap(), None);
}

/// A snapshot that can't be written, and replicas that are not there: Redis refuses all writes then.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_writes_are_taken_it_is_read_as_before_and_said_why() {
    for (code, refuse, allow) in [
        ("NOREPLICAS", ("min-replicas-to-write", "1"), ("min-replicas-to-write", "0")),
        ("MISCONF", ("save", "3600 1"), ("stop-writes-on-bgsave-error", "no")),
    ] {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        let mut maker = Maker::new(id(), 1);
        let objects = [maker.files(["a"]), maker.files(["b"])];
        let store = filled(&server.url(), &objects[..1]).await;
        assert_eq!(store.refusal().await.unwrap(), None);
        let minute_ago = Stamp::at(store.shared.clock.now()).get() / 1_000 - 60_000;
        as_left_by_a_dead_maker(&store, &objects[0], minute_ago, &[b""]).await;
        // Its snapshot can't take the place of a folder.
        std::fs::create_dir(server.folder().join("dump.rdb")).unwrap();
        set(&server, refuse.0, refuse.1).await;
        server.ask(&["BGSAVE"]).await;
        eventually("it refuses writes", || async { store.refusal().await.unwrap().is_some() })
            .await;
        let refusal = store.refusal().await.unwrap().unwrap();
        assert!(matches!(&refusal, Refusal::All(why) if why.contains(code)), "{refusal}");
        let began = store.shared.clock.monotonic();
        assert!(store.list(id(), &whole()).await.unwrap().is_empty(), "{code}");
        assert_eq!(store.lookup(id(), &[path("a")]).await.unwrap(), [Found::Missing], "{code}");
        store.shared.clock.sleep(Duration::from_millis(1_100)).await;
        assert_eq!(store.damage().await.unwrap(), None);
        let took = store.shared.clock.monotonic() - began;
        assert!(took < Duration::from_secs(6), "{code}: {took:?}");
        set(&server, allow.0, allow.1).await;
        store.append(&objects[1]).await.unwrap();
        // They are brought once they are looked for again.
        store.shared.looked(id(), Duration::ZERO);
        check(&store, &objects).await;
        let todo = keys_of(&store).await.todo();
        assert_eq!(ask(&store, Ask::to(&todo, "HLEN")).await, Value::Int(0), "{code}");
    }
}

/// Deletes go on where one is full, and don't where it, or another one, takes no writes at all. That is
/// heard also beside one that hangs, so that nobody stores what the log can't take.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_primary_is_named_before_a_full_one() {
    let cluster = Cluster::start(3, 0).await;
    let minute = Duration::from_secs(60);
    let patient =
        RedisOptions { command_timeout: minute, patience: minute, ..RedisOptions::default() };
    let store = open_with(&cluster.url(), patient).await.unwrap();
    assert_eq!(store.refusal().await.unwrap(), None);
    let [one, other, _] = cluster.servers() else { panic!("three primaries") };
    for (full, refuses) in [(one, other), (other, one), (one, one)] {
        set(full, "maxmemory-policy", "noeviction").await;
        set(full, "maxmemory", "100kb").await;
        assert!(matches!(store.refusal().await.unwrap(), Some(Refusal::Full(_))));
        set(refuses, "min-replicas-to-write", 1).await;
        for _ in 0..5 {
            assert!(matches!(store.refusal().await.unwrap(), Some(Refusal::All(_))));
        }
        set(refuses, "min-replicas-to-write", 0).await;
        set(full, "maxmemory", 0).await;
    }
    set(one, "min-replicas-to-write", 1).await;
    other.ask(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    let asked = tokio::time::timeout(minute / 2, store.refusal()).await;
    let refusal = asked.expect("it waits for the other").unwrap();
    assert!(matches!(&refusal, Some(Refusal::All(why)) if why.contains("NOREPLICAS")));
}

/// Otherwise a loss of what is written there next would be taken for the move.
#[tokio::test(flavor = "multi_thread")]
async fn a_moved_shard_without_marks_is_incomplete() {
    let cluster = Cluster::start(3, 0).await;
    let store = filled(&cluster.url(), []).await;
    let [from, to, _] = cluster.servers() else { panic!("three primaries") };
    let shard = Shard::all().find(|shard| shard.slot() < 5_400).unwrap();
    move_slot(shard.slot(), from, to).await;
    set(to, "min-replicas-to-write", 1).await;
    for _ in 0..2 {
        let refused = format!("{:?}", store.damage().await.unwrap_err());
        let named = [&*format!("127.0.0.1:{}: NOREPLICAS", to.port()), "slots moved"];
        assert!(named.iter().all(|part| refused.contains(part)), "{refused}");
    }
    set(to, "min-replicas-to-write", 0).await;
    assert_eq!(store.damage().await.unwrap(), None);
    let marked = ask(&store, Ask::to(&keys::shard_mark(shard), "HGET").arg("run")).await;
    let marked = String::from_utf8(bytes(marked).unwrap().unwrap()).unwrap();
    let info = to.text(&["INFO", "server"]).await;
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    assert!(marked.contains(run.trim()), "{marked} {run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answering_is_given_up_in_time() {
    let server = Server::start(&[]).await;
    let options = RedisOptions { command_timeout: Duration::from_millis(300), ..hasty() };
    drop(filled(&server.url(), []).await);
    let store = open_with(&server.url(), options).await.unwrap();
    server.ask(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    assert_eq!(store.trouble(), None);
    let error = store.record(id()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
    let trouble = store.trouble().expect("something was waited for");
    assert!(trouble.contains(&server.port().to_string()), "{trouble}");
}
