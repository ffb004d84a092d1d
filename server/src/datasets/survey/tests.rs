//! Surveys with one share and with many, of a dataset that has everything in it.

use std::collections::BTreeMap;

use dl_format::{Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, Deletions, FilePath, Fold};
use dl_runtime::Clock;
use dl_runtime::fault::{Fault, Rates};
use dl_store::StoreExt;

use super::*;
use crate::testing::{Rig, rig};

/// Shares of about 16 KiB, most of which is in a file.
const SMALL: Sizes = Sizes { memory: 16 << 10, partition: 16 << 10 };

const CHUNKS: usize = 40;
const FILES: usize = 100;

/// What the rows of a survey say: for each path its winner, and who else holds it.
type Found = BTreeMap<Vec<u8>, (FileRecord, u64, Vec<FileRecord>)>;

/// A dataset whose chunks overwrite half of what those before them hold, and delete some of it.
async fn fill(rig: &Rig) -> DatasetId {
    let dataset = rig.create("ds").await;
    let mut ids = ChunkIdMaker::new([1; 9]);
    for number in 0..CHUNKS {
        let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
        for file in 0..FILES {
            let path = FilePath::new(format!("folder/{}", number * FILES / 2 + file)).unwrap();
            writer.append(&path, Attributes { mode: 0o644, mtime: 7 }, &[1; 100]).unwrap();
        }
        let id = ids.next(rig.clock.now());
        let sealed = writer.seal(id, dataset).as_slice().to_vec();
        crate::testing::commit(&rig.context, dataset, sealed, rig.context.clock.now())
            .await
            .unwrap();
        let log = rig.context.meta.log(dataset).await.unwrap();
        let stamp = log.iter().find(|object| object.id == id).unwrap().stamp;
        let mut deletions = Deletions::default();
        deletions.insert(&EntryVersion { stamp, chunk: id, entry: 3 });
        let id = ids.next(rig.clock.now());
        crate::write::commit::put_tombstone(&rig.context, dataset, id, &deletions).await.unwrap();
    }
    dataset
}

/// Surveys, and folds all shares; gives how many there were.
async fn fold(rig: &Rig, dataset: DatasetId, sizes: Sizes) -> (Survey, Found, usize) {
    let mut survey = Survey::read(&rig.context, dataset).await.unwrap();
    survey.sizes = sizes;
    let mut shares = survey.shares(&rig.context, ChunkShape::default(), |_| Ok(())).await.unwrap();
    let (mut found, mut count) = (Found::new(), 0);
    while let Some(rows) = shares.next().await.unwrap() {
        count += 1;
        for (path, winner, others) in rows.paths() {
            let others = others.iter().map(|row| row.record).collect();
            let before = found.insert(path.to_vec(), (winner.record, winner.cost, others));
            assert_eq!(before, None, "all rows of a path are in one share");
        }
    }
    (survey, found, count)
}

#[tokio::test]
async fn many_shares_give_the_rows_of_one_and_those_of_the_fold() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    let (_, one, count) = fold(&rig, dataset, SIZES).await;
    assert_eq!(count, 1);
    let (survey, many, count) = fold(&rig, dataset, SMALL).await;
    assert!(count > 10 && many == one, "{count} shares");

    let mut expected = Fold::default();
    let all = (0..survey.objects.len()).collect();
    let mut headers = std::pin::pin!(survey.headers(&rig.context, all));
    while let Some((_, header)) = headers.next().await {
        expected.add(&header.unwrap().committed().unwrap());
    }
    let winners = many.iter().map(|(path, (winner, ..))| {
        (path.clone(), *winner, survey.deleted.contains(&winner.version))
    });
    let expected = expected
        .winners()
        .map(|(path, winner, is_deleted)| (path.as_bytes().to_vec(), *winner, is_deleted));
    assert!(winners.eq(expected));
    let rows: usize = many.values().map(|(_, _, others)| others.len() + 1).sum();
    assert_eq!(rows, CHUNKS * FILES);
    let (_, cost, _) = many.get(&b"folder/7"[..]).unwrap();
    assert_eq!(*cost, 512 + 48 + 8);
}

#[tokio::test]
async fn each_header_is_read_once_for_all_shares() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    for sizes in [SIZES, SMALL] {
        let before = rig.counters.counts();
        fold(&rig, dataset, sizes).await;
        let after = rig.counters.counts();
        assert_eq!(after.ranges - before.ranges, 2 * CHUNKS as u64, "chunks and tombstones");
    }
}

#[tokio::test]
async fn unreadable_entries_keep_their_reason() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    let (survey, ..) = fold(&rig, dataset, SIZES).await;
    let chunks = survey.of_kind(ObjectKind::Chunk);
    let gone = survey.key(survey.objects.get(chunks[5]).unwrap());
    rig.context.store.delete(&gone).await.unwrap();
    // The tombstones are read first.
    let passed = std::iter::repeat_n(None, CHUNKS + 8);
    rig.store.script("read", passed.chain([Some(Fault::Before(dl_store::Kind::Unavailable))]));
    let (survey, found, _) = fold(&rig, dataset, SMALL).await;
    let unread: Vec<_> =
        survey.unread.iter().map(|(number, error)| (*number, error.kind)).collect();
    assert_eq!(unread, [(chunks[5], Kind::NotFound), (chunks[8], Kind::Unavailable)]);
    let rows: usize = found.values().map(|(_, _, others)| others.len() + 1).sum();
    assert_eq!(rows, (CHUNKS - 2) * FILES);
    assert!(!survey.is_whole());
    assert!(rig.context.store.read_all(&gone).await.is_err());
}

#[tokio::test]
async fn a_lost_store_ends_a_survey_and_unreadable_objects_do_not() {
    let rig = rig().await;
    let mut dataset = fill(&rig).await;
    for _ in 0..3 {
        rig.clock.advance(Duration::from_secs(60));
        dataset = fill(&rig).await;
    }
    let unavailable = Some(Fault::Before(dl_store::Kind::Unavailable));
    let few = || std::iter::repeat_n(unavailable, AWAY_AFTER - 1);
    rig.store.script("read", few().chain([None]).chain(few()));
    let mut survey = Survey::read(&rig.context, dataset).await.unwrap();
    assert_eq!(survey.unread.len(), 2 * (AWAY_AFTER - 1));
    let away = Rates {
        before: 1.0,
        answer_lost: 0.0,
        delay: 0.0,
        longest_delay: Duration::ZERO,
        error: dl_store::Kind::Unavailable,
    };
    rig.store.set_rates("read", Some(away));
    let ended = survey.shares(&rig.context, ChunkShape::default(), |_| Ok(())).await;
    assert_eq!(ended.unwrap_err().kind, Kind::Unavailable, "the chunks");
    let ended = Survey::read(&rig.context, dataset).await;
    assert_eq!(ended.unwrap_err().kind, Kind::Unavailable, "the tombstones");
}

#[tokio::test]
async fn parts_of_large_files_are_found_with_many_shares() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    let shape = ChunkShape::default();
    let mut ids = ChunkIdMaker::new([2; 9]);
    let now = rig.clock.now();
    let (part, extent) = dl_format::Sealed::part(shape, ids.next(now), dataset, b"head").unwrap();
    let part = part.as_slice().to_vec();
    crate::testing::commit(&rig.context, dataset, part, rig.context.clock.now()).await.unwrap();
    let mut writer = ChunkWriter::new(shape, Vec::new());
    let path = FilePath::new("large").unwrap();
    let attributes = Attributes { mode: 0o644, mtime: 1 };
    writer.append_tail(&path, attributes, vec![extent], b"tail").unwrap();
    let id = ids.next(now);
    let last = writer.seal(id, dataset).as_slice().to_vec();
    crate::testing::commit(&rig.context, dataset, last, rig.context.clock.now()).await.unwrap();
    let (survey, found, _) = fold(&rig, dataset, SMALL).await;
    let [(number, found_extent)] = survey.extents.as_slice() else {
        panic!("{:?}", survey.extents)
    };
    assert_eq!((survey.objects[*number].id, *found_extent), (id, extent));
    assert!(found.get(&b"large"[..]).is_some_and(|(winner, ..)| winner.has_extents));
}

#[tokio::test]
async fn whoever_waits_is_told_how_far_it_is_and_may_end_it() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    let mut survey = Survey::read(&rig.context, dataset).await.unwrap();
    rig.clock.advance(SIGN_OF_LIFE);
    let heard = |looked_at| {
        assert!(looked_at > CHUNKS as u64);
        Err(Error::new(Kind::Cancelled, "verify", "it", "the client is gone"))
    };
    let ended = survey.shares(&rig.context, ChunkShape::default(), heard).await;
    assert_eq!(ended.unwrap_err().kind, Kind::Cancelled);
}

#[tokio::test]
async fn without_room_for_the_shares_it_ends_and_says_what_to_do() {
    let mut rig = rig().await;
    let dataset = fill(&rig).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a file, not a folder");
    std::fs::write(&file, b"").unwrap();
    rig.context.reserve = rig.context.reserve.clone().with_scratch(&file);
    // What fits into memory needs none.
    assert_eq!(fold(&rig, dataset, SIZES).await.2, 1);
    let mut survey = Survey::read(&rig.context, dataset).await.unwrap();
    survey.sizes = SMALL;
    let error = survey.shares(&rig.context, ChunkShape::default(), |_| Ok(())).await.unwrap_err();
    assert!(error.chain().contains("--scratch"), "{}", error.chain());
}

#[tokio::test]
async fn tombstones_over_chunks_that_never_were_take_no_memory() {
    let rig = rig().await;
    let dataset = fill(&rig).await;
    let (mut ids, mut never) = (ChunkIdMaker::new([8; 9]), Deletions::default());
    for _ in 0..10_000 {
        let chunk = ids.next(rig.clock.now());
        never.insert(&EntryVersion { stamp: Stamp::default(), chunk, entry: 0 });
    }
    let tombstone = ids.next(rig.clock.now());
    crate::write::commit::put_tombstone(&rig.context, dataset, tombstone, &never).await.unwrap();
    let (survey, ..) = fold(&rig, dataset, SIZES).await;
    assert_eq!(survey.deleted.0.len(), CHUNKS);
    assert!(survey.is_whole());
}
