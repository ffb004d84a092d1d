//! Recoveries of many datasets, and beside deletions.

use std::sync::Arc;
use std::time::Duration;

use dl_format::{ChunkIdMaker, DatasetId, Deletions, EntryVersion, NameRecord, ObjectKind};
use dl_meta::{DatasetRecord, DatasetState, Datasets, Found, Stop};
use dl_runtime::fault::Fault;
use dl_runtime::{Clock, SystemClock};
use dl_store::StoreExt;

use super::*;
use crate::shared::context::object_key;
use crate::testing::{Rig, chunk, dataset, first_name, path, rig, until_met};
use crate::write::commit;

/// [`super::rebuild_all`] without a look at its progress.
async fn rebuild_all(context: &ServerContext) -> Result<u64, Error> {
    super::rebuild_all(context, &RebuildMetrics::default()).await
}

mod redis;

const SECOND: Option<Fault<dl_store::Kind>> = Some(Fault::Delay(Duration::from_secs(1)));

fn problems(reports: &[RecoverProgress]) -> Vec<&String> {
    reports.iter().flat_map(|report| &report.problems).collect()
}

async fn state(rig: &Rig, id: DatasetId) -> Option<DatasetState> {
    rig.context.meta.record(id).await.unwrap().map(|record| record.state)
}

#[tokio::test]
async fn an_unclean_stop_checks_small_datasets_together() {
    let rig = rig().await;
    for number in 0..64 {
        let id = rig.create(&format!("ds-{number:02}")).await;
        rig.store_chunk(id, number).await;
    }
    // The names, then each dataset twice: its name and its objects.
    rig.store.script("list", vec![SECOND; 129]);
    let (adopted, seconds) = rig.run(recover_unlogged(&rig.context)).await;
    assert_eq!(adopted.unwrap(), 64);
    assert!(seconds <= 20, "{seconds} s for 64 datasets");
}

#[tokio::test]
async fn large_folders_are_listed_together_and_small_ones_once() {
    let mut took = Vec::new();
    for count in [found::MANY - 1, found::MANY] {
        let rig = rig().await;
        let id = rig.create("ds").await;
        rig.store_chunks(id, count).await;
        let lists = || rig.counters.counts().lists;
        // All objects that the log lacks have to be read.
        let before = lists();
        assert_eq!(rig.adopt().await, count as u64);
        let of_empty_log = lists() - before;
        rig.store.script("list", vec![SECOND; 300]);
        let (before, read) = (lists(), rig.counters.counts().ranges);
        let (adopted, seconds) = rig.run(recover_unlogged(&rig.context)).await;
        assert_eq!(adopted.unwrap(), 0);
        assert!(rig.counters.counts().ranges - read < 10, "headers were read");
        took.push((lists() - before - of_empty_log, seconds));
    }
    let [(small, one_by_one), (large, at_once)] = took[..] else { panic!("{took:?}") };
    assert_eq!((small, large), (0, 255));
    // 32 at a time.
    let more = at_once - one_by_one;
    assert!((7..=9).contains(&more), "{more} s for 256 folders");
}

#[tokio::test]
async fn a_recovery_reads_the_beginning_of_a_chunk_and_no_more() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    let mut ids = ChunkIdMaker::new([1; 9]);
    let mut stored = 0;
    for number in 0..4 {
        let names = (0..7).map(|file| format!("{number}/{file}"));
        let sealed = chunk(ids.next(rig.context.clock.now()), id, names, &[7; 500_000]);
        stored += rig.store_sealed(&sealed).await.1.len() as u64;
    }
    let before = rig.counters.counts().read_bytes;
    assert_eq!(rig.adopt().await, 4);
    let read = rig.counters.counts().read_bytes - before;
    // With the name of the dataset.
    let most = 4 * crate::datasets::headers::FIRST_READ + 1_000;
    assert!(stored > 40 * most && (1..=most).contains(&read), "{read}");
}

#[tokio::test]
async fn many_recoveries_hold_no_more_headers_than_one() {
    let rig = rig().await;
    for number in 0..8 {
        let id = rig.create(&format!("ds-{number}")).await;
        for chunk in 0..32 {
            rig.store_chunk(id, number * 32 + chunk).await;
        }
    }
    let reads = rig.counters.counts().ranges;
    rig.meta.script("append", vec![Some(Fault::Delay(Duration::from_secs(1))); 256]);
    let (adopted, seconds) = rig.run(recover_unlogged(&rig.context)).await;
    assert_eq!(adopted.unwrap(), 256);
    assert!(rig.counters.counts().ranges - reads >= 256);
    // 64 at a time.
    assert!((4..=6).contains(&seconds), "{seconds} s for 256 appends");
}

#[tokio::test]
async fn a_dataset_deleted_while_set_aside_stays_deleted() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let (progress, _told) = mpsc::channel(1);
    let shares = Shares::default();
    let progress = Listener::new(&rig.context, &progress);
    let recovery = DatasetRecovery {
        reports_lost: true,
        context: &rig.context,
        reads: Reads::Everything,
        since: 0,
        is_refused: true,
        progress: &progress,
        shares: &shares,
    };
    // It has read the record, and writes it only after the deletion.
    rig.meta.script("put_dataset", [Some(Fault::Delay(Duration::from_secs(5)))]);
    let mut aside = std::pin::pin!(recovery.set_aside(&name));
    assert!(futures::poll!(&mut aside).is_pending());
    rig.delete("ds", id).await.unwrap();
    assert_eq!(state(&rig, id).await, None);
    assert!(rig.run(aside).await.0);
    assert_eq!(rig.memory.records().await.unwrap(), [], "it came back");

    let id = rig.create("ds").await;
    assert!(recovery.set_aside(&name).await);
    assert_eq!(state(&rig, id).await, Some(DatasetState::Recovering));
}

/// Keeps S-02: the files that a damaged tombstone deleted don't come back. A damaged chunk costs its own files.
#[tokio::test]
async fn a_dataset_with_a_damaged_tombstone_is_refused_after_a_loss() {
    // The checksum of the header, and the length of the object.
    for (is_tombstone, is_cut) in [(true, false), (true, true), (false, false), (false, true)] {
        let rig = rig().await;
        let id = rig.create("ds").await;
        let chunk = rig.store_chunk(id, 1).await;
        rig.adopt().await;
        let [Found::File(file)] = rig.context.meta.lookup(id, &[path("file-1")]).await.unwrap()[..]
        else {
            panic!("no file")
        };
        let mut deletions = Deletions::default();
        deletions.insert(&EntryVersion { chunk, ..file.version });
        let tombstone = ChunkIdMaker::new([9; 9]).next(rig.context.clock.now());
        commit::put_tombstone(&rig.context, id, tombstone, &deletions).await.unwrap();
        let key = match is_tombstone {
            true => object_key(id, tombstone, ObjectKind::Tombstone),
            false => object_key(id, chunk, ObjectKind::Chunk),
        };
        let mut bytes = rig.context.store.read_all(&key).await.unwrap().to_vec();
        match is_cut {
            true => bytes.push(0),
            false => bytes[100] ^= 1,
        }
        rig.replace(&key, bytes).await;
        rig.memory.drop_dataset(&dataset("ds"), id).await.unwrap();
        let (ended, reports) = rig.run(rig.recover(None)).await.0;
        ended.unwrap();
        let told = problems(&reports);
        let refused = told.iter().any(|problem| problem.contains("move them away for good"));
        assert!(told[0].contains(key.as_str()) && refused == is_tombstone, "{told:?}");
        let expected = if is_tombstone { DatasetState::Recovering } else { DatasetState::Live };
        assert_eq!(state(&rig, id).await, Some(expected), "{told:?}");
    }
}

#[tokio::test]
async fn only_a_requested_recovery_reads_logged_objects() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..8 {
        rig.store_chunk(id, number).await;
    }
    let ranges = || rig.counters.counts().ranges;
    assert_eq!(rig.adopt().await, 8);
    let read = ranges();
    rig.adopt().await;
    // The name.
    let names = ranges() - read;
    assert!(names < 8, "{names}");
    let (ended, reports) = rig.run(rig.recover(None)).await.0;
    ended.unwrap();
    assert!(ranges() >= read + 2 * names + 8, "{} after {read}", ranges());
    let last = reports.last().unwrap();
    assert_eq!((last.listed, last.checked, last.adopted), (8, 8, 0));
    // All of a dataset that was set aside is read: some objects may never have come back. After an unclean
    // stop all datasets are set aside, and the objects of their logs are there.
    let record = rig.memory.record(id).await.unwrap().unwrap();
    for (by, is_all_read) in [("a user", true), ("a loss", true), ("a start", false)] {
        let aside = DatasetRecord { state: DatasetState::Recovering, ..record.clone() };
        rig.memory.put_dataset(&aside).await.unwrap();
        let read = ranges();
        match by {
            "a user" => rig.run(rig.recover(None)).await.0.0.unwrap(),
            "a loss" => drop(rig.run(rebuild_all(&rig.context)).await.0.unwrap()),
            _ => drop(rig.adopt().await),
        }
        assert_eq!(ranges() >= read + 8, is_all_read, "{} after {read}, by {by}", ranges());
        assert_eq!(state(&rig, id).await, Some(DatasetState::Live));
    }
}

/// The store can't be read so often: as often as a name is tried.
fn failing() -> [Option<Fault<dl_store::Kind>>; 4] {
    [Some(Fault::Before(dl_store::Kind::Unavailable)); 4]
}

/// Deletes a dataset, and gives the metadata its record back, like a Redis that is set back.
async fn delete_and_set_back(rig: &Rig, name: &str) -> DatasetId {
    let id = rig.create(name).await;
    let record = rig.memory.record(id).await.unwrap().unwrap();
    rig.delete(name, id).await.unwrap();
    rig.memory.put_dataset(&record).await.unwrap();
    id
}

#[tokio::test]
async fn a_returned_deleted_dataset_ends_without_its_record() {
    let rig = rig().await;
    let id = delete_and_set_back(&rig, "ds").await;
    let used_again = rig.create("other").await;
    // Both generations of the name, and the one of the other.
    rig.store.script("read", failing().into_iter().chain(failing()).chain(failing()));
    rig.run(rebuild_all(&rig.context)).await.0.unwrap();
    assert!(rig.store.is_used_up("read"), "the names were not tried again");
    assert_eq!(state(&rig, id).await, None);
    assert!(state(&rig, used_again).await.is_some());
}

#[tokio::test]
async fn rows_of_deleted_datasets_are_dropped_from_damaged_metadata() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.delete("ds", id).await.unwrap();
    for is_damaged in [true, false] {
        rig.meta.script("drop_dataset", [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
        let done = living::end_deleted(&rig.context, is_damaged).await;
        let is_asked = rig.meta.is_used_up("drop_dataset");
        assert_eq!((done.is_err(), is_asked), (is_damaged, is_damaged));
    }
}

#[tokio::test]
async fn a_deleted_dataset_that_returns_ends_with_the_recovery() {
    let rig = rig().await;
    rig.meta.script("begin_rebuild", [Some(Fault::Delay(Duration::from_secs(5)))]);
    let mut again = Box::pin(rebuild_all(&rig.context));
    until_met(&rig.meta, "begin_rebuild", &mut again).await;
    let id = delete_and_set_back(&rig, "ds").await;
    rig.run(again).await.0.unwrap();
    assert_eq!(state(&rig, id).await, None);
}

#[tokio::test]
async fn an_unreadable_object_is_named_and_the_rest_is_recovered() {
    let rig = rig().await;
    for (name, number) in ["a", "b"].iter().zip(0..) {
        let id = rig.create(name).await;
        rig.store_chunk(id, number).await;
    }
    let before = rig.counters.counts().ranges;
    // The identity, and each name three times; then the headers, of which the first one fails, and fails
    // again behind the identity each time.
    let fails = Some(Fault::Before(dl_store::Kind::Unavailable));
    let reads = [None; 7].into_iter().chain([fails, None]);
    rig.store.script("read", reads.chain([[None, fails]; 3].into_iter().flatten()));
    let ((ended, reports), seconds) = rig.run(rig.recover(None)).await;
    ended.unwrap();
    assert!(rig.store.is_used_up("read") && rig.counters.counts().ranges > before);
    assert!((13..30).contains(&seconds), "{seconds} s");
    let adopted: u64 = reports.iter().filter(|step| step.done).map(|step| step.adopted).sum();
    let told = problems(&reports);
    assert_eq!((adopted, told.len()), (1, 2), "{told:?}");
    assert!(told[1].contains("can't be read: make them readable"), "{told:?}");
}

/// Keeps S-14: a dataset whose name can't be written again is served.
#[tokio::test]
async fn a_name_that_can_not_be_written_again_is_told() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    rig.context.store.delete(&first_name("ds")).await.unwrap();
    let full = || rig.store.script("create", [Some(Fault::Before(dl_store::Kind::Full))]);
    full();
    let refused = rig.run(rig.recover(Some("ds"))).await.0.0.unwrap_err();
    assert_eq!(refused.kind, Kind::Full, "{}", refused.chain());
    // A purge names the remedy.
    let purged = rig.run(adopt_unlogged(&rig.context, &name)).await.0.unwrap_err();
    assert_eq!(purged.kind, Kind::NeedsRecovery, "{}", purged.chain());
    assert!(purged.chain().contains("dlcmd recover dl://ds"), "{}", purged.chain());
    full();
    let (ended, reports) = rig.run(rig.recover(None)).await.0;
    ended.unwrap();
    assert!(problems(&reports)[0].contains("write the name"), "{reports:?}");
    assert_eq!(state(&rig, id).await, Some(DatasetState::Live));
    rig.run(rig.recover(Some("ds"))).await.0.0.unwrap();
    let named = names::newest(&rig.context, &name).await.unwrap().unwrap();
    assert_eq!((named.generation, named.record.dataset), (1, id));
}

/// Keeps S-02 and S-26: metadata that is full keeps a server from starting, and a recovery from
/// passing for a whole one, until there is room.
#[tokio::test]
async fn what_there_is_no_room_for_is_told_and_brought_back_later() {
    let rig = rig().await;
    for number in 0..3 {
        let id = rig.create(&format!("ds-{number}")).await;
        rig.store_chunk(id, number).await;
    }
    let full = || rig.meta.script("append", [Some(Fault::Before(dl_meta::Kind::Full))]);
    full();
    let refused = rig.run(crate::prepare(&rig.context, Stop::Unclean)).await.0.unwrap_err();
    assert!(refused.kind == Kind::Full && refused.chain().contains("make room"));
    full();
    assert_eq!(rig.run(rig.recover(None)).await.0.0.unwrap_err().kind, Kind::Full);
    rig.run(rig.recover(None)).await.0.0.unwrap();
    rig.run(crate::prepare(&rig.context, Stop::Unclean)).await.0.unwrap();
    let all = rig.context.meta.remnants().await.unwrap();
    assert!(all.len() == 3 && all.iter().all(|record| record.state == DatasetState::Live));
    for record in all {
        assert_eq!(rig.context.meta.dataset(record.id).await.unwrap().unwrap().objects, 1);
    }
}

/// Keeps S-02: nothing in the metadata would show that the dataset is missing.
#[tokio::test]
async fn a_rebuild_without_room_for_a_record_is_incomplete() {
    for has_room in [false, true] {
        let rig = rig().await;
        let id = rig.create("ds").await;
        rig.memory.drop_dataset(&dataset("ds"), id).await.unwrap();
        let full = Some(Fault::Before(dl_meta::Kind::Full));
        // The second write is the one of the record that is set aside.
        rig.meta.script("put_dataset", if has_room { vec![full] } else { vec![full; 2] });
        rig.meta.script("end_rebuild", [Some(Fault::Delay(Duration::ZERO))]);
        assert_eq!(rig.run(rebuild_all(&rig.context)).await.0.unwrap_err().kind, Kind::Full);
        assert_eq!(rig.meta.is_used_up("end_rebuild"), has_room, "it counts as whole");
        let expected = has_room.then_some(DatasetState::Recovering);
        assert_eq!(state(&rig, id).await, expected);
    }
}

#[tokio::test]
async fn a_moved_name_is_reported_and_the_other_rewritten() {
    let rig = rig().await;
    let (name, moved, id) = (dataset("ds"), dataset("moved"), rig.create("ds").await);
    let record = names::newest(&rig.context, &name).await.unwrap().unwrap().record;
    rig.context.store.delete(&first_name("ds")).await.unwrap();
    assert!(names::create(&rig.context, &moved, 1, &record).await.unwrap());
    let (_, reports) = rig.run(rig.recover(Some("moved"))).await.0;
    let told = problems(&reports);
    assert!(told.len() == 1 && told[0].contains("copied or moved"), "{told:?}");
    rig.context.store.delete(&first_name("moved")).await.unwrap();
    let (_, reports) = rig.run(rig.recover(None)).await.0;
    assert_eq!(problems(&reports), Vec::<&String>::new());
    let named = names::newest(&rig.context, &name).await.unwrap().unwrap();
    assert_eq!(named.record, record);
    assert_eq!(
        rig.context.meta.record_named(&name).await.unwrap().map(|record| record.id),
        Some(id)
    );
}

/// Keeps S-02: a dataset that the metadata lost while it was recovered was not deleted.
#[tokio::test]
async fn a_dataset_lost_during_its_recovery_is_not_deleted() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.store_chunk(id, 1).await;
    rig.meta.script("append", [Some(Fault::Delay(Duration::from_secs(1)))]);
    let mut recovered = Box::pin(rig.recover(Some("ds")));
    until_met(&rig.meta, "append", &mut recovered).await;
    rig.memory.drop_dataset(&dataset("ds"), id).await.unwrap();
    let error = rig.run(recovered).await.0.0.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_changed_name_is_refused_until_its_object_is_removed() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let named = names::newest(&rig.context, &name).await.unwrap().unwrap();
    let other = NameRecord { dataset: DatasetId::from_bytes([9; 16]), ..named.record };
    rig.replace(&first_name("ds"), other.encode()).await;
    let restore =
        async || living::restore_names(&rig.context, None, &Caller::Everybody).await.unwrap();
    let failed = restore().await;
    let [(told, error)] = &failed[..] else { panic!("{failed:?}") };
    assert!(*told == name && error.chain().contains("names/ds/00000001"), "{}", error.chain());
    rig.context.store.delete(&first_name("ds")).await.unwrap();
    assert!(restore().await.is_empty());
    let named = names::newest(&rig.context, &name).await.unwrap().unwrap();
    assert_eq!(named.record.dataset, id);
}

#[tokio::test]
async fn a_name_does_not_return_to_a_dataset_being_deleted() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    rig.context.store.delete(&first_name("ds")).await.unwrap();
    rig.store.script("create", [SECOND]);
    let restoring = living::restore_names(&rig.context, None, &Caller::Everybody);
    let both = futures::future::join(restoring, rig.memory.drop_dataset(&name, id));
    let (restored, dropped) = rig.run(both).await.0;
    dropped.unwrap();
    assert!(restored.unwrap().is_empty() && rig.store.is_used_up("create"));
    assert!(names::newest(&rig.context, &name).await.unwrap().is_none());
}

/// Keeps S-02 and S-47: the name and the metadata of the dataset are lost, and the dataset is not forgotten.
#[tokio::test]
async fn a_dataset_that_nobody_knows_any_more_is_told_by_its_id() {
    let rig = rig().await;
    let (lost, kept, gone) =
        (rig.create("lost").await, rig.create("kept").await, rig.create("gone").await);
    rig.delete("gone", gone).await.unwrap();
    for (id, number) in [lost, kept, gone].into_iter().zip(0..) {
        rig.store_chunk(id, number).await;
    }
    rig.context.store.delete(&first_name("lost")).await.unwrap();
    rig.memory.drop_dataset(&dataset("lost"), lost).await.unwrap();
    let mut told_of = Vec::new();
    for one in [None, Some("kept")] {
        let (ended, reports) = rig.run(rig.recover(one)).await.0;
        ended.unwrap();
        told_of.extend(reports.into_iter().filter(|report| !report.problems.is_empty()));
    }
    let [RecoverProgress { dataset, problems, .. }] = &told_of[..] else { panic!("{told_of:?}") };
    assert_eq!((dataset, problems.len()), (&lost.to_string(), 1));
    assert!(problems[0].contains("put its name back"), "{problems:?}");
}

/// Keeps S-02: a slow search in the chunk store keeps no recovery from ending.
#[tokio::test]
async fn a_long_search_is_awaited_in_bounded_time() {
    for fails in [false, true] {
        let rig = rig().await;
        rig.create("ds").await;
        // The search lists first.
        rig.store.script("list", [Some(Fault::Delay(Duration::from_secs(3_600)))]);
        if fails {
            rig.meta.script("damage", [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
        }
        let ((recovered, _), seconds) = rig.run(rig.recover(None)).await;
        assert_eq!(recovered.is_err(), fails, "{recovered:?}");
        let bounds = if fails { 0..5 } else { 25..60 };
        assert!(bounds.contains(&seconds), "{seconds} s");
    }
}
