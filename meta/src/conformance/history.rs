//! Histories of a dataset, drawn from a seed: overwrites, deletes that come before and after what
//! they name, rewrites, parts, and files that are folders too, in any order, some twice.

use bytes::Bytes;
use dl_format::{
    Attributes, ChunkId, ChunkShape, ChunkWriter, Committed, DatasetId, Deletions, EntryVersion,
    FilePath, FileRecord, Fold, Header, Sealed, Stamp, Verified, encode_tombstone,
};
use dl_runtime::{Random, SeededRandom};

/// Paths that are prefixes of each other, with bytes on both sides of the slash between.
const PATHS: &[&[u8]] = &[
    b"a",
    b"a-",
    b"a.txt",
    b"a/b",
    b"a/b-c",
    b"a/b/c",
    b"a/b/d",
    b"a/b0",
    b"a0",
    b"a0/x",
    b"b",
    b"b/\x01",
    b"b/\xFF\xFE",
    b"b/c/d/e/f",
    b"b/c/d/e0",
    b"train/n01/1.JPEG",
    b"train/n01/2.JPEG",
    b"train/n02/1.JPEG",
    b"z \n",
    b"\xFF",
];

/// Makes the objects of one dataset.
#[derive(Debug)]
pub(crate) struct Maker {
    pub(super) dataset: DatasetId,
    random: SeededRandom,
    ids: u32,
    clock: u64,
}

impl Maker {
    pub(crate) fn new(dataset: DatasetId, seed: u64) -> Self {
        Self { dataset, random: SeededRandom::new(seed), ids: 0, clock: 1_000 }
    }

    pub(super) fn below(&self, end: usize) -> usize {
        usize::try_from(self.random.u64() % (end.max(1) as u64)).unwrap_or(0)
    }

    /// One of a few paths.
    pub(super) fn path(&self) -> &'static [u8] {
        PATHS.get(self.below(PATHS.len())).copied().unwrap_or(b"a")
    }

    fn id(&mut self) -> ChunkId {
        self.ids += 1;
        let mut bytes = [7; 16];
        for (byte, value) in bytes.iter_mut().zip(self.ids.to_le_bytes()) {
            *byte = value;
        }
        ChunkId::from_bytes(bytes)
    }

    fn stamp(&mut self) -> Stamp {
        // Sometimes the same one again: then the ids decide.
        self.clock += self.random.u64() % 3;
        Stamp::new(self.clock)
    }

    fn commit(&mut self, object: Vec<u8>) -> Committed {
        commit_at(self.stamp(), object)
    }

    /// A chunk of the given files, by path and length.
    pub(crate) fn chunk<'a>(
        &mut self,
        files: impl IntoIterator<Item = (&'a [u8], usize)>,
    ) -> Committed {
        let stamp = self.stamp();
        self.chunk_at(stamp, files)
    }

    /// A chunk of files of one byte each.
    pub(crate) fn files(&mut self, names: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Committed {
        let names: Vec<_> = names.into_iter().collect();
        self.chunk(names.iter().map(|name| (name.as_ref(), 1)))
    }

    /// [`Maker::chunk`] with a stamp of the caller's.
    pub(super) fn chunk_at<'a>(
        &mut self,
        stamp: Stamp,
        files: impl IntoIterator<Item = (&'a [u8], usize)>,
    ) -> Committed {
        let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
        for (path, length) in files {
            let attributes = Attributes { mode: 0o644, mtime: i64::from(self.ids) };
            writer
                .append(&super::path(path), attributes, &vec![7; length])
                .expect("it fits into a chunk");
        }
        let sealed = writer.seal(self.id(), self.dataset);
        commit_at(stamp, sealed.as_slice().to_vec())
    }

    /// A tombstone of the given versions.
    pub(crate) fn tombstone(&mut self, versions: &[EntryVersion]) -> Committed {
        let mut deletions = Deletions::default();
        for version in versions {
            deletions.insert(version);
        }
        let object = encode_tombstone(self.dataset, self.id(), &deletions);
        self.commit(object.expect("it fits into a header"))
    }

    /// What a purge writes of live files, by path, version and length.
    pub(crate) fn rewrite(&mut self, live: &[(FilePath, EntryVersion, u64)]) -> Committed {
        let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
        let mut replaces: Vec<_> = live.iter().map(|(_, version, _)| version.chunk).collect();
        replaces.sort_unstable();
        replaces.dedup();
        for (path, origin, length) in live {
            let data = vec![7; usize::try_from(*length).unwrap_or(0)];
            writer
                .rewrite(path, Attributes { mode: 0o600, mtime: 5 }, &data, *origin)
                .expect("it fits into a chunk");
        }
        for chunk in replaces {
            writer.replace(chunk).expect("it fits into a header");
        }
        let sealed = writer.seal(self.id(), self.dataset);
        self.commit(sealed.as_slice().to_vec())
    }

    fn part(&mut self) -> Committed {
        let (id, data) = (self.id(), vec![3; 100]);
        let part = Sealed::part(ChunkShape::default(), id, self.dataset, &data);
        let (part, _) = part.expect("it fits into a chunk");
        self.commit(part.as_slice().to_vec())
    }

    /// About `steps` objects, in the order in which they are to be appended.
    pub(crate) fn history(&mut self, steps: usize) -> Vec<Committed> {
        let (mut fold, mut objects) = (Fold::default(), Vec::new());
        let mut written: Vec<EntryVersion> = Vec::new();
        for _ in 0..steps {
            let live: Vec<_> = fold
                .winners()
                .filter(|(_, _, deleted)| !deleted)
                .map(|(path, record, _)| (path.clone(), record.version, record.length))
                .collect();
            let object = match self.below(10) {
                0..=4 => {
                    let count = 1 + self.below(6);
                    let files: Vec<_> = (0..count).map(|_| (self.path(), self.below(50))).collect();
                    self.chunk(files)
                }
                5 | 6 if !live.is_empty() => {
                    let count = 1 + self.below(live.len());
                    let first = self.below(live.len());
                    let versions: Vec<_> = live
                        .iter()
                        .cycle()
                        .skip(first)
                        .take(count)
                        .map(|(_, version, _)| *version)
                        .collect();
                    self.tombstone(&versions)
                }
                7 if !written.is_empty() => {
                    // An old version, perhaps shadowed, and one that never was.
                    let old = written.get(self.below(written.len())).copied();
                    let never = old.map(|old| EntryVersion { entry: old.entry + 1_000, ..old });
                    self.tombstone(&old.into_iter().chain(never).collect::<Vec<_>>())
                }
                8 if !live.is_empty() => self.rewrite(&live),
                _ => self.part(),
            };
            written.extend(versions(&object));
            fold.add(&object);
            objects.push(object);
        }
        for index in (1..objects.len()).rev() {
            objects.swap(index, self.below(index + 1));
        }
        let again: Vec<_> = objects.iter().step_by(7).cloned().collect();
        objects.extend(again);
        objects
    }
}

/// The versions of the files of an object, in the order of its entries.
pub(crate) fn versions(object: &Committed) -> Vec<EntryVersion> {
    let entries = object.header().entries();
    entries.map(|entry| FileRecord::of(object, &entry).version).collect()
}

fn commit_at(stamp: Stamp, object: Vec<u8>) -> Committed {
    let verified = Verified::check(object).expect("what the suite packs is whole");
    let (committed, _) = verified.commit(stamp).expect("it was not committed yet");
    committed
}

/// The object as a recovery reads it: decoded anew from the bytes of its header.
pub(super) fn read_back(object: &Committed) -> Committed {
    let raw = Bytes::copy_from_slice(object.header().raw());
    Header::decode(&raw).and_then(Header::committed).expect("a committed header reads back")
}
