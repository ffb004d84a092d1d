//! What a Redis that lost something is asked and answers.

use super::{STORE, hasty, id, open, path, reason, record};
use crate::conformance::history::Maker;
use crate::conformance::model::Model;
use crate::redis::command::Ask;
use crate::redis::keys::{self, LARGE_ROWS};
use crate::redis::slots::Shard;
use crate::redis::sweep::Left;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{
    Damage, DatasetRecord, DatasetState, Error, Found, Kind, MetaStore, Redis, RedisOptions,
};

use dl_format::{ChunkId, Committed, DatasetId, DirPath, EntryVersion, Stamp};
use dl_runtime::SystemClock;
use redis::Value;
use std::sync::Arc;
use std::time::Duration;

use crate::{ListEntry, ListQuery};

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
    ListQuery::of(DirPath::ROOT, true, 10_000)
}

async fn append(store: &Redis, objects: &[Committed]) {
    store.put_dataset(&record()).await.unwrap();
    for object in objects {
        store.append(object).await.unwrap();
    }
}

async fn recover(store: &Redis, objects: &[Committed]) {
    let rebuild = store.begin_rebuild().await.unwrap();
    append(store, objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    let mut model = Model::default();
    for object in objects {
        model.add(object);
    }
    model.check(store, id(), 100).await;
}

/// That what a recovery ended with does not hide the loss of anything.
async fn is_still_lost(store: &Redis, ended: Result<(), Error>, objects: &[Committed]) {
    assert_eq!(ended.unwrap_err().kind, Kind::Lost);
    assert!(store.damage().await.unwrap().is_some());
    store.list(id(), &whole()).await.unwrap_err();
    recover(store, objects).await;
}

fn is_loss(error: &Error) -> bool {
    match error.kind {
        Kind::Lost => true,
        Kind::Unavailable => reason(error).contains("are rebuilding the metadata"),
        _ => false,
    }
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
                Err(error) => assert!(is_loss(&error), "{error:?}"),
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
}

/// A folder so large that new rows lie elsewhere than old ones, a part of it put again; gives the old
/// objects and the new ones.
async fn overwritten(url: &str) -> (Redis, Vec<ChunkId>, Vec<ChunkId>) {
    let store = open(url).await;
    store.bind(STORE).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..LARGE_ROWS + 2_000).map(|number| format!("{number:05}")).collect();
    let mut ids = Vec::new();
    for names in names.chunks(500).chain(names[..2_000].chunks(500)) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
        store.append(&object).await.unwrap();
        ids.push(object.header().id());
    }
    let new = ids.split_off(ids.len() - 4);
    ids.truncate(4);
    (store, ids, new)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_row_is_not_given_for_one_that_another_primary_lost() {
    let cluster = Cluster::start(3, 0).await;
    for flushed in 0..3 {
        cluster.flush().await;
        let (store, _, new) = overwritten(&cluster.url()).await;
        cluster.servers()[flushed].ask(&["FLUSHALL"]).await;
        for number in 0..2_000 {
            match store.lookup(id(), &[path(format!("{number:05}"))]).await.as_deref() {
                Ok([Found::File(record)]) => {
                    assert!(new.contains(&record.holder.chunk), "{number}")
                }
                Ok(found) => panic!("{number}: {found:?}"),
                Err(error) => assert!(is_loss(error), "{error:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_header_was_lost_is_not_taken_off() {
    let cluster = Cluster::start(3, 0).await;
    let mut lost = 0;
    for flushed in 0..3 {
        cluster.flush().await;
        let (store, old, _) = overwritten(&cluster.url()).await;
        let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
        cluster.servers()[flushed].ask(&["FLUSHALL"]).await;
        for object in old {
            let header = Ask::to(&keys.header(object), "GET");
            if store.shared.router.ask_one(header).await.unwrap() == Value::Nil {
                lost += 1;
                store.retire(id(), &[object]).await.unwrap_err();
            }
        }
    }
    assert!(lost > 0, "no header was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_nothing_is_served_until_a_rebuild() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().display().to_string();
    let server = Server::start(&["--appendonly", "yes", "--dir", &dir]).await;
    let (store, objects) = filled(&server.url()).await;
    server.kill();
    server.run().await;
    let error = store.lookup(id(), &[path("1/1")]).await.unwrap_err();
    let is_told = reason(&error).contains("are rebuilding the metadata");
    assert!(error.kind == Kind::Unavailable && is_told, "{error:?}");
    assert_eq!(store.damage().await.unwrap(), Some(Damage::Shards));
    store.list(id(), &whole()).await.unwrap_err();
    recover(&store, &objects).await;
    // A process that never saw the damage.
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
    let patient = RedisOptions { patience: Duration::from_secs(30), ..RedisOptions::default() };
    let clock = Arc::new(SystemClock::new());
    let patient = Redis::open(&server.url(), patient, clock).await.unwrap();
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
        clock.sleep(Duration::from_millis(500)).await;
        server.run().await;
    };
    let (appended, ()) = tokio::join!(patient.append(&objects[0]), later);
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

#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_while_other_things_are_mended_stays_told() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = filled(&cluster.url()).await;
    cluster.servers()[1].ask(&["FLUSHALL"]).await;
    let rebuild = store.begin_rebuild().await.unwrap();
    append(&store, &objects).await;
    cluster.servers()[2].ask(&["FLUSHALL"]).await;
    // As every server looks each second.
    store.damage().await.unwrap();
    let ended = store.end_rebuild(&rebuild, STORE).await;
    is_still_lost(&store, ended, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_is_flushed_again_while_it_is_mended_is_not_whole() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = filled(&cluster.url()).await;
    for again in [1, 0] {
        cluster.servers()[1].ask(&["FLUSHALL"]).await;
        let rebuild = store.begin_rebuild().await.unwrap();
        append(&store, &objects).await;
        cluster.servers()[again].ask(&["FLUSHALL"]).await;
        let ended = store.end_rebuild(&rebuild, STORE).await;
        is_still_lost(&store, ended, &objects).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_no_store_that_lost_a_shard_while_it_was_filled_is_not_bound() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = (open(&cluster.url()).await, objects());
    let rebuild = store.begin_rebuild().await.unwrap();
    assert_eq!(rebuild.damage, None);
    append(&store, &objects).await;
    cluster.servers()[1].ask(&["FLUSHALL"]).await;
    let paths: Vec<_> = (0..600).map(|n| path(format!("{}/{n}", n % 200))).collect();
    store.lookup(id(), &paths).await.unwrap_err();
    let ended = store.end_rebuild(&rebuild, STORE).await;
    assert_eq!(store.identity().await.unwrap(), None);
    is_still_lost(&store, ended, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rebuilds_that_begin_at_once_both_end_well() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = filled(&cluster.url()).await;
    let other = open(&cluster.url()).await;
    cluster.servers()[1].ask(&["FLUSHALL"]).await;
    let first = store.begin_rebuild().await.unwrap();
    let second = other.begin_rebuild().await.unwrap();
    append(&other, &objects).await;
    other.end_rebuild(&second, STORE).await.unwrap();
    append(&store, &objects).await;
    store.end_rebuild(&first, STORE).await.unwrap();
    recover(&store, &objects).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_set_back_is_noticed_and_rebuilt() {
    let cluster = Cluster::start(3, 0).await;
    let (store, mut objects) = filled(&cluster.url()).await;
    let mut maker = Maker::new(id(), 1);
    for _ in 0..objects.len() {
        maker.chunk([(&b"another"[..], 1)]);
    }
    let names: Vec<_> = (0..200).map(|number| format!("{number}/late")).collect();
    let late = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    for server in cluster.servers() {
        server.ask(&["SAVE"]).await;
    }
    store.append(&late).await.unwrap();
    objects.push(late);
    for lost in 0..3 {
        cluster.servers()[lost].kill();
        cluster.servers()[lost].run().await;
        assert_eq!(store.damage().await.unwrap(), Some(Damage::Shards), "{lost}");
        recover(&store, &objects).await;
    }
}

/// Keeps S-02: as when somebody removes a key by hand, which leaves no sign.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_gone_counts_right_when_its_objects_were_appended_again() {
    let server = Server::start(&[]).await;
    let (store, objects) = filled(&server.url()).await;
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let remove = async || {
        store.shared.router.ask_one(Ask::to(&keys.log(), "DEL")).await.unwrap();
        assert_eq!(store.log(id()).await.unwrap_err().kind, Kind::Lost);
        assert_eq!(store.outline(id()).await.unwrap_err().kind, Kind::Lost);
    };
    remove().await;
    assert_eq!(store.dataset(id()).await.unwrap_err().kind, Kind::Lost);
    recover(&store, &objects).await;
    assert_eq!(store.log(id()).await.unwrap().len(), objects.len());
    let info = store.dataset(id()).await.unwrap().unwrap();
    assert_eq!((info.objects, info.files), (objects.len() as u64, 600));
    let root = store.shared.root(id()).await.unwrap().unwrap();
    assert!(root.counted.is_some(), "it is counted again and again");
    // Whatever was counted.
    remove().await;
}

/// Keeps S-05: of metadata that was bound, what is gone was lost, though it looks like new.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_flushed_while_it_was_read_is_not_called_missing() {
    let server = Server::start(&[]).await;
    let (store, _) = filled(&server.url()).await;
    let shard = store.shared.keys_of(id()).await.unwrap().unwrap().log().shard;
    let ask = || store.shared.ask_marks(std::iter::once(shard));
    let stamps = store.shared.router.ask(ask()).await.unwrap();
    assert!(store.shared.are_whole(stamps).await.unwrap());
    server.ask(&["FLUSHALL"]).await;
    let stamps = store.shared.router.ask(ask()).await.unwrap();
    let failure = store.shared.are_whole(stamps).await.unwrap_err();
    assert_eq!(failure.kind, Kind::Lost, "{failure}");
    // Nor is anything once the flush is known: no stamps are asked for then.
    assert!(ask().is_empty());
    let calls = [
        store.lookup(id(), &[path("1/1")]).await.unwrap_err(),
        store.list(id(), &whole()).await.unwrap_err(),
        store.log(id()).await.unwrap_err(),
        store.outline(id()).await.unwrap_err(),
        store.dataset(id()).await.unwrap_err(),
    ];
    for error in calls {
        assert_eq!(error.kind, Kind::Lost, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_other_shards_had_of_a_home_that_was_lost_is_removed_after_a_recovery() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = filled(&cluster.url()).await;
    let lost = store.shared.keys_of(id()).await.unwrap().unwrap();
    let owner = store.shared.router.owner(lost.root().shard).unwrap();
    let owner = cluster.servers().iter().find(|server| server.port() == owner.port).unwrap();
    owner.ask(&["FLUSHALL"]).await;
    let rebuild = store.begin_rebuild().await.unwrap();
    let rebuilt = DatasetRecord { state: DatasetState::Recovering, ..record() };
    store.put_dataset(&rebuilt).await.unwrap();
    append(&store, &objects).await;
    store.end_rebuild(&rebuild, STORE).await.unwrap();
    let epoch = lost.epoch.to_string();
    eventually("the rows of its first epoch are gone", || async {
        let mut left = 0;
        for server in cluster.servers() {
            let all = "return table.concat(redis.call('KEYS', 'dl:{*}:*:*:*'), '\\n')";
            let keys = server.text(&["EVAL", all, "0"]).await;
            left += keys.lines().filter(|key| key.contains(&epoch)).count();
        }
        left == 0
    })
    .await;
    let mut model = Model::default();
    for object in &objects {
        model.add(object);
    }
    model.check(&store, id(), 100).await;
}

/// Another server has seen the recovery begin, and not yet that it has ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_looked_while_all_was_filled_in_lists_and_counts_all_of_it_afterwards() {
    let server = Server::start(&[]).await;
    let (store, objects) = filled(&server.url()).await;
    let mut maker = Maker::new(id(), 3);
    for _ in &objects {
        maker.chunk([(b"1/1".as_slice(), 1)]);
    }
    let (stamp, chunk) = (objects[0].stamp(), objects[0].header().id());
    let deleted = maker.tombstone(&[EntryVersion { stamp, chunk, entry: 0 }]);
    let objects: Vec<_> = objects.into_iter().chain([deleted]).collect();
    for counts in [false, true] {
        server.ask(&["FLUSHALL"]).await;
        let other = open(&server.url()).await;
        let rebuild = store.begin_rebuild().await.unwrap();
        append(&store, &objects).await;
        assert_eq!(other.damage().await.unwrap(), Some(Damage::Everything));
        other.lookup(id(), &[path("1/1")]).await.unwrap_err();
        store.end_rebuild(&rebuild, STORE).await.unwrap();
        if counts {
            assert_eq!(other.dataset(id()).await.unwrap().unwrap().files, 599);
        } else {
            let listed = other.list(id(), &whole()).await.unwrap();
            let files = listed.iter().filter(|entry| matches!(entry, ListEntry::File(..)));
            assert_eq!(files.count(), 599);
        }
    }
}

/// Its root went, and the word of it was lost: by a replica that took over without it, or as it was flushed.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_dataset_that_ended_goes_also_without_word_of_it() {
    let cluster = Cluster::start(3, 0).await;
    let (store, objects) = filled(&cluster.url()).await;
    let shared = &store.shared;
    let left = async || {
        let mut left = 0;
        for server in cluster.servers() {
            let Value::Array(keys) = server.ask(&["KEYS", &format!("*{}*", id())]).await else {
                panic!("keys")
            };
            left += keys.len();
        }
        left
    };
    let before = left().await;
    assert!(before > 100, "{before}");
    // One that lives is not taken for one that ended.
    shared.to_sweep(Left::All(id())).await.unwrap();
    shared.sweep().await.unwrap();
    assert_eq!(left().await, before);
    shared.router.ask_one(Ask::to(&keys::dropped(), "UNLINK")).await.unwrap();
    // Where nothing is lost, no word is needed.
    store.drop_dataset(&record().name, DatasetId::from_bytes([3; 16])).await.unwrap();
    let words = shared.router.ask_one(Ask::to(&keys::dropped(), "HLEN")).await.unwrap();
    assert_eq!(words, Value::Int(0));
    let keys = shared.keys_of(id()).await.unwrap().unwrap();
    for key in [keys.root(), keys.log(), keys.todo(), keys::names(), keys::shard_mark(Shard::FIRST)]
    {
        shared.router.ask_one(Ask::to(&key, "UNLINK")).await.unwrap();
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
    let mut model = Model::default();
    for object in &objects {
        model.add(object);
    }
    model.check(&gone, id(), 100).await;
}

/// A name outlives its dataset where only the shard of the dataset was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_that_was_lost_holds_its_name_against_no_other() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let other = DatasetRecord { id: DatasetId::from_bytes([9; 16]), ..record() };
    let refused = store.put_dataset(&other).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict, "{refused:?}");
    let lose =
        "for _, key in ipairs(redis.call('KEYS', 'dl:*:ds:*')) do redis.call('DEL', key) end";
    server.ask(&["EVAL", lose, "0"]).await;
    store.put_dataset(&other).await.unwrap();
    assert_eq!(store.record_named(&other.name).await.unwrap(), Some(other));
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_given_while_something_is_lost_are_above_those_that_were() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.bind(STORE).await.unwrap();
    let now = |store: &Redis| Stamp::at(store.shared.clock.now()).get();
    store.put_dataset(&record()).await.unwrap();
    let usual = store.stamp(id(), Stamp::new(now(&store))).await.unwrap();
    // By a server whose clock is ahead; then it is lost, as by a replica that took over too early.
    let minutes = 10 * 60 * 1_000_000;
    let lost = open(&server.url()).await;
    let lost = lost.stamp(id(), Stamp::new(now(&store) + minutes)).await.unwrap();
    assert!(lost > usual);
    let root = String::from_utf8(keys::root(id()).bytes).unwrap();
    server.ask(&["HSET", &root, "given", &usual.get().to_string()]).await;
    let mark = String::from_utf8(keys::shard_mark(Shard::FIRST).bytes).unwrap();
    server.ask(&["HSET", &mark, "run", "other:other"]).await;
    assert!(store.damage().await.unwrap().is_some());
    let now = Stamp::new(now(&store));
    assert!(store.stamp(id(), now).await.unwrap() > lost, "an overwrite would be older");
}
