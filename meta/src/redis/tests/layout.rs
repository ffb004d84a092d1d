//! How a dataset lies in Redis.

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use dl_format::{Committed, DatasetId, DatasetName, DirPath, EntryVersion, FilePath, FileRecord};
use dl_runtime::{Clock, SystemClock};
use redis::Value;
use tokio::task::JoinSet;

use super::{id, open, path, record};
use crate::conformance::history::Maker;
use crate::conformance::model::Model;
use crate::redis::command::Ask;
use crate::redis::keys::{self, LARGE_ROWS};
use crate::redis::rows::file;
use crate::redis::testing::{Cluster, Server, eventually};
use crate::{Appended, DatasetRecord, Found, ListQuery, MetaStore, Redis};

fn query(recursive: bool, limit: usize) -> ListQuery {
    ListQuery::of(DirPath::ROOT, recursive, limit)
}

/// Bytes of all keys of a node.
async fn bytes_of(server: &Server) -> u64 {
    let Value::Array(keys) = server.ask(&["KEYS", "dl:*:[cdl]*"]).await else { return 0 };
    let mut total = 0;
    for key in keys {
        let Value::BulkString(key) = key else { continue };
        let key = String::from_utf8(key).unwrap();
        let Value::Int(bytes) = server.ask(&["MEMORY", "USAGE", &key]).await else { continue };
        total += bytes.unsigned_abs();
    }
    total
}

/// Rows in one bucket of the root.
async fn rows_of(store: &Redis, bucket: u8) -> u64 {
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let rows = Ask::to(&keys.rows(bucket, b""), "ZCARD");
    let Value::Int(rows) = store.shared.router.ask_one(rows).await.unwrap() else { return 0 };
    rows.unsigned_abs()
}

/// No node has more than half of it, and the first bucket of the root no more than it takes.
async fn check_spread(cluster: &Cluster, store: &Redis) {
    let mut bytes = Vec::new();
    for server in cluster.servers() {
        bytes.push(bytes_of(server).await);
    }
    let most = bytes.iter().max().copied().unwrap_or_default();
    assert!(most * 2 < bytes.iter().sum(), "{bytes:?}");
    // One of them says that the folder is large.
    assert!(rows_of(store, 0).await <= LARGE_ROWS + 1);
}

/// The first file of a chunk.
fn first_of(object: &Committed) -> FileRecord {
    FileRecord::of(object, &object.header().entries().next().unwrap())
}

/// One folder with more files than one bucket takes, in no order, some of them folders too.
#[tokio::test(flavor = "multi_thread")]
async fn a_large_folder_is_spread_over_all_primaries_and_listed_in_order() {
    let cluster = Cluster::start(3, 0).await;
    let store = open(&cluster.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let (mut maker, mut model) = (Maker::new(id(), 1), Model::default());
    let count = 8 * LARGE_ROWS;
    let mut names: Vec<_> = (0..count).map(|n| format!("{:05}", n * 7_919 % count)).collect();
    names.extend((0..50).map(|n| format!("{:05}/x", n * 300)));
    for names in names.chunks(1_000) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
        store.append(&object).await.unwrap();
        model.add(&object);
    }
    check_spread(&cluster, &store).await;
    model.check(&store, id(), 3_000).await;
    // Overwritten: half of the old versions are in the first bucket, the new ones are not.
    for names in names.chunks(3_000).take(2) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 2)));
        store.append(&object).await.unwrap();
        model.add(&object);
    }
    model.check(&open(&cluster.url()).await, id(), 5_000).await;
}

/// Files of 40 kB in one folder, put by several writers.
#[tokio::test(flavor = "multi_thread")]
async fn of_ten_thousand_files_in_one_folder_no_primary_holds_more_than_half() {
    let cluster = Cluster::start(3, 0).await;
    let store = Arc::new(open(&cluster.url()).await);
    store.put_dataset(&record()).await.unwrap();
    let (mut maker, mut model) = (Maker::new(id(), 1), Model::default());
    let names: Vec<_> = (0..10_000).map(|number| format!("{number:08}.jpg")).collect();
    let mut writers = JoinSet::new();
    for names in names.chunks(100) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
        model.add(&object);
        let store = Arc::clone(&store);
        writers.spawn(async move { store.append(&object).await.unwrap() });
    }
    writers.join_all().await;
    check_spread(&cluster, &store).await;
    model.check(&*store, id(), 3_000).await;
}

/// As tiny files are put, of which one chunk has many.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_is_large_with_its_first_object_is_not_put_into_one_bucket() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let (mut maker, mut model) = (Maker::new(id(), 1), Model::default());
    let names: Vec<_> = (0..2 * LARGE_ROWS).map(|number| format!("{number}")).collect();
    let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.append(&object).await.unwrap();
    model.add(&object);
    model.check(&store, id(), 3_000).await;
    model.check(&open(&server.url()).await, id(), 3_000).await;
    assert_eq!(rows_of(&store, 0).await, 1, "only that it is large");
}

/// Also one that has more rows than its first bucket takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_folder_does_not_become_large_by_what_it_has() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let (mut maker, mut model) = (Maker::new(id(), 1), Model::default());
    let names: Vec<_> = (0..LARGE_ROWS).map(|number| format!("{number:05}")).collect();
    let mut objects = Vec::new();
    for names in names.chunks(1_500) {
        let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
        store.append(&object).await.unwrap();
        model.add(&object);
        objects.push(object);
    }
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    for more in [0, 9] {
        for number in 0..more {
            let row = file(format!("x{number}").as_bytes(), &first_of(&objects[0]));
            let row = Ask::to(&keys.rows(0, b""), "ZADD").arg(0).arg(row);
            store.shared.router.ask_one(row).await.unwrap();
        }
        // Again, and other versions of the same names.
        for object in &objects {
            assert_eq!(store.append(object).await.unwrap(), Appended::Known);
        }
        let object = maker.chunk(names[..900].iter().map(|name| (name.as_bytes(), 2)));
        store.append(&object).await.unwrap();
        model.add(&object);
        assert_eq!(rows_of(&store, 0).await, LARGE_ROWS + more);
        assert!(!store.shared.root(id()).await.unwrap().unwrap().is_large);
    }
    let object = maker.chunk([(&b"y"[..], 1)]);
    store.append(&object).await.unwrap();
    assert!(store.shared.root(id()).await.unwrap().unwrap().is_large);
}

/// However many deletes there are.
#[tokio::test(flavor = "multi_thread")]
async fn the_deleted_entries_of_a_chunk_are_one_bitmap() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let (mut maker, mut model) = (Maker::new(id(), 1), Model::default());
    let names: Vec<_> = (0..300).map(|number| format!("{number}")).collect();
    let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.append(&object).await.unwrap();
    model.add(&object);
    let chunk = object.header().id();
    for entry in (0..300).filter(|entry| entry % 3 > 0) {
        let tombstone = maker.tombstone(&[EntryVersion { entry, ..first_of(&object).version }]);
        store.append(&tombstone).await.unwrap();
        model.add(&tombstone);
    }
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let length = Ask::to(&keys.deletions(chunk), "STRLEN");
    assert_eq!(store.shared.router.ask_one(length).await.unwrap(), Value::Int(38));
    model.check(&store, id(), 99).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_maker_died_behind_the_commit_point_is_brought_after_it() {
    let server = Server::start(&[]).await;
    let (dying, store) = (open(&server.url()).await, open(&server.url()).await);
    store.put_dataset(&record()).await.unwrap();
    let object = Maker::new(id(), 1).chunk([(&b"a/b"[..], 1)]);
    dying.append(&object).await.unwrap();
    // As it would be, had it died between the two steps.
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let todo = Ask::to(&keys.todo(), "HSET").arg(object.header().id().as_bytes()).arg("x 1");
    let asks =
        vec![todo, Ask::to(&keys.rows(0, b""), "UNLINK"), Ask::to(&keys.rows(0, b"a"), "UNLINK")];
    store.shared.router.ask(asks).await.unwrap();
    let found = store.lookup(id(), &[path("a/b"), path("a")]).await.unwrap();
    assert!(matches!(found[..], [Found::File(_), Found::Folder]), "{found:?}");
    assert_eq!(store.list(id(), &query(true, 9)).await.unwrap().len(), 1);
    assert_eq!(store.dataset(id()).await.unwrap().unwrap().files, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_has_no_row_before_the_folders_above_it_have_theirs() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let above = keys.rows(0, b"").bytes;
    let above = str::from_utf8(&above).unwrap();
    let mut maker = Maker::new(id(), 1);
    let objects = [maker.chunk([(&b"a/b/c"[..], 1)]), maker.chunk([(&b"a/b/d"[..], 1)])];
    // What refuses the rows there, as a full Redis would.
    server.ask(&["SET", above, "no rows"]).await;
    store.append(&objects[0]).await.unwrap_err();
    server.ask(&["DEL", above]).await;
    let found = store.lookup(id(), &[path("a/b/c")]).await.unwrap();
    assert!(matches!(found[..], [Found::Missing]), "{found:?}");
    store.append(&objects[1]).await.unwrap();
    let found = store.lookup(id(), &[path("a/b/d")]).await.unwrap();
    assert!(matches!(found[..], [Found::File(_)]), "{found:?}");
    assert_eq!(store.list(id(), &query(true, 9)).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_settled_when_the_rows_of_all_its_objects_are_there() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let object = Maker::new(id(), 1).chunk([(&b"a"[..], 1)]);
    store.append(&object).await.unwrap();
    // As it would be, had its maker died a moment ago.
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let now = SystemClock::new().now().duration_since(UNIX_EPOCH).unwrap().as_millis();
    let todo = Ask::to(&keys.todo(), "HSET").arg(object.header().id().as_bytes());
    let asks = vec![todo.arg(format!("x {now}")), Ask::to(&keys.rows(0, b""), "UNLINK")];
    store.shared.router.ask(asks).await.unwrap();
    let info = async || store.dataset(id()).await.unwrap().unwrap();
    assert!(!info().await.is_settled);
    eventually("it is settled", || async { info().await.is_settled }).await;
    assert_eq!(info().await.files, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_marks_and_word_of_it_stays_of_a_dropped_dataset() {
    let cluster = Cluster::start(3, 0).await;
    let (store, other) = (open(&cluster.url()).await, open(&cluster.url()).await);
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(id(), 1);
    for number in 0..30 {
        let object = maker.chunk([(format!("{number}/x").as_bytes(), 1)]);
        store.append(&object).await.unwrap();
    }
    store.drop_dataset(&record().name, id()).await.unwrap();
    let left = async || {
        let mut left = 0;
        for server in cluster.servers() {
            let Value::Array(keys) = server.ask(&["KEYS", "*"]).await else { continue };
            left += keys.len();
        }
        left
    };
    eventually("the sweep is done", || async { left().await == 1 }).await;
    // Another server knew the dataset, and its id comes back.
    store.put_dataset(&record()).await.unwrap();
    let object = maker.chunk([(&b"new"[..], 1)]);
    other.append(&object).await.unwrap();
    let mut model = Model::default();
    model.add(&object);
    model.check(&other, id(), 3).await;
    model.check(&store, id(), 3).await;
}

/// A listing asks for its own folder's rows and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_reads_its_own_folder_only() {
    let server = Server::start(&[]).await;
    let store: Arc<Redis> = Arc::new(open(&server.url()).await);
    store.put_dataset(&record()).await.unwrap();
    let names: Vec<_> = (0..300).map(|n| format!("{}/{}", n % 100, n)).collect();
    let object = Maker::new(id(), 1).chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.append(&object).await.unwrap();
    let dir = DirPath::new(&b"7"[..]).unwrap();
    let ranges = async || {
        let info = server.text(&["INFO", "commandstats"]).await;
        let line = info.lines().find(|line| line.starts_with("cmdstat_zrangebylex:"));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = ranges().await;
    let entries = store.list(id(), &ListQuery { dir, ..query(false, 100) }).await.unwrap();
    let paths: Vec<FilePath> = entries.iter().map(|entry| entry.path().clone()).collect();
    assert_eq!(paths, [path("7/107"), path("7/207"), path("7/7")]);
    assert_eq!(ranges().await - before, 1);
}

/// Also what is left of one whose root is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_dataset_is_dropped_by_its_name_and_no_other_name_is_looked_at() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    let (name, other) = (record().name, DatasetName::new("b").unwrap());
    let second =
        DatasetRecord { name: other.clone(), id: DatasetId::from_bytes([2; 16]), ..record() };
    store.put_dataset(&second).await.unwrap();
    // Whoever looks at all names fails.
    let unreadable = Ask::to(&keys::names(), "HSET").arg("c").arg("x");
    store.shared.router.ask_one(unreadable).await.unwrap();
    for is_lost in [false, true] {
        store.put_dataset(&record()).await.unwrap();
        if is_lost {
            store.shared.router.ask_one(Ask::to(&keys::root(id()), "UNLINK")).await.unwrap();
        }
        store.drop_dataset(&name, id()).await.unwrap();
        assert!(store.shared.named(&name).await.unwrap().is_none(), "{is_lost}");
    }
    store.drop_dataset(&other, id()).await.unwrap();
    assert_eq!(store.record_named(&other).await.unwrap(), Some(second), "it is of another id");
}

/// A tombstone fills a page; what is kept of it is what it says. Copies that were kept whole are read, too.
#[tokio::test(flavor = "multi_thread")]
async fn copies_of_headers_are_without_what_fills_them() {
    let server = Server::start(&[]).await;
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(id(), 2);
    let object = maker.chunk([(&b"x"[..], 1), (&b"y"[..], 1)]);
    let tombstone = maker.tombstone(&[first_of(&object).version]);
    let keys = store.shared.keys_of(id()).await;
    let keys = keys.unwrap().unwrap();
    for object in [&object, &tombstone] {
        store.append(object).await.unwrap();
        let length = Ask::to(&keys.header(object.header().id()), "STRLEN");
        let Value::Int(length) = store.shared.router.ask_one(length).await.unwrap() else {
            panic!()
        };
        assert!((64..512).contains(&length), "{length} bytes");
    }
    // A file lies in it.
    let ids = [object.header().id(), tombstone.header().id()];
    assert_eq!(store.retire(id(), &ids[..1]).await.unwrap_err().kind, crate::Kind::Conflict);
    for object in [&object, &tombstone] {
        let whole =
            Ask::to(&keys.header(object.header().id()), "SET").arg(&object.header().raw()[..]);
        store.shared.router.ask_one(whole).await.unwrap();
    }
    assert_eq!(store.retire(id(), &ids[..1]).await.unwrap_err().kind, crate::Kind::Conflict);
    store
        .append(&maker.tombstone(&[EntryVersion { entry: 1, ..first_of(&object).version }]))
        .await
        .unwrap();
    store.retire(id(), &ids[..1]).await.unwrap();
    assert_eq!(store.objects(id(), None, 9).await.unwrap().len(), 2);
}
