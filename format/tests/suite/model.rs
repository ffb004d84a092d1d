//! A model of a dataset's contents, written from the rules alone in the slowest way: every answer
//! scans every object. The model shares no code with the fold.

use std::collections::{BTreeMap, BTreeSet};

use dl_format::{ChunkId, EntryVersion};

/// A file of a chunk.
#[derive(Debug, Clone)]
pub(crate) struct File {
    pub(crate) path: &'static str,
    pub(crate) origin: Option<EntryVersion>,
    pub(crate) content: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub(crate) stamp: u64,
    pub(crate) id: ChunkId,
    pub(crate) files: Vec<File>,
    /// For a tombstone, which has no files.
    pub(crate) deletes: Vec<(ChunkId, u32)>,
}

/// A copy of a version of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copy {
    pub(crate) path: &'static str,
    pub(crate) version: EntryVersion,
    pub(crate) holder: EntryVersion,
    pub(crate) content: u64,
}

impl Object {
    pub(crate) fn copies(&self) -> impl Iterator<Item = Copy> + '_ {
        self.files.iter().zip(0u32..).map(|(file, entry)| {
            let stamp = dl_format::Stamp::new(self.stamp);
            let holder = EntryVersion { stamp, chunk: self.id, entry };
            let version = file.origin.unwrap_or(holder);
            Copy { path: file.path, version, holder, content: file.content }
        })
    }
}

pub(crate) fn copies(objects: &[Object]) -> impl Iterator<Item = Copy> + '_ {
    objects.iter().flat_map(Object::copies)
}

pub(crate) fn is_deleted(objects: &[Object], version: EntryVersion) -> bool {
    objects.iter().any(|object| object.deletes.contains(&(version.chunk, version.entry)))
}

/// By stamp, then by id, then by number of the entry.
fn order(version: EntryVersion) -> (u64, [u8; 16], u32) {
    (version.stamp.get(), *version.chunk.as_bytes(), version.entry)
}

/// The greatest version of each path, dead or not, in its latest copy.
pub(crate) fn winners(objects: &[Object]) -> BTreeMap<&'static str, Copy> {
    let paths: BTreeSet<&str> = copies(objects).map(|copy| copy.path).collect();
    paths
        .into_iter()
        .filter_map(|path| {
            let of_path = copies(objects).filter(|copy| copy.path == path);
            Some((path, of_path.max_by_key(|copy| (order(copy.version), order(copy.holder)))?))
        })
        .collect()
}

fn undeleted(objects: &[Object]) -> BTreeMap<&'static str, Copy> {
    let mut winners = winners(objects);
    winners.retain(|_, copy| !is_deleted(objects, copy.version));
    winners
}

fn is_folder(files: &BTreeMap<&'static str, Copy>, path: &str) -> bool {
    files.keys().any(|other| other.starts_with(&format!("{path}/")))
}

/// The files visible to a reader.
pub(crate) fn live(objects: &[Object]) -> BTreeMap<&'static str, Copy> {
    let files = undeleted(objects);
    files.iter().filter(|(path, _)| !is_folder(&files, path)).map(|(p, c)| (*p, *c)).collect()
}

/// The files hidden by a folder of the same name.
pub(crate) fn conflicts(objects: &[Object]) -> BTreeSet<&'static str> {
    let files = undeleted(objects);
    files.keys().copied().filter(|path| is_folder(&files, path)).collect()
}
