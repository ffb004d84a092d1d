//! How a dataset lies in Redis.

use dl_format::{Committed, DatasetId, DatasetName, DirPath, FilePath, FileRecord, Stamp};
use futures::StreamExt;
use futures::stream;
use redis::Value;

use super::{
    append, as_left_by_a_dead_maker, ask, calls, check, filled, id, is_large, keys_like, keys_of,
    open, path, record, whole,
};
use crate::conformance::history::{Maker, versions};
use crate::redis::command::Ask;
use crate::redis::keys::{self, LARGE_ROWS};
use crate::redis::rows::file;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Appended, DatasetRecord, Datasets, Found, ListQuery, MetaStore, Redis};

/// Rows in the first bucket of the root.
async fn rows_of(store: &Redis) -> u64 {
    let rows = Ask::to(&keys_of(store).await.rows(0, b""), "ZCARD");
    redis::from_redis_value(ask(store, rows).await).unwrap()
}

/// The first file of a chunk.
fn first_of(object: &Committed) -> FileRecord {
    FileRecord::of(object, &object.header().entries().next().unwrap())
}

/// One folder with more files than one bucket takes, in no order, some of them folders too, put by several
/// writers.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_folder_is_spread_and_listed_in_order() {
    let cluster = Cluster::start(3, 0).await;
    let store = filled(&cluster.url(), []).await;
    let mut maker = Maker::new(id(), 1);
    let count = 8 * LARGE_ROWS;
    let mut names: Vec<_> = (0..count).map(|n| format!("{:05}", n * 7_919 % count)).collect();
    names.extend((0..50).map(|n| format!("{:05}/x", n * 300)));
    let mut objects: Vec<_> = names.chunks(1_000).map(|names| maker.files(names)).collect();
    let appended = stream::iter(&objects).map(|object| store.append(object));
    appended.buffer_unordered(8).for_each(async |appended| _ = appended.unwrap()).await;
    // No node has more than half of it, and the first bucket of the root no more than it takes and that
    // the folder is large.
    let mut bytes: Vec<u64> = Vec::new();
    for server in cluster.servers() {
        let sum = "local sum = 0; for _, key in ipairs(redis.call('KEYS', 'dl:*:[cdl]*')) do \
                   sum = sum + redis.call('MEMORY', 'USAGE', key) end; return sum";
        bytes.push(redis::from_redis_value(server.ask(&["EVAL", sum, "0"]).await).unwrap());
    }
    let most = bytes.iter().max().unwrap();
    assert!(most * 2 < bytes.iter().sum(), "{bytes:?}");
    assert!(rows_of(&store).await <= LARGE_ROWS + 1);
    check(&store, &objects).await;
    // Overwritten: half of the old versions are in the first bucket, the new ones are not.
    for names in names.chunks(3_000).take(2) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 2)));
        store.append(&object).await.unwrap();
        objects.push(object);
    }
    check(&open(&cluster.url()).await, &objects).await;
}

/// As tiny files are put, of which one chunk has many.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_large_from_its_first_object_is_spread() {
    let server = Server::start(&[]).await;
    let object = Maker::new(id(), 1).files((0..2 * LARGE_ROWS).map(|number| number.to_string()));
    let store = filled(&server.url(), [&object]).await;
    check(&store, [&object]).await;
    check(&open(&server.url()).await, [&object]).await;
    assert_eq!(rows_of(&store).await, 1, "only that it is large");
}

/// Also one that has more rows than its first bucket takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_does_not_become_large_by_what_it_has() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..LARGE_ROWS).map(|number| format!("{number:05}")).collect();
    let objects: Vec<_> = names.chunks(1_500).map(|names| maker.files(names)).collect();
    let store = filled(&server.url(), &objects).await;
    let rows = keys_of(&store).await.rows(0, b"");
    for more in [0, 9] {
        for number in 0..more {
            let row = file(format!("x{number}").as_bytes(), &first_of(&objects[0]));
            ask(&store, Ask::to(&rows, "ZADD").arg(0).arg(row)).await;
        }
        // Again, and other versions of the same names.
        for object in &objects {
            assert_eq!(store.append(object).await.unwrap(), Appended::Known);
        }
        store.append(&maker.files(&names[..900])).await.unwrap();
        assert_eq!(rows_of(&store).await, LARGE_ROWS + more);
        assert!(!is_large(&store).await);
    }
    store.append(&maker.files(["y"])).await.unwrap();
    assert!(is_large(&store).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_no_row_before_the_folders_above_it_have_theirs() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url(), []).await;
    let above = keys_of(&store).await.rows(0, b"").bytes;
    let above = str::from_utf8(&above).unwrap();
    let mut maker = Maker::new(id(), 1);
    let objects = [maker.files(["a/b/c"]), maker.files(["a/b/d"])];
    // What refuses the rows there, as a full Redis would.
    server.ask(&["SET", above, "no rows"]).await;
    store.append(&objects[0]).await.unwrap_err();
    server.ask(&["DEL", above]).await;
    let found = store.lookup(id(), &[path("a/b/c")]).await.unwrap();
    assert_eq!(found, [Found::Missing]);
    store.append(&objects[1]).await.unwrap();
    let found = store.lookup(id(), &[path("a/b/d")]).await.unwrap();
    assert!(matches!(found[..], [Found::File(_)]), "{found:?}");
    assert_eq!(store.list(id(), &whole()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_settled_when_all_its_rows_are_there() {
    let server = Server::start(&[]).await;
    let object = Maker::new(id(), 1).files(["a"]);
    let store = filled(&server.url(), [&object]).await;
    let now = Stamp::at(store.shared.clock.now()).get() / 1_000;
    as_left_by_a_dead_maker(&store, &object, now, &[b""]).await;
    let info = async || store.dataset(id()).await.unwrap().unwrap();
    assert!(!info().await.is_settled);
    eventually("it is settled", || async { info().await.is_settled }).await;
    check(&store, [&object]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_the_contents_of_a_dropped_dataset() {
    let cluster = Cluster::start(3, 0).await;
    let mut maker = Maker::new(id(), 1);
    let objects: Vec<_> = (0..30).map(|number| maker.files([format!("{number}/x")])).collect();
    let (store, other) = (filled(&cluster.url(), []).await, open(&cluster.url()).await);
    append(&other, &objects).await;
    store.drop_dataset(&record().name, id()).await.unwrap();
    let of_it = format!("*{}*", id());
    eventually("the sweep is done", || async { keys_like(&cluster, &of_it).await.is_empty() })
        .await;
    // Another server knew the dataset, and its id comes back.
    store.put_dataset(&record()).await.unwrap();
    let object = maker.files(["new"]);
    other.append(&object).await.unwrap();
    check(&other, [&object]).await;
    check(&store, [&object]).await;
}

/// A listing asks for its own folder's rows and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_reads_its_own_folder_only() {
    let server = Server::start(&[]).await;
    let object = Maker::new(id(), 1).files((0..300).map(|n| format!("{}/{}", n % 100, n)));
    let store = filled(&server.url(), [&object]).await;
    let before = calls(&server, "zrangebylex").await;
    let query = ListQuery::of(DirPath::new(&b"7"[..]).unwrap(), false, 100);
    let entries = store.list(id(), &query).await.unwrap();
    let paths: Vec<FilePath> = entries.iter().map(|entry| entry.path().clone()).collect();
    assert_eq!(paths, ["7/107", "7/207", "7/7"].map(path));
    assert_eq!(calls(&server, "zrangebylex").await - before, 1);
}

/// Also what is left of one whose root is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_dropped_by_name_and_a_lost_one_has_none() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let (name, other) = (record().name, DatasetName::new("b").unwrap());
    let second =
        DatasetRecord { name: other.clone(), id: DatasetId::from_bytes([2; 16]), ..record() };
    store.put_dataset(&second).await.unwrap();
    // Whoever looks at all names fails.
    ask(&store, Ask::to(&keys::names(), "HSET").arg("c").arg("x")).await;
    for is_lost in [false, true] {
        store.put_dataset(&record()).await.unwrap();
        if is_lost {
            ask(&store, Ask::to(&keys::root(id()), "UNLINK")).await;
        }
        store.drop_dataset(&name, id()).await.unwrap();
        assert!(store.shared.named(&name).await.unwrap().is_none(), "{is_lost}");
    }
    store.drop_dataset(&other, id()).await.unwrap();
    // Nor does a lost one hold its name against others.
    store.put_dataset(&record()).await.unwrap();
    ask(&store, Ask::to(&keys::root(id()), "UNLINK")).await;
    let third = DatasetRecord { id: DatasetId::from_bytes([9; 16]), ..record() };
    store.put_dataset(&third).await.unwrap();
    assert_eq!(store.record_named(&name).await.unwrap(), Some(third));
    assert_eq!(store.record_named(&other).await.unwrap(), Some(second), "it is of another id");
}

/// Redis keeps the header of a tombstone without the zeros that fill its page.
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_headers_are_without_what_fills_them() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 2);
    let object = maker.files(["x", "y"]);
    let tombstone = maker.tombstone(&versions(&object)[..1]);
    let store = filled(&server.url(), [&object, &tombstone]).await;
    for object in [&object, &tombstone] {
        let header = keys_of(&store).await.header(object.header().id());
        let length = ask(&store, Ask::to(&header, "STRLEN")).await;
        assert!(matches!(length, Value::Int(64..512)), "{length:?} bytes");
    }
}
