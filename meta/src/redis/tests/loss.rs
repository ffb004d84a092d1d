//! What a Redis that lost something is asked and answers.

use std::time::Duration;

use dl_format::{Committed, DatasetId, Fold, Stamp};
use futures::future::join_all;
use redis::Value;

use super::{
    STORE, append, ask, check, filled, hasty, id, keys_like, keys_of, open, open_with, path,
    reason, record, whole,
};
use crate::conformance::history::{Maker, versions};
use crate::redis::command::Ask;
use crate::redis::keys::{self, LARGE_ROWS};
use crate::redis::slots::Shard;
use crate::redis::sweep::Left;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{
    Damage, DatasetRecord, DatasetState, Datasets, Error, Found, Integrity, Kind, MetaStore, Redis,
};

/// Files in many folders, so that all shards have some.
fn objects_of(maker: &mut Maker) -> Vec<Committed> {
    let names: Vec<_> = (0..600).map(|number| format!("{}/{number}", number % 200)).collect();
    names.chunks(50).map(|names| maker.files(names)).collect()
}

fn objects() -> Vec<Committed> {
    objects_of(&mut Maker::new(id(), 1))
}

async fn whole_store(url: &str) -> (Redis, Vec<Committed>) {
    let objects = objects();
    let store = filled(url, &objects).await;
    assert_eq!(store.damage().await.unwrap(), None);
    (store, objects)
}

async fn recover(store: &Redis, objects: &[Committed]) {
    let rebuild = store.begin_rebuild().await.unwrap();
    append(store, objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    check(store, objects).await;
}

fn is_loss(error: &Error) -> bool {
    match error.kind {
        Kind::Lost => true,
        Kind::Unavailable => reason(error).contains("are rebuilding the metadata"),
        _ => false,
    }
}

/// Also in a folder so large that new rows lie elsewhere than old ones, a part of which was put again.
#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_primary_is_noticed_and_calls_nothing_missing() {
    let cluster = Cluster::start(3, 0).await;
    let (mut maker, mut fold, mut lost) = (Maker::new(id(), 1), Fold::default(), 0);
    let names: Vec<_> = (0..LARGE_ROWS + 2_000).map(|number| format!("{number:05}")).collect();
    let parts = names.chunks(500).chain(names[..2_000].chunks(500));
    let mut objects: Vec<_> = parts.map(|names| maker.files(names)).collect();
    objects.extend(objects_of(&mut maker));
    objects.iter().for_each(|object| fold.add(object));
    let asked = (0..600).map(|n| format!("{}/{n}", n % 200)).chain(names[..2_000].to_vec());
    let asked: Vec<_> = asked.map(path).collect();
    for flushed in cluster.servers() {
        cluster.flush().await;
        let store = filled(&cluster.url(), &objects).await;
        assert_eq!(store.damage().await.unwrap(), None);
        let keys = keys_of(&store).await;
        flushed.ask(&["FLUSHALL"]).await;
        for path in &asked {
            match store.lookup(id(), std::slice::from_ref(path)).await.as_deref() {
                Ok([Found::File(record)]) => assert_eq!(Some(record), fold.get(path), "{path}"),
                Ok(found) => panic!("{path}: {found:?}"),
                Err(error) => assert!(is_loss(error), "{error:?}"),
            }
        }
        // An object without its header is not taken off.
        for old in objects[..4].iter().map(|object| object.header().id()) {
            if ask(&store, Ask::to(&keys.header(old), "GET")).await == Value::Nil {
                lost += 1;
                store.retire(id(), &[old]).await.unwrap_err();
            }
        }
        // In whichever shard its root is, the dataset is not called missing either.
        store.outline(id()).await.unwrap_err();
        store.dataset(id()).await.unwrap_err();
        assert!(is_loss(&store.log(id()).await.unwrap_err()));
        store.list(id(), &whole()).await.unwrap_err();
        assert!(store.damage().await.unwrap().is_some());
        recover(&store, &objects).await;
    }
    assert!(lost > 0, "no header was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_fail_in_time_until_a_rebuild() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let server =
        Server::start(&["--appendonly", "yes", "--appendfsync", "always", "--dir", &dir]).await;
    let (patient, objects) = whole_store(&server.url()).await;
    let store = open_with(&server.url(), hasty()).await.unwrap();
    let asked = [path("1/1")];
    store.lookup(id(), &asked).await.unwrap();
    server.kill();
    let error = store.append(&objects[0]).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
    let clock = &store.shared.clock;
    let began = clock.monotonic();
    for answer in join_all((0..200).map(|_| store.lookup(id(), &asked))).await {
        assert_eq!(answer.unwrap_err().kind, Kind::Unavailable);
    }
    let waited = clock.monotonic() - began;
    assert!(waited < hasty().patience * 3, "they wait for each other: {waited:?}");
    let later = async {
        clock.sleep(Duration::from_millis(500)).await;
        server.run().await;
    };
    let (appended, ()) = tokio::join!(patient.append(&objects[0]), later);
    appended.unwrap();

    let error = store.lookup(id(), &asked).await.unwrap_err();
    assert!(error.kind == Kind::Unavailable && is_loss(&error), "{error:?}");
    assert_eq!(store.damage().await.unwrap(), Some(Damage::Shards));
    store.list(id(), &whole()).await.unwrap_err();
    recover(&store, &objects).await;
    // A process that never saw the damage.
    assert_eq!(open(&server.url()).await.damage().await.unwrap(), None);
}

/// At first of metadata of no store. Also a shard that is flushed again, and also
/// where a server has looked meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_during_a_rebuild_stays_told() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = (open(&cluster.url()).await, objects());
    for (before, again) in [(None, 1), (Some(1), 2), (Some(1), 1), (Some(1), 0)] {
        if let Some(before) = before {
            cluster.servers()[before].ask(&["FLUSHALL"]).await;
        }
        let rebuild = store.begin_rebuild().await.unwrap();
        assert_eq!(rebuild.damage, before.map(|_| Damage::Shards));
        append(&store, &objects).await;
        cluster.servers()[again].ask(&["FLUSHALL"]).await;
        if again > 0 {
            let paths: Vec<_> = (0..600).map(|n| path(format!("{}/{n}", n % 200))).collect();
            store.lookup(id(), &paths).await.unwrap_err();
            store.damage().await.unwrap();
        }
        let ended = store.end_rebuild(&rebuild, STORE).await;
        assert_eq!(ended.unwrap_err().kind, Kind::Lost);
        assert!(store.damage().await.unwrap().is_some());
        store.list(id(), &whole()).await.unwrap_err();
        recover(&store, &objects).await;
    }
}

/// Keeps S-02: as when somebody removes a key by hand, which leaves no sign.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_counts_right_after_appends_again() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let (mut objects, gone) = (objects_of(&mut maker), maker.files(["1/1"]));
    objects.push(maker.files(["1/1"]));
    let store = filled(&server.url(), objects.iter().chain([&gone])).await;
    // Its rows are not taken for those of purged objects.
    store.retire(id(), &[gone.header().id()]).await.unwrap();
    let log = keys_of(&store).await.log();
    // Whether its files were counted before or not.
    for is_counted in [false, true] {
        ask(&store, Ask::to(&log, "DEL")).await;
        assert_eq!(store.log(id()).await.unwrap_err().kind, Kind::Lost);
        assert_eq!(store.outline(id()).await.unwrap_err().kind, Kind::Lost);
        if !is_counted {
            assert_eq!(store.dataset(id()).await.unwrap_err().kind, Kind::Lost);
        }
        let other = open(&server.url()).await;
        for lost in [
            other.lookup(id(), &[path("1/1")]).await.unwrap_err(),
            other.list(id(), &whole()).await.unwrap_err(),
        ] {
            assert_eq!(lost.kind, Kind::Lost, "{lost:?}");
            assert!(reason(&lost).contains("recover --all"), "{lost:?}");
        }
        recover(&store, &objects).await;
        let root = store.shared.root(id()).await.unwrap().unwrap();
        assert!(root.counted.is_some(), "it is counted again and again");
    }
}

/// Keeps S-05: of metadata that was bound, what is gone was lost, though it looks like new.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_flushed_while_it_was_read_is_not_called_missing() {
    let server = Server::start(&[]).await;
    let (store, _) = whole_store(&server.url()).await;
    let shard = keys_of(&store).await.log().shard;
    let ask = || store.shared.ask_marks(std::iter::once(shard));
    let marks = store.shared.router.ask(ask()).await.unwrap();
    assert!(store.shared.are_whole(marks).await.unwrap());
    server.ask(&["FLUSHALL"]).await;
    let marks = store.shared.router.ask(ask()).await.unwrap();
    let failure = store.shared.are_whole(marks).await.unwrap_err();
    assert_eq!(failure.kind, Kind::Lost, "{failure}");
    // Nor is anything once the flush is known: no marks are asked for then.
    assert!(ask().is_empty());
    let calls = [
        store.lookup(id(), &[path("1/1")]).await.unwrap_err(),
        store.list(id(), &whole()).await.unwrap_err(),
        store.log(id()).await.unwrap_err(),
        store.outline(id()).await.unwrap_err(),
        store.dataset(id()).await.unwrap_err(),
    ];
    assert_eq!(calls.map(|error| error.kind), [Kind::Lost; 5]);
}

/// A walk that began before may lack rows, though the shard is whole again.
#[tokio::test(flavor = "multi_thread")]
async fn rows_read_before_a_rebuild_elsewhere_are_read_again() {
    let cluster = Cluster::start(3, 0).await;
    let (reader, objects) = whole_store(&cluster.url()).await;
    let other = open(&cluster.url()).await;
    let router = &reader.shared.router;
    let port_of = |shard: Shard| router.owner(shard).map(|node| node.port);
    let kept = [port_of(Shard::FIRST), port_of(keys_of(&reader).await.root().shard)];
    let flushed = cluster.servers().iter().find(|server| !kept.contains(&Some(server.port())));
    let flushed = flushed.expect("three primaries");
    let changes = reader.shared.assure().await.unwrap();
    flushed.ask(&["FLUSHALL"]).await;
    recover(&other, &objects).await;
    let shard = Shard::all().find(|shard| port_of(*shard) == Some(flushed.port())).unwrap();
    let marks = router.ask(reader.shared.ask_marks(std::iter::once(shard))).await.unwrap();
    assert!(!reader.shared.are_whole(marks).await.unwrap());
    assert!(!reader.shared.is_as(changes));
    check(&reader, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_lost_home_shard_are_removed_after_recovery() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = whole_store(&cluster.url()).await;
    let lost = keys_of(&store).await;
    let owner = store.shared.router.owner(lost.root().shard).unwrap();
    let owner = cluster.servers().iter().find(|server| server.port() == owner.port).unwrap();
    owner.ask(&["FLUSHALL"]).await;
    let rebuild = store.begin_rebuild().await.unwrap();
    let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..record() };
    store.put_dataset(&rebuilt).await.unwrap();
    append(&store, &objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    let of_epoch = format!("*{}*", lost.epoch);
    eventually("the rows of its first epoch are gone", || async {
        keys_like(&cluster, &of_epoch).await.is_empty()
    })
    .await;
    check(&store, &objects).await;
}

/// Another server has seen the recovery begin, and not yet that it has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_saw_a_rebuild_counts_everything_later() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let mut objects = objects_of(&mut maker);
    objects.push(maker.tombstone(&versions(&objects[0])[..1]));
    let store = filled(&server.url(), &objects).await;
    for counts in [false, true] {
        server.ask(&["FLUSHALL"]).await;
        let other = open(&server.url()).await;
        let rebuild = store.begin_rebuild().await.unwrap();
        append(&store, &objects).await;
        assert_eq!(other.damage().await.unwrap(), Some(Damage::Everything));
        other.lookup(id(), &[path("1/1")]).await.unwrap_err();
        store.end_rebuild(&rebuild, STORE).await.unwrap();
        let files = match counts {
            true => other.dataset(id()).await.unwrap().unwrap().files,
            false => other.list(id(), &whole()).await.unwrap().len() as u64,
        };
        assert_eq!(files, 599);
        check(&other, &objects).await;
    }
}

/// Its root went, and the word of it was lost: by a replica that took over without it, or as it was flushed.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_an_ended_dataset_go_without_its_record() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = whole_store(&cluster.url()).await;
    let shared = &store.shared;
    let of_it = format!("*{}*", id());
    let left = async || keys_like(&cluster, &of_it).await.len();
    let before = left().await;
    assert!(before > 100, "{before}");
    // One that lives is not taken for one that ended.
    shared.to_sweep(Left::All(id())).await.unwrap();
    shared.sweep().await.unwrap();
    assert_eq!(left().await, before);
    ask(&store, Ask::to(&keys::dropped(), "UNLINK")).await;
    // Where nothing is lost, no word is needed.
    store.drop_dataset(&record().name, DatasetId::from_bytes([3; 16])).await.unwrap();
    assert_eq!(ask(&store, Ask::to(&keys::dropped(), "HLEN")).await, Value::Int(0));
    let of = keys_of(&store).await;
    let mark = keys::shard_mark(Shard::FIRST);
    for key in [of.root(), of.log(), of.todo(), keys::names(), mark] {
        ask(&store, Ask::to(&key, "UNLINK")).await;
    }
    let gone = open(&cluster.url()).await;
    assert!(gone.damage().await.unwrap().is_some());
    shared.sweep().await.unwrap();
    assert!(left().await > 100, "nobody knows of it");
    gone.drop_dataset(&record().name, id()).await.unwrap();
    shared.sweep().await.unwrap();
    assert_eq!(left().await, 0);
    // Nor does the word take away what comes after it.
    recover(&gone, &objects).await;
    shared.sweep().await.unwrap();
    check(&gone, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_given_during_a_loss_exceed_earlier_ones() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url(), []).await;
    let now = |store: &Redis| Stamp::at(store.shared.clock.now()).get();
    let usual = store.stamp(id(), Stamp::new(now(&store))).await.unwrap();
    // By a server whose clock is ahead; then it is lost, as by a replica that took over too early.
    let minutes = 10 * 60 * 1_000_000;
    let lost = open(&server.url()).await;
    let lost = lost.stamp(id(), Stamp::new(now(&store) + minutes)).await.unwrap();
    assert!(lost > usual);
    ask(&store, Ask::to(&keys::root(id()), "HSET").arg("given").arg(usual.get())).await;
    let mark = keys::shard_mark(Shard::FIRST);
    ask(&store, Ask::to(&mark, "HSET").arg("run").arg("other:other")).await;
    assert!(store.damage().await.unwrap().is_some());
    let now = Stamp::new(now(&store));
    assert!(store.stamp(id(), now).await.unwrap() > lost, "an overwrite would be older");
}
