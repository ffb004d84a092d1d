//! What is told of datasets with which much is wrong.

use dl_format::{Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, Sealed};
use dl_meta::MetaStore;
use dl_runtime::fault::Fault;

use super::*;
use crate::shared::context::object_key;
use crate::testing::{Rig, chunk, path, rig, until_met};

/// Verifies; gives the reports, and the end.
async fn steps(rig: &Rig, checksums: bool) -> (Vec<VerifyProgress>, Result<(), Error>) {
    let ((ended, steps), _) = rig.run(rig.verify("ds", checksums)).await;
    (steps, ended)
}

/// All findings of a verification that comes to its end.
async fn findings(rig: &Rig, checksums: bool) -> Vec<Finding> {
    let (steps, ended) = steps(rig, checksums).await;
    ended.unwrap();
    steps.into_iter().flat_map(|step| step.findings).collect()
}

#[tokio::test]
async fn findings_come_in_messages_that_are_not_too_large() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..2_500 {
        let stray = format!("{}/stray-{number}", dl_format::dataset_prefix(id));
        rig.context.store.create(&crate::shared::context::key(stray), "x".into()).await.unwrap();
    }
    let (steps, ended) = steps(&rig, false).await;
    ended.unwrap();
    assert_eq!(steps.iter().map(|step| step.findings.len()).sum::<usize>(), 2_500);
    assert!(steps.iter().all(|step| step.findings.len() <= TOLD_TOGETHER));
    let done: Vec<_> = steps.iter().map(|step| step.done).collect();
    assert_eq!(done.iter().position(|done| *done), Some(steps.len() - 1), "and only the last one");
}

#[tokio::test]
async fn unreadable_objects_are_named_unless_the_store_is_down() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    for number in 0..100 {
        rig.store_chunk(id, number).await;
    }
    rig.adopt().await;
    let before = rig.counters.counts().ranges;
    assert_eq!(findings(&rig, false).await, []);
    let headers = usize::try_from(rig.counters.counts().ranges - before).unwrap();
    let unavailable = Some(Fault::Before(dl_store::Kind::Unavailable));
    for (failures, found, is_away) in [(3, 3, false), (100, 63, true)] {
        let passed = std::iter::repeat_n(None, headers);
        rig.store.script("read", passed.chain(std::iter::repeat_n(unavailable, failures)));
        let (told, ended) = steps(&rig, true).await;
        let count: usize = told.iter().map(|step| step.findings.len()).sum();
        assert_eq!(count, found, "{told:?}");
        assert_eq!(ended.is_err_and(|error| error.kind == Kind::Unavailable), is_away);
    }
}

#[tokio::test]
async fn what_a_purge_removes_meanwhile_is_not_missed() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    let mut chunks = Vec::new();
    for number in 0..4 {
        chunks.push(rig.store_chunk(id, number).await);
    }
    // The first one is needed no more.
    rig.clock.advance(std::time::Duration::from_secs(1));
    chunks.push(rig.store_chunk(id, 0).await);
    rig.adopt().await;
    let before = rig.counters.counts().ranges;
    assert_eq!(findings(&rig, false).await, []);
    let reads = usize::try_from(rig.counters.counts().ranges - before).unwrap();
    // All is listed, and the headers are about to be read.
    let slow = Some(Fault::Delay(std::time::Duration::from_secs(5)));
    rig.store.script("read", std::iter::repeat_n(None, reads - chunks.len()).chain([slow]));
    let mut verified = Box::pin(findings(&rig, false));
    until_met(&rig.store, "read", &mut verified).await;
    rig.memory.retire(id, &chunks[..1]).await.unwrap();
    let key = object_key(id, chunks[0], ObjectKind::Chunk);
    rig.context.store.delete(&key).await.unwrap();
    let mut wrong = verified.await;
    wrong.retain(|one| !one.problem.contains("was being written to"));
    assert_eq!(wrong, []);
}

#[tokio::test]
async fn beside_damage_nobody_is_told_to_throw_the_metadata_away() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    rig.store_chunk(id, 0).await;
    rig.clock.advance(std::time::Duration::from_secs(1));
    let newer = rig.store_chunk(id, 0).await;
    rig.adopt().await;
    let key = object_key(id, newer, ObjectKind::Chunk);
    let mut object = rig.context.store.read_all(&key).await.unwrap().to_vec();
    object[100] ^= 0xff;
    rig.replace(&key, object).await;
    let found = findings(&rig, false).await;
    assert!(found.iter().any(|one| one.remedy.contains("dlcmd put --checksum")), "{found:?}");
    assert!(!found.iter().any(|one| one.problem.contains("another version")), "{found:?}");
    assert!(!found.iter().any(|one| one.remedy.contains("empty the metadata")), "{found:?}");
}

/// Stores the file `large`, of one part and a tail; gives the key of the part and what is there.
async fn store_large(rig: &Rig, id: DatasetId, ids: &mut ChunkIdMaker) -> (Key, Bytes) {
    let (shape, mut next) = (ChunkShape::default(), || ids.next(rig.context.clock.now()));
    let (part, extent) = Sealed::part(shape, next(), id, &[1; 1_000]).unwrap();
    let stored = rig.store_sealed(&part).await;
    let mut last = ChunkWriter::new(shape, Vec::new());
    last.append_tail(&path("large"), Attributes::default(), vec![extent], b"tail").unwrap();
    rig.store_sealed(&last.seal(next(), id)).await;
    stored
}

#[tokio::test]
async fn a_large_file_with_a_damaged_part_is_named() {
    for is_known in [true, false] {
        let rig = rig().await;
        let id = rig.create("ds").await;
        let (key, object) = store_large(&rig, id, &mut ChunkIdMaker::new([7; 9])).await;
        if is_known {
            rig.adopt().await;
        }
        let damaged = if is_known { object.slice(..object.len() - 1) } else { object.slice(8..) };
        rig.replace(&key, damaged).await;
        if !is_known {
            rig.adopt().await;
        }
        let found = findings(&rig, false).await;
        let says = |text: &str| found.iter().any(|one| one.problem.contains(text));
        assert!(says("large is lost"), "{found:?}");
        assert!(
            says(if is_known { "cut short" } else { "no recovery brings it back" }),
            "{found:?}"
        );
        assert!(!says("are not in the metadata"), "{found:?}");
    }
}

#[tokio::test]
async fn what_a_chunk_has_too_much_is_to_be_cut_off() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    let key = object_key(id, rig.store_chunk(id, 1).await, ObjectKind::Chunk);
    rig.adopt().await;
    let object = rig.context.store.read_all(&key).await.unwrap();
    let (own, grown) = (object.len(), [&object[..], b"more"].concat());
    for (bytes, is_told) in [(grown, true), (object.to_vec(), false)] {
        rig.replace(&key, bytes).await;
        let remedies = findings(&rig, true).await;
        let remedy = format!("restore the object, or cut off what is behind its first {own} bytes");
        assert_eq!(!remedies.is_empty(), is_told, "{remedies:?}");
        assert!(remedies.iter().all(|one| one.remedy == remedy), "{remedies:?}");
    }
    // Also of one that the metadata lacks.
    let other = rig.store_chunk(id, 2).await;
    let key = object_key(id, other, ObjectKind::Chunk);
    let object = rig.context.store.read_all(&key).await.unwrap();
    rig.replace(&key, [&object[..], b"more"].concat()).await;
    let remedies = findings(&rig, false).await;
    let own = object.len();
    let is_told = |one: &Finding| {
        let remedy = format!("cut off what is behind its first {own} bytes, and run");
        one.remedy.contains(&remedy)
    };
    assert!(remedies.iter().any(is_told), "{remedies:?}");
}

/// A recovery reads it, and says that it can't.
#[tokio::test]
async fn a_damaged_part_that_no_file_needs_any_more_is_told() {
    let rig = rig().await;
    let id = rig.create("ds").await;
    let mut ids = ChunkIdMaker::new([7; 9]);
    let (key, object) = store_large(&rig, id, &mut ids).await;
    let newer = ids.next(rig.context.clock.now());
    rig.store_sealed(&chunk(newer, id, ["large".to_owned()], b"small")).await;
    rig.adopt().await;
    assert_eq!(findings(&rig, false).await, []);
    let mut damaged = object.to_vec();
    damaged[0] ^= 1;
    rig.replace(&key, damaged).await;
    for checksums in [false, true] {
        let found = findings(&rig, checksums).await;
        let [only] = &found[..] else { panic!("{found:?}") };
        assert!(only.problem.ends_with("no file needs it"), "{only:?}");
        assert!(only.problem.contains(key.as_str()), "{only:?}");
    }
}
