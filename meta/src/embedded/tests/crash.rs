//! Cuts at every write of the file, with unsynced writes lost at random, and restarts.

use dl_format::ChunkId;
use dl_runtime::SeededRandom;

use super::*;

/// What was acknowledged before the cut.
#[derive(Debug, Default)]
struct Acknowledged {
    opened: bool,
    bound: bool,
    put: bool,
    stamp: Option<Stamp>,
    closed: bool,
}

/// A short life of a store; stops at the first error.
async fn live(disk: &Disk, history: &[Committed]) -> Acknowledged {
    let mut done = Acknowledged::default();
    let Ok((store, _)) = open_on(disk).await else { return done };
    done.opened = true;
    done.bound = store.bind(StoreId::from_bytes([5; 16])).await.is_ok();
    done.put = done.bound && store.put_dataset(&record()).await.is_ok();
    if done.put {
        for (number, object) in history.iter().enumerate() {
            if store.append(object).await.is_err() {
                break;
            }
            if number % 2 == 0 && store.dataset(DATASET).await.is_err() {
                break;
            }
        }
        done.stamp = store.stamp(DATASET, Stamp::new(1 << 40)).await.ok();
        done.closed = store.close().await.is_ok();
    }
    abandon(store, disk).await;
    done
}

/// After a restart: nothing durable is lost, what is there is consistent, and appending all that
/// the chunk store has makes it whole.
async fn check(disk: &Disk, history: &[Committed], done: &Acknowledged) {
    let (mut store, stop) = open_on(disk).await.unwrap();
    if done.opened && !done.closed {
        assert_ne!(stop, Stop::Fresh, "{done:?}");
        // A close whose answer was lost may have been done.
    } else if done.closed {
        assert_eq!(stop, Stop::Clean);
    }
    if done.bound {
        assert!(store.identity().await.unwrap().is_some());
    }
    let known = store.record(DATASET).await.unwrap();
    assert!(known.is_some() || !done.put, "an acknowledged dataset is gone");
    if let Some(known) = known {
        // Until it is put again.
        let state = match stop {
            Stop::Clean => DatasetState::Live,
            _ => DatasetState::Recovering,
        };
        assert_eq!(known, DatasetRecord { state, ..record() });
        if stop != Stop::Clean {
            store.close().await.unwrap();
            let (again, stop) = open_on(disk).await.unwrap();
            assert_eq!(stop, Stop::Clean);
            assert_eq!(again.record(DATASET).await.unwrap(), Some(known));
            store = again;
        }
        let log = store.objects(DATASET, None, usize::MAX).await.unwrap();
        let log: Vec<ChunkId> = log.into_iter().map(|object| object.id).collect();
        let is_known = |object: &&Committed| log.contains(&object.header().id());
        Model::of(history.iter().filter(is_known)).check(&store, DATASET, 5).await;
        if done.closed {
            assert!(history.iter().all(|object| is_known(&object)), "a clean stop lacks objects");
            assert!(store.stamp(DATASET, Stamp::new(0)).await.ok() > done.stamp);
        }
    }
    store.put_dataset(&record()).await.unwrap();
    for object in history {
        store.append(object).await.unwrap();
    }
    Model::of(history).check(&store, DATASET, 5).await;
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_loses_only_what_the_chunk_store_restores() {
    let history = Maker::new(DATASET, 6).history(10);
    for cut in 0.. {
        let disk = Disk::default();
        disk.cut.arm(cut);
        let done = live(&disk, &history).await;
        let was_cut = disk.cut.is_cut();
        assert!(was_cut || done.closed, "cut {cut}: {done:?}");
        disk.lose_power(&SeededRandom::new(cut));
        check(&disk, &history, &done).await;
        if !was_cut {
            assert!(cut > 50, "only {cut} writes: the scenario does nothing");
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_crash_while_rolling_forward_changes_nothing() {
    let history = Maker::new(DATASET, 7).history(10);
    for cut in (0..).step_by(7) {
        let disk = Disk::default();
        disk.cut.arm(60);
        live(&disk, &history).await;
        disk.lose_power(&SeededRandom::new(cut));
        disk.cut.arm(cut);
        let done = live(&disk, &history).await;
        let was_cut = disk.cut.is_cut();
        disk.lose_power(&SeededRandom::new(cut));
        check(&disk, &history, &done).await;
        if !was_cut {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unclosed_file_is_opened_without_a_walk() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Embedded::open(dir.path(), EmbeddedOptions::default(), clock()).await;
    let (store, _) = opened.unwrap();
    store.put_dataset(&record()).await.unwrap();
    for object in Maker::new(DATASET, 8).history(20) {
        store.append(&object).await.unwrap();
    }
    while store.shared.state().bytes() > 0 {
        clock().sleep(Duration::from_millis(10)).await;
    }
    // What a crash leaves, as nothing writes now.
    let left = dir.path().join("left.redb");
    std::fs::copy(dir.path().join("meta.redb"), &left).unwrap();
    let mut builder = redb::Database::builder();
    builder.set_repair_callback(|repair| repair.abort());
    builder.open(&left).unwrap();
    store.close().await.unwrap();
}
