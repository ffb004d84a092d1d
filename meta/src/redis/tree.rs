//! Walks over the rows of folders, in the order of listings.
//!
//! Must hold: a walk gives the same files as `dl_format::Fold`: deleted winners are no files, and a folder
//! hides a file of the same path. A walk reads only the requested folders, a page at a time, together with
//! the next folders; its memory is some pages.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use dl_format::{FilePath, FileRecord};

use super::Shared;
use super::dataset_root::DatasetRoot;
use super::failure::Failure;
use super::folders::{BEGIN, Folder, GLANCE, PAGE, Pages, Reader, Row};
use super::live::hold_live;
use super::live_objects::LiveObjects;
use super::rows::Member;
use super::slots::Shard;
use crate::{ListEntry, ListQuery};

/// Rows read from a hashed bucket at once, as part of a page.
const SLICE: usize = 32;
/// Folders read at once.
const AHEAD: usize = 32;
/// Most folders in memory, read ahead.
const AHEAD_ALL: usize = 128;

/// A walk over a folder, or over all folders below.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    reader: Reader<'a>,
    recursive: bool,
    /// Whether hidden files are given, too.
    with_hidden: bool,
    pages: Pages,
    start: Option<(Vec<u8>, Vec<u8>)>,
    open: Vec<Folder>,
    /// Folders read ahead, by path.
    ahead: HashMap<Vec<u8>, Folder>,
    ahead_max: usize,
}

impl<'a> Walk<'a> {
    /// A walk over all files, also hidden ones.
    pub(super) fn of_everything(shared: &'a Shared, root: &'a DatasetRoot) -> Self {
        Self { with_hidden: true, ..Self::new(shared, root, Vec::new(), Vec::new(), PAGE) }
    }

    /// A page of a listing; none for an empty page.
    pub(super) fn of_list(
        shared: &'a Shared,
        root: &'a DatasetRoot,
        query: &ListQuery,
    ) -> Option<Self> {
        let prefix = query.dir.prefix();
        let after = match query.after.as_deref() {
            Some(after) if after >= prefix.as_slice() => after.strip_prefix(prefix.as_slice())?,
            _ => &[],
        };
        let page = query.limit.clamp(GLANCE, PAGE);
        let path = query.dir.as_bytes().to_vec();
        let mut walk = Self::new(shared, root, path, after.to_vec(), page);
        walk.reader.steps = query.steps.clone();
        Some(Self { recursive: query.recursive, ..walk })
    }

    fn new(
        shared: &'a Shared,
        root: &'a DatasetRoot,
        path: Vec<u8>,
        after: Vec<u8>,
        page: usize,
    ) -> Self {
        Self {
            reader: Reader::new(shared, root),
            recursive: true,
            with_hidden: false,
            pages: Pages { first: page, hashed: SLICE.min(page) },
            start: Some((path, after)),
            open: Vec::new(),
            ahead: HashMap::new(),
            ahead_max: 1,
        }
    }

    pub(super) fn shards(&self) -> &BTreeSet<Shard> {
        &self.reader.shards
    }

    pub(super) fn go_by(&mut self, known: Option<LiveObjects>) {
        self.reader.go_by(known);
    }

    pub(super) fn into_live_objects(self) -> LiveObjects {
        self.reader.into_live_objects()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.reader.is_stale()
    }

    /// The next file of a walk through all folders.
    pub(super) async fn next_file(&mut self) -> Result<Option<(FilePath, FileRecord)>, Failure> {
        loop {
            match self.next().await? {
                Some(ListEntry::File(path, record)) => return Ok(Some((path, record))),
                Some(ListEntry::Folder(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next entry of the listing; none at the end, or when the walk has to begin again.
    pub(super) async fn next(&mut self) -> Result<Option<ListEntry>, Failure> {
        if let Some((path, after)) = self.start.take() {
            let folder = self.folder(path, &after);
            self.enter(folder).await?;
        }
        loop {
            if self.reader.is_stale() {
                return Ok(None);
            }
            let Some(row) = self.row().await? else {
                // The innermost folder is at its end.
                if self.open.pop().is_none() {
                    return Ok(None);
                }
                continue;
            };
            let (recursive, with_hidden) = (self.recursive, self.with_hidden);
            let Some(folder) = self.open.last_mut() else { return Ok(None) };
            match Member::decode(&row.bytes)? {
                Member::Large => {}
                Member::Marker(name) => folder.marked = name.to_vec(),
                Member::File(name, record) => {
                    if !folder.is_first(name) || row.is_dead {
                        continue;
                    }
                    let (is_marked, path) = (folder.marked == name, folder.inside(name));
                    if with_hidden || !is_marked || !self.is_live(name).await? {
                        return Ok(Some(ListEntry::File(checked(path)?, record)));
                    }
                }
                Member::Folder(name) => {
                    if !folder.is_new(name) {
                        continue;
                    }
                    let path = folder.inside(name);
                    if recursive {
                        let resume = folder.resume.take_if(|(resumed, _)| resumed == name);
                        self.descend(path, resume.map(|(_, after)| after)).await?;
                    } else if self.is_live(name).await? {
                        return Ok(Some(ListEntry::Folder(checked(path)?)));
                    }
                }
            }
        }
    }

    /// Whether a live file lies below a folder in the innermost folder. Asks about the next folders, too.
    async fn is_live(&mut self, name: &[u8]) -> Result<bool, Failure> {
        let Some(folder) = self.open.last() else { return Ok(false) };
        if self.reader.deletions.are_none() {
            return Ok(true);
        }
        if let Some(is_live) = folder.lives.get(name) {
            return Ok(*is_live);
        }
        let mut names = BTreeSet::from([name.to_vec()]);
        if !self.recursive {
            names.extend(folder.coming().map(<[u8]>::to_vec));
        }
        let paths: Vec<_> = names.iter().map(|name| folder.inside(name)).collect();
        let are_live = hold_live(&mut self.reader, &paths).await?;
        let lives: HashMap<_, _> = names.into_iter().zip(are_live).collect();
        let is_live = lives.get(name).copied().unwrap_or_default();
        if let Some(folder) = self.open.last_mut() {
            folder.lives = lives;
        }
        Ok(is_live)
    }

    fn folder(&self, path: Vec<u8>, after: &[u8]) -> Folder {
        let (from, resume) = match after.iter().position(|byte| *byte == b'/') {
            None if after.is_empty() => (BEGIN.to_vec(), None),
            None => ([b"[", after, &[1]].concat(), None),
            Some(slash) => {
                let (name, rest) = (&after[..slash], &after[slash + 1..]);
                if self.recursive {
                    ([b"[", name, b"/"].concat(), Some((name.to_vec(), rest.to_vec())))
                } else {
                    ([b"(", name, b"/"].concat(), None)
                }
            }
        };
        let mut folder = self.reader.folder(path, &from, self.pages);
        folder.resume = resume;
        folder
    }

    /// Opens a folder in the innermost folder, and reads the next folders with it.
    async fn descend(&mut self, path: Vec<u8>, after: Option<Vec<u8>>) -> Result<(), Failure> {
        if after.is_none()
            && let Some(folder) = self.ahead.remove(&path)
        {
            self.open.push(folder);
            return Ok(());
        }
        let mut next = Vec::new();
        if let Some(parent) = self.open.last() {
            let room = AHEAD_ALL.saturating_sub(self.ahead.len()).min(self.ahead_max);
            let paths = parent.coming().map(|name| parent.inside(name));
            next.extend(paths.filter(|path| !self.ahead.contains_key(path)).take(room));
        }
        self.ahead_max = (self.ahead_max * 2).min(AHEAD);
        let mut folders: Vec<Folder> =
            next.into_iter().map(|path| self.folder(path, &[])).collect();
        folders.insert(0, self.folder(path, after.as_deref().unwrap_or_default()));
        self.reader.fill(&mut folders).await?;
        let mut folders = folders.into_iter();
        self.open.extend(folders.next());
        self.ahead.extend(folders.map(|folder| (folder.path.clone(), folder)));
        Ok(())
    }

    async fn enter(&mut self, folder: Folder) -> Result<(), Failure> {
        let mut folders = [folder];
        self.reader.fill(&mut folders).await?;
        self.open.extend(folders);
        Ok(())
    }

    /// The next row of the innermost folder, over all its buckets.
    async fn row(&mut self) -> Result<Option<Row>, Failure> {
        let Some(mut folder) = self.open.pop() else { return Ok(None) };
        if folder.is_waiting() {
            self.reader.fill(std::slice::from_mut(&mut folder)).await?;
        }
        let row = folder.next_row();
        self.open.push(folder);
        Ok(row)
    }
}

fn checked(path: Vec<u8>) -> Result<FilePath, Failure> {
    FilePath::new(Bytes::from(path)).map_err(|_| Failure::corrupt("the index holds no path"))
}
