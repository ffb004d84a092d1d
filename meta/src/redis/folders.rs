//! Folders read by a call: the rows of all their buckets in a common order, page by page.
//!
//! Must hold: rows come in the order of listings, whichever bucket holds them, so the first row of a name is
//! its winner; the reader then knows whether the file is dead. Each round asks each primary once, for any
//! number of folders.

use std::collections::{BTreeSet, HashMap, VecDeque};

use dl_format::{ChunkId, EntryVersion};
use futures::try_join;
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, strings};
use super::dataset_root::DatasetRoot;
use super::deletions::Deletions;
use super::failure::Failure;
use super::keys::{AllRows, BUCKETS, Key};
use super::live_objects::{Count, LiveObjects};
use super::rows::{LARGE, Member};
use super::slots::Shard;
use crate::Steps;

/// Most rows read from a folder at once.
pub(super) const PAGE: usize = 1_000;
/// Rows of a first look, mostly enough to find a live file.
pub(super) const GLANCE: usize = 16;
/// The begin of the range of all rows.
pub(super) const BEGIN: &[u8] = b"-";

/// Rows of a folder per round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pages {
    /// From the first bucket.
    pub(super) first: usize,
    /// From each hashed bucket.
    pub(super) hashed: usize,
}

/// A row, and whether its file is deleted or its object left the log: judged at the reading of the row, as
/// bitmaps are not kept while rows wait.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    pub(super) bytes: Vec<u8>,
    pub(super) is_dead: bool,
}

/// The row of a file that may be dead.
#[derive(Debug)]
struct Unjudged {
    row: usize,
    version: EntryVersion,
    holder: ChunkId,
}

/// A bucket of a folder.
#[derive(Debug)]
struct Stream {
    key: Key,
    rows: VecDeque<Row>,
    unjudged: Vec<Unjudged>,
    /// The begin of the unread rows; none when all rows were read.
    from: Option<Vec<u8>>,
    page: usize,
}

impl Stream {
    fn new(key: Key, from: Vec<u8>, page: usize) -> Self {
        Self { key, rows: VecDeque::new(), unjudged: Vec::new(), from: Some(from), page }
    }

    /// Whether the bucket must be read before its next row is known.
    fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.from.is_some()
    }

    /// Whether the bucket is read together with other buckets of its folder: names are spread evenly, so
    /// hashed buckets run empty at about the same time.
    fn is_low(&self) -> bool {
        self.from.is_some() && self.rows.len() <= self.page / 2
    }

    fn ask(&self) -> Option<Ask> {
        let from = self.from.as_ref().filter(|_| self.is_low())?;
        let ask = Ask::to(&self.key, "ZRANGEBYLEX").arg(from).arg("+");
        Some(ask.arg("LIMIT").arg(0).arg(self.page))
    }

    /// Takes a page. Rows are not judged in a dataset without deletions and without retired objects.
    fn take(&mut self, answer: Value, to_judge: bool) -> Result<(), Failure> {
        let rows = strings(answer)?;
        let last = rows.last().filter(|_| rows.len() >= self.page);
        self.from = last.map(|last| [b"(", last.as_slice()].concat());
        for bytes in rows {
            if to_judge && let Member::File(_, record) = Member::decode(&bytes)? {
                let (version, holder) = (record.version, record.holder.chunk);
                self.unjudged.push(Unjudged { row: self.rows.len(), version, holder });
            }
            self.rows.push_back(Row { bytes, is_dead: false });
        }
        Ok(())
    }

    /// Marks dead rows of the last page; whether all marks are certain.
    fn judge(&mut self, deletions: &Deletions, live_objects: &LiveObjects) -> bool {
        let mut is_sure = true;
        for Unjudged { row, version, holder } in std::mem::take(&mut self.unjudged) {
            if let Some(row) = self.rows.get_mut(row) {
                let is_deleted = deletions.contain(&version);
                row.is_dead = is_deleted || live_objects.lack(holder);
                is_sure &= is_deleted || !live_objects.doubt(holder);
            }
        }
        is_sure
    }
}

#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: Vec<u8>,
    streams: Vec<Stream>,
    pages: Pages,
    /// The begin of the hashed buckets, until their existence is known.
    large_from: Option<Vec<u8>>,
    /// The last file; later rows of its name are older versions.
    file: Option<Vec<u8>>,
    /// The last folder inside: two buckets may show the folder.
    folder: Option<Vec<u8>>,
    /// The name of a folder inside; a file of the same name comes next, if there is one.
    pub(super) marked: Vec<u8>,
    /// For the next folders inside, as far as known, whether a live file lies below.
    pub(super) lives: HashMap<Vec<u8>, bool>,
    /// A folder inside, read from the middle, and the rest of the path behind its slash.
    pub(super) resume: Option<(Vec<u8>, Vec<u8>)>,
}

impl Folder {
    /// The size of the next pages.
    pub(super) fn set_pages(&mut self, pages: Pages) {
        self.pages = pages;
        for (bucket, stream) in self.streams.iter_mut().enumerate() {
            stream.page = if bucket == 0 { pages.first } else { pages.hashed };
        }
    }

    /// Whether the folder must be read before its next row is known.
    pub(super) fn is_waiting(&self) -> bool {
        self.streams.iter().any(Stream::is_empty)
    }

    /// The next row of all buckets; none while the folder waits, or at its end.
    pub(super) fn next_row(&mut self) -> Option<Row> {
        if self.is_waiting() {
            return None;
        }
        let least = self.streams.iter_mut().filter(|stream| !stream.rows.is_empty());
        let least = least.min_by(|a, b| a.rows.front().cmp(&b.rows.front()));
        least.and_then(|stream| stream.rows.pop_front())
    }

    /// Whether the row of a file is the first of its name, and so the winner.
    pub(super) fn is_first(&mut self, name: &[u8]) -> bool {
        let is_first = self.file.as_deref() != Some(name);
        if is_first {
            self.file = Some(name.to_vec());
        }
        is_first
    }

    /// Whether a folder inside is new.
    pub(super) fn is_new(&mut self, name: &[u8]) -> bool {
        let is_new = self.folder.as_deref() != Some(name);
        if is_new {
            self.folder = Some(name.to_vec());
        }
        is_new
    }

    /// Names of the next folders inside, as far as they were read.
    pub(super) fn coming(&self) -> impl Iterator<Item = &[u8]> {
        let rows = self.streams.iter().flat_map(|stream| &stream.rows);
        let names = rows.filter_map(|row| row.bytes.strip_suffix(b"/"));
        names.filter(|name| !name.contains(&0))
    }

    /// The path of a name in this folder.
    pub(super) fn inside(&self, name: &[u8]) -> Vec<u8> {
        match self.path.as_slice() {
            [] => name.to_vec(),
            path => [path, b"/", name].concat(),
        }
    }
}

/// Reads the folders of a dataset, for a single call.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    pub(super) shared: &'a Shared,
    pub(super) root: &'a DatasetRoot,
    all_rows: AllRows,
    pub(super) deletions: Deletions,
    live_objects: LiveObjects,
    /// Whether an object may have left the log after its rows were read.
    is_unsure: bool,
    /// The shards that were read; the answer is whole only if they are.
    pub(super) shards: BTreeSet<Shard>,
    /// Counts the answered rounds.
    pub(super) steps: Steps,
}

impl<'a> Reader<'a> {
    pub(super) fn new(shared: &'a Shared, root: &'a DatasetRoot) -> Self {
        let (all_rows, deletions) = (root.keys.all_rows(), Deletions::of(root));
        let live_objects = LiveObjects::after(root, shared.router.changes());
        let (is_unsure, shards, steps) = (false, BTreeSet::new(), Steps::default());
        Self { shared, root, all_rows, deletions, live_objects, is_unsure, shards, steps }
    }

    /// Takes over the live objects of an earlier round of the call.
    pub(super) fn go_by(&mut self, known: Option<LiveObjects>) {
        if let Some(known) = known {
            self.live_objects = known.again(self.root, self.shared.router.changes());
        }
    }

    /// The live objects, for the next round of the call.
    pub(super) fn into_live_objects(self) -> LiveObjects {
        self.live_objects
    }

    /// Whether the call has to begin again: the dataset was dropped, or files moved during the reading.
    pub(super) fn is_stale(&self) -> bool {
        self.deletions.is_stale() || self.live_objects.are_stale() || self.is_unsure
    }

    /// A folder, read from `from` on.
    pub(super) fn folder(&self, path: Vec<u8>, from: &[u8], pages: Pages) -> Folder {
        let first = Stream::new(self.all_rows.of(0, &path), from.to_vec(), pages.first);
        Folder {
            path,
            streams: vec![first],
            pages,
            large_from: self.root.is_large.then(|| from.to_vec()),
            file: None,
            folder: None,
            marked: Vec::new(),
            lives: HashMap::new(),
            resume: None,
        }
    }

    /// Reads a page of each empty or nearly empty bucket.
    pub(super) async fn fill(&mut self, folders: &mut [Folder]) -> Result<(), Failure> {
        let may_lack = self.root.retired > 0;
        let to_judge = may_lack || !self.deletions.are_none();
        let (mut chunks, mut objects) = (BTreeSet::new(), BTreeSet::new());
        let mut beside = Count { places: self.shared.router.changes(), ..Count::default() };
        loop {
            let mut asks = Vec::new();
            for folder in folders.iter().filter(|folder| folder.large_from.is_some()) {
                let first = self.all_rows.of(0, &folder.path);
                asks.push(Ask::to(&first, "ZSCORE").arg(LARGE));
            }
            let streams = folders.iter().flat_map(|folder| &folder.streams);
            asks.extend(streams.filter_map(Stream::ask));
            if asks.is_empty() {
                break;
            }
            self.shards.extend(asks.iter().map(|ask| ask.shard));
            let count = || Ask::to(&self.root.keys.root(), "HGET").arg("retired");
            asks.extend(may_lack.then(count));
            let mut answers = self.shared.router.ask(asks).await?;
            self.steps.step();
            if let Some(retired) = may_lack.then(|| answers.pop()).flatten() {
                beside.retired = decimal(bytes(retired)?.as_ref())?;
            }
            let mut answers = answers.into_iter();
            let mut large = Vec::new();
            for folder in folders.iter_mut() {
                large.push(match folder.large_from.take() {
                    Some(from) => bytes(answers.next().unwrap_or(Value::Nil))?.map(|_| from),
                    None => None,
                });
            }
            let streams = folders.iter_mut().flat_map(|folder| &mut folder.streams);
            for stream in streams.filter(|stream| stream.is_low()) {
                stream.take(answers.next().unwrap_or(Value::Nil), to_judge)?;
                chunks.extend(stream.unjudged.iter().map(|row| row.version.chunk));
                objects.extend(stream.unjudged.iter().map(|row| row.holder));
            }
            for (folder, from) in folders.iter_mut().zip(large) {
                let Some(from) = from else { continue };
                folder.streams.extend((1..=BUCKETS).map(|bucket| {
                    let key = self.all_rows.of(bucket, &folder.path);
                    Stream::new(key, from.clone(), folder.pages.hashed)
                }));
            }
        }
        let live_objects =
            Box::pin(self.live_objects.load(self.shared, self.root, beside, objects));
        try_join!(live_objects, self.deletions.load(self.shared, chunks))?;
        self.shards.extend(self.live_objects.doubted(self.root));
        for stream in folders.iter_mut().flat_map(|folder| &mut folder.streams) {
            self.is_unsure |= !stream.judge(&self.deletions, &self.live_objects);
        }
        Ok(())
    }
}
