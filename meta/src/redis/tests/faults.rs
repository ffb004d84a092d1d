//! Appends while the cluster changes under them, and while memory is short.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dl_format::{Committed, DirPath, FilePath, Stamp};
use dl_runtime::SystemClock;
use redis::Value;
use tokio::task::JoinSet;

use super::{STORE, hasty, id, open, record};
use crate::conformance::history::Maker;
use crate::conformance::model::Model;
use crate::redis::command::{Ask, bytes};
use crate::redis::keys;
use crate::redis::slots::Shard;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{
    Damage, DatasetRecord, DatasetState, Error, Found, Kind, ListQuery, MetaStore, Redis,
    RedisOptions, Refusal,
};

/// Appends objects from several tasks until `changed` is over and then some; gives those that were
/// acknowledged, and the errors.
async fn appended_while(
    store: &Arc<Redis>,
    changed: impl Future<Output = ()>,
) -> (Vec<Committed>, Vec<Error>) {
    let mut maker = Maker::new(id(), 1);
    let all: Vec<_> = (0..4_000)
        .map(|number| maker.chunk([(format!("{}/{number}", number % 97).as_bytes(), 1)]))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let (count, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = JoinSet::new();
    for part in all.chunks(500).map(<[_]>::to_vec) {
        let (store, stop) = (Arc::clone(store), Arc::clone(&stop));
        let (count, ended) = (Arc::clone(&count), Arc::clone(&ended));
        tasks.spawn(async move {
            let (mut done, mut failed) = (Vec::new(), Vec::new());
            for object in part {
                match store.append(&object).await {
                    Ok(_) => {
                        done.push(object);
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => failed.push(error),
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                store.shared.clock.sleep(Duration::from_millis(5)).await;
            }
            ended.fetch_add(1, Ordering::Relaxed);
            (done, failed)
        });
    }
    let more = async || {
        let before = count.load(Ordering::Relaxed);
        eventually("some more are appended, or all were", || async {
            let more = count.load(Ordering::Relaxed) - before;
            more >= 60 || ended.load(Ordering::Relaxed) > 0
        })
        .await;
    };
    more().await;
    changed.await;
    more().await;
    stop.store(true, Ordering::Relaxed);
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (appended, errors) in tasks.join_all().await {
        done.extend(appended);
        failed.extend(errors);
    }
    assert!(done.len() > 100, "{} were appended", done.len());
    (done, failed)
}

/// Moves a slot with all that is in it to another primary.
async fn move_slot(slot: u16, from: &Server, to: &Server) {
    let slot = slot.to_string();
    let (from_id, to_id) =
        (from.text(&["CLUSTER", "MYID"]).await, to.text(&["CLUSTER", "MYID"]).await);
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    loop {
        let keys = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).await;
        let Value::Array(keys) = keys else { break };
        if keys.is_empty() {
            break;
        }
        for key in keys {
            let Value::BulkString(key) = key else { continue };
            let key = String::from_utf8(key).unwrap();
            let port = to.port().to_string();
            from.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]).await;
        }
    }
    to.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
    from.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_under_appends_and_reads_cost_nothing() {
    let cluster = Cluster::start(3, 0).await;
    let store = Arc::new(open(&cluster.url()).await);
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let [from, to, _] = cluster.servers() else { panic!("three primaries") };
    let moved = async {
        for shard in Shard::all().filter(|shard| shard.slot() < 5_400) {
            move_slot(shard.slot(), from, to).await;
        }
    };
    let (done, failed) = appended_while(&store, moved).await;
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(store.damage().await.unwrap(), None, "what moved is not lost");
    let mut model = Model::default();
    for object in &done {
        model.add(object);
    }
    model.check(&*store, id(), 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_dies_under_appends_is_replaced_and_what_it_lost_is_mended() {
    let cluster = Cluster::start(3, 1).await;
    let store = Arc::new(open(&cluster.url()).await);
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    let [victim, _, _, heir, ..] = cluster.servers() else { panic!("six nodes") };
    let killed = async {
        store.shared.clock.sleep(Duration::from_millis(200)).await;
        victim.kill();
        eventually("the replica takes over", || async {
            heir.text(&["INFO", "replication"]).await.contains("role:master")
        })
        .await;
    };
    let (done, failed) = appended_while(&store, killed).await;
    assert!(failed.is_empty(), "{failed:?}");
    let rebuild = store.begin_rebuild().await.unwrap();
    assert_eq!(rebuild.damage, Some(Damage::Shards));
    let mut model = Model::default();
    for object in &done {
        store.append(object).await.unwrap();
        model.add(object);
    }
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    model.check(&*store, id(), 1_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_appends_fail_as_full_and_go_on_when_there_is_some() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(id(), 1);
    let (first, second) = (maker.chunk([(&b"a"[..], 1)]), maker.chunk([(&b"b"[..], 1)]));
    store.append(&first).await.unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let error = store.append(&second).await.unwrap_err();
    assert_eq!(error.kind, Kind::Full, "{error:?}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    store.append(&second).await.unwrap();
    let mut model = Model::default();
    model.add(&first);
    model.add(&second);
    model.check(&store, id(), 9).await;
}

/// What an append brings takes memory while it is on its way, and gives it back when it is refused.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_had_no_room_for_an_append_is_full_until_there_is_more() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..2_000).map(|number| format!("{number:0200}")).collect();
    let mut large = || maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    let set = async |most: u64| {
        server.ask(&["CONFIG", "SET", "maxmemory", &most.to_string()]).await;
    };
    server.ask(&["SETRANGE", "other", "8000000", "x"]).await;
    let most = server.used_memory().await + 300_000;
    set(most).await;
    assert_eq!(store.refusal().await.unwrap(), None);
    let error = store.append(&large()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Full, "{error:?}");
    let is_full = async || matches!(store.refusal().await.unwrap(), Some(Refusal::Full(_)));
    assert!(is_full().await, "at once");
    eventually("it gives back what was refused", async || {
        server.used_memory().await < most - 250_000
    })
    .await;
    assert!(is_full().await, "and as there is as much room as before");
    set(most + 20_000_000).await;
    assert_eq!(store.refusal().await.unwrap(), None);
    store.append(&large()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_room_it_is_read_as_before_and_datasets_end() {
    let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
    let store = open(&server.url()).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let object = Maker::new(id(), 1).chunk([(&b"a"[..], 1)]);
    store.append(&object).await.unwrap();
    assert_eq!(store.refusal().await.unwrap(), None);
    // Whoever appended it a long time ago did not get to its rows.
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let todo = Ask::to(&keys.todo(), "HSET").arg(object.header().id().as_bytes()).arg("who 0");
    store.shared.router.ask_one(todo).await.unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
    let refusal = store.refusal().await.unwrap().expect("it is full");
    let Refusal::Full(why) = &refusal else { panic!("{refusal:?}") };
    assert!(why.contains("reached its maxmemory"), "{why}");
    let mut model = Model::default();
    model.add(&object);
    // What it adds up to was never counted before.
    model.check(&store, id(), 9).await;
    assert_eq!(store.damage().await.unwrap(), None);
    let rebuild = store.begin_rebuild().await.unwrap();
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    store.stamp(id(), Stamp::new(1)).await.unwrap();
    let ending = DatasetRecord { state: DatasetState::Ending, ..record() };
    store.put_dataset(&ending).await.unwrap();
    store.drop_dataset(&record().name, id()).await.unwrap();
    assert_eq!(store.record(id()).await.unwrap(), None);
}

/// A snapshot that can't be written, and replicas that are not there: Redis refuses all writes then.
#[tokio::test(flavor = "multi_thread")]
async fn where_no_writes_are_taken_it_is_read_as_before_and_said_why() {
    for [code, refuse, allow] in [
        ["NOREPLICAS", "min-replicas-to-write 1", "min-replicas-to-write 0"],
        ["MISCONF", "save 3600 1", "stop-writes-on-bgsave-error no"],
    ] {
        let server = Server::start(&["--maxmemory-policy", "noeviction"]).await;
        let clock = Arc::new(SystemClock::new());
        let store = Redis::open(&server.url(), RedisOptions::default(), clock).await.unwrap();
        store.bind(STORE).await.unwrap();
        store.put_dataset(&record()).await.unwrap();
        let mut maker = Maker::new(id(), 1);
        let (first, second) = (maker.chunk([(&b"a"[..], 1)]), maker.chunk([(&b"b"[..], 1)]));
        store.append(&first).await.unwrap();
        assert_eq!(store.refusal().await.unwrap(), None);
        // Whoever appended it a while ago did not get to its rows.
        let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
        let now_ms = Stamp::at(store.shared.clock.now()).get() / 1_000;
        let overdue = format!("who {}", now_ms - 60_000);
        let todo = Ask::to(&keys.todo(), "HSET").arg(first.header().id().as_bytes()).arg(overdue);
        store.shared.router.ask_one(todo).await.unwrap();
        let rows = Ask::to(&keys.rows(0, b""), "UNLINK");
        store.shared.router.ask_one(rows).await.unwrap();
        let set = async |setting: &str| {
            let (name, value) = setting.split_once(' ').unwrap();
            server.ask(&["CONFIG", "SET", name, value]).await;
        };
        // Its snapshot can't take the place of a folder.
        std::fs::create_dir(server.folder().join("dump.rdb")).unwrap();
        set(refuse).await;
        server.ask(&["BGSAVE"]).await;
        eventually("it refuses writes", || async { store.refusal().await.unwrap().is_some() })
            .await;
        let refusal = store.refusal().await.unwrap().unwrap();
        assert!(matches!(&refusal, Refusal::All(why) if why.contains(code)), "{refusal}");
        let began = store.shared.clock.monotonic();
        let root = ListQuery { bytes: 999, ..ListQuery::of(DirPath::ROOT, true, 9) };
        assert!(store.list(id(), &root).await.unwrap().is_empty(), "{code}");
        let path = [FilePath::new("a").unwrap()];
        assert_eq!(store.lookup(id(), &path).await.unwrap(), [Found::Missing], "{code}");
        store.shared.clock.sleep(Duration::from_millis(1_100)).await;
        assert_eq!(store.damage().await.unwrap(), None);
        let took = store.shared.clock.monotonic() - began;
        assert!(took < Duration::from_secs(6), "{code}: {took:?}");
        set(allow).await;
        store.append(&second).await.unwrap();
        let mut model = Model::default();
        assert!(model.add(&first) && model.add(&second));
        // They are brought once they are looked for again.
        store.shared.looked(id(), Duration::ZERO);
        model.check(&store, id(), 9).await;
        let left = store.shared.router.ask_one(Ask::to(&keys.todo(), "HLEN")).await.unwrap();
        assert_eq!(left, Value::Int(0), "{code}");
    }
}

/// Deletes go on where one is full, and don't where it, or another one, takes no writes at all.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_takes_no_writes_is_named_before_one_that_is_full() {
    let cluster = Cluster::start(3, 0).await;
    let store = open(&cluster.url()).await;
    let [one, other, _] = cluster.servers() else { panic!("three primaries") };
    for (full, refuses) in [(one, other), (other, one), (one, one)] {
        full.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).await;
        full.ask(&["CONFIG", "SET", "maxmemory", "100kb"]).await;
        assert!(matches!(store.refusal().await.unwrap(), Some(Refusal::Full(_))));
        refuses.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
        for _ in 0..5 {
            assert!(matches!(store.refusal().await.unwrap(), Some(Refusal::All(_))));
        }
        refuses.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
        full.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    }
}

/// Beside one that hangs, so that nobody stores what the log can't take.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_takes_no_writes_is_heard_before_one_that_hangs_is_given_up() {
    let cluster = Cluster::start(3, 0).await;
    let minute = Duration::from_secs(60);
    let patient =
        RedisOptions { command_timeout: minute, patience: minute, ..RedisOptions::default() };
    let clock = Arc::new(SystemClock::new());
    let store = Redis::open(&cluster.url(), patient, clock).await.unwrap();
    assert_eq!(store.refusal().await.unwrap(), None);
    let [hangs, refuses, _] = cluster.servers() else { panic!("three primaries") };
    refuses.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    hangs.ask(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    let asked = tokio::time::timeout(minute / 2, store.refusal()).await;
    let refusal = asked.expect("it waits for the other").unwrap();
    assert!(matches!(&refusal, Some(Refusal::All(why)) if why.contains("NOREPLICAS")));
}

/// Otherwise a loss of what is written there next would be taken for the move.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_moved_to_where_no_marks_are_taken_is_not_taken_for_whole() {
    let cluster = Cluster::start(3, 0).await;
    let store = open(&cluster.url()).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let [from, to, _] = cluster.servers() else { panic!("three primaries") };
    let shard = Shard::all().find(|shard| shard.slot() < 5_400).unwrap();
    move_slot(shard.slot(), from, to).await;
    to.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    for _ in 0..2 {
        let refused = format!("{:?}", store.damage().await.unwrap_err());
        let named = [&*format!("127.0.0.1:{}: NOREPLICAS", to.port()), "slots moved"];
        assert!(named.iter().all(|part| refused.contains(part)), "{refused}");
    }
    to.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]).await;
    assert_eq!(store.damage().await.unwrap(), None);
    let mark = Ask::to(&keys::shard_mark(shard), "HGET").arg("run");
    let marked = store.shared.router.ask_one(mark).await.unwrap();
    let run = to.text(&["INFO", "server"]).await;
    let run = run.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    let marked = String::from_utf8(bytes(marked).unwrap().unwrap()).unwrap();
    assert!(marked.contains(run.trim()), "{marked} {run}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_a_server_forgot_are_given_to_it_again() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    server.ask(&["SCRIPT", "FLUSH"]).await;
    store.append(&Maker::new(id(), 1).chunk([(&b"a"[..], 1)])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stops_answering_is_given_up_in_time() {
    let server = Server::start(&[]).await;
    let options = RedisOptions { command_timeout: Duration::from_millis(300), ..hasty() };
    open(&server.url()).await.put_dataset(&record()).await.unwrap();
    let store = Redis::open(&server.url(), options, Arc::new(SystemClock::new())).await.unwrap();
    server.ask(&["CLIENT", "PAUSE", "60000", "ALL"]).await;
    assert_eq!(store.trouble(), None);
    let error = store.record(id()).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
    let trouble = store.trouble().expect("something was waited for");
    assert!(trouble.contains(&server.port().to_string()), "{trouble}");
}
