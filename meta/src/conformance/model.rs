//! What a store should answer: `dl_format::Fold` over the log, and listings by brute force.
//!
//! Must hold: no index and no walk of the stores is used here, so that a fault of theirs can't hide
//! itself; lookups, counts, the log and listings page by page are compared with it.

use std::collections::{BTreeMap, BTreeSet};

use dl_format::{
    ChunkId, Committed, DatasetId, DirPath, EntrySet, EntryVersion, FilePath, Fold, Version,
};

use super::history::versions;
use crate::{Appended, Found, ListEntry, ListQuery, MetaStore, ObjectRecord};

/// The log of one dataset.
#[derive(Debug, Default)]
pub(crate) struct Model {
    fold: Fold,
    objects: BTreeMap<ChunkId, Committed>,
}

impl Model {
    /// The log of these objects.
    pub(crate) fn of<'a>(objects: impl IntoIterator<Item = &'a Committed>) -> Self {
        let mut model = Self::default();
        objects.into_iter().for_each(|object| _ = model.add(object));
        model
    }

    /// Appends, as a store does.
    pub(crate) fn add(&mut self, object: &Committed) -> Appended {
        if self.objects.insert(object.header().id(), object.clone()).is_some() {
            return Appended::Known;
        }
        self.fold.add(object);
        Appended::New
    }

    pub(crate) fn objects(&self) -> Vec<ObjectRecord> {
        let named: BTreeSet<(ChunkId, u32)> = self
            .objects
            .values()
            .flat_map(|object| object.header().deletions().iter())
            .flat_map(|(chunk, entries)| entries.iter().map(move |entry| (chunk, entry)))
            .collect();
        let record = |object: &Committed| {
            let header = object.header();
            let entries = (0..header.entry_count()).filter(|e| named.contains(&(header.id(), *e)));
            ObjectRecord {
                id: header.id(),
                kind: header.kind(),
                stamp: object.stamp(),
                object_length: header.object_length(),
                header_length: header.header_length() as u32,
                entry_count: header.entry_count(),
                file_bytes: header.file_bytes(),
                deleted_entries: entries.count() as u32,
            }
        };
        self.objects.values().map(record).collect()
    }

    /// Every folder that holds a live file, the root too.
    fn folders(&self) -> BTreeSet<DirPath> {
        let mut folders = BTreeSet::from([DirPath::ROOT]);
        for (path, _) in self.fold.live() {
            let mut dir = path.parent();
            while !dir.is_root() {
                let up = path_of(&dir).parent();
                folders.insert(dir);
                dir = up;
            }
        }
        folders
    }

    fn listing(&self, dir: &DirPath, recursive: bool) -> Vec<ListEntry> {
        let prefix = dir.prefix();
        let mut entries = BTreeMap::new();
        for (path, record) in self.fold.live() {
            let Some(rest) = path.as_bytes().strip_prefix(prefix.as_slice()) else { continue };
            let slash = rest.iter().position(|byte| *byte == b'/').filter(|_| !recursive);
            let entry = match slash {
                Some(slash) => {
                    let end = prefix.len() + slash;
                    ListEntry::Folder(super::path(path.as_bytes().get(..end).unwrap_or_default()))
                }
                None => ListEntry::File(path.clone(), *record),
            };
            entries.insert(entry.key(), entry);
        }
        entries.into_values().collect()
    }

    /// Compares everything that `store` says of the dataset, listings in pages of `limit`.
    pub(crate) async fn check(&self, store: &dyn MetaStore, dataset: DatasetId, limit: usize) {
        let folders = self.folders();
        let mut paths: Vec<FilePath> =
            self.fold.winners().map(|(path, _, _)| path.clone()).collect();
        paths.extend(folders.iter().filter(|dir| !dir.is_root()).map(path_of));
        paths.push(super::path(b"not/there"));
        let wanted: Vec<_> = paths
            .iter()
            .map(|path| match self.fold.get(path) {
                Some(record) => Found::File(*record),
                None if folders.iter().any(|dir| dir.as_bytes() == path.as_bytes()) => {
                    Found::Folder
                }
                None => Found::Missing,
            })
            .collect();
        let found = store.lookup(dataset, &paths).await.expect("look up");
        for ((path, wanted), found) in paths.iter().zip(&wanted).zip(&found) {
            assert_eq!(found, wanted, "{store}: {path}");
        }
        assert_eq!(found.len(), paths.len(), "{store}");

        let gone = DirPath::new(&b"not"[..]).expect("a path");
        for dir in folders.iter().chain([&gone]) {
            for recursive in [false, true] {
                let wanted = self.listing(dir, recursive);
                assert_eq!(list(store, dataset, dir, recursive, limit).await, wanted, "{store}");
            }
        }

        // Before anybody has counted.
        let outline = store.outline(dataset).await.expect("ask").expect("it is there");
        let live: Vec<_> = self.fold.winners().filter(|(_, _, deleted)| !deleted).collect();
        let info = store.dataset(dataset).await.expect("ask").expect("it is there");
        assert_eq!(info.files, live.len() as u64, "{store}: files");
        let bytes: u64 = live.iter().map(|(_, record, _)| record.length).sum();
        assert_eq!(info.bytes, bytes, "{store}: bytes");
        assert_eq!(info.objects, self.objects.len() as u64, "{store}: objects");
        let mut version = Version::default();
        self.objects.values().for_each(|object| version.add(object.header().id(), object.stamp()));
        assert_eq!(info.version, version, "{store}: version");
        let is_known = (outline.objects, outline.version) == (info.objects, info.version);
        assert!(is_known && outline.record == info.record, "{store}: {outline:?}, {info:?}");
        let objects = store.objects(dataset, None, usize::MAX).await.expect("ask");
        assert_eq!(objects, self.objects(), "{store}");
        self.check_deleted(store, dataset).await;
    }

    /// Compares what is deleted of all that the log holds.
    async fn check_deleted(&self, store: &dyn MetaStore, dataset: DatasetId) {
        let versions: Vec<EntryVersion> = self.objects.values().flat_map(versions).collect();
        let mut chunks: Vec<ChunkId> = versions.iter().map(|version| version.chunk).collect();
        // Of one that never was, nothing; and of one twice, the same.
        chunks.push(ChunkId::from_bytes([0xEE; 16]));
        let deleted = store.deleted(dataset, &chunks).await.expect("ask");
        assert_eq!(deleted.len(), chunks.len(), "{store}");
        assert_eq!(deleted.last().map(EntrySet::count), Some(0), "{store}");
        for (version, deleted) in versions.iter().zip(deleted) {
            let wanted = self.fold.deleted_of(version.chunk);
            let wanted = wanted.is_some_and(|entries| entries.contains(version.entry));
            assert_eq!(deleted.contains(version.entry), wanted, "{store}: {version:?}");
        }
    }
}

fn path_of(dir: &DirPath) -> FilePath {
    super::path(dir.as_bytes())
}

async fn list(
    store: &dyn MetaStore,
    dataset: DatasetId,
    dir: &DirPath,
    recursive: bool,
    limit: usize,
) -> Vec<ListEntry> {
    let (mut entries, mut after, mut is_last) = (Vec::new(), None, false);
    loop {
        let query =
            ListQuery { after, bytes: limit * 6, ..ListQuery::of(dir.clone(), recursive, limit) };
        let page = store.list(dataset, &query).await.expect("list");
        assert!(!is_last || page.is_empty(), "{store}: more after the last page");
        assert!(
            page.is_empty() || query.steps.count() > 0,
            "{store}: what is looked at is counted"
        );
        assert!(page.len() <= limit, "{store}: a page of {} for {limit}", page.len());
        let but_one = page.split_last().map(|(_, others)| others).unwrap_or_default();
        assert!(query.is_last(but_one), "{store}: a page that was full before its end");
        is_last = query.is_last(&page);
        let Some(last) = page.last() else { return entries };
        after = Some(last.key());
        entries.extend(page);
    }
}
