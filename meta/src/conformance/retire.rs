//! Checks of `retire`: what is taken off the log is as if it had never been appended.
//!
//! Must hold: what is picked at random is what a caller may vouch for: no live file lies in it, nor a
//! deleted one that hides an older version; a tombstone goes after all that it names.

use std::collections::{HashMap, HashSet};

use dl_format::{ChunkId, Committed, EntryVersion, FilePath, FileRecord, ObjectKind, Stamp};

use super::history::{self, Maker, read_back};
use super::model::Model;
use super::{append, id, put, record};
use crate::{Kind, MetaStore};

/// The versions of each path, the winner first.
type Versions = HashMap<FilePath, Vec<FileRecord>>;

fn versions(objects: &[Committed]) -> Versions {
    let mut versions = Versions::new();
    for object in objects {
        for entry in object.header().entries() {
            let record = FileRecord::of(object, &entry);
            versions.entry(entry.path).or_default().push(record);
        }
    }
    for of_path in versions.values_mut() {
        of_path.sort_by_key(|record| std::cmp::Reverse((record.version, record.holder)));
    }
    versions
}

/// Objects of which the caller of `retire` may vouch what it has to, `chosen` out of those.
fn retirable(objects: &[Committed], mut chosen: impl FnMut() -> bool) -> HashSet<ChunkId> {
    let named: HashSet<(ChunkId, u32)> = objects
        .iter()
        .flat_map(|object| object.header().deletions().iter())
        .flat_map(|(chunk, entries)| entries.iter().map(move |entry| (chunk, entry)))
        .collect();
    let is_named = |version: &EntryVersion| named.contains(&(version.chunk, version.entry));
    let mut needed: HashSet<ChunkId> = HashSet::new();
    let versions = versions(objects);
    for of_path in versions.values() {
        let Some((winner, others)) = of_path.split_first() else { continue };
        let is_lone = others.iter().all(|other| is_named(&other.version));
        if !is_named(&winner.version) {
            needed.insert(winner.holder.chunk);
        } else if !is_lone {
            let copies = of_path.iter().filter(|other| other.version == winner.version);
            needed.extend(copies.map(|copy| copy.holder.chunk));
        }
    }
    let mut retired = HashSet::new();
    for object in objects.iter().filter(|object| object.header().kind() != ObjectKind::Tombstone) {
        let id = object.header().id();
        if !needed.contains(&id) && !retired.contains(&id) && chosen() {
            retired.insert(id);
        }
    }
    let stays = |record: &&FileRecord| !retired.contains(&record.holder.chunk);
    let held: HashSet<(ChunkId, u32)> = versions
        .values()
        .flatten()
        .filter(stays)
        .map(|record| (record.version.chunk, record.version.entry))
        .collect();
    let is_held = |object: &Committed| {
        let mut named = object.header().deletions().iter();
        named.any(|(chunk, entries)| entries.iter().any(|entry| held.contains(&(chunk, entry))))
    };
    for object in objects.iter().filter(|object| object.header().kind() == ObjectKind::Tombstone) {
        if !is_held(object) && chosen() {
            retired.insert(object.header().id());
        }
    }
    retired
}

pub(super) async fn retired_objects_are_as_if_they_had_never_been(
    store: &dyn MetaStore,
    seed: u64,
) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), seed);
    let history = maker.history(40);
    append(store, &history).await;
    let before = store.stamp(id(1), Stamp::new(1)).await.expect("stamp");
    let all = seed.is_multiple_of(2);
    let retired = retirable(&history, || all || maker.below(3) > 0);
    let ids: Vec<ChunkId> = retired.iter().copied().chain([ChunkId::from_bytes([9; 16])]).collect();
    let stays = |object: &&Committed| !retired.contains(&object.header().id());
    let mut model = Model::of(history.iter().filter(stays));
    for _ in 0..2 {
        store.retire(id(1), &ids).await.expect("retire, twice");
        for limit in [1, 1_000] {
            model.check(store, id(1), limit).await;
        }
    }
    let after = store.stamp(id(1), Stamp::new(1)).await.expect("stamp");
    assert!(after > before, "{store}: stamps go on");

    // What a crash left in the chunk store is found again, and gone once more.
    let is_tombstone = |object: &&Committed| object.header().kind() == ObjectKind::Tombstone;
    let gone = |object: &&Committed| retired.contains(&object.header().id());
    if !history.iter().filter(gone).any(|object| is_tombstone(&object)) {
        for object in history.iter().filter(gone) {
            let wanted = model.add(object);
            assert_eq!(store.append(&read_back(object)).await.expect("append"), wanted);
        }
        model.check(store, id(1), 3).await;
    }
    let object = maker.chunk([(&b"a"[..], 1), (&b"new"[..], 2)]);
    store.append(&object).await.expect("append");
    model.add(&object);
    model.check(store, id(1), 3).await;
}

pub(super) async fn an_object_in_which_a_file_lies_stays(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), 0);
    let objects = [maker.files(["x"]), maker.chunk([(&b"x"[..], 2)])];
    append(store, &objects).await;
    let ids = objects.each_ref().map(|object| object.header().id());
    let refused = store.retire(id(1), &ids).await.expect_err("a file lies there");
    assert_eq!(refused.kind, Kind::Conflict, "{store}");
    Model::of(&objects).check(store, id(1), 3).await;
    store.retire(id(1), &ids[..1]).await.expect("it was overwritten");
    Model::of(&objects[1..]).check(store, id(1), 3).await;
}

/// Counts are those of one set of objects, not of so many.
pub(super) async fn what_was_counted_of_other_objects_is_not_taken_for_now(store: &dyn MetaStore) {
    put(store, &record("a", 1, 1)).await;
    let mut maker = Maker::new(id(1), 0);
    let (old, kept) = (maker.files(["x"]), maker.files(["y"]));
    let tombstone = maker.tombstone(&history::versions(&old));
    append(store, [&old, &kept, &tombstone]).await;
    store.dataset(id(1)).await.expect("counted");
    store.retire(id(1), &[old.header().id()]).await.expect("retire");
    let more = maker.chunk([(&b"z"[..], 7), (&b"zz"[..], 9)]);
    append(store, [&more]).await;
    Model::of([&kept, &tombstone, &more]).check(store, id(1), 3).await;
}
