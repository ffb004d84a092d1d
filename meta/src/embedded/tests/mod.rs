//! What the embedded store adds to the contract: restarts, crashes, full disks, locks, bounds.

mod crash;
mod damage;

use std::time::{Duration, UNIX_EPOCH};

use dl_runtime::{ManualClock, SystemClock};

use super::volatile::VolatileFile as Disk;
use super::*;
use crate::conformance;
use crate::conformance::history::Maker;
use crate::conformance::model::Model;

const DATASET: DatasetId = DatasetId::from_bytes([1; 16]);

fn record() -> DatasetRecord {
    conformance::record("a", 1, 1)
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// Small enough that a few objects fill the tail: two make a batch durable, four make appends
/// wait. Time never passes, so that nothing else does.
async fn open_on(disk: &Disk) -> Result<(Embedded, Stop), Error> {
    let options = EmbeddedOptions { tail_bytes: 16 << 10, ..EmbeddedOptions::default() };
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let (name, disk) = ("embedded:test".to_owned(), disk.clone());
    Embedded::open_with(name, move || disk.opener(), options, clock).await
}

/// The first calls after a failure may fail, too.
async fn recovers(store: &Embedded) {
    let mut tries = 0;
    while store.dataset(DATASET).await.is_err() {
        tries += 1;
        assert!(tries < 10, "it never recovers");
    }
}

/// Ends without a close, as a crash does, and waits until the file is let go.
async fn abandon(store: Embedded, disk: &Disk) {
    drop(store);
    while disk.is_open() {
        clock().sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract() {
    let parent = tempfile::tempdir().unwrap();
    let count = std::cell::Cell::new(0);
    conformance::run(async || {
        count.set(count.get() + 1);
        let dir = parent.path().join(count.get().to_string());
        let opened = Embedded::open(&dir, EmbeddedOptions::default(), clock()).await;
        let store: Arc<dyn MetaStore> = Arc::new(opened.unwrap().0);
        store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_keeps_the_contract_with_a_tail_of_four_headers() {
    conformance::run(async || {
        let options = EmbeddedOptions {
            tail_bytes: 16 << 10,
            cache_bytes: 1 << 20,
            sync_interval: Duration::from_millis(1),
            ..EmbeddedOptions::default()
        };
        let (name, opener) = ("embedded:test".to_owned(), || Disk::default().opener());
        let opened = Embedded::open_with(name, opener, options, clock());
        let store: Arc<dyn MetaStore> = Arc::new(opened.await.unwrap().0);
        store
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unfinished_foreign_and_newer_metadata_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Embedded::open(dir.path(), EmbeddedOptions::default(), clock());
    let file = dir.path().join("meta.redb");
    std::fs::write(&file, vec![b'x'; 10_000]).unwrap();
    assert_eq!(open().await.unwrap_err().kind, Kind::Corrupt);
    std::fs::rename(&file, dir.path().join("meta.redb.new")).unwrap();
    let (store, stop) = open().await.unwrap();
    assert_eq!(stop, Stop::Fresh);
    store.close().await.unwrap();
    let database = redb::Database::create(&file).unwrap();
    let transaction = database.begin_write().unwrap();
    transaction.open_table(FACTS).unwrap().insert(FORMAT_KEY, b"dl-meta 2".as_slice()).unwrap();
    transaction.commit().unwrap();
    drop(database);
    assert_eq!(open().await.unwrap_err().kind, Kind::Unsupported);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_told_and_loses_nothing_that_was_acknowledged() {
    let disk = Disk::default();
    let (store, _) = open_on(&disk).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let history = Maker::new(DATASET, 2).history(30);
    let (mut done, mut refused) = (Vec::new(), None);
    for object in &history {
        // The tail takes some more, then says why it can't.
        disk.set_full(done.len() > 4);
        match store.append(object).await {
            Ok(_) => done.push(object),
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let error = refused.expect("the disk is full");
    assert!(matches!(error.kind, Kind::Full | Kind::Unavailable), "{error:?}");
    assert!(store.dataset(DATASET).await.is_err(), "an answer would lack the tail");
    // Not that the file is shut after the first failure: that would be worth another try.
    for _ in 0..3 {
        let error = store.put_dataset(&DatasetRecord { generation: 2, ..record() }).await;
        assert_eq!(error.unwrap_err().kind, Kind::Full);
    }

    disk.set_full(false);
    recovers(&store).await;
    Model::of(done).check(&store, DATASET, 5).await;
    for object in &history {
        store.append(object).await.unwrap();
    }
    Model::of(&history).check(&store, DATASET, 5).await;
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_question_about_a_dropped_dataset_is_answered() {
    let disk = Disk::default();
    let (store, _) = open_on(&disk).await.unwrap();
    for seed in 0..200 {
        store.put_dataset(&record()).await.unwrap();
        store.append(&Maker::new(DATASET, seed).files(["x"])).await.unwrap();
        let name = record().name;
        let (objects, dropped) =
            tokio::join!(store.objects(DATASET, None, 1), store.drop_dataset(&name, DATASET));
        dropped.unwrap();
        let found = objects.map(|found| found.len()).map_err(|error| error.kind);
        assert!(matches!(found, Ok(1) | Err(Kind::Missing)), "{found:?}");
    }
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_wait_for_the_disk_when_the_tail_is_full() {
    let disk = Disk::default();
    let (store, _) = open_on(&disk).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    for object in Maker::new(DATASET, 3).history(60) {
        store.append(&object).await.unwrap();
        let bytes = store.shared.state().bytes();
        assert!(bytes <= 20 << 10, "{bytes} bytes in the tail");
    }
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tail_becomes_durable_without_further_calls() {
    let (disk, time) = (Disk::default(), Arc::new(ManualClock::new(UNIX_EPOCH)));
    let standing: Arc<dyn Clock> = Arc::<ManualClock>::clone(&time);
    let (name, same) = ("embedded:test".to_owned(), disk.clone());
    let opener = move || same.opener();
    let opened = Embedded::open_with(name, opener, EmbeddedOptions::default(), standing).await;
    let (store, _) = opened.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let object = Maker::new(DATASET, 4).files(["x"]);
    store.append(&object).await.unwrap();
    while store.shared.state().bytes() > 0 {
        time.advance(Duration::from_millis(100));
        clock().sleep(Duration::from_millis(1)).await;
    }
    abandon(store, &disk).await;
    disk.lose_power(&dl_runtime::SeededRandom::new(0));
    let (store, stop) = open_on(&disk).await.unwrap();
    assert_eq!(stop, Stop::Unclean);
    assert_eq!(store.append(&object).await.unwrap(), Appended::Known);
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_looked_up_file_is_known_until_a_change() {
    let (store, _) = open_on(&Disk::default()).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(DATASET, 6);
    let paths = [FilePath::new("x").unwrap()];
    for length in [1, 2] {
        store.append(&maker.chunk([(&b"x"[..], length)])).await.unwrap();
        for _ in 0..2 {
            let found = store.lookup(DATASET, &paths).await.unwrap();
            let Found::File(file) = found[0] else { panic!("{found:?}") };
            assert_eq!(file.length, length as u64);
            assert_eq!(store.shared.rows.find(DATASET, &paths).found, [Some(found[0])]);
        }
    }
    store.drop_dataset(&record().name, DATASET).await.unwrap();
    assert_eq!(store.shared.rows.find(DATASET, &paths).found, [None]);
    store.close().await.unwrap();
}
