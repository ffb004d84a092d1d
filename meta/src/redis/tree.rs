//! Walks over the rows of folders, in the order of listings.
//!
//! Must hold: it gives what `dl_format::Fold` holds: deleted winners are no files, and a folder
//! hides a file of the same path. It reads only the folders it is asked for, a page at a time, and
//! those that come next together; its memory is that of some pages.

use std::collections::{BTreeSet, HashMap, VecDeque};

use bytes::Bytes;
use dl_format::{ChunkId, EntrySet, EntryVersion, FilePath, FileRecord};
use futures::future::BoxFuture;
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, strings};
use super::failure::Failure;
use super::home::{Home, ask_epoch};
use super::keys::{BUCKETS, Key, Keys};
use super::rows::{LARGE, Member};
use super::slots::Shard;
use crate::{ListEntry, ListQuery};

/// Rows that are read from a folder at once.
const PAGE: usize = 1_000;
/// Rows that are enough to see whether there are any.
const GLANCE: usize = 16;
/// Rows that are read from a hashed bucket at once, as part of a page.
const SLICE: usize = 32;
/// Folders that are read at once.
const AHEAD: usize = 32;
/// Folders that are read and wait for their turn.
const AHEAD_ALL: usize = 128;
/// Bitmaps kept at once; with more, all are let go.
const SEEN_MAX: usize = 4_096;

/// Which versions are deleted, each bitmap read once for many.
#[derive(Debug)]
pub(super) struct Deletions {
    keys: Keys,
    none: bool,
    /// Whether what is not deleted has to be known for sure.
    assured: bool,
    /// Whether the dataset was dropped meanwhile, so that nothing is known.
    is_stale: bool,
    seen: HashMap<ChunkId, EntrySet>,
}

impl Deletions {
    pub(super) fn of(home: &Home) -> Self {
        let (none, seen) = (home.tombstones == 0, HashMap::new());
        Self { keys: home.keys, none, assured: true, is_stale: false, seen }
    }

    /// As far as they are there: for who may ask while some of them may be gone.
    pub(super) fn as_they_are(home: &Home) -> Self {
        Self { assured: false, ..Self::of(home) }
    }

    /// Whether who asks has to begin anew.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) fn are_none(&self) -> bool {
        self.none
    }

    /// Reads what the questions about `chunks` need. Fails when a shard in which some of it lies lost
    /// its mark: that nothing is deleted would be said of what may be gone.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        chunks: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        if self.none {
            return Ok(());
        }
        if self.seen.len() > SEEN_MAX {
            self.seen.clear();
        }
        let new: BTreeSet<ChunkId> =
            chunks.into_iter().filter(|chunk| !self.seen.contains_key(chunk)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let asks = new.iter().map(|chunk| Ask::to(&self.keys.deletions(*chunk), "SMEMBERS"));
        let mut asks: Vec<Ask> = asks.collect();
        let shards: BTreeSet<Shard> = asks.iter().map(|ask| ask.shard).collect();
        let sign = shared.sign().filter(|_| self.assured);
        // Behind them, on the same connections.
        asks.extend(sign.iter().flat_map(|sign| shards.iter().map(|shard| sign.ask(*shard))));
        asks.extend(self.assured.then(|| ask_epoch(self.keys)));
        let mut answers = shared.router.ask(asks).await?;
        if self.assured {
            let epoch = answers.pop().unwrap_or(Value::Nil);
            self.is_stale |= !shared.is_still(self.keys, epoch)?;
        }
        let marks = answers.split_off(new.len());
        if let Some(sign) = sign {
            shared.check_signs(&sign, marks).await?;
        }
        for (chunk, answer) in new.into_iter().zip(answers) {
            let mut entries = EntrySet::default();
            for bits in strings(answer)? {
                let part = EntrySet::from_bits(&bits)
                    .map_err(|_| Failure::corrupt("deleted entries can't be read"))?;
                entries.union(&part);
            }
            self.seen.insert(chunk, entries);
        }
        Ok(())
    }

    /// Whether a version of a chunk that was loaded last is deleted.
    pub(super) fn contain(&self, version: &EntryVersion) -> bool {
        let entries = self.seen.get(&version.chunk);
        entries.is_some_and(|entries| entries.contains(version.entry))
    }

    /// The deleted entries of a chunk that was loaded last.
    pub(super) fn entries(&self, chunk: ChunkId) -> Option<&EntrySet> {
        self.seen.get(&chunk)
    }
}

/// A row, and whether it is of a file that is deleted: known as soon as it was read, for bitmaps are
/// not kept for as long as rows wait.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Row {
    bytes: Vec<u8>,
    is_deleted: bool,
}

/// One bucket of an open folder.
#[derive(Debug)]
struct Stream {
    key: Key,
    rows: VecDeque<Row>,
    /// Whether it isn't known yet which of them are deleted.
    is_new: bool,
    /// Where the range begins that was not read yet; none when all was.
    from: Option<Vec<u8>>,
    page: usize,
}

impl Stream {
    fn new(key: Key, from: Vec<u8>, page: usize) -> Self {
        Self { key, rows: VecDeque::new(), is_new: false, from: Some(from), page }
    }

    /// Whether there is more to read before it can be gone on with.
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.from.is_some()
    }

    fn ask(&self) -> Option<Ask> {
        if !self.rows.is_empty() {
            return None;
        }
        let ask = Ask::to(&self.key, "ZRANGEBYLEX").arg(self.from.as_ref()?).arg("+");
        Some(ask.arg("LIMIT").arg(0).arg(self.page))
    }

    fn take(&mut self, answer: Value) -> Result<(), Failure> {
        let rows = strings(answer)?;
        let last = rows.last().filter(|_| rows.len() >= self.page);
        self.from = last.map(|last| [b"(", last.as_slice()].concat());
        self.rows.extend(rows.into_iter().map(|bytes| Row { bytes, is_deleted: false }));
        self.is_new = true;
        Ok(())
    }

    /// Takes note of what is deleted of the rows that were read last.
    fn judge(&mut self, deletions: &Deletions) -> Result<(), Failure> {
        if !std::mem::take(&mut self.is_new) || deletions.are_none() {
            return Ok(());
        }
        for row in &mut self.rows {
            if let Member::File(_, record) = Member::decode(&row.bytes)? {
                row.is_deleted = deletions.contain(&record.version);
            }
        }
        Ok(())
    }
}

/// A folder that is being read.
#[derive(Debug)]
struct Folder {
    path: Vec<u8>,
    streams: Vec<Stream>,
    /// Where hashed buckets are to be read from, as long as it is not known whether it has any.
    large_from: Option<Vec<u8>>,
    /// A name that is a folder; its file comes next, if there is one.
    marked: Vec<u8>,
    /// The file that was met last; what follows of that name are older versions.
    file: Option<Vec<u8>>,
    /// The folder that was met last: two buckets may show it.
    folder: Option<Vec<u8>>,
    /// A folder in it that is not read from its beginning, and what is behind its slash.
    resume: Option<(Vec<u8>, Vec<u8>)>,
}

/// A walk over one folder, or over all below it.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    shared: &'a Shared,
    home: &'a Home,
    deletions: Deletions,
    recursive: bool,
    /// Also files that a folder hides.
    with_hidden: bool,
    page: usize,
    start: Option<(Vec<u8>, Vec<u8>)>,
    open: Vec<Folder>,
    /// Folders read ahead, by path.
    ahead: HashMap<Vec<u8>, Folder>,
    ahead_max: usize,
    shards: BTreeSet<Shard>,
}

impl<'a> Walk<'a> {
    /// All files, those hidden by folders too.
    pub(super) fn of_everything(shared: &'a Shared, home: &'a Home) -> Self {
        Self { with_hidden: true, ..Self::new(shared, home, Vec::new(), Vec::new(), PAGE) }
    }

    /// Some live file below a folder.
    fn glance(shared: &'a Shared, home: &'a Home, path: Vec<u8>) -> Self {
        Self { with_hidden: true, ..Self::new(shared, home, path, Vec::new(), GLANCE) }
    }

    /// A page of a listing; none when it can't have any entries.
    pub(super) fn of_list(shared: &'a Shared, home: &'a Home, query: &ListQuery) -> Option<Self> {
        let prefix = query.dir.prefix();
        let after = match query.after.as_deref() {
            Some(after) if after >= prefix.as_slice() => after.strip_prefix(prefix.as_slice())?,
            _ => &[],
        };
        let page = query.limit.clamp(GLANCE, PAGE);
        let path = query.dir.as_bytes().to_vec();
        let walk = Self::new(shared, home, path, after.to_vec(), page);
        Some(Self { recursive: query.recursive, ..walk })
    }

    fn new(shared: &'a Shared, home: &'a Home, path: Vec<u8>, after: Vec<u8>, page: usize) -> Self {
        Self {
            shared,
            home,
            deletions: Deletions::of(home),
            recursive: true,
            with_hidden: false,
            page,
            start: Some((path, after)),
            open: Vec::new(),
            ahead: HashMap::new(),
            ahead_max: 1,
            shards: BTreeSet::new(),
        }
    }

    /// What was read, and so what has to be whole for the answer to be.
    pub(super) fn shards(&self) -> &BTreeSet<Shard> {
        &self.shards
    }

    /// The next file of a walk that goes into folders.
    pub(super) async fn next_file(&mut self) -> Result<Option<(FilePath, FileRecord)>, Failure> {
        loop {
            match self.next().await? {
                Some(ListEntry::File(path, record)) => return Ok(Some((path, record))),
                Some(ListEntry::Folder(_)) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next line of the listing; none, too, when the dataset was dropped meanwhile, which
    /// [`Shared::confirm`] tells.
    pub(super) async fn next(&mut self) -> Result<Option<ListEntry>, Failure> {
        if let Some((path, after)) = self.start.take() {
            let folder = self.folder(path, &after);
            self.enter(folder).await?;
        }
        loop {
            if self.deletions.is_stale() {
                return Ok(None);
            }
            let Some(row) = self.row().await? else {
                // What was read ahead for it was used, or is in no folder any more.
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
                    if folder.file.as_deref() == Some(name) {
                        continue;
                    }
                    folder.file = Some(name.to_vec());
                    let is_marked = folder.marked == name;
                    let path = joined(&folder.path, name);
                    if row.is_deleted {
                        continue;
                    }
                    if with_hidden || !is_marked || !self.is_live(&path).await? {
                        return Ok(Some(ListEntry::File(checked(path)?, record)));
                    }
                }
                Member::Folder(name) => {
                    if folder.folder.as_deref() == Some(name) {
                        continue;
                    }
                    folder.folder = Some(name.to_vec());
                    let path = joined(&folder.path, name);
                    if recursive {
                        let resume = folder.resume.take_if(|(resumed, _)| resumed == name);
                        self.descend(path, resume.map(|(_, after)| after)).await?;
                    } else if self.is_live(&path).await? {
                        return Ok(Some(ListEntry::Folder(checked(path)?)));
                    }
                }
            }
        }
    }

    /// Whether some live file lies below a folder that was written.
    async fn is_live(&mut self, path: &[u8]) -> Result<bool, Failure> {
        if self.deletions.are_none() {
            return Ok(true);
        }
        holds_live(self.shared, self.home, path.to_vec(), &mut self.shards).await
    }

    fn folder(&self, path: Vec<u8>, after: &[u8]) -> Folder {
        let (from, resume) = match after.iter().position(|byte| *byte == b'/') {
            None if after.is_empty() => (b"-".to_vec(), None),
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
        let streams = vec![Stream::new(self.home.keys.rows(0, &path), from.clone(), self.page)];
        let large_from = Some(from).filter(|_| self.home.is_large);
        let (marked, file, folder) = (Vec::new(), None, None);
        Folder { path, streams, large_from, marked, file, folder, resume }
    }

    /// Opens a folder of the innermost one, and reads those that come next with it.
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
            let rows = parent.streams.iter().flat_map(|stream| &stream.rows);
            let rows = rows.map(|row| row.bytes.strip_suffix(b"/"));
            let places = rows.flatten().filter(|name| !name.contains(&0));
            let paths = places.map(|name| joined(&parent.path, name));
            next.extend(paths.filter(|path| !self.ahead.contains_key(path)).take(room));
        }
        self.ahead_max = (self.ahead_max * 2).min(AHEAD);
        let mut folders: Vec<Folder> =
            next.into_iter().map(|path| self.folder(path, &[])).collect();
        folders.insert(0, self.folder(path, after.as_deref().unwrap_or_default()));
        self.fill(&mut folders).await?;
        let mut folders = folders.into_iter();
        self.open.extend(folders.next());
        self.ahead.extend(folders.map(|folder| (folder.path.clone(), folder)));
        Ok(())
    }

    async fn enter(&mut self, folder: Folder) -> Result<(), Failure> {
        let mut folders = [folder];
        self.fill(&mut folders).await?;
        self.open.extend(folders);
        Ok(())
    }

    /// Reads a page into every bucket that has run empty.
    async fn fill(&mut self, folders: &mut [Folder]) -> Result<(), Failure> {
        let mut chunks = BTreeSet::new();
        loop {
            let mut asks = Vec::new();
            for folder in folders.iter().filter(|folder| folder.large_from.is_some()) {
                let first = self.home.keys.rows(0, &folder.path);
                asks.push(Ask::to(&first, "ZSCORE").arg(LARGE));
            }
            let streams = folders.iter().flat_map(|folder| &folder.streams);
            asks.extend(streams.filter_map(Stream::ask));
            if asks.is_empty() {
                break;
            }
            self.shards.extend(asks.iter().map(|ask| ask.shard));
            let mut answers = self.shared.router.ask(asks).await?.into_iter();
            let mut large = Vec::new();
            for folder in folders.iter_mut() {
                large.push(match folder.large_from.take() {
                    Some(from) => bytes(answers.next().unwrap_or(Value::Nil))?.map(|_| from),
                    None => None,
                });
            }
            let streams = folders.iter_mut().flat_map(|folder| &mut folder.streams);
            for stream in streams.filter(|stream| stream.is_empty()) {
                stream.take(answers.next().unwrap_or(Value::Nil))?;
                if !self.deletions.are_none() {
                    for row in &stream.rows {
                        if let Member::File(_, record) = Member::decode(&row.bytes)? {
                            chunks.insert(record.version.chunk);
                        }
                    }
                }
            }
            for (folder, from) in folders.iter_mut().zip(large) {
                let Some(from) = from else { continue };
                let page = (self.page / SLICE).max(SLICE).min(self.page);
                folder.streams.extend((1..=BUCKETS).map(|bucket| {
                    Stream::new(self.home.keys.rows(bucket, &folder.path), from.clone(), page)
                }));
            }
        }
        self.deletions.load(self.shared, chunks).await?;
        let streams = folders.iter_mut().flat_map(|folder| &mut folder.streams);
        streams.into_iter().try_for_each(|stream| stream.judge(&self.deletions))
    }

    /// The next row of the innermost folder, over all its buckets.
    async fn row(&mut self) -> Result<Option<Row>, Failure> {
        let Some(mut folder) = self.open.pop() else { return Ok(None) };
        if folder.streams.iter().any(Stream::is_empty) {
            self.fill(std::slice::from_mut(&mut folder)).await?;
        }
        let least = folder.streams.iter_mut().filter(|stream| !stream.rows.is_empty());
        let least = least.min_by(|a, b| a.rows.front().cmp(&b.rows.front()));
        let row = least.and_then(|stream| stream.rows.pop_front());
        self.open.push(folder);
        Ok(row)
    }
}

/// Whether some live file lies below a folder. Boxed, as it may come here again.
pub(super) fn holds_live<'a>(
    shared: &'a Shared,
    home: &'a Home,
    path: Vec<u8>,
    shards: &'a mut BTreeSet<Shard>,
) -> BoxFuture<'a, Result<bool, Failure>> {
    Box::pin(async move {
        let mut walk = Walk::glance(shared, home, path);
        let is_live = walk.next().await?.is_some();
        shards.append(&mut walk.shards);
        Ok(is_live)
    })
}

fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}

fn checked(path: Vec<u8>) -> Result<FilePath, Failure> {
    FilePath::new(Bytes::from(path)).map_err(|_| Failure::corrupt("the index holds no path"))
}
