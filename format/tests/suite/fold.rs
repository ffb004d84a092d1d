//! The fold against the model: random histories of writes, deletes and purges, whose objects
//! arrive in any order and more than once.

use std::collections::{BTreeMap, BTreeSet};

use dl_format::{
    Attributes, ChunkId, ChunkWriter, Committed, Crc32c, Deletions, EntryVersion, Fold, Stamp,
    encode_tombstone,
};
use proptest::prelude::*;

use crate::build::{DATASET, Random, bytes_of, cases, committed, id, path, small};
use crate::model::{self, Copy, File, Object};

/// Few paths, so that they collide; includes files and folders of the same name.
const PATHS: [&str; 8] = ["a", "a.b", "a/b", "a/b/c", "a/c", "a0", "b", "b/c"];

/// A step of a history. Numbers select an existing object, modulo their count.
#[derive(Debug, Clone)]
enum Step {
    /// A chunk with the given paths; with the stamp of the object before if `tie`.
    Put { paths: Vec<usize>, tie: bool },
    /// Deletes a file visible to readers.
    Delete(usize),
    /// Deletes any version in the store, like a late retry.
    DeleteLate(usize),
    /// Reads chunks and prepares their replacements.
    Purge(Vec<usize>),
    /// Commits the replacements prepared by purges.
    CommitPurges,
    /// Removes objects made needless by a purge.
    Remove,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let several = || prop::collection::vec(0..64usize, 1..4);
    let step = prop_oneof![
        5 => (several(), prop::bool::weighted(0.2)).prop_map(|(paths, tie)| Step::Put { paths, tie }),
        3 => (0..64usize).prop_map(Step::Delete),
        1 => (0..64usize).prop_map(Step::DeleteLate),
        3 => several().prop_map(Step::Purge),
        2 => Just(Step::CommitPurges),
        2 => Just(Step::Remove),
    ];
    prop::collection::vec(step, 1..40)
}

/// The objects of a dataset, for the model and as bytes.
#[derive(Debug, Default)]
struct History {
    objects: Vec<Object>,
    bytes: BTreeMap<ChunkId, Committed>,
    prepared: Vec<Object>,
    purged: BTreeSet<ChunkId>,
    stamp: u64,
    made: u32,
}

impl History {
    fn object(&mut self, files: Vec<File>, deletes: Vec<(ChunkId, u32)>) -> Object {
        // Ids are unordered, like the ids of several writers.
        self.made += 1;
        let id = id(self.made.wrapping_mul(0x9E37_79B1));
        Object { stamp: 0, id, files, deletes }
    }

    fn commit(&mut self, mut object: Object, tie: bool) {
        if object.files.is_empty() && object.deletes.is_empty() {
            return;
        }
        self.stamp = (self.stamp + u64::from(!tie)).max(1);
        object.stamp = self.stamp;
        self.bytes.insert(object.id, committed_object(&object));
        self.objects.push(object);
    }

    fn delete(&mut self, copy: Option<Copy>) {
        if let Some(Copy { version, .. }) = copy {
            let tombstone = self.object(vec![], vec![(version.chunk, version.entry)]);
            self.commit(tombstone, false);
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Put { paths, tie } => {
                let files = paths.iter().map(|path| File {
                    path: PATHS[path % PATHS.len()],
                    origin: None,
                    content: u64::from(self.made) * 100 + *path as u64,
                });
                let files = files.collect();
                let chunk = self.object(files, vec![]);
                self.commit(chunk, *tie);
            }
            Step::Delete(number) => {
                let live = model::live(&self.objects);
                let count = live.len().max(1);
                self.delete(live.into_values().nth(number % count));
            }
            Step::DeleteLate(number) => {
                let copies: Vec<Copy> = model::copies(&self.objects).collect();
                self.delete(copies.get(number % copies.len().max(1)).copied());
            }
            Step::Purge(numbers) => self.purge(numbers),
            Step::CommitPurges => {
                for object in std::mem::take(&mut self.prepared) {
                    self.commit(object, false);
                }
            }
            // A running purge may still need all chunks it has read.
            Step::Remove if self.prepared.is_empty() => self.remove(),
            Step::Remove => {}
        }
    }

    /// Moves live entries into a new chunk under their old versions. Dead winners are dropped, so
    /// the files they shadow are deleted too.
    fn purge(&mut self, numbers: &[usize]) {
        let winners = model::winners(&self.objects);
        let (mut files, mut deletes) = (Vec::new(), Vec::new());
        let chosen: BTreeSet<usize> =
            numbers.iter().map(|number| number % self.objects.len().max(1)).collect();
        for chunk in chosen.into_iter().filter_map(|number| self.objects.get(number)) {
            self.purged.insert(chunk.id);
            for copy in chunk.copies().filter(|copy| winners[copy.path].version == copy.version) {
                if !model::is_deleted(&self.objects, copy.version) {
                    let Copy { path, version, content, .. } = copy;
                    files.push(File { path, origin: Some(version), content });
                    continue;
                }
                let shadowed = model::copies(&self.objects)
                    .filter(|other| other.path == copy.path && other.version != copy.version)
                    .map(|other| (other.version.chunk, other.version.entry));
                deletes.extend(shadowed);
            }
        }
        let (chunk, tombstone) = (self.object(files, vec![]), self.object(vec![], deletes));
        self.prepared.extend([tombstone, chunk]);
    }

    fn remove(&mut self) {
        for id in std::mem::take(&mut self.purged) {
            self.remove_when(id, Self::is_chunk_needless);
        }
        let tombstones = self.objects.iter().filter(|object| !object.deletes.is_empty());
        for id in tombstones.map(|object| object.id).collect::<Vec<_>>() {
            self.remove_when(id, Self::is_tombstone_needless);
        }
    }

    fn remove_when(&mut self, id: ChunkId, is_needless: fn(&[Object], &Object) -> bool) {
        let Some(place) = self.objects.iter().position(|object| object.id == id) else { return };
        let object = self.objects.remove(place);
        if !is_needless(&self.objects, &object) {
            self.objects.insert(place, object);
        }
    }

    /// Whether all live files of a chunk have copies in others, and no dead file in it shadows a
    /// file in others.
    fn is_chunk_needless(others: &[Object], chunk: &Object) -> bool {
        let all = [others, std::slice::from_ref(chunk)].concat();
        let winners = model::winners(&all);
        chunk.deletes.is_empty()
            && chunk.copies().filter(|copy| winners[copy.path].version == copy.version).all(
                |copy| {
                    let mut elsewhere =
                        model::copies(others).filter(|other| other.path == copy.path);
                    if model::is_deleted(&all, copy.version) {
                        elsewhere.all(|other| model::is_deleted(others, other.version))
                    } else {
                        elsewhere.any(|other| other.version == copy.version)
                    }
                },
            )
    }

    fn is_tombstone_needless(others: &[Object], tombstone: &Object) -> bool {
        let is_named =
            |copy: Copy| tombstone.deletes.contains(&(copy.version.chunk, copy.version.entry));
        !model::copies(others).any(is_named)
    }

    /// The fold of all objects in a random order, some of them twice.
    fn fold(&self, random: &mut Random) -> Fold {
        let mut arrivals: Vec<&Object> = self.objects.iter().collect();
        for _ in 0..random.below(4) {
            arrivals.extend(self.objects.get(random.below(self.objects.len().max(1))));
        }
        random.shuffle(&mut arrivals);
        let mut fold = Fold::default();
        for object in arrivals {
            fold.add(&self.bytes[&object.id]);
        }
        fold
    }
}

fn committed_object(object: &Object) -> Committed {
    let bytes = if object.files.is_empty() {
        let mut deletions = Deletions::default();
        for (chunk, entry) in &object.deletes {
            let stamp = Stamp::new(1);
            assert!(deletions.insert(&EntryVersion { stamp, chunk: *chunk, entry: *entry }));
        }
        encode_tombstone(DATASET, object.id, &deletions).expect("they fit")
    } else {
        let mut writer = ChunkWriter::new(small(), Vec::new());
        for File { path: name, origin, content } in &object.files {
            let (name, content) = (path(name), content.to_le_bytes());
            match origin {
                Some(origin) => {
                    writer
                        .rewrite(&name, Attributes::default(), &content, *origin)
                        .expect("it has room");
                }
                None => writer.append(&name, Attributes::default(), &content).expect("it has room"),
            }
        }
        bytes_of(&writer.seal(object.id, DATASET))
    };
    committed(bytes, object.stamp).0
}

/// The state visible to a reader: path, version, holder and content.
type Seen = BTreeMap<String, (EntryVersion, EntryVersion, Crc32c)>;

fn seen_by_model(history: &History) -> Seen {
    let crc = |content: u64| Crc32c::of(&content.to_le_bytes());
    let see = |copy: Copy| (copy.path.to_owned(), (copy.version, copy.holder, crc(copy.content)));
    model::live(&history.objects).into_values().map(see).collect()
}

fn seen_by(fold: &Fold) -> Seen {
    fold.live()
        .map(|(path, file)| (path.to_string(), (file.version, file.holder, file.crc)))
        .collect()
}

fn without_holders(seen: Seen) -> BTreeMap<String, (EntryVersion, Crc32c)> {
    seen.into_iter().map(|(path, (version, _, crc))| (path, (version, crc))).collect()
}

proptest! {
    #![proptest_config(cases())]

    /// Keeps S-17 (Rule 1), S-19 (Rule 3), S-25 (Rule 4), S-09 (Rule 9), S-02 (I2), S-04 (I4):
    /// the objects decide, in whatever order they come, and a purge changes nothing that a reader sees.
    #[test]
    fn any_order_of_arrival_obeys_the_rules(
        steps in steps(),
        seed in any::<u64>(),
    ) {
        let (mut history, mut random) = (History::default(), Random(seed));
        for step in &steps {
            let before = seen_by_model(&history);
            history.take(step);
            let expected = seen_by_model(&history);
            let fold = history.fold(&mut random);
            prop_assert_eq!(&seen_by(&fold), &expected);
            let conflicts: BTreeSet<String> = fold.conflicts().map(ToString::to_string).collect();
            let hidden = model::conflicts(&history.objects).into_iter().map(str::to_owned);
            prop_assert_eq!(conflicts, hidden.collect());
            if matches!(step, Step::Purge(_) | Step::CommitPurges | Step::Remove) {
                prop_assert_eq!(without_holders(before), without_holders(expected));
            }
        }
        for name in PATHS {
            let found = history.fold(&mut random).get(&path(name)).map(|file| file.version);
            let live = model::live(&history.objects);
            prop_assert_eq!(found, live.get(name).map(|copy| copy.version));
        }
    }
}
