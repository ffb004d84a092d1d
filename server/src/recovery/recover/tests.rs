//! Recoveries of many datasets, and beside deletions.

use std::sync::Arc;
use std::time::Duration;

use dl_format::{Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, DatasetId, FilePath, Stamp};
use dl_meta::{DatasetRecord, DatasetState, Datasets, Found, Stop};
use dl_runtime::fault::Fault;
use dl_runtime::{Clock, SystemClock};

use super::*;
use crate::testing::{Rig, dataset, rig};

mod redis;

/// All that is told to be wrong.
async fn problems(told: &mut mpsc::Receiver<Reply<RecoverProgress>>) -> Vec<String> {
    let mut problems = Vec::new();
    while let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await {
        problems.extend(step.problems);
    }
    problems
}

#[tokio::test]
async fn an_unclean_stop_costs_many_small_datasets_their_latency_together() {
    let rig = rig().await;
    let mut made = Vec::new();
    for number in 0..64 {
        let id = rig.create(&format!("ds-{number:02}")).await;
        rig.store_chunk(id, number).await;
        made.push(id);
    }
    // The names, then each dataset twice: its name and its objects.
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    rig.store.script("list", vec![second; 129]);
    let (adopted, seconds) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), 64);
    assert!(seconds <= 20, "{seconds} s for 64 datasets");
    for id in made {
        assert_eq!(rig.parts.meta.dataset(id).await.unwrap().unwrap().objects, 1);
    }
}

#[tokio::test]
async fn folders_of_a_large_dataset_are_listed_at_once_and_a_small_one_costs_one_listing() {
    let mut took = Vec::new();
    for count in [found::MANY - 1, found::MANY] {
        let rig = rig().await;
        let id = rig.create("ds").await;
        rig.store_chunks(id, count).await;
        let lists = || rig.counters.counts().lists;
        // What the log lacks has to be read, however much it is.
        let before = lists();
        assert_eq!(rig.run(roll_forward(&rig.parts)).await.0.unwrap(), count as u64);
        let of_empty_log = lists() - before;
        rig.store.script("list", vec![Some(Fault::Delay(Duration::from_secs(1))); 300]);
        let (before, read) = (lists(), rig.counters.counts().ranges);
        let (adopted, seconds) = rig.run(roll_forward(&rig.parts)).await;
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
        let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
        for file in 0..7 {
            let path = FilePath::new(format!("{number}/{file}")).unwrap();
            writer.append(&path, Attributes { mode: 0o644, mtime: 1 }, &[7; 500_000]).unwrap();
        }
        let sealed = writer.seal(ids.next(rig.parts.clock.now()), id);
        stored += rig.store_sealed(&sealed).await.1.len() as u64;
    }
    let read = || rig.counters.counts().read_bytes;
    let before = read();
    assert_eq!(rig.run(roll_forward(&rig.parts)).await.0.unwrap(), 4);
    // With the name of the dataset.
    let most = 4 * crate::datasets::headers::FIRST_READ + 1_000;
    assert!(stored > 40 * most && (1..=most).contains(&(read() - before)), "{}", read() - before);
}

#[tokio::test]
async fn a_recovery_of_many_large_datasets_holds_no_more_headers_than_that_of_one() {
    let rig = rig().await;
    for number in 0..8 {
        let id = rig.create(&format!("ds-{number}")).await;
        for chunk in 0..32 {
            rig.store_chunk(id, number * 32 + chunk).await;
        }
    }
    let second = Some(Fault::Delay(Duration::from_secs(1)));
    let (reads, appends) = (rig.counters.counts().ranges, 256);
    rig.meta.script("append", vec![second; appends]);
    let (adopted, seconds) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), appends as u64);
    assert!(rig.counters.counts().ranges - reads >= appends as u64);
    // 64 at a time.
    assert!((4..=6).contains(&seconds), "{seconds} s for {appends} appends");
}

#[tokio::test]
async fn a_dataset_that_is_deleted_while_it_is_set_aside_stays_deleted() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let (progress, _told) = mpsc::channel(1);
    let shares = Shares::default();
    let progress = Listener::new(&rig.parts, &progress);
    let recovery = Recovery {
        reports_missing: true,
        parts: &rig.parts,
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
    rig.delete(name.as_str(), id).await.unwrap();
    assert_eq!(rig.memory.record(id).await.unwrap(), None);
    let (is_aside, _) = rig.run(aside).await;
    assert!(is_aside);
    assert_eq!(rig.memory.record(id).await.unwrap(), None, "it came back");
    assert_eq!(rig.memory.records().await.unwrap(), []);

    let id = rig.create("ds").await;
    assert!(recovery.set_aside(&name).await);
    let record = rig.memory.record(id).await.unwrap().unwrap();
    assert_eq!(record.state, DatasetState::Recovering);
    assert!(record.created > Stamp::new(0));
}

#[tokio::test]
async fn only_a_recovery_that_is_asked_for_reads_again_what_the_log_has() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..8 {
        rig.store_chunk(id, number).await;
    }
    let ranges = || rig.counters.counts().ranges;
    let (adopted, _) = rig.run(roll_forward(&rig.parts)).await;
    assert_eq!(adopted.unwrap(), 8);
    let read = ranges();
    rig.run(roll_forward(&rig.parts)).await.0.unwrap();
    // The name.
    let names = ranges() - read;
    assert!(names < 8, "{names}");
    let (progress, mut told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: None, since: None };
    let asked = recover(&rig.parts, request.clone(), &Caller::Everybody, &progress);
    rig.run(asked).await.0.unwrap();
    drop(progress);
    assert!(ranges() >= read + 2 * names + 8, "{} after {read}", ranges());
    let mut last = None;
    while let Some(Reply::More(end) | Reply::Last(end)) = told.recv().await {
        last = Some((end.listed, end.checked, end.adopted));
    }
    assert_eq!(last, Some((8, 8, 0)));
    // Whoever recovers a dataset that was set aside reads all of it: some may never have come back.
    // After an unclean stop all datasets are, and what their logs know is there.
    let record = rig.memory.record(id).await.unwrap().unwrap();
    for (by, is_all_read) in [("a user", true), ("a loss", true), ("a start", false)] {
        let aside = DatasetRecord { state: DatasetState::Recovering, ..record.clone() };
        rig.memory.put_dataset(&aside).await.unwrap();
        let read = ranges();
        if by == "a user" {
            let (progress, _told) = mpsc::channel(64);
            let asked = recover(&rig.parts, request.clone(), &Caller::Everybody, &progress);
            rig.run(asked).await.0.unwrap();
        } else if by == "a loss" {
            rig.run(rebuild_all(&rig.parts)).await.0.unwrap();
        } else {
            rig.run(roll_forward(&rig.parts)).await.0.unwrap();
        }
        assert_eq!(ranges() >= read + 8, is_all_read, "{} after {read}, by {by}", ranges());
        let state = rig.memory.record(id).await.unwrap().unwrap().state;
        assert_eq!(state, DatasetState::Live);
    }
}

/// The store can't be read so often: as often as a name is tried.
fn failing() -> [Option<Fault<dl_store::Kind>>; 4] {
    [Some(Fault::Before(dl_store::Kind::Unavailable)); 4]
}

/// Deletes a dataset, and gives the metadata back what it knew of it, as a Redis does that is set back.
async fn delete_and_set_back(rig: &Rig, name: &str) -> DatasetId {
    let id = rig.create(name).await;
    let record = rig.memory.record(id).await.unwrap().unwrap();
    rig.delete(name, id).await.unwrap();
    rig.memory.put_dataset(&record).await.unwrap();
    id
}

#[tokio::test]
async fn a_deleted_dataset_that_came_back_ends_also_when_what_says_so_can_not_be_read() {
    let rig = rig().await;
    let id = delete_and_set_back(&rig, "ds").await;
    let used_again = rig.create("other").await;
    // Both generations of the name, and the one of the other.
    rig.store.script("read", failing().into_iter().chain(failing()).chain(failing()));
    rig.run(rebuild_all(&rig.parts)).await.0.unwrap();
    assert!(rig.store.is_used_up("read"), "the names were not tried again");
    assert_eq!(rig.memory.record(id).await.unwrap(), None);
    assert!(rig.memory.record(used_again).await.unwrap().is_some());
}

#[tokio::test]
async fn rows_of_deleted_datasets_are_dropped_from_damaged_metadata() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.delete("ds", id).await.unwrap();
    for is_damaged in [true, false] {
        rig.meta.script("drop_dataset", [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
        let done = living::end_deleted(&rig.parts, is_damaged).await;
        let is_asked = rig.meta.is_used_up("drop_dataset");
        assert_eq!((done.is_err(), is_asked), (is_damaged, is_damaged));
    }
}

#[tokio::test]
async fn a_deleted_dataset_that_comes_back_while_a_recovery_begins_ends_with_it() {
    let rig = rig().await;
    rig.meta.script("begin_rebuild", [Some(Fault::Delay(Duration::from_secs(5)))]);
    let mut again = Box::pin(rebuild_all(&rig.parts));
    while !rig.meta.is_used_up("begin_rebuild") {
        assert!(futures::poll!(&mut again).is_pending());
        tokio::task::yield_now().await;
    }
    let id = delete_and_set_back(&rig, "ds").await;
    rig.run(again).await.0.unwrap();
    assert_eq!(rig.memory.record(id).await.unwrap(), None);
}

#[tokio::test]
async fn an_object_that_the_store_always_fails_for_is_told_and_the_others_are_recovered() {
    let rig = rig().await;
    let names = ["a", "b"];
    for (name, number) in names.iter().zip(0..) {
        let id = rig.create(name).await;
        rig.store_chunk(id, number).await;
    }
    let request = RecoverRequest { dataset: None, since: None };
    let before = rig.counters.counts().ranges;
    // The identity, and each name three times; then the headers, of which the first one fails, and fails
    // again behind the identity each time.
    let fails = Some(Fault::Before(dl_store::Kind::Unavailable));
    let reads = [None; 7].into_iter().chain([fails, None]);
    rig.store.script("read", reads.chain([[None, fails]; 3].into_iter().flatten()));
    let (progress, mut told) = mpsc::channel(64);
    let asked = recover(&rig.parts, request, &Caller::Everybody, &progress);
    let (recovered, seconds) = rig.run(asked).await;
    recovered.unwrap();
    assert!(rig.store.is_used_up("read") && rig.counters.counts().ranges > before);
    assert!((13..30).contains(&seconds), "{seconds} s");
    drop(progress);
    let (mut adopted, mut problems) = (0, Vec::new());
    while let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await {
        adopted += if step.done { step.adopted } else { 0 };
        problems.extend(step.problems);
    }
    assert_eq!((adopted, problems.len()), (1, 2), "{problems:?}");
    assert!(problems[1].contains("can't be read: make them readable"), "{problems:?}");
}

#[tokio::test]
async fn a_name_that_can_not_be_written_again_is_told() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let lose = || async {
        let lost = crate::shared::parts::key(dl_format::name_key(&name, 1));
        rig.parts.store.delete(&lost).await.unwrap();
        let full = Some(Fault::Before(dl_store::Kind::Full));
        rig.store.script("create", [full]);
    };
    let (progress, mut told) = mpsc::channel(64);
    let ask = |dataset| recover(&rig.parts, dataset, &Caller::Everybody, &progress);
    lose().await;
    let one = RecoverRequest { dataset: Some(name.clone()), since: None };
    let refused = rig.run(ask(one.clone())).await.0.unwrap_err();
    assert_eq!(refused.kind, Kind::Full, "{}", refused.chain());
    // Who purges it is told what to do.
    let purged = rig.run(bring_in(&rig.parts, &name)).await.0.unwrap_err();
    assert_eq!(purged.kind, Kind::NeedsRecovery, "{}", purged.chain());
    assert!(purged.chain().contains("dlcmd recover dl://ds"), "{}", purged.chain());
    rig.store.script("create", [Some(Fault::Before(dl_store::Kind::Full))]);
    rig.run(ask(RecoverRequest { dataset: None, since: None })).await.0.unwrap();
    rig.run(ask(one)).await.0.unwrap();
    drop(progress);
    let problems = problems(&mut told).await;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let named = names::newest(&rig.parts, &name).await.unwrap().unwrap();
    assert_eq!((named.generation, named.record.dataset), (1, id));
}

/// Keeps S-14: what a full chunk store keeps from being mended is read as before.
#[tokio::test]
async fn a_dataset_whose_name_can_not_be_written_again_is_served() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.store_chunk(id, 1).await;
    rig.run(roll_forward(&rig.parts)).await.0.unwrap();
    let name = crate::shared::parts::key(dl_format::name_key(&dataset("ds"), 1));
    rig.parts.store.delete(&name).await.unwrap();
    rig.store.script("create", [Some(Fault::Before(dl_store::Kind::Full)); 2]);
    let (progress, mut told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: None, since: None };
    let asked = recover(&rig.parts, request, &Caller::Everybody, &progress);
    rig.run(asked).await.0.unwrap();
    assert!(rig.store.is_used_up("create"));
    let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await else { panic!("nothing") };
    assert!(step.problems[0].contains("write the name"), "{:?}", step.problems);
    let record = rig.memory.record(id).await.unwrap().unwrap();
    assert_eq!(record.state, DatasetState::Live);
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
    let refused = rig.run(crate::prepare(&rig.parts, Stop::Unclean)).await.0.unwrap_err();
    assert!(refused.kind == Kind::Full && refused.chain().contains("make room"));
    full();
    let (progress, _told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: None, since: None };
    let ask = || recover(&rig.parts, request.clone(), &Caller::Everybody, &progress);
    assert_eq!(rig.run(ask()).await.0.unwrap_err().kind, Kind::Full);
    rig.run(ask()).await.0.unwrap();
    rig.run(crate::prepare(&rig.parts, Stop::Unclean)).await.0.unwrap();
    let all = rig.parts.meta.remnants().await.unwrap();
    assert!(all.len() == 3 && all.iter().all(|record| record.state == DatasetState::Live));
    for record in all {
        assert_eq!(rig.parts.meta.dataset(record.id).await.unwrap().unwrap().objects, 1);
    }
}

#[tokio::test]
async fn a_dataset_that_is_deleted_while_it_alone_is_recovered_is_not_there() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    rig.store_chunk(id, 1).await;
    let (progress, _told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: Some(name.clone()), since: None };
    rig.meta.script("append", [Some(Fault::Delay(Duration::from_secs(5)))]);
    let mut asked = Box::pin(recover(&rig.parts, request, &Caller::Everybody, &progress));
    for _ in 0..2_000 {
        assert!(futures::poll!(&mut asked).is_pending());
        std::thread::sleep(Duration::from_millis(u64::from(!rig.meta.is_used_up("append"))));
    }
    assert!(rig.meta.is_used_up("append"));
    rig.delete(name.as_str(), id).await.unwrap();
    assert_eq!(rig.run(asked).await.0.unwrap_err().kind, Kind::NotFound);
}

#[tokio::test]
async fn a_name_that_was_moved_is_told_and_the_other_one_is_written_again() {
    let rig = rig().await;
    let (name, moved, id) = (dataset("ds"), dataset("moved"), rig.create("ds").await);
    rig.store_chunk(id, 1).await;
    let record = names::newest(&rig.parts, &name).await.unwrap().unwrap().record;
    let remove = async |name: &DatasetName| {
        let object = crate::shared::parts::key(dl_format::name_key(name, 1));
        rig.parts.store.delete(&object).await.unwrap();
    };
    remove(&name).await;
    assert!(names::create(&rig.parts, &moved, 1, &record).await.unwrap());
    let recovered = async |dataset: Option<&DatasetName>| {
        let (progress, mut told) = mpsc::channel(64);
        let request = RecoverRequest { dataset: dataset.cloned(), since: None };
        let asked = recover(&rig.parts, request, &Caller::Everybody, &progress);
        rig.run(asked).await.0.unwrap();
        drop(progress);
        problems(&mut told).await
    };
    let told = recovered(Some(&moved)).await;
    assert!(told.len() == 1 && told[0].contains("copied or moved"), "{told:?}");
    remove(&moved).await;
    assert_eq!(recovered(None).await, Vec::<String>::new());
    let named = names::newest(&rig.parts, &name).await.unwrap().unwrap();
    assert_eq!(named.record, record);
    assert_eq!(rig.parts.meta.record_named(&name).await.unwrap().map(|record| record.id), Some(id));
}

/// Keeps S-02: a dataset that the metadata lost while it was recovered was not deleted.
#[tokio::test]
async fn a_dataset_that_is_lost_again_under_its_recovery_is_not_taken_for_a_deleted_one() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.store_chunk(id, 1).await;
    rig.meta.script("append", [Some(Fault::Delay(Duration::from_secs(1)))]);
    let (progress, _told) = mpsc::channel(64);
    let request = RecoverRequest { dataset: Some(dataset("ds")), since: None };
    let mut recovered = Box::pin(recover(&rig.parts, request, &Caller::Everybody, &progress));
    while !rig.meta.is_used_up("append") {
        assert!(futures::poll!(&mut recovered).is_pending());
        tokio::task::yield_now().await;
    }
    rig.memory.drop_dataset(&dataset("ds"), id).await.unwrap();
    let error = rig.run(recovered).await.0.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_changed_name_is_refused_until_its_object_is_removed() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    let stored = crate::shared::parts::key(dl_format::name_key(&name, 1));
    let named = names::newest(&rig.parts, &name).await.unwrap().unwrap();
    let other = dl_format::NameRecord { dataset: DatasetId::from_bytes([9; 16]), ..named.record };
    rig.parts.store.delete(&stored).await.unwrap();
    rig.parts.store.create(&stored, other.encode().into()).await.unwrap();
    let restore =
        async || living::restore_names(&rig.parts, None, &Caller::Everybody).await.unwrap();
    let failed = restore().await;
    let [(told, error)] = &failed[..] else { panic!("{failed:?}") };
    assert!(*told == name && error.chain().contains("names/ds/00000001"), "{}", error.chain());
    rig.parts.store.delete(&stored).await.unwrap();
    assert!(restore().await.is_empty());
    let named = names::newest(&rig.parts, &name).await.unwrap().unwrap();
    assert_eq!(named.record.dataset, id);
}

#[tokio::test]
async fn a_name_is_not_given_back_to_a_dataset_that_is_deleted_meanwhile() {
    let rig = rig().await;
    let (name, id) = (dataset("ds"), rig.create("ds").await);
    rig.store_chunk(id, 1).await;
    let stored = crate::shared::parts::key(dl_format::name_key(&name, 1));
    rig.parts.store.delete(&stored).await.unwrap();
    rig.store.script("create", [Some(Fault::Delay(Duration::from_secs(1)))]);
    let caller = Caller::Everybody;
    let restoring = living::restore_names(&rig.parts, None, &caller);
    let both = futures::future::join(restoring, rig.memory.drop_dataset(&name, id));
    let (restored, dropped) = rig.run(both).await.0;
    dropped.unwrap();
    assert!(restored.unwrap().is_empty() && rig.store.is_used_up("create"));
    assert!(names::newest(&rig.parts, &name).await.unwrap().is_none());
}

/// Keeps S-02 and S-47: both its name and the metadata are lost; nobody may take it for one that
/// never was.
#[tokio::test]
async fn a_dataset_that_nobody_knows_any_more_is_told_by_its_id() {
    let rig = rig().await;
    let (lost, kept, gone) =
        (rig.create("lost").await, rig.create("kept").await, rig.create("gone").await);
    rig.delete("gone", gone).await.unwrap();
    for (number, id) in [lost, kept, gone].into_iter().enumerate() {
        rig.store_chunk(id, u8::try_from(number).unwrap()).await;
    }
    let name = crate::shared::parts::key(dl_format::name_key(&dataset("lost"), 1));
    rig.parts.store.delete(&name).await.unwrap();
    rig.memory.drop_dataset(&dataset("lost"), lost).await.unwrap();
    let mut told_of = Vec::new();
    for one in [None, Some(dataset("kept"))] {
        let (progress, mut told) = mpsc::channel(64);
        let request = RecoverRequest { dataset: one, since: None };
        let asked = recover(&rig.parts, request, &Caller::Everybody, &progress);
        rig.run(asked).await.0.unwrap();
        drop(progress);
        while let Some(Reply::More(step) | Reply::Last(step)) = told.recv().await {
            let problems = step.problems.into_iter();
            told_of.extend(problems.map(|problem| (step.dataset.clone(), problem)));
        }
    }
    let [(dataset, problem)] = &told_of[..] else { panic!("{told_of:?}") };
    assert_eq!(*dataset, lost.to_string());
    assert!(problem.contains("put its name back"), "{problem}");
}

/// Keeps S-02: what the chunk store is slow to tell keeps no recovery from ending.
#[tokio::test]
async fn a_search_that_takes_long_is_waited_for_in_bounded_time_and_not_by_what_failed() {
    for fails in [false, true] {
        let rig = rig().await;
        rig.create("ds").await;
        // The search lists first.
        rig.store.script("list", [Some(Fault::Delay(Duration::from_secs(3_600)))]);
        if fails {
            rig.meta.script("damage", [Some(Fault::Before(dl_meta::Kind::Unavailable))]);
        }
        let (progress, _told) = mpsc::channel(64);
        let request = RecoverRequest { dataset: None, since: None };
        let asked = recover(&rig.parts, request, &Caller::Everybody, &progress);
        let (recovered, seconds) = rig.run(asked).await;
        assert_eq!(recovered.is_err(), fails, "{recovered:?}");
        let bounds = if fails { 0..5 } else { 25..60 };
        assert!(bounds.contains(&seconds), "{seconds} s");
    }
}
