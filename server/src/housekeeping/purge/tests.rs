//! Purges that take hours to look, while others write.

use std::sync::Arc;

use bytes::Bytes;
use dl_format::{
    Attributes, ChunkShape, ChunkWriter, EntryVersion, FileRecord, ObjectKind, Sealed, Stamp,
};
use dl_meta::Found;
use dl_runtime::fault::Fault;
use dl_runtime::{Clock, ManualClock};

use super::damage::is_gone;
use super::*;
use crate::housekeeping::turns::Turns;
use crate::shared::context::object_key;
use crate::testing::{self, Rig, chunk, dataset, path, rig};

const HOUR: Duration = Duration::from_secs(3_600);
/// More than the 70 minutes for which what was written is left alone.
const SETTLED: Duration = Duration::from_secs(75 * 60);
const ATTRIBUTES: Attributes = Attributes { mode: 0o644, mtime: 1 };

/// A dataset, and somebody who writes.
struct Scene {
    rig: Rig,
    id: DatasetId,
}

fn ids(writer: u8) -> ChunkIdMaker {
    ChunkIdMaker::new([writer; 9])
}

impl Scene {
    async fn new() -> Self {
        let rig = rig().await;
        let id = rig.create("ds").await;
        Self { rig, id }
    }

    async fn commit(&self, sealed: &Sealed) -> Result<Stamp, Error> {
        let (context, object) = (&self.rig.context, sealed.as_slice().to_vec());
        testing::commit(context, self.id, object, context.clock.now()).await
    }

    /// Puts files of 1,000 bytes.
    async fn put(&self, writer: u8, names: impl IntoIterator<Item = String>) -> ChunkId {
        let id = ids(writer).next(self.rig.clock.now());
        self.commit(&chunk(id, self.id, names, &[writer; 1_000])).await.unwrap();
        id
    }

    /// Stores a chunk with a file of 1,000 bytes that the log does not have; gives its id, its key and what
    /// is there.
    async fn store(&self, name: &str) -> (ChunkId, Key, Bytes) {
        let id = ids(2).next(self.rig.clock.now());
        let sealed = chunk(id, self.id, [name.to_owned()], &[2; 1_000]);
        let (key, object) = self.rig.store_sealed(&sealed).await;
        (id, key, object)
    }

    /// Stores a snapshot of the present version.
    async fn snapshot(&self) {
        let snapshots = snapshot::Snapshots::new(Arc::default());
        snapshots.find(&self.rig.context, self.id, None).await.unwrap();
    }

    async fn find(&self, name: &str) -> Option<FileRecord> {
        let found = self.rig.context.meta.lookup(self.id, &[path(name)]).await.unwrap();
        match found.as_slice() {
            [Found::File(record)] => Some(*record),
            _ => None,
        }
    }

    async fn delete(&self, version: EntryVersion) -> ChunkId {
        let mut deletions = Deletions::default();
        deletions.insert(&version);
        let id = ids(99).next(self.rig.clock.now());
        commit::put_tombstone(&self.rig.context, self.id, id, &deletions).await.unwrap();
        id
    }

    async fn is_logged(&self, id: ChunkId) -> bool {
        crate::datasets::survey::is_logged(&self.rig.context, self.id, id).await.unwrap()
    }

    /// What happens to the reads of the next purge, from the first one of a header.
    async fn script(&self, faults: impl IntoIterator<Item = Option<Fault<dl_store::Kind>>>) {
        let passed = std::iter::repeat_n(None, self.begun(|counts| counts.ranges).await);
        self.rig.store.script("read", passed.chain(faults));
    }

    /// How much of something there is before a purge lists the objects, and reads headers.
    async fn begun(&self, count: impl Fn(&dl_store::Counts) -> u64) -> usize {
        let (context, name) = (&self.rig.context, dataset("ds"));
        let before = count(&self.rig.counters.counts());
        catalog::by_name(context, &name, &Caller::Everybody, Detail::Record).await.unwrap();
        recover::adopt_unlogged(context, &name).await.unwrap();
        usize::try_from(count(&self.rig.counters.counts()) - before).unwrap()
    }

    /// Purges; the first header takes fifty minutes to read, and `meanwhile` happens in the middle.
    async fn slow_purge(&self, meanwhile: impl Future<Output = ()>) -> PurgeProgress {
        self.script([Some(Fault::Delay(Duration::from_secs(3_000)))]).await;
        let meanwhile = async {
            self.rig.clock.sleep(Duration::from_secs(1_500)).await;
            meanwhile.await;
        };
        let (done, _) = self.rig.run(futures::future::join(self.purge(), meanwhile)).await;
        done.0
    }

    /// The last word of a purge, with all problems.
    async fn purge(&self) -> PurgeProgress {
        let steps = self.steps().await;
        let problems = steps.iter().flat_map(|step| step.problems.clone()).collect();
        PurgeProgress { problems, ..steps.last().unwrap().clone() }
    }

    /// What a purge tells that waits for nobody.
    async fn steps(&self) -> Vec<PurgeProgress> {
        self.steps_with(Duration::ZERO).await
    }

    async fn steps_with(&self, grace: Duration) -> Vec<PurgeProgress> {
        let (ended, steps) = self.rig.purge(request(Some("ds"), grace)).await;
        ended.unwrap();
        steps
    }
}

fn request(name: Option<&str>, grace: Duration) -> PurgeRequest {
    PurgeRequest { dataset: name.map(dataset), grace, dry_run: false, force: false }
}

#[tokio::test]
async fn a_dry_run_says_what_a_purge_gives_back_and_changes_nothing() {
    let scene = Scene::new().await;
    scene.put(1, (0..20).map(|n| format!("{n}"))).await;
    scene.put(2, (0..15).map(|n| format!("{n}"))).await;
    scene.put(3, (0..10).map(|n| format!("{n}"))).await;
    scene.put(4, (0..10).map(|n| format!("{n}"))).await;
    scene.rig.clock.advance(SETTLED);
    // Not in the log: a purge adopts it, and a dry run does not.
    scene.store("unlogged").await;
    let contents = async || {
        let stored: Vec<_> = scene.rig.context.store.list(&dl_store::Prefix::ROOT).collect().await;
        let stored = stored.into_iter().map(Result::unwrap).map(|object| (object.key, object.size));
        (stored.collect::<Vec<_>>(), scene.rig.context.meta.log(scene.id).await.unwrap())
    };
    let before = contents().await;
    for grace in [Duration::from_secs(900), Duration::ZERO] {
        let request = PurgeRequest { dry_run: true, ..request(Some("ds"), grace) };
        let told = scene.rig.purge(request).await.1.pop().unwrap();
        assert!(told.done && told.problems.is_empty(), "{told:?}");
        // Chunk 3 goes, and the live files of chunks 1 and 2 move together with the small chunk 4.
        assert_eq!((told.removed, told.rewritten, told.written), (1, 3, 0), "{told:?}");
        assert_eq!(told.merged, 1, "{told:?}");
        assert!((10_000..20_000).contains(&told.removed_bytes), "{told:?}");
        // Of 55,000 bytes of files 35,000 are dead.
        assert!((35_000..70_000).contains(&told.reclaimable_bytes), "{told:?}");
        assert_eq!(contents().await, before, "it changed something");
    }
    let done = scene.steps_with(Duration::from_secs(900)).await.pop().unwrap();
    assert_eq!((done.removed, done.rewritten, done.merged), (1, 3, 1), "{done:?}");
}

/// Keeps S-79: small chunks wait until they are settled, and dead chunks are no small chunks.
#[tokio::test]
async fn small_chunks_are_counted_until_a_purge_has_merged_them() {
    let scene = Scene::new().await;
    for number in 0..5 {
        scene.put(number, [format!("{number}")]).await;
    }
    let small = async || {
        let name = dataset("ds");
        let found = catalog::by_name(&scene.rig.context, &name, &Caller::Everybody, Detail::Counts);
        let small = found.await.unwrap().small;
        (small.chunks, small.bytes)
    };
    assert_eq!(small().await, (5, 5_000));
    let young = scene.purge().await;
    assert_eq!((young.rewritten, young.merged, young.waiting), (0, 0, 5), "{young:?}");
    scene.rig.clock.advance(young.waiting_for);
    let grace = Duration::from_secs(900);
    let done = scene.steps_with(grace).await.pop().unwrap();
    assert_eq!((done.rewritten, done.merged, done.written, done.removed), (5, 5, 1, 0), "{done:?}");
    assert!(small().await.0 <= 1, "{:?}", small().await);
    scene.rig.clock.advance(SETTLED);
    let last = scene.steps_with(grace).await.pop().unwrap();
    assert_eq!((last.rewritten, last.removed, last.waiting), (0, 5, 0), "{last:?}");
    assert_eq!(small().await, (1, 5_000));
}

/// Keeps S-27 and S-51.
#[tokio::test]
async fn a_long_purge_moves_only_what_is_alive_at_its_end() {
    let scene = Scene::new().await;
    let first = scene.put(1, (0..20).map(|n| format!("{n}"))).await;
    let second = scene.put(2, (0..10).map(|n| format!("{n}"))).await;
    scene.put(4, ["20".to_owned()]).await;
    scene.rig.clock.advance(SETTLED);
    let deleted = scene.find("0").await.unwrap().version;
    let meanwhile = async {
        scene.put(3, ["15".to_owned()]).await;
        scene.delete(deleted).await;
    };
    let done = Box::pin(scene.slow_purge(meanwhile)).await;
    assert_eq!((done.rewritten, done.problems.len()), (3, 0), "{done:?}");
    assert_eq!(scene.find("0").await, None, "deleted meanwhile");
    let overwritten = scene.find("15").await.unwrap();
    let moved = scene.find("1").await.unwrap().holder.chunk;
    assert!(overwritten.holder.chunk != moved && overwritten.length == 1_000);
    for name in (2..=20).filter(|name| *name != 15) {
        assert_eq!(scene.find(&name.to_string()).await.unwrap().holder.chunk, moved, "{name}");
    }
    // All but these two.
    let log = scene.rig.context.meta.log(scene.id).await.unwrap();
    assert_eq!(log.iter().find(|object| object.id == moved).unwrap().entry_count, 19);

    scene.rig.clock.advance(SETTLED);
    let done = scene.purge().await;
    assert!(!scene.is_logged(first).await && !scene.is_logged(second).await, "{done:?}");
    assert_eq!(scene.find("0").await, None, "it stays deleted");
    for name in 1..20 {
        assert!(scene.find(&name.to_string()).await.is_some(), "{name}");
    }
}

/// Keeps S-27, S-13 and S-34: an upload that stood still for as long as a purge waits is not let go
/// on, also where that purge has only begun.
#[tokio::test]
async fn parts_of_a_live_upload_stay_and_a_stalled_one_is_refused() {
    for (hours, goes_on) in [(21, true), (26, false)] {
        let scene = Scene::new().await;
        let shape = ChunkShape::default();
        let (mut ids, now) = (ids(5), scene.rig.clock.now());
        let (part, extent) = Sealed::part(shape, ids.next(now), scene.id, &[1; 1_000]).unwrap();
        scene.commit(&part).await.unwrap();
        scene.put(1, ["a".to_owned()]).await;
        scene.rig.clock.advance(hours * HOUR);
        let mut put = None;
        // The look of that purge takes no more than a moment.
        scene.script([Some(Fault::Delay(Duration::from_secs(20)))]).await;
        let meanwhile = async {
            scene.rig.clock.sleep(Duration::from_secs(10)).await;
            let mut last = ChunkWriter::new(shape, Vec::new());
            last.append_tail(&path("large"), ATTRIBUTES, vec![extent], b"tail").unwrap();
            let id = ids.next(scene.rig.clock.now());
            put = Some(scene.commit(&last.seal(id, scene.id)).await);
        };
        let ((done, ()), _) = scene.rig.run(futures::future::join(scene.purge(), meanwhile)).await;
        let key = object_key(scene.id, extent.part, ObjectKind::Part);
        let is_stored = !is_gone(&scene.rig.context, &key).await.unwrap();
        assert_eq!((is_stored, scene.is_logged(extent.part).await), (goes_on, goes_on));
        assert_eq!(done.removed, u64::from(!goes_on), "{done:?}");
        match put.unwrap() {
            Ok(_) => assert!(goes_on && scene.find("large").await.is_some()),
            Err(error) => {
                let told = error.chain();
                assert!(!goes_on && error.kind == Kind::Invalid, "{told}");
                assert!(told.contains("stood still for 27 hours, and may for 22"), "{told}");
            }
        }
    }
}

/// Keeps S-27 and S-52: Rule 4, for who reads by an older version.
#[tokio::test]
async fn what_a_stored_snapshot_names_stays_until_that_goes() {
    const MINUTE: Duration = Duration::from_secs(60);
    for (is_stored, grace, is_left) in
        [(true, MINUTE, true), (true, Duration::ZERO, false), (false, MINUTE, false)]
    {
        let scene = Scene::new().await;
        let first = scene.put(1, ["a".to_owned()]).await;
        if is_stored {
            scene.snapshot().await;
        }
        scene.rig.clock.advance(SETTLED);
        scene.put(2, ["a".to_owned()]).await;
        scene.rig.clock.advance(2 * MINUTE);
        let done = scene.steps_with(grace).await;
        let why = format!("{is_stored} {grace:?}: {done:?}");
        assert_eq!(scene.is_logged(first).await, is_left, "{why}");
        let PurgeProgress { waiting, waiting_for, .. } = done.last().unwrap();
        let kept = Duration::from_secs(if is_left { 70 * 60 } else { 0 });
        assert_eq!((*waiting, *waiting_for), (u64::from(is_left), kept), "{why}");
        scene.rig.clock.advance(kept);
        scene.steps_with(grace).await;
        assert!(!scene.is_logged(first).await, "{why}");
    }
}

/// Who purges again when the time is over that was told finds nothing that still waits.
#[tokio::test]
async fn waits_caused_by_the_purge_itself_are_reported() {
    let (scene, grace) = (Scene::new().await, Duration::from_secs(15 * 60));
    let gone = scene.put(1, ["a".to_owned()]).await;
    let waits = scene.put(2, ["b".to_owned()]).await;
    scene.rig.clock.advance(SETTLED);
    scene.put(3, ["a".to_owned()]).await;
    scene.rig.clock.advance(grace * 2);
    scene.put(4, ["b".to_owned()]).await;
    scene.snapshot().await;
    let done = scene.steps_with(grace).await.pop().unwrap();
    assert!(!scene.is_logged(gone).await && scene.is_logged(waits).await, "{done:?}");
    // Also the two young chunks, which a later purge merges.
    assert_eq!((done.removed, done.waiting, done.waiting_for), (1, 3, snapshot::KEPT_AT_MOST));
    scene.rig.clock.advance(grace);
    let early = scene.steps_with(grace).await.pop().unwrap();
    assert!(scene.is_logged(waits).await, "{early:?}");
    scene.rig.clock.advance(done.waiting_for - grace);
    let late = scene.steps_with(grace).await.pop().unwrap();
    assert!(!scene.is_logged(waits).await, "{late:?}");
}

/// Keeps S-27: the older version does not know of the put that ends what it names, and no stamp tells
/// when it ended.
#[tokio::test]
async fn a_late_logged_put_leaves_files_of_older_snapshots() {
    for is_last in [false, true] {
        let scene = Scene::new().await;
        let first = scene.put(1, ["a".to_owned()]).await;
        scene.rig.clock.advance(Duration::from_secs(1));
        let (id, ..) = scene.store("a").await;
        if !is_last {
            scene.rig.clock.advance(Duration::from_secs(1));
            scene.put(3, ["b".to_owned()]).await;
        }
        scene.snapshot().await;
        scene.rig.clock.advance(HOUR * 30);
        let steps = scene.steps_with(Duration::from_secs(60)).await;
        assert!(scene.is_logged(id).await && scene.is_logged(first).await, "{steps:?}");
        scene.rig.clock.advance(SETTLED);
        let steps = scene.steps_with(Duration::from_secs(60)).await;
        assert!(!scene.is_logged(first).await, "{steps:?}");
    }
}

/// Keeps S-27: the version that was the newest as the purge began is an older one by the time its log is
/// read. Where a snapshot of it is stored, that does not know of the late put; where none is, nobody is
/// waited for.
#[tokio::test]
async fn a_late_put_during_a_purge_keeps_files_of_snapshots() {
    for is_stored in [true, false] {
        let scene = Scene::new().await;
        let first = scene.put(1, ["a".to_owned()]).await;
        scene.rig.clock.advance(Duration::from_secs(1));
        let (id, key, object) = scene.store("a").await;
        // It is stamped, and still on its way.
        scene.rig.context.store.delete(&key).await.unwrap();
        scene.rig.clock.advance(Duration::from_secs(1));
        scene.put(3, ["b".to_owned()]).await;
        if is_stored {
            scene.snapshot().await;
        }
        scene.rig.clock.advance(SETTLED);
        let before = std::iter::repeat_n(None, scene.begun(|counts| counts.lists).await);
        let slow = Some(Fault::Delay(Duration::from_secs(60)));
        scene.rig.store.script("list", before.chain([slow]));
        let comes = async {
            scene.rig.clock.sleep(Duration::from_secs(30)).await;
            scene.rig.context.store.create(&key, object).await.unwrap();
            recover::adopt_unlogged(&scene.rig.context, &dataset("ds")).await.unwrap();
        };
        let purge = scene.steps_with(Duration::from_secs(60));
        let ((steps, ()), _) = scene.rig.run(futures::future::join(purge, comes)).await;
        assert!(scene.is_logged(id).await, "{steps:?}");
        assert_eq!(scene.is_logged(first).await, is_stored, "{steps:?}");
        scene.rig.clock.advance(SETTLED);
        let steps = scene.steps_with(Duration::from_secs(60)).await;
        assert!(!scene.is_logged(first).await, "{steps:?}");
    }
}

#[tokio::test]
async fn unreadable_snapshots_hold_back_only_what_they_may_name() {
    let scene = Scene::new().await;
    let first = scene.put(1, ["a".to_owned()]).await;
    scene.put(2, ["a".to_owned()]).await;
    scene.rig.clock.advance(SETTLED);
    // One more lists the objects.
    let before = std::iter::repeat_n(None, scene.begun(|counts| counts.lists).await + 1);
    let denied = Some(Fault::Before(dl_store::Kind::Denied));
    scene.rig.store.script("list", before.chain([denied]));
    let steps = scene.steps_with(Duration::from_secs(60)).await;
    let problems: Vec<_> = steps.iter().flat_map(|step| &step.problems).collect();
    assert!(scene.is_logged(first).await && problems.len() == 1, "{steps:?}");
    let steps = scene.steps_with(Duration::from_secs(60)).await;
    assert!(!scene.is_logged(first).await, "{steps:?}");
}

#[tokio::test]
async fn a_tombstone_that_cannot_be_read_again_stays() {
    let scene = Scene::new().await;
    scene.put(1, (0..10).map(|n| format!("{n}"))).await;
    let tombstone = scene.delete(scene.find("3").await.unwrap().version).await;
    scene.rig.clock.advance(SETTLED);
    let unavailable = Fault::Before(dl_store::Kind::Unavailable);
    // Read with the log, then a chunk, then to see whether something holds what it names.
    scene.script([None, None, Some(unavailable)]).await;
    let done = scene.purge().await;
    assert_eq!(done.removed, 0, "{done:?}");
    assert!(scene.is_logged(tombstone).await);
    assert_eq!(scene.find("3").await, None);
}

#[tokio::test]
async fn what_was_seen_alive_too_long_ago_is_not_committed() {
    let scene = Scene::new().await;
    scene.put(1, (0..20).map(|n| format!("{n}"))).await;
    scene.put(2, (0..10).map(|n| format!("{n}"))).await;
    scene.rig.clock.advance(SETTLED);
    // Headers of both chunks, then that of the first again, and then its files.
    let slow = Fault::Delay(Duration::from_secs(400));
    scene.script([None, None, None, Some(slow)]).await;
    let request = request(Some("ds"), Duration::ZERO);
    let ((done, _), _) = scene.rig.run(scene.rig.purge(request)).await;
    assert_eq!(done.unwrap_err().kind, Kind::TimedOut);
    let objects = scene.rig.context.meta.log(scene.id).await.unwrap();
    assert_eq!(objects.len(), 2, "nothing was moved, and nothing removed");
    assert!(scene.find("7").await.is_some_and(|record| record.length == 1_000));
}

/// Keeps S-27: metadata that lost its last writes has objects that a purge removed. A part that a file needs
/// is another matter.
#[tokio::test]
async fn lost_objects_leave_the_log_when_no_file_needs_them() {
    let scene = Scene::new().await;
    let shape = ChunkShape::default();
    let (mut ids, now) = (ids(5), scene.rig.clock.now());
    let (part, extent) = Sealed::part(shape, ids.next(now), scene.id, &[1; 1_000]).unwrap();
    scene.commit(&part).await.unwrap();
    let mut last = ChunkWriter::new(shape, Vec::new());
    last.append_tail(&path("large"), ATTRIBUTES, vec![extent], b"tail").unwrap();
    scene.commit(&last.seal(ids.next(now), scene.id)).await.unwrap();
    let dead = scene.put(1, ["a".to_owned()]).await;
    scene.put(2, ["a".to_owned()]).await;
    let lose = async |id, kind| {
        let key = object_key(scene.id, id, kind);
        scene.rig.context.store.delete(&key).await.unwrap();
    };
    lose(dead, ObjectKind::Chunk).await;
    assert_eq!(scene.purge().await.problems, Vec::<String>::new());
    assert!(!scene.is_logged(dead).await);
    lose(extent.part, ObjectKind::Part).await;
    let done = scene.purge().await;
    assert!(done.problems.len() == 1 && scene.is_logged(extent.part).await, "{done:?}");
    scene.put(3, ["large".to_owned()]).await;
    scene.rig.clock.advance(SETTLED);
    assert_eq!(scene.purge().await.problems, Vec::<String>::new());
    assert!(!scene.is_logged(extent.part).await);
}

/// Keeps S-27 and S-52: of two servers that both take a client, one is 29 minutes behind.
#[tokio::test]
async fn what_a_server_that_is_behind_still_takes_stays() {
    let scene = Scene::new().await;
    let (context, minutes) = (&scene.rig.context, |count: u64| Duration::from_secs(60 * count));
    let now = scene.rig.clock.now();
    let of_client = ids(1).next(now - minutes(29) / 2);
    let first = chunk(of_client, scene.id, ["a".to_owned()], &[1; 1_000]);
    let stamp = scene.commit(&first).await.unwrap();
    scene.put(2, ["a".to_owned()]).await;
    // It is sent again, over the slowest line.
    scene.rig.clock.advance(minutes(44));
    let done = scene.purge().await;
    assert_eq!((done.removed, done.waiting), (0, 1), "{done:?}");
    let behind = Arc::new(ManualClock::new(scene.rig.clock.now() - minutes(29)));
    let behind = ServerContext { clock: behind, ..context.clone() };
    let began = behind.clock.now() - minutes(15);
    let object = first.as_slice().to_vec();
    let again = testing::commit(&behind, scene.id, object, began).await;
    assert_eq!(again.unwrap(), stamp, "it came anew");
    let settles = of_client.sealed_at() + minutes(70);
    assert_eq!(done.waiting_for, settles.duration_since(scene.rig.clock.now()).unwrap());
    scene.rig.clock.advance(done.waiting_for - Duration::from_millis(1));
    assert_eq!(scene.purge().await.removed, 0);
    scene.rig.clock.advance(Duration::from_millis(1));
    assert_eq!(scene.purge().await.removed, 1);
}

#[tokio::test]
async fn a_purge_of_all_passes_over_a_dataset_being_deleted() {
    let scene = Scene::new().await;
    scene.put(1, ["a".to_owned()]).await;
    let other = scene.rig.create("other").await;
    scene.rig.store_chunk(other, 1).await;
    let (context, turns) = (&scene.rig.context, Turns::new());
    let surveys = [turns.survey(context, || true).await, turns.survey(context, || true).await];
    let deletes = async {
        scene.rig.clock.sleep(Duration::from_secs(1)).await;
        scene.rig.delete("ds", scene.id).await.unwrap();
        drop(surveys);
    };
    let purge = scene.rig.purge_with(&turns, request(None, Duration::ZERO));
    let (((done, steps), ()), _) = scene.rig.run(futures::future::join(purge, deletes)).await;
    done.unwrap();
    assert!(steps.iter().all(|step| step.problems.is_empty()), "{steps:?}");
    let done: Vec<_> = steps.into_iter().filter(|step| step.done).collect();
    assert!(matches!(&done[..], [only] if only.dataset == "other"), "{done:?}");
}
